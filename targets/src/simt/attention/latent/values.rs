//! A wave's dimensions of the values: weighted sums for all queries, and results of them.
use inkwell::values::FloatValue;

use super::Group;
use super::shape::{EIGHT, SIDE, STEP};
use crate::code::{Any, Int, Vector};
use crate::simt::machine::fragment::Fragment;

/// Weights of a turn's keys as fragments, step by step those of each tile, and the factor of the
/// lane's sums of each tile.
pub struct Weights<'c> {
    fragments: Vec<Fragment<'c>>,
    rescales: Vec<Any<'c>>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Sums of no values, tile of queries by tile, dimension by dimension of a lane.
    pub fn no_sums(&self) -> Vec<Vector<'c>> {
        vec![self.a.matrix.zero(); self.shape.tiles * self.shape.dims]
    }

    /// Loads the weights of a turn, and the factor of earlier ones.
    pub fn weights(&self) -> Weights<'c> {
        let (a, s) = (self.a, &self.shape);
        let weight = |i: usize| {
            let query = a.place.column + i % s.tiles * SIDE;
            vec![a.matrix.load_vec16(self.weight_place(query, a.place.part * EIGHT + i / s.tiles * STEP))]
        };
        let rescales = self.numbers(0);
        Weights { fragments: (0..s.keys() / STEP * s.tiles).map(weight).collect(), rescales }
    }

    /// Adds a turn's weighted values to sums, which are rescaled first. `behind` issues its loads
    /// once the values have left their registers.
    pub fn add_values<R>(
        &self,
        values: &[Vector<'c>],
        weights: &Weights<'c>,
        sums: &[Vector<'c>],
        behind: impl FnOnce() -> R,
    ) -> (Vec<Vector<'c>>, R) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let mut sums = self.rescaled(sums, &weights.rescales);
        let turned: Vec<Vec<Fragment<'c>>> = values.chunks(EIGHT).map(|keys| self.turned(keys)).collect();
        c.keep_order();
        let asked = behind();
        c.keep_order();
        for (values, weights) in turned.iter().zip(weights.fragments.chunks(s.tiles)) {
            for (dim, value) in values.iter().enumerate() {
                for (tile, weights) in weights.iter().enumerate() {
                    let sum = &mut sums[tile * s.dims + dim];
                    *sum = a.matrix.product(value, weights, *sum);
                }
            }
        }
        (sums, asked)
    }

    /// Sums under the new row maxima, if one of them rose: after a few turns few do.
    fn rescaled(&self, sums: &[Vector<'c>], rescales: &[Any<'c>]) -> Vec<Vector<'c>> {
        let (c, s) = (self.code(), &self.shape);
        let rises = rescales.iter().map(|&rescale| c.float(rescale).differs(c.number(1.0)));
        let some = rises.reduce(|a, b| a | b).expect("a tile");
        let all: Vec<Any<'c>> = sums.iter().map(|&v| v.into()).collect();
        let all = c.change_if(c.any_lane(some), &all, |all| {
            c.set_lanes(self.a.matrix.layout.results);
            let scaled = |(tile, sums): (usize, &[Any<'c>])| {
                let rescale = c.splat(rescales[tile]);
                sums.iter().map(|v| c.fmul(v.into_vector_value(), rescale).into()).collect::<Vec<_>>()
            };
            all.chunks(s.dims).enumerate().flat_map(scaled).collect()
        });
        all.iter().map(|v| v.into_vector_value()).collect()
    }

    /// Divides by the sum of weights of the thread's query, as all threads have them, and stores.
    /// Without a key the result is zeros.
    pub fn finish(&self, [row_max, sum]: [FloatValue<'c>; 2], sums: &[Vector<'c>]) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (query, share) = self.own_query();
        c.barrier();
        c.set_lanes(1);
        let inverse = c.lane(c.reciprocal(c.simt.isa, c.splat(sum)), 0);
        c.when(c.equal(share, 0), || c.store(self.number(0, query), inverse, 4));
        let flat = self.flat(query);
        let is_query = c.equal(share, 0) & c.less(self.first + query, self.limit);
        c.when(is_query, || a.store_stats((self.token + flat / a.heads, flat % a.heads), [row_max, sum]));
        c.barrier();
        let (inverses, results) = (self.numbers(0), a.matrix.layout.results);
        c.set_lanes(s.dims);
        for (tile, sums) in sums.chunks(s.dims).enumerate() {
            let sums: Vec<_> = sums.iter().map(|&v| c.pin(v)).collect();
            let query = a.place.column + tile * SIDE;
            c.when(c.less(self.first + query, self.limit), || {
                let flat = self.flat(query);
                let (token, head) = (self.token + flat / a.heads, flat % a.heads);
                let inverse = c.splat(inverses[tile]);
                for row in 0..results {
                    let all: Vec<Any<'c>> = sums.iter().map(|&v| c.lane(v, row)).collect();
                    let dim = self.own_dim(row);
                    let v = c.fmul(c.floats(&all), inverse);
                    let v = self.with_keys(v, inverse);
                    c.store_floats(a.result(token, head, dim), v, a.out_type());
                }
            });
        }
    }

    /// The results of a query, which are zeros if it has seen no key: the inverse of its sum is
    /// infinite then.
    fn with_keys(&self, v: Vector<'c>, inverse: Vector<'c>) -> Vector<'c> {
        let c = self.code();
        if self.list.is_none() {
            return v;
        }
        let first = c.lane(inverse, 0).into_float_value();
        let is_finite = c.float(first).less(c.number(f64::INFINITY));
        c.pick(is_finite, v, c.zero()).into_vector_value()
    }

    /// The first of the consecutive dimensions that a row of the lane's sums has.
    fn own_dim(&self, row: usize) -> Int<'c> {
        self.first_dim() + (self.a.place.results + row) * self.shape.dims
    }
}
