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
//! | verify, others | `attend_many` | attention and the reshape of its result                                           |
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

use atomc_ir::{Diagnostic, Family, Graph, Layout, Maker, NodeId, Op, Reads, Value};

use crate::explain::{Cause, Place, Why};
use crate::pass::{Changed, Cx};
use crate::split;

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let Regions { place, regions, .. } = claimed(graph, cx)?;
    for region in &regions {
        kernel::replace(graph, region, &place)?;
    }
    Ok((!regions.is_empty()).into())
}

pub(crate) use recur::after as elementwise_after;

/// Every node in its kernel.
fn claimed<'a>(graph: &'a Graph, cx: &Cx) -> Result<Regions<'a>, Diagnostic> {
    let mut regions = Regions::new(graph);
    attend::claim(&mut regions, cx);
    contract::claim(&mut regions, cx);
    alone(&mut regions, cx);
    rows::claim(&mut regions)?;
    Ok(regions)
}

/// The kernels of several nodes, then each value that goes through memory between a kernel of rows,
/// or the caller, and another kernel. Products and boundaries are kernels of their own, as no one
/// expects two of them in one kernel.
pub fn explain(graph: &Graph, cx: &Cx) -> Result<Vec<Place>, Diagnostic> {
    let r = claimed(graph, cx)?;
    let place = |location: &str, what, why_not| Place { pass: "fuse", location: location.into(), what, why_not };
    let mut all = vec![];
    for Region { family, anchor, nodes } in r.regions.iter().filter(|region| region.nodes.len() > 1) {
        let mut nodes = nodes.clone();
        nodes.sort_by_key(|id| r.place[id]);
        let ops: Vec<&str> = nodes.iter().map(|&id| graph.op(id).name()).collect();
        all.push(place(graph.location(*anchor), format!("{}: {}", family.name(), ops.join(" ")), None));
    }
    let splitter = split::Splitter::new(graph);
    for &id in r.order.iter().filter(|&&id| r.owner.contains_key(&id) || graph.op(id).is_call()) {
        let mut operands = graph.operands(id);
        operands.sort();
        operands.dedup();
        for v in operands.into_iter().filter(|v| r.is_place(*v, id)) {
            let why = r.left.get(&(v, id)).cloned().unwrap_or_else(|| r.apart(&splitter, v, id));
            let location = if graph.location(id).is_empty() { graph.location(v.node) } else { graph.location(id) };
            let what = format!("{} -> {}", graph.op(v.node).name(), graph.op(id).name());
            all.push(place(location, what, Some(why)));
        }
    }
    Ok(all)
}

/// Nodes that have a kernel of their own without other nodes.
fn alone(regions: &mut Regions, cx: &Cx) {
    for id in regions.nodes_where(|op| matches!(op.maker(), Maker::Around { .. })) {
        if regions.is_free(id) {
            let family = regions.family(id, cx);
            regions.add(family, id, vec![id]);
        }
    }
}

/// Why a value goes through memory to a product that reads it in addition to its own rows.
pub(crate) const NOT_ITS_ROWS: &str = "the reader's kernel has rows of its own, and reads this beside them";

/// The nodes that a kernel takes, and the values that it leaves, with a reader of each, and why.
#[derive(Default)]
struct Taken {
    nodes: Vec<NodeId>,
    left: Vec<((Value, NodeId), Why)>,
}

impl Taken {
    fn leave(&mut self, v: Value, reader: NodeId, why: Why) {
        self.left.push(((v, reader), why));
    }
}

/// The nodes of one kernel.
struct Region {
    family: Family,
    /// The node that the kernel's location and segment are taken from.
    anchor: NodeId,
    nodes: Vec<NodeId>,
}

/// The kernel of each node, as far as it is decided.
struct Regions<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
    place: BTreeMap<NodeId, usize>,
    owner: BTreeMap<NodeId, usize>,
    regions: Vec<Region>,
    /// Why a value goes through memory to a reader, if a kernel could have taken both.
    left: BTreeMap<(Value, NodeId), Why>,
}

