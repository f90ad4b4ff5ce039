//! Tiles that several work-groups share: each leaves its sums in the workspace, and the last one to
//! finish adds all of them up.
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Part;
use super::shape::TEAM;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::launch::COUNTERS;

/// Most words of others' sums that a thread loads at once.
const LOADED: usize = 64;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Leaves the sums of a part for others where the tile is shared: whether this is the last one
    /// to finish, and then the sums of all, with the squares of the thread's row behind them.
    pub(super) fn combine(
        &self,
        part: Part<'c>,
        sums: &[Any<'c>],
        own: Option<FloatValue<'c>>,
    ) -> (Int<'c>, Vec<Any<'c>>) {
        let (c, shape) = (self.code(), self.shape);
        let shared = c.less(1, part.owners);
        let number = c.group() - part.owner;
        let counter = c.at(self.workspace, self.of_team(part.owner) * 4);
        c.when(c.equal(self.thread(), 0), || c.store(self.word(), c.int(0), 4));
        c.when(shared, || {
            self.store_partial(self.partial(part, number), sums, own);
            self.sync_consumers();
            c.when(self.is_leader(), || {
                c.release();
                c.store(self.word(), c.take_turn(counter), 4);
            });
        });
        self.sync_consumers();
        let turn = c.as_int(c.load(c.cx.i32_type(), self.word(), 4));
        let is_last = c.equal(part.owners - turn - 1, 0);
        let others = c.pick_int(is_last & shared, 1, 0);
        let all: Vec<Any> = sums.iter().copied().chain(own.map(Any::from)).collect();
        let all = c.for_each((0, others, 1), &all, |_, all| {
            c.acquire();
            c.when(self.is_leader(), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            let (sums, own) = all.split_at(shape.sums());
            self.reduce_partials(part, number, sums, own.first().map(|v| v.into_float_value()))
        });
        (is_last, all)
    }

    /// The thread's row's squares of a part of a tile, if there is a norm.
    pub(super) fn own_squares(&self, part: Part<'c>) -> Option<FloatValue<'c>> {
        let (c, shape) = (self.code(), self.shape);
        self.norm.is_some().then(|| {
            let number = self.nth_part(part.number);
            let row = c.smaller(self.thread(), shape.columns - 1);
            let from = self.squares.at(number);
            self.squares.wait_full(c, number);
            let own = c.load(c.cx.f32_type(), self.local(from + row * 4), 4);
            self.squares.release(c, c.always(), number);
            own.into_float_value()
        })
    }

    /// Where a work-group leaves its sums of this tile, which is its first or another.
    fn partial(&self, part: Part<'c>, number: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let group = part.owner + number;
        let begin = self.share.begin(group);
        let is_first = c.equal(begin / shape.tile_length() - part.number, 0);
        let which = c.pick_int(is_first, 0, 1);
        let place = self.of_team(group * 2 + which) * shape.partial_bytes();
        c.at(self.workspace, place + COUNTERS)
    }

    /// Where the thread's four sums from the `i`-th on lie in what a work-group leaves, and its
    /// row's squares.
    fn four_at(&self, partial: Ptr<'c>, i: usize) -> Ptr<'c> {
        let c = self.code();
        c.at(partial, self.thread() * 16 + i * TEAM * 4)
    }

    fn squares_at(&self, partial: Ptr<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let row = c.smaller(self.thread(), shape.columns - 1);
        c.at(partial, row * 4 + shape.sums() * TEAM * 4)
    }

    fn store_partial(&self, partial: Ptr<'c>, sums: &[Any<'c>], squares: Option<FloatValue<'c>>) {
        let (c, shape) = (self.code(), self.shape);
        for (i, four) in sums.chunks(4).enumerate() {
            c.store(self.four_at(partial, 4 * i), c.floats(four), 16);
        }
        if let Some(squares) = squares {
            c.when(c.less(self.thread(), shape.columns), || c.store(self.squares_at(partial), squares, 4));
        }
    }

    /// All work-groups' sums of a tile, added up in their order, and squares of rows.
    fn reduce_partials(
        &self,
        part: Part<'c>,
        number: Int<'c>,
        sums: &[Any<'c>],
        own: Option<FloatValue<'c>>,
    ) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let f32 = c.cx.f32_type();
        let (most, last) = (shape.sharing(), part.owners - 1);
        let conditions = |f: &dyn Fn(Int<'c>) -> Int<'c>| -> Vec<Int<'c>> { (0..most).map(|i| f(c.int(i))).collect() };
        let real = conditions(&|i| c.less(i, part.owners));
        let mine = conditions(&|i| c.equal(number - i, 0));
        let early = conditions(&|i| c.less(i, number));
        // The others are those before this one, then those behind it.
        let other = |i: usize| c.pick_int(early[i], i, i + 1);
        let partials: Vec<Ptr<'c>> = (0..most - 1).map(|i| self.partial(part, c.smaller(other(i), last))).collect();
        let add = |loaded: &[FloatValue<'c>], own: FloatValue<'c>| {
            let of = |i: usize| {
                let [early_one, late_one] = [i, i.saturating_sub(1)].map(|i| loaded[i.min(most - 2)]);
                let loaded = c.pick(early[i], early_one, late_one).into_float_value();
                c.pick(mine[i], own, loaded).into_float_value()
            };
            (1..most).fold(of(0), |before, i| {
                let sum = c.b.build_float_add(before, of(i), "").expect("floats");
                c.pick(real[i], sum, before).into_float_value()
            })
        };
        let own = own.map(|own| {
            let loaded: Vec<FloatValue> =
                partials.iter().map(|&p| c.load(f32, self.squares_at(p), 4).into_float_value()).collect();
            add(&loaded, own).into()
        });
        let mut all: Vec<Any> = Vec::new();
        let together = (LOADED / (4 * partials.len())).max(1);
        for (group, some) in sums.chunks(4 * together).enumerate() {
            let load = |four: usize| -> Vec<Vector<'c>> {
                let at = 4 * (group * together + four);
                partials.iter().map(|&p| c.load_vector(f32, 4, self.four_at(p, at), 16)).collect()
            };
            let loaded: Vec<_> = (0..some.len() / 4).map(load).collect();
            for (i, own) in some.iter().enumerate() {
                let lane = |v: &Vector<'c>| c.lane(*v, i % 4).into_float_value();
                let loaded: Vec<_> = loaded[i / 4].iter().map(lane).collect();
                all.push(add(&loaded, own.into_float_value()).into());
            }
        }
        all.into_iter().chain(own).collect()
    }
}
