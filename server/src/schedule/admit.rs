//! Which of the requests that wait may join those under way.
use atomc_runtime::{Fork, SeqId, StepError};

use super::backend::Backend;
use super::prefix::{Match, Salted, common};
use super::task::Task;
use super::{JobError, PATIENCE, Scheduler};

/// What becomes of a request that waits.
enum Turn {
    /// It joins.
    Joins,
    /// Another one computes a beginning that it has too.
    Later,
    /// There is no room, also for those behind it.
    Full,
    /// The engine failed.
    Failed(StepError),
}

impl<B: Backend> Scheduler<B> {
    /// Admits requests in the order of arrival while there is room.
    pub(super) fn admit(&mut self) {
        if self.is_full && !self.counts.steps.is_multiple_of(PATIENCE) {
            return;
        }
        let mut at = 0;
        while at < self.waiting.len() && self.running.len() < self.options.running {
            let alone = self.running.iter().any(|task| task.alone) || self.waiting[at].alone;
            if alone && !self.running.is_empty() {
                return;
            }
            let Some(mut task) = self.waiting.remove(at) else { return };
            match self.turn(&mut task) {
                Turn::Joins => {
                    task.admitted();
                    self.running.push(task);
                }
                Turn::Later => {
                    self.waiting.insert(at, task);
                    at += 1;
                }
                Turn::Full => {
                    self.waiting.insert(at, task);
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

    fn turn(&mut self, task: &mut Task) -> Turn {
        let source = if self.options.prefix_cache && task.may_share() { self.source(task) } else { Source::None };
        let (sequence, fed) = match source {
            Source::Later => return Turn::Later,
            Source::None => (self.backend.add(), 0),
            Source::Match(found) => match self.backend.fork(found.sequence, found.tokens) {
                Ok(Fork { sequence, tokens }) => (sequence, tokens),
                // What it would have shared it computes.
                Err(StepError::Kv(_)) => (self.backend.add(), 0),
                Err(error) => return Turn::Failed(error),
            },
        };
        match self.fits(sequence, task.tokens.len()) {
            Ok(true) => {
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

    /// Whether a sequence has room for so many tokens and one more, beside what those under way
    /// have still to compute and a block more for each. Prefixes that are in the way go. The only
    /// request may always try.
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

    /// What has the longest common beginning with a task of its salt: a retained sequence, or one
    /// under way. The last token is always computed, for its logits.
    fn source(&mut self, task: &Task) -> Source {
        let tokens = &task.tokens[..task.tokens.len() - 1];
        let mut best = self.prefixes.find(Salted { salt: &task.salt, tokens });
        let mut later = 0;
        for other in self.running.iter().filter(|other| other.salt == task.salt) {
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
