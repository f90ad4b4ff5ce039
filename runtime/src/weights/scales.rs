//! Scales that belong to matrices of codes, for programs that have the floats that both are made
//! of.
use super::loading::Loading;
use super::parts::{Origin, Part, parts};
use super::{Rank, check_type};
use crate::checkpoint::{Float, Tensor};
use atomc_artifact::manifest::{DType, Weight};

/// The scales of a matrix of codes, as a checkpoint has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredScales {
    /// Their tensor.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Rows and columns of the matrix that share one.
    pub block: [usize; 2],
}

impl Loading {
    /// The scales that belong to a tensor of this name, if weights are made of its codes in
    /// `f8e4m3`.
    pub fn scales(&self, weights: &[Weight], stored: &str) -> Option<StoredScales> {
        let name = &*self.names.name(stored);
        let codes = Tensor::Bytes { float: Float::Code(DType::F8E4M3), bytes: &[] };
        let matrix = self.tensors.get(name)?;
        let mut made = matrix.weights.iter().map(|&index| &weights[index]);
        let suits = |weight: &&Weight| weight.dtype == DType::F8E4M3 && check_type(weight, name, codes).is_ok();
        let scales = beside(made.find(suits)?, name)?;
        let shape = self.tensors.get(&scales)?.shape.clone();
        let block = block(&matrix.shape, &shape)?;
        let ending = scales.strip_prefix(name)?;
        Some(StoredScales { name: format!("{stored}{ending}"), shape, block })
    }
}

/// The tensor of the scales of a tensor of codes, which is called like that and more.
fn beside(weight: &Weight, codes: &str) -> Option<String> {
    let value = parts(&weight.expr, Rank::ONLY, &|whole, _| whole.name == codes);
    let mut scales = value.scaled.iter().flat_map(|scaled| &scaled.scale.parts).filter_map(name);
    scales.find(|name| name.len() > codes.len() && name.starts_with(codes))
}

fn name(part: &Part) -> Option<String> {
    match &part.origin {
        Origin::Tensor { name, .. } => Some(name.text().into_owned()),
        _ => None,
    }
}

/// Rows and columns that share a scale, from the shapes of a matrix and of its scales: one for all,
/// one for each row, or one for each block with sides that are powers of two.
fn block(matrix: &[usize], scales: &[usize]) -> Option<[usize; 2]> {
    let [rows, columns] = *matrix else { return None };
    let (high, wide) = match *scales {
        [] | [1] => (1, 1),
        [count] if count == rows => (count, 1),
        [high, wide] => (high, wide),
        _ => return None,
    };
    Some([side(rows, high)?, side(columns, wide)?])
}

/// The length of blocks, of which there are `count` along an axis: at most one power of two fits.
fn side(len: usize, count: usize) -> Option<usize> {
    if count == 1 {
        return Some(len);
    }
    let side = len.div_ceil(count.max(1)).next_power_of_two();
    (len.div_ceil(side) == count).then_some(side)
}
