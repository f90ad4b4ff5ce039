//! The choice of a token from a row of logits, as one request asks for it: the runtime's sampler,
//! with penalties, a bias, a grammar and probabilities.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Sampler, Sampling};

use super::task::Why;

/// How a request chooses tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Most tokens of the answer.
    pub max_new: usize,
    /// Tokens before which no stop token is chosen.
    pub min_new: usize,
    /// The random part of the choice.
    pub sampling: Sampling,
    /// Make tokens that occurred before less likely.
    pub penalties: Penalties,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// Reports how likely each token was, and this many of the likeliest.
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens.
    pub prompt_logprobs: Option<usize>,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_new: 16,
            min_new: 0,
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            bias: vec![],
            logprobs: None,
            prompt_logprobs: None,
            stop: vec![],
        }
    }
}

/// Factors that make tokens less likely if they occurred before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive logits of tokens of prompt and answer, and multiplies negative ones; 1 for
    /// none.
    pub repetition: f32,
    /// Subtracted from the logit of a token of the answer.
    pub presence: f32,
    /// Subtracted once for each time that the token is in the answer.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Penalties {
        Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

/// The state of a guide after the tokens that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another token may follow, and the set of allowed ones is known.
    Open,
    /// The set of allowed tokens is being computed.
    Busy,
    /// The answer is complete, so that nothing may follow.
    Complete,
}

/// A grammar that an answer follows.
pub trait Guide: Send {
    /// The progress, after waiting for at most this time.
    fn progress(&mut self, within: Duration) -> Result<Progress, String>;

    /// Clears the bits of tokens that may not follow; bit `i % 32` of word `i / 32` is token `i`'s.
    /// Waits until the set is known.
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String>;

    /// Takes a token.
    fn take(&mut self, token: u32) -> Result<Progress, String>;
}

/// How likely a token was, of the model alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its id.
    pub token: u32,
    /// The likelihood, if it was asked for.
    pub likelihood: Option<Likelihood>,
}

/// Why no token can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// Of the row.
    #[error("the logits are not finite")]
    NotFinite,
    /// Of the guide.
    #[error("the grammar cannot go on: {0}")]
    Guide(String),
}

/// Chooses the tokens of one answer.
pub struct Chooser {
    settings: Settings,
    sampler: Sampler,
    guide: Option<Box<dyn Guide>>,
    /// Tokens of the answer, and the number of each.
    counts: BTreeMap<u32, u32>,
    /// Of the prompt, if these matter.
    prompt: BTreeSet<u32>,
    row: Vec<f32>,
    allowed: Vec<u32>,
    /// Tokens that were chosen.
    chosen: usize,
}

impl Chooser {
    /// For an answer to a prompt.
    pub fn new(settings: Settings, guide: Option<Box<dyn Guide>>, prompt: &[u32]) -> Chooser {
        let has_prompt = settings.penalties.repetition != 1.0;
        let prompt = if has_prompt { prompt.iter().copied().collect() } else { BTreeSet::new() };
        let sampler = Sampler::new(settings.sampling);
        let (counts, row, allowed) = (BTreeMap::new(), vec![], vec![]);
        Chooser { settings, sampler, guide, counts, prompt, row, allowed, chosen: 0 }
    }

    /// How tokens are chosen.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Forgets the request for the prompt's likelihoods.
    pub fn prompt_was_told(&mut self) {
        self.settings.prompt_logprobs = None;
    }

    /// Whether the likeliest token is the one, whatever the logits are.
    pub fn is_plain(&self) -> bool {
        let Settings { sampling, logprobs, .. } = &self.settings;
        sampling.is_greedy() && logprobs.is_none() && !self.changes_logits()
    }

