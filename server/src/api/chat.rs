//! `/v1/chat/completions`.
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Answer, Render, StreamUsage, finish, logprob};
use super::body::Payload;
use super::error::ApiError;
use super::events::Event;
use super::fields::named;
use super::request::{Common, read_both};
use super::talk::{Begun, Said, Talk};
use super::{Shared, axum_json, name_of_answer, read_apart, seconds};
use crate::parts::{Part, Parts};
use crate::schedule::{Chosen, Why};
use crate::text::Shown;
use crate::tools::Call;

#[derive(Deserialize)]
pub struct Chat {
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    functions: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    chat_template: Option<Value>,
    reasoning_effort: Option<Value>,
    include_reasoning: Option<bool>,
}

/// A request that the scheduler has.
struct Asked {
    begun: Begun,
    /// Whether it is told how likely tokens were.
    likely: bool,
    shows_thoughts: bool,
}

pub async fn complete(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let Asked { begun, likely, shows_thoughts } = read_apart(service, body, true, begin).await?;
    let events = begun.submit().await?;
    let Begun { common, said, usage, .. } = begun;
    let answers = common.n.unwrap_or(1);
    let (id, created) = (name_of_answer("chatcmpl"), seconds(SystemTime::now()));
    let shape = Shape { id, created, likely, shows_thoughts, said };
    if common.is_stream() {
        let usage = StreamUsage { usage, is_wanted: common.wants_usage() };
        let states = (0..answers).map(|_| Progress { parts: shape.said.parts(), made: 0 }).collect();
        return Ok(named(answer::stream(events, Chunks { shape, states, usage }).await?, &common.ignored));
    }
    let found = answer::collect(events, answers).await?;
    let choices = found.iter().enumerate().map(|(index, answer)| shape.choice(index, answer)).collect();
    let mut whole = shape.around("chat.completion", choices);
    whole["usage"] = usage.with(1, &found).json();
    Ok(named(axum_json(StatusCode::OK, &whole), &common.ignored))
}

fn begin(service: Shared, body: &Payload) -> Result<Asked, ApiError> {
    let (common, asked): (Common, Chat) = read_both(body)?;
    let likely = match (asked.logprobs, asked.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, Some(1..)) => return Err(ApiError::field("top_logprobs", "`logprobs` must be true")),
        _ => None,
    };
    let shows_thoughts = asked.include_reasoning.unwrap_or(true);
    let talk = Talk { likely, ..asked.talk()? };
    Ok(Asked { begun: talk.begin(service, common)?, likely: likely.is_some(), shows_thoughts })
}

impl Chat {
    /// The conversation.
    pub fn talk(self) -> Result<Talk, ApiError> {
        if self.functions.is_some() {
            return Err(ApiError::field("functions", "is the old name of `tools`, which is offered"));
        }
        if self.chat_template.is_some() {
            return Err(ApiError::field("chat_template", "the model's own is used"));
        }
        let mut more = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            more.entry("reasoning_effort").or_insert(effort);
        }
        Ok(Talk {
            messages: self.messages.unwrap_or_default(),
            tools: self.tools.unwrap_or_default(),
            tool_choice: self.tool_choice.unwrap_or_default(),
            parallel: self.parallel_tool_calls.unwrap_or(true),
            more,
            generate: self.add_generation_prompt.unwrap_or(true),
            likely: None,
        })
    }
}

/// The fields of every part of a response.
struct Shape {
    id: String,
    created: u64,
    likely: bool,
    shows_thoughts: bool,
    said: Said,
}

