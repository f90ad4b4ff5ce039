//! Quantised rows as numbers in local memory, with their scales. All of them are staged at once.
use atomc_ir::{Diagnostic, Op, Value};
use inkwell::values::FloatValue;

use crate::code::{Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::gemv_bulk::codes::quantised_rows;
use crate::simt::gemm::gemv_bulk::{Ground, Shape};
use crate::simt::machine;
use crate::simt::machine::Gpu;

pub struct QuantisedRows<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    x: Value,
    /// Values that a thread makes at a time.
    lanes: usize,
    /// Columns that share a scale, where rows have several.
    group: Option<usize>,
    /// The first column of the work-group's share.
    first: Int<'c>,
    pub local: Ptr<'c>,
    /// Scales of all tokens, group by group.
    scales: Ptr<'c>,
    exchange: Ptr<'c>,
}

impl<'s, 'k, 'a, 'c> QuantisedRows<'s, 'k, 'a, 'c> {
    pub fn begin(ground: Ground<'s, 'k, 'a, 'c>) -> Option<QuantisedRows<'s, 'k, 'a, 'c>> {
        let Ground { contraction, shape, run, .. } = ground;
        let c = contraction.matrix.c;
        let (x, group) = quantised_rows(contraction.parts.kernel.rows.graph)?;
        let layout = shape.form.codes()?.rows?;
        Some(QuantisedRows {
            contraction,
            shape,
            x,
            lanes: layout.lanes,
            group: layout.grouped.then_some(group),
            first: run.member * shape.columns(),
            local: c.shared(shape.k_tile_bytes(), 128),
            scales: c.shared(shape.scale_groups() * 8 * shape.tiles() * 4, 16),
            exchange: machine::exchange(c, shape.threads()),
        })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// Stages all rows: one by all threads, several by a wave each.
    pub fn stage(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let rows = &self.contraction.parts.kernel.rows;
        c.set_lanes(self.lanes);
        if shape.tokens == 1 {
            rows.set_team(c.group_team(shape.threads(), self.exchange));
            return self.row(c.int(0), c.thread(), shape.threads());
        }
        rows.set_team(c.lanes_team(c.lane_index(), c.simt.wave));
        c.repeat(c.wave_index(), shape.tokens, shape.waves(), |token| self.row(token, c.lane_index(), c.simt.wave))
    }

    fn store(&self, token: Int<'c>, near: Int<'c>, v: Vector<'c>) {
        let (c, shape, m) = (self.code(), self.shape, &self.contraction.matrix);
        let to = near / m.vec16() * shape.vec16_bytes() + token * shape.token_bytes();
        c.store_floats(c.at(self.local, to + near % m.vec16() * m.dtype.size()), v, m.dtype);
    }

    fn store_scale(&self, token: Int<'c>, group: Int<'c>, scale: FloatValue<'c>) {
        let c = self.code();
        let at = group * (8 * self.shape.tiles()) + token;
        c.store(c.at(self.scales, at * 4), scale, 4);
    }

    /// Quantises a row. Each member of a team makes every `team`-th vector.
    fn row(&self, token: Int<'c>, index: Int<'c>, team: usize) -> Result<(), Diagnostic> {
        let (c, rows, x) = (self.code(), &self.contraction.parts.kernel.rows, self.x);
        let is_made = matches!(rows.graph.op(x.node), Op::Quantise { .. });
        rows.forget();
        rows.prepare(x, token, None)?;
        let lanes = c.lanes();
        let columns = self.shape.columns();
        let all = columns.next_multiple_of(32 * lanes);
        c.repeat(index * lanes, all, team * lanes, |near| self.vector(token, near, is_made))?;
        if self.group.is_none() {
            let scale = rows.scale(x, token)?;
            c.when(c.equal(index, 0), || self.store_scale(token, c.int(0), scale));
        }
        rows.forget();
        Ok(())
    }

    /// A vector of a row. All lanes take part in finding the largest value of a group; some of them
    /// have no column.
    fn vector(&self, token: Int<'c>, near: Int<'c>, is_made: bool) -> Result<(), Diagnostic> {
        let (c, rows, x) = (self.code(), &self.contraction.parts.kernel.rows, self.x);
        let (columns, lanes) = (self.shape.columns(), c.lanes());
        let (safe, is_there) = (c.smaller(near, columns - lanes), c.less(near, columns));
        let at = At { row: token, head: None, col: Col::Var(self.first + safe) };
        let Some(group) = self.group else {
            let v = rows.codes(x, at)?;
            c.when(is_there, || self.store(token, safe, v));
            return Ok(());
        };
        let number = safe / group;
        let (scale, v) = if is_made {
            let v = rows.eval(rows.graph.operands(x.node)[0], at)?;
            let scale = rows.scale_of_size(x, c.largest_of(rows.size_of(v), group / lanes))?;
            let v = rows.coded_by(v, &scale)?;
            (scale, v)
        } else {
            let scale = rows.group_of(x, token, self.first / group + number)?;
            let v = rows.codes_by(x, at, &scale)?;
            (scale, v)
        };
        c.when(is_there, || self.store(token, safe, v));
        c.when(c.equal(near % group, 0) & is_there, || self.store_scale(token, number, scale.scale()));
        Ok(())
    }

    /// The factor of a token's sums, if it is the same for all of them.
    pub fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        let c = self.code();
        let load = || c.load(c.cx.f32_type(), c.at(self.scales, token * 4), 4).into_float_value();
        self.group.is_none().then(load)
    }

    /// The scales of the lane's two tokens of a tile, for a group of columns.
    pub fn of_tile(&self, tile: usize, group: Int<'c>) -> Option<[FloatValue<'c>; 2]> {
        let c = self.code();
        self.group?;
        let at = group * (8 * self.shape.tiles()) + (c.lane_index() % 4 * 2 + 8 * tile);
        let both = c.load_vector(c.cx.f32_type(), 2, c.at(self.scales, at * 4), 8);
        Some([0, 1].map(|i| c.lane(both, i).into_float_value()))
    }
}
