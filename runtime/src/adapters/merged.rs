//! A checkpoint with an adapter merged into it.
use std::collections::BTreeMap;

use super::{Adapter, AdapterError, Change, Pair};
use crate::checkpoint::{CheckpointError, Float, Numbers, Source, Stored, Tensor};
use crate::weights::floats;

/// Bytes of a float.
const FLOAT: usize = size_of::<f32>();

/// A source and an adapter. Each adapted weight is the sum in f32, which is rounded once, to the
/// type that it is loaded as.
pub struct Merged<'a> {
    source: &'a dyn Source,
    adapter: &'a Adapter,
    /// By the names of tensors.
    sums: BTreeMap<String, Sum<'a>>,
}

/// A tensor with what is added to it: a matrix, or one for each expert.
struct Sum<'a> {
    stored: Kept<'a>,
    pairs: Vec<Pair>,
    /// What each row of the sum is multiplied with.
    factors: Option<Vec<f32>>,
}

/// A tensor of a source.
struct Kept<'a> {
    shape: Vec<usize>,
    data: Tensor<'a>,
}

impl<'a> Merged<'a> {
    /// Finds all that the adapter changes.
    pub fn new(source: &'a dyn Source, adapter: &'a Adapter) -> Result<Merged<'a>, AdapterError> {
        let mut merged = Merged { source, adapter, sums: BTreeMap::new() };
        for (module, change) in &adapter.changes {
            let name = format!("{module}.weight");
            let stored = merged.kept(module, &name)?;
            merged.check(module, &stored.shape, &change.pair.sizes)?;
            merged.sums.insert(name, Sum::new(stored, change)?);
        }
        for ((module, parameter), pairs) in &adapter.experts {
            merged.add_experts((module, parameter), pairs)?;
        }
        for (name, own) in &adapter.replaced {
            let shape = adapter.tensors.shape(own).unwrap_or_default();
            merged.check(name, &merged.tensor_of(source, name, name)?.shape, shape)?;
        }
        Ok(merged)
    }

    fn check(&self, module: &str, found: &[usize], want: &[usize]) -> Result<(), AdapterError> {
        if found == want {
            return Ok(());
        }
        let detail = format!("the adapter is for a weight of shape {want:?}, and the checkpoint's has {found:?}");
        Err(AdapterError::Shape { path: self.adapter.path.clone(), module: module.to_owned(), detail })
    }

    /// A tensor of floats without what is added to it: the adapter's own, or the source's.
    fn kept(&self, module: &str, name: &str) -> Result<Kept<'a>, AdapterError> {
        match self.adapter.replaced.get(name) {
            Some(own) => self.tensor_of(&self.adapter.tensors, module, own),
            None => self.tensor_of(self.source, module, name),
        }
    }

    /// A tensor of floats of a source, of any shape.
    fn tensor_of(&self, source: &'a dyn Source, module: &str, name: &str) -> Result<Kept<'a>, AdapterError> {
        let path = || self.adapter.path.clone();
        let Some(shape) = shape_of(source, name)? else {
            let (module, tensor) = (module.to_owned(), name.to_owned());
            return Err(AdapterError::Absent { path: path(), module, tensor });
        };
        let data = source.tensor(name, &shape)?;
        match data {
            Tensor::Stored { float: Float::BF16 | Float::F16 | Float::F32 | Float::F64, .. } => {
                Ok(Kept { shape, data })
            }
            Tensor::Stored { float, .. } => {
                Err(AdapterError::Codes { path: path(), tensor: name.to_owned(), found: float.name() })
            }
            _ => Err(CheckpointError::Place { name: name.to_owned() }.into()),
        }
    }

    /// Adds pairs to a stack of all experts, or to the tensors of each.
    fn add_experts(&mut self, (module, parameter): (&str, &str), pairs: &[Pair]) -> Result<(), AdapterError> {
        let [outputs, inputs] = pairs[0].sizes;
        let stack = format!("{module}.{parameter}");
        if shape_of(self.source, &stack)?.is_some() {
            let stored = self.kept(module, &stack)?;
            let as_columns = self.are_columns((module, &stored.shape), [outputs, inputs])?;
            let pairs: Vec<Pair> = match as_columns {
                true => pairs.iter().map(Pair::transposed).collect(),
                false => pairs.to_vec(),
            };
            let want = [&[pairs.len()][..], &pairs[0].sizes].concat();
            self.check(module, &stored.shape, &want)?;
            self.sums.insert(stack, Sum { stored, pairs, factors: None });
            return Ok(());
        }
        for (expert, pair) in pairs.iter().enumerate() {
            let half = outputs / 2;
            let parts = match parameter {
                "gate_up_proj" => vec![("gate_proj", pair.rows(0, half)), ("up_proj", pair.rows(half, half))],
                _ => vec![(parameter, pair.clone())],
            };
            for (part, pair) in parts {
                let name = format!("{module}.{expert}.{part}.weight");
                let stored = self.kept(module, &name)?;
                self.check(module, &stored.shape, &pair.sizes)?;
                self.sums.insert(name, Sum { stored, pairs: vec![pair], factors: None });
            }
        }
        Ok(())
    }

    /// Whether a stack of experts has outputs as columns. Where a square does not tell, the other
    /// projection does, which has twice the outputs.
    fn are_columns(
        &self,
        (module, shape): (&str, &[usize]),
        [outputs, inputs]: [usize; 2],
    ) -> Result<bool, AdapterError> {
        if outputs != inputs {
            return Ok(shape.get(1..) == Some(&[inputs, outputs]));
        }
        let other = self.kept(module, &format!("{module}.gate_up_proj"))?;
        Ok(matches!(other.shape[..], [_, rows, cols] if cols > rows))
    }
}

