//! One request: its contents, its output, and its progress.
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::sight::Images;
use crate::{Guesses, SeqId, Want};

use super::Piece;
use super::backend::Limits;
use super::choose::{ChoiceError, Chooser, Chosen, Guide, Likelihood, Progress, Settings, likelihood};

/// Requests share computed beginnings only with requests of the same salt: none, or a text that
/// only some clients know.
pub type Salt = Option<Arc<str>>;

/// What requests have in common that share beginnings: an adapter, or none, and a salt.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// The slot of the adapter.
    pub adapter: Option<usize>,
    /// The salt.
    pub salt: Salt,
}

/// A request.
pub struct Job {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Requests of one party may share beginnings.
    pub party: Party,
    /// The images of the prompt, if it has some. They are a part of the salt where beginnings are
    /// shared: tokens of all images are alike.
    pub images: Option<Arc<Images>>,
    /// How tokens are chosen.
    pub settings: Settings,
    /// A grammar that the answer follows.
    pub guide: Option<Box<dyn Guide>>,
    /// The receiver of the answer.
    pub output: Box<dyn Output>,
}

/// The receiver of an answer. The thread of the scheduler calls it, and it must not wait.
pub trait Output: Send {
    /// The prompt is computed. `cached` of its tokens were there already. `prompt` has the
    /// likelihoods of its tokens, except for the first, if they were asked for.
    fn begin(&mut self, cached: usize, prompt: Vec<Likelihood>);

    /// A token of the answer; a break if it has ended with it.
    fn token(&mut self, chosen: Chosen) -> ControlFlow<()>;

    /// The end of the answer.
    fn end(self: Box<Self>, end: Result<End, JobError>);

    /// Whether the answer was given up.
    fn is_gone(&self) -> bool;
}

/// An answer that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub why: Why,
    /// Tokens of the answer; a stop token is one of them.
    pub tokens: usize,
    /// The results of the draft's guesses.
    pub guesses: Guesses,
}

/// The reason for which an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// This stop token, or the end of a grammar.
    Stop(Option<u32>),
    /// The reader of the text.
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
    Form(String),
    #[error("the logits are not finite")]
    NotFinite,
    #[error("{0}")]
    Fault(String),
    #[error("the server cannot go on: {0}")]
    Down(String),
    #[error("the server is ending")]
    Ending,
}

impl From<ChoiceError> for JobError {
    fn from(error: ChoiceError) -> JobError {
        match error {
            ChoiceError::NotFinite => JobError::NotFinite,
            ChoiceError::Guide(_) => JobError::Form(error.to_string()),
        }
    }
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

/// A request that waits or runs.
pub(super) struct Task {
    pub output: Box<dyn Output>,
    pub chooser: Chooser,
    /// Of the prompt, and then of the answer.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    pub party: Party,
    pub images: Option<Arc<Images>>,
    /// Most tokens of the answer.
    limit: usize,
    /// While it runs.
    pub sequence: Option<SeqId>,
    /// Tokens that the sequence has.
    pub fed: usize,
    /// The last token and the guesses after it, which the next step verifies; empty without
    /// guesses.
    pub ahead: Vec<u32>,
    pub guesses: Guesses,
    /// Its place in the order of arrival.
    pub number: u64,
    /// The request that it answers: all answers to one have the same number here.
    pub request: u64,
    /// It is not to share a step with others: one of them made logits that are not finite.
    pub alone: bool,
    /// Its guide does not know yet which tokens may follow: it is in no step.
    pub is_held: bool,
    /// It has as many tokens as it may have, and its guide does not know yet whether it is
    /// complete.
    is_full: bool,
    /// Tokens that were there when it was first admitted.
    cached: Option<usize>,
    /// How likely the prompt's tokens were, from the second on.
    scores: Vec<Likelihood>,
    begun: bool,
}

/// The results of a step's rows for one request.
#[derive(Default)]
pub(super) struct Seen {
    scores: Vec<(usize, Likelihood)>,
    /// The token after each row, up to the first that differs from its guess, or that ends the
    /// answer.
    chosen: Vec<Result<Next, ChoiceError>>,
    is_over: bool,
}

/// A token that was chosen, and whether the answer ends with it.
struct Next {
    chosen: Chosen,
    end: Option<Why>,
}

/// The results of a step for a piece.
pub(super) struct Event {
    pub piece: Piece,
    pub seen: Seen,
}

/// The parts of a running task that a step needs.
pub(super) struct Part<'a> {
    pub sequence: SeqId,
    chooser: &'a mut Chooser,
    tokens: &'a [u32],
    fed: usize,
    ahead: &'a [u32],
}

