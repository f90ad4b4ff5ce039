//! `/v1/completions`.
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Answer, Render, StreamUsage, Usage, finish, logprob};
use super::body::Payload;
use super::error::ApiError;
use super::events::Event;
use super::fields::named;
use super::request::{Common, Kind, Likely, read_both};
use super::{Service, Shared, axum_json, name_of_answer, read_apart, seconds};
use crate::schedule::{Chosen, Likelihood};
use crate::text::{Shown, Text};

/// Tokens of an answer, unless a request has a number.
const DEFAULT_TOKENS: usize = 16;

#[derive(Deserialize)]
struct Completion {
    prompt: Option<Prompt>,
    echo: Option<bool>,
    logprobs: Option<usize>,
    suffix: Option<String>,
}

/// Prompts as texts or as tokens.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a text, a list of tokens, or a list of either")]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

impl Prompt {
    fn count(&self) -> usize {
        match self {
            Prompt::Text(_) | Prompt::Tokens(_) => 1,
            Prompt::Texts(all) => all.len(),
            Prompt::Lists(all) => all.len(),
        }
    }
}

/// A request that was read.
struct Begun {
    common: Common,
    tokens: Vec<Vec<u32>>,
    kind: Kind,
    shape: Shape,
}

pub async fn complete(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let Begun { common, tokens, kind, shape } = read_apart(service, body, false, begin).await?;
    let events = common.submit(&shape.service, &tokens, &kind).await?;
    let count = tokens.len() * shape.answers;
    let usage = Usage::new(tokens.iter().map(Vec::len).sum(), common.knows_cached(&shape.service));
    if common.is_stream() {
        let states = vec![Progress::default(); count];
        let usage = StreamUsage { usage, is_wanted: common.wants_usage() };
        return Ok(named(answer::stream(events, Chunks { shape, states, usage }).await?, &common.ignored));
    }
    let found = answer::collect(events, count).await?;
    let mut whole = shape.around(found.iter().enumerate().map(|(index, found)| shape.choice(index, found)).collect());
    whole["usage"] = usage.with(tokens.len(), &found).json();
    Ok(named(axum_json(StatusCode::OK, &whole), &common.ignored))
}

fn begin(service: Shared, body: &Payload) -> Result<Begun, ApiError> {
    let (common, asked): (Common, Completion) = read_both(body)?;
    if asked.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "text between two texts is not offered"));
    }
    common.check(&service, asked.prompt.as_ref().map_or(1, Prompt::count))?;
    let (echo, prompts) = (asked.echo.unwrap_or(false), prompts(&service, asked.prompt)?);
    let tokens: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    let likely = Likely { answer: asked.logprobs, prompt: asked.logprobs.filter(|_| echo) };
    let kind = Kind { likely, most: DEFAULT_TOKENS, ..Kind::default() };
    let shape = Shape {
        id: name_of_answer("cmpl"),
        created: seconds(SystemTime::now()),
        prompts,
        answers: common.n.unwrap_or(1),
        echo,
        likely: asked.logprobs.is_some(),
        model: service.answers_as(common.model.as_deref()).to_owned(),
        service,
    };
    Ok(Begun { common, tokens, kind, shape })
}

/// A prompt, and the parts of it that are echoed.
struct Given {
    tokens: Vec<u32>,
    text: String,
}

fn prompts(service: &Service, prompt: Option<Prompt>) -> Result<Vec<Given>, ApiError> {
    let most = service.handle.limits().positions;
    let text = |text: String| Ok(Given { tokens: service.text.encode(&text, true, most)?, text });
    let tokens = |tokens: Vec<u32>| Ok(Given { text: service.text.decode(&tokens, true)?, tokens });
    let given: Result<Vec<Given>, ApiError> = match prompt {
        None => return Err(ApiError::field("prompt", "there is none")),
        Some(Prompt::Text(one)) => text(one).map(|given| vec![given]),
        Some(Prompt::Tokens(one)) => tokens(one).map(|given| vec![given]),
        Some(Prompt::Texts(all)) => all.into_iter().map(text).collect(),
        Some(Prompt::Lists(all)) => all.into_iter().map(tokens).collect(),
    };
    match given? {
        given if given.iter().any(|given| given.tokens.is_empty()) || given.is_empty() => {
            Err(ApiError::field("prompt", "a prompt needs at least one token"))
        }
        given => Ok(given),
    }
}

/// The fields of every part of a response.
struct Shape {
    id: String,
    created: u64,
    prompts: Vec<Given>,
    /// To each prompt.
    answers: usize,
    echo: bool,
    likely: bool,
    service: Shared,
    /// What answers call the model.
    model: String,
}

