//! Keeps and restores the memory that kernels advance in place. Launches that are replayed to be
//! timed must not leave it advanced: the next step would go on from it, and states that decay by
//! numbers of no step end as NaN.
use super::super::{DeviceBuffer, DeviceError, Memory};
use super::context::Context;
use std::sync::Arc;

/// The states of slots, by address and bytes.
#[derive(Debug, Default)]
pub struct Slots(Vec<(u64, usize)>);

/// The contents of the slots.
#[derive(Debug)]
pub struct Kept<'s> {
    slots: &'s Slots,
    copies: Vec<DeviceBuffer>,
}

impl Slots {
    pub fn of(memory: &Memory) -> Slots {
        let slots = memory.states.iter().filter(|state| state.advances && !state.pages.is_empty());
        Slots(slots.map(|state| (state.pages.address() as u64, state.pages.len())).collect())
    }

    /// Copies them.
    ///
    /// # Safety
    /// The states that these are of are still there.
    pub unsafe fn keep(&self, context: &Arc<Context>) -> Result<Kept<'_>, DeviceError> {
        let mut copies = Vec::with_capacity(self.0.len());
        for &(address, bytes) in &self.0 {
            let copy = context.allocate(bytes)?;
            // SAFETY: passed on to the caller; the copy was just made that long.
            unsafe { context.copy_within(copy.address(), address as *mut u8, bytes) }?;
            copies.push(copy);
        }
        Ok(Kept { slots: self, copies })
    }
}

impl Kept<'_> {
    /// Restores the contents.
    ///
    /// # Safety
    /// As for [`Slots::keep`].
    pub unsafe fn put_back(&self, context: &Context) -> Result<(), DeviceError> {
        for (&(address, bytes), copy) in self.slots.0.iter().zip(&self.copies) {
            // SAFETY: passed on to the caller; the copy is that long.
            unsafe { context.copy_within(address as *mut u8, copy.address(), bytes) }?;
        }
        Ok(())
    }
}
