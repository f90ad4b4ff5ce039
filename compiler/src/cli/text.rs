//! Text to token ids and back, by the model's own `tokenizer.json`.
use std::path::Path;

use atomc_artifact::files;
use tokenizers::Tokenizer;

use super::failure::Failure;

pub struct Text {
    tokenizer: Tokenizer,
}

impl Text {
    /// From a file, or from the `tokenizer.json` in a folder.
    pub fn open(path: &Path) -> Result<Text, Failure> {
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let bytes = files::read(&file).map_err(|error| Failure::file("tokenizer", &file, error))?;
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| Failure::file("tokenizer", &file, error))?;
        Ok(Text { tokenizer })
    }

    /// Token ids of a prompt, with the special tokens that the model wants around it. One that is
    /// longer than so many of the longest token is refused before it is cut up, which takes some
    /// hundred times its bytes.
    pub fn encode(&self, text: &str, positions: usize) -> Result<Vec<u32>, Failure> {
        let longest = self.tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(1);
        let most = positions.saturating_mul(longest);
        if text.len() > most {
            let message = format!("a prompt of {} bytes is longer than any of {positions} tokens", text.len());
            return Err(Failure::new("prompt", message).help("The artifact takes no more tokens in a sequence."));
        }
        let encoding = self.tokenizer.encode(text, true).map_err(|error| Failure::new("tokenizer", error))?;
        match encoding.get_ids() {
            [] => Err(Failure::new("tokenizer", "the prompt has no tokens")),
            ids => Ok(ids.to_vec()),
        }
    }

    /// Text of an answer, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Failure> {
        self.tokenizer.decode(ids, true).map_err(|error| Failure::new("tokenizer", error))
    }

    /// A stream of token ids turned into pieces of text, each cut where a character ends.
    pub fn stream(&self) -> impl FnMut(u32) -> Result<String, Failure> + '_ {
        let mut stream = self.tokenizer.decode_stream(true);
        move |id| {
            let piece = stream.step(id).map_err(|error| Failure::new("tokenizer", error))?;
            Ok(piece.unwrap_or_default())
        }
    }
}
