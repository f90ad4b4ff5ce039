//! How queries, keys and dimensions are shared out among the waves of a work-group, and the layout
//! of its local memory.
use atomc_ir::arch::{GpuArch, MatrixLayout, Simt};
use atomc_ir::{Family, Graph};

use crate::KernelSpec;
use crate::schedule::WhyNot;
use crate::simt::attention::sizes::{Sizes, sees_all};
use crate::simt::launch::COUNTERS;
use crate::simt::machine::fragment::VEC16;

/// Queries, and keys, of a tile of a product.
pub const SIDE: usize = 16;
/// Bytes of a group of 8 numbers of 16 keys.
pub const GROUP: usize = SIDE * VEC16;
/// Bytes that all banks of local memory give at once: `EIGHT` vectors. Each row of vectors is
/// permuted differently, so lanes that read one row, or one column, use different banks.
pub const LINE: usize = EIGHT * VEC16;
/// Bytes of padding after a staged query.
const ROW_GAP: usize = VEC16;
/// Tiles of queries if one tile's room is not enough, and those that use the keys that a wave has
/// loaded.
const TILES: usize = 4;
const TOGETHER: usize = 2;
/// Keys that a product of values contracts.
pub const STEP: usize = 32;
/// Most parts of a sequence.
const SPLITS: usize = 128;
/// Numbers of 16 bits in a vector, which are also the keys that a lane contracts at once.
pub const EIGHT: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tiles of queries, and panels of 16 keys, of a turn.
    pub tiles: usize,
    pub panels: usize,
    pub waves: usize,
    pub threads: usize,
    /// Tiles and panels that a wave has scores of, and the parts that the columns of a key are cut
    /// into.
    pub own_tiles: usize,
    pub own_panels: usize,
    pub cuts: usize,
    /// Consecutive dimensions of values that a lane has.
    pub dims: usize,
    /// Groups of 8 numbers in a key.
    pub groups: usize,
    /// Work-groups that share a token's, or a tile's, queries, and those that share its keys.
    pub parts: usize,
    pub splits: usize,
    /// Work-groups that a compute unit has room for.
    pub resident: usize,
}

