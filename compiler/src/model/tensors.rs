//! The tensors of a GGUF file under the names of Hugging Face, as a source of weights.
//!
//! Numbers become floats when they are read, part by part (`Origin::part`): a tensor is never whole
//! in memory, and the runtime rounds the floats once, to the type of its weights. Parts that are
//! more than a row are read by several threads, a few rows each, so the last few are kept.
//!
//! Numbers that stay codes are tensors of their own, made row by row of the blocks of the file:
//! `NAME.TYPE.codes`, `NAME.TYPE.scales` and `NAME.TYPE.least`. An artifact that was compiled of a
//! file asks for these, and so names the type that it takes.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atomc_artifact::manifest::DType;
use atomc_gguf::{Coded, Gguf, GgufError, Origin, Piece, Split, Type, origins};
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
    origin: Arc<Origin>,
    /// Its pieces, if its numbers may stay codes.
    pieces: Vec<Taken>,
}

/// A piece of the blocks of a tensor, taken apart when it is read.
#[derive(Debug)]
struct Taken {
    file: Arc<File>,
    origin: Arc<Origin>,
    kind: Type,
    coded: Coded,
    piece: Piece,
}

impl Tensors {
    /// The tensors of an opened file.
    pub fn new(path: &Path, gguf: &Arc<Gguf>) -> Result<Tensors, GgufError> {
        let file = Arc::new(File { path: path.to_owned(), gguf: gguf.clone(), kept: Mutex::default() });
        let made = |(number, origin): (usize, Origin)| {
            let (kind, origin) = (origin.kind(gguf)?, Arc::new(origin));
            let coded = kind.and_then(|kind| Some((kind, kind.coded()?)));
            let pieces = |(kind, coded): (Type, Coded)| {
                let all = Piece::ALL.into_iter().filter(move |&piece| coded.has(piece));
                let (file, origin) = (file.clone(), origin.clone());
                all.map(move |piece| Taken { file: file.clone(), origin: origin.clone(), kind, coded, piece })
            };
            Ok(Made { file: file.clone(), number, pieces: coded.into_iter().flat_map(pieces).collect(), origin })
        };
        let all = origins(gguf)?.into_iter().enumerate().map(made).collect::<Result<_, _>>()?;
        Ok(Tensors { file, all })
    }

    fn made(&self, name: &str) -> Option<&Made> {
        let found = self.all.binary_search_by(|made| made.origin.name.as_str().cmp(name));
        found.ok().map(|at| &self.all[at])
    }

    /// A piece of a tensor by its name, which has the type of the file.
    fn piece(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let missing = |name: &str| CheckpointError::Missing { names: vec![name.to_owned()] };
        let (of, want, piece) = parsed(name).ok_or_else(|| missing(name))?;
        let made = self.made(of).ok_or_else(|| missing(of))?;
        let found = made.pieces.first().map_or(DType::F32.name(), |taken| taken.kind.name());
        if found != want.name() {
            return Err(CheckpointError::Code { name: of.to_owned(), found, want: want.name() });
        }
        let taken = made.pieces.iter().find(|taken| taken.piece == piece).ok_or_else(|| missing(name))?;
        let found = taken.shape();
        if found != shape {
            return Err(CheckpointError::Shape { name: name.to_owned(), found, want: shape.to_vec() });
        }
        let (bytes, float) = (found.iter().product::<usize>() * taken.dtype().size(), taken.float());
        Ok(Tensor::Stored { float, numbers: Stored::new(taken, 0, bytes) })
    }
}

/// The tensor, the type and the piece that a name means.
fn parsed(name: &str) -> Option<(&str, Type, Piece)> {
    let (rest, end) = name.rsplit_once('.')?;
    let (of, kind) = rest.rsplit_once('.')?;
    let piece = Piece::ALL.into_iter().find(|piece| piece.name() == end)?;
    let kind = Type::ALL.iter().copied().find(|other| other.name() == kind)?;
    Some((of, kind, piece))
}

impl Source for Tensors {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Some(made) = self.made(name) else { return self.piece(name, shape) };
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

    fn origin<'n>(&self, name: &'n str) -> &'n str {
        parsed(name).map_or(name, |(of, ..)| of)
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

impl Taken {
    fn dtype(&self) -> DType {
        self.coded.dtype(self.piece)
    }

    /// The type as checkpoints have it.
    fn float(&self) -> Float {
        match self.dtype() {
            DType::F32 => Float::F32,
            DType::F16 => Float::F16,
            code => Float::Code(code),
        }
    }

    /// Numbers of a row.
    fn width(&self) -> usize {
        self.coded.width(self.piece, self.origin.shape.last().copied().unwrap_or(0))
    }

    fn shape(&self) -> Vec<usize> {
        let rows = &self.origin.shape[..self.origin.shape.len() - 1];
        [rows, &[self.width()]].concat()
    }
}

impl Numbers for Taken {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let (at, size) = (at as usize, self.width() * self.dtype().size());
        let rows = at / size..(at + out.len()).div_ceil(size);
        let blocks = self.origin.blocks(&self.file.gguf, rows).map_err(|error| self.file.fault(error))?;
        let bytes = Split::of(self.kind, &blocks).bytes(&self.coded, self.piece);
        out.copy_from_slice(&bytes[at % size..][..out.len()]);
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
