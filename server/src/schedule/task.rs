//! One request: what it brings, where its answer goes, and how far it has come.
use std::ops::ControlFlow;

use atomc_runtime::{SeqId, Want};

use super::Piece;
use super::backend::Limits;
use super::choose::{ChoiceError, Chooser, Chosen, Guide, Likelihood, Settings, likelihood};

/// A request.
pub struct Job {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub settings: Settings,
    /// A grammar that the answer follows.
    pub guide: Option<Box<dyn Guide>>,
    /// Where the answer goes.
    pub output: Box<dyn Output>,
}

/// Where an answer goes. It is called by the thread of the scheduler, and must not wait.
pub trait Output: Send {
    /// The prompt is computed, of which so many tokens were there already. How likely each token
    /// of it was comes with it, if that was asked for: nothing of the first.
    fn begin(&mut self, cached: usize, prompt: Vec<Likelihood>);

    /// A token of the answer; a break if it has ended with it.
    fn token(&mut self, chosen: Chosen) -> ControlFlow<()>;

    /// The end of the answer.
    fn end(self: Box<Self>, end: Result<End, JobError>);

    /// Whether nobody waits for the answer any more.
    fn is_gone(&self) -> bool;
}

/// An answer that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub why: Why,
    /// Tokens of the answer; a stop token is one of them.
    pub tokens: usize,
}

/// What ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This stop token, or the end of a grammar.
    Stop(Option<u32>),
    /// What reads the text.
    Output,
    /// As many tokens as were wanted, or as the model has positions.
    Length,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum JobError {
    #[error("a prompt needs at least one token")]
    Empty,
    #[error("the prompt has {tokens} tokens, but a sequence has at most {most}")]
    TooLong { tokens: usize, most: usize },
    #[error("token {token} is not of the vocabulary, which ends at {}", vocab - 1)]
    Token { token: u32, vocab: usize },
    #[error("{0}")]
    Sampling(String),
    #[error("the cache is too small for this request: {0}")]
    NoRoom(String),
    #[error("{0}")]
    Fault(String),
    #[error("the server cannot go on: {0}")]
    Down(String),
    #[error("the server is ending")]
    Ending,
}

impl Job {
    /// Why it cannot be served, if so.
    pub(super) fn fault(&self, limits: &Limits) -> Option<JobError> {
        let &Limits { positions: most, vocab, .. } = limits;
        let strange = self.prompt.iter().find(|&&token| token as usize >= vocab);
        match self.prompt.len() {
            0 => Some(JobError::Empty),
            tokens if tokens > most => Some(JobError::TooLong { tokens, most }),
            _ if strange.is_some() => strange.map(|&token| JobError::Token { token, vocab }),
            _ => self.settings.sampling.check().err().map(|error| JobError::Sampling(error.to_string())),
        }
    }
}

/// A request on its way.
pub(super) struct Task {
    pub output: Box<dyn Output>,
    pub chooser: Chooser,
    /// Of the prompt, and then of the answer.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    /// Most tokens of the answer.
    limit: usize,
    /// While it runs.
    pub sequence: Option<SeqId>,
    /// Tokens that the sequence has.
    pub fed: usize,
    /// Its place in the order of arrival.
    pub number: u64,
    /// It is not to share a step with others: one of them made logits that are not finite.
    pub alone: bool,
    /// Tokens that were there when it was first admitted.
    cached: Option<usize>,
    /// How likely the prompt's tokens were, from the second on.
    scores: Vec<Likelihood>,
    begun: bool,
}

/// What the rows of a step say of one request.
#[derive(Default)]
pub(super) struct Seen {
    scores: Vec<(usize, Likelihood)>,
    chosen: Option<Result<Chosen, ChoiceError>>,
}

/// What a step has found for a piece.
pub(super) struct Event {
    pub piece: Piece,
    pub seen: Seen,
}

impl Event {
    /// Of a step that told the likeliest tokens alone.
    pub fn picked(piece: Piece, pick: Option<u32>) -> Event {
        let chosen = pick.map(|token| Ok(Chosen { token, likelihood: None }));
        Event { piece, seen: Seen { scores: vec![], chosen } }
    }
}

