//! LoRA adapters, as peft writes them: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapter adds a product of two narrow matrices to weights of a model. `told.rs` reads what the
//! configuration says, and refuses by name what is not plain LoRA. `merged.rs` adds an adapter to
//! the weights of a checkpoint while they are loaded. `room.rs` puts several beside each other,
//! into an artifact that has room for them (`atomc compile --adapters N`).
mod merged;
mod room;
#[cfg(test)]
mod tests;
mod told;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, CheckpointError, Source};
use crate::weights::floats;

pub use merged::Merged;
pub use room::{WithAdapters, check};
use told::Told;

const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";
/// What names of modules begin with.
const PREFIX: &str = "base_model.model.";
/// What a module is called that has another adapter around it.
const WRAPPED: &str = ".base_layer";

/// Why an adapter cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum AdapterError {
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {detail}")]
    Config { path: PathBuf, detail: String },
    #[error("{path}: `{field}` is {found}, and {why}")]
    Refused { path: PathBuf, field: String, found: String, why: &'static str },
    #[error("{path} has no {WEIGHTS}, and {PICKLED} is not read: it is a program; peft saves safetensors by default")]
    Pickled { path: PathBuf },
    #[error("{path}: `{name}` is no tensor of a LoRA adapter")]
    Unknown { path: PathBuf, name: String },
    #[error("{path}: `{module}` has one matrix of its two, or of another kind")]
    Half { path: PathBuf, module: String },
    #[error("{path}: `{module}`: {detail}")]
    Shape { path: PathBuf, module: String, detail: String },
    #[error("{path}: `{module}` is adapted, but the checkpoint has no `{tensor}`")]
    Absent { path: PathBuf, module: String, tensor: String },
    #[error("{path}: `{tensor}` is stored as {found} codes, and an adapter is merged into floats alone")]
    Codes { path: PathBuf, tensor: String, found: &'static str },
    #[error(
        "{path}: the artifact has no room for adapters; --adapters N of `atomc compile` makes some, and --merge-adapter adds one to the weights"
    )]
    NoRoom { path: PathBuf },
    #[error("{path}: the artifact has room for {slots} adapters; --adapters N of `atomc compile` makes more")]
    Many { path: PathBuf, slots: usize },
    #[error(
        "{path}: its rank is {found}, and the artifact has room for {most}; --adapter-rank N of `atomc compile` makes more"
    )]
    Rank { path: PathBuf, found: usize, most: usize },
    #[error(
        "{path}: what it does to `{module}` is possible for one adapter alone; --merge-adapter adds it to the weights"
    )]
    Alone { path: PathBuf, module: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What is added to a matrix: a tall matrix times a wide one.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Rows and columns of the matrix that it is added to.
    pub sizes: [usize; 2],
    /// Columns of the tall matrix, and rows of the wide one.
    pub rank: usize,
    /// The tall matrix, with the scaling.
    pub tall: Vec<f32>,
    /// The wide matrix.
    pub wide: Vec<f32>,
}

/// What an adapter does to a module's weight.
#[derive(Debug)]
struct Change {
    pair: Pair,
    /// The lengths that the sum's rows have afterwards (DoRA).
    lengths: Option<Vec<f32>>,
}

