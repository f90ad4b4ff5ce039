//! Memory of a launch that is recorded: zeros of the host, which take no room until someone writes.
use atomc_emulator::{Access, Memory};

pub struct Zeros {
    bytes: Vec<u128>,
    memory: Memory,
    next: u64,
}

/// Between tensors: kernels read ahead of their ends.
const APART: u64 = 1 << 20;
const PAGE: u64 = 4096;

impl Zeros {
    /// Zeros for tensors of these numbers of bytes.
    pub fn of(tensors: impl Iterator<Item = u64>) -> Zeros {
        let bytes: u64 = tensors.map(|b| b.next_multiple_of(PAGE) + APART).sum::<u64>() + 2 * APART;
        let bytes = vec![0u128; bytes as usize / 16];
        let mut memory = Memory::default();
        // SAFETY: they live as long as the map.
        unsafe { memory.map(bytes.as_ptr() as u64, bytes.len() as u64 * 16, Access::ReadWrite) };
        let next = (bytes.as_ptr() as u64).next_multiple_of(APART);
        Zeros { bytes, memory, next }
    }

    /// The address of the next tensor.
    pub fn tensor(&mut self, bytes: u64) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(PAGE) + APART;
        let end = self.bytes.as_ptr() as u64 + self.bytes.len() as u64 * 16;
        assert!(self.next <= end, "as many tensors as were announced");
        address
    }

    /// The next tensor, which holds these words.
    pub fn words(&mut self, words: &[u32]) -> u64 {
        let address = self.tensor(words.len() as u64 * 4);
        let first = self.bytes.as_mut_ptr() as u64;
        for (at, word) in words.iter().enumerate() {
            let byte = (address - first) as usize + at * 4;
            self.bytes[byte / 16] |= u128::from(*word) << (byte % 16 * 8);
        }
        address
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
