use crate::escape::escaped;
use std::path::PathBuf;

/// Why a file is not an artifact that this version can use, or why a manifest cannot become one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum Error {
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("not an atomc artifact: the file does not begin with the artifact signature")]
    NotAnArtifact,
    #[error("artifact format version {found}, but this atomc reads version {supported}: compile the model again")]
    Version { found: u32, supported: u32 },
    #[error("artifact is cut short: {part} needs {need} bytes and the file has {have}")]
    Truncated { part: Part, need: u64, have: u64 },
    #[error("artifact is {have} bytes long, but its sections end at byte {need}")]
    TrailingBytes { need: u64, have: u64 },
    #[error("artifact is damaged: the checksum of {part} does not match")]
    Checksum { part: Part },
    #[error("artifact is damaged: {part} does not unpack to what its header says")]
    Packed { part: Part },
    #[error("artifact is too large: {part} would bring it to {bytes} unpacked bytes, and {most} are the most")]
    Unpacked { part: Part, bytes: u64, most: u64 },
    #[error("there is no memory for the {bytes} bytes of {part}")]
    Memory { part: Part, bytes: u64 },
    #[error("artifact manifest: {}: {}", escaped(.at), escaped(.detail))]
    Manifest { at: String, detail: String },
    #[error("what is expected of an artifact is a key, or JSON with `producer` and `config`: {}", escaped(.detail))]
    NoExpectation { detail: String },
    #[error("the artifact is not the one expected: {} is {}, and {} was expected{}", escaped(.field), escaped(.held), escaped(.expected), further(.more))]
    Unexpected { field: String, held: String, expected: String, more: usize },
}

/// The words about fields after the first one that differs.
fn further(more: &usize) -> String {
    match more {
        0 => String::new(),
        1 => " (1 more field differs)".into(),
        more => format!(" ({more} more fields differ)"),
    }
}

/// A part of the file, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Signature, version, and the table of sections with its checksum.
    Header,
    /// Section 0.
    Manifest,
    /// The section of this number.
    Code(usize),
}

impl Part {
    pub(crate) fn section(index: usize) -> Part {
        if index == 0 { Part::Manifest } else { Part::Code(index) }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Header => f.write_str("the header"),
            Part::Manifest => f.write_str("section 0 (manifest)"),
            Part::Code(index) => write!(f, "section {index} (code)"),
        }
    }
}
