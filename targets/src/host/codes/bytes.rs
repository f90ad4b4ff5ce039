//! Products of bytes in integers (`vpdpbusd`), for codes that are integers or multiples of one
//! half.
//!
//! Rows become integers of 23 bits, multiples of a power of two that follows from the row's largest
//! number: bf16 is exact down to 2^-14 of that, and smaller numbers have an error of that size.
//! Such an integer is three digits to the base of 256, from -128 to 127, each in a plane of its
//! own. Where few columns share a scale, they share a power of two as well, of their own largest
//! number, and two digits suffice: integers have 14 bits, and an error of 2^-15 of that number is
//! less than that of an element which is rounded to the type of the row. Codes are counted from the
//! smallest one, which makes them unsigned bytes; the sums begin with the correction for that.
use atomc_ir::DType;
use inkwell::IntPredicate;
use inkwell::types::VectorType;

use super::{Codes, Form, Spans};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::host::LANES;

const BUILT: &str = "vectors of integers";

/// Digits of an element of x that is no code.
pub const DIGITS: usize = 3;

/// Digits where [few columns](FEW) have a power of two of their own.
pub const FEW_DIGITS: usize = 2;
pub const FEW: usize = 32;

/// Columns that a sum of 32 bits has room for.
pub const WIDEST: usize = 1 << 16;

pub struct Bytes<'a, 'c> {
    c: &'a Code<'c>,
    /// The type of the codes.
    dtype: DType,
    /// Columns of a row with its padding.
    width: usize,
    spans: Spans,
    count: usize,
    has_zero: bool,
    /// Digits of an element of x: one for codes, two where each span has a unit of its own.
    digits: usize,
    /// Whether each half of a word has sums of its own, so that products wait less for each other.
    parts_halves: bool,
}

impl<'a, 'c> Bytes<'a, 'c> {
    /// Decoded bytes for products of `rows` rows at once.
    pub fn new(codes: &Codes<'a, 'c>, digits: usize, rows: usize) -> Bytes<'a, 'c> {
        let dtype = codes.w.ty.dtype;
        let (spans, count) = (codes.spans(), codes.count());
        Bytes {
            c: codes.c,
            dtype,
            width: codes.w.stride,
            spans,
            count,
            has_zero: codes.zero.is_some(),
            digits,
            parts_halves: rows == 1 && dtype.bits() == 4,
        }
    }

    /// Planes of bytes that a word of codes is split into: even columns and odd ones where there
    /// are two to a byte.
    fn halves(&self) -> usize {
        8 / self.dtype.bits()
    }

    /// The offset that is added to codes, in the unit of the sums.
    fn offset(&self) -> u64 {
        match self.dtype {
            DType::I8 => 128,
            DType::I4 => 8,
            DType::F4E2M1 => 12,
            _ => 0,
        }
    }

    /// The value of one step of a code's byte.
    fn worth(&self) -> f64 {
        if self.dtype == DType::F4E2M1 { 0.5 } else { 1.0 }
    }

    /// The place of a digit of some columns in a staged row.
    fn plane(&self, digit: usize, half: usize) -> usize {
        (digit * self.halves() + half) * (self.width / self.halves())
    }

    /// Whether each span has a unit of its own.
    fn has_units(&self) -> bool {
        self.digits == FEW_DIGITS
    }

    /// The place in a row of the beginnings of each span's sums, by digit; then the sum of each
    /// span's numbers; then the units of spans, if each has one; then the row's.
    fn begins(&self) -> usize {
        self.digits * self.width
    }

    fn totals(&self) -> usize {
        self.begins() + self.count * self.digits * 4
    }

