//! The prologues of a product, read here once for schedules that stage rows themselves.
use atomc_ir::{DType, Graph, Layout, Op, Reads, TensorType, Value, Values};

use crate::schedule::WhyNot;

/// How the rows of a contraction are made.
#[derive(Clone, Copy, Debug)]
pub enum Prologue {
    /// Rows in memory, of any type of floats, or a choice of such rows.
    Rows(Value),
    /// A norm of such rows that scales them and subtracts nothing.
    Norm { rows: Value, norm: Norm },
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
            let product = body.ids().find(|&id| body.op(id).is_contraction())?;
            let x = body.operands(product)[0];
            let Values::Normed(norm) = body.op(x.node).values() else { return rows(body, x).map(Prologue::Rows) };
            // A norm that subtracts the mean, or adds a bias, does not commute.
            let &[source, weights] = body.operands(x.node).as_slice() else { return None };
            let dtype = in_memory(body, weights).filter(|_| !norm.centred)?.dtype;
            Some(Prologue::Norm { rows: rows(body, source)?, norm: Norm { value: x, weights, dtype, eps: norm.eps } })
        };
        read().ok_or_else(|| WhyNot::new("rows are neither in memory nor a norm of rows in memory"))
    }

    /// The rows that come from memory.
    pub fn source(self) -> Value {
        match self {
            Prologue::Rows(rows) | Prologue::Norm { rows, .. } => rows,
        }
    }

    pub fn norm(self) -> Option<Norm> {
        match self {
            Prologue::Rows(_) => None,
            Prologue::Norm { norm, .. } => Some(norm),
        }
    }
}

/// The value, if it is rows in memory or a choice of them.
fn rows(body: &Graph, v: Value) -> Option<Value> {
    let from = if body.op(v.node).reads(0) == Reads::Chosen { body.operands(v.node)[0] } else { v };
    in_memory(body, from).map(|_| v)
}

/// The type of an operand that is stored row by row.
fn in_memory(body: &Graph, v: Value) -> Option<&TensorType> {
    let ty = body.ty(v).as_tensor().filter(|t| t.dtype.is_float() && t.layout == Layout::Rows);
    ty.filter(|_| matches!(body.op(v.node), Op::Input { .. }))
}
