//! Kernels of layers of experts on every machine that this one can run or emulate.
use std::path::Path;

use atomc::frontend::{self, Config};
use atomc_ir::trial::Run;
use atomc_ir::{Arch, Family, Graph, NodeId, Op};
use atomc_passes::{Bucket, Cx};
use atomc_tests::kernels::{Case, case, run};

/// Steps of one token, and of more than a block.
const STEPS: [&[Run]; 3] = [&[run(0, 1)], &[run(0, 3), run(5, 4)], &[run(0, 70)]];

/// Every kind of router, with experts that are fewer than lanes, and more.
#[test]
fn routers() {
    let kinds = [
        ("3, softmax, 1, 1, max, true, 1.0", 5, ""),
        ("8, softmax, 1, 1, max, false, 1.0", 130, ""),
        ("4, chosen, 1, 1, max, false, 1.0", 33, ""),
        ("2, sigmoid, 1, 1, max, true, 2.5", 7, ", %bias"),
        ("4, sigmoid, 4, 2, sum2, true, 2.5", 64, ", %bias"),
        ("3, softmax, 3, 2, max, false, 16.0", 12, ""),
    ];
    for (by, experts, bias) in kinds {
        let k: usize = by[..1].parse().unwrap();
        let param = if bias.is_empty() { String::new() } else { format!(", %bias: f32[{experts}]") };
        for logits in ["f32", "bf16"] {
            let text = format!(
                "graph @k(%l: {logits}[T, {experts}]{param}) {{
  %0, %1 = route %l{bias} {{by = ({by})}} : f32[T, {k}], i32[T*{k}]
  return %0, %1
}}"
            );
            Case { runs: STEPS[1], ..case(&text, Family::Rows, 8) }.check();
        }
    }
}

/// Logits from -54 to -146: their logistic function is zero in f32 or nearly so. With nine experts
/// no large operand lies between -109 and -103, where its own logistic function is zero in f32 and
/// not in f64: the choice among such depends on rounding.
#[test]
fn routers_of_scores_that_underflow() {
    let text = "graph @k(%l: f32[T, 9]) {
  %0 = sigmoid %l : f32[T, 9]
  %1 = scale %0 {by = -200.0} : f32[T, 9]
  %2, %3 = route %1 {by = (2, sigmoid, 1, 1, max, true, 2.5)} : f32[T, 2], i32[T*2]
  return %2, %3
}";
    Case { runs: STEPS[1], ..case(text, Family::Rows, 8) }.check();
}

/// A rank that holds some of the experts; where it does not hold the first one too.
#[test]
fn routers_of_ranks() {
    let kinds = [
        ("3, softmax, 1, 1, max, true, 1.0", 5, 2, ""),
        ("2, chosen, 1, 1, max, false, 1.0", 7, 6, ""),
        ("4, sigmoid, 4, 2, sum2, true, 2.5", 64, 16, "%bias"),
    ];
    for (by, experts, held, bias) in kinds {
        let k: usize = by[..1].parse().unwrap();
        let (param, operand) = match bias {
            "" => (String::new(), String::new()),
            bias => (format!(", {bias}: f32[{experts}]"), format!(", {bias}")),
        };
        let text = format!(
            "graph @k(%l: f32[T, {experts}]{param}, %first: f32[1]) {{
  %0, %1 = route %l{operand}, %first {{by = ({by}), held = {held}}} : f32[T, {k}], i32[T*{k}]
  return %0, %1
}}"
        );
        Case { runs: STEPS[1], ..case(&text, Family::Rows, 8) }.check();
    }
}

#[test]
fn rows_of_experts_are_found() {
    for (experts, k, tile) in [(5, 2, 16), (130, 8, 16), (7, 3, 64), (1, 1, 32)] {
        let text = format!(
            "graph @k(%e: i32[T*{k}]) {{
  %0 = group %e {{experts = {experts}, tile = {tile}}} : i32[T*{k}]@grouped({experts}, {tile})
  return %0
}}"
        );
        for runs in STEPS {
            Case { runs, ..case(&text, Family::Group, 128) }.check();
        }
    }
}

#[test]
fn sums_of_choices() {
    for (n, k) in [(64, 2), (50, 5)] {
        let text = format!(
            "graph @k(%y: bf16[T*{k}, {n}], %w: f32[T, {k}], %x: bf16[T, {n}]) {{
  %0 = combine %y, %w : bf16[T, {n}]
  %1 = add %x, %0 : bf16[T, {n}]
  return %1
}}"
        );
        Case { runs: STEPS[1], ..case(&text, Family::Rows, 8) }.check();
    }
}

