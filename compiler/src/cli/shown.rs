//! What verbs print of an artifact, whose maker chose its strings: nothing of it is more than text
//! to a terminal.
use std::io::Write;

use atomc_artifact::{escaped, escaped_json};
use serde::Serialize;

use super::failure::Failure;

/// A message, whose lines stay lines.
pub fn lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// A value as JSON over several lines.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(writeln!(out, "{}", text.split('\n').map(escaped_json).collect::<Vec<_>>().join("\n"))?)
}

/// A text whose module paths have a star for each number.
pub fn without_numbers(text: &str) -> String {
    let word = |word: &str| -> String {
        let parts = word.split('.').map(|part| {
            let digits = part.trim_end_matches(':');
            let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
            if is_number && word.contains('.') { part.replace(digits, "*") } else { part.into() }
        });
        parts.collect::<Vec<_>>().join(".")
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
