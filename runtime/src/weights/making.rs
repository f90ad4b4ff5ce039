//! What is made of a tensor's numbers before all else, and lies in memory as a tensor of it would.
use super::book::Book;
use super::encode::{self, Encoding};
use super::pack::{self, Piece};
use super::words::{self, Words};
use crate::checkpoint::{CheckpointError, Float, Tensor};
use atomc_artifact::manifest::DType;
use std::ops::Range;
use std::sync::Arc;

/// How numbers are made.
#[derive(Clone, Debug)]
pub(super) enum Making<'a> {
    /// Codes or scales of floats.
    Encode(Encoding),
    /// Floats of scales of two levels.
    Times(Times<'a>),
    /// Words of other words.
    Words(Words<'a>),
    /// Floats of codes of a book.
    Book(Arc<Book<'a>>),
    /// Floats times a constant.
    Scale(f32),
    /// The places of integers in the order of these.
    Places,
}

/// Scales of e4m3 with a number of their tensor, in f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times<'a> {
    /// The tensor with the number.
    pub by: Tensor<'a>,
    /// Whether it divides them.
    pub over: bool,
}

impl Making<'_> {
    /// The type of what is made.
    pub fn float(&self) -> Float {
        match self {
            Making::Encode(encode) => encode.float(),
            Making::Times(_) | Making::Places | Making::Book(_) | Making::Scale(_) => Float::F32,
            Making::Words(_) => Float::Code(DType::I32),
        }
    }

    /// Makes rows and columns of a piece, which are those of what is made.
    pub fn make(&self, piece: &Piece, words: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
        match self {
            Making::Encode(encode) => encode.make(piece, words, out),
            Making::Times(times) => times.make(piece, words, out),
            Making::Words(stored) => stored.make(piece, words, out),
            Making::Book(book) => book.make(piece, words, out),
            Making::Scale(by) => scale(piece, *by, words, out),
            Making::Places => words::places(piece, words, out),
        }
    }
}

impl Times<'_> {
    fn make(&self, piece: &Piece, [rows, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
        let (by, stride) = (number(self.by)?, piece.words_per_row());
        let mut own = vec![0; cols.len()];
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * size_of::<f32>())) {
            let first = row * stride + cols.start;
            let floats = out.as_chunks_mut::<4>().0;
            let codes = match piece.data {
                Tensor::Bytes { bytes, .. } => &bytes[first..first + cols.len()],
                Tensor::Stored { numbers, .. } => {
                    numbers.read(first, &mut own)?;
                    &own
                }
                // Scales that are made up are floats already.
                data => {
                    let mut scale = [0.0];
                    for (index, out) in floats.iter_mut().enumerate() {
                        pack::read(&data, first + index, &mut scale);
                        *out = scale[0].to_le_bytes();
                    }
                    continue;
                }
            };
            for (out, &code) in floats.iter_mut().zip(codes) {
                let scale = if self.over { e4m3(code) / by } else { e4m3(code) * by };
                *out = scale.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// Floats of a tensor times a constant.
fn scale(piece: &Piece, by: f32, [rows, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
    let (stride, mut memory) = (piece.words_per_row(), Vec::new());
    let mut numbers = vec![0.0; cols.len()];
    for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * size_of::<f32>())) {
        encode::read(&piece.data, row * stride + cols.start, &mut numbers, &mut memory)?;
        out.as_chunks_mut().0.iter_mut().zip(&numbers).for_each(|(out, number)| *out = (number * by).to_le_bytes());
    }
    Ok(())
}

/// The only number of a tensor; one if it is made up.
fn number(data: Tensor) -> Result<f32, CheckpointError> {
    let mut number = [1.0];
    match data {
        Tensor::Random(_) => {}
        Tensor::Stored { float, numbers } => {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..float.size()];
            numbers.read(0, bytes)?;
            pack::read(&Tensor::Bytes { float, bytes }, 0, &mut number);
        }
        data => pack::read(&data, 0, &mut number),
    }
    Ok(number[0])
}

/// What a code means.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), code & 7);
    let size = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(mantissa) / 512.0,
        _ => f32::from(8 + mantissa) * f32::from_bits((exponent + 117) << 23),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_standard() {
        let known = [(0x00, 0.0), (0x01, 0.001953125), (0x07, 0.013671875), (0x08, 0.015625), (0x38, 1.0)];
        for (code, means) in known.into_iter().chain([(0x3b, 1.375), (0x7e, 448.0), (0xfe, -448.0), (0x80, -0.0)]) {
            assert_eq!(e4m3(code).to_bits(), f32::to_bits(means), "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