    fn words(&self, n: u64) -> Vector<'c> {
        self.c.splat(self.c.cx.i32_type().const_int(n, false))
    }

    fn bits(&self, v: Vector<'c>) -> Vector<'c> {
        self.c.bitcast(v, self.c.ints(self.c.cx.i32_type(), LANES)).into_vector_value()
    }

    /// The power of two that numbers of a row are divided by, and its inverse: see
    /// [`Bytes::digits`].
    fn units(&self, from: Ptr<'c>, columns: usize) -> [Vector<'c>; 2] {
        let c = self.c;
        if self.digits == 1 {
            return [c.lit(1.0), c.lit(1.0)];
        }
        let [top, odd] = c.carry((0, columns, LANES), [c.zero(); 2], |col, [top, odd]| {
            let v = c.load(c.f32s(), c.at(from, col * 4), 4).into_vector_value();
            let size = c.b.build_and(self.bits(v), self.words(0x7fff_ffff), "").expect(BUILT);
            let size = c.bitcast(size, c.f32s()).into_vector_value();
            [c.fmax(top, size), c.fma(v, c.zero(), odd)]
        });
        let exponent = self.bits(c.splat(c.top(top)));
        let exponent = c.b.build_and(exponent, self.words(0x7f80_0000), "").expect(BUILT);
        // Bits of integers beside the first one.
        let bits: u64 = if self.has_units() { 13 } else { 21 };
        // Below this the other power would be infinite.
        let least = self.words((bits + 1) << 23);
        let is_less = c.b.build_int_compare(IntPredicate::ULT, exponent, least, "").expect(BUILT);
        let exponent = c.choose(is_less, least, exponent);
        let unit = c.b.build_int_sub(exponent, self.words(bits << 23), "").expect(BUILT);
        let inverse = c.b.build_int_sub(self.words((254 + bits) << 23), exponent, "").expect(BUILT);
        let [unit, inverse] = [unit, inverse].map(|v| c.bitcast(v, c.f32s()).into_vector_value());
        // Infinity and NaN have no digits: every sum of their row becomes NaN.
        [c.fadd(unit, c.splat(c.sum(odd))), inverse]
    }

    /// Numbers as integers from -2^22 to 2^22, or -2^14 to 2^14, and these as bytes to the base of
    /// 256 with a sign each.
    fn digits(&self, v: Vector<'c>, inverse: Vector<'c>) -> Vector<'c> {
        // The sum with this has the integer in its low bits, rounded.
        const ROUND: f64 = 12582912.0;
        let c = self.c;
        let sum = self.bits(c.fadd(c.fmul(v, inverse), c.lit(ROUND)));
        let signs = [0, 0x8080, 0x80_8080][self.digits - 1];
        let least = u64::from((ROUND as f32).to_bits()) - signs;
        let bytes = c.b.build_int_sub(sum, self.words(least), "").expect(BUILT);
        c.b.build_xor(bytes, self.words(signs), "").expect(BUILT)
    }

    /// Stores digits of 16 columns.
    fn store(&self, to: Ptr<'c>, col: Int<'c>, digits: Vector<'c>) {
        let c = self.c;
        let halves = self.halves();
        for digit in 0..self.digits {
            let moved = c.b.build_right_shift(digits, self.words(8 * digit as u64), false, "").expect(BUILT);
            let bytes = c.b.build_int_truncate(moved, c.ints(c.cx.i8_type(), LANES), "").expect(BUILT);
            for half in 0..halves {
                let every: Vec<usize> = (half..LANES).step_by(halves).collect();
                let bytes = if halves == 1 { bytes } else { c.shuffle(bytes, bytes, &every) };
                c.store(c.at(to, col / halves + self.plane(digit, half)), bytes, 1);
            }
        }
    }

    fn store_span(&self, to: Ptr<'c>, first: Int<'c>, words: usize, span: Int<'c>) {
        let c = self.c;
        let mut total = c.lit(0.0);
        for digit in (0..self.digits).rev() {
            let sum = self.sum(to, digit, first, words);
            let begin = 0 - sum * self.offset() as usize;
            c.store(c.at(to, (span * self.digits + digit) * 4 + self.begins()), begin, 4);
            let wide = c.b.build_signed_int_to_float(sum.v, c.cx.f32_type(), "").expect(BUILT);
            total = c.fma(total, c.lit(256.0), c.splat(wide));
        }
        let total = if self.has_units() { c.fmul(total, self.unit_of(to, span)) } else { total };
        c.store(c.at(to, span * 4 + self.totals()), c.lane(total, 0), 4);
    }

    /// Stores the digits of columns, by a unit of theirs, which is returned.
    fn store_columns(&self, from: Ptr<'c>, to: Ptr<'c>, first: Int<'c>, columns: usize) -> Vector<'c> {
        let c = self.c;
        let from = c.at(from, first * 4);
        let [unit, inverse] = self.units(from, columns);
        c.repeat(0, columns, LANES, |col| {
            let v = c.load(c.f32s(), c.at(from, col * 4), 4).into_vector_value();
            self.store(to, first + col, self.digits(v, inverse));
        });
        unit
    }

    /// The unit of a span's integers.
    fn unit_of(&self, row: Ptr<'c>, span: Int<'c>) -> Vector<'c> {
        let c = self.c;
        c.splat(c.load(c.cx.f32_type(), c.at(row, span * 4 + self.units_at()), 4))
    }

    /// The sum of a digit over a span.
    fn sum(&self, to: Ptr<'c>, digit: usize, first: Int<'c>, words: usize) -> Int<'c> {
        let c = self.c;
        let bytes = words * 4;
        let chunk = [16, 8, 4].into_iter().find(|chunk| bytes.is_multiple_of(*chunk)).expect("words");
        let wide = c.cx.i32_type().vec_type(chunk as u32);
        let sum = c.carry((0, bytes, chunk), wide.const_zero(), |at, mut sum| {
            for half in 0..self.halves() {
                let at = c.at(to, first * 4 + at + self.plane(digit, half));
                let digits = c.load(c.ints(c.cx.i8_type(), chunk), at, 1).into_vector_value();
                let digits = c.b.build_int_s_extend(digits, wide, "").expect(BUILT);
                sum = c.b.build_int_add(sum, digits, "").expect(BUILT);
            }
            sum
        });
        c.as_int(c.call("llvm.vector.reduce.add", &[wide.into()], &[sum.into()]))
    }

    fn units_at(&self) -> usize {
        self.totals() + self.count * 4
    }

    fn unit_at(&self) -> usize {
        self.units_at() + if self.has_units() { self.count * 4 } else { 0 }
    }

    /// The bytes of a table for the nibbles of bytes that have one each.
    fn looked_up(&self, nibbles: Vector<'c>) -> Vector<'c> {
        const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
        let c = self.c;
        let bytes = c.ints(c.cx.i8_type(), 4 * LANES);
        let entry = |i: usize| c.cx.i8_type().const_int((DOUBLED[i % 16] + self.offset() as i8) as u64, false);
        let table = VectorType::const_vector(&(0..4 * LANES).map(entry).collect::<Vec<_>>());
        let found = c.call("llvm.x86.avx512.pshuf.b.512", &[], &[table.into(), c.bitcast(nibbles, bytes).into()]);
        c.bitcast(found, nibbles.get_type()).into_vector_value()
    }
}

