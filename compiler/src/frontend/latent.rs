//! The graph of a layer's latent attention, and how ranks share it out: heads, while all have the
//! latent rows and their cache.
//!
//! Keys and values are made of a latent row by a product for each head. The product for keys is
//! applied to the query instead, and the product for values after attention. So all heads see the
//! same keys, which are the latent rows followed by the rotated part, and values are a part of
//! keys.
use atomc_config::Latent;
use atomc_ir::{CacheType, Diagnostic, Op, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, Unit};
use super::product::Factor;

impl Kind for Latent {
    fn share(&self, ranks: usize) -> Result<Latent, String> {
        match self.heads.is_multiple_of(ranks) {
            true => Ok(Latent { heads: self.heads / ranks, ..self.clone() }),
            false => Err(format!("{} attention heads", self.heads)),
        }
    }

    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let cache = CacheType::prefix(config.cache_dtype(), 1, self.kept(), self.rank);
        vec![(format!("kv{index}"), Type::Cache(cache))]
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

    fn build(&self, builder: &mut LayerBuilder, x: Value, Given { states, ropes, batch }: Given) -> Left {
        let given = (self.embedding.map(|rope| ropes[rope]), states.first().copied(), batch);
        let (attended, state) = builder.latent(self, x, given)?;
        Ok((attended, state.into_iter().collect()))
    }
}

impl LayerBuilder<'_> {
    /// The attention over `x`, and the new state of the cache.
    fn latent(
        &mut self,
        all: &Latent,
        x: Value,
        (table, cache, batch): (Option<Value>, Option<Value>, Value),
    ) -> Result<(Value, Option<Value>), Diagnostic> {
        let &Latent { rank, nope, rope, value, scale, .. } = all;
        let unsupported = |message: &str, at: &str| Err(Diagnostic::new("config::latent", message).at(at));
        let Some(cache) = cache else {
            let message = "latent attention is the artifact's own: a framework does not compute it here";
            return unsupported(message, "--attention");
        };
        if self.config.cache_scales().is_some() {
            return unsupported("scales of a cache of latent rows are not supported", "quantization_config");
        }
        let heads = all.heads / self.part.ranks;
        let q = self.queries(all, x)?;
        let a = self.projection((x, self.config.hidden), "self_attn.kv_a_proj_with_mqa", all.kept())?;
        self.b.at(format!("{}.self_attn", self.path));
        let part = |count, start, len, step| Op::Parts { count, start, len, step };
        let key = self.b.push(part(1, 0, rank, rank + rope), &[a])?;
        let key = self.norm_by(key, "self_attn.kv_a_layernorm", (rank, all.eps))?;
        self.b.at(format!("{}.self_attn", self.path));
        let turned = self.b.push(part(1, rank, rope, rank + rope), &[a])?;
        let turned = self.turned(all, turned, table)?;
        let key = self.b.push(Op::Beside {}, &[key, turned])?;
        let plain = self.b.push(part(heads, 0, nope, nope + rope), &[q])?;
        let query = self.of_heads(all, plain, true)?;
        self.b.at(format!("{}.self_attn", self.path));
        let turned = self.b.push(part(heads, nope, rope, nope + rope), &[q])?;
        let turned = self.turned(all, turned, table)?;
        let query = self.b.push(Op::Beside {}, &[query, turned])?;
        let state = self.b.push(Op::KeyWrite { values: rank }, &[cache, key, batch])?;
        let seen = self.b.push(Op::Attention { scale, window: 0 }, &[query, state, batch])?;
        let seen = self.b.flat(seen, heads * rank)?;
        let seen = self.b.push(part(heads, 0, rank, rank), &[seen])?;
        let values = self.of_heads(all, seen, false)?;
        let values = self.b.flat(values, heads * value)?;
        Ok((self.sum((values, None), "self_attn.o_proj", all.heads * value, false)?, Some(state)))
    }

    /// A part of keys or queries after its rotary embedding, if it has one.
    fn turned(&mut self, all: &Latent, x: Value, table: Option<Value>) -> Made {
        let turn = if all.in_pairs { Op::RopePairs {} } else { Op::Rope {} };
        table.map_or(Ok(x), |table| self.b.push(turn, &[x, table]))
    }

    /// The rank's queries, head by head, before they are turned.
    fn queries(&mut self, all: &Latent, x: Value) -> Made {
        let rows = all.heads * (all.nope + all.rope);
        let (x, width, module) = match all.q_rank {
            None => (x, self.config.hidden, "self_attn.q_proj"),
            Some(rank) => {
                let row = self.projection((x, self.config.hidden), "self_attn.q_a_proj", rank)?;
                (self.norm_by(row, "self_attn.q_a_layernorm", (rank, all.eps))?, rank, "self_attn.q_b_proj")
            }
        };
        let (path, dtype) = (format!("{}.{module}", self.path), self.config.dtype);
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
        let path = format!("{}.self_attn.kv_b_proj", self.path);
        let weight = Factor::read(self.b, self.config, &path, [heads * (nope + value), rank])?;
        let (start, len) = if of_keys { (0, nope) } else { (nope, value) };
        let weight = weight.heads(self.b, (heads, nope + value), (start, len))?;
        let weight = weight.shard_heads(self.b, self.part.ranks)?;
        let weight = if of_keys { weight.transposed(self.b, self.config.dtype)? } else { weight };
        weight.multiply_heads(self.b, x, self.config.dtype)
    }
}
