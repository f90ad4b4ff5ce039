//! Rows that become codes while a model runs, and products of such rows, on every machine that this
//! one can run or emulate.
use atomc_ir::{Family, parse};
use atomc_passes::{Bucket, Cx};
use atomc_tests::kernels::{Case, STEP, case, run};

/// Type of codes, rule, and columns that share a scale (0: all).
const ROWS: [(&str, &str, usize); 5] = [
    ("f8e4m3", "row", 0),
    ("i8", "row", 0),
    ("f8e4m3", "static", 0),
    ("f8e4m3", "group(128)", 128),
    ("f8e4m3", "group(32)", 32),
];

/// Codes, scales, rows and columns of a block (0: all).
const WEIGHTS: [(&str, &str, [usize; 2]); 6] = [
    ("f8e4m3", "f32", [0, 0]),
    ("f8e4m3", "f32", [1, 0]),
    ("f8e4m3", "f32", [128, 128]),
    ("i8", "f32", [1, 0]),
    ("i4", "bf16", [1, 32]),
    ("f4e2m1", "e8m0", [1, 32]),
];

/// The op that makes codes of a value, with the type of its result, and the parameter that it has.
fn quantise((to, rule, group): (&str, &str, usize), x: &str, k: usize) -> (String, String) {
    let group = if group == 0 { k } else { group };
    let (operand, parameter) = if rule == "static" { (", %given", ", %given: f32[1]") } else { ("", "") };
    let op = format!("quantise {x}{operand} {{to = {to}, rule = {rule}}} : {to}[T, {k}]@scaled({group})");
    (op, parameter.into())
}

/// Parameters of a weight of `n` by `k`, and the attribute of its product.
fn weight((codes, scale, [rows, cols]): (&str, &str, [usize; 2]), n: usize, k: usize) -> (String, String) {
    let side = |of: usize, all: usize| if of == 0 { all } else { of };
    let (rows, cols) = (side(rows, n), side(cols, k));
    let layout = if rows == 1 { "@columns" } else { "" };
    let (high, wide) = (n.div_ceil(rows), k.div_ceil(cols));
    let parameters = format!("%w: {codes}[{n}, {k}]@panels, %s: {scale}[{high}, {wide}]{layout}");
    (parameters, format!("block = [{rows}, {cols}]"))
}

/// Columns that neither groups nor steps divide, which are enough for emulated chips.
const ODD: usize = 200;

fn check(case: Case, k: usize) {
    if k == ODD { case.check() } else { case.check_on_cpus() }
}

#[test]
fn rows_become_codes() {
    for rows in ROWS {
        for k in [64, 200, 270] {
            let (op, parameter) = quantise(rows, "%0", k);
            let text = format!(
                "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}]{parameter}) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = {op}
  return %1
}}"
            );
            Case { runs: &STEP, ..case(&text, Family::Rows, 8) }.check_in_all_types();
        }
    }
}

#[test]
fn numbers_of_mx_codes() {
    for to in ["f4e2m1", "f8e4m3"] {
        for k in [64, 200] {
            let text = format!(
                "graph @k(%x: bf16[T, {k}], %y: bf16[T, {k}]) {{
  %0 = silu_mul %x, %y : bf16[T, {k}]
  %1 = quantise %0 {{to = {to}, rule = mx(32)}} : bf16[T, {k}]
  return %1
}}"
            );
            case(&text, Family::Rows, 8).check();
        }
    }
}

#[test]
fn matvec_of_rows_that_become_codes() {
    for rows in ROWS {
        for weights in WEIGHTS {
            for (bucket, k, n) in [(1, 200, 50), (4, 256, 64)] {
                let (op, parameter) = quantise(rows, "%0", k);
                let (parameters, block) = weight(weights, n, k);
                let text = format!(
                    "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}]{parameter}, {parameters}) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = {op}
  %2 = linear %1, %w, %s {{out = bf16, {block}}} : bf16[T, {n}]
  return %2
}}"
                );
                check(Case { runs: &[run(0, 1); 3][..bucket.min(3)], ..case(&text, Family::Matvec, bucket) }, k);
            }
        }
    }
}

/// A product of rows that another kernel has quantised, and other rows.
fn with_rows(x: &str, weights: (&str, &str, [usize; 2]), n: usize, k: usize) -> String {
    let (parameters, block) = weight(weights, n, k);
    format!(
        "graph @k(%x: {x}, {parameters}, %r: bf16[T, {n}]) {{
  %0 = linear %x, %w, %s {{out = bf16, {block}}} : bf16[T, {n}]
  %1 = add %r, %0 : bf16[T, {n}]
  return %1
}}"
    )
}

