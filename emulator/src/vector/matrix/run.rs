//! Handlers of matrix instructions.
use super::dense::{Number, four_rows};
use super::tiles::{Operands, TILE};
use super::{CHOICES, Element, Spec, Sum};
use crate::inst::{Inst, Operand};
use crate::isa::{Family, Isa};
use crate::num;
use crate::vector::sources;
use crate::vector::table::{Builds, builds};
use crate::wave::{LANES, Row, Wave};

/// The handler of a shape; `None` for shapes that no chip has.
pub fn handler(spec: &Spec, isa: &Isa) -> Option<Builds> {
    let integer = spec.sum == Sum::I32;
    let cdna = isa.family.is_cdna();
    Some(match (cdna, spec.sum, spec.m) {
        (true, Sum::F64, 16 | 4) => builds!(doubles),
        (true, Sum::F32, 16) => builds!(floats::<Mfma<16>>),
        (true, Sum::F32, 32) => builds!(floats::<Mfma<32>>),
        (true, Sum::I32, 16) => builds!(integers::<Mfma<16>>),
        (true, Sum::I32, 32) => builds!(integers::<Mfma<32>>),
        (true, Sum::F32 | Sum::I32, 4) => {
            if integer {
                builds!(small_integers)
            } else {
                builds!(small_floats)
            }
        }
        (false, Sum::F32, 16) if isa.family == Family::Gfx11 => builds!(floats::<Wmma11>),
        (false, Sum::F32, 16) => builds!(floats::<Wmma12>),
        (false, Sum::I32, 16) if isa.family == Family::Gfx11 => builds!(integers::<Wmma11>),
        (false, Sum::I32, 16) => builds!(integers::<Wmma12>),
        (false, Sum::F16 | Sum::Bf16, 16) => builds!(narrow),
        _ => return None,
    })
}

impl Spec {
    fn unpack(bits: u64) -> Spec {
        let field = |n: u32| (bits >> (8 * n) & 0xff) as usize;
        const ELEMENTS: [Element; 6] =
            [Element::F32, Element::F64, Element::F16, Element::Bf16, Element::I8, Element::I4];
        let element = |n: usize| ELEMENTS.get(n).copied().unwrap_or_else(|| CHOICES[n - ELEMENTS.len()]);
        const SUMS: [Sum; 5] = [Sum::F32, Sum::I32, Sum::F64, Sum::F16, Sum::Bf16];
        Spec {
            m: field(5),
            k: field(4),
            blocks: field(3),
            a: element(field(2)),
            b: element(field(1)),
            sum: SUMS[field(0)],
            chosen: bits >> 48 & 1 == 1,
            scaled: bits >> 49 & 1 == 1,
        }
    }
}

/// The places of four consecutive rows of D.
trait Layout {
    const M: usize;
    /// Register and first lane of row `i` of a block.
    fn place(block: usize, i: usize) -> (usize, usize);
}

struct Mfma<const M: usize>;
impl<const M: usize> Layout for Mfma<M> {
    const M: usize = M;
    #[inline(always)]
    fn place(block: usize, i: usize) -> (usize, usize) {
        let registers = M * M / 64;
        let groups = 64 / M;
        (block * registers + 4 * (i / 4 / groups) + i % 4, M * (i / 4 % groups))
    }
}

struct Wmma11;
impl Layout for Wmma11 {
    const M: usize = 16;
    #[inline(always)]
    fn place(_: usize, i: usize) -> (usize, usize) {
        (i / 2, 16 * (i % 2))
    }
}

struct Wmma12;
impl Layout for Wmma12 {
    const M: usize = 16;
    #[inline(always)]
    fn place(_: usize, i: usize) -> (usize, usize) {
        (i % 8, 16 * (i / 8))
    }
}

/// The rows of C: registers, or one constant.
#[inline(always)]
fn addend(wave: &Wave, inst: &Inst, rows: &mut [Row]) {
    match inst.operand(3) {
        Operand::Vector { row, .. } => {
            let first = usize::from(row);
            rows.copy_from_slice(&wave.vgpr[first..first + rows.len()]);
        }
        other => rows.fill([sources::scalar(wave, other); LANES]),
    }
}

/// The `count` rows of D, which hold C. A and B must have been read before: D may lie on them.
#[inline(always)]
fn result<'a>(wave: &'a mut Wave, inst: &Inst, count: usize) -> &'a mut [Row] {
    let to = destination(inst);
    match inst.operand(3) {
        Operand::Vector { row, .. } if usize::from(row) == to => {}
        Operand::Vector { row, .. } => wave.vgpr.copy_within(usize::from(row)..usize::from(row) + count, to),
        other => {
            let value = sources::scalar(wave, other);
            wave.vgpr[to..to + count].fill([value; LANES]);
        }
    }
    &mut wave.vgpr[to..to + count]
}

fn destination(inst: &Inst) -> usize {
    match inst.operand(0) {
        Operand::Vector { row, .. } => row.into(),
        _ => 0,
    }
}

