//! A wave's pipeline of stages in local memory, through which its part of the weight streams. The
//! loaders of rows are below.
pub mod copies;
pub mod limb_rows;
pub mod quantised_rows;
pub mod rows;

use super::Shape;
use super::scheduler::{Next, PanelRun, PipelineIndex};
use crate::code::{Int, Ptr};
use crate::simt::gemm::codes::Codes;
use crate::simt::gemm::contract::Contraction;
use crate::simt::machine::Gpu;

/// The pipeline of one wave.
pub struct WeightPipeline<'r, 'k, 'a, 'c> {
    contraction: &'r Contraction<'k, 'a, 'c>,
    /// The scales and zero points that come with a quantised weight.
    pub codes: Option<&'r Codes<'c>>,
    shape: Shape,
    /// The addresses of the pipelines of all waves, and of this one.
    pub local: Ptr<'c>,
    base: Int<'c>,
    barriers: Int<'c>,
    policy: Int<'c>,
    is_first_lane: Int<'c>,
    /// The wave's first panel, the number of its panels, and its first stage along them.
    panel: Int<'c>,
    pub panels: Int<'c>,
    pub along: Int<'c>,
    /// Bytes of a panel before the work-group's share, and stages.
    before: Int<'c>,
    stages_before: Int<'c>,
    /// The wave's stages along a panel.
    pub stages: Int<'c>,
}

impl<'r, 'k, 'a, 'c> WeightPipeline<'r, 'k, 'a, 'c> {
    /// The pipeline, with the first loads into all of its stages. A wave takes every `waves_n`-th
    /// panel of the run, and the work-group has its member's share of their columns.
    pub fn fill(
        contraction: &'r Contraction<'k, 'a, 'c>,
        codes: Option<&'r Codes<'c>>,
        shape: Shape,
        run: PanelRun<'c>,
    ) -> (WeightPipeline<'r, 'k, 'a, 'c>, PipelineIndex<'c>) {
        let c = contraction.matrix.c;
        let wave = c.wave_index();
        let (across, along) = (wave % shape.waves_n, wave / shape.waves_n);
        let local = c.shared(shape.waves() * shape.pipeline_bytes(), 128);
        let barriers = c.shared(shape.waves() * shape.stages * 8, 8);
        let own = |all: Ptr<'c>, bytes: usize| c.local_address(all) + wave * bytes;
        let panel = run.begin + across;
        let share = |n: Int<'c>, of: usize| (n + (of - 1)) / of;
        let left = c.larger(run.end - panel, 0);
        let pipeline = WeightPipeline {
            contraction,
            codes,
            shape,
            local,
            base: own(local, shape.pipeline_bytes()),
            barriers: own(barriers, shape.stages * 8),
            policy: c.once(),
            is_first_lane: c.equal(c.lane_index(), 0),
            panel,
            panels: share(left, shape.waves_n),
            along,
            before: run.member * (shape.stages_k * shape.values_bytes()),
            stages_before: run.member * shape.stages_k,
            stages: match shape.stages_of_a_wave() {
                Some(count) => c.int(count),
                None => share(c.larger(shape.stages_k - along, 0), shape.waves_k),
            },
        };
        c.when(pipeline.is_first_lane, || {
            (0..shape.stages).for_each(|i| c.make_barrier(pipeline.barrier(c.int(i))));
            c.show_barriers();
        });
        c.meet_in_wave();
        let zero = c.int(0);
        let begin = Next { first: zero, along: zero, panel: zero };
        let next = (0..shape.stages).fold(begin, |next, i| pipeline.load(c.int(i), next));
        (pipeline, PipelineIndex { stage: zero, phase: zero, next })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn barrier(&self, stage: Int<'c>) -> Int<'c> {
        self.barriers + stage * 8
    }

    fn stage(&self, stage: Int<'c>) -> Int<'c> {
        self.base + stage * self.shape.stage_bytes()
    }

    /// Loads the next stage, if there is one, and returns the one after it.
    fn load(&self, stage: Int<'c>, next: Next<'c>) -> Next<'c> {
        let (c, shape) = (self.code(), self.shape);
        let is_left = c.less(next.first, self.panels) & c.less(0, self.stages);
        let (asks, barrier) = (is_left & self.is_first_lane, self.barrier(stage));
        c.expect_bytes(asks, barrier, shape.stage_bytes());
        let number = (next.first + next.panel) * shape.waves_n;
        let along = next.along * shape.waves_k + self.along;
        let bytes = shape.values_bytes();
        let at = along * bytes + self.before;
        for (piece, from) in self.contraction.weights(self.panel + number, None).into_iter().enumerate() {
            let to = self.stage(stage) + piece * shape.piece_bytes();
            c.copy_run(asks, (to, c.at(from, at), bytes), barrier, self.policy);
        }
        let layout = shape.form.codes().filter(|layout| layout.scales_bytes() > 0);
        if let Some((codes, layout)) = self.codes.zip(layout) {
            let groups = layout.groups_of(shape.steps);
            for (piece, panel) in self.contraction.panels_of(self.panel + number, None).into_iter().enumerate() {
                let to = self.stage(stage) + (piece * shape.piece_bytes() + bytes);
                let first = (along + self.stages_before) * groups;
                codes.copy_marks(c, panel, (first, groups), to, |run| c.copy_run(asks, run, barrier, self.policy));
            }
        }
        next.after(c, shape, self.panels, self.stages)
    }

    /// Waits for the next stage, and returns its address.
    pub fn wait_full(&self, at: PipelineIndex<'c>) -> Int<'c> {
        self.code().await_bytes(self.barrier(at.stage), at.phase);
        self.stage(at.stage)
    }

    /// Releases a stage that all lanes have read; it is filled again.
    pub fn release(&self, at: PipelineIndex<'c>) -> PipelineIndex<'c> {
        let c = self.code();
        c.meet_in_wave();
        let next = self.load(at.stage, at.next);
        let after = at.stage + 1;
        let over = c.equal(after, self.shape.stages);
        let other = 1 - at.phase;
        PipelineIndex { stage: c.pick_int(over, 0, after), phase: c.pick_int(over, other, at.phase), next }
    }
}
