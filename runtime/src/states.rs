//! What layers keep between steps: pages for a sequence's tokens, or a slot for the sequence.
use std::ops::Range;

use crate::device::{DeviceBuffer, StateMemory};
use crate::kv::Kept;
use atomc_artifact::manifest::{DType, Paged, StateGroup, Target};

/// Sequences that have a slot at once where nobody says: a slot of published models is some MiB in
/// each of tens of layers.
pub const SLOTS: usize = 64;

/// A target keeps what there is no memory for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("groups[{group}]: target `{target}` keeps a slot for each sequence, but a framework here has pages alone")]
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

/// The unit in which states of a group are handed out: a page, or a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Bytes of one.
    pub bytes: usize,
    /// Where streams begin in it.
    streams: Vec<usize>,
    /// What is to be cleared in one that had another owner: a slot is zero at the beginning of a
    /// sequence whatever is in it.
    pub cleared: Range<usize>,
    /// The type of its elements, where that is known.
    pub dtype: Option<DType>,
    /// How many a sequence has.
    pub kept: Kept,
}

impl Unit {
    /// That of each group of a target.
    pub fn all(target: &Target) -> Vec<Unit> {
        target.groups.iter().map(Unit::of).collect()
    }

    fn of(group: &StateGroup) -> Unit {
        match group {
            StateGroup::Paged(pages) => Unit {
                bytes: pages.block_bytes,
                streams: pages.streams.iter().map(|stream| stream.at.start).collect(),
                cleared: pages.values(),
                dtype: pages.streams.first().map(|stream| stream.dtype),
                kept: Kept::Pages { window: pages.window },
            },
            StateGroup::Slots(slots) => {
                Unit { bytes: slots.bytes, streams: vec![0], cleared: 0..0, dtype: None, kept: Kept::Slot }
            }
        }
    }

    /// How many there are where the cache has so many blocks, and so many sequences a slot.
    pub fn count(&self, blocks: usize, slots: usize) -> usize {
        if self.kept == Kept::Slot { slots } else { blocks }
    }

    /// A state whose sequences have their units in a table.
    pub fn memory(&self, pages: DeviceBuffer, table: usize) -> StateMemory {
        StateMemory { pages, streams: self.streams.clone(), table, advances: self.kept == Kept::Slot }
    }
}

impl StateMemory {
    /// Pages of a state, whose sequences have them in a table.
    pub fn new(spec: &Paged, pages: DeviceBuffer, table: usize) -> StateMemory {
        let streams = spec.streams.iter().map(|stream| stream.at.start).collect();
        StateMemory { pages, streams, table, advances: false }
    }
}
