//! Combines the sums of a pass in local memory: first those of a work-group's waves, then those of
//! a cluster's members. Each member makes its share of the results.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::main_loop::WorkGroup;
use super::shape::PITCH;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::simt::machine::Gpu;

/// Results that a thread loads the sums of at once.
const TOGETHER: usize = 4;

/// Sums of a lane that one matrix instruction makes: the tile of tokens, the piece of the result,
/// and the wave's panel of the pass.
#[derive(Clone, Copy)]
pub struct Block {
    pub tile: usize,
    pub piece: usize,
    pub panel: usize,
}

/// A vector of a pass's results: its panel in the pass, its token, its first feature in the panel
/// and in all.
struct Place<'c> {
    panel: Int<'c>,
    token: Int<'c>,
    feature: Int<'c>,
    col: Int<'c>,
    is_there: Int<'c>,
}

impl<'c> Place<'c> {
    /// This place, or the other one if it does not exist.
    fn or(&self, c: &Gpu<'c>, other: &Place<'c>) -> Place<'c> {
        let pick = |a: Int<'c>, b: Int<'c>| c.pick_int(self.is_there, a, b);
        Place {
            panel: pick(self.panel, other.panel),
            token: pick(self.token, other.token),
            feature: pick(self.feature, other.feature),
            col: pick(self.col, other.col),
            is_there: other.is_there,
        }
    }
}

