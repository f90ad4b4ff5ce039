//! From operands to one host pointer for each lane, with the checks of bounds.
use super::{Kind, MemoryOp, Space, buffer, flat};
use crate::exec::pending::vector_name;
use crate::exec::{Cx, Group, Side};
use crate::fault::{FaultKind, Operation, Trap};
use crate::inst::Inst;
use crate::wave::{LANES, Wave};

/// The addresses of a memory access by lane.
pub struct Places {
    /// Host addresses; only those of `lanes` mean something.
    pub at: [u64; LANES],
    pub lanes: u64,
    /// Lanes with an address in LDS, and the byte in LDS that `at` means.
    pub in_lds: u64,
    pub lds: [u32; LANES],
    /// Dwords that buffer bounds let through, if not all: lanes outside `lanes` have none.
    pub partial: Option<Box<[u8; LANES]>>,
    /// Lanes that store where another wave stored, and the fault that it is if they change
    /// anything.
    pub rewrites: u64,
    pub rewrite: Option<FaultKind>,
}

impl Default for Places {
    fn default() -> Places {
        Places { at: [0; LANES], lanes: 0, in_lds: 0, lds: [0; LANES], partial: None, rewrites: 0, rewrite: None }
    }
}

impl Places {
    /// Bytes of an access of a lane that buffer bounds let through.
    pub fn bytes(&self, lane: usize, bytes: u32) -> u64 {
        let room = self.partial.as_ref().map_or(u32::MAX, |p| u32::from(p[lane]) * 4);
        bytes.min(room).into()
    }

    fn clear(&mut self, active: u64) {
        (self.lanes, self.in_lds, self.rewrites) = (active, 0, 0);
        (self.partial, self.rewrite) = (None, None);
    }
}

/// Lanes of a mask, in order.
#[inline(always)]
pub fn lanes(mut mask: u64) -> impl Iterator<Item = usize> + Clone {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (lane < 64).then(|| {
            mask &= mask - 1;
            lane as usize
        })
    })
}

/// The pointers of an access of `bytes` bytes at `offset` from the address operands.
///
/// They are taken from [`Group::spare`] and returned to it after the access.
pub fn places(
    op: &MemoryOp,
    offset: i64,
    bytes: u32,
    operation: Operation,
    inst: &Inst,
    cx: &mut Cx,
) -> Result<Box<Places>, Box<Trap>> {
    let mut places = cx.group.spare.pop().unwrap_or_default();
    places.clear(cx.wave.exec());
    if cx.group.checks.uninitialised {
        initialised(op, cx.wave, cx.group)?;
    }
    let in_memory = match op.space {
        Space::Lds => {
            local(op, offset, cx.wave, &mut places);
            0
        }
        Space::Global => {
            global(op, offset, cx.wave, &mut places);
            bounds(&places, places.lanes, bytes, operation, cx.group)?;
            places.lanes
        }
        Space::Flat => {
            global(op, offset, cx.wave, &mut places);
            let host = apertures(&mut places, bytes, operation, cx.side)?;
            bounds(&places, host, bytes, operation, cx.group)?;
            host
        }
        Space::Scratch => {
            scratch(op, offset, bytes, operation, cx, &mut places)?;
            0
        }
        _ => buffer::places(op, bytes, operation, inst, cx, &mut places)?,
    };
    if cx.group.memory.has_shared() && !inst.modifiers.reaches_devices(cx.side.family, operation) {
        let shared = lanes(in_memory).find(|lane| cx.group.memory.is_shared(places.at[*lane]));
        if let Some(lane) = shared {
            return Err(Trap::lane(FaultKind::NotShared { operation, address: places.at[lane] }, lane as u32));
        }
    }
    if let Some(others) = &cx.group.others {
        others.access(&places, in_memory, bytes, operation, inst, cx.side)?;
    }
    cx.group.traffic.count(operation, u64::from(bytes) * u64::from(in_memory.count_ones()));
    if let Some(recorder) = &mut cx.group.recorder {
        recorder.access(&places, in_memory, bytes);
    }
    if places.in_lds != 0 {
        cx.group.lds.access(&mut places, bytes, operation, cx.side, &cx.group.checks)?;
        if cx.group.conflicts {
            cx.group.traffic.lds_conflicts += super::lds::conflicts(&places, bytes);
        }
    }
    Ok(places)
}

