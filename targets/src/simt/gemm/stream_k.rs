//! Family `matvec` for many tokens, on machines where four waves multiply together: the weight
//! streams through a ring of slots in local memory, and its first slots are loaded before the
//! previous kernel has ended.
//!
//! A slot has 64 columns of 8 panels, the same number of each piece of the result. All slots of the
//! weight, tile by tile, are shared out evenly: a work-group has a run of them, so it may begin or
//! end inside a tile. If several work-groups share a tile, each leaves its sums in the workspace,
//! and the last of them to finish adds all of them up, in their order.
//!
//! Four waves issue the copies of slots. Four load the rows' columns of each slot, as products take
//! them. A norm commutes with the contraction, so rows are loaded times the norm's weights only,
//! and sums are scaled by the sum of the row's squares. Four waves multiply: the panels' upper rows
//! are 64 rows of one product, and the lower ones of another.
//!
//! A quantised weight for rows of floats is decoded by the waves that multiply (`codes.rs`). Its
//! slots have 128 columns of 16 panels, or 64 columns if the rows are no multiple of 128: a tile of
//! 8 panels for each of two teams of four waves.
mod codes;
mod epilogue;
mod loader;
mod main_loop;
mod reduce;
mod scheduler;
mod shape;
#[cfg(test)]
mod tests;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family};

use crate::code::{Int, Ptr};
use crate::contraction::Encoding;
use crate::row::unsupported;
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::gemm::bytes::Bytes;
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::{Contraction, Sizes, tuned_by};
use crate::simt::gemm::prologue::Prologue;
use crate::simt::gemm::tile::experts::{Choices, ExpertBlocks};
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Setup, arguments, kernel};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::Pipeline;
use crate::simt::rowwise;
use crate::tuning::Choice;
use crate::{KernelSpec, Tasks};
use codes::SlotCodes;
use scheduler::{ExpertsOfTiles, Share};
use shape::{GROUPS, LEAST, PANELS, ROW_PRODUCERS, RowsOfTiles, Shape, TEAM};

/// Most tokens.
const TOKENS: usize = 64;
/// Consecutive elements of a thread: of rows, and of results.
const LANES: usize = 8;

/// Checks that the machine has the instructions for this contraction, and that there are enough
/// tokens.
fn suits(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    takes_weight(spec, arch)?;
    let measured = launch::measured(arch)?.stream_k;
    let least = match (Bytes::of(spec.body), SlotCodes::of(spec)) {
        (Some(_), _) => 2,
        (None, Some(layout)) => measured.decoded[usize::from(layout.scales_numbers())],
        (None, None) => measured.tokens,
    };
    WhyNot::unless((least..=TOKENS).contains(&spec.tokens), || {
        format!("{} tokens: from {least} to {TOKENS}", spec.tokens)
    })?;
    pays(spec, arch, choice)
}

/// Whether the machine multiplies rows and weight of this contraction.
fn takes_weight(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt);
    let Sizes { dtype, rows, depth, pieces, .. } = sizes;
    WhyNot::unless(simt.warpgroup_mma, || format!("{} has no warpgroup MMA", arch.name))?;
    WhyNot::unless(simt.bulk_copies, || format!("{} has no bulk copies", arch.name))?;
    WhyNot::unless(PANELS.is_multiple_of(pieces), || format!("{pieces} pieces do not share {PANELS} panels out"))?;
    let k_tile = Shape::k_tile(spec)?;
    WhyNot::unless(depth.is_multiple_of(k_tile), || format!("{depth} columns are no multiple of {k_tile}"))?;
    if let Some(bytes) = Bytes::of(spec.body) {
        bytes.check(k_tile)?;
        let features = rows / pieces;
        return WhyNot::unless(features.is_multiple_of(LANES), || {
            format!("{features} features are no whole vectors of {LANES}")
        });
    }
    WhyNot::unless(Matrix::native(simt, dtype) && dtype.size() == 2, || {
        format!("weights of {}: warpgroup MMA takes 16-bit floats", dtype.name())
    })?;
    if let Some(encoding) = Encoding::of(spec.body) {
        SlotCodes::check(&encoding, dtype, arch)?;
    }
    WhyNot::unless(rowwise::vector(spec.body) == LANES, || format!("rows are not whole vectors of {LANES} elements"))?;
    let prologue = Prologue::of(spec.body)?;
    WhyNot::unless(prologue.norm.is_none() || prologue.scales_sums(dtype), || {
        format!("a norm into {}: rows before it may not fit", dtype.name())
    })
}

/// Checks that there is enough work, and room for it.
fn pays(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    let (shape, units, measured) =
        (Shape::new(spec, arch, choice)?, arch.simt.chip.units, launch::measured(arch)?.stream_k);
    WhyNot::unless(
        shape.bytes.is_some()
            || shape.codes.is_some()
            || spec.tokens > measured.few
            || shape.units() >= measured.slots * units,
        || {
            let (slots, each) = (shape.units(), measured.slots);
            format!("{slots} slots of the weight on {units} units: {} tokens take {each} each", spec.tokens)
        },
    )?;
    has_room(shape)
}

