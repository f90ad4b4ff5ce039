//! Work-groups that share a sequence's blocks: each leaves its sums of values, with its highest
//! scores and sums of weights, in the workspace. When all have, each puts some of the result
//! together, so that no work-group reads everything.
//!
//! A work-group waits for the others here. There are no more of them than the chip has units, and
//! each has a unit for itself, so all of them run.
use inkwell::values::FloatValue;

use super::{Group, QUERIES, Shape, Shared, TEAM, Tile, VALUE_TEAMS, VALUES_MEET};
use crate::code::{Any, Int, Ptr};
use crate::simt::attention::online_softmax::Item;
use crate::simt::launch::COUNTERS;
use crate::simt::machine::warpgroup::MAP;

/// Parts that are put together at a time.
const MERGED: usize = 8;
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

    /// This work-group's share of the result, a vector a thread.
    fn merge_share(&self, tile: &Tile<'c>, shared: Shared<'c>) {
        let (c, a, shape) = (self.code(), self.attention, self.shape);
        c.set_lanes(4);
        let vectors = shape.values / 4;
        let first = shared.split + (c.thread() - TEAM) * shared.used;
        let step = shared.used * WORKERS;
        let turns = (c.int(shape.heads * vectors) - first + step - 1) / step;
        c.repeat(c.int(0), turns, 1, |turn| {
            let number = first + turn * step;
            let (row, col) = (number / vectors, number % vectors * 4);
            let (_, sum, values) = self.merged(shared, row, col);
            let (token, head) = self.place_of(tile, row);
            let inverse = a.inverse(sum);
            c.set_lanes(4);
            let whole = c.fmul(values, c.splat(inverse));
            c.store_floats(a.result(token, head, col), whole, a.out_type());
        });
    }

    /// All parts of a query's columns, some at a time so that their loads are under way together.
    fn merged(&self, shared: Shared<'c>, row: Int<'c>, col: Int<'c>) -> Item<'c> {
        let (c, a) = (self.code(), self.attention);
        let begin = [a.lowest().into(), c.number(0.0).into(), c.zero().into()];
        let of = |v: &[Any<'c>]| (v[0].into_float_value(), v[1].into_float_value(), v[2].into_vector_value());
        let last = shared.used - 1;
        let all = c.for_each((0, shared.used, MERGED), &begin, |first, carried| {
            let load = |i: usize| {
                let number = first + i;
                let partial = self.partial(shared.tile, c.smaller(number, last));
                let pair = c.load_vector(c.cx.f32_type(), 2, self.pair_at(partial, row), 8);
                let at = row * (self.shape.values * 4) + col * 4;
                let values = c.load(c.f32s(), c.at(partial, at), 16).into_vector_value();
                let none = c.number(f64::NEG_INFINITY);
                let row_max = c.pick(c.less(number, shared.used), c.lane(pair, 0), none).into_float_value();
                (row_max, c.lane(pair, 1).into_float_value(), values)
            };
            let items: Vec<Item<'c>> = std::iter::once(of(carried)).chain((0..MERGED).map(load)).collect();
            let (row_max, sum, values) = a.merge(&items);
            vec![row_max.into(), sum.into(), values.into()]
        });
        of(&all)
    }
}
