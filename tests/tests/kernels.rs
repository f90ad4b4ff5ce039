//! Every kernel family on every machine that this one can run or emulate.
use atomc_ir::arch::Machine;
use atomc_ir::trial::Run;
use atomc_ir::{Dim, Family, parse};
use atomc_targets::{KernelSpec, compile, rows};
use atomc_tests::kernels::{Case, STEP, case, run};

#[test]
fn rows_norm_and_activation() {
    for n in [64, 50] {
        let text = format!(
            "graph @k(%x: bf16[T, {n}], %w: bf16[{n}]) {{
  %0 = rms_norm %x, %w {{eps = 1e-6}} : bf16[T, {n}]
  %1 = silu_mul %0, %x : bf16[T, {n}]
  return %1
}}"
        );
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

/// Rows that a team has in registers, rows that it reads twice, and rows that end inside a vector.
#[test]
fn rows_layer_norm() {
    for n in [64, 50, 1024, 9000, 9001] {
        let text = format!(
            "graph @k(%x: bf16[T, {n}], %w: bf16[{n}], %b: bf16[{n}]) {{
  %0 = layer_norm %x, %w, %b {{eps = 1e-5}} : bf16[T, {n}]
  %1 = silu_mul %0, %x : bf16[T, {n}]
  return %1
}}"
        );
        let case = case(&text, Family::Rows, 8);
        if n > 1024 { case.check() } else { case.check_in_all_types() }
    }
}

/// Elements in the order of a vector of columns.
#[test]
fn rows_in_another_order() {
    for n in [64, 50, 1024, 9] {
        let text = format!(
            "graph @k(%x: bf16[T, {n}], %y: bf16[T, {n}], %o: f32[{n}]) {{
  %0 = reorder %x, %o : bf16[T, {n}]
  %1 = silu_mul %0, %y : bf16[T, {n}]
  return %1
}}"
        );
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

/// Concatenated rows of two kinds, and of three, with borders inside a vector.
#[test]
fn rows_side_by_side() {
    for n in [64, 56, 72, 120, 9] {
        let (two, three) = (2 * n, 3 * n);
        let text = format!(
            "graph @k(%x: bf16[T, {n}], %y: bf16[T, {n}], %w: bf16[{n}]) {{
  %0 = rms_norm %x, %w {{eps = 1e-6}} : bf16[T, {n}]
  %1 = beside %0, %y : bf16[T, {two}]
  %2 = beside %1, %x : bf16[T, {three}]
  return %2
}}"
        );
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

/// Mixtures of rows by logits in memory, alone and before a norm.
#[test]
fn rows_mixed_by_logits() {
    for (count, n, each) in [(2, 64, 1), (3, 50, 8), (9, 72, 8)] {
        let text = format!(
            "graph @k(%x: bf16[T, {count}, {n}], %l: f32[T, {count}, {each}], %w: bf16[{n}]) {{
  %0 = mix_rows %x, %l : bf16[T, {n}]
  %1 = rms_norm %0, %w {{eps = 1e-6}} : bf16[T, {n}]
  return %0, %1
}}"
        );
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

#[test]
fn every_elementwise_op() {
    for op in atomc_ir::Elementwise::ALL {
        let x = ["%x", "%y", "%y"][..op.operands().len()].join(", ");
        let constants: Vec<String> = op.constants().iter().map(|(name, _)| format!("{name} = 0.7")).collect();
        let constants = if constants.is_empty() { String::new() } else { format!(" {{{}}}", constants.join(", ")) };
        let name = op.name();
        let text = format!(
            "graph @k(%x: f32[T, 40], %y: f32[40]) {{\n  %0 = {name} {x}{constants} : f32[T, 40]\n  return %0\n}}"
        );
        case(&text, Family::Rows, 8).check();
    }
}

#[test]
fn rows_gather_plain_and_packed() {
    let text = "graph @k(%table: bf16[37, 40], %ids: i32[T]) {
  %0 = gather %table, %ids : bf16[T, 40]
  return %0
}";
    for text in [text, &text.replace("[37, 40]", "[37, 40]@panels")] {
        Case { indices: &[("ids", &[36, 0, 17, 16, 15])], ..case(text, Family::Rows, 8) }.check_in_all_types();
    }
}

