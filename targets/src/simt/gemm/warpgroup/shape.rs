//! How a contraction is cut into tiles and stretches, and the layout of local memory.
use atomc_ir::arch::GpuArch;
use atomc_ir::layout::Groups;
use atomc_ir::{Diagnostic, Layout};

use super::codes::Operands;
use crate::KernelSpec;
use crate::row::unsupported;
use crate::simt::gemm::contract::Sizes;
use crate::simt::launch;
use crate::simt::machine::warpgroup::MAP;
use crate::tuning::{Choice, Number};

/// Rows of the weight in a tile.
pub const ROWS: [usize; 4] = [256, 192, 128, 64];
/// They may be chosen by measuring.
pub const TILE: Number = Number { name: "tile", values: &ROWS };
/// Tokens that a group of four waves multiplies, and those of a tile.
pub const GROUP_TOKENS: usize = 64;
pub const TOKENS: usize = 2 * GROUP_TOKENS;
/// Threads that multiply. The thread that copies comes with four more waves, since registers are
/// dealt out to four waves at a time.
pub const CONSUMERS: usize = 256;
pub const THREADS: usize = CONSUMERS + 128;
/// Threads of the producer.
pub const PRODUCERS: usize = THREADS - CONSUMERS;
/// Registers of a thread that copies, and of one that multiplies.
const COPIES: [usize; 2] = [40, 232];
/// The same two numbers where rows are gathered.
const GATHERS: [usize; 2] = [56, 224];
/// The same two numbers where threads that copy also decode.
const DECODES: [usize; 2] = [104, 200];
/// Bytes of a row in a stretch, and the products of a stretch, each of 32 bytes.
pub const STRETCH: usize = 128;
pub const PRODUCTS: usize = STRETCH / 32;
/// Rows of a part of a tile where sums are scaled with each stretch: a part's unscaled sums are
/// held in addition to all sums. A part of a piece has one scale.
pub const SCALED_ROWS: usize = 128;
/// Bytes of 8 rows of a weight's stretch: 8 blocks of 8 rows by 16 bytes.
pub const BLOCK: usize = 128;
pub const EIGHT: usize = 8 * BLOCK;
/// Features that are exchanged at once. A wave has local memory for this many features of 16
/// tokens.
pub const ROUND: usize = 64;
pub const LINE: usize = ROUND * 4;
pub const EXCHANGE: usize = 16 * LINE;
/// Consecutive features of a lane.
pub const LANES: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Rows of the weight in a tile, and features of each piece that it makes.
    pub rows: usize,
    pub features: usize,
    pub pieces: usize,
    /// How operands are multiplied.
    pub operands: Operands,
    /// Whether rows are an expert's, and gathered from any places.
    pub gathers: bool,
    /// Columns of a stretch.
    pub stretch: usize,
    /// Stretches along the weight, and those that fit local memory at once.
    pub count: usize,
    pub stages: usize,
    /// Tiles along the features, and work-groups that make all of them.
    pub across: usize,
    pub groups: usize,
}

/// Rows that a tile may have: whole rounds of features of each piece.
pub fn possible(pieces: usize, operands: Operands) -> impl Iterator<Item = usize> {
    let is_scaled = operands.scales_each_tile();
    let has_parts = move |rows: usize| !is_scaled || rows <= SCALED_ROWS || rows.is_multiple_of(SCALED_ROWS);
    ROWS.into_iter().filter(move |&rows| rows.is_multiple_of(pieces * ROUND) && has_parts(rows))
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, rows: all, depth, pieces, experts, heads, .. } = Sizes::of(spec.body)?;
        let operands = Operands::of(spec.body);
        let stretch = STRETCH / operands.dtype(dtype).size();
        let (unit, width) = (&arch.simt.unit, arch.memory.padded(all / pieces));
        let across = |rows: usize| width.div_ceil(rows / pieces);
        let blocks = match experts.map(|experts| (experts.layout, experts.choices)) {
            Some((Layout::Grouped { experts, tile }, choices)) => {
                Groups { experts, tile, pairs: spec.tokens * choices }.blocks()
            }
            _ => spec.tokens.div_ceil(TOKENS),
        };
        let matrices = heads.unwrap_or(1);
        let (tiles, units) = (|rows: usize| blocks * across(rows) * matrices, arch.simt.chip.units);
        let cost = launch::measured(arch)?.tile_cost;
        // A tile has features of one head.
        let fits = |rows: &usize| heads.is_none() || all.is_multiple_of(*rows);
        let best =
            possible(pieces, operands).filter(fits).min_by_key(|&rows| tiles(rows).div_ceil(units) * (rows + cost));
        let rows = choice.get(&TILE).or(best).ok_or_else(|| unsupported(format!("{pieces} pieces in a tile")))?;
        let room = unit.lds_group - CONSUMERS / 32 * EXCHANGE - 2 * MAP - unit.lds_granule;
        Ok(Shape {
            rows,
            features: rows / pieces,
            pieces,
            operands,
            gathers: experts.is_some(),
            stretch,
            count: arch.memory.padded(depth).div_ceil(stretch),
            stages: room / ((rows + TOKENS) * STRETCH),
            across: across(rows),
            groups: units.min(tiles(rows)),
        })
    }

    /// Registers of a producer's thread, and of a consumer's.
    pub fn registers(&self) -> [usize; 2] {
        match self.operands {
            Operands::Codes => DECODES,
            _ if self.gathers => GATHERS,
            _ => COPIES,
        }
    }

    /// Parts of a tile that are scaled one after the other. The features of a piece in a part have
    /// one scale.
    pub fn parts(&self) -> usize {
        self.rows.div_ceil(SCALED_ROWS)
    }

    pub fn scaled_features(&self) -> usize {
        self.features.min(SCALED_ROWS)
    }

    /// Panels of the result in a tile.
    pub fn tile_panels(&self) -> usize {
        self.features / 16
    }

    /// Bytes of a stretch of the weight, and of both operands.
    pub fn stage(&self) -> [usize; 2] {
        [self.rows / 8 * EIGHT, self.rows / 8 * EIGHT + TOKENS * STRETCH]
    }
}
