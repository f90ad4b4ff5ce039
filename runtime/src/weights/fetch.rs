//! What packing takes out of files.
use super::pack::Piece;
use crate::checkpoint::{CheckpointError, Float, Stored, Tensor};
use std::ops::Range;

/// The pieces as far as they go into rows of a weight. Numbers that lie in a file are read into `memory`.
pub(super) fn fetch<'a>(
    pieces: &[Piece<'a>],
    rows: &Range<usize>,
    memory: &'a mut Vec<u8>,
) -> Result<Vec<Piece<'a>>, CheckpointError> {
    let parts: Vec<Piece> = pieces.iter().filter_map(|piece| within(piece, rows)).collect();
    let bytes = parts.iter().map(bytes_in_file).sum();
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    let mut rest = &mut memory[..];
    let mut one = |part: Piece<'a>| {
        let Tensor::Stored { float, numbers } = part.data else { return Ok(part) };
        let (own, later) = std::mem::take(&mut rest).split_at_mut(bytes_in_file(&part));
        rest = later;
        read(&part, float, numbers, own)?;
        let data = Tensor::Bytes { float, bytes: own };
        let (rows, cols) = (0..part.rows.len(), 0..part.cols.len());
        Ok(Piece { data, offset: part.offset, stride: cols.len(), rows, cols, at: part.at })
    };
    parts.into_iter().map(&mut one).collect()
}

/// The part of a piece that goes into rows of a weight.
fn within<'a>(piece: &Piece<'a>, rows: &Range<usize>) -> Option<Piece<'a>> {
    let first = rows.start.max(piece.at.0);
    let last = rows.end.min(piece.at.0 + piece.rows.len());
    let start = first.checked_sub(piece.at.0)? + piece.rows.start;
    let len = last.checked_sub(first).filter(|&len| len > 0)?;
    Some(Piece { rows: start..start + len, at: (first, piece.at.1), ..piece.clone() })
}

fn bytes_in_file(piece: &Piece) -> usize {
    match piece.data {
        Tensor::Stored { float, .. } => piece.rows.len() * piece.cols.len() * float.size(),
        _ => 0,
    }
}

/// Reads the numbers of a piece: whole rows at once, parts of rows one by one.
fn read(piece: &Piece, float: Float, numbers: Stored, out: &mut [u8]) -> Result<(), CheckpointError> {
    let cols = piece.cols.len();
    let at = |row: usize| (row * piece.stride + piece.cols.start) * float.size();
    if cols == piece.stride || out.is_empty() {
        return numbers.read(at(piece.rows.start), out);
    }
    let rows = piece.rows.clone().zip(out.chunks_exact_mut(cols * float.size()));
    rows.into_iter().try_for_each(|(row, out)| numbers.read(at(row), out))
}
