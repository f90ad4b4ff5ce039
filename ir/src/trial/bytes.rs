//! Numbers in memory.
use half::{bf16, f16};

use crate::types::DType;

/// Writes element `index` of a buffer. Of elements of 4 bits the first of two has the lower half of
/// a byte.
pub fn store(bytes: &mut [u8], index: usize, v: f64, dtype: DType) {
    if dtype.bits() == 4 {
        let (byte, shift) = (&mut bytes[index / 2], index % 2 * 4);
        *byte = *byte & !(15 << shift) | (to_bits(v, dtype) as u8 & 15) << shift;
        return;
    }
    let size = dtype.size();
    bytes[index * size..][..size].copy_from_slice(&to_bits(v, dtype).to_le_bytes()[..size]);
}

/// Reads element `index` of a buffer.
pub fn fetch(bytes: &[u8], index: usize, dtype: DType) -> f64 {
    if dtype.bits() == 4 {
        return of_bits(u32::from(bytes[index / 2] >> (index % 2 * 4) & 15), dtype);
    }
    let mut bits = [0; 4];
    bits[..dtype.size()].copy_from_slice(&bytes[index * dtype.size()..][..dtype.size()]);
    of_bits(u32::from_le_bytes(bits), dtype)
}

/// The nearest number of a type.
pub fn round(v: f64, dtype: DType) -> f64 {
    of_bits(to_bits(v, dtype), dtype)
}

/// The bits of the nearest number of a type.
pub(super) fn to_bits(v: f64, dtype: DType) -> u32 {
    let integer = || v.round_ties_even().clamp(least(dtype), largest(dtype)) as i32 as u32;
    match dtype {
        DType::F32 => (v as f32).to_bits(),
        DType::BF16 => bf16::from_f64(v).to_bits().into(),
        DType::F16 => f16::from_f64(v).to_bits().into(),
        DType::F8E4M3 => to_f8(v).into(),
        DType::E8M0 => to_e8m0(v).into(),
        DType::F4E2M1 => to_f4(v).into(),
        DType::I32 => v as i32 as u32,
        DType::I8 | DType::I4 | DType::U8 | DType::U4 => integer(),
    }
}

/// What the bits of a number mean, of which there are no others.
pub(crate) fn of_bits(bits: u32, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::from_bits(bits).into(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::F8E4M3 => of_f8(bits as u8),
        DType::E8M0 => of_e8m0(bits as u8),
        DType::F4E2M1 => of_f4(bits as u8),
        DType::I32 => (bits as i32).into(),
        DType::I8 => (bits as i8).into(),
        DType::U8 | DType::U4 => bits.into(),
        DType::I4 => ((bits as i32) << 28 >> 28).into(),
    }
}

/// The largest number of a type.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::MAX as f64,
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F16 => f16::MAX.to_f64(),
        DType::F8E4M3 => F8_LARGEST,
        DType::E8M0 => 127f64.exp2(),
        DType::F4E2M1 => 6.0,
        DType::I32 => i32::MAX as f64,
        DType::I8 => 127.0,
        DType::U8 => 255.0,
        DType::I4 => 7.0,
        DType::U4 => 15.0,
    }
}

/// The least number of a type of codes.
pub fn least(dtype: DType) -> f64 {
    match dtype {
        DType::U8 | DType::U4 => 0.0,
        DType::I8 => -128.0,
        DType::I4 => -8.0,
        _ => -largest(dtype),
    }
}

/// The exponent of a power of two, the nearest one.
fn to_e8m0(v: f64) -> u8 {
    if v.is_nan() { 255 } else { (v.log2().round_ties_even() + 127.0).clamp(0.0, 254.0) as u8 }
}

fn of_e8m0(bits: u8) -> f64 {
    if bits == 255 { f64::NAN } else { (f64::from(bits) - 127.0).exp2() }
}

/// The sizes of `e2m1`, by their bits.
const F4: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn to_f4(v: f64) -> u8 {
    let sign = if v.is_sign_negative() { 8 } else { 0 };
    // Halfway between two, the even one of them has them.
    let above = |&bits: &usize| {
        let middle = (F4[bits] + F4[bits + 1]) / 2.0;
        v.abs() > middle || v.abs() == middle && bits % 2 == 1
    };
    sign | (0..7).take_while(above).count() as u8
}