#[test]
fn rows_rope_table() {
    for (growth, original) in [("0.0", 0), ("4.0", 16)] {
        let text = format!(
            "graph @k(%positions: i32[T], %lengths: i32[T], %f: f32[10]) {{
  %0 = rope_table %positions, %lengths, %f {{scale = 1.25, growth = {growth}, original = {original}}} : f32[T, 20]
  return %0
}}"
        );
        let indices: &[(&str, &[i32])] =
            &[("positions", &[0, 1, 131071, 77, 500]), ("lengths", &[1, 17, 131072, 100, 501])];
        Case { indices, ..case(&text, Family::Rows, 8) }.check();
    }
}

/// Three positions of a token, of which frequencies take one or another.
#[test]
fn rows_rope_table_of_axes() {
    let text = "graph @k(%positions: i32[T], %lengths: i32[T], %f: f32[40], %heights: i32[T], %widths: i32[T], %a: f32[40]) {
  %0 = rope_table %positions, %lengths, %f, %heights, %widths, %a {scale = 1.25, growth = 0.0, original = 0} : f32[T, 80]
  return %0
}";
    let indices: &[(&str, &[i32])] = &[
        ("positions", &[0, 1, 131071, 77, 500]),
        ("lengths", &[1, 17, 131072, 100, 501]),
        ("heights", &[5, 1, 9, 131070, 40]),
        ("widths", &[2, 17, 0, 7, 50]),
    ];
    Case { indices, ..case(text, Family::Rows, 8) }.check();
}

#[test]
fn rows_of_groups() {
    for width in [16, 48, 64] {
        let text = format!(
            "graph @k(%x: bf16[T, {width}], %rows: i32[R], %w: bf16[{wide}], %b: bf16[{wide}]) {{
  %0 = gather_run %x, %rows {{count = 4}} : bf16[R, {wide}]
  %1 = layer_norm %0, %w, %b {{eps = 1e-6}} : bf16[R, {wide}]
  return %0, %1
}}",
            wide = 4 * width
        );
        let runs = [Run { position: 0, tokens: 12, rows: 3 }];
        let indices: &[(&str, &[i32])] = &[("rows", &[0, 4, 8])];
        Case { runs: &runs, indices, ..case(&text, Family::Rows, 16) }.check_in_all_types();
    }
}

#[test]
fn rows_in_the_place_of_others() {
    for (adds, start) in [(false, 0), (true, 48)] {
        let text = format!(
            "graph @k(%x: bf16[T, 48], %table: bf16[T, 112], %rows: i32[T]) {{
  %0 = placed %x, %table, %rows {{start = {start}, adds = {adds}}} : bf16[T, 48]
  return %0
}}"
        );
        Case { indices: &[("rows", &[-1, 0, 4, -1, 1])], ..case(&text, Family::Rows, 8) }.check_in_all_types();
    }
}

#[test]
fn rows_growth() {
    let text = "graph @k(%positions: i32[T]) {
  %0 = growth %positions {beta = 0.1, length = 100, shift = 1} : f32[T, 1]
  return %0
}";
    let indices: &[(&str, &[i32])] = &[("positions", &[0, 99, 131071, 98, 500])];
    Case { indices, ..case(text, Family::Rows, 8) }.check();
}

/// Trials hold a few hundred different numbers, so that wide rows have several that are the
/// largest.
#[test]
fn rows_largest() {
    let runs = [Run { rows: 2, ..run(3, 3) }, Run { rows: 1, ..run(0, 2) }];
    for n in [40, 83, 512, 1000, 9000] {
        for lead in ["T", "R"] {
            let text = format!("graph @k(%x: f32[{lead}, {n}]) {{\n  %0 = argmax %x : i32[{lead}]\n  return %0\n}}");
            Case { runs: &runs, ..case(&text, Family::Rows, 8) }.check();
        }
    }
}

