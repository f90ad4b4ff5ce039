//! Facts that `resolve` finds once and handlers look up: bits of [`Inst::aux`].
use super::kinds::Class;
use super::table::Entry;
use crate::inst::{Half, Inst, Omod, Operand};
use crate::isa::Isa;

/// Bit k: the source at position k has a modifier.
const SOURCES: u64 = 0x3f;
const RESULT: u64 = 1 << 8;
const DEST_SHIFT: u32 = 9;
const CMPX: u64 = 1 << 11;
const DSTS_SHIFT: u32 = 12;
/// Sixteen bits for the instruction itself.
const OWN_SHIFT: u32 = 16;

/// The place of a 16-bit result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dest16 {
    /// The lower half; the upper becomes zero (VOP1 and VOP2 instructions of gfx9).
    ZeroHigh,
    Low,
    High,
}

#[inline(always)]
pub fn works_on_source(inst: &Inst, position: usize) -> bool {
    inst.aux >> position & 1 == 1
}

#[inline(always)]
pub fn works_on_result(inst: &Inst) -> bool {
    inst.aux & RESULT != 0
}

#[inline(always)]
pub fn is_cmpx(inst: &Inst) -> bool {
    inst.aux & CMPX != 0
}

/// The number of the source at a position of the operand list, as modifiers count.
#[inline(always)]
pub fn source_index(inst: &Inst, position: usize) -> usize {
    position.saturating_sub((inst.aux >> DSTS_SHIFT & 3) as usize)
}

pub fn dest16(inst: &Inst) -> Dest16 {
    match inst.aux >> DEST_SHIFT & 3 {
        0 => Dest16::ZeroHigh,
        1 => Dest16::Low,
        _ => Dest16::High,
    }
}

/// The bits that an instruction stored for its own use.
#[inline(always)]
pub fn own(inst: &Inst) -> u64 {
    inst.aux >> OWN_SHIFT
}

pub fn set_own(inst: &mut Inst, value: u64) {
    inst.aux = inst.aux & ((1 << OWN_SHIFT) - 1) | value << OWN_SHIFT;
}

/// Fills `inst.aux`.
pub fn prepare(inst: &mut Inst, row: &Entry, dsts: u8, isa: &Isa) {
    let m = &inst.modifiers;
    let mut bits = u64::from(dsts) << DSTS_SHIFT;
    for (position, source) in inst.operands().iter().enumerate().skip(dsts.into()) {
        let k = position - usize::from(dsts);
        let high = matches!(source.operand, Operand::Vector { half: Half::High, .. });
        let selected = m.op_sel.is_some_and(|s| s >> k & 1 == 1) || m.op_sel_hi.is_some() || m.neg_lo | m.neg_hi != 0;
        let packed = matches!(row.class(k), Class::PkF32 | Class::PkM32) || high || selected;
        let moved = k == 0 && m.dpp.is_some() || k < 2 && m.sdwa.is_some();
        if source.neg || source.abs || source.sext || packed || moved {
            bits |= 1 << position & SOURCES;
        }
    }
    if m.clamp || m.omod != Omod::None {
        bits |= RESULT;
    }
    if inst.mnemonic.starts_with("v_cmpx") {
        bits |= CMPX;
    }
    inst.aux = bits | (dest_of(inst, row, dsts, isa) as u64) << DEST_SHIFT;
}

fn dest_of(inst: &Inst, row: &Entry, dsts: u8, isa: &Isa) -> Dest16 {
    let sources = usize::from(inst.count) - usize::from(dsts);
    match inst.operands[0].operand {
        Operand::Vector { half: Half::High, .. } => Dest16::High,
        Operand::Vector { half: Half::Low, .. } => Dest16::Low,
        _ if inst.modifiers.op_sel.is_some_and(|s| s >> sources & 1 == 1) => Dest16::High,
        _ if isa.family.is_cdna() && !row.keeps_high => Dest16::ZeroHigh,
        _ => Dest16::Low,
    }
}

/// Overrides the place of a 16-bit result.
pub fn set_dest16(inst: &mut Inst, dest: Dest16) {
    inst.aux = inst.aux & !(3 << DEST_SHIFT) | (dest as u64) << DEST_SHIFT;
}
