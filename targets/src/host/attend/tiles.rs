//! A turn of attention for 32 rows, with products by tiles. It takes several blocks of keys at
//! once: the other costs of a turn (maxima, rescaling of results, results through memory) hardly
//! depend on the number of blocks.
use atomc_ir::DType;

use super::{Attention, Block, Span, Turn};
use crate::code::Int;
use crate::host::LANES;
use crate::host::tile::{self, Tiles};

/// Blocks of keys in one turn.
pub const BLOCKS: usize = 4;

impl<'c> Attention<'_, '_, 'c> {
    pub fn turn_by_tiles(&self, block: &Block<'c>, span: &Span<'c>, turn: &Turn<'_, 'c>, tiles: &Tiles<'_, 'c>) {
        let c = self.code();
        for number in 0..BLOCKS {
            let exists = c.less(number, turn.left + 1);
            c.when(exists, || self.score(block, turn, number, tiles));
        }
        c.repeat(0, span.count, 1, |r| self.soften_and_shrink(block, r, turn));
        self.sum_values(block, turn, tiles);
    }

    /// Products of the queries with one block of keys.
    fn score(&self, block: &Block<'c>, turn: &Turn<'_, 'c>, number: usize, tiles: &Tiles<'_, 'c>) {
        let (c, l) = (self.code(), &self.cache.layout);
        (0..4).for_each(|t| tiles.zero(t));
        for depth in 0..l.dim / tile::DEPTH {
            for r in 0..2 {
                let at = r * tile::ROWS * l.dim * 2 + depth * tile::ROW_BYTES;
                tiles.load(4 + r, c.at(block.query, at), l.dim * 2);
            }
            for p in 0..2 {
                let at = p * LANES * l.dim * 2 + depth * tile::ROWS * tile::ROW_BYTES;
                tiles.load(6 + p, c.at(turn.keys[number], at), tile::ROW_BYTES);
                (0..2).for_each(|r| tiles.multiply(2 * r + p, 4 + r, 6 + p));
            }
        }
        for t in 0..4 {
            let at = t / 2 * tile::ROWS * block.keys + number * l.block_tokens + t % 2 * LANES;
            tiles.store(t, c.at(block.score, 4 * at), block.keys * 4);
        }
    }

    fn soften_and_shrink(&self, block: &Block<'c>, row: Int<'c>, turn: &Turn<'_, 'c>) {
        let c = self.code();
        let line = self.row(block.score, row, block.keys * 4);
        let load = |k: usize| c.load_floats(c.at(line, 4 * k), DType::F32);
        let scores: Vec<_> = (0..block.keys).step_by(LANES).map(load).collect();
        let shrink = self.soften(block, row, &scores, turn);
        let dim = self.cache.layout.value_dim;
        let result = self.row(block.result, row, dim * 4);
        for col in (0..dim).step_by(LANES) {
            let p = c.at(result, 4 * col);
            c.store(p, c.fmul(c.load_floats(p, DType::F32), shrink), 4);
        }
    }

    /// Adds the weighted values to the results, two tiles of columns at a time.
    fn sum_values(&self, block: &Block<'c>, turn: &Turn<'_, 'c>, tiles: &Tiles<'_, 'c>) {
        let (c, l) = (self.code(), &self.cache.layout);
        let result = |t: usize, col: Int<'c>| {
            let at = t / 2 * tile::ROWS * l.value_dim + t % 2 * LANES;
            c.at(block.result, (col + at) * 4)
        };
        c.repeat(0, l.value_dim, 2 * LANES, |col| {
            (0..4).for_each(|t| tiles.load(t, result(t, col), l.value_dim * 4));
            for (number, &values) in turn.values.iter().enumerate() {
                for r in 0..2 {
                    let at = (r * tile::ROWS * block.keys + number * l.block_tokens) * 2;
                    tiles.load(4 + r, c.at(block.weight, at), block.keys * 2);
                }
                let first = c.at(values, col * (l.block_tokens * 2));
                for n in 0..2 {
                    tiles.load(6 + n, c.at(first, n * LANES * l.block_tokens * 2), tile::ROW_BYTES);
                    (0..2).for_each(|r| tiles.multiply(2 * r + n, 4 + r, 6 + n));
                }
            }
            (0..4).for_each(|t| tiles.store(t, result(t, col), l.value_dim * 4));
        });
    }
}
