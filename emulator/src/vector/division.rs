//! Correctly rounded division: scale the operands, refine a quotient, undo the scale, repair
//! special cases.
use super::kinds::{Class, F16, F32, F64, Kind};
use super::table::{Builds, Entry, builds, lanes, op};
use crate::inst::{Inst, scalar};
use crate::num;
use crate::wave::Wave;

/// 2^64 and 2^128, by which operands of f32 and of f64 are scaled, and their inverses.
const UP_32: f64 = (1u128 << 64) as f64;
const DOWN_32: f64 = 1.0 / UP_32;
const UP_64: f64 = UP_32 * UP_32;
const DOWN_64: f64 = 1.0 / UP_64;

pub fn rows() -> Vec<Entry> {
    vec![
        scale("v_div_scale_f32", builds!(div_scale_32), F32::CLASS),
        scale("v_div_scale_f64", builds!(div_scale_64), F64::CLASS),
        Entry { reads_vcc: true, ..Entry::new("v_div_fmas_f32", builds!(div_fmas_32), &[F32::CLASS], F32::CLASS) },
        Entry { reads_vcc: true, ..Entry::new("v_div_fmas_f64", builds!(div_fmas_64), &[F64::CLASS], F64::CLASS) },
        op!("v_div_fixup_f32", F32 = (q: F32, d: F32, n: F32) => fixup_32(q, d, n)),
        op!("v_div_fixup_f64", F64 = (q: F64, d: F64, n: F64) => fixup_64(q, d, n)),
        op!("v_div_fixup_legacy_f16", F16 = (q: F16, d: F16, n: F16) => fixup_16(q, d, n)),
        Entry { keeps_high: true, ..op!("v_div_fixup_f16", F16 = (q: F16, d: F16, n: F16) => fixup_16(q, d, n)) },
    ]
}

fn scale(names: &'static str, run: Builds, class: Class) -> Entry {
    Entry {
        dsts: 2,
        ..Entry::new(
            names,
            run,
            match class {
                Class::F64 => &[Class::F64],
                _ => &[Class::F32],
            },
            class,
        )
    }
}

/// One formula for both sizes; the source that is scaled is the first, which equals the second or
/// the third.
macro_rules! division {
    ($scale:ident, $one:ident, $fmas:ident, $fixup:ident, $K:ident, $T:ident, $mantissa:literal, $mask:literal, $far:literal,
     $up:expr, $down:expr, $tiny:literal, $least:literal) => {
        #[inline(always)]
        fn $one(s: $T, d: $T, n: $T) -> ($T, bool) {
            let exponent = |x: $T| (x.to_bits() >> $mantissa & $mask) as i32;
            let subnormal = |x: $T| x != 0.0 && exponent(x) == 0;
            let (up, down) = (s * $up, s * $down);
            let inverse = subnormal(1.0 / d);
            // A quotient that underflows to zero may still round up.
            let quotient = (n / d).abs() < $T::MIN_POSITIVE;
            if n == 0.0 || d == 0.0 {
                ($T::NAN, false)
            } else if exponent(n) - exponent(d) >= $far {
                (if s == d { up } else { s }, true)
            } else if subnormal(d) {
                (up, false)
            } else if inverse && quotient {
                (if s == d { down } else { s }, true)
            } else if inverse {
                (down, false)
            } else if quotient {
                (if s == n { up } else { s }, true)
            } else if exponent(n) <= $tiny {
                (up, false)
            } else {
                (s, false)
            }
        }

        #[inline(always)]
        fn $scale(wave: &mut Wave, inst: &Inst) {
            let [s, d, n] = [2, 3, 4].map(|p| $K::fetch(wave, inst, p));
            let mut out = $K::zero();
            let mut mask = 0u64;
            for lane in 0..lanes!(wave) {
                let (value, flag) = $one($K::get(s[lane]), $K::get(d[lane]), $K::get(n[lane]));
                out[lane] = $K::put(value);
                mask |= u64::from(flag) << lane;
            }
            $K::store(wave, inst, &mut out);
            wave.set_mask(inst.operand(1), mask & wave.exec());
        }

        /// The cases that the refinement cannot do: special operands, and quotients far below the
        /// least number.
        #[inline(always)]
        fn $fixup(q: $T, d: $T, n: $T) -> $T {
            let exponent = |x: $T| (x.to_bits() >> $mantissa & $mask) as i32;
            let negative = d.is_sign_negative() != n.is_sign_negative();
            let signed = |x: $T| if negative { -x } else { x };
            if n.is_nan() {
                n + n
            } else if d.is_nan() {
                d + d
            } else if d == 0.0 && n == 0.0 || d.is_infinite() && n.is_infinite() {
                $T::NAN
            } else if d == 0.0 || n.is_infinite() {
                signed($T::INFINITY)
            } else if d.is_infinite() || n == 0.0 || exponent(n) - exponent(d) < $least {
                signed(0.0)
            } else if q.is_nan() {
                signed($T::INFINITY)
            } else {
                signed(q.abs())
            }
        }
    };
}

division!(
    div_scale_32,
    scale_32,
    div_fmas_32,
    fixup_32,
    F32,
    f32,
    23,
    0xff,
    96,
    UP_32 as f32,
    DOWN_32 as f32,
    23,
    -150
);
division!(div_scale_64, scale_64, div_fmas_64, fixup_64, F64, f64, 52, 0x7ff, 768, UP_64, DOWN_64, 53, -1075);

#[inline(always)]
fn fixup_16(q: f32, d: f32, n: f32) -> f32 {
    fixup_32(q, d, n)
}

/// The last step of the refinement. If the operands were scaled (`vcc`), the quotient is scaled
/// back by 2^64, up if it is at least 2 and down otherwise, with one rounding.
#[inline(always)]
fn div_fmas_32(wave: &mut Wave, inst: &Inst) {
    let [a, b, c] = [1, 2, 3].map(|p| F32::fetch(wave, inst, p));
    let vcc = vcc(wave);
    let mut out = F32::zero();
    for lane in 0..lanes!(wave) {
        let (a, b, c) = (F32::get(a[lane]), F32::get(b[lane]), F32::get(c[lane]));
        let scaled =
            num::sum_to_odd(f64::from(a) * f64::from(b), f64::from(c)) * if c.abs() >= 2.0 { UP_32 } else { DOWN_32 };
        out[lane] = F32::put(if vcc >> lane & 1 == 1 { scaled as f32 } else { a.mul_add(b, c) });
    }
    F32::store(wave, inst, &mut out);
}

#[inline(always)]
fn div_fmas_64(wave: &mut Wave, inst: &Inst) {
    let [a, b, c] = [1, 2, 3].map(|p| F64::fetch(wave, inst, p));
    let vcc = vcc(wave);
    let mut out = F64::zero();
    for lane in 0..lanes!(wave) {
        let (a, b, c) = (F64::get(a[lane]), F64::get(b[lane]), F64::get(c[lane]));
        let r = a.mul_add(b, c);
        let scaled = if c.abs() >= 2.0 {
            r * UP_64
        } else {
            // Rounded to odd, since the smaller number may be subnormal and is rounded again.
            let error = a.mul_add(b, c - r);
            num::sum_to_odd(r, error) * DOWN_64
        };
        out[lane] = F64::put(if vcc >> lane & 1 == 1 { scaled } else { r });
    }
    F64::store(wave, inst, &mut out);
}

fn vcc(wave: &Wave) -> u64 {
    wave.scalar64(scalar::VCC)
}
