//! The tensors of a framework's step, where they are in the host's memory.
use super::HostedError;
use crate::batch::Inputs;
use atomc_artifact::abi::Prepare;
use std::slice;

/// What a step brings, by the addresses of a framework's tensors. Tokens lie one sequence after the other.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// `i32 [tokens]`
    pub ids: *const i32,
    /// `i64 [tokens]`: position of each token in its sequence.
    pub positions: *const i64,
    /// `i32 [sequences + 1]`: the first token of each sequence, and where the last one's end. Tokens from there on belong to
    /// nobody; sequences without tokens are none.
    pub starts: *const i32,
    /// `i32 [sequences]`: length of each sequence after this step.
    pub lengths: *const i32,
    /// `i32 [sequences, table_stride]`: the pages of each sequence, in order of position.
    pub tables: *const i32,
    pub table_stride: usize,
    pub sequences: usize,
    pub tokens: usize,
    /// Whether each sequence has one token at most.
    pub decode: bool,
    /// Whether other rows come in the place of the tokens' embeddings, when [`atomc_artifact::manifest::Work::Embedding`] is due.
    /// The tokens are of the vocabulary all the same.
    pub embedded: bool,
}

/// What a step has to keep to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub vocab: usize,
    pub max_positions: usize,
    pub block_tokens: usize,
    /// Pages in a layer; none where the caller attends and tables are not looked at.
    pub blocks: Option<usize>,
}

/// Tokens of one sequence.
struct Run<'a> {
    number: usize,
    ids: &'a [i32],
    positions: &'a [i64],
    length: i32,
    table: &'a [i32],
}

impl Batch {
    /// The parameters with which the device makes the step's inputs.
    pub(super) fn prepare(&self, inputs: Prepare) -> Prepare {
        let Batch { ids, positions, starts, lengths, tables, .. } = *self;
        let (sequences, tokens) = (self.sequences as i64, self.tokens as i64);
        let table_stride = self.table_stride as i64;
        Prepare { ids, positions, starts, lengths, tables, table_stride, sequences, tokens, ..inputs }
    }

    /// Puts the step into the inputs and calls `fresh` with each page that gets its first token.
    ///
    /// # Safety
    /// The tensors have the sizes above and nobody writes them meanwhile.
    pub(super) unsafe fn fill(
        &self,
        inputs: &mut Inputs,
        limits: &Limits,
        mut fresh: impl FnMut(usize),
    ) -> Result<(), HostedError> {
        inputs.clear();
        for number in 0..self.sequences {
            // SAFETY: passed on to the caller.
            let Some(run) = (unsafe { self.sequence(number, limits) })? else { continue };
            run.check(limits)?;
            // SAFETY: the same numbers, none of which is negative.
            let ids = unsafe { slice::from_raw_parts(run.ids.as_ptr().cast::<u32>(), run.ids.len()) };
            let position = run.positions[0] as usize;
            inputs.push(ids, position, run.length as usize, run.table);
            let first = position.div_ceil(limits.block_tokens).min(run.table.len());
            run.table[first..].iter().for_each(|&block| fresh(block as usize));
        }
        Ok(())
    }

    /// The tokens of a sequence, if it has any.
    ///
    /// # Safety
    /// As for [`Batch::fill`].
    unsafe fn sequence(&self, number: usize, limits: &Limits) -> Result<Option<Run<'_>>, HostedError> {
        // SAFETY: there is one more start than sequences.
        let (start, end) = unsafe { (*self.starts.add(number), *self.starts.add(number + 1)) };
        let fault = |field, detail| HostedError::Sequence { sequence: number, field, detail };
        if start < 0 || end < start || end as usize > self.tokens || (number == 0 && start != 0) {
            return Err(fault("starts", format!("from token {start} to {end} of {}", self.tokens)));
        }
        let (start, count) = (start as usize, (end - start) as usize);
        if count == 0 {
            return Ok(None);
        }
        if self.decode && count > 1 {
            return Err(fault("decode", format!("{count} tokens in a step of one for each sequence")));
        }
        // SAFETY: below the number of sequences.
        let length = unsafe { *self.lengths.add(number) };
        let pages = (length.max(0) as usize).div_ceil(limits.block_tokens);
        if limits.blocks.is_some() && pages > self.table_stride {
            return Err(fault("table_stride", format!("{pages} pages in tables of {}", self.table_stride)));
        }
        // SAFETY: the tokens lie before the last start, and the table's entries in its row.
        Ok(Some(unsafe {
            let table = match limits.blocks {
                Some(_) => slice::from_raw_parts(self.tables.add(number * self.table_stride), pages),
                None => &[],
            };
            Run {
                number,
                ids: slice::from_raw_parts(self.ids.add(start), count),
                positions: slice::from_raw_parts(self.positions.add(start), count),
                length,
                table,
            }
        }))
    }
}

impl Run<'_> {
    fn check(&self, limits: &Limits) -> Result<(), HostedError> {
        let fault = |field, detail| Err(HostedError::Sequence { sequence: self.number, field, detail });
        let Limits { vocab, max_positions, blocks, .. } = *limits;
        if let Some(id) = self.ids.iter().find(|&&id| !(0..vocab as i64).contains(&i64::from(id))) {
            return fault("ids", format!("{id}, but the vocabulary ends at {}", vocab - 1));
        }
        if self.length < 1 || self.length as usize > max_positions {
            return fault("lengths", format!("{} is not between 1 and the model's {max_positions}", self.length));
        }
        let mut expected = (self.positions[0]..).zip(self.positions);
        if let Some((want, found)) = expected.find(|(want, found)| want != *found) {
            return fault("positions", format!("{found} where {want} would follow"));
        }
        let (first, last) = (self.positions[0], self.positions[self.positions.len() - 1]);
        if first < 0 || last >= i64::from(self.length) {
            return fault("positions", format!("{first} to {last} in a sequence of {}", self.length));
        }
        match blocks {
            Some(blocks) => match self.table.iter().find(|&&block| !(0..blocks as i64).contains(&i64::from(block))) {
                Some(block) => fault("tables", format!("page {block} of {blocks}")),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }
}
