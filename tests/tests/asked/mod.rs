//! What is asked of schedulers over engines, and what they answer.
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use atomc::driver::Options;
use atomc_passes::BucketOptions;
use atomc_runtime::{Engine, EngineOptions, Sampling};
use atomc_server::schedule::{
    self, Chosen, Counts, End, Job, JobError, Likelihood, Output, Party, Scheduler, Settings,
};
use atomc_tests::random::Random;
use atomc_tests::{Case, cases, cases_of_experts, cases_with_states};

use super::engines;

pub const CONTEXT: usize = 256;

pub fn case(name: &str) -> Case {
    let found = [cases(), cases_of_experts(), cases_with_states()].into_iter().flatten().find(|case| case.name == name);
    let mut case = found.unwrap_or_else(|| panic!("no case {name}"));
    case.config.context = CONTEXT;
    case
}

/// Engines for a case's requests with `--invariant`, each with a cache of so many tokens.
pub fn pressed<const N: usize>(case: &Case, cache_tokens: [usize; N]) -> [Engine; N] {
    let options = |cache_tokens| EngineOptions {
        threads: 2,
        cache_tokens,
        slots: 6,
        snapshot_tokens: 32,
        ..EngineOptions::default()
    };
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens: 48, rows: 6 };
    let model = engines::Model { config: &case.config, dir: &case.dir, drafts: false, head: None };
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    engines::engines(&model, compiling, cache_tokens.map(options))
}

/// What was said: tokens, each with the bits of how likely it was.
pub type Said = Arc<Mutex<Vec<(u32, u32)>>>;

pub struct Ear(Said);

impl Output for Ear {
    fn begin(&mut self, _: usize, _: Vec<Likelihood>) {}

    fn token(&mut self, chosen: Chosen) -> ControlFlow<()> {
        let likely = chosen.likelihood.map_or(0, |likelihood| likelihood.logprob.to_bits());
        self.0.lock().expect("no panic").push((chosen.token, likely));
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<End, JobError>) {
        end.expect("an answer");
    }

    fn is_gone(&self) -> bool {
        false
    }
}

/// A prompt, and how it is answered.
#[derive(Clone)]
pub struct Asked {
    pub prompt: Vec<u32>,
    pub settings: Settings,
    /// The slot of its adapter.
    pub adapter: Option<usize>,
}

/// What was said of each request.
pub type Answers = Vec<Vec<(u32, u32)>>;

/// Answers of an engine that takes so many requests at once, with so many guesses.
pub fn answers(engine: Engine, (running, speculate): (usize, usize), asked: &[Asked]) -> (Answers, Counts) {
    let options = schedule::Options { running, step_tokens: 0, prefix_cache: running > 1, speculate };
    let mut scheduler = Scheduler::new(engine, options);
    let answers = ask(&mut scheduler, asked);
    (answers, scheduler.counts())
}

/// Answers of a scheduler.
pub fn ask(scheduler: &mut Scheduler<Engine>, asked: &[Asked]) -> Answers {
    let mut said = vec![];
    for (index, Asked { prompt, settings, adapter }) in asked.iter().cloned().enumerate() {
        let ear = Said::default();
        let output = Box::new(Ear(ear.clone()));
        scheduler.add(vec![Job {
            prompt,
            party: Party { adapter, salt: None },
            images: None,
            settings,
            guide: None,
            output,
        }]);
        said.push(ear);
        // Some come while others are under way.
        (0..index % 3).for_each(|_| scheduler.step());
    }
    for _ in 0..1_000 * asked.len() {
        if scheduler.is_idle() {
            break;
        }
        scheduler.step();
    }
    assert!(scheduler.is_idle() && scheduler.down().is_none());
    said.iter().map(|said| said.lock().expect("no panic").clone()).collect()
}

pub fn asked(vocab: usize) -> Vec<Asked> {
    let mut random = Random(11);
    let beginnings = [random.tokens(70, vocab), random.tokens(100, vocab)];
    let one = |index: usize| {
        let shared = &beginnings[index % 2][..[0, 40, 70, 64][index / 2 % 4]];
        let own = 1 + random.below(40);
        let prompt = [shared, &random.tokens(own, vocab)].concat();
        let temperature = if index.is_multiple_of(3) { 0.8 } else { 0.0 };
        let sampling = Sampling { temperature, seed: index as u64, ..Sampling::default() };
        // Requests without likelihoods are greedy steps of the engine's own, if a step has no
        // others.
        let logprobs = (index % 4 < 2).then_some(1);
        let settings = Settings { max_new: 20 + index * 7 % 60, sampling, logprobs, ..Settings::default() };
        Asked { prompt, settings, adapter: None }
    };
    (0..20).map(one).collect()
}

pub fn check(name: &str, found: &Answers, (expect, asked): (&Answers, &[Asked])) {
    for (index, (found, expect)) in found.iter().zip(expect).enumerate() {
        assert_eq!(found.len(), asked[index].settings.max_new, "{name}: request {index}");
        assert_eq!(found, expect, "{name}: request {index}");
    }
}
