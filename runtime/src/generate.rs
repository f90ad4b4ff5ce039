//! Answers to prompts, in token ids: one prompt as a stream, or many at once, by the batcher that
//! the server has, too ([`crate::schedule`]).
use crate::engine::{Engine, StepError};
use crate::sample::Sampling;
use crate::schedule::{Chosen, End, Job, JobError, Likelihood, Options, Output, Party, Scheduler, Settings, Why};
use crate::sight::Images;
use atomc_artifact::manifest::Model;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How to go on from a prompt.
#[derive(Clone, Debug, Default)]
pub struct Params {
    /// Most tokens of an answer. Where the model ends sooner, so does the answer.
    pub max_new: usize,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
    /// Tokens that the engine's draft guesses after an answer, for the next step to verify; at most
    /// the number that the artifact was made for. 0 for none. Answers are the same: a guess is kept
    /// only if it is the token that the model's own logits and the seed choose.
    pub speculate: usize,
    /// The images of the prompt, if it is the only one.
    pub images: Option<Arc<Images>>,
}

impl Params {
    /// Greedy, with the stop tokens of the model.
    pub fn for_model(model: &Model, max_new: usize) -> Params {
        Params { max_new, sampling: Sampling::default(), stop: model.stop.clone(), speculate: 0, images: None }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Without the stop token.
    pub tokens: Vec<u32>,
    /// Why there are no more tokens.
    pub finish: Finish,
    /// What became of the draft's guesses.
    pub guesses: Guesses,
}

/// How many tokens were guessed, and how many of them were those that the model chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Guesses that steps verified.
    pub made: usize,
    /// Those that were right, with every guess before them.
    pub right: usize,
    /// Steps of the model after the prompt.
    pub steps: usize,
}

impl std::ops::AddAssign for Guesses {
    fn add_assign(&mut self, more: Guesses) {
        self.made += more.made;
        self.right += more.right;
        self.steps += more.steps;
    }
}

/// What ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// This stop token.
    Stop(u32),
    /// As many tokens as were wanted, or as the model has positions.
    Length,
    /// The caller.
    Caller,
}

/// Answers one prompt; `on_token` sees every token of the answer as it comes and may end it.
pub fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    params: &Params,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Answer, StepError> {
    let mut serving = Serving::new(engine, params, 1)?;
    serving.add(0, (prompt, params.images.clone()));
    let answer = serving.stream(&mut on_token);
    serving.end(answer)
}

/// A prompt among many.
pub trait Prompt {
    /// Its tokens.
    fn tokens(&self) -> &[u32];
    /// Its images, if it has some.
    fn images(&self) -> Option<Arc<Images>>;
}

impl Prompt for Vec<u32> {
    fn tokens(&self) -> &[u32] {
        self
    }

    fn images(&self) -> Option<Arc<Images>> {
        None
    }
}

impl Prompt for (Vec<u32>, Option<Arc<Images>>) {
    fn tokens(&self) -> &[u32] {
        &self.0
    }

    fn images(&self) -> Option<Arc<Images>> {
        self.1.clone()
    }
}

/// Answers many prompts, up to `width` at a time: as one ends, the next joins the others.
/// `on_answer` gets each with the number of its prompt as it ends, in no particular order. Prompt
/// `i` samples with the seed plus `i`.
pub fn generate_all(
    engine: &mut Engine,
    prompts: &[impl Prompt],
    params: &Params,
    width: usize,
    mut on_answer: impl FnMut(usize, Answer) -> ControlFlow<()>,
) -> Result<(), StepError> {
    let mut serving = Serving::new(engine, params, width)?;
    let done = serving.all(prompts, width.max(1), &mut on_answer);
    serving.end(done)
}

/// Prompts that the batcher answers, the same one that the server has.
struct Serving<'a> {
    scheduler: Scheduler<&'a mut Engine>,
    params: &'a Params,
    open: Vec<Open>,
}

/// An answer under way.
struct Open {
    prompt: usize,
    line: Line,
}

/// Where the batcher puts an answer.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Arrived>>);

#[derive(Default)]
struct Arrived {
    tokens: Vec<u32>,
    end: Option<Result<End, JobError>>,
}

