//! Packed weights as a file: what the buffers of a target hold, so that loading is copying.
//!
//! It is a safetensors file with a tensor of bytes for each weight, named by its number, and then
//! one for the map of a draft's tokens, if the target has such a draft. Its metadata describe the
//! target that the weights were packed for: any with the same plan of weights, whatever its
//! kernels. Every `CHUNK_BYTES` of a weight have a checksum there, which loading compares.
use super::spelled::Spelled;
use super::{Progress, Rank, Report, STAGE_BYTES, Sink, Target as Place, Task, fill, resolve, tasks};
use crate::checkpoint::{CheckpointError, Shard, Source, Stored, whole_numbers};
use crate::device::{DeviceBuffer, DeviceError};
use crate::error::Error;
use crate::memory::Buffer;
use crate::pool::Pool;
use atomc_artifact::files::Draft;
use atomc_artifact::manifest::{Target, TensorNames, Weight};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The one entry of the metadata. Several would lie in any order, and the same weights are to make
/// the same bytes.
const META: &str = "atomc";
/// The version of the metadata that is written and read. The first had no number, and no checksums.
const VERSION: u32 = 2;
/// Bytes that have a checksum, which one thread reads at once.
const CHUNK_BYTES: usize = 4 << 20;
/// Hexadecimal digits of a checksum.
const DIGITS: usize = 2 * blake3::OUT_LEN;
/// The length of a header is a multiple of this, so that the bytes after it are aligned.
const HEADER_ALIGN: usize = 8;

/// What the metadata say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    version: u32,
    made: Made,
    /// Of each weight, and of the map, the checksums (blake3) of its chunks, one after the other.
    sums: Vec<String>,
}

/// What the metadata of every version say.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    version: Option<u32>,
}

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

/// Packs the weights of a source for a rank, one by one, and writes the file, which appears whole
/// or not at all.
pub fn write(
    path: &Path,
    (target, names): (&Target, &TensorNames),
    rank: Rank,
    source: &dyn Source,
    pool: &mut Pool,
) -> Result<(), Error> {
    let map = map(target, source)?;
    let source = &Spelled::new(source, names)?;
    super::check_unused(&target.weights, names, source)?;
    let pieces = resolve(&target.weights, rank, source)?;
    super::bound::check(&target.weights, &pieces)?;
    let mut bytes = room(&target.weights)?;
    let fault = |source| CheckpointError::Write { path: path.to_owned(), source };
    let mut draft = Draft::beside(path).map_err(fault)?;
    // Checksums are known when the weights are; their place is not, if their size is.
    let blank = |bytes: usize| "0".repeat(chunks(bytes).len() * DIGITS);
    let blank = header(target, rank, sizes(target).map(blank).collect());
    draft.file.write_all(&blank).map_err(fault)?;
    let mut sums = Vec::with_capacity(target.weights.len());
    for (weight, pieces) in target.weights.iter().zip(&pieces) {
        // Packing writes no padding, which is zero.
        bytes.clear();
        bytes.resize(weight.bytes, 0);
        let (place, tasks) = (Place(&mut bytes[..]), tasks(0, weight));
        pool.try_each(tasks.len(), |index, memory| {
            let Task { rows, bytes, .. } = &tasks[index];
            // SAFETY: the tasks of a weight cover disjoint ranges of its bytes, which live until
            // this call is over.
            fill(weight, pieces, rows, unsafe { place.part(bytes.clone()) }, memory)
        })?;
        sums.push(checksums(&bytes, pool));
        draft.file.write_all(&bytes).map_err(fault)?;
    }
    if !map.is_empty() {
        sums.push(checksums(&map, pool));
        draft.file.write_all(&map).map_err(fault)?;
    }
    source.check()?;
    let header = header(target, rank, sums);
    assert_eq!(header.len(), blank.len(), "checksums of a size");
    draft.file.write_all_at(&header, 0).map_err(fault)?;
    Ok(draft.publish().map_err(fault)?)
}

/// Bytes of each weight, and of the map.
fn sizes(target: &Target) -> impl Iterator<Item = usize> {
    let draft = target.draft.as_ref().filter(|draft| draft.map.is_some());
    let map = draft.map(|draft| draft.vocab * size_of::<i64>());
    target.weights.iter().map(|weight| weight.bytes).chain(map)
}

