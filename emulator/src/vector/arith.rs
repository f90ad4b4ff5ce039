//! Sums and products in a rounding direction. The usual direction is a type, so that loops
//! vectorise.
use crate::num::{f16_to_f32, f64_to_f16, f64_to_f32, sum_to_odd};
use crate::wave::Rounding;

/// How results are rounded.
pub trait Direction: Copy {
    fn add32(self, a: f32, b: f32) -> f32;
    fn mul32(self, a: f32, b: f32) -> f32;
    fn fma32(self, a: f32, b: f32, c: f32) -> f32;
    fn add16(self, a: f32, b: f32) -> f32;
    fn mul16(self, a: f32, b: f32) -> f32;
    fn fma16(self, a: f32, b: f32, c: f32) -> f32;
    fn add64(self, a: f64, b: f64) -> f64;
    fn mul64(self, a: f64, b: f64) -> f64;
    fn fma64(self, a: f64, b: f64, c: f64) -> f64;
    /// f64 to f32.
    fn narrow(self, x: f64) -> f32;
    /// f32 to the f32 of an f16's value.
    fn half(self, x: f64) -> f32;
}

/// To nearest even.
#[derive(Clone, Copy)]
pub struct Nearest;

/// An f64 as f32, with the last bit set if it is inexact.
#[inline(always)]
pub fn to_odd32(x: f64) -> f32 {
    let r = x as f32;
    let back = f64::from(r);
    let bits = r.to_bits();
    let inexact = back != x && bits & 1 == 0 && x.is_finite() && r.is_finite();
    let away = (back < x) == (x > 0.0);
    f32::from_bits(if inexact { if away { bits + 1 } else { bits - 1 } } else { bits })
}

impl Direction for Nearest {
    #[inline(always)]
    fn add32(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn mul32(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn fma32(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn add16(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn mul16(self, a: f32, b: f32) -> f32 {
        a * b
    }
    /// The product of two f16 is exact in f64, and no f16 sum is a tie that f64 could hide (the
    /// addend reaches at most 2^16, the product's last bit is at least 2^-48); the step through f32
    /// is rounded to odd.
    #[inline(always)]
    fn fma16(self, a: f32, b: f32, c: f32) -> f32 {
        to_odd32(f64::from(a) * f64::from(b) + f64::from(c))
    }
    #[inline(always)]
    fn add64(self, a: f64, b: f64) -> f64 {
        a + b
    }
    #[inline(always)]
    fn mul64(self, a: f64, b: f64) -> f64 {
        a * b
    }
    #[inline(always)]
    fn fma64(self, a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn narrow(self, x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn half(self, x: f64) -> f32 {
        to_odd32(x)
    }
}

/// Exact sums that are zero are negative when rounding down, unless both addends are positive
/// zeros.
fn zero(sum: f64, a: f64, b: f64, r: Rounding) -> f64 {
    let both_positive = a.is_sign_positive() && b.is_sign_positive();
    if sum == 0.0 && r == Rounding::Down && !both_positive { -0.0 } else { sum }
}

/// Moves a result that was rounded to nearest in the direction that its error calls for.
fn directed64(result: f64, error: f64, r: Rounding) -> f64 {
    if !result.is_finite() || error == 0.0 {
        return result;
    }
    match r {
        Rounding::NearestEven => result,
        Rounding::Up if error > 0.0 => result.next_up(),
        Rounding::Down if error < 0.0 => result.next_down(),
        Rounding::TowardZero if result > 0.0 && error < 0.0 => result.next_down(),
        Rounding::TowardZero if result < 0.0 && error > 0.0 => result.next_up(),
        _ => result,
    }
}

/// The rounding error of a sum.
fn lost(a: f64, b: f64) -> f64 {
    let s = a + b;
    let t = s - a;
    (a - (s - t)) + (b - t)
}

impl Direction for Rounding {
    fn add32(self, a: f32, b: f32) -> f32 {
        let (a, b) = (f64::from(a), f64::from(b));
        f64_to_f32(zero(sum_to_odd(a, b), a, b, self), self)
    }
    fn mul32(self, a: f32, b: f32) -> f32 {
        f64_to_f32(f64::from(a) * f64::from(b), self)
    }
    fn fma32(self, a: f32, b: f32, c: f32) -> f32 {
        let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
        f64_to_f32(zero(sum_to_odd(p, c), p, c, self), self)
    }
    fn add16(self, a: f32, b: f32) -> f32 {
        let (a, b) = (f64::from(a), f64::from(b));
        self.half(zero(a + b, a, b, self))
    }
    fn mul16(self, a: f32, b: f32) -> f32 {
        self.half(f64::from(a) * f64::from(b))
    }
    fn fma16(self, a: f32, b: f32, c: f32) -> f32 {
        let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
        self.half(zero(sum_to_odd(p, c), p, c, self))
    }
    fn add64(self, a: f64, b: f64) -> f64 {
        directed64(zero(a + b, a, b, self), lost(a, b), self)
    }
    fn mul64(self, a: f64, b: f64) -> f64 {
        directed64(a * b, a.mul_add(b, -(a * b)), self)
    }
    fn fma64(self, a: f64, b: f64, c: f64) -> f64 {
        let p = a * b;
        let low = a.mul_add(b, -p);
        let result = a.mul_add(b, c);
        directed64(zero(result, p, c, self), ((p + c) - result) + (lost(p, c) + low), self)
    }
    fn narrow(self, x: f64) -> f32 {
        f64_to_f32(x, self)
    }
    fn half(self, x: f64) -> f32 {
        f16_to_f32(f64_to_f16(x, self))
    }
}
