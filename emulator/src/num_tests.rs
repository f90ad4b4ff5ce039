//! The conversions against the `half` crate and against searches over every code.
use super::*;
use crate::wave::Rounding;

const SMALL: [Small; 7] = [E4M3, E5M2, E4M3_FNUZ, E5M2_FNUZ, E2M3, E3M2, E2M1];

/// Numbers around every interesting boundary, and pseudo-random bits.
fn floats() -> Vec<f32> {
    let mut v = vec![0.0, 1.0, 448.0, 464.0, 464.001, 240.0, 248.0, 57344.0, 61440.0, 65504.0, 65519.99, 65520.0, 1e-8];
    v.extend([f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), f32::INFINITY, f32::NAN, f32::from_bits(0x7f80_0001)]);
    let mut s = 1u32;
    for _ in 0..200_000 {
        s = s.wrapping_mul(1664525).wrapping_add(1013904223);
        let wide = f32::from_bits(s ^ s >> 7);
        v.push(wide);
        v.push((s as i32 as f32) * 2f32.powi((s % 60) as i32 - 60));
    }
    let negative: Vec<f32> = v.iter().map(|x| -x).collect();
    v.extend(negative);
    v
}

#[test]
fn sixteen_bits_agree_with_half() {
    for b in 0..=u16::MAX {
        let (h, f) = (half::f16::from_bits(b), f16_to_f32(b));
        assert!(h.to_f32().to_bits() == f.to_bits() || h.is_nan() && f.is_nan(), "{b:#x}");
        assert!(f.to_bits() & 0x400000 != 0 || !f.is_nan());
        assert_eq!(half::bf16::from_bits(b).to_f32().to_bits() | 0x400000, bf16_to_f32(b).to_bits() | 0x400000);
    }
    for x in floats() {
        if x.is_nan() {
            assert!(f16_to_f32(f32_to_f16(x)).is_nan() && bf16_to_f32(f32_to_bf16(x)).is_nan());
            continue;
        }
        assert_eq!(half::f16::from_f32_const(x).to_bits(), f32_to_f16(x), "{x}");
        assert_eq!(half::bf16::from_f32(x).to_bits(), f32_to_bf16(x), "{x}");
        assert_eq!(f64_to_f16(x as f64, Rounding::NearestEven), f32_to_f16(x), "{x}");
    }
}

/// The neighbours of `x` in f32: the largest not above and the smallest not below.
fn around(x: f64) -> (f32, f32) {
    let n = x as f32;
    match (n as f64).partial_cmp(&x) {
        Some(std::cmp::Ordering::Less) => (n, n.next_up()),
        Some(std::cmp::Ordering::Greater) => (n.next_down(), n),
        _ => (n, n),
    }
}

#[test]
fn directed_rounding_picks_the_neighbour() {
    for (i, x) in floats().into_iter().enumerate().filter(|(_, x)| x.is_finite()) {
        let x = x as f64 * (1.0 + i as f64 * 1e-13);
        let (low, high) = around(x);
        assert_eq!(f64_to_f32(x, Rounding::Down), low, "{x:e}");
        assert_eq!(f64_to_f32(x, Rounding::Up), high, "{x:e}");
        assert_eq!(f64_to_f32(x, Rounding::TowardZero), if x < 0.0 { high } else { low }, "{x:e}");
    }
    assert_eq!(f64_to_f16(65519.0, Rounding::TowardZero), 0x7bff);
    assert_eq!(f64_to_f16(1e9, Rounding::Down), 0x7bff);
    assert_eq!(f64_to_f16(-1e9, Rounding::Down), 0xfc00);
    assert_eq!(f64_to_f16(2f64.powi(-30), Rounding::Up), 1);
}

