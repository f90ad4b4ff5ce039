//! A JSON object that is read field by field: every fault names its field, and each field's meaning
//! is noted.
use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::Diagnostic;

/// No size in a configuration may be larger: products of two of them do not overflow.
pub const MAX_SIZE: usize = 1 << 30;

/// The fault of a field without a value.
const NULL: &str = "is null, where the model needs a value";

/// The object at `path` of a file.
#[derive(Clone)]
pub struct Fields<'a> {
    file: &'static str,
    path: String,
    map: &'a Map<String, Value>,
    names: Names,
    notes: Rc<RefCell<Notes>>,
}

/// Other names of fields: one that some writers use, and the one in its place here.
pub type Names = &'static [(&'static str, &'static str)];

/// The notes of reading an object.
#[derive(Default)]
struct Notes {
    facts: Facts,
    /// Names of all fields that were looked at, with those of objects inside.
    asked: Vec<String>,
}

/// The meanings of fields by their names, with every default, in the order in which they were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(Vec<(&'static str, Value)>);

impl Facts {
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Replaces the fact of this name, or adds one after all others.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }
}

/// A reader of one field.
pub type Read<'a, T> = fn(&Fields<'a>, &str) -> Result<Option<T>, Diagnostic>;

/// The object that a file holds.
pub fn parse(file: &'static str, text: &str) -> Result<Map<String, Value>, Diagnostic> {
    // JSON has no words for them, and Python's writer no numbers.
    let read = serde_json::from_str(text).or_else(|fault| match worded(text) {
        Some(text) => serde_json::from_str(&text),
        None => Err(fault),
    });
    match read {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Diagnostic::new("config::json", format!("must be an object, not {}", kind(&other))).at(file)),
        Err(e) => Err(Diagnostic::new("config::json", format!("is not JSON: {e}")).at(file)),
    }
}

/// Numbers that are not finite, as Python's writer of JSON has them.
const NOT_FINITE: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// The text with numbers that are not finite as texts, if it has some. No reader of a number takes
/// a text, so such a number is a fault where it would count, and nothing elsewhere.
fn worded(text: &str) -> Option<String> {
    let (mut made, mut rest, mut found) = (String::with_capacity(text.len()), text, false);
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        let starts = !before.is_some_and(|c: char| c.is_alphanumeric() || "-+._".contains(c));
        let word = NOT_FINITE.iter().find(|word| starts && rest.starts_with(**word));
        let len = match (c, word) {
            ('"', _) => string(rest),
            (_, Some(word)) => word.len(),
            _ => c.len_utf8(),
        };
        let (part, behind) = rest.split_at(len);
        match word {
            Some(_) => made.extend(["\"", part, "\""]),
            None => made.push_str(part),
        }
        found |= word.is_some();
        (before, rest) = (part.chars().last(), behind);
    }
    found.then_some(made)
}

/// The length of the string of JSON that a text begins with.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

impl<'a> Fields<'a> {
    pub fn new(file: &'static str, map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { file, path: String::new(), map, names: &[], notes: Rc::default() }
    }

