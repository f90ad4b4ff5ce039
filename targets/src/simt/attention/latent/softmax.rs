//! Scores of a query become weights, which neighbouring threads make together.
use inkwell::values::FloatValue;

use super::Group;
use crate::code::{Any, Int, Vector};

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
    /// The thread's query, and which of the threads that share it this one is.
    pub fn own_query(&self) -> (Int<'c>, Int<'c>) {
        let (c, sharing) = (self.code(), self.shape.sharing());
        (c.thread() / sharing, c.thread() % sharing)
    }

    /// Weights of a turn's keys, and by what earlier ones are rescaled, into local memory.
    pub fn weigh(&self, turn: Int<'c>, running: &Running<'c>) -> Running<'c> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (query, share) = self.own_query();
        let own = s.own_keys();
        c.set_lanes(own);
        let scores = self.seen(turn, self.scores(query, share));
        let row_max = (0..own).map(|i| c.lane(scores, i).into_float_value()).fold(running.row_max, |x, y| a.max(x, y));
        let row_max = c.over_lanes(row_max, s.sharing(), &|x, y| a.max(x, y));
        let rescale = a.rescale(running.row_max, row_max);
        let below = c.splat(c.float(row_max) * c.number(-a.factor));
        let weights = c.exp2(c.simt.isa, c.fma(scores, c.lit(a.factor), below));
        let sum = a.fma(running.sum, rescale, c.sum(weights));
        let row = query * s.weight_row() + share * (own * 2);
        let bits = c.narrow(weights, a.matrix.dtype);
        c.store(c.at(self.local, row + s.weights()), bits, 2 * own as u32);
        c.when(c.equal(share, 0), || c.store(self.number(0, query), rescale, 4));
        Running { row_max, sum }
    }

    /// The thread's scores, of which each part of the columns has given a share.
    fn scores(&self, query: Int<'c>, share: Int<'c>) -> Vector<'c> {
        let (c, s) = (self.code(), &self.shape);
        let own = s.own_keys();
        let at = query * s.score_row() + share * (own * 4);
        let from = c.at(self.local, at + s.scores());
        let load = |cut: usize| {
            let p = c.at(from, cut * s.queries() * s.score_row());
            c.load(c.f32s(), p, 16.min(own * 4) as u32).into_vector_value()
        };
        (1..s.cuts).map(load).fold(load(0), |sum, part| c.fadd(sum, part))
    }

    /// Scores without those of keys behind the query's token.
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
