//! How much of a launch there is to do in a step.
use atomc_artifact::abi::{Prepare, Step};
use atomc_artifact::manifest::{Plan, PlanKind, Tasks};
use std::ffi::c_void;
use std::ops::Range;

/// Some launches of a plan, for a step.
#[derive(Clone, Debug)]
pub struct Part {
    /// Index into the plans that the device was bound to.
    pub plan: usize,
    /// Which launches of the plan, in its order.
    pub launches: Range<usize>,
    /// The size that determines the grids.
    pub size: StepSize,
    /// Where kernels of a device with memory of its own find the step: in the block of inputs, or
    /// elsewhere.
    pub step: *const u8,
    /// The stream of the launches, if the device has streams.
    pub stream: Stream,
}

/// A stream of a framework's, by the driver's handle; 0 is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream(pub usize);

impl Stream {
    pub(super) fn handle(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// How much there is to do in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Tokens and rows.
    pub step: Step,
    /// Tiles in the step's [`atomc_artifact::abi::Batch`].
    pub tiles: usize,
}

impl StepSize {
    /// The largest step of a plan: a tile for each token, if each belongs to another sequence, or
    /// for as many as a sequence has in steps that verify.
    pub fn largest(plan: &Plan) -> StepSize {
        let tiles = match plan.kind {
            PlanKind::Verify { each } => Prepare::tiles(plan.tokens, plan.tokens / each),
            _ => plan.tokens,
        };
        StepSize { step: Step { tokens: plan.tokens as i64, rows: plan.rows as i64 }, tiles }
    }

    /// Tasks of a launch. The factors are below 2^30 each, as the artifact was checked for.
    pub fn tasks(&self, tasks: Tasks) -> usize {
        match tasks {
            Tasks::Fixed(count) => count,
            Tasks::Tokens { per, times } => (self.step.tokens as usize).div_ceil(per) * times,
            Tasks::Rows { per, times } => (self.step.rows as usize).div_ceil(per) * times,
            Tasks::Choices { choices, per, times } => {
                (self.step.tokens as usize).saturating_mul(choices).div_ceil(per).saturating_mul(times)
            }
            Tasks::Blocks { choices, experts, tile, times } => {
                let pairs = (self.step.tokens as usize).saturating_mul(choices);
                let open = pairs.min(experts + 1).saturating_mul(tile - 1);
                (pairs.saturating_add(open) / tile).saturating_mul(times)
            }
            Tasks::Tiles { times } => self.tiles * times,
            Tasks::Shared { .. } => {
                let tokens = self.step.tokens as usize;
                tasks.parts(tokens).map_or(0, |parts| parts.tasks(tokens))
            }
        }
    }
}

/// Time that the launches of a plan took.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    /// Steps that were timed.
    pub steps: u64,
    /// By launch, added up over the steps.
    pub nanoseconds: Vec<u64>,
    /// By launch: the number of experts that it read the weights of, added up over the steps.
    pub experts: Vec<u64>,
}

/// The number of experts that rows chose. The bytes have the number of each row's expert as `i32`.
pub fn count_experts(chosen: &[u8]) -> u64 {
    let number = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().expect("four bytes"));
    let numbers = chosen.chunks_exact(4).map(number).filter(|&expert| expert >= 0);
    numbers.collect::<std::collections::BTreeSet<i32>>().len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use atomc_artifact::manifest::Parts;

    #[test]
    fn counts_tasks() {
        let size = StepSize { step: Step { tokens: 9, rows: 2 }, tiles: 3 };
        assert_eq!(size.tasks(Tasks::Fixed(5)), 5);
        assert_eq!(size.tasks(Tasks::Tokens { per: 4, times: 2 }), 6);
        assert_eq!(size.tasks(Tasks::Rows { per: 4, times: 7 }), 7);
        assert_eq!(size.tasks(Tasks::Tiles { times: 8 }), 24);
        let parts = |splits, most| Parts { per: 4, times: 2, splits, most };
        let shared = |splits, most| {
            let few = Parts { per: 1, ..parts(1, 1) };
            size.tasks(Tasks::Shared { few, limit: 8, many: parts(splits, most) })
        };
        assert_eq!([shared(1, 99), shared(8, 99), shared(8, 47), shared(8, 12), shared(8, 11)], [6, 48, 24, 12, 6]);
        assert_eq!(size.tasks(Tasks::Shared { few: parts(2, 99), limit: 9, many: parts(1, 1) }), 12);
        assert_eq!(
            size.tasks(Tasks::Choices { choices: 3, per: 4, times: 2 }),
            (size.step.tokens as usize * 3).div_ceil(4) * 2
        );
    }
}
