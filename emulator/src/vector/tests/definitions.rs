//! The function of each instruction, in plain arithmetic.
use super::check;

type Define = fn(&[u64]) -> u64;

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
fn bf(x: f32) -> u64 {
    x.to_bits().into()
}
fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
fn h(x: u64) -> f64 {
    half::f16::from_bits(x as u16).to_f64()
}

/// An f64 as f16, rounded once: scaled so that the last place of the result is one.
fn bh(x: f64) -> u64 {
    if x == 0.0 || !x.is_finite() {
        return half::f16::from_f64(x).to_bits().into();
    }
    let place = 2f64.powi((x.abs().log2().floor() as i32).max(-14) - 10);
    half::f16::from_f64((x / place).round_ties_even() * place).to_bits().into()
}

fn i(x: u64) -> i64 {
    (x as u32 as i32).into()
}
fn s(x: u64) -> i64 {
    (x as u16 as i16).into()
}
fn u(x: i64) -> u64 {
    x as u32 as u64
}
fn u16_(x: i64) -> u64 {
    x as u16 as u64
}

/// Sign-extended low 24 bits.
fn i24(x: u64) -> i64 {
    ((x as i64) << 40) >> 40
}

fn m24(x: u64) -> u64 {
    x % (1 << 24)
}

/// The sine of quarter turns, exact if it is zero or one.
fn turned(x: f64, quarters: f64) -> f64 {
    let q = (x % 1.0) * 4.0 + quarters;
    match q.rem_euclid(4.0) {
        0.0 if quarters == 0.0 => {
            if x % 1.0 == 0.0 {
                x * 0.0
            } else {
                0.0
            }
        }
        0.0 | 2.0 => 0.0,
        1.0 => 1.0,
        3.0 => -1.0,
        _ => (q * std::f64::consts::FRAC_PI_2).sin(),
    }
}

/// The sum of differences of bytes, over those that have a counting reference.
fn sad8(x: &[u64], counts: fn(u8) -> bool) -> i64 {
    let bytes = |v: u64| (v as u32).to_le_bytes().into_iter();
    bytes(x[0]).zip(bytes(x[1])).filter(|(_, b)| counts(*b)).map(|(a, b)| i64::from(a.abs_diff(b))).sum()
}