/// The largest element of a row that the same kernel makes and stores: sums that are exact.
#[test]
fn rows_largest_of_what_is_made() {
    for n in [48, 50] {
        let text = format!(
            "graph @k(%x: f32[T, {n}]) {{
  %0 = add %x, %x : f32[T, {n}]
  %1 = argmax %0 : i32[T]
  return %0, %1
}}"
        );
        case(&text, Family::Rows, 8).check();
    }
}

/// Slices of a qkv matrix, norms, rotary embedding, the write into the cache.
fn qkv(heads: usize, kv: usize, dim: usize, rot: usize, tail: &str, returns: &str) -> String {
    let (q, k) = (heads * dim, kv * dim);
    let n = q + 2 * k;
    format!(
        "graph @k(%qkv: bf16[T, {n}], %qn: bf16[{dim}], %kn: bf16[{dim}], %table: f32[T, {rot}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %0 = slice %qkv {{axis = 1, start = 0, len = {q}}} : bf16[T, {q}]
  %1 = reshape %0 {{shape = [T, {heads}, {dim}]}} : bf16[T, {heads}, {dim}]
  %2 = rms_norm %1, %qn {{eps = 1e-6}} : bf16[T, {heads}, {dim}]
  %3 = rope %2, %table : bf16[T, {heads}, {dim}]
  %4 = slice %qkv {{axis = 1, start = {q}, len = {k}}} : bf16[T, {k}]
  %5 = reshape %4 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %6 = rms_norm %5, %kn {{eps = 1e-6}} : bf16[T, {kv}, {dim}]
  %7 = rope %6, %table : bf16[T, {kv}, {dim}]
  %8 = slice %qkv {{axis = 1, start = {}, len = {k}}} : bf16[T, {k}]
  %9 = reshape %8 {{shape = [T, {kv}, {dim}]}} : bf16[T, {kv}, {dim}]
  %10 = kv_write %kv, %7, %9, %batch : cache<bf16, {kv}, {dim}>
{tail}  return {returns}
}}",
        q + k
    )
}

#[test]
fn rows_prepare_attention() {
    for (dim, rot) in [(32, 32), (20, 20), (20, 12), (48, 24)] {
        let text = qkv(4, 2, dim, rot, "", "%3, %10");
        case(&text, Family::Rows, 8).check();
    }
}

/// The norms of heads take off their means, and add the other's weights.
fn centred(text: &str) -> String {
    text.replace("rms_norm %1, %qn", "layer_norm %1, %qn, %kn").replace("rms_norm %5, %kn", "layer_norm %5, %kn, %qn")
}

#[test]
fn rows_prepare_attention_with_layer_norm() {
    for (dim, rot) in [(32, 32), (20, 12), (48, 24)] {
        let text = centred(&qkv(4, 2, dim, rot, "", "%3, %10"));
        case(&text, Family::Rows, 8).check();
    }
}

/// Rows of which other ranks have the other parts: queries and keys of heads of a qkv matrix.
#[test]
fn rows_sum_up_squares() {
    for (q, k) in [(128, 64), (60, 20), (1536, 256), (25, 7)] {
        let n = q + 2 * k;
        let text = format!(
            "graph @k(%qkv: bf16[T, {n}]) {{
  %0 = slice %qkv {{axis = 1, start = 0, len = {q}}} : bf16[T, {q}]
  %1 = slice %qkv {{axis = 1, start = {q}, len = {k}}} : bf16[T, {k}]
  %2 = squares %0, %1 : f32[T, 2]
  return %2
}}"
        );
        case(&text, Family::Rows, 8).check_in_all_types();
    }
}

/// The norms of heads are those of a part of a row each.
fn parts_of_norms(text: &str, (heads, kv, dim): (usize, usize, usize)) -> String {
    let (q, k) = (heads * dim, kv * dim);
    let signature = format!("%qn: bf16[{q}], %kn: bf16[{k}], %squares: f32[T, 2],");
    let mut text = text.replace(&format!("%qn: bf16[{dim}], %kn: bf16[{dim}],"), &signature);
    for (i, name, heads, of) in [(0, "qn", heads, 2 * q), (1, "kn", kv, 4 * k)] {
        let [row, split, made] = [0, 1, 2].map(|place| 4 * i + place);
        let (width, from) = (heads * dim, format!("  %{split} = reshape"));
        let begin = text.find(&from).expect("heads");
        let end = text[begin..].find(&format!("  %{} = rope", made + 1)).expect("a rotation") + begin;
        let norm = format!(
            "  %{split} = part_norm %{row}, %{name}, %squares {{eps = 1e-6, of = {of}, at = {i}}} : bf16[T, {width}]
  %{made} = reshape %{split} {{shape = [T, {heads}, {dim}]}} : bf16[T, {heads}, {dim}]
"
        );
        text.replace_range(begin..end, &norm);
    }
    text
}

