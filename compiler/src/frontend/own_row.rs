//! The graph of what a layer adds for a row of its own. All ranks do all of it.
use atomc_config::{Gate, OwnRow};
use atomc_ir::{Diagnostic, Op, Value};

use super::layer::{Given, Kind, LayerBuilder, Left, Made, OfLayers, Rows, norm};

impl Kind for OwnRow {
    fn share(&self, _ranks: usize) -> Result<OwnRow, String> {
        Ok(self.clone())
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let &OwnRow { width, activation } = self;
        let all = given.own_rows.ok_or_else(|| {
            Diagnostic::new("config::own-rows", "layers with rows of their own, in a model without such rows")
        })?;
        let own = builder.own_row(width, all)?;
        let gate = builder.rows(x, Rows::all("per_layer_input_gate", width), 1, false)?;
        builder.b.at(builder.path.clone());
        let inner = builder.through(Gate::Plain(activation), [gate, own])?;
        let hidden = builder.config.hidden;
        Ok((builder.rows(inner, Rows::all("per_layer_projection", hidden), 1, false)?, vec![]))
    }
}

impl LayerBuilder<'_> {
    /// The row of this layer's own: that of a token's id, plus the norm of what embeddings give.
    fn own_row(&mut self, width: usize, OfLayers { of_ids, of_rows }: OfLayers) -> Made {
        let path = format!("{}.per_layer_projection_norm", self.config.path);
        self.b.at(&path);
        let part = Op::Slice { axis: 1, start: self.index * width, len: width };
        let [of_id, of_row] = [self.b.push(part.clone(), &[of_ids])?, self.b.push(part, &[of_rows])?];
        let of_row = self.b.scale(of_row, (self.config.hidden as f64).powf(-0.5))?;
        let of_row = norm(self.b, self.config, of_row, &path, width)?;
        let both = self.b.add(of_row, of_id)?;
        self.b.scale(both, 0.5f64.sqrt())
    }
}
