//! A request for a response, turned into a chat.
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::error::ApiError;
use super::super::request::Common;
use super::super::talk::{Talk, joined};

/// Kinds of parts that are text.
const TEXTS: [&str; 3] = ["input_text", "output_text", "text"];

#[derive(Deserialize)]
pub struct Asked {
    input: Option<Input>,
    instructions: Option<String>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    pub max_output_tokens: Option<usize>,
    text: Option<TextForm>,
    reasoning: Option<Reasoning>,
    truncation: Option<String>,
    top_logprobs: Option<usize>,
    metadata: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a text, or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Map<String, Value>>),
}

#[derive(Deserialize)]
struct TextForm {
    format: Option<Value>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<Value>,
}

impl Asked {
    /// The conversation. The form of the answer is put into the fields that all requests have.
    pub fn talk(&self, common: &mut Common) -> Result<Talk, ApiError> {
        if self.truncation.as_deref().is_some_and(|truncation| truncation != "disabled") {
            return Err(ApiError::field("truncation", "nothing of a conversation is left out"));
        }
        if self.top_logprobs.is_some_and(|top| top > 0) {
            return Err(ApiError::field("top_logprobs", "not offered here; of chats and completions they are"));
        }
        if let Some(format) = self.text.as_ref().and_then(|text| text.format.as_ref()) {
            let form = json!({ "type": format["type"], "json_schema": { "schema": format["schema"] } });
            let form = serde_json::from_value(form);
            let form = form.map_err(|_| ApiError::field("text.format", "must have a `type` that is a text"))?;
            common.response_format = Some(form);
        }
        let mut more = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(effort) = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone()) {
            more.entry("reasoning_effort").or_insert(effort);
        }
        let choice = self.tool_choice.clone().unwrap_or_default();
        Ok(Talk {
            messages: self.messages()?,
            tools: self.tools()?,
            tool_choice: match choice["name"].as_str() {
                Some(name) => json!({ "type": choice["type"], "function": { "name": name } }),
                None => choice,
            },
            parallel: self.parallel_tool_calls.unwrap_or(true),
            more,
            ..Talk::default()
        })
    }

    /// The request's fields that a response repeats.
    pub fn echo(&self, common: &Common) -> Value {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        json!({
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": self.reasoning.as_ref().map(|reasoning| json!({ "effort": reasoning.effort })),
            "store": false,
            "temperature": common.temperature,
            "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_p": common.top_p,
            "truncation": "disabled",
            "usage": null,
        })
    }

    fn tools(&self) -> Result<Vec<Value>, ApiError> {
        let tool = |(index, tool): (usize, &Value)| match tool["type"].as_str() {
            Some("function") => Ok(json!({ "type": "function", "function": {
                "name": tool["name"], "description": tool["description"], "parameters": tool["parameters"] } })),
            _ => Err(ApiError::field(format!("tools[{index}].type"), "only functions are offered")),
        };
        self.tools.iter().flatten().enumerate().map(tool).collect()
    }

    fn messages(&self) -> Result<Vec<Map<String, Value>>, ApiError> {
        let mut all = Messages::default();
        if let Some(instructions) = &self.instructions {
            all.add(json!({ "role": "system", "content": instructions }));
        }
        match &self.input {
            None => return Err(ApiError::field("input", "there is none")),
            Some(Input::Text(text)) => all.add(json!({ "role": "user", "content": text })),
            Some(Input::Items(items)) => {
                items.iter().enumerate().try_for_each(|(index, item)| all.take(index, item))?;
            }
        }
        Ok(all.messages)
    }
}

/// Messages of a chat, made of items.
#[derive(Default)]
struct Messages {
    messages: Vec<Map<String, Value>>,
    /// A thought, which is part of the model's next message.
    thought: Option<String>,
}

impl Messages {
    fn add(&mut self, message: Value) {
        let Value::Object(mut message) = message else { return };
        if message["role"] == "assistant"
            && let Some(thought) = self.thought.take()
        {
            message.insert("reasoning".into(), thought.into());
        }
        self.messages.push(message);
    }

    fn take(&mut self, index: usize, item: &Map<String, Value>) -> Result<(), ApiError> {
        let item = Value::Object(item.clone());
        let fault = |field: &str, why: &str| ApiError::field(format!("input[{index}].{field}"), why);
        let text = |field: &str| joined(&item[field], &TEXTS).map_err(|why| fault(field, why));
        match item["type"].as_str().unwrap_or("message") {
            "message" => {
                let role = item["role"].as_str().ok_or_else(|| fault("role", "there is none"))?;
                let role = if role == "developer" { "system" } else { role };
                self.add(json!({ "role": role, "content": text("content")? }));
            }
            "function_call" => {
                let id = item["call_id"].as_str().ok_or_else(|| fault("call_id", "there is none"))?;
                let function = json!({ "name": item["name"], "arguments": item["arguments"] });
                self.call(json!({ "id": id, "type": "function", "function": function }));
            }
            "function_call_output" => {
                let id = item["call_id"].as_str().ok_or_else(|| fault("call_id", "there is none"))?;
                self.add(json!({ "role": "tool", "tool_call_id": id, "content": text("output")? }));
            }
            "reasoning" => {
                let thought = joined(&item["content"], &["reasoning_text", "text"]);
                self.thought = thought.ok().filter(|thought| !thought.is_empty());
            }
            kind => return Err(fault("type", &format!("{kind:?} is not offered"))),
        }
        Ok(())
    }

    /// A call, which is of the message before it if the model said that.
    fn call(&mut self, call: Value) {
        if self.thought.is_some() || self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.add(json!({ "role": "assistant", "content": null }));
        }
        let calls = self.messages.last_mut().map(|last| last.entry("tool_calls").or_insert_with(|| json!([])));
        calls.and_then(Value::as_array_mut).into_iter().for_each(|calls| calls.push(call.clone()));
    }
}
