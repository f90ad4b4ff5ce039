//! The steps from a conversation to an answer, which all interfaces of chats share. Each turns its
//! request into a [`Talk`].
use serde_json::{Map, Value};

use super::Shared;
use super::answer::Usage;
use super::error::ApiError;
use super::events::Events;
use super::request::{Common, Kind, Likely};
use crate::parts::Parts;
use crate::schedule::Why;
use crate::template::{Conversation, TemplateError};
use crate::thoughts::Start;
use crate::tools::{self, Wanted};

/// Names that the server sets in a template. No request may replace them.
const GIVEN: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// A conversation to which somebody wants an answer, in the words of `/v1/chat/completions`.
#[derive(Clone, Debug)]
pub struct Talk {
    pub messages: Vec<Map<String, Value>>,
    /// The tools that the model may call.
    pub tools: Vec<Value>,
    pub tool_choice: Value,
    /// Whether it may call more than once.
    pub parallel: bool,
    /// Further names for the template.
    pub more: Map<String, Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub generate: bool,
    /// The number of likeliest tokens that are reported.
    pub likely: Option<usize>,
}

/// A request that was read.
pub struct Begun {
    pub common: Common,
    pub said: Said,
    pub usage: Usage,
    prompts: [Vec<u32>; 1],
    kind: Kind,
}

impl Begun {
    /// Gives its request to the scheduler.
    pub async fn submit(&self) -> Result<Events, ApiError> {
        self.common.submit(&self.said.service, &self.prompts, &self.kind).await
    }
}

/// The facts about answers that are known before they begin.
pub struct Said {
    pub wanted: Wanted,
    pub start: Start,
    pub service: Shared,
    /// What answers call the model.
    pub model: String,
}

impl Said {
    /// The finder of an answer's parts.
    pub fn parts(&self) -> Parts {
        Parts::new(self.start, &self.wanted)
    }

    /// Whether an answer ended by a call in the interface's sense. A client that has named the tool
    /// is not told so.
    pub fn is_call(&self, why: Why, made: usize) -> bool {
        why != Why::Length && made > 0 && !self.wanted.is_named
    }
}

impl Default for Talk {
    fn default() -> Talk {
        Talk {
            messages: vec![],
            tools: vec![],
            tool_choice: Value::Null,
            parallel: true,
            more: Map::new(),
            generate: true,
            likely: None,
        }
    }
}

impl Talk {
    /// Makes a prompt of it.
    pub fn begin(&self, service: Shared, common: Common) -> Result<Begun, ApiError> {
        common.check(&service, 1)?;
        let wanted = self.wanted()?;
        let text = self.prompt(&service)?;
        let positions = service.handle.limits().positions;
        // Templates write the special tokens themselves.
        let prompts = [service.text.encode(&text, false, positions)?];
        let start = if service.thoughts { Start::of(&text) } else { Start::Text };
        let likely = Likely { answer: self.likely, prompt: None };
        let kind = Kind { likely, most: positions, calls: wanted.form.clone(), start };
        let model = service.answers_as(common.model.as_deref()).to_owned();
        let usage = Usage::new(prompts[0].len(), common.knows_cached(&service));
        Ok(Begun { common, usage, said: Said { wanted, start, service, model }, prompts, kind })
    }

    /// The text that the model continues.
    pub fn prompt(&self, service: &Shared) -> Result<String, ApiError> {
        let talk = self.conversation()?;
        let templates = service.templates.as_ref().map_err(|why| ApiError::bad(why.as_str()))?;
        templates.render(&talk).map_err(|error| match error {
            TemplateError::Raised(_) | TemplateError::Jinja(_) => ApiError::field("messages", error),
            error => ApiError::bad(error.to_string()),
        })
    }

    /// Which calls it wants.
    fn wanted(&self) -> Result<Wanted, ApiError> {
        let (tools, choice) = (self.tools.as_slice(), &self.tool_choice);
        let most = if self.parallel { usize::MAX } else { 1 };
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

    /// The names that a template gets.
    fn conversation(&self) -> Result<Conversation, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "there are none"));
        }
        if let Some(name) = GIVEN.iter().find(|&&name| self.more.contains_key(name)) {
            let message = "is a field of its own, and no argument of the template";
            return Err(ApiError::field(format!("chat_template_kwargs.{name}"), message));
        }
        let messages = self.messages.iter().enumerate().map(|(index, fields)| message(index, fields));
        let tools = if self.tool_choice == "none" { vec![] } else { self.tools.clone() };
        let (generate, more) = (self.generate, self.more.clone());
        Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, tools, generate, more })
    }
}

/// A message as templates expect it: its text as one string, arguments of tools as values.
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
        Some(parts @ Value::Array(_)) => {
            let text = joined(parts, &["text"]).map_err(|why| ApiError::field(at("content"), why))?;
            message.insert("content".into(), text.into());
        }
        Some(_) => return Err(ApiError::field(at("content"), "is neither a text nor a list of parts")),
    }
    // Clients may send back the thoughts that this server sent.
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

/// The text of a content: one text, or a list of parts of these kinds.
pub fn joined(content: &Value, kinds: &[&str]) -> Result<String, &'static str> {
    let text = |part: &Value| {
        let is_text = part["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
        is_text.then(|| part["text"].as_str()).flatten().map(str::to_owned)
    };
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            Ok(texts.ok_or("only parts of text are offered")?.join("\n"))
        }
        _ => Err("is neither a text nor a list of parts"),
    }
}