#[test]
fn sums_to_odd_keep_what_a_plain_sum_loses() {
    // 1 + 2^-24 is a tie in f32; a little more must round up although f64 alone cannot see it.
    let (tie, more) = (1.0 + 2f64.powi(-24), 2f64.powi(-80));
    assert_eq!((tie + more) as f32, 1.0);
    assert_eq!(sum_to_odd(tie, more) as f32, 1.0 + 2f32.powi(-23));
    assert_eq!(sum_to_odd(tie, -more) as f32, 1.0);
    assert_eq!(sum_to_odd(1.0, 2.0), 3.0);
}

#[test]
fn known_codes() {
    assert_eq!(E4M3.decode(E4M3.max_code()), 448.0);
    assert_eq!(E5M2.decode(E5M2.max_code()), 57344.0);
    assert_eq!(E4M3_FNUZ.decode(E4M3_FNUZ.max_code()), 240.0);
    assert_eq!(E5M2_FNUZ.decode(E5M2_FNUZ.max_code()), 57344.0);
    assert_eq!([E2M3, E3M2, E2M1].map(|f| f.decode(f.max_code())), [7.5, 28.0, 6.0]);
    let fp4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(std::array::from_fn(|i| E2M1.decode(i as u32)), fp4);
    assert_eq!(E2M1.decode(0xb), -1.5);
    assert!(E4M3.decode(0x7f).is_nan() && E4M3.decode(0xff).is_nan() && E4M3_FNUZ.decode(0x80).is_nan());
    assert_eq!(E5M2.decode(0xfc), f32::NEG_INFINITY);
    assert!(E5M2.decode(0x7d).is_nan());
    assert_eq!(E4M3.decode(1), 2f32.powi(-9));
    assert_eq!(E5M2_FNUZ.decode(1), 2f32.powi(-17));
    assert_eq!([e8m0_to_f32(127), e8m0_to_f32(0), e8m0_to_f32(254)], [1.0, 2f32.powi(-127), 2f32.powi(127)]);
    assert!(e8m0_to_f32(255).is_nan());
}

#[test]
fn every_code_survives_a_round_trip() {
    for f in SMALL {
        for code in 0..1 << f.bits() {
            let x = f.decode(code);
            let back = f.encode(x as f64, Rounding::NearestEven, Overflow::Special);
            assert!(x.is_nan() && f.decode(back).is_nan() || back == code, "{f:?} {code:#x} {x}");
        }
    }
}

/// The nearest code by search, ties to the even one.
fn nearest(f: &Small, x: f32) -> u32 {
    let finite = 0..=f.max_code();
    let x = x.clamp(-1e6, 1e6);
    let distance = |c: u32| (f.decode(c) as f64 - x.abs() as f64).abs();
    let best = finite.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap();
    let signed = if x < 0.0 { best | 1 << (f.bits() - 1) } else { best };
    if f.specials == Specials::NegativeZeroNan && best == 0 { 0 } else { signed }
}

#[test]
fn encoding_is_to_nearest_even_and_saturates() {
    for f in SMALL {
        let max = f.decode(f.max_code());
        for x in floats().into_iter().step_by(37).filter(|x| x.is_finite() && *x != 0.0) {
            let code = f.encode(x as f64, Rounding::NearestEven, Overflow::Saturate);
            assert_eq!(code, nearest(&f, x), "{f:?} {x}");
            let special = f.encode(x as f64, Rounding::NearestEven, Overflow::Special);
            let half_step = (max - f.decode(f.max_code() - 1)) / 2.0;
            if f.specials != Specials::None && x.abs() > max + half_step {
                assert!(!f.decode(special).is_finite(), "{f:?} {x}");
            } else {
                assert_eq!(special, code, "{f:?} {x}");
            }
        }
    }
}

#[test]
fn stochastic_rounding_goes_up_in_proportion() {
    let x = 1.0 + 0.03125; // a quarter of the way between 1 and 1.125 in e4m3
    let ups = (0..256u32).filter(|r| E4M3.decode(E4M3.encode_stochastic(x, r << 24, Overflow::Saturate)) > 1.0).count();
    assert_eq!(ups, 64);
    assert_eq!(E4M3.encode_stochastic(1.0, u32::MAX, Overflow::Saturate), 0x38);
}
