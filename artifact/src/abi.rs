//! The C structures that kernels of the host target receive. Their field order is part of the
//! artifact format: a change here is a new format version.

use crate::manifest::DType;

/// `void kernel(void *const *args, const Step *step, void *scratch, int64_t first_task, int64_t end_task)`
pub type HostKernel = unsafe extern "C" fn(*const *mut u8, *const Step, *mut u8, i64, i64);

/// Sizes of one step.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many tokens the step has, over all sequences.
    pub tokens: i64,
    /// How many rows of logits are wanted: entries of [`crate::manifest::Input::Rows`].
    pub rows: i64,
}

/// The tokens of each sequence in a step: the target of an argument of kind `batch`. Each table has
/// one; they differ only in the distance of the table's pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// `i32 [tokens]`: position in the sequence.
    pub positions: *const i32,
    /// `i32 [tokens]`: row of `tables` for the token's sequence.
    pub sequences: *const i32,
    /// `i32 [sequences, table_stride]`: numbers of the pages of each sequence, in order of
    /// position. Unused entries, and those that no token's window reaches, are any valid page.
    pub tables: *const i32,
    /// Entries of `tables` from one sequence to the next.
    pub table_stride: i64,
    /// `i32 [tiles, 2]`: first token and count (1 to `TILE_TOKENS`, or 0 where there is no tile) of
    /// runs of consecutive tokens that belong to one sequence and have consecutive positions.
    pub tiles: *const i32,
    /// Tiles in `tiles`, those without tokens included.
    pub tile_count: i64,
    /// Bytes from one page to the next, the same in every state of the table: a multiple of 256
    /// below 4 GiB. Pages need not touch.
    pub block_stride: i64,
}

/// Most tokens in a tile of [`Batch::tiles`].
pub const TILE_TOKENS: usize = 32;
/// Zero entries after those of a step's tokens: kernels work on groups of tokens and read whole
/// ones.
pub const SPARE_TOKENS: usize = 64;

/// The parameters of the kernel [`crate::manifest::PREPARE`], which makes a step's inputs from a
/// framework's tensors. All of it is in the device's memory, so the program that launches it need
/// not know the values. In this order, 8 bytes each. A step launches it once for each table.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Prepare {
    /// `i32 [tokens]`: token ids. Sequences lie one after the other.
    pub ids: *const i32,
    /// `i64 [tokens]`: position of each token in its sequence.
    pub positions: *const i64,
    /// `i32 [sequences + 1]`: the beginning of each sequence's tokens, from 0 on, and the end of
    /// the last one's. Sequences may have none. Tokens after the end of the last one belong to no
    /// sequence.
    pub starts: *const i32,
    /// `i32 [sequences]`: length of each sequence after the step.
    pub lengths: *const i32,
    /// `i32 [sequences, table_stride]`, which [`Batch::tables`] becomes.
    pub tables: *const i32,
    /// Gets its tokens.
    pub step: *mut Step,
    /// Gets its tables, their stride and the number of tiles, [`Prepare::tiles`]; its other fields
    /// are set before, and have room.
    pub batch: *mut Batch,
    /// `i32 [tokens + SPARE_TOKENS]`, like positions and sequences of the batch.
    pub to_ids: *mut i32,
    /// `i32 [tokens + SPARE_TOKENS]`: length of each token's sequence after the step.
    pub to_lengths: *mut i32,
    /// `u64 [layers]`: where the pages of each of the table's states begin. In pages that get their
    /// first token and will not be full it clears the values.
    pub pages: *const u64,
    /// Entries of `tables` from one sequence to the next, before and after.
    pub table_stride: i64,
    /// At least one.
    pub sequences: i64,
    /// Entries of each list that are made, in addition to [`SPARE_TOKENS`]. Those after the last
    /// sequence become zero.
    pub tokens: i64,
    /// Where the values begin in a page: like `value_bytes` a multiple of 16.
    pub values: i64,
    /// How many bytes the values of a page are; 0 where there is nothing to clear.
    pub value_bytes: i64,
    /// Not a parameter, but how many states have pages to clear: none where the caller attends.
    pub layers: i64,
}

/// Work-groups of the kernel, in addition to those that clear pages.
pub const PREPARE_GROUPS: usize = 8;

