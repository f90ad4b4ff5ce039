//! How a contraction is cut into tiles and slots, and the layout of local memory.
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Layout};

use super::codes::{self, SlotCodes};
use crate::KernelSpec;
use crate::simt::gemm::bytes::Bytes;
use crate::simt::gemm::contract::{Experts, Sizes};
use crate::simt::launch;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::{Choice, Number};

/// Tokens are a multiple of this in products.
pub const TOKENS: usize = 16;
/// Bytes of a row of a swizzled block.
pub const ROW: usize = 128;
/// Panels in a tile.
pub const PANELS: usize = 8;
/// Bytes of 8 rows by 16 bytes of a panel.
pub const HALF: usize = 128;
/// Threads of a team: they multiply a tile together.
pub const TEAM: usize = 128;
/// Threads that bring rows.
pub const ROW_PRODUCERS: usize = 128;
/// Threads that load the weight. A lane's copies are issued one after the other, so four waves
/// issue those of some panels each.
pub const WEIGHT_PRODUCERS: usize = 128;
/// Tokens in one round, in which threads exchange their sums.
pub const ROUND: usize = 32;
/// Bytes from one token's 16 sums to the next, so that neighbours have different banks.
pub const PITCH: usize = 80;
/// Most work-groups for each tile, about. They may be chosen by measuring.
pub const GROUPS: Number = Number { name: "groups", values: &[2, 4, 6, 8] };
/// Fewest slots of a work-group, about. They may be chosen by measuring.
pub const LEAST: Number = Number { name: "least", values: &[2, 4, 8] };
/// Most work-groups that share a tile of experts' rows.
const SHARED: usize = 4;
/// Bytes of local memory for barriers and other small items.
const SMALL: usize = 4 << 10;

/// How the work is shared out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tokens of the step, and tokens of the products.
    pub tokens: usize,
    pub columns: usize,
    /// Columns of a slot.
    pub k_tile: usize,
    /// Rows and a weight that are both quantised to a byte.
    pub bytes: Option<Bytes>,
    /// A quantised weight that is decoded for rows of floats.
    pub codes: Option<SlotCodes>,
    /// Teams that multiply, each a tile of its own with the same rows.
    pub teams: usize,
    /// Pieces of the result, its panels, groups of a tile for each team, and slots along the
    /// weight.
    pub pieces: usize,
    pub panels: usize,
    pub tiles: usize,
    pub length: usize,
    pub groups: usize,
    /// Fewest slots of a work-group, if their number is known only at run time.
    pub least: usize,
    /// The rows of tiles, and the matrices that make them.
    pub rows: RowsOfTiles,
    /// Slots of the ring, and stages of rows.
    pub slots: usize,
    pub stages: usize,
    /// Registers of a thread that loads the weight, of one that loads rows, and of one that
    /// multiplies.
    pub registers: [usize; 3],
}

/// The rows of tiles, and the matrices of the weight that make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOfTiles {
    /// All of a step, by the only matrix.
    Step,
    /// Blocks of experts' rows, by an expert's matrix. Their number is known only at run time.
    Blocks,
    /// One of `count` rows, by the weight of its expert.
    One { count: usize },
    /// One of `count` rows, each the sum over `choices` experts, by the weights of all of them.
    Combined { count: usize, choices: usize },
}

impl RowsOfTiles {
    fn of(spec: &KernelSpec, experts: Option<Experts>) -> RowsOfTiles {
        match experts {
            None => RowsOfTiles::Step,
            Some(Experts { layout: Layout::Grouped { .. }, .. }) => RowsOfTiles::Blocks,
            Some(Experts { choices, combined: true, .. }) => RowsOfTiles::Combined { count: spec.tokens, choices },
            Some(Experts { choices, .. }) => RowsOfTiles::One { count: spec.tokens * choices },
        }
    }

    /// Rows, or blocks of them, that have tiles of their own, as far as they are known.
    fn count(self) -> usize {
        match self {
            RowsOfTiles::Step | RowsOfTiles::Blocks => 1,
            RowsOfTiles::One { count } | RowsOfTiles::Combined { count, .. } => count,
        }
    }

