//! The weight plan: how a buffer of parameters follows from the tensors of a checkpoint.
use atomc_dtype::{DType, Encode, Encoded, Fact, Order, Whole, nth_name};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// An expression over checkpoint tensors, of any number of axes. Conversion to the weight's type
/// and layout comes last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum WeightExpr {
    /// A tensor of the checkpoint by its name, which must have this shape: of any float type where
    /// the weight is of one, else of the weight's.
    Tensor { name: String, shape: Vec<usize> },
    /// As many tensors of this shape, one behind the other along an axis before theirs: `name` has
    /// a star in the place of their numbers. A checkpoint may have them in one tensor instead.
    Stack {
        name: String,
        count: usize,
        shape: Vec<usize>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        whole: Option<Whole>,
    },
    /// The parts one after the other along an axis.
    Concat { axis: usize, parts: Vec<WeightExpr> },
    /// `len` places of an axis from `start` on.
    Slice { axis: usize, start: usize, len: usize, of: Box<WeightExpr> },
    /// Each `step`-th place of an axis, from `start` on, which is below it.
    Every { axis: usize, step: usize, start: usize, of: Box<WeightExpr> },
    /// The value with zeros behind it along an axis, which then has `len` places.
    Pad { axis: usize, len: usize, of: Box<WeightExpr> },
    /// Of `parts` equal parts along an axis the one of this rank: number `rank * parts / ranks`.
    Shard { axis: usize, parts: usize, of: Box<WeightExpr> },
    /// The values and a constant, added in f32.
    Offset { by: f32, of: Box<WeightExpr> },
    /// Columns of each matrix as rows.
    Transpose { of: Box<WeightExpr> },
    /// The numbers of a tensor row by row under another shape.
    View { shape: Vec<usize>, of: Box<WeightExpr> },
    /// The first `len` codes of type `to` along one of the last two axes, of words of type `from`.
    Unpack { from: DType, to: DType, axis: usize, len: usize, order: Order, of: Box<WeightExpr> },
    /// Unpacked integers plus a number, as integers of type `to`.
    Shift { by: i32, to: DType, of: Box<WeightExpr> },
    /// The codes or the scales that a stored matrix of floats becomes, block by block; codes of 4
    /// bits as bytes of two.
    Encode { by: Encode, made: Encoded, of: Box<WeightExpr> },
    /// The same, if something else in the checkpoint is as expected. What is not unpacked there is
    /// of integers.
    Expect { is: Fact, told: Box<WeightExpr>, of: Box<WeightExpr> },
    /// Codes of a weight, if their scales are finite and not negative, and zero only where a whole
    /// block of rows and columns is.
    Scaled { block: [usize; 2], scale: Box<WeightExpr>, zero: Option<Box<WeightExpr>>, of: Box<WeightExpr> },
    /// Unpacked codes times the power of two of their block of rows and columns, as floats: the
    /// last step. Scales are as those of `Scaled`.
    Dequantise { block: [usize; 2], scale: Box<WeightExpr>, of: Box<WeightExpr> },
    /// Values that follow from the configuration alone (rotary frequencies).
    Const { values: Vec<f32> },
}

