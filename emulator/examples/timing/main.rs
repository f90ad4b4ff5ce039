//! Fits the model of times to measured ones, and predicts.
mod aiter;
mod fit;
mod rows;

use std::path::PathBuf;

use atomc_emulator::timing::chip::{Chip, NUMBERS};
use atomc_emulator::timing::chips::CHIPS;
use fit::{Case, biases, summary};
use rows::{Profiles, Row};

fn main() {
    let var = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")));
    let (times, folder) = (var("ATOMC_AMD_TIMES"), var("ATOMC_AITER"));
    let cache = std::env::var_os("ATOMC_TIMING_CACHE").map_or("target/timing.txt".into(), PathBuf::from);
    let all = rows::read(&times.join("gemm_asm.csv")).unwrap_or_else(|e| panic!("{e}"));
    let mut profiles = Profiles::open(&cache);
    let began = std::time::Instant::now();
    profiles.fill(&all, &folder).iter().for_each(|e| eprintln!("{e}"));
    eprintln!("profiles: {:.1} s", began.elapsed().as_secs_f64());
    profiles.save(&cache);
    let rounds = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100);
    for chip in &CHIPS {
        let began = std::time::Instant::now();
        let cases = cases(&all, &profiles, chip);
        let fitted = fit::fit(&cases, chip, rounds);
        report(&cases, &fitted);
        if let Some(path) = std::env::var_os("DUMP") {
            let mut out = String::new();
            for (row, case) in all.iter().filter(|r| r.gfx == chip.gfx && r.cus == chip.cus && profiles.get(r).is_some()).zip(&cases) {
                let g = &case.work.group;
                out += &format!("{} {} {} {} {} {} {:.2} {:.2} {} {:.0} {:.0} {:.0} {:.1} {:.1} {:.1} {}\n", row.kind, row.kernel, row.m, row.n, row.k, row.splits, row.us, fitted.time(&case.work), case.work.groups, g.matrix, g.at(900.0), g.missed, case.work.read / 1e6, case.work.written / 1e6, case.work.fetched / 1e6, case.work.resident);
            }
            std::fs::write(std::path::Path::new(&path).join(chip.name), out).unwrap();
        }
        println!("{:.1} s", began.elapsed().as_secs_f64());
    }
}

fn cases(rows: &[Row], profiles: &Profiles, chip: &Chip) -> Vec<Case> {
    let of = rows.iter().filter(|r| r.gfx == chip.gfx && r.cus == chip.cus);
    let case = |row: &Row| {
        let work = row.work(profiles.get(row)?, chip);
        Some(Case { work, us: row.us, kernel: row.kernel.clone(), kind: row.kind.clone() })
    };
    of.filter_map(case).collect()
}

fn report(cases: &[Case], chip: &Chip) {
    println!("{}", chip.name);
    NUMBERS.iter().zip(chip.numbers).for_each(|(n, v)| print!("{} {v:.3} {}  ", n.name, n.unit));
    println!();
    let errors: Vec<f64> = cases.iter().map(|c| c.error(chip)).collect();
    let line = |name: &str, of: &dyn Fn(&Case) -> bool| {
        let part: Vec<f64> = cases.iter().zip(&errors).filter(|(c, _)| of(c)).map(|(_, e)| *e).collect();
        if !part.is_empty() {
            let s = summary(&part);
            println!("  {name:12} {:5} rows  median {:5.1} %  p90 {:5.1} %  bias {:+5.1} %", part.len(), s.median * 100.0, s.ninety * 100.0, s.bias * 100.0);
        }
    };
    line("all", &|_| true);
    for kind in ["bf16", "int8", "fp8_block", "fp4"] {
        line(kind, &|c| c.kind == kind);
    }
    line("> 100 us", &|c| c.us > 100.0);
    line("20-100 us", &|c| c.us > 20.0 && c.us <= 100.0);
    line("7-20 us", &|c| c.us > 7.0 && c.us <= 20.0);
    line("< 7 us", &|c| c.us <= 7.0);
    for (kernel, (n, bias)) in biases(cases, &errors, 1) {
        println!("    {kernel:50} {n:4} {:+6.1} %", bias * 100.0);
    }
}
