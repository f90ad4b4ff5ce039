//! Family `matmul`: a contraction over many tokens, in tiles that waves share through local memory.
//!
//! A work-group makes a tile of 128 tokens by 128 rows of the weight, or of 256 by 256; for an
//! expert's rows, 64 by 64 or as many as there are. Both operands go through local memory in K
//! tiles, laid out as fragments; the code calls a K tile a stretch. Local memory has two halves.
//! While the stretch in one half is multiplied, the next one is loaded into the other half, or into
//! registers and from there after the products. There is one barrier a stretch.
mod block_scales;
mod epilogue;
mod group_scales;
mod loader;
mod main_loop;
mod shape;
mod splits;
mod stages;

use atomc_artifact::manifest;
use atomc_ir::arch::{GpuArch, Isa, Simt};
use atomc_ir::{Diagnostic, Family, Op, TensorType, Value};

use crate::code::{Int, Ptr};
use crate::contraction::rows_of;
use crate::row::{Operand, unsupported};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::codes_to_lds::{self, CodedRows};
use crate::simt::gemm::contract::{Contraction, Sizes};
use crate::simt::gemm::quantised::Quantised;
use crate::simt::gemm::tile::Tile;
use crate::simt::gemm::tile::experts::Blocks;
use crate::simt::gemm::tile::grid::{Grid, Share};
use crate::simt::gemm::tile::heads::PerHead;
use crate::simt::launch::{self, Setup, arguments};
use crate::simt::machine::Gpu;
use crate::simt::machine::accumulator::Accumulator;
use crate::simt::machine::fragment::VEC16;
use crate::{KernelSpec, Tasks};
use shape::Shape;

