//! Chunks of states whose rows decay apart: the factor of a pair of tokens is in each term of
//! their product, so it goes to the operands.
//!
//! A factor is made of the decays between both tokens alone, by multiplication, as the recurrence
//! has it: no sum of logarithms is subtracted from another, and a decay to nothing is a zero. Pairs
//! in a block of 16 tokens are multiplied row by row on vector units. Of two neighbouring blocks,
//! the later one's keys and queries have the decay from its beginning on, and the earlier one's
//! keys that up to its end, so one product has all of their pairs; then both are a block twice as
//! large. In the end keys and queries have the decay from the chunk's beginning on, as the state
//! before it is seen, and keys that up to its end, as they are put into the state.
use atomc_ir::DType;

use super::super::inverse::BLOCK;
use super::super::products::{COLUMNS, Products, Rows};
use super::super::vector;
use super::{Chunks, OfToken, Shape};
use inkwell::values::FloatValue;

use crate::code::{Any, Int, Ptr, Vector};
use crate::math;
use crate::row::Threads;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;

/// Numbers of f32 in 16 bytes.
const LANES: usize = VEC16 / 4;

/// What a chunk has in local memory beside the rest.
#[derive(Clone)]
pub struct ByRow<'c> {
    /// The decay of each token; then keys with the decay up to them.
    pub keys: Rows<'c>,
    /// `P`.
    pub scores: Rows<'c>,
    /// The decay over each block of 16.
    blocks: Rows<'c>,
}

impl<'c> ByRow<'c> {
    pub fn local(shape: &Shape) -> usize {
        shape.keys() + shape.triangle() + shape.chunk / BLOCK * shape.padded * 4
    }

    pub fn new(c: &Gpu<'c>, shape: &Shape, local: Ptr<'c>) -> ByRow<'c> {
        let rows = |ptr, pitch| Rows { ptr, pitch, dtype: DType::F32 };
        let scores = c.at(local, shape.keys());
        ByRow {
            keys: rows(local, Shape::pitch(shape.padded, DType::F32)),
            scores: rows(scores, Shape::pitch(shape.chunk, DType::F32)),
            blocks: rows(c.at(scores, shape.triangle()), shape.padded * 4),
        }
    }

    /// The decay of some rows over a run of blocks.
    pub fn over(&self, c: &Gpu<'c>, blocks: (Int<'c>, usize), row: Int<'c>, rows: usize) -> Vector<'c> {
        c.set_lanes(rows);
        let align = VEC16.min(4 * rows);
        let of = |i| c.load_vector(c.cx.f32_type(), rows, self.blocks.at(c, blocks.0 + i, row), align);
        (1..blocks.1).fold(of(0), |all, i| c.fmul(all, of(i)))
    }

    /// The decay of a run of rows over the chunk.
    pub fn kept(&self, p: &Products<'_, 'c>, shape: &Shape, span: usize) -> Vector<'c> {
        self.over(p.c, (p.c.int(0), shape.chunk / BLOCK), p.first(span), p.depth())
    }
}

impl<'c> Chunks<'_, '_, 'c> {
    /// The decay of each token, which is one where there is no token or no row, and zeros where
    /// products of tokens go.
    pub(super) fn bring_decays(&self, by_row: &ByRow<'c>, (first, end): (Int<'c>, Int<'c>)) {
        let (c, shape, threads) = (self.c, self.shape, self.threads());
        let lanes = vector(shape.dim, vector(self.delta.decay_start, LANES));
        let in_row = shape.padded / lanes;
        let count = shape.chunk * in_row;
        c.set_lanes(lanes);
        for i in (0..count).step_by(threads) {
            let number = c.smaller(self.products.thread + i, count - 1);
            let [row, column] = [number / in_row, number % in_row * lanes];
            let token = first + row;
            let near = c.smaller(column, shape.dim - lanes);
            let decays = self.delta.decays(c, c.smaller(token, end - 1), self.head, near);
            let exists = c.less(token, end) & c.less(column, shape.dim);
            let kept = c.pick(exists, math::exp(c, decays), c.lit(1.0)).into_vector_value();
            c.store_floats(by_row.keys.at(c, row, column), kept, DType::F32);
        }
        c.set_lanes(LANES);
        let in_row = shape.chunk / LANES;
        c.repeat(self.products.thread, shape.chunk * in_row, threads, |i| {
            for to in [self.triangle, by_row.scores] {
                c.store_floats(to.at(c, i / in_row, i % in_row * LANES), c.zero(), DType::F32);
            }
        });
    }

