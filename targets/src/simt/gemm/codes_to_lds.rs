//! A quantised weight on its way from global to local memory, where it lies as the numbers that
//! products take. Threads load vectors of codes, and decode them after the products of the K tile
//! before.
//!
//! A single scale of a row is applied to the sums. Otherwise numbers are scaled here, which rounds
//! them.
use atomc_ir::{DType, Layout, TensorType};

use inkwell::values::FloatValue;

use crate::code::codes::{Decoder, Zero};
use crate::code::{Any, Int, Ptr, Vector, carried};
use crate::contraction::Encoding;
use crate::row::Operand;
use crate::schedule::WhyNot;
use crate::simt::gemm::codes::{Codes, codes_of_vec16, narrowed, scaled};
use crate::simt::gemm::contract::Panel;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Whether scales do not change inside a vector of numbers of a type.
pub fn check(encoding: &Encoding, dtype: DType) -> Result<(), WhyNot> {
    let vec16 = VEC16 / dtype.size();
    let whole = encoding.is_row_wise() || encoding.block.cols.is_multiple_of(vec16);
    encoding.refuse_if(!whole, &format!("{vec16} columns would have several scales"))
}

/// The tile of a work-group: panels, and columns of a stretch.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub panels: usize,
    pub columns: usize,
    pub threads: usize,
    pub blocks: Blocks,
    /// Whether scales are applied to sums also if a row has several.
    pub scales_sums: bool,
}

impl Tile {
    /// Words of codes in a piece: as many as a vector has, or fewer, so that each thread has a
    /// piece.
    fn words(&self, codes: DType) -> usize {
        let all = codes.bytes(16 * self.panels * self.columns) / 4;
        (all / self.threads).min(VEC16 / 4)
    }
}

/// The layout of decoded panels in local memory: blocks of 8 rows by 16 bytes of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// Bytes from one block to the next along a row, to the next 8 rows of a panel, and to the next
    /// panel.
    pub along: usize,
    pub down: usize,
    pub panel: usize,
}

/// Bytes of a block.
const BLOCK: usize = 8 * VEC16;

impl Blocks {
    /// Panels of `columns` columns in the layout that they have in memory.
    pub fn as_in_memory(columns: usize, dtype: DType) -> Blocks {
        Blocks { along: 2 * BLOCK, down: BLOCK, panel: columns * 16 * dtype.size() }
    }

    fn row<'c>(&self, row: Int<'c>) -> Int<'c> {
        if self.down == BLOCK { row * VEC16 } else { row / 8 * self.down + row % 8 * VEC16 }
    }
}

/// Loads a thread's part of each stretch.
pub struct CodesLoader<'k, 'c> {
    c: &'k Gpu<'c>,
    codes: &'k Codes<'c>,
    decoder: Decoder,
    scaling: Scaling,
    /// The decoder of zero points.
    zeros: Decoder,
    /// Whether scales are applied to sums.
    scales_sums: bool,
    /// The type of numbers in local memory.
    dtype: DType,
    tile: Tile,
    /// Words of a piece of a vector, and the thread's pieces.
    words: usize,
    pieces: Vec<Piece<'c>>,
}

/// How numbers are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Not scaled, or scaled in the type that they are decoded to.
    AsDecoded,
    /// By a power of two, in the instruction that decodes them.
    Converted,
    /// Pairs of bf16 times a power of two, computed as f32. The lower halves stay zero as long as
    /// the numbers are normal.
    Shifted,
    /// Pairs of bf16 as f32: a bf16 is the upper half of one.
    Widened,
    /// Pairs of bf16 as f32, for 4-bit integers: they are decoded with an offset, and offset times
    /// scale is subtracted. With a scale of 16 bits the result is exact, as is everything before
    /// the last rounding.
    Raised,
}

impl Scaling {
    /// With a decoder into a type: pairs are scaled by a scale that is exact in their type.
    fn of(c: &Gpu, encoding: &Encoding, own: &Decoder, dtype: DType, scales_sums: bool) -> Option<Scaling> {
        let is_power = encoding.scale == DType::E8M0;
        let exact = own.multiplies_pairs(c) && (encoding.scale == dtype || is_power && dtype == DType::BF16);
        let four = matches!(encoding.codes, DType::I4 | DType::U4);
        match own.makes_pairs() {
            _ if scales_sums => Some(Scaling::AsDecoded),
            // What is added is added in f32.
            true if encoding.least.is_some() && dtype == DType::BF16 => Some(Scaling::Widened),
            _ if encoding.least.is_some() => None,
            _ if is_power && own.takes_powers() => Some(Scaling::Converted),
            true if exact => Some(Scaling::AsDecoded),
            true if is_power && dtype == DType::BF16 => Some(Scaling::Shifted),
            true if dtype == DType::BF16 && four && encoding.scale.size() == 2 => Some(Scaling::Raised),
            true if dtype == DType::BF16 => Some(Scaling::Widened),
            _ => None,
        }
    }
}

