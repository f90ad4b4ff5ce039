//! Comparisons, and instructions that masks of lanes control: select, carry.
// The negated predicates of the hardware accept unordered numbers, as the negated operators do.
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]
use super::flags;
use super::kinds::{Bits16, Bits32, Class, F16, F32, F64, I16, I32, I64, Kind, U16, U32, U64};
use super::results::written_lanes;
use super::table::{Entry, builds, lanes};
use crate::inst::{Inst, Operand, scalar};
use crate::wave::Wave;

pub fn rows() -> Vec<Entry> {
    [floats(), integers(), classes(), selects(), carries()].concat()
}

/// Gives a mask of lanes to its register, and to `exec` for `v_cmpx`. On gfx10 and later `v_cmpx`
/// has no other destination.
fn give(wave: &mut Wave, inst: &Inst, mask: u64) {
    let mask = mask & written_lanes(wave, inst);
    let writes_exec = flags::is_cmpx(inst);
    if !writes_exec || wave.isa.family.is_cdna() {
        wave.set_mask(inst.operand(0), mask);
    }
    if writes_exec {
        wave.set_exec(mask);
    }
}

/// A comparison of two sources. They are the last two operands of the text.
macro_rules! compare {
    ($names:literal, ($a:ident : $A:ident, $b:ident : $B:ident) => $e:expr) => {{
        #[inline(always)]
        fn body(wave: &mut Wave, inst: &Inst) {
            let first = usize::from(inst.count) - 2;
            let $a = $A::fetch(wave, inst, first);
            let $b = $B::fetch(wave, inst, first + 1);
            let mut halves = [0u32; 2];
            for half in 0..lanes!(wave) / 32 {
                let mut bits = 0;
                for lane in 0..32 {
                    let ($a, $b) = ($A::get($a[half * 32 + lane]), $B::get($b[half * 32 + lane]));
                    bits |= u32::from($e) << lane;
                }
                halves[half] = bits;
            }
            give(wave, inst, u64::from(halves[0]) | u64::from(halves[1]) << 32);
        }
        Entry::new($names, builds!(body), &[$A::CLASS, $B::CLASS], Class::Mask)
    }};
}

macro_rules! float_compares {
    ($K:ident: $($names:literal $op:tt $negated:literal),*) => {
        vec![$(
            compare!($names, (a: $K, b: $K) => (a $op b)),
            compare!($negated, (a: $K, b: $K) => !(a $op b)),
        )*]
    };
}

/// Less-or-greater, ordered and their opposites, and the constants.
macro_rules! order_compares {
    ($K:ident: $lg:literal $nlg:literal $o:literal $u:literal $f:literal $t:literal) => {
        vec![
            compare!($lg, (a: $K, b: $K) => a < b || a > b),
            compare!($nlg, (a: $K, b: $K) => !(a < b || a > b)),
            compare!($o, (a: $K, b: $K) => !a.is_nan() && !b.is_nan()),
            compare!($u, (a: $K, b: $K) => a.is_nan() || b.is_nan()),
            compare!($f, (a: $K, b: $K) => { let _ = (a, b); false }),
            compare!($t, (a: $K, b: $K) => { let _ = (a, b); true }),
        ]
    };
}