/// Rows for each choice as any others.
#[test]
fn rows_of_choices() {
    let text = "graph @k(%x: bf16[T*3, 40], %t: bf16[5, 40], %e: i32[T*3]) {
  %0 = gather %t, %e : bf16[T*3, 40]
  %1 = silu_mul %x, %0 : bf16[T*3, 40]
  return %1
}";
    let indices: &[(&str, &[i32])] = &[("e", &[0, 4, -1, 3, 3, 2, 1, 0, 4, 0, 0, 0, 1, 2, 3, 4, 4, 4, 0, 1, -1])];
    Case { runs: STEPS[1], indices, ..case(text, Family::Rows, 8) }.check();
}

/// Products with the weights of experts, of rows of tokens or of choices.
fn grouped(experts: usize, k: usize, [n, depth]: [usize; 2], x: &str, rest: &str, end: &str) -> String {
    format!(
        "graph @k(%x: bf16[{x}, {depth}], %w: bf16[{experts}, {n}, {depth}]@panels, %e: i32[T*{k}]{rest}) {{
  %0 = grouped %x, %w, %e {{out = bf16}} : bf16[T*{k}, {n}]
{end}
}}"
    )
}

const FEW: [(usize, usize, [usize; 2]); 4] =
    [(5, 2, [48, 64]), (7, 1, [50, 96]), (5, 5, [32, 200]), (130, 8, [64, 64])];

#[test]
fn few_rows_with_the_weights_of_experts() {
    for (experts, k, sizes) in FEW {
        for x in ["T".to_string(), format!("T*{k}")] {
            let text = grouped(experts, k, sizes, &x, "", "  return %0");
            for runs in [&[run(3, 1)][..], &[run(0, 3), run(5, 4)]] {
                Case { runs, ..case(&text, Family::GroupedMatvec, 8) }.check();
            }
        }
    }
}

/// Biases of experts, gate and up with activation; a norm before.
#[test]
fn few_rows_with_everything_around() {
    let text = "graph @k(%x: bf16[T, 96], %n: bf16[96], %w: bf16[5, 64, 96]@panels, %e: i32[T*3], %b: bf16[5, 64]) {
  %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 96]
  %1 = grouped %0, %w, %e {out = bf16} : bf16[T*3, 64]
  %2 = gather %b, %e : bf16[T*3, 64]
  %3 = add %1, %2 : bf16[T*3, 64]
  %4 = slice %3 {axis = 1, start = 0, len = 32} : bf16[T*3, 32]
  %5 = slice %3 {axis = 1, start = 32, len = 32} : bf16[T*3, 32]
  %6 = silu_mul %4, %5 : bf16[T*3, 32]
  return %6
}";
    Case { runs: STEPS[1], ..case(text, Family::GroupedMatvec, 8) }.check();
}

/// Weights of codes: a scale for each row and group, for squares, powers of two; and rows of codes.
fn of_codes(k: usize) -> Vec<String> {
    let text = |x: &str, codes: &str, marks: &[&str], block: &str| {
        let params: String = marks.iter().enumerate().map(|(i, ty)| format!(", %s{i}: {ty}")).collect();
        let operands: String = (0..marks.len()).map(|i| format!(", %s{i}")).collect();
        format!(
            "graph @k(%x: {x}, %w: {codes}[5, 48, 256]@panels, %e: i32[T*{k}]{params}) {{
  %0 = grouped %x, %w, %e{operands} {{out = bf16, block = {block}}} : bf16[T*{k}, 48]
  return %0
}}"
        )
    };
    vec![
        text("bf16[T, 256]", "u4", &["bf16[5, 48, 4]@columns", "u8[5, 48, 4]@columns"], "[1, 64]"),
        text(&format!("bf16[T*{k}, 256]"), "f4e2m1", &["e8m0[5, 48, 8]@columns"], "[1, 32]"),
        text("bf16[T, 256]", "f8e4m3", &["f32[5, 2, 2]"], "[32, 128]"),
        text("f8e4m3[T, 256]@scaled(128)", "f8e4m3", &["f32[5, 1, 2]"], "[128, 128]"),
        text("i8[T, 256]@scaled(256)", "i8", &["f32[5, 48, 1]@columns"], "[1, 256]"),
    ]
}

