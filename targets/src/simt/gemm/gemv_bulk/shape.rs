//! How the work of a streamed contraction is shared out, and what lies in local memory.
use atomc_ir::Diagnostic;
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Simt;

use super::coded::Coded;
use super::digits;
use crate::KernelSpec;
use crate::contraction::Encoding;
use crate::simt::gemm::contract::Sizes;
use crate::simt::launch;
use crate::simt::machine::fragment::VEC16;
use crate::tuning::{Choice, Number};

/// Waves of a work-group.
const WAVES: usize = 8;
/// The same where a weight is decoded, which takes instructions: with 8, int4 took 2.65 ms a step
/// of Qwen3-8B for 2.48, and e4m3 2.69 for 2.59.
const CODED_WAVES: usize = 16;
/// Bytes of a step of 32 columns of a panel, and most of a slot.
pub const STEP: usize = 4 * 16 * VEC16;
const SLOT: usize = 4 * STEP;
/// Most slots of a wave.
const SLOTS: usize = 16;
/// Most bytes of rows that are in local memory as a whole, and of a stretch of them, about.
const WHOLE: usize = 32 << 10;
const STRETCH: usize = 16 << 10;
/// Most stretches on their way, and words of them in a thread together with its sums.
const AHEAD: usize = 4;
const WORDS: usize = 128;
/// Bytes of buffers into which the machine copies rows, where two are not more.
const COPIED: usize = 80 << 10;
/// Most registers of sums and rows with which a wave keeps a slot's rows.
const HELD: usize = 170;
/// Steps of 32 columns of a slot, the most first: of codes more have as many bytes.
const STEPS: [usize; 5] = [16, 8, 4, 2, 1];
/// Most panels of a wave in one pass, sums of a lane, and bytes of sums that meet beside the rings.
const PANELS: usize = 6;
const SUMS: usize = 128;
const MEETING: usize = 64 << 10;
/// Bytes from one token's 16 sums to the next: lanes that hold the same features of other tokens
/// have other banks.
pub const PITCH: usize = 80;
/// Bytes for barriers, and for squares.
const BARRIERS: usize = 2 << 10;
/// Work-groups of a cluster, which may be chosen by measuring.
pub const CLUSTER: Number = Number { name: "cluster", values: &[1, 2, 4] };

/// How the work is shared out.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tokens: usize,
    pub pieces: usize,
    /// Whether rows are staged as they lie in memory, and whether the machine brings them.
    plain: bool,
    pub copied: bool,
    /// Panels of the result, runs of them, and the work-groups that share the columns of a run.
    pub panels: usize,
    pub groups: usize,
    pub cluster: usize,
    /// A wave takes every `across`-th panel of a run, and every `along`-th slot of a panel.
    pub across: usize,
    pub along: usize,
    /// Panels that a wave makes in one pass.
    pub together: usize,
    /// Slots along a work-group's share of a panel, and steps of 32 columns in each.
    pub length: usize,
    pub steps: usize,
    /// Slots of a wave's ring.
    pub slots: usize,
    /// Slots of a wave in a stretch, and stretches.
    pub stretch: usize,
    pub stretches: usize,
    /// Stretches that are on their way while one is multiplied, a divisor of all.
    pub ahead: usize,
    /// Whether no work-group has more panels than it makes in one pass.
    pub one_pass: bool,
    /// How the weight lies in slots, if as codes, and whether rows are multiplied as digits.
    pub coded: Option<Coded>,
    pub digits: bool,
}

