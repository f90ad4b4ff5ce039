//! Memory: the place of each kernel's results in one arena, for a step of the bucket's size.
use std::collections::{BTreeMap, BTreeSet};

use atomc_ir::{Graph, NodeId, Op, TensorType, Value};

use crate::pass::Cx;

/// The place of a value in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub offset: usize,
    /// With padding of rows, alignment, and the bytes that kernels may read past the end.
    pub bytes: usize,
}

/// Slots of all tensors that kernels make, except for the hidden rows. Cache states are not in the
/// arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub slots: BTreeMap<Value, Slot>,
    /// Size of the arena.
    pub bytes: usize,
    /// The most bytes that are live at once, which no plan can go below.
    pub peak: usize,
    /// The sum of all slots, without reuse.
    pub unshared: usize,
}

/// The kernels of a graph and the work of its caller, in the order that plans are made for and that
/// they must run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub steps: Vec<NodeId>,
    /// The number of steps that are the body; the others follow from the hidden rows and are the
    /// head.
    pub body: usize,
    /// The rows between body and head. They have a buffer of their own.
    pub hidden: Option<Value>,
}

impl Order {
    /// The body makes the rows of all tokens that are `left` for a draft, also those that come from
    /// hidden rows. Stages follow each other.
    pub fn new(graph: &Graph, hidden: Option<Value>, left: Option<Value>) -> Order {
        let mut made: BTreeSet<NodeId> = BTreeSet::new();
        let mut open: Vec<NodeId> = left.iter().map(|v| v.node).collect();
        while let Some(id) = open.pop() {
            if made.insert(id) {
                open.extend(graph.operands(id).iter().map(|v| v.node));
            }
        }
        let mut behind: BTreeSet<NodeId> = BTreeSet::new();
        let mut parts = [vec![], vec![]];
        for id in graph.order() {
            let follows = |v: &Value| Some(*v) == hidden || behind.contains(&v.node);
            let head = graph.operands(id).iter().any(follows) && !made.contains(&id);
            if head {
                behind.insert(id);
            }
            if matches!(graph.op(id), Op::Kernel { .. }) || graph.op(id).is_call() {
                parts[head as usize].push(id);
            }
        }
        let stages = stages(graph);
        parts.iter_mut().for_each(|part| part.sort_by_key(|id| stages[id]));
        let [mut steps, head] = parts;
        let body = steps.len();
        steps.extend(head);
        Order { steps, body, hidden }
    }
}

/// When a node runs: the stage that it belongs to, and whether it comes behind the rows that were
/// handed on to that stage. What no such rows reach is the first stage's.
fn stages(graph: &Graph) -> BTreeMap<NodeId, (usize, bool)> {
    let mut stages = BTreeMap::new();
    for id in graph.order() {
        let stage = match *graph.op(id) {
            Op::HandOn { stage } => (stage, false),
            _ => {
                let before = graph.operands(id).into_iter().filter_map(|v| stages.get(&v.node)).max();
                (before.map_or(0, |&(stage, _)| stage), true)
            }
        };
        stages.insert(id, stage);
    }
    stages
}

/// Plans the arena. A kernel's results never lie where its operands do. A sum over ranks lies where
/// its operand does, which must have no other reader. The graph's results stay to the end.
pub fn plan(graph: &Graph, order: &Order, cx: &Cx) -> MemoryPlan {
    let steps = &order.steps;
    let mut last_use: BTreeMap<Value, usize> = BTreeMap::new();
    for (step, &kernel) in steps.iter().enumerate() {
        last_use.extend(graph.operands(kernel).into_iter().map(|v| (first_place(graph, v), step)));
    }
    last_use.extend(graph.outputs().iter().map(|&v| (first_place(graph, v), steps.len())));
    let mut ends: Vec<Vec<Value>> = vec![vec![]; steps.len() + 1];
    let mut plan = MemoryPlan::default();
    let mut arena = Arena::default();
    for (step, &kernel) in steps.iter().enumerate() {
        for out in 0..graph.types(kernel).len() {
            let v = Value { node: kernel, out };
            let Some(ty) = graph.ty(v).as_tensor().filter(|_| Some(v) != order.hidden) else { continue };
            if let Some(&slot) = plan.slots.get(&first_place(graph, v)) {
                plan.slots.insert(v, slot);
                continue;
            }
            let slot = arena.take(result_bytes(ty, cx));
            plan.slots.insert(v, slot);
            plan.unshared += slot.bytes;
            plan.peak = plan.peak.max(arena.used);
            ends[last_use.get(&v).copied().unwrap_or(step)].push(v);
        }
        for v in &ends[step] {
            arena.give_back(plan.slots[v]);
        }
    }
    MemoryPlan { bytes: arena.end, ..plan }
}

/// The value that this one shares its place with: itself, if it is not computed in place.
fn first_place(graph: &Graph, mut v: Value) -> Value {
    while let Some(slot) = graph.op(v.node).in_place() {
        v = graph.operands(v.node)[slot];
    }
    v
}

/// Bytes that a result needs in a step of the bucket's size.
pub fn result_bytes(ty: &TensorType, cx: &Cx) -> usize {
    let size = (cx.bucket.tokens(), cx.bucket.rows());
    cx.arch.memory.result_bytes(ty, size, cx.is_for_few())
}

/// A growing range of bytes with holes.
#[derive(Default)]
struct Arena {
    end: usize,
    used: usize,
    /// Offset and bytes of each hole; neighbours are joined.
    holes: BTreeMap<usize, usize>,
}

impl Arena {
    /// The smallest hole that is large enough, the first of equals; else the end, or the last hole
    /// if it touches the end.
    fn take(&mut self, bytes: usize) -> Slot {
        self.used += bytes;
        let best = self.holes.iter().filter(|&(_, &size)| size >= bytes).min_by_key(|&(&offset, &size)| (size, offset));
        if let Some((&offset, &size)) = best {
            self.holes.remove(&offset);
            if size > bytes {
                self.holes.insert(offset + bytes, size - bytes);
            }
            return Slot { offset, bytes };
        }
        let offset = match self.holes.last_key_value() {
            Some((&offset, &size)) if offset + size == self.end => offset,
            _ => self.end,
        };
        self.holes.remove(&offset);
        self.end = offset + bytes;
        Slot { offset, bytes }
    }

    fn give_back(&mut self, Slot { mut offset, mut bytes }: Slot) {
        self.used -= bytes;
        if let Some((&before, &size)) = self.holes.range(..offset).next_back()
            && before + size == offset
        {
            self.holes.remove(&before);
            (offset, bytes) = (before, size + bytes);
        }
        bytes += self.holes.remove(&(offset + bytes)).unwrap_or(0);
        self.holes.insert(offset, bytes);
    }
}

#[cfg(test)]
mod tests;
