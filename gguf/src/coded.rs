//! What a block becomes where its numbers stay codes: integers, a scale for each group of them, and
//! for some types a number that is added, or a zero point that is taken off.
//!
//! A file has scales of two levels; the product of both is a scale here, in f32, where a type of 16
//! bits does not have it. Codes, scale and least number make the floats that
//! [`Type::dequantise`] makes, to the bit: its arithmetic is `d * q`, or `d * q + m`.
use atomc_artifact::manifest::DType;
use half::f16;

use crate::blocks::{self, LEVELS, scale};
use crate::types::Type;

/// How the numbers of a type stay codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The type of codes.
    pub codes: DType,
    /// Columns that share a scale.
    pub group: usize,
    /// The type of scales.
    pub scales: DType,
    /// The type of what else a group has: a float is added to code times scale, an integer is taken
    /// off the code.
    pub least: Option<DType>,
}

/// What is made of the blocks of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Codes; of those of 4 bits two lie in a byte, the first one in the lower half.
    Codes,
    /// The scale of each group.
    Scales,
    /// What is added or taken off, of each group.
    Least,
}

impl Piece {
    /// All of them.
    pub const ALL: [Piece; 3] = [Piece::Codes, Piece::Scales, Piece::Least];

    /// The end of a tensor's name that has it.
    pub fn name(self) -> &'static str {
        match self {
            Piece::Codes => "codes",
            Piece::Scales => "scales",
            Piece::Least => "least",
        }
    }
}

/// The middle of codes of four bits without a sign, which is taken off them.
const MIDDLE: i16 = 8;

impl Type {
    /// How numbers of the type stay codes, unless they are floats.
    pub fn coded(self) -> Option<Coded> {
        let signed = |codes, scales, group| Coded { codes, group, scales, least: None };
        let above = |codes, scales| Coded { codes, group: 32, scales, least: Some(scales) };
        Some(match self {
            Type::F32 | Type::F16 | Type::BF16 => return None,
            // Scales may be negative, so a middle is taken off either the codes or their reverse.
            Type::Q4_0 => Coded { least: Some(DType::U8), ..signed(DType::U4, DType::F16, 32) },
            Type::Q4_1 => above(DType::U4, DType::F16),
            Type::Q5_1 => above(DType::U8, DType::F16),
            Type::Q4_K => above(DType::U4, DType::F32),
            Type::Q5_K => above(DType::U8, DType::F32),
            Type::Q2_K => Coded { group: 16, ..above(DType::U8, DType::F32) },
            Type::Q5_0 | Type::Q8_0 | Type::IQ4_NL => signed(DType::I8, DType::F16, 32),
            Type::Q3_K | Type::Q6_K => signed(DType::I8, DType::F32, 16),
            Type::IQ4_XS => signed(DType::I8, DType::F32, 32),
            Type::TQ1_0 | Type::TQ2_0 => signed(DType::I4, DType::F16, 256),
            Type::MXFP4 => signed(DType::F4E2M1, DType::E8M0, 32),
        })
    }
}

impl Coded {
    /// Whether there is such a piece of a weight.
    pub fn has(&self, piece: Piece) -> bool {
        piece != Piece::Least || self.least.is_some()
    }

    /// The type of the numbers of a piece: of codes of 4 bits, bytes of two.
    pub fn dtype(&self, piece: Piece) -> DType {
        match piece {
            Piece::Codes if self.codes.bits() < 8 => DType::U8,
            Piece::Codes => self.codes,
            Piece::Scales => self.scales,
            Piece::Least => self.least.unwrap_or(DType::F32),
        }
    }

    /// Numbers of a piece in a row of so many columns, which are whole blocks.
    pub fn width(&self, piece: Piece, columns: usize) -> usize {
        match piece {
            Piece::Codes => columns * self.codes.bits() / 8 / self.dtype(piece).size(),
            Piece::Scales | Piece::Least => columns / self.group,
        }
    }
}

/// Blocks taken apart. Codes are those of their type, of e2m1 its bits; scales of powers of two are
/// these.
#[derive(Clone, Debug, Default)]
pub struct Split {
    codes: Vec<i16>,
    scales: Vec<f32>,
    /// Empty if the type has none.
    least: Vec<f32>,
}

impl Split {
    /// Takes whole blocks of a type apart.
    ///
    /// # Panics
    ///
    /// Panics if the type has no codes, or if the bytes are no whole blocks.
    pub fn of(kind: Type, bytes: &[u8]) -> Split {
        let coded = kind.coded().expect("a type of codes");
        assert!(bytes.len().is_multiple_of(kind.block_bytes()), "{} has whole blocks", kind.name());
        let mut all = Split::default();
        bytes.chunks_exact(kind.block_bytes()).for_each(|block| all.add(kind, block));
        all.settle(&coded);
        all
    }

    /// The bytes of a piece, in its type.
    pub fn bytes(&self, coded: &Coded, piece: Piece) -> Vec<u8> {
        let numbers = |numbers: &[f32]| match coded.dtype(piece) {
            DType::F16 => numbers.iter().flat_map(|&number| f16::from_f32(number).to_le_bytes()).collect(),
            DType::E8M0 => numbers.iter().map(|number| (number.to_bits() >> 23) as u8).collect(),
            DType::U8 => numbers.iter().map(|&number| number as u8).collect(),
            _ => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        };
        match piece {
            Piece::Codes if coded.codes.bits() == 4 => {
                self.codes.chunks_exact(2).map(|two| (two[0] & 15 | (two[1] & 15) << 4) as u8).collect()
            }
            Piece::Codes => self.codes.iter().map(|&code| code as u8).collect(),
            Piece::Scales => numbers(&self.scales),
            Piece::Least => numbers(&self.least),
        }
    }

