//! The scheduler of tiles of heads that have a matrix each: work-groups for each panel, each head
//! and each block of rows.
use atomc_ir::Diagnostic;

use super::{Matrix, Rows, Tile, TileSize};
use crate::code::Int;
use crate::row::unsupported;
use crate::simt::gemm::contract::Contraction;
use crate::simt::launch;
use crate::{KernelSpec, Tasks};

pub struct PerHead<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    columns: usize,
    heads: usize,
    rows: Int<'c>,
}

impl<'s, 'k, 'a, 'c> PerHead<'s, 'k, 'a, 'c> {
    /// Tiles are of one panel.
    pub fn new(
        contraction: &'s Contraction<'k, 'a, 'c>,
        size: TileSize,
        spec: &KernelSpec,
    ) -> Result<PerHead<'s, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let heads = parts.heads().ok_or_else(|| unsupported("a product of heads without heads"))?;
        let results = contraction.matrix.layout.results;
        if !parts.width().is_multiple_of(results) {
            return Err(unsupported(format!("heads of {} features, {results} of which a lane has", parts.width())));
        }
        let rows = launch::step_size(c, spec, parts.kernel.by_rows);
        Ok(PerHead { contraction, columns: size.columns, heads, rows })
    }

    /// `body` for the work-group's tile, if it has one.
    pub fn with_tile(&self, body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let c = self.contraction.matrix.c;
        let panels = self.contraction.panels();
        let (panel, place) = (c.group() % panels, c.uniform(c.group() / panels));
        let (head, first) = (place % self.heads, place / self.heads * self.columns);
        c.when(c.less(first, self.rows), || {
            let count = c.smaller(self.rows - first, self.columns);
            let (matrix, rows) = (Matrix::Head(head), Rows::Run { first, count });
            body(Tile { panel, columns: self.columns, matrix, rows, each: 1 })
        })
    }

    pub fn tasks(&self) -> Tasks {
        let times = self.heads * self.contraction.panels();
        self.contraction.parts.kernel.row_tasks(self.columns, times)
    }
}
