//! The algorithm of SentencePiece: the two neighbours that make the token with the highest score
//! are merged first. Hugging Face's tokenizers do the same with a list of merges in the order of
//! scores.
use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::{CONTROL, DEFINED, Tokens, of_all};
use crate::error::GgufError;

const SCORES: &str = "tokenizer.ggml.scores";
/// The letter in the place of a space.
const SPACE: &str = "\u{2581}";
/// Bytes of the longest token that may come of merges. Those of real models have a third of that.
const LONGEST: usize = 256;

pub fn tokenizer(tokens: &Tokens) -> Result<Json, GgufError> {
    let spaced = tokens.metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spelled: Vec<String> = (0..tokens.all.len()).map(|id| spell(tokens, id)).collect();
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let mut normalizers = vec![replace];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if spaced {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": tokens.added(|id| !is_spaces(tokens.all[id]), strips(tokens)?),
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": tokens.post_processor()?,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": tokens.special("unknown")?.map(|(_, token)| token),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false,
            "vocab": tokens.vocabulary(|id| spelled[id].clone()), "merges": merges(tokens, &spelled)?,
        },
    }))
}

/// Whether added tokens take the spaces after them, which no key says. Those of Phi-3 do.
fn strips(tokens: &Tokens) -> Result<bool, GgufError> {
    Ok(tokens.metadata.text("general.architecture")? == Some("phi3"))
}

fn is_spaces(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte == b' ')
}

/// A token as it is among the pieces. The converter writes those that a user defined as they are in
/// texts.
fn spell(tokens: &Tokens, id: usize) -> String {
    let token = tokens.all[id];
    if tokens.types[id] == DEFINED && is_spaces(token) { token.replace(' ', SPACE) } else { token.to_owned() }
}

/// All pairs of tokens that make a token, in the order of its score.
fn merges<'a>(tokens: &Tokens, spelled: &'a [String]) -> Result<Vec<[&'a str; 2]>, GgufError> {
    let scores = scores(tokens)?;
    let mut ids = HashMap::new();
    spelled.iter().enumerate().for_each(|(id, token)| _ = ids.entry(token.as_str()).or_insert(id));
    let mut found = Vec::new();
    for (id, token) in spelled.iter().enumerate() {
        if tokens.types[id] == CONTROL || ids.get(token.as_str()) != Some(&id) {
            continue;
        }
        if token.len() > LONGEST {
            let what = format!("token {id} has {} bytes, more than {LONGEST}", token.len());
            return Err(GgufError::Tokenizer { what });
        }
        let mut pairs: Vec<_> = token
            .char_indices()
            .skip(1)
            .map(|(at, _)| token.split_at(at))
            .filter_map(|(one, two)| Some((*ids.get(one)?, *ids.get(two)?, one, two)))
            .collect();
        pairs.sort_by_key(|&(one, two, ..)| (one, two));
        found.extend(pairs.into_iter().map(|(_, _, one, two)| (scores[id], one, two)));
    }
    let letters = |text: &str| text.chars().count();
    found.sort_by(|(score, one, two), (other, first, second)| {
        let lengths = (letters(first), letters(second)).cmp(&(letters(one), letters(two)));
        other.total_cmp(score).then(lengths)
    });
    Ok(found.into_iter().map(|(_, one, two)| [one, two]).collect())
}

/// The scores of all tokens. Those of Gemma do not follow the order in which tokens were found, and
/// their numbers do.
fn scores(tokens: &Tokens) -> Result<Vec<f64>, GgufError> {
    let count = tokens.all.len();
    if tokens.metadata.text("general.architecture")?.is_some_and(|name| name.starts_with("gemma")) {
        return Ok((0..count).map(|id| -(id as f64)).collect());
    }
    let scores = tokens.metadata.reals(SCORES)?.ok_or_else(|| GgufError::NoKey { key: SCORES.to_owned() })?;
    of_all(SCORES, scores.len(), count)?;
    Ok(scores)
}
