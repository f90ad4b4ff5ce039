//! Answers under load are those of lone requests, to the last bit of how likely each token was:
//! with prompts cut anywhere, beginnings taken from others, requests computed again, and what a
//! draft guesses.
mod engines;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use atomc::driver::Options;
use atomc_config::Adapters;
use atomc_passes::BucketOptions;
use atomc_runtime::adapters::Adapter;
use atomc_runtime::{Checkpoint, Engine, EngineOptions, Sampling};
use atomc_server::schedule::{
    self, Chosen, Counts, End, Job, JobError, Likelihood, Output, Party, Scheduler, Settings,
};
use atomc_tests::random::Random;
use atomc_tests::{Case, cases, cases_of_experts, cases_with_states};

const CONTEXT: usize = 256;

fn case(name: &str) -> Case {
    let found = [cases(), cases_of_experts(), cases_with_states()].into_iter().flatten().find(|case| case.name == name);
    let mut case = found.unwrap_or_else(|| panic!("no case {name}"));
    case.config.context = CONTEXT;
    case
}

/// What was said: tokens, each with the bits of how likely it was.
type Said = Arc<Mutex<Vec<(u32, u32)>>>;

struct Ear(Said);

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
struct Asked {
    prompt: Vec<u32>,
    settings: Settings,
    /// The slot of its adapter.
    adapter: Option<usize>,
}

/// What was said of each request.
type Answers = Vec<Vec<(u32, u32)>>;

fn answers(engine: Engine, (running, speculate): (usize, usize), asked: &[Asked]) -> (Answers, Counts) {
    let options = schedule::Options { running, step_tokens: 0, prefix_cache: running > 1, speculate };
    let mut scheduler = Scheduler::new(engine, options);
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
    for _ in 0..20_000 {
        if scheduler.is_idle() {
            break;
        }
        scheduler.step();
    }
    assert!(scheduler.is_idle() && scheduler.down().is_none());
    (said.iter().map(|said| said.lock().expect("no panic").clone()).collect(), scheduler.counts())
}

fn asked(vocab: usize) -> Vec<Asked> {
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

fn check(name: &str, found: &Answers, (expect, asked): (&Answers, &[Asked])) {
    for (index, (found, expect)) in found.iter().zip(expect).enumerate() {
        assert_eq!(found.len(), asked[index].settings.max_new, "{name}: request {index}");
        assert_eq!(found, expect, "{name}: request {index}");
    }
}

/// With a cache that has room for some requests, and with one where they are in each other's way.
#[test]
fn answers_under_load_are_those_of_lone_requests() {
    for name in ["qwen3", "mistral", "gemma3", "moe-gpt-oss", "mla-v3", "hybrid-next", "hybrid-3.5"] {
        let case = case(name);
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
        let [alone, roomy, small] = engines::engines(&model, compiling, [1024, 640, 256].map(options));
        let asked = asked(case.config.vocab);
        let (expect, _) = answers(alone, (1, 0), &asked);
        let [roomy, small] = [roomy, small].map(|engine| {
            let (found, counts) = answers(engine, (8, 0), &asked);
            check(name, &found, (&expect, &asked));
            counts
        });
        assert!(roomy.cached_tokens > 0, "{name}: {roomy:?}");
        // Windows of the second leave room for all.
        assert!(small.preempted > 0 || name == "mistral", "{name}: {small:?}");
    }
}

/// Requests with different adapters share steps and no beginnings.
#[test]
fn answers_with_adapters_are_those_of_lone_requests() {
    let mut case = case("llama3");
    case.config.adapters = Some(Adapters { slots: 2, rank: 8 });
    let options = |cache_tokens| EngineOptions { threads: 2, cache_tokens, slots: 6, ..EngineOptions::default() };
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens: 48, rows: 6 };
    let model = engines::Model { config: &case.config, dir: &case.dir, drafts: false, head: None };
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    let folder = case.dir.parent().expect("golden models").join("adapters");
    let mut all = engines::engines(&model, compiling, [1024, 4096].map(options));
    for engine in &mut all {
        let open = |name| Adapter::open(folder.join(name)).expect("an adapter");
        engine.set_adapters(["plain", "rslora"].map(open).into()).expect("room");
        engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
    }
    let [alone, loaded] = all;
    let mut asked = asked(case.config.vocab);
    // Each prompt is asked of the model and of both adapters.
    asked =
        asked.iter().flat_map(|one| [None, Some(0), Some(1)].map(|adapter| Asked { adapter, ..one.clone() })).collect();
    let (expect, _) = answers(alone, (1, 0), &asked);
    let (found, counts) = answers(loaded, (8, 0), &asked);
    check("llama3", &found, (&expect, &asked));
    assert!(counts.cached_tokens > 0, "{counts:?}");
    let differ = expect.chunks(3).filter(|one| one[0] != one[1] && one[1] != one[2] && one[0] != one[2]).count();
    assert!(differ * 3 > expect.len() / 2, "{differ} prompts have three answers");
}

/// The answers with a draft's guesses. Trained drafts have some of them right.
#[test]
fn answers_with_guesses_are_those_of_lone_requests() {
    const GUESSES: usize = 3;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (golden, models, qwen3) = (here.join("golden"), here.join("models"), here.join("../examples/models/qwen3"));
    let own = |dir: &Path| (dir.to_owned(), None);
    let all = [
        own(&golden.join("draft-next")),
        own(&golden.join("draft-3.5-moe")),
        (golden.join("draft-eagle3"), Some(golden.join("draft-eagle3/head"))),
        own(&models.join("deepseek-v3-mtp")),
        (qwen3, Some(models.join("qwen3-eagle3"))),
    ];
    for (dir, head) in all {
        let name = head.as_ref().unwrap_or(&dir).display().to_string();
        let mut config = atomc_config::read(&dir).expect("a configuration");
        config.context = CONTEXT;
        let options = |(cache_tokens, draft)| EngineOptions {
            threads: 2,
            cache_tokens,
            slots: 20,
            snapshot_tokens: 32,
            draft,
            ..EngineOptions::default()
        };
        let buckets = BucketOptions { decode: vec![1, 4, 8], each: GUESSES + 1, tokens: 64, rows: 24 };
        let compiling = Options { buckets, invariant: true, ..Options::default() };
        let model = engines::Model { config: &config, dir: &dir, drafts: true, head: head.as_deref() };
        let caches = [(1024, false), (1024, true), (256, true)].map(options);
        let [alone, roomy, small] = engines::engines(&model, compiling, caches);
        assert_eq!([&alone, &roomy].map(|engine| engine.verifies_at_once(GUESSES)), [0, 8]);
        let asked = asked(config.vocab);
        let (expect, plain) = answers(alone, (1, 0), &asked);
        assert_eq!(plain.guesses_made, 0);
        let [roomy, small] = [(roomy, 4), (small, 8)].map(|(engine, running)| {
            let (found, counts) = answers(engine, (running, GUESSES), &asked);
            check(&name, &found, (&expect, &asked));
            println!("{name}: {counts:?}");
            counts
        });
        assert!(roomy.cached_tokens > 0 && roomy.guesses_right > 0, "{name}: {roomy:?}");
        assert!(small.preempted > 0 && small.guesses_made > 0, "{name}: {small:?}");
    }
}
