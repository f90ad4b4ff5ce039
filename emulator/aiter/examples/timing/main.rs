//! Fits the model of times to measured ones, and predicts.
//!
//!     ATOMC_AMD_TIMES=DIR ATOMC_AITER=DIR cargo run --release -p atomc-aiter --example timing -- COMMAND
//!
//! `ATOMC_AMD_TIMES` is the folder of `gemm_asm.csv`, `ATOMC_AITER` the folder `hsa` of a copy of
//! AITER's repository. What is recorded of kernels is kept in the file `ATOMC_TIMING_CACHE`. See
//! `docs/timing.md` for the commands.
mod aiter;
mod cache;
mod experts;
mod fit;
mod loops;
mod report;
mod rows;
mod triton;
mod zeros;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use atomc_emulator::timing::chip::Chip;
use atomc_emulator::timing::chips::CHIPS;
use cache::Cache;
use fit::{Case, Table};
use rows::Row;

const USAGE: &str = "commands: check, parts, fit, leave-out, leave-table, ablate, loops, \
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
    let tables = Tables::open(&folder)?;
    match command {
        "check" => tables.each(&|cases, chip| report::errors(cases, chip, &fit::errors(cases, chip))),
        "parts" => tables.each(&report::parts),
        "fit" => tables.fit(),
        "leave-out" => tables.products(&|cases, chip| report::errors(cases, chip, &fit::leave_out(cases, chip))),
        "leave-table" => tables.leave_each(),
        "ablate" => tables.products(&ablate),
        "loops" => loops::report(&tables.rows, &tables.cache),
        _ => return Err(USAGE.into()),
    }
    Ok(())
}

fn variable(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set"))
}

/// What a fit regards: products written by hand, those of Triton, experts.
const NAMES: [&str; 3] = ["products by hand", "products of Triton", "experts by hand"];

/// Products by hand are many, and each chip has some.
const WEIGHTS: [f64; 3] = [5.0, 1.0, 1.0];

/// The measured rows of a chip, in the order of [`NAMES`].
struct OfChip {
    chip: Chip,
    cases: [Vec<Case>; 3],
}

impl OfChip {
    /// All tables but one.
    fn without(&self, table: Option<usize>) -> Vec<Table<'_>> {
        let others = (0..NAMES.len()).filter(|at| Some(*at) != table);
        // The errors of a table with four times as many rows are known twice as well.
        let weight = |at: usize| (self.cases[at].len() as f64).sqrt() * WEIGHTS[at];
        others.map(|at| Table { cases: &self.cases[at], weight: weight(at) }).collect()
    }
}

struct Tables {
    rows: Vec<Row>,
    cache: Cache,
    chips: Vec<OfChip>,
}

impl Tables {
    fn open(folder: &Path) -> Result<Tables, String> {
        let times = variable("ATOMC_AMD_TIMES")?;
        let mut cache = Cache::open(&variable("ATOMC_TIMING_CACHE").unwrap_or_else(|_| "target/timing.txt".into()));
        let rows = rows::read(&times.join("gemm_asm.csv"))?;
        rows::fill(&mut cache, &rows, folder).iter().for_each(|e| eprintln!("{e}"));
        let compiled = variable("ATOMC_TRITON_GEMM").ok();
        let launches = compiled.as_deref().map_or(Ok(Vec::new()), triton::read)?;
        let experts = experts::read(&times.join("experts_asm.csv"))?;
        let kernels = experts::Kernels::open(folder);
        let mut chips = Vec::new();
        for chip in CHIPS {
            let products = cases(&rows, &cache, &chip);
            let (compiled, failed) = triton::cases(&launches, &chip, compiled.as_deref(), &mut cache);
            failed.iter().for_each(|e| eprintln!("{} {e}", chip.name));
            let (experts, failed) = experts::cases(&experts, &kernels, &chip, &mut cache);
            failed.iter().for_each(|e| eprintln!("{} {e}", chip.name));
            chips.push(OfChip { chip, cases: [products, compiled, experts] });
        }
        cache.save();
        Ok(Tables { rows, cache, chips })
    }

    fn each(&self, then: &dyn Fn(&[Case], &Chip)) {
        for (at, name) in NAMES.iter().enumerate() {
            println!("{name}");
            self.chips.iter().filter(|of| !of.cases[at].is_empty()).for_each(|of| then(&of.cases[at], &of.chip));
        }
    }

    fn products(&self, then: &dyn Fn(&[Case], &Chip)) {
        self.chips.iter().for_each(|of| then(&of.cases[0], &of.chip));
    }

    /// Fits one chip after the other; the numbers of the first go to those that have its silicon.
    fn fit(&self) {
        let mut first: Option<Chip> = None;
        for of in &self.chips {
            let start = first.map_or(of.chip, |first| of.chip.with_shared(&first));
            let fitted = fit::fit(&of.without(None), &start, RESTARTS);
            first = first.or(Some(fitted));
            report::numbers(&fitted);
            for (name, cases) in NAMES.iter().zip(&of.cases).filter(|(_, cases)| !cases.is_empty()) {
                println!("{name}");
                report::errors(cases, &fitted, &fit::errors(cases, &fitted));
            }
        }
    }

    /// Each table by numbers that were fitted to the others.
    fn leave_each(&self) {
        for of in &self.chips {
            println!("{}", of.chip.name);
            for (at, name) in NAMES.iter().enumerate().filter(|(at, _)| !of.cases[*at].is_empty()) {
                let fitted = fit::fit(&of.without(Some(at)), &fit::blank(&of.chip), fit::LEFT_OUT_RESTARTS);
                report::line(name, &fit::errors(&of.cases[at], &fitted));
            }
        }
    }
}

/// The stream against matrix clocks alone, each with its own fit.
fn ablate(cases: &[Case], chip: &Chip) {
    let alone: Vec<Case> = cases.iter().map(fit::matrix_only).collect();
    for (name, cases) in [("stream", cases), ("matrix clocks alone", &alone)] {
        let fitted = fit::fit(&[Table { cases, weight: 1.0 }], chip, RESTARTS);
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

fn predict(arguments: &[String], folder: &Path) -> Result<(), String> {
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
