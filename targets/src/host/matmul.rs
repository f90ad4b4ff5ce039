//! Family `matmul`: many rows. One task is a block of rows against a few panels; x stays in the second-level cache while
//! panels stream by.
use atomc_ir::Diagnostic;
use atomc_ir::arch::Dot as Unit;

use super::LANES;
use super::contract::Contraction;
use super::dot::Walk;
use super::signature;
use super::tile::{self, Tiles};
use crate::code::{Code, Int, Ptr};
use crate::row::unsupported;
use crate::{KernelInfo, KernelSpec};

/// Bytes of x that stay in the second-level cache while panels stream by: three quarters of the 2 MiB that cores with AMX
/// have.
const RESIDENT: usize = 3 << 19;

pub fn emit<'c>(c: &Code<'c>, spec: &KernelSpec) -> Result<KernelInfo, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let contraction = Contraction::new(&kernel)?;
    let x = contraction
        .rows_in_memory()
        .ok_or_else(|| unsupported("a tiled contraction of rows that are not in memory"))?;
    let tiles = c.arch.cpu().dot == Unit::Tiles && contraction.dot.dtype == atomc_ir::DType::BF16;
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
    kernel.each(first, end, |task| {
        let from = task / times * block;
        let to = c.smaller(from + block, total);
        let panel = task % times * panels;
        let job = Job { c, contraction: &contraction, x, panel, panels };
        match &open {
            Some(tiles) => job.by_tiles(tiles, from, to),
            None => job.by_vectors(from, to),
        }
    })?;
    if let Some(tiles) = open {
        tiles.close();
    }
    Ok(KernelInfo::host(kernel.row_tasks(block, times), if tiles { SUMS * SUMS * 4 } else { 0 }))
}

/// Rows and columns of sums that the tile registers hold.
const SUMS: usize = 2 * tile::ROWS;

struct Job<'j, 'k, 'a, 'c> {
    c: &'a Code<'c>,
    contraction: &'j Contraction<'k, 'a, 'c>,
    x: (Ptr<'c>, usize),
    panel: Int<'c>,
    panels: usize,
}

impl<'c> Job<'_, '_, '_, 'c> {
    fn weights(&self) -> Vec<Ptr<'c>> {
        (0..self.panels).flat_map(|p| self.contraction.weights(self.panel + p)).collect()
    }

    fn row(&self, row: Int<'c>) -> Ptr<'c> {
        self.c.at(self.x.0, row * self.x.1)
    }

    /// 32 rows at a time. Rows beyond the step's last are computed and not used: results have room for them.
    fn by_tiles(&self, tiles: &Tiles<'_, 'c>, from: Int<'c>, to: Int<'c>) -> Result<(), Diagnostic> {
        let (c, weights) = (self.c, self.weights());
        let count = weights.len();
        let next = c.int(self.panels * self.contraction.panel_bytes());
        let mut result = Ok(());
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
                c.when(early, || {
                    let half = odd * (tile::ROWS / 2 * tile::ROW_BYTES);
                    self.prefetch(&weights, panel + half + next);
                });
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
            c.repeat(row, last, 1, |r| result = self.finish_tile_row(r, r - row, count));
        });
        result
    }

    /// Asks for half a tile of each panel at this distance: the first two turns over the rows bring the next task's panels,
    /// which lie behind this one's.
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

    fn finish(&self, row: Int<'c>, sums: &[crate::code::Vector<'c>]) -> Result<(), Diagnostic> {
        sums.chunks(self.contraction.pieces())
            .enumerate()
            .try_for_each(|(p, sums)| self.contraction.finish(row, self.panel + p, sums))
    }

    /// As many rows at a time as registers hold sums for. Spare rows as with tiles.
    fn by_vectors(&self, from: Int<'c>, to: Int<'c>) -> Result<(), Diagnostic> {
        let (c, weights) = (self.c, self.weights());
        let registers = c.arch.cpu().vector.registers * c.arch.cpu().vector.lanes / c.arch.memory.panel;
        let room = registers.saturating_sub((weights.len() + 1) * self.contraction.dot.registers()) / weights.len();
        let height = [8, 4, 2].into_iter().find(|&h| h <= room).unwrap_or(1);
        let mut result = Ok(());
        c.repeat(from, to, height, |row| {
            let rows: Vec<_> = (0..height).map(|r| self.row(row + r)).collect();
            let (count, step) = (self.contraction.groups(), self.contraction.dot.step(c));
            let sums = self.contraction.dot.sums(c, &rows, &weights, Walk { count, step, unroll: 1, ahead: None });
            for (r, sums) in sums.iter().enumerate() {
                if let Err(e) = self.finish(row + r, sums) {
                    result = Err(e);
                }
            }
        });
        result
    }
}
