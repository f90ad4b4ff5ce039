//! Beginnings of prompts that leave an engine's cache and come back: answers are, to the last bit
//! of how likely each token was, those of an engine that computes all.
//!
//! With `ATOMC_TEST_LONG` all 500 problems of the example are asked, and without it 40.
mod asked;
mod engines;

use std::path::{Path, PathBuf};

use atomc::driver::Options;
use atomc::emulated::Emulated;
use atomc_passes::BucketOptions;
use atomc_runtime::device::{Device, DeviceChoice};
use atomc_runtime::offload::{Counts, Room};
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Offload, Sampling, checkpoint};
use atomc_server::schedule::{self, Scheduler, Settings};
use atomc_server::text::Text;
use atomc_tests::pieces;
use atomc_tests::random::Random;

use asked::{Answers, Asked, CONTEXT, answers, ask, asked, case, check, pressed};

/// Memory of the host for all that is asked here.
const MEMORY: u64 = 64 << 20;

fn is_long() -> bool {
    std::env::var_os("ATOMC_TEST_LONG").is_some()
}

/// A scheduler over an engine with a place for what leaves its cache.
fn scheduler(mut engine: Engine, room: &Room, (running, speculate): (usize, usize)) -> Scheduler<Engine> {
    let weights = engine.weights_hash().expect("weights");
    let offload = Offload::new(engine.cache_layout(&weights), room).expect("a place");
    let options = schedule::Options { running, step_tokens: 0, prefix_cache: true, speculate };
    Scheduler::new(engine, options).with_offload(offload)
}

fn counts(scheduler: &Scheduler<Engine>) -> Counts {
    scheduler.offloaded().expect("a place")
}

/// Asks twice, and gives what of the second round's prompts was there already, in hundredths.
fn twice(name: &str, scheduler: &mut Scheduler<Engine>, (expect, asked): (&Answers, &[Asked])) -> u64 {
    check(name, &ask(scheduler, asked), (expect, asked));
    let (before, offloaded) = (scheduler.counts(), counts(scheduler));
    check(name, &ask(scheduler, asked), (expect, asked));
    let (after, now) = (scheduler.counts(), counts(scheduler));
    let cached = (after.cached_tokens - before.cached_tokens) * 100 / (after.prompt_tokens - before.prompt_tokens);
    println!("{name}: {cached} % of the second round, {} tokens copied back; {now:?}", now.tokens - offloaded.tokens);
    assert!(now.tokens > offloaded.tokens, "{name}: {now:?}");
    assert_eq!(now.damaged, 0, "{name}");
    cached
}

/// Asks, and then goes on behind the answers. Gives what of the later prompts was there already, in
/// hundredths.
fn goes_on(name: &str, alone: Engine, small: Scheduler<Engine>, asked: &[Asked]) -> u64 {
    let (mut alone, mut small) = (Scheduler::new(alone, ALONE), small);
    let first = ask(&mut alone, asked);
    let more = |number: usize| {
        let said = first[number].iter().map(|&(token, _)| token);
        let next = [number as u32, 3, 1, 2, 5];
        Asked {
            prompt: asked[number].prompt.iter().copied().chain(said).chain(next).collect(),
            ..asked[number].clone()
        }
    };
    let later: Vec<Asked> = (0..asked.len()).map(more).collect();
    let second = ask(&mut alone, &later);
    check(name, &ask(&mut small, asked), (&first, asked));
    let before = small.counts();
    check(name, &ask(&mut small, &later), (&second, &later));
    let (after, now) = (small.counts(), counts(&small));
    let cached = (after.cached_tokens - before.cached_tokens) * 100 / (after.prompt_tokens - before.prompt_tokens);
    println!(
        "{name}: {cached} % of later prompts, {} tokens copied back, {} hits",
        now.tokens,
        now.host_hits + now.file_hits
    );
    assert!(now.tokens > 0 && now.damaged == 0, "{name}: {now:?}");
    cached
}

/// One request at a time, each computed anew.
const ALONE: schedule::Options = schedule::Options { running: 1, step_tokens: 0, prefix_cache: false, speculate: 0 };

