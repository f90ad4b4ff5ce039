//! Where elements lie in packed weights and in the KV cache, as kernels read them.
use atomc_ir::{Arch, CacheType, DType};

/// A packed weight: see `Layout::Panels` in the artifact's manifest for the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    pub width: usize,
    pub group: usize,
    /// Padded sizes.
    pub rows: usize,
    pub cols: usize,
    pub bytes: usize,
}

/// How a weight of this shape is packed. Rows are padded like columns, so that a kernel may fill whole rows of its result.
pub fn panels(rows: usize, cols: usize, dtype: DType, arch: &Arch) -> Panels {
    let m = arch.memory;
    let (rows, cols) = (m.padded(rows), m.padded(cols));
    Panels { width: m.panel, group: m.group_bytes / dtype.size(), rows, cols, bytes: rows * cols * dtype.size() }
}

/// One layer's K and V buffers: blocks of heads. Inside a head, keys lie as a packed weight of `block_tokens` rows and
/// `head_dim` columns; values as one of `head_dim` rows and `block_tokens` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    pub block_tokens: usize,
    /// `head_dim`, padded.
    pub dim: usize,
    /// Consecutive tokens (of V) or columns (of K) that lie together.
    pub group: usize,
    /// Bytes of one head in a block, in K and in V.
    pub head_bytes: usize,
    pub k_block_bytes: usize,
    pub v_block_bytes: usize,
}

pub fn cache_layout(cache: CacheType, arch: &Arch) -> CacheLayout {
    let m = arch.memory;
    let dim = m.padded(cache.head_dim);
    let head_bytes = m.block_tokens * dim * cache.dtype.size();
    let block = cache.heads * head_bytes;
    CacheLayout {
        block_tokens: m.block_tokens,
        dim,
        group: m.group_bytes / cache.dtype.size(),
        head_bytes,
        k_block_bytes: block,
        v_block_bytes: block,
    }
}