    /// Matrices that make a tile together.
    pub fn matrices(self) -> usize {
        if let RowsOfTiles::Combined { choices, .. } = self { choices } else { 1 }
    }
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let Sizes { rows, depth, pieces, experts, .. } = Sizes::of(spec.body)?;
        let (bytes, codes, k_tile) = (Bytes::of(spec.body), SlotCodes::of(spec), Shape::k_tile(spec)?);
        let (simt, measured) = (arch.simt, launch::measured(arch)?.stream_k);
        let tokens = Shape::tokens_of_tile(spec, experts);
        let of_tiles = RowsOfTiles::of(spec, experts);
        let columns = tokens.next_multiple_of(TOKENS);
        let panels = arch.memory.panels(rows / pieces);
        let teams = if codes.is_some() { codes::TEAMS } else { 1 };
        let (tiles, length) = (panels.div_ceil(teams * PANELS / pieces), depth / k_tile);
        let stages = (measured.row_bytes / (columns * ROW)).min(measured.stages);
        let registers = if codes.is_some() { codes::REGISTERS } else { measured.registers };
        let mut shape = Shape {
            tokens,
            columns,
            k_tile,
            bytes,
            codes,
            teams,
            pieces,
            panels,
            tiles,
            length,
            groups: 0,
            least: length.div_ceil(SHARED - 1),
            rows: of_tiles,
            slots: 0,
            stages,
            registers,
        };
        let room = simt.unit.lds_group.saturating_sub(teams * shape.sums_bytes() + shape.rows_bytes() + SMALL);
        shape.slots = (room / shape.slot_bytes()).min(measured.ring);
        let groups = teams * choice.get(&GROUPS).unwrap_or(measured.groups);
        let least = choice.get(&LEAST).unwrap_or(measured.least[usize::from(codes.is_some())]);
        let most = (of_tiles.count() * tiles * groups).min(shape.units().div_ceil(least));
        shape.groups = match of_tiles {
            RowsOfTiles::Step => simt.chip.units.min(most),
            RowsOfTiles::Blocks => simt.chip.units,
            RowsOfTiles::One { count } if shape.has_whole_tiles(count * tiles, simt.chip.units) => count * tiles,
            _ => simt.chip.units.min(shape.units().div_ceil(least)),
        };
        Ok(shape)
    }

    /// Tokens of a tile: those of the step, or of a block of an expert's rows.
    pub fn tokens_of_tile(spec: &KernelSpec, experts: Option<Experts>) -> usize {
        experts.map_or(spec.tokens, |experts| experts.block().unwrap_or(1))
    }

    /// Columns of a slot.
    pub fn k_tile(spec: &KernelSpec) -> Result<usize, Diagnostic> {
        if let Some(codes) = SlotCodes::of(spec) {
            return Ok(codes.k_tile());
        }
        let of_floats = Sizes::of(spec.body)?.dtype;
        Ok(ROW / Bytes::of(spec.body).map_or(of_floats, |bytes| bytes.dtype).size())
    }

    /// Whether `tiles` tiles with one work-group each keep memory as busy as all work-groups would.
    /// Then no tile is shared. Tiles of a weight that is decoded are shared all the same: decoding
    /// takes longer than loading.
    fn has_whole_tiles(&self, tiles: usize, units: usize) -> bool {
        self.codes.is_none() && tiles <= units && tiles * 2 >= units
    }

    /// All slots; those of each block of experts' rows, if the number of blocks is not known.
    pub fn units(&self) -> usize {
        self.rows.count() * self.tiles * self.tile_length()
    }

    /// Slots of a tile.
    pub fn tile_length(&self) -> usize {
        self.rows.matrices() * self.length
    }

    /// Panels of the result in a tile.
    pub fn each(&self) -> usize {
        PANELS / self.pieces
    }

    /// Threads that multiply, and all threads.
    pub fn consumers(&self) -> usize {
        self.teams * TEAM
    }

    pub fn threads(&self) -> usize {
        self.consumers() + ROW_PRODUCERS + WEIGHT_PRODUCERS
    }

    /// Bytes of a panel in a slot.
    pub fn chunk(&self) -> usize {
        self.codes.map_or(16 * ROW, |codes| codes.chunk())
    }

    /// Panels of a slot.
    pub fn slot_panels(&self) -> usize {
        self.teams * PANELS
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_panels() * (self.chunk() + self.codes.map_or(0, |codes| codes.scale_bytes()))
    }

    /// Bytes of a row in a stage: those of its swizzled blocks.
    pub fn row_bytes(&self) -> usize {
        self.codes.map_or(1, |codes| codes.blocks) * ROW
    }

    pub fn stage_bytes(&self) -> usize {
        self.columns * self.row_bytes()
    }

    /// Threads that load a row's columns of a slot, and vectors of each.
    pub fn row_threads(&self) -> usize {
        let vec16s = self.row_bytes() / VEC16;
        1 << vec16s.trailing_zeros()
    }

    pub fn row_parts(&self) -> usize {
        self.row_bytes() / VEC16 / self.row_threads()
    }

    /// Tokens that row producers load at a time.
    pub fn loaded_tokens(&self) -> usize {
        ROW_PRODUCERS / self.row_threads()
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

    /// Bytes of a team's sums that are exchanged.
    pub fn sums_bytes(&self) -> usize {
        PANELS * self.columns.min(ROUND) * PITCH
    }

    /// Tokens of a shared tile that are finished at a time, a divisor of its columns. A thread
    /// loads their sums of all work-groups at once: one that decodes has registers for 16.
    pub fn share(&self) -> usize {
        if self.codes.is_none() && self.columns.is_multiple_of(ROUND) { ROUND } else { TOKENS }
    }

    pub fn rounds(&self) -> usize {
        self.columns.div_ceil(ROUND)
    }

    /// Sums of a thread.
    pub fn sums(&self) -> usize {
        self.columns
    }

    /// Bytes of a team's sums of a tile, followed by the sums of squares of its rows.
    pub fn partial_bytes(&self) -> usize {
        (self.sums() * TEAM + self.columns) * 4
    }

    /// Most work-groups that have slots of one tile, two at least.
    pub fn sharing(&self) -> usize {
        if self.rows == RowsOfTiles::Blocks {
            return SHARED;
        }
        let length = self.tile_length();
        let owners = |tile: usize| self.owner((tile + 1) * length - 1) - self.owner(tile * length) + 1;
        (0..self.units() / length).map(owners).max().unwrap_or(1).max(2)
    }

    /// The work-group that has a slot.
    pub fn owner(&self, unit: usize) -> usize {
        ((unit + 1) * self.groups - 1) / self.units()
    }
}
