//! Steps of sizes that no tile divides: kernels compute spare rows, and those must land nowhere
//! that matters.
use atomc::driver::{self, Options};
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, DeviceError, Engine, EngineOptions, Error, Request, Want};
use atomc_tests::{Case, cases};

/// Logits for every token of a prompt of 37, by variant of those that this CPU runs.
fn logits(case: &Case, tokens: usize, rows: usize) -> Vec<(String, Vec<f32>)> {
    let options = Options { buckets: BucketOptions { decode: vec![1], each: 1, tokens, rows }, ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let mut all = Vec::new();
    for variant in &compiled.manifest.targets[0].variants {
        let device = DeviceChoice::Host { variant: Some(variant.name.clone()) };
        let options = EngineOptions { device, threads: 2, cache_tokens: 64, ..EngineOptions::default() };
        let mut engine = match Engine::new(Artifact::open(&path).expect("a whole artifact"), &options) {
            Err(Error::Device(DeviceError::Lacks { .. })) => continue,
            engine => engine.expect("it opens"),
        };
        engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
        let prompt: Vec<u32> = (1..38).collect();
        let sequence = engine.add_sequence();
        let out = engine.step(&[Request { sequence, tokens: &prompt, logits: Want::All }]).expect("a step");
        all.push((variant.name.clone(), out.of(0).flatten().copied().collect()));
    }
    assert!(!all.is_empty(), "this CPU runs no variant");
    all
}

/// The order of sums differs between plans, so logits agree to the precision of the type. Theirs
/// spread by about 1.5.
fn check(name: &str, tolerance: f32) {
    let case = cases().into_iter().find(|c| c.name == name).expect("the case is there");
    let want = logits(&case, 64, 64);
    for (tokens, rows) in [(33, 3), (37, 37), (5, 1)] {
        for ((variant, got), (_, want)) in logits(&case, tokens, rows).iter().zip(&want) {
            assert_eq!(got.len(), want.len());
            let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let close = got.iter().all(|v| v.is_finite()) && worst <= tolerance;
            assert!(close, "{name} on {variant}, steps of {tokens} tokens with {rows} rows: off by {worst}");
        }
    }
}

#[test]
fn any_size_of_step_in_f32() {
    check("llama-f32", 2e-5);
}

#[test]
fn any_size_of_step_in_bf16() {
    check("qwen3", 0.3);
}
