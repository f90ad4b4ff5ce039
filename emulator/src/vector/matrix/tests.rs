//! Every matrix instruction against a triple loop. The layouts are written down once more, as the
//! inverse maps of the documents: from an element of a matrix to its lane, register and bits.
// The maps are written for any number of elements in a lane, one included.
#![allow(clippy::modulo_one)]
use crate::inst::{Inst, MAX_OPERANDS, Modifiers, NO_SOURCE, Operand, Source};
use crate::isa::Isa;
use crate::num;
use crate::wave::{Mode, Rounding, Wave};

/// The place of an element: lane and number of the element in the lane.
type Place = fn(i: usize, k: usize, block: usize) -> (usize, usize);
/// The place of a sum: lane, register (or pair of registers) and shift.
type SumPlace = fn(i: usize, j: usize, block: usize) -> (usize, usize, u32);

struct Case {
    chips: &'static [&'static str],
    name: &'static str,
    m: usize,
    k: usize,
    blocks: usize,
    a: &'static str,
    b: &'static str,
    sum: &'static str,
    source: Place,
    result: SumPlace,
    /// cbsz and blgp.
    formats: (u8, u8),
    scaled: bool,
}

const CDNA: &[&str] = &["gfx90a", "gfx942", "gfx950"];
const OLD: &[&str] = &["gfx90a"];
const NEW: &[&str] = &["gfx942", "gfx950"];
const G950: &[&str] = &["gfx950"];
const R3: &[&str] = &["gfx1100"];
const R4: &[&str] = &["gfx1201"];

fn d32(i: usize, j: usize, block: usize) -> (usize, usize, u32) {
    (j + 32 * (i / 4 % 2), i % 4 + 4 * (i / 8) + 16 * block, 0)
}
fn d16(i: usize, j: usize, block: usize) -> (usize, usize, u32) {
    (j + 16 * (i / 4), i % 4 + 4 * block, 0)
}
fn d4(i: usize, j: usize, block: usize) -> (usize, usize, u32) {
    (j + 4 * block, i, 0)
}
fn f64_16(i: usize, j: usize, _: usize) -> (usize, usize, u32) {
    (16 * (i % 4) + j, i / 4, 0)
}
fn f64_4(i: usize, j: usize, block: usize) -> (usize, usize, u32) {
    (16 * i + 4 * block + j, 0, 0)
}
fn r3(i: usize, j: usize, _: usize) -> (usize, usize, u32) {
    (j + 16 * (i % 2), i / 2, 0)
}
fn r4(i: usize, j: usize, _: usize) -> (usize, usize, u32) {
    (j + 16 * (i / 8), i % 8, 0)
}
fn r4_half(i: usize, j: usize, _: usize) -> (usize, usize, u32) {
    (j + 16 * (i / 8), i % 8 / 2, 16 * (i as u32 % 2))
}

/// `n` elements of a lane, rows of `m`.
macro_rules! run {
    ($m:literal, $n:literal) => {
        |i, k, block| (i + $m * (k / $n) + $m * block, k % $n)
    };
}
/// Two runs of 16 elements, half of `k` apart.
macro_rules! two_runs {
    ($m:literal, $half:literal) => {
        |i, k, _| (i + $m * (k % $half / 16), k % 16 + 16 * (k / $half))
    };
}

macro_rules! cases {
    ($($chips:ident $name:literal $m:literal x $k:literal * $blocks:literal, $a:literal $b:literal -> $sum:literal, $source:expr, $result:expr;)*) => {
        vec![$(Case { chips: $chips, name: $name, m: $m, k: $k, blocks: $blocks, a: $a, b: $b, sum: $sum, source: $source,
            result: $result, formats: (0, 0), scaled: false }),*]
    };
}

