//! Kernels around a contraction. Only one value leaves each, and all of its nodes lead there, so
//! that no path can leave a region and come back.
use atomc_ir::arch::Machine;
use atomc_ir::{Elementwise, Layout, NodeId, Op, Reads, Tokens, Value, Values};

use super::Regions;
use crate::pass::Cx;

/// Most numbers of a step's rows that become codes where they are multiplied: each work-group makes
/// all of them, and has 100 KB of local memory for them. Of more a kernel of its own makes codes.
const CODED: usize = 48 << 10;

pub fn claim(regions: &mut Regions, cx: &Cx) {
    for linear in regions.nodes_where(Op::is_contraction) {
        let family = regions.family(linear, cx.bucket);
        let mut nodes = if family.tokens() == Tokens::Bucket { prologue(regions, linear, cx) } else { vec![] };
        if nodes.is_empty() && matches!(regions.graph.op(linear), Op::PerHead { .. }) {
            nodes = heads(regions, linear);
        }
        nodes.push(linear);
        nodes.extend(epilogue(regions, linear, cx));
        regions.add(family, linear, nodes);
    }
}

/// What only this contraction reads, in this order from it: codes, multiples by constants, a norm,
/// a choice of rows, or columns of normed ones. Threads repeat them, which is cheap for few rows.
fn prologue(r: &Regions, linear: NodeId, cx: &Cx) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    let mut x = r.graph.operands(linear)[0];
    let width = r.graph.ty(x).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0);
    let few = cx.bucket.tokens() * width <= CODED;
    let own = |x: Value, reader| r.may_join(x.node, r.graph.segment(linear)) && r.sole_reader(x) == Some(reader);
    let mut reader = linear;
    if matches!(r.graph.op(x.node).values(), Values::Coded) && !few {
        return nodes;
    }
    let is_coded = |op: &Op| matches!(op.values(), Values::Coded);
    let is_multiple = |op: &Op| matches!(op, Op::Map(Elementwise::Mul));
    let is_normed = |op: &Op| matches!(op.values(), Values::Normed(_));
    for is_next in [&is_coded as &dyn Fn(&Op) -> bool, &is_multiple, &is_normed] {
        let given = |v: &Value| r.graph.is_constant(v.node);
        if is_next(r.graph.op(x.node)) && own(x, reader) && r.graph.operands(x.node)[1..].iter().all(given) {
            reader = x.node;
            nodes.push(reader);
            x = r.graph.operands(reader)[0];
        }
    }
    let chosen =
        |x: Value| r.graph.op(x.node).reads(0) == Reads::Chosen && !r.is_given(r.graph.operands(x.node)[0].node);
    // Of a product that several were made one of.
    let is_part = matches!(r.graph.op(x.node), Op::Slice { axis: 1, .. }) && !nodes.is_empty();
    if (chosen(x) || is_part) && own(x, reader) {
        nodes.push(x.node);
    }
    nodes
}

/// The heads of a row, which kernels read there one by one.
fn heads(r: &Regions, linear: NodeId) -> Vec<NodeId> {
    let x = r.graph.operands(linear)[0];
    let own = r.may_join(x.node, r.graph.segment(linear)) && r.sole_reader(x) == Some(linear);
    if own && matches!(r.graph.op(x.node), Op::Parts { .. }) { vec![x.node] } else { vec![] }
}

/// Elementwise ops on the result, also on slices of it that come together again.
fn epilogue(r: &Regions, linear: NodeId, cx: &Cx) -> Vec<NodeId> {
    let panel = cx.arch.memory.panel;
    let segment = r.graph.segment(linear);
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut result = Value::from(linear);
    let mut sliced = false;
    if matches!(r.graph.op(linear), Op::PerHead { .. }) {
        let reader = r.sole_reader(result).filter(|&u| r.may_join(u, segment));
        return reader.filter(|&u| matches!(r.graph.op(u), Op::Reshape { .. })).into_iter().collect();
    }
    loop {
        let map = r.sole_reader(result).filter(|&u| matches!(r.graph.op(u), Op::Map(_)) && r.may_join(u, segment));
        if let Some(map) = map {
            nodes.extend(rows_of_experts(r, linear, map));
            nodes.push(map);
            result = map.into();
        } else if let Some(joined) = if sliced { None } else { join(r, result, panel) } {
            result = (*joined.last().expect("slices that are joined")).into();
            nodes.extend(joined);
            sliced = true;
        } else if let Some(combine) = if sliced { None } else { combine(r, linear, (result, &nodes), cx) } {
            nodes.push(combine);
            result = combine.into();
            // What is behind it has rows of tokens.
            sliced = true;
        } else {
            return nodes;
        }
    }
}

