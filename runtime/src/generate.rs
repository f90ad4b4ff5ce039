//! Text from prompts, in token ids: one prompt as a stream, or many at once.
use crate::engine::{Chosen, Engine, Logits, Request, StepError, Want};
use crate::kv::SeqId;
use crate::sample::{Sampler, Sampling};
use atomc_artifact::manifest::Model;
use std::ops::ControlFlow;

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
}

impl Params {
    /// Greedy, with the stop tokens of the model.
    pub fn for_model(model: &Model, max_new: usize) -> Params {
        Params { max_new, sampling: Sampling::default(), stop: model.stop.clone(), speculate: 0 }
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
    params.sampling.check()?;
    let mut writer = Writer::begin(engine, 0, prompt, params);
    let result = writer.run(engine, prompt, params, &mut on_token);
    engine.drop_sequence(writer.sequence)?;
    result.map(|finish| Answer { tokens: writer.tokens, finish, guesses: writer.made })
}

/// Answers many prompts, up to `width` at a time: as one ends, the next joins the others.
/// `on_answer` gets each with the number of its prompt as it ends, in no particular order. Prompt
/// `i` samples with the seed plus `i`.
pub fn generate_all(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    params: &Params,
    width: usize,
    mut on_answer: impl FnMut(usize, Answer) -> ControlFlow<()>,
) -> Result<(), StepError> {
    params.sampling.check()?;
    let mut active = Vec::new();
    let result = serve(engine, prompts, params, width.max(1), &mut active, &mut on_answer);
    for writer in active {
        engine.drop_sequence(writer.sequence)?;
    }
    result
}

fn serve(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    params: &Params,
    width: usize,
    active: &mut Vec<Writer>,
    on_answer: &mut impl FnMut(usize, Answer) -> ControlFlow<()>,
) -> Result<(), StepError> {
    let mut next = 0;
    loop {
        while active.len() < width && next < prompts.len() && may_join(engine, active, &prompts[next], params) {
            active.push(Writer::begin(engine, next, &prompts[next], params));
            next += 1;
        }
        if active.is_empty() {
            return Ok(());
        }
        let requests: Vec<Request> = active.iter().map(|writer| writer.request(&prompts[writer.prompt])).collect();
        let tokens = Next::of(engine, &requests, params)?;
        for (index, writer) in active.iter_mut().enumerate() {
            let Ok(finish) = writer.take(&tokens, index, params) else { return Err(engine.not_finite()) };
            writer.finish = finish;
        }
        go_back(engine, active, |index| &prompts[index])?;
        guess(engine, active, params)?;
        for index in (0..active.len()).rev() {
            let Some(finish) = active[index].finish else { continue };
            let writer = active.remove(index);
            engine.drop_sequence(writer.sequence)?;
            let answer = Answer { tokens: writer.tokens, finish, guesses: writer.made };
            if on_answer(writer.prompt, answer).is_break() {
                return Ok(());
            }
        }
    }
}

/// Takes sequences back whose step had tokens that were guessed wrong.
fn go_back<'a>(engine: &mut Engine, active: &[Writer], prompt: impl Fn(usize) -> &'a [u32]) -> Result<(), StepError> {
    let going: Vec<&Writer> = active.iter().filter(|writer| writer.finish.is_none()).collect();
    let valid: Vec<(SeqId, usize)> = going.iter().map(|writer| (writer.sequence, writer.valid)).collect();
    engine.take_back(&valid, |index, tokens| {
        let all = prompt(going[index].prompt).iter().chain(&going[index].tokens).copied();
        all.take(tokens.end).skip(tokens.start).collect()
    })
}

/// Has the draft guess behind all answers that go on.
fn guess(engine: &mut Engine, active: &mut [Writer], params: &Params) -> Result<(), StepError> {
    if params.speculate == 0 {
        return Ok(());
    }
    let going: Vec<usize> = (0..active.len()).filter(|&index| active[index].finish.is_none()).collect();
    let chosen: Vec<Chosen> = going.iter().map(|&index| active[index].chosen()).collect();
    let most = going.iter().map(|&index| active[index].guessable()).max().unwrap_or(0);
    let guesses = engine.draft(&chosen, params.speculate.min(most))?;
    for (index, guesses) in going.into_iter().zip(guesses) {
        let most = active[index].guessable();
        active[index].fed.extend(guesses.into_iter().take(most));
    }
    Ok(())
}

/// Whether the cache has room for one more whole answer beside what those under way may still need.
/// The first may always try, so that a prompt that never fits becomes an error.
fn may_join(engine: &Engine, active: &[Writer], prompt: &[u32], params: &Params) -> bool {
    let most = |tokens: usize| tokens.min(engine.model().max_positions);
    let joins = std::iter::once((None, most(prompt.len().saturating_add(params.max_new))));
    let others = active.iter().map(|writer| (Some(writer.sequence), most(writer.most)));
    active.is_empty() || engine.cache().has_room(others.chain(joins)).is_ok()
}

/// What a step says of the next token of each request.
enum Next<'a> {
    Greedy(Vec<Vec<u32>>),
    Logits(Logits<'a>),
}

