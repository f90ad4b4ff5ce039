//! The panels of the result that a work-group makes, and the order in which a wave takes the stages
//! of its panels.
use super::Shape;
use crate::code::{Int, carried};
use crate::simt::machine::Gpu;

/// A work-group's run of panels, and its place in the cluster that shares their columns.
#[derive(Clone, Copy)]
pub struct PanelRun<'c> {
    pub begin: Int<'c>,
    pub end: Int<'c>,
    pub member: Int<'c>,
}

impl<'c> PanelRun<'c> {
    pub fn new(c: &Gpu<'c>, shape: Shape) -> PanelRun<'c> {
        let members = shape.cluster;
        let (group, member) = (c.group() / members, c.group() % members);
        let bound = |group: Int<'c>| group * shape.panels / shape.groups;
        PanelRun { begin: bound(group), end: bound(group + 1), member }
    }
}

/// The next panel and stage of a wave: the first panel of a pass, the stage along the weight, and
/// the panel of the pass.
#[derive(Clone, Copy)]
pub struct Next<'c> {
    pub first: Int<'c>,
    pub along: Int<'c>,
    pub panel: Int<'c>,
}

impl<'c> Next<'c> {
    /// The stage that follows, for a wave with `panels` panels and `stages` stages along each.
    pub fn after(self, c: &Gpu<'c>, shape: Shape, panels: Int<'c>, stages: Int<'c>) -> Next<'c> {
        let (zero, one) = (c.int(0), c.int(1));
        let step = |at: Int<'c>, end: Int<'c>| {
            let after = at + one;
            let over = !c.less(after, end);
            (over, c.pick_int(over, zero, after))
        };
        let pass = c.smaller(shape.wave_panels, panels - self.first);
        let (over, panel) = step(self.panel, pass);
        let (past, behind) = step(self.along, stages);
        let along = c.pick_int(over, behind, self.along);
        let later = self.first + shape.wave_panels;
        let first = c.pick_int(over & past, later, self.first);
        Next { first, along, panel }
    }
}

/// A wave's position in its pipeline.
#[derive(Clone, Copy)]
pub struct PipelineIndex<'c> {
    /// The stage that is read next, and the parity of the rounds through all stages.
    pub stage: Int<'c>,
    pub phase: Int<'c>,
    /// The stage that is loaded next.
    pub next: Next<'c>,
}

carried!(Next { first, along, panel });
carried!(PipelineIndex { stage, phase, next });
