//! Whether a checkpoint fits a plan, by names, shapes and types alone: no number is read.
use super::spelled::Spelled;
use super::{Rank, check_unused, stored_pieces, told, value};
use crate::checkpoint::{CheckpointError, Source};
use atomc_artifact::manifest::{TensorNames, Weight};
use std::collections::{BTreeMap, BTreeSet};

/// What a checkpoint that fits has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Tensors that weights are made of.
    pub read: usize,
    /// Tensors of parts that do not run, by part.
    pub ignored: BTreeMap<String, usize>,
}

/// What of a checkpoint a rank reads, or why it does not fit.
pub fn fit(weights: &[Weight], names: &TensorNames, rank: Rank, source: &dyn Source) -> Result<Fit, CheckpointError> {
    let source = &Spelled::new(source, names)?;
    let mut missing = BTreeSet::new();
    for weight in weights {
        let value = value(weight, rank, source);
        stored_pieces(weight, &value, source, &mut missing)?;
        told::check_types(&value, source, &mut missing)?;
    }
    if !missing.is_empty() {
        return Err(CheckpointError::Missing { names: missing.into_iter().collect() });
    }
    check_unused(weights, names, source)?;
    let mut fit = Fit { read: 0, ignored: BTreeMap::new() };
    for name in source.names() {
        match names.ignored(name) {
            Some(ignored) => *fit.ignored.entry(ignored.part.clone()).or_default() += 1,
            None => fit.read += 1,
        }
    }
    Ok(fit)
}
