//! Where elements lie in rows of activations, in packed weights and in the KV cache: what emitters, loaders and checks of
//! kernels agree on.
use crate::arch::Memory;
use crate::types::{CacheType, DType};

/// A packed weight: panels of `width` rows, in them groups of `group` consecutive columns, in them row by row.
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
    /// How a weight of this shape is packed. Rows are padded like columns, so that a kernel may fill whole rows of its result.
    pub fn of(rows: usize, cols: usize, dtype: DType, memory: &Memory) -> Panels {
        let (rows, cols) = (memory.padded(rows), memory.padded(cols));
        let group = memory.group_bytes * 8 / dtype.bits();
        Panels { width: memory.panel, group, rows, cols, bytes: dtype.bytes(rows * cols) }
    }

    /// The number of an element.
    pub fn index(&self, row: usize, col: usize) -> usize {
        let group = row / self.width * (self.cols / self.group) + col / self.group;
        (group * self.width + row % self.width) * self.group + col % self.group
    }
}

/// One layer's cache: pages, each a block of K, then one of V. A block has head after head. Inside a head, keys lie as a packed weight of `block_tokens` rows and
/// `head_dim` columns; values as one of `head_dim` rows and `block_tokens` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tokens in a page.
    pub block_tokens: usize,
    /// `head_dim`, padded.
    pub dim: usize,
    /// Consecutive tokens (of V) or columns (of K) that lie together: of bytes as many as of what they are widened to, which has
    /// two, so that one becomes the other in order.
    pub group: usize,
    /// Bytes of one head in a block, in K and in V.
    pub head_bytes: usize,
    /// Bytes of a page.
    pub block_bytes: usize,
    /// Where V begins in a page.
    pub v_offset: usize,
}

impl CacheLayout {
    /// How a cache of this type lies.
    pub fn of(cache: CacheType, memory: &Memory) -> CacheLayout {
        let dim = memory.padded(cache.head_dim);
        let head_bytes = memory.block_tokens * dim * cache.dtype.size();
        let block = cache.heads * head_bytes;
        CacheLayout {
            block_tokens: memory.block_tokens,
            dim,
            group: memory.group_bytes / cache.dtype.size().max(2),
            head_bytes,
            block_bytes: 2 * block,
            v_offset: block,
        }
    }
}

/// Where an element of K and one of V lie in a page, in bytes: of a column of a head's entry, for a token of the block.
pub fn cache_offset(cache: CacheType, memory: &Memory, at: CacheAt) -> [usize; 2] {
    let layout = CacheLayout::of(cache, memory);
    let panels = |rows, cols| Panels { width: memory.panel, group: layout.group, rows, cols, bytes: layout.head_bytes };
    let size = cache.dtype.size();
    let head = at.head * layout.head_bytes;
    let k = head + panels(layout.block_tokens, layout.dim).index(at.token, at.col) * size;
    let v = head + panels(layout.dim, layout.block_tokens).index(at.col, at.token) * size;
    [k, layout.v_offset + v]
}

/// A place in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheAt {
    /// Of the block.
    pub token: usize,
    /// The head.
    pub head: usize,
    /// The column inside the head.
    pub col: usize,
}
