//! The memory that layers keep between steps: pages for a sequence's tokens, or a slot for the
//! sequence.
use std::ops::Range;

use crate::device::{DeviceBuffer, StateMemory};
use crate::kv::Kept;
use atomc_artifact::manifest::{DType, Paged, StateGroup, Target};

/// Sequences that have a slot at once by default: a slot of published models is some MiB in each of
/// tens of layers.
pub const SLOTS: usize = 64;

/// The pages of each group of a target that has such.
pub fn paged(target: &Target) -> impl Iterator<Item = &Paged> {
    target.groups.iter().filter_map(pages_of)
}

/// The pages of a group, if it has pages.
pub fn pages_of(group: &StateGroup) -> Option<&Paged> {
    match group {
        StateGroup::Paged(pages) => Some(pages),
        StateGroup::Slots(_) => None,
    }
}

/// The unit in which states of a group are handed out: a page, or a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Bytes of one.
    pub bytes: usize,
    /// Where streams begin in it.
    streams: Vec<usize>,
    /// The bytes to clear in a page that had another owner. A slot is read as zero at the beginning
    /// of a sequence, whatever it holds.
    pub cleared: Range<usize>,
    /// The type of its elements, where that is known.
    pub dtype: Option<DType>,
    /// Whether a sequence has pages or a slot.
    pub kept: Kept,
}

impl Unit {
    /// The unit of each group of a target.
    pub fn all(target: &Target) -> Vec<Unit> {
        target.groups.iter().map(Unit::of).collect()
    }

    /// The unit of a group.
    pub fn of(group: &StateGroup) -> Unit {
        match group {
            StateGroup::Paged(pages) => Unit {
                bytes: pages.block_bytes,
                streams: pages.streams.iter().map(|stream| stream.at.start).collect(),
                cleared: pages.values(),
                dtype: pages.streams.first().map(|stream| stream.dtype),
                kept: Kept::Pages { window: pages.window, every: pages.every },
            },
            StateGroup::Slots(slots) => {
                let kept = Kept::Slots { ring: slots.each };
                Unit { bytes: slots.bytes, streams: vec![0], cleared: 0..0, dtype: None, kept }
            }
        }
    }

    /// The number of units, with `blocks` blocks in the cache and slots for `slots` sequences.
    pub fn count(&self, blocks: usize, slots: usize) -> usize {
        self.kept.units(blocks, slots)
    }

    /// A state with the units of its sequences in a table.
    pub fn memory(&self, pages: DeviceBuffer, table: usize) -> StateMemory {
        StateMemory { pages, streams: self.streams.clone(), table, advances: self.kept.is_slots() }
    }
}
