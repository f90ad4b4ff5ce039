//! Kernels from LLVM IR on every processor, against plain loops.
mod common;

use atomc_emulator::Grid;
use common::{Arguments, compile, isas};

#[test]
fn vector_add() {
    for isa in isas() {
        let code = compile(include_str!("kernels/vector_add.ll"), isa);
        let n = 1000usize;
        let mut a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut b: Vec<f32> = (0..n).map(|i| 0.5 - i as f32 * 3.0).collect();
        let mut o = vec![f32::NAN; n];
        let arguments = Arguments::default().buffer(&mut a).buffer(&mut b).buffer(&mut o).value(n as u32);
        let counts =
            arguments.launch(&code, "vector_add", Grid::linear(4, 256)).unwrap_or_else(|e| panic!("{}: {e}", isa.name));
        for i in 0..n {
            assert_eq!(o[i], a[i] + b[i], "{} {i}", isa.name);
        }
        assert_eq!((counts.bytes_stored, counts.waves), (4000, 1024 / u64::from(isa.lanes)), "{}", isa.name);
    }
}