/// The same products of many rows, grouped by experts.
fn blocks(text: &str, experts: usize, k: usize, tile: usize) -> String {
    let grouped = format!("%e: i32[T*{k}]@grouped({experts}, {tile})");
    text.replace(&format!("%e: i32[T*{k}]"), &grouped)
}

#[test]
fn many_rows_with_the_weights_of_experts() {
    for ((experts, k, sizes), tile) in FEW.into_iter().zip([16, 64, 32, 16]) {
        for x in ["T".to_string(), format!("T*{k}")] {
            let text = blocks(&grouped(experts, k, sizes, &x, "", "  return %0"), experts, k, tile);
            for runs in STEPS {
                Case { runs, ..case(&text, Family::GroupedMatmul, 128) }.check();
            }
        }
    }
}

/// Blocks of an expert's rows that fill tiles on AMD's GPUs: weights that are no multiple of one,
/// and one that several blocks have.
#[test]
fn many_rows_of_experts_in_tiles() {
    let all = [("T", 2, 3, [50, 200], 64), ("T*2", 5, 2, [200, 64], 64), ("T", 2, 3, [144, 96], 128)];
    for (x, experts, k, sizes, tile) in all {
        let text = blocks(&grouped(experts, k, sizes, x, "", "  return %0"), experts, k, tile);
        Case { runs: STEPS[2], ..case(&text, Family::GroupedMatmul, 128) }.check_on_gpus();
    }
    // Blocks of 64 rows are tried with the other quantised weights.
    for text in &of_codes(3)[2..4] {
        let text = blocks(text, 5, 3, 128);
        Case { runs: STEPS[1], ..case(&text, Family::GroupedMatmul, 128) }.check_on_gpus();
    }
}

/// Which schedule makes products of many rows, and why another does not.
#[test]
fn tiles_are_for_blocks_of_many_rows() {
    let why = |arch: &str, depth: usize, tile: usize| {
        let text = blocks(&grouped(5, 2, [48, depth], "T", "", "  return %0"), 5, 2, tile);
        let (body, arch) = (atomc_ir::parse(&text).unwrap(), &atomc_targets::variants(arch).unwrap()[0]);
        let (symbol, family) = ("k".into(), Family::GroupedMatmul);
        let spec = atomc_targets::KernelSpec { symbol, ..atomc_targets::KernelSpec::new(family, &body, 128) };
        let asked = atomc_targets::ask(&spec, arch).unwrap();
        let said = |a: &atomc_targets::Asked| (a.schedule.name, a.answer.as_ref().err().map(ToString::to_string));
        asked.iter().map(said).collect::<Vec<_>>()
    };
    // The last one that is asked makes the product.
    let made = |arch: &str, depth: usize, tile: usize| why(arch, depth, tile).pop();
    let refused = |arch: &str, depth: usize, tile: usize| {
        let all = why(arch, depth, tile);
        all.into_iter().find(|(name, _)| *name == "gemm_tiled_blocks").and_then(|(_, why)| why)
    };
    for (arch, tile) in [("gfx942", 64), ("gfx1201", 128)] {
        assert_eq!(made(arch, 64, tile), Some(("gemm_tiled_blocks", None)));
    }
    assert_eq!(made("gfx942", 64, 32), Some(("gemv_blocks", None)));
    let small = refused("gfx942", 64, 32).unwrap();
    assert!(small.ends_with("blocks of 32 rows: tiles have 64 or 128"), "{small}");
    assert_eq!(made("sm_90a", 64, 64), Some(("stream_k_grouped", None)));
    assert_eq!(made("sm_90a", 64, 128), Some(("gemm_warpgroup_grouped", None)));
    // Columns that are no whole K tiles of these.
    assert_eq!(made("sm_90a", 96, 64), Some(("gemv_blocks", None)));
    assert_eq!(refused("sm_90a", 96, 64), Some("slower than gemv_blocks on an H200".into()));
}

