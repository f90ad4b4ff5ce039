//! Checks of a tokenizer: it is somebody else's file, so its output for a text or a token has to be
//! bounded.
use serde::Serialize;
use serde_json::Value;
use tokenizers::Tokenizer;

/// Most bytes of a token.
const TOKEN_BYTES: usize = 4 << 10;
/// Times that replacing and prepending may make a text longer. Writing `▁` for a blank makes it
/// three times as long.
const GROWTH: usize = 16;
/// Most steps of a chain of normalizers or decoders.
const STEPS: usize = 64;
/// Most bytes that are put before each piece of a text, or after a token.
const ADDED: usize = 64;

/// Why a tokenizer is refused, with the field of its file.
pub fn check(tokenizer: &Tokenizer) -> Result<(), String> {
    let longest = tokenizer.get_vocab(true).into_keys().max_by_key(String::len).unwrap_or_default();
    if longest.len() > TOKEN_BYTES {
        let begin: String = longest.chars().take(20).collect();
        let len = longest.len();
        return Err(format!("vocab: the token {begin:?}… has {len} bytes; at most {TOKEN_BYTES} are taken"));
    }
    part("normalizer", tokenizer.get_normalizer())?;
    part("decoder", tokenizer.get_decoder())
}

fn part(field: &str, part: Option<&impl Serialize>) -> Result<(), String> {
    let Some(part) = part else { return Ok(()) };
    let part = serde_json::to_value(part).map_err(|error| format!("{field}: {error}"))?;
    let mut chain = Chain { growth: 1, steps: 0 };
    chain.walk(&part).map_err(|why| format!("{field}: {why}"))
}

struct Chain {
    growth: usize,
    steps: usize,
}

impl Chain {
    fn walk(&mut self, part: &Value) -> Result<(), String> {
        self.steps += 1;
        if self.steps > STEPS {
            return Err(format!("more than {STEPS} steps"));
        }
        for inner in ["normalizers", "decoders"] {
            part[inner].as_array().into_iter().flatten().try_for_each(|part| self.walk(part))?;
        }
        let content = part["content"].as_str().unwrap_or_default();
        match part["type"].as_str() {
            Some("Replace") => self.replace(&part["pattern"], content)?,
            Some("Strip") if part["stop"].as_u64().unwrap_or(0) > ADDED as u64 => {
                return Err(format!("`Strip` with a `stop` above {ADDED}"));
            }
            _ => {}
        }
        for added in ["prepend", "prefix", "suffix"] {
            let len = part[added].as_str().map_or(0, str::len);
            if len > ADDED {
                return Err(format!("`{added}` of {len} bytes; at most {ADDED} are taken"));
            }
        }
        Ok(())
    }

    fn replace(&mut self, pattern: &Value, content: &str) -> Result<(), String> {
        let shortest = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
            (Some(""), _) | (_, Some("")) => return Err("`Replace` with an empty pattern".into()),
            (Some(text), _) => text.len(),
            // An expression may match a single byte.
            _ => 1,
        };
        self.growth = self.growth.saturating_mul(content.len().div_ceil(shortest).max(1));
        match self.growth > GROWTH {
            true => {
                Err(format!("`Replace` makes a text {} times as long; at most {GROWTH} times is taken", self.growth))
            }
            false => Ok(()),
        }
    }
}
