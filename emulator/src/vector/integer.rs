//! Integer and bit instructions of one result per lane.
use super::kinds::{Bits16, Bits32, I16, I32, I64, Kind, U16, U32, U64};
use super::table::{Entry, builds, lanes, op};
use crate::inst::Inst;
use crate::wave::Wave;

pub fn rows() -> Vec<Entry> {
    [adds(), products(), shifts(), bits(), three(), orders(), short(), wide(), moves()].concat()
}

/// An instruction with and without `clamp`.
fn saturating(mut plain: Entry, clamped: Entry) -> Entry {
    plain.saturating = Some(clamped.run);
    plain
}

/// Forms that keep the other half of the register on gfx9; its `legacy` forms clear it.
fn keeping(entry: Entry) -> Entry {
    Entry { keeps_high: true, ..entry }
}

fn adds() -> Vec<Entry> {
    vec![
        saturating(
            op!("v_add_u32 v_add_nc_u32", U32 = (a: U32, b: U32) => a.wrapping_add(b)),
            op!("", U32 = (a: U32, b: U32) => a.saturating_add(b)),
        ),
        saturating(
            op!("v_sub_u32 v_sub_nc_u32", U32 = (a: U32, b: U32) => a.wrapping_sub(b)),
            op!("", U32 = (a: U32, b: U32) => a.saturating_sub(b)),
        ),
        saturating(
            op!("v_subrev_u32 v_subrev_nc_u32", U32 = (a: U32, b: U32) => b.wrapping_sub(a)),
            op!("", U32 = (a: U32, b: U32) => b.saturating_sub(a)),
        ),
        saturating(
            op!("v_add_i32 v_add_nc_i32", I32 = (a: I32, b: I32) => a.wrapping_add(b)),
            op!("", I32 = (a: I32, b: I32) => a.saturating_add(b)),
        ),
        saturating(
            op!("v_sub_i32 v_sub_nc_i32", I32 = (a: I32, b: I32) => a.wrapping_sub(b)),
            op!("", I32 = (a: I32, b: I32) => a.saturating_sub(b)),
        ),
        op!("v_add3_u32", U32 = (a: U32, b: U32, c: U32) => a.wrapping_add(b).wrapping_add(c)),
        op!("v_lshl_add_u32", U32 = (a: U32, b: U32, c: U32) => (a << (b & 31)).wrapping_add(c)),
        op!("v_add_lshl_u32", U32 = (a: U32, b: U32, c: U32) => a.wrapping_add(b) << (c & 31)),
        op!("v_xad_u32", U32 = (a: U32, b: U32, c: U32) => (a ^ b).wrapping_add(c)),
        op!("v_sad_u32", U32 = (a: U32, b: U32, c: U32) => a.abs_diff(b).wrapping_add(c)),
        op!("v_sad_hi_u8", U32 = (a: U32, b: U32, c: U32) => (sad8(a, b) << 16).wrapping_add(c)),
        op!("v_sad_u16", U32 = (a: U32, b: U32, c: U32) =>
            (a & 0xffff).abs_diff(b & 0xffff).wrapping_add((a >> 16).abs_diff(b >> 16)).wrapping_add(c)),
        op!("v_msad_u8", U32 = (a: U32, b: U32, c: U32) => masked_sad8(a, b).wrapping_add(c)),
        op!("v_lerp_u8", U32 = (a: U32, b: U32, c: U32) => lerp8(a, b, c)),
        op!("v_sad_u8", U32 = (a: U32, b: U32, c: U32) => sad8(a, b).wrapping_add(c)),
    ]
}

#[inline(always)]
fn sad8(a: u32, b: u32) -> u32 {
    let byte = |x: u32, n: u32| x >> (8 * n) & 0xff;
    (0..4).map(|n| byte(a, n).abs_diff(byte(b, n))).sum()
}

/// Bytes of the second source that are zero do not count.
#[inline(always)]
fn masked_sad8(a: u32, b: u32) -> u32 {
    let byte = |x: u32, n: u32| x >> (8 * n) & 0xff;
    (0..4).map(|n| if byte(b, n) == 0 { 0 } else { byte(a, n).abs_diff(byte(b, n)) }).sum()
}

