//! The epilogue: sums are exchanged between threads through local memory, a round of tokens at a
//! time, and become results.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::scheduler::Part;
use super::shape::{PITCH, ROUND, TEAM};
use super::{Group, LANES};
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::simt::gemm::tile::Tile;

/// Consecutive tokens of a tile that are finished together.
#[derive(Clone, Copy)]
pub struct Tokens<'c> {
    pub first: Int<'c>,
    pub count: usize,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Makes results of the sums of a part of a tile, or leaves them for those of others.
    pub(super) fn epilogue(&self, part: Part<'c>, sums: &[Any<'c>]) -> Result<(), Diagnostic> {
        let (c, own) = (self.code(), self.own_squares(part));
        let shared = c.less(1, part.owners);
        let added = c.when(shared, || self.leave(part, sums, own));
        let made = c.when(!shared, || self.finish_whole(part, sums, own));
        self.sync_consumers();
        added.and(made)
    }

    /// A round of tokens.
    fn round(&self, round: usize) -> Tokens<'c> {
        let count = (self.shape.tokens - round * ROUND).min(ROUND);
        Tokens { first: self.code().int(round * ROUND), count }
    }

    /// Makes results of sums of all slots of a tile, and of the squares of its rows.
    fn finish_whole(
        &self,
        part: Part<'c>,
        sums: &[Any<'c>],
        squares: Option<FloatValue<'c>>,
    ) -> Result<(), Diagnostic> {
        let (shape, tile) = (self.shape, self.made_tile(part));
        let beside: Vec<_> =
            (0..shape.rounds()).map(|round| self.load_beside(tile, self.round(round))).collect::<Result<_, _>>()?;
        self.store_scale(squares, self.thread(), shape.columns);
        for (round, beside) in beside.iter().enumerate() {
            if round > 0 {
                self.sync_consumers();
            }
            let halves = sums.chunks(shape.columns / 2);
            let of_round = |half: &[Any<'c>]| half.iter().skip(round * ROUND / 2).take(ROUND / 2).copied().collect();
            self.exchange(&halves.map(of_round).collect::<Vec<Vec<Any>>>());
            self.sync_consumers();
            self.store_results(tile, self.round(round), beside)?;
        }
        Ok(())
    }

    /// Stores the factor of a row's sums, from its squares, if there is a norm. Each of `count`
    /// threads has a row.
    pub(super) fn store_scale(&self, squares: Option<FloatValue<'c>>, row: Int<'c>, count: usize) {
        let c = self.code();
        if let (Some(squares), Some(norm)) = (squares, self.prologue.norm) {
            let scale = self.prologue.scale_of(c, norm, squares);
            c.when(c.less(self.thread(), count), || c.store(c.at(self.scales(), row * 4), scale, 4));
        }
    }

    /// Exchanges sums of some tokens, of upper and of lower rows, between threads through local
    /// memory.
    pub(super) fn exchange(&self, halves: &[Vec<Any<'c>>]) {
        let c = self.code();
        let (lane, wave) = (c.lane_index(), self.wave());
        let (feature, token) = (lane / 4, lane % 4 * 2);
        for (half, sums) in halves.iter().enumerate() {
            for (j, &v) in sums.iter().enumerate() {
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

    /// The thread's vectors of features of some tokens: token of these, panel of the tile's result,
    /// and first feature of the panel.
    fn vectors(&self, count: usize) -> Vec<[Int<'c>; 3]> {
        let each = self.shape.each();
        let vector = |i: usize| {
            let item = self.thread() + i * TEAM;
            let (half, rest) = (item % 2, item / 2);
            [rest / each, rest % each, half * LANES]
        };
        (0..(count * each * 16 / LANES).div_ceil(TEAM)).map(vector).collect()
    }

    /// The place of a vector in the result, and whether the result has it.
    fn vector_at(
        &self,
        tile: Tile<'c>,
        tokens: Tokens<'c>,
        [token, panel, feature]: [Int<'c>; 3],
    ) -> (At<'c>, Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        let column = tokens.first + token;
        let (row, panel) = (tile.row(c, tile.inside(c, column)), tile.panel() + panel);
        let is_there = c.less(token, tokens.count) & tile.has(c, column) & c.less(panel, shape.panels);
        let col = panel * 16 + feature;
        (At { row, head: None, col: Col::Var(col) }, is_there)
    }

    /// Loads the operands that the epilogue reads in addition to the sums.
    pub(super) fn load_beside(&self, tile: Tile<'c>, tokens: Tokens<'c>) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        c.set_lanes(LANES);
        let of = |vector: [Int<'c>; 3]| {
            let (at, _) = self.vector_at(tile, tokens, vector);
            let Col::Var(col) = at.col else { unreachable!("a vector has a variable column") };
            let row = if tile.may_lack_rows() { c.larger(at.row, 0) } else { at.row };
            let last = c.int(16 * shape.panels - LANES);
            self.contraction.parts.beside(At { row, head: None, col: Col::Var(c.smaller(col, last)) })
        };
        self.vectors(tokens.count).into_iter().map(of).collect()
    }

    /// Stores the results of some tokens of a tile.
    pub(super) fn store_results(
        &self,
        tile: Tile<'c>,
        tokens: Tokens<'c>,
        beside: &[Vec<Vector<'c>>],
    ) -> Result<(), Diagnostic> {
        let c = self.code();
        let f32 = c.cx.f32_type();
        for (vector, beside) in self.vectors(tokens.count).into_iter().zip(beside) {
            let (at, is_there) = self.vector_at(tile, tokens, vector);
            c.when(is_there, || {
                let [token, panel, feature] = vector;
                c.set_lanes(LANES);
                let scale = self.prologue.norm.is_some().then(|| {
                    let scale = c.load(f32, c.at(self.scales(), (tokens.first + token) * 4), 4);
                    c.splat(scale.into_float_value())
                });
                let piece = |i: usize| {
                    let panel = panel + i * self.shape.each();
                    let p = c.at(self.sums_at(panel, token), feature * 4);
                    let sums = c.join(&[0, 16].map(|more| c.load_vector(f32, 4, c.at(p, more), 16)));
                    scale.map_or(sums, |scale| c.fmul(sums, scale))
                };
                let sums: Vec<_> = (0..self.shape.pieces).map(piece).collect();
                let sums = self.scaled(at, tile, (panel, feature), sums)?;
                self.contraction.finish_at(at, &sums, beside)
            })?;
        }
        Ok(())
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
            let scale = self.contraction.parts.kernel.rows.scale(self.prologue.from, row)?;
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
