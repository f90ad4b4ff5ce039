//! Tiles that several work-groups share: each leaves its sums of a part of the weight in the
//! workspace, and the last one to finish adds all of them up, in their order.
use atomc_ir::Diagnostic;

use super::Group;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::gemm::tile::grid::Share;
use crate::simt::launch::COUNTERS;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Finishes the tile if this work-group is the last of its own.
    pub(super) fn meet(&self, share: Share<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let c = self.contraction.matrix.c;
        let is_shared = c.less(0, share.shift);
        let own: Vec<Any<'c>> = sums.iter().map(|&v| v.into()).collect();
        // The only one is the last, too.
        let last = c.change_if(is_shared, &[c.as_int(c.cx.bool_type().const_all_ones()).into()], |_| {
            vec![self.leave(share, sums).into()]
        });
        c.when(c.as_int(last[0]), || {
            let all = c.change_if(is_shared, &own, |own| self.all_parts(share, own));
            let all: Vec<Vector<'c>> = all.iter().map(|v| v.into_vector_value()).collect();
            self.epilogue(&all)
        })
    }

    /// The counter of the work-groups of a tile.
    fn counter(&self, share: Share<'c>) -> Ptr<'c> {
        self.contraction.matrix.c.at(self.workspace, share.tile * 4)
    }

    /// Leaves sums for the last work-group of the tile, and returns whether this is the last.
    fn leave(&self, share: Share<'c>, sums: &[Vector<'c>]) -> Int<'c> {
        let c = self.contraction.matrix.c;
        for (i, &v) in sums.iter().enumerate() {
            for (at, part) in self.parts(c.group(), i, v) {
                c.store(at, c.part(v, part, LANE), (4 * LANE) as u32);
            }
        }
        c.barrier_to_publish();
        // All waves have read their operands from local memory.
        let turn = self.local;
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.store(turn, c.take_turn(self.counter(share)), 4);
        });
        c.barrier();
        let turn = c.uniform(c.as_int(c.load(c.cx.i32_type(), turn, 4)));
        c.equal(turn + 1 - c.int(1).shifted_up(share.shift), 0)
    }

    /// The sums of all work-groups of the tile, in their order.
    fn all_parts(&self, share: Share<'c>, own: &[Any<'c>]) -> Vec<Any<'c>> {
        let c = self.contraction.matrix.c;
        c.acquire();
        c.when(c.equal(c.thread(), 0), || c.store(self.counter(share), c.cx.i32_type().const_zero(), 4));
        let first = share.tile.shifted_up(share.shift);
        let like: Vec<Vector<'c>> = own.iter().map(|v| v.into_vector_value()).collect();
        let zeros: Vec<Any<'c>> = like.iter().map(|v| v.get_type().const_zero().into()).collect();
        let count = c.int(1).shifted_up(share.shift);
        let add = |together: usize| {
            c.for_each((0, count, together), &zeros, |part, carried| {
                let sums = carried.iter().map(|v| v.into_vector_value()).collect();
                self.add_parts((first + part, together), &like, sums)
            })
        };
        let has_room = self.free_registers(&like) >= MANY * like[0].get_type().get_size() as usize;
        if self.shape.splits.each < MANY || !has_room {
            return add(FEW);
        }
        let many = c.less(share.shift, MANY.ilog2() as usize);
        let few = c.change_if(many, &zeros, |_| add(FEW));
        c.change_if(!many, &few, |_| add(MANY))
    }

    /// Adds the sums that `together` work-groups left, from `first` on, in their order. They are
    /// loaded at once, except for those that do not fit into registers next to the sums.
    fn add_parts(
        &self,
        (first, together): (Int<'c>, usize),
        like: &[Vector<'c>],
        sums: Vec<Vector<'c>>,
    ) -> Vec<Any<'c>> {
        let c = self.contraction.matrix.c;
        let at_once = (self.free_registers(like) / together / like[0].get_type().get_size() as usize).max(1);
        let mut all = Vec::with_capacity(sums.len());
        for (of, sums) in sums.chunks(at_once).enumerate() {
            let load = |part: usize, i: usize| self.load_part(first + part, of * at_once + i, like[of * at_once + i]);
            let of_part = |part: usize| -> Vec<Vector<'c>> { (0..sums.len()).map(|i| load(part, i)).collect() };
            let loaded: Vec<Vec<Vector<'c>>> = (0..together).map(of_part).collect();
            let add = |(i, &sum): (usize, &Vector<'c>)| loaded.iter().fold(sum, |sum, part| c.fadd(sum, part[i]));
            all.extend(sums.iter().enumerate().map(add).map(Any::from));
            c.keep_order();
        }
        all
    }

    /// Registers of a lane that sums leave free, and addresses.
    fn free_registers(&self, sums: &[Vector<'c>]) -> usize {
        let unit = &self.contraction.matrix.c.simt.unit;
        let waves = self.shape.threads.div_ceil(self.contraction.matrix.c.simt.wave * unit.simds);
        let held: usize = sums.iter().map(|v| v.get_type().get_size() as usize).sum();
        (unit.vgprs / waves).min(NAMED).saturating_sub(held + OTHERS)
    }

    fn load_part(&self, group: Int<'c>, i: usize, like: Vector<'c>) -> Vector<'c> {
        let c = self.contraction.matrix.c;
        let ty = like.get_type().get_element_type().into_float_type().vec_type(LANE as u32);
        let load = |(at, _)| c.load(ty, at, (4 * LANE) as u32).into_vector_value();
        c.join(&self.parts(group, i, like).into_iter().map(load).collect::<Vec<_>>())
    }

    /// The addresses of the parts of a thread's `i`-th vector of sums in the workspace, and the
    /// first element of each. A part of all threads is one run of memory.
    fn parts(&self, group: Int<'c>, i: usize, like: Vector<'c>) -> Vec<(Ptr<'c>, usize)> {
        let (c, size) = (self.contraction.matrix.c, like.get_type().get_size() as usize);
        let own = c.at(self.workspace, group * self.shape.partial_bytes() + c.thread() * (4 * LANE));
        let at = |part: usize| c.at(own, (i * size + part) * 4 * self.shape.threads + COUNTERS);
        (0..size).step_by(LANE).map(|part| (at(part), part)).collect()
    }
}

/// Sums that a lane moves at once.
const LANE: usize = 4;
/// Registers that instructions can name, and those that hold neither sums nor loads in flight.
const NAMED: usize = 256;
const OTHERS: usize = 64;
/// Work-groups that have their sums loaded at once where two share a tile, and where more do and
/// registers suffice.
const FEW: usize = 2;
const MANY: usize = 4;
