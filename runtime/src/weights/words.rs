//! Words of codes that lie otherwise than the steps of a plan take them: of two or three bits, or
//! in the order of a quantiser, which is told by the groups of columns.
use super::pack::Piece;
use super::told::integer;
use crate::checkpoint::{CheckpointError, Float, Tensor};
use atomc_artifact::manifest::{self, DType, WORD};
use std::ops::Range;

/// The words of matrices, one below the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    /// Of a matrix as it is stored.
    pub rows: usize,
    pub cols: usize,
    /// Whether the codes of a word are below each other.
    pub down: bool,
    /// Of a stored code, and of one that is made.
    pub bits: [usize; 2],
    /// The integers that the codes of a matrix are sorted by.
    pub by: Option<Tensor<'a>>,
}

impl Words<'_> {
    /// Makes rows and columns of words.
    pub fn make(&self, piece: &Piece, [rows, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
        let places = self.by.map(|by| order(&by)).transpose()?.flatten();
        let own = if self.down { cols.clone() } else { 0..self.cols };
        // Where codes are below each other, every row of the matrix may have some of a word.
        let of = |row: usize| if self.down { 0..self.rows } else { row..row + 1 };
        let (mut words, mut at) = (Vec::new(), 0..0);
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * size_of::<u32>())) {
            if at != of(row) {
                at = of(row);
                let lines = at.clone().map(|row| read(&piece.data, row * self.cols + own.start, own.len()));
                words = lines.collect::<Result<Vec<_>, _>>()?.concat();
            }
            for (nth, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let (first, step, word) = match self.down {
                    true => (nth, own.len(), row),
                    false => (0, 1, cols.start + nth),
                };
                *out = self.word(&words[first..], step, word, places.as_deref()).to_le_bytes();
            }
        }
        Ok(())
    }

    /// The word of this number among those of wide codes.
    fn word(&self, words: &[u32], step: usize, number: usize, places: Option<&[usize]>) -> u32 {
        let [bits, wide] = self.bits;
        let (each, count) = (WORD / wide, places.map_or(words.len().div_ceil(step) * WORD / bits, <[usize]>::len));
        let codes = (number * each..((number + 1) * each).min(count)).enumerate();
        codes.fold(0, |word, (at, code)| {
            let code = places.map_or(code, |places| places[code]);
            word | manifest::code(words, step, bits, code) << (at * wide)
        })
    }
}

/// The places of a vector of integers in the order of these, as floats.
pub(super) fn places(piece: &Piece, [_, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
    let places = order(&piece.data)?;
    for (col, out) in cols.zip(out.as_chunks_mut::<4>().0) {
        let place = places.as_ref().map_or(col, |places| places[col]);
        *out = (place as f32).to_le_bytes();
    }
    Ok(())
}

/// The places of integers in their order; none of what is made up.
fn order(by: &Tensor) -> Result<Option<Vec<usize>>, CheckpointError> {
    let of = |float: Float, bytes: &[u8]| {
        let all: Vec<i32> = (0..bytes.len() / float.size()).map(|at| integer(float, bytes, at)).collect();
        manifest::places(&all)
    };
    match *by {
        Tensor::Bytes { float, bytes } => Ok(Some(of(float, bytes))),
        Tensor::Stored { float, numbers } => Ok(Some(of(float, &numbers.to_vec()?))),
        _ => Ok(None),
    }
}

/// Consecutive words of a tensor.
fn read(data: &Tensor, first: usize, count: usize) -> Result<Vec<u32>, CheckpointError> {
    let words = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    match *data {
        Tensor::Bytes { bytes, .. } => Ok(words(&bytes[first * 4..][..count * 4])),
        Tensor::Stored { numbers, .. } => {
            let mut bytes = vec![0; count * 4];
            numbers.read(first * 4, &mut bytes)?;
            Ok(words(&bytes))
        }
        Tensor::Random(stream) => Ok((first..first + count).map(|at| stream.code(at as u64, DType::I32)).collect()),
        Tensor::Values(_) | Tensor::Device { .. } => unreachable!("words lie in files, or were brought to the host"),
    }
}
