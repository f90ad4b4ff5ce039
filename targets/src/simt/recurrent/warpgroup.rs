//! The gated delta rule of many tokens in chunks of 64 (as in [`super::chunks`], with the same
//! names) on warpgroup MMA.
//!
//! A work-group has some columns of a head's state. Four waves make the parts of a chunk that do
//! not depend on the state: keys and queries as tiles, lengths, decays, and the inverse `T`. Four
//! others carry the state from chunk to chunk, in sums of products; the operands of their next
//! products go through local memory. There are two stages, so the next chunk is made meanwhile.
//!
//! Numbers of f32 are sums of three of bf16, so products are as good as those of f32.
mod by_row;
mod carry;
mod columns;
mod make;

use std::ops::Deref;

use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, DeltaSizes};
use inkwell::values::FloatValue;

use super::chunks::found;
use super::delta::{Few, Shares};
use super::products::Rows;
use super::{FEW_TOKENS, each_sequence, pad};
use crate::KernelSpec;
use crate::code::{Any, Int, Ptr};
use crate::recurrent::{Delta, Run, node};
use crate::schedule::WhyNot;
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::machine::warpgroup::TileForm;
use by_row::{ByRow, Memory};
use columns::Columns;

/// Tokens of a chunk: rows of a product.
const CHUNK: usize = 64;
/// Threads of four waves, and of a work-group.
const TEAM: usize = 128;
const THREADS: usize = 2 * TEAM;
/// Chunks in local memory.
const STAGES: usize = 2;
/// Columns of a work-group: the first of these with which the chip's units hold all at once.
const COLUMNS: [usize; 2] = [32, 64];
/// Parts of a number of f32.
const PARTS: usize = 3;
/// Numbers of f32 that each token of a chunk has.
const OF_TOKEN: usize = 4;
/// Bytes from row to row of the triangle, so that neighbouring rows are in different banks.
const PITCH: usize = CHUNK * 4 + VEC16;
/// Barriers of each team and of both teams: one after a stage is made, one after it is used up.
const MAKERS: usize = 1;
const CARRIERS: usize = 2;
const FULL: usize = 3;
const EMPTY: usize = FULL + STAGES;

/// How a kernel is cut.
#[derive(Clone, Copy)]
struct Shape {
    /// Rows of the state.
    dim: usize,
    /// Columns of a work-group, and work-groups of a head.
    columns: usize,
    parts: usize,
}

impl Shape {
    fn new(sizes: DeltaSizes, arch: GpuArch) -> Option<Shape> {
        if sizes.decays > 1 {
            return by_row::shape(sizes, arch);
        }
        let fits = |shape: &Shape| shape.local() <= arch.simt.unit.lds_group;
        let all: Vec<Shape> = Shape::all(sizes).filter(fits).collect();
        let at_once = |shape: &&Shape| sizes.heads * shape.parts <= arch.simt.chip.units;
        let rows = sizes.key_dim.is_multiple_of(CHUNK) && sizes.key_dim > 0;
        all.iter().find(at_once).or(all.last()).copied().filter(|_| rows)
    }

    fn all(sizes: DeltaSizes) -> impl Iterator<Item = Shape> {
        let of = move |columns: usize| Shape { dim: sizes.key_dim, columns, parts: sizes.value_dim / columns };
        COLUMNS.map(of).into_iter().filter(move |shape| shape.parts * shape.columns == sizes.value_dim)
    }

    /// Bytes of a chunk's keys, or queries.
    fn tile(&self) -> usize {
        CHUNK * self.dim * 2
    }

    /// Bytes of a part of `rows` rows of the work-group's columns.
    fn part(&self, rows: usize) -> usize {
        rows * self.columns * 2
    }

    fn local(&self) -> usize {
        let stage = 2 * self.tile() + CHUNK * PITCH + OF_TOKEN * 4 * CHUNK;
        STAGES * stage + PARTS * (self.part(self.dim) + 3 * self.part(CHUNK))
    }
}

