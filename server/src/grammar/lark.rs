//! What a grammar in Lark's syntax, or an expression, asks for, found in one walk through its text
//! before any grammar is made of it.
use serde_json::Value;

use super::limits::{FormError, FormLimits, at_most};
use super::schema;

/// That a grammar of this text is not too much.
pub fn check(text: &str, limits: &FormLimits) -> Result<(), FormError> {
    let mut walk = Walk { text, at: 0, counts: Counts::default(), limits };
    while let Some(next) = text[walk.at..].chars().next() {
        walk.step(next)?;
    }
    let Counts { rules, items, terminals, conjuncts } = walk.counts;
    at_most("rules and terminals", rules, limits.rules)?;
    at_most("names, texts and expressions", items, limits.items)?;
    at_most("texts and expressions", terminals, limits.terminals)?;
    at_most("`&` and `~`", conjuncts, limits.conjuncts)
}

/// That an expression is not too long.
pub fn check_expression(expression: &str, limits: &FormLimits) -> Result<(), FormError> {
    at_most("bytes of one expression", expression.len(), limits.expression)
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
    limits: &'a FormLimits,
}

impl Walk<'_> {
    fn step(&mut self, next: char) -> Result<(), FormError> {
        let rest = &self.text[self.at..];
        let len = match next {
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '"' | '/' => {
                let len = quoted(rest, next);
                self.counts.terminals += 1;
                self.counts.items += 1;
                check_expression(&rest[..len], self.limits)?;
                len
            }
            '%' => return self.statement(),
            ':' => {
                self.counts.rules += 1;
                1
            }
            // Repetitions are written with `~` too, by a number.
            '~' if rest[1..].trim_start().starts_with(|next: char| next.is_ascii_digit()) => 1,
            '&' | '~' => {
                self.counts.conjuncts += 1;
                1
            }
            next if next.is_alphanumeric() || next == '_' => {
                self.counts.items += 1;
                rest.find(|next: char| !next.is_alphanumeric() && next != '_' && next != '-').unwrap_or(rest.len())
            }
            next => next.len_utf8(),
        };
        self.at += len.max(1);
        Ok(())
    }

    /// What begins with `%`: JSON may stand behind its name.
    fn statement(&mut self) -> Result<(), FormError> {
        let rest = &self.text[self.at + 1..];
        let len = rest.find(|next: char| !next.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(len);
        self.at += 1 + len;
        self.counts.items += 1;
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
