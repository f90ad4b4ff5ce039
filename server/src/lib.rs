//! Serves an artifact over HTTP, as OpenAI's interface has it.
//!
//! [`worker::start`] gives the engine to a thread, which batches requests ([`schedule`], the
//! batcher of the runtime); [`serve::serve`] takes connections and gives their requests to it.
//! Between them are the model's text: its tokenizer ([`text`]), chat templates ([`template`]), the
//! parts of answers ([`parts`]: [`thoughts`] and calls of [`tools`]) and their forms ([`grammar`]).
//!
//! Without the feature `http` there is the tokenizer alone, which every verb that takes a prompt
//! needs.
#![warn(missing_docs)]
#[cfg(feature = "http")]
pub mod api;
#[cfg(feature = "http")]
pub mod grammar;
#[cfg(feature = "http")]
pub mod parts;
#[cfg(feature = "http")]
pub use atomc_runtime::schedule;
#[cfg(feature = "http")]
pub mod serve;
#[cfg(feature = "http")]
pub mod template;
pub mod text;
#[cfg(feature = "http")]
pub mod thoughts;
#[cfg(feature = "http")]
mod threads;
#[cfg(feature = "http")]
pub mod tools;
#[cfg(feature = "http")]
pub mod worker;
