//! Instructions in which lanes see other lanes: reads and writes of single lanes, permutations,
//! swaps, counts below a lane.
use super::kinds::{Class, Kind, U32};
use super::results::{blend, write_row};
use super::sources;
use super::table::{Builds, Entry, builds, lanes};
use crate::inst::{Half, Inst, Operand};
use crate::isa::Isa;
use crate::wave::{LANES, Wave};

pub fn rows() -> Vec<Entry> {
    const B: &[Class] = &[Class::B32];
    let cross = |names, run: Builds| Entry { crosses_lanes: true, ..Entry::new(names, run, B, Class::B32) };
    let two = |names, run: Builds| Entry { dsts: 2, reads_dst: 3, ..Entry::new(names, run, B, Class::B32) };
    let own = |entry: Entry| Entry { prepare: Some(permlane_flags), ..entry };
    vec![
        cross("v_readfirstlane_b32", builds!(readfirstlane)),
        cross("v_readlane_b32", builds!(readlane)),
        Entry { reads_dst: 1, ..cross("v_writelane_b32", builds!(writelane)) },
        own(cross("v_permlane16_b32", builds!(permlane16::<0>))),
        own(cross("v_permlanex16_b32", builds!(permlane16::<1>))),
        own(cross("v_permlane16_var_b32", builds!(permlane16_var::<0>))),
        own(cross("v_permlanex16_var_b32", builds!(permlane16_var::<1>))),
        cross("v_permlane64_b32", builds!(permlane64)),
        Entry { crosses_lanes: true, ..two("v_permlane32_swap_b32", builds!(permlane_swap::<32>)) },
        Entry { crosses_lanes: true, ..two("v_permlane16_swap_b32", builds!(permlane_swap::<16>)) },
        Entry::new("v_mbcnt_lo_u32_b32", builds!(mbcnt::<0>), B, Class::B32),
        Entry::new("v_mbcnt_hi_u32_b32", builds!(mbcnt::<32>), B, Class::B32),
        two("v_swap_b32", builds!(swap)),
        two("v_swap_b16", builds!(swap16)),
        Entry { dsts: 0, ..Entry::new("v_nop v_pipeflush", builds!(nop), &[], Class::B32) },
        Entry { dsts: 0, ..Entry::new("v_clrexcp", builds!(nop), &[], Class::B32) },
    ]
}

#[inline(always)]
fn nop(_: &mut Wave, _: &Inst) {}

/// The first active lane, or lane 0 where none is.
#[inline(always)]
fn readfirstlane(wave: &mut Wave, inst: &Inst) {
    let exec = wave.exec();
    let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
    give(wave, inst, lane);
}

#[inline(always)]
fn readlane(wave: &mut Wave, inst: &Inst) {
    let lane = sources::scalar(wave, inst.operand(2)) % wave.isa.lanes;
    give(wave, inst, lane as usize);
}

fn give(wave: &mut Wave, inst: &Inst, lane: usize) {
    let value = sources::read(wave, inst.operand(1))[lane];
    match inst.operand(0) {
        Operand::Scalar { index, .. } => wave.set_scalar(index, value),
        other => write_row(wave, other, &[value; LANES], 1),
    }
}

/// Writes one lane, active or not.
#[inline(always)]
fn writelane(wave: &mut Wave, inst: &Inst) {
    let value = sources::scalar(wave, inst.operand(1));
    let lane = sources::scalar(wave, inst.operand(2)) % wave.isa.lanes;
    write_row(wave, inst.operand(0), &[value; LANES], 1 << lane);
}

/// `op_sel:[fi, bound_ctrl]`: bit 0 allows reads of inactive lanes, bit 1 makes forbidden reads
/// zero.
fn permlane_flags(inst: &mut Inst, _: &Isa) -> bool {
    let flags = inst.modifiers.op_sel.take().unwrap_or(0);
    super::flags::set_own(inst, flags.into());
    true
}

/// Each lane reads the lane of its row of sixteen (of the other row of the pair with `X`) that four
/// bits of two scalars name.
#[inline(always)]
fn permlane16<const X: usize>(wave: &mut Wave, inst: &Inst) {
    let [low, high] = [2, 3].map(|p| sources::scalar(wave, inst.operand(p)));
    let select = u64::from(low) | u64::from(high) << 32;
    permute::<X>(wave, inst, |lane| (select >> (4 * (lane % 16))) as usize & 15);
}