impl Shape {
    /// The shape for a step with `tokens_of_tile` tokens in a tile.
    pub fn new(spec: &KernelSpec, arch: GpuArch, tokens_of_tile: usize) -> Result<Shape, WhyNot> {
        let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt);
        takes(spec.body, &sizes, simt)?;
        let queries = sizes.heads * tokens_of_tile;
        let shapes: &[(usize, usize)] = if queries <= SIDE { &[(1, 4)] } else { &[(TILES, 8), (TILES, 4)] };
        let cut = |&(tiles, waves)| Shape::cut(&sizes, arch, tiles, waves);
        let fits = |s: &Shape| s.local() <= simt.unit.lds_group;
        let why = || WhyNot::new(format!("{}: values do not fill the waves of a work-group", sizes.cache));
        let shape = shapes.iter().filter_map(cut).find(fits).ok_or_else(why)?;
        let resident = (simt.unit.lds / shape.local()).min(2 * simt.unit.simds / shape.waves).max(1);
        let parts = queries.div_ceil(shape.queries());
        let splits = match spec.family {
            Family::AttendOne | Family::AttendListed => {
                let most = SPLITS.min(COUNTERS / 4 / (spec.tokens * parts));
                (resident * simt.chip.units / (spec.tokens * parts)).clamp(1, most.max(1))
            }
            _ => 1,
        };
        Ok(Shape { parts, splits, resident, ..shape })
    }

    fn cut(sizes: &Sizes, arch: GpuArch, tiles: usize, waves: usize) -> Option<Shape> {
        let groups = arch.memory.padded(sizes.cache.head_dim) / EIGHT;
        let wave_dims = sizes.cache.value_dim / waves;
        let dims = wave_dims / SIDE;
        let (panels, own_tiles) = (2, tiles.min(TOGETHER));
        let sharing = waves / (tiles / own_tiles);
        let of_panels = sharing.min(panels);
        let cuts = sharing / of_panels;
        let even =
            wave_dims * waves == sizes.cache.value_dim && (dims == 4 || dims == EIGHT) && dims * SIDE == wave_dims;
        let shape = Shape {
            tiles,
            panels,
            waves,
            threads: waves * arch.simt.wave,
            own_tiles,
            own_panels: panels / of_panels,
            cuts,
            dims,
            groups,
            parts: 1,
            splits: 1,
            resident: 1,
        };
        (even && groups.is_multiple_of(4 * cuts)).then_some(shape)
    }

    pub fn queries(&self) -> usize {
        self.tiles * SIDE
    }

    /// Keys of a turn.
    pub fn keys(&self) -> usize {
        self.panels * SIDE
    }

    /// Products of keys that a wave adds up for a panel.
    pub fn chunks(&self) -> usize {
        self.groups / 4 / self.cuts
    }

    /// Waves on a SIMD of four.
    pub fn simd_waves(&self, simds: usize) -> usize {
        (self.resident * self.waves / simds).max(1)
    }

    /// Threads that make the weights of a query together, and the keys that each has.
    pub fn sharing(&self) -> usize {
        self.threads / self.queries()
    }

    pub fn own_keys(&self) -> usize {
        self.keys() / self.sharing()
    }

    pub fn panel_bytes(&self) -> usize {
        self.groups * GROUP
    }

    /// Bytes of the scores of 32 keys, and of their weights.
    pub fn score_bytes(&self) -> usize {
        self.queries() * STEP * 4
    }

    pub fn weight_bytes(&self) -> usize {
        self.queries() * STEP * 2
    }

    /// Bytes of a query that is staged.
    pub fn query_row(&self) -> usize {
        self.groups * VEC16 + ROW_GAP
    }

    /// The place of the scores, after the keys. Each part of the columns has its own scores.
    pub fn scores(&self) -> usize {
        self.panels * self.panel_bytes()
    }

    pub fn weights(&self) -> usize {
        self.scores() + self.cuts * self.keys() / STEP * self.score_bytes()
    }

    /// The place of two numbers of each query, followed by one of the work-group.
    pub fn numbers(&self) -> usize {
        self.weights() + self.keys() / STEP * self.weight_bytes()
    }

    /// Bytes of local memory.
    pub fn local(&self) -> usize {
        self.own_key() + self.groups * VEC16
    }

    /// The place of the key of the token itself, which this step writes.
    pub fn own_key(&self) -> usize {
        self.numbers() + 2 * 4 * self.queries() + VEC16
    }

    /// Tiles of queries that are staged at a time.
    pub fn staged(&self) -> usize {
        let fits =
            |tiles: &usize| self.tiles.is_multiple_of(*tiles) && tiles * SIDE * self.query_row() <= self.numbers();
        (1..=self.tiles).rev().find(fits).unwrap_or(1)
    }

    /// Bytes of one work-group's result of its keys: sums of values, then the row maximum and the
    /// sum of weights of each query.
    pub fn partial(&self) -> usize {
        self.partial_values() + 8 * self.queries()
    }

    pub fn partial_values(&self) -> usize {
        self.tiles * self.dims * self.threads * VEC16
    }
}

/// Checks that it is attention of these parts, on a machine with these instructions.
fn takes(body: &Graph, sizes: &Sizes, simt: &Simt) -> Result<(), WhyNot> {
    let cache = &sizes.cache;
    WhyNot::unless(cache.is_prefix && cache.heads == 1, || {
        format!("{cache}: values must be the first numbers of keys that all query heads share")
    })?;
    let MatrixLayout { columns, depth, results, replicated, .. } = simt.matrix;
    let is_mfma = simt.wave == 64 && columns == SIDE && depth == EIGHT && results == 4 && !replicated;
    WhyNot::unless(is_mfma, || "the chip's products have other tiles than 16 by 16 in waves of 64".into())?;
    let dtype = sizes.stored.dtype;
    let multiplied = dtype.size() == 2 && simt.products.iter().any(|product| product.dtype == dtype);
    WhyNot::unless(multiplied, || format!("products of {} are not those of 16 bits", dtype.name()))?;
    sees_all(body)
}
