//! Results of vector instructions: modifiers, masks and destinations.
use super::flags::{self, Dest16};
use super::kinds::{Class, Wide};
use super::sources::{self, DppMap};
use crate::inst::{Inst, Omod, Operand, Sdwa, Select, Unused};
use crate::num;
use crate::wave::{LANES, Row, Wave};

/// The lanes that the instruction writes.
#[inline(always)]
pub fn written_lanes(wave: &Wave, inst: &Inst) -> u64 {
    match &inst.modifiers.dpp {
        None => wave.exec(),
        Some(dpp) => wave.exec() & DppMap::new(wave, dpp).write,
    }
}

/// Stores a row of results of 32 bits, or of 16 in the lower halves, to the first operand.
#[inline(never)]
pub fn store32(wave: &mut Wave, inst: &Inst, row: &mut Row, class: Class) {
    if flags::works_on_result(inst) {
        modify32(wave, inst, row, class);
    }
    match class {
        Class::F32 if !wave.mode.denormals32_out => sources::flush32(row),
        Class::F16 | Class::PkF16 if !wave.mode.denormals16_64_out => sources::flush16(row),
        _ => {}
    }
    let operand = inst.operands[0].operand;
    match class {
        Class::B16 | Class::M16 | Class::F16 if inst.modifiers.sdwa.is_none() => merge16(wave, inst, operand, row),
        _ => {}
    }
    if let Some(sdwa) = inst.modifiers.sdwa {
        place(wave, &sdwa, operand, row);
    }
    write_row(wave, operand, row, written_lanes(wave, inst));
}

/// Stores 64-bit results to the pair of registers of the first operand.
#[inline(never)]
pub fn store64(wave: &mut Wave, inst: &Inst, wide: &mut Wide, class: Class) {
    if flags::works_on_result(inst) {
        modify64(wave, inst, wide, class);
    }
    match class {
        Class::F64 if !wave.mode.denormals16_64_out => sources::flush64(wide),
        Class::PkF32 if !wave.mode.denormals32_out => sources::flush_pairs(wide),
        _ => {}
    }
    write_wide(wave, inst.operands[0].operand, wide, written_lanes(wave, inst));
}

/// Writes the chosen lanes of a register, or a scalar register (from lane 0).
#[inline(always)]
pub fn write_row(wave: &mut Wave, operand: Operand, row: &Row, lanes: u64) {
    match operand {
        Operand::Vector { row: to, .. } => blend(&mut wave.vgpr[usize::from(to)], row, lanes),
        Operand::Scalar { index, .. } => wave.set_scalar(index, row[0]),
        _ => {}
    }
}

/// Copies the chosen lanes.
#[inline(always)]
pub fn blend(to: &mut Row, from: &Row, lanes: u64) {
    if lanes == u64::MAX {
        *to = *from;
        return;
    }
    for half in 0..2 {
        let bits = (lanes >> (32 * half)) as u32;
        for lane in 0..32 {
            let mask = 0u32.wrapping_sub(bits >> lane & 1);
            let at = half * 32 + lane;
            to[at] = to[at] & !mask | from[at] & mask;
        }
    }
}

/// Writes the chosen lanes of a pair of registers.
pub fn write_wide(wave: &mut Wave, operand: Operand, wide: &Wide, lanes: u64) {
    let Operand::Vector { row: to, .. } = operand else { return };
    let mut part = [0; LANES];
    for (k, shift) in [0, 32].into_iter().enumerate() {
        for lane in 0..LANES {
            part[lane] = (wide[lane] >> shift) as u32;
        }
        blend(&mut wave.vgpr[usize::from(to) + k], &part, lanes);
    }
}

/// Puts 16-bit results into one half of the register and keeps the other half.
fn merge16(wave: &Wave, inst: &Inst, operand: Operand, row: &mut Row) {
    let (keep, shift) = match flags::dest16(inst) {
        Dest16::ZeroHigh => return row.iter_mut().for_each(|x| *x &= 0xffff),
        Dest16::Low => (0xffff_0000, 0),
        Dest16::High => (0xffff, 16),
    };
    let old = sources::read(wave, operand);
    for lane in 0..LANES {
        row[lane] = old[lane] & keep | (row[lane] & 0xffff) << shift;
    }
}

