use std::collections::BTreeMap;

use atomc_ir::interp::{self, Real, Tensor, Val};
use atomc_ir::{DType, Dim, Op, Shape, Type, Value};

use super::*;
use crate::testing::{DECODE, check, read};

/// Numbers at which a formula may fail.
const SPECIALS: [f64; 12] =
    [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-310, 1.5, -2.25, 88.0, -104.0, 3e38];

/// A side of a rule as a graph over matrices of T rows.
fn typed(side: &str) -> Graph {
    let pattern = Pattern::new(side).graph;
    let mut graph = Graph::new("side");
    let mut made: BTreeMap<NodeId, Value> = BTreeMap::new();
    for id in pattern.order() {
        let v = match pattern.op(id) {
            Op::Input { name } => graph.input(name.clone(), Type::tensor(DType::F32, Shape::led_by(Dim::Tokens, &[1]))),
            op => {
                let operands: Vec<Value> = pattern.operands(id).iter().map(|v| made[&v.node]).collect();
                graph.push(op.clone(), &operands, "").unwrap().into()
            }
        };
        made.insert(id, v);
    }
    graph.set_outputs(vec![made[&pattern.outputs()[0].node]]);
    graph
}

/// The result for every combination of special numbers, as bits.
fn bits<S: Real>(graph: &Graph, names: &[String]) -> Vec<Option<u64>> {
    let rows = SPECIALS.len().pow(names.len() as u32);
    let column = |i: usize| {
        let at = |row: usize| S::of(SPECIALS[row / SPECIALS.len().pow(i as u32) % SPECIALS.len()]);
        Val::Float(Tensor::new(vec![rows, 1], (0..rows).map(at).collect()))
    };
    let params = names.iter().enumerate().map(|(i, n)| (n.clone(), column(i))).collect();
    let results = interp::run(graph, interp::Cx::of(rows, 1), &params, &|_| None).unwrap();
    let bits = |v: &S| (!v.get().is_nan()).then(|| v.get().to_bits());
    results[0].float().unwrap().data.iter().map(bits).collect()
}

#[test]
fn rules_keep_the_meaning_of_their_patterns() {
    for rule in RULES {
        let (find, make) = (typed(rule.find), typed(rule.make));
        let name = |v: Value| match find.op(v.node) {
            Op::Input { name } => name.clone(),
            _ => unreachable!("parameters are inputs"),
        };
        let names: Vec<String> = find.inputs().into_iter().map(name).collect();
        assert_eq!(bits::<f32>(&find, &names), bits::<f32>(&make, &names), "{} in f32", rule.name);
        assert_eq!(bits::<f64>(&find, &names), bits::<f64>(&make, &names), "{} in f64", rule.name);
    }
}

#[test]
fn rules_fire_on_their_patterns() {
    for rule in RULES {
        let mut graph = typed(rule.find);
        let root = graph.outputs()[0].node;
        assert!(Prepared::new(rule).apply(&mut graph, root).is_some(), "{}", rule.name);
        graph.sweep();
        graph.verify().unwrap();
        assert_eq!(graph.print(), typed(rule.make).print(), "{}", rule.name);
    }
}

/// Whether some value could be matched by both patterns.
fn overlap(a: (&Graph, Value), b: (&Graph, Value)) -> bool {
    let (op, other) = (a.0.op(a.1.node), b.0.op(b.1.node));
    if matches!(op, Op::Input { .. }) || matches!(other, Op::Input { .. }) {
        return true;
    }
    let (left, mut right) = (a.0.operands(a.1.node), b.0.operands(b.1.node));
    let pairs = |right: &[Value]| left.iter().zip(right).all(|(&l, &r)| overlap((a.0, l), (b.0, r)));
    let straight = pairs(&right);
    right.reverse();
    op.key() == other.key() && (straight || matches!(op, Op::Map(e) if e.commutes()) && pairs(&right))
}

#[test]
fn the_table_says_which_of_two_rules_goes_first() {
    for (i, first) in RULES.iter().enumerate() {
        for later in &RULES[i + 1..] {
            let (a, b) = (Pattern::new(first.find).graph, Pattern::new(later.find).graph);
            let both = overlap((&a, a.outputs()[0]), (&b, b.outputs()[0]));
            assert_eq!(first.before.contains(&later.name), both, "{} before {}", first.name, later.name);
            assert!(!later.before.contains(&first.name), "{} comes after {}", later.name, first.name);
        }
    }
}

