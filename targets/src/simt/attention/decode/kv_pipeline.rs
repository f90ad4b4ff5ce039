//! Keys and values on their way through local memory, where the machine copies them by itself: a
//! wave has a few steps in flight and registers for none of them. The first ones are loaded before
//! the previous kernel has ended. The token's own key and value, which that kernel makes, overwrite
//! what was copied in their place; if their step comes later, it is loaded when they are in the
//! cache.
//!
//! From there fragments are loaded in blocks of 8 rows by 16 bytes, without conflicts of banks. So
//! a lane holds other columns than it would as runs, two of each 8, and so do its queries and its
//! weights: its keys of a step, and its dimensions of a panel of values, are two of each 8
//! ([`spread`]).
use super::{Part, WAVES};
use crate::cache::Entry;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::attention::flash::Fragments;
use crate::simt::attention::online_softmax::OnlineSoftmax;
use crate::simt::machine::fragment::{Fragment, VEC16};

/// Keys and values, as they follow each other in a place.
const KEYS: usize = 0;
const VALUES: usize = 1;

/// Bytes of keys and values after the first steps, about, that are prefetched while queries are
/// made.
const NEAR: usize = 64 << 10;

/// The i-th of the keys, or dimensions, that a lane has, from the first on.
pub fn spread(i: usize) -> usize {
    i / 2 * 8 + i % 2
}

/// One wave's places for steps.
pub struct KvPipeline<'r, 'p, 'k, 'a, 'c> {
    part: &'r Part<'p, 'k, 'a, 'c>,
    stages: usize,
    /// The wave's first place, and its first barrier.
    local: Ptr<'c>,
    barrier: Int<'c>,
    /// The wave's first step, and the one that has the token itself.
    first: Int<'c>,
    own: Int<'c>,
    /// The block of the first step that is not in flight.
    next: Int<'c>,
}

impl<'r, 'p, 'k, 'a, 'c> KvPipeline<'r, 'p, 'k, 'a, 'c> {
    /// Bytes of a step's keys, and as many of values.
    fn half(part: &Part) -> usize {
        let a = part.attention;
        a.span() * a.cache.layout.dim * a.matrix.dtype.size()
    }

    /// Bytes that the waves' places take.
    pub fn bytes(part: &Part, stages: usize) -> usize {
        WAVES * stages * 2 * Self::half(part)
    }

