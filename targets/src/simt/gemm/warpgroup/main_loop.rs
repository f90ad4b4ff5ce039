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
        let dtype = shape.codes.map_or(self.contraction.matrix.dtype, |codes| codes.dtype);
        let blocks = TileForm::Blocks { along: BLOCK, down: EIGHT };
        let operands = |turn: Int<'c>| {
            let at = self.stages.at(turn);
            ((at + rows, TileForm::Swizzled), (at, blocks))
        };
        if let Some(codes) = self.codes.as_ref().filter(|codes| codes.is.grouped()) {
            // Products of two groups of waves take turns: one scales sums while the other
            // multiplies.
            let mut failed = Ok(());
            let sums = c.for_each((0, shape.count, 1), &zero, |i, sums| {
                let turn = first + i;
                let scales = codes.of_stretch(self, tile, i).unwrap_or_else(|e| {
                    failed = Err(e);
                    codes.none(self)
                });
                self.stages.wait_full(c, turn);
                let own = c.mma_async(&zero, dtype, operands(turn), PRODUCTS);
                let own = c.mma_wait(&own, 0);
                self.stages.release(c, is_leader, turn);
                codes.add_scaled(self, &scales, &own, sums)
            });
            failed?;
            let finish = Epilogue::new(self, tile);
            let beside = finish.load_beside(0)?;
            return finish.rounds(&sums, beside);
        }
        let sums = c.for_each((0, shape.count, 1), &zero, |i, sums| {
            let turn = first + i;
            self.stages.wait_full(c, turn);
            let sums = c.mma_async(sums, dtype, operands(turn), PRODUCTS);
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
