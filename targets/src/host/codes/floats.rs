//! Products in f32, a column at a time: on every CPU, for all codes and all types of rows.
use atomc_ir::DType;
use inkwell::IntPredicate;

use super::{Form, Spans};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::host::LANES;

const BUILT: &str = "vectors of words";

/// Rows are staged as they are, in f32.
pub struct Floats<'a, 'c> {
    pub c: &'a Code<'c>,
    /// The type of the codes.
    pub dtype: DType,
    pub per_word: usize,
    /// Columns of a row with its padding.
    pub width: usize,
    /// The spans that have a total behind a row's numbers, and how many they are.
    pub totals: Option<(Spans, usize)>,
}

/// Sums that do not wait for each other.
const WAYS: usize = 2;

impl<'c> Floats<'_, 'c> {
    /// Stores the sum of columns, whose number is a multiple of a vector's but at the end of a row,
    /// where zeros follow.
    fn store_total(&self, to: Ptr<'c>, first: Int<'c>, columns: usize, span: Int<'c>) {
        let c = self.c;
        let sum = c.carry((0, columns, LANES), c.zero(), |col, sum| {
            c.fadd(sum, c.load(c.f32s(), c.at(to, (first + col) * 4), 4).into_vector_value())
        });
        c.store(c.at(to, span * 4 + self.width * 4), c.sum(sum), 4);
    }
}

impl<'c> Form<'c> for Floats<'_, 'c> {
    fn row_bytes(&self) -> usize {
        let totals = self.totals.map_or(0, |(_, count)| (4 * count).next_multiple_of(4 * LANES));
        self.width * 4 + totals
    }

    fn stage(&self, from: Ptr<'c>, to: Ptr<'c>) {
        let c = self.c;
        c.repeat(0, self.width * 4, 4 * LANES, |at| c.store(c.at(to, at), c.load(c.f32s(), c.at(from, at), 4), 4));
        if let Some((spans, _)) = self.totals {
            let per = self.per_word;
            spans.each(c, |first, words, span| self.store_total(to, first * per, words * per, span));
        }
    }

    fn decode(&self, words: Vector<'c>, zero: Option<Vector<'c>>) -> Vec<Vector<'c>> {
        let codes = (0..self.per_word).map(|i| code(self.c, self.dtype, words, i));
        codes.map(|code| zero.map_or(code, |zero| self.c.fsub(code, zero))).collect()
    }

    fn begin(&self, _: Ptr<'c>, _: Int<'c>) -> Vec<Any<'c>> {
        vec![self.c.zero().into(); WAYS]
    }

    fn add(&self, sums: &[Any<'c>], factors: &[Vector<'c>], row: Ptr<'c>, word: Int<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let mut sums = sums.to_vec();
        for (i, &factor) in factors.iter().enumerate() {
            let x = c.splat(c.load(c.cx.f32_type(), c.at(row, (word * self.per_word + i) * 4), 4));
            let sum = &mut sums[i % WAYS];
            *sum = c.fma(factor, x, sum.into_vector_value()).into();
        }
        sums
    }

    fn end(&self, sums: &[Any<'c>], _: Option<Vector<'c>>, _: Ptr<'c>, _: Int<'c>) -> Vector<'c> {
        self.c.fadd(sums[0].into_vector_value(), sums[1].into_vector_value())
    }

    fn total(&self, row: Ptr<'c>, span: Int<'c>) -> Vector<'c> {
        let c = self.c;
        c.splat(c.load(c.cx.f32_type(), c.at(row, span * 4 + self.width * 4), 4))
    }

    fn unit(&self, _: Ptr<'c>) -> Option<Vector<'c>> {
        None
    }
}

/// Code `i` of each word, as f32.
pub fn code<'c>(c: &Code<'c>, dtype: DType, words: Vector<'c>, i: usize) -> Vector<'c> {
    let bits = dtype.bits();
    let k = |n: usize| c.splat(c.cx.i32_type().const_int(n as u64, false));
    let (first, above) = (i * bits, 32 - (i + 1) * bits);
    let down = |v, by: usize, signed| c.b.build_right_shift(v, k(by), signed, "").expect(BUILT);
    let up = |v, by: usize| c.b.build_left_shift(v, k(by), "").expect(BUILT);
    let float = |v| c.b.build_signed_int_to_float(v, c.f32s(), "").expect(BUILT);
    let unsigned = || c.b.build_and(down(words, first, false), k((1 << bits) - 1), "").expect(BUILT);
    match dtype {
        DType::I8 | DType::I4 => float(down(up(words, above), 32 - bits, true)),
        DType::U8 | DType::U4 => float(unsigned()),
        DType::F4E2M1 => {
            let code = unsigned();
            let size = c.b.build_and(code, k(7), "").expect(BUILT);
            // An exponent of two bits and a mantissa of one; 0 and 0.5 have no leading one.
            let normal = c.b.build_int_add(up(size, 22), k(126 << 23), "").expect(BUILT);
            let small = c.bitcast(c.fmul(float(size), c.lit(0.5)), normal.get_type()).into_vector_value();
            let is_small = c.b.build_int_compare(IntPredicate::ULT, size, k(2), "").expect(BUILT);
            let sign = up(c.b.build_and(code, k(8), "").expect(BUILT), 28);
            let all = c.b.build_or(c.choose(is_small, small, normal), sign, "").expect(BUILT);
            c.bitcast(all, c.f32s()).into_vector_value()
        }
        DType::F8E4M3 => {
            let byte = down(words, first, false);
            c.widen(c.b.build_int_truncate(byte, c.ints(c.cx.i8_type(), LANES), "").expect(BUILT), dtype)
        }
        _ => unreachable!("{} is no type of codes", dtype.name()),
    }
}
