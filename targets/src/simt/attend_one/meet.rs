//! Where the shares of a sequence meet: those of a work-group's waves in local memory, those of work-groups in the workspace.
use inkwell::values::FloatValue;

use super::ring::spread;
use super::{Part, WAVES};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::simt::attend::{Attention, Running};

/// Parts that are put together at a time.
const MERGED: usize = 8;

/// Running values of some queries in memory: sums of values query by query, then tops, then sums of weights.
#[derive(Clone, Copy)]
pub struct Partial<'c> {
    ptr: Ptr<'c>,
    columns: usize,
    /// Bytes from one query to the next.
    stride: usize,
}

/// A top, a sum of weights, and a vector of sums of values.
type Item<'c> = (FloatValue<'c>, FloatValue<'c>, Vector<'c>);

impl<'c> Partial<'c> {
    /// Four banks of local memory behind each query, so that queries do not lie in the same.
    fn stride(a: &Attention) -> usize {
        (a.cache.layout.dim + 4) * 4
    }

    pub fn bytes(a: &Attention, columns: usize) -> usize {
        (columns * (Self::stride(a) + 8)).next_multiple_of(64)
    }

    fn at(a: &Attention<'_, '_, 'c>, base: Ptr<'c>, columns: usize, number: Int<'c>) -> Partial<'c> {
        let c = a.code();
        let bytes = c.mul(number, c.int(Self::bytes(a, columns)));
        Partial { ptr: c.at(base, bytes), columns, stride: Self::stride(a) }
    }

    fn values(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>) -> Ptr<'c> {
        c.at(self.ptr, c.add(c.mul(column, c.int(self.stride)), c.mul(dim, c.int(4))))
    }

    /// The address of a top, or of a sum of weights.
    fn number(&self, c: &Code<'c>, column: Int<'c>, is_sum: bool) -> Ptr<'c> {
        let first = self.columns * self.stride + if is_sum { 4 * self.columns } else { 0 };
        c.at(self.ptr, c.add(c.mul(column, c.int(4)), c.int(first)))
    }

    fn load(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let number = |is_sum| c.load(c.cx.f32_type(), self.number(c, column, is_sum), 4).into_float_value();
        let values = c.load(c.f32s(), self.values(c, column, dim), 4 * c.lanes() as u32).into_vector_value();
        (number(false), number(true), values)
    }

    fn store(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>, (top, sum, values): Item<'c>) {
        c.store(self.values(c, column, dim), values, 4 * c.lanes() as u32);
        c.when(c.equal(dim, 0), || {
            c.store(self.number(c, column, false), top, 4);
            c.store(self.number(c, column, true), sum, 4);
        });
    }
}

