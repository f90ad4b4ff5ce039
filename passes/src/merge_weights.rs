//! Linears that read the same value become one, over their weights joined; so do their biases if
//! all have one.
//!
//! ```text
//! %1 = linear %x, %gate       // mlp.gate_proj         %2 = concat %gate, %up {axis = 0}          // mlp
//! %3 = linear %x, %up         // mlp.up_proj     =>    %3 = linear %x, %2                         // mlp
//!                                                      %4 = slice %3 {axis = 1, start = 0, …}     // mlp.gate_proj
//!                                                      %5 = slice %3 {axis = 1, start = 8, …}     // mlp.up_proj
//! ```
//!
//! Quantised weights are joined with their scales and zero points. If blocks of one weight would
//! reach into the next, or have other heights, the joined weight has smaller blocks, and scales are
//! repeated.
//!
//! Products with the weights of experts are joined likewise, expert by expert; their biases are
//! then rows of a table that experts choose.
//!
//! Rows are repeated until the joined result is a number of whole vectors, as kernels read and
//! write rows in vectors.
//!
//! A weight with other readers, such as a tied embedding, stays alone, because joined it would
//! exist twice.
use std::collections::BTreeMap;

use atomc_ir::{Block, DType, Diagnostic, Elementwise, Graph, Layout, NodeId, Op, Reads, Value};

use crate::canonicalise;
use crate::explain::{Cause, Place, Why};
use crate::pass::{Changed, Cx};

/// Columns of a vector in which kernels read and write rows.
const VECTOR: usize = 8;

/// Most parts of joined scales: a dozen for each of q, k and v in blocks of 128 rows that end
/// anywhere. More would be a weight plan of single rows.
const MOST_PIECES: usize = 256;

pub fn run(graph: &mut Graph, cx: &Cx) -> Result<Changed, Diagnostic> {
    let mut changed = false;
    for linears in siblings(graph) {
        changed |= merge(graph, &linears)?;
    }
    if changed {
        // A part of a weight that is a slice now becomes a slice of the whole.
        canonicalise::run(graph, cx)?;
    }
    Ok(changed.into())
}

/// Products can be merged if these agree: what they read, the experts, the types of result and
/// weight, and the encoding.
type Key = (Value, Option<Value>, DType, DType, Option<Encoding>);

/// Encodings can be joined along rows if these agree. Their blocks may have different heights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Encoding {
    /// Columns of a block.
    cols: usize,
    scale: DType,
    zero: Option<DType>,
}

/// Each group of products that read the same rows: those that are merged, and why each other one
/// stays apart from the first.
pub fn explain(graph: &Graph, _: &Cx) -> Result<Vec<Place>, Diagnostic> {
    let mut readers: BTreeMap<(Value, Option<Value>), Vec<NodeId>> = BTreeMap::new();
    for id in graph.order().into_iter().filter(|&id| product(graph, id).is_some()) {
        readers.entry((graph.operands(id)[0], experts(graph, id))).or_default().push(id);
    }
    let merged: Vec<Vec<NodeId>> = siblings(graph).into_iter().filter(|all| heights(graph, all).is_some()).collect();
    let named = |id: NodeId| graph.location(id).rsplit('.').next().unwrap_or_default();
    let place =
        |location: &str, what, why_not| Place { pass: "merge_weights", location: location.into(), what, why_not };
    let mut all: Vec<Place> = vec![];
    for products in readers.into_values().filter(|products| products.len() > 1) {
        for one in merged.iter().filter(|one| products.contains(&one[0])) {
            let what: Vec<&str> = one.iter().map(|&id| named(id)).collect();
            let location = common_parent(one.iter().map(|&id| graph.location(id)));
            all.push(place(&location, what.join(" + "), None));
        }
        let with_first = merged.iter().find(|one| one.contains(&products[0]));
        for &other in products[1..].iter().filter(|id| !with_first.is_some_and(|one| one.contains(id))) {
            let what = format!("{} + {}", named(products[0]), named(other));
            all.push(place(graph.location(other), what, Some(apart(graph, products[0], other))));
        }
    }
    Ok(all)
}

