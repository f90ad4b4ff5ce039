use super::options::{OTHERS, SHORT, document, names};
use super::*;
use crate::framework::Guesses;
use crate::framework::flag;
use crate::framework::tests::{MODEL, artifact_of, with_experts};
use serde_json::{Value, json};

fn refused(options: Value) -> String {
    refused_by(MODEL, |_| (), options)
}

/// The refusals of an artifact of a model with one property changed.
fn refused_by(model: &str, change: impl Fn(&mut Held), options: Value) -> String {
    let config = Config::parse(model, None).expect("a good configuration");
    let model = config.echo();
    let mut held = artifact_of(&model);
    change(&mut held);
    refusals(&config, options.as_object().expect("options"), &held).join("\n")
}

#[test]
fn what_sglang_resolves_by_default_is_harmless() {
    let resolved = json!({
        "is_embedding": false, "dtype": "torch.bfloat16", "kv_cache_dtype": "auto", "tp_size": 1, "pp_size": 1, "attn_dp_size": 1, "ep_size": 1, "moe_a2a_backend": "none",
        "attn_cp_size": 1, "dcp_size": 1, "quantization": null, "load_format": "auto", "startup_weight_load_mode": "serial",
        "weight_cache_mode": "off", "disaggregation_mode": "null", "cpu_offload_gb": 0, "offload_group_size": -1, "page_size": 64,
        "context_length": 512,
    });
    assert_eq!(refused(resolved), "");
}

