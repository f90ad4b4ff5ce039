//! The prologues of a product, read here once for schedules that stage rows themselves.
use atomc_ir::{DType, Diagnostic, Graph, Layout, Op, Reads, TensorType, Value, Values};
use inkwell::values::FloatValue;

use crate::code::{Code, Vector};
use crate::contraction::rows_of;
use crate::row::{At, Rows};
use crate::schedule::WhyNot;

/// How the rows of a contraction are made: from rows in memory of any type of floats, or from a
/// choice of such rows. A norm may scale them; it subtracts nothing.
#[derive(Clone, Copy, Debug)]
pub struct Prologue {
    /// The rows that come from memory, their type and width.
    pub from: Value,
    pub dtype: DType,
    pub width: usize,
    pub norm: Option<Norm>,
}

/// A norm. Apart from its weights it commutes with the product, so that sums can be scaled instead
/// of rows.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    pub value: Value,
    pub weights: Value,
    /// The type of the weights.
    pub dtype: DType,
    pub eps: f64,
}

impl Norm {
    /// Whether sums can be scaled instead of rows of a type: unscaled rows must fit its exponents.
    pub fn scales_sums(dtype: DType) -> bool {
        dtype == DType::BF16
    }
}

impl Prologue {
    pub fn of(body: &Graph) -> Result<Prologue, WhyNot> {
        let read = || {
            let (x, _) = rows_of(body)?;
            let Values::Normed(norm) = body.op(x.node).values() else { return Prologue::rows(body, x, None) };
            // A norm that subtracts the mean, or adds a bias, does not commute.
            let &[source, weights] = body.operands(x.node).as_slice() else { return None };
            let dtype = in_memory(body, weights).filter(|_| !norm.centred)?.dtype;
            Prologue::rows(body, source, Some(Norm { value: x, weights, dtype, eps: norm.eps }))
        };
        read().ok_or_else(|| WhyNot::new("rows are neither in memory nor a norm of rows in memory"))
    }

    /// The prologue of a value, if it is rows in memory or a choice of them.
    fn rows(body: &Graph, v: Value, norm: Option<Norm>) -> Option<Prologue> {
        let stored = if body.op(v.node).reads(0) == Reads::Chosen { body.operands(v.node)[0] } else { v };
        in_memory(body, stored)?;
        Prologue::as_stored(body, v).map(|rows| Prologue { norm, ..rows })
    }

    /// The prologue that leaves rows as they are stored.
    pub fn as_stored(body: &Graph, from: Value) -> Option<Prologue> {
        let ty = body.ty(from).as_tensor()?;
        Some(Prologue { from, dtype: ty.dtype, width: ty.shape.last()?, norm: None })
    }

    /// Whether sums are scaled by the norm, and not rows, where rows become numbers of a type.
    pub fn scales_sums(&self, dtype: DType) -> bool {
        self.norm.is_some() && Norm::scales_sums(dtype)
    }

    /// A vector of a row times the norm's weights, and times its scale if one is set.
    pub fn normed<'c>(
        &self,
        rows: &Rows<'_, 'c>,
        norm: Norm,
        [v, weights]: [Vector<'c>; 2],
        at: At<'c>,
    ) -> Result<Vector<'c>, Diagnostic> {
        rows.bind(self.from, v);
        rows.bind(norm.weights, weights);
        let made = rows.eval(norm.value, at);
        rows.unbind(self.from);
        rows.unbind(norm.weights);
        made
    }

    /// A sum of squares, and those of a vector.
    pub fn add_squares<'c>(c: &Code<'c>, sum: FloatValue<'c>, v: Vector<'c>) -> FloatValue<'c> {
        (c.float(sum) + c.sum(c.fmul(v, v))).v
    }

    /// The factor of a row's sums, from the sum of its squares.
    pub fn scale_of<'c>(&self, c: &Code<'c>, norm: Norm, squares: FloatValue<'c>) -> FloatValue<'c> {
        c.inverse_root(squares, self.width, norm.eps)
    }
}

/// The type of an operand that is stored row by row.
fn in_memory(body: &Graph, v: Value) -> Option<&TensorType> {
    let ty = body.ty(v).as_tensor().filter(|t| t.dtype.is_float() && t.layout == Layout::Rows);
    ty.filter(|_| matches!(body.op(v.node), Op::Input { .. }))
}
