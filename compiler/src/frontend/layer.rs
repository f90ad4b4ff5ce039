//! The parts that all halves of a layer are made of: norms, projections, residual connections.
use std::collections::BTreeMap;

use atomc_ir::{Builder, DType, Diagnostic, Op, Type, Value};

use super::product::Factor;
use super::{Config, Part};

pub type Made = Result<Value, Diagnostic>;

/// The rows that a half makes, and the states that it leaves of those that were kept.
pub type Left = Result<(Value, Vec<Value>), Diagnostic>;

/// A kind of halves: how ranks share it out, what it keeps of a sequence, and its graph.
pub trait Kind: Sized {
    /// The sizes of one rank, or what cannot be shared out.
    fn share(&self, ranks: usize) -> Result<Self, String>;

    /// The states of a rank's share in the layer of this number, by name, if it keeps some.
    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let _ = (config, index);
        vec![]
    }

    /// The sizes of which kernels of GPUs take multiples.
    fn units(&self) -> Vec<Unit> {
        vec![]
    }

    /// Its graph over normed rows. There are no states where the caller attends.
    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left;
}

/// A size of which kernels of GPUs take multiples.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// The field of the configuration.
    pub field: &'static str,
    pub size: usize,
    pub unit: usize,
}

/// What a step is told of its tokens.
#[derive(Clone, Copy)]
pub struct Tokens {
    pub ids: Value,
    pub positions: Value,
    pub lengths: Value,
}

/// What a half is given beside rows: its states, the tables of the rotary embeddings, the batch.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub states: &'a [Value],
    pub ropes: &'a [Value],
    /// What queries are multiplied with, if they grow.
    pub growth: Option<Value>,
    /// What makes the rows that layers have of their own, if they have some.
    pub own_rows: Option<OfLayers>,
    pub batch: Value,
    pub tokens: Tokens,
}

/// Rows of all layers side by side, of which a layer's own row is made.
#[derive(Clone, Copy)]
pub struct OfLayers {
    /// Those of tokens' ids.
    pub of_ids: Value,
    /// What a projection makes of embeddings.
    pub of_rows: Value,
}

impl Given<'_> {
    /// The states of a layer that the artifact keeps itself.
    pub fn kept<const N: usize>(&self) -> Result<[Value; N], Diagnostic> {
        self.states.try_into().map_err(|_| {
            let message = "layers with a recurrent state are the artifact's own: a framework does not compute them";
            Diagnostic::new("config::attention", message).at("--attention")
        })
    }
}

/// The state of building one layer. Each kind of mixer and of feed-forward has a file that adds its
/// graph.
pub struct LayerBuilder<'a> {
    pub b: &'a mut Builder,
    pub config: &'a Config,
    pub part: Part,
    pub index: usize,
    /// The module path in the checkpoint.
    pub path: String,
    pub carried: &'a mut Carried,
}

/// Values that a layer makes for those above it.
#[derive(Default)]
pub struct Carried {
    /// How many positions of its sequence each token sees, if those may come after its own.
    pub ends: Option<Value>,
    /// The positions that tokens attend to, of the last layer that chose some.
    pub positions: Option<Value>,
    /// The rows that were kept on the way, side by side.
    pub kept: Option<Value>,
    /// The caches of layers of attention, by layer.
    pub caches: BTreeMap<usize, Kept>,
}

/// A cache behind a step's tokens, and the scales of keys and values in it, if it has some.
#[derive(Clone, Copy)]
pub struct Kept {
    pub state: Value,
    pub scales: Option<[Value; 2]>,
}

/// The norm of a module. A weight that is stored as a difference from a constant gets the constant
/// added in f32.
pub fn norm(b: &mut Builder, config: &Config, x: Value, path: &str, width: usize) -> Made {
    b.at(path);
    let weight = norm_weight(b, config, path, width)?;
    match config.centred {
        true => b.push(Op::LayerNorm { eps: config.eps }, &[x, weight]),
        false => b.rms_norm(x, weight, config.eps),
    }
}

/// The weight of a norm.
pub fn norm_weight(b: &mut Builder, config: &Config, path: &str, width: usize) -> Made {
    let name = format!("{path}.weight");
    match config.norm_offset {
        0.0 => Ok(b.weight(name, config.dtype, &[width])),
        by => {
            let difference = b.weight(name, DType::F32, &[width]);
            b.push(Op::Offset { by: by as f32 }, &[difference])
        }
    }
}

