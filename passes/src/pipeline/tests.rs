use std::collections::BTreeSet;

use atomc_ir::{Family, NodeId, Op, Type, parse};
use proptest::prelude::*;

use super::*;
use crate::testing::{ANY, DECODE, Dense, WHOLE, apply, graphs, read, same_meaning};

fn fused(graph: &Graph, cx: &Cx) -> Graph {
    let mut graph = graph.clone();
    run(&mut graph, cx, None, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    graph
}

fn kernels_at<'a>(graph: &'a Graph, location: &str) -> Vec<(Family, &'a Graph)> {
    let here =
        crate::Order::new(graph, None, None).steps.into_iter().filter(|&id| graph.location(id).starts_with(location));
    here.map(|id| match graph.op(id) {
        Op::Kernel { family, body } => (*family, body.as_ref()),
        _ => unreachable!("kernels are kernels"),
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn passes_keep_the_meaning(graph in graphs()) {
        for cx in [DECODE, ANY, WHOLE] {
            let mut so_far = graph.clone();
            for pass in PASSES {
                apply(pass, &mut so_far, &cx);
                prop_assert_eq!(same_meaning(&graph, &so_far), Ok(()), "{} of\n{}", pass.name, graph.print());
            }
        }
    }

    #[test]
    fn passes_need_no_other_pass(graph in graphs()) {
        for pass in PASSES.iter().filter(|p| p.stage == Stage::Model) {
            let mut alone = graph.clone();
            apply(pass, &mut alone, &WHOLE);
            prop_assert_eq!(same_meaning(&graph, &alone), Ok(()), "{} of\n{}", pass.name, graph.print());
        }
    }

    /// The result of a pass follows from the text of a graph, not from how it was built.
    #[test]
    fn same_text_same_result(graph in graphs()) {
        let again = parse(&graph.print()).unwrap();
        for cx in [DECODE, ANY, WHOLE] {
            prop_assert_eq!(fused(&graph, &cx).print(), fused(&again, &cx).print());
        }
    }

    #[test]
    fn kernels_have_the_form_of_their_family(graph in graphs()) {
        for cx in [DECODE, ANY, WHOLE] {
            let graph = fused(&graph, &cx);
            let kernel = |id: &NodeId| !graph.op(*id).is_call();
            for id in crate::Order::new(&graph, None, None).steps.into_iter().filter(kernel) {
                prop_assert_eq!(form(&graph, id), Ok(()));
            }
        }
    }
}

/// The facts that every emitter relies on.
fn form(graph: &Graph, id: NodeId) -> Result<(), String> {
    let Op::Kernel { family, body } = graph.op(id) else { unreachable!("kernels are kernels") };
    let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(format!("{what}: {}", body.print())) };
    let count = |test: fn(&Op) -> bool| body.ids().filter(|&n| test(body.op(n))).count();
    let (contractions, boundaries) = match family {
        Family::Rows => (0, 0),
        Family::Matvec | Family::Matmul | Family::GroupedMatvec | Family::GroupedMatmul => (1, 0),
        Family::Group => (0, 0),
        Family::AttendOne | Family::AttendMany | Family::AttendListed | Family::Choose | Family::Recur => (0, 1),
    };
    check(count(Op::is_contraction) == contractions, "contractions")?;
    check(count(Op::is_boundary) == boundaries, "boundaries")?;
    check(contractions == 0 || graph.types(id).len() == 1, "results of a contraction")?;
    let leads = graph.types(id).iter().filter_map(|t| Some(t.as_tensor()?.shape.0[0].to_string()));
    check(leads.collect::<BTreeSet<_>>().len() <= 1, "rows of the results")?;
    let caches: Vec<bool> = graph.types(id).iter().map(Type::is_state).collect();
    check(caches.is_sorted(), "tensors before caches")?;
    let operands = graph.operands(id);
    check(operands.iter().collect::<BTreeSet<_>>().len() == operands.len(), "operands")?;
    let is_input = |n: NodeId| matches!(body.op(n), Op::Input { .. });
    let inside = |n: NodeId| matches!(body.op(n), Op::Gather {}) && !is_input(body.operands(n)[0].node);
    check(!body.ids().any(inside), "a table that is made where it is read")?;
    let bare = |n: NodeId| body.location(n).is_empty() && body.segment(n).is_none();
    check(body.ids().all(bare), "locations and segments")
}

#[test]
fn a_dense_layer_is_five_kernels_for_decode() {
    for model in [Dense::qwen3(3), Dense::llama(3)] {
        let graph = fused(&model.graph(), &DECODE);
        let families: Vec<Family> = kernels_at(&graph, "model.layers.1").into_iter().map(|(f, _)| f).collect();
        assert_eq!(families, [Family::Matvec, Family::AttendOne, Family::Matvec, Family::Matvec, Family::Matvec]);
    }
}

/// The feed-forward of a layer of experts, with biases.
const EXPERTS: &str = r#"graph @g(%x: bf16[T, 16]) {
    %n = weight {name = "n"} : bf16[16]
    %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 16]
    %r = weight {name = "r"} : bf16[5, 16]
    %1 = linear %0, %r {out = f32} : f32[T, 5]
    %2, %3 = route %1 {by = (2, softmax, 1, 1, max, true, 1.0)} : f32[T, 2], i32[T*2]
    %g = weight {name = "gate"} : bf16[5, 8, 16]
    %4 = grouped %0, %g, %3 {out = bf16} : bf16[T*2, 8]
    %gb = weight {name = "gate.bias"} : bf16[5, 8]
    %5 = gather %gb, %3 : bf16[T*2, 8]
    %6 = add %4, %5 : bf16[T*2, 8]
    %u = weight {name = "up"} : bf16[5, 8, 16]
    %7 = grouped %0, %u, %3 {out = bf16} : bf16[T*2, 8]
    %ub = weight {name = "up.bias"} : bf16[5, 8]
    %8 = gather %ub, %3 : bf16[T*2, 8]
    %9 = add %7, %8 : bf16[T*2, 8]
    %10 = silu %6 : bf16[T*2, 8]
    %11 = mul %10, %9 : bf16[T*2, 8]
    %d = weight {name = "down"} : bf16[5, 16, 8]
    %12 = grouped %11, %d, %3 {out = bf16} : bf16[T*2, 16]
    %db = weight {name = "down.bias"} : bf16[5, 16]
    %13 = gather %db, %3 : bf16[T*2, 16]
    %14 = add %12, %13 : bf16[T*2, 16]
    %15 = combine %14, %2 : bf16[T, 16]
    %16 = add %x, %15 : bf16[T, 16]
    return %16
}"#;

