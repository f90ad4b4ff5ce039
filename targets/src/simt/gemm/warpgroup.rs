//! Family `matmul` on machines where four waves multiply together and tiles are copied by hardware.
//!
//! A work-group stays, and makes one tile of 128 tokens after the other. One of its lanes issues
//! copies of both operands, stretch by stretch, as soon as there is room in a ring in local memory.
//! Two groups of four waves, each with 64 tokens, multiply the stretches that have arrived. So
//! copies of the next tile are in flight while this one is finished. Tokens are the left operand
//! here: a lane has sums of two tokens, which are exchanged in local memory until each lane has 8
//! consecutive features.
//!
//! A weight's tile consists of blocks of 8 rows by 16 bytes, as in the panels in memory; that of
//! the rows is swizzled.
mod codes;
mod epilogue;
mod loader;
mod main_loop;
mod scheduler;
mod shape;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family};

use crate::code::Ptr;
use crate::row::{Operand, unsupported};
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::bytes::Bytes;
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::{Contraction, Sizes, tuned_by};
use crate::simt::launch::{self, COUNTERS, Setup, arguments, kernel};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::{Pipeline, split_roles};
use crate::simt::machine::warpgroup::MAP;
use crate::tuning::Choice;
use crate::{KernelSpec, Tasks};
use codes::{Operands, Scales};
use scheduler::Tiles;
use shape::{CONSUMERS, EXCHANGE, LINE, PRODUCERS, ROUND, STRETCH, Shape, THREADS, TILE, TOKENS, possible};

/// Checks that the machine has the instructions for this contraction.
fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    let Sizes { dtype, depth, pieces, .. } = Sizes::of(spec.body)?;
    let simt = arch.simt;
    WhyNot::unless(simt.warpgroup_mma, || format!("{} has no warpgroup MMA", arch.name))?;
    let operands = Operands::of(spec.body);
    operands.check(spec.body, arch.memory.padded(depth))?;
    let native = matches!(operands, Operands::Bytes(_)) || Matrix::native(simt, dtype);
    WhyNot::unless(native, || format!("{} has no MMA of {}", arch.name, dtype.name()))?;
    let chosen = choice.get(&TILE);
    WhyNot::unless(possible(pieces, operands).any(|rows| chosen.is_none_or(|chosen| chosen == rows)), || {
        let tile = chosen.map_or("no tile".into(), |rows| format!("a tile of {rows} rows"));
        format!("{tile} is whole rounds of {ROUND} features of {pieces} pieces")
    })
}

