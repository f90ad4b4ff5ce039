//! Runs AITER's hand-written kernels against float64.
//!
//!     ATOMC_AITER=DIR cargo run --release -p atomc-emulator --example aiter [-- FILTER]
//!
//! DIR is the folder `hsa` of a copy of AITER's repository. FILTER is part of a kernel's path.
//! `-- --decode FILTER` decodes every code object whose path has FILTER, and runs none.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use atomc_emulator::aiter::{self, gemm};
use atomc_emulator::{Checks, Options};

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("ATOMC_AITER").map(PathBuf::from) else {
        eprintln!("ATOMC_AITER names the folder `hsa` of a copy of AITER's repository");
        return ExitCode::FAILURE;
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.iter().find(|a| !a.starts_with("--")).map_or("", String::as_str);
    if arguments.iter().any(|a| a == "--decode") {
        return decode(&folder, filter);
    }
    let case = |m, n, k, splits| gemm::Gemm { m, n, k, splits };
    let names = [("gfx942", "I8gemm_bf16_perTokenI8_BpreShuffle_128x128", case(200, 384, 1024, 2))];
    for (chip, name, size) in names {
        let mut case = gemm::Kernel::parse(name).unwrap().case(chip, name, size, 1);
        let code = aiter::open(&folder, &case.path).unwrap();
        let began = Instant::now();
        let options = Options { quantum: 1, checks: Checks::NONE, ..Options::fast() };
        match case.run(&code, &options) {
            Ok(counts) => println!(
                "{} {} {:.2e} {} {:.2}",
                case.path,
                case.sizes,
                case.error(),
                counts.instructions,
                began.elapsed().as_secs_f64()
            ),
            Err(e) => println!("{} {e}", case.path),
        }
    }
    ExitCode::SUCCESS
}

fn decode(folder: &Path, filter: &str) -> ExitCode {
    let mut folders = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == "co") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    for file in files {
        let path = file.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
        if !path.contains(filter) {
            continue;
        }
        match aiter::open(folder, &path) {
            Err(e) => println!("! {e}"),
            Ok(code) => {
                for kernel in code.kernels() {
                    match code.decoded(kernel).unwrap() {
                        Ok(k) => println!("  {path} {kernel} {}", k.steps.len()),
                        Err(e) => println!("! {path} {e}"),
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}
