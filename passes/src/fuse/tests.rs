use atomc_ir::Arch;
use atomc_ir::arch::{Known, Renormed, Requantised};

use super::*;
use crate::bucket::Bucket;
use crate::testing::{ANY, DECODE, check_in, read};

/// The kernels of a text after all passes, as family and ops.
fn kernels(cx: &Cx, text: &str) -> Vec<String> {
    let mut graph = read(text);
    crate::run(&mut graph, cx, None, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    let ops = |body: &Graph| {
        let computing = body.order().into_iter().filter(|&id| !matches!(body.op(id), Op::Input { .. }));
        computing.map(|id| body.op(id).name()).collect::<Vec<_>>().join(" ")
    };
    let summary = |id: &NodeId| match graph.op(*id) {
        Op::Kernel { family, body } => format!("{}: {}", family.name(), ops(body)),
        op => op.name().to_string(),
    };
    crate::Order::new(&graph, None, None).steps.iter().map(summary).collect()
}

/// A gated MLP of this width on the norm of `x`.
fn gated(width: usize, act: &str) -> String {
    format!(
        r#"graph @g(%x: bf16[T, 8]) {{
        %n = weight {{name = "norm"}} : bf16[8]
        %h = rms_norm %x, %n {{eps = 0.1}} : bf16[T, 8]
        %w = weight {{name = "gate_up"}} : bf16[{whole}, 8]
        %y = linear %h, %w {{out = bf16}} : bf16[T, {whole}] // mlp
        %0 = slice %y {{axis = 1, start = 0, len = {width}}} : bf16[T, {width}]
        %1 = slice %y {{axis = 1, start = {width}, len = {width}}} : bf16[T, {width}]
        {act}
        return %2
        }}"#,
        whole = 2 * width
    )
}

#[test]
fn the_largest_of_logits_is_a_kernel_behind_theirs() {
    let text = r#"graph @g(%x: bf16[R, 8]) {
        %w = weight {name = "head"} : bf16[16, 8]
        %0 = linear %x, %w {out = f32} : f32[R, 16]
        %1 = argmax %0 : i32[R]
        return %0, %1
    }"#;
    assert_eq!(kernels(&DECODE, text), ["matvec: linear", "rows: argmax"]);
    assert_eq!(kernels(&ANY, text)[1], "rows: argmax");
}

/// A kernel has the table of pages of one kind of cache: keys that are turned by the same table are
/// written by a kernel each.
#[test]
fn writes_into_caches_of_two_types_are_apart() {
    let text = |of_other: &str| {
        format!(
            r#"graph @g(%k: bf16[T, 1, 8], %i: bf16[T, 1, 8], %table: f32[T, 4], %kv0: cache<bf16, 1, 8>, %index0: {of_other}, %batch: batch) {{
            %0 = rope %k, %table : bf16[T, 1, 8]
            %1 = rope %i, %table : bf16[T, 1, 8]
            %2 = kv_write %kv0, %0, %0, %batch : cache<bf16, 1, 8>
            %3 = {} : {of_other}
            return %2, %3
            }}"#,
            if of_other.contains("prefix") {
                "key_write %index0, %1, %batch {values = 8}"
            } else {
                "kv_write %index0, %1, %1, %batch"
            }
        )
    };
    assert_eq!(kernels(&DECODE, &text("cache<bf16, 1, 8>")).len(), 1);
    let apart = kernels(&DECODE, &text("cache<bf16, 1, 8, prefix 8>"));
    assert_eq!(apart[1..], ["rows: key_write"]);
}

/// Rows of a weight, and values made of them, belong to the embeddings if they have that name.
#[test]
fn embeddings_are_a_kernel_of_their_own() {
    let text = |result: &str| {
        format!(
            r#"graph @g(%ids: i32[T]) {{
            %w = weight {{name = "embed"}} : bf16[32, 8]
            %0 = gather %w, %ids : bf16[T, 8]
            %1 = scale %0 {{by = 3.0}} : bf16[T, 8]
            %2 = silu %1 : bf16[T, 8]
            return hidden = %2{result}
        }}"#
        )
    };
    assert_eq!(kernels(&ANY, &text("")), ["rows: gather", "rows: scale silu"]);
    assert_eq!(kernels(&ANY, &text(", embeddings = %1")), ["rows: gather scale", "rows: silu"]);
}

