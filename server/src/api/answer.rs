//! Answers as responses: whole, or as a stream of events.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use atomc_runtime::Guesses;
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::error::ApiError;
use super::events::{Event, Events};
use crate::schedule::{Chosen, End, Likelihood, Why};

/// The likelihood that is reported for an impossible token: JSON has no infinity.
const NEVER: f32 = -9999.0;

/// A whole answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<Chosen>,
    pub prompt: Vec<Likelihood>,
    pub cached: usize,
    pub end: Option<End>,
}

/// Waits for all answers. The first that fails is the response.
pub async fn collect(mut events: Events, count: usize) -> Result<Vec<Answer>, ApiError> {
    let mut answers: Vec<Answer> = (0..count).map(|_| Answer::default()).collect();
    while let Some((index, event)) = events.recv().await {
        let answer = &mut answers[index];
        match event {
            Event::Begin { cached, prompt } => (answer.cached, answer.prompt) = (cached, prompt),
            Event::Text { text, tokens } => {
                answer.text += &text;
                answer.tokens.extend(tokens);
            }
            Event::End(end) => answer.end = Some(end?),
        }
    }
    match answers.iter().all(|answer| answer.end.is_some()) {
        true => Ok(answers),
        false => Err(ApiError::unavailable("the server ended before the answer did")),
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub prompt: usize,
    /// Tokens of the prompt that were there already, if the client may know.
    pub cached: Option<usize>,
    pub answer: usize,
    pub guesses: Guesses,
}

impl Usage {
    pub fn json(&self) -> Value {
        let &Usage { prompt, cached, answer, guesses: Guesses { made, right, .. } } = self;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": cached.map(|cached| json!({ "cached_tokens": cached })),
            "completion_tokens_details": {
                "accepted_prediction_tokens": right,
                "rejected_prediction_tokens": made - right,
            },
        })
    }

    /// The usage of answers to `prompt` tokens of prompts.
    pub fn new(prompt: usize, knows_cached: bool) -> Usage {
        Usage { prompt, cached: knows_cached.then_some(0), ..Usage::default() }
    }

    /// Adds all answers to `prompts` prompts. The first answer to a prompt gives its cached tokens.
    pub fn with(mut self, prompts: usize, answers: &[Answer]) -> Usage {
        let every = answers.len() / prompts.max(1);
        answers.iter().step_by(every.max(1)).for_each(|answer| self.add_cached(answer.cached));
        answers.iter().filter_map(|answer| answer.end).for_each(|end| self.add(&end));
        self
    }

    /// Adds tokens of a prompt that were there already.
    pub fn add_cached(&mut self, tokens: usize) {
        self.cached = self.cached.map(|cached| cached + tokens);
    }

    /// Adds an answer that has ended.
    pub fn add(&mut self, end: &End) {
        self.answer += end.tokens;
        self.guesses += end.guesses;
    }
}

/// The usage that a stream reports, if it is wanted: null in its chunks, and the total in one after
/// them.
pub struct StreamUsage {
    pub usage: Usage,
    pub is_wanted: bool,
}

impl StreamUsage {
    /// A chunk, with a place for usage.
    pub fn beside(&self, mut chunk: Value) -> Value {
        if self.is_wanted {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The last chunk of a stream, made of an empty one.
    pub fn last(&self, empty: impl FnOnce() -> Value) -> Vec<Value> {
        if !self.is_wanted {
            return vec![];
        }
        let mut chunk = empty();
        chunk["usage"] = self.usage.json();
        vec![chunk]
    }
}

/// Why an answer ended, in the interface's words.
pub fn finish(why: Why) -> &'static str {
    match why {
        Why::Stop(_) | Why::Output => "stop",
        Why::Length => "length",
    }
}

/// A number that JSON has.
pub fn logprob(value: f32) -> f32 {
    if value.is_finite() { value } else { NEVER }
}

/// Makes chunks of events.
pub trait Render: Send + Unpin + 'static {
    /// Whether each chunk has the name that is its `type`, and none says that it was the last.
    const NAMED: bool = false;

    /// Reports an answer that failed after others have begun.
    fn error(&mut self, error: &ApiError) -> Value {
        error.json()
    }

    /// Before anything happens.
    fn begin(&mut self) -> Vec<Value>;

    /// The parts that an event adds to the stream.
    fn event(&mut self, index: usize, event: Event) -> Vec<Value>;

    /// The chunks after the last one.
    fn end(&mut self) -> Vec<Value>;
}

/// A stream of events, once the first answer has begun: an earlier fault is a response of its own.
pub async fn stream<R: Render>(mut events: Events, mut render: R) -> Result<Response, ApiError> {
    let (index, event) = match events.recv().await {
        Some((_, Event::End(Err(error)))) => return Err(error),
        Some(event) => event,
        None => return Err(ApiError::unavailable("the server ended before the answer did")),
    };
    let mut chunks = render.begin();
    chunks.extend(render.event(index, event));
    let ready = chunks.iter().map(data::<R>).collect();
    let stream = Stream { events, render, ready, is_over: false };
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::new(stream)).into_response())
}

fn data<R: Render>(chunk: &Value) -> Bytes {
    match chunk["type"].as_str().filter(|_| R::NAMED) {
        Some(name) => format!("event: {name}\ndata: {chunk}\n\n").into(),
        None => format!("data: {chunk}\n\n").into(),
    }
}

/// The body of a stream.
struct Stream<R> {
    events: Events,
    render: R,
    ready: VecDeque<Bytes>,
    is_over: bool,
}

impl<R: Render> hyper::body::Body for Stream<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(ready))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let chunks = match std::task::ready!(self.events.poll_recv(cx)) {
                Some((_, Event::End(Err(error)))) => {
                    self.is_over = true;
                    // The other answers are not waited for.
                    self.events.close();
                    vec![self.render.error(&error)]
                }
                Some((index, event)) => self.render.event(index, event),
                None => {
                    self.is_over = true;
                    self.render.end()
                }
            };
            self.ready.extend(chunks.iter().map(data::<R>));
            if self.is_over && !R::NAMED {
                self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
        }
    }
}
