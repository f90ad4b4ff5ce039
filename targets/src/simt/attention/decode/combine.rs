//! Combines the shares of a sequence: those of a work-group's waves in local memory, those of
//! work-groups in the workspace.
//!
//! Waves first exchange row maxima and sums of weights. Then each knows the factor of its values,
//! and the values only have to be added, some dimensions at a time: so little local memory is
//! enough.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::kv_pipeline::spread;
use super::{Part, WAVES};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::attention::flash::Attention;
use crate::simt::attention::online_softmax::OnlineSoftmax;
use crate::simt::machine::Gpu;
use crate::simt::rowwise::store_coded;

/// Parts that are put together at a time.
const MERGED: usize = 16;
/// Most bytes of local memory in which waves add their values.
const EXCHANGED: usize = 8 << 10;

/// One work-group's result of its keys, in memory: sums of values query by query, then row maxima,
/// then sums of weights.
#[derive(Clone, Copy)]
pub struct Partial<'c> {
    ptr: Ptr<'c>,
    columns: usize,
    /// Bytes from one query to the next.
    stride: usize,
}

/// A row maximum, a sum of weights, and a vector of sums of values.
type Item<'c> = (FloatValue<'c>, FloatValue<'c>, Vector<'c>);

impl<'c> Partial<'c> {
    fn stride(a: &Attention) -> usize {
        a.values().1 * 4
    }

    pub fn bytes(a: &Attention, columns: usize) -> usize {
        (columns * (Self::stride(a) + 8)).next_multiple_of(64)
    }

    fn at(a: &Attention<'_, '_, 'c>, base: Ptr<'c>, columns: usize, number: Int<'c>) -> Partial<'c> {
        let c = a.code();
        let bytes = number * Self::bytes(a, columns);
        Partial { ptr: c.at(base, bytes), columns, stride: Self::stride(a) }
    }

    fn values(&self, c: &Gpu<'c>, column: Int<'c>, dim: Int<'c>) -> Ptr<'c> {
        c.at(self.ptr, column * self.stride + dim * 4)
    }

    /// The address of a row maximum, or of a sum of weights.
    fn number(&self, c: &Gpu<'c>, column: Int<'c>, is_sum: bool) -> Ptr<'c> {
        let first = self.columns * self.stride + if is_sum { 4 * self.columns } else { 0 };
        c.at(self.ptr, column * 4 + first)
    }

    fn load(&self, c: &Gpu<'c>, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let number = |is_sum| c.load(c.cx.f32_type(), self.number(c, column, is_sum), 4).into_float_value();
        let values = c.load(c.f32s(), self.values(c, column, dim), 4 * c.lanes() as u32).into_vector_value();
        (number(false), number(true), values)
    }
}

/// Dimensions in which the waves add their values at a time: whole groups with one scale if the
/// result is quantised.
fn width(a: &Attention, columns: usize) -> usize {
    let (dim, least) = (a.values().1, a.codes.map_or(16, |(_, group)| group.max(16)));
    let fits = |width: &usize| dim.is_multiple_of(*width) && WAVES * columns * width * 4 <= EXCHANGED;
    (1..=dim / least).rev().map(|parts| least * parts).find(fits).unwrap_or(least)
}

/// Bytes of local memory through which the waves combine their values. Its first `staged` bytes are
/// in use until then.
pub fn local_bytes(a: &Attention, columns: usize, staged: usize) -> usize {
    (staged + 8 * WAVES * columns).max(4 * WAVES * columns * width(a, columns))
}

impl<'c> Part<'_, '_, '_, 'c> {
    /// Puts the waves' values together: into the result, or with those of other splits.
    pub fn combine(&self, local: Ptr<'c>, staged: usize, running: &OnlineSoftmax<'c>) -> Result<(), Diagnostic> {
        let (a, c, columns) = (self.attention, self.code(), self.shape.columns);
        let alone = (self.shape.splits > 1).then(|| c.less(self.used, 2));
        let own = Partial::at(a, self.partials, columns, self.split);
        let (row_max, sum) = self.agree(c.at(local, staged), running);
        let rescale = a.rescale(running.row_max, row_max);
        c.set_lanes(1);
        let whole = c.lane(c.fdiv(c.splat(rescale), c.splat(sum)), 0);
        let scale = alone.map_or(whole, |alone| c.pick(alone, whole, rescale)).into_float_value();
        if let Some(alone) = alone {
            let column = a.place.column;
            let one = c.equal(c.wave_index(), 0) & self.one_of_column();
            c.when(!alone & one, || {
                c.store(own.number(c, column, false), row_max, 4);
                c.store(own.number(c, column, true), sum, 4);
            });
        }
        for first in (0..a.values().1).step_by(width(a, columns)) {
            c.barrier();
            self.leave(local, first, running, scale);
            c.barrier();
            self.each(width(a, columns), |column, dim| {
                let values = self.added(local, column, dim);
                let dim = dim + first;
                let store = || self.store(column, dim, values);
                let Some(alone) = alone else { return store() };
                let stored = c.when(alone, store);
                c.when(!alone, || c.store(own.values(c, column, dim), values, 4 * c.lanes() as u32));
                stored
            })?;
        }
        alone.map_or(Ok(()), |alone| c.when(!alone, || self.combine_splits(local)))
    }

