//! Loads and stores between registers and wherever the pointers of [`Places`] lead.
use super::address::{Places, lanes, operation, places};
use super::{Kind, MemoryOp, Registers, Width};
use crate::exec::Cx;
use crate::fault::{Operation, Trap};
use crate::inst::{Half, Inst};
use crate::wave::{LANES, Wave};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Loads into vector registers. Lanes that buffer bounds dropped get zero.
pub fn load(op: &MemoryOp, width: Width, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let offset = i64::from(inst.modifiers.offset);
    let places = places(op, offset, width.bytes.into(), Operation::Read, inst, cx)?;
    let dst = op.dst.expect("loads have a destination");
    match width.bytes {
        1 | 2 => narrow(&places, width, dst, cx.wave),
        bytes => dwords(&places, usize::from(bytes / 4), dst.first.into(), cx.wave),
    }
    cx.group.spare.push(places);
    finish(op, dst, cx);
    Ok(())
}

/// Notes the destination as written and as outstanding.
pub fn finish(op: &MemoryOp, dst: Registers, cx: &mut Cx) {
    let exec = cx.wave.exec();
    for row in dst.first..dst.first + u16::from(dst.count) {
        cx.wave.written[usize::from(row)] |= exec;
    }
    cx.side.issue_load(op, dst, cx.group);
}

fn dwords(places: &Places, count: usize, first: usize, wave: &mut Wave) {
    let exec = wave.exec();
    if places.partial.is_some() || places.lanes != exec {
        return partly(places, count, first, wave);
    }
    match count {
        1 => whole::<1>(places, first, wave),
        2 => whole::<2>(places, first, wave),
        3 => whole::<3>(places, first, wave),
        _ => whole::<4>(places, first, wave),
    }
}

fn whole<const N: usize>(places: &Places, first: usize, wave: &mut Wave) {
    let rows: &mut [_; N] = (&mut wave.vgpr[first..first + N]).try_into().expect("N rows");
    for lane in lanes(places.lanes) {
        // SAFETY: `places` checked N dwords at the pointer of every lane.
        let value = unsafe { words::<N>(places.at[lane]) };
        for k in 0..N {
            rows[k][lane] = value[k];
        }
    }
}

/// Dwords of memory, which may be unaligned. As on a chip, aligned pairs are read at once: another
/// device may write them meanwhile.
///
/// # Safety
/// They are readable.
unsafe fn words<const N: usize>(at: u64) -> [u32; N] {
    if !N.is_multiple_of(2) || !at.is_multiple_of(8) {
        // SAFETY: the caller's.
        return unsafe { (at as *const [u32; N]).read_unaligned() };
    }
    let mut all = [0; N];
    for (pair, to) in all.chunks_exact_mut(2).enumerate() {
        // SAFETY: the caller's; an aligned place of an atomic number.
        let both = unsafe { &*((at as *const AtomicU64).add(pair)) }.load(Relaxed);
        to.copy_from_slice(&[both as u32, (both >> 32) as u32]);
    }
    all
}

/// A load with lanes or dwords outside a buffer.
fn partly(places: &Places, count: usize, first: usize, wave: &mut Wave) {
    for lane in lanes(wave.exec()) {
        let inside = if places.lanes >> lane & 1 == 0 { 0 } else { room(places, lane, count) };
        for k in 0..count {
            let at = (places.at[lane] + 4 * k as u64) as *const u32;
            // SAFETY: the first `inside` dwords were checked.
            wave.vgpr[first + k][lane] = if k < inside { unsafe { at.read_unaligned() } } else { 0 };
        }
    }
}

fn room(places: &Places, lane: usize, count: usize) -> usize {
    places.partial.as_ref().map_or(count, |p| count.min(p[lane].into()))
}

