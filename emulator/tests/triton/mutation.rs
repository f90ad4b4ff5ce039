//! Leaves waits and barriers out of the stored cases, one at a time: the emulator must see it, or
//! it must not matter.
use std::collections::BTreeMap;

use atomc_emulator::{CodeObject, Fault, FaultKind};

use crate::case::Case;
use crate::{directory, run_code};

/// `s_nop 0`
const NOP: [u8; 4] = 0xbf80_0000u32.to_le_bytes();

/// Code objects without one of the waits or barriers, and the text of the missing one.
fn mutants(case: &Case) -> Vec<(String, Vec<u8>)> {
    let bytes = case.code();
    let whole = CodeObject::load(&bytes).unwrap();
    let code = &whole.kernel(&case.symbol).unwrap().code;
    let kernel = whole.decoded(&case.symbol).unwrap().as_ref().unwrap();
    let counts = |t: &str| t.starts_with("s_waitcnt ") || t.starts_with("s_wait_") && t.contains("cnt");
    let stops = |t: &str| t.starts_with("s_barrier") && !t.contains("signal");
    let steps = kernel.steps.iter().zip(&kernel.texts).filter(|(_, t)| counts(t) || stops(t));
    let mutant = |at: u64, text: &str| {
        let mut bytes = bytes.clone();
        let at = code.file.start + (at - code.address) as usize;
        bytes[at..at + 4].copy_from_slice(&NOP);
        (text.to_string(), bytes)
    };
    steps.map(|(step, text)| mutant(step.inst.address, text)).collect()
}

/// Kinds of faults that tell of a missing wait or barrier.
fn tells(fault: &Fault) -> &'static str {
    match fault.kind {
        FaultKind::MissingWait { .. } | FaultKind::MissingLdsWait { .. } => "missing wait",
        FaultKind::LdsRace { .. } => "race",
        FaultKind::UninitialisedLds { .. } => "read before it was written",
        _ => panic!("another fault: {fault}"),
    }
}

/// The outcomes of all mutants of a chip. One that computes something wrong without a fault fails
/// the test.
fn outcomes(chip: &str) -> BTreeMap<&'static str, usize> {
    let mut outcomes = BTreeMap::new();
    for case in Case::all(&directory(), chip) {
        for (text, code) in mutants(&case) {
            let outcome = match run_code(&case, &code) {
                Err(fault) => tells(&fault),
                Ok(run) => {
                    assert!(run.worst.0 <= 1.0, "{chip} {} without `{text}`: {}", case.case, run.worst.1);
                    "no matter"
                }
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
    outcomes
}

/// Mutants that do not matter: code that these cases do not reach, and waits that older firmware's
/// entry needs.
#[test]
fn nothing_goes_wrong_unseen() {
    for chip in ["gfx942", "gfx1201"] {
        let outcomes = outcomes(chip);
        let all: usize = outcomes.values().sum();
        println!("{chip}: {outcomes:?}");
        assert!(outcomes["no matter"] * 3 < all, "{chip}: {outcomes:?}");
    }
}
