//! The tile scheduler: every work-group has an even run of the weight's slots, tile by tile.
use super::Group;
use super::shape::Shape;
use crate::code::Int;
use crate::simt::gemm::tile::Tile;
use crate::simt::gemm::tile::experts::ExpertBlocks;
use crate::simt::machine::Gpu;

/// How slots are shared out.
#[derive(Clone, Copy)]
pub struct Share<'c> {
    /// All slots, and the work-groups that have some of them.
    units: Int<'c>,
    groups: Int<'c>,
    /// The work-group's slots.
    begin: Int<'c>,
    end: Int<'c>,
    /// Blocks of experts' rows, where the product is of these.
    blocks: Option<ExpertBlocks<'c>>,
}

/// A work-group's part of tiles that share rows, one of each team.
#[derive(Clone, Copy)]
pub struct Part<'c> {
    /// Which tiles these are.
    pub number: Int<'c>,
    /// Its first slot and their end, as the work-group counts them.
    pub first: Int<'c>,
    pub end: Int<'c>,
    /// The first work-group that has slots of this tile, and how many have.
    pub owner: Int<'c>,
    pub owners: Int<'c>,
}

impl<'c> Share<'c> {
    /// The slots of one matrix.
    pub fn new(c: &Gpu<'c>, shape: Shape) -> Share<'c> {
        Share::of(c, [c.int(shape.units()), c.int(shape.groups)], None)
    }

    /// Those of the matrices that make blocks of experts' rows: blocks with an expert come first.
    /// Work-groups are so many that no tile is shared by more than [`Shape::sharing`].
    pub fn of_blocks(c: &Gpu<'c>, shape: Shape, blocks: ExpertBlocks<'c>) -> Share<'c> {
        let (lanes, most) = (c.simt.wave, blocks.most(c));
        let count = c.for_each((0, most, lanes), &[c.int(0).into()], |first, count| {
            let block = first + c.lane_index();
            let is = c.less(block, most) & blocks.has_expert(c, c.smaller(block, most - 1));
            vec![(c.as_int(count[0]) + c.count_lanes(is, c.int(lanes))).into()]
        });
        let units = c.as_int(count[0]) * shape.units();
        let groups = c.larger(c.smaller(units / shape.least, shape.groups), 1);
        Share::of(c, [units, groups], Some(blocks))
    }

    fn of(c: &Gpu<'c>, [units, groups]: [Int<'c>; 2], blocks: Option<ExpertBlocks<'c>>) -> Share<'c> {
        let bound = |group: Int<'c>| group * units / groups;
        let inside = |slot: Int<'c>| if blocks.is_some() { c.smaller(slot, units) } else { slot };
        let [begin, end] = [c.group(), c.group() + 1].map(|group| inside(bound(group)));
        Share { units, groups, begin, end, blocks }
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

    pub fn blocks(&self) -> Option<ExpertBlocks<'c>> {
        self.blocks
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// `body` for the work-group's part of each of its tiles.
    pub(super) fn each_part<R>(&self, body: impl FnOnce(Part<'c>) -> R) -> R {
        let (c, length, share) = (self.code(), self.shape.length, &self.share);
        let last = (share.end - 1) / length;
        c.repeat(share.begin / length, last + 1, 1, |number| {
            let start = number * length;
            let stop = start + length;
            let first = share.owner(start);
            body(Part {
                number,
                first: c.larger(start, share.begin) - share.begin,
                end: c.smaller(stop, share.end) - share.begin,
                owner: first,
                owners: share.owner(stop - 1) - first + 1,
            })
        })
    }

    /// The tile of a team.
    pub(super) fn tile(&self, number: Int<'c>, team: Int<'c>) -> Tile<'c> {
        let (c, shape) = (self.code(), self.shape);
        let panel = |number: Int<'c>| (number * shape.teams + team) * shape.each();
        match self.share.blocks {
            Some(blocks) => blocks.tile(c, number / shape.tiles, panel(number % shape.tiles)),
            None => Tile::from_row(panel(number), c.int(0), shape.tokens),
        }
    }

    /// That of the thread's team.
    pub(super) fn own_tile(&self, part: Part<'c>) -> Tile<'c> {
        self.tile(part.number, self.team())
    }

    pub(super) fn count(&self) -> Int<'c> {
        self.share.end - self.share.begin
    }

    /// The tiles of a slot, and which of its slots it is.
    pub(super) fn coordinates(&self, turn: Int<'c>) -> [Int<'c>; 2] {
        let length = self.shape.length;
        let unit = self.share.begin + turn;
        [unit / length, unit % length]
    }

    /// Which of the work-group's parts one is.
    pub(super) fn nth_part(&self, number: Int<'c>) -> Int<'c> {
        number - self.share.begin / self.shape.length
    }
}
