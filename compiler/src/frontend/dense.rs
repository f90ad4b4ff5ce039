//! The graph of a dense decoder: attention and a gated MLP, both behind a norm and a residual connection.
use atomc_ir::{Builder, CacheType, DType, Diagnostic, Dim, Elementwise, Graph, Op, Shape, Type, Value};

use super::config::Config;

type Made = Result<Value, Diagnostic>;

/// One step over T tokens, with logits for R of them.
///
/// Inputs: `ids`, `positions`, `lengths`, `rows`, `batch`, then `kv0`, `kv1`, …; outputs: the logits, then the cache
/// states in the same order, then the token that is the likeliest behind each of the R.
pub fn graph(config: &Config) -> Result<Graph, Diagnostic> {
    let mut b = Builder::new(config.architecture);
    let index = |dim| Type::tensor(DType::I32, Shape(vec![dim]));
    let ids = b.input("ids", index(Dim::Tokens));
    let positions = b.input("positions", index(Dim::Tokens));
    let lengths = b.input("lengths", index(Dim::Tokens));
    let rows = b.input("rows", index(Dim::Rows));
    let batch = b.input("batch", Type::Batch);
    let cache = CacheType { dtype: config.cache_dtype(), heads: config.kv_heads, head_dim: config.head_dim };
    let caches: Vec<Value> = (0..config.layers).map(|i| b.input(&format!("kv{i}"), Type::Cache(cache))).collect();

    let embedding =
        b.at("model.embed_tokens").weight("model.embed_tokens.weight", config.dtype, &[config.vocab, config.hidden]);
    let mut x = b.gather(embedding, ids)?;
    let freqs = b.at("model.rotary_emb").rope_freqs(config.rope.freqs)?;
    let (growth, original) = config.rope.growth();
    let rope = b.push(Op::RopeTable { scale: config.rope.scale, growth, original }, &[positions, lengths, freqs])?;

    let mut states = Vec::with_capacity(config.layers);
    for (i, &cache) in caches.iter().enumerate() {
        let mut layer = Layer { b: &mut b, config, path: format!("model.layers.{i}"), rope, batch };
        let (attended, state) = layer.attention(x, cache, config.windows[i])?;
        x = layer.mlp(attended)?;
        states.push(state);
    }

    b.at("model.norm");
    let picked = b.gather(x, rows)?;
    let weight = b.weight("model.norm.weight", config.dtype, &[config.hidden]);
    let x = b.rms_norm(picked, weight, config.eps)?;
    b.at("lm_head");
    let head = match config.tied {
        true => embedding,
        false => b.weight("lm_head.weight", config.dtype, &[config.vocab, config.hidden]),
    };
    let logits = b.linear(x, head, DType::F32)?;
    let picks = b.argmax(logits)?;
    b.finish(std::iter::once(logits).chain(states).chain([picks]).collect())
}

/// What building one layer needs.
struct Layer<'a> {
    b: &'a mut Builder,
    config: &'a Config,
    path: String,
    rope: Value,
    batch: Value,
}

impl Layer<'_> {
    /// `x` plus the attention over it, and the new state of the cache.
    fn attention(&mut self, x: Value, cache: Value, window: usize) -> Result<(Value, Value), Diagnostic> {
        let Config { heads, kv_heads, head_dim, qkv_bias, o_bias, .. } = *self.config;
        let normed = self.norm(x, "input_layernorm", self.config.hidden)?;
        let q = self.heads(normed, "q", heads, qkv_bias)?;
        let k = self.heads(normed, "k", kv_heads, qkv_bias)?;
        let v = self.linear(normed, "self_attn.v_proj", kv_heads * head_dim, qkv_bias)?;
        let v = self.b.heads(v, kv_heads, head_dim)?;
        self.b.at(format!("{}.self_attn", self.path));
        let q = self.b.rope(q, self.rope)?;
        let k = self.b.rope(k, self.rope)?;
        let state = self.b.push(Op::KvWrite {}, &[cache, k, v, self.batch])?;
        let scale = (head_dim as f64).powf(-0.5);
        let seen = self.b.push(Op::Attention { scale, window }, &[q, state, self.batch])?;
        let seen = self.b.flat(seen, heads * head_dim)?;
        let out = self.linear(seen, "self_attn.o_proj", self.config.hidden, o_bias)?;
        Ok((self.residual(x, out)?, state))
    }

    /// Projected heads, normed if the family does so.
    fn heads(&mut self, x: Value, which: &str, heads: usize, bias: bool) -> Made {
        let head_dim = self.config.head_dim;
        let x = self.linear(x, &format!("self_attn.{which}_proj"), heads * head_dim, bias)?;
        let x = self.b.heads(x, heads, head_dim)?;
        if self.config.qk_norm { self.norm(x, &format!("self_attn.{which}_norm"), head_dim) } else { Ok(x) }
    }

    fn mlp(&mut self, x: Value) -> Made {
        let Config { hidden, intermediate, mlp_bias, activation, .. } = *self.config;
        let normed = self.norm(x, "post_attention_layernorm", hidden)?;
        let gate = self.linear(normed, "mlp.gate_proj", intermediate, mlp_bias)?;
        let up = self.linear(normed, "mlp.up_proj", intermediate, mlp_bias)?;
        self.b.at(format!("{}.mlp", self.path));
        let gate = self.b.map(activation, &[gate])?;
        let inner = self.b.map(Elementwise::Mul, &[gate, up])?;
        let out = self.linear(inner, "mlp.down_proj", hidden, mlp_bias)?;
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

    fn linear(&mut self, x: Value, module: &str, out: usize, bias: bool) -> Made {
        let path = format!("{}.{module}", self.path);
        let width = self.b.ty(x).as_tensor().and_then(|t| t.shape.last()).expect("activations have a width");
        let dtype = self.config.dtype;
        let weight = self.b.at(&path).weight(format!("{path}.weight"), dtype, &[out, width]);
        let x = self.b.linear(x, weight, dtype)?;
        if !bias {
            return Ok(x);
        }
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[out]);
        self.b.add(x, bias)
    }
}
