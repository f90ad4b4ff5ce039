//! Kernels of layers with a recurrent state: the short convolution and the gated delta rule, over
//! sequences that begin, go on and end anywhere.
use atomc_ir::Family;
use atomc_ir::trial::Run;
use atomc_tests::kernels::{Case, case, run};

/// A token of each of two old sequences and of a new one.
const DECODE: [Run; 3] = [run(5, 1), run(0, 1), run(1, 1)];

fn check(text: &str, runs: &[Run]) -> Case<'static> {
    let tokens: usize = runs.iter().map(|r| r.tokens).sum();
    Case { runs: Box::leak(runs.into()), ..case(Box::leak(text.into()), Family::Recur, tokens.next_power_of_two()) }
}

/// A convolution of so many channels over so many tokens.
fn conv(channels: usize, len: usize) -> String {
    let before = len - 1;
    format!(
        "graph @k(%s: slots<bf16, {before}, {channels}>, %x: bf16[T, {channels}], %w: bf16[{len}, {channels}], %batch: batch) {{
  %0, %1 = conv %s, %x, %w, %batch : bf16[T, {channels}], slots<bf16, {before}, {channels}>
  return %0, %1
}}"
    )
}

/// A delta rule of heads of keys and of values, and their widths.
fn delta([key_heads, heads]: [usize; 2], [dk, dv]: [usize; 2]) -> String {
    let state = format!("slots<f32, {heads}, {dk}, {dv}>");
    format!(
        "graph @k(%s: {state}, %q: bf16[T, {key_heads}, {dk}], %k: bf16[T, {key_heads}, {dk}], %v: bf16[T, {heads}, {dv}], %g: f32[T, {heads}], %beta: bf16[T, {heads}], %batch: batch) {{
  %0, %1 = delta_rule %s, %q, %k, %v, %g, %beta, %batch {{eps = 1e-6}} : bf16[T, {heads}, {dv}], {state}
  return %0, %1
}}"
    )
}

#[test]
fn convolutions() {
    check(&conv(108, 4), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check_on_cpus_in_all_types();
    check(&conv(208, 2), &[run(3, 1), run(0, 5)]).check_on_cpus();
    // More channels than a task makes.
    check(&conv(600, 3), &DECODE).check_on_cpus();
}

#[test]
fn delta_rules() {
    check(&delta([1, 3], [24, 20]), &[run(0, 7), run(2, 2), run(0, 1), run(63, 3)]).check_on_cpus_in_all_types();
    check(&delta([2, 6], [20, 24]), &DECODE).check_on_cpus();
    check(&delta([1, 2], [128, 128]), &[run(9, 1), run(0, 2)]).check_on_cpus();
}