/// How far the model's number of each token of a draft is from its own, as bytes; none where they
/// are the same.
fn map(target: &Target, source: &dyn Source) -> Result<Vec<u8>, CheckpointError> {
    let Some(draft) = &target.draft else { return Ok(vec![]) };
    let Some(name) = &draft.map else { return Ok(vec![]) };
    Ok(whole_numbers(source, name, draft.vocab)?.into_iter().flat_map(i64::to_le_bytes).collect())
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
fn header(target: &Target, rank: Rank, sums: Vec<String>) -> Vec<u8> {
    let about = About { version: VERSION, made: Made::of(target, rank), sums };
    let about = serde_json::to_string(&about).expect("names and numbers are JSON");
    let mut end = 0;
    let tensors = sizes(target).enumerate().map(|(number, bytes)| {
        let start = end;
        end += bytes;
        let (shape, data_offsets) = (vec![bytes], (start, end));
        (number.to_string(), TensorInfo { dtype: Dtype::U8, shape, data_offsets })
    });
    let header = Metadata::new(Some(HashMap::from([(META.to_owned(), about)])), tensors.collect());
    let json = serde_json::to_vec(&header.expect("bytes one after the other")).expect("names and numbers are JSON");
    let len = json.len().next_multiple_of(HEADER_ALIGN);
    let mut bytes = (len as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    bytes.resize(size_of::<u64>() + len, b' ');
    bytes
}

/// The parts of a weight of this size that have a checksum each.
fn chunks(bytes: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    (0..bytes).step_by(CHUNK_BYTES).map(move |start| start..(start + CHUNK_BYTES).min(bytes))
}

/// The checksums of the chunks of bytes, one after the other.
pub(crate) fn checksums(bytes: &[u8], pool: &mut Pool) -> String {
    let chunks: Vec<Range<usize>> = chunks(bytes.len()).collect();
    let sums: Vec<OnceLock<blake3::Hash>> = chunks.iter().map(|_| OnceLock::new()).collect();
    pool.for_each(chunks.len(), |index| _ = sums[index].set(blake3::hash(&bytes[chunks[index].clone()])));
    sums.iter().map(|sum| sum.get().expect("every chunk was looked at").to_hex().to_string()).collect()
}

/// A file of packed weights.
#[derive(Debug)]
pub struct Packed {
    path: PathBuf,
    file: Shard,
    about: About,
    verify: bool,
}

/// A weight in the file.
struct Kept<'a> {
    number: usize,
    name: &'a str,
    numbers: Stored<'a>,
    sums: &'a str,
}

impl Kept<'_> {
    fn tasks(&self) -> impl Iterator<Item = Task> + use<> {
        let weight = self.number;
        chunks(self.numbers.len()).map(move |bytes| Task { weight, rows: 0..0, bytes })
    }
}

impl Packed {
    /// Opens a file and reads its header; what it was packed for is looked at when it is loaded.
    pub fn open(path: impl AsRef<Path>) -> Result<Packed, CheckpointError> {
        let path = path.as_ref().to_owned();
        let malformed = |detail| CheckpointError::Malformed { path: path.clone(), detail };
        let file = Shard::open(path.clone())?;
        let about = file.header().metadata().as_ref().and_then(|entries| entries.get(META));
        let about = about.ok_or_else(|| malformed("it holds no packed weights, but maybe a checkpoint".to_owned()))?;
        let wrong = |error| malformed(format!("its metadata: {error}"));
        let found = serde_json::from_str::<Versioned>(about).map_err(wrong)?.version.unwrap_or(1);
        if found != VERSION {
            return Err(CheckpointError::PackedVersion { path, found, supported: VERSION });
        }
        let about = serde_json::from_str(about).map_err(wrong)?;
        Ok(Packed { path, file, about, verify: true })
    }

    /// The same file, to be loaded without a look at its checksums.
    pub fn unverified(self) -> Packed {
        Packed { verify: false, ..self }
    }

    /// Copies the weights into their buffers. If the file is not for them nothing has changed.
    pub(crate) fn load(&self, target: &Target, sink: Sink, progress: Progress) -> Result<(), Error> {
        let Sink { weights, rank, buffers, pool, .. } = sink;
        self.check_for(target, rank)?;
        if weights.len() != target.weights.len() {
            let (path, field) = (self.path.clone(), "number of weights");
            let (found, want) = (target.weights.len().to_string(), weights.len().to_string());
            return Err(CheckpointError::PackedFor { path, field, found, want }.into());
        }
        let all = weights.iter().enumerate();
        let kept: Vec<Kept> =
            all.map(|(number, weight)| self.kept(number, &weight.name, weight.bytes)).collect::<Result<_, _>>()?;
        let tasks: Vec<Task> = kept.iter().flat_map(Kept::tasks).collect();
        let report = Report::new(progress, &tasks);
        progress(0, report.total);
        let (mut rest, mut stage) = (&tasks[..], None);
        for (buffer, kept) in buffers.iter_mut().zip(&kept) {
            let (now, later) = rest.split_at(rest.iter().take_while(|task| task.weight == kept.number).count());
            rest = later;
            match buffer.host_view_mut() {
                Some(view) => self.read(kept, now, &Place(view), pool, &report)?,
                None => self.upload(kept, now, buffer, &mut stage, pool, &report)?,
            }
        }
        Ok(self.file.check()?)
    }