/// A product of quantised rows in memory with a scale for each group of columns, or for each row if
/// the group is 0.
fn of_rows_in_memory((to, group): (&str, usize), weights: (&str, &str, [usize; 2]), n: usize, k: usize) -> String {
    let group = if group == 0 { k } else { group };
    with_rows(&format!("{to}[T, {k}]@scaled({group})"), weights, n, k)
}

/// Rows that another kernel has made codes of.
#[test]
fn products_of_codes_in_memory() {
    for (to, _, group) in ROWS.into_iter().filter(|&(_, rule, _)| rule != "static") {
        for weights in WEIGHTS {
            for (k, n) in [(200, 50), (256, 96)] {
                let text = of_rows_in_memory((to, group), weights, n, k);
                check(Case { runs: &[run(0, 1); 2], ..case(&text, Family::Matvec, 2) }, k);
                check(Case { runs: &[run(0, 37)], ..case(&text, Family::Matmul, 64) }, k);
            }
        }
    }
}

/// Products of two 8-bit operands: several groups along K, half of one, and rows and tokens that
/// end inside a tile.
#[test]
fn prompts_of_quantised_operands_on_gpus() {
    for (to, _, group) in [ROWS[0], ROWS[1], ROWS[3]] {
        for weights in WEIGHTS.into_iter().filter(|weights| weights.0 == to) {
            for (k, n, tokens) in [(320, 50, 37), (512, 144, 131)] {
                let text = of_rows_in_memory((to, group), weights, n, k);
                Case { runs: &[run(0, tokens)], ..case(&text, Family::Matmul, 256) }.check_on_gpus();
            }
        }
    }
}

/// Gate and up of `n` features each, of rows that lie in memory.
fn gated(x: &str, weights: (&str, &str, [usize; 2]), n: usize, k: usize) -> String {
    let (parameters, block) = weight(weights, 2 * n, k);
    let all = 2 * n;
    format!(
        "graph @k(%x: {x}, {parameters}) {{
  %0 = linear %x, %w, %s {{out = bf16, {block}}} : bf16[T, {all}]
  %1 = slice %0 {{axis = 1, start = 0, len = {n}}} : bf16[T, {n}]
  %2 = slice %0 {{axis = 1, start = {n}, len = {n}}} : bf16[T, {n}]
  %3 = silu_mul %1, %2 : bf16[T, {n}]
  return %3
}}"
    )
}

#[test]
fn prompts_of_quantised_operands_in_pieces_on_gpus() {
    for (rows, weights) in [(ROWS[3], WEIGHTS[2]), (ROWS[0], WEIGHTS[1]), (ROWS[1], WEIGHTS[3])] {
        let (to, k) = (rows.0, 384);
        let group = if rows.2 == 0 { k } else { rows.2 };
        let text = gated(&format!("{to}[T, {k}]@scaled({group})"), weights, 128, k);
        Case { runs: &[run(0, 33)], ..case(&text, Family::Matmul, 64) }.check_on_gpus();
    }
}

/// Decode steps of two 8-bit operands: rows quantised in memory, and rows that are quantised here.
#[test]
fn decode_of_quantised_operands_on_gpus() {
    for rows in ROWS.into_iter().take(4) {
        for weights in WEIGHTS.into_iter().filter(|weights| weights.0 == rows.0) {
            for (k, n, bucket) in [(320, 50, 2), (1280, 48, 20), (2048, 32, 1)] {
                let (op, parameter) = quantise(rows, "%0", k);
                let (parameters, block) = weight(weights, n, k);
                let group = if rows.2 == 0 { k } else { rows.2 };
                let made = format!(
                    "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}]{parameter}, {parameters}) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = {op}
  %2 = linear %1, %w, %s {{out = bf16, {block}}} : bf16[T, {n}]
  return %2
}}"
                );
                let in_memory = format!(
                    "graph @k(%x: {}[T, {k}]@scaled({group}), {parameters}) {{
  %0 = linear %x, %w, %s {{out = bf16, {block}}} : bf16[T, {n}]
  return %0
}}",
                    rows.0
                );
                for text in [made, in_memory] {
                    Case { runs: &[run(0, 1); 20][..bucket], ..case(&text, Family::Matvec, bucket) }.check_on_gpus();
                }
            }
        }
    }
}