/// Gate and up with biases and GPT-OSS's activation, for few rows, for blocks and for tiles.
#[test]
fn clamped_gates_of_experts() {
    let text = "graph @k(%x: bf16[T, 96], %w: bf16[5, 64, 96]@panels, %e: i32[T*3], %b: bf16[5, 64]) {
  %1 = grouped %x, %w, %e {out = bf16} : bf16[T*3, 64]
  %2 = gather %b, %e : bf16[T*3, 64]
  %3 = add %1, %2 : bf16[T*3, 64]
  %4 = slice %3 {axis = 1, start = 0, len = 32} : bf16[T*3, 32]
  %5 = slice %3 {axis = 1, start = 32, len = 32} : bf16[T*3, 32]
  %6 = swiglu_clamped %4, %5 {alpha = 1.702, limit = 7.0} : bf16[T*3, 32]
  return %6
}";
    Case { runs: STEPS[1], ..case(text, Family::GroupedMatvec, 8) }.check();
    for tile in [32, 64] {
        let text = blocks(text, 5, 3, tile);
        Case { runs: STEPS[2], ..case(&text, Family::GroupedMatmul, 128) }.check();
    }
}

/// Codes of MX with their scales, by instructions that take both: rows of tokens, and of choices.
#[test]
fn weights_of_experts_by_scaled_products() {
    for codes in ["f4e2m1", "f8e4m3"] {
        for x in ["T", "T*3"] {
            let text = format!(
                "graph @k(%x: {codes}[{x}, 256]@mx(32), %w: {codes}[5, 48, 256]@panels, %e: i32[T*3], %s: e8m0[5, 48, 8]@columns) {{
  %0 = grouped %x, %w, %e, %s {{out = bf16, block = [1, 32]}} : bf16[T*3, 48]
  return %0
}}"
            );
            Case { runs: STEPS[1], ..case(&text, Family::GroupedMatvec, 8) }.check_where_blocks_are_scaled();
            for tile in [16, 64] {
                let text = blocks(&text, 5, 3, tile);
                Case { runs: STEPS[1], ..case(&text, Family::GroupedMatmul, 128) }.check_where_blocks_are_scaled();
            }
        }
    }
}

#[test]
fn many_rows_with_weights_of_codes() {
    for (text, tile) in of_codes(3).into_iter().zip([16, 64, 32, 16, 64]) {
        // Rows that are codes come from memory.
        let text = blocks(&text, 5, 3, tile);
        Case { runs: STEPS[1], ..case(&text, Family::GroupedMatmul, 128) }.check();
    }
}

#[test]
fn few_rows_with_weights_of_codes() {
    for text in of_codes(3) {
        Case { runs: STEPS[1], ..case(&text, Family::GroupedMatvec, 8) }.check();
    }
}

/// Experts with one row to fourteen: turns of as many as registers hold sums for, and what is left.
#[test]
fn experts_of_codes_with_every_number_of_rows() {
    let lists: [&[i32]; 3] =
        [&[3; 14], &[0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3], &[4, -1, 4, 2, 2, -1, 4, 2, 4, 2, 2, -1, 4, 2]];
    for text in of_codes(2) {
        for experts in lists {
            let indices: &[(&str, &[i32])] = &[("e", experts)];
            Case { runs: STEPS[1], indices, ..case(&text, Family::GroupedMatvec, 8) }.check_on_cpus();
        }
    }
}

#[test]
fn many_rows_with_everything_around() {
    let text = "graph @k(%x: bf16[T, 96], %w: bf16[5, 64, 96]@panels, %e: i32[T*3]@grouped(5, 32), %b: bf16[5, 64]) {
  %1 = grouped %x, %w, %e {out = bf16} : bf16[T*3, 64]
  %2 = gather %b, %e : bf16[T*3, 64]
  %3 = add %1, %2 : bf16[T*3, 64]
  %4 = slice %3 {axis = 1, start = 0, len = 32} : bf16[T*3, 32]
  %5 = slice %3 {axis = 1, start = 32, len = 32} : bf16[T*3, 32]
  %6 = silu_mul %4, %5 : bf16[T*3, 32]
  return %6
}";
    Case { runs: STEPS[2], ..case(text, Family::GroupedMatmul, 128) }.check_on_cpus_in_all_types();
}

/// All rows belong to one expert, or to none; two choices of a token are one expert.
#[test]
fn experts_with_all_rows_and_with_none() {
    let lists: [&[i32]; 3] = [&[3; 14], &[-1; 14], &[6, 6, -1, 0, 0, 6, 6, 6, -1, -1, 2, 2, 0, -1]];
    let text = grouped(7, 2, [48, 72], "T", "", "  return %0");
    for experts in lists {
        let indices: &[(&str, &[i32])] = &[("e", experts)];
        Case { runs: STEPS[1], indices, ..case(&text, Family::GroupedMatvec, 8) }.check();
        let text = blocks(&text, 7, 2, 16);
        Case { runs: STEPS[1], indices, ..case(&text, Family::GroupedMatmul, 128) }.check_on_cpus();
    }
}

