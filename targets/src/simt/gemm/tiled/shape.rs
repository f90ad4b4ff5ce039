//! How a tile is cut, by the room in registers and local memory.
use atomc_ir::arch::{BlockScaled, GpuArch, Isa, Simt};
use atomc_ir::{DType, Diagnostic, Family, Layout};

use crate::KernelSpec;
use crate::row::unsupported;
use crate::simt::gemm::contract::Sizes;
use crate::simt::gemm::global_to_lds::{MOST_STAGES, goes_direct};
use crate::simt::gemm::quantised::{GROUP, Quantised, SPAN};
use crate::simt::gemm::tile::TileSize;
use crate::simt::gemm::tile::grid::Splits;
use crate::simt::launch::COUNTERS;
use crate::simt::machine::fragment::{Matrix, VEC16};

/// Panels of 16 rows of the weight in a tile, and the same number of blocks of 16 tokens. The rows
/// of an expert may have tiles of half as many.
pub const SIDE: usize = 8;
const SMALL: usize = SIDE / 2;
/// Fewest tokens for which such tiles request fewer bytes of the caches than a panel with all rows:
/// half of the tile's.
pub const LEAST_TOKENS: usize = 16 * SMALL / 2;
/// Fewest bytes of a weight for tiles that are not full: with a smaller weight the gain is less
/// than the cost of adding up shared sums.
pub const LEAST_BYTES: usize = 32 << 20;
/// The side of large tiles, which read half as many bytes for each product. A unit holds one of
/// them.
const LARGE: usize = SIDE * 2;
/// Panels of a wave in a small tile, which two waves make.
const SMALL_PANELS: usize = 2;
/// Panels of a wave in a large tile of codes. Eight waves make it with twice the registers, which
/// hold what is needed in addition to the sums.
const WIDE_PANELS: usize = 8;

/// Parts of the weight that may have a work-group each for a tile, and the fewest stretches of a
/// part, also for large tiles. Leaving and reading the sums of a large tile takes as long as 24
/// stretches: units without a tile are worth less.
const SPLITS: [usize; 3] = [8, 4, 2];
const STRETCHES: usize = 4;
const LARGE_STRETCHES: usize = 24;

/// Blocks of tokens of a wave if the waves of a large tile make one of half as many rows.
const FEW_BLOCKS: usize = 2;
/// Units for each large tile of such a step: with fewer units, large tiles are faster.
const FEW: usize = 3;
/// The least part of a chip's units that have a large tile: half of them request no more of the
/// second cache than all units do with tiles of half as many rows.
const BUSY: [usize; 2] = [1, 2];

/// Fewest stretches in local memory: one that is multiplied, and one in flight.
const HALVES: usize = 2;
/// Work-groups on a unit that local memory has room for, if tiles are not large, and the most for
/// each unit if tiles are shared.
const TOGETHER: usize = 2;

/// Columns of a stretch of 16-bit floats, if local memory is large.
const STRETCH: usize = 64;
/// Bytes of a row in a stretch, if local memory is large.
const STRETCH_BYTES: usize = 128;

/// How a tile is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub threads: usize,
    /// Panels of the weight in a tile, and blocks of tokens.
    pub side: usize,
    /// Panels and blocks that one wave multiplies.
    pub panels: usize,
    pub blocks: usize,
    /// Columns in a stretch.
    pub stretch: usize,
    /// Vectors of 16 rows in a stretch.
    pub vec16s: usize,
    /// Stretches that local memory holds.
    pub stages: usize,
    /// Work-groups that share a tile, each with a part of the weight's columns, and the stretches
    /// of all.
    pub splits: Splits,
    pub count: usize,
    /// Panels of the result that one wave makes.
    pub made: usize,
    pub pieces: usize,
    /// Whether the weight is decoded on its way into local memory.
    pub is_coded: bool,
    /// How quantised operands are multiplied as stored, if they are.
    pub quantised: Option<Quantised>,
}

