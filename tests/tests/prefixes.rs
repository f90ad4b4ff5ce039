//! Beginnings that sequences share in models with a recurrent state: a sequence that resumes from a
//! snapshot, or from the end of another, gives the bits that it gives alone.
mod engines;

use std::collections::HashMap;

use atomc::driver::Options;
use atomc_passes::BucketOptions;
use atomc_runtime::{Engine, EngineOptions, Request, SeqId, Want};
use atomc_tests::random::Random;
use atomc_tests::{Case, cases_with_states};

/// Positions of the models.
const CONTEXT: usize = 256;
/// Tokens of a block of the host's cache.
const BLOCK: usize = 32;

/// A case for longer sequences.
fn longer(mut case: Case, context: usize) -> Case {
    case.config.context = context;
    case
}

fn case(name: &str, context: usize) -> Case {
    let found = cases_with_states().into_iter().find(|case| case.name == name);
    longer(found.unwrap_or_else(|| panic!("no case {name}")), context)
}

/// Engines with the same code, one for each of the options.
fn engines<const N: usize>(case: &Case, tokens: usize, options: [EngineOptions; N]) -> [Engine; N] {
    let buckets = BucketOptions { decode: vec![1, 4], each: 1, tokens, rows: 16 };
    let model = engines::Model { config: &case.config, dir: &case.dir, drafts: false, head: None };
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    engines::engines(&model, compiling, options.map(|options| EngineOptions { threads: 2, ..options }))
}

/// Gives a sequence tokens, and returns the bits of the logits after the last of them.
fn feed(engine: &mut Engine, sequence: SeqId, tokens: &[u32]) -> Vec<u32> {
    let logits = engine.step(&[Request { sequence, tokens, logits: Want::Last }]).expect("a step");
    logits.last(0).expect("a row").iter().map(|value| value.to_bits()).collect()
}

fn alone(engine: &mut Engine, tokens: &[u32]) -> Vec<u32> {
    let sequence = engine.add_sequence();
    let bits = feed(engine, sequence, tokens);
    engine.drop_sequence(sequence).expect("a live sequence");
    bits
}

/// A prompt with a beginning that others share, up to any token of it.
fn shares(case: &Case) {
    let options = EngineOptions { cache_tokens: 2048, slots: 24, snapshot_tokens: BLOCK, ..EngineOptions::default() };
    let [mut engine, mut other] = engines(case, 64, [options.clone(), options]);
    let mut random = Random(3);
    let vocab = case.config.vocab;
    let prompt = random.tokens(150, vocab);
    let parent = engine.add_sequence();
    feed(&mut engine, parent, &prompt);
    for (tokens, shared) in [(31, 0), (32, 32), (100, 96), (128, 128), (149, 128), (150, 150)] {
        let fork = engine.fork(parent, tokens).expect("tokens that it has");
        assert_eq!(fork.tokens, shared, "{}", case.name);
        let rest = [&prompt[shared..tokens], &random.tokens(9, vocab)].concat();
        let before = engine.tokens_run();
        let found = feed(&mut engine, fork.sequence, &rest);
        assert_eq!(engine.tokens_run() - before, rest.len() as u64);
        let want = alone(&mut other, &[&prompt[..shared], &rest].concat());
        assert!(found == want, "{}: {tokens} tokens of another", case.name);
    }
    // The parent continues, and goes back.
    let more = random.tokens(70, vocab);
    let want = alone(&mut other, &[&prompt[..], &more].concat());
    assert!(feed(&mut engine, parent, &more) == want, "{}", case.name);
    for (back, left) in [(200, 192), (170, 160), (140, 128), (20, 0)] {
        assert_eq!(engine.rewind(parent, back).expect("a live sequence"), left);
        let whole = [&prompt[..], &more].concat();
        let rest = [&whole[left..back], &random.tokens(5, vocab)].concat();
        let want = alone(&mut other, &[&whole[..left], &rest].concat());
        assert!(feed(&mut engine, parent, &rest) == want, "{}: back to {back}", case.name);
        engine.rewind(parent, left).expect("a live sequence");
        feed(&mut engine, parent, &whole[left..back]);
    }
}

