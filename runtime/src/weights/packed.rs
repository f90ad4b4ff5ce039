//! Packed weights as a file: what the buffers of a target hold, so that loading is copying.
//!
//! It is a safetensors file with a tensor of bytes for each weight, named by its number. Its metadata say what the weights were
//! packed for: whatever has the same plan of weights, whichever kernels it has.
use super::pack::Piece;
use super::{Progress, Rank, Report, Sink, Target as Place, Task, pack, resolve, tasks};
use crate::checkpoint::{CheckpointError, Source, describe};
use crate::device::DeviceError;
use crate::error::Error;
use crate::pool::Pool;
use atomc_artifact::files::Draft;
use atomc_artifact::manifest::{Target, Weight};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The one entry of the metadata. Several would lie in any order, and the same weights are to make the same bytes.
const META: &str = "atomc";
/// Bytes that one thread copies at once.
const COPY_BYTES: usize = 4 << 20;
/// What the length of a header is a multiple of, so that the bytes behind it are aligned.
const HEADER_ALIGN: usize = 8;

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

/// Packs the weights of a source for a rank, one by one, and writes the file, which appears whole or not at all.
pub fn write(path: &Path, target: &Target, rank: Rank, source: &dyn Source, pool: &mut Pool) -> Result<(), Error> {
    super::check_unused(&target.weights, source)?;
    let pieces = resolve(&target.weights, rank, source)?;
    let mut bytes = room(&target.weights)?;
    let fault = |source| CheckpointError::Write { path: path.to_owned(), source };
    let mut draft = Draft::new(path).map_err(fault)?;
    draft.file.write_all(&header(target, rank)).map_err(fault)?;
    for (weight, pieces) in target.weights.iter().zip(&pieces) {
        // Packing writes no padding, which is zero.
        bytes.clear();
        bytes.resize(weight.bytes, 0);
        fill(weight, pieces, &mut bytes, pool);
        draft.file.write_all(&bytes).map_err(fault)?;
    }
    Ok(draft.publish().map_err(fault)?)
}

/// Room for the largest weight: one is packed at a time.
fn room(weights: &[Weight]) -> Result<Vec<u8>, DeviceError> {
    let (largest, mut room) = (weights.iter().map(|weight| weight.bytes).max().unwrap_or(0), Vec::new());
    match room.try_reserve_exact(largest) {
        Ok(()) => Ok(room),
        Err(error) => Err(DeviceError::OutOfMemory { bytes: largest, source: std::io::Error::other(error) }),
    }
}

/// What a safetensors file of the weights begins with.
fn header(target: &Target, rank: Rank) -> Vec<u8> {
    let made = serde_json::to_string(&Made::of(target, rank)).expect("names and numbers are JSON");
    let mut end = 0;
    let tensors = target.weights.iter().enumerate().map(|(number, weight)| {
        let start = end;
        end += weight.bytes;
        let (shape, data_offsets) = (vec![weight.bytes], (start, end));
        (number.to_string(), TensorInfo { dtype: Dtype::U8, shape, data_offsets })
    });
    let about = Metadata::new(Some(HashMap::from([(META.to_owned(), made)])), tensors.collect());
    let json = serde_json::to_vec(&about.expect("bytes one after the other")).expect("names and numbers are JSON");
    let len = json.len().next_multiple_of(HEADER_ALIGN);
    let mut bytes = (len as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.resize(size_of::<u64>() + len, b' ');
    bytes
}

/// Packs a weight.
fn fill(weight: &Weight, pieces: &[Piece], bytes: &mut [u8], pool: &mut Pool) {
    let (place, tasks) = (Place(bytes), tasks(0, weight));
    pool.for_each(tasks.len(), |index| {
        let Task { rows, bytes, .. } = &tasks[index];
        // SAFETY: the tasks of a weight cover disjoint ranges of its bytes, which live until this call is over.
        pack::fill(weight, pieces, rows.clone(), unsafe { place.part(bytes.clone()) });
    });
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
