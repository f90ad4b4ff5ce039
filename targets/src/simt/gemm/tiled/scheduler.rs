//! The tile scheduler: every work-group has one tile, of 128 tokens. Tiles of the same tokens
//! follow each other. Nothing else knows which tiles there are, of which panels of the weight they
//! are made, or which rows their columns are, so a grouped product would be another scheduler here.
use atomc_ir::Diagnostic;

use super::shape::{Shape, TOKENS};
use crate::code::{Int, Ptr};
use crate::simt::gemm::contract::{Contraction, Panel};
use crate::simt::launch::{self, Kernel};
use crate::{KernelSpec, Tasks};

/// The tiles of a contraction, one for each work-group.
pub struct OneTile<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    kernel: &'s Kernel<'a, 'c>,
    shape: Shape,
}

/// What a work-group makes: some panels of the result, of the columns of a tile.
#[derive(Clone, Copy)]
pub struct WorkTile<'c> {
    /// The first panel of the result, and the first token.
    panel: Int<'c>,
    token: Int<'c>,
}

impl<'s, 'k, 'a, 'c> OneTile<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        kernel: &'s Kernel<'a, 'c>,
        shape: Shape,
    ) -> OneTile<'s, 'k, 'a, 'c> {
        OneTile { contraction, kernel, shape }
    }

    /// Tiles along the features.
    fn across(&self) -> usize {
        self.contraction.panels().div_ceil(self.shape.tile_panels())
    }

    /// `body` for the work-group's tile, if the step has some of its tokens.
    pub fn work_tile(
        &self,
        spec: &KernelSpec,
        body: impl FnOnce(WorkTile<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let (c, across) = (self.contraction.matrix.c, self.across());
        let (number, token) = (c.group() % across, c.group() / across * TOKENS);
        launch::when_in_step(c, spec, self.kernel, token, || {
            body(WorkTile { panel: number * self.shape.tile_panels(), token })
        })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        self.kernel.row_tasks(TOKENS, self.across())
    }
}

impl<'c> WorkTile<'c> {
    /// The first panel of the result.
    pub fn panel(&self) -> Int<'c> {
        self.panel
    }

    /// Where a panel of the weight begins: that of a panel of the result, of the piece that begins
    /// at a panel.
    pub fn weight(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Ptr<'c> {
        contraction.weight_panel(panel, piece, None)
    }

    /// This panel, by which scales are found.
    pub fn weight_of(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Panel<'c> {
        contraction.numbered(panel + piece, None)
    }

    /// The weight's panels of all pieces, of a panel of the result.
    pub fn weights_of(&self, contraction: &Contraction<'_, '_, 'c>, panel: Int<'c>) -> Vec<Panel<'c>> {
        contraction.panels_of(panel, None)
    }

    /// The row of x that a column is multiplied of. Those of the columns behind it follow it.
    pub fn source(&self, column: Int<'c>) -> Int<'c> {
        self.token + column
    }

    /// The row of x of the first column.
    pub fn first_source(&self) -> Int<'c> {
        self.token
    }

    /// The row of the result that a column is. Those of the columns behind it follow it.
    pub fn result(&self, column: Int<'c>) -> Int<'c> {
        self.token + column
    }
}
