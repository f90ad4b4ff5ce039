//! What packing takes out of files, and out of words.
use super::decode::{self, Codes, Form, Rows};
use super::pack::Piece;
use crate::checkpoint::{CheckpointError, Float, Stored, Stream, Tensor};
use atomc_artifact::manifest::DType;
use std::ops::Range;

/// Numbers row by row: the bytes of each, and the numbers from one row to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid<'a> {
    pub bytes: &'a [u8],
    pub size: usize,
    pub stride: usize,
}

impl<'a> Grid<'a> {
    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride * self.size..]
    }

    #[inline(always)]
    pub fn at<const SIZE: usize>(&self, row: usize, col: usize) -> &'a [u8; SIZE] {
        let at = (row * self.stride + col) * SIZE;
        self.bytes[at..at + SIZE].try_into().expect("as many bytes")
    }

    /// A word of at most 32 bits.
    pub fn word(&self, row: usize, col: usize) -> u32 {
        match self.size {
            1 => self.at::<1>(row, col)[0].into(),
            _ => u32::from_le_bytes(*self.at(row, col)),
        }
    }
}

/// The pieces as far as they go into rows of a weight, each as the weight has its numbers. What
/// lies in a file is read into `memory`, and so is what has to be decoded.
pub(super) fn fetch<'a>(
    pieces: &[Piece<'a>],
    rows: &Range<usize>,
    memory: &'a mut Vec<u8>,
) -> Result<Vec<Piece<'a>>, CheckpointError> {
    let parts: Vec<Piece> = pieces.iter().filter_map(|piece| within(piece, rows)).collect();
    let bytes = parts.iter().map(|part| bytes_in_file(part) + bytes_decoded(part)).sum();
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    let mut rest = &mut memory[..];
    let mut take = |bytes| {
        let (own, later) = std::mem::take(&mut rest).split_at_mut(bytes);
        rest = later;
        own
    };
    let mut one = |part: Piece<'a>| {
        let own = take(bytes_in_file(&part));
        let (float, bytes, stride) = match (part.data, part.codes()) {
            _ if part.made.is_some() => made(&part, own)?,
            (Tensor::Stored { float, numbers }, _) => {
                let stride = read(&part, float, numbers, own)?;
                (float, &*own, stride)
            }
            (Tensor::Random(stream), Some(codes)) => {
                let stride = make_up(&part, stream, codes.from, own);
                (Float::Code(codes.from), &*own, stride)
            }
            (Tensor::Bytes { float, bytes }, _) if part.form.is_some() => {
                let [rows, cols] = words(&part);
                let stride = part.words_per_row();
                let first = (rows.start * stride + cols.start) * float.size();
                (float, &bytes[first..], stride)
            }
            // What is made up may be in any order.
            _ => return Ok(Piece { form: None, ..part }),
        };
        let Some(form) = part.form else {
            let (rows, cols) = (0..part.rows.len(), 0..part.cols.len());
            return Ok(Piece { data: Tensor::Bytes { float, bytes }, made: None, stride, rows, cols, ..part });
        };
        let (to, out) = (decoded(&part), take(bytes_decoded(&part)));
        decode::decode(form, Grid { bytes, size: float.size(), stride }, part.skip(), to, out);
        let float = form.codes.map_or(float, |codes| Float::Code(codes.becomes));
        let data = Tensor::Bytes { float, bytes: out };
        let (rows, cols) = (0..to.rows, to.lead..to.lead + to.cols);
        Ok(Piece { data, form: None, made: None, stride: to.bytes() * 8 / to.bits, rows, cols, ..part })
    };
    parts.into_iter().map(&mut one).collect()
}

/// What is made of a piece's numbers, in memory: its type, itself, and elements of a row.
fn made<'a>(piece: &Piece, out: &'a mut [u8]) -> Result<(Float, &'a [u8], usize), CheckpointError> {
    let words = words(piece);
    let (float, stride) = (piece.made.as_ref().map_or(Float::F32, |made| made.float()), words[1].len());
    if let Some(made) = &piece.made {
        made.make(piece, words, out)?;
    }
    Ok((float, out, stride))
}

/// The part of a piece that goes into rows of a weight.
fn within<'a>(piece: &Piece<'a>, rows: &Range<usize>) -> Option<Piece<'a>> {
    let first = rows.start.max(piece.at.0);
    let last = rows.end.min(piece.at.0 + piece.rows.len());
    let apart = match piece.form {
        Some(form) if form.turned => form.step,
        _ => 1,
    };
    let start = first.checked_sub(piece.at.0)? * apart + piece.rows.start;
    let len = last.checked_sub(first).filter(|&len| len > 0)?;
    Some(Piece { rows: start..start + len, at: (first, piece.at.1), ..piece.clone() })
}