impl<'a> Next<'a> {
    fn of(engine: &'a mut Engine, requests: &[Request], params: &Params) -> Result<Next<'a>, StepError> {
        match params.sampling.is_greedy() {
            true => engine.step_picks(requests).map(Next::Greedy),
            false => engine.step(requests).map(Next::Logits),
        }
    }

    /// The token behind a row of a request, if there is one with a finite logit: the engine has
    /// looked at those of greedy steps.
    fn token(&self, (request, row): (usize, usize), sampler: &mut Sampler) -> Result<u32, Unlikely> {
        let found = match self {
            Next::Greedy(picks) => picks[request].get(row).copied(),
            Next::Logits(logits) => logits.of(request).nth(row).and_then(|row| {
                let token = sampler.sample(row);
                row[token as usize].is_finite().then_some(token)
            }),
        };
        found.ok_or(Unlikely)
    }
}

/// That no token can be chosen, since logits are not finite.
struct Unlikely;

/// An answer under way.
struct Writer {
    sequence: SeqId,
    prompt: usize,
    sampler: Sampler,
    tokens: Vec<u32>,
    /// What the next step is given behind the prompt: the last token and what is guessed behind it.
    fed: Vec<u32>,
    /// Tokens of the sequence that are right.
    valid: usize,
    /// Tokens that the last step chose.
    news: usize,
    made: Guesses,
    /// Most tokens, the prompt's among them.
    most: usize,
    /// Most new tokens.
    limit: usize,
    finish: Option<Finish>,
}

impl Writer {
    fn begin(engine: &mut Engine, index: usize, prompt: &[u32], params: &Params) -> Writer {
        // The last token of an answer is never fed back, so it needs no position.
        let room = (engine.model().max_positions + 1).saturating_sub(prompt.len());
        let limit = params.max_new.min(room);
        let seed = params.sampling.seed.wrapping_add(index as u64);
        let sampler = Sampler::new(Sampling { seed, ..params.sampling });
        let most = prompt.len().saturating_add(limit);
        Writer {
            sequence: engine.add_sequence(),
            prompt: index,
            sampler,
            tokens: Vec::new(),
            fed: Vec::new(),
            valid: prompt.len(),
            news: 0,
            made: Guesses::default(),
            most,
            limit,
            finish: None,
        }
    }

    fn request<'a>(&'a self, prompt: &'a [u32]) -> Request<'a> {
        match self.fed.is_empty() {
            true => Request { sequence: self.sequence, tokens: prompt, logits: Want::Last },
            false => Request { sequence: self.sequence, tokens: &self.fed, logits: Want::All },
        }
    }

    /// Tokens that may be guessed: the last of an answer needs no guess.
    fn guessable(&self) -> usize {
        (self.limit - self.tokens.len()).saturating_sub(1)
    }

    /// The tokens that the last step chose.
    fn chosen(&self) -> Chosen<'_> {
        Chosen { sequence: self.sequence, tokens: &self.tokens[self.tokens.len() - self.news..] }
    }

    /// Takes the next tokens of one of the requests, one behind each row until a guess is wrong;
    /// tells if one ends the answer.
    fn take(&mut self, next: &Next, request: usize, params: &Params) -> Result<Option<Finish>, Unlikely> {
        if self.limit == 0 {
            return Ok(Some(Finish::Length));
        }
        let fed = std::mem::take(&mut self.fed);
        let guessed = fed.get(1..).unwrap_or_default();
        self.made.made += guessed.len();
        self.made.steps += usize::from(!fed.is_empty());
        self.news = 0;
        loop {
            let row = self.news;
            let token = next.token((request, row), &mut self.sampler)?;
            if params.stop.contains(&token) {
                return Ok(Some(Finish::Stop(token)));
            }
            self.tokens.push(token);
            self.news += 1;
            if self.tokens.len() >= self.limit {
                return Ok(Some(Finish::Length));
            }
            if guessed.get(row) != Some(&token) {
                break;
            }
            self.made.right += 1;
        }
        // All but the last are in the sequence.
        self.valid += if fed.is_empty() { 0 } else { self.news };
        self.fed = vec![self.tokens[self.tokens.len() - 1]];
        Ok(None)
    }

    fn run(
        &mut self,
        engine: &mut Engine,
        prompt: &[u32],
        params: &Params,
        on_token: &mut impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Finish, StepError> {
        loop {
            let next = Next::of(engine, &[self.request(prompt)], params)?;
            let known = self.tokens.len();
            let Ok(finish) = self.take(&next, 0, params) else { return Err(engine.not_finite()) };
            self.finish = finish;
            for &token in &self.tokens[known..] {
                if on_token(token).is_break() {
                    return Ok(Finish::Caller);
                }
            }
            if let Some(finish) = finish {
                return Ok(finish);
            }
            let writers = std::slice::from_mut(self);
            go_back(engine, writers, |_| prompt)?;
            guess(engine, writers, params)?;
        }
    }
}

#[cfg(test)]
mod tests;
