//! The state, from chunk to chunk.
use atomc_ir::DType;
use inkwell::values::FloatValue;

use super::super::{element, vector};
use super::{CARRIERS, CHUNK, Chunk, Chunks, FULL, OfToken, PARTS, TEAM, THREADS};
use crate::code::{Any, Int, Ptr};
use crate::recurrent::Run;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

/// A left operand in registers, as parts of bf16.
type Words<'c> = [Vec<Int<'c>>; PARTS];

impl<'c> Chunks<'_, '_, 'c> {
    /// Numbers of a thread of 64 rows of the work-group's columns.
    fn numbers(&self) -> usize {
        self.shape.columns / 2
    }

    /// The place of two neighbours of the state in a slot.
    fn in_slot(&self, slot: Ptr<'c>, (tile, half, eight): (usize, usize, usize)) -> Ptr<'c> {
        let (c, sizes) = (self.c, self.delta.sizes);
        let head = c.at(slot, self.head * (4 * sizes.key_dim * sizes.value_dim));
        let from = c.at(head, (self.row() * sizes.value_dim + self.column + self.side()) * 4);
        c.at(from, ((tile * CHUNK + 8 * half) * sizes.value_dim + 8 * eight) * 4)
    }

    /// The state before the first chunk, as sums of products have it, 64 rows after the other.
    pub(super) fn load_state(&self, run: Run<'c>) -> Vec<Any<'c>> {
        let (c, eights) = (self.c, self.shape.columns / 8);
        let places = (0..self.shape.dim / CHUNK).flat_map(|tile| (0..2 * eights).map(move |i| (tile, i % 2, i / 2)));
        let two = |at| c.load_vector(c.cx.f32_type(), 2, self.in_slot(run.slot, at), 8);
        let number = |v| c.pick(run.goes_on, v, c.number(0.0));
        places.map(two).flat_map(|two| [0, 1].map(|i| number(c.lane(two, i)))).collect()
    }

    pub(super) fn store_state(&self, slot: Ptr<'c>, state: &[Any<'c>]) {
        let c = self.c;
        for (tile, numbers) in state.chunks(self.numbers()).enumerate() {
            for (i, two) in numbers.chunks(2).enumerate() {
                c.store(self.in_slot(slot, (tile, i % 2, i / 2)), c.floats(two), 8);
            }
        }
    }

    /// Stores a chunk's results and returns the new state.
    pub(super) fn carry(&self, chunk: Chunk<'c>, state: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, stages) = (self.c, self.stages);
        let values = self.values(chunk);
        for (tile, numbers) in state.chunks(self.numbers()).enumerate() {
            self.put(stages.state, self.shape.dim, tile * CHUNK, numbers);
        }
        self.meet();
        c.meet_some(chunk.stage + FULL, THREADS);
        let [keys, queries] = [self.keys(chunk), self.queries(chunk)].map(|tile| self.rows(tile));
        let steps = self.shape.dim / 16;
        let by_keys = self.multiply(vec![], keys, stages.state, steps);
        let by_queries = self.multiply(vec![], queries, stages.state, steps);
        let pairs = c.mma_async_new(CHUNK / 2, DType::BF16, (queries, keys), steps);
        let ended = c.mma_wait(&[by_keys, by_queries, pairs].concat(), 0);
        let (by_keys, rest) = ended.split_at(self.numbers());
        let (by_queries, pairs) = rest.split_at(self.numbers());
        self.put(stages.wanted, CHUNK, 0, &self.wanted(chunk, by_keys, &values));
        let inverse = self.inverse(chunk);
        self.meet();
        let made = self.multiply_words(vec![], &inverse, stages.wanted);
        let made = c.mma_wait(&made, 0);
        self.put(stages.made, CHUNK, 0, &made);
        self.put(stages.kept, CHUNK, 0, &self.by_rows(&made, |i| self.rest(chunk, i)));
        let pairs = self.pairs(chunk, pairs);
        let seen = self.by_rows(by_queries, |i| {
            let [decay, query] = [OfToken::Decay, OfToken::Query].map(|of| self.of_token(chunk, of, self.token(i)));
            (c.float(self.exp(decay)) * query).v
        });
        self.meet();
        let state = self.updated(chunk, state);
        let seen = self.multiply_words(seen, &pairs, stages.made);
        let ended = c.mma_wait(&[state, seen].concat(), 0);
        let (state, seen) = ended.split_at(ended.len() - self.numbers());
        self.store(chunk, seen);
        state.to_vec()
    }

    /// One of the thread's two tokens in a chunk.
    fn token(&self, i: usize) -> Int<'c> {
        self.row() + 8 * i
    }

    /// A barrier after which this team's writes may be multiplied.
    fn meet(&self) {
        self.c.show_to_products();
        self.c.meet_some(self.c.int(CARRIERS), TEAM);
    }

