//! The blocks of a message, and the events that tell of them.
use serde_json::{Value, json};

use super::super::name_of_answer;
use crate::parts::Part;
use crate::tools::Call;

/// Blocks so far.
pub struct Blocks {
    content: Vec<Value>,
    is_open: bool,
    calls: usize,
    shows_thoughts: bool,
}

/// A kind of text: the type of its block, the field with the text, and the type of its deltas.
struct Kind {
    block: &'static str,
    field: &'static str,
    delta: &'static str,
}

const TEXT: Kind = Kind { block: "text", field: "text", delta: "text_delta" };
const THOUGHT: Kind = Kind { block: "thinking", field: "thinking", delta: "thinking_delta" };

impl Blocks {
    /// No blocks; thoughts are shown or left out.
    pub fn new(shows_thoughts: bool) -> Blocks {
        Blocks { content: vec![], is_open: false, calls: 0, shows_thoughts }
    }

    /// All of them.
    pub fn content(&self) -> &[Value] {
        &self.content
    }

    /// The number of tool uses.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes a part of the answer, and gives the events that tell of it.
    pub fn push(&mut self, part: Part) -> Vec<Value> {
        match part {
            Part::Text(text) => self.piece(&TEXT, text),
            Part::Thought(text) if self.shows_thoughts => self.piece(&THOUGHT, text),
            Part::Thought(_) => vec![],
            Part::Call(call) => self.call(&call),
        }
    }

    /// Ends the open block.
    pub fn close(&mut self) -> Vec<Value> {
        match std::mem::take(&mut self.is_open) {
            true => vec![json!({ "type": "content_block_stop", "index": self.content.len() - 1 })],
            false => vec![],
        }
    }

    fn start(&mut self, block: Value) -> Vec<Value> {
        let mut events = self.close();
        events.push(json!({ "type": "content_block_start", "index": self.content.len(), "content_block": block }));
        self.content.push(block);
        self.is_open = true;
        events
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.content.len() - 1, "delta": delta })
    }

    fn piece(&mut self, kind: &Kind, text: String) -> Vec<Value> {
        let goes_on = self.is_open && self.content.last().is_some_and(|last| last["type"] == kind.block);
        let mut events = vec![];
        if !goes_on {
            let mut block = json!({ "type": kind.block, kind.field: "" });
            if kind.block == THOUGHT.block {
                block["signature"] = "".into();
            }
            events = self.start(block);
        }
        if let Some(Value::String(all)) = self.content.last_mut().map(|last| &mut last[kind.field]) {
            all.push_str(&text);
        }
        events.push(self.delta(json!({ "type": kind.delta, kind.field: text })));
        events
    }

    fn call(&mut self, call: &Call) -> Vec<Value> {
        self.calls += 1;
        let id = name_of_answer("toolu");
        let mut events = self.start(json!({ "type": "tool_use", "id": id, "name": call.name, "input": {} }));
        events.push(self.delta(json!({ "type": "input_json_delta", "partial_json": call.arguments })));
        if let Some(block) = self.content.last_mut() {
            // Arguments that are no JSON stay text.
            let text = || call.arguments.as_str().into();
            block["input"] = serde_json::from_str(&call.arguments).unwrap_or_else(|_| text());
        }
        events.extend(self.close());
        events
    }
}
