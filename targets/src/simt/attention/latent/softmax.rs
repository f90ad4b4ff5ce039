//! Scores of a query become weights, which neighbouring threads make together.
use inkwell::values::FloatValue;

use super::Group;
use super::shape::{EIGHT, LINE, STEP};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::machine::fragment::VEC16;

/// The highest score so far of the thread's query, and the sum of weights under it of the thread's
/// keys.
pub struct Running<'c> {
    pub row_max: FloatValue<'c>,
    pub sum: FloatValue<'c>,
}

impl<'c> Running<'c> {
    /// Values that are carried.
    pub const COUNT: usize = 2;

    pub fn begin(group: &Group<'_, '_, '_, 'c>) -> Running<'c> {
        Running { row_max: group.a.lowest(), sum: group.code().number(0.0) }
    }

    pub fn carried(&self) -> Vec<Any<'c>> {
        vec![self.row_max.into(), self.sum.into()]
    }

    pub fn of(carried: &[Any<'c>]) -> Running<'c> {
        Running { row_max: carried[0].into_float_value(), sum: carried[1].into_float_value() }
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The thread's query, and the number of this thread among those that share it.
    pub fn own_query(&self) -> (Int<'c>, Int<'c>) {
        let (c, sharing) = (self.code(), self.shape.sharing());
        (c.thread() / sharing, c.thread() % sharing)
    }

    /// Stores the weights of a turn's keys, and the factor of earlier ones, in local memory.
    /// `meanwhile` runs while scores are loaded from there.
    pub fn weigh<R>(&self, turn: Int<'c>, running: &Running<'c>, meanwhile: impl FnOnce() -> R) -> (Running<'c>, R) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (query, share) = self.own_query();
        let own = s.own_keys();
        c.set_lanes(own);
        let parts = self.scores(query, share);
        c.keep_order();
        let done = meanwhile();
        c.keep_order();
        c.set_lanes(own);
        let scores = parts[1..].iter().fold(parts[0], |sum, &part| c.fadd(sum, part));
        let reaches = !c.less((turn + 1) * s.keys() - 1, self.position + self.first / a.heads + 1);
        let scores =
            c.change_if(reaches, &[scores.into()], |all| vec![self.seen(turn, all[0].into_vector_value()).into()]);
        let scores = scores[0].into_vector_value();
        let row_max = (0..own).map(|i| c.lane(scores, i).into_float_value()).fold(running.row_max, |x, y| a.max(x, y));
        let row_max = c.over_lanes(row_max, s.sharing(), &|x, y| a.max(x, y));
        let rescale = a.rescale(running.row_max, row_max);
        let below = c.splat(c.float(row_max) * c.number(-a.factor));
        let weights = c.exp2(c.simt.isa, c.fma(scores, c.lit(a.factor), below));
        let sum = a.fma(running.sum, rescale, c.sum(weights));
        let bits = c.narrow(weights, a.matrix.dtype);
        c.store(self.weight_place(query, share * own), bits, 2 * own as u32);
        c.when(c.equal(share, 0), || c.store(self.number(0, query), rescale, 4));
        (Running { row_max, sum }, done)
    }

    /// The shares of the thread's scores that the parts of the columns have given.
    fn scores(&self, query: Int<'c>, share: Int<'c>) -> Vec<Vector<'c>> {
        let (c, s) = (self.code(), &self.shape);
        let (all, together) = (s.own_keys(), s.own_keys().min(4));
        c.set_lanes(together);
        let load = |cut: usize, first: usize| {
            let p = self.score_place(cut, query, share * all + first);
            c.load(c.f32s(), p, 4 * together as u32).into_vector_value()
        };
        let part = |cut: usize| c.join(&(0..all).step_by(together).map(|first| load(cut, first)).collect::<Vec<_>>());
        (0..s.cuts).map(part).collect()
    }

    /// The place of a query's scores from a key on, 4 of them together, for a part of the columns.
    pub fn score_place(&self, cut: usize, query: Int<'c>, key: Int<'c>) -> Ptr<'c> {
        let (c, s) = (self.code(), &self.shape);
        let four = (key % STEP / 4) ^ (query % EIGHT);
        let at = key / STEP * s.score_bytes() + query * LINE + four * VEC16 + key % 4 * 4;
        c.at(self.local, at + (s.scores() + cut * s.keys() / STEP * s.score_bytes()))
    }

    /// The place of a query's weights from a key on, 8 of them together. Two queries share a line.
    pub fn weight_place(&self, query: Int<'c>, key: Int<'c>) -> Ptr<'c> {
        let (c, s) = (self.code(), &self.shape);
        let eight = (query % 2 * 4 + key % STEP / EIGHT) ^ (query / 2 % EIGHT);
        let at = key / STEP * s.weight_bytes() + query / 2 * LINE + eight * VEC16 + key % EIGHT * 2;
        c.at(self.local, at + s.weights())
    }

    /// Scores, masked for keys that come after the query's token.
    fn seen(&self, turn: Int<'c>, scores: Vector<'c>) -> Vector<'c> {
        let (c, s) = (self.code(), &self.shape);
        let (query, share) = self.own_query();
        let position = self.position + self.flat(query) / self.a.heads;
        let keys: Vec<usize> = (0..s.own_keys()).collect();
        let first = turn * s.keys() + share * s.own_keys();
        let never = c.lit(f64::NEG_INFINITY);
        c.choose(c.below(&keys, position + 1 - first), scores, never)
    }

    /// The sum of all weights of the thread's query.
    pub fn total(&self, sum: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.over_lanes(sum, self.shape.sharing(), &|x, y| (c.float(x) + y).v)
    }
}
