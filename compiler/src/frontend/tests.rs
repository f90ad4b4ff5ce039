use super::*;
use atomc_ir::parse;
use atomc_ir::rope::Scaling;
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

/// Of a family whose language part is one of several, with its fields where they belong.
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

/// Whatever stands in a field, reading ends with a configuration or a fault, and so do graphs.
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
