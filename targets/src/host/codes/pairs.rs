//! Products of pairs of bf16, for codes of e4m3 and of 4 bits: every one of them is a number of
//! bf16. Tables hold bytes for e4m3, and numbers for codes of 4 bits.
use atomc_ir::DType;
use atomc_ir::trial::fetch;
use inkwell::types::VectorType;

use super::Form;
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::host::LANES;
use crate::host::dot::multiply_pairs;

const BUILT: &str = "vectors of bytes";

/// Bytes of a register.
const BYTES: usize = 4 * LANES;

/// Sums that do not wait for each other.
const WAYS: usize = 2;

/// Rows are staged as bf16. With codes of 4 bits, columns are in the order of [`TURNED`].
pub struct Pairs<'a, 'c> {
    pub c: &'a Code<'c>,
    /// The type of the codes.
    pub dtype: DType,
    /// Columns of a row with its padding.
    pub width: usize,
}

/// Columns of two words of 4-bit codes. Both halves of a word are shifted at once, so a column is
/// paired with the one that is four further on.
const TURNED: [usize; LANES] = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];

/// The lane of a row's pair in both factors of e4m3.
fn lane_of(row: usize, pair: usize) -> usize {
    row / 4 * 4 + row % 2 * 2 + pair + row % 4 / 2 * LANES
}

