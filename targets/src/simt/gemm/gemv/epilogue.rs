//! The epilogue: waves add up their sums in local memory, and consecutive features become results.
use atomc_ir::Diagnostic;

use super::{Group, Shape};
use crate::code::{Int, Ptr, Vector};

impl<'c> Group<'_, '_, '_, 'c> {
    /// Sums times the scales of rows. `at` gives the address of a column's scale.
    pub(super) fn scaled_by_rows(&self, sums: Vec<Vector<'c>>, at: impl Fn(Int<'c>) -> Ptr<'c>) -> Vec<Vector<'c>> {
        let m = self.matrix();
        let (c, f32) = (m.c, m.c.cx.f32_type());
        c.set_lanes(m.layout.results);
        let scale = |&column: &Int<'c>| c.splat(c.load(f32, at(column), 4));
        let scales: Vec<Vector<'c>> = self.columns.iter().map(scale).collect();
        sums.into_iter().enumerate().map(|(i, sum)| c.fmul(sum, scales[i % scales.len()])).collect()
    }

    /// Adds the waves' sums and stores the results.
    pub(super) fn epilogue(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (m, tile) = (self.matrix(), self.tile);
        let (c, place, results) = (m.c, m.place(), m.layout.results);
        let Shape { tokens, columns, width, waves, .. } = self.shape;
        let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
        let first = tile.feature();
        let column = |j: usize| place.column + width * j;
        let finish = |row, col, sums: &[_]| self.contraction.finish(row, tile.head(), col, sums);
        if self.shape.team() == 1 {
            return (0..columns).try_for_each(|j| {
                let sums: Vec<Vector<'c>> = sums.iter().skip(j).step_by(columns).copied().collect();
                c.when(tile.has(c, column(j)), || finish(tile.row(c, column(j)), first + place.results, &sums))
            });
        }
        let pieces = sums.len() / columns;
        let local = c.local(waves * pieces * tokens * 16 * 4);
        let at = |wave: Int<'c>, piece: usize, column: Int<'c>, feature: Int<'c>| {
            let row = (wave * pieces + piece) * tokens + column;
            c.at(local, (row * 16 + feature) * 4)
        };
        for j in 0..columns {
            c.when(tile.has(c, column(j)), || {
                for (piece, sums) in sums.chunks(columns).enumerate() {
                    c.store(at(c.wave_index(), piece, column(j), place.results), sums[j], 16);
                }
            });
        }
        c.barrier();
        let count = 16 / results;
        c.repeat(c.thread(), tokens * count, self.shape.threads(c.simt), |item| {
            let (column, feature) = (item / count, item % count * results);
            let load = |wave: usize, piece: usize| {
                c.load_vector(c.cx.f32_type(), results, at(c.int(wave), piece, column, feature), 16)
            };
            let sum = |piece: usize| (1..waves).fold(load(0, piece), |sum, wave| c.fadd(sum, load(wave, piece)));
            let sums: Vec<Vector<'c>> = (0..pieces).map(sum).collect();
            let row = tile.row(c, column);
            tile.when_there(c, row, || finish(row, first + feature, &sums))
        })
    }
}
