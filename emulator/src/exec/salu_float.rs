//! Scalar floating-point arithmetic (gfx11.5, gfx12).
use std::cmp::Ordering;

use super::salu::{ScalarOp, put, src};
use crate::inst::Inst;
use crate::num;
use crate::wave::{Mode, Wave};

const PLAIN: ScalarOp = ScalarOp { run: |_, _| {}, dsts: 1, reads_dst: false, reads_scc: false, writes_scc: false };

/// A source as f32, subnormals as the mode says.
fn float(w: &Wave, i: &Inst, k: usize) -> f32 {
    keep(f32::from_bits(src(w, i.operand(k))), w.mode.denormals32_in)
}

fn keep(x: f32, denormals: bool) -> f32 {
    if x.is_subnormal() && !denormals { 0f32.copysign(x) } else { x }
}

fn result(w: &mut Wave, i: &Inst, value: f32) {
    let value = keep(value, w.mode.denormals32_out);
    put(w, i.operand(0), value.to_bits());
}

macro_rules! float {
    (|$a:ident, $b:ident, $m:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b, $m) = (float(w, i, 1), float(w, i, 2), w.mode);
                let v: f32 = $f;
                result(w, i, v)
            },
            ..PLAIN
        }
    };
    (|$a:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let $a = float(w, i, 1);
                let v: f32 = $f;
                result(w, i, v)
            },
            ..PLAIN
        }
    };
}

/// A conversion between bits.
macro_rules! convert {
    (|$a:ident, $m:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $m) = (src(w, i.operand(1)), w.mode);
                put(w, i.operand(0), $f)
            },
            ..PLAIN
        }
    };
}

macro_rules! compare {
    (|$a:ident, $b:ident| $f:expr) => {
        ScalarOp {
            run: |w, i| {
                let ($a, $b) = (float(w, i, 0), float(w, i, 1));
                w.scc = $f;
            },
            dsts: 0,
            writes_scc: true,
            ..PLAIN
        }
    };
}

/// Resolves a name without `s_`.
pub fn resolve(name: &str) -> Option<ScalarOp> {
    arithmetic(name).or_else(|| conversions(name)).or_else(|| comparisons(name.strip_prefix("cmp_")?))
}

/// Sums and products in f64 are exact or rounded once more without harm: f64 has more than twice
/// the digits.
fn round(x: f64, m: Mode) -> f32 {
    num::f64_to_f32(x, m.round32)
}

fn arithmetic(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "add_f32" => float!(|a, b, m| round(f64::from(a) + f64::from(b), m)),
        "sub_f32" => float!(|a, b, m| round(f64::from(a) - f64::from(b), m)),
        "mul_f32" => float!(|a, b, m| round(f64::from(a) * f64::from(b), m)),
        "min_f32" | "min_num_f32" => {
            float!(|a, b, _m| if b.is_nan() || a < b || a == b && a.is_sign_negative() { a } else { b })
        }
        "max_f32" | "max_num_f32" => {
            float!(|a, b, _m| if b.is_nan() || a > b || a == b && a.is_sign_positive() { a } else { b })
        }
        "fmac_f32" => ScalarOp {
            run: |w, i| result(w, i, float(w, i, 1).mul_add(float(w, i, 2), float(w, i, 0))),
            reads_dst: true,
            ..PLAIN
        },
        // The text has the sources in the order of the formula: a * constant + b, a * b + constant.
        "fmamk_f32" | "fmaak_f32" => {
            ScalarOp { run: |w, i| result(w, i, float(w, i, 1).mul_add(float(w, i, 2), float(w, i, 3))), ..PLAIN }
        }
        "ceil_f32" => float!(|a| a.ceil()),
        "floor_f32" => float!(|a| a.floor()),
        "trunc_f32" => float!(|a| a.trunc()),
        "rndne_f32" => float!(|a| a.round_ties_even()),
        _ => return None,
    })
}

fn conversions(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "cvt_f32_i32" => convert!(|a, m| round(f64::from(a as i32), m).to_bits()),
        "cvt_f32_u32" => convert!(|a, m| round(f64::from(a), m).to_bits()),
        "cvt_i32_f32" => convert!(|a, _m| f32::from_bits(a) as i32 as u32),
        "cvt_u32_f32" => convert!(|a, _m| f32::from_bits(a) as u32),
        "cvt_f16_f32" => convert!(|a, m| u32::from(num::f64_to_f16(f32::from_bits(a).into(), m.round16_64))),
        "cvt_f32_f16" => convert!(|a, _m| half::f16::from_bits(a as u16).to_f32().to_bits()),
        "cvt_hi_f32_f16" => convert!(|a, _m| half::f16::from_bits((a >> 16) as u16).to_f32().to_bits()),
        _ => return None,
    })
}

/// False where one is NaN.
fn ordered(a: f32, b: f32, holds: fn(Ordering) -> bool) -> bool {
    a.partial_cmp(&b).is_some_and(holds)
}

fn comparisons(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "lt_f32" => compare!(|a, b| a < b),
        "eq_f32" => compare!(|a, b| a == b),
        "le_f32" => compare!(|a, b| a <= b),
        "gt_f32" => compare!(|a, b| a > b),
        "lg_f32" => compare!(|a, b| ordered(a, b, Ordering::is_ne)),
        "ge_f32" => compare!(|a, b| a >= b),
        "o_f32" => compare!(|a, b| !a.is_nan() && !b.is_nan()),
        "u_f32" => compare!(|a, b| a.is_nan() || b.is_nan()),
        "nge_f32" => compare!(|a, b| !ordered(a, b, Ordering::is_ge)),
        "nlg_f32" => compare!(|a, b| !ordered(a, b, Ordering::is_ne)),
        "ngt_f32" => compare!(|a, b| !ordered(a, b, Ordering::is_gt)),
        "nle_f32" => compare!(|a, b| !ordered(a, b, Ordering::is_le)),
        "neq_f32" => compare!(|a, b| a != b),
        "nlt_f32" => compare!(|a, b| !ordered(a, b, Ordering::is_lt)),
        _ => return None,
    })
}