    /// The same object, with fields that may have other names: the maker's, which are read first.
    pub fn named(&self, names: Names) -> Fields<'a> {
        Fields { names, ..self.clone() }
    }

    /// The notes so far.
    pub fn facts(&self) -> Facts {
        self.notes.borrow().facts.clone()
    }

    /// The fields that have been looked at so far.
    #[cfg(test)]
    pub fn asked(&self) -> Vec<String> {
        self.notes.borrow().asked.clone()
    }

    /// Notes the meaning of a field, or of several together under this name. Models are compared by
    /// these notes.
    pub fn note(&self, name: &'static str, value: impl Into<Value>) {
        self.notes.borrow_mut().facts.set(name, value);
    }

    fn found(&self, name: &str) -> Option<&'a Value> {
        let full = format!("{}{name}", self.path);
        let asked = &mut self.notes.borrow_mut().asked;
        if !asked.contains(&full) {
            asked.push(full);
        }
        let makers = self.names.iter().filter(|(_, usual)| *usual == name).filter_map(|(own, _)| self.map.get(*own));
        // A framework's class has a default of its own under the usual name beside it.
        makers.into_iter().find(|value| !value.is_null()).or_else(|| self.map.get(name))
    }

    /// The field's value, noted; without it the default.
    pub fn or<T: Clone + Into<Value>>(
        &self,
        name: &'static str,
        read: Read<'a, T>,
        default: T,
    ) -> Result<T, Diagnostic> {
        let value = self.given(name, read, default)?;
        self.note(name, value.clone());
        Ok(value)
    }

    /// The field's value; without it the default. `null` is a fault, as in transformers, except for
    /// flags.
    pub fn given<T: Clone + Into<Value>>(&self, name: &str, read: Read<'a, T>, default: T) -> Result<T, Diagnostic> {
        let usual: Value = default.clone().into();
        match read(self, name)? {
            Some(value) => Ok(value),
            None if self.has(name) && !usual.is_boolean() => {
                Err(self.fault("config::value", name, NULL).help(format!("Without the field it would be {usual}.")))
            }
            None => Ok(default),
        }
    }

    /// The field's value, noted; without it a fault.
    pub fn needed<T: Clone + Into<Value>>(&self, name: &'static str, read: Read<'a, T>) -> Result<T, Diagnostic> {
        let value = read(self, name)?.ok_or_else(|| self.missing(name))?;
        self.note(name, value.clone());
        Ok(value)
    }

    /// The field's value, noted; without it the default, if there is one, else a fault.
    pub fn or_needed<T: Clone + Into<Value>>(
        &self,
        name: &'static str,
        read: Read<'a, T>,
        default: Option<T>,
    ) -> Result<T, Diagnostic> {
        match default {
            Some(default) => self.or(name, read, default),
            None => self.needed(name, read),
        }
    }

    /// Whether the field is there, `null` or not.
    pub fn has(&self, name: &str) -> bool {
        self.found(name).is_some()
    }

    /// The field's value, unless it is absent or `null`.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.found(name).filter(|v| !v.is_null())
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

    /// A field that has to be there, and is not, or is `null`.
    pub fn missing(&self, name: &str) -> Diagnostic {
        match self.has(name) {
            true => self.fault("config::value", name, NULL),
            false => self.fault("config::missing", name, "is missing"),
        }
    }

    /// A number that is this much at most.
    pub fn at_most(&self, name: &str, size: usize, most: usize) -> Result<usize, Diagnostic> {
        match size <= most {
            true => Ok(size),
            false => Err(self.fault("config::too-large", name, format!("must be at most {most}, not {size}"))),
        }
    }

    /// The meaning of the name that the field has.
    pub fn one_of<T: Copy>(&self, name: &str, default: &str, known: &[(&str, T)]) -> Result<T, Diagnostic> {
        let found = self.text(name)?.unwrap_or(default);
        known.iter().find(|(n, _)| *n == found).map(|(_, value)| *value).ok_or_else(|| {
            let names = known.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ");
            self.fault("config::value", name, format!("unknown value {found:?}")).help(format!("Known: {names}."))
        })
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Diagnostic> {
        self.read(name, "an object", |v| {
            let path = format!("{}{name}.", self.path);
            v.as_object().map(|map| Fields { file: self.file, path, map, names: &[], notes: self.notes.clone() })
        })
    }

    /// A list that the field has for every layer; perhaps also for layers that draft, which come
    /// last.
    pub fn of_layers<T>(&self, name: &str, mut list: Vec<T>, layers: usize) -> Result<Vec<T>, Diagnostic> {
        let drafting = |n: usize| n == list.len().wrapping_sub(layers);
        match list.len() == layers || self.number("num_nextn_predict_layers")?.is_some_and(drafting) {
            true => {
                list.truncate(layers);
                Ok(list)
            }
            false => {
                let message = format!("lists {} layers, num_hidden_layers is {layers}", list.len());
                Err(self.fault("config::value", name, message))
            }
        }
    }

    /// Whether each layer is of a type, and not `full_attention`, if `layer_types` lists them.
    pub fn layers_of_type(&self, ty: &str, layers: usize) -> Result<Option<Vec<bool>>, Diagnostic> {
        let name = "layer_types";
        let Some(types) = self.texts(name)? else { return Ok(None) };
        let of = |found: &&str| match *found {
            "full_attention" => Ok(false),
            found if found == ty => Ok(true),
            other => Err(self
                .fault("config::value", name, format!("unknown layer type {other:?}"))
                .help(format!("Known layer types: full_attention, {ty}."))),
        };
        self.of_layers(name, types, layers)?.iter().map(of).collect::<Result<_, _>>().map(Some)
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

    /// A list of 1 and 0, or true and false.
    pub fn marks(&self, name: &str) -> Result<Option<Vec<bool>>, Diagnostic> {
        let mark = |v: &Value| v.as_bool().or(v.as_u64().filter(|&n| n <= 1).map(|n| n == 1));
        self.read(name, "a list of 0 and 1", |v| v.as_array()?.iter().map(mark).collect())
    }

    /// A whole number of at least one.
    pub fn size(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        let wanted = format!("a whole number from 1 to {MAX_SIZE}");
        self.read(name, &wanted, |v| size(v).filter(|&n| n > 0))
    }

    /// A whole number, which may be zero.
    pub fn number(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        self.read(name, &format!("a whole number up to {MAX_SIZE}"), size)
    }

    /// A whole number, which may be zero; -1 is as good as `null`.
    pub fn number_or_none(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        if self.get(name).and_then(Value::as_i64) == Some(-1) {
            return Ok(None);
        }
        self.read(name, &format!("null, -1 or a whole number up to {MAX_SIZE}"), size)
    }

    /// A list of whole numbers, or a text with commas between them.
    pub fn enumerated(&self, name: &str) -> Result<Option<Vec<usize>>, Diagnostic> {
        let in_text = |text: &str| text.split(',').map(|number| number.trim().parse().ok()).collect();
        self.read(name, "a list of whole numbers", |v| match v.as_str() {
            Some(text) => in_text(text),
            None => v.as_array()?.iter().map(size).collect(),
        })
    }

    /// A list of whole numbers.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<usize>>, Diagnostic> {
        self.read(name, "a list of whole numbers", |v| v.as_array()?.iter().map(size).collect())
    }

    /// A whole number of at least one; 0 and -1 are as good as `null`.
    pub fn size_or_none(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        if self.get(name).and_then(Value::as_i64) == Some(-1) {
            return Ok(None);
        }
        let wanted = format!("null, -1 or a whole number up to {MAX_SIZE}");
        Ok(self.read(name, &wanted, size)?.filter(|&n| n > 0))
    }

    /// A number above zero, in f32 too.
    pub fn positive(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        let number = self.read(name, "a number above 0", |v| v.as_f64().filter(|n| *n > 0.0))?;
        number.map(|n| self.in_f32(name, n)).transpose()
    }

    /// A list of numbers above zero, in f32 too.
    pub fn positives(&self, name: &str) -> Result<Option<Vec<f64>>, Diagnostic> {
        let one = |v: &Value| v.as_f64().filter(|n| *n > 0.0);
        let numbers = self.read(name, "a list of numbers above 0", |v| v.as_array()?.iter().map(one).collect())?;
        numbers.map(|all: Vec<f64>| all.into_iter().map(|n| self.in_f32(name, n)).collect()).transpose()
    }

    /// A list of numbers above zero, in f32 too, where null and 0 are none.
    pub fn positives_or_none(&self, name: &str) -> Result<Option<Vec<Option<f64>>>, Diagnostic> {
        let number = |v: &Value| if v.is_null() { Some(0.0) } else { v.as_f64().filter(|n| *n >= 0.0) };
        let numbers =
            self.read(name, "a list of numbers of at least 0", |v| v.as_array()?.iter().map(number).collect())?;
        let one = |n: f64| if n == 0.0 { Ok(None) } else { self.in_f32(name, n).map(Some) };
        numbers.map(|all: Vec<f64>| all.into_iter().map(one).collect()).transpose()
    }

    /// A number above zero in f32 too, or none, for each layer.
    pub fn limits(&self, name: &'static str, layers: usize) -> Result<Vec<Option<f64>>, Diagnostic> {
        let limits = match self.positives_or_none(name)? {
            Some(limits) => self.of_layers(name, limits, layers)?,
            None => vec![None; layers],
        };
        self.note(name, &limits[..]);
        Ok(limits)
    }

    /// A whole number of at least one, or a list of as many for each layer.
    pub fn size_of_all(&self, name: &str) -> Result<Option<usize>, Diagnostic> {
        let wanted = format!("a whole number from 1 to {MAX_SIZE}, or a list of equal ones");
        self.read(name, &wanted, |v| {
            let all = v.as_array().map_or(std::slice::from_ref(v), Vec::as_slice);
            let first = all.first().and_then(size).filter(|&n| n > 0)?;
            all.iter().all(|other| size(other) == Some(first)).then_some(first)
        })
    }

    /// A number that is not negative, in f32 too.
    pub fn not_negative(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        let number = self.read(name, "a number of at least 0", |v| v.as_f64().filter(|n| *n >= 0.0))?;
        number.map(|n| if n == 0.0 { Ok(n) } else { self.in_f32(name, n) }).transpose()
    }

    /// A number above zero that is one in f32, with which kernels compute, and has an inverse
    /// there.
    fn in_f32(&self, name: &str, number: f64) -> Result<f64, Diagnostic> {
        let [least, most] = [f32::MIN_POSITIVE, f32::MAX];
        match (f64::from(least)..=f64::from(most)).contains(&number) {
            true => Ok(number),
            false => {
                let message = format!("{number:e} is not between {least:e} and {most:e}, as numbers of f32 are");
                Err(self.fault("config::value", name, message))
            }
        }
    }

    /// A finite number, where zero is as good as `null`.
    pub fn positive_or_none(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        Ok(self.not_negative(name)?.filter(|&n| n > 0.0))
    }

    /// A number below zero.
    pub fn negative_or_none(&self, name: &str) -> Result<Option<f64>, Diagnostic> {
        let number = self.read(name, "a number below 0", |v| v.as_f64().filter(|n| *n < 0.0))?;
        number.map(|n| self.in_f32(name, -n).map(|n| -n)).transpose()
    }

    /// A list of whole numbers of at least one.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>, Diagnostic> {
        let one = |v: &Value| size(v).filter(|&n| n > 0);
        self.read(name, "a list of whole numbers above 0", |v| v.as_array()?.iter().map(one).collect())
    }

    /// An object, or the first of a list of them.
    pub fn first(&self, name: &str) -> Result<Option<Fields<'a>>, Diagnostic> {
        self.read(name, "an object or a list of objects", |v| {
            let first = v.as_array().map_or(Some(v), |list| list.first())?;
            let path = format!("{}{name}.", self.path);
            first.as_object().map(|map| Fields { file: self.file, path, map, names: &[], notes: self.notes.clone() })
        })
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
        Value::String(s) if NOT_FINITE.contains(&s.as_str()) => s.clone(),
        Value::String(s) => format!("the text {s:?}"),
        other => other.to_string(),
    }
}