/// Heads of a row that is normed as a whole would each repeat the norm.
#[test]
fn a_norm_over_all_heads_is_a_kernel_of_its_own() {
    let text = r#"graph @g(%x: bf16[T, 8], %kv0: cache<bf16, 1, 4>, %batch: batch) {
        %w = weight {name = "k"} : bf16[4, 8]
        %0 = linear %x, %w {out = bf16} : bf16[T, 4]
        %n = weight {name = "norm"} : bf16[4]
        %1 = rms_norm %0, %n {eps = 0.1} : bf16[T, 4]
        %2 = reshape %1 {shape = [T, 1, 4]} : bf16[T, 1, 4]
        %3 = kv_write %kv0, %2, %2, %batch : cache<bf16, 1, 4>
        %4 = attention %2, %3, %batch {scale = 0.5, window = 0} : bf16[T, 1, 4]
        return %4, %3
    }"#;
    assert_eq!(kernels(&DECODE, text), ["matvec: linear", "rows: rms_norm", "attend_one: reshape kv_write attention"]);
    let apart = ["matmul: linear", "rows: rms_norm", "rows: reshape kv_write", "attend_many: attention"];
    assert_eq!(kernels(&ANY, text), apart);
}

#[test]
fn one_kernel_from_norm_to_activation() {
    let text = r#"graph @g(%x: bf16[T, 8], %r: bf16[T, 4]) {
        %n = weight {name = "norm"} : bf16[8]
        %h = rms_norm %x, %n {eps = 0.1} : bf16[T, 8] #0
        %w = weight {name = "gate_up"} : bf16[8, 8]
        %p = pack %w : bf16[8, 8]@panels
        %y = linear %h, %p {out = bf16} : bf16[T, 8] #0 // mlp
        %0 = slice %y {axis = 1, start = 0, len = 4} : bf16[T, 4] #0
        %1 = slice %y {axis = 1, start = 4, len = 4} : bf16[T, 4] #0
        %2 = silu_mul %0, %1 : bf16[T, 4] #0
        %3 = add %r, %2 : bf16[T, 4] #0
        return %3
    }"#;
    insta::assert_snapshot!(check_in(&DECODE, "fuse", text), @r#"
    graph @g(%x: bf16[T, 8], %r: bf16[T, 4]) {
      %0 = weight {name = "norm"} : bf16[8]
      %1 = weight {name = "gate_up"} : bf16[8, 8]
      %2 = pack %1 : bf16[8, 8]@panels
      %3 = kernel %x, %0, %2, %r {family = matvec} : bf16[T, 4] #0 // mlp
        graph @k(%a0: bf16[T, 8], %a1: bf16[8], %a2: bf16[8, 8]@panels, %a3: bf16[T, 4]) {
          %0 = rms_norm %a0, %a1 {eps = 0.1} : bf16[T, 8]
          %1 = linear %0, %a2 {out = bf16} : bf16[T, 8]
          %2 = slice %1 {axis = 1, start = 0, len = 4} : bf16[T, 4]
          %3 = slice %1 {axis = 1, start = 4, len = 4} : bf16[T, 4]
          %4 = silu_mul %2, %3 : bf16[T, 4]
          %5 = add %a3, %4 : bf16[T, 4]
          return %5
        }
      return %3
    }
    "#);
}

#[test]
fn a_norm_is_repeated_only_for_few_rows() {
    let text = gated(4, "%2 = silu_mul %0, %1 : bf16[T, 4]");
    assert_eq!(kernels(&DECODE, &text), ["matvec: rms_norm linear slice slice silu_mul"]);
    assert_eq!(kernels(&ANY, &text), ["rows: rms_norm", "matmul: linear slice slice silu_mul"]);
}

#[test]
fn as_many_numbers_become_codes_before_a_product_as_the_row_says() {
    let text = r#"graph @g(%x: bf16[T, 64]) {
        %0 = quantise %x {to = f8e4m3, rule = mx(32)} : bf16[T, 64]
        %w = weight {name = "w"} : bf16[4, 64]
        %1 = linear %0, %w {out = bf16} : bf16[T, 4]
        return %1
    }"#;
    let kernels = |one, several, tokens| {
        let arch =
            Arch { requantised: Known::counted(Requantised { one, several, results: false }), ..DECODE.arch.clone() };
        kernels(&Cx { arch: &arch, bucket: Bucket::Decode { tokens }, ..DECODE }, text)
    };
    let (fused, apart) = (vec!["matvec: quantise linear"], vec!["rows: quantise", "matvec: linear"]);
    assert_eq!([kernels(64, 0, 1), kernels(63, 64, 1)], [fused.clone(), apart.clone()]);
    assert_eq!([kernels(0, 128, 2), kernels(64, 127, 2)], [fused, apart]);
}

