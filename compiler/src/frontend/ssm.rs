//! The graph of a layer with the state space of Mamba-2: a short convolution, a linear recurrence,
//! a gate and a norm; and how ranks share it out: groups, each with its heads.
use atomc_config::{GroupNorm, Ssm};
use atomc_ir::{DType, Diagnostic, Elementwise, Op, SlotsType, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, shard};
use super::product::{Factor, joined};

impl Kind for Ssm {
    fn share(&self, ranks: usize) -> Result<Ssm, String> {
        let &Ssm { groups, heads, .. } = self;
        match groups.is_multiple_of(ranks) {
            true => Ok(Ssm { groups: groups / ranks, heads: heads / ranks, ..self.clone() }),
            false => Err(format!("{groups} groups of a state space, each with a norm")),
        }
    }

    /// That of the convolution, then that of the recurrence.
    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let conv = SlotsType::new(config.dtype, vec![self.conv - 1, self.channels()]);
        let scan = SlotsType::new(DType::F32, vec![self.heads, self.state, self.head_dim]);
        vec![(format!("conv{index}"), Type::Slots(conv)), (format!("scan{index}"), Type::Slots(scan))]
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let states = given.kept()?;
        let (made, states) = builder.state_space(self, x, (states, given.batch))?;
        Ok((made, states.to_vec()))
    }
}

/// Rows in the order of ranks, of parts that ranks share out: each part has a first row, and rows.
fn by_rank(ranks: usize, parts: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let of = |rank: usize| parts.iter().map(move |&(start, len)| (start + rank * (len / ranks), len / ranks));
    (0..ranks).flat_map(of).collect()
}

/// The parts of the convolution's channels: values, what is written, what is read.
fn channels(all: &Ssm, start: usize) -> [(usize, usize); 3] {
    let (values, rows) = (all.width(), all.groups * all.state);
    [(start, values), (start + values, rows), (start + values + rows, rows)]
}

