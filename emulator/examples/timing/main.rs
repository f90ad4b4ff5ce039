//! Fits the model of times to measured ones, and predicts.
//!
//!     ATOMC_AMD_TIMES=DIR ATOMC_AITER=DIR cargo run --release -p atomc-emulator --example timing -- COMMAND
//!
//! `ATOMC_AMD_TIMES` is the folder of `gemm_asm.csv`, `ATOMC_AITER` the folder `hsa` of a copy of
//! AITER's repository. What is recorded of kernels is kept in the file `ATOMC_TIMING_CACHE`. See
//! `docs/timing.md` for the commands.
mod aiter;
mod cache;
mod fit;
mod loops;
mod report;
mod rows;
mod triton;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use atomc_emulator::timing::chip::Chip;
use atomc_emulator::timing::chips::CHIPS;
use cache::Cache;
use fit::Case;
use rows::Row;

const USAGE: &str = "commands: check, fit, leave-out, ablate, loops, \
                     predict CHIP KERNEL M N K SPLITS";

/// Searches after the first, from other numbers.
const RESTARTS: usize = 6;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = arguments.first().map_or("", String::as_str);
    let folder = variable("ATOMC_AITER")?;
    if command == "predict" {
        return predict(&arguments[1..], &folder);
    }
    let path = variable("ATOMC_TIMING_CACHE").unwrap_or_else(|_| "target/timing.txt".into());
    let mut cache = Cache::open(&path);
    match command {
        "triton" => return triton(&mut cache, &|cases, chip| report::errors(cases, chip, &fit::errors(cases, chip))),
        "triton-parts" => return triton(&mut cache, &report::parts),
        _ => {}
    }
    let rows = rows::read(&variable("ATOMC_AMD_TIMES")?.join("gemm_asm.csv"))?;
    rows::fill(&mut cache, &rows, &folder).iter().for_each(|e| eprintln!("{e}"));
    cache.save();
    match command {
        "check" => each(&rows, &cache, &|cases, chip| report::errors(cases, chip, &fit::errors(cases, chip))),
        "fit" => fit_all(&rows, &cache),
        "leave-out" => each(&rows, &cache, &|cases, chip| report::errors(cases, chip, &fit::leave_out(cases, chip))),
        "ablate" => each(&rows, &cache, &ablate),
        "loops" => loops::report(&rows, &cache),
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

/// Errors at a compiler's kernels.
fn triton(cache: &mut Cache, then: &dyn Fn(&[Case], &Chip)) -> Result<(), String> {
    let folder = variable("ATOMC_TRITON_GEMM")?;
    let rows = triton::read(&folder)?;
    for chip in triton::chips(&rows) {
        let (cases, failed) = triton::cases(&rows, chip, &folder, cache);
        cache.save();
        failed.iter().for_each(|e| eprintln!("{e}"));
        then(&cases, chip);
    }
    Ok(())
}

fn variable(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"))
}

fn each(rows: &[Row], cache: &Cache, then: &dyn Fn(&[Case], &Chip)) {
    CHIPS.iter().for_each(|chip| then(&cases(rows, cache, chip), chip));
}

/// Fits one chip after the other; the numbers of the first go to those that have its silicon.
fn fit_all(rows: &[Row], cache: &Cache) {
    let mut first: Option<Chip> = None;
    for chip in &CHIPS {
        let start = first.map_or(*chip, |first| chip.with_shared(&first));
        let cases = cases(rows, cache, chip);
        let fitted = fit::fit(&cases, &start, RESTARTS);
        first = first.or(Some(fitted));
        report::numbers(&fitted);
        report::errors(&cases, &fitted, &fit::errors(&cases, &fitted));
    }
}

/// The stream against matrix clocks alone, each with its own fit.
fn ablate(cases: &[Case], chip: &Chip) {
    let alone: Vec<Case> = cases.iter().map(fit::matrix_only).collect();
    for (name, cases) in [("stream", cases), ("matrix clocks alone", &alone)] {
        let fitted = fit::fit(cases, chip, RESTARTS);
        println!("{}, {name}: clock {:.2} GHz", chip.name, fitted.numbers[2]);
        report::line("all", &fit::errors(cases, &fitted));
        report::line("kernels", &report::kernel_biases(cases, &fitted));
    }
}

fn cases(rows: &[Row], cache: &Cache, chip: &Chip) -> Vec<Case> {
    let of = rows.iter().filter(|r| r.gfx == chip.gfx && r.cus == chip.cus);
    let case = |row: &Row| {
        let work = row.work(&rows::profile_of(cache, row)?, chip);
        Some(Case {
            works: vec![work],
            us: row.us,
            kernel: row.kernel.clone(),
            shape: row.sizes(),
            kind: row.kind.clone(),
        })
    };
    of.filter_map(case).collect()
}

fn predict(arguments: &[String], folder: &std::path::Path) -> Result<(), String> {
    let [chip, kernel, sizes @ ..] = arguments else { return Err(USAGE.into()) };
    let known = || format!("chips: {}", CHIPS.map(|c| c.name).join(", "));
    let chip = CHIPS.iter().find(|c| c.name == chip).ok_or_else(known)?;
    let began = Instant::now();
    let row = rows::parse(&format!("{},{},,{},0,{kernel}", chip.gfx, chip.cus, sizes.join(","))).ok_or(USAGE)?;
    let mut cache = Cache::none();
    let failed = rows::fill(&mut cache, std::slice::from_ref(&row), folder);
    let profile = rows::profile_of(&cache, &row).ok_or_else(|| failed.join("; "))?;
    let us = chip.time(&row.work(&profile, chip));
    println!("{us:.2} us on {} (predicted in {:.3} s)", chip.name, began.elapsed().as_secs_f64());
    Ok(())
}
