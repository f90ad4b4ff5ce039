//! The parts of a published checkpoint other than the language model, which do not run here, and
//! other spellings of names.
use crate::Diagnostic;
use crate::fields::Fields;

/// A part that families have in their checkpoints.
pub(crate) struct Other {
    /// For people.
    pub part: &'static str,
    pub tensors: Tensors,
}

/// Where the tensors of a part are.
pub(crate) enum Tensors {
    /// Their names begin like this.
    Below(&'static str),
    /// Layers after those of the model. The field gives their number, with its default.
    Layers(&'static str, usize),
    /// These modules of the last layers. The field gives the number of layers.
    Last(&'static str, &'static [&'static str]),
}

/// A part of a checkpoint that does not run, of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherPart {
    /// For people.
    pub part: &'static str,
    /// What names of its tensors begin with.
    pub begins: String,
}

/// Layers that guess tokens further ahead.
pub(crate) const DRAFT: &str = "multi-token prediction";
const VISION: &str = "vision tower";
const SINGLE: &str = "mixture of a single row";
const PROJECTOR: &str = "projector of images";
const AUDIO: &str = "audio tower";
const OF_AUDIO: &str = "projector of audio";
const UNREAD: &str = "keys and values of layers that see those of others";

/// For DeepSeek V3 and GLM: the drafting layer has the number after the last layer's.
pub(crate) const DRAFT_LAYERS: &[Other] =
    &[Other { part: DRAFT, tensors: Tensors::Layers("num_nextn_predict_layers", 1) }];

/// For Qwen3-Next and later.
pub(crate) const MTP: &[Other] = &[below(DRAFT, "mtp.")];

/// For Qwen3.5.
pub(crate) const MTP_AND_VISUAL: &[Other] = &[below(DRAFT, "mtp."), below(VISION, "model.visual.")];

/// For models that see images through a tower and a projector, with a spelling before transformers
/// 5 and one since.
pub(crate) const TOWER: &[Other] = &[
    below(VISION, "vision_tower."),
    below(VISION, "model.vision_tower."),
    below(PROJECTOR, "multi_modal_projector."),
    below(PROJECTOR, "model.multi_modal_projector."),
];

/// For Gemma 4: layers that see keys and values of others may have modules for their own.
const UNREAD_KEYS: Other = Other {
    part: UNREAD,
    tensors: Tensors::Last(
        "num_kv_shared_layers",
        &["self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm", "self_attn.v_norm"],
    ),
};
pub(crate) const GEMMA4: &[Other] = &[UNREAD_KEYS];
pub(crate) const GEMMA4_TOWERS: &[Other] = &[
    UNREAD_KEYS,
    below(VISION, "model.vision_tower."),
    below(VISION, "model.vision_embedder."),
    below(PROJECTOR, "model.embed_vision."),
    below(AUDIO, "model.audio_tower."),
    below(OF_AUDIO, "model.embed_audio."),
];

/// For Qwen3-VL.
pub(crate) const VISUAL: &[Other] = &[below(VISION, "model.visual."), below(VISION, "visual.")];

/// For Llama 4.
pub(crate) const LLAMA4_TOWER: &[Other] = &[below(VISION, "vision_model."), below(PROJECTOR, "multi_modal_projector.")];

/// For Llama 4, whose head is part of the language model.
pub(crate) const LLAMA4_LANGUAGE_MODEL: &[(&str, &str)] =
    &[("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")];

/// For Kimi-K2.5, with both spellings.
pub(crate) const KIMI_TOWER: &[Other] = &[
    below(VISION, "vision_tower."),
    below(VISION, "model.vision_tower."),
    below(PROJECTOR, "mm_projector."),
    below(PROJECTOR, "model.mm_projector."),
];

/// For Kimi-Linear, which has weights of a mixture where there is one row.
pub(crate) const KIMI: &[Other] = &[
    Other { part: DRAFT, tensors: Tensors::Layers("num_nextn_predict_layers", 0) },
    below(SINGLE, "model.layers.0.self_attention_res_"),
];

/// For Kimi-K3.
pub(crate) const KIMI_K3_TOWER: &[Other] = &[
    Other { part: DRAFT, tensors: Tensors::Layers("num_nextn_predict_layers", 0) },
    below(SINGLE, "language_model.model.layers.0.self_attention_res_"),
    below(SINGLE, "model.language_model.layers.0.self_attention_res_"),
    below(VISION, "vision_tower."),
    below(PROJECTOR, "mm_projector."),
];

/// For MiniMax-M3, with both spellings.
pub(crate) const MINIMAX_M3_TOWER: &[Other] = &[
    below(DRAFT, "mtp."),
    below(DRAFT, "model.language_model.mtp."),
    below(VISION, "vision_tower."),
    below(VISION, "model.vision_tower."),
    below(PROJECTOR, "multi_modal_projector."),
    below(PROJECTOR, "model.multi_modal_projector."),
    below(PROJECTOR, "patch_merge_mlp."),
];

/// For ERNIE 4.5.
pub(crate) const ERNIE_MTP: &[Other] = &[below(DRAFT, "model.mtp_")];

/// For MiMo-V2-Flash.
pub(crate) const MIMO_MTP: &[Other] = &[below(DRAFT, "model.mtp.")];

/// For Step 3.5 and 3.7.
pub(crate) const STEP: &[Other] = &[
    Other { part: DRAFT, tensors: Tensors::Layers("num_nextn_predict_layers", 0) },
    below(VISION, "vision_model."),
    below(VISION, "model.vision_model."),
    below(PROJECTOR, "vit_large_projector."),
    below(PROJECTOR, "model.vit_large_projector."),
];

/// For Ling and Ring 2.
pub(crate) const WORD_EMBEDDINGS: &[(&str, &str)] = &[("model.word_embeddings.", "model.embed_tokens.")];

/// Beginnings of names before transformers 5, and since.
pub(crate) const LANGUAGE_MODEL: &[(&str, &str)] =
    &[("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head.")];

/// For DeepSeek V4: releases have no name for the model as a whole.
pub(crate) const WITHOUT_MODEL: &[(&str, &str)] = &[
    ("embed.", "model.embed_tokens."),
    ("layers.", "model.layers."),
    ("norm.", "model.norm."),
    ("hc_head_", "model.hc_head_"),
    ("head.", "lm_head."),
];

/// For Falcon-H1: the last norm.
pub(crate) const FINAL_LAYERNORM: &[(&str, &str)] = &[("model.final_layernorm.", "model.norm.")];

/// For LFM2: the last norm.
pub(crate) const EMBEDDING_NORM: &[(&str, &str)] = &[("model.embedding_norm.", "model.norm.")];

/// For a language part that was saved alone: it may keep the names of the whole.
pub(crate) const SAVED_ALONE: &[(&str, &str)] = &[("model.language_model.", "model.")];

const fn below(part: &'static str, begins: &'static str) -> Other {
    Other { part, tensors: Tensors::Below(begins) }
}

/// The parts of a model with `layers` layers at a path.
pub(crate) fn read(f: &Fields, others: &[Other], path: &str, layers: usize) -> Result<Vec<OtherPart>, Diagnostic> {
    let mut all = vec![];
    for other in others {
        match other.tensors {
            Tensors::Below(begins) => all.push(OtherPart { part: other.part, begins: begins.into() }),
            Tensors::Layers(field, default) => {
                // Nothing else reads it, so null is as good as nothing.
                let count = f.number(field)?.unwrap_or(default);
                f.note(field, count);
                let begins = (layers..layers + count).map(|layer| format!("{path}.layers.{layer}."));
                all.extend(begins.map(|begins| OtherPart { part: other.part, begins }));
            }
            Tensors::Last(field, modules) => {
                let first = layers.saturating_sub(f.number(field)?.unwrap_or(0));
                let begins = (first..layers)
                    .flat_map(|layer| modules.iter().map(move |module| format!("{path}.layers.{layer}.{module}.")));
                all.extend(begins.map(|begins| OtherPart { part: other.part, begins }));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use crate::{Config, Diagnostic};
    use serde_json::{Value, json};

    fn read(architecture: &str, fields: Value) -> Result<Config, Diagnostic> {
        let mut all = json!({
            "architectures": [architecture], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 128,
            "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
        });
        all.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Config::parse(&all.to_string(), None)
    }

    fn begins(architecture: &str, fields: Value) -> Vec<String> {
        let config = read(architecture, fields).expect("a good configuration");
        config.others.into_iter().map(|other| format!("{}: {}", other.part, other.begins)).collect()
    }

    #[test]
    fn drafting_layers_have_the_numbers_behind_the_last() {
        for architecture in ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"] {
            let of = |count: Value| begins(architecture, json!({ "num_nextn_predict_layers": count }));
            assert_eq!(begins(architecture, json!({})), ["multi-token prediction: model.layers.4."]);
            assert_eq!(of(json!(0)), [""; 0]);
            let two = ["multi-token prediction: model.layers.4.", "multi-token prediction: model.layers.5."];
            assert_eq!(of(json!(2)), two);
        }
        assert_eq!(begins("LlamaForCausalLM", json!({ "num_nextn_predict_layers": 1 })), [""; 0]);
    }

    /// Fields of a language part.
    fn within(architecture: &str, model_type: &str, fields: Value) -> Result<Config, Diagnostic> {
        let mut text = json!({
            "model_type": model_type, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        });
        text.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Config::parse(&json!({ "architectures": [architecture], "text_config": text }).to_string(), None)
    }

    #[test]
    fn models_that_see_images() {
        // As the release of 4B leaves out what its class has by default.
        let gemma = within("Gemma3ForConditionalGeneration", "gemma3_text", json!({})).expect("a good configuration");
        let attention = gemma.layers[0].half::<crate::Attention>().expect("attention");
        assert_eq!((gemma.vocab, attention.heads, attention.kv_heads, attention.head_dim), (262_208, 8, 4, 256));
        assert!(gemma.tied && gemma.path == "model.language_model");
        let sizes = json!({ "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "head_dim": 16 });
        let mistral = |model_type: &str| within("Mistral3ForConditionalGeneration", model_type, sizes.clone());
        assert!(!mistral("mistral").expect("a good configuration").tied);
        let ministral = mistral("ministral3").expect("a good configuration");
        assert_eq!(
            (ministral.architecture, ministral.path),
            ("Mistral3ForConditionalGeneration", "model.language_model")
        );
        assert!(ministral.growth.is_some() && ministral.eps == 1e-5);
        let fault = mistral("mistral5").expect_err("another language part");
        assert_eq!(fault.to_string(), "config.json: text_config.model_type: unknown value \"mistral5\"");
        let fault = within("Mistral3ForConditionalGeneration", "mistral", json!({})).expect_err("no sizes");
        assert_eq!(fault.to_string(), "config.json: text_config.vocab_size: is missing");
    }

    #[test]
    fn a_language_part_that_was_saved_alone() {
        let fields = json!({
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "layer_types": ["linear_attention", "linear_attention", "full_attention",
            "full_attention"],
        });
        let config = read("Qwen3_5ForCausalLM", fields).expect("a good configuration");
        assert_eq!((config.path, config.spellings), ("model", &[("model.language_model.", "model.")][..]));
    }

    #[test]
    fn modules_by_the_spelling_of_before() {
        let excluded = json!(["language_model.lm_head", "language_model.model.layers.1.mlp.up_proj"]);
        let quantised = json!({ "quant_method": "fp8", "modules_to_not_convert": excluded });
        let all = json!({
            "architectures": ["Mistral3ForConditionalGeneration"], "quantization_config": quantised,
            "text_config": {
                "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 128, "head_dim": 16,
            },
        });
        let config = Config::parse(&all.to_string(), None).expect("a good configuration");
        let is_quantised = |module: &str| config.scheme(module).is_some();
        assert!(is_quantised("model.language_model.layers.0.mlp.up_proj"));
        assert!(!is_quantised("model.language_model.layers.1.mlp.up_proj") && !is_quantised("lm_head"));
    }

    #[test]
    fn experts_below_another_path_are_quantised_alike() {
        let fields = json!({
            "model_type": "qwen3_5_moe_text", "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
            "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        });
        let read = || within("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", fields.clone());
        let mut config = read().expect("a good configuration");
        let rules = ["re:.*language_model.*experts\\.1\\..*=none".to_owned(), "int8-weights".to_owned()];
        let fault = config.quantise(&rules).expect_err("experts of two forms");
        assert_eq!(
            fault.to_string(),
            "--quant: model.language_model.layers.0.mlp.experts.0.gate_proj and \
             model.language_model.layers.0.mlp.experts.1.gate_proj would be quantised in different forms"
        );
    }
}
