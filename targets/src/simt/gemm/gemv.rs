//! Family `matvec`: a contraction over the few tokens of a decode step, which reads each byte of
//! the weight once.
//!
//! A work-group makes one panel of the result (16 features, from one panel of each piece). Its
//! waves share the columns of the weight, and their sums are added in local memory. Of experts'
//! rows each wave may make whole panels, one after the other. A wave has the operands of its next
//! steps in flight, as many as registers allow while all waves fit on a SIMD. Rows in memory are
//! read as they are; others (a norm, chosen rows) are computed once into local memory, in vectors
//! as fragments take them.
mod block_scaled;
mod epilogue;
mod loader;
mod main_loop;
mod shape;

use atomc_artifact::manifest;
use atomc_ir::arch::Isa;
use atomc_ir::{Arch, Diagnostic, Family};

use crate::code::{Int, Ptr, Vector};
use crate::contraction::{Encoding, combine_of};
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::codes::{Codes, Steps, Way};
use crate::simt::gemm::contract::{Contraction, Sizes, tuned_by};
use crate::simt::gemm::quantised::Quantised;
use crate::simt::gemm::tile::experts::{Blocks, Combined, Grouped};
use crate::simt::gemm::tile::grid::{AllRows, Grid};
use crate::simt::gemm::tile::heads::PerHead;
use crate::simt::gemm::tile::{Tile, TileSize};
use crate::simt::gemm::tiled;
use crate::simt::launch::{self, Setup};
use crate::simt::machine;
use crate::simt::machine::fragment::Matrix;
use crate::simt::rowwise;
use crate::{Choice, KernelSpec};
use block_scaled::ScaledProducts;
use loader::{InMemory, Staged};
use shape::Shape;