fn mfma() -> Vec<Case> {
    cases! {
        OLD "v_mfma_f32_32x32x1f32" 32 x 1 * 2, "f32" "f32" -> "f32", |i, _, b| (i + 32 * b, 0), d32;
        OLD "v_mfma_f32_16x16x1f32" 16 x 1 * 4, "f32" "f32" -> "f32", |i, _, b| (i + 16 * b, 0), d16;
        OLD "v_mfma_f32_4x4x1f32" 4 x 1 * 16, "f32" "f32" -> "f32", |i, _, b| (i + 4 * b, 0), d4;
        OLD "v_mfma_f32_32x32x2f32" 32 x 2 * 1, "f32" "f32" -> "f32", run!(32, 1), d32;
        OLD "v_mfma_f32_16x16x4f32" 16 x 4 * 1, "f32" "f32" -> "f32", run!(16, 1), d16;
        OLD "v_mfma_f32_32x32x4f16" 32 x 4 * 2, "f16" "f16" -> "f32", |i, k, b| (i + 32 * b, k), d32;
        OLD "v_mfma_f32_16x16x4f16" 16 x 4 * 4, "f16" "f16" -> "f32", |i, k, b| (i + 16 * b, k), d16;
        OLD "v_mfma_f32_4x4x4f16" 4 x 4 * 16, "f16" "f16" -> "f32", |i, k, b| (i + 4 * b, k), d4;
        OLD "v_mfma_f32_32x32x8f16" 32 x 8 * 1, "f16" "f16" -> "f32", run!(32, 4), d32;
        OLD "v_mfma_f32_16x16x16f16" 16 x 16 * 1, "f16" "f16" -> "f32", run!(16, 4), d16;
        OLD "v_mfma_f32_32x32x2bf16" 32 x 2 * 2, "bf16" "bf16" -> "f32", |i, k, b| (i + 32 * b, k), d32;
        OLD "v_mfma_f32_16x16x2bf16" 16 x 2 * 4, "bf16" "bf16" -> "f32", |i, k, b| (i + 16 * b, k), d16;
        OLD "v_mfma_f32_4x4x2bf16" 4 x 2 * 16, "bf16" "bf16" -> "f32", |i, k, b| (i + 4 * b, k), d4;
        OLD "v_mfma_f32_32x32x4bf16" 32 x 4 * 1, "bf16" "bf16" -> "f32", run!(32, 2), d32;
        OLD "v_mfma_f32_16x16x8bf16" 16 x 8 * 1, "bf16" "bf16" -> "f32", run!(16, 2), d16;
        OLD "v_mfma_f32_32x32x4bf16_1k" 32 x 4 * 2, "bf16" "bf16" -> "f32", |i, k, b| (i + 32 * b, k), d32;
        OLD "v_mfma_f32_16x16x4bf16_1k" 16 x 4 * 4, "bf16" "bf16" -> "f32", |i, k, b| (i + 16 * b, k), d16;
        OLD "v_mfma_f32_4x4x4bf16_1k" 4 x 4 * 16, "bf16" "bf16" -> "f32", |i, k, b| (i + 4 * b, k), d4;
        OLD "v_mfma_f32_32x32x8bf16_1k" 32 x 8 * 1, "bf16" "bf16" -> "f32", run!(32, 4), d32;
        OLD "v_mfma_f32_16x16x16bf16_1k" 16 x 16 * 1, "bf16" "bf16" -> "f32", run!(16, 4), d16;
        OLD "v_mfma_i32_32x32x4i8" 32 x 4 * 2, "i8" "i8" -> "i32", |i, k, b| (i + 32 * b, k), d32;
        OLD "v_mfma_i32_16x16x4i8" 16 x 4 * 4, "i8" "i8" -> "i32", |i, k, b| (i + 16 * b, k), d16;
        OLD "v_mfma_i32_4x4x4i8" 4 x 4 * 16, "i8" "i8" -> "i32", |i, k, b| (i + 4 * b, k), d4;
        OLD "v_mfma_i32_32x32x8i8" 32 x 8 * 1, "i8" "i8" -> "i32", run!(32, 4), d32;
        OLD "v_mfma_i32_16x16x16i8" 16 x 16 * 1, "i8" "i8" -> "i32", run!(16, 4), d16;
        OLD "v_mfma_f64_16x16x4f64" 16 x 4 * 1, "f64" "f64" -> "f64", run!(16, 1), f64_16;
        OLD "v_mfma_f64_4x4x4f64" 4 x 4 * 4, "f64" "f64" -> "f64", |i, k, b| (i + 4 * b + 16 * k, 0), f64_4;
        NEW "v_mfma_f32_32x32x1_2b_f32" 32 x 1 * 2, "f32" "f32" -> "f32", |i, _, b| (i + 32 * b, 0), d32;
        NEW "v_mfma_f32_16x16x1_4b_f32" 16 x 1 * 4, "f32" "f32" -> "f32", |i, _, b| (i + 16 * b, 0), d16;
        NEW "v_mfma_f32_4x4x1_16b_f32" 4 x 1 * 16, "f32" "f32" -> "f32", |i, _, b| (i + 4 * b, 0), d4;
        NEW "v_mfma_f32_32x32x2_f32" 32 x 2 * 1, "f32" "f32" -> "f32", run!(32, 1), d32;
        NEW "v_mfma_f32_16x16x4_f32" 16 x 4 * 1, "f32" "f32" -> "f32", run!(16, 1), d16;
        NEW "v_mfma_f32_32x32x4_2b_f16" 32 x 4 * 2, "f16" "f16" -> "f32", |i, k, b| (i + 32 * b, k), d32;
        NEW "v_mfma_f32_16x16x4_4b_f16" 16 x 4 * 4, "f16" "f16" -> "f32", |i, k, b| (i + 16 * b, k), d16;
        NEW "v_mfma_f32_4x4x4_16b_f16" 4 x 4 * 16, "f16" "f16" -> "f32", |i, k, b| (i + 4 * b, k), d4;
        NEW "v_mfma_f32_32x32x8_f16" 32 x 8 * 1, "f16" "f16" -> "f32", run!(32, 4), d32;
        NEW "v_mfma_f32_16x16x16_f16" 16 x 16 * 1, "f16" "f16" -> "f32", run!(16, 4), d16;
        NEW "v_mfma_f32_32x32x4_2b_bf16" 32 x 4 * 2, "bf16" "bf16" -> "f32", |i, k, b| (i + 32 * b, k), d32;
        NEW "v_mfma_f32_16x16x4_4b_bf16" 16 x 4 * 4, "bf16" "bf16" -> "f32", |i, k, b| (i + 16 * b, k), d16;
        NEW "v_mfma_f32_4x4x4_16b_bf16" 4 x 4 * 16, "bf16" "bf16" -> "f32", |i, k, b| (i + 4 * b, k), d4;
        NEW "v_mfma_f32_32x32x8_bf16" 32 x 8 * 1, "bf16" "bf16" -> "f32", run!(32, 4), d32;
        NEW "v_mfma_f32_16x16x16_bf16" 16 x 16 * 1, "bf16" "bf16" -> "f32", run!(16, 4), d16;
        NEW "v_mfma_i32_32x32x4_2b_i8" 32 x 4 * 2, "i8" "i8" -> "i32", |i, k, b| (i + 32 * b, k), d32;
        NEW "v_mfma_i32_16x16x4_4b_i8" 16 x 4 * 4, "i8" "i8" -> "i32", |i, k, b| (i + 16 * b, k), d16;
        NEW "v_mfma_i32_4x4x4_16b_i8" 4 x 4 * 16, "i8" "i8" -> "i32", |i, k, b| (i + 4 * b, k), d4;
        NEW "v_mfma_i32_32x32x16_i8" 32 x 16 * 1, "i8" "i8" -> "i32", run!(32, 8), d32;
        NEW "v_mfma_i32_16x16x32_i8" 16 x 32 * 1, "i8" "i8" -> "i32", run!(16, 8), d16;
        NEW "v_mfma_f64_16x16x4_f64" 16 x 4 * 1, "f64" "f64" -> "f64", run!(16, 1), f64_16;
        NEW "v_mfma_f64_4x4x4_4b_f64" 4 x 4 * 4, "f64" "f64" -> "f64", |i, k, b| (i + 4 * b + 16 * k, 0), f64_4;
        NEW "v_mfma_f32_32x32x16_fp8_fp8" 32 x 16 * 1, "fp8" "fp8" -> "f32", run!(32, 8), d32;
        NEW "v_mfma_f32_32x32x16_fp8_bf8" 32 x 16 * 1, "fp8" "bf8" -> "f32", run!(32, 8), d32;
        NEW "v_mfma_f32_32x32x16_bf8_fp8" 32 x 16 * 1, "bf8" "fp8" -> "f32", run!(32, 8), d32;
        NEW "v_mfma_f32_32x32x16_bf8_bf8" 32 x 16 * 1, "bf8" "bf8" -> "f32", run!(32, 8), d32;
        NEW "v_mfma_f32_16x16x32_fp8_fp8" 16 x 32 * 1, "fp8" "fp8" -> "f32", run!(16, 8), d16;
        NEW "v_mfma_f32_16x16x32_fp8_bf8" 16 x 32 * 1, "fp8" "bf8" -> "f32", run!(16, 8), d16;
        NEW "v_mfma_f32_16x16x32_bf8_fp8" 16 x 32 * 1, "bf8" "fp8" -> "f32", run!(16, 8), d16;
        NEW "v_mfma_f32_16x16x32_bf8_bf8" 16 x 32 * 1, "bf8" "bf8" -> "f32", run!(16, 8), d16;
        G950 "v_mfma_f32_32x32x16_f16" 32 x 16 * 1, "f16" "f16" -> "f32", run!(32, 8), d32;
        G950 "v_mfma_f32_16x16x32_f16" 16 x 32 * 1, "f16" "f16" -> "f32", run!(16, 8), d16;
        G950 "v_mfma_f32_32x32x16_bf16" 32 x 16 * 1, "bf16" "bf16" -> "f32", run!(32, 8), d32;
        G950 "v_mfma_f32_16x16x32_bf16" 16 x 32 * 1, "bf16" "bf16" -> "f32", run!(16, 8), d16;
        G950 "v_mfma_i32_32x32x32_i8" 32 x 32 * 1, "i8" "i8" -> "i32", run!(32, 16), d32;
        G950 "v_mfma_i32_16x16x64_i8" 16 x 64 * 1, "i8" "i8" -> "i32", run!(16, 16), d16;
    }
}

