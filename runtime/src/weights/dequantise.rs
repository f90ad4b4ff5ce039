//! Dequantises codes to floats, for weights of products that take only floats.
use super::fetch::fetch;
use super::pack::{Piece, RUN};
use super::told;
use crate::checkpoint::{CheckpointError, Float, Tensor};
use atomc_artifact::manifest::DType;
use std::ops::Range;

/// What the codes of a weight are multiplied with.
#[derive(Clone, Debug)]
pub(super) struct Scales<'a> {
    /// Rows and columns that share one.
    pub block: [usize; 2],
    /// Rows and columns of one of the weight's matrices.
    pub sizes: [usize; 2],
    /// The scales, matrix by matrix.
    pub pieces: Vec<Piece<'a>>,
}

impl Scales<'_> {
    /// Rows of a weight. The pieces are its codes in these rows, row by row.
    pub fn floats(&self, codes: &[Piece], rows: &Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let [height, width] = self.sizes;
        let mut floats = vec![0.0; rows.len() * width];
        for piece in codes {
            let Tensor::Bytes { float, bytes } = piece.data else { continue };
            for row in 0..piece.rows.len() {
                let first = (piece.rows.start + row) * piece.stride + piece.cols.start;
                let at = (piece.at.0 + row - rows.start) * width + piece.at.1;
                let out = &mut floats[at..at + piece.cols.len()];
                out.iter_mut().enumerate().for_each(|(col, out)| *out = number(float, bytes, first + col));
            }
        }
        let mut scales = vec![0.0; width.div_ceil(self.block[1])];
        let mut last = None;
        for (row, floats) in rows.clone().zip(floats.chunks_exact_mut(width)) {
            let line = row / height * height.div_ceil(self.block[0]) + row % height / self.block[0];
            if last.replace(line) != Some(line) {
                self.line(line, &mut scales)?;
            }
            let blocks = floats.chunks_mut(self.block[1]).zip(&scales);
            blocks.for_each(|(block, scale)| block.iter_mut().for_each(|float| *float *= scale));
        }
        Ok(floats)
    }

    /// A row of scales.
    fn line(&self, row: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let mut memory = Vec::new();
        for piece in fetch(&self.pieces, &(row..row + 1), &mut memory)? {
            let first = piece.rows.start * piece.stride + piece.cols.start;
            let out = &mut out[piece.at.1..piece.at.1 + piece.cols.len()];
            for (run, out) in out.chunks_mut(RUN).enumerate() {
                match piece.data {
                    // Of these the exponent is made up.
                    Tensor::Random(stream) => out.fill(stream.scale((first + run * RUN) as u64)),
                    _ => told::read(&piece.data, first + run * RUN, out),
                }
            }
        }
        Ok(())
    }
}

/// What a code means without its scale.
fn number(float: Float, bytes: &[u8], number: usize) -> f32 {
    match float {
        Float::Code(DType::F4E2M1) => {
            let code = bytes[number / 2] >> (number % 2 * 4) & 15;
            let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            if code & 8 == 0 { size } else { -size }
        }
        _ => told::integer(float, bytes, number) as f32,
    }
}
