//! Combines the shares of a sequence as a tree. Work-groups of neighbouring shares form pairs,
//! pairs form pairs, and so on. The first of a pair to end leaves its sums in the workspace. The
//! other one adds them to its own, and represents both from then on. So the longest path has one
//! pair for each doubling, and no work-group reads more than one share at a time.
use super::Group;
use super::Split;
use super::softmax::Running;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::machine::fragment::VEC16;

/// A work-group's state from pair to pair: whether it still represents shares, and the first of
/// these.
struct Standing<'c> {
    is_on: Int<'c>,
    first: Int<'c>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Adds the sums that others have left of the sequence, and finishes if all are there.
    pub fn meet(&self, split: &Split<'c>, running: &Running<'c>, sums: &[Vector<'c>]) {
        let c = self.code();
        let levels = self.shape.splits.next_power_of_two().trailing_zeros() as usize;
        let total = Running { row_max: running.row_max, sum: self.total(running.sum) };
        let begin = [c.int(1).into(), split.number.into()];
        let sums: Vec<Any<'c>> = sums.iter().map(|&v| v.into()).collect();
        let carried = [begin.to_vec(), total.carried(), sums].concat();
        let carried = c.for_each((0, levels, 1), &carried, |level, carried| {
            let standing = Standing { is_on: c.equal(c.as_int(carried[0]), 1), first: c.as_int(carried[1]) };
            let step = c.int(1).shifted_up(level);
            let pair = (standing.first & !(step + step - 1)) | step;
            let has_pair = standing.is_on & c.less(pair, split.used);
            c.change_if(has_pair, carried, |carried| self.pair(split, pair, step, carried))
        });
        c.when(c.equal(c.as_int(carried[0]), 1), || {
            let sums: Vec<Vector<'c>> = carried[4..].iter().map(|v| v.into_vector_value()).collect();
            let Running { row_max, sum } = Running::of(&carried[2..4]);
            self.finish([row_max, sum], &sums);
        });
    }

    /// Leaves its sums, or, if the other of the pair came first, adds that one's.
    fn pair(&self, split: &Split<'c>, pair: Int<'c>, step: Int<'c>, carried: &[Any<'c>]) -> Vec<Any<'c>> {
        let c = self.code();
        let first = c.as_int(carried[1]);
        self.leave(self.partial(split, first), carried);
        c.barrier_to_publish();
        let (turn, counter) = (c.at(self.number(2, c.int(0)), 0), c.at(split.counters, pair * 4));
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.store(turn, c.take_turn(counter), 4);
        });
        c.barrier();
        let is_later = c.equal(c.uniform(c.as_int(c.load(c.cx.i32_type(), turn, 4))), 1);
        let gone = [vec![c.int(0).into()], carried[1..].to_vec()].concat();
        c.change_if(is_later, &gone, |carried| {
            c.acquire();
            c.when(c.equal(c.thread(), 0), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            let (running, sums) = self.merged(self.partial(split, first ^ step), carried);
            let both = [c.int(1).into(), (first & !step).into()];
            [both.to_vec(), running.carried(), sums].concat()
        })
    }

    fn partial(&self, split: &Split<'c>, number: Int<'c>) -> Ptr<'c> {
        self.code().at(split.partials, number * self.shape.partial())
    }

    /// The place of a thread's sums. Those of neighbouring threads are adjacent.
    fn sums_at(&self, p: Ptr<'c>, i: usize) -> Ptr<'c> {
        let c = self.code();
        c.at(p, c.thread() * VEC16 + i * self.shape.threads * VEC16)
    }

    fn running_at(&self, p: Ptr<'c>, query: Int<'c>) -> Ptr<'c> {
        self.code().at(p, query * 8 + self.shape.partial_values())
    }

    fn leave(&self, p: Ptr<'c>, carried: &[Any<'c>]) {
        let c = self.code();
        let (query, share) = self.own_query();
        let running = Running::of(&carried[2..4]);
        for (i, &sum) in carried[4..].iter().enumerate() {
            c.store(self.sums_at(p, i), sum, VEC16 as u32);
        }
        c.when(c.equal(share, 0), || {
            let at = self.running_at(p, query);
            c.store(at, running.row_max, 8);
            c.store(c.at(at, 4), running.sum, 4);
        });
    }

    /// The sums of this work-group and those that another has left.
    fn merged(&self, p: Ptr<'c>, carried: &[Any<'c>]) -> (Running<'c>, Vec<Any<'c>>) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (query, share) = self.own_query();
        let at = self.running_at(p, query);
        let number = |bytes: usize| c.load(c.cx.f32_type(), c.at(at, bytes), 4).into_float_value();
        let (own, other) = (Running::of(&carried[2..4]), Running { row_max: number(0), sum: number(4) });
        let row_max = a.max(own.row_max, other.row_max);
        let [of_own, of_other] = [&own, &other].map(|side| a.rescale(side.row_max, row_max));
        let sum = a.fma(own.sum, of_own, (c.float(other.sum) * of_other).v);
        c.when(c.equal(share, 0), || {
            c.store(self.number(0, query), of_own, 4);
            c.store(self.number(1, query), of_other, 4);
        });
        c.barrier();
        let (of_own, of_other) = (self.numbers(0), self.numbers(1));
        c.set_lanes(a.matrix.layout.results);
        let both = |(i, own): (usize, &Any<'c>)| {
            let other = c.load(c.f32s(), self.sums_at(p, i), VEC16 as u32).into_vector_value();
            let tile = i / s.dims;
            let own = c.fmul(own.into_vector_value(), c.splat(of_own[tile]));
            c.fma(other, c.splat(of_other[tile]), own).into()
        };
        (Running { row_max, sum }, carried[4..].iter().enumerate().map(both).collect())
    }
}
