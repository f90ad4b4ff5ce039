//! What the terminals of a grammar in Lark's syntax take together, as expressions: a terminal that
//! is named in another is written out in it.
use std::collections::{HashMap, HashSet};

use super::expression::Measure;

/// A part of a definition.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A text or an expression.
    Text(Measure),
    /// Another definition.
    Name(&'a str),
    /// A bracket opens.
    Open,
    /// A bracket closes.
    Close,
    /// Another alternative, or another expression for the same text.
    Or,
    /// What stands before may be left out.
    Optional,
    /// What stands before may come again.
    Many,
}

/// One rule, one terminal, or an expression that stands for itself.
#[derive(Debug)]
struct Definition<'a> {
    name: &'a str,
    parts: Vec<Part<'a>>,
    /// Whether all of it is one expression.
    is_expression: bool,
}

/// A name where a definition may begin.
#[derive(Clone, Copy, Debug)]
struct Head<'a> {
    name: &'a str,
    /// The parts of the definition before.
    at: usize,
}

/// The definitions of a grammar, in the order in which they are written.
#[derive(Debug, Default)]
pub struct Definitions<'a> {
    all: Vec<Definition<'a>>,
    head: Option<Head<'a>>,
    /// Whether a name begins a line.
    is_fresh: bool,
}

/// What a name that is defined elsewhere stands for.
const ELSEWHERE: Measure = Measure::text(1);
/// What blanks are called that a grammar leaves out.
const IGNORED: &str = "%ignore";

impl<'a> Definitions<'a> {
    /// Nothing yet but what may stand before the first of them.
    pub fn new() -> Definitions<'a> {
        let mut none = Definitions::default();
        none.begin("", false);
        Definitions { is_fresh: true, ..none }
    }

    /// A line ends, or another grammar begins.
    pub fn line(&mut self) {
        self.is_fresh = true;
    }

    /// Another part of what is being defined.
    pub fn push(&mut self, part: Part<'a>) {
        let at = self.all.last().map_or(0, |definition| definition.parts.len());
        if let (Part::Name(name), true) = (part, self.is_fresh) {
            self.head = Some(Head { name, at });
        }
        self.is_fresh = false;
        self.all.last_mut().into_iter().for_each(|definition| definition.parts.push(part));
    }

    /// A colon: what follows defines the name that began the line. What stands between makes an
    /// expression of a rule.
    pub fn define(&mut self) {
        let Some(Head { name, at }) = self.head.take() else { return };
        let mut has_attributes = false;
        if let Some(before) = self.all.last_mut() {
            has_attributes = before.parts.len() > at + 1;
            before.parts.truncate(at);
        }
        self.begin(name, has_attributes || is_terminal(name));
    }

    /// What is left out between terminals.
    pub fn ignore(&mut self) {
        self.begin(IGNORED, true);
    }

    fn begin(&mut self, name: &'a str, is_expression: bool) {
        self.is_fresh = false;
        self.all.push(Definition { name, parts: vec![], is_expression });
    }

    /// The steps of all expressions that rules are made of.
    pub fn steps(&self) -> u64 {
        let mut weigh = Weigh { by_name: HashMap::new(), known: HashMap::new() };
        self.all.iter().for_each(|definition| weigh.by_name.entry(definition.name).or_default().push(definition));
        let mut used = HashSet::new();
        let mut sum = 0_u64;
        for definition in self.all.iter().filter(|definition| !is_terminal(definition.name)) {
            if definition.is_expression {
                sum = sum.saturating_add(weigh.parts(&definition.parts).steps);
                continue;
            }
            for part in &definition.parts {
                sum = sum.saturating_add(match *part {
                    Part::Text(measure) => measure.steps,
                    Part::Name(name) if is_terminal(name) && used.insert(name) => weigh.named(name).steps,
                    _ => 0,
                });
            }
        }
        sum
    }
}

/// Rules have names in small letters.
fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|first: char| first.is_ascii_uppercase())
}

struct Weigh<'a, 'b> {
    by_name: HashMap<&'a str, Vec<&'b Definition<'a>>>,
    /// By name; those that are being weighed are one character.
    known: HashMap<&'a str, Measure>,
}

/// A bracket that is open: its alternatives, and the last of them so far.
#[derive(Default)]
struct Bracket {
    before: Option<Measure>,
    row: Vec<Measure>,
}

impl Bracket {
    fn next(&mut self) {
        let row = Measure::row(&std::mem::take(&mut self.row));
        self.before = Some(self.before.map_or(row, |before| before.or(row)));
    }

    fn close(mut self) -> Measure {
        self.next();
        self.before.unwrap_or(Measure::NOTHING)
    }
}

impl<'a> Weigh<'a, '_> {
    fn named(&mut self, name: &'a str) -> Measure {
        if let Some(&measure) = self.known.get(name) {
            return measure;
        }
        self.known.insert(name, ELSEWHERE);
        let all = self.by_name.get(name).cloned().unwrap_or_default();
        let measure = all.iter().map(|definition| self.parts(&definition.parts)).reduce(Measure::or);
        let measure = measure.unwrap_or(ELSEWHERE);
        self.known.insert(name, measure);
        measure
    }

    fn parts(&mut self, parts: &[Part<'a>]) -> Measure {
        let mut open = vec![];
        let mut own = Bracket::default();
        for part in parts {
            match *part {
                Part::Text(measure) => own.row.push(measure),
                Part::Name(name) => own.row.push(self.named(name)),
                Part::Open => open.push(std::mem::take(&mut own)),
                Part::Or => own.next(),
                // Without the bracket that opens it is no grammar.
                Part::Close => {
                    let whole = std::mem::replace(&mut own, open.pop().unwrap_or_default()).close();
                    own.row.push(whole);
                }
                Part::Optional => own.row.last_mut().into_iter().for_each(|last| *last = last.optional()),
                Part::Many => own.row.last_mut().into_iter().for_each(|last| *last = last.many()),
            }
        }
        open.into_iter().fold(own.close(), |whole, mut outer| {
            outer.row.push(whole);
            outer.close()
        })
    }
}
