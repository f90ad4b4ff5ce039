//! Family `matmul`: many rows. One task is a block of rows against a few panels; x stays in the
//! second-level cache while panels stream by.
use atomc_artifact::manifest;
use atomc_ir::Diagnostic;
use inkwell::IntPredicate;

use super::codes::Codes;
use super::contract::{Contraction, LINE};
use super::dot::{AHEAD, Walk};
use super::signature;
use super::tile::{self, Tiles};
use super::{Host, LANES};
use crate::KernelSpec;
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::row::unsupported;

/// Bytes of x that stay in the second-level cache while panels stream by: three quarters of the 2
/// MiB that cores with AMX have.
const RESIDENT: usize = 3 << 19;

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(c, &kernel)?;
    let unpacked_row = contraction.unpacked_row();
    let x = contraction
        .rows_in_memory()
        .or(unpacked_row.map(|bytes| (signature::scratch(c), bytes)))
        .ok_or_else(|| unsupported("a tiled contraction of rows that are not in memory"))?;
    let tiles = contraction.dot.has_tiles();
    let wide = 2 / contraction.pieces().min(2);
    let panels = if contraction.panels().is_multiple_of(wide) { wide } else { 1 };
    if tiles && panels * contraction.pieces() > 2 {
        return Err(unsupported("a tiled contraction in more than two pieces"));
    }
    let times = contraction.panels() / panels;
    let block = (RESIDENT / x.1 / SUMS * SUMS).clamp(SUMS, spec.tokens.next_multiple_of(SUMS));
    let (tokens, step_rows) = signature::step(c);
    let total = if kernel.by_rows { step_rows } else { tokens };
    let (first, end) = signature::tasks(c);
    let open = tiles.then(|| Tiles::open(c, tile::ROWS));
    let codes = contraction.codes()?;
    let sums = if tiles { SUMS * SUMS * 4 } else { 0 };
    let unpacked = if codes.is_some() { panels * contraction.pieces() * contraction.float_panel_bytes() } else { 0 };
    let rows_at = c.at(signature::scratch(c), sums + unpacked);
    let unpacked_rows = unpacked_row.map(|bytes| block * bytes + LINE);
    if unpacked_rows.is_some() {
        c.store(rows_at, 0 - c.int(1), 8);
    }
    kernel.each(first, end, |task| {
        let from = task / times * block;
        let mut x = x;
        if let Some(bytes) = unpacked_row {
            let (to, mut made) = (c.at(rows_at, LINE), Ok(()));
            // Most tasks use the same rows as the previous task.
            c.when(c.compare(IntPredicate::NE, c.load_i64(rows_at), from), || {
                made = contraction.unpack(from, c.smaller(from + block, total), to);
                c.store(rows_at, from, 8);
            });
            made?;
            x.0 = c.at(to, 0 - from * bytes);
        }
        let to = c.smaller(from + block, total);
        let panel = task % times * panels;
        let scratch = codes.as_ref().map(|codes| (codes, c.at(signature::scratch(c), sums)));
        let few = spec.invariant;
        let job = Job { c, contraction: &contraction, x, panel, panels, scratch, chosen: None, few };
        match &open {
            Some(tiles) => job.by_tiles(tiles, from, to),
            None => job.by_vectors(from, to),
        }
    })?;
    if let Some(tiles) = open {
        tiles.close();
    }
    Ok(manifest::Kernel::host(kernel.row_tasks(block, times), sums + unpacked + unpacked_rows.unwrap_or(0)))
}

/// Rows and columns of sums that the tile registers hold.
pub const SUMS: usize = 2 * tile::ROWS;

