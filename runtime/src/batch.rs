//! The inputs of one step, at addresses that stay: token ids, positions, lengths, rows and the batch that says where each
//! token belongs.
use atomc_artifact::abi::{Batch, TILE_TOKENS};
use atomc_artifact::manifest::Input;

/// Entries behind those in use: kernels work on groups of tokens and read whole ones.
const PADDING: usize = 64;

/// The inputs of a step. Entries beyond its tokens are zero: a token, position, row and sequence that exist.
#[derive(Debug)]
pub(crate) struct Inputs {
    ids: Vec<i32>,
    positions: Vec<i32>,
    lengths: Vec<i32>,
    sequences: Vec<i32>,
    rows: Vec<i32>,
    tables: Vec<i32>,
    tiles: Vec<[i32; 2]>,
    batch: Box<Batch>,
    /// Entries of the last step, which the next one replaces or clears.
    used: Counts,
}

/// What a step has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub tokens: usize,
    pub rows: usize,
    pub tiles: usize,
    sequences: usize,
}

// SAFETY: the pointers in `batch` point into the vectors of the same value.
unsafe impl Send for Inputs {}

impl Inputs {
    /// Room for steps of so many tokens, rows and blocks in a table.
    pub fn new(tokens: usize, rows: usize, table_blocks: usize) -> Inputs {
        let (padded, stride) = (tokens + PADDING, table_blocks.max(1));
        let mut inputs = Inputs {
            ids: vec![0; padded],
            positions: vec![0; padded],
            lengths: vec![0; padded],
            sequences: vec![0; padded],
            rows: vec![0; rows + PADDING],
            // Zeroed by the system page by page, so tables that are never used cost nothing.
            tables: vec![0; padded * stride],
            tiles: vec![[0; 2]; padded],
            batch: Box::new(Batch {
                positions: std::ptr::null(),
                sequences: std::ptr::null(),
                tables: std::ptr::null(),
                table_stride: stride as i64,
                tiles: std::ptr::null(),
                tile_count: 0,
            }),
            used: Counts::default(),
        };
        inputs.batch.positions = inputs.positions.as_ptr();
        inputs.batch.sequences = inputs.sequences.as_ptr();
        inputs.batch.tables = inputs.tables.as_ptr();
        inputs.batch.tiles = inputs.tiles.as_ptr().cast();
        inputs
    }

    /// The address of an input, the same for the life of this value.
    pub fn address(&self, which: Input) -> *const u8 {
        match which {
            Input::Ids => self.ids.as_ptr().cast(),
            Input::Positions => self.positions.as_ptr().cast(),
            Input::Lengths => self.lengths.as_ptr().cast(),
            Input::Rows => self.rows.as_ptr().cast(),
            Input::Batch => (&raw const *self.batch).cast(),
        }
    }

    /// Begins a step: nothing is in it.
    pub fn clear(&mut self) {
        let Counts { tokens, rows, tiles, .. } = std::mem::take(&mut self.used);
        for values in [&mut self.ids, &mut self.positions, &mut self.lengths, &mut self.sequences] {
            values[..tokens].fill(0);
        }
        self.rows[..rows].fill(0);
        self.tiles[..tiles].fill([0; 2]);
        self.batch.tile_count = 0;
    }

    /// Adds consecutive tokens of one sequence: the first at a position, `length` being the sequence's after the whole step,
    /// which may go on in another plan, with the blocks that the sequence has by then.
    pub fn push(&mut self, tokens: &[u32], position: usize, length: usize, table: &[i32]) {
        let Counts { tokens: first, sequences: sequence, .. } = self.used;
        let end = first + tokens.len();
        for (index, &token) in tokens.iter().enumerate() {
            self.ids[first + index] = token as i32;
            self.positions[first + index] = (position + index) as i32;
        }
        self.lengths[first..end].fill(length as i32);
        self.sequences[first..end].fill(sequence as i32);
        let stride = self.batch.table_stride as usize;
        let row = &mut self.tables[sequence * stride..][..stride];
        let (blocks, unused) = row.split_at_mut(table.len());
        blocks.copy_from_slice(table);
        // Whatever an earlier step left behind is a valid block as well; one more zero keeps a reader one block ahead sound.
        if let Some(next) = unused.first_mut() {
            *next = 0;
        }
        for start in (first..end).step_by(TILE_TOKENS) {
            self.tiles[self.used.tiles] = [start as i32, (end - start).min(TILE_TOKENS) as i32];
            self.used.tiles += 1;
        }
        self.used.tokens = end;
        self.used.sequences += 1;
        self.batch.tile_count = self.used.tiles as i64;
    }

    /// Wants logits for the last `count` tokens that were pushed.
    pub fn want(&mut self, count: usize) {
        for token in self.used.tokens - count..self.used.tokens {
            self.rows[self.used.rows] = token as i32;
            self.used.rows += 1;
        }
    }

    pub fn counts(&self) -> Counts {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lays_out_a_mixed_step() {
        let mut inputs = Inputs::new(80, 8, 4);
        let prompt: Vec<u32> = (100..140).collect();
        inputs.clear();
        inputs.push(&[7], 33, 34, &[5, 6, 9]);
        inputs.want(1);
        inputs.push(&prompt, 0, 50, &[1, 2, 3]);
        inputs.want(2);
        let Counts { tokens, rows, tiles, sequences } = inputs.counts();
        assert_eq!((tokens, rows, tiles, sequences), (41, 3, 3, 2));
        assert_eq!(inputs.ids[..3], [7, 100, 101]);
        assert_eq!(inputs.positions[..3], [33, 0, 1]);
        assert_eq!(inputs.lengths[..3], [34, 50, 50]);
        assert_eq!(inputs.sequences[..3], [0, 1, 1]);
        assert_eq!(inputs.rows[..4], [0, 39, 40, 0]);
        assert_eq!(inputs.tiles[..4], [[0, 1], [1, 32], [33, 8], [0, 0]]);
        assert_eq!(inputs.tables[..8], [5, 6, 9, 0, 1, 2, 3, 0]);
        assert_eq!((inputs.batch.table_stride, inputs.batch.tile_count), (4, 3));
    }

    #[test]
    fn padding_is_zero_after_a_larger_step() {
        let mut inputs = Inputs::new(80, 8, 4);
        inputs.push(&[9; 80], 0, 80, &[1, 2, 3, 0]);
        inputs.want(8);
        let before = inputs.address(Input::Ids);
        inputs.clear();
        inputs.push(&[8], 4, 5, &[2]);
        assert_eq!(inputs.address(Input::Ids), before);
        for values in [&inputs.ids, &inputs.positions, &inputs.lengths, &inputs.sequences] {
            assert!(values[1..].iter().all(|&value| value == 0));
        }
        assert!(inputs.rows.iter().all(|&row| row == 0));
        assert!(inputs.tiles[1..].iter().all(|tile| *tile == [0, 0]));
        // SAFETY: the batch points into the vectors above.
        let batch = unsafe { &*inputs.address(Input::Batch).cast::<Batch>() };
        assert_eq!((batch.tile_count, batch.positions.cast()), (1, inputs.address(Input::Positions)));
    }
}
