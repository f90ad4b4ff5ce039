//! GGUF, the files of llama.cpp: what is in them, and what that is in the words of Hugging Face.
//!
//! - `gguf.rs`: a model, of one file or several; `part.rs`: a file; `header.rs`: its header;
//!   `value.rs`: its metadata
//! - `types.rs`: the table of types; `blocks.rs`: how a block of each becomes floats; `coded.rs`:
//!   how it becomes codes with scales, as products take them
//! - `config.rs`: the `config.json` that the metadata make
//! - `names.rs`: the names of tensors, and how tensors of those names are made
//! - `tokenizer.rs`: the `tokenizer.json` that the metadata make
//! - `error.rs`: what can be wrong
mod blocks;
mod coded;
mod config;
mod error;
mod gguf;
mod header;
#[cfg(test)]
mod made;
mod names;
mod part;
mod tokenizer;
mod types;
mod value;

pub use coded::{Coded, Piece, Split};
pub use config::config;
pub use error::{Fault, GgufError, KeyFault, PartFault};
pub use gguf::{Gguf, Stored};
pub use names::{Grouped, Made, Origin, origins};
pub use tokenizer::{tokenizer, tokenizer_config};
pub use types::Type;
pub use value::{List, Metadata, Value};
