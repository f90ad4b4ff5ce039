use super::*;
use serde_json::json;

/// A target of a family, with these fields.
fn target(architecture: &str, fields: Value) -> Config {
    let mut text = json!({
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 512, "first_k_dense_replace": 3,
        "tie_word_embeddings": false,
    });
    text.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let all = match architecture {
        "Qwen3_5ForConditionalGeneration" => json!({ "architectures": [architecture], "text_config": text }),
        _ => {
            text["architectures"] = json!([architecture]);
            text
        }
    };
    Config::parse(&all.to_string(), None).expect("a good configuration")
}

fn mtp(architecture: &str, fields: Value) -> Option<Draft> {
    target(architecture, fields).draft().expect("a draft that is supported")
}

#[test]
fn layers_behind_the_last() {
    for architecture in ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"] {
        let draft = mtp(architecture, json!({})).expect("a draft");
        assert_eq!(draft.model.layer_path(0), "model.layers.8");
        let Fusion::Mtp(fusion) = &draft.fusion else { panic!("{:?}", draft.fusion) };
        assert_eq!(
            [&fusion.embedding_norm, &fusion.hidden_norm, &fusion.projection, &draft.norm],
            ["enorm", "hnorm", "eh_proj", "shared_head.norm"].map(|name| format!("model.layers.8.{name}")).each_ref()
        );
        assert_eq!((&*draft.embedding, draft.head), ("model.embed_tokens.weight", Head::Target("lm_head")));
        let others: Vec<&str> = draft.model.others.iter().map(|other| &*other.begins).collect();
        assert_eq!(others, ["model.layers.8.embed_tokens.", "model.layers.8.shared_head.head."]);
        let config = target(architecture, json!({}));
        assert_eq!((config.others.len(), draft.others(&config)), (1, draft.model.others.clone()));
        assert!(draft.model.has_experts() && draft.model.layers.len() == 1 && draft.map.is_none());
        assert_eq!(mtp(architecture, json!({ "num_nextn_predict_layers": 0 })), None);
        // All layers of the model are dense, and the one that drafts is not.
        assert!(mtp(architecture, json!({ "first_k_dense_replace": 7 })).expect("a draft").model.has_experts());
        // With the first layers alone, to measure.
        let mut config = target(architecture, json!({}));
        config.shorten(2);
        assert_eq!(config.draft().expect("supported").expect("a draft").model.layer_path(0), "model.layers.8");
    }
    assert_eq!(mtp("DeepseekV2ForCausalLM", json!({})), None);
    assert_eq!(mtp("Qwen3ForCausalLM", json!({ "num_nextn_predict_layers": 1 })), None);
}

#[test]
fn a_layer_apart_attends() {
    for (architecture, path) in
        [("Qwen3NextForCausalLM", "model"), ("Qwen3_5ForConditionalGeneration", "model.language_model")]
    {
        // No layer of the model attends.
        let linear = json!({ "layer_types": vec!["linear_attention"; 8], "tie_word_embeddings": true });
        let draft = mtp(architecture, linear).expect("a draft");
        let attention = draft.model.layers[0].half::<crate::Attention>().expect("attention");
        assert!(attention.gated == crate::GatedBy::Elements && attention.rope == Some(0));
        assert_eq!((draft.model.layer_path(0), &*draft.norm), ("mtp.layers.0".into(), "mtp.norm"));
        assert_eq!(draft.embedding, format!("{path}.embed_tokens.weight"));
        assert_eq!(draft.head, if path == "model" { Head::Embedding } else { draft.head });
    }
}

#[test]
fn drafts_that_are_not_supported() {
    let fault = |architecture: &str, fields: Value| {
        target(architecture, fields).draft().expect_err("what is not supported").to_string()
    };
    assert_eq!(
        fault("DeepseekV3ForCausalLM", json!({ "num_nextn_predict_layers": 3 })),
        "config.json: num_nextn_predict_layers: 3 layers draft: one that all drafts go through is supported"
    );
    assert_eq!(
        fault("Qwen3_5ForCausalLM", json!({ "mtp_num_hidden_layers": 2 })),
        "config.json: mtp_num_hidden_layers: 2 layers draft: one that all drafts go through is supported"
    );
    assert_eq!(
        fault("Qwen3_5ForCausalLM", json!({ "mtp_use_dedicated_embeddings": true })),
        "config.json: mtp_use_dedicated_embeddings: is not supported: it must be null or false"
    );
}