/// As above, with the lane's number in a vector register (gfx12).
#[inline(always)]
fn permlane16_var<const X: usize>(wave: &mut Wave, inst: &Inst) {
    let select = sources::read(wave, inst.operand(2));
    permute::<X>(wave, inst, |lane| select[lane] as usize & 15);
}

fn permute<const X: usize>(wave: &mut Wave, inst: &Inst, select: impl Fn(usize) -> usize) {
    let flags = super::flags::own(inst);
    let (inactive, zero) = (flags & 1 == 1, flags & 2 == 2);
    let exec = wave.exec();
    let source = sources::read(wave, inst.operand(1));
    let mut out = [0; LANES];
    let mut write = exec;
    for (lane, value) in out.iter_mut().enumerate().take(lanes!(wave)) {
        let from = ((lane & !15) ^ (16 * X)) + select(lane);
        let readable = inactive || exec >> from & 1 == 1;
        *value = if readable { source[from] } else { 0 };
        if !readable && !zero {
            write &= !(1 << lane);
        }
    }
    write_row(wave, inst.operand(0), &out, write);
}

/// Swaps the halves of a wave of 64; a move in waves of 32.
#[inline(always)]
fn permlane64(wave: &mut Wave, inst: &Inst) {
    let source = sources::read(wave, inst.operand(1));
    let flip = if wave.isa.lanes == 64 { 32 } else { 0 };
    let out = std::array::from_fn(|lane| source[lane ^ flip]);
    write_row(wave, inst.operand(0), &out, wave.exec());
}

/// Swaps odd rows of `N` lanes of the first register with even rows of the second. Both are read
/// before either is written; `exec` masks the writes.
#[inline(always)]
fn permlane_swap<const N: usize>(wave: &mut Wave, inst: &Inst) {
    let [first, second] = [0, 1].map(|p| sources::read(wave, inst.operand(p)));
    let (mut a, mut b) = (first, second);
    for lane in 0..LANES {
        if lane & N != 0 {
            a[lane] = second[lane ^ N];
        } else {
            b[lane] = first[lane ^ N];
        }
    }
    let exec = wave.exec();
    write_row(wave, inst.operand(0), &a, exec);
    write_row(wave, inst.operand(1), &b, exec);
}

/// The number of lanes below this one that have their bit set, among 32 lanes from `FIRST`; plus an
/// addend.
#[inline(always)]
fn mbcnt<const FIRST: usize>(wave: &mut Wave, inst: &Inst) {
    let [mask, addend] = [1, 2].map(|p| U32::fetch(wave, inst, p));
    let mut out = U32::zero();
    for lane in 0..lanes!(wave) {
        let below = usize::saturating_sub(lane, FIRST).min(32);
        let bits = mask[lane] & (u32::MAX as u64 >> (32 - below as u32)) as u32;
        out[lane] = addend[lane].wrapping_add(if below == 0 { 0 } else { bits.count_ones() });
    }
    U32::store(wave, inst, &mut out);
}

#[inline(always)]
fn swap(wave: &mut Wave, inst: &Inst) {
    let [a, b] = [0, 1].map(|p| sources::read(wave, inst.operand(p)));
    let exec = wave.exec();
    write_row(wave, inst.operand(0), &b, exec);
    write_row(wave, inst.operand(1), &a, exec);
}

/// Swaps two halves of registers.
#[inline(always)]
fn swap16(wave: &mut Wave, inst: &Inst) {
    let halves = [0, 1].map(|p| {
        let Operand::Vector { row, half, .. } = inst.operand(p) else { return (0, 0) };
        (usize::from(row), if half == Half::High { 16 } else { 0 })
    });
    let values = halves.map(|(row, shift)| wave.vgpr[row].map(|x| x >> shift & 0xffff));
    let exec = wave.exec();
    for (k, (row, shift)) in halves.into_iter().enumerate() {
        let old = wave.vgpr[row];
        let new = std::array::from_fn(|lane| old[lane] & !(0xffff << shift) | values[1 - k][lane] << shift);
        blend(&mut wave.vgpr[row], &new, exec);
    }
}
