//! vLLM's options on a command line: values by the names of `EngineArgs`.
use serde_json::{Map, Value, json};

use super::options::{BLOCK_SIZE_GIVEN, SHORT, SPELLINGS, names};
use crate::framework::arguments::Syntax;

/// Options that vLLM takes as JSON objects.
const OBJECTS: &[&str] = &[
    "hf_overrides",
    "additional_config",
    "model_loader_extra_config",
    "model_class_overrides",
    "override_generation_config",
    "speculative_config",
    "kv_transfer_config",
    "attention_config",
    "compilation_config",
];

/// Reads options: `--name value`, `--name=value`, `--name` and `--no-name` alone,
/// `--name.key value` for a part of an object, and `--config FILE`.
pub fn read(arguments: &[String]) -> Result<Map<String, Value>, String> {
    let document = "docs/vllm.md";
    let syntax = Syntax { framework: "vLLM", document, names: names().collect(), short: SHORT, objects: OBJECTS };
    let mut options = syntax.read(&levelled(arguments))?;
    judge(&mut options);
    Ok(options)
}

/// Arguments with `-O3`, `-O=3` and `-O 3` as vLLM reads them: a level of optimisation.
fn levelled(arguments: &[String]) -> Vec<String> {
    let spelled = |argument: &String| match argument.strip_prefix("-O") {
        Some("") => vec![LEVEL.to_owned()],
        Some(level) => vec![LEVEL.to_owned(), level.strip_prefix('=').unwrap_or(level).to_owned()],
        None => vec![argument.clone()],
    };
    arguments.iter().flat_map(spelled).collect()
}

const LEVEL: &str = "--optimization-level";

/// Moves options that are judged under another name there, as vLLM does.
fn judge(options: &mut Map<String, Value>) {
    for (spelling, name) in SPELLINGS {
        let Some(value) = options.get(*spelling) else { continue };
        let value =
            if *spelling == "attention_config" { value["backend"].clone() } else { json!({ *spelling: value }) };
        if !value.is_null() {
            options.insert((*name).to_owned(), value);
        }
    }
    if options.contains_key("block_size") {
        options.insert(BLOCK_SIZE_GIVEN.0.to_owned(), json!(true));
    }
    // vLLM takes the largest that fits its memory, which is known when it runs.
    if options.get("max_model_len").is_some_and(|n| *n == json!("auto") || *n == json!(-1)) {
        options.remove("max_model_len");
    }
}
