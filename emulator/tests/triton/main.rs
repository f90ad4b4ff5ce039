//! Runs kernels that the Triton compiler made, and compares their results with the expected ones.
//!
//! The stored cases are in `tests/triton/stored`. `tests/triton/make.sh --all` makes the long set,
//! and
//! `ATOMC_TRITON_DIR=tests/triton/all cargo test --release -p atomc-emulator --test triton -- --nocapture`
//! runs it.
#![allow(clippy::unwrap_used, reason = "what tests call may unwrap as they do")]
mod case;
mod mutation;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use atomc_artifact::hsaco;
use atomc_emulator::{
    Access, Checks, CodeObject, Counts, Emulator, Fault, FaultKind, Grid, LoadError, Memory, Options,
};
use safetensors::SafeTensors;

use crate::case::Case;

/// Bytes that start at a 256-byte boundary, as device memory does, and end at the end of the
/// tensor.
struct Buffer {
    name: String,
    store: Vec<u8>,
    start: usize,
    len: usize,
}

const ALIGN: usize = 256;

impl Buffer {
    fn new(name: &str, data: &[u8]) -> Buffer {
        let mut store = vec![0; data.len() + ALIGN];
        let start = store.as_ptr().align_offset(ALIGN);
        store[start..start + data.len()].copy_from_slice(data);
        Buffer { name: name.into(), store, start, len: data.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.store[self.start..self.start + self.len]
    }

    fn address(&self) -> u64 {
        self.bytes().as_ptr() as u64
    }
}

/// The result of a run of a case.
struct Outcome {
    counts: Counts,
    /// The largest error as a part of the allowed one, and its place.
    worst: (f64, String),
}

/// Runs a case with this code object; the inner error is a fault of the launch.
fn launch(case: &Case, code: &[u8], options: &Options) -> Result<Result<Outcome, Fault>, LoadError> {
    let data = case.data();
    let tensors = SafeTensors::deserialize(&data).unwrap();
    let buffer = |name: &str| Buffer::new(name, tensors.tensor(&format!("in.{name}")).unwrap().data());
    let mut buffers: Vec<Buffer> = case.buffers().map(buffer).collect();
    let mut memory = Memory::default();
    for buffer in &mut buffers {
        let access = if case.outputs.iter().any(|o| o.name == buffer.name) { Access::ReadWrite } else { Access::Read };
        let address = buffer.store[buffer.start..].as_mut_ptr() as u64;
        // SAFETY: the buffers outlive the launch, and only the kernel uses them meanwhile.
        unsafe { memory.map(address, buffer.len as u64, access) };
    }
    let code = CodeObject::load(code)?;
    let address = |name: &str| buffers.iter().find(|b| b.name == name).unwrap().address();
    let grid = Grid { groups: case.grid, threads: [case.threads, 1, 1], dynamic_lds: case.dynamic_lds };
    let launched = Emulator.launch(&code, &case.symbol, grid, &case.kernarg(address), &memory, options);
    Ok(launched.map(|counts| {
        let worst = case.outputs.iter().map(|output| {
            let got = buffers.iter().find(|b| b.name == output.name).unwrap();
            case::worst(output, got.bytes(), &tensors)
        });
        Outcome { counts, worst: worst.max_by(|a, b| a.0.total_cmp(&b.0)).expect("a case has outputs") }
    }))
}

/// Runs a case with this code object. Halves of a group may take turns.
fn run_code(case: &Case, code: &[u8]) -> Result<Outcome, Fault> {
    let checks = Checks { barriers: false, ..Checks::ALL };
    launch(case, code, &Options { checks, ..Options::default() }).expect("a code object that loads")
}

/// Runs a case with all checks, waves interleaved by the seed. With eight waves, Triton lets the
/// two halves of a group take turns at the matrix unit: they wait at different barriers of the same
/// number, which only the check of barriers refuses.
fn run(case: &Case, seed: u64) -> Result<(Outcome, &'static str), String> {
    let options = Options { seed, ..Options::default() };
    match launch(case, &case.code(), &options).map_err(|e| e.to_string())? {
        Ok(outcome) => Ok((outcome, "")),
        Err(Fault { kind: FaultKind::DivergentBarrier { .. }, .. }) => {
            let checks = Checks { barriers: false, ..Checks::ALL };
            let outcome = launch(case, &case.code(), &Options { checks, ..options }).map_err(|e| e.to_string())?;
            Ok((outcome.map_err(|fault| fault.to_string())?, ", halves in turn"))
        }
        Err(fault) => Err(fault.to_string()),
    }
}

/// The long set if the environment names one.
fn directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    match std::env::var_os("ATOMC_TRITON_DIR") {
        Some(dir) => root.join(dir),
        None => root.join("tests/triton/stored"),
    }
}

/// In order, and in two random orders.
const SEEDS: [u64; 3] = [0, 1, 2];

/// Runs all cases of a chip; fails with the list of those that are wrong.
fn check(chip: &str) {
    let cases = Case::all(&directory(), chip);
    assert!(!cases.is_empty(), "no cases for {chip} in {}", directory().display());
    let mut wrong = String::new();
    for case in &cases {
        let began = Instant::now();
        let runs: Result<Vec<_>, _> = SEEDS.iter().map(|seed| run(case, *seed)).collect();
        let worst = runs.map(|all| all.into_iter().max_by(|a, b| a.0.worst.0.total_cmp(&b.0.worst.0)).expect("seeds"));
        let (mark, text) = match worst {
            Ok((Outcome { counts, worst: (error, _) }, note)) if error <= 1.0 => {
                (' ', format!("error {error:.3} of what is allowed, {} instructions{note}", counts.instructions))
            }
            Ok((Outcome { worst: (_, place), .. }, _)) => ('!', place),
            Err(fault) => ('!', fault),
        };
        let line = format!("{mark} {chip} {}: {text}, {:.2} s", case.case, began.elapsed().as_secs_f64());
        println!("{line}");
        if mark == '!' {
            writeln!(wrong, "{line}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "of {} cases are wrong:\n{wrong}", cases.len());
}

/// The arguments of each case are at the offsets of its code object's metadata.
#[test]
fn arguments_are_those_of_the_metadata() {
    for chip in ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"] {
        for case in Case::all(&directory(), chip) {
            let object = hsaco::CodeObject::read(&case.code()).unwrap_or_else(|e| panic!("{chip} {}: {e}", case.case));
            assert_eq!(object.isa.processor, case.chip);
            let kernel = object.kernel(&case.symbol).unwrap();
            let found: Vec<_> =
                kernel.metadata.explicit_args().map(|a| (a.offset as usize, a.size as usize, a.value_kind)).collect();
            assert_eq!(found, case.layout(), "{chip} {}", case.case);
            assert_eq!(case.threads % kernel.metadata.wavefront_size, 0);
        }
    }
}

#[test]
fn gfx90a() {
    check("gfx90a");
}

#[test]
fn gfx942() {
    check("gfx942");
}

#[test]
fn gfx950() {
    check("gfx950");
}

#[test]
fn gfx1100() {
    check("gfx1100");
}

#[test]
fn gfx1201() {
    check("gfx1201");
}
