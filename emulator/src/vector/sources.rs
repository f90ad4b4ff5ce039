//! Sources of vector instructions: registers and constants as arrays of lanes, with every modifier
//! applied.
use super::flags;
use super::kinds::{Class, Wide};
use crate::inst::{Aperture, Dpp, DppControl, Half, Inst, Operand, Select};
use crate::mem::flat;
use crate::num;
use crate::wave::{LANES, Row, Wave};

/// A source of 32 bits or fewer. Of 16-bit classes only the lower half of a cell counts.
#[inline(never)]
pub fn fetch32(wave: &Wave, inst: &Inst, position: usize, class: Class) -> Row {
    let mut row = read(wave, inst.operands[position].operand);
    if flags::works_on_source(inst, position) {
        adjust32(wave, inst, position, class, &mut row);
    }
    match class {
        Class::F32 if !wave.mode.denormals32_in => flush32(&mut row),
        Class::F16 | Class::PkF16 if !wave.mode.denormals16_64_in => flush16(&mut row),
        Class::Mix => mix(wave, inst, position, &mut row),
        _ => {}
    }
    row
}

/// A source of 64 bits.
#[inline(never)]
pub fn fetch64(wave: &Wave, inst: &Inst, position: usize, class: Class) -> Wide {
    let operand = inst.operands[position].operand;
    let (low, high) = match operand {
        Operand::Vector { row, count: 1, .. } => (wave.vgpr[usize::from(row)], [0; LANES]),
        Operand::Vector { row, .. } => (wave.vgpr[usize::from(row)], wave.vgpr[usize::from(row) + 1]),
        Operand::Const(v) if matches!(class, Class::PkF32 | Class::PkM32) => ([v as u32; LANES], [v as u32; LANES]),
        Operand::Const(v) => ([v as u32; LANES], [(v >> 32) as u32; LANES]),
        Operand::Scalar { index, count } if count > 1 => {
            ([wave.sgpr[usize::from(index)]; LANES], [wave.sgpr[usize::from(index) + 1]; LANES])
        }
        // Apertures are the upper halves of addresses.
        Operand::Aperture(_) => ([0; LANES], read(wave, operand)),
        other => (read(wave, other), [0; LANES]),
    };
    let mut wide = [0; LANES];
    for lane in 0..LANES {
        wide[lane] = u64::from(low[lane]) | u64::from(high[lane]) << 32;
    }
    if flags::works_on_source(inst, position) {
        adjust64(wave, inst, position, class, &mut wide);
    }
    match class {
        Class::F64 if !wave.mode.denormals16_64_in => flush64(&mut wide),
        Class::PkF32 if !wave.mode.denormals32_in => flush_pairs(&mut wide),
        _ => {}
    }
    wide
}

/// One register or constant in all lanes.
pub fn read(wave: &Wave, operand: Operand) -> Row {
    match operand {
        Operand::Vector { row, .. } => wave.vgpr[usize::from(row)],
        other => [scalar(wave, other); LANES],
    }
}

/// An operand that is the same for all lanes; a vector register's value in lane 0.
pub fn scalar(wave: &Wave, operand: Operand) -> u32 {
    match operand {
        Operand::Vector { row, .. } => wave.vgpr[usize::from(row)][0],
        Operand::Scalar { index, .. } => wave.sgpr[usize::from(index)],
        Operand::Const(v) => v as u32,
        Operand::Scc => wave.scc.into(),
        Operand::Aperture(a) => aperture(a),
        _ => 0,
    }
}

/// The upper 32 bits of the flat addresses of LDS and of scratch.
fn aperture(aperture: Aperture) -> u32 {
    match aperture {
        Aperture::SharedBase | Aperture::SharedLimit => (flat::SHARED >> 32) as u32,
        Aperture::PrivateBase | Aperture::PrivateLimit => (flat::PRIVATE >> 32) as u32,
    }
}

fn adjust32(wave: &Wave, inst: &Inst, position: usize, class: Class, row: &mut Row) {
    let source = &inst.operands[position];
    let k = flags::source_index(inst, position);
    if let Some(dpp) = inst.modifiers.dpp.filter(|_| k == 0) {
        *row = moved(wave, &dpp, row);
    }
    if let Some(sdwa) = inst.modifiers.sdwa.filter(|_| k < 2) {
        select(row, sdwa.src[k], source.sext);
    }
    match class {
        Class::B16 | Class::M16 | Class::F16 => {
            if takes_high(inst, source.operand, k) {
                row.iter_mut().for_each(|x| *x >>= 16);
            }
            signs(row, source.abs, source.neg, 0x8000);
        }
        Class::Pk16 | Class::PkF16 | Class::PkBf16 => halves(inst, k, class, row),
        Class::Mix => {}
        _ => signs(row, source.abs, source.neg, 0x8000_0000),
    }
}

