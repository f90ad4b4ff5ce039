//! Serves an artifact over HTTP, as OpenAI's interface has it.
//!
//! [`worker::start`] gives the engine to a thread, which batches requests ([`schedule`]);
//! [`serve::serve`] takes connections and gives their requests to it. Between them are the model's
//! text: its tokenizer ([`text`]), chat templates ([`template`]), the parts of answers ([`parts`]:
//! [`thoughts`] and calls of [`tools`]) and their forms ([`grammar`]).
//!
//! The batcher is the runtime's (`runtime/src/schedule.rs`). It asks the engine through a trait
//! (`schedule/backend.rs`), so its tests run a toy over the engine's own cache. `worker.rs` is the
//! thread that owns scheduler and engine: nothing else touches them.
//!
//! `text.rs` makes text of tokens, `template.rs` prompts of conversations, `tools.rs` calls of
//! answers, `images.rs` patches of images, `eyes.rs` has the tower that sees them. `grammar.rs`
//! makes masks of schemas and expressions: threads of its own prepare a grammar
//! (`grammar/prepare.rs`) and compute its masks during the steps (`grammar/masks.rs`).
//!
//! `api.rs` has the routes, with a file for each kind. `api/talk.rs` is the way from a conversation
//! to answers, which chats, responses and messages share. `serve.rs` has the connections,
//! `serve/limits.rs` their limits, and `serve/room.rs` chooses the one that is closed for another.
//! An answer leaves the scheduler's thread as events on a channel (`api/events.rs`). A closed
//! channel is how a client that has gone is noticed.
//!
//! Without the feature `http` there is the tokenizer alone, which every verb that takes a prompt
//! needs.
#![warn(missing_docs)]
#[cfg(feature = "http")]
pub mod api;
#[cfg(feature = "http")]
pub mod eyes;
#[cfg(feature = "http")]
pub mod grammar;
#[cfg(feature = "http")]
pub mod images;
#[cfg(feature = "http")]
mod memory;
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
