//! Kernels of the nodes that no other family has taken: row-wise ops, grouped.
use std::collections::BTreeMap;

use atomc_ir::results::EMBEDDINGS;
use atomc_ir::{Class, Diagnostic, Dim, Family, Graph, Maker, NodeId, Op, Reads, Type, Value, Values, Within};

use super::Regions;
use crate::explain::{Cause, Why};

/// Nodes can be in one kernel only if their keys agree: segment, level, rows. A reader is one level
/// above a value that comes through another kernel, or that has other rows than the reader. So a
/// path that leaves a kernel never comes back to its level. A reader is also one level above
/// embeddings, because the caller of a step may bring others, so a kernel of their own makes them.
/// The same holds for what is stored in a way of its own, for a norm over a row of heads, which
/// each head would repeat, and for heads of a row that is normalised, or quantised, as a whole. A
/// write into a cache is above writes into caches of other types: a kernel has one table of pages.
type Key = (Option<usize>, usize, Dim);

pub fn claim(regions: &mut Regions) -> Result<(), Diagnostic> {
    let free: Vec<NodeId> = regions.order.iter().copied().filter(|&id| regions.is_free(id)).collect();
    let mut lead = BTreeMap::new();
    for &id in &free {
        lead.insert(id, rows(regions.graph, id).ok_or_else(|| untaken(regions.graph, id))?);
    }
    let levels = levels(regions, &lead);
    let key = |id: NodeId| -> Key { (regions.graph.segment(id), levels[&id], lead[&id]) };
    let mut groups = Groups::new(free.len());
    let mut member: BTreeMap<(Value, Key), usize> = BTreeMap::new();
    for (i, &id) in free.iter().enumerate() {
        for v in regions.graph.operands(id).into_iter().filter(|&v| ties(regions, id, v, lead[&id])) {
            let other = *member.entry((v, key(id))).or_insert(i);
            groups.join(i, other);
        }
        let made = (0..regions.graph.types(id).len()).map(|out| Value { node: id, out });
        member.extend(made.map(|v| ((v, key(id)), i)));
    }
    let mut nodes: Vec<Vec<NodeId>> = vec![vec![]; free.len()];
    let mut group_of: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (i, &id) in free.iter().enumerate() {
        let group = groups.find(i);
        nodes[group].push(id);
        group_of.insert(id, group);
        for v in regions.graph.operands(id).into_iter().filter(|v| group_of.get(&v.node).is_some_and(|&g| g != group)) {
            if regions.graph.segment(id) == regions.graph.segment(v.node) {
                let order = || match regions.graph.op(id).class() {
                    Class::Effect => Why::new(Cause::Op, OTHER_CACHE),
                    _ => Why::new(Cause::Order, "a value on the way comes out of another kernel"),
                };
                let why = apart(regions, &lead, id, v).unwrap_or_else(order);
                regions.left.insert((v, id), why);
            }
        }
    }
    for group in nodes.into_iter().filter(|g| !g.is_empty()) {
        regions.add(Family::Rows, group[group.len() - 1], group);
    }
    Ok(())
}

/// The dimension that gives a row-wise op its rows; `None` if the op is not row-wise.
fn rows(graph: &Graph, id: NodeId) -> Option<Dim> {
    match graph.ty(id.into()) {
        _ if !graph.op(id).is_row_wise() => None,
        Type::Tensor(t) => t.shape.0.first().copied(),
        Type::Cache(_) | Type::Slots(_) => Some(Dim::Tokens),
        Type::Batch => None,
    }
}

fn untaken(graph: &Graph, id: NodeId) -> Diagnostic {
    let families: Vec<&str> = Family::ALL.iter().map(|f| f.name()).collect();
    Diagnostic::new("passes::no-family", format!("no kernel family takes `{}`", graph.op(id).key()))
        .at(graph.location(id))
        .help(format!("the families are {}", families.join(", ")))
}

/// Whether sharing `v`, or making it, is a reason for `id` to be in the same kernel.
fn ties(r: &Regions, id: NodeId, v: Value, lead: Dim) -> bool {
    let index = matches!(r.graph.op(v.node), Op::Input { .. })
        && !r.graph.ty(v).as_tensor().is_some_and(|t| t.dtype.is_float());
    !index && !r.graph.is_constant(v.node) && is_row_of(r.graph, id, v, lead)
}

