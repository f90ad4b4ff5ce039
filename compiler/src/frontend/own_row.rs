//! The graph of what a layer adds for a row of its own. All ranks do all of it.
use atomc_config::{Gate, OwnRow};
use atomc_ir::{Diagnostic, Op, Value};

use super::layer::{Given, Kind, LayerBuilder, Left, Rows};

impl Kind for OwnRow {
    fn share(&self, _ranks: usize) -> Result<OwnRow, String> {
        Ok(self.clone())
    }

    fn build(&self, builder: &mut LayerBuilder, x: Value, given: Given) -> Left {
        let &OwnRow { width, activation } = self;
        let gate = builder.rows(x, Rows::all("per_layer_input_gate", width), 1, false)?;
        builder.b.at(builder.path.clone());
        let rows = given.own_rows.ok_or_else(|| {
            Diagnostic::new("config::own-rows", "a layer with a row of its own, in a model without such rows")
        })?;
        let own = builder.b.push(Op::Slice { axis: 1, start: builder.index * width, len: width }, &[rows])?;
        let inner = builder.through(Gate::Plain(activation), [gate, own])?;
        let hidden = builder.config.hidden;
        Ok((builder.rows(inner, Rows::all("per_layer_projection", hidden), 1, false)?, vec![]))
    }
}
