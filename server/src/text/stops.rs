//! Texts that end an answer, wherever tokens cut them.

/// Looks for texts in pieces that come one after the other.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    texts: Vec<String>,
    /// Whether the text that ended the answer is part of it.
    keep: bool,
    /// What may be the beginning of one.
    held: String,
}

/// What can be shown.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// The piece.
    pub text: String,
    /// Whether the answer ends with it.
    pub ends: bool,
}

impl Stops {
    /// Looks for these. Empty ones are never found.
    pub fn new(mut texts: Vec<String>, keep: bool) -> Stops {
        texts.retain(|text| !text.is_empty());
        Stops { texts, keep, held: String::new() }
    }

    /// Takes a piece, and gives what can be shown by now.
    pub fn push(&mut self, piece: &str) -> Shown {
        self.held.push_str(piece);
        let found = self.texts.iter().filter_map(|text| Some((self.held.find(text.as_str())?, text.len())));
        if let Some((start, len)) = found.min() {
            self.held.truncate(if self.keep { start + len } else { start });
            return Shown { text: std::mem::take(&mut self.held), ends: true };
        }
        let rest = self.held.split_off(self.held.len() - self.open());
        Shown { text: std::mem::replace(&mut self.held, rest), ends: false }
    }

    /// What was held, as nothing follows.
    pub fn end(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end that may be the beginning of a text that is looked for.
    fn open(&self) -> usize {
        let open = |text: &String| {
            let most = text.len().min(self.held.len());
            (1..=most).rev().find(|&len| self.held.as_bytes().ends_with(&text.as_bytes()[..len]))
        };
        self.texts.iter().filter_map(open).max().unwrap_or(0)
    }
}
