//! Numbers in memory.
use half::{bf16, f16};

use crate::types::DType;

/// Writes element `index` of a buffer.
pub fn store(bytes: &mut [u8], index: usize, v: f64, dtype: DType) {
    let at = index * dtype.size();
    match dtype {
        DType::F32 => bytes[at..at + 4].copy_from_slice(&(v as f32).to_le_bytes()),
        DType::BF16 => bytes[at..at + 2].copy_from_slice(&bf16::from_f64(v).to_le_bytes()),
        DType::F16 => bytes[at..at + 2].copy_from_slice(&f16::from_f64(v).to_le_bytes()),
        DType::F8E4M3 => bytes[at] = to_f8(v),
        DType::I32 => bytes[at..at + 4].copy_from_slice(&(v as i32).to_le_bytes()),
    }
}

/// Reads element `index` of a buffer.
pub fn fetch(bytes: &[u8], index: usize, dtype: DType) -> f64 {
    let at = index * dtype.size();
    let four = || [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    let two = || [bytes[at], bytes[at + 1]];
    match dtype {
        DType::F32 => f32::from_le_bytes(four()) as f64,
        DType::BF16 => bf16::from_le_bytes(two()).to_f64(),
        DType::F16 => f16::from_le_bytes(two()).to_f64(),
        DType::F8E4M3 => of_f8(bytes[at]),
        DType::I32 => i32::from_le_bytes(four()) as f64,
    }
}

/// The nearest number of a type.
pub fn round(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => v as f32 as f64,
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::F8E4M3 => of_f8(to_f8(v)),
        DType::I32 => v as i32 as f64,
    }
}

/// The largest number of a type.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::MAX as f64,
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F16 => f16::MAX.to_f64(),
        DType::F8E4M3 => F8_LARGEST,
        DType::I32 => i32::MAX as f64,
    }
}

const F8_LARGEST: f64 = 448.0;

/// A sign, 4 bits of exponent and 3 of mantissa; exponent 1 is 2^-6, and with exponent 0 there is no leading one.
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
}