#[test]
fn shared_beginnings_change_no_bit() {
    cases_with_states().into_iter().for_each(|case| shares(&longer(case, CONTEXT)));
}

/// A sequence for each next token that is tried, as sampling of several answers and beams have:
/// their common beginning is not computed again.
#[test]
fn beams_go_on_from_where_they_part() {
    let case = case("hybrid-next", CONTEXT);
    let options = EngineOptions { cache_tokens: 2048, slots: 9, ..EngineOptions::default() };
    let [mut engine, mut other] = engines(&case, 64, [options.clone(), options]);
    let mut random = Random(5);
    let mut beams = vec![(engine.add_sequence(), random.tokens(41, case.config.vocab))];
    feed(&mut engine, beams[0].0, &beams[0].1);
    for _ in 0..12 {
        let before = engine.tokens_run();
        let mut next = vec![];
        for (number, (sequence, tokens)) in beams.iter().enumerate() {
            // Two sequences continue each of them.
            for choice in 0..2 {
                let fork = engine.fork(*sequence, tokens.len()).expect("a beam");
                assert_eq!(fork.tokens, tokens.len());
                let token = (7 * tokens.len() + 3 * number + choice) % case.config.vocab;
                let longer = [&tokens[..], &[token as u32]].concat();
                let found = feed(&mut engine, fork.sequence, &longer[tokens.len()..]);
                assert!(found == alone(&mut other, &longer), "{longer:?}");
                next.push((fork.sequence, longer));
            }
        }
        assert_eq!(engine.tokens_run() - before, next.len() as u64);
        let left = next.split_off(next.len().min(3));
        beams.into_iter().chain(left).for_each(|(id, _)| engine.drop_sequence(id).expect("a beam"));
        beams = next;
    }
}

/// With snapshots where prompts are cut in any case.
#[test]
fn a_long_beginning_is_computed_once() {
    const LONG: usize = 10_000;
    let case = case("hybrid-next", LONG + 512);
    let with = EngineOptions { cache_tokens: 4 * LONG, ..EngineOptions::default() };
    let without = EngineOptions { snapshot_tokens: usize::MAX, ..with.clone() };
    let [mut engine, mut other] = engines(&case, 512, [with, without]);
    let mut random = Random(9);
    let vocab = case.config.vocab;
    let beginning = random.tokens(LONG, vocab);
    let questions = [17, 40].map(|count| random.tokens(count, vocab));
    let answers = |engine: &mut Engine| {
        let first = engine.add_sequence();
        let mut bits = vec![feed(engine, first, &[&beginning[..], &questions[0]].concat())];
        let fork = engine.fork(first, LONG).expect("its beginning");
        let rest = [&beginning[fork.tokens..], &questions[1]].concat();
        bits.push(feed(engine, fork.sequence, &rest));
        (bits, fork.tokens, engine.tokens_run() as usize)
    };
    let (found, want) = (answers(&mut engine), answers(&mut other));
    let shared = LONG / 512 * 512;
    let all = 2 * LONG + questions.iter().map(Vec::len).sum::<usize>();
    assert_eq!((found.1, found.2), (shared, all - shared));
    assert_eq!((want.1, want.2), (0, all), "without snapshots all is computed again");
    assert!(found.0 == want.0);
    assert_eq!(engine.cache().snapshots(), LONG / 512);
}