pub const SCHEDULE: Schedule = Schedule {
    name: "gemm_tiled",
    family: Family::Matmul,
    invariant: true,
    suits: |spec, arch, _| suits(spec, launch::gpu(arch)?),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for the weights of experts, where a tile has many rows of one expert.
pub const BLOCKS: Schedule = Schedule {
    name: "gemm_tiled_blocks",
    family: Family::GroupedMatmul,
    suits: |spec, arch, _| {
        let gpu = launch::gpu(arch)?;
        WhyNot::unless(Sizes::of(spec.body)?.experts.is_some(), || "rows have no experts".into())?;
        suits(spec, gpu)?;
        check_reach(spec, gpu)
    },
    ..SCHEDULE
};

/// The schedule for heads that have a matrix each.
pub const HEADS: Schedule = Schedule {
    name: "gemm_tiled_heads",
    family: Family::GroupedMatmul,
    suits: |spec, arch, _| {
        let sizes = Sizes::of(spec.body)?;
        WhyNot::unless(sizes.heads.is_some(), || "heads have no matrices of their own".into())?;
        WhyNot::unless(sizes.plain, || "rows that are not in memory as the weight's type".into())?;
        suits(spec, launch::gpu(arch)?)
    },
    ..SCHEDULE
};

/// The schedule for a step of many sequences that decode, in small tiles that work-groups share
/// along K: a tile's rows are read once for four panels of the weight, where `gemv` reads all rows
/// for each.
pub const FEW: Schedule = Schedule {
    name: "gemm_tiled_few",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, _| {
        let (gpu, Sizes { experts, heads, .. }) = (launch::gpu(arch)?, Sizes::of(spec.body)?);
        WhyNot::unless(gpu.simt.isa == Isa::Amdgcn, || "tiles of few rows were not measured there".into())?;
        let (tokens, least) = (spec.tokens, shape::LEAST_TOKENS);
        WhyNot::unless(tokens.is_multiple_of(16) && tokens >= least, || {
            format!("{tokens} tokens: multiples of 16 from {least} on")
        })?;
        WhyNot::unless(experts.is_none() && heads.is_none(), || "rows that have a matrix each".into())?;
        check_in_memory(spec)?;
        suits(spec, gpu)?;
        let shape = Shape::new(spec, gpu)?;
        check_full(spec, shape)?;
        let (groups, units) = (shape.groups(spec)?, gpu.simt.chip.units);
        WhyNot::unless(2 * groups >= units, || format!("{groups} work-groups on {units} units"))
    },
    ..SCHEDULE
};

/// Rows of most tiles, and of the weight in them.
pub const ROWS: usize = 16 * shape::SIDE;

/// Most bytes that lanes add to an address.
const REACH: usize = 1 << 31;

fn suits(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    Quantised::check(spec.body, arch)?;
    let Sizes { dtype, encoding, .. } = Sizes::of(spec.body)?;
    if !Quantised::of(spec.body, arch).is_some_and(|quantised| quantised.as_stored) {
        encoding.map_or(Ok(()), |encoding| codes_to_lds::check(&encoding, dtype))?;
        rows_of(spec.body).map_or(Ok(()), |(_, x)| CodedRows::check(x))?;
    }
    Ok(Shape::new(spec, arch).map(drop)?)
}

/// Checks that rows are in memory as the weight's type, or quantised.
fn check_in_memory(spec: &KernelSpec) -> Result<(), WhyNot> {
    let are_codes =
        |(x, ty): (Value, &TensorType)| ty.layout.is_coded() && matches!(spec.body.op(x.node), Op::Input { .. });
    WhyNot::unless(Sizes::of(spec.body)?.plain || rows_of(spec.body).is_some_and(are_codes), || {
        "rows that are not in memory as the weight's type".into()
    })
}

/// Checks that tiles are full, or else gain enough: several stretches are in flight, and the weight
/// is large.
fn check_full(spec: &KernelSpec, shape: Shape) -> Result<(), WhyNot> {
    let Sizes { dtype, rows, depth, .. } = Sizes::of(spec.body)?;
    if spec.tokens.is_multiple_of(shape.tokens()) {
        return Ok(());
    }
    let (bytes, least) = (shape.quantised.map_or(dtype, |q| q.dtype).bytes(rows * depth), shape::LEAST_BYTES);
    WhyNot::unless(shape.is_staged(), || format!("{} tokens fill no tiles of {}", spec.tokens, shape.tokens()))?;
    WhyNot::unless(bytes >= least, || format!("{bytes} bytes of weight: {least} where tiles are not full"))?;
    let is_mx = rows_of(spec.body).is_some_and(|(_, x)| matches!(x.layout, atomc_ir::Layout::Mx(_)));
    WhyNot::unless(!is_mx, || "rows of MX, of which no time was predicted where tiles are not full".into())
}

/// Checks that lanes reach all rows of the step.
fn check_reach(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    let Some((_, x)) = rows_of(spec.body) else { return Ok(()) };
    check_in_memory(spec)?;
    let row = x.dtype.bytes(arch.memory.result_stride(x));
    let bytes = spec.tokens.saturating_mul(x.choices()).saturating_mul(row);
    WhyNot::unless(bytes < REACH, || format!("{bytes} bytes of rows: lanes reach {REACH}"))
}

/// Waves on a SIMD that must have registers.
fn waves(shape: Shape, simt: &Simt) -> usize {
    let fits_twice = 2 * shape.local() <= simt.unit.lds;
    match shape.is_large() {
        true => shape.threads / simt.wave / simt.unit.simds,
        false if fits_twice => 2,
        false => 1,
    }
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?)?;
    let code = setup.open(spec, shape.threads)?;
    let tasks = {
        let c = &code;
        c.want_waves(waves(shape, c.simt));
        let kernel = launch::kernel(c, spec)?;
        let mut contraction = Contraction::new(&kernel)?;
        if let Some(quantised) = shape.quantised {
            contraction.matrix = quantised.matrix(c);
        }
        let codes = Codes::of(&contraction.parts)?;
        let (rows, own) = (&kernel.rows, contraction.parts.x);
        let x = contraction.parts.rows_in_memory();
        let x = x.or_else(|| rows.operand(own).ok().filter(|_| rows.scaled_group(own).is_some()));
        let x = x.ok_or_else(|| unsupported("rows that are not in memory as the weight's type"))?;
        let size = shape.size();
        let workspace = code.argument(arguments(spec.body) + 1);
        let local = c.local(shape.local());
        let run_as = |shape, tile, share| {
            Group::new((&contraction, codes.as_ref()), shape, (tile, share), [local, workspace]).run(x)
        };
        let run = |tile, share| run_as(shape, tile, share);
        if contraction.parts.heads().is_some() {
            PerHead::new(&contraction, size, spec)?.whole().with_tile(|tile| run(tile, None))?
        } else if spec.family == Family::GroupedMatmul {
            Blocks::new(&contraction, size, spec)?.with_tile(|tile| run(tile, None))?
        } else {
            let grid = |shape: Shape| Grid::new(&contraction, &kernel, shape.size()).split(shape.splits);
            let emit = |shape: Shape| {
                let share = |share| shape.splits.share().then_some(share);
                grid(shape).with_tile(spec, |tile, part| run_as(shape, tile, share(part)))
            };
            match shape.of_few(spec, setup.gpu()?)?.filter(|_| grid(shape).follows_step()) {
                Some((few, limit)) => {
                    let is_few = c.less(launch::step_size(c, spec, false), limit + 1);
                    c.when(is_few, || emit(few))?;
                    c.when(!is_few, || emit(shape))?;
                    Tasks::Shared { few: grid(few).parts(), limit, many: grid(shape).parts() }
                }
                None => {
                    emit(shape)?;
                    grid(shape).tasks(spec)
                }
            }
        }
    };
    let few = shape.of_few(spec, setup.gpu()?)?.map_or(Ok(0), |(few, _)| few.shared_bytes(spec))?;
    let workspace = shape.shared_bytes(spec)?.max(few);
    let rate = launch::rate(setup.gpu()?, shape.quantised.and_then(|quantised| quantised.stored_as()));
    Ok((code, manifest::Kernel { rate, workspace, ..manifest::Kernel::simt(tasks, shape.threads) }))
}