/// Two heads of 32, quantised with one scale for `columns` columns, before a product.
fn attended(columns: usize, more: &str) -> String {
    format!(
        r#"graph @g(%q: bf16[T, 2, 32], %kv0: cache<bf16, 2, 32>, %batch: batch) {{
        %0 = attention %q, %kv0, %batch {{scale = 0.5, window = 0}} : bf16[T, 2, 32] // attn
        %1 = reshape %0 {{shape = [T, 64]}} : bf16[T, 64]
        %2 = quantise %1 {{to = f8e4m3, rule = group({columns})}} : f8e4m3[T, 64]@scaled({columns})
        %w = weight {{name = "w"}} : bf16[8, 64]
        %3 = linear %2, %w {{out = bf16}} : bf16[T, 8]
        return %3{more}
        }}"#
    )
}

#[test]
fn attention_codes_its_results_where_a_scale_is_of_one_head() {
    let kernels = |results, columns, more, bucket| {
        let requantised = Known::counted(Requantised { one: 0, several: 0, results });
        let arch = Arch { requantised, ..DECODE.arch.clone() };
        kernels(&Cx { arch: &arch, bucket, ..DECODE }, &attended(columns, more))
    };
    let decode = Bucket::Decode { tokens: 2 };
    let apart = ["attend_one: attention reshape", "rows: quantise", "matvec: linear"];
    assert_eq!(kernels(true, 32, "", decode), ["attend_one: attention reshape quantise", "matvec: linear"]);
    assert_eq!(kernels(true, 16, "", decode), ["attend_one: attention reshape quantise", "matvec: linear"]);
    assert_eq!(kernels(true, 64, "", decode), apart, "two heads have one scale");
    assert_eq!(kernels(false, 32, "", decode), apart, "the row does not say so");
    assert_eq!(kernels(true, 32, ", %1", decode), apart, "others read the result");
    assert_eq!(kernels(true, 32, "", ANY.bucket)[0], "attend_many: attention reshape");
}

#[test]
fn as_many_numbers_are_normed_before_a_product_as_the_row_says() {
    let text = gated(4, "%2 = silu_mul %0, %1 : bf16[T, 4]");
    let kernels = |floats| {
        let normed = Known::counted(Renormed { floats, quantised: 0 });
        kernels(&Cx { arch: &Arch { normed, ..DECODE.arch.clone() }, ..DECODE }, &text)
    };
    let all = kernels(usize::MAX);
    assert_eq!(all, ["matvec: rms_norm linear slice slice silu_mul"]);
    assert_eq!(kernels(1), ["rows: rms_norm", "matvec: linear slice slice silu_mul"]);
}

#[test]
fn rows_before_a_quantised_weight_have_a_limit_of_their_own() {
    let text = r#"graph @g(%x: bf16[T, 64]) {
        %g = weight {name = "g"} : bf16[64]
        %0 = rms_norm %x, %g {eps = 1e-6} : bf16[T, 64]
        %w = weight {name = "w"} : i8[4, 64]
        %s = weight {name = "s"} : bf16[4, 1]
        %1 = linear %0, %w, %s {out = bf16, block = [1, 64]} : bf16[T, 4]
        return %1
    }"#;
    let kernels = |quantised| {
        let normed = Known::counted(Renormed { floats: 0, quantised });
        kernels(&Cx { arch: &Arch { normed, ..DECODE.arch.clone() }, ..DECODE }, text)
    };
    assert_eq!(kernels(64), ["matvec: rms_norm linear"]);
    assert_eq!(kernels(63), ["rows: rms_norm", "matvec: linear"]);
}

#[test]
fn a_product_by_what_is_computed_is_a_kernel_of_its_own() {
    let text = r#"graph @g(%x: bf16[T, 8], %y: bf16[T, 8]) {
        %0 = silu %y : bf16[T, 8]
        %1 = mul %x, %0 : bf16[T, 8]
        %w = weight {name = "w"} : bf16[4, 8]
        %2 = linear %1, %w {out = bf16} : bf16[T, 4]
        return %2
    }"#;
    assert_eq!(kernels(&DECODE, text), ["rows: silu_mul", "matvec: linear"]);
}

#[test]
fn slices_join_only_along_panels() {
    let text = gated(6, "%2 = silu_mul %0, %1 : bf16[T, 6]");
    assert_eq!(kernels(&DECODE, &text), ["matvec: rms_norm linear", "rows: slice slice silu_mul"]);
}

