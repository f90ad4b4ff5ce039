//! Answers with a draft's guesses are those without, whatever the draft is worth.
use std::time::Duration;

use super::super::toy::Draft;
use super::*;

const GUESSES: usize = 3;
const DRAFTS: [Draft; 3] = [Draft::Good, Draft::Bad, Draft::Silent];

fn toy((blocks, slots): (usize, usize), draft: Draft) -> Toy {
    Toy::new(blocks, slots).with_draft(draft, 8)
}

fn speculating(running: usize) -> Options {
    Options { speculate: GUESSES, ..options(running) }
}

/// Follows no known grammar: the allowed tokens depend on their number, and the answer is complete
/// after `most` of them.
struct Every {
    taken: Vec<u32>,
    most: usize,
}

impl Guide for Every {
    fn progress(&mut self, _within: Duration) -> Result<Progress, String> {
        Ok(Progress::Open)
    }

    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String> {
        let odd = self.taken.len() % 3 == 1;
        allowed.iter_mut().for_each(|word| *word &= if odd { 0xaaaa_aaaa } else { u32::MAX });
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<Progress, String> {
        if self.taken.len() % 3 == 1 && token.is_multiple_of(2) {
            return Err(format!("{token} is forbidden"));
        }
        self.taken.push(token);
        Ok(if self.taken.len() == self.most { Progress::Complete } else { Progress::Open })
    }
}

/// A request of each kind, some of which begin like others.
fn job(index: usize) -> (Job, Ear) {
    let prompt = [ids(3 * (index % 5), index % 2), ids(1 + index * 7 % 23, index)].concat();
    let plain = max_new(1 + index * 5 % 24);
    let heated = |temperature| Sampling { temperature, top_k: 4, seed: index as u64, ..Sampling::default() };
    let penalties = Penalties { repetition: 1.2, presence: 0.3, frequency: 0.2 };
    let settings = match index % 8 {
        1 => Settings { sampling: heated(0.5), ..plain },
        2 => Settings { penalties, ..plain },
        3 => Settings { bias: vec![(7, 3.0), (9, -4.0)], sampling: heated(0.3), ..plain },
        4 => Settings { logprobs: Some(2), prompt_logprobs: Some(1), ..plain },
        5 => Settings { stop: (0..VOCAB as u32).step_by(9).collect(), min_new: index % 5, ..plain },
        _ => plain,
    };
    let guide = (index % 8 == 6).then(|| -> Box<dyn Guide> { Box::new(Every { taken: vec![], most: 11 }) });
    let ear = Ear { enough: (index % 8 == 7).then_some(1 + index % 6), ..Ear::default() };
    (Job { prompt, party: Party::default(), images: None, settings, guide, output: Box::new(ear.clone()) }, ear)
}

const REQUESTS: usize = 40;

/// The reports about each request.
fn told(scheduler: &mut Scheduler<Toy>) -> Vec<Told> {
    let ears: Vec<Ear> = (0..REQUESTS)
        .map(|index| {
            let (job, ear) = job(index);
            scheduler.add(vec![job]);
            // Some arrive while others run.
            (0..index % 3).for_each(|_| scheduler.step());
            ear
        })
        .collect();
    finish(scheduler);
    assert_eq!(scheduler.down(), None);
    ears.iter().map(Ear::told).collect()
}

/// The contents of an answer, without the way in which it was made.
fn answer_of(told: &Told) -> (usize, &[Chosen], Why, usize) {
    let end = told.end.as_ref().expect("it has ended").as_ref().expect("an answer");
    (told.scores, &told.tokens, end.why, end.tokens)
}

#[test]
fn answers_are_those_without_guesses() {
    let mut lone = Scheduler::new(Toy::new(200, 0), options(1));
    let expect = told(&mut lone);
    let ends: Vec<Why> = expect.iter().map(|told| answer_of(told).2).collect();
    for why in [Why::Length, Why::Output, Why::Stop(None)] {
        assert!(ends.contains(&why), "{why:?}");
    }
    assert!(ends.iter().any(|why| matches!(why, Why::Stop(Some(_)))));
    for draft in DRAFTS {
        let (mut preempted, mut cached) = (false, false);
        for (blocks, slots) in [(200, 0), (40, 0), (17, 0), (200, 40), (60, 12), (24, 6)] {
            for running in [1, 3, 8] {
                let mut scheduler = Scheduler::new(toy((blocks, slots), draft), speculating(running));
                let found = told(&mut scheduler);
                let place = format!("{draft:?}, {blocks} blocks, {slots} slots, {running} at once");
                for (index, (found, expect)) in found.iter().zip(&expect).enumerate() {
                    assert_eq!(answer_of(found), answer_of(expect), "request {index} with {place}");
                }
                check_counts(&scheduler, &found, draft, &place);
                preempted |= scheduler.counts().preempted > 0;
                cached |= scheduler.counts().cached_tokens > 0;
                scheduler.prefixes.clear(&mut scheduler.backend).unwrap();
                assert!(scheduler.backend.held.is_empty());
                assert_eq!(scheduler.gauges().free_blocks, blocks, "{place}");
            }
        }
        assert!(preempted && cached, "{draft:?}: {preempted} {cached}");
    }
}

fn check_counts(scheduler: &Scheduler<Toy>, told: &[Told], draft: Draft, place: &str) {
    let counts = scheduler.counts();
    let ends = told.iter().map(|told| told.end.clone().unwrap().unwrap());
    let (made, right) = ends.fold((0, 0), |(made, right), end| (made + end.guesses.made, right + end.guesses.right));
    assert_eq!((counts.guesses_made, counts.guesses_right), (made as u64, right as u64), "{place}");
    match draft {
        Draft::Good => assert!(0 < right && right < made, "{place}: {counts:?}"),
        Draft::Bad => assert!(right == 0 && made > 0, "{place}: {counts:?}"),
        Draft::Silent => assert_eq!(made, 0, "{place}"),
    }
}

#[test]
fn right_guesses_spare_steps() {
    let prompt = ids(5, 1);
    let steps = |options: Options| {
        let mut scheduler = Scheduler::new(toy((200, 0), Draft::Good), options);
        let ear = submit(&mut scheduler, prompt.clone(), max_new(20));
        finish(&mut scheduler);
        assert_eq!(ear.ids(), answer(&prompt, 20));
        let end = ear.told().end.unwrap().unwrap();
        assert_eq!((end.tokens, end.guesses.steps as u64), (20, scheduler.counts().steps - 1));
        (scheduler.backend.steps, end.guesses)
    };
    let (plain, none) = steps(options(1));
    assert_eq!((plain.len(), none.made), (20, 0));
    let (guessed, guesses) = steps(speculating(1));
    // Each step has a wrong guess after two right ones, or the like; the last token of an answer is
    // not guessed.
    assert!(guessed.len() < 10, "{guessed:?}");
    assert_eq!(guesses.right, 20 - guessed.len());
    assert!(guessed[1..].iter().all(|step| step[0] <= 1 + GUESSES));
}

/// Where more run than a plan verifies, steps are as without a draft.
#[test]
fn many_requests_are_not_guessed_behind() {
    let mut scheduler = Scheduler::new(Toy::new(200, 0).with_draft(Draft::Good, 2), speculating(8));
    let ears: Vec<Ear> = (0..3).map(|seed| submit(&mut scheduler, ids(4, seed), max_new(20))).collect();
    (0..8).for_each(|_| scheduler.step());
    assert_eq!(scheduler.counts().guesses_made, 0);
    assert_eq!(scheduler.backend.steps.last(), Some(&vec![1, 1, 1]));
    *ears[0].gone.lock().unwrap() = true;
    scheduler.step();
    assert_eq!(scheduler.backend.steps.last(), Some(&vec![4, 4]));
    finish(&mut scheduler);
    assert!(scheduler.counts().guesses_right > 0);
    for (seed, ear) in ears.iter().enumerate().skip(1) {
        assert_eq!(ear.ids(), answer(&ids(4, seed), 20));
    }
}

/// Answers with their guesses share steps with pieces of prompts, up to half of their tokens.
#[test]
fn prompts_share_steps_with_guesses() {
    let mut scheduler = Scheduler::new(toy((200, 0), Draft::Good), Options { prefix_cache: false, ..speculating(8) });
    let one = submit(&mut scheduler, ids(4, 1), max_new(30));
    scheduler.step();
    let two = submit(&mut scheduler, ids(40, 2), max_new(9));
    finish(&mut scheduler);
    assert_eq!((one.ids(), two.ids()), (answer(&ids(4, 1), 30), answer(&ids(40, 2), 9)));
    let steps = &scheduler.backend.steps;
    assert_eq!(steps[..3], [vec![4], vec![4, 12], vec![4, 12]], "{steps:?}");
}

/// Retained prefixes are dropped for guesses as for all running sequences.
#[test]
fn prefixes_make_room_for_guesses() {
    let steps = |blocks: usize| {
        let mut scheduler = Scheduler::new(toy((blocks, 0), Draft::Good), speculating(1));
        for seed in 0..5 {
            submit(&mut scheduler, ids(5, seed), max_new(4));
            finish(&mut scheduler);
        }
        let (before, prompt) = (scheduler.backend.steps.len(), ids(3, 9));
        let ear = submit(&mut scheduler, prompt.clone(), max_new(20));
        finish(&mut scheduler);
        assert_eq!(ear.ids(), answer(&prompt, 20));
        (scheduler.backend.steps[before..].to_vec(), scheduler.prefixes.len())
    };
    let ((roomy, all), (full, left)) = (steps(200), steps(11));
    assert_eq!(full, roomy);
    assert!(left < all, "{left} of {all}");
}

/// Logits after a wrong guess may be NaN: the request is tried without guesses.
#[test]
fn a_guess_with_bad_logits_harms_nobody() {
    let (prompt, count) = (ids(5, 1), 12);
    let expect = answer(&prompt, count);
    let known = [&prompt[..], &expect].concat();
    let wrong = |&token: &u32| (token + VOCAB as u32 / 2) % VOCAB as u32;
    let mut scheduler = Scheduler::new(toy((200, 0), Draft::Bad), speculating(1));
    scheduler.backend.poison = expect[2..].iter().map(wrong).find(|token| !known.contains(token));
    assert!(scheduler.backend.poison.is_some());
    let ear = submit(&mut scheduler, prompt, max_new(count));
    finish(&mut scheduler);
    assert_eq!((ear.ids(), ear.end()), (expect, Some(Ok(Why::Length))));
    assert!(scheduler.counts().faults > 0);
}

/// A draft that fails ends the answers of the call, and nothing else.
#[test]
fn the_server_goes_on_behind_a_draft_that_fails() {
    let mut scheduler = Scheduler::new(toy((200, 0), Draft::Good), speculating(8));
    let answering = submit(&mut scheduler, ids(5, 1), max_new(20));
    (0..2).for_each(|_| scheduler.step());
    let prompt = submit(&mut scheduler, ids(40, 2), max_new(3));
    scheduler.backend.failing_draft = true;
    scheduler.step();
    scheduler.backend.failing_draft = false;
    assert_eq!(answering.end(), Some(Err(JobError::Fault("toy: it was told to fail".into()))));
    finish(&mut scheduler);
    assert_eq!((prompt.ids(), prompt.end()), (answer(&ids(40, 2), 3), Some(Ok(Why::Length))));
    assert_eq!((scheduler.counts().faults, scheduler.down()), (1, None));
}

/// A client that leaves while guesses run does not spoil the answers of others.
#[test]
fn what_nobody_waits_for_leaves_no_guesses() {
    for slots in [0, 12] {
        let mut scheduler = Scheduler::new(toy((200, slots), Draft::Bad), speculating(2));
        let prompt = ids(9, 1);
        let ear = submit(&mut scheduler, prompt.clone(), max_new(50));
        (0..10).for_each(|_| scheduler.step());
        *ear.gone.lock().unwrap() = true;
        scheduler.step();
        assert!(scheduler.is_idle());
        let again = [&prompt[..], &ear.ids(), &ids(3, 5)].concat();
        let more = submit(&mut scheduler, again.clone(), max_new(5));
        finish(&mut scheduler);
        assert_eq!(more.ids(), answer(&again, 5));
        assert!(more.told().cached.unwrap() >= 8, "{:?}", more.told().cached);
    }
}
