//! Many sequences for a while: 64 at once that begin, share beginnings, are fed in pieces,
//! answered, given up, put off where the cache is full, and begun again. Each answer is the one
//! that its prompt gets alone, memory stays as it is, and in the end every block of the cache is
//! free.
//!
//! In seconds: `ATOMC_SOAK_SECONDS=180 cargo test -p atomc-tests --test soak -- --nocapture`, on a
//! GPU with `ATOMC_TEST_DEVICE` and `ATOMC_TEST_TARGET`. Without a number it takes a few.
use std::path::Path;
use std::time::{Duration, Instant};

use atomc::driver::{self, Options};
use atomc::frontend;
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, KvError, Request, SeqId, StepError, Want};
use atomc_tests::random::Random;

/// Sequences at once.
const SEQUENCES: usize = 64;
/// Tokens of the cache: fewer than all sequences want on average, so that some are put off.
const CACHE: usize = 2816;
/// Slots for snapshots, in addition to those of sequences.
const SNAPSHOTS: usize = 16;
/// Positions of the model.
const CONTEXT: usize = 160;
/// Prompts; how many of them begin alike, and with how many equal tokens.
const PROMPTS: usize = 24;
const ALIKE: usize = 4;
const BEGINNING: usize = 40;
/// Bytes that memory may grow by once steps of all sizes have run: what the allocator keeps.
const GROWTH: usize = 2 << 20;