impl<'c> WorkGroup<'_, '_, '_, 'c> {
    /// Makes results of the wave's sums of a pass, from the work-group's panel `first` on, and of
    /// all other waves' sums.
    pub fn epilogue(&self, first: Int<'c>, sums: &[Any<'c>]) -> Result<(), Diagnostic> {
        let own = self.results(first, 0);
        let beside = self.load_beside(&own)?;
        let weights: Vec<_> = own.iter().map(|place| self.scales_of_rows(&place.or(self.code(), &own[0]))).collect();
        self.store_partials(sums);
        if self.shape.cluster > 1 && self.shape.waves_k > 1 {
            self.code().barrier();
            self.gather(first);
        }
        self.sync();
        self.finish(&own, &beside, &weights)
    }

    /// The scales of a place's features, piece by piece, if each has only one.
    fn scales_of_rows(&self, place: &Place<'c>) -> Vec<Vector<'c>> {
        let Some(codes) = self.weights.codes.filter(|codes| codes.encoding.is_row_wise()) else { return vec![] };
        let (c, results) = (self.code(), self.contraction.matrix.layout.results);
        let panels = self.contraction.panels_of(c.smaller(place.col / 16, self.shape.panels - 1), None);
        panels.into_iter().map(|panel| codes.scales(c, (panel, place.feature), results, None)).collect()
    }

    /// The address of a wave's partial sums of one of its panels, for a piece and a token.
    fn sums_at(&self, wave: Int<'c>, panel: Int<'c>, piece: usize, token: Int<'c>) -> Ptr<'c> {
        let (c, shape, (partials, apart)) = (self.code(), self.shape, self.partials);
        let row = panel * shape.pieces + piece;
        let row = row * shape.tokens + token;
        c.at(partials, wave * apart + row * PITCH)
    }

    /// A barrier of all that have sums of the same panels.
    pub fn sync(&self) {
        match self.shape.cluster {
            1 => self.code().barrier(),
            _ => self.code().meet_in_cluster(),
        }
    }

    /// Stores the wave's sums of a pass for the others.
    fn store_partials(&self, sums: &[Any<'c>]) {
        let (c, shape) = (self.code(), self.shape);
        for (i, sums) in sums.chunks(4).enumerate() {
            let (tile, rest) = (i % shape.tiles(), i / shape.tiles());
            let block = Block { tile, piece: rest % shape.pieces, panel: rest / shape.pieces };
            let sums: Vec<_> = sums.iter().map(|v| c.pin_register(v.into_float_value())).collect();
            self.products.store(self, block, [sums[0], sums[1], sums[2], sums[3]]);
        }
    }

    /// Stores sums of the lane's two rows of a panel, of one token.
    pub fn store_sums(&self, block: Block, token: Int<'c>, [low, high]: [FloatValue<'c>; 2]) {
        let c = self.code();
        let to = self.sums_at(c.wave_index(), c.int(block.panel), block.piece, token);
        let to = c.at(to, c.lane_index() / 4 * 4);
        c.store(to, low, 4);
        c.store(c.at(to, 32), high, 4);
    }

    /// The results of a pass, from the work-group's panel `first` on: the thread's `i`-th share of
    /// them. Each member's first share is its own, the others are the next members' in turn.
    fn results(&self, first: Int<'c>, share: usize) -> Vec<Place<'c>> {
        let (c, shape, threads) = (self.code(), self.shape, self.shape.threads());
        let (results, members) = (self.contraction.matrix.layout.results, shape.cluster);
        let parts = 16 / results;
        let left = self.run.end - self.run.begin - first;
        let panels = c.smaller(left, shape.pass());
        let turns = (shape.pass() * shape.tokens * parts).div_ceil(threads * members);
        // Lanes that load together have different tokens, and so different banks.
        let near = 1 << shape.tokens.trailing_zeros().min(3);
        let owner = (self.run.member + share) % members;
        let place = |turn: usize| {
            let item = c.thread() + (owner + turn * members) * threads;
            let rest = item / (near * parts);
            let token = item % near + rest % (shape.tokens / near) * near;
            let panel = rest / (shape.tokens / near);
            let feature = item / near % parts * results;
            let col = (self.run.begin + first + panel) * 16 + feature;
            Place { panel, token, feature, col, is_there: c.less(panel, panels) }
        };
        (0..turns).map(place).collect()
    }

    /// Adds up the sums that the waves have stored for other members' results, so that these load
    /// each sum once.
    fn gather(&self, first: Int<'c>) {
        let (c, shape) = (self.code(), self.shape);
        for at in (1..shape.cluster).flat_map(|share| self.results(first, share)) {
            c.when(at.is_there, || {
                for piece in 0..shape.pieces {
                    c.store(self.part_at(&at, piece, 0), self.sum_here(&at, piece), 16);
                }
            });
        }
    }

    /// The address of a vector of sums that the `i`-th wave along a panel has stored.
    fn part_at(&self, at: &Place<'c>, piece: usize, i: usize) -> Ptr<'c> {
        let (c, across) = (self.code(), self.shape.waves_n);
        let (wave, row) = (at.panel % across + i * across, at.panel / across);
        c.at(self.sums_at(wave, row, piece, at.token), at.feature * 4)
    }

    fn load_sums(&self, at: Ptr<'c>) -> Vector<'c> {
        let c = self.code();
        c.load_vector(c.cx.f32_type(), self.contraction.matrix.layout.results, at, 16)
    }

    /// A vector of sums of the work-group's waves.
    fn sum_here(&self, at: &Place<'c>, piece: usize) -> Vector<'c> {
        let load = |i: usize| self.load_sums(self.part_at(at, piece, i));
        (1..self.shape.waves_k).fold(load(0), |sum, i| self.code().fadd(sum, load(i)))
    }

    /// A sum with the parts that other members have gathered.
    fn sum(&self, at: &Place<'c>, piece: usize) -> Vector<'c> {
        let (c, members) = (self.code(), self.shape.cluster);
        let gathered = self.part_at(at, piece, 0);
        let load = |i: usize| {
            let member = (self.run.member + i) % members;
            self.load_sums(c.of_member(gathered, member))
        };
        let others: Vec<Vector<'c>> = (1..members).map(load).collect();
        others.into_iter().fold(self.sum_here(at, piece), |sum, v| c.fadd(sum, v))
    }

    fn at(&self, place: &Place<'c>) -> At<'c> {
        self.code().set_lanes(self.contraction.matrix.layout.results);
        At { row: place.token, head: None, col: Col::Var(place.col) }
    }

    /// Loads the operands that the epilogue reads in addition to the sums.
    fn load_beside(&self, own: &[Place<'c>]) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let (c, last) = (self.code(), 16 * self.shape.panels - self.contraction.matrix.layout.results);
        let near = |place: &Place<'c>| {
            let place = place.or(c, &own[0]);
            At { col: Col::Var(c.smaller(place.col, last)), ..self.at(&place) }
        };
        own.iter().map(|place| self.contraction.parts.beside(near(place))).collect()
    }

    /// Adds the sums of a pass and stores results.
    fn finish(
        &self,
        own: &[Place<'c>],
        beside: &[Vec<Vector<'c>>],
        weights: &[Vec<Vector<'c>>],
    ) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        // All results of a thread may belong to one token.
        let one = shape.threads().is_multiple_of(shape.tokens * 16 / self.contraction.matrix.layout.results);
        c.when(own[0].is_there, || {
            let scale = self.scale(own[0].token);
            // A result that does not exist repeats the first one.
            let own: Vec<_> = own.iter().map(|place| place.or(c, &own[0])).collect();
            let others = beside.chunks(TOGETHER).zip(weights.chunks(TOGETHER));
            for (own, (beside, weights)) in own.chunks(TOGETHER).zip(others) {
                let sums = |place| (0..shape.pieces).map(|piece| self.sum(place, piece)).collect();
                let sums: Vec<Vec<_>> = own.iter().map(sums).collect();
                for ((place, sums), (beside, weights)) in own.iter().zip(sums).zip(beside.iter().zip(weights)) {
                    let scale = if one { scale } else { self.scale(place.token) };
                    let scaled = |v| scale.map_or(v, |scale| c.fmul(v, c.splat(scale)));
                    let by_rows = |(i, v)| weights.get(i).map_or(v, |&scale| c.fmul(v, scale));
                    let sums: Vec<_> = sums.into_iter().map(scaled).enumerate().map(by_rows).collect();
                    self.contraction.finish_at(self.at(place), &sums, beside)?;
                }
            }
            Ok(())
        })
    }
}
