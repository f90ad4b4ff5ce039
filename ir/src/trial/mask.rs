//! Which elements of rows are wanted.
use std::ops::Range;

/// A bit for each element of some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mask {
    pub rows: usize,
    pub width: usize,
    words: usize,
    bits: Vec<u64>,
}

impl Mask {
    /// Nothing of them.
    pub fn new(rows: usize, width: usize) -> Mask {
        let words = width.div_ceil(64);
        Mask { rows, width, words, bits: vec![0; rows * words] }
    }

    pub fn set_range(&mut self, row: usize, cols: Range<usize>) {
        let mut col = cols.start;
        while col < cols.end {
            let (word, bit) = (row * self.words + col / 64, col % 64);
            let len = (64 - bit).min(cols.end - col);
            self.bits[word] |= (u64::MAX >> (64 - len)) << bit;
            col += len;
        }
    }

    pub fn get(&self, row: usize, col: usize) -> bool {
        self.bits[row * self.words + col / 64] >> (col % 64) & 1 == 1
    }

    /// Whether anything of a row is wanted.
    pub fn any(&self, row: usize) -> bool {
        self.row(row).iter().any(|&word| word != 0)
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.words..][..self.words]
    }

    /// The elements of a row that are wanted.
    pub fn cols(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        self.row(row).iter().enumerate().flat_map(|(word, &bits)| {
            let next = |&bits: &u64| Some(bits & (bits - 1)).filter(|&bits| bits != 0);
            std::iter::successors(Some(bits).filter(|&bits| bits != 0), next)
                .map(move |bits| word * 64 + bits.trailing_zeros() as usize)
        })
    }

    /// What is wanted of another row too.
    pub fn add_row(&mut self, row: usize, other: &Mask, from: usize) {
        let words = self.words;
        let own = &mut self.bits[row * words..][..words];
        own.iter_mut().zip(other.row(from)).for_each(|(own, other)| *own |= other);
    }

    /// How many are wanted.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }
}