fn xf32() -> Vec<Case> {
    const G942: &[&str] = &["gfx942"];
    cases! {
        G942 "v_mfma_f32_32x32x4_xf32" 32 x 4 * 1, "f32" "f32" -> "f32", run!(32, 2), d32;
        G942 "v_mfma_f32_16x16x8_xf32" 16 x 8 * 1, "f32" "f32" -> "f32", run!(16, 2), d16;
    }
}

/// All pairs of formats of the instructions that choose them, plain and scaled.
fn chosen() -> Vec<Case> {
    const FORMATS: [&str; 5] = ["fp8", "bf8", "fp6", "bf6", "fp4"];
    let mut cases = Vec::new();
    for (n, (a, b)) in FORMATS.iter().flat_map(|a| FORMATS.map(|b| (*a, b))).enumerate() {
        let formats = ((n / 5) as u8, (n % 5) as u8);
        let shapes: [(&str, &str, usize, usize, SumPlace); 2] = [
            ("v_mfma_f32_16x16x128_f8f6f4", "v_mfma_scale_f32_16x16x128_f8f6f4", 16, 128, d16),
            ("v_mfma_f32_32x32x64_f8f6f4", "v_mfma_scale_f32_32x32x64_f8f6f4", 32, 64, d32),
        ];
        for (plain, scale, m, k, result) in shapes {
            for (name, scaled) in [(plain, false), (scale, true)] {
                // The place depends on the element's width and is taken from `wide` or `narrow`
                // below.
                let source: Place = |_, _, _| (0, 0);
                cases.push(Case {
                    chips: G950,
                    name,
                    m,
                    k,
                    blocks: 1,
                    a,
                    b,
                    sum: "f32",
                    source,
                    result,
                    formats,
                    scaled,
                });
            }
        }
    }
    cases
}

