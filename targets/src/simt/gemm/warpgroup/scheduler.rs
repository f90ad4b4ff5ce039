//! The tile scheduler: a work-group stays, and makes one tile after the other.
use atomc_ir::Diagnostic;

use super::Group;
use super::shape::{CONSUMERS, TOKENS};
use crate::KernelSpec;
use crate::code::Int;
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::tile::Tile;
use crate::simt::gemm::tile::experts::ExpertBlocks;
use crate::simt::launch::{Kernel, step_size};

/// Which tiles there are.
#[derive(Clone, Copy)]
pub enum Tiles<'c> {
    /// The tiles of all rows of a step: this number of times [`TOKENS`].
    Rows(Int<'c>),
    /// The tiles of all rows, for each of some heads that have a matrix each.
    Heads(Int<'c>, usize),
    /// The tiles of blocks of experts' rows.
    Experts(ExpertBlocks<'c>),
}

impl<'c> Tiles<'c> {
    pub fn new(
        contraction: &Contraction<'_, '_, 'c>,
        kernel: &Kernel<'_, 'c>,
        spec: &KernelSpec,
    ) -> Result<Tiles<'c>, Diagnostic> {
        if contraction.parts.experts().is_some() {
            return Ok(Tiles::Experts(ExpertBlocks::new(contraction, spec)?));
        }
        let c = contraction.matrix.c;
        let times = (step_size(c, spec, kernel.by_rows) + (TOKENS - 1)) / TOKENS;
        Ok(contraction.parts.heads().map_or(Tiles::Rows(times), |heads| Tiles::Heads(times, heads)))
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Runs `body` for each tile of this work-group, with the pipeline's index of its first K tile.
    pub(super) fn each_tile<R>(&self, tiles: Tiles<'c>, body: impl FnOnce(Tile<'c>, Int<'c>) -> R) -> R {
        match tiles {
            Tiles::Rows(times) => self.each_of_rows(times, None, body),
            Tiles::Heads(times, heads) => self.each_of_rows(times, Some(heads), body),
            Tiles::Experts(blocks) => self.each_of_experts(blocks, body),
        }
    }

    /// Tiles of the same features are made at the same time, so that weights are read once.
    fn each_of_rows<R>(&self, times: Int<'c>, heads: Option<usize>, body: impl FnOnce(Tile<'c>, Int<'c>) -> R) -> R {
        let across = self.shape.across;
        let tiles = times * (across * heads.unwrap_or(1));
        self.each_number(tiles, |number, index| {
            let column = number / times;
            let token = (number - column * times) * TOKENS;
            let panel = |column: Int<'c>| column * self.shape.tile_panels();
            let tile = match heads {
                None => Tile::from_row(panel(column), token, TOKENS),
                Some(_) => Tile::from_row(panel(column % across), token, TOKENS).of_head(column / across),
            };
            (body(tile, index), index + self.shape.count)
        })
    }

    /// Tiles of the same block are made at the same time, and then those of the same expert.
    fn each_of_experts<R>(&self, blocks: ExpertBlocks<'c>, body: impl FnOnce(Tile<'c>, Int<'c>) -> R) -> R {
        let (c, across) = (self.code(), self.shape.across);
        self.each_number(blocks.most(c) * across, |number, index| {
            let (block, panel) = (number / across, number % across * self.shape.tile_panels());
            let has_expert = blocks.has_expert(c, block);
            let made = c.when(has_expert, || body(blocks.tile(c, block, panel), index));
            (made, c.pick_int(has_expert, index + self.shape.count, index))
        })
    }

    /// Runs `body` for the number of each of this work-group's tiles, with the pipeline's index.
    /// The body returns the index of the next tile's first K tile, too.
    fn each_number<R>(&self, tiles: Int<'c>, body: impl FnOnce(Int<'c>, Int<'c>) -> (R, Int<'c>)) -> R {
        let c = self.code();
        let mut made = None;
        c.carry((c.group(), tiles, self.shape.groups), c.int(0), |number, index| {
            let (built, next) = body(number, index);
            made = Some(built);
            next
        });
        made.expect("a body that was built")
    }

    /// Finishes rows that have no expert, by the threads that multiply.
    pub(super) fn finish_without_expert(&self, tiles: Tiles<'c>) -> Result<(), Diagnostic> {
        let Tiles::Experts(blocks) = tiles else { return Ok(()) };
        let (c, across, panels) = (self.code(), self.shape.across, self.shape.tile_panels());
        c.repeat(c.group(), blocks.most(c) * across, self.shape.groups, |number| {
            let (block, panel) = (number / across, number % across * panels);
            blocks.finish_without(self.contraction, CONSUMERS, block, (panel, panels))
        })
    }
}
