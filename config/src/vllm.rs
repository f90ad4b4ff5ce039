//! What vLLM's configuration means for an artifact: which options fit it, and which it cannot serve.
//!
//! Options are values by the names of vLLM's `EngineArgs`, as vLLM has resolved them, or as somebody wrote them on a command line.
pub mod arguments;
pub mod options;
mod resolve;
pub mod settings;

use serde_json::{Map, Value};

use crate::compare::plain;
use crate::{Config, differences};
use options::{BLOCK_SIZE_GIVEN, Fate, JUDGED, Judged, flag};
pub use resolve::resolve;

/// Types of caches by vLLM's names, where they differ from those of an artifact's pages.
const CACHES: [(&str, &str); 2] = [("fp8", "float8_e4m3fn"), ("fp8_e4m3", "float8_e4m3fn")];

/// Types of tensors by vLLM's short names.
const DTYPES: [(&str, &str); 2] = [("half", "float16"), ("float", "float32")];

/// A value in a message is cut here: some are whole configurations.
const LONGEST_VALUE: usize = 80;

/// What an artifact has for a device. Types have torch's names.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// The facts of its model, as [`Config::echo`] gave them.
    pub model: &'a Value,
    pub dtype: &'a str,
    pub cache_dtype: &'a str,
    pub ranks: usize,
    /// Most tokens of a sequence, and of a step.
    pub positions: usize,
    pub step: usize,
    /// Tokens in a page.
    pub page: usize,
    /// Whether the artifact attends, and not vLLM's layer.
    pub own: bool,
}

/// Everything about which a configuration and its options do not fit an artifact, one line each, the telling ones first.
pub fn refusals(config: &Config, options: &Map<String, Value>, held: &Held) -> Vec<String> {
    let mut found: Vec<String> = differences(config, held.model).iter().map(ToString::to_string).collect();
    for judged in JUDGED {
        let value = options.get(judged.name).unwrap_or(&Value::Null);
        let fault = match judged.fate {
            // vLLM's layer chooses among vLLM's backends.
            Fate::Refused if judged.name == "attention_backend" && !held.own => None,
            Fate::Refused => (!judged.is_harmless(value)).then(|| format!("none: {}", judged.why)),
            _ if value.is_null() => None,
            _ => unfit(judged, value, options, held),
        };
        found.extend(
            fault.map(|fault| format!("{}: vLLM has {}, the artifact {fault}", flag(judged.name), short(value))),
        );
    }
    found
}

/// What the artifact has, if the value of an option is not that.
fn unfit(judged: &Judged, value: &Value, options: &Map<String, Value>, held: &Held) -> Option<String> {
    let text = plain(value);
    let is = |want: &str| (text != want).then(|| want.to_owned());
    let most = |most: usize| value.as_u64().is_none_or(|n| n > most as u64).then(|| format!("at most {most}"));
    match judged.name {
        "runner" if text == "auto" => None,
        "runner" => is("generate"),
        "dtype" => {
            let given = text.trim_start_matches("torch.");
            let given = named(given, &DTYPES);
            (given != held.dtype && given != "auto").then(|| held.dtype.to_owned())
        }
        "kv_cache_dtype" if text == "auto" => None,
        "kv_cache_dtype" => (named(&text, &CACHES) != held.cache_dtype).then(|| held.cache_dtype.to_owned()),
        "tensor_parallel_size" => is(&held.ranks.to_string()),
        "block_size" => {
            let asked = held.own && options.get(BLOCK_SIZE_GIVEN.0) == Some(&Value::Bool(true));
            let fits = value.as_u64().is_some_and(|n| n.is_multiple_of(held.page as u64));
            (asked && !fits).then(|| format!("multiples of {}", held.page))
        }
        "max_num_batched_tokens" if held.own => None,
        "max_num_batched_tokens" => most(held.step),
        "max_model_len" => most(held.positions),
        other => unreachable!("{other} has no rule"),
    }
}

fn named<'a>(name: &'a str, names: &[(&str, &'a str)]) -> &'a str {
    names.iter().find(|(other, _)| *other == name).map_or(name, |(_, name)| name)
}

fn short(value: &Value) -> String {
    let text = plain(value);
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