/// Types of codes that have scales of MX.
const MX: [&str; 2] = ["f4e2m1", "f8e4m3"];

/// Whether rows of MX become codes for a chip, before a product with such a weight.
fn are_codes(chip: &str, bucket: Bucket, [rows, weight]: [&str; 2], k: usize) -> bool {
    let groups = k / 32;
    let text = format!(
        r#"graph @g(%x: bf16[T, {k}]) {{
  %0 = quantise %x {{to = {rows}, rule = mx(32)}} : bf16[T, {k}]
  %1 = weight {{name = "w"}} : {weight}[16, {k}]
  %2 = weight {{name = "s"}} : e8m0[16, {groups}]
  %3 = linear %0, %1, %2 {{out = bf16, block = [1, 32]}} : bf16[T, 16]
  return %3
}}"#
    );
    let mut graph = parse(&text).expect("a graph");
    let arch = atomc_targets::rows().iter().find(|arch| arch.name == chip).expect("a row");
    let cx = Cx { arch, bucket, invariant: false };
    atomc_passes::run(&mut graph, &cx, Some("mx_codes"), &mut |_, _| ()).unwrap_or_else(|e| panic!("{e}"));
    graph.print().contains("@mx(32)")
}

/// Only where instructions take them, and another kernel makes them.
#[test]
fn which_rows_become_mx_codes() {
    let alike = ["f4e2m1", "f4e2m1"];
    let prompt = Bucket::Any { tokens: 512, rows: 1 };
    let of = |tokens: usize| Bucket::Decode { tokens };
    assert!(are_codes("gfx950", prompt, alike, 4096));
    assert!(are_codes("gfx950", prompt, ["f8e4m3", "f8e4m3"], 128));
    assert!(are_codes("gfx950", of(8), alike, 4096));
    assert!(are_codes("gfx950", of(1), alike, 4096));
    assert!(!are_codes("gfx950", prompt, ["f8e4m3", "f4e2m1"], 4096));
    assert!(!are_codes("gfx950", prompt, alike, 96));
    for chip in ["gfx942", "gfx1201", "sm_90a", "host"] {
        let chip = atomc_targets::rows().iter().find(|arch| arch.target == chip).expect("a row").name;
        assert!(!are_codes(chip, prompt, alike, 4096), "{chip}");
    }
}

/// A product of rows of MX codes.
fn of_mx_rows(to: &str, n: usize, k: usize) -> String {
    with_rows(&format!("{to}[T, {k}]@mx(32)"), (to, "e8m0", [1, 32]), n, k)
}

#[test]
fn rows_become_mx_codes() {
    for to in MX {
        for k in [128, 288, 2304] {
            let text = format!(
                "graph @k(%x: bf16[T, {k}], %wn: bf16[{k}]) {{
  %0 = rms_norm %x, %wn {{eps = 1e-6}} : bf16[T, {k}]
  %1 = quantise %0 {{to = {to}, rule = mx_codes(32)}} : {to}[T, {k}]@mx(32)
  return %1
}}"
            );
            Case { runs: &STEP, ..case(&text, Family::Rows, 8) }.check_where_blocks_are_scaled();
        }
    }
}

/// Whole stretches of columns and half of one, and rows and tokens that end inside a tile.
#[test]
fn prompts_of_mx_codes() {
    for to in MX {
        for (k, n, tokens) in [(128, 50, 37), (384, 64, 131), (1024, 144, 131), (1280, 96, 20)] {
            let text = of_mx_rows(to, n, k);
            Case { runs: &[run(0, tokens)], ..case(&text, Family::Matmul, 256) }.check_where_blocks_are_scaled();
        }
    }
}

#[test]
fn prompts_of_mx_codes_in_pieces() {
    for to in MX {
        let text = gated(&format!("{to}[T, 384]@mx(32)"), (to, "e8m0", [1, 32]), 128, 384);
        Case { runs: &[run(0, 33)], ..case(&text, Family::Matmul, 64) }.check_where_blocks_are_scaled();
    }
}

#[test]
fn decode_of_mx_codes() {
    for to in MX {
        for (k, n, bucket) in [(128, 50, 2), (1280, 48, 20), (2048, 32, 8)] {
            let text = of_mx_rows(to, n, k);
            Case { runs: &[run(0, 1); 20][..bucket], ..case(&text, Family::Matvec, bucket) }
                .check_where_blocks_are_scaled();
        }
    }
}