impl Seen {
    /// Takes the logits behind one token of a request that has these tokens.
    pub fn see(&mut self, chooser: &mut Chooser, tokens: &[u32], position: usize, logits: &[f32]) {
        match (tokens.get(position + 1), chooser.settings().prompt_logprobs) {
            (Some(&next), Some(top)) => self.scores.push((position, likelihood(logits, next, top))),
            (Some(_), None) => {}
            (None, _) => self.chosen = Some(chooser.choose(logits)),
        }
    }
}

impl Task {
    pub fn new(job: Job, number: u64, limits: &Limits) -> Task {
        let prompt = job.prompt.len();
        // The last token of an answer is never fed back, so it needs no position.
        let limit = job.settings.max_new.min((limits.positions + 1).saturating_sub(prompt));
        let chooser = Chooser::new(job.settings, job.guide, &job.prompt);
        Task {
            output: job.output,
            chooser,
            tokens: job.prompt,
            prompt,
            limit,
            sequence: None,
            fed: 0,
            number,
            alone: false,
            cached: None,
            scores: vec![],
            begun: false,
        }
    }

    /// It has a sequence.
    pub fn admitted(&mut self) {
        self.cached.get_or_insert(self.fed);
    }

    /// Tokens that the sequence does not have yet.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.fed
    }

    /// Tokens of the answer so far.
    pub fn new_tokens(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Whether it may begin with what others have computed: not if each of its rows is wanted.
    pub fn may_share(&self) -> bool {
        !self.has_scores_left()
    }

    fn has_scores_left(&self) -> bool {
        self.chooser.settings().prompt_logprobs.is_some() && self.scores.len() + 1 < self.prompt
    }

    /// Most tokens that one step takes of it: where each has a row of logits, as many as there are
    /// rows.
    pub fn most(&self, limits: &Limits) -> usize {
        if self.has_scores_left() { self.left().min(limits.step_rows.max(1)) } else { self.left() }
    }

    /// Which rows of so many tokens are wanted.
    pub fn wants(&self, tokens: usize) -> Want {
        match tokens == self.left() {
            _ if self.has_scores_left() => Want::All,
            true => Want::Last,
            false => Want::Nothing,
        }
    }

    /// Whether the likeliest token is all that is wanted of a step.
    pub fn is_plain(&self, tokens: usize) -> bool {
        match self.wants(tokens) {
            Want::Nothing => true,
            Want::Last => self.chooser.is_plain(),
            Want::All => false,
        }
    }

    /// Takes what a step has found. Gives the end, if it is that.
    pub fn advance(&mut self, tokens: usize, seen: Seen, limits: &Limits) -> Option<Result<End, JobError>> {
        self.fed += tokens;
        for (position, score) in seen.scores {
            if position == self.scores.len() {
                self.scores.push(score);
            }
        }
        if self.left() > 0 {
            return None;
        }
        self.alone = false;
        if !self.begun {
            self.begun = true;
            self.output.begin(self.cached.unwrap_or(0), std::mem::take(&mut self.scores));
            // What was told is not wanted again where the prompt is computed again.
            self.chooser.prompt_was_told();
        }
        if self.limit == 0 {
            return Some(Ok(self.ended(Why::Length, 0)));
        }
        let chosen = match seen.chosen {
            Some(Ok(chosen)) => chosen,
            Some(Err(error)) => return Some(Err(JobError::Fault(error.to_string()))),
            None => return Some(Err(JobError::Fault(ChoiceError::NotFinite.to_string()))),
        };
        self.push(chosen, limits)
    }

    fn push(&mut self, chosen: Chosen, limits: &Limits) -> Option<Result<End, JobError>> {
        let token = chosen.token;
        if self.chooser.settings().stop.contains(&token) {
            return Some(Ok(self.ended(Why::Stop(Some(token)), 1)));
        }
        let is_complete = match self.chooser.take(token) {
            Ok(is_complete) => is_complete,
            Err(error) => return Some(Err(JobError::Fault(error.to_string()))),
        };
        self.tokens.push(token);
        let is_over = self.output.token(chosen).is_break();
        let why = match () {
            () if is_over => Why::Output,
            () if is_complete => Why::Stop(None),
            () if self.new_tokens() >= self.limit || self.tokens.len() > limits.positions => Why::Length,
            () => return None,
        };
        Some(Ok(self.ended(why, 0)))
    }

    fn ended(&self, why: Why, more: usize) -> End {
        End { why, tokens: self.new_tokens() + more }
    }

    pub fn end(self, end: Result<End, JobError>) {
        self.output.end(end);
    }
}