impl Shape {
    fn around(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn prompt(&self, index: usize) -> &Given {
        &self.prompts[index / self.answers]
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let given = self.prompt(index);
        let mut list = Logprobs::default();
        if self.echo {
            self.add_prompt(&mut list, given, &answer.prompt);
        }
        answer.tokens.iter().for_each(|chosen| self.add(&mut list, chosen));
        let text = if self.echo { given.text.clone() + &answer.text } else { answer.text.clone() };
        json!({
            "index": index,
            "text": text,
            "logprobs": self.likely.then(|| list.json()),
            "finish_reason": answer.end.map(|end| finish(end.why)),
        })
    }

    /// The tokens of a prompt. The first one has no likelihood.
    fn add_prompt(&self, list: &mut Logprobs, given: &Given, scores: &[Likelihood]) {
        for (position, &token) in given.tokens.iter().enumerate() {
            let score = position.checked_sub(1).and_then(|before| scores.get(before));
            list.add(token, score, &self.service.text);
        }
    }

    fn add(&self, list: &mut Logprobs, chosen: &Chosen) {
        list.add(chosen.token, chosen.likelihood.as_ref(), &self.service.text);
    }
}

/// The position of a token in a text, counted in characters. All tokens of one character have its
/// position.
#[derive(Clone, Default)]
struct Place {
    /// Whole characters so far.
    characters: usize,
    /// Bytes of the next that are there already.
    open: Vec<u8>,
}

impl Place {
    /// Counts these bytes.
    fn pass(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
        let mut rest = 0;
        for chunk in self.open.utf8_chunks() {
            self.characters += chunk.valid().chars().count();
            let invalid = chunk.invalid();
            let is_open = rest + chunk.valid().len() + invalid.len() == self.open.len() && is_begun(invalid);
            rest += chunk.valid().len();
            if !is_open && !invalid.is_empty() {
                // It is shown as one replacement character.
                self.characters += 1;
                rest += invalid.len();
            }
        }
        self.open.drain(..rest);
    }
}

/// Whether bytes are the beginning of a character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// The lists that say how likely tokens were.
#[derive(Clone, Default)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
    place: Place,
}

impl Logprobs {
    fn add(&mut self, token: u32, likelihood: Option<&Likelihood>, all: &Text) {
        let Shown { text, bytes } = all.show(token);
        let top = likelihood.map(|likelihood| {
            let all = likelihood.top.iter().map(|&(token, value)| (all.show(token).text, logprob(value).into()));
            let mut all: Map<String, Value> = all.collect();
            all.entry(text.clone()).or_insert(logprob(likelihood.logprob).into());
            all
        });
        self.text_offset.push(self.place.characters);
        self.place.pass(&bytes);
        self.tokens.push(text);
        self.token_logprobs.push(likelihood.map(|likelihood| logprob(likelihood.logprob)));
        self.top_logprobs.push(top);
    }

    fn json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// The progress of an answer's stream.
#[derive(Clone, Default)]
struct Progress {
    /// The place after the tokens that were reported.
    place: Place,
}

/// Chunks of a stream.
struct Chunks {
    shape: Shape,
    states: Vec<Progress>,
    usage: StreamUsage,
}

impl Chunks {
    fn chunk(&self, index: usize, text: String, list: Option<Logprobs>, finish: Option<&str>) -> Value {
        let logprobs = list.filter(|_| self.shape.likely).map(|list| list.json());
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        self.usage.beside(self.shape.around(vec![choice]))
    }
}

impl Render for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        vec![]
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        let mut list = Logprobs { place: self.states[index].place.clone(), ..Logprobs::default() };
        let (text, finish) = match event {
            Event::Begin { cached, prompt } => {
                if index.is_multiple_of(self.shape.answers) {
                    self.usage.usage.add_cached(cached);
                }
                if !self.shape.echo {
                    return vec![];
                }
                let given = self.shape.prompt(index);
                self.shape.add_prompt(&mut list, given, &prompt);
                (given.text.clone(), None)
            }
            Event::Text { text, tokens } => {
                tokens.iter().for_each(|chosen| self.shape.add(&mut list, chosen));
                (text, None)
            }
            Event::End(Ok(end)) => {
                self.usage.usage.add(&end);
                (String::new(), Some(finish(end.why)))
            }
            Event::End(Err(error)) => return vec![error.json()],
        };
        self.states[index].place = list.place.clone();
        let list = (!list.tokens.is_empty()).then_some(list);
        vec![self.chunk(index, text, list, finish)]
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.last(|| self.shape.around(vec![]))
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn tokens_of_one_character_begin_where_it_does() {
        let (mut place, mut offsets) = (Place::default(), vec![]);
        let tokens: [&[u8]; 8] = [b"\xc3", b"\xa9", b"\xf0", b"\x9f", b"\x98\x80", b"a\xc3", b"b", "\u{e9}".as_bytes()];
        for token in tokens {
            offsets.push(place.characters);
            place.pass(token);
        }
        // Bytes that never form a character are shown as one replacement character.
        assert_eq!((offsets, place.characters), (vec![0, 0, 1, 1, 1, 2, 3, 5], 6));
    }
}
