//! The local memory of a work-group, with a record of its uses.
//!
//! A race is an access to bytes that another wave wrote (or read, for writes) with no barrier
//! between that orders them. Every use is stamped with the wave and a running number; at a barrier
//! each wave's completed uses become visible to all. Uses that no wait covered when the wave
//! arrived at the barrier stay invisible, as do loads from memory to LDS, which count as uses by an
//! engine of the wave's own. Two waves may write the same bytes if they write the same values:
//! compilers let several waves store a value that all of them have computed. Tracking is by dwords
//! with a mask of bytes. Of several readers it remembers the last one, and that there were more.
use super::address::{Places, lanes};
use crate::exec::{Checks, Side};
use crate::fault::{FaultKind, Operation, Trap};

/// Waves that a group can have, and as many engines that load to LDS.
const WAVES: usize = 32;

/// LDS of the group that is running.
pub struct Lds {
    /// In 16-byte units, so that pointers are aligned as hardware's are.
    bytes: Vec<u128>,
    pub size: u32,
    writers: Vec<Stamp>,
    readers: Vec<Stamp>,
    /// Bytes of each dword that were ever written, as bits.
    written: Vec<u8>,
    /// Number of the last use of each actor that everybody sees.
    visible: [u32; WAVES * 2],
    arrived: [u32; WAVES * 2],
}

/// The last use of a dword: its number, whether it was atomic, the actor, the mask of bytes. Zero
/// is no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp(u32);

/// Numbers beyond are all the same; such long kernels are not checked to the end.
const LAST: u32 = (1 << 21) - 1;

impl Stamp {
    fn new(number: u32, atomic: bool, actor: usize, mask: u8) -> Stamp {
        Stamp(number.min(LAST) << 11 | u32::from(atomic) << 10 | (actor as u32) << 4 | u32::from(mask))
    }

    fn number(self) -> u32 {
        self.0 >> 11
    }

    fn atomic(self) -> bool {
        self.0 >> 10 & 1 != 0
    }

    fn actor(self) -> usize {
        (self.0 >> 4 & 63) as usize
    }

    fn mask(self) -> u8 {
        (self.0 & 15) as u8
    }
}

/// Fills memory that was not written.
const POISON: u128 = 0x7fa5_a5a5_7fa5_a5a5_7fa5_a5a5_7fa5_a5a5;

impl Lds {
    pub fn new(size: u32) -> Lds {
        let dwords = size as usize / 4 + 1;
        Lds {
            bytes: vec![POISON; size as usize / 16 + 1],
            size,
            writers: vec![Stamp::default(); dwords],
            readers: vec![Stamp::default(); dwords],
            written: vec![0; dwords],
            visible: [0; WAVES * 2],
            arrived: [0; WAVES * 2],
        }
    }

    /// Makes it the LDS of another group.
    pub fn reset(&mut self) {
        self.bytes.fill(POISON);
        self.writers.fill(Stamp::default());
        self.readers.fill(Stamp::default());
        self.written.fill(0);
        self.visible = [0; WAVES * 2];
        self.arrived = [0; WAVES * 2];
    }

    /// A wave arrives at a barrier.
    pub fn arrive(&mut self, side: &Side) {
        self.arrived[side.number] = side.lds_retired().min(LAST);
        self.arrived[WAVES + side.number] = side.to_lds_retired().min(LAST);
    }

    /// All waves have arrived.
    pub fn release(&mut self) {
        self.visible = self.arrived;
    }