/// Whether row i of `id` needs row i of `v` alone.
fn is_row_of(graph: &Graph, id: NodeId, v: Value, lead: Dim) -> bool {
    let slot = graph.operands(id).iter().position(|&operand| operand == v);
    let by_row = slot.is_some_and(|slot| graph.op(id).reads(slot).is_row());
    let same = graph.ty(v).as_tensor().is_some_and(|t| t.shape.0.first() == Some(&lead));
    by_row && same && lead.fixed().is_none()
}

/// Whether a value is the embeddings: the result of this name, or else rows of a weight.
fn is_embedding(graph: &Graph, v: Value) -> bool {
    if let Some(embeddings) = graph.result(EMBEDDINGS) {
        return v == embeddings;
    }
    graph.op(v.node).reads(0) == Reads::Chosen && graph.is_constant(graph.operands(v.node)[0].node)
}

/// Whether a node makes heads of a row that was normed as a whole.
fn parts_a_norm(graph: &Graph, id: NodeId, v: Value) -> bool {
    let rank = |v: Value| graph.ty(v).as_tensor().map_or(0, |t| t.shape.rank());
    matches!(graph.op(v.node).values(), Values::Normed(_)) && rank(v) < rank(id.into())
}

/// Whether a node needs a whole row of heads that the same kernel would make one by one, or one
/// whose heads are each of all of another row.
fn joins_heads(graph: &Graph, free: &BTreeMap<NodeId, Dim>, id: NodeId, row: Value) -> bool {
    let rank = |v: Value| graph.ty(v).as_tensor().map_or(0, |t| t.shape.rank());
    let wants_all = matches!(graph.op(id).values(), Values::Normed(_) | Values::Coded);
    let is_of_rows = |heads: Value| graph.op(heads.node).within() == Within::Row;
    let is_made =
        |&heads: &Value| rank(heads) > rank(row) && free.contains_key(&heads.node) && (wants_all || is_of_rows(heads));
    graph.operands(row.node).iter().any(is_made)
}

/// The level of each free node: the number of kernels that values have left before it.
fn levels(r: &Regions, lead: &BTreeMap<NodeId, Dim>) -> BTreeMap<NodeId, usize> {
    let mut of_region = vec![0; r.regions.len()];
    let mut of_free: BTreeMap<NodeId, usize> = BTreeMap::new();
    // A region's level is known once all of it was seen, which may be after its first reader: then
    // another round settles it. Regions that wait for each other would never settle; only a bug can
    // make them, and the verifier shows the cycle.
    let mut rounds = 0..r.regions.len() + 2;
    while rounds.next().is_some() && raise(r, lead, &mut of_region, &mut of_free) {}
    part_writes(r, lead, &mut of_free);
    sink(r, lead, &mut of_free);
    of_free
}

/// Why a write into a cache is apart from what makes its rows.
const OTHER_CACHE: &str = "that kernel writes into a cache of another type, and has the table of one";

/// Raises writes above those into caches of other types. What reads a cache is in a later segment.
fn part_writes(r: &Regions, lead: &BTreeMap<NodeId, Dim>, of_free: &mut BTreeMap<NodeId, usize>) {
    let is_write = |id: &&NodeId| lead.contains_key(id) && r.graph.op(**id).class() == Class::Effect;
    let mut types: BTreeMap<(Option<usize>, usize), &Type> = BTreeMap::new();
    for &id in r.order.iter().filter(is_write) {
        let (segment, ty) = (r.graph.segment(id), r.graph.ty(id.into()));
        let level = of_free.entry(id).or_default();
        while types.get(&(segment, *level)).is_some_and(|other| *other != ty) {
            *level += 1;
        }
        types.insert((segment, *level), ty);
    }
}

