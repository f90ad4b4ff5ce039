//! Conversions between types.
use super::flags;
use super::kinds::{Bits16, Bits32, Class, F16, F32, F64, H16, I16, I32, Kind, PkF32, U16, U32};
use super::results::{write_row, written_lanes};
use super::table::{Entry, builds, lanes, op, rounded};
use crate::inst::Inst;
use crate::isa::Isa;
use crate::num::{self, Overflow, Small};
use crate::wave::{LANES, Rounding, Wave};

pub fn rows() -> Vec<Entry> {
    [integers(), floats(), packed(), small(), scaled()].concat()
}

fn integers() -> Vec<Entry> {
    vec![
        rounded!("v_cvt_f32_i32", F32 = |r| (a: I32) => r.narrow(f64::from(a))),
        rounded!("v_cvt_f32_u32", F32 = |r| (a: U32) => r.narrow(f64::from(a))),
        op!("v_cvt_i32_f32", I32 = (a: F32) => a as i32),
        op!("v_cvt_u32_f32", U32 = (a: F32) => a as u32),
        op!("v_cvt_flr_i32_f32 v_cvt_floor_i32_f32", I32 = (a: F32) => a.floor() as i32),
        op!("v_cvt_rpi_i32_f32 v_cvt_nearest_i32_f32", I32 = (a: F32) => (f64::from(a) + 0.5).floor() as i32),
        op!("v_cvt_f64_i32", F64 = (a: I32) => f64::from(a)),
        op!("v_cvt_f64_u32", F64 = (a: U32) => f64::from(a)),
        op!("v_cvt_i32_f64", I32 = (a: F64) => a as i32),
        op!("v_cvt_u32_f64", U32 = (a: F64) => a as u32),
        rounded!("v_cvt_f16_i16", F16 = |r| (a: I16) => r.half(f64::from(a))),
        rounded!("v_cvt_f16_u16", F16 = |r| (a: U16) => r.half(f64::from(a))),
        op!("v_cvt_i16_f16", I16 = (a: F16) => a as i16),
        op!("v_cvt_u16_f16", U16 = (a: F16) => a as u16),
        op!("v_cvt_f32_ubyte0", F32 = (a: U32) => (a & 0xff) as f32),
        op!("v_cvt_f32_ubyte1", F32 = (a: U32) => (a >> 8 & 0xff) as f32),
        op!("v_cvt_f32_ubyte2", F32 = (a: U32) => (a >> 16 & 0xff) as f32),
        op!("v_cvt_f32_ubyte3", F32 = (a: U32) => (a >> 24) as f32),
        op!("v_cvt_off_f32_i4", F32 = (a: U32) => ((a << 28) as i32 >> 28) as f32 / 16.0),
        op!("v_cvt_norm_i16_f16", I16 = (a: F16) => norm_i16(a)),
        op!("v_cvt_norm_u16_f16", U16 = (a: F16) => norm_u16(a)),
    ]
}

fn floats() -> Vec<Entry> {
    vec![
        op!("v_cvt_f32_f16", F32 = (a: F16) => a),
        rounded!("v_cvt_f32_f64", F32 = |r| (a: F64) => r.narrow(a)),
        op!("v_cvt_f32_bf16", Bits32 = (a: Bits16) => u32::from(a) << 16),
        op!("v_cvt_f64_f32", F64 = (a: F32) => f64::from(a)),
        Entry::new("v_cvt_f16_f32", builds!(cvt_f16_f32), &[F32::CLASS], F16::CLASS),
    ]
}

/// With `FP16_OVFL` a finite number that overflows becomes the largest f16.
#[inline(always)]
fn cvt_f16_f32(wave: &mut Wave, inst: &Inst) {
    let a = F32::fetch(wave, inst, 1);
    let mut out = H16::zero();
    let (rounding, saturate) = (wave.mode.round16_64, wave.mode.fp16_ovfl);
    if rounding == Rounding::NearestEven && !saturate {
        for lane in 0..lanes!(wave) {
            out[lane] = u32::from(num::f32_to_f16(F32::get(a[lane])));
        }
    } else {
        for lane in 0..lanes!(wave) {
            let x = F32::get(a[lane]);
            let h = num::f64_to_f16(f64::from(x), rounding);
            out[lane] = u32::from(if saturate && x.is_finite() && h & 0x7fff == 0x7c00 { h - 1 } else { h });
        }
    }
    H16::store(wave, inst, &mut out);
}

