//! The meaning of SGLang's configuration for an artifact: the options that fit it, and those that
//! it cannot serve.
//!
//! Options are values by the names of SGLang's `ServerArgs`, as SGLang has resolved them; its type
//! and the length of sequences are those of the model that it has resolved.
pub mod options;
mod own;
mod resolve;

use serde_json::{Map, Value};

use crate::compare::plain;
use crate::framework::{
    Asked, Fate, Fit, Framework, Held, Judged, Rules, cache, compared, dtype, method, refused, speculation,
};
use crate::vllm::settings;
use crate::{Config, DType};

pub use own::interval;
pub use resolve::{read, resolve};

/// The rules of SGLang.
pub const RULES: Rules = Rules {
    name: SGLANG.name,
    read,
    artifact,
    resolve,
    refusals,
    compile_options,
    text_alone,
    text_option: r#"--json-model-override-args '{"language_model_only": true}'"#,
    sees: false,
};

/// SGLang also looks for its option in the model's configuration, the only place for it with
/// architectures that the option itself refuses.
fn text_alone(options: &Map<String, Value>) -> bool {
    let on = |options: &Map<String, Value>| options.get("language_model_only") == Some(&Value::Bool(true));
    let overrides = options.get(resolve::OVERRIDES).and_then(Value::as_object);
    on(options) || overrides.is_some_and(on) || options.get("enable_multimodal") == Some(&Value::Bool(false))
}

/// The artifact that the object `atomc` of `--json-model-override-args` names.
pub fn artifact(options: &Map<String, Value>) -> Result<Option<String>, String> {
    let ours = options.get(resolve::OVERRIDES).and_then(|overrides| overrides.get("atomc")).unwrap_or(&Value::Null);
    let ours = settings::shared("--json-model-override-args", ours)?;
    Ok(settings::artifact("--json-model-override-args", &ours)?.map(str::to_owned))
}

const fn must(name: &'static str, why: &'static str) -> Judged {
    compared(name, name, why)
}