impl<'a> Regions<'a> {
    fn new(graph: &'a Graph) -> Regions<'a> {
        let order = graph.order();
        let place = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        Regions { graph, order, place, owner: BTreeMap::new(), regions: vec![], left: BTreeMap::new() }
    }

    fn add(&mut self, family: Family, anchor: NodeId, nodes: Vec<NodeId>) {
        self.owner.extend(nodes.iter().map(|&id| (id, self.regions.len())));
        self.regions.push(Region { family, anchor, nodes });
    }

    /// The family of the kernel that is built around a node.
    fn family(&self, id: NodeId, cx: &Cx) -> Family {
        match self.graph.op(id).maker() {
            Maker::Around { few: Family::AttendOne, many } if !cx.attends_with_one() => many,
            Maker::Around { few, .. } if cx.is_for_few() && !self.is_grouped(id) => few,
            Maker::Around { many, .. } => many,
            _ => Family::Rows,
        }
    }

    /// Whether a product has its rows grouped by experts.
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
        self.joins(id, segment).is_ok()
    }

    /// Why a node may not join a kernel of this segment.
    fn joins(&self, id: NodeId, segment: Option<usize>) -> Result<(), Why> {
        let op = self.graph.op(id);
        if op.is_call() {
            return Err(Why::new(Cause::Boundary, format!("`{}` is the caller's work", op.name())));
        }
        if self.graph.segment(id) != segment {
            return Err(Why::new(Cause::Boundary, format!("`{}` is in another segment", op.name())));
        }
        match self.is_free(id) {
            true => Ok(()),
            false => Err(Why::new(Cause::Op, format!("`{}` is in a kernel already", op.name()))),
        }
    }

    /// The node that alone reads `v`.
    fn sole_reader(&self, v: Value) -> Option<NodeId> {
        let users = self.graph.users(v);
        let &(reader, _) = users.first()?;
        (users.iter().all(|&(u, _)| u == reader) && !self.graph.is_output(v)).then_some(reader)
    }

    /// Checks that a node alone reads `v`.
    fn is_read_by(&self, v: Value, reader: NodeId) -> Result<(), Why> {
        match self.sole_reader(v) == Some(reader) {
            true => Ok(()),
            false => Err(Why::read_elsewhere(self.graph, v, &[reader])),
        }
    }

    /// Whether a reader might expect that a value stays in a kernel, and it does not.
    fn is_place(&self, v: Value, reader: NodeId) -> bool {
        let calls = [v.node, reader].map(|id| self.graph.op(id).is_call());
        let owners = [v.node, reader].map(|id| self.owner.get(&id));
        let rows = owners.iter().flatten().any(|&&region| self.regions[region].family == Family::Rows);
        let computed = owners[0].is_some() || calls[0];
        computed && owners[0] != owners[1] && (rows || calls[0] || self.left.contains_key(&(v, reader)) && calls[1])
    }

    /// Why a value goes through memory, if no kernel could have kept it.
    fn apart(&self, splitter: &split::Splitter, v: Value, reader: NodeId) -> Why {
        let segments = [v.node, reader].map(|id| self.graph.segment(id));
        if segments[0] != segments[1] {
            return splitter.why(v.node, segments[1]);
        }
        let slot = self.graph.operands(reader).iter().position(|&operand| operand == v);
        match slot.map(|slot| self.graph.op(reader).reads(slot)) {
            Some(Reads::Row | Reads::Placed) | None => Why::new(Cause::Op, NOT_ITS_ROWS),
            Some(_) => Why::new(Cause::Shape, rows::OTHER_ROWS),
        }
    }

    fn leave(&mut self, left: Vec<((Value, NodeId), Why)>) {
        for (edge, why) in left {
            self.left.entry(edge).or_insert(why);
        }
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
