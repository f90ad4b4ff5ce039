//! The metadata of a file: values by their keys.
use std::collections::BTreeMap;

use crate::error::{GgufError, KeyFault};

/// A type of numbers in metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    U64,
    I64,
    F64,
}

impl Scalar {
    /// The type of this number in files.
    pub fn of(id: u32) -> Option<Scalar> {
        use Scalar::*;
        let all = [(0, U8), (1, I8), (2, U16), (3, I16), (4, U32), (5, I32), (6, F32), (7, Flag)];
        let wide = [(10, U64), (11, I64), (12, F64)];
        all.into_iter().chain(wide).find(|(other, _)| *other == id).map(|(_, scalar)| scalar)
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Flag => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }

    /// The value of a number's bytes.
    pub fn value(self, bytes: &[u8]) -> Value {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(all);
        match self {
            Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => Value::Whole(word.into()),
            Scalar::I8 => Value::Whole((word as i8).into()),
            Scalar::I16 => Value::Whole((word as i16).into()),
            Scalar::I32 => Value::Whole((word as i32).into()),
            Scalar::I64 => Value::Whole((word as i64).into()),
            Scalar::F32 => Value::Real(shortest(f32::from_bits(word as u32))),
            Scalar::F64 => Value::Real(f64::from_bits(word)),
            Scalar::Flag => Value::Flag(word != 0),
        }
    }
}

/// The number with the fewest digits that is this one in 32 bits: what the writer of a
/// configuration wrote, as 1e-6 and not 9.999999974752427e-7.
pub(crate) fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number of any size.
    Whole(i128),
    /// A number of 32 or 64 bits. One of 32 is the shortest decimal that reads as it.
    Real(f64),
    /// Whether something is so.
    Flag(bool),
    /// A text.
    Text(String),
    /// Several values of one type.
    List(List),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Whole(_) => "a whole number",
            Value::Real(_) => "a number",
            Value::Flag(_) => "true or false",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
        }
    }
}

/// Several values of one type, in as many bytes as a file has for them.
#[derive(Clone, Debug, PartialEq)]
pub struct List(pub(crate) Elements);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    Numbers(Scalar, Vec<u8>),
    /// All texts, and where each ends.
    Texts(String, Vec<usize>),
}

impl List {
    /// The number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Elements::Numbers(scalar, bytes) => bytes.len() / scalar.size(),
            Elements::Texts(_, ends) => ends.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values, if they are no texts.
    pub fn numbers(&self) -> Option<impl ExactSizeIterator<Item = Value> + '_> {
        let Elements::Numbers(scalar, bytes) = &self.0 else { return None };
        Some(bytes.chunks_exact(scalar.size()).map(|bytes| scalar.value(bytes)))
    }

    /// All values, if they are texts.
    pub fn texts(&self) -> Option<impl ExactSizeIterator<Item = &str>> {
        let Elements::Texts(all, ends) = &self.0 else { return None };
        let begin = move |at: usize| if at == 0 { 0 } else { ends[at - 1] };
        Some(ends.iter().enumerate().map(move |(at, &end)| &all[begin(at)..end]))
    }
}

/// The values of a file, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub(crate) BTreeMap<String, Value>);

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All keys with their values, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A text, if there is such a key.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Whether something is so, if there is such a key.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read(key, "true or false", |value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A whole number that is not negative, if there is such a key.
    pub fn size(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.read(key, "a whole number that is not negative", |value| match value {
            Value::Whole(whole) => u64::try_from(*whole).ok(),
            _ => None,
        })
    }

    /// A finite number, if there is such a key.
    pub fn real(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.read(key, "a finite number", |value| match value {
            Value::Real(real) if real.is_finite() => Some(*real),
            Value::Whole(whole) => Some(*whole as f64),
            _ => None,
        })
    }

    /// A list of texts, if there is such a key.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        self.read(key, "a list of texts", |value| match value {
            Value::List(list) => Some(list.texts()?.collect()),
            _ => None,
        })
    }

    /// A list of whole numbers that are not negative, if there is such a key.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        let size = |value| match value {
            Value::Whole(whole) => u64::try_from(whole).ok(),
            Value::Flag(flag) => Some(flag.into()),
            _ => None,
        };
        self.read(key, "a list of whole numbers that are not negative", |value| match value {
            Value::List(list) => list.numbers()?.map(size).collect(),
            _ => None,
        })
    }

    /// A list of numbers, if there is such a key.
    pub fn reals(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        let real = |value| match value {
            Value::Real(real) => Some(real),
            Value::Whole(whole) => Some(whole as f64),
            _ => None,
        };
        self.read(key, "a list of numbers", |value| match value {
            Value::List(list) => list.numbers()?.map(real).collect(),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let fault = || GgufError::Key { key: key.to_owned(), fault: KeyFault::Kind { want, found: value.kind() } };
        read(value).map(Some).ok_or_else(fault)
    }
}
