//! What both contraction families share: where the operands are, and what happens to the sums.
use atomc_ir::{Diagnostic, Layout, Op, Value};

use super::LANES;
use super::dot::Dot;
use super::rows::store_padded;
use crate::code::{Code, Int, Ptr, Vector};
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, unsupported};

/// A contraction `x @ w^T` inside a kernel, with its result as pieces of equal width that the epilogue reads side by side.
pub struct Contraction<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    pub x: Value,
    w: Operand<'c>,
    pub dot: Dot,
    /// Values that hold sums, and the first weight row of each.
    pieces: Vec<(Value, usize)>,
    linear: Value,
    out: Value,
    to: &'k Operand<'c>,
}

impl<'k, 'a, 'c> Contraction<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Contraction<'k, 'a, 'c>, Diagnostic> {
        let graph = kernel.rows.graph;
        let linear = kernel.the("linear", |op| matches!(op, Op::Linear { .. }))?;
        let operands = graph.operands(linear.node);
        let w = kernel.rows.operand(operands[1])?.clone();
        if w.ty.layout != Layout::Panels {
            return Err(unsupported("the weight of a contraction must be packed"));
        }
        let (out, to) = kernel.output()?;
        let width = to.ty.shape.row().unwrap_or(0);
        let mut pieces = Vec::new();
        // A bias of all pieces may come before they are told apart.
        let mut whole = linear;
        while let [(user, _)] = graph.users(whole)[..]
            && matches!(graph.op(user), Op::Map(_))
        {
            whole = user.into();
        }
        for (user, _) in graph.users(whole) {
            if let Op::Slice { axis: 1, start, len } = graph.op(user) {
                if *len != width || start % kernel.code.arch.memory.panel != 0 {
                    return Err(unsupported(format!("a slice of {len} from {start} of a contraction")));
                }
                pieces.push((user.into(), *start));
            }
        }
        if pieces.is_empty() {
            if kernel.rows.shape(linear)?.shape.last() != Some(width) {
                return Err(unsupported("a contraction that is wider than the result"));
            }
            pieces.push((linear, 0));
        } else if pieces.len() != graph.users(whole).len() {
            return Err(unsupported("a contraction that is read whole and in slices"));
        }
        let dot = Dot::new(kernel.code, w.ty.dtype);
        Ok(Contraction { kernel, x: operands[0], w, dot, pieces, linear, out, to })
    }

    fn code(&self) -> &'a Code<'c> {
        self.kernel.code
    }

    /// Panels of the result.
    pub fn panels(&self) -> usize {
        self.to.ty.shape.row().unwrap_or(0).div_ceil(LANES)
    }

    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Groups of columns to sum over.
    pub fn groups(&self) -> usize {
        self.w.stride / self.dot.group
    }

    pub fn panel_bytes(&self) -> usize {
        self.code().arch.memory.panel * self.w.stride * self.w.ty.dtype.size()
    }

    /// Where panel `panel` of each piece begins.
    pub fn weights(&self, panel: Int<'c>) -> Vec<Ptr<'c>> {
        let c = self.code();
        let first = |start: usize| c.mul(c.add(panel, c.int(start / c.arch.memory.panel)), c.int(self.panel_bytes()));
        self.pieces.iter().map(|&(_, start)| c.at(self.w.ptr, first(start))).collect()
    }

    /// The rows of x in memory, if they are there in the weight's type.
    pub fn rows_in_memory(&self) -> Option<(Ptr<'c>, usize)> {
        let x = self.kernel.rows.operand(self.x).ok()?;
        (x.ty.dtype == self.w.ty.dtype).then(|| (x.ptr, x.stride * x.ty.dtype.size()))
    }

    /// Computes `count` rows of x into memory at `to`; returns the bytes from row to row.
    pub fn stage(&self, to: Ptr<'c>, count: usize) -> Result<usize, Diagnostic> {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let mut ty = self.w.ty.clone();
        ty.shape = rows.shape(self.x)?.shape.clone();
        let staged = Operand { ptr: to, ty, stride: self.w.stride };
        let mut result = Ok(());
        c.repeat(c.int(0), c.int(count), 1, |row| {
            result = rows.prepare(self.x, row, None);
            c.repeat(c.int(0), c.int(staged.stride), LANES, |col| {
                let at = At { row, head: None, col: Col::Var(col) };
                match rows.eval(self.x, at) {
                    Ok(lanes) => store_padded(rows, lanes, &staged, at),
                    Err(e) => result = Err(e),
                }
            });
        });
        result.map(|()| staged.stride * staged.ty.dtype.size())
    }

    /// The epilogue for one row and panel: `sums` has one vector for each piece.
    pub fn finish(&self, row: Int<'c>, panel: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let at = At { row, head: None, col: Col::Var(c.mul(panel, c.int(LANES))) };
        for (&(v, _), &sum) in self.pieces.iter().zip(sums) {
            rows.bind(self.linear, sum);
            if v != self.linear {
                rows.unbind(v);
                let lanes = rows.eval(v, at)?;
                rows.bind(v, lanes);
            }
        }
        let lanes = rows.eval(self.out, at)?;
        store_padded(rows, lanes, self.to, at);
        if self.panels() * LANES < rows.padded(self.to) {
            let last = c.b.build_int_compare(inkwell::IntPredicate::EQ, panel, c.int(self.panels() - 1), "");
            c.when(last.expect("integers"), || {
                let at = At { col: Col::Const(self.panels() * LANES), ..at };
                c.store_floats(rows.address(self.to, at), c.zero(), self.to.ty.dtype);
            });
        }
        Ok(())
    }
}
