//! The tile schedulers: every work-group has one tile, of 128 tokens or of a block of rows of one
//! expert. Tiles of the same tokens follow each other. Nothing else knows which tiles there are, of
//! which panels of the weight they are made, or which rows their columns are.
use atomc_ir::Diagnostic;

use super::shape::Shape;
use crate::code::{Int, Ptr};
use crate::simt::experts::Grouping;
use crate::simt::gemm::contract::{Contraction, Panel};
use crate::simt::launch::{self, Kernel};
use crate::simt::machine::Gpu;
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
    rows: Option<RowsOfExpert<'c>>,
}

/// The rows of the result that the columns of a tile are, if these are an expert's.
#[derive(Clone, Copy)]
struct RowsOfExpert<'c> {
    expert: Int<'c>,
    /// That of each column, -1 where there is none.
    list: Ptr<'c>,
    /// Rows for each of x.
    each: usize,
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
        let (number, token) = (c.group() % across, c.group() / across * self.shape.tokens());
        launch::when_in_step(c, spec, self.kernel, token, || {
            body(WorkTile { panel: number * self.shape.tile_panels(), token, rows: None })
        })
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        self.kernel.row_tasks(self.shape.tokens(), self.across())
    }
}

/// The tiles of a contraction with the weights of experts: of each block of rows of one expert.
pub struct Blocks<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    of: Grouping<'c>,
    from: Ptr<'c>,
    each: usize,
}

impl<'s, 'k, 'a, 'c> Blocks<'s, 'k, 'a, 'c> {
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Blocks<'s, 'k, 'a, 'c>, Diagnostic> {
        let (of, from) = Grouping::of(contraction.matrix.c, &contraction.parts, spec)?;
        Ok(Blocks { contraction, shape, of, from, each: contraction.parts.rows_of_x()? })
    }

    /// Tiles along the features.
    fn across(&self) -> usize {
        self.contraction.panels().div_ceil(self.shape.tile_panels())
    }

    /// Work-groups of the kernel.
    pub fn tasks(&self) -> Tasks {
        self.of.tasks(self.contraction.parts.choices(), self.across())
    }

    /// `body` for the work-group's tile, if it has one. Rows that have no expert are finished here.
    pub fn work_tile(&self, body: impl FnOnce(WorkTile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let (c, across, panels) = (self.contraction.matrix.c, self.across(), self.shape.tile_panels());
        let (panel, block) = (c.group() % across * panels, c.uniform(c.group() / across));
        let without = |row: &dyn Fn(Int<'c>) -> Int<'c>| {
            self.contraction.finish_zeros(self.shape.threads, (panel, panels), self.of.tile, row)
        };
        self.of.of_block((c, self.from), block, without, |expert, list| {
            let rows = RowsOfExpert { expert, list, each: self.each };
            body(WorkTile { panel, token: c.int(0), rows: Some(rows) })
        })
    }
}

impl<'c> WorkTile<'c> {
    fn expert(&self) -> Option<Int<'c>> {
        self.rows.map(|rows| rows.expert)
    }

    /// Whether each column has a row of its own, and does not follow the one before.
    pub fn is_listed(&self) -> bool {
        self.rows.is_some()
    }

    /// The first panel of the result.
    pub fn panel(&self) -> Int<'c> {
        self.panel
    }

    /// Where a panel of the weight begins: that of a panel of the result, of the piece that begins
    /// at a panel.
    pub fn weight(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Ptr<'c> {
        contraction.weight_panel(panel, piece, self.expert())
    }

    /// This panel, by which scales are found.
    pub fn weight_of(&self, contraction: &Contraction<'_, '_, 'c>, [panel, piece]: [Int<'c>; 2]) -> Panel<'c> {
        contraction.numbered(panel + piece, self.expert())
    }

    /// The weight's panels of all pieces, of a panel of the result.
    pub fn weights_of(&self, contraction: &Contraction<'_, '_, 'c>, panel: Int<'c>) -> Vec<Panel<'c>> {
        contraction.panels_of(panel, self.expert())
    }

    /// The row of x from which those are counted that columns from this one on are multiplied of.
    pub fn first_source(&self, column: Int<'c>) -> Int<'c> {
        if self.is_listed() { self.token } else { self.token + column }
    }

    /// The row of x that a column is multiplied of, counted from another: any where there is none.
    pub fn source(&self, c: &Gpu<'c>, first: Int<'c>, column: Int<'c>) -> Int<'c> {
        match self.rows {
            None => self.token + first + column,
            Some(_) => self.row(c, first + column).1,
        }
    }

    /// Where columns are counted from.
    pub fn columns(&self, first: Int<'c>) -> Int<'c> {
        if self.is_listed() { first } else { self.token + first }
    }

    /// The row of the result that such a column is, and the row of x.
    pub fn row(&self, c: &Gpu<'c>, column: Int<'c>) -> (Int<'c>, Int<'c>) {
        match self.rows {
            None => (column, column),
            Some(rows) => {
                let row = c.load_made_index(rows.list, column);
                (row, c.larger(row, 0) / rows.each)
            }
        }
    }

    /// `body` for such a row, if it is there.
    pub fn when_there(&self, c: &Gpu<'c>, row: Int<'c>, body: impl FnOnce()) {
        match self.rows {
            None => body(),
            Some(_) => c.when(c.less(0, row + 1), body),
        }
    }
}
