//! What vLLM's configuration means for an artifact: which options fit it, and which it cannot
//! serve.
//!
//! Options are values by the names of vLLM's `EngineArgs`, as vLLM has resolved them, or as
//! somebody wrote them on a command line.
pub mod arguments;
pub mod options;
mod resolve;
pub mod settings;

use serde_json::{Map, Value};

use crate::Config;
use crate::compare::plain;
pub use crate::framework::Held;
use crate::framework::{Fate, Framework, Judged, cache, dtype, method};
use options::{BLOCK_SIZE_GIVEN, JUDGED};
pub use resolve::resolve;

/// Everything about which a configuration and its options do not fit an artifact, one line each,
/// the telling ones first.
pub fn refusals(config: &Config, options: &Map<String, Value>, held: &Held) -> Vec<String> {
    VLLM.refusals(config, options, held)
}

const VLLM: Framework = Framework { name: "vLLM", judged: JUDGED, unfit };

/// What the artifact has, if the value of an option is not that.
fn unfit(judged: &Judged, value: &Value, options: &Map<String, Value>, held: &Held) -> Option<String> {
    let text = plain(value);
    let is = |want: &str| (text != want).then(|| want.to_owned());
    let most = |most: usize| value.as_u64().is_none_or(|n| n > most as u64).then(|| format!("at most {most}"));
    match judged.name {
        // vLLM's layer chooses among vLLM's backends.
        "attention_backend" if !held.own => None,
        _ if judged.fate == Fate::Refused => judged.refused(value),
        _ if value.is_null() => None,
        "runner" if text == "auto" => None,
        "runner" => is("generate"),
        "dtype" => dtype(&text, held),
        "kv_cache_dtype" => cache(&text, held),
        "quantization" => method(&text, held),
        "tensor_parallel_size" => is(&held.ranks.to_string()),
        "enable_expert_parallel" => (text == "true" && held.experts < held.ranks).then(|| {
            format!("a share of every expert on each rank; `atomc compile --ep {}` gives them whole ones", held.ranks)
        }),
        "data_parallel_size" => {
            let spread = options.get("enable_expert_parallel") == Some(&Value::Bool(true));
            (spread && text != "1").then(|| "its experts on the ranks of one step".to_owned())
        }
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

#[cfg(test)]
mod tests;