    /// The triangle that `T` is the inverse of, and `P`. Keys and queries have the decays in their
    /// halves of the chunk then.
    pub fn pairs_by_row(&self, by_row: &ByRow<'c>) {
        self.near(by_row);
        self.c.barrier();
        self.spread(by_row);
        self.c.barrier();
        self.far(by_row, BLOCK);
        let mut half = BLOCK;
        while 2 * half < self.shape.chunk {
            self.c.barrier();
            self.raise(by_row, half, (self.products.thread, self.threads()));
            self.c.barrier();
            half *= 2;
            self.far(by_row, half);
        }
        self.c.barrier();
    }

    /// Gives keys and queries the decays of the chunk, by `threads` threads.
    pub fn raise_halves(&self, by_row: &ByRow<'c>, first: Int<'c>, threads: usize) {
        self.raise(by_row, self.shape.chunk / 2, (first, threads));
    }

    /// Pairs of tokens of the same block. Some lanes have a column of a block from its diagonal
    /// downwards, and then the one as far from the block's end: 17 pairs in all.
    fn near(&self, by_row: &ByRow<'c>) {
        let (c, shape) = (self.c, self.shape);
        let team = vector(shape.padded / LANES, self.threads() / (shape.chunk / 2));
        let index = self.products.thread % team;
        let both = self.products.thread / team % (shape.chunk / 2);
        let (block, column) = (both / (BLOCK / 2) * BLOCK, both % (BLOCK / 2));
        let turns = shape.padded / (LANES * team);
        let before = vec![Any::from(c.cx.f32_type().vec_type(LANES as u32).const_zero()); turns];
        c.for_each((0, BLOCK + 1, 1), &before, |turn, decayed| {
            let is_first = c.less(turn + column, BLOCK);
            let row = block + c.pick_int(is_first, turn + column, turn - 1);
            let column = block + c.pick_int(is_first, column, c.int(BLOCK - 1) - column);
            let begins = c.equal(row - column, 0);
            c.set_lanes(LANES);
            let (mut sums, mut after) = ([c.zero(); 2], vec![]);
            for (i, decayed) in decayed.iter().enumerate() {
                let at = (index + i * team) * LANES;
                let of = |x: Rows<'c>| c.load_floats(x.at(c, row, at), DType::F32);
                let key = of(self.keys);
                let further = c.fmul(decayed.into_vector_value(), of(by_row.keys));
                let decayed = c.pick(begins, key, further).into_vector_value();
                sums = [(key, sums[0]), (of(self.queries), sums[1])].map(|(x, sum)| c.fma(x, decayed, sum));
                after.push(decayed.into());
            }
            let lanes = c.lanes_team(index, team);
            let sums = sums.map(|sum| c.team_sum(c.sum(sum), lanes));
            c.when(c.equal(index, 0), || self.store_near(by_row, (row, column), sums));
            after
        });
    }

