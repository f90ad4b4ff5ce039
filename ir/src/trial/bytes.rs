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
        DType::I32 => i32::from_le_bytes(four()) as f64,
    }
}

/// The nearest number of a type.
pub fn round(v: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => v as f32 as f64,
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::I32 => v as i32 as f64,
    }
}

/// The largest number of a type.
pub fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f32::MAX as f64,
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F16 => f16::MAX.to_f64(),
        DType::I32 => i32::MAX as f64,
    }
}
