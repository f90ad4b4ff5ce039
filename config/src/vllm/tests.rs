use super::options::{OTHERS, SPELLINGS, document, flag, names};
use super::*;
use crate::framework::tests::{MODEL, artifact_of, with_experts};
use serde_json::json;

fn refused(options: Value, own: bool) -> Vec<String> {
    refused_by(MODEL, MODEL, options, own)
}

/// The refusals of an artifact of one model for vLLM with another one.
fn refused_by(held: &str, asked: &str, options: Value, own: bool) -> Vec<String> {
    let [held, asked] = [held, asked].map(|text| Config::parse(text, None).expect("a good configuration"));
    let model = held.echo();
    let held = Held { own, ..artifact_of(&model) };
    refusals(&asked, options.as_object().expect("options"), &held)
}

fn arguments(line: &str) -> Map<String, Value> {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    arguments::read(&words).expect("good options")
}

#[test]
fn what_vllm_resolves_by_default_is_harmless() {
    let resolved = json!({
        "runner": "generate", "convert": "auto", "dtype": "torch.bfloat16", "kv_cache_dtype": "auto", "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1, "load_format": "auto", "cpu_offload_gb": 0.0, "block_size": 16, "max_model_len": 512,
        "user_specified_block_size": false, "offload_backend": "auto", "linear_backend": "auto", "kv_cache_dtype_skip_layers": [],
        "max_num_batched_tokens": 8192, "ubatch_size": 0,
    });
    assert_eq!(refused(resolved, true), [] as [&str; 0]);
}

