//! Numbers that know how far a kernel may be off: the error budget.
//!
//! The interpreter runs a body once with [`Bound`]s, and every element of a result comes out with
//! the exact value and a budget that follows from the types in the body, the length of each
//! contraction and the data. Two kinds of errors are told apart:
//!
//! - Arithmetic in f32 is off by [`F32`] of the result of each operation. These errors add up as
//!   they are, since they may all have the same sign. Kernels may add in any order: the unit has
//!   room for that.
//! - Rounding to a 16-bit type is off by up to half a unit in the last place, in either direction
//!   and for each element anew: variances add up. Kernels may round every tensor that the graph
//!   gives such a type, and attention's weights to the type of the values that they are multiplied
//!   with; they need not. The same goes for what the codes of a weight mean, and the type of the
//!   rows that they are multiplied with.
//!
//! Elements of a cache of a coarser type than the graph's tensors are rounded by every kernel, so
//! that there the value itself is the rounded one; a number that lies near the middle of two may
//! have become either.
//!
//! What a kernel makes codes of is not rounded before, if it makes that too. Codes themselves are
//! rounded by every kernel: a number that lies near the middle of two may have become either, and
//! of many such numbers each goes its own way. Where numbers share a power of two as their scale,
//! and the largest may as well have another one, all of them may be codes by either.
//!
//! Products of codes of e4m3 with codes of e4m3 may be added up with fewer bits, which
//! [`COARSE`] counts.
//!
//! Kernels of the delta rule may form products of what tokens keep before these meet the state, so
//! that a decay below the smallest number may be none: [`DECAYED`] counts.
//!
//! Numbers that overflow their type, and all that is made of them, have a budget without end; so
//! have quotients by what may be zero.
//!
//! The budget is the sum of the first kind and [`SIGMAS`] standard deviations of the second.
//! Subnormal numbers of bf16 and f32 may be taken as zero.
use std::cmp::Ordering;

use crate::elementwise::Scalar;
use crate::interp::Real;
use crate::quantise;
use crate::types::DType;

use super::bytes;

/// Error of an operation in f32, of its result: four units roundoff, for approximate instructions
/// and for other orders.
const F32: f64 = 1.0 / (1 << 22) as f64;
/// Error of the sums of codes of e4m3 in NVIDIA's machines of the ninth generation, relative to the
/// largest number of the sum: 13 bits after its first, in each instruction. A lane's sums on an
/// H200 show it, and DeepSeek-V3's report says so (2412.19437, section 3.3.2).
const COARSE: f64 = 1.0 / (1 << 13) as f64;
/// Products of such an instruction.
const COARSE_PRODUCTS: usize = 32;
/// Factors that may be lost below the smallest number, for each result of a delta rule: those of a
/// chunk of 64 tokens, in three parts, and as many again for the state before it.
const DECAYED: f64 = (2 * 3 * 64) as f64;
/// Absolute error of a sine, a cosine or an error function.
const NEAR: f64 = 1.0 / (1 << 20) as f64;
/// The smallest normal number of f32 and of bf16.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
/// Numbers with a subnormal inverse. They may also have become infinity.
const INFINITE: f64 = 1.0 / SMALLEST;
const SIGMAS: f64 = 6.0;
/// The exponential of numbers that are off by no more is as good as straight.
const STRAIGHT: f64 = 0.25;

/// A value with its error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    value: f64,
    linear: f64,
    variance: f64,
    /// Unit roundoff of the coarsest type that the number was made of.
    unit: f64,
}

impl Bound {
    /// An operand of a kernel, which is exact.
    pub fn operand(value: f64, dtype: DType) -> Bound {
        Bound { unit: unit_of(dtype), ..Bound::of(value) }
    }

    /// How far a kernel may be off.
    pub fn budget(self) -> f64 {
        self.linear + SIGMAS * self.variance.sqrt()
    }

