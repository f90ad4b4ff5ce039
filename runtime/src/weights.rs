//! The weight plan at work: from the tensors of a source to the buffers that kernels read.
//!
//! Buffers are filled in ranges of rows, in parallel; `pack` has the layouts. Where a source has
//! all tensors, everything that can be wrong is found before the first byte is written, so that a
//! reload either changes all weights or none. Where they come one by one (`loading`), each weight
//! is whole once its tensors were there.
//!
//! `parts.rs` evaluates an expression for a rank, as boxes of tensors. `fetch.rs` reads the part of
//! each that a task packs; files are read by the threads that pack, and not mapped. `decode.rs`
//! makes rows of it, a word at a time for words or columns of large matrices. `pack.rs` puts rows
//! into layouts and does not know how they were stored. `told.rs` checks conditions before anything
//! is written; codes that are NaN are found when they are packed. `fit.rs` says by names, shapes
//! and types whether a checkpoint fits.
//!
//! A framework gives tensors one by one (`loading.rs`). Those in a GPU's memory are packed there
//! (`on_device.rs`) by a kernel that every GPU variant has (`Variant.pack`), on the framework's
//! stream. The kernel puts a rectangle of a tensor into any layout, byte for byte as `pack.rs` does
//! on the host, so one kernel serves all weights. It can also compare instead, which finds a tied
//! head that differs from the embedding. It copies and rounds; weights that are unpacked,
//! transposed or under a condition are packed by the host. Packed weights (`packed.rs`) are a
//! safetensors file of the buffers themselves, with the key of the weight plan and a checksum of
//! every 4 MiB.
mod book;
mod bound;
mod decode;
mod dequantise;
mod encode;
mod fetch;
mod fit;
mod loading;
mod making;
mod on_device;
mod pack;
pub mod packed;
mod parts;
mod scales;
pub(crate) mod spelled;
mod told;
mod words;

pub(crate) use encode::floats;
pub use fit::{Fit, fit};
pub use loading::{Given, Loading, Numbers};
pub use on_device::DeviceSink;
pub use scales::StoredScales;

use crate::checkpoint::{CheckpointError, Source, Tensor};
use crate::device::{DeviceBuffer, DeviceError};
use crate::error::Error;
use crate::memory::Buffer;
use crate::pool::Pool;
use atomc_artifact::manifest::{DType, Layout, TensorNames, Tied, Weight, Whole};
use dequantise::Scales;
use pack::Piece;
use parts::{Name, Origin, Part, Scaled, parts};
use spelled::Spelled;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that one task fills: small enough to share out evenly, large enough to report progress on.
const TASK_BYTES: usize = 1 << 20;
/// Bytes that are packed on the host before they are copied to a device with memory of its own.
const STAGE_BYTES: usize = 32 << 20;

/// Called with the bytes done and the bytes in all, now and then, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Which of the ranks that share a model out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This one's, from 0 on.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Rank {
    /// A model on a single rank.
    pub const ONLY: Rank = Rank { number: 0, of: 1 };

    /// The number of this rank's part of `parts`. If there are fewer parts than ranks, several
    /// ranks hold the same part.
    fn part(self, parts: usize) -> usize {
        self.number * parts / self.of
    }
}

/// Fills the buffers, one for each weight, with what the plan makes of the source for a rank. If
/// the source is not of the model nothing has changed.
pub fn load(sink: Sink, names: &TensorNames, source: &dyn Source, progress: Progress) -> Result<(), Error> {
    let all = sink.weights;
    load_some(sink, (all, names), source, progress)
}

/// As [`load`] does, where the sink has some of a model's weights.
pub(crate) fn load_some(
    mut sink: Sink,
    (all, names): (&[Weight], &TensorNames),
    source: &dyn Source,
    progress: Progress,
) -> Result<(), Error> {
    let Sink { weights, rank, .. } = sink;
    let source = &Spelled::new(source, names)?;
    let pieces = resolve(weights, rank, source)?;
    check_unused(all, names, source)?;
    bound::check(weights, &pieces)?;
    let tasks: Vec<Task> = weights.iter().enumerate().flat_map(|(index, weight)| tasks(index, weight)).collect();
    let report = Report::new(progress, &tasks);
    progress(0, report.total);
    sink.pack(&pieces, &tasks, &mut None, &report)?;
    Ok(source.check()?)
}

