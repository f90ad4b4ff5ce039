//! Floating-point arithmetic of one result per lane.
use super::arith::Direction;
use super::kinds::{Bits16, Bits32, F16, F32, F64, H16, I16, I32, Kind, Mix, S16, U32};
use super::table::{Entry, builds, lanes, op, rounded};
use crate::inst::Inst;
use crate::isa::{Family, Isa};
use crate::num;
use crate::wave::Wave;

pub fn rows() -> Vec<Entry> {
    [sums32(), sums16(), sums64(), orders32(), orders16(), orders64(), mix(), roots(), shapes()].concat()
}

fn sums32() -> Vec<Entry> {
    vec![
        rounded!("v_add_f32", F32 = |r| (a: F32, b: F32) => r.add32(a, b)),
        rounded!("v_sub_f32", F32 = |r| (a: F32, b: F32) => r.add32(a, -b)),
        rounded!("v_subrev_f32", F32 = |r| (a: F32, b: F32) => r.add32(b, -a)),
        rounded!("v_mul_f32", F32 = |r| (a: F32, b: F32) => r.mul32(a, b)),
        rounded!("v_fma_f32", F32 = |r| (a: F32, b: F32, c: F32) => r.fma32(a, b, c)),
        rounded!("v_fmac_f32", F32 = |r| [d: F32] (a: F32, b: F32) => r.fma32(a, b, d)),
        rounded!("v_fmaak_f32", F32 = |r| (a: F32, b: F32, k: F32) => r.fma32(a, b, k)),
        rounded!("v_fmamk_f32", F32 = |r| (a: F32, k: F32, c: F32) => r.fma32(a, k, c)),
        rounded!("v_mad_f32", Bits32 = |r| (a: F32, b: F32, c: F32) => mad(r, a, b, c).to_bits()),
        rounded!("v_mac_f32", Bits32 = |r| [d: F32] (a: F32, b: F32) => mad(r, a, b, d).to_bits()),
        rounded!("v_madak_f32", Bits32 = |r| (a: F32, b: F32, k: F32) => mad(r, a, b, k).to_bits()),
        rounded!("v_madmk_f32", Bits32 = |r| (a: F32, k: F32, c: F32) => mad(r, a, k, c).to_bits()),
        rounded!("v_mul_legacy_f32 v_mul_dx9_zero_f32", F32 = |r| (a: F32, b: F32) =>
            if a == 0.0 || b == 0.0 { 0.0 } else { r.mul32(a, b) }),
        rounded!("v_mad_legacy_f32", Bits32 = |r| (a: F32, b: F32, c: F32) =>
            if a == 0.0 || b == 0.0 { flush(c) + 0.0 } else { mad(r, a, b, c) }.to_bits()),
        rounded!("v_fmac_dx9_zero_f32", F32 = |r| [d: F32] (a: F32, b: F32) =>
            if a == 0.0 || b == 0.0 { r.add32(d, 0.0) } else { r.fma32(a, b, d) }),
        rounded!("v_fma_legacy_f32 v_fma_dx9_zero_f32", F32 = |r| (a: F32, b: F32, c: F32) =>
            if a == 0.0 || b == 0.0 { r.add32(c, 0.0) } else { r.fma32(a, b, c) }),
    ]
}

/// A product and a sum, each rounded; subnormal numbers are flushed whatever the mode is.
#[inline(always)]
fn mad<D: Direction>(r: D, a: f32, b: f32, c: f32) -> f32 {
    flush(r.add32(flush(r.mul32(flush(a), flush(b))), flush(c)))
}