    /// Sums times a factor for each of the thread's two rows.
    fn by_rows(&self, sums: &[Any<'c>], factor: impl Fn(usize) -> FloatValue<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let factors = [0, 1].map(factor);
        let scaled = |(i, sum): (usize, &Any<'c>)| (c.float(*sum) * factors[i / 2 % 2]).v.into();
        sums.iter().enumerate().map(scaled).collect()
    }

    /// Values of the thread's tokens.
    fn values(&self, chunk: Chunk<'c>) -> Vec<FloatValue<'c>> {
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

    /// `beta (V - e^G K S)`.
    fn wanted(&self, chunk: Chunk<'c>, by_keys: &[Any<'c>], values: &[FloatValue<'c>]) -> Vec<Any<'c>> {
        let c = self.c;
        let factors = [0, 1].map(|i| {
            let of = |of| self.of_token(chunk, of, self.token(i));
            let kept = c.float(self.exp(of(OfToken::Decay)));
            ((kept * of(OfToken::Key)).v, of(OfToken::Beta))
        });
        let wanted = |(i, (&seen, &value)): (usize, (&Any<'c>, &FloatValue<'c>))| {
            let (kept, beta) = factors[i / 2 % 2];
            let left = c.float(value) - (c.float(seen) * kept).v;
            (left * beta).v.into()
        };
        by_keys.iter().zip(values).enumerate().map(wanted).collect()
    }

    /// The part of a token's contribution that remains at the chunk's end, by its key's length.
    fn rest(&self, chunk: Chunk<'c>, i: usize) -> FloatValue<'c> {
        let c = self.c;
        let of = |of, token| self.of_token(chunk, of, token);
        let all = c.float(of(OfToken::Decay, c.int(CHUNK - 1)));
        let rest = self.exp((all - of(OfToken::Decay, self.token(i))).v);
        (c.float(rest) * of(OfToken::Key, self.token(i))).v
    }

    /// `T`.
    fn inverse(&self, chunk: Chunk<'c>) -> Words<'c> {
        let (c, triangle) = (self.c, self.triangle(chunk));
        let two = |i: usize| {
            let two = c.load_vector(c.cx.f32_type(), 2, triangle.at(c, self.token(i % 2), self.side() + i / 2 * 8), 8);
            self.thirds([0, 1].map(|i| c.lane(two, i).into_float_value()))
        };
        words((0..CHUNK / 4).map(two).collect())
    }

    /// `P`.
    fn pairs(&self, chunk: Chunk<'c>, pairs: &[Any<'c>]) -> Words<'c> {
        let c = self.c;
        let own = [0, 1].map(|i| [OfToken::Decay, OfToken::Query].map(|of| self.of_token(chunk, of, self.token(i))));
        let two = |(i, two): (usize, &[Any<'c>])| {
            let (token, other, [decay, query]) = (self.token(i % 2), self.side() + i / 2 * 8, own[i % 2]);
            let [decays, keys] = [OfToken::Decay, OfToken::Key].map(|of| self.of_two(chunk, of, other));
            self.thirds([0, 1].map(|j| {
                let kept = self.exp((c.float(decay) - decays[j]).v);
                let made = c.float(two[j]) * (c.float(query) * keys[j]).v * kept;
                c.pick(c.less(token, other + j), c.number(0.0), made.v).into_float_value()
            }))
        };
        words(pairs.chunks(2).enumerate().map(two).collect())
    }

    /// `e^(G_n) S + K^T (e^(G_n - G) D)`; its products are in flight.
    fn updated(&self, chunk: Chunk<'c>, state: &[Any<'c>]) -> Vec<Any<'c>> {
        let c = self.c;
        let kept = self.exp(self.of_token(chunk, OfToken::Decay, c.int(CHUNK - 1)));
        let form = TileForm::of_columns_turned(CHUNK);
        let keys = c.local_address(self.keys(chunk));
        let tiles = state.chunks(self.numbers()).enumerate();
        tiles
            .flat_map(|(tile, numbers)| {
                let left = (keys + tile * (8 * CHUNK * VEC16), form);
                self.multiply(self.by_rows(numbers, |_| kept), left, self.stages.kept, CHUNK / 16)
            })
            .collect()
    }

    /// Adds products with all parts of a right operand, the small ones first; without sums before,
    /// they are new.
    fn multiply(&self, sums: Vec<Any<'c>>, left: (Int<'c>, TileForm), right: Ptr<'c>, steps: usize) -> Vec<Any<'c>> {
        let c = self.c;
        (0..PARTS).rev().fold(sums, |sums, part| {
            let both = (left, self.right(right, 16 * steps, part));
            match sums.is_empty() {
                true => c.mma_async_new(self.numbers(), DType::BF16, both, steps),
                false => c.mma_async(&sums, DType::BF16, both, steps),
            }
        })
    }

    /// Multiplies with parts of a left operand of 64 columns. Parts below 2^-24 of the largest are
    /// left out.
    fn multiply_words(&self, sums: Vec<Any<'c>>, left: &Words<'c>, right: Ptr<'c>) -> Vec<Any<'c>> {
        let c = self.c;
        let pairs = (0..PARTS).rev().flat_map(|size| (0..=size).map(move |i| (i, size - i)));
        pairs.fold(sums, |sums, (i, part)| {
            let right = self.right(right, CHUNK, part);
            match sums.is_empty() {
                true => c.mma_async_rs_new(self.numbers(), DType::BF16, &left[i], right),
                false => c.mma_async_rs(&sums, DType::BF16, &left[i], right),
            }
        })
    }

    /// A part of a right operand of `rows` rows.
    fn right(&self, all: Ptr<'c>, rows: usize, part: usize) -> (Int<'c>, TileForm) {
        let at = self.c.local_address(all) + part * self.shape.part(rows);
        (at, TileForm::of_columns_turned(rows))
    }

    /// Writes parts of 64 rows of a right operand of `rows` rows, from row `first` on.
    fn put(&self, all: Ptr<'c>, rows: usize, first: usize, numbers: &[Any<'c>]) {
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
    fn thirds(&self, two: [FloatValue<'c>; 2]) -> [Int<'c>; PARTS] {
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

    fn store(&self, chunk: Chunk<'c>, seen: &[Any<'c>]) {
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
}

/// Words by parts.
fn words<'c>(all: Vec<[Int<'c>; PARTS]>) -> Words<'c> {
    [0, 1, 2].map(|part| all.iter().map(|words| words[part]).collect())
}