/// Whether there are weights after a load: what a source is at fault for has changed nothing.
pub(crate) fn are_loaded(before: bool, done: &Result<(), Error>) -> bool {
    match done {
        Ok(()) => true,
        // These come when some weights are new already.
        Err(
            Error::Device(_)
            | Error::Checkpoint(
                CheckpointError::Io { .. }
                | CheckpointError::Changed { .. }
                | CheckpointError::Damaged { .. }
                | CheckpointError::NotANumber { .. }
                | CheckpointError::NotFinite { .. },
            ),
        ) => false,
        Err(_) => before,
    }
}

/// How far a load is.
struct Report<'a> {
    progress: Progress<'a>,
    done: AtomicU64,
    total: u64,
}

impl<'a> Report<'a> {
    fn new(progress: Progress<'a>, tasks: &[Task]) -> Report<'a> {
        let total = tasks.iter().map(|task| task.bytes.len() as u64).sum();
        Report { progress, done: AtomicU64::new(0), total }
    }

    fn add(&self, bytes: usize) {
        let bytes = bytes as u64;
        (self.progress)(self.done.fetch_add(bytes, Relaxed) + bytes, self.total);
    }
}

/// The weights that are made, a buffer for each, and the threads that make them.
pub struct Sink<'a> {
    /// What is to be made: those of the target.
    pub weights: &'a [Weight],
    /// The rank with the shards that are loaded.
    pub rank: Rank,
    /// In the order of the weights, each of the size that its weight states.
    pub buffers: &'a mut [DeviceBuffer],
    /// The threads that pack.
    pub pool: &'a mut Pool,
}

impl Sink<'_> {
    /// One weight alone.
    fn only(&mut self, index: usize) -> Sink<'_> {
        let Sink { weights, rank, buffers, pool } = self;
        let (weights, buffers) = (&weights[index..=index], &mut buffers[index..=index]);
        Sink { weights, rank: *rank, buffers, pool }
    }

    /// Fills parts of weights with pieces, which are by weight.
    fn pack(
        &mut self,
        pieces: &[Vec<Piece>],
        tasks: &[Task],
        stage: &mut Option<Buffer>,
        report: &Report,
    ) -> Result<(), Error> {
        let views: Option<Vec<Target>> =
            self.buffers.iter_mut().map(|buffer| buffer.host_view_mut().map(|view| Target(view))).collect();
        match views {
            Some(targets) => Ok(self.fill(pieces, tasks, |task| (&targets[task.weight], 0), report)?),
            None => self.staged(pieces, tasks, stage, report),
        }
    }

    /// Packs parts of weights. `place` says where a task's part goes: into memory that begins at
    /// this byte of the weight.
    fn fill<'t>(
        &mut self,
        pieces: &[Vec<Piece>],
        tasks: &[Task],
        place: impl Fn(&Task) -> (&'t Target, usize) + Sync,
        report: &Report,
    ) -> Result<(), CheckpointError> {
        let weights = self.weights;
        self.pool.try_each(tasks.len(), |index, memory| {
            let task = &tasks[index];
            let (target, start) = place(task);
            // SAFETY: the tasks of a weight cover disjoint ranges of its buffer, which is borrowed
            // for this whole call.
            let out = unsafe { target.part(task.bytes.start - start..task.bytes.end - start) };
            fill(&weights[task.weight], &pieces[task.weight], &task.rows, out, memory)?;
            report.add(task.bytes.len());
            Ok(())
        })
    }

    /// Packs parts of weights here and copies them to the device, as much at once as the stage
    /// holds, which is made if there is none that is large enough.
    fn staged(
        &mut self,
        pieces: &[Vec<Piece>],
        tasks: &[Task],
        stage: &mut Option<Buffer>,
        report: &Report,
    ) -> Result<(), Error> {
        let bytes = tasks.iter().map(|task| task.bytes.len()).max().unwrap_or(0).max(STAGE_BYTES);
        let stage = match stage {
            Some(stage) if stage.len() >= bytes => stage,
            small => small.insert(Buffer::new(bytes).map_err(|source| DeviceError::OutOfMemory { bytes, source })?),
        };
        let mut rest = tasks;
        while let Some(first) = rest.first() {
            let (weight, start) = (first.weight, first.bytes.start);
            let fits = |task: &Task| task.weight == weight && task.bytes.end - start <= bytes;
            let (now, later) = rest.split_at(rest.iter().take_while(|task| fits(task)).count());
            let end = now.last().map_or(start, |task| task.bytes.end);
            let part = &mut stage.as_mut_slice()[..end - start];
            // Packing writes no padding, which is to be zero on the device too.
            part.fill(0);
            let target = Target(part);
            self.fill(pieces, now, |_| (&target, start), report)?;
            self.buffers[weight].upload(start, &stage.as_slice()[..end - start])?;
            rest = later;
        }
        Ok(())
    }
}