    fn add(&mut self, kind: Type, block: &[u8]) {
        let half = |at: usize| scale(block[at], block[at + 1]);
        let less = |zero: i16| move |code: u8| i16::from(code) - zero;
        let level = |code: u8| i16::from(LEVELS[usize::from(code)]);
        let whole = |code: u8| i16::from(code);
        let word = |at: usize| block[at..at + 4].try_into().expect("four bytes");
        match kind {
            Type::F32 | Type::F16 | Type::BF16 => unreachable!("{} has no codes", kind.name()),
            Type::Q4_0 => self.push(blocks::nibbles(&block[2..]).map(whole), [half(0)], [f32::from(MIDDLE)]),
            Type::Q4_1 => self.push(blocks::nibbles(&block[4..]).map(whole), [half(0)], [half(2)]),
            Type::Q5_0 => self.push(blocks::fives(word(2), &block[6..]).map(less(16)), [half(0)], []),
            Type::Q5_1 => self.push(blocks::fives(word(4), &block[8..]).map(whole), [half(0)], [half(2)]),
            Type::Q8_0 => self.push(block[2..].iter().map(|&code| i16::from(code as i8)), [half(0)], []),
            Type::IQ4_NL => self.push(blocks::nibbles(&block[2..]).map(level), [half(0)], []),
            Type::MXFP4 => self.push(blocks::nibbles(&block[1..]).map(whole), [power(block[0])], []),
            Type::TQ1_0 => self.push(blocks::thirds(block).map(less(1)), [half(52)], []),
            Type::TQ2_0 => self.push(blocks::pairs(&block[..64]).map(less(1)), [half(64)], []),
            Type::Q2_K => {
                let (d, least) = (half(80), half(82));
                let scales = block[..16].iter().map(|both| d * f32::from(both & 15));
                let minima = block[..16].iter().map(|both| -(least * f32::from(both >> 4)));
                self.push(blocks::pairs(&block[16..80]).map(whole), scales, minima);
            }
            Type::Q3_K => {
                let high = block.first_chunk().expect("a block has more bytes");
                let codes = blocks::pairs(&block[32..96]).zip(blocks::bits(high));
                let codes = codes.map(|(code, bit)| i16::from(code) - if bit == 0 { 4 } else { 0 });
                let scales = blocks::signed_scales(&block[96..]).map(|by| half(108) * by);
                self.push(codes, scales, []);
            }
            Type::Q4_K => {
                let codes = block[16..].chunks_exact(32).flat_map(blocks::nibbles).map(whole);
                self.above(block, codes);
            }
            Type::Q5_K => {
                let high = block[16..].first_chunk().expect("a block has more bytes");
                let codes = block[48..].chunks_exact(32).flat_map(blocks::nibbles).zip(blocks::bits(high));
                self.above(block, codes.map(|(low, high)| i16::from(low | high << 4)));
            }
            Type::Q6_K => {
                let scales = block[192..208].iter().map(|&by| half(208) * f32::from(by as i8));
                self.push(blocks::sixes(block).map(less(32)), scales, []);
            }
            Type::IQ4_XS => {
                let codes = block[8..].chunks_exact(16).flat_map(blocks::nibbles).map(level);
                self.push(codes, blocks::scales_of_levels(block), []);
            }
        }
    }

    /// What Q4_K and Q5_K have in common.
    fn above(&mut self, block: &[u8], codes: impl Iterator<Item = i16>) {
        let of = blocks::scales_above_minima(block.first_chunk().expect("a block has more bytes"));
        self.push(codes, of.map(|(scale, _)| scale), of.map(|(_, least)| -least));
    }

    fn push(
        &mut self,
        codes: impl Iterator<Item = i16>,
        scales: impl IntoIterator<Item = f32>,
        least: impl IntoIterator<Item = f32>,
    ) {
        self.codes.extend(codes);
        self.scales.extend(scales);
        self.least.extend(least);
    }

    /// Makes scales such as products take them: not negative, and zero only where codes mean zero.
    /// A scale that cannot be changed stays, and a load refuses it.
    fn settle(&mut self, coded: &Coded) {
        let zeros = coded.least == Some(DType::U8);
        for (at, (codes, scale)) in self.codes.chunks_exact_mut(coded.group).zip(&mut self.scales).enumerate() {
            let bound = coded.codes.integers().filter(|[least, _]| *least < 0);
            if *scale == 0.0 {
                codes.fill(if zeros { MIDDLE } else { 0 });
                *scale = 0.0;
            } else if *scale < 0.0 && zeros {
                codes.iter_mut().for_each(|code| *code = 15 - *code);
                (*scale, self.least[at]) = (-*scale, 15.0 - f32::from(MIDDLE));
            } else if *scale < 0.0 && bound.is_some_and(|[_, most]| codes.iter().all(|&code| i64::from(-code) <= most))
            {
                codes.iter_mut().for_each(|code| *code = -*code);
                *scale = -*scale;
            }
        }
    }
}

/// A power of two by its exponent, of which 255 is none.
fn power(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests;
