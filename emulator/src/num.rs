//! Number formats: conversions between f32 or f64 and the chips' formats. Scalar and memory
//! instructions use them as well as vector arithmetic.
//!
//! Sixteen-bit conversions are branch-free, so that loops over lanes vectorise. Eight, six and four
//! bit formats are rows of [`Small`]: one decoder and one encoder serve them all. Encoders round
//! once, from an exact value.

use crate::wave::Rounding;

impl Rounding {
    /// Decodes the two bits of the MODE register.
    pub fn from_bits(bits: u32) -> Rounding {
        match bits & 3 {
            0 => Rounding::NearestEven,
            1 => Rounding::Up,
            2 => Rounding::Down,
            _ => Rounding::TowardZero,
        }
    }

    /// Rounds a magnitude to an integer; `negative` is the sign of the whole number.
    fn integer(self, magnitude: f64, negative: bool) -> f64 {
        match self {
            Rounding::NearestEven => magnitude.round_ties_even(),
            Rounding::TowardZero => magnitude.trunc(),
            Rounding::Up if negative => magnitude.trunc(),
            Rounding::Down if !negative => magnitude.trunc(),
            Rounding::Up | Rounding::Down => magnitude.ceil(),
        }
    }

    /// Whether an overflow of this sign becomes the largest finite number instead of infinity.
    fn stays_finite(self, negative: bool) -> bool {
        match self {
            Rounding::NearestEven => false,
            Rounding::TowardZero => true,
            Rounding::Up => negative,
            Rounding::Down => !negative,
        }
    }
}

/// 2 to the power of `e`, for any `e` in the range of normal f64 numbers.
pub fn exp2i(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The exponent of a finite non-zero f64 (that of the smallest normal number for subnormals).
fn exponent(x: f64) -> i32 {
    ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(-1022)
}

/// Rounds a finite number to `mantissa` fraction bits, with exponents not below `min_exponent`.
/// Exact for formats with a quantum that is a normal f64.
fn quantise(x: f64, mantissa: i32, min_exponent: i32, rounding: Rounding) -> f64 {
    if x == 0.0 {
        return x;
    }
    let quantum = exponent(x).max(min_exponent) - mantissa;
    let scaled = (x.abs() * exp2i(-quantum / 2)) * exp2i(-quantum - -quantum / 2);
    (rounding.integer(scaled, x < 0.0) * exp2i(quantum)).copysign(x)
}

/// Rounds an f64 to f32 in any direction.
pub fn f64_to_f32(x: f64, rounding: Rounding) -> f32 {
    if rounding == Rounding::NearestEven || !x.is_finite() {
        return x as f32;
    }
    let r = quantise(x, 23, -126, rounding);
    if r.abs() <= f32::MAX as f64 {
        r as f32
    } else if rounding.stays_finite(x < 0.0) {
        f32::MAX.copysign(r as f32)
    } else {
        r as f32
    }
}

/// Rounds an f64 to the bits of an f16 in any direction, once.
pub fn f64_to_f16(x: f64, rounding: Rounding) -> u16 {
    if x.is_nan() {
        return f32_to_f16(x as f32);
    }
    let sign = ((x.to_bits() >> 48) & 0x8000) as u16;
    if x.is_infinite() {
        return sign | 0x7c00;
    }
    let r = quantise(x, 10, -14, rounding);
    if r.abs() < 65536.0 {
        return f32_to_f16(r as f32);
    }
    sign | if rounding.stays_finite(x < 0.0) { 0x7bff } else { 0x7c00 }
}

/// The sum of two numbers with the lowest bit set if it is inexact (round to odd): rounding it
/// again to fewer bits gives the exact sum, rounded once.
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    if !s.is_finite() {
        return s;
    }
    let t = s - a;
    let error = (a - (s - t)) + (b - t);
    if error == 0.0 || s.to_bits() & 1 == 1 {
        return s;
    }
    let away = (error > 0.0) == (s > 0.0);
    f64::from_bits(if away { s.to_bits() + 1 } else { s.to_bits() - 1 })
}

