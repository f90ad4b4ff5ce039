//! The graph of a layer's gated MLP, and how ranks share it out: the rows between its two ends.
use atomc_config::Gated;
use atomc_ir::{Elementwise, Value};

use super::Activation;
use super::layer::{LayerBuilder, Made, Rows};

/// The sizes of one rank, or what cannot be shared out.
pub fn share(all: &Gated, ranks: usize) -> Result<Gated, String> {
    match all.intermediate.is_multiple_of(ranks) {
        true => Ok(Gated { intermediate: all.intermediate / ranks, ..all.clone() }),
        false => Err(format!("an intermediate size of {}", all.intermediate)),
    }
}

impl LayerBuilder<'_> {
    /// The MLP of `x`.
    pub fn mlp(&mut self, all: &Gated, x: Value) -> Made {
        let &Gated { intermediate, activation, bias, fused } = all;
        let rows = |module, start| match fused {
            true => Rows { module: "mlp.gate_up_proj", start, out: intermediate, of: 2 * intermediate },
            false => Rows::all(module, intermediate),
        };
        let gate = self.rows(x, rows("mlp.gate_proj", 0), self.part.ranks, bias)?;
        let up = self.rows(x, rows("mlp.up_proj", intermediate), self.part.ranks, bias)?;
        self.b.at(format!("{}.mlp", self.path));
        let gate = self.b.map(formula(activation), &[gate])?;
        let inner = self.b.map(Elementwise::Mul, &[gate, up])?;
        self.sum(inner, "mlp.down_proj", intermediate, bias)
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
