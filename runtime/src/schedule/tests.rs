mod guesses;

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::Sampling;

use super::toy::{Toy, VOCAB, logits, sum};

use super::*;

/// The likeliest token after these.
fn next(tokens: &[u32]) -> usize {
    sum(tokens) % VOCAB
}

/// The outcome of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Told {
    cached: Option<usize>,
    scores: usize,
    tokens: Vec<Chosen>,
    end: Option<Result<End, JobError>>,
}

#[derive(Clone, Default)]
struct Ear {
    told: Arc<Mutex<Told>>,
    gone: Arc<Mutex<bool>>,
    /// Ends the answer after this many tokens.
    enough: Option<usize>,
}

impl Ear {
    fn told(&self) -> Told {
        self.told.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<u32> {
        self.told().tokens.iter().map(|chosen| chosen.token).collect()
    }

    fn end(&self) -> Option<Result<Why, JobError>> {
        self.told().end.map(|end| end.map(|end| end.why))
    }
}

impl Output for Ear {
    fn begin(&mut self, cached: usize, prompt: Vec<Likelihood>) {
        let mut told = self.told.lock().unwrap();
        assert!(told.cached.is_none(), "it begins once");
        (told.cached, told.scores) = (Some(cached), prompt.len());
    }

    fn token(&mut self, chosen: Chosen) -> ControlFlow<()> {
        let mut told = self.told.lock().unwrap();
        told.tokens.push(chosen);
        if self.enough == Some(told.tokens.len()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(self: Box<Self>, end: Result<End, JobError>) {
        assert!(self.told.lock().unwrap().end.replace(end).is_none(), "it ends once");
    }

    fn is_gone(&self) -> bool {
        *self.gone.lock().unwrap()
    }
}

fn options(running: usize) -> Options {
    Options { running, step_tokens: 0, prefix_cache: true, speculate: 0 }
}

fn ids(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 31 + seed * 17) % VOCAB) as u32).collect()
}

fn answer(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    (0..count).for_each(|_| tokens.push(next(&tokens) as u32));
    tokens.split_off(prompt.len())
}

fn submit<B: Backend>(scheduler: &mut Scheduler<B>, prompt: Vec<u32>, settings: Settings) -> Ear {
    let ear = Ear::default();
    scheduler.add(vec![Job {
        prompt,
        party: Party::default(),
        images: None,
        settings,
        guide: None,
        output: Box::new(ear.clone()),
    }]);
    ear
}

fn salted(scheduler: &mut Scheduler<Toy>, prompt: &[u32], salt: &str) -> Ear {
    let (ear, salt) = (Ear::default(), Some(salt.into()));
    let settings = max_new(4);
    scheduler.add(vec![Job {
        prompt: prompt.to_vec(),
        party: Party { adapter: None, salt },
        images: None,
        settings,
        guide: None,
        output: Box::new(ear.clone()),
    }]);
    ear
}

fn finish<B: Backend>(scheduler: &mut Scheduler<B>) {
    for _ in 0..10_000 {
        if scheduler.is_idle() {
            return;
        }
        scheduler.step();
    }
    panic!("it does not end");
}

fn max_new(max_new: usize) -> Settings {
    Settings { max_new, ..Settings::default() }
}

/// Every cache, from one that has room for all to one that preempts all the time, gives the answers
/// that each prompt has alone.
#[test]
fn answers_under_load_are_those_of_lone_requests() {
    for (blocks, slots) in [(200, 0), (40, 0), (17, 0), (200, 40), (24, 6)] {
        for prefix_cache in [true, false] {
            let options = Options { prefix_cache, ..options(8) };
            let mut scheduler = Scheduler::new(Toy::new(blocks, slots), options);
            let all: Vec<_> = (0..30)
                .map(|i| {
                    // Some begin alike.
                    let prompt = [ids(3 * (i % 5), i % 2), ids(1 + i * 7 % 23, i)].concat();
                    let count = 1 + i * 5 % 20;
                    (submit(&mut scheduler, prompt.clone(), max_new(count)), answer(&prompt, count))
                })
                .collect();
            finish(&mut scheduler);
            for (i, (ear, expect)) in all.iter().enumerate() {
                assert_eq!(ear.ids(), *expect, "request {i} with {blocks} blocks, {slots} slots");
                assert_eq!(ear.end(), Some(Ok(Why::Length)));
            }
            let counts = scheduler.counts();
            assert_eq!(counts.preempted > 0, blocks == 17 || slots == 6 && counts.preempted > 0, "{blocks} {counts:?}");
            assert_eq!(counts.new_tokens, all.iter().map(|(_, answer)| answer.len() as u64).sum::<u64>());
            // All that is held is retained.
            scheduler.prefixes.clear(&mut scheduler.backend).unwrap();
            assert!(scheduler.backend.held.is_empty());
            assert_eq!(scheduler.gauges().free_blocks, blocks);
        }
    }
}

