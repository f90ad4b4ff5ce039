//! The work-groups of a list choose together, each from its own part of it. For each byte of the
//! least number they add up their counts of its values. Then each knows the places of its entries
//! in the result from the numbers of entries that those before it keep.
//!
//! A work-group waits for the others here.
//! [`Kernel::together`](atomc_artifact::manifest::Kernel::together) tells the loader their number.
use inkwell::IntPredicate;

use super::{Chooser, THREADS};
use crate::choice::{self, DIGITS};
use crate::code::{Int, Ptr};
use crate::simt::launch::COUNTERS;

/// Bytes of a number, and of what a work-group leaves: its counts for each of them, then how many
/// of its numbers are larger than the least one, and how many are equal to it.
const BYTES: usize = 4;
const TOTALS: usize = BYTES * DIGITS * 4;
pub const LEFT: usize = TOTALS + 2 * 4;

/// The work-groups of a list that have keys, and what they leave.
struct Team<'c> {
    split: Int<'c>,
    used: Int<'c>,
    /// How often any of them has arrived, and how many are done.
    arrived: Ptr<'c>,
    done: Ptr<'c>,
    left: Ptr<'c>,
}

impl<'c> Chooser<'_, '_, 'c> {
    /// Stores the part of a list that comes from this work-group's own.
    pub(super) fn choose_together(
        &self,
        (list, split): (Int<'c>, Int<'c>),
        used: Int<'c>,
        count: Int<'c>,
        workspace: Ptr<'c>,
    ) {
        let c = self.code();
        let [arrived, done] = [0, 4].map(|at| c.at(workspace, list * 8 + at));
        let left = c.at(c.at(workspace, COUNTERS), list * (self.splits * LEFT));
        let team = Team { split, used, arrived, done, left };
        let (mut known, mut wanted) = (c.int(0), c.int(self.sizes.choice.k));
        for byte in (0..BYTES).rev() {
            let turn = BYTES - 1 - byte;
            c.barrier();
            self.count_digits((self.local.number, count), byte, known);
            self.add_counts(&team, turn);
            let [digit, before] = self.last_digit(wanted);
            known = known * DIGITS + digit;
            wanted = wanted - before;
        }
        let [larger, equals] = self.before(&team, count, known);
        self.store_own((list, count), known, [larger + c.smaller(equals, wanted), equals], wanted);
        self.leave(&team);
    }

    /// A byte of what a work-group leaves.
    fn left_by(&self, team: &Team<'c>, split: Int<'c>, at: usize) -> Ptr<'c> {
        self.code().at(team.left, split * LEFT + at)
    }

    /// All work-groups have left what they had to, for the turn with this number.
    fn meet_all(&self, team: &Team<'c>, turn: usize) {
        let c = self.code();
        c.barrier_to_publish();
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.take_turn(team.arrived);
            c.await_count(team.arrived, team.used * (turn + 1));
        });
        c.barrier();
        c.acquire();
    }

    /// Replaces the work-group's counts by those of all.
    fn add_counts(&self, team: &Team<'c>, turn: usize) {
        let c = self.code();
        let place = |split: Int<'c>| c.at(self.left_by(team, split, turn * DIGITS * 4), c.thread() * 4);
        let own = c.at(self.local.count, c.thread() * 4);
        c.store(place(team.split), choice::load(c, self.local.count, c.thread()), 4);
        self.meet_all(team, turn);
        c.store(own, self.sum_of(team, team.used, |split| choice::load(c, place(split), c.int(0))), 4);
        c.barrier();
    }

    /// A sum over the first `count` work-groups, with all loads at once.
    fn sum_of(&self, team: &Team<'c>, count: Int<'c>, of: impl Fn(Int<'c>) -> Int<'c>) -> Int<'c> {
        let c = self.code();
        let load = |i: usize| of(c.smaller(c.int(i), team.used - 1));
        let all: Vec<Int<'c>> = (0..self.splits).map(load).collect();
        let counted = |i: usize, v: Int<'c>| c.pick_int(c.less(c.int(i), count), v, 0);
        all.into_iter().enumerate().fold(c.int(0), |sum, (i, v)| sum + counted(i, v))
    }

    /// How many numbers of the work-groups before this one are larger than the least one of the
    /// result, and how many are equal to it.
    fn before(&self, team: &Team<'c>, count: Int<'c>, known: Int<'c>) -> [Int<'c>; 2] {
        let c = self.code();
        let none = [c.int(0); 2];
        let own = c.carry((0, count, THREADS), none, |first, [larger, equals]| {
            let [is_larger, is_equal] = self.beside((first, count), known);
            [larger + self.among(is_larger)[1], equals + self.among(is_equal)[1]]
        });
        let place = |split: Int<'c>, which: usize| self.left_by(team, split, TOTALS + 4 * which);
        c.when(c.equal(c.thread(), 0), || {
            own.iter().enumerate().for_each(|(which, &v)| c.store(place(team.split, which), v, 4));
        });
        self.meet_all(team, BYTES);
        [0, 1].map(|which| self.sum_of(team, team.split, |split| choice::load(c, place(split, which), c.int(0))))
    }

    /// Whether the thread's entry of some is larger than a number, and whether it is equal.
    fn beside(&self, (first, count): (Int<'c>, Int<'c>), known: Int<'c>) -> [Int<'c>; 2] {
        let c = self.code();
        let i = first + c.thread();
        let number = choice::load(c, self.local.number, c.smaller(i, count - 1));
        [IntPredicate::UGT, IntPredicate::EQ].map(|order| c.less(i, count) & c.compare(order, number, known))
    }

    /// Stores the positions of the own entries that are kept. `start` is the first one's place, and
    /// how many equals of the least number come earlier; `wanted` of all equals are kept.
    fn store_own(&self, (list, count): (Int<'c>, Int<'c>), known: Int<'c>, start: [Int<'c>; 2], wanted: Int<'c>) {
        let c = self.code();
        c.carry((0, count, THREADS), start, |first, [to, equals]| {
            let [is_larger, is_equal] = self.beside((first, count), known);
            let [before, all_equals] = self.among(is_equal);
            let is_kept = is_larger | (is_equal & c.less(equals + before, wanted));
            let [before, all] = self.among(is_kept);
            c.when(is_kept, || {
                c.store(self.place(list, to + before), choice::load(c, self.local.position, first + c.thread()), 4);
            });
            [to + all, equals + all_equals]
        });
    }

    /// The last work-group that is done sets the counters back.
    fn leave(&self, team: &Team<'c>) {
        let c = self.code();
        c.when(c.equal(c.thread(), 0), || {
            let is_last = c.equal(team.used - 1 - c.take_turn(team.done), 0);
            c.when(is_last, || {
                [team.arrived, team.done]
                    .into_iter()
                    .for_each(|counter| c.store(counter, c.cx.i32_type().const_zero(), 4));
            });
        });
    }
}