fn wmma() -> Vec<Case> {
    cases! {
        R3 "v_wmma_f32_16x16x16_f16" 16 x 16 * 1, "f16" "f16" -> "f32", |i, k, _| (i, k), r3;
        R3 "v_wmma_f32_16x16x16_bf16" 16 x 16 * 1, "bf16" "bf16" -> "f32", |i, k, _| (i, k), r3;
        R3 "v_wmma_f16_16x16x16_f16" 16 x 16 * 1, "f16" "f16" -> "f16", |i, k, _| (i, k), r3;
        R3 "v_wmma_bf16_16x16x16_bf16" 16 x 16 * 1, "bf16" "bf16" -> "bf16", |i, k, _| (i, k), r3;
        R3 "v_wmma_i32_16x16x16_iu8" 16 x 16 * 1, "i8" "i8" -> "i32", |i, k, _| (i, k), r3;
        R3 "v_wmma_i32_16x16x16_iu4" 16 x 16 * 1, "i4" "i4" -> "i32", |i, k, _| (i, k), r3;
        R4 "v_wmma_f32_16x16x16_f16" 16 x 16 * 1, "f16" "f16" -> "f32", run!(16, 8), r4;
        R4 "v_wmma_f32_16x16x16_bf16" 16 x 16 * 1, "bf16" "bf16" -> "f32", run!(16, 8), r4;
        R4 "v_wmma_f16_16x16x16_f16" 16 x 16 * 1, "f16" "f16" -> "f16", run!(16, 8), r4_half;
        R4 "v_wmma_bf16_16x16x16_bf16" 16 x 16 * 1, "bf16" "bf16" -> "bf16", run!(16, 8), r4_half;
        R4 "v_wmma_i32_16x16x16_iu8" 16 x 16 * 1, "i8" "i8" -> "i32", run!(16, 8), r4;
        R4 "v_wmma_i32_16x16x16_iu4" 16 x 16 * 1, "i4" "i4" -> "i32", run!(16, 8), r4;
        R4 "v_wmma_i32_16x16x32_iu4" 16 x 32 * 1, "i4" "i4" -> "i32", run!(16, 16), r4;
        R4 "v_wmma_f32_16x16x16_fp8_fp8" 16 x 16 * 1, "fp8" "fp8" -> "f32", run!(16, 8), r4;
        R4 "v_wmma_f32_16x16x16_fp8_bf8" 16 x 16 * 1, "fp8" "bf8" -> "f32", run!(16, 8), r4;
        R4 "v_wmma_f32_16x16x16_bf8_fp8" 16 x 16 * 1, "bf8" "fp8" -> "f32", run!(16, 8), r4;
        R4 "v_wmma_f32_16x16x16_bf8_bf8" 16 x 16 * 1, "bf8" "bf8" -> "f32", run!(16, 8), r4;
    }
}

