//! Text from prompts, in token ids: one prompt as a stream, or many at once.
use crate::engine::{Engine, Logits, Request, StepError, Want};
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
}

impl Params {
    /// Greedy, with the stop tokens of the model.
    pub fn for_model(model: &Model, max_new: usize) -> Params {
        Params { max_new, sampling: Sampling::default(), stop: model.stop.clone() }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Without the stop token.
    pub tokens: Vec<u32>,
    /// Why there are no more tokens.
    pub finish: Finish,
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
    result.map(|finish| Answer { tokens: writer.tokens, finish })
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
        for index in (0..active.len()).rev() {
            let Some(finish) = active[index].finish else { continue };
            let writer = active.remove(index);
            engine.drop_sequence(writer.sequence)?;
            if on_answer(writer.prompt, Answer { tokens: writer.tokens, finish }).is_break() {
                return Ok(());
            }
        }
    }
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
    Greedy(Vec<Option<u32>>),
    Logits(Logits<'a>),
}

impl<'a> Next<'a> {
    fn of(engine: &'a mut Engine, requests: &[Request], params: &Params) -> Result<Next<'a>, StepError> {
        match params.sampling.is_greedy() {
            true => engine.step_greedy(requests).map(Next::Greedy),
            false => engine.step(requests).map(Next::Logits),
        }
    }

    /// The token, if there is one with a finite logit: the engine has looked at those of greedy
    /// steps.
    fn token(&self, request: usize, sampler: &mut Sampler) -> Result<u32, Unlikely> {
        let found = match self {
            Next::Greedy(picks) => picks[request],
            Next::Logits(logits) => logits.last(request).and_then(|row| {
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
            most,
            limit,
            finish: None,
        }
    }

    fn request<'a>(&'a self, prompt: &'a [u32]) -> Request<'a> {
        let tokens = self.tokens.last().map_or(prompt, std::slice::from_ref);
        Request { sequence: self.sequence, tokens, logits: Want::Last }
    }

    /// Takes the next token of one of the requests; tells if it ends the answer.
    fn take(&mut self, next: &Next, request: usize, params: &Params) -> Result<Option<Finish>, Unlikely> {
        if self.limit == 0 {
            return Ok(Some(Finish::Length));
        }
        let token = next.token(request, &mut self.sampler)?;
        if params.stop.contains(&token) {
            return Ok(Some(Finish::Stop(token)));
        }
        self.tokens.push(token);
        Ok((self.tokens.len() >= self.limit).then_some(Finish::Length))
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
            for &token in &self.tokens[known..] {
                if on_token(token).is_break() {
                    return Ok(Finish::Caller);
                }
            }
            if let Some(finish) = finish {
                return Ok(finish);
            }
        }
    }
}

#[cfg(test)]
mod tests;