fn floats() -> Vec<Entry> {
    [
        float_compares!(F32: "v_cmp_lt_f32 v_cmpx_lt_f32" < "v_cmp_nlt_f32 v_cmpx_nlt_f32",
            "v_cmp_eq_f32 v_cmpx_eq_f32" == "v_cmp_neq_f32 v_cmpx_neq_f32",
            "v_cmp_le_f32 v_cmpx_le_f32" <= "v_cmp_nle_f32 v_cmpx_nle_f32",
            "v_cmp_gt_f32 v_cmpx_gt_f32" > "v_cmp_ngt_f32 v_cmpx_ngt_f32",
            "v_cmp_ge_f32 v_cmpx_ge_f32" >= "v_cmp_nge_f32 v_cmpx_nge_f32"),
        order_compares!(F32: "v_cmp_lg_f32 v_cmpx_lg_f32" "v_cmp_nlg_f32 v_cmpx_nlg_f32" "v_cmp_o_f32 v_cmpx_o_f32"
            "v_cmp_u_f32 v_cmpx_u_f32" "v_cmp_f_f32 v_cmpx_f_f32" "v_cmp_tru_f32 v_cmpx_tru_f32 v_cmp_t_f32 v_cmpx_t_f32"),
        float_compares!(F16: "v_cmp_lt_f16 v_cmpx_lt_f16" < "v_cmp_nlt_f16 v_cmpx_nlt_f16",
            "v_cmp_eq_f16 v_cmpx_eq_f16" == "v_cmp_neq_f16 v_cmpx_neq_f16",
            "v_cmp_le_f16 v_cmpx_le_f16" <= "v_cmp_nle_f16 v_cmpx_nle_f16",
            "v_cmp_gt_f16 v_cmpx_gt_f16" > "v_cmp_ngt_f16 v_cmpx_ngt_f16",
            "v_cmp_ge_f16 v_cmpx_ge_f16" >= "v_cmp_nge_f16 v_cmpx_nge_f16"),
        order_compares!(F16: "v_cmp_lg_f16 v_cmpx_lg_f16" "v_cmp_nlg_f16 v_cmpx_nlg_f16" "v_cmp_o_f16 v_cmpx_o_f16"
            "v_cmp_u_f16 v_cmpx_u_f16" "v_cmp_f_f16 v_cmpx_f_f16" "v_cmp_tru_f16 v_cmpx_tru_f16 v_cmp_t_f16 v_cmpx_t_f16"),
        float_compares!(F64: "v_cmp_lt_f64 v_cmpx_lt_f64" < "v_cmp_nlt_f64 v_cmpx_nlt_f64",
            "v_cmp_eq_f64 v_cmpx_eq_f64" == "v_cmp_neq_f64 v_cmpx_neq_f64",
            "v_cmp_le_f64 v_cmpx_le_f64" <= "v_cmp_nle_f64 v_cmpx_nle_f64",
            "v_cmp_gt_f64 v_cmpx_gt_f64" > "v_cmp_ngt_f64 v_cmpx_ngt_f64",
            "v_cmp_ge_f64 v_cmpx_ge_f64" >= "v_cmp_nge_f64 v_cmpx_nge_f64"),
        order_compares!(F64: "v_cmp_lg_f64 v_cmpx_lg_f64" "v_cmp_nlg_f64 v_cmpx_nlg_f64" "v_cmp_o_f64 v_cmpx_o_f64"
            "v_cmp_u_f64 v_cmpx_u_f64" "v_cmp_f_f64 v_cmpx_f_f64" "v_cmp_tru_f64 v_cmpx_tru_f64 v_cmp_t_f64 v_cmpx_t_f64"),
    ]
    .concat()
}

macro_rules! integer_compares {
    ($K:ident: $($names:literal $op:tt),*; $f:literal $t:literal) => {
        vec![
            $(compare!($names, (a: $K, b: $K) => (a $op b)),)*
            compare!($f, (a: $K, b: $K) => { let _ = (a, b); false }),
            compare!($t, (a: $K, b: $K) => { let _ = (a, b); true }),
        ]
    };
}

fn integers() -> Vec<Entry> {
    [
        integer_compares!(I32: "v_cmp_lt_i32 v_cmpx_lt_i32" <, "v_cmp_eq_i32 v_cmpx_eq_i32" ==, "v_cmp_le_i32 v_cmpx_le_i32" <=,
            "v_cmp_gt_i32 v_cmpx_gt_i32" >, "v_cmp_ne_i32 v_cmpx_ne_i32" !=, "v_cmp_ge_i32 v_cmpx_ge_i32" >=;
            "v_cmp_f_i32 v_cmpx_f_i32" "v_cmp_t_i32 v_cmpx_t_i32"),
        integer_compares!(U32: "v_cmp_lt_u32 v_cmpx_lt_u32" <, "v_cmp_eq_u32 v_cmpx_eq_u32" ==, "v_cmp_le_u32 v_cmpx_le_u32" <=,
            "v_cmp_gt_u32 v_cmpx_gt_u32" >, "v_cmp_ne_u32 v_cmpx_ne_u32" !=, "v_cmp_ge_u32 v_cmpx_ge_u32" >=;
            "v_cmp_f_u32 v_cmpx_f_u32" "v_cmp_t_u32 v_cmpx_t_u32"),
        integer_compares!(I16: "v_cmp_lt_i16 v_cmpx_lt_i16" <, "v_cmp_eq_i16 v_cmpx_eq_i16" ==, "v_cmp_le_i16 v_cmpx_le_i16" <=,
            "v_cmp_gt_i16 v_cmpx_gt_i16" >, "v_cmp_ne_i16 v_cmpx_ne_i16" !=, "v_cmp_ge_i16 v_cmpx_ge_i16" >=;
            "v_cmp_f_i16 v_cmpx_f_i16" "v_cmp_t_i16 v_cmpx_t_i16"),
        integer_compares!(U16: "v_cmp_lt_u16 v_cmpx_lt_u16" <, "v_cmp_eq_u16 v_cmpx_eq_u16" ==, "v_cmp_le_u16 v_cmpx_le_u16" <=,
            "v_cmp_gt_u16 v_cmpx_gt_u16" >, "v_cmp_ne_u16 v_cmpx_ne_u16" !=, "v_cmp_ge_u16 v_cmpx_ge_u16" >=;
            "v_cmp_f_u16 v_cmpx_f_u16" "v_cmp_t_u16 v_cmpx_t_u16"),
        integer_compares!(I64: "v_cmp_lt_i64 v_cmpx_lt_i64" <, "v_cmp_eq_i64 v_cmpx_eq_i64" ==, "v_cmp_le_i64 v_cmpx_le_i64" <=,
            "v_cmp_gt_i64 v_cmpx_gt_i64" >, "v_cmp_ne_i64 v_cmpx_ne_i64" !=, "v_cmp_ge_i64 v_cmpx_ge_i64" >=;
            "v_cmp_f_i64 v_cmpx_f_i64" "v_cmp_t_i64 v_cmpx_t_i64"),
        integer_compares!(U64: "v_cmp_lt_u64 v_cmpx_lt_u64" <, "v_cmp_eq_u64 v_cmpx_eq_u64" ==, "v_cmp_le_u64 v_cmpx_le_u64" <=,
            "v_cmp_gt_u64 v_cmpx_gt_u64" >, "v_cmp_ne_u64 v_cmpx_ne_u64" !=, "v_cmp_ge_u64 v_cmpx_ge_u64" >=;
            "v_cmp_f_u64 v_cmpx_f_u64" "v_cmp_t_u64 v_cmpx_t_u64"),
    ]
    .concat()
}

