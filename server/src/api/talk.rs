//! The steps from a conversation to an answer, which all interfaces of chats share. Each turns its
//! request into a [`Talk`].
use std::sync::Arc;

use atomc_runtime::sight::{Grid, Images, Rows};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Shared;
use super::answer::Usage;
use super::error::ApiError;
use super::events::Events;
use super::request::{Common, Kind, Likely, Seen};
use crate::eyes::{LookError, MOST_IMAGES};
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
        let images = self.images(&service)?;
        let text = self.prompt(&service)?;
        let text = match &service.eyes {
            Some(eyes) => eyes.prompting().written(text),
            None => text,
        };
        let positions = service.handle.limits().positions;
        // Templates write the special tokens themselves.
        let prompt = service.text.encode(&text, false, positions)?;
        let (prompt, images) = placed(&service, prompt, images)?;
        let prompts = [prompt];
        let start = if service.thoughts { Start::of(&text) } else { Start::Text };
        let likely = Likely { answer: self.likely, prompt: None };
        let model = service.answers_as(common.model.as_deref()).to_owned();
        let kind = Kind { likely, most: positions, calls: wanted.form.clone(), start, images };
        let usage = Usage::new(prompts[0].len(), common.knows_cached(&service));
        Ok(Begun { common, usage, said: Said { wanted, start, service, model }, prompts, kind })
    }

    /// The text that the model continues.
    pub fn prompt(&self, service: &Shared) -> Result<String, ApiError> {
        let talk = self.conversation(service.eyes.is_some())?;
        let templates = service.templates.as_ref().map_err(|why| ApiError::bad(why.as_str()))?;
        templates.render(&talk).map_err(|error| match error {
            TemplateError::Raised(_) | TemplateError::Jinja(_) => ApiError::field("messages", error),
            error => ApiError::bad(error.to_string()),
        })
    }

    /// What the model sees of the conversation's images, in their order, and a hash of all.
    fn images(&self, service: &Shared) -> Result<Vision, ApiError> {
        let mut vision = Vision::default();
        let Some(eyes) = &service.eyes else { return Ok(vision) };
        for (index, message) in self.messages.iter().enumerate() {
            let parts = message.get("content").and_then(Value::as_array).into_iter().flatten().enumerate();
            for (number, part) in parts.filter(|(_, part)| part["type"] == IMAGE) {
                let at = format!("messages[{index}].content[{number}].{IMAGE}");
                if vision.rows.len() == MOST_IMAGES {
                    return Err(ApiError::field(at, format!("a request has at most {MOST_IMAGES} images")));
                }
                let address = part[IMAGE]["url"].as_str().or(part[IMAGE].as_str());
                let address = address.ok_or_else(|| ApiError::field(&at, "has no `url`"))?;
                let failed = |error: LookError| match error.is_fault() {
                    true => ApiError::fault(format!("{at}: {error}")),
                    false => ApiError::field(&at, error),
                };
                let bytes = eyes.bytes(address).map_err(failed)?;
                vision.hash.update(Sha256::digest(&bytes));
                vision.rows.push(eyes.look(&bytes).map_err(failed)?);
            }
        }
        Ok(vision)
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
    fn conversation(&self, sees: bool) -> Result<Conversation, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "there are none"));
        }
        if let Some(name) = GIVEN.iter().find(|&&name| self.more.contains_key(name)) {
            let message = "is a field of its own, and no argument of the template";
            return Err(ApiError::field(format!("chat_template_kwargs.{name}"), message));
        }
        let messages = self.messages.iter().enumerate().map(|(index, fields)| message(index, fields, sees));
        let tools = if self.tool_choice == "none" { vec![] } else { self.tools.clone() };
        let (generate, more) = (self.generate, self.more.clone());
        Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, tools, generate, more })
    }
}

/// The kind of a content's parts that are images, and the field that names them.
const IMAGE: &str = "image_url";

/// Images of a conversation as the model sees them.
#[derive(Default)]
struct Vision {
    rows: Vec<Arc<Rows>>,
    /// Of the images' files.
    hash: Sha256,
}

/// A prompt with the tokens of its images.
fn placed(service: &Shared, prompt: Vec<u32>, vision: Vision) -> Result<(Vec<u32>, Option<Seen>), ApiError> {
    let Some(eyes) = &service.eyes else { return Ok((prompt, None)) };
    let grids: Vec<Grid> = vision.rows.iter().map(|rows| rows.grid).collect();
    let spread = eyes.prompting().marks().spread(&prompt, &grids);
    let (prompt, places) = spread.map_err(|error| ApiError::field("messages", error))?;
    if places.is_empty() {
        return Ok((prompt, None));
    }
    let images = Arc::new(Images::of(places.into_iter().zip(vision.rows)));
    let hash = vision.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((prompt, Some(Seen { images, hash })))
}

/// A content with images as templates expect it: a list of its parts.
fn parts(content: &Value) -> Result<Value, &'static str> {
    let part = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Some(json!({ "type": "text", "text": text })),
        (Some(IMAGE), _) => Some(json!({ "type": "image" })),
        _ => None,
    };
    let all: Option<Vec<Value>> = content.as_array().into_iter().flatten().map(part).collect();
    all.map(Value::from).ok_or("only parts of text, and images, are offered")
}

/// A message as templates expect it: its text as one string, or parts if there are images among
/// them, arguments of tools as values.
fn message(index: usize, fields: &Map<String, Value>, sees: bool) -> Result<Value, ApiError> {
    let mut message = fields.clone();
    let at = |field: &str| format!("messages[{index}].{field}");
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(ApiError::field(at("role"), "there is none"));
    }
    match message.get("content") {
        Some(Value::String(_)) => {}
        // Templates ask whether it is there.
        None | Some(Value::Null) => _ = message.insert("content".into(), Value::Null),
        Some(content @ Value::Array(all)) if sees && all.iter().any(|part| part["type"] == IMAGE) => {
            let parts = parts(content).map_err(|why| ApiError::field(at("content"), why))?;
            message.insert("content".into(), parts);
        }
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