/// Means of bytes; bit 0 of a byte of the third source rounds up.
#[inline(always)]
fn lerp8(a: u32, b: u32, c: u32) -> u32 {
    let mean = |n: u32| ((a >> n & 0xff) + (b >> n & 0xff) + (c >> n & 1)) >> 1;
    mean(0) | mean(8) << 8 | mean(16) << 16 | mean(24) << 24
}

#[inline(always)]
fn low24(a: u32) -> u32 {
    a & 0xff_ffff
}

#[inline(always)]
fn sext24(a: i32) -> i32 {
    a << 8 >> 8
}

fn products() -> Vec<Entry> {
    vec![
        op!("v_mul_lo_u32 v_mul_lo_i32", U32 = (a: U32, b: U32) => a.wrapping_mul(b)),
        op!("v_mul_hi_u32", U32 = (a: U32, b: U32) => ((u64::from(a) * u64::from(b)) >> 32) as u32),
        op!("v_mul_hi_i32", I32 = (a: I32, b: I32) => ((i64::from(a) * i64::from(b)) >> 32) as i32),
        saturating(
            op!("v_mul_u32_u24", U32 = (a: U32, b: U32) => low24(a).wrapping_mul(low24(b))),
            op!("", U32 = (a: U32, b: U32) => low24(a).saturating_mul(low24(b))),
        ),
        saturating(
            op!("v_mul_i32_i24", I32 = (a: I32, b: I32) => sext24(a).wrapping_mul(sext24(b))),
            op!("", I32 = (a: I32, b: I32) => sext24(a).saturating_mul(sext24(b))),
        ),
        op!("v_mul_hi_u32_u24", U32 = (a: U32, b: U32) => ((u64::from(low24(a)) * u64::from(low24(b))) >> 32) as u32),
        op!("v_mul_hi_i32_i24", I32 = (a: I32, b: I32) => ((i64::from(sext24(a)) * i64::from(sext24(b))) >> 32) as i32),
        saturating(
            op!("v_mad_u32_u24", U32 = (a: U32, b: U32, c: U32) => low24(a).wrapping_mul(low24(b)).wrapping_add(c)),
            op!("", U32 = (a: U32, b: U32, c: U32) =>
                (u64::from(low24(a)) * u64::from(low24(b)) + u64::from(c)).min(u32::MAX as u64) as u32),
        ),
        saturating(
            op!("v_mad_i32_i24", I32 = (a: I32, b: I32, c: I32) => sext24(a).wrapping_mul(sext24(b)).wrapping_add(c)),
            op!("", I32 = (a: I32, b: I32, c: I32) =>
                (i64::from(sext24(a)) * i64::from(sext24(b)) + i64::from(c)).clamp(i32::MIN as i64, i32::MAX as i64) as i32),
        ),
        op!("v_mad_u32_u16", U32 = (a: U16, b: U16, c: U32) => (u32::from(a) * u32::from(b)).wrapping_add(c)),
        op!("v_mad_i32_i16", I32 = (a: I16, b: I16, c: I32) => (i32::from(a) * i32::from(b)).wrapping_add(c)),
        op!("v_dot4_u32_u8", U32 = (a: U32, b: U32, c: U32) => dot4_u8(a, b).wrapping_add(c)),
        op!("v_dot4_i32_i8", U32 = (a: U32, b: U32, c: U32) => dot4(a, b, 3).wrapping_add(c as i32) as u32),
        op!("v_dot4c_i32_i8", U32 = [d: U32] (a: U32, b: U32) => dot4(a, b, 3).wrapping_add(d as i32) as u32),
        op!("v_dot8c_i32_i4", U32 = [d: U32] (a: U32, b: U32) => dot8(a, b, 3).wrapping_add(d as i32) as u32),
        op!("v_dot8_u32_u4", U32 = (a: U32, b: U32, c: U32) =>
            (0..8).map(|n| (a >> (4 * n) & 15) * (b >> (4 * n) & 15)).sum::<u32>().wrapping_add(c)),
        op!("v_dot8_i32_i4", U32 = (a: U32, b: U32, c: U32) => dot8(a, b, 3).wrapping_add(c as i32) as u32),
        iu("v_dot4_i32_iu8", dot4),
        iu("v_dot8_i32_iu4", dot8),
    ]
}

