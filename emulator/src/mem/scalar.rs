//! Scalar loads, stores and atomics.
use super::{AtomicOp, Kind, MemoryOp, Space, Width};
use crate::exec::Cx;
use crate::exec::salu::src;
use crate::fault::{FaultKind, Operation, Trap};
use crate::inst::Inst;
use crate::wave::Wave;

pub fn run(op: &MemoryOp, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    match op.kind {
        Kind::Load(width) => load(op, width, inst, cx),
        Kind::Store(width) => {
            let bytes = width.bytes.into();
            let Some(address) = place(op, bytes, Operation::Write, inst, cx)? else { return Ok(()) };
            let data = op.data.expect("stores have data");
            for k in 0..u64::from(bytes / 4) {
                let value = cx.wave.sgpr[usize::from(data.first) + k as usize];
                // SAFETY: `place` checked the bytes.
                unsafe { ((address + 4 * k) as *mut u32).write(value) };
            }
            cx.side.issue_scalar_write(op, cx.group);
            Ok(())
        }
        Kind::Atomic(atomic) => change(op, atomic, inst, cx),
        _ => unreachable!("scalar memory is loaded, stored and changed"),
    }
}

fn change(op: &MemoryOp, atomic: AtomicOp, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let bytes = atomic.bytes();
    let Some(address) = place(op, bytes, Operation::Atomic, inst, cx)? else { return Ok(()) };
    let data = op.data.expect("atomics have data").first;
    let value = |at: u16| match bytes {
        8 => cx.wave.scalar64(at as u8),
        _ => cx.wave.sgpr[usize::from(at)].into(),
    };
    let (new, compare) = (value(data), if atomic.compares() { value(data + bytes as u16 / 4) } else { 0 });
    // SAFETY: `place` checked the bytes and that they are aligned.
    let old = unsafe { atomic.exchange(address, new, compare) };
    if let Some(dst) = op.dst {
        (0..bytes / 4).for_each(|k| cx.wave.set_scalar(dst.first as u8 + k as u8, (old >> (32 * k)) as u32));
    }
    cx.side.issue_scalar_write(op, cx.group);
    Ok(())
}

/// The address of a store or an atomic; nothing if it is outside of its buffer.
fn place(op: &MemoryOp, bytes: u32, operation: Operation, inst: &Inst, cx: &mut Cx) -> Result<Option<u64>, Box<Trap>> {
    let base = op.address.scalar.expect("scalar memory has a base");
    if cx.group.checks.uninitialised {
        let data = op.data.expect("what is written is somewhere");
        cx.group.scalars_written(cx.wave, base, if op.space == Space::Scalar { 2 } else { 4 })?;
        cx.group.scalars_written(cx.wave, data.first as u8, data.count)?;
    }
    let offset = i64::from(inst.modifiers.offset) + distance(inst, cx.wave);
    let (address, room) = match op.space {
        Space::Scalar => (cx.wave.scalar64(base).wrapping_add_signed(offset), u64::MAX),
        _ => buffer(cx.wave, base, offset),
    };
    if address % u64::from(bytes.min(8)) != 0 && (operation == Operation::Atomic || address % 4 != 0) {
        return Err(Trap::wave(FaultKind::Misaligned { operation, address, bytes }));
    }
    if room < bytes.into() {
        return Ok(None);
    }
    if !cx.group.memory.allows(address, bytes.into(), operation) {
        return Err(Trap::wave(cx.group.memory.fault(address, bytes, operation)));
    }
    cx.group.traffic.count(operation, bytes.into());
    Ok(Some(address))
}

fn load(op: &MemoryOp, width: Width, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let base = op.address.scalar.expect("scalar loads have a base");
    let count = if op.space == Space::Scalar { 2 } else { 4 };
    if cx.group.checks.uninitialised {
        cx.group.scalars_written(cx.wave, base, count)?;
    }
    let offset = i64::from(inst.modifiers.offset) + distance(inst, cx.wave);
    let (address, room) = match op.space {
        Space::Scalar => (cx.wave.scalar64(base).wrapping_add_signed(offset), u64::MAX),
        _ => buffer(cx.wave, base, offset),
    };
    let bytes = u32::from(width.bytes);
    let inside = room.min(bytes.into()) as u32;
    if address % u64::from(bytes.min(4)) != 0 {
        return Err(Trap::wave(FaultKind::Misaligned { operation: Operation::Read, address, bytes }));
    }
    if inside > 0 && !cx.group.memory.allows(address, inside.into(), Operation::Read) {
        return Err(Trap::wave(cx.group.memory.fault(address, inside, Operation::Read)));
    }
    if let (Some(others), true) = (&cx.group.others, inside > 0) {
        others.read(address, inside.into(), false, cx.side).map_err(Trap::wave)?;
    }
    cx.group.traffic.count(Operation::Read, inside.into());
    fill(op, width.signed, address, bytes, inside, cx.wave);
    cx.side.issue_scalar(op, cx.group);
    Ok(())
}

/// The offset operand: a register or an immediate, which may be negative.
fn distance(inst: &Inst, wave: &Wave) -> i64 {
    let source = inst.operands[2];
    let value = match source.operand {
        crate::inst::Operand::Int(v) => v,
        other => i64::from(src(wave, other)),
    };
    if source.neg { -value } else { value }
}

/// Address and the bytes that are left; buffer loads outside give zero.
fn buffer(wave: &Wave, first: u8, offset: i64) -> (u64, u64) {
    let base = wave.scalar64(first) & 0xffff_ffff_ffff;
    let stride = u64::from(wave.sgpr[usize::from(first) + 1] >> 16 & 0x3fff).max(1);
    let size = u64::from(wave.sgpr[usize::from(first) + 2]) * stride;
    (base.wrapping_add_signed(offset), size.saturating_sub(offset as u64))
}

fn fill(op: &MemoryOp, signed: bool, address: u64, bytes: u32, inside: u32, wave: &mut Wave) {
    let dst = op.dst.expect("loads have a destination");
    for k in 0..u16::from(dst.count) {
        let at = address + 4 * u64::from(k);
        let here = inside.saturating_sub(u32::from(k) * 4);
        // SAFETY: `inside` bytes from `address` were checked.
        let value = unsafe {
            match (bytes, signed) {
                _ if here == 0 => 0,
                (1, false) => u32::from((at as *const u8).read()),
                (1, true) => i32::from((at as *const i8).read()) as u32,
                (2, false) => u32::from((at as *const u16).read()),
                (2, true) => i32::from((at as *const i16).read()) as u32,
                _ if here < 4 => 0,
                _ => (at as *const u32).read(),
            }
        };
        let index = (dst.first + k) as u8;
        wave.set_scalar(index, value);
        wave.scalar_written |= 1 << index;
    }
}