/// Numbers that every format here holds exactly, so that sums are exact in any order.
struct Random(u64);

impl Random {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    fn number(&mut self) -> f64 {
        [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 1.0][self.next(8) as usize]
    }
}

fn bits(kind: &str) -> usize {
    match kind {
        "f64" => 64,
        "f32" | "i32" => 32,
        "f16" | "bf16" => 16,
        "fp6" | "bf6" => 6,
        "fp4" | "i4" => 4,
        _ => 8,
    }
}

fn encode(kind: &str, x: f64, fnuz: bool) -> u64 {
    let small = |f: num::Small| (0..1u32 << f.bits()).find(|c| f.decode(*c) as f64 == x).unwrap().into();
    match kind {
        "f64" => x.to_bits(),
        "f32" => (x as f32).to_bits().into(),
        "f16" => half::f16::from_f64(x).to_bits().into(),
        "bf16" => half::bf16::from_f64(x).to_bits().into(),
        "i32" => x as i32 as u32 as u64,
        "i8" => x as i8 as u8 as u64,
        "i4" => x as i8 as u8 as u64 & 15,
        "fp8" => small(if fnuz { num::E4M3_FNUZ } else { num::E4M3 }),
        "bf8" => small(if fnuz { num::E5M2_FNUZ } else { num::E5M2 }),
        "fp6" => small(num::E2M3),
        "bf6" => small(num::E3M2),
        _ => small(num::E2M1),
    }
}

fn decode(kind: &str, bits: u64) -> f64 {
    match kind {
        "f64" => f64::from_bits(bits),
        "f32" => f32::from_bits(bits as u32).into(),
        "f16" => half::f16::from_bits(bits as u16).into(),
        "bf16" => half::bf16::from_bits(bits as u16).into(),
        _ => (bits as u32 as i32).into(),
    }
}

fn mode() -> Mode {
    Mode {
        round32: Rounding::NearestEven,
        round16_64: Rounding::NearestEven,
        denormals32_in: true,
        denormals32_out: true,
        denormals16_64_in: true,
        denormals16_64_out: true,
        dx10_clamp: true,
        ieee: true,
        fp16_ovfl: false,
    }
}