pub const SCHEDULE: Schedule = Schedule {
    name: "gemv",
    family: Family::Matvec,
    invariant: false,
    suits,
    open: Some(Open { numbers: &[shape::OPEN_WAVES], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for the weights of experts.
pub const GROUPED: Schedule = Schedule { name: "gemv_grouped", family: Family::GroupedMatvec, open: None, ..SCHEDULE };

/// The schedule for blocks of an expert's rows, which a tile of many rows takes at once.
pub const BLOCKS: Schedule =
    Schedule { name: "gemv_blocks", family: Family::GroupedMatmul, invariant: true, open: None, ..SCHEDULE };

/// The schedule for many rows and few features, such as a router's. Waves share the columns of
/// tiles with some rows, where tiles with many rows would leave most of the chip without work.
pub const ROWS: Schedule =
    Schedule { name: "gemv_rows", family: Family::Matmul, suits: suits_rows, open: None, ..SCHEDULE };

/// The least part of a chip's units that tiles of many rows leave without work, and the fewest
/// columns: along these, such tiles wait for one stretch after the other.
const IDLE: usize = 8;
const COLUMNS: usize = 1024;

fn suits_rows(spec: &KernelSpec, arch: &Arch, choice: &Choice) -> Result<(), WhyNot> {
    let gpu = launch::gpu(arch)?;
    let (Sizes { rows, depth, .. }, units) = (Sizes::of(spec.body)?, gpu.simt.chip.units);
    WhyNot::unless(gpu.simt.isa == Isa::Amdgcn, || "tiles of few rows were not measured there".into())?;
    let tiles = spec.tokens.div_ceil(tiled::ROWS) * rows.div_ceil(tiled::ROWS);
    WhyNot::unless(tiles * IDLE <= units, || {
        format!("{tiles} tiles of {0} by {0} are enough for {units} units", tiled::ROWS)
    })?;
    WhyNot::unless(depth >= COLUMNS, || format!("{depth} columns: {COLUMNS} at least"))?;
    let padded = arch.memory.rows;
    WhyNot::unless(padded.is_multiple_of(shape::ROWS), || format!("rows are padded to a multiple of {padded}"))?;
    suits(spec, arch, choice)
}

fn suits(spec: &KernelSpec, arch: &Arch, choice: &Choice) -> Result<(), WhyNot> {
    let arch = launch::gpu(arch)?;
    Quantised::check(spec.body, arch)?;
    let quantised = Quantised::of(spec.body, arch);
    if quantised.is_none_or(|quantised| quantised.block_scaled.is_none()) {
        Encoding::of(spec.body).map_or(Ok(()), |encoding| Steps::check(encoding, quantised, arch))?;
    }
    Ok(Shape::new(spec, arch, choice).map(drop)?)
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let gpu = setup.gpu()?;
    let shape = Shape::new(spec, gpu, &setup.choice)?;
    let threads = shape.threads(gpu.simt);
    let code = setup.open(spec, threads)?;
    let tasks = {
        let kernel = launch::kernel(&code, spec)?;
        let mut contraction = Contraction::new(&kernel)?;
        if let Some(quantised) = shape.quantised {
            contraction.matrix = quantised.matrix(&code);
        }
        let codes = Codes::of(&contraction.parts)?;
        let size = TileSize { panels: shape.teams * shape.turns, columns: shape.tokens, threads };
        let one = |tile| Group::new(&contraction, codes.as_ref(), shape, tile).run(spec);
        let run = |tile: Tile<'c>| {
            if shape.teams == 1 {
                return one(tile);
            }
            let team = code.wave_index() / shape.team();
            code.repeat(team, shape.teams * shape.turns, shape.teams, |panel| one(tile.further(panel)))
        };
        match spec.family {
            _ if contraction.parts.heads().is_some() => PerHead::new(&contraction, size, spec)?.with_tile(run)?,
            Family::GroupedMatvec if combine_of(spec.body, contraction.parts.product()).is_some() => {
                let group = |tile| Group::new(&contraction, codes.as_ref(), shape, tile);
                let zeros = vec![contraction.matrix.zero(); contraction.parts.starts().len()];
                let scheduler = Combined::new(&contraction, spec)?;
                let choices = if shape.deals_choices { (code.wave_index(), shape.waves) } else { (code.int(0), 1) };
                let sums = |tile| {
                    if !shape.deals_choices {
                        // Waves may still read the staged rows of the previous choice.
                        code.barrier();
                    }
                    group(tile).sums(spec)
                };
                scheduler.each(&zeros, choices, sums, |tile, sums| group(tile).epilogue(sums))?
            }
            Family::GroupedMatvec => Grouped::new(&contraction, size, spec)?.with_tile(run)?,
            Family::GroupedMatmul => Blocks::new(&contraction, size, spec)?.with_tile(run)?,
            Family::Matmul => {
                let scheduler = Grid::new(&contraction, &kernel, size);
                scheduler.with_tile(spec, |tile, _| run(tile))?;
                scheduler.tasks(spec)
            }
            _ => AllRows::new(&contraction, size).with_tile(run)?,
        }
    };
    let rate = launch::rate(gpu, shape.quantised.and_then(|quantised| quantised.stored_as()));
    Ok((code, manifest::Kernel { rate, ..manifest::Kernel::simt(tasks, threads) }))
}

/// What one work-group does.
struct Group<'g, 'k, 'a, 'c> {
    contraction: &'g Contraction<'k, 'a, 'c>,
    shape: Shape,
    tile: Tile<'c>,
    /// The number of this wave among those that share the columns of the weight, and their number.
    wave: Int<'c>,
    sharing: usize,
    /// The lane's first vector of each piece.
    weights: Vec<Ptr<'c>>,
    /// The columns of the tile that the lane holds.
    columns: Vec<Int<'c>>,
    part: Int<'c>,
    /// The steps along a quantised weight.
    way: Option<Way<'g, 'a, 'c>>,
    /// The products by instructions with scales of 32 columns.
    scaled_products: Option<ScaledProducts<'c>>,
}

impl<'g, 'k, 'a, 'c> Group<'g, 'k, 'a, 'c> {
    fn new(
        contraction: &'g Contraction<'k, 'a, 'c>,
        codes: Option<&'g Codes<'c>>,
        shape: Shape,
        tile: Tile<'c>,
    ) -> Group<'g, 'k, 'a, 'c> {
        let m = &contraction.matrix;
        let (c, place) = (m.c, m.place());
        let way = codes
            .zip(shape.codes)
            .map(|(codes, steps)| Way::new(codes, steps, *m, &tile.weights_of(contraction, tile.panel())));
        let lane = way.as_ref().map_or_else(|| m.in_panel(place, place.row), |way| way.in_panel(place));
        let weights = tile.weights(contraction, tile.panel()).into_iter().map(|p| c.at(p, lane)).collect();
        let column = |j: usize| tile.inside(c, place.column + shape.width * j);
        let columns = (0..shape.columns).map(column).collect();
        let instructions = shape.quantised.and_then(|quantised| quantised.block_scaled);
        let scaled = |(codes, instructions)| ScaledProducts::new(contraction, codes, instructions, (&tile, place));
        let scaled_products = codes.zip(instructions).map(scaled);
        let (wave, sharing) = match shape.deals_choices {
            true => (c.int(0), 1),
            false if shape.teams == 1 => (c.wave_index(), shape.waves),
            false => (c.wave_index() % shape.team(), shape.team()),
        };
        let part = place.part;
        Group { contraction, shape, tile, wave, sharing, weights, columns, part, way, scaled_products }
    }

    fn matrix(&self) -> &'g Matrix<'a, 'c> {
        &self.contraction.matrix
    }

    fn run(&self, spec: &KernelSpec) -> Result<(), Diagnostic> {
        let sums = self.sums(spec)?;
        self.epilogue(&sums)
    }

    fn sums(&self, spec: &KernelSpec) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let parts = &self.contraction.parts;
        let quantised = self.shape.quantised.filter(|quantised| quantised.in_memory);
        let x = match quantised {
            Some(_) => Some(parts.kernel.rows.operand(parts.x)?),
            None => parts.rows_in_memory(),
        };
        let Some(x) = x else { return self.staged(spec) };
        let stride = x.ty.dtype.bytes(x.stride);
        let scales = x.ty.dtype.bytes(parts.kernel.rows.padded(x));
        let ptr = self.matrix().c.at(x.ptr, self.tile.in_row(self.contraction));
        let sums = self.all(&InMemory { tile: self.tile, ptr, stride, scales });
        let by_row = |of: Quantised| of.row_group.is_none() && of.block_scaled.is_none();
        let scaled = quantised.is_some_and(by_row);
        let at =
            |column: Int<'c>| self.matrix().c.at(x.ptr, self.tile.source(self.matrix().c, column) * stride + scales);
        Ok(if scaled { self.scaled_by_rows(sums, at) } else { sums })
    }

    fn zeros(&self) -> Vec<Vector<'c>> {
        let m = self.matrix();
        let has_groups = self.shape.quantised.is_some_and(|quantised| quantised.has_groups);
        let zero = if has_groups { m.zero() } else { m.zero_sums(m.layout.results) };
        vec![zero; self.weights.len() * self.shape.columns]
    }

    /// Sums with rows that are computed into local memory, a stretch of columns at a time.
    fn staged(&self, spec: &KernelSpec) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let m = self.matrix();
        let (c, Shape { tokens, steps, waves, .. }) = (m.c, self.shape);
        let step_bytes = self.shape.step_bytes(m.dtype.size());
        let room = self.shape.room_for_rows(self.weights.len());
        let stretch = (room / step_bytes / waves * waves).max(waves).min(steps);
        let local = c.local(stretch * step_bytes);
        let exchange = machine::exchange(c, self.shape.threads(c.simt));
        let rows = &self.contraction.parts.kernel.rows;
        let group = self.shape.quantised.and_then(|quantised| quantised.row_group);
        let groups = group.map_or(1, |group| (steps * self.span()).div_ceil(group));
        let has_scales = group.is_some() || rows.has_row_scale(self.contraction.parts.x);
        let scales = has_scales.then(|| c.local(groups * tokens * 4));
        c.set_lanes(rowwise::vector(spec.body).min(m.vec16()));
        let lanes = c.lanes();
        let mut sums = self.zeros();
        for first in (0..steps).step_by(stretch) {
            let end = (first + stretch).min(steps);
            if first > 0 {
                c.barrier();
            }
            c.set_lanes(lanes);
            let apart = self.shape.staged;
            let staged = Staged { ptr: local, columns: tokens, apart, first: first * self.span() / m.vec16(), scales };
            self.stage(&staged, exchange, first * self.span(), end * self.span())?;
            c.barrier();
            sums = self.range(&staged, first, end, sums);
        }
        let sums = self.scaled(sums);
        let scales = scales.filter(|_| group.is_none());
        Ok(match scales {
            Some(scales) => self.scaled_by_rows(sums, |column| c.at(scales, column * 4)),
            None => sums,
        })
    }
}
