//! The graph of a layer's latent attention, and how ranks share it out: heads, while all have the
//! latent rows and their cache.
//!
//! Keys and values are made of a latent row by a product for each head. The product for keys is
//! applied to the query instead, and the product for values after attention. So all heads see the
//! same keys, which are the latent rows followed by the rotated part, and values are a part of
//! keys.
use atomc_config::{GatedBy, Indexer, Latent, Positions};
use atomc_ir::{CacheType, DType, Diagnostic, Elementwise, Fact, Op, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, Unit};
use super::product::{Factor, expected};

/// The eps of the norm of an indexer's keys, which no configuration has.
const INDEXER_EPS: f64 = 1e-6;

impl Kind for Latent {
    fn share(&self, ranks: usize) -> Result<Latent, String> {
        match self.heads.is_multiple_of(ranks) {
            true => Ok(Latent { heads: self.heads / ranks, ..self.clone() }),
            false => Err(format!("{} attention heads", self.heads)),
        }
    }

    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let cache = CacheType::prefix(config.cache_dtype(), 1, self.kept(), self.rank);
        let mut states = vec![(format!("kv{index}"), Type::Cache(cache))];
        if let Positions::Chosen(Indexer { dim, .. }) = self.positions {
            // Its values are its keys, which nothing reads.
            let keys = CacheType::prefix(config.dtype, 1, dim, dim);
            states.push((format!("index{index}"), Type::Cache(keys)));
        }
        states
    }

    /// A lane has four features of a latent row or of a value, and stores two numbers at once.
    fn units(&self) -> Vec<Unit> {
        let unit = |field, size, unit| Unit { field, size, unit };
        vec![
            unit("kv_lora_rank", self.rank, 4),
            unit("v_head_dim", self.value, 4),
            unit("qk_nope_head_dim", self.nope, 2),
        ]
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, Given { states, ropes, growth, batch, .. }: Given) -> Left {
        builder.latent(self, x, (self.embedding.map(|rope| ropes[rope]), growth), (states, batch))
    }
}

