//! Which elements of a body's values must be known for some elements of its results, by the columns
//! of the op table.
use std::collections::BTreeMap;

use super::mask::Mask;
use super::part::Part;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Op, Reads, Within};
use crate::types::{CacheType, Dim, TensorType, Type};

/// Elements of a row of the step: of a tensor, or of what a token writes into a cache, its key and
/// then its value.
pub(super) fn row_width(ty: &Type) -> usize {
    match ty {
        Type::Tensor(t) => t.shape.row().unwrap_or(1),
        Type::Cache(c) => c.heads * (c.head_dim + c.value_dim),
        Type::Slots(_) | Type::Batch => 0,
    }
}

/// What leads a value that has rows of the step: of a cache those of its tokens.
pub(super) fn lead(ty: &Type) -> Option<Dim> {
    match ty {
        Type::Tensor(t) => t.shape.0.first().copied().filter(|lead| lead.fixed().is_none()),
        Type::Cache(_) => Some(Dim::Tokens),
        Type::Slots(_) | Type::Batch => None,
    }
}

/// Whether rows of the results can be computed without all others, so that a sample of them can be.
pub fn divides(graph: &Graph) -> bool {
    graph.ids().all(|id| {
        let operands = graph.operands(id);
        let of_step = |ty: &Type| lead(ty).is_some() || ty.is_state();
        let chosen_by_whom = |rows: &Value| matches!(graph.op(rows.node), Op::Input { .. });
        match graph.op(id).within() {
            // Which rows of the step are chosen must be known before.
            Within::Picked if matches!(graph.op(id).reads(0), Reads::Chosen) => {
                !of_step(graph.ty(operands[0])) || chosen_by_whom(&operands[1])
            }
            Within::Whole => !graph.types(id).iter().any(of_step),
            _ => true,
        }
    })
}

/// What of each value with rows of the step must be known for a part of a step, of which these
/// elements of the results are wanted.
pub(super) fn demand(graph: &Graph, part: &Part, wanted: &[(Value, Mask)]) -> BTreeMap<Value, Mask> {
    let mut all = BTreeMap::new();
    let blank = |v: Value| lead(graph.ty(v)).map(|lead| Mask::new(part.count(lead), row_width(graph.ty(v))));
    for (v, mask) in wanted {
        let own = all.entry(*v).or_insert_with(|| Mask::new(mask.rows, mask.width));
        (0..mask.rows).for_each(|row| own.add_row(row, mask, row));
    }
    for id in graph.order().into_iter().rev() {
        let results = (0..graph.types(id).len()).map(|out| Value { node: id, out });
        let Some(mask) = results.into_iter().find_map(|v| all.get(&v).cloned()) else { continue };
        for (slot, v) in graph.operands(id).into_iter().enumerate() {
            let Some(empty) = blank(v) else { continue };
            let own = all.entry(v).or_insert(empty);
            Step { graph, part, id, mask: &mask }.operand(slot, v, own);
        }
    }
    all
}

/// A node whose result must be known as the mask says.
struct Step<'a> {
    graph: &'a Graph,
    part: &'a Part,
    id: NodeId,
    mask: &'a Mask,
}

