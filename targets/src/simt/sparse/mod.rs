//! Attention that chooses what it reads: the positions of each token, and attention over them.
//! These schedules take any size and any type of two bytes or more.
pub mod attend;
pub mod choose;

use atomc_ir::{CacheType, DType};

use crate::schedule::WhyNot;

/// Threads of a work-group.
pub const THREADS: usize = 256;

/// Checks the types and widths that these schedules take.
fn takes(cache: CacheType, group: usize) -> Result<(), WhyNot> {
    let is_wide = cache.dtype != DType::F8E4M3;
    WhyNot::unless(is_wide, || format!("{cache}: listed positions are not read from bytes"))?;
    let whole = cache.head_dim.is_multiple_of(group) && cache.value_dim.is_multiple_of(group);
    WhyNot::unless(whole, || format!("{cache}: widths must be multiples of {group}"))
}
