//! Compiled kernels against float64: every golden case, on every variant that this CPU runs, alone and in a batch.
use atomc_runtime::{Artifact, DeviceChoice, DeviceError, Engine, EngineOptions, Error};
use atomc_tests::golden::{self, CONTEXT, SHARE};
use atomc_tests::{Case, SEQUENCES, cases};

/// One engine for each variant that the CPU runs.
fn engines(case: &Case) -> Vec<Engine> {
    let built = golden::build(case, &["host"]);
    let variants = built.compiled.manifest.targets[0].variants.iter().map(|v| v.name.clone());
    let engines: Vec<Engine> = variants
        .filter_map(|variant| {
            let device = DeviceChoice::Host { variant: Some(variant) };
            let options = EngineOptions { device, threads: 2, cache_tokens: 4 * CONTEXT };
            match Engine::new(Artifact::open(&built.path).expect("a whole artifact"), &options) {
                Err(Error::Device(DeviceError::Lacks { .. })) => None,
                engine => Some(engine.unwrap_or_else(|e| panic!("{}: {e}", case.name))),
            }
        })
        .map(|mut engine| {
            golden::load(case, &mut engine);
            engine
        })
        .collect();
    assert!(!engines.is_empty(), "this CPU runs no variant");
    engines
}

#[test]
fn error_is_that_of_the_type() {
    let mut faults = vec![];
    for case in cases() {
        for mut engine in engines(&case) {
            faults.extend(golden::faults(&case, &mut engine, SEQUENCES, SHARE));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
