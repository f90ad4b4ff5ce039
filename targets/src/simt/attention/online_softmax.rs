//! Online softmax: scores of keys become weights under the highest score so far, and sums are
//! rescaled when that score rises.
use inkwell::values::FloatValue;

use crate::code::{Any, Int, Vector};
use crate::row::Operand;
use crate::simt::attention::flash::{Attention, Fragments};
use crate::simt::machine::fragment::Fragment;

/// The row maximum of no scores: below every real one, and far from overflow.
const LOWEST: f64 = -1e30;

/// Panels of values that are used while the next are loaded.
const GROUP: usize = 2;

/// Scores so far of the query that a lane has: the highest, the sum of weights (of this lane's keys
/// only), and weighted sums of values.
#[derive(Clone)]
pub struct OnlineSoftmax<'c> {
    pub row_max: FloatValue<'c>,
    pub sum: FloatValue<'c>,
    pub values: Vec<Vector<'c>>,
}

/// The highest score of a query, and the factor of weights under the previous one.
#[derive(Clone, Copy)]
struct RowMax<'c> {
    value: FloatValue<'c>,
    rescale: FloatValue<'c>,
}

impl<'c> OnlineSoftmax<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        let values = self.values.iter().map(|&v| v.into());
        [self.row_max.into(), self.sum.into()].into_iter().chain(values).collect()
    }

    pub fn of(carried: &[Any<'c>]) -> OnlineSoftmax<'c> {
        let values = carried[2..].iter().map(|v| v.into_vector_value()).collect();
        OnlineSoftmax { row_max: carried[0].into_float_value(), sum: carried[1].into_float_value(), values }
    }
}

impl<'c> Attention<'_, '_, 'c> {
    pub fn lowest(&self) -> FloatValue<'c> {
        self.code().number(LOWEST)
    }

    /// The running softmax of a query before any key. A sink is a score of a key without a value:
    /// all lanes begin with it, and one lane has its weight. `place` gives the query's head, and
    /// whether the lane is that one.
    pub fn begin(&self, place: impl FnOnce() -> (Int<'c>, Int<'c>)) -> OnlineSoftmax<'c> {
        let values = vec![self.accumulator.zero(); self.panels()];
        let (row_max, sum) = self.before_keys(place);
        OnlineSoftmax { row_max, sum, values }
    }

    /// The highest score of a query before any key, and the lane's sum of weights.
    pub fn before_keys(&self, place: impl FnOnce() -> (Int<'c>, Int<'c>)) -> (FloatValue<'c>, FloatValue<'c>) {
        let (c, none) = (self.code(), self.code().number(0.0));
        let Some(sinks) = self.sinks else { return (self.lowest(), none) };
        let (head, counts) = place();
        (self.sink(sinks, head), c.pick(counts, c.number(1.0), none).into_float_value())
    }

    /// The sink of a head as a score that the factor is still to be applied to.
    fn sink(&self, sinks: &Operand<'c>, head: Int<'c>) -> FloatValue<'c> {
        let c = self.code();
        let sink = c.load_number(c.at(sinks.ptr, head * sinks.ty.dtype.size()), sinks.ty.dtype);
        let scale = c.number(std::f64::consts::LOG2_E / self.factor);
        self.max((c.float(sink) * scale).v, self.lowest())
    }

    /// Scores without those of keys that a query does not see. Key `i` of the lane is seen if
    /// `i <= after`, and in a window if `after - window < i`.
    pub fn hide(&self, scores: Vector<'c>, after: Int<'c>) -> Vector<'c> {
        self.hide_some(scores, (after, None), |i| i)
    }

    /// Masks scores, where the lane's keys are not consecutive, or where a query sees some
    /// positions further than its own.
    pub fn hide_some(
        &self,
        scores: Vector<'c>,
        (after, further): (Int<'c>, Option<Int<'c>>),
        key: impl Fn(usize) -> usize,
    ) -> Vector<'c> {
        let c = self.code();
        c.set_lanes(self.held());
        let keys: Vec<usize> = (0..self.held()).map(key).collect();
        let end = after + 1;
        let never = c.lit(f64::NEG_INFINITY);
        let scores = c.choose(c.below(&keys, end), scores, never);
        match self.seen.window {
            0 => scores,
            w => c.choose(c.below(&keys, further.map_or(end, |further| end - further) - w), never, scores),
        }
    }

    /// Adds the scores of some steps to the running softmax, for each of some queries. Values are
    /// given panel by panel of dimensions, step by step.
    pub fn accumulate(
        &self,
        scores: &[Vec<Vector<'c>>],
        values: &Fragments<'_, 'c>,
        to: &[OnlineSoftmax<'c>],
    ) -> Vec<OnlineSoftmax<'c>> {
        let c = self.code();
        let (steps, panels) = (scores[0].len(), self.panels());
        let load = |first: usize| -> Vec<Fragment<'c>> {
            (first * steps..(first + GROUP).min(panels) * steps).map(values).collect()
        };
        let mut next = if self.matrix.converts() { vec![] } else { load(0) };
        let maxima: Vec<RowMax<'c>> =
            scores.iter().zip(to).map(|(scores, running)| self.row_max(scores, running)).collect();
        let old = self.rescaled(&maxima, to);
        let softmax_weights = |((scores, row_max), running): ((&Vec<Vector<'c>>, &RowMax<'c>), &OnlineSoftmax<'c>)| {
            let (weights, sum) = self.softmax_weights(scores, *row_max, running);
            (weights, OnlineSoftmax { row_max: row_max.value, sum, values: vec![] })
        };
        let (weights, mut made): (Vec<Vec<Fragment<'c>>>, Vec<OnlineSoftmax<'c>>) =
            scores.iter().zip(&maxima).zip(to).map(softmax_weights).unzip();
        c.set_lanes(self.matrix.layout.results);
        for first in (0..panels).step_by(GROUP) {
            if first > 0 {
                c.keep_order();
            }
            let now =
                if self.matrix.converts() { load(first) } else { std::mem::replace(&mut next, load(first + GROUP)) };
            for (panel, values) in (first..).zip(now.chunks(steps)) {
                let together = self.matrix.together();
                for ((weights, old), new) in
                    weights.chunks(together).zip(old.chunks(together)).zip(made.chunks_mut(together))
                {
                    let mut sums: Vec<Vector<'c>> = old.iter().map(|old| old[panel]).collect();
                    for (step, v) in values.iter().enumerate() {
                        let columns: Vec<Fragment<'c>> = weights.iter().map(|w| w[step].clone()).collect();
                        self.accumulator.products(v, &columns, &mut sums);
                        self.converted();
                    }
                    new.iter_mut().zip(sums).for_each(|(new, sums)| new.values.push(sums));
                }
            }
        }
        made
    }

    /// The highest score, new ones among them.
    fn row_max(&self, scores: &[Vector<'c>], to: &OnlineSoftmax<'c>) -> RowMax<'c> {
        let c = self.code();
        c.set_lanes(self.held());
        let all = scores.iter().flat_map(|&s| (0..self.held()).map(move |i| c.lane(s, i).into_float_value()));
        let row_max = all.fold(to.row_max, |a, b| self.max(a, b));
        let value = c.across(row_max, self.accumulator.sharing(), |a, b| self.max(a, b));
        RowMax { value, rescale: self.rescale(to.row_max, value) }
    }

    /// Weighted sums of values, query by query, rescaled if some row maximum of the wave rose:
    /// after a few turns few do.
    fn rescaled(&self, maxima: &[RowMax<'c>], to: &[OnlineSoftmax<'c>]) -> Vec<Vec<Vector<'c>>> {
        let c = self.code();
        c.set_lanes(self.accumulator.zero().get_type().get_size() as usize);
        let all: Vec<Any<'c>> = to.iter().flat_map(|r| r.values.iter().map(|&v| v.into())).collect();
        let rises = maxima.iter().map(|row_max| c.float(row_max.rescale).differs(c.number(1.0)));
        let some = rises.reduce(|a, b| a | b).expect("a query");
        let all = c.change_if(c.any_lane(some), &all, |all| {
            let values = all.chunks(self.panels()).zip(maxima);
            let rescaled = values.flat_map(|(values, row_max)| {
                let rescale = c.splat(row_max.rescale);
                values.iter().map(move |v| c.fmul(v.into_vector_value(), rescale).into())
            });
            rescaled.collect()
        });
        all.chunks(self.panels()).map(|values| values.iter().map(|v| v.into_vector_value()).collect()).collect()
    }

    /// Weights of scores as fragments, and the new sum.
    fn softmax_weights(
        &self,
        scores: &[Vector<'c>],
        row_max: RowMax<'c>,
        to: &OnlineSoftmax<'c>,
    ) -> (Vec<Fragment<'c>>, FloatValue<'c>) {
        let c = self.code();
        c.set_lanes(self.held());
        let below = c.splat(c.float(row_max.value) * c.number(-self.factor));
        let weights: Vec<_> = scores.iter().map(|&s| c.exp2(c.simt.isa, c.fma(s, c.lit(self.factor), below))).collect();
        let all = weights[1..].iter().fold(weights[0], |a, &b| c.fadd(a, b));
        let sum = self.fma(to.sum, row_max.rescale, c.sum(all));
        (weights.iter().map(|&w| self.whole(self.matrix.fragment_of(&[w]))).collect(), sum)
    }

    /// The sum of all weights of a query, from each lane's.
    pub fn total(&self, sum: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.across(sum, self.accumulator.sharing(), |a, b| (c.float(a) + b).v)
    }

    /// The factor of a weight when the highest score rises.
    pub fn rescale(&self, old: FloatValue<'c>, new: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        let by = (c.float(old) - new) * c.number(self.factor);
        c.power_of_two(c.simt.isa, by.v)
    }

    pub fn max(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.call("llvm.maxnum", &[c.cx.f32_type().into()], &[a.into(), b.into()]).into_float_value()
    }

    pub fn fma(&self, a: FloatValue<'c>, b: FloatValue<'c>, to: FloatValue<'c>) -> FloatValue<'c> {
        let c = self.code();
        c.call("llvm.fma", &[c.cx.f32_type().into()], &[a.into(), b.into(), to.into()]).into_float_value()
    }

    /// A fragment of weights. Where both rows of lanes must have all of it, each gets the other's
    /// half.
    fn whole(&self, own: Fragment<'c>) -> Fragment<'c> {
        if !self.matrix.layout.replicated {
            return own;
        }
        let c = self.code();
        let other: Fragment<'c> = own.iter().map(|&vec16| c.map_words(vec16, |word| c.other_row(word))).collect();
        let low = c.equal(self.half, 0);
        let ordered = |a: &Fragment<'c>, b: &Fragment<'c>| -> Fragment<'c> {
            a.iter().zip(b).map(|(&a, &b)| c.pick(low, a, b).into_vector_value()).collect()
        };
        [ordered(&own, &other), ordered(&other, &own)].concat()
    }
}
