//! Linears that read the same value become one, over their weights joined; so do their biases if all have one.
//!
//! ```text
//! %1 = linear %x, %gate       // mlp.gate_proj         %2 = concat %gate, %up {axis = 0}          // mlp
//! %3 = linear %x, %up         // mlp.up_proj     =>    %3 = linear %x, %2                         // mlp
//!                                                      %4 = slice %3 {axis = 1, start = 0, …}     // mlp.gate_proj
//!                                                      %5 = slice %3 {axis = 1, start = 8, …}     // mlp.up_proj
//! ```
//!
//! A weight that something else reads too, such as a tied embedding, stays alone, because joined it would exist twice.
use std::collections::HashMap;

use atomc_ir::{DType, Diagnostic, Elementwise, Graph, Layout, NodeId, Op, Value};

use crate::pass::{Changed, Cx};

pub fn run(graph: &mut Graph, _: &Cx) -> Result<Changed, Diagnostic> {
    let groups = siblings(graph);
    for linears in &groups {
        merge(graph, linears)?;
    }
    Ok((!groups.is_empty()).into())
}

/// Linears that can be merged, two or more in a group, in order.
fn siblings(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let mut group_of: HashMap<(Value, DType, DType), usize> = HashMap::new();
    for id in graph.order() {
        let &Op::Linear { out } = graph.op(id) else { continue };
        let [x, w] = graph.operands(id)[..] else { continue };
        let Some(w) = graph.ty(w).as_tensor().filter(|t| t.layout == Layout::Rows && is_own(graph, w)) else {
            continue;
        };
        let group = *group_of.entry((x, out, w.dtype)).or_insert(groups.len());
        groups.resize(groups.len().max(group + 1), vec![]);
        groups[group].push(id);
    }
    groups.retain(|g| g.len() > 1);
    groups
}

/// Whether a value is part of a weight plan and has one reader.
fn is_own(graph: &Graph, v: Value) -> bool {
    graph.is_constant(v.node) && graph.users(v).len() == 1 && !graph.is_output(v)
}

fn merge(graph: &mut Graph, linears: &[NodeId]) -> Result<(), Diagnostic> {
    let location = common_parent(linears.iter().map(|&id| graph.location(id)));
    let &Op::Linear { out } = graph.op(linears[0]) else { unreachable!("siblings are linears") };
    let x = graph.operands(linears[0])[0];
    let weights: Vec<Value> = linears.iter().map(|&id| graph.operands(id)[1]).collect();
    let weight = graph.push(Op::Concat { axis: 0 }, &weights, &location)?;
    let mut merged = graph.push(Op::Linear { out }, &[x, weight.into()], &location)?;
    let mut branches: Vec<NodeId> = linears.to_vec();
    if let Some((adds, biases)) = biases(graph, linears) {
        let bias = graph.push(Op::Concat { axis: 0 }, &biases, &location)?;
        merged = graph.push(Op::Map(Elementwise::Add), &[merged.into(), bias.into()], &location)?;
        branches = adds;
    }
    let mut start = 0;
    for (branch, w) in branches.into_iter().zip(weights) {
        let len = graph.ty(w).as_tensor().and_then(|t| t.shape.0[0].fixed()).expect("the verifier saw the sizes");
        let location = graph.location(branch).to_string();
        let slice = graph.push(Op::Slice { axis: 1, start, len }, &[merged.into()], &location)?;
        graph.replace_uses(branch.into(), slice.into());
        start += len;
    }
    Ok(())
}

/// The adds of bias vectors of one type that are all that happens to these linears, and the vectors.
fn biases(graph: &Graph, linears: &[NodeId]) -> Option<(Vec<NodeId>, Vec<Value>)> {
    let bias = |&id: &NodeId| {
        let [(add, 0)] = graph.users(id.into())[..] else { return None };
        let bias = *graph.operands(add).get(1)?;
        let vector = graph.ty(bias).as_tensor()?.shape.rank() == 1 && is_own(graph, bias);
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
            %4 = weight {name = "k.weight"} : bf16[4, 8]
            %5 = linear %x, %4 {out = bf16} : bf16[T, 4]
            return %3, %5
        }"#;
        insta::assert_snapshot!(check("merge_weights", text), @r#"
        graph @g(%x: bf16[T, 8]) {
          %0 = weight {name = "q.weight"} : bf16[8, 8]
          %1 = weight {name = "k.weight"} : bf16[4, 8]
          %2 = concat %0, %1 {axis = 0} : bf16[12, 8]
          %3 = linear %x, %2 {out = bf16} : bf16[T, 12]
          %4 = slice %3 {axis = 1, start = 0, len = 8} : bf16[T, 8]
          %5 = weight {name = "q.bias"} : bf16[8]
          %6 = add %4, %5 : bf16[T, 8]
          %7 = slice %3 {axis = 1, start = 8, len = 4} : bf16[T, 4]
          return %6, %7
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
