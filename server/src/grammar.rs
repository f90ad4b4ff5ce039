//! Answers that follow a JSON schema, a regular expression or a grammar, by llguidance, or that are
//! one of some texts.
mod cache;
mod choice;
mod expression;
mod lark;
mod limits;
mod masks;
mod prepare;
mod schema;
mod terminals;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::schedule::{Guide, Progress};
use crate::text::Text;
use crate::thoughts::{CLOSE, OPEN, Start};
use crate::threads::Clock;
use cache::Cache;
use choice::{Choice, Texts};
use limits::at_most;
pub use limits::{FormError, FormLimits};
use masks::{Masks, Next, Parser, Standing, first_line};
use prepare::{Stop, Workshop};

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Form {
    /// JSON of this schema.
    Json(Value),
    /// What a regular expression matches as a whole.
    Regex(String),
    /// A grammar in Lark's syntax, as llguidance has it.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
}

impl Form {
    /// That it is not too much.
    fn check(&self, limits: &FormLimits) -> Result<(), FormError> {
        if let Form::Choice(texts) = self {
            at_most("choices", texts.len(), limits.choices)?;
            at_most("bytes of choices", self.bytes(), limits.choice_bytes)?;
            let none = || FormError::Wrong("there is none to choose from".into());
            return if texts.is_empty() { Err(none()) } else { Ok(()) };
        }
        at_most("bytes", self.bytes(), limits.bytes)?;
        match self {
            Form::Json(schema) => schema::check(schema, limits),
            Form::Regex(regex) => lark::measured(regex, limits).map(drop),
            Form::Lark(text) => lark::check(text, limits),
            Form::Choice(_) => Ok(()),
        }
    }

    /// Bytes of its text.
    fn bytes(&self) -> usize {
        match self {
            Form::Json(schema) => schema.to_string().len(),
            Form::Regex(text) | Form::Lark(text) => text.len(),
            Form::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}

/// Makes guides for one model. What it needs of the vocabulary is made when the first answer wants
/// a form. It works where tokio does.
pub struct Grammars {
    shared: Arc<Shared>,
    workshop: Workshop,
    limits: FormLimits,
}

struct Shared {
    text: Arc<Text>,
    vocab: usize,
    /// Tokens that end an answer.
    stop: Vec<u32>,
    tools: OnceLock<Result<Tools, FormError>>,
    cache: Cache,
}

/// What all forms of a model are made with.
struct Tools {
    env: TokEnv,
    factory: ParserFactory,
    masks: Masks,
}

/// A form that answers can follow.
#[derive(Clone)]
struct Prepared {
    parser: Made,
    /// What may come first.
    first: llguidance::toktrie::SimpleVob,
}

#[derive(Clone)]
enum Made {
    Choice(Texts),
    Grammar(Arc<Matcher>),
}

/// A form for the answers to one request.
pub struct Prescribed {
    shared: Arc<Shared>,
    limits: FormLimits,
    made: Prepared,
}

impl Grammars {
    /// For a model with this vocabulary.
    pub fn new(text: Arc<Text>, vocab: usize, stop: Vec<u32>, limits: FormLimits) -> Grammars {
        let (tools, cache) = (OnceLock::new(), Cache::default());
        let shared = Arc::new(Shared { text, vocab, stop, tools, cache });
        Grammars { shared, workshop: Workshop::new(limits), limits }
    }

    /// A form that was prepared, or what is wrong with it.
    pub async fn prepare(&self, form: &Form) -> Result<Prescribed, FormError> {
        let (shared, limits) = (self.shared.clone(), self.limits);
        let made = match self.shared.cache.get(form) {
            Some(outcome) => outcome?,
            None => {
                let (shared, form) = (self.shared.clone(), form.clone());
                self.workshop.make(move |stop| shared.make(&form, &limits, stop)).await?
            }
        };
        Ok(Prescribed { shared, limits, made: made.own() })
    }
}

impl Prepared {
    /// A copy with a parser of its own, which knows nothing of other answers.
    fn own(self) -> Prepared {
        let parser = match self.parser {
            Made::Grammar(matcher) if Arc::strong_count(&matcher) > 1 => Made::Grammar(Arc::new(matcher.deep_clone())),
            parser => parser,
        };
        Prepared { parser, ..self }
    }
}

impl Prescribed {
    /// A guide for one answer that begins like this. If the model writes thoughts, the form is that
    /// of the text after the thought.
    pub fn guide(&self, start: Start) -> Result<Box<dyn Guide>, FormError> {
        let follow = self.follow()?;
        // A model without tokens for them writes no thoughts.
        match (start, self.shared.text.token(OPEN), self.shared.text.token(CLOSE)) {
            (Start::Thought | Start::Either, Some(open), Some(close)) => {
                Ok(Box::new(Behind { follow, open, close, place: start }))
            }
            _ => Ok(Box::new(follow)),
        }
    }

    fn follow(&self) -> Result<Follow, FormError> {
        let tools = self.shared.tools()?;
        let parser = match &self.made.parser {
            Made::Choice(texts) => Parser::Choice(Choice::new(texts.clone(), tools.env.clone())),
            Made::Grammar(matcher) => Parser::Grammar(Box::new(Matcher::clone(matcher))),
        };
        let first = Next { mask: self.made.first.clone(), is_complete: false };
        let work = masks::Follow::new(&tools.masks, self.limits, parser, first);
        Ok(Follow { work, stop: self.shared.stop.clone() })
    }
}

impl Shared {
    /// Prepares a form, and keeps what came of it.
    fn make(&self, form: &Form, limits: &FormLimits, stop: &Stop) -> Result<Prepared, FormError> {
        let clock = Clock::own();
        let mut outcome = self.made(form, limits, stop);
        if stop.is_late() {
            outcome = Err(FormError::Slow(limits.prepare));
            // While others had the processor: it may be quick next time.
            if clock.read().is_some_and(|taken| taken < limits.prepare) {
                return outcome;
            }
        }
        self.cache.put(form, &outcome);
        outcome
    }

    fn made(&self, form: &Form, limits: &FormLimits, stop: &Stop) -> Result<Prepared, FormError> {
        form.check(limits)?;
        let tools = self.tools()?;
        let (parser, mut first) = match form {
            Form::Choice(texts) => {
                let texts = choice::sorted(texts);
                (Made::Choice(texts.clone()), Parser::Choice(Choice::new(texts, tools.env.clone())))
            }
            form => {
                let matcher = tools.matcher(form)?;
                matcher.cancellation_handle().into_iter().for_each(|handle| stop.by(handle));
                (Made::Grammar(Arc::new(matcher.deep_clone())), Parser::Grammar(Box::new(matcher)))
            }
        };
        let nothing = |why: &str| FormError::Wrong(format!("nothing matches this form{why}"));
        let first = first.go_on(None).map_err(|why| nothing(&format!(" ({why})")))?.mask;
        if first.is_zero() {
            return Err(nothing(""));
        }
        Ok(Prepared { parser, first })
    }

    fn tools(&self) -> Result<&Tools, FormError> {
        self.tools.get_or_init(|| Tools::new(self).map_err(FormError::Fault)).as_ref().map_err(FormError::clone)
    }
}

/// What llguidance may take. Its fuel is steps of regular expressions: an `enum` of 20,000 texts
/// takes 250,000. Items of a row are what may come next: an object of 2,500 optional properties has
/// 10,000. A state takes one to two kB.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 20_000,
        step_max_items: 200_000,
        initial_lexer_fuel: 500_000,
        max_lexer_states: 10_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Bytes of a token that a form may have.
const LONGEST_TOKEN: usize = 1000;

impl Tools {
    fn new(shared: &Shared) -> Result<Tools, String> {
        let end = shared.stop.first().copied().ok_or("the model has no token that ends an answer")?;
        let mut tokens = shared.text.bytes(shared.vocab);
        // Longer ones are never part of a form: llguidance takes none.
        tokens.iter_mut().filter(|token| token.len() > LONGEST_TOKEN).for_each(Vec::clear);
        let trie = TokTrie::from(&TokRxInfo::new(shared.vocab as u32, end), &tokens);
        let env: TokEnv = Arc::new(Vocabulary { trie });
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        let masks = Masks::start().map_err(|error| format!("no thread for grammars: {error}"))?;
        Ok(Tools { env, factory, masks })
    }

    fn matcher(&self, form: &Form) -> Result<Matcher, FormError> {
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(bounded(schema.clone())),
            Form::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Form::Choice(_) => return Err(FormError::Fault("a choice has no grammar".into())),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar)).into_cancellable();
        match matcher.get_error() {
            Some(error) => Err(FormError::Wrong(first_line(&error))),
            None => Ok(matcher),
        }
    }
}

