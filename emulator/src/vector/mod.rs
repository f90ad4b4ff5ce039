//! Vector arithmetic: everything with a mnemonic that begins with `v_`.
//!
//! # The contract
//! The decoder parses an instruction into an [`Inst`] and calls [`resolve`] once. `resolve`
//! - looks the mnemonic up (the suffix of the encoding is already gone; the halves of dual
//!   instructions come one by one with `v_dual_` replaced by `v_`),
//! - replaces every constant operand (`Int`, `Float`, `Literal`) by `Operand::Const` with the final
//!   bits for the operand's type,
//! - returns a [`VectorOp`], or `None` for an unknown mnemonic or for a modifier that it cannot
//!   interpret: the decoder makes a typed error of it that names the instruction and its address.
//!
//! `VectorOp::run` executes it. It may rely on `resolve`'s checks, reads and writes only `wave`,
//! never fails, never touches `wave.pc`, `wave.written` and `wave.scalar_written`: the
//! interpreter's loop does the checks for uninitialised registers and missing waits around it, from
//! the operands and from the facts in [`VectorOp`]. Inactive lanes keep their value. A destination
//! may be the same register as a source. Lanes 32 to 63 of waves of 32 hold nothing: computing them
//! is harmless, `exec` has zeros there. In a dual instruction the loop takes care that both halves
//! read before either writes.
mod arith;
mod compare;
mod convert;
mod cross;
mod division;
mod flags;
mod float;
mod integer;
mod kinds;
mod matrix;
mod packed;
mod results;
pub mod sources;
mod table;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::inst::{Inst, Omod, Operand, Select, Unused};
use crate::isa::Isa;
use crate::wave::Wave;
use kinds::{Class, constant};
use table::Entry;

/// Executes an instruction that [`resolve`] accepted.
///
/// It is `unsafe` only because it may be compiled for processor features that `resolve` found on
/// this machine.
pub type Handler = unsafe fn(&mut Wave, &Inst);

/// The interpreter's facts about a vector instruction.
#[derive(Clone, Copy, Debug)]
pub struct VectorOp {
    pub run: Handler,
    /// The number of the first operands that are destinations: 2 for `v_add_co_u32 v0, vcc, ...`, 0
    /// for `v_nop`.
    pub dsts: u8,
    /// Operands that are read as well as written, as bits by position (`v_fmac`: 1; `v_swap`,
    /// `v_permlane32_swap`: both are set and `dsts` is 2).
    pub reads_dst: u8,
    /// Also reads `vcc` without naming it (`v_div_fmas`).
    pub reads_vcc: bool,
    /// Writes `exec` without naming it (`v_cmpx`).
    pub writes_exec: bool,
    /// A lane's result depends on other lanes (matrix instructions, `v_readlane`, permutations; DPP
    /// is added by the interpreter).
    pub crosses_lanes: bool,
    /// Selects by lane between operands 1 and 2 with the mask in operand 3: an uninitialised value
    /// that is not chosen is no fault.
    pub selects: bool,
    /// Floating-point operations of a matrix instruction, for the whole wave; 0 for all others.
    pub flops: u32,
}

/// Resolves a vector instruction; see the module's contract.
pub fn resolve(inst: &mut Inst, isa: &'static Isa) -> Option<VectorOp> {
    if let Some(op) = matrix::resolve(inst, isa) {
        return Some(op);
    }
    let entry = table().get(&*inst.mnemonic)?;
    let dsts = destinations(inst, entry, isa);
    for position in usize::from(dsts)..usize::from(inst.count) {
        let class = class_of(inst, entry, position - usize::from(dsts));
        if let Some(bits) = constant(inst.operands[position].operand, class) {
            inst.operands[position].operand = Operand::Const(bits);
        }
    }
    flags::prepare(inst, entry, dsts, isa);
    if !entry.prepare.is_none_or(|prepare| prepare(inst, isa)) {
        return None;
    }
    let builds = builds_for(inst, entry)?;
    Some(VectorOp {
        run: builds[usize::from(fast())],
        dsts,
        reads_dst: entry.reads_dst | keeps_part(inst, entry),
        reads_vcc: entry.reads_vcc || entry.selects && inst.count == 3,
        writes_exec: flags::is_cmpx(inst),
        crosses_lanes: entry.crosses_lanes,
        selects: entry.selects,
        flops: 0,
    })
}

/// Comparisons that write `exec` name no destination from gfx10 on.
fn destinations(inst: &Inst, entry: &Entry, isa: &Isa) -> u8 {
    if inst.mnemonic.starts_with("v_cmpx") && !isa.family.is_cdna() { 0 } else { entry.dsts }
}

/// The class that decides about a constant: a mixed source is f16 where `op_sel_hi` says so.
fn class_of(inst: &Inst, entry: &Entry, k: usize) -> Class {
    let class = entry.class(k);
    let half = class == Class::Mix && inst.modifiers.op_sel_hi.unwrap_or(0) >> k & 1 == 1;
    if half { Class::F16 } else { class }
}

/// The handler for the modifiers of the result; `None` if the instruction does not take them.
fn builds_for(inst: &Inst, entry: &Entry) -> Option<table::Builds> {
    let m = &inst.modifiers;
    let float =
        !matches!(entry.result, Class::B16 | Class::B32 | Class::B64 | Class::Pk16 | Class::PkM32 | Class::Mask);
    // Comparisons, conversions to integers and products of small numbers ignore the bit or cannot
    // overflow.
    let harmless =
        entry.result == Class::Mask || inst.mnemonic.starts_with("v_cvt") || inst.mnemonic.starts_with("v_mad_u64");
    match (m.clamp && !float, entry.saturating) {
        (true, Some(saturating)) => Some(saturating),
        (true, None) if !harmless => None,
        _ if m.omod != Omod::None && !float => None,
        _ => Some(entry.run),
    }
}

/// Whether a part of the destination stays, as a bit set of operands.
fn keeps_part(inst: &Inst, entry: &Entry) -> u8 {
    let sixteen = matches!(entry.result, Class::B16 | Class::M16 | Class::F16);
    let keeps = match inst.modifiers.sdwa {
        Some(sdwa) => sdwa.unused == Unused::Preserve && sdwa.dst != Select::Dword,
        None => sixteen && flags::dest16(inst) != flags::Dest16::ZeroHigh,
    };
    keeps.into()
}

/// Whether this machine runs the handlers for AVX2 and FMA.
fn fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// All rows by mnemonic.
fn table() -> &'static HashMap<&'static str, Entry> {
    static TABLE: OnceLock<HashMap<&'static str, Entry>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut map = HashMap::new();
        for entry in all() {
            for name in entry.names.split_whitespace() {
                let before = map.insert(name, entry);
                assert!(before.is_none(), "{name} is in the table twice");
            }
        }
        map
    })
}

fn all() -> impl Iterator<Item = Entry> {
    let parts = [integer::rows, float::rows, division::rows, convert::rows, compare::rows, packed::rows, cross::rows];
    parts.into_iter().flat_map(|rows| rows())
}

#[cfg(test)]
mod tests;
