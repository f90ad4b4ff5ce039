//! The configuration that vLLM makes of a folder and of options, as far as artifacts are concerned.
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::freqs::Scaling;
use crate::{Config, DTYPES, DType, Diagnostic, fields};

/// Resolves the configuration of a model's folder, and adds vLLM's defaults for options that are
/// not given.
pub fn resolve(folder: &Path, options: &mut Map<String, Value>) -> Result<Config, Diagnostic> {
    let place = match options.get("hf_config_path") {
        Some(Value::String(path)) => Path::new(path),
        _ => folder,
    };
    let mut facts = fields::parse("config.json", &crate::text(&place.join("config.json"))?)?;
    if let Some(Value::Object(overrides)) = options.get("hf_overrides") {
        facts.extend(overrides.clone());
    }
    let config = Config::parse(&Value::Object(facts).to_string(), None)?;
    // vLLM refuses this itself, whatever the model runs as.
    if options.get("enable_expert_parallel") == Some(&json!(true)) && !config.has_experts() {
        let message = "vLLM takes it for models with experts alone, of which this one has none";
        return Err(Diagnostic::new("vllm", message).at("--enable-expert-parallel"));
    }
    let auto = |options: &Map<String, Value>| options.get("dtype").is_none_or(|dtype| *dtype == json!("auto"));
    // vLLM's type for f32 depends on the device.
    if auto(options) && config.dtype != DType::F32 {
        let name = DTYPES.iter().find(|(_, dtype)| *dtype == config.dtype).map(|(name, _)| *name);
        options.insert("dtype".into(), json!(name));
    }
    options.entry("tensor_parallel_size").or_insert(json!(1));
    super::images::processors(folder, options);
    if !options.contains_key("max_model_len") {
        options.insert("max_model_len".into(), json!(longest(&config, folder)));
    }
    Ok(config)
}

/// vLLM's longest sequence if none is asked for.
fn longest(config: &Config, folder: &Path) -> usize {
    let scaled = |length: usize, factor: f64| (length as f64 * factor) as usize;
    let rope = config.ropes.first();
    let model = match rope.map(|rope| &rope.freqs.scaling) {
        None | Some(Scaling::Default | Scaling::Llama3 { .. } | Scaling::Proportional { .. }) => config.positions,
        // For models with several embeddings, vLLM takes the positions to be scaled already.
        _ if config.ropes.len() > 1 => config.positions,
        Some(Scaling::Linear { factor } | Scaling::Dynamic { factor, .. }) => scaled(config.positions, *factor),
        Some(Scaling::Yarn { factor, original, .. }) => scaled(*original, *factor),
        Some(Scaling::Long { .. }) => rope.map_or(config.positions, |rope| rope.usual(config.positions)),
    };
    let file = std::fs::read_to_string(folder.join("tokenizer_config.json")).unwrap_or_default();
    let tokenizer: Value = serde_json::from_str(&file).unwrap_or_default();
    // Tokenizers without a bound have one of 1e30.
    tokenizer["model_max_length"].as_f64().map_or(model, |bound| model.min(bound as usize))
}
