//! Answers that follow a JSON schema, a regular expression or a grammar, by llguidance.
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::schedule::Guide;
use crate::text::Text;
use crate::thoughts::{CLOSE, OPEN, Start};

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// JSON of this schema.
    Json(Value),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// A grammar in Lark's syntax, as llguidance has it.
    Lark(String),
}

/// Makes guides for one model. What it needs of the vocabulary is made when the first answer wants
/// a form.
pub struct Grammars {
    text: Arc<Text>,
    vocab: usize,
    /// Tokens that end an answer.
    stop: Vec<u32>,
    factory: OnceLock<Result<Mutex<ParserFactory>, String>>,
}

impl Grammars {
    /// For a model with this vocabulary.
    pub fn new(text: Arc<Text>, vocab: usize, stop: Vec<u32>) -> Grammars {
        Grammars { text, vocab, stop, factory: OnceLock::new() }
    }

    /// A guide for one answer that begins like this, or what is wrong with the form. The form is
    /// that of the text behind a thought.
    pub fn guide(&self, form: &Form, start: Start) -> Result<Box<dyn Guide>, String> {
        let follow = self.follow(form)?;
        // A model without tokens for them writes no thoughts.
        match (start, self.text.token(OPEN), self.text.token(CLOSE)) {
            (Start::Thought | Start::Either, Some(open), Some(close)) => {
                Ok(Box::new(Behind { follow, open, close, place: start }))
            }
            _ => Ok(Box::new(follow)),
        }
    }

    fn follow(&self, form: &Form) -> Result<Follow, String> {
        let factory = self.factory.get_or_init(|| self.factory().map(Mutex::new)).as_ref().map_err(String::clone)?;
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(bounded(schema.clone())),
            Form::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let factory = factory.lock().unwrap_or_else(PoisonError::into_inner);
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(Follow { matcher, stop: self.stop.clone() }),
        }
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let end = self.stop.first().copied().ok_or("the model has no token that ends an answer")?;
        let trie = TokTrie::from(&TokRxInfo::new(self.vocab as u32, end), &self.text.bytes(self.vocab));
        let env: TokEnv = Arc::new(Vocabulary { trie });
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(factory)
    }
}

/// Between two tokens of JSON: without an end to it some models write blanks only.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";

/// A schema whose answers have an end, unless it says itself how they are written.
pub(crate) fn bounded(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert(json!({ "whitespace_pattern": BLANKS }));
    }
    schema
}

/// The tokens, of which texts are made greedily: guides ask for bytes alone.
struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }
}

struct Follow {
    matcher: Matcher,
    stop: Vec<u32>,
}

impl Guide for Follow {
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        let words = mask.as_slice();
        allowed.iter_mut().enumerate().for_each(|(index, word)| *word = words.get(index).copied().unwrap_or(0));
        // Where one of them may come, all may.
        let has = |token: u32| words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        if self.stop.first().is_some_and(|&token| has(token)) {
            for &token in &self.stop {
                allowed.get_mut(token as usize / 32).into_iter().for_each(|word| *word |= 1 << (token % 32));
            }
        }
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<bool, String> {
        self.matcher.consume_token(token).map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}

/// Lets a model think before it follows.
struct Behind {
    follow: Follow,
    open: u32,
    close: u32,
    place: Start,
}

impl Guide for Behind {
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String> {
        if self.place == Start::Thought {
            // A thought is no answer yet.
            for token in &self.follow.stop {
                allowed.get_mut(*token as usize / 32).into_iter().for_each(|word| *word &= !(1 << (token % 32)));
            }
            return Ok(());
        }
        self.follow.allow(allowed)?;
        if self.place == Start::Either {
            let word = allowed.get_mut(self.open as usize / 32);
            word.into_iter().for_each(|word| *word |= 1 << (self.open % 32));
        }
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<bool, String> {
        match self.place {
            Start::Either if token == self.open => self.place = Start::Thought,
            Start::Thought if token == self.close => self.place = Start::Text,
            Start::Thought => {}
            Start::Text | Start::Either => {
                self.place = Start::Text;
                return self.follow.take(token);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
