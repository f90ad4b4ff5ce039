//! The main loop: each wave multiplies its steps along K. The operands of a few steps are in
//! flight.
use inkwell::values::FloatValue;

use super::Group;
use super::loader::Source;
use crate::code::{Any, Int, Vector, carried};
use crate::simt::gemm::codes::StepWeight;
use crate::simt::machine::fragment::Fragment;

/// Most turns that are unrolled instead of looped.
const UNROLLED: usize = 2;

/// The loads of a step from global memory: rows, if they are there, and each piece's weight.
struct Asked<'c> {
    columns: Vec<Fragment<'c>>,
    scales: Vec<Any<'c>>,
    weights: Vec<StepWeight<'c>>,
}

carried!(Asked { columns, scales, weights });

impl<'c> Group<'_, '_, '_, 'c> {
    /// Sums over the whole weight.
    pub(super) fn all(&self, x: &dyn Source<'c>) -> Vec<Vector<'c>> {
        self.scaled(self.range(x, 0, self.shape.steps, self.zeros()))
    }

    /// Sums as numbers, if they are sums of codes.
    pub(super) fn scaled(&self, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        match &self.way {
            Some(way) => way.finish(sums, self.shape.columns),
            None => sums,
        }
    }

    /// Sums over steps `first` to `end`: the same number for each wave, one after the other, then
    /// one more for some waves.
    pub(super) fn range(&self, x: &dyn Source<'c>, first: usize, end: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let waves = self.sharing;
        let count = (end - first) / waves;
        let begin = self.wave * count + first;
        let sums = self.stretch(x, begin, count, sums);
        self.rest(x, first + count * waves, end, sums)
    }

    /// Steps of the wave from `begin` on. Each load takes the registers of the step that was just
    /// used, so that as many are always in flight.
    fn stretch(&self, x: &dyn Source<'c>, begin: Int<'c>, count: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let c = self.matrix().c;
        let ahead = self.shape.ahead.min(count);
        let ask = |i: usize| {
            c.keep_order();
            self.asked(x, (begin, i))
        };
        let mut sums = sums;
        let mut asked: Vec<Asked<'c>> = (0..ahead).map(ask).collect();
        let turn = |(from, i): (Int<'c>, usize), sums: &mut [Vector<'c>], asked: &mut [Asked<'c>], more: bool| {
            c.keep_order();
            self.use_up(x, (from, i), &asked[i % ahead], sums);
            if more {
                c.keep_order();
                asked[i % ahead] = self.asked(x, (from, i + ahead));
            }
        };
        let looped = if count > UNROLLED * ahead { (count / ahead - 1) * ahead } else { 0 };
        if looped > 0 {
            (sums, asked) = c.carry((0, looped, ahead), (sums, asked), |at, (mut sums, mut asked)| {
                (0..ahead).for_each(|i| turn((begin + at, i), &mut sums, &mut asked, true));
                (sums, asked)
            });
        }
        let begin = begin + looped;
        let left = count - looped;
        (0..left).for_each(|i| turn((begin, i), &mut sums, &mut asked, i + ahead < left));
        sums
    }

    /// The loads of a step from global memory: rows, if they are there, then weights.
    fn asked(&self, x: &dyn Source<'c>, step: (Int<'c>, usize)) -> Asked<'c> {
        let columns = if x.is_far() { self.columns_of(x, step) } else { vec![] };
        let scales = if x.is_far() { self.scales_of(x, step) } else { vec![] };
        Asked { columns, scales, weights: self.weights_of(step) }
    }

    /// Adds the products of a step. Its operands from global memory have arrived.
    fn use_up(&self, x: &dyn Source<'c>, step: (Int<'c>, usize), asked: &Asked<'c>, sums: &mut [Vector<'c>]) {
        let near = if x.is_far() { vec![] } else { self.columns_of(x, step) };
        let columns = if x.is_far() { &asked.columns } else { &near };
        let scales = if x.is_far() { asked.scales.clone() } else { self.scales_of(x, step) };
        let floats: Vec<FloatValue<'c>> = match self.scaled_products {
            Some(_) => vec![],
            None => scales.iter().map(|scale| scale.into_float_value()).collect(),
        };
        let (m, vec16s) = (self.matrix(), self.matrix().vec16s());
        let product = |i: usize| columns.iter().map(|column| column[i * vec16s..(i + 1) * vec16s].to_vec()).collect();
        let products: Vec<Vec<Fragment<'c>>> = (0..self.shape.times()).map(product).collect();
        for ((piece, weight), sums) in asked.weights.iter().enumerate().zip(sums.chunks_mut(self.shape.columns)) {
            match (&self.way, &self.scaled_products) {
                (Some(way), _) => way.add(piece, weight, (&products, &floats), sums),
                (None, Some(scaled)) => scaled.add(m, weight, (columns, &scales), sums),
                (None, None) => m.products(&weight.rows, columns, sums),
            }
        }
    }

    /// Steps from `first` up to `end`. Not every wave has one of them.
    fn rest(&self, x: &dyn Source<'c>, first: usize, end: usize, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        if first == end {
            return sums;
        }
        let c = self.matrix().c;
        let begin = self.wave + first;
        c.carry((begin, end, self.sharing), sums, |step, mut sums| {
            self.use_up(x, (step, 0), &self.asked(x, (step, 0)), &mut sums);
            sums
        })
    }
}
