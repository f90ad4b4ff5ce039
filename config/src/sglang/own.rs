//! What SGLang 0.5.23 refuses by itself, whatever the model runs as. `atomc check` says it too.
use serde_json::{Map, Value, json};

use super::resolve::OVERRIDES;
use crate::framework::flag;
use crate::{Attention, Config, Diagnostic, Latent};

/// Backends of attention that SGLang takes for an architecture with windows.
const BACKENDS: [(&str, &[&str]); 4] = [
    ("GptOssForCausalLM", &["triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter"]),
    ("Exaone4ForCausalLM", &["fa3", "triton", "trtllm_mha"]),
    ("ExaoneMoeForCausalLM", &["fa3", "triton", "trtllm_mha"]),
    ("ExaoneMoEForCausalLM", &["fa3", "triton", "trtllm_mha"]),
];

/// Architectures whose latent rows SGLang does not know as such: it has pools of keys and values
/// for them.
const POOLED: [&str; 2] = ["Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"];

/// Backends that it takes for deterministic inference, with ours.
const DETERMINISTIC: [&str; 7] = ["atomc", "ascend", "fa3", "fa4", "flashinfer", "intel_xpu", "triton"];

/// Those of them that it takes for models with latent attention.
const LATENT: [&str; 5] = ["atomc", "ascend", "fa3", "fa4", "triton"];

/// Methods of checkpoints that it has for GPUs alone.
const GPU_METHODS: [&str; 2] = ["gptq", "mxfp4"];

/// Refuses what SGLang would.
pub fn refuses(config: &Config, options: &Map<String, Value>) -> Result<(), Diagnostic> {
    let text = |name: &str| options.get(name).and_then(Value::as_str);
    let fault = |name: &str, why: String| Err(Diagnostic::new("sglang", why).at(flag(name)));
    let (backend, host) = (text("attention_backend"), text("device") == Some("cpu"));
    let named = |backends: &[&str]| backend.filter(|backend| !backends.contains(backend));
    let windows = config.layers.iter().any(|layer| layer.half::<Attention>().is_some_and(|own| own.window > 0));
    for (architecture, backends) in BACKENDS.iter().filter(|(name, _)| windows && *name == config.architecture) {
        if let Some(other) = named(backends) {
            let takes = format!("SGLang takes one of {} for {architecture}", backends.join(", "));
            return fault("attention_backend", format!("{takes}, and not {other}"));
        }
    }
    if let Some(method) =
        config.quantised.as_ref().map(|quantised| quantised.method).filter(|method| GPU_METHODS.contains(method))
        && host
    {
        return fault("quantization", format!("SGLang has {method} for GPUs alone"));
    }
    if options.get("enable_deterministic_inference") == Some(&json!(true)) {
        let takes: &[&str] = if is_latent(config) { &LATENT } else { &DETERMINISTIC };
        if let Some(other) = named(takes) {
            let why = format!("with --attention-backend SGLang takes one of {}, and not {other}", takes.join(", "));
            return fault("enable_deterministic_inference", why);
        }
        if host {
            let why = "SGLang has it on GPUs alone, where it replaces operations of torch's".to_owned();
            return fault("enable_deterministic_inference", why);
        }
    }
    Ok(())
}

fn is_latent(config: &Config) -> bool {
    config.layers.iter().any(|layer| layer.half::<Latent>().is_some())
}

/// Why SGLang's pools hold nothing of a model, if they do not.
pub fn pools(config: &Config) -> Option<String> {
    let name = config.architecture;
    if config.chooses_blocks() {
        return Some(
            "config.json: index_topk_blocks: SGLang's pools have no room for the keys that choose blocks".to_owned(),
        );
    }
    (is_latent(config) && POOLED.contains(&name)).then(|| {
        format!("config.json: kv_lora_rank: SGLang has pools of keys and values for {name}, not of latent rows")
    })
}

/// The fact from which SGLang derives the attending layers of models with recurrent states.
const INTERVAL: &str = "full_attention_interval";

/// Why SGLang cannot tell which layers of a configuration attend, and what to pass: transformers 5
/// writes a list of all layers in the place of an interval.
pub fn interval(facts: &Map<String, Value>) -> Option<Diagnostic> {
    let nested = facts.get("text_config").and_then(Value::as_object);
    let text = nested.unwrap_or(facts);
    let kinds: Vec<bool> = text.get("layer_types")?.as_array()?.iter().map(|kind| kind == "full_attention").collect();
    let recurrent = text["layer_types"].as_array()?.iter().any(|kind| kind == "linear_attention");
    if !recurrent || text.contains_key(INTERVAL) {
        return None;
    }
    let every = kinds.iter().position(|attends| *attends).map_or(kinds.len() + 1, |first| first + 1);
    let regular = kinds.iter().enumerate().all(|(layer, attends)| *attends == ((layer + 1) % every == 0));
    let fault = Diagnostic::new("sglang", "SGLang makes of it which layers attend, and transformers 5 leaves it out");
    let fault = fault.at(format!("config.json: {INTERVAL}"));
    Some(match (regular, nested) {
        (false, _) => fault.help("No interval has these layers, so SGLang cannot run them."),
        (true, Some(_)) => fault.help(format!("Add \"{INTERVAL}\": {every} to text_config in config.json.")),
        (true, None) => {
            let added = json!({ INTERVAL: every });
            fault.help(format!("Pass {} '{added}'.", flag(OVERRIDES)))
        }
    })
}
