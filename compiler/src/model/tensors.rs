//! The tensors of a GGUF file under the names of Hugging Face, as a source of weights.
//!
//! Numbers become floats when they are read, part by part (`Origin::part`): a tensor is never whole
//! in memory, and the runtime rounds the floats once, to the type of its weights. Parts that are
//! more than a row are read by several threads, a few rows each, so the last few are kept.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atomc_gguf::{Gguf, GgufError, Origin, origins};
use atomc_runtime::checkpoint::{Float, Numbers, Stored, Tensor};
use atomc_runtime::{CheckpointError, Source};

/// The most parts that are kept.
const KEPT: usize = 4;
/// Bytes of a float.
const FLOAT: usize = size_of::<f32>();

/// All tensors of a file, sorted by their names.
pub struct Tensors {
    file: Arc<File>,
    all: Vec<Made>,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    gguf: Arc<Gguf>,
    /// Parts that were made last.
    kept: Mutex<Vec<Kept>>,
}

/// A part of a tensor, by their numbers.
#[derive(Debug)]
struct Kept {
    place: [usize; 2],
    floats: Arc<[f32]>,
}

/// A tensor, made when it is read.
#[derive(Debug)]
struct Made {
    file: Arc<File>,
    number: usize,
    origin: Origin,
}

impl Tensors {
    /// The tensors of an opened file.
    pub fn new(path: &Path, gguf: &Arc<Gguf>) -> Result<Tensors, GgufError> {
        let file = Arc::new(File { path: path.to_owned(), gguf: gguf.clone(), kept: Mutex::default() });
        let made = |(number, origin)| Made { file: file.clone(), number, origin };
        let all = origins(gguf)?.into_iter().enumerate().map(made).collect();
        Ok(Tensors { file, all })
    }
}

impl Source for Tensors {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Ok(at) = self.all.binary_search_by(|made| made.origin.name.as_str().cmp(name)) else {
            return Err(CheckpointError::Missing { names: vec![name.to_owned()] });
        };
        let made = &self.all[at];
        let found = &made.origin.shape;
        if found != shape {
            let (name, found) = (name.to_owned(), found.clone());
            return Err(CheckpointError::Shape { name, found, want: shape.to_vec() });
        }
        let bytes = found.iter().product::<usize>() * FLOAT;
        Ok(Tensor::Stored { float: Float::F32, numbers: Stored::new(made, 0, bytes) })
    }

    fn names(&self) -> Vec<&str> {
        self.all.iter().map(|made| made.origin.name.as_str()).collect()
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.file.gguf.check().map_err(|error| self.file.fault(error))
    }
}

impl Numbers for Made {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let (out, rest) = out.as_chunks_mut::<FLOAT>();
        assert!(rest.is_empty() && at.is_multiple_of(FLOAT as u64), "floats are read whole");
        let (mut at, mut out, size) = (at as usize / FLOAT, out, self.origin.part());
        while !out.is_empty() {
            let floats = self.part(at / size)?;
            let floats = &floats[at % size..];
            let (now, later) = out.split_at_mut(floats.len().min(out.len()));
            now.iter_mut().zip(floats).for_each(|(out, float)| *out = float.to_le_bytes());
            at += now.len();
            out = later;
        }
        Ok(())
    }
}

impl Made {
    /// A part of the tensor.
    fn part(&self, part: usize) -> Result<Arc<[f32]>, CheckpointError> {
        let make = || -> Result<Arc<[f32]>, CheckpointError> {
            let made = self.origin.floats_of(&self.file.gguf, part);
            made.map(Arc::from).map_err(|error| self.file.fault(error))
        };
        if self.origin.row(0).is_some() {
            return make();
        }
        // Others wait for a part that is being made: they mostly want the same.
        let mut kept = self.file.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = [self.number, part];
        if let Some(found) = kept.iter().find(|other| other.place == place) {
            return Ok(found.floats.clone());
        }
        let floats = make()?;
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(Kept { place, floats: floats.clone() });
        Ok(floats)
    }
}

impl File {
    fn fault(&self, error: GgufError) -> CheckpointError {
        match error {
            GgufError::Io { path, source } => CheckpointError::Io { path, source },
            GgufError::Changed { path, detail } => CheckpointError::Changed { path, detail },
            other => CheckpointError::Index { path: self.path.clone(), detail: other.to_string() },
        }
    }
}