    /// Stores the products of a pair of tokens of the same block.
    fn store_near(&self, by_row: &ByRow<'c>, (row, column): (Int<'c>, Int<'c>), sums: [FloatValue<'c>; 2]) {
        let c = self.c;
        let [of_keys, of_queries] = sums.map(|sum| c.float(sum));
        let other = self.of_token(OfToken::Key, column);
        let [key, query, beta] =
            [OfToken::Key, OfToken::Query, OfToken::Beta].map(|of| c.float(self.of_token(of, row)));
        let made = c.pick(c.less(column, row), (of_keys * (key * beta.v * other).v).v, c.number(1.0));
        c.store(self.triangle.at(c, row, column), made, 4);
        c.store(by_row.scores.at(c, row, column), (of_queries * (query * other).v).v, 4);
    }

    /// Gives keys and queries the decay from their block's beginning on, and keys that up to its
    /// end. A thread has a row of the state.
    fn spread(&self, by_row: &ByRow<'c>) {
        let (c, shape) = (self.c, self.shape);
        let count = shape.chunk / BLOCK * shape.padded;
        c.repeat(self.products.thread, count, self.threads(), |i| {
            let (block, row) = (i / shape.padded, i % shape.padded);
            let at = |x: Rows<'c>, token: usize| x.at(c, block * BLOCK + token, row);
            let all = |x: Rows<'c>| -> Vec<FloatValue<'c>> {
                (0..BLOCK).map(|token| c.load_number(at(x, token), DType::F32)).collect()
            };
            let [decays, keys, queries] = [by_row.keys, self.keys, self.queries].map(all);
            let mut upto = c.float(c.number(1.0));
            for token in 0..BLOCK {
                upto = upto * decays[token];
                c.store(at(by_row.keys, token), (upto * keys[token]).v, 4);
                c.store(at(self.queries, token), (upto * queries[token]).v, 4);
            }
            let mut rest = c.float(c.number(1.0));
            for token in (0..BLOCK).rev() {
                c.store(at(self.keys, token), (rest * keys[token]).v, 4);
                rest = rest * decays[token];
            }
            c.store(by_row.blocks.at(c, block, row), rest.v, 4);
        });
    }

    /// Pairs of tokens of two neighbouring blocks of `half` tokens, everywhere on the diagonal: a
    /// wave has 16 of the later keys, or queries.
    fn far(&self, by_row: &ByRow<'c>, half: usize) {
        let (c, p, shape) = (self.c, &self.products, self.shape);
        let (results, parts) = (p.results(), half / COLUMNS);
        c.repeat(c.wave_index(), shape.chunk / COLUMNS, shape.waves, |unit| {
            let (is_query, part) = (c.equal(unit % 2, 1), unit / 2);
            let before = part / parts * (2 * half);
            let later = before + half + part % parts * COLUMNS;
            let of = |query: Rows<'c>, key: Rows<'c>| Rows {
                ptr: c.pick(is_query, query.ptr, key.ptr).into_pointer_value(),
                ..key
            };
            let (right, to) = (of(self.queries, by_row.keys), of(by_row.scores, self.triangle));
            let none = c.cx.f32_type().vec_type(results as u32).const_zero();
            let mut sums = vec![vec![none; p.blocks()]; parts];
            for span in 0..shape.padded / p.span() {
                let right = p.stored_columns(right, later, span);
                for (tile, sums) in sums.iter_mut().enumerate() {
                    let left = p.left(self.keys, p.first(span), |row| before + row + 16 * tile);
                    p.add(&left, &right, sums);
                    c.keep_order();
                }
            }
            for block in 0..p.blocks() {
                let token = later + p.column(block);
                let own = [OfToken::Key, OfToken::Beta, OfToken::Query].map(|of| c.float(self.of_token(of, token)));
                let own = c.pick(is_query, own[2].v, (own[0] * own[1].v).v);
                c.set_lanes(results);
                for (tile, sums) in sums.iter().enumerate() {
                    let other = before + p.place.results + 16 * tile;
                    let keys = c.load_vector(c.cx.f32_type(), results, self.place(OfToken::Key, other), VEC16);
                    let made = c.fmul(sums[block], c.fmul(c.splat(own), keys));
                    c.store(to.at(c, token, other), made, VEC16 as u32);
                }
            }
        });
    }

    /// Makes one block of two neighbours of `half` tokens: the later one's keys and queries have
    /// the decay over the earlier one as well, and the earlier one's keys that over the later one.
    fn raise(&self, by_row: &ByRow<'c>, half: usize, (first, threads): (Int<'c>, usize)) {
        let (c, shape) = (self.c, self.shape);
        let in_row = shape.padded / LANES;
        c.repeat(first, shape.chunk * in_row, threads, |i| {
            let (token, row) = (i / in_row, i % in_row * LANES);
            let number = token / half;
            let is_later = c.equal(number % 2, 1);
            let neighbour = c.pick_int(is_later, number - 1, number + 1) * (half / BLOCK);
            let factor = by_row.over(c, (neighbour, half / BLOCK), row, LANES);
            let times = |x: Rows<'c>| {
                let at = x.at(c, token, row);
                c.store_floats(at, c.fmul(c.load_floats(at, DType::F32), factor), DType::F32);
            };
            c.when(is_later, || [by_row.keys, self.queries].map(times));
            c.when(!is_later, || times(self.keys));
        });
    }
}
