//! Output of verbs about an artifact. The artifact's maker chose its strings, so they are escaped:
//! a terminal gets nothing but text.
use std::io::Write;
use std::path::Path;

use atomc_artifact::{escaped, escaped_json};
use serde::Serialize;

use super::failure::Failure;

/// A message that keeps its line ends.
pub fn lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// The name of a file, escaped: it may have been chosen by someone else.
pub fn path(path: &Path) -> String {
    escaped(&path.display().to_string())
}

/// The name of a file in JSON, which is UTF-8. To be called before any work is done.
pub fn json_path(path: &Path) -> Result<&str, Failure> {
    let why = "its name is not UTF-8, as text in JSON has to be: leave --json out, or rename it";
    path.to_str().ok_or_else(|| Failure::file("json", path, why))
}

/// A value as JSON over several lines.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(writeln!(out, "{}", text.split('\n').map(escaped_json).collect::<Vec<_>>().join("\n"))?)
}

/// A text with a star for each number in its module paths.
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
