//! The state, from chunk to chunk.
use atomc_ir::DType;
use inkwell::values::FloatValue;

use super::columns::{Right, Words, words};
use super::{CHUNK, Chunk, Chunks, FULL, OfToken, PARTS, THREADS};
use crate::code::{Any, Int, Ptr};
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

impl<'c> Chunks<'_, '_, 'c> {
    /// Stores a chunk's results and returns the new state.
    pub(super) fn carry(&self, chunk: Chunk<'c>, state: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, stages) = (self.c, self.stages);
        let values = self.values(chunk);
        for (tile, numbers) in state.chunks(self.numbers()).enumerate() {
            self.put(stages.state, self.shape.dim, c.int(tile * CHUNK), numbers);
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
        self.put(stages.wanted, CHUNK, c.int(0), &self.wanted(by_keys, &values, self.seen_factors(chunk)));
        let inverse = self.left(self.triangle(chunk), 0);
        self.meet();
        let made = self.multiply_words(vec![], &inverse, of_tokens(stages.wanted));
        let made = c.mma_wait(&made, 0);
        self.put(stages.made, CHUNK, c.int(0), &made);
        self.put(stages.kept, CHUNK, c.int(0), &self.by_rows(&made, |i| self.rest(chunk, i)));
        let pairs = self.pairs(chunk, pairs);
        let seen = self.by_rows(by_queries, |i| {
            let [decay, query] = [OfToken::Decay, OfToken::Query].map(|of| self.of_token(chunk, of, self.token(i)));
            (c.float(self.exp(decay)) * query).v
        });
        self.meet();
        let state = self.updated(chunk, state);
        let seen = self.multiply_words(seen, &pairs, of_tokens(stages.made));
        let ended = c.mma_wait(&[state, seen].concat(), 0);
        let (state, seen) = ended.split_at(ended.len() - self.numbers());
        self.store(chunk, seen);
        state.to_vec()
    }

    /// The decay of each of the thread's two rows, by its key's length, and the rate of its value.
    fn seen_factors(&self, chunk: Chunk<'c>) -> [[FloatValue<'c>; 2]; 2] {
        [0, 1].map(|i| {
            let of = |of| self.of_token(chunk, of, self.token(i));
            let kept = self.c.float(self.exp(of(OfToken::Decay)));
            [(kept * of(OfToken::Key)).v, of(OfToken::Beta)]
        })
    }

    /// The part of a token's contribution that remains at the chunk's end, by its key's length.
    fn rest(&self, chunk: Chunk<'c>, i: usize) -> FloatValue<'c> {
        let c = self.c;
        let of = |of, token| self.of_token(chunk, of, token);
        let all = c.float(of(OfToken::Decay, c.int(CHUNK - 1)));
        let rest = self.exp((all - of(OfToken::Decay, self.token(i))).v);
        (c.float(rest) * of(OfToken::Key, self.token(i))).v
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
            let both = (left, self.right(Right { all: right, rows: 16 * steps, first: 0 }, part));
            match sums.is_empty() {
                true => c.mma_async_new(self.numbers(), DType::BF16, both, steps),
                false => c.mma_async(&sums, DType::BF16, both, steps),
            }
        })
    }
}

/// A right operand with a row for each token.
fn of_tokens<'c>(all: Ptr<'c>) -> Right<'c> {
    Right { all, rows: CHUNK, first: 0 }
}
