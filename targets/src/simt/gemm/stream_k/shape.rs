//! How a contraction is cut into tiles and slots, and what lies in local memory.
use atomc_ir::Diagnostic;
use atomc_ir::arch::GpuArch;

use crate::KernelSpec;
use crate::simt::gemm::bytes::Bytes;
use crate::simt::gemm::contract::Sizes;
use crate::simt::launch;
use crate::tuning::{Choice, Number};

/// Tokens that row producers load at a time.
pub const LOADED_TOKENS: usize = 16;
/// Bytes of a row in a slot.
pub const ROW: usize = 128;
/// Panels in a tile.
pub const PANELS: usize = 8;
/// Bytes of 8 rows by 16 bytes of a panel.
pub const HALF: usize = 128;
/// Bytes of a panel in a slot: 8 blocks of 16 rows by 16 bytes.
pub const CHUNK: usize = ROW / 16 * 2 * HALF;
/// Threads that multiply.
pub const CONSUMERS: usize = 128;
/// Tokens whose sums change threads at a time.
pub const ROUND: usize = 32;
/// Bytes from one token's 16 sums to the next, so that neighbours have other banks.
pub const PITCH: usize = 80;
/// Most work-groups for each tile, about. They may be chosen by measuring.
pub const GROUPS: Number = Number { name: "groups", values: &[2, 4, 6, 8] };
/// Fewest slots of a work-group, about; likewise.
pub const LEAST: Number = Number { name: "least", values: &[2, 4, 8] };
/// Bytes of local memory for barriers and what is small.
const SMALL: usize = 4 << 10;

/// How the work is shared out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens of the step, and as many as products have.
    pub tokens: usize,
    pub columns: usize,
    /// Columns of a slot.
    pub k_tile: usize,
    /// Rows and a weight that are both quantised to a byte.
    pub bytes: Option<Bytes>,
    /// Pieces of the result, its panels, tiles of them, and slots along the weight.
    pub pieces: usize,
    pub panels: usize,
    pub tiles: usize,
    pub length: usize,
    pub groups: usize,
    /// Slots of the ring, and stages of rows.
    pub slots: usize,
    pub stages: usize,
    /// Registers of a thread that asks for the weight, of one that brings rows, and of one that
    /// multiplies.
    pub registers: [usize; 3],
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let Sizes { rows, depth, pieces, .. } = Sizes::of(spec.body)?;
        let (bytes, k_tile) = (Bytes::of(spec.body), Shape::k_tile(spec)?);
        let (simt, measured) = (arch.simt, launch::measured(arch)?.stream_k);
        let (tokens, columns) = (spec.tokens, spec.tokens.next_multiple_of(LOADED_TOKENS));
        let panels = arch.memory.panels(rows / pieces);
        let (tiles, length) = (panels.div_ceil(PANELS / pieces), depth / k_tile);
        let stages = (measured.row_bytes / (columns * ROW)).min(measured.stages);
        let registers = measured.registers;
        let mut shape = Shape {
            tokens,
            columns,
            k_tile,
            bytes,
            pieces,
            panels,
            tiles,
            length,
            groups: 0,
            slots: 0,
            stages,
            registers,
        };
        let room = simt.unit.lds_group.saturating_sub(shape.sums_bytes() + shape.rows_bytes() + SMALL);
        shape.slots = (room / shape.slot_bytes()).min(measured.ring);
        let groups = choice.get(&GROUPS).unwrap_or(measured.groups);
        let least = choice.get(&LEAST).unwrap_or(measured.least);
        let most = (tiles * groups).min((tiles * length).div_ceil(least));
        shape.groups = simt.chip.units.min(most);
        Ok(shape)
    }

    /// Columns of a slot.
    pub fn k_tile(spec: &KernelSpec) -> Result<usize, Diagnostic> {
        let of_floats = Sizes::of(spec.body)?.dtype;
        Ok(ROW / Bytes::of(spec.body).map_or(of_floats, |bytes| bytes.dtype).size())
    }

    pub fn units(&self) -> usize {
        self.tiles * self.length
    }

    /// Panels of the result in a tile.
    pub fn each(&self) -> usize {
        PANELS / self.pieces
    }

    pub fn slot_bytes(&self) -> usize {
        PANELS * CHUNK
    }

    pub fn stage_bytes(&self) -> usize {
        self.columns * ROW
    }

    /// Whether sums of each K tile are scaled.
    pub fn scales_each_tile(&self) -> bool {
        self.bytes.is_some_and(|bytes| bytes.grouped())
    }

    /// Bytes of the rows' scales of a stage.
    pub fn scale_bytes(&self) -> usize {
        if self.scales_each_tile() { self.columns * 4 } else { 0 }
    }

    pub fn rows_bytes(&self) -> usize {
        self.stages * (self.stage_bytes() + self.scale_bytes())
    }

    pub fn sums_bytes(&self) -> usize {
        PANELS * self.columns.min(ROUND) * PITCH
    }

    pub fn rounds(&self) -> usize {
        self.columns.div_ceil(ROUND)
    }

    /// Sums of a thread.
    pub fn sums(&self) -> usize {
        self.columns
    }

    /// Bytes of a work-group's sums of a tile, and of a row's squares behind them.
    pub fn partial_bytes(&self) -> usize {
        (self.sums() * CONSUMERS + self.columns) * 4
    }

    /// Most work-groups that have slots of one tile, two at least.
    pub fn sharing(&self) -> usize {
        let owners = |tile: usize| self.owner((tile + 1) * self.length - 1) - self.owner(tile * self.length) + 1;
        (0..self.tiles).map(owners).max().unwrap_or(1).max(2)
    }

    /// The work-group that has a slot.
    pub fn owner(&self, unit: usize) -> usize {
        ((unit + 1) * self.groups - 1) / self.units()
    }
}
