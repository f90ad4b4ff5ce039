//! The graph of a layer's gated MLP, and how ranks share it out: the rows between its two ends.
use atomc_config::{Gate, Gated};
use atomc_ir::{Elementwise, Number, Value};

use super::Activation;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, Rows};

impl Kind for Gated {
    fn share(&self, ranks: usize) -> Result<Gated, String> {
        match self.intermediate.is_multiple_of(ranks) {
            true => Ok(Gated { intermediate: self.intermediate / ranks, ..self.clone() }),
            false => Err(format!("an intermediate size of {}", self.intermediate)),
        }
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, _given: Given) -> Left {
        Ok((builder.mlp(self, x)?, vec![]))
    }
}

impl LayerBuilder<'_> {
    /// The MLP of `x`.
    pub fn mlp(&mut self, all: &Gated, x: Value) -> Made {
        let inner = self.inner(all, x)?;
        self.sum((inner, None), &outer(all), all.intermediate, all.bias)
    }

    /// The MLP of `x`, of which a rank makes a part of a sum.
    pub fn part_of_mlp(&mut self, all: &Gated, x: Value) -> Made {
        let inner = self.inner(all, x)?;
        self.part((inner, None), &outer(all), all.intermediate)
    }

    /// The inner features, which are projected back.
    fn inner(&mut self, all: &Gated, x: Value) -> Made {
        let &Gated { intermediate, gate: of, gate_scale, bias, fused, modules } = all;
        let module = modules.path;
        if let Gate::Alone(activation) = of {
            let up = format!("{module}.{}", modules.up);
            let up = self.rows(x, Rows::all(&up, intermediate), self.part.ranks, bias)?;
            self.b.at(format!("{}.{module}", self.path));
            return self.b.map(formula(activation), &[up]);
        }
        let [gate, up] = [modules.gate, modules.up].map(|name| format!("{module}.{name}"));
        let [gate, up] = match fused {
            true => {
                [0, intermediate].map(|start| Rows { module: &gate, start, out: intermediate, of: 2 * intermediate })
            }
            false => [&gate, &up].map(|module| Rows::all(module, intermediate)),
        };
        let gate = self.rows(x, gate, self.part.ranks, bias)?;
        let up = self.rows(x, up, self.part.ranks, bias)?;
        self.b.at(format!("{}.{module}", self.path));
        let gate = self.b.scale(gate, gate_scale)?;
        self.through(of, [gate, up])
    }

    /// What a gate makes of the two inner projections.
    pub fn through(&mut self, of: Gate, inner: [Value; 2]) -> Made {
        let (activation, product) = match of {
            Gate::Alone(activation) => return self.b.map(formula(activation), &inner[1..]),
            Gate::Plain(activation) => (activation, Elementwise::Mul),
            Gate::Limited { activation, limit } => (activation, Elementwise::MulLimited { limit: Number(limit) }),
            Gate::Bounded { limit } => {
                return self.b.map(Elementwise::SiluBounded { limit: Number(limit) }, &inner);
            }
            Gate::Situ { beta, linear: Some(linear) } => {
                let op = Elementwise::SituMul { beta: Number(beta), linear: Number(linear) };
                return self.b.map(op, &inner);
            }
            Gate::Situ { beta, linear: None } => {
                let gate = self.b.map(Elementwise::Situ { beta: Number(beta) }, &inner[..1])?;
                return self.b.map(Elementwise::Mul, &[gate, inner[1]]);
            }
            Gate::Clamped { alpha, limit } => {
                let op = Elementwise::SwigluClamped { alpha: Number(alpha), limit: Number(limit) };
                return self.b.map(op, &inner);
            }
        };
        let gate = self.b.map(formula(activation), &inner[..1])?;
        self.b.map(product, &[gate, inner[1]])
    }
}

/// The module of the outer projection.
fn outer(all: &Gated) -> String {
    format!("{}.{}", all.modules.path, all.modules.down)
}

/// The op of an activation.
pub fn formula(activation: Activation) -> Elementwise {
    match activation {
        Activation::Silu => Elementwise::Silu,
        Activation::Gelu => Elementwise::Gelu,
        Activation::GeluTanh => Elementwise::GeluTanh,
        Activation::QuickGelu => Elementwise::QuickGelu,
        Activation::Relu => Elementwise::Relu,
        Activation::ReluSquared => Elementwise::ReluSquared,
    }
}