/// A vector of codes of a row, or a part of it.
struct Piece<'c> {
    /// The address in the first stretch.
    from: Ptr<'c>,
    /// The panel, the row in it, and the column in the stretch.
    panel: Panel<'c>,
    row: Int<'c>,
    column: Int<'c>,
    /// The byte of local memory where the numbers are stored.
    to: Int<'c>,
}

/// A piece with the scales, and the zero points or least numbers, of its parts.
pub struct Loaded<'c> {
    words: Vec<Int<'c>>,
    scales: Vec<Vector<'c>>,
    zeros: Vec<Option<Zero<'c>>>,
    least: Vec<Vector<'c>>,
}

carried!(Loaded { words, scales, zeros, least });

/// What numbers of a part are scaled with, and what is taken off or added.
#[derive(Clone, Copy)]
struct Marks<'c> {
    scale: Option<FloatValue<'c>>,
    zero: Option<Zero<'c>>,
    least: Option<FloatValue<'c>>,
}

impl<'k, 'c> CodesLoader<'k, 'c> {
    /// The loader of one of a tile's threads. `panel` gives the address of a panel by its place in
    /// the tile, and its number in the weight.
    pub fn new(
        c: &'k Gpu<'c>,
        codes: &'k Codes<'c>,
        dtype: DType,
        tile: Tile,
        thread: Int<'c>,
        panel: impl Fn(Int<'c>) -> (Ptr<'c>, Panel<'c>),
    ) -> CodesLoader<'k, 'c> {
        let vec16 = codes_of_vec16(codes.encoding.codes);
        let words = tile.words(codes.encoding.codes);
        let in_run = VEC16 / 4 / words;
        let of_panel = tile.columns / vec16 * 16 * in_run;
        let one = |i: usize| {
            let number = thread + i * tile.threads;
            let (place, inside) = (number / of_panel, number % of_panel);
            let (first, panel) = panel(place);
            let (number, part) = (inside / in_run, inside % in_run);
            let (row, column) = (number % 16, number / 16 * vec16 + part * (vec16 / in_run));
            let blocks = tile.blocks;
            let to = place * blocks.panel + column / (VEC16 / dtype.size()) * blocks.along + blocks.row(row);
            Piece { from: c.at(first, inside * (4 * words)), panel, row, column, to }
        };
        let pieces = (0..tile.panels * of_panel / tile.threads).map(one).collect();
        let own = Decoder::new(c.arch, codes.encoding.codes, dtype);
        let scales_sums = tile.scales_sums || codes.encoding.is_row_wise();
        let (decoder, scaling) = match Scaling::of(c, &codes.encoding, &own, dtype, scales_sums) {
            Some(scaling) => (own, scaling),
            None => (Decoder::new(c.arch, codes.encoding.codes, DType::F32), Scaling::AsDecoded),
        };
        let is_raised = scaling == Scaling::Raised;
        let zeros = if is_raised { Decoder::new(c.arch, codes.encoding.codes, DType::F32) } else { decoder };
        CodesLoader { c, codes, decoder, scaling, zeros, scales_sums, dtype, tile, words, pieces }
    }

    /// Codes of a piece.
    fn codes(&self) -> usize {
        32 * self.words / self.codes.encoding.codes.bits()
    }

    /// Parts of a piece that have a scale, and a zero point.
    fn parts(&self) -> usize {
        let encoding = &self.codes.encoding;
        let alike = self.scales_sums || encoding.block.cols.is_multiple_of(self.codes());
        if alike { 1 } else { self.codes() * self.dtype.size() / VEC16 }
    }

    /// Loads the thread's pieces of a stretch.
    pub fn load(&self, stretch: Int<'c>) -> Vec<Loaded<'c>> {
        let c = self.c;
        let (codes, parts) = (self.codes(), self.parts());
        let bytes = self.codes.encoding.codes.bytes(16 * self.tile.columns);
        let load = |one: &Piece<'c>| {
            let from = c.at(one.from, stretch * bytes);
            let words = c.load_vector(c.cx.i32_type(), self.words, from, 4 * self.words);
            let first = stretch * self.tile.columns + one.column;
            let group = |part: usize| self.codes.group(c, first + part * (codes / parts));
            let place = (one.panel, one.row);
            let scales = if self.scales_sums { 0 } else { parts };
            Loaded {
                words: (0..self.words).map(|i| c.as_int(c.lane(words, i))).collect(),
                scales: (0..scales).map(|part| self.codes.scales(c, place, 1, group(part))).collect(),
                zeros: (0..parts).map(|part| self.codes.zero(c, &self.zeros, place, group(part))).collect(),
                least: (0..parts).filter_map(|part| self.codes.least(c, place, 1, group(part))).collect(),
            }
        };
        self.pieces.iter().map(load).collect()
    }

    /// Stores loaded pieces at their places in local memory.
    pub fn put(&self, half: Ptr<'c>, loaded: &[Loaded<'c>]) {
        let c = self.c;
        for (piece, loaded) in self.pieces.iter().zip(loaded) {
            let to = c.at(half, piece.to);
            for (i, words) in self.numbers(loaded).chunks(VEC16 / 4).enumerate() {
                c.store(c.at(to, i * self.tile.blocks.along), c.words(words), VEC16 as u32);
            }
        }
    }

