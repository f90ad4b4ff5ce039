//! Where elements lie in rows of activations, in packed weights and in the KV cache: what emitters,
//! loaders and checks of kernels agree on.
use crate::arch::Memory;
use crate::types::{CacheType, DType, Layout};

/// A packed weight: panels of `width` rows, in them groups of `group` consecutive columns, in them
/// row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    /// Rows in a panel.
    pub width: usize,
    /// Columns in a group.
    pub group: usize,
    /// Rows, padded.
    pub rows: usize,
    /// Columns, padded.
    pub cols: usize,
    /// Size of the whole.
    pub bytes: usize,
}

impl Panels {
    /// How a weight of this shape is packed. Rows are padded like columns, so that a kernel may
    /// fill whole rows of its result.
    pub fn of(rows: usize, cols: usize, dtype: DType, memory: &Memory) -> Panels {
        let (padded, cols) = (memory.padded(rows), memory.padded(cols));
        let (group, bytes) = (memory.group_bytes * 8 / dtype.bits(), memory.packed_bytes(dtype, rows, cols));
        Panels { width: memory.panel, group, rows: padded, cols, bytes }
    }

    /// The packing of scales or zero points of this shape, in single columns. Columns that do not
    /// exist are not read.
    pub fn columns(rows: usize, cols: usize, dtype: DType, memory: &Memory) -> Panels {
        let bytes = memory.packed_bytes(dtype, rows, cols);
        Panels { width: memory.panel, group: 1, rows: memory.padded(rows), cols, bytes }
    }

    /// How a matrix in such a layout lies, if its rows do not lie one after the other.
    pub fn in_layout(layout: Layout, [rows, cols]: [usize; 2], dtype: DType, memory: &Memory) -> Option<Panels> {
        match layout {
            Layout::Rows | Layout::Scaled(_) | Layout::Mx(_) | Layout::Grouped { .. } => None,
            Layout::Panels => Some(Panels::of(rows, cols, dtype, memory)),
            Layout::Columns => Some(Panels::columns(rows, cols, dtype, memory)),
        }
    }

    /// The number of an element.
    pub fn index(&self, row: usize, col: usize) -> usize {
        let group = row / self.width * (self.cols / self.group) + col / self.group;
        (group * self.width + row % self.width) * self.group + col % self.group
    }
}

/// How the rows of a step are grouped by their experts: the words of 4 bytes after the experts'
/// indices. A row belongs to a pair of a token and one of its choices.
///
/// First come the experts of all pairs, then that of each block, then the pairs of each block. A
/// block has pairs of one expert in their order; blocks are in the order of experts. Pairs without
/// an expert (below zero) come last, in blocks of [`Groups::NONE`]. Blocks after these are
/// [`Groups::EMPTY`], and so are the free places of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The number of experts.
    pub experts: usize,
    /// Pairs of a block.
    pub tile: usize,
    /// Pairs of the step.
    pub pairs: usize,
}

impl Groups {
    /// The expert of empty blocks.
    pub const EMPTY: i32 = -1;
    /// The expert of blocks of pairs that have none.
    pub const NONE: i32 = -2;
    /// Each of the three parts begins at a multiple of this many words.
    pub const ALIGN: usize = 16;

    /// The most blocks that `pairs` pairs can fill: each expert, and none, may have one that is not
    /// full.
    pub fn blocks(&self) -> usize {
        let partial = self.pairs.min(self.experts.saturating_add(1));
        self.pairs.saturating_add(partial.saturating_mul(self.tile - 1)) / self.tile
    }

    /// Where the experts of blocks begin, and where their pairs do.
    pub fn parts(&self) -> [usize; 2] {
        let experts = self.pairs.next_multiple_of(Groups::ALIGN);
        [experts, experts.saturating_add(self.blocks().next_multiple_of(Groups::ALIGN))]
    }

    /// Words of the whole.
    pub fn words(&self) -> usize {
        self.parts()[1].saturating_add(self.blocks().saturating_mul(self.tile))
    }

    /// The memory of these experts, in words; what lies between its parts is anything.
    pub fn place(&self, experts: &[i32]) -> Vec<i32> {
        let [block, pair] = self.parts();
        let mut words = vec![Groups::EMPTY; self.words()];
        words[..experts.len()].copy_from_slice(experts);
        let mut next = 0;
        let known = (0..self.experts as i32).chain([Groups::NONE]);
        for expert in known {
            let own = |&other: &i32| if expert < 0 { other < 0 } else { other == expert };
            let pairs: Vec<usize> = (0..experts.len()).filter(|&pair| own(&experts[pair])).collect();
            for tile in pairs.chunks(self.tile) {
                words[block + next] = expert;
                tile.iter().enumerate().for_each(|(i, &p)| words[pair + next * self.tile + i] = p as i32);
                next += 1;
            }
        }
        words
    }
}