impl Step<'_> {
    /// Adds what the node needs of an operand.
    fn operand(&self, slot: usize, v: Value, to: &mut Mask) {
        let last = self.graph.ty(v).as_tensor().and_then(|t| t.shape.last()).unwrap_or(1);
        let op = self.graph.op(self.id);
        match op.within() {
            Within::Same if self.is_alike(to) => self.each(to, |col| col..col + 1),
            Within::Moved => self.moved(slot, v, to),
            Within::Axis if slot == 0 => self.each(to, |col| col / last * last..(col / last + 1) * last),
            Within::Group(cols) => self.each(to, |col| {
                let (row, start) = (col / last * last, col % last / cols * cols);
                row + start..row + (start + cols).min(last)
            }),
            Within::Row if slot == 0 => {
                let (each, width) = (self.mask.rows / to.rows.max(1), to.width);
                let wanted = (0..self.mask.rows).filter(|&row| self.mask.any(row));
                wanted.for_each(|row| to.set_range(row / each, 0..width));
            }
            Within::Head if slot == 0 => {
                let wide = self.mask.width / (to.width / last.max(1)).max(1);
                self.each(to, |col| col / wide * last..(col / wide + 1) * last);
            }
            Within::Picked if slot == 0 => match op.reads(0) {
                Reads::Chosen => {
                    let from = self.part.gathered(self.id).iter().enumerate();
                    from.for_each(|(row, from)| to.add_row(*from, self.mask, row));
                }
                _ => {
                    let each = to.rows / self.mask.rows.max(1);
                    (0..to.rows).for_each(|row| to.add_row(row, self.mask, row / each));
                }
            },
            Within::Written if slot > 0 => self.written(slot, to),
            _ => (0..to.rows).for_each(|row| to.set_range(row, 0..to.width)),
        }
    }

    /// Whether an operand has the rows of the result.
    fn is_alike(&self, to: &Mask) -> bool {
        (to.rows, to.width) == (self.mask.rows, self.mask.width)
    }

    /// Adds a range of the operand's row for each element of the same row of the result.
    fn each(&self, to: &mut Mask, range: impl Fn(usize) -> std::ops::Range<usize>) {
        for row in 0..self.mask.rows {
            self.mask.cols(row).for_each(|col| to.set_range(row, range(col)));
        }
    }

    /// Of what only puts elements elsewhere along an axis.
    fn moved(&self, slot: usize, v: Value, to: &mut Mask) {
        if let Op::Parts { start, len, step, .. } = *self.graph.op(self.id) {
            let from = |col: usize| start + col / len * step + col % len;
            return self.each(to, |col| from(col)..from(col) + 1);
        }
        let sizes = |v: Value| {
            let shape = self.graph.ty(v).as_tensor().map(|t| t.shape.0.clone()).unwrap_or_default();
            shape.iter().map(|dim| dim.fixed().unwrap_or(1)).collect::<Vec<_>>()
        };
        let (from, made) = (sizes(v), sizes(self.id.into()));
        let axis = match *self.graph.op(self.id) {
            Op::Slice { axis, .. } | Op::Every { axis, .. } | Op::Pad { axis, .. } => axis,
            Op::Repeat { axis, .. } | Op::Concat { axis } => axis,
            _ => made.len() - 1,
        };
        let (size, own, inner) = (made[axis], from[axis], made[axis + 1..].iter().product::<usize>());
        let before: usize = self.graph.operands(self.id)[..slot].iter().map(|&v| sizes(v)[axis]).sum();
        let place = |at: usize| match *self.graph.op(self.id) {
            Op::Slice { start, .. } => Some(start + at),
            Op::Every { step, start, .. } => Some(start + at * step),
            Op::Pad { .. } => Some(at).filter(|&at| at < own),
            Op::Repeat { times, .. } => Some(at / times),
            _ => at.checked_sub(before).filter(|&at| at < own),
        };
        self.each(to, |col| {
            let (outer, at, i) = (col / inner / size, col / inner % size, col % inner);
            place(at).map_or(0..0, |at| Some((outer * own + at) * inner + i).map_or(0..0, |col| col..col + 1))
        });
    }

    /// Keys and values that tokens write.
    fn written(&self, slot: usize, to: &mut Mask) {
        let Some(c) = self.graph.ty(self.id.into()).as_cache() else { return };
        let CacheType { heads, head_dim, value_dim, is_prefix, .. } = c;
        let keys = heads * head_dim;
        self.each(to, |col| match (col < keys, slot) {
            (true, 1) => col..col + 1,
            // A value that is a part of its key.
            (false, 1) if is_prefix => {
                let (head, at) = ((col - keys) / value_dim, (col - keys) % value_dim);
                head * head_dim + at..head * head_dim + at + 1
            }
            (false, 2) if !is_prefix => col - keys..col - keys + 1,
            _ => 0..0,
        });
    }
}

/// Columns of the contractions of a body.
pub(super) fn contracted(graph: &Graph) -> Option<usize> {
    let products = graph.ids().filter(|&id| graph.op(id).is_contraction());
    products.filter_map(|id| graph.ty(graph.operands(id)[0]).as_tensor()?.shape.last()).max()
}

/// Whether a tensor has rows of the step.
pub(super) fn is_of_step(t: &TensorType) -> bool {
    t.shape.0.first().is_some_and(|lead| lead.fixed().is_none())
}
