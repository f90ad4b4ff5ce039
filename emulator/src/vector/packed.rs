//! Instructions on two values at a time, and dot products of pairs.
use super::float::{of32, of32::*};
use super::kinds::{F32, I32, Kind, Pk16, PkBf16, PkF16, PkF32, PkS16, PkU32, U32};
use super::table::{Entry, builds, lanes, op, rounded};
use crate::inst::Inst;
use crate::isa::{Family, Isa};
use crate::num;
use crate::wave::Wave;

pub fn rows() -> Vec<Entry> {
    [pairs_of_f32(), halves(), integers(), dots()].concat()
}

/// `op_sel_hi` of a packed f32 constant chooses the same bits.
fn pairs_of_f32() -> Vec<Entry> {
    vec![
        rounded!("v_pk_add_f32", PkF32 = |r| (a: PkF32, b: PkF32) => [r.add32(a[0], b[0]), r.add32(a[1], b[1])]),
        rounded!("v_pk_mul_f32", PkF32 = |r| (a: PkF32, b: PkF32) => [r.mul32(a[0], b[0]), r.mul32(a[1], b[1])]),
        rounded!("v_pk_fma_f32", PkF32 = |r| (a: PkF32, b: PkF32, c: PkF32) =>
            [r.fma32(a[0], b[0], c[0]), r.fma32(a[1], b[1], c[1])]),
        Entry { prepare: Some(pk_mov), ..op!("v_pk_mov_b32", PkU32 = (a: PkU32, b: PkU32) => [a[0], b[1]]) },
    ]
}

/// The low result is a part of the first source by `op_sel`, the high one a part of the second by
/// `op_sel`, too.
fn pk_mov(inst: &mut Inst, _: &Isa) -> bool {
    let select = inst.modifiers.op_sel.unwrap_or(0);
    inst.modifiers.op_sel_hi = Some(select);
    true
}

/// A row with the IEEE bit.
macro_rules! order2 {
    ($names:literal, $pick:ident) => {{
        #[inline(always)]
        fn body(wave: &mut Wave, inst: &Inst) {
            let ieee = wave.mode.ieee && wave.isa.family != Family::Gfx12;
            let [a, b] = [1, 2].map(|p| PkS16::fetch(wave, inst, p));
            let mut out = PkS16::zero();
            for lane in 0..lanes!(wave) {
                let (a, b) = (PkS16::get(a[lane]), PkS16::get(b[lane]));
                out[lane] = PkS16::put([$pick(a[0], b[0], ieee), $pick(a[1], b[1], ieee)]);
            }
            PkS16::store(wave, inst, &mut out);
        }
        Entry::new($names, builds!(body), &[PkS16::CLASS], PkS16::CLASS)
    }};
}

fn halves() -> Vec<Entry> {
    vec![
        rounded!("v_pk_add_f16", PkF16 = |r| (a: PkF16, b: PkF16) => [r.add16(a[0], b[0]), r.add16(a[1], b[1])]),
        rounded!("v_pk_mul_f16", PkF16 = |r| (a: PkF16, b: PkF16) => [r.mul16(a[0], b[0]), r.mul16(a[1], b[1])]),
        rounded!("v_pk_fma_f16", PkF16 = |r| (a: PkF16, b: PkF16, c: PkF16) =>
            [r.fma16(a[0], b[0], c[0]), r.fma16(a[1], b[1], c[1])]),
        rounded!("v_pk_fmac_f16", PkF16 = |r| [d: PkF16] (a: PkF16, b: PkF16) =>
            [r.fma16(a[0], b[0], d[0]), r.fma16(a[1], b[1], d[1])]),
        order2!("v_pk_min_f16 v_pk_min_num_f16", min),
        order2!("v_pk_max_f16 v_pk_max_num_f16", max),
        op!("v_pk_minimum_f16", PkF16 = (a: PkF16, b: PkF16) => [of32::minimum(a[0], b[0]), of32::minimum(a[1], b[1])]),
        op!("v_pk_maximum_f16", PkF16 = (a: PkF16, b: PkF16) => [of32::maximum(a[0], b[0]), of32::maximum(a[1], b[1])]),
        op!("v_pk_minimum3_f16", PkF16 = (a: PkF16, b: PkF16, c: PkF16) =>
            [minimum(minimum(a[0], b[0]), c[0]), minimum(minimum(a[1], b[1]), c[1])]),
        op!("v_pk_maximum3_f16", PkF16 = (a: PkF16, b: PkF16, c: PkF16) =>
            [maximum(maximum(a[0], b[0]), c[0]), maximum(maximum(a[1], b[1]), c[1])]),
        op!("v_pk_add_bf16", PkBf16 = (a: PkBf16, b: PkBf16) => [a[0] + b[0], a[1] + b[1]]),
        op!("v_pk_mul_bf16", PkBf16 = (a: PkBf16, b: PkBf16) => [a[0] * b[0], a[1] * b[1]]),
    ]
}

