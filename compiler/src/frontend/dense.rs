//! The graph of a dense decoder: attention and a gated MLP, both behind a norm and a residual connection.
//!
//! Of ranks that share the model out, each has some of the heads and some of the MLP's inner rows. Its output projections give a
//! part of a sum, which the caller adds up over the ranks before biases and residuals. Each also has some of the logits, if the
//! head has a weight of its own that can be shared out.
use atomc_artifact::manifest::Attention;
use atomc_ir::results::{HIDDEN, LOGITS, PICKS};
use atomc_ir::{Builder, CacheType, DType, Diagnostic, Dim, Elementwise, Graph, Op, Shape, Type, Value};

use super::{Activation, Config, Part};

type Made = Result<Value, Diagnostic>;

/// One step over T tokens, with logits for R of them.
///
/// Inputs: `ids`, `positions`, `lengths`, `rows`, `batch`, then `kv0`, `kv1`, …, unless the caller attends; results: `logits`,
/// then the cache states, called as the inputs are, then `picks`, unless ranks share the model out, then `hidden`
/// ([`atomc_ir::results`]).
pub fn graph(config: &Config, part: Part) -> Result<Graph, Diagnostic> {
    let own = part.of(config)?;
    let mut b = Builder::new(config.architecture);
    let index = |dim| Type::tensor(DType::I32, Shape(vec![dim]));
    let ids = b.input("ids", index(Dim::Tokens));
    let positions = b.input("positions", index(Dim::Tokens));
    let lengths = b.input("lengths", index(Dim::Tokens));
    let rows = b.input("rows", index(Dim::Rows));
    let batch = b.input("batch", Type::Batch);
    let cache = CacheType { dtype: config.cache_dtype(), heads: own.kv_heads, head_dim: config.head_dim };
    let caches: Vec<Value> = match part.attention {
        Attention::Own => (0..config.layers).map(|i| b.input(&format!("kv{i}"), Type::Cache(cache))).collect(),
        Attention::Caller => vec![],
    };

    let embedding =
        b.at("model.embed_tokens").weight("model.embed_tokens.weight", config.dtype, &[config.vocab, config.hidden]);
    let mut x = b.gather(embedding, ids)?;
    let freqs = b.at("model.rotary_emb").rope_freqs(config.rope.freqs)?;
    let (growth, original) = config.rope.growth();
    let rope = b.push(Op::RopeTable { scale: config.rope.scale, growth, original }, &[positions, lengths, freqs])?;

    let mut states = Vec::with_capacity(config.layers);
    for index in 0..config.layers {
        let path = format!("model.layers.{index}");
        let mut layer = Layer { b: &mut b, config, own: &own, part, index, path, rope, batch };
        let (attended, state) = layer.attention(x, caches.get(index).copied())?;
        x = layer.mlp(attended)?;
        states.extend(state.map(|state| (format!("kv{index}"), state)));
    }

    b.at("model.norm");
    let picked = b.gather(x, rows)?;
    let weight = b.weight("model.norm.weight", config.dtype, &[config.hidden]);
    let last = b.rms_norm(picked, weight, config.eps)?;
    b.at("lm_head");
    let head = match config.tied {
        true => embedding,
        false => {
            let all = b.weight("lm_head.weight", config.dtype, &[config.vocab, config.hidden]);
            shard(&mut b, all, 0, part.parts_of_vocab(config))?
        }
    };
    let logits = b.linear(last, head, DType::F32)?;
    let picks = if part.ranks == 1 { Some(b.argmax(logits)?) } else { None };
    let mut results = vec![(LOGITS.to_string(), logits)];
    results.extend(states);
    results.extend(picks.map(|picks| (PICKS.to_string(), picks)));
    results.push((HIDDEN.to_string(), x));
    b.finish(results)
}

fn shard(b: &mut Builder, weight: Value, axis: usize, parts: usize) -> Made {
    if parts == 1 { Ok(weight) } else { b.push(Op::Shard { axis, parts }, &[weight]) }
}

/// What building one layer needs.
struct Layer<'a> {
    b: &'a mut Builder,
    config: &'a Config,
    /// The sizes of the rank.
    own: &'a Config,
    part: Part,
    index: usize,
    path: String,
    rope: Value,
    batch: Value,
}

