//! A user's error as one value. Only the CLI renders it.
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable and greppable, e.g. `config::unknown-rope-type`.
    pub code: &'static str,
    pub message: String,
    /// Where in the config, checkpoint or IR.
    pub at: Option<String>,
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn new(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, message: message.into(), at: None, help: None }
    }

    pub fn at(mut self, at: impl Into<String>) -> Diagnostic {
        self.at = Some(at.into());
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = &self.at {
            write!(f, "{at}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Diagnostic {}
