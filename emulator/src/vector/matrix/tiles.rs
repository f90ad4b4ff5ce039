//! Tiles of A and B: registers to dense numbers.
use super::{Element, Spec};
use crate::inst::{Inst, Operand};
use crate::isa::Family;
use crate::num;
use crate::vector::sources;
use crate::wave::{Row, Wave};

/// The most numbers that A or B of one instruction holds: 16 x 128 and 32 x 64.
pub const TILE: usize = 2048;

/// A or B of one instruction.
pub struct Operands<'a> {
    pub wave: &'a Wave,
    pub inst: &'a Inst,
    pub spec: &'a Spec,
    /// 0 for A, 1 for B.
    pub side: usize,
    pub element: Element,
}

/// The places of a lane's elements in a row.
struct Place {
    /// Groups of lanes with different elements of the same rows.
    groups: usize,
    /// Elements of one lane.
    each: usize,
    /// Two runs of 16 elements.
    split: bool,
}

impl Operands<'_> {
    fn place(&self) -> Place {
        let lanes = self.wave.isa.lanes as usize;
        let repeated = self.wave.isa.family == Family::Gfx11;
        let each = self.spec.per_lane(lanes, repeated);
        let groups = if repeated { 1 } else { lanes / self.spec.m };
        Place { groups, each, split: self.spec.chosen && self.element.bits() > 4 }
    }

    /// The registers, with the permutation of lanes that `blgp` asks of B and the broadcast of
    /// blocks that `cbsz` asks of A.
    fn register(&self, n: usize) -> Row {
        let Operand::Vector { row, .. } = self.inst.operand(1 + self.side) else {
            return sources::read(self.wave, self.inst.operand(1 + self.side));
        };
        let row = self.wave.vgpr[usize::from(row) + n];
        let m = &self.inst.modifiers;
        if self.spec.chosen || m.blgp == 0 && m.cbsz == 0 {
            return row;
        }
        let size = self.spec.m;
        match self.side {
            0 if m.cbsz != 0 => std::array::from_fn(|lane| {
                let block = ((lane / size) & !((1 << m.cbsz) - 1)) + usize::from(m.abid);
                row[block * size % 64 + lane % size]
            }),
            1 if m.blgp != 0 => std::array::from_fn(|lane| row[pattern(m.blgp, lane)]),
            _ => row,
        }
    }

    /// Floating-point numbers, k-major: element `k` of row `i` of block `b` at
    /// `(b * K + k) * m + i`.
    #[inline(always)]
    pub fn floats(&self, tile: &mut [f32]) {
        let flush = self.wave.isa.family == Family::Gfx90a;
        self.fill(tile, |row, shift, next, out| decode(self.element, self.wave, row, shift, next, flush, out));
        self.negate(tile);
    }

    /// Integers in the same order.
    #[inline(always)]
    pub fn integers(&self, tile: &mut [i32; TILE]) {
        let bits = self.element.bits() as u32;
        // MFMA has signed sources only.
        let signed = self.wave.isa.family.is_cdna() || self.inst.modifiers.neg_lo >> self.side & 1 == 1;
        self.fill(tile, |row, shift, _, out| {
            for (x, bits_of) in out.iter_mut().zip(row) {
                let up = *bits_of >> shift << (32 - bits);
                *x = if signed { up as i32 >> (32 - bits) } else { (up >> (32 - bits)) as i32 };
            }
        });
    }

    /// Goes over the elements of all lanes, by runs of lanes that hold element `e` of consecutive
    /// rows.
    #[inline(always)]
    fn fill<T: Copy + Default>(&self, tile: &mut [T], decode: impl Fn(&[u32], u32, &[u32], &mut [T])) {
        let (m, k, bits) = (self.spec.m, self.spec.k, self.element.bits());
        let place = self.place();
        let mut values = [T::default(); 64];
        let mut at = usize::MAX;
        let (mut row, mut next) = ([0; 64], [0; 64]);
        for e in 0..place.each {
            if e * bits / 32 != at {
                at = e * bits / 32;
                row = self.register(at);
                // Elements of six bits cross from one register to the next.
                next = if bits == 6 && (at + 1) * 32 < place.each * bits { self.register(at + 1) } else { next };
            }
            decode(&row, (e * bits % 32) as u32, &next, &mut values);
            for g in 0..place.groups {
                let (block, k_of) = match () {
                    _ if self.spec.blocks > 1 => (g, e),
                    _ if place.split => (0, e / 16 * (k / 2) + g * 16 + e % 16),
                    _ => (0, g * place.each + e),
                };
                let to = (block * k + k_of) * m;
                tile[to..to + m].copy_from_slice(&values[g * m..g * m + m]);
            }
        }
    }

    /// WMMA: `neg_lo` and `neg_hi` negate even and odd elements.
    fn negate(&self, tile: &mut [f32]) {
        let m = &self.inst.modifiers;
        let flips = [m.neg_lo >> self.side & 1 == 1, m.neg_hi >> self.side & 1 == 1];
        for k in (0..self.spec.k).filter(|k| flips[k % 2]) {
            tile[k * self.spec.m..(k + 1) * self.spec.m].iter_mut().for_each(|x| *x = -*x);
        }
    }

    /// Multiplies by the block scales of `f8f6f4`: a byte of a register, chosen by `op_sel` (low
    /// bit) and `op_sel_hi` (high bit).
    pub fn scale(&self, tile: &mut [f32]) {
        let modifiers = &self.inst.modifiers;
        let low = modifiers.op_sel.unwrap_or(0) >> self.side & 1;
        let high = modifiers.op_sel_hi.unwrap_or(7) >> self.side & 1;
        let byte = usize::from(low | high << 1);
        let scales = sources::read(self.wave, self.inst.operand(4 + self.side));
        let m = self.spec.m;
        for k in 0..self.spec.k {
            for i in 0..m {
                tile[k * m + i] *= num::e8m0_to_f32(scales[k / 32 * m + i].to_le_bytes()[byte]);
            }
        }
    }
}

