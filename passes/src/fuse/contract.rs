//! Kernels around a contraction. Only one value leaves each, and all of its nodes lead there, so
//! that no path can leave a region and come back.
use atomc_ir::arch::Machine;
use atomc_ir::{Layout, NodeId, Op, Reads, Rule, TensorType, Tokens, Value, Values};

use super::{Regions, Taken};
use crate::explain::{Cause, Why};
use crate::pass::Cx;

pub fn claim(regions: &mut Regions, cx: &Cx) {
    for linear in regions.nodes_where(Op::is_contraction) {
        let family = regions.family(linear, cx);
        let before = if family.tokens() == Tokens::Bucket { prologue } else { rows_as_they_are };
        let mut taken = before(regions, linear, cx);
        if taken.nodes.is_empty() && is_by_parts(regions, linear) {
            taken.nodes = heads(regions, linear);
        }
        taken.nodes.push(linear);
        let behind = epilogue(regions, linear, cx);
        taken.nodes.extend(behind.nodes);
        taken.left.extend(behind.left);
        regions.leave(taken.left);
        regions.add(family, linear, taken.nodes);
    }
}

/// The experts that a contraction's rows choose, if they choose some.
fn experts<'a>(r: &'a Regions, product: NodeId) -> Option<&'a TensorType> {
    r.graph.operands(product).into_iter().filter_map(|v| r.graph.ty(v).as_tensor()).find(|t| t.is_indices())
}

/// Whether a contraction multiplies each part of a row by a matrix of its own.
fn is_by_parts(r: &Regions, product: NodeId) -> bool {
    rank(r, r.graph.operands(product)[1]) == Some(3) && experts(r, product).is_none()
}

/// The range of columns that a node takes of each row.
fn columns(r: &Regions, id: NodeId) -> Option<(usize, usize)> {
    match r.graph.op(id).values() {
        Values::Part { of: 1, start, len } if rank(r, id.into()) == Some(2) => Some((start, len)),
        _ => None,
    }
}

fn rank(r: &Regions, v: Value) -> Option<usize> {
    Some(r.graph.ty(v).as_tensor()?.shape.rank())
}

/// Nothing: steps of many rows compute them once, not in each work-group.
fn rows_as_they_are(r: &Regions, linear: NodeId, _: &Cx) -> Taken {
    let mut taken = Taken::default();
    let text = "products of many rows read them as they are, made once and not in each work-group";
    taken.leave(r.graph.operands(linear)[0], linear, Why::new(Cause::Step, text));
    taken
}

