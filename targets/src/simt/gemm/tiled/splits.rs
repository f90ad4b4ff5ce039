//! Tiles that several work-groups share: each leaves its sums of a part of the weight in the
//! workspace, and the last one to finish adds all of them up, in their order.
use atomc_ir::Diagnostic;

use super::Group;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::launch::COUNTERS;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Finishes the tile if this work-group is the last of its own.
    pub(super) fn meet(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, splits) = (self.contraction.matrix.c, self.shape.splits);
        let (tile, split) = (c.group() / splits, c.group() % splits);
        let counter = c.at(self.workspace, tile * 4);
        let at = |split: Int<'c>, i: usize| self.partial(tile * splits + split, i, sums);
        for (i, &v) in sums.iter().enumerate() {
            let bytes = v.get_type().get_size() * 4;
            c.store(at(split, i), v, bytes.min(16));
        }
        c.barrier_to_publish();
        // Nobody reads operands in local memory any more.
        let turn = self.local;
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.store(turn, c.take_turn(counter), 4);
        });
        c.barrier();
        let turn = c.uniform(c.as_int(c.load(c.cx.i32_type(), turn, 4)));
        c.when(c.equal(turn, splits - 1), || {
            c.acquire();
            c.when(c.equal(c.thread(), 0), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            let load = |split: Int<'c>, i: usize, like: Vector<'c>| {
                let bytes = like.get_type().get_size() * 4;
                c.load(like.get_type(), at(split, i), bytes.min(16)).into_vector_value()
            };
            let first: Vec<Any<'c>> = sums.iter().enumerate().map(|(i, &v)| load(c.int(0), i, v).into()).collect();
            let all = c.for_each((1, splits, 1), &first, |split, carried| {
                let add = |(i, v): (usize, &Any<'c>)| {
                    let v = v.into_vector_value();
                    c.fadd(v, load(split, i, v)).into()
                };
                carried.iter().enumerate().map(add).collect()
            });
            let all: Vec<Vector<'c>> = all.iter().map(|v| v.into_vector_value()).collect();
            self.epilogue(&all)
        })
    }

    /// Where the thread's `i`-th vector of sums lies in what a work-group leaves.
    fn partial(&self, number: Int<'c>, i: usize, sums: &[Vector<'c>]) -> Ptr<'c> {
        let c = self.contraction.matrix.c;
        let bytes = |v: &Vector<'c>| v.get_type().get_size() as usize * 4;
        let before: usize = sums[..i].iter().map(bytes).sum();
        let place = number * self.shape.partial_bytes() + c.thread() * bytes(&sums[i]);
        c.at(c.at(self.workspace, place), before * self.shape.threads + COUNTERS)
    }
}
