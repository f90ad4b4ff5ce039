//! A decoder for each type: the bytes of a block become floats. All arithmetic is that of 32 bits,
//! in the order of llama.cpp, so the results are the same to the bit.
use half::{bf16, f16};

/// Levels of the types that have them in place of integers.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the numbers that `e2m1` has.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The float of 16 bits that lies in two bytes.
pub fn scale(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// The lower halves of bytes, then the upper ones.
pub fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// The numbers of two bits in rows of 32 bytes: all lowest ones of a row, then the next ones.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = u8> {
    let rows = bytes.chunks_exact(32);
    rows.flat_map(|row| (0..4).flat_map(move |at| row.iter().map(move |byte| byte >> (2 * at) & 3)))
}

/// The bits in rows of 32 bytes, in the same order.
pub fn bits(bytes: &[u8; 32]) -> impl Iterator<Item = u8> {
    (0..8).flat_map(move |at| bytes.iter().map(move |byte| byte >> at & 1))
}

/// Numbers of five bits, whose highest ones lie in a word.
pub fn fives(word: [u8; 4], bytes: &[u8]) -> impl Iterator<Item = u8> {
    let word = u32::from_le_bytes(word);
    nibbles(bytes).enumerate().map(move |(at, low)| low | ((word >> at & 1) as u8) << 4)
}

/// Codes times a scale. Codes of a type with a sign are shifted by its zero.
fn scaled(out: &mut [f32], d: f32, zero: i8, codes: impl Iterator<Item = u8>) {
    out.iter_mut().zip(codes).for_each(|(out, code)| *out = d * f32::from(code as i8 - zero));
}

/// Codes times a scale, and a number that is added.
fn above(out: &mut [f32], d: f32, m: f32, codes: impl Iterator<Item = u8>) {
    out.iter_mut().zip(codes).for_each(|(out, code)| *out = d * f32::from(code) + m);
}

pub fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*block)];
}

pub fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [f16::from_le_bytes(*block).to_f32()];
}

pub fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [bf16::from_le_bytes(*block).to_f32()];
}

pub fn q4_0(&[a, b, ref codes @ ..]: &[u8; 18], out: &mut [f32; 32]) {
    scaled(out, scale(a, b), 8, nibbles(codes));
}

pub fn q4_1(&[a, b, c, d, ref codes @ ..]: &[u8; 20], out: &mut [f32; 32]) {
    above(out, scale(a, b), scale(c, d), nibbles(codes));
}

pub fn q5_0(&[a, b, h0, h1, h2, h3, ref codes @ ..]: &[u8; 22], out: &mut [f32; 32]) {
    scaled(out, scale(a, b), 16, fives([h0, h1, h2, h3], codes));
}

pub fn q5_1(&[a, b, c, d, h0, h1, h2, h3, ref codes @ ..]: &[u8; 24], out: &mut [f32; 32]) {
    above(out, scale(a, b), scale(c, d), fives([h0, h1, h2, h3], codes));
}

pub fn q8_0(&[a, b, ref codes @ ..]: &[u8; 34], out: &mut [f32; 32]) {
    scaled(out, scale(a, b), 0, codes.iter().copied());
}

/// Scales and minima are four bits each.
pub fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, rest) = block.split_at(16);
    let (codes, ends) = rest.split_at(64);
    let (d, least) = (scale(ends[0], ends[1]), scale(ends[2], ends[3]));
    for (at, (out, code)) in out.iter_mut().zip(pairs(codes)).enumerate() {
        let both = scales[at / 16];
        *out = d * f32::from(both & 15) * f32::from(code) - least * f32::from(both >> 4);
    }
}

/// A code whose bit is not set is four less.
pub fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, rest) = block.split_first_chunk::<32>().expect("a block has more bytes");
    let (codes, rest) = rest.split_at(64);
    let d = scale(rest[12], rest[13]);
    let scales = signed_scales(rest);
    for (at, (out, (code, bit))) in out.iter_mut().zip(pairs(codes).zip(bits(high))).enumerate() {
        *out = d * scales[at / 16] * f32::from(code as i8 - if bit == 0 { 4 } else { 0 });
    }
}

/// The sixteen scales of six bits that 12 bytes hold: the lower four bits of each in eight bytes,
/// the upper two in four.
pub fn signed_scales(bytes: &[u8]) -> [f32; 16] {
    std::array::from_fn(|at| {
        let low = bytes[at % 8] >> (4 * (at / 8)) & 15;
        let high = bytes[8 + at % 4] >> (2 * (at / 4)) & 3;
        f32::from((low | high << 4) as i8 - 32)
    })
}