/// Kinds of caches, by a model that has them. Those from `SHORT` on are asked with
/// `ATOMC_TEST_LONG`.
const KINDS: [(&str, &str); 12] = [
    ("q-cache", "keys and values of heads in bytes, with scales"),
    ("gemma3", "windows beside whole layers"),
    ("q-cache-latent", "latent numbers in bytes"),
    ("dsa-v3.2", "rows of an index beside latent numbers"),
    ("family-deepseekv4", "rows of blocks beside windows"),
    ("family-minimaxm3text", "keys that blocks are chosen by"),
    ("hybrid-next", "a recurrent state beside pages"),
    ("qwen3", "keys and values of heads"),
    ("mistral", "a window"),
    ("mla-v3", "latent numbers"),
    ("family-lfm2", "a convolution's state beside pages"),
    ("family-falconh1", "both in one layer"),
];
const SHORT: usize = 7;

#[test]
fn all_kinds_of_caches_come_back() {
    for (name, kind) in &KINDS[..if is_long() { KINDS.len() } else { SHORT }] {
        let case = case(name);
        let [alone, small] = pressed(&case, [1024, 320]);
        let asked = &short(case.config.vocab)[..8];
        let room = Room { host_bytes: MEMORY, files: None };
        let cached = goes_on(&format!("{name} ({kind})"), alone, scheduler(small, &room, (2, 0)), asked);
        assert!(cached >= 60, "{name}: {cached} %");
    }
}

/// Prompts with short answers.
fn short(vocab: usize) -> Vec<Asked> {
    let mut asked = asked(vocab);
    asked.iter_mut().for_each(|one| one.settings.max_new = one.settings.max_new / 2 + 3);
    asked
}

/// The pieces of all ranks, and of all stages, are one.
#[test]
fn pieces_of_ranks_come_back() {
    for (name, ranks, stages) in [("llama3", 2, 1), ("mla-kimi", 2, 1), ("hybrid-next-dense", 2, 1), ("gemma3", 1, 2)] {
        let case = case(name);
        let buckets = BucketOptions { decode: vec![1, 2], each: 1, tokens: 48, rows: 6 };
        let compiling = Options { buckets, ranks, stages, invariant: true, ..Options::default() };
        let compiled = atomc::driver::compile(&case.config, &compiling, &mut |_, _, _| ()).expect("it compiles");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.atomc");
        compiled.write(&path).expect("an artifact");
        let engine = |cache_tokens| {
            let artifact = Artifact::open(&path).expect("a whole artifact");
            let device = |_| -> Box<dyn Device> { DeviceChoice::default().open(&artifact, 1).expect("a device") };
            let devices = (0..ranks * stages).map(device).collect();
            let options = EngineOptions { cache_tokens, slots: 6, snapshot_tokens: 32, ..EngineOptions::default() };
            let artifact = Artifact::open(&path).expect("a whole artifact");
            let mut engine = Engine::with_devices(artifact, "host", devices, &options).expect("an engine");
            engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
            engine
        };
        let asked = &short(case.config.vocab)[..6];
        let folder = tempfile::tempdir().expect("a folder");
        let room = Room { host_bytes: 0, files: Some((folder.path().to_owned(), MEMORY)) };
        let what = format!("{name} on {ranks} ranks in {stages} stages");
        let cached = goes_on(&what, engine(1024), scheduler(engine(256), &room, (2, 0)), asked);
        assert!(cached >= 60, "{what}: {cached} %");
    }
}

