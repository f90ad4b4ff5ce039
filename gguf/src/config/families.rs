//! The fields that an architecture alone has.
use serde_json::{Value as Json, json};

use super::{Fields, Keys};
use crate::error::GgufError;
use crate::value::shortest;

/// Layers of Gemma 3's largest model, which alone scales queries by another size than a head's.
const GEMMA3_27B_LAYERS: u64 = 62;
/// `expert_gating_func` of routers with a logistic function in place of a softmax.
const SIGMOID: u64 = 2;

fn add(fields: &mut Fields, name: &str, value: impl Into<Json>) {
    fields.insert(name.to_owned(), value.into());
}

/// The class of a model in transformers, and the name of its type.
fn class(fields: &mut Fields, architecture: &str, model_type: &str) {
    add(fields, "architectures", json!([architecture]));
    add(fields, "model_type", model_type);
}

/// Adds a field if there is a number.
fn add_real(keys: &Keys, fields: &mut Fields, key: &str, name: &str) -> Result<(), GgufError> {
    if let Some(value) = keys.real(key)? {
        add(fields, name, value);
    }
    Ok(())
}

/// The size of a head, which is one of values too.
fn add_head_dim(keys: &Keys, fields: &mut Fields) -> Result<u64, GgufError> {
    let size = keys.head_dim()?;
    match keys.size("attention.value_length")? {
        Some(other) if other != size => {
            Err(keys.fault("attention.value_length", format!("the size of a key, {size}"), other))
        }
        _ => {
            add(fields, "head_dim", size);
            Ok(size)
        }
    }
}

/// The part of a head that turns.
fn add_partial(keys: &Keys, fields: &mut Fields, head: u64) -> Result<(), GgufError> {
    let turned = keys.size("rope.dimension_count")?.unwrap_or(head);
    if turned > head || head == 0 {
        return Err(keys.fault("rope.dimension_count", format!("at most the size of a head, {head}"), turned));
    }
    if turned != head {
        add(fields, "partial_rotary_factor", turned as f64 / head as f64);
    }
    Ok(())
}

pub fn llama(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    let head = add_head_dim(keys, fields)?;
    add_partial(keys, fields, head)?;
    match keys.size("expert_count")?.filter(|count| *count > 0) {
        Some(count) => {
            class(fields, "MixtralForCausalLM", "mixtral");
            add(fields, "num_local_experts", count);
            add(fields, "num_experts_per_tok", keys.needed("expert_used_count")?);
        }
        None => {
            class(fields, "LlamaForCausalLM", "llama");
            add(fields, "attention_bias", keys.has("attn_q.bias"));
            add(fields, "mlp_bias", keys.has("ffn_gate.bias"));
        }
    }
    Ok(())
}

pub fn granite(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    add_head_dim(keys, fields)?;
    class(fields, "GraniteForCausalLM", "granite");
    add(fields, "attention_bias", keys.has("attn_q.bias"));
    add(fields, "mlp_bias", keys.has("ffn_gate.bias"));
    add_real(keys, fields, "attention.scale", "attention_multiplier")?;
    add_real(keys, fields, "embedding_scale", "embedding_multiplier")?;
    add_real(keys, fields, "residual_scale", "residual_multiplier")?;
    add_real(keys, fields, "logit_scale", "logits_scaling")
}

pub fn qwen2(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "Qwen2ForCausalLM", "qwen2");
    add(fields, "use_sliding_window", false);
    add_head_dim(keys, fields).map(drop)
}

pub fn qwen3(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "Qwen3ForCausalLM", "qwen3");
    add(fields, "use_sliding_window", false);
    add(fields, "attention_bias", keys.has("attn_q.bias"));
    add_head_dim(keys, fields).map(drop)
}

/// Experts in all layers.
fn experts(keys: &Keys, fields: &mut Fields, count: &str) -> Result<(), GgufError> {
    add(fields, count, keys.needed("expert_count")?);
    add(fields, "num_experts_per_tok", keys.needed("expert_used_count")?);
    add(fields, "moe_intermediate_size", keys.needed("expert_feed_forward_length")?);
    Ok(())
}

pub fn qwen2moe(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    qwen2(keys, fields)?;
    class(fields, "Qwen2MoeForCausalLM", "qwen2_moe");
    experts(keys, fields, "num_experts")?;
    add(fields, "norm_topk_prob", keys.flag("expert_weights_norm")?.unwrap_or(false));
    add(fields, "shared_expert_intermediate_size", keys.needed("expert_shared_feed_forward_length")?);
    Ok(())
}