#[test]
fn what_does_not_fit_is_named() {
    let asked = json!({
        "dtype": "torch.float32", "kv_cache_dtype": "fp8_e4m3", "tp_size": 2, "quantization": "fp8", "enable_lora": true,
        "speculative_algorithm": "EAGLE", "page_size": 1, "context_length": 4096, "ep_size": 2, "moe_a2a_backend": "deepep",
        "enable_return_routed_experts": true,
    });
    insta::assert_snapshot!(refused(asked), @"
--dtype: SGLang has torch.float32, the artifact bfloat16
--kv-cache-dtype: SGLang has fp8_e4m3, the artifact bfloat16
--tp-size: SGLang has 2, the artifact 1
--moe-a2a-backend: SGLang has deepep, the artifact none: every rank has all rows of a step
--enable-return-routed-experts: SGLang has true, the artifact none: which experts a token has chosen stays in the artifact
--quantization: SGLang has fp8, the artifact none
--enable-lora: SGLang has true, the artifact none: weights are packed, without adapters
--speculative-algorithm: SGLang has EAGLE, the artifact no draft: `atomc compile --draft` gives it one
--page-size: SGLang has 1, the artifact multiples of 32
--context-length: SGLang has 4096, the artifact at most 504, and 8 for guesses behind
");
}

/// Artifacts of whole experts serve with both sizes: the sums are the same. Without experts the
/// option acts on nothing.
#[test]
fn whole_experts() {
    let asks = |model: &str, experts: usize, ep: usize| {
        let change = |held: &mut Held| (held.ranks, held.experts) = (2, experts);
        refused_by(model, change, json!({ "tp_size": 2, "ep_size": ep }))
    };
    let model = with_experts();
    assert_eq!([asks(&model, 2, 1), asks(&model, 2, 2), asks(MODEL, 1, 2)], ["", "", ""]);
    insta::assert_snapshot!([asks(&model, 2, 4), asks(&model, 1, 2)].join("\n"), @"
    --ep-size: SGLang has 4, the artifact 2
    --ep-size: SGLang has 2, the artifact a share of every expert on each rank; `atomc compile --ep 2` gives them whole ones
    ");
}

/// SGLang's spellings of types of caches, and its meaning of `auto`, whatever the checkpoint says.
#[test]
fn types_of_caches() {
    let asks = |cache: &'static str, asked: &str| {
        refused_by(MODEL, |held| held.cache_dtype = cache, json!({ "kv_cache_dtype": asked }))
    };
    for (cache, asked) in
        [("bfloat16", "auto"), ("bfloat16", "bf16"), ("bfloat16", "bfloat16"), ("float8_e4m3fn", "fp8_e4m3")]
    {
        assert_eq!(asks(cache, asked), "");
    }
    insta::assert_snapshot!([asks("float8_e4m3fn", "auto"), asks("float8_e4m3fn", "bf16"), asks("bfloat16", "fp8_e5m2")].join("\n"), @"
    --kv-cache-dtype: SGLang has auto, the artifact float8_e4m3fn, and of auto SGLang makes bfloat16
    --kv-cache-dtype: SGLang has bf16, the artifact float8_e4m3fn
    --kv-cache-dtype: SGLang has fp8_e5m2, the artifact bfloat16
    ");
}

/// SGLang keeps recurrent states for other requests by one of its strategies; on GPUs only after
/// prompts.
#[test]
fn prefixes_of_recurrent_states() {
    let asks = |slots: bool, options: Value| refused_by(MODEL, |held| held.slots = slots, options);
    let kept = |strategy: &str, device: &str, interval: usize| {
        asks(
            true,
            json!({
                "disable_radix_cache": false, "mamba_radix_cache_strategy": strategy, "device": device,
                "mamba_track_interval": interval, "context_length": 512,
            }),
        )
    };
    let off = |slots: bool, off: bool| asks(slots, json!({ "disable_radix_cache": off }));
    assert_eq!([off(true, true), off(false, true), off(false, false)], ["", "", ""]);
    assert_eq!([kept("extra_buffer", "cpu", 256), kept("extra_buffer", "cuda", 512)], ["", ""]);
    assert_eq!(off(true, false), kept("no_buffer", "cpu", 256));
    insta::assert_snapshot!(off(true, false), @"--disable-radix-cache: SGLang has false, the artifact states that other sequences begin with where `--mamba-radix-cache-strategy` is extra_buffer");
    insta::assert_snapshot!(kept("extra_buffer", "cuda", 256), @"--disable-radix-cache: SGLang has false, the artifact states behind prompts alone, which `--mamba-track-interval` asks for with the longest sequence");
}

/// If a model has other parts, SGLang's own class runs unless requests are text alone; several
/// options say so.
#[test]
fn models_of_several_parts() {
    let lacks = |architecture: &str, options: Value| {
        RULES.lacks(architecture, true, options.as_object().expect("options")).unwrap_or_default()
    };
    let part = "Qwen3_5ForConditionalGeneration";
    assert_eq!(lacks("Qwen3_5ForCausalLM", json!({})), "");
    for said in [
        json!({ "language_model_only": true }),
        json!({ "json_model_override_args": { "language_model_only": true } }),
        json!({ "enable_multimodal": false }),
    ] {
        assert_eq!(lacks(part, said), "");
    }
    for silent in [json!({}), json!({ "enable_multimodal": null, "json_model_override_args": {} })] {
        assert_eq!(lacks(part, silent), RULES.text_option);
    }
}

/// SGLang's promises about answers have to hold for the artifact.
#[test]
fn deterministic_inference() {
    let asks = |invariant: bool, on: bool| {
        refused_by(MODEL, |held| held.invariant = invariant, json!({ "enable_deterministic_inference": on }))
    };
    assert_eq!([asks(true, true), asks(true, false), asks(false, false)], ["", "", ""]);
    insta::assert_snapshot!(asks(false, true), @"--enable-deterministic-inference: SGLang has true, the artifact bits of a row that depend on its step; `atomc compile --invariant` makes one without");
}

/// The draft of the artifact guesses, as many tokens as its steps verify, in chains.
#[test]
fn guesses_of_the_artifact() {
    let asks =
        |apart: bool, options: Value| refused_by(MODEL, |held| held.guesses = Guesses::of(3, Some(apart)), options);
    let guess = |algorithm: &str, more: Value| {
        let mut asked = json!({
            "speculative_algorithm": algorithm, "speculative_num_steps": 3, "speculative_eagle_topk": 1,
            "context_length": 504, "speculative_draft_model_path": "/model", "model_path": "/model",
        });
        let all = asked.as_object_mut().expect("options");
        all.extend(more.as_object().expect("options").clone());
        asked
    };
    let none = json!({});
    let head = json!({ "speculative_draft_model_path": "/head" });
    let served = [
        asks(false, guess("EAGLE", none.clone())),
        asks(false, guess("nextn", none.clone())),
        asks(false, json!({ "enable_return_hidden_states": true })),
        asks(false, guess("EAGLE", json!({ "enable_return_hidden_states": true }))),
        asks(true, guess("EAGLE3", head.clone())),
        asks(false, json!({})),
    ];
    assert_eq!(served, [""; 6]);
    let recurrent =
        |options| refused_by(MODEL, |held| (held.guesses, held.slots) = (Guesses::of(3, Some(false)), true), options);
    let own = json!({ "attention_backend": "atomc", "disable_radix_cache": true });
    assert_eq!(recurrent(guess("EAGLE", own)), "");
    let many = json!({ "speculative_num_steps": 4, "speculative_eagle_topk": 8, "context_length": 503 });
    let refused = [
        asks(true, guess("EAGLE", head.clone())),
        asks(false, guess("NGRAM", none.clone())),
        recurrent(guess("EAGLE", json!({ "disable_radix_cache": true }))),
        asks(false, guess("EAGLE", head.clone())),
        asks(false, guess("EAGLE", many)),
        asks(true, guess("EAGLE3", json!({ "return_hidden_states_mode": "last" }))),
        asks(true, json!({})),
    ];
    insta::assert_snapshot!(refused.join("\n"), @"
    --speculative-algorithm: SGLang has EAGLE, the artifact a draft for EAGLE3
    --speculative-algorithm: SGLang has NGRAM, the artifact a draft for EAGLE or NEXTN
    --speculative-algorithm: SGLang has EAGLE, the artifact recurrent states, which go back behind wrong guesses with `--attention-backend atomc`
    --speculative-draft-model-path: SGLang has /head, the artifact a draft of the model's own checkpoint
    --speculative-num-steps: SGLang has 4, the artifact steps of at most 3 guesses; `atomc compile --speculate 4` makes such
    --speculative-eagle-topk: SGLang has 8, the artifact none: guesses are a chain, each behind the one before
    --context-length: SGLang has 503, the artifact at most 502, and 10 for guesses behind
    --return-hidden-states-mode: SGLang has last, the artifact rows for its head alone
    --speculative-algorithm: SGLang has none, the artifact an EAGLE-3 head, which wants its checkpoint; without guesses take one without
    ");
}

/// Whatever would act on nothing, or end the server, is refused by its own name.
#[test]
fn each_refused_option_is_named() {
    for judged in JUDGED.iter().filter(|judged| judged.fate == Fate::Refused) {
        let line = refused(json!({ judged.name: "something" }));
        assert_eq!(line, format!("{}: SGLang has something, the artifact none: {}", flag(judged.name), judged.why));
    }
    let asked = json!({
        "enable_paged_experts": true, "ep_num_redundant_experts": 2, "quantization_param_path": "scales.json",
        "modelopt_checkpoint_save_path": "folder", "debug_tensor_dump_output_folder": "folder", "kv_canary": "log",
        "enable_fp32_lm_head": true, "enable_torch_compile": true, "init_expert_location": "file.json",
    });
    insta::assert_snapshot!(refused(asked), @"
    --ep-num-redundant-experts: SGLang has 2, the artifact none: experts stay where they are
    --init-expert-location: SGLang has file.json, the artifact none: experts stay where they are
    --enable-paged-experts: SGLang has true, the artifact none: weights stay on the device
    --quantization-param-path: SGLang has scales.json, the artifact none: scales of a cache are the checkpoint's, or 1
    --modelopt-checkpoint-save-path: SGLang has folder, the artifact none: weights have the artifact's type
    --enable-fp32-lm-head: SGLang has true, the artifact none: logits have the artifact's type
    --enable-torch-compile: SGLang has true, the artifact none: kernels are the artifact's
    --kv-canary: SGLang has log, the artifact none: what is in a page is the artifact's own
    --debug-tensor-dump-output-folder: SGLang has folder, the artifact none: an artifact has no modules to look into
    ");
}

/// Without an artifact the plugin compiles one that serves the options.
#[test]
fn what_is_compiled_fits() {
    let made = |model: &str, options: Value| {
        let config = Config::parse(model, None).expect("a good configuration");
        compile_options(&config, options.as_object().expect("options"), true).join(" ")
    };
    let large =
        json!({ "dtype": "auto", "tp_size": 4, "ep_size": 4, "kv_cache_dtype": "fp8_e4m3", "context_length": 600 });
    let batches =
        json!({ "tp_size": 4, "dp_size": 2, "enable_dp_attention": true, "enable_deterministic_inference": true });
    let wide = MODEL.replace("bfloat16", "float32");
    let head = json!({
        "speculative_algorithm": "eagle3", "speculative_draft_model_path": "/head", "speculative_num_steps": 2,
        "context_length": 300,
    });
    let layer = json!({ "speculative_algorithm": "NEXTN" });
    let found = [
        made(&with_experts(), large.clone()),
        made(MODEL, large),
        made(MODEL, batches),
        made(&wide, json!({})),
        made(MODEL, head),
        made(MODEL, layer),
    ];
    insta::assert_snapshot!(found.join("\n"), @"
    --tp 4 --ep 4 --cache-dtype fp8 --context 600
    --tp 4 --cache-dtype fp8 --context 600
    --tp 2 --invariant
    --dtype float16
    --draft /head --speculate 2
    --context 520 --draft mtp --speculate 3
    ");
}

/// Every group of ranks that has a batch of its own runs the whole artifact.
#[test]
fn batches_of_their_own() {
    let asks = |tp: usize, batches: usize| refused(json!({ "tp_size": tp, "attn_dp_size": batches }));
    assert_eq!([asks(1, 1), asks(2, 2)], ["", ""]);
    insta::assert_snapshot!(asks(4, 2), @"--tp-size: SGLang has 4, the artifact 1 for each of 2 batches");
}

/// Errors of SGLang's before a model runs.
#[test]
fn what_sglang_refuses_by_itself() {
    let says = |model: &str, options: Value| {
        let config = Config::parse(model, None).expect("a good configuration");
        let refused = own::refuses(&config, options.as_object().expect("options"));
        refused.map_or_else(|fault| fault.to_string(), |()| "runs".to_owned())
    };
    let host = |mut options: Value| {
        options["device"] = json!("cpu");
        options
    };
    let bits = |backend: Value| json!({ "enable_deterministic_inference": true, "attention_backend": backend });
    let found = [
        says(MODEL, json!({})),
        says(MODEL, bits(Value::Null)),
        says(MODEL, bits(json!("atomc"))),
        says(MODEL, bits(json!("torch_native"))),
        says(MODEL, host(bits(json!("atomc")))),
        says(MODEL, host(json!({ "enable_deterministic_inference": false }))),
    ];
    insta::assert_snapshot!(found.join("\n"), @"
    runs
    runs
    runs
    --enable-deterministic-inference: with --attention-backend SGLang takes one of atomc, ascend, fa3, fa4, flashinfer, intel_xpu, triton, and not torch_native
    --enable-deterministic-inference: SGLang has it on GPUs alone, where it replaces operations of torch's
    runs
    ");
}

/// SGLang wants an interval, and transformers 5 writes a list of layers.
#[test]
fn layers_that_attend() {
    let (linear, full) = ("linear_attention", "full_attention");
    let told = |facts: Value| {
        let fault = interval(facts.as_object().expect("facts"));
        fault.map_or_else(|| "told".to_owned(), |fault| format!("{fault}. {}", fault.help.clone().unwrap_or_default()))
    };
    let every_third = [linear, linear, full, linear, linear, full, linear];
    let found = [
        told(json!({ "layer_types": [full, full] })),
        told(json!({ "layer_types": every_third, "full_attention_interval": 3 })),
        told(json!({ "layer_types": every_third })),
        told(json!({ "text_config": { "layer_types": every_third } })),
        told(json!({ "layer_types": [full, linear, linear, full] })),
        told(json!({})),
    ];
    insta::assert_snapshot!(found.join("\n"), @r#"
    told
    told
    config.json: full_attention_interval: SGLang makes of it which layers attend, and transformers 5 leaves it out. Pass --json-model-override-args '{"full_attention_interval":3}'.
    config.json: full_attention_interval: SGLang makes of it which layers attend, and transformers 5 leaves it out. Add "full_attention_interval": 3 to text_config in config.json.
    config.json: full_attention_interval: SGLang makes of it which layers attend, and transformers 5 leaves it out. No interval has these layers, so SGLang cannot run them.
    told
    "#);
}

#[test]
fn each_option_stands_in_the_table_once() {
    let mut all: Vec<&str> = names().collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(OTHERS.iter().all(|(fate, _, _)| matches!(fate, Fate::Acts | Fate::CannotMatter)));
    assert_eq!(SHORT.iter().find(|(_, name)| !all.contains(name)), None);
}

#[test]
fn command_lines() {
    let read = |line: &str| read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let found = read(
        "--tp 2 --expert-parallel-size 2 --kv-cache-dtype bf16 --enable-lora --cuda-graph-bs-decode 1 2 \
         --json-model-override-args {\"rms_norm_eps\":0.5}",
    );
    let expected = json!({
        "tp_size": 2, "ep_size": 2, "kv_cache_dtype": "bf16", "enable_lora": true, "cuda_graph_bs_decode": [1, 2],
        "json_model_override_args": { "rms_norm_eps": 0.5 },
    });
    assert_eq!(found.map(Value::Object), Ok(expected));
    let wrong =
        ["--json-model-override-args [1]", "--enable-lroa", "--tpsize 2"].map(|line| read(line).expect_err(line));
    insta::assert_snapshot!(wrong.join("\n"), @"
    --json-model-override-args: SGLang takes a JSON object, not [1]
    --enable-lroa: there is no such option of SGLang's; known are --enable-lora, those in docs/sglang.md
    --tpsize: there is no such option of SGLang's; known are --tp-size, --ep-size, --pp-size, --dp-size, those in docs/sglang.md
    ");
}

/// The document has the table as it is here.
#[test]
fn the_document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sglang.md");
    let text = std::fs::read_to_string(path).expect("docs/sglang.md");
    assert!(text.contains(&document()), "{path} should have:\n{}", document());
}
