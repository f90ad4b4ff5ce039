//! Where elements lie in packed weights and in the KV cache of an arch.
use atomc_ir::{Arch, CacheType, DType};

pub use atomc_ir::layout::{CacheLayout, Panels};

/// How a weight of this shape is packed.
pub fn panels(rows: usize, cols: usize, dtype: DType, arch: &Arch) -> Panels {
    Panels::of(rows, cols, dtype, &arch.memory)
}

pub fn cache_layout(cache: CacheType, arch: &Arch) -> CacheLayout {
    CacheLayout::of(cache, &arch.memory)
}
