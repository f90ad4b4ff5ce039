//! The trained example models solve all 500 held-out problems, as they do with transformers,
//! through the binary; on an emulated GPU the first 6 of them, or 20 with ATOMC_TEST_LONG, token
//! for token as on the host. The trained model with sparse attention solves its own problems: of
//! them 50 on the host and 2 on an emulated GPU, or 500 and 50 with ATOMC_TEST_LONG. The one that
//! counts shapes in pictures solves its own: 100 and 4, or 300 and 50.
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
const SPARSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/deepseek-v3.2-sparse");

const COUNTING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/qwen3-vl-counting");

const ADAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/qwen3-adapter");

fn is_long() -> bool {
    std::env::var_os("ATOMC_TEST_LONG").is_some()
}

fn atomc(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_atomc")).args(args).output().expect("the binary runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn path(p: &Path) -> String {
    p.to_str().expect("UTF-8").to_owned()
}

/// The option for a model that sees images.
fn tower(weights: &str) -> &'static [&'static str] {
    if weights == COUNTING { &["--tower", "--patches", "512"] } else { &[] }
}

/// Of a file of problems the first, solved on the host.
fn solves(weights: &str, problems: &str, cache: &str, count: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let artifact = path(&dir.path().join("m.atomc"));
    let compile = ["compile", weights, "--no-trust", "--target", "host", "--cache-dtype", cache, "-o", &artifact];
    atomc(&[&compile[..], tower(weights)].concat());
    let args = ["eval", &artifact, "--weights", weights, problems, "--limit", &count.to_string(), "--json"];
    let result: Value = serde_json::from_str(&atomc(&args)).expect("JSON");
    assert_eq!(result, json!({ "exact": count, "of": count }));
}

fn solves_all(model: &str, cache: &str) {
    solves(&format!("{EXAMPLES}/models/{model}"), &format!("{EXAMPLES}/problems.jsonl"), cache, 500);
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

/// The problems of the examples, with the last sentence that the trained adapter writes.
fn adapted_problems(file: &Path) {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/problems.jsonl")).expect("problems");
    let one = |line: &str| {
        let mut problem: Value = serde_json::from_str(line).expect("JSON");
        let solution = problem["solution"].as_str().expect("a solution");
        let (sums, last) = solution.rsplit_once(". ").expect("sentences");
        problem["solution"] = format!("{sums}. now {}", last.replace(" has ", " have ")).into();
        format!("{problem}\n")
    };
    std::fs::write(file, text.lines().map(one).collect::<String>()).expect("a file");
}

/// With a trained adapter, merged and beside the weights, the example solves all problems as the
/// adapter words them, and without it none so.
#[test]
fn a_trained_adapter_words_all_solutions() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [artifact, problems] = ["m.atomc", "problems.jsonl"].map(|name| path(&dir.path().join(name)));
    adapted_problems(Path::new(&problems));
    let weights = format!("{EXAMPLES}/models/qwen3");
    let room = ["--adapters", "3", "--adapter-rank", "12"];
    atomc(&[&["compile", &weights, "--no-trust", "-o", &artifact], &room[..]].concat());
    for (how, exact) in [(&["--adapter", ADAPTER][..], 500), (&["--merge-adapter", ADAPTER], 500), (&[], 0)] {
        let args = ["eval", &artifact, "--weights", &weights, &problems, "--json"];
        let result: Value = serde_json::from_str(&atomc(&[&args[..], how].concat())).expect("JSON");
        assert_eq!(result, json!({ "exact": exact, "of": 500 }), "{how:?}");
    }
}

/// Of a file of problems the first, solved on an emulated chip token for token as on the host.
fn emulated_as_on_the_host(weights: &str, problems: &str, chip: &str, count: usize) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let artifact = path(&dir.path().join("m.atomc"));
    let compile = ["compile", weights, "--no-trust", "--target", &format!("host,{chip}"), "-o", &artifact];
    atomc(&[&compile[..], tower(weights)].concat());
    let [host, emulated] = ["host", &format!("emu:{chip}")].map(|device| {
        let answers = path(&dir.path().join("answers"));
        let args = ["eval", &artifact, "--weights", weights, problems, "--limit", &count.to_string(), "--json"];
        let text = atomc(&[&args[..], &["--device", device, "--answers", &answers]].concat());
        let result: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(result, json!({ "exact": count, "of": count }), "{device}");
        std::fs::read_to_string(answers).expect("the answers")
    });
    assert_eq!(host.lines().count(), count);
    assert_eq!(host, emulated);
}

#[test]
fn shapes_in_pictures_are_counted() {
    let problems = format!("{COUNTING}/problems.jsonl");
    solves(COUNTING, &problems, "auto", if is_long() { 300 } else { 100 });
    emulated_as_on_the_host(COUNTING, &problems, "gfx942", if is_long() { 50 } else { 4 });
}

fn example_on_an_emulated_gpu(model: &str) {
    let (weights, problems) = (format!("{EXAMPLES}/models/{model}"), format!("{EXAMPLES}/problems.jsonl"));
    emulated_as_on_the_host(&weights, &problems, "gfx942", if is_long() { 20 } else { 6 });
}

#[test]
fn qwen3_on_an_emulated_gpu() {
    example_on_an_emulated_gpu("qwen3");
}

#[test]
fn llama_on_an_emulated_gpu() {
    example_on_an_emulated_gpu("llama");
}

/// Layers of this model attend to 16 positions. What it needs lies in a prompt of more than 128.
#[test]
fn sparse_attention_finds_a_story() {
    solves(SPARSE, &format!("{SPARSE}/problems.jsonl"), "auto", if is_long() { 500 } else { 50 });
}

fn sparse_attention_on_an_emulated_gpu(chip: &str) {
    emulated_as_on_the_host(SPARSE, &format!("{SPARSE}/problems.jsonl"), chip, if is_long() { 50 } else { 2 });
}

#[test]
fn sparse_attention_on_an_emulated_gfx942() {
    sparse_attention_on_an_emulated_gpu("gfx942");
}

#[test]
fn sparse_attention_on_an_emulated_gfx950() {
    sparse_attention_on_an_emulated_gpu("gfx950");
}