/// `dst_sel` and `dst_unused`.
fn place(wave: &Wave, sdwa: &Sdwa, operand: Operand, row: &mut Row) {
    let (shift, bits) = match sdwa.dst {
        Select::Dword => return,
        Select::Word(n) => (u32::from(n) * 16, 16),
        Select::Byte(n) => (u32::from(n) * 8, 8),
    };
    let mask = u32::MAX >> (32 - bits);
    let old = sources::read(wave, operand);
    for lane in 0..LANES {
        let value = row[lane] & mask;
        let signed = ((value << (32 - bits)) as i32 >> (32 - bits)) as u32;
        row[lane] = match sdwa.unused {
            Unused::Pad => value << shift,
            Unused::Sext => signed << shift,
            Unused::Preserve => old[lane] & !(mask << shift) | value << shift,
        };
    }
}

fn factor(omod: Omod) -> f32 {
    match omod {
        Omod::None => 1.0,
        Omod::Mul2 => 2.0,
        Omod::Mul4 => 4.0,
        Omod::Div2 => 0.5,
    }
}

/// Output multiplier and clamp of floating-point results. The multiplier flushes subnormal results
/// and makes zeros positive.
fn modify32(wave: &Wave, inst: &Inst, row: &mut Row, class: Class) {
    let m = &inst.modifiers;
    let nan_to_zero = wave.mode.dx10_clamp;
    match class {
        Class::F32 | Class::M32 | Class::Mix => {
            for x in row.iter_mut() {
                *x = modified(f32::from_bits(*x), m.omod, m.clamp, nan_to_zero).to_bits();
            }
            if m.omod != Omod::None {
                sources::flush32(row);
            }
        }
        Class::F16 | Class::PkF16 => {
            let one =
                |h: u32| num::f32_to_f16(modified(num::f16_to_f32(h as u16), m.omod, m.clamp, nan_to_zero)) as u32;
            row.iter_mut().for_each(|x| *x = one(*x & 0xffff) | one(*x >> 16) << 16);
        }
        Class::PkBf16 => {
            let one = |b: u32| modified(f32::from_bits(b), m.omod, m.clamp, nan_to_zero).to_bits();
            row.iter_mut().for_each(|x| *x = one(*x << 16) >> 16 | one(*x & 0xffff_0000) & 0xffff_0000);
        }
        // Integers saturate in their own kernels.
        _ => {}
    }
}

fn modified(x: f32, omod: Omod, clamp: bool, nan_to_zero: bool) -> f32 {
    let y = if omod == Omod::None { x } else { x * factor(omod) + 0.0 };
    match clamp {
        true if y.is_nan() => {
            if nan_to_zero {
                0.0
            } else {
                y
            }
        }
        // The comparison is false for -0.0 too, which becomes +0.0.
        true => {
            if y > 0.0 {
                y.min(1.0)
            } else {
                0.0
            }
        }
        false => y,
    }
}

fn modify64(wave: &Wave, inst: &Inst, wide: &mut Wide, class: Class) {
    let m = &inst.modifiers;
    let nan_to_zero = wave.mode.dx10_clamp;
    match class {
        Class::F64 => {
            for x in wide {
                let y = f64::from_bits(*x);
                let y = if m.omod == Omod::None { y } else { y * f64::from(factor(m.omod)) + 0.0 };
                *x = if !m.clamp || y.is_nan() && !nan_to_zero {
                    y.to_bits()
                } else if y > 0.0 {
                    y.min(1.0).to_bits()
                } else {
                    0
                };
            }
        }
        Class::PkF32 => {
            let one = |b: u32| u64::from(modified(f32::from_bits(b), m.omod, m.clamp, nan_to_zero).to_bits());
            wide.iter_mut().for_each(|x| *x = one(*x as u32) | one((*x >> 32) as u32) << 32);
        }
        _ => {}
    }
}