/// A head for a target of these sizes, with fields changed; a null takes one away.
fn head(fields: Value) -> String {
    let mut all = json!({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 80,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
        "draft_vocab_size": 32, "tie_word_embeddings": false, "torch_dtype": "float16",
    });
    let object = all.as_object_mut().expect("an object");
    for (name, value) in fields.as_object().expect("an object") {
        match value {
            Value::Null => object.remove(name),
            value => object.insert(name.clone(), value.clone()),
        };
    }
    all.to_string()
}

fn eagle(fields: Value) -> Result<Draft, Diagnostic> {
    eagle3(&head(fields), &target("Qwen3ForCausalLM", json!({})))
}

fn eagle_of(draft: &Draft) -> &Eagle3 {
    match &draft.fusion {
        Fusion::Eagle3(eagle) => eagle,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_eagle3_head() {
    let draft = eagle(json!({})).expect("a head");
    let found = eagle_of(&draft);
    assert_eq!((&found.layers[..], &*found.projection), (&[2, 4, 5][..], "draft.fc"));
    assert!(!found.norm_before_residual && !found.norm_output && found.all_norm.is_none());
    assert_eq!(
        (draft.model.vocab, draft.head, draft.map.as_deref()),
        (32, Head::Own("draft.lm_head"), Some("draft.d2t"))
    );
    assert_eq!((draft.model.dtype, &*draft.norm), (crate::DType::BF16, "draft.norm"));
    assert_eq!(draft.embedding, "model.embed_tokens.weight");
    // Modules of its own quantisation are called as its files call them.
    let spelled = draft.model.spelled("draft.layers.0.mlp.up_proj");
    assert!(spelled.contains(&"midlayer.mlp.up_proj".into()) && spelled.contains(&"layers.0.mlp.up_proj".into()));
    for architecture in ["Eagle3LlamaForCausalLM", "LlamaForCausalLM"] {
        assert!(eagle(json!({ "architectures": [architecture] })).is_ok());
    }
    let qwen = eagle(json!({ "architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3" })).expect("a head");
    assert_eq!(qwen.model.layers[0].half::<crate::Attention>().expect("attention").qk_norm, crate::QkNorm::Heads);
}

#[test]
fn layers_that_a_head_takes() {
    let layers = |fields: Value| eagle_of(&eagle(fields).expect("a head")).layers.clone();
    let ids = "eagle_aux_hidden_state_layer_ids";
    assert_eq!(layers(json!({ ids: [7, 0, 3] })), [0, 3, 7]);
    assert_eq!(layers(json!({ "eagle_config": { ids: [1, 3, 7] } })), [2, 4, 8]);
    assert_eq!(layers(json!({ "eagle_config": { ids: null } })), [2, 4, 5]);
}

#[test]
fn heads_and_vocabularies() {
    let of = |fields: Value, target: &Config| {
        let draft = eagle3(&head(fields), target).expect("a head");
        (draft.head, draft.model.vocab, draft.map.is_some())
    };
    let (apart, tied) =
        (target("Qwen3ForCausalLM", json!({})), target("Qwen3ForCausalLM", json!({ "tie_word_embeddings": true })));
    assert_eq!(of(json!({ "draft_vocab_size": null }), &apart), (Head::Target("lm_head"), 128, false));
    assert_eq!(of(json!({ "draft_vocab_size": null }), &tied), (Head::Embedding, 128, false));
    assert_eq!(of(json!({ "draft_vocab_size": 128 }), &apart), (Head::Own("draft.lm_head"), 128, false));
    assert_eq!(
        of(json!({ "draft_vocab_size": 128, "tie_word_embeddings": true }), &apart),
        (Head::Embedding, 128, false)
    );
    let own = eagle(json!({ "embed_requires_grad": true })).expect("a head");
    assert_eq!(own.embedding, "draft.embed_tokens.weight");
}

/// As `speculators` writes it: the layer apart, and norms before the residual unless it is said.
#[test]
fn a_head_of_speculators() {
    let layer = |kind: &str| {
        json!({ "model_type": kind, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 128 })
    };
    let of = |fields: Value| {
        let mut all =
            json!({ "architectures": ["Eagle3Speculator"], "draft_vocab_size": 32, "target_hidden_size": null });
        all.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        eagle3(&all.to_string(), &target("Qwen3ForCausalLM", json!({})))
    };
    let draft = of(json!({ "transformer_layer_config": layer("llama"), "fc_norm": true })).expect("a head");
    let found = eagle_of(&draft);
    assert!(found.norm_before_residual);
    assert_eq!(found.layer_norms.as_ref().expect("norms")[2], "draft.fc_norm.2");
    let draft =
        of(json!({ "transformer_layer_config": layer("qwen3"), "norm_before_residual": false })).expect("a head");
    assert!(!eagle_of(&draft).norm_before_residual);
    assert_eq!(draft.model.layers[0].half::<crate::Attention>().expect("attention").qk_norm, crate::QkNorm::Heads);
    let fault = of(json!({ "transformer_layer_config": layer("mistral") })).expect_err("another layer");
    assert_eq!(
        fault.to_string(),
        "the draft's config.json: transformer_layer_config.model_type: unknown value \"mistral\""
    );
}

#[test]
fn heads_of_another_target() {
    let ids = "eagle_aux_hidden_state_layer_ids";
    let cases = [
        (
            json!({ "architectures": ["Eagle3DeepseekV2ForCausalLM"] }),
            "architectures: unknown architecture of a draft, \"Eagle3DeepseekV2ForCausalLM\"",
        ),
        (json!({ "architectures": null }), "architectures: is missing"),
        (json!({ "num_hidden_layers": 2 }), "num_hidden_layers: 2 layers: a head of one is supported"),
        (json!({ "hidden_size": 32 }), "hidden_size: 32 is not the target's, 64"),
        (json!({ "target_hidden_size": 96 }), "target_hidden_size: 96 is not the target's hidden_size, 64"),
        (json!({ "vocab_size": 100 }), "vocab_size: 100 is not the target's, 128"),
        (json!({ "draft_vocab_size": 129 }), "draft_vocab_size: 129 is more than the target's vocab_size, 128"),
        (
            json!({ "tie_word_embeddings": true }),
            "draft_vocab_size: 32 of 128 tokens have no head of their own: tie_word_embeddings",
        ),
        (
            json!({ ids: [1, 4, 9] }),
            "eagle_aux_hidden_state_layer_ids: names what enters layer 9 of a target of 8 layers",
        ),
        (json!({ ids: [1, 1, 4] }), "eagle_aux_hidden_state_layer_ids: must name layers, each once"),
        (
            json!({ ids: [1, 4], "num_aux_hidden_states": 3 }),
            "eagle_aux_hidden_state_layer_ids: names 2 layers, num_aux_hidden_states is 3",
        ),
        (
            json!({ "eagle_config": { ids: [1, 8] } }),
            "eagle_config.eagle_aux_hidden_state_layer_ids: names what enters layer 9 of a target of 8 layers",
        ),
        (
            json!({ "eagle_config": { "use_aux_hidden_state": false } }),
            "eagle_config.use_aux_hidden_state: is not supported: it must be true",
        ),
        (json!({ "bias": true }), "bias: is not supported: it must be false"),
        (json!({ "fc_norm": true, "norm_before_fc": true }), "fc_norm: is not supported together with norm_before_fc"),
    ];
    for (fields, says) in cases {
        let fault = eagle(fields).expect_err(says).to_string();
        assert_eq!(fault, format!("the draft's config.json: {says}"));
    }
    let small = target("Qwen3ForCausalLM", json!({ "num_hidden_layers": 4 }));
    assert_eq!(
        eagle3(&head(json!({})), &small).expect_err("a small target").to_string(),
        "the draft's config.json: eagle_aux_hidden_state_layer_ids: is missing, and a target of 4 layers has no usual ones"
    );
}
