//! Facts about one chip that passes and emitters read. The rows live in `targets`.

/// One row of the target table.
#[derive(Clone, Debug, PartialEq)]
pub struct Arch {
    /// `x86-64-v4-amx`, later `gfx942`, …
    pub name: &'static str,
    /// The target it is a variant of: `host`, or the name itself.
    pub target: &'static str,
    /// Where the facts in this row come from.
    pub source: &'static str,
    pub triple: &'static str,
    /// LLVM's `-mcpu` and `-mattr`.
    pub cpu: &'static str,
    pub attributes: &'static str,
    /// What a device must report for code of this row to run on it.
    pub features: &'static [&'static str],
    pub vector: Vector,
    pub dot: Dot,
    pub memory: Memory,
}

/// How kernels of a target want their data laid out. The same for all variants of a target, which share their plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Rows are padded with zeros to a multiple of this many elements.
    pub row: usize,
    /// Rows of activations are not a multiple of this many elements apart: those would share the same few cache sets.
    pub alias: usize,
    /// Where a step has any number of rows, results have room for a multiple of this many: contractions compute rows in
    /// tiles, the last of which may be partly beyond the step.
    pub rows: usize,
    /// Rows of a weight in one panel.
    pub panel: usize,
    /// Bytes of one row's group of columns in a panel.
    pub group_bytes: usize,
    /// Tokens in a block of the KV cache.
    pub block_tokens: usize,
    /// Alignment of buffers, and the bytes that kernels may read beyond their end.
    pub align: usize,
}

impl Memory {
    /// Elements of a row with its padding.
    pub fn padded(&self, width: usize) -> usize {
        width.next_multiple_of(self.row)
    }

    /// Elements from one row of activations to the next.
    pub fn stride(&self, width: usize) -> usize {
        let padded = self.padded(width);
        if padded.is_multiple_of(self.alias) { padded + self.row } else { padded }
    }
}

/// The SIMD unit of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// f32 elements in one register.
    pub lanes: usize,
    pub registers: usize,
}

/// How bf16 products are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dot {
    /// Widen to f32, multiply and add.
    Widen,
    /// `vdpbf16ps`: pairs of bf16 into f32 lanes.
    Pairs,
    /// `tdpbf16ps` on tiles of 16 rows of 64 bytes for many rows at once, `vdpbf16ps` for few.
    Tiles,
}
