use super::*;
use atomc_ir::rope::Scaling;
use atomc_ir::{DType, parse};
use serde_json::{Value, json};

/// A small model that every family can read, with these fields changed; a `null` in the patch
/// removes the field.
fn config(patch: Value) -> String {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 512,
        "dtype": "bfloat16",
    });
    for (name, value) in patch.as_object().expect("an object") {
        match value {
            Value::Null => config.as_object_mut().expect("an object").remove(name),
            value => config.as_object_mut().expect("an object").insert(name.clone(), value.clone()),
        };
    }
    nested(config).to_string()
}

/// The configuration of a family with a language part among several: its fields move into that
/// part.
fn nested(config: Value) -> Value {
    let family = FAMILIES.iter().find(|family| config["architectures"][0] == family.architecture);
    let Some(name) = family.and_then(|family| family.text_config) else { return config };
    let mut text = config.clone();
    text.as_object_mut().expect("an object").remove("architectures");
    json!({ "architectures": config["architectures"], "tie_word_embeddings": config["tie_word_embeddings"], name: text })
}

fn read(patch: Value) -> Config {
    Config::parse(&config(patch), None).expect("a good configuration")
}

fn printed(patch: Value) -> String {
    let text = graph(&read(patch)).expect("a graph").print();
    assert_eq!(parse(&text).expect("what was printed can be read").print(), text);
    text
}

mod graphs {
    use super::*;

    #[test]
    fn llama() {
        insta::assert_snapshot!(printed(json!({})));
    }

    #[test]
    fn llama_with_biases() {
        insta::assert_snapshot!(printed(
            json!({ "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true })
        ));
    }

    #[test]
    fn qwen2() {
        insta::assert_snapshot!(printed(json!({ "architectures": ["Qwen2ForCausalLM"] })));
    }

    #[test]
    fn qwen3() {
        insta::assert_snapshot!(printed(json!({ "architectures": ["Qwen3ForCausalLM"] })));
    }

    #[test]
    fn mistral() {
        insta::assert_snapshot!(printed(json!({ "architectures": ["MistralForCausalLM"] })));
    }
}

/// Whatever is in a field, reading ends with a configuration or a fault, and so do graphs.
#[test]
fn nothing_panics() {
    let fields = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "partial_rotary_factor",
        "rope_scaling",
        "rope_parameters",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "hidden_act",
        "dtype",
        "tie_word_embeddings",
        "eos_token_id",
        "bos_token_id",
        "architectures",
    ];
    let kinds = Scaling::NAMES.map(|name| json!({ "rope_type": name, "factor": 1e300, "beta_fast": 1e-300 }));
    let mut values = vec![json!(0), json!(1), json!(-1), json!(3), json!(1u64 << 30), json!(u64::MAX), json!(i64::MIN)];
    values.extend([json!(1e-308), json!(1e308), json!(0.3), json!(true), json!(""), json!([]), json!([-1]), json!({})]);
    values.extend(kinds);
    for family in FAMILIES {
        for (first, second) in fields.iter().flat_map(|a| fields.iter().map(move |b| (a, b))) {
            for (v, w) in values.iter().zip(values.iter().cycle().skip(first.len())) {
                let text = config(json!({ "architectures": [family.architecture], *first: v, *second: w }));
                if let Ok(config) = Config::parse(&text, None)
                    && config.layers.len() < 4
                {
                    let _ = graph(&config);
                }
            }
        }
    }
}

/// Rules of `--quant` without effect, and their messages.
#[test]
fn rules_that_nothing_follows() {
    let built = |architecture: &str, rules: &[&str]| {
        let tied = rules.iter().any(|rule| rule.starts_with("lm_head=int8"));
        let mut patch = json!({ "architectures": [architecture], "tie_word_embeddings": tied });
        if architecture == "Qwen3MoeForCausalLM" {
            patch["num_experts"] = json!(4);
            patch["num_experts_per_tok"] = json!(2);
            patch["moe_intermediate_size"] = json!(32);
        }
        let mut config = read(patch);
        config.quantise(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>()).expect("rules");
        graph(&config).map(drop).map_err(|fault| (fault.to_string(), fault.help.unwrap_or_default()))
    };
    let llama = |rules: &[&str]| built("LlamaForCausalLM", rules);
    let sound: [&[&str]; 7] = [
        &["lm_head=fp8"],
        &["*.down_proj=fp8"],
        &["fp8", "*.down_proj=none"],
        &["fp8", "lm_head=none"],
        &["model.layers.0.mlp.up_proj=int8", "*.mlp.*=fp8"],
        &["*=none"],
        &["*=int8"],
    ];
    for rules in sound {
        assert_eq!(llama(rules), Ok(()), "{rules:?}");
    }
    assert_eq!(built("Qwen3MoeForCausalLM", &["*.experts.*=fp8", "*.o_proj=int8"]), Ok(()));
    let refused: [(&[&str], &str); 7] = [
        (&["*.down_porj=fp8"], "--quant *.down_porj=…: no product of the model has such a name"),
        (&["fp8", "*.down_porj=none"], "--quant *.down_porj=…: no product of the model has such a name"),
        (&["model.nothing=fp8"], "--quant model.nothing=…: no product of the model has such a name"),
        (
            &["*input_layernorm*=fp8"],
            "--quant *input_layernorm*=…: model.layers.0.input_layernorm is no product, and only products are quantised",
        ),
        (
            &["lm_head=int8"],
            "--quant lm_head=…: the head has no weight of its own, and the embedding's is not quantised",
        ),
        (
            &["*.mlp.*=fp8", "*.down_proj=int8"],
            "--quant *.down_proj=…: rules before it have all products of this name, as model.layers.0.mlp.down_proj",
        ),
        (
            &["fp8", "*.mlp.*=fp8", "*.down_proj=none"],
            "--quant *.down_proj=…: rules before it have all products of this name, as model.layers.0.mlp.down_proj",
        ),
    ];
    for (rules, says) in refused {
        assert_eq!(llama(rules).expect_err(says).0, says);
    }
    let help = llama(&["*.down_porj=fp8"]).expect_err("a name").1;
    assert!(help.starts_with("Products of the model: model.layers.*.mlp.down_proj, "), "{help}");
    assert!(help.contains("lm_head") && help.contains("model.layers.*.self_attn.q_proj"), "{help}");
    let (router, _) = built("Qwen3MoeForCausalLM", &["*.mlp.gate=fp8"]).expect_err("a router");
    assert_eq!(router, "--quant *.mlp.gate=…: model.layers.0.mlp.gate is a product whose weight is not quantised here");
}

mod streams {
    use atomc_artifact::manifest::Attention;

