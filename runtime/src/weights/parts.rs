//! Which parts of which tensors a weight is made of: the expression of its plan, worked out for a rank.
use super::Rank;
use super::pack::Piece;
use crate::checkpoint::Tensor;
use atomc_artifact::manifest::{Term, WeightExpr};
use std::ops::Range;

/// Where numbers come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    Tensor { name: &'a str, shape: &'a [usize] },
    Values(&'a [f32]),
}

/// A box of what has numbers, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    pub origin: Origin<'a>,
    /// What is added to each number.
    offset: f32,
    axes: Vec<Axis>,
}

/// One axis of a part.
#[derive(Clone, Debug)]
struct Axis {
    /// Size of the origin.
    size: usize,
    /// The places of the origin.
    range: Range<usize>,
    /// The place of the value that gets the first of them.
    at: usize,
}

/// The value of an expression: its shape and the parts that fill it.
struct Value<'a> {
    shape: Vec<usize>,
    parts: Vec<Part<'a>>,
}

/// The parts of an expression's value, whose shapes are sound: the artifact was checked.
pub(super) fn parts(expr: &WeightExpr, rank: Rank) -> Vec<Part<'_>> {
    expr.fold(&mut |term| match term {
        Term::Tensor { name, shape } => Value::all(Origin::Tensor { name, shape }, shape.to_vec()),
        Term::Const { values } => Value::all(Origin::Values(values), vec![values.len()]),
        Term::Concat { axis, parts } => Value::join(axis, parts),
        Term::Slice { axis, start, len, of } => of.cut(axis, start, len),
        Term::Shard { axis, parts, of } => {
            let len = of.shape[axis] / parts;
            of.cut(axis, rank.part(parts) * len, len)
        }
        Term::Offset { by, of } => of.raised(by),
    })
    .parts
}

impl<'a> Value<'a> {
    fn all(origin: Origin<'a>, shape: Vec<usize>) -> Value<'a> {
        let axes = shape.iter().map(|&size| Axis { size, range: 0..size, at: 0 }).collect();
        Value { shape, parts: vec![Part { origin, offset: 0.0, axes }] }
    }

    /// The values one after the other along an axis.
    fn join(axis: usize, values: Vec<Value<'a>>) -> Value<'a> {
        let mut values = values.into_iter();
        let mut whole = values.next().expect("a checked concat has parts");
        for mut value in values {
            value.parts.iter_mut().for_each(|part| part.axes[axis].at += whole.shape[axis]);
            whole.parts.append(&mut value.parts);
            whole.shape[axis] += value.shape[axis];
        }
        whole
    }

    /// The values and a constant.
    fn raised(mut self, by: f32) -> Value<'a> {
        self.parts.iter_mut().for_each(|part| part.offset += by);
        self
    }

    /// `len` places of an axis from `start` on.
    fn cut(mut self, axis: usize, start: usize, len: usize) -> Value<'a> {
        self.shape[axis] = len;
        self.parts.retain_mut(|part| part.axes[axis].cut(start..start + len));
        self
    }
}

impl Axis {
    /// Keeps what goes into a window of the value, and counts from there: false if that is nothing.
    fn cut(&mut self, window: Range<usize>) -> bool {
        let first = window.start.max(self.at);
        let last = window.end.min(self.at + self.range.len());
        if first >= last {
            return false;
        }
        let start = self.range.start + (first - self.at);
        (self.range, self.at) = (start..start + (last - first), first - window.start);
        true
    }

    /// Runs of what the axes before this one count as runs of what this one counts, which has this size in the weight. A run is
    /// its first index in the origin, its first one in the weight, and its length.
    fn unroll(&self, runs: Vec<(usize, usize, usize)>, size: usize) -> Vec<(usize, usize, usize)> {
        let len = self.range.len();
        let run = |here, there, times| (here * self.size + self.range.start, there * size + self.at, times * len);
        if len == self.size && len == size {
            return runs.into_iter().map(|(here, there, times)| run(here, there, times)).collect();
        }
        let each = |(here, there, times)| (0..times).map(move |index| run(here + index, there + index, 1));
        runs.into_iter().flat_map(each).collect()
    }
}

impl Part<'_> {
    /// The part as rectangles of its origin, whose numbers these are, in a weight of this shape.
    pub fn pieces<'t>(&self, data: Tensor<'t>, shape: &[usize]) -> Vec<Piece<'t>> {
        let Some((last, outer)) = self.axes.split_last() else { return Vec::new() };
        let runs = outer.iter().zip(shape).fold(vec![(0, 0, 1)], |runs, (axis, &size)| axis.unroll(runs, size));
        let piece = |(here, there, rows)| Piece {
            data,
            offset: self.offset,
            stride: last.size,
            rows: here..here + rows,
            cols: last.range.clone(),
            at: (there, last.at),
        };
        runs.into_iter().map(piece).collect()
    }
}