/// A folder that peft wrote.
#[derive(Debug)]
pub struct Adapter {
    path: PathBuf,
    tensors: Checkpoint,
    /// By the names of modules.
    changes: BTreeMap<String, Change>,
    /// By the names of modules that hold experts, and of their parameters: a pair for each expert.
    experts: BTreeMap<(String, &'static str), Vec<Pair>>,
    /// Weights that it has in place of the model's (`modules_to_save`), by the model's names: what
    /// the file calls them.
    replaced: BTreeMap<String, String>,
}

/// The matrices of a module, as a file names them.
#[derive(Debug, Default)]
struct Parts {
    wide: Option<String>,
    tall: Option<String>,
    lengths: Option<String>,
    is_embedding: bool,
}

impl Adapter {
    /// Reads the adapter of a folder.
    pub fn open(path: impl AsRef<Path>) -> Result<Adapter, AdapterError> {
        let path = path.as_ref();
        let told = Told::read(path)?;
        let file = path.join(WEIGHTS);
        if !file.exists() && path.join(PICKLED).exists() {
            return Err(AdapterError::Pickled { path: path.to_owned() });
        }
        let mut adapter = Adapter {
            path: path.to_owned(),
            tensors: Checkpoint::file(file)?,
            changes: BTreeMap::new(),
            experts: BTreeMap::new(),
            replaced: BTreeMap::new(),
        };
        for (module, parts) in adapter.parts()? {
            let base = module.replace(WRAPPED, "");
            match told.parameter(&base, module.matches(WRAPPED).count()) {
                Some(parameter) => {
                    let pairs = adapter.stacked(&told, &module, (&base, parameter), &parts)?;
                    adapter.experts.insert((base, parameter), pairs);
                }
                None => {
                    let change = adapter.change(&told, &module, &parts)?;
                    adapter.changes.insert(module, change);
                }
            }
        }
        Ok(adapter)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The largest rank of its pairs.
    pub fn rank(&self) -> usize {
        let pairs = self.changes.values().map(|change| &change.pair).chain(self.experts.values().flatten());
        pairs.map(|pair| pair.rank).max().unwrap_or(0)
    }

    /// Sorts the tensors of the file by modules.
    fn parts(&mut self) -> Result<BTreeMap<String, Parts>, AdapterError> {
        let mut found: BTreeMap<String, Parts> = BTreeMap::new();
        let mut replaced = BTreeMap::new();
        for name in self.tensors.names() {
            let unknown = || AdapterError::Unknown { path: self.path.clone(), name: name.to_owned() };
            let own = name.strip_prefix(PREFIX).ok_or_else(unknown)?;
            let ends = [
                ".lora_A.weight",
                ".lora_B.weight",
                ".lora_embedding_A",
                ".lora_embedding_B",
                ".lora_magnitude_vector",
                ".lora_magnitude_vector.weight",
            ];
            let Some((end, module)) = ends.iter().enumerate().find_map(|(at, end)| Some((at, own.strip_suffix(end)?)))
            else {
                if own.contains(".lora_") || own.contains("token_adapter") {
                    return Err(unknown());
                }
                replaced.insert(own.replace(WRAPPED, ""), name.to_owned());
                continue;
            };
            let parts = found.entry(module.to_owned()).or_default();
            parts.is_embedding |= end == 2 || end == 3;
            let place = match end {
                0 | 2 => &mut parts.wide,
                1 | 3 => &mut parts.tall,
                _ => &mut parts.lengths,
            };
            if place.replace(name.to_owned()).is_some() {
                return Err(AdapterError::Half { path: self.path.clone(), module: module.to_owned() });
            }
        }
        self.replaced = replaced;
        Ok(found)
    }

    /// A matrix of the file.
    fn matrix(&self, name: &str) -> Result<([usize; 2], Vec<f32>), AdapterError> {
        let shape = self.tensors.shape(name).unwrap_or_default();
        let &[rows, cols] = shape else {
            let detail = format!("`{name}` is no matrix, but of shape {shape:?}");
            return Err(AdapterError::Shape { path: self.path.clone(), module: name.to_owned(), detail });
        };
        Ok(([rows, cols], floats(&self.tensors.tensor(name, &[rows, cols])?, rows * cols)?))
    }

    /// Both matrices of a module, as the file has them: that of the input first.
    #[allow(clippy::type_complexity, reason = "two matrices with their sizes")]
    fn matrices(
        &self,
        module: &str,
        parts: &Parts,
    ) -> Result<(([usize; 2], Vec<f32>), ([usize; 2], Vec<f32>)), AdapterError> {
        let (Some(wide), Some(tall)) = (&parts.wide, &parts.tall) else {
            return Err(AdapterError::Half { path: self.path.clone(), module: module.to_owned() });
        };
        let (wide, tall) = (self.matrix(wide)?, self.matrix(tall)?);
        if wide.0[0] != tall.0[1] || wide.0[0] == 0 {
            let detail = format!("its matrices are of shapes {:?} and {:?}", wide.0, tall.0);
            return Err(AdapterError::Shape { path: self.path.clone(), module: module.to_owned(), detail });
        }
        Ok((wide, tall))
    }

    fn change(&self, told: &Told, module: &str, parts: &Parts) -> Result<Change, AdapterError> {
        let (([rank, inputs], wide), ([outputs, _], mut tall)) = self.matrices(module, parts)?;
        let scaling = told.scaling(module, rank);
        tall.iter_mut().for_each(|number| *number *= scaling);
        // The row of a token is a column of the input's matrix.
        let pair = match parts.is_embedding {
            false => Pair { sizes: [outputs, inputs], rank, tall, wide },
            true => {
                Pair { sizes: [inputs, outputs], rank, tall: transposed(&wide, inputs), wide: transposed(&tall, rank) }
            }
        };
        let lengths = match &parts.lengths {
            None => None,
            Some(name) => Some(self.lengths(name, module, &pair)?),
        };
        if lengths.is_some() && parts.is_embedding {
            let detail = "an embedding with lengths of rows (DoRA) is not supported".to_owned();
            return Err(AdapterError::Shape { path: self.path.clone(), module: module.to_owned(), detail });
        }
        Ok(Change { pair, lengths })
    }

    fn lengths(&self, name: &str, module: &str, pair: &Pair) -> Result<Vec<f32>, AdapterError> {
        let shape = self.tensors.shape(name).unwrap_or_default();
        if shape.iter().product::<usize>() != pair.sizes[0] {
            let detail = format!("lengths of shape {shape:?} for {} rows", pair.sizes[0]);
            return Err(AdapterError::Shape { path: self.path.clone(), module: module.to_owned(), detail });
        }
        Ok(floats(&self.tensors.tensor(name, shape)?, pair.sizes[0])?)
    }

    /// The pairs of all experts, which lie in two matrices: an expert's rows of the input's matrix
    /// follow each other, and its columns of the other one take turns with those of others.
    fn stacked(
        &self,
        told: &Told,
        module: &str,
        (base, parameter): (&str, &str),
        parts: &Parts,
    ) -> Result<Vec<Pair>, AdapterError> {
        let (([rows, inputs], wide), ([outputs, _], tall)) = self.matrices(module, parts)?;
        let name = format!("{base}.{parameter}");
        let rank = told.rank(&name);
        if rank == 0 || rows % rank != 0 {
            let detail = format!("{rows} rows are no multiple of its rank, which is {rank}");
            return Err(AdapterError::Shape { path: self.path.clone(), module: module.to_owned(), detail });
        }
        let (experts, scaling) = (rows / rank, told.scaling(&name, rank));
        let pair = |expert: usize| {
            let column = |row: usize, place: usize| tall[row * rows + place * experts + expert] * scaling;
            Pair {
                sizes: [outputs, inputs],
                rank,
                tall: (0..outputs * rank).map(|at| column(at / rank, at % rank)).collect(),
                wide: wide[expert * rank * inputs..][..rank * inputs].to_vec(),
            }
        };
        Ok((0..experts).map(pair).collect())
    }
}

impl Pair {
    /// Some of the rows.
    fn rows(&self, from: usize, count: usize) -> Pair {
        let tall = self.tall[from * self.rank..][..count * self.rank].to_vec();
        Pair { sizes: [count, self.sizes[1]], tall, ..self.clone() }
    }

    /// What is added to the transposed matrix.
    fn transposed(&self) -> Pair {
        let [rows, cols] = self.sizes;
        Pair {
            sizes: [cols, rows],
            rank: self.rank,
            tall: transposed(&self.wide, cols),
            wide: transposed(&self.tall, self.rank),
        }
    }

    /// Adds a row of the product, from a column on.
    fn add(&self, row: usize, from: usize, out: &mut [f32]) {
        let cols = self.sizes[1];
        for (place, factor) in self.tall[row * self.rank..][..self.rank].iter().enumerate() {
            let wide = &self.wide[place * cols + from..][..out.len()];
            out.iter_mut().zip(wide).for_each(|(out, number)| *out += factor * number);
        }
    }
}

/// Columns of a matrix as rows.
fn transposed(matrix: &[f32], cols: usize) -> Vec<f32> {
    let rows = matrix.len() / cols.max(1);
    (0..matrix.len()).map(|at| matrix[at % rows * cols + at / rows]).collect()
}