    use super::*;

    /// A model of each kind of layer with rows of blocks of tokens.
    fn config() -> Config {
        read(json!({
            "architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 16,
            "qk_rope_head_dim": 8, "o_groups": 2, "compress_ratios": [0, 4, 128], "num_hash_layers": 1,
            "n_routed_experts": 8, "index_head_dim": 16,
        }))
    }

    /// Each layer has the caches of its kind.
    #[test]
    fn caches_of_each_kind_of_layer() {
        let graph = graph(&config()).expect("a graph");
        let states = graph.inputs().into_iter().filter(|&v| graph.ty(v).is_state());
        let names: Vec<String> = states.map(|v| format!("{:?}", graph.op(v.node))).collect();
        let name = |of: &str| names.iter().filter(|name| name.contains(&format!("\"{of}"))).count();
        let found = ["kv0", "kv1", "kv2", "parts", "rows", "index_parts1", "index1"].map(name);
        assert_eq!((names.len(), found), (9, [1, 1, 1, 2, 2, 1, 1]));
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let fault = |part: Part, asked: Asked| graph_with(&config(), part, asked).expect_err("a fault").to_string();
        let (part, asked) = (Part::default(), Asked::default());
        let shared = "experts by token and several streams in place of one row are shared out by --tp alone";
        assert_eq!(fault(Part { expert_ranks: 2, ..part }, asked), format!("--ep: {shared}"));
        assert_eq!(fault(Part { stages: 2, ..part }, asked), format!("--pp: {shared}"));
        let groups = "--tp: 2 groups of attention heads cannot be shared out among 3 ranks";
        assert_eq!(fault(Part { ranks: 3, ..part }, asked), groups);
        let caller =
            "--attention: attention over rows of blocks is the artifact's own: a framework does not compute it here";
        assert_eq!(fault(Part { attention: Attention::Caller, ..part }, asked), caller);
        let inside =
            "--hidden: layers' inputs of a model with several streams or rows in place of one: this is not supported";
        assert_eq!(fault(part, Asked { hidden: &[1], ..asked }), inside);
        let mut bytes = config();
        bytes.cache = Some(DType::F8E4M3);
        let said = graph(&bytes).expect_err("a fault").to_string();
        assert_eq!(said, "--cache-dtype: a cache of bytes of rows of blocks is not supported");
    }
}
