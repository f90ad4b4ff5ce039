//! `/v1/responses`, OpenAI's interface of items: text, thoughts and calls. Nothing is kept, so each
//! request has its whole conversation.
mod asked;
mod output;

use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{self, Render, Usage};
use super::body::Payload;
use super::error::ApiError;
use super::events::Event;
use super::fields::named;
use super::request::{Common, read_both};
use super::talk::{Begun, Said};
use super::{Shared, axum_json, name_of_answer, read_apart, seconds};
use crate::parts::Parts;
use crate::schedule::Why;
use asked::Asked;
use output::Output;

/// A request that the scheduler has.
struct Taken {
    begun: Begun,
    /// The request's fields that every response repeats.
    echo: Value,
}

pub async fn respond(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let Taken { begun, echo } = read_apart(service, body, true, begin).await?;
    let events = begun.submit().await?;
    let Begun { common, said, usage, .. } = begun;
    let shape = Shape { id: name_of_answer("resp"), created: seconds(SystemTime::now()), echo, said };
    if common.is_stream() {
        let (parts, output) = (shape.said.parts(), Output::default());
        let steps = Steps { shape, parts, output, usage, number: 0 };
        return Ok(named(answer::stream(events, steps).await?, &common.ignored));
    }
    let found = answer::collect(events, 1).await?;
    let usage = usage.with(1, &found);
    let (mut parts, mut output) = (shape.said.parts(), Output::default());
    let mut response = Value::Null;
    for answer in found {
        let all = [parts.push(&answer.text), parts.end()].concat();
        all.into_iter().for_each(|part| _ = output.push(part));
        let why = answer.end.map_or(Why::Length, |end| end.why);
        output.close(status(why));
        response = shape.ended(&output, why, &usage);
    }
    Ok(named(axum_json(StatusCode::OK, &response), &common.ignored))
}

fn begin(service: Shared, body: &Payload) -> Result<Taken, ApiError> {
    let (mut common, asked): (Common, Asked) = read_both(body)?;
    if common.n.is_some_and(|n| n != 1) {
        return Err(ApiError::field("n", "a response has one answer"));
    }
    common.max_tokens = asked.max_output_tokens.or(common.max_tokens);
    let (talk, echo) = (asked.talk(&mut common)?, asked.echo(&common));
    Ok(Taken { begun: talk.begin(service, common)?, echo })
}

/// The status of an answer that ended for this reason.
fn status(why: Why) -> &'static str {
    if why == Why::Length { "incomplete" } else { "completed" }
}

/// The fields of every state of a response.
struct Shape {
    id: String,
    created: u64,
    echo: Value,
    said: Said,
}

impl Shape {
    fn response(&self, status: &str, items: &[Value]) -> Value {
        let mut response = self.echo.clone();
        response["id"] = self.id.as_str().into();
        response["object"] = "response".into();
        response["created_at"] = self.created.into();
        response["status"] = status.into();
        response["model"] = self.said.model.as_str().into();
        response["output"] = items.into();
        response
    }

    fn ended(&self, output: &Output, why: Why, usage: &Usage) -> Value {
        let mut response = self.response(status(why), output.items());
        if why == Why::Length {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let &Usage { prompt, cached, answer, .. } = usage;
        response["usage"] = json!({
            "input_tokens": prompt,
            "input_tokens_details": cached.map(|cached| json!({ "cached_tokens": cached })),
            "output_tokens": answer,
            // Tokens of thoughts are not counted separately.
            "output_tokens_details": (!self.said.service.thoughts).then(|| json!({ "reasoning_tokens": 0 })),
            "total_tokens": prompt + answer,
        });
        response
    }
}

/// Events of a stream.
struct Steps {
    shape: Shape,
    parts: Parts,
    output: Output,
    usage: Usage,
    number: usize,
}

impl Steps {
    /// Events with their numbers.
    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = self.number.into();
            self.number += 1;
        }
        events
    }

    fn at(&self, kind: &str, response: Value) -> Value {
        json!({ "type": kind, "response": response })
    }
}

impl Render for Steps {
    const NAMED: bool = true;

    fn error(&mut self, error: &ApiError) -> Value {
        let mut told = error.json()["error"].take();
        told["type"] = "error".into();
        self.numbered(vec![told]).pop().unwrap_or_default()
    }

    fn begin(&mut self) -> Vec<Value> {
        let response = self.shape.response("in_progress", &[]);
        let events = ["response.created", "response.in_progress"].map(|kind| self.at(kind, response.clone())).to_vec();
        self.numbered(events)
    }

    fn event(&mut self, _: usize, event: Event) -> Vec<Value> {
        let events = match event {
            Event::Begin { cached, .. } => {
                self.usage.add_cached(cached);
                vec![]
            }
            Event::Text { text, .. } => {
                let parts = self.parts.push(&text);
                parts.into_iter().flat_map(|part| self.output.push(part)).collect()
            }
            Event::End(Ok(end)) => {
                self.usage.add(&end);
                let rest = self.parts.end();
                let mut events: Vec<Value> = rest.into_iter().flat_map(|part| self.output.push(part)).collect();
                events.extend(self.output.close(status(end.why)));
                let response = self.shape.ended(&self.output, end.why, &self.usage);
                events.push(self.at(&format!("response.{}", status(end.why)), response));
                events
            }
            Event::End(Err(error)) => return vec![self.error(&error)],
        };
        self.numbered(events)
    }

    fn end(&mut self) -> Vec<Value> {
        vec![]
    }
}