    /// Checks an access, notes it, and puts host addresses into `places.at`.
    pub fn access(
        &mut self,
        places: &mut Places,
        bytes: u32,
        operation: Operation,
        side: &mut Side,
        checks: &Checks,
    ) -> Result<(), Box<Trap>> {
        side.lds_issued += 1;
        let base = self.bytes.as_mut_ptr() as u64;
        for lane in lanes(places.in_lds) {
            let address = places.lds[lane];
            self.inside(address, bytes, operation).map_err(|kind| Trap::lane(kind, lane as u32))?;
            places.at[lane] = base + u64::from(address);
        }
        if checks.uninitialised || checks.races {
            let all = checks.uninitialised && checks.races && bytes.is_multiple_of(4);
            let stamp = Stamp::new(side.lds_issued, false, side.number, 15);
            for lane in lanes(places.in_lds) {
                let address = places.lds[lane];
                if all && address.is_multiple_of(4) && self.quick(address, bytes, operation, stamp, side) {
                    continue;
                }
                match self.check(address, bytes, operation, side, checks) {
                    Ok(()) => {}
                    // It is a race only if the stored values differ.
                    Err(kind @ FaultKind::LdsRace { operation: Operation::Write, other: Operation::Write, .. }) => {
                        places.rewrites |= 1 << lane;
                        places.rewrite.get_or_insert(kind);
                    }
                    Err(kind) => return Err(Trap::lane(kind, lane as u32)),
                }
            }
        }
        Ok(())
    }

    /// The place of a lane's part of a load from memory to LDS.
    pub fn fill(&mut self, address: u32, bytes: u32, side: &Side, checks: &Checks) -> Result<u64, FaultKind> {
        self.inside(address, bytes, Operation::Write)?;
        if checks.races || checks.uninitialised {
            for (cell, mask) in cells(address, bytes) {
                let stamp = Stamp::new(side.to_lds_issued, false, WAVES + side.number, mask);
                if checks.races {
                    self.race(cell, mask, Operation::Write, side)?;
                }
                self.writers[cell] = stamp;
                self.written[cell] |= mask;
            }
        }
        Ok(self.bytes.as_mut_ptr() as u64 + u64::from(address))
    }

    fn inside(&self, address: u32, bytes: u32, operation: Operation) -> Result<(), FaultKind> {
        match u64::from(address) + u64::from(bytes) <= u64::from(self.size) {
            true => Ok(()),
            false => Err(FaultKind::LdsOutOfBounds { operation, address, bytes, size: self.size }),
        }
    }

    /// Checks and notes whole dwords; `false` if something is not as usual, which [`Lds::check`]
    /// then looks into.
    #[inline(always)]
    fn quick(&mut self, address: u32, bytes: u32, operation: Operation, stamp: Stamp, side: &Side) -> bool {
        let range = (address / 4) as usize..((address + bytes) / 4) as usize;
        for cell in range {
            let (writer, reader) = (self.writers[cell], self.readers[cell]);
            let (sees_writer, sees_reader) = (self.sees(writer, side), self.sees(reader, side));
            match operation {
                Operation::Read if self.written[cell] == 15 && sees_writer => {
                    if sees_reader {
                        self.readers[cell] = stamp;
                    }
                }
                Operation::Write if sees_writer && sees_reader => {
                    self.writers[cell] = stamp;
                    self.written[cell] = 15;
                }
                _ => return false,
            }
        }
        true
    }

    #[inline]
    fn check(
        &mut self,
        address: u32,
        bytes: u32,
        operation: Operation,
        side: &Side,
        checks: &Checks,
    ) -> Result<(), FaultKind> {
        for (cell, mask) in cells(address, bytes) {
            if operation != Operation::Write && checks.uninitialised && mask & !self.written[cell] != 0 {
                return Err(FaultKind::UninitialisedLds { address: cell as u32 * 4 });
            }
            if checks.races {
                let race = self.race(cell, mask, operation, side);
                self.note(cell, mask, operation, side);
                race?;
            }
            if operation != Operation::Read {
                self.written[cell] |= mask;
            }
        }
        Ok(())
    }

    #[inline]
    fn race(&self, cell: usize, mask: u8, operation: Operation, side: &Side) -> Result<(), FaultKind> {
        let writer = self.writers[cell];
        let both_atomic = operation == Operation::Atomic && writer.atomic();
        if writer.mask() & mask != 0 && !both_atomic && !self.sees(writer, side) {
            return Err(self.explain(cell, operation, Operation::Write, writer, side));
        }
        let reader = self.readers[cell];
        if operation != Operation::Read && reader.mask() & mask != 0 && !self.sees(reader, side) {
            return Err(self.explain(cell, operation, Operation::Read, reader, side));
        }
        Ok(())
    }