/// Why two products that read the same rows are not merged.
fn apart(graph: &Graph, one: NodeId, other: NodeId) -> Why {
    let (first, second) = match (key(graph, one), key(graph, other)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(why), _) | (_, Err(why)) => return why,
    };
    if first.2 != second.2 {
        return Why::new(Cause::Type, format!("results of {} and {}", first.2.name(), second.2.name()));
    }
    if first != second {
        return Why::new(Cause::Type, format!("weights of {} and {}", encoded(&first), encoded(&second)));
    }
    Why::new(Cause::Shape, format!("scales would be repeated in more than {MOST_PIECES} pieces"))
}

/// The weight's type and encoding in words.
fn encoded(&(.., dtype, encoding): &Key) -> String {
    let Some(Encoding { cols, scale, zero }) = encoding else { return dtype.name().into() };
    let zeros = zero.map(|zero| format!(" and zero points of {}", zero.name())).unwrap_or_default();
    format!("{} with scales of {} for {cols} columns{zeros}", dtype.name(), scale.name())
}

/// Linears that can be merged, two or more in a group, in order.
fn siblings(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let mut group_of: BTreeMap<Key, usize> = BTreeMap::new();
    for id in graph.order() {
        let Ok(key) = key(graph, id) else { continue };
        let group = *group_of.entry(key).or_insert(groups.len());
        groups.resize(groups.len().max(group + 1), vec![]);
        groups[group].push(id);
    }
    groups.retain(|g| g.len() > 1);
    groups
}

/// The key of a product that can be merged, or why it cannot be.
fn key(graph: &Graph, id: NodeId) -> Result<Key, Why> {
    let (out, block) = product(graph, id).ok_or_else(|| Why::new(Cause::Op, "it is no such product"))?;
    let operands = graph.operands(id);
    let own = |&v: &Value| {
        if !is_own(graph, v) {
            return Err(Why::read_elsewhere(graph, v, &[id]));
        }
        let ty = graph.ty(v).as_tensor().filter(|t| t.layout == Layout::Rows);
        ty.ok_or_else(|| Why::new(Cause::Shape, "the weight is packed already"))
    };
    let types: Vec<_> = weights(graph, id).iter().map(own).collect::<Result<_, Why>>()?;
    let encoding = block.map(|block| Encoding {
        cols: block.cols.min(types[0].shape.last().expect("a matrix")),
        scale: types[1].dtype,
        zero: types.get(2).map(|t| t.dtype),
    });
    Ok((operands[0], experts(graph, id), out, types[0].dtype, encoding))
}

/// The type of a product's result, and the block of its weight.
fn product(graph: &Graph, id: NodeId) -> Option<(DType, Option<Block>)> {
    match *graph.op(id) {
        Op::Linear { out, block } | Op::Grouped { out, block } => Some((out, block)),
        _ => None,
    }
}

/// The experts of a grouped product.
fn experts(graph: &Graph, id: NodeId) -> Option<Value> {
    matches!(graph.op(id), Op::Grouped { .. }).then(|| graph.operands(id)[2])
}

/// Slots of a product's weight, scales and zero points.
fn slots(graph: &Graph, id: NodeId) -> Vec<usize> {
    let weight = |&slot: &usize| matches!(graph.op(id).reads(slot), Reads::Panels | Reads::Columns | Reads::Shared);
    (0..graph.operands(id).len()).filter(weight).collect()
}

/// A product's weight, its scales and zero points.
fn weights(graph: &Graph, id: NodeId) -> Vec<Value> {
    let operands = graph.operands(id);
    slots(graph, id).into_iter().map(|slot| operands[slot]).collect()
}

/// The axis of a matrix's rows. Experts have a matrix each, along the first axis.
fn axis_of_rows(graph: &Graph, v: Value) -> usize {
    usize::from(graph.ty(v).as_tensor().is_some_and(|t| t.shape.rank() == 3))
}

/// Whether a value is part of a weight plan and has one reader.
fn is_own(graph: &Graph, v: Value) -> bool {
    graph.is_constant(v.node) && graph.users(v).len() == 1 && !graph.is_output(v)
}