#[test]
fn prompts_share_a_step_with_answers_and_with_each_other() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), Options { prefix_cache: false, ..options(8) });
    submit(&mut scheduler, ids(4, 1), max_new(20));
    scheduler.step();
    submit(&mut scheduler, ids(40, 2), max_new(1));
    submit(&mut scheduler, ids(3, 3), max_new(1));
    scheduler.step();
    scheduler.step();
    finish(&mut scheduler);
    // A token of the answer, then the short prompt whole, and the rest for the long one.
    assert_eq!(scheduler.backend.steps[..4], [vec![4], vec![1, 12, 3], vec![1, 15], vec![1, 13]]);
    assert!(scheduler.backend.steps[4..].iter().all(|step| *step == [1]));
}

#[test]
fn the_first_prompt_has_half_and_the_shortest_the_rest() {
    let of = |wants: &[usize], budget| {
        let wants: Vec<(usize, usize)> = wants.iter().copied().enumerate().collect();
        let mut pieces = shares(&wants, budget);
        pieces.sort_by_key(|piece| piece.task);
        pieces.iter().map(|piece| (piece.task, piece.tokens)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[40, 3], 15), [(0, 12), (1, 3)]);
    assert_eq!(of(&[40, 30, 9], 16), [(0, 8), (2, 8)]);
    assert_eq!(of(&[40, 3, 9], 24), [(0, 12), (1, 3), (2, 9)]);
    assert_eq!(of(&[9, 9, 9], 16), [(0, 9), (1, 7)]);
    assert_eq!(of(&[9, 9, 9], 1), [(0, 1)]);
    assert_eq!(of(&[9], 0), []);
    assert_eq!(of(&[], 5), []);
}

#[test]
fn beginnings_are_computed_once() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), options(8));
    let system = ids(20, 9);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| [&system[..], &ids(3, i)].concat()).collect();
    let ears: Vec<Ear> = prompts.iter().map(|prompt| submit(&mut scheduler, prompt.clone(), max_new(3))).collect();
    finish(&mut scheduler);
    // The others wait for the first, and then begin after the whole blocks that they have in
    // common.
    assert_eq!(ears.iter().map(|ear| ear.told().cached).collect::<Vec<_>>(), [Some(0), Some(20), Some(20), Some(20)]);
    for (ear, prompt) in ears.iter().zip(&prompts) {
        assert_eq!(ear.ids(), answer(prompt, 3));
    }
    // A prompt that continues an answer begins after that answer.
    let again = [&prompts[0][..], &answer(&prompts[0], 3), &ids(5, 7)].concat();
    let ear = submit(&mut scheduler, again.clone(), max_new(2));
    finish(&mut scheduler);
    assert_eq!((ear.told().cached, ear.ids()), (Some(24), answer(&again, 2)));
    // The same prompt again computes its last block alone.
    let ear = submit(&mut scheduler, prompts[1].clone(), max_new(2));
    finish(&mut scheduler);
    assert_eq!((ear.told().cached, ear.ids()), (Some(20), answer(&prompts[1], 2)));
}

#[test]
fn requests_end_where_they_should() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), options(8));
    let prompt = ids(5, 1);
    let whole = answer(&prompt, 12);
    let stop = whole[4];
    let first = whole.iter().position(|&token| token == stop).unwrap();
    let ear = submit(&mut scheduler, prompt.clone(), Settings { stop: vec![stop], ..max_new(12) });
    let none = submit(&mut scheduler, prompt.clone(), max_new(0));
    let long = submit(&mut scheduler, ids(60, 2), max_new(100));
    let enough = Ear { enough: Some(3), ..Ear::default() };
    let output = Box::new(enough.clone());
    scheduler.add(vec![Job {
        prompt: prompt.clone(),
        party: Party::default(),
        images: None,
        settings: max_new(12),
        guide: None,
        output,
    }]);
    let late = Settings { stop: vec![stop], min_new: first + 2, ..max_new(first + 4) };
    let late = submit(&mut scheduler, prompt.clone(), late);
    finish(&mut scheduler);
    assert_eq!((ear.ids(), ear.end()), (whole[..first].to_vec(), Some(Ok(Why::Stop(Some(stop))))));
    assert_eq!((none.ids(), none.end()), (vec![], Some(Ok(Why::Length))));
    // The last token of all needs no position.
    assert_eq!((long.ids(), long.end()), (answer(&ids(60, 2), 5), Some(Ok(Why::Length))));
    assert_eq!((enough.ids(), enough.end()), (whole[..3].to_vec(), Some(Ok(Why::Output))));
    assert!(late.ids().len() >= first + 2 && late.ids()[first] != stop, "{:?}", late.ids());
    let told = |prompt: Vec<u32>, settings: Settings, scheduler: &mut Scheduler<Toy>| {
        submit(scheduler, prompt, settings).told().end.unwrap().unwrap_err().to_string()
    };
    let scheduler = &mut scheduler;
    assert_eq!(told(vec![], max_new(1), scheduler), "a prompt needs at least one token");
    assert_eq!(told(vec![1, 61], max_new(1), scheduler), "token 61 is not of the vocabulary, which ends at 60");
    assert_eq!(told(ids(65, 1), max_new(1), scheduler), "the prompt has 65 tokens, but a sequence has at most 64");
    let sampling = Sampling { top_p: 2.0, ..Sampling::default() };
    let settings = Settings { sampling, ..max_new(1) };
    assert_eq!(told(vec![1], settings, scheduler), "top_p: 2 is not a number above 0 and at most 1");
}

