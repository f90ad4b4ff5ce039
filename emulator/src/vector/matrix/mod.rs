//! Matrix instructions: MFMA (CDNA) and WMMA (RDNA).
//!
//! A product `D = A B + C` is unpacked to dense tiles, computed there, and written back. `exec` is
//! ignored, as by the hardware.
//!
//! # Arithmetic
//! Each element of D starts from C and adds the products in ascending order of k, each step one
//! fused multiply-add in the type of the accumulator (f32, i32, f64); products of the narrow
//! formats are exact. Hardware adds several products at once with internal roundings that are not
//! published, so that last bits differ. Integer sums wrap, or saturate once at the end with
//! `clamp`. Subnormal numbers are kept, except that gfx90a flushes those of f16 and bf16 sources
//! and of their results. Scales of `f8f6f4` multiply the elements first; where that leaves the
//! range of f32 the hardware is more exact.
//!
//! # Layouts
//! With `m` rows of A (and columns of B and D), `k` elements in a row, and 64 lanes (32 for WMMA);
//! B is laid out as A with the column in place of the row.
//! - MFMA, one block: lane `l` holds row `l % m`, elements from `(l / m) * n` on, where
//!   `n = m k / 64`.
//! - MFMA, several blocks: lane `l` holds row `l % m` of block `l / m`, all `k` elements.
//! - MFMA f8f6f4 with elements of 8 or 6 bits: two runs of 16 elements, from `(l / m) * 16` and
//!   from `k / 2 + (l / m) * 16`; of 4 bits: as usual. The scale of row `l % m` and of elements
//!   from `32 (l / m)` on is in lane `l`.
//! - MFMA D: row `i` of a block is in register `i % 4 + 4 (i / 8)` for m = 32 (lanes from
//!   `32 (i / 4 % 2)`), `i % 4` for m = 16 (lanes from `16 (i / 4)`), `i` for m = 4 (lanes from 4
//!   times the block); further blocks in further registers. f64: register pair `i / 4`, lanes from
//!   `16 (i % 4)`; with 4 blocks of 4 x 4: lanes from `16 i + 4 block`.
//! - WMMA gfx11: lane `l % 16` is the row, all 16 elements; both halves of the wave hold the same.
//!   D: row `i` in register `i / 2`, lanes from `16 (i % 2)`; 16-bit results in the half that
//!   `op_sel` names.
//! - WMMA gfx12: row `l % 16`, elements from `(l / 16) * k / 2` on. D: row `i` in register `i % 8`,
//!   lanes from `16 (i / 8)`; 16-bit results: register `i % 8 / 2`, half `i % 2`.
//!
//! Sources: AMD Matrix Instruction Calculator, instruction-set guides of CDNA3, CDNA4, RDNA3 and
//! RDNA4, LLVM's AMDGPU tests.
mod dense;
mod run;
mod tiles;

use super::VectorOp;
use super::kinds::{Class, constant};
use crate::inst::{Inst, Operand};
use crate::isa::{Family, Isa};

/// The type of the elements of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Element {
    F32,
    F64,
    F16,
    Bf16,
    /// Signed; WMMA says in `neg_lo` which source is.
    I8,
    I4,
    Fp8,
    Bf8,
    Fp6,
    Bf6,
    Fp4,
}

/// The type of the elements of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sum {
    F32,
    I32,
    F64,
    F16,
    Bf16,
}

/// A matrix instruction, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Rows of A and columns of B.
    pub m: usize,
    pub k: usize,
    pub blocks: usize,
    pub a: Element,
    pub b: Element,
    pub sum: Sum,
    /// The formats of A and B are in `cbsz` and `blgp`.
    pub chosen: bool,
    pub scaled: bool,
}

const ELEMENTS: [(&str, Element); 11] = [
    ("f32", Element::F32),
    ("xf32", Element::F32),
    ("f64", Element::F64),
    ("f16", Element::F16),
    ("bf16", Element::Bf16),
    ("i8", Element::I8),
    ("iu8", Element::I8),
    ("iu4", Element::I4),
    ("fp8", Element::Fp8),
    ("bf8", Element::Bf8),
    ("f8f6f4", Element::Fp8),
];

const SUMS: [(&str, Sum); 5] =
    [("f32", Sum::F32), ("i32", Sum::I32), ("f64", Sum::F64), ("f16", Sum::F16), ("bf16", Sum::Bf16)];

/// The formats that `cbsz` and `blgp` of `f8f6f4` name.
const CHOICES: [Element; 5] = [Element::Fp8, Element::Bf8, Element::Fp6, Element::Bf6, Element::Fp4];