fn narrow(places: &Places, width: Width, dst: Registers, wave: &mut Wave) {
    let keeps = !wave.isa.family.is_cdna();
    let half = if dst.half == Half::Whole { width.half } else { dst.half };
    for lane in lanes(wave.exec()) {
        let inside = places.lanes >> lane & 1 != 0;
        // SAFETY: one or two bytes were checked at the pointers of these lanes.
        let value = if inside { unsafe { fetch(places.at[lane], width) } } else { 0 };
        let register = &mut wave.vgpr[usize::from(dst.first)][lane];
        // Where memory has error correction (CDNA), 16-bit loads clear the other half.
        let old = if keeps { *register } else { 0 };
        *register = match half {
            Half::Whole => value,
            Half::Low => old & 0xffff_0000 | value & 0xffff,
            Half::High => old & 0xffff | value << 16,
        };
    }
}

/// One or two bytes, extended to 32 bits.
///
/// # Safety
/// They are readable.
unsafe fn fetch(at: u64, width: Width) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        match (width.bytes, width.signed) {
            (1, false) => u32::from((at as *const u8).read()),
            (1, true) => i32::from((at as *const i8).read()) as u32,
            (_, false) => u32::from((at as *const u16).read_unaligned()),
            (_, true) => i32::from((at as *const i16).read_unaligned()) as u32,
        }
    }
}

/// Stores vector registers. Lanes that buffer bounds dropped store nothing.
pub fn store(op: &MemoryOp, width: Width, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let offset = i64::from(inst.modifiers.offset);
    let places = places(op, offset, width.bytes.into(), Operation::Write, inst, cx)?;
    let data = op.data.expect("stores have data");
    put(&places, width, data, cx.wave)?;
    cx.group.spare.push(places);
    cx.side.issue_store(op, cx.group);
    Ok(())
}

fn put(places: &Places, width: Width, data: Registers, wave: &Wave) -> Result<(), Box<Trap>> {
    match &places.rewrite {
        None => {
            write(places, width, data, wave);
            Ok(())
        }
        Some(kind) => {
            let before = contents(places, width);
            write(places, width, data, wave);
            let after = contents(places, width);
            let changed = lanes(places.rewrites).find(|lane| before[*lane] != after[*lane]);
            changed.map_or(Ok(()), |lane| Err(Trap::lane(kind.clone(), lane as u32)))
        }
    }
}

/// The contents of the places where lanes store and another wave stored, too.
fn contents(places: &Places, width: Width) -> [[u8; 16]; LANES] {
    let mut all = [[0; 16]; LANES];
    for lane in lanes(places.rewrites) {
        let bytes = usize::from(width.bytes);
        // SAFETY: the width was checked at the pointer of every lane.
        unsafe { std::ptr::copy_nonoverlapping(places.at[lane] as *const u8, all[lane].as_mut_ptr(), bytes) };
    }
    all
}

fn write(places: &Places, width: Width, data: Registers, wave: &Wave) {
    let first = usize::from(data.first);
    let high = data.half == Half::High || width.half == Half::High;
    for lane in lanes(places.lanes) {
        let low = wave.vgpr[first][lane];
        let narrow = if high { low >> 16 } else { low };
        let at = places.at[lane];
        // SAFETY: the width was checked at the pointer of every lane.
        unsafe {
            match width.bytes {
                1 => (at as *mut u8).write(narrow as u8),
                2 => (at as *mut u16).write_unaligned(narrow as u16),
                bytes => put_words(at, room(places, lane, usize::from(bytes / 4)), |k| wave.vgpr[first + k][lane]),
            }
        }
    }
}

/// Writes dwords to memory, which may be unaligned. As on a chip, aligned pairs are written at
/// once: another device may read them meanwhile.
///
/// # Safety
/// There is room for them.
unsafe fn put_words(at: u64, count: usize, word: impl Fn(usize) -> u32) {
    let pairs = if at.is_multiple_of(8) { count / 2 } else { 0 };
    for pair in 0..pairs {
        let both = u64::from(word(2 * pair)) | u64::from(word(2 * pair + 1)) << 32;
        // SAFETY: the caller's; an aligned place of an atomic number.
        unsafe { &*((at as *const AtomicU64).add(pair)) }.store(both, Relaxed);
    }
    for k in 2 * pairs..count {
        // SAFETY: the caller's.
        unsafe { ((at + 4 * k as u64) as *mut u32).write_unaligned(word(k)) };
    }
}