/// Whether a number's class is in a mask: signalling NaN, quiet NaN, then -infinity, -normal,
/// -subnormal, -0 and their positive counterparts in reverse.
macro_rules! class {
    ($name:ident, $bits:ident, $mantissa:literal, $exponent:literal) => {
        #[inline(always)]
        fn $name(x: $bits, mask: u32) -> bool {
            let negative = x >> ($mantissa + $exponent) & 1 == 1;
            let exponent = x >> $mantissa & ((1 << $exponent) - 1);
            let fraction = x & ((1 << $mantissa) - 1);
            let class = if exponent == (1 << $exponent) - 1 {
                if fraction != 0 {
                    return mask >> (fraction >> ($mantissa - 1) & 1) & 1 == 1;
                }
                0
            } else if exponent != 0 {
                1
            } else if fraction != 0 {
                2
            } else {
                3
            };
            mask >> if negative { 2 + class } else { 9 - class } & 1 == 1
        }
    };
}

class!(class16, u32, 10, 5);
class!(class32, u32, 23, 8);
class!(class64, u64, 52, 11);

fn classes() -> Vec<Entry> {
    vec![
        compare!("v_cmp_class_f32 v_cmpx_class_f32", (a: Bits32, b: U32) => class32(a, b)),
        compare!("v_cmp_class_f16 v_cmpx_class_f16", (a: Bits16, b: U32) => class16(a.into(), b)),
        compare!("v_cmp_class_f64 v_cmpx_class_f64", (a: F64, b: U32) => class64(a.to_bits(), b)),
    ]
}

fn selects() -> Vec<Entry> {
    const S32: &[Class] = &[Class::M32, Class::M32, Class::Mask];
    const S16: &[Class] = &[Class::M16, Class::M16, Class::Mask];
    vec![
        Entry { selects: true, ..Entry::new("v_cndmask_b32", builds!(select::<Bits32>), S32, Class::M32) },
        Entry { selects: true, ..Entry::new("v_cndmask_b16", builds!(select::<Bits16>), S16, Class::M16) },
    ]
}

/// The mask that an operand names; `vcc` if the text names none.
fn mask(wave: &Wave, inst: &Inst, position: usize) -> u64 {
    let named = if usize::from(inst.count) > position { inst.operand(position) } else { VCC };
    wave.mask(named)
}

const VCC: Operand = Operand::Scalar { index: scalar::VCC, count: 2 };

#[inline(always)]
fn select<K: Kind<Cell = u32>>(wave: &mut Wave, inst: &Inst) {
    let [zero, one] = [1, 2].map(|p| K::fetch(wave, inst, p));
    let mask = mask(wave, inst, 3);
    let mut out = K::zero();
    for half in 0..lanes!(wave) / 32 {
        let bits = (mask >> (32 * half)) as u32;
        for lane in 0..32 {
            let at = half * 32 + lane;
            out[at] = if bits >> lane & 1 == 1 { one[at] } else { zero[at] };
        }
    }
    K::store(wave, inst, &mut out);
}

