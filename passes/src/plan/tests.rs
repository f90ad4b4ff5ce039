use proptest::prelude::*;

use super::*;
use crate::testing::{ANY, DECODE, Dense, WHOLE, graphs};
use crate::{Bucket, Cx};

fn fused(graph: &Graph, cx: &Cx) -> Graph {
    let mut graph = graph.clone();
    crate::run(&mut graph, cx, None, &mut |_, _| {}).unwrap();
    graph
}

/// Steps at which a value must be kept, derived without the plan: from its kernel to its last
/// reader.
fn life(graph: &Graph, kernels: &[NodeId], v: Value) -> (usize, usize) {
    let step = |id: NodeId| kernels.iter().position(|&k| k == id).expect("a kernel");
    let end = graph.users(v).into_iter().map(|(user, _)| step(user)).max().unwrap_or(step(v.node));
    (step(v.node), if graph.is_output(v) { kernels.len() } else { end })
}

fn check(graph: &Graph, cx: &Cx) -> Result<(), String> {
    let order = Order::new(graph, None, None);
    let (plan, kernels) = (plan(graph, &order, cx), &order.steps);
    let mut lives: BTreeMap<Value, ((usize, usize), Slot)> = BTreeMap::new();
    for (&v, &slot) in &plan.slots {
        let (from, to) = life(graph, kernels, v);
        let place = lives.entry(first_place(graph, v)).or_insert(((from, to), slot));
        assert_eq!(place.1, slot, "what is computed in place stays there");
        place.0 = (place.0.0.min(from), place.0.1.max(to));
    }
    let lives: Vec<_> = lives.into_values().collect();
    for (i, &((from, to), a)) in lives.iter().enumerate() {
        for &((other_from, other_to), b) in &lives[..i] {
            let together = from <= other_to && other_from <= to;
            if together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes {
                return Err(format!("{a:?} and {b:?} live at once"));
            }
        }
    }
    let at =
        |step: usize| lives.iter().filter(|((from, to), _)| (*from..=*to).contains(&step)).map(|(_, s)| s.bytes).sum();
    let peak: usize = (0..kernels.len()).map(at).max().unwrap_or(0);
    let tensors = kernels.iter().flat_map(|&k| graph.types(k)).filter(|t| t.as_tensor().is_some()).count();
    let aligned = plan.slots.values().all(|s| s.offset % cx.arch.memory.align == 0);
    let inside = plan.slots.values().all(|s| s.offset + s.bytes <= plan.bytes);
    let ok = peak == plan.peak && peak <= plan.bytes && plan.bytes <= plan.unshared;
    let ok = ok && plan.slots.len() == tensors && aligned && inside;
    if ok { Ok(()) } else { Err(format!("{plan:?}, peak {peak}")) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn values_that_live_at_once_do_not_overlap(graph in graphs()) {
        for cx in [DECODE, ANY, WHOLE] {
            prop_assert_eq!(check(&fused(&graph, &cx), &cx), Ok(()));
        }
    }
}

#[test]
fn layers_share_their_memory() {
    let bytes = |layers| {
        let graph = fused(&Dense::qwen3(layers).graph(), &ANY);
        assert_eq!(check(&graph, &ANY), Ok(()));
        plan(&graph, &Order::new(&graph, None, None), &ANY).bytes
    };
    assert_eq!(bytes(2), bytes(12));
}

#[test]
fn rows_are_padded_and_buffers_have_slack() {
    let cx = Cx { bucket: Bucket::Decode { tokens: 3 }, ..DECODE };
    let ty = TensorType::new(atomc_ir::DType::BF16, atomc_ir::Shape::led_by(atomc_ir::Dim::Tokens, &[5, 7]));
    // 35 elements a row are padded to 64, of 2 bytes, 3 rows: 384, and 64 for readers that go too
    // far.
    assert_eq!(result_bytes(&ty, &cx), 448);
}

#[test]
fn holes_are_filled_and_joined() {
    let mut arena = Arena::default();
    let [a, b, c, d] = [100, 50, 30, 10].map(|n| arena.take(n));
    arena.give_back(a);
    arena.give_back(c);
    assert_eq!(arena.take(20).offset, c.offset, "the smallest that is large enough");
    arena.give_back(b);
    assert_eq!(arena.take(150).offset, 0, "two holes are one");
    arena.give_back(d);
    assert_eq!(arena.take(60), Slot { offset: 170, bytes: 60 }, "the hole at the end grows");
    assert_eq!((arena.end, arena.used), (230, 230));
}

#[test]
fn sums_over_ranks_stay_where_they_are() {
    let text = r#"graph @g(%x: bf16[T, 8]) {
        %0 = weight {name = "w"} : bf16[8, 8]
        %1 = linear %x, %0 {out = bf16} : bf16[T, 8]
        %2 = all_reduce %1 : bf16[T, 8]
        %3 = add %x, %2 : bf16[T, 8]
        %4 = relu %3 : bf16[T, 8]
        %5 = add %4, %2 : bf16[T, 8]
        return %5
    }"#;
    let graph = fused(&crate::testing::read(text), &ANY);
    assert_eq!(check(&graph, &ANY), Ok(()));
    let order = Order::new(&graph, None, None);
    let plan = plan(&graph, &order, &ANY);
    let place = |step: usize| plan.slots[&order.steps[step].into()];
    assert!(graph.op(order.steps[1]).is_call() && place(0) == place(1) && place(1) != place(2));
}
