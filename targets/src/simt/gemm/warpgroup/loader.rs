//! The loader: one lane asks for tiles of both operands by tensor maps, stretch by stretch.
use super::Group;
use super::scheduler::WorkTile;
use super::shape::{BLOCK, EIGHT, TOKENS};
use crate::code::Int;
use crate::simt::machine::warpgroup::{MAP, TensorMap};

impl<'c> Group<'_, '_, '_, 'c> {
    pub(super) fn make_maps(&self) {
        let (c, w, x, shape) = (self.code(), &self.contraction.parts.w, self.x, self.shape);
        c.clear_maps(self.maps, 2);
        let (size, panel) = (w.ty.dtype.size(), c.arch.memory.panel);
        let all = c.arch.memory.padded(w.ty.shape.0[0].fixed().unwrap_or(0));
        let weight = [
            (BLOCK / size, 0, BLOCK / size),
            (w.stride * size / 16, panel * 16, 8),
            (panel / 8, BLOCK, panel / 8),
            (all / panel, panel * w.stride * size, shape.features / panel),
        ];
        let rows = [(w.stride, 0, shape.stretch), (self.room, x.stride * size, TOKENS)];
        c.when(c.equal(c.lane_index(), 0), || {
            let map = |dims, swizzled| TensorMap { dtype: w.ty.dtype, dims, outer: None, swizzled };
            c.make_map(self.map(0), w.ptr, &map(&weight, false));
            c.make_map(self.map(1), x.ptr, &map(&rows, true));
        });
        c.meet_in_wave();
    }

    fn map(&self, i: usize) -> Int<'c> {
        self.code().local_address(self.code().at(self.maps, i * MAP))
    }

    pub(super) fn place_maps(&self) {
        let c = self.code();
        (0..2).for_each(|i| c.place_map(c.at(self.placed, i * MAP), self.map(i)));
    }

    /// Asks for all stretches of a tile, from a turn on.
    pub(super) fn produce(&self, tile: WorkTile<'c>, first: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let [weight, all] = shape.stage();
        c.repeat(0, shape.count, 1, |i| {
            let turn = first + i;
            let (full, to) = (self.stages.full(turn), self.stages.at(turn));
            self.stages.wait_empty(c, turn);
            c.expect_bytes(c.always(), full, all);
            for (piece, start) in self.contraction.parts.starts().enumerate() {
                let panel = (tile.feature + start) / c.arch.memory.panel;
                let to = to + piece * shape.features / 8 * EIGHT;
                c.copy_box(to, self.placed, &[c.int(0), i * 8, c.int(0), panel], full);
            }
            let rows = c.at(self.placed, MAP);
            c.copy_box(to + weight, rows, &[i * shape.stretch, tile.token], full);
        });
    }
}