const fn off(name: &'static str, harmless: &'static [&'static str], why: &'static str) -> Judged {
    refused(name, name, harmless, why)
}

/// How SGLang may read a checkpoint: those of its loaders that hand out tensors by the names of the
/// checkpoint, and the one that reads none.
const LOADERS: &[&str] =
    &["auto", "pt", "safetensors", "npcache", "dummy", "fastsafetensors", "instanttensor", "runai_streamer"];

const RANKS: &str = "a rank has whole sequences and its share of every layer";
const PAGES: &str = "what is in a page is the artifact's own";
const STAY: &str = "weights stay on the device";
const PACKED: &str = "weights are packed when they are loaded";
const ONE: &str = "a decode step has one token of each sequence";
const KERNELS: &str = "kernels are the artifact's";
const TYPES: &str = "weights have the artifact's type";
const EXPERTS: &str = "experts stay where they are";
const MODULES: &str = "an artifact has no modules to look into";

/// In the order in which they are judged. A bound on lengths is last: it follows from everything
/// else.
pub const JUDGED: &[Judged] = &[
    off("is_embedding", &[], "an artifact generates, and embeds or classifies nothing"),
    must("dtype", "the artifact's type (`atomc compile --dtype`)"),
    must("kv_cache_dtype", "the type of the artifact's pages (`atomc compile --cache-dtype`)"),
    must("tp_size", "the artifact's ranks (`atomc compile --tp`), times those that have batches of their own"),
    must("attn_dp_size", "any (`--enable-dp-attention --dp-size`): see `--tp-size`"),
    must("ep_size", "1, or the ranks that have whole experts (`atomc compile --ep`)"),
    off("moe_a2a_backend", &["none"], "every rank has all rows of a step"),
    off("enable_eplb", &[], EXPERTS),
    off("ep_num_redundant_experts", &[], EXPERTS),
    off("init_expert_location", &["trivial"], EXPERTS),
    off("elastic_ep_backend", &[], EXPERTS),
    off("enable_elastic_expert_backup", &[], EXPERTS),
    off("enable_waterfill", &[], EXPERTS),
    off("enable_paged_experts", &[], STAY),
    off("moe_dp_size", &["1"], "every rank has all rows of a step"),
    off("moe_dense_tp_size", &[], RANKS),
    off("dwdp_size", &["1"], STAY),
    off("expert_distribution_recorder_mode", &[], "which experts a token has chosen stays in the artifact"),
    off("enable_return_routed_experts", &[], "which experts a token has chosen stays in the artifact"),
    off("pp_size", &["1"], "an artifact is of all layers"),
    off("attn_cp_size", &["1"], RANKS),
    off("dcp_size", &["1"], RANKS),
    must("quantization", "the method of the artifact's checkpoint"),
    off("quantize_and_serve", &[], TYPES),
    off("quantization_param_path", &[], "scales of a cache are the checkpoint's, or 1"),
    off("modelopt_checkpoint_restore_path", &[], TYPES),
    off("modelopt_checkpoint_save_path", &[], TYPES),
    off("modelopt_export_path", &[], TYPES),
    off("enable_fp32_lm_head", &[], "logits have the artifact's type"),
    off("modelopt_quant", &[], TYPES),
    off("rl_quant_profile", &[], TYPES),
    off("load_format", LOADERS, "its loader does not give tensors by the checkpoint's names"),
    off("custom_weight_loader", &[], PACKED),
    off("startup_weight_load_mode", &["serial"], PACKED),
    off("weight_cache_mode", &["off"], PACKED),
    off("enable_lora", &[], "weights are packed, without adapters"),
    off("lora_paths", &[], "weights are packed, without adapters"),
    must(
        "speculative_algorithm",
        "`EAGLE`, which `NEXTN` is too, or `EAGLE3`: the artifact's draft (`atomc compile --draft`)",
    ),
    must(
        "speculative_num_steps",
        "at most the guesses that a step of the artifact verifies (`atomc compile --speculate`)",
    ),
    must("speculative_draft_model_path", "the model's own, for a draft that is in the model's checkpoint"),
    off("speculative_eagle_topk", &["1"], "guesses are a chain, each behind the one before"),
    off("speculative_adaptive", &[], "a step verifies as many guesses as the next"),
    off("enable_multi_layer_eagle", &[], "the artifact has one draft"),
    off("speculative_token_map", &[], "the draft's tokens are its checkpoint's"),
    off("speculative_draft_window_size", &[], "a draft attends as it was trained to"),
    off("speculative_draft_sink_size", &[], "a draft attends as it was trained to"),
    off("speculative_draft_kv_cache_dtype", &["auto"], "the draft's pages are of the type of the model's"),
    off("speculative_draft_load_format", LOADERS, "its loader does not give tensors by the checkpoint's names"),
    must("enable_return_hidden_states", "off, where an EAGLE-3 head guesses: the rows are the head's"),
    must("return_hidden_states_mode", "none, where an EAGLE-3 head guesses: the rows are the head's"),
    off("dllm_algorithm", &[], ONE),
    off("enable_hierarchical_cache", &[], PAGES),
    off("enable_hisparse", &[], PAGES),
    off("enable_lmcache", &[], PAGES),
    off("enable_flexkv", &[], PAGES),
    off("enable_unified_memory", &[], PAGES),
    off("enable_unified_cache_external_linker", &[], PAGES),
    off("enable_page_major_kv_layout", &[], PAGES),
    off("enable_kv_cache_sharding", &[], PAGES),
    off("prefill_only_disable_kv_cache", &[], "the artifact attends over pages"),
    off("disaggregation_mode", &["null"], PAGES),
    off("enable_pdmux", &[], "a step is one batch"),
    off("enable_two_batch_overlap", &[], "a step is one batch"),
    off("enable_single_batch_overlap", &[], "a step is one batch"),
    off("cpu_offload_gb", &[], STAY),
    off("offload_group_size", &["-1"], STAY),
    off("kt_weight_path", &[], STAY),
    off("enable_nvidia_megakernel", &[], KERNELS),
    off("enable_amd_monokernel", &[], KERNELS),
    off("rl_on_policy_target", &[], KERNELS),
    must("enable_deterministic_inference", "off, unless bits do not depend on a step (`atomc compile --invariant`)"),
    off("enable_torch_compile", &[], KERNELS),
    off("enable_mis", &[], "a token attends to all that come before it"),
    off("enable_layernorm_sp", &[], RANKS),
    off("enable_prefill_cp", &[], RANKS),
    off("kv_canary", &["none"], PAGES),
    off("ple_offload_embedding", &[], STAY),
    off("debug_tensor_dump_output_folder", &[], MODULES),
    off("msprobe_dump_config", &[], MODULES),
    off("forward_hooks", &[], MODULES),
    off("enable_return_aux_hidden_states", &[], "layers leave no rows but the last one's"),
    must(
        "disable_radix_cache",
        "on, for models with recurrent states, unless SGLang keeps some (`--mamba-radix-cache-strategy extra_buffer`) and, \
         on GPUs, behind prompts alone (`--mamba-track-interval` of the longest sequence)",
    ),
    off("mamba_ssm_dtype", &["float32"], "recurrent states are in float32"),
    off("enable_int8_mamba_checkpoint", &[], "recurrent states are in float32"),
    must("page_size", "a multiple of the artifact's page"),
    must("context_length", "the artifact's longest sequence (`atomc compile --context`)"),
];

/// The options of `atomc compile` that make a fitting artifact, from SGLang's options as given,
/// before SGLang knows the model. The artifact always attends.
pub fn compile_options(config: &Config, options: &Map<String, Value>, _own: bool) -> Vec<String> {
    let text = |name: &str| options.get(name).and_then(Value::as_str).unwrap_or("auto");
    let number = |name: &str| options.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let on = |name: &str| options.get(name) == Some(&Value::Bool(true));
    let room = Some(speculation::room(options)).filter(|room| *room > 0 || options.contains_key("context_length"));
    let batches = if on("enable_dp_attention") { number("dp_size").unwrap_or(1).max(1) } else { 1 };
    let fit = Fit {
        dtype: taken(text("dtype"), config),
        cache: text("kv_cache_dtype"),
        ranks: number("tp_size").unwrap_or(1) / batches,
        spread: number("ep_size").is_some_and(|ranks| ranks > 1),
        context: room.map(|room| number("context_length").unwrap_or_else(|| resolve::longest(config)) + room),
    };
    let mut made = fit.options(config);
    made.extend(speculation::sglang_options(options));
    made.extend(on("enable_deterministic_inference").then(|| "--invariant".to_owned()));
    made
}

/// The type that SGLang takes: f16 for checkpoints in f32, unless another is asked for.
fn taken<'a>(asked: &'a str, config: &Config) -> &'a str {
    match config.dtype {
        DType::F32 if asked == "auto" => "float16",
        _ => asked,
    }
}