/// The lane that a lane takes B from under a lane group pattern.
fn pattern(blgp: u8, lane: usize) -> usize {
    match blgp {
        1 => lane % 32,
        2 => 32 + lane % 32,
        3 => (lane + 16) % 64,
        n @ 4..=7 => usize::from(n - 4) * 16 + lane % 16,
        _ => lane,
    }
}

static TABLES: [[f32; 256]; 7] = [
    num::E4M3.table(),
    num::E5M2.table(),
    num::E4M3_FNUZ.table(),
    num::E5M2_FNUZ.table(),
    num::E2M3.table(),
    num::E3M2.table(),
    num::E2M1.table(),
];

/// One element of every lane.
#[inline(always)]
fn decode(element: Element, wave: &Wave, row: &[u32], shift: u32, next: &[u32], flush: bool, out: &mut [f32]) {
    let fnuz = if wave.isa.fnuz { 2 } else { 0 };
    let lanes = out.iter_mut().zip(row);
    match element {
        Element::F32 => lanes.for_each(|(x, r)| *x = f32::from_bits(*r)),
        Element::Bf16 => {
            lanes.for_each(|(x, r)| *x = flushed(f32::from_bits(*r >> shift << 16), flush, f32::MIN_POSITIVE))
        }
        Element::F16 => {
            lanes.for_each(|(x, r)| *x = flushed(num::f16_to_f32((*r >> shift) as u16), flush, 1.0 / 16384.0))
        }
        Element::Fp8 => look_up(out, row, shift, 8, &TABLES[fnuz]),
        Element::Bf8 => look_up(out, row, shift, 8, &TABLES[fnuz + 1]),
        Element::Fp4 => look_up(out, row, shift, 4, &TABLES[6]),
        Element::Fp6 | Element::Bf6 => {
            let table = &TABLES[if element == Element::Fp6 { 4 } else { 5 }];
            for ((x, low), high) in lanes.zip(next) {
                let both = u64::from(*low) | u64::from(*high) << 32;
                *x = table[(both >> shift & 63) as usize];
            }
        }
        // Integers and f64 have their own tiles.
        Element::I8 | Element::I4 | Element::F64 => {}
    }
}

#[inline(always)]
fn flushed(x: f32, flush: bool, least: f32) -> f32 {
    if flush && x.abs() < least { 0.0f32.copysign(x) } else { x }
}

#[inline(always)]
fn look_up(out: &mut [f32], row: &[u32], shift: u32, bits: u32, table: &[f32; 256]) {
    let mask = (1 << bits) - 1;
    for (x, r) in out.iter_mut().zip(row) {
        *x = table[(*r >> shift & mask & 255) as usize];
    }
}
