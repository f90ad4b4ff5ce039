//! The items of a response, and the events that tell of them.
use serde_json::{Value, json};

use super::super::name_of_answer;
use crate::parts::Part;
use crate::tools::Call;

/// Items so far.
#[derive(Default)]
pub struct Output {
    items: Vec<Value>,
    open: Option<Open>,
}

/// The part of an answer that text belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Thought,
}

/// An open item.
struct Open {
    kind: Kind,
    id: String,
    text: String,
}

impl Kind {
    /// The name of its events, and its part.
    fn name(self) -> &'static str {
        match self {
            Kind::Message => "output_text",
            Kind::Thought => "reasoning_text",
        }
    }
}

impl Open {
    fn part(&self, text: &str) -> Value {
        match self.kind {
            Kind::Message => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            Kind::Thought => json!({ "type": "reasoning_text", "text": text }),
        }
    }

    fn item(&self, status: &str, content: Vec<Value>) -> Value {
        match self.kind {
            Kind::Message => json!({ "id": self.id, "type": "message", "role": "assistant", "status": status,
                "content": content }),
            Kind::Thought => json!({ "id": self.id, "type": "reasoning", "status": status, "summary": [],
                "content": content }),
        }
    }
}

impl Output {
    /// The items that have ended.
    pub fn items(&self) -> &[Value] {
        &self.items
    }

    /// Takes a part of the answer, and gives the events that tell of it.
    pub fn push(&mut self, part: Part) -> Vec<Value> {
        match part {
            Part::Text(text) => self.piece(Kind::Message, &text),
            Part::Thought(text) => self.piece(Kind::Thought, &text),
            Part::Call(call) => self.call(&call),
        }
    }

    /// Ends the open item.
    pub fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(open) = self.open.take() else { return vec![] };
        let (index, name, part) = (self.items.len(), open.kind.name(), open.part(&open.text));
        let mut done = self.within(&open.id, &format!("response.{name}.done"));
        done["text"] = open.text.as_str().into();
        if open.kind == Kind::Message {
            done["logprobs"] = json!([]);
        }
        let mut closed = self.within(&open.id, "response.content_part.done");
        closed["part"] = part.clone();
        let item = open.item(status, vec![part]);
        self.items.push(item.clone());
        vec![done, closed, json!({ "type": "response.output_item.done", "output_index": index, "item": item })]
    }

    fn piece(&mut self, kind: Kind, text: &str) -> Vec<Value> {
        let mut events = vec![];
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            events = self.close("completed");
            let id = name_of_answer(if kind == Kind::Message { "msg" } else { "rs" });
            let open = Open { kind, id, text: String::new() };
            let item = open.item("in_progress", vec![]);
            events
                .push(json!({ "type": "response.output_item.added", "output_index": self.items.len(), "item": item }));
            let mut begun = self.within(&open.id, "response.content_part.added");
            begun["part"] = open.part("");
            events.push(begun);
            self.open = Some(open);
        }
        if let Some(open) = &mut self.open {
            open.text += text;
            let id = open.id.clone();
            let mut delta = self.within(&id, &format!("response.{}.delta", kind.name()));
            delta["delta"] = text.into();
            if kind == Kind::Message {
                delta["logprobs"] = json!([]);
            }
            events.push(delta);
        }
        events
    }

    fn call(&mut self, call: &Call) -> Vec<Value> {
        let mut events = self.close("completed");
        let (index, id) = (self.items.len(), name_of_answer("fc"));
        let mut item = json!({ "id": id, "type": "function_call", "call_id": name_of_answer("call"),
            "name": call.name, "arguments": "", "status": "in_progress" });
        events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
        let of = json!({ "item_id": id, "output_index": index });
        let mut delta = of.clone();
        (delta["type"], delta["delta"]) =
            ("response.function_call_arguments.delta".into(), call.arguments.as_str().into());
        let mut done = of;
        (done["type"], done["arguments"]) =
            ("response.function_call_arguments.done".into(), call.arguments.as_str().into());
        done["name"] = call.name.as_str().into();
        (item["arguments"], item["status"]) = (call.arguments.as_str().into(), "completed".into());
        self.items.push(item.clone());
        let ended = json!({ "type": "response.output_item.done", "output_index": index, "item": item });
        events.extend([delta, done, ended]);
        events
    }

    /// An event of the open item's only part.
    fn within(&self, id: &str, kind: &str) -> Value {
        json!({ "type": kind, "item_id": id, "output_index": self.items.len(), "content_index": 0 })
    }
}
