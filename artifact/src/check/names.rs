//! Names of tensors that are in no plan of weights.
use super::{Checked, ensure};
use crate::manifest::{Manifest, TensorNames, Tied};

/// Most entries of a list: models of this many parts there are none.
const MAX_PARTS: usize = 256;

pub fn names(manifest: &Manifest) -> Checked {
    let TensorNames { renamed, ignored, tied } = &manifest.tensors;
    for (name, len) in [("renamed", renamed.len()), ("ignored", ignored.len())] {
        ensure(len <= MAX_PARTS, &format!("tensors.{name}"), || format!("{len} entries are more than {MAX_PARTS}"))?;
    }
    let Some(Tied { embedding, .. }) = tied else { return Ok(()) };
    let weights = || manifest.targets.iter().flat_map(|target| &target.weights);
    let is_there = weights().flat_map(|weight| weight.expr.tensors()).any(|(name, _)| name == embedding.as_str());
    ensure(is_there, "tensors.tied.embedding", || format!("no weight is made of `{embedding}`"))
}