/// Puts `width` bits of a lane's string of registers.
fn put(wave: &mut Wave, first: usize, lane: usize, width: usize, element: usize, value: u64) {
    for bit in 0..width {
        let at = element * width + bit;
        let cell = &mut wave.vgpr[first + at / 32][lane];
        *cell = *cell & !(1 << (at % 32)) | ((value >> bit & 1) as u32) << (at % 32);
    }
}

const D: usize = 0;
const A: usize = 64;
const B: usize = 96;
const C: usize = 128;
const SA: usize = 200;
const SB: usize = 201;

struct Matrices {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    scale: [Vec<i32>; 2],
}

impl Case {
    fn place(&self, kind: &str) -> Place {
        if self.formats == (0, 0) && !self.name.contains("f8f6f4") {
            return self.source;
        }
        match (self.m, bits(kind)) {
            (16, 4) => run!(16, 32),
            (32, 4) => run!(32, 32),
            (16, _) => two_runs!(16, 64),
            _ => two_runs!(32, 32),
        }
    }

    fn matrices(&self, seed: u64) -> Matrices {
        let mut random = Random(seed);
        let size = self.m * self.k * self.blocks;
        let scales = |random: &mut Random| (0..self.m * self.k / 32).map(|_| random.next(5) as i32 - 2).collect();
        Matrices {
            a: (0..size).map(|_| random.number()).collect(),
            b: (0..size).map(|_| random.number()).collect(),
            c: (0..self.m * self.m * self.blocks).map(|_| random.number()).collect(),
            scale: [scales(&mut random), scales(&mut random)],
        }
    }

    fn registers(&self, lanes: usize) -> usize {
        let words = if self.sum == "f64" { 2 } else { 1 };
        let halves = if bits(self.sum) == 16 && self.chips == R4 { 2 } else { 1 };
        self.m * self.m * self.blocks * words / lanes / halves
    }

    fn instruction(&self, isa: &Isa) -> Inst {
        let count = self.registers(isa.lanes as usize) as u8;
        let vector = |row: usize, count: u8| Source {
            operand: Operand::Vector { row: row as u16, count, half: Default::default() },
            ..NO_SOURCE
        };
        let mut operands = [NO_SOURCE; MAX_OPERANDS];
        operands[..4].copy_from_slice(&[vector(D, count), vector(A, 8), vector(B, 8), vector(C, count)]);
        if self.scaled {
            operands[4] = vector(SA, 1);
            operands[5] = vector(SB, 1);
        }
        let mut modifiers = Modifiers { cbsz: self.formats.0, blgp: self.formats.1, ..Modifiers::default() };
        // Byte 1 of A's scales, byte 2 of B's.
        if self.scaled {
            (modifiers.op_sel, modifiers.op_sel_hi) = (Some(1), Some(2));
        }
        if self.name.contains("_iu") {
            modifiers.neg_lo = 3;
        }
        let count = if self.scaled { 6 } else { 4 };
        Inst { mnemonic: self.name.into(), operands, count, modifiers, address: 0, aux: 0 }
    }

    fn fill(&self, wave: &mut Wave, x: &Matrices) {
        let (m, k) = (self.m, self.k);
        let fnuz = wave.isa.fnuz;
        for block in 0..self.blocks {
            for (kind, values, first) in [(self.a, &x.a, A), (self.b, &x.b, B)] {
                for (i, kk) in (0..m).flat_map(|i| (0..k).map(move |kk| (i, kk))) {
                    let (lane, element) = self.place(kind)(i, kk, block);
                    let value = encode(kind, values[(block * m + i) * k + kk], fnuz);
                    put(wave, first, lane, bits(kind), element, value);
                    if self.chips == R3 {
                        put(wave, first, lane + 16, bits(kind), element, value);
                    }
                }
            }
            for (i, j) in (0..m).flat_map(|i| (0..m).map(move |j| (i, j))) {
                let (lane, register, shift) = (self.result)(i, j, block);
                let value = encode(self.sum, x.c[(block * m + i) * m + j], false);
                let words = bits(self.sum).div_ceil(32);
                for word in 0..words {
                    let cell = &mut wave.vgpr[C + register * words + word][lane];
                    let mask = if bits(self.sum) == 16 { 0xffff } else { u32::MAX };
                    *cell = *cell & !(mask << shift) | ((value >> (32 * word)) as u32 & mask) << shift;
                }
            }
        }
        for (side, register, byte) in [(0, SA, 1), (1, SB, 2)] {
            for i in 0..if self.scaled { m } else { 0 } {
                for part in 0..k / 32 {
                    let e8m0 = (127 + x.scale[side][i * (k / 32) + part]) as u32;
                    wave.vgpr[register][part * m + i] = 0x1234_5678 & !(0xff << (8 * byte)) | e8m0 << (8 * byte);
                }
            }
        }
    }

