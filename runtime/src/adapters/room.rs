//! Adapters in the room that an artifact has for them: matrices of all slots, one after the other.
use std::collections::BTreeMap;

use atomc_artifact::manifest::{Adapters as Room, Manifest, Target};

use super::{Adapter, AdapterError, Pair};
use crate::checkpoint::{CheckpointError, Float, Numbers, Source, Stored, Tensor};

/// Bytes of a float.
const FLOAT: usize = size_of::<f32>();

/// A source with the matrices of adapters beside its own tensors. What no adapter has is zero.
pub struct WithAdapters<'a> {
    source: &'a dyn Source,
    /// By the names of tensors.
    matrices: BTreeMap<String, Slots>,
    /// All names, sorted.
    names: Vec<String>,
}

/// A tensor of three axes, of which the first one counts slots.
#[derive(Debug)]
struct Slots {
    shape: Vec<usize>,
    /// The matrices from the first slot on, with their rows and columns, which may be fewer.
    filled: Vec<([usize; 2], Vec<f32>)>,
}

/// Which of a module's matrices a tensor is of.
#[derive(Clone, Copy)]
enum Which {
    Wide,
    Tall,
    Weights,
}

/// The module and the matrix that a name of the plan means, if it is one of adapters.
fn parsed(name: &str) -> Option<(&str, Which)> {
    let of = |end, which| Some((name.strip_suffix(end)?, which));
    let weights = || (name == Room::WEIGHTS).then_some((name, Which::Weights));
    of(Room::WIDE, Which::Wide).or_else(|| of(Room::TALL, Which::Tall)).or_else(weights)
}

/// The tensors of adapters in a target's plan, with their shapes.
fn planned(target: &Target) -> BTreeMap<String, Vec<usize>> {
    let all = target.weights.iter().flat_map(|weight| weight.expr.tensors());
    let own = all.filter(|(name, _)| parsed(name).is_some());
    own.map(|(name, shape)| (name.into_owned(), shape.into_owned())).collect()
}

/// Checks that an artifact has room for adapters.
pub fn check(manifest: &Manifest, target: &Target, adapters: &[Adapter]) -> Result<(), AdapterError> {
    let Some(Room { slots, rank }) = manifest.adapters else {
        return match adapters.first() {
            Some(adapter) => Err(AdapterError::NoRoom { path: adapter.path.clone() }),
            None => Ok(()),
        };
    };
    if let Some(adapter) = adapters.get(slots) {
        return Err(AdapterError::Many { path: adapter.path.clone(), slots });
    }
    let planned = planned(target);
    for adapter in adapters {
        let path = || adapter.path.clone();
        if adapter.rank() > rank {
            return Err(AdapterError::Rank { path: path(), found: adapter.rank(), most: rank });
        }
        let stacked = adapter.experts.keys().map(|(module, _)| module);
        if let Some(module) = stacked.chain(adapter.replaced.keys()).next() {
            return Err(AdapterError::Alone { path: path(), module: module.clone() });
        }
        for (module, change) in &adapter.changes {
            let Some(shape) = planned.get(&format!("{module}{}", Room::WIDE)) else {
                return Err(AdapterError::Alone { path: path(), module: module.clone() });
            };
            let rows = planned.get(&format!("{module}{}", Room::TALL)).map_or(0, |shape| shape[1]);
            if change.lengths.is_some() {
                return Err(AdapterError::Alone { path: path(), module: module.clone() });
            }
            if change.pair.sizes != [rows, shape[2]] {
                let (found, want) = (change.pair.sizes, [rows, shape[2]]);
                let detail = format!("the adapter is for a weight of shape {found:?}, and the model's has {want:?}");
                return Err(AdapterError::Shape { path: path(), module: module.clone(), detail });
            }
        }
    }
    Ok(())
}

impl<'a> WithAdapters<'a> {
    /// The source with adapters, if an artifact has room for some.
    pub fn new(
        manifest: &Manifest,
        target: &Target,
        source: &'a dyn Source,
        adapters: &[Adapter],
    ) -> Result<Option<WithAdapters<'a>>, AdapterError> {
        check(manifest, target, adapters)?;
        if manifest.adapters.is_none() {
            return Ok(None);
        }
        let slots = |(name, shape): (String, Vec<usize>)| {
            let filled = match parsed(&name) {
                Some((module, which @ (Which::Wide | Which::Tall))) => {
                    let pair =
                        |adapter: &Adapter| adapter.changes.get(module).map(|change| matrix(&change.pair, which));
                    adapters.iter().map(|adapter| pair(adapter).unwrap_or(([0, 0], vec![]))).collect()
                }
                // A row is a slot.
                _ => vec![([shape[0], 1], vec![1.0; shape[0]])],
            };
            (name, Slots { shape, filled })
        };
        let matrices: BTreeMap<String, Slots> = planned(target).into_iter().map(slots).collect();
        let own = source.names().into_iter().map(str::to_owned);
        let mut names: Vec<String> = own.chain(matrices.keys().cloned()).collect();
        names.sort_unstable();
        Ok(Some(WithAdapters { source, matrices, names }))
    }
}

fn matrix(pair: &Pair, which: Which) -> ([usize; 2], Vec<f32>) {
    let [rows, cols] = pair.sizes;
    match which {
        Which::Tall => ([rows, pair.rank], pair.tall.clone()),
        _ => ([pair.rank, cols], pair.wide.clone()),
    }
}

impl Slots {
    fn number(&self, at: usize) -> f32 {
        let (rows, cols) = match self.shape[..] {
            [_, rows, cols] => (rows, cols),
            _ => (self.shape[0], self.shape[1]),
        };
        let (slot, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
        match self.filled.get(slot) {
            Some(([own_rows, own_cols], numbers)) if row < *own_rows && col < *own_cols => {
                numbers[row * own_cols + col]
            }
            _ => 0.0,
        }
    }
}

impl Numbers for Slots {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let (out, rest) = out.as_chunks_mut::<FLOAT>();
        assert!(rest.is_empty() && at.is_multiple_of(FLOAT as u64), "floats are read whole");
        out.iter_mut().zip(at as usize / FLOAT..).for_each(|(out, at)| *out = self.number(at).to_le_bytes());
        Ok(())
    }
}

impl Source for WithAdapters<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Some(slots) = self.matrices.get(name) else { return self.source.tensor(name, shape) };
        if slots.shape != shape {
            let (name, found, want) = (name.to_owned(), slots.shape.clone(), shape.to_vec());
            return Err(CheckpointError::Shape { name, found, want });
        }
        let bytes = shape.iter().product::<usize>() * FLOAT;
        Ok(Tensor::Stored { float: Float::F32, numbers: Stored::new(slots, 0, bytes) })
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
