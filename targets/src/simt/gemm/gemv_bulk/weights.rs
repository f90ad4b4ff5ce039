//! A wave's pipeline of slots in local memory, through which its part of the weight streams.
use crate::code::{Any, Int, Ptr};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Contraction;
use crate::simt::machine::Gpu;

use super::Shape;

/// Which of the wave's panels and slots comes next: the first panel of a pass, the slot along the
/// weight, and the panel of the pass.
#[derive(Clone, Copy)]
pub struct Next<'c> {
    first: Int<'c>,
    along: Int<'c>,
    panel: Int<'c>,
}

/// How far a wave has come.
#[derive(Clone, Copy)]
pub struct Turn<'c> {
    /// The slot that is read next, and the last bit of its turn's number.
    slot: Int<'c>,
    turn: Int<'c>,
    next: Next<'c>,
}

/// Integers that a loop carries for a turn.
pub const CARRIED: usize = 5;

impl<'c> Turn<'c> {
    pub fn carried(&self) -> [Any<'c>; CARRIED] {
        [self.slot, self.turn, self.next.first, self.next.along, self.next.panel].map(|v| v.into())
    }

    pub fn of(c: &Gpu<'c>, carried: &[Any<'c>]) -> Turn<'c> {
        let i = |i: usize| c.as_int(carried[i]);
        Turn { slot: i(0), turn: i(1), next: Next { first: i(2), along: i(3), panel: i(4) } }
    }
}

/// The pipeline of one wave.
pub struct WeightPipeline<'r, 'k, 'a, 'c> {
    contraction: &'r Contraction<'k, 'a, 'c>,
    codes: Option<&'r Codes<'c>>,
    shape: Shape,
    /// Where the pipelines of all waves begin, and this one.
    pub local: Ptr<'c>,
    base: Int<'c>,
    barriers: Int<'c>,
    policy: Int<'c>,
    is_first_lane: Int<'c>,
    /// The wave's first panel, how many it has, and its first slot along them.
    pub panel: Int<'c>,
    pub panels: Int<'c>,
    pub along: Int<'c>,
    /// Bytes of a panel before the work-group's share, and slots.
    before: Int<'c>,
    slots_before: Int<'c>,
    /// The wave's slots along a panel.
    pub slots: Int<'c>,
}

impl<'r, 'k, 'a, 'c> WeightPipeline<'r, 'k, 'a, 'c> {
    /// The pipeline, and the first loads into all of its slots. A wave takes every `across`-th
    /// panel of `begin` to `end`, of which the work-group has its member's share of the columns.
    pub fn fill(
        contraction: &'r Contraction<'k, 'a, 'c>,
        codes: Option<&'r Codes<'c>>,
        shape: Shape,
        (begin, end): (Int<'c>, Int<'c>),
        member: Int<'c>,
    ) -> (WeightPipeline<'r, 'k, 'a, 'c>, Turn<'c>) {
        let c = contraction.matrix.c;
        let wave = c.wave_index();
        let (across, along) = (wave % shape.across, wave / shape.across);
        let local = c.shared(shape.waves() * shape.ring_bytes(), 128);
        let barriers = c.shared(shape.waves() * shape.slots * 8, 8);
        let own = |all: Ptr<'c>, bytes: usize| c.local_address(all) + wave * bytes;
        let panel = begin + across;
        let share = |n: Int<'c>, of: usize| (n + (of - 1)) / of;
        let left = c.larger(end - panel, 0);
        let pipeline = WeightPipeline {
            contraction,
            codes,
            shape,
            local,
            base: own(local, shape.ring_bytes()),
            barriers: own(barriers, shape.slots * 8),
            policy: c.once(),
            is_first_lane: c.equal(c.lane_index(), 0),
            panel,
            panels: share(left, shape.across),
            along,
            before: member * (shape.length * shape.codes_bytes()),
            slots_before: member * shape.length,
            slots: match shape.slots_of_a_wave() {
                Some(count) => c.int(count),
                None => share(c.larger(shape.length - along, 0), shape.along),
            },
        };
        c.when(pipeline.is_first_lane, || {
            (0..shape.slots).for_each(|i| c.make_barrier(pipeline.barrier(c.int(i))));
            c.show_barriers();
        });
        c.meet_in_wave();
        let zero = c.int(0);
        let begin = Next { first: zero, along: zero, panel: zero };
        let next = (0..shape.slots).fold(begin, |next, i| pipeline.load(c.int(i), next));
        (pipeline, Turn { slot: zero, turn: zero, next })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn barrier(&self, slot: Int<'c>) -> Int<'c> {
        self.barriers + slot * 8
    }

    fn slot(&self, slot: Int<'c>) -> Int<'c> {
        self.base + slot * self.shape.slot_bytes()
    }

    /// Asks for what comes next, if there is any more, and tells what comes after it.
    fn load(&self, slot: Int<'c>, next: Next<'c>) -> Next<'c> {
        let (c, shape) = (self.code(), self.shape);
        let is_left = c.less(next.first, self.panels) & c.less(0, self.slots);
        let (asks, barrier) = (is_left & self.is_first_lane, self.barrier(slot));
        c.expect_bytes(asks, barrier, shape.slot_bytes());
        let number = (next.first + next.panel) * shape.across;
        let along = next.along * shape.along + self.along;
        let bytes = shape.codes_bytes();
        let at = along * bytes + self.before;
        for (piece, from) in self.contraction.weights(self.panel + number, None).into_iter().enumerate() {
            let to = self.slot(slot) + piece * shape.piece_bytes();
            c.copy_run(asks, (to, c.at(from, at), bytes), barrier, self.policy);
        }
        if let Some((codes, coded)) = self.codes.zip(shape.coded).filter(|(_, coded)| coded.marks_bytes() > 0) {
            let groups = coded.groups_of(shape.steps);
            for (piece, panel) in self.contraction.panels_of(self.panel + number, None).into_iter().enumerate() {
                let mut to = self.slot(slot) + (piece * shape.piece_bytes() + bytes);
                for (from, of_group) in codes.runs(c, panel, (along + self.slots_before) * groups) {
                    c.copy_run(asks, (to, from, of_group * groups), barrier, self.policy);
                    to = to + of_group * groups;
                }
            }
        }
        let (zero, one) = (c.int(0), c.int(1));
        let step = |at: Int<'c>, end: Int<'c>| {
            let after = at + one;
            let over = !c.less(after, end);
            (over, c.pick_int(over, zero, after))
        };
        let pass = c.smaller(shape.together, self.panels - next.first);
        let (over, panel) = step(next.panel, pass);
        let (past, behind) = step(next.along, self.slots);
        let along = c.pick_int(over, behind, next.along);
        let later = next.first + shape.together;
        let first = c.pick_int(over & past, later, next.first);
        Next { first, along, panel }
    }

    /// Waits for the next slot: where it begins.
    pub fn wait_full(&self, at: Turn<'c>) -> Int<'c> {
        self.code().await_bytes(self.barrier(at.slot), at.turn);
        self.slot(at.slot)
    }

    /// The slot was read by all lanes, and is filled again.
    pub fn release(&self, at: Turn<'c>) -> Turn<'c> {
        let c = self.code();
        c.meet_in_wave();
        let next = self.load(at.slot, at.next);
        let after = at.slot + 1;
        let over = c.equal(after, self.shape.slots);
        let other = 1 - at.turn;
        Turn { slot: c.pick_int(over, 0, after), turn: c.pick_int(over, other, at.turn), next }
    }
}