/// What no framework makes for artifacts is refused by the field, in one line.
#[test]
fn models_that_no_framework_runs() {
    let of = |field: &str, value: Value| {
        let mut all = json!({
            "architectures": ["Gemma4ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "vocab_size": 128,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"], "hidden_size_per_layer_input": 0,
        });
        all[field] = value;
        refused_by(&all.to_string(), &all.to_string(), json!({}), true).join("\n")
    };
    let all = [
        of("head_dim", json!(16)),
        of("global_head_dim", json!(32)),
        of("num_kv_shared_layers", json!(1)),
        of("hidden_size_per_layer_input", json!(8)),
    ];
    insta::assert_snapshot!(all.join("\n"), @r"

    config.json: global_head_dim: vLLM has no pages of an artifact's for heads of two sizes: `atomc run` and `atomc serve` run the model
    config.json: num_kv_shared_layers: vLLM has no place for layers that see others' keys: `atomc run` and `atomc serve` run the model
    config.json: hidden_size_per_layer_input: vLLM has no place for rows of layers' own: `atomc run` and `atomc serve` run the model
    ");
}

/// vLLM's options for artifacts with drafts and without.
#[test]
fn guesses() {
    use crate::framework::Guesses;
    let refused = |guesses: Guesses, slots: bool, asked: Value| {
        let config = Config::parse(MODEL, None).expect("a good configuration");
        let model = config.echo();
        let held = Held { guesses, slots, ..artifact_of(&model) };
        let options = json!({ "speculative_config": asked });
        let found = refusals(&config, options.as_object().expect("options"), &held);
        found
            .first()
            .map_or_else(|| "fits".to_owned(), |line| line.split("artifact ").nth(1).unwrap_or(line).to_owned())
    };
    let [none, mtp, head] = [None, Some(false), Some(true)].map(|apart| Guesses::of(3, apart));
    let asks = |method: &str, count: usize| json!({ "method": method, "num_speculative_tokens": count });
    let parallel = json!({ "method": "mtp", "num_speculative_tokens": 2, "parallel_drafting": true });
    let ranks = json!({ "method": "mtp", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 2 });
    let all = [
        refused(mtp, false, asks("mtp", 3)),
        refused(mtp, false, asks("deepseek_mtp", 2)),
        refused(head, false, asks("eagle3", 3)),
        refused(none, false, asks("ngram", 3)),
        refused(none, false, Value::Null),
        refused(mtp, false, Value::Null),
        refused(mtp, false, json!({ "spec_method": "mtp", "spec_tokens": 4 })),
        refused(none, false, asks("mtp", 2)),
        refused(head, false, asks("mtp", 2)),
        refused(mtp, false, asks("eagle", 2)),
        refused(mtp, true, asks("mtp", 2)),
        refused(none, true, asks("ngram", 4)),
        refused(head, false, Value::Null),
        refused(head, false, asks("suffix", 2)),
        refused(mtp, false, parallel),
        refused(mtp, false, ranks),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

/// vLLM names methods by the kernels that it would use.
#[test]
fn methods_of_quantisation() {
    let quantised = MODEL.replace(
        r#""dtype""#,
        r#""quantization_config": { "quant_method": "gptq", "bits": 4, "group_size": 32 }, "dtype""#,
    );
    let asks = |held: &str, asked: &str, quantization: Value| {
        refused_by(held, asked, json!({ "quantization": quantization }), true).join("; ")
    };
    for name in ["gptq", "gptq_marlin", "auto_gptq"] {
        assert_eq!(asks(&quantised, &quantised, json!(name)), "");
    }
    // vLLM writes its own name into the configuration of GPT-OSS.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/moe-gpt-oss-mxfp4/config.json");
    let held = std::fs::read_to_string(path).expect("a configuration");
    let resolved = held.replace(r#""mxfp4""#, r#""gpt_oss_mxfp4""#);
    assert_ne!(resolved, held);
    for name in ["gpt_oss_mxfp4", "mxfp4"] {
        assert_eq!(asks(&held, &resolved, json!(name)), "");
    }
    insta::assert_snapshot!(asks(&held, &resolved, json!("fp8_per_block")), @"--quantization: vLLM has fp8_per_block, the artifact mxfp4");
    insta::assert_snapshot!(asks(&quantised, &quantised, json!("fp8")), @"--quantization: vLLM has fp8, the artifact gptq");
    insta::assert_snapshot!(asks(MODEL, MODEL, json!("fp8")), @"--quantization: vLLM has fp8, the artifact none");
    insta::assert_snapshot!(asks(MODEL, &quantised, json!("gptq")), @"config.json: quantization_config: vLLM has one, the artifact none; --quantization: vLLM has gptq, the artifact none");
    insta::assert_snapshot!(asks(&quantised, &quantised.replace("32", "64"), json!("gptq")), @"config.json: quantization_config.rules.scheme: vLLM has i4 with scales of f16 for groups of 64 columns, stored as GPTQ's words down columns, 1 off zero points, the artifact i4 with scales of f16 for groups of 32 columns, stored as GPTQ's words down columns, 1 off zero points");
}

/// An option that is switched on and not served is refused by its own name.
#[test]
fn refusals_name_the_option_and_the_reason() {
    let options = [
        json!({ "cpu_offload_gb": 2.0 }),
        json!({ "attention_backend": "FLASH_ATTN" }),
        json!({ "kv_sharing_fast_prefill": true }),
        json!({ "load_format": "sharded_state" }),
        json!({ "kv_cache_dtype": "fp8" }),
        json!({ "dtype": "torch.float32" }),
        json!({ "block_size": 16, "user_specified_block_size": true }),
        json!({ "max_model_len": 1024 }),
        json!({ "runner": "pooling" }),
        json!({ "model_impl": "transformers" }),
    ];
    insta::assert_snapshot!(options.map(|o| refused(o, true).join("; ")).join("\n"), @"
    --cpu-offload-gb: vLLM has 2.0, the artifact none: weights stay on the device
    --attention-backend: vLLM has FLASH_ATTN, the artifact none: the artifact attends itself; ATOMC_ATTENTION=vllm lets vLLM's layer attend
    --kv-sharing-fast-prefill: vLLM has true, the artifact none: every layer has pages of its own, and a prompt goes through all
    --load-format: vLLM has sharded_state, the artifact none: its loader does not give tensors by the checkpoint's names
    --kv-cache-dtype: vLLM has fp8, the artifact bfloat16
    --dtype: vLLM has torch.float32, the artifact bfloat16
    --block-size: vLLM has 16, the artifact multiples of 32
    --max-model-len: vLLM has 1024, the artifact at most 512
    --runner: vLLM has pooling, the artifact generate
    --model-impl: vLLM has transformers, the artifact none: another implementation of the model would run, not the artifact
    ");
    for judged in JUDGED.iter().filter(|judged| judged.fate == Fate::Refused) {
        let [line] = &refused(json!({ judged.name: "something" }), true)[..] else { panic!("{} passes", judged.name) };
        assert!(line.starts_with(&format!("{}: vLLM has something", flag(judged.name))), "{line}");
    }
}

/// The sums are the same with whole experts and with parts of them. Memory in other places than
/// those asked for is refused. Without experts the options act on nothing.
#[test]
fn whole_experts() {
    let asks = |model: &str, experts: usize, options: Value| {
        let config = Config::parse(model, None).expect("a good configuration");
        let model = config.echo();
        let held = Held { ranks: 2, experts, ..artifact_of(&model) };
        refusals(&config, options.as_object().expect("options"), &held).join("\n")
    };
    let model = with_experts();
    let spread = json!({ "enable_expert_parallel": true, "data_parallel_size": 1 });
    let further = json!({ "enable_expert_parallel": true, "data_parallel_size": 2 });
    assert_eq!([asks(&model, 2, spread.clone()), asks(&model, 2, json!({ "data_parallel_size": 2 }))], ["", ""]);
    assert_eq!([asks(MODEL, 1, spread.clone()), asks(MODEL, 1, further.clone())], ["", ""]);
    insta::assert_snapshot!(asks(&model, 1, spread), @"--enable-expert-parallel: vLLM has true, the artifact a share of every expert on each rank; `atomc compile --ep 2` gives them whole ones");
    insta::assert_snapshot!(asks(&model, 2, further), @"--data-parallel-size: vLLM has 2, the artifact its experts on the ranks of one step");
}

/// Without an artifact the plugin compiles one that serves the options.
#[test]
fn what_is_compiled_fits() {
    let made = |model: &str, own: bool, options: Value| {
        let config = Config::parse(model, None).expect("a good configuration");
        compile_options(&config, options.as_object().expect("options"), own).join(" ")
    };
    let large = json!({
        "dtype": "torch.bfloat16", "tensor_parallel_size": 2, "enable_expert_parallel": true, "kv_cache_dtype": "fp8",
        "max_num_batched_tokens": 8192, "max_model_len": 512,
    });
    let found = [
        made(&with_experts(), true, large.clone()),
        made(MODEL, true, large.clone()),
        made(MODEL, false, large),
        made(MODEL, true, json!({ "dtype": "half", "max_model_len": 4096 })),
        made(MODEL, true, json!({ "dtype": "auto", "tensor_parallel_size": 1 })),
    ];
    insta::assert_snapshot!(found.join("\n"), @"
    --dtype bfloat16 --tp 2 --ep 2 --cache-dtype fp8
    --dtype bfloat16 --tp 2 --cache-dtype fp8
    --dtype bfloat16 --tp 2 --cache-dtype fp8 --attention own,caller --prefill 8192
    --dtype float16 --context 4096
    ");
}

#[test]
fn where_vllm_attends_it_chooses_how_and_plans_bound_steps() {
    assert_eq!(refused(json!({ "attention_backend": "FLASH_ATTN" }), false), [] as [&str; 0]);
    let found = refused(json!({ "max_num_batched_tokens": 512 }), false);
    assert_eq!(found, ["--max-num-batched-tokens: vLLM has 512, the artifact at most 256"]);
}

#[test]
fn each_option_stands_in_the_table_once() {
    let mut all: Vec<&str> = names().collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(SPELLINGS.iter().all(|(_, name)| JUDGED.iter().any(|judged| judged.name == *name)));
    assert!(OTHERS.iter().all(|(fate, _, _)| matches!(fate, Fate::Acts | Fate::CannotMatter)));
}

/// The document has the table as it is here.
#[test]
fn the_document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/vllm.md");
    let text = std::fs::read_to_string(path).expect("docs/vllm.md");
    assert!(text.contains(&document()), "{path} should have:\n{}", document());
}

#[test]
fn command_lines() {
    let read = arguments(
        "-tp 2 --max-model-len 4k --kv_cache_memory_bytes=16M --enable-lora --no-enable-prefix-caching --seed -1 \
         --hf-overrides.rope_parameters.factor 8 --dtype half --attention-config.backend FLASH_ATTN --port 80 --spec-tokens 3",
    );
    let expected = json!({
        "tensor_parallel_size": 2, "max_model_len": 4000, "kv_cache_memory_bytes": 16 << 20, "enable_lora": true,
        "enable_prefix_caching": false, "seed": -1, "hf_overrides": { "rope_parameters": { "factor": 8 } }, "dtype": "half",
        "attention_config": { "backend": "FLASH_ATTN" }, "attention_backend": "FLASH_ATTN", "port": 80, "spec_tokens": 3,
        "speculative_config": { "spec_tokens": 3 },
    });
    assert_eq!(Value::Object(read), expected);
    for line in ["-O3 --port 80", "-O=3 --port 80", "-O 3 --port 80"] {
        assert_eq!(Value::Object(arguments(line)), json!({ "optimization_level": 3, "port": 80 }), "{line}");
    }
    let wrong = |line: &str| arguments::read(&[line.to_owned()]).expect_err("a fault");
    insta::assert_snapshot!([wrong("--enable-lroa"), wrong("model"), wrong("--zzz")].join("\n"), @"
    --enable-lroa: there is no such option of vLLM's; known are --enable-lora, those in docs/vllm.md
    model: is no option
    --zzz: there is no such option of vLLM's; known are those in docs/vllm.md
    ");
}

/// Values that vLLM takes for no configuration are none here either.
#[test]
fn objects_are_json_objects() {
    let wrong = |option: &str, value: &str| arguments::read(&[option, value].map(str::to_owned)).expect_err(value);
    let found = ["not json", "[1]", "\"x\"", "{\"rms_norm_eps\":"].map(|value| wrong("--hf-overrides", value));
    insta::assert_snapshot!([&found[..], &[wrong("--additional-config", "7")]].concat().join("\n"), @r#"
    --hf-overrides: vLLM takes a JSON object, not not json
    --hf-overrides: vLLM takes a JSON object, not [1]
    --hf-overrides: vLLM takes a JSON object, not x
    --hf-overrides: vLLM takes a JSON object, not {"rms_norm_eps":
    --additional-config: vLLM takes a JSON object, not 7
    "#);
    assert!(arguments::read(&["--hf-overrides", "{}"].map(str::to_owned)).is_ok());
}

/// Options of a file precede those of the command line.
#[test]
fn files_of_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let read = |words: &[&str]| arguments::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let good = file(
        "good.yaml",
        "model: m\ntensor-parallel-size: 2\nmax_model_len: 4k\nenable-lora: false\nenforce-eager: true\n\
         served-model-name: [\"a\", \"b\"]\ncompilation-config:\n  cudagraph_mode: FULL\nattention-config:\n  backend: X\n",
    );
    let expected = json!({
        "model": "m", "tensor_parallel_size": 4, "max_model_len": 4000, "enable_lora": false, "enforce_eager": true,
        "served_model_name": ["a", "b"], "compilation_config": { "cudagraph_mode": "FULL" },
        "attention_config": { "backend": "X" }, "attention_backend": "X",
    });
    assert_eq!(read(&["--config", &good, "-tp", "4"]).map(Value::Object), Ok(expected));
    let wrong = [
        read(&["--config", &file("a.json", "{}")]),
        read(&["--config", &file("b.yaml", "hf-overrides: x\n")]),
        read(&["--config", &file("c.yaml", "no-such-option: 1\n")]),
        read(&["--config", &file("d.yml", "a: &b 1\n")]),
        read(&["--config", "nowhere.yaml"]),
        read(&["--config"]),
    ];
    let wrong = wrong.map(|read| read.expect_err("a fault").replace(&folder.path().display().to_string(), "FOLDER"));
    insta::assert_snapshot!(wrong.join("\n"), @"
    --config: FOLDER/a.json: vLLM reads YAML of a file that ends with .yaml or .yml
    --hf-overrides: vLLM takes a JSON object, not x
    --no-such-option=1: there is no such option of vLLM's; known are those in docs/vllm.md
    --config: FOLDER/d.yml: line 1: `&` is not understood here
    --config: nowhere.yaml: No such file or directory (os error 2)
    --config: names no file
    ");
}

#[test]
fn settings() {
    let read = |pairs: &[(&str, &str)]| settings::read(pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
    let good = read(&[
        ("ATOMC_STRICT", "1"),
        ("ATOMC_ATTENTION", "vllm"),
        ("ATOMC_TARGET", ""),
        ("PATH", "x"),
        ("ATOMC", "y"),
    ]);
    assert_eq!(good.map(Value::Object), Ok(json!({ "ATOMC_STRICT": "1", "ATOMC_ATTENTION": "vllm" })));
    let wrong = [("ATOMC_STRIKT", "1"), ("ATOMC_STRICT", "true"), ("ATOMC_DISABLE", "yes"), ("ATOMC_ATTENTION", "vlm")];
    let wrong = wrong.map(|pair| read(&[pair]).expect_err("a fault"));
    insta::assert_snapshot!(wrong.join("\n"), @r#"
    ATOMC_STRIKT: there is no such variable; known are ATOMC_STRICT, ATOMC_DISABLE, ATOMC_AUTOCOMPILE, ATOMC_COMPILER, ATOMC_TARGET, ATOMC_ATTENTION, ATOMC_UNSUPPORTED_VERSION, ATOMC_REQUIRE_SIGNED_BY, ATOMC_API_KEY, ATOMC_LOG, ATOMC_PTXAS, ATOMC_SYSROOT
    ATOMC_STRICT: "true" is none of 0, 1
    ATOMC_DISABLE: "yes" is none of 0, 1
    ATOMC_ATTENTION: "vlm" is none of own, vllm
    "#);
}

#[test]
fn variables_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &'static [u8]| std::ffi::OsStr::from_bytes(bytes);
    let read = |name, value| settings::read([(text(name), text(value))]);
    for (name, value) in [(&b"FOO"[..], &b"\xff"[..]), (b"OLDPWD\xff", b"/caf\xe9"), (b"ATOMC\xff", b"1")] {
        assert_eq!(read(name, value), Ok(Map::new()));
    }
    assert_eq!(read(b"ATOMC_COMPILER", b"/caf\xe9").expect_err("bytes"), r#"ATOMC_COMPILER: "/caf\xE9" is not UTF-8"#);
    let unknown = read(b"ATOMC_\xff", b"1").expect_err("a name");
    assert!(unknown.starts_with("ATOMC_\u{fffd}: there is no such variable; known are ATOMC_STRICT, "), "{unknown}");
    // Variables that builds and tests read are set by developers of atomc, and change nothing.
    assert_eq!(read(b"ATOMC_LLVM_DIR", b"/llvm"), Ok(Map::new()));
}

#[test]
fn additional_config() {
    let read = |value: Value| settings::shared("--additional-config", &value);
    assert_eq!(read(json!({ "artifact": "m" })).map(Value::Object), Ok(json!({ "artifact": "m" })));
    assert_eq!(read(json!({ "atomc": {}, "others": 1 })), Ok(Map::new()));
    let wrong =
        [json!({ "artefact": "m" }), json!({ "artifact": 7 }), json!({ "atomc": { "artefact": 1 } }), json!([])];
    insta::assert_snapshot!(wrong.map(|value| read(value).expect_err("a fault")).join("\n"), @"
    --additional-config: artefact: there is no such key; known are artifact; keys of other plugins may stand beside an object `atomc` with ours
    --additional-config: artifact: must be a path, not 7
    --additional-config: artefact: there is no such key; known are artifact; keys of other plugins may stand beside an object `atomc` with ours
    --additional-config: must be an object, not []
    ");
}