const SGLANG: Framework = Framework { name: "SGLang", judged: JUDGED, unfit };

/// Everything about which a configuration and its options do not fit an artifact, one line each,
/// the telling ones first.
pub fn refusals(config: &Config, options: &Map<String, Value>, held: &Held) -> Vec<String> {
    let mut found = SGLANG.refusals(config, options, held);
    found.extend(RULES.unseen(config, held));
    found.extend(own::pools(config));
    found
}

fn unfit(judged: &Judged, value: &Value, asked: &Asked, held: &Held) -> Option<String> {
    let text = plain(value);
    // Groups of ranks that have batches of their own. Each group runs the whole artifact.
    let batches = asked.options.get("attn_dp_size").and_then(Value::as_u64).map_or(1, |n| n.max(1) as usize);
    match judged.name {
        _ if judged.fate == Fate::Refused => judged.refused(value),
        "speculative_algorithm"
        | "speculative_num_steps"
        | "speculative_draft_model_path"
        | "enable_return_hidden_states"
        | "return_hidden_states_mode" => speculation::sglang(judged.name, value, asked, held),
        _ if value.is_null() => None,
        "dtype" => dtype(&text, held),
        // SGLang ignores a checkpoint's type of the cache when it makes its pools: by default they
        // have the model's type.
        "kv_cache_dtype" if text == "auto" => {
            cache(held.dtype, held).map(|pages| format!("{pages}, and of auto SGLang makes {}", held.dtype))
        }
        "kv_cache_dtype" => cache(&text, held),
        "quantization" => method(&text, held),
        "tp_size" => {
            let ranks = held.ranks * batches;
            (text != ranks.to_string()).then(|| match batches {
                1 => ranks.to_string(),
                _ => format!("{} for each of {batches} batches", held.ranks),
            })
        }
        "attn_dp_size" => None,
        "enable_deterministic_inference" => (text == "true" && !held.invariant)
            .then(|| "bits of a row that depend on its step; `atomc compile --invariant` makes one without".to_owned()),
        // Without experts there is nothing to share out.
        "ep_size" if !asked.config.has_experts() => None,
        "ep_size" => (text != "1" && text != held.experts.to_string()).then(|| match held.experts {
            1 => format!("a share of every expert on each rank; `atomc compile --ep {text}` gives them whole ones"),
            ranks => ranks.to_string(),
        }),
        "disable_radix_cache" if !held.slots || text == "true" => None,
        "disable_radix_cache" => keeps_states(asked.options).map(str::to_owned),
        "page_size" => {
            let fits = value.as_u64().is_some_and(|n| n > 0 && n.is_multiple_of(held.page as u64));
            (!fits).then(|| format!("multiples of {}", held.page))
        }
        "context_length" => {
            let room = speculation::room(asked.options);
            let most = held.positions.saturating_sub(room);
            let behind = if room > 0 { format!(", and {room} for guesses behind") } else { String::new() };
            let fits = value.as_u64().is_some_and(|n| n <= most as u64);
            (!fits).then(|| format!("at most {most}{behind}"))
        }
        other => unreachable!("{other} has no rule"),
    }
}

/// Why requests cannot begin with states that others left, if they cannot. Steps that are captured
/// cannot leave one now and then, so on a GPU those of prompts alone do.
fn keeps_states(options: &Map<String, Value>) -> Option<&'static str> {
    let number = |name: &str| options.get(name).and_then(Value::as_u64);
    if options.get("mamba_radix_cache_strategy") != Some(&Value::from("extra_buffer")) {
        return Some("states that other sequences begin with where `--mamba-radix-cache-strategy` is extra_buffer");
    }
    let host = options.get("device") == Some(&Value::from("cpu"));
    let prompts = number("mamba_track_interval") >= number("context_length");
    (!host && !prompts)
        .then_some("states behind prompts alone, which `--mamba-track-interval` asks for with the longest sequence")
}

#[cfg(test)]
mod tests;