/// The nodes that only this contraction reads, backwards from it: quantising, multiplication by
/// constants, a norm, a choice of rows, or columns of normed ones. Threads repeat them, which is
/// cheap for few rows.
fn prologue(r: &Regions, linear: NodeId, cx: &Cx) -> Taken {
    let mut taken = Taken::default();
    let mut x = r.graph.operands(linear)[0];
    let width = r.graph.ty(x).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0);
    let tokens = cx.bucket.tokens();
    let own = |x: Value, reader| r.joins(x.node, r.graph.segment(linear)).and_then(|()| r.is_read_by(x, reader));
    let mut reader = linear;
    let as_codes = multiplies_codes(r, linear, cx);
    let with_scales = matches!(r.graph.op(x.node), Op::Quantise { rule: Rule::MxCodes(_), .. });
    if matches!(r.graph.op(x.node).values(), Values::Coded) && (as_codes || with_scales || cx.codes_apart(width)) {
        let most = cx.arch.requantised.most(tokens);
        let text = match (as_codes, with_scales) {
            (true, _) => "experts' rows are multiplied as the codes that a kernel of their own makes of them".into(),
            (_, true) => "instructions take codes with their scales, which a kernel of their own makes".into(),
            _ => format!("{tokens} rows of {width} are more than the {most} numbers that a work-group codes"),
        };
        taken.leave(x, linear, Why::new(Cause::Step, text));
        return taken;
    }
    let mut why = Why::new(Cause::Op, "before a product go codes, multiples, a norm, and a choice or parts of rows");
    let is_coded = |op: &Op| matches!(op.values(), Values::Coded);
    let is_multiple = |op: &Op| op.values() == Values::Multiplied;
    let is_normed = |op: &Op| matches!(op.values(), Values::Normed(_));
    for is_next in [&is_coded as &dyn Fn(&Op) -> bool, &is_multiple, &is_normed] {
        if !is_next(r.graph.op(x.node)) {
            continue;
        }
        let most = if is_normed(r.graph.op(x.node)) { normed(r, linear, cx) } else { usize::MAX };
        if tokens * width > most {
            let text = format!("{tokens} rows of {width} are more than the {most} numbers that a work-group norms");
            why = Why::new(Cause::Step, text);
            break;
        }
        let given = r.graph.operands(x.node)[1..].iter().all(|v| r.graph.is_constant(v.node));
        let computed = || Why::new(Cause::Op, "what the rows are multiplied by is computed");
        match own(x, reader).and_then(|()| if given { Ok(()) } else { Err(computed()) }) {
            Err(not) => why = not,
            Ok(()) => {
                reader = x.node;
                taken.nodes.push(reader);
                x = r.graph.operands(reader)[0];
            }
        }
    }
    let chosen =
        |x: Value| r.graph.op(x.node).reads(0) == Reads::Chosen && !r.is_given(r.graph.operands(x.node)[0].node);
    // A part of a product that was merged from several.
    let is_part = columns(r, x.node).is_some() && !taken.nodes.is_empty();
    if chosen(x) || is_part {
        match own(x, reader) {
            Err(not) => why = not,
            Ok(()) => {
                taken.nodes.push(x.node);
                return taken;
            }
        }
    }
    taken.leave(x, reader, why);
    taken
}

/// Whether a product of experts multiplies quantised rows and weights as stored.
fn multiplies_codes(r: &Regions, product: NodeId, cx: &Cx) -> bool {
    let operands = r.graph.operands(product);
    let dtype = |v: Value| r.graph.ty(v).as_tensor().map(|t| t.dtype);
    let codes = dtype(operands[0]).filter(|&rows| dtype(operands[1]) == Some(rows));
    let Some(codes) = codes.filter(|_| matches!(r.graph.op(product), Op::Grouped { .. })) else { return false };
    matches!(&cx.arch.machine, Machine::Simt(simt) if simt.warpgroup_mma || simt.product(codes).is_some())
}

/// Most numbers that are normed before a product. On GPUs each row of an expert has work-groups of
/// its own, which would all norm it. Where four waves multiply together, they scale its sums.
fn normed(r: &Regions, linear: NodeId, cx: &Cx) -> usize {
    let tensor = |slot: usize| r.graph.ty(r.graph.operands(linear)[slot]).as_tensor();
    let limit = cx.arch.normed;
    let most = if tensor(1).is_some_and(|w| w.dtype.is_code()) { limit.quantised } else { limit.floats };
    let norms_rows = matches!(&cx.arch.machine, Machine::Simt(simt) if !simt.warpgroup_mma);
    match experts(r, linear) {
        Some(_) if norms_rows => most.min(tensor(0).and_then(|x| x.shape.last()).unwrap_or(0)),
        _ => most,
    }
}

/// The heads of a row, which kernels read there one by one.
fn heads(r: &Regions, linear: NodeId) -> Vec<NodeId> {
    let x = r.graph.operands(linear)[0];
    let own = r.may_join(x.node, r.graph.segment(linear)) && r.sole_reader(x) == Some(linear);
    let is_part = matches!(r.graph.op(x.node).values(), Values::Part { .. });
    let of_rows = || rank(r, r.graph.operands(x.node)[0]) == Some(2);
    if own && is_part && of_rows() { vec![x.node] } else { vec![] }
}

