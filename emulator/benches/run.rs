//! The pace of the interpreter on one core: instructions of waves a second for row-wise code,
//! operations a second for products.
//!
//! `cargo bench -p atomc-emulator`. Items are wave-instructions, "chars" are floating-point
//! operations of matrix instructions.
#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod common;

use atomc_emulator::isa::Isa;
use atomc_emulator::{CodeObject, Grid, Options};
use common::{Arguments, compile};
use divan::Bencher;
use divan::counter::{CharsCount, ItemsCount};

fn main() {
    divan::main();
}

fn options(checked: bool) -> Options {
    if checked { Options::default() } else { Options::fast() }
}

fn isa(name: &str) -> &'static Isa {
    Isa::find(name).expect("a known processor")
}

fn run(bencher: Bencher, code: &CodeObject, kernel: &str, grid: Grid, arguments: &Arguments, checked: bool) {
    let once = || arguments.launch_with(code, kernel, grid, &options(checked)).unwrap_or_else(|e| panic!("{e}"));
    let counts = once();
    bencher.counter(ItemsCount::new(counts.instructions)).counter(CharsCount::new(counts.flops)).bench_local(once);
}

#[divan::bench(args = [("gfx942", false), ("gfx942", true), ("gfx1201", false), ("gfx1201", true)])]
fn rows(bencher: Bencher, (name, checked): (&str, bool)) {
    let code = compile(include_str!("rows.ll"), isa(name));
    let (mut x, mut w, mut y) = (vec![0.5f32; 64 * 4096], vec![2f32; 4096], vec![0f32; 64 * 4096]);
    let arguments = Arguments::default().buffer(&mut x).buffer(&mut w).buffer(&mut y);
    run(bencher, &code, "rows", Grid::linear(64, 256), &arguments, checked);
    assert!((y[77] - 2.0).abs() < 1e-3, "{}", y[77]);
}

#[divan::bench(args = [("gfx90a", false), ("gfx942", false), ("gfx942", true), ("gfx950", false)])]
fn matrix(bencher: Bencher, (name, checked): (&str, bool)) {
    let code = compile(include_str!("matrix.ll"), isa(name));
    let one = half::bf16::ONE.to_bits();
    let (mut a, mut b, mut c) = (vec![one; 128 * 1024], vec![one; 256 * 1024], vec![0f32; 8 * 1024]);
    let arguments = Arguments::default().buffer(&mut a).buffer(&mut b).buffer(&mut c);
    run(bencher, &code, "matrix", Grid::linear(8, 256), &arguments, checked);
    assert_eq!(c[99], 4096.0);
}