/// A and B as floating-point tiles.
#[inline(always)]
fn tiles<const N: usize>(wave: &Wave, inst: &Inst, spec: &Spec, tiles: &mut [[f32; N]; 2]) {
    let elements = spec.elements(inst).unwrap_or([spec.a, spec.b]);
    for (side, tile) in tiles.iter_mut().enumerate() {
        let operands = Operands { wave, inst, spec, side, element: elements[side] };
        operands.floats(tile);
        if spec.scaled {
            operands.scale(tile);
        }
    }
}

#[inline(always)]
fn integer_tiles(wave: &Wave, inst: &Inst, spec: &Spec) -> [[i32; TILE]; 2] {
    let mut tiles = [[0; TILE]; 2];
    for (side, tile) in tiles.iter_mut().enumerate() {
        Operands { wave, inst, spec, side, element: spec.a }.integers(tile);
    }
    tiles
}

/// Adds the products of all blocks to rows of cells.
#[inline(always)]
fn multiply<L: Layout, T: Number>(
    spec: &Spec,
    a: &[T],
    b: &[T],
    rows: &mut [Row],
    get: fn(u32) -> T,
    put: fn(T) -> u32,
) {
    let size = spec.k * L::M;
    for block in 0..spec.blocks {
        let [a, b] = [a, b].map(|t| &t[block * size..(block + 1) * size]);
        for i in (0..L::M).step_by(4) {
            for column in (0..L::M).step_by(16) {
                let mut sums = [[T::default(); 16]; 4];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let (register, lane) = L::place(block, i + r);
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = get(rows[register][lane + column + j]);
                    }
                }
                four_rows(&mut sums, a, b, L::M, i, column);
                for (r, sums) in sums.iter().enumerate() {
                    let (register, lane) = L::place(block, i + r);
                    for (j, sum) in sums.iter().enumerate() {
                        rows[register][lane + column + j] = put(*sum);
                    }
                }
            }
        }
    }
}

/// Registers of D.
fn registers(spec: &Spec, wave: &Wave) -> usize {
    spec.m * spec.m * spec.blocks / wave.isa.lanes as usize
}

#[inline(always)]
fn floats<L: Layout>(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    // Clearing room for the largest tiles would take longer than a small product.
    match spec.m * spec.k * spec.blocks {
        0..=256 => sized_floats::<L, 256>(wave, inst, &spec),
        257..=512 => sized_floats::<L, 512>(wave, inst, &spec),
        _ => sized_floats::<L, TILE>(wave, inst, &spec),
    }
}

#[inline(always)]
fn sized_floats<L: Layout, const N: usize>(wave: &mut Wave, inst: &Inst, spec: &Spec) {
    let mut ab = [[0.0; N]; 2];
    tiles(wave, inst, spec, &mut ab);
    let (family, count) = (wave.isa.family, registers(spec, wave));
    let rows = result(wave, inst, count);
    modify_addend(inst, rows);
    multiply::<L, f32>(spec, &ab[0], &ab[1], rows, f32::from_bits, |x| x.to_bits());
    finish(family, spec, rows);
}

/// WMMA: `neg_lo` of the third source negates it, `neg_hi` takes its magnitude first.
fn modify_addend(inst: &Inst, rows: &mut [Row]) {
    let (neg, abs) = (inst.modifiers.neg_lo >> 2 & 1 == 1, inst.modifiers.neg_hi >> 2 & 1 == 1);
    if neg || abs {
        let keep = if abs { 0x7fff_ffff } else { u32::MAX };
        let flip = if neg { 0x8000_0000 } else { 0 };
        rows.iter_mut().flatten().for_each(|x| *x = *x & keep ^ flip);
    }
}

/// gfx90a flushes results of products of 16-bit numbers.
fn finish(family: Family, spec: &Spec, rows: &mut [Row]) {
    if family == Family::Gfx90a && matches!(spec.a, Element::F16 | Element::Bf16) {
        rows.iter_mut().for_each(sources::flush32);
    }
}

#[inline(always)]
fn integers<L: Layout>(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    let [a, b] = integer_tiles(wave, inst, &spec);
    let mut rows = [[0; LANES]; 32];
    let rows = &mut rows[..registers(&spec, wave)];
    addend(wave, inst, rows);
    if inst.modifiers.clamp {
        let c = rows.to_vec();
        rows.fill([0; LANES]);
        multiply::<L, i32>(&spec, &a, &b, rows, |x| x as i32, |x| x as u32);
        // The sum of products itself is far from overflowing.
        for (row, c) in rows.iter_mut().zip(&c) {
            row.iter_mut().zip(c).for_each(|(x, c)| *x = (*x as i32).saturating_add(*c as i32) as u32);
        }
    } else {
        multiply::<L, i32>(&spec, &a, &b, rows, |x| x as i32, |x| x as u32);
    }
    let to = destination(inst);
    wave.vgpr[to..to + rows.len()].copy_from_slice(rows);
}