/// The shape of a tensor, if there is one of this name. Only a tensor of another shape says its
/// own.
fn shape_of(source: &dyn Source, name: &str) -> Result<Option<Vec<usize>>, CheckpointError> {
    match source.tensor(name, &[usize::MAX]) {
        Err(CheckpointError::Shape { found, .. }) => Ok(Some(found)),
        Err(CheckpointError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
        Ok(_) => unreachable!("no tensor has as many numbers"),
    }
}

impl<'a> Sum<'a> {
    fn new(stored: Kept<'a>, Change { pair, lengths }: &Change) -> Result<Sum<'a>, AdapterError> {
        let mut sum = Sum { stored, pairs: vec![pair.clone()], factors: None };
        if let Some(lengths) = lengths {
            let [rows, cols] = pair.sizes;
            let mut row = vec![0.0; cols];
            let mut factors = Vec::with_capacity(rows);
            for (number, length) in lengths.iter().enumerate() {
                sum.fill(number * cols, &mut row)?;
                let own = row.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt();
                factors.push((f64::from(*length) / own) as f32);
            }
            sum.factors = Some(factors);
        }
        Ok(sum)
    }

    /// Numbers from the `at`th on.
    fn fill(&self, at: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let Tensor::Stored { float, numbers } = self.stored.data else { unreachable!("tensors of files are merged") };
        let mut bytes = vec![0; out.len() * float.size()];
        numbers.read(at * float.size(), &mut bytes)?;
        out.copy_from_slice(&floats(&Tensor::Bytes { float, bytes: &bytes }, out.len())?);
        let [rows, cols] = self.pairs[0].sizes;
        let (mut at, mut out) = (at, out);
        while !out.is_empty() {
            let (row, from) = (at / cols, at % cols);
            let (now, later) = out.split_at_mut(out.len().min(cols - from));
            self.pairs[row / rows].add(row % rows, from, now);
            if let Some(factors) = &self.factors {
                now.iter_mut().for_each(|number| *number *= factors[row]);
            }
            at += now.len();
            out = later;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sum<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "a sum of shape {:?}", self.stored.shape)
    }
}

impl Numbers for Sum<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let (out, rest) = out.as_chunks_mut::<FLOAT>();
        assert!(rest.is_empty() && at.is_multiple_of(FLOAT as u64), "floats are read whole");
        let mut floats = vec![0.0; out.len()];
        self.fill(at as usize / FLOAT, &mut floats)?;
        out.iter_mut().zip(floats).for_each(|(out, float)| *out = float.to_le_bytes());
        Ok(())
    }
}

impl Source for Merged<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Some(sum) = self.sums.get(name) else {
            return match self.adapter.replaced.get(name) {
                Some(own) => self.adapter.tensors.tensor(own, shape),
                None => self.source.tensor(name, shape),
            };
        };
        if sum.stored.shape != shape {
            let (name, found, want) = (name.to_owned(), sum.stored.shape.clone(), shape.to_vec());
            return Err(CheckpointError::Shape { name, found, want });
        }
        let bytes = shape.iter().product::<usize>() * FLOAT;
        Ok(Tensor::Stored { float: Float::F32, numbers: Stored::new(sum, 0, bytes) })
    }

    fn names(&self) -> Vec<&str> {
        self.source.names()
    }

    fn origin<'n>(&self, name: &'n str) -> &'n str {
        self.source.origin(name)
    }

    fn check(&self) -> Result<(), CheckpointError> {
        self.source.check()?;
        self.adapter.tensors.check()
    }
}
