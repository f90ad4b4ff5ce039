//! Functions that processors lack, as code: exponential, error function, sine and cosine,
//! logarithm.
use atomc_ir::arch::{Isa, Machine};
use atomc_ir::{Scalar, Turn, softplus};
use inkwell::FloatPredicate;
use inkwell::types::VectorType;
use inkwell::values::VectorValue;

use crate::code::{Any, Code, Int, Vector};

/// A vector of emitted code as the scalar of elementwise formulas.
#[derive(Clone, Copy)]
pub struct Lanes<'a, 'c> {
    pub code: &'a Code<'c>,
    pub v: Vector<'c>,
}

impl Scalar for Lanes<'_, '_> {
    fn add(self, o: Self) -> Self {
        Lanes { v: self.code.fadd(self.v, o.v), ..self }
    }
    fn sub(self, o: Self) -> Self {
        Lanes { v: self.code.fsub(self.v, o.v), ..self }
    }
    fn mul(self, o: Self) -> Self {
        Lanes { v: self.code.fmul(self.v, o.v), ..self }
    }
    fn div(self, o: Self) -> Self {
        Lanes { v: self.code.fdiv(self.v, o.v), ..self }
    }
    fn max(self, o: Self) -> Self {
        Lanes { v: self.code.fmax(o.v, self.v), ..self }
    }
    fn exp(self) -> Self {
        Lanes { v: exp(self.code, self.v), ..self }
    }
    fn erf(self) -> Self {
        Lanes { v: erf(self.code, self.v), ..self }
    }
    fn lit(self, v: f64) -> Self {
        Lanes { v: self.code.lit(v), ..self }
    }
}

/// The position that the angles of a rotation are for.
pub fn turned(position: Int<'_>, turn: Turn) -> Int<'_> {
    match turn {
        Turn::Token | Turn::Back => position,
        Turn::Block(every) => position / every * every,
    }
}

/// The square root of `ln(1 + exp(x))`.
pub fn root_softplus<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    code.root(softplus(Lanes { code, v: x }).v)
}

/// `c[0] + c[1] x + …`
fn polynomial<'c>(code: &Code<'c>, x: Vector<'c>, coefficients: &[f64]) -> Vector<'c> {
    let lit = |v: f64| constant(x, v);
    let (last, rest) = coefficients.split_last().expect("at least one");
    rest.iter().rev().fold(lit(*last), |sum, &c| code.fma(sum, x, lit(c)))
}

/// A constant of the type of `like`, f32 or f64.
fn constant<'c>(like: Vector<'c>, v: f64) -> Vector<'c> {
    let ty = like.get_type().get_element_type().into_float_type();
    VectorType::const_vector(&vec![ty.const_float(v); like.get_type().get_size() as usize])
}

/// Adding and subtracting this rounds an f32 below 2^22 to a whole number; in between, the number
/// is in the low bits.
const ROUND: f64 = 12582912.0;

/// Within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN stays.
pub fn exp<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    if let Machine::Simt(simt) = &code.arch.machine {
        return exp_by_two(code, simt.isa, x);
    }
    let lit = |v| code.lit(v);
    let low = compare(code, FloatPredicate::OLT, x, lit(-87.33654));
    let high = compare(code, FloatPredicate::OGT, x, lit(88.72283));
    let shifted = code.fma(x, lit(std::f64::consts::LOG2_E), lit(ROUND));
    let n = code.fsub(shifted, lit(ROUND));
    // ln 2 in two parts, the first with trailing zeros, so that n * part is exact.
    let r = code.fma(n, lit(-0.693359375), x);
    let r = code.fma(n, lit(2.12194440e-4), r);
    let p = polynomial(
        code,
        r,
        &[1.0, 1.0, 0.50000001201, 0.16666665459, 0.041665795894, 0.0083334519073, 0.0013981999507, 1.98756915e-4],
    );
    let y = scale_by_power(code, p, shifted);
    let y = code.choose(low, code.zero(), y);
    code.choose(high, code.lit(f64::INFINITY), y)
}

/// The exponential by the machine's power of two. The rounding error of the product would grow with
/// it, so it is corrected.
fn exp_by_two<'c>(code: &Code<'c>, isa: Isa, x: Vector<'c>) -> Vector<'c> {
    const LOW: f64 = std::f64::consts::LOG2_E - (std::f64::consts::LOG2_E as f32) as f64;
    let lit = |v| code.lit(v);
    let high = code.fmul(x, lit(std::f64::consts::LOG2_E));
    let low = code.fma(x, lit(std::f64::consts::LOG2_E), code.fsub(lit(-0.0), high));
    let low = code.fma(x, lit(LOW), low);
    let y = code.exp2(isa, high);
    let corrected = code.fma(y, code.fmul(low, lit(std::f64::consts::LN_2)), y);
    // An infinite power needs no correction.
    code.choose(compare(code, FloatPredicate::OLT, y, lit(f64::INFINITY)), corrected, y)
}