/// The first stretch of a work-group's part of a tile, and its number of stretches.
fn part<'c>(c: &Gpu<'c>, shape: Shape, share: Option<Share<'c>>) -> [Int<'c>; 2] {
    let all = c.int(shape.count);
    let Some(share) = share else { return [c.int(0), all] };
    let units = shape.count / shape.stages;
    if units.is_multiple_of(shape.splits.each) {
        let count = all.shifted_down(share.shift);
        return [share.number * count, count];
    }
    // Some parts are longer than others, by as many stretches as there are stages.
    let begin = |number: Int<'c>| (number * units).shifted_down(share.shift) * shape.stages;
    [begin(share.number), begin(share.number + 1) - begin(share.number)]
}

/// What one work-group does.
struct Group<'g, 'k, 'a, 'c> {
    contraction: &'g Contraction<'k, 'a, 'c>,
    accumulator: Accumulator<'a, 'c>,
    shape: Shape,
    tile: Tile<'c>,
    /// The wave's place along features and tokens.
    wave: [Int<'c>; 2],
    local: Ptr<'c>,
    /// The address of the wave's part in the first half.
    to: Ptr<'c>,
    codes: Option<&'g Codes<'c>>,
    /// The work-group's part of the tile, if several may share it: its first stretch, and its
    /// number of stretches.
    share: Option<Share<'c>>,
    first: Int<'c>,
    count: Int<'c>,
    /// The address where it leaves its sums.
    workspace: Ptr<'c>,
}

impl<'g, 'k, 'a, 'c> Group<'g, 'k, 'a, 'c> {
    fn new(
        (contraction, codes): (&'g Contraction<'k, 'a, 'c>, Option<&'g Codes<'c>>),
        shape: Shape,
        (tile, share): (Tile<'c>, Option<Share<'c>>),
        [local, workspace]: [Ptr<'c>; 2],
    ) -> Group<'g, 'k, 'a, 'c> {
        let c = contraction.matrix.c;
        let wave = c.wave_index();
        let along = shape.side / shape.blocks;
        let wave = [wave / along, wave % along];
        let accumulator = match shape.block_scaled() {
            Some(instructions) => Accumulator::block_scaled(contraction.matrix, instructions),
            None => Accumulator::new(contraction.matrix),
        };
        let lanes = c.simt.wave;
        let first = c.wave_index() * (shape.loads() * lanes * VEC16);
        // Rows are stored after the weight.
        let first = if shape.is_coded { first + shape.half()[0] } else { first };
        let to = c.at(local, first);
        let [first, count] = part(c, shape, share);
        Group { contraction, accumulator, shape, tile, wave, local, to, codes, share, first, count, workspace }
    }

    fn run(&self, x: &Operand<'c>) -> Result<(), Diagnostic> {
        let loaders = self.loaders(x);
        let sums = self.main_loop(&loaders);
        match self.share {
            None => self.epilogue(&sums),
            Some(share) => self.meet(share, &sums),
        }
    }

    /// Where a half begins.
    fn half(&self, half: usize) -> Ptr<'c> {
        self.contraction.matrix.c.at(self.local, half * self.shape.half()[1])
    }

    /// Blocks of columns that the wave multiplies.
    fn blocks(&self) -> usize {
        self.shape.blocks * 16 / self.accumulator.width()
    }
}