    /// The distance from each of the draft's `count` token ids to the model's.
    pub(crate) fn map(&self, target: &Target, name: &str, count: usize) -> Result<Vec<i64>, CheckpointError> {
        self.check_for(target, Rank::ONLY)?;
        let kept = self.kept(target.weights.len(), name, count * size_of::<i64>())?;
        let mut bytes = vec![0; kept.numbers.len()];
        kept.numbers.read(0, &mut bytes)?;
        chunks(bytes.len()).try_for_each(|chunk| self.check(&kept, &chunk, &bytes[chunk.clone()]))?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect())
    }

    /// That the weights were packed for these buffers.
    fn check_for(&self, target: &Target, rank: Rank) -> Result<(), CheckpointError> {
        match self.about.made.difference(&Made::of(target, rank)) {
            Some((field, found, want)) => {
                Err(CheckpointError::PackedFor { path: self.path.clone(), field, found, want })
            }
            None => Ok(()),
        }
    }

    /// Reads chunks of a weight, which lie next to each other, to a place.
    fn read(
        &self,
        kept: &Kept,
        chunks: &[Task],
        place: &Place,
        pool: &mut Pool,
        report: &Report,
    ) -> Result<(), CheckpointError> {
        let first = chunks.first().map_or(0, |chunk| chunk.bytes.start);
        pool.try_each(chunks.len(), |index, _| {
            let bytes = &chunks[index].bytes;
            // SAFETY: the chunks are disjoint ranges of the place, which is borrowed meanwhile.
            let out = unsafe { place.part(bytes.start - first..bytes.end - first) };
            kept.numbers.read(bytes.start, out)?;
            self.check(kept, bytes, out)?;
            report.add(bytes.len());
            Ok(())
        })
    }

    /// Copies chunks of a weight to a device, as much at once as the stage holds.
    fn upload(
        &self,
        kept: &Kept,
        chunks: &[Task],
        buffer: &mut DeviceBuffer,
        stage: &mut Option<Buffer>,
        pool: &mut Pool,
        report: &Report,
    ) -> Result<(), Error> {
        let stage = match stage {
            Some(stage) => stage,
            none => {
                let out_of_memory = |source| DeviceError::OutOfMemory { bytes: STAGE_BYTES, source };
                none.insert(Buffer::new(STAGE_BYTES).map_err(out_of_memory)?)
            }
        };
        for now in chunks.chunks(STAGE_BYTES / CHUNK_BYTES) {
            let len = now.iter().map(|chunk| chunk.bytes.len()).sum();
            self.read(kept, now, &Place(&mut stage.as_mut_slice()[..len]), pool, report)?;
            buffer.upload(now[0].bytes.start, &stage.as_slice()[..len])?;
        }
        Ok(())
    }

    /// Compares a chunk's checksum.
    fn check(&self, kept: &Kept, bytes: &Range<usize>, found: &[u8]) -> Result<(), CheckpointError> {
        let at = bytes.start / CHUNK_BYTES * DIGITS;
        if !self.verify || kept.sums[at..at + DIGITS] == *blake3::hash(found).to_hex() {
            return Ok(());
        }
        self.file.check()?;
        let (path, weight) = (self.path.clone(), kept.name.to_owned());
        Err(CheckpointError::Damaged { path, number: kept.number, weight, bytes: bytes.clone() })
    }

    /// The file's bytes for a weight of this size.
    fn kept<'a>(&'a self, number: usize, name: &'a str, bytes: usize) -> Result<Kept<'a>, CheckpointError> {
        let malformed = |detail| CheckpointError::Malformed { path: self.path.clone(), detail };
        let info = self.file.header().info(&number.to_string());
        let info = info.ok_or_else(|| malformed(format!("it has no weight {number}, `{name}`")))?;
        let numbers = self.file.stored(info.data_offsets);
        if numbers.len() != bytes {
            return Err(malformed(format!("weight {number} has {} bytes, not {bytes}", numbers.len())));
        }
        let sums = self.about.sums.get(number).map_or("", String::as_str);
        if !sums.is_ascii() || sums.len() != chunks(bytes).len() * DIGITS {
            return Err(malformed(format!("weight {number} lacks checksums")));
        }
        Ok(Kept { number, name, numbers, sums })
    }
}
