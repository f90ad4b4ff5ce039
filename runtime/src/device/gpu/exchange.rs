//! Exchanges of rows with other ranks: the kernel of a variant, over memory that the GPUs of all
//! ranks reach. They stand between the launches of a plan, and are captured with them.
use super::context::Context;
use super::driver::{Handle, Start};
use crate::device::{DeviceBuffer, DeviceError, Memory, Peer, StepSize};
use crate::weights::Rank;
use atomc_artifact::abi::{EXCHANGED, Exchange, Step};
use atomc_artifact::manifest::{Call, Place, Work};
use std::ffi::{c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// What this rank needs for exchanges.
#[derive(Debug)]
pub struct Joined {
    rank: Rank,
    start: Start,
    /// Where the other ranks write.
    slots: DeviceBuffer,
    /// The addresses of all ranks' slots.
    peers: DeviceBuffer,
    state: DeviceBuffer,
}

/// An exchange with every parameter in place.
#[derive(Debug)]
pub struct Bound {
    /// The launch that needs it done.
    pub before: usize,
    start: Start,
    exchange: Exchange,
    by_rows: bool,
    pointers: Vec<*mut c_void>,
    _parameters: Box<[u64]>,
}

// SAFETY: the pointers are into the exchange's own box; all else are addresses of the device and
// handles, which drivers' functions take on any thread.
unsafe impl Send for Bound {}

impl Joined {
    /// With slots for what other ranks write.
    pub fn new(context: &Arc<Context>, start: Start, ranks: usize) -> Result<Joined, DeviceError> {
        Ok(Joined {
            rank: Rank::ONLY,
            start,
            slots: context.allocate(Exchange::slots(ranks))?,
            peers: context.allocate(ranks * size_of::<u64>())?,
            state: context.allocate(Exchange::STATE)?,
        })
    }

    /// Where other ranks write.
    pub fn slots(&self) -> *mut u8 {
        self.slots.address()
    }

    /// Takes part with these ranks.
    pub fn join(&mut self, rank: Rank, peers: &[Peer]) -> Result<(), DeviceError> {
        let addresses: Vec<u8> = peers.iter().flat_map(|peer| (peer.slots as u64).to_le_bytes()).collect();
        self.rank = rank;
        self.peers.upload(0, &addresses)
    }

    /// The rank that was waited for in vain since this was last asked. Exchanges begin anew.
    pub fn missed(&mut self) -> Result<Option<usize>, DeviceError> {
        let mut words = vec![0; Exchange::STATE];
        self.state.download(0, &mut words)?;
        let last = words.last_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        self.state.fill(0..Exchange::STATE, 0)?;
        self.slots.fill(0..self.slots.len(), 0)?;
        // Waits for both: from now on other ranks may write.
        self.slots.download(0, &mut [0])?;
        Ok((last as usize).checked_sub(1))
    }

    /// The exchange that a call is, over the memory of a step.
    pub fn bind(&self, call: &Call, memory: &Memory) -> Option<Bound> {
        let at = |place: Place| memory.arena.address().wrapping_add(place.offset);
        let (part, added, whole) = match call.work {
            Work::AllReduce { value, added } => (value, added, None),
            Work::AllGather { part, whole } => (part, None, Some(whole)),
            Work::Embedding { .. } | Work::Attention { .. } => return None,
        };
        let bytes = |place: Place, numbers: usize| (numbers * place.dtype.size()) as i64;
        let exchange = Exchange {
            value: at(part),
            added: added.map_or(null(), |added| at(added).cast_const()),
            whole: whole.map_or(null_mut(), at),
            peers: self.peers.address().cast_const().cast(),
            state: self.state.address(),
            step: memory.inputs.step.cast_const().cast(),
            rank: self.rank.number as i64,
            ranks: self.rank.of as i64,
            row: bytes(part, part.stride),
            width: bytes(part, part.width),
            stride: whole.map_or(0, |whole| bytes(whole, whole.stride)),
            dtype: EXCHANGED.iter().position(|dtype| *dtype == part.dtype)? as i64,
            count: if whole.is_some() { offset_of!(Step, rows) } else { offset_of!(Step, tokens) } as i64,
        };
        let mut parameters = Box::new(exchange.parameters()) as Box<[u64]>;
        let pointers = parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast()).collect();
        let (before, start) = (call.before, self.start);
        Some(Bound { before, start, exchange, by_rows: whole.is_some(), pointers, _parameters: parameters })
    }
}

/// Whether the kernel can do a call: it moves 16 bytes of some types at once.
pub fn fits(call: &Call) -> bool {
    let fits = |place: Place| {
        let whole = place.offset.is_multiple_of(16) && (place.stride * place.dtype.size()).is_multiple_of(16);
        whole && EXCHANGED.contains(&place.dtype)
    };
    match call.work {
        Work::AllReduce { value, added } => fits(value) && added.is_none_or(fits),
        Work::AllGather { part, .. } => fits(part),
        Work::Embedding { .. } => true,
        Work::Attention { .. } => false,
    }
}

impl Bound {
    /// Puts it on a stream, for a step of this size.
    ///
    /// # Safety
    /// As for [`crate::device::Device::run`]; all ranks put the same exchanges on theirs.
    pub unsafe fn run(&self, context: &Context, size: StepSize, stream: Handle) -> Result<(), DeviceError> {
        let rows = if self.by_rows { size.step.rows } else { size.step.tokens };
        let groups = self.exchange.groups(rows as usize) as c_uint;
        if groups == 0 {
            return Ok(());
        }
        // SAFETY: the parameters are those of the kernel, and live in this value's box.
        context.check(unsafe { context.driver.launch(Start { groups, ..self.start }, &self.pointers, stream) })
    }
}
