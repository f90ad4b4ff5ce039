//! Serves an artifact over HTTP, as OpenAI's interface has it.
#![warn(missing_docs)]
pub mod schedule;
