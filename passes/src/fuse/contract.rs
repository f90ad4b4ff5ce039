//! Kernels around a contraction. Only one value leaves each, and all of its nodes lead there, so that no path can leave a
//! region and come back.
use atomc_ir::{NodeId, Op, Reads, Value, Values};

use super::Regions;
use crate::pass::Cx;

pub fn claim(regions: &mut Regions, cx: &Cx) {
    for linear in regions.nodes_where(Op::is_contraction) {
        let mut nodes = if cx.bucket.is_decode() { prologue(regions, linear) } else { vec![] };
        let family = regions.family(linear, cx.bucket);
        nodes.push(linear);
        nodes.extend(epilogue(regions, linear, cx.arch.memory.panel));
        regions.add(family, linear, nodes);
    }
}

/// A norm that only this contraction reads, and a choice of rows that only the norm reads. Threads repeat them, which is
/// cheap for few rows.
fn prologue(r: &Regions, linear: NodeId) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    let mut x = r.graph.operands(linear)[0];
    let own = |x: Value, reader| r.may_join(x.node, r.graph.segment(linear)) && r.sole_reader(x) == Some(reader);
    if matches!(r.graph.op(x.node).values(), Values::Normed(_)) && own(x, linear) {
        nodes.push(x.node);
        x = r.graph.operands(x.node)[0];
    }
    let reader = *nodes.last().unwrap_or(&linear);
    let chosen =
        |x: Value| r.graph.op(x.node).reads(0) == Reads::Chosen && !r.is_given(r.graph.operands(x.node)[0].node);
    if chosen(x) && own(x, reader) {
        nodes.push(x.node);
    }
    nodes
}

/// Elementwise ops on the result, also on slices of it that come together again.
fn epilogue(r: &Regions, linear: NodeId, panel: usize) -> Vec<NodeId> {
    let segment = r.graph.segment(linear);
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut result = Value::from(linear);
    let mut sliced = false;
    loop {
        let map = r.sole_reader(result).filter(|&u| matches!(r.graph.op(u), Op::Map(_)) && r.may_join(u, segment));
        if let Some(map) = map {
            nodes.push(map);
            result = map.into();
        } else if let Some(joined) = if sliced { None } else { join(r, result, panel) } {
            result = (*joined.last().expect("slices that are joined")).into();
            nodes.extend(joined);
            sliced = true;
        } else {
            return nodes;
        }
    }
}

/// Slices that part `whole` evenly along whole panels, with the elementwise ops that make one value of them again, which is
/// the last.
fn join(r: &Regions, whole: Value, panel: usize) -> Option<Vec<NodeId>> {
    let mut nodes = slices(r, whole, panel)?;
    loop {
        let mut open = nodes.iter().copied().filter(|&id| r.escapes(id.into(), &nodes));
        let (first, second) = (open.next()?, open.next());
        if second.is_none() {
            return (*nodes.last()? == first).then_some(nodes);
        }
        // The earliest reader comes next. If it cannot join, two values will leave whatever else does.
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