/// Whether a 16-bit source is the upper half of its register.
fn takes_high(inst: &Inst, operand: Operand, k: usize) -> bool {
    let by_name = matches!(operand, Operand::Vector { half: Half::High, .. });
    let by_modifier = inst.modifiers.op_sel.is_some_and(|s| s >> k & 1 == 1);
    let named = matches!(operand, Operand::Vector { half: Half::High | Half::Low, .. });
    by_name || by_modifier && !named
}

fn signs(row: &mut Row, abs: bool, neg: bool, bit: u32) {
    if abs {
        row.iter_mut().for_each(|x| *x &= !bit);
    }
    if neg {
        row.iter_mut().for_each(|x| *x ^= bit);
    }
}

/// `op_sel`, `op_sel_hi`, `neg_lo` and `neg_hi` of packed 16-bit sources.
fn halves(inst: &Inst, k: usize, class: Class, row: &mut Row) {
    let m = &inst.modifiers;
    let low = (m.op_sel.unwrap_or(0) >> k & 1) * 16;
    let high = (m.op_sel_hi.unwrap_or(7) >> k & 1) * 16;
    let float = class != Class::Pk16;
    let flip = if float { u32::from(m.neg_lo >> k & 1) << 15 | u32::from(m.neg_hi >> k & 1) << 31 } else { 0 };
    row.iter_mut().for_each(|x| *x = ((*x >> low & 0xffff) | (*x >> high & 0xffff) << 16) ^ flip);
}

/// `v_fma_mix` and its like: `op_sel_hi` makes the source one f16, chosen by `op_sel`.
fn mix(wave: &Wave, inst: &Inst, position: usize, row: &mut Row) {
    let k = flags::source_index(inst, position);
    let m = &inst.modifiers;
    if m.op_sel_hi.unwrap_or(0) >> k & 1 == 1 {
        let shift = (m.op_sel.unwrap_or(0) >> k & 1) * 16;
        row.iter_mut().for_each(|x| *x = *x >> shift & 0xffff);
        if !wave.mode.denormals16_64_in {
            flush16(row);
        }
        row.iter_mut().for_each(|x| *x = num::f16_to_f32(*x as u16).to_bits());
    } else if !wave.mode.denormals32_in {
        flush32(row);
    }
    let source = &inst.operands[position];
    signs(row, source.abs, source.neg, 0x8000_0000);
}

fn adjust64(wave: &Wave, inst: &Inst, position: usize, class: Class, wide: &mut Wide) {
    let source = &inst.operands[position];
    let k = flags::source_index(inst, position);
    let m = &inst.modifiers;
    if let Some(dpp) = m.dpp.filter(|_| k == 0) {
        let map = DppMap::new(wave, &dpp);
        let old = *wide;
        for lane in 0..LANES {
            wide[lane] = if map.valid >> lane & 1 == 1 { old[usize::from(map.from[lane])] } else { 0 };
        }
    }
    if matches!(class, Class::PkF32 | Class::PkM32) {
        let low = (m.op_sel.unwrap_or(0) >> k & 1) * 32;
        let high = (m.op_sel_hi.unwrap_or(7) >> k & 1) * 32;
        let flip = u64::from(m.neg_lo >> k & 1) << 31 | u64::from(m.neg_hi >> k & 1) << 63;
        wide.iter_mut().for_each(|x| *x = ((*x >> low & 0xffff_ffff) | (*x >> high) << 32) ^ flip);
        return;
    }
    const SIGN: u64 = 1 << 63;
    if source.abs {
        wide.iter_mut().for_each(|x| *x &= !SIGN);
    }
    if source.neg {
        wide.iter_mut().for_each(|x| *x ^= SIGN);
    }
}

/// The selected byte or word of every lane.
fn select(row: &mut Row, which: Select, sext: bool) {
    let (shift, bits) = match which {
        Select::Dword => return,
        Select::Word(n) => (u32::from(n) * 16, 16),
        Select::Byte(n) => (u32::from(n) * 8, 8),
    };
    let up = 32 - bits;
    if sext {
        row.iter_mut().for_each(|x| *x = (((*x >> shift) << up) as i32 >> up) as u32);
    } else {
        row.iter_mut().for_each(|x| *x = (*x >> shift) << up >> up);
    }
}