fn sums16() -> Vec<Entry> {
    vec![
        rounded!("v_add_f16", F16 = |r| (a: F16, b: F16) => r.add16(a, b)),
        rounded!("v_sub_f16", F16 = |r| (a: F16, b: F16) => r.add16(a, -b)),
        rounded!("v_subrev_f16", F16 = |r| (a: F16, b: F16) => r.add16(b, -a)),
        rounded!("v_mul_f16", F16 = |r| (a: F16, b: F16) => r.mul16(a, b)),
        Entry { keeps_high: true, ..rounded!("v_fma_f16", F16 = |r| (a: F16, b: F16, c: F16) => r.fma16(a, b, c)) },
        rounded!("v_fmac_f16", F16 = |r| [d: F16] (a: F16, b: F16) => r.fma16(a, b, d)),
        rounded!("v_fma_legacy_f16", F16 = |r| (a: F16, b: F16, c: F16) => r.fma16(a, b, c)),
        Entry { keeps_high: true, ..rounded!("v_mad_f16", F16 = |r| (a: F16, b: F16, c: F16) => mad16(r, a, b, c)) },
        rounded!("v_mad_legacy_f16 v_madak_f16", F16 = |r| (a: F16, b: F16, c: F16) => mad16(r, a, b, c)),
        rounded!("v_madmk_f16", F16 = |r| (a: F16, k: F16, c: F16) => mad16(r, a, k, c)),
        rounded!("v_mac_f16", F16 = |r| [d: F16] (a: F16, b: F16) => mad16(r, a, b, d)),
        rounded!("v_fmaak_f16", F16 = |r| (a: F16, b: F16, k: F16) => r.fma16(a, b, k)),
        rounded!("v_fmamk_f16", F16 = |r| (a: F16, k: F16, c: F16) => r.fma16(a, k, c)),
    ]
}

/// A product and a sum, each rounded to f16.
#[inline(always)]
fn mad16<D: Direction>(r: D, a: f32, b: f32, c: f32) -> f32 {
    r.add16(num::f16_to_f32(num::f32_to_f16(r.mul16(a, b))), c)
}

fn sums64() -> Vec<Entry> {
    vec![
        rounded!("v_add_f64", F64 = |r| (a: F64, b: F64) => r.add64(a, b)),
        rounded!("v_mul_f64", F64 = |r| (a: F64, b: F64) => r.mul64(a, b)),
        rounded!("v_fma_f64", F64 = |r| (a: F64, b: F64, c: F64) => r.fma64(a, b, c)),
        rounded!("v_fmac_f64", F64 = |r| [d: F64] (a: F64, b: F64) => r.fma64(a, b, d)),
    ]
}

/// Minimum and maximum: of two numbers, zeros ordered by sign; of a number and a NaN, the number.
/// In IEEE mode a signalling NaN makes the result a quiet NaN.
macro_rules! orders {
    ($T:ident, $bits:ident, $quiet:expr) => {
        #[inline(always)]
        pub fn signals(x: $T) -> bool {
            x.is_nan() && x.to_bits() & $quiet == 0
        }

        #[inline(always)]
        fn quiet(x: $T) -> $T {
            $T::from_bits(x.to_bits() | $quiet)
        }

        /// The larger of two numbers that are no NaN.
        #[inline(always)]
        fn larger(a: $T, b: $T) -> $T {
            let equal = $T::from_bits(a.to_bits() & b.to_bits());
            if a > b {
                a
            } else if b > a {
                b
            } else {
                equal
            }
        }

        #[inline(always)]
        fn smaller(a: $T, b: $T) -> $T {
            let equal = $T::from_bits(a.to_bits() | b.to_bits());
            if a < b {
                a
            } else if b < a {
                b
            } else {
                equal
            }
        }

        #[inline(always)]
        fn number(a: $T, b: $T, ieee: bool, pick: $T) -> $T {
            if ieee && signals(a) {
                quiet(a)
            } else if ieee && signals(b) {
                quiet(b)
            } else if a.is_nan() {
                if b.is_nan() { quiet(a) } else { b }
            } else if b.is_nan() {
                a
            } else {
                pick
            }
        }

        #[inline(always)]
        pub fn max(a: $T, b: $T, ieee: bool) -> $T {
            number(a, b, ieee, larger(a, b))
        }

        #[inline(always)]
        pub fn min(a: $T, b: $T, ieee: bool) -> $T {
            number(a, b, ieee, smaller(a, b))
        }

        /// As [`max`], but any NaN makes the result one.
        #[inline(always)]
        pub fn maximum(a: $T, b: $T) -> $T {
            if a.is_nan() {
                quiet(a)
            } else if b.is_nan() {
                quiet(b)
            } else {
                larger(a, b)
            }
        }

        #[inline(always)]
        pub fn minimum(a: $T, b: $T) -> $T {
            if a.is_nan() {
                quiet(a)
            } else if b.is_nan() {
                quiet(b)
            } else {
                smaller(a, b)
            }
        }
    };
}

pub mod of32 {
    orders!(f32, u32, 0x40_0000u32);