impl Layer<'_> {
    /// `x` plus the attention over it, and the new state of the cache.
    fn attention(&mut self, x: Value, cache: Option<Value>) -> Result<(Value, Option<Value>), Diagnostic> {
        let Config { heads, kv_heads, head_dim, qkv_bias, o_bias, .. } = *self.config;
        let Config { heads: own, kv_heads: own_kv, .. } = *self.own;
        let (ranks, parts) = (self.part.ranks, self.part.parts_of_kv(self.config));
        let normed = self.norm(x, "input_layernorm", self.config.hidden)?;
        let q = self.rows(normed, "self_attn.q_proj", heads * head_dim, ranks, qkv_bias)?;
        let q = self.heads(q, "q", own)?;
        let k = self.rows(normed, "self_attn.k_proj", kv_heads * head_dim, parts, qkv_bias)?;
        let k = self.heads(k, "k", own_kv)?;
        let v = self.rows(normed, "self_attn.v_proj", kv_heads * head_dim, parts, qkv_bias)?;
        let v = self.b.heads(v, own_kv, head_dim)?;
        self.b.at(format!("{}.self_attn", self.path));
        let q = self.b.rope(q, self.rope)?;
        let k = self.b.rope(k, self.rope)?;
        let (scale, window) = ((head_dim as f64).powf(-0.5), self.config.windows[self.index]);
        let (seen, state) = match cache {
            Some(cache) => {
                let state = self.b.push(Op::KvWrite {}, &[cache, k, v, self.batch])?;
                let seen = self.b.push(Op::Attention { scale, window }, &[q, state, self.batch])?;
                (self.b.flat(seen, own * head_dim)?, Some(state))
            }
            None => {
                let op = Op::CallerAttention { layer: self.index, scale, window };
                (self.b.push(op, &[q, k, v, self.batch])?, None)
            }
        };
        let out = self.sum(seen, "self_attn.o_proj", heads * head_dim, o_bias)?;
        Ok((self.residual(x, out)?, state))
    }

    /// Heads of a projection, normed if the family does so.
    fn heads(&mut self, x: Value, which: &str, heads: usize) -> Made {
        let head_dim = self.config.head_dim;
        let x = self.b.heads(x, heads, head_dim)?;
        if self.config.qk_norm { self.norm(x, &format!("self_attn.{which}_norm"), head_dim) } else { Ok(x) }
    }

    fn mlp(&mut self, x: Value) -> Made {
        let Config { hidden, intermediate, mlp_bias, activation, .. } = *self.config;
        let ranks = self.part.ranks;
        let normed = self.norm(x, "post_attention_layernorm", hidden)?;
        let gate = self.rows(normed, "mlp.gate_proj", intermediate, ranks, mlp_bias)?;
        let up = self.rows(normed, "mlp.up_proj", intermediate, ranks, mlp_bias)?;
        self.b.at(format!("{}.mlp", self.path));
        let gate = self.b.map(formula(activation), &[gate])?;
        let inner = self.b.map(Elementwise::Mul, &[gate, up])?;
        let out = self.sum(inner, "mlp.down_proj", intermediate, mlp_bias)?;
        self.residual(x, out)
    }

    fn residual(&mut self, x: Value, out: Value) -> Made {
        self.b.at(self.path.clone());
        self.b.add(x, out)
    }

    fn norm(&mut self, x: Value, module: &str, width: usize) -> Made {
        let path = format!("{}.{module}", self.path);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.config.dtype, &[width]);
        self.b.rms_norm(x, weight, self.config.eps)
    }

    /// A projection to `out` features, of which the rank makes one of so many parts.
    fn rows(&mut self, x: Value, module: &str, out: usize, parts: usize, bias: bool) -> Made {
        let (path, dtype) = (format!("{}.{module}", self.path), self.config.dtype);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), dtype, &[out, self.config.hidden]);
        let weight = shard(self.b, weight, 0, parts)?;
        let x = self.b.linear(x, weight, dtype)?;
        if !bias {
            return Ok(x);
        }
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[out]);
        let bias = shard(self.b, bias, 0, parts)?;
        self.b.add(x, bias)
    }

    /// A projection of all `width` features, of which the rank has a part, back to the hidden size: summed over the ranks.
    fn sum(&mut self, x: Value, module: &str, width: usize, bias: bool) -> Made {
        let Config { hidden, dtype, .. } = *self.config;
        let (path, ranks) = (format!("{}.{module}", self.path), self.part.ranks);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), dtype, &[hidden, width]);
        let weight = shard(self.b, weight, 1, ranks)?;
        let mut x = self.b.linear(x, weight, dtype)?;
        if ranks > 1 {
            x = self.b.push(Op::AllReduce {}, &[x])?;
        }
        if !bias {
            return Ok(x);
        }
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[hidden]);
        self.b.add(x, bias)
    }
}

/// The op of an activation.
fn formula(activation: Activation) -> Elementwise {
    match activation {
        Activation::Silu => Elementwise::Silu,
        Activation::Gelu => Elementwise::Gelu,
        Activation::GeluTanh => Elementwise::GeluTanh,
        Activation::QuickGelu => Elementwise::QuickGelu,
        Activation::Relu => Elementwise::Relu,
    }
}