#[inline(always)]
fn norm_i16(x: f32) -> i16 {
    (f64::from(x).clamp(-1.0, 1.0) * 32767.0).round_ties_even() as i16
}

#[inline(always)]
fn norm_u16(x: f32) -> u16 {
    (f64::from(x).clamp(0.0, 1.0) * 65535.0).round_ties_even() as u16
}

#[inline(always)]
fn pair(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

#[inline(always)]
fn toward_zero(x: f32) -> u16 {
    num::f64_to_f16(f64::from(x), Rounding::TowardZero)
}

fn packed() -> Vec<Entry> {
    let half = |entry: Entry| Entry { keeps_high: true, ..entry };
    vec![
        op!("v_cvt_pkrtz_f16_f32 v_cvt_pk_rtz_f16_f32", U32 = (a: F32, b: F32) => pair(toward_zero(a), toward_zero(b))),
        rounded!("v_cvt_pk_f16_f32", U32 = |r| (a: F32, b: F32) =>
            pair(num::f32_to_f16(r.half(f64::from(a))), num::f32_to_f16(r.half(f64::from(b))))),
        op!("v_cvt_pk_bf16_f32", U32 = (a: Bits32, b: Bits32) =>
            pair(num::f32_to_bf16(f32::from_bits(a)), num::f32_to_bf16(f32::from_bits(b)))),
        op!("v_cvt_sr_pk_bf16_f32", U32 = (a: Bits32, b: Bits32, s: U32) =>
            pair(stochastic_bf16(a, s), stochastic_bf16(b, s))),
        half(op!("v_cvt_sr_bf16_f32", U16 = (a: Bits32, s: U32) => stochastic_bf16(a, s))),
        half(op!("v_cvt_sr_f16_f32", U16 = (a: F32, s: U32) => stochastic_f16(a, s))),
        op!("v_cvt_pk_i16_i32", U32 = (a: I32, b: I32) => pair(saturate_i16(a), saturate_i16(b))),
        op!("v_cvt_pk_u16_u32", U32 = (a: U32, b: U32) => pair(a.min(0xffff) as u16, b.min(0xffff) as u16)),
        op!("v_cvt_pk_i16_f32", U32 = (a: F32, b: F32) => pair(a as i16 as u16, b as i16 as u16)),
        op!("v_cvt_pk_u16_f32", U32 = (a: F32, b: F32) => pair(a as u16, b as u16)),
        op!("v_cvt_pknorm_i16_f32 v_cvt_pk_norm_i16_f32", U32 = (a: F32, b: F32) =>
            pair(norm_i16(a) as u16, norm_i16(b) as u16)),
        op!("v_cvt_pknorm_u16_f32 v_cvt_pk_norm_u16_f32", U32 = (a: F32, b: F32) => pair(norm_u16(a), norm_u16(b))),
        op!("v_cvt_pknorm_i16_f16 v_cvt_pk_norm_i16_f16", U32 = (a: F16, b: F16) =>
            pair(norm_i16(a) as u16, norm_i16(b) as u16)),
        op!("v_cvt_pknorm_u16_f16 v_cvt_pk_norm_u16_f16", U32 = (a: F16, b: F16) => pair(norm_u16(a), norm_u16(b))),
        op!("v_cvt_pk_u8_f32", U32 = (a: F32, b: U32, c: U32) => {
            let shift = 8 * (b & 3);
            c & !(0xff << shift) | u32::from(a.round_ties_even() as u8) << shift
        }),
    ]
}

#[inline(always)]
fn saturate_i16(x: i32) -> u16 {
    x.clamp(i16::MIN.into(), i16::MAX.into()) as u16
}

#[inline(always)]
fn stochastic_bf16(bits: u32, random: u32) -> u16 {
    if bits & 0x7f80_0000 == 0x7f80_0000 {
        return num::f32_to_bf16(f32::from_bits(bits));
    }
    (bits.wrapping_add(random >> 16) >> 16) as u16
}

/// The upper random bits are added below the last place, then the sum is cut off there.
#[inline(always)]
fn stochastic_f16(x: f32, random: u32) -> u16 {
    let exponent = (x.to_bits() >> 23 & 0xff) as i32 - 127;
    let place = num::exp2i(exponent.max(-14) - 10);
    let dither = place * f64::from(random) * num::exp2i(-32);
    num::f64_to_f16(f64::from(x) + dither.copysign(f64::from(x)), Rounding::TowardZero)
}

/// The 8-bit formats of a chip.
fn format(isa: &Isa, bf8: bool) -> Small {
    match (isa.fnuz, bf8) {
        (false, false) => num::E4M3,
        (false, true) => num::E5M2,
        (true, false) => num::E4M3_FNUZ,
        (true, true) => num::E5M2_FNUZ,
    }
}

fn overflow(wave: &Wave) -> Overflow {
    if wave.mode.fp16_ovfl { Overflow::Saturate } else { Overflow::Special }
}

fn encode8(format: &Small, x: f32, overflow: Overflow) -> u32 {
    format.encode(f64::from(x), Rounding::NearestEven, overflow)
}

const ONE: &[Class] = &[Class::B32];
const FLOATS: &[Class] = &[Class::F32];

fn small() -> Vec<Entry> {
    let keeps = |entry: Entry| Entry { keeps_high: true, ..entry };
    let bytes = |entry: Entry| Entry { reads_dst: 1, prepare: Some(byte_of_op_sel), ..entry };
    let mut rows = vec![
        keeps(Entry::new("v_cvt_pk_fp8_f32", builds!(pk_8::<false>), FLOATS, Class::B16)),
        keeps(Entry::new("v_cvt_pk_bf8_f32", builds!(pk_8::<true>), FLOATS, Class::B16)),
        bytes(Entry::new("v_cvt_sr_fp8_f32", builds!(sr_8::<false>), &[Class::F32, Class::B32], Class::B32)),
        bytes(Entry::new("v_cvt_sr_bf8_f32", builds!(sr_8::<true>), &[Class::F32, Class::B32], Class::B32)),
        Entry::new("v_cvt_pk_f32_fp8", builds!(pk_f32_8::<false>), &[Class::B16], Class::PkM32),
        Entry::new("v_cvt_pk_f32_bf8", builds!(pk_f32_8::<true>), &[Class::B16], Class::PkM32),
    ];
    let byte = |names, run| Entry { prepare: Some(byte_of_op_sel), ..Entry::new(names, run, ONE, Class::M32) };
    rows.push(byte("v_cvt_f32_fp8", builds!(f32_8::<false>)));
    rows.push(byte("v_cvt_f32_bf8", builds!(f32_8::<true>)));
    rows
}

/// The two upper `op_sel` bits of the byte conversions choose a byte (gfx942); gfx12 writes
/// `byte_sel`.
fn byte_of_op_sel(inst: &mut Inst, isa: &Isa) -> bool {
    let from_op_sel = match inst.modifiers.op_sel {
        // For a conversion to f32 the bits are those of the source; the text of both forms is
        // op_sel:[low, high, ..].
        Some(s) if inst.mnemonic.starts_with("v_cvt_sr") => s >> 2 & 3,
        Some(s) => s & 3,
        None => 0,
    };
    let byte = if isa.family == crate::isa::Family::Gfx12 { inst.modifiers.byte_sel } else { from_op_sel };
    flags::set_own(inst, byte.into());
    true
}

#[inline(always)]
fn pk_8<const BF8: bool>(wave: &mut Wave, inst: &Inst) {
    let [a, b] = [1, 2].map(|p| F32::fetch(wave, inst, p));
    let (format, overflow) = (format(wave.isa, BF8), overflow(wave));
    let mut out = U16::zero();
    for lane in 0..lanes!(wave) {
        let [low, high] = [a, b].map(|x| encode8(&format, F32::get(x[lane]), overflow));
        out[lane] = low | high << 8;
    }
    U16::store(wave, inst, &mut out);
}

#[inline(always)]
fn sr_8<const BF8: bool>(wave: &mut Wave, inst: &Inst) {
    let (a, random) = (F32::fetch(wave, inst, 1), U32::fetch(wave, inst, 2));
    let (format, overflow) = (format(wave.isa, BF8), overflow(wave));
    let shift = 8 * flags::own(inst) as u32;
    let old = super::sources::read(wave, inst.operand(0));
    let mut out = U32::zero();
    for lane in 0..lanes!(wave) {
        let code = format.encode_stochastic(F32::get(a[lane]), random[lane], overflow);
        out[lane] = old[lane] & !(0xff << shift) | code << shift;
    }
    write_row(wave, inst.operand(0), &out, written_lanes(wave, inst));
}

#[inline(always)]
fn f32_8<const BF8: bool>(wave: &mut Wave, inst: &Inst) {
    let a = U32::fetch(wave, inst, 1);
    let format = format(wave.isa, BF8);
    let shift = 8 * flags::own(inst) as u32;
    let mut out = Bits32::zero();
    for lane in 0..lanes!(wave) {
        out[lane] = format.decode(a[lane] >> shift & 0xff).to_bits();
    }
    Bits32::store(wave, inst, &mut out);
}

#[inline(always)]
fn pk_f32_8<const BF8: bool>(wave: &mut Wave, inst: &Inst) {
    let a = U16::fetch(wave, inst, 1);
    let format = format(wave.isa, BF8);
    let mut out = PkF32::zero();
    for lane in 0..lanes!(wave) {
        out[lane] = PkF32::put([format.decode(a[lane] & 0xff), format.decode(a[lane] >> 8 & 0xff)]);
    }
    super::results::write_wide(wave, inst.operand(0), &out, written_lanes(wave, inst));
}

/// Which conversion a `v_cvt_scalef32_*` does, in sixteen bits of the instruction.
#[derive(Clone, Copy)]
struct Scaled {
    /// fp8, bf8 or fp4.
    format: Small,
    /// Width of the other type's elements: f32, f16 or bf16.
    other: Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    F32,
    F16,
    Bf16,
}

impl Scaled {
    /// Reads the mnemonic: `v_cvt_scalef32[_pk]_TO_FROM`.
    fn of(inst: &Inst, isa: &Isa) -> Scaled {
        let has = |part| inst.mnemonic.split('_').skip(3).any(|p| p == part);
        let format = if has("fp4") { num::E2M1 } else { format(isa, has("bf8")) };
        let other = if has("bf16") {
            Other::Bf16
        } else if has("f16") {
            Other::F16
        } else {
            Other::F32
        };
        Scaled { format, other }
    }
}

impl Other {
    fn read(self, bits: u32) -> f32 {
        match self {
            Other::F32 => f32::from_bits(bits),
            Other::F16 => num::f16_to_f32(bits as u16),
            Other::Bf16 => num::bf16_to_f32(bits as u16),
        }
    }

    fn write(self, x: f32) -> u32 {
        match self {
            Other::F32 => x.to_bits(),
            Other::F16 => num::f32_to_f16(x).into(),
            Other::Bf16 => num::f32_to_bf16(x).into(),
        }
    }
}

/// A scale is the power of two of an f32's exponent; 0xff makes everything NaN.
fn power(bits: u32) -> f64 {
    f64::from(num::e8m0_to_f32((bits >> 23) as u8))
}

/// Conversions with a scale (gfx950): narrowing divides by it, widening multiplies.
fn scaled() -> Vec<Entry> {
    let own = |entry: Entry| Entry { keeps_high: true, prepare: Some(any_op_sel), ..entry };
    let narrowing = |names| own(Entry { reads_dst: 1, ..Entry::new(names, builds!(narrow_scaled), ONE, Class::M32) });
    let widening = |names| own(Entry::new(names, builds!(widen_scaled), ONE, Class::M32));
    vec![
        narrowing("v_cvt_scalef32_pk_fp8_f32 v_cvt_scalef32_pk_bf8_f32 v_cvt_scalef32_pk_fp4_f32"),
        narrowing("v_cvt_scalef32_pk_fp8_f16 v_cvt_scalef32_pk_bf8_f16 v_cvt_scalef32_pk_fp4_f16"),
        narrowing("v_cvt_scalef32_pk_fp8_bf16 v_cvt_scalef32_pk_bf8_bf16 v_cvt_scalef32_pk_fp4_bf16"),
        widening("v_cvt_scalef32_pk_f32_fp8 v_cvt_scalef32_pk_f32_bf8 v_cvt_scalef32_pk_f32_fp4"),
        widening("v_cvt_scalef32_pk_f16_fp8 v_cvt_scalef32_pk_f16_bf8 v_cvt_scalef32_pk_f16_fp4"),
        widening("v_cvt_scalef32_pk_bf16_fp8 v_cvt_scalef32_pk_bf16_bf8 v_cvt_scalef32_pk_bf16_fp4"),
        own(Entry::new("v_cvt_scalef32_f32_fp8 v_cvt_scalef32_f32_bf8", builds!(widen_one), ONE, Class::M32)),
    ]
}

/// `op_sel` chooses parts of the small operand: the conversions read it themselves, so sources must
/// not.
fn any_op_sel(inst: &mut Inst, _: &Isa) -> bool {
    let select = inst.modifiers.op_sel.take().unwrap_or(0);
    flags::set_own(inst, select.into());
    true
}

/// The operands of a narrowing conversion: pairs are in two registers of f32 or in one of 16-bit
/// halves.
fn pairs(wave: &Wave, inst: &Inst, other: Other) -> ([[f32; LANES]; 2], [u32; LANES]) {
    let a = Bits32::fetch(wave, inst, 1);
    let of = |cells: &[u32; LANES], shift: u32| std::array::from_fn(|lane| other.read(cells[lane] >> shift));
    if other == Other::F32 {
        let b = Bits32::fetch(wave, inst, 2);
        ([of(&a, 0), of(&b, 0)], Bits32::fetch(wave, inst, 3))
    } else {
        ([of(&a, 0), of(&a, 16)], Bits32::fetch(wave, inst, 2))
    }
}

#[inline(always)]
fn narrow_scaled(wave: &mut Wave, inst: &Inst) {
    let Scaled { format, other } = Scaled::of(inst, wave.isa);
    let (values, scale) = pairs(wave, inst, other);
    let bits = format.bits();
    // A pair of fp8 is written to a half, a pair of fp4 to a byte. The bits of op_sel after the
    // sources' select it.
    let select = (flags::own(inst) >> (usize::from(inst.count) - 1 - usize::from(bits == 4))) as u32;
    let shift = if bits == 4 { (select & 3) * 8 } else { (select & 1) * 16 };
    let mask = (1u32 << (2 * bits)) - 1;
    let overflow = overflow(wave);
    let old = super::sources::read(wave, inst.operand(0));
    let mut out = Bits32::zero();
    for lane in 0..lanes!(wave) {
        let power = power(scale[lane]);
        let [low, high] = values.map(|v| format.encode(f64::from(v[lane]) / power, Rounding::NearestEven, overflow));
        out[lane] = old[lane] & !(mask << shift) | (low | high << bits) << shift;
    }
    write_row(wave, inst.operand(0), &out, written_lanes(wave, inst));
}

#[inline(always)]
fn widen_scaled(wave: &mut Wave, inst: &Inst) {
    let Scaled { format, other } = Scaled::of(inst, wave.isa);
    let (a, scale) = (U32::fetch(wave, inst, 1), Bits32::fetch(wave, inst, 2));
    let bits = format.bits();
    let select = flags::own(inst) as u32;
    let shift = if bits == 4 { (select & 3) * 8 } else { (select & 1) * 16 };
    let mut halves = [[0u32; LANES]; 2];
    for lane in 0..lanes!(wave) {
        for (k, half) in halves.iter_mut().enumerate() {
            let code = a[lane] >> (shift + k as u32 * bits);
            half[lane] = other.write((f64::from(format.decode(code)) * power(scale[lane])) as f32);
        }
    }
    let lanes = written_lanes(wave, inst);
    if other == Other::F32 {
        let wide = std::array::from_fn(|lane| u64::from(halves[0][lane]) | u64::from(halves[1][lane]) << 32);
        super::results::write_wide(wave, inst.operand(0), &wide, lanes);
    } else {
        let packed = std::array::from_fn(|lane| halves[0][lane] | halves[1][lane] << 16);
        write_row(wave, inst.operand(0), &packed, lanes);
    }
}

#[inline(always)]
fn widen_one(wave: &mut Wave, inst: &Inst) {
    let Scaled { format, .. } = Scaled::of(inst, wave.isa);
    let (a, scale) = (U32::fetch(wave, inst, 1), Bits32::fetch(wave, inst, 2));
    let shift = 8 * (flags::own(inst) as u32 & 3);
    let mut out = Bits32::zero();
    for lane in 0..lanes!(wave) {
        let value = f64::from(format.decode(a[lane] >> shift & 0xff)) * power(scale[lane]);
        out[lane] = (value as f32).to_bits();
    }
    Bits32::store(wave, inst, &mut out);
}
