//! SGLang's options on a command line, and the configuration that it makes of a folder and of them,
//! as far as artifacts are concerned.
use std::path::Path;

use serde_json::{Map, Value, json};

use super::options::{SHORT, names};
use super::{own, taken};
use crate::framework::arguments::Syntax;
use crate::freqs::Scaling;
use crate::{Config, Diagnostic, fields};

/// The option with replacements for facts of the model.
pub const OVERRIDES: &str = "json_model_override_args";

/// Reads options by the names of `ServerArgs`.
pub fn read(arguments: &[String]) -> Result<Map<String, Value>, String> {
    let objects = &[OVERRIDES, "model_loader_extra_config"];
    let document = "docs/sglang.md";
    Syntax { framework: "SGLang", document, names: names().collect(), short: SHORT, objects }.read(arguments)
}

/// Resolves the configuration of a model's folder, and adds SGLang's defaults for options that are
/// not given.
pub fn resolve(folder: &Path, options: &mut Map<String, Value>) -> Result<Config, Diagnostic> {
    let mut facts = fields::parse("config.json", &crate::text(&folder.join("config.json"))?)?;
    if let Some(Value::Object(overrides)) = options.get(OVERRIDES) {
        // Options of the plugin are in the same object.
        facts.extend(overrides.iter().filter(|(name, _)| *name != "atomc").map(|(n, v)| (n.clone(), v.clone())));
    }
    if let Some(fault) = own::interval(&facts) {
        return Err(fault);
    }
    let config = Config::parse(&Value::Object(facts).to_string(), None)?;
    own::refuses(&config, options)?;
    let asked = options.get("dtype").and_then(Value::as_str).unwrap_or("auto").to_owned();
    options.insert("dtype".into(), json!(taken(&asked, &config)));
    let taken = [
        ("tp_size", json!(1)),
        ("ep_size", json!(1)),
        ("kv_cache_dtype", json!("auto")),
        ("disable_radix_cache", json!(false)),
        ("mamba_radix_cache_strategy", json!("extra_buffer")),
        ("mamba_track_interval", json!(256)),
    ];
    for (name, value) in taken {
        options.entry(name).or_insert(value);
    }
    options.entry("model_path").or_insert(json!(folder));
    if options.get("enable_dp_attention") == Some(&json!(true)) {
        let batches = options.get("dp_size").cloned().unwrap_or(json!(1));
        options.entry("attn_dp_size").or_insert(batches);
    }
    // The plugin makes pages of the artifact's size, whatever is asked for.
    options.remove("page_size");
    options.entry("context_length").or_insert(json!(longest(&config)));
    Ok(config)
}

/// SGLang's longest sequence if none is asked for.
pub fn longest(config: &Config) -> usize {
    match config.ropes.first().map(|rope| &rope.freqs.scaling) {
        Some(Scaling::Linear { factor } | Scaling::Dynamic { factor, .. }) => {
            (config.positions as f64 * factor) as usize
        }
        _ => config.positions,
    }
}
