//! Rows as digits, which are multiplied with codes of integers as they lie.
//!
//! A matrix instruction has 8 columns, and few tokens leave most of them idle. Here a row is a row
//! of fixed-point numbers of 32 bits, each four digits of 8 bits with a sign, and each digit is a
//! column. Codes of 4 bits become bytes by two instructions for four of them, codes of 8 bits are
//! bytes; as numbers of 16 bits they would take four times as many. Sums of integers are exact.
use atomc_ir::DType;
use inkwell::values::FloatValue;

use super::coded::{Coded, Coding, SlotAt};
use super::{Group, Shape, Turn};
use crate::code::{Any, Int, Ptr};
use crate::contraction::Encoding;
use crate::simt::gemm::contract::Contraction;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Digits of a number, and tokens whose digits are the columns of one product.
const DIGITS: usize = 4;
pub const TILE: usize = 8 / DIGITS;
/// Most tokens, and most bytes of their digits: more take longer to make than the codes do.
const TOKENS: usize = 4;
const BYTES: usize = 64 << 10;
/// Steps of 32 columns that are added up as integers, at most: with bytes of either, their sums
/// stay below 2^21.
const SPAN: usize = 4;
/// The number 1.5 * 2^23 as bits: integers below 2^22 that are added to these bits are added to the
/// number.
const BASE: (u64, f64) = (0x4b40_0000, 12_582_912.0);
/// Bytes between planes of digits, beside whole lines of banks: lanes of other digits have others.
const APART: usize = 32;

/// How codes become bytes.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    codes: DType,
}

impl Bytes {
    /// What the bytes are multiples of a code's number by, and the number whose byte is zero.
    fn unit(self) -> (usize, usize) {
        match self.codes {
            DType::I4 => (16, 0),
            DType::U4 => (16, 8),
            DType::U8 => (1, 128),
            DType::F4E2M1 => (4, 0),
            _ => (1, 0),
        }
    }

    /// The columns of each of the two words that come of four codes: of 4 bits those of a word are
    /// its even ones and its odd ones, or, where a table has their bytes, its first and its last.
    fn order(self) -> [[usize; 4]; 2] {
        match self.codes {
            DType::I4 | DType::U4 => [[0, 2, 4, 6], [1, 3, 5, 7]],
            _ => [[0, 1, 2, 3], [4, 5, 6, 7]],
        }
    }

    /// A word of 4-bit codes as two words of bytes.
    fn of_word<'c>(self, c: &Gpu<'c>, word: Int<'c>) -> [Int<'c>; 2] {
        let sign = if self.codes == DType::U4 { 0x8080_8080 } else { 0 };
        if self.codes != DType::F4E2M1 {
            return [word.shift_left(4), word].map(|word| (word & 0xf0f0_f0f0) ^ sign);
        }
        // A table's byte is chosen by three bits. Where the fourth is set it is the byte's sign
        // instead, and no byte has one: so what one word chooses is zero in the other. Half a
        // negative number as 7 bits, moved up, is the number.
        let table = |bytes: [u8; 8]| {
            let half = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
            [0, 4].map(|i| c.int(half(i) as usize))
        };
        let four_times = [0, 2, 4, 6, 8, 12, 16, 24];
        let (positive, negative) = (table(four_times), table(four_times.map(|v| (128 - v / 2) % 128)));
        let other = word ^ 0x8888_8888;
        [0, 16].map(|by| {
            let chosen =
                |[low, high]: [Int<'c>; 2], word: Int<'c>| c.choose_bytes(low, high, word.shift_right(by, false));
            chosen(positive, word) + chosen(negative, other).shift_left(1)
        })
    }
}

/// Whether a work-group makes digits of its rows: a weight of integers, or of so few codes that
/// they are some, and rows that it has as a whole.
pub fn suit(shape: &Shape, encoding: Option<Encoding>) -> bool {
    let integers = [DType::I4, DType::U4, DType::I8, DType::U8, DType::F4E2M1];
    let is_coded = encoding.is_some_and(|encoding| integers.contains(&encoding.codes));
    let fits = |coded: Coded| !coded.rows && coded.group.is_none_or(usize::is_power_of_two);
    let few = shape.tokens <= TOKENS && shape.tokens * plane_bytes(shape) * DIGITS <= BYTES;
    is_coded && shape.coded.is_some_and(fits) && few && shape.cluster == 1 && shape.is_whole()
}

