//! Some columns of a head's state, as a team of four waves has them in sums of products.
use atomc_ir::DType;
use inkwell::values::FloatValue;

use super::super::products::Rows;
use super::super::{element, vector};
use super::{CARRIERS, CHUNK, Chunk, PARTS, Shape, TEAM};
use crate::code::{Any, Int, Ptr};
use crate::math;
use crate::recurrent::{Delta, Run};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

/// A left operand in registers, as parts of bf16.
pub type Words<'c> = [Vec<Int<'c>>; PARTS];

/// A right operand of `rows` rows, in parts, from row `first` on.
#[derive(Clone, Copy)]
pub struct Right<'c> {
    pub all: Ptr<'c>,
    pub rows: usize,
    pub first: usize,
}

/// Some columns of a head's state.
#[derive(Clone, Copy)]
pub struct Columns<'a, 'k, 'c> {
    pub c: &'a Gpu<'c>,
    pub delta: &'a Delta<'k, 'c>,
    pub shape: Shape,
    pub head: Int<'c>,
    /// The first of the columns.
    pub column: Int<'c>,
}

impl<'c> Columns<'_, '_, 'c> {
    /// Numbers of a thread of 64 rows of the work-group's columns.
    pub fn numbers(&self) -> usize {
        self.shape.columns / 2
    }

