//! The graph of attention over a window of tokens and over rows that blocks of earlier tokens are
//! pooled to, and how ranks share it out: heads in whole groups, while all have the same rows.
//!
//! A token leaves what it gives to the row of its block in a cache with a window of its own, as
//! wide as what a row is made of. So a row can be made wherever a step ends, and made again where
//! tokens were taken back. Rows lie in a cache with a row for each block.
use atomc_config::{Indexer, Pooled, PooledBlocks};
use atomc_ir::{CacheType, DType, Diagnostic, Op, Turn, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, shard};
use super::product::Factor;

impl Kind for Pooled {
    fn share(&self, ranks: usize) -> Result<Pooled, String> {
        match self.groups.is_multiple_of(ranks) {
            true => Ok(Pooled { heads: self.heads / ranks, groups: self.groups / ranks, ..self.clone() }),
            false => Err(format!("{} groups of attention heads", self.groups)),
        }
    }

    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        // Their values are their keys.
        let keys = |dim: usize| Type::Cache(CacheType::prefix(config.dtype, 1, dim, dim));
        let parts = |width: usize| Type::Cache(CacheType::even(DType::F32, 1, width));
        let mut states = vec![(format!("kv{index}"), keys(self.dim))];
        if let Some(PooledBlocks { chosen, .. }) = self.blocks {
            let width = if chosen.is_some() { 2 * self.dim } else { self.dim };
            states.extend([(format!("parts{index}"), parts(width)), (format!("rows{index}"), keys(self.dim))]);
            let Some(Indexer { dim, .. }) = chosen else { return states };
            states.extend([(format!("index_parts{index}"), parts(2 * dim)), (format!("index{index}"), keys(dim))]);
        }
        states
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let unsupported = |message: &str, at: &str| Err(Diagnostic::new("config::pooled", message).at(at));
        if given.states.is_empty() {
            let message = "attention over rows of blocks is the artifact's own: a framework does not compute it here";
            return unsupported(message, "--attention");
        }
        if builder.config.cache.is_some() {
            return unsupported("a cache of bytes of rows of blocks is not supported", "--cache-dtype");
        }
        builder.pooled(self, x, given)
    }
}

/// The rows that blocks are pooled to: the module, the width of a row, and its caches.
struct Rows<'a> {
    module: &'a str,
    dim: usize,
    caches: [Value; 2],
}

