//! A safetensors file that reads its numbers when they are wanted.
//!
//! It is not mapped: a read of a map past the end of a file that has shrunk ends the process. The
//! file's state at opening is compared with its state when all has been read.
use super::stored::{Numbers, Stored};
use super::{CheckpointError, describe};
use atomc_artifact::files;
use safetensors::tensor::{Metadata, SafeTensorError, TensorInfo};
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest header that the safetensors crate takes for one.
const MAX_HEADER: u64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
    opened: State,
    header: Metadata,
    /// Offset of the numbers in the file.
    start: u64,
}

/// Facts of a file that a write changes.
#[derive(Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: (i64, i64),
}

/// The fields of a header, tensors being in any order.
#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "__metadata__")]
    metadata: Option<HashMap<String, String>>,
    #[serde(flatten)]
    tensors: HashMap<String, TensorInfo>,
}

impl Shard {
    /// Opens a file and reads its header.
    pub fn open(path: PathBuf) -> Result<Shard, CheckpointError> {
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let malformed = |error| CheckpointError::Malformed { path: path.clone(), detail: describe(error) };
        let file = files::open(&path).map_err(io)?;
        let opened = State::of(&file).map_err(io)?;
        let mut len = [0; size_of::<u64>()];
        let before = len.len() as u64;
        if opened.bytes < before {
            return Err(malformed(SafeTensorError::HeaderTooSmall));
        }
        file.read_exact_at(&mut len, 0).map_err(io)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER {
            return Err(malformed(SafeTensorError::HeaderTooLarge));
        }
        if before + len > opened.bytes {
            return Err(malformed(SafeTensorError::InvalidHeaderLength));
        }
        let mut json = vec![0; len as usize];
        file.read_exact_at(&mut json, before).map_err(io)?;
        let header = parse(&json).map_err(malformed)?;
        let start = before + len;
        if start.checked_add(header.data_len() as u64) != Some(opened.bytes) {
            return Err(malformed(SafeTensorError::MetadataIncompleteBuffer));
        }
        Ok(Shard { path, file, opened, header, start })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &Metadata {
        &self.header
    }

    /// The numbers of a tensor of the header.
    pub fn stored(&self, (start, end): (usize, usize)) -> Stored<'_> {
        Stored::new(self, self.start + start as u64, end - start)
    }

    /// Fails if the file was written to since it was opened.
    pub fn check(&self) -> Result<(), CheckpointError> {
        let path = || self.path.clone();
        let now = State::of(&self.file).map_err(|source| CheckpointError::Io { path: path(), source })?;
        if now.bytes != self.opened.bytes {
            let detail = format!("it has {} bytes, and had {}", now.bytes, self.opened.bytes);
            return Err(CheckpointError::Changed { path: path(), detail });
        }
        match now == self.opened {
            true => Ok(()),
            false => Err(CheckpointError::Changed { path: path(), detail: "it was written to".to_owned() }),
        }
    }
}

impl Numbers for Shard {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        self.file.read_exact_at(out, at).map_err(|source| match self.check() {
            Err(changed) => changed,
            Ok(()) => CheckpointError::Io { path: self.path.clone(), source },
        })
    }
}

impl State {
    fn of(file: &File) -> std::io::Result<State> {
        let found = file.metadata()?;
        Ok(State { bytes: found.len(), modified: (found.mtime(), found.mtime_nsec()) })
    }
}

/// Reads a header as the crate does. The crate itself wants the numbers after the header too.
fn parse(json: &[u8]) -> Result<Metadata, SafeTensorError> {
    let text = std::str::from_utf8(json).map_err(SafeTensorError::InvalidHeader)?;
    let fields: Fields = serde_json::from_str(text).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    let mut tensors: Vec<(String, TensorInfo)> = fields.tensors.into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    Metadata::new(fields.metadata, tensors)
}
