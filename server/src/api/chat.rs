//! `/v1/chat/completions`.
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answer::{self, Answer, Render, StreamUsage, Usage, finish, logprob};
use super::error::ApiError;
use super::events::Event;
use super::request::{Common, Kind, Likely, Payload, read_both, size};
use super::{Service, Shared, apart, axum_json, name_of_answer, seconds};
use crate::parts::{Part, Parts};
use crate::schedule::{Chosen, Why};
use crate::template::{Conversation, TemplateError, Templates};
use crate::thoughts::Start;
use crate::tools::{self, Call, Wanted};

#[derive(Deserialize)]
struct Chat {
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

/// A request that was read.
struct Begun {
    common: Common,
    prompts: [Vec<u32>; 1],
    kind: Kind,
    shape: Shape,
}

pub async fn complete(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    let lanes = service.lanes.clone();
    let is_slow = service.templates.as_ref().is_ok_and(Templates::is_slow);
    let lane = lanes.enter(size(&body), is_slow).await?;
    let Begun { common, prompts, kind, shape } = apart(move || begin(service, body)).await?;
    drop(lane);
    let events = common.submit(&shape.service, &prompts, &kind).await?;
    let answers = common.n.unwrap_or(1);
    if common.is_stream() {
        let usage = StreamUsage::new(common.wants_usage(), prompts[0].len());
        let states = (0..answers).map(|_| Progress { parts: shape.parts(), made: 0 }).collect();
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
    common.check(&service, 1)?;
    let (talk, wanted) = (conversation(&asked)?, wanted(&asked)?);
    let text = prompt(&service, &talk)?;
    let positions = service.handle.limits().positions;
    // Templates write the special tokens themselves.
    let prompts = [service.text.encode(&text, false, positions)?];
    let likely = match (asked.logprobs, asked.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, Some(1..)) => return Err(ApiError::field("top_logprobs", "`logprobs` must be true")),
        _ => None,
    };
    let start = if service.thoughts { Start::of(&text) } else { Start::Text };
    let likely = Likely { answer: likely, prompt: None };
    let kind = Kind { likely, most: positions, calls: wanted.form.clone(), start };
    let shape = Shape {
        id: name_of_answer("chatcmpl"),
        created: seconds(SystemTime::now()),
        likely: likely.answer.is_some(),
        wanted,
        start,
        shows_thoughts: asked.include_reasoning.unwrap_or(true),
        service,
    };
    Ok(Begun { common, prompts, kind, shape })
}

fn prompt(service: &Service, talk: &Conversation) -> Result<String, ApiError> {
    let templates = service.templates.as_ref().map_err(|why| ApiError::bad(why.as_str()))?;
    templates.render(talk).map_err(|error| match error {
        TemplateError::Raised(_) | TemplateError::Jinja(_) => ApiError::field("messages", error),
        error => ApiError::bad(error.to_string()),
    })
}

/// Which calls a request wants.
fn wanted(asked: &Chat) -> Result<Wanted, ApiError> {
    let tools = asked.tools.as_deref().unwrap_or_default();
    let most = if asked.parallel_tool_calls == Some(false) { 1 } else { usize::MAX };
    let choice = asked.tool_choice.as_ref().unwrap_or(&Value::Null);
    let name = choice["function"]["name"].as_str().filter(|_| choice["type"] == "function");
    let named = match (choice.as_str(), name) {
        _ if choice.is_null() || choice == "auto" => {
            let most = if tools.is_empty() { 0 } else { most };
            return Ok(Wanted { most, ..Wanted::default() });
        }
        (Some("none"), _) => return Ok(Wanted::default()),
        (Some("required"), _) => tools.iter().collect(),
        (_, Some(name)) => tools.iter().filter(|tool| tools::name(tool) == Some(name)).take(1).collect::<Vec<_>>(),
        _ => {
            let known = "\"auto\", \"none\", \"required\" or a function's name";
            return Err(ApiError::field("tool_choice", format!("{choice} is not {known}")));
        }
    };
    if named.is_empty() {
        return Err(ApiError::field("tool_choice", "is none of `tools`"));
    }
    let is_named = name.is_some();
    let most = if is_named { 1 } else { most };
    let form = tools::form(named.into_iter(), most == 1).map_err(|error| ApiError::field("tools", error))?;
    Ok(Wanted { most, form: Some(form), is_named })
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
    let has_tools = asked.tool_choice.as_ref().is_none_or(|choice| choice != "none");
    let tools = asked.tools.clone().filter(|_| has_tools).unwrap_or_default();
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
    // What this server told may come back.
    if let Some(thought) = message.get("reasoning").cloned() {
        message.entry("reasoning_content").or_insert(thought);
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
    wanted: Wanted,
    start: Start,
    shows_thoughts: bool,
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

    /// What finds the parts of an answer.
    fn parts(&self) -> Parts {
        Parts::new(self.start, &self.wanted)
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let mut parts = self.parts();
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
        let has_called = !made.is_empty();
        if has_called {
            message["tool_calls"] = made.into();
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(&answer.tokens),
            "finish_reason": answer.end.map(|end| self.ended(end.why, has_called)),
        })
    }

    /// Why an answer ended. Who names a tool is not told that one was called.
    fn ended(&self, why: Why, has_called: bool) -> &'static str {
        match why {
            Why::Length => "length",
            _ if has_called && !self.wanted.is_named => "tool_calls",
            why => finish(why),
        }
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

/// How far the stream of an answer has come.
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
                self.usage.usage.cached += if index == 0 { cached } else { 0 };
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
                let reason = self.shape.ended(end.why, self.states[index].made > 0);
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