impl LayerBuilder<'_> {
    /// The attention over `x`, and the new states of the caches.
    fn pooled(&mut self, all: &Pooled, x: Value, given: Given) -> Left {
        let &Pooled { dim, q_rank, window, o_rank, embedding, .. } = all;
        let (Given { states, batch, .. }, table, ranks) = (given, given.ropes[embedding], self.part.ranks);
        let (heads, groups) = (all.heads / ranks, all.groups / ranks);
        let short = self.plain(x, "attn.wq_a", q_rank, self.config.dtype)?;
        let short = self.norm(short, "attn.q_norm", q_rank)?;
        let path = format!("{}.attn.wq_b", self.path);
        let weight = Factor::read(self.b, self.config, &path, [all.heads * dim, q_rank])?;
        let q = weight.shard(self.b, 0, ranks)?.multiply(self.b, short, self.config.dtype)?;
        let q = self.b.at(format!("{}.attn", self.path)).heads(q, heads, dim)?;
        let ones = self.b.push(Op::Numbers { values: vec![1; dim] }, &[])?;
        let q = self.b.rms_norm(q, ones, self.config.eps)?;
        let q = self.last_turned(q, table, (dim, all.turned))?;
        let key = self.plain(x, "attn.wkv", dim, self.config.dtype)?;
        let key = self.norm(key, "attn.kv_norm", dim)?;
        let key = self.b.at(format!("{}.attn", self.path)).heads(key, 1, dim)?;
        let key = self.last_turned(key, table, (dim, all.turned))?;
        let state = self.b.push(Op::KeyWrite { values: dim, every: None }, &[states[0], key, batch])?;
        let sinks = self.b.weight(format!("{}.attn.attn_sink", self.path), DType::F32, &[all.heads]);
        let sinks = shard(self.b, sinks, 0, ranks)?;
        let (seen, made) = match all.blocks {
            None => {
                let op = Op::Attention { scale: (dim as f64).powf(-0.5), window };
                (self.b.push(op, &[q, state, batch, sinks])?, vec![])
            }
            Some(blocks) => self.parts(all, blocks, [x, short, q, state, sinks], given)?,
        };
        let back = self.table(embedding, Turn::Back, given)?;
        let seen = self.last_turned(seen, back, (dim, all.turned))?;
        let seen = self.b.flat(seen, heads * dim)?;
        let each = heads / groups * dim;
        let seen = self.b.push(Op::Parts { count: groups, start: 0, len: each, step: each }, &[seen])?;
        let path = format!("{}.attn.wo_a", self.path);
        let weight = Factor::of_heads(self.b, self.config, &path, [all.groups * o_rank, each])?;
        let weight = weight.heads(self.b, (all.groups, o_rank), (0, o_rank))?.shard_heads(self.b, ranks)?;
        let short = weight.multiply_heads(self.b, seen, self.config.dtype)?;
        let short = self.b.flat(short, groups * o_rank)?;
        let out = self.sum((short, None), "attn.wo_b", all.groups * o_rank, false)?;
        Ok((out, [state].into_iter().chain(made).collect()))
    }

    /// What queries see of a window and of rows of blocks, and the new states of the latter.
    fn parts(&mut self, all: &Pooled, blocks: PooledBlocks, values: [Value; 5], given: Given) -> Left {
        let ([x, short, q, window, sinks], Given { states, batch, .. }) = (values, given);
        let (scale, every) = ((all.dim as f64).powf(-0.5), Some(blocks.every));
        let table = self.table(all.embedding, Turn::Block(blocks.every), given)?;
        let own = Rows { module: "attn.compressor", dim: all.dim, caches: [states[1], states[2]] };
        let [parts, rows] = self.rows_of_blocks(all, blocks, (x, table, batch), own)?;
        let mut made = vec![parts, rows];
        let mut operands = vec![q, rows, batch];
        if let Some(indexer) = blocks.chosen {
            let own = Rows { module: "attn.indexer.compressor", dim: indexer.dim, caches: [states[3], states[4]] };
            let [parts, keys] = self.rows_of_blocks(all, blocks, (x, table, batch), own)?;
            made.extend([parts, keys]);
            let [queries, weights] = self.choosing(all, indexer, [x, short], given)?;
            let op = Op::Choose { k: indexer.most, every };
            operands.push(self.b.push(op, &[queries, weights, keys, batch])?);
        }
        self.b.at(format!("{}.attn", self.path));
        let near = self.b.push(Op::AttendPart { scale, window: all.window, every: None }, &[q, window, batch])?;
        let far = self.b.push(Op::AttendPart { scale, window: 0, every }, &operands)?;
        let of = |part: Value| Value { out: 1, ..part };
        let join = Op::Join { to: self.config.dtype };
        Ok((self.b.push(join, &[near, of(near), far, of(far), sinks])?, made))
    }

    /// The new states of what tokens give to rows, and of rows.
    fn rows_of_blocks(
        &mut self,
        all: &Pooled,
        blocks: PooledBlocks,
        (x, table, batch): (Value, Value, Value),
        Rows { module, dim, caches }: Rows,
    ) -> Result<[Value; 2], Diagnostic> {
        let (every, overlap) = (blocks.every, blocks.chosen.is_some());
        let width = if overlap { 2 * dim } else { dim };
        let value = self.plain(x, &format!("{module}.wkv"), width, DType::F32)?;
        let key = self.plain(x, &format!("{module}.wgate"), width, DType::F32)?;
        let path = format!("{}.{module}", self.path);
        let bias = self.b.at(&path).weight(format!("{path}.ape"), DType::F32, &[every, width]);
        let (key, value) = (self.b.heads(key, 1, width)?, self.b.heads(value, 1, width)?);
        let parts = self.b.push(Op::KvWrite {}, &[caches[0], key, value, batch])?;
        let row = self.b.push(Op::Pool { every, overlap }, &[parts, bias, batch])?;
        let row = self.norm(row, &format!("{module}.norm"), dim)?;
        let row = self.b.at(&path).heads(row, 1, dim)?;
        let mut row = self.last_turned(row, table, (dim, all.turned))?;
        if self.config.dtype != DType::F32 {
            row = self.b.push(Op::Cast { to: self.config.dtype }, &[row])?;
        }
        let rows = self.b.push(Op::KeyWrite { values: dim, every: Some(every) }, &[caches[1], row, batch])?;
        Ok([parts, rows])
    }

    /// The queries by which rows are chosen, and the weights of their heads.
    fn choosing(
        &mut self,
        all: &Pooled,
        indexer: Indexer,
        [x, short]: [Value; 2],
        given: Given,
    ) -> Result<[Value; 2], Diagnostic> {
        let Indexer { heads, dim, .. } = indexer;
        let q = self.plain(short, "attn.indexer.wq_b", heads * dim, self.config.dtype)?;
        let q = self.b.at(format!("{}.attn.indexer", self.path)).heads(q, heads, dim)?;
        let q = self.last_turned(q, given.ropes[all.embedding], (dim, all.turned))?;
        let weights = self.plain(x, "attn.indexer.weights_proj", heads, DType::F32)?;
        self.b.at(format!("{}.attn.indexer", self.path));
        Ok([q, self.b.scale(weights, (heads as f64 * dim as f64).powf(-0.5))?])
    }

    /// The table of a rotary embedding, for other positions or turned back.
    fn table(&mut self, rope: usize, turn: Turn, given: Given) -> Made {
        let rope = &self.config.ropes[rope];
        self.b.at(format!("{}.rotary_emb", self.config.path));
        let freqs = self.b.rope_freqs(rope.freqs(self.config.context))?;
        let (growth, original) = rope.growth();
        let op = Op::RopeTable { scale: rope.scale, growth, original, turn };
        let made = self.b.push(op, &[given.tokens.positions, given.tokens.lengths, freqs])?;
        self.b.at(format!("{}.attn", self.path));
        Ok(made)
    }

    /// Heads of which the last elements are turned, neighbour with neighbour.
    fn last_turned(&mut self, x: Value, table: Value, (dim, turned): (usize, usize)) -> Made {
        let mut part = |start, len| self.b.push(Op::Slice { axis: 2, start, len }, &[x]);
        if dim == turned {
            return self.b.push(Op::RopePairs {}, &[x, table]);
        }
        let (first, last) = (part(0, dim - turned)?, part(dim - turned, turned)?);
        let last = self.b.push(Op::RopePairs {}, &[last, table])?;
        self.b.push(Op::Beside {}, &[first, last])
    }

    /// A projection of all features of `x` to others of a type.
    fn plain(&mut self, x: Value, module: &str, out: usize, dtype: DType) -> Made {
        let path = format!("{}.{module}", self.path);
        let width = self.b.ty(x).as_tensor().and_then(|t| t.shape.last()).unwrap_or(self.config.hidden);
        let weight = Factor::read(self.b, self.config, &path, [out, width])?;
        weight.multiply(self.b, x, dtype)
    }
}
