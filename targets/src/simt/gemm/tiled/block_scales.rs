//! Scales of both operands for 32 columns, which matrix instructions take as stored. Those of the
//! next stretch are loaded while one is multiplied.
use super::Group;
use super::group_scales::StretchScales;
use crate::code::{Any, Int, Ptr};
use crate::simt::gemm::codes::Codes;
use crate::simt::machine::fragment::BlockScale;

use atomc_ir::arch::BlockScaled;

/// Bytes of a word of scales of a row.
const WORD: usize = 4;

/// The addresses of a lane's scales: of the row of each block's column, and of its row of the
/// weight in each tile of panels.
pub struct BlockScales<'c> {
    rows: Vec<Ptr<'c>>,
    weight: Vec<Ptr<'c>>,
    /// The shift of a word of a row's scales that puts the lane's first.
    shift: Int<'c>,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The addresses of scales, if instructions take them.
    pub(super) fn block_scales(&self) -> Option<BlockScales<'c>> {
        self.shape.block_scaled()?;
        let rows = (0..self.blocks()).map(|block| self.scales_of_block(block)).collect::<Option<Vec<_>>>()?;
        let tiles = self.shape.panels / self.accumulator.side();
        let weight = (0..tiles).map(|tile| self.scales_of_tile(self.codes?, tile)).collect::<Option<Vec<_>>>()?;
        Some(BlockScales { rows, weight, shift: self.accumulator.share() * 8 })
    }

    fn scales_of_block(&self, block: usize) -> Option<Ptr<'c>> {
        let (c, parts, s) = (self.contraction.matrix.c, &self.contraction.parts, &self.accumulator);
        let x = parts.kernel.rows.operand(parts.x).ok()?;
        let scales = c.arch.memory.row_scales(&x.ty)?;
        let first = self.wave[1] * (self.shape.blocks * 16) + s.column();
        let source = self.tile.source(c, first + s.width() * block);
        Some(c.at(c.at(x.ptr, c.to_i64(source) * x.ty.dtype.bytes(x.stride)), scales.first))
    }

    /// The halves of a wave have every other scale of a row.
    fn scales_of_tile(&self, codes: &Codes<'c>, tile: usize) -> Option<Ptr<'c>> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let row = s.column();
        let place = self.wave[0] * self.shape.panels + tile * s.side() + row / 16;
        let panel = self.tile.weight_of(self.contraction, self.place(place));
        Some(c.at(codes.scales_of_row(c, panel, row % 16), s.share() * 16))
    }

    /// Loads words of scales of each block's row, for a stretch in the first half of local memory,
    /// or for any stretch if each has its own.
    pub(super) fn load_block_rows(&self, from: &BlockScales<'c>, stretch: Int<'c>) -> Vec<Vec<Any<'c>>> {
        let c = self.contraction.matrix.c;
        let groups = self.shape.stretch / BlockScaled::COLUMNS;
        let bytes = groups * if self.shape.has_pairs() { 2 } else { 1 };
        // One load: the rows of lanes are far apart, and each is a line of its own.
        let words = |&p: &Ptr<'c>| -> Vec<Any<'c>> {
            let words = c.load_vector(c.cx.i32_type(), bytes / WORD, c.at(p, stretch * groups), bytes);
            (0..bytes / WORD).map(|i| c.lane(words, i)).collect()
        };
        from.rows.iter().map(words).collect()
    }

    /// Loads the lane's scale of each step of a stretch, for each tile.
    pub(super) fn load_block_weights(&self, from: &BlockScales<'c>, stretch: Int<'c>) -> Vec<Vec<Any<'c>>> {
        let (c, s) = (self.contraction.matrix.c, &self.accumulator);
        let groups = self.shape.stretch / BlockScaled::COLUMNS;
        let byte = |&p: &Ptr<'c>, step: usize| {
            let p = c.at(c.at(p, stretch * (groups * 16)), step * (s.span() / BlockScaled::COLUMNS * 16));
            c.byte_as_word(p).into()
        };
        let all = |p: &Ptr<'c>| (0..self.shape.stretch / s.span()).map(|i| byte(p, i)).collect();
        from.weight.iter().map(all).collect()
    }

    /// The scales of a step of a stretch, for each block and for each tile.
    pub(super) fn scales_of_step(
        &self,
        from: &BlockScales<'c>,
        of: &StretchScales<'c>,
        step: usize,
    ) -> [Vec<BlockScale<'c>>; 2] {
        let c = self.contraction.matrix.c;
        let in_step = self.accumulator.span() / BlockScaled::COLUMNS;
        let first = of.number * self.shape.stretch / BlockScaled::COLUMNS + step * in_step;
        let of_row = |words: &Vec<Any<'c>>| BlockScale {
            word: c.as_int(words[first / WORD]).shifted_down(from.shift),
            byte: first % WORD,
        };
        let of_weight = |bytes: &Vec<Any<'c>>| BlockScale { word: c.as_int(bytes[step]), byte: 0 };
        [of.rows.iter().map(of_row).collect(), of.weight.iter().map(of_weight).collect()]
    }
}
