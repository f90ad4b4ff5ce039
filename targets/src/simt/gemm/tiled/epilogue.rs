//! The epilogue: each wave makes results of its sums, a panel and a block of columns at a time.
//!
//! A lane has sums of four rows of a token, and its neighbours have those of other tokens: a store
//! touches as many lines as there are lanes. Sums of tiles of 32 by 32 go through local memory, so
//! that eight lanes have consecutive features of one token.
use atomc_ir::Diagnostic;

use super::Group;
use crate::code::{Any, Int, Vector};
use crate::simt::gemm::contract::Panel;

/// Rows and columns of a tile that goes through local memory at once, and features of a lane.
const TILE: usize = 32;
const LANE: usize = 4;
/// Bytes from one token to the next there, so that lanes of a column use different banks.
const PITCH: usize = TILE * 4 + 16;

impl<'c> Group<'_, '_, '_, 'c> {
    pub(super) fn epilogue(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (s, c) = (&self.accumulator, self.contraction.matrix.c);
        let sums: Vec<Vector<'c>> = sums.iter().map(|&sum| c.pin(sum)).collect();
        let room = self.shape.threads / c.simt.wave * TILE * PITCH <= self.shape.local();
        let is_wide = s.side() * 16 == TILE && s.width() == TILE && self.shape.made.is_multiple_of(s.side());
        if is_wide && room { self.by_tiles(&sums) } else { self.by_panels(&sums) }
    }

    /// Tile by tile of the wave's sums, through local memory.
    fn by_tiles(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (c, shape, panels) = (self.contraction.matrix.c, self.shape, self.contraction.panels());
        let (lane, in_row) = (c.lane_index(), TILE / LANE);
        let first = self.tile.panel() + self.wave[0] * shape.made;
        let tiles = shape.made / self.accumulator.side();
        let scales_of = |tile: usize| {
            let own = first + tile * self.accumulator.side() + lane % in_row / (16 / LANE);
            self.scales_of_row(own, lane % (16 / LANE) * LANE)
        };
        // All scales are loaded at once.
        let scales: Vec<Vec<Vector<'c>>> = (0..tiles).map(scales_of).collect();
        let in_pass = c.simt.wave / in_row;
        let column = |block: usize, pass: usize| {
            let inside = block * TILE + pass * in_pass;
            self.wave[1] * (shape.blocks * 16) + inside + lane / in_row
        };
        let row_scale = |(block, pass): (usize, usize)| {
            let token = self.tile.row(c, column(block, pass));
            self.row_scale(self.tile.source_of(c, token))
        };
        let passes = TILE / in_pass;
        let all = (0..self.blocks()).flat_map(|block| (0..passes).map(move |pass| (block, pass)));
        let row_scales: Vec<Option<Any<'c>>> = all.map(row_scale).collect();
        // All waves have read their operands from local memory.
        c.barrier();
        for (tile, scales) in scales.iter().enumerate() {
            let panel = first + tile * self.accumulator.side();
            let own = panel + lane % in_row / (16 / LANE);
            let inside = if panels.is_multiple_of(self.accumulator.side()) { panel } else { own };
            for block in 0..self.blocks() {
                let of_piece = |piece: usize| {
                    let number = piece * shape.made / self.accumulator.side() + tile;
                    self.exchanged(sums[number * self.blocks() + block])
                };
                let pieces: Vec<Vec<Vector<'c>>> = (0..shape.pieces).map(of_piece).collect();
                let made = c.when(c.less(inside, panels), || {
                    (0..passes).try_for_each(|pass| {
                        let of_row = row_scales[block * passes + pass];
                        let scaled = |(i, piece): (usize, &Vec<Vector<'c>>)| {
                            c.set_lanes(LANE);
                            let of_weight = scales.get(i);
                            self.times(of_weight.map_or(piece[pass], |&by| c.fmul(piece[pass], by)), of_row)
                        };
                        let sums: Vec<Vector<'c>> = pieces.iter().enumerate().map(scaled).collect();
                        let (column, feature) = (column(block, pass), panel * 16 + lane % in_row * LANE);
                        let token = self.tile.row(c, column);
                        let finish = || self.contraction.finish(token, self.tile.head(), feature, &sums);
                        self.tile.when_there(c, token, finish)
                    })
                });
                c.keep_order();
                made?;
            }
        }
        Ok(())
    }

    /// The sums of a tile, token after token, with consecutive features in each lane.
    fn exchanged(&self, sums: Vector<'c>) -> Vec<Vector<'c>> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let (lane, in_row) = (c.lane_index(), TILE / LANE);
        let own = c.at(self.local, c.wave_index() * (TILE * PITCH));
        c.wave_barrier();
        for panel in 0..s.side() {
            for (row, sums) in s.results(sums, panel) {
                c.store(c.at(c.at(own, s.column() * PITCH + row * 4), panel * 16 * 4), sums, (4 * LANE) as u32);
            }
        }
        c.wave_barrier();
        let from = c.at(own, lane / in_row * PITCH + lane % in_row * (4 * LANE));
        let tokens = c.simt.wave / in_row;
        let load = |i: usize| c.load_vector(c.cx.f32_type(), LANE, c.at(from, i * tokens * PITCH), 4 * LANE);
        (0..TILE / tokens).map(load).collect()
    }

    /// For each piece the scales of a lane's rows in a panel of the result, from a row on, group by
    /// group. These rows have one scale each.
    fn scales_of_row(&self, panel: Int<'c>, row: Int<'c>) -> Vec<Vector<'c>> {
        let c = self.contraction.matrix.c;
        let Some(codes) = self.codes.filter(|codes| codes.encoding.is_row_wise()) else { return vec![] };
        let pieces = self.tile.weights_of(self.contraction, panel).into_iter();
        pieces.map(|number| codes.scales(c, (number, row), LANE, None)).collect()
    }

    /// Panel by panel of the wave's sums, as lanes have them.
    fn by_panels(&self, sums: &[Vector<'c>]) -> Result<(), Diagnostic> {
        let (s, shape, c) = (&self.accumulator, self.shape, self.contraction.matrix.c);
        let first = self.tile.panel() + self.wave[0] * shape.made;
        let columns = self.wave[1] * (shape.blocks * 16) + s.column();
        for made in 0..shape.made {
            let panel = first + made;
            c.when(c.less(panel, self.contraction.panels()), || {
                let col = panel * 16;
                let scales = self.scales(panel);
                for block in 0..self.blocks() {
                    let token = self.tile.row(c, columns + s.width() * block);
                    let of_row = self.row_scale(self.tile.source_of(c, token));
                    let results = |piece: usize| {
                        let panel = piece * shape.made + made;
                        let results = s.results(sums[panel / s.side() * self.blocks() + block], panel % s.side());
                        let scaled = |(i, (row, sums)): (usize, (Int<'c>, Vector<'c>))| {
                            let sums = scales.get(piece).map_or(sums, |scales| c.fmul(sums, scales[i]));
                            (row, self.times(sums, of_row))
                        };
                        results.into_iter().enumerate().map(scaled).collect::<Vec<_>>()
                    };
                    let pieces: Vec<_> = (0..shape.pieces).map(results).collect();
                    for (i, &(row, _)) in pieces[0].iter().enumerate() {
                        let sums: Vec<Vector<'c>> = pieces.iter().map(|p| p[i].1).collect();
                        let finish = || self.contraction.finish(token, self.tile.head(), col + row, &sums);
                        self.tile.when_there(c, token, finish)?;
                    }
                    // One block at a time: the operands of all blocks do not fit into registers
                    // next to the sums.
                    c.keep_order();
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// For each piece of a panel of the result, the scales of the lane's rows, group by group.
    /// These rows have one scale each.
    fn scales(&self, panel: Int<'c>) -> Vec<Vec<Vector<'c>>> {
        let (s, c) = (&self.accumulator, self.contraction.matrix.c);
        let Some(codes) = self.codes.filter(|codes| codes.encoding.is_row_wise()) else { return vec![] };
        let of_piece = |number: Panel<'c>| {
            let rows = s.results(s.zero(), 0).into_iter();
            rows.map(|(row, sums)| codes.scales(c, (number, row), sums.get_type().get_size() as usize, None)).collect()
        };
        self.tile.weights_of(self.contraction, panel).into_iter().map(of_piece).collect()
    }

    /// The scale of a quantised row, which is stored after its codes.
    fn row_scale(&self, token: Int<'c>) -> Option<Any<'c>> {
        let (c, parts) = (self.contraction.matrix.c, &self.contraction.parts);
        let rows = &parts.kernel.rows;
        let x = rows.operand(parts.x).ok().filter(|_| rows.has_row_scale(parts.x))?;
        let row = c.at(x.ptr, c.to_i64(token) * x.stride);
        Some(c.load(c.cx.f32_type(), c.at(row, rows.padded(x)), 4))
    }

    fn times(&self, sums: Vector<'c>, scale: Option<Any<'c>>) -> Vector<'c> {
        let c = self.contraction.matrix.c;
        let Some(scale) = scale else { return sums };
        c.set_lanes(sums.get_type().get_size() as usize);
        c.fmul(sums, c.splat(scale))
    }
}