impl Shape {
    pub fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let Sizes { rows, depth, pieces, plain, .. } = Sizes::of(spec.body)?;
        let coded = Coded::of(spec.body);
        let (simt, tokens, steps) = (arch.simt, spec.tokens, arch.memory.padded(depth) / 32);
        let panels = arch.memory.padded(rows / pieces) / arch.memory.panel;
        let measured = launch::measured(arch)?;
        // Each work-group of a cluster brings less of the rows to itself, and they read each
        // other's sums.
        let best = if tokens < measured.cluster_tokens {
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
            tokens,
            pieces,
            plain,
            copied: plain && tokens >= measured.cluster_tokens && depth == 32 * steps,
            panels,
            groups: at_once.min(panels),
            cluster,
            across: 1,
            along: 1,
            together: 1,
            length: steps / cluster,
            steps: 1,
            slots: 0,
            stretch: 1,
            stretches: 1,
            ahead: 0,
            one_pass: true,
            coded,
            digits: false,
        };
        let shape = Shape { digits: digits::suit(&shape, Encoding::of(spec.body)), ..shape };
        Ok(shape.with_waves().with_stretches().with_rings(simt, measured.ring_bytes))
    }

    /// Shares panels and columns out to waves.
    fn with_waves(self) -> Shape {
        let share = self.panels.div_ceil(self.groups);
        let most = (SUMS / (self.pieces * self.tiles() * 4)).clamp(1, PANELS);
        let idle = |n: &usize| share.div_ceil(*n) * n - share;
        let mut fitting = [1, 2, 4, 8].into_iter().filter(|n| n * most >= share);
        // Members read the sums of each other's waves: few waves for each panel.
        let across = match self.cluster {
            1 => fitting.next().unwrap_or(1),
            _ => fitting.rev().min_by_key(idle).unwrap_or(WAVES),
        };
        let whole = self.is_whole();
        let waves = if self.coded.is_some() && self.tiles() == 1 { CODED_WAVES } else { WAVES };
        let fits = |n: &usize| {
            let stretch = (waves / across).min(self.length / n) * n * 64 * self.tokens;
            let even = self.coded.is_none_or(|coded| n.is_multiple_of(coded.least_steps()));
            let room = n * self.pieces * self.step_bytes() <= SLOT && (whole || stretch <= 2 * STRETCH);
            self.length.is_multiple_of(*n) && even && room
        };
        let steps = STEPS.into_iter().find(fits).unwrap_or(1);
        let length = self.length / steps;
        // As many waves as bring all tokens, or a multiple.
        let most_along = (waves / across).min(length);
        let shares = |n: &usize| (across * n).is_multiple_of(self.tiles().next_power_of_two());
        let along = (1..=most_along).rev().find(shares).unwrap_or(most_along);
        let one_pass = across * most >= share;
        let meeting = MEETING / (across * along * self.pieces * self.tokens * PITCH);
        let together = if one_pass { share.div_ceil(across) } else { most.min(meeting).max(1) };
        Shape { across, along, together, steps, length, one_pass, ..self }
    }

    /// Whether rows are staged as a whole.
    pub fn is_whole(&self) -> bool {
        self.has_coded_rows() || self.columns() * 2 * self.tokens <= WHOLE
    }

    /// Whether rows are codes too, which are staged as a whole.
    pub fn has_coded_rows(&self) -> bool {
        self.coded.is_some_and(|coded| coded.rows)
    }

    /// Cuts rows into stretches.
    fn with_stretches(self) -> Shape {
        let slot = self.along * self.steps * 64 * self.tokens;
        let stretch = if self.is_whole() { self.length.div_ceil(self.along) } else { (STRETCH / slot).max(1) };
        let shape = Shape { stretch, stretches: self.length.div_ceil(self.along * stretch), ..self };
        let copied = shape.copied && shape.one_pass && shape.length.is_multiple_of(shape.along * stretch);
        let shape = Shape { copied, ..shape };
        if copied {
            return shape;
        }
        let sums = shape.together * shape.pieces * shape.tiles() * 4;
        let words = (shape.stretch_bytes() / (4 * shape.threads())).max(1);
        let most = (WORDS.saturating_sub(sums) / words).clamp(1, AHEAD);
        let ahead = (1..=most).rev().find(|&n| shape.stretches.is_multiple_of(n)).unwrap_or(1);
        Shape { ahead: if shape.stretches == 1 { 0 } else { ahead }, ..shape }
    }

    /// Gives rings the local memory that is left.
    fn with_rings(self, simt: &Simt, most: usize) -> Shape {
        let apart = if self.one_pass { 0 } else { self.waves() * self.sums_bytes() };
        let room =
            most.min(simt.unit.lds_group.saturating_sub(self.rows_bytes() + self.scales_bytes() + apart + BARRIERS));
        // What nobody fills would only keep the next kernel's work-groups away.
        let panels = self.panels.div_ceil(self.groups).div_ceil(self.across);
        let needed = panels * self.length.div_ceil(self.along);
        let slots = (room / (self.waves() * self.slot_bytes())).clamp(2, SLOTS).min(needed);
        // Behind the only pass, sums meet where the rings were.
        let least = if self.one_pass { self.sums_bytes().div_ceil(self.slot_bytes()) } else { 0 };
        Shape { slots: slots.max(least), ..self }
    }

    /// Bytes of local memory at most.
    pub fn local_bytes(&self) -> usize {
        let apart = if self.one_pass { 0 } else { self.sums_bytes() };
        self.waves() * (self.ring_bytes() + apart) + self.rows_bytes() + self.scales_bytes() + BARRIERS
    }

    /// Groups of columns of the work-group's share that have scales of their own; one if rows have
    /// one each.
    pub fn scale_groups(&self) -> usize {
        let group = self.coded.and_then(|coded| coded.group);
        group.map_or(1, |group| (self.length * self.steps).div_ceil(group))
    }

    /// Bytes of local memory for scales of rows, and for those that rows of the weight share.
    pub fn scales_bytes(&self) -> usize {
        let Some(coded) = self.coded else { return 0 };
        let rows = if coded.rows { self.scale_groups() * 8 * self.tiles() * 4 } else { 0 };
        rows + self.shared_bytes()
    }

    /// Bytes of the scales of the work-group's panels that rows of the weight share.
    pub fn shared_bytes(&self) -> usize {
        let panels = self.panels.div_ceil(self.groups) + 1;
        let is_shared = self.coded.is_some_and(|coded| coded.shared);
        if is_shared { panels * self.pieces * self.scale_groups() * 4 } else { 0 }
    }

    /// Bytes of a step of 32 columns of a panel.
    pub fn step_bytes(&self) -> usize {
        self.coded.map_or(STEP, |coded| STEP * coded.bits / 16)
    }

    pub fn waves(&self) -> usize {
        self.across * self.along
    }

    pub fn threads(&self) -> usize {
        32 * self.waves()
    }

    /// Tokens that a matrix instruction takes at once, and blocks of so many.
    pub fn tile(&self) -> usize {
        if self.digits { digits::TILE } else { 8 }
    }

    pub fn tiles(&self) -> usize {
        self.tokens.div_ceil(self.tile())
    }

    /// Tokens that lanes of one wave bring, the waves that together bring all, and the threads for
    /// each. Of few tokens a wave reads longer runs: half a line of memory at a time is a third
    /// slower.
    pub fn near(&self) -> usize {
        self.tokens.next_power_of_two() / self.blocks()
    }

    pub fn blocks(&self) -> usize {
        self.tokens.next_power_of_two().min(1 << self.waves().trailing_zeros())
    }

    pub fn members(&self) -> usize {
        self.threads() / self.tokens.next_power_of_two()
    }

    /// Bytes of a slot's part of a panel, and with the scales that come with it.
    pub fn codes_bytes(&self) -> usize {
        self.steps * self.step_bytes()
    }

    pub fn piece_bytes(&self) -> usize {
        self.codes_bytes() + self.coded.map_or(0, |coded| coded.marks_bytes() * coded.groups_of(self.steps))
    }

    pub fn slot_bytes(&self) -> usize {
        self.pieces * self.piece_bytes()
    }

    /// Slots of each wave along a panel, where all have the same number.
    pub fn slots_of_a_wave(&self) -> Option<usize> {
        self.length.is_multiple_of(self.along).then_some(self.length / self.along)
    }

    pub fn stretch_columns(&self) -> usize {
        self.stretch * self.along * self.steps * 32
    }

    pub fn stretch_bytes(&self) -> usize {
        match self.copied {
            true => self.tokens * self.token_bytes(),
            false => self.stretch_columns() * 2 / VEC16 * self.vec16_bytes(),
        }
    }

    /// Bytes from one run of a token to the next, and from one token to the next. What the machine
    /// brings lies token by token, so that neighbours have other banks.
    pub fn vec16_bytes(&self) -> usize {
        match self.copied {
            true => VEC16,
            false => self.tokens * VEC16 + if self.tokens > 1 { VEC16 } else { 0 },
        }
    }

    pub fn token_bytes(&self) -> usize {
        if self.copied { self.stretch_columns() * 2 + VEC16 } else { VEC16 }
    }

    pub fn buffers(&self) -> usize {
        let most = if self.copied { (COPIED / self.stretch_bytes()).max(2) } else { 2 };
        self.stretches.min(most)
    }

    /// Columns of a work-group's share.
    pub fn columns(&self) -> usize {
        self.length * self.steps * 32
    }

    /// Bytes of local memory for rows, and for a norm's weights.
    pub fn rows_bytes(&self) -> usize {
        let digits = if self.digits { digits::bytes(self) } else { 0 };
        digits
            + self.buffers() * self.stretch_bytes()
            + if self.plain || self.stretches == 1 { 0 } else { 4 * self.columns() }
    }

    /// A wave's ring, and its sums of a pass.
    pub fn ring_bytes(&self) -> usize {
        self.slots * self.slot_bytes()
    }

    pub fn sums_bytes(&self) -> usize {
        self.together * self.pieces * self.tokens * PITCH
    }

    /// Panels of a work-group in one pass.
    pub fn pass(&self) -> usize {
        self.across * self.together
    }

    /// Whether a wave keeps a slot's rows in registers, for all its panels.
    pub fn holds_rows(&self) -> bool {
        let sums = self.together * self.pieces * self.tiles() * 4;
        let words = self.ahead * (self.stretch_bytes() / (4 * self.threads()));
        self.together > 1 && self.tiles() > 1 && sums + words + self.tiles() * self.steps * 4 <= HELD
    }

    /// Whether every wave has all its panels in every pass.
    pub fn even(&self) -> bool {
        self.panels.is_multiple_of(self.groups * self.pass())
    }
}
