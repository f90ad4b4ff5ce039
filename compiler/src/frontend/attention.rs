//! The graph of a layer's attention, and how ranks share it out: heads, with the keys and values
//! that they see.
use atomc_config::{Attention, BlockChoice, GatedBy, QkNorm};
use atomc_ir::{CacheType, DType, Diagnostic, Elementwise, Fact, Op, Type, Value};

use super::Config;
use super::layer::{Given, Kept, Kind, LayerBuilder, Left, Made, Rows, norm_weight, shard};
use super::product::{Factor, expected, joined};

/// Heads of queries, of keys and values, and a gate.
type Projected = (Value, Option<[Value; 2]>, Option<Value>);

/// Parts of keys and values: where there are fewer heads of them than ranks, several ranks have the
/// same one.
fn parts_of_kv(all: &Attention, ranks: usize) -> usize {
    ranks.min(all.kv_heads)
}

impl Kind for Attention {
    fn share(&self, ranks: usize) -> Result<Attention, String> {
        let Attention { heads, kv_heads, .. } = *self;
        if !heads.is_multiple_of(ranks) {
            return Err(format!("{heads} attention heads"));
        }
        if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
            return Err(format!("{kv_heads} heads of keys and values"));
        }
        Ok(Attention { heads: heads / ranks, kv_heads: kv_heads / parts_of_kv(self, ranks), ..self.clone() })
    }

    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let &Attention { kv_heads: heads, head_dim, value_dim, shared, .. } = self;
        if shared.is_some() {
            return vec![];
        }
        let cache = CacheType { dtype: config.cache_dtype(), heads, head_dim, value_dim, is_prefix: false };
        let mut states = vec![(format!("kv{index}"), Type::Cache(cache))];
        if let Some(BlockChoice { dim, .. }) = self.blocks {
            // Its values are its keys, which nothing reads.
            let keys = CacheType::prefix(config.dtype, 1, dim, dim);
            states.push((format!("index{index}"), Type::Cache(keys)));
        }
        states
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, Given { states, ropes, growth, batch, .. }: Given) -> Left {
        let grows = builder.config.growth.is_some_and(|growth| !growth.unturned || self.rope.is_none());
        let tables = (self.rope.map(|rope| ropes[rope]), growth.filter(|_| grows));
        builder.attention(self, x, tables, (states, batch))
    }
}

