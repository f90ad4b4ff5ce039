//! Calls of tools in answers, as Hermes and Qwen write them: JSON between `<tool_call>` and
//! `</tool_call>`. Other forms stay text.
use serde_json::{Value, json};

use crate::grammar::{Form, bounded};
use crate::parts::Part;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// The arguments, as JSON.
    pub arguments: String,
}

/// Which calls an answer has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Most of them.
    pub most: usize,
    /// The form of the answer, if it has to call.
    pub form: Option<Form>,
    /// Whether the request named the tool.
    pub is_named: bool,
}

/// The form of an answer that calls these tools: once, or at least once.
pub fn form<'a>(tools: impl Iterator<Item = &'a Value>, once: bool) -> Result<Form, String> {
    let mut names = vec![];
    let mut rules = String::new();
    for (index, tool) in tools.enumerate() {
        let name = name(tool).ok_or_else(|| format!("tool {index} has no name"))?;
        let schema = match &tool["function"]["parameters"] {
            Value::Null => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            schema => schema.clone(),
        };
        let head = format!("{{\"name\": {}, \"arguments\": ", json!(name));
        rules += &format!("tool_{index}: {} %json {} \"}}\"\n", json!(head), bounded(schema));
        names.push(format!("tool_{index}"));
    }
    let more = if once { "" } else { r#" ("\n" call)*"# };
    let call = format!("call: {} tool {}", json!(format!("{OPEN}\n")), json!(format!("\n{CLOSE}")));
    Ok(Form::Lark(format!("start: call{more}\n{call}\ntool: {}\n{rules}", names.join(" | "))))
}

/// The name of a tool.
pub fn name(tool: &Value) -> Option<&str> {
    tool["function"]["name"].as_str()
}

/// Finds calls in an answer that comes in pieces.
#[derive(Clone, Debug)]
pub struct Calls {
    /// A call, or a possible beginning of one.
    held: String,
    /// Calls so far: blanks between them are no text.
    made: usize,
    /// Most calls; further ones are left out.
    most: usize,
}

impl Calls {
    /// Calls of one answer, with a limit.
    pub fn new(most: usize) -> Calls {
        Calls { held: String::new(), made: 0, most }
    }

    /// Takes a piece, and gives the parts that are whole by now.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = vec![];
        while let Some(part) = self.next() {
            parts.extend(self.shown(part));
        }
        parts
    }

    /// The rest, when nothing follows.
    pub fn end(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        // Some models end after a call without closing it.
        let call = rest.strip_prefix(OPEN).and_then(call);
        let part = call.map_or(Part::Text(rest), Part::Call);
        self.shown(part).into_iter().collect()
    }

    fn shown(&mut self, part: Part) -> Option<Part> {
        match part {
            Part::Text(text) if text.is_empty() || self.made > 0 && text.trim().is_empty() => None,
            Part::Call(_) if self.made == self.most => None,
            Part::Call(call) => {
                self.made += 1;
                Some(Part::Call(call))
            }
            part => Some(part),
        }
    }

    fn next(&mut self) -> Option<Part> {
        let start = self.held.find(OPEN).unwrap_or(self.held.len() - begun(&self.held, OPEN));
        if start > 0 {
            let rest = self.held.split_off(start);
            return Some(Part::Text(std::mem::replace(&mut self.held, rest)));
        }
        let inner = self.held.strip_prefix(OPEN)?;
        // A text among the arguments may contain the mark that ends a call.
        let mut ends = inner.match_indices(CLOSE).map(|(end, _)| &inner[..end]);
        let inner = ends.find(|inner| !is_cut(inner))?;
        let (end, call) = (OPEN.len() + inner.len() + CLOSE.len(), call(inner));
        let rest = self.held.split_off(end);
        let whole = std::mem::replace(&mut self.held, rest);
        Some(call.map_or(Part::Text(whole), Part::Call))
    }
}

/// Whether a text is the beginning of longer JSON.
fn is_cut(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text.trim_start()).is_err_and(|error| error.is_eof())
}

/// Bytes at the end of a text that may be the beginning of a tag.
pub(crate) fn begun(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&len| text.ends_with(&tag[..len])).unwrap_or(0)
}

/// A call as JSON with `name` and `arguments`.
fn call(text: &str) -> Option<Call> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let arguments = match value.get("arguments").or(value.get("parameters")) {
        // Some models write the JSON as a text.
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
        None => "{}".into(),
    };
    Some(Call { name: value["name"].as_str()?.to_owned(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(pieces: &[&str]) -> Vec<Part> {
        let mut calls = Calls::new(2);
        let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| calls.push(piece)).collect();
        parts.extend(calls.end());
        parts
    }

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn made(name: &str, arguments: &str) -> Part {
        Part::Call(Call { name: name.into(), arguments: arguments.into() })
    }

    #[test]
    fn calls_are_found_across_pieces() {
        let whole = "I look.<tool_call>\n{\"name\": \"a\", \"arguments\": {\"z\": [1, 2], \"b\": \"é\"}}\n</tool_call>\n\
                     <tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>\n";
        let expect = [text("I look."), made("a", "{\"z\":[1,2],\"b\":\"é\"}"), made("b", "{}")];
        assert_eq!(parts(&[whole]), expect);
        let letters: Vec<String> = whole.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        let (words, calls): (Vec<Part>, Vec<Part>) =
            parts(&letters).into_iter().partition(|part| matches!(part, Part::Text(_)));
        assert_eq!(calls, expect[1..]);
        let words = words.iter().map(|part| if let Part::Text(text) = part { text } else { "" });
        assert_eq!(words.collect::<String>(), "I look.");
    }

    #[test]
    fn what_is_no_call_is_text() {
        assert_eq!(parts(&["a < b <tool", "box>"]), [text("a < b "), text("<toolbox>")]);
        assert_eq!(parts(&["<tool_call>{no}</tool_call>"]), [text("<tool_call>{no}</tool_call>")]);
        assert_eq!(parts(&["<tool_call>{\"name\": 3}"]), [text("<tool_call>{\"name\": 3}")]);
        assert_eq!(parts(&["<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}"]), [made("f", "{}")]);
        assert_eq!(parts(&[""]), []);
    }

    #[test]
    fn a_call_ends_where_its_arguments_do() {
        let whole = r#"<tool_call>{"name": "say", "arguments": {"text": "</tool_call> \" </tool_call>"}}</tool_call>."#;
        let call = made("say", r#"{"text":"</tool_call> \" </tool_call>"}"#);
        assert_eq!(parts(&[whole]), [call, text(".")]);
        // A call without an end is text.
        assert_eq!(parts(&["<tool_call>{\"a</tool_call>"]), [text("<tool_call>{\"a</tool_call>")]);
    }

    #[test]
    fn further_calls_are_left_out() {
        let one = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
        assert_eq!(parts(&[one, "\n", one, "\n", one]), [made("a", "{}"), made("a", "{}")]);
    }
}
