//! Greedy generation takes the tokens that the kernels picked: they are those of the logits.
use std::ops::ControlFlow;

use atomc::driver::{self, Options};
use atomc_passes::BucketOptions;
use atomc_runtime::sample::greedy;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Params, Request, Want, generate};
use atomc_tests::{Case, cases};

fn engine(case: &Case) -> Engine {
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens: 32, rows: 8 };
    let options = Options { buckets, ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let plans = &compiled.manifest.targets[0].plans;
    assert!(plans.iter().all(|plan| plan.picks.is_some_and(|picks| picks.stride == 1)));
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let options = EngineOptions { cache_tokens: 512, threads: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens");
    engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
    engine
}

/// An answer made of logits.
fn of_logits(engine: &mut Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let sequence = engine.add_sequence();
    let (mut answer, mut tokens) = (vec![], prompt.to_vec());
    while answer.len() < count {
        let logits = engine.step(&[Request { sequence, tokens: &tokens, logits: Want::Last }]).expect("a step");
        tokens = vec![greedy(logits.last(0).expect("a row"))];
        answer.push(tokens[0]);
    }
    engine.drop_sequence(sequence).expect("a live sequence");
    answer
}

#[test]
fn picks_are_those_of_the_logits() {
    let case = cases().into_iter().find(|c| c.name == "qwen3").expect("the case is there");
    let mut engine = engine(&case);
    let vocab = engine.model().vocab as u32;
    let prompt = |i: u32| (0..5 + 11 * i).map(|k| (k * 7 + i * 13) % vocab).collect::<Vec<u32>>();
    let prompts: Vec<Vec<u32>> = (0..4).map(prompt).collect();
    let params = Params { max_new: 12, ..Params::default() };
    for prompt in &prompts {
        let answer =
            generate::generate(&mut engine, prompt, &params, |_| ControlFlow::Continue(())).expect("an answer");
        assert_eq!(answer.tokens, of_logits(&mut engine, prompt, 12));
    }

    // Several sequences in a step: of each, the pick of its last row.
    let mut step = |want| {
        let request = |prompt| Request { sequence: engine.add_sequence(), tokens: prompt, logits: want };
        let requests: Vec<Request> = prompts.iter().map(Vec::as_slice).map(request).collect();
        match want {
            Want::All => engine.step_greedy(&requests).expect("a step"),
            _ => {
                let logits = engine.step(&requests).expect("a step");
                (0..requests.len()).map(|i| logits.last(i).map(greedy)).collect()
            }
        }
    };
    assert_eq!(step(Want::All), step(Want::Last));
}