    /// The place of two neighbours of 64 rows of the state in a slot.
    fn in_slot(&self, slot: Ptr<'c>, tile: Int<'c>, (half, eight): (usize, usize)) -> Ptr<'c> {
        let (c, sizes) = (self.c, self.delta.sizes);
        let head = c.at(slot, self.head * (4 * sizes.key_dim * sizes.value_dim));
        let row = self.row() + tile * CHUNK;
        let from = c.at(head, (row * sizes.value_dim + self.column + self.side()) * 4);
        c.at(from, (8 * half * sizes.value_dim + 8 * eight) * 4)
    }

    /// 64 rows of the state before the first chunk, as sums of products have them.
    pub fn load_state(&self, run: Run<'c>, tile: Int<'c>) -> Vec<Any<'c>> {
        let (c, eights) = (self.c, self.shape.columns / 8);
        let two = |i: usize| c.load_vector(c.cx.f32_type(), 2, self.in_slot(run.slot, tile, (i % 2, i / 2)), 8);
        let number = |v| c.pick(run.goes_on, v, c.number(0.0));
        (0..2 * eights).map(two).flat_map(|two| [0, 1].map(|i| number(c.lane(two, i)))).collect()
    }

    pub fn store_state(&self, slot: Ptr<'c>, tile: Int<'c>, numbers: &[Any<'c>]) {
        let c = self.c;
        for (i, two) in numbers.chunks(2).enumerate() {
            c.store(self.in_slot(slot, tile, (i % 2, i / 2)), c.floats(two), 8);
        }
    }

    /// One of the thread's two tokens in a chunk.
    pub fn token(&self, i: usize) -> Int<'c> {
        self.row() + 8 * i
    }

    /// A barrier after which this team's writes may be multiplied.
    pub fn meet(&self) {
        self.c.show_to_products();
        self.c.meet_some(self.c.int(CARRIERS), TEAM);
    }

    /// Sums times a factor for each of the thread's two rows.
    pub fn by_rows(&self, sums: &[Any<'c>], factor: impl Fn(usize) -> FloatValue<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let factors = [0, 1].map(factor);
        let scaled = |(i, sum): (usize, &Any<'c>)| (c.float(*sum) * factors[i / 2 % 2]).v.into();
        sums.iter().enumerate().map(scaled).collect()
    }

    /// Values of the thread's tokens.
    pub fn values(&self, chunk: Chunk<'c>) -> Vec<FloatValue<'c>> {
        let (c, v) = (self.c, &self.delta.v);
        // Rows may have values from anywhere on.
        let lanes = vector(self.delta.starts[2], 2);
        c.set_lanes(lanes);
        let two = |i: usize| {
            let token = c.smaller(chunk.first + self.token(i % 2), chunk.end - 1);
            let column = self.head * self.delta.sizes.value_dim + self.column + self.side() + i / 2 * 8;
            let part = |i| c.load_floats(element(c, v, token, column + i), v.ty.dtype);
            c.join(&(0..2).step_by(lanes).map(part).collect::<Vec<_>>())
        };
        let all: Vec<_> = (0..self.numbers() / 2).map(two).collect();
        all.into_iter().flat_map(|two| [0, 1].map(|i| c.lane(two, i).into_float_value())).collect()
    }

    /// `beta (V - F K S)`, with the factors `F` and `beta` of each of the thread's two rows.
    pub fn wanted(
        &self,
        by_keys: &[Any<'c>],
        values: &[FloatValue<'c>],
        factors: [[FloatValue<'c>; 2]; 2],
    ) -> Vec<Any<'c>> {
        let c = self.c;
        let wanted = |(i, (&seen, &value)): (usize, (&Any<'c>, &FloatValue<'c>))| {
            let [kept, beta] = factors[i / 2 % 2];
            let left = c.float(value) - (c.float(seen) * kept).v;
            (left * beta).v.into()
        };
        by_keys.iter().zip(values).enumerate().map(wanted).collect()
    }

    /// 64 columns of f32 from one on, as a left operand.
    pub fn left(&self, rows: Rows<'c>, column: usize) -> Words<'c> {
        let two = |i: usize| {
            let at = rows.at(self.c, self.token(i % 2), self.side() + (column + i / 2 * 8));
            let two = self.c.load_vector(self.c.cx.f32_type(), 2, at, 8);
            self.thirds([0, 1].map(|i| self.c.lane(two, i).into_float_value()))
        };
        words((0..CHUNK / 4).map(two).collect())
    }

    /// Multiplies with parts of a left operand of 64 columns. Parts below 2^-24 of the largest are
    /// left out.
    pub fn multiply_words(&self, sums: Vec<Any<'c>>, left: &Words<'c>, right: Right<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let pairs = (0..PARTS).rev().flat_map(|size| (0..=size).map(move |i| (i, size - i)));
        pairs.fold(sums, |sums, (i, part)| {
            let right = self.right(right, part);
            match sums.is_empty() {
                true => c.mma_async_rs_new(self.numbers(), DType::BF16, &left[i], right),
                false => c.mma_async_rs(&sums, DType::BF16, &left[i], right),
            }
        })
    }

    /// A part of a right operand.
    pub fn right(&self, right: Right<'c>, part: usize) -> (Int<'c>, TileForm) {
        let at = self.c.local_address(right.all) + (part * self.shape.part(right.rows) + right.first * VEC16);
        (at, TileForm::of_columns_turned(right.rows))
    }

    /// Writes parts of 64 rows of a right operand of `rows` rows, from row `first` on.
    pub fn put(&self, all: Ptr<'c>, rows: usize, first: Int<'c>, numbers: &[Any<'c>]) {
        let c = self.c;
        let own = c.at(all, (self.row() + first) * VEC16 + self.side() * 2);
        for (i, two) in numbers.chunks(2).enumerate() {
            let (half, eight) = (i % 2, i / 2);
            let two = [0, 1].map(|i| two[i].into_float_value());
            for (part, word) in self.thirds(two).into_iter().enumerate() {
                let at = part * self.shape.part(rows) + eight * (rows * VEC16) + half * (8 * VEC16);
                c.store(c.at(own, at), word, 4);
            }
        }
    }

    /// Two numbers as three words of two of bf16: the upper 8, middle 8 and lower 8 bits.
    pub fn thirds(&self, two: [FloatValue<'c>; 2]) -> [Int<'c>; PARTS] {
        let c = self.c;
        let (f32, i32) = (c.cx.f32_type(), c.cx.i32_type());
        let mut rest = two;
        [0; PARTS].map(|_| {
            let high = rest.map(|v| c.as_int(c.bitcast(v, i32)) & 0xffff_0000);
            let floats = high.map(|v| c.bitcast(v, f32).into_float_value());
            rest = [0, 1].map(|i| (c.float(rest[i]) - floats[i]).v);
            high[0].shift_right(16, false) | high[1]
        })
    }

    pub fn store(&self, chunk: Chunk<'c>, seen: &[Any<'c>]) {
        let (c, out) = (self.c, self.delta.out);
        c.set_lanes(2);
        for half in [0, 1] {
            let token = chunk.first + self.token(half);
            let column = self.head * self.delta.sizes.value_dim + self.column + self.side();
            let to = element(c, out, token, column);
            c.when(c.less(token, chunk.end), || {
                for (eight, four) in seen.chunks(4).enumerate() {
                    let to = c.at(to, 8 * eight * out.ty.dtype.size());
                    c.store_floats(to, c.floats(&four[2 * half..2 * half + 2]), out.ty.dtype);
                }
            });
        }
    }

    /// The first of the thread's two rows of a product. The other one is 8 rows further on.
    pub fn row(&self) -> Int<'c> {
        self.c.thread() % TEAM / 32 * 16 + self.c.lane_index() / 4
    }

    /// The first of the thread's two columns of each 8.
    pub fn side(&self) -> Int<'c> {
        self.c.lane_index() % 4 * 2
    }

    pub fn exp(&self, x: FloatValue<'c>) -> FloatValue<'c> {
        self.c.set_lanes(1);
        self.c.lane(math::exp(self.c, self.c.floats(&[x.into()])), 0).into_float_value()
    }
}

/// Words by parts.
pub fn words<'c>(all: Vec<[Int<'c>; PARTS]>) -> Words<'c> {
    [0, 1, 2].map(|part| all.iter().map(|words| words[part]).collect())
}