    #[inline(always)]
    pub fn max3(a: f32, b: f32, c: f32, ieee: bool) -> f32 {
        max(max(a, b, ieee), c, ieee)
    }

    #[inline(always)]
    pub fn min3(a: f32, b: f32, c: f32, ieee: bool) -> f32 {
        min(min(a, b, ieee), c, ieee)
    }

    /// The middle one; with a NaN among them the smallest of the others.
    #[inline(always)]
    pub fn med3(a: f32, b: f32, c: f32, ieee: bool) -> f32 {
        if a.is_nan() || b.is_nan() || c.is_nan() {
            min3(a, b, c, ieee)
        } else {
            smaller(larger(a, b), larger(smaller(a, b), c))
        }
    }
}

pub mod of64 {
    orders!(f64, u64, 1u64 << 51);
}

/// A row with a formula that needs the IEEE bit of the mode register; `_num` forms never signal.
macro_rules! order {
    ($names:literal, $K:ident, $ieee:ident, ($($s:ident),*) => $e:expr) => {{
        #[inline(always)]
        fn body(wave: &mut Wave, inst: &Inst) {
            let $ieee = wave.mode.ieee && wave.isa.family != Family::Gfx12;
            let mut position = 0;
            $(position += 1; let $s = $K::fetch(wave, inst, position);)*
            let _ = position;
            let mut out = $K::zero();
            for lane in 0..lanes!(wave) {
                $(let $s = $K::get($s[lane]);)*
                out[lane] = $K::put($e);
            }
            $K::store(wave, inst, &mut out);
        }
        Entry::new($names, builds!(body), &[$K::CLASS], $K::CLASS)
    }};
}

/// Minimum-and-maximum rows of one type.
macro_rules! order_rows {
    ($K:ident, $of:ident, $($min:literal $max:literal $min3:literal $max3:literal $med3:literal $minimum:literal $maximum:literal
      $minimum3:literal $maximum3:literal $maxmin:literal $minmax:literal $maximumminimum:literal $minimummaximum:literal),*) => {
        $(vec![
            order!($min, $K, ieee, (a, b) => $of::min(a, b, ieee)),
            order!($max, $K, ieee, (a, b) => $of::max(a, b, ieee)),
            order!($min3, $K, ieee, (a, b, c) => $of::min3(a, b, c, ieee)),
            order!($max3, $K, ieee, (a, b, c) => $of::max3(a, b, c, ieee)),
            order!($med3, $K, ieee, (a, b, c) => $of::med3(a, b, c, ieee)),
            op!($minimum, $K = (a: $K, b: $K) => $of::minimum(a, b)),
            op!($maximum, $K = (a: $K, b: $K) => $of::maximum(a, b)),
            op!($minimum3, $K = (a: $K, b: $K, c: $K) => $of::minimum($of::minimum(a, b), c)),
            op!($maximum3, $K = (a: $K, b: $K, c: $K) => $of::maximum($of::maximum(a, b), c)),
            order!($maxmin, $K, ieee, (a, b, c) => $of::min($of::max(a, b, ieee), c, ieee)),
            order!($minmax, $K, ieee, (a, b, c) => $of::max($of::min(a, b, ieee), c, ieee)),
            op!($maximumminimum, $K = (a: $K, b: $K, c: $K) => $of::minimum($of::maximum(a, b), c)),
            op!($minimummaximum, $K = (a: $K, b: $K, c: $K) => $of::maximum($of::minimum(a, b), c)),
        ])*
    };
}

fn orders32() -> Vec<Entry> {
    order_rows!(F32, of32,
        "v_min_f32 v_min_num_f32" "v_max_f32 v_max_num_f32" "v_min3_f32 v_min3_num_f32" "v_max3_f32 v_max3_num_f32"
        "v_med3_f32 v_med3_num_f32" "v_minimum_f32" "v_maximum_f32" "v_minimum3_f32" "v_maximum3_f32"
        "v_maxmin_f32 v_maxmin_num_f32" "v_minmax_f32 v_minmax_num_f32" "v_maximumminimum_f32" "v_minimummaximum_f32")
}

