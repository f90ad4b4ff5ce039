//! The tile scheduler: every work-group has an even run of the weight's slots, tile by tile.
use atomc_ir::Diagnostic;

use super::Group;
use super::shape::{RowsOfTiles, Shape};
use crate::code::{Any, Int};
use crate::simt::gemm::tile::Tile;
use crate::simt::gemm::tile::experts::{Choices, ExpertBlocks};
use crate::simt::machine::Gpu;

/// The shares of work-groups in all slots.
#[derive(Clone, Copy)]
pub struct Share<'c> {
    /// All slots, and the work-groups that have some of them.
    units: Int<'c>,
    groups: Int<'c>,
    /// The work-group's slots.
    begin: Int<'c>,
    end: Int<'c>,
    /// The experts of tiles' rows, where these have some.
    experts: Option<ExpertsOfTiles<'c>>,
}

/// The source of the experts of tiles' rows.
#[derive(Clone, Copy)]
pub enum ExpertsOfTiles<'c> {
    Blocks(ExpertBlocks<'c>),
    Choices(Choices<'c>),
}

/// A slot: its tiles, its matrix of those that make them together, and its K tile.
#[derive(Clone, Copy)]
pub struct Slot<'c> {
    pub number: Int<'c>,
    pub choice: Int<'c>,
    pub along: Int<'c>,
}

/// A work-group's part of tiles that share rows, one of each team.
#[derive(Clone, Copy)]
pub struct Part<'c> {
    /// The tiles, and the one of the matrices that make them together.
    pub number: Int<'c>,
    pub choice: Int<'c>,
    /// The first slot and the end of the slots, as the work-group counts them.
    pub first: Int<'c>,
    pub end: Int<'c>,
    /// The first work-group that has slots of this tile, and their number.
    pub owner: Int<'c>,
    pub owners: Int<'c>,
}