/// Rows that are chosen from a table by the same experts as the weights of a product, for a reader
/// behind it alone.
fn rows_of_experts(r: &Regions, product: NodeId, reader: NodeId) -> Vec<NodeId> {
    let own = |v: &Value| {
        let chosen = r.graph.op(v.node).reads(0) == Reads::Chosen && r.may_join(v.node, r.graph.segment(reader));
        let same = |of: &[Value]| r.graph.is_constant(of[0].node) && r.graph.operands(product).contains(&of[1]);
        chosen && r.sole_reader(*v) == Some(reader) && same(&r.graph.operands(v.node))
    };
    let chosen: Vec<Value> = r.graph.operands(reader).into_iter().filter(own).collect();
    chosen.into_iter().map(|v| v.node).collect()
}

/// The sum over a token's choices, if it is of the product and perhaps biases alone: then GPUs add
/// it up where rows are not grouped, as they go along the weights of a token's experts.
fn combine(r: &Regions, product: NodeId, (result, nodes): (Value, &[NodeId]), cx: &Cx) -> Option<NodeId> {
    let Op::Grouped { .. } = r.graph.op(product) else { return None };
    let experts = r.graph.ty(r.graph.operands(product)[2]).as_tensor()?;
    let is_few = experts.layout == Layout::Rows && matches!(cx.arch.machine, Machine::Simt(_));
    let biases = |&id: &NodeId| match r.graph.op(id) {
        Op::Map(Elementwise::Add) => r.graph.operands(id).iter().any(|v| nodes.contains(&v.node) || v.node == product),
        op => op.reads(0) == Reads::Chosen,
    };
    let sum = r.sole_reader(result).filter(|&user| matches!(r.graph.op(user), Op::Combine {}))?;
    let joins = r.graph.operands(sum)[0] == result && r.may_join(sum, r.graph.segment(product));
    (is_few && joins && nodes.iter().all(biases)).then_some(sum)
}

/// Slices that part `whole` evenly along whole panels, with the elementwise ops that make one value
/// of them again, which is the last.
fn join(r: &Regions, whole: Value, panel: usize) -> Option<Vec<NodeId>> {
    let mut nodes = slices(r, whole, panel)?;
    loop {
        let mut open = nodes.iter().copied().filter(|&id| r.escapes(id.into(), &nodes));
        let (first, second) = (open.next()?, open.next());
        if second.is_none() {
            return (*nodes.last()? == first).then_some(nodes);
        }
        // The earliest reader comes next. If it cannot join, two values will leave whatever else
        // does.
        let readers = nodes.iter().flat_map(|&id| r.graph.users(id.into())).map(|(user, _)| user);
        let next = readers.filter(|user| !nodes.contains(user)).min_by_key(|user| r.place[user])?;
        if !matches!(r.graph.op(next), Op::Map(_)) || !r.may_join(next, r.graph.segment(whole.node)) {
            return None;
        }
        nodes.push(next);
    }
}

/// The readers of `whole`, if they are slices that part it evenly along panels.
fn slices(r: &Regions, whole: Value, panel: usize) -> Option<Vec<NodeId>> {
    let readers: Vec<NodeId> = r.graph.users(whole).into_iter().map(|(user, _)| user).collect();
    let range = |&id: &NodeId| match *r.graph.op(id) {
        Op::Slice { axis: 1, start, len } => Some((start, len)),
        _ => None,
    };
    let mut ranges: Vec<(usize, usize)> = readers.iter().map(range).collect::<Option<_>>()?;
    ranges.sort();
    let &(_, width) = ranges.first()?;
    let even = ranges.iter().enumerate().all(|(i, range)| *range == (i * width, width)) && width % panel == 0;
    let total = r.graph.ty(whole).as_tensor()?.shape.last();
    let here = |&id: &NodeId| r.may_join(id, r.graph.segment(whole.node));
    let parted = even && total == Some(ranges.len() * width) && !r.graph.is_output(whole);
    (parted && readers.iter().all(here)).then_some(readers)
}