/// Each half of a pair.
fn each(x: &[u64], one: impl Fn(&[u64]) -> u64) -> u64 {
    let low: Vec<u64> = x.iter().map(|v| v & 0xffff).collect();
    let high: Vec<u64> = x.iter().map(|v| v >> 16 & 0xffff).collect();
    one(&low) | one(&high) << 16
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// Maximum with zeros in order and, in IEEE mode, signalling NaN as the only NaN that wins.
fn max32(a: u64, b: u64) -> u64 {
    let signals = |x: u64| f(x).is_nan() && x & 0x40_0000 == 0;
    if signals(a) || signals(b) || f(a).is_nan() && f(b).is_nan() {
        return 0x7fc0_0000;
    }
    if f(a).is_nan() {
        return b;
    }
    if f(b).is_nan() || f(a).total_cmp(&f(b)).is_gt() {
        return a;
    }
    b
}
fn min32(a: u64, b: u64) -> u64 {
    max32(a ^ 0x8000_0000, b ^ 0x8000_0000) ^ 0x8000_0000
}
fn max64(a: u64, b: u64) -> u64 {
    match (d(a).is_nan(), d(b).is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ => {
            if d(a).total_cmp(&d(b)).is_gt() {
                a
            } else {
                b
            }
        }
    }
}
fn max16(a: u64, b: u64) -> u64 {
    let nan = |x: u64| h(x).is_nan();
    let signals = |x: u64| nan(x) && x & 0x200 == 0;
    if signals(a) || signals(b) || nan(a) && nan(b) {
        return 0x7e00;
    }
    if nan(a) || !nan(b) && h(b).total_cmp(&h(a)).is_gt() { b } else { a }
}
fn min16(a: u64, b: u64) -> u64 {
    max16(a ^ 0x8000, b ^ 0x8000) ^ 0x8000
}
fn maximum32(a: u64, b: u64) -> u64 {
    if f(a).is_nan() || f(b).is_nan() { 0x7fc0_0000 } else { max32(a, b) }
}
fn minimum32(a: u64, b: u64) -> u64 {
    if f(a).is_nan() || f(b).is_nan() { 0x7fc0_0000 } else { min32(a, b) }
}
fn maximum16(a: u64, b: u64) -> u64 {
    if h(a).is_nan() || h(b).is_nan() { 0x7e00 } else { max16(a, b) }
}
fn minimum16(a: u64, b: u64) -> u64 {
    if h(a).is_nan() || h(b).is_nan() { 0x7e00 } else { min16(a, b) }
}
fn med32(x: &[u64]) -> u64 {
    if x.iter().any(|v| f(*v).is_nan()) {
        return min32(min32(x[0], x[1]), x[2]);
    }
    let mut sorted = [x[0], x[1], x[2]];
    sorted.sort_by(|a, b| f(*a).total_cmp(&f(*b)));
    sorted[1]
}
fn med16(x: &[u64]) -> u64 {
    if x.iter().any(|v| h(*v).is_nan()) {
        return min16(min16(x[0], x[1]), x[2]);
    }
    let mut sorted = [x[0], x[1], x[2]];
    sorted.sort_by(|a, b| h(*a).total_cmp(&h(*b)));
    sorted[1]
}
fn middle(mut x: [i64; 3]) -> i64 {
    x.sort();
    x[1]
}
fn bf16(x: u64) -> f32 {
    half::bf16::from_bits(x as u16).to_f32()
}
fn to_bf16(x: f32) -> u64 {
    half::bf16::from_f32(x).to_bits().into()
}
/// A number toward zero in f16.
fn truncated16(x: f32) -> u64 {
    let near = half::f16::from_f32(x);
    let over = near.to_f32().abs() > x.abs();
    u64::from(if x.is_finite() && over { near.to_bits() - 1 } else { near.to_bits() })
}
fn fp8(x: f32) -> u64 {
    // FNUZ e4m3 by search; this list runs on gfx942.
    small(x, 240.0, 8, 3)
}
fn bf8(x: f32) -> u64 {
    small(x, 57344.0, 16, 2)
}
/// FNUZ: the nearest code, ties to the even one; beyond the largest, NaN.
fn small(x: f32, max: f64, bias: i32, mantissa: i32) -> u64 {
    let value = |code: u64| {
        let (e, m) = ((code >> mantissa) as i32, (code & ((1 << mantissa) - 1)) as f64);
        let scale = 2f64.powi(e.max(1) - bias - mantissa);
        (m + if e > 0 { 2f64.powi(mantissa) } else { 0.0 }) * scale
    };
    let step = value(127) - value(126);
    if x.is_nan() || f64::from(x.abs()) >= max + step / 2.0 {
        return 0x80;
    }
    let distance = |c: &u64| (value(*c) - f64::from(x.abs())).abs();
    let best = (0..128u64).min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap();
    if best == 0 { 0 } else { best | if x < 0.0 { 0x80 } else { 0 } }
}
fn perm(x: &[u64]) -> u64 {
    let bytes = (x[0] << 32 | x[1]).to_le_bytes();
    (0..4).fold(0, |out, n| {
        let byte = match x[2] >> (8 * n) & 0xff {
            k @ 0..8 => bytes[k as usize],
            k @ 8..12 => {
                if bytes[(2 * (k - 8) + 1) as usize] >= 0x80 {
                    0xff
                } else {
                    0
                }
            }
            12 => 0,
            _ => 0xff,
        };
        out | u64::from(byte) << (8 * n)
    })
}
fn class_fract(x: f32) -> u64 {
    if !x.is_finite() {
        bf(f32::NAN)
    } else {
        bf((f64::from(x) - f64::from(x).floor()).min(1.0 - 2f64.powi(-24)) as f32)
    }
}
fn frexp_exponent(x: f64) -> i64 {
    if x == 0.0 || !x.is_finite() {
        0
    } else {
        (0..3000)
            .map(|n| n - 1500)
            .find(|e: &i32| x.abs() < 2f64.powi(e / 2) * 2f64.powi(e - e / 2))
            .unwrap_or(1024)
            .into()
    }
}
fn fixup(q: f64, den: f64, num: f64) -> f64 {
    let sign = if den.is_sign_negative() ^ num.is_sign_negative() { -1.0 } else { 1.0 };
    let exponent = |x: f64| if x == 0.0 || x.is_subnormal() { -127 } else { (x.abs().log2().floor() as i32).max(-127) };
    match () {
        _ if num.is_nan() || den.is_nan() => f64::NAN,
        _ if num == 0.0 && den == 0.0 || num.is_infinite() && den.is_infinite() => f64::NAN,
        _ if den == 0.0 || num.is_infinite() => sign * f64::INFINITY,
        _ if num == 0.0 || den.is_infinite() || exponent(num) - exponent(den) < -150 => sign * 0.0,
        _ if q.is_nan() => sign * f64::INFINITY,
        _ => sign * q.abs(),
    }
}

/// Mnemonics, kinds (see [`check`]), units in the last place, definition.
const LIST: &[(&str, &str, u64, Define)] = &[
    ("v_add_u32 v_add_nc_u32", "u=uu", 0, |x| u((x[0] + x[1]) as i64)),
    ("v_sub_u32 v_sub_nc_u32 v_sub_i32 v_sub_nc_i32", "u=uu", 0, |x| u(x[0] as i64 - x[1] as i64)),
    ("v_subrev_u32 v_subrev_nc_u32", "u=uu", 0, |x| u(x[1] as i64 - x[0] as i64)),
    ("v_add_i32 v_add_nc_i32", "u=uu", 0, |x| u(i(x[0]) + i(x[1]))),
    ("v_add3_u32", "u=uuu", 0, |x| u((x[0] + x[1] + x[2]) as i64)),
    ("v_lshl_add_u32", "u=uuu", 0, |x| u(((x[0] << (x[1] % 32)) + x[2]) as i64)),
    ("v_add_lshl_u32", "u=uuu", 0, |x| u(((x[0] + x[1]) << (x[2] % 32)) as i64)),
    ("v_xad_u32", "u=uuu", 0, |x| u(((x[0] ^ x[1]) + x[2]) as i64)),
    ("v_sad_u32", "u=uuu", 0, |x| u((x[0] as i64 - x[1] as i64).abs() + x[2] as i64)),
    ("v_sad_u8", "u=uuu", 0, |x| {
        let parts = |v: u64| (v as u32).to_le_bytes();
        let sum: i64 = parts(x[0]).iter().zip(parts(x[1])).map(|(a, b)| (i64::from(*a) - i64::from(b)).abs()).sum();
        u(sum + x[2] as i64)
    }),
    ("v_sad_hi_u8", "u=uuu", 0, |x| u(((sad8(x, |_| true) << 16) + x[2] as i64) & 0xffff_ffff)),
    ("v_msad_u8", "u=uuu", 0, |x| u(sad8(x, |reference| reference != 0) + x[2] as i64)),
    ("v_sad_u16", "u=uuu", 0, |x| {
        let half = |n: u32| ((x[0] >> n) as u16 as i64 - (x[1] >> n) as u16 as i64).abs();
        u(half(0) + half(16) + x[2] as i64)
    }),
    ("v_lerp_u8", "u=uuu", 0, |x| {
        (0..4)
            .map(|n| {
                let byte = |k: usize| x[k] >> (8 * n) & 0xff;
                ((byte(0) + byte(1) + byte(2) % 2) / 2) << (8 * n)
            })
            .sum()
    }),
    ("v_ashr_pk_i8_i32", "s=uuu", 0, |x| {
        let one = |k: usize| (i(x[k]) >> (x[2] % 32)).clamp(-128, 127) as u8;
        u64::from(one(0)) | u64::from(one(1)) << 8
    }),
    ("v_ashr_pk_u8_i32", "s=uuu", 0, |x| {
        let one = |k: usize| (i(x[k]) >> (x[2] % 32)).clamp(0, 255) as u64;
        one(0) | one(1) << 8
    }),
    ("v_mul_lo_u32 v_mul_lo_i32", "u=uu", 0, |x| (x[0] as u128 * x[1] as u128) as u32 as u64),
    ("v_mul_hi_u32", "u=uu", 0, |x| (x[0] * x[1]) >> 32),
    ("v_mul_hi_i32", "u=uu", 0, |x| u((i(x[0]) * i(x[1])) >> 32)),
    ("v_mul_u32_u24", "u=uu", 0, |x| m24(x[0]) * m24(x[1]) % (1 << 32)),
    ("v_mul_i32_i24", "u=uu", 0, |x| u(i24(x[0]) * i24(x[1]))),
    ("v_mul_hi_u32_u24", "u=uu", 0, |x| (m24(x[0]) * m24(x[1])) >> 32),
    ("v_mul_hi_i32_i24", "u=uu", 0, |x| u((i24(x[0]) * i24(x[1])) >> 32)),
    ("v_mad_u32_u24", "u=uuu", 0, |x| (m24(x[0]) * m24(x[1]) + x[2]) % (1 << 32)),
    ("v_mad_i32_i24", "u=uuu", 0, |x| u(i24(x[0]) * i24(x[1]) + i(x[2]))),
    ("v_mad_u32_u16", "u=ssu", 0, |x| (x[0] * x[1] + x[2]) % (1 << 32)),
    ("v_mad_i32_i16", "u=ssu", 0, |x| u(s(x[0]) * s(x[1]) + i(x[2]))),
    ("v_dot4_u32_u8", "u=uuu", 0, |x| {
        (0..4).map(|n| (x[0] >> (8 * n) & 255) * (x[1] >> (8 * n) & 255)).sum::<u64>().wrapping_add(x[2]) % (1 << 32)
    }),
    ("v_dot4_i32_i8", "u=uuu", 0, |x| {
        u((0..4).map(|n| i64::from((x[0] >> (8 * n)) as i8) * i64::from((x[1] >> (8 * n)) as i8)).sum::<i64>()
            + i(x[2]))
    }),
    ("v_dot4c_i32_i8", "u+=uuu", 0, |x| {
        u((0..4).map(|n| i64::from((x[1] >> (8 * n)) as i8) * i64::from((x[2] >> (8 * n)) as i8)).sum::<i64>()
            + i(x[0]))
    }),
    ("v_dot8_u32_u4", "u=uuu", 0, |x| {
        ((0..8).map(|n| (x[0] >> (4 * n) & 15) * (x[1] >> (4 * n) & 15)).sum::<u64>() + x[2]) % (1 << 32)
    }),
    ("v_dot8_i32_i4", "u=uuu", 0, |x| {
        let four = |v: u64, n: i32| ((v >> (4 * n)) as i64) << 60 >> 60;
        u((0..8).map(|n| four(x[0], n) * four(x[1], n)).sum::<i64>() + i(x[2]))
    }),
    ("v_lshlrev_b32", "u=uu", 0, |x| x[1] * (1 << (x[0] % 32)) % (1 << 32)),
    ("v_lshrrev_b32", "u=uu", 0, |x| x[1] / (1 << (x[0] % 32))),
    ("v_ashrrev_i32", "u=uu", 0, |x| u(i(x[1]).div_euclid(1 << (x[0] % 32)))),
    ("v_lshl_b32", "u=uu", 0, |x| x[0] * (1 << (x[1] % 32)) % (1 << 32)),
    ("v_lshr_b32", "u=uu", 0, |x| x[0] / (1 << (x[1] % 32))),
    ("v_ashr_i32", "u=uu", 0, |x| u(i(x[0]).div_euclid(1 << (x[1] % 32)))),
    ("v_lshl_or_b32", "u=uuu", 0, |x| (x[0] * (1 << (x[1] % 32)) % (1 << 32)) | x[2]),
    ("v_alignbit_b32", "u=uuu", 0, |x| ((x[0] << 32 | x[1]) >> (x[2] % 32)) % (1 << 32)),
    ("v_alignbyte_b32", "u=uuu", 0, |x| ((x[0] << 32 | x[1]) >> (x[2] % 4 * 8)) % (1 << 32)),
    ("v_bfe_u32", "u=uuu", 0, |x| (x[0] >> (x[1] % 32)) % (1 << (x[2] % 32))),
    ("v_bfe_i32", "u=uuu", 0, |x| match x[2] % 32 {
        0 => 0,
        w => u(i(x[0]) >> (x[1] % 32) << (64 - w) >> (64 - w)),
    }),
    ("v_and_b32", "u=uu", 0, |x| x[0] & x[1]),
    ("v_or_b32", "u=uu", 0, |x| x[0] + x[1] - (x[0] & x[1])),
    ("v_xor_b32", "u=uu", 0, |x| (x[0] | x[1]) - (x[0] & x[1])),
    ("v_xnor_b32", "u=uu", 0, |x| 0xffff_ffff - (x[0] ^ x[1])),
    ("v_not_b32", "u=u", 0, |x| 0xffff_ffff - x[0]),
    ("v_bfrev_b32", "u=u", 0, |x| (0..32).fold(0, |r, n| r | (x[0] >> n & 1) << (31 - n))),
    ("v_bfm_b32", "u=uu", 0, |x| (((1 << (x[0] % 32)) - 1) << (x[1] % 32)) % (1 << 32)),
    ("v_bfi_b32", "u=uuu", 0, |x| {
        (0..32).fold(0, |r, n| r | (if x[0] >> n & 1 == 1 { x[1] } else { x[2] } >> n & 1) << n)
    }),
    ("v_bcnt_u32_b32", "u=uu", 0, |x| ((0..32).map(|n| x[0] >> n & 1).sum::<u64>() + x[1]) % (1 << 32)),
    ("v_ffbh_u32 v_clz_i32_u32", "u=u", 0, |x| (0..32).find(|n| x[0] >> (31 - n) & 1 == 1).unwrap_or(0xffff_ffff)),
    ("v_ffbl_b32 v_ctz_i32_b32", "u=u", 0, |x| (0..32).find(|n| x[0] >> n & 1 == 1).unwrap_or(0xffff_ffff)),
    ("v_ffbh_i32 v_cls_i32", "u=u", 0, |x| (1..32).find(|n| x[0] >> (31 - n) & 1 != x[0] >> 31).unwrap_or(0xffff_ffff)),
    ("v_and_or_b32", "u=uuu", 0, |x| x[0] & x[1] | x[2]),
    ("v_or3_b32", "u=uuu", 0, |x| x[0] | x[1] | x[2]),
    ("v_xor3_b32", "u=uuu", 0, |x| x[0] ^ x[1] ^ x[2]),
    ("v_perm_b32", "u=uuu", 0, perm),
    ("v_min3_u32", "u=uuu", 0, |x| *x.iter().min().unwrap()),
    ("v_max3_u32", "u=uuu", 0, |x| *x.iter().max().unwrap()),
    ("v_med3_u32", "u=uuu", 0, |x| u(middle([x[0] as i64, x[1] as i64, x[2] as i64]))),
    ("v_min3_i32", "u=uuu", 0, |x| u(x.iter().map(|v| i(*v)).min().unwrap())),
    ("v_max3_i32", "u=uuu", 0, |x| u(x.iter().map(|v| i(*v)).max().unwrap())),
    ("v_med3_i32", "u=uuu", 0, |x| u(middle([i(x[0]), i(x[1]), i(x[2])]))),
    ("v_maxmin_u32", "u=uuu", 0, |x| x[0].max(x[1]).min(x[2])),
    ("v_minmax_u32", "u=uuu", 0, |x| x[0].min(x[1]).max(x[2])),
    ("v_maxmin_i32", "u=uuu", 0, |x| u(i(x[0]).max(i(x[1])).min(i(x[2])))),
    ("v_minmax_i32", "u=uuu", 0, |x| u(i(x[0]).min(i(x[1])).max(i(x[2])))),
    ("v_min_u32", "u=uu", 0, |x| x[0].min(x[1])),
    ("v_max_u32", "u=uu", 0, |x| x[0].max(x[1])),
    ("v_min_i32", "u=uu", 0, |x| u(i(x[0]).min(i(x[1])))),
    ("v_max_i32", "u=uu", 0, |x| u(i(x[0]).max(i(x[1])))),
    ("v_min_u16", "s=ss", 0, |x| x[0].min(x[1])),
    ("v_max_u16", "s=ss", 0, |x| x[0].max(x[1])),
    ("v_min_i16", "s=ss", 0, |x| u16_(s(x[0]).min(s(x[1])))),
    ("v_max_i16", "s=ss", 0, |x| u16_(s(x[0]).max(s(x[1])))),
    ("v_min3_u16", "s=sss", 0, |x| *x.iter().min().unwrap()),
    ("v_max3_u16", "s=sss", 0, |x| *x.iter().max().unwrap()),
    ("v_med3_u16", "s=sss", 0, |x| u16_(middle([x[0] as i64, x[1] as i64, x[2] as i64]))),
    ("v_min3_i16", "s=sss", 0, |x| u16_(x.iter().map(|v| s(*v)).min().unwrap())),
    ("v_max3_i16", "s=sss", 0, |x| u16_(x.iter().map(|v| s(*v)).max().unwrap())),
    ("v_med3_i16", "s=sss", 0, |x| u16_(middle([s(x[0]), s(x[1]), s(x[2])]))),
    ("v_add_u16 v_add_nc_u16 v_add_i16 v_add_nc_i16", "s=ss", 0, |x| u16_((x[0] + x[1]) as i64)),
    ("v_sub_u16 v_sub_nc_u16 v_sub_i16 v_sub_nc_i16", "s=ss", 0, |x| u16_(x[0] as i64 - x[1] as i64)),
    ("v_subrev_u16", "s=ss", 0, |x| u16_(x[1] as i64 - x[0] as i64)),
    ("v_mul_lo_u16", "s=ss", 0, |x| u16_((x[0] * x[1]) as i64)),
    ("v_mad_u16 v_mad_i16 v_mad_legacy_u16 v_mad_legacy_i16", "s=sss", 0, |x| u16_((x[0] * x[1] + x[2]) as i64)),
    ("v_lshlrev_b16", "s=ss", 0, |x| u16_((x[1] << (x[0] % 16)) as i64)),
    ("v_lshrrev_b16", "s=ss", 0, |x| x[1] >> (x[0] % 16)),
    ("v_ashrrev_i16", "s=ss", 0, |x| u16_(s(x[1]) >> (x[0] % 16))),
    ("v_and_b16", "s=ss", 0, |x| x[0] & x[1]),
    ("v_or_b16", "s=ss", 0, |x| x[0] | x[1]),
    ("v_xor_b16", "s=ss", 0, |x| x[0] ^ x[1]),
    ("v_not_b16", "s=s", 0, |x| 0xffff - x[0]),
    ("v_cvt_i32_i16", "u=s", 0, |x| u(s(x[0]))),
    ("v_cvt_u32_u16", "u=s", 0, |x| x[0]),
    ("v_lshlrev_b64", "w=uw", 0, |x| (u128::from(x[1]) << (x[0] % 64)) as u64),
    ("v_lshrrev_b64", "w=uw", 0, |x| (u128::from(x[1]) >> (x[0] % 64)) as u64),
    ("v_ashrrev_i64", "w=uw", 0, |x| (i128::from(x[1] as i64) >> (x[0] % 64)) as u64),
    ("v_lshl_add_u64", "w=wuw", 0, |x| ((u128::from(x[0]) << (x[1] % 64)) + u128::from(x[2])) as u64),
    ("v_mov_b64", "w=w", 0, |x| x[0]),
    ("v_add_nc_u64", "w=ww", 0, |x| (u128::from(x[0]) + u128::from(x[1])) as u64),
    ("v_sub_nc_u64", "w=ww", 0, |x| (i128::from(x[0]) - i128::from(x[1])) as u64),
    (
        "v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32 v_accvgpr_read v_accvgpr_write",
        "u=u",
        0,
        |x| x[0],
    ),
    ("v_mov_b16", "s=s", 0, |x| x[0]),
    ("v_prng_b32", "u=u", 0, |x| ((x[0] << 1) % (1 << 32)) ^ if x[0] >= 1 << 31 { 0xc5 } else { 0 }),
    ("v_add_f32", "f=ff", 0, |x| bf((f64::from(f(x[0])) + f64::from(f(x[1]))) as f32)),
    ("v_sub_f32", "f=ff", 0, |x| bf((f64::from(f(x[0])) - f64::from(f(x[1]))) as f32)),
    ("v_subrev_f32", "f=ff", 0, |x| bf((f64::from(f(x[1])) - f64::from(f(x[0]))) as f32)),
    ("v_mul_f32", "f=ff", 0, |x| bf((f64::from(f(x[0])) * f64::from(f(x[1]))) as f32)),
    ("v_fma_f32", "f=fff", 0, |x| bf(f(x[0]).mul_add(f(x[1]), f(x[2])))),
    ("v_fmac_f32", "f+=fff", 0, |x| bf(f(x[1]).mul_add(f(x[2]), f(x[0])))),
    ("v_fmaak_f32", "f=fff", 0, |x| bf(f(x[0]).mul_add(f(x[1]), f(x[2])))),
    ("v_fmamk_f32", "f=fff", 0, |x| bf(f(x[0]).mul_add(f(x[1]), f(x[2])))),
    ("v_mad_f32 v_madak_f32 v_madmk_f32", "f=fff", 0, |x| {
        bf(flush(flush(flush(f(x[0])) * flush(f(x[1]))) + flush(f(x[2]))))
    }),
    ("v_mac_f32", "f+=fff", 0, |x| bf(flush(flush(flush(f(x[1])) * flush(f(x[2]))) + flush(f(x[0]))))),
    ("v_mul_legacy_f32 v_mul_dx9_zero_f32", "f=ff", 0, |x| {
        bf(if f(x[0]) == 0.0 || f(x[1]) == 0.0 { 0.0 } else { f(x[0]) * f(x[1]) })
    }),
    ("v_fma_legacy_f32 v_fma_dx9_zero_f32", "f=fff", 0, |x| {
        bf(if f(x[0]) == 0.0 || f(x[1]) == 0.0 { f(x[2]) + 0.0 } else { f(x[0]).mul_add(f(x[1]), f(x[2])) })
    }),
    ("v_mad_legacy_f32", "f=fff", 0, |x| {
        bf(if f(x[0]) == 0.0 || f(x[1]) == 0.0 {
            flush(f(x[2])) + 0.0
        } else {
            flush(flush(flush(f(x[0])) * flush(f(x[1]))) + flush(f(x[2])))
        })
    }),
    ("v_fmac_dx9_zero_f32", "f+=fff", 0, |x| {
        bf(if f(x[1]) == 0.0 || f(x[2]) == 0.0 { f(x[0]) + 0.0 } else { f(x[1]).mul_add(f(x[2]), f(x[0])) })
    }),
    ("v_mad_f16 v_mad_legacy_f16 v_madak_f16 v_madmk_f16", "h=hhh", 0, |x| bh(h(bh(h(x[0]) * h(x[1]))) + h(x[2]))),
    ("v_mac_f16", "h+=hhh", 0, |x| bh(h(bh(h(x[1]) * h(x[2]))) + h(x[0]))),
    ("v_add_f16", "h=hh", 0, |x| bh(h(x[0]) + h(x[1]))),
    ("v_sub_f16", "h=hh", 0, |x| bh(h(x[0]) - h(x[1]))),
    ("v_subrev_f16", "h=hh", 0, |x| bh(h(x[1]) - h(x[0]))),
    ("v_mul_f16", "h=hh", 0, |x| bh(h(x[0]) * h(x[1]))),
    ("v_fma_f16 v_fma_legacy_f16 v_fmaak_f16 v_fmamk_f16", "h=hhh", 0, |x| bh(h(x[0]) * h(x[1]) + h(x[2]))),
    ("v_fmac_f16", "h+=hhh", 0, |x| bh(h(x[1]) * h(x[2]) + h(x[0]))),
    ("v_add_f64", "d=dd", 0, |x| (d(x[0]) + d(x[1])).to_bits()),
    ("v_mul_f64", "d=dd", 0, |x| (d(x[0]) * d(x[1])).to_bits()),
    ("v_fma_f64", "d=ddd", 0, |x| d(x[0]).mul_add(d(x[1]), d(x[2])).to_bits()),
    ("v_fmac_f64", "d+=ddd", 0, |x| d(x[1]).mul_add(d(x[2]), d(x[0])).to_bits()),
    ("v_max_f32", "f=ff", 0, |x| max32(x[0], x[1])),
    ("v_min_f32", "f=ff", 0, |x| min32(x[0], x[1])),
    ("v_max3_f32", "f=fff", 0, |x| max32(max32(x[0], x[1]), x[2])),
    ("v_min3_f32", "f=fff", 0, |x| min32(min32(x[0], x[1]), x[2])),
    ("v_med3_f32", "f=fff", 0, med32),
    ("v_maxmin_f32", "f=fff", 0, |x| min32(max32(x[0], x[1]), x[2])),
    ("v_minmax_f32", "f=fff", 0, |x| max32(min32(x[0], x[1]), x[2])),
    ("v_maximum_f32", "f=ff", 0, |x| maximum32(x[0], x[1])),
    ("v_minimum_f32", "f=ff", 0, |x| minimum32(x[0], x[1])),
    ("v_maximum3_f32", "f=fff", 0, |x| maximum32(maximum32(x[0], x[1]), x[2])),
    ("v_minimum3_f32", "f=fff", 0, |x| minimum32(minimum32(x[0], x[1]), x[2])),
    ("v_maximumminimum_f32", "f=fff", 0, |x| minimum32(maximum32(x[0], x[1]), x[2])),
    ("v_minimummaximum_f32", "f=fff", 0, |x| maximum32(minimum32(x[0], x[1]), x[2])),
    ("v_max_f64 v_max_num_f64", "d=dd", 0, |x| max64(x[0], x[1])),
    ("v_min_f64 v_min_num_f64", "d=dd", 0, |x| max64(x[0] ^ 1 << 63, x[1] ^ 1 << 63) ^ 1 << 63),
    ("v_maximum_f64", "d=dd", 0, |x| {
        if d(x[0]).is_nan() || d(x[1]).is_nan() { f64::NAN.to_bits() } else { max64(x[0], x[1]) }
    }),
    ("v_minimum_f64", "d=dd", 0, |x| {
        if d(x[0]).is_nan() || d(x[1]).is_nan() {
            f64::NAN.to_bits()
        } else {
            max64(x[0] ^ 1 << 63, x[1] ^ 1 << 63) ^ 1 << 63
        }
    }),
    ("v_max_f16", "h=hh", 0, |x| max16(x[0], x[1])),
    ("v_min_f16", "h=hh", 0, |x| min16(x[0], x[1])),
    ("v_max3_f16", "h=hhh", 0, |x| max16(max16(x[0], x[1]), x[2])),
    ("v_min3_f16", "h=hhh", 0, |x| min16(min16(x[0], x[1]), x[2])),
    ("v_med3_f16", "h=hhh", 0, med16),
    ("v_maxmin_f16", "h=hhh", 0, |x| min16(max16(x[0], x[1]), x[2])),
    ("v_minmax_f16", "h=hhh", 0, |x| max16(min16(x[0], x[1]), x[2])),
    ("v_maximum_f16", "h=hh", 0, |x| maximum16(x[0], x[1])),
    ("v_minimum_f16", "h=hh", 0, |x| minimum16(x[0], x[1])),
    ("v_maximum3_f16", "h=hhh", 0, |x| maximum16(maximum16(x[0], x[1]), x[2])),
    ("v_minimum3_f16", "h=hhh", 0, |x| minimum16(minimum16(x[0], x[1]), x[2])),
    ("v_maximumminimum_f16", "h=hhh", 0, |x| minimum16(maximum16(x[0], x[1]), x[2])),
    ("v_minimummaximum_f16", "h=hhh", 0, |x| maximum16(minimum16(x[0], x[1]), x[2])),
    ("v_rcp_f32 v_rcp_iflag_f32 v_s_rcp_f32", "f=f", 1, |x| bf(flush((1.0 / f64::from(flush(f(x[0])))) as f32))),
    ("v_rsq_f32 v_s_rsq_f32", "f=f", 1, |x| bf(flush((1.0 / f64::from(flush(f(x[0]))).sqrt()) as f32))),
    ("v_sqrt_f32 v_s_sqrt_f32", "f=f", 1, |x| bf(f64::from(flush(f(x[0]))).sqrt() as f32)),
    ("v_exp_f32 v_s_exp_f32 v_exp_legacy_f32", "f=f", 1, |x| bf(flush(f64::from(flush(f(x[0]))).exp2() as f32))),
    ("v_log_f32 v_s_log_f32 v_log_legacy_f32", "f=f", 1, |x| bf(f64::from(flush(f(x[0]))).log2() as f32)),
    ("v_sin_f32", "f=f", 1, |x| bf(flush(turned(flush(f(x[0])).into(), 0.0) as f32))),
    ("v_cos_f32", "f=f", 1, |x| bf(flush(turned(flush(f(x[0])).into(), 1.0) as f32))),
    ("v_rcp_f16 v_s_rcp_f16", "h=h", 1, |x| bh(1.0 / h(x[0]))),
    ("v_rsq_f16 v_s_rsq_f16", "h=h", 1, |x| bh(1.0 / h(x[0]).sqrt())),
    ("v_sqrt_f16 v_s_sqrt_f16", "h=h", 1, |x| bh(h(x[0]).sqrt())),
    ("v_exp_f16 v_s_exp_f16", "h=h", 1, |x| bh(h(x[0]).exp2())),
    ("v_log_f16 v_s_log_f16", "h=h", 1, |x| bh(h(x[0]).log2())),
    ("v_sin_f16", "h=h", 1, |x| bh(turned(h(x[0]), 0.0))),
    ("v_cos_f16", "h=h", 1, |x| bh(turned(h(x[0]), 1.0))),
    ("v_rcp_f64", "d=d", 1, |x| (1.0 / d(x[0])).to_bits()),
    ("v_rsq_f64", "d=d", 1, |x| (1.0 / d(x[0]).sqrt()).to_bits()),
    ("v_sqrt_f64", "d=d", 1, |x| d(x[0]).sqrt().to_bits()),
    ("v_trunc_f32", "f=f", 0, |x| bf(f64::from(f(x[0])).trunc() as f32)),
    ("v_ceil_f32", "f=f", 0, |x| bf(f64::from(f(x[0])).ceil() as f32)),
    ("v_floor_f32", "f=f", 0, |x| bf(f64::from(f(x[0])).floor() as f32)),
    ("v_rndne_f32", "f=f", 0, |x| bf(f64::from(f(x[0])).round_ties_even() as f32)),
    ("v_fract_f32", "f=f", 0, |x| class_fract(f(x[0]))),
    ("v_trunc_f16", "h=h", 0, |x| bh(h(x[0]).trunc())),
    ("v_ceil_f16", "h=h", 0, |x| bh(h(x[0]).ceil())),
    ("v_floor_f16", "h=h", 0, |x| bh(h(x[0]).floor())),
    ("v_rndne_f16", "h=h", 0, |x| bh(h(x[0]).round_ties_even())),
    ("v_fract_f16", "h=h", 0, |x| {
        if h(x[0]).is_finite() { bh((h(x[0]) - h(x[0]).floor()).min(h(0x3bff))) } else { 0x7e00 }
    }),
    ("v_trunc_f64", "d=d", 0, |x| d(x[0]).trunc().to_bits()),
    ("v_ceil_f64", "d=d", 0, |x| d(x[0]).ceil().to_bits()),
    ("v_floor_f64", "d=d", 0, |x| d(x[0]).floor().to_bits()),
    ("v_rndne_f64", "d=d", 0, |x| d(x[0]).round_ties_even().to_bits()),
    ("v_fract_f64", "d=d", 0, |x| {
        if d(x[0]).is_finite() { (d(x[0]) - d(x[0]).floor()).min(1.0 - 2f64.powi(-53)) } else { f64::NAN }.to_bits()
    }),
    ("v_ldexp_f32", "f=fu", 0, |x| bf((f64::from(f(x[0])) * 2f64.powi(i(x[1]).clamp(-350, 350) as i32)) as f32)),
    ("v_ldexp_f16", "h=hs", 0, |x| bh(h(x[0]) * 2f64.powi(s(x[1]).clamp(-60, 60) as i32))),
    ("v_ldexp_f64", "d=du", 0, |x| {
        // Powers of two by halves; only the last step may round.
        let n = i(x[1]).clamp(-2200, 2200) as i32;
        let step = |v: f64, n: i32| v * 2f64.powi(n);
        let up = if d(x[0]).abs() < 1e-290 { 600 } else { 0 };
        let (mut v, mut left) = (step(d(x[0]), up), n - up);
        while left > 900 {
            v = step(v, 900);
            left -= 900;
        }
        while left < -900 && v.abs() > 1e-20 {
            v = step(v, -900);
            left += 900;
        }
        step(v, left.max(-1000)).to_bits()
    }),
    ("v_frexp_mant_f32", "f=f", 0, |x| {
        bf((f64::from(f(x[0])) * 2f64.powi(-frexp_exponent(f(x[0]).into()) as i32)) as f32)
    }),
    ("v_frexp_exp_i32_f32", "u=f", 0, |x| u(frexp_exponent(f(x[0]).into()))),
    ("v_frexp_mant_f16", "h=h", 0, |x| bh(h(x[0]) * 2f64.powi(-frexp_exponent(h(x[0])) as i32))),
    ("v_frexp_exp_i16_f16", "s=h", 0, |x| u16_(frexp_exponent(h(x[0])))),
    ("v_frexp_mant_f64", "d=d", 0, |x| {
        let e = -frexp_exponent(d(x[0])) as i32;
        (d(x[0]) * 2f64.powi(e / 2) * 2f64.powi(e - e / 2)).to_bits()
    }),
    ("v_frexp_exp_i32_f64", "u=d", 0, |x| u(frexp_exponent(d(x[0])))),
    ("v_trig_preop_f64", "d=du", 0, |x| {
        // Segment 0 of a number below 2^54 is the first 53 bits of 2/pi; of others only the size is
        // checked here.
        let exponent = x[0] >> 52 & 0x7ff;
        let reference = super::super::float::trig_preop(d(x[0]), (x[1] % 32) as u32);
        if exponent <= 1077 && x[1] % 32 == 0 {
            assert!((reference - std::f64::consts::FRAC_2_PI).abs() <= 2f64.powi(-53));
        }
        reference.to_bits()
    }),
    ("v_cubeid_f32", "f=fff", 0, |x| {
        let [a, b, c] = [f(x[0]), f(x[1]), f(x[2])];
        let face = if c.abs() >= a.abs() && c.abs() >= b.abs() {
            (4.0, c)
        } else if b.abs() >= a.abs() {
            (2.0, b)
        } else {
            (0.0, a)
        };
        bf(face.0 + if face.1 < 0.0 { 1.0 } else { 0.0 })
    }),
    ("v_pack_b32_f16", "u=hh", 0, |x| x[0] | x[1] << 16),
    ("v_sat_pk_u8_i16", "s=u", 0, |x| (s(x[0]).clamp(0, 255) | s(x[0] >> 16).clamp(0, 255) << 8) as u64),
    ("v_div_fixup_f32", "f=fff", 0, |x| bf(fixup(f(x[0]).into(), f(x[1]).into(), f(x[2]).into()) as f32)),
    ("v_div_fixup_f64", "d=ddd", 0, |x| {
        let [q, den, num] = [d(x[0]), d(x[1]), d(x[2])];
        let gap = |v: f64| (v.to_bits() >> 52 & 0x7ff) as i32;
        if gap(num) - gap(den) < -1075 && num.is_finite() && den.is_finite() {
            return fixup(0.0, den, num).to_bits();
        }
        let sign = if den.is_sign_negative() ^ num.is_sign_negative() { -1.0 } else { 1.0 };
        let special =
            num.is_nan() || den.is_nan() || num == 0.0 || den == 0.0 || num.is_infinite() || den.is_infinite();
        if special {
            fixup(q, den, num)
        } else if q.is_nan() {
            sign * f64::INFINITY
        } else {
            sign * q.abs()
        }
        .to_bits()
    }),
    ("v_div_fixup_f16 v_div_fixup_legacy_f16", "h=hhh", 0, |x| bh(fixup(h(x[0]), h(x[1]), h(x[2])))),
    ("v_cvt_f32_i32", "f=u", 0, |x| bf(i(x[0]) as f32)),
    ("v_cvt_f32_u32", "f=u", 0, |x| bf(x[0] as f32)),
    ("v_cvt_i32_f32", "u=f", 0, |x| u(f64::from(f(x[0])).trunc().clamp(-2147483648.0, 2147483647.0) as i64)),
    ("v_cvt_u32_f32", "u=f", 0, |x| f64::from(f(x[0])).trunc().clamp(0.0, 4294967295.0) as u64),
    ("v_cvt_flr_i32_f32 v_cvt_floor_i32_f32", "u=f", 0, |x| {
        u(f64::from(f(x[0])).floor().clamp(-2147483648.0, 2147483647.0) as i64)
    }),
    ("v_cvt_rpi_i32_f32 v_cvt_nearest_i32_f32", "u=f", 0, |x| {
        u((f64::from(f(x[0])) + 0.5).floor().clamp(-2147483648.0, 2147483647.0) as i64)
    }),
    ("v_cvt_f64_i32", "d=u", 0, |x| (i(x[0]) as f64).to_bits()),
    ("v_cvt_f64_u32", "d=u", 0, |x| (x[0] as f64).to_bits()),
    ("v_cvt_i32_f64", "u=d", 0, |x| u(d(x[0]).trunc().clamp(-2147483648.0, 2147483647.0) as i64)),
    ("v_cvt_u32_f64", "u=d", 0, |x| d(x[0]).trunc().clamp(0.0, 4294967295.0) as u64),
    ("v_cvt_f16_i16", "h=s", 0, |x| bh(s(x[0]) as f64)),
    ("v_cvt_f16_u16", "h=s", 0, |x| bh(x[0] as f64)),
    ("v_cvt_i16_f16", "s=h", 0, |x| u16_(h(x[0]).trunc().clamp(-32768.0, 32767.0) as i64)),
    ("v_cvt_u16_f16", "s=h", 0, |x| h(x[0]).trunc().clamp(0.0, 65535.0) as u64),
    ("v_cvt_f32_ubyte0", "f=u", 0, |x| bf((x[0] as u32).to_le_bytes()[0].into())),
    ("v_cvt_f32_ubyte1", "f=u", 0, |x| bf((x[0] as u32).to_le_bytes()[1].into())),
    ("v_cvt_f32_ubyte2", "f=u", 0, |x| bf((x[0] as u32).to_le_bytes()[2].into())),
    ("v_cvt_f32_ubyte3", "f=u", 0, |x| bf((x[0] as u32).to_le_bytes()[3].into())),
    ("v_cvt_off_f32_i4", "f=u", 0, |x| {
        bf([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0]
            [(x[0] % 16) as usize]
            * 0.0625)
    }),
    ("v_cvt_norm_i16_f16", "s=h", 0, |x| u16_((h(x[0]) * 32767.0).round_ties_even().clamp(-32767.0, 32767.0) as i64)),
    ("v_cvt_norm_u16_f16", "s=h", 0, |x| u16_((h(x[0]) * 65535.0).round_ties_even().clamp(0.0, 65535.0) as i64)),
    ("v_cvt_f32_f16", "f=h", 0, |x| bf(h(x[0]) as f32)),
    ("v_cvt_f32_bf16", "f=s", 0, |x| x[0] << 16),
    ("v_cvt_f32_f64", "f=d", 0, |x| bf(d(x[0]) as f32)),
    ("v_cvt_f64_f32", "d=f", 0, |x| f64::from(f(x[0])).to_bits()),
    ("v_cvt_f16_f32", "h=f", 0, |x| bh(f(x[0]).into())),
    ("v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32", "p=ff", 0, |x| truncated16(f(x[0])) | truncated16(f(x[1])) << 16),
    ("v_cvt_pk_f16_f32", "p=ff", 0, |x| bh(f(x[0]).into()) | bh(f(x[1]).into()) << 16),
    ("v_cvt_pk_bf16_f32", "b=ff", 0, |x| to_bf16(f(x[0])) | to_bf16(f(x[1])) << 16),
    ("v_cvt_pk_i16_i32", "u=uu", 0, |x| u16_(i(x[0]).clamp(-32768, 32767)) | u16_(i(x[1]).clamp(-32768, 32767)) << 16),
    ("v_cvt_pk_u16_u32", "u=uu", 0, |x| x[0].min(65535) | x[1].min(65535) << 16),
    ("v_cvt_pk_i16_f32", "u=ff", 0, |x| {
        u16_(f(x[0]).trunc().clamp(-32768.0, 32767.0) as i64)
            | u16_(f(x[1]).trunc().clamp(-32768.0, 32767.0) as i64) << 16
    }),
    ("v_cvt_pk_u16_f32", "u=ff", 0, |x| {
        f(x[0]).trunc().clamp(0.0, 65535.0) as u64 | (f(x[1]).trunc().clamp(0.0, 65535.0) as u64) << 16
    }),
    ("v_cvt_pknorm_i16_f32 v_cvt_pk_norm_i16_f32", "u=ff", 0, |x| {
        let one = |v: u64| u16_((f64::from(f(v)).clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i64);
        one(x[0]) | one(x[1]) << 16
    }),
    ("v_cvt_pknorm_u16_f32 v_cvt_pk_norm_u16_f32", "u=ff", 0, |x| {
        let one = |v: u64| u16_((f64::from(f(v)).clamp(0.0, 1.0) * 65535.0).round_ties_even() as i64);
        one(x[0]) | one(x[1]) << 16
    }),
    ("v_cvt_pknorm_i16_f16 v_cvt_pk_norm_i16_f16", "u=hh", 0, |x| {
        let one = |v: u64| u16_((h(v).clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i64);
        one(x[0]) | one(x[1]) << 16
    }),
    ("v_cvt_pknorm_u16_f16 v_cvt_pk_norm_u16_f16", "u=hh", 0, |x| {
        let one = |v: u64| u16_((h(v).clamp(0.0, 1.0) * 65535.0).round_ties_even() as i64);
        one(x[0]) | one(x[1]) << 16
    }),
    ("v_cvt_pk_u8_f32", "u=fuu", 0, |x| {
        let mut bytes = (x[2] as u32).to_le_bytes();
        bytes[(x[1] % 4) as usize] = f(x[0]).round_ties_even().clamp(0.0, 255.0) as u8;
        u32::from_le_bytes(bytes).into()
    }),
    ("v_cvt_pk_fp8_f32", "s=ff", 0, |x| fp8(f(x[0])) | fp8(f(x[1])) << 8),
    ("v_cvt_pk_bf8_f32", "s=ff", 0, |x| bf8(f(x[0])) | bf8(f(x[1])) << 8),
    ("v_cvt_f32_fp8", "f=u", 0, |x| bf(decode8(x[0] % 256, 8, 3))),
    ("v_cvt_f32_bf8", "f=u", 0, |x| bf(decode8(x[0] % 256, 16, 2))),
    ("v_pk_add_f16", "p=pp", 0, |x| each(x, |v| bh(h(v[0]) + h(v[1])))),
    ("v_pk_mul_f16", "p=pp", 0, |x| each(x, |v| bh(h(v[0]) * h(v[1])))),
    ("v_pk_fma_f16", "p=ppp", 0, |x| each(x, |v| bh(h(v[0]) * h(v[1]) + h(v[2])))),
    ("v_pk_fmac_f16", "p+=ppp", 0, |x| each(x, |v| bh(h(v[1]) * h(v[2]) + h(v[0])))),
    ("v_pk_max_f16", "p=pp", 0, |x| each(x, |v| max16(v[0], v[1]))),
    ("v_pk_min_f16", "p=pp", 0, |x| each(x, |v| min16(v[0], v[1]))),
    ("v_pk_maximum_f16", "p=pp", 0, |x| each(x, |v| maximum16(v[0], v[1]))),
    ("v_pk_minimum_f16", "p=pp", 0, |x| each(x, |v| minimum16(v[0], v[1]))),
    ("v_pk_maximum3_f16", "p=ppp", 0, |x| each(x, |v| maximum16(maximum16(v[0], v[1]), v[2]))),
    ("v_pk_minimum3_f16", "p=ppp", 0, |x| each(x, |v| minimum16(minimum16(v[0], v[1]), v[2]))),
    ("v_pk_add_u16 v_pk_add_i16", "u=qq", 0, |x| each(x, |v| u16_((v[0] + v[1]) as i64))),
    ("v_pk_sub_u16 v_pk_sub_i16", "u=qq", 0, |x| each(x, |v| u16_(v[0] as i64 - v[1] as i64))),
    ("v_pk_mul_lo_u16", "u=qq", 0, |x| each(x, |v| u16_((v[0] * v[1]) as i64))),
    ("v_pk_mad_u16 v_pk_mad_i16", "u=qqq", 0, |x| each(x, |v| u16_((v[0] * v[1] + v[2]) as i64))),
    ("v_pk_min_u16", "u=qq", 0, |x| each(x, |v| v[0].min(v[1]))),
    ("v_pk_max_u16", "u=qq", 0, |x| each(x, |v| v[0].max(v[1]))),
    ("v_pk_min_i16", "u=qq", 0, |x| each(x, |v| u16_(s(v[0]).min(s(v[1]))))),
    ("v_pk_max_i16", "u=qq", 0, |x| each(x, |v| u16_(s(v[0]).max(s(v[1]))))),
    ("v_pk_lshlrev_b16", "u=qq", 0, |x| each(x, |v| u16_((v[1] << (v[0] % 16)) as i64))),
    ("v_pk_lshrrev_b16", "u=qq", 0, |x| each(x, |v| v[1] >> (v[0] % 16))),
    ("v_pk_ashrrev_i16", "u=qq", 0, |x| each(x, |v| u16_(s(v[1]) >> (v[0] % 16)))),
    ("v_dot2_i32_i16", "u=qqu", 0, |x| u(s(x[0]) * s(x[1]) + s(x[0] >> 16) * s(x[1] >> 16) + i(x[2]))),
    ("v_dot2c_i32_i16", "u+=uqq", 0, |x| u(s(x[1]) * s(x[2]) + s(x[1] >> 16) * s(x[2] >> 16) + i(x[0]))),
    ("v_dot8c_i32_i4", "u+=uuu", 0, |x| {
        let four = |v: u64, n: i32| ((v >> (4 * n)) as i64) << 60 >> 60;
        u((0..8).map(|n| four(x[1], n) * four(x[2], n)).sum::<i64>() + i(x[0]))
    }),
    ("v_dot2_u32_u16", "u=qqu", 0, |x| {
        (x[0] % 65536 * (x[1] % 65536) + (x[0] >> 16) * (x[1] >> 16) + x[2]) % (1 << 32)
    }),
    ("v_dot2_f32_f16", "f=ppf", 0, |x| {
        let first = (h(x[0]) as f32).mul_add(h(x[1]) as f32, f(x[2]));
        bf((h(x[0] >> 16) as f32).mul_add(h(x[1] >> 16) as f32, first))
    }),
    ("v_dot2c_f32_f16 v_dot2acc_f32_f16", "f+=fpp", 0, |x| {
        let first = (h(x[1]) as f32).mul_add(h(x[2]) as f32, f(x[0]));
        bf((h(x[1] >> 16) as f32).mul_add(h(x[2] >> 16) as f32, first))
    }),
    ("v_dot2_f32_bf16", "f=bbf", 0, |x| {
        bf(bf16(x[0] >> 16).mul_add(bf16(x[1] >> 16), bf16(x[0]).mul_add(bf16(x[1]), f(x[2]))))
    }),
    ("v_dot2c_f32_bf16", "f+=fbb", 0, |x| {
        bf(bf16(x[1] >> 16).mul_add(bf16(x[2] >> 16), bf16(x[1]).mul_add(bf16(x[2]), f(x[0]))))
    }),
    ("v_dot2_f16_f16", "h=pph", 0, |x| {
        let first = (h(x[0]) as f32).mul_add(h(x[1]) as f32, h(x[2]) as f32);
        bh((h(x[0] >> 16) as f32).mul_add(h(x[1] >> 16) as f32, first).into())
    }),
];

/// A FNUZ code's value.
fn decode8(code: u64, bias: i32, mantissa: i32) -> f32 {
    if code == 0x80 {
        return f32::NAN;
    }
    let (e, m) = ((code >> mantissa) as i32 & (127 >> mantissa), (code & ((1 << mantissa) - 1)) as f32);
    let one = if e > 0 { 2f32.powi(mantissa) } else { 0.0 };
    let x = (m + one) * 2f32.powi(e.max(1) - bias - mantissa);
    if code >= 0x80 { -x } else { x }
}

/// Definitions that depend on the chip: numbers win over signalling NaN, 8-bit floats are OCP's.
const GFX12: &[(&str, &str, u64, Define)] = &[
    ("v_max_num_f32", "f=ff", 0, |x| quiet(x, max32)),
    ("v_min_num_f32", "f=ff", 0, |x| quiet(x, min32)),
    ("v_max3_num_f32", "f=fff", 0, |x| quiet(&[quiet(x, max32), x[2]], max32)),
    ("v_min3_num_f32", "f=fff", 0, |x| quiet(&[quiet(x, min32), x[2]], min32)),
    ("v_maxmin_num_f32", "f=fff", 0, |x| quiet(&[quiet(x, max32), x[2]], min32)),
    ("v_minmax_num_f32", "f=fff", 0, |x| quiet(&[quiet(x, min32), x[2]], max32)),
    ("v_med3_num_f32", "f=fff", 0, |x| {
        if x.iter().any(|v| f(*v).is_nan()) { quiet(&[quiet(x, min32), x[2]], min32) } else { med32(x) }
    }),
    ("v_max_num_f16", "h=hh", 0, |x| quiet16(x, max16)),
    ("v_min_num_f16", "h=hh", 0, |x| quiet16(x, min16)),
    ("v_max3_num_f16", "h=hhh", 0, |x| quiet16(&[quiet16(x, max16), x[2]], max16)),
    ("v_min3_num_f16", "h=hhh", 0, |x| quiet16(&[quiet16(x, min16), x[2]], min16)),
    ("v_maxmin_num_f16", "h=hhh", 0, |x| quiet16(&[quiet16(x, max16), x[2]], min16)),
    ("v_minmax_num_f16", "h=hhh", 0, |x| quiet16(&[quiet16(x, min16), x[2]], max16)),
    ("v_med3_num_f16", "h=hhh", 0, |x| {
        if x.iter().any(|v| h(*v).is_nan()) { quiet16(&[quiet16(x, min16), x[2]], min16) } else { med16(x) }
    }),
    ("v_pk_max_num_f16", "p=pp", 0, |x| each(x, |v| quiet16(v, max16))),
    ("v_pk_min_num_f16", "p=pp", 0, |x| each(x, |v| quiet16(v, min16))),
    ("v_dot2_bf16_bf16", "c=bbc", 0, |x| {
        let first = bf16(x[0]).mul_add(bf16(x[1]), bf16(x[2]));
        let sum = bf16(x[0] >> 16).mul_add(bf16(x[1] >> 16), first);
        to_bf16(sum)
    }),
    ("v_dot4_f32_fp8_fp8", "f=uuf", 0, |x| dot4(x, 7, 3, 7, 3)),
    ("v_dot4_f32_fp8_bf8", "f=uuf", 0, |x| dot4(x, 7, 3, 15, 2)),
    ("v_dot4_f32_bf8_fp8", "f=uuf", 0, |x| dot4(x, 15, 2, 7, 3)),
    ("v_dot4_f32_bf8_bf8", "f=uuf", 0, |x| dot4(x, 15, 2, 15, 2)),
    ("v_pk_add_bf16", "b=bb", 0, |x| each(x, |v| to_bf16(bf16(v[0]) + bf16(v[1])))),
    ("v_pk_mul_bf16", "b=bb", 0, |x| each(x, |v| to_bf16(bf16(v[0]) * bf16(v[1])))),
];

fn quiet(x: &[u64], pick: fn(u64, u64) -> u64) -> u64 {
    let q = |v: u64| if f(v).is_nan() { v | 0x40_0000 } else { v };
    pick(q(x[0]), q(x[1]))
}
fn quiet16(x: &[u64], pick: fn(u64, u64) -> u64) -> u64 {
    let q = |v: u64| if h(v).is_nan() { v | 0x200 } else { v };
    pick(q(x[0]), q(x[1]))
}

/// OCP codes: e4m3 has one NaN and no infinity, e5m2 is as IEEE has it.
fn ocp(code: u64, bias: i32, mantissa: i32) -> f32 {
    let magnitude = code & 0x7f;
    if mantissa == 3 && magnitude == 0x7f || mantissa == 2 && magnitude > 0x7c {
        return f32::NAN;
    }
    let x = if mantissa == 2 && magnitude == 0x7c { f32::INFINITY } else { decode8(magnitude, bias, mantissa) };
    if code & 0x80 != 0 { -x } else { x }
}
fn dot4(x: &[u64], bias_a: i32, mantissa_a: i32, bias_b: i32, mantissa_b: i32) -> u64 {
    let byte = |v: u64, n: i32| v >> (8 * n) & 0xff;
    bf((0..4).fold(f(x[2]), |sum, n| {
        ocp(byte(x[0], n), bias_a, mantissa_a).mul_add(ocp(byte(x[1], n), bias_b, mantissa_b), sum)
    }))
}

pub fn names() -> impl Iterator<Item = &'static str> {
    LIST.iter().chain(GFX12).flat_map(|row| row.0.split_whitespace())
}

#[test]
fn instructions_do_as_defined() {
    for (names, kinds, ulp, define) in LIST {
        for name in names.split_whitespace() {
            check("gfx942", name, kinds, *ulp, define);
        }
    }
    for (names, kinds, ulp, define) in GFX12 {
        check("gfx1201", names, kinds, *ulp, define);
    }
}

/// Waves of 32 take other loops.
#[test]
fn waves_of_32_do_the_same() {
    let chosen = ["v_add_f32", "v_fma_f32", "v_lshlrev_b64", "v_mul_hi_u32", "v_pk_fma_f16", "v_exp_f32", "v_perm_b32"];
    for (names, kinds, ulp, define) in LIST.iter().filter(|row| chosen.contains(&row.0.split(' ').next().unwrap())) {
        check("gfx1100", names.split(' ').next().unwrap(), kinds, *ulp, define);
    }
}
