//! Exchanges of rows with other ranks by a kernel: the memory that a rank needs for them, and the
//! parameters of each. Devices differ only in how the kernel is started.
use super::gpu::PeerGpu;
use super::{DeviceBuffer, DeviceError, Memory};
use crate::weights::Rank;
use atomc_artifact::abi::{EXCHANGED, Exchange, Step};
use atomc_artifact::manifest::{Call, Place, Work};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// A rank's device, and its memory for what other ranks write.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Where that memory is.
    pub slots: *mut u8,
    /// How long it is.
    pub bytes: usize,
    /// The GPU that has it; else the host has.
    pub(crate) gpu: Option<PeerGpu>,
}

impl Peer {
    /// Of an emulated device, with memory of the host.
    pub fn emulated(slots: *mut u8, bytes: usize) -> Peer {
        Peer { slots, bytes, gpu: None }
    }
}

/// A rank's memory for exchanges.
#[derive(Debug)]
pub struct Exchanges {
    rank: Rank,
    /// Where the other ranks write.
    slots: DeviceBuffer,
    /// The addresses of all ranks' slots.
    peers: DeviceBuffer,
    state: DeviceBuffer,
}

/// An exchange, and whether it is of the rows that logits are wanted of.
#[derive(Clone, Copy, Debug)]
pub struct OfRows {
    /// The parameters of the kernel.
    pub exchange: Exchange,
    by_rows: bool,
}

impl OfRows {
    /// Work-groups of the kernel in a step of this size.
    pub fn groups(&self, step: Step) -> usize {
        self.exchange.groups(if self.by_rows { step.rows } else { step.tokens } as usize)
    }
}

impl Exchanges {
    /// Bytes of the three parts that [`Exchanges::new`] takes.
    pub fn sizes(ranks: usize) -> [usize; 3] {
        [Exchange::slots(ranks), ranks * size_of::<u64>(), Exchange::STATE]
    }

    /// In zeroed memory of the rank's device: slots for what other ranks write, the addresses of
    /// all ranks' slots, and the state.
    pub fn new([slots, peers, state]: [DeviceBuffer; 3]) -> Exchanges {
        Exchanges { rank: Rank::ONLY, slots, peers, state }
    }

    /// Where other ranks write.
    pub fn slots(&self) -> (*mut u8, usize) {
        (self.slots.address(), self.slots.len())
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
    pub fn of(&self, call: &Call, memory: &Memory) -> Option<OfRows> {
        let at = |place: Place| memory.arena.address().wrapping_add(place.offset);
        let (part, added, whole) = match call.work {
            Work::AllReduce { value, added } => (value, added, None),
            Work::AllGather { part, whole } => (part, None, Some(whole)),
            Work::Embedding { .. } | Work::Attention { .. } | Work::HandOn { .. } => return None,
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
        Some(OfRows { exchange, by_rows: whole.is_some() })
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
        Work::Embedding { .. } | Work::HandOn { .. } => true,
        Work::Attention { .. } => false,
    }
}