/// Bytes from one plane of digits to the next.
fn plane_bytes(shape: &Shape) -> usize {
    shape.columns().next_multiple_of(128) + APART
}

/// Bytes of local memory for digits, and for what they are found with.
pub fn bytes(shape: &Shape) -> usize {
    shape.tokens * (DIGITS * plane_bytes(shape) + 4 * shape.waves() + 4)
}

/// Rows as digits, in local memory.
pub struct Digits<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    how: Bytes,
    /// Planes of digits, a token's beside each other.
    planes: Ptr<'c>,
    /// The largest number of each wave's part of a token, and what a token's digits count.
    tops: Ptr<'c>,
    units: Ptr<'c>,
}

impl<'s, 'k, 'a, 'c> Digits<'s, 'k, 'a, 'c> {
    pub fn begin(contraction: &'s Contraction<'k, 'a, 'c>, shape: Shape, encoding: Encoding) -> Digits<'s, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        Digits {
            contraction,
            shape,
            how: Bytes { codes: encoding.codes },
            planes: c.shared(shape.tokens * DIGITS * plane_bytes(&shape), 128),
            tops: c.shared(shape.tokens * shape.waves() * 4, 16),
            units: c.shared(shape.tokens * 4, 4),
        }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// Eight numbers of a staged row.
    fn numbers(&self, staged: Int<'c>, token: usize, vector: Int<'c>) -> Vec<FloatValue<'c>> {
        let (c, shape, dtype) = (self.code(), self.shape, self.contraction.matrix.dtype);
        let p = c.at_address(staged + (vector * shape.vec16_bytes() + token * shape.token_bytes()));
        c.set_lanes(8);
        let v = c.widen(c.load_vector(c.bytes_type(dtype.size()), 8, p, VEC16), dtype);
        (0..8).map(|i| c.lane(v, i).into_float_value()).collect()
    }

    /// Makes digits of the rows that are staged there. Threads meet before they are read.
    pub fn make(&self, staged: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let (vectors, threads, word) = (shape.columns() / 8, shape.threads(), c.cx.i32_type());
        let top_at = |token: usize, wave: Int<'c>| c.at(self.tops, (wave + token * shape.waves()) * 4);
        for token in 0..shape.tokens {
            let none = word.const_zero().into();
            let top = c.for_each((c.thread(), vectors, threads), &[none], |i, top| {
                let bits = |v: FloatValue<'c>| c.as_int(c.bitcast(v, word)) & 0x7fff_ffff;
                let all = self.numbers(staged, token, i).into_iter().map(bits);
                vec![all.fold(c.as_int(top[0]), |a, b| c.larger(a, b)).into()]
            });
            c.store(top_at(token, c.wave_index()), c.largest_of_wave(c.as_int(top[0])), 4);
        }
        c.barrier();
        for token in 0..shape.tokens {
            let load = |wave: usize| c.as_int(c.load(word, top_at(token, c.int(wave)), 4));
            let top = (1..shape.waves()).fold(load(0), |top, wave| c.larger(top, load(wave)));
            // Numbers stay below 2^30, so that digits carry into the highest and not beyond.
            let exponent = top.shift_right(23, false);
            let safe = c.larger(exponent, 30);
            let power = |exponent: Int<'c>| c.bitcast(exponent.shift_left(23), c.cx.f32_type()).into_float_value();
            let scale = power(283 - safe);
            c.when(c.equal(c.thread(), 0), || {
                // What is infinite, or no number, makes a row of no numbers.
                let unit = c.pick(c.equal(exponent, 255), c.number(f64::NAN), power(safe - 29));
                let (times, _) = self.how.unit();
                let unit = c.b.build_float_mul(unit.into_float_value(), c.number(1.0 / times as f64), "");
                c.store(c.at(self.units, token * 4), unit.expect("floats"), 4);
            });
            c.repeat(c.thread(), vectors, threads, |i| {
                let digits = |v: FloatValue<'c>| {
                    let v = c.b.build_float_mul(v, scale, "").expect("floats");
                    (c.nearest(v) + 0x8080_8080) ^ 0x8080_8080
                };
                let all: Vec<Int> = self.numbers(staged, token, i).into_iter().map(digits).collect();
                let [low, high] = self.how.order().map(|columns| transposed(c, columns.map(|i| all[i])));
                for (digit, words) in low.into_iter().zip(high).enumerate() {
                    self.store(token * DIGITS + digit, i, words.into());
                }
            });
        }
    }

    /// Stores a digit of eight numbers.
    fn store(&self, plane: usize, vector: Int<'c>, [low, high]: [Int<'c>; 2]) {
        let c = self.code();
        let at = |column: Int<'c>| c.at(self.planes, column + plane * plane_bytes(&self.shape));
        if self.how.codes.bits() == 4 {
            return c.store(at(vector * 8), c.words(&[low, high]), 8);
        }
        // A lane has four columns of both halves of 32.
        let (block, part) = (vector / 4, vector % 4);
        let first = block * 32 + part % 2 * 16 + part / 2 * 4;
        c.store(at(first), low, 4);
        c.store(at(first + 8), high, 4);
    }

    /// What the sums of a token count.
    pub fn scale(&self, token: Int<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.load(c.cx.f32_type(), c.at(self.units, token * 4), 4).into_float_value()
    }

    /// Where the lane's digits of each tile begin.
    fn places(&self) -> Vec<Int<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let (lane, planes) = (c.lane_index(), c.local_address(self.planes));
        let place = |tile: usize| {
            let plane = c.smaller(lane / 4 + 8 * tile, DIGITS * shape.tokens - 1);
            planes + (plane * plane_bytes(&shape) + lane % 4 * 8)
        };
        (0..shape.tiles()).map(place).collect()
    }

    /// Two digits' sums of a row of the lane as one number, which counts `scale` of its token.
    pub fn joined(&self, [low, high]: [FloatValue<'c>; 2]) -> FloatValue<'c> {
        let c = self.code();
        let add = |a, b| c.b.build_float_add(a, b, "").expect("floats");
        let mul = |a, b| c.b.build_float_mul(a, b, "").expect("floats");
        let both = add(mul(high, c.number(256.0)), low);
        let is_low = c.equal(c.lane_index() % 2, 0);
        let own = c.pick(is_low, both, mul(both, c.number(65536.0))).into_float_value();
        c.across(own, &[1], add)
    }

    /// The token whose sums a lane has behind [`Digits::joined`], of a tile. Every other lane has
    /// the same again.
    pub fn token(&self, tile: usize) -> (Int<'c>, Int<'c>) {
        let (c, lane) = (self.code(), self.code().lane_index());
        let token = lane % 4 / 2 + TILE * tile;
        (token, c.equal(lane % 2, 0) & c.less(token, self.shape.tokens))
    }
}

/// Byte `i` of each of four words, as word `i`.
fn transposed<'c>(c: &Gpu<'c>, [x, y, z, w]: [Int<'c>; 4]) -> [Int<'c>; 4] {
    let choose = |a, b, bytes: usize| c.choose_bytes(a, b, c.int(bytes));
    let pairs = [0x5140, 0x7362].map(|bytes| (choose(x, y, bytes), choose(z, w, bytes)));
    let [(a, b), (d, e)] = pairs;
    [choose(a, b, 0x5410), choose(a, b, 0x7632), choose(d, e, 0x5410), choose(d, e, 0x7632)]
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The products of one slot of codes with digits.
    pub(super) fn slot_of_digits(
        &self,
        (coding, coded): (&Coding<'_, 'c>, Coded),
        digits: &Digits<'_, '_, '_, 'c>,
        at: SlotAt<'c>,
        turn: Turn<'c>,
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let base = self.weights.wait_full(turn);
        let span = coded.group.unwrap_or(SPAN).min(SPAN).min(shape.steps);
        // Blocks come in pairs.
        let unit = span.max(8 / coded.bits).min(shape.steps);
        let first = at.along * (shape.steps * 32);
        let places: Vec<Int> = digits.places().into_iter().map(|place| place + first).collect();
        let turn = |unit_at: Int<'c>, sums: &[Any<'c>]| {
            let place = Unit { coding, coded, how: digits.how, at, base, places: &places, span };
            self.unit_of_digits(&place, (unit_at, unit), sums)
        };
        match shape.steps / unit {
            1 => turn(c.int(0), sums),
            count => c.for_each((0, count, 1), sums, |i, sums| turn(i * unit, sums)),
        }
    }

    /// Some steps of a slot, from one on.
    fn unit_of_digits(&self, u: &Unit<'_, '_, 'c>, (first, steps): (Int<'c>, usize), sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let (tiles, how, in_pair) = (shape.tiles(), u.how, 8 / u.coded.bits);
        let word = c.cx.i32_type();
        let none = [c.as_int(word.const_int(BASE.0, false)); 4];
        let ones = [c.int(0x0101_0101); 4];
        let (mut sums, mut own) = (sums.to_vec(), vec![none; shape.pieces * tiles]);
        let is_off = u.coding.codes.encoding.zero.is_some() || how.unit().1 > 0;
        let mut columns = vec![none; tiles];
        let mut words = Vec::new();
        for step in 0..steps {
            if step % in_pair == 0 {
                let from = u.base + (first + step) * shape.step_bytes() + c.lane_index() * VEC16;
                words = (0..shape.pieces).map(|piece| c.load_blocks(from + piece * shape.piece_bytes())).collect();
            }
            let panels: Vec<[Int; 4]> = words
                .iter()
                .map(|&words| {
                    if in_pair == 1 {
                        let sign = if how.codes == DType::U8 { 0x8080_8080 } else { 0 };
                        return words.map(|word| word ^ sign);
                    }
                    let [low, high] = [0, 1].map(|i| how.of_word(c, words[step % in_pair * 2 + i]));
                    [low[0], high[0], low[1], high[1]]
                })
                .collect();
            for (tile, &place) in u.places.iter().enumerate() {
                let x = c.load_vector(word, 2, c.at_address(place + (first + step) * 32), 8);
                let x = [0, 1].map(|i| c.as_int(c.lane(x, i)));
                for (piece, &panel) in panels.iter().enumerate() {
                    let own = &mut own[piece * tiles + tile];
                    *own = c.integer_blocks(panel, x, *own);
                }
                if is_off {
                    columns[tile] = c.integer_blocks(ones, x, columns[tile]);
                }
            }
            if (step + 1).is_multiple_of(u.span) {
                let group = (first + step) / u.coded.group.unwrap_or(shape.steps);
                self.add_digits(u, group, (&own, &columns), &mut sums);
                own.fill(none);
                columns.fill(none);
            }
        }
        sums
    }

    /// Adds sums of integers, scaled, and less what zero points make of the columns.
    fn add_digits(
        &self,
        u: &Unit<'_, '_, 'c>,
        group: Int<'c>,
        (own, columns): (&[[Int<'c>; 4]], &[[Int<'c>; 4]]),
        sums: &mut [Any<'c>],
    ) {
        let (c, tiles) = (self.code(), self.shape.tiles());
        let float = c.cx.f32_type();
        let number = |bits: Int<'c>| {
            let v = c.bitcast(bits, float).into_float_value();
            c.b.build_float_sub(v, c.number(BASE.1), "").expect("floats")
        };
        let fma = |a: FloatValue<'c>, b: FloatValue<'c>, sum: FloatValue<'c>| {
            c.call("llvm.fma", &[float.into()], &[a, b, sum].map(|v| v.into())).into_float_value()
        };
        let (times, bias) = u.how.unit();
        for piece in 0..self.shape.pieces {
            let marks = self.marks_of((u.coding, u.coded), u.at, (u.base, piece), group);
            for (tile, columns) in columns.iter().enumerate() {
                for i in 0..4 {
                    let (row, at) = (i / 2, piece * tiles + tile);
                    let mut v = number(own[at][i]);
                    let zero = marks.zero_numbers.map(|zeros| zeros[row]);
                    if zero.is_some() || bias > 0 {
                        let zero = zero.unwrap_or(c.number(0.0));
                        let off = c.b.build_float_sub(c.number(bias as f64), zero, "").expect("floats");
                        let off = c.b.build_float_mul(off, c.number(times as f64), "").expect("floats");
                        v = fma(off, number(columns[i]), v);
                    }
                    let sum = &mut sums[4 * at + i];
                    *sum = match marks.scales {
                        Some(scales) => fma(scales[row], v, sum.into_float_value()).into(),
                        None => c.b.build_float_add(v, sum.into_float_value(), "").expect("floats").into(),
                    };
                }
            }
        }
    }
}

/// Where a unit of steps lies, and what it is multiplied with.
struct Unit<'u, 'k, 'c> {
    coding: &'u Coding<'k, 'c>,
    coded: Coded,
    how: Bytes,
    at: SlotAt<'c>,
    base: Int<'c>,
    places: &'u [Int<'c>],
    span: usize,
}
