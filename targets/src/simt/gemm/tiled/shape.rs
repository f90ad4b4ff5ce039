//! How a tile is cut, by what registers and local memory hold.
use atomc_ir::Diagnostic;
use atomc_ir::arch::GpuArch;

use crate::KernelSpec;
use crate::row::unsupported;
use crate::simt::gemm::contract::Sizes;
use crate::simt::machine::fragment::{Matrix, VEC16};

/// Panels of 16 rows of the weight, and blocks of 16 tokens, in a tile.
pub const PANELS: usize = 8;
pub const BLOCKS: usize = 8;
/// Tokens of a tile.
pub const TOKENS: usize = BLOCKS * 16;

/// How a tile is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub threads: usize,
    /// Panels and blocks that one wave multiplies.
    pub panels: usize,
    pub blocks: usize,
    /// Columns in a stretch.
    pub stretch: usize,
    /// Vectors of 16 rows in a stretch.
    pub vec16s: usize,
    /// Stretches along the weight.
    pub count: usize,
    /// Panels of the result that one wave makes.
    pub made: usize,
    pub pieces: usize,
    /// Whether the weight is stored as codes.
    pub is_coded: bool,
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch) -> Result<Shape, Diagnostic> {
        let Sizes { dtype, depth, pieces, encoding, .. } = Sizes::of(spec.body)?;
        let (simt, depth) = (arch.simt, arch.memory.padded(depth));
        // Half as many lanes hold twice as many results each; that is no matter where four waves
        // stand on a SIMD that take twice the registers of 64 by 64 results. Where operands are
        // converted on the way, the registers for that are missing elsewhere.
        let leaves_room = simt.unit.vgprs >= 4 * 2 * (64 * 64 / simt.wave);
        let (panels, blocks) = match Matrix::native(simt, dtype) {
            true => (if leaves_room { 4 } else { simt.wave / 16 }, 4),
            false => (simt.wave / 16, 2),
        };
        if !panels.is_multiple_of(pieces) {
            return Err(unsupported(format!("a tiled contraction with {pieces} pieces")));
        }
        // Two halves of both operands, twice on a unit, if local memory is large.
        let roomy = simt.unit.lds >= 4 * (PANELS + BLOCKS) * 16 * 64 * dtype.size();
        let stretch = if roomy && depth.is_multiple_of(64) { 64 } else { 32 };
        Ok(Shape {
            threads: PANELS / panels * (BLOCKS / blocks) * simt.wave,
            panels,
            blocks,
            stretch,
            vec16s: stretch * 16 * dtype.size() / VEC16,
            count: depth / stretch,
            made: panels / pieces,
            pieces,
            is_coded: encoding.is_some(),
        })
    }

    /// Bytes of local memory for the weight's part of a stretch, and for both.
    pub fn half(&self) -> [usize; 2] {
        let panel = self.vec16s * VEC16;
        [PANELS * panel, (PANELS + BLOCKS) * panel]
    }

    /// Loads with which a wave brings its part of a stretch, or of its rows alone where the weight
    /// comes as codes.
    pub fn loads(&self) -> usize {
        let all = if self.is_coded { BLOCKS } else { PANELS + BLOCKS };
        all * self.vec16s / self.threads
    }

    /// Panels of the result in a tile.
    pub fn tile_panels(&self) -> usize {
        PANELS / self.pieces
    }
}
