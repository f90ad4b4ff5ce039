//! How the work of a contraction is shared out, and the layout of local memory.
use atomc_ir::Diagnostic;
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Simt;

use super::codes::StageCodes;
use super::loader::limb_rows;
use crate::KernelSpec;
use crate::schedule::WhyNot;
use crate::simt::gemm::contract::Sizes;
use crate::simt::launch;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::{Choice, Number};

/// Waves of a work-group.
const WAVES: usize = 8;
/// Waves where a weight is decoded, which takes instructions: with 8, int4 took 2.65 ms a step of
/// Qwen3-8B for 2.48, and e4m3 2.69 for 2.59.
const DECODING_WAVES: usize = 16;
/// Bytes of a step of 32 columns of a panel of 16-bit floats.
pub const STEP: usize = 4 * 16 * VEC16;
/// Most bytes of a stage.
const STAGE: usize = 4 * STEP;
/// Most stages of a wave's pipeline.
const STAGES: usize = 16;
/// Most bytes of rows that are staged as a whole.
const WHOLE: usize = 32 << 10;
/// Bytes of a K tile of rows, about.
const K_TILE: usize = 16 << 10;
/// Most K tiles in flight.
const PREFETCHED: usize = 4;
/// Most words of K tiles in flight in a thread, together with its sums.
const WORDS: usize = 128;
/// Bytes of buffers for rows that the machine copies, unless two buffers are more.
const COPIED: usize = 80 << 10;
/// Most registers of sums and rows for which a wave keeps a stage's rows in registers.
const HELD: usize = 170;
/// Steps of 32 columns of a stage, the most first: a stage of quantised values has more steps in
/// the same bytes.
const STEPS: [usize; 5] = [16, 8, 4, 2, 1];
/// Most panels of a wave in one pass.
const PANELS: usize = 6;
/// Most sums of a lane.
const SUMS: usize = 128;
/// Most bytes of sums that are exchanged in memory apart from the pipelines.
const MEETING: usize = 64 << 10;
/// Bytes from one token's 16 sums to the next: lanes that hold the same features of other tokens
/// have other banks.
pub const PITCH: usize = 80;
/// Bytes for barriers, and for squares.
const BARRIERS: usize = 2 << 10;
/// Work-groups of a cluster, which may be chosen by measuring.
pub const CLUSTER: Number = Number { name: "cluster", values: &[1, 2, 4] };

/// The form in which the operands are multiplied, one for each schedule.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Floats, as the weight is stored.
    Floats,
    /// A quantised weight is decoded to the type of the rows.
    Codes(StageCodes),
    /// Integers of a quantised weight, and rows as limbs of fixed-point numbers.
    Limbs(StageCodes),
}

impl Form {
    /// The layout of a quantised weight in stages.
    pub fn codes(self) -> Option<StageCodes> {
        match self {
            Form::Floats => None,
            Form::Codes(layout) | Form::Limbs(layout) => Some(layout),
        }
    }
}

