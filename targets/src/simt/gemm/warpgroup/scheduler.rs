//! The tile scheduler: a work-group stays, and makes one tile after the other. Nothing else knows
//! which tiles there are, so a grouped product would be another list of tiles here.
use super::Group;
use super::shape::TOKENS;
use crate::code::Int;

/// A tile: its first token, and its first feature.
#[derive(Clone, Copy)]
pub struct WorkTile<'c> {
    pub token: Int<'c>,
    pub feature: Int<'c>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// `body` for each tile of this work-group, with the turn of its first stretch. Tiles of the
    /// same features are made at the same time, so that weights are read once.
    pub(super) fn each_work_tile(&self, times: Int<'c>, body: impl FnOnce(WorkTile<'c>, Int<'c>)) {
        let c = self.code();
        let tiles = times * self.shape.across;
        c.for_each((c.group(), tiles, self.shape.groups), &[c.int(0).into()], |number, turn| {
            let turn = c.as_int(turn[0]);
            let column = number / times;
            let token = (number - column * times) * TOKENS;
            body(WorkTile { token, feature: column * self.shape.features }, turn);
            vec![(turn + self.shape.count).into()]
        });
    }
}
