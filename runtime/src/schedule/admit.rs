//! Admission: the waiting answers that may join the running ones.
//!
//! Requests take turns: an answer's turn is the number of answers of its request that run or
//! precede it. If there is no place for an answer, and another request has at least two more
//! running, the newest of those gives its place back: it is computed again in its turn, from the
//! part of it that the prefix cache keeps. So one request with hundreds of answers delays no other,
//! and a request alone has all places.
use std::collections::HashMap;

use crate::{Fork, SeqId, StepError};

use super::backend::Backend;
use super::prefix::{Match, Owned, common};
use super::task::Task;
use super::{JobError, PATIENCE, Scheduler};

/// An answer that waits.
struct Waiting {
    number: u64,
    turn: usize,
}

/// The decision about an answer that waits.
enum Turn {
    /// It joins.
    Joins,
    /// Another one computes a beginning that it has too.
    Later,
    /// There is no room for it, nor for those after it.
    Full,
    /// The engine failed.
    Failed(StepError),
}

impl<B: Backend> Scheduler<B> {
    /// Admits answers in the order of their turns while there is room.
    pub(super) fn admit(&mut self) {
        if self.is_full && !self.counts.steps.is_multiple_of(PATIENCE) {
            return;
        }
        for Waiting { number, turn } in self.turns() {
            if self.running.len() >= self.options.running && !self.give_place(turn) {
                return;
            }
            let Some(at) = self.waiting.iter().position(|task| task.number == number) else { return };
            let alone = self.running.iter().any(|task| task.alone) || self.waiting[at].alone;
            if alone && !self.running.is_empty() {
                return;
            }
            let Some(mut task) = self.waiting.remove(at) else { return };
            let joins = loop {
                match self.turn(&mut task) {
                    Turn::Full if self.give_place(turn) => {}
                    joins => break joins,
                }
            };
            match joins {
                Turn::Joins => {
                    task.admitted();
                    self.running.push(task);
                }
                Turn::Later => self.wait_again(task),
                Turn::Full => {
                    self.wait_again(task);
                    self.is_full = true;
                    return;
                }
                Turn::Failed(error) => {
                    task.end(Err(JobError::Fault(error.to_string())));
                    return self.settle(Err(error));
                }
            }
        }
    }

    /// The answers that wait, in the order of their turns.
    fn turns(&self) -> Vec<Waiting> {
        let mut before = self.under_way();
        let waiting = self.waiting.iter().map(|task| {
            let before = before.entry(task.request).or_insert(0);
            *before += 1;
            Waiting { number: task.number, turn: *before - 1 }
        });
        let mut turns: Vec<Waiting> = waiting.collect();
        turns.sort_by_key(|waiting| (waiting.turn, waiting.number));
        turns
    }

    /// The number of running answers of each request.
    fn under_way(&self) -> HashMap<u64, usize> {
        let mut answers = HashMap::new();
        self.running.iter().for_each(|task| *answers.entry(task.request).or_insert(0) += 1);
        answers
    }

    /// Takes a place for an answer of this turn from the request that has the most, if that still
    /// has no fewer afterwards.
    fn give_place(&mut self, turn: usize) -> bool {
        let most = self.under_way().into_iter().map(|(request, answers)| (answers, request)).max();
        let Some((_, request)) = most.filter(|&(answers, _)| answers >= turn + 2) else { return false };
        let of_it = (0..self.running.len()).filter(|&index| self.running[index].request == request);
        let Some(newest) = of_it.max_by_key(|&index| self.running[index].number) else { return false };
        let mut task = self.running.remove(newest);
        self.retain(&task);
        task.sequence = None;
        task.start_over();
        self.counts.preempted += 1;
        self.wait_again(task);
        true
    }