/// Whether tiles are large: local memory holds two of their stretches, rows have room for whole
/// tiles, and each unit of the chip has one, or a part of one.
fn is_large(spec: &KernelSpec, arch: GpuArch) -> Result<bool, Diagnostic> {
    let (side, simt) = (16 * LARGE, arch.simt);
    let Sizes { dtype, encoding, rows, depth, .. } = Sizes::of(spec.body)?;
    let quantised = Quantised::of(spec.body, arch).filter(|quantised| quantised.as_stored);
    let fits = simt.unit.lds_group >= 2 * 2 * side * STRETCH_BYTES;
    let is_plain = encoding.is_none() && Matrix::native(simt, dtype) && dtype.bits() == 16;
    let dtype = quantised.map_or(dtype, |quantised| quantised.dtype);
    let count = dtype.bytes(arch.memory.padded(depth)) / STRETCH_BYTES;
    let tiles = spec.tokens / side * rows.div_ceil(side);
    let most = (LARGE_STRETCHES, simt.chip.units);
    let groups = tiles * splits(spec, arch, most, [count, HALVES]).of(tiles);
    let as_they_lie = is_plain || quantised.is_some();
    Ok(as_they_lie && fits && arch.memory.rows.is_multiple_of(side) && groups * BUSY[1] >= simt.chip.units * BUSY[0])
}

/// Work-groups that share a tile in a step with few tiles: enough to fill each unit of the chip, as
/// long as a part of the weight has enough stretches, a multiple of the stages.
fn splits(spec: &KernelSpec, arch: GpuArch, (least, most): (usize, usize), [count, stages]: [usize; 2]) -> Splits {
    let has_one = Sizes::of(spec.body).is_ok_and(|sizes| sizes.experts.is_none() && sizes.heads.is_none());
    if arch.simt.isa != Isa::Amdgcn || spec.invariant || !has_one {
        return Splits::ONE;
    }
    let fits = |splits: &usize| count.is_multiple_of(stages) && count / stages / splits * stages >= least;
    SPLITS.into_iter().find(fits).map_or(Splits::ONE, |each| Splits { each, most })
}

/// Stretches that local memory has room for, in flight or multiplied. Scales that change along K
/// are loaded for two stretches at once, so then there is an even number of stages.
fn stages(simt: &Simt, (quantised, stretch): (Option<Quantised>, usize), (count, rooms): (usize, usize)) -> usize {
    let scaled = quantised.filter(|quantised| quantised.has_groups || quantised.block_scaled.is_some());
    let in_stretch = scaled.is_none_or(|quantised| quantised.block_scaled.is_some() || stretch == GROUP);
    let fits = |stages: &usize| {
        *stages <= rooms && count.is_multiple_of(*stages) && (scaled.is_none() || stages.is_multiple_of(2))
    };
    match goes_direct(simt) && simt.buffer_word.is_some() && in_stretch {
        true => (HALVES + 1..=MOST_STAGES).rev().find(fits).unwrap_or(HALVES),
        false => HALVES,
    }
}

/// Tiles of a step of the bucket's size.
fn tiles(spec: &KernelSpec, side: usize) -> Result<usize, Diagnostic> {
    let Sizes { rows, .. } = Sizes::of(spec.body)?;
    Ok(spec.tokens.div_ceil(16 * side) * rows.div_ceil(16 * side))
}

/// Panels, and blocks of tokens, of a tile's side.
fn side(spec: &KernelSpec, arch: GpuArch) -> Result<usize, Diagnostic> {
    let Sizes { experts, heads, .. } = Sizes::of(spec.body)?;
    Ok(match experts.map(|experts| experts.layout) {
        // In the same order along K: small steps have small tiles, so that there are more of them.
        None if spec.invariant && spec.tokens <= SMALL * 16 => SMALL,
        None if spec.family == Family::Matvec => SMALL,
        None if heads.is_some() => SIDE,
        None if is_large(spec, arch)? => LARGE,
        None => SIDE,
        Some(Layout::Grouped { tile, .. }) if [SMALL, SIDE].contains(&(tile / 16)) && tile % 16 == 0 => tile / 16,
        Some(Layout::Grouped { tile, .. }) => {
            let [small, large] = [SMALL, SIDE].map(|side| side * 16);
            return Err(unsupported(format!("blocks of {tile} rows: tiles have {small} or {large}")));
        }
        Some(_) => return Err(unsupported("a product of many rows whose experts are not grouped")),
    })
}