/// bf16 to f32; exact.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// f32 to bf16, to nearest even. A NaN keeps its upper payload and becomes quiet.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    let rounded = b.wrapping_add(0x7fff + (b >> 16 & 1)) >> 16;
    let quiet = b >> 16 | 0x40;
    (if b & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

/// f16 to f32; exact. A signalling NaN becomes quiet.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    widen(bits, 0x7fc0_0000)
}

/// f16 to f32; exact. A signalling NaN stays one.
#[inline(always)]
pub fn f16_to_f32_signalling(bits: u16) -> f32 {
    widen(bits, 0x7f80_0000)
}

#[inline(always)]
fn widen(bits: u16, nan: u32) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let shifted = ((bits & 0x7fff) as u32) << 13;
    let normal = shifted + (112 << 23);
    let subnormal = (f32::from_bits(shifted + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let special = if shifted > 0x0f80_0000 { shifted | nan } else { 0x7f80_0000 };
    let magnitude = if shifted < 1 << 23 {
        subnormal
    } else if shifted < 0x0f80_0000 {
        normal
    } else {
        special
    };
    f32::from_bits(sign | magnitude)
}

/// f32 to f16, to nearest even, with subnormals. A NaN becomes quiet.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let b = x.to_bits();
    let sign = b >> 16 & 0x8000;
    let a = b & 0x7fff_ffff;
    // Adding one half aligns the quantum of f16 subnormals (2^-24) with the last bit of the f32
    // sum.
    let subnormal = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = a.wrapping_add(0xfff + (a >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    let nan = 0x7e00 | (a >> 13 & 0x3ff);
    let magnitude = if a > 0x7f80_0000 {
        nan
    } else if a >= 0x4780_0000 {
        0x7c00
    } else if a < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    (sign | magnitude) as u16
}

/// An exponent-only scale: 2^(bits - 127), or NaN for 0xff.
pub fn e8m0_to_f32(bits: u8) -> f32 {
    match bits {
        0xff => f32::NAN,
        0 => f32::from_bits(1 << 22),
        n => f32::from_bits((n as u32) << 23),
    }
}

/// The meaning of a small format's top codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// IEEE: the top exponent holds infinity and NaN (OCP e5m2).
    Ieee,
    /// Only the all-ones code of either sign is NaN, no infinity (OCP e4m3).
    OneNan,
    /// The code of negative zero is the only NaN; no infinity, no negative zero (FNUZ).
    NegativeZeroNan,
    /// Neither infinity nor NaN (fp6, fp4).
    None,
}

/// An encoder's result for numbers beyond the largest finite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// NaN, or infinity if the format has one.
    Special,
    /// The largest finite number (`FP16_OVFL` of the MODE register). An infinity stays a special.
    Saturate,
}

/// A floating-point format of at most eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    pub exponent: u32,
    pub mantissa: u32,
    pub bias: i32,
    pub specials: Specials,
}

/// fp8 of OCP (gfx950, gfx12).
pub const E4M3: Small = Small { exponent: 4, mantissa: 3, bias: 7, specials: Specials::OneNan };
/// bf8 of OCP (gfx950, gfx12).
pub const E5M2: Small = Small { exponent: 5, mantissa: 2, bias: 15, specials: Specials::Ieee };
/// fp8 of gfx940 and gfx942.
pub const E4M3_FNUZ: Small = Small { exponent: 4, mantissa: 3, bias: 8, specials: Specials::NegativeZeroNan };
/// bf8 of gfx940 and gfx942.
pub const E5M2_FNUZ: Small = Small { exponent: 5, mantissa: 2, bias: 16, specials: Specials::NegativeZeroNan };
/// fp6 of OCP microscaling.
pub const E2M3: Small = Small { exponent: 2, mantissa: 3, bias: 1, specials: Specials::None };
/// bf6 of OCP microscaling.
pub const E3M2: Small = Small { exponent: 3, mantissa: 2, bias: 3, specials: Specials::None };
/// fp4 of OCP microscaling.
pub const E2M1: Small = Small { exponent: 2, mantissa: 1, bias: 1, specials: Specials::None };

