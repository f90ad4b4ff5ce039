use super::*;
use crate::framework::tests::{MODEL, artifact_of};
use serde_json::{Value, json};

fn refused(options: Value) -> String {
    let config = Config::parse(MODEL, None).expect("a good configuration");
    let model = config.echo();
    let held = artifact_of(&model);
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
    insta::assert_snapshot!(refused(asked), @r"
    --dtype: SGLang has torch.float32, the artifact bfloat16
    --kv-cache-dtype: SGLang has fp8_e4m3, the artifact bfloat16
    --tp-size: SGLang has 2, the artifact 1
    --ep-size: SGLang has 2, the artifact a share of every expert on each rank; `atomc compile --ep 2` gives them whole ones
    --moe-a2a-backend: SGLang has deepep, the artifact none: every rank has all rows of a step
    --enable-return-routed-experts: SGLang has true, the artifact none: which experts a token has chosen stays in the artifact
    --quantization: SGLang has fp8, the artifact none
    --enable-lora: SGLang has true, the artifact none: weights are packed, without adapters
    --speculative-algorithm: SGLang has EAGLE, the artifact none: a decode step has one token of each sequence
    --page-size: SGLang has 1, the artifact multiples of 32
    --context-length: SGLang has 4096, the artifact at most 512
    ");
}

/// Artifacts of whole experts serve with both sizes: the sums are the same.
#[test]
fn whole_experts() {
    let config = Config::parse(MODEL, None).expect("a good configuration");
    let model = config.echo();
    let held = Held { ranks: 2, experts: 2, ..artifact_of(&model) };
    let asks = |ep: usize| {
        let options = json!({ "tp_size": 2, "ep_size": ep });
        refusals(&config, options.as_object().expect("options"), &held).join("\n")
    };
    assert_eq!([asks(1), asks(2)], ["", ""]);
    insta::assert_snapshot!(asks(4), @"--ep-size: SGLang has 4, the artifact 2");
}

/// Every group of ranks that has a batch of its own runs the whole artifact.
#[test]
fn batches_of_their_own() {
    let asks = |tp: usize, batches: usize| refused(json!({ "tp_size": tp, "attn_dp_size": batches }));
    assert_eq!([asks(1, 1), asks(2, 2)], ["", ""]);
    insta::assert_snapshot!(asks(4, 2), @"--tp-size: SGLang has 4, the artifact 1 for each of 2 batches");
}

/// The document has the table as it is here.
#[test]
fn the_document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sglang.md");
    let text = std::fs::read_to_string(path).expect("docs/sglang.md");
    assert!(text.contains(&document()), "{path} should have:\n{}", document());
}
