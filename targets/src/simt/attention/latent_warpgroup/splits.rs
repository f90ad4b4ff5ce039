//! Work-groups that share a sequence's blocks: each leaves its sums of values, with its highest
//! scores and sums of weights, in the workspace. When all have, each puts some of the result
//! together, so that no work-group reads everything.
//!
//! A work-group waits for the others here. There are no more of them than the chip has units, and
//! each has a unit for itself, so all of them run.
use inkwell::values::FloatValue;

use super::{Group, QUERIES, Shape, Shared, TEAM, Tile, VALUE_TEAMS, VALUES_MEET};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::launch::COUNTERS;
use crate::simt::machine::warpgroup::MAP;

/// Parts that are put together at a time.
const MERGED: usize = 16;
/// Threads that have values.
const WORKERS: usize = VALUE_TEAMS * TEAM;

impl Shape {
    /// Bytes that a work-group leaves: sums of values of each query, then two numbers of each.
    pub(super) fn partial_bytes(&self) -> usize {
        QUERIES * (self.values * 4 + 8)
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    fn partial(&self, tile: Int<'c>, split: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let maps = self.tokens * shape.parts * shape.splits * MAP;
        let place = tile * shape.splits + split;
        let bytes = c.to_i64(place) * c.to_i64(c.int(shape.partial_bytes()));
        c.at(c.at(self.workspace, COUNTERS + maps), bytes)
    }

    /// Where a query's highest score lies in a partial, and its sum of weights behind it.
    fn pair_at(&self, partial: Ptr<'c>, row: Int<'c>) -> Ptr<'c> {
        self.code().at(partial, row * 8 + QUERIES * self.shape.values * 4)
    }

    pub(super) fn share(
        &self,
        tile: &Tile<'c>,
        shared: Shared<'c>,
        team: Int<'c>,
        values: &[Any<'c>],
        [sums, maxima]: [[FloatValue<'c>; 2]; 2],
    ) {
        let (c, shape) = (self.code(), self.shape);
        let own = self.partial(shared.tile, shared.split);
        let is_first = c.equal(team, 0) & c.equal(c.lane_index() % 4, 0);
        c.when(is_first, || {
            for i in [0, 1] {
                let pair = c.floats(&[maxima[i].into(), sums[i].into()]);
                c.store(self.pair_at(own, self.row() + 8 * i), pair, 8);
            }
        });
        self.store_sums(tile, team, values, |_, row| c.at(own, row * (shape.values * 4)));
        let [arrived, left] = [0, 4].map(|at| c.at(self.workspace, shared.tile * 8 + at));
        let leader = c.equal(c.thread() - TEAM, 0);
        c.meet_some(c.int(VALUES_MEET), WORKERS);
        c.when(leader, || {
            c.release();
            c.take_turn(arrived);
            c.await_count(arrived, shared.used);
        });
        c.meet_some(c.int(VALUES_MEET), WORKERS);
        c.acquire();
        self.merge_share(tile, shared);
        c.when(leader, || {
            let last = c.equal(shared.used - 1 - c.take_turn(left), 0);
            c.when(last, || {
                [arrived, left].into_iter().for_each(|counter| c.store(counter, c.cx.i32_type().const_zero(), 4));
            });
        });
    }

    /// This work-group's share of the result: some queries, a vector a thread.
    fn merge_share(&self, tile: &Tile<'c>, shared: Shared<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let vectors = shape.values / 4;
        let thread = c.thread() - TEAM;
        let rows = (c.int(shape.heads - 1) - shared.split + shared.used) / shared.used;
        c.repeat(thread, rows * shared.used, WORKERS, |i| {
            let (row, split) = (shared.split + i / shared.used * shared.used, i % shared.used);
            let pair = c.load_vector(c.cx.f32_type(), 2, self.pair_at(self.partial(shared.tile, split), row), 8);
            c.store(self.pair(i), pair, 8);
        });
        c.meet_some(c.int(VALUES_MEET), WORKERS);
        c.repeat(thread, rows * vectors, WORKERS, |i| {
            let (number, col) = (i / vectors, i % vectors * 4);
            let row = shared.split + number * shared.used;
            let whole = self.merged(shared, number * shared.used, (row, col));
            let (token, head) = self.place_of(tile, row);
            c.store_floats(self.attention.result(token, head, col), whole, self.attention.out_type());
        });
    }

    /// Where a part's highest score and sum of weights lie in local memory, in which no queries are
    /// wanted any more.
    fn pair(&self, number: Int<'c>) -> Ptr<'c> {
        self.code().at(self.queries_at, number * 8)
    }

    /// All parts of a query's columns: its pairs begin at a number.
    fn merged(&self, shared: Shared<'c>, pairs: Int<'c>, (row, col): (Int<'c>, Int<'c>)) -> Vector<'c> {
        let (c, a) = (self.code(), self.attention);
        let number = |i: Int<'c>, sum: usize| {
            let at = c.at(self.pair(pairs + i), 4 * sum);
            c.load(c.cx.f32_type(), at, 4).into_float_value()
        };
        let row_max = c.for_each((0, shared.used, 1), &[a.lowest().into()], |i, row_max| {
            vec![a.max(row_max[0].into_float_value(), number(i, 0)).into()]
        });
        let row_max = row_max[0].into_float_value();
        c.set_lanes(4);
        let begin = [c.number(0.0).into(), c.zero().into()];
        let last = shared.used - 1;
        let all = c.for_each((0, shared.used, MERGED), &begin, |first, carried| {
            let at = row * (self.shape.values * 4) + col * 4;
            let load = |i: usize| {
                let partial = self.partial(shared.tile, c.smaller(first + i, last));
                c.load(c.f32s(), c.at(partial, at), 16).into_vector_value()
            };
            let loaded: Vec<Vector<'c>> = (0..MERGED).map(load).collect();
            let begin = (carried[0].into_float_value(), carried[1].into_vector_value());
            let (sum, values) = loaded.into_iter().enumerate().fold(begin, |(sum, values), (i, v)| {
                let split = c.smaller(first + i, last);
                let weight = a.rescale(number(split, 0), row_max);
                let weight = c.pick(c.less(first + i, shared.used), weight, c.number(0.0)).into_float_value();
                (a.fma(number(split, 1), weight, sum), c.fma(v, c.splat(weight), values))
            });
            vec![sum.into(), values.into()]
        });
        let inverse = a.inverse(all[0].into_float_value());
        c.set_lanes(4);
        c.fmul(all[1].into_vector_value(), c.splat(inverse))
    }
}
