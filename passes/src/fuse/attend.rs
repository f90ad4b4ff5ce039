//! Kernels around a boundary. The split has given each boundary a segment of its own.
use std::collections::BTreeMap;

use atomc_ir::{Family, NodeId, Op};

use super::{Regions, recur};
use crate::explain::{Cause, Why};
use crate::pass::Cx;

pub fn claim(regions: &mut Regions, cx: &Cx) {
    let graph = regions.graph;
    let mut segments: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
    for &id in regions.order.iter().filter(|&&id| regions.is_free(id)) {
        segments.entry(graph.segment(id).expect("the verifier saw the segments")).or_default().push(id);
    }
    for boundary in regions.nodes_where(|op| op.is_boundary() && !op.is_call()) {
        let nodes = if regions.family(boundary, cx) == Family::Recur {
            let taken = recur::taken(regions, boundary);
            regions.leave(taken.left);
            taken.nodes
        } else if cx.attends_with_one() || regions.family(boundary, cx) != Family::AttendMany {
            graph.segment(boundary).and_then(|s| segments.remove(&s)).unwrap_or_default()
        } else {
            let why = Why::new(Cause::Step, "attention of many tokens reads what lies in memory");
            let queries = queries(regions, boundary);
            let readers = [boundary].into_iter().chain(queries.iter().copied());
            let operands = readers.flat_map(|id| graph.operands(id).into_iter().map(move |v| (v, id)));
            let before = operands.filter(|(v, _)| !queries.contains(&v.node)).map(|place| (place, why.clone()));
            regions.leave(before.collect());
            // Only the reshape of its result follows a boundary in its own segment.
            let reader = regions.sole_reader(boundary.into());
            let reshape = reader.filter(|&id| regions.may_join(id, graph.segment(boundary)));
            queries.into_iter().chain([boundary]).chain(reshape).collect()
        };
        regions.add(regions.family(boundary, cx), boundary, nodes);
    }
}

/// The nodes that assemble the queries of a latent cache. All heads of a token see the same keys,
/// so a tile of queries is read once. A kernel that only assembles it would write as much as
/// attention reads.
fn queries(r: &Regions, boundary: NodeId) -> Vec<NodeId> {
    let operands = r.graph.operands(boundary);
    if !operands.iter().any(|&v| r.graph.ty(v).as_cache().is_some_and(|cache| cache.is_prefix)) {
        return vec![];
    }
    let mut taken: Vec<NodeId> = Vec::new();
    let mut open = vec![(operands[0], boundary)];
    while let Some((v, reader)) = open.pop() {
        let joins = matches!(r.graph.op(v.node), Op::Beside {} | Op::Rope {} | Op::RopePairs {} | Op::Parts { .. });
        if joins && r.sole_reader(v) == Some(reader) && r.may_join(v.node, r.graph.segment(boundary)) {
            taken.push(v.node);
            open.extend(r.graph.operands(v.node).into_iter().map(|before| (before, v.node)));
        }
    }
    taken.reverse();
    taken
}
