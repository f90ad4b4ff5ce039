//! The main loop: four waves multiply slots of the weight by stages of rows.
use atomc_ir::{DType, Diagnostic};
use inkwell::values::FloatValue;

use super::Group;
use super::scheduler::Part;
use super::shape::{HALF, PANELS, ROW};
use crate::code::{Any, Int};
use crate::simt::machine::warpgroup::TileForm;

/// Products along a slot, each of 32 bytes.
const PRODUCTS: usize = ROW / 32;

impl<'c> Group<'_, '_, '_, 'c> {
    /// The sums of a part of a tile: those of upper rows, then those of lower ones.
    pub(super) fn main_loop(&self, part: Part<'c>) -> Vec<Any<'c>> {
        if let Some(layout) = self.shape.codes {
            return self.codes_main_loop(part, layout);
        }
        if self.shape.scales_each_tile() {
            return self.scaled_main_loop(part);
        }
        let (c, shape) = (self.code(), self.shape);
        let each = shape.columns / 2;
        let zero = vec![c.zero_sum(self.multiplied()); shape.sums()];
        let sums = c.carry((part.first, part.end, 1), zero, |turn, sums| {
            self.weights.wait_full(c, turn);
            self.rows.wait_full(c, turn);
            let mut all = Vec::new();
            for (i, sums) in sums.chunks(each).enumerate() {
                all.extend(self.multiply(turn, i, sums));
                if i == 0 {
                    let before = turn - 1;
                    let is_over = self.is_leader() & c.less(part.first, turn);
                    self.weights.release(c, is_over, before);
                    self.rows.release(c, is_over, before);
                }
            }
            all
        });
        let sums = c.mma_wait(&sums, 0);
        self.weights.release(c, self.is_leader(), part.end - 1);
        self.rows.release(c, self.is_leader(), part.end - 1);
        c.sums_as_f32(sums)
    }

    /// The sums of a part of a tile that several matrices make: each one's times the weight of the
    /// choice.
    pub(super) fn combined_sums(&self, part: Part<'c>) -> Result<Vec<Any<'c>>, Diagnostic> {
        let (c, parts, shape) = (self.code(), &self.contraction.parts, self.shape);
        let none = vec![c.zero_sum(DType::F32); shape.sums()];
        let token = part.number / shape.tiles;
        self.each_choice(part, none, |part, all| {
            let sums = self.main_loop(part);
            let weight = parts.weight_of(token, part.choice)?;
            let is_none = c.less(self.own_tile(part).row(c, c.int(0)), 0);
            let weight = c.pick(is_none, c.number(0.0), weight).into_float_value();
            Ok(c.add_scaled(&all, &sums, |_| weight))
        })
    }

    /// Adds the products of a slot's upper or lower rows.
    fn multiply(&self, turn: Int<'c>, half: usize, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        self.code().mma_async(sums, self.multiplied(), self.operands(turn, half), PRODUCTS)
    }

    /// These products alone.
    fn multiply_new(&self, turn: Int<'c>, half: usize) -> Vec<Any<'c>> {
        let sums = self.shape.columns / 2;
        self.code().mma_async_new(sums, self.multiplied(), self.operands(turn, half), PRODUCTS)
    }

    fn operands(&self, turn: Int<'c>, half: usize) -> ((Int<'c>, TileForm), (Int<'c>, TileForm)) {
        let blocks = TileForm::Blocks { along: 2 * HALF, down: self.shape.chunk() };
        ((self.weights.at(turn) + half * HALF, blocks), (self.rows.at(turn), TileForm::Swizzled))
    }

    fn multiplied(&self) -> DType {
        self.shape.bytes.map_or(self.contraction.matrix.dtype, |bytes| bytes.dtype)
    }

    /// The main loop where sums of each slot are scaled before they are added up. The weight's
    /// scales of the next slot are in flight meanwhile.
    fn scaled_main_loop(&self, part: Part<'c>) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let none = vec![c.zero_sum(DType::F32); shape.sums()];
        let begin = (self.weight_scales(part, part.first), none);
        let (_, sums) = c.carry((part.first, part.end, 1), begin, |turn, (scales, sums)| {
            let next = self.weight_scales(part, c.smaller(turn + 1, part.end - 1));
            self.weights.wait_full(c, turn);
            self.rows.wait_full(c, turn);
            let own: Vec<Any> = (0..2).flat_map(|half| self.multiply_new(turn, half)).collect();
            let of_rows = self.row_scales(turn);
            let own = c.sums_as_f32(c.mma_wait(&own, 0));
            // All waves have read the scales and rows.
            self.sync_consumers();
            self.weights.release(c, self.is_leader(), turn);
            self.rows.release(c, self.is_leader(), turn);
            (next, self.add_scaled(&scales, &of_rows, &own, &sums))
        });
        sums
    }

    /// The weight's scales of a slot for the wave's two panels, where a row has several.
    fn weight_scales(&self, part: Part<'c>, turn: Int<'c>) -> Vec<Any<'c>> {
        let (c, shape) = (self.code(), self.shape);
        let Some(codes) = self.codes.as_ref().filter(|codes| !codes.encoding.is_row_wise()) else { return vec![] };
        let along = self.slot(turn).along;
        let of_panel = |i: usize| {
            let panel = c.wave_index() * (PANELS / 4) + i;
            let tile = self.own_tile(part);
            let of_result = self.contraction.made(tile.panel() + panel % shape.each());
            let piece = self.contraction.first_panel(panel / shape.each());
            let number = tile.weight_of(self.contraction, [of_result, piece]);
            c.lane(codes.scales(c, (number, c.int(0)), 1, Some(along)), 0)
        };
        (0..PANELS / 4).map(of_panel).collect()
    }

    /// The rows' scales of a slot for the lane's tokens, where a row has several: two of each 8.
    fn row_scales(&self, turn: Int<'c>) -> Vec<FloatValue<'c>> {
        let (c, shape) = (self.code(), self.shape);
        if !self.row_groups() {
            return vec![];
        }
        let f32 = c.cx.f32_type();
        let two = |eight: usize| {
            let token = c.lane_index() % 4 * 2 + 8 * eight;
            let both = c.load_vector(f32, 2, self.row_scale(turn, token), 8);
            [0, 1].map(|i| c.lane(both, i).into_float_value())
        };
        (0..shape.columns / 8).flat_map(two).collect()
    }

    /// Sums of a slot, scaled, and those before.
    fn add_scaled(
        &self,
        of_weight: &[Any<'c>],
        of_rows: &[FloatValue<'c>],
        own: &[Any<'c>],
        sums: &[Any<'c>],
    ) -> Vec<Any<'c>> {
        let (c, half) = (self.code(), self.shape.columns / 2);
        let factor = |i: usize| {
            // In each half: two tokens of 8 of the first panel, then of the second.
            let (panel, token) = (i % half / 2 % 2, i % half / 4 * 2 + i % 2);
            let weight = of_weight.get(panel).map(|scale| scale.into_float_value());
            match (weight, of_rows.get(token)) {
                (Some(a), Some(&b)) => c.b.build_float_mul(a, b, "").expect("floats"),
                (a, b) => a.or(b.copied()).unwrap_or_else(|| c.number(1.0)),
            }
        };
        c.add_scaled(sums, own, factor)
    }
}