/// Elementwise ops on the result, also on slices of it that are joined again.
fn epilogue(r: &Regions, linear: NodeId, cx: &Cx) -> Taken {
    let panel = cx.arch.memory.panel;
    let segment = r.graph.segment(linear);
    let mut taken = Taken::default();
    let mut result = Value::from(linear);
    let mut sliced = false;
    if is_by_parts(r, linear) {
        let reader = r.sole_reader(result).filter(|&u| r.may_join(u, segment));
        taken.nodes.extend(reader.filter(|&u| is_same(r, result, u)));
        return taken;
    }
    loop {
        let map = match elementwise(r, result, segment) {
            Err(why) => why,
            Ok(map) => {
                taken.nodes.extend(rows_of_experts(r, linear, map));
                taken.nodes.push(map);
                result = map.into();
                continue;
            }
        };
        let once = if sliced { Err(again()) } else { Ok(()) };
        let join = match once.clone().and_then(|()| join(r, result, panel)) {
            Err(why) => why,
            Ok(joined) => {
                result = (*joined.last().expect("slices that are joined")).into();
                taken.nodes.extend(joined);
                sliced = true;
                continue;
            }
        };
        let combine = match once.and_then(|()| combine(r, linear, (result, &taken.nodes), cx)) {
            Err(why) => why,
            Ok(combine) => {
                taken.nodes.push(combine);
                result = combine.into();
                // From here on there is one row for each token.
                sliced = true;
                continue;
            }
        };
        for (reader, _) in r.graph.users(result) {
            let why = match r.graph.op(reader) {
                Op::Map(_) => map.clone(),
                _ if columns(r, reader).is_some() => join.clone(),
                op if op.reads(0) == Reads::Choices => combine.clone(),
                other => behind(other),
            };
            taken.leave(result, reader, why);
        }
        return taken;
    }
}

/// Whether an op returns the elements of a value unchanged, row by row, at most under another
/// shape.
fn is_same(r: &Regions, v: Value, id: NodeId) -> bool {
    let row = |v: Value| r.graph.ty(v).as_tensor().map(|t| (t.dtype, t.shape.row()));
    let op = r.graph.op(id);
    op.values() == Values::Kept && op.reads(0) == Reads::Row && row(v) == row(id.into())
}

fn again() -> Why {
    Why::new(Cause::Shape, "behind a product parts come together, or choices are added up, once")
}

fn behind(op: &Op) -> Why {
    match op.is_call() {
        true => Why::new(Cause::Boundary, format!("`{}` is the caller's work", op.name())),
        false => Why::new(Cause::Op, format!("behind a product go elementwise ops, and no `{}`", op.name())),
    }
}

/// The elementwise op that alone reads a result.
fn elementwise(r: &Regions, result: Value, segment: Option<usize>) -> Result<NodeId, Why> {
    let readers = r.graph.users(result);
    let Some(&(reader, _)) = readers.iter().find(|(user, _)| matches!(r.graph.op(*user), Op::Map(_))) else {
        return Err(Why::new(Cause::Op, "no elementwise op reads it"));
    };
    r.is_read_by(result, reader).and_then(|()| r.joins(reader, segment)).map(|()| reader)
}

/// The nodes that choose rows of a table by the same experts as the product's weights, for one
/// later reader alone.
fn rows_of_experts(r: &Regions, product: NodeId, reader: NodeId) -> Vec<NodeId> {
    let own = |v: &Value| {
        let chosen = r.graph.op(v.node).reads(0) == Reads::Chosen && r.may_join(v.node, r.graph.segment(reader));
        let same = |of: &[Value]| r.graph.is_constant(of[0].node) && r.graph.operands(product).contains(&of[1]);
        chosen && r.sole_reader(*v) == Some(reader) && same(&r.graph.operands(v.node))
    };
    let chosen: Vec<Value> = r.graph.operands(reader).into_iter().filter(own).collect();
    chosen.into_iter().map(|v| v.node).collect()
}

