//! Text to tokens and back, by the model's own `tokenizer.json`: whole, and piece by piece for a
//! stream of tokens.
mod bytes;
mod check;
mod stops;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use atomc_artifact::files;
use tokenizers::Tokenizer;

pub use stops::Stops;

/// Most tokens of a character that is not complete. After these it is shown as it is: no character
/// has more bytes than half of this, and decoding the rest again and again would take quadratic
/// time.
const MOST_PENDING: usize = 8;

/// Why text cannot be made tokens, or tokens text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum TextError {
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("a prompt of {bytes} bytes is longer than any of {tokens} tokens")]
    TooLong { bytes: usize, tokens: usize },
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
}

/// A tokenizer.
pub struct Text {
    tokenizer: Tokenizer,
    /// Bytes of the longest token.
    longest: usize,
}

impl Text {
    /// From a file, or from the `tokenizer.json` in a folder. As in transformers, the file's
    /// truncation and padding are not for prompts, and are ignored.
    pub fn open(path: &Path) -> Result<Text, TextError> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let bytes =
            files::read(&path).map_err(|error| TextError::File { path: path.clone(), why: error.to_string() })?;
        Text::parse(&path, &bytes)
    }

    /// From the bytes of a `tokenizer.json`, which come from a file.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Text, TextError> {
        let fault = |why: String| TextError::File { path: path.to_owned(), why };
        let mut tokenizer = whole(|| Tokenizer::from_bytes(bytes)).map_err(fault)?;
        whole(|| tokenizer.with_truncation(None).map(|_| ())).map_err(fault)?;
        tokenizer.with_padding(None);
        check::check(&tokenizer).map_err(fault)?;
        let longest = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(1);
        Ok(Text { tokenizer, longest })
    }

    /// Tokens of a text, with the special tokens that the model wants around it or without. A text
    /// that is longer than `most` times the longest token is refused before it is tokenised, which
    /// takes some hundred times its bytes.
    pub fn encode(&self, text: &str, special: bool, most: usize) -> Result<Vec<u32>, TextError> {
        if text.len() > most.saturating_mul(self.longest) {
            return Err(TextError::TooLong { bytes: text.len(), tokens: most });
        }
        let encoded = whole(|| self.tokenizer.encode_fast(text, special)).map_err(TextError::Tokenizer)?;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of tokens, with special ones or without.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String, TextError> {
        whole(|| self.tokenizer.decode(tokens, !special)).map_err(TextError::Tokenizer)
    }

    /// The token that a text is, if it is one.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// The bytes of every token below `vocab`. Special ones begin with a byte that no text has.
    pub fn bytes(&self, vocab: usize) -> Vec<Vec<u8>> {
        bytes::of(&self.tokenizer, 0..vocab as u32)
    }

    /// One token as it is shown, also if it is special.
    pub fn show(&self, token: u32) -> Shown {
        let text = self.decode(&[token], true).unwrap_or_default();
        // Bytes that are not whole characters are shown as one replacement character.
        let bytes = if text.contains('\u{fffd}') {
            bytes::of(&self.tokenizer, std::iter::once(token)).pop().unwrap_or_default()
        } else {
            text.clone().into_bytes()
        };
        let text = String::from_utf8(bytes.clone()).unwrap_or_else(|_| escaped(&bytes));
        Shown { text, bytes }
    }
}

/// The tokenizer's result. Some files make its library panic, which counts as an error of the file.
fn whole<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("its library gave up (a panic)".into()),
    }
}

/// A token by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The text of the token. If it has a part of a character, its bytes as OpenAI writes them.
    pub text: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Bytes that are no text, as OpenAI writes them.
fn escaped(bytes: &[u8]) -> String {
    let one = |&byte: &u8| match byte {
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    "bytes:".chars().map(String::from).chain(bytes.iter().map(one)).collect()
}

/// A stream of tokens as text that ends at the ends of characters.
#[derive(Debug, Default)]
pub struct Reader {
    special: bool,
    /// Tokens that may change how the next one is shown, followed by those that were not shown.
    tokens: Vec<u32>,
    /// The number of these tokens that were shown.
    shown: usize,
    /// Their text.
    before: String,
}

impl Reader {
    /// Shows special tokens too, or leaves them out.
    pub fn new(special: bool) -> Reader {
        Reader { special, ..Reader::default() }
    }

    /// The text that a token adds.
    pub fn push(&mut self, text: &Text, token: u32) -> Result<String, TextError> {
        self.tokens.push(token);
        let whole = text.decode(&self.tokens, self.special)?;
        let is_open = whole.ends_with('\u{fffd}') && self.tokens.len() - self.shown < MOST_PENDING;
        if is_open {
            return Ok(String::new());
        }
        self.show(text, &whole)
    }

    /// The rest of characters that never ended.
    pub fn end(&mut self, text: &Text) -> Result<String, TextError> {
        let whole = text.decode(&self.tokens, self.special)?;
        self.show(text, &whole)
    }

    fn show(&mut self, text: &Text, whole: &str) -> Result<String, TextError> {
        let piece = whole.get(self.before.len()..).unwrap_or_default().to_owned();
        if piece.is_empty() {
            return Ok(piece);
        }
        self.tokens.drain(..self.shown);
        self.shown = self.tokens.len();
        self.before = text.decode(&self.tokens, self.special)?;
        Ok(piece)
    }
}

#[cfg(test)]
mod tests;
