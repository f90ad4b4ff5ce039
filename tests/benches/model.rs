//! `cargo bench -p atomc-tests`: compiling, opening and stepping. `tests/bench/compare.sh` measures
//! a real size together with its peers.
use std::path::{Path, PathBuf};

use atomc::driver::{self, Options};
use atomc::frontend;
use atomc_passes::{BucketOptions, Cx, buckets};
use atomc_runtime::{Artifact, Engine, EngineOptions, Random, Request, Want};
use divan::Bencher;

fn main() {
    divan::main();
}

const CONFIGS: [&str; 3] = ["qwen3-0.6b", "llama-3.1-8b", "llama-3.1-70b"];

fn config(name: &str) -> frontend::Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("bench/{name}.json"));
    frontend::read(&path).expect("a good configuration")
}

fn artifact(name: &str, dir: &Path) -> PathBuf {
    let path = dir.join("m.atomc");
    let compiled = driver::compile(&config(name), &Options::default(), &mut |_, _, _| ()).expect("it compiles");
    compiled.write(&path).expect("it is written");
    path
}

/// From the configuration to the finished artifact, for every variant of the host.
#[divan::bench(args = CONFIGS, sample_count = 3, sample_size = 1)]
fn compile(bencher: Bencher, name: &str) {
    let config = config(name);
    bencher.bench_local(|| driver::compile(&config, &Options::default(), &mut |_, _, _| ()).expect("it compiles"));
}

/// All passes for one bucket.
#[divan::bench(args = CONFIGS, sample_count = 10, sample_size = 1)]
fn passes(bencher: Bencher, name: &str) {
    let graph = frontend::graph(&config(name)).expect("a graph");
    let arch = &atomc_targets::variants("host").expect("the host")[0];
    let bucket = buckets(&BucketOptions::default()).expect("buckets")[0];
    bencher.bench_local(|| driver::lower(&graph, &Cx { arch, bucket, invariant: false }, None).expect("it lowers"));
}

/// Opening and checking an artifact and loading its code.
#[divan::bench(args = CONFIGS, sample_count = 20, sample_size = 1)]
fn open(bencher: Bencher, name: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = artifact(name, dir.path());
    let options = EngineOptions { cache_tokens: 32, ..EngineOptions::default() };
    bencher.bench_local(|| Engine::new(Artifact::open(&path).expect("whole"), &options).expect("it opens"));
}

/// One decode step of Qwen3-0.6B shapes after 128 tokens.
#[divan::bench(args = [1, 2, 4, 8], sample_count = 20, sample_size = 1)]
fn decode(bencher: Bencher, batch: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = EngineOptions { cache_tokens: batch * 256, ..EngineOptions::default() };
    let path = artifact("qwen3-0.6b", dir.path());
    let mut engine = Engine::open(&path, &options).expect("it opens");
    engine.load_weights(&Random { seed: 1 }, &|_, _| ()).expect("weights");
    let prompt: Vec<u32> = (10..138).collect();
    let sequences: Vec<_> = (0..batch).map(|_| engine.add_sequence()).collect();
    for &sequence in &sequences {
        engine.step(&[Request { sequence, tokens: &prompt, logits: Want::Last }]).expect("a step");
    }
    let requests: Vec<Request> =
        sequences.iter().map(|&sequence| Request { sequence, tokens: &prompt[..1], logits: Want::Last }).collect();
    bencher.counter(divan::counter::ItemsCount::new(batch)).bench_local(|| {
        engine.step(&requests).expect("a step");
    });
}