#[test]
fn a_layer_of_experts_in_kernels() {
    insta::assert_snapshot!("experts_decode", fused(&read(EXPERTS), &DECODE).print());
    insta::assert_snapshot!("experts_any", fused(&read(EXPERTS), &ANY).print());
}

#[test]
fn equal_layers_share_their_kernels() {
    for (model, cx) in [(Dense::qwen3(5), DECODE), (Dense::llama(5), ANY)] {
        let graph = fused(&model.graph(), &cx);
        let of_layer = |i: usize| -> Vec<String> {
            kernels_at(&graph, &format!("model.layers.{i}.")).iter().map(|(_, body)| body.print()).collect()
        };
        assert_eq!(of_layer(1), of_layer(3));
        // The last layer gives its result to the head, and the first one takes its own from the
        // embedding.
        assert_eq!(of_layer(1), of_layer(4));
        assert_eq!(of_layer(0).len(), of_layer(1).len());
    }
}

#[test]
fn models_keep_their_meaning() {
    for model in [Dense::qwen3(2), Dense::llama(2), Dense { tied: true, bias: true, ..Dense::qwen3(1) }] {
        for cx in [DECODE, ANY, WHOLE] {
            let graph = model.graph();
            assert_eq!(same_meaning(&graph, &fused(&graph, &cx)), Ok(()));
        }
    }
}

#[test]
fn a_layer_for_decode() {
    insta::assert_snapshot!(fused(&Dense::qwen3(1).graph(), &DECODE).print());
}

#[test]
fn a_layer_for_anything() {
    insta::assert_snapshot!(fused(&Dense::qwen3(1).graph(), &ANY).print());
}

#[test]
fn a_layer_with_biases() {
    insta::assert_snapshot!(fused(&Dense::llama(1).graph(), &DECODE).print());
}

#[test]
fn until_stops_after_a_pass() {
    let mut seen = vec![];
    run(&mut Dense::qwen3(1).graph(), &DECODE, Some("cse"), &mut |pass, _| seen.push(pass.name)).unwrap();
    assert_eq!(seen, ["dce", "canonicalise", "narrow", "cse"]);
}

#[test]
fn unknown_passes_are_refused() {
    let e = run(&mut Dense::qwen3(1).graph(), &DECODE, Some("fusion"), &mut |_, _| {}).unwrap_err();
    assert_eq!(e.to_string(), "there is no pass `fusion`");
    let help = "the passes are dce, canonicalise, narrow, cse, merge_weights, rewrite, mx_codes, pack, \
                group, repeat, split, fuse";
    assert_eq!(e.help.as_deref(), Some(help));
}

#[test]
fn illegal_graphs_are_refused() {
    let mut graph = parse("graph @g(%x: f32[T, 4]) {\n%0 = silu %x : bf16[T, 4]\nreturn %0\n}").unwrap();
    let e = run(&mut graph, &DECODE, None, &mut |_, _| {}).unwrap_err();
    assert_eq!(e.code, "ir::verify");
}

#[test]
#[should_panic(expected = "pass `spoil` for decode 1 broke the graph: the graph returns nothing")]
fn a_pass_that_breaks_the_graph_is_a_bug() {
    let spoil = |graph: &mut Graph, _: &Cx| {
        graph.set_outputs(vec![]);
        Ok(crate::Changed::Yes)
    };
    let passes = [Pass { name: "spoil", stage: Stage::Model, run: spoil }];
    let _ = drive(&passes, &mut Dense::qwen3(1).graph(), &DECODE, &mut |_, _| {});
}

/// `cargo test --release -p atomc-passes -- --ignored --nocapture time`
#[test]
#[ignore = "prints a time"]
fn time_of_80_layers() {
    let graph = Dense { sizes: Some([8192, 64, 8, 128, 28672]), ..Dense::llama(80) }.graph();
    for cx in [DECODE, ANY, WHOLE] {
        let start = Instant::now();
        let fused = fused(&graph, &cx);
        println!("{}: {} nodes to {} in {:?}", cx.bucket, graph.len(), fused.len(), start.elapsed());
        let start = Instant::now();
        let plan = crate::plan(&fused, &crate::Order::new(&fused, None, None), &cx);
        println!("plan: {} bytes, peak {}, in {:?}", plan.bytes, plan.peak, start.elapsed());
    }
}
