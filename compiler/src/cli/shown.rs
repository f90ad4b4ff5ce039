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
