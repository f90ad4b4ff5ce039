//! Sources of weights: a directory of safetensors, or random values instead.
//!
//! A [`Source`] finds tensors by name. [`crate::weights`] asks it for the tensors of an artifact's
//! weight plan.
mod beside;
mod random;
mod shard;
mod stored;

pub use beside::{Beside, whole_numbers};
#[cfg(test)]
pub(crate) use random::mix;
pub use random::{Random, Stream};
pub(crate) use shard::Shard;
pub use stored::{Numbers, Stored};

use atomc_artifact::files;
use atomc_artifact::manifest::{DType, TEXT};
use safetensors::tensor::{Dtype, SafeTensorError};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Something that has tensors.
pub trait Source: Sync {
    /// A tensor by name, which must have this shape.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError>;

    /// The names of all tensors, sorted. A source that makes tensors up has none.
    fn names(&self) -> Vec<&str>;

    /// The tensor that the numbers of one of this name are made of, if it is another one.
    fn origin<'n>(&self, name: &'n str) -> &'n str {
        name
    }

    /// To be asked when all has been read: fails if something else wrote to the source since it was
    /// opened.
    fn check(&self) -> Result<(), CheckpointError> {
        Ok(())
    }
}

/// The values of a tensor, row by row.
#[derive(Clone, Copy, Debug)]
pub enum Tensor<'a> {
    /// Little-endian numbers, of any alignment.
    Bytes {
        /// Their type.
        float: Float,
        /// One number after the other.
        bytes: &'a [u8],
    },
    /// A tensor in a file, or one that is made of a file's when it is read.
    Stored {
        /// Their type.
        float: Float,
        /// Where they lie.
        numbers: Stored<'a>,
    },
    /// Values of the plan itself.
    Values(&'a [f32]),
    /// Made up: element `i` is a function of the seed and `i`.
    Random(random::Stream),
    /// Numbers in the memory of a device.
    Device {
        /// Their type.
        float: Float,
        /// Where they lie.
        numbers: OnDevice,
    },
}

impl Tensor<'_> {
    /// Checks that a weight of a type can be made of the tensor of this name.
    pub(crate) fn check_becomes(&self, dtype: DType, name: impl fmt::Display) -> Result<(), CheckpointError> {
        let (becomes, found) = match self {
            Tensor::Bytes { float, .. } | Tensor::Stored { float, .. } | Tensor::Device { float, .. } => {
                (float.becomes(dtype), float.name())
            }
            Tensor::Values(_) => (dtype.is_float(), Float::F32.name()),
            Tensor::Random(_) => return Ok(()),
        };
        let fault = || CheckpointError::Code { name: name.to_string(), found, want: dtype.name() };
        if becomes { Ok(()) } else { Err(fault()) }
    }
}

/// Numbers in the memory of a device: the address of the first one, and the distance between rows
/// and between columns, counted in numbers.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice {
    /// Address of the first number, which the host must not follow.
    pub address: *const u8,
    /// Numbers, not bytes, from one row to the next. May be negative or 0.
    pub row_stride: isize,
    /// Numbers from one column to the next. May be negative or 0.
    pub col_stride: isize,
}

// SAFETY: an address, which only the device follows.
unsafe impl Send for OnDevice {}
// SAFETY: as above.
unsafe impl Sync for OnDevice {}

/// The types of number that a checkpoint may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// The upper half of an f32.
    BF16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64, which becomes f32 first in any weight.
    F64,
    /// What tells how other tensors are stored, or names something.
    I64,
    /// Codes of a weight, its scales or its zero points, which become a weight of this type as they
    /// are, and no other.
    Code(DType),
}

impl Float {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Float::BF16 | Float::F16 => 2,
            Float::F32 => 4,
            Float::F64 | Float::I64 => 8,
            Float::Code(dtype) => dtype.size(),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Float::BF16 => DType::BF16.name(),
            Float::F16 => DType::F16.name(),
            Float::F32 => DType::F32.name(),
            Float::F64 => "f64",
            Float::I64 => "i64",
            Float::Code(dtype) => dtype.name(),
        }
    }

    /// The type of numbers that a file has, if weights may be of it.
    fn of(dtype: Dtype) -> Option<Float> {
        match dtype {
            Dtype::BF16 => Some(Float::BF16),
            Dtype::F16 => Some(Float::F16),
            Dtype::F32 => Some(Float::F32),
            Dtype::F64 => Some(Float::F64),
            Dtype::F8_E4M3 => Some(Float::Code(DType::F8E4M3)),
            Dtype::F8_E8M0 => Some(Float::Code(DType::E8M0)),
            Dtype::I8 => Some(Float::Code(DType::I8)),
            Dtype::U8 => Some(Float::Code(DType::U8)),
            Dtype::I32 => Some(Float::Code(DType::I32)),
            Dtype::I64 => Some(Float::I64),
            _ => None,
        }
    }

    /// Whether a weight of a type can be made of these numbers. Formats that have no name for
    /// powers of two store them as bytes, and some have two codes in a byte with a sign.
    pub(crate) fn becomes(self, dtype: DType) -> bool {
        match self {
            Float::Code(DType::U8) => matches!(dtype, DType::U8 | DType::E8M0),
            // Whole numbers that name something, which a plan checks.
            Float::Code(DType::I32) => matches!(dtype, DType::I32 | DType::F32),
            Float::Code(DType::I8) => matches!(dtype, DType::I8 | DType::U8),
            Float::Code(DType::E8M0) => matches!(dtype, DType::E8M0 | DType::F32),
            Float::Code(own) => own == dtype,
            Float::I64 => dtype == DType::F32,
            _ => dtype.is_float(),
        }
    }
}