/// The sum over a token's choices, if it sums only the product and perhaps biases. Where rows are
/// not grouped, GPUs add it up while they multiply by the weights of a token's experts.
fn combine(r: &Regions, product: NodeId, (result, nodes): (Value, &[NodeId]), cx: &Cx) -> Result<NodeId, Why> {
    let readers = r.graph.users(result);
    let sum = readers.into_iter().map(|(user, _)| user).find(|&user| r.graph.op(user).reads(0) == Reads::Choices);
    let (Some(experts), Some(sum)) = (experts(r, product), sum) else {
        return Err(Why::new(Cause::Op, "only choices of experts are added up"));
    };
    r.is_read_by(result, sum).and_then(|()| r.joins(sum, r.graph.segment(product)))?;
    if !matches!(cx.arch.machine, Machine::Simt(_)) {
        return Err(Why::new(Cause::Chip, format!("kernels of {} do not add choices up", cx.arch.name)));
    }
    if experts.layout != Layout::Rows {
        return Err(Why::new(Cause::Step, "rows of many tokens lie expert by expert, not token by token"));
    }
    let biases = |&id: &NodeId| match r.graph.op(id).values() {
        Values::Added => r.graph.operands(id).iter().any(|v| nodes.contains(&v.node) || v.node == product),
        _ => r.graph.op(id).reads(0) == Reads::Chosen,
    };
    match r.graph.operands(sum)[0] == result && nodes.iter().all(biases) {
        true => Ok(sum),
        false => Err(Why::new(Cause::Op, "between the product and the sum goes a bias alone")),
    }
}

/// Slices that divide `whole` evenly along whole panels, and the elementwise ops that join them to
/// one value. The last of these is the value.
fn join(r: &Regions, whole: Value, panel: usize) -> Result<Vec<NodeId>, Why> {
    let mut nodes = slices(r, whole, panel)?;
    let several = || Why::new(Cause::ReadElsewhere, "more than one value of the parts is read behind them");
    loop {
        let mut open = nodes.iter().copied().filter(|&id| r.escapes(id.into(), &nodes));
        let (first, second) = (open.next().ok_or_else(several)?, open.next());
        if second.is_none() {
            return if nodes.last() == Some(&first) { Ok(nodes) } else { Err(several()) };
        }
        // The earliest reader comes next. If it cannot join, two values leave in any case.
        let readers = nodes.iter().flat_map(|&id| r.graph.users(id.into())).map(|(user, _)| user);
        let next = readers.filter(|user| !nodes.contains(user)).min_by_key(|user| r.place[user]);
        let next = next.ok_or_else(several)?;
        r.joins(next, r.graph.segment(whole.node))?;
        if !matches!(r.graph.op(next), Op::Map(_)) {
            let name = r.graph.op(next).name();
            return Err(Why::new(Cause::Op, format!("parts come together in elementwise ops, and not in `{name}`")));
        }
        nodes.push(next);
    }
}

/// The readers of `whole`, if they are slices that divide it evenly along panels.
fn slices(r: &Regions, whole: Value, panel: usize) -> Result<Vec<NodeId>, Why> {
    let readers: Vec<NodeId> = r.graph.users(whole).into_iter().map(|(user, _)| user).collect();
    let range = |id: NodeId| Some((id, columns(r, id)?));
    let (parts, mut ranges): (Vec<NodeId>, Vec<(usize, usize)>) = readers.iter().copied().filter_map(range).unzip();
    if parts.len() < readers.len() || r.graph.is_output(whole) {
        return Err(Why::read_elsewhere(r.graph, whole, &parts));
    }
    parts.iter().try_for_each(|&id| r.joins(id, r.graph.segment(whole.node)))?;
    ranges.sort();
    let width = ranges.first().map_or(0, |&(_, width)| width);
    let total = r.graph.ty(whole).as_tensor().and_then(|t| t.shape.last());
    let even = ranges.iter().enumerate().all(|(i, range)| *range == (i * width, width));
    if parts.is_empty() || !even || total != Some(ranges.len() * width) {
        return Err(Why::new(Cause::Shape, "the parts are not equal, or not all of it"));
    }
    match width % panel {
        0 => Ok(parts),
        _ => Err(Why::new(Cause::Shape, format!("parts of {width} columns are no whole panels of {panel}"))),
    }
}
