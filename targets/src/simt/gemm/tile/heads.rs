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
    size: TileSize,
    heads: usize,
    rows: Int<'c>,
    /// Whether tiles are of whole rows of the padding, too.
    is_whole: bool,
}

impl<'s, 'k, 'a, 'c> PerHead<'s, 'k, 'a, 'c> {
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
        Ok(PerHead { contraction, size, heads, rows, is_whole: false })
    }

    /// Tiles have all their rows, as memory is padded to as many.
    pub fn whole(self) -> PerHead<'s, 'k, 'a, 'c> {
        PerHead { is_whole: true, ..self }
    }

    /// Runs `body` for the work-group's tile, if it has one, and returns the tasks.
    pub fn with_tile(&self, body: impl FnOnce(Tile<'c>) -> Result<(), Diagnostic>) -> Result<Tasks, Diagnostic> {
        let c = self.contraction.matrix.c;
        let (across, columns) = (self.size.across(self.contraction), self.size.columns);
        let (panel, place) = (c.group() % across * self.size.panels, c.uniform(c.group() / across));
        let (head, first) = (place % self.heads, place / self.heads * columns);
        c.when(c.less(first, self.rows), || {
            let count = c.smaller(self.rows - first, columns);
            let rows = if self.is_whole { Rows::From(first) } else { Rows::Run { first, count } };
            body(Tile { panel, columns, matrix: Matrix::Head(head), rows, each: 1 })
        })?;
        Ok(self.contraction.parts.kernel.row_tasks(columns, self.heads * across))
    }
}
