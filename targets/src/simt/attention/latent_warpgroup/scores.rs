//! The team that makes scores and their softmax: its weights are the left operand of those that add
//! up values.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::{CHUNK, Group, QUERIES, ROW, STAGERS, STAGES, TEAM, Tile};
use crate::code::{Any, Int};
use crate::simt::attention::score_pairs::{ScorePair, Weighed};
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

impl<'c> Group<'_, '_, '_, 'c> {
    pub(super) fn make_scores(&self, tile: &Tile<'c>) -> Result<(), Diagnostic> {
        let (c, a, by_token) = (self.code(), self.attention, self.shape.by_token);
        if tile.list.is_none() {
            (0..STAGES).for_each(|i| self.ask(tile, c.equal(c.thread(), 0), tile.first + i));
        }
        self.stage(tile, if by_token { STAGERS } else { TEAM })?;
        let none = c.number(0.0);
        let begin = ScorePair { maxima: [a.lowest(); 2], sums: [none; 2] };
        // The block that a token's own key is in is not like those before it.
        let late = if by_token { c.larger(tile.position, 0) } else { tile.position + 1 } / a.cache.layout.block_tokens;
        let late = c.larger(c.smaller(late, tile.end), tile.first);
        let mut running = begin.carried();
        for (first, end, hides) in [(tile.first, late, false), (late, tile.end, true)] {
            running = c.for_each((first, end, 1), &running, |block, running| {
                self.weigh_block(tile, block, hides, ScorePair::of(running)).carried()
            });
        }
        self.end_scores(tile, ScorePair::of(&running));
        Ok(())
    }

    /// The first of the lane's two queries, as a row of the tile.
    pub(super) fn row(&self) -> Int<'c> {
        let c = self.code();
        c.wave_index() % 4 * 16 + c.lane_index() / 4
    }

    fn weigh_block(&self, tile: &Tile<'c>, block: Int<'c>, hides: bool, before: ScorePair<'c>) -> ScorePair<'c> {
        let (c, a) = (self.code(), self.attention);
        let turn = tile.turn + (block - tile.first);
        self.keys.wait_full(c, turn);
        if tile.list.is_some() {
            c.show_to_products();
        }
        if hides && a.cache.written().is_some() {
            c.when(c.equal(self.own_block(tile) - block, 0), || self.put_key(tile, turn));
        }
        let scores = c.mma_wait(&self.scores(turn), 0);
        let mut scores: Vec<FloatValue<'c>> = scores.iter().map(|v| v.into_float_value()).collect();
        if hides {
            let own = |i: usize| match self.shape.tokens {
                1 => tile.position,
                _ => tile.position + (self.row() + 8 * i) / self.shape.heads,
            };
            a.hide_pair(block, [0, 1].map(own), &mut scores);
        }
        let Weighed { pair, rescale, weights } = a.weigh(&scores, before);
        self.leave_weights(turn, &weights);
        self.leave_numbers(self.weights.at(turn), rescale, 0);
        c.show_to_products();
        c.arrive(c.always(), self.weights.full(turn));
        pair
    }

    /// Issues the products of a block's scores. A lane has scores of two queries.
    fn scores(&self, turn: Int<'c>) -> Vec<Any<'c>> {
        let (c, dtype, form) = (self.code(), self.attention.matrix.dtype, self.keys_form());
        let keys = self.keys.at(turn);
        let operands = |chunk: usize| {
            let query = (self.queries + chunk * CHUNK, TileForm::Swizzled);
            (query, (keys + chunk * (ROW / VEC16) * (QUERIES * VEC16), form))
        };
        let first = c.mma_async_new(QUERIES / 2, dtype, operands(0), 4);
        (1..self.shape.chunks()).fold(first, |sums, chunk| c.mma_async(&sums, dtype, operands(chunk), 4))
    }

    /// Weights as the left operand: rows of 128 bytes, swizzled.
    fn leave_weights(&self, turn: Int<'c>, weights: &[FloatValue<'c>]) {
        let (c, a) = (self.code(), self.attention);
        let to = self.weights_at(turn) + self.row() * ROW + c.lane_index() % 4 * 4;
        for (i, two) in weights.chunks(2).enumerate() {
            let (eight, which) = (i / 2, i % 2);
            // The rows of a lane are the same in their group of eight.
            let piece = (c.lane_index() / 4) ^ eight;
            let at = to + piece * VEC16 + which * (8 * ROW);
            c.store(c.at_address(at), a.pair_word([two[0], two[1]]), 4);
        }
    }

    /// A number of each query, by one of the lanes that share it.
    fn leave_numbers(&self, at: Int<'c>, numbers: [FloatValue<'c>; 2], from: usize) {
        let c = self.code();
        c.when(c.equal(c.lane_index() % 4, 0), || {
            for (i, v) in numbers.into_iter().enumerate() {
                c.store(c.at_address(at + (self.row() + 8 * i) * 4 + from), v, 4);
            }
        });
    }

    /// Leaves sums of weights and highest scores for those that have the values.
    fn end_scores(&self, tile: &Tile<'c>, pair: ScorePair<'c>) {
        let (c, a) = (self.code(), self.attention);
        let sums = [0, 1].map(|i| a.pair_total(pair, i));
        self.ends.wait_empty(c, tile.number);
        let at = self.ends.at(tile.number);
        self.leave_numbers(at, sums, 0);
        self.leave_numbers(at, pair.maxima, 4 * QUERIES);
        c.arrive(c.always(), self.ends.full(tile.number));
    }
}