/// One layer's cache: pages, each a block of K, then one of V. A block has head after head. Inside
/// a head, keys lie as a packed weight of `block_tokens` rows and `head_dim` columns; values as one
/// of `value_dim` rows and `block_tokens` columns. Where values are a part of keys, there is no V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tokens in a page.
    pub block_tokens: usize,
    /// `head_dim`, padded.
    pub dim: usize,
    /// `value_dim`, padded.
    pub value_dim: usize,
    /// Consecutive tokens (of V) or columns (of K) that are stored together. Bytes have the same
    /// number as the two-byte elements that they are widened to, so that one becomes the other in
    /// order.
    pub group: usize,
    /// Bytes of one head in a block of K.
    pub head_bytes: usize,
    /// Bytes of one head in a block of V; where values are a part of keys, that of K.
    pub value_bytes: usize,
    /// Bytes of a page.
    pub block_bytes: usize,
    /// Where V begins in a page: where K does, if values are a part of keys.
    pub v_offset: usize,
}

impl CacheLayout {
    /// How a cache of this type lies.
    pub fn of(cache: CacheType, memory: &Memory) -> CacheLayout {
        let (dim, value_dim) = (memory.padded(cache.head_dim), memory.padded(cache.value_dim));
        let head_bytes = memory.block_tokens * dim * cache.dtype.size();
        let own = memory.block_tokens * value_dim * cache.dtype.size();
        let (value_bytes, own) = if cache.is_prefix { (head_bytes, 0) } else { (own, own) };
        CacheLayout {
            block_tokens: memory.block_tokens,
            dim,
            value_dim,
            group: memory.group_bytes / cache.dtype.size().max(2),
            head_bytes,
            value_bytes,
            block_bytes: cache.heads * (head_bytes + own),
            v_offset: if cache.is_prefix { 0 } else { cache.heads * head_bytes },
        }
    }
}

/// Where an element of K lies in a page, in bytes: of a column of a head's key, for a token of the
/// block.
pub fn key_offset(cache: CacheType, memory: &Memory, at: CacheAt) -> usize {
    let layout = CacheLayout::of(cache, memory);
    let (rows, cols) = (layout.block_tokens, layout.dim);
    let panels = Panels { width: memory.panel, group: layout.group, rows, cols, bytes: layout.head_bytes };
    at.head * layout.head_bytes + panels.index(at.token, at.col) * cache.dtype.size()
}

/// Where an element of V lies in a page, in bytes: of a column of a head's value, for a token of
/// the block.
pub fn value_offset(cache: CacheType, memory: &Memory, at: CacheAt) -> usize {
    if cache.is_prefix {
        return key_offset(cache, memory, at);
    }
    let layout = CacheLayout::of(cache, memory);
    let (rows, cols) = (layout.value_dim, layout.block_tokens);
    let panels = Panels { width: memory.panel, group: layout.group, rows, cols, bytes: layout.value_bytes };
    let head = layout.v_offset + at.head * layout.value_bytes;
    head + panels.index(at.col, at.token) * cache.dtype.size()
}

/// A place in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheAt {
    /// The token in its block.
    pub token: usize,
    /// The head.
    pub head: usize,
    /// The column inside the head.
    pub col: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_behind_their_experts() {
        let groups = Groups { experts: 3, tile: 2, pairs: 7 };
        // Four pairs leave a place open at most, and the others fill blocks.
        assert_eq!((groups.blocks(), groups.parts(), groups.words()), (5, [16, 32], 42));
        let words = groups.place(&[2, 0, -1, 2, 2, 0, 0]);
        assert_eq!(words[..7], [2, 0, -1, 2, 2, 0, 0]);
        assert_eq!(words[16..21], [0, 0, 2, 2, Groups::NONE]);
        assert_eq!(words[32..42], [1, 5, 6, -1, 0, 3, 4, -1, 2, -1]);
        let one = Groups { pairs: 3, ..groups }.place(&[1, 1, 1]);
        assert_eq!((&one[16..19], &one[32..38]), (&[1, 1, -1][..], &[0, 1, 2, -1, -1, -1][..]));
    }
}
