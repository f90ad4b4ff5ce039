//! Global memory: ranges of the host's address space that kernels may touch.
use crate::fault::{FaultKind, Operation};

/// The access that kernels have to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
    /// Other devices read and write it too, while kernels run.
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    /// Bytes past the end that may be read.
    slack: u64,
    access: Access,
}

/// The mapped ranges. Anything outside is a fault.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By address, without overlaps.
    ranges: Vec<Range>,
    /// How many of them are shared with other devices.
    shared: usize,
}

impl Memory {
    /// Lets kernels use `len` bytes at an address of this process.
    ///
    /// # Safety
    /// The bytes must stay valid for reads (and for writes if `access` says so) while kernels run
    /// with this memory, and nothing else may use them then in a way that conflicts.
    pub unsafe fn map(&mut self, address: u64, len: u64, access: Access) {
        // SAFETY: no slack; the rest is the caller's promise.
        unsafe { self.map_with_slack(address, len, 0, access) }
    }

    /// Maps a range; `slack` bytes past its end may be read.
    ///
    /// # Safety
    /// As for [`Memory::map`]; the slack must be readable.
    pub unsafe fn map_with_slack(&mut self, address: u64, len: u64, slack: u64, access: Access) {
        let at = self.ranges.partition_point(|r| r.start < address);
        self.ranges.insert(at, Range { start: address, end: address + len, slack, access });
        self.shared += usize::from(access == Access::Shared);
    }

    /// Unmaps a range of [`Memory::map`]. Returns whether one began there.
    pub fn unmap(&mut self, address: u64) -> bool {
        let found = self.ranges.iter().position(|r| r.start == address);
        let removed = found.map(|at| self.ranges.remove(at));
        self.shared -= usize::from(removed.is_some_and(|range| range.access == Access::Shared));
        removed.is_some()
    }

    /// Whether all of `[address, address + bytes)` may be used so.
    #[inline]
    pub fn allows(&self, address: u64, bytes: u64, operation: Operation) -> bool {
        let at = self.ranges.partition_point(|r| r.start <= address);
        let Some(range) = at.checked_sub(1).map(|i| self.ranges[i]) else { return false };
        let Some(end) = address.checked_add(bytes) else { return false };
        match operation {
            Operation::Read => end <= range.end + range.slack,
            Operation::Write | Operation::Atomic => end <= range.end && range.access != Access::Read,
        }
    }

    /// Whether any range is shared with other devices.
    #[inline]
    pub fn has_shared(&self) -> bool {
        self.shared > 0
    }

    /// Whether an address is in a range that is shared with other devices.
    pub fn is_shared(&self, address: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.start <= address);
        at.checked_sub(1).is_some_and(|i| self.ranges[i].access == Access::Shared)
    }

    /// The fault of an access that [`Memory::allows`] refused.
    pub fn fault(&self, address: u64, bytes: u32, operation: Operation) -> FaultKind {
        let distance = |r: &&Range| r.start.saturating_sub(address).max(address.saturating_sub(r.end));
        let nearest = self.ranges.iter().min_by_key(distance).map(|r| (r.start, r.end));
        FaultKind::OutOfBounds { operation, address, bytes, nearest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_they_end() {
        let mut memory = Memory::default();
        // SAFETY: no kernel runs.
        unsafe {
            memory.map_with_slack(0x1000, 0x100, 16, Access::ReadWrite);
            memory.map(0x2000, 0x100, Access::Read);
        }
        assert!(memory.allows(0x10f0, 0x10, Operation::Write));
        assert!(!memory.allows(0x10f1, 0x10, Operation::Write));
        assert!(memory.allows(0x1100, 16, Operation::Read));
        assert!(!memory.allows(0x1101, 16, Operation::Read));
        assert!(!memory.allows(0xfff, 2, Operation::Read));
        assert!(!memory.allows(0x2000, 4, Operation::Write));
        assert!(!memory.allows(u64::MAX - 1, 4, Operation::Read));
        assert!(memory.unmap(0x1000) && !memory.unmap(0x1000));
        assert!(!memory.allows(0x10f0, 0x10, Operation::Read));
    }
}
