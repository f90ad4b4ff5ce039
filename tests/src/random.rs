//! Numbers that are the same in every run.

/// The whole numbers of a simple generator (PCG's multiplier and increment).
pub struct Random(pub u64);

impl Random {
    /// The next one, below an end.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    /// `count` tokens of a vocabulary.
    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}