impl Element {
    pub fn bits(self) -> usize {
        match self {
            Element::F64 => 64,
            Element::F32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::I8 | Element::Fp8 | Element::Bf8 => 8,
            Element::Fp6 | Element::Bf6 => 6,
            Element::I4 | Element::Fp4 => 4,
        }
    }
}

impl Spec {
    /// Reads a mnemonic: `v_mfma_f32_16x16x16_bf16`, `v_mfma_f32_4x4x4_16b_f16`,
    /// `v_mfma_f32_32x32x8bf16_1k` (gfx90a), `v_wmma_i32_16x16x16_iu8`. If the name has no number
    /// of blocks, it follows from the size of D.
    pub fn parse(mnemonic: &str, registers: usize) -> Option<Spec> {
        let rest = mnemonic.strip_prefix("v_mfma_").or_else(|| mnemonic.strip_prefix("v_wmma_"))?;
        let (scaled, rest) = rest.strip_prefix("scale_").map_or((false, rest), |r| (true, r));
        let (sum, rest) = rest.split_once('_')?;
        let sum = SUMS.iter().find(|s| s.0 == sum)?.1;
        let (m, rest) = rest.split_once('x')?;
        let (_, rest) = rest.split_once('x')?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (k, types) = rest.split_at(digits);
        let (m, k): (usize, usize) = (m.parse().ok()?, k.parse().ok()?);
        let mut parts = types.split('_').filter(|p| !p.is_empty() && *p != "1k" && !is_blocks(p));
        let element = |name: &str| ELEMENTS.iter().find(|e| e.0 == name).map(|e| e.1);
        let first = parts.next()?;
        let a = element(first)?;
        let b = parts.next().map_or(Some(a), element)?;
        let words = if sum == Sum::F64 { 2 } else { 1 };
        let blocks = if mnemonic.starts_with("v_mfma") { (registers * 64 / words / (m * m)).max(1) } else { 1 };
        Some(Spec { m, k, blocks, a, b, sum, chosen: first == "f8f6f4", scaled })
    }

    /// The formats of A and B, with those that modifiers choose.
    pub fn elements(&self, inst: &Inst) -> Option<[Element; 2]> {
        if !self.chosen {
            return Some([self.a, self.b]);
        }
        let choice = |n: u8| CHOICES.get(usize::from(n)).copied();
        Some([choice(inst.modifiers.cbsz)?, choice(inst.modifiers.blgp)?])
    }

    /// Elements of A that one lane of a wave of `lanes` holds; of gfx11, all of a row.
    pub fn per_lane(&self, lanes: usize, repeated: bool) -> usize {
        if repeated { self.k } else { self.m * self.k * self.blocks / lanes }
    }

    fn pack(&self) -> u64 {
        let fields = [self.m, self.k, self.blocks, self.a as usize, self.b as usize, self.sum as usize];
        let flags = u64::from(self.chosen) | u64::from(self.scaled) << 1;
        fields.iter().fold(flags, |bits, f| bits << 8 | *f as u64)
    }
}

fn is_blocks(part: &str) -> bool {
    part.strip_suffix('b').is_some_and(|n| n.parse::<u32>().is_ok())
}

/// Resolves a matrix instruction; `None` for all others and for modifiers without a meaning here.
pub fn resolve(inst: &mut Inst, isa: &'static Isa) -> Option<VectorOp> {
    let registers = match inst.operand(0) {
        Operand::Vector { count, .. } => usize::from(count),
        _ => 0,
    };
    let spec = Spec::parse(&inst.mnemonic, registers)?;
    spec.elements(inst)?;
    let m = &inst.modifiers;
    let broadcast = m.cbsz != 0 || m.abid != 0 || m.blgp != 0;
    if m.clamp && spec.sum != Sum::I32 || broadcast && (spec.sum == Sum::F64 || isa.family > Family::Gfx950) {
        return None;
    }
    let class = if spec.sum == Sum::F64 { Class::F64 } else { Class::B32 };
    for source in inst.operands[1..usize::from(inst.count)].iter_mut() {
        if let Some(bits) = constant(source.operand, class) {
            source.operand = Operand::Const(bits);
        }
    }
    let run = run::handler(&spec, isa)?;
    let flops = 2 * spec.m * spec.m * spec.k * spec.blocks;
    inst.aux = spec.pack();
    Some(VectorOp {
        run: run[usize::from(super::fast())],
        dsts: 1,
        // A result of 16 bits on gfx11 leaves the other half of its registers.
        reads_dst: u8::from(matches!(spec.sum, Sum::F16 | Sum::Bf16) && isa.family == Family::Gfx11),
        reads_vcc: false,
        writes_exec: false,
        crosses_lanes: true,
        selects: false,
        flops: flops as u32,
    })
}

#[cfg(test)]
mod tests;