impl Line {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens from one on.
    fn since(&self, token: usize) -> Vec<u32> {
        self.arrived().tokens[token..].to_vec()
    }

    /// The answer, if it has ended.
    fn answer(&self) -> Option<Result<Answer, JobError>> {
        let mut arrived = self.arrived();
        let end = arrived.end.take()?;
        Some(end.map(|End { why, guesses, .. }| {
            let finish = match why {
                Why::Stop(Some(token)) => Finish::Stop(token),
                Why::Length => Finish::Length,
                // There is no grammar here.
                Why::Stop(None) | Why::Output => Finish::Caller,
            };
            Answer { tokens: std::mem::take(&mut arrived.tokens), finish, guesses }
        }))
    }
}

impl Output for Line {
    fn begin(&mut self, _cached: usize, _prompt: Vec<Likelihood>) {}

    fn token(&mut self, chosen: Chosen) -> ControlFlow<()> {
        self.arrived().tokens.push(chosen.token);
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<End, JobError>) {
        self.arrived().end = Some(end);
    }

    fn is_gone(&self) -> bool {
        false
    }
}

impl<'a> Serving<'a> {
    fn new(engine: &'a mut Engine, params: &'a Params, width: usize) -> Result<Serving<'a>, StepError> {
        params.sampling.check()?;
        let options = Options { running: width, step_tokens: 0, prefix_cache: width > 1, speculate: params.speculate };
        Ok(Serving { scheduler: Scheduler::new(engine, options), params, open: vec![] })
    }

    fn add(&mut self, prompt: usize, (tokens, images): (&[u32], Option<Arc<Images>>)) {
        let Params { max_new, sampling, stop, .. } = self.params;
        let sampling = Sampling { seed: sampling.seed.wrapping_add(prompt as u64), ..*sampling };
        let settings = Settings { max_new: *max_new, sampling, stop: stop.clone(), ..Settings::default() };
        let line = Line::default();
        let output = Box::new(line.clone());
        self.scheduler.add(vec![Job {
            prompt: tokens.to_vec(),
            // Tokens of all images are alike: prompts with images share no beginnings.
            party: Party { adapter: None, salt: images.as_ref().map(|_| format!("images of {prompt}").into()) },
            images,
            settings,
            guide: None,
            output,
        }]);
        self.open.push(Open { prompt, line });
    }

    /// Answers the only prompt, and tells each token.
    fn stream(&mut self, on_token: &mut impl FnMut(u32) -> ControlFlow<()>) -> Result<Answer, JobError> {
        let Open { line, .. } = self.open.remove(0);
        let mut told = 0;
        loop {
            self.scheduler.step();
            for token in line.since(told) {
                told += 1;
                if on_token(token).is_break() {
                    self.scheduler.stop();
                    let mut answer = line.answer().unwrap_or(Err(JobError::Ending))?;
                    answer.tokens.truncate(told);
                    return Ok(Answer { finish: Finish::Caller, ..answer });
                }
            }
            if let Some(answer) = line.answer() {
                return answer;
            }
        }
    }

    /// Answers all prompts, some at a time.
    fn all(
        &mut self,
        prompts: &[impl Prompt],
        width: usize,
        on_answer: &mut impl FnMut(usize, Answer) -> ControlFlow<()>,
    ) -> Result<(), JobError> {
        let mut next = 0;
        loop {
            while self.open.len() < width && next < prompts.len() {
                self.add(next, (prompts[next].tokens(), prompts[next].images()));
                next += 1;
            }
            if self.open.is_empty() {
                return Ok(());
            }
            self.scheduler.step();
            for index in (0..self.open.len()).rev() {
                let Some(answer) = self.open[index].line.answer() else { continue };
                let Open { prompt, .. } = self.open.remove(index);
                if on_answer(prompt, answer?).is_break() {
                    return Ok(());
                }
            }
        }
    }

    /// Lets go of all sequences, and says what was wrong with the engine.
    fn end<T>(self, done: Result<T, JobError>) -> Result<T, StepError> {
        let (engine, fault) = self.scheduler.end();
        match (done, fault) {
            (Err(JobError::NotFinite), _) => Err(engine.not_finite()),
            (_, Some(fault)) => Err(fault),
            (Err(error), None) => Err(error.into()),
            (Ok(done), None) => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests;
