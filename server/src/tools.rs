//! Calls of tools in answers, as Hermes and Qwen write them: JSON between `<tool_call>` and
//! `</tool_call>`. Other forms stay text.
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// What it is given, as JSON.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What a reader sees.
    Text(String),
    /// A call.
    Call(Call),
}

/// Finds calls in pieces that come one after the other.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// What may be the beginning of a call, or is.
    held: String,
    /// Whether there was a call: blanks between calls are no text.
    any: bool,
}

impl Calls {
    /// Takes a piece, and gives the parts that are whole by now.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = vec![];
        while let Some(part) = self.next() {
            parts.extend(self.shown(part));
        }
        parts
    }

    /// What is left, as nothing follows.
    pub fn end(&mut self) -> Vec<Part> {
        let rest = std::mem::take(&mut self.held);
        // Some models end behind a call without closing it.
        let call = rest.strip_prefix(OPEN).and_then(call);
        let part = call.map_or(Part::Text(rest), Part::Call);
        self.shown(part).into_iter().collect()
    }

    fn shown(&mut self, part: Part) -> Option<Part> {
        match part {
            Part::Text(text) if text.is_empty() || self.any && text.trim().is_empty() => None,
            Part::Call(call) => {
                self.any = true;
                Some(Part::Call(call))
            }
            part => Some(part),
        }
    }

    fn next(&mut self) -> Option<Part> {
        let start = self.held.find(OPEN).unwrap_or(self.held.len() - open(&self.held));
        if start > 0 {
            let rest = self.held.split_off(start);
            return Some(Part::Text(std::mem::replace(&mut self.held, rest)));
        }
        let end = self.held.find(CLOSE).filter(|_| self.held.starts_with(OPEN))?;
        let rest = self.held.split_off(end + CLOSE.len());
        let whole = std::mem::replace(&mut self.held, rest);
        Some(call(&whole[OPEN.len()..end]).map_or(Part::Text(whole), Part::Call))
    }
}

/// Bytes at the end of a text that may be the beginning of a call.
fn open(text: &str) -> usize {
    (1..OPEN.len()).rev().find(|&len| text.ends_with(&OPEN[..len])).unwrap_or(0)
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
        let mut calls = Calls::default();
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
}
