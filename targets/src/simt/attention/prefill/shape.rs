//! How a tile's queries are shared out among waves, so that registers and local memory suffice.
use atomc_artifact::abi::TILE_TOKENS;
use atomc_ir::Diagnostic;
use atomc_ir::arch::GpuArch;

use crate::KernelSpec;
use crate::simt::attention::sizes::Sizes;
use crate::simt::machine::accumulator::{has_mfma_32x32, mfma_32x32_span};
use crate::simt::machine::fragment::VEC16;

/// Most waves of a work-group.
const WAVES: usize = 8;
/// Registers for everything except queries, keys or values, results, scores and loads in flight;
/// and the additional ones where products convert.
const OTHERS: usize = 28;
const CONVERTED: usize = 96;

/// How a tile's queries are shared out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Query heads of a work-group, and work-groups that share a head of the cache.
    pub heads: usize,
    pub parts: usize,
    /// Tiles of a wave, and their tokens; and whether accumulators are tiles of 32 by 32.
    pub columns: usize,
    pub width: usize,
    pub large: bool,
    pub threads: usize,
    /// Steps of a turn.
    pub steps: usize,
    /// Bytes of a turn's keys, and as much of values.
    pub bytes: usize,
    /// Whether queries stay in registers.
    pub keeps: bool,
    /// Whether the keys of one step are used before those of the next are loaded.
    pub in_turn: bool,
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch) -> Result<Shape, Diagnostic> {
        let sizes = Sizes::of(spec.body)?;
        let small = [(2, 2), (2, 1), (1, 2), (1, 1)].map(|(columns, steps)| Shape::of(&sizes, arch, columns, steps));
        let large = [4, 2].map(|steps| Shape::large(&sizes, arch, steps));
        // Two waves at least.
        let has_mfma_32x32 = has_mfma_32x32(arch.simt, sizes.stored.dtype) && sizes.group() > 1;
        let shapes: Vec<Shape> = large.into_iter().filter(|_| has_mfma_32x32).chain(small).collect();
        let possible = |s: &&Shape| s.bytes <= arch.simt.unit.lds_group / 2;
        let most = sizes.registers(arch).most;
        let best = shapes.iter().filter(possible).find(|s| s.fits(&sizes, arch));
        let units = |s: &Shape| if s.large { s.steps / 2 } else { s.steps };
        let best = best.map(|&s| Shape { in_turn: s.registers(&sizes, arch, units(&s)) > most, ..s });
        let r = sizes.registers(arch);
        let keeps = !r.converts && r.query + r.results + r.scores + OTHERS <= r.most;
        let least = shapes.iter().rfind(possible).map(|&s| Shape { keeps, ..s });
        best.or(least)
            .ok_or_else(|| crate::row::unsupported(format!("attention with heads of {} numbers", sizes.cache.head_dim)))
    }

    fn of(sizes: &Sizes, arch: GpuArch, columns: usize, steps: usize) -> Shape {
        let simt = arch.simt;
        // Two waves at least.
        let columns = if sizes.group() > 2 { columns } else { 1 };
        let width = simt.matrix.columns;
        Shape::cut(sizes, arch, columns, width, (steps, simt.matrix.span(simt.wave)))
    }

    /// Tiles of 32 by 32: one tile of a wave.
    fn large(sizes: &Sizes, arch: GpuArch, steps: usize) -> Shape {
        let span = mfma_32x32_span(arch.simt, sizes.stored.dtype);
        Shape { large: true, ..Shape::cut(sizes, arch, 1, 32, (steps, span)) }
    }

    fn cut(sizes: &Sizes, arch: GpuArch, columns: usize, width: usize, (steps, span): (usize, usize)) -> Shape {
        let simt = arch.simt;
        let waves = TILE_TOKENS / width / columns;
        let parts = (sizes.group() * waves).div_ceil(WAVES);
        let heads = sizes.group().div_ceil(parts);
        let dim = arch.memory.padded(sizes.cache.head_dim);
        let bytes = steps * span * dim * sizes.stored.dtype.size();
        Shape {
            heads,
            parts,
            columns,
            width,
            large: false,
            threads: heads * waves * simt.wave,
            steps,
            bytes,
            keeps: true,
            in_turn: true,
        }
    }

    /// Waves on a SIMD, as far as local memory has room.
    pub fn waves(&self, arch: GpuArch) -> usize {
        let simt = arch.simt;
        simt.unit.lds / self.local() * self.threads / simt.wave / simt.unit.simds
    }

    fn fits(&self, sizes: &Sizes, arch: GpuArch) -> bool {
        self.registers(sizes, arch, 1) <= sizes.registers(arch).most
    }

    /// Registers that a wave takes with the keys of `units` units at once. A tile of 32 by 32 is
    /// four small ones: two of keys by two of queries.
    fn registers(&self, sizes: &Sizes, arch: GpuArch, units: usize) -> usize {
        let r = sizes.registers(arch);
        let side = if self.large { 2 } else { 1 };
        let brought = 2 * (self.bytes / VEC16).div_ceil(self.threads) * VEC16 / 4;
        let own = self.columns * (side * (r.query + r.results) + self.steps * r.scores);
        let others = if r.converts { OTHERS + CONVERTED } else { OTHERS };
        own + brought + units * r.keys.max(r.values) + others
    }

    /// Bytes of local memory, for the keys of a turn and for its values.
    pub fn local(&self) -> usize {
        2 * self.bytes
    }
}
