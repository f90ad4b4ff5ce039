//! Thoughts in answers: the text between `<think>` and `</think>`, as Qwen and DeepSeek write it.
use crate::tools::begun;

/// The beginning of a thought.
pub const OPEN: &str = "<think>";
/// The end of a thought.
pub const CLOSE: &str = "</think>";

/// The kind of text at an answer's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Text: thoughts are over, or are not told apart.
    #[default]
    Text,
    /// A thought: the prompt has opened it.
    Thought,
    /// A thought if the model opens one, or else text.
    Either,
}

impl Start {
    /// The start of the answer to a prompt.
    pub fn of(prompt: &str) -> Start {
        match prompt.trim_end() {
            prompt if prompt.ends_with(OPEN) => Start::Thought,
            prompt if prompt.ends_with(CLOSE) => Start::Text,
            _ => Start::Either,
        }
    }
}

/// The text that a piece of an answer adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// To the thought.
    pub thought: String,
    /// To the text after the thought.
    pub text: String,
}

/// Separates a thought from the text after it, in an answer that comes in pieces. Blanks at the
/// borders of a thought belong to neither.
#[derive(Clone, Debug, Default)]
pub struct Thoughts {
    place: Start,
    /// A possible beginning of a tag, and blanks before it.
    held: String,
    /// After a tag, where blanks are not shown.
    at_border: bool,
}

impl Thoughts {
    /// For an answer that begins like this.
    pub fn new(place: Start) -> Thoughts {
        Thoughts { place, held: String::new(), at_border: place == Start::Thought }
    }

    /// Takes a piece, and returns the parts that are certain now.
    pub fn push(&mut self, piece: &str) -> Split {
        self.held.push_str(piece);
        let mut split = Split::default();
        while self.next(&mut split) {}
        split
    }

    /// The rest, when nothing follows.
    pub fn end(&mut self) -> Split {
        let rest = std::mem::take(&mut self.held);
        match self.place {
            Start::Thought => Split { thought: rest.trim_end().to_owned(), ..Split::default() },
            Start::Text | Start::Either => Split { text: rest, ..Split::default() },
        }
    }

    /// Takes the part of the held text that is decided. Returns whether a tag was passed.
    fn next(&mut self, split: &mut Split) -> bool {
        if self.at_border {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
        }
        match self.place {
            Start::Either => match self.opened() {
                Some(is_thought) => {
                    (self.place, self.at_border) =
                        if is_thought { (Start::Thought, true) } else { (Start::Text, false) };
                    true
                }
                None => false,
            },
            Start::Thought => self.thought(&mut split.thought),
            Start::Text => {
                self.at_border &= self.held.is_empty();
                split.text += &std::mem::take(&mut self.held);
                false
            }
        }
    }

    /// Whether the answer opens a thought, where that is known. The tag goes.
    fn opened(&mut self) -> Option<bool> {
        let rest = self.held.trim_start();
        match rest.strip_prefix(OPEN) {
            Some(rest) => {
                self.held = rest.to_owned();
                Some(true)
            }
            None if OPEN.starts_with(rest) => None,
            None => Some(false),
        }
    }

    fn thought(&mut self, thought: &mut String) -> bool {
        // Some models open a thought that the prompt has opened already.
        match self.at_border.then(|| self.opened()) {
            Some(None) => return false,
            Some(Some(true)) => return true,
            Some(Some(false)) | None => {}
        }
        if let Some(end) = self.held.find(CLOSE) {
            let rest = self.held.split_off(end + CLOSE.len());
            *thought += self.held[..end].trim_end();
            (self.held, self.place, self.at_border) = (rest, Start::Text, true);
            return true;
        }
        let sure = self.held.len() - begun(&self.held, CLOSE);
        let rest = self.held.split_off(self.held[..sure].trim_end().len());
        let shown = std::mem::replace(&mut self.held, rest);
        self.at_border &= shown.is_empty();
        *thought += &shown;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole, and letter by letter.
    fn split(start: Start, answer: &str) -> (String, String) {
        let found = |pieces: &mut dyn Iterator<Item = String>| {
            let mut thoughts = Thoughts::new(start);
            let mut all: Vec<Split> = pieces.map(|piece| thoughts.push(&piece)).collect();
            all.push(thoughts.end());
            let join = |part: fn(&Split) -> &str| all.iter().map(part).collect::<String>();
            (join(|split| &split.thought), join(|split| &split.text))
        };
        let whole = found(&mut std::iter::once(answer.to_owned()));
        assert_eq!(found(&mut answer.chars().map(String::from)), whole, "{answer}");
        whole
    }

    fn both(thought: &str, text: &str) -> (String, String) {
        (thought.into(), text.into())
    }

    #[test]
    fn thoughts_are_told_from_text() {
        let answer = "\n<think>\nIs 1 < 2? é </thin\n\nYes.\n</think>\n\n It is.\n";
        let expect = both("Is 1 < 2? é </thin\n\nYes.", "It is.\n");
        assert_eq!(split(Start::Either, answer), expect);
        assert_eq!(split(Start::Thought, answer), expect);
        assert_eq!(split(Start::Thought, "So.</think>b</think>"), both("So.", "b</think>"));
        assert_eq!(split(Start::Either, "<think></think>b"), both("", "b"));
    }

    #[test]
    fn an_answer_without_thoughts_is_text() {
        assert_eq!(split(Start::Either, " a<think>b</think>"), both("", " a<think>b</think>"));
        assert_eq!(split(Start::Either, " <thin"), both("", " <thin"));
        assert_eq!(split(Start::Text, "<think>b"), both("", "<think>b"));
        assert_eq!(split(Start::Either, ""), both("", ""));
    }

    #[test]
    fn a_thought_without_end_stays_one() {
        assert_eq!(split(Start::Either, "<think>I look "), both("I look", ""));
        assert_eq!(split(Start::Thought, " I look </thi"), both("I look </thi", ""));
    }

    #[test]
    fn a_prompt_says_where_its_answer_begins() {
        assert_eq!(Start::of("<|im_start|>assistant\n<think>\n"), Start::Thought);
        assert_eq!(Start::of("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Start::Text);
        assert_eq!(Start::of("<think>a</think>b<|im_start|>assistant\n"), Start::Either);
    }
}
