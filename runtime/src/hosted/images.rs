//! Images in a framework: the tower's rows, and what the steps of an artifact with a tower read of
//! each token beside what others read.
use super::{Hosted, HostedError, Rows};
use crate::batch::Inputs;
use crate::device::StepSize;
use crate::session::Session;
use crate::sight;
use crate::tower::Image;
use atomc_artifact::manifest::{Arg, DType, Given, Input, Target, Tiling};
use std::sync::Arc;

impl Hosted {
    /// The tower's rows of images, one for each of their tokens.
    pub fn look(&mut self, images: &[&Image]) -> Result<Vec<Arc<sight::Rows>>, HostedError> {
        Ok(self.tower.as_mut().ok_or(HostedError::NoTower)?.rows(images)?)
    }

    /// How images become patches, if the tower is driven.
    pub fn tiling(&self) -> Option<Tiling> {
        self.tower.as_ref().map(|tower| tower.tiling())
    }

    /// The positions of a step's tokens: a row of those of time, one of rows, one of columns. The
    /// framework writes them behind `begin`, where steps read them.
    pub fn axes(&self) -> Option<Rows> {
        self.target().given?;
        let at = self.session.inputs.addresses();
        let stride = (at.heights.addr() - at.times.addr()) / size_of::<i32>();
        Some(Rows { address: at.times, rows: 3, width: self.max_tokens(), stride, dtype: DType::I32 })
    }

    /// Which of the given rows each token of a step takes, one in a row; -1 for none. The framework
    /// writes them behind `begin`, where steps read them.
    pub fn sources(&self) -> Option<Rows> {
        self.target().given?;
        let address = self.session.inputs.addresses().sources;
        Some(Rows { address, rows: self.max_tokens(), width: 1, stride: 1, dtype: DType::I32 })
    }

    /// The rows of images that the tokens of a step may take. They stay until they are written
    /// again.
    pub fn given(&self) -> Option<Rows> {
        let Given { dtype, width, stride, rows, .. } = self.target().given?;
        Some(Rows { address: self.session.inputs.addresses().given, rows, width, stride, dtype })
    }
}

/// Whether tokens have three positions, which is all that frameworks say of those of images beside
/// their rows.
pub(super) fn are_counted(target: &Target) -> bool {
    let inputs = |wanted: Input| {
        let args = target.plans.iter().flat_map(|plan| &plan.launches).flat_map(|launch| &launch.args);
        args.into_iter().any(|arg| matches!(arg, Arg::Input { which } if *which == wanted))
    };
    inputs(Input::Times) && !inputs(Input::Ends)
}

/// Checks that the tokens of a step take rows that there are, where the host reads them.
pub(super) fn check(session: &Session, StepSize { step, .. }: StepSize) -> Result<(), HostedError> {
    let Some(Given { rows, .. }) = session.target().given.filter(|_| session.inputs.in_place()) else { return Ok(()) };
    let sources = Inputs::sources(&session.inputs, step.tokens as usize);
    match sources.iter().find(|&&row| !(-1..rows as i64).contains(&i64::from(row))) {
        Some(row) => Err(HostedError::Field { field: "sources", detail: format!("row {row} of {rows}") }),
        None => Ok(()),
    }
}
