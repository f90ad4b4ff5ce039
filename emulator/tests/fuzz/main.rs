//! Random programs, compiled for this machine and for every processor that can be interpreted; all
//! bits of all results must agree.
//!
//! A normal test run tries a few hundred programs.
//! `ATOMC_FUZZ=20000 cargo test --release -p atomc-emulator --test fuzz` tries more;
//! `ATOMC_FUZZ_SEED` begins elsewhere. A failure prints the program's seed and text and the
//! instructions of its kernel.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
// Not every test uses all of it.
#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;
mod host;
mod program;

use atomc_emulator::exec::Checks;
use atomc_emulator::isa::Isa;
use atomc_emulator::{CodeObject, Grid, Options};
use common::{Arguments, compile, isas};
use host::Host;
use program::{INPUTS, Program, Random, THREADS};

/// Programs of one module: compiling many at once is faster.
const BATCH: u64 = 16;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn random_programs_agree_with_this_machine() {
    let count = variable("ATOMC_FUZZ", 192);
    let seed = variable("ATOMC_FUZZ_SEED", 1);
    let mut failures = Vec::new();
    for batch in 0..count.div_ceil(BATCH) {
        let first = seed * 1_000_000 + batch * BATCH;
        failures.extend(check_batch(first));
        if failures.len() > 8 {
            break;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn check_batch(first: u64) -> Vec<String> {
    let programs: Vec<Program> = (first..first + BATCH).map(Program::random).collect();
    let host = Host::compile(&program::module(&programs, program::Side::Host));
    let text = program::module(&programs, program::Side::Device);
    let mut input = inputs(first);
    let wanted: Vec<Vec<u32>> = programs.iter().map(|p| host.run(p, &input)).collect();
    let mut failures = Vec::new();
    for isa in isas() {
        let code = compile(&text, isa);
        for (program, wanted) in programs.iter().zip(&wanted) {
            if let Some(failure) = check(program, isa, &code, &mut input, wanted) {
                failures.push(failure);
            }
        }
    }
    failures
}

/// Random bits, among them many edge values.
fn inputs(seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed ^ 0x5eed);
    (0..INPUTS * THREADS).map(|_| random.word()).collect()
}

fn check(program: &Program, isa: &'static Isa, code: &CodeObject, input: &mut [u32], wanted: &[u32]) -> Option<String> {
    let mut output = vec![0u32; wanted.len()];
    let arguments = Arguments::default().buffer(input).buffer(&mut output);
    // LLVM fills the unused half of a pair with whatever a register holds: such values are stored
    // nowhere, but combined.
    let options = Options { checks: Checks { uninitialised: false, ..Checks::ALL }, ..Options::default() };
    let launched = arguments.launch_with(code, &program.name(), Grid::linear(1, THREADS as u32), &options);
    let complain = |what: String| {
        let listing = listing(code, &program.name());
        format!("seed {} on {}: {what}\n{}\n{listing}", program.seed, isa.name, program.text(program::Side::Device))
    };
    if let Err(fault) = launched {
        return Some(complain(fault.to_string()));
    }
    let at = (0..wanted.len()).find(|n| output[*n] != wanted[*n])?;
    let (thread, result) = (at / program.outputs(), at % program.outputs());
    let inputs: Vec<String> = (0..INPUTS).map(|k| format!("{:#x}", input[thread * INPUTS + k])).collect();
    Some(complain(format!(
        "thread {thread}, result {result}: {:#x}, not {:#x}; inputs {}",
        output[at],
        wanted[at],
        inputs.join(" ")
    )))
}

fn listing(code: &CodeObject, kernel: &str) -> String {
    match code.decoded(kernel) {
        Some(Ok(decoded)) => decoded.texts.iter().map(|t| format!("    {t}\n")).collect(),
        _ => String::new(),
    }
}
