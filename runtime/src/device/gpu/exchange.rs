//! Exchanges of rows with other ranks, between the launches of a plan, and captured with them.
use super::context::Context;
use super::driver::{Handle, Start};
use crate::device::exchange::{Exchanges, OfRows};
use crate::device::{DeviceError, Memory, StepSize};
use atomc_artifact::manifest::Call;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// What this rank needs for exchanges.
#[derive(Debug)]
pub struct Joined {
    pub rows: Exchanges,
    start: Start,
}

/// An exchange with every parameter in place.
#[derive(Debug)]
pub struct Bound {
    /// The launch that needs it done.
    pub before: usize,
    start: Start,
    rows: OfRows,
    pointers: Vec<*mut c_void>,
    _parameters: Box<[u64]>,
}

// SAFETY: the pointers are into the exchange's own box; all else are addresses of the device and
// handles, which drivers' functions take on any thread.
unsafe impl Send for Bound {}

impl Joined {
    /// With slots for what other ranks write.
    pub fn new(context: &Arc<Context>, start: Start, ranks: usize) -> Result<Joined, DeviceError> {
        let [slots, peers, state] = Exchanges::sizes(ranks);
        let rows = Exchanges::new([context.open_to_others(slots)?, context.allocate(peers)?, context.allocate(state)?]);
        Ok(Joined { rows, start })
    }

    /// The exchange that a call is, over the memory of a step.
    pub fn bind(&self, call: &Call, memory: &Memory) -> Option<Bound> {
        let rows = self.rows.of(call, memory)?;
        let mut parameters = Box::new(rows.exchange.parameters()) as Box<[u64]>;
        let pointers = parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast()).collect();
        Some(Bound { before: call.before, start: self.start, rows, pointers, _parameters: parameters })
    }
}

impl Bound {
    /// Puts it on a stream, for a step of this size.
    ///
    /// # Safety
    /// As for [`crate::device::Device::run`]; all ranks put the same exchanges on theirs.
    pub unsafe fn run(&self, context: &Context, size: StepSize, stream: Handle) -> Result<(), DeviceError> {
        let groups = self.rows.groups(size.step) as c_uint;
        if groups == 0 {
            return Ok(());
        }
        // SAFETY: the parameters are those of the kernel, and live in this value's box.
        context.check(unsafe { context.driver.launch(Start { groups, ..self.start }, &self.pointers, stream) })
    }
}