/// Sixteen blocks of 4 x 4: four lanes each.
#[inline(always)]
fn small<T: Number>(spec: &Spec, a: &[T], b: &[T], rows: &mut [Row], get: fn(u32) -> T, put: fn(T) -> u32) {
    for (i, row) in rows.iter_mut().enumerate() {
        for (lane, cell) in row.iter_mut().enumerate() {
            let (block, j) = (lane / 4, lane % 4);
            let at = |k: usize| (block * spec.k + k) * 4;
            *cell = put((0..spec.k).fold(get(*cell), |sum, k| sum.mac(a[at(k) + i], b[at(k) + j])));
        }
    }
}

#[inline(always)]
fn small_floats(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    let mut ab = [[0.0; 256]; 2];
    tiles(wave, inst, &spec, &mut ab);
    let mut rows = [[0; LANES]; 4];
    addend(wave, inst, &mut rows);
    small::<f32>(&spec, &ab[0], &ab[1], &mut rows, f32::from_bits, |x| x.to_bits());
    finish(wave.isa.family, &spec, &mut rows);
    let to = destination(inst);
    wave.vgpr[to..to + 4].copy_from_slice(&rows);
}

#[inline(always)]
fn small_integers(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    let [a, b] = integer_tiles(wave, inst, &spec);
    let mut rows = [[0; LANES]; 4];
    addend(wave, inst, &mut rows);
    small::<i32>(&spec, &a, &b, &mut rows, |x| x as i32, |x| x as u32);
    let to = destination(inst);
    wave.vgpr[to..to + 4].copy_from_slice(&rows);
}

/// f64: one element of A and B in each lane.
#[inline(always)]
fn doubles(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    let pair = |position: usize, n: usize| -> [f64; LANES] {
        match inst.operand(position) {
            Operand::Vector { row, .. } => {
                let first = usize::from(row) + 2 * n;
                std::array::from_fn(|lane| double(wave.vgpr[first][lane], wave.vgpr[first + 1][lane]))
            }
            Operand::Const(bits) => [f64::from_bits(bits); LANES],
            _ => [0.0; LANES],
        }
    };
    let (a, b) = (pair(1, 0), pair(2, 0));
    let results = spec.m * spec.m * spec.blocks / 64;
    let mut out = [[0.0; LANES]; 4];
    for (n, out) in out.iter_mut().enumerate().take(results) {
        let c = pair(3, n);
        for lane in 0..LANES {
            // In 16 x 16: row 4n + lane / 16, column lane % 16. In four blocks of 4 x 4: row lane /
            // 16, block lane / 4 % 4.
            let (row, column) = if spec.blocks == 1 {
                (4 * n + lane / 16, lane % 16)
            } else {
                (lane / 16 + lane % 16 / 4 * 4, lane % 16)
            };
            out[lane] = (0..4).fold(c[lane], |sum, k| sum.mac(a[16 * k + row], b[16 * k + column]));
        }
    }
    let to = destination(inst);
    for (n, out) in out.iter().enumerate().take(results) {
        wave.vgpr[to + 2 * n] = out.map(|x| x.to_bits() as u32);
        wave.vgpr[to + 2 * n + 1] = out.map(|x| (x.to_bits() >> 32) as u32);
    }
}

fn double(low: u32, high: u32) -> f64 {
    f64::from_bits(u64::from(low) | u64::from(high) << 32)
}

/// WMMA with results of 16 bits: the sum is f32 and is rounded once.
#[inline(always)]
fn narrow(wave: &mut Wave, inst: &Inst) {
    let spec = Spec::unpack(inst.aux);
    let bf16 = spec.sum == Sum::Bf16;
    let widen = |h: u32| if bf16 { num::bf16_to_f32(h as u16) } else { num::f16_to_f32(h as u16) };
    let round = |x: f32| u32::from(if bf16 { num::f32_to_bf16(x) } else { num::f32_to_f16(x) });
    let mut ab = [[0.0; 256]; 2];
    tiles(wave, inst, &spec, &mut ab);
    let [a, b] = ab;
    let gfx11 = wave.isa.family == Family::Gfx11;
    let high = inst.modifiers.op_sel.unwrap_or(0) >> 2 & 1;
    // Register, first lane and shift of row i.
    let place = |i: usize| {
        if gfx11 { (i / 2, 16 * (i % 2), 16 * u32::from(high)) } else { (i % 8 / 2, 16 * (i / 8), 16 * (i % 2) as u32) }
    };
    let count = if gfx11 { 8 } else { 4 };
    let mut c = [[0; LANES]; 8];
    addend(wave, inst, &mut c[..count]);
    let constant = !matches!(inst.operand(3), Operand::Vector { .. });
    let to = destination(inst);
    let mut out: Vec<Row> = wave.vgpr[to..to + count].to_vec();
    for i in 0..16 {
        let (register, lane, shift) = place(i);
        for j in 0..16 {
            let start = widen(c[register][lane + j] >> if constant { 0 } else { shift } & 0xffff);
            let sum = (0..spec.k).fold(start, |sum, k| sum.mac(a[k * 16 + i], b[k * 16 + j]));
            let cell = &mut out[register][lane + j];
            *cell = *cell & !(0xffff << shift) | round(sum) << shift;
        }
    }
    wave.vgpr[to..to + count].copy_from_slice(&out);
}
