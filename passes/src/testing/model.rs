//! A dense decoder as frontends build it, small.
use atomc_ir::results::{LOGITS, PICKS};
use atomc_ir::rope::{Freqs, Scaling};
use atomc_ir::{Builder, CacheType, DType, Diagnostic, Dim, Elementwise, Graph, Op, Shape, Turn, Type, Value};

const VOCAB: usize = 16;
const HIDDEN: usize = 8;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const MLP: usize = 12;

/// The features of families that the model has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dense {
    pub layers: usize,
    pub bias: bool,
    pub qk_norm: bool,
    pub tied: bool,
    /// Other sizes than the small ones: hidden, heads, heads of keys, elements of a head, width of
    /// the MLP.
    pub sizes: Option<[usize; 5]>,
}

impl Dense {
    /// Like Qwen3: norms of queries and keys, one embedding for both ends.
    pub fn qwen3(layers: usize) -> Dense {
        Dense { layers, qk_norm: true, tied: true, ..Dense::default() }
    }

    /// Like Llama with all of its biases.
    pub fn llama(layers: usize) -> Dense {
        Dense { layers, bias: true, ..Dense::default() }
    }

    pub fn graph(self) -> Graph {
        let [hidden, heads, kv_heads, head_dim, mlp] = self.sizes.unwrap_or([HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP]);
        Model { features: self, b: Builder::new("step"), hidden, heads, kv_heads, head_dim, mlp }
            .step()
            .unwrap_or_else(|e| panic!("{e}"))
    }
}

struct Model {
    features: Dense,
    b: Builder,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    mlp: usize,
}

type Made = Result<Value, Diagnostic>;

impl Model {
    fn step(mut self) -> Result<Graph, Diagnostic> {
        let index = |dim| Type::tensor(DType::I32, Shape(vec![dim]));
        let [ids, positions, lengths] =
            ["ids", "positions", "lengths"].map(|name| self.b.input(name, index(Dim::Tokens)));
        let rows = self.b.input("rows", index(Dim::Rows));
        let batch = self.b.input("batch", Type::Batch);
        let cache = CacheType::even(DType::BF16, self.kv_heads, self.head_dim);
        let caches: Vec<Value> =
            (0..self.features.layers).map(|i| self.b.input(&format!("kv{i}"), Type::Cache(cache))).collect();

        let embed = self.b.at("model.embed_tokens").weight("embed", DType::BF16, &[VOCAB, self.hidden]);
        let mut x = self.b.gather(embed, ids)?;
        let freqs = Freqs { theta: 10000.0, dim: self.head_dim, scaling: Scaling::Default };
        let freqs = self.b.at("model.rotary_emb").rope_freqs(freqs)?;
        let table = Op::RopeTable { scale: 1.0, growth: 0.0, original: 0, turn: Turn::Token };
        let table = self.b.push(table, &[positions, lengths, freqs])?;
        let mut outputs = vec![];
        for (i, cache) in caches.into_iter().enumerate() {
            let state;
            (x, state) = self.layer(&format!("model.layers.{i}"), x, table, cache, batch)?;
            outputs.push((format!("kv{i}"), state));
        }
        let last = self.b.at("model.norm").gather(x, rows)?;
        let last = self.norm("model.norm", last, self.hidden)?;
        let head = if self.features.tied {
            embed
        } else {
            self.b.at("lm_head").weight("lm_head.weight", DType::BF16, &[VOCAB, self.hidden])
        };
        let logits = self.b.at("lm_head").linear(last, head, DType::F32)?;
        outputs.insert(0, (LOGITS.to_string(), logits));
        outputs.push((PICKS.to_string(), self.b.argmax(logits)?));
        self.b.finish(outputs)
    }

    fn layer(
        &mut self,
        at: &str,
        x: Value,
        table: Value,
        cache: Value,
        batch: Value,
    ) -> Result<(Value, Value), Diagnostic> {
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let h = self.norm(&format!("{at}.input_layernorm"), x, self.hidden)?;
        let attn = format!("{at}.self_attn");
        let q = self.head_rows(&attn, "q", h, self.heads)?;
        let k = self.head_rows(&attn, "k", h, self.kv_heads)?;
        let v = self.linear(&format!("{attn}.v_proj"), h, self.hidden, kv_width)?;
        let v = self.b.heads(v, self.kv_heads, self.head_dim)?;
        let q = self.b.at(&attn).rope(q, table)?;
        let k = self.b.rope(k, table)?;
        let cache = self.b.push(Op::KvWrite {}, &[cache, k, v, batch])?;
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        let o = self.b.push(Op::Attention { scale, window: 0 }, &[q, cache, batch])?;
        let o = self.b.flat(o, q_width)?;
        let o = self.linear(&format!("{attn}.o_proj"), o, q_width, self.hidden)?;
        let x = self.b.at(at).add(x, o)?;
        let h = self.norm(&format!("{at}.post_attention_layernorm"), x, self.hidden)?;
        let mlp = format!("{at}.mlp");
        let gate = self.linear(&format!("{mlp}.gate_proj"), h, self.hidden, self.mlp)?;
        let up = self.linear(&format!("{mlp}.up_proj"), h, self.hidden, self.mlp)?;
        let gate = self.b.at(&mlp).map(Elementwise::Silu, &[gate])?;
        let act = self.b.map(Elementwise::Mul, &[gate, up])?;
        let down = self.linear(&format!("{mlp}.down_proj"), act, self.mlp, self.hidden)?;
        Ok((self.b.at(at).add(x, down)?, cache))
    }

    /// Queries or keys, a head each, before the rotation.
    fn head_rows(&mut self, at: &str, which: &str, x: Value, heads: usize) -> Made {
        let y = self.linear(&format!("{at}.{which}_proj"), x, self.hidden, heads * self.head_dim)?;
        let y = self.b.heads(y, heads, self.head_dim)?;
        if !self.features.qk_norm {
            return Ok(y);
        }
        self.norm(&format!("{at}.{which}_norm"), y, self.head_dim)
    }

    fn norm(&mut self, at: &str, x: Value, width: usize) -> Made {
        let w = self.b.at(at).weight(format!("{at}.weight"), DType::BF16, &[width]);
        self.b.rms_norm(x, w, 1e-6)
    }

    fn linear(&mut self, at: &str, x: Value, from: usize, to: usize) -> Made {
        let w = self.b.at(at).weight(format!("{at}.weight"), DType::BF16, &[to, from]);
        let y = self.b.linear(x, w, DType::BF16)?;
        if !self.features.bias {
            return Ok(y);
        }
        let bias = self.b.weight(format!("{at}.bias"), DType::BF16, &[to]);
        self.b.add(y, bias)
    }
}