fn orders16() -> Vec<Entry> {
    order_rows!(S16, of32,
        "v_min_f16 v_min_num_f16" "v_max_f16 v_max_num_f16" "v_min3_f16 v_min3_num_f16" "v_max3_f16 v_max3_num_f16"
        "v_med3_f16 v_med3_num_f16" "v_minimum_f16" "v_maximum_f16" "v_minimum3_f16" "v_maximum3_f16"
        "v_maxmin_f16 v_maxmin_num_f16" "v_minmax_f16 v_minmax_num_f16" "v_maximumminimum_f16" "v_minimummaximum_f16")
}

fn orders64() -> Vec<Entry> {
    vec![
        order!("v_min_f64 v_min_num_f64", F64, ieee, (a, b) => of64::min(a, b, ieee)),
        order!("v_max_f64 v_max_num_f64", F64, ieee, (a, b) => of64::max(a, b, ieee)),
        op!("v_minimum_f64", F64 = (a: F64, b: F64) => of64::minimum(a, b)),
        op!("v_maximum_f64", F64 = (a: F64, b: F64) => of64::maximum(a, b)),
    ]
}

fn mix() -> Vec<Entry> {
    let half = |entry: Entry| Entry { keeps_high: true, prepare: Some(mix_half), ..entry };
    vec![
        rounded!("v_fma_mix_f32 v_mad_mix_f32", Mix = |r| (a: Mix, b: Mix, c: Mix) => r.fma32(a, b, c)),
        half(
            rounded!("v_fma_mixlo_f16 v_mad_mixlo_f16", H16 = |r| (a: Mix, b: Mix, c: Mix) => fma_to_half(r, a, b, c)),
        ),
        half(
            rounded!("v_fma_mixhi_f16 v_mad_mixhi_f16", H16 = |r| (a: Mix, b: Mix, c: Mix) => fma_to_half(r, a, b, c)),
        ),
    ]
}

/// The sum is rounded to f32 and then to f16, as the documents have it (`f32_to_f16(fma(...))`) and
/// as LLVM relies on.
#[inline(always)]
fn fma_to_half<D: Direction>(r: D, a: f32, b: f32, c: f32) -> u16 {
    num::f32_to_f16(r.half(f64::from(r.fma32(a, b, c))))
}

/// The mnemonic says which half is written; `op_sel` belongs to the sources alone.
fn mix_half(inst: &mut Inst, _: &Isa) -> bool {
    super::flags::set_dest16(
        inst,
        if inst.mnemonic.contains("mixhi") { super::flags::Dest16::High } else { super::flags::Dest16::Low },
    );
    true
}

/// The approximations of the hardware, here rounded correctly from f64. f32 forms flush subnormal
/// numbers whatever the mode is.
fn roots() -> Vec<Entry> {
    vec![
        op!("v_rcp_f32 v_rcp_iflag_f32 v_s_rcp_f32", F32 = (a: F32) => flush(1.0 / flush(a))),
        op!("v_rsq_f32 v_s_rsq_f32", F32 = (a: F32) => flush((1.0 / f64::from(flush(a)).sqrt()) as f32)),
        op!("v_sqrt_f32 v_s_sqrt_f32", F32 = (a: F32) => flush(a).sqrt()),
        op!("v_exp_f32 v_s_exp_f32 v_exp_legacy_f32", F32 = (a: F32) => flush(exp2(flush(a)) as f32)),
        op!("v_log_f32 v_s_log_f32 v_log_legacy_f32", F32 = (a: F32) => flush(f64::from(flush(a)).log2() as f32)),
        op!("v_sin_f32", F32 = (a: F32) => flush(sine(f64::from(flush(a)), 0.0) as f32)),
        op!("v_cos_f32", F32 = (a: F32) => flush(sine(f64::from(flush(a)), 0.25) as f32)),
        op!("v_rcp_f16 v_s_rcp_f16", F16 = (a: F16) => 1.0 / a),
        op!("v_rsq_f16 v_s_rsq_f16", F16 = (a: F16) => (1.0 / f64::from(a).sqrt()) as f32),
        op!("v_sqrt_f16 v_s_sqrt_f16", F16 = (a: F16) => a.sqrt()),
        op!("v_exp_f16 v_s_exp_f16", F16 = (a: F16) => exp2(a) as f32),
        op!("v_log_f16 v_s_log_f16", F16 = (a: F16) => f64::from(a).log2() as f32),
        op!("v_sin_f16", F16 = (a: F16) => sine(f64::from(a), 0.0) as f32),
        op!("v_cos_f16", F16 = (a: F16) => sine(f64::from(a), 0.25) as f32),
        op!("v_rcp_f64", F64 = (a: F64) => 1.0 / a),
        op!("v_rsq_f64", F64 = (a: F64) => 1.0 / a.sqrt()),
        op!("v_sqrt_f64", F64 = (a: F64) => a.sqrt()),
        op!("v_prng_b32", U32 = (a: U32) => a << 1 ^ if a >> 31 == 1 { 197 } else { 0 }),
    ]
}