impl LayerBuilder<'_> {
    /// The attention over `x`, and the new states of the caches.
    fn latent(
        &mut self,
        all: &Latent,
        x: Value,
        (table, growth): (Option<Value>, Option<Value>),
        (caches, batch): (&[Value], Value),
    ) -> Left {
        let &Latent { rank, nope, rope, value, scale, .. } = all;
        let unsupported = |message: &str, at: &str| Err(Diagnostic::new("config::latent", message).at(at));
        let Some(&cache) = caches.first() else {
            let message = "latent attention is the artifact's own: a framework does not compute it here";
            return unsupported(message, "--attention");
        };
        let cache_scale = self.scale_of_rows(all)?;
        let heads = all.heads / self.part.ranks;
        let (short, width) = self.short_queries(all, x)?;
        let q = self.queries(all, short, width)?;
        let q = self.grown(q, growth)?;
        let q = self.scaled(q, Elementwise::Mul, cache_scale)?;
        let within = |module: &str| format!("{}.{module}", all.modules.path);
        let a = self.projection((x, self.config.hidden), &within("kv_a_proj_with_mqa"), all.kept())?;
        self.b.at(self.of_latent(all));
        let part = |count, start, len, step| Op::Parts { count, start, len, step };
        let key = self.b.push(part(1, 0, rank, rank + rope), &[a])?;
        let key = self.norm_by(key, &within("kv_a_layernorm"), (rank, all.eps))?;
        self.b.at(self.of_latent(all));
        let key = self.scaled(key, Elementwise::Unscale, cache_scale)?;
        let turned = self.b.push(part(1, rank, rope, rank + rope), &[a])?;
        let turned = self.scaled(turned, Elementwise::Unscale, cache_scale)?;
        let turned = self.turned(turned, table, all.in_pairs)?;
        let key = self.b.push(Op::Beside {}, &[key, turned])?;
        let plain = self.b.push(part(heads, 0, nope, nope + rope), &[q])?;
        let query = self.of_heads(all, plain, true)?;
        self.b.at(self.of_latent(all));
        let turned = self.b.push(part(heads, nope, rope, nope + rope), &[q])?;
        let turned = self.turned(turned, table, all.in_pairs)?;
        let query = self.b.push(Op::Beside {}, &[query, turned])?;
        let state = self.b.push(Op::KeyWrite { values: rank, every: None }, &[cache, key, batch])?;
        let mut states = vec![state];
        let seen = match all.positions {
            Positions::All => self.b.push(Op::Attention { scale, window: 0 }, &[query, state, batch])?,
            Positions::Chosen(indexer) => {
                let indexer = (indexer, within("indexer"));
                let (list, keys) = self.chosen(indexer, x, (short, width), (table, caches[1], batch))?;
                states.push(keys);
                self.carried.positions = Some(list);
                self.b.at(self.of_latent(all));
                self.b.push(Op::AttendListed { scale, block: None }, &[query, state, batch, list])?
            }
            Positions::Shared => {
                let list = self.carried.positions.expect("the first layer has an indexer");
                self.b.push(Op::AttendListed { scale, block: None }, &[query, state, batch, list])?
            }
        };
        let seen = self.b.flat(seen, heads * rank)?;
        let seen = self.b.push(part(heads, 0, rank, rank), &[seen])?;
        let values = self.of_heads(all, seen, false)?;
        let values = self.gated_values(all, x, values)?;
        Ok((self.sum((values, cache_scale), &within(all.modules.outer), all.heads * value, false)?, states))
    }

    /// The path of the attention in the checkpoint.
    fn of_latent(&self, all: &Latent) -> String {
        format!("{}.{}", self.path, all.modules.path)
    }

    /// Rows of values times their gate, if there is one.
    fn gated_values(&mut self, all: &Latent, x: Value, values: Value) -> Made {
        let heads = (all.heads, all.value);
        let gate = match all.gated {
            GatedBy::Heads(module) => self.weights_of_heads((all.modules.path, module), all.heads, x)?,
            GatedBy::ElementsOf(module) => self.weights_of_elements((all.modules.path, module), heads, x)?,
            GatedBy::No | GatedBy::Elements => return self.b.flat(values, all.heads / self.part.ranks * all.value),
        };
        self.b.at(self.of_latent(all));
        self.gated(all.gated, heads, (values, true), Some(gate))
    }

    /// Rows with the scale of the cache, if it has one.
    pub fn scaled(&mut self, rows: Value, by: Elementwise, scale: Option<Value>) -> Made {
        scale.map_or(Ok(rows), |scale| self.b.map(by, &[rows, scale]))
    }

    /// The scale of latent rows in the cache, if the checkpoint has one. Values are a part of keys,
    /// so theirs is that of keys; that of values in the file is looked at alone.
    fn scale_of_rows(&mut self, all: &Latent) -> Result<Option<Value>, Diagnostic> {
        let Some(names) = self.config.cache_scales() else { return Ok(None) };
        let path = self.of_latent(all);
        if names.of_projections {
            let message = "scales of a cache of latent rows by names of projections are not supported";
            let help = "Without its field of the cache the checkpoint has a cache of the model's type.";
            return Err(Diagnostic::new("config::latent", message).at("quantization_config").help(help));
        }
        self.b.at(&path);
        let scale = expected(self.b, format!("{path}.{}", names.keys), &[1], Fact::Scales)?;
        let of_values = self.b.weight(format!("{path}.{}", names.values), DType::F32, &[1]);
        Ok(Some(self.b.push(Op::Expect { is: Fact::Scales }, &[scale, of_values])?))
    }

    /// The positions that an indexer chooses, and the new state of its keys. Every rank chooses the
    /// same ones.
    fn chosen(
        &mut self,
        (indexer, module): (Indexer, String),
        x: Value,
        (short, width): (Value, usize),
        (table, cache, batch): (Option<Value>, Value, Value),
    ) -> Result<(Value, Value), Diagnostic> {
        let Indexer { heads, dim, most, in_pairs } = indexer;
        let path = format!("{}.{module}", self.path);
        let q = self.projection((short, width), &format!("{module}.wq_b"), heads * dim)?;
        let q = self.b.at(&path).heads(q, heads, dim)?;
        let q = self.turned(q, table, in_pairs)?;
        let k = self.projection((x, self.config.hidden), &format!("{module}.wk"), dim)?;
        let norm = ["weight", "bias"].map(|part| {
            let name = format!("{path}.k_norm.{part}");
            self.b.at(&path).weight(name, self.config.dtype, &[dim])
        });
        let k = self.b.push(Op::LayerNorm { eps: INDEXER_EPS }, &[k, norm[0], norm[1]])?;
        let k = self.b.heads(k, 1, dim)?;
        let k = self.turned(k, table, in_pairs)?;
        let keys = self.b.push(Op::KeyWrite { values: dim, every: None }, &[cache, k, batch])?;
        let name = format!("{path}.weights_proj.weight");
        let weight = self.b.weight(name, self.config.dtype, &[heads, self.config.hidden]);
        let weights = self.b.linear(x, weight, DType::F32)?;
        let weights = self.b.scale(weights, (heads as f64 * dim as f64).powf(-0.5))?;
        Ok((self.b.push(Op::Choose { k: most, every: None }, &[q, weights, keys, batch])?, keys))
    }

    /// The rows that queries are made of, and their width.
    fn short_queries(&mut self, all: &Latent, x: Value) -> Result<(Value, usize), Diagnostic> {
        let Some(rank) = all.q_rank else { return Ok((x, self.config.hidden)) };
        let within = |module: &str| format!("{}.{module}", all.modules.path);
        let row = self.projection((x, self.config.hidden), &within("q_a_proj"), rank)?;
        Ok((self.norm_by(row, &within("q_a_layernorm"), (rank, all.eps))?, rank))
    }

    /// The rank's queries, head by head, before they are turned.
    fn queries(&mut self, all: &Latent, x: Value, width: usize) -> Made {
        let rows = all.heads * (all.nope + all.rope);
        let module = if all.q_rank.is_some() { "q_b_proj" } else { "q_proj" };
        let (path, dtype) = (format!("{}.{module}", self.of_latent(all)), self.config.dtype);
        let weight = Factor::read(self.b, self.config, &path, [rows, width])?;
        weight.shard(self.b, 0, self.part.ranks)?.multiply(self.b, x, dtype)
    }

    /// A projection to `out` features that every rank makes in full.
    fn projection(&mut self, (x, width): (Value, usize), module: &str, out: usize) -> Made {
        let path = format!("{}.{module}", self.path);
        let weight = Factor::read(self.b, self.config, &path, [out, width])?;
        weight.multiply(self.b, x, self.config.dtype)
    }

    fn norm_by(&mut self, x: Value, module: &str, (width, eps): (usize, f64)) -> Made {
        let path = format!("{}.{module}", self.path);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.config.dtype, &[width]);
        self.b.rms_norm(x, weight, eps)
    }

    /// Heads times the matrices that make keys of latent rows, turned, or those that make values.
    fn of_heads(&mut self, all: &Latent, x: Value, of_keys: bool) -> Made {
        let &Latent { heads, rank, nope, value, .. } = all;
        let path = format!("{}.kv_b_proj", self.of_latent(all));
        let weight = Factor::of_heads(self.b, self.config, &path, [heads * (nope + value), rank])?;
        let (start, len) = if of_keys { (0, nope) } else { (nope, value) };
        let weight = weight.heads(self.b, (heads, nope + value), (start, len))?;
        let weight = weight.shard_heads(self.b, self.part.ranks)?;
        let weight = if of_keys { weight.transposed(self.b, self.config.dtype)? } else { weight };
        weight.multiply_heads(self.b, x, self.config.dtype)
    }
}