/// Additions and subtractions with a carry to a mask. If `IN` is set, another mask is the carry in.
macro_rules! carry {
    ($names:literal, $in:literal, ($a:ident, $b:ident, $c:ident) => $e:expr) => {{
        #[inline(always)]
        fn body(wave: &mut Wave, inst: &Inst) {
            let [$a, $b] = [2, 3].map(|p| U32::fetch(wave, inst, p));
            let input = if $in { mask(wave, inst, 4) } else { 0 };
            let mut out = U32::zero();
            let mut halves = [0u32; 2];
            for half in 0..lanes!(wave) / 32 {
                let (bits, mut carries) = ((input >> (32 * half)) as u32, 0);
                for lane in 0..32 {
                    let at = half * 32 + lane;
                    let ($a, $b, $c) = (u64::from($a[at]), u64::from($b[at]), u64::from(bits >> lane & 1));
                    let wide: u64 = $e;
                    out[at] = wide as u32;
                    carries |= ((wide >> 32) as u32 & 1) << lane;
                }
                halves[half] = carries;
            }
            if inst.modifiers.clamp {
                saturate(&mut out, halves, $names);
            }
            U32::store(wave, inst, &mut out);
            let carries = u64::from(halves[0]) | u64::from(halves[1]) << 32;
            wave.set_mask(inst.operand(1), carries & written_lanes(wave, inst));
        }
        let sources: &[Class] = if $in { &[Class::B32, Class::B32, Class::Mask] } else { &[Class::B32] };
        let run = builds!(body);
        Entry { dsts: 2, saturating: Some(run), ..Entry::new($names, run, sources, Class::B32) }
    }};
}

/// Lanes with a carry become the largest number, lanes with a borrow zero.
fn saturate(out: &mut [u32], carries: [u32; 2], names: &str) {
    let limit = if names.starts_with("v_add") { u32::MAX } else { 0 };
    for (lane, x) in out.iter_mut().enumerate().filter(|(lane, _)| carries[lane / 32] >> (lane % 32) & 1 == 1) {
        let _ = lane;
        *x = limit;
    }
}

fn carries() -> Vec<Entry> {
    vec![
        carry!("v_add_co_u32", false, (a, b, c) => a + b + c),
        carry!("v_sub_co_u32", false, (a, b, c) => a.wrapping_sub(b).wrapping_sub(c)),
        carry!("v_subrev_co_u32", false, (a, b, c) => b.wrapping_sub(a).wrapping_sub(c)),
        carry!("v_addc_co_u32 v_add_co_ci_u32", true, (a, b, c) => a + b + c),
        carry!("v_subb_co_u32 v_sub_co_ci_u32", true, (a, b, c) => a.wrapping_sub(b).wrapping_sub(c)),
        carry!("v_subbrev_co_u32 v_subrev_co_ci_u32", true, (a, b, c) => b.wrapping_sub(a).wrapping_sub(c)),
        mad("v_mad_u64_u32 v_mad_co_u64_u32", builds!(mad_wide::<false>)),
        mad("v_mad_i64_i32 v_mad_co_i64_i32", builds!(mad_wide::<true>)),
    ]
}

fn mad(names: &'static str, run: super::table::Builds) -> Entry {
    Entry { dsts: 2, ..Entry::new(names, run, &[Class::B32, Class::B32, Class::B64], Class::B64) }
}

/// 32 by 32 bits plus 64, with the carry out of 64 bits (for signed ones, the overflow).
#[inline(always)]
fn mad_wide<const SIGNED: bool>(wave: &mut Wave, inst: &Inst) {
    let [a, b] = [2, 3].map(|p| U32::fetch(wave, inst, p));
    let c = U64::fetch(wave, inst, 4);
    let mut out = U64::zero();
    let mut carries = 0u64;
    for lane in 0..lanes!(wave) {
        let (sum, carry) = if SIGNED {
            let product = i64::from(a[lane] as i32) * i64::from(b[lane] as i32);
            let (sum, carry) = product.overflowing_add(c[lane] as i64);
            (sum as u64, carry)
        } else {
            (u64::from(a[lane]) * u64::from(b[lane])).overflowing_add(c[lane])
        };
        out[lane] = sum;
        carries |= u64::from(carry) << lane;
    }
    U64::store(wave, inst, &mut out);
    wave.set_mask(inst.operand(1), carries & written_lanes(wave, inst));
}