/// How the work is shared out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub form: Form,
    pub tokens: usize,
    pub pieces: usize,
    /// Whether rows are staged as they are in memory, and whether the machine copies them.
    plain: bool,
    pub copied: bool,
    /// Panels of the result, runs of them, and the work-groups that share the columns of a run.
    pub panels: usize,
    pub groups: usize,
    pub cluster: usize,
    /// A wave takes every `waves_n`-th panel of a run, and every `waves_k`-th stage of a panel.
    pub waves_n: usize,
    pub waves_k: usize,
    /// Panels that a wave makes in one pass.
    pub wave_panels: usize,
    /// Stages along a work-group's share of a panel, and steps of 32 columns in each.
    pub stages_k: usize,
    pub steps: usize,
    /// Stages of a wave's pipeline.
    pub stages: usize,
    /// Stages of a wave in a K tile of the rows, and K tiles.
    pub k_tile: usize,
    pub k_tiles: usize,
    /// K tiles that are in flight while one is multiplied, a divisor of all.
    pub prefetched: usize,
    /// Whether no work-group has more panels than it makes in one pass.
    pub one_pass: bool,
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice, form: Form) -> Result<Shape, Diagnostic> {
        let Sizes { rows, depth, pieces, plain, .. } = Sizes::of(spec.body)?;
        let (simt, tokens, steps) = (arch.simt, spec.tokens, arch.memory.padded(depth) / 32);
        let panels = arch.memory.padded(rows / pieces) / arch.memory.panel;
        let measured = launch::measured(arch)?;
        // Each work-group of a cluster loads fewer of the rows, and they read each other's sums.
        let best = if tokens < measured.cluster_tokens || matches!(form, Form::Limbs(_)) {
            1
        } else if panels >= measured.cluster_panels * simt.clusters[0] {
            2
        } else {
            4
        };
        let wanted = choice.get(&CLUSTER).unwrap_or(best);
        let cluster = if simt.clusters[0] > 0 && steps.is_multiple_of(wanted) { wanted } else { 1 };
        let at_once = match cluster {
            1 => simt.chip.units,
            2 => simt.clusters[0],
            _ => simt.clusters[1],
        };
        let shape = Shape {
            form,
            tokens,
            pieces,
            plain,
            copied: plain && tokens >= measured.cluster_tokens && depth == 32 * steps,
            panels,
            groups: at_once.min(panels),
            cluster,
            waves_n: 1,
            waves_k: 1,
            wave_panels: 1,
            stages_k: steps / cluster,
            steps: 1,
            stages: 0,
            k_tile: 1,
            k_tiles: 1,
            prefetched: 0,
            one_pass: true,
        };
        Ok(shape.with_waves().with_k_tiles().with_pipelines(simt, measured.ring_bytes))
    }

    /// Refuses the shape if it takes too many threads, or too much local memory.
    pub fn check(&self, arch: GpuArch) -> Result<(), WhyNot> {
        let (bytes, room) = (self.local_bytes(), arch.simt.unit.lds_group);
        WhyNot::unless(self.near() <= 8, || {
            format!("{} waves are too few to bring {} tokens", self.waves(), self.tokens)
        })?;
        WhyNot::unless(bytes <= room, || format!("{bytes} bytes of local memory: a work-group has {room}"))
    }

    /// Shares panels and columns out to waves.
    fn with_waves(self) -> Shape {
        let share = self.panels.div_ceil(self.groups);
        let most = (SUMS / (self.pieces * self.tiles() * 4)).clamp(1, PANELS);
        let idle = |n: &usize| share.div_ceil(*n) * n - share;
        let mut fitting = [1, 2, 4, 8].into_iter().filter(|n| n * most >= share);
        // Members read the sums of each other's waves: few waves for each panel.
        let waves_n = match self.cluster {
            1 => fitting.next().unwrap_or(1),
            _ => fitting.rev().min_by_key(idle).unwrap_or(WAVES),
        };
        let whole = self.is_whole();
        let layout = self.form.codes();
        let waves = if layout.is_some() && self.tiles() == 1 { DECODING_WAVES } else { WAVES };
        let fits = |n: &usize| {
            let k_tile = (waves / waves_n).min(self.stages_k / n) * n * 64 * self.tokens;
            let even = layout.is_none_or(|layout| n.is_multiple_of(layout.least_steps()));
            let room = n * self.pieces * self.step_bytes() <= STAGE && (whole || k_tile <= 2 * K_TILE);
            self.stages_k.is_multiple_of(*n) && even && room
        };
        let steps = STEPS.into_iter().find(fits).unwrap_or(1);
        let stages_k = self.stages_k / steps;
        // As many waves as load all tokens, or a multiple of that.
        let most_k = (waves / waves_n).min(stages_k);
        let shares = |n: &usize| (waves_n * n).is_multiple_of(self.tiles().next_power_of_two());
        let waves_k = (1..=most_k).rev().find(shares).unwrap_or(most_k);
        let one_pass = waves_n * most >= share;
        let meeting = MEETING / (waves_n * waves_k * self.pieces * self.tokens * PITCH);
        let wave_panels = if one_pass { share.div_ceil(waves_n) } else { most.min(meeting).max(1) };
        Shape { waves_n, waves_k, wave_panels, steps, stages_k, one_pass, ..self }
    }

    /// Whether rows are staged as a whole.
    pub fn is_whole(&self) -> bool {
        self.has_quantised_rows() || self.columns() * 2 * self.tokens <= WHOLE
    }

    /// Whether rows are quantised too. Then they are staged as a whole.
    pub fn has_quantised_rows(&self) -> bool {
        self.form.codes().is_some_and(|layout| layout.rows.is_some())
    }

    /// Cuts rows into K tiles.
    fn with_k_tiles(self) -> Shape {
        let stage = self.waves_k * self.steps * 64 * self.tokens;
        let k_tile = if self.is_whole() { self.stages_k.div_ceil(self.waves_k) } else { (K_TILE / stage).max(1) };
        let shape = Shape { k_tile, k_tiles: self.stages_k.div_ceil(self.waves_k * k_tile), ..self };
        let copied = shape.copied && shape.one_pass && shape.stages_k.is_multiple_of(shape.waves_k * k_tile);
        let shape = Shape { copied, ..shape };
        if copied {
            return shape;
        }
        let sums = shape.wave_panels * shape.pieces * shape.tiles() * 4;
        let words = (shape.k_tile_bytes() / (4 * shape.threads())).max(1);
        let most = (WORDS.saturating_sub(sums) / words).clamp(1, PREFETCHED);
        let prefetched = (1..=most).rev().find(|&n| shape.k_tiles.is_multiple_of(n)).unwrap_or(1);
        Shape { prefetched: if shape.k_tiles == 1 { 0 } else { prefetched }, ..shape }
    }

    /// Gives the rest of local memory to pipelines.
    fn with_pipelines(self, simt: &Simt, most: usize) -> Shape {
        let apart = if self.one_pass { 0 } else { self.waves() * self.sums_bytes() };
        let taken = self.rows_bytes() + self.scales_bytes() + apart + BARRIERS;
        let room = most.min(simt.unit.lds_group.saturating_sub(taken));
        // Stages that are never filled would only keep the next kernel's work-groups out.
        let panels = self.panels.div_ceil(self.groups).div_ceil(self.waves_n);
        let needed = panels * self.stages_k.div_ceil(self.waves_k);
        let stages = (room / (self.waves() * self.stage_bytes())).clamp(2, STAGES).min(needed);
        // After a single pass the sums are exchanged in the memory of the pipelines.
        let least = if self.one_pass { self.sums_bytes().div_ceil(self.stage_bytes()) } else { 0 };
        Shape { stages: stages.max(least), ..self }
    }

    /// Bytes of local memory at most.
    pub fn local_bytes(&self) -> usize {
        let apart = if self.one_pass { 0 } else { self.sums_bytes() };
        self.waves() * (self.pipeline_bytes() + apart) + self.rows_bytes() + self.scales_bytes() + BARRIERS
    }

    /// Groups of columns of the work-group's share that have scales of their own; one if rows have
    /// one each.
    pub fn scale_groups(&self) -> usize {
        let group = self.form.codes().and_then(|layout| layout.group);
        group.map_or(1, |group| (self.stages_k * self.steps).div_ceil(group))
    }

    /// Bytes of local memory for scales of rows, and for those that rows of the weight share.
    pub fn scales_bytes(&self) -> usize {
        let rows = if self.has_quantised_rows() { self.scale_groups() * 8 * self.tiles() * 4 } else { 0 };
        rows + self.shared_bytes()
    }

    /// Bytes of the scales of the work-group's panels that rows of the weight share.
    pub fn shared_bytes(&self) -> usize {
        let panels = self.panels.div_ceil(self.groups) + 1;
        let is_shared = self.form.codes().is_some_and(|layout| layout.shared);
        if is_shared { panels * self.pieces * self.scale_groups() * 4 } else { 0 }
    }

    /// Bytes of a step of 32 columns of a panel.
    pub fn step_bytes(&self) -> usize {
        self.form.codes().map_or(STEP, |layout| STEP * layout.bits / 16)
    }

    pub fn waves(&self) -> usize {
        self.waves_n * self.waves_k
    }

    pub fn threads(&self) -> usize {
        32 * self.waves()
    }

    /// Tokens in one matrix instruction, which is the number of tokens in a block.
    pub fn tile(&self) -> usize {
        if matches!(self.form, Form::Limbs(_)) { limb_rows::TILE } else { 8 }
    }

    pub fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile())
    }

    /// Tokens that lanes of one wave load, the waves that together load all, and the threads of
    /// each token. With few tokens a wave reads longer runs: half a line of memory at a time is a
    /// third slower.
    pub fn near(&self) -> usize {
        self.tokens.next_power_of_two() / self.blocks()
    }

    pub fn blocks(&self) -> usize {
        self.tokens.next_power_of_two().min(1 << self.waves().trailing_zeros())
    }

    pub fn members(&self) -> usize {
        self.threads() / self.tokens.next_power_of_two()
    }

    /// Bytes of a stage's part of a panel, and with the scales that come with it.
    pub fn values_bytes(&self) -> usize {
        self.steps * self.step_bytes()
    }

    pub fn piece_bytes(&self) -> usize {
        let scales = |layout: StageCodes| layout.scales_bytes() * layout.groups_of(self.steps);
        self.values_bytes() + self.form.codes().map_or(0, scales)
    }

    pub fn stage_bytes(&self) -> usize {
        self.pieces * self.piece_bytes()
    }

    /// Stages of each wave along a panel, where all have the same number.
    pub fn stages_of_a_wave(&self) -> Option<usize> {
        self.stages_k.is_multiple_of(self.waves_k).then_some(self.stages_k / self.waves_k)
    }

    pub fn k_tile_columns(&self) -> usize {
        self.k_tile * self.waves_k * self.steps * 32
    }

    pub fn k_tile_bytes(&self) -> usize {
        match self.copied {
            true => self.tokens * self.token_bytes(),
            false => self.k_tile_columns() * 2 / VEC16 * self.vec16_bytes(),
        }
    }

    /// Bytes from one run of a token to the next, and from one token to the next. Rows that the
    /// machine copies lie token by token, so that neighbours have different banks.
    pub fn vec16_bytes(&self) -> usize {
        match self.copied {
            true => VEC16,
            false => self.tokens * VEC16 + if self.tokens > 1 { VEC16 } else { 0 },
        }
    }

    pub fn token_bytes(&self) -> usize {
        if self.copied { self.k_tile_columns() * 2 + VEC16 } else { VEC16 }
    }

    pub fn buffers(&self) -> usize {
        let most = if self.copied { (COPIED / self.k_tile_bytes()).max(2) } else { 2 };
        self.k_tiles.min(most)
    }

    /// Columns of a work-group's share.
    pub fn columns(&self) -> usize {
        self.stages_k * self.steps * 32
    }

    /// Bytes of local memory for rows, and for a norm's weights.
    pub fn rows_bytes(&self) -> usize {
        let limbs = if matches!(self.form, Form::Limbs(_)) { limb_rows::bytes(self) } else { 0 };
        limbs
            + self.buffers() * self.k_tile_bytes()
            + if self.plain || self.k_tiles == 1 { 0 } else { 4 * self.columns() }
    }

    /// A wave's pipeline, and its sums of a pass.
    pub fn pipeline_bytes(&self) -> usize {
        self.stages * self.stage_bytes()
    }

    pub fn sums_bytes(&self) -> usize {
        self.wave_panels * self.pieces * self.tokens * PITCH
    }

    /// Panels of a work-group in one pass.
    pub fn pass(&self) -> usize {
        self.waves_n * self.wave_panels
    }

    /// Whether a wave keeps a stage's rows in registers for all its panels.
    pub fn holds_rows(&self) -> bool {
        let sums = self.wave_panels * self.pieces * self.tiles() * 4;
        let words = self.prefetched * (self.k_tile_bytes() / (4 * self.threads()));
        self.wave_panels > 1 && self.tiles() > 1 && sums + words + self.tiles() * self.steps * 4 <= HELD
    }

    /// Whether every wave has all its panels in every pass.
    pub fn even(&self) -> bool {
        self.panels.is_multiple_of(self.groups * self.pass())
    }
}
