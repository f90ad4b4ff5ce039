//! The tile scheduler: every work-group has an even run of the weight's slots, tile by tile.
use super::Group;
use crate::code::Int;
use crate::simt::gemm::tile::Tile;

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

impl<'c> Group<'_, '_, '_, 'c> {
    /// `body` for the work-group's part of each of its tiles.
    pub(super) fn each_part<R>(&self, body: impl FnOnce(Part<'c>) -> R) -> R {
        let (c, shape) = (self.code(), self.shape);
        let units = shape.units();
        let owner = |unit: Int<'c>| ((unit + 1) * shape.groups - 1) / units;
        let last = (self.end - 1) / shape.length;
        c.repeat(self.begin / shape.length, last + 1, 1, |number| {
            let start = number * shape.length;
            let stop = start + shape.length;
            let first = owner(start);
            body(Part {
                number,
                first: c.larger(start, self.begin) - self.begin,
                end: c.smaller(stop, self.end) - self.begin,
                owner: first,
                owners: owner(stop - 1) - first + 1,
            })
        })
    }

    /// The tile of a team.
    pub(super) fn tile(&self, number: Int<'c>, team: Int<'c>) -> Tile<'c> {
        let number = number * self.shape.teams + team;
        Tile::from_row(number * self.shape.each(), self.code().int(0), self.shape.tokens)
    }

    /// That of the thread's team.
    pub(super) fn own_tile(&self, part: Part<'c>) -> Tile<'c> {
        self.tile(part.number, self.team())
    }

    pub(super) fn count(&self) -> Int<'c> {
        self.end - self.begin
    }

    /// The tiles of a slot, and which of its slots it is.
    pub(super) fn coordinates(&self, turn: Int<'c>) -> [Int<'c>; 2] {
        let length = self.shape.length;
        let unit = self.begin + turn;
        [unit / length, unit % length]
    }

    /// Which of the work-group's parts one is.
    pub(super) fn nth_part(&self, number: Int<'c>) -> Int<'c> {
        number - self.begin / self.shape.length
    }
}
