//! What layers keep between steps, as far as this runtime keeps it: pages.
use crate::device::{DeviceBuffer, StateMemory};
use atomc_artifact::manifest::{Paged, StateGroup, Target};

/// A target keeps what this runtime has no memory for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("groups[{group}]: target `{target}` keeps a slot for each sequence, but this runtime keeps pages alone")]
pub struct NotPaged {
    /// Its name, e.g. `gfx942`.
    pub target: String,
    /// Index into [`Target::groups`].
    pub group: usize,
}

/// The pages of each group of a target.
pub fn paged(target: &Target) -> Result<Vec<Paged>, NotPaged> {
    let pages = |(group, kind): (usize, &StateGroup)| match kind {
        StateGroup::Paged(pages) => Ok(pages.clone()),
        StateGroup::Slots(_) => Err(NotPaged { target: target.name.clone(), group }),
    };
    target.groups.iter().enumerate().map(pages).collect()
}

impl StateMemory {
    /// Pages of a state, whose sequences have them in a table.
    pub fn new(spec: &Paged, pages: DeviceBuffer, table: usize) -> StateMemory {
        StateMemory { pages, streams: spec.streams.iter().map(|stream| stream.at.start).collect(), table }
    }
}