/// Chosen experts' weights have a sum of 1, which no key says.
pub fn qwen3moe(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    qwen3(keys, fields)?;
    class(fields, "Qwen3MoeForCausalLM", "qwen3_moe");
    experts(keys, fields, "num_experts")?;
    add(fields, "norm_topk_prob", keys.flag("expert_weights_norm")?.unwrap_or(true));
    add(fields, "decoder_sparse_step", 1);
    add(fields, "mlp_only_layers", json!([]));
    Ok(())
}

/// Most layers are recurrent. A list says which, or each of some layers is not.
pub fn qwen3next(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    qwen3moe(keys, fields)?;
    class(fields, "Qwen3NextForCausalLM", "qwen3_next");
    let head = keys.head_dim()?;
    add(fields, "partial_rotary_factor", 1.0);
    add_partial(keys, fields, head)?;
    add(fields, "shared_expert_intermediate_size", keys.needed("expert_shared_feed_forward_length")?);
    let (values, inner) = (keys.needed("ssm.time_step_rank")?, keys.needed("ssm.inner_size")?);
    if values == 0 || !inner.is_multiple_of(values) {
        return Err(keys.fault("ssm.inner_size", format!("a multiple of the heads, {values}"), inner));
    }
    add(fields, "linear_num_key_heads", keys.needed("ssm.group_count")?);
    add(fields, "linear_num_value_heads", values);
    add(fields, "linear_key_head_dim", keys.needed("ssm.state_size")?);
    add(fields, "linear_value_head_dim", inner / values);
    add(fields, "linear_conv_kernel_dim", keys.needed("ssm.conv_kernel")?);
    let layers = small(keys, keys.layers()?)?;
    match keys.sizes("attention.recurrent_layers")? {
        Some(recurrent) if recurrent.len() >= layers => {
            let kind = |recurrent: &u64| if *recurrent == 0 { "full_attention" } else { "linear_attention" };
            add(fields, "layer_types", recurrent[..layers].iter().map(kind).collect::<Vec<_>>());
        }
        Some(recurrent) => {
            let found = format!("{} layers", recurrent.len());
            return Err(keys.fault("attention.recurrent_layers", format!("a list of {layers} layers"), found));
        }
        None => add(fields, "full_attention_interval", keys.size("full_attention_interval")?.unwrap_or(4)),
    }
    Ok(())
}

/// The scale of queries is in no key: it is the root of a head's size in all models but one.
pub fn gemma3(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "Gemma3ForCausalLM", "gemma3_text");
    let head = add_head_dim(keys, fields)?;
    let is_largest = keys.layers()? == GEMMA3_27B_LAYERS;
    let scalar = if is_largest { keys.needed("embedding_length")? / keys.heads()? } else { head };
    add(fields, "query_pre_attn_scalar", scalar);
    fields.remove("hidden_act");
    add(fields, "hidden_activation", "gelu_pytorch_tanh");
    add(fields, "attention_bias", keys.has("attn_q.bias"));
    let layers = keys.layers()?;
    match keys.size("attention.sliding_window")?.filter(|window| *window > 0) {
        Some(window) => {
            add(fields, "sliding_window", window);
            let pattern = keys.size("attention.sliding_window_pattern")?.unwrap_or(6);
            add(fields, "sliding_window_pattern", pattern);
        }
        None => add(fields, "layer_types", vec!["full_attention"; small(keys, layers)?]),
    }
    add(fields, "rope_local_base_freq", keys.real("rope.freq_base_swa")?.unwrap_or(10_000.0));
    add_real(keys, fields, "final_logit_softcapping", "final_logit_softcapping")
}

/// A number of layers that a list may have.
fn small(keys: &Keys, layers: u64) -> Result<usize, GgufError> {
    const MOST: u64 = 4096;
    if layers > MOST { Err(keys.fault("block_count", format!("at most {MOST}"), layers)) } else { Ok(layers as usize) }
}

/// The embedding's ramp is not rounded to whole frequencies, which no key says.
pub fn gpt_oss(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "GptOssForCausalLM", "gpt_oss");
    add_head_dim(keys, fields)?;
    add(fields, "attention_bias", true);
    add(fields, "num_local_experts", keys.needed("expert_count")?);
    add(fields, "num_experts_per_tok", keys.needed("expert_used_count")?);
    add(fields, "intermediate_size", keys.needed("expert_feed_forward_length")?);
    add(fields, "sliding_window", keys.needed("attention.sliding_window")?);
    if let Some(scaling) = fields.get_mut("rope_scaling").and_then(Json::as_object_mut) {
        add(scaling, "truncate", false);
    }
    Ok(())
}