/// Choices that are added up as their products are made, with biases and an epilogue.
#[test]
fn few_rows_that_are_added_up() {
    let ends = [
        "  %1 = combine %0, %c : bf16[T, 48]\n  return %1",
        "  %1 = gather %b, %e : bf16[T*3, 48]
  %2 = add %0, %1 : bf16[T*3, 48]
  %3 = combine %2, %c : bf16[T, 48]
  %4 = add %r, %3 : bf16[T, 48]
  return %4",
    ];
    let rests = [", %c: f32[T, 3]", ", %c: f32[T, 3], %b: bf16[5, 48], %r: bf16[T, 48]"];
    for (end, rest) in ends.into_iter().zip(rests) {
        let text = grouped(5, 3, [48, 200], "T*3", rest, end);
        Case { runs: STEPS[1], ..case(&text, Family::GroupedMatvec, 8) }.check_on_gpus();
    }
    for text in of_codes(3) {
        let text = text
            .replace("[T, 256]", "[T*3, 256]")
            .replace("%e: i32[T*3]", "%e: i32[T*3], %c: f32[T, 3]")
            .replace("  return %0", "  %1 = combine %0, %c : bf16[T, 48]\n  return %1");
        Case { runs: STEPS[1], ..case(&text, Family::GroupedMatvec, 8) }.check_on_gpus();
    }
}

/// Router product, router, gate and up, down with the sum over choices; with three of attention's,
/// a layer has seven. A kernel of its own norms several tokens. Where tokens share experts, rows
/// are grouped, and sums are a kernel too.
#[test]
fn kernels_of_a_decode_layer() {
    let text = r#"graph @g(%x: bf16[T, 64]) {
    %n = weight {name = "n"} : bf16[64]
    %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 64]
    %r = weight {name = "r"} : bf16[4, 64]
    %1 = linear %0, %r {out = f32} : f32[T, 4]
    %2, %3 = route %1 {by = (2, softmax, 1, 1, max, true, 1.0)} : f32[T, 2], i32[T*2]
    %g = weight {name = "gate"} : bf16[4, 32, 64]
    %4 = grouped %0, %g, %3 {out = bf16} : bf16[T*2, 32]
    %u = weight {name = "up"} : bf16[4, 32, 64]
    %5 = grouped %0, %u, %3 {out = bf16} : bf16[T*2, 32]
    %6 = silu %4 : bf16[T*2, 32]
    %7 = mul %6, %5 : bf16[T*2, 32]
    %d = weight {name = "down"} : bf16[4, 64, 32]
    %8 = grouped %7, %d, %3 {out = bf16} : bf16[T*2, 64]
    %9 = combine %8, %2 : bf16[T, 64]
    %10 = add %x, %9 : bf16[T, 64]
    return %10
}"#;
    let families = |arch: &str, tokens: usize| -> Vec<Family> {
        let arch = atomc_targets::rows().iter().find(|row| row.name == arch).unwrap();
        let mut graph = atomc_ir::parse(text).unwrap();
        let cx = atomc_passes::Cx { arch, bucket: atomc_passes::Bucket::Decode { tokens }, invariant: false };
        atomc_passes::run(&mut graph, &cx, None, &mut |_, _| {}).unwrap();
        let family = |id| match graph.op(id) {
            Op::Kernel { family, .. } => Some(*family),
            _ => None,
        };
        graph.order().into_iter().filter_map(family).collect()
    };
    let (rows, product) = (Family::Rows, Family::GroupedMatvec);
    assert_eq!(families("gfx942", 1), [Family::Matvec, rows, product, product]);
    assert_eq!(families("gfx942", 2), [rows, Family::Matvec, rows, product, product]);
    let blocks = Family::GroupedMatmul;
    assert_eq!(families("gfx942", 8), [rows, Family::Matvec, rows, Family::Group, blocks, blocks, rows]);
}

