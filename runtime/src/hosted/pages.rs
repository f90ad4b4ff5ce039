//! The pages and the slots that a framework gives. It shares the states out among tables as it
//! likes: all that it wants of a table is that the pages of its states are equally far apart. Of
//! slots a table has one entry for each sequence, and a page is whatever has room for the slot.
use super::allocate::ALIGN;
use super::{Hosted, HostedError};
use crate::device::{DeviceError, StateMemory};
use crate::states::Unit;
use atomc_artifact::abi::Prepare;
use atomc_artifact::manifest::StateGroup;
use std::ops::Range;
use std::ptr::NonNull;

/// The distance between pages is a multiple of this.
const STRIDE_ALIGN: usize = 256;

/// The pages of states that have one table of each sequence, or their slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The address of each state's pages, by the state's number in the target. States may share
    /// memory if their tables share it out.
    pub states: Vec<(usize, NonNull<u8>)>,
    /// Bytes from one page to the next.
    pub block_stride: usize,
    /// Pages of each state.
    pub blocks: usize,
}

// SAFETY: addresses, which only their owner's callers follow.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Hosted {
    /// Takes the pages of all states, a list for each table. It costs little to be given the same
    /// again.
    ///
    /// # Safety
    /// The pages are memory of the device, the last one followed by the device's slack. They stay
    /// until others are bound, and belong to this model while a step runs.
    pub unsafe fn bind_cache(&mut self, tables: &[Pages]) -> Result<(), HostedError> {
        if tables == self.tables {
            return Ok(());
        }
        self.check_pages(tables)?;
        self.step = None;
        for (number, table) in tables.iter().enumerate() {
            self.session.inputs.set_block_stride(number, table.block_stride);
            for &(state, start) in &table.states {
                // The last one may have no bytes after those that it needs.
                let unit = &self.session.units[self.target().states[state].group];
                let bytes = table.block_stride * (table.blocks - 1) + unit.bytes;
                // SAFETY: passed on to the caller.
                self.session.memory.states[state] =
                    unit.memory(unsafe { self.session.device.adopt(start, bytes) }, number);
            }
        }
        self.set_inputs()?;
        self.tables = tables.to_vec();
        self.set_starts()?;
        Ok(self.session.bind()?)
    }

    /// Which tables are of the model's states, or of its draft's.
    pub(super) fn tables_of(&self, draft: bool) -> Range<usize> {
        let models = self.tables.partition_point(|table| !self.is_of_draft(table));
        if draft { models..self.tables.len() } else { 0..models }
    }

    /// Whether a table is of the draft's states. Then it has no other states.
    fn is_of_draft(&self, table: &Pages) -> bool {
        table.states.first().is_some_and(|(state, _)| *state >= self.model_states)
    }

    /// The pages, once they are bound.
    pub fn tables(&self) -> &[Pages] {
        &self.tables
    }

    /// Whether two states may have one table.
    pub fn are_alike(&self, one: usize, other: usize) -> bool {
        let states = &self.target().states;
        let both = states.get(one).zip(states.get(other));
        both.is_some_and(|(one, other)| {
            let groups = &self.target().groups;
            alike(&groups[one.group], &groups[other.group])
        })
    }

    /// Checks that each state has pages, once, and that they can hold it.
    fn check_pages(&self, tables: &[Pages]) -> Result<(), HostedError> {
        let want = self.states().len();
        let mut found: Vec<usize> = tables.iter().flat_map(|table| table.states.iter().map(|state| state.0)).collect();
        found.sort();
        if !found.iter().copied().eq(0..want) {
            return Err(HostedError::States { found, want });
        }
        if !tables.is_sorted_by_key(|table| self.is_of_draft(table)) {
            return Err(HostedError::Draft("tables of its states come behind those of the model's"));
        }
        tables.iter().try_for_each(|table| self.check_table(table))
    }

    fn check_table(&self, Pages { states, block_stride, blocks }: &Pages) -> Result<(), HostedError> {
        let fault = |field, detail| Err(HostedError::Field { field, detail });
        let Some(&(first, _)) = states.first() else { return fault("states", "a table of none".to_owned()) };
        if let Some((other, _)) =
            states.iter().find(|(state, _)| (*state < self.model_states) != (first < self.model_states))
        {
            let detail = format!("pages of {first} and {other}, of the model and of its draft, want a table each");
            return fault("states", detail);
        }
        if let Some((_, start)) = states.iter().find(|(_, start)| !start.addr().get().is_multiple_of(ALIGN)) {
            return fault("states", format!("pages at {start:p} do not begin at a multiple of {ALIGN}"));
        }
        if let Some((other, _)) = states.iter().find(|(state, _)| !alike(self.group(first), self.group(*state))) {
            let detail = format!("pages of {first} and {other} hold other streams, and want a table each");
            return fault("states", detail);
        }
        let page = states.iter().map(|(state, _)| self.unit(*state).bytes).max().unwrap_or(0);
        let fits = (page..=u32::MAX as usize).contains(block_stride);
        if !fits || !block_stride.is_multiple_of(STRIDE_ALIGN) {
            let rule = format!("a multiple of {STRIDE_ALIGN} below 4 GiB, and at least a page, {page}");
            return fault("block_stride", format!("{block_stride} is not {rule}"));
        }
        let counted = (1..=i32::MAX as usize).contains(blocks) && block_stride.checked_mul(*blocks).is_some();
        if counted { Ok(()) } else { fault("blocks", format!("{blocks} pages of {block_stride} bytes")) }
    }

    fn group(&self, state: usize) -> &StateGroup {
        &self.target().groups[self.target().states[state].group]
    }

    fn unit(&self, state: usize) -> &Unit {
        &self.session.units[self.target().states[state].group]
    }

    /// Gives a device that makes the inputs the address of each state's pages, table by table.
    fn set_starts(&mut self) -> Result<(), DeviceError> {
        let Some(starts) = &mut self.starts else { return Ok(()) };
        let all = self.tables.iter().flat_map(|table| &table.states);
        let bytes: Vec<u8> = all.flat_map(|(_, start)| (start.addr().get() as u64).to_le_bytes()).collect();
        starts.upload(0, &bytes)
    }

    /// The parameters of a step with a table that are the same in all steps: the addresses of its
    /// inputs, and the pages that may have to be cleared.
    pub(super) fn clears(&self, table: usize) -> Prepare {
        let inputs = self.session.inputs.prepare(table);
        let (Some(starts), Some(Pages { states, .. })) = (&self.starts, self.tables.get(table)) else { return inputs };
        let Unit { cleared: values, kept, .. } = self.unit(states[0].0);
        if kept.is_slots() {
            return inputs;
        }
        let before: usize = self.tables[..table].iter().map(|table| table.states.len()).sum();
        Prepare {
            pages: starts.address().wrapping_add(before * size_of::<u64>()).cast_const().cast(),
            layers: states.len() as i64,
            values: values.start as i64,
            value_bytes: values.len() as i64,
            ..inputs
        }
    }
}

/// Whether states may have one table: pages are cleared alike, and slots never are.
fn alike(one: &StateGroup, other: &StateGroup) -> bool {
    match (one, other) {
        (StateGroup::Paged(one), StateGroup::Paged(other)) => one.streams == other.streams,
        (StateGroup::Slots(_), StateGroup::Slots(_)) => true,
        _ => false,
    }
}

/// Clears the values in a page of a table, if the host reaches them.
pub(super) fn clear(states: &mut [StateMemory], values: &[Range<usize>], table: usize, first: usize) {
    for (state, values) in states.iter_mut().zip(values).filter(|(state, _)| state.table == table) {
        // Kernels give tokens that do not exist yet the weight zero, but zero times the values of
        // an earlier sequence may be NaN.
        if let Some(pages) = state.pages.host_view_mut() {
            pages[first + values.start..first + values.end].fill(0);
        }
    }
}
