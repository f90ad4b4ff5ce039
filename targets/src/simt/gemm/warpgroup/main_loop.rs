//! The main loop: four waves multiply the stretches of a tile as they come.
use atomc_ir::Diagnostic;

use super::Group;
use super::epilogue::Epilogue;
use super::scheduler::WorkTile;
use super::shape::{BLOCK, EIGHT, GROUP_TOKENS, PRODUCTS};
use crate::code::{Any, Int};
use crate::simt::machine::warpgroup::TileForm;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Makes a tile of what comes from a turn on.
    pub(super) fn consume(&self, tile: WorkTile<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let [weight, _] = shape.stage();
        let group = c.wave_index() / 4;
        let is_leader = c.equal(c.thread() % 128, 0);
        let rows = group * (GROUP_TOKENS * 128) + weight;
        let zero: Vec<Any> = vec![c.cx.f32_type().const_zero().into(); shape.rows / 2];
        let sums = c.for_each((0, shape.count, 1), &zero, |i, sums| {
            let turn = first + i;
            self.stages.wait_full(c, turn);
            let at = self.stages.at(turn);
            let blocks = TileForm::Blocks { along: BLOCK, down: EIGHT };
            let operands = ((at + rows, TileForm::Swizzled), (at, blocks));
            let sums = c.mma_async(sums, self.contraction.matrix.dtype, operands, PRODUCTS);
            let is_over = is_leader & c.less(0, i);
            self.stages.release(c, is_over, first + (i - 1));
            sums
        });
        let finish = Epilogue::new(self, tile);
        let beside = finish.load_beside(0)?;
        let sums = c.mma_wait(&sums, 0);
        self.stages.release(c, is_leader, first + (shape.count - 1));
        finish.rounds(&sums, beside)
    }
}
