//! A request for a message, turned into a chat.
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::talk::{Talk, joined};

#[derive(Deserialize)]
pub struct Asked {
    messages: Option<Vec<Map<String, Value>>>,
    system: Option<Value>,
    pub stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

impl Asked {
    /// Whether thoughts are told.
    pub fn shows_thoughts(&self) -> bool {
        self.thinking.as_ref().is_none_or(|thinking| thinking.kind != "disabled")
    }

    /// The conversation.
    pub fn talk(&self) -> Result<Talk, ApiError> {
        let mut more = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(Thinking { kind }) = &self.thinking {
            // As templates of Qwen ask.
            more.entry("enable_thinking").or_insert((kind != "disabled").into());
        }
        let parallel = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use) != Some(true);
        let (tools, tool_choice) = (self.tools()?, self.tool_choice()?);
        Ok(Talk { messages: self.messages()?, tools, tool_choice, parallel, more, ..Talk::default() })
    }

    fn tools(&self) -> Result<Vec<Value>, ApiError> {
        let tool = |(index, tool): (usize, &Value)| {
            let fault = |field: &str, why: &str| ApiError::field(format!("tools[{index}].{field}"), why);
            if tool["type"].as_str().is_some_and(|kind| kind != "custom") {
                return Err(fault("type", "only tools of the request's own are offered"));
            }
            let name = tool["name"].as_str().ok_or_else(|| fault("name", "there is none"))?;
            Ok(json!({ "type": "function", "function": {
                "name": name, "description": tool["description"], "parameters": tool["input_schema"] } }))
        };
        self.tools.iter().flatten().enumerate().map(tool).collect()
    }

    fn tool_choice(&self) -> Result<Value, ApiError> {
        let Some(ToolChoice { kind, name, .. }) = &self.tool_choice else { return Ok(Value::Null) };
        match (kind.as_str(), name) {
            ("auto" | "none", _) => Ok(kind.as_str().into()),
            ("any", _) => Ok("required".into()),
            ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
            ("tool", None) => Err(ApiError::field("tool_choice.name", "there is none")),
            _ => Err(ApiError::field("tool_choice.type", format!("{kind:?} is not auto, any, tool or none"))),
        }
    }

    fn messages(&self) -> Result<Vec<Map<String, Value>>, ApiError> {
        let mut all = vec![];
        if let Some(system) = &self.system {
            let text = joined(system, &["text"]).map_err(|why| ApiError::field("system", why))?;
            all.push(json!({ "role": "system", "content": text }));
        }
        let given = self.messages.as_deref().unwrap_or_default();
        for (index, message) in given.iter().enumerate() {
            let at = |field: &str| format!("messages[{index}].{field}");
            let content = message.get("content").ok_or_else(|| ApiError::field(at("content"), "there is none"))?;
            let wrong = |why: &str| ApiError::field(at("content"), why);
            match message.get("role").and_then(Value::as_str) {
                Some("user") => all.extend(from_user(content).map_err(wrong)?),
                Some("assistant") => all.push(from_model(content).map_err(wrong)?),
                _ => return Err(ApiError::field(at("role"), "must be user or assistant")),
            }
        }
        if given.last().is_some_and(|last| last.get("role").is_some_and(|role| role == "assistant")) {
            return Err(ApiError::field("messages", "the last is the model's, and an answer is not continued"));
        }
        if given.is_empty() {
            return Err(ApiError::field("messages", "there are none"));
        }
        Ok(all.into_iter().filter_map(|message| message.as_object().cloned()).collect())
    }
}

/// The blocks of a content.
fn blocks(content: &Value) -> Result<Vec<Value>, &'static str> {
    match content {
        Value::String(text) => Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(blocks) => Ok(blocks.clone()),
        _ => Err("is neither a text nor a list of blocks"),
    }
}

/// The messages of a user: each tool result as a message of its own, then the text.
fn from_user(content: &Value) -> Result<Vec<Value>, &'static str> {
    let (mut messages, mut texts) = (vec![], vec![]);
    for block in blocks(content)? {
        match block["type"].as_str() {
            Some("text") => texts.push(block),
            Some("tool_result") => {
                let text = match &block["content"] {
                    Value::Null => String::new(),
                    content => joined(content, &["text"])?,
                };
                messages.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": text }));
            }
            _ => return Err("only blocks of text and results of tools are offered"),
        }
    }
    if !texts.is_empty() || messages.is_empty() {
        let text = joined(&texts.into(), &["text"])?;
        messages.push(json!({ "role": "user", "content": text }));
    }
    Ok(messages)
}

/// The model's earlier words: thoughts, text and calls.
fn from_model(content: &Value) -> Result<Value, &'static str> {
    let (mut texts, mut thoughts, mut calls) = (vec![], vec![], vec![]);
    for block in blocks(content)? {
        match block["type"].as_str() {
            Some("text") => texts.push(block),
            Some("thinking") => thoughts.extend(block["thinking"].as_str().map(str::to_owned)),
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(json!({ "id": block["id"], "type": "function",
                "function": { "name": block["name"], "arguments": block["input"] } })),
            _ => return Err("only blocks of text, of thoughts and of uses of tools are offered"),
        }
    }
    let text = if texts.is_empty() { Value::Null } else { joined(&texts.into(), &["text"])?.into() };
    let mut message = json!({ "role": "assistant", "content": text });
    if !thoughts.is_empty() {
        message["reasoning"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}