    fn expected(&self, x: &Matrices, block: usize, i: usize, j: usize) -> f64 {
        let (m, k) = (self.m, self.k);
        let scale = |side: usize, row: usize, kk: usize| {
            if self.scaled { 2f64.powi(x.scale[side][row * (k / 32) + kk / 32]) } else { 1.0 }
        };
        let mut sum = x.c[(block * m + i) * m + j];
        for kk in 0..k {
            let a = x.a[(block * m + i) * k + kk] * scale(0, i, kk);
            let b = x.b[(block * m + j) * k + kk] * scale(1, j, kk);
            sum += a * b;
        }
        sum
    }

    fn check(&self, chip: &str) {
        let isa = Isa::find(chip).unwrap();
        for seed in 1..3 {
            let mut wave = Wave::new(isa, mode(), 0);
            let x = self.matrices(seed);
            self.fill(&mut wave, &x);
            let mut inst = self.instruction(isa);
            let op = crate::vector::resolve(&mut inst, isa).unwrap_or_else(|| panic!("{} on {chip}", self.name));
            assert_eq!(op.flops as usize, 2 * self.m * self.m * self.k * self.blocks);
            // SAFETY: `resolve` chose the build for this machine.
            unsafe { (op.run)(&mut wave, &inst) };
            for block in 0..self.blocks {
                for (i, j) in (0..self.m).flat_map(|i| (0..self.m).map(move |j| (i, j))) {
                    let (lane, register, shift) = (self.result)(i, j, block);
                    let words = bits(self.sum).div_ceil(32);
                    let word = |n: usize| u64::from(wave.vgpr[D + register * words + n][lane] >> shift);
                    let got = decode(self.sum, if words == 2 { word(0) | word(1) << 32 } else { word(0) });
                    let want = self.expected(&x, block, i, j);
                    assert_eq!(got, want, "{} on {chip}: D[{i}][{j}] of block {block}", self.name);
                }
            }
        }
    }
}

#[test]
fn every_instruction_is_a_triple_loop() {
    let mut count = 0;
    for case in mfma().into_iter().chain(xf32()).chain(chosen()).chain(wmma()) {
        for chip in case.chips {
            case.check(chip);
            count += 1;
        }
    }
    assert!(count > 150, "{count}");
    let _ = CDNA;
}

/// The cases of a chip that a test changes in one way.
fn one(name: &str) -> Case {
    mfma().into_iter().chain(wmma()).find(|c| c.name == name).unwrap()
}

fn run(case: &Case, chip: &str, change: impl Fn(&mut Inst), fill: impl Fn(&mut Wave)) -> Wave {
    let isa = Isa::find(chip).unwrap();
    let mut wave = Wave::new(isa, mode(), 0);
    case.fill(&mut wave, &case.matrices(5));
    fill(&mut wave);
    let mut inst = case.instruction(isa);
    change(&mut inst);
    let op = crate::vector::resolve(&mut inst, isa).unwrap();
    // SAFETY: `resolve` chose the build for this machine.
    unsafe { (op.run)(&mut wave, &inst) };
    wave
}

#[test]
fn a_constant_may_be_added() {
    let case = one("v_mfma_f32_16x16x16_bf16");
    let wave = run(&case, "gfx942", |inst| inst.operands[3].operand = Operand::Float(4.0), |_| {});
    let mut x = case.matrices(5);
    x.c.fill(4.0);
    let (lane, register, _) = d16(7, 11, 0);
    assert_eq!(f32::from_bits(wave.vgpr[register][lane]) as f64, case.expected(&x, 0, 7, 11));
}