fn has_room(shape: Shape) -> Result<(), WhyNot> {
    WhyNot::unless(shape.slots >= 2 && shape.stages >= 2, || {
        "local memory has no room for two slots and two stages".into()
    })
}

pub const SCHEDULE: Schedule = Schedule {
    name: "stream_k",
    family: Family::Matvec,
    invariant: false,
    suits: |spec, arch, choice| suits(spec, launch::gpu(arch)?, choice),
    open: Some(Open { numbers: &[GROUPS, LEAST], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for blocks of experts' rows.
pub const GROUPED: Schedule = Schedule {
    name: "stream_k_grouped",
    family: Family::GroupedMatmul,
    suits: |spec, arch, choice| suits_experts(spec, launch::gpu(arch)?, choice),
    open: None,
    ..SCHEDULE
};

/// The schedule for a few rows that have an expert each, or are the sum of several.
pub const CHOICES: Schedule = Schedule {
    name: "stream_k_choices",
    family: Family::GroupedMatvec,
    suits: |spec, arch, choice| suits_choices(spec, launch::gpu(arch)?, choice),
    open: None,
    ..SCHEDULE
};

fn suits_choices(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    let experts = Sizes::of(spec.body)?.experts.ok_or_else(|| WhyNot::new("rows have no experts"))?;
    takes_weight(spec, arch)?;
    if experts.combined {
        let encoding = Encoding::of(spec.body).filter(|encoding| encoding.is_row_wise());
        encoding.map_or(Ok(()), |encoding| Err(encoding.refused("choices are added up before rows are scaled")))?;
        let norm = Prologue::of(spec.body).ok().and_then(|prologue| prologue.norm);
        WhyNot::unless(norm.is_none(), || "a norm of rows that are added up".into())?;
    }
    has_room(Shape::new(spec, arch, choice)?)
}

fn suits_experts(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<(), WhyNot> {
    let experts = Sizes::of(spec.body)?.experts.ok_or_else(|| WhyNot::new("rows have no experts"))?;
    let rows = experts.block().unwrap_or(0);
    WhyNot::unless((1..=TOKENS).contains(&rows), || format!("blocks of {rows} rows: {TOKENS} at most"))?;
    takes_weight(spec, arch)?;
    has_room(Shape::new(spec, arch, choice)?)
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, &setup.choice)?;
    let code = setup.open_early(spec, shape.threads())?;
    {
        let c = &code;
        c.want_waves(shape.threads() / 128);
        let kernel = kernel(c, spec)?;
        let contraction = Contraction::new(&kernel)?;
        if shape.rows == RowsOfTiles::Blocks {
            c.await_previous();
            let share = Share::of_blocks(c, shape, ExpertBlocks::new(&contraction, spec)?);
            let group = Group::new(&contraction, shape, share, spec)?;
            let made = c.when(share.has_some(c), || group.run());
            made.and(group.finish_without_expert())?;
        } else {
            if contraction.parts.experts().is_some() {
                c.await_previous();
            }
            let choices = Choices::of(&contraction, spec)?;
            let group = Group::new(&contraction, shape, Share::new(c, shape, choices), spec)?;
            group.run().and(group.finish_without_expert())?;
        }
    }
    let workspace = COUNTERS + shape.groups * 2 * shape.teams * shape.partial_bytes();
    let rate = launch::rate(setup.gpu()?, shape.bytes.map(|bytes| bytes.dtype));
    let kernel = manifest::Kernel::simt(Tasks::Fixed(shape.groups), shape.threads());
    Ok((code, manifest::Kernel { rate, workspace, ..kernel }))
}

/// What one work-group does.
struct Group<'g, 'k, 'a, 'c> {
    contraction: &'g Contraction<'k, 'a, 'c>,
    shape: Shape,
    prologue: Prologue,
    weights: Pipeline<'c>,
    rows: Pipeline<'c>,
    /// Squares of rows, for each part of a tile.
    squares: Pipeline<'c>,
    /// In local memory, for each team: sums of a tile, the scales of its rows, and one word.
    sums: Ptr<'c>,
    scales: Ptr<'c>,
    word: Ptr<'c>,
    /// A quantised weight, and in local memory the rows' scales of each stage.
    codes: Option<Codes<'c>>,
    row_scales: Option<Ptr<'c>>,
    workspace: Ptr<'c>,
    share: Share<'c>,
}

impl<'g, 'k, 'a, 'c> Group<'g, 'k, 'a, 'c> {
    fn new(
        contraction: &'g Contraction<'k, 'a, 'c>,
        shape: Shape,
        share: Share<'c>,
        spec: &KernelSpec,
    ) -> Result<Group<'g, 'k, 'a, 'c>, Diagnostic> {
        let (c, parts) = (contraction.matrix.c, &contraction.parts);
        let prologue = match shape.bytes {
            Some(_) => Prologue::as_stored(spec.body, parts.x).ok_or_else(|| unsupported("rows that are no tensor"))?,
            None => Prologue::of(spec.body).map_err(WhyNot::diagnostic)?,
        };
        Ok(Group {
            contraction,
            shape,
            prologue,
            weights: Pipeline::new(c, shape.slots, shape.slot_bytes(), 1024),
            rows: Pipeline::new(c, shape.stages, shape.stage_bytes(), 1024),
            sums: c.shared(shape.teams * shape.sums_bytes(), 16),
            squares: Pipeline::new(c, 2, shape.columns * 4, 16),
            scales: c.shared(shape.teams * shape.columns * 4, 16),
            codes: Codes::of(parts)?,
            row_scales: shape.scales_each_tile().then(|| c.shared(shape.stages * shape.scale_bytes(), 16)),
            word: c.shared(shape.teams * 4, 4),
            workspace: c.argument(arguments(spec.body) + 1),
            share,
        })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (c, shape) = (self.code(), self.shape);
        c.when(c.equal(c.thread(), 0), || {
            // If a wave waits for the products of a K tile, each wave signals that it has read it.
            let done = if shape.codes.is_some() { shape.consumers() / 32 } else { 1 };
            self.weights.make_barriers(c, [1, done]);
            self.rows.make_barriers(c, [ROW_PRODUCERS / 32, done]);
            self.squares.make_barriers(c, [ROW_PRODUCERS, shape.consumers()]);
            c.show_barriers();
        });
        c.barrier();
        let (wave, workers) = (c.wave_index(), shape.consumers() / 32);
        let all = workers + ROW_PRODUCERS / 32;
        c.when(c.less(all - 1, wave), || {
            c.set_registers(self.shape.registers[0], false);
            self.produce_weight(wave - all);
            c.await_previous();
        });
        let [mut brought, mut made] = [Ok(()), Ok(())];
        c.when(c.less(workers - 1, wave) & c.less(wave, all), || {
            c.set_registers(self.shape.registers[1], true);
            c.await_previous();
            brought = self.produce_rows();
        });
        c.when(c.less(wave, workers), || {
            c.set_registers(self.shape.registers[2], true);
            c.await_previous();
            made = self.consume();
        });
        brought.and(made)
    }

    /// Finishes rows that have no expert.
    fn finish_without_expert(&self) -> Result<(), Diagnostic> {
        let (c, threads) = (self.code(), self.shape.threads());
        let (panels, groups) = ((c.int(0), self.shape.panels), self.shape.groups);
        match (self.share.experts(), self.shape.rows) {
            (Some(ExpertsOfTiles::Blocks(blocks)), _) => c.repeat(c.group(), blocks.most(c), groups, |block| {
                blocks.finish_without(self.contraction, threads, block, panels)
            }),
            (Some(ExpertsOfTiles::Choices(choices)), RowsOfTiles::One { count }) => {
                c.repeat(c.group(), count, groups, |choice| {
                    choices.finish_without(self.contraction, threads, choice, panels)
                })
            }
            // In a sum over choices, those without an expert add nothing.
            _ => Ok(()),
        }
    }

    /// Makes the work-group's part of each of its tiles.
    fn consume(&self) -> Result<(), Diagnostic> {
        self.each_part(|part| {
            let sums = match self.shape.rows {
                RowsOfTiles::Combined { .. } => self.combined_sums(part)?,
                _ => self.main_loop(part),
            };
            self.epilogue(part, &sums)
        })
    }

    /// Local memory at an address.
    fn local(&self, address: Int<'c>) -> Ptr<'c> {
        let c = self.code();
        c.at(self.sums, address - c.local_address(self.sums))
    }

    /// The address of a row's scale in a stage.
    fn row_scale(&self, turn: Int<'c>, token: Int<'c>) -> Ptr<'c> {
        let place = turn % self.shape.stages * self.shape.columns + token;
        self.code().at(self.row_scales.expect("scales of each K tile"), place * 4)
    }

    /// The thread's team of those that multiply.
    fn team(&self) -> Int<'c> {
        let c = self.code();
        if self.shape.teams == 1 { c.int(0) } else { c.wave_index() / (TEAM / 32) }
    }

    /// The number of a consumer's thread in its team, and below that of its wave.
    fn thread(&self) -> Int<'c> {
        self.code().thread() - self.team() * TEAM
    }

    fn wave(&self) -> Int<'c> {
        self.code().wave_index() - self.team() * (TEAM / 32)
    }

    /// The team's one of items that every team has one of.
    fn of_team(&self, number: Int<'c>) -> Int<'c> {
        number * self.shape.teams + self.team()
    }

    /// The team's part of local memory, where each team has `bytes` bytes.
    fn part_of_team(&self, all: Ptr<'c>, bytes: usize) -> Ptr<'c> {
        self.code().at(all, self.team() * bytes)
    }

    /// The team's scales, and its word.
    fn scales(&self) -> Ptr<'c> {
        self.part_of_team(self.scales, self.shape.columns * 4)
    }

    fn word(&self) -> Ptr<'c> {
        self.part_of_team(self.word, 4)
    }

    fn is_leader(&self) -> Int<'c> {
        self.code().equal(self.thread(), 0)
    }

    /// A barrier of the threads of a team.
    fn sync_consumers(&self) {
        let c = self.code();
        c.meet_some(self.team() + 1, TEAM);
    }
}