impl<'c> Part<'_, '_, '_, 'c> {
    /// The wave's values, for the others to see.
    pub fn leave(&self, meeting: Ptr<'c>, running: Running<'c>) {
        let (a, c) = (self.attention, self.code());
        let to = Partial::at(a, meeting, self.shape.columns, c.wave_index());
        let sum = a.total(running.sum);
        let column = a.place.column;
        c.when(c.less(column, c.int(self.shape.columns)), || {
            let results = a.matrix.layout.results;
            // Consecutive dimensions of a panel, or two of each 8.
            let (together, apart) = if self.shape.stages > 0 { (2, spread(2)) } else { (results, 0) };
            let first = c.mul(a.place.share, c.int(together));
            for (j, &values) in running.values.iter().enumerate() {
                for i in (0..results).step_by(together) {
                    let dim = c.add(first, c.int(16 * j + i / together * apart));
                    c.store(to.values(c, column, dim), c.part(values, i, together), 4 * together as u32);
                }
            }
            c.when(c.equal(a.half, 0), || {
                c.store(to.number(c, column, false), running.top, 4);
                c.store(to.number(c, column, true), sum, 4);
            });
        });
    }

    /// Puts the waves' values together: into the result, or with those of other splits.
    pub fn meet(&self, meeting: Ptr<'c>) {
        let (a, c) = (self.attention, self.code());
        let columns = self.shape.columns;
        let waves = |column: Int<'c>, dim: Int<'c>| {
            let load = |wave| Partial::at(a, meeting, columns, c.int(wave)).load(c, column, dim);
            self.merge(&(0..WAVES).map(load).collect::<Vec<_>>())
        };
        if self.shape.splits == 1 {
            return self.each(|column, dim| self.store(column, dim, waves(column, dim)));
        }
        let turn = c.local(16);
        let alone = c.less(self.used, c.int(2));
        c.when(alone, || self.each(|column, dim| self.store(column, dim, waves(column, dim))));
        c.when(c.b.build_not(alone, "").expect("a condition"), || {
            let own = Partial::at(a, self.partials, columns, self.split);
            self.each(|column, dim| own.store(c, column, dim, waves(column, dim)));
            c.barrier();
            c.when(c.equal(c.thread(), 0), || {
                c.release();
                c.store(turn, c.take_turn(self.counter), 4);
            });
            c.barrier();
            let turn = c.uniform(c.load(c.cx.i32_type(), turn, 4).into_int_value());
            c.when(c.equal(c.sub(self.used, turn), 1), || {
                c.acquire();
                self.each(|column, dim| self.store(column, dim, self.splits(column, dim)));
                c.when(c.equal(c.thread(), 0), || c.store(self.counter, c.cx.i32_type().const_zero(), 4));
            });
        });
    }

    /// `body` for each vector of each query, by all threads.
    fn each(&self, body: impl FnOnce(Int<'c>, Int<'c>)) {
        let (a, c) = (self.attention, self.code());
        c.set_lanes(a.lanes.min(4));
        let vectors = a.cache.layout.dim / c.lanes();
        c.repeat(c.thread(), c.int(self.shape.columns * vectors), self.shape.threads, |i| {
            body(c.div(i, vectors), c.mul(c.rem(i, vectors), c.int(c.lanes())));
        });
    }

    /// The values of all splits, some at a time so that their loads are under way together.
    fn splits(&self, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let last = c.sub(self.used, c.int(1));
        let begin = [a.lowest().into(), c.number(0.0).into(), c.zero().into()];
        let step = MERGED.min(self.shape.splits);
        let of = |v: &[Any<'c>]| (v[0].into_float_value(), v[1].into_float_value(), v[2].into_vector_value());
        let all = c.for_each((c.int(0), self.used, step), &begin, |first, carried| {
            let load = |i: usize| {
                let number = c.add(first, c.int(i));
                let real = c.less(number, self.used);
                let (top, sum, values) =
                    Partial::at(a, self.partials, self.shape.columns, c.smaller(number, last)).load(c, column, dim);
                (c.pick(real, top, c.number(f64::NEG_INFINITY)).into_float_value(), sum, values)
            };
            let items: Vec<Item<'c>> = std::iter::once(of(carried)).chain((0..step).map(load)).collect();
            let (top, sum, values) = self.merge(&items);
            vec![top.into(), sum.into(), values.into()]
        });
        of(&all)
    }

    /// Several as one, each shrunk by how far it is below the highest top.
    fn merge(&self, items: &[Item<'c>]) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let top = items[1..].iter().fold(items[0].0, |top, item| a.max(top, item.0));
        let begin = (c.number(0.0), c.zero());
        let (sum, values) = items.iter().fold(begin, |(sums, all), &(own, sum, values)| {
            let shrink = a.power(own, top);
            (a.fma(sum, shrink, sums), c.fma(values, c.splat(shrink), all))
        });
        (top, sum, values)
    }

    /// Divides by the sum and stores.
    fn store(&self, column: Int<'c>, dim: Int<'c>, (_, sum, values): Item<'c>) {
        let (a, c) = (self.attention, self.code());
        c.when(c.less(dim, c.int(a.cache.ty.head_dim)), || {
            let v = c.fdiv(values, c.splat(sum));
            c.store_floats(a.result(self.token, c.add(self.head, column), dim), v, a.out_type());
        });
    }
}
