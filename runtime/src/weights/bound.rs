//! Limits of the bytes that are made from a checkpoint. The maker of an artifact chooses its plan,
//! which could pad small tensors until memory or the disk is full.
use super::pack::Piece;
use crate::checkpoint::{CheckpointError, Tensor};
use atomc_artifact::manifest::Weight;
use std::collections::BTreeMap;

/// Bytes of weights for a byte of tensors: twice as wide, twice there, and as much padding again.
const MOST_TIMES: usize = 8;
/// Bytes that plans may make in addition: padding of many small weights, and constants.
const SPARE: usize = 64 << 20;

/// Refuses a plan that makes more of the tensors it reads than any model needs. What a source makes
/// up has no size.
pub(super) fn check(weights: &[Weight], pieces: &[Vec<Piece>]) -> Result<(), CheckpointError> {
    let mut tensors = BTreeMap::new();
    for piece in pieces.iter().flatten() {
        let bytes = match piece.data {
            Tensor::Bytes { bytes, .. } => bytes.len(),
            Tensor::Stored { numbers, .. } => numbers.len(),
            Tensor::Values(_) => continue,
            Tensor::Random(_) | Tensor::Device { .. } => return Ok(()),
        };
        tensors.insert(piece.name.text(), bytes);
    }
    let read: usize = tensors.values().sum();
    let most = read.saturating_mul(MOST_TIMES).saturating_add(SPARE);
    let made = weights.iter().map(|weight| weight.bytes).fold(0, usize::saturating_add);
    match made <= most {
        true => Ok(()),
        false => Err(CheckpointError::TooMuch { made, read, most }),
    }
}
