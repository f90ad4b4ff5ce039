//! Conversion of numbers and packing into layouts.
//!
//! Both go run by run: up to [`RUN`] numbers of one row, converted (or, where the types agree,
//! taken as they are) and then put in place. A panel's rows are walked run by run as well, so that
//! the part of the panel being written stays in the first-level cache.
use super::decode::Form;
use super::dequantise::Scales;
use super::making::Making;
use super::parts::Name;
use crate::checkpoint::{Float, Tensor};
use atomc_artifact::manifest::{DType, Layout, Weight};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::ops::Range;
use std::sync::Arc;

/// Numbers in a run.
pub(super) const RUN: usize = 256;

/// A rectangle of a tensor, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Piece<'a> {
    /// Of the tensor.
    pub name: Name<'a>,
    pub data: Tensor<'a>,
    /// What is added to each number.
    pub offset: f32,
    /// How the tensor has its numbers, if not as the weight has them.
    pub form: Option<Form>,
    /// What is made of the tensor's numbers before all else; rows and columns are those of that.
    pub made: Option<Making<'a>>,
    /// What its codes are multiplied with, if the weight has floats in their place.
    pub scales: Option<Arc<Scales<'a>>>,
    /// Elements of a row of the tensor.
    pub width: usize,
    /// Elements from one row to the next, which may be several rows of the tensor.
    pub stride: usize,
    /// Rows and columns of the tensor, in the order of the weight; a vector is one row. Where
    /// places are left out along a row ([`Form::step`]), it is the first one's place, and how many
    /// there are.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Row and column of the weight at which the first element goes.
    pub at: (usize, usize),
}

impl Piece<'_> {
    /// The number of the first element in the tensor, and how many it is from one row of the weight
    /// to the next, and from one column to the next.
    pub fn places(&self) -> (usize, usize, usize) {
        let step = self.form.map_or(1, |form| form.step);
        match self.form {
            Some(form) if form.turned => (self.cols.start * self.stride + self.rows.start, step, self.stride),
            _ => (self.rows.start * self.stride + self.cols.start, self.stride, step),
        }
    }

    /// The row of the tensor that goes into a row of the weight.
    #[inline(always)]
    fn source_row(&self, row: usize) -> Option<usize> {
        let row = row.checked_sub(self.at.0)? + self.rows.start;
        (row < self.rows.end).then_some(row)
    }
}

