//! The C structures that kernels of the host target receive. Their field order is part of the artifact format:
//! a change here is a new format version.

/// `void kernel(void *const *args, const Step *step, void *scratch, int64_t first_task, int64_t end_task)`
pub type HostKernel = unsafe extern "C" fn(*const *mut u8, *const Step, *mut u8, i64, i64);

/// Sizes of one step.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub tokens: i64,
    pub rows: i64,
}

/// Where the tokens of a step belong: the pointer behind an argument of kind `batch`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// `i32 [tokens]`: position in the sequence.
    pub positions: *const i32,
    /// `i32 [tokens]`: row of `tables` for the token's sequence.
    pub sequences: *const i32,
    /// `i32 [sequences, table_stride]`: numbers of the cache blocks of each sequence, in order of position. Unused entries are
    /// any valid block.
    pub tables: *const i32,
    pub table_stride: i64,
    /// `i32 [tiles, 2]`: first token and count (1 to `TILE_TOKENS`) of runs of consecutive tokens that belong to one sequence
    /// and have consecutive positions.
    pub tiles: *const i32,
    pub tile_count: i64,
    /// Bytes from one page of the cache to the next, the same in every layer: a multiple of 256 below 4 GiB. Pages need not
    /// touch.
    pub block_stride: i64,
}

/// Most tokens in a tile of [`Batch::tiles`].
pub const TILE_TOKENS: usize = 32;
