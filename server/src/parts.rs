//! The parts of an answer: thoughts, text, calls of tools.
use crate::thoughts::{Split, Start, Thoughts};
use crate::tools::{Call, Calls, Wanted};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text before the answer.
    Thought(String),
    /// Text for the reader.
    Text(String),
    /// A call.
    Call(Call),
}

/// Finds the parts of one answer, which comes in pieces.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    thoughts: Thoughts,
    /// If there may be calls.
    calls: Option<Calls>,
}

impl Parts {
    /// For an answer that begins like this, and may have these calls.
    pub fn new(start: Start, wanted: &Wanted) -> Parts {
        let calls = (wanted.most > 0).then(|| Calls::new(wanted.most));
        Parts { thoughts: Thoughts::new(start), calls }
    }

    /// Takes a piece, and gives the parts that are whole by now.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        let split = self.thoughts.push(piece);
        self.parts(split, false)
    }

    /// The rest, when nothing follows.
    pub fn end(&mut self) -> Vec<Part> {
        let split = self.thoughts.end();
        self.parts(split, true)
    }

    fn parts(&mut self, Split { thought, text }: Split, is_end: bool) -> Vec<Part> {
        let mut parts = vec![Part::Thought(thought)];
        match &mut self.calls {
            Some(calls) => {
                parts.extend(calls.push(&text));
                parts.extend(is_end.then(|| calls.end()).into_iter().flatten());
            }
            None => parts.push(Part::Text(text)),
        }
        parts.retain(|part| !matches!(part, Part::Thought(text) | Part::Text(text) if text.is_empty()));
        parts
    }
}