/// Fills rows of a weight. `out` is the part of its buffer that begins with the first of the rows.
/// Padding is not written: it is zero from the start.
pub(super) fn fill(weight: &Weight, pieces: &[Piece], rows: Range<usize>, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
    {
        // SAFETY: the features are there.
        return unsafe { fill_avx512(weight, pieces, rows, out) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there.
        return unsafe { fill_avx2(weight, pieces, rows, out) };
    }
    fill_any(weight, pieces, rows, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn fill_avx512(weight: &Weight, pieces: &[Piece], rows: Range<usize>, out: &mut [u8]) {
    fill_any(weight, pieces, rows, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(weight: &Weight, pieces: &[Piece], rows: Range<usize>, out: &mut [u8]) {
    fill_any(weight, pieces, rows, out);
}

/// The loops are inlined into each caller and vectorised for it.
#[inline(always)]
fn fill_any(weight: &Weight, pieces: &[Piece], rows: Range<usize>, out: &mut [u8]) {
    let first = rows.start;
    if weight.dtype.bits() < 8 {
        return fill_halves(weight, pieces, rows, out);
    }
    let mut stage = Stage::new(weight.dtype);
    match weight.layout {
        Layout::Rows { stride } => {
            for (row, piece) in rows.flat_map(|row| pieces.iter().map(move |piece| (row, piece))) {
                fill_row(piece, row, &mut stage, out, (row - first) * stride);
            }
        }
        Layout::Panels { width, group, cols, .. } => {
            let panels = Panels { width, group, panel: width * cols, size: weight.dtype.size() };
            for start in rows.clone().step_by(width) {
                let panel = &mut out[(start - first) / width * panels.panel * panels.size..];
                for piece in pieces {
                    panels.fill(piece, start..rows.end.min(start + width), &mut stage, panel);
                }
            }
        }
    }
}

/// The same of codes that are half a byte, which lie in their pieces as they lie in the weight:
/// whole bytes are copied, and those at the ends of a row may be shared with another piece.
#[inline(always)]
fn fill_halves(weight: &Weight, pieces: &[Piece], rows: Range<usize>, out: &mut [u8]) {
    let first = rows.start;
    for (row, piece) in rows.flat_map(|row| pieces.iter().map(move |piece| (row, piece))) {
        let Some(source) = piece.source_row(row) else { continue };
        let Tensor::Bytes { bytes, .. } = piece.data else { unreachable!("codes of half a byte were decoded") };
        let codes = &bytes[source * piece.stride / 2..];
        let (start, end) = (piece.cols.start, piece.cols.end);
        let (low, high) = (start.div_ceil(2), end / 2);
        let (col, row) = ((piece.at.1 - start) / 2, row - first);
        let (panels, out) = match weight.layout {
            // A row is a panel that is one group wide.
            Layout::Rows { stride } => {
                let all = stride / 2;
                (Panels { width: 1, group: all.max(1), panel: all, size: 1 }, &mut out[row * all..])
            }
            Layout::Panels { width, group, cols, .. } => {
                let panel = width * cols / 2;
                (Panels { width, group: group / 2, panel, size: 1 }, &mut out[row / width * panel..])
            }
        };
        let row = row % panels.width;
        panels.scatter(&codes[low..high], row, col + low, out);
        let mut share = |byte: usize, mask: u8| {
            let out = &mut out[panels.place(row, col + byte)];
            *out = *out & !mask | codes[byte] & mask;
        };
        if start % 2 == 1 {
            share(start / 2, 0xf0);
        }
        if end % 2 == 1 {
            share(end / 2, 0x0f);
        }
    }
}

/// One row of a piece into a row that begins at element `start` of `out`.
#[inline(always)]
fn fill_row(piece: &Piece, row: usize, stage: &mut Stage, out: &mut [u8], start: usize) {
    let Some(source) = piece.source_row(row) else { return };
    let size = stage.to.size();
    let at = source * piece.stride + piece.cols.start;
    let out = &mut out[(start + piece.at.1) * size..][..piece.cols.len() * size];
    if let Some(bytes) = stage.same(piece, at, piece.cols.len()) {
        return out.copy_from_slice(bytes);
    }
    for (index, out) in out.chunks_mut(RUN * size).enumerate() {
        out.copy_from_slice(stage.run(piece, at + index * RUN, out.len() / size));
    }
}

/// The measures of [`Layout::Panels`], `panel` being the elements of a whole panel.
struct Panels {
    width: usize,
    group: usize,
    panel: usize,
    size: usize,
}

impl Panels {
    /// The part of one panel that comes from one piece.
    #[inline(always)]
    fn fill(&self, piece: &Piece, rows: Range<usize>, stage: &mut Stage, panel: &mut [u8]) {
        let first = rows.start;
        for skip in (0..piece.cols.len()).step_by(RUN) {
            let len = RUN.min(piece.cols.len() - skip);
            for row in rows.clone() {
                let Some(source) = piece.source_row(row) else { continue };
                let run = stage.run(piece, source * piece.stride + piece.cols.start + skip, len);
                self.scatter(run, row - first, piece.at.1 + skip, panel);
            }
        }
    }

    /// The number of an element.
    #[inline(always)]
    fn place(&self, row: usize, col: usize) -> usize {
        (col / self.group * self.width + row) * self.group + col % self.group
    }

    /// Puts a run in its place: whole groups at once, the ends that share a group with another run
    /// one by one.
    #[inline(always)]
    fn scatter(&self, run: &[u8], row: usize, col: usize, panel: &mut [u8]) {
        let (size, group) = (self.size, self.group);
        let len = run.len() / size;
        let head = (col.next_multiple_of(group) - col).min(len);
        let whole = (len - head) / group * group;
        let place = |col: usize| self.place(row, col) * size;
        for i in (0..head).chain(head + whole..len) {
            panel[place(col + i)..][..size].copy_from_slice(&run[i * size..][..size]);
        }
        if whole > 0 {
            let run = &run[head * size..(head + whole) * size];
            let (out, step) = (&mut panel[place(col + head)..], self.width * group * size);
            match group * size {
                2 => spread::<2>(run, out, step),
                4 => spread::<4>(run, out, step),
                8 => spread::<8>(run, out, step),
                16 => spread::<16>(run, out, step),
                bytes => run
                    .chunks_exact(bytes)
                    .enumerate()
                    .for_each(|(i, group)| out[i * step..][..bytes].copy_from_slice(group)),
            }
        }
    }
}

/// Puts every `BYTES` bytes of the run `step` bytes after the last.
#[inline(always)]
fn spread<const BYTES: usize>(run: &[u8], out: &mut [u8], step: usize) {
    for (out, group) in out.chunks_mut(step).zip(run.as_chunks::<BYTES>().0) {
        out[..BYTES].copy_from_slice(group);
    }
}

/// Where a run is converted on its way.
struct Stage {
    to: DType,
    floats: [f32; RUN],
    halves: [u16; RUN],
    bytes: [u8; RUN * 4],
}

impl Stage {
    fn new(to: DType) -> Stage {
        Stage { to, floats: [0.0; RUN], halves: [0; RUN], bytes: [0; RUN * 4] }
    }

    /// The bytes themselves, where the tensor has the weight's type and its numbers stay as they
    /// are.
    #[inline(always)]
    fn same<'a>(&self, piece: &Piece<'a>, first: usize, len: usize) -> Option<&'a [u8]> {
        match (&piece.data, self.to) {
            _ if piece.offset != 0.0 => None,
            (Tensor::Bytes { float: Float::BF16, bytes }, DType::BF16)
            | (Tensor::Bytes { float: Float::F16, bytes }, DType::F16) => Some(&bytes[first * 2..][..len * 2]),
            (Tensor::Bytes { float: Float::F32, bytes }, DType::F32) => Some(&bytes[first * 4..][..len * 4]),
            (Tensor::Bytes { float: Float::Code(DType::I32 | DType::E8M0), .. }, DType::F32) => None,
            // Only a weight of such a type is made of them: the tensor was checked.
            (Tensor::Bytes { float: Float::Code(dtype), bytes }, _) => {
                Some(&bytes[first * dtype.size()..][..len * dtype.size()])
            }
            _ => None,
        }
    }

    /// A run in the weight's type. Rounds to nearest, ties to even; 64-bit numbers are rounded to
    /// 32 bits first.
    #[inline(always)]
    fn run<'a>(&'a mut self, piece: &Piece<'a>, first: usize, len: usize) -> &'a [u8] {
        if let Some(bytes) = self.same(piece, first, len) {
            return bytes;
        }
        if let (Tensor::Random(stream), false) = (piece.data, self.to.is_float()) {
            let size = self.to.size();
            let bytes = &mut self.bytes[..len * size];
            for (index, out) in (first as u64..).zip(bytes.chunks_exact_mut(size)) {
                out.copy_from_slice(&stream.code(index, self.to).to_le_bytes()[..size]);
            }
            return bytes;
        }
        let floats = &mut self.floats[..len];
        read(&piece.data, first, floats);
        if piece.offset != 0.0 {
            floats.iter_mut().for_each(|float| *float += piece.offset);
        }
        let bytes = &mut self.bytes[..len * self.to.size()];
        let halves = &mut self.halves[..len];
        match self.to {
            DType::BF16 => {
                halves.iter_mut().zip(floats).for_each(|(half, &mut float)| *half = bf16::from_f32(float).to_bits())
            }
            DType::F16 => {
                let mut rounded = [f16::ZERO; RUN];
                rounded[..len].convert_from_f32_slice(floats);
                halves.iter_mut().zip(&rounded).for_each(|(half, rounded)| *half = rounded.to_bits());
            }
            // 32-bit floats are stored as they are, and of floats no other weight is made.
            _ => {
                bytes.as_chunks_mut().0.iter_mut().zip(floats).for_each(|(out, float)| *out = float.to_le_bytes());
                return bytes;
            }
        }
        bytes.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(out, half)| *out = half.to_le_bytes());
        bytes
    }
}

/// Reads numbers of any kind as 32-bit floats, at most as many as a run has.
#[inline(always)]
pub(super) fn read(data: &Tensor, first: usize, out: &mut [f32]) {
    let len = out.len();
    match *data {
        Tensor::Values(values) => out.copy_from_slice(&values[first..][..len]),
        Tensor::Random(stream) => (first as u64..).zip(out).for_each(|(index, out)| *out = stream.at(index)),
        Tensor::Stored { .. } => unreachable!("what lies in files was fetched"),
        Tensor::Device { .. } => unreachable!("what lies on a device is packed there"),
        Tensor::Bytes { float, bytes } => {
            let bytes = &bytes[first * float.size()..][..len * float.size()];
            match float {
                Float::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
                Float::F16 => {
                    let mut halves = [f16::ZERO; RUN];
                    halves.iter_mut().zip(bytes.as_chunks().0).for_each(|(half, &b)| *half = f16::from_le_bytes(b));
                    halves[..len].convert_to_f32_slice(out);
                }
                Float::F32 => each(bytes, out, f32::from_le_bytes),
                Float::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
                Float::Code(DType::I32) => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
                Float::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
                Float::Code(DType::E8M0) => each(bytes, out, |[exponent]| power(exponent)),
                Float::Code(_) => unreachable!("codes are copied"),
            }
        }
    }
}

/// The power of two that a byte means, or none.
pub(super) fn power(exponent: u8) -> f32 {
    match exponent {
        // Less than the least normal number.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[inline(always)]
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    out.iter_mut().zip(bytes.as_chunks().0).for_each(|(out, &b)| *out = read(b));
}