#[test]
fn what_nobody_waits_for_ends() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), options(1));
    let (running, waiting) =
        (submit(&mut scheduler, ids(5, 1), max_new(50)), submit(&mut scheduler, ids(5, 2), max_new(50)));
    (0..3).for_each(|_| scheduler.step());
    assert_eq!((scheduler.gauges().running, scheduler.gauges().waiting), (1, 1));
    *waiting.gone.lock().unwrap() = true;
    *running.gone.lock().unwrap() = true;
    scheduler.step();
    assert!(scheduler.is_idle());
    // Its computed tokens are retained.
    assert_eq!((scheduler.gauges().retained, running.ids().len(), waiting.ids().len()), (1, 3, 0));
}

#[test]
fn probabilities_are_the_models() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), options(4));
    let prompt = ids(9, 1);
    submit(&mut scheduler, prompt.clone(), max_new(1));
    finish(&mut scheduler);
    let settings = Settings { logprobs: Some(2), prompt_logprobs: Some(1), ..max_new(2) };
    let ear = submit(&mut scheduler, prompt.clone(), settings);
    let other = submit(&mut scheduler, ids(30, 5), max_new(4));
    finish(&mut scheduler);
    let told = ear.told();
    // Each of its rows is wanted, so nothing is taken from the cache.
    assert_eq!((told.scores, told.cached), (8, Some(0)));
    assert_eq!(other.ids(), answer(&ids(30, 5), 4));
    let found = told.tokens[0].likelihood.clone().unwrap();
    let row = logits(&prompt, VOCAB);
    let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
    assert!((f64::from(found.logprob) - (0.0 - sum.ln())).abs() < 1e-5, "{found:?}");
    assert_eq!((found.top.len(), found.top[0]), (2, (told.tokens[0].token, found.logprob)));
}

#[test]
fn sampled_answers_follow_their_seed_whatever_runs_beside() {
    let sampling = |seed| Sampling { temperature: 1.0, top_k: 8, seed, ..Sampling::default() };
    let sampled = |seed| Settings { sampling: sampling(seed), ..max_new(12) };
    let mut lone = Scheduler::new(Toy::new(200, 0), options(1));
    let expect: Vec<Vec<u32>> = (0..6)
        .map(|seed| {
            let ear = submit(&mut lone, ids(7, 3), sampled(seed));
            finish(&mut lone);
            ear.ids()
        })
        .collect();
    assert_ne!(expect[0], expect[1]);
    let mut busy = Scheduler::new(Toy::new(17, 0), options(8));
    let ears: Vec<Ear> = (0..6).map(|seed| submit(&mut busy, ids(7, 3), sampled(seed))).collect();
    (0..6).for_each(|i| _ = submit(&mut busy, ids(20, i), max_new(20)));
    finish(&mut busy);
    assert!(busy.counts().preempted > 0);
    assert_eq!(ears.iter().map(Ear::ids).collect::<Vec<_>>(), expect);
}

#[test]
fn a_request_with_bad_logits_ends_alone() {
    let mut toy = Toy::new(200, 0);
    toy.poison = Some(60);
    let mut scheduler = Scheduler::new(toy, options(8));
    let well: Vec<(Ear, Vec<u32>)> = (0..3)
        .map(|i| (submit(&mut scheduler, vec![i, 2, 3], max_new(3)), answer(&[i, 2, 3], 3)))
        .filter(|(_, answer)| !answer.contains(&60))
        .collect();
    let bad = submit(&mut scheduler, vec![1, 60, 3], max_new(3));
    finish(&mut scheduler);
    assert!(!well.is_empty());
    well.iter().for_each(|(ear, answer)| assert_eq!(ear.ids(), *answer));
    assert!(matches!(bad.end(), Some(Err(JobError::Fault(_)))), "{:?}", bad.end());
    assert_eq!(scheduler.down(), None);
}

