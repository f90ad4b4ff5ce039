//! Buffer addresses: a resource of four scalar registers, an index, offsets, and bounds that drop
//! accesses outside.
use super::address::{Places, bounds, lanes};
use super::{MemoryOp, Registers};
use crate::exec::salu::src;
use crate::exec::{Cx, Group};
use crate::fault::{FaultKind, Operation, Trap};
use crate::inst::Inst;
use crate::wave::{LANES, Row, Wave};

/// The fields of a resource that matter. Source: CDNA3 and RDNA3 guides, "Buffer resource
/// descriptor".
struct Resource {
    base: u64,
    stride: u32,
    records: u32,
    swizzled: bool,
    add_lane: bool,
}

impl Resource {
    fn read(wave: &Wave, first: u8) -> Resource {
        let [w0, w1, w2, w3] = std::array::from_fn(|k| wave.sgpr[usize::from(first) + k]);
        // Before gfx10, bit 62 is another setting of caches.
        let swizzle = if wave.isa.family.is_cdna() { w1 >> 31 } else { w1 >> 30 };
        Resource {
            base: u64::from(w0) | u64::from(w1 & 0xffff) << 32,
            stride: w1 >> 16 & 0x3fff,
            records: w2,
            swizzled: swizzle != 0,
            add_lane: w3 >> 23 & 1 != 0,
        }
    }
}

/// Fills in the pointers; returns the lanes that access memory. Lanes outside the buffer leave
/// `places.lanes`; lanes that are half outside are noted in `partial`.
pub fn places(
    op: &MemoryOp,
    bytes: u32,
    operation: Operation,
    inst: &Inst,
    cx: &mut Cx,
    places: &mut Places,
) -> Result<u64, Box<Trap>> {
    let resource = Resource::read(cx.wave, op.address.scalar.unwrap_or(0));
    let scalar = src(cx.wave, op.address.offset);
    if resource.swizzled && resource.add_lane {
        private(op, scalar, bytes, operation, inst, cx, places)?;
        return Ok(0);
    }
    if resource.swizzled {
        return Err(Trap::wave(FaultKind::Unsupported("swizzled buffer addresses".into())));
    }
    let (index, offset) = (part(op, inst, cx.wave, true), part(op, inst, cx.wave, false));
    let fixed = inst.modifiers.offset as u32;
    for lane in lanes(places.lanes) {
        let index = index.map_or(0, |row| row[lane]);
        let inner = u64::from(offset.map_or(0, |row| row[lane])) + u64::from(fixed);
        let offset = u64::from(index) * u64::from(resource.stride) + inner + u64::from(scalar);
        places.at[lane] = resource.base.wrapping_add(offset);
        let records = u64::from(resource.records);
        let room = match inst.modifiers.idxen && resource.stride != 0 {
            true => {
                if u64::from(index) < records {
                    u64::from(bytes)
                } else {
                    0
                }
            }
            false => records.saturating_sub(offset),
        };
        limit(places, lane, room, bytes);
    }
    bounds_of(places, bytes, operation, cx.group)?;
    Ok(places.lanes)
}

/// Cuts a lane's access to the `room` bytes that are left of the buffer.
fn limit(places: &mut Places, lane: usize, room: u64, bytes: u32) {
    if room >= u64::from(bytes) {
        return;
    }
    let dwords = if bytes < 4 { 0 } else { (room / 4) as u8 };
    if dwords == 0 {
        places.lanes &= !(1 << lane);
    }
    let whole = (bytes / 4).max(1) as u8;
    places.partial.get_or_insert_with(|| Box::new([whole; LANES]))[lane] = dwords;
}

fn bounds_of(places: &Places, bytes: u32, operation: Operation, group: &Group) -> Result<(), Box<Trap>> {
    let Some(partial) = &places.partial else { return bounds(places, places.lanes, bytes, operation, group) };
    for lane in lanes(places.lanes) {
        let bytes = bytes.min(u32::from(partial[lane]) * 4);
        bounds(places, 1 << lane, bytes, operation, group)?;
    }
    Ok(())
}

/// The row of the index or of the offset, if the instruction has it.
fn part<'a>(op: &MemoryOp, inst: &Inst, wave: &'a Wave, index: bool) -> Option<&'a Row> {
    let Registers { first, .. } = op.address.vector?;
    let m = &inst.modifiers;
    match (index, m.idxen, m.offen) {
        (true, true, _) | (false, false, true) => Some(&wave.vgpr[usize::from(first)]),
        (false, true, true) => Some(&wave.vgpr[usize::from(first) + 1]),
        _ => None,
    }
}

/// The private segment of gfx90a: lanes are interleaved in hardware, so that a scalar offset counts
/// for all of them together.
fn private(
    op: &MemoryOp,
    scalar: u32,
    bytes: u32,
    operation: Operation,
    inst: &Inst,
    cx: &mut Cx,
    places: &mut Places,
) -> Result<(), Box<Trap>> {
    let Cx { wave, side, .. } = cx;
    let offset = part(op, inst, wave, false);
    for lane in lanes(places.lanes) {
        let vector = offset.map_or(0, |row| row[lane]);
        let at = vector.wrapping_add(inst.modifiers.offset as u32).wrapping_add(scalar / wave.isa.lanes);
        places.at[lane] = side.scratch.place(lane, at, bytes, operation)?;
    }
    Ok(())
}
