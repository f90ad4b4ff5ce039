//! Answers that are one of some texts: all that begin like the answer are a range of the sorted
//! texts, which each byte makes narrower.
use std::ops::Range;
use std::sync::Arc;

use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv};

/// Texts, sorted.
pub type Texts = Arc<[Box<[u8]>]>;

/// Follows one of the texts.
#[derive(Clone)]
pub struct Choice {
    texts: Texts,
    env: TokEnv,
    place: Place,
}

/// The progress of an answer: the texts that begin like it, and its bytes.
#[derive(Clone, Debug)]
struct Place {
    begin: Range<usize>,
    depth: usize,
}

/// Sorted, each once.
pub fn sorted(texts: &[String]) -> Texts {
    let mut texts: Vec<Box<[u8]>> = texts.iter().map(|text| text.as_bytes().into()).collect();
    texts.sort_unstable();
    texts.dedup();
    texts.into()
}

impl Place {
    /// The place after another byte; nothing if no text continues with it.
    fn behind(&self, texts: &[Box<[u8]>], byte: u8) -> Option<Place> {
        let within = &texts[self.begin.clone()];
        // A text that ends here is before those that continue.
        let start = within.partition_point(|text| text.get(self.depth).is_none_or(|&next| next < byte));
        let len = within[start..].partition_point(|text| text.get(self.depth) == Some(&byte));
        let start = self.begin.start + start;
        (len > 0).then_some(Place { begin: start..start + len, depth: self.depth + 1 })
    }
}

impl Choice {
    /// A choice among texts that the tokens of `env` write.
    pub fn new(texts: Texts, env: TokEnv) -> Choice {
        let place = Place { begin: 0..texts.len(), depth: 0 };
        Choice { texts, env, place }
    }

    /// Whether the answer is one of the texts.
    fn is_whole(&self) -> bool {
        self.texts.get(self.place.begin.start).is_some_and(|text| text.len() == self.place.depth)
    }

    /// Whether the answer is one of the texts, and no other text continues it.
    pub fn is_complete(&self) -> bool {
        self.is_whole() && self.place.begin.len() == 1
    }

    /// The tokens that may follow, with the end token if the answer is one of the texts.
    pub fn mask(&self) -> SimpleVob {
        let trie = self.env.tok_trie();
        let mut mask = trie.alloc_token_set();
        let mut walk = Walk { texts: &self.texts, places: vec![self.place.clone()] };
        trie.add_bias(&mut walk, &mut mask, &[]);
        if self.is_whole() {
            mask.allow_token(trie.eos_token());
        }
        mask
    }

    /// Moves on by a token.
    pub fn take(&mut self, token: u32) -> Result<(), String> {
        for &byte in self.env.tok_trie().token(token) {
            let place = self.place.behind(&self.texts, byte);
            self.place = place.ok_or_else(|| format!("token {token} begins none of the choices"))?;
        }
        Ok(())
    }
}

/// A walk through the tokens.
struct Walk<'a> {
    texts: &'a [Box<[u8]>],
    places: Vec<Place>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, num: usize) {
        self.places.truncate(self.places.len() - num);
    }

    fn collapse(&mut self) {
        self.places.drain(..self.places.len() - 1);
    }

    fn trie_finished(&mut self) {
        self.places.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let next = self.places.last().and_then(|place| place.behind(self.texts, byte));
        let is_some = next.is_some();
        self.places.extend(next);
        is_some
    }
}