impl Piece<'_> {
    /// Rows and columns of the tensor, from the first to the last.
    fn lines(&self) -> [Range<usize>; 2] {
        let [lines, along] = match self.form {
            Some(form) if form.turned => [&self.cols, &self.rows],
            _ => [&self.rows, &self.cols],
        };
        let step = self.form.map_or(1, |form| form.step);
        [lines.clone(), along.start..along.start + (along.len() - 1) * step + 1]
    }

    /// What its words are made of.
    fn codes(&self) -> Option<Codes> {
        self.form.and_then(|form| form.codes)
    }

    /// The number of codes below each other, and side by side, in a word.
    fn in_word(&self) -> [usize; 2] {
        match self.codes() {
            Some(codes) if codes.down => [codes.places(), 1],
            Some(codes) => [1, codes.places()],
            None => [1, 1],
        }
    }

    /// Words from one row of the tensor to the next.
    pub(super) fn words_per_row(&self) -> usize {
        self.stride / self.in_word()[1]
    }

    /// Codes of the first word that are not the piece's.
    fn skip(&self) -> [usize; 2] {
        let ([rows, cols], [down, beside]) = (self.lines(), self.in_word());
        [rows.start % down, cols.start % beside]
    }
}

/// The rows and columns of words that a piece is made of.
fn words(piece: &Piece) -> [Range<usize>; 2] {
    let ([rows, cols], [down, beside]) = (piece.lines(), piece.in_word());
    [rows.start / down..rows.end.div_ceil(down), cols.start / beside..cols.end.div_ceil(beside)]
}

fn bytes_in_file(piece: &Piece) -> usize {
    let [rows, cols] = words(piece);
    if let Some(made) = &piece.made {
        return rows.len() * cols.len() * made.float().size();
    }
    match (piece.data, piece.codes()) {
        (Tensor::Stored { float, .. }, _) => {
            let stride = read_stride(piece, float);
            ((rows.len() - 1) * stride + cols.len()) * float.size()
        }
        (Tensor::Random(_), Some(codes)) => rows.len() * cols.len() * codes.from.size(),
        _ => 0,
    }
}

/// Longest row of a tensor, in bytes, that is read with the next one where half of it or less is
/// not wanted: reading it costs less than another call.
const LONGEST_GAP: usize = 8192;

/// Words from one row to the next of what is read of a file.
fn read_stride(piece: &Piece, float: Float) -> usize {
    let ([_, cols], stride) = (words(piece), piece.words_per_row());
    let near = 2 * cols.len() >= stride && stride * float.size() <= LONGEST_GAP;
    if near { stride } else { cols.len() }
}

/// How a piece lies once it is decoded.
fn decoded(piece: &Piece) -> Rows {
    let made = piece.made.as_ref().map(|made| made.float().size() * 8);
    let bits = match (piece.codes(), piece.data) {
        (Some(codes), _) => codes.becomes.bits(),
        _ if made.is_some() => made.unwrap_or(8),
        (None, Tensor::Stored { float, .. } | Tensor::Bytes { float, .. }) => float.size() * 8,
        (None, _) => 8,
    };
    let lead = if bits == 4 { piece.at.1 % 2 } else { 0 };
    Rows { rows: piece.rows.len(), cols: piece.cols.len(), lead, bits }
}

fn bytes_decoded(piece: &Piece) -> usize {
    let to = decoded(piece);
    match (piece.form, piece.data) {
        (Some(_), _) if piece.made.is_some() => to.rows * to.bytes(),
        (Some(_), Tensor::Stored { .. } | Tensor::Bytes { .. }) => to.rows * to.bytes(),
        (Some(Form { codes: Some(_), .. }), Tensor::Random(_)) => to.rows * to.bytes(),
        _ => 0,
    }
}

/// Makes up the words of a piece, and says the same as [`read`].
fn make_up(piece: &Piece, stream: Stream, word: DType, out: &mut [u8]) -> usize {
    let ([rows, cols], stride) = (words(piece), piece.words_per_row());
    let places = rows.flat_map(|row| cols.clone().map(move |col| (row * stride + col) as u64));
    for (place, out) in places.zip(out.chunks_exact_mut(word.size())) {
        out.copy_from_slice(&stream.code(place, word).to_le_bytes()[..word.size()]);
    }
    cols.len()
}

/// Reads the words of a piece, whole rows at once, small parts of rows one by one, and says how
/// many there are from one row to the next.
fn read(piece: &Piece, float: Float, numbers: Stored, out: &mut [u8]) -> Result<usize, CheckpointError> {
    let ([rows, cols], stride) = (words(piece), piece.words_per_row());
    let at = |row: usize| (row * stride + cols.start) * float.size();
    let apart = read_stride(piece, float);
    if apart == stride || out.is_empty() {
        numbers.read(at(rows.start), out)?;
    } else {
        let len = cols.len() * float.size();
        rows.zip(out.chunks_exact_mut(len)).try_for_each(|(row, out)| numbers.read(at(row), out))?;
    }
    Ok(apart)
}
