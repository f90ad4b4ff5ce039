//! How numbers become codes with a scale: the definition that interpreter and kernels share. It is
//! what vLLM computes, operation by operation in f32, so that codes are the same.
use crate::interp::Real;
use crate::trial::{largest, round};
use crate::types::{DType, Rule};

/// The nearest code of a type.
pub(crate) fn code(v: f64, dtype: DType) -> f64 {
    if dtype == DType::I8 { v.round().clamp(-128.0, 127.0) } else { round(v, dtype) }
}

/// The smallest scale of a row in f32, so that rows of nothing have one.
pub const LEAST_SCALE: f64 = 1.0 / (448.0 * 512.0);
/// The smallest size that a group, or a row of integers, is scaled for.
pub const LEAST_SIZE: f64 = 1e-10;

/// Numbers that share a scale, as codes times the scale.
pub(crate) fn coded<S: Real>(group: &[S], to: DType, rule: Rule, given: Option<S>) -> Vec<S> {
    let (zero, one) = (S::of(0.0), S::of(1.0));
    let size = group.iter().fold(zero, |most, &v| most.max(v).max(zero.sub(v)));
    let most = S::of(if to == DType::I8 { 127.0 } else { largest(to) });
    let by =
        |code: &dyn Fn(S) -> S, scale: S| -> Vec<S> { group.iter().map(|&v| code(v).coded(to).mul(scale)).collect() };
    match (rule, given) {
        (Rule::Static, given) => {
            let scale = given.unwrap_or(one);
            let inverse = one.div(scale);
            by(&|v| v.mul(inverse), scale)
        }
        (Rule::Row, _) if to == DType::I8 => {
            let size = size.max(S::of(LEAST_SIZE));
            let inverse = most.div(size);
            by(&|v| v.mul(inverse), size.div(most))
        }
        (Rule::Row, _) => {
            let scale = size.div(most).max(S::of(LEAST_SCALE));
            let inverse = one.div(scale);
            by(&|v| v.mul(inverse), scale)
        }
        (Rule::Group(_), _) => {
            let scale = size.max(S::of(LEAST_SIZE)).mul(one.div(most));
            by(&|v| v.div(scale), scale)
        }
        (Rule::Power(_), _) => {
            let size = size.max(S::of(LEAST_SIZE)).mul(one.div(most));
            with_either(size, |size| f64::from(power_above(size as f32)), |scale| by(&|v| v.div(scale), scale))
        }
        (Rule::Mx(_) | Rule::MxCodes(_), _) => {
            let scale = |size: f64| mx_exponent(size as f32, to).exp2();
            with_either(size, scale, |scale| by(&|v| v.mul(S::of(scale.get().recip())), scale))
        }
    }
}

/// Numbers by the power of two that their size has. Where the size may as well have another one,
/// all of them may be what they are by that.
fn with_either<S: Real>(size: S, power: impl Fn(f64) -> f64, made: impl Fn(S) -> Vec<S>) -> Vec<S> {
    let own = power(size.get());
    let others = size
        .range()
        .map(|size| power(size.max(f64::from(f32::MIN_POSITIVE))))
        .into_iter()
        .filter(|&other| other != own);
    let or = |made: Vec<S>, other: Vec<S>| made.into_iter().zip(other).map(|(v, other)| v.or(other)).collect();
    others.map(|other| made(S::of(other))).fold(made(S::of(own)), or)
}

/// The least power of two that is no smaller than a normal number.
fn power_above(v: f32) -> f32 {
    // NaN and infinity stay as they are.
    if v.is_finite() { f32::from_bits((v.to_bits() + MANTISSA) & !MANTISSA) } else { v }
}

/// The bits of a number's mantissa.
const MANTISSA: u32 = 0x7f_ffff;

/// The exponent of the power of two that numbers up to a size share.
fn mx_exponent(largest: f32, to: DType) -> f64 {
    let exponent = match to {
        // Codes reach 2^2 with a mantissa of their own.
        DType::F4E2M1 => f64::from(atomc_dtype::exponent(largest, 2)),
        _ => f64::from((largest.max(f32::MIN_POSITIVE) / 448.0).log2().ceil()),
    };
    exponent.clamp(-127.0, 127.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_e4m3() {
        let by = |rule, group: &[f32]| coded(group, DType::F8E4M3, rule, None);
        assert_eq!(by(Rule::Row, &[448.0, 1.0, -17.0, 0.0]), [448.0, 1.0, -16.0, 0.0]);
        // Scales that are powers of two: 500 takes 2 of them, 448 is what codes reach.
        assert_eq!(by(Rule::Power(4), &[448.0, 1.0, -17.0, 0.0]), [448.0, 1.0, -16.0, 0.0]);
        assert_eq!(by(Rule::Power(4), &[500.0, 1.0, -17.0, 33.0]), [512.0, 1.0, -16.0, 32.0]);
        assert_eq!(by(Rule::Power(1), &[3e-9]), [416.0 * 2f32.powi(-37)]);
        // Halves of the last place go to the even code.
        assert_eq!(by(Rule::Row, &[448.0, 17.0, 19.0]), [448.0, 16.0, 20.0]);
        assert_eq!(by(Rule::Row, &[0.0, -0.0]), [0.0, 0.0]);
        // Below the least scale numbers are lost.
        let least = LEAST_SCALE as f32;
        assert_eq!(by(Rule::Row, &[least, least / 1e4]), [least, 0.0]);
        assert_eq!(by(Rule::Group(2), &[448e-10, 1e-10]).len(), 2);
    }

    #[test]
    fn a_given_scale_saturates() {
        let made = coded(&[1.0f32, -3.0, 1e9], DType::F8E4M3, Rule::Static, Some(0.5));
        assert_eq!(made, [1.0, -3.0, 224.0]);
    }

    #[test]
    fn integers_are_rounded_away_from_zero() {
        assert_eq!(coded(&[127.0f32, 2.5, -2.5, 0.4], DType::I8, Rule::Row, None), [127.0, 3.0, -3.0, 0.0]);
        assert_eq!(code(-128.7, DType::I8), -128.0);
    }

    #[test]
    fn powers_of_two() {
        let e2m1 = |group: &[f32]| coded(group, DType::F4E2M1, Rule::Mx(32), None);
        assert_eq!(e2m1(&[6.0, 2.5, 0.3, -0.25]), [6.0, 2.0, 0.5, 0.0]);
        // From 1.75 times a power of two on the next one is taken.
        assert_eq!(e2m1(&[6.9, 1.0]), [6.0, 1.0]);
        assert_eq!(e2m1(&[7.0, 1.0]), [8.0, 1.0]);
        let e4m3 = |group: &[f32]| coded(group, DType::F8E4M3, Rule::Mx(32), None);
        assert_eq!(e4m3(&[448.0, 17.0]), [448.0, 16.0]);
        assert_eq!(e4m3(&[449.0, 17.0]), [448.0, 17.0 - 1.0]);
        assert_eq!(e4m3(&[0.0]), [0.0]);
    }
}