pub fn suits(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    super::has_long_sequences(spec)?;
    WhyNot::unless(arch.simt.warpgroup_mma, || format!("{} has no warpgroup MMA", arch.name))?;
    let (sizes, dtype) = found(spec)?;
    WhyNot::unless(dtype == Some(DType::BF16), || "keys of another type than bf16".into())?;
    WhyNot::unless(Shape::new(sizes, arch).is_some(), || format!("states of {} by {}", sizes.key_dim, sizes.value_dim))
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(found(spec).map_err(|why| why.diagnostic())?.0, setup.gpu()?);
    let shape = shape.ok_or_else(|| WhyNot::new("a state of unknown sizes").diagnostic())?;
    let code = setup.open(spec, THREADS)?;
    let info = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let delta = Delta::of(&kernel, node(&kernel)?)?;
        let shares = Shares::of(&delta, c.simt.wave);
        let parts = delta.sizes.heads * shape.parts;
        let local = if delta.by_row() { Local::One(Memory::new(c, shape)) } else { Local::Two(Stages::new(c, shape)) };
        let info = each_sequence(c, spec, &kernel, parts, THREADS, |run, share| {
            let [head, part] = c.divide(share.part, c.int(shape.parts));
            let is_short = c.less(run.end - run.first, FEW_TOKENS);
            let few =
                Few { shares, head, part, parts: shape.parts, waves: THREADS / c.simt.wave, number: share.number };
            c.when(is_short, || few.run(c, &delta, run));
            let columns = Columns { c, delta: &delta, shape, head, column: part * shape.columns };
            c.when(!is_short, || match &local {
                Local::Two(stages) => Chunks { columns, stages }.run(run),
                Local::One(memory) => ByRow::new(columns, memory).run(run),
            });
            let is_last = c.equal(share.part, parts - 1);
            c.when(is_last, || pad(c, delta.out, [run.first, run.end], c.thread(), THREADS));
        })?;
        delta.finish()?;
        info
    };
    Ok((code, info))
}

/// Local memory, for two chunks or for one.
enum Local<'c> {
    Two(Stages<'c>),
    One(Memory<'c>),
}

/// Local memory for two chunks.
struct Stages<'c> {
    keys: Ptr<'c>,
    queries: Ptr<'c>,
    triangle: Ptr<'c>,
    of_tokens: Ptr<'c>,
    /// Right operands, as parts: the state, `beta (V - e^G K S)`, and each token's contribution to
    /// the state, as it is and as it counts at the chunk's end.
    state: Ptr<'c>,
    wanted: Ptr<'c>,
    made: Ptr<'c>,
    kept: Ptr<'c>,
}

impl<'c> Stages<'c> {
    fn new(c: &Gpu<'c>, shape: Shape) -> Stages<'c> {
        let staged = |bytes: usize| c.shared(STAGES * bytes, 128);
        let right = |rows: usize| c.shared(PARTS * shape.part(rows), 128);
        Stages {
            keys: staged(shape.tile()),
            queries: staged(shape.tile()),
            triangle: staged(CHUNK * PITCH),
            of_tokens: staged(OF_TOKEN * 4 * CHUNK),
            state: right(shape.dim),
            wanted: right(CHUNK),
            made: right(CHUNK),
            kept: right(CHUNK),
        }
    }
}

/// Numbers that each token of a chunk has in local memory.
#[derive(Clone, Copy)]
enum OfToken {
    /// The decay up to it, as a logarithm.
    Decay,
    Beta,
    /// The factors that give its key, and its query, their intended length.
    Key,
    Query,
}

/// A chunk's stage, and its tokens.
#[derive(Clone, Copy)]
struct Chunk<'c> {
    stage: Int<'c>,
    first: Int<'c>,
    end: Int<'c>,
}

