//! Memory of the device, which is the host's.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;

use atomc_emulator::{Access, Memory};

/// Alignment of memory that HIP gives out.
const ALIGN: usize = 4096;

/// Bytes that kernels may read past a block: HIP gives out whole pages.
const SLACK: usize = 256;

/// The allocated blocks, and the ranges that kernels may touch.
#[derive(Default)]
pub struct Blocks {
    layouts: HashMap<usize, Layout>,
    pub ranges: Memory,
}

impl Blocks {
    pub fn allocate(&mut self, bytes: usize) -> Option<*mut u8> {
        let layout = Layout::from_size_align(bytes.checked_add(SLACK)?, ALIGN).ok()?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return None;
        }
        self.layouts.insert(start.addr(), layout);
        // SAFETY: the block has the slack, and is unmapped before it is freed.
        unsafe { self.ranges.map_with_slack(start.addr() as u64, bytes as u64, SLACK as u64, Access::ReadWrite) };
        Some(start)
    }

    /// Frees a block. Returns whether there was such a block.
    pub fn free(&mut self, start: *mut u8) -> bool {
        let Some(layout) = self.layouts.remove(&start.addr()) else { return false };
        self.ranges.unmap(start.addr() as u64);
        // SAFETY: it was allocated with this layout, and is no longer known.
        unsafe { dealloc(start, layout) };
        true
    }
}