impl<'a> Part<'a> {
    /// The sequence's next `tokens` tokens.
    pub fn next(&self, tokens: usize) -> &'a [u32] {
        if self.ahead.is_empty() { &self.tokens[self.fed..][..tokens] } else { self.ahead }
    }
}

impl Seen {
    /// Takes the logits after one of the tokens of a step, given by its index.
    pub fn see(&mut self, part: &mut Part, index: usize, logits: &[f32]) {
        let position = part.fed + index;
        match (part.tokens.get(position + 1), part.chooser.settings().prompt_logprobs) {
            (Some(&next), Some(top)) => self.scores.push((position, likelihood(logits, next, top))),
            (Some(_), None) => {}
            (None, _) => self.choose(part, index, |chooser| chooser.choose(logits)),
        }
    }

    /// Takes the likeliest token after one of the tokens of a step.
    pub fn pick(&mut self, part: &mut Part, index: usize, token: u32) {
        self.choose(part, index, |_| Ok(Chosen { token, likelihood: None }));
    }

    fn choose(
        &mut self,
        part: &mut Part,
        index: usize,
        choose: impl FnOnce(&mut Chooser) -> Result<Chosen, ChoiceError>,
    ) {
        // Rows after a wrong guess are of no use. A guess does not wait for its guide either.
        if self.is_over || index > 0 && !matches!(part.chooser.progress(Duration::ZERO), Ok(Progress::Open)) {
            self.is_over = true;
            return;
        }
        let guess = part.ahead.get(index + 1);
        let next = choose(part.chooser).and_then(|chosen| {
            let end = part.chooser.take(chosen.token)?;
            Ok(Next { chosen, end })
        });
        self.is_over = !matches!(&next, Ok(next) if next.end.is_none() && Some(&next.chosen.token) == guess);
        self.chosen.push(next);
    }
}

impl Task {
    pub fn new(job: Job, number: u64, request: u64, limits: &Limits) -> Task {
        let prompt = job.prompt.len();
        // The last token of an answer is never fed back, so it needs no position.
        let limit = job.settings.max_new.min((limits.positions + 1).saturating_sub(prompt));
        let chooser = Chooser::new(job.settings, job.guide, &job.prompt);
        Task {
            output: job.output,
            chooser,
            tokens: job.prompt,
            prompt,
            party: job.party,
            images: job.images,
            limit,
            sequence: None,
            fed: 0,
            ahead: vec![],
            guesses: Guesses::default(),
            number,
            request,
            alone: false,
            is_held: false,
            is_full: false,
            cached: None,
            scores: vec![],
            begun: false,
        }
    }

    /// It has a sequence.
    pub fn admitted(&mut self) {
        self.cached.get_or_insert(self.fed);
    }

    /// It has no sequence any more, and computes all of its tokens again in its turn.
    pub fn start_over(&mut self) {
        self.fed = 0;
        self.ahead.clear();
    }

    /// Looks at the progress of its guide, after waiting for at most this time. Returns the end, if
    /// it is complete.
    pub fn look(&mut self, within: Duration) -> Option<Result<End, JobError>> {
        if !self.is_held {
            return None;
        }
        match self.chooser.progress(within) {
            Ok(Progress::Busy) => return None,
            Ok(Progress::Complete) => return Some(Ok(self.ended(Why::Stop(None), 0))),
            Ok(Progress::Open) if self.is_full => return Some(Ok(self.ended(Why::Length, 0))),
            Ok(Progress::Open) => self.is_held = false,
            Err(error) => return Some(Err(error.into())),
        }
        None
    }