/// A prompt and the answer that it gets alone.
struct Asked {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

/// A running sequence: the prompt that it answers, and all tokens that it has or is to get.
struct Live {
    asked: usize,
    sequence: SeqId,
    tokens: Vec<u32>,
}

#[derive(Debug, Default)]
struct Counts {
    steps: usize,
    answers: usize,
    tokens: usize,
    shared: usize,
    put_off: usize,
    given_up: usize,
}

fn engine(dir: &Path) -> Engine {
    let mut config = frontend::read(dir).expect("a model");
    config.context = CONTEXT;
    let target = std::env::var("ATOMC_TEST_TARGET").unwrap_or("host".into());
    let buckets = BucketOptions { decode: vec![1, 8, 64], each: 1, tokens: 128, rows: 64 };
    let options = Options { buckets, targets: vec![target], invariant: true, ..Options::default() };
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("it compiles");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let device = std::env::var("ATOMC_TEST_DEVICE").map_or(Ok(Default::default()), |name| name.parse());
    let options = EngineOptions {
        device: device.expect("a device"),
        threads: 2,
        cache_tokens: CACHE,
        ..EngineOptions::default()
    };
    let options = EngineOptions { slots: SEQUENCES + SNAPSHOTS, snapshot_tokens: 32, ..options };
    let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens");
    engine.load_weights(&Checkpoint::open(dir).expect("a checkpoint"), &|_, _| ()).expect("weights");
    engine
}

/// Prompts, each answered alone.
fn asked(engine: &mut Engine, random: &mut Random) -> Vec<Asked> {
    let vocab = engine.model().vocab;
    let mut all = vec![];
    let mut beginning = vec![];
    for number in 0..PROMPTS {
        if number % ALIKE == 0 {
            beginning = random.tokens(BEGINNING, vocab);
        }
        let own = 1 + random.below(40);
        let prompt = [beginning.clone(), random.tokens(own, vocab)].concat();
        let (sequence, mut new, mut answer) = (engine.add_sequence(), prompt.clone(), vec![]);
        for _ in 0..4 + random.below(40) {
            let request = Request { sequence, tokens: &new, logits: Want::Last };
            new = vec![engine.step_greedy(&[request]).expect("a step")[0].expect("a token")];
            answer.extend(&new);
        }
        engine.drop_sequence(sequence).expect("a live sequence");
        all.push(Asked { prompt, answer });
    }
    all
}

/// A new sequence for a prompt. It shares the beginning that another has of it.
fn begin(engine: &mut Engine, all: &[Asked], live: &[Live], asked: usize, counts: &mut Counts) -> Live {
    let tokens = all[asked].prompt.clone();
    let common = |other: &Live| other.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
    let best = live.iter().map(|other| (common(other), other.sequence)).max_by_key(|&(common, _)| common);
    if let Some((common, other)) = best {
        // The last token of the prompt is computed in any case.
        let has = engine.sequence_len(other).expect("a live sequence");
        let fork = engine.fork(other, common.min(has).min(tokens.len() - 1)).expect("tokens that it has");
        counts.shared += usize::from(fork.tokens > 0);
        return Live { asked, sequence: fork.sequence, tokens };
    }
    Live { asked, sequence: engine.add_sequence(), tokens }
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages.split(' ').nth(1).expect("a second number").parse::<usize>().expect("a number") * 4096
}

fn soak(dir: &Path, time: Duration) {
    let mut engine = engine(dir);
    let mut random = Random(7);
    let all = asked(&mut engine, &mut random);
    let (mut live, mut counts): (Vec<Live>, Counts) = (vec![], Counts::default());
    let (start, mut before) = (Instant::now(), 0);
    let mut is_ending = false;
    while !(is_ending && live.is_empty()) {
        is_ending = start.elapsed() >= time;
        if before == 0 && start.elapsed() >= time / 3 {
            before = resident();
        }
        // One at a time, so that running sequences come to an end where the cache is full.
        if !is_ending && (live.len() < SEQUENCES / 2 || live.len() < SEQUENCES && random.below(3) == 0) {
            let new = begin(&mut engine, &all, &live, random.below(PROMPTS), &mut counts);
            live.push(new);
        }
        if random.below(100) == 0 {
            let gone = live.swap_remove(random.below(live.len()));
            engine.drop_sequence(gone.sequence).expect("a live sequence");
            counts.given_up += 1;
            continue;
        }
        let some = 1 + random.below(4);
        let mut parts = vec![];
        for (place, one) in live.iter().enumerate() {
            let rest = &one.tokens[engine.sequence_len(one.sequence).expect("a live sequence")..];
            if random.below(4) < some {
                let size = rest.len().min(1 + random.below(48));
                parts.push((place, size, size == rest.len()));
            }
        }
        let request = |&(place, size, is_last): &(usize, usize, bool)| {
            let Live { sequence, ref tokens, .. } = live[place];
            let has = engine.sequence_len(sequence).expect("a live sequence");
            Request {
                sequence,
                tokens: &tokens[has..has + size],
                logits: if is_last { Want::Last } else { Want::Nothing },
            }
        };
        let requests: Vec<Request> = parts.iter().map(request).collect();
        if requests.is_empty() {
            continue;
        }
        let picks = match engine.step_greedy(&requests) {
            Err(StepError::Kv(KvError::OutOfBlocks { .. })) => {
                // One of them begins anew later.
                let off = live.swap_remove(random.below(live.len()));
                engine.drop_sequence(off.sequence).expect("a live sequence");
                counts.put_off += 1;
                continue;
            }
            picks => picks.expect("a step"),
        };
        counts.steps += 1;
        counts.tokens += parts.iter().map(|(_, size, _)| size).sum::<usize>();
        let mut done = vec![];
        for (&(place, ..), pick) in parts.iter().zip(picks) {
            let Some(pick) = pick else { continue };
            let Live { asked, ref mut tokens, .. } = live[place];
            tokens.push(pick);
            let Asked { prompt, answer } = &all[asked];
            let has = &tokens[prompt.len()..];
            assert_eq!(has, &answer[..has.len()], "prompt {asked} of {} after {counts:?}", dir.display());
            if has.len() == answer.len() {
                done.push(place);
            }
        }
        for place in done.into_iter().rev() {
            let one = live.swap_remove(place);
            engine.drop_sequence(one.sequence).expect("a live sequence");
            counts.answers += 1;
        }
    }
    let (after, cache) = (resident(), engine.cache());
    println!("{} on {}: {counts:?}, {} bytes grown", dir.display(), engine.device_name(), after as i64 - before as i64);
    assert_eq!(cache.free_blocks(), cache.blocks(), "blocks that nobody gave back");
    assert!((0..engine.target().groups.len()).all(|group| cache.held(group).is_empty()));
    assert!(counts.answers > PROMPTS && counts.steps > 0, "{counts:?}");
    assert!(after <= before + GROWTH, "memory grew from {before} to {after} bytes");
}

/// Full attention, a window, and a recurrent state.
#[test]
fn many_sequences_for_a_while() {
    let seconds = std::env::var("ATOMC_SOAK_SECONDS").map_or(6.0, |text| text.parse().expect("a number of seconds"));
    let models = ["../examples/models/qwen3", "golden/smollm3-sliding", "golden/hybrid-next"];
    for model in models {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
        soak(&dir, Duration::from_secs_f64(seconds / models.len() as f64));
    }
}