impl<'c> Share<'c> {
    /// The slots of one matrix, or of as many as rows have chosen.
    pub fn new(c: &Gpu<'c>, shape: Shape, choices: Option<Choices<'c>>) -> Share<'c> {
        Share::of(c, [c.int(shape.units()), c.int(shape.groups)], choices.map(ExpertsOfTiles::Choices))
    }

    /// The share of a work-group in the matrices that make blocks of experts' rows: blocks with an
    /// expert come first. At most [`Shape::sharing`] work-groups share a tile.
    pub fn of_blocks(c: &Gpu<'c>, shape: Shape, blocks: ExpertBlocks<'c>) -> Share<'c> {
        let (lanes, most) = (c.simt.wave, blocks.most(c));
        let count = c.carry((0, most, lanes), c.int(0), |first, count| {
            let block = first + c.lane_index();
            let is = c.less(block, most) & blocks.has_expert(c, c.smaller(block, most - 1));
            count + c.count_lanes(is, c.int(lanes))
        });
        let units = count * shape.units();
        let groups = c.larger(c.smaller(units / shape.least, shape.groups), 1);
        Share::of(c, [units, groups], Some(ExpertsOfTiles::Blocks(blocks)))
    }

    fn of(c: &Gpu<'c>, [units, groups]: [Int<'c>; 2], experts: Option<ExpertsOfTiles<'c>>) -> Share<'c> {
        let is_open = matches!(experts, Some(ExpertsOfTiles::Blocks(_)));
        let bound = |group: Int<'c>| group * units / groups;
        let inside = |slot: Int<'c>| if is_open { c.smaller(slot, units) } else { slot };
        let [begin, end] = [c.group(), c.group() + 1].map(|group| inside(bound(group)));
        Share { units, groups, begin, end, experts }
    }

    /// The first slot of a work-group.
    pub fn begin(&self, group: Int<'c>) -> Int<'c> {
        group * self.units / self.groups
    }

    /// The work-group that has a slot.
    fn owner(&self, unit: Int<'c>) -> Int<'c> {
        ((unit + 1) * self.groups - 1) / self.units
    }

    /// Whether the work-group has slots.
    pub fn has_some(&self, c: &Gpu<'c>) -> Int<'c> {
        c.less(self.begin, self.end)
    }

    pub fn experts(&self) -> Option<ExpertsOfTiles<'c>> {
        self.experts
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Runs `body` for the work-group's part of each of its tiles.
    pub(super) fn each_part<R>(&self, body: impl FnOnce(Part<'c>) -> R) -> R {
        let (c, length, share) = (self.code(), self.shape.tile_length(), &self.share);
        let last = (share.end - 1) / length;
        c.repeat(share.begin / length, last + 1, 1, |number| {
            let start = number * length;
            let stop = start + length;
            let first = share.owner(start);
            body(Part {
                number,
                choice: c.int(0),
                first: c.larger(start, share.begin) - share.begin,
                end: c.smaller(stop, share.end) - share.begin,
                owner: first,
                owners: share.owner(stop - 1) - first + 1,
            })
        })
    }

    /// The tile of a team, as one matrix makes it.
    pub(super) fn tile(&self, number: Int<'c>, choice: Int<'c>, team: Int<'c>) -> Tile<'c> {
        let (c, shape) = (self.code(), self.shape);
        let panel = |number: Int<'c>| (number * shape.teams + team) * shape.each();
        let (row, of_row) = (number / shape.tiles, || panel(number % shape.tiles));
        match (shape.rows, &self.share.experts) {
            (RowsOfTiles::Step, _) | (_, None) => Tile::from_row(panel(number), c.int(0), shape.tokens),
            (_, Some(ExpertsOfTiles::Blocks(blocks))) => blocks.tile(c, row, of_row()),
            (_, Some(ExpertsOfTiles::Choices(choices))) => {
                choices.tile(c, row * shape.rows.matrices() + choice, of_row())
            }
        }
    }

    /// The tile of the thread's team, as a part's matrix makes it.
    pub(super) fn own_tile(&self, part: Part<'c>) -> Tile<'c> {
        self.tile(part.number, part.choice, self.team())
    }

    /// The tile of the thread's team, as all matrices made it.
    pub(super) fn made_tile(&self, part: Part<'c>) -> Tile<'c> {
        let (c, tile) = (self.code(), self.own_tile(part));
        match (self.shape.rows, &self.share.experts) {
            (RowsOfTiles::Combined { choices, .. }, Some(ExpertsOfTiles::Choices(chosen))) => {
                let row = part.number / self.shape.tiles;
                tile.of_row(c, row, chosen.has_row(c, row, choices))
            }
            _ => tile,
        }
    }

    /// Runs `body` for the part of each of the matrices that make a part together.
    pub(super) fn each_choice(
        &self,
        part: Part<'c>,
        sums: Vec<Any<'c>>,
        body: impl FnOnce(Part<'c>, Vec<Any<'c>>) -> Result<Vec<Any<'c>>, Diagnostic>,
    ) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, length) = (self.code(), self.shape.length);
        // The index of the tile's first slot, which may be another work-group's.
        let start = part.number * self.shape.tile_length() - self.share.begin;
        let choice = |index: Int<'c>| (index - start) / length;
        c.try_carry((choice(part.first), choice(part.end - 1) + 1, 1), sums, |choice, sums| {
            let first = start + choice * length;
            let (first, end) = (c.larger(part.first, first), c.smaller(part.end, first + length));
            body(Part { choice, first, end, ..part }, sums)
        })
    }

    pub(super) fn count(&self) -> Int<'c> {
        self.share.end - self.share.begin
    }

    /// A slot, as the work-group counts them.
    pub(super) fn slot(&self, index: Int<'c>) -> Slot<'c> {
        let (length, all) = (self.shape.length, self.shape.tile_length());
        let unit = self.share.begin + index;
        let choice = if all == length { self.code().int(0) } else { unit % all / length };
        Slot { number: unit / all, choice, along: unit % length }
    }

    /// The number of a part among the work-group's.
    pub(super) fn nth_part(&self, number: Int<'c>) -> Int<'c> {
        number - self.share.begin / self.shape.tile_length()
    }
}