/// The eight scales of six bits that 12 bytes hold, and the eight minima: the first four of both
/// are the lower six bits of the first eight bytes. The others have their upper two bits there.
fn scales_and_minima(bytes: &[u8; 12]) -> [(f32, f32); 8] {
    std::array::from_fn(|at| {
        let (scale, least) = match at {
            0..4 => (bytes[at] & 63, bytes[at + 4] & 63),
            _ => (bytes[at + 4] & 15 | bytes[at - 4] >> 6 << 4, bytes[at + 4] >> 4 | bytes[at] >> 6 << 4),
        };
        (f32::from(scale), f32::from(least))
    })
}

/// The scales and the minima of Q4_K and Q5_K, of 32 elements each.
pub fn scales_above_minima(head: &[u8; 16]) -> [(f32, f32); 8] {
    let &[a, b, c, d, ref scales @ ..] = head;
    let (d, least) = (scale(a, b), scale(c, d));
    scales_and_minima(scales).map(|(scale, minimum)| (d * scale, least * minimum))
}

/// What Q4_K and Q5_K have in common, from their codes on.
fn above_minima(out: &mut [f32; 256], head: &[u8; 16], codes: impl Iterator<Item = u8>) {
    let of = scales_above_minima(head);
    for (at, (out, code)) in out.iter_mut().zip(codes).enumerate() {
        let (d, least) = of[at / 32];
        *out = d * f32::from(code) - least;
    }
}

pub fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (head, codes) = block.split_first_chunk::<16>().expect("a block has more bytes");
    above_minima(out, head, codes.chunks_exact(32).flat_map(nibbles));
}

pub fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (head, rest) = block.split_first_chunk::<16>().expect("a block has more bytes");
    let (high, codes) = rest.split_first_chunk::<32>().expect("a block has more bytes");
    let codes = codes.chunks_exact(32).flat_map(nibbles).zip(bits(high));
    above_minima(out, head, codes.map(|(low, high)| low | high << 4));
}

/// The codes of Q6_K: the lower four bits of each, and the upper two.
pub fn sixes(block: &[u8]) -> impl Iterator<Item = u8> {
    let (low, rest) = block.split_at(128);
    low.chunks_exact(64).flat_map(nibbles).zip(pairs(&rest[..64])).map(|(low, high)| low | high << 4)
}

pub fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let rest = &block[192..];
    let d = scale(rest[16], rest[17]);
    for (at, (out, code)) in out.iter_mut().zip(sixes(block)).enumerate() {
        *out = d * f32::from(rest[at / 16] as i8) * f32::from(code as i8 - 32);
    }
}

pub fn iq4_nl(&[a, b, ref codes @ ..]: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(a, b);
    out.iter_mut().zip(nibbles(codes)).for_each(|(out, code)| *out = d * f32::from(LEVELS[usize::from(code)]));
}

/// The scales of IQ4_XS. They have six bits: the upper two of all in a word, the lower four in four
/// bytes.
pub fn scales_of_levels(block: &[u8]) -> [f32; 8] {
    let (d, high) = (scale(block[0], block[1]), u16::from_le_bytes([block[2], block[3]]));
    std::array::from_fn(|at| {
        let low = block[4 + at / 2] >> (4 * (at % 2)) & 15;
        d * f32::from((low | ((high >> (2 * at) & 3) as u8) << 4) as i8 - 32)
    })
}

pub fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (scales, codes) = (scales_of_levels(block), &block[8..]);
    for (at, (out, code)) in out.iter_mut().zip(codes.chunks_exact(16).flat_map(nibbles)).enumerate() {
        *out = scales[at / 32] * f32::from(LEVELS[usize::from(code)]);
    }
}

/// A byte is a fraction of 256, of which each digit to the base of three is a code: all first
/// digits of a row of bytes, then the next ones.
fn digits(row: &[u8], count: u32) -> impl Iterator<Item = u8> {
    let digit = |byte: u8, at| ((u16::from(byte.wrapping_mul(3u8.pow(at))) * 3) >> 8) as u8;
    (0..count).flat_map(move |at| row.iter().map(move |&byte| digit(byte, at)))
}

/// The codes of TQ1_0.
pub fn thirds(block: &[u8]) -> impl Iterator<Item = u8> {
    let (of_32, rest) = block.split_at(32);
    let (of_16, rest) = rest.split_at(16);
    digits(of_32, 5).chain(digits(of_16, 5)).chain(digits(&rest[..4], 4))
}

pub fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    scaled(out, scale(block[52], block[53]), 1, thirds(block));
}

pub fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let (codes, ends) = block.split_at(64);
    scaled(out, scale(ends[0], ends[1]), 1, pairs(codes));
}

/// The power of two is half of what its byte says, because codes are doubled. The byte 255 is a
/// number as all others.
pub fn mxfp4(&[power, ref codes @ ..]: &[u8; 17], out: &mut [f32; 32]) {
    let power = u32::from(power);
    let d = f32::from_bits(if power < 2 { 0x0020_0000 << power } else { (power - 1) << 23 });
    out.iter_mut().zip(nibbles(codes)).for_each(|(out, code)| *out = d * f32::from(E2M1[usize::from(code)]));
}
