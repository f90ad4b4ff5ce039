//! The `tokenizer.json` and `tokenizer_config.json` of a file, as Hugging Face's tokenizers read
//! them.
//!
//! A file names one of two algorithms: byte-pair encoding over bytes, whose texts are cut first by
//! expressions that have a name (`tokenizer/cuts.rs`), or that of SentencePiece, whose merges
//! follow from scores (`tokenizer/pieces.rs`).
mod cuts;
mod pieces;

use serde_json::{Map, Value as Json, json};

use crate::error::{GgufError, KeyFault};
use crate::gguf::Gguf;
use crate::value::Metadata;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MODEL: &str = "tokenizer.ggml.model";

/// Types of tokens that are not found in texts by merging: the unknown one, those that control, and
/// those that a user defined.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const DEFINED: u64 = 4;

/// Tokens that leave the spaces after them where others do not.
const NEVER_STRIPS: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The `tokenizer.json` of a file.
pub fn tokenizer(gguf: &Gguf) -> Result<Json, GgufError> {
    let metadata = gguf.metadata();
    let needed = |key: &str| GgufError::NoKey { key: key.to_owned() };
    match metadata.text(MODEL)?.ok_or_else(|| needed(MODEL))? {
        "gpt2" => cuts::tokenizer(&Tokens::read(metadata)?),
        "llama" => pieces::tokenizer(&Tokens::read(metadata)?),
        found => {
            let known = "gpt2, llama".to_owned();
            Err(GgufError::Unknown { key: MODEL.to_owned(), found: found.to_owned(), known })
        }
    }
}

/// The `tokenizer_config.json` of a file: its chat template, and the names of special tokens.
pub fn tokenizer_config(gguf: &Gguf) -> Result<Json, GgufError> {
    let metadata = gguf.metadata();
    let tokens = Tokens::read(metadata)?;
    let mut fields = Map::new();
    fields.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    fields.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    for (key, name) in [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")] {
        if let Some((_, token)) = tokens.special(key)? {
            fields.insert(format!("{name}_token"), json!(token));
        }
    }
    for name in ["bos", "eos"] {
        fields.insert(format!("add_{name}_token"), json!(tokens.adds(name)?));
    }
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        fields.insert("chat_template".to_owned(), json!(template));
    }
    Ok(Json::Object(fields))
}

/// The vocabulary of a file.
struct Tokens<'a> {
    metadata: &'a Metadata,
    all: Vec<&'a str>,
    types: Vec<u64>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Tokens<'a>, GgufError> {
        let all = metadata.texts(TOKENS)?.ok_or_else(|| GgufError::NoKey { key: TOKENS.to_owned() })?;
        let types = metadata.sizes(TYPES)?.unwrap_or_else(|| vec![1; all.len()]);
        of_all(TYPES, types.len(), all.len())?;
        Ok(Tokens { metadata, all, types })
    }

    /// The number and the text of the token that a key names.
    fn special(&self, name: &str) -> Result<Option<(usize, &'a str)>, GgufError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.metadata.size(&key)?.or(self.usual(name)?) else { return Ok(None) };
        let token = usize::try_from(id).ok().and_then(|id| Some((id, *self.all.get(id)?)));
        token.map(Some).ok_or_else(|| {
            let fault = KeyFault::Value { want: format!("below {}", self.all.len()), found: id.to_string() };
            GgufError::Key { key, fault }
        })
    }

    /// The number of a special token where a file of pieces does not say it.
    fn usual(&self, name: &str) -> Result<Option<u64>, GgufError> {
        let is_pieces = self.metadata.text(MODEL)? == Some("llama");
        let usual = ["unknown", "bos", "eos"].iter().position(|usual| *usual == name).filter(|id| *id < self.all.len());
        Ok(usual.filter(|_| is_pieces).map(|id| id as u64))
    }

    /// Whether every text begins or ends with a token. A file that does not say so has the habit of
    /// its kind.
    fn adds(&self, name: &str) -> Result<bool, GgufError> {
        if let Some(adds) = self.metadata.flag(&format!("tokenizer.ggml.add_{name}_token"))? {
            return Ok(adds);
        }
        let by_kind = match self.metadata.text(MODEL)? {
            Some("gpt2") => cuts::begins(self.metadata)?,
            _ => true,
        };
        Ok(name == "bos" && by_kind)
    }

    /// All tokens with their numbers, spelled as a function does. Of several that are the same, the
    /// first counts.
    fn vocabulary(&self, spell: impl Fn(usize) -> String) -> Map<String, Json> {
        let mut vocabulary = Map::new();
        for id in 0..self.all.len() {
            vocabulary.entry(spell(id)).or_insert(json!(id));
        }
        vocabulary
    }

    /// The tokens that are looked for in texts before all else, and whether they take the spaces
    /// after them.
    fn added(&self, is_added: impl Fn(usize) -> bool, strips: bool) -> Vec<Json> {
        let is_special = |id: usize| matches!(self.types[id], UNKNOWN | CONTROL);
        let ids = (0..self.all.len()).filter(|&id| is_special(id) || self.types[id] == DEFINED);
        let token = |id: usize| {
            let strips = strips && !NEVER_STRIPS.contains(&self.all[id]);
            json!({
                "id": id, "content": self.all[id], "single_word": false, "lstrip": false, "rstrip": strips,
                "normalized": false, "special": is_special(id),
            })
        };
        ids.filter(|&id| !self.all[id].is_empty() && is_added(id)).map(token).collect()
    }

    /// What puts tokens before and after a text, if something does.
    fn post_processor(&self) -> Result<Option<Json>, GgufError> {
        let ends = |name: &str| if self.adds(name)? { self.special(name) } else { Ok(None) };
        let (begin, end) = (ends("bos")?, ends("eos")?);
        if begin.is_none() && end.is_none() {
            return Ok(None);
        }
        let piece = |token: Option<(usize, &str)>, kind: usize| {
            token.map(|(_, text)| json!({ "SpecialToken": { "id": text, "type_id": kind } }))
        };
        let around = |name: &str, kind: usize| {
            let text = Some(json!({ "Sequence": { "id": name, "type_id": kind } }));
            [piece(begin, kind), text, piece(end, kind)].into_iter().flatten().collect::<Vec<_>>()
        };
        let special: Map<String, Json> = [begin, end]
            .into_iter()
            .flatten()
            .map(|(id, text)| (text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] })))
            .collect();
        let (single, pair) = (around("A", 0), [around("A", 0), around("B", 1)].concat());
        Ok(Some(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special,
        })))
    }
}

/// Checks that a list has an element for each token.
fn of_all(key: &str, found: usize, want: usize) -> Result<(), GgufError> {
    let fault = KeyFault::Elements { want, found };
    if found == want { Ok(()) } else { Err(GgufError::Key { key: key.to_owned(), fault }) }
}

#[cfg(test)]
mod tests;
