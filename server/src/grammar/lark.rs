//! What a grammar in Lark's syntax, or an expression, asks for, found in one walk through its text
//! before any grammar is made of it.
use serde_json::Value;

use super::expression::Measure;
use super::limits::{FormError, FormLimits, at_most};
use super::schema;
use super::terminals::{Definitions, Part};

/// That a grammar of this text is not too much.
pub fn check(text: &str, limits: &FormLimits) -> Result<(), FormError> {
    let (counts, definitions) = (Counts::default(), Definitions::new());
    let mut walk = Walk { text, at: 0, counts, definitions, limits };
    while let Some(next) = text[walk.at..].chars().next() {
        walk.step(next)?;
    }
    let Counts { rules, items, terminals, conjuncts } = walk.counts;
    at_most("rules and terminals", rules, limits.rules)?;
    at_most("names, texts and expressions", items, limits.items)?;
    at_most("texts and expressions", terminals, limits.terminals)?;
    at_most("`&` and `~`", conjuncts, limits.conjuncts)?;
    at_most(STEPS, walk.definitions.steps(), limits.steps)
}

/// What is counted of expressions.
pub const STEPS: &str = "steps behind one character of its expressions";

/// What an expression takes, where it is not too long.
pub fn measured(expression: &str, limits: &FormLimits) -> Result<Measure, FormError> {
    at_most("bytes of one expression", expression.len(), limits.expression)?;
    let measure = Measure::written(expression);
    at_most(STEPS, measure.steps, limits.steps)?;
    Ok(measure)
}

#[derive(Default)]
struct Counts {
    rules: usize,
    items: usize,
    terminals: usize,
    conjuncts: u64,
}

struct Walk<'a> {
    text: &'a str,
    at: usize,
    counts: Counts,
    definitions: Definitions<'a>,
    limits: &'a FormLimits,
}

impl<'a> Walk<'a> {
    fn step(&mut self, next: char) -> Result<(), FormError> {
        let rest = &self.text[self.at..];
        let len = match next {
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '"' | '/' => self.quoted(rest, next)?,
            '%' => return self.statement(),
            ':' => {
                self.counts.rules += 1;
                self.definitions.define();
                rest.find(|next| next != ':').unwrap_or(rest.len())
            }
            '~' | '{' if rest[1..].trim_start().starts_with(|next: char| next.is_ascii_digit()) => self.repeated(rest),
            '&' | '~' => {
                self.counts.conjuncts += 1;
                self.part(if next == '&' { &[Part::Or] } else { &[] })
            }
            next if next.is_alphanumeric() || next == '_' => {
                self.counts.items += 1;
                let len =
                    rest.find(|next: char| !next.is_alphanumeric() && next != '_' && next != '-').unwrap_or(rest.len());
                self.definitions.push(Part::Name(&rest[..len]));
                len
            }
            '\n' | '{' => {
                self.definitions.line();
                1
            }
            '(' | '[' => self.part(&[Part::Open]),
            ')' => self.part(&[Part::Close]),
            ']' => self.part(&[Part::Close, Part::Optional]),
            '|' => self.part(&[Part::Or]),
            '?' => self.part(&[Part::Optional]),
            '*' => self.part(&[Part::Many, Part::Optional]),
            '+' => self.part(&[Part::Many]),
            next => next.len_utf8(),
        };
        self.at += len.max(1);
        Ok(())
    }

    /// Takes parts that one byte stands for.
    fn part(&mut self, parts: &[Part<'a>]) -> usize {
        parts.iter().for_each(|part| self.definitions.push(*part));
        1
    }

    /// A text or an expression, with the letters after it.
    fn quoted(&mut self, rest: &'a str, mark: char) -> Result<usize, FormError> {
        self.counts.terminals += 1;
        self.counts.items += 1;
        let len = quoted(rest, mark);
        let flags = rest[len..].find(|next: char| !next.is_ascii_alphabetic()).unwrap_or(rest.len() - len);
        let within = rest.get(1..len - 1).unwrap_or_default();
        let measure = match &rest[len..len + flags] {
            _ if mark == '"' => {
                at_most("bytes of one expression", len, self.limits.expression)?;
                Measure::text(within.len())
            }
            "" => measured(within, self.limits)?,
            flags => measured(&format!("(?{flags}){within}"), self.limits)?,
        };
        self.definitions.push(Part::Text(measure));
        Ok(len + flags)
    }

    /// How often something comes: `~1..3`, `{1,3}`.
    fn repeated(&mut self, rest: &str) -> usize {
        let is_number = |next: char| next.is_ascii_digit() || " ,.}".contains(next);
        let len = 1 + rest[1..].find(|next| !is_number(next)).unwrap_or(rest.len() - 1);
        // Where it begins with nothing, or with what cannot be read, it may be left out.
        let least = rest[1..len].trim_start().split(|next: char| !next.is_ascii_digit()).next();
        let is_some = least.and_then(|least| least.parse::<u32>().ok()).is_some_and(|least| least > 0);
        self.part(if is_some { &[Part::Many] } else { &[Part::Many, Part::Optional] });
        len
    }

    /// A statement that begins with `%`: JSON may follow its name.
    fn statement(&mut self) -> Result<(), FormError> {
        let rest = &self.text[self.at + 1..];
        let len = rest.find(|next: char| !next.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(len);
        self.at += 1 + len;
        self.counts.items += 1;
        if name == "ignore" {
            self.definitions.ignore();
        }
        if !matches!(name, "json" | "regex" | "llguidance") {
            return Ok(());
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // What is no JSON is refused when the grammar is made.
        if let Some(Ok(value)) = values.next() {
            if name == "json" {
                schema::check(&value, self.limits)?;
            }
            self.at += values.byte_offset();
            // Its steps are counted by its bytes: a part of a text may begin anywhere in it.
            self.definitions.push(Part::Text(Measure::text(values.byte_offset())));
        }
        Ok(())
    }
}

/// Bytes to the end of a line.
fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Bytes of a text between two marks, of which a backslash takes the meaning.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, next) in text.char_indices().skip(1) {
        match next {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            next if next == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}