#[inline(always)]
fn flush(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if b & 0x7f80_0000 == 0 { b & 0x8000_0000 } else { b })
}

/// 2^x. The fraction is within half of zero: there the Taylor series of degree 13 in x ln 2 is
/// exact to f64's precision.
#[inline(always)]
fn exp2(x: f32) -> f64 {
    let x = f64::from(x);
    let clamped = x.clamp(-1000.0, 1000.0);
    let n = clamped.round_ties_even();
    let t = (clamped - n) * std::f64::consts::LN_2;
    let mut p = 0.0f64;
    for c in TAYLOR {
        p = p * t + c;
    }
    // Adding 1.5 * 2^52 leaves the integer in the low bits.
    let integer = (n + 6_755_399_441_055_744.0).to_bits() << 52;
    let scaled = p * f64::from_bits(integer.wrapping_add(1023 << 52));
    if x.is_nan() { f64::NAN } else { scaled }
}

/// 1/13!, 1/12!, …, 1.
const TAYLOR: [f64; 14] = {
    let mut c = [1.0; 14];
    let mut n = 12;
    let mut factorial = 1.0;
    loop {
        factorial *= (13 - n) as f64;
        c[n] = 1.0 / factorial;
        if n == 0 {
            break c;
        }
        n -= 1;
    }
};

/// The sine of turns, ahead by a part of a turn; of infinities NaN.
#[inline(always)]
fn sine(turns: f64, ahead: f64) -> f64 {
    let fraction = turns - turns.round_ties_even();
    let part = fraction + ahead;
    if fraction == 0.0 && ahead == 0.0 {
        fraction.copysign(turns)
    } else if part.abs() == 0.5 {
        0.0
    } else {
        (part * std::f64::consts::TAU).sin()
    }
}

/// The largest f16 below one.
const BELOW_ONE: f32 = 1.0 - 1.0 / 2048.0;

fn shapes() -> Vec<Entry> {
    vec![
        op!("v_trunc_f32", F32 = (a: F32) => a.trunc()),
        op!("v_ceil_f32", F32 = (a: F32) => a.ceil()),
        op!("v_floor_f32", F32 = (a: F32) => a.floor()),
        op!("v_rndne_f32", F32 = (a: F32) => a.round_ties_even()),
        op!("v_fract_f32", F32 = (a: F32) => fract32(a)),
        op!("v_trunc_f16", F16 = (a: F16) => a.trunc()),
        op!("v_ceil_f16", F16 = (a: F16) => a.ceil()),
        op!("v_floor_f16", F16 = (a: F16) => a.floor()),
        op!("v_rndne_f16", F16 = (a: F16) => a.round_ties_even()),
        op!("v_fract_f16", F16 = (a: F16) => if a.is_finite() { (a - a.floor()).min(BELOW_ONE) } else { f32::NAN }),
        op!("v_trunc_f64", F64 = (a: F64) => a.trunc()),
        op!("v_ceil_f64", F64 = (a: F64) => a.ceil()),
        op!("v_floor_f64", F64 = (a: F64) => a.floor()),
        op!("v_rndne_f64", F64 = (a: F64) => a.round_ties_even()),
        op!("v_fract_f64", F64 = (a: F64) => if a.is_finite() { (a - a.floor()).min(1f64.next_down()) } else { f64::NAN }),
        rounded!("v_ldexp_f32", F32 = |r| (a: F32, b: I32) => r.narrow(f64::from(a) * num::exp2i(b.clamp(-400, 400)))),
        rounded!("v_ldexp_f16", F16 = |r| (a: F16, b: I16) => r.half(f64::from(a) * num::exp2i(i32::from(b).clamp(-100, 100)))),
        op!("v_ldexp_f64", F64 = (a: F64, b: I32) => ldexp64(a, b)),
        op!("v_frexp_mant_f32", F32 = (a: F32) => frexp(f64::from(a)).0 as f32),
        op!("v_frexp_exp_i32_f32", I32 = (a: F32) => frexp(f64::from(a)).1),
        op!("v_frexp_mant_f16", F16 = (a: F16) => frexp(f64::from(a)).0 as f32),
        op!("v_frexp_exp_i16_f16", I16 = (a: F16) => frexp(f64::from(a)).1 as i16),
        op!("v_frexp_mant_f64", F64 = (a: F64) => frexp(a).0),
        op!("v_frexp_exp_i32_f64", I32 = (a: F64) => frexp(a).1),
        op!("v_trig_preop_f64", F64 = (a: F64, b: U32) => trig_preop(a, b & 31)),
        op!("v_cubeid_f32", F32 = (a: F32, b: F32, c: F32) => cube_face(a, b, c)),
        op!("v_pack_b32_f16", U32 = (a: H16, b: H16) => u32::from(a) | u32::from(b) << 16),
        op!("v_sat_pk_u8_i16", Bits16 = (a: U32) => u16::from_le_bytes([saturate8(a), saturate8(a >> 16)])),
    ]
}

