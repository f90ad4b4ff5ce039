//! Serves an artifact over HTTP, as OpenAI's interface has it.
//!
//! [`worker::start`] gives the engine to a thread, which batches requests ([`schedule`]);
//! [`serve::serve`] takes connections and gives their requests to it. Between them are the model's
//! text: its tokenizer ([`text`]), chat templates ([`template`]), the parts of answers ([`parts`]:
//! [`thoughts`] and calls of [`tools`]) and their forms ([`grammar`]).
#![warn(missing_docs)]
pub mod api;
pub mod grammar;
pub mod parts;
pub mod schedule;
pub mod serve;
pub mod template;
pub mod text;
pub mod thoughts;
mod threads;
pub mod tools;
pub mod worker;
