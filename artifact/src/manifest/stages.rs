//! What a rank has of a target whose layers are shared out in stages.
use super::{Arg, Call, Plan, Target, Work};
use std::collections::BTreeMap;
use std::ops::Range;

impl Plan {
    /// The stage that a call begins, if it is one by which rows are handed on.
    fn begun(call: &Call) -> Option<usize> {
        match call.work {
            Work::HandOn { stage, .. } => Some(stage),
            _ => None,
        }
    }

    /// The launches of a stage.
    fn of_stage(&self, stage: usize) -> Range<usize> {
        let start = |stage| self.calls.iter().find(|call| Plan::begun(call) == Some(stage)).map(|call| call.before);
        let first = if stage == 0 { 0 } else { start(stage).unwrap_or(self.launches.len()) };
        first..start(stage + 1).unwrap_or(self.launches.len())
    }

    /// The plan of the ranks of a stage: its launches, with the calls by which rows come to it and
    /// leave it.
    fn stage(&self, stage: usize) -> Plan {
        let of = self.of_stage(stage);
        let mut now = 0;
        let mine = |call: &&Call| {
            let begun = Plan::begun(call);
            now = begun.unwrap_or(now);
            now == stage || begun == Some(stage + 1)
        };
        let calls: Vec<Call> = self.calls.iter().filter(mine).copied().collect();
        Plan {
            launches: self.launches[of.clone()].to_vec(),
            body: self.body.clamp(of.start, of.end) - of.start,
            calls: calls.into_iter().map(|call| Call { before: call.before - of.start, ..call }).collect(),
            ..self.clone()
        }
    }
}

impl Target {
    /// The target as the ranks of a stage have it: launches of the stage, and the weights and
    /// states that these use.
    pub fn stage(&self, stage: usize) -> Target {
        let mut plans: Vec<Plan> = self.plans.iter().map(|plan| plan.stage(stage)).collect();
        let args = || plans.iter().flat_map(|plan| &plan.launches).flat_map(|launch| &launch.args);
        let weights = numbered(args().filter_map(|arg| match *arg {
            Arg::Weight { index } => Some(index),
            _ => None,
        }));
        let states = numbered(args().filter_map(|arg| match *arg {
            Arg::State { state, .. } | Arg::Batch { state } => Some(state),
            _ => None,
        }));
        let args = plans.iter_mut().flat_map(|plan| &mut plan.launches).flat_map(|launch| &mut launch.args);
        args.for_each(|arg| match arg {
            Arg::Weight { index } => *index = weights[index],
            Arg::State { state, .. } | Arg::Batch { state } => *state = states[state],
            _ => {}
        });
        Target {
            weights: weights.keys().map(|&index| self.weights[index].clone()).collect(),
            states: states.keys().map(|&state| self.states[state]).collect(),
            plans,
            ..self.clone()
        }
    }
}

/// New numbers of those that are used, in the same order.
fn numbered(used: impl Iterator<Item = usize>) -> BTreeMap<usize, usize> {
    let mut numbers: BTreeMap<usize, usize> = used.map(|old| (old, 0)).collect();
    numbers.values_mut().enumerate().for_each(|(new, number)| *number = new);
    numbers
}