/// Puts one linear in the place of several, if their encodings can be one.
fn merge(graph: &mut Graph, linears: &[NodeId]) -> Result<bool, Diagnostic> {
    let location = common_parent(linears.iter().map(|&id| graph.location(id)));
    let Some(rows) = heights(graph, linears) else { return Ok(false) };
    let mut operands = graph.operands(linears[0]);
    let axis = axis_of_rows(graph, operands[1]);
    for slot in slots(graph, linears[0]) {
        let mut parts = Vec::new();
        for &linear in linears {
            parts.extend(part(graph, linear, slot, rows)?);
        }
        parts.extend(padding(graph, linears)?);
        operands[slot] = graph.push(Op::Concat { axis }, &parts, &location)?.into();
    }
    let weights: Vec<Value> = linears.iter().map(|&id| graph.operands(id)[1]).collect();
    let mut op = graph.op(linears[0]).clone();
    if let Op::Linear { block: Some(block), .. } | Op::Grouped { block: Some(block), .. } = &mut op {
        block.rows = rows;
    }
    let mut merged = graph.push(op, &operands, &location)?;
    let mut branches: Vec<NodeId> = linears.to_vec();
    if let Some((adds, biases)) = biases(graph, linears) {
        let mut bias: Value = graph.push(Op::Concat { axis }, &biases, &location)?.into();
        if let Some(experts) = experts(graph, linears[0]) {
            bias = graph.push(Op::Gather {}, &[bias, experts], &location)?.into();
        }
        merged = graph.push(Op::Map(Elementwise::Add), &[merged.into(), bias], &location)?;
        branches = adds;
    }
    let mut start = 0;
    for (branch, w) in branches.into_iter().zip(weights) {
        let len = rows_of(graph, w);
        let location = graph.location(branch).to_string();
        let slice = graph.push(Op::Slice { axis: 1, start, len }, &[merged.into()], &location)?;
        graph.replace_uses(branch.into(), slice.into());
        start += len;
    }
    Ok(true)
}

/// Rows that fill up the last vector of a joined result. Nothing reads them; they repeat the first
/// rows of the largest weight. The gate of a shared expert has one row, for example, and the router
/// next to it many.
fn padding(graph: &mut Graph, linears: &[NodeId]) -> Result<Option<Value>, Diagnostic> {
    let weights: Vec<Value> = linears.iter().map(|&id| graph.operands(id)[1]).collect();
    let all: usize = weights.iter().map(|&w| rows_of(graph, w)).sum();
    let largest = weights.into_iter().max_by_key(|&w| rows_of(graph, w)).expect("two or more");
    let len = all.next_multiple_of(VECTOR) - all;
    let is_plain = matches!(graph.op(linears[0]), Op::Linear { block: None, .. });
    let was_whole = rows_of(graph, largest).is_multiple_of(VECTOR);
    if len == 0 || !was_whole || !is_plain || biases(graph, linears).is_some() {
        return Ok(None);
    }
    let location = graph.location(largest.node).to_string();
    Ok(Some(graph.push(Op::Slice { axis: 0, start: 0, len }, &[largest], &location)?.into()))
}

/// The rows of blocks that suit all the weights, stacked: blocks end where weights do, and where
/// their own blocks do. None if scales would have to be repeated too often; 1 for weights without
/// an encoding.
fn heights(graph: &Graph, linears: &[NodeId]) -> Option<usize> {
    let parts: Vec<(usize, usize)> = linears.iter().filter_map(|&id| height(graph, id)).collect();
    let ends = parts.split_last().map_or(&[][..], |(_, before)| before).iter().map(|&(rows, _)| rows);
    let rows = ends.chain(parts.iter().map(|&(_, height)| height)).fold(0, gcd).max(1);
    let pieces: usize = parts.iter().map(|&(all, height)| if height == rows { 1 } else { all.div_ceil(rows) }).sum();
    (pieces <= MOST_PIECES).then_some(rows)
}

/// The rows of a linear's weight and of one of its blocks, if it has some.
fn height(graph: &Graph, linear: NodeId) -> Option<(usize, usize)> {
    let (_, block) = product(graph, linear)?;
    Some((rows_of(graph, graph.operands(linear)[1]), block?.rows))
}

