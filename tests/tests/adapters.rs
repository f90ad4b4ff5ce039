//! LoRA adapters, as peft writes them, against what transformers computes with them in float64
//! (`golden/adapters.py`).
use std::path::{Path, PathBuf};

use atomc::driver::{self, Options};
use atomc_config::Config;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::adapters::{Adapter, Merged};
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Request, Source, Want};
use atomc_tests::{CONTEXT, tensors};

/// Relative to the size of logits.
const TOLERANCE: f64 = 1e-5;

/// The golden models and adapters for them.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// A folder of `golden/adapters`, and that of its base model.
struct Case {
    name: String,
    folder: PathBuf,
    base: PathBuf,
}

fn cases() -> Vec<Case> {
    let entries = std::fs::read_dir(golden().join("adapters")).expect("adapters").map(|e| e.expect("an entry").path());
    let case = |folder: PathBuf| {
        let text = std::fs::read_to_string(folder.join("adapter_config.json")).expect("a configuration");
        let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let base = golden().join(told["base_model_name_or_path"].as_str().expect("a name"));
        Case { name: folder.file_name().expect("a name").to_string_lossy().into_owned(), folder, base }
    };
    let all: Vec<Case> = entries.map(case).collect();
    assert!(all.len() >= 11, "only {} adapters", all.len());
    all
}

fn engine(config: &Config) -> Engine {
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 64, rows: 64 };
    let options = Options { buckets, targets: vec!["host".into()], ..Options::default() };
    let compiled = driver::compile(config, &options, &mut |_, _, _| ()).expect("code");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let artifact = Artifact::open(&path).expect("a whole artifact");
    let options = EngineOptions { threads: 2, cache_tokens: 6 * CONTEXT, ..EngineOptions::default() };
    Engine::new(artifact, &options).expect("an engine")
}

/// How far logits are off as a part of the size of transformers'.
fn off(logits: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(logits.len(), reference.len());
    let mean = |sum: f64| (sum / reference.len() as f64).sqrt();
    let error = logits.iter().zip(reference).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    mean(error) / mean(reference.iter().map(|v| v * v).sum())
}

/// Logits of the first sequence of a base model, of weights from a source.
fn logits(base: &Path, engine: &mut Engine, source: &dyn Source) -> Vec<f32> {
    engine.load_weights(source, &|_, _| ()).expect("weights");
    let tokens =
        tensors(&base.join("golden.safetensors"))["tokens.0"].data.iter().map(|&t| t as u32).collect::<Vec<_>>();
    let sequence = engine.add_sequence();
    let made = engine.step(&[Request { sequence, tokens: &tokens, logits: Want::All }]).expect("a step");
    made.of(0).flatten().copied().collect()
}

#[test]
fn merged_adapters_are_pefts() {
    for Case { name, folder, base } in cases() {
        let mut config = atomc_config::read(&base).expect("a configuration");
        (config.dtype, config.context) = (DType::F32, config.context.max(CONTEXT));
        let (adapter, checkpoint) =
            (Adapter::open(&folder).expect("an adapter"), Checkpoint::open(&base).expect("weights"));
        let merged = Merged::new(&checkpoint, &adapter).expect("a whole sum");
        let found = logits(&base, &mut engine(&config), &merged);
        let error = off(&found, &tensors(&folder.join("logits.safetensors"))["logits"].data);
        println!("{name}: {error:.1e}");
        assert!(error < TOLERANCE, "{name}: {error:e}");
    }
}