#[inline(always)]
fn dot4_u8(a: u32, b: u32) -> u32 {
    (0..4).map(|n| (a >> (8 * n) & 0xff) * (b >> (8 * n) & 0xff)).sum()
}

/// Bit 0 of `signed` says that `a` has signed parts, bit 1 that `b` has.
#[inline(always)]
fn part(x: u32, n: u32, bits: u32, signed: bool) -> i32 {
    let up = x << (32 - bits - n * bits);
    if signed { up as i32 >> (32 - bits) } else { (up >> (32 - bits)) as i32 }
}

#[inline(always)]
fn dot4(a: u32, b: u32, signed: u8) -> i32 {
    (0..4).map(|n| part(a, n, 8, signed & 1 == 1) * part(b, n, 8, signed & 2 == 2)).sum()
}

#[inline(always)]
fn dot8(a: u32, b: u32, signed: u8) -> i32 {
    (0..8).map(|n| part(a, n, 4, signed & 1 == 1) * part(b, n, 4, signed & 2 == 2)).sum()
}

/// Dot products with a `neg_lo` that says which source is signed.
fn iu(names: &'static str, dot: fn(u32, u32, u8) -> i32) -> Entry {
    #[inline(always)]
    fn body<const EIGHT: bool>(wave: &mut Wave, inst: &Inst) {
        let [a, b, c] = [1, 2, 3].map(|p| U32::fetch(wave, inst, p));
        let mut out = U32::zero();
        for lane in 0..lanes!(wave) {
            let signed = inst.modifiers.neg_lo;
            let dot = if EIGHT { dot8(a[lane], b[lane], signed) } else { dot4(a[lane], b[lane], signed) };
            out[lane] = dot.wrapping_add(c[lane] as i32) as u32;
        }
        U32::store(wave, inst, &mut out);
    }
    let eight = std::ptr::fn_addr_eq(dot, dot8 as fn(u32, u32, u8) -> i32);
    let run = if eight { builds!(body::<true>) } else { builds!(body::<false>) };
    Entry::new(names, run, &[U32::CLASS], U32::CLASS)
}

