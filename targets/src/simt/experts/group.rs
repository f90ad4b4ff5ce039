//! Family `group`: lists the rows of each expert. A work-group for each expert, and one for rows
//! that have none, counts the rows of all experts in local memory, and so knows where the blocks of
//! its own begin. Its waves look at a run of rows each, which keeps rows in their order.
use atomc_artifact::manifest;
use atomc_ir::layout::Groups;
use atomc_ir::{Family, Layout, Op, TensorType};
use inkwell::IntPredicate;

use crate::code::{Int, Ptr};
use crate::row::unsupported;
use crate::schedule::Schedule;
use crate::simt::experts::Grouping;
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

/// Threads of a work-group, least and most, and rows of each thread, about.
const THREADS: [usize; 2] = [256, 1024];
const EACH: usize = 16;
/// Rows that a thread looks at together.
const TOGETHER: usize = 4;

pub const SCHEDULE: Schedule = Schedule {
    name: "group",
    family: Family::Group,
    invariant: true,
    suits: |_, _, _| Ok(()),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let [few, many] = THREADS;
    let choices = spec.body.outputs().first().and_then(|&v| spec.body.ty(v).as_tensor()).map_or(1, TensorType::choices);
    let threads = if spec.tokens * choices > few * EACH { many } else { few };
    let code = setup.open(spec, threads)?;
    let count = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let (v, out) = kernel.output()?;
        let Layout::Grouped { experts, tile } = out.ty.layout else {
            return Err(unsupported("experts that are not grouped"));
        };
        let Op::Group { .. } = kernel.rows.graph.op(v.node) else {
            return Err(unsupported("experts that are computed where they are grouped"));
        };
        let from = kernel.rows.index(kernel.rows.graph.operands(v.node)[0])?;
        let pairs = launch::step_size(c, spec, false) * out.ty.choices();
        Job { c, from, to: out.ptr, threads, of: Grouping { experts, tile, pairs } }.run();
        experts + 1
    };
    Ok((code, manifest::Kernel::simt(Tasks::Fixed(count), threads)))
}

struct Job<'a, 'c> {
    c: &'a Gpu<'c>,
    from: Ptr<'c>,
    to: Ptr<'c>,
    threads: usize,
    of: Grouping<'c>,
}

