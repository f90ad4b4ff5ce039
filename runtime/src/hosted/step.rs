//! The tensors of a framework's step, if they are in the host's memory.
use super::{HostedError, Pages};
use crate::batch::Inputs;
use crate::kv::Kept;
use atomc_artifact::abi::Prepare;
use std::iter::repeat_n;
use std::slice;

/// The inputs of a step, by the addresses of a framework's tensors. Tokens lie one sequence after
/// the other.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// `i32 [tokens]`
    pub ids: *const i32,
    /// `i64 [tokens]`: position of each token in its sequence.
    pub positions: *const i64,
    /// `i32 [sequences + 1]`: the first token of each sequence, and the end of the last one. Tokens
    /// from there on are padding; sequences without tokens are none.
    pub starts: *const i32,
    /// `i32 [sequences]`: length of each sequence after this step.
    pub lengths: *const i32,
    /// The tables of the states that the step has, the model's or its draft's, in the order in
    /// which pages were bound. None if the caller does the attention.
    pub tables: &'a [Table],
    /// Rows of `lengths` and of each table; at least one.
    pub sequences: usize,
    /// Entries of `ids` and of `positions`, with padding.
    pub tokens: usize,
    /// Most tokens of a sequence, if they are few: 1 in a decode step. 0 if it is not known.
    pub each: usize,
    /// Whether it is a step of the draft. Its tokens take the rows of [`Hosted::drafted`].
    ///
    /// [`Hosted::drafted`]: super::Hosted::drafted
    pub draft: bool,
    /// Whether other rows replace the tokens' embeddings, when
    /// [`atomc_artifact::manifest::Work::Embedding`] is due. The tokens have to be in the
    /// vocabulary all the same.
    pub embedded: bool,
}

/// The numbers of sequences' pages, or of their slots.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// `i32 [sequences, stride]`: the pages of each sequence, in order of position. Pages that the
    /// windows of all layers of the table have left may be any valid page. Of slots the first entry
    /// is the sequence's, which no other one of the step has, or -1: then its state is not kept.
    pub pages: *const i32,
    /// Entries from one sequence to the next.
    pub stride: usize,
}

impl Table {
    /// The first pages of a sequence.
    ///
    /// # Safety
    /// The table has a row for the sequence, which is not written meanwhile.
    unsafe fn of<'a>(&self, sequence: usize, pages: usize) -> &'a [i32] {
        // SAFETY: passed on to the caller.
        unsafe { slice::from_raw_parts(self.pages.add(sequence * self.stride), pages) }
    }
}

/// The limits of a step.
#[derive(Clone, Debug)]
pub(super) struct Limits<'a> {
    pub vocab: usize,
    pub max_positions: usize,
    pub block_tokens: usize,
    /// Tables that are bound before those of the batch.
    pub before: usize,
    /// The pages of each table of the batch, and what they keep of a sequence.
    pub tables: &'a [Pages],
    pub kept: Vec<Kept>,
}

/// Tokens of one sequence.
struct Run<'a> {
    number: usize,
    ids: &'a [i32],
    positions: &'a [i64],
    length: i32,
    /// Pages that the sequence has in each table that has such.
    pages: usize,
}

impl Batch<'_> {
    /// The parameters with which the device makes the step's inputs, with a table.
    pub(super) fn prepare(&self, table: usize, inputs: Prepare) -> Prepare {
        let Batch { ids, positions, starts, lengths, .. } = *self;
        let (sequences, tokens) = (self.sequences as i64, self.tokens as i64);
        let none = Table { pages: std::ptr::null(), stride: 0 };
        let Table { pages: tables, stride } = self.tables.get(table).copied().unwrap_or(none);
        let table_stride = stride as i64;
        Prepare { ids, positions, starts, lengths, tables, table_stride, sequences, tokens, ..inputs }
    }

    /// Puts the step into the inputs and calls `fresh` with the table and the number of each page
    /// that gets its first token.
    ///
    /// # Safety
    /// The tensors have the sizes above and are not written meanwhile.
    pub(super) unsafe fn fill(
        &self,
        inputs: &mut Inputs,
        limits: &Limits,
        mut fresh: impl FnMut(usize, usize),
    ) -> Result<(), HostedError> {
        inputs.clear();
        for number in 0..self.sequences {
            // SAFETY: passed on to the caller.
            let Some(run) = (unsafe { self.sequence(number, limits) })? else { continue };
            run.check(limits)?;
            // SAFETY: the table's entries are in its row; this was checked before.
            let table = |(table, &kept): (&Table, _)| unsafe { table.of(number, run.entries(kept)) };
            let tables = self.tables.iter().zip(&limits.kept).map(table);
            tables.clone().enumerate().try_for_each(|(at, pages)| run.check_table(pages, limits, at))?;
            // SAFETY: the same numbers; none of them is negative.
            let ids = unsafe { slice::from_raw_parts(run.ids.as_ptr().cast::<u32>(), run.ids.len()) };
            let position = run.positions[0] as usize;
            let none: &[i32] = &[];
            let all = repeat_n(none, limits.before).chain(tables.clone());
            inputs.push(ids, position, run.length as usize, all);
            let first = position.div_ceil(limits.block_tokens).min(run.pages);
            for (table, pages) in tables.enumerate().filter(|(table, _)| !limits.kept[*table].is_slots()) {
                pages[first..].iter().for_each(|&block| fresh(limits.before + table, block as usize));
            }
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
        if self.each > 0 && count > self.each {
            return Err(fault("each", format!("{count} tokens in a step of at most {} of a sequence", self.each)));
        }
        // SAFETY: below the number of sequences.
        let length = unsafe { *self.lengths.add(number) };
        let pages = (length.max(0) as usize).div_ceil(limits.block_tokens);
        // SAFETY: the tokens are before the last start.
        let (ids, positions) = unsafe {
            (slice::from_raw_parts(self.ids.add(start), count), slice::from_raw_parts(self.positions.add(start), count))
        };
        let run = Run { number, ids, positions, length, pages };
        let mut rows = self.tables.iter().zip(&limits.kept).map(|(table, &kept)| (run.entries(kept), table.stride));
        if let Some((pages, stride)) = rows.find(|(pages, stride)| pages > stride) {
            return Err(fault("tables", format!("{pages} pages in tables of {stride}")));
        }
        Ok(Some(run))
    }
}

impl Run<'_> {
    fn check(&self, limits: &Limits) -> Result<(), HostedError> {
        let fault = |field, detail| Err(HostedError::Sequence { sequence: self.number, field, detail });
        let Limits { vocab, max_positions, .. } = *limits;
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
        Ok(())
    }

    /// Entries of a table.
    fn entries(&self, kept: Kept) -> usize {
        if kept.is_slots() { kept.entries() } else { self.pages }
    }

    /// Checks that the pages named by a table exist.
    fn check_table(&self, pages: &[i32], limits: &Limits, table: usize) -> Result<(), HostedError> {
        let (blocks, none) = (limits.tables[table].blocks, if limits.kept[table].is_slots() { -1 } else { 0 });
        match pages.iter().find(|&&block| !(none..blocks as i64).contains(&i64::from(block))) {
            Some(block) => {
                let (sequence, detail) = (self.number, format!("page {block} of {blocks}"));
                Err(HostedError::Sequence { sequence, field: "tables", detail })
            }
            None => Ok(()),
        }
    }
}