#[test]
fn either_order_of_a_product() {
    let text = "graph @g(%a: bf16[T, 4], %b: bf16[T, 4]) {
        %0 = gelu_tanh %a : bf16[T, 4]
        %1 = mul %b, %0 : bf16[T, 4] // mlp
        return %1
    }";
    insta::assert_snapshot!(check("rewrite", text), @"
    graph @g(%a: bf16[T, 4], %b: bf16[T, 4]) {
      %0 = gelu_tanh_mul %a, %b : bf16[T, 4] // mlp
      return %0
    }
    ");
}

#[test]
fn one_product_after_another() {
    let text = "graph @g(%a: bf16[T, 4]) {
        %0 = silu %a : bf16[T, 4]
        %1 = mul %0, %a : bf16[T, 4]
        %2 = silu %1 : bf16[T, 4]
        %3 = mul %1, %2 : bf16[T, 4]
        %4 = gelu %a : bf16[T, 4]
        %5 = silu %a : bf16[T, 4]
        %6 = mul %4, %5 : bf16[T, 4]
        return %3, %6
    }";
    insta::assert_snapshot!(check("rewrite", text), @"
    graph @g(%a: bf16[T, 4]) {
      %0 = silu_mul %a, %a : bf16[T, 4]
      %1 = silu_mul %0, %0 : bf16[T, 4]
      %2 = gelu %a : bf16[T, 4]
      %3 = silu_mul %a, %2 : bf16[T, 4]
      return %1, %3
    }
    ");
}

#[test]
fn why_a_rule_does_not_fire() {
    let text = "graph @g(%a: bf16[T, 4], %b: f32[T, 4]) {
        %0 = silu %a : bf16[T, 4]
        %1 = mul %0, %0 : bf16[T, 4] // squared
        %2 = mul %b, %0 : f32[T, 4] // widened
        %3 = gelu %a : bf16[T, 4]
        %4 = mul %b, %3 : f32[T, 4] // alone
        %5 = gelu %a : bf16[T, 4]
        %6 = mul %5, %b : bf16[T, 4] // fits
        %7 = gelu_tanh %b : f32[T, 4]
        %8 = mul %7, %b : f32[T, 4] // returned
        return %1, %2, %4, %6, %7, %8
    }";
    let all: Vec<String> = explain(&read(text), &DECODE).unwrap().iter().map(|e| e.to_string()).collect();
    insta::assert_snapshot!(all.join("\n"), @"
    rewrite: squared: silu_mul: not, read elsewhere: `mul` of widened reads it too
    rewrite: widened: silu_mul: not, read elsewhere: `mul` of squared reads it too
    rewrite: alone: gelu_mul: not, type: the result would be bf16[T, 4], not f32[T, 4]
    rewrite: fits: gelu_mul
    rewrite: returned: gelu_tanh_mul: not, read elsewhere: it is a result of the step
    ");
}

/// A sum over ranks takes the residual, and one alone. Hidden rows are not made so: a kernel makes
/// these.
#[test]
fn sums_take_what_is_added() {
    let text = "graph @g(%x: bf16[T, 4], %a: bf16[T, 4], %b: bf16[T, 4]) {
        %0 = all_reduce %x : bf16[T, 4]
        %1 = add %0, %a : bf16[T, 4]
        %2 = add %b, %1 : bf16[T, 4]
        return %2
    }";
    insta::assert_snapshot!(check("rewrite", text), @"
    graph @g(%x: bf16[T, 4], %a: bf16[T, 4], %b: bf16[T, 4]) {
      %0 = all_reduce %x, %a : bf16[T, 4]
      %1 = add %b, %0 : bf16[T, 4]
      return %1
    }
    ");
    let text = "graph @g(%x: bf16[T, 4], %a: bf16[T, 4]) {
        %0 = all_reduce %x : bf16[T, 4]
        %1 = add %0, %a : bf16[T, 4]
        return hidden = %1
    }";
    insta::assert_snapshot!(check("rewrite", text), @"
    graph @g(%x: bf16[T, 4], %a: bf16[T, 4]) {
      %0 = all_reduce %x : bf16[T, 4]
      %1 = add %0, %a : bf16[T, 4]
      return hidden = %1
    }
    ");
}
