//! Guesses of the engine's draft after the running answers, which the next step verifies.
//!
//! A step with guesses has to be one plan, as it is without them: if there are more running
//! sequences than a plan verifies, nothing is guessed. A plan for prompts takes guesses too, in up
//! to half of its tokens, if it has rows of logits for all of them.
use crate::{Chosen, StepError};

use super::backend::{Backend, Limits};
use super::task::Task;
use super::{Piece, Scheduler};

/// Of the tokens of a step with prompts, the part that answers and their guesses may take.
const SHARE: usize = 2;

impl<B: Backend> Scheduler<B> {
    /// Lets the draft guess after the running answers, if the next step has room.
    pub(super) fn guess(&mut self) {
        let open = |&index: &usize| {
            let task = &self.running[index];
            task.left() == 1 && task.guessable() > 0 && !task.is_held
        };
        let answers: Vec<usize> = (0..self.running.len()).filter(open).collect();
        let count = answers.iter().map(|&index| self.running[index].guessable()).max().unwrap_or(0);
        let count = count.min(self.options.speculate);
        if count == 0 || !self.verifies(answers.len(), count) {
            return;
        }
        if let Err(error) = self.guess_behind(&answers, count) {
            let pieces: Vec<Piece> = answers.iter().map(|&task| Piece { task, tokens: 1 }).collect();
            self.fault(&pieces, error);
        }
    }

    fn guess_behind(&mut self, answers: &[usize], count: usize) -> Result<(), StepError> {
        if !self.has_room_ahead(count)? {
            return Ok(());
        }
        let chosen = answers.iter().filter_map(|&index| {
            let task = &self.running[index];
            task.sequence.map(|sequence| Chosen { sequence, tokens: &task.tokens[task.prompt..] })
        });
        let guesses = self.backend.draft(&chosen.collect::<Vec<_>>(), count)?;
        for (&index, guesses) in answers.iter().zip(guesses) {
            let task = &mut self.running[index];
            let last = task.tokens.last().copied();
            let most = task.guessable();
            if !guesses.is_empty() {
                task.ahead = last.into_iter().chain(guesses.into_iter().take(most)).collect();
            }
        }
        Ok(())
    }

    /// Whether one plan takes the next step with `count` guesses for each of `answers` answers.
    fn verifies(&self, answers: usize, count: usize) -> bool {
        let each = count + 1;
        let tokens = answers * each;
        let is_few = |task: &Task| task.left() <= each;
        let Limits { step_tokens, step_rows, .. } = self.limits;
        let (all, others) = (self.running.len(), self.running.len() - answers);
        match () {
            () if self.running.iter().any(|task| task.alone) => false,
            () if self.running.iter().all(is_few) => all <= self.verified && all * each <= step_tokens,
            () => answers <= self.verified && tokens + others <= step_rows && tokens * SHARE <= step_tokens,
        }
    }

    /// Whether the cache has room for everything that the running answers have still to compute,
    /// with `count` guesses for each. Prefixes that are in the way go.
    fn has_room_ahead(&mut self, count: usize) -> Result<bool, StepError> {
        let most = |task: &Task| task.tokens.len() + count.min(task.guessable());
        let growing: Vec<_> = self.running.iter().map(|task| (task.sequence, most(task))).collect();
        while self.backend.has_room(&growing).is_err() {
            if !self.prefixes.evict(&mut self.backend)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the sequence of a task back after a step with wrong guesses. A sequence that can only
    /// resume further back computes the missing tokens with its next one.
    pub(super) fn go_back(&mut self, index: usize) -> Result<(), StepError> {
        let task = &mut self.running[index];
        if let Some(sequence) = task.sequence {
            task.fed = self.backend.rewind(sequence, task.fed)?;
        }
        Ok(())
    }
}
