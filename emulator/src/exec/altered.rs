//! Two ways in which gfx9 changes the following vector instructions: registers by index
//! (`s_set_gpr_idx_on`), or skipped instructions (`s_setvskip`). AITER's kernels use both.
//!
//! Source: instruction set of Vega, "VGPR Indexing" and `S_SETVSKIP`. Distance and choice of
//! operands are in `m0`.
use super::salu::src;
use super::step::{Action, Alteration, Registers, Step};
use super::{Group, Side, shadow};
use crate::fault::{FaultKind, Trap};
use crate::inst::{AGPR, Inst, Operand, scalar};
use crate::mem;
use crate::wave::Wave;

/// Bits of the mode register.
const INDEX: u32 = 1 << 27;
const SKIP: u32 = 1 << 28;

/// The bit of the choice that means the destination.
const DESTINATION: u32 = 3;

/// Executes one of the instructions that alter others.
pub fn alter(what: Alteration, inst: &Inst, wave: &mut Wave, side: &mut Side) {
    let first = src(wave, inst.operand(0));
    let m0 = wave.sgpr[usize::from(scalar::M0)];
    let choice = (inst.aux as u32) << 12;
    match what {
        Alteration::IndexOn => {
            set_m0(wave, m0 & 0xffff_0f00 | first & 0xff | choice);
            side.mode |= INDEX;
        }
        Alteration::Index => set_m0(wave, m0 & !0xff | first & 0xff),
        Alteration::IndexMode => set_m0(wave, m0 & !0xf000 | choice),
        Alteration::IndexOff => side.mode &= !INDEX,
        Alteration::Skip => {
            let on = first >> (src(wave, inst.operand(1)) & 31) & 1 != 0;
            side.mode = if on { side.mode | SKIP } else { side.mode & !SKIP };
        }
    }
    side.altered = side.mode & (INDEX | SKIP) != 0;
}

fn set_m0(wave: &mut Wave, value: u32) {
    wave.set_scalar(scalar::M0, value);
    wave.scalar_written |= 1 << scalar::M0;
}

/// Executes a vector instruction that was altered.
#[cold]
pub fn step<const CHECK: bool>(
    step: &Step,
    wave: &mut Wave,
    side: &mut Side,
    group: &mut Group,
) -> Result<(), Box<Trap>> {
    if side.mode & SKIP != 0 {
        return Ok(());
    }
    group.hits[wave.pc] += 1;
    let Action::Vector(handler) = &step.action else {
        if CHECK {
            shadow::check(step, wave, side, &group.checks)?;
        }
        let Action::Memory(op) = &step.action else {
            return Err(Trap::wave(FaultKind::Unsupported("registers by index in two instructions at once".into())));
        };
        return mem::execute(op, &step.inst, &mut super::Cx { wave, side, group });
    };
    let inst = indexed(&step.inst, wave.sgpr[usize::from(scalar::M0)])?;
    if CHECK {
        let registers = registers(step, &inst);
        let moved =
            Step { inst: inst.clone(), action: Action::Vector(*handler), class: step.class, registers, flops: 0 };
        shadow::check(&moved, wave, side, &group.checks)?;
    }
    // SAFETY: `resolve` gave the handler for this instruction on this machine. The other registers
    // are of the same kind.
    unsafe { handler(wave, &inst) };
    Ok(())
}

/// The instruction with other vector registers.
fn indexed(inst: &Inst, m0: u32) -> Result<Inst, Box<Trap>> {
    let (distance, choice) = (m0 as u16 & 0xff, m0 >> 12 & 15);
    let mut inst = inst.clone();
    for k in 0..usize::from(inst.count) {
        let bit = if k == 0 { DESTINATION } else { k as u32 - 1 };
        let Operand::Vector { row, count, .. } = &mut inst.operands[k].operand else { continue };
        if bit > DESTINATION || choice >> bit & 1 == 0 {
            continue;
        }
        let end = if *row < AGPR { AGPR } else { 2 * AGPR };
        *row += distance;
        if *row + u16::from(*count) > end {
            return Err(Trap::wave(FaultKind::Unsupported(format!("a vector register by index: {distance} too far"))));
        }
    }
    Ok(inst)
}

fn registers(step: &Step, moved: &Inst) -> Registers {
    let old = &step.registers;
    let dsts = u8::from(!old.writes.is_empty() || old.scalar_writes != 0);
    let reads_dst = u8::from(old.reads.iter().any(|r| old.writes.contains(r)) && old.one_lane);
    let new = Registers::of(moved, dsts, reads_dst);
    Registers {
        scalar_reads: old.scalar_reads,
        scalar_writes: old.scalar_writes,
        crosses_lanes: old.crosses_lanes,
        selects: old.selects,
        one_lane: old.one_lane,
        ..new
    }
}
