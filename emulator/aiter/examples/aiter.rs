//! Runs AITER's hand-written kernels against float64.
//!
//!     ATOMC_AITER=DIR cargo run --release -p atomc-aiter --example aiter [-- FILTER]
//!
//! DIR is the folder `hsa` of a copy of AITER's repository. FILTER is a part of
//! `chip/family/kernel`. `--checks` runs each kernel once more for every checker alone, and reports
//! its findings; `--quantum=N` takes waves in turn after N instructions instead of one (0: to the
//! next barrier); `--decode` decodes every code object that has FILTER in its path, and runs none.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use atomc_aiter::{Entry, OpenError};
use atomc_emulator::{Checks, CodeObject, Options};

fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("ATOMC_AITER").map(PathBuf::from) else {
        eprintln!("ATOMC_AITER names the folder `hsa` of a copy of AITER's repository");
        return ExitCode::FAILURE;
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filter = arguments.iter().find(|a| !a.starts_with("--")).map_or("", String::as_str);
    let flag = |name: &str| arguments.iter().any(|a| a == name);
    if flag("--decode") {
        return decode(&folder, filter);
    }
    let quantum = arguments.iter().find_map(|a| a.strip_prefix("--quantum=")?.parse().ok()).unwrap_or(1);
    let entries = atomc_aiter::entries();
    let chosen = |e: &&Entry| format!("{}/{}/{}", e.chip, e.family, e.name).contains(filter);
    let (mut run, mut wrong) = (0, 0);
    println!("| kernel | chip | sizes | error | instructions | seconds |\n|---|---|---|---|---|---|");
    for entry in entries.iter().filter(chosen) {
        run += 1;
        wrong += usize::from(!line(&folder, entry, quantum));
        if flag("--checks") {
            checks(&folder, entry, quantum);
        }
    }
    println!("\n{run} kernels, {wrong} wrong");
    if wrong == 0 && run > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a kernel and prints its line; tells whether it was right.
fn line(folder: &Path, entry: &Entry, quantum: u32) -> bool {
    let mut case = entry.case();
    let began = Instant::now();
    let options = Options { quantum, ..Options::fast() };
    let done = atomc_aiter::open(folder, &case.path).map_err(|e| e.to_string());
    let done = done.and_then(|code| case.run(&code, &options).map_err(|e| e.to_string()));
    let seconds = began.elapsed().as_secs_f64();
    let (error, instructions) = match &done {
        Ok(counts) => (case.error(), counts.instructions),
        Err(_) => (f64::INFINITY, 0),
    };
    let right = error <= case.allowed;
    let mark = if right { "" } else { " **wrong**" };
    let Entry { chip, name, .. } = entry;
    println!("| `{name}` | {chip} | {} | {error:.1e}{mark} | {instructions} | {seconds:.2} |", case.sizes);
    if let Err(fault) = done {
        println!("    {fault}");
    }
    right
}

/// Runs a kernel with one checker at a time and prints what they refuse.
fn checks(folder: &Path, entry: &Entry, quantum: u32) {
    let one = [
        ("waits", Checks { waits: true, ..Checks::NONE }),
        ("races", Checks { races: true, ..Checks::NONE }),
        ("values", Checks { uninitialised: true, ..Checks::NONE }),
        ("barriers", Checks { barriers: true, ..Checks::NONE }),
    ];
    for (name, checks) in one {
        let mut case = entry.case();
        let options = Options { quantum, checks, ..Options::fast() };
        let code: Result<CodeObject, OpenError> = atomc_aiter::open(folder, &case.path);
        if let Some(fault) = code.ok().and_then(|code| case.run(&code, &options).err()) {
            println!("    {name}: {}", fault.to_string().replace('\n', " "));
        }
    }
}

/// Decodes code objects and prints which have instructions that are not interpreted.
fn decode(folder: &Path, filter: &str) -> ExitCode {
    let mut files = Vec::new();
    collect(folder, &mut files);
    files.sort();
    let mut failed = false;
    for file in files {
        let path = file.strip_prefix(folder).map_or_else(|_| file.clone(), Path::to_path_buf);
        let path = path.to_string_lossy();
        if !path.contains(filter) {
            continue;
        }
        let code = match atomc_aiter::open(folder, &path) {
            Ok(code) => code,
            Err(error) => {
                println!("! {error}");
                failed = true;
                continue;
            }
        };
        for kernel in code.kernels() {
            match code.decoded(kernel) {
                Some(Ok(decoded)) => println!("  {path} {kernel}: {} instructions", decoded.steps.len()),
                Some(Err(error)) => {
                    println!("! {path} {error}");
                    failed = true;
                }
                None => {}
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "co") {
            files.push(path);
        }
    }
}