/// Fills rows of a weight, by way of `memory` with what lies in files.
fn fill(
    weight: &Weight,
    pieces: &[Piece],
    rows: &Range<usize>,
    out: &mut [u8],
    memory: &mut Vec<u8>,
) -> Result<(), CheckpointError> {
    let pieces = fetch::fetch(pieces, rows, memory)?;
    if weight.dtype == DType::F8E4M3 {
        pieces.iter().try_for_each(told::check_piece)?;
    }
    match pieces.first().and_then(|piece| piece.scales.clone()) {
        None => pack::fill(weight, &pieces, rows.clone(), out),
        Some(scales) => {
            let floats = scales.floats(&pieces, rows)?;
            pack::fill(weight, &[floats_of(&floats, rows, scales.sizes[1])], rows.clone(), out);
        }
    }
    if weight.unsigned_zeros {
        out.iter_mut().filter(|code| **code == NEGATIVE_ZERO).for_each(|code| *code = 0);
    }
    Ok(())
}

/// The bits of a negative zero of e4m3.
const NEGATIVE_ZERO: u8 = 0x80;

/// Rows of a weight as a piece.
fn floats_of<'a>(floats: &'a [f32], rows: &Range<usize>, width: usize) -> Piece<'a> {
    Piece {
        name: Name::Of(""),
        data: Tensor::Values(floats),
        offset: 0.0,
        form: None,
        made: None,
        scales: None,
        width,
        stride: width,
        rows: 0..rows.len(),
        cols: 0..width,
        at: (rows.start, 0),
    }
}

/// Rows of one weight, and the bytes of its buffer that they and nothing else lie in.
struct Task {
    weight: usize,
    rows: Range<usize>,
    bytes: Range<usize>,
}

/// A buffer that several tasks write to.
struct Target(*mut [u8]);

// SAFETY: tasks write to disjoint parts.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// # Safety
    /// The buffer is alive, and no two parts that are in use at once overlap.
    #[allow(clippy::mut_from_ref, reason = "the caller vouches for disjoint parts")]
    unsafe fn part(&self, bytes: Range<usize>) -> &mut [u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= self.0.len(), "a weight's layout lies in its buffer");
        // SAFETY: in bounds by the assertion, unique by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>().add(bytes.start), bytes.len()) }
    }
}