pub struct Job<'j, 'k, 'a, 'c> {
    pub c: &'a Code<'c>,
    pub contraction: &'j Contraction<'k, 'a, 'c>,
    pub x: (Ptr<'c>, usize),
    pub panel: Int<'c>,
    pub panels: usize,
    /// Codes, and where their panels are unpacked.
    pub scratch: Option<(&'j Codes<'a, 'c>, Ptr<'c>)>,
    /// The row of the result of each row, and the number of these for a row of x, if rows are
    /// chosen. Then there is no room for spare ones.
    pub chosen: Option<(Ptr<'c>, usize)>,
    /// Whether steps may have few rows: vectors then compute no spare ones, and prefetch the
    /// weight. A row's sums are in the same order for one row and for several.
    pub few: bool,
}

impl<'c> Job<'_, '_, '_, 'c> {
    /// The addresses of the panels, for floats.
    fn weights(&self) -> Vec<Ptr<'c>> {
        let (c, contraction) = (self.c, self.contraction);
        let Some((codes, scratch)) = self.scratch else {
            return (0..self.panels).flat_map(|p| contraction.weights(self.panel + p)).collect();
        };
        let behind = c.int(contraction.panels() - self.panels) - self.panel;
        let ahead = Some(c.smaller(behind, self.panels));
        let panels = (0..self.panels).flat_map(|p| contraction.weight_panels(self.panel + p, ahead));
        let unpack = |(i, panel)| {
            let to = c.at(scratch, i * contraction.float_panel_bytes());
            codes.unpack(panel, to, contraction.dot.dtype);
            to
        };
        panels.enumerate().map(unpack).collect()
    }

