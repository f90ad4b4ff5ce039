//! Scales beside matrices of codes, for whoever has the floats that both are made of.
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
        let made = self.tensors.get(name)?.weights.iter().map(|&index| &weights[index]);
        let (scales, block) = made
            .filter(|weight| weight.dtype == DType::F8E4M3 && check_type(weight, name, codes).is_ok())
            .find_map(|weight| beside(weight, name))?;
        let ending = scales.strip_prefix(name)?;
        Some(StoredScales { name: format!("{stored}{ending}"), shape: self.tensors.get(&scales)?.shape.clone(), block })
    }
}

/// The tensor of the scales of a tensor of codes, and the block that shares one.
fn beside(weight: &Weight, codes: &str) -> Option<(String, [usize; 2])> {
    let value = parts(&weight.expr, Rank::ONLY, &|whole, _| whole.name == codes);
    value.scaled.iter().find_map(|scaled| {
        let mut both = scaled.codes.parts.iter().zip(&scaled.scale.parts);
        let (_, scale) = both.find(|(part, _)| name(part).as_deref() == Some(codes))?;
        Some((name(scale)?, scaled.block))
    })
}

fn name(part: &Part) -> Option<String> {
    match &part.origin {
        Origin::Tensor { name, .. } => Some(name.text().into_owned()),
        _ => None,
    }
}