/// `p * 2^n` for n from -126 to 128, which `shifted` has in its low bits; in two factors, so that
/// 2^128 does not overflow too early.
fn scale_by_power<'c>(code: &Code<'c>, p: Vector<'c>, shifted: Vector<'c>) -> Vector<'c> {
    let i32s = code.ints(code.cx.i32_type(), code.lanes());
    let k = |n: u64| code.splat(code.cx.i32_type().const_int(n, false));
    let bits = code.bitcast(shifted, i32s).into_vector_value();
    let whole = code.b.build_int_sub(bits, k((ROUND as f32).to_bits() as u64), "").expect("integers");
    let half = code.b.build_right_shift(whole, k(1), true, "").expect("integers");
    let rest = code.b.build_int_sub(whole, half, "").expect("integers");
    let power = |e: VectorValue<'c>| {
        let biased = code.b.build_int_add(e, k(127), "").expect("integers");
        code.bitcast(code.b.build_left_shift(biased, k(23), "").expect("integers"), code.f32s()).into_vector_value()
    };
    code.fmul(code.fmul(p, power(half)), power(rest))
}

fn compare<'c>(code: &Code<'c>, how: FloatPredicate, a: Vector<'c>, b: Vector<'c>) -> Vector<'c> {
    code.b.build_float_compare(how, a, b, "").expect("floats of one type")
}

fn nearest<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    code.call("llvm.roundeven", &[x.get_type().into()], &[x.into()]).into_vector_value()
}

/// Absolute error below 2e-7: formula 7.1.26 of Abramowitz and Stegun is too coarse, so this is the
/// complementary function as `exp(-x^2) t P(t)`, `t = 1 / (1 + x / 2)`, with the Chebyshev fit of
/// Numerical Recipes (1.2e-7 relative).
pub fn erf<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    let lit = |v| code.lit(v);
    let a = code.call("llvm.fabs", &[x.get_type().into()], &[x.into()]).into_vector_value();
    let t = code.fdiv(lit(1.0), code.fma(a, lit(0.5), lit(1.0)));
    const FIT: [f64; 10] = [
        -1.26551223,
        1.00002368,
        0.37409196,
        0.09678418,
        -0.18628806,
        0.27886807,
        -1.13520398,
        1.48851587,
        -0.82215223,
        0.17087277,
    ];
    let p = polynomial(code, t, &FIT);
    let tail = code.fmul(t, exp(code, code.fsub(p, code.fmul(a, a))));
    let y = code.fsub(lit(1.0), tail);
    // Near zero 1 - erfc cancels: there the Taylor series is exact to f32.
    let near = {
        let q = code.fmul(x, x);
        let s = polynomial(
            code,
            q,
            &[
                std::f64::consts::FRAC_2_SQRT_PI,
                -0.3761263890,
                0.1128379167,
                -0.0268661706,
                0.0052239776,
                -0.0008548327,
            ],
        );
        code.fmul(x, s)
    };
    let signed = code.call("llvm.copysign", &[x.get_type().into()], &[y.into(), x.into()]).into_vector_value();
    code.choose(compare(code, FloatPredicate::OLT, a, lit(0.5)), near, signed)
}

fn wide<'c>(code: &Code<'c>) -> VectorType<'c> {
    code.cx.f64_type().vec_type(code.lanes() as u32)
}

pub fn to_wide<'c>(code: &Code<'c>, v: Vector<'c>) -> Vector<'c> {
    code.b.build_float_ext(v, wide(code), "").expect("f32 to f64")
}

pub fn to_narrow<'c>(code: &Code<'c>, v: Vector<'c>) -> Vector<'c> {
    code.b.build_float_trunc(v, code.f32s(), "").expect("f64 to f32")
}

