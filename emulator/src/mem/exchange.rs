//! Instructions of the LDS unit that move values between lanes.
use super::address::{lanes, places};
use super::transfer::finish;
use super::{Kind, MemoryOp};
use crate::exec::Cx;
use crate::fault::{Operation, Trap};
use crate::inst::Inst;
use crate::wave::{LANES, Row, Wave};

/// Permutations and swizzles; they use no memory.
pub fn run(op: &MemoryOp, inst: &Inst, wave: &mut Wave) {
    let row = |r: Option<super::Registers>| wave.vgpr[usize::from(r.map_or(0, |r| r.first))];
    let (address, data) = (row(op.address.vector), row(op.data));
    let offset = inst.modifiers.offset as u32;
    let (exec, count) = (wave.exec(), wave.isa.lanes as usize);
    let out = match op.kind {
        Kind::Bpermute => gather(&data, exec, |lane| (address[lane].wrapping_add(offset) / 4) as usize % count),
        Kind::Swizzle => gather(&address, exec, |lane| swizzle(offset, lane)),
        _ => scatter(&data, exec, |lane| (address[lane].wrapping_add(offset) / 4) as usize % count),
    };
    let dst = usize::from(op.dst.expect("exchanges have a destination").first);
    for lane in lanes(exec) {
        wave.vgpr[dst][lane] = out[lane];
    }
    wave.written[dst] |= exec;
}

/// Each lane reads another; inactive lanes give zero.
fn gather(from: &Row, exec: u64, source: impl Fn(usize) -> usize) -> Row {
    std::array::from_fn(|lane| {
        let source = source(lane);
        if source < LANES && exec >> source & 1 != 0 { from[source] } else { 0 }
    })
}

/// Each active lane writes another; of several, the highest lane wins.
fn scatter(from: &Row, exec: u64, target: impl Fn(usize) -> usize) -> Row {
    let mut out = [0; LANES];
    lanes(exec).for_each(|lane| out[target(lane)] = from[lane]);
    out
}

/// The lane that `ds_swizzle` reads. Bits of the pattern: CDNA3 guide, "DS_SWIZZLE_B32".
fn swizzle(pattern: u32, lane: usize) -> usize {
    let lane = lane as u32;
    let source = match pattern >> 14 & 3 {
        // Quads.
        2 => lane & !3 | pattern >> (lane % 4 * 2) & 3,
        // Rotation within 32 lanes; bits of the mask stay.
        3 => {
            let (keep, by) = (pattern & 31, pattern >> 5 & 31);
            let moved = if pattern >> 10 & 1 == 0 { lane + by } else { lane + 32 - by };
            lane & !31 | lane & keep | moved & 31 & !keep
        }
        _ => {
            let (and, or, xor) = (pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31);
            lane & !31 | ((lane & and) | or) ^ xor
        }
    };
    source as usize
}

/// `ds_read_b64_tr_*`: sixteen lanes load rows of a matrix of small elements and get its columns.
///
/// With `n` elements in a lane, lanes `j * 16 / n` and following hold row `j` of sixteen elements;
/// lane `i` gets element `i` of each row.
pub fn transpose(op: &MemoryOp, bits: u8, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let dst = op.dst.expect("loads have a destination");
    let dwords = usize::from(dst.count);
    let offset = i64::from(inst.modifiers.offset);
    let places = places(op, offset, 4 * u32::from(dst.count), Operation::Read, inst, cx)?;
    let mut loaded = [0u128; LANES];
    for lane in lanes(places.lanes) {
        for k in 0..dwords {
            // SAFETY: that many dwords were checked at the pointer of every lane.
            let value = unsafe { ((places.at[lane] + 4 * k as u64) as *const u32).read_unaligned() };
            loaded[lane] |= u128::from(value) << (32 * k);
        }
    }
    let bits = usize::from(bits);
    let count = (dwords * 32 / bits).min(16);
    for lane in lanes(places.lanes) {
        let (first, i) = (lane / 16 * 16, lane % 16);
        let mut value = 0u128;
        for j in 0..count {
            let source = loaded[first + j * 16 / count + i / count];
            let element = source >> (i % count * bits) & ((1 << bits) - 1);
            value |= element << (j * bits);
        }
        for k in 0..dwords {
            cx.wave.vgpr[usize::from(dst.first) + k][lane] = (value >> (32 * k)) as u32;
        }
    }
    cx.group.spare.push(places);
    finish(op, dst, cx);
    Ok(())
}