/// Some columns of a head's state, and the stages.
struct Chunks<'a, 'k, 'c> {
    columns: Columns<'a, 'k, 'c>,
    stages: &'a Stages<'c>,
}

impl<'a, 'k, 'c> Deref for Chunks<'a, 'k, 'c> {
    type Target = Columns<'a, 'k, 'c>;

    fn deref(&self) -> &Columns<'a, 'k, 'c> {
        &self.columns
    }
}

impl<'c> Chunks<'_, '_, 'c> {
    fn run(&self, run: Run<'c>) {
        let c = self.c;
        let count = (run.end - run.first + (CHUNK - 1)) / CHUNK;
        let makes = c.less(c.thread(), TEAM);
        let chunk = |turn: Int<'c>| Chunk { stage: turn % STAGES, first: run.first + turn * CHUNK, end: run.end };
        c.when(makes, || {
            c.repeat(0, count, 1, |turn| {
                c.when(!c.less(turn, STAGES), || c.meet_some(turn % STAGES + EMPTY, THREADS));
                self.make(chunk(turn));
                c.come_to_some(turn % STAGES + FULL, THREADS);
            });
        });
        c.when(!makes, || {
            let tiles = self.shape.dim / CHUNK;
            let before: Vec<Any> = (0..tiles).flat_map(|tile| self.load_state(run, c.int(tile))).collect();
            let after = c.for_each((0, count, 1), &before, |turn, state| {
                let state = self.carry(chunk(turn), state);
                c.when(c.less(turn + STAGES, count), || c.come_to_some(turn % STAGES + EMPTY, THREADS));
                state
            });
            let (has_slot, slot) = run.last(c);
            c.when(has_slot, || {
                for (tile, numbers) in after.chunks(self.numbers()).enumerate() {
                    self.store_state(slot, c.int(tile), numbers);
                }
            });
        });
        // Another sequence's chunks may overwrite these.
        c.barrier();
    }

    /// The place of a stage.
    fn staged(&self, all: Ptr<'c>, stage: Int<'c>, bytes: usize) -> Ptr<'c> {
        self.c.at(all, stage * bytes)
    }

    fn keys(&self, chunk: Chunk<'c>) -> Ptr<'c> {
        self.staged(self.stages.keys, chunk.stage, self.shape.tile())
    }

    fn queries(&self, chunk: Chunk<'c>) -> Ptr<'c> {
        self.staged(self.stages.queries, chunk.stage, self.shape.tile())
    }

    fn triangle(&self, chunk: Chunk<'c>) -> Rows<'c> {
        let ptr = self.staged(self.stages.triangle, chunk.stage, CHUNK * PITCH);
        Rows { ptr, pitch: PITCH, dtype: DType::F32 }
    }

    /// The place of a token's number.
    fn place(&self, chunk: Chunk<'c>, of: OfToken, token: Int<'c>) -> Ptr<'c> {
        let all = self.staged(self.stages.of_tokens, chunk.stage, OF_TOKEN * 4 * CHUNK);
        self.c.at(all, (token + of as usize * CHUNK) * 4)
    }

    fn of_token(&self, chunk: Chunk<'c>, of: OfToken, token: Int<'c>) -> FloatValue<'c> {
        self.c.load_number(self.place(chunk, of, token), DType::F32)
    }

    /// The numbers of two neighbours.
    fn of_two(&self, chunk: Chunk<'c>, of: OfToken, token: Int<'c>) -> [FloatValue<'c>; 2] {
        let two = self.c.load_vector(self.c.cx.f32_type(), 2, self.place(chunk, of, token), 8);
        [0, 1].map(|i| self.c.lane(two, i).into_float_value())
    }

    /// Keys or queries as rows of 16 bytes of columns, and all tokens of these together.
    fn rows(&self, tile: Ptr<'c>) -> (Int<'c>, TileForm) {
        (self.c.local_address(tile), TileForm::of_columns(CHUNK))
    }
}
