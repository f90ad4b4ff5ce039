//! Scores in the layout of warpgroup MMA: a lane has two queries, 8 rows apart, and of each 8 keys
//! two of both. Prompts and latent attention use them in the same way.
use inkwell::IntPredicate;
use inkwell::values::FloatValue;

use crate::code::{Any, Int};
use crate::simt::attention::flash::Attention;

/// The highest score of each of a lane's two queries so far, and the sum of the lane's weights
/// under it.
#[derive(Clone, Copy)]
pub struct ScorePair<'c> {
    pub maxima: [FloatValue<'c>; 2],
    pub sums: [FloatValue<'c>; 2],
}

/// The results of a block's scores: the new pair, the factors that rescale all earlier sums, and
/// the block's weights.
pub struct Weighed<'c> {
    pub pair: ScorePair<'c>,
    pub rescale: [FloatValue<'c>; 2],
    pub weights: Vec<FloatValue<'c>>,
}

impl<'c> Attention<'_, '_, 'c> {
    /// The weights of a block's scores, below a pair that was there before.
    pub fn weigh(&self, scores: &[FloatValue<'c>], before: ScorePair<'c>) -> Weighed<'c> {
        let c = self.code();
        let add = |x: FloatValue<'c>, y: FloatValue<'c>| (c.float(x) + y).v;
        let mut weights = scores.to_vec();
        let own = |i: usize, weights: &[FloatValue<'c>]| -> Vec<FloatValue<'c>> {
            weights.chunks(2).skip(i).step_by(2).flatten().copied().collect()
        };
        let maxima = [0, 1].map(|i| {
            let row_max = self.max(tree(own(i, &weights), |x, y| self.max(x, y)), before.maxima[i]);
            c.across(row_max, &[1, 2], |x, y| self.max(x, y))
        });
        let rescale = [0, 1].map(|i| self.rescale(before.maxima[i], maxima[i]));
        let factor = c.number(self.factor());
        let below = maxima.map(|row_max| (c.float(row_max) * c.number(-self.factor())).v);
        for (i, v) in weights.iter_mut().enumerate() {
            *v = c.power_of_two(c.simt.isa, self.fma(*v, factor, below[i / 2 % 2]));
        }
        let sums = [0, 1].map(|i| self.fma(before.sums[i], rescale[i], tree(own(i, &weights), add)));
        Weighed { pair: ScorePair { maxima, sums }, rescale, weights }
    }

    /// Scores of keys that a query does not see are below all others. `positions` are those of the
    /// lane's queries.
    pub fn hide_pair(&self, block: Int<'c>, positions: [Int<'c>; 2], scores: &mut [FloatValue<'c>]) {
        let c = self.code();
        let never = c.number(f64::NEG_INFINITY);
        let first = block * self.cache.layout.block_tokens + c.lane_index() % 4 * 2;
        let after = positions.map(|position| position - first);
        for (i, score) in scores.iter_mut().enumerate() {
            let (key, after) = (i / 4 * 8 + i % 2, after[i / 2 % 2]);
            let mut hidden = c.compare(IntPredicate::SGT, key, after);
            if self.seen.window > 0 {
                let early = c.compare(IntPredicate::SLE, key, after - self.seen.window);
                hidden = hidden | early;
            }
            *score = c.pick(hidden, never, *score).into_float_value();
        }
    }

    /// Sums of both queries, in the products' layout, times their factors, if any of the wave's is
    /// not one.
    pub fn rescale_pair(&self, sums: &[Any<'c>], rescale: [FloatValue<'c>; 2]) -> Vec<Any<'c>> {
        let c = self.code();
        let [first, second] = rescale.map(|v| c.float(v).differs(c.number(1.0)));
        let some = c.any_lane(first | second);
        let rescaled = |(i, v): (usize, &Any<'c>)| -> Any<'c> { (c.float(*v) * rescale[i / 2 % 2]).into() };
        c.change_if(some, sums, |sums| sums.iter().enumerate().map(rescaled).collect())
    }

    /// Two numbers as products take them, rounded, in a word.
    pub fn pair_word(&self, two: [FloatValue<'c>; 2]) -> Int<'c> {
        let c = self.code();
        let both = c.floats(&[two[0].into(), two[1].into()]);
        c.set_lanes(2);
        c.as_int(c.bitcast(c.narrow(both, self.matrix.dtype), c.cx.i32_type()))
    }

    /// The sum of all four lanes that share a pair's queries, of one of them.
    pub fn pair_total(&self, pair: ScorePair<'c>, i: usize) -> FloatValue<'c> {
        let c = self.code();
        c.across(pair.sums[i], &[1, 2], |x, y| (c.float(x) + y).v)
    }

    /// One divided by a number, which is not zero.
    pub fn inverse(&self, v: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.set_lanes(1);
        c.lane(c.reciprocal(c.simt.isa, c.splat(v)), 0).into_float_value()
    }
}

impl<'c> ScorePair<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        self.maxima.iter().chain(&self.sums).map(|&v| v.into()).collect()
    }

    /// The pair at the beginning of the carried values.
    pub fn of(carried: &[Any<'c>]) -> ScorePair<'c> {
        let two = |i: usize| [0, 1].map(|j| carried[i + j].into_float_value());
        ScorePair { maxima: two(0), sums: two(2) }
    }
}

/// All numbers combined, two by two.
fn tree<T: Copy>(mut all: Vec<T>, f: impl Fn(T, T) -> T) -> T {
    while all.len() > 1 {
        all = all.chunks(2).map(|two| if let [x, y] = two { f(*x, *y) } else { two[0] }).collect();
    }
    all[0]
}