    /// The parts that a step needs.
    pub fn part(&mut self) -> Option<Part<'_>> {
        let Task { sequence, chooser, tokens, fed, ahead, .. } = self;
        sequence.map(|sequence| Part { sequence, chooser, tokens, fed: *fed, ahead })
    }

    /// Tokens that may be guessed after the last one: the last of an answer needs no guess.
    pub fn guessable(&self) -> usize {
        match self.new_tokens() {
            0 => 0,
            new => (self.limit - new).saturating_sub(1),
        }
    }

    /// Tokens of the next step, if it takes all there are.
    pub fn coming(&self) -> usize {
        if self.ahead.is_empty() { self.left() } else { self.ahead.len() }
    }

    /// Tokens that the sequence does not have yet.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.fed
    }

    /// Tokens of the answer so far.
    pub fn new_tokens(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Whether it may begin with computed tokens of others: not if each of its rows is needed.
    pub fn may_share(&self) -> bool {
        !self.has_scores_left()
    }

    fn has_scores_left(&self) -> bool {
        self.chooser.settings().prompt_logprobs.is_some() && self.scores.len() + 1 < self.prompt
    }

    /// Most of its tokens in one step: the number of rows of logits, if each token needs one.
    pub fn most(&self, limits: &Limits) -> usize {
        if self.has_scores_left() { self.left().min(limits.step_rows.max(1)) } else { self.left() }
    }

    /// As many of its next tokens, or more: those of an image that see each other are in one step.
    pub fn whole(&self, tokens: usize) -> usize {
        self.images.as_ref().map_or(tokens, |images| images.whole(self.fed, tokens))
    }

    /// The wanted rows of `tokens` tokens.
    pub fn wants(&self, tokens: usize) -> Want {
        match tokens == self.left() {
            _ if self.has_scores_left() || !self.ahead.is_empty() => Want::All,
            true => Want::Last,
            false => Want::Nothing,
        }
    }

    /// Whether the likeliest token is all that is wanted of a step.
    pub fn is_plain(&self, tokens: usize) -> bool {
        match self.wants(tokens) {
            Want::Nothing => true,
            Want::Last => self.chooser.is_plain(),
            Want::All => !self.has_scores_left() && self.chooser.is_plain(),
        }
    }

    /// Takes the results of a step. Returns the end, if it has ended. If guesses were wrong, the
    /// sequence has more tokens than `fed` afterwards.
    pub fn advance(&mut self, tokens: usize, seen: Seen, limits: &Limits) -> Option<Result<End, JobError>> {
        let guessed = self.ahead.len().saturating_sub(1);
        self.ahead.clear();
        self.fed += tokens - guessed;
        for (position, score) in seen.scores {
            if position == self.scores.len() {
                self.scores.push(score);
            }
        }
        if self.left() > 0 {
            return None;
        }
        self.alone = false;
        self.guesses += Guesses { made: guessed, right: 0, steps: usize::from(self.begun) };
        if !self.begun {
            self.begun = true;
            self.output.begin(self.cached.unwrap_or(0), std::mem::take(&mut self.scores));
            // If the prompt is computed again, its likelihoods are not needed again.
            self.chooser.prompt_was_told();
        }
        if self.limit == 0 {
            return Some(Ok(self.ended(Why::Length, 0)));
        }
        if seen.chosen.is_empty() {
            return Some(Err(ChoiceError::NotFinite.into()));
        }
        for (index, next) in seen.chosen.into_iter().enumerate() {
            // A later entry exists only if the guess before it was right.
            let right = usize::from(index > 0);
            self.fed += right;
            self.guesses.right += right;
            let end = match next {
                Ok(next) => self.push(next, limits).map(Ok),
                Err(error) => Some(Err(error.into())),
            };
            if end.is_some() {
                return end;
            }
        }
        None
    }

    fn push(&mut self, Next { chosen, end }: Next, limits: &Limits) -> Option<End> {
        if let Some(Why::Stop(Some(_))) = end {
            return end.map(|why| self.ended(why, 1));
        }
        self.tokens.push(chosen.token);
        let is_over = self.output.token(chosen).is_break();
        let why = match end {
            _ if is_over => Why::Output,
            Some(why) => why,
            None => {
                self.is_full = self.new_tokens() >= self.limit || self.tokens.len() > limits.positions;
                // An error of the guide is reported by the next look at it.
                self.is_held = !matches!(self.chooser.progress(Duration::ZERO), Ok(Progress::Open));
                match self.is_full && !self.is_held {
                    true => Why::Length,
                    false => return None,
                }
            }
        };
        Some(self.ended(why, 0))
    }

    pub fn ended(&self, why: Why, more: usize) -> End {
        End { why, tokens: self.new_tokens() + more, guesses: self.guesses }
    }

    pub fn end(self, end: Result<End, JobError>) {
        self.output.end(end);
    }
}
