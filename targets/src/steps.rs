//! The last registers below an occupancy step: a kernel that takes a few registers more than one
//! wave more could have is emitted again with that wave asked of LLVM, and the code that hides more
//! latency stays.
use atomc_ir::arch::ComputeUnit;

use crate::report::{KernelResources, occupancy};
use crate::{LoopReport, Resources};

/// Registers that LLVM's scheduler gives back without spilling or loading later. More of them are a
/// decision of the schedule's.
const FEW: usize = 4;

/// LLVM's orders of instructions to try, as `amdgpu-sched-strategy` names them
/// (`AMDGPUTargetMachine.cpp`): its default, then the one that takes the fewest registers.
pub const SCHEDULERS: [&str; 2] = ["max-occupancy", "iterative-minreg"];

/// The waves that a SIMD would hold if the kernel took a few registers less, if registers are the
/// limit.
pub fn within_reach(unit: &ComputeUnit, waves: usize, found: &KernelResources) -> Option<usize> {
    let (vgprs, lds) = (found.resources.vgprs, found.resources.lds);
    let (has, could) = (occupancy(unit, vgprs, lds, waves), occupancy(unit, vgprs.saturating_sub(FEW), lds, waves));
    (could.floor() > has).then_some(could as usize)
}

/// The values that code keeps in memory, or in lanes of other registers, because registers do not
/// suffice.
pub fn spills(code: &KernelResources) -> usize {
    let r = &code.resources;
    r.scratch + r.vgpr_spills + r.sgpr_spills
}

/// Whether code has more waves, and neither spills, nor has less arithmetic of all waves under the
/// loads of a loop, nor pays for them with as many more instructions.
pub fn is_better(code: &KernelResources, than: &KernelResources) -> bool {
    let (new, old) = (&code.resources, &than.resources);
    let hides = |r: &Resources, l: &LoopReport| l.overlap as f32 * r.occupancy;
    let mut pairs = new.loops.iter().zip(&old.loops);
    let hidden = new.loops.len() == old.loops.len() && pairs.all(|(n, o)| hides(new, n) >= hides(old, o));
    let short = new.instructions as f32 * old.occupancy <= old.instructions as f32 * new.occupancy;
    new.occupancy > old.occupancy && spills(code) == 0 && hidden && short
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: ComputeUnit = ComputeUnit {
        simds: 4,
        lds: 65536,
        lds_group: 65536,
        lds_granule: 512,
        vgprs: 512,
        vgpr_granule: 8,
        vgprs_wave: 512,
        waves: 8,
    };

    fn kernel(vgprs: usize, lds: usize) -> KernelResources {
        let l = LoopReport { loads: 8, overlap: 4, ..LoopReport::default() };
        let occupancy = occupancy(&UNIT, vgprs, lds, 4);
        let resources = Resources { vgprs, lds, occupancy, loops: vec![l], ..Resources::default() };
        let whole = LoopReport::default();
        KernelResources { symbol: "k".into(), resources, whole, multiply_adds: 0, load_bytes: 0 }
    }

    #[test]
    fn a_step_is_near_or_not() {
        let reach = |vgprs, lds| within_reach(&UNIT, 4, &kernel(vgprs, lds));
        assert_eq!((reach(130, 0), reach(128, 0), reach(133, 0)), (Some(4), None, None));
        assert_eq!(reach(130, 20_000), None, "local memory allows three work-groups of four waves");
    }

    #[test]
    fn more_waves_are_not_worth_everything() {
        let old = kernel(130, 0);
        assert!(is_better(&kernel(128, 0), &old));
        assert!(!is_better(&kernel(129, 0), &old));
        for spoil in [
            |r: &mut Resources| r.scratch = 8,
            |r: &mut Resources| r.vgpr_spills = 1,
            |r: &mut Resources| r.loops[0].overlap = 2,
            |r: &mut Resources| r.loops.clear(),
        ] {
            let mut new = kernel(128, 0);
            spoil(&mut new.resources);
            assert!(!is_better(&new, &old));
        }
    }
}