impl LayerBuilder<'_> {
    /// What the layer makes of `x`, and its new states: of the rank's groups.
    fn state_space(
        &mut self,
        all: &Ssm,
        x: Value,
        (states, batch): ([Value; 2], Value),
    ) -> Result<(Value, [Value; 2]), Diagnostic> {
        let ranks = self.part.ranks;
        let own = &Ssm { groups: all.groups / ranks, heads: all.heads / ranks, ..all.clone() };
        let path = format!("{}.{}", self.path, all.module);
        let width = all.width();
        let [of_gates, of_channels @ .., of_steps] = all.factors;
        let gate = self.inner_part(all, x, &[(0, width)], of_gates)?;
        let mixed = self.rows_of_channels(all, x, of_channels)?;
        let steps = self.inner_part(all, x, &[(width + all.channels(), all.heads)], of_steps)?;
        let (mixed, conv) = self.after_conv(all, mixed, (states[0], batch))?;
        self.b.at(&path);
        let &Ssm { heads, head_dim, groups, state, .. } = own;
        let mut part = |start, heads: usize, width| {
            let part = self.b.push(Op::Slice { axis: 1, start, len: heads * width }, &[mixed])?;
            self.b.heads(part, heads, width)
        };
        let (v, k) = (part(0, heads, head_dim)?, part(own.width(), groups, state)?);
        let q = part(own.width() + groups * state, groups, state)?;
        let mut of_heads = |name| {
            let every = self.b.weight(format!("{path}.{name}"), DType::F32, &[all.heads]);
            shard(self.b, every, 0, ranks)
        };
        let (bias, log, skip) = (of_heads("dt_bias")?, of_heads("A_log")?, of_heads("D")?);
        let steps = self.b.push(Op::Cast { to: DType::F32 }, &[steps])?;
        let g = self.b.map(Elementwise::Decay, &[steps, bias, log])?;
        let beta = self.b.map(Elementwise::Softplus, &[steps, bias])?;
        let made = self.b.push(Op::Scan {}, &[states[1], q, k, v, g, beta, skip, batch])?;
        let out = self.gated_groups(all, &path, (made, gate))?;
        let out = self.sum((out, None), &format!("{}.out_proj", all.module), width, all.bias)?;
        Ok((out, [conv, Value { out: 1, ..made }]))
    }

    /// The rank's rows of the convolution's channels. Kinds with factors of their own are made
    /// apart.
    fn rows_of_channels(&mut self, all: &Ssm, x: Value, factors: [f64; 3]) -> Made {
        let kinds = channels(all, all.width());
        if factors[1..] == [factors[0]; 2] {
            return self.inner_part(all, x, &kinds, factors[0]);
        }
        let mut of = |kind: usize| self.inner_part(all, x, &kinds[kind..=kind], factors[kind]);
        let [values, written, read] = [of(0)?, of(1)?, of(2)?];
        let both = self.b.push(Op::Beside {}, &[values, written])?;
        self.b.push(Op::Beside {}, &[both, read])
    }

    /// The rank's rows of some parts of the inner projection, times a factor.
    fn inner_part(&mut self, all: &Ssm, x: Value, parts: &[(usize, usize)], factor: f64) -> Made {
        let (config, ranks, rows) = (self.config, self.part.ranks, by_rank(self.part.ranks, parts));
        let module = format!("{}.{}.in_proj", self.path, all.module);
        let weight = Factor::read(self.b, config, &module, [all.projected(), config.hidden])?;
        let made = weight.pieces(self.b, &rows)?.shard(self.b, 0, ranks)?.multiply(self.b, x, config.dtype)?;
        let made = match all.bias {
            true => {
                let bias = self.b.weight(format!("{module}.bias"), config.dtype, &[all.projected()]);
                let bias = joined(self.b, bias, 0, &rows)?;
                let bias = shard(self.b, bias, 0, ranks)?;
                self.b.add(made, bias)?
            }
            false => made,
        };
        self.b.scale(made, factor)
    }

    /// The rows after the convolution and its activation, and the state that it leaves.
    fn after_conv(
        &mut self,
        all: &Ssm,
        x: Value,
        (state, batch): (Value, Value),
    ) -> Result<(Value, Value), Diagnostic> {
        let (ranks, dtype) = (self.part.ranks, self.config.dtype);
        let (count, rows) = (all.channels(), by_rank(ranks, &channels(all, 0)));
        let module = format!("{}.conv1d", all.module);
        let weight = self.taps(&module, [count, all.conv], &rows)?;
        let mut mixed = self.b.push(Op::Conv {}, &[state, x, weight, batch])?;
        let left = Value { out: 1, ..mixed };
        if all.conv_bias {
            let bias = self.b.weight(format!("{}.{module}.bias", self.path), dtype, &[count]);
            let bias = joined(self.b, bias, 0, &rows)?;
            let bias = shard(self.b, bias, 0, ranks)?;
            mixed = self.b.add(mixed, bias)?;
        }
        Ok((self.b.map(Elementwise::Silu, &[mixed])?, left))
    }

    /// Heads times their gate, and the norm of each group, if there is one.
    fn gated_groups(&mut self, all: &Ssm, path: &str, (x, gate): (Value, Value)) -> Made {
        let ranks = self.part.ranks;
        let (width, groups) = (all.width() / ranks, all.groups / ranks);
        self.b.at(format!("{path}.norm"));
        let x = self.b.flat(x, width)?;
        let mut wide = |v| {
            let v = self.b.heads(v, groups, width / groups)?;
            self.b.push(Op::Cast { to: DType::F32 }, &[v])
        };
        let (x, gate) = (wide(x)?, wide(gate)?);
        let gate = self.b.map(Elementwise::Silu, &[gate])?;
        let first = if all.norm == GroupNorm::Before { x } else { self.b.map(Elementwise::Mul, &[x, gate])? };
        let made = match all.norm {
            GroupNorm::None => first,
            norm => self.norm_of_groups(all, path, first, norm == GroupNorm::Rounded)?,
        };
        let made = match all.norm {
            GroupNorm::Rounded => return self.b.flat(made, width),
            GroupNorm::Before => self.b.map(Elementwise::Mul, &[made, gate])?,
            GroupNorm::Gated | GroupNorm::None => made,
        };
        let made = self.b.push(Op::Cast { to: self.config.dtype }, &[made])?;
        self.b.flat(made, width)
    }

    /// The norm of each group in f32, perhaps rounded before the weight.
    fn norm_of_groups(&mut self, all: &Ssm, path: &str, x: Value, rounded: bool) -> Made {
        let ranks = self.part.ranks;
        let ones = self.b.push(Op::Numbers { values: vec![1; all.width() / all.groups] }, &[])?;
        let mut normed = self.b.rms_norm(x, ones, self.config.eps)?;
        let dtype = if rounded { self.config.dtype } else { DType::F32 };
        if rounded {
            normed = self.b.push(Op::Cast { to: dtype }, &[normed])?;
        }
        let weight = self.b.weight(format!("{path}.norm.weight"), dtype, &[all.width()]);
        let weight = shard(self.b, weight, 0, ranks)?;
        self.b.map(Elementwise::Mul, &[normed, weight])
    }
}
