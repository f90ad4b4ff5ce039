//! Code for GPUs against float64, through the runtime: golden cases on emulated chips, with every check of the emulator.
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use atomc::emulated::Emulated;
use atomc_emulator::Options;
use atomc_runtime::{Artifact, Engine, EngineOptions};
use atomc_tests::golden::{self, CONTEXT, SHARE};
use atomc_tests::{Case, cases};

/// Chips that run every case, and those that run one.
const CHIPS: &[&str] = &["gfx942", "gfx950", "gfx1201"];
const MORE: &[&str] = &["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"];
const ONE: &str = "qwen3";

/// What the error may be of PyTorch's where f32 is summed up without matrix instructions, in longer chains than on a CPU.
const SHARE_F32: f64 = 2.0;

/// A case on a chip. One sequence alone: the batch has the others.
fn faults(case: &Case, path: &Path, chip: &str) -> Vec<String> {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{} on {chip}: {e}", case.name) };
    let artifact = Artifact::open(path).unwrap_or_else(|e| fail(&e));
    let device = Emulated::open(&artifact, chip, 1, Options::default()).unwrap_or_else(|e| fail(&e));
    let options = EngineOptions { cache_tokens: 4 * CONTEXT, ..EngineOptions::default() };
    let mut engine = Engine::with_device(artifact, chip, Box::new(device), &options).unwrap_or_else(|e| fail(&e));
    golden::load(case, &mut engine);
    let share = if case.name == "llama-f32" { SHARE_F32 } else { SHARE };
    golden::faults(case, &mut engine, 1, share)
}

#[test]
fn error_is_that_of_the_type() {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let work = || {
        let mut found = vec![];
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let chips = if case.name == ONE { MORE } else { CHIPS };
            let built = golden::build(case, chips);
            found.extend(chips.iter().flat_map(|chip| faults(case, &built.path, chip)));
        }
        found
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let faults: Vec<String> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
