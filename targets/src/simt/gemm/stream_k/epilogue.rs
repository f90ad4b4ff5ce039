//! The epilogue: sums change threads through local memory, a round of tokens at a time, and become
//! results.
use atomc_ir::Diagnostic;

use super::scheduler::Part;
use super::shape::{PITCH, ROUND, TEAM};
use super::{Group, LANES};
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::simt::gemm::tile::Tile;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Puts the sums of a part of a tile into the result, or with those of others.
    pub(super) fn epilogue(&self, part: Part<'c>, sums: &[Any<'c>]) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        let (own, tile) = (self.own_squares(part), self.made_tile(part));
        let beside: Vec<_> =
            (0..shape.rounds()).map(|round| self.load_beside(tile, round)).collect::<Result<_, _>>()?;
        let (is_last, all) = self.combine(part, sums, own);
        let (sums, own) = all.split_at(shape.sums());
        let mut result = Ok(());
        c.when(is_last, || {
            if let (Some(own), Some(norm)) = (own.first(), &self.norm) {
                let scale = c.inverse_root(own.into_float_value(), self.width, norm.eps);
                c.when(c.less(self.thread(), shape.columns), || {
                    c.store(c.at(self.scales(), self.thread() * 4), scale, 4);
                });
            }
            for (round, beside) in beside.iter().enumerate() {
                if round > 0 {
                    self.sync_consumers();
                }
                self.exchange(round, sums);
                self.sync_consumers();
                let made = self.store_results(tile, round, beside);
                result = std::mem::replace(&mut result, Ok(())).and(made);
            }
        });
        self.sync_consumers();
        result
    }

    /// The sums of a round of a tile change threads through local memory.
    fn exchange(&self, round: usize, sums: &[Any<'c>]) {
        let (c, shape) = (self.code(), self.shape);
        let (lane, wave) = (c.lane_index(), self.wave());
        let (feature, token) = (lane / 4, lane % 4 * 2);
        for (half, sums) in sums.chunks(shape.columns / 2).enumerate() {
            for (j, &v) in sums.iter().skip(round * ROUND / 2).take(ROUND / 2).enumerate() {
                // Two tokens of 8 of the wave's first panel, then of its second.
                let panel = wave * 2 + j / 2 % 2;
                let token = token + (j / 4 * 8 + j % 2);
                let at = self.sums_at(panel, token);
                let feature = feature + 8 * half;
                c.store(c.at(at, feature * 4), v, 4);
            }
        }
    }

    fn sums_at(&self, panel: Int<'c>, token: Int<'c>) -> Ptr<'c> {
        let (c, shape) = (self.code(), self.shape);
        let row = panel * shape.columns.min(ROUND) + token;
        c.at(self.part_of_team(self.sums, shape.sums_bytes()), row * PITCH)
    }

    /// The thread's vectors of features of a round: token of the round, panel of the tile's result,
    /// and first feature of the panel.
    fn vectors(&self, round: usize) -> Vec<[Int<'c>; 3]> {
        let each = self.shape.each();
        let count = (self.shape.tokens - round * ROUND).min(ROUND) * each * 16 / LANES;
        let vector = |i: usize| {
            let item = self.thread() + i * TEAM;
            let (half, rest) = (item % 2, item / 2);
            [rest / each, rest % each, half * LANES]
        };
        (0..count.div_ceil(TEAM)).map(vector).collect()
    }

    /// Where a vector lies in the result, and whether it does.
    fn vector_at(&self, tile: Tile<'c>, round: usize, [token, panel, feature]: [Int<'c>; 3]) -> (At<'c>, Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let column = token + round * ROUND;
        let (row, panel) = (tile.row(c, tile.inside(c, column)), tile.panel() + panel);
        let is_there = tile.has(c, column) & c.less(panel, shape.panels);
        let col = panel * 16 + feature;
        (At { row, head: None, col: Col::Var(col) }, is_there)
    }

    /// Asks for what the epilogue reads beside the sums.
    fn load_beside(&self, tile: Tile<'c>, round: usize) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        c.set_lanes(LANES);
        let of = |vector: [Int<'c>; 3]| {
            let (at, _) = self.vector_at(tile, round, vector);
            let Col::Var(col) = at.col else { unreachable!("a vector has a variable column") };
            let row = if tile.may_lack_rows() { c.larger(at.row, 0) } else { at.row };
            let last = c.int(16 * shape.panels - LANES);
            self.contraction.parts.beside(At { row, head: None, col: Col::Var(c.smaller(col, last)) })
        };
        self.vectors(round).into_iter().map(of).collect()
    }

    /// Stores the results of a round of a tile.
    fn store_results(&self, tile: Tile<'c>, round: usize, beside: &[Vec<Vector<'c>>]) -> Result<(), Diagnostic> {
        let c = self.code();
        let f32 = c.cx.f32_type();
        let mut result = Ok(());
        for (vector, beside) in self.vectors(round).into_iter().zip(beside) {
            let (at, is_there) = self.vector_at(tile, round, vector);
            c.when(is_there, || {
                let [token, panel, feature] = vector;
                c.set_lanes(LANES);
                let scale = self.norm.is_some().then(|| {
                    let scale = c.load(f32, c.at(self.scales(), (token + round * ROUND) * 4), 4);
                    c.splat(scale.into_float_value())
                });
                let piece = |i: usize| {
                    let panel = panel + i * self.shape.each();
                    let p = c.at(self.sums_at(panel, token), feature * 4);
                    let sums = c.join(&[0, 16].map(|more| c.load_vector(f32, 4, c.at(p, more), 16)));
                    scale.map_or(sums, |scale| c.fmul(sums, scale))
                };
                let sums: Vec<_> = (0..self.shape.pieces).map(piece).collect();
                let sums = self.scaled(at, tile, (panel, feature), sums);
                let made = sums.and_then(|sums| self.contraction.finish_at(at, &sums, beside));
                result = std::mem::replace(&mut result, Ok(())).and(made);
            });
        }
        result
    }

    /// Sums of a token's features times the scales of quantised operands that a whole row has.
    fn scaled(
        &self,
        at: At<'c>,
        tile: Tile<'c>,
        (panel, feature): (Int<'c>, Int<'c>),
        mut sums: Vec<Vector<'c>>,
    ) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let Some(codes) = &self.codes else { return Ok(sums) };
        let c = self.code();
        let [of_rows, of_weight] = match self.shape.bytes {
            Some(bytes) => bytes.row_wise(),
            None => [false, codes.encoding.is_row_wise()],
        };
        if of_rows {
            let row = tile.source_of(c, at.row);
            let scale = self.contraction.parts.kernel.rows.scale(self.from, row)?;
            sums.iter_mut().for_each(|sum| *sum = c.fmul(*sum, c.splat(scale)));
        }
        if of_weight {
            for (sum, panel) in sums.iter_mut().zip(tile.weights_of(self.contraction, tile.panel() + panel)) {
                *sum = c.fmul(*sum, codes.scales(c, (panel, feature), LANES, None));
            }
        }
        Ok(sums)
    }
}