#[inline(always)]
fn saturate8(half: u32) -> u8 {
    (half as i16).clamp(0, 255) as u8
}

#[inline(always)]
fn fract32(a: f32) -> f32 {
    if a.is_finite() { (a - a.floor()).min(1f32.next_down()) } else { f32::NAN }
}

#[inline(always)]
fn cube_face(x: f32, y: f32, z: f32) -> f32 {
    let side = |v: f32, face: f32| if v < 0.0 { face + 1.0 } else { face };
    if z.abs() >= x.abs() && z.abs() >= y.abs() {
        side(z, 4.0)
    } else if y.abs() >= x.abs() {
        side(y, 2.0)
    } else {
        side(x, 0.0)
    }
}

/// Mantissa in [0.5, 1) with the sign, and exponent; zeros, infinities and NaN have exponent 0.
#[inline(always)]
fn frexp(x: f64) -> (f64, i32) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0);
    }
    // Subnormal numbers are scaled up first.
    let (y, down) = if x.abs() < f64::MIN_POSITIVE { (x * num::exp2i(64), 64) } else { (x, 0) };
    let exponent = (y.to_bits() >> 52 & 0x7ff) as i32 - 1022;
    // In two steps, since 2^-1024 is no normal number.
    let half = -exponent / 2;
    (y * num::exp2i(half) * num::exp2i(-exponent - half), exponent - down)
}

/// x * 2^n with one rounding: only the last factor can make the result subnormal.
#[inline(always)]
fn ldexp64(x: f64, n: i32) -> f64 {
    let n = n.clamp(-2200, 2200);
    let (mantissa, exponent) = frexp(x);
    if mantissa == 0.0 || !mantissa.is_finite() {
        return x + x;
    }
    let e = exponent + n;
    if e > 1024 {
        f64::INFINITY.copysign(x)
    } else if e > 0 {
        mantissa * 2.0 * num::exp2i(e - 1)
    } else {
        mantissa * num::exp2i(e.max(-1080) + 60) * num::exp2i(-60)
    }
}

/// 53 bits of 2/pi for the reduction of large angles: segment `select` of 53 bits, moved by the
/// exponent of `a`.
pub fn trig_preop(a: f64, select: u32) -> f64 {
    let exponent = (a.to_bits() >> 52 & 0x7ff) as i32;
    let mut shift = select as i32 * 53;
    if exponent > 1077 {
        shift += exponent - 1077;
    }
    let bits = (0..53).fold(0u64, |bits, n| bits << 1 | two_over_pi_bit(shift + n));
    let scale = -53 - shift + if exponent >= 1968 { 128 } else { 0 };
    ldexp64(bits as f64, scale)
}

/// Bit `n` of the 1201 bits of 2/pi after the point.
fn two_over_pi_bit(n: i32) -> u64 {
    let n = n as usize;
    if n >= 1201 { 0 } else { TWO_OVER_PI[n / 64] >> (63 - n % 64) & 1 }
}

/// 2/pi as a binary fraction, from the top.
const TWO_OVER_PI: [u64; 19] = [
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
];
