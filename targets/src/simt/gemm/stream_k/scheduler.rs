//! The tile scheduler: every work-group has an even run of the weight's slots, tile by tile.
//! Nothing else knows which tiles there are, so a grouped product would be another list of tiles
//! here.
use super::Group;
use crate::code::Int;

/// A work-group's part of a tile.
#[derive(Clone, Copy)]
pub struct WorkTile<'c> {
    /// A group of tiles that share rows, one of each team.
    pub tile: Int<'c>,
    /// Its first slot and their end, as the work-group counts them.
    pub first: Int<'c>,
    pub end: Int<'c>,
    /// The first work-group that has slots of this tile, and how many have.
    pub owner: Int<'c>,
    pub owners: Int<'c>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// `body` for the work-group's part of each of its tiles.
    pub(super) fn each_work_tile(&self, body: impl FnOnce(WorkTile<'c>)) {
        let (c, shape) = (self.code(), self.shape);
        let units = shape.units();
        let owner = |unit: Int<'c>| ((unit + 1) * shape.groups - 1) / units;
        let last = (self.end - 1) / shape.length;
        c.repeat(self.begin / shape.length, last + 1, 1, |tile| {
            let start = tile * shape.length;
            let stop = start + shape.length;
            let first = owner(start);
            let part = WorkTile {
                tile,
                first: c.larger(start, self.begin) - self.begin,
                end: c.smaller(stop, self.end) - self.begin,
                owner: first,
                owners: owner(stop - 1) - first + 1,
            };
            body(part);
        });
    }

    /// The tile of the thread's team.
    pub(super) fn own_tile(&self, part: WorkTile<'c>) -> Int<'c> {
        self.of_team(part.tile)
    }

    pub(super) fn count(&self) -> Int<'c> {
        self.end - self.begin
    }

    /// The tile of a slot, and which of its slots it is.
    pub(super) fn coordinates(&self, turn: Int<'c>) -> [Int<'c>; 2] {
        let length = self.shape.length;
        let unit = self.begin + turn;
        [unit / length, unit % length]
    }

    /// Which of the work-group's tiles a tile is.
    pub(super) fn nth_tile(&self, tile: Int<'c>) -> Int<'c> {
        tile - self.begin / self.shape.length
    }
}
