//! Work-groups that share a sequence's blocks: each leaves its sums of values, with its highest
//! scores and sums of weights, in the workspace. When all have, each puts some of the result
//! together, so that no work-group reads everything.
//!
//! A work-group waits for the others here. Each has a unit for itself, so all of them run on a chip
//! with enough units: [`Kernel::together`](atomc_artifact::manifest::Kernel::together) tells the
//! loader their number.
use atomc_ir::DType;
use inkwell::values::FloatValue;

use super::{Group, QUERIES, Shape, Shared, TEAM, Tile, VALUE_TEAMS, VALUES_MEET};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::launch::COUNTERS;
use crate::simt::machine::warpgroup::MAP;

/// Loads that a thread has in flight at once: one for each part, or for fewer parts and several
/// groups of eight columns. With more, fetching the code takes longer than the loads.
const LOADED: usize = 16;
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

    /// The place of a query's highest score in a partial. Its sum of weights comes next.
    fn pair_at(&self, partial: Ptr<'c>, row: Int<'c>) -> Ptr<'c> {
        self.code().at(partial, row * 8 + QUERIES * self.shape.values * 4)
    }

    /// The place of the thread's sums in eight columns of a partial: two columns of each of its two
    /// queries, next to those of its neighbours.
    fn four_at(&self, partial: Ptr<'c>, eight: Int<'c>) -> Ptr<'c> {
        let c = self.code();
        c.at(partial, eight * (WORKERS * 16) + (c.thread() - TEAM) * 16)
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
        c.when(c.less(self.row(), shape.heads), || {
            for (eight, four) in values.chunks(4).enumerate() {
                c.store(self.four_at(own, c.int(eight)), c.floats(four), 16);
            }
        });
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
        self.weigh_parts(tile, shared);
        c.meet_some(c.int(VALUES_MEET), WORKERS);
        self.merge_share(tile, shared, team);
        c.when(leader, || {
            let last = c.equal(shared.used - 1 - c.take_turn(left), 0);
            c.when(last, || {
                [arrived, left].into_iter().for_each(|counter| c.store(counter, c.cx.i32_type().const_zero(), 4));
            });
        });
    }

    /// Stores the factor of each part's values in a query's result, in local memory: four threads a
    /// query.
    fn weigh_parts(&self, tile: &Tile<'c>, shared: Shared<'c>) {
        let (c, a) = (self.code(), self.attention);
        let thread = c.thread() - TEAM;
        let (row, first) = (thread / 4, thread % 4);
        let none = c.number(0.0);
        let parts: Vec<Int<'c>> = (0..self.weighed() / 4).map(|i| first + 4 * i).collect();
        let load = |&split: &Int<'c>| {
            let partial = self.partial(shared.tile, c.smaller(split, shared.used - 1));
            c.load_vector(c.cx.f32_type(), 2, self.pair_at(partial, row), 8)
        };
        let pairs: Vec<Vector<'c>> = parts.iter().map(load).collect();
        let part = |pair: &Vector<'c>, i: usize| c.lane(*pair, i).into_float_value();
        let row_max = pairs.iter().fold(a.lowest(), |row_max, pair| a.max(row_max, part(pair, 0)));
        let row_max = c.across(row_max, &[1, 2], |x, y| a.max(x, y));
        let weigh = |(pair, &split): (&Vector<'c>, &Int<'c>)| {
            let weight = a.rescale(part(pair, 0), row_max);
            c.pick(c.less(split, shared.used), weight, none).into_float_value()
        };
        let weights: Vec<FloatValue<'c>> = pairs.iter().zip(&parts).map(weigh).collect();
        let sum = pairs.iter().zip(&weights).fold(none, |sum, (pair, &weight)| a.fma(part(pair, 1), weight, sum));
        let sum = c.across(sum, &[1, 2], |x, y| (c.float(x) + y).v);
        let inverse = a.inverse(sum);
        let stores = c.equal(first, 0) & c.equal(shared.split, 0) & self.is_query(tile, row);
        c.when(stores, || a.store_stats(self.place_of(tile, row), [row_max, sum]));
        for (&split, &weight) in parts.iter().zip(&weights) {
            c.store(self.weight_at(row, split), (c.float(weight) * inverse).v, 4);
        }
    }

    /// In local memory, where no queries are wanted any more.
    fn weight_at(&self, row: Int<'c>, split: Int<'c>) -> Ptr<'c> {
        let c = self.code();
        c.at(self.queries_at, row * (self.weighed() * 4) + split * 4)
    }

    /// Parts of a query that have a weight. Those after the last real one have weight zero.
    fn weighed(&self) -> usize {
        self.shape.splits.next_multiple_of(self.merged_at_once().max(4))
    }

    /// This work-group's share of the result: some groups of eight columns. Each thread has two
    /// columns of both its queries.
    fn merge_share(&self, tile: &Tile<'c>, shared: Shared<'c>, team: Int<'c>) {
        let (c, a, shape) = (self.code(), self.attention, self.shape);
        let rows = [0, 8].map(|more| self.row() + more);
        let (merged, last) = (self.merged_at_once(), self.width() / 8 - 1);
        let together = LOADED / merged;
        c.when(c.less(rows[0], shape.heads), || {
            let first = shared.split;
            let turns = (c.int(last) - first + shared.used) / shared.used;
            c.repeat(0, turns, together, |turn| {
                let eights: Vec<Int<'c>> = (0..together).map(|i| first + (turn + i) * shared.used).collect();
                let inside: Vec<Int<'c>> = eights.iter().map(|&eight| c.smaller(eight, last)).collect();
                for (&eight, sums) in eights.iter().zip(self.merged(shared, &inside, rows)) {
                    for (i, row) in rows.into_iter().enumerate() {
                        let (token, head) = self.place_of(tile, row);
                        let to = a.result(token, head, self.first_column(team) + eight * 8);
                        let two = [0, 1].map(|j| c.lane(sums, 2 * i + j).into_float_value());
                        let is_one = self.is_query(tile, row) & c.less(eight, last + 1);
                        c.when(is_one, || match a.out_type() {
                            DType::F32 => c.store(to, c.floats(&two.map(Any::from)), 8),
                            _ => c.store(to, a.pair_word(two), 4),
                        });
                    }
                }
            });
        });
    }

    /// Parts of a query that are loaded at once.
    fn merged_at_once(&self) -> usize {
        self.shape.splits.next_power_of_two().min(LOADED)
    }

    /// The sums of all parts' values of a thread's four columns of some eights.
    fn merged(&self, shared: Shared<'c>, eights: &[Int<'c>], rows: [Int<'c>; 2]) -> Vec<Vector<'c>> {
        let (c, merged) = (self.code(), self.merged_at_once());
        c.set_lanes(4);
        let last = shared.used - 1;
        let none: Vec<Any<'c>> = vec![c.zero().into(); eights.len()];
        let all = c.for_each((0, shared.used, merged), &none, |first, carried| {
            let parts: Vec<Int<'c>> = (0..merged).map(|i| first + i).collect();
            let load = |eight: Int<'c>, part: Int<'c>| {
                let partial = self.partial(shared.tile, c.smaller(part, last));
                c.load(c.f32s(), self.four_at(partial, eight), 16).into_vector_value()
            };
            let loaded: Vec<Vec<Vector<'c>>> =
                eights.iter().map(|&eight| parts.iter().map(|&part| load(eight, part)).collect()).collect();
            let weight = |&part: &Int<'c>| {
                let [x, y] = rows.map(|row| c.load(c.cx.f32_type(), self.weight_at(row, part), 4));
                c.floats(&[x, x, y, y])
            };
            let weights: Vec<Vector<'c>> = parts.iter().map(weight).collect();
            let add = |(sum, loaded): (&Any<'c>, Vec<Vector<'c>>)| -> Any<'c> {
                let begin = sum.into_vector_value();
                loaded.into_iter().zip(&weights).fold(begin, |sum, (v, &weight)| c.fma(v, weight, sum)).into()
            };
            carried.iter().zip(loaded).map(add).collect()
        });
        all.into_iter().map(|v| v.into_vector_value()).collect()
    }
}