fn shifts() -> Vec<Entry> {
    vec![
        op!("v_lshlrev_b32", U32 = (a: U32, b: U32) => b << (a & 31)),
        op!("v_lshrrev_b32", U32 = (a: U32, b: U32) => b >> (a & 31)),
        op!("v_ashrrev_i32", I32 = (a: U32, b: I32) => b >> (a & 31)),
        op!("v_lshl_b32", U32 = (a: U32, b: U32) => a << (b & 31)),
        op!("v_lshr_b32", U32 = (a: U32, b: U32) => a >> (b & 31)),
        op!("v_ashr_i32", I32 = (a: I32, b: U32) => a >> (b & 31)),
        op!("v_lshl_or_b32", U32 = (a: U32, b: U32, c: U32) => a << (b & 31) | c),
        keeping(op!("v_ashr_pk_i8_i32", U16 = (a: I32, b: I32, c: U32) =>
            u16::from_le_bytes([a, b].map(|x| (x >> (c & 31)).clamp(-128, 127) as u8)))),
        keeping(op!("v_ashr_pk_u8_i32", U16 = (a: I32, b: I32, c: U32) =>
            u16::from_le_bytes([a, b].map(|x| (x >> (c & 31)).clamp(0, 255) as u8)))),
        op!("v_alignbit_b32", U32 = (a: U32, b: U32, c: U32) => ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
        op!("v_alignbyte_b32", U32 = (a: U32, b: U32, c: U32) =>
            ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32),
        op!("v_bfe_u32", U32 = (a: U32, b: U32, c: U32) => bfe_u32(a, b & 31, c & 31)),
        op!("v_bfe_i32", I32 = (a: I32, b: U32, c: U32) => bfe_i32(a, b & 31, c & 31)),
    ]
}

#[inline(always)]
fn bfe_u32(a: u32, offset: u32, width: u32) -> u32 {
    a >> offset & ((1u32 << width) - 1)
}

#[inline(always)]
fn bfe_i32(a: i32, offset: u32, width: u32) -> i32 {
    let up = (32 - width) & 31;
    // A field that reaches beyond bit 31 is filled with the sign.
    let field = a >> offset;
    if width == 0 { 0 } else { field << up >> up }
}

fn bits() -> Vec<Entry> {
    vec![
        op!("v_and_b32", U32 = (a: U32, b: U32) => a & b),
        op!("v_or_b32", U32 = (a: U32, b: U32) => a | b),
        op!("v_xor_b32", U32 = (a: U32, b: U32) => a ^ b),
        op!("v_xnor_b32", U32 = (a: U32, b: U32) => !(a ^ b)),
        op!("v_not_b32", U32 = (a: U32) => !a),
        op!("v_bfrev_b32", U32 = (a: U32) => a.reverse_bits()),
        op!("v_bfm_b32", U32 = (a: U32, b: U32) => ((1u32 << (a & 31)) - 1) << (b & 31)),
        op!("v_bfi_b32", U32 = (a: U32, b: U32, c: U32) => a & b | !a & c),
        op!("v_bcnt_u32_b32", U32 = (a: U32, b: U32) => a.count_ones().wrapping_add(b)),
        op!("v_ffbh_u32 v_clz_i32_u32", U32 = (a: U32) => if a == 0 { u32::MAX } else { a.leading_zeros() }),
        op!("v_ffbl_b32 v_ctz_i32_b32", U32 = (a: U32) => if a == 0 { u32::MAX } else { a.trailing_zeros() }),
        op!("v_ffbh_i32 v_cls_i32", I32 = (a: I32) => leading_signs(a)),
        op!("v_and_or_b32", U32 = (a: U32, b: U32, c: U32) => a & b | c),
        op!("v_or3_b32", U32 = (a: U32, b: U32, c: U32) => a | b | c),
        op!("v_xor3_b32", U32 = (a: U32, b: U32, c: U32) => a ^ b ^ c),
        op!("v_perm_b32", U32 = (a: U32, b: U32, c: U32) => perm(u64::from(a) << 32 | u64::from(b), c)),
        bitop3::<U32>("v_bitop3_b32", builds!(bitop3_body::<U32>)),
        bitop3::<U16>("v_bitop3_b16", builds!(bitop3_body::<U16>)),
    ]
}

/// The number of bits below the top that equal the sign, counted from the top; -1 if all do.
#[inline(always)]
fn leading_signs(a: i32) -> i32 {
    let flipped = (a ^ (a >> 31)) as u32;
    if flipped == 0 { -1 } else { flipped.leading_zeros() as i32 }
}

/// Each byte of the result is a byte of the eight, a repeated sign bit, 0x00 or 0xff.
#[inline(always)]
fn perm(bytes: u64, selector: u32) -> u32 {
    let mut out = 0;
    for n in 0..4 {
        let s = selector >> (8 * n) & 0xff;
        let byte = (bytes >> (8 * (s & 7))) as u32 & 0xff;
        // Selectors 8 to 11 repeat the sign of bytes 1, 3, 5 and 7.
        let sign = 0u32.wrapping_sub((bytes >> (16 * (s & 3) + 15)) as u32 & 1) & 0xff;
        let constant = if s == 12 { 0 } else { 0xff };
        let value = if s < 8 {
            byte
        } else if s < 12 {
            sign
        } else {
            constant
        };
        out |= value << (8 * n);
    }
    out
}

fn bitop3<K: Kind<Cell = u32>>(names: &'static str, run: super::table::Builds) -> Entry {
    Entry { keeps_high: true, ..Entry::new(names, run, &[K::CLASS], K::CLASS) }
}

/// Any function of three bits. The truth table is an immediate; its bit `4a + 2b + c` is the
/// result.
#[inline(always)]
fn bitop3_body<K: Kind<Cell = u32>>(wave: &mut Wave, inst: &Inst) {
    let table = inst.modifiers.bitop3;
    let term: [u32; 8] = std::array::from_fn(|n| 0u32.wrapping_sub(u32::from(table >> n & 1)));
    let [a, b, c] = [1, 2, 3].map(|p| K::fetch(wave, inst, p));
    let mut out = K::zero();
    for lane in 0..lanes!(wave) {
        let (a, b, c) = (a[lane], b[lane], c[lane]);
        let low = !a & (!b & (!c & term[0] | c & term[1]) | b & (!c & term[2] | c & term[3]));
        let high = a & (!b & (!c & term[4] | c & term[5]) | b & (!c & term[6] | c & term[7]));
        out[lane] = low | high;
    }
    K::store(wave, inst, &mut out);
}

fn three() -> Vec<Entry> {
    vec![
        op!("v_min3_u32", U32 = (a: U32, b: U32, c: U32) => a.min(b).min(c)),
        op!("v_max3_u32", U32 = (a: U32, b: U32, c: U32) => a.max(b).max(c)),
        op!("v_med3_u32", U32 = (a: U32, b: U32, c: U32) => a.max(b).min(a.min(b).max(c))),
        op!("v_min3_i32", I32 = (a: I32, b: I32, c: I32) => a.min(b).min(c)),
        op!("v_max3_i32", I32 = (a: I32, b: I32, c: I32) => a.max(b).max(c)),
        op!("v_med3_i32", I32 = (a: I32, b: I32, c: I32) => a.max(b).min(a.min(b).max(c))),
        op!("v_maxmin_u32", U32 = (a: U32, b: U32, c: U32) => a.max(b).min(c)),
        op!("v_minmax_u32", U32 = (a: U32, b: U32, c: U32) => a.min(b).max(c)),
        op!("v_maxmin_i32", I32 = (a: I32, b: I32, c: I32) => a.max(b).min(c)),
        op!("v_minmax_i32", I32 = (a: I32, b: I32, c: I32) => a.min(b).max(c)),
    ]
}

fn orders() -> Vec<Entry> {
    vec![
        op!("v_min_u32", U32 = (a: U32, b: U32) => a.min(b)),
        op!("v_max_u32", U32 = (a: U32, b: U32) => a.max(b)),
        op!("v_min_i32", I32 = (a: I32, b: I32) => a.min(b)),
        op!("v_max_i32", I32 = (a: I32, b: I32) => a.max(b)),
        op!("v_min_u16", U16 = (a: U16, b: U16) => a.min(b)),
        op!("v_max_u16", U16 = (a: U16, b: U16) => a.max(b)),
        op!("v_min_i16", I16 = (a: I16, b: I16) => a.min(b)),
        op!("v_max_i16", I16 = (a: I16, b: I16) => a.max(b)),
        op!("v_min3_u16", U16 = (a: U16, b: U16, c: U16) => a.min(b).min(c)),
        op!("v_max3_u16", U16 = (a: U16, b: U16, c: U16) => a.max(b).max(c)),
        op!("v_med3_u16", U16 = (a: U16, b: U16, c: U16) => a.max(b).min(a.min(b).max(c))),
        op!("v_min3_i16", I16 = (a: I16, b: I16, c: I16) => a.min(b).min(c)),
        op!("v_max3_i16", I16 = (a: I16, b: I16, c: I16) => a.max(b).max(c)),
        op!("v_med3_i16", I16 = (a: I16, b: I16, c: I16) => a.max(b).min(a.min(b).max(c))),
    ]
}

fn short() -> Vec<Entry> {
    vec![
        saturating(
            op!("v_add_u16 v_add_nc_u16", U16 = (a: U16, b: U16) => a.wrapping_add(b)),
            op!("", U16 = (a: U16, b: U16) => a.saturating_add(b)),
        ),
        saturating(
            op!("v_sub_u16 v_sub_nc_u16", U16 = (a: U16, b: U16) => a.wrapping_sub(b)),
            op!("", U16 = (a: U16, b: U16) => a.saturating_sub(b)),
        ),
        saturating(
            op!("v_subrev_u16", U16 = (a: U16, b: U16) => b.wrapping_sub(a)),
            op!("", U16 = (a: U16, b: U16) => b.saturating_sub(a)),
        ),
        saturating(
            op!("v_add_i16 v_add_nc_i16", I16 = (a: I16, b: I16) => a.wrapping_add(b)),
            op!("", I16 = (a: I16, b: I16) => a.saturating_add(b)),
        ),
        saturating(
            op!("v_sub_i16 v_sub_nc_i16", I16 = (a: I16, b: I16) => a.wrapping_sub(b)),
            op!("", I16 = (a: I16, b: I16) => a.saturating_sub(b)),
        ),
        op!("v_mul_lo_u16", U16 = (a: U16, b: U16) => a.wrapping_mul(b)),
        keeping(saturating(
            op!("v_mad_u16", U16 = (a: U16, b: U16, c: U16) => a.wrapping_mul(b).wrapping_add(c)),
            op!("", U16 = (a: U16, b: U16, c: U16) => (u64::from(a) * u64::from(b) + u64::from(c)).min(0xffff) as u16),
        )),
        keeping(saturating(
            op!("v_mad_i16", I16 = (a: I16, b: I16, c: I16) => a.wrapping_mul(b).wrapping_add(c)),
            op!("", I16 = (a: I16, b: I16, c: I16) =>
                (i64::from(a) * i64::from(b) + i64::from(c)).clamp(i16::MIN as i64, i16::MAX as i64) as i16),
        )),
        saturating(
            op!("v_mad_legacy_u16", U16 = (a: U16, b: U16, c: U16) => a.wrapping_mul(b).wrapping_add(c)),
            op!("", U16 = (a: U16, b: U16, c: U16) => (u64::from(a) * u64::from(b) + u64::from(c)).min(0xffff) as u16),
        ),
        saturating(
            op!("v_mad_legacy_i16", I16 = (a: I16, b: I16, c: I16) => a.wrapping_mul(b).wrapping_add(c)),
            op!("", I16 = (a: I16, b: I16, c: I16) =>
                (i64::from(a) * i64::from(b) + i64::from(c)).clamp(i16::MIN as i64, i16::MAX as i64) as i16),
        ),
        op!("v_lshlrev_b16", U16 = (a: U16, b: U16) => b << (a & 15)),
        op!("v_lshrrev_b16", U16 = (a: U16, b: U16) => b >> (a & 15)),
        op!("v_ashrrev_i16", I16 = (a: U16, b: I16) => b >> (a & 15)),
        op!("v_and_b16", U16 = (a: U16, b: U16) => a & b),
        op!("v_or_b16", U16 = (a: U16, b: U16) => a | b),
        op!("v_xor_b16", U16 = (a: U16, b: U16) => a ^ b),
        op!("v_not_b16", U16 = (a: U16) => !a),
        op!("v_cvt_i32_i16", I32 = (a: I16) => i32::from(a)),
        op!("v_cvt_u32_u16", U32 = (a: U16) => u32::from(a)),
    ]
}

fn wide() -> Vec<Entry> {
    vec![
        op!("v_lshlrev_b64", U64 = (a: U32, b: U64) => b << (a & 63)),
        op!("v_lshrrev_b64", U64 = (a: U32, b: U64) => b >> (a & 63)),
        op!("v_ashrrev_i64", I64 = (a: U32, b: I64) => b >> (a & 63)),
        op!("v_lshl_add_u64", U64 = (a: U64, b: U32, c: U64) => (a << (b & 63)).wrapping_add(c)),
        op!("v_mov_b64", U64 = (a: U64) => a),
        op!("v_add_nc_u64", U64 = (a: U64, b: U64) => a.wrapping_add(b)),
        op!("v_sub_nc_u64", U64 = (a: U64, b: U64) => a.wrapping_sub(b)),
    ]
}

fn moves() -> Vec<Entry> {
    vec![
        op!("v_mov_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32 v_accvgpr_read v_accvgpr_write",
            Bits32 = (a: Bits32) => a),
        op!("v_mov_b16", Bits16 = (a: Bits16) => a),
    ]
}
