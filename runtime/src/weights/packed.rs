//! Packed weights as a file: what the buffers of a target hold, so that loading is copying.
//!
//! It is a safetensors file with a tensor of bytes for each weight, named by its number. Its metadata say what the weights were
//! packed for: whatever has the same plan of weights, whichever kernels it has.
use super::pack::Piece;
use super::{Progress, Rank, Report, Sink, Target as Place, Task, pack, resolve, tasks};
use crate::checkpoint::{CheckpointError, Source, describe};
use crate::error::Error;
use crate::pool::Pool;
use atomc_artifact::manifest::{Target, Weight};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The one entry of the metadata. Several would lie in any order, and the same weights are to make the same bytes.
const META: &str = "atomc";
/// Bytes that one thread copies at once.
const COPY_BYTES: usize = 4 << 20;

/// What weights were packed for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Made {
    target: String,
    rank: usize,
    ranks: usize,
    /// The key of the target's plan of weights.
    plan: String,
}

impl Made {
    fn of(target: &Target, rank: Rank) -> Made {
        Made { target: target.name.clone(), rank: rank.number, ranks: rank.of, plan: target.weights_key() }
    }

    /// The first field in which a file differs from what is wanted.
    fn difference(&self, want: &Made) -> Option<(&'static str, String, String)> {
        let differ = |field, found: &dyn ToString, want: &dyn ToString| {
            let (found, want) = (found.to_string(), want.to_string());
            (found != want).then_some((field, found, want))
        };
        differ("target", &self.target, &want.target)
            .or_else(|| differ("ranks", &self.ranks, &want.ranks))
            .or_else(|| differ("rank", &self.rank, &want.rank))
            .or_else(|| differ("plan of weights", &self.plan, &want.plan))
    }
}

/// Where the packed weights of a rank lie in a model's directory.
pub fn file_name(target: &str, rank: Rank) -> String {
    match rank {
        Rank::ONLY => format!("weights.{target}.safetensors"),
        Rank { number, of } => format!("weights.{target}.{}-of-{of}.safetensors", number + 1),
    }
}

/// Packs the weights of a source for a rank, one by one, and writes the file.
pub fn write(path: &Path, target: &Target, rank: Rank, source: &dyn Source, pool: &mut Pool) -> Result<(), Error> {
    super::check_unused(&target.weights, source)?;
    let pool = RefCell::new(pool);
    let mut views = Vec::with_capacity(target.weights.len());
    for (number, weight) in target.weights.iter().enumerate() {
        // Whatever is wrong with the source is found before the first byte is written.
        let pieces = resolve(std::slice::from_ref(weight), rank, source)?.swap_remove(0);
        views.push((number.to_string(), Packing { weight, pieces, pool: &pool, shape: [weight.bytes] }));
    }
    let made = serde_json::to_string(&Made::of(target, rank)).expect("names and numbers are JSON");
    let done = safetensors::serialize_to_file(views, Some(HashMap::from([(META.to_owned(), made)])), path);
    let fault = |error: safetensors::SafeTensorError| std::io::Error::other(error.to_string());
    Ok(done.map_err(|error| CheckpointError::Write { path: path.to_owned(), source: fault(error) })?)
}

/// A weight that is packed when its turn comes.
struct Packing<'a> {
    weight: &'a Weight,
    pieces: Vec<Piece<'a>>,
    pool: &'a RefCell<&'a mut Pool>,
    shape: [usize; 1],
}

impl View for Packing<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let (weight, pieces) = (self.weight, &self.pieces);
        let mut bytes = vec![0; weight.bytes];
        let (place, tasks) = (Place(&mut bytes[..]), tasks(0, weight));
        self.pool.borrow_mut().for_each(tasks.len(), |index| {
            let Task { rows, bytes, .. } = &tasks[index];
            // SAFETY: the tasks of a weight cover disjoint ranges of its bytes, which live until this call is over.
            pack::fill(weight, pieces, rows.clone(), unsafe { place.part(bytes.clone()) });
        });
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.weight.bytes
    }
}

/// A file of packed weights, mapped: it must not change while this value lives.
#[derive(Debug)]
pub struct Packed {
    path: PathBuf,
    map: Mmap,
    made: Made,
}

impl Packed {
    pub fn open(path: impl AsRef<Path>) -> Result<Packed, CheckpointError> {
        let path = path.as_ref().to_owned();
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(io)?;
        // SAFETY: the contract of this type.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let malformed = |detail| CheckpointError::Malformed { path: path.clone(), detail };
        let (_, meta) = SafeTensors::read_metadata(&map).map_err(|error| malformed(describe(error)))?;
        let made = meta.metadata().as_ref().and_then(|entries| entries.get(META));
        let made = made.ok_or_else(|| malformed("it holds no packed weights, but maybe a checkpoint".to_owned()))?;
        let made = serde_json::from_str(made).map_err(|error| malformed(format!("its metadata: {error}")))?;
        Ok(Packed { path, map, made })
    }

    /// Copies the weights into their buffers. If the file is not for them nothing has changed.
    pub(crate) fn load(&self, target: &Target, sink: Sink, progress: Progress) -> Result<(), Error> {
        let Sink { weights, rank, buffers, pool } = sink;
        if let Some((field, found, want)) = self.made.difference(&Made::of(target, rank)) {
            return Err(CheckpointError::PackedFor { path: self.path.clone(), field, found, want }.into());
        }
        let sources = self.bytes(weights)?;
        let tasks: Vec<Task> =
            sources.iter().enumerate().flat_map(|(weight, bytes)| cut(weight, bytes.len())).collect();
        let report = Report::new(progress, &tasks);
        progress(0, report.total);
        let mut rest = &tasks[..];
        for (number, (buffer, from)) in buffers.iter_mut().zip(&sources).enumerate() {
            let (now, later) = rest.split_at(rest.iter().take_while(|task| task.weight == number).count());
            rest = later;
            let place = buffer.host_view_mut().map(|view| Place(view));
            match place {
                Some(place) => pool.for_each(now.len(), |index| {
                    let bytes = &now[index].bytes;
                    // SAFETY: the tasks cover disjoint ranges of the buffer, which is borrowed meanwhile.
                    unsafe { place.part(bytes.clone()) }.copy_from_slice(&from[bytes.clone()]);
                    report.add(bytes.len());
                }),
                None => now.iter().try_for_each(|task| {
                    report.add(task.bytes.len());
                    buffer.upload(task.bytes.start, &from[task.bytes.clone()])
                })?,
            }
        }
        Ok(())
    }

    /// What the file has for each weight.
    fn bytes(&self, weights: &[Weight]) -> Result<Vec<&[u8]>, CheckpointError> {
        let malformed = |detail| CheckpointError::Malformed { path: self.path.clone(), detail };
        let tensors = SafeTensors::deserialize(&self.map).map_err(|error| malformed(describe(error)))?;
        let one = |(number, weight): (usize, &Weight)| {
            let tensor = tensors.tensor(&number.to_string()).map_err(|error| malformed(describe(error)))?;
            match tensor.data().len() == weight.bytes {
                true => Ok(tensor.data()),
                false => {
                    Err(malformed(format!("weight {number} has {} bytes, not {}", tensor.data().len(), weight.bytes)))
                }
            }
        };
        weights.iter().enumerate().map(one).collect()
    }
}

fn cut(weight: usize, len: usize) -> impl Iterator<Item = Task> {
    let part = move |start: usize| -> Range<usize> { start..(start + COPY_BYTES).min(len) };
    (0..len).step_by(COPY_BYTES).map(move |start| Task { weight, rows: 0..0, bytes: part(start) })
}
