//! The main loop: four waves multiply slots of the weight by stages of rows.
use super::Group;
use super::scheduler::WorkTile;
use super::shape::{CHUNK, COLUMNS, HALF};
use crate::code::Any;
use crate::simt::machine::warpgroup::TileForm;

/// Products along a slot.
const PRODUCTS: usize = COLUMNS / 16;

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of a part of a tile: those of upper rows, then those of lower ones.
    pub(super) fn main_loop(&self, part: WorkTile<'c>) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let each = shape.columns / 2;
        let zero: Vec<Any> = vec![c.cx.f32_type().const_zero().into(); shape.sums()];
        let sums = c.for_each((part.first, part.end, 1), &zero, |turn, sums| {
            self.weights.wait_full(c, turn);
            self.rows.wait_full(c, turn);
            let slot = self.weights.at(turn);
            let stage = self.rows.at(turn);
            let mut all = Vec::new();
            for (i, sums) in sums.chunks(each).enumerate() {
                let a = slot + i * HALF;
                let blocks = TileForm::Blocks { along: 2 * HALF, down: CHUNK };
                let operands = ((a, blocks), (stage, TileForm::Swizzled));
                all.extend(c.mma_async(sums, self.contraction.matrix.dtype, operands, PRODUCTS));
                if i == 0 {
                    let before = turn - 1;
                    let is_over = self.is_leader() & c.less(part.first, turn);
                    self.weights.release(c, is_over, before);
                    self.rows.release(c, is_over, before);
                }
            }
            all
        });
        let sums = c.mma_wait(&sums, 0);
        self.weights.release(c, self.is_leader(), part.end - 1);
        sums
    }
}