impl<'c> Job<'_, 'c> {
    fn run(&self) {
        let (c, own, thread) = (self.c, self.c.group(), self.c.thread());
        // A counter for each expert, one for rows without an expert, and one for the blocks before
        // this work-group's.
        let words = self.of.experts + 2;
        let counts = c.local(words * 4);
        let found = c.local(self.threads / c.simt.wave * 4);
        c.repeat(thread, words, self.threads, |i| c.store(c.at(counts, i * 4), c.int(0), 4));
        c.barrier();
        c.repeat(thread, self.of.pairs, TOGETHER * self.threads, |first| {
            let pairs = (0..TOGETHER).map(|i| first + i * self.threads);
            let experts = self.load(pairs.clone());
            for (pair, expert) in pairs.zip(experts) {
                c.when(c.less(pair, self.of.pairs), || {
                    c.add_local(c.at(counts, self.number(expert) * 4), c.int(1));
                    // All work-groups copy a part.
                    let mine = c.compare(IntPredicate::EQ, pair / self.threads % (self.of.experts + 1), own);
                    c.when(mine, || c.store(c.at(self.to, pair * 4), expert, 4));
                });
            }
        });
        c.barrier();
        let [first, blocks] = self.blocks_before((counts, c.at(counts, (words - 1) * 4)), own);
        let [experts, pairs] = self.of.parts(c);
        let is_none = c.equal(own, self.of.experts);
        let name = c.pick_int(is_none, self.word(Groups::NONE), own);
        c.repeat(thread, blocks, self.threads, |i| c.store(c.at(self.to, (experts + first + i) * 4), name, 4));
        // The rest of the expert's last block is empty. After the last block of all, everything is.
        let end = c.pick_int(is_none, self.of.blocks(c), first + blocks);
        let empty = self.word(Groups::EMPTY);
        c.repeat(thread + first + blocks, end, self.threads, |i| c.store(c.at(self.to, (experts + i) * 4), empty, 4));
        let filled = first * self.of.tile + c.as_int(c.load(c.index, c.at(counts, own * 4), 4));
        c.repeat(filled + thread, end * self.of.tile, self.threads, |i| {
            c.store(c.at(self.to, (pairs + i) * 4), empty, 4)
        });
        self.place(found, own, pairs + first * self.of.tile);
    }

    /// The experts that pairs chose, as stored. All loads are issued before the first result is
    /// used. A pair after the last one takes the last one's.
    fn load(&self, pairs: impl Iterator<Item = Int<'c>>) -> Vec<Int<'c>> {
        let c = self.c;
        pairs.map(|pair| c.load_made_index(self.from, c.smaller(pair, self.of.pairs - 1))).collect()
    }

    /// The number of an expert. No expert is the last number.
    fn number(&self, expert: Int<'c>) -> Int<'c> {
        let c = self.c;
        c.pick_int(c.less(expert, 0), self.of.experts, c.smaller(expert, self.of.experts - 1))
    }

    fn word(&self, v: i32) -> Int<'c> {
        self.c.as_int(self.c.cx.i32_type().const_int(v as i64 as u64, true))
    }

    /// The blocks of all experts before one, and its own. All threads add them up in a word of
    /// local memory that is zero.
    fn blocks_before(&self, (counts, sum): (Ptr<'c>, Ptr<'c>), own: Int<'c>) -> [Int<'c>; 2] {
        let c = self.c;
        let of = |i: Int<'c>| {
            let count = c.as_int(c.load(c.index, c.at(counts, i * 4), 4));
            (count + (self.of.tile - 1)) / self.of.tile
        };
        c.repeat(c.thread(), own, self.threads, |i| c.add_local(sum, of(i)));
        c.barrier();
        [c.as_int(c.load(c.index, sum, 4)), of(own)]
    }

    /// Writes down the pairs of an expert from a place on, in their order. A wave has a run of
    /// pairs, a lane each in turn.
    fn place(&self, found: Ptr<'c>, own: Int<'c>, first: Int<'c>) {
        let (c, wave, lanes) = (self.c, self.c.wave_index(), self.c.simt.wave);
        let step = TOGETHER * lanes;
        let run = (self.of.pairs + (self.threads * TOGETHER - 1)) / (self.threads * TOGETHER) * step;
        let begin = c.smaller(wave * run, self.of.pairs);
        let end = c.smaller(begin + run, self.of.pairs);
        let pairs = |base: Int<'c>| (0..TOGETHER).map(move |i| base + i * lanes + c.lane_index());
        let are_own = |base: Int<'c>| -> Vec<Int<'c>> {
            let is = |(pair, expert): (Int<'c>, Int<'c>)| {
                c.compare(IntPredicate::EQ, self.number(expert), own) & c.less(pair, end)
            };
            pairs(base).zip(self.load(pairs(base))).map(is).collect()
        };
        let count = c.carry((begin, end, step), c.int(0), |base, count| {
            let add = |count: Int<'c>, is: Int<'c>| count + c.count_lanes(is, c.int(lanes));
            are_own(base).into_iter().fold(count, add)
        });
        c.when(c.equal(c.lane_index(), 0), || c.store(c.at(found, wave * 4), count, 4));
        c.barrier();
        let before = c.carry((0, wave, 1), c.int(0), |i, sum| {
            let found = c.as_int(c.load(c.index, c.at(found, i * 4), 4));
            sum + found
        });
        c.carry((begin, end, step), before, |base, mut place| {
            for (pair, is) in pairs(base).zip(are_own(base)) {
                let to = first + place + c.count_lanes(is, c.lane_index());
                c.when(is, || c.store(c.at(self.to, to * 4), pair, 4));
                place = place + c.count_lanes(is, c.int(lanes));
            }
            place
        });
    }
}