/// Rows of one formula on unsigned halves, and on signed ones by `as`.
macro_rules! each {
    ($names:literal, ($($s:ident),*) => $e:expr) => {
        op!($names, Pk16 = ($($s: Pk16),*) => {
            let each = |k: usize| -> u16 { $(let $s = $s[k];)* $e };
            [each(0), each(1)]
        })
    };
}

fn saturating(plain: Entry, clamped: Entry) -> Entry {
    Entry { saturating: Some(clamped.run), ..plain }
}

fn integers() -> Vec<Entry> {
    vec![
        saturating(each!("v_pk_add_u16", (a, b) => a.wrapping_add(b)), each!("", (a, b) => a.saturating_add(b))),
        saturating(each!("v_pk_sub_u16", (a, b) => a.wrapping_sub(b)), each!("", (a, b) => a.saturating_sub(b))),
        saturating(
            each!("v_pk_add_i16", (a, b) => a.wrapping_add(b)),
            each!("", (a, b) => (a as i16).saturating_add(b as i16) as u16),
        ),
        saturating(
            each!("v_pk_sub_i16", (a, b) => a.wrapping_sub(b)),
            each!("", (a, b) => (a as i16).saturating_sub(b as i16) as u16),
        ),
        each!("v_pk_mul_lo_u16", (a, b) => a.wrapping_mul(b)),
        saturating(
            each!("v_pk_mad_u16", (a, b, c) => a.wrapping_mul(b).wrapping_add(c)),
            each!("", (a, b, c) => (u64::from(a) * u64::from(b) + u64::from(c)).min(0xffff) as u16),
        ),
        saturating(
            each!("v_pk_mad_i16", (a, b, c) => a.wrapping_mul(b).wrapping_add(c)),
            each!("", (a, b, c) => {
                let sum = i64::from(a as i16) * i64::from(b as i16) + i64::from(c as i16);
                sum.clamp(i16::MIN.into(), i16::MAX.into()) as u16
            }),
        ),
        each!("v_pk_min_u16", (a, b) => a.min(b)),
        each!("v_pk_max_u16", (a, b) => a.max(b)),
        each!("v_pk_min_i16", (a, b) => (a as i16).min(b as i16) as u16),
        each!("v_pk_max_i16", (a, b) => (a as i16).max(b as i16) as u16),
        each!("v_pk_lshlrev_b16", (a, b) => b << (a & 15)),
        each!("v_pk_lshrrev_b16", (a, b) => b >> (a & 15)),
        each!("v_pk_ashrrev_i16", (a, b) => (b as i16 >> (a & 15)) as u16),
    ]
}

