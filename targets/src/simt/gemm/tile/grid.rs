//! Schedulers of tiles that one matrix makes: a work-group for each.
use atomc_artifact::manifest::Parts;
use atomc_ir::{Diagnostic, Family};

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

    /// Runs `body` for the work-group's tile, and returns the tasks.
    pub fn with_tile(&self, body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>) -> Result<Tasks, Diagnostic> {
        let c = self.contraction.matrix.c;
        body(Tile::from_row(c.group() * self.size.panels, c.int(0), self.size.columns))?;
        Ok(Tasks::Fixed(self.size.across(self.contraction)))
    }
}

/// Tiles of some panels and some rows. Those of the same rows follow each other. Several
/// work-groups may make a tile together, each of a part of the weight's columns.
pub struct Grid<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    kernel: &'s Kernel<'a, 'c>,
    size: TileSize,
    splits: Splits,
}

/// Most work-groups that share a tile: a power of two, as long as the launch has `most` at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    pub each: usize,
    pub most: usize,
}

impl Splits {
    pub const ONE: Splits = Splits { each: 1, most: 1 };

    /// Whether tiles may be shared at all.
    pub fn share(self) -> bool {
        self.each > 1
    }

    /// The work-groups of each tile, where there are `tiles`.
    pub fn of(self, tiles: usize) -> usize {
        self.parts(1, 1).sharing(tiles)
    }

    fn parts(self, per: usize, times: usize) -> Parts {
        Parts { per, times, splits: self.each, most: self.most }
    }
}

/// A work-group's part of a tile.
#[derive(Clone, Copy)]
pub struct Share<'c> {
    /// The tile.
    pub tile: Int<'c>,
    /// The number of this work-group among those that share it.
    pub number: Int<'c>,
    /// The logarithm of their number.
    pub shift: Int<'c>,
}

impl<'s, 'k, 'a, 'c> Grid<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        kernel: &'s Kernel<'a, 'c>,
        size: TileSize,
    ) -> Grid<'s, 'k, 'a, 'c> {
        Grid { contraction, kernel, size, splits: Splits::ONE }
    }

    /// With several work-groups for a tile, if the step has few tiles.
    pub fn split(self, splits: Splits) -> Grid<'s, 'k, 'a, 'c> {
        Grid { splits, ..self }
    }

    /// Whether the number of work-groups of a tile depends on the step's size: otherwise it is that
    /// of the largest step.
    pub fn follows_step(&self) -> bool {
        matches!(self.kernel.row_tasks(1, 1), Tasks::Tokens { .. })
    }

    /// The work-groups of every step, where their number does not depend on it.
    fn fixed(&self, spec: &KernelSpec) -> usize {
        self.splits.of(spec.tokens.div_ceil(self.size.columns) * self.size.across(self.contraction))
    }

    /// The work-group's part of a tile.
    fn share(&self, spec: &KernelSpec) -> Share<'c> {
        let c = self.contraction.matrix.c;
        if !self.splits.share() {
            return Share { tile: c.group(), number: c.int(0), shift: c.int(0) };
        }
        let shift = match self.follows_step() {
            true => {
                let rows = launch::step_size(c, spec, false);
                let tiles = (rows + (self.size.columns - 1)) / self.size.columns * self.size.across(self.contraction);
                let fits = |power: u32| c.pick_int(c.less(tiles, (self.splits.most >> power) + 1), 1, 0);
                (1..=self.splits.each.ilog2()).map(fits).fold(c.int(0), |shift, more| shift + more)
            }
            false => c.int(self.fixed(spec).ilog2() as usize),
        };
        let tile = c.group().shifted_down(shift);
        Share { tile, number: c.group() - tile.shifted_up(shift), shift }
    }

    /// Runs `body` for the work-group's tile, if the step has some of its rows, with the
    /// work-group's part of it.
    pub fn with_tile(
        &self,
        spec: &KernelSpec,
        body: impl FnOnce(Tile<'c>, Share<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let (c, across, share) = (self.contraction.matrix.c, self.size.across(self.contraction), self.share(spec));
        let (number, row): (Int<'c>, Int<'c>) = (share.tile % across, share.tile / across * self.size.columns);
        launch::when_in_step(c, spec, self.kernel, row, || {
            let tile = Tile::from_row(number * self.size.panels, row, self.size.columns);
            // Results of steps that decode have no rows to fill tiles with.
            let is_cut = spec.family == Family::Matvec && !spec.tokens.is_multiple_of(self.size.columns);
            body(if is_cut { tile.cut(c, spec.tokens) } else { tile }, share)
        })
    }

    pub fn tasks(&self, spec: &KernelSpec) -> Tasks {
        match self.splits.share() && self.follows_step() {
            true => Tasks::Shared { few: self.parts(), limit: 0, many: self.parts() },
            false => self.kernel.row_tasks(self.size.columns, self.size.across(self.contraction) * self.fixed(spec)),
        }
    }

    /// The tiles as parts that work-groups may share.
    pub fn parts(&self) -> Parts {
        self.splits.parts(self.size.columns, self.size.across(self.contraction))
    }
}