#[test]
fn the_server_goes_on_behind_a_fault() {
    let mut toy = Toy::new(200, 0);
    toy.failing = Some(60);
    let mut scheduler = Scheduler::new(toy, options(8));
    let (bad, beside) =
        (submit(&mut scheduler, vec![1, 60, 3], max_new(3)), submit(&mut scheduler, vec![1, 2, 3], max_new(3)));
    finish(&mut scheduler);
    for ear in [bad, beside] {
        assert_eq!(ear.end(), Some(Err(JobError::Fault("toy: it was told to fail".into()))));
    }
    let after = submit(&mut scheduler, vec![1, 2, 3], max_new(3));
    finish(&mut scheduler);
    assert_eq!((after.ids(), scheduler.counts().faults), (answer(&[1, 2, 3], 3), 1));
    scheduler.give_up("the device is lost".into());
    let refused = submit(&mut scheduler, vec![1], max_new(1));
    assert_eq!(refused.end(), Some(Err(JobError::Down("the device is lost".into()))));
}

#[test]
fn a_request_that_the_cache_cannot_hold_is_refused() {
    let mut scheduler = Scheduler::new(Toy::new(4, 0), options(8));
    let long = submit(&mut scheduler, ids(17, 1), max_new(3));
    assert_eq!(long.end(), Some(Err(JobError::TooLong { tokens: 17, most: 16 })));
    let fits = submit(&mut scheduler, ids(14, 1), max_new(30));
    let next = submit(&mut scheduler, ids(9, 2), max_new(3));
    finish(&mut scheduler);
    assert_eq!((fits.ids(), next.ids()), (answer(&ids(14, 1), 3), answer(&ids(9, 2), 3)));
}

/// A request with many answers has all places while it is alone, and no more than its share with
/// others: theirs begin at once, and every answer is the one that its prompt gets alone.
#[test]
fn requests_take_turns() {
    for (blocks, prefix_cache) in [(400, true), (400, false), (40, true)] {
        let mut scheduler = Scheduler::new(Toy::new(blocks, 0), Options { prefix_cache, ..options(8) });
        let (prompt, settings) = (ids(9, 1), max_new(40));
        let ears: Vec<Ear> = (0..30).map(|_| Ear::default()).collect();
        let job = |ear: &Ear| Job {
            prompt: prompt.clone(),
            party: Party::default(),
            images: None,
            settings: settings.clone(),
            guide: None,
            output: Box::new(ear.clone()),
        };
        scheduler.add(ears.iter().map(job).collect());
        (0..6).for_each(|_| scheduler.step());
        let alone = scheduler.gauges().running;
        assert!(alone == 8 || blocks == 40, "{alone} of 8 places");
        for number in 2..8 {
            let short = ids(7, number);
            let ear = submit(&mut scheduler, short.clone(), max_new(3));
            // If the cache is small it may be computed twice.
            (0..12).for_each(|_| scheduler.step());
            assert_eq!(ear.ids(), answer(&short, 3), "request {number} waits, with {blocks} blocks");
        }
        assert!(ears.iter().any(|ear| ear.end().is_none()), "the many are still under way");
        finish(&mut scheduler);
        let expect = answer(&prompt, 40);
        assert!(ears.iter().all(|ear| ear.ids() == expect));
    }
}

#[test]
fn beginnings_are_shared_among_equal_salts_alone() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0), options(8));
    let prompt = ids(24, 1);
    // A running sequence is not shared with another salt, nor waited for.
    let ears = [salted(&mut scheduler, &prompt, "a"), salted(&mut scheduler, &prompt, "b")];
    finish(&mut scheduler);
    assert_eq!(scheduler.counts().cached_tokens, 0);
    assert_eq!(scheduler.gauges().retained, 2);
    salted(&mut scheduler, &prompt, "c");
    finish(&mut scheduler);
    submit(&mut scheduler, prompt.clone(), max_new(4));
    finish(&mut scheduler);
    assert_eq!(scheduler.counts().cached_tokens, 0);
    salted(&mut scheduler, &prompt, "b");
    finish(&mut scheduler);
    assert!(scheduler.counts().cached_tokens >= 20, "{:?}", scheduler.counts());
    ears.iter().for_each(|ear| assert_eq!(ear.ids(), answer(&prompt, 4)));
}
