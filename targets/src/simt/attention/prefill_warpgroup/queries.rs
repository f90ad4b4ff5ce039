//! The waves that multiply: scores of a block's keys, their online softmax, and weighted sums of
//! values.
use atomc_artifact::abi::TILE_TOKENS;
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::{Group, ROWS, TEAM, Tile};
use crate::code::{Any, Int, Ptr};
use crate::row::{At, Col};
use crate::simt::attention::score_pairs::{ScorePair, Weighed};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::pipeline::Pipeline;
use crate::simt::machine::warpgroup::TileForm;

/// A lane's state of its two queries after a block: the highest score of each, the sum of its
/// weights, and the block's weights, which wait for their values. Weighted sums of earlier values
/// may be in flight; they are rescaled when they have arrived.
pub struct OnlineSoftmaxPair<'c> {
    pair: ScorePair<'c>,
    rescale: [FloatValue<'c>; 2],
    pub weights: Vec<FloatValue<'c>>,
    values: Vec<Any<'c>>,
}

impl<'c> OnlineSoftmaxPair<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        let floats = self.rescale.iter().chain(&self.weights).map(|&v| v.into());
        self.pair.carried().into_iter().chain(floats).chain(self.values.iter().copied()).collect()
    }

    /// The carried state, which has `weights` weights.
    pub fn of(carried: &[Any<'c>], weights: usize) -> OnlineSoftmaxPair<'c> {
        let rescale = [4, 5].map(|i| carried[i].into_float_value());
        let (weights, values) = carried[6..].split_at(weights);
        let weights = weights.iter().map(|v| v.into_float_value()).collect();
        OnlineSoftmaxPair { pair: ScorePair::of(carried), rescale, weights, values: values.to_vec() }
    }
}

/// The queries of a wave: 16 tokens of a tile, with one head. A lane has two of them, 8 apart.
pub struct Queries<'q, 'r, 'k, 'a, 'c> {
    group: &'q Group<'r, 'k, 'a, 'c>,
    tile: &'q Tile<'c>,
    /// The first of the two in the tile, the head, and whether the work-group has it.
    column: Int<'c>,
    head: Int<'c>,
    is_real: Int<'c>,
    /// The positions that the two see up to.
    sees: [Int<'c>; 2],
    kept: Kept<'c>,
}

/// The place of the queries of four waves while they are multiplied.
enum Kept<'c> {
    Words(Vec<Int<'c>>),
    Local(Ptr<'c>),
}

impl<'q, 'r, 'k, 'a, 'c> Queries<'q, 'r, 'k, 'a, 'c> {
    pub fn new(
        group: &'q Group<'r, 'k, 'a, 'c>,
        tile: &'q Tile<'c>,
    ) -> Result<Queries<'q, 'r, 'k, 'a, 'c>, Diagnostic> {
        let (c, a, wave) = (group.code(), group.attention, group.code().wave_index());
        let inside = tile.part * group.shape.heads + wave / (TILE_TOKENS / 16);
        let sharing = a.heads / a.cache.ty.heads;
        let within = c.less(inside, sharing);
        let own = c.less(wave / (TILE_TOKENS / 16), group.shape.heads);
        let column = wave % (TILE_TOKENS / 16) * 16 + c.lane_index() / 4;
        let sees = [0, 1].map(|i| {
            let behind = column + 8 * i;
            // Only where it is read from memory must it be of a token that there is.
            let safe = if a.seen.ends.is_some() { c.smaller(behind, tile.count - 1) } else { behind };
            a.seen.reach(c, (tile.token, tile.position), safe)
        });
        let mut queries = Queries {
            group,
            tile,
            column,
            sees,
            head: tile.cache_head * sharing + c.smaller(inside, sharing - 1),
            is_real: within & own,
            kept: Kept::Words(vec![]),
        };
        queries.kept = match group.queries {
            Some(all) => Kept::Local(queries.stage(all)?),
            None => Kept::Words(queries.load()?),
        };
        Ok(queries)
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.group.code()
    }

    /// The token of one of the lane's queries.
    fn token(&self, i: usize) -> Int<'c> {
        self.column + 8 * i
    }

    /// For each 16 columns, two of 8 for both queries, then two of the other 8; zeros behind the
    /// numbers of a head.
    fn load(&self) -> Result<Vec<Int<'c>>, Diagnostic> {
        let (c, a) = (self.code(), self.group.attention);
        let rows = &a.kernel.rows;
        let operand = rows.operand(a.query_value())?;
        let last = self.tile.count - 1;
        let first = c.lane_index() % 4 * 2;
        let starts = [0, 1].map(|i| {
            let row = self.tile.token + c.smaller(self.token(i), last);
            rows.address(operand, At { row, head: Some(self.head), col: Col::Var(first) })
        });
        let word = |i: usize| {
            let column = i / 4 * 16 + i / 2 % 2 * 8;
            if column >= a.cache.ty.head_dim {
                return c.int(0);
            }
            let at = c.int(column * a.matrix.dtype.size());
            c.as_int(c.load(c.cx.i32_type(), c.at(starts[i % 2], at), 4))
        };
        Ok((0..self.group.shape.dim / 4).map(word).collect())
    }

    /// Stages the wave's queries in local memory: 16 bytes of the columns of all rows together.
    /// Eight lanes write eight adjacent rows.
    fn stage(&self, all: Ptr<'c>) -> Result<Ptr<'c>, Diagnostic> {
        let (c, a, bytes) = (self.code(), self.group.attention, self.group.shape.queries);
        let operand = a.kernel.rows.operand(a.query_value())?;
        let (team, wave, lane) = (c.thread() / TEAM, c.wave_index(), c.lane_index());
        let own = c.at(all, team * bytes);
        let lanes = VEC16 / a.matrix.dtype.size();
        let eight = wave % (TILE_TOKENS / 16) * 16 + lane % 8;
        let vectors = (0..2 * bytes / ROWS / VEC16 / 4).map(|i| {
            let (half, vector) = (i % 2, lane / 8 + i / 2 * 4);
            let row = self.tile.token + c.smaller(eight + 8 * half, self.tile.count - 1);
            let from = a.kernel.rows.address(operand, At { row, head: Some(self.head), col: Col::Var(vector * lanes) });
            let place = wave % (TEAM / 32) * 16 + lane % 8 + 8 * half;
            let numbers = c.load_vector(c.cx.i32_type(), 4, from, VEC16);
            (c.at(own, vector * (ROWS * VEC16) + place * VEC16), numbers)
        });
        let vectors: Vec<_> = vectors.collect();
        // The others may still multiply with the queries of the tile before.
        c.meet_some(team + 1, TEAM);
        for (to, numbers) in vectors {
            c.store(to, numbers, VEC16 as u32);
        }
        c.show_to_products();
        c.meet_some(team + 1, TEAM);
        Ok(own)
    }

    /// Issues the products of the scores of a turn's block.
    fn begin_scores(&self, turn: Int<'c>) -> Vec<Any<'c>> {
        let (c, a, ring) = (self.code(), self.group.attention, &self.group.keys);
        let form = self.group.form(a.key_panel());
        ring.wait_full(c, turn);
        let (sums, keys) = (a.cache.layout.block_tokens / 2, (ring.at(turn), form));
        match &self.kept {
            Kept::Words(words) => c.mma_async_rs_new(sums, a.matrix.dtype, words, keys),
            Kept::Local(queries) => {
                let queries = (c.local_address(*queries), TileForm::of_columns(ROWS));
                c.mma_async_new(sums, a.matrix.dtype, (queries, keys), self.group.shape.dim / 16)
            }
        }
    }

    /// Issues the products of the weighted values of the block before a turn's, added to others.
    fn begin_values(&self, turn: Int<'c>, weights: &[Int<'c>], values: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, a, ring) = (self.code(), self.group.attention, &self.group.values);
        let form = self.group.form(a.value_panel());
        let turn = turn - 1;
        ring.wait_full(c, turn);
        c.mma_async_rs(values, a.matrix.dtype, weights, (ring.at(turn), form))
    }

    /// This wave needs a turn's keys or values no more.
    fn leave(&self, ring: &Pipeline<'c>, turn: Int<'c>) {
        let c = self.code();
        ring.release(c, c.equal(c.lane_index(), 0), turn);
    }

    /// The weighted sums of values of all blocks before the previous one, rescaled to the previous
    /// block's scores, and the previous block's weights as words. Words must stay in their
    /// registers until the products that read them are done, so new words are made after the wait.
    fn end_values(
        &self,
        block: Int<'c>,
        turn: Int<'c>,
        running: &OnlineSoftmaxPair<'c>,
    ) -> (Vec<Any<'c>>, Vec<Int<'c>>) {
        let c = self.code();
        let weights = running.weights.iter().map(|&v| v.into());
        let all: Vec<Any<'c>> = running.values.iter().copied().chain(weights).collect();
        let ended = c.mma_wait(&all, 0);
        let (sums, weights) = ended.split_at(running.values.len());
        // The products in flight were those of the block two before, if it exists.
        let were = c.less(self.tile.first + 1, block);
        self.group.values.release(c, were & c.equal(c.lane_index(), 0), turn - 2);
        let words = self.packed(weights);
        (self.group.attention.rescale_pair(sums, running.rescale), words)
    }

    /// The first block, up to its weights.
    pub fn begin(&self, block: Int<'c>, turn: Int<'c>) -> OnlineSoftmaxPair<'c> {
        let (c, a) = (self.code(), self.group.attention);
        let scores = c.mma_wait(&self.begin_scores(turn), 0);
        self.leave(&self.group.keys, turn);
        let none = c.number(0.0);
        let values = vec![none.into(); self.group.shape.dim / 2];
        let (row_max, sum) = a.before_keys(|| (self.head, c.equal(c.lane_index() % 4, 0)));
        let pair = ScorePair { maxima: [row_max; 2], sums: [sum; 2] };
        let before = OnlineSoftmaxPair { pair, rescale: [none; 2], values, weights: vec![] };
        self.softmax_weights(block, true, &scores, before)
    }

    /// Scores of a block, and its weights while values of the block before it are added.
    pub fn turn(
        &self,
        block: Int<'c>,
        turn: Int<'c>,
        hides: bool,
        running: OnlineSoftmaxPair<'c>,
    ) -> OnlineSoftmaxPair<'c> {
        let c = self.code();
        let (values, weights) = self.end_values(block, turn, &running);
        let scores = self.begin_scores(turn);
        let values = self.begin_values(turn, &weights, &values);
        // The products of values may be in flight.
        let scores = c.mma_wait(&scores, 1);
        self.leave(&self.group.keys, turn);
        self.softmax_weights(block, hides, &scores, OnlineSoftmaxPair { values, ..running })
    }

    /// The weights of a block's scores.
    fn softmax_weights(
        &self,
        block: Int<'c>,
        hides: bool,
        scores: &[Any<'c>],
        before: OnlineSoftmaxPair<'c>,
    ) -> OnlineSoftmaxPair<'c> {
        let a = self.group.attention;
        let mut scores: Vec<FloatValue<'c>> = scores.iter().map(|v| v.into_float_value()).collect();
        if hides {
            a.hide_pair(block, self.sees, &mut scores);
        }
        let Weighed { pair, rescale, weights } = a.weigh(&scores, before.pair);
        OnlineSoftmaxPair { pair, rescale, weights, ..before }
    }

    /// Weights as words of the second product: for each 16 keys, two of 8 for both queries, then
    /// two of the other 8.
    fn packed(&self, weights: &[Any<'c>]) -> Vec<Int<'c>> {
        weights.chunks(2).map(|two| self.group.attention.pair_word([0, 1].map(|i| two[i].into_float_value()))).collect()
    }

    /// Adds the values of the last block, divides by the sums and stores.
    pub fn finish(&self, end: Int<'c>, turn: Int<'c>, running: OnlineSoftmaxPair<'c>) {
        let (c, a) = (self.code(), self.group.attention);
        let (values, weights) = self.end_values(end, turn, &running);
        let values = c.mma_wait(&self.begin_values(turn, &weights, &values), 0);
        self.leave(&self.group.values, turn - 1);
        let first = c.lane_index() % 4 * 2;
        for i in [0, 1] {
            let inverse = a.inverse(a.pair_total(running.pair, i));
            let store = self.is_real & c.less(self.token(i), self.tile.count);
            let to = a.result(self.tile.token + self.token(i), self.head, first);
            c.when(store, || {
                for (eight, four) in values.chunks(4).enumerate().take(a.cache.ty.head_dim / 8) {
                    let two = [0, 1].map(|j| {
                        let v = four[2 * i + j].into_float_value();
                        (c.float(v) * inverse).v
                    });
                    c.store(c.at(to, 8 * eight * a.out_type().size()), a.pair_word(two), 4);
                }
            });
        }
    }
}