/// Puts parts of rows into the kernel that reads them first: a kernel for them alone would copy
/// them.
fn sink(r: &Regions, lead: &BTreeMap<NodeId, Dim>, of_free: &mut BTreeMap<NodeId, usize>) {
    let is_part = |op: &Op| matches!(op, Op::Slice { axis: 1, .. } | Op::Reshape { .. });
    let parts = r.order.iter().rev().filter(|&id| lead.contains_key(id) && is_part(r.graph.op(*id)));
    for &id in parts {
        let v = Value::from(id);
        let own = |reader: &NodeId| r.graph.segment(*reader) == r.graph.segment(id);
        let level = |(reader, _): (NodeId, usize)| {
            let level = of_free.get(&reader).filter(|_| own(&reader))?;
            level.checked_sub(is_apart(r, lead, reader, v) as usize)
        };
        let first = r.graph.users(v).into_iter().map(level).min().flatten();
        if let Some(first) = first.filter(|_| !r.graph.is_output(v)) {
            of_free.entry(id).and_modify(|level| *level = first.max(*level));
        }
    }
}

/// Why a value is made before a reader that chooses rows of it, or needs all of them.
pub const OTHER_ROWS: &str = "a row of the reader needs other rows than its own";

/// Why a node may not be in the kernel that makes one of its operands; `None` if it may.
fn apart(r: &Regions, lead: &BTreeMap<NodeId, Dim>, id: NodeId, v: Value) -> Option<Why> {
    let l = lead.get(&id)?;
    let (cause, text) = if lead.get(&v.node) != Some(l) || !is_row_of(r.graph, id, v, *l) {
        (Cause::Shape, OTHER_ROWS)
    } else if is_embedding(r.graph, v) {
        (Cause::Boundary, "callers may put other embeddings in their place")
    } else if parts_a_norm(r.graph, id, v) {
        (Cause::Shape, "each head would norm the whole row again")
    } else if joins_heads(r.graph, lead, id, v) {
        (Cause::Shape, "the reader wants a whole row, which is made head by head")
    } else if is_placed(r.graph, id, v) {
        (Cause::Op, "the reader takes its elements in another order, and reads them from memory")
    } else if is_stored_alone(r.graph.op(v.node)) {
        (Cause::Op, "it is stored in a way of its own, and read from memory")
    } else {
        return None;
    };
    Some(Why::new(cause, text))
}

/// Whether a node reads elements of a row in any order.
fn is_placed(graph: &Graph, id: NodeId, v: Value) -> bool {
    let operands = graph.operands(id);
    (0..operands.len()).any(|slot| operands[slot] == v && graph.op(id).reads(slot) == Reads::Placed)
}

/// Whether kernels compute a result of this op only where they store it, a row at once.
fn is_stored_alone(op: &Op) -> bool {
    op.maker() == Maker::Rows && op.within() == Within::All
}

/// Whether a node may not be in the kernel that makes one of its operands.
fn is_apart(r: &Regions, lead: &BTreeMap<NodeId, Dim>, id: NodeId, v: Value) -> bool {
    apart(r, lead, id, v).is_some()
}

/// One round; whether any level rose.
fn raise(
    r: &Regions,
    lead: &BTreeMap<NodeId, Dim>,
    of_region: &mut [usize],
    of_free: &mut BTreeMap<NodeId, usize>,
) -> bool {
    let mut rose = false;
    for &id in r.order.iter().filter(|&&id| r.owner.contains_key(&id) || lead.contains_key(&id)) {
        let own = r.owner.get(&id);
        let level = |v: Value| match (r.owner.get(&v.node), of_free.get(&v.node)) {
            (Some(region), _) if own == Some(region) => 0,
            (Some(&region), _) => of_region[region] + 1,
            (_, Some(&level)) => level + is_apart(r, lead, id, v) as usize,
            (None, None) => 0,
        };
        let level = r.graph.operands(id).into_iter().map(level).max().unwrap_or(0);
        let slot = match own {
            Some(&region) => &mut of_region[region],
            None => of_free.entry(id).or_default(),
        };
        rose |= level > *slot;
        *slot = level.max(*slot);
    }
    rose
}

/// Disjoint sets of indices. The least index names its set.
struct Groups(Vec<usize>);

impl Groups {
    fn new(n: usize) -> Groups {
        Groups((0..n).collect())
    }

    fn find(&mut self, i: usize) -> usize {
        if self.0[i] != i {
            self.0[i] = self.find(self.0[i]);
        }
        self.0[i]
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}