/// The rank's part of a weight.
pub fn shard(b: &mut Builder, weight: Value, axis: usize, parts: usize) -> Made {
    if parts == 1 { Ok(weight) } else { b.push(Op::Shard { axis, parts }, &[weight]) }
}

/// The rows of a module's weight that make one projection: all, or those from `start` on where
/// several share the module.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub module: &'a str,
    pub start: usize,
    pub out: usize,
    pub of: usize,
}

impl Rows<'_> {
    pub fn all(module: &str, out: usize) -> Rows<'_> {
        Rows { module, start: 0, out, of: out }
    }

    /// The rank's part of these rows of a vector.
    fn take(self, b: &mut Builder, vector: Value, parts: usize) -> Made {
        let rows = match self.of == self.out {
            true => vector,
            false => b.push(Op::Slice { axis: 0, start: self.start, len: self.out }, &[vector])?,
        };
        shard(b, rows, 0, parts)
    }
}

impl LayerBuilder<'_> {
    /// The norm of this name; `x` itself if the layer has no such norm.
    pub fn normed(&mut self, x: Value, module: Option<&str>) -> Made {
        module.map_or(Ok(x), |module| self.norm(x, module, self.config.hidden))
    }

    /// `x` plus the result of a half of the layer, after the norm of this name, if there is one.
    pub fn residual(&mut self, x: Value, out: Value, norm: Option<&str>) -> Made {
        let out = self.normed(out, norm)?;
        self.b.at(self.path.clone());
        let out = self.b.scale(out, self.config.scales.residual)?;
        self.b.add(x, out)
    }

    /// Rows, or heads, of this width after a norm without a weight.
    pub fn unweighted(&mut self, x: Value, width: usize) -> Made {
        let ones = self.b.push(Op::Numbers { values: vec![1; width] }, &[])?;
        self.b.rms_norm(x, ones, self.config.eps)
    }

    pub fn norm(&mut self, x: Value, module: &str, width: usize) -> Made {
        norm(self.b, self.config, x, &format!("{}.{module}", self.path), width)
    }

    /// Heads after their rotary embedding, if they have one: neighbours are turned, or halves.
    pub fn turned(&mut self, x: Value, table: Option<Value>, in_pairs: bool) -> Made {
        let turn = if in_pairs { Op::RopePairs {} } else { Op::Rope {} };
        table.map_or(Ok(x), |table| self.b.push(turn, &[x, table]))
    }

    /// Rows of queries times what those of their positions are multiplied with, if they grow.
    pub fn grown(&mut self, rows: Value, growth: Option<Value>) -> Made {
        growth.map_or(Ok(rows), |growth| self.b.push(Op::Combine {}, &[rows, growth]))
    }

    /// A projection of `x` to the features of these rows, plus their bias. The features are shared
    /// out in `parts` parts, and the rank makes its own.
    pub fn rows(&mut self, x: Value, rows: Rows, parts: usize, bias: bool) -> Made {
        let (path, dtype) = (format!("{}.{}", self.path, rows.module), self.config.dtype);
        let width = self.b.ty(x).as_tensor().and_then(|t| t.shape.last()).unwrap_or(self.config.hidden);
        let weight = Factor::read(self.b, self.config, &path, [rows.of, width])?;
        let x = weight.rows(self.b, rows, parts)?.multiply(self.b, x, dtype)?;
        if !bias {
            return Ok(x);
        }
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[rows.of]);
        let bias = rows.take(self.b, bias, parts)?;
        self.b.add(x, bias)
    }

    /// The rank's part of a [`LayerBuilder::sum`], not yet summed over the ranks.
    pub fn part(&mut self, x: (Value, Option<Value>), module: &str, width: usize) -> Made {
        let Config { hidden, dtype, .. } = *self.config;
        let path = format!("{}.{module}", self.path);
        let weight = Factor::read(self.b, self.config, &path, [hidden, width])?;
        weight.shard(self.b, 1, self.part.ranks)?.multiply_scaled(self.b, x, dtype)
    }

    /// A projection of `width` features back to the hidden size. The rank has a part of the
    /// features, so the results are summed over the ranks. The features may have a scale.
    pub fn sum(&mut self, x: (Value, Option<Value>), module: &str, width: usize, bias: bool) -> Made {
        let Config { hidden, dtype, .. } = *self.config;
        let mut x = self.part(x, module, width)?;
        if self.part.ranks > 1 {
            x = self.b.push(Op::AllReduce {}, &[x])?;
        }
        if !bias {
            return Ok(x);
        }
        let path = format!("{}.{module}", self.path);
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[hidden]);
        self.b.add(x, bias)
    }
}