/// Cuts a weight into tasks along its rows; panels stay whole, and no task has rows of two
/// matrices.
fn tasks(index: usize, weight: &Weight) -> Vec<Task> {
    let [matrices, rows, cols] = weight.matrices();
    let size = |elements| weight.dtype.bytes(elements);
    let (matrices, rows, unit, row_bytes, matrix_bytes) = match weight.layout {
        // Rows follow each other, whatever the matrix.
        Layout::Rows { stride } => (1, matrices * rows, 1, size(stride), 0),
        Layout::Panels { width, rows: padded, cols, .. } => (matrices, rows, width, size(cols), size(padded * cols)),
    };
    let step = (TASK_BYTES / row_bytes.max(1)).next_multiple_of(unit).max(unit);
    let task = |matrix: usize, first: usize| {
        let last = (first + step).min(rows);
        // The last rows include the padding after them: a device's memory may not be zero there.
        let end = match weight.layout {
            Layout::Rows { .. } if last == rows => weight.bytes,
            Layout::Panels { .. } if last == rows => matrix_bytes,
            Layout::Rows { .. } => (last - 1) * row_bytes + size(cols),
            Layout::Panels { width, .. } => last.next_multiple_of(width) * row_bytes,
        };
        let (row, start) = (matrix * rows, matrix * matrix_bytes);
        Task { weight: index, rows: row + first..row + last, bytes: start + first * row_bytes..start + end }
    };
    (0..matrices).flat_map(|matrix| (0..rows).step_by(step).map(move |first| task(matrix, first))).collect()
}

/// The pieces of every weight, or what is missing or wrong.
fn resolve<'a>(
    weights: &'a [Weight],
    rank: Rank,
    source: &'a dyn Source,
) -> Result<Vec<Vec<Piece<'a>>>, CheckpointError> {
    let mut missing = BTreeSet::new();
    let resolved =
        weights.iter().map(|weight| pieces(weight, rank, source, &mut missing)).collect::<Result<Vec<_>, _>>()?;
    if missing.is_empty() {
        Ok(resolved)
    } else {
        Err(CheckpointError::Missing { names: missing.into_iter().collect() })
    }
}

/// What a weight is made of, in the form that the source has.
fn value<'a>(weight: &'a Weight, rank: Rank, source: &dyn Source) -> parts::Value<'a> {
    let is_whole = |whole: &Whole, shape: &[usize]| {
        !matches!(source.tensor(&whole.name, shape), Err(CheckpointError::Missing { .. }))
    };
    parts(&weight.expr, rank, &is_whole)
}

/// The pieces of a weight, as far as the source has them.
fn pieces<'a>(
    weight: &'a Weight,
    rank: Rank,
    source: &'a dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<Vec<Piece<'a>>, CheckpointError> {
    let value = value(weight, rank, source);
    let pieces = stored_pieces(weight, &value, source, missing)?;
    told::check(&value, source, missing)?;
    Ok(pieces)
}

/// The pieces of what a weight is of, of the right shapes and types. Numbers are not looked at.
fn stored_pieces<'a>(
    weight: &'a Weight,
    value: &parts::Value<'a>,
    source: &'a dyn Source,
    missing: &mut BTreeSet<String>,
) -> Result<Vec<Piece<'a>>, CheckpointError> {
    let mut all = |parts: &[Part<'a>], dtype: DType, shape: &[usize]| {
        let mut pieces = Vec::new();
        for part in parts {
            let (name, data) = match part.origin {
                Origin::Values(values) => (Name::Of(&weight.name), Ok(Tensor::Values(values))),
                Origin::Tensor { name, ref shape } => (name, source.tensor(&name.text(), shape)),
            };
            let by = part.making(source, missing)?;
            if let Some(data) = present(data, missing)? {
                data.check_becomes(part.stored(dtype), name)?;
                pieces.extend(part.pieces(name, (data, by), shape));
            }
        }
        Ok::<Vec<Piece<'a>>, CheckpointError>(pieces)
    };
    let mut pieces = all(&value.parts, weight.dtype, &weight.shape)?;
    if let Some(Scaled { block, scale, .. }) = value.scaled.last().filter(|_| value.dequantised) {
        let [_, rows, cols] = weight.matrices();
        // Powers of two are the scales of unpacked codes that become floats.
        let scales = all(&scale.parts, DType::E8M0, &scale.shape)?;
        let scales = Arc::new(Scales { block: *block, sizes: [rows, cols], pieces: scales });
        pieces.iter_mut().for_each(|piece| piece.scales = Some(scales.clone()));
    }
    Ok(pieces)
}