/// The shapes of `bench` that have experts, with four layers of each, as they are and quantised.
fn shapes_of_experts() -> Vec<(String, Graph)> {
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench")).expect("a folder");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json") && !file.ends_with("served.json"));
    let mut shapes = vec![];
    for file in files {
        let json = std::fs::read_to_string(&file).expect("a file");
        if !json.contains("experts") {
            continue;
        }
        for rule in ["", "fp8-block", "mxfp4"] {
            let mut config = Config::parse(&json, None).expect("a model");
            config.shorten(4);
            // Experts that lie as columns are not quantised.
            if !rule.is_empty() && config.quantise(&[rule.into()]).is_err() {
                continue;
            }
            let name = format!("{} {rule}", file.file_stem().expect("a name").display());
            // Heads of latent attention are not stored in every form.
            shapes.extend(frontend::graph(&config).ok().map(|graph| (name, graph)));
        }
    }
    assert!(shapes.len() >= 15, "{}", shapes.len());
    shapes
}

/// Bytes of experts' weights that a kernel of a decode step reads on average.
fn read_of_experts(graph: &Graph, kernel: NodeId, cx: &Cx) -> u64 {
    let (Op::Kernel { family, body }, Some(chosen)) = (graph.op(kernel), atomc_passes::chosen(graph, kernel, cx))
    else {
        return 0;
    };
    let warpgroups = cx.arch.gpu().is_some_and(|gpu| gpu.simt.warpgroup_mma);
    let adds_up = body.ids().any(|id| matches!(body.op(id), Op::Combine {}));
    match family {
        // Each row is a tile of its own, or a token's choices are made one after the other.
        Family::GroupedMatvec if warpgroups || adds_up => (cx.bucket.tokens() * chosen.choices) as u64 * chosen.bytes,
        _ => chosen.counted,
    }
}

/// Bytes of experts' weights of a decode step, and those in the time that grouping rows takes.
fn bytes_of_experts(model: &Graph, arch: &Arch, tokens: usize) -> u64 {
    let cx = Cx { arch, bucket: Bucket::Decode { tokens }, invariant: false };
    let mut graph = model.clone();
    atomc_passes::run(&mut graph, &cx, None, &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"));
    let grouping = arch.gpu().and_then(|gpu| gpu.simt.measured).map_or(0, |measured| measured.grouping as u64);
    let kernels: Vec<NodeId> = graph.ids().collect();
    let groups = |&&id: &&NodeId| matches!(graph.op(id), Op::Kernel { family: Family::Group, .. });
    let read: u64 = kernels.iter().map(|&id| read_of_experts(&graph, id, &cx)).sum();
    read + kernels.iter().filter(groups).count() as u64 * grouping
}

/// A step of more sequences reads no fewer bytes of experts than one of fewer, of any shape.
#[test]
fn larger_steps_read_no_fewer_bytes_of_experts() {
    let arch = |name: &str| atomc_targets::rows().iter().find(|arch| arch.name == name).expect("a row");
    for (name, model) in shapes_of_experts() {
        for arch in ["sm_90a", "gfx942", "gfx950"].map(arch) {
            let steps = [1, 2, 4, 8, 16, 32, 64].map(|tokens| (tokens, bytes_of_experts(&model, arch, tokens)));
            assert!(steps[0].1 > 0 && steps.is_sorted_by_key(|step| step.1), "{name} on {}: {steps:?}", arch.name);
        }
    }
}

/// `atomc explain` says which way rows of experts go, and by how much.
#[test]
fn why_rows_of_experts_are_apart() {
    let (_, model) = shapes_of_experts().into_iter().find(|(name, _)| name == "mixtral-8x7b ").expect("a shape");
    let arch = atomc_targets::rows().iter().find(|arch| arch.name == "sm_90a").expect("a row");
    let said = |tokens| {
        let cx = Cx { arch, bucket: Bucket::Decode { tokens }, invariant: false };
        let all = atomc_passes::explain(&model, &cx).expect("passes that succeed");
        let of_experts: Vec<_> = all.iter().filter(|place| place.pass == "group").collect();
        assert_eq!(of_experts.len(), 4, "a place for each layer");
        format!(
            "{}{}",
            of_experts[0].what,
            of_experts[0].why_not.as_ref().map_or(String::new(), |why| format!(": {why}"))
        )
    };
    let apart = "an expert's weights once for each row are 0 MiB more, and grouping takes the time of 16";
    assert_eq!(said(1), format!("2 rows of about 2 experts: step: {apart}"));
    assert_eq!([2, 8].map(said), ["4 rows of about 4 experts", "16 rows of about 7 experts"]);
}
