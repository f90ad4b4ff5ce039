use crate::*;
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

/// The attention of the first layer.
fn attention(config: &Config) -> &Attention {
    config.layers[0].half::<Attention>().expect("a layer that attends")
}

/// Families that attend over keys and values of heads.
fn of_heads() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().filter(|family| family.latent.is_none() && !family.pooled && family.ssm.is_none())
}

/// The latent attention of the first layer.
fn latent(config: &Config) -> &Latent {
    config.layers[0].half().expect("a layer of latent attention")
}

fn windows(config: &Config) -> Vec<usize> {
    config.layers.iter().filter_map(|layer| layer.half::<Attention>()).map(|attention| attention.window).collect()
}

/// The fault that the text is found to have.
fn fault_in(text: &str) -> String {
    let d = Config::parse(text, None).expect_err("a fault");
    let help = d.help.as_ref().map(|h| format!("\n  {}", cut(h))).unwrap_or_default();
    format!("[{}] {d}{help}", d.code)
}

/// A help without all architectures but the first: a new one changes no test of faults.
fn cut(help: &str) -> String {
    match help.split_once("LlamaForCausalLM, ") {
        Some((before, _)) => format!("{before}LlamaForCausalLM, …"),
        None => help.to_owned(),
    }
}

fn fault(patch: Value) -> String {
    fault_in(&config(patch))
}

/// The faults of one field, one line a value.
fn faults(field: &str, values: &[Value]) -> String {
    values.iter().map(|v| fault(json!({ field: v }))).collect::<Vec<_>>().join("\n")
}

fn rope_fault(rope: Value) -> String {
    fault(json!({ "rope_parameters": rope }))
}

mod meaning {
    use super::*;