#[test]
fn slices_that_do_not_join_leave_together() {
    let text = gated(4, "%3 = concat %0, %1, %0 {axis = 1} : bf16[T, 12]\n%2 = relu %3 : bf16[T, 12]");
    assert_eq!(kernels(&DECODE, &text), ["matvec: rms_norm linear", "rows: slice slice concat relu"]);
}

#[test]
fn a_slice_that_something_else_reads_does_not_join() {
    let text = gated(4, "%2 = silu_mul %0, %1 : bf16[T, 4]").replace("return %2", "return %2, %1");
    assert_eq!(kernels(&DECODE, &text), ["matvec: rms_norm linear", "rows: slice slice silu_mul"]);
}

#[test]
fn slices_that_leave_something_out_do_not_join() {
    let text =
        gated(6, "%2 = silu_mul %0, %1 : bf16[T, 4]").replace("start = 6", "start = 4").replace("len = 6", "len = 4");
    let text = text.replace("bf16[T, 6]", "bf16[T, 4]");
    assert_eq!(kernels(&DECODE, &text), ["matvec: rms_norm linear", "rows: slice slice silu_mul"]);
}

#[test]
fn slices_join_once() {
    let again = "%3 = silu_mul %0, %1 : bf16[T, 8]
        %4 = slice %3 {axis = 1, start = 0, len = 4} : bf16[T, 4]
        %5 = slice %3 {axis = 1, start = 4, len = 4} : bf16[T, 4]
        %2 = silu_mul %4, %5 : bf16[T, 4]";
    let want = ["matvec: rms_norm linear slice slice silu_mul", "rows: slice slice silu_mul"];
    assert_eq!(kernels(&DECODE, &gated(8, again)), want);
}

#[test]
fn values_that_others_read_end_an_epilogue() {
    let text = r#"graph @g(%x: bf16[T, 8]) {
        %w = weight {name = "w"} : bf16[8, 8]
        %0 = linear %x, %w {out = bf16} : bf16[T, 8]
        %1 = silu %0 : bf16[T, 8]
        %2 = add %1, %x : bf16[T, 8]
        return %2, %1
    }"#;
    assert_eq!(kernels(&ANY, text), ["matmul: linear silu", "rows: add"]);
}

#[test]
fn rows_are_grouped_by_what_they_share() {
    let text = r#"graph @g(%ids: i32[T], %positions: i32[T], %lengths: i32[T], %rows: i32[R]) {
        %w = weight {name = "embed"} : bf16[8, 8]
        %0 = gather %w, %ids : bf16[T, 8]
        %1 = silu %0 : bf16[T, 8]
        %2 = gelu %0 : bf16[T, 8]
        %f = rope_freqs {freqs = (100.0, 4, default)} : f32[2]
        %3 = rope_table %positions, %lengths, %f {scale = 1.0, growth = 0.0, original = 0} : f32[T, 4]
        %4 = gather %2, %rows : bf16[R, 8]
        %5 = relu %4 : bf16[R, 8]
        return %1, %2, %3, %5
    }"#;
    assert_eq!(kernels(&ANY, text), ["rows: gather", "rows: silu gelu", "rows: rope_table", "rows: gather relu"]);
}

#[test]
fn a_table_is_made_before_it_is_read() {
    let text = r#"graph @g(%x: bf16[T, 8], %ids: i32[T]) {
        %0 = silu %x : bf16[T, 8]
        %1 = gather %0, %ids : bf16[T, 8]
        %2 = add %x, %1 : bf16[T, 8]
        return %2
    }"#;
    assert_eq!(kernels(&ANY, text), ["rows: silu", "rows: gather add"]);
}

#[test]
fn segments_share_no_kernel() {
    let text = r#"graph @g(%x: bf16[T, 8], %kv0: cache<bf16, 2, 4>, %batch: batch) {
        %0 = reshape %x {shape = [T, 2, 4]} : bf16[T, 2, 4]
        %1 = kv_write %kv0, %0, %0, %batch : cache<bf16, 2, 4>
        %2 = attention %0, %1, %batch {scale = 0.5, window = 0} : bf16[T, 2, 4]
        %3 = silu %x : bf16[T, 8]
        return %2, %3
    }"#;
    assert_eq!(kernels(&ANY, text), ["rows: reshape kv_write", "attend_many: attention", "rows: silu"]);
}

