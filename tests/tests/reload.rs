//! New weights in an open engine, and leftovers of old ones: a sequence after broken weights is as
//! if they had never been.
use atomc::driver::{self, Options};
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Request, StepError, Want};
use atomc_tests::{Case, cases};

/// A checkpoint in which every number is NaN.
struct Broken<'a>(&'a Checkpoint, Vec<u8>);

impl Source for Broken<'_> {
    fn tensor(&self, _: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        Ok(Tensor::Bytes { float: Float::BF16, bytes: &self.1[..2 * shape.iter().product::<usize>()] })
    }

    fn names(&self) -> Vec<&str> {
        self.0.names()
    }
}

fn engine(case: &Case) -> Engine {
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 32 };
    let options = Options { buckets, ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let options = EngineOptions { cache_tokens: 64, threads: 2, ..EngineOptions::default() };
    Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens")
}

fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let sequence = engine.add_sequence();
    let mut all = Vec::new();
    for part in [&tokens[..4], &tokens[4..5]] {
        let out = engine.step(&[Request { sequence, tokens: part, logits: Want::All }]).expect("a step");
        all.extend(out.of(0).flatten());
    }
    engine.drop_sequence(sequence).expect("a live sequence");
    all
}

#[test]
fn broken_weights_leave_nothing_behind() {
    let case = cases().into_iter().find(|c| c.name == "qwen3").expect("the case is there");
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    let broken = Broken(&checkpoint, vec![0xff; 1 << 20]);
    let tokens = [5, 9, 2, 7, 11];

    let mut fresh = engine(&case);
    fresh.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    let want = logits(&mut fresh, &tokens);
    assert!(want.iter().all(|v| v.is_finite()));

    let mut reused = engine(&case);
    reused.load_weights(&broken, &|_, _| ()).expect("weights of the right shapes");
    let sequence = reused.add_sequence();
    let failed = reused.step(&[Request { sequence, tokens: &tokens, logits: Want::All }]);
    assert!(matches!(failed, Err(StepError::NotFinite(_))));
    reused.drop_sequence(sequence).expect("a live sequence");
    reused.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    assert_eq!(logits(&mut reused, &tokens), want);
}
