//! Sums of many rows in two steps. A work-group takes a part of the rows after the other. In the
//! first step it sends each rank's share of the part to that rank, in the second its own share's
//! sums to all ranks. So a row leaves a rank less than twice, however many ranks there are, and
//! rows travel without signals among them: one signal follows all rows of a step.
use atomc_artifact::abi::{EXCHANGE_PART, EXCHANGE_PARTS, EXCHANGE_SHARES, Exchange};
use atomc_ir::DType;
use inkwell::IntPredicate;

use super::{Piece, Rows, THREADS, UNIT};
use crate::code::{Int, Ptr};

/// Units of a part.
const UNITS: usize = EXCHANGE_PART / UNIT;

/// A part of the rows that a work-group sums.
#[derive(Clone, Copy)]
pub(super) struct Part<'c> {
    /// Where it begins among the bytes of the rows.
    start: Int<'c>,
    /// The number of the exchange.
    turn: Int<'c>,
    /// Units of a rank's share.
    share: Int<'c>,
}

/// The steps of a sum.
#[derive(Clone, Copy)]
enum Step {
    Parts,
    Sums,
}

impl<'k, 'c> Rows<'k, 'c> {
    /// All parts of a work-group; returns how many exchanges it has made then.
    pub(super) fn sum_in_shares(&self, before: Int<'c>, dtype: DType) -> Int<'c> {
        let c = self.c;
        // Later work-groups have no slots for parts.
        let first = c.pick_int(c.less(c.group(), EXCHANGE_PARTS), c.group() * EXCHANGE_PART, self.end);
        let share = (self.ranks + (UNITS - 1)) / self.ranks;
        c.carry((first, self.end, EXCHANGE_PARTS * EXCHANGE_PART), before, |start, turn| {
            let part = Part { start, turn: turn + 1, share };
            self.send_parts(part);
            let came = self.pass(Step::Parts, part);
            self.send_sums(part, came, dtype);
            let came = self.pass(Step::Sums, part);
            self.take_sums(part, came, dtype);
            part.turn
        })
    }

    /// Does something for each of this thread's units of a rank's share: the place in the slot, and
    /// that among the bytes of the rows.
    fn units(&self, part: Part<'c>, of: Int<'c>, work: impl FnOnce(Int<'c>, Int<'c>)) {
        let c = self.c;
        c.repeat(c.thread(), part.share, THREADS, |unit| {
            let number = of * part.share + unit;
            let at = part.start + number * UNIT;
            c.when(c.less(number, UNITS) & c.less(at, self.end), || work(unit * UNIT, at));
        });
    }

    /// Does something for each other rank, the next one first.
    fn others(&self, work: impl FnOnce(Int<'c>)) {
        let c = self.c;
        c.repeat(1, self.ranks, 1, |distance| {
            let next = self.rank + distance;
            work(c.pick_int(c.less(next, self.ranks), next, next - self.ranks));
        });
    }

    /// The slot of a step in a rank's memory, for what another rank sends.
    fn share_slot(&self, step: Step, of: Int<'c>, sender: Int<'c>, part: Part<'c>) -> Ptr<'c> {
        let c = self.c;
        let group = ((part.turn % 2) * 2 + step as usize) * EXCHANGE_PARTS + c.group();
        let at = group * EXCHANGE_SHARES + sender * part.share * UNIT;
        c.at(self.memory(of), at + self.ranks * Exchange::signalled(1))
    }

    /// Where a rank's signal of a step stands in another rank's memory.
    fn signal(&self, step: Step, of: Int<'c>, sender: Int<'c>, part: Part<'c>) -> Ptr<'c> {
        let c = self.c;
        let half = (part.turn % 2) * 2 + step as usize;
        let number = (half * self.ranks + sender) * EXCHANGE_PARTS + c.group();
        c.at(self.memory(of), number * 16 + self.ranks * Exchange::signalled(1) + Exchange::SHARES)
    }

    /// Sends each other rank its share of this rank's rows.
    fn send_parts(&self, part: Part<'c>) {
        let c = self.c;
        self.others(|to| {
            let slot = self.share_slot(Step::Parts, to, self.rank, part);
            self.units(part, to, |place, at| c.store_shared(c.at(slot, place), &self.words(c.at(self.value, at))));
        });
    }

    /// Sums this rank's share, and sends it to all other ranks.
    fn send_sums(&self, part: Part<'c>, came: Int<'c>, dtype: DType) {
        let c = self.c;
        self.units(part, self.rank, |place, at| {
            c.set_lanes(UNIT / dtype.size());
            let sum = c.carry((0, self.ranks, 1), c.zero(), |rank, sum| {
                let own = self.words(c.at(self.value, at));
                let other = c.compare(IntPredicate::NE, rank, self.rank);
                let slot = self.share_slot(Step::Parts, self.rank, rank, part);
                let words = c.carry_if(other, own, |_| c.load_shared(c.at(slot, place)));
                c.fadd(sum, self.floats(words, dtype))
            });
            let words = self.if_came(came, self.rounded(sum, dtype));
            self.others(|to| {
                let slot = self.share_slot(Step::Sums, to, self.rank, part);
                c.store_shared(c.at(slot, place), &words);
            });
            let piece = Piece { at, words, turn: part.turn };
            self.finish(piece, dtype);
            c.set_lanes(1);
        });
    }

    /// Takes the sums of the other ranks' shares.
    fn take_sums(&self, part: Part<'c>, came: Int<'c>, dtype: DType) {
        let c = self.c;
        self.others(|of| {
            let slot = self.share_slot(Step::Sums, self.rank, of, part);
            self.units(part, of, |place, at| {
                let words = self.if_came(came, c.load_shared(c.at(slot, place)));
                c.set_lanes(UNIT / dtype.size());
                self.finish(Piece { at, words, turn: part.turn }, dtype);
                c.set_lanes(1);
            });
        });
    }

    /// Tells all other ranks that this work-group has sent its rows of a step, and waits until they
    /// have said the same. A thread does so for each rank. Returns whether no rank was waited for
    /// in vain so far.
    fn pass(&self, step: Step, part: Part<'c>) -> Int<'c> {
        let (c, thread) = (self.c, self.c.thread());
        c.release_to_devices();
        c.barrier();
        let other = c.less(thread, self.ranks) & c.compare(IntPredicate::NE, thread, self.rank);
        c.when(other, || {
            let words = [part.turn; 4];
            c.store_shared(self.signal(step, thread, self.rank, part), &words);
            let from = self.signal(step, self.rank, thread, part);
            let (came, _) = c.until(super::PATIENCE, || {
                let [word, ..] = c.load_shared(from);
                (c.compare(IntPredicate::EQ, word, part.turn), ())
            });
            c.when(!came, || self.miss(thread));
        });
        c.barrier();
        c.acquire_from_devices();
        self.missed_none()
    }
}