/// Why weights cannot be read, packed or written. Of a load that fails with `Io`, `Changed` or
/// `Damaged` some weights may be new already, of one that fails otherwise none are.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum CheckpointError {
    #[error("no checkpoint in {path}: neither {SINGLE} nor {INDEX} is there")]
    NotACheckpoint { path: PathBuf },
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} changed while it was read: {detail}")]
    Changed { path: PathBuf, detail: String },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} holds weights packed for {field} {found}, not {want}")]
    PackedFor { path: PathBuf, field: &'static str, found: String, want: String },
    #[error(
        "{path} holds packed weights of version {found}, but this atomc reads version {supported}: pack the checkpoint again"
    )]
    PackedVersion { path: PathBuf, found: u32, supported: u32 },
    #[error("{path} is damaged: bytes {} to {} of weight {number}, `{weight}`, have another checksum", bytes.start, bytes.end)]
    Damaged { path: PathBuf, number: usize, weight: String, bytes: Range<usize> },
    #[error("{path} is not a sound safetensors file: {detail}")]
    Malformed { path: PathBuf, detail: String },
    #[error("{path}: {detail}")]
    Index { path: PathBuf, detail: String },
    #[error("tensor `{name}` is in both {first} and {second}")]
    Duplicate { name: String, first: PathBuf, second: PathBuf },
    #[error("the checkpoint lacks {} that the model needs: {}", tensors(names.len()), list(names))]
    Missing { names: Vec<String> },
    #[error("the checkpoint has {} that the model does not use: {}", tensors(names.len()), list(names))]
    Unused { names: Vec<String> },
    #[error("the checkpoint has both `{whole}` and `{one}`, which are the same weights: one or the other may be there")]
    Twice { whole: String, one: String },
    #[error(
        "`lm_head.weight` of the checkpoint is not the embedding, which the artifact takes in its place; \
         compiled with `tie_word_embeddings` false it has a head of its own"
    )]
    Untied,
    #[error("tensor `{name}` has shape {found:?}, but the model needs {want:?}")]
    Shape { name: String, found: Vec<usize>, want: Vec<usize> },
    #[error("tensor `{name}` has {bytes} bytes, but its shape and type take {want}")]
    Size { name: String, bytes: usize, want: usize },
    #[error("tensor `{name}` is in the memory of a device, from which nothing is packed here")]
    Place { name: String },
    #[error(
        "tensor `{name}` is of type {found}; weights may be BF16, F16, F32, F64, F8_E4M3, F8_E8M0, I8, U8, I32 or I64"
    )]
    DType { name: String, found: String },
    #[error("tensor `{name}` is of type {found}, of which no weight of type {want} can be made")]
    Code { name: String, found: &'static str, want: &'static str },
    #[error("tensor `{name}` is of type {found}, but must be integers")]
    Integers { name: String, found: &'static str },
    #[error(
        "the artifact makes {made} bytes of weights of {read} bytes of tensors, and {most} are the most that a model needs"
    )]
    TooMuch { made: usize, read: usize, most: usize },
    #[error("tensor `{name}` is not as the model needs it: {detail}")]
    Told { name: String, detail: String },
    #[error("tensor `{name}` has the scale {scale} at {at:?}; scales must be finite and not negative")]
    Scale { name: String, scale: f32, at: [usize; 2] },
    #[error("tensor `{name}` has a scale of zero at {at:?}, where the weight is not zero")]
    ZeroScale { name: String, at: [usize; 2] },
    #[error("tensor `{name}` has numbers that are not finite, of which no codes are made")]
    NotFinite { name: String },
    #[error("tensor `{name}` has codes that are no numbers")]
    NotANumber { name: String },
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

pub(crate) fn tensors(count: usize) -> String {
    if count == 1 { "a tensor".to_owned() } else { format!("{count} tensors") }
}

/// The first few names.
pub(crate) fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

