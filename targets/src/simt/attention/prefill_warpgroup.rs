//! Family `attend_many` where four waves multiply together, and the machine copies keys and values
//! by itself.
//!
//! A work-group stays, and attends with one tile of the batch and the query heads of a head of the
//! cache after the other. One lane copies blocks of the cache as soon as there is room in a ring in
//! local memory. Two groups of four waves, each with 64 queries, multiply the blocks that have
//! arrived. A lane has scores of two queries, which as weights are its operands of the second
//! product. The products of a block's values are in flight together with those of the next block's
//! keys, and while weights are made of these. A turn of the loop ends there: NVIDIA's assembler
//! would move a wait for the values before the arithmetic, but not from one turn to the previous
//! one.
//!
//! The cache has keys and values panel by panel of 16 rows, and in a panel first 8 rows and then
//! the other 8 of each 16 bytes of columns. Copies take them apart by columns, so that in local
//! memory all rows of 16 bytes of columns are together, as products want them.
mod queries;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::arch::{GpuArch, Measured};
use atomc_ir::{Diagnostic, Family, Op};

use crate::code::{Int, Ptr};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::attention::flash::Attention;
use crate::simt::attention::rounds::each_in_rounds;
use crate::simt::attention::sizes::Sizes;
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Setup, arguments, kernel};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::{Pipeline, split_roles};
use crate::simt::machine::warpgroup::{MAP, TensorMap, TileForm};
use crate::{KernelSpec, Tasks};
use queries::{OnlineSoftmaxPair, Queries};

/// Work-groups are as large as with this many groups of four waves, so that each thread that
/// multiplies gets enough registers.
const GROUPS: usize = 3;
/// Bytes of 8 rows by 16 bytes of a panel, and of 16.
const HALF: usize = 128;
const GROUP: usize = 2 * HALF;
/// Threads that multiply together, and their queries.
const TEAM: usize = 128;
const ROWS: usize = 64;
/// Maps of a work-group: of keys, and of values.
const MAPS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Query heads of a work-group, and the heads that share a head of the cache one after the
    /// other.
    heads: usize,
    parts: usize,
    /// Threads that multiply.
    workers: usize,
    /// Bytes of the queries of 128 of them in local memory; 0 where registers have them.
    queries: usize,
    stages: usize,
    /// Numbers of a key or value in the cache: those of a head, and zeros behind them.
    dim: usize,
    /// Bytes of a block's keys of one head, and as many of values.
    bytes: usize,
    groups: usize,
    /// Registers of a thread that copies, and of one that multiplies.
    registers: [usize; 2],
}

/// Checks that the machine has the instructions for this attention, and that products take the
/// queries from memory as they are.
fn suits(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    let sizes = Sizes::of(spec.body)?;
    sizes.even()?;
    let cache = sizes.cache;
    let (simt, body) = (arch.simt, spec.body);
    WhyNot::unless(simt.warpgroup_mma, || format!("{} has no warpgroup MMA", arch.name))?;
    let stored = body.ids().any(|id| match body.op(id) {
        Op::Attention { scale, .. } | Op::AttendUpTo { scale, window: 0 } => {
            let query = body.operands(id)[0];
            let all = body.outputs().iter().copied().chain([query]);
            let same = all.filter_map(|v| body.ty(v).as_tensor()).all(|t| t.dtype == cache.dtype);
            *scale > 0.0 && same && matches!(body.op(query.node), Op::Input { .. })
        }
        _ => false,
    });
    let prefill = launch::measured(arch)?.prefill;
    let (most, padded) = (prefill.dim, arch.memory.padded(cache.head_dim));
    // Registers have zeros behind a query's numbers, eight of them at a time.
    let in_registers = padded <= prefill.in_registers && cache.head_dim.is_multiple_of(8);
    let fits = cache.head_dim <= most && (padded == cache.head_dim || in_registers);
    let halves = cache.dtype.size() == 2 && Matrix::native(simt, cache.dtype);
    WhyNot::unless(halves, || format!("a cache of {}: warpgroup MMA takes 16-bit floats", cache.dtype.name()))?;
    WhyNot::unless(stored, || {
        format!("queries are not rows of {} in memory, or the scale is negative", cache.dtype.name())
    })?;
    WhyNot::unless(fits, || {
        let (row, few) = (arch.memory.row, prefill.in_registers);
        format!("heads of {}: at most {most} and a multiple of {row}, or of 8 up to {few}", cache.head_dim)
    })
}

