//! A model's checkpoint and that of its draft as one.
use super::{CheckpointError, Float, Source, Tensor};
use crate::error::Error;
use crate::weights::spelled::Spelled;
use atomc_artifact::manifest::{Target, TensorNames};

/// Two sources: the model's and the draft's. Names that the draft's source has are the draft's
/// tensors, all others the model's.
pub struct Beside<'a> {
    model: &'a dyn Source,
    draft: Spelled<'a>,
}

impl<'a> Beside<'a> {
    /// The two checkpoints of a target that has a draft with weights of its own. The target renames
    /// the draft's tensors.
    pub fn new(target: &Target, model: &'a dyn Source, draft: &'a dyn Source) -> Result<Beside<'a>, Error> {
        let renamed = target.draft.as_ref().and_then(|draft| draft.renamed.clone());
        let renamed = renamed.ok_or(Error::NoDraftCheckpoint)?;
        let names = TensorNames { renamed, ..TensorNames::default() };
        Ok(Beside { model, draft: Spelled::new(draft, &names)? })
    }
}

impl Source for Beside<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        match self.draft.has(name) {
            true => self.draft.tensor(name, shape),
            false => self.model.tensor(name, shape),
        }
    }

    fn names(&self) -> Vec<&str> {
        let mut names = [self.model.names(), self.draft.names()].concat();
        names.sort_unstable();
        names
    }

    fn origin<'n>(&self, name: &'n str) -> &'n str {
        match self.draft.has(name) {
            true => self.draft.origin(name),
            false => self.model.origin(name),
        }
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.model.check()?;
        self.draft.check()
    }
}

/// A row of whole numbers.
pub fn whole_numbers(source: &dyn Source, name: &str, count: usize) -> Result<Vec<i64>, CheckpointError> {
    let fault = |found: &'static str| CheckpointError::Integers { name: name.to_owned(), found };
    let (float, bytes) = match source.tensor(name, &[count])? {
        Tensor::Bytes { float, bytes } => (float, bytes.to_vec()),
        Tensor::Stored { float, numbers } => {
            let mut bytes = vec![0; numbers.len()];
            numbers.read(0, &mut bytes)?;
            (float, bytes)
        }
        // A source that makes up all weights has no map: all numbers stay as they are.
        Tensor::Random(_) => return Ok(vec![0; count]),
        Tensor::Values(_) | Tensor::Device { .. } => return Err(fault("no number of a file")),
    };
    match float {
        Float::I64 => Ok(bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()),
        Float::Code(atomc_artifact::manifest::DType::I32) => {
            Ok(bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect())
        }
        other => Err(fault(other.name())),
    }
}