/// The outermost step of an expression. What a fold made of its operands stands in their place.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Term<'a, T> {
    /// See [`WeightExpr::Tensor`].
    Tensor { name: &'a str, shape: &'a [usize] },
    /// See [`WeightExpr::Stack`].
    Stack { name: &'a str, count: usize, shape: &'a [usize], whole: Option<&'a Whole> },
    /// See [`WeightExpr::Concat`].
    Concat { axis: usize, parts: Vec<T> },
    /// See [`WeightExpr::Slice`].
    Slice { axis: usize, start: usize, len: usize, of: T },
    /// See [`WeightExpr::Every`].
    Every { axis: usize, step: usize, start: usize, of: T },
    /// See [`WeightExpr::Pad`].
    Pad { axis: usize, len: usize, of: T },
    /// See [`WeightExpr::Shard`].
    Shard { axis: usize, parts: usize, of: T },
    /// See [`WeightExpr::Offset`].
    Offset { by: f32, of: T },
    /// See [`WeightExpr::Transpose`].
    Transpose { of: T },
    /// See [`WeightExpr::View`].
    View { shape: &'a [usize], of: T },
    /// See [`WeightExpr::Unpack`].
    Unpack { from: DType, to: DType, axis: usize, len: usize, order: Order, of: T },
    /// See [`WeightExpr::Shift`].
    Shift { by: i32, to: DType, of: T },
    /// See [`WeightExpr::Encode`].
    Encode { by: Encode, made: Encoded, of: T },
    /// See [`WeightExpr::Expect`].
    Expect { is: &'a Fact, told: T, of: T },
    /// See [`WeightExpr::Scaled`].
    Scaled { block: [usize; 2], scale: T, zero: Option<T>, of: T },
    /// See [`WeightExpr::Dequantise`].
    Dequantise { block: [usize; 2], scale: T, of: T },
    /// See [`WeightExpr::Const`].
    Const { values: &'a [f32] },
}

impl WeightExpr {
    /// Works something out for the expression: `make` makes it for each step, of what it made for
    /// the step's operands.
    pub fn fold<'a, T>(&'a self, make: &mut impl FnMut(Term<'a, T>) -> T) -> T {
        let term = match self {
            WeightExpr::Tensor { name, shape } => Term::Tensor { name, shape },
            WeightExpr::Stack { name, count, shape, whole } => {
                Term::Stack { name, count: *count, shape, whole: whole.as_ref() }
            }
            WeightExpr::Const { values } => Term::Const { values },
            &WeightExpr::Every { axis, step, start, ref of } => Term::Every { axis, step, start, of: of.fold(make) },
            &WeightExpr::Pad { axis, len, ref of } => Term::Pad { axis, len, of: of.fold(make) },
            &WeightExpr::Slice { axis, start, len, ref of } => Term::Slice { axis, start, len, of: of.fold(make) },
            &WeightExpr::Shard { axis, parts, ref of } => Term::Shard { axis, parts, of: of.fold(make) },
            &WeightExpr::Offset { by, ref of } => Term::Offset { by, of: of.fold(make) },
            WeightExpr::Transpose { of } => Term::Transpose { of: of.fold(make) },
            WeightExpr::View { shape, of } => Term::View { shape, of: of.fold(make) },
            &WeightExpr::Unpack { from, to, axis, len, order, ref of } => {
                Term::Unpack { from, to, axis, len, order, of: of.fold(make) }
            }
            &WeightExpr::Shift { by, to, ref of } => Term::Shift { by, to, of: of.fold(make) },
            &WeightExpr::Encode { by, made, ref of } => Term::Encode { by, made, of: of.fold(make) },
            WeightExpr::Scaled { block, scale, zero, of } => {
                let (of, scale) = (of.fold(make), scale.fold(make));
                Term::Scaled { block: *block, scale, zero: zero.as_ref().map(|zero| zero.fold(make)), of }
            }
            &WeightExpr::Dequantise { block, ref scale, ref of } => {
                let of = of.fold(make);
                Term::Dequantise { block, scale: scale.fold(make), of }
            }
            WeightExpr::Expect { is, told, of } => {
                let of = of.fold(make);
                Term::Expect { is, told: told.fold(make), of }
            }
            &WeightExpr::Concat { axis, ref parts } => {
                Term::Concat { axis, parts: parts.iter().map(|part| part.fold(make)).collect() }
            }
        };
        make(term)
    }

    /// Every tensor that the expression names, from left to right.
    pub fn sources(&self) -> Vec<Sources<'_>> {
        let mut all = Vec::new();
        self.fold(&mut |term| match term {
            Term::Tensor { name, shape } => all.push(Sources::One { name, shape }),
            Term::Stack { name, count, shape, whole } => all.push(Sources::Stack { name, count, shape, whole }),
            _ => {}
        });
        all
    }

    /// Name and shape of every tensor that the expression names, from left to right, those that may
    /// be in the place of others too.
    pub fn tensors(&self) -> Vec<(Cow<'_, str>, Cow<'_, [usize]>)> {
        self.sources().iter().flat_map(|sources| sources.each().chain(sources.whole())).collect()
    }
}

/// Tensors that an expression names together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
pub enum Sources<'a> {
    /// See [`WeightExpr::Tensor`].
    One { name: &'a str, shape: &'a [usize] },
    /// See [`WeightExpr::Stack`].
    Stack { name: &'a str, count: usize, shape: &'a [usize], whole: Option<&'a Whole> },
}

/// A tensor's name and shape.
type Named<'a> = (Cow<'a, str>, Cow<'a, [usize]>);

impl<'a> Sources<'a> {
    /// The tensors one by one.
    pub fn each(&self) -> impl Iterator<Item = Named<'a>> + use<'a> {
        let (stack, name, count, shape) = match *self {
            Sources::One { name, shape } => (false, name, 1, shape),
            Sources::Stack { name, count, shape, .. } => (true, name, count, shape),
        };
        let name = move |number| if stack { nth_name(name, number).into() } else { name.into() };
        (0..count).map(move |number| (name(number), shape.into()))
    }

    /// The one tensor that may be in their place.
    pub fn whole(&self) -> Option<Named<'a>> {
        let &Sources::Stack { count, shape, whole: Some(whole), .. } = self else { return None };
        let rest = shape.get(1..).unwrap_or_default();
        Some(((&whole.name[..]).into(), [&[count, whole.rows], rest].concat().into()))
    }
}
