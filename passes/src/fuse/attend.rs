//! Kernels around a boundary. The split has given each boundary a segment of its own.
use std::collections::BTreeMap;

use atomc_ir::{Family, NodeId};

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
        } else if cx.is_for_few() {
            graph.segment(boundary).and_then(|s| segments.remove(&s)).unwrap_or_default()
        } else {
            let why = Why::new(Cause::Step, "attention of many tokens reads what lies in memory");
            let before = graph.operands(boundary).into_iter().map(|v| ((v, boundary), why.clone()));
            regions.leave(before.collect());
            // Only the reshape of its result follows a boundary in its own segment.
            let reader = regions.sole_reader(boundary.into());
            let reshape = reader.filter(|&id| regions.may_join(id, graph.segment(boundary)));
            [boundary].into_iter().chain(reshape).collect()
        };
        regions.add(regions.family(boundary, cx), boundary, nodes);
    }
}
