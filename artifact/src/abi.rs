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
    /// `i32 [tiles, 2]`: first token and count (1 to `TILE_TOKENS`, or 0 where there is no tile) of runs of consecutive tokens that belong to one sequence
    /// and have consecutive positions.
    pub tiles: *const i32,
    pub tile_count: i64,
    /// Bytes from one page of the cache to the next, the same in every layer: a multiple of 256 below 4 GiB. Pages need not
    /// touch.
    pub block_stride: i64,
}

/// Most tokens in a tile of [`Batch::tiles`].
pub const TILE_TOKENS: usize = 32;
/// Entries behind those of a step's tokens that are zero: kernels work on groups of tokens and read whole ones.
pub const SPARE_TOKENS: usize = 64;

/// The parameters of the kernel [`crate::manifest::PREPARE`], which makes a step's inputs of a framework's tensors: all of it in the
/// device's memory, so that who launches it need not know what is there. In this order, 8 bytes each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Prepare {
    /// `i32 [tokens]`, and `i64 [tokens]`: position in the sequence. Sequences lie one behind the other.
    pub ids: *const i32,
    pub positions: *const i64,
    /// `i32 [sequences + 1]`: where the tokens of each sequence begin, from 0 on, and where those of the last one end. Sequences may
    /// have none, and tokens behind the last one's belong to nobody.
    pub starts: *const i32,
    /// `i32 [sequences]`: length of each sequence after the step.
    pub lengths: *const i32,
    /// `i32 [sequences, table_stride]`, which [`Batch::tables`] becomes.
    pub tables: *const i32,
    /// Gets its tokens.
    pub step: *mut Step,
    /// Gets its tables, their stride and the number of tiles, [`Prepare::tiles`]; its other fields are set before, and have room.
    pub batch: *mut Batch,
    /// `i32 [tokens + SPARE_TOKENS]`, like positions and sequences of the batch.
    pub to_ids: *mut i32,
    pub to_lengths: *mut i32,
    /// `u64 [layers]`: where each layer's pages begin. In pages that get their first token and will not be full it clears the values.
    pub pages: *const u64,
    pub table_stride: i64,
    /// At least one.
    pub sequences: i64,
    pub tokens: i64,
    /// Where the values begin in a page, and their bytes, multiples of 16.
    pub values: i64,
    pub value_bytes: i64,
    /// Not a parameter, but how many layers have pages to clear: none where the caller attends.
    pub layers: i64,
}

/// Work-groups of the kernel beside those that clear pages.
pub const PREPARE_GROUPS: usize = 8;

impl Prepare {
    /// Tiles of a step of so many tokens, some of which may be empty: their count is 0.
    pub fn tiles(tokens: usize, sequences: usize) -> usize {
        (tokens / TILE_TOKENS).saturating_add(sequences)
    }

    /// Work-groups of a launch.
    pub fn groups(&self) -> usize {
        PREPARE_GROUPS + self.layers as usize * self.sequences as usize
    }

    pub fn parameters(&self) -> [u64; 15] {
        [
            self.ids as u64,
            self.positions as u64,
            self.starts as u64,
            self.lengths as u64,
            self.tables as u64,
            self.step as u64,
            self.batch as u64,
            self.to_ids as u64,
            self.to_lengths as u64,
            self.pages as u64,
            self.table_stride as u64,
            self.sequences as u64,
            self.tokens as u64,
            self.values as u64,
            self.value_bytes as u64,
        ]
    }
}
