//! Weights quantised while they are loaded: codes and scales of matrices of floats, a strip of rows
//! at a time, so that no more of a tensor is in memory than that.
use super::pack::{self, Piece, RUN};
use crate::checkpoint::{CheckpointError, Float, Tensor};
use atomc_artifact::manifest::{DType, Encode, Encoded};
use std::ops::Range;

/// Numbers of a strip, if blocks are not larger.
const STRIP: usize = 1 << 18;

/// What is made of a tensor of matrices, one below the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoding {
    pub by: Encode,
    pub made: Encoded,
    /// Of the tensor.
    pub rows: usize,
    pub cols: usize,
}

/// Some rows of the tensor, from the borders of blocks to those of others, and their scales.
struct Strip {
    rows: Range<usize>,
    cols: Range<usize>,
    numbers: Vec<f32>,
    /// Row by row of blocks.
    scales: Vec<f32>,
    bytes: Vec<u8>,
}

impl Encoding {
    /// The type of what is made, as a tensor of it would have it.
    pub fn float(&self) -> Float {
        match self.by.dtype(self.made) {
            DType::F32 => Float::F32,
            DType::BF16 => Float::BF16,
            DType::F16 => Float::F16,
            code => Float::Code(code),
        }
    }

    /// Makes rows and columns of a piece, which are those of what is made.
    pub fn make(&self, piece: &Piece, [rows, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
        let stride = piece.words_per_row();
        let [_, width] = self.by.sizes(self.made, [self.rows, self.cols]);
        let [height, block] = self.by.block;
        let numbers = match self.made {
            Encoded::Scales => |col: usize, block: usize| col * block,
            Encoded::Codes => |col: usize, _: usize| col,
        };
        let each = if self.made == Encoded::Codes && self.by.codes.bits() < 8 { 2 } else { 1 };
        let first = rows.start * stride + cols.start;
        let (start, end) = (first % width, first % width + cols.len());
        let from = numbers(start * each, block) / block * block;
        let to = numbers(end * each, block).next_multiple_of(block).min(self.cols);
        let mut strip =
            Strip { rows: 0..0, cols: from..to, numbers: Vec::new(), scales: Vec::new(), bytes: Vec::new() };
        let last = ((rows.end - 1) * stride + cols.start) / width;
        let size = self.float().size();
        let mut codes = vec![0; to - from];
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * size)) {
            // Of what is made; of the tensor, it is the first of a block.
            let row = (row * stride + cols.start) / width;
            let (line, last) = match self.made {
                Encoded::Scales => (row * height, last * height),
                Encoded::Codes => (row, last),
            };
            if !strip.rows.contains(&line) {
                strip.read(self, piece, line / height * height..last + 1)?;
            }
            match self.made {
                Encoded::Scales => {
                    let scales = strip.scales_of(self, line).iter().skip(start - from / block);
                    for (scale, out) in scales.zip(out.chunks_exact_mut(size)) {
                        out.copy_from_slice(&self.by.bytes_of_scale(*scale)[..size]);
                    }
                }
                Encoded::Codes => {
                    strip.codes(self, line, &mut codes);
                    let codes = &codes[start * each - from..];
                    match each {
                        1 => out.copy_from_slice(&codes[..out.len()]),
                        // The last code of an odd number shares its byte with none.
                        _ => out.iter_mut().zip(codes.chunks(2)).for_each(|(out, two)| {
                            *out = two[0] | two.get(1).map_or(0, |high| high << 4);
                        }),
                    }
                }
            }
        }
        Ok(())
    }
}

impl Strip {
    /// Blocks of a row.
    fn along(&self, of: &Encoding) -> usize {
        self.cols.len().div_ceil(of.by.block[1])
    }

    fn scales_of(&self, of: &Encoding, row: usize) -> &[f32] {
        let along = self.along(of);
        &self.scales[(row - self.rows.start) / of.by.block[0] * along..][..along]
    }

    fn codes(&self, of: &Encoding, row: usize, out: &mut [u8]) {
        let block = of.by.block[1];
        let numbers = &self.numbers[(row - self.rows.start) * self.cols.len()..][..self.cols.len()];
        let blocks = numbers.chunks(block).zip(out.chunks_mut(block)).zip(self.scales_of(of, row));
        blocks.for_each(|((numbers, out), &scale)| of.by.codes(numbers, scale, out));
    }

    /// Reads the first of these rows, as many as a strip has, and finds their scales.
    fn read(&mut self, of: &Encoding, piece: &Piece, rows: Range<usize>) -> Result<(), CheckpointError> {
        let ([height, block], width) = (of.by.block, self.cols.len());
        let most = (STRIP / width.max(1) / height).max(1) * height;
        let end = rows.end.next_multiple_of(height).min(rows.start + most).min(of.rows);
        self.rows = rows.start..end;
        self.numbers.resize(self.rows.len() * width, 0.0);
        let along = self.along(of);
        let mut sizes = vec![0.0f32; self.rows.len().div_ceil(height) * along];
        for (at, row) in self.rows.clone().enumerate() {
            let numbers = &mut self.numbers[at * width..][..width];
            read(&piece.data, row * of.cols + self.cols.start, numbers, &mut self.bytes)?;
            let sizes = &mut sizes[at / height * along..][..along];
            for (numbers, size) in numbers.chunks(block).zip(sizes) {
                *size = numbers.iter().fold(*size, |most, number| most.max(number.abs()));
                // A maximum passes over what is no number.
                if !numbers.iter().fold(0.0, |sum, number| sum + number * 0.0).is_finite() {
                    return Err(CheckpointError::NotFinite { name: piece.name.to_string() });
                }
            }
        }
        self.scales = sizes.into_iter().map(|size| of.by.scale(size)).collect();
        Ok(())
    }
}

/// All numbers of a tensor of floats.
pub fn floats(data: &Tensor, count: usize) -> Result<Vec<f32>, CheckpointError> {
    let mut all = vec![0.0; count];
    read(data, 0, &mut all, &mut Vec::new())?;
    Ok(all)
}

/// Numbers of a tensor from the first of them on.
pub(super) fn read(data: &Tensor, first: usize, out: &mut [f32], bytes: &mut Vec<u8>) -> Result<(), CheckpointError> {
    if let Tensor::Stored { float, numbers } = *data {
        let mut own = std::mem::take(bytes);
        own.resize(out.len() * float.size(), 0);
        numbers.read(first * float.size(), &mut own)?;
        let done = read(&Tensor::Bytes { float, bytes: &own }, 0, out, bytes);
        *bytes = own;
        return done;
    }
    for (index, out) in out.chunks_mut(RUN).enumerate() {
        pack::read(data, first + index * RUN, out);
    }
    Ok(())
}
