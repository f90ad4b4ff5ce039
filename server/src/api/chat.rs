//! `/v1/chat/completions`.
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Answer, Render, StreamUsage, Usage, finish, logprob};
use super::error::ApiError;
use super::events::{Event, Events};
use super::request::{Common, Likely, Payload, read_both};
use super::{Service, Shared, apart, axum_json, name_of_answer, seconds};
use crate::schedule::{Chosen, Why};
use crate::template::{Conversation, TemplateError};
use crate::tools::{Call, Calls, Part};

#[derive(Deserialize)]
struct Chat {
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    add_generation_prompt: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    chat_template: Option<Value>,
    reasoning_effort: Option<Value>,
}

/// A request that the scheduler has.
struct Begun {
    common: Common,
    prompts: [Vec<u32>; 1],
    events: Events,
    shape: Shape,
}

pub async fn complete(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let Begun { common, prompts, events, shape } = apart(move || begin(service, body)).await?;
    let answers = common.n.unwrap_or(1);
    if common.is_stream() {
        let usage = StreamUsage::new(common.wants_usage(), prompts[0].len());
        let states = (0..answers).map(|_| Progress::default()).collect();
        return answer::stream(events, Chunks { shape, states, usage }).await;
    }
    let found = answer::collect(events, answers).await?;
    let choices = found.iter().enumerate().map(|(index, answer)| shape.choice(index, answer)).collect();
    let mut whole = shape.around("chat.completion", choices);
    whole["usage"] = Usage::of(&prompts, &found).json();
    Ok(axum_json(StatusCode::OK, &whole))
}

fn begin(service: Shared, body: Payload) -> Result<Begun, ApiError> {
    let (common, asked): (Common, Chat) = read_both(body)?;
    let talk = conversation(&asked)?;
    let prompts = [prompt(&service, &talk)?];
    let likely = match (asked.logprobs, asked.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, Some(1..)) => return Err(ApiError::field("top_logprobs", "`logprobs` must be true")),
        _ => None,
    };
    let positions = service.handle.limits().positions;
    let events = common.submit(&service, &prompts, (Likely { answer: likely, prompt: None }, positions))?;
    let shape = Shape {
        id: name_of_answer("chatcmpl"),
        created: seconds(SystemTime::now()),
        likely: likely.is_some(),
        with_tools: !talk.tools.is_empty(),
        service,
    };
    Ok(Begun { common, prompts, events, shape })
}

fn prompt(service: &Service, talk: &Conversation) -> Result<Vec<u32>, ApiError> {
    let templates = service.templates.as_ref().map_err(|why| ApiError::bad(why.as_str()))?;
    let text = templates.render(talk).map_err(|error| match error {
        TemplateError::Raised(_) | TemplateError::Jinja(_) => ApiError::field("messages", error),
        error => ApiError::bad(error.to_string()),
    })?;
    // Templates write the special tokens themselves.
    let tokens = service.text.encode(&text, false, service.handle.limits().positions)?;
    Ok(tokens)
}

/// What a template is given of a request.
fn conversation(asked: &Chat) -> Result<Conversation, ApiError> {
    if asked.functions.is_some() {
        return Err(ApiError::field("functions", "is the old name of `tools`, which is offered"));
    }
    if asked.chat_template.is_some() {
        return Err(ApiError::field("chat_template", "the model's own is used"));
    }
    let messages = asked.messages.as_ref().filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| ApiError::field("messages", "there are none"))?;
    let messages = messages.iter().enumerate().map(|(index, fields)| message(index, fields));
    let tools = match &asked.tool_choice {
        None => asked.tools.clone().unwrap_or_default(),
        Some(Value::String(choice)) if choice == "auto" => asked.tools.clone().unwrap_or_default(),
        Some(Value::String(choice)) if choice == "none" => vec![],
        Some(_) => return Err(ApiError::field("tool_choice", "only \"auto\" and \"none\" are offered")),
    };
    let mut more = asked.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(effort) = &asked.reasoning_effort {
        more.entry("reasoning_effort").or_insert(effort.clone());
    }
    let generate = asked.add_generation_prompt.unwrap_or(true);
    Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, tools, generate, more })
}

/// A message as templates expect it: its text as one, what tools were given as values.
fn message(index: usize, fields: &Map<String, Value>) -> Result<Value, ApiError> {
    let mut message = fields.clone();
    let at = |field: &str| format!("messages[{index}].{field}");
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(ApiError::field(at("role"), "there is none"));
    }
    match message.get("content") {
        Some(Value::String(_)) => {}
        // Templates ask whether it is there.
        None | Some(Value::Null) => _ = message.insert("content".into(), Value::Null),
        Some(Value::Array(parts)) => {
            let text =
                |part: &Value| (part["type"] == "text").then(|| part["text"].as_str()).flatten().map(str::to_owned);
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            let texts = texts.ok_or_else(|| ApiError::field(at("content"), "only parts of text are offered"))?;
            message.insert("content".into(), texts.join("\n").into());
        }
        Some(_) => return Err(ApiError::field(at("content"), "is neither a text nor a list of parts")),
    }
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = call.get_mut("function").and_then(|function| function.get_mut("arguments"));
        let Some(arguments) = arguments else { continue };
        if let Some(value) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *arguments = value;
        }
    }
    Ok(message.into())
}

/// What every part of a response has.
struct Shape {
    id: String,
    created: u64,
    likely: bool,
    with_tools: bool,
    service: Shared,
}

impl Shape {
    fn around(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.service.names[0],
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let mut calls = Calls::default();
        let parts = match self.with_tools {
            true => [calls.push(&answer.text), calls.end()].concat(),
            false => vec![Part::Text(answer.text.clone())],
        };
        let (mut text, mut made) = (String::new(), vec![]);
        for part in parts {
            match part {
                Part::Text(piece) => text += &piece,
                Part::Call(call) => made.push(described(&call, None)),
            }
        }
        let content = if text.is_empty() && !made.is_empty() { Value::Null } else { text.into() };
        let mut message = json!({ "role": "assistant", "content": content });
        let has_called = !made.is_empty();
        if has_called {
            message["tool_calls"] = made.into();
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(&answer.tokens),
            "finish_reason": answer.end.map(|end| ended(end.why, has_called)),
        })
    }

    fn logprobs(&self, tokens: &[Chosen]) -> Value {
        if !self.likely {
            return Value::Null;
        }
        let one = |token: u32, value: f32| {
            let text = self.service.text.show(token);
            json!({ "token": text, "logprob": logprob(value), "bytes": text.as_bytes() })
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

fn ended(why: Why, has_called: bool) -> &'static str {
    match why {
        Why::Length => "length",
        _ if has_called => "tool_calls",
        why => finish(why),
    }
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

/// How far the stream of an answer has come.
#[derive(Default)]
struct Progress {
    calls: Calls,
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
                self.usage.usage.cached += if index == 0 { cached } else { 0 };
                vec![]
            }
            Event::Text { text, tokens } => {
                let parts = match self.shape.with_tools {
                    true => self.states[index].calls.push(&text),
                    false => vec![Part::Text(text)],
                };
                self.parts(index, parts, &tokens)
            }
            Event::End(Ok(end)) => {
                self.usage.usage.answer += end.tokens;
                let rest = self.states[index].calls.end();
                let mut chunks = self.parts(index, rest, &[]);
                let reason = ended(end.why, self.states[index].made > 0);
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