#[test]
fn rows_prepare_attention_with_parts_of_norms() {
    for (dim, rot) in [(32, 32), (20, 12), (48, 24)] {
        let text = parts_of_norms(&qkv(4, 2, dim, rot, "", "%3, %10"), (4, 2, dim));
        case(&text, Family::Rows, 8).check();
    }
}

#[test]
fn attention_of_one_token_each() {
    let runs = [run(3, 1), run(0, 1), run(70, 1)];
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (7, 1, 64, 40), (4, 1, 48, 1)] {
        let width = heads * dim;
        let tail = format!(
            "  %11 = attention %3, %10, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %12 = reshape %11 {{shape = [T, {width}]}} : bf16[T, {width}]
"
        );
        let text = qkv(heads, kv, dim, dim, &tail, "%12, %10");
        Case { runs: &runs, ..case(&text, Family::AttendOne, 4) }.check_in_all_types();
        Case { runs: &runs, ..case(&centred(&text), Family::AttendOne, 4) }.check();
        Case { runs: &runs, ..case(&parts_of_norms(&text, (heads, kv, dim)), Family::AttendOne, 4) }.check();
    }
}

#[test]
fn attention_of_runs_of_tokens() {
    let runs = [run(5, 40), run(64, 1), run(0, 33)];
    for (heads, kv, dim, window) in [(4, 2, 32, 0), (3, 3, 20, 0), (2, 1, 64, 7), (1, 1, 128, 33)] {
        let width = heads * dim;
        let text = format!(
            "graph @k(%q: bf16[T, {heads}, {dim}], %kv: cache<bf16, {kv}, {dim}>, %batch: batch) {{
  %0 = attention %q, %kv, %batch {{scale = 0.2, window = {window}}} : bf16[T, {heads}, {dim}]
  %1 = reshape %0 {{shape = [T, {width}]}} : bf16[T, {width}]
  return %1
}}"
        );
        Case { runs: &runs, ..case(&text, Family::AttendMany, 96) }.check_in_all_types();
    }
}

/// A norm, a contraction in two pieces, a gated activation.
fn gated(k: usize, n: usize) -> String {
    format!(
        "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}], %w: bf16[{}, {k}]@panels) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = linear %0, %w {{out = bf16}} : bf16[T, {}]
  %2 = slice %1 {{axis = 1, start = 0, len = {n}}} : bf16[T, {n}]
  %3 = slice %1 {{axis = 1, start = {n}, len = {n}}} : bf16[T, {n}]
  %4 = silu_mul %2, %3 : bf16[T, {n}]
  return %4
}}",
        2 * n,
        2 * n
    )
}

const BIASED: &str = "graph @k(%x: bf16[T, 72], %w: bf16[50, 72]@panels, %b: bf16[50], %r: bf16[T, 50]) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 50]
  %1 = add %0, %b : bf16[T, 50]
  %2 = add %r, %1 : bf16[T, 50]
  return %2
}";

#[test]
fn matvec_with_norm_activation_bias_residual() {
    for bucket in [1, 2, 4, 8] {
        let runs = &[run(0, 1); 3][..bucket.min(3)];
        let centred = |k| gated(k, 48).replace("rms_norm %x, %wn", "layer_norm %x, %wn, %wn");
        for text in [gated(72, 48), gated(64, 64), BIASED.to_string(), centred(72), centred(64)] {
            Case { runs, ..case(&text, Family::Matvec, bucket) }.check_in_all_types();
        }
    }
}

