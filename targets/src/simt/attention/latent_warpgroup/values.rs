//! The teams that add up weighted values, each the columns that it has.
use atomc_ir::{DType, Diagnostic};
use inkwell::values::FloatValue;

use super::{Group, QUERIES, STAGERS, STAGES, TEAM, Tile, VALUE_TEAMS};
use crate::code::{Any, Int};
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Columns of values of a team.
    pub(super) fn width(&self) -> usize {
        self.shape.values / VALUE_TEAMS
    }

    pub(super) fn add_values(&self, tile: &Tile<'c>, team: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        self.gather_first(tile);
        if self.shape.by_token {
            c.when(c.less(c.thread(), STAGERS), || self.stage(tile, STAGERS))?;
        }
        self.begin_tile(tile)?;
        let none = vec![c.number(0.0).into(); self.width() / 2];
        let leader = c.equal(c.thread() - TEAM, 0);
        let values = c.for_each((tile.first, tile.end, 1), &none, |block, values| {
            let (turn, next) = (tile.turn + (block - tile.first), block + STAGES);
            let place = tile.list.map(|list| self.place_of_key(tile, list, next));
            let values = self.add_block(turn, team, values);
            match place {
                Some(place) => self.gather(tile, next, place),
                None => self.ask(tile, leader, next),
            }
            values
        });
        self.ends.wait_full(c, tile.number);
        let ends = self.ends.at(tile.number);
        let [sums, maxima] = [0, 4 * QUERIES].map(|from| self.numbers(ends + from));
        self.ends.release(c, c.always(), tile.number);
        match tile.shared {
            None => self.store(tile, team, &values, [sums, maxima]),
            Some(shared) => {
                let alone = c.less(shared.used, 2);
                c.when(alone, || self.store(tile, team, &values, [sums, maxima]));
                c.when(!alone, || self.share(tile, shared, team, &values, [sums, maxima]));
            }
        }
        Ok(())
    }

    /// If a token writes its own key, a wave does so, if the block is here.
    fn begin_tile(&self, tile: &Tile<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        let Some(written) = self.attention.cache.written() else { return Ok(()) };
        let is_here = c.equal(tile.end - 1 - self.own_block(tile), 0);
        c.when(is_here & c.equal(c.thread() / 32, 2 * TEAM / 32), || self.write_key(tile, written.key))
    }

    /// Two numbers of the lane's queries.
    fn numbers(&self, at: Int<'c>) -> [FloatValue<'c>; 2] {
        let c = self.code();
        let load = |i: usize| c.load(c.cx.f32_type(), c.at_address(at + (self.row() + 8 * i) * 4), 4);
        [0, 1].map(|i| load(i).into_float_value())
    }

    fn add_block(&self, turn: Int<'c>, team: Int<'c>, values: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, dtype) = (self.code(), self.attention.matrix.dtype);
        self.weights.wait_full(c, turn);
        let values = self.attention.rescale_pair(values, self.numbers(self.weights.at(turn)));
        let weights = (self.weights_at(turn), TileForm::Swizzled);
        let first = team * (self.width() / 8 * QUERIES * VEC16);
        let block = (self.keys.at(turn) + first, self.values_form());
        let values = c.mma_async(&values, dtype, (weights, block), QUERIES / 16);
        let values = c.mma_wait(&values, 0);
        self.keys.release(c, c.equal(c.lane_index(), 0), turn);
        values
    }

    /// Divides by the sums and stores.
    fn store(&self, tile: &Tile<'c>, team: Int<'c>, values: &[Any<'c>], [sums, maxima]: [[FloatValue<'c>; 2]; 2]) {
        let (c, a) = (self.code(), self.attention);
        if a.out_type() == DType::F32 {
            return self.store_wide(tile, team, values, [sums, maxima]);
        }
        let first = team * self.width() + c.lane_index() % 4 * 8;
        for (i, &sum) in sums.iter().enumerate() {
            let inverse = a.inverse(sum);
            let word = |four: &[Any<'c>]| a.pair_word([0, 1].map(|j| (c.float(four[2 * i + j]) * inverse).v));
            let words: Vec<Int<'c>> = values.chunks(4).map(word).collect();
            // A lane has two of each eight columns, and gets all of one eight of four.
            let eights: Vec<[Int<'c>; 4]> = words.chunks(4).map(|four| c.turn_four(four)).collect();
            let row = self.row() + 8 * i;
            c.when(self.is_query(tile, row), || {
                let (token, head) = self.place_of(tile, row);
                let to = a.result(token, head, first);
                for (turn, eight) in eights.iter().enumerate() {
                    c.store(c.at(to, turn * 64), c.words(eight), 16);
                }
            });
        }
    }

    /// Stores results as they are, two columns of each query at a time, and what else there is of a
    /// part of attention. Without a key they are zeros.
    fn store_wide(&self, tile: &Tile<'c>, team: Int<'c>, values: &[Any<'c>], [sums, maxima]: [[FloatValue<'c>; 2]; 2]) {
        let (c, a) = (self.code(), self.attention);
        for (i, (&sum, &row_max)) in sums.iter().zip(&maxima).enumerate() {
            let (inverse, has_keys) = (a.inverse(sum), a.has_keys(sum));
            let result = |v: &Any<'c>| c.pick(has_keys, (c.float(*v) * inverse).v, c.number(0.0));
            let row = self.row() + 8 * i;
            c.when(self.is_query(tile, row), || {
                let place = self.place_of(tile, row);
                let to = a.result(place.0, place.1, self.first_column(team));
                for (eight, four) in values.chunks(4).enumerate() {
                    c.store(c.at(to, eight * 32), c.floats(&[result(&four[2 * i]), result(&four[2 * i + 1])]), 8);
                }
                let is_first = c.equal(team, 0) & c.equal(c.lane_index() % 4, 0);
                c.when(is_first, || a.store_stats(place, [row_max, sum]));
            });
        }
    }

    /// The lane's first column of values.
    pub(super) fn first_column(&self, team: Int<'c>) -> Int<'c> {
        team * self.width() + self.code().lane_index() % 4 * 2
    }
}