impl Shape {
    fn new(spec: &KernelSpec, arch: GpuArch) -> Result<Shape, Diagnostic> {
        let sizes = Sizes::of(spec.body)?;
        let Measured { prefill, registers, .. } = launch::measured(arch)?;
        let parts = sizes.group().div_ceil(prefill.heads);
        let heads = sizes.group().div_ceil(parts);
        let dim = arch.memory.padded(sizes.cache.head_dim);
        let bytes = arch.memory.block_tokens * dim * sizes.cache.dtype.size();
        let workers = (heads * TILE_TOKENS).next_multiple_of(64) * 2;
        let queries = if dim <= prefill.in_registers { 0 } else { ROWS * dim * sizes.cache.dtype.size() };
        let room = arch.simt.unit.lds_group - 1024 - queries * workers / TEAM;
        let stages = (room / (2 * bytes)).min(prefill.stages);
        Ok(Shape { heads, parts, workers, queries, stages, dim, bytes, groups: arch.simt.chip.units, registers })
    }

    fn threads(&self) -> usize {
        self.workers + 128
    }
}

pub const SCHEDULE: Schedule = Schedule {
    name: "prefill_warpgroup",
    family: Family::AttendMany,
    invariant: true,
    suits: |spec, arch, _| suits(spec, launch::gpu(arch)?),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?)?;
    let code = setup.open(spec, shape.threads())?;
    code.want_waves(GROUPS);
    {
        let kernel = kernel(&code, spec)?;
        let attention = Attention::new(&kernel)?;
        Group::new(&attention, shape, spec).run()?;
    }
    let workspace = COUNTERS + shape.groups * MAPS * MAP;
    Ok((code, manifest::Kernel { workspace, ..manifest::Kernel::simt(Tasks::Fixed(shape.groups), shape.threads()) }))
}

/// The work of one work-group. Blocks of keys and of values are copied through local memory.
struct Group<'r, 'k, 'a, 'c> {
    attention: &'r Attention<'k, 'a, 'c>,
    shape: Shape,
    keys: Pipeline<'c>,
    values: Pipeline<'c>,
    /// Queries, where local memory has them.
    queries: Option<Ptr<'c>>,
    /// Room for maps, and this work-group's place for them.
    maps: Ptr<'c>,
    placed: Ptr<'c>,
}

/// One tile of the batch, and the query heads of a work-group.
struct Tile<'c> {
    /// The first token, the number of tokens, the position of the first, and that which it sees up
    /// to.
    token: Int<'c>,
    count: Int<'c>,
    position: Int<'c>,
    sees: Int<'c>,
    table: Ptr<'c>,
    cache_head: Int<'c>,
    part: Int<'c>,
    /// The first block of keys that some query sees, and the end of these blocks.
    first: Int<'c>,
    end: Int<'c>,
}

impl<'r, 'k, 'a, 'c> Group<'r, 'k, 'a, 'c> {
    fn new(attention: &'r Attention<'k, 'a, 'c>, shape: Shape, spec: &KernelSpec) -> Group<'r, 'k, 'a, 'c> {
        let c = attention.code();
        let (maps, workspace) = (c.shared(MAPS * MAP, MAP), c.argument(arguments(spec.body) + 1));
        let placed = c.at(workspace, c.group() * (MAPS * MAP) + COUNTERS);
        let [keys, values] = [0, 1].map(|_| Pipeline::new(c, shape.stages, shape.bytes, 128));
        let queries = (shape.queries > 0).then(|| c.shared(shape.queries * shape.workers / TEAM, 128));
        Group { attention, shape, keys, values, queries, maps, placed }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.attention.code()
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (c, workers) = (self.code(), self.shape.workers);
        c.when(c.equal(c.thread(), 0), || {
            for ring in [&self.keys, &self.values] {
                ring.make_barriers(c, [1, workers / 32]);
            }
            c.show_barriers();
        });
        c.barrier();
        let produce = || {
            c.when(c.equal(c.wave_index(), workers / 32), || {
                self.place_maps();
                c.when(c.equal(c.lane_index(), 0), || self.each_tile(|tile, turn| self.produce(tile, turn)));
            });
        };
        let mut result = Ok(());
        let consume = || self.each_tile(|tile, turn| result = self.attend(tile, turn));
        split_roles(c, workers, self.shape.registers, produce, consume);
        result
    }

    /// Runs `body` for each tile of this work-group, with the turn of its first block. Tiles with
    /// many keys are first.
    fn each_tile(&self, body: impl FnOnce(&Tile<'c>, Int<'c>)) {
        let (c, a, groups) = (self.code(), self.attention, self.shape.groups);
        let batch = &a.cache.batch;
        let heads = a.cache.ty.heads * self.shape.parts;
        let all = batch.tile_count * heads;
        each_in_rounds(c, all, groups, &[c.int(0).into()], |number, is_one, turn| {
            let turn = c.as_int(turn[0]);
            let index = batch.tile_count - 1 - number / heads;
            let tile = self.tile(index, number % heads);
            let is_one = is_one & c.less(0, tile.count);
            c.when(is_one, || body(&tile, turn));
            vec![c.pick(is_one, turn + (tile.end - tile.first), turn)]
        });
    }

