//! What both contraction families of the host share: panels in memory, rows staged, sums finished.
use atomc_ir::Diagnostic;

use super::LANES;
use super::dot::Dot;
use crate::code::{Code, Int, Ptr, Vector};
use crate::contraction::Parts;
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand};

/// A contraction on the host.
pub struct Contraction<'k, 'a, 'c> {
    parts: Parts<'k, 'a, 'c>,
    pub dot: Dot,
}

impl<'k, 'a, 'c> Contraction<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Contraction<'k, 'a, 'c>, Diagnostic> {
        let parts = Parts::new(kernel)?;
        Ok(Contraction { dot: Dot::new(kernel.code, parts.w.ty.dtype), parts })
    }

    fn code(&self) -> &'a Code<'c> {
        self.parts.kernel.code
    }

    /// Panels of the result.
    pub fn panels(&self) -> usize {
        self.parts.width().div_ceil(LANES)
    }

    pub fn pieces(&self) -> usize {
        self.parts.starts().len()
    }

    /// Groups of columns to sum over.
    pub fn groups(&self) -> usize {
        self.parts.w.stride / self.dot.group
    }

    pub fn panel_bytes(&self) -> usize {
        self.code().arch.memory.panel * self.parts.w.stride * self.parts.w.ty.dtype.size()
    }

    /// Where panel `panel` of each piece begins.
    pub fn weights(&self, panel: Int<'c>) -> Vec<Ptr<'c>> {
        let c = self.code();
        let first = |start: usize| (panel + start / c.arch.memory.panel) * self.panel_bytes();
        self.parts.starts().map(|start| c.at(self.parts.w.ptr, first(start))).collect()
    }

    /// The rows of x in memory, if they are there in the weight's type.
    pub fn rows_in_memory(&self) -> Option<(Ptr<'c>, usize)> {
        self.parts.rows_in_memory().map(|x| (x.ptr, x.stride * x.ty.dtype.size()))
    }

    /// Computes `count` rows of x into memory at `to`; returns the bytes from row to row.
    pub fn stage(&self, to: Ptr<'c>, count: usize) -> Result<usize, Diagnostic> {
        let (c, rows) = (self.code(), &self.parts.kernel.rows);
        let mut ty = self.parts.w.ty.clone();
        ty.shape = rows.shape(self.parts.x)?.shape.clone();
        let staged = Operand { ptr: to, ty, stride: self.parts.w.stride };
        let mut result = Ok(());
        c.repeat(0, count, 1, |row| {
            result = rows.prepare(self.parts.x, row, None);
            c.repeat(0, staged.stride, LANES, |col| {
                let at = At { row, head: None, col: Col::Var(col) };
                match rows.eval(self.parts.x, at) {
                    Ok(lanes) => rows.store_padded(lanes, &staged, at),
                    Err(e) => result = Err(e),
                }
            });
        });
        result.map(|()| staged.stride * staged.ty.dtype.size())
    }

    /// The epilogue for one row and panel: `sums` has one vector for each piece.
    pub fn finish(&self, row: Int<'c>, panel: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.parts.kernel.rows);
        let at = At { row, head: None, col: Col::Var(panel * LANES) };
        let lanes = self.parts.result(at, sums)?;
        rows.store_padded(lanes, self.parts.to, at);
        if self.panels() * LANES < rows.padded(self.parts.to) {
            c.when(c.equal(panel, self.panels() - 1), || {
                let at = At { col: Col::Const(self.panels() * LANES), ..at };
                c.store_floats(rows.address(self.parts.to, at), c.zero(), self.parts.to.ty.dtype);
            });
        }
        Ok(())
    }
}
