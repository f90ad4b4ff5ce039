//! LoRA adapters, as peft writes them, against what transformers computes with them in float64
//! (`golden/adapters.py`).
use std::path::{Path, PathBuf};

use atomc::driver::{self, Options};
use atomc_config::{Adapters, Config};
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
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens: 128, rows: 128 };
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

/// A sequence of a step that several adapters share: which of them it has, if any.
type Sequence<'a> = Option<(usize, &'a Case)>;

/// The sequences' logits after whole prompts, but for the last tokens, which come one by one.
fn mixed(engine: &mut Engine, tokens: &[u32], all: &[Sequence]) -> Vec<Vec<f32>> {
    let ids: Vec<_> = all.iter().map(|_| engine.add_sequence()).collect();
    for (id, (slot, _)) in ids.iter().zip(all).filter_map(|(id, one)| Some((id, one.as_ref()?))) {
        engine.adapt(*id, *slot);
    }
    let (first, last) = tokens.split_at(tokens.len() - 3);
    let mut found = vec![vec![]; all.len()];
    for part in std::iter::once(first).chain(last.chunks(1)) {
        let request = |&sequence| Request { sequence, tokens: part, logits: Want::All };
        let made = engine.step(&ids.iter().map(request).collect::<Vec<_>>()).expect("a step");
        found.iter_mut().enumerate().for_each(|(at, found)| found.extend(made.of(at).flatten()));
    }
    found
}

/// The adapters of some folders of one base, in room for more of a larger rank.
fn roomy(names: &[&str]) -> (PathBuf, Vec<Case>, Engine) {
    let named = |name: &&str| cases().into_iter().find(|case| case.name == *name).expect("an adapter");
    let all: Vec<Case> = names.iter().map(named).collect();
    let base = all[0].base.clone();
    let mut config = atomc_config::read(&base).expect("a configuration");
    (config.dtype, config.context) = (DType::F32, config.context.max(CONTEXT));
    config.adapters = Some(Adapters { slots: 3, rank: 9 });
    let mut engine = engine(&config);
    let open = |case: &Case| Adapter::open(&case.folder).expect("an adapter");
    engine.set_adapters(all.iter().map(open).collect()).expect("room");
    let checkpoint = Checkpoint::open(&base).expect("weights");
    engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    (base, all, engine)
}

#[test]
fn a_step_has_several_adapters_and_none() {
    for names in [&["plain", "rslora"][..], &["recurrent"], &["tied"]] {
        let (base, all, mut engine) = roomy(names);
        let golden = tensors(&base.join("golden.safetensors"));
        let tokens: Vec<u32> = golden["tokens.0"].data.iter().map(|&t| t as u32).collect();
        let sequences: Vec<Sequence> = all.iter().enumerate().map(Some).chain([None]).collect();
        let found = mixed(&mut engine, &tokens, &sequences);
        for (sequence, logits) in sequences.iter().zip(&found) {
            let (name, reference) = match sequence {
                Some((_, case)) => {
                    (case.name.as_str(), tensors(&case.folder.join("logits.safetensors"))["logits"].data.clone())
                }
                None => ("none", golden["prefill.0"].data.clone()),
            };
            let error = off(logits, &reference);
            println!("{names:?} {name}: {error:.1e}");
            assert!(error < TOLERANCE, "{names:?} {name}: {error:e}");
        }
    }
}
