//! What both contraction families share: the weight's panels as fragments, and the epilogue on results as lanes hold them.
use atomc_ir::{DType, Diagnostic, Graph, Op};

use crate::KernelSpec;
use crate::code::{Int, Ptr, Vector};
use crate::contraction::Parts;
use crate::row::{At, Col, unsupported};
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, Matrix};
use crate::tuning::Kind;

/// Sizes of the contraction of a body, before there is a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub dtype: DType,
    /// Rows of the weight that are multiplied, and its columns.
    pub rows: usize,
    pub depth: usize,
    /// Pieces of the result.
    pub pieces: usize,
    /// Whether the rows come from memory as they are.
    pub plain: bool,
}

impl Sizes {
    pub fn of(body: &Graph) -> Result<Sizes, Diagnostic> {
        let linear = body.ids().find(|&id| matches!(body.op(id), Op::Linear { .. }));
        let made = || {
            let weight = body.ty(body.operands(linear?)[1]).as_tensor()?;
            let width = body.ty(*body.outputs().first()?).as_tensor()?.shape.row()?;
            let all = body.ty(linear?.into()).as_tensor()?.shape.last()?;
            let x = body.operands(linear?)[0];
            let plain = matches!(body.op(x.node), Op::Input { .. });
            let plain = plain && body.ty(x).as_tensor()?.dtype == weight.dtype;
            Some(Sizes {
                dtype: weight.dtype,
                rows: all,
                depth: weight.shape.last()?,
                pieces: all / width.max(1),
                plain,
            })
        };
        made().ok_or_else(|| unsupported("a contraction family without a contraction"))
    }
}

/// What the best numbers of a schedule depend on.
pub fn tuned_by(spec: &KernelSpec) -> Result<(Kind, Vec<usize>), Diagnostic> {
    let s = Sizes::of(spec.body)?;
    let kind = Kind::Gemm { dtype: s.dtype.name(), plain: s.plain, pieces: s.pieces };
    Ok((kind, vec![s.rows, s.depth, spec.tokens]))
}

/// A contraction on a GPU.
pub struct Contraction<'k, 'a, 'c> {
    pub parts: Parts<'k, 'a, 'c>,
    pub matrix: Matrix<'a, 'c>,
}

impl<'k, 'a, 'c> Contraction<'k, 'a, 'c> {
    pub fn new(kernel: &'k Kernel<'a, 'c>) -> Result<Contraction<'k, 'a, 'c>, Diagnostic> {
        let parts = Parts::new(kernel)?;
        Ok(Contraction { matrix: Matrix::new(kernel.code, parts.w.ty.dtype), parts })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.matrix.c
    }

    /// Panels of the result, its padding included.
    pub fn panels(&self) -> usize {
        self.parts.kernel.rows.padded(self.parts.to) / self.code().arch.memory.panel
    }

    /// Where the panel of each piece that makes a panel of the result begins. For the result's padding it is the last: what
    /// is computed of it there is stored as zeros.
    pub fn weights(&self, panel: Int<'c>) -> Vec<Ptr<'c>> {
        let panel = self.made(panel);
        self.parts.starts().map(|start| self.weight_panel(panel, self.code().int(start / 16))).collect()
    }

    /// A panel of the result that there are weights for.
    pub fn made(&self, panel: Int<'c>) -> Int<'c> {
        self.code().smaller(panel, self.parts.width().div_ceil(16) - 1)
    }

    /// Where a panel of the weight begins, counted from a first one. Weights may be larger than 32 bits count.
    pub fn weight_panel(&self, panel: Int<'c>, first: Int<'c>) -> Ptr<'c> {
        let (c, w) = (self.code(), &self.parts.w);
        let bytes = c.arch.memory.panel * w.stride * w.ty.dtype.size();
        let number = c.to_i64(panel + first);
        c.at(w.ptr, number * bytes)
    }

    /// The epilogue for one token and some consecutive features of it, from their sums.
    pub fn finish(&self, token: Int<'c>, col: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let c = self.code();
        c.set_lanes(self.matrix.layout.results);
        let at = At { row: token, head: None, col: Col::Var(col) };
        let lanes = self.parts.result(at, sums)?;
        self.parts.kernel.rows.store_padded(lanes, self.parts.to, at);
        Ok(())
    }

    /// The epilogue for as many features as a vector has, with what was [asked for](Parts::beside) early.
    pub fn finish_at(&self, at: At<'c>, sums: &[Vector<'c>], beside: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let lanes = self.parts.result_with(at, sums, beside)?;
        self.parts.kernel.rows.store_padded(lanes, self.parts.to, at);
        Ok(())
    }

    /// Adds the products of fragments: `sums[i][j] += a[i] * b[j]`.
    pub fn multiply(&self, a: &[Fragment<'c>], b: &[Fragment<'c>], sums: &mut [Vector<'c>]) {
        for (a, sums) in a.iter().zip(sums.chunks_mut(b.len())) {
            self.matrix.products(a, b, sums);
        }
    }
}
