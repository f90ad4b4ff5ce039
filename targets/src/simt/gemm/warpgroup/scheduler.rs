//! The tile scheduler: a work-group stays, and makes one tile after the other.
use super::Group;
use super::shape::TOKENS;
use crate::code::Int;
use crate::simt::gemm::tile::Tile;

impl<'c> Group<'_, '_, '_, 'c> {
    /// `body` for each tile of this work-group, with the pipeline's index of its first K tile.
    /// Tiles of the same features are made at the same time, so that weights are read once.
    pub(super) fn each_tile(&self, times: Int<'c>, body: impl FnOnce(Tile<'c>, Int<'c>)) {
        let c = self.code();
        let tiles = times * self.shape.across;
        c.for_each((c.group(), tiles, self.shape.groups), &[c.int(0).into()], |number, index| {
            let index = c.as_int(index[0]);
            let column = number / times;
            let token = (number - column * times) * TOKENS;
            body(Tile::from_row(column * (self.shape.features / 16), token, TOKENS), index);
            vec![(index + self.shape.count).into()]
        });
    }
}
