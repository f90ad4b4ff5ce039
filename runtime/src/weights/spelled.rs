//! A source in which tensors have the plan's names.
use std::collections::BTreeMap;

use crate::checkpoint::{CheckpointError, Source, Tensor};
use atomc_artifact::manifest::TensorNames;

/// A source by the names of a plan.
pub struct Spelled<'a> {
    source: &'a dyn Source,
    /// What the source calls a tensor that the plan calls otherwise.
    stored: BTreeMap<String, String>,
    /// All names of the plan's, sorted.
    names: Vec<String>,
}

impl<'a> Spelled<'a> {
    pub fn new(source: &'a dyn Source, tensors: &TensorNames) -> Result<Spelled<'a>, CheckpointError> {
        let (mut stored, mut names) = (BTreeMap::new(), Vec::new());
        for name in source.names() {
            let own = tensors.name(name);
            if own != name {
                stored.insert(own.clone().into_owned(), name.to_owned());
            }
            names.push(own.into_owned());
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(CheckpointError::Twice { whole: pair[0].clone(), one: stored[&pair[0]].clone() }),
            None => Ok(Spelled { source, stored, names }),
        }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.binary_search_by(|own| own.as_str().cmp(name)).is_ok()
    }

    /// What the source calls a tensor.
    pub fn stored<'n>(&'n self, name: &'n str) -> &'n str {
        self.stored.get(name).map_or(name, String::as_str)
    }
}

impl Source for Spelled<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        self.source.tensor(self.stored(name), shape)
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    fn origin<'n>(&self, name: &'n str) -> &'n str {
        self.source.origin(name)
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.source.check()
    }
}
