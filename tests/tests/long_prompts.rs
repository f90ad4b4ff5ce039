//! Prompts of Gemma 4 that are longer than its window, on the host and on emulated chips, against
//! what transformers answers (`tests/golden/long.py`): the model has the head sizes of releases,
//! layers that see keys of earlier ones, and rows of layers' own.
//!
//! In f32 the next 64 tokens are transformers'. In bf16, where a model that was not trained decides
//! by less than its roundings, each step gets transformers' tokens, and its logits are off by no
//! more than a quarter more than PyTorch's.
//!
//! The host has all of it, and an emulated chip a prompt of 1,300 tokens in bf16. Both chips have
//! all of it in `cargo test -p atomc-tests --test long_prompts -- --ignored --nocapture`.
use std::path::{Path, PathBuf};
use std::time::Instant;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::sample::greedy;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Request, SeqId, Want};
use atomc_tests::tensors;

/// Tokens of a prompt that are fed at once, and of an answer.
const PIECE: usize = 512;
const ANSWER: usize = 64;
/// Tokens of the cache.
const CACHE: usize = 8192;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/long/gemma4")
}

/// A prompt, what transformers answers, and its logits before each of these tokens.
struct Asked {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    logits: Vec<f64>,
    /// Root mean square of the errors of PyTorch in bf16.
    torch_error: f64,
}

fn asked(number: usize) -> Asked {
    let mut all = tensors(&folder().join("long.safetensors"));
    let mut take = |name: &str| all.remove(&format!("{name}.{number}")).expect("a tensor").data;
    let facts = std::fs::read(folder().join("long.json")).expect("long.json");
    let facts: serde_json::Value = serde_json::from_slice(&facts).expect("JSON");
    let ids = |of: Vec<f64>| of.into_iter().map(|t| t as u32).collect::<Vec<u32>>();
    let torch_error = facts["torch_error"][number].as_f64().expect("an error");
    Asked { prompt: ids(take("prompt")), answer: ids(take("answer")), logits: take("logits"), torch_error }
}

fn engine(target: &str, dtype: DType) -> Engine {
    let mut config = frontend::read(&folder()).expect("a model");
    config.dtype = dtype;
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: PIECE, rows: 1 };
    let options = Options { buckets, targets: vec![target.into()], ..Options::default() };
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let artifact = Artifact::open(&path).expect("a whole artifact");
    let options = EngineOptions { threads: 2, cache_tokens: CACHE, ..EngineOptions::default() };
    let mut engine = match target {
        "host" => Engine::new(artifact, &options).expect("an engine"),
        chip => {
            let device = Emulated::open(&artifact, chip, 2, Default::default()).expect("an emulated chip");
            Engine::with_device(artifact, chip, Box::new(device), &options).expect("an engine")
        }
    };
    engine.load_weights(&Checkpoint::open(folder()).expect("a checkpoint"), &|_, _| ()).expect("weights");
    engine
}

/// The logits behind some tokens.
fn behind(engine: &mut Engine, sequence: SeqId, tokens: &[u32]) -> Vec<f32> {
    let mut last = vec![];
    for tokens in tokens.chunks(PIECE) {
        let out = engine.step(&[Request { sequence, tokens, logits: Want::Last }]).expect("a step");
        last = out.last(0).expect("a row").to_vec();
    }
    last
}

/// The next tokens, and the logits before each. `given` are fed in their place.
fn answered(engine: &mut Engine, prompt: &[u32], given: Option<&[u32]>) -> (Vec<u32>, Vec<f32>) {
    let sequence = engine.add_sequence();
    let (mut answer, mut logits) = (vec![], vec![]);
    let mut row = behind(engine, sequence, prompt);
    loop {
        let own = greedy(&row);
        answer.push(own);
        logits.extend(&row);
        if answer.len() == ANSWER {
            break;
        }
        let next = given.map_or(own, |given| given[answer.len() - 1]);
        row = behind(engine, sequence, &[next]);
    }
    engine.drop_sequence(sequence).expect("a live sequence");
    (answer, logits)
}

fn answers_are_transformers(target: &str, dtype: DType, number: usize) {
    let asked = asked(number);
    let (mut engine, start) = (engine(target, dtype), Instant::now());
    let given = (dtype == DType::BF16).then_some(&asked.answer[..]);
    let (answer, logits) = answered(&mut engine, &asked.prompt, given);
    assert_eq!(logits.len(), asked.logits.len());
    let squares: f64 = asked.logits.iter().zip(&logits).map(|(v, &own)| (v - f64::from(own)).powi(2)).sum();
    let error = (squares / logits.len() as f64).sqrt();
    let (tokens, same) = (asked.prompt.len(), answer.iter().zip(&asked.answer).filter(|(a, b)| a == b).count());
    let (seconds, torch) = (start.elapsed().as_secs_f64(), asked.torch_error);
    println!(
        "{tokens} tokens on {target} in {}: {same} of {ANSWER} are transformers', off by {error:.1e}, PyTorch in bf16 by {torch:.1e}; {seconds:.0} s",
        dtype.name()
    );
    match dtype {
        DType::BF16 => assert!(error < 1.25 * torch, "off by {error:e}, PyTorch by {torch:e}"),
        _ => {
            assert_eq!(answer, asked.answer);
            // The last bits of inverse frequencies, which are f32 in transformers, count as often
            // as the position says.
            assert!(error < 3e-5, "off by {error:e}");
        }
    }
}

fn all_of(target: &str) {
    for (dtype, number) in [DType::BF16, DType::F32].into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 1)]) {
        answers_are_transformers(target, dtype, number);
    }
}

#[test]
fn host() {
    all_of("host");
}

#[test]
fn gfx1151() {
    answers_are_transformers("gfx1151", DType::BF16, 0);
}

#[test]
#[ignore = "an emulated chip takes its time: cargo test -p atomc-tests --test long_prompts -- --ignored --nocapture"]
fn gfx1151_in_full() {
    all_of("gfx1151");
}

#[test]
#[ignore = "an emulated chip takes its time: cargo test -p atomc-tests --test long_prompts -- --ignored --nocapture"]
fn gfx1201_in_full() {
    all_of("gfx1201");
}
