//! Values that are a part of keys, transposed block by block for products: keys lie token by token,
//! and products with weights take numbers of consecutive tokens.
use super::{Attention, Block};
use crate::code::{Ptr, Vector};
use crate::host::LANES;

/// Bytes of a group of columns of a panel, or of a pair of tokens.
const GROUP: usize = 4;
/// Bytes of a group of all 16 rows of a panel.
const GROUPS: usize = GROUP * LANES;

impl<'c> Attention<'_, '_, 'c> {
    /// The values of a turn's blocks in scratch, from keys in the type of products.
    pub fn turned(&self, block: &Block<'c>, keys: &[Ptr<'c>]) -> Vec<Ptr<'c>> {
        let (c, l, group) = (self.code(), &self.cache.layout, self.dot.group);
        let bytes = l.block_tokens * l.value_dim * self.dot.dtype.size();
        // Groups of tokens follow each other in a panel of values, groups of columns in one of
        // keys.
        let (tokens, columns) = (l.block_tokens / group, l.dim / group);
        let turned = keys.iter().enumerate().map(|(number, &from)| {
            let to = c.at(block.turned, number * bytes);
            c.repeat(0, l.value_dim / group, 1, |j| {
                let col = j * group;
                let to = c.at(to, col / LANES * (tokens * GROUPS) + col % LANES * GROUP);
                for panel in 0..l.block_tokens / LANES {
                    let words = c.load(c.ints(c.cx.i32_type(), LANES), c.at(from, (j + panel * columns) * GROUPS), 4);
                    let first = panel * LANES / group * GROUPS;
                    self.scatter(words.into_vector_value(), c.at(to, first));
                }
            });
            to
        });
        turned.collect()
    }

    /// Stores a group of columns of 16 tokens, each group of tokens apart.
    fn scatter(&self, words: Vector<'c>, to: Ptr<'c>) {
        const BUILT: &str = "vectors of words";
        let c = self.code();
        if self.dot.group == 1 {
            return (0..LANES).for_each(|i| c.store(c.at(to, i * GROUPS), c.lane(words, i), 4));
        }
        let i32 = c.cx.i32_type();
        let k = |n: u64| c.splat(i32.const_int(n, false));
        // Lane i holds token 2 * i, then token 2 * i + 1; the upper lanes are not used.
        let [even, odd] = [0, 1].map(|first| {
            let lanes: Vec<usize> = (0..LANES).map(|i| (2 * i + first) % LANES).collect();
            c.shuffle(words, words, &lanes)
        });
        let low = c.b.build_and(even, k(0xffff), "").expect(BUILT);
        let low = c.b.build_or(low, c.b.build_left_shift(odd, k(16), "").expect(BUILT), "").expect(BUILT);
        let high = c.b.build_and(odd, k(0xffff_0000), "").expect(BUILT);
        let high = c.b.build_or(high, c.b.build_right_shift(even, k(16), false, "").expect(BUILT), "").expect(BUILT);
        // Both columns of a pair of tokens are neighbours.
        let lanes: Vec<usize> = (0..LANES).map(|i| i / 2 + i % 2 * LANES).collect();
        let both = c.shuffle(low, high, &lanes);
        let pairs = c.bitcast(both, c.ints(c.cx.i64_type(), LANES / 2)).into_vector_value();
        (0..LANES / 2).for_each(|i| c.store(c.at(to, i * GROUPS), c.lane(pairs, i), 4));
    }
}
