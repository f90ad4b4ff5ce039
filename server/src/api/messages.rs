//! `/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form: text, thoughts and tools.
mod asked;
mod blocks;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::answer::{self, Render, Usage};
use super::body::Payload;
use super::error::ApiError;
use super::events::Event;
use super::fields::named;
use super::request::{Common, Several, read_both};
use super::talk::{Begun, Said};
use super::{Shared, axum_json, name_of_answer, read_apart};
use crate::parts::Parts;
use crate::schedule::Why;
use asked::Asked;
use blocks::Blocks;

/// The path of the interface.
pub const PATH: &str = "/v1/messages";

/// A request that the scheduler has.
struct Taken {
    begun: Begun,
    /// Texts that end the answer.
    stops: Vec<String>,
    shows_thoughts: bool,
}

pub async fn answer(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let Taken { begun, stops, shows_thoughts } = read_apart(service, body, true, begin).await?;
    let events = begun.submit().await?;
    let Begun { common, said, usage, .. } = begun;
    let message = Message {
        id: name_of_answer("msg"),
        parts: said.parts(),
        blocks: Blocks::new(shows_thoughts),
        stops,
        found: None,
        said,
        usage,
    };
    if common.is_stream() {
        return Ok(named(answer::stream(events, message).await?, &common.ignored));
    }
    let found = answer::collect(events, 1).await?;
    let mut message = Message { usage: message.usage.with(1, &found), ..message };
    let mut why = Why::Length;
    for answer in found {
        message.text(answer.text);
        message.rest();
        why = answer.end.map_or(why, |end| end.why);
    }
    let mut whole = message.begun(message.blocks.content().to_vec());
    let ended = message.ended(why);
    (whole["stop_reason"], whole["stop_sequence"]) = (ended["stop_reason"].clone(), ended["stop_sequence"].clone());
    Ok(named(axum_json(StatusCode::OK, &whole), &common.ignored))
}

pub async fn count(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    read_apart(service, body, true, |service, body| {
        let (common, asked): (Common, Asked) = read_both(body)?;
        service.check_name(common.model.as_deref())?;
        let text = asked.talk()?.prompt(&service)?;
        let tokens = service.text.encode(&text, false, service.handle.limits().positions)?;
        Ok(named(axum_json(StatusCode::OK, &json!({ "input_tokens": tokens.len() })), &common.ignored))
    })
    .await
}

fn begin(service: Shared, body: &Payload) -> Result<Taken, ApiError> {
    let (mut common, asked): (Common, Asked) = read_both(body)?;
    if common.max_tokens.is_none() {
        return Err(ApiError::field("max_tokens", "there is none"));
    }
    if common.n.is_some_and(|n| n != 1) {
        return Err(ApiError::field("n", "there is one answer"));
    }
    let stops = asked.stop_sequences.clone().unwrap_or_default();
    if !stops.is_empty() {
        common.stop = Some(Several::Many(stops.clone()));
        // The end of the text shows which of them it was.
        common.include_stop_str_in_output = Some(true);
    }
    let (talk, shows_thoughts) = (asked.talk()?, asked.shows_thoughts());
    Ok(Taken { begun: talk.begin(service, common)?, stops, shows_thoughts })
}

/// An answer that is being made.
struct Message {
    id: String,
    parts: Parts,
    blocks: Blocks,
    stops: Vec<String>,
    /// The text that ended it.
    found: Option<String>,
    said: Said,
    usage: Usage,
}

impl Message {
    /// The message with these blocks, before it has ended.
    fn begun(&self, content: Vec<Value>) -> Value {
        let &Usage { prompt, cached, answer, .. } = &self.usage;
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.said.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {
                "input_tokens": prompt - cached.unwrap_or(0),
                "cache_creation_input_tokens": cached.map(|_| 0),
                "cache_read_input_tokens": cached,
                "output_tokens": answer,
            },
        })
    }

    /// Takes a piece of the answer. A text that ends it can only be at its end.
    fn text(&mut self, mut piece: String) -> Vec<Value> {
        if let Some(stop) =
            self.stops.iter().filter(|stop| piece.ends_with(stop.as_str())).max_by_key(|stop| stop.len())
        {
            piece.truncate(piece.len() - stop.len());
            self.found = Some(stop.clone());
        }
        let parts = self.parts.push(&piece);
        parts.into_iter().flat_map(|part| self.blocks.push(part)).collect()
    }

    /// The rest, when nothing follows.
    fn rest(&mut self) -> Vec<Value> {
        let parts = self.parts.end();
        let mut events: Vec<Value> = parts.into_iter().flat_map(|part| self.blocks.push(part)).collect();
        events.extend(self.blocks.close());
        events
    }

    /// Why it ended.
    fn ended(&self, why: Why) -> Value {
        let reason = match why {
            Why::Length => "max_tokens",
            _ if self.blocks.calls() > 0 => "tool_use",
            Why::Output => "stop_sequence",
            Why::Stop(_) => "end_turn",
        };
        let found = self.found.as_ref().filter(|_| reason == "stop_sequence");
        json!({ "stop_reason": reason, "stop_sequence": found })
    }
}

impl Render for Message {
    const NAMED: bool = true;

    fn error(&mut self, error: &ApiError) -> Value {
        told(error)
    }

    fn begin(&mut self) -> Vec<Value> {
        vec![]
    }

    fn event(&mut self, _: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Begin { cached, .. } => {
                self.usage.add_cached(cached);
                vec![json!({ "type": "message_start", "message": self.begun(vec![]) })]
            }
            Event::Text { text, .. } => self.text(text),
            Event::End(Ok(end)) => {
                self.usage.add(&end);
                let mut events = self.rest();
                let usage = json!({ "output_tokens": self.usage.answer });
                events.push(json!({ "type": "message_delta", "delta": self.ended(end.why), "usage": usage }));
                events.push(json!({ "type": "message_stop" }));
                events
            }
            Event::End(Err(error)) => vec![told(&error)],
        }
    }

    fn end(&mut self) -> Vec<Value> {
        vec![]
    }
}

/// An error in the interface's form.
fn told(error: &ApiError) -> Value {
    let kind = match error.code_of_status() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message() } })
}

/// Puts errors into the form of this interface.
pub async fn errors(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with(PATH);
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) if is_ours => {
            let (mut parts, _) = response.into_parts();
            parts.headers.remove(axum::http::header::CONTENT_LENGTH);
            (parts, told(&error).to_string()).into_response()
        }
        _ => response,
    }
}
