//! Schedulers of tiles that one matrix makes: a work-group for each.
use atomc_ir::Diagnostic;

use super::{Tile, TileSize};
use crate::code::Int;
use crate::simt::gemm::contract::Contraction;
use crate::simt::launch::{self, Kernel};
use crate::{KernelSpec, Tasks};

/// Tiles of some panels and all rows of a step.
pub struct AllRows<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    size: TileSize,
}

impl<'s, 'k, 'a, 'c> AllRows<'s, 'k, 'a, 'c> {
    pub fn new(contraction: &'s Contraction<'k, 'a, 'c>, size: TileSize) -> AllRows<'s, 'k, 'a, 'c> {
        AllRows { contraction, size }
    }

    /// The work-group's.
    pub fn tile(&self) -> Tile<'c> {
        let c = self.contraction.matrix.c;
        Tile::from_row(c.group() * self.size.panels, c.int(0), self.size.columns)
    }

    pub fn tasks(&self) -> Tasks {
        Tasks::Fixed(self.contraction.panels().div_ceil(self.size.panels))
    }
}

/// Tiles of some panels and some rows. Those of the same rows follow each other. Several
/// work-groups may make a tile together, each of a part of the weight's columns.
pub struct Grid<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    kernel: &'s Kernel<'a, 'c>,
    size: TileSize,
    splits: usize,
}

impl<'s, 'k, 'a, 'c> Grid<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        kernel: &'s Kernel<'a, 'c>,
        size: TileSize,
    ) -> Grid<'s, 'k, 'a, 'c> {
        Grid { contraction, kernel, size, splits: 1 }
    }

    /// With so many work-groups for each tile.
    pub fn split(self, splits: usize) -> Grid<'s, 'k, 'a, 'c> {
        Grid { splits, ..self }
    }

    /// Tiles along the features.
    fn across(&self) -> usize {
        self.contraction.panels().div_ceil(self.size.panels)
    }

    /// `body` for the work-group's tile, if the step has some of its rows.
    pub fn with_tile(
        &self,
        spec: &KernelSpec,
        body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let (c, across) = (self.contraction.matrix.c, self.across());
        let tile = if self.splits == 1 { c.group() } else { c.group() / self.splits };
        let (number, row): (Int<'c>, Int<'c>) = (tile % across, tile / across * self.size.columns);
        launch::when_in_step(c, spec, self.kernel, row, || {
            body(Tile::from_row(number * self.size.panels, row, self.size.columns))
        })
    }

    pub fn tasks(&self) -> Tasks {
        self.kernel.row_tasks(self.size.columns, self.across() * self.splits)
    }
}