impl Shape {
    fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.said.model,
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let mut parts = self.said.parts();
        let (mut thought, mut text, mut made) = (String::new(), String::new(), vec![]);
        for part in [parts.push(&answer.text), parts.end()].concat() {
            match part {
                Part::Thought(piece) => thought += &piece,
                Part::Text(piece) => text += &piece,
                Part::Call(call) => made.push(described(&call, None)),
            }
        }
        let content = if text.is_empty() && !made.is_empty() { Value::Null } else { text.into() };
        let mut message = json!({ "role": "assistant", "content": content });
        if self.shows_thoughts && !thought.is_empty() {
            add_thought(&mut message, thought);
        }
        let calls = made.len();
        if calls > 0 {
            message["tool_calls"] = made.into();
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(&answer.tokens),
            "finish_reason": answer.end.map(|end| self.ended(end.why, calls)),
        })
    }

    /// The reason of the end of an answer with `calls` calls.
    fn ended(&self, why: Why, calls: usize) -> &'static str {
        if self.said.is_call(why, calls) { "tool_calls" } else { finish(why) }
    }

    fn logprobs(&self, tokens: &[Chosen]) -> Value {
        if !self.likely {
            return Value::Null;
        }
        let one = |token: u32, value: f32| {
            let Shown { text, bytes } = self.said.service.text.show(token);
            json!({ "token": text, "logprob": logprob(value), "bytes": bytes })
        };
        let told = tokens.iter().filter_map(|chosen| {
            let likelihood = chosen.likelihood.as_ref()?;
            let mut entry = one(chosen.token, likelihood.logprob);
            entry["top_logprobs"] = likelihood.top.iter().map(|&(token, value)| one(token, value)).collect();
            Some(entry)
        });
        json!({ "content": told.collect::<Vec<_>>() })
    }
}

/// Adds a thought to a message or a piece of one, by both names that clients know.
fn add_thought(message: &mut Value, thought: String) {
    message["reasoning"] = thought.clone().into();
    message["reasoning_content"] = thought.into();
}

/// A call as the interface has it; in a stream with its place.
fn described(call: &Call, place: Option<usize>) -> Value {
    let mut made = json!({
        "id": name_of_answer("call"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    });
    if let Some(place) = place {
        made["index"] = place.into();
    }
    made
}

/// The progress of an answer's stream.
struct Progress {
    parts: Parts,
    made: usize,
}

/// Chunks of a stream.
struct Chunks {
    shape: Shape,
    states: Vec<Progress>,
    usage: StreamUsage,
}

impl Chunks {
    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.usage.beside(self.shape.around("chat.completion.chunk", vec![choice]))
    }

    /// Parts of an answer as chunks. How likely tokens were is told with the first.
    fn parts(&mut self, index: usize, parts: Vec<Part>, tokens: &[Chosen]) -> Vec<Value> {
        let mut deltas = vec![];
        for part in parts {
            deltas.push(match part {
                Part::Thought(_) if !self.shape.shows_thoughts => continue,
                Part::Thought(thought) => {
                    let mut delta = json!({});
                    add_thought(&mut delta, thought);
                    delta
                }
                Part::Text(text) => json!({ "content": text }),
                Part::Call(call) => {
                    let place = self.states[index].made;
                    self.states[index].made += 1;
                    json!({ "tool_calls": [described(&call, Some(place))] })
                }
            });
        }
        if deltas.is_empty() && !tokens.is_empty() {
            deltas.push(json!({ "content": "" }));
        }
        let likely = |place: usize| if place == 0 { self.shape.logprobs(tokens) } else { Value::Null };
        let deltas = deltas.into_iter().enumerate();
        deltas.map(|(place, delta)| self.chunk(index, delta, likely(place), None)).collect()
    }
}

impl Render for Chunks {
    fn begin(&mut self) -> Vec<Value> {
        let role = json!({ "role": "assistant", "content": "" });
        (0..self.states.len()).map(|index| self.chunk(index, role.clone(), Value::Null, None)).collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Begin { cached, .. } => {
                self.usage.usage.add_cached(if index == 0 { cached } else { 0 });
                vec![]
            }
            Event::Text { text, tokens } => {
                let parts = self.states[index].parts.push(&text);
                self.parts(index, parts, &tokens)
            }
            Event::End(Ok(end)) => {
                self.usage.usage.add(&end);
                let rest = self.states[index].parts.end();
                let mut chunks = self.parts(index, rest, &[]);
                let reason = self.shape.ended(end.why, self.states[index].made);
                chunks.push(self.chunk(index, json!({}), Value::Null, Some(reason)));
                chunks
            }
            Event::End(Err(error)) => vec![error.json()],
        }
    }

    fn end(&mut self) -> Vec<Value> {
        self.usage.last(|| self.shape.around("chat.completion.chunk", vec![]))
    }
}