/// `ds_read2`: two values at two distances.
pub fn load2(op: &MemoryOp, unit: u32, bytes: u8, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let dst = op.dst.expect("loads have a destination");
    let each = usize::from(bytes / 4);
    let offsets = [inst.modifiers.offset, inst.modifiers.offset1].map(|o| i64::from(o) * i64::from(unit));
    let kind = operation(op.kind);
    let first = places(op, offsets[0], bytes.into(), kind, inst, cx)?;
    let second = places(op, offsets[1], bytes.into(), kind, inst, cx)?;
    // The destination may hold the address: both were computed before.
    dwords(&first, each, dst.first.into(), cx.wave);
    dwords(&second, each, usize::from(dst.first) + each, cx.wave);
    cx.group.spare.extend([first, second]);
    finish(op, dst, cx);
    Ok(())
}

/// `ds_write2`.
pub fn store2(op: &MemoryOp, unit: u32, bytes: u8, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let width = Width { bytes, signed: false, half: Half::Whole };
    let both = [(inst.modifiers.offset, op.data), (inst.modifiers.offset1, op.data2)];
    for (offset, data) in both {
        let offset = i64::from(offset) * i64::from(unit);
        let places = places(op, offset, bytes.into(), operation(op.kind), inst, cx)?;
        put(&places, width, data.expect("two-address stores have two values"), cx.wave)?;
        cx.group.spare.push(places);
    }
    cx.side.issue_store(op, cx.group);
    Ok(())
}

/// Loads from memory to LDS: lane after lane from the address in `m0` on. The instruction's offset
/// counts on both sides.
pub fn to_lds(op: &MemoryOp, width: Width, inst: &Inst, cx: &mut Cx) -> Result<(), Box<Trap>> {
    let offset = i64::from(inst.modifiers.offset);
    let bytes = u32::from(width.bytes);
    let places = places(op, offset, bytes, Operation::Read, inst, cx)?;
    cx.side.to_lds_issued += 1;
    // Narrow values take a dword each.
    let each = bytes.max(4);
    let m0 = cx.wave.sgpr[usize::from(crate::inst::scalar::M0)];
    let base = m0.wrapping_add(inst.modifiers.offset as u32);
    for lane in lanes(cx.wave.exec()) {
        let address = base.wrapping_add(lane as u32 * each);
        let checks = cx.group.checks;
        let at = cx.group.lds.fill(address, each, cx.side, &checks).map_err(|kind| Trap::lane(kind, lane as u32))?;
        let inside = places.lanes >> lane & 1 != 0;
        // SAFETY: the source was checked for the lanes inside, the place in LDS by `fill`.
        unsafe {
            match (inside, bytes) {
                (false, _) => (at as *mut u8).write_bytes(0, each as usize),
                (true, 1 | 2) => (at as *mut u32).write_unaligned(fetch(places.at[lane], width)),
                (true, _) => {
                    let whole = room(&places, lane, bytes as usize / 4) * 4;
                    std::ptr::copy_nonoverlapping(places.at[lane] as *const u8, at as *mut u8, whole);
                    (at as *mut u8).add(whole).write_bytes(0, bytes as usize - whole);
                }
            }
        }
    }
    cx.group.spare.push(places);
    cx.side.issue_to_lds(cx.group);
    Ok(())
}

impl Kind {
    /// Whether it leaves something in registers that must be waited for.
    pub fn is_store(self) -> bool {
        matches!(self, Kind::Store(_) | Kind::Store2 { .. })
    }
}