/// Dot products of pairs. The order of the sum is first product, second product, addend, each step
/// a fused multiply-add of f32; the hardware rounds once or in another order, so that the last bit
/// may differ.
fn dots() -> Vec<Entry> {
    let half_result = |entry: Entry| Entry { keeps_high: true, ..entry };
    vec![
        op!("v_dot2_f32_f16", F32 = (a: PkF16, b: PkF16, c: F32) => dot(a, b, c)),
        op!("v_dot2c_f32_f16 v_dot2acc_f32_f16", F32 = [d: F32] (a: PkF16, b: PkF16) => dot(a, b, d)),
        op!("v_dot2_f32_bf16", F32 = (a: PkBf16, b: PkBf16, c: F32) => dot(a, b, c)),
        op!("v_dot2c_f32_bf16", F32 = [d: F32] (a: PkBf16, b: PkBf16) => dot(a, b, d)),
        half_result(Entry::new("v_dot2_f16_f16", builds!(dot2_16::<false>), DOT16, super::kinds::Class::B16)),
        half_result(Entry::new("v_dot2_bf16_bf16", builds!(dot2_16::<true>), DOTB16, super::kinds::Class::B16)),
        op!("v_dot2_i32_i16", I32 = (a: Pk16, b: Pk16, c: I32) =>
            (i32::from(a[0] as i16) * i32::from(b[0] as i16)).wrapping_add(i32::from(a[1] as i16) * i32::from(b[1] as i16)).wrapping_add(c)),
        op!("v_dot2c_i32_i16", I32 = [d: I32] (a: Pk16, b: Pk16) => {
            let [low, high] = [0, 1].map(|k| i32::from(a[k] as i16) * i32::from(b[k] as i16));
            low.wrapping_add(high).wrapping_add(d)
        }),
        op!("v_dot2_u32_u16", U32 = (a: Pk16, b: Pk16, c: U32) =>
            (u32::from(a[0]) * u32::from(b[0])).wrapping_add(u32::from(a[1]) * u32::from(b[1])).wrapping_add(c)),
        op!("v_dot4_f32_fp8_fp8", F32 = (a: U32, b: U32, c: F32) => dot4(a, b, c, &num::E4M3, &num::E4M3)),
        op!("v_dot4_f32_fp8_bf8", F32 = (a: U32, b: U32, c: F32) => dot4(a, b, c, &num::E4M3, &num::E5M2)),
        op!("v_dot4_f32_bf8_fp8", F32 = (a: U32, b: U32, c: F32) => dot4(a, b, c, &num::E5M2, &num::E4M3)),
        op!("v_dot4_f32_bf8_bf8", F32 = (a: U32, b: U32, c: F32) => dot4(a, b, c, &num::E5M2, &num::E5M2)),
    ]
}

const DOT16: &[super::kinds::Class] = &[PkF16::CLASS, PkF16::CLASS, super::kinds::Class::F16];
const DOTB16: &[super::kinds::Class] = &[PkBf16::CLASS, PkBf16::CLASS, super::kinds::Class::M16];

#[inline(always)]
fn dot(a: [f32; 2], b: [f32; 2], c: f32) -> f32 {
    a[1].mul_add(b[1], a[0].mul_add(b[0], c))
}

/// The products of 8-bit floats gfx12 has (OCP formats).
#[inline(always)]
fn dot4(a: u32, b: u32, c: f32, of_a: &num::Small, of_b: &num::Small) -> f32 {
    (0..4).fold(c, |sum, n| of_a.decode(a >> (8 * n) & 0xff).mul_add(of_b.decode(b >> (8 * n) & 0xff), sum))
}

#[inline(always)]
fn dot2_16<const BF16: bool>(wave: &mut Wave, inst: &Inst) {
    let class = if BF16 { PkBf16::CLASS } else { PkF16::CLASS };
    let [a, b] = [1, 2].map(|p| super::sources::fetch32(wave, inst, p, class));
    let c =
        super::sources::fetch32(wave, inst, 3, if BF16 { super::kinds::Class::M16 } else { super::kinds::Class::F16 });
    let mut out = Pk16::zero();
    for lane in 0..lanes!(wave) {
        out[lane] = u32::from(if BF16 {
            num::f32_to_bf16(dot(PkBf16::get(a[lane]), PkBf16::get(b[lane]), num::bf16_to_f32(c[lane] as u16)))
        } else {
            num::f32_to_f16(dot(PkF16::get(a[lane]), PkF16::get(b[lane]), num::f16_to_f32(c[lane] as u16)))
        });
    }
    super::results::store32(wave, inst, &mut out, super::kinds::Class::B16);
}