    fn row(&self, row: Int<'c>) -> Ptr<'c> {
        self.c.at(self.x.0, row * self.x.1)
    }

    /// 32 rows at a time. Rows beyond the step's last are computed and not used: results have room
    /// for them.
    pub fn by_tiles(&self, tiles: &Tiles<'_, 'c>, from: Int<'c>, to: Int<'c>) -> Result<(), Diagnostic> {
        let (c, weights) = (self.c, self.weights());
        let count = weights.len();
        let next = c.int(self.panels * self.contraction.panel_bytes());
        c.repeat(from, to, SUMS, |row| {
            let early = c.less(row, from + 2 * SUMS);
            let odd = (row - from) / SUMS % 2;
            (0..2 * count).for_each(|t| tiles.zero(t));
            let [upper, lower] = [0, tile::ROWS].map(|r| self.row(row + r));
            c.repeat(0, self.contraction.groups() / tile::ROWS, 1, |k| {
                let depth = k * tile::ROW_BYTES;
                tiles.load(4, c.at(upper, depth), self.x.1);
                tiles.load(5, c.at(lower, depth), self.x.1);
                let panel = k * (tile::ROWS * tile::ROW_BYTES);
                if self.scratch.is_none() {
                    c.when(early, || {
                        let half = odd * (tile::ROWS / 2 * tile::ROW_BYTES);
                        self.prefetch(&weights, panel + half + next);
                    });
                }
                for (n, &w) in weights.iter().enumerate() {
                    tiles.load(6 + n, c.at(w, panel), tile::ROW_BYTES);
                    tiles.multiply(n, 4, 6 + n);
                    tiles.multiply(count + n, 5, 6 + n);
                }
            });
            for t in 0..2 * count {
                let at = (t / count * tile::ROWS * SUMS + t % count * LANES) * 4;
                tiles.store(t, c.at(signature::scratch(c), at), SUMS * 4);
            }
            let last = c.smaller(row + SUMS, to);
            c.repeat(row, last, 1, |r| self.finish_tile_row(r, r - row, count))
        })
    }

    /// Prefetches half a tile of each panel at this distance. The first two turns over the rows
    /// bring in the next task's panels, which follow this one's.
    fn prefetch(&self, weights: &[Ptr<'c>], distance: Int<'c>) {
        let c = self.c;
        for &w in weights {
            for line in 0..tile::ROWS / 2 {
                c.prefetch(c.at(w, distance + line * tile::ROW_BYTES));
            }
        }
    }

    fn finish_tile_row(&self, row: Int<'c>, at: Int<'c>, count: usize) -> Result<(), Diagnostic> {
        let c = self.c;
        let line = c.at(signature::scratch(c), at * (SUMS * 4));
        let sums: Vec<_> = (0..count).map(|n| c.load_floats(c.at(line, n * LANES * 4), atomc_ir::DType::F32)).collect();
        self.finish(row, &sums)
    }

    fn finish(&self, row: Int<'c>, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (row, x_row) = match self.chosen {
            None => (row, row),
            Some((list, each)) => {
                let row = self.c.load_made_index(list, row);
                (row, row / each)
            }
        };
        let scale = self.contraction.row_scale(x_row)?;
        let sums: Vec<_> = sums.iter().map(|&sum| scale.map_or(sum, |scale| self.c.fmul(sum, scale))).collect();
        sums.chunks(self.contraction.pieces()).enumerate().try_for_each(|(p, sums)| {
            let panel = self.panel + p;
            match self.scratch {
                Some((codes, _)) if codes.scales_whole_sums() => {
                    let scales = self.contraction.weight_panels(panel, None).map(|w| codes.scale(w, self.c.int(0)));
                    let sums: Vec<_> = sums.iter().zip(scales).map(|(&sum, scale)| self.c.fmul(sum, scale)).collect();
                    self.contraction.finish(row, panel, &sums)
                }
                _ => self.contraction.finish(row, panel, sums),
            }
        })
    }

    /// Multiplies as many rows at a time as registers hold sums for. Spare rows are handled as with
    /// tiles.
    pub fn by_vectors(&self, from: Int<'c>, to: Int<'c>) -> Result<(), Diagnostic> {
        let (c, weights) = (self.c, self.weights());
        let registers = self.contraction.dot.core.vector.holds(c.arch.memory.panel);
        let room = registers.saturating_sub((weights.len() + 1) * self.contraction.dot.registers()) / weights.len();
        let height = [8, 4, 2].into_iter().find(|&h| h <= room).unwrap_or(1);
        let (mut next, mut result) = (from, Ok(()));
        let heights = [8, 4, 2, 1].into_iter().filter(|&h| h == height || self.few && h < height);
        for height in heights {
            let end = if self.few { next + (to - next) / height * height } else { to };
            c.repeat(next, end, height, |row| {
                let rows: Vec<_> = (0..height).map(|r| self.row(row + r)).collect();
                let sums = self.by_spans(&rows, &weights).unwrap_or_else(|| {
                    let (count, step) = (self.contraction.groups(), self.contraction.dot.step(c));
                    let ahead = self.few.then(|| c.int(AHEAD));
                    self.contraction.dot.sums(c, &rows, &weights, Walk { count, step, unroll: 1, ahead })
                });
                for (r, sums) in sums.iter().enumerate() {
                    let mut finish = || {
                        if let Err(e) = self.finish(row + r, sums) {
                            result = Err(e);
                        }
                    };
                    if self.chosen.is_some() && !self.few { c.when(c.less(row + r, to), finish) } else { finish() }
                }
            });
            next = end;
        }
        result
    }

    /// The sums of some rows with unpacked panels, if sums of spans are scaled.
    fn by_spans(&self, rows: &[Ptr<'c>], weights: &[Ptr<'c>]) -> Option<Vec<Vec<Vector<'c>>>> {
        let (c, (codes, _), dot) = (self.c, self.scratch?, &self.contraction.dot);
        let zeros: Vec<Any> = vec![c.zero().into(); rows.len() * weights.len()];
        let sums = codes.each_span(&zeros, |span, before| {
            let of_rows: Vec<Ptr> = rows.iter().map(|&row| c.at(row, span.first * c.arch.memory.group_bytes)).collect();
            let panels: Vec<Ptr> = weights.iter().map(|&w| c.at(w, span.first * dot.step(c))).collect();
            let walk = Walk { count: span.pairs, step: dot.step(c), unroll: 1, ahead: None };
            let sums = dot.sums(c, &of_rows, &panels, walk);
            let panels = (0..self.panels).flat_map(|p| self.contraction.weight_panels(self.panel + p, None));
            let scales: Vec<Vector> = panels.map(|panel| codes.scale(panel, span.number)).collect();
            let own: Vec<_> = rows.iter().map(|&row| self.contraction.span_scale(row, codes, span.number)).collect();
            let scaled = |(i, before): (usize, &Any<'c>)| {
                let (row, panel) = (i / weights.len(), i % weights.len());
                let sum = own[row].map_or(sums[row][panel], |own| c.fmul(sums[row][panel], own));
                c.fma(sum, scales[panel], before.into_vector_value()).into()
            };
            before.iter().enumerate().map(scaled).collect()
        })?;
        let sums: Vec<Vector> = sums.iter().map(|sum| sum.into_vector_value()).collect();
        Some(sums.chunks(weights.len()).map(<[_]>::to_vec).collect())
    }
}