/// Addresses in LDS.
fn local(op: &MemoryOp, offset: i64, wave: &Wave, places: &mut Places) {
    let rows = &wave.vgpr[usize::from(op.address.vector.map_or(0, |r| r.first))];
    for lane in lanes(places.lanes) {
        places.lds[lane] = rows[lane].wrapping_add(offset as u32);
    }
    places.in_lds = places.lanes;
}

/// Address registers of active lanes, and those of stored values, must be initialised.
fn initialised(op: &MemoryOp, wave: &Wave, group: &Group) -> Result<(), Box<Trap>> {
    let exec = wave.exec();
    let parts = [op.address.vector, op.data, op.data2];
    for registers in parts.into_iter().flatten() {
        for row in registers.first..registers.first + u16::from(registers.count) {
            let missing = exec & !wave.written[usize::from(row)];
            if missing != 0 {
                let kind = FaultKind::Uninitialised { register: vector_name(row) };
                return Err(Trap::lane(kind, missing.trailing_zeros()));
            }
        }
    }
    if let (Some(first), false) = (op.address.scalar, op.space == Space::Lds) {
        let count = if op.space == Space::Buffer { 4 } else { 2 };
        let count = if op.space == Space::Scratch { 1 } else { count };
        group.scalars_written(wave, first, count)?;
    }
    Ok(())
}

fn global(op: &MemoryOp, offset: i64, wave: &Wave, places: &mut Places) {
    let base = op.address.scalar.map(|s| wave.scalar64(s).wrapping_add_signed(offset));
    let Some(vector) = op.address.vector else { return };
    let low = &wave.vgpr[usize::from(vector.first)];
    match base {
        Some(base) => {
            for (at, low) in places.at.iter_mut().zip(low) {
                *at = base.wrapping_add(u64::from(*low));
            }
        }
        None => {
            let high = &wave.vgpr[usize::from(vector.first) + 1];
            for lane in 0..LANES {
                let address = u64::from(low[lane]) | u64::from(high[lane]) << 32;
                places.at[lane] = address.wrapping_add_signed(offset);
            }
        }
    }
}

/// All lanes at once if they lie in one range, else lane by lane.
pub fn bounds(places: &Places, active: u64, bytes: u32, operation: Operation, group: &Group) -> Result<(), Box<Trap>> {
    if active == 0 {
        return Ok(());
    }
    let (mut low, mut high) = (u64::MAX, 0);
    for lane in lanes(active) {
        low = low.min(places.at[lane]);
        high = high.max(places.at[lane]);
    }
    let span = (high - low).saturating_add(u64::from(bytes));
    if group.memory.allows(low, span, operation) {
        return Ok(());
    }
    match lanes(active).find(|lane| !group.memory.allows(places.at[*lane], bytes.into(), operation)) {
        Some(lane) => Err(Trap::lane(group.memory.fault(places.at[lane], bytes, operation), lane as u32)),
        None => Ok(()),
    }
}

/// Sorts flat addresses: LDS and scratch lanes get their pointers; the lanes that remain are
/// returned.
fn apertures(places: &mut Places, bytes: u32, operation: Operation, side: &mut Side) -> Result<u64, Box<Trap>> {
    let mut host = places.lanes;
    for lane in lanes(places.lanes) {
        let address = places.at[lane];
        match address & !0xffff_ffff {
            flat::SHARED => {
                places.lds[lane] = address as u32;
                places.in_lds |= 1 << lane;
            }
            flat::PRIVATE => places.at[lane] = side.scratch.place(lane, address as u32, bytes, operation)?,
            _ => continue,
        }
        host &= !(1 << lane);
    }
    Ok(host)
}

fn scratch(
    op: &MemoryOp,
    offset: i64,
    bytes: u32,
    operation: Operation,
    cx: &mut Cx,
    places: &mut Places,
) -> Result<(), Box<Trap>> {
    let Cx { wave, side, .. } = cx;
    let base = op.address.scalar.map_or(0, |s| wave.sgpr[usize::from(s)]).wrapping_add(offset as u32);
    for lane in lanes(places.lanes) {
        let vector = op.address.vector.map_or(0, |r| wave.vgpr[usize::from(r.first)][lane]);
        places.at[lane] = side.scratch.place(lane, base.wrapping_add(vector), bytes, operation)?;
    }
    Ok(())
}

/// Bytes and operation of a kind, as the checks see it.
pub fn operation(kind: Kind) -> Operation {
    match kind {
        Kind::Store(_) | Kind::Store2 { .. } => Operation::Write,
        Kind::Atomic(_) => Operation::Atomic,
        _ => Operation::Read,
    }
}
