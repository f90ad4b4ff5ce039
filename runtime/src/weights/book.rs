//! Floats of codes of four bits that a book has, as bitsandbytes stores them: NF4 and FP4, with
//! scales as floats or as bytes with a book of their own.
use super::encode;
use super::pack::Piece;
use crate::checkpoint::{CheckpointError, Tensor};
use atomc_artifact::manifest::{BOOK_BLOCKS, DType};
use std::ops::Range;

/// The book of a weight, and its scales.
#[derive(Debug)]
pub(super) struct Book<'a> {
    floats: Vec<f32>,
    scales: Tensor<'a>,
    outer: Option<Outer<'a>>,
}

/// What makes floats of scales that are bytes.
#[derive(Debug)]
struct Outer<'a> {
    floats: Vec<f32>,
    scales: Tensor<'a>,
    offset: f32,
}

/// What the text of a weight says.
#[derive(Debug, serde::Deserialize)]
struct Said {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

impl<'a> Book<'a> {
    /// The place of the text among the tensors beside the codes.
    pub const TEXT: usize = 2;

    /// The types of the tensors beside the codes: scales, the book, the text, scales of scales and
    /// their book.
    pub fn types(count: usize) -> impl Iterator<Item = DType> {
        let scale = if count > 3 { DType::U8 } else { DType::F32 };
        [scale, DType::F32, DType::U8, DType::F32, DType::F32].into_iter()
    }

    /// The book of a weight with these rows and columns, if the text says that it is as the plan
    /// takes it.
    pub fn new(beside: &[Tensor<'a>], shape: [usize; 2], name: &str) -> Result<Book<'a>, CheckpointError> {
        let [scales, book, text, outer @ ..] = beside else { unreachable!("a checked step has its operands") };
        let said = said(text, name)?;
        let wrong = |detail: String| Err(CheckpointError::Told { name: name.to_owned(), detail });
        if let Some(said) = &said {
            let blocks = [said.blocksize, said.nested_blocksize.unwrap_or(BOOK_BLOCKS[1])];
            if blocks != BOOK_BLOCKS {
                return wrong(format!("blocks of {blocks:?} are not supported, only {BOOK_BLOCKS:?}"));
            }
            if said.shape != shape {
                return wrong(format!("it is of {:?}, not {shape:?}", said.shape));
            }
        }
        let outer = match outer {
            &[scales, ref book] => {
                let offset = said.map_or(Some(0.0), |said| said.nested_offset);
                let Some(offset) = offset else { return wrong("it has no nested_offset".to_owned()) };
                Some(Outer { floats: floats(book, 0, 256)?, scales, offset: offset as f32 })
            }
            _ => None,
        };
        Ok(Book { floats: floats(book, 0, 16)?, scales: *scales, outer })
    }

    /// Makes rows and columns of floats.
    pub fn make(&self, piece: &Piece, [rows, cols]: [Range<usize>; 2], out: &mut [u8]) -> Result<(), CheckpointError> {
        let (stride, block) = (piece.words_per_row(), BOOK_BLOCKS[0]);
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * size_of::<f32>())) {
            let first = row * stride + cols.start;
            let out = out.as_chunks_mut::<4>().0;
            if let Tensor::Random(_) = piece.data {
                let made = floats(&piece.data, first, cols.len())?;
                out.iter_mut().zip(made).for_each(|(out, float)| *out = float.to_le_bytes());
                continue;
            }
            let last = first + cols.len();
            let codes = bytes(&piece.data, first / 2, last.div_ceil(2) - first / 2)?;
            let scales = self.scales(first / block, last.div_ceil(block) - first / block)?;
            for (at, out) in (first..last).zip(out) {
                let byte = codes[at / 2 - first / 2];
                let code = if at % 2 == 0 { byte >> 4 } else { byte & 15 };
                *out = (self.floats[usize::from(code)] * scales[at / block - first / block]).to_le_bytes();
            }
        }
        Ok(())
    }

    /// Some of the scales.
    fn scales(&self, first: usize, count: usize) -> Result<Vec<f32>, CheckpointError> {
        let Some(outer) = &self.outer else { return floats(&self.scales, first, count) };
        let (codes, block) = (bytes(&self.scales, first, count)?, BOOK_BLOCKS[1]);
        let all = floats(&outer.scales, first / block, (first + count).div_ceil(block) - first / block)?;
        let scale = |(at, &code): (usize, &u8)| {
            outer.floats[usize::from(code)] * all[at / block - first / block] + outer.offset
        };
        Ok((first..).zip(&codes).map(scale).collect())
    }
}

/// What a text says; nothing if it is made up.
fn said(text: &Tensor, name: &str) -> Result<Option<Said>, CheckpointError> {
    let bytes = match *text {
        Tensor::Bytes { bytes, .. } => bytes.to_vec(),
        Tensor::Stored { numbers, .. } => numbers.to_vec()?,
        _ => return Ok(None),
    };
    let fault = |e: serde_json::Error| CheckpointError::Told { name: name.to_owned(), detail: e.to_string() };
    serde_json::from_slice(&bytes).map(Some).map_err(fault)
}

/// Consecutive numbers of a tensor.
fn floats(data: &Tensor, first: usize, count: usize) -> Result<Vec<f32>, CheckpointError> {
    let mut all = vec![0.0; count];
    encode::read(data, first, &mut all, &mut Vec::new())?;
    Ok(all)
}

/// Consecutive bytes of a tensor.
fn bytes(data: &Tensor, first: usize, count: usize) -> Result<Vec<u8>, CheckpointError> {
    match *data {
        Tensor::Bytes { bytes, .. } => Ok(bytes[first..first + count].to_vec()),
        Tensor::Stored { numbers, .. } => {
            let mut all = vec![0; count];
            numbers.read(first, &mut all)?;
            Ok(all)
        }
        Tensor::Random(stream) => {
            Ok((first..first + count).map(|at| stream.code(at as u64, DType::U8) as u8).collect())
        }
        Tensor::Values(_) | Tensor::Device { .. } => unreachable!("codes lie in files, or were brought to the host"),
    }
}