    /// The words of a piece's numbers.
    fn numbers(&self, loaded: &Loaded<'c>) -> Vec<Int<'c>> {
        let parts = loaded.zeros.len();
        let of_part = loaded.words.len() / parts;
        if of_part == 0 {
            return self.numbers_of_bits(loaded);
        }
        let part = |(i, words): (usize, &[Int<'c>])| {
            let marks = self.marks(loaded, i);
            self.scaled(self.decode(words, marks), marks)
        };
        loaded.words.chunks(of_part).enumerate().flat_map(part).collect()
    }

    /// The numbers of a word that has several parts.
    fn numbers_of_bits(&self, loaded: &Loaded<'c>) -> Vec<Int<'c>> {
        let parts = loaded.zeros.len();
        let in_word = parts / loaded.words.len();
        let part = |i: usize| {
            let marks = self.marks(loaded, i);
            let numbers = self.decode(&loaded.words[i / in_word..][..1], marks);
            let of_part = numbers.len() / in_word;
            let own = numbers[i % in_word * of_part..][..of_part].to_vec();
            self.scaled(own, marks)
        };
        (0..parts).flat_map(part).collect()
    }

    /// The marks of a part.
    fn marks(&self, loaded: &Loaded<'c>, part: usize) -> Marks<'c> {
        let number = |all: &[Vector<'c>]| all.get(part).map(|&one| self.c.lane(one, 0).into_float_value());
        Marks { scale: number(&loaded.scales), zero: loaded.zeros[part], least: number(&loaded.least) }
    }

    fn decode(&self, words: &[Int<'c>], marks: Marks<'c>) -> Vec<Int<'c>> {
        let c = self.c;
        match (self.scaling, marks.scale) {
            (Scaling::Raised, _) => self.decoder.raised_pairs(c, words),
            (Scaling::Converted, Some(scale)) => self.decoder.times_power(c, words, scale),
            _ => self.decoder.decode(c, words, marks.zero),
        }
    }

    /// Numbers times their scale, if they have one here, in the type of local memory.
    fn scaled(&self, numbers: Vec<Int<'c>>, Marks { scale, zero, least }: Marks<'c>) -> Vec<Int<'c>> {
        let c = self.c;
        let Some(scale) = scale else { return numbers };
        let halves = || numbers.iter().flat_map(|&two| [two.shift_left(16), two & 0xffff_0000]).collect::<Vec<_>>();
        match self.scaling {
            Scaling::Converted => numbers,
            Scaling::AsDecoded if least.is_some() => {
                narrowed(c, &numbers, self.dtype, |floats| scaled(c, floats, scale, least))
            }
            Scaling::AsDecoded => {
                let numbers = self.decoder.scaled(c, &numbers, scale);
                let done = self.decoder.makes_pairs() || self.dtype == DType::F32;
                if done { numbers } else { narrowed(c, &numbers, self.dtype, |floats| floats) }
            }
            Scaling::Shifted => {
                let lanes = c.lanes();
                c.set_lanes(2 * numbers.len());
                let floats = c.bitcast(c.words(&halves()), c.f32s()).into_vector_value();
                let made = c.fmul(floats, c.splat(scale));
                let made = c.bitcast(made, c.cx.i32_type().vec_type(2 * numbers.len() as u32)).into_vector_value();
                c.set_lanes(lanes);
                let upper = |i: usize| c.as_int(c.lane(made, i));
                (0..numbers.len())
                    .map(|i| upper(2 * i).shift_right(16, false) | (upper(2 * i + 1) & 0xffff_0000))
                    .collect()
            }
            Scaling::Widened => narrowed(c, &halves(), self.dtype, |floats| scaled(c, floats, scale, least)),
            Scaling::Raised => {
                let off = self.decoder.raised_by(c, zero);
                let off = c.b.build_float_mul(off, scale, "").expect("floats");
                let off = c.b.build_float_neg(off, "").expect("a float");
                narrowed(c, &halves(), self.dtype, |floats| c.fma(floats, c.splat(scale), c.splat(off)))
            }
        }
    }
}

/// Quantised rows on their way into local memory: threads load 8 codes at a time. If a row has one
/// scale, the codes are stored as bf16, and the scale is applied to sums. Otherwise they are stored
/// as scaled numbers, in f32.
pub struct CodedRows<'k, 'c> {
    c: &'k Gpu<'c>,
    decoder: Decoder,
    columns: usize,
    /// If scales are applied here: the byte of a row at which its scales begin, the columns of a
    /// scale, and the index of the last scale.
    scales: Option<(usize, usize, usize)>,
    pieces: Vec<RowPiece<'c>>,
}

/// Codes of a row.
struct RowPiece<'c> {
    row: Ptr<'c>,
    /// The first column in a stretch.
    column: Int<'c>,
    /// The byte of local memory where the numbers are stored.
    to: Int<'c>,
}

/// Codes of a piece.
const CODES: usize = 8;

impl<'k, 'c> CodedRows<'k, 'c> {
    /// Whether scales do not change inside a piece.
    pub fn check(x: &TensorType) -> Result<(), WhyNot> {
        let width = x.shape.last();
        let fits = |group: usize| Some(group) >= width || group.is_multiple_of(CODES);
        let fits = !matches!(x.layout, Layout::Scaled(group) if !fits(group));
        WhyNot::unless(fits, || format!("rows of {x}: {CODES} columns would have several scales"))
    }

    /// Loads blocks of 16 rows, as many as the tile has panels. `source` gives the row of x for the
    /// first column of a block and a row of that block.
    pub fn new(
        c: &'k Gpu<'c>,
        x: &Operand<'c>,
        (dtype, tile): (DType, Tile),
        source: impl Fn(Int<'c>, Int<'c>) -> Int<'c>,
    ) -> CodedRows<'k, 'c> {
        let of_block = tile.columns / CODES * 16;
        let one = |i: usize| {
            let number = c.thread() + i * tile.threads;
            let (block, inside) = (number / of_block, number % of_block);
            let (row, column) = (inside % 16, inside / 16 * CODES);
            let place = block * (tile.columns * 16 * dtype.size()) + column * (16 * dtype.size()) + row * VEC16;
            let row = c.to_i64(source(block * 16, row));
            RowPiece { row: c.at(x.ptr, row * x.stride), column, to: place }
        };
        let pieces = (0..tile.panels * of_block / tile.threads).map(one).collect();
        let width = x.ty.shape.last().unwrap_or(0);
        let scales = match x.ty.layout {
            Layout::Scaled(group) if group < width && !tile.scales_sums => {
                Some((c.arch.memory.padded(width), group, width.div_ceil(group) - 1))
            }
            _ => None,
        };
        CodedRows { c, decoder: Decoder::new(c.arch, x.ty.dtype, dtype), columns: tile.columns, scales, pieces }
    }

    /// Codes of each piece, with their scale if it is applied here.
    pub fn load(&self, stretch: Int<'c>) -> Vec<(Vector<'c>, Option<Any<'c>>)> {
        let c = self.c;
        let load = |piece: &RowPiece<'c>| {
            let column = stretch * self.columns + piece.column;
            let codes = c.load_vector(c.cx.i32_type(), CODES / 4, c.at(piece.row, column), CODES);
            let scale = self.scales.map(|(behind, group, last)| {
                let group = c.smaller(column / group, last);
                c.load(c.cx.f32_type(), c.at(piece.row, group * 4 + behind), 4)
            });
            (codes, scale)
        };
        self.pieces.iter().map(load).collect()
    }

    /// Stores loaded pieces in the rows' part of local memory.
    pub fn put(&self, rows: Ptr<'c>, loaded: &[(Vector<'c>, Option<Any<'c>>)]) {
        let c = self.c;
        for (piece, &(codes, scale)) in self.pieces.iter().zip(loaded) {
            let words: Vec<Int> = (0..CODES / 4).map(|i| c.as_int(c.lane(codes, i))).collect();
            let numbers = self.decoder.decode(c, &words, None);
            let numbers = match scale {
                Some(scale) => self.decoder.scaled(c, &numbers, scale.into_float_value()),
                None => numbers,
            };
            for (i, words) in numbers.chunks(VEC16 / 4).enumerate() {
                c.store(c.at(c.at(rows, piece.to), i * 16 * VEC16), c.words(words), VEC16 as u32);
            }
        }
    }
}