/// Subnormal f32 become zeros of their sign.
pub fn flush32(row: &mut Row) {
    row.iter_mut().for_each(|x| *x &= if *x & 0x7f80_0000 == 0 { 0x8000_0000 } else { u32::MAX });
}

/// Subnormal f16 in either half become zeros of their sign.
pub fn flush16(row: &mut Row) {
    for x in row {
        let low = if *x & 0x7c00 == 0 { 0xffff_8000 } else { u32::MAX };
        let high = if *x & 0x7c00_0000 == 0 { 0x8000_ffff } else { u32::MAX };
        *x &= low & high;
    }
}

/// Subnormal f64 become zeros of their sign.
pub fn flush64(wide: &mut Wide) {
    wide.iter_mut().for_each(|x| *x &= if *x >> 52 & 0x7ff == 0 { 1 << 63 } else { u64::MAX });
}

/// Subnormal f32 in either half become zeros of their sign.
pub fn flush_pairs(wide: &mut Wide) {
    for x in wide {
        let low = if *x & 0x7f80_0000 == 0 { 0xffff_ffff_8000_0000 } else { u64::MAX };
        let high = if *x & 0x7f80_0000_0000_0000 == 0 { 0x8000_0000_ffff_ffff } else { u64::MAX };
        *x &= low & high;
    }
}

/// The lane that each lane of a DPP instruction reads.
pub struct DppMap {
    pub from: [u8; LANES],
    /// Lanes that read an existing and (without `fi`) active lane.
    pub valid: u64,
    /// Lanes that may be written.
    pub write: u64,
}

impl DppMap {
    pub fn new(wave: &Wave, dpp: &Dpp) -> DppMap {
        let lanes = wave.isa.lanes as usize;
        let readable = if dpp.fetch_inactive { wave.isa.all_lanes() } else { wave.exec() };
        let mut map = DppMap { from: [0; LANES], valid: 0, write: 0 };
        for lane in 0..lanes {
            if let Some(from) = dpp_source(dpp.control, lane, lanes).filter(|f| readable >> f & 1 == 1) {
                map.from[lane] = from as u8;
                map.valid |= 1 << lane;
            }
            let enabled = dpp.row_mask >> (lane / 16) & 1 == 1 && dpp.bank_mask >> (lane % 16 / 4) & 1 == 1;
            map.write |= u64::from(enabled) << lane;
        }
        // The eight-lane form has neither masks nor bound_ctrl: absent lanes read as zero.
        if matches!(dpp.control, DppControl::Dpp8(_)) {
            map.write = wave.isa.all_lanes();
        } else if !dpp.bound_ctrl {
            map.write &= map.valid;
        }
        map
    }
}

/// The lane that `lane` reads; `None` outside of the row or wave.
fn dpp_source(control: DppControl, lane: usize, lanes: usize) -> Option<usize> {
    let (row, p) = (lane & !15, lane % 16);
    match control {
        DppControl::QuadPerm(perm) => Some((lane & !3) + usize::from(perm[lane % 4])),
        DppControl::RowShl(n) => Some(p + usize::from(n)).filter(|p| *p < 16).map(|p| row + p),
        DppControl::RowShr(n) => p.checked_sub(n.into()).map(|p| row + p),
        DppControl::RowRor(n) => Some(row + (p + 16 - usize::from(n)) % 16),
        DppControl::WaveShl => Some(lane + 1).filter(|l| *l < lanes),
        DppControl::WaveShr => lane.checked_sub(1),
        DppControl::WaveRol => Some((lane + 1) % lanes),
        DppControl::WaveRor => Some((lane + lanes - 1) % lanes),
        DppControl::RowMirror => Some(row + 15 - p),
        DppControl::RowHalfMirror => Some((lane & !7) + 7 - lane % 8),
        DppControl::RowBcast(15) => row.checked_sub(1),
        DppControl::RowBcast(_) => (lane >= 32).then_some(31),
        DppControl::RowShare(n) => Some(row + usize::from(n)),
        DppControl::RowXmask(n) => Some(row + (p ^ usize::from(n))),
        DppControl::Dpp8(select) => Some((lane & !7) + usize::from(select[lane % 8])),
    }
}

fn moved(wave: &Wave, dpp: &Dpp, row: &Row) -> Row {
    let map = DppMap::new(wave, dpp);
    std::array::from_fn(|lane| if map.valid >> lane & 1 == 1 { row[usize::from(map.from[lane])] } else { 0 })
}
