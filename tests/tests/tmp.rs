use atomc_ir::Family;
use atomc_tests::kernels::{Case, case, run};
fn t(k: usize, n: usize) -> String { format!("graph @k(%x: f32[T, {k}], %w: f32[{n}, {k}]@panels) {{
  %1 = linear %x, %w {{out = f32}} : f32[T, {n}]
  return %1
}}") }
fn s(k: usize, n: usize) -> String { format!("graph @k(%x: f32[T, {k}], %w: f32[{n}, {k}]@panels) {{
  %0 = silu %x : f32[T, {k}]
  %1 = linear %0, %w {{out = f32}} : f32[T, {n}]
  return %1
}}") }
#[test] fn a() { Case { runs: &[run(0,1)], ..case(&t(16,16), Family::Matvec, 1) }.check() }
#[test] fn b() { Case { runs: &[run(0,1)], ..case(&t(72,48), Family::Matvec, 1) }.check() }
#[test] fn c() { Case { runs: &[run(0,1)], ..case(&s(16,16), Family::Matvec, 1) }.check() }
#[test] fn d() { Case { runs: &[run(0,1)], ..case(&s(72,48), Family::Matvec, 1) }.check() }
#[test] fn e() { Case { runs: &[run(0,1)], ..case(&s(32,48), Family::Matvec, 1) }.check() }
#[test] fn f() { Case { runs: &[run(0,1)], ..case(&s(64,48), Family::Matvec, 1) }.check() }
