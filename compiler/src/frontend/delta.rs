//! The graph of a layer's recurrent state: a short convolution, then the gated delta rule; and how
//! ranks share it out: heads of keys, each with the heads of values that see it.
use atomc_config::{ByChannel, Delta, Product, StoredDelta, StoredLog};
use atomc_ir::{DType, Diagnostic, Elementwise, Number, Op, SlotsType, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, shard};
use super::product::Factor;

/// The constant that is added to the sum of the squares of a query or key before it is divided by
/// the root, as transformers' `l2norm` and FLA have it.
const UNIT_EPS: f64 = 1e-6;

impl Kind for Delta {
    fn share(&self, ranks: usize) -> Result<Delta, String> {
        let Delta { key_heads, heads, .. } = *self;
        match key_heads.is_multiple_of(ranks) {
            true => Ok(Delta { key_heads: key_heads / ranks, heads: heads / ranks, ..self.clone() }),
            false => Err(format!("{key_heads} heads of keys of a layer with a recurrent state")),
        }
    }

    /// That of the convolution, then that of the delta rule.
    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let conv = SlotsType::new(config.dtype, vec![self.conv - 1, self.channels()]);
        let delta = SlotsType::new(DType::F32, vec![self.heads, self.key_dim, self.value_dim]);
        vec![(format!("conv{index}"), Type::Slots(conv)), (format!("delta{index}"), Type::Slots(delta))]
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let states = given.kept()?;
        let (made, states) = builder.delta(self, x, (states, given.batch))?;
        Ok((made, states.to_vec()))
    }
}

/// What the projections of a token are, for a rank.
struct Projected {
    /// Queries, keys and values, before the convolution.
    qkv: Value,
    /// What gates the result.
    z: Value,
    /// What says how much of a state is made anew.
    b: Value,
    /// The input of the decay.
    a: Value,
}

/// How decays of channels are stored, where each element of a key has its own.
fn channels(all: &Delta) -> Option<ByChannel> {
    match all.stored {
        StoredDelta::ByChannel(channels) => Some(channels),
        StoredDelta::Grouped | StoredDelta::Apart => None,
    }
}

/// Rows of one kind in a weight: `len` for each head of keys, `step` from one head to the next.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    len: usize,
    step: usize,
}

/// Queries, keys and values where each kind has its rows together.
fn apart(all: &Delta) -> [Run; 3] {
    let (keys, values) = (all.key_dim, all.value_rows() / all.key_heads);
    let kind = |start, len| Run { start, len, step: len };
    [kind(0, keys), kind(all.key_rows(), keys), kind(2 * all.key_rows(), values)]
}

/// Rows of these kinds in the order of ranks. Each rank has them kind by kind, head by head.
fn by_rank(all: &Delta, ranks: usize, kinds: &[Run]) -> Vec<(usize, usize)> {
    let each = all.key_heads / ranks;
    let of = |rank: usize, kind: Run| {
        (rank * each..(rank + 1) * each).map(move |head| (kind.start + head * kind.step, kind.len))
    };
    (0..ranks).flat_map(|rank| kinds.iter().flat_map(move |&kind| of(rank, kind))).collect()
}