/// `%0` and `%3` share `%x`, but the nodes between them are in another kernel.
#[test]
fn no_kernel_waits_for_itself() {
    let text = r#"graph @g(%x: bf16[T, 8]) {
        %w = weight {name = "w"} : bf16[8, 8]
        %0 = silu %x : bf16[T, 8]
        %1 = linear %0, %w {out = bf16} : bf16[T, 8]
        %3 = concat %x, %1 {axis = 1} : bf16[T, 16]
        return %3, %0
    }"#;
    assert_eq!(kernels(&ANY, text), ["rows: silu", "matmul: linear", "rows: concat"]);
}

#[test]
fn what_no_family_takes_is_refused() {
    let text = r#"graph @g(%x: bf16[T, 8]) {
        %w = weight {name = "w"} : bf16[8, 8]
        %0 = relu %w : bf16[8, 8] #0
        %1 = slice %0 {axis = 0, start = 2, len = 4} : bf16[4, 8] #0 // experts
        return %1
    }"#;
    let e = run(&mut read(text), &DECODE).unwrap_err();
    assert_eq!(e.to_string(), "experts: no kernel family takes `slice axis=0 start=2 len=4`");
    assert_eq!(
        e.help.as_deref(),
        Some(
            "the families are rows, matvec, matmul, attend_one, attend_many, choose, attend_listed, group, grouped_matvec, grouped_matmul, recur"
        )
    );
}

/// A layer of one rank: the caller's sums are not fused over, and their results are used once for
/// both readers.
#[test]
fn sums_over_ranks_part_kernels() {
    let text = r#"graph @g(%x: bf16[T, 8], %y: bf16[T, 8]) {
        %0 = weight {name = "o"} : bf16[8, 8]
        %1 = linear %y, %0 {out = bf16} : bf16[T, 8]
        %2 = all_reduce %1 : bf16[T, 8]
        %3 = weight {name = "bias"} : bf16[8]
        %4 = add %2, %3 : bf16[T, 8]
        %5 = add %x, %4 : bf16[T, 8]
        %6 = weight {name = "norm"} : bf16[8]
        %7 = rms_norm %5, %6 {eps = 0.1} : bf16[T, 8]
        %8 = weight {name = "up"} : bf16[16, 8]
        %9 = linear %7, %8 {out = bf16} : bf16[T, 16]
        %10 = weight {name = "down"} : bf16[8, 16]
        %11 = linear %9, %10 {out = bf16} : bf16[T, 8]
        %12 = all_reduce %11 : bf16[T, 8]
        %13 = add %5, %12 : bf16[T, 8]
        return %13
    }"#;
    let decode = ["matvec: linear", "all_reduce", "rows: add add", "matvec: rms_norm linear", "matvec: linear"];
    assert_eq!(kernels(&DECODE, text), [&decode[..], &["all_reduce"]].concat());
    let any = ["matmul: linear", "all_reduce", "rows: add add rms_norm", "matmul: linear", "matmul: linear"];
    assert_eq!(kernels(&ANY, text), [&any[..], &["all_reduce"]].concat());
}

/// The caller's queries, keys and values are one kernel's.
#[test]
fn the_caller_attends_between_kernels() {
    let text = r#"graph @g(%x: bf16[T, 8], %table: f32[T, 4], %batch: batch) {
        %0 = weight {name = "qkv"} : bf16[16, 8]
        %1 = linear %x, %0 {out = bf16} : bf16[T, 16]
        %2 = slice %1 {axis = 1, start = 0, len = 8} : bf16[T, 8]
        %3 = slice %1 {axis = 1, start = 8, len = 4} : bf16[T, 4]
        %4 = slice %1 {axis = 1, start = 12, len = 4} : bf16[T, 4]
        %5 = reshape %2 {shape = [T, 2, 4]} : bf16[T, 2, 4]
        %6 = reshape %3 {shape = [T, 1, 4]} : bf16[T, 1, 4]
        %7 = reshape %4 {shape = [T, 1, 4]} : bf16[T, 1, 4]
        %8 = rope %5, %table : bf16[T, 2, 4]
        %9 = rope %6, %table : bf16[T, 1, 4]
        %10 = caller_attention %8, %9, %7, %batch {layer = 0, scale = 0.5, window = 0} : bf16[T, 8]
        %11 = weight {name = "o"} : bf16[8, 8]
        %12 = linear %10, %11 {out = bf16} : bf16[T, 8]
        return %12
    }"#;
    let parts = "rows: slice reshape rope slice reshape rope slice reshape";
    assert_eq!(kernels(&DECODE, text), ["matvec: linear", parts, "caller_attention", "matvec: linear"]);
    assert_eq!(kernels(&ANY, text), ["matmul: linear", parts, "caller_attention", "matmul: linear"]);
}