    #[test]
    fn defaults_of_each_family() {
        let facts = |family: &Family| {
            let names = json!({
                "architectures": [family.architecture], "num_attention_heads": 32, "num_key_value_heads": null,
                "max_position_embeddings": null, "dtype": null, "hidden_size": 128, "full_attention_interval": 1,
            });
            let c = read(names);
            format!(
                "{}: {} kv heads of {}, {} positions, window {}, eps {:?}, {}, stop {:?}, bos {:?}",
                c.architecture,
                attention(&c).kv_heads,
                attention(&c).head_dim,
                c.positions,
                attention(&c).window,
                c.eps,
                c.dtype.name(),
                c.stop,
                c.bos
            )
        };
        insta::assert_snapshot!(of_heads().map(facts).collect::<Vec<_>>().join("\n"), @r"
        LlamaForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-6, bf16, stop [2], bos Some(1)
        Qwen2ForCausalLM: 32 kv heads of 4, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3ForCausalLM: 32 kv heads of 128, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        MistralForCausalLM: 8 kv heads of 4, 131072 positions, window 4096, eps 1e-6, bf16, stop [2], bos Some(1)
        SmolLM3ForCausalLM: 4 kv heads of 4, 32768 positions, window 0, eps 1e-6, bf16, stop [128001], bos Some(128000)
        GraniteForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-6, bf16, stop [2], bos Some(1)
        Olmo2ForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-5, bf16, stop [50279], bos None
        Phi3ForCausalLM: 32 kv heads of 4, 4096 positions, window 0, eps 1e-5, bf16, stop [32000], bos Some(1)
        Gemma3ForCausalLM: 4 kv heads of 256, 131072 positions, window 4096, eps 1e-6, bf16, stop [1], bos Some(2)
        Gemma3ForConditionalGeneration: 4 kv heads of 256, 131072 positions, window 4096, eps 1e-6, bf16, stop [1], bos Some(2)
        Gemma4ForCausalLM: 4 kv heads of 512, 131072 positions, window 0, eps 1e-6, bf16, stop [1], bos Some(2)
        Gemma4ForConditionalGeneration: 4 kv heads of 512, 131072 positions, window 0, eps 1e-6, bf16, stop [1], bos Some(2)
        Gemma4UnifiedForCausalLM: 4 kv heads of 512, 262144 positions, window 0, eps 1e-6, bf16, stop [1], bos Some(2)
        Gemma4UnifiedForConditionalGeneration: 4 kv heads of 512, 262144 positions, window 0, eps 1e-6, bf16, stop [1], bos Some(2)
        Mistral3ForConditionalGeneration: 8 kv heads of 4, 131072 positions, window 4096, eps 1e-6, bf16, stop [2], bos Some(1)
        Qwen3MoeForCausalLM: 4 kv heads of 4, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        MixtralForCausalLM: 8 kv heads of 4, 131072 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Glm4MoeForCausalLM: 8 kv heads of 4, 131072 positions, window 0, eps 1e-5, bf16, stop [], bos None
        GptOssForCausalLM: 8 kv heads of 64, 131072 positions, window 128, eps 1e-5, bf16, stop [], bos None
        Qwen3NextForCausalLM: 2 kv heads of 256, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3_5ForConditionalGeneration: 4 kv heads of 256, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3_5MoeForConditionalGeneration: 2 kv heads of 256, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3_5ForCausalLM: 4 kv heads of 256, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3_5MoeForCausalLM: 2 kv heads of 256, 32768 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Ministral3ForCausalLM: 8 kv heads of 128, 262144 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        SeedOssForCausalLM: 8 kv heads of 128, 524288 positions, window 0, eps 1e-6, bf16, stop [2], bos Some(0)
        GraniteSWAForCausalLM: 4 kv heads of 4, 8192 positions, window 0, eps 1e-5, bf16, stop [100257], bos Some(100257)
        Olmo3ForCausalLM: 32 kv heads of 4, 2048 positions, window 4096, eps 1e-5, bf16, stop [50279], bos None
        Exaone4ForCausalLM: 32 kv heads of 4, 2048 positions, window 4096, eps 1e-5, bf16, stop [2], bos Some(0)
        ExaoneMoeForCausalLM: 32 kv heads of 4, 2048 positions, window 4096, eps 1e-5, bf16, stop [53], bos Some(1)
        ExaoneMoEForCausalLM: 32 kv heads of 4, 2048 positions, window 4096, eps 1e-5, bf16, stop [53], bos Some(1)
        GlmForCausalLM: 2 kv heads of 128, 131072 positions, window 0, eps 1.5625e-7, bf16, stop [], bos None
        Glm4ForCausalLM: 2 kv heads of 128, 131072 positions, window 0, eps 1.5625e-7, bf16, stop [], bos None
        Ernie4_5ForCausalLM: 2 kv heads of 128, 131072 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Ernie4_5_MoeForCausalLM: 4 kv heads of 4, 131072 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        HunYuanDenseV1ForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        HunYuanMoEV1ForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Dots1ForCausalLM: 32 kv heads of 4, 2048 positions, window 0, eps 1e-6, bf16, stop [], bos None
        SolarOpenForCausalLM: 8 kv heads of 128, 131072 positions, window 0, eps 1e-5, bf16, stop [], bos None
        HYV3ForCausalLM: 8 kv heads of 128, 131072 positions, window 0, eps 1e-5, bf16, stop [], bos None
        MiniMaxM2ForCausalLM: 8 kv heads of 128, 196608 positions, window 0, eps 1e-6, bf16, stop [200020], bos Some(200034)
        MiniMaxM3SparseForCausalLM: 4 kv heads of 128, 524288 positions, window 0, eps 1e-6, bf16, stop [200020], bos Some(200034)
        MiniMaxM3SparseForConditionalGeneration: 4 kv heads of 128, 524288 positions, window 0, eps 1e-6, bf16, stop [200020], bos Some(200034)
        Qwen3VLForConditionalGeneration: 32 kv heads of 128, 128000 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Qwen3VLMoeForConditionalGeneration: 16 kv heads of 4, 128000 positions, window 0, eps 1e-6, bf16, stop [], bos None
        Cohere2ForCausalLM: 32 kv heads of 4, 8192 positions, window 4096, eps 1e-5, bf16, stop [255001], bos Some(5)
        Lfm2ForCausalLM: 8 kv heads of 4, 128000 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Lfm2MoeForCausalLM: 8 kv heads of 4, 128000 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        MiMoV2FlashForCausalLM: 4 kv heads of 192, 131072 positions, window 0, eps 1e-5, bf16, stop [], bos Some(1)
        BailingMoeV2ForCausalLM: 32 kv heads of 4, 16384 positions, window 0, eps 1e-5, bf16, stop [], bos None
        Llama4ForCausalLM: 8 kv heads of 128, 131072 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Llama4ForConditionalGeneration: 8 kv heads of 128, 131072 positions, window 0, eps 1e-5, bf16, stop [2], bos Some(1)
        Step3p5ForCausalLM: 8 kv heads of 128, 128000 positions, window 0, eps 1e-5, bf16, stop [], bos None
        Step3p7ForConditionalGeneration: 8 kv heads of 128, 128000 positions, window 0, eps 1e-5, bf16, stop [], bos None
        ");
    }

    /// Windows and embeddings by layer, as families of 2025 and 2026 have them.
    #[test]
    fn embeddings_of_some_layers() {
        let of = |patch: Value| {
            let config = read(patch);
            let layers = config.layers.iter().filter_map(|layer| layer.half::<Attention>());
            layers.map(|own| (own.window, own.rope)).collect::<Vec<_>>()
        };
        let exaone = |window: Value| {
            let all = json!({ "architectures": ["Exaone4ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 8 });
            let text = config(all).replace("\"sliding_window\":8", &format!("\"sliding_window\":{window}"));
            let config = Config::parse(&text, None).expect("a good configuration");
            let layers = config.layers.iter().filter_map(|layer| layer.half::<Attention>());
            layers.map(|own| (own.window, own.rope)).collect::<Vec<_>>()
        };
        let turned = Some(0);
        assert_eq!(exaone(json!(8)), vec![(8, turned), (8, turned), (8, turned), (0, None)]);
        assert_eq!(exaone(json!(null)), vec![(0, turned); 4]);
        // As released: a pattern in letters beside the list of layers.
        let listed = json!({
            "architectures": ["Exaone4ForCausalLM"], "num_hidden_layers": 2, "sliding_window_pattern": "LLLG",
            "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8,
        });
        assert_eq!(of(listed), [(0, None), (8, turned)]);
        let granite = json!({
            "architectures": ["GraniteSWAForCausalLM"], "num_hidden_layers": 5, "layer_rope_theta": [2e4, 1e4, 0, 2e4, 1e4],
        });
        let bases = read(granite.clone()).ropes.iter().map(|rope| rope.freqs.theta).collect::<Vec<_>>();
        assert_eq!(bases, [2e4, 1e4]);
        assert_eq!(of(granite), [(0, Some(0)), (128, Some(1)), (128, None), (128, Some(0)), (0, Some(1))]);
        let few =
            json!({ "architectures": ["GraniteSWAForCausalLM"], "num_hidden_layers": 2, "layer_rope_theta": [1e4] });
        insta::assert_snapshot!(fault(few), @"[config::value] config.json: layer_rope_theta: lists 1 layers, num_hidden_layers is 2");
    }

    #[test]
    fn parts_of_heads_and_larger_bases() {
        let minimax = read(json!({ "architectures": ["MiniMaxM2ForCausalLM"], "head_dim": 32, "rotary_dim": 16 }));
        assert_eq!(minimax.ropes[0].freqs.dim, 16);
        let alpha = json!({ "type": "dynamic", "alpha": 1000.0, "factor": 1.0 });
        let hunyuan = read(json!({
            "architectures": ["HunYuanDenseV1ForCausalLM"], "head_dim": 128, "rope_theta": 1e4, "rope_scaling": alpha,
        }));
        let base = 1e4 * 1000f64.powf(128.0 / 126.0);
        assert!((hunyuan.ropes[0].freqs.theta / base - 1.0).abs() < 1e-12);
        assert_eq!(hunyuan.ropes[0].growth(), (0.0, 0));
    }

    /// Heads, embeddings and limits by layer, as a release of Step 3.5 has them: in lists that go
    /// on with layers that draft.
    fn step(patch: Value) -> Value {
        let mut all = json!({
            "architectures": ["Step3p5ForCausalLM"], "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "sliding_window": 8,
            "num_key_value_heads": null, "num_attention_groups": 2, "head_dim": 16, "moe_num_experts": 12, "moe_layers_enum": "1",
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "rope_theta": [5e6, 1e4, 1e4],
            "partial_rotary_factors": [0.5, 1.0, 1.0], "swiglu_limits": [0, 7, 0], "swiglu_limits_shared": [0, 16, 0],
            "attention_other_setting": { "attention_type": "sliding_attention", "num_attention_heads": 6 },
        });
        all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
        all
    }

    #[test]
    fn heads_and_limits_by_layer() {
        let config = read(step(json!({})));
        let heads: Vec<_> = config.layers.iter().filter_map(|layer| layer.half::<Attention>()).collect();
        assert_eq!(
            heads.iter().map(|own| (own.heads, own.kv_heads, own.rope)).collect::<Vec<_>>(),
            [(4, 2, Some(0)), (6, 2, Some(1))]
        );
        let turned = config.ropes.iter().map(|rope| (rope.freqs.theta, rope.freqs.dim)).collect::<Vec<_>>();
        assert_eq!(turned, [(5e6, 8), (1e4, 16)]);
        let (dense, experts) = (config.layers[0].half::<Gated>(), config.layers[1].half::<Experts>().expect("experts"));
        assert_eq!(dense.map(|dense| dense.gate), Some(Gate::Plain(Activation::Silu)));
        let limited = |limit| Gate::Limited { activation: Activation::Silu, limit };
        assert_eq!((experts.count, experts.gate), (12, limited(7.0)));
        assert_eq!(
            experts.shared.as_ref().map(|shared| (shared.intermediate, shared.gate)),
            Some((1280, limited(16.0)))
        );
        let saved =
            json!({ "attention_other_setting": null, "per_layer_config": { "0": { "num_attention_heads": 2 } } });
        assert_eq!(attention(&read(step(saved))).heads, 2);
        let faults = [
            json!({ "attention_other_setting": { "num_attention_heads": 6, "num_attention_groups": 3 } }),
            json!({ "attention_other_setting": { "num_attention_heads": 5 } }),
            json!({ "yarn_only_types": ["sliding_attention"] }),
            json!({ "use_rope_layers": [1, 0] }),
            json!({ "swiglu_limits": [7] }),
        ];
        insta::assert_snapshot!(faults.map(|patch| fault(step(patch))).join("\n"), @"
        [config::unsupported] config.json: attention_other_setting.num_attention_groups: 3 in layers with a window, 2 in others, is not supported
        [config::value] config.json: num_sliding_attention_heads: 5 heads of a layer are no multiple of num_key_value_heads, 2
        [config::unsupported] config.json: yarn_only_types: must be full_attention alone
        [config::unsupported] config.json: use_rope_layers: must have no layer without an embedding
        [config::value] config.json: swiglu_limits: lists 1 layers, num_hidden_layers is 2
        ");
    }

    /// The layers that have experts, and lists of equal numbers.
    #[test]
    fn experts_by_types_and_intervals() {
        let sparse =
            |patch: Value| read(patch).layers.iter().map(|layer| layer.half::<Experts>().is_some()).collect::<Vec<_>>();
        let lite = |types: Value| json!({ "architectures": ["HYV3ForCausalLM"], "num_hidden_layers": 3, "mlp_layer_types": types });
        assert_eq!(sparse(lite(json!(["sparse", "dense", "sparse"]))), [true, false, true]);
        assert_eq!(sparse(lite(Value::Null)), [false, true, true]);
        insta::assert_snapshot!(fault(lite(json!(["sparse", "dense", "odd"]))), @r#"
        [config::value] config.json: mlp_layer_types: unknown type of a layer "odd"
          Known types: dense, sparse.
        "#);
        let ernie = json!({
            "architectures": ["Ernie4_5_MoeForCausalLM"], "num_hidden_layers": 6, "moe_layer_start_index": 1,
            "moe_layer_end_index": 4, "moe_layer_interval": 2,
        });
        assert_eq!(sparse(ernie), [false, true, false, true, false, false]);
        let hunyuan = |width: Value| {
            json!({
                "architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": 8, "moe_topk": [2, 2],
                "num_hidden_layers": 2, "num_shared_expert": width,
            })
        };
        let config = read(hunyuan(json!([1, 1])));
        let own = config.layers[0].half::<Experts>().expect("a layer of experts");
        assert_eq!((own.router.chosen, own.shared.as_ref().map(|shared| shared.intermediate)), (2, Some(96)));
        insta::assert_snapshot!(fault(hunyuan(json!([1, 2]))), @"[config::value] config.json: num_shared_expert: must be a whole number from 1 to 1073741824, or a list of equal ones, not [1,2]");
    }

    /// By the fields of the embedding, or where there is none by the family.
    #[test]
    fn growing_queries() {
        let rope = json!({ "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64 });
        let mut grown = rope.clone();
        grown["llama_4_scaling_beta"] = json!(0.2);
        let of = |architecture: &str, rope: Value| {
            let growth = read(json!({ "architectures": [architecture], "rope_parameters": rope })).growth;
            growth.map(|growth| (growth.beta, growth.length, growth.shift))
        };
        let ministral = "Ministral3ForCausalLM";
        assert_eq!(of(ministral, grown.clone()), Some((0.2, 64, 0)));
        assert_eq!(of(ministral, rope), None);
        assert_eq!(of(ministral, Value::Null), Some((0.1, 16_384, 0)));
        assert_eq!(of("Mistral4ForCausalLM", Value::Null), Some((0.1, 8192, 0)));
        assert_eq!(of("LlamaForCausalLM", grown), None);
        let llama4 = read(json!({ "architectures": ["Llama4ForCausalLM"], "floor_scale": 64 })).growth;
        assert_eq!(
            llama4.map(|growth| (growth.beta, growth.length, growth.shift, growth.unturned)),
            Some((0.1, 64, 1, true))
        );
        let plain = json!({ "architectures": ["Llama4ForCausalLM"], "attn_temperature_tuning": false });
        assert_eq!(read(plain).growth, None);
    }

    /// Sequences beyond what is computed are refused where a graph is made.
    #[test]
    fn sequences_up_to_a_length() {
        let mut model = read(json!({ "architectures": ["Llama4ForCausalLM"], "attention_chunk_size": 64 }));
        assert_eq!((model.positions, model.context), (512, 64));
        assert_eq!(model.check_context(), Ok(()));
        model.context = 65;
        let fault = model.check_context().expect_err("too long");
        insta::assert_snapshot!(format!("[{}] {fault}; {}", fault.code, fault.help.as_deref().unwrap_or_default()), @"[config::context] config.json: attention_chunk_size: sequences of 65 tokens: after 64 layers attend within chunks, which is not supported; --context 64 has the model without them.");
        let text = config(json!({ "architectures": ["Llama4ForCausalLM"] })).replacen(
            '{',
            "{\"attention_chunk_size\":null,",
            1,
        );
        assert_eq!(Config::parse(&text, None).expect("a good configuration").context, 512);
    }

    #[test]
    fn the_page_of_models_has_every_architecture() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/models.md");
        let text = std::fs::read_to_string(path).expect("docs/models.md");
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut listed: Vec<&str> = rows.collect();
        let mut known: Vec<&str> = FAMILIES.iter().map(|family| family.architecture).collect();
        listed.sort();
        known.sort();
        assert_eq!(listed, known);
    }

    #[test]
    fn null_is_derived() {
        let text = config(json!({ "architectures": ["Qwen3ForCausalLM"] }));
        let text = text.replace("\"num_key_value_heads\":2", "\"num_key_value_heads\":null,\"head_dim\":null");
        let c = Config::parse(&text, None).expect("a good configuration");
        assert_eq!((attention(&c).kv_heads, attention(&c).head_dim), (4, 16));
    }

    #[test]
    fn no_window_has_three_spellings() {
        for none in [json!(0), json!(-1)] {
            let c = read(json!({ "architectures": ["MistralForCausalLM"], "sliding_window": none }));
            assert_eq!(windows(&c), [0]);
        }
        let text = config(json!({ "architectures": ["MistralForCausalLM"] }));
        let c = Config::parse(&text.replace("{\"arch", "{\"sliding_window\":null,\"arch"), None).expect("good");
        assert_eq!(windows(&c), [0]);
    }

    /// A framework's class has a default under the usual name beside the maker's own. The longest
    /// sequence of a model without rotary embeddings is what its maker says.
    #[test]
    fn makers_names_come_first() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/family-kimilinear");
        let text = std::fs::read_to_string(folder.join("config.json")).expect("a configuration");
        let mut facts: Value = serde_json::from_str(&text).expect("JSON");
        facts["max_position_embeddings"] = json!(4096);
        let positions = |facts: &Value| Config::parse(&facts.to_string(), None).expect("good").positions;
        assert_eq!(positions(&facts), 1 << 20);
        facts["model_max_length"] = Value::Null;
        assert_eq!(positions(&facts), 4096);
        let [mut of_vllm, mut of_sglang] = [(); 2].map(|()| serde_json::Map::new());
        crate::vllm::resolve(&folder, &mut of_vllm).expect("a model");
        crate::sglang::resolve(&folder, &mut of_sglang).expect("a model");
        assert_eq!((&of_vllm["max_model_len"], &of_sglang["context_length"]), (&json!(1 << 20), &json!(1 << 20)));
    }

    #[test]
    fn windows_by_layer() {
        let qwen = |patch: Value| {
            let mut all = json!({
                "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3, "sliding_window": 8,
                "use_sliding_window": true,
            });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            windows(&read(all))
        };
        assert_eq!(qwen(json!({ "max_window_layers": 2 })), [0, 0, 8]);
        assert_eq!(qwen(json!({})), [0, 0, 0], "28 layers without a window by default");
        assert_eq!(qwen(json!({ "use_sliding_window": false, "max_window_layers": 0 })), [0, 0, 0]);
        let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
        assert_eq!(qwen(json!({ "layer_types": types, "max_window_layers": 3 })), [8, 0, 8]);
    }

    #[test]
    fn yarn_scales() {
        let scale = |rope: Value| {
            let mut all = json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128 });
            all.as_object_mut().expect("an object").extend(rope.as_object().expect("an object").clone());
            read(json!({ "rope_parameters": all })).ropes[0].scale
        };
        let plain = 0.1 * 4f64.ln() + 1.0;
        assert_eq!(scale(json!({})), plain);
        assert_eq!(scale(json!({ "factor": null })), plain, "512 positions over 128");
        assert_eq!(scale(json!({ "factor": 0.5 })), 1.0);
        assert_eq!(scale(json!({ "mscale": 2.0 })), plain, "mscale counts with mscale_all_dim only");
        assert_eq!(scale(json!({ "mscale": 1.0, "mscale_all_dim": 1.0 })), 1.0);
        assert_eq!(scale(json!({ "attention_factor": 0.7, "mscale": 1.0, "mscale_all_dim": 2.0 })), 0.7);
    }

    /// Layers with a window have a rotary embedding of their own.
    #[test]
    fn gemma_by_layer() {
        let c = read(json!({
            "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 3, "sliding_window": 8, "sliding_window_pattern": 2,
            "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
        }));
        assert_eq!(windows(&c), [8, 0, 8]);
        let ropes: Vec<_> =
            c.layers.iter().filter_map(|layer| layer.half::<Attention>()).map(|attention| attention.rope).collect();
        assert_eq!(ropes, [Some(1), Some(0), Some(1)]);
        assert_eq!((c.ropes[0].freqs.theta, c.ropes[1].freqs.theta), (1e6, 1e4));
        assert_eq!(c.ropes[1].freqs.scaling, freqs::Scaling::Default);
        assert_eq!((attention(&c).scale, c.scales.embedding), (0.0625, 8.0));
    }

    /// The short factors hold up to the positions that they are for, of all sequences alike.
    #[test]
    fn longrope_follows_the_context() {
        let (short, long) = (vec![1.0; 8], vec![2.0; 8]);
        let rope = json!({ "type": "longrope", "short_factor": short, "long_factor": long });
        let c = read(json!({ "original_max_position_embeddings": 128, "rope_scaling": rope }));
        assert_eq!((c.context, c.reach()), (128, 512));
        assert_eq!(c.ropes[0].scale, (1.0 + 4f64.ln() / 128f64.ln()).sqrt());
        let plain = read(json!({})).ropes[0].freqs(1).inverse();
        let halves: Vec<f64> = plain.iter().map(|f| f / 2.0).collect();
        assert_eq!((c.ropes[0].freqs(128).inverse(), c.ropes[0].freqs(129).inverse()), (plain, halves));
    }

    #[test]
    fn latent_attention() {
        let v3 = |patch: Value| {
            let mut all = json!({ "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 4 });
            all.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
            read(all)
        };
        let c = v3(json!({}));
        let own = latent(&c);
        assert_eq!((own.q_rank, own.kept(), own.nope, own.value, own.in_pairs), (Some(1536), 576, 128, 128, true));
        assert_eq!((own.scale, own.eps, c.ropes[0].freqs.dim), (192f64.powf(-0.5), 1e-6, 64));
        let dense: Vec<bool> = c.layers.iter().map(|l| l.half::<Gated>().is_some()).collect();
        assert_eq!(dense, [true, true, true, false]);
        let experts = c.layers[3].half::<Experts>().expect("a layer of experts");
        let Router { groups, kept, correction, scale, .. } = experts.router;
        assert_eq!((experts.count, groups, kept, correction.is_some(), scale), (256, 8, 4, true, 2.5));
        // As released: what stretches the embedding is in the scale of scores, and not in cosines.
        let yarn = json!({ "type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096 });
        let text = config(
            json!({ "architectures": ["DeepseekV3ForCausalLM"], "rope_scaling": yarn, "rope_interleave": false }),
        );
        let c = Config::parse(&text.replacen('{', "{\"q_lora_rank\":null,", 1), None).expect("a good configuration");
        let stretch = 0.1 * 40f64.ln() + 1.0;
        assert_eq!((latent(&c).q_rank, latent(&c).in_pairs, c.ropes[0].scale), (None, false, 1.0));
        assert!((latent(&c).scale - 192f64.powf(-0.5) * stretch * stretch).abs() < 1e-15);
    }

    #[test]
    fn indexers_of_layers() {
        let of = |architecture: &str, patch: Value| {
            let mut all = json!({ "architectures": [architecture], "num_hidden_layers": 6 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            Config::parse(&config(all), None)
        };
        let letters = |config: Config| -> String {
            let positions = config.layers.iter().filter_map(|layer| layer.half::<Latent>()).map(|l| l.positions);
            positions.map(|positions| if positions == Positions::Shared { 'S' } else { 'F' }).collect()
        };
        let glm = |patch: Value| of("GlmMoeDsaForCausalLM", patch).map(letters).map_err(|fault| fault.to_string());
        assert_eq!(glm(json!({})), Ok("FFFFFF".into()));
        assert_eq!(glm(json!({ "index_topk_freq": 2 })), Ok("FFSFSF".into()));
        assert_eq!(glm(json!({ "index_topk_freq": 3, "index_skip_topk_offset": 1 })), Ok("FSSFSS".into()));
        assert_eq!(glm(json!({ "index_topk_pattern": "FFSSSF" })), Ok("FFSSSF".into()));
        let listed = ["full", "shared", "shared", "full", "shared", "full"];
        assert_eq!(glm(json!({ "indexer_types": listed, "index_topk_pattern": "FFFFFF" })), Ok("FSSFSF".into()));
        let fault = |patch: Value| glm(patch).expect_err("a fault");
        assert_eq!(
            fault(json!({ "index_topk_pattern": "FF" })),
            "config.json: index_topk_pattern: lists 2 layers, num_hidden_layers is 6"
        );
        let first =
            "config.json: index_topk_pattern: the first layer has no layer below that it could share positions with";
        assert_eq!(fault(json!({ "index_topk_pattern": "SFFFFF" })), first);
        let unknown = "config.json: index_topk_pattern: \"X\" is neither full nor shared";
        assert_eq!(fault(json!({ "index_topk_pattern": "FFXFFF" })), unknown);
        let whole = "config.json: q_lora_rank: null: an indexer takes its queries from the short row of queries";
        let text = config(json!({ "architectures": ["GlmMoeDsaForCausalLM"] }));
        let text = text.replacen('{', "{\"q_lora_rank\":null,", 1);
        assert_eq!(Config::parse(&text, None).map(drop).map_err(|fault| fault.to_string()), Err(whole.into()));
        // DeepSeek turns halves, and GLM neighbours, unless a field says otherwise.
        let indexer = |architecture: &str, patch: Value| {
            let config = of(architecture, patch).expect("a good configuration");
            let Positions::Chosen(indexer) = latent(&config).positions else { panic!("no indexer") };
            (indexer.heads, indexer.dim, indexer.most, indexer.in_pairs)
        };
        assert_eq!(indexer("DeepseekV32ForCausalLM", json!({})), (64, 128, 2048, false));
        assert_eq!(indexer("GlmMoeDsaForCausalLM", json!({})), (32, 128, 2048, true));
        let turned = json!({ "indexer_rope_interleave": true, "index_topk": 512 });
        assert_eq!(indexer("DeepseekV32ForCausalLM", turned), (64, 128, 512, true));
        let words = ["dense", "sparse", "dense", "sparse", "sparse", "sparse"];
        let config = of("DeepseekV32ForCausalLM", json!({ "mlp_layer_types": words })).expect("a good configuration");
        let dense: Vec<bool> = config.layers.iter().map(|layer| layer.half::<Gated>().is_some()).collect();
        assert_eq!(dense, [true, false, true, false, false, false]);
    }

    /// Each layer has the mixer that is listed for it, whatever the others attend over. No family
    /// has both kinds yet.
    #[test]
    fn latent_attention_beside_a_delta_rule() {
        let of = |name: &str| FAMILIES.iter().find(|family| family.architecture == name).expect("a family");
        let family = Family { delta: of("Qwen3NextForCausalLM").delta, ..*of("DeepseekV3ForCausalLM") };
        let text = config(json!({ "layer_types": ["linear_attention", "full_attention", "linear_attention"] }));
        let map = fields::parse("config.json", &text).expect("JSON");
        let read = model::mixers(&fields::Fields::new("config.json", &map), &family, (64, 3, 512), None);
        let (mixers, behind, ropes) = read.expect("a good configuration");
        let kinds: Vec<&str> = mixers
            .iter()
            .map(|mixers| match &mixers[0] {
                Kind::Attention(_) => "heads",
                Kind::Latent(_) => "latent",
                Kind::Pooled(_) => "pooled",
                Kind::Delta(_) | Kind::ShortConv(_) | Kind::Ssm(_) => "delta",
                Kind::Gated(_) | Kind::Experts(_) | Kind::OwnRow(_) => "no mixer",
            })
            .collect();
        assert_eq!((kinds, ropes.len()), (vec!["delta", "latent", "delta"], 1));
        assert!(matches!(behind, Kind::Latent(_)));
    }

    /// Releases have fields for layers without a window; transformers writes these layers one by
    /// one.
    #[test]
    fn layers_of_two_head_sizes() {
        let of = |architecture: &str, patch: Value| {
            let mut all = json!({
                "architectures": [architecture], "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
                "num_hidden_layers": 6, "sliding_window": 8, "hidden_size_per_layer_input": 0,
            });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            Config::parse(&config(all), None)
        };
        let read = |patch: Value| of("Gemma4ForCausalLM", patch).expect("a good configuration");
        let released =
            read(json!({ "attention_k_eq_v": true, "global_head_dim": 32, "num_global_key_value_heads": 2 }));
        let single = json!({ "5": { "head_dim": 32, "num_key_value_heads": 2 } });
        let saved = read(json!({ "attention_k_eq_v": true, "per_layer_config": single }));
        assert_eq!(saved, released);
        let kinds = |c: &Config| {
            let of = |layer: &Layer| {
                let attention = layer.half::<Attention>().expect("attention");
                (attention.window, attention.kv_heads, attention.head_dim, attention.keys_as_values, attention.shared)
            };
            c.layers.iter().map(of).collect::<Vec<_>>()
        };
        let windows = [(8, 4, 16, false, None); 5];
        assert_eq!(kinds(&released), [&windows[..], &[(0, 2, 32, true, None)]].concat());
        assert_eq!([released.ropes[0].freqs.dim, released.ropes[1].freqs.dim], [32, 16]);
        let zeros = released.ropes[0].freqs.inverse().iter().filter(|f| **f == 0.0).count();
        assert_eq!(zeros, 12);
        // Without keys as values layers have as many heads as the others.
        let plain = read(json!({ "global_head_dim": 32, "num_global_key_value_heads": 2 }));
        assert_eq!(kinds(&plain)[5], (0, 4, 32, false, None));
        // The last layer never has a window.
        let types = json!([
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention"
        ]);
        let shared = read(json!({ "layer_types": types, "num_kv_shared_layers": 2, "use_double_wide_mlp": true }));
        let of: Vec<_> = kinds(&shared).into_iter().map(|(window, .., shared)| (window, shared)).collect();
        assert_eq!(of, [(8, None), (0, None), (8, None), (0, None), (8, Some(2)), (0, Some(3))]);
        let widths: Vec<usize> =
            shared.layers.iter().map(|layer| layer.half::<Gated>().expect("an MLP").intermediate).collect();
        assert_eq!(widths[4..], [2 * widths[0]; 2]);
    }

    #[test]
    fn gemma_4_that_is_refused() {
        let of = |patch: Value| {
            let mut all = json!({ "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 3 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            Config::parse(&config(all), None).expect_err("a fault").to_string()
        };
        assert_eq!(
            of(json!({ "use_bidirectional_attention": "all" })),
            "config.json: use_bidirectional_attention: \"all\" is not supported: it must be null or vision"
        );
        assert_eq!(
            of(json!({ "num_kv_shared_layers": 3 })),
            "config.json: num_kv_shared_layers: 3 layers share keys, but none of the others has layer 0's window"
        );
        assert_eq!(
            of(json!({ "vocab_size_per_layer_input": 3 })),
            "config.json: vocab_size_per_layer_input: 3 is less than vocab_size, 128: tokens without a row are not supported"
        );
        let names = json!({ "architectures": ["Gemma3nForCausalLM"] });
        let fault = Config::parse(&config(names), None).expect_err("an unknown one").to_string();
        assert!(
            fault.starts_with("config.json: architectures: unknown architecture \"Gemma3nForCausalLM\""),
            "{fault}"
        );
    }

    /// Releases list layers from 1 in an object of their own, which transformers writes apart.
    #[test]
    fn decays_of_channels() {
        let of = |patch: Value| {
            let mut all = json!({
                "architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 4, "num_experts": 6,
                "num_experts_per_token": 2, "moe_renormalize": false, "q_lora_rank": null, "mla_use_nope": true,
            });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            read(all)
        };
        let released = of(json!({ "linear_attn_config": {
            "kda_layers": [1, 2, 4], "full_attn_layers": [3], "num_heads": 3, "head_dim": 20, "short_conv_kernel_size": 3,
        } }));
        let (linear, full) = ("linear_attention", "full_attention");
        let saved = of(json!({
            "layer_types": [linear, linear, full, linear], "linear_num_heads": 3, "linear_head_dim": 20,
            "linear_conv_kernel_dim": 3,
        }));
        assert_eq!(released.layers, saved.layers);
        let delta = released.layers[3].half::<Delta>().expect("a layer with a state");
        assert_eq!((delta.key_heads, delta.heads, delta.key_dim, delta.value_dim, delta.conv), (3, 3, 20, 20, 3));
        let latent = released.layers[2].half::<Latent>().expect("latent attention");
        assert_eq!((latent.embedding, latent.q_rank, released.ropes.len()), (None, None, 0));
        let experts = released.layers[1].half::<Experts>().expect("a layer of experts");
        assert_eq!((experts.router.chosen, experts.router.renormalise, experts.router.scale), (2, false, 2.446));
        assert!(of(json!({})).layers[3].half::<Delta>().is_some(), "all but each fourth from 0 on");
    }

    /// Releases and transformers have other names of fields, and transformers another `head_dim`.
    #[test]
    fn decays_that_stay_above_a_number() {
        let of = |architecture: &str, patch: Value| {
            let mut all = json!({
                "architectures": [architecture], "num_hidden_layers": 4, "num_experts": 16, "n_group": 4, "topk_group": 2,
                "qk_rope_head_dim": 16, "first_k_dense_replace": 1,
            });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            Config::parse(&config(all), None)
        };
        let channels = |config: &Config, layer: usize| {
            let delta = config.layers[layer].half::<Delta>().expect("a layer with a state");
            let StoredDelta::ByChannel(channels) = delta.stored else { panic!("{delta:?}") };
            (delta.heads, delta.key_dim, delta.conv, channels.least, channels.outer)
        };
        let released = json!({
            "layer_group_size": 2, "head_dim": 20, "short_conv_kernel_size": 3, "partial_rotary_factor": 0.5,
            "moe_shared_expert_intermediate_size": 768,
        });
        let released = of("BailingMoeV3ForCausalLM", released).expect("a good configuration");
        assert_eq!(channels(&released, 2), (4, 20, 3, Some(-5.0), "o_proj"));
        let attends = released.layers[1].half::<Latent>().expect("latent attention");
        assert_eq!((attends.gated, attends.q_rank, attends.rope), (GatedBy::Heads("g_proj"), None, 16));
        assert_eq!((released.ropes[0].freqs.dim, released.ropes[0].freqs.theta), (16, 6e6));
        let saved = json!({
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"], "head_dim": 16,
            "linear_num_heads": 4, "linear_head_dim": 20, "linear_conv_kernel_dim": 3, "kda_lower_bound": -3,
        });
        let saved = of("BailingHybridForCausalLM", saved).expect("a good configuration");
        assert_eq!(channels(&saved, 3), (4, 20, 3, Some(-3.0), "dense"));
        let plain = of("BailingMoeV3ForCausalLM", json!({ "kda_safe_gate": false })).expect("a good configuration");
        assert_eq!(channels(&plain, 0), (4, 128, 4, None, "o_proj"));
        let each = json!({ "gated_attention_proj_granularity_type": "element_wise", "layer_group_size": 1 });
        let each = of("BailingMoeV3ForCausalLM", each).expect("a good configuration");
        assert_eq!(latent(&each).gated, GatedBy::ElementsOf("g_proj"));
        let fault = |patch| of("BailingMoeV3ForCausalLM", patch).expect_err("a fault").to_string();
        let faults = [
            fault(json!({ "no_kda_lora": false })),
            fault(json!({ "use_mla_nope": true })),
            fault(json!({ "multi_gate": true })),
            fault(json!({ "kda_lower_bound": 5 })),
            fault(json!({ "gated_attention_proj_granularity_type": "token_wise" })),
        ];
        insta::assert_snapshot!(faults.join("\n"), @r#"
        config.json: no_kda_lora: is not supported: it must be null or true
        config.json: use_mla_nope: is not supported: it must be null or false
        config.json: multi_gate: is not supported: it must be null or false
        config.json: kda_lower_bound: must be a number below 0, not 5
        config.json: gated_attention_proj_granularity_type: unknown value "token_wise"
        "#);
    }

    /// Halves of a layer that see the same rows, with a factor for each part.
    #[test]
    fn a_state_space_beside_attention() {
        let of = |patch: Value| {
            let mut all = json!({ "architectures": ["FalconH1ForCausalLM"], "mamba_n_heads": 8, "mamba_d_ssm": 96 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            Config::parse(&config(all), None)
        };
        let read = |patch| of(patch).expect("a good configuration");
        let plain = read(json!({}));
        let kinds = |half: &Half| (half.beside, half.factors, half.norms.0.expect("a norm"));
        let one = [1.0; 2];
        assert_eq!(
            plain.layers[0].halves.iter().map(kinds).collect::<Vec<_>>(),
            [(false, one, "input_layernorm"), (true, one, "input_layernorm"), (false, one, "pre_ff_layernorm")]
        );
        let ssm = plain.layers[0].half::<Ssm>().expect("a state space");
        assert_eq!((ssm.width(), ssm.head_dim, ssm.norm, ssm.factors), (96, 12, GroupNorm::None, [1.0; 5]));
        let c = read(json!({
            "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 3.0, "attention_in_multiplier": 4.0,
            "attention_out_multiplier": 5.0, "mlp_multipliers": [6.0, 7.0], "key_multiplier": 8.0,
            "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0], "embedding_multiplier": 9.0, "lm_head_multiplier": 10.0,
            "mamba_rms_norm": true,
        }));
        let factors: Vec<_> = c.layers[0].halves.iter().map(|half| half.factors).collect();
        assert_eq!(factors, [[2.0, 3.0], [4.0, 5.0], [1.0, 7.0]]);
        assert_eq!((attention(&c).scale, c.scales.embedding, c.scales.logits), (8.0 / 4.0, 9.0, 10.0));
        assert_eq!(c.layers[0].half::<Gated>().expect("an MLP").gate_scale, 6.0);
        let fault = |patch| of(patch).expect_err("a fault").to_string();
        let faults = [
            fault(json!({ "projectors_bias": true })),
            fault(json!({ "mamba_proj_bias": true })),
            fault(json!({ "ssm_multipliers": [1.0] })),
            fault(json!({ "mamba_d_head": 16 })),
        ];
        insta::assert_snapshot!(faults.join("\n"), @r"
        config.json: projectors_bias: is not supported: it must be null or false
        config.json: mamba_proj_bias: is not supported: it must be null or false
        config.json: ssm_multipliers: lists 1 factors and not 5
        config.json: mamba_d_head: 16 elements of 8 heads are not the inner width, 96
        ");
    }

    /// What Kimi-K3 has beyond Kimi-Linear is said by fields, in a part of the whole.
    #[test]
    fn rows_that_are_kept_and_mixed() {
        let of = |patch: Value| {
            let mut all = json!({ "architectures": ["KimiK3ForConditionalGeneration"], "num_experts": 6, "num_experts_per_token": 2 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            read(all)
        };
        let linear = json!({
            "kda_layers": [1], "full_attn_layers": [2], "num_heads": 3, "head_dim": 20, "use_full_rank_gate": true,
            "gate_lower_bound": -5.0,
        });
        let c = of(json!({
            "num_hidden_layers": 2, "linear_attn_config": linear, "attn_res_block_size": 12, "mla_use_output_gate": true,
            "routed_expert_hidden_size": 32, "latent_moe_use_norm": true, "hidden_act": "situ",
            "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "q_lora_rank": 28, "rms_norm_eps": 1e-5,
        }));
        assert_eq!((c.kept_every, c.path), (Some(12), "model.language_model"));
        let StoredDelta::ByChannel(channels) = c.layers[0].half::<Delta>().expect("a state").stored else { panic!() };
        assert_eq!((channels.gate, channels.decay, channels.least), (Product::Whole, Product::Short, Some(-5.0)));
        let latent = c.layers[1].half::<Latent>().expect("latent attention");
        assert_eq!((latent.gated, latent.eps, latent.q_rank), (GatedBy::ElementsOf("g_proj"), 1e-5, Some(28)));
        let experts = c.layers[1].half::<Experts>().expect("experts");
        let short = experts.short.expect("a short row");
        assert_eq!((short.width, short.norm.is_some()), (32, true));
        assert_eq!(experts.gate, Gate::Situ { beta: 4.0, linear: Some(25.0) });
        let plain = of(json!({}));
        assert_eq!(
            (plain.kept_every, plain.layers[0].half::<Gated>().map(|mlp| mlp.gate)),
            (None, Some(Gate::Plain(Activation::Silu)))
        );
    }

    /// The language part of a model has a configuration inside, and says what is around it outside.
    #[test]
    fn a_part_of_a_model() {
        let name = "Qwen3_5MoeForConditionalGeneration";
        let c = read(json!({ "architectures": [name], "norm_topk_prob": false, "linear_conv_kernel_dim": 2 }));
        assert_eq!(c.path, "model.language_model");
        let delta = c.layers[0].half::<Delta>().expect("a layer with a state");
        assert_eq!((delta.conv, delta.stored), (2, StoredDelta::Apart));
        let experts = c.layers[0].half::<Experts>().expect("a layer of experts");
        assert!(experts.router.renormalise && experts.shared_gate);
        let with = |outside: Value| {
            let mut all: Value = serde_json::from_str(&config(json!({ "architectures": [name] }))).expect("JSON");
            all.as_object_mut().expect("an object").extend(outside.as_object().expect("an object").clone());
            Config::parse(&all.to_string(), None)
        };
        let of_head = |tied: bool| with(json!({ "tie_word_embeddings": tied })).expect("a good configuration").tied;
        assert_eq!([true, false].map(of_head), [true, false]);
        assert_eq!(with(json!({ "dtype": "float16" })).expect("a good configuration").dtype, DType::F16);
        let fault = |outside| with(outside).expect_err("a fault").to_string();
        assert_eq!(
            fault(json!({ "text_config": null })),
            "config.json: text_config: is null, where the model needs a value"
        );
        let inside = json!({ "text_config": { "hidden_size": 0, "num_hidden_layers": 1, "vocab_size": 2 } });
        assert!(fault(inside).starts_with("config.json: text_config.hidden_size: must be"));
    }

    #[test]
    fn the_routers_of_deepseek_v2() {
        let router = |patch: Value| {
            let mut all = json!({ "architectures": ["DeepseekV2ForCausalLM"] });
            all.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
            let config = read(all);
            let experts = config.layers[0].half::<Experts>().expect("a layer of experts");
            let Router { groups, kept, correction, renormalise, score, .. } = experts.router;
            (groups, kept, correction.is_some(), renormalise, score)
        };
        assert_eq!(router(json!({ "n_group": 8 })), (1, 1, false, false, Score::Softmax));
        let limited = json!({ "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3 });
        assert_eq!(router(limited), (8, 3, false, false, Score::Softmax));
        let of = |name: &str, value: Value| fault(json!({ "architectures": ["DeepseekV2ForCausalLM"], name: value }));
        let messages = [
            of("topk_method", json!("noaux_tc")),
            of("scoring_func", json!("sigmoid")),
            of("qk_rope_head_dim", json!(6)),
        ];
        insta::assert_snapshot!(messages.join("\n"), @r#"
        [config::value] config.json: topk_method: unknown value "noaux_tc"
          Known: greedy, group_limited_greedy.
        [config::unsupported] config.json: scoring_func: "sigmoid" is not what the architecture has, "softmax"
        [config::value] config.json: qk_rope_head_dim: 6 must be a multiple of 4: pairs of both halves are turned together
        "#);
    }

    #[test]
    fn a_part_rotates_with_default_rope_too() {
        // Gemma 4 has no embedding of that type without a description.
        for family in of_heads().filter(|family| family.attention.global_dim.is_none()) {
            let c =
                read(json!({ "architectures": [family.architecture], "head_dim": 16, "partial_rotary_factor": 0.5 }));
            assert_eq!(c.ropes[0].freqs.dim, 8, "{}", family.architecture);
        }
    }

    #[test]
    fn what_transformers_takes() {
        assert_eq!(read(json!({ "rms_norm_eps": 0 })).eps, 0.0);
        for (name, activation) in [("quick_gelu", Activation::QuickGelu), ("gelu_python", Activation::Gelu)] {
            let layer = &read(json!({ "hidden_act": name })).layers[0];
            assert!(layer.half::<Gated>().is_some_and(|mlp| mlp.gate == Gate::Plain(activation)));
        }
    }

    /// A letter for each layer, or a list of their types.
    #[test]
    fn layers_are_halves_by_a_pattern_or_a_list() {
        let halves = |field: &str, value: Value| {
            let layers = read(json!({ "architectures": ["NemotronHForCausalLM"], field: value })).layers;
            let kind = |layer: &Layer| match (&layer.halves[0].kind, layer.halves.len()) {
                (Kind::Ssm(_), 1) => 'M',
                (Kind::Attention(_), 1) => '*',
                (Kind::Gated(mlp), 1) if mlp.gate == Gate::Alone(Activation::ReluSquared) => '-',
                (Kind::Experts(experts), 1) if experts.gate == Gate::Alone(Activation::ReluSquared) => 'E',
                other => panic!("{other:?}"),
            };
            layers.iter().map(kind).collect::<String>()
        };
        assert_eq!(halves("hybrid_override_pattern", json!("M-*EM")), "M-*EM");
        assert_eq!(halves("layers_block_type", json!(["mamba", "mlp", "attention", "moe"])), "M-*E");
        let fault =
            |value: Value| fault(json!({ "architectures": ["NemotronHForCausalLM"], "layers_block_type": value }));
        insta::assert_snapshot!(fault(json!(["conv"])), @r#"[config::value] config.json: layers_block_type: unknown layer type "conv""#);
        insta::assert_snapshot!(fault(json!([])), @"[config::value] config.json: layers_block_type: names no layer");
        insta::assert_snapshot!(fault(Value::Null), @"[config::missing] config.json: layers_block_type: is missing");
    }

    /// Families name the activation behind the convolution of a state space in different fields.
    #[test]
    fn state_spaces_have_one_activation() {
        let (granite, nemotron) = ("GraniteMoeHybridForCausalLM", "NemotronHForCausalLM");
        let of = |family: &str, field: &str| json!({ "architectures": [family], "layers_block_type": ["mamba"], field: "gelu" });
        insta::assert_snapshot!(fault(of(granite, "hidden_act")), @"[config::unsupported] config.json: hidden_act: is not supported: it must be silu");
        insta::assert_snapshot!(fault(of(nemotron, "mamba_hidden_act")), @"[config::unsupported] config.json: mamba_hidden_act: is not supported: it must be silu");
        read(of(nemotron, "hidden_act"));
    }

    /// The experts of each layer.
    fn experts(config: &Config) -> Vec<Option<&Experts>> {
        config.layers.iter().map(Layer::half).collect()
    }

    fn sparse(patch: Value) -> Vec<bool> {
        experts(&read(patch)).iter().map(Option::is_some).collect()
    }

    #[test]
    fn experts_of_each_family() {
        let facts = |name: &str| {
            let c = read(json!({ "architectures": [name], "num_hidden_layers": 2 }));
            let e = experts(&c)[1].expect("experts").clone();
            let r = &e.router;
            format!(
                "{name}: {} of {}, {} wide, {:?}, {:?}, groups {}/{}, renormalised {}, times {}, biases {} {} {}, \
                 shared {:?}, sinks {}, {} turn, window {:?}",
                r.chosen,
                e.count,
                e.width,
                r.score,
                e.gate,
                r.kept,
                r.groups,
                r.renormalise,
                r.scale,
                r.bias,
                r.correction.is_some(),
                e.bias,
                e.shared.as_ref().map(|shared| shared.intermediate),
                attention(&c).sinks.is_some(),
                c.ropes[0].freqs.dim,
                windows(&c),
            )
        };
        let names = ["Qwen3MoeForCausalLM", "MixtralForCausalLM", "Glm4MoeForCausalLM", "GptOssForCausalLM"];
        insta::assert_snapshot!(names.map(facts).join("\n"), @r"
        Qwen3MoeForCausalLM: 8 of 128, 768 wide, Softmax, Plain(Silu), groups 1/1, renormalised false, times 1, biases false false false, shared None, sinks false, 16 turn, window [0, 0]
        MixtralForCausalLM: 2 of 8, 96 wide, Softmax, Plain(Silu), groups 1/1, renormalised true, times 1, biases false false false, shared None, sinks false, 16 turn, window [0, 0]
        Glm4MoeForCausalLM: 8 of 128, 1408 wide, Sigmoid, Plain(Silu), groups 1/1, renormalised true, times 1, biases false true false, shared Some(1408), sinks false, 8 turn, window [0, 0]
        GptOssForCausalLM: 4 of 128, 96 wide, Chosen, Clamped { alpha: 1.702, limit: 7.0 }, groups 1/1, renormalised false, times 1, biases true false true, shared None, sinks true, 64 turn, window [128, 0]
        ");
    }

    #[test]
    fn layers_that_have_experts() {
        let qwen = |patch: Value| {
            let mut all = json!({ "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 5 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            sparse(all)
        };
        assert_eq!(qwen(json!({})), [true; 5]);
        assert_eq!(qwen(json!({ "mlp_only_layers": [0, 3] })), [false, true, true, false, true]);
        assert_eq!(qwen(json!({ "decoder_sparse_step": 2 })), [false, true, false, true, false]);
        let glm = |first| {
            sparse(
                json!({ "architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": 3, "first_k_dense_replace": first }),
            )
        };
        assert_eq!(glm(json!(null)), [false, true, true]);
        assert_eq!(
            (glm(json!(0)), glm(json!(2)), glm(json!(9))),
            (vec![true; 3], vec![false, false, true], vec![false; 3])
        );
        // Two names of one field.
        for name in ["num_experts", "num_local_experts"] {
            let c = read(json!({ "architectures": ["Qwen3MoeForCausalLM"], name: 9 }));
            assert_eq!(experts(&c)[0].expect("experts").count, 9);
        }
    }

    #[test]
    fn gpt_oss_stretches_its_embedding() {
        let c = read(json!({ "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 3 }));
        assert_eq!((windows(&c), attention(&c).qkv_bias, attention(&c).o_bias), (vec![128, 0, 128], true, true));
        let freqs::Scaling::Yarn { factor, original, truncate, .. } = c.ropes[0].freqs.scaling else { panic!("yarn") };
        assert_eq!((factor, original, truncate, c.ropes[0].freqs.theta), (32.0, 4096, false, 150_000.0));
        assert!((c.ropes[0].scale - 1.346_573_590_279_972_6).abs() < 1e-12);
        let plain = json!({ "architectures": ["GptOssForCausalLM"], "rope_parameters": { "rope_type": "default" } });
        assert_eq!((read(plain.clone()).ropes[0].scale, read(plain).ropes[0].freqs.theta), (1.0, 150_000.0));
    }

    #[test]
    fn dtypes_and_stops() {
        assert_eq!(read(json!({ "dtype": null, "torch_dtype": "float16" })).dtype, DType::F16);
        let stops = |eos: Value, generation: &str| {
            Config::parse(&config(json!({ "eos_token_id": eos })), Some(generation)).expect("good").stop
        };
        assert_eq!(stops(json!(7), r#"{"eos_token_id": [7, 3]}"#), [3, 7]);
        assert_eq!(stops(json!([9, 8]), "{}"), [8, 9]);
        assert_eq!(stops(json!(-1), r#"{"eos_token_id": null}"#), [] as [u32; 0]);
    }
}

mod errors {
    use super::*;
    use std::path::Path;

    #[test]
    fn no_json() {
        insta::assert_snapshot!(fault_in("{\"hidden_size\": "), @"[config::json] config.json: is not JSON: EOF while parsing a value at line 1 column 16");
        insta::assert_snapshot!(fault_in("[1]"), @"[config::json] config.json: must be an object, not [1]");
        insta::assert_snapshot!(fault_in("{\"rms_norm_eps\": 1Infinity}"), @"[config::json] config.json: is not JSON: expected `,` or `}` at line 1 column 19");
        insta::assert_snapshot!(fault_in("{\"rms_norm_eps\": 1e999}"), @"[config::json] config.json: is not JSON: number out of range at line 1 column 22");
    }

    /// Python writes them, and readers in Python take them.
    #[test]
    fn numbers_that_are_not_finite() {
        let with = |name: &str, value: &str| {
            let text = config(json!({ "time_step_limit": [0.0, 1.0], name: "VALUE" }));
            text.replace("\"VALUE\"", value).replace("1.0", "Infinity")
        };
        let plain = read(json!({ "_name": "\\\"NaN: -Infinity" }));
        for value in ["NaN", "Infinity", "-Infinity", "[NaN,Infinity]", "\"\\\"NaN: -Infinity\""] {
            assert_eq!(Config::parse(&with("_name", value), None).as_ref(), Ok(&plain), "{value}");
        }
        let fault = |value| fault_in(&with("rms_norm_eps", value));
        insta::assert_snapshot!(fault("NaN"), @"[config::value] config.json: rms_norm_eps: must be a number of at least 0, not NaN");
        insta::assert_snapshot!(fault("-Infinity"), @"[config::value] config.json: rms_norm_eps: must be a number of at least 0, not -Infinity");
        insta::assert_snapshot!(fault_in(&with("hidden_act", "Infinity")), @r#"
        [config::value] config.json: hidden_act: unknown value "Infinity"
          Known: silu, swish, gelu, gelu_python, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu, relu2.
        "#);
    }

    #[test]
    fn no_file() {
        let d = crate::read(Path::new("/nowhere/config.json")).expect_err("no such file");
        insta::assert_snapshot!(format!("[{}] {d}", d.code), @"[config::read] /nowhere/config.json: cannot be read: No such file or directory (os error 2)");
    }

    #[test]
    fn architecture() {
        insta::assert_snapshot!(fault(json!({ "architectures": ["GPT2LMHeadModel"] })), @r#"
        [config::unknown-architecture] config.json: architectures: unknown architecture "GPT2LMHeadModel"
          Known architectures: LlamaForCausalLM, …
        "#);
        insta::assert_snapshot!(fault(json!({ "architectures": null })), @r"
        [config::missing] config.json: architectures: is missing
          Known architectures: LlamaForCausalLM, …
        ");
        insta::assert_snapshot!(fault(json!({ "architectures": "LlamaForCausalLM" })), @r#"[config::value] config.json: architectures: must be a list of texts, not the text "LlamaForCausalLM""#);
        insta::assert_snapshot!(fault(json!({ "quantization_config": {} })), @"[config::missing] config.json: quantization_config.quant_method: is missing");
    }

    #[test]
    fn sizes() {
        let absurd =
            [json!(0), json!(-3), json!(2.5), json!("64"), json!(true), json!(1u64 << 31), json!(1e30), json!([64])];
        insta::assert_snapshot!(faults("hidden_size", &absurd), @r#"
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not -3
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not 2.5
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not the text "64"
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not true
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not 2147483648
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not 1e+30
        [config::value] config.json: hidden_size: must be a whole number from 1 to 1073741824, not [64]
        "#);
        let names = [
            "vocab_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ];
        let zeros: Vec<_> = names.iter().map(|n| fault(json!({ *n: 0 }))).collect();
        insta::assert_snapshot!(zeros.join("\n"), @"
        [config::value] config.json: vocab_size: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: intermediate_size: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: num_hidden_layers: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: num_attention_heads: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: num_key_value_heads: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: head_dim: must be a whole number from 1 to 1073741824, not 0
        [config::value] config.json: max_position_embeddings: must be a whole number from 1 to 1073741824, not 0
        ");
        let missing: Vec<_> = names[..4].iter().map(|n| fault(json!({ *n: null }))).collect();
        insta::assert_snapshot!(missing.join("\n"), @"
        [config::missing] config.json: vocab_size: is missing
        [config::missing] config.json: intermediate_size: is missing
        [config::missing] config.json: num_hidden_layers: is missing
        [config::missing] config.json: num_attention_heads: is missing
        ");
        insta::assert_snapshot!(fault(json!({ "num_hidden_layers": 1_000_000 })), @"[config::too-large] config.json: num_hidden_layers: must be at most 4096, not 1000000");
    }

    #[test]
    fn heads() {
        insta::assert_snapshot!(fault(json!({ "num_key_value_heads": 3 })), @"[config::value] config.json: num_key_value_heads: num_attention_heads, 4, is no multiple of 3");
        insta::assert_snapshot!(fault(json!({ "hidden_size": 66 })), @"[config::value] config.json: hidden_size: 66 is no multiple of num_attention_heads, 4, and there is no head_dim");
        insta::assert_snapshot!(fault(json!({ "hidden_size": 60 })), @"[config::rotary-dim] config.json: head_dim: 15 of the 15 elements of a head rotate: must be even, above 0 and no more");
    }

    #[test]
    fn too_large() {
        insta::assert_snapshot!(fault(json!({ "vocab_size": 1 << 30 })), @"
        [config::too-large] config.json: vocab_size: makes a weight of 1073741824 by 64 elements, 128 GiB
          A weight may have 64 GiB at most.
        ");
        insta::assert_snapshot!(fault(json!({ "intermediate_size": 1 << 30 })), @"
        [config::too-large] config.json: intermediate_size: makes a weight of 1073741824 by 64 elements, 128 GiB
          A weight may have 64 GiB at most.
        ");
        insta::assert_snapshot!(fault(json!({ "head_dim": 1 << 30 })), @"[config::too-large] config.json: head_dim: must be at most 1024, not 1073741824");
        insta::assert_snapshot!(fault(json!({ "num_attention_heads": 1 << 30, "head_dim": 128 })), @"
        [config::too-large] config.json: num_attention_heads: makes a weight of 137438953472 by 64 elements, 16384 GiB
          A weight may have 64 GiB at most.
        ");
    }

    /// What transformers makes nothing of, and what it takes for something.
    #[test]
    fn nulls() {
        let with = |architecture: &str, field: &str, value: &str| {
            let text = config(json!({ "architectures": [architecture], field: null }));
            Config::parse(&text.replacen('{', &format!("{{\"{field}\":{value},"), 1), None)
        };
        for (architecture, field) in [
            ("LlamaForCausalLM", "vocab_size"),
            ("LlamaForCausalLM", "hidden_size"),
            ("LlamaForCausalLM", "num_hidden_layers"),
            ("Qwen3ForCausalLM", "max_position_embeddings"),
            ("Gemma3ForCausalLM", "num_attention_heads"),
            ("LlamaForCausalLM", "rms_norm_eps"),
            ("LlamaForCausalLM", "rope_theta"),
            ("Gemma3ForCausalLM", "rope_local_base_freq"),
            ("Gemma3ForCausalLM", "sliding_window_pattern"),
            ("Phi3ForCausalLM", "partial_rotary_factor"),
            ("SmolLM3ForCausalLM", "no_rope_layer_interval"),
            ("GraniteForCausalLM", "residual_multiplier"),
            ("Qwen3MoeForCausalLM", "num_experts"),
            ("Qwen3MoeForCausalLM", "moe_intermediate_size"),
            ("Qwen3MoeForCausalLM", "num_experts_per_tok"),
            ("Qwen3MoeForCausalLM", "decoder_sparse_step"),
            ("DeepseekV3ForCausalLM", "kv_lora_rank"),
            ("DeepseekV3ForCausalLM", "first_k_dense_replace"),
            ("DeepseekV3ForCausalLM", "routed_scaling_factor"),
            ("Qwen3NextForCausalLM", "linear_num_key_heads"),
        ] {
            let fault = with(architecture, field, "null").expect_err(field).to_string();
            assert_eq!(
                fault,
                format!("config.json: {field}: is null, where the model needs a value"),
                "{architecture}"
            );
        }
        for (architecture, field) in [
            ("LlamaForCausalLM", "attention_bias"),
            ("LlamaForCausalLM", "head_dim"),
            ("LlamaForCausalLM", "num_key_value_heads"),
            ("LlamaForCausalLM", "rope_scaling"),
            ("MistralForCausalLM", "sliding_window"),
            ("Qwen3MoeForCausalLM", "mlp_only_layers"),
            ("DeepseekV3ForCausalLM", "q_lora_rank"),
        ] {
            with(architecture, field, "null").unwrap_or_else(|fault| panic!("{architecture}, {field}: {fault}"));
        }
    }

    #[test]
    fn numbers_that_f32_does_not_hold() {
        let granite = |name: &str, value: f64| {
            let text = config(json!({ "architectures": ["GraniteForCausalLM"], name: value }));
            Config::parse(&text, None).map(drop).map_err(|fault| fault.to_string())
        };
        let names = [
            "embedding_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "attention_multiplier",
            "rope_theta",
            "rms_norm_eps",
        ];
        for name in names {
            for (value, shown) in [(1e39, "1e39"), (1e300, "1e300"), (1e-39, "1e-39"), (1e-300, "1e-300")] {
                let between = "is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are";
                assert_eq!(granite(name, value), Err(format!("config.json: {name}: {shown} {between}")));
            }
            granite(name, 1.5).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        }
        granite("rms_norm_eps", 0.0).expect("no epsilon");
    }

    #[test]
    fn numbers_and_flags() {
        insta::assert_snapshot!(faults("rms_norm_eps", &[json!(-1e-6), json!("small")]), @r#"
        [config::value] config.json: rms_norm_eps: must be a number of at least 0, not -1e-6
        [config::value] config.json: rms_norm_eps: must be a number of at least 0, not the text "small"
        "#);
        insta::assert_snapshot!(faults("rope_theta", &[json!(0), json!(-1), json!(false)]), @"
        [config::value] config.json: rope_theta: must be a number above 0, not 0
        [config::value] config.json: rope_theta: must be a number above 0, not -1
        [config::value] config.json: rope_theta: must be a number above 0, not false
        ");
        insta::assert_snapshot!(faults("tie_word_embeddings", &[json!(1), json!("no")]), @r#"
        [config::value] config.json: tie_word_embeddings: must be true or false, not 1
        [config::value] config.json: tie_word_embeddings: must be true or false, not the text "no"
        "#);
        insta::assert_snapshot!(faults("attention_bias", &[json!({})]), @"[config::value] config.json: attention_bias: must be true or false, not an object");
        insta::assert_snapshot!(faults("eos_token_id", &[json!(-2), json!("</s>"), json!([1, 2.5])]), @r#"
        [config::value] config.json: eos_token_id: must be a token id or a list of token ids, not -2
        [config::value] config.json: eos_token_id: must be a token id or a list of token ids, not the text "</s>"
        [config::value] config.json: eos_token_id: must be a token id or a list of token ids, not [1,2.5]
        "#);
    }

    #[test]
    fn names() {
        insta::assert_snapshot!(fault(json!({ "hidden_act": "mish" })), @r#"
        [config::value] config.json: hidden_act: unknown value "mish"
          Known: silu, swish, gelu, gelu_python, gelu_new, gelu_fast, gelu_pytorch_tanh, quick_gelu, relu, relu2.
        "#);
        let null = config(json!({})).replace("{\"arch", "{\"hidden_act\":null,\"arch");
        insta::assert_snapshot!(fault_in(&null), @"[config::value] config.json: hidden_act: must be a text, not null");
        insta::assert_snapshot!(fault(json!({ "dtype": "float8_e4m3fn" })), @r#"
        [config::value] config.json: dtype: unknown value "float8_e4m3fn"
          Known: bfloat16, float16, float32.
        "#);
    }

    #[test]
    fn windows() {
        let qwen = |name: &str, value: Value| {
            fault(json!({ "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, name: value }))
        };
        insta::assert_snapshot!(qwen("sliding_window", json!(-2)), @"[config::value] config.json: sliding_window: must be null, -1 or a whole number up to 1073741824, not -2");
        insta::assert_snapshot!(qwen("layer_types", json!(["full_attention", "full_attention"])), @"[config::value] config.json: layer_types: lists 2 layers, num_hidden_layers is 1");
        insta::assert_snapshot!(qwen("layer_types", json!(["chunked_attention"])), @r#"
        [config::value] config.json: layer_types: unknown layer type "chunked_attention"
          Known layer types: full_attention, sliding_attention.
        "#);
        let sliding = json!({ "layer_types": ["sliding_attention"], "architectures": ["Qwen3ForCausalLM"] });
        insta::assert_snapshot!(fault(sliding), @"
        [config::value] config.json: layer_types: lists sliding_attention, but the model has no window
          A window is a sliding_window, and use_sliding_window true.
        ");
        insta::assert_snapshot!(qwen("layer_types", json!([1])), @"[config::value] config.json: layer_types: must be a list of texts, not [1]");
    }

    #[test]
    fn rope() {
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "ntk" })), @r#"
        [config::unknown-rope-type] config.json: rope_parameters.rope_type: unknown rope type "ntk" in `rope_parameters`
          Known rope types: default, linear, dynamic, llama3, yarn, longrope, proportional.
        "#);
        insta::assert_snapshot!(fault(json!({ "rope_scaling": { "type": "ntk" } })), @r#"
        [config::unknown-rope-type] config.json: rope_scaling.type: unknown rope type "ntk" in `rope_scaling`
          Known rope types: default, linear, dynamic, llama3, yarn, longrope, proportional.
        "#);
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": 3 })), @"[config::value] config.json: rope_parameters.rope_type: must be a text, not 3");
        insta::assert_snapshot!(rope_fault(json!("llama3")), @r#"[config::value] config.json: rope_parameters: must be an object, not the text "llama3""#);
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "linear" })), @"[config::missing] config.json: rope_parameters.factor: is missing");
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "dynamic", "factor": -2 })), @"[config::value] config.json: rope_parameters.factor: must be a number above 0, not -2");
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0 })), @"[config::missing] config.json: rope_parameters.high_freq_factor: is missing");
        insta::assert_snapshot!(
            rope_fault(json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0 })),
            @"[config::value] config.json: rope_parameters.high_freq_factor: 4 must be above low_freq_factor, 4"
        );
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "yarn", "factor": 4.0, "attention_factor": 0.0 })), @"[config::value] config.json: rope_parameters.attention_factor: must be a number above 0, not 0.0");
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0 })), @"[config::value] config.json: rope_parameters.rope_theta: must be above 1 for yarn, not 1");
        insta::assert_snapshot!(rope_fault(json!({ "full_attention": { "rope_type": "default" } })), @"[config::nested-rope] config.json: rope_parameters.full_attention: one rotary embedding for all layers is supported");
    }

    #[test]
    fn gemma() {
        let gemma = |field: &str, value: Value| fault(json!({ "architectures": ["Gemma3ForCausalLM"], field: value }));
        insta::assert_snapshot!(gemma("rope_parameters", json!({ "rope_theta": 5.0 })), @"[config::nested-rope] config.json: rope_parameters.rope_theta: must be an object: each type of layer has a rotary embedding of its own");
        insta::assert_snapshot!(gemma("attn_logit_softcapping", json!(50.0)), @"[config::unsupported] config.json: attn_logit_softcapping: is not supported: it must be null or false");
        insta::assert_snapshot!(gemma("use_bidirectional_attention", json!(true)), @"[config::unsupported] config.json: use_bidirectional_attention: is not supported: it must be null or false");
    }

    #[test]
    fn longrope() {
        let long = |name: &str, value: Value| {
            let factors = json!([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
            let mut rope = json!({ "rope_type": "longrope", "short_factor": factors, "long_factor": factors });
            rope[name] = value;
            rope_fault(rope)
        };
        insta::assert_snapshot!(long("short_factor", json!(null)), @"[config::value] config.json: rope_parameters.short_factor: is null, where the model needs a value");
        insta::assert_snapshot!(long("long_factor", json!([1.0, 2.0])), @"[config::value] config.json: rope_parameters.long_factor: lists 2 factors of 8 frequencies");
        insta::assert_snapshot!(long("long_factor", json!([1.0, 0.0])), @"[config::value] config.json: rope_parameters.long_factor: must be a list of numbers above 0, not [1.0,0.0]");
        insta::assert_snapshot!(long("original_max_position_embeddings", json!(1)), @"[config::value] config.json: rope_parameters.original_max_position_embeddings: multiplies cosines and sines with inf, which is not finite in f32");
    }

    #[test]
    fn rope_that_is_not_finite() {
        let yarn = |name: &str, value: f64| {
            rope_fault(
                json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, name: value }),
            )
        };
        insta::assert_snapshot!(yarn("factor", 1e-300), @"[config::value] config.json: rope_parameters.factor: 1e-300 is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are");
        insta::assert_snapshot!(yarn("attention_factor", 1e300), @"[config::value] config.json: rope_parameters.attention_factor: 1e300 is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are");
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "linear", "factor": 1e-300 })), @"[config::value] config.json: rope_parameters.factor: 1e-300 is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are");
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "dynamic", "factor": 1e300 })), @"[config::value] config.json: rope_parameters.factor: 1e300 is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are");
        // Each is a number of f32, and their result is not.
        insta::assert_snapshot!(rope_fault(json!({ "rope_type": "linear", "factor": 1e-30, "rope_theta": 1e-30 })), @"[config::value] config.json: rope_parameters.factor: makes rotary frequencies that are not finite in f32");
        insta::assert_snapshot!(fault(json!({ "rope_theta": 1e-300 })), @"[config::value] config.json: rope_theta: 1e-300 is not between 1.1754944e-38 and 3.4028235e38, as numbers of f32 are");
    }

    #[test]
    fn experts() {
        let glm = |patch: Value| {
            let mut all = json!({ "architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": 2, "n_routed_experts": 12, "num_experts_per_tok": 4 });
            all.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
            fault(all)
        };
        let mixtral = |name: &str, value: Value| fault(json!({ "architectures": ["MixtralForCausalLM"], name: value }));
        let blocks = json!({ "quant_method": "mxfp4" });
        let awq = json!({ "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm" });
        let some = json!({
            "quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.block_sparse_moe.experts.3.w2"],
        });
        let gpt = |config: Value, hidden: usize| {
            fault(
                json!({ "architectures": ["GptOssForCausalLM"], "quantization_config": config, "hidden_size": hidden }),
            )
        };
        let all = [
            mixtral("num_experts_per_tok", json!(9)),
            mixtral("num_local_experts", json!(0)),
            mixtral("num_local_experts", json!(100_000)),
            mixtral("quantization_config", some),
            mixtral("quantization_config", blocks.clone()),
            gpt(awq, 64),
            gpt(blocks, 80),
            glm(json!({ "n_group": 5 })),
            glm(json!({ "n_group": 12 })),
            glm(json!({ "n_group": 4, "topk_group": 5 })),
            glm(json!({ "n_group": 4, "topk_group": 1 })),
            glm(json!({ "first_k_dense_replace": -1 })),
            fault(json!({ "architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": ["one"] })),
        ];
        insta::assert_snapshot!(all.join("\n"), @r#"
        [config::value] config.json: num_experts_per_tok: 9 cannot be chosen of 8 experts (num_local_experts)
        [config::value] config.json: num_local_experts: must be a whole number from 1 to 1073741824, not 0
        [config::too-large] config.json: num_local_experts: must be at most 8192, not 100000
        [config::quantised] config.json: quantization_config: model.layers.0.block_sparse_moe.experts.0.w2 and model.layers.0.block_sparse_moe.experts.3.w2 are quantised in different forms
        [config::quantised] config.json: quantization_config: mxfp4 is a form of GptOssForCausalLM alone
        [config::quantised] config.json: quantization_config: model.layers.0.mlp.experts in this form are not supported
        [config::quantised] config.json: hidden_size: has rows that are no multiple of 32, which share a scale
        [config::value] config.json: n_group: 12 experts are not 5 groups of as many, two or more each
        [config::value] config.json: n_group: 12 experts are not 12 groups of as many, two or more each
        [config::value] config.json: topk_group: 5 of n_group, 4, cannot be kept
        [config::value] config.json: num_experts_per_tok: 4 cannot be chosen of 3 experts (1 groups)
        [config::value] config.json: first_k_dense_replace: must be a whole number up to 1073741824, not -1
        [config::value] config.json: mlp_only_layers: must be a list of whole numbers, not ["one"]
        "#);
    }

    #[test]
    fn rotary_dimension() {
        insta::assert_snapshot!(fault(json!({ "head_dim": 15 })), @"[config::rotary-dim] config.json: head_dim: 15 of the 15 elements of a head rotate: must be even, above 0 and no more");
        insta::assert_snapshot!(fault(json!({ "partial_rotary_factor": 0.2 })), @"[config::rotary-dim] config.json: partial_rotary_factor: 3 of the 16 elements of a head rotate: must be even, above 0 and no more");
        insta::assert_snapshot!(rope_fault(json!({ "partial_rotary_factor": 0.01 })), @"[config::rotary-dim] config.json: rope_parameters.partial_rotary_factor: 0 of the 16 elements of a head rotate: must be even, above 0 and no more");
        insta::assert_snapshot!(rope_fault(json!({ "partial_rotary_factor": 2.0 })), @"[config::rotary-dim] config.json: rope_parameters.partial_rotary_factor: 32 of the 16 elements of a head rotate: must be even, above 0 and no more");
    }

    #[test]
    fn generation_config() {
        let d = Config::parse(&config(json!({})), Some(r#"{"eos_token_id": "end"}"#)).expect_err("a fault");
        insta::assert_snapshot!(d.to_string(), @r#"generation_config.json: eos_token_id: must be a token id or a list of token ids, not the text "end""#);
    }
}

mod comparison {
    use super::*;
    use crate::compare::ELSEWHERE;
    use crate::fields::{self, Fields};

    /// What differs between a model with one patch and a model with another.
    fn between(asked: Value, held: Value) -> Vec<String> {
        differences(&read(asked), &read(held).echo()).iter().map(Difference::to_string).collect()
    }

    fn rope(rope: Value) -> Value {
        json!({ "rope_parameters": rope })
    }

    #[test]
    fn spellings_of_the_same_are_the_same() {
        let same = [
            (json!({}), json!({ "head_dim": 16 })),
            (json!({ "rope_theta": 5e5 }), rope(json!({ "rope_type": "default", "rope_theta": 5e5 }))),
            (json!({}), rope(json!({ "rope_type": "default", "rope_theta": 10_000, "factor": 8.0 }))),
            (
                json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }),
                rope(json!({ "rope_type": "linear", "factor": 2, "rope_theta": 1e4 })),
            ),
            (json!({ "hidden_act": "swish" }), json!({ "rms_norm_eps": 1e-6, "tie_word_embeddings": false })),
            (json!({ "dtype": "float16" }), json!({ "eos_token_id": 9, "bos_token_id": 3, "dtype": "float32" })),
        ];
        for (asked, held) in same {
            assert_eq!(between(asked.clone(), held.clone()), [] as [&str; 0], "{asked} {held}");
        }
    }

    #[test]
    fn differences_name_the_field() {
        let found = [
            between(json!({ "rms_norm_eps": 0.5 }), json!({})),
            between(json!({ "vocab_size": 300 }), json!({})),
            between(json!({ "num_hidden_layers": 2 }), json!({})),
            between(rope(json!({ "rope_type": "linear", "factor": 8.0 })), json!({})),
            between(json!({ "rope_theta": 500 }), json!({})),
            between(
                json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }),
                rope(json!({ "rope_type": "linear", "factor": 4.0 })),
            ),
            between(json!({ "partial_rotary_factor": 0.5 }), json!({})),
            between(json!({ "max_position_embeddings": 1024 }), json!({})),
            between(json!({ "attention_bias": true }), json!({})),
            between(
                json!({ "architectures": ["MistralForCausalLM"], "sliding_window": 64 }),
                json!({ "architectures": ["MistralForCausalLM"] }),
            ),
        ];
        insta::assert_snapshot!(found.map(|lines| lines[0].clone()).join("\n"), @"
        config.json: rms_norm_eps: vLLM has 0.5, the artifact 1e-6
        config.json: vocab_size: vLLM has 300, the artifact 128
        config.json: num_hidden_layers: vLLM has 2, the artifact 1
        config.json: rope_parameters.rope_type: vLLM has linear, the artifact default
        config.json: rope_parameters.rope_theta: vLLM has 500.0, the artifact 10000.0
        config.json: rope_parameters.factor: vLLM has 2.0, the artifact 4.0
        config.json: partial_rotary_factor: elements that rotate: vLLM has 8, the artifact 16
        config.json: max_position_embeddings: vLLM has 1024, the artifact 512
        config.json: attention_bias: vLLM has true, the artifact false
        config.json: sliding_window: vLLM has 64, the artifact 4096
        ");
    }

    /// Another model differs in its architecture first, whatever else it has.
    #[test]
    fn the_architecture_goes_first() {
        let other = json!({
            "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "layer_types": ["sliding_attention"],
        });
        assert!(between(other, json!({}))[0].starts_with("config.json: architectures: vLLM has Qwen2ForCausalLM"));
    }

    /// Each fact is compared, whether this file knows its name or not, unless it is said why not.
    #[test]
    fn no_fact_is_forgotten() {
        let config = read(json!({}));
        let echo = config.echo();
        for fact in echo.as_object().expect("facts").keys().map(String::as_str).chain(["of tomorrow"]) {
            let mut other = echo.clone();
            other[fact] = json!("another");
            let compared = !ELSEWHERE.iter().any(|(name, _)| *name == fact);
            assert_eq!(differences(&config, &other).len(), usize::from(compared), "{fact}");
        }
    }

    /// Whatever field a family reads: if another value makes another model, the models differ in a
    /// fact.
    #[test]
    fn what_is_read_is_noted() {
        let values =
            [json!(1), json!(2), json!(8), json!(0.5), json!(true), json!(false), json!("gelu"), json!("yarn")];
        for family in FAMILIES {
            let mut base = json!({
                "architectures": [family.architecture], "num_hidden_layers": 2, "use_sliding_window": true, "sliding_window": 4,
                "rope_scaling": { "rope_type": "linear", "factor": 3.0 }, "first_k_dense_replace": 1, "num_dense_layers": 1,
                "full_attention_interval": 2, "moe_layers_enum": [1], "o_groups": 2,
                "num_key_value_heads": if family.pooled { 1 } else { 2 },
            });
            if family.only {
                base["layers_block_type"] = json!(["mamba", "moe", "attention", "mlp"]);
            } else if family.ssm.is_some() {
                base["layer_types"] = json!(["mamba", "attention"]);
            } else if matches!(family.delta, Some(delta::Traits::ByChannel(..))) {
                base["layer_types"] = json!(["linear_attention", "full_attention"]);
            }
            let map = fields::parse("config.json", &config(base)).expect("an object");
            let fields = Fields::new("config.json", &map);
            let held = Config::read(&fields, None).expect("a good configuration");
            let mut different = 0;
            for (name, value) in fields.asked().iter().flat_map(|name| values.iter().map(move |value| (name, value))) {
                let mut other = Value::Object(map.clone());
                let path = name.split('.').fold(&mut other, |at, part| &mut at[part]);
                *path = value.clone();
                let Ok(other) = Config::parse(&other.to_string(), None) else { continue };
                let same = Config { facts: held.facts.clone(), ..other.clone() } == held;
                assert_eq!(same, other.echo() == held.echo(), "{}: {name} {value}", family.architecture);
                different += usize::from(!same);
            }
            assert!(different > 20, "{}: {different}", family.architecture);
        }
    }
}