/// More sequences than there are slots for their snapshots: the older ones go, and nothing else
/// changes.
#[test]
fn snapshots_go_where_slots_are_wanted() {
    let case = case("hybrid-3.5", CONTEXT);
    let options = EngineOptions { cache_tokens: 2048, slots: 6, snapshot_tokens: BLOCK, ..EngineOptions::default() };
    let [mut engine, mut other] = engines(&case, 64, [options.clone(), options]);
    let mut random = Random(11);
    let vocab = case.config.vocab;
    let prompts: Vec<Vec<u32>> = (0..5).map(|_| random.tokens(100, vocab)).collect();
    let mut live = vec![];
    for (number, prompt) in prompts.iter().enumerate() {
        let sequence = engine.add_sequence();
        assert!(feed(&mut engine, sequence, prompt) == alone(&mut other, prompt));
        live.push(sequence);
        let slots = engine.cache().free_slots() + engine.cache().snapshots() + live.len();
        assert_eq!((slots, engine.cache().snapshots()), (6, (3 * live.len()).min(5 - number)));
    }
    let shared: Vec<usize> = live
        .iter()
        .zip(&prompts)
        .rev()
        .map(|(&parent, prompt)| {
            let fork = engine.fork(parent, 99).expect("its beginning");
            let rest = [&prompt[fork.tokens..99], &[1, 2]].concat();
            let found = feed(&mut engine, fork.sequence, &rest);
            assert!(found == alone(&mut other, &[&prompt[..fork.tokens], &rest].concat()));
            engine.drop_sequence(fork.sequence).expect("a live sequence");
            fork.tokens
        })
        .collect();
    assert_eq!(shared, [96, 0, 0, 0, 0], "the last snapshot of the last prompt is left");
    live.into_iter().for_each(|id| engine.drop_sequence(id).expect("a live sequence"));
    assert_eq!((engine.cache().free_slots(), engine.cache().snapshots()), (6, 0));
}

/// Random admissions of prompts that begin alike, growth, returns and ends, with few slots: every
/// row of logits is that of an engine that shares nothing.
#[test]
fn any_admissions_give_the_bits_of_one_alone() {
    let case = case("hybrid-next-dense", CONTEXT);
    let options = EngineOptions { cache_tokens: 2048, slots: 7, snapshot_tokens: BLOCK, ..EngineOptions::default() };
    let without = EngineOptions { snapshot_tokens: usize::MAX, ..options.clone() };
    let [mut engine, mut other] = engines(&case, 64, [options, without]);
    let mut random = Random(13);
    let vocab = case.config.vocab;
    let mut live: Vec<(SeqId, Vec<u32>)> = vec![];
    let mut known: HashMap<Vec<u32>, Vec<u32>> = HashMap::new();
    let mut met = [0; 3];
    for _ in 0..600 {
        match if live.len() > 5 { 3 } else { random.below(6) } {
            0 | 1 if !live.is_empty() => {
                let (parent, tokens) = &live[random.below(live.len())];
                let wanted = random.below(tokens.len() + 1);
                let fork = engine.fork(*parent, wanted).expect("tokens that it has");
                met[0] += usize::from(fork.tokens > 0);
                live.push((fork.sequence, tokens[..fork.tokens].to_vec()));
            }
            2 if !live.is_empty() => {
                let index = random.below(live.len());
                let (sequence, tokens) = &mut live[index];
                let left = engine.rewind(*sequence, random.below(tokens.len() + 1)).expect("a live sequence");
                met[1] += usize::from(left > 0 && left < tokens.len());
                tokens.truncate(left);
            }
            3 if !live.is_empty() => {
                let (sequence, _) = live.swap_remove(random.below(live.len()));
                engine.drop_sequence(sequence).expect("a live sequence");
            }
            _ => {
                let index = random.below(live.len() + 1);
                if index == live.len() {
                    live.push((engine.add_sequence(), vec![]));
                }
                let (sequence, tokens) = &mut live[index];
                let count = (1 + random.below(60)).min(CONTEXT - tokens.len());
                if count == 0 {
                    continue;
                }
                // Few different tokens, so that sequences meet.
                let new = random.tokens(count, vocab.min(5));
                tokens.extend(&new);
                let found = feed(&mut engine, *sequence, &new);
                let want = known.entry(tokens.clone()).or_insert_with(|| alone(&mut other, tokens));
                assert!(found == *want, "{tokens:?}");
                met[2] += 1;
            }
        }
    }
    assert!(met.iter().all(|&count| count > 5), "{met:?}");
}