impl Small {
    /// Bits of one code.
    pub const fn bits(&self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    const fn sign(&self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// The code of the largest finite number.
    pub const fn max_code(&self) -> u32 {
        match self.specials {
            Specials::Ieee => (((1 << self.exponent) - 1) << self.mantissa) - 1,
            Specials::OneNan => self.sign() - 2,
            Specials::NegativeZeroNan | Specials::None => self.sign() - 1,
        }
    }

    fn nan(&self, sign: u32) -> u32 {
        match self.specials {
            Specials::NegativeZeroNan => self.sign(),
            Specials::None => sign | self.max_code(),
            _ => sign | (self.sign() - 1),
        }
    }

    /// The code of an infinite number: infinity, else NaN, else the largest number.
    fn infinity(&self, sign: u32) -> u32 {
        if self.specials == Specials::Ieee { sign | (self.max_code() + 1) } else { self.nan(sign) }
    }

    /// The value of a code; bits above the format are ignored.
    pub const fn decode(&self, code: u32) -> f32 {
        let sign = code & self.sign();
        let magnitude = code & (self.sign() - 1);
        let nan = match self.specials {
            Specials::Ieee => magnitude > self.max_code() + 1,
            Specials::OneNan => magnitude > self.max_code(),
            Specials::NegativeZeroNan => sign != 0 && magnitude == 0,
            Specials::None => false,
        };
        let top = (sign << (31 - self.exponent - self.mantissa)) & 0x8000_0000;
        if nan {
            return f32::from_bits(top | 0x7fc0_0000);
        }
        if matches!(self.specials, Specials::Ieee) && magnitude == self.max_code() + 1 {
            return f32::from_bits(top | 0x7f80_0000);
        }
        let exponent = (magnitude >> self.mantissa) as i32;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let (integer, scale) = if exponent == 0 { (fraction, 1) } else { (fraction | 1 << self.mantissa, exponent) };
        // Both factors are exact, and so is their product: no format here reaches below 2^-24.
        let unit = f32::from_bits(((127 + scale - self.bias - self.mantissa as i32) as u32) << 23);
        f32::from_bits((integer as f32 * unit).to_bits() | top)
    }

    /// All 256 values (fewer codes repeat), for loops that look values up.
    pub const fn table(&self) -> [f32; 256] {
        let mut t = [0.0; 256];
        let mut i = 0;
        while i < 256 {
            t[i] = self.decode(i as u32);
            i += 1;
        }
        t
    }

    /// The code of a number, rounded once.
    pub fn encode(&self, x: f64, rounding: Rounding, overflow: Overflow) -> u32 {
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        if x.is_nan() {
            return self.nan(sign);
        }
        if x.is_infinite() {
            // Formats without specials have nothing else to offer than their largest number.
            return self.infinity(sign);
        }
        let r = quantise(x, self.mantissa as i32, 1 - self.bias, rounding).abs();
        if r > self.decode(self.max_code()) as f64 {
            let finite = overflow == Overflow::Saturate || self.specials == Specials::None;
            return if finite { sign | self.max_code() } else { self.infinity(sign) };
        }
        self.code_of(r, sign)
    }

    /// The code of a magnitude that the format holds exactly.
    fn code_of(&self, r: f64, sign: u32) -> u32 {
        if r == 0.0 {
            return if self.specials == Specials::NegativeZeroNan { 0 } else { sign };
        }
        let e = exponent(r).max(1 - self.bias);
        let integer = (r * exp2i(self.mantissa as i32 - e)) as u32;
        // A subnormal has no implicit bit, so its exponent field becomes zero.
        let biased = (e + self.bias - 1) as u32;
        sign | ((biased << self.mantissa) + integer)
    }

    /// Stochastic rounding: the random bits are added below the last kept bit before truncation
    /// (`V_CVT_SR_*`: the upper bits of `random` against the bits that are cut off an f32).
    pub fn encode_stochastic(&self, x: f32, random: u32, overflow: Overflow) -> u32 {
        if !x.is_finite() || x == 0.0 {
            return self.encode(x as f64, Rounding::TowardZero, overflow);
        }
        let quantum = exponent(x as f64).max(1 - self.bias) - self.mantissa as i32;
        let dither = exp2i(quantum) * (random as f64 * exp2i(-32));
        self.encode(x as f64 + dither.copysign(x as f64), Rounding::TowardZero, overflow)
    }
}

#[cfg(test)]
#[path = "num_tests.rs"]
mod tests;
