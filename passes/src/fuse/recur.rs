//! Kernels around an op with a state: of what is before it, what says where operands begin, and
//! what makes a number for each head; of what is after it an elementwise op.
use std::collections::BTreeSet;

use atomc_ir::{Graph, Maker, NodeId, Op, Reads, Value, Values};

use super::Regions;

/// The nodes of the kernel around a boundary.
pub fn nodes(r: &Regions, boundary: NodeId) -> Vec<NodeId> {
    let (graph, segment) = (r.graph, r.graph.segment(boundary));
    let rank = |v: Value| graph.ty(v).as_tensor().map_or(0, |t| t.shape.rank());
    let mut inside = BTreeSet::from([boundary]);
    for v in graph.operands(boundary) {
        let is_number = rank(v) + 1 == rank(boundary.into());
        let mut open = vec![v.node];
        while let Some(id) = open.pop() {
            let takes = is_move(graph.op(id)) || is_number && is_inline(graph, id);
            let own = graph.users(id.into()).iter().all(|(user, _)| inside.contains(user));
            if takes && own && r.may_join(id, segment) && !graph.is_output(id.into()) && inside.insert(id) {
                open.extend(graph.operands(id).into_iter().map(|v| v.node));
            }
        }
    }
    inside.extend(after(graph, boundary).filter(|&id| r.may_join(id, segment)));
    r.order.iter().copied().filter(|id| inside.contains(id)).collect()
}

/// The elementwise op that alone reads what a boundary with a state makes, and nothing else that
/// was made.
pub fn after(graph: &Graph, boundary: NodeId) -> Option<NodeId> {
    let made = Value::from(boundary);
    match graph.users(made)[..] {
        [(user, _)] if matches!(graph.op(user), Op::Map(_)) && !graph.is_output(made) => {
            (graph.operands(user) == [made]).then_some(user)
        }
        _ => None,
    }
}

/// Whether a node says where a part of each row begins.
fn is_move(op: &Op) -> bool {
    matches!(op, Op::Slice { axis: 1, .. } | Op::Reshape { .. })
}

/// Whether an element needs nothing but elements of its row.
fn is_inline(graph: &Graph, id: NodeId) -> bool {
    let op = graph.op(id);
    let same_row = |slot| matches!(op.reads(slot), Reads::Row | Reads::Shared);
    let alone = !matches!(op.values(), Values::Normed(_) | Values::Coded);
    op.maker() == Maker::Inline && alone && (0..graph.operands(id).len()).all(same_row)
}
