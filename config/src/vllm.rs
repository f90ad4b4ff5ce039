//! The meaning of vLLM's configuration for an artifact: the options that fit it, and those that it
//! cannot serve.
//!
//! Options are values by the names of vLLM's `EngineArgs`, as vLLM has resolved them, or as
//! somebody wrote them on a command line.
pub mod arguments;
mod images;
pub mod options;
mod resolve;
pub mod settings;

use serde_json::{Map, Value};

use crate::Config;
use crate::compare::plain;
pub use crate::framework::Held;
use crate::framework::{Asked, Fate, Fit, Framework, Judged, Rules, cache, dtype, is_part, method, speculation};
use options::{BLOCK_SIZE_GIVEN, JUDGED, TEXT_ALONE};
pub use resolve::resolve;

/// The rules of vLLM.
pub const RULES: Rules = Rules {
    name: VLLM.name,
    read: arguments::read,
    artifact,
    resolve,
    refusals,
    compile_options,
    text_alone,
    text_option: "--language-model-only",
    sees: true,
};

fn text_alone(options: &Map<String, Value>) -> bool {
    options.get(TEXT_ALONE.0) == Some(&Value::Bool(true))
}

/// The artifact that `--additional-config` or `--model-loader-extra-config` names.
pub fn artifact(options: &Map<String, Value>) -> Result<Option<String>, String> {
    let additional = options.get("additional_config").unwrap_or(&Value::Null);
    let additional = settings::shared("--additional-config", additional)?;
    let loader = options.get("model_loader_extra_config").and_then(Value::as_object).cloned().unwrap_or_default();
    let first = settings::artifact("--model-loader-extra-config", &loader)?;
    Ok(first.or(settings::artifact("--additional-config", &additional)?).map(str::to_owned))
}

/// Everything about which a configuration and its options do not fit an artifact, one line each,
/// the telling ones first.
pub fn refusals(config: &Config, options: &Map<String, Value>, held: &Held) -> Vec<String> {
    let mut found = VLLM.refusals(config, options, held);
    found.extend(RULES.unseen(config, held));
    found
}

/// The options of `atomc compile` that make a fitting artifact. If vLLM's layer attends, the
/// artifact's `own` kernels do not.
pub fn compile_options(config: &Config, options: &Map<String, Value>, own: bool) -> Vec<String> {
    let text = |name: &str| options.get(name).and_then(Value::as_str).unwrap_or("auto");
    let number = |name: &str| options.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let fit = Fit {
        dtype: text("dtype"),
        cache: text("kv_cache_dtype"),
        ranks: number("tensor_parallel_size").unwrap_or(1),
        spread: options.get("enable_expert_parallel") == Some(&Value::Bool(true)),
        context: number("max_model_len"),
    };
    let mut made = fit.options(config);
    made.extend(
        options.get("speculative_config").and_then(Value::as_object).map(speculation::options).unwrap_or_default(),
    );
    made.extend(images::options(config, options, own));
    if !own {
        made.extend(["--attention", "own,caller"].map(str::to_owned));
        // A step is one plan, as vLLM keeps its keys and values.
        let step = number("max_num_batched_tokens");
        made.extend(step.into_iter().flat_map(|step| ["--prefill".to_owned(), step.to_string()]));
    }
    made
}

const VLLM: Framework = Framework { name: "vLLM", judged: JUDGED, unfit };

/// The artifact's property in words, if the value of an option differs from it.
fn unfit(judged: &Judged, value: &Value, asked: &Asked, held: &Held) -> Option<String> {
    let text = plain(value);
    let is = |want: &str| (text != want).then(|| want.to_owned());
    let most = |most: usize| value.as_u64().is_none_or(|n| n > most as u64).then(|| format!("at most {most}"));
    match judged.name {
        // vLLM's layer chooses among vLLM's backends.
        "attention_backend" if !held.own => None,
        _ if judged.fate == Fate::Refused => judged.refused(value),
        "speculative_config" => speculation::vllm(value, held),
        "mm_processor_kwargs" => images::too_large(value, asked.options, held),
        _ if value.is_null() => None,
        "runner" if text == "auto" => None,
        "runner" => is("generate"),
        "dtype" => dtype(&text, held),
        "kv_cache_dtype" => cache(&text, held),
        "quantization" => method(&text, held),
        "tensor_parallel_size" => is(&held.ranks.to_string()),
        // Without experts there is nothing to share out.
        "enable_expert_parallel" | "data_parallel_size" if !asked.config.has_experts() => None,
        "enable_expert_parallel" => (text == "true" && held.experts < held.ranks).then(|| {
            format!("a share of every expert on each rank; `atomc compile --ep {}` gives them whole ones", held.ranks)
        }),
        "data_parallel_size" => {
            let spread = asked.options.get("enable_expert_parallel") == Some(&Value::Bool(true));
            (spread && text != "1").then(|| "its experts on the ranks of one step".to_owned())
        }
        "block_size" => {
            let given = held.own && asked.options.get(BLOCK_SIZE_GIVEN.0) == Some(&Value::Bool(true));
            let fits = value.as_u64().is_some_and(|n| n.is_multiple_of(held.page as u64));
            (given && !fits).then(|| format!("multiples of {}", held.page))
        }
        "enable_mm_embeds" => (is_part(asked.config.architecture) && text == "true").then(|| match held.pixels {
            Some(_) => "none that come from elsewhere: a tower's rows are its own".to_owned(),
            None => "one position for each token, and embeddings of images have three".to_owned(),
        }),
        "video_pruning_rate" | "mm_encoder_attn_dtype" | "mm_encoder_only" => {
            held.pixels.and_then(|_| judged.refused(value))
        }
        "max_num_batched_tokens" if held.own => None,
        "max_num_batched_tokens" => most(held.step),
        "max_model_len" => most(held.positions),
        other => unreachable!("{other} has no rule"),
    }
}

#[cfg(test)]
mod tests;
