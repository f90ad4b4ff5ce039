//! Operands with numbers that follow from their places. So any part can be made alone: the
//! reference makes the numbers that it reads, a device all of them in pieces.
use super::{Trial, bytes, scale_of};
use crate::arch::{Memory, RowScales};
use crate::interp::Tensor;
use crate::layout::Panels;
use crate::types::{DType, Layout, TensorType};

/// Numbers that one hash gives.
const RUN: usize = 8;

/// The numbers of a tensor.
#[derive(Clone, Debug)]
pub struct Source {
    ty: TensorType,
    shape: Vec<usize>,
    key: u64,
    /// What each byte of a hash becomes.
    values: Vec<f64>,
    /// The bits of these in the tensor's type.
    bits: Vec<u32>,
}

impl Source {
    /// A tensor of this shape with numbers made by `number`. It is called with all numbers between
    /// -1 and 1 in steps of 1/128.
    pub fn new(ty: &TensorType, shape: Vec<usize>, key: u64, number: impl Fn(f64) -> f64) -> Source {
        let scaled = ty.layout.is_coded();
        let value = |byte: i32| {
            let value = number(f64::from(byte - 128) / 128.0);
            // Codes have no negative zeros: for chips with matrix instructions that have none,
            // neither the loader nor kernels that quantise make any.
            match ty.dtype.is_code() {
                _ if scaled => value,
                true => bytes::round(value, ty.dtype) + 0.0,
                false => bytes::round(value, ty.dtype),
            }
        };
        let values: Vec<f64> = (0..256).map(value).collect();
        let bits = values.iter().map(|&v| bytes::to_bits(v, ty.dtype)).collect();
        Source { ty: ty.clone(), shape, key, values, bits }
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Its sizes in the step.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements of a row: those that lie side by side.
    pub fn width(&self) -> usize {
        self.ty.width()
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.shape.iter().product::<usize>() / self.width().max(1)
    }

    /// The hash of a run of numbers: two rounds of SplitMix64's.
    fn run(&self, row: usize, run: usize) -> [u8; RUN] {
        let mix = |z: u64| {
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let row = self.key.wrapping_add((row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mix(mix(row).wrapping_add((run as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))).to_le_bytes()
    }

    /// An element of a tensor without scales of rows.
    pub fn at(&self, row: usize, col: usize) -> f64 {
        self.values[usize::from(self.run(row, col / RUN)[col % RUN])]
    }

    /// Appends the numbers of a row.
    pub fn row(&self, row: usize, to: &mut Vec<f64>) {
        let (first, width) = (to.len(), self.width());
        for run in 0..width.div_ceil(RUN) {
            let len = (width - run * RUN).min(RUN);
            to.extend(self.run(row, run)[..len].iter().map(|&byte| self.values[usize::from(byte)]));
        }
        if let Layout::Scaled(group) | Layout::Mx(group) = self.ty.layout {
            for values in to[first..].chunks_mut(group) {
                let scale = scale_of(values, self.ty.dtype);
                values.iter_mut().for_each(|v| *v = (bytes::round(*v / scale, self.ty.dtype) + 0.0) * scale);
            }
        }
    }

    /// All numbers.
    pub fn tensor(&self) -> Tensor<f64> {
        let mut data = Vec::with_capacity(self.shape.iter().product());
        (0..self.rows()).for_each(|row| self.row(row, &mut data));
        Tensor::new(self.shape.clone(), data)
    }

    /// The bytes of a row without padding, for a tensor without scales of rows.
    fn row_bytes(&self, row: usize, to: &mut [u8]) {
        let (width, bits) = (self.width(), self.ty.dtype.bits());
        for (run, to) in to.chunks_mut(RUN * bits / 8).enumerate() {
            let len = (width - run * RUN).min(RUN);
            let hash = self.run(row, run);
            let number = |i: usize| self.bits[usize::from(hash[i])];
            match bits {
                4 => (0..len.div_ceil(2)).for_each(|i| {
                    let high = if 2 * i + 1 < len { number(2 * i + 1) & 15 } else { 0 };
                    to[i] = (number(2 * i) & 15 | high << 4) as u8;
                }),
                8 => (0..len).for_each(|i| to[i] = number(i) as u8),
                16 => (0..len).for_each(|i| to[2 * i..][..2].copy_from_slice(&(number(i) as u16).to_le_bytes())),
                _ => (0..len).for_each(|i| to[4 * i..][..4].copy_from_slice(&number(i).to_le_bytes())),
            }
        }
    }
}

/// A tensor as it lies in memory: pieces of as many bytes each, panels or rows.
#[derive(Clone, Debug)]
pub struct Placing<'t> {
    source: &'t Source,
    form: Form,
    /// How many pieces there are.
    pub pieces: usize,
    /// Bytes of each.
    pub piece: usize,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// The panels of matrices of `rows` rows.
    Panels { panels: Panels, rows: usize },
    /// Rows, padded with zeros.
    Rows { padded: usize },
    /// Rows of codes with their scales.
    Scaled(RowScales),
}

impl<'t> Placing<'t> {
    pub(super) fn new(source: &'t Source, memory: &Memory) -> Placing<'t> {
        let (ty, shape) = (&source.ty, &source.shape);
        if let &[ref experts @ .., rows, cols] = &shape[..]
            && let Some(panels) = Panels::in_layout(ty.layout, [rows, cols], ty.dtype, memory)
        {
            let each = panels.rows / panels.width;
            let pieces = experts.iter().product::<usize>() * each;
            return Placing { source, form: Form::Panels { panels, rows }, pieces, piece: panels.bytes / each };
        }
        let (width, rows) = (source.width(), source.rows());
        match memory.row_scales(ty) {
            Some(scales) => {
                let piece = ty.dtype.bytes(memory.result_stride(ty));
                Placing { source, form: Form::Scaled(scales), pieces: rows, piece }
            }
            None => {
                let (padded, piece) = (ty.dtype.bytes(memory.padded(width)), ty.dtype.bytes(memory.stride(width)));
                Placing { source, form: Form::Rows { padded }, pieces: rows, piece }
            }
        }
    }

    /// What tells it from any other: all numbers follow from it.
    pub fn tag(&self) -> String {
        format!("{} {:x}", self.source.ty, self.source.key)
    }

    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.pieces * self.piece
    }

    /// Writes whole pieces from `first` on, on `threads` threads.
    pub fn write(&self, first: usize, to: &mut [u8], threads: usize) {
        let share = (to.len() / self.piece.max(1)).div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (number, to) in to.chunks_mut(share * self.piece).enumerate() {
                let mut part = move || {
                    let mut memory = Vec::new();
                    let pieces = to.chunks_mut(self.piece).enumerate();
                    pieces.for_each(|(piece, to)| self.one(first + number * share + piece, to, &mut memory));
                };
                // Small tensors are not worth a thread.
                if threads > 1 && share * self.piece > 1 << 16 { drop(scope.spawn(part)) } else { part() }
            }
        });
    }

    fn one(&self, piece: usize, to: &mut [u8], memory: &mut Vec<u8>) {
        match self.form {
            Form::Panels { panels, rows } => self.panel(piece, (panels, rows), to, memory),
            Form::Rows { padded } => {
                let width = self.source.ty.dtype.bytes(self.source.width());
                // What lies between rows is not a number.
                to[padded..].fill(u8::MAX);
                to[width..padded].fill(0);
                self.source.row_bytes(piece, &mut to[..width]);
            }
            Form::Scaled(scales) => self.scaled(piece, scales, to),
        }
    }

    /// A panel: of each row of it a run of columns, and then the next run.
    fn panel(&self, piece: usize, (panels, rows): (Panels, usize), to: &mut [u8], memory: &mut Vec<u8>) {
        let each = panels.rows / panels.width;
        let (matrix, first) = (piece / each, piece % each * panels.width);
        let (dtype, width) = (self.source.ty.dtype, self.source.width());
        to.fill(0);
        let whole = panels.group * dtype.bits() % 8 == 0;
        memory.resize(dtype.bytes(width), 0);
        for row in first..(first + panels.width).min(rows) {
            let number = matrix * rows + row;
            if !whole {
                // Groups that are no whole bytes lie in others' bytes.
                let at =
                    |col: usize| (col / panels.group * panels.width + row - first) * panels.group + col % panels.group;
                (0..width).for_each(|col| bytes::store(to, at(col), self.source.at(number, col), dtype));
                continue;
            }
            self.source.row_bytes(number, memory);
            let group = panels.group * dtype.bits() / 8;
            for (from, to) in memory.chunks(group).zip(to[(row - first) * group..].chunks_mut(panels.width * group)) {
                to[..from.len()].copy_from_slice(from);
            }
        }
    }

    /// Writes a row of codes, followed by its scales. These are powers of two, so the values are
    /// exact.
    fn scaled(&self, row: usize, of_row: RowScales, to: &mut [u8]) {
        let dtype = self.source.ty.dtype;
        let mut values = Vec::with_capacity(self.source.width());
        self.source.row(row, &mut values);
        place_scaled(&values, dtype, of_row, to);
    }
}

/// Writes a row of codes with its scales; the bytes after them are not a number.
pub(super) fn place_scaled(values: &[f64], dtype: DType, of_row: RowScales, to: &mut [u8]) {
    to.fill(u8::MAX);
    let (codes, scales) = to.split_at_mut(of_row.first);
    codes.fill(0);
    (0..of_row.count).for_each(|number| bytes::store(scales, number, 1.0, of_row.dtype));
    for (number, values) in values.chunks(of_row.group).enumerate() {
        let scale = scale_of(values, dtype);
        bytes::store(scales, number, scale, of_row.dtype);
        let first = number * of_row.group;
        values.iter().enumerate().for_each(|(i, v)| bytes::store(codes, first + i, v / scale, dtype));
    }
}

impl Trial<'_> {
    /// How a tensor operand lies in memory, by its number.
    pub fn placing(&self, operand: usize) -> Option<Placing<'_>> {
        match self.params.get(operand)? {
            super::Param::Numbers(source) => Some(Placing::new(source, &self.memory)),
            _ => None,
        }
    }
}
