//! A JSON object read field by field, so that every fault names its field.
use serde_json::{Map, Value};

use crate::Diagnostic;

/// No size in a configuration may be larger: products of two of them do not overflow.
pub const MAX_SIZE: usize = 1 << 30;

/// The object at `path` of a file.
#[derive(Clone)]
pub struct Fields<'a> {
    file: &'static str,
    path: String,
    map: &'a Map<String, Value>,
}

/// The object that a file holds.
pub fn parse(file: &'static str, text: &str) -> Result<Map<String, Value>, Diagnostic> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Diagnostic::new("config::json", format!("must be an object, not {}", kind(&other))).at(file)),
        Err(e) => Err(Diagnostic::new("config::json", format!("is not JSON: {e}"))
            .at(file)
            .help("Python's NaN and Infinity are no JSON either.")),
    }
}

impl<'a> Fields<'a> {
    pub fn new(file: &'static str, map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { file, path: String::new(), map }
    }

    /// Whether the field is there, `null` or not.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The field's value, unless it is absent or `null`.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    pub fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// A fault of this field.
    pub fn fault(&self, code: &'static str, name: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(code, message).at(format!("{}: {}{name}", self.file, self.path))
    }

    fn wrong(&self, name: &str, wanted: &str, found: &Value) -> Diagnostic {
        self.fault("config::value", name, format!("must be {wanted}, not {}", kind(found)))
    }

    pub fn missing(&self, name: &str) -> Diagnostic {
        self.fault("config::missing", name, "is missing")
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Diagnostic> {
        self.read(name, "an object", |v| {
            v.as_object().map(|map| Fields { file: self.file, path: format!("{}{name}.", self.path), map })
        })
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, Diagnostic> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Diagnostic> {
        self.read(name, "a text", |v| v.as_str())
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, Diagnostic> {
        self.read(name, "a list of texts", |v| v.as_array()?.iter().map(|t| t.as_str()).collect())
    }

    /// A whole number of at least one.
    pub fn size(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        let wanted = format!("a whole number from 1 to {MAX_SIZE}");
        self.read(name, &wanted, |v| size(v).filter(|&n| n > 0))
    }

    pub fn needed_size(&self, name: &str) -> Result<usize, Diagnostic> {
        self.size(name)?.ok_or_else(|| self.missing(name))
    }

    /// A whole number of at least one; 0 and -1 are as good as `null`.
    pub fn size_or_none(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        if self.get(name).and_then(Value::as_i64) == Some(-1) {
            return Ok(None);
        }
        let wanted = format!("null, -1 or a whole number up to {MAX_SIZE}");
        Ok(self.read(name, &wanted, size)?.filter(|&n| n > 0))
    }

    /// A finite number above zero.
    pub fn positive(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        self.read(name, "a number above 0", |v| v.as_f64().filter(|n| n.is_finite() && *n > 0.0))
    }

    /// A finite number that is not negative.
    pub fn not_negative(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        self.read(name, "a number of at least 0", |v| v.as_f64().filter(|n| n.is_finite() && *n >= 0.0))
    }

    /// A finite number, where zero is as good as `null`.
    pub fn positive_or_none(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        Ok(self.not_negative(name)?.filter(|&n| n > 0.0))
    }

    /// One token id, a list of them, or none; -1 is none.
    pub fn tokens(&self, name: &str) -> Result<Vec<u32>, Diagnostic> {
        let one = |v: &Value| match v.as_i64() {
            Some(-1) => Some(None),
            _ => v.as_u64().and_then(|n| u32::try_from(n).ok()).map(Some),
        };
        let read = self.read(name, "a token id or a list of token ids", |v| match v.as_array() {
            Some(list) => list.iter().map(one).collect::<Option<Vec<_>>>(),
            None => one(v).map(|id| vec![id]),
        })?;
        Ok(read.unwrap_or_default().into_iter().flatten().collect())
    }

    fn read<T>(&self, name: &str, wanted: &str, f: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Diagnostic> {
        self.get(name).map(|v| f(v).ok_or_else(|| self.wrong(name, wanted, v))).transpose()
    }
}

fn size(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= MAX_SIZE)
}

/// A value for a message: itself if it is short.
fn kind(v: &Value) -> String {
    match v {
        Value::Object(_) => "an object".into(),
        Value::Array(list) if list.len() > 4 => format!("a list of {}", list.len()),
        Value::String(s) => format!("the text {s:?}"),
        other => other.to_string(),
    }
}
