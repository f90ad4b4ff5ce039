//! Quantises weights to codes of 8 and of 4 bits with scales. All roundings of it are here. The
//! interpreter and the loader compute with it, operation by operation in f32, the numbers that
//! compressed-tensors computes.
use crate::DType;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The types of the codes and scales that a matrix is quantised to, and its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encode {
    /// The type of codes.
    pub codes: DType,
    /// The type of scales.
    pub scales: DType,
    /// Rows and columns that share a scale.
    pub block: [usize; 2],
}

/// One of the two results of quantising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoded {
    /// The codes. Two codes of 4 bits are in a byte, the first one in the lower half.
    Codes,
    /// The scales, one for each block.
    Scales,
}

impl Encoded {
    /// Both.
    pub const ALL: [Encoded; 2] = [Encoded::Codes, Encoded::Scales];

    /// The name in graphs and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Encoded::Codes => "codes",
            Encoded::Scales => "scales",
        }
    }
}

/// Added to a number below 2^22 in absolute value, it leaves the nearest integer in the lowest
/// bits. Ties go to even.
const ROUND: f32 = 12_582_912.0;
/// Added to a number, it leaves the nearest multiple of 2^-9, the smallest e4m3, in the lowest
/// bits.
const ROUND_F8: f32 = 16_384.0;
/// The largest number of e4m3.
const LARGEST_F8: f32 = 448.0;
/// The smallest normal number of e4m3.
const NORMAL_F8: f32 = 1.0 / 64.0;

impl Encode {
    /// Whether these codes and scales can be made.
    pub fn is_sound(&self) -> bool {
        let Encode { codes, scales, block } = *self;
        let known = matches!(codes, DType::F8E4M3 | DType::F4E2M1 | DType::I8 | DType::I4);
        let power = scales == DType::E8M0;
        let suits = match codes {
            DType::F4E2M1 => power,
            DType::I8 | DType::I4 => !power,
            _ => true,
        };
        known && suits && scales.is_scale() && !block.contains(&0)
    }

    /// The type of a result.
    pub fn dtype(&self, made: Encoded) -> DType {
        match made {
            Encoded::Scales => self.scales,
            Encoded::Codes if self.codes.bits() < 8 => DType::U8,
            Encoded::Codes => self.codes,
        }
    }

    /// Rows and columns of a result, for a matrix of this size.
    pub fn sizes(&self, made: Encoded, [rows, cols]: [usize; 2]) -> [usize; 2] {
        match made {
            Encoded::Scales => [rows.div_ceil(self.block[0]), cols.div_ceil(self.block[1])],
            Encoded::Codes => [rows, (cols * self.codes.bits()).div_ceil(8)],
        }
    }

    /// The stored scale of numbers with this largest absolute value.
    pub fn scale(&self, size: f32) -> f32 {
        let most = match self.codes {
            DType::I8 => 127.5,
            DType::I4 => 7.5,
            _ => LARGEST_F8,
        };
        // Numbers that are all zero need a scale above zero.
        let or = |scale: f32, epsilon: f32| if scale == 0.0 { epsilon } else { scale };
        match self.scales {
            DType::E8M0 => power(size, if self.codes == DType::F4E2M1 { 2 } else { 8 }),
            DType::BF16 => or(bf16::from_f32(size / most).to_f32(), bf16::EPSILON.to_f32()),
            DType::F16 => or(f16::from_f32(size / most).to_f32(), f16::EPSILON.to_f32()),
            _ => or(size / most, f32::EPSILON),
        }
    }

    /// A scale's bytes. The first ones are those of its type; the others are unused.
    pub fn bytes_of_scale(&self, scale: f32) -> [u8; 4] {
        match self.scales {
            // The exponent of the power of two. The exponent 0 is 2^-127, which is subnormal in
            // f32.
            DType::E8M0 => [(scale.to_bits() >> 23) as u8, 0, 0, 0],
            DType::BF16 => u32::from(bf16::from_f32(scale).to_bits()).to_le_bytes(),
            DType::F16 => u32::from(f16::from_f32(scale).to_bits()).to_le_bytes(),
            _ => scale.to_le_bytes(),
        }
    }

    /// The codes of numbers that share a scale, a byte each. Numbers and scale are finite.
    pub fn codes(&self, numbers: &[f32], scale: f32, codes: &mut [u8]) {
        let each = codes.iter_mut().zip(numbers.iter().map(|number| number / scale));
        match self.codes {
            DType::I8 => each.for_each(|(code, v)| *code = integer(v.clamp(-128.0, 127.0))),
            DType::I4 => each.for_each(|(code, v)| *code = integer(v.clamp(-8.0, 7.0)) & 15),
            DType::F4E2M1 => each.for_each(|(code, v)| *code = f4e2m1(v)),
            _ => each.for_each(|(code, v)| *code = f8e4m3(v)),
        }
    }
}

