//! Tiles that several work-groups share: each leaves its sums in the workspace, and the last one to
//! finish adds all of them up, some tokens at a time.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::Group;
use super::epilogue::Tokens;
use super::scheduler::Part;
use super::shape::TEAM;
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::launch::COUNTERS;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Leaves the sums of a part of a shared tile, and squares of rows, in the workspace. The last
    /// of the tile's work-groups makes the tile's results.
    pub(super) fn leave(
        &self,
        part: Part<'c>,
        sums: &[Any<'c>],
        squares: Option<FloatValue<'c>>,
    ) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let counter = c.at(self.workspace, self.of_team(part.owner) * 4);
        self.store_partial(self.partial(part, c.group() - part.owner), sums, squares);
        self.sync_consumers();
        c.when(self.is_leader(), || {
            c.release();
            c.store(self.word(), c.take_turn(counter), 4);
        });
        self.sync_consumers();
        let turn = c.as_int(c.load(c.cx.i32_type(), self.word(), 4));
        let is_last = c.equal(part.owners - turn - 1, 0);
        c.when(is_last, || {
            c.acquire();
            c.when(self.is_leader(), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            let shares = shape.tokens.div_ceil(shape.share());
            c.repeat(0, shares, 1, |number| self.finish_share(part, number * shape.share()))
        })
    }

    /// The thread's row's squares of a part of a tile, if there is a norm.
    pub(super) fn own_squares(&self, part: Part<'c>) -> Option<FloatValue<'c>> {
        let (c, shape) = (self.code(), self.shape);
        self.prologue.norm.is_some().then(|| {
            let number = self.nth_part(part.number);
            let row = c.smaller(self.thread(), shape.columns - 1);
            let from = self.squares.at(number);
            self.squares.wait_full(c, number);
            let own = c.load(c.cx.f32_type(), self.local(from + row * 4), 4);
            self.squares.release(c, c.always(), number);
            own.into_float_value()
        })
    }

    /// The address where a work-group leaves its sums of this tile, its first one or another.
    fn partial(&self, part: Part<'c>, number: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let group = part.owner + number;
        let begin = self.share.begin(group);
        let is_first = c.equal(begin / shape.tile_length() - part.number, 0);
        let which = c.pick_int(is_first, 0, 1);
        let place = self.of_team(group * 2 + which) * shape.partial_bytes();
        c.at(self.workspace, place + COUNTERS)
    }

    /// The place of a row's sum of squares, after the sums that a work-group leaves.
    fn squares_at(&self, partial: Ptr<'c>, row: Int<'c>) -> Ptr<'c> {
        self.code().at(partial, row * 4 + self.shape.sums() * TEAM * 4)
    }

    /// The address of four of the thread's sums in a work-group's partial sums.
    fn four_at(&self, partial: Ptr<'c>, four: Int<'c>) -> Ptr<'c> {
        self.code().at(partial, (four * TEAM + self.thread()) * 16)
    }

    fn store_partial(&self, partial: Ptr<'c>, sums: &[Any<'c>], squares: Option<FloatValue<'c>>) {
        let (c, shape) = (self.code(), self.shape);
        for (i, four) in sums.chunks(4).enumerate() {
            c.store(self.four_at(partial, c.int(i)), c.floats(four), 16);
        }
        if let Some(squares) = squares {
            let is_row = c.less(self.thread(), shape.columns);
            c.when(is_row, || c.store(self.squares_at(partial, self.thread()), squares, 4));
        }
    }

    /// Adds up the sums of a share of a tile's tokens, and makes their results.
    fn finish_share(&self, part: Part<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let (c, shape, tile) = (self.code(), self.shape, self.made_tile(part));
        let tokens = Tokens { first, count: shape.share().min(shape.tokens) };
        let beside = self.load_beside(tile, tokens)?;
        let last = part.owners - 1;
        let partials: Vec<Ptr<'c>> =
            (0..shape.sharing()).map(|i| self.partial(part, c.smaller(c.int(i), last))).collect();
        // The thread's sums of upper rows come before those of lower ones.
        let half = |half: usize| -> Vec<Any<'c>> {
            let four = |i: usize| self.add_fours(part, &partials, first / 8 + (half * shape.columns / 8 + i));
            (0..shape.share() / 8).flat_map(four).collect()
        };
        let halves = [0, 1].map(half);
        let row = first + c.smaller(self.thread(), shape.share() - 1);
        let squares = self.prologue.norm.is_some().then(|| {
            let load = |&partial: &Ptr<'c>| c.load(c.cx.f32_type(), self.squares_at(partial, row), 4);
            self.add_up(part, partials.iter().map(load))
        });
        // Waves may still read the previous share.
        self.sync_consumers();
        self.store_scale(squares, row, shape.share());
        self.exchange(&halves);
        self.sync_consumers();
        self.store_results(tile, tokens, &beside)
    }

    /// Four of the thread's sums, added up over all work-groups of a tile.
    fn add_fours(&self, part: Part<'c>, partials: &[Ptr<'c>], four: Int<'c>) -> Vec<Any<'c>> {
        let c = self.code();
        let load = |&partial: &Ptr<'c>| c.load_vector(c.cx.f32_type(), 4, self.four_at(partial, four), 16);
        let loaded: Vec<Vector<'c>> = partials.iter().map(load).collect();
        (0..4).map(|lane| self.add_up(part, loaded.iter().map(|&v| c.lane(v, lane))).into()).collect()
    }

    /// Adds up one number of each work-group of a tile, in their order. Later work-groups than the
    /// tile's last one are left out.
    fn add_up(&self, part: Part<'c>, numbers: impl Iterator<Item = Any<'c>>) -> FloatValue<'c> {
        let c = self.code();
        let numbers = numbers.map(|number| number.into_float_value()).enumerate();
        let add = |sum: FloatValue<'c>, (i, number): (usize, FloatValue<'c>)| {
            let more = c.b.build_float_add(sum, number, "").expect("floats");
            c.pick(c.less(i, part.owners), more, sum).into_float_value()
        };
        let sum = numbers.reduce(|(_, sum), next| (0, add(sum, next)));
        sum.expect("a work-group at least").1
    }
}