    /// Errors of a function of two numbers, by its slopes; the function itself is off by `off`.
    fn make(value: f64, off: f64, (a, da): (Bound, f64), (b, db): (Bound, f64)) -> Bound {
        // Nothing times infinity is nothing: a saturated function forgets the error of its operand.
        let scaled = |slope: f64, error: f64| if slope == 0.0 || error == 0.0 { 0.0 } else { slope.abs() * error };
        let linear = scaled(da, a.linear) + scaled(db, b.linear);
        let variance = scaled(da * da, a.variance) + scaled(db * db, b.variance);
        Bound { value, linear: linear + off + SMALLEST, variance, unit: a.unit.max(b.unit) }
    }

    /// What every kernel rounds: off only if a number within the budget is nearer to another one of
    /// the type.
    fn rounded(self, dtype: DType) -> Bound {
        let value = bytes::round(self.value, dtype);
        let off = |by: f64| (bytes::round(self.value + by, dtype) - value).abs();
        let linear = off(self.budget()).max(off(-self.budget()));
        Bound { value, linear, variance: 0.0, unit: self.unit }
    }

    /// `self + a * b` of numbers without end.
    #[cold]
    fn add_endless(self, a: Bound, b: Bound) -> Bound {
        self.add(a.mul(b))
    }

    fn map(self, value: f64, off: f64, slope: f64) -> Bound {
        Bound::make(value, off, (self, slope), (Bound::default(), 0.0))
    }
}

/// Half the distance from one to the next number.
fn unit_of(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        // Factors are never rounded to what only weights and caches have.
        _ => 0.0,
    }
}

/// Half the smallest number that f16 has.
const F16_FLOOR: f64 = 1.0 / (1 << 25) as f64;

impl PartialEq for Bound {
    fn eq(&self, o: &Bound) -> bool {
        self.value == o.value
    }
}

impl PartialOrd for Bound {
    fn partial_cmp(&self, o: &Bound) -> Option<Ordering> {
        self.value.partial_cmp(&o.value)
    }
}

impl Scalar for Bound {
    fn add(self, o: Self) -> Self {
        let value = self.value + o.value;
        Bound::make(value, F32 * value.abs(), (self, 1.0), (o, 1.0))
    }

    fn sub(self, o: Self) -> Self {
        let value = self.value - o.value;
        Bound::make(value, F32 * value.abs(), (self, 1.0), (o, 1.0))
    }

    fn mul(self, o: Self) -> Self {
        let value = self.value * o.value;
        Bound::make(value, F32 * value.abs(), (self, o.value), (o, self.value))
    }

    fn div(self, o: Self) -> Self {
        let value = self.value / o.value;
        // The inverse of such a number is subnormal, and it may itself have become infinity.
        let off = match o.value.abs() {
            size if size > INFINITE => value.abs(),
            // Nearly anything can come of a division by what may be nothing.
            size if o.budget() > size / 2.0 => f64::INFINITY,
            _ => F32 * value.abs(),
        };
        Bound::make(value, off, (self, 1.0 / o.value), (o, value / o.value))
    }

    fn max(self, o: Self) -> Self {
        let Bound { value, unit, .. } = if self.value >= o.value { self } else { o };
        Bound { value, linear: self.linear.max(o.linear), variance: self.variance.max(o.variance), unit }
    }

    fn exp(self) -> Self {
        let value = self.value.exp();
        // The argument is scaled before: an error in it is an error of the result's size.
        let off = if value.is_finite() { F32 * value * (1.0 + self.value.abs()) } else { 0.0 };
        let far = self.budget();
        let (least, most) = ((self.value - far).exp(), (self.value + far).exp());
        match value {
            _ if far <= STRAIGHT || least > INFINITE => {}
            // It overflows, and within the budget it may not: it is as well something else.
            value if value > INFINITE => {
                return Bound { value: 1.0, linear: f64::INFINITY, variance: 0.0, unit: self.unit };
            }
            _ => return Bound { value, linear: off + most - value + SMALLEST, variance: 0.0, unit: self.unit },
        }
        self.map(value, off, value)
    }