    /// Chooses the next token from a row of logits.
    pub fn choose(&mut self, logits: &[f32]) -> Result<Chosen, ChoiceError> {
        let token = if self.changes_logits() {
            self.change(logits)?;
            let token = self.sampler.sample(&self.row);
            self.row.get(token as usize).is_some_and(|logit| logit.is_finite()).then_some(token)
        } else {
            let token = self.sampler.sample(logits);
            logits.get(token as usize).is_some_and(|logit| logit.is_finite()).then_some(token)
        };
        let token = token.ok_or(ChoiceError::NotFinite)?;
        let likelihood = self.settings.logprobs.map(|top| likelihood(logits, token, top));
        Ok(Chosen { token, likelihood })
    }

    /// The progress of its guide, after waiting for at most this time; open without a guide.
    pub fn progress(&mut self, within: Duration) -> Result<Progress, ChoiceError> {
        let Some(guide) = &mut self.guide else { return Ok(Progress::Open) };
        guide.progress(within).map_err(ChoiceError::Guide)
    }

    /// Takes the token that was chosen. Says whether the answer ends with it: it is one that stops,
    /// or a grammar is complete. One that does not know yet says so by its progress.
    pub fn take(&mut self, token: u32) -> Result<Option<Why>, ChoiceError> {
        if self.settings.stop.contains(&token) {
            return Ok(Some(Why::Stop(Some(token))));
        }
        self.chosen += 1;
        if self.settings.penalties != Penalties::default() {
            *self.counts.entry(token).or_default() += 1;
        }
        let Some(guide) = &mut self.guide else { return Ok(None) };
        let progress = guide.take(token).map_err(ChoiceError::Guide)?;
        Ok((progress == Progress::Complete).then_some(Why::Stop(None)))
    }

    fn changes_logits(&self) -> bool {
        let Settings { penalties, bias, min_new, .. } = &self.settings;
        *penalties != Penalties::default() || !bias.is_empty() || self.guide.is_some() || self.chosen < *min_new
    }

    /// The logits as the request wants them, in `row`.
    fn change(&mut self, logits: &[f32]) -> Result<(), ChoiceError> {
        self.row.clear();
        self.row.extend_from_slice(logits);
        let Settings { penalties, bias, min_new, stop, .. } = &self.settings;
        let row = &mut self.row;
        if penalties.repetition != 1.0 {
            let answer = self.counts.keys().filter(|token| !self.prompt.contains(token));
            for &token in self.prompt.iter().chain(answer) {
                let Some(logit) = row.get_mut(token as usize) else { continue };
                *logit = if *logit > 0.0 { *logit / penalties.repetition } else { *logit * penalties.repetition };
            }
        }
        for (&token, &count) in &self.counts {
            let Some(logit) = row.get_mut(token as usize) else { continue };
            *logit -= penalties.presence + penalties.frequency * count as f32;
        }
        for &(token, more) in bias {
            row.get_mut(token as usize).into_iter().for_each(|logit| *logit += more);
        }
        if self.chosen < *min_new {
            stop.iter().for_each(|&token| forbid(row, token));
        }
        let Some(guide) = &mut self.guide else { return Ok(()) };
        self.allowed.clear();
        self.allowed.resize(row.len().div_ceil(32), u32::MAX);
        guide.allow(&mut self.allowed).map_err(ChoiceError::Guide)?;
        for (token, logit) in row.iter_mut().enumerate() {
            if self.allowed.get(token / 32).is_none_or(|word| word >> (token % 32) & 1 == 0) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }
}

fn forbid(row: &mut [f32], token: u32) {
    row.get_mut(token as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
}

/// The likelihood of a token by a row of logits, and the `top` likeliest tokens.
pub fn likelihood(logits: &[f32], token: u32, top: usize) -> Likelihood {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let all = most + sum.ln() as f32;
    let mut best: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let top = top.min(best.len());
    if top > 0 && top < best.len() {
        best.select_nth_unstable_by(top - 1, order);
    }
    best.truncate(top);
    best.sort_unstable_by(order);
    let logprob = logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logit - all);
    Likelihood { logprob, top: best.into_iter().map(|(token, logit)| (token, logit - all)).collect() }
}

#[cfg(test)]
mod tests;