/// Panels and blocks of a wave, in a tile of a side.
fn of_wave(simt: &Simt, dtype: DType, quantised: Option<Quantised>, side: usize) -> (usize, usize) {
    // A group has sums of its own in addition to those of all columns.
    let sums = if quantised.is_some_and(|quantised| quantised.has_groups) { 2 } else { 1 };
    // Half as many lanes hold twice as many results each. That does not matter if four waves fit on
    // a SIMD with twice the registers of 64 by 64 results. If operands are converted on the way,
    // these registers are needed for that.
    let leaves_room = simt.unit.vgprs >= 4 * 2 * sums * (64 * 64 / simt.wave);
    let is_block_scaled = quantised.is_some_and(|quantised| quantised.block_scaled.is_some());
    let (panels, blocks) = match Matrix::native(simt, dtype) || is_block_scaled {
        true => (if leaves_room { 4 } else { simt.wave / 16 }, 4),
        false => (simt.wave / 16, 2),
    };
    let panels = match side {
        SMALL => panels.min(SMALL_PANELS),
        LARGE if quantised.is_some() => WIDE_PANELS,
        _ => panels,
    };
    (panels, blocks)
}

/// Columns of a stretch.
fn stretch(simt: &Simt, dtype: DType, quantised: Option<Quantised>, depth: usize) -> usize {
    // Two halves of both operands, twice on a unit, if local memory is large.
    let roomy =
        |columns: usize| depth.is_multiple_of(columns) && simt.unit.lds >= 4 * (2 * SIDE) * dtype.bytes(16 * columns);
    match quantised {
        Some(Quantised { as_stored: true, .. }) if dtype.bits() == 4 && roomy(2 * GROUP) => 2 * GROUP,
        Some(Quantised { as_stored: true, .. }) if roomy(GROUP) || dtype.bits() == 4 => GROUP,
        Some(Quantised { as_stored: true, .. }) => SPAN,
        _ if roomy(STRETCH) => STRETCH,
        _ => 32,
    }
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, depth, pieces, encoding, .. } = Sizes::of(spec.body)?;
        let side = side(spec, arch)?;
        let (simt, depth) = (arch.simt, arch.memory.padded(depth));
        let quantised = Quantised::of(spec.body, arch);
        let dtype = quantised.map_or(dtype, |quantised| quantised.dtype);
        let (panels, blocks) = of_wave(simt, dtype, quantised, side);
        if !panels.is_multiple_of(pieces) {
            return Err(unsupported(format!("a tiled contraction with {pieces} pieces")));
        }
        let stretch = stretch(simt, dtype, quantised, depth);
        let count = depth / stretch;
        let vec16s = dtype.bytes(stretch * 16) / VEC16;
        let is_coded = encoding.is_some() && !quantised.is_some_and(|quantised| quantised.as_stored);
        let units = simt.chip.units;
        // If units have at most one tile, it has all of their local memory.
        let together = if side == SIDE && tiles(spec, side)? <= units { 1 } else { TOGETHER };
        let rooms = match side {
            LARGE => HALVES,
            _ => simt.unit.lds / (together * 2 * side * vec16s * VEC16),
        };
        let stages = if is_coded { HALVES } else { stages(simt, (quantised, stretch), (count, rooms)) };
        let shared = match side {
            LARGE => (LARGE_STRETCHES, units),
            _ if stages > HALVES => (STRETCHES, together * units),
            _ => (STRETCHES, TOGETHER * units),
        };
        let splits = splits(spec, arch, shared, [count, stages]);
        Ok(Shape {
            threads: side / panels * (side / blocks) * simt.wave,
            side,
            panels,
            blocks,
            stretch,
            vec16s,
            stages,
            splits,
            count,
            made: panels / pieces,
            pieces,
            is_coded,
            quantised,
        })
    }

    /// The shape for steps that have fewer large tiles than a third of the chip's units, and the
    /// most tokens of such a step. The same work-groups make tiles of half as many rows and tokens,
    /// as long as each unit has at most one.
    pub fn of_few(&self, spec: &KernelSpec, arch: GpuArch) -> Result<Option<(Shape, usize)>, Diagnostic> {
        let (units, rows) = (arch.simt.chip.units, Sizes::of(spec.body)?.rows);
        let across = rows.div_ceil(16 * LARGE);
        let limit = (units.div_ceil(across * FEW) - 1) * 16 * LARGE;
        let limit = limit.min(units / rows.div_ceil(16 * SIDE) * 16 * SIDE);
        let panels = SIDE * SIDE * arch.simt.wave / (self.threads * FEW_BLOCKS);
        if !self.is_large() || spec.invariant || limit == 0 || !panels.is_multiple_of(self.pieces) {
            return Ok(None);
        }
        let rooms = self.stages * LARGE / SIDE;
        let stages = stages(arch.simt, (self.quantised, self.stretch), (self.count, rooms));
        let splits = splits(spec, arch, (STRETCHES, units), [self.count, stages]);
        let made = panels / self.pieces;
        let few = Shape { side: SIDE, panels, blocks: FEW_BLOCKS, made, stages, splits, ..*self };
        Ok(Some((few, limit)))
    }

    /// The size of its tiles, for a scheduler.
    pub fn size(&self) -> TileSize {
        TileSize { panels: self.tile_panels(), columns: self.tokens(), threads: self.threads }
    }

    /// Work-groups of a step of the bucket's size.
    pub fn groups(&self, spec: &KernelSpec) -> Result<usize, Diagnostic> {
        let tiles = tiles(spec, self.side)?;
        Ok(tiles * self.splits.of(tiles))
    }

    /// Bytes of the workspace for the sums of shared tiles.
    pub fn shared_bytes(&self, spec: &KernelSpec) -> Result<usize, Diagnostic> {
        let Splits { each, most } = self.splits;
        let groups = most.min(tiles(spec, self.side)? * each);
        Ok(if self.splits.share() { COUNTERS + groups * self.partial_bytes() } else { 0 })
    }

    /// Bytes of a work-group's sums of a tile in the workspace.
    pub fn partial_bytes(&self) -> usize {
        self.side * self.side * 16 * 16 * 4
    }

    /// The instructions with scales for 32 columns of both operands, if they are used.
    pub fn block_scaled(&self) -> Option<BlockScaled> {
        self.quantised?.block_scaled
    }

    /// Bytes of local memory for all stages.
    pub fn local(&self) -> usize {
        self.stages * self.half()[1]
    }

    /// Bytes of local memory for the weight's part of a stretch, and for both.
    pub fn half(&self) -> [usize; 2] {
        let panel = self.vec16s * VEC16;
        [self.side * panel, 2 * self.side * panel]
    }

    /// Loads of a wave for its part of a stretch, or of its rows alone if the weight is decoded.
    pub fn loads(&self) -> usize {
        let all = if self.is_coded { self.side } else { 2 * self.side };
        all * self.vec16s / self.threads
    }

    /// Stretches that are summed before scaling where scales change along K: one or two, as many as
    /// a turn of the loop has.
    pub fn in_group(&self) -> usize {
        (GROUP / self.stretch).min(2)
    }

    /// Whether scales of rows may be loaded for two stretches at once: there is no odd one.
    pub fn has_pairs(&self) -> bool {
        self.count.is_multiple_of(2)
    }

    /// Whether several stretches are in flight at once.
    pub fn is_staged(&self) -> bool {
        self.stages > HALVES
    }

    /// Whether a tile fills a unit.
    pub fn is_large(&self) -> bool {
        self.side == LARGE
    }

    /// Whether a wave's sums take half of its registers.
    pub fn is_wide(&self) -> bool {
        self.panels == WIDE_PANELS
    }

    /// Tokens of a tile.
    pub fn tokens(&self) -> usize {
        self.side * 16
    }

    /// Panels of the result in a tile.
    pub fn tile_panels(&self) -> usize {
        self.side / self.pieces
    }
}
