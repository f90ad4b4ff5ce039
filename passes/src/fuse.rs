//! Gathers nodes into kernels, each for one schedule family.
//!
//! ```text
//! %2 = rms_norm %x, %n       #2        %2 = kernel %x, %n, %w {family = matvec}   #2
//! %3 = linear %2, %w         #2          graph @k(%a0: …, %a1: …, %a2: …) {
//! %4 = slice %3 {…}          #2   =>       %0 = rms_norm %a0, %a1
//! %5 = slice %3 {…}          #2            %1 = linear %0, %a2
//! %6 = silu_mul %4, %5       #2            …
//! ```
//!
//! | bucket | family        | takes                                                                             |
//! |--------|---------------|-----------------------------------------------------------------------------------|
//! | decode | `attend_one`  | the whole segment of a boundary                                                   |
//! | decode | `matvec`      | a contraction, `gather` and `rms_norm` before it, elementwise ops after it        |
//! | others | `attend_many` | attention and the reshape of its result                                           |
//! | decode | `grouped_matvec` | as `matvec`, around a product with the weights of experts                      |
//! | others | `matmul`      | a contraction and elementwise ops after it                                        |
//! | others | `grouped_matmul` | as `matmul`, around a product with the weights of experts                      |
//! | others | `group`       | which rows each expert has                                                        |
//! | both   | `recur`       | a boundary with a state, parts of rows and gates before it, an elementwise op after it |
//! | both   | `rows`        | what is left, grouped where it shares values: each row of the result needs one row |
//!
//! Bodies are canonical, so that equal layers have equal kernels: parameters are numbered by first
//! use, and locations and segments stay outside.
mod attend;
mod contract;
mod kernel;
mod recur;
mod rows;

use std::collections::BTreeMap;

use atomc_ir::{Diagnostic, Family, Graph, Layout, Maker, NodeId, Op, Value};

use crate::bucket::Bucket;
use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut regions = Regions::new(graph);
    attend::claim(&mut regions, cx.bucket);
    contract::claim(&mut regions, cx);
    alone(&mut regions, cx.bucket);
    rows::claim(&mut regions)?;
    let Regions { place, regions, .. } = regions;
    for region in &regions {
        kernel::replace(graph, region, &place)?;
    }
    Ok((!regions.is_empty()).into())
}

pub(crate) use recur::after as elementwise_after;

/// Nodes that a kernel is built around which takes nothing else.
fn alone(regions: &mut Regions, bucket: Bucket) {
    for id in regions.nodes_where(|op| matches!(op.maker(), Maker::Around { .. })) {
        if regions.is_free(id) {
            let family = regions.family(id, bucket);
            regions.add(family, id, vec![id]);
        }
    }
}

/// The nodes of one kernel.
struct Region {
    family: Family,
    /// The node that the kernel's location and segment are taken from.
    anchor: NodeId,
    nodes: Vec<NodeId>,
}

/// Which node goes into which kernel, as far as is decided.
struct Regions<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
    place: BTreeMap<NodeId, usize>,
    owner: BTreeMap<NodeId, usize>,
    regions: Vec<Region>,
}

impl<'a> Regions<'a> {
    fn new(graph: &'a Graph) -> Regions<'a> {
        let order = graph.order();
        let place = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        Regions { graph, order, place, owner: BTreeMap::new(), regions: vec![] }
    }

    fn add(&mut self, family: Family, anchor: NodeId, nodes: Vec<NodeId>) {
        self.owner.extend(nodes.iter().map(|&id| (id, self.regions.len())));
        self.regions.push(Region { family, anchor, nodes });
    }

    /// The family of the kernel that is built around a node.
    fn family(&self, id: NodeId, bucket: Bucket) -> Family {
        match self.graph.op(id).maker() {
            Maker::Around { few, .. } if bucket.is_decode() && !self.is_grouped(id) => few,
            Maker::Around { many, .. } => many,
            _ => Family::Rows,
        }
    }

    /// Whether a product goes along rows expert by expert.
    fn is_grouped(&self, id: NodeId) -> bool {
        let layouts = self.graph.operands(id).into_iter().filter_map(|v| Some(self.graph.ty(v).as_tensor()?.layout));
        layouts.into_iter().any(|layout| matches!(layout, Layout::Grouped { .. }))
    }

    /// Whether a node comes from outside: a parameter, or part of a weight plan.
    fn is_given(&self, id: NodeId) -> bool {
        matches!(self.graph.op(id), Op::Input { .. }) || self.graph.is_constant(id)
    }

    /// Whether a node is to be computed here and in no kernel yet.
    fn is_free(&self, id: NodeId) -> bool {
        !self.owner.contains_key(&id) && !self.is_given(id) && !self.graph.op(id).is_call()
    }

    /// Whether a node may join a kernel of this segment.
    fn may_join(&self, id: NodeId, segment: Option<usize>) -> bool {
        self.is_free(id) && self.graph.segment(id) == segment
    }

    /// The node that alone reads `v`.
    fn sole_reader(&self, v: Value) -> Option<NodeId> {
        let users = self.graph.users(v);
        let &(reader, _) = users.first()?;
        (users.iter().all(|&(u, _)| u == reader) && !self.graph.is_output(v)).then_some(reader)
    }

    /// Whether anything but these nodes reads `v`.
    fn escapes(&self, v: Value, nodes: &[NodeId]) -> bool {
        self.graph.is_output(v) || self.graph.users(v).iter().any(|(user, _)| !nodes.contains(user))
    }

    fn nodes_where(&self, test: impl Fn(&Op) -> bool) -> Vec<NodeId> {
        self.order.iter().copied().filter(|&id| test(self.graph.op(id))).collect()
    }
}

#[cfg(test)]
mod tests;