    /// Issues the copies of the first steps. `local` has room for every wave's.
    pub fn new(part: &'r Part<'p, 'k, 'a, 'c>, stages: usize, local: Ptr<'c>) -> KvPipeline<'r, 'p, 'k, 'a, 'c> {
        let c = part.code();
        let barriers = c.local_address(c.local(WAVES * stages * 16));
        let wave = c.wave_index();
        let first = part.first + wave;
        let ring = KvPipeline {
            part,
            stages,
            local: c.at(local, wave * (stages * 2 * Self::half(part))),
            barrier: barriers + wave * (16 * stages),
            first,
            own: part.position / part.attention.span(),
            next: part.block(first + WAVES * stages),
        };
        c.when(c.equal(c.lane_index(), 0), || {
            (0..2 * stages).for_each(|i| c.make_barrier(ring.barrier + 8 * i));
            c.show_barriers();
        });
        c.meet_in_wave();
        for stage in 0..stages {
            let step = ring.first + stage * WAVES;
            let block = part.block(step);
            [KEYS, VALUES].into_iter().for_each(|what| ring.fetch(c.int(stage), what, step, block));
        }
        if part.shape.splits == 1 {
            ring.bring_near();
        }
        ring
    }

    /// Prefetches the blocks after the first steps, one by each thread. Where work-groups share a
    /// sequence, each has few blocks.
    fn bring_near(&self) {
        let (a, c) = (self.part.attention, self.part.code());
        let bytes = a.steps() * Self::half(self.part);
        let first = (WAVES * self.stages).div_ceil(a.steps());
        let step = self.part.first + (c.thread() + first) * a.steps();
        let is_near = c.less(c.thread(), NEAR / (2 * bytes));
        let is_part = c.less(step, self.part.last + 1);
        c.when(is_near & is_part, || {
            let block = a.turn_in(self.part.block(step), self.part.cache_head, c.int(0), 1);
            block.into_iter().for_each(|from| c.bring_near(from, bytes));
        });
    }

    /// The place of the token's own key and value among the wave's stages, and whether their step
    /// is one of its first: the copies there are older than they are. The thread waits for these
    /// copies.
    pub fn own_entry(&self) -> (Int<'c>, Entry<'c>) {
        let (a, c) = (self.part.attention, self.part.code());
        let stage = (self.own - self.first) / WAVES;
        let is_here = c.less(stage, self.stages);
        c.when(is_here, || {
            [KEYS, VALUES].into_iter().for_each(|what| c.await_turn(self.barrier(stage, what), c.int(0)))
        });
        let k = c.at(self.local, stage * (2 * Self::half(self.part)));
        let v = c.at(k, Self::half(self.part));
        (is_here, Entry { k, v, tokens: a.span(), offset: self.part.position % a.span() })
    }

    /// Copies see the token's key and value, which this wave wrote, if the condition holds.
    fn show_token(&self, condition: Int<'c>) {
        let c = self.part.code();
        c.when(condition, || {
            c.show_to_copies();
            c.meet_in_wave();
        });
    }

    fn barrier(&self, stage: Int<'c>, what: usize) -> Int<'c> {
        self.barrier + (stage * 16 + 8 * what)
    }

    /// Copies the keys or the values of a step in this block to a stage, if the step is one of this
    /// part.
    fn fetch(&self, stage: Int<'c>, what: usize, step: Int<'c>, block: Int<'c>) {
        let (a, c, half) = (self.part.attention, self.part.code(), Self::half(self.part));
        let is_part = c.less(step, self.part.last + 1);
        c.when(is_part & c.equal(c.lane_index(), 0), || {
            let from = a.turn_in(block, self.part.cache_head, step, 1)[what];
            let barrier = self.barrier(stage, what);
            let to = c.local_address(c.at(self.local, stage * (2 * half))) + what * half;
            let (always, once) = (c.always(), c.once());
            c.expect_bytes(always, barrier, half);
            let (vec16s, bytes) = if what == KEYS { (1, half) } else { (a.panels(), a.matrix.panel_step()) };
            for i in 0..vec16s {
                let from = c.at(from, i * a.value_panel());
                c.copy_run(always, (to + i * bytes, from, bytes), barrier, once);
            }
        });
    }

    /// Along the wave's steps, with the queries as they are staged from `staged` on for the lane's
    /// column.
    pub fn all(&self, staged: Ptr<'c>) -> OnlineSoftmax<'c> {
        let (a, c, last) = (self.part.attention, self.part.code(), self.part.last);
        let size = a.matrix.dtype.size();
        let own = c.at(staged, a.place.share * 4);
        let query = |chunk: usize| -> Fragment<'c> {
            let word = |i: usize| {
                let at = (chunk * a.span() + 8 * i) * size;
                c.as_int(c.load(c.cx.i32_type(), c.at(own, at), 4))
            };
            vec![c.words(&[0, 1, 2, 3].map(word))]
        };
        let queries = &a.fragments_if(true, a.chunks(), query);
        let end = last + 1;
        let mut begin = self.part.begin().carried();
        let count = begin.len();
        begin.push(self.next.into());
        let carried = c.for_each((self.first, end, WAVES), &begin, |step, carried| {
            let ahead = step + WAVES * self.stages;
            // Loaded a turn earlier.
            let block = c.as_int(carried[count]);
            let next = self.part.block(ahead + WAVES);
            let turn = (step - self.first) / WAVES;
            let stage = turn % self.stages;
            let round = turn / self.stages % 2;
            c.await_bytes(self.barrier(stage, KEYS), round);
            let scores = self.scores(step, stage, queries);
            c.meet_in_wave();
            self.show_token(c.equal(ahead - self.own, 0));
            self.fetch(stage, KEYS, ahead, block);
            c.await_bytes(self.barrier(stage, VALUES), round);
            let running = self.accumulate(scores, stage, &OnlineSoftmax::of(&carried[..count]));
            c.meet_in_wave();
            self.fetch(stage, VALUES, ahead, block);
            running.carried().into_iter().chain([Any::from(next)]).collect()
        });
        OnlineSoftmax::of(&carried[..count])
    }

    /// A fragment of a stage, by its place there.
    fn fragments(&self, stage: Int<'c>) -> impl Fn(usize) -> Fragment<'c> {
        let (c, half) = (self.part.code(), Self::half(self.part));
        let base = c.at(self.local, stage * (2 * half));
        let base = c.local_address(base) + c.lane_index() * VEC16;
        move |at: usize| {
            // Blocks lie column by column, with the upper rows of each first.
            let [low, high] = [0, 32 * VEC16].map(|more| c.load_blocks(base + (at + more)));
            [0, 1].map(|rows| c.words(&[low[rows], low[rows + 2], high[rows], high[rows + 2]])).to_vec()
        }
    }

    /// Scores of the keys of a step.
    fn scores(&self, step: Int<'c>, stage: Int<'c>, queries: &Fragments<'_, 'c>) -> Vector<'c> {
        let (a, fragment) = (self.part.attention, self.fragments(stage));
        let key = |i: usize| fragment(i / a.chunks() * a.key_panel() + i % a.chunks() * a.matrix.panel_step());
        let keys: Fragments<'_, 'c> = Box::new(key);
        let scores: Vector<'c> = a.scores(&keys, std::slice::from_ref(queries)).remove(0);
        let first = step * a.span() + a.place.share * 2;
        a.hide_some(scores, (self.part.seen() - first, None), spread)
    }

    /// Adds the values of a step, weighted by its scores.
    fn accumulate(&self, scores: Vector<'c>, stage: Int<'c>, running: &OnlineSoftmax<'c>) -> OnlineSoftmax<'c> {
        let (a, fragment, half) = (self.part.attention, self.fragments(stage), Self::half(self.part));
        let values: Fragments<'_, 'c> = Box::new(|i| fragment(half + i * a.matrix.panel_step()));
        a.accumulate(&[vec![scores]], &values, std::slice::from_ref(running)).remove(0)
    }
}