/// Pieces of a device with memory of its own, on a chip that is emulated: a sequence that left its
/// cache and came back goes on as before, to the last bit.
#[test]
fn pieces_of_a_chip_come_back() {
    const CHIP: &str = "gfx942";
    for name in ["llama3", "hybrid-next-dense"] {
        let case = case(name);
        let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 80, rows: 1 };
        let compiling = Options { targets: vec![CHIP.into()], buckets, ..Options::default() };
        let compiled = atomc::driver::compile(&case.config, &compiling, &mut |_, _, _| ()).expect("it compiles");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.atomc");
        compiled.write(&path).expect("an artifact");
        let artifact = Artifact::open(&path).expect("a whole artifact");
        let device = Box::new(Emulated::open(&artifact, CHIP, 2, Default::default()).expect("a chip"));
        let options = EngineOptions { cache_tokens: 256, slots: 4, ..EngineOptions::default() };
        let mut engine = Engine::with_device(artifact, CHIP, device, &options).expect("an engine");
        engine.load_weights(&Checkpoint::open(&case.dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
        assert_eq!(engine.weights_hash().expect("weights"), engine.weights_hash().expect("weights"));
        pieces::check(name, &mut engine, &Random(5).tokens(71, case.config.vocab), None);
    }
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/qwen3")
}

/// The first problems of the example, with the probability of each token of their answers.
fn problems(count: usize) -> Vec<Asked> {
    let text = Text::open(&example().join("tokenizer.json")).expect("a tokenizer");
    let problems = example().join("../../problems.jsonl");
    let lines = std::fs::read_to_string(problems).expect("problems");
    let problem = |line: &str| {
        let problem: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let prompt = text.encode(problem["prompt"].as_str().expect("a prompt"), true, CONTEXT).expect("tokens");
        let settings =
            Settings { max_new: 32, sampling: Sampling::default(), logprobs: Some(1), ..Settings::default() };
        Asked { prompt, settings, adapter: None }
    };
    lines.lines().take(count).map(problem).collect()
}

/// Engines for the example, of which each has a cache of so many tokens.
fn example_engines<const N: usize>(caches: [usize; N], head: Option<&Path>) -> [Engine; N] {
    let (dir, each) = (example(), if head.is_some() { 4 } else { 1 });
    let mut config = atomc_config::read(&dir).expect("a configuration");
    config.context = CONTEXT;
    let buckets = BucketOptions { decode: vec![1, 4], each, tokens: 64, rows: 16 };
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    let model = engines::Model { config: &config, dir: &dir, drafts: head.is_some(), head };
    let draft = head.is_some();
    let options = |cache_tokens| EngineOptions { threads: 2, cache_tokens, draft, ..EngineOptions::default() };
    engines::engines(&model, compiling, caches.map(options))
}

/// A trained model's problems in two rounds, with a cache for a tenth of them: of the second
/// round's prompts nine tenths at least are not computed, wherever they were.
#[test]
fn problems_come_back_from_a_tenth_of_the_cache() {
    let asked = problems(if is_long() { 500 } else { 40 });
    let block = 32;
    let need: usize = asked.iter().map(|one| (one.prompt.len() + one.settings.max_new).next_multiple_of(block)).sum();
    let [alone, first, second, third] = example_engines([1024, need / 10, need / 10, need / 10], None);
    assert_eq!(alone.cache().block_tokens(), block);
    let (expect, _) = answers(alone, (1, 0), &asked);
    let folder = tempfile::tempdir().expect("a folder");
    let files = Some((folder.path().to_owned(), 1 << 30));
    let rooms = [
        ("memory", Room { host_bytes: 1 << 30, files: None }),
        ("files", Room { host_bytes: 0, files: files.clone() }),
        ("memory, and files behind it", Room { host_bytes: 1 << 20, files }),
    ];
    for ((name, room), engine) in rooms.into_iter().zip([first, second, third]) {
        let cached = twice(name, &mut scheduler(engine, &room, (2, 0)), (&expect, &asked));
        assert!(cached >= 90, "{name}: {cached} %");
    }
}

/// Pages of a draft travel with those of the model; guesses change no answer.
#[test]
fn pages_of_a_draft_come_back() {
    let asked = problems(20);
    let head = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/qwen3-eagle3");
    let [alone, small] = example_engines([1024, 256], Some(&head));
    let (expect, _) = answers(alone, (1, 0), &asked);
    let mut scheduler = scheduler(small, &Room { host_bytes: MEMORY, files: None }, (2, 3));
    assert!(twice("qwen3 with a draft", &mut scheduler, (&expect, &asked)) >= 90);
    assert!(scheduler.counts().guesses_right > 0);
}

/// The next process finds what this one has left, if its weights are the same.
#[test]
fn files_are_those_of_the_same_weights() {
    let asked = problems(12);
    let [alone, first, second, mut other] = example_engines([1024, 256, 256, 256], None);
    let (expect, _) = answers(alone, (1, 0), &asked);
    let folder = tempfile::tempdir().expect("a folder");
    let room = Room { host_bytes: 0, files: Some((folder.path().to_owned(), MEMORY)) };
    for (name, engine, hits) in [("first", first, false), ("second", second, true)] {
        let mut scheduler = scheduler(engine, &room, (2, 0));
        check(name, &ask(&mut scheduler, &asked), (&expect, &asked));
        scheduler.save();
        assert_eq!(counts(&scheduler).file_hits > 0, hits, "{name}: {:?}", counts(&scheduler));
    }
    other.load_weights(&checkpoint::Random { seed: 1 }, &|_, _| ()).expect("weights");
    assert_eq!(counts(&scheduler(other, &room, (2, 0))).file_bytes, 0, "files of other weights are gone");
}