/// A directory as Hugging Face lays it out: `model.safetensors`, or shards with
/// `model.safetensors.index.json`.
///
/// The files stay open and are read when numbers are wanted. They must not change until then:
/// [`Source::check`] says whether they did. Files that others replace by new ones of the same names
/// do no harm.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// The range of the numbers in the file.
    place: (usize, usize),
}

impl Checkpoint {
    /// Opens the files of a directory and reads their headers. Values are read on demand.
    pub fn open(dir: impl AsRef<Path>) -> Result<Checkpoint, CheckpointError> {
        let dir = dir.as_ref();
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: BTreeMap::new() };
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        if single.exists() {
            checkpoint.add(single)?;
        } else if index.exists() {
            checkpoint.add_indexed(dir, index)?;
        } else {
            return Err(CheckpointError::NotACheckpoint { path: dir.to_owned() });
        }
        Ok(checkpoint)
    }

    /// One file.
    pub fn file(path: PathBuf) -> Result<Checkpoint, CheckpointError> {
        let mut checkpoint = Checkpoint { shards: Vec::new(), tensors: BTreeMap::new() };
        checkpoint.add(path)?;
        Ok(checkpoint)
    }

    /// The shape of a tensor, if there is one of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|entry| &entry.shape[..])
    }

    fn add_indexed(&mut self, dir: &Path, path: PathBuf) -> Result<(), CheckpointError> {
        let text = files::read(&path).map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
        let fault = |detail: String| CheckpointError::Index { path: path.clone(), detail };
        let index: Index = serde_json::from_slice(&text).map_err(|error| fault(error.to_string()))?;
        let files: std::collections::BTreeSet<&String> = index.weight_map.values().collect();
        for file in files {
            if Path::new(file).file_name() != Some(file.as_ref()) {
                return Err(fault(format!("`{file}` is not the name of a file in the same directory")));
            }
            self.add(dir.join(file))?;
        }
        for (name, file) in &index.weight_map {
            let found = self.tensors.get(name).map(|entry| self.shards[entry.shard].path());
            if found != Some(&*dir.join(file)) {
                return Err(fault(format!("tensor `{name}` is not in {file}")));
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let shard = Shard::open(path)?;
        for (name, info) in shard.header().tensors() {
            let place = info.data_offsets;
            let entry = Entry { shard: self.shards.len(), dtype: info.dtype, shape: info.shape.clone(), place };
            if let Some(other) = self.tensors.insert(name.clone(), entry) {
                let first = self.shards[other.shard].path().to_owned();
                return Err(CheckpointError::Duplicate { name, first, second: shard.path().to_owned() });
            }
        }
        self.shards.push(shard);
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether a shape of a file is one that is wanted. A number has an axis there or none, as tools
/// write scales of tensors. A text has any size.
pub(crate) fn are_alike(found: &[usize], wanted: &[usize]) -> bool {
    let is_text = wanted == [TEXT] && matches!(found, &[size] if size <= TEXT);
    found == wanted || found.is_empty() && wanted == [1] || is_text
}

impl Source for Checkpoint {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Some(entry) = self.tensors.get(name) else {
            return Err(CheckpointError::Missing { names: vec![name.to_owned()] });
        };
        if !are_alike(&entry.shape, shape) {
            return Err(CheckpointError::Shape {
                name: name.to_owned(),
                found: entry.shape.clone(),
                want: shape.to_vec(),
            });
        }
        let Some(float) = Float::of(entry.dtype) else {
            return Err(CheckpointError::DType { name: name.to_owned(), found: format!("{:?}", entry.dtype) });
        };
        Ok(Tensor::Stored { float, numbers: self.shards[entry.shard].stored(entry.place) })
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.shards.iter().try_for_each(Shard::check)
    }
}

/// The faults of a file in words; the crate's own messages are names of enum variants.
pub(crate) fn describe(error: SafeTensorError) -> String {
    match error {
        SafeTensorError::HeaderTooSmall | SafeTensorError::InvalidHeaderLength => {
            "it is cut short inside its header".to_owned()
        }
        SafeTensorError::HeaderTooLarge => "its header is too large to be one".to_owned(),
        SafeTensorError::InvalidHeader(_) | SafeTensorError::InvalidHeaderDeserialization(_) => {
            format!("its header does not parse: {error}")
        }
        SafeTensorError::InvalidOffset(name) => format!("the bytes of tensor `{name}` do not follow those before it"),
        SafeTensorError::TensorInvalidInfo | SafeTensorError::MisalignedSlice => {
            "a tensor's shape does not agree with the number of its bytes".to_owned()
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            "its size is not what its header says: it is cut short, or more was appended".to_owned()
        }
        SafeTensorError::ValidationOverflow => "a tensor's shape is too large".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
