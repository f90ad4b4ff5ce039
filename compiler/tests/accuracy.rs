//! The trained example models solve all 500 held-out problems, as they do with transformers,
//! through the binary; on an emulated GPU the first 6 of them, or 20 with ATOMC_TEST_LONG, token
//! for token as on the host.
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn atomc(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_atomc")).args(args).output().expect("the binary runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn path(p: &Path) -> String {
    p.to_str().expect("UTF-8").to_owned()
}

fn solves_all(model: &str, cache: &str) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let artifact = dir.path().join("m.atomc");
    let weights = format!("{EXAMPLES}/models/{model}");
    atomc(&["compile", &weights, "--no-trust", "--target", "host", "--cache-dtype", cache, "-o", &path(&artifact)]);
    let problems = format!("{EXAMPLES}/problems.jsonl");
    let text = atomc(&["eval", &path(&artifact), "--weights", &weights, &problems, "--json"]);
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result, json!({ "exact": 500, "of": 500 }));
}

#[test]
fn qwen3_solves_all() {
    solves_all("qwen3", "auto");
}

#[test]
fn qwen3_solves_all_with_a_cache_of_bytes() {
    solves_all("qwen3", "fp8");
}

#[test]
fn llama_solves_all() {
    solves_all("llama", "auto");
}

#[test]
fn llama_solves_all_with_a_cache_of_bytes() {
    solves_all("llama", "fp8");
}

fn emulated_as_on_the_host(model: &str) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let artifact = path(&dir.path().join("m.atomc"));
    let weights = format!("{EXAMPLES}/models/{model}");
    atomc(&["compile", &weights, "--no-trust", "--target", "host,gfx942", "-o", &artifact]);
    let problems = format!("{EXAMPLES}/problems.jsonl");
    let count = if std::env::var_os("ATOMC_TEST_LONG").is_some() { 20 } else { 6 };
    let [host, emulated] = ["host", "emu:gfx942"].map(|device| {
        let answers = path(&dir.path().join("answers"));
        let args = ["eval", &artifact, "--weights", &weights, &problems, "--limit", &count.to_string(), "--json"];
        let text = atomc(&[&args[..], &["--device", device, "--answers", &answers]].concat());
        let result: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(result, json!({ "exact": count, "of": count }), "{device}");
        std::fs::read_to_string(answers).expect("the answers")
    });
    assert_eq!(host.lines().count(), count);
    assert_eq!(host, emulated);
}

#[test]
fn qwen3_on_an_emulated_gpu() {
    emulated_as_on_the_host("qwen3");
}

#[test]
fn llama_on_an_emulated_gpu() {
    emulated_as_on_the_host("llama");
}
