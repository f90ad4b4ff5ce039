//! The graph of a layer's gated short convolution, and how ranks share it out: channels.
use atomc_config::ShortConv;
use atomc_ir::{Diagnostic, Elementwise, Op, SlotsType, Type, Value};

use super::Config;
use super::layer::{Given, Kind, LayerBuilder, Left, Made, Rows, shard};
use super::product::joined;

impl Kind for ShortConv {
    fn share(&self, ranks: usize) -> Result<ShortConv, String> {
        match self.channels.is_multiple_of(ranks) {
            true => Ok(ShortConv { channels: self.channels / ranks, ..self.clone() }),
            false => Err(format!("{} channels of a convolution", self.channels)),
        }
    }

    fn states(&self, config: &Config, index: usize) -> Vec<(String, Type)> {
        let slots = SlotsType::new(config.dtype, vec![self.tokens - 1, self.channels]);
        vec![(format!("conv{index}"), Type::Slots(slots))]
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let [state] = given.kept()?;
        let (made, state) = builder.convolved(self, x, state, given.batch)?;
        Ok((made, vec![state]))
    }
}

impl LayerBuilder<'_> {
    /// What the layer makes of `x`, and its new state: of the rank's channels.
    fn convolved(
        &mut self,
        all: &ShortConv,
        x: Value,
        state: Value,
        batch: Value,
    ) -> Result<(Value, Value), Diagnostic> {
        let &ShortConv { channels, .. } = all;
        let ranks = self.part.ranks;
        let mut part = |number: usize| {
            let rows = Rows { module: "conv.in_proj", start: number * channels, out: channels, of: 3 * channels };
            self.rows(x, rows, ranks, false)
        };
        let [before, after, x] = [part(0)?, part(1)?, part(2)?];
        self.b.at(format!("{}.conv", self.path));
        let gated = self.b.map(Elementwise::Mul, &[before, x])?;
        let weight = self.taps("conv.conv", [channels, all.tokens], &[(0, channels)])?;
        let mixed = self.b.push(Op::Conv {}, &[state, gated, weight, batch])?;
        self.b.at(format!("{}.conv", self.path));
        let gated = self.b.map(Elementwise::Mul, &[after, mixed])?;
        Ok((self.sum((gated, None), "conv.out_proj", channels, false)?, Value { out: 1, ..mixed }))
    }

    /// The weight of a convolution: a row for each token, oldest first. `order` has its channels in
    /// the order of ranks.
    pub fn taps(&mut self, module: &str, [channels, tokens]: [usize; 2], order: &[(usize, usize)]) -> Made {
        let path = format!("{}.{module}", self.path);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.config.dtype, &[channels, 1, tokens]);
        let weight = self.b.push(Op::View { shape: vec![channels, tokens] }, &[weight])?;
        let weight = joined(self.b, weight, 0, order)?;
        let weight = shard(self.b, weight, 0, self.part.ranks)?;
        self.b.push(Op::Transpose {}, &[weight])
    }
}