    fn erf(self) -> Self {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * (-self.value * self.value).exp();
        self.map(Scalar::erf(self.value), NEAR, slope)
    }

    fn lit(self, v: f64) -> Self {
        Bound { value: v, linear: if v as f32 as f64 == v { 0.0 } else { F32 * v.abs() }, ..Bound::default() }
    }
}

impl Real for Bound {
    fn of(value: f64) -> Bound {
        let linear = if value.abs() < SMALLEST { value.abs() } else { 0.0 };
        Bound { value, linear, ..Bound::default() }
    }

    fn get(self) -> f64 {
        self.value
    }

    fn sqrt(self) -> Bound {
        let value = self.value.sqrt();
        if value == 0.0 {
            return Bound { value, linear: self.linear.sqrt(), ..self };
        }
        self.map(value, F32 * value, 0.5 / value)
    }

    fn near(value: f64) -> Bound {
        Bound { linear: NEAR, ..Bound::of(value) }
    }

    fn stored(self, dtype: DType) -> Bound {
        if dtype == DType::F8E4M3 {
            return self.rounded(dtype);
        }
        let unit = unit_of(dtype).max(self.unit);
        if self.linear == 0.0 && self.variance == 0.0 && bytes::round(self.value, dtype) == self.value {
            return Bound { unit, ..self };
        }
        if self.value.abs() + self.budget() > bytes::largest(dtype) {
            return Bound { linear: f64::INFINITY, unit, ..self };
        }
        let floor = if dtype == DType::F16 { F16_FLOOR } else { SMALLEST };
        let variance = self.variance + (unit_of(dtype) * self.value).powi(2) / 3.0;
        Bound { linear: self.linear + floor, variance, unit, ..self }
    }

    /// Every kernel rounds to codes: off only if a number within the budget is nearer to another
    /// one, in either direction.
    fn coded(self, dtype: DType) -> Bound {
        let value = quantise::code(self.value, dtype);
        let off = |by: f64| (quantise::code(self.value + by, dtype) - value).abs();
        let off = off(self.budget()).max(off(-self.budget()));
        Bound { value, linear: 0.0, variance: off * off, unit: self.unit }
    }

    fn coarse(self, largest: f64, products: usize) -> Bound {
        let times = products.div_ceil(COARSE_PRODUCTS) as f64;
        Bound { linear: self.linear + COARSE * largest * times, ..self }
    }

    fn less_decayed(self, largest: f64) -> Bound {
        Bound { linear: self.linear + DECAYED * SMALLEST * largest, ..self }
    }

    fn narrowed(self) -> Bound {
        Bound { variance: self.variance + (self.unit * self.value).powi(2) / 3.0, ..self }
    }

    fn narrowed_to(self, other: Bound) -> Bound {
        let floor = if other.unit == unit_of(DType::F16) { F16_FLOOR } else { 0.0 };
        let variance = self.variance + (other.unit * self.value).powi(2) / 3.0;
        Bound { linear: self.linear + floor, variance, ..self }
    }

    fn range(self) -> [f64; 2] {
        [self.value - self.budget(), self.value + self.budget()]
    }

    fn or(self, other: Bound) -> Bound {
        Bound { linear: self.linear.max((other.value - self.value).abs() + other.budget()), ..self }
    }

    /// As addition and product do it one after the other, in one step where there is an end to it.
    #[inline(always)]
    fn add_product(self, a: Bound, b: Bound) -> Bound {
        let product = a.value * b.value;
        let value = self.value + product;
        let linear = b.value.abs() * a.linear + a.value.abs() * b.linear + F32 * (product.abs() + value.abs());
        let linear = self.linear + linear + 2.0 * SMALLEST;
        let variance = self.variance + b.value * b.value * a.variance + a.value * a.value * b.variance;
        if (linear + variance).is_finite() {
            Bound { value, linear, variance, unit: self.unit.max(a.unit).max(b.unit) }
        } else {
            self.add_endless(a, b)
        }
    }
}