pub const SCHEDULE: Schedule = Schedule {
    name: "gemm_warpgroup",
    family: Family::Matmul,
    invariant: true,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice),
    open: Some(Open { numbers: &[TILE], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for blocks of experts' rows, which are gathered.
pub const GROUPED: Schedule = Schedule {
    name: "gemm_warpgroup_grouped",
    family: Family::GroupedMatmul,
    suits: |spec, arch, choice| {
        suits(spec, launch::gpu(arch)?, choice)?;
        let Sizes { dtype, depth, experts, .. } = Sizes::of(spec.body)?;
        let rows = experts.and_then(|experts| experts.block()).unwrap_or(0);
        WhyNot::unless(rows == TOKENS, || format!("blocks of {rows} rows: a tile has {TOKENS}"))?;
        let k_tile = STRETCH / Operands::of(spec.body).dtype(dtype).size();
        WhyNot::unless(depth.is_multiple_of(k_tile), || format!("{depth} columns are no multiple of {k_tile}"))
    },
    open: None,
    ..SCHEDULE
};

/// The schedule for heads that have a matrix each, and each a part of a row.
pub const HEADS: Schedule = Schedule {
    name: "gemm_warpgroup_heads",
    family: Family::GroupedMatmul,
    suits: |spec, arch, choice| {
        let Sizes { rows, depth, plain, heads, .. } = Sizes::of(spec.body)?;
        WhyNot::unless(heads.is_some(), || "experts' rows are gathered".into())?;
        WhyNot::unless(plain, || "heads' rows are not parts of rows in memory".into())?;
        WhyNot::unless(rows.is_multiple_of(ROUND), || format!("heads of {rows} features: rounds of {ROUND}"))?;
        let gpu = launch::gpu(arch)?;
        let all = heads.unwrap_or(1) * rows;
        WhyNot::unless(gpu.memory.padded(all) == all, || format!("rows of {all} are padded"))?;
        WhyNot::unless(depth.is_multiple_of(STRETCH / 2), || format!("{depth} columns are no whole K tiles"))?;
        suits(spec, gpu, choice)
    },
    open: None,
    ..SCHEDULE
};

/// Fewest tokens of a decode step for which heads use a tile of 128.
const FEW_OF_HEADS: usize = 16;

/// The schedule for decode steps.
pub const FEW_HEADS: Schedule = Schedule {
    name: "gemm_warpgroup_few_heads",
    family: Family::GroupedMatvec,
    invariant: false,
    suits: |spec, arch, choice| {
        WhyNot::unless(spec.tokens >= FEW_OF_HEADS, || format!("{} tokens: {FEW_OF_HEADS} at least", spec.tokens))?;
        (HEADS.suits)(spec, arch, choice)
    },
    ..HEADS
};

/// Fewest tokens of floats of a decode step. A tile has room for 128.
const DECODED: usize = 33;

/// The schedule for decode steps with more tokens than others have room for next to a quantised
/// weight.
pub const FEW: Schedule = Schedule {
    name: "gemm_warpgroup_few",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| {
        match Operands::of(spec.body) {
            Operands::Floats => return Err(WhyNot::new("the weight is not quantised")),
            Operands::Bytes(_) => (),
            Operands::Codes => WhyNot::unless(spec.tokens >= DECODED, || {
                format!("{} tokens of floats: {DECODED} at least", spec.tokens)
            })?,
        }
        suits(spec, launch::gpu(arch)?, choice)
    },
    open: None,
    ..SCHEDULE
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, &setup.choice)?;
    let code = setup.open_early(spec, THREADS)?;
    {
        let c = &code;
        c.want_waves(THREADS / 128);
        let kernel = kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        let x = match shape.operands {
            Operands::Bytes(_) => contraction.parts.kernel.rows.operand(contraction.parts.x).ok(),
            _ => contraction.parts.rows_in_memory(),
        };
        let x = x.ok_or_else(|| unsupported("rows that are not in memory as the weight's type"))?;
        let tiles = Tiles::new(&contraction, &kernel, spec)?;
        Group::new(&contraction, x, shape, spec)?.run(tiles)?;
    }
    let workspace = COUNTERS + shape.groups * 2 * MAP;
    let rate = launch::rate(setup.gpu()?, Bytes::of(spec.body).map(|bytes| bytes.dtype));
    Ok((code, manifest::Kernel { rate, workspace, ..manifest::Kernel::simt(Tasks::Fixed(shape.groups), THREADS) }))
}

/// What one work-group does.
struct Group<'g, 'k, 'a, 'c> {
    contraction: &'g Contraction<'k, 'a, 'c>,
    x: &'g Operand<'c>,
    shape: Shape,
    /// A quantised weight.
    codes: Option<Scales<'c>>,
    /// Tokens that the rows have room for, if these are consecutive.
    room: usize,
    /// The tokens of a decode step. The rows have room for no more.
    tokens: Option<usize>,
    stages: Pipeline<'c>,
    maps: Ptr<'c>,
    exchange: Ptr<'c>,
    /// This work-group's place for tensor maps.
    placed: Ptr<'c>,
}

impl<'g, 'k, 'a, 'c> Group<'g, 'k, 'a, 'c> {
    fn new(
        contraction: &'g Contraction<'k, 'a, 'c>,
        x: &'g Operand<'c>,
        shape: Shape,
        spec: &KernelSpec,
    ) -> Result<Group<'g, 'k, 'a, 'c>, Diagnostic> {
        let c = contraction.matrix.c;
        let codes = Scales::new(shape.operands, contraction)?;
        let [_, bytes] = shape.stage();
        let local = c.local_address(c.shared(shape.stages * bytes, 1024));
        let exchange = c.shared(CONSUMERS / 32 * EXCHANGE, LINE);
        let maps = c.shared(2 * MAP, MAP);
        let barriers = c.local_address(c.shared(2 * shape.stages * 8, 8));
        let stages = Pipeline { places: shape.stages, bytes, local, barriers };
        let workspace = c.argument(arguments(spec.body) + 1);
        let placed = c.at(workspace, c.group() * (2 * MAP) + COUNTERS);
        let tokens = matches!(spec.family, Family::Matvec | Family::GroupedMatvec).then_some(spec.tokens);
        let room = tokens.unwrap_or_else(|| spec.tokens.next_multiple_of(c.arch.memory.rows)) * x.ty.choices();
        Ok(Group { contraction, x, shape, codes, room, tokens, stages, maps, exchange, placed })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    /// The weight, if the producer decodes it.
    fn codes_to_decode(&self) -> Option<&Codes<'c>> {
        let scales = self.codes.as_ref()?;
        matches!(self.shape.operands, Operands::Codes).then_some(&scales.codes)
    }

    /// Whether a lane copies boxes of operands: not if rows are gathered and the weight is decoded.
    fn copies_boxes(&self) -> bool {
        !(self.shape.gathers && self.codes_to_decode().is_some())
    }

    fn run(&self, tiles: Tiles<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        let wave = c.wave_index();
        c.when(c.equal(c.thread(), 0), || {
            // At the barrier of a full place arrive the lane that copies boxes, a lane of each wave
            // that decodes, and each thread that gathers rows.
            let waves = if self.codes_to_decode().is_some() { PRODUCERS / 32 } else { 0 };
            let threads = if self.shape.gathers { PRODUCERS } else { 0 };
            let full = usize::from(self.copies_boxes()) + waves + threads;
            self.stages.make_barriers(c, [full, CONSUMERS / 128]);
            c.show_barriers();
        });
        let copies = c.equal(wave, CONSUMERS / 32);
        c.when(copies, || self.make_maps());
        c.await_previous();
        c.barrier();
        let leads = c.equal(c.lane_index(), 0);
        let produce = || {
            c.when(copies, || self.place_maps());
            match self.codes_to_decode() {
                Some(codes) => {
                    self.each_tile(tiles, |tile, index| self.produce_codes(tile, index, codes, copies & leads))
                }
                None if self.shape.gathers => {
                    self.each_tile(tiles, |tile, index| self.produce_gathered(tile, index, copies & leads))
                }
                None => c.when(copies & leads, || self.each_tile(tiles, |tile, index| self.produce(tile, index))),
            }
        };
        let mut result = Ok(());
        let consume = || {
            let made = self.each_tile(tiles, |tile, index| self.consume(tile, index));
            result = made.and_then(|()| self.finish_without_expert(tiles));
        };
        split_roles(c, CONSUMERS, self.shape.registers(), produce, consume);
        result
    }
}