/// Fewer features than a vector has, with an epilogue that makes other numbers than zeros of zeros.
#[test]
fn products_of_few_features_are_padded_with_zeros() {
    let text = "graph @k(%x: bf16[T, 64], %w: bf16[4, 64]@panels) {
  %0 = linear %x, %w {out = f32} : f32[T, 4]
  %1 = sigmoid %0 : f32[T, 4]
  return %1
}";
    for (family, bucket) in [(Family::Matvec, 8), (Family::Matmul, 64)] {
        for n in [1, 2, 4, 12, 20] {
            case(&text.replace("4", &n.to_string()).replace(&format!("6{n}"), "64"), family, bucket).check();
        }
    }
}

#[test]
fn matvec_of_chosen_rows_to_f32() {
    let text = "graph @k(%x: bf16[T, 64], %rows: i32[R], %wn: bf16[64], %w: bf16[83, 64]@panels) {
  %0 = gather %x, %rows : bf16[R, 64]
  %1 = rms_norm %0, %wn {eps = 1e-6} : bf16[R, 64]
  %2 = linear %1, %w {out = f32} : f32[R, 83]
  return %2
}";
    let mut runs = STEP;
    runs[1].rows = 1;
    runs[2].rows = 1;
    Case { runs: &runs, indices: &[("rows", &[4, 0])], ..case(text, Family::Matvec, 8) }.check();
}

#[test]
fn matmul_with_epilogues() {
    let gated = gated(96, 48).replace("rms_norm %x, %wn {eps = 1e-6}", "silu %x");
    let gated = gated
        .lines()
        .map(|l| if l.contains("silu %x") { "" } else { l })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("%0,", "%x,");
    for text in [BIASED.to_string(), gated] {
        for tokens in [300, 5] {
            Case { runs: &[run(0, tokens)], ..case(&text, Family::Matmul, 320) }.check_in_all_types();
        }
    }
}

/// Tiles of 256 tokens. A small product has one of them for each unit only where units are few.
#[test]
fn matmul_in_large_tiles() {
    let mut arch = rows().iter().find(|arch| arch.name == "gfx950").expect("a row").clone();
    let Machine::Simt(simt) = &mut arch.machine else { unreachable!("a GPU") };
    simt.chip.units = 1;
    let wide = BIASED.replace("72]", "256]").replace("50", "300");
    for text in [BIASED, &wide] {
        let graph = parse(text).expect("a body in the text of the IR");
        let spec = KernelSpec::new(Family::Matmul, &graph, 320);
        let object = compile(&[spec], &arch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(object.kernels[0].threads, 1024);
        for tokens in [300, 5] {
            let case = Case { runs: &[run(0, tokens)], ..case(text, Family::Matmul, 320) };
            assert_eq!(case.fault_on(&graph, &arch), None);
        }
    }
}

/// Where a chip has more units than tiles, work-groups share these along K.
#[test]
fn matmul_in_shared_tiles() {
    let text = BIASED.replace("72]", "1024]");
    let graph = parse(&text).expect("a body in the text of the IR");
    for name in ["gfx942", "gfx950", "gfx1100", "gfx1201"] {
        let mut arch = rows().iter().find(|arch| arch.name == name).expect("a row").clone();
        let Machine::Simt(simt) = &mut arch.machine else { unreachable!("a GPU") };
        simt.chip.units = 8;
        let family = Family::Matmul;
        let spec = |tokens: usize| KernelSpec::new(family, &graph, tokens);
        let workspace = |tokens: usize| {
            let object = compile(&[spec(tokens)], &arch).unwrap_or_else(|e| panic!("{e}"));
            object.kernels[0].workspace
        };
        // A step decides, whatever its bucket has room for.
        assert!(workspace(320) > 0 && workspace(2048) > 0, "{name}");
        for (bucket, tokens) in [(320, 300), (320, 5), (2048, 300)] {
            let case = Case { runs: &[run(0, tokens)], ..case(&text, family, bucket) };
            assert_eq!(case.fault_on(&graph, &arch), None, "{name}");
        }
    }
}

/// Parts of the weight have whole groups of columns that share a scale: 33 stretches of 64 columns
/// are not shared out, as the last one would be left out.
#[test]
fn shared_tiles_have_whole_groups() {
    for depth in [2048, 2112] {
        let groups = usize::div_ceil(depth, 128);
        let text = format!(
            "graph @k(%x: f8e4m3[T, {depth}]@scaled(128), %w: f8e4m3[64, {depth}]@panels, %s: f32[1, {groups}]) {{
  %0 = linear %x, %w, %s {{out = bf16, block = [128, 128]}} : bf16[T, 64]
  return %0
}}"
        );
        let graph = parse(&text).expect("a body in the text of the IR");
        let mut arch = rows().iter().find(|arch| arch.name == "gfx942").expect("a row").clone();
        let Machine::Simt(simt) = &mut arch.machine else { unreachable!("a GPU") };
        simt.chip.units = 4;
        let case = Case { runs: &[run(0, 130)], ..case(&text, Family::Matmul, 192) };
        assert_eq!(case.fault_on(&graph, &arch), None, "{depth} columns");
    }
}