impl Prepare {
    /// Tiles of a step of this many tokens. Some may be empty: their count is 0.
    pub fn tiles(tokens: usize, sequences: usize) -> usize {
        (tokens / TILE_TOKENS).saturating_add(sequences)
    }

    /// Work-groups of a launch.
    pub fn groups(&self) -> usize {
        PREPARE_GROUPS + self.layers as usize * self.sequences as usize
    }

    /// What the launch passes, in the order in which the kernel takes it.
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

/// The parameters of the kernel [`crate::manifest::EXCHANGE`], by which ranks sum rows or put them
/// side by side. Every rank launches it. In this order, 8 bytes each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// This rank's rows, which become the sums of all ranks', if these are wanted.
    pub value: *mut u8,
    /// Null, or rows that are added to the rounded sums.
    pub added: *const u8,
    /// Null where rows are summed, or where they go side by side.
    pub whole: *mut u8,
    /// The slots of each rank, of [`Exchange::slots`] bytes.
    pub peers: *const u64,
    /// This rank's own: [`Exchange::STATE`] bytes, zero before the first exchange.
    pub state: *mut u8,
    /// The step, which has as many rows.
    pub step: *const Step,
    /// This rank's number.
    pub rank: i64,
    /// Number of ranks.
    pub ranks: i64,
    /// Bytes from one row to the next, a multiple of 16.
    pub row: i64,
    /// Bytes of a row without padding.
    pub width: i64,
    /// Bytes from one row of `whole` to the next.
    pub stride: i64,
    /// Number of the type of the rows in [`EXCHANGED`].
    pub dtype: i64,
    /// Offset of the number of rows in the step.
    pub count: i64,
}

/// Types of rows that are exchanged.
pub const EXCHANGED: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
/// Bytes of rows that a work-group exchanges at once.
pub const EXCHANGE_BYTES: usize = 4096;
/// Most work-groups of a launch: each exchanges one part of the rows after the other.
pub const EXCHANGE_GROUPS: usize = 1024;
/// Bytes of rows that a work-group sums at once where sums are made in two steps: each rank sums a
/// share of every part, and sends it to all.
pub const EXCHANGE_PART: usize = 8 << 10;
/// Most work-groups that do so.
pub const EXCHANGE_PARTS: usize = 1024;
/// Room of the shares of such a part: most ranks, of which each may have 16 bytes more.
pub const EXCHANGE_SHARES: usize = EXCHANGE_PART + 64 * 16;

impl Exchange {
    /// Bytes of the state: for each work-group how many exchanges it made, then 0, or one more than
    /// the number of the rank that it waited for in vain.
    pub const STATE: usize = (EXCHANGE_GROUPS + 1) * 4;

    /// Bytes of a rank's slots for rows with signals: two halves with the parts of each rank, with
    /// 4 bytes of signals for 4 of rows. Behind them lie the slots of the sums in two steps, then
    /// the signals of these.
    pub fn signalled(ranks: usize) -> usize {
        2 * ranks * EXCHANGE_GROUPS * 2 * EXCHANGE_BYTES
    }

    /// Bytes of the slots of sums in two steps: two halves, each with the parts of both steps.
    pub const SHARES: usize = 2 * 2 * EXCHANGE_PARTS * EXCHANGE_SHARES;

    /// Bytes of all of a rank's slots. A signal of a sum in two steps takes 16.
    pub fn slots(ranks: usize) -> usize {
        Exchange::signalled(ranks) + Exchange::SHARES + 2 * 2 * ranks * EXCHANGE_PARTS * 16
    }

    /// Work-groups of a launch for `rows` rows.
    pub fn groups(&self, rows: usize) -> usize {
        (rows * self.row as usize).div_ceil(EXCHANGE_BYTES).min(EXCHANGE_GROUPS)
    }

    /// What the launch passes, in the order in which the kernel takes it.
    pub fn parameters(&self) -> [u64; 13] {
        [
            self.value as u64,
            self.added as u64,
            self.whole as u64,
            self.peers as u64,
            self.state as u64,
            self.step as u64,
            self.rank as u64,
            self.ranks as u64,
            self.row as u64,
            self.width as u64,
            self.stride as u64,
            self.dtype as u64,
            self.count as u64,
        ]
    }
}