    fn tile(&self, index: Int<'c>, rest: Int<'c>) -> Tile<'c> {
        let (c, a) = (self.code(), self.attention);
        let batch = &a.cache.batch;
        let entry = |i: usize| c.load_index(batch.tiles, index * 2 + i);
        let (token, count) = (entry(0), entry(1));
        let position = c.load_index(batch.positions, token);
        let keys = a.cache.layout.block_tokens;
        // How many keys the last one sees.
        let end = match a.seen.ends {
            Some(_) => a.seen.reach(c, (token, position), count - 1) + 1,
            None => position + count,
        };
        Tile {
            token,
            count,
            position,
            sees: a.seen.first(c, (token, position)),
            table: batch.table(c, token),
            cache_head: rest / self.shape.parts,
            part: rest % self.shape.parts,
            first: a.first_key(position) / keys,
            end: (end + (keys - 1)) / keys,
        }
    }

    /// The layout in local memory of a block with panels of `panel` bytes in the cache.
    fn form(&self, panel: usize) -> TileForm {
        TileForm::Blocks { along: self.shape.bytes / panel * GROUP, down: HALF }
    }

    /// How blocks of keys and of values are copied: of each 16 bytes of columns all panels, then
    /// the next 16 bytes.
    fn place_maps(&self) {
        let (c, a) = (self.code(), self.attention);
        let cache = a.cache;
        let place = |i: usize| c.local_address(c.at(self.maps, i * MAP));
        c.clear_maps(self.maps, MAPS);
        c.when(c.equal(c.lane_index(), 0), || {
            for (i, (from, panel)) in [(cache.k, a.key_panel()), (cache.v, a.value_panel())].into_iter().enumerate() {
                let (panels, groups, inner) = (self.shape.bytes / panel, panel / GROUP, GROUP / cache.ty.dtype.size());
                let dims = [
                    (inner, 0, inner),
                    (panels, panel, panels),
                    (groups, GROUP, groups),
                    (cache.ty.heads, cache.layout.head_bytes, 1),
                ];
                let outer = Some(cache.batch.block_stride);
                c.make_map(place(i), from, &TensorMap { dtype: cache.ty.dtype, dims: &dims, outer, swizzled: false });
            }
        });
        c.meet_in_wave();
        (0..MAPS).for_each(|i| c.place_map(c.at(self.placed, i * MAP), place(i)));
    }

    /// Issues the copies of all blocks of a tile, from a turn on.
    fn produce(&self, tile: &Tile<'c>, turn: Int<'c>) {
        let (c, bytes) = (self.code(), self.shape.bytes);
        c.repeat(tile.first, tile.end, 1, |i| {
            let block = c.load_index(tile.table, i);
            let first = [c.int(0), c.int(0), c.int(0), tile.cache_head, block];
            let turn = turn + (i - tile.first);
            for (i, ring) in [&self.keys, &self.values].into_iter().enumerate() {
                ring.wait_empty(c, turn);
                let full = ring.full(turn);
                c.expect_bytes(c.always(), full, bytes);
                c.copy_box(ring.at(turn), c.at(self.placed, i * MAP), &first, full);
            }
        });
    }

    fn attend(&self, tile: &Tile<'c>, turn: Int<'c>) -> Result<(), Diagnostic> {
        let (c, a) = (self.code(), self.attention);
        let queries = Queries::new(self, tile)?;
        let (first, end) = (tile.first, tile.end);
        let turn = |block: Int<'c>| turn + (block - first);
        let begun = queries.begin(first, turn(first));
        let (weights, mut running) = (begun.weights.len(), begun.carried());
        for (begin, end, hides) in self.ranges(tile, first + 1) {
            running = c.for_each((begin, end, 1), &running, |block, running| {
                queries.turn(block, turn(block), hides, OnlineSoftmaxPair::of(running, weights)).carried()
            });
        }
        queries.finish(end, turn(end), OnlineSoftmaxPair::of(&running, weights));
        let last = c.equal(tile.part, self.shape.parts - 1);
        let last = last & c.equal(tile.cache_head, a.cache.ty.heads - 1);
        c.when(last, || a.pad(tile.token, tile.count, self.shape.workers));
        Ok(())
    }

    /// Blocks from one to another, from `next` on, and whether some of their keys are hidden from
    /// some query.
    fn ranges(&self, tile: &Tile<'c>, next: Int<'c>) -> Vec<(Int<'c>, Int<'c>, bool)> {
        let (c, a) = (self.code(), self.attention);
        let keys = a.cache.layout.block_tokens;
        let late = c.larger((tile.sees + 1) / keys, next);
        if a.seen.window == 0 {
            return vec![(next, late, false), (late, tile.end, true)];
        }
        let last = tile.position + (tile.count - 1);
        let early = (a.first_key(last) + (keys - 1)) / keys;
        let early = c.larger(c.smaller(early, tile.end), next);
        let late = c.larger(early, late);
        vec![(next, early, true), (early, late, false), (late, tile.end, true)]
    }
}
