//! States of sequences in an engine: slots that are used again, as many as were asked for, and left
//! alone where something else looks at a step again.
use atomc::driver::{self, Options};
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Error, KvError, Request, SeqId, StepError, Want};
use atomc_tests::{Case, cases_with_states};

/// A checkpoint with one tensor of NaN.
struct Broken<'a> {
    whole: &'a Checkpoint,
    name: &'a str,
    nan: Vec<u8>,
}

impl Source for Broken<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        match name == self.name {
            true => Ok(Tensor::Bytes { float: Float::BF16, bytes: &self.nan[..2 * shape.iter().product::<usize>()] }),
            false => self.whole.tensor(name, shape),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.whole.names()
    }
}

fn case() -> Case {
    cases_with_states().into_iter().find(|case| case.name == "hybrid-3.5").expect("the case is there")
}

fn opened(case: &Case, slots: usize) -> Result<Engine, Error> {
    let buckets = BucketOptions { decode: vec![1, 2], each: 1, tokens: 32, rows: 32 };
    let options = Options { buckets, ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let options = EngineOptions { cache_tokens: 256, threads: 2, slots, ..EngineOptions::default() };
    let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options)?;
    engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ())?;
    Ok(engine)
}

fn step(engine: &mut Engine, sequence: SeqId, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
    let out = engine.step(&[Request { sequence, tokens, logits: Want::Last }])?;
    Ok(out.of(0).flatten().copied().collect())
}

#[test]
fn as_many_as_were_asked_for() {
    let case = case();
    let mut engine = opened(&case, 2).expect("an engine");
    let [one, two, three] = [(); 3].map(|()| engine.add_sequence());
    let tokens = case.tokens(2);
    let want = step(&mut engine, one, &tokens).expect("a step");
    step(&mut engine, two, &tokens[..9]).expect("a step");
    let full = step(&mut engine, three, &tokens).expect_err("two slots");
    assert!(matches!(full, StepError::Kv(KvError::OutOfSlots { need: 1, free: 0, slots: 2 })), "{full}");
    // What another sequence left is no part of one that begins.
    engine.drop_sequence(two).expect("a live sequence");
    assert_eq!(step(&mut engine, three, &tokens).expect("a step"), want);
    let error = opened(&case, 1 << 40).expect_err("more than memory has").to_string();
    assert!(error.starts_with("slots: 1099511627776 sequences take "), "{error}");
}

/// Numbers that are not finite are searched by running launches again. The sequence goes on as if
/// that had not happened.
#[test]
fn a_search_leaves_states_as_they_are() {
    let case = case();
    let whole = Checkpoint::open(&case.dir).expect("a checkpoint");
    // A norm after every layer with a state.
    let broken = Broken { whole: &whole, name: "model.language_model.norm.weight", nan: vec![0xff; 1 << 10] };
    let tokens = case.tokens(2);
    let answer = |engine: &mut Engine, breaks: bool| {
        let sequence = engine.add_sequence();
        step(engine, sequence, &tokens[..20]).expect("a step");
        if breaks {
            engine.load_weights(&broken, &|_, _| ()).expect("weights of the right shapes");
        }
        let found = step(engine, sequence, &tokens[20..23]);
        assert_eq!(matches!(found, Err(StepError::NotFinite(_))), breaks);
        engine.load_weights(&whole, &|_, _| ()).expect("weights");
        step(engine, sequence, &tokens[23..]).expect("a step")
    };
    let mut engine = opened(&case, 0).expect("an engine");
    let want = answer(&mut engine, false);
    assert_eq!(answer(&mut engine, true), want);
}