fn of_f4(bits: u8) -> f64 {
    let size = F4[usize::from(bits & 7)];
    if bits & 8 != 0 { -size } else { size }
}

const F8_LARGEST: f64 = 448.0;

/// A sign, 4 bits of exponent and 3 of mantissa; exponent 1 is 2^-6, and with exponent 0 there is
/// no leading one.
fn to_f8(v: f64) -> u8 {
    let sign = if v.is_sign_negative() { 0x80 } else { 0 };
    if v.is_nan() {
        return sign | 0x7f;
    }
    let size = v.abs().min(F8_LARGEST);
    let exponent = size.log2().floor().max(-6.0);
    // Eighths, from 8 to 16 where there is a leading one: 16 carries into the exponent by itself.
    let eighths = (size / (exponent - 3.0).exp2()).round_ties_even();
    sign | ((exponent + 6.0) * 8.0 + eighths) as u8
}

fn of_f8(bits: u8) -> f64 {
    let (exponent, mantissa) = (bits >> 3 & 15, f64::from(bits & 7));
    let size = match (exponent, bits & 0x7f) {
        (_, 0x7f) => f64::NAN,
        (0, _) => mantissa * (-9f64).exp2(),
        _ => (8.0 + mantissa) * (f64::from(exponent) - 10.0).exp2(),
    };
    if bits & 0x80 != 0 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_f8_are_numbers_in_order_and_halfway_is_even() {
        let all: Vec<f64> = (0..0x7f).map(of_f8).collect();
        assert_eq!((all[0], all[1], all[8], all[0x38], all[0x7e]), (0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0, 448.0));
        assert!(of_f8(0x7f).is_nan() && to_f8(f64::NAN) == 0x7f);
        for (bits, two) in all.windows(2).enumerate() {
            assert_eq!((to_f8(two[0]), to_f8(-two[1])), (bits as u8, 0x81 + bits as u8));
            let (middle, even) = ((two[0] + two[1]) / 2.0, (bits + bits % 2) as u8);
            assert_eq!(to_f8(middle), even);
            assert_eq!(to_f8(middle * (1.0 - 1e-9)), bits as u8);
            assert_eq!(to_f8(middle * (1.0 + 1e-9)), bits as u8 + 1);
        }
        assert_eq!((to_f8(1e9), to_f8(f64::NEG_INFINITY)), (0x7e, 0xfe));
    }

    /// All numbers of 4 and of 8 bits come back from memory, and leave their neighbours alone.
    #[test]
    fn codes_come_back() {
        for dtype in DType::ALL.into_iter().filter(|d| d.bits() <= 8) {
            let all = (0..1u32 << dtype.bits()).map(|bits| of_bits(bits, dtype)).filter(|v| !v.is_nan());
            let mut bytes = vec![0xa5; dtype.bytes(3)];
            for v in all {
                let before = [0, 2].map(|i| fetch(&bytes, i, dtype));
                store(&mut bytes, 1, v, dtype);
                assert_eq!((fetch(&bytes, 1, dtype), round(v, dtype)), (v, v), "{dtype:?}");
                assert_eq!([0, 2].map(|i| fetch(&bytes, i, dtype)), before, "{dtype:?}");
            }
        }
        let four = |dtype, from: [f64; 5]| from.map(|v| round(v, dtype));
        assert_eq!(four(DType::F4E2M1, [0.25, 0.75, 2.5, -3.5, 99.0]), [0.0, 1.0, 2.0, -4.0, 6.0]);
        assert_eq!(four(DType::I4, [-9.0, -8.0, -0.5, 1.5, 8.0]), [-8.0, -8.0, 0.0, 2.0, 7.0]);
        assert_eq!(four(DType::U4, [-1.0, 0.4, 14.6, 15.0, 16.0]), [0.0, 0.0, 15.0, 15.0, 15.0]);
        assert_eq!(four(DType::E8M0, [0.0, 1.0, 1.4, 6.0, 1e99]), [-127, 0, 0, 3, 127].map(|e| f64::from(e).exp2()));
    }
}
