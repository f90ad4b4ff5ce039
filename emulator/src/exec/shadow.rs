//! Checks before an instruction: registers that are still being loaded, and values that were never
//! computed.
//!
//! Uninitialised values may be copied and combined, as compilers do with undefined ones; they are
//! followed lane by lane through the registers, and only using them for something that matters is a
//! fault: an address or stored data ([`crate::mem`]), the execution mask, a branch.
use super::pending::scalar_name;
use super::salu::src;
use super::step::{Action, Class, Condition, Control, Registers, Sources, Step};
use super::{Checks, Side};
use crate::fault::{Counter, FaultKind, Trap};
use crate::inst::scalar::{EXEC, NULL, VCC};
use crate::mem::{MemoryOp, Space};
use crate::wave::Wave;

/// Checks an instruction and notes its results as computed or not.
#[inline(always)]
pub fn check(step: &Step, wave: &mut Wave, side: &Side, checks: &Checks) -> Result<(), Box<Trap>> {
    let registers = &step.registers;
    if checks.waits {
        let scalars = registers.scalar_reads | registers.scalar_writes;
        if let Some((register, counter)) = side.pending.conflict(&registers.touched, scalars) {
            return Err(Trap::wave(FaultKind::MissingWait { register, counter }));
        }
        if let Action::Memory(op) = &step.action {
            overwrites(op, side)?;
        }
    }
    if !checks.uninitialised {
        return Ok(());
    }
    if step.class == Class::Matrix {
        all_lanes(wave)?;
    }
    match &step.action {
        Action::Vector(_) if registers.one_lane => {
            one_lane(step, wave);
            Ok(())
        }
        Action::Vector(_) | Action::Dual(_) => {
            // Matrix instructions fill all lanes.
            let lanes = if step.class == Class::Matrix { u64::MAX } else { wave.exec() };
            vector(registers, lanes, wave)
        }
        Action::Scalar(_) => scalar(registers, wave),
        Action::Control(control) => condition(control, wave),
        // Memory instructions check their addresses and data themselves.
        Action::Memory(_) => Ok(()),
    }
}

/// A load into a register that another counter's load will still write.
fn overwrites(op: &MemoryOp, side: &Side) -> Result<(), Box<Trap>> {
    let (Some(dst), false) = (op.dst, op.space.is_scalar()) else { return Ok(()) };
    let counter = if op.space == Space::Lds { Counter::Lds } else { Counter::Vector };
    match side.pending.overwrites(dst.first, dst.count, counter) {
        Some((register, counter)) => Err(Trap::wave(FaultKind::MissingWait { register, counter })),
        None => Ok(()),
    }
}

/// RDNA's matrix instructions want every lane; CDNA's do not look at the mask.
fn all_lanes(wave: &Wave) -> Result<(), Box<Trap>> {
    let active = wave.exec().count_ones();
    if wave.isa.family.is_cdna() || active == wave.isa.lanes {
        return Ok(());
    }
    Err(Trap::wave(FaultKind::PartialMatrix { active }))
}

#[inline(always)]
fn vector(r: &Registers, exec: u64, wave: &mut Wave) -> Result<(), Box<Trap>> {
    let scalars = r.scalar_reads & !wave.scalar_written == 0;
    let mut computed = if scalars { u64::MAX } else { 0 };
    if r.selects && r.reads.len() == 2 && scalars {
        // The value that is not chosen does not matter; which one that is, is not looked up.
        computed = wave.written[usize::from(r.reads[0])] | wave.written[usize::from(r.reads[1])];
    } else if !r.selects {
        r.reads.iter().for_each(|row| computed &= wave.written[usize::from(*row)]);
    }
    if r.crosses_lanes {
        computed = if computed == 0 { 0 } else { u64::MAX };
    }
    let note_row = |row: u16, computed: u64, wave: &mut Wave| {
        let written = &mut wave.written[usize::from(row)];
        *written = *written & !exec | computed & exec;
    };
    match &r.halves {
        Some(halves) => {
            let of = |part: &Sources| {
                let scalars = if part.scalars & !wave.scalar_written == 0 { u64::MAX } else { 0 };
                part.rows.iter().fold(scalars, |all, row| all & wave.written[usize::from(*row)])
            };
            let parts = halves.each_ref().map(of);
            r.writes.iter().zip(parts).for_each(|(row, part)| note_row(*row, part, wave));
        }
        None => r.writes.iter().for_each(|row| note_row(*row, computed, wave)),
    }
    if r.scalar_writes != 0 {
        let known = computed & exec != 0 || exec == 0;
        if !known && r.scalar_writes >> EXEC & 3 != 0 {
            return Err(Trap::wave(FaultKind::Uninitialised { register: "a source".into() }));
        }
        note(r.scalar_writes, known, wave);
    }
    Ok(())
}

/// `v_readlane` and `v_writelane`: spilled scalars are kept so.
fn one_lane(step: &Step, wave: &mut Wave) {
    let r = &step.registers;
    let lane = src(wave, step.inst.operand(2)) % wave.isa.lanes;
    let scalars = r.scalar_reads & !wave.scalar_written == 0;
    match (r.writes.first(), r.reads.first()) {
        (Some(row), _) => {
            let written = &mut wave.written[usize::from(*row)];
            *written = *written & !(1 << lane) | u64::from(scalars) << lane;
        }
        (None, Some(row)) => {
            let known = wave.written[usize::from(*row)] >> lane & 1 != 0;
            note(r.scalar_writes, known && scalars, wave);
        }
        _ => {}
    }
}

fn note(scalars: u128, known: bool, wave: &mut Wave) {
    match known {
        true => wave.scalar_written |= scalars,
        false => wave.scalar_written &= !scalars | 1 << NULL,
    }
}

#[inline(always)]
fn scalar(r: &Registers, wave: &mut Wave) -> Result<(), Box<Trap>> {
    let missing = r.scalar_reads & !wave.scalar_written;
    let known = missing == 0 && (!r.reads_scc || wave.scc_written);
    if !known && r.scalar_writes >> EXEC & 3 != 0 {
        return uninitialised(missing);
    }
    if r.scalar_writes != 0 {
        note(r.scalar_writes, known, wave);
    }
    if r.writes_scc {
        wave.scc_written = known;
    }
    Ok(())
}

#[cold]
fn uninitialised(missing: u128) -> Result<(), Box<Trap>> {
    let register = if missing == 0 { "scc".into() } else { scalar_name(missing.trailing_zeros() as u8) };
    Err(Trap::wave(FaultKind::Uninitialised { register }))
}

fn condition(control: &Control, wave: &mut Wave) -> Result<(), Box<Trap>> {
    match control {
        Control::Branch { condition: Condition::Scc(_), .. } if !wave.scc_written => uninitialised(0),
        Control::Branch { condition: Condition::Vcc { .. }, .. } => {
            let bits = if wave.isa.lanes == 64 { 3u128 << VCC } else { 1 << VCC };
            match bits & !wave.scalar_written {
                0 => Ok(()),
                missing => uninitialised(missing),
            }
        }
        Control::GetPc { dst } => {
            wave.scalar_written |= 3 << dst;
            Ok(())
        }
        _ => Ok(()),
    }
}
