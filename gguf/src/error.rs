//! Why a file cannot be read, and what is wrong with it.
use std::path::PathBuf;

use crate::types::Type;

/// Why a file, or what it describes, cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum GgufError {
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} changed while it was read: {detail}")]
    Changed { path: PathBuf, detail: String },
    #[error("{path} is not a sound GGUF file: {fault}")]
    Malformed { path: PathBuf, fault: Fault },
    #[error("{path} is not a sound part of a model: {fault}")]
    Part { path: PathBuf, fault: PartFault },
    #[error("tensor `{name}` is in both {first} and {second}")]
    Twice { name: String, first: PathBuf, second: PathBuf },
    #[error("the file has no tensor `{name}`")]
    NoTensor { name: String },
    #[error("tensor `{name}` has shape {found:?}, but the model needs {want}")]
    Shape { name: String, found: Vec<usize>, want: String },
    #[error("tensor `{name}` is none of a model of `{architecture}`")]
    Unnamed { name: String, architecture: &'static str },
    #[error("two tensors of the file are `{name}` of the model")]
    Same { name: String },
    #[error("the file has no `{key}`")]
    NoKey { key: String },
    #[error("`{key}` {fault}")]
    Key { key: String, fault: KeyFault },
    #[error("`general.architecture` is {found:?}, which is not supported; supported are {known}")]
    Architecture { found: String, known: String },
    #[error("`{key}` is {found:?}, which is not supported; supported are {known}")]
    Unknown { key: String, found: String, known: String },
    #[error("the tokenizer's {what}")]
    Tokenizer { what: String },
}

/// What is wrong with a value of the metadata.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum KeyFault {
    #[error("must be {want}, not {found}")]
    Kind { want: &'static str, found: &'static str },
    #[error("is {found}, and must be {want}")]
    Value { want: String, found: String },
    #[error("has {found} elements, and must have {want}")]
    Elements { want: usize, found: usize },
}

/// What is wrong with the bytes of a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum Fault {
    #[error("it does not begin with `GGUF`")]
    Magic,
    #[error("its numbers are big-endian, which is not supported")]
    BigEndian,
    #[error("it is of version {found}; versions 2 and 3 are supported")]
    Version { found: u32 },
    #[error("it is cut short inside its header")]
    CutShort,
    #[error("its header has more than {most} bytes, more than any model's")]
    HeaderTooLarge { most: u64 },
    #[error("{what} has the length {count}, and {left} bytes follow")]
    Length { what: String, count: u64, left: u64 },
    #[error("it has {count} {what}, more than any model's")]
    Count { what: &'static str, count: u64 },
    #[error("{what} is not UTF-8")]
    Utf8 { what: String },
    #[error("`{key}` is of the unknown type {id}")]
    ValueType { key: String, id: u32 },
    #[error("`{key}` is an array of arrays, which is not supported")]
    Nested { key: String },
    #[error("`{key}` has the truth value {found}")]
    Flag { key: String, found: u8 },
    #[error("`{key}` is there twice")]
    TwiceKey { key: String },
    #[error("`general.alignment` must be a power of two, not {found}")]
    Alignment { found: String },
    #[error("tensor `{name}` is there twice")]
    TwiceTensor { name: String },
    #[error("tensor `{name}` has {found} dimensions, and may have four")]
    Dimensions { name: String, found: u32 },
    #[error("tensor `{name}` has a dimension of zero")]
    Empty { name: String },
    #[error("tensor `{name}` is too large: its dimensions are {found:?}")]
    TooLarge { name: String, found: Vec<u64> },
    #[error("tensor `{name}` is of type {found}, which is not supported; supported are {}", Type::names())]
    Type { name: String, found: String },
    #[error("tensor `{name}` has rows of {found} elements, and blocks of {block}")]
    Row { name: String, found: u64, block: usize },
    #[error("tensor `{name}` begins at {found}, which is no multiple of {alignment}")]
    Misaligned { name: String, found: u64, alignment: u64 },
    #[error("tensor `{name}` ends after the end of the file")]
    Outside { name: String },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
}

/// What is wrong with one of several files.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum PartFault {
    #[error("it is one of {count} files, and its name does not end in `-00001-of-{count:05}.gguf` or such")]
    Name { count: u64 },
    #[error("its name says {named} files, and `split.count` {found}")]
    Files { named: u64, found: u64 },
    #[error("its name says file {named}, and `split.no` {found} from zero on")]
    Number { named: u64, found: u64 },
    #[error("all files have {found} tensors, and `split.tensors.count` is {want}")]
    Tensors { found: usize, want: u64 },
}
