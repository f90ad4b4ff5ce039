//! Texts that end an answer, whatever the borders of tokens: by Knuth, Morris and Pratt, so that
//! each byte of an answer is looked at about once for each text. Answers share everything except
//! their progress.
use std::sync::Arc;

/// Looks for texts in an answer that comes in pieces.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    texts: Arc<[Sought]>,
    /// Whether the text that ended the answer is part of it.
    keep: bool,
    /// A possible beginning of one.
    held: String,
    /// For each text, the number of its bytes that the answer ends with.
    matched: Vec<usize>,
}

/// A text that is looked for.
#[derive(Debug)]
struct Sought {
    text: Box<str>,
    /// For each byte, the length of the longest proper prefix of the text that is also a suffix of
    /// the text up to here.
    border: Box<[u32]>,
}

/// Text that can be shown.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// The piece.
    pub text: String,
    /// Whether the answer ends with it.
    pub ends: bool,
}

impl Sought {
    fn new(text: String) -> Sought {
        let mut sought = Sought { border: vec![0; text.len()].into(), text: text.into() };
        for at in 1..sought.text.len() {
            let byte = sought.text.as_bytes()[at];
            sought.border[at] = sought.next(sought.border[at - 1] as usize, byte) as u32;
        }
        sought
    }

    /// The length of the match after another byte, from its length before.
    fn next(&self, mut matched: usize, byte: u8) -> usize {
        let text = self.text.as_bytes();
        while text.get(matched) != Some(&byte) {
            match matched {
                0 => return 0,
                _ => matched = self.border[matched - 1] as usize,
            }
        }
        matched + 1
    }

    /// The end of the text in a piece, if it is complete there. `matched` keeps the length of its
    /// match.
    fn find(&self, matched: &mut usize, piece: &str) -> Option<usize> {
        piece.bytes().position(|byte| {
            *matched = self.next(*matched, byte);
            *matched == self.text.len()
        })
    }
}

impl Stops {
    /// Looks for these. Empty ones are never found.
    pub fn new(texts: Vec<String>, keep: bool) -> Stops {
        let texts: Arc<[Sought]> = texts.into_iter().filter(|text| !text.is_empty()).map(Sought::new).collect();
        Stops { matched: vec![0; texts.len()], texts, keep, held: String::new() }
    }

    /// Takes a piece, and returns the text that can be shown now.
    pub fn push(&mut self, piece: &str) -> Shown {
        let before = self.held.len();
        self.held.push_str(piece);
        let found = self.texts.iter().zip(&mut self.matched).filter_map(|(sought, matched)| {
            let end = before + sought.find(matched, piece)? + 1;
            Some((end - sought.text.len(), sought.text.len()))
        });
        if let Some((start, len)) = found.min() {
            self.held.truncate(if self.keep { start + len } else { start });
            return Shown { text: self.end(), ends: true };
        }
        let open = self.matched.iter().copied().max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        Shown { text: std::mem::replace(&mut self.held, rest), ends: false }
    }

    /// The held text, as nothing follows.
    pub fn end(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }
}
