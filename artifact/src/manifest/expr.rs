//! The weight plan: how a buffer of parameters follows from the tensors of a checkpoint.
use serde::{Deserialize, Serialize};

/// An expression over checkpoint tensors, of any number of axes. Conversion to the weight's type and layout comes last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum WeightExpr {
    /// A tensor of the checkpoint, of any float type, which must have this shape.
    Tensor { name: String, shape: Vec<usize> },
    /// The parts one after the other along an axis.
    Concat { axis: usize, parts: Vec<WeightExpr> },
    /// `len` places of an axis from `start` on.
    Slice { axis: usize, start: usize, len: usize, of: Box<WeightExpr> },
    /// Of `parts` equal parts along an axis the one of this rank: number `rank * parts / ranks`.
    Shard { axis: usize, parts: usize, of: Box<WeightExpr> },
    /// The values and a constant, added in f32.
    Offset { by: f32, of: Box<WeightExpr> },
    /// Values that follow from the configuration alone (rotary frequencies).
    Const { values: Vec<f32> },
}

/// The outermost step of an expression. What a fold made of its operands stands in their place.
#[derive(Clone, Debug, PartialEq)]
pub enum Term<'a, T> {
    /// See [`WeightExpr::Tensor`].
    Tensor { name: &'a str, shape: &'a [usize] },
    /// See [`WeightExpr::Concat`].
    Concat { axis: usize, parts: Vec<T> },
    /// See [`WeightExpr::Slice`].
    Slice { axis: usize, start: usize, len: usize, of: T },
    /// See [`WeightExpr::Shard`].
    Shard { axis: usize, parts: usize, of: T },
    /// See [`WeightExpr::Offset`].
    Offset { by: f32, of: T },
    /// See [`WeightExpr::Const`].
    Const { values: &'a [f32] },
}

impl WeightExpr {
    /// Works something out for the expression: `make` makes it for each step, of what it made for the step's operands.
    pub fn fold<'a, T>(&'a self, make: &mut impl FnMut(Term<'a, T>) -> T) -> T {
        let term = match self {
            WeightExpr::Tensor { name, shape } => Term::Tensor { name, shape },
            WeightExpr::Const { values } => Term::Const { values },
            &WeightExpr::Slice { axis, start, len, ref of } => Term::Slice { axis, start, len, of: of.fold(make) },
            &WeightExpr::Shard { axis, parts, ref of } => Term::Shard { axis, parts, of: of.fold(make) },
            &WeightExpr::Offset { by, ref of } => Term::Offset { by, of: of.fold(make) },
            &WeightExpr::Concat { axis, ref parts } => {
                Term::Concat { axis, parts: parts.iter().map(|part| part.fold(make)).collect() }
            }
        };
        make(term)
    }

    /// Name and shape of every tensor that the expression names, from left to right.
    pub fn tensors(&self) -> Vec<(&str, &[usize])> {
        let mut all = Vec::new();
        self.fold(&mut |term| {
            if let Term::Tensor { name, shape } = term {
                all.push((name, shape));
            }
        });
        all
    }
}