/// Between two tokens of JSON: without an end to it some models write blanks only.
const BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,32}";

/// A schema that bounds the length of blanks, so that answers have an end, unless the schema says
/// itself how they are written.
pub(crate) fn bounded(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert(json!({ "whitespace_pattern": BLANKS }));
    }
    schema
}

/// The tokens. Texts are tokenised greedily: guides ask for bytes alone.
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
    work: masks::Follow,
    stop: Vec<u32>,
}

impl Guide for Follow {
    fn progress(&mut self, within: Duration) -> Result<Progress, String> {
        self.work.standing(within).map(Progress::from)
    }

    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), String> {
        let words = self.work.mask()?.as_slice();
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

    fn take(&mut self, token: u32) -> Result<Progress, String> {
        self.work.take(token).map(Progress::from)
    }
}

impl From<Standing> for Progress {
    fn from(standing: Standing) -> Progress {
        match standing {
            Standing::Known => Progress::Open,
            Standing::Busy => Progress::Busy,
            Standing::Complete => Progress::Complete,
        }
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
    fn progress(&mut self, within: Duration) -> Result<Progress, String> {
        match self.place {
            Start::Thought => Ok(Progress::Open),
            Start::Text | Start::Either => self.follow.progress(within),
        }
    }

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

    fn take(&mut self, token: u32) -> Result<Progress, String> {
        match self.place {
            Start::Either if token == self.open => self.place = Start::Thought,
            Start::Thought if token == self.close => self.place = Start::Text,
            Start::Thought => {}
            Start::Text | Start::Either => {
                self.place = Start::Text;
                return self.follow.take(token);
            }
        }
        Ok(Progress::Open)
    }
}

#[cfg(test)]
mod tests;