    /// Whether the lane has a query, and is the first that has it.
    fn one_of_column(&self) -> Int<'c> {
        let (a, c) = (self.attention, self.code());
        c.less(a.place.column, self.shape.columns) & c.equal(a.half, 0)
    }

    /// The highest score of the lane's query in all waves, and the sum of all weights under it.
    fn agree(&self, numbers: Ptr<'c>, running: &OnlineSoftmax<'c>) -> (FloatValue<'c>, FloatValue<'c>) {
        let (a, c, columns) = (self.attention, self.code(), self.shape.columns);
        let sum = a.total(running.sum);
        let column = a.place.column;
        let at = |wave: Int<'c>, column: Int<'c>, is_sum: usize| {
            let number = wave * columns + column;
            c.at(numbers, number * 8 + 4 * is_sum)
        };
        c.when(self.one_of_column(), || {
            c.store(at(c.wave_index(), column, 0), running.row_max, 8);
            c.store(at(c.wave_index(), column, 1), sum, 4);
        });
        c.barrier();
        let column = c.smaller(column, columns - 1);
        let load = |wave, is_sum| c.load(c.cx.f32_type(), at(c.int(wave), column, is_sum), 4).into_float_value();
        let all: Vec<_> = (0..WAVES).map(|wave| (load(wave, 0), load(wave, 1))).collect();
        let row_max = all[1..].iter().fold(all[0].0, |row_max, wave| a.max(row_max, wave.0));
        let sum = all.iter().fold(c.number(0.0), |sum, &(own, part)| a.fma(part, a.rescale(own, row_max), sum));
        (row_max, sum)
    }

    /// The wave's values of a width of dimensions from `first` on, scaled, for the others to see.
    fn leave(&self, local: Ptr<'c>, first: usize, running: &OnlineSoftmax<'c>, scale: FloatValue<'c>) {
        let (a, c) = (self.attention, self.code());
        let (width, results) = (width(a, self.shape.columns), a.matrix.layout.results);
        // Consecutive dimensions of a panel, or two of each 8.
        let spreads = self.shape.stages > 0;
        let (together, own) = if spreads { (2, a.place.share * 2) } else { (4, a.place.results) };
        c.when(c.less(a.place.column, self.shape.columns), || {
            for (j, &values) in running.values[first / 16..(first + width) / 16].iter().enumerate() {
                c.set_lanes(results);
                let values = c.fmul(values, c.splat(scale));
                for i in (0..results).step_by(together) {
                    let dim = own + (16 * j + if spreads { spread(i) } else { i });
                    let to = self.exchanged(local, c.wave_index(), a.place.column, dim);
                    c.store(to, c.part(values, i, together), 4 * together as u32);
                }
            }
        });
    }

    /// The sum of all waves' values from a dimension on.
    fn added(&self, local: Ptr<'c>, column: Int<'c>, dim: Int<'c>) -> Vector<'c> {
        let c = self.code();
        let load = |wave| {
            let p = self.exchanged(local, c.int(wave), column, dim);
            c.load(c.f32s(), p, 4 * c.lanes() as u32).into_vector_value()
        };
        (1..WAVES).map(load).fold(load(0), |sum, v| c.fadd(sum, v))
    }

    /// The address where a wave leaves its values. Four dimensions stay together. Their order
    /// differs from query to query, so that equal dimensions are in different banks.
    fn exchanged(&self, local: Ptr<'c>, wave: Int<'c>, column: Int<'c>, dim: Int<'c>) -> Ptr<'c> {
        let (c, columns) = (self.code(), self.shape.columns);
        let width = width(self.attention, columns);
        let turns = 1 << (width / 4).trailing_zeros();
        let four = (dim / 4) ^ (column % turns);
        let row = (wave * columns + column) * (4 * width);
        c.at(local, row + (four * 16 + dim % 4 * 4))
    }

    /// The last of a sequence's work-groups combines the results of all.
    fn combine_splits(&self, turn: Ptr<'c>) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.code());
        c.barrier_to_publish();
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.store(turn, c.take_turn(self.counter), 4);
        });
        c.barrier();
        let turn = c.uniform(c.as_int(c.load(c.cx.i32_type(), turn, 4)));
        c.when(c.equal(self.used - turn, 1), || {
            c.acquire();
            let stored = self.each(a.values().1, |column, dim| {
                let (_, sum, values) = self.splits(column, dim);
                self.store(column, dim, c.fdiv(values, c.splat(sum)))
            });
            c.when(c.equal(c.thread(), 0), || c.store(self.counter, c.cx.i32_type().const_zero(), 4));
            stored
        })
    }

    /// Runs `body` for each vector of `dims` dimensions of each query, by all threads.
    fn each(
        &self,
        dims: usize,
        body: impl FnOnce(Int<'c>, Int<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.code());
        c.set_lanes(a.lanes.min(4));
        let vectors = dims / c.lanes();
        c.repeat(c.thread(), self.shape.columns * vectors, self.shape.threads, |i| {
            body(i / vectors, i % vectors * c.lanes())
        })
    }

    /// The values of all splits, some at a time so that their loads are in flight together.
    fn splits(&self, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let last = self.used - 1;
        let begin = [a.lowest().into(), c.number(0.0).into(), c.zero().into()];
        let step = MERGED.min(self.shape.splits);
        let of = |v: &[Any<'c>]| (v[0].into_float_value(), v[1].into_float_value(), v[2].into_vector_value());
        let all = c.for_each((0, self.used, step), &begin, |first, carried| {
            let load = |i: usize| {
                let number = first + i;
                let real = c.less(number, self.used);
                let (row_max, sum, values) =
                    Partial::at(a, self.partials, self.shape.columns, c.smaller(number, last)).load(c, column, dim);
                (c.pick(real, row_max, c.number(f64::NEG_INFINITY)).into_float_value(), sum, values)
            };
            let items: Vec<Item<'c>> = std::iter::once(of(carried)).chain((0..step).map(load)).collect();
            let (row_max, sum, values) = self.merge(&items);
            vec![row_max.into(), sum.into(), values.into()]
        });
        of(&all)
    }

    /// Several as one, each rescaled by how far it is below the highest row maximum.
    fn merge(&self, items: &[Item<'c>]) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let row_max = items[1..].iter().fold(items[0].0, |row_max, item| a.max(row_max, item.0));
        let begin = (c.number(0.0), c.zero());
        let (sum, values) = items.iter().fold(begin, |(sums, all), &(own, sum, values)| {
            let rescale = a.rescale(own, row_max);
            (a.fma(sum, rescale, sums), c.fma(values, c.splat(rescale), all))
        });
        (row_max, sum, values)
    }

    /// Stores a vector of the result, quantised if the result is. All lanes with a group of columns
    /// with one scale call this together.
    fn store(&self, column: Int<'c>, dim: Int<'c>, values: Vector<'c>) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.code());
        if let Some(codes) = a.codes {
            let (token, head) = self.query(column);
            return store_coded(a.kernel, codes, a.results.out, (token, head * a.cache.ty.value_dim + dim), values);
        }
        let dim = if self.shape.values == self.shape.of_values { dim } else { dim + a.values().0 };
        let inside = c.less(dim, a.cache.ty.value_dim);
        let inside = if self.shape.each == 1 { inside } else { inside & self.is_real(column) };
        c.when(inside, || {
            let (token, head) = self.query(column);
            c.store_floats(a.result(token, head, dim), values, a.out_type());
        });
        Ok(())
    }
}
