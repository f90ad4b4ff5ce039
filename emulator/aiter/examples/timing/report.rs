//! Tables for people.
use atomc_emulator::timing::chip::{Chip, NUMBERS, Origin};

use crate::fit::{self, Case, biases, summary};

/// The numbers of a chip as `chips.rs` has them, and each with its range.
pub fn numbers(chip: &Chip) {
    let list: Vec<String> = chip.numbers.iter().map(|v| format!("{v:.3}")).collect();
    println!("{} [{}]", chip.name, list.join(", "));
    for (at, number) in NUMBERS.iter().enumerate() {
        let (value, origin, [low, high]) = (chip.numbers[at], chip.origins[at], chip.range(at));
        let origin = if origin == Origin::Fitted { "fitted" } else { "source" };
        println!("  {:8} {value:8.3} {:4} of {low} to {high}  {origin}  {}", number.name, number.unit, number.meaning);
    }
}

pub fn line(name: &str, errors: &[f64]) {
    if errors.is_empty() {
        return;
    }
    let s = summary(errors);
    let [median, ninety, bias] = [s.median, s.ninety, s.bias].map(|v| v * 100.0);
    println!("  {name:12} {:5} rows  median {median:5.1} %  p90 {ninety:5.1} %  bias {bias:+5.1} %", errors.len());
}

/// Lengths in microseconds.
const LENGTHS: [(&str, [f64; 2]); 4] = [
    ("under 7 us", [0.0, 7.0]),
    ("7 to 20 us", [7.0, 20.0]),
    ("20 to 100 us", [20.0, 100.0]),
    ("over 100 us", [100.0, f64::INFINITY]),
];

/// Errors by type, length and kernel.
pub fn errors(cases: &[Case], chip: &Chip, errors: &[f64]) {
    println!("{}", chip.name);
    let part = |of: &dyn Fn(&Case) -> bool| -> Vec<f64> {
        cases.iter().zip(errors).filter(|(c, _)| of(c)).map(|(_, e)| *e).collect()
    };
    line("all", errors);
    for kind in ["bf16", "int8", "fp8_block", "fp4"] {
        line(kind, &part(&|c| c.kind == kind));
    }
    for (name, [from, to]) in LENGTHS {
        line(name, &part(&|c| c.us > from && c.us <= to));
    }
    for (kernel, (rows, bias)) in biases(cases, errors, 1) {
        println!("    {kernel:50} {rows:4} rows  bias {:+6.1} %", bias * 100.0);
    }
}

/// The bias of each kernel with ten rows or more.
pub fn kernel_biases(cases: &[Case], chip: &Chip) -> Vec<f64> {
    biases(cases, &fit::errors(cases, chip), 10).values().map(|(_, bias)| *bias).collect()
}

/// The parts of each case's time, in microseconds.
pub fn parts(cases: &[Case], chip: &Chip) {
    println!("{}", chip.name);
    for case in cases {
        println!("  {} {} measured {:.1}, error {:+.1} %", case.kernel, case.shape, case.us, case.error(chip) * 100.0);
        for work in &case.works {
            let p = chip.parts(work);
            let groups = format!("{} groups, {} at once", work.groups, work.together);
            println!(
                "    {groups}: launch {:.1}, compute {:.1} (own {:.1}), memory {:.1}, cache {:.1}, memset {:.1}",
                p.launch, p.compute, p.own, p.memory, p.cache, p.memset
            );
        }
    }
}
