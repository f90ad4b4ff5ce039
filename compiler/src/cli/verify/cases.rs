//! The steps that each kernel is tried with.
use std::fmt;

use atomc_artifact::manifest::{Plan, PlanKind};
use atomc_ir::trial::{Fill, Run, Step};

/// A step, and what its activations hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub name: &'static str,
    pub fill: Fill,
    pub step: Step,
    /// Whether it is the largest step that there is, by which a sample sees every column.
    pub is_full: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.name, self.fill.name())
    }
}

impl Case {
    /// One token, a mixture with every fill, a full step, and a long sequence for decode kernels
    /// that read a cache.
    pub fn all(plan: &Plan, reads_cache: bool, block_tokens: usize, max_positions: usize) -> Vec<Case> {
        let shapes = Shapes { plan, block: block_tokens, max: max_positions };
        let case = |name, fill, step| Case { name, fill, step, is_full: false };
        let mut cases = vec![case("one token", Fill::Random, shapes.one())];
        cases.extend(Fill::ALL.map(|fill| case("a mixture", fill, shapes.mixture())));
        cases.push(Case { is_full: true, ..case("a full step", Fill::Random, shapes.full()) });
        if reads_cache && plan.kind.is_few() {
            cases.push(case("a long sequence", Fill::Random, shapes.long()));
        }
        cases
    }
}

/// Tokens of a sequence that several work-groups of a GPU share, if the plan's kernels ever do:
/// each takes at least a step of up to 64 keys for each of its four waves.
const LONG: usize = 1024;

/// What bounds a step.
struct Shapes<'a> {
    plan: &'a Plan,
    block: usize,
    max: usize,
}

impl Shapes<'_> {
    /// A run that fits the model, the step's room for tokens and its room for rows.
    fn run(&self, used: &Step, position: usize, tokens: usize, rows: usize) -> Option<Run> {
        let position = position.min(self.max - 1);
        let room = self.plan.tokens - used.tokens();
        let tokens = tokens.min(self.max - position).min(room);
        let rows = rows.min(tokens).min(self.plan.rows - used.rows());
        (tokens > 0).then_some(Run { position, tokens, rows })
    }

    /// Sequences of a step that has few tokens of each.
    fn sequences(&self) -> usize {
        self.plan.tokens / self.plan.kind.each().unwrap_or(1)
    }

    fn step(&self, runs: impl IntoIterator<Item = (usize, usize, usize)>) -> Step {
        let mut step = Step::default();
        for (position, tokens, rows) in runs {
            if let Some(run) = self.run(&step, position, tokens, rows) {
                step.runs.push(run);
            }
        }
        step
    }

    /// The last token of a block.
    fn one(&self) -> Step {
        self.step([(self.block - 1, 1, 1)])
    }

    /// Sequences of different lengths, at and across the edges of blocks; in decode plans one token
    /// of each.
    fn mixture(&self) -> Step {
        let block = self.block;
        let positions = [block, 0, 2 * block - 1, block + 1, 3, 2 * block];
        match self.plan.kind {
            PlanKind::Decode => self.step(positions.into_iter().map(|p| (p, 1, 1))),
            PlanKind::Verify { each } => {
                let sizes = (0..each).rev().map(|less| each - less).cycle();
                self.step(positions.into_iter().zip(sizes).take(self.sequences()).map(|(p, n)| (p, n, n)))
            }
            PlanKind::Any | PlanKind::Whole => self.step([
                (block.saturating_sub(3), 7, 1),
                (0, 1, 1),
                (0, block + 2, 2),
                (2 * block + 1, 1, 0),
                (5, 2, 2),
            ]),
        }
    }

    /// A long sequence between others, as many as there is room for.
    fn long(&self) -> Step {
        let each = self.plan.kind.each().unwrap_or(1);
        let runs = [LONG - each, 3, LONG / 2 + 1].map(|p| (p, each, each));
        self.step(runs.into_iter().take(self.sequences()))
    }

    /// A step with as many tokens and rows as there is room for.
    fn full(&self) -> Step {
        let Plan { tokens, rows, kind, .. } = *self.plan;
        match kind {
            PlanKind::Verify { each } => {
                self.step((0..self.sequences()).map(|s| (s * 7 % (2 * self.block + 1), each, each)))
            }
            PlanKind::Decode => self.step((0..tokens).map(|s| (s * 7 % (2 * self.block + 1), 1, 1))),
            PlanKind::Any | PlanKind::Whole => {
                let first = self.step([(self.block / 2, tokens.div_ceil(2), rows.div_ceil(2))]);
                let more = std::iter::repeat_n((1, tokens, rows), tokens);
                let first = first.runs.iter().map(|r| (r.position, r.tokens, r.rows)).collect::<Vec<_>>();
                self.step(first.into_iter().chain(more))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atomc_artifact::manifest::{Attention, Logits};

    fn plan(kind: PlanKind, tokens: usize, rows: usize) -> Plan {
        let logits = Logits { offset: 0, width: 0, stride: 0 };
        let (attention, calls, hidden) = (Attention::Own, vec![], vec![]);
        let (launches, arena_bytes, body, picks) = (vec![], 0, 0, None);
        Plan { kind, draft: false, tokens, rows, arena_bytes, attention, launches, body, calls, hidden, logits, picks }
    }

    #[test]
    fn steps_fit_plans_and_models() {
        for (plan, max) in [
            (plan(PlanKind::Decode, 1, 1), 1),
            (plan(PlanKind::Decode, 8, 8), 512),
            (plan(PlanKind::Any, 512, 64), 4096),
            (plan(PlanKind::Any, 512, 64), 40),
            (plan(PlanKind::Any, 3, 1), 512),
        ] {
            let cases = Case::all(&plan, false, 32, max);
            assert_eq!(cases.len(), 6);
            for case in &cases {
                let step = &case.step;
                assert!((1..=plan.tokens).contains(&step.tokens()) && step.rows() <= plan.rows, "{case}");
                assert!(step.runs.iter().all(|r| r.position + r.tokens <= max && r.rows <= r.tokens), "{case}");
            }
            let full = &cases[5].step;
            assert_eq!(full.tokens(), plan.tokens);
            assert_eq!(full.rows(), plan.rows);
        }
    }

    #[test]
    fn every_decode_plan_reads_a_long_sequence() {
        for tokens in [1, 2, 8] {
            let plan = plan(PlanKind::Decode, tokens, tokens);
            let case = Case::all(&plan, true, 32, 4096).pop().expect("cases");
            let lengths: Vec<usize> = case.step.runs.iter().map(|run| run.position + run.tokens).collect();
            assert_eq!(lengths, &[1024, 4, 514][..tokens.min(3)]);
            let short = Case::all(&plan, true, 32, 40).pop().expect("cases");
            assert_eq!(short.step.runs[0].position, 39, "the model's last position");
        }
    }
}
