//! The graph of a layer's recurrent state: a short convolution, then the gated delta rule.
use atomc_config::{Delta, StoredDelta};
use atomc_ir::{Builder, DType, Diagnostic, Elementwise, Op, Shape, SlotsType, Type, Value};

use super::layer::{LayerBuilder, Made};
use super::product::Factor;

/// What is added to the sum of the squares of a query or key before it is divided by the root: of
/// transformers' `l2norm` and of FLA.
const UNIT_EPS: f64 = 1e-6;

/// The sizes of one rank, or what cannot be shared out.
pub fn share(all: &Delta, ranks: usize) -> Result<Delta, String> {
    if ranks == 1 { Ok(all.clone()) } else { Err("a layer with a recurrent state".into()) }
}

/// The states of the layer of this number: that of the convolution, then that of the delta rule.
pub fn states(b: &mut Builder, all: &Delta, (index, dtype): (usize, DType)) -> [(String, Value); 2] {
    let conv = SlotsType { dtype, shape: vec![all.conv - 1, all.channels()] };
    let delta = SlotsType { dtype: DType::F32, shape: vec![all.heads, all.key_dim, all.value_dim] };
    [("conv", conv), ("delta", delta)].map(|(kind, ty)| {
        let name = format!("{kind}{index}");
        let input = b.input(&name, Type::Slots(ty));
        (name, input)
    })
}

/// What the projections of a token are.
struct Projected {
    /// Queries, keys and values, before the convolution.
    qkv: Value,
    /// What gates the result.
    z: Value,
    /// What says how much of a state is made anew.
    b: Value,
    /// What says how much of it is kept.
    a: Value,
}

impl LayerBuilder<'_> {
    /// What the layer makes of `x`, and its new states.
    pub fn delta(
        &mut self,
        all: &Delta,
        x: Value,
        (states, batch): ([Value; 2], Value),
    ) -> Result<(Value, [Value; 2]), Diagnostic> {
        let &Delta { key_heads, heads, key_dim, value_dim, .. } = all;
        let path = format!("{}.linear_attn", self.path);
        let Projected { qkv, z, b, a } = self.projected(all, &path, x)?;
        self.b.at(format!("{path}.conv1d"));
        let weight = self.conv_weight(all, &path)?;
        let mixed = self.b.push(Op::Conv {}, &[states[0], qkv, weight, batch])?;
        let conv = Value { out: 1, ..mixed };
        self.b.at(&path);
        let mixed = self.b.map(Elementwise::Silu, &[mixed])?;
        let mut part = |start, heads: usize, width| {
            let part = self.b.push(Op::Slice { axis: 1, start, len: heads * width }, &[mixed])?;
            self.b.heads(part, heads, width)
        };
        let (q, k) = (part(0, key_heads, key_dim)?, part(all.key_rows(), key_heads, key_dim)?);
        let v = part(2 * all.key_rows(), heads, value_dim)?;
        let beta = self.b.map(Elementwise::Sigmoid, &[b])?;
        let [bias, log] =
            ["dt_bias", "A_log"].map(|name| self.b.weight(format!("{path}.{name}"), DType::F32, &[heads]));
        let a = self.b.push(Op::Cast { to: DType::F32 }, &[a])?;
        let g = self.b.map(Elementwise::Decay, &[a, bias, log])?;
        let made = self.b.push(Op::DeltaRule { eps: UNIT_EPS }, &[states[1], q, k, v, g, beta, batch])?;
        let out = self.gated_norm(all, &path, (made, z))?;
        let out = self.sum((out, None), "linear_attn.out_proj", all.value_rows(), false)?;
        Ok((out, [conv, Value { out: 1, ..made }]))
    }

    /// The norm of each head, whose weight is kept as it is, times the gate.
    fn gated_norm(&mut self, all: &Delta, path: &str, (x, gate): (Value, Value)) -> Made {
        let path = format!("{path}.norm");
        self.b.at(&path);
        let weight = self.b.weight(format!("{path}.weight"), self.config.dtype, &[all.value_dim]);
        let normed = self.b.rms_norm(x, weight, self.config.eps)?;
        let gate = self.b.heads(gate, all.heads, all.value_dim)?;
        let gate = self.b.map(Elementwise::Silu, &[gate])?;
        let gated = self.b.map(Elementwise::Mul, &[gate, normed])?;
        self.b.flat(gated, all.value_rows())
    }

    /// The weight of the convolution: a row for each token, oldest first.
    fn conv_weight(&mut self, all: &Delta, path: &str) -> Made {
        let (channels, tokens) = (all.channels(), all.conv);
        let weight = self.b.weight(format!("{path}.conv1d.weight"), self.config.dtype, &[channels, 1, tokens]);
        let weight = self.b.push(Op::View { shape: Shape::fixed(&[channels, tokens]) }, &[weight])?;
        self.b.push(Op::Transpose {}, &[weight])
    }

    fn projected(&mut self, all: &Delta, path: &str, x: Value) -> Result<Projected, Diagnostic> {
        let (config, hidden) = (self.config, self.config.hidden);
        let &Delta { key_heads, heads, key_dim, value_dim, .. } = all;
        let mut read = |name: &str, rows| Factor::read(self.b, config, &format!("{path}.{name}"), [rows, hidden]);
        let [qkv, z, b, a] = match all.stored {
            StoredDelta::Apart => [
                read("in_proj_qkv", all.channels())?,
                read("in_proj_z", all.value_rows())?,
                read("in_proj_b", heads)?,
                read("in_proj_a", heads)?,
            ],
            StoredDelta::Grouped => {
                let both = read("in_proj_qkvz", all.channels() + all.value_rows())?;
                let gates = read("in_proj_ba", 2 * heads)?;
                // Of each head of keys: a query, a key, its values, and their gates.
                let shared = heads / key_heads;
                let group = 2 * key_dim + 2 * shared * value_dim;
                let of = |start: usize, len: usize, group: usize| {
                    (0..key_heads).map(move |head| (head * group + start, len)).collect::<Vec<_>>()
                };
                let (values, width) = (2 * key_dim, shared * value_dim);
                let parts = [of(0, key_dim, group), of(key_dim, key_dim, group), of(values, width, group)].concat();
                [
                    both.clone().pieces(self.b, &parts)?,
                    both.pieces(self.b, &of(values + width, width, group))?,
                    gates.clone().pieces(self.b, &of(0, shared, 2 * shared))?,
                    gates.pieces(self.b, &of(shared, shared, 2 * shared))?,
                ]
            }
        };
        let mut made = |factor: Factor| factor.multiply(self.b, x, config.dtype);
        Ok(Projected { qkv: made(qkv)?, z: made(z)?, b: made(b)?, a: made(a)? })
    }
}
