//! Text to token ids and back, by the model's own `tokenizer.json`.
use std::path::Path;

use atomc::model::Model;
use atomc_server::text::{Reader, Text as Tokenizer, TextError};

use super::failure::Failure;

pub struct Text {
    tokenizer: Tokenizer,
}

fn failed(error: TextError) -> Failure {
    match error {
        TextError::TooLong { .. } => {
            Failure::new("prompt", error).help("The artifact takes no more tokens in a sequence.")
        }
        error => Failure::new("tokenizer", error),
    }
}

impl Text {
    /// From a file, or from the `tokenizer.json` in a folder, or from a GGUF file.
    pub fn open(path: &Path) -> Result<Text, Failure> {
        Ok(Text { tokenizer: Model::at(path)?.text()? })
    }

    /// Token ids of a prompt, with the special tokens that the model wants around it.
    pub fn encode(&self, text: &str, positions: usize) -> Result<Vec<u32>, Failure> {
        match self.tokenizer.encode(text, true, positions).map_err(failed)? {
            ids if ids.is_empty() => Err(Failure::new("tokenizer", "the prompt has no tokens")),
            ids => Ok(ids),
        }
    }

    /// Text of an answer, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Failure> {
        self.tokenizer.decode(ids, false).map_err(failed)
    }

    /// A stream of token ids as pieces of text, each cut at the end of a character.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<String, Failure> + '_ {
        let mut reader = Reader::new(false);
        move |id| reader.push(&self.tokenizer, id).map_err(failed)
    }
}