impl<'c> Pairs<'_, 'c> {
    /// Whether there are tables for a type of codes.
    pub fn decodes(dtype: DType) -> bool {
        dtype == DType::F8E4M3 || dtype.bits() == 4
    }

    /// Words of 16 rows as a panel of bf16 has them: consecutive columns of a row in pairs.
    pub fn panel(&self, words: Vector<'c>) -> Vec<Vector<'c>> {
        let c = self.c;
        let factors = self.decode(words, None);
        let halves = |v: Vector<'c>| c.bitcast(v, c.ints(c.cx.i16_type(), 2 * LANES)).into_vector_value();
        let paired = |a: Vector<'c>, b: Vector<'c>, order: &[usize]| {
            c.bitcast(c.shuffle(halves(a), halves(b), order), words.get_type()).into_vector_value()
        };
        if self.has_nibbles() {
            // Lane by lane, of one half of both.
            let side_by_side =
                |half: usize| -> Vec<usize> { (0..2 * LANES).map(|i| i / 2 * 2 + half + i % 2 * 2 * LANES).collect() };
            let side = |half: usize| factors.chunks(2).map(move |two| (two[0], two[1], half));
            return side(0).chain(side(1)).map(|(a, b, half)| paired(a, b, &side_by_side(half))).collect();
        }
        // Every other lane, of both factors in turn.
        let every_other =
            |pair: usize| -> Vec<usize> { (0..2 * LANES).map(|i| 2 * lane_of(i / 2, pair) + i % 2).collect() };
        [0, 1].map(|pair| paired(factors[0], factors[1], &every_other(pair))).to_vec()
    }

    fn has_nibbles(&self) -> bool {
        self.dtype.bits() == 4
    }

    /// Bits of a code as a number of bf16.
    fn bf16(&self, code: u8) -> u64 {
        u64::from((fetch(&[code], 0, self.dtype) as f32).to_bits() >> 16)
    }

    /// The numbers of the lowest nibble of each half of a word. The bit above it is looked up too.
    fn nibbles(&self, words: Vector<'c>) -> Vector<'c> {
        let c = self.c;
        let halves = c.ints(c.cx.i16_type(), 2 * LANES);
        let entry = |i: u8| c.cx.i16_type().const_int(self.bf16(i % 16), false);
        let table = VectorType::const_vector(&(0..2 * LANES as u8).map(entry).collect::<Vec<_>>());
        let args = [table.into(), c.bitcast(words, halves).into()];
        let found = c.call("llvm.x86.avx512.permvar.hi.512", &[], &args);
        c.bitcast(found, words.get_type()).into_vector_value()
    }

    /// A byte of the number of each code without its sign.
    fn looked_up(&self, codes: Vector<'c>, byte: u32) -> Vector<'c> {
        let c = self.c;
        let entry = |code: u8| c.cx.i8_type().const_int(self.bf16(code) >> (8 * byte) & 0xff, false);
        let table = |first: u8| VectorType::const_vector(&(first..first + BYTES as u8).map(entry).collect::<Vec<_>>());
        let args = [table(0).into(), codes.into(), table(BYTES as u8).into()];
        c.call("llvm.x86.avx512.vpermi2var.qi.512", &[], &args).into_vector_value()
    }

    /// Bytes of both, in turn, of one or the other half of every 16.
    fn interleaved(&self, low: Vector<'c>, high: Vector<'c>, half: usize) -> Vector<'c> {
        let from = |i: usize| i / 16 * 16 + half * 8 + i % 16 / 2 + i % 2 * BYTES;
        let c = self.c;
        let all = c.shuffle(low, high, &(0..BYTES).map(from).collect::<Vec<_>>());
        c.bitcast(all, c.ints(c.cx.i32_type(), LANES)).into_vector_value()
    }
}

impl<'c> Form<'c> for Pairs<'_, 'c> {
    fn row_bytes(&self) -> usize {
        self.width * 2
    }

    fn stage(&self, from: Ptr<'c>, to: Ptr<'c>) {
        let c = self.c;
        c.repeat(0, self.width, LANES, |col| {
            let v = c.load(c.f32s(), c.at(from, col * 4), 4).into_vector_value();
            let v = if self.has_nibbles() { c.shuffle(v, v, &TURNED) } else { v };
            c.store_floats(c.at(to, col * 2), v, DType::BF16);
        });
    }

    /// Two of 128 bytes for e4m3.
    fn tables(&self) -> usize {
        if self.has_nibbles() { 0 } else { 4 }
    }

    /// For e4m3, rows 0 and 1, and rows 2 and 3, of every four: both pairs of a row next to each
    /// other. For 4 bits, a pair of each row.
    fn decode(&self, words: Vector<'c>, _: Option<Vector<'c>>) -> Vec<Vector<'c>> {
        let c = self.c;
        if self.has_nibbles() {
            let by = |i: u64| c.splat(c.cx.i32_type().const_int(4 * i, false));
            let shifted = |i| c.b.build_right_shift(words, by(i), false, "").expect(BUILT);
            return (0..4).map(|i| self.nibbles(shifted(i))).collect();
        }
        let codes = c.bitcast(words, c.ints(c.cx.i8_type(), BYTES)).into_vector_value();
        let signs = VectorType::const_vector(&[c.cx.i8_type().const_int(0x80, false); BYTES]);
        let sign = c.b.build_and(codes, signs, "").expect(BUILT);
        let [low, high] = [0, 1].map(|byte| self.looked_up(codes, byte));
        let high = c.b.build_or(high, sign, "").expect(BUILT);
        [0, 1].map(|half| self.interleaved(low, high, half)).to_vec()
    }

    fn begin(&self, _: Ptr<'c>, _: Int<'c>) -> Vec<Any<'c>> {
        vec![self.c.zero().into(); WAYS]
    }

    fn add(&self, sums: &[Any<'c>], factors: &[Vector<'c>], row: Ptr<'c>, word: Int<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        if self.has_nibbles() {
            let mut sums = sums.to_vec();
            for (i, &factor) in factors.iter().enumerate() {
                let x = c.splat(c.load(c.cx.i32_type(), c.at(row, word * 16 + 4 * i), 4));
                let sum = &mut sums[i % WAYS];
                *sum = multiply_pairs(c, sum.into_vector_value(), factor, x).into();
            }
            return sums;
        }
        let four = c.load(c.cx.i64_type(), c.at(row, word * 8), 8).into_int_value();
        let fours = VectorType::const_vector(&[c.cx.i64_type().get_undef(); LANES / 2]);
        let zero = c.cx.i32_type().const_zero();
        let one = c.b.build_insert_element(fours, four, zero, "").expect(BUILT);
        let x = c.shuffle(one, one, &[0; LANES / 2]);
        let add =
            |(&sum, &factor): (&Any<'c>, &Vector<'c>)| multiply_pairs(c, sum.into_vector_value(), factor, x).into();
        sums.iter().zip(factors).map(add).collect()
    }

    fn end(&self, sums: &[Any<'c>], _: Option<Vector<'c>>, _: Ptr<'c>, _: Int<'c>) -> Vector<'c> {
        let c = self.c;
        let [low, high] = [sums[0], sums[1]].map(|v| v.into_vector_value());
        if self.has_nibbles() {
            return c.fadd(low, high);
        }
        let every = |pair: usize| -> Vec<usize> { (0..LANES).map(|row| lane_of(row, pair)).collect() };
        c.fadd(c.shuffle(low, high, &every(0)), c.shuffle(low, high, &every(1)))
    }

    fn total(&self, _: Ptr<'c>, _: Int<'c>) -> Vector<'c> {
        unreachable!("codes with least numbers are not multiplied in pairs")
    }

    fn unit(&self, _: Ptr<'c>) -> Option<Vector<'c>> {
        None
    }
}
