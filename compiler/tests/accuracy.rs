//! The trained example models solve all 500 held-out problems, as they do with transformers, through the binary; and the first
//! of them with code for a GPU in the emulator.
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn atomc(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_atomc")).args(args).output().expect("the binary runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// Compiles a model and answers the first problems on a device.
fn solves(model: &str, target: &str, device: &str, problems: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let artifact = dir.path().join("m.atomc");
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let weights = format!("{EXAMPLES}/models/{model}");
    atomc(&["compile", &weights, "--target", target, "-o", &path(&artifact)]);
    let (file, limit) = (format!("{EXAMPLES}/problems.jsonl"), problems.to_string());
    let run = ["--weights", &weights, "--device", device, "--limit", &limit, "--json"];
    let text = atomc(&[&["eval", &path(&artifact), &file], &run[..]].concat());
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result, json!({ "exact": problems, "of": problems }), "{model} on {device}");
}

#[test]
fn qwen3_solves_all() {
    solves("qwen3", "host", "host", 500);
}

#[test]
fn llama_solves_all() {
    solves("llama", "host", "host", 500);
}

#[test]
fn both_solve_the_first_on_an_emulated_gpu() {
    solves("qwen3", "gfx942", "emu:gfx942", 20);
    solves("llama", "gfx942", "emu:gfx942", 20);
}
