//! Random numbers, the same ones for the same seed.

/// A small generator (xorshift64* of Marsaglia and Vigna).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator from any seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// In a state, which is not zero.
    pub(crate) fn in_state(state: u64) -> Random {
        Random(state)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