/// The parts that stand for an operand of a linear after joining, with blocks of `rows` rows.
/// Scales and zero points of taller blocks are repeated for each smaller block.
fn part(graph: &mut Graph, linear: NodeId, slot: usize, rows: usize) -> Result<Vec<Value>, Diagnostic> {
    let own = graph.operands(linear)[slot];
    let Some((all, height)) = height(graph, linear).filter(|&(_, height)| slot > 1 && height != rows) else {
        return Ok(vec![own]);
    };
    let location = graph.location(own.node).to_string();
    let axis = axis_of_rows(graph, own);
    let row = |start| Op::Slice { axis, start, len: 1 };
    let lone = rows_of(graph, own) == 1;
    let starts = (0..all).step_by(rows).map(|first| first / height);
    starts.map(|start| if lone { Ok(own) } else { Ok(graph.push(row(start), &[own], &location)?.into()) }).collect()
}

fn rows_of(graph: &Graph, v: Value) -> usize {
    let axis = axis_of_rows(graph, v);
    graph.ty(v).as_tensor().and_then(|t| t.shape.0[axis].fixed()).expect("the verifier saw the sizes")
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The adds of bias vectors of one type that are the only readers of these linears, and the
/// vectors.
fn biases(graph: &Graph, linears: &[NodeId]) -> Option<(Vec<NodeId>, Vec<Value>)> {
    let bias = |&id: &NodeId| {
        let [(add, 0)] = graph.users(id.into())[..] else { return None };
        let mut bias = *graph.operands(add).get(1)?;
        let mut rank = 1;
        if let Some(experts) = experts(graph, id) {
            let (Op::Gather {}, [table, rows]) = (graph.op(bias.node), &graph.operands(bias.node)[..]) else {
                return None;
            };
            let own = *rows == experts && graph.users(bias).len() == 1 && !graph.is_output(bias);
            (bias, rank) = (own.then_some(*table)?, 2);
        }
        let vector = graph.ty(bias).as_tensor()?.shape.rank() == rank && is_own(graph, bias);
        let add_alone = matches!(graph.op(add), Op::Map(Elementwise::Add)) && !graph.is_output(id.into());
        (vector && add_alone).then_some((add, bias))
    };
    let (adds, biases): (Vec<NodeId>, Vec<Value>) = linears.iter().map(bias).collect::<Option<_>>()?;
    let dtype = |v: &Value| graph.ty(*v).as_tensor().map(|t| t.dtype);
    biases.iter().all(|b| dtype(b) == dtype(&biases[0])).then_some((adds, biases))
}

/// The longest module path that all of these are in.
fn common_parent<'a>(mut locations: impl Iterator<Item = &'a str>) -> String {
    let mut common: Vec<&str> = locations.next().map_or(vec![], |l| l.split('.').collect());
    for location in locations {
        let same = common.iter().zip(location.split('.')).take_while(|(a, b)| **a == *b).count();
        common.truncate(same);
    }
    common.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;

    #[test]
    fn weights_and_biases() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "q.weight"} : bf16[8, 8]
            %1 = linear %x, %0 {out = bf16} : bf16[T, 8] // l.0.attn.q
            %2 = weight {name = "q.bias"} : bf16[8]
            %3 = add %1, %2 : bf16[T, 8] // l.0.attn.q
            %4 = weight {name = "k.weight"} : bf16[4, 8]
            %5 = linear %x, %4 {out = bf16} : bf16[T, 4] // l.0.attn.k
            %6 = weight {name = "k.bias"} : bf16[4]
            %7 = add %5, %6 : bf16[T, 4] // l.0.attn.k
            return %3, %7
        }"#;
        insta::assert_snapshot!(check("merge_weights", text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "q.weight"} : bf16[8, 8]
          %1 = weight {name = "k.weight"} : bf16[4, 8]
          %2 = concat %0, %1 {axis = 0} : bf16[12, 8] // l.0.attn
          %3 = linear %x, %2 {out = bf16} : bf16[T, 12] // l.0.attn
          %4 = weight {name = "q.bias"} : bf16[8]
          %5 = weight {name = "k.bias"} : bf16[4]
          %6 = concat %4, %5 {axis = 0} : bf16[12] // l.0.attn
          %7 = add %3, %6 : bf16[T, 12] // l.0.attn
          %8 = slice %7 {axis = 1, start = 0, len = 8} : bf16[T, 8] // l.0.attn.q
          %9 = slice %7 {axis = 1, start = 8, len = 4} : bf16[T, 4] // l.0.attn.k
          return %8, %9
        }
        "#);
    }

    #[test]
    fn a_bias_that_not_all_have_stays() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "q.weight"} : bf16[8, 8]
            %1 = linear %x, %0 {out = bf16} : bf16[T, 8]
            %2 = weight {name = "q.bias"} : bf16[8]
            %3 = add %1, %2 : bf16[T, 8]
            %4 = weight {name = "k.weight"} : bf16[8, 8]
            %5 = linear %x, %4 {out = bf16} : bf16[T, 8]
            return %3, %5
        }"#;
        insta::assert_snapshot!(check("merge_weights", text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "q.weight"} : bf16[8, 8]
          %1 = weight {name = "k.weight"} : bf16[8, 8]
          %2 = concat %0, %1 {axis = 0} : bf16[16, 8]
          %3 = linear %x, %2 {out = bf16} : bf16[T, 16]
          %4 = slice %3 {axis = 1, start = 0, len = 8} : bf16[T, 8]
          %5 = weight {name = "q.bias"} : bf16[8]
          %6 = add %4, %5 : bf16[T, 8]
          %7 = slice %3 {axis = 1, start = 8, len = 8} : bf16[T, 8]
          return %6, %7
        }
        "#);
    }

    #[test]
    fn a_last_vector_is_filled_up() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "router"} : bf16[16, 8]
            %1 = linear %x, %0 {out = f32} : f32[T, 16] // l.0.router
            %2 = weight {name = "gate"} : bf16[1, 8]
            %3 = linear %x, %2 {out = f32} : f32[T, 1] // l.0.gate
            return %1, %3
        }"#;
        insta::assert_snapshot!(check("merge_weights", text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "router"} : bf16[16, 8]
          %1 = weight {name = "gate"} : bf16[1, 8]
          %2 = slice %0 {axis = 0, start = 0, len = 7} : bf16[7, 8]
          %3 = concat %0, %1, %2 {axis = 0} : bf16[24, 8] // l.0
          %4 = linear %x, %3 {out = f32} : f32[T, 24] // l.0
          %5 = slice %4 {axis = 1, start = 0, len = 16} : f32[T, 16] // l.0.router
          %6 = slice %4 {axis = 1, start = 16, len = 1} : f32[T, 1] // l.0.gate
          return %5, %6
        }
        "#);
    }

    #[test]
    fn a_bias_is_left_where_the_product_is_needed_without() {
        let text = r#"graph @g(%x: bf16[T, 8]) {
            %0 = weight {name = "a"} : bf16[4, 8]
            %1 = linear %x, %0 {out = bf16} : bf16[T, 4]
            %2 = weight {name = "b"} : bf16[4]
            %3 = add %1, %2 : bf16[T, 4]
            %4 = weight {name = "c"} : bf16[4, 8]
            %5 = linear %x, %4 {out = bf16} : bf16[T, 4]
            %6 = weight {name = "d"} : bf16[4]
            %7 = add %5, %6 : bf16[T, 4]
            return %1, %3, %7
        }"#;
        let after = check("merge_weights", text);
        assert_eq!((after.matches("= linear").count(), after.matches("= add").count()), (1, 2), "{after}");
    }

    /// Three linears with quantised weights: their rows, the rows of a block, and columns.
    fn encoded(parts: [(usize, usize); 3], cols: usize) -> String {
        let part = |(i, (rows, height)): (usize, (usize, usize))| {
            let grid = format!("[{}, {}]", rows.div_ceil(height), 8usize.div_ceil(cols));
            format!(
                r#"%w{i} = weight {{name = "w{i}"}} : i8[{rows}, 8]
                %s{i} = weight {{name = "s{i}"}} : f32{grid}
                %z{i} = weight {{name = "z{i}"}} : i8{grid}
                %y{i} = linear %x, %w{i}, %s{i}, %z{i} {{out = bf16, block = [{height}, {cols}]}} : bf16[T, {rows}]
                "#
            )
        };
        let parts: String = parts.into_iter().enumerate().map(part).collect();
        format!("graph @g(%x: bf16[T, 8]) {{\n{parts}return %y0, %y1, %y2\n}}")
    }

    #[test]
    fn scales_and_zero_points_are_joined() {
        let text = encoded([(8, 1), (4, 1), (4, 1)], 4);
        insta::assert_snapshot!(check("merge_weights", &text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "w0"} : i8[8, 8]
          %1 = weight {name = "w1"} : i8[4, 8]
          %2 = weight {name = "w2"} : i8[4, 8]
          %3 = concat %0, %1, %2 {axis = 0} : i8[16, 8]
          %4 = weight {name = "s0"} : f32[8, 2]
          %5 = weight {name = "s1"} : f32[4, 2]
          %6 = weight {name = "s2"} : f32[4, 2]
          %7 = concat %4, %5, %6 {axis = 0} : f32[16, 2]
          %8 = weight {name = "z0"} : i8[8, 2]
          %9 = weight {name = "z1"} : i8[4, 2]
          %10 = weight {name = "z2"} : i8[4, 2]
          %11 = concat %8, %9, %10 {axis = 0} : i8[16, 2]
          %12 = linear %x, %3, %7, %11 {out = bf16, block = [1, 4]} : bf16[T, 16]
          %13 = slice %12 {axis = 1, start = 0, len = 8} : bf16[T, 8]
          %14 = slice %12 {axis = 1, start = 8, len = 4} : bf16[T, 4]
          %15 = slice %12 {axis = 1, start = 12, len = 4} : bf16[T, 4]
          return %13, %14, %15
        }
        "#);
    }

    /// One scale for each tensor becomes one scale for as many rows as divide all of them.
    #[test]
    fn scales_of_tensors_are_repeated() {
        let after = check("merge_weights", &encoded([(12, 12), (4, 4), (4, 4)], 8));
        assert!(after.contains("block = [4, 8]"), "{after}");
        assert!(after.contains("f32[5, 1]") && !after.contains("axis = 0, start"), "{after}");
    }

    /// A block at the end of a weight does not reach into the next weight.
    #[test]
    fn blocks_that_weights_end_in_are_parted() {
        let after = check("merge_weights", &encoded([(12, 8), (4, 8), (8, 8)], 8));
        assert!(after.contains("block = [4, 8]"), "{after}");
        assert_eq!(after.matches("= linear").count(), 1, "{after}");
        let even = check("merge_weights", &encoded([(16, 8), (8, 8), (4, 8)], 8));
        assert!(even.contains("block = [8, 8]") && !even.contains("axis = 0, start"), "{even}");
    }

    #[test]
    fn encodings_that_differ_stay_apart() {
        let text = encoded([(8, 1), (4, 1), (4, 1)], 4);
        let linears = |text: &str| check("merge_weights", text).matches("= linear").count();
        assert_eq!(linears(&text), 1);
        assert_eq!(linears(&text.replace(r#"{name = "s1"} : f32"#, r#"{name = "s1"} : bf16"#)), 2);
        assert_eq!(linears(&text.replace(", %z2 {", " {")), 2);
        // Alternating rows would need the scales of two of them.
        assert_eq!(linears(&encoded([(250, 2), (250, 1), (250, 1)], 8)), 1);
        assert_eq!(linears(&encoded([(1000, 2), (1000, 1), (1000, 1)], 8)), 3);
    }

    #[test]
    fn what_stays_alone() {
        let unchanged = |w: &str, out: &str, more: &str| {
            let text = format!(
                r#"graph @g(%x: bf16[T, 8], %ids: i32[T]) {{
                  %0 = weight {{name = "a"}} : {w}[8, 8]
                  %1 = linear %x, %0 {{out = {out}}} : {out}[T, 8]
                  %2 = weight {{name = "b"}} : bf16[8, 8]
                  %3 = linear %x, %2 {{out = bf16}} : bf16[T, 8]
                  {more}
                  return %1, %3, %4
                }}"#
            );
            assert!(!check("merge_weights", &text).contains("concat"), "{text}");
        };
        let other = "%4 = silu %x : bf16[T, 8]";
        unchanged("f16", "bf16", other);
        unchanged("bf16", "f32", other);
        unchanged("bf16", "bf16", "%4 = gather %0, %ids : bf16[T, 8]");
    }

    #[test]
    fn common_parents() {
        let check = |locations: &[&str]| common_parent(locations.iter().copied());
        assert_eq!(check(&["l.0.attn.q", "l.0.attn.k"]), "l.0.attn");
        assert_eq!(check(&["l.0.attn", "l.0.attn"]), "l.0.attn");
        assert_eq!(check(&["l.10.q", "l.1.q"]), "l");
        assert_eq!(check(&["a", "b"]), "");
    }
}