/// That a weight can be made of a tensor of this type.
fn check_type(weight: &Weight, name: &str, tensor: Tensor) -> Result<(), CheckpointError> {
    let parts::Value { parts, told, .. } = parts(&weight.expr, Rank::ONLY, &|whole, _| whole.name == name);
    let is_of = |part: &&Part| matches!(part.origin, Origin::Tensor { name: other, .. } if other.is(name));
    let becomes = |part: &Part| tensor.check_becomes(part.stored(weight.dtype), Name::Of(name));
    parts.iter().filter(is_of).try_for_each(becomes)?;
    let beside = parts.iter().flat_map(|part| part.beside()).filter(|(other, _)| other.is(name));
    beside.into_iter().try_for_each(|(name, dtype)| tensor.check_becomes(dtype, name))?;
    let told = told.iter().filter(|told| !told.is.is_of_floats()).flat_map(|told| &told.parts);
    told.filter(is_of).try_for_each(|part| told::check_integers(tensor, part, name))
}

/// A tensor, unless it is missing.
fn present<'a>(
    data: Result<Tensor<'a>, CheckpointError>,
    missing: &mut BTreeSet<String>,
) -> Result<Option<Tensor<'a>>, CheckpointError> {
    match data {
        Ok(data) => Ok(Some(data)),
        Err(CheckpointError::Missing { names }) => {
            missing.extend(names);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A tensor that no weight uses, and that no other part has, means that the checkpoint is of
/// another model than the artifact.
fn check_unused(weights: &[Weight], names: &TensorNames, source: &Spelled) -> Result<(), CheckpointError> {
    let sources = || weights.iter().flat_map(|weight| weight.expr.sources());
    let mut used: BTreeSet<Cow<str>> =
        weights.iter().flat_map(|weight| weight.expr.tensors()).map(|(name, _)| name).collect();
    let origins: Vec<String> = used.iter().map(|name| source.origin(name).to_owned()).collect();
    used.extend(origins.into_iter().map(Cow::Owned));
    let there = source.names();
    let is_known = |name: &str| used.contains(name) || names.is_tied_head(name);
    let unused = there.iter().filter(|name| !is_known(name) && names.ignored(name).is_none());
    let unused: Vec<String> = unused.map(|&name| source.stored(name).to_owned()).collect();
    if !unused.is_empty() {
        return Err(CheckpointError::Unused { names: unused });
    }
    let has = |name: &str| there.binary_search(&name).is_ok();
    sources().try_for_each(|sources| match sources.whole() {
        Some((whole, _)) if has(&whole) => match sources.each().find(|(name, _)| has(name)) {
            Some((one, _)) => Err(CheckpointError::Twice { whole: whole.into_owned(), one: one.into_owned() }),
            None => Ok(()),
        },
        _ => Ok(()),
    })?;
    match &names.tied {
        Some(tied) if has(&tied.head) && !used.contains(tied.head.as_str()) => check_twin(weights, tied, source),
        _ => Ok(()),
    }
}

/// That the head of a checkpoint is its embedding, which the weights have in its place.
fn check_twin(weights: &[Weight], tied: &Tied, source: &dyn Source) -> Result<(), CheckpointError> {
    let mut tensors = weights.iter().flat_map(|weight| weight.expr.tensors());
    let Some((name, shape)) = tensors.find(|(name, _)| *name == tied.embedding) else { return Ok(()) };
    let same = match (source.tensor(&name, &shape)?, source.tensor(&tied.head, &shape)?) {
        (Tensor::Bytes { float: a, bytes: one }, Tensor::Bytes { float: b, bytes: other }) => a == b && one == other,
        (Tensor::Stored { float: a, numbers: one }, Tensor::Stored { float: b, numbers: other }) => {
            a == b && one.equals(other)?
        }
        _ => true,
    };
    if same { Ok(()) } else { Err(CheckpointError::Untied) }
}

#[cfg(test)]
mod tests;