#[test]
fn accumulators_and_exec_make_no_difference() {
    let case = one("v_mfma_f32_32x32x8_f16");
    let to_agpr =
        |inst: &mut Inst| inst.operands[0].operand = Operand::Vector { row: 256, count: 16, half: Default::default() };
    let wave = run(&case, "gfx942", to_agpr, |wave| wave.set_exec(0));
    let plain = run(&case, "gfx942", |_| {}, |_| {});
    assert_eq!(wave.vgpr[256..272], plain.vgpr[..16]);
}

#[test]
fn gfx90a_flushes_sixteen_bits() {
    let subnormal = |wave: &mut Wave| {
        wave.vgpr[A..A + 2].fill([0x0001_0001; 64]);
        wave.vgpr[B..B + 2].fill([0x3c00_3c00; 64]);
        wave.vgpr[C..C + 4].fill([0; 64]);
    };
    let old = run(&one("v_mfma_f32_16x16x16f16"), "gfx90a", |_| {}, subnormal);
    let new = run(&one("v_mfma_f32_16x16x16_f16"), "gfx942", |_| {}, subnormal);
    assert_eq!(old.vgpr[0][0], 0);
    assert_eq!(f32::from_bits(new.vgpr[0][0]), 16.0 * 2f32.powi(-24));
}

#[test]
fn integers_saturate_with_clamp() {
    let case = one("v_wmma_i32_16x16x16_iu8");
    let big = |wave: &mut Wave| {
        wave.vgpr[A..A + 4].fill([0x0101_0101; 64]);
        wave.vgpr[B..B + 4].fill([0x0101_0101; 64]);
        wave.vgpr[C..C + 8].fill([i32::MAX as u32; 64]);
    };
    let clamped = run(&case, "gfx1100", |inst| inst.modifiers.clamp = true, big);
    let wrapped = run(&case, "gfx1100", |_| {}, big);
    assert_eq!(clamped.vgpr[0][0] as i32, i32::MAX);
    assert_eq!(wrapped.vgpr[0][0] as i32, i32::MIN + 15);
    // Without the sign bits the bytes are unsigned.
    let unsigned = |wave: &mut Wave| {
        wave.vgpr[A..A + 4].fill([u32::MAX; 64]);
        wave.vgpr[B..B + 4].fill([0x0101_0101; 64]);
        wave.vgpr[C..C + 8].fill([0; 64]);
    };
    assert_eq!(run(&case, "gfx1100", |inst| inst.modifiers.neg_lo = 0, unsigned).vgpr[0][0], 255 * 16);
    assert_eq!(run(&case, "gfx1100", |_| {}, unsigned).vgpr[0][0] as i32, -16);
}

#[test]
fn halves_of_gfx11_results_stay() {
    let case = one("v_wmma_f16_16x16x16_f16");
    let high = run(
        &case,
        "gfx1100",
        |inst| inst.modifiers.op_sel = Some(4),
        |wave| {
            let c: Vec<_> = wave.vgpr[C..C + 8].to_vec();
            for (to, from) in wave.vgpr[C..C + 8].iter_mut().zip(c) {
                *to = from.map(|x| x << 16);
            }
            wave.vgpr[..8].fill([0xaaaa_aaaa; 64]);
        },
    );
    let low = run(&case, "gfx1100", |_| {}, |wave| wave.vgpr[..8].fill([0xbbbb_bbbb; 64]));
    assert_eq!(high.vgpr[3][9] & 0xffff, 0xaaaa);
    assert_eq!(low.vgpr[3][9] >> 16, 0xbbbb);
    assert_eq!(high.vgpr[3][9] >> 16, low.vgpr[3][9] & 0xffff);
}

#[test]
fn unknown_shapes_and_formats_are_refused() {
    let isa = Isa::find("gfx950").unwrap();
    let mut wrong_format = chosen()[0].instruction(isa);
    wrong_format.modifiers.cbsz = 5;
    assert!(crate::vector::resolve(&mut wrong_format, isa).is_none());
    let mut wrong_shape = chosen()[0].instruction(isa);
    wrong_shape.mnemonic = "v_mfma_f32_8x8x8_f16".into();
    assert!(crate::vector::resolve(&mut wrong_shape, isa).is_none());
}
