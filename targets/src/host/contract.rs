//! The parts that both contraction families of the host share: panels in memory, staged rows,
//! finished sums.
use atomc_ir::{DType, Diagnostic, Layout, TensorType, Value};

use super::codes::{Codes, Panel, Products, stage_groups};
use super::dot::Dot;
use super::{Host, LANES};
use crate::code::{Code, Int, Ptr, Vector};
use crate::contraction::Parts;
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, unsupported};

/// Bytes of a cache line: the space before unpacked rows that holds the number of the first of
/// them, and the alignment of their scales.
pub const LINE: usize = 64;

/// A contraction on the host.
pub struct Contraction<'k, 'a, 'c> {
    parts: Parts<'k, 'a, 'c>,
    /// The products of the weight's type, or of the rows' type if the weight is quantised.
    pub dot: Dot,
    /// The head that is multiplied, if each has a matrix of its own.
    head: Option<Int<'c>>,
}

impl<'k, 'a, 'c> Contraction<'k, 'a, 'c> {
    pub fn new(c: &Host<'c>, kernel: &'k Kernel<'a, 'c>) -> Result<Contraction<'k, 'a, 'c>, Diagnostic> {
        let parts = Parts::new(kernel)?;
        let (x, weight) = (kernel.rows.shape(parts.x)?, parts.w.ty.dtype);
        let dtype = match x.layout {
            _ if !weight.is_code() => weight,
            // Codes are numbers of bf16. Scaled codes are not.
            Layout::Scaled(_) => {
                let sums = Codes::of(*c.core, &parts)?.is_some_and(|codes| codes.scales_sums());
                if sums { DType::BF16 } else { DType::F32 }
            }
            _ => x.dtype,
        };
        Ok(Contraction { dot: Dot::new(c, dtype), parts, head: None })
    }

    /// The weight, if it is stored as codes.
    pub fn codes(&self) -> Result<Option<Codes<'a, 'c>>, Diagnostic> {
        Codes::of(self.dot.core, &self.parts)
    }

    /// Products of `count` rows of x with codes, at most some of them together; returns the bytes
    /// of scratch that they take at `to`, too.
    pub fn products(
        &self,
        codes: Codes<'a, 'c>,
        to: Ptr<'c>,
        count: usize,
        together: usize,
    ) -> Result<(Products<'a, 'c>, usize), Diagnostic> {
        Products::new(&self.parts, codes, to, count, together)
    }

    /// Stages a row of x for them.
    pub fn stage_codes(&self, products: &Products<'a, 'c>, row: Int<'c>) -> Result<(), Diagnostic> {
        products.stage(&self.parts, row)
    }

    pub fn code(&self) -> &'a Code<'c> {
        self.parts.kernel.code
    }

    /// The experts of rows, and rows of the result for each of x.
    pub fn experts(&self) -> Result<(Value, usize), Diagnostic> {
        let experts = self.parts.experts().ok_or_else(|| unsupported("a product without experts"))?;
        Ok((experts, self.parts.rows_of_x()?))
    }

    /// The number of heads, if each has a matrix of its own.
    pub fn heads(&self) -> Option<usize> {
        self.parts.heads()
    }

    /// The number of experts.
    pub fn expert_count(&self) -> usize {
        self.parts.w.ty.shape.0[0].fixed().unwrap_or(1)
    }

    /// The contraction with the matrix of an expert.
    pub fn of_expert(&self, expert: Int<'c>) -> Contraction<'k, 'a, 'c> {
        let (c, mut parts) = (self.code(), self.parts.clone());
        let rows = parts.w.ty.shape.0[1].fixed().unwrap_or(0);
        let bytes = c.arch.memory.packed_bytes(parts.w.ty.dtype, rows, parts.w.stride);
        parts.w.ptr = c.at(parts.w.ptr, expert * bytes);
        Contraction { parts, dot: self.dot, head: self.heads().map(|_| expert) }
    }

    /// Panels of the matrix of an expert.
    pub fn matrix_panels(&self) -> usize {
        self.code().arch.memory.panels(self.parts.w.ty.shape.0[1].fixed().unwrap_or(0))
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
        self.code().arch.memory.panel_bytes(self.parts.w.ty.dtype, self.parts.w.stride)
    }

    /// As [`Contraction::panel_bytes`], of floats instead of codes.
    pub fn float_panel_bytes(&self) -> usize {
        self.code().arch.memory.panel_bytes(self.dot.dtype, self.parts.w.stride)
    }

    /// Where panel `panel` of each piece begins.
    pub fn weights(&self, panel: Int<'c>) -> Vec<Ptr<'c>> {
        self.weight_panels(panel, None).map(|panel| panel.ptr).collect()
    }

    /// Panel `panel` of each piece. The panel that is read next lies `ahead` panels further on.
    pub fn weight_panels(&self, panel: Int<'c>, ahead: Option<Int<'c>>) -> impl Iterator<Item = Panel<'c>> {
        let c = self.code();
        self.parts.starts().map(move |start| {
            let number = panel + start / c.arch.memory.panel;
            Panel { number, ptr: c.at(self.parts.w.ptr, number * self.panel_bytes()), ahead }
        })
    }

    /// The rows of x in memory, if they are there in the type of products.
    pub fn rows_in_memory(&self) -> Option<(Ptr<'c>, usize)> {
        let x = self.parts.kernel.rows.operand(self.parts.x).ok().filter(|_| self.heads().is_none())?;
        let floats = x.ty.dtype == self.dot.dtype && x.ty.layout == Layout::Rows;
        floats.then(|| (x.ptr, x.stride * x.ty.dtype.size()))
    }

    /// Bytes of a row of codes in memory as numbers of the type of products, if x is such.
    pub fn unpacked_row(&self) -> Option<usize> {
        let rows = &self.parts.kernel.rows;
        rows.scaled_group(self.parts.x)?;
        rows.operand(self.parts.x).ok()?;
        Some(self.row_bytes())
    }

    /// Unpacks quantised rows: as codes if a row has one scale, else scaled.
    pub fn unpack(&self, from: Int<'c>, end: Int<'c>, to: Ptr<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        c.repeat(from, end, 1, |row| self.unpack_row(row, c.at(to, (row - from) * self.row_bytes())))
    }

    /// Bytes of a row in the type of products, with its scales if there are several.
    pub fn row_bytes(&self) -> usize {
        let scales = self.scaled_spans().filter(|codes| codes.groups_of_x().is_some());
        self.codes_bytes() + scales.map_or(0, |codes| (4 * codes.scales_of_x()).next_multiple_of(LINE))
    }

    fn codes_bytes(&self) -> usize {
        self.parts.w.stride * self.dot.dtype.size()
    }

    /// The codes, if sums of spans are scaled.
    fn scaled_spans(&self) -> Option<Codes<'a, 'c>> {
        self.codes().ok().flatten().filter(Codes::scales_spans)
    }

    /// The factor of a span's sums, for an unpacked quantised row with several scales.
    pub fn span_scale(&self, row: Ptr<'c>, codes: &Codes<'a, 'c>, span: Int<'c>) -> Option<Vector<'c>> {
        let c = self.code();
        codes.groups_of_x()?;
        let at = c.at(row, codes.scale_of_x(span) * 4 + self.codes_bytes());
        Some(c.splat(c.load(c.cx.f32_type(), at, 4)))
    }

    /// A row of x in memory in the type of products, or its codes followed by their scales where
    /// there are several.
    pub fn unpack_row(&self, row: Int<'c>, to: Ptr<'c>) -> Result<(), Diagnostic> {
        let (c, rows, x) = (self.code(), &self.parts.kernel.rows, self.parts.x);
        let width = rows.shape(x)?.shape.last().unwrap_or(0);
        if let Some(group) = self.scaled_spans().and_then(|codes| codes.groups_of_x()) {
            let ty = TensorType::new(self.dot.dtype, rows.shape(x)?.shape.clone());
            let codes = Operand { ptr: to, ty, stride: self.parts.w.stride };
            return stage_groups(rows, x, row, group, &codes, c.at(to, self.codes_bytes()));
        }
        if self.head.is_some() {
            rows.prepare(x, row, self.head)?;
        }
        c.repeat(0, self.parts.w.stride, LANES, |col| {
            let at = At { row, head: self.head, col: Col::Var(col) };
            let lanes = if rows.has_row_scale(x) { rows.codes(x, at)? } else { rows.eval(x, at)? };
            let to = c.at(to, col * self.dot.dtype.size());
            // After a head comes the next head and no padding.
            let is_padded = self.head.is_none() || width == self.parts.w.stride;
            let lanes = if is_padded { lanes } else { c.choose(c.lanes_below(width - col), lanes, c.zero()) };
            c.store_floats(to, lanes, self.dot.dtype);
            Ok(())
        })
    }

    /// The factor of a quantised row's sums, if there is one for all.
    pub fn row_scale(&self, row: Int<'c>) -> Result<Option<Vector<'c>>, Diagnostic> {
        let (c, rows, x) = (self.code(), &self.parts.kernel.rows, self.parts.x);
        rows.has_row_scale(x).then(|| Ok(c.splat(rows.scale(x, row)?))).transpose()
    }

    /// Computes `count` rows of x into memory at `to`; returns the bytes from row to row.
    pub fn stage(&self, to: Ptr<'c>, count: usize) -> Result<usize, Diagnostic> {
        let c = self.code();
        c.repeat(0, count, 1, |row| self.stage_row(row, c.at(to, row * self.staged_row())))?;
        Ok(self.staged_row())
    }

    /// Bytes from one computed row to the next.
    pub fn staged_row(&self) -> usize {
        self.parts.w.stride * self.parts.w.ty.dtype.size()
    }

    /// Computes a row of x into memory at `to`.
    pub fn stage_row(&self, row: Int<'c>, to: Ptr<'c>) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.parts.kernel.rows);
        let mut ty = self.parts.w.ty.clone();
        ty.shape = rows.shape(self.parts.x)?.shape.clone();
        let staged = Operand { ptr: to, ty, stride: self.parts.w.stride };
        rows.prepare(self.parts.x, row, None)?;
        c.repeat(0, staged.stride, LANES, |col| {
            let at = At { row, head: None, col: Col::Var(col) };
            rows.store_padded(rows.eval(self.parts.x, at)?, &staged, At { row: c.int(0), ..at });
            Ok(())
        })
    }

    /// The epilogue for one row and panel: `sums` has one vector for each piece.
    pub fn finish(&self, row: Int<'c>, panel: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.parts.kernel.rows);
        let at = At { row, head: self.head, col: Col::Var(panel * LANES) };
        let lanes = self.parts.result(at, sums)?;
        if let Some(head) = self.head {
            self.finish_head(head, at, lanes);
            return Ok(());
        }
        rows.store_padded(lanes, self.parts.to, at);
        if self.panels() * LANES < rows.padded(self.parts.to) {
            c.when(c.equal(panel, self.panels() - 1), || {
                let at = At { col: Col::Const(self.panels() * LANES), ..at };
                c.store_floats(rows.address(self.parts.to, at), c.zero(), self.parts.to.ty.dtype);
            });
        }
        Ok(())
    }

    /// Stores a vector of a head. The head's last vector may be a partial one; after the last head
    /// come zeros.
    fn finish_head(&self, head: Int<'c>, at: At<'c>, lanes: Vector<'c>) {
        let (c, rows, to) = (self.code(), &self.parts.kernel.rows, self.parts.to);
        let (width, heads) = (self.parts.width(), self.heads().unwrap_or(1));
        let (dtype, place) = (to.ty.dtype, rows.address(to, self.parts.place_of(at)));
        let (col, whole) = (rows.column(at.col), width / LANES * LANES);
        if whole == width {
            c.store_floats(place, lanes, dtype);
        } else {
            c.when(c.less(col, whole), || c.store_floats(place, lanes, dtype));
            c.when(c.equal(col, whole), || c.store_some(place, lanes, dtype, width - whole));
        }
        let (end, padded) = (heads * width, rows.padded(to));
        if end < padded {
            let is_last = c.equal(head, heads - 1) & c.equal(col, (self.panels() - 1) * LANES);
            c.when(is_last, || {
                for first in (end..padded).step_by(LANES) {
                    let at = At { head: None, col: Col::Const(first), ..at };
                    c.store_some(rows.address(to, at), c.zero(), dtype, padded - first);
                }
            });
        }
    }
}