/// The scale of a group of numbers with this largest absolute value: a power of two, for codes that
/// reach up to `2^reach`. A mantissa of 1.75 or more counts as the next power of two.
fn power(size: f32, reach: i32) -> f32 {
    f32::exp2(exponent(size, reach) as f32)
}

/// The exponent of that power of two.
pub fn exponent(size: f32, reach: i32) -> i32 {
    (((size.to_bits() + (1 << 21)) >> 23) as i32 - 127 - reach).clamp(-127, 127)
}

fn integer(v: f32) -> u8 {
    (v + ROUND).to_bits() as u8
}

/// The nearest e4m3. Ties go to even.
fn f8e4m3(v: f32) -> u8 {
    let sign = (v.to_bits() >> 24) as u8 & 0x80;
    let size = v.abs().min(LARGEST_F8);
    let small = (size + ROUND_F8).to_bits() as u8;
    let bits = size.to_bits();
    // Of the 256 exponents 16 remain. The first of them means 2^-7.
    let large = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3) as u8;
    sign | if size < NORMAL_F8 { small } else { large }
}

/// The nearest e2m1. Ties go to even.
fn f4e2m1(v: f32) -> u8 {
    let (sign, a) = ((v.to_bits() >> 28) as u8 & 8, v.abs());
    let above = [a > 0.25, a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0];
    sign | above.into_iter().map(u8::from).sum::<u8>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const E4M3: Encode = Encode { codes: DType::F8E4M3, scales: DType::F32, block: [1, 4] };

    fn codes(by: Encode, numbers: &[f32]) -> (Vec<u8>, f32) {
        let size = numbers.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let (mut out, scale) = (vec![0; numbers.len()], by.scale(size));
        by.codes(numbers, scale, &mut out);
        (out, scale)
    }

    #[test]
    fn floats_of_8_bits() {
        assert_eq!(codes(E4M3, &[448.0, 17.0, 19.0, -1.0]), (vec![0x7e, 0x58, 0x5a, 0xb8], 1.0));
        // Subnormal numbers, and those that round to the smallest normal one.
        let tiny = 1.0 / 512.0;
        let by = |v: f32| f8e4m3(v);
        assert_eq!([tiny, tiny / 2.0, tiny * 1.5, tiny * 7.5, tiny * 8.0].map(by), [1, 0, 2, 8, 8]);
        assert_eq!(codes(E4M3, &[0.0, -0.0]), (vec![0, 0x80], f32::EPSILON));
    }

    #[test]
    fn integers() {
        let by = |codes, scales| Encode { codes, scales, block: [1, 32] };
        assert_eq!(codes(by(DType::I8, DType::F32), &[127.5, -127.5, 2.5, -3.5]), (vec![127, 128, 2, 252], 1.0));
        assert_eq!(codes(by(DType::I4, DType::BF16), &[7.5, -7.5, 0.5, 1.5]), (vec![7, 8, 0, 2], 1.0));
        // The scale is rounded first.
        let (_, scale) = codes(by(DType::I4, DType::BF16), &[1.0]);
        assert_eq!(scale, bf16::from_f32(1.0 / 7.5).to_f32());
    }

    #[test]
    fn powers_of_two() {
        let by = Encode { codes: DType::F4E2M1, scales: DType::E8M0, block: [1, 32] };
        assert_eq!(codes(by, &[6.0, 2.5, 0.3, -0.25]), (vec![7, 4, 1, 8], 1.0));
        assert_eq!(codes(by, &[6.9, 1.0]).1, 1.0);
        assert_eq!(codes(by, &[7.0, 1.0]), (vec![6, 1], 2.0));
        assert_eq!(by.bytes_of_scale(2.0)[0], 128);
        assert_eq!(by.bytes_of_scale(by.scale(0.0))[0], 0);
    }

    #[test]
    fn what_goes_together() {
        assert!(E4M3.is_sound() && !Encode { block: [0, 1], ..E4M3 }.is_sound());
        assert!(!Encode { codes: DType::F4E2M1, ..E4M3 }.is_sound());
        assert!(!Encode { codes: DType::I4, scales: DType::E8M0, ..E4M3 }.is_sound());
        assert!(!Encode { codes: DType::U4, ..E4M3 }.is_sound() && !Encode { scales: DType::I8, ..E4M3 }.is_sound());
    }
}
