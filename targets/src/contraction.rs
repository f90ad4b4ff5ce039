//! What both contraction families share, on every target: which values they are made of, and what happens to the sums.
use atomc_ir::{Diagnostic, Layout, Op, Value};

use crate::code::Vector;
use crate::kernel::Kernel;
use crate::row::{At, Operand, unsupported};

/// A contraction `x @ w^T` inside a kernel, with its result as pieces of equal width that the epilogue reads side by side.
pub struct Parts<'k, 'a, 'c> {
    pub kernel: &'k Kernel<'a, 'c>,
    pub x: Value,
    pub w: Operand<'c>,
    /// Values that hold sums, and the first weight row of each.
    pieces: Vec<(Value, usize)>,
    linear: Value,
    out: Value,
    pub to: &'k Operand<'c>,
}

impl<'k, 'a, 'c> Parts<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Parts<'k, 'a, 'c>, Diagnostic> {
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
        Ok(Parts { kernel, x: operands[0], w, pieces, linear, out, to })
    }

    /// The first weight row of each piece.
    pub fn starts(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.pieces.iter().map(|&(_, start)| start)
    }

    /// Elements of a row of the result.
    pub fn width(&self) -> usize {
        self.to.ty.shape.row().unwrap_or(0)
    }

    /// The rows of x, if they lie in memory in the weight's type.
    pub fn rows_in_memory(&self) -> Option<&Operand<'c>> {
        let x = self.kernel.rows.operand(self.x).ok()?;
        (x.ty.dtype == self.w.ty.dtype).then_some(x)
    }

    /// Rows in memory that the epilogue reads where its result is, so that they can be asked for before the sums are there.
    fn rows_beside(&self) -> impl Iterator<Item = Value> {
        let (graph, shape) = (self.kernel.rows.graph, &self.to.ty.shape);
        graph.inputs().into_iter().filter(move |&v| {
            let as_wide = graph.ty(v).as_tensor().is_some_and(|t| t.layout == Layout::Rows && t.shape == *shape);
            as_wide && graph.users(v).iter().any(|&(user, _)| matches!(graph.op(user), Op::Map(_)))
        })
    }

    /// The bits of vectors of them.
    pub fn beside(&self, at: At<'c>) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let rows = &self.kernel.rows;
        let load = |x: &Operand<'c>| rows.code.load_bits(rows.address(x, at), x.ty.dtype);
        self.rows_beside().map(|v| rows.operand(v).map(load)).collect()
    }

    /// As [`Parts::result`], with what [`Parts::beside`] gave for the same place.
    pub fn result_with(
        &self,
        at: At<'c>,
        sums: &[Vector<'c>],
        beside: &[Vector<'c>],
    ) -> Result<Vector<'c>, Diagnostic> {
        let rows = &self.kernel.rows;
        for (v, &bits) in self.rows_beside().zip(beside) {
            rows.bind(v, rows.code.widen(bits, rows.operand(v)?.ty.dtype));
        }
        let result = self.result(at, sums);
        self.rows_beside().for_each(|v| rows.unbind(v));
        result
    }

    /// What the epilogue makes of the sums, one vector for each piece.
    pub fn result(&self, at: At<'c>, sums: &[Vector<'c>]) -> Result<Vector<'c>, Diagnostic> {
        let rows = &self.kernel.rows;
        for (&(v, _), &sum) in self.pieces.iter().zip(sums) {
            rows.bind(self.linear, sum);
            if v != self.linear {
                rows.unbind(v);
                let lanes = rows.eval(v, at)?;
                rows.bind(v, lanes);
            }
        }
        rows.eval(self.out, at)
    }
}
