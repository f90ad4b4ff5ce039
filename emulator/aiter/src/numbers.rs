//! Random operands, what their codes mean, and the order in which kernels take them.
use atomc_emulator::num::{E2M1, E4M3, E4M3_FNUZ, bf16_to_f32, f32_to_bf16};
use atomc_emulator::random;

/// Random operands, the same ones for the same seed.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

impl Random {
    /// Of any seed.
    pub fn new(seed: u64) -> Random {
        Random(random::Random::new(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// A number below one.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.bits() >> 33) % n as u64) as usize
    }

    /// Evenly between the two.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    pub fn floats(&mut self, count: usize, low: f32, high: f32) -> Vec<f32> {
        (0..count).map(|_| self.between(low, high)).collect()
    }

    /// bf16 codes.
    pub fn bf16(&mut self, count: usize, low: f32, high: f32) -> Vec<u16> {
        (0..count).map(|_| f32_to_bf16(self.between(low, high))).collect()
    }

    /// An order of the first `count` numbers.
    pub fn order(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for k in (1..count).rev() {
            order.swap(k, self.below(k + 1));
        }
        order
    }
}

/// Types of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    Int8,
    /// fp8 as the chip has it: with `true`, as gfx942 does.
    Fp8(bool),
    /// Two in a byte, the even one in its low half.
    Fp4,
    Bf16,
}

impl Element {
    /// Bytes of `count` elements.
    pub fn bytes(self, count: usize) -> usize {
        match self {
            Element::Int8 | Element::Fp8(_) => count,
            Element::Fp4 => count / 2,
            Element::Bf16 => count * 2,
        }
    }

    /// Random codes of numbers that are all finite.
    pub fn random(self, count: usize, random: &mut Random) -> Vec<u8> {
        match self {
            Element::Bf16 => random.bf16(count, -1.0, 1.0).iter().flat_map(|v| v.to_le_bytes()).collect(),
            Element::Int8 => (0..count).map(|_| (random.below(255) as i32 - 127) as u8).collect(),
            Element::Fp4 => (0..count / 2).map(|_| (random.bits() >> 56) as u8).collect(),
            // Exponents up to 15 of 15; magnitudes of at least one keep clear of FNUZ's NaN.
            Element::Fp8(_) => {
                (0..count).map(|_| (random.below(0x70) as u8 + 1) | (random.bits() >> 56) as u8 & 0x80).collect()
            }
        }
    }

    /// The number at an index.
    pub fn value(self, codes: &[u8], at: usize) -> f64 {
        match self {
            Element::Int8 => f64::from(codes[at] as i8),
            Element::Fp8(true) => E4M3_FNUZ.decode(codes[at].into()).into(),
            Element::Fp8(false) => E4M3.decode(codes[at].into()).into(),
            Element::Fp4 => E2M1.decode(u32::from(codes[at / 2] >> (at % 2 * 4)) & 15).into(),
            Element::Bf16 => bf16_to_f32(u16::from_le_bytes([codes[2 * at], codes[2 * at + 1]])).into(),
        }
    }

    pub fn values(self, codes: &[u8], count: usize) -> Vec<f64> {
        (0..count).map(|at| self.value(codes, at)).collect()
    }
}

/// Puts 16 rows' pieces of 16 bytes one after the other ("preshuffled" operands, (16, 16)).
pub fn shuffle(rows: &[u8], row_bytes: usize) -> Vec<u8> {
    let pieces = row_bytes / 16;
    let mut out = vec![0; rows.len()];
    for (at, piece) in rows.chunks_exact(16).enumerate() {
        let (row, column) = (at / pieces, at % pieces);
        let to = ((row / 16) * pieces + column) * 16 + row % 16;
        out[to * 16..][..16].copy_from_slice(piece);
    }
    out
}

/// Scales of MXFP4, in the order in which its products take them. Rows come in 256s, columns in
/// eights.
pub fn shuffle_scales(scales: &[u8], columns: usize) -> Vec<u8> {
    let mut out = vec![0; scales.len()];
    for (at, scale) in scales.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let block = row / 32 * (columns / 8) + column / 8;
        let inner = (column % 4 * 16 + row % 16) * 4 + column % 8 / 4 * 2 + row % 32 / 16;
        out[block * 256 + inner] = *scale;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_rows_lie_together() {
        // Each byte is its row.
        let rows: Vec<u8> = (0..32).flat_map(|row| [row; 48]).collect();
        let shuffled = shuffle(&rows, 48);
        assert_eq!((shuffled[0], shuffled[16], shuffled[15 * 16], shuffled[16 * 16]), (0, 1, 15, 0));
        assert_eq!(shuffled[16 * 48], 16);
        // Each byte is its column.
        let columns: Vec<u8> = (0..16).flat_map(|_| 0..48).collect();
        assert_eq!(shuffle(&columns, 48)[16 * 16..][..16], *(16..32).collect::<Vec<u8>>());
    }

    #[test]
    fn scales_of_fp4() {
        // AITER's own: `reshape(R / 32, 2, 16, C / 8, 2, 4)`, axes 0, 3, 5, 2, 4, 1.
        let (rows, columns) = (64, 16);
        let scales: Vec<u8> = (0..rows * columns).map(|n| (n % 251) as u8).collect();
        let mut wanted = Vec::new();
        for (r, c) in (0..rows / 32).flat_map(|r| (0..columns / 8).map(move |c| (r, c))) {
            for (c4, r16) in (0..4).flat_map(|c4| (0..16).map(move |r16| (c4, r16))) {
                for (c2, r2) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    wanted.push(scales[(r * 32 + r2 * 16 + r16) * columns + c * 8 + c2 * 4 + c4]);
                }
            }
        }
        assert_eq!(shuffle_scales(&scales, columns), wanted);
    }

    #[test]
    fn random_codes_are_numbers() {
        let mut random = Random::new(3);
        for element in [Element::Int8, Element::Fp8(true), Element::Fp8(false), Element::Fp4, Element::Bf16] {
            let codes = element.random(4096, &mut random);
            assert_eq!(codes.len(), element.bytes(4096));
            let values = element.values(&codes, 4096);
            assert!(values.iter().all(|v| v.is_finite()), "{element:?}");
            assert!(values.iter().any(|v| *v < 0.0) && values.iter().any(|v| *v > 0.0), "{element:?}");
        }
    }
}
