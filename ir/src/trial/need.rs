//! What a trial takes, before anything of it is there.
use super::{Bound, Step};
use crate::arch::Memory;
use crate::graph::Graph;
use crate::layout::{CacheLayout, Groups, Panels};
use crate::ops::Op;
use crate::types::{CacheType, Layout, SlotsType, TensorType, Type};

/// Bytes of a number: as it was drawn, with its budget, a copy of that, and in memory.
const NUMBER: usize = size_of::<f64>() + 2 * size_of::<Bound>() + size_of::<f32>();

/// Bytes of the largest element.
const LARGEST: usize = 4;

/// Most bytes that a trial of a graph takes, with pages at this distance; none if no machine has as
/// many.
pub fn need(graph: &Graph, memory: &Memory, step: &Step, gap: usize) -> Option<usize> {
    graph.ids().try_fold(0usize, |sum, id| {
        let inside = match graph.op(id) {
            Op::Kernel { body, .. } => need(body, memory, step, gap)?,
            _ => 0,
        };
        let values = graph.types(id).iter().try_fold(inside, |sum, ty| sum.checked_add(value(ty, memory, step, gap)?));
        sum.checked_add(values?)
    })
}

/// Bytes that the operands of a trial take at most in memory where rows of weights are made as they
/// are needed: of activations, and of states there and back with their numbers.
pub fn need_of_operands(graph: &Graph, memory: &Memory, step: &Step, gap: usize) -> Option<usize> {
    graph.inputs().into_iter().try_fold(0usize, |sum, v| {
        let of_step = |t: &TensorType| t.shape.0.first().is_some_and(|lead| lead.fixed().is_none());
        let bytes = match graph.ty(v) {
            Type::Tensor(t) if of_step(t) => placed(t, memory, (step.tokens(), step.rows()))?.checked_mul(2)?,
            Type::Tensor(_) => 0,
            state => value(state, memory, step, gap)?.checked_mul(3)?,
        };
        sum.checked_add(bytes)
    })
}

fn value(ty: &Type, memory: &Memory, step: &Step, gap: usize) -> Option<usize> {
    match ty {
        Type::Tensor(t) => tensor(t, memory, step),
        Type::Cache(c) => cache(*c, memory, step, gap),
        Type::Slots(s) => slots(s, memory, step, gap),
        Type::Batch => Some(0),
    }
}

fn tensor(t: &TensorType, memory: &Memory, step: &Step) -> Option<usize> {
    let (tokens, rows) = (step.tokens(), step.rows());
    let numbers = t.shape.0.iter().try_fold(NUMBER, |bytes, d| bytes.checked_mul(d.at(tokens, rows)))?;
    numbers.checked_add(placed(t, memory, (tokens, rows))?)
}

/// Bytes of a tensor as it lies in memory: rows that many elements apart, whatever follows the
/// last.
fn placed(t: &TensorType, memory: &Memory, (tokens, rows): (usize, usize)) -> Option<usize> {
    let sizes: Vec<usize> = t.shape.0.iter().map(|d| d.at(tokens, rows)).collect();
    if let (true, &[ref experts @ .., rows, cols]) = (t.layout.is_packed(), &sizes[..]) {
        let padded = |size: usize| size.checked_next_multiple_of(memory.row);
        padded(rows)?.checked_mul(padded(cols)?)?.checked_mul(LARGEST)?;
        let matrices = experts.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        return Panels::in_layout(t.layout, [rows, cols], t.dtype, memory)?.bytes.checked_mul(matrices);
    }
    if let (Layout::Grouped { experts, tile }, &[pairs]) = (t.layout, &sizes[..]) {
        pairs.checked_add(experts)?.checked_mul(tile)?.checked_mul(2 * LARGEST)?;
        return Some(Groups { experts, tile, pairs }.words() * LARGEST);
    }
    let all = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size))?;
    let width = t.width();
    let lead = all / width.max(1);
    let scales = match t.layout {
        Layout::Scaled(group) => width.div_ceil(group).checked_mul(size_of::<f32>())?.checked_add(memory.row)?,
        Layout::Mx(group) => width.checked_add(memory.row)?.div_ceil(group).checked_mul(2)?.checked_add(memory.row)?,
        _ => 0,
    };
    let stride = width.checked_add(scales)?.checked_next_multiple_of(memory.row)?.checked_add(memory.row)?;
    lead.checked_mul(stride)?.checked_mul(LARGEST)?;
    Some(t.dtype.bytes(lead * stride))
}

/// Entries of every position up to the step's last ones, and pages for them.
fn cache(c: CacheType, memory: &Memory, step: &Step, gap: usize) -> Option<usize> {
    let width = c.head_dim.max(c.value_dim);
    let head = memory.block_tokens.checked_mul(width.checked_next_multiple_of(memory.row)?)?;
    c.heads.checked_mul(2 * c.dtype.size())?.checked_mul(head)?;
    let page = CacheLayout::of(c, memory).block_bytes.checked_add(gap)?;
    let positions = step.runs.iter().try_fold(0usize, |sum, run| sum.checked_add(run.position + run.tokens))?;
    let numbers = positions.checked_mul(2 * NUMBER)?.checked_mul(c.heads)?.checked_mul(width)?;
    numbers.checked_add(page.checked_mul(step.blocks(memory.block_tokens))?)
}

/// Numbers of every sequence, and as many slots as a cache would have pages.
fn slots(s: &SlotsType, memory: &Memory, step: &Step, gap: usize) -> Option<usize> {
    let numbers = s.numbers().checked_mul(NUMBER)?.checked_mul(s.each)?.checked_mul(step.runs.len())?;
    let slots = step.blocks(memory.block_tokens).checked_add(s.entries().checked_mul(step.runs.len())?)?;
    numbers.checked_add(s.bytes().checked_add(gap)?.checked_mul(slots)?)
}