impl<'c> Form<'c> for Bytes<'_, 'c> {
    fn row_bytes(&self) -> usize {
        (self.unit_at() + 4).next_multiple_of(64)
    }

    fn stage(&self, from: Ptr<'c>, to: Ptr<'c>) {
        let c = self.c;
        assert_ne!(self.spans, Spans::Columns, "such codes are multiplied as floats");
        let unit = if self.has_units() {
            let per_word = 4 * self.halves();
            self.spans.each(c, |first, words, span| {
                let columns = (words * per_word).next_multiple_of(LANES);
                let unit = self.store_columns(from, to, first * per_word, columns);
                c.store(c.at(to, span * 4 + self.units_at()), c.lane(unit, 0), 4);
            });
            c.lit(1.0)
        } else {
            self.store_columns(from, to, c.int(0), self.width)
        };
        self.spans.each(c, |first, words, span| self.store_span(to, first, words, span));
        let unit = c.fmul(unit, c.lit(self.worth()));
        c.store(c.at(to, self.unit_at()), c.lane(unit, 0), 4);
    }

    fn decode(&self, words: Vector<'c>, _: Option<Vector<'c>>) -> Vec<Vector<'c>> {
        let c = self.c;
        let low = |v| c.b.build_and(v, self.words(0x0f0f_0f0f), "").expect(BUILT);
        let high = |v| low(c.b.build_right_shift(v, self.words(4), false, "").expect(BUILT));
        let from_least = |v, n| c.b.build_xor(v, self.words(n), "").expect(BUILT);
        match self.dtype {
            DType::I8 => vec![from_least(words, 0x8080_8080)],
            DType::U8 => vec![words],
            DType::I4 => {
                let words = from_least(words, 0x8888_8888);
                vec![low(words), high(words)]
            }
            DType::U4 => vec![low(words), high(words)],
            DType::F4E2M1 => [low(words), high(words)].map(|nibbles| self.looked_up(nibbles)).to_vec(),
            _ => unreachable!("no codes of bytes"),
        }
    }

    fn begin(&self, row: Ptr<'c>, span: Int<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let begin = |digit: usize| {
            let at = c.at(row, (span * self.digits + digit) * 4 + self.begins());
            c.splat(c.load(c.cx.i32_type(), at, 4)).into()
        };
        let zeros = || vec![self.words(0).into(); self.digits];
        let mut sums = if self.offset() == 0 { zeros() } else { (0..self.digits).map(begin).collect() };
        if self.parts_halves {
            sums.extend(zeros());
        }
        sums
    }

    fn add(&self, sums: &[Any<'c>], factors: &[Vector<'c>], row: Ptr<'c>, word: Int<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let bytes = c.ints(c.cx.i8_type(), 4 * LANES);
        let mut sums = sums.to_vec();
        for (half, &factor) in factors.iter().enumerate() {
            let first = if self.parts_halves { half * self.digits } else { 0 };
            for (digit, sum) in sums[first..first + self.digits].iter_mut().enumerate() {
                let x = c.splat(c.load(c.cx.i32_type(), c.at(row, word * 4 + self.plane(digit, half)), 4));
                let [a, b] = [factor, x].map(|v| c.bitcast(v, bytes));
                *sum = c.call("llvm.x86.avx512.vpdpbusd.512", &[], &[(*sum).into(), a.into(), b.into()]);
            }
        }
        sums
    }

    fn end(&self, sums: &[Any<'c>], zero: Option<Vector<'c>>, row: Ptr<'c>, span: Int<'c>) -> Vector<'c> {
        let c = self.c;
        let wide = |v: &Any<'c>| c.b.build_signed_int_to_float(v.into_vector_value(), c.f32s(), "").expect(BUILT);
        let (sums, more) = sums.split_at(self.digits);
        let mut sums = sums.to_vec();
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = c.b.build_int_add(sum.into_vector_value(), more.into_vector_value(), "").expect(BUILT).into();
        }
        let (last, rest) = sums.split_last().expect("digits");
        let sum = rest.iter().rev().fold(wide(last), |sum, digit| c.fma(sum, c.lit(256.0), wide(digit)));
        let sum = if self.has_units() { c.fmul(sum, self.unit_of(row, span)) } else { sum };
        let Some(zero) = zero.filter(|_| self.has_zero) else { return sum };
        let total = c.fsub(c.lit(-0.0), self.total(row, span));
        c.fma(zero, total, sum)
    }

    fn total(&self, row: Ptr<'c>, span: Int<'c>) -> Vector<'c> {
        let c = self.c;
        c.splat(c.load(c.cx.f32_type(), c.at(row, span * 4 + self.totals()), 4))
    }

    fn unit(&self, row: Ptr<'c>) -> Option<Vector<'c>> {
        Some(self.c.splat(self.c.load(self.c.cx.f32_type(), self.c.at(row, self.unit_at()), 4)))
    }
}