/// Groups of experts, dense layers before those with experts, and experts that all tokens take.
fn grouped(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    experts(keys, fields, "n_routed_experts")?;
    add(fields, "n_shared_experts", keys.size("expert_shared_count")?.unwrap_or(0));
    add(fields, "first_k_dense_replace", keys.size("leading_dense_block_count")?.unwrap_or(0));
    add(fields, "routed_scaling_factor", keys.real("expert_weights_scale")?.unwrap_or(1.0));
    add(fields, "n_group", keys.size("expert_group_count")?.unwrap_or(1));
    add(fields, "topk_group", keys.size("expert_group_used_count")?.unwrap_or(1));
    Ok(())
}

pub fn glm4moe(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "Glm4MoeForCausalLM", "glm4_moe");
    let head = add_head_dim(keys, fields)?;
    add(fields, "partial_rotary_factor", 1.0);
    add_partial(keys, fields, head)?;
    add(fields, "attention_bias", keys.has("attn_q.bias"));
    add(fields, "use_qk_norm", keys.has("attn_q_norm.weight"));
    grouped(keys, fields)?;
    add(fields, "norm_topk_prob", keys.flag("expert_weights_norm")?.unwrap_or(false));
    add(fields, "num_nextn_predict_layers", keys.size("nextn_predict_layers")?.unwrap_or(0));
    Ok(())
}

/// Latent attention. Files of today have heads of the absorbed form, with one head of keys, and
/// tell the sizes of the plain form apart from that; older ones have the plain form alone.
pub fn deepseek2(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    let size = |key: &str| match keys.size(&format!("attention.{key}_mla"))? {
        Some(size) => Ok(size),
        None => keys.needed(&format!("attention.{key}")),
    };
    let (key, turned) = (size("key_length")?, keys.needed("rope.dimension_count")?);
    let nope = key
        .checked_sub(turned)
        .ok_or_else(|| keys.fault("rope.dimension_count", format!("at most the size of a key, {key}"), turned))?;
    add(fields, "num_key_value_heads", keys.heads()?);
    add(fields, "q_lora_rank", keys.size("attention.q_lora_rank")?);
    add(fields, "kv_lora_rank", keys.needed("attention.kv_lora_rank")?);
    add(fields, "qk_nope_head_dim", nope);
    add(fields, "qk_rope_head_dim", turned);
    add(fields, "v_head_dim", size("value_length")?);
    grouped(keys, fields)?;
    let (groups, is_normed) = (keys.size("expert_group_count")?, keys.flag("expert_weights_norm")?.unwrap_or(false));
    let is_corrected = keys.gguf.names().any(|name| name.ends_with(".exp_probs_b.bias"));
    if is_corrected || keys.size("expert_gating_func")? == Some(SIGMOID) {
        class(fields, "DeepseekV3ForCausalLM", "deepseek_v3");
        add(fields, "norm_topk_prob", is_normed);
        add(fields, "num_nextn_predict_layers", keys.size("nextn_predict_layers")?.unwrap_or(0));
    } else {
        class(fields, "DeepseekV2ForCausalLM", "deepseek_v2");
        let is_limited = groups.is_some_and(|groups| groups > 1);
        add(fields, "topk_method", if is_limited { "group_limited_greedy" } else { "greedy" });
    }
    // A tenth of the factor that scales attention. Cosines and sines have the same one in all
    // models, so they are not scaled.
    let tenth = keys.real("rope.scaling.yarn_log_multiplier")?;
    if let (Some(tenth), Some(yarn)) = (tenth, fields.get_mut("rope_scaling").and_then(Json::as_object_mut)) {
        let scale = shortest((tenth * 10.0) as f32);
        add(yarn, "mscale", scale);
        add(yarn, "mscale_all_dim", scale);
    }
    Ok(())
}

pub fn phi3(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    class(fields, "Phi3ForCausalLM", "phi3");
    let head = keys.head_dim()?;
    add_partial(keys, fields, head)?;
    if let Some(window) = keys.size("attention.sliding_window")?.filter(|window| *window > 0) {
        add(fields, "sliding_window", window);
    }
    Ok(())
}