/// Cosine and sine of f64 lanes up to about 1e9, as f32 results: reduced by quarter turns in f64,
/// where that is exact enough, then by the Taylor series.
pub fn cos_sin<'c>(code: &Code<'c>, x: Vector<'c>) -> (Vector<'c>, Vector<'c>) {
    let c = |v| constant(x, v);
    let n = nearest(code, code.fmul(x, c(std::f64::consts::FRAC_2_PI)));
    let r = code.fma(n, c(-std::f64::consts::FRAC_PI_2), x);
    let r = code.fma(n, c(-6.123233995736766e-17), r);
    let q = code.fmul(r, r);
    let cos =
        polynomial(code, q, &[1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40320.0, -1.0 / 3628800.0, 1.0 / 479001600.0]);
    let sin = [1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362880.0, -1.0 / 39916800.0, 1.0 / 6227020800.0];
    let sin = code.fmul(r, polynomial(code, q, &sin));
    let i64s = code.cx.i64_type().vec_type(code.lanes() as u32);
    let turns = code.b.build_float_to_signed_int(n, i64s, "").expect("small whole numbers");
    let k = |n: u64| code.splat(code.cx.i64_type().const_int(n, false));
    let bit = |v: Vector<'c>, b: u64| {
        let masked = code.b.build_and(v, k(b), "").expect("integers");
        code.b.build_int_compare(inkwell::IntPredicate::NE, masked, k(0), "").expect("integers")
    };
    let neg = |v: Vector<'c>| code.fsub(c(0.0), v);
    let swapped = bit(turns, 1);
    let (co, si) = (code.choose(swapped, sin, cos), code.choose(swapped, cos, sin));
    let next = code.b.build_int_add(turns, k(1), "").expect("integers");
    (code.choose(bit(next, 2), neg(co), co), code.choose(bit(turns, 2), neg(si), si))
}

/// Natural logarithm of f64 lanes that are normal and positive, to about 1e-14.
pub fn ln<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    let c = |v| constant(x, v);
    let i64s = code.cx.i64_type().vec_type(code.lanes() as u32);
    let k = |n: u64| code.splat(code.cx.i64_type().const_int(n, false));
    let bits = code.bitcast(x, i64s).into_vector_value();
    let exponent = code.b.build_right_shift(bits, k(52), false, "").expect("integers");
    let exponent = code.b.build_int_sub(exponent, k(1023), "").expect("integers");
    let e = code.b.build_signed_int_to_float(exponent, wide(code), "").expect("integers to floats");
    let fraction = code.b.build_and(bits, k((1 << 52) - 1), "").expect("integers");
    let fraction = code.b.build_or(fraction, k(1023 << 52), "").expect("integers");
    let m = code.bitcast(fraction, wide(code)).into_vector_value();
    // m is from 1 to 2; t = (m - 1) / (m + 1) is at most 1/3, and ln m = 2 artanh t.
    let t = code.fdiv(code.fsub(m, c(1.0)), code.fadd(m, c(1.0)));
    let series: Vec<f64> = (0..15).map(|i| 2.0 / (2 * i + 1) as f64).collect();
    let lnm = code.fmul(t, polynomial(code, code.fmul(t, t), &series));
    code.fma(e, c(std::f64::consts::LN_2), lnm)
}

/// What queries at a position are multiplied with: see `atomc_ir::Op::Growth`.
pub fn growth<'c>(c: &Code<'c>, position: Int<'c>, beta: f64, length: usize, shift: usize) -> Vector<'c> {
    let [lengths, _] = c.divide(position + shift, c.int(length));
    let lengths = c.b.build_signed_int_to_float(lengths.v, c.cx.f64_type(), "").expect("an integer");
    let lengths = c.splat(lengths);
    let grown = ln(c, c.fadd(lengths, constant(lengths, 1.0)));
    to_narrow(c, c.fma(grown, constant(grown, beta), constant(grown, 1.0)))
}

/// Exponential of f64 lanes between -40 and 40, to about 1e-13.
pub fn exp_wide<'c>(code: &Code<'c>, x: Vector<'c>) -> Vector<'c> {
    let c = |v| constant(x, v);
    let n = nearest(code, code.fmul(x, c(std::f64::consts::LOG2_E)));
    let r = code.fma(n, c(-std::f64::consts::LN_2), x);
    let mut factorial = 1.0;
    let series: Vec<f64> = (0..13)
        .map(|i| {
            if i > 0 {
                factorial *= i as f64
            }
            1.0 / factorial
        })
        .collect();
    let p = polynomial(code, r, &series);
    let i64s = code.cx.i64_type().vec_type(code.lanes() as u32);
    let k = |n: u64| code.splat(code.cx.i64_type().const_int(n, false));
    let whole = code.b.build_float_to_signed_int(n, i64s, "").expect("small whole numbers");
    let biased = code.b.build_int_add(whole, k(1023), "").expect("integers");
    let power: Any = code.bitcast(code.b.build_left_shift(biased, k(52), "").expect("integers"), wide(code));
    code.fmul(p, power.into_vector_value())
}

/// Logarithm of how much the base grows: see `atomc_ir::interp::stretch`.
pub fn log_stretch<'c>(c: &Code<'c>, length: Vector<'c>, growth: f64, original: usize) -> Vector<'c> {
    let lit = |v: f64| constant(length, v);
    let s = c.fsub(c.fmul(length, lit(growth / original as f64)), lit(growth - 1.0));
    ln(c, c.fmax(s, lit(1.0)))
}