/// The parameters of the kernel [`crate::manifest::PACK`], which puts a rectangle of a tensor into
/// a weight, both in the device's memory. In this order, 8 bytes each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pack {
    /// The first number of the rectangle.
    pub from: *const u8,
    /// The beginning of the weight's buffer, aligned to [`PACK_UNIT`].
    pub to: *mut u8,
    /// Null, or a `u32`: then nothing is packed, and this becomes 1 if the weight is not what it
    /// would become.
    pub differs: *mut u32,
    /// Number of the types in [`CONVERSIONS`].
    pub conversion: i64,
    /// Numbers from one row of the tensor to the next.
    pub row_stride: i64,
    /// Numbers from one column of the tensor to the next; 1 where it lies row by row.
    pub col_stride: i64,
    /// Rows of the rectangle, without padding.
    pub rows: i64,
    /// Columns of the rectangle, without padding.
    pub cols: i64,
    /// Rows that are written; those from `rows` on become zero.
    pub padded_rows: i64,
    /// Columns that are written; those from `cols` on become zero.
    pub padded_cols: i64,
    /// The row of the weight where the rectangle begins.
    pub row: i64,
    /// The column of the weight where the rectangle begins.
    pub col: i64,
    /// Rows of a panel of the weight. What lies row by row has panels of one row.
    pub width: i64,
    /// Bytes of a whole panel, a multiple of [`PACK_UNIT`].
    pub panel_bytes: i64,
    /// What is added to each number as an f32: its bits in the lower half, the upper one zero. Of
    /// 0 numbers stay what they are. Codes have none.
    pub offset: i64,
}

/// Bytes of consecutive columns that lie together in a weight, and that a thread makes at once.
pub const PACK_UNIT: usize = 16;
/// Units that a work-group makes.
pub const PACK_RUN: usize = 1024;

/// The types of number that weights are made of, and that they have. Codes of 32 bits are as
/// [`Number::F32`], which is copied too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// IEEE binary32.
    F32,
    /// The upper half of an f32.
    BF16,
    /// IEEE binary16.
    F16,
    /// IEEE binary64, which only tensors have.
    F64,
    /// A code, which stays what it is.
    Byte,
}

impl Number {
    /// Bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            Number::Byte => 1,
            Number::BF16 | Number::F16 => 2,
            Number::F32 => 4,
            Number::F64 => 8,
        }
    }
}

/// What a number is, and what it becomes.
pub const CONVERSIONS: [(Number, Number); 13] = {
    use Number::*;
    [
        (F32, F32),
        (BF16, BF16),
        (F16, F16),
        (F32, BF16),
        (F32, F16),
        (BF16, F32),
        (BF16, F16),
        (F16, F32),
        (F16, BF16),
        (F64, F32),
        (F64, BF16),
        (F64, F16),
        (Byte, Byte),
    ]
};

impl Pack {
    /// The number of a conversion in [`CONVERSIONS`]; numbers become none of 64 bits.
    pub fn conversion(from: Number, to: Number) -> Option<i64> {
        CONVERSIONS.iter().position(|&types| types == (from, to)).map(|number| number as i64)
    }

    /// Work-groups of a launch: a run of units of a panel each.
    pub fn groups(&self) -> usize {
        let (_, to) = CONVERSIONS[self.conversion as usize];
        let group = PACK_UNIT / to.size();
        let [row, col, width] = [self.row, self.col, self.width].map(|number| number as usize);
        let [rows, cols] = [self.padded_rows, self.padded_cols].map(|number| number as usize);
        let panels = (row + rows).div_ceil(width) - row / width;
        let units = ((col + cols).div_ceil(group) - col / group) * width;
        panels * units.div_ceil(PACK_RUN)
    }

    /// What the launch passes, in the order in which the kernel takes it.
    pub fn parameters(&self) -> [u64; 15] {
        [
            self.from as u64,
            self.to as u64,
            self.differs as u64,
            self.conversion as u64,
            self.row_stride as u64,
            self.col_stride as u64,
            self.rows as u64,
            self.cols as u64,
            self.padded_rows as u64,
            self.padded_cols as u64,
            self.row as u64,
            self.col as u64,
            self.width as u64,
            self.panel_bytes as u64,
            self.offset as u64,
        ]
    }
}