    fn turn(&mut self, task: &mut Task) -> Turn {
        let source = if self.options.prefix_cache && task.may_share() { self.source(task) } else { Source::None };
        let (sequence, fed) = match source {
            Source::Later => return Turn::Later,
            Source::None => (self.backend.add(), 0),
            Source::Match(found) => match self.backend.fork(found.sequence, found.tokens) {
                Ok(Fork { sequence, tokens }) => (sequence, tokens),
                // It computes the tokens that it would have shared.
                Err(StepError::Kv(_)) => (self.backend.add(), 0),
                Err(error) => return Turn::Failed(error),
            },
        };
        if let Some(slot) = task.party.adapter {
            self.backend.adapt(sequence, slot);
        }
        if let Some(images) = &task.images
            && let Err(error) = self.backend.see(sequence, images.clone())
        {
            return Turn::Failed(error);
        }
        match self.fits(sequence, task.tokens.len()) {
            Ok(true) => {
                let fed = match self.bring(task, sequence, fed) {
                    Ok(fed) => fed,
                    Err(error) => return Turn::Failed(error),
                };
                (task.sequence, task.fed) = (Some(sequence), fed);
                self.counts.prompt_tokens += task.tokens.len() as u64;
                self.counts.cached_tokens += fed as u64;
                Turn::Joins
            }
            Ok(false) => match self.backend.drop_sequence(sequence) {
                Ok(()) => Turn::Full,
                Err(error) => Turn::Failed(error),
            },
            Err(error) => Turn::Failed(error),
        }
    }

    /// Lengthens a sequence by what has left the cache of its task's tokens, if that is looked up.
    /// The last token is always computed, for its logits.
    fn bring(&mut self, task: &Task, sequence: SeqId, fed: usize) -> Result<usize, StepError> {
        if !self.options.prefix_cache || !task.may_share() {
            return Ok(fed);
        }
        let tokens = &task.tokens[..task.tokens.len() - 1];
        self.prefixes.bring(&mut self.backend, sequence, (Owned { party: &task.party, tokens }, fed))
    }

    /// Whether a sequence has room for `tokens` tokens and one more, in addition to the tokens that
    /// the running ones have left to compute and a block more for each. Prefixes are dropped to
    /// make room. The only request may always try.
    fn fits(&mut self, sequence: SeqId, tokens: usize) -> Result<bool, StepError> {
        let more = self.limits.block_tokens;
        let others = self.running.iter().map(|task| (task.sequence, self.most(task.tokens.len() + more)));
        let mut growing: Vec<(Option<SeqId>, usize)> = others.collect();
        growing.push((Some(sequence), self.most(tokens + 1)));
        loop {
            if self.backend.has_room(&growing).is_ok() {
                return Ok(true);
            }
            if !self.prefixes.evict(&mut self.backend)? {
                return Ok(self.running.is_empty());
            }
        }
    }

    fn most(&self, tokens: usize) -> usize {
        tokens.min(self.limits.positions)
    }

    /// The longest common beginning with a task of its party: a retained sequence, or a running
    /// one. The last token is always computed, for its logits.
    fn source(&mut self, task: &Task) -> Source {
        let tokens = &task.tokens[..task.tokens.len() - 1];
        let mut best = self.prefixes.find(Owned { party: &task.party, tokens });
        let mut later = 0;
        for other in self.running.iter().filter(|other| other.party == task.party) {
            let Some(sequence) = other.sequence else { continue };
            let shared = common(tokens, &other.tokens);
            if shared > other.fed {
                later = later.max(shared);
            }
            let there = shared.min(other.fed);
            if there > best.map_or(0, |best| best.tokens) {
                best = Some(Match { sequence, tokens: there });
            }
        }
        let block = self.limits.block_tokens;
        let has = best.map_or(0, |best| best.tokens) / block;
        match best {
            _ if later / block > has => Source::Later,
            Some(best) if self.limits.slots > 0 || has > 0 => Source::Match(best),
            _ => Source::None,
        }
    }
}

enum Source {
    None,
    /// It is still being computed.
    Later,
    Match(Match),
}
