use super::*;
use crate::fuse::NOT_ITS_ROWS;
use crate::testing::{ANY, DECODE, Dense, WHOLE, graphs, read};
use proptest::prelude::*;

fn explained(cx: &Cx, text: &str) -> Vec<String> {
    explain(&read(text), cx).unwrap().iter().map(Place::to_string).collect()
}

/// A gated MLP on the norm of `x`, with parts of its text replaced.
fn gated(changed: &[(&str, &str)]) -> String {
    let text = r#"graph @g(%x: bf16[T, 8]) {
        %n = weight {name = "norm"} : bf16[8]
        %h = rms_norm %x, %n {eps = 0.1} : bf16[T, 8] // norm
        %g = weight {name = "gate"} : bf16[8, 8]
        %0 = linear %h, %g {out = bf16} : bf16[T, 8] // mlp.gate
        %u = weight {name = "up"} : bf16[8, 8]
        %1 = linear %h, %u {out = bf16} : bf16[T, 8] // mlp.up
        %2 = silu %0 : bf16[T, 8] // mlp.act
        %3 = mul %2, %1 : bf16[T, 8] // mlp
        %d = weight {name = "down"} : bf16[8, 8]
        %4 = linear %3, %d {out = bf16} : bf16[T, 8] // mlp.down
        %5 = add %x, %4 : bf16[T, 8] // mlp
        return %5
    }"#;
    changed.iter().fold(text.into(), |text: String, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

#[test]
fn what_is_one() {
    let all = [
        "merge_weights: mlp: gate + up",
        "rewrite: mlp: silu_mul",
        "fuse: mlp: matvec: rms_norm linear slice slice silu_mul",
        "fuse: mlp.down: matvec: linear add",
    ];
    assert_eq!(explained(&DECODE, &gated(&[])), all);
}

/// Each is one change away from [`what_is_one`], and gives its reason.
#[test]
fn near_misses() {
    let experts = r#"graph @g(%y: bf16[T*2, 8], %c: f32[T, 2], %experts: i32[T*2]) {
        %w = weight {name = "down"} : bf16[5, 8, 8]
        %0 = grouped %y, %w, %experts {out = bf16} : bf16[T*2, 8] // mlp.down
        %1 = combine %0, %c : bf16[T, 8] // mlp
        return %1
    }"#;
    let heads = r#"graph @g(%x: bf16[T, 4], %kv0: cache<bf16, 1, 4>, %batch: batch) {
        %n = weight {name = "norm"} : bf16[4]
        %1 = rms_norm %x, %n {eps = 0.1} : bf16[T, 4] // q_norm
        %2 = reshape %1 {shape = [T, 1, 4]} : bf16[T, 1, 4] // attn
        %3 = kv_write %kv0, %2, %2, %batch : cache<bf16, 1, 4> // attn
        %4 = attention %2, %3, %batch {scale = 0.5, window = 0} : bf16[T, 1, 4] // attn
        return %4, %3
    }"#;
    let embeddings = r#"graph @g(%ids: i32[T]) {
        %w = weight {name = "embed"} : bf16[32, 8]
        %0 = gather %w, %ids : bf16[T, 8] // embed
        %1 = silu %0 : bf16[T, 8] // act
        return %1
    }"#;
    let sum = r#"%6 = all_reduce %4 : bf16[T, 8] // sum
        %5 = add %x, %6"#;
    let uneven = [
        ("\"down\"} : bf16[8, 8]", "\"down\"} : bf16[8, 6]"),
        ("\"gate\"} : bf16[8, 8]", "\"gate\"} : bf16[6, 8]"),
        ("\"up\"} : bf16[8, 8]", "\"up\"} : bf16[6, 8]"),
        ("bf16[T, 8] // mlp.gate", "bf16[T, 6] // mlp.gate"),
        ("bf16[T, 8] // mlp.up", "bf16[T, 6] // mlp.up"),
        ("bf16[T, 8] // mlp.act", "bf16[T, 6] // mlp.act"),
        ("%3 = mul %2, %1 : bf16[T, 8]", "%3 = mul %2, %1 : bf16[T, 6]"),
    ];
    let wider = "%7 = cast %1 {to = f32} : f32[T, 8]
        %8 = mul %7, %2 : f32[T, 8] // mlp
        %3 = cast %8 {to = bf16} : bf16[T, 8] // mlp";
    let tied = "%8 = linear %x, %u {out = bf16} : bf16[T, 8] // tied
        return %5, %8";
    let cases: [(&str, &Cx, String, &str); 12] = [
        (
            "an activation that is a result too",
            &DECODE,
            gated(&[("return %5", "return %5, %2")]),
            "rewrite: mlp: silu_mul: not, read elsewhere: it is a result of the step",
        ),
        (
            "an activation and another op than mul",
            &DECODE,
            gated(&[("mul %2", "add %2")]),
            "rewrite: mlp.act: silu_mul: not, op: no `mul` reads `silu`",
        ),
        (
            "weights of two types",
            &DECODE,
            gated(&[("\"up\"} : bf16", "\"up\"} : f16")]),
            "merge_weights: mlp.up: gate + up: not, type: weights of bf16 and f16",
        ),
        (
            "a weight that another product reads",
            &DECODE,
            gated(&[("return %5", tied)]),
            "merge_weights: mlp.up: gate + up: not, read elsewhere: `linear` of tied reads it too",
        ),
        (
            "a norm that the residual reads",
            &DECODE,
            gated(&[("add %x", "add %h")]),
            "fuse: mlp: rms_norm -> linear: not, read elsewhere: `add` of mlp reads it too",
        ),
        (
            "parts of half panels",
            &DECODE,
            gated(&uneven),
            "fuse: mlp.gate: linear -> slice: not, shape: parts of 6 columns are no whole panels of 4",
        ),
        (
            "a sum over ranks before the residual",
            &DECODE,
            gated(&[("%5 = add %x, %4", sum)]),
            "fuse: mlp: linear -> all_reduce: not, boundary: `all_reduce` is the caller's work",
        ),
        (
            "choices on a chip that does not add them up",
            &DECODE,
            experts.into(),
            "fuse: mlp: grouped -> combine: not, chip: kernels of test do not add choices up",
        ),
        (
            "a norm of many rows",
            &ANY,
            gated(&[]),
            "fuse: mlp: rms_norm -> linear: not, step: products of many rows read them as they are, made once and not \
             in each work-group",
        ),
        (
            "a norm over all heads",
            &DECODE,
            heads.into(),
            "fuse: attn: rms_norm -> reshape: not, shape: each head would norm the whole row again",
        ),
        (
            "an op behind embeddings",
            &ANY,
            embeddings.into(),
            "fuse: act: gather -> silu: not, boundary: callers may put other embeddings in their place",
        ),
        (
            "an activation in a wider type",
            &DECODE,
            gated(&[("%3 = mul %2, %1 : bf16[T, 8] // mlp", wider)]),
            "rewrite: mlp: silu_mul: not, type: the result would be bf16[T, 8], not f32[T, 8]",
        ),
    ];
    for (name, cx, text, want) in cases {
        let all = explained(cx, &text);
        assert!(all.iter().any(|line| line == want), "{name}: {want}\nis not in\n{}", all.join("\n"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The explanation of each pass agrees with its result.
    #[test]
    fn what_is_said_is_done(graph in graphs()) {
        for cx in [DECODE, ANY, WHOLE] {
            let places = explain(&graph, &cx).unwrap();
            let mut fused = graph.clone();
            pipeline::run(&mut fused, &cx, None, &mut |_, _| {}).unwrap();
            let kernels = fused.ids().filter_map(|id| match fused.op(id) {
                atomc_ir::Op::Kernel { body, .. } => Some(body.ids().filter(|&n| !matches!(body.op(n), atomc_ir::Op::Input { .. })).count()),
                _ => None,
            });
            let several = kernels.filter(|&nodes| nodes > 1).count();
            let told = places.iter().filter(|place| place.pass == "fuse" && place.why_not.is_none()).count();
            prop_assert_eq!(told, several, "{}", graph.print());
        }
    }
}

/// No place has the reason that is left for places without a question of their own.
#[test]
fn every_place_of_a_model_has_a_reason() {
    for model in [Dense::qwen3(2), Dense::llama(2)] {
        for cx in [DECODE, ANY, WHOLE] {
            let all = explain(&model.graph(), &cx).unwrap();
            let vague = |place: &&Place| place.why_not.as_ref().is_some_and(|why| why.text == NOT_ITS_ROWS);
            assert_eq!(all.iter().find(vague), None, "{}", cx.bucket);
        }
    }
}