/// A router of a prompt: few features of many columns.
#[test]
fn matmul_of_few_features() {
    let text = BIASED.replace("72]", "1032]").replace("50", "24");
    for tokens in [70, 5] {
        Case { runs: &[run(0, tokens)], ..case(&text, Family::Matmul, 128) }.check();
    }
}

#[test]
fn unsupported_bodies_are_errors() {
    let text = "graph @k(%x: bf16[T, 64], %w: bf16[100, 64]@panels) {
  %0 = linear %x, %w {out = bf16} : bf16[T, 100]
  %1 = slice %0 {axis = 1, start = 0, len = 50} : bf16[T, 50]
  %2 = slice %0 {axis = 1, start = 50, len = 50} : bf16[T, 50]
  %3 = mul %1, %2 : bf16[T, 50]
  return %3
}";
    let graph = parse(text).unwrap();
    assert!(graph.inputs().iter().all(|&v| graph.ty(v).as_tensor().is_some_and(|t| t.shape.0[0] != Dim::Rows)));
    let spec = KernelSpec::new(Family::Matvec, &graph, 1);
    let e = compile(&[spec], &rows()[0]).unwrap_err();
    assert_eq!(e.to_string(), "kernel k on x86-64-v4-amx: a slice of 50 from 50 of a contraction");
    let text = "graph @k(%q: f32[T, 2, 32], %kv: cache<f8e4m3, 1, 32>, %batch: batch) {
  %0 = attention %q, %kv, %batch {scale = 1.0, window = 0} : f32[T, 2, 32]
  %1 = reshape %0 {shape = [T, 64]} : f32[T, 64]
  return %1
}";
    let graph = parse(text).unwrap();
    let spec = KernelSpec::new(Family::AttendMany, &graph, 32);
    let gpu = rows().iter().find(|a| a.name == "gfx942").unwrap();
    let e = compile(&[spec], gpu).unwrap_err().to_string();
    assert!(e.starts_with("kernel k on gfx942: no schedule for attend_many: latent_warpgroup_tokens: "), "{e}");
    assert!(e.contains("; prefill: a cache of f8e4m3 under queries of f32; "), "{e}");
}

/// A kernel made with the lanes of a matrix instruction in another chip's order computes something
/// else, and that shows.
#[test]
fn swapped_lane_layouts_are_wrong_results() {
    let row = |name: &str| rows().iter().find(|a| a.name == name).unwrap();
    let graph = parse(BIASED).unwrap();
    for (chip, other) in [("gfx942", "gfx1100"), ("gfx1100", "gfx942")] {
        let mut swapped = row(chip).clone();
        let Machine::Simt(simt) = &mut swapped.machine else { unreachable!("a GPU") };
        simt.matrix.a_rows = row(other).gpu().unwrap().simt.matrix.a_rows;
        for (family, bucket) in [(Family::Matvec, 8), (Family::Matmul, 128)] {
            let case = case(BIASED, family, bucket);
            assert_eq!(case.fault_on(&graph, row(chip)), None);
            let fault = case.fault_on(&graph, &swapped).expect("a wrong result");
            assert!(fault.contains("should be"), "{fault}");
        }
    }
}