    /// Whether a use is over for a wave: its own, or made visible by a barrier.
    #[inline]
    fn sees(&self, stamp: Stamp, side: &Side) -> bool {
        let actor = stamp.actor();
        actor == side.number
            || stamp.number() <= self.visible[actor]
            || actor == WAVES + side.number && stamp.number() <= side.to_lds_retired()
    }

    #[inline]
    fn note(&mut self, cell: usize, mask: u8, operation: Operation, side: &Side) {
        let stamp = Stamp::new(side.lds_issued, operation == Operation::Atomic, side.number, mask);
        match operation {
            Operation::Write | Operation::Atomic => {
                let old = self.writers[cell];
                // Other bytes of the dword keep their writer if it is the same one, and others do
                // not see it yet.
                let same = old.actor() == side.number && old.number() > self.visible[side.number];
                let mask = if same { old.mask() | mask } else { mask };
                self.writers[cell] = Stamp(stamp.0 | u32::from(mask));
            }
            Operation::Read => {
                // A reader that others do not see yet must not be forgotten for one that the next
                // writer may be itself.
                let old = self.readers[cell];
                let keep = old.0 != 0 && old.actor() != side.number && !self.sees(old, side);
                if !keep {
                    self.readers[cell] = stamp;
                }
            }
        }
    }

    #[cold]
    fn explain(&self, cell: usize, operation: Operation, other: Operation, stamp: Stamp, side: &Side) -> FaultKind {
        let address = cell as u32 * 4;
        if stamp.actor() == WAVES + side.number {
            return FaultKind::MissingLdsWait { address };
        }
        FaultKind::LdsRace { operation, address, other, wave: (stamp.actor() % WAVES) as u32 }
    }
}

/// The dwords of an access, each with its mask of bytes.
#[inline(always)]
fn cells(address: u32, bytes: u32) -> impl Iterator<Item = (usize, u8)> {
    let (first, last) = (address / 4, (address + bytes - 1) / 4);
    (first..=last).map(move |cell| {
        let start = address.saturating_sub(cell * 4);
        let end = (address + bytes - cell * 4).min(4);
        (cell as usize, ((1u32 << end) - (1 << start)) as u8)
    })
}

/// Cycles that an access waits for banks, in addition to those for its width.
///
/// The model: 32 banks of 4 bytes; lanes go in order, as many at once as fill 128 bytes; lanes that
/// read the same dword share it.
pub fn conflicts(places: &Places, bytes: u32) -> u64 {
    let at_once = (128 / bytes.max(4)) as usize;
    let mut extra = 0;
    for first in (0..64).step_by(at_once) {
        let active = places.in_lds >> first & (u64::MAX >> (64 - at_once));
        let starts = lanes(active).map(|lane| places.lds[first + lane] / 4);
        extra += waits(starts.flat_map(|start| (0..bytes.div_ceil(4)).map(move |k| start + k)));
    }
    extra
}

/// For accesses that begin in one cycle: the additional cycles that the busiest bank needs for its
/// different dwords.
fn waits(dwords: impl Iterator<Item = u32> + Clone) -> u64 {
    let (mut used, mut holds) = (0u32, [0; 32]);
    let clash = dwords.clone().any(|dword| {
        let bank = dword % 32;
        let other = used >> bank & 1 != 0 && holds[bank as usize] != dword;
        used |= 1 << bank;
        holds[bank as usize] = dword;
        other
    });
    if !clash {
        return 0;
    }
    let mut all: Vec<u32> = dwords.collect();
    all.sort_unstable();
    all.dedup();
    let mut banks = [0u64; 32];
    all.iter().for_each(|d| banks[(d % 32) as usize] += 1);
    banks.iter().max().map_or(0, |n| n - 1)
}