impl LayerBuilder<'_> {
    /// What the layer makes of `x`, and its new states: of the rank's heads.
    fn delta(
        &mut self,
        all: &Delta,
        x: Value,
        (states, batch): ([Value; 2], Value),
    ) -> Result<(Value, [Value; 2]), Diagnostic> {
        let ranks = self.part.ranks;
        let own = &Delta { key_heads: all.key_heads / ranks, heads: all.heads / ranks, ..all.clone() };
        let channels = channels(all);
        let module = channels.map_or("linear_attn", |channels| channels.module);
        let path = format!("{}.{module}", self.path);
        let Projected { qkv, z, b, a } = self.projected(all, &path, x)?;
        let weight = self.taps_of_kinds(all)?;
        let mixed = self.b.push(Op::Conv {}, &[states[0], qkv, weight, batch])?;
        let conv = Value { out: 1, ..mixed };
        self.b.at(&path);
        let mixed = self.b.map(Elementwise::Silu, &[mixed])?;
        let &Delta { key_heads, heads, key_dim, value_dim, .. } = own;
        let mut part = |start, heads: usize, width| {
            let part = self.b.push(Op::Slice { axis: 1, start, len: heads * width }, &[mixed])?;
            self.b.heads(part, heads, width)
        };
        let (q, k) = (part(0, key_heads, key_dim)?, part(own.key_rows(), key_heads, key_dim)?);
        let v = part(2 * own.key_rows(), heads, value_dim)?;
        let beta = self.b.map(Elementwise::Sigmoid, &[b])?;
        let g = self.decays(all, &path, a)?;
        let made = self.b.push(Op::DeltaRule { eps: UNIT_EPS }, &[states[1], q, k, v, g, beta, batch])?;
        let (out, outer) = match channels {
            Some(channels) => (self.logistic_norm(own, &path, (made, z))?, channels.outer),
            None => (self.gated_norm(own, &path, (made, z))?, "out_proj"),
        };
        let out = self.sum((out, None), &format!("{module}.{outer}"), all.value_rows(), false)?;
        Ok((out, [conv, Value { out: 1, ..made }]))
    }

    /// The weight of the convolution, of which a checkpoint may have a part for each kind of rows.
    fn taps_of_kinds(&mut self, all: &Delta) -> Made {
        let Some(ByChannel { module, .. }) = channels(all) else {
            let order = by_rank(all, self.part.ranks, &apart(all));
            return self.taps("linear_attn.conv1d", [all.channels(), all.conv], &order);
        };
        let rows = all.value_rows();
        let mut of = |kind| self.taps(&format!("{module}.{kind}_conv1d"), [rows, all.conv], &[(0, rows)]);
        let taps = [of("q")?, of("k")?, of("v")?];
        self.b.push(Op::Concat { axis: 1 }, &taps)
    }

    /// The logarithms of decays: of each head, or of each element of a head's key.
    fn decays(&mut self, all: &Delta, path: &str, a: Value) -> Made {
        let (heads, ranks) = (all.heads, self.part.ranks);
        let channels = channels(all);
        let rows = if channels.is_some() { all.key_rows() } else { heads };
        let bias = self.b.weight(format!("{path}.dt_bias"), DType::F32, &[rows]);
        let bias = shard(self.b, bias, 0, ranks)?;
        let name = format!("{path}.A_log");
        let log = match channels {
            Some(ByChannel { log: StoredLog::FourAxes, .. }) => {
                let stored = self.b.weight(name, DType::F32, &[1, 1, heads, 1]);
                self.b.push(Op::View { shape: vec![heads] }, &[stored])?
            }
            Some(ByChannel { log: StoredLog::FirstOfWidth, .. }) if all.key_dim > heads => {
                let stored = self.b.weight(name, DType::F32, &[all.key_dim]);
                self.b.push(Op::Slice { axis: 0, start: 0, len: heads }, &[stored])?
            }
            _ => self.b.weight(name, DType::F32, &[heads]),
        };
        let mut log = shard(self.b, log, 0, ranks)?;
        if channels.is_some() {
            log = self.b.push(Op::Repeat { axis: 0, times: all.key_dim }, &[log])?;
        }
        let a = self.b.push(Op::Cast { to: DType::F32 }, &[a])?;
        let decay = match channels.and_then(|channels| channels.least) {
            Some(least) => Elementwise::DecayBounded { least: Number(least) },
            None => Elementwise::Decay,
        };
        self.b.map(decay, &[a, bias, log])
    }

    /// The norm of each head times the logistic function of the gate, rounded once.
    fn logistic_norm(&mut self, own: &Delta, path: &str, (x, gate): (Value, Value)) -> Made {
        self.b.at(format!("{path}.o_norm"));
        let weight = self.b.weight(format!("{path}.o_norm.weight"), DType::F32, &[own.value_dim]);
        let gate = self.b.heads(gate, own.heads, own.value_dim)?;
        let [x, gate] = [x, gate].map(|value| self.b.push(Op::Cast { to: DType::F32 }, &[value]));
        let normed = self.b.rms_norm(x?, weight, self.config.eps)?;
        let gate = self.b.map(Elementwise::Sigmoid, &[gate?])?;
        let gated = self.b.map(Elementwise::Mul, &[normed, gate])?;
        let gated = self.b.push(Op::Cast { to: self.config.dtype }, &[gated])?;
        self.b.flat(gated, own.value_rows())
    }

    /// The norm of each head, with its weight as it is stored, times the gate.
    fn gated_norm(&mut self, own: &Delta, path: &str, (x, gate): (Value, Value)) -> Made {
        let path = format!("{path}.norm");
        self.b.at(&path);
        let weight = self.b.weight(format!("{path}.weight"), self.config.dtype, &[own.value_dim]);
        let normed = self.b.rms_norm(x, weight, self.config.eps)?;
        let gate = self.b.heads(gate, own.heads, own.value_dim)?;
        let gate = self.b.map(Elementwise::Silu, &[gate])?;
        let gated = self.b.map(Elementwise::Mul, &[gate, normed])?;
        self.b.flat(gated, own.value_rows())
    }

    fn projected(&mut self, all: &Delta, path: &str, x: Value) -> Result<Projected, Diagnostic> {
        let (config, hidden, ranks) = (self.config, self.config.hidden, self.part.ranks);
        let &Delta { key_heads, heads, key_dim, .. } = all;
        let mut read = |name: &str, rows| Factor::read(self.b, config, &format!("{path}.{name}"), [rows, hidden]);
        let [qkv, z, b, a] = match all.stored {
            StoredDelta::ByChannel(channels) => return self.projected_by_channel(all, (path, channels), x),
            StoredDelta::Apart => {
                let qkv = read("in_proj_qkv", all.channels())?;
                let [z, b, a] =
                    [read("in_proj_z", all.value_rows())?, read("in_proj_b", heads)?, read("in_proj_a", heads)?];
                [qkv.pieces(self.b, &by_rank(all, ranks, &apart(all)))?, z, b, a]
            }
            StoredDelta::Grouped => {
                let both = read("in_proj_qkvz", all.channels() + all.value_rows())?;
                let gates = read("in_proj_ba", 2 * heads)?;
                // The checkpoint has for each head of keys: a query, a key, its values, and their
                // gates.
                let (shared, values) = (heads / key_heads, all.value_rows() / key_heads);
                let rows = |start, len| Run { start, len, step: 2 * (key_dim + values) };
                let gate = |start| Run { start, len: shared, step: 2 * shared };
                let of = |kinds: &[Run]| by_rank(all, ranks, kinds);
                let qkv = of(&[rows(0, key_dim), rows(key_dim, key_dim), rows(2 * key_dim, values)]);
                [
                    both.clone().pieces(self.b, &qkv)?,
                    both.pieces(self.b, &of(&[rows(2 * key_dim + values, values)]))?,
                    gates.clone().pieces(self.b, &of(&[gate(0)]))?,
                    gates.pieces(self.b, &of(&[gate(shared)]))?,
                ]
            }
        };
        let mut made = |all: Factor| all.shard(self.b, 0, ranks)?.multiply(self.b, x, config.dtype);
        Ok(Projected { qkv: made(qkv)?, z: made(z)?, b: made(b)?, a: made(a)? })
    }

    /// Each kind of rows by a product of its own; the gate, and the input of the decay, perhaps by
    /// two.
    fn projected_by_channel(
        &mut self,
        all: &Delta,
        (path, channels): (&str, ByChannel),
        x: Value,
    ) -> Result<Projected, Diagnostic> {
        let mut product = |name: &str, rows| self.product(&format!("{path}.{name}_proj"), rows, x);
        let rows = all.value_rows();
        let ([q, k, v], b) =
            ([product("q", rows)?, product("k", rows)?, product("v", rows)?], product("b", all.heads)?);
        self.b.at(path);
        let qk = self.b.push(Op::Beside {}, &[q, k])?;
        let qkv = self.b.push(Op::Beside {}, &[qk, v])?;
        let mut row = |name, by| match by {
            Product::Whole => self.product(&format!("{path}.{name}_proj"), rows, x),
            Product::Short => self.two_products(all, path, name, x),
        };
        let [z, a] = [row("g", channels.gate)?, row("f", channels.decay)?];
        Ok(Projected { qkv, z, b, a })
    }

    /// The rank's rows of a product with the hidden row.
    fn product(&mut self, module: &str, rows: usize, x: Value) -> Made {
        let (config, hidden) = (self.config, self.config.hidden);
        let all = Factor::read(self.b, config, module, [rows, hidden])?;
        all.shard(self.b, 0, self.part.ranks)?.multiply(self.b, x, config.dtype)
    }

    /// A row of values, by way of a short one that all ranks have.
    fn two_products(&mut self, all: &Delta, path: &str, name: &str, x: Value) -> Made {
        let (config, hidden) = (self.config, self.config.hidden);
        let short = Factor::read(self.b, config, &format!("{path}.{name}_a_proj"), [all.key_dim, hidden])?;
        let short = short.multiply(self.b, x, config.dtype)?;
        let long = [all.value_rows(), all.key_dim];
        let long = Factor::read(self.b, config, &format!("{path}.{name}_b_proj"), long)?;
        long.shard(self.b, 0, self.part.ranks)?.multiply(self.b, short, config.dtype)
    }
}
