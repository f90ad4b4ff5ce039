//! Kernels around an op with a state. Before it they take nodes that move the beginnings of
//! operands or make a number for each head, and after it an elementwise op.
use std::collections::BTreeSet;

use atomc_ir::{Graph, Maker, NodeId, Op, Reads, Value, Values};

use super::{Regions, Taken};
use crate::explain::{Cause, Why};

/// The nodes of the kernel around a boundary.
pub fn taken(r: &Regions, boundary: NodeId) -> Taken {
    let (graph, segment) = (r.graph, r.graph.segment(boundary));
    let rank = |v: Value| graph.ty(v).as_tensor().map_or(0, |t| t.shape.rank());
    let mut inside = BTreeSet::from([boundary]);
    let mut taken = Taken::default();
    for v in graph.operands(boundary) {
        let is_number = rank(v) + 1 == rank(boundary.into());
        let mut open = vec![(v, boundary)];
        while let Some((v, reader)) = open.pop() {
            let id = v.node;
            match takes(r, id, is_number, &inside).and_then(|()| r.joins(id, segment)) {
                Err(why) => taken.leave(v, reader, why),
                Ok(()) if inside.insert(id) => open.extend(graph.operands(id).into_iter().map(|v| (v, id))),
                Ok(()) => (),
            }
        }
    }
    match after(graph, boundary) {
        Some(id) => match r.joins(id, segment) {
            Ok(()) => _ = inside.insert(id),
            Err(why) => taken.leave(boundary.into(), id, why),
        },
        None => {
            let why = Why::new(Cause::Op, "behind it goes an elementwise op that reads nothing else");
            let readers = graph.users(boundary.into()).into_iter();
            readers.for_each(|(reader, _)| taken.leave(boundary.into(), reader, why.clone()));
        }
    }
    taken.nodes = r.order.iter().copied().filter(|id| inside.contains(id)).collect();
    taken
}

/// Checks that a node moves parts of rows, or makes a number for each head, for these nodes alone.
fn takes(r: &Regions, id: NodeId, is_number: bool, inside: &BTreeSet<NodeId>) -> Result<(), Why> {
    let (graph, v) = (r.graph, Value::from(id));
    if !(is_move(graph.op(id)) || is_number && is_inline(graph, id)) {
        let text = "before it go parts of rows, and what makes a number for each head";
        return Err(Why::new(Cause::Op, text));
    }
    let own = graph.users(v).iter().all(|(user, _)| inside.contains(user)) && !graph.is_output(v);
    let by: Vec<NodeId> = inside.iter().copied().collect();
    if own { Ok(()) } else { Err(Why::read_elsewhere(graph, v, &by)) }
}

/// The elementwise op that alone reads the result of a boundary with a state, and no other computed
/// value.
pub fn after(graph: &Graph, boundary: NodeId) -> Option<NodeId> {
    let made = Value::from(boundary);
    match graph.users(made)[..] {
        [(user, _)] if matches!(graph.op(user), Op::Map(_)) && !graph.is_output(made) => {
            (graph.operands(user) == [made]).then_some(user)
        }
        _ => None,
    }
}

/// Whether a node moves the beginning of a part of each row.
fn is_move(op: &Op) -> bool {
    matches!(op, Op::Slice { axis: 1, .. } | Op::Reshape { .. })
}

/// Whether an element depends only on elements of its row.
fn is_inline(graph: &Graph, id: NodeId) -> bool {
    let op = graph.op(id);
    let same_row = |slot| matches!(op.reads(slot), Reads::Row | Reads::Shared);
    let alone = !matches!(op.values(), Values::Normed(_) | Values::Coded);
    op.maker() == Maker::Inline && alone && (0..graph.operands(id).len()).all(same_row)
}