impl LayerBuilder<'_> {
    /// The attention over `x`, and the new states of the caches.
    fn attention(
        &mut self,
        all: &Attention,
        x: Value,
        (rope, growth): (Option<Value>, Option<Value>),
        (caches, batch): (&[Value], Value),
    ) -> Left {
        let &Attention { heads, head_dim, value_dim, modules, .. } = all;
        let (mut q, mut keys, gate) = self.projections(all, x)?;
        q = self.with_position(all, q, 0, rope)?;
        if let Some([k, _]) = &mut keys {
            *k = self.with_position(all, *k, 1, rope)?;
        }
        self.b.at(format!("{}.{}", self.path, modules.path));
        if growth.is_some() {
            let rows = self.b.flat(q, heads / self.part.ranks * head_dim)?;
            let rows = self.grown(rows, growth)?;
            q = self.b.heads(rows, heads / self.part.ranks, head_dim)?;
        }
        let (seen, of_seen, has_heads, states) = match (keys, caches) {
            (None, _) => {
                let Kept { state, scales } = self.kept_below(all)?;
                q = self.scaled(q, Elementwise::Mul, scales.map(|[of_keys, _]| of_keys))?;
                let (seen, _) = self.seen(all, [q, state, batch], (x, rope, None))?;
                (seen, scales.map(|[_, of_values]| of_values), true, vec![])
            }
            (Some([k, v]), []) => (self.seen_by_caller(all, [q, k, v, batch])?, None, false, vec![]),
            (Some([mut k, mut v]), &[cache, ..]) => {
                let scales = self.cache_scales(all)?;
                q = self.scaled(q, Elementwise::Mul, scales.map(|[of_keys, _]| of_keys))?;
                let [of_keys, of_values] = [0, 1].map(|at| scales.map(|scales| scales[at]));
                k = self.scaled(k, Elementwise::Unscale, of_keys)?;
                v = self.scaled(v, Elementwise::Unscale, of_values)?;
                let state = self.b.push(Op::KvWrite {}, &[cache, k, v, batch])?;
                self.carried.caches.insert(self.index, Kept { state, scales });
                let (seen, keys) = self.seen(all, [q, state, batch], (x, rope, caches.get(1)))?;
                (seen, scales.map(|[_, of_values]| of_values), true, [state].into_iter().chain(keys).collect())
            }
        };
        let seen = self.gated(all.gated, (all.heads, all.value_dim), (seen, has_heads), gate)?;
        let outer = format!("{}.{}", modules.path, modules.outer);
        Ok((self.sum((seen, of_seen), &outer, heads * value_dim, all.o_bias)?, states))
    }

    /// Heads of queries (0) or keys (1) with their rotary embedding, and the norm behind it.
    fn with_position(&mut self, all: &Attention, x: Value, which: usize, rope: Option<Value>) -> Made {
        self.b.at(format!("{}.{}", self.path, all.modules.path));
        let x = self.turned(x, rope, all.in_pairs)?;
        match all.qk_norm {
            QkNorm::Turned => self.normed_heads(all, x, which),
            QkNorm::Unweighted => self.unweighted(x, all.head_dim),
            _ => Ok(x),
        }
    }

    /// The cache of the layer whose keys and values this one sees.
    fn kept_below(&mut self, all: &Attention) -> Result<Kept, Diagnostic> {
        let kept = all.shared.and_then(|layer| self.carried.caches.get(&layer).copied());
        kept.ok_or_else(|| {
            let message = "attention over the keys of another layer is the artifact's own: \
                           a framework does not compute it here";
            Diagnostic::new("config::attention", message).at("--attention")
        })
    }

    /// What heads of queries see in a cache, and the new state of the keys that blocks are chosen
    /// by.
    fn seen(
        &mut self,
        all: &Attention,
        [q, state, batch]: [Value; 3],
        (x, rope, keys): (Value, Option<Value>, Option<&Value>),
    ) -> Result<(Value, Option<Value>), Diagnostic> {
        let &Attention { scale, window, .. } = all;
        if let (Some(choice), Some(&keys)) = (all.blocks, keys) {
            let (list, keys) = self.chosen_blocks(all, choice, (x, rope), (keys, batch))?;
            self.b.at(format!("{}.{}", self.path, all.modules.path));
            let op = Op::AttendListed { scale, block: Some(choice.size) };
            return Ok((self.b.push(op, &[q, state, batch, list])?, Some(keys)));
        }
        if let Some(ends) = self.carried.ends {
            if all.sinks.is_some() {
                let message = "tokens of images that see each other, with sinks: this is not supported";
                return Err(Diagnostic::new("config::attention", message).at("--tower"));
            }
            return Ok((self.b.push(Op::AttendUpTo { scale, window }, &[q, state, batch, ends])?, None));
        }
        let sinks = all.sinks.map(|name| self.sinks(all, name)).transpose()?;
        let operands: Vec<Value> = [q, state, batch].into_iter().chain(sinks).collect();
        Ok((self.b.push(Op::Attention { scale, window }, &operands)?, None))
    }

    /// What heads see in a cache of a framework's.
    fn seen_by_caller(&mut self, all: &Attention, rows: [Value; 4]) -> Made {
        let fault = |message: &str| Err(Diagnostic::new("config::attention", message).at("--attention"));
        if all.sinks.is_some() {
            return fault("attention with sinks is the artifact's own: a framework does not compute it here");
        }
        if all.blocks.is_some() {
            return fault("attention over chosen blocks is the artifact's own: a framework does not compute it here");
        }
        if all.head_dim != all.value_dim {
            return fault(
                "values of another width than keys are the artifact's own: a framework has no such cache here",
            );
        }
        self.b.push(Op::CallerAttention { layer: self.index, scale: all.scale, window: all.window }, &rows)
    }

    /// The blocks that each head of keys chooses, and the new state of the keys that it chooses by,
    /// which every rank has.
    fn chosen_blocks(
        &mut self,
        all: &Attention,
        choice: BlockChoice,
        (x, rope): (Value, Option<Value>),
        (cache, batch): (Value, Value),
    ) -> Result<(Value, Value), Diagnostic> {
        let (BlockChoice { dim, size, most, local }, parts) = (choice, parts_of_kv(all, self.part.ranks));
        let mut turned = |name, heads, parts| {
            let module = |part| format!("{}.index_{name}_{part}", all.modules.path);
            let row = self.rows(x, Rows::all(&module("proj"), heads * dim), parts, false)?;
            let row = self.b.heads(row, heads / parts, dim)?;
            let row = self.norm(row, &module("norm"), dim)?;
            self.b.at(format!("{}.{}", self.path, all.modules.path));
            self.turned(row, rope, all.in_pairs)
        };
        let (queries, key) = (turned("q", all.kv_heads, parts)?, turned("k", 1, 1)?);
        let keys = self.b.push(Op::KeyWrite { values: dim, every: None }, &[cache, key, batch])?;
        let op = Op::ChooseBlocks { k: most, block: size, local };
        Ok((self.b.push(op, &[queries, keys, batch])?, keys))
    }

    /// What attention made, as heads or as rows, times its gate: rows.
    pub fn gated(
        &mut self,
        by: GatedBy,
        (heads, width): (usize, usize),
        (seen, has_heads): (Value, bool),
        gate: Option<Value>,
    ) -> Made {
        let heads = heads / self.part.ranks;
        if let (Some(gate), GatedBy::Heads(_)) = (gate, by) {
            let seen = if has_heads { seen } else { self.b.heads(seen, heads, width)? };
            let seen = self.b.push(Op::Weigh {}, &[seen, gate])?;
            return self.b.flat(seen, heads * width);
        }
        let seen = if has_heads { self.b.flat(seen, heads * width)? } else { seen };
        match gate {
            Some(gate) => {
                let gate = self.b.map(Elementwise::Sigmoid, &[gate])?;
                self.b.map(Elementwise::Mul, &[seen, gate])
            }
            None => Ok(seen),
        }
    }

    /// The weight of each of the rank's heads, by a module of its own below a path.
    pub fn weights_of_heads(&mut self, (path, module): (&str, &str), heads: usize, x: Value) -> Made {
        let module = format!("{}.{path}.{module}", self.path);
        let weight = Factor::read(self.b, self.config, &module, [heads, self.config.hidden])?;
        let made = weight.shard(self.b, 0, self.part.ranks)?.multiply(self.b, x, DType::F32)?;
        self.b.map(Elementwise::Sigmoid, &[made])
    }

    /// The gates of the elements of the rank's heads, by a module of its own below a path, before
    /// their logistic function.
    pub fn weights_of_elements(
        &mut self,
        (path, module): (&str, &str),
        (heads, width): (usize, usize),
        x: Value,
    ) -> Made {
        self.rows(x, Rows::all(&format!("{path}.{module}"), heads * width), self.part.ranks, false)
    }

    /// A score of each of the rank's heads, in addition to those of keys.
    fn sinks(&mut self, all: &Attention, name: &str) -> Made {
        let every = self.b.weight(format!("{}.{}.{name}", self.path, all.modules.path), DType::F32, &[all.heads]);
        shard(self.b, every, 0, self.part.ranks)
    }

    /// The scales of keys and of values in the cache, if the checkpoint has them.
    fn cache_scales(&mut self, all: &Attention) -> Result<Option<[Value; 2]>, Diagnostic> {
        let Some(names) = self.config.cache_scales() else { return Ok(None) };
        let path = format!("{}.{}", self.path, all.modules.path);
        let mut scale = |name| expected(self.b, format!("{path}.{name}"), &[1], Fact::Scales);
        Ok(Some([scale(names.keys)?, scale(names.values)?]))
    }

    /// Heads of queries, of keys and values if the layer has some of its own, and the gate of
    /// attention's result, if there is one: of heads after its logistic function.
    fn projections(&mut self, all: &Attention, x: Value) -> Result<Projected, Diagnostic> {
        let &Attention { heads, kv_heads, head_dim, value_dim, qkv_bias: bias, fused, modules, .. } = all;
        let (ranks, parts) = (self.part.ranks, parts_of_kv(all, self.part.ranks));
        let (q_rows, k_rows, v_rows) = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim);
        let [both, of_q, of_k, of_v] =
            [modules.qkv, "q_proj", "k_proj", "v_proj"].map(|name| format!("{}.{name}", modules.path));
        let rows = |module, start, out| match fused {
            true => Rows { module: &both, start, out, of: q_rows + k_rows + v_rows },
            false => Rows::all(module, out),
        };
        let (q, gate) = match all.gated {
            GatedBy::Elements => {
                let [q, gate] = self.queries_and_gates(all, x)?;
                (q, Some(gate))
            }
            GatedBy::Heads(module) => {
                let gate = self.weights_of_heads((modules.path, module), heads, x)?;
                (self.rows(x, rows(&of_q, 0, q_rows), ranks, bias)?, Some(gate))
            }
            GatedBy::ElementsOf(module) => {
                let gate = self.weights_of_elements((modules.path, module), (heads, value_dim), x)?;
                (self.rows(x, rows(&of_q, 0, q_rows), ranks, bias)?, Some(gate))
            }
            GatedBy::No => (self.rows(x, rows(&of_q, 0, q_rows), ranks, bias)?, None),
        };
        if all.shared.is_some() {
            return Ok((self.heads(all, q, 0, heads / ranks)?, None, gate));
        }
        let of_keys = rows(&of_k, q_rows, k_rows);
        let [q, k] = match ranks > 1 && all.qk_norm == QkNorm::Row {
            true => {
                let k = self.rows(x, of_keys, parts, bias)?;
                self.normed_parts(all, [(q, heads, ranks), (k, kv_heads, parts)])?
            }
            false => {
                let q = self.heads(all, q, 0, heads / ranks)?;
                let k = self.rows(x, of_keys, parts, bias)?;
                [q, self.heads(all, k, 1, kv_heads / parts)?]
            }
        };
        let of_values = if all.keys_as_values { of_keys } else { rows(&of_v, q_rows + k_rows, v_rows) };
        let v = self.rows(x, of_values, parts, bias)?;
        let v = self.b.scale(v, all.value_scale)?;
        let v = self.b.heads(v, kv_heads / parts, value_dim)?;
        let v = if all.value_norm { self.unweighted(v, value_dim)? } else { v };
        Ok((q, Some([k, v]), gate))
    }

    /// Queries, and the gates of their results. The checkpoint has them in turn: a head's query,
    /// its gate, then the next head's.
    fn queries_and_gates(&mut self, all: &Attention, x: Value) -> Result<[Value; 2], Diagnostic> {
        let (&Attention { heads, head_dim, qkv_bias, .. }, dtype) = (all, self.config.dtype);
        let (module, rows) = (format!("{}.{}.q_proj", self.path, all.modules.path), 2 * heads * head_dim);
        let both = Factor::read(self.b, self.config, &module, [rows, self.config.hidden])?;
        let mut made = [x; 2];
        for (number, made) in made.iter_mut().enumerate() {
            let pieces: Vec<_> = (0..heads).map(|head| ((2 * head + number) * head_dim, head_dim)).collect();
            let factor = both.clone().pieces(self.b, &pieces)?.shard(self.b, 0, self.part.ranks)?;
            *made = factor.multiply(self.b, x, dtype)?;
            if qkv_bias {
                let bias = self.b.weight(format!("{module}.bias"), dtype, &[rows]);
                let bias = joined(self.b, bias, 0, &pieces)?;
                let bias = shard(self.b, bias, 0, self.part.ranks)?;
                *made = self.b.add(*made, bias)?;
            }
        }
        Ok(made)
    }

    /// Heads of queries (0) or keys (1) of a projection, normed as the family does.
    fn heads(&mut self, all: &Attention, x: Value, which: usize, heads: usize) -> Made {
        let head_dim = all.head_dim;
        match all.qk_norm {
            QkNorm::None | QkNorm::Turned | QkNorm::Unweighted => self.b.heads(x, heads, head_dim),
            QkNorm::Heads => {
                let x = self.b.heads(x, heads, head_dim)?;
                self.normed_heads(all, x, which)
            }
            QkNorm::Row => {
                let x = self.norm(x, &format!("{}.{}", all.modules.path, all.norm_names[which]), heads * head_dim)?;
                self.b.heads(x, heads, head_dim)
            }
        }
    }

    /// Heads of queries and of keys, each of which are one of so many parts of all heads, after
    /// norms over all of them. Each rank sums up the squares of its own parts, then these sums are
    /// added up. Heads that several ranks have count as often in both sum and number.
    fn normed_parts(&mut self, all: &Attention, rows: [(Value, usize, usize); 2]) -> Result<[Value; 2], Diagnostic> {
        let (ranks, head_dim, eps) = (self.part.ranks, all.head_dim, self.config.eps);
        let mut normed = rows.map(|(x, ..)| x);
        let path = format!("{}.{}", self.path, all.modules.path);
        self.b.at(&path);
        let squares = self.b.push(Op::Squares {}, &normed)?;
        let squares = self.b.push(Op::AllReduce {}, &[squares])?;
        for (at, (x, heads, parts)) in rows.into_iter().enumerate() {
            let path = format!("{path}.{}", all.norm_names[at]);
            self.b.at(&path);
            let weight = norm_weight(self.b, self.config, &path, heads * head_dim)?;
            let weight = shard(self.b, weight, 0, parts)?;
            let of = ranks * (heads / parts) * head_dim;
            let x = self.b.push(Op::PartNorm { eps, of, at }, &[x, weight, squares])?;
            normed[at] = self.b.heads(x, heads / parts, head_dim)?;
        }
        Ok(normed)
    }

    /// The norm of each head of queries (0) or keys (1).
    fn normed_heads(&mut self, all: &Attention, x: Value, which: usize) -> Made {
        self.norm(x, &format!("{}.{}", all.modules.path, all.norm_names[which]), all.head_dim)
    }
}
