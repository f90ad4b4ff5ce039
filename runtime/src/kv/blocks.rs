//! The blocks of one group of states: the holders of each, and the free ones.
use super::{Kept, KvError, Sizes};
use std::ops::Range;

/// A sequence's blocks in order of position. Of the first the sequence has given some back: those
/// entries are zero.
#[derive(Debug, Default)]
pub struct Table {
    entries: Vec<i32>,
    /// Slots in the order in which a step takes them, if there are several.
    turned: Vec<i32>,
    given_back: usize,
}

impl Table {
    pub fn entries(&self) -> &[i32] {
        &self.entries
    }

    /// As kernels of the last step take them.
    pub fn of_step(&self) -> &[i32] {
        if self.turned.is_empty() { &self.entries } else { &self.turned }
    }

    pub fn held(&self) -> &[i32] {
        &self.entries[self.given_back..]
    }

    /// Adds a block at the end.
    pub fn push(&mut self, block: i32) {
        self.entries.push(block);
    }
}

/// All blocks of a group.
#[derive(Debug)]
pub struct Blocks {
    /// For slots, all tokens that a sequence may have.
    pub block_tokens: usize,
    kept: Kept,
    /// Keys that a token sees, 0 for all.
    window: usize,
    /// Most blocks that a sequence holds at once, whatever its length.
    most: usize,
    /// Most blocks in the table of a sequence.
    pub table_blocks: usize,
    /// Sequences that hold each block.
    pub holders: Vec<u32>,
    free: Vec<i32>,
}

impl Blocks {
    pub fn new(kept: Kept, Sizes { block_tokens, blocks, slots, max_len, step, .. }: Sizes) -> Blocks {
        let (window, block_tokens, blocks) = match kept {
            Kept::Pages { window, every } => (window, block_tokens * every, kept.units(blocks, slots)),
            Kept::Slots { .. } => (0, max_len.max(1), kept.units(blocks, slots)),
        };
        let whole = max_len.div_ceil(block_tokens) * kept.entries();
        // The keys that all new tokens see together begin and end anywhere in their blocks.
        let seen = (window + step).saturating_sub(1).div_ceil(block_tokens) + 1;
        let most = if window == 0 { whole } else { seen.min(whole) };
        let free = (0..blocks as i32).rev().collect();
        Blocks { block_tokens, kept, window, most, table_blocks: whole, holders: vec![0; blocks], free }
    }

    pub fn is_slots(&self) -> bool {
        self.kept.is_slots()
    }

    /// Slots of a sequence.
    pub fn ring(&self) -> usize {
        self.kept.ring()
    }

    /// The slot for the state behind the first tokens of a sequence, if this is a group of slots.
    pub fn slot(&self, table: &Table, tokens: usize) -> Option<i32> {
        table.entries.get(tokens % self.ring()).copied().filter(|_| self.is_slots())
    }

    /// Entries of a sequence of `len` tokens.
    fn entries(&self, len: usize) -> usize {
        len.div_ceil(self.block_tokens) * self.ring()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn held(&self) -> Range<usize> {
        let is_held = |holders: &u32| *holders > 0;
        let end = self.holders.iter().rposition(is_held).map_or(0, |last| last + 1);
        self.holders.iter().position(is_held).unwrap_or(end)..end
    }

    /// A table with room for all that a sequence may have.
    pub fn table(&self) -> Table {
        let turned = if self.ring() > 1 { self.table_blocks } else { 0 };
        Table { entries: Vec::with_capacity(self.table_blocks), turned: Vec::with_capacity(turned), given_back: 0 }
    }

    /// The first block that the next token of a sequence of `len` tokens sees.
    fn first_seen(&self, len: usize) -> usize {
        self.kept.first_seen(self.block_tokens, len)
    }

    /// Whether all pages are there that a token after the first `tokens` of a sequence sees.
    pub fn serves(&self, table: &Table, tokens: usize) -> bool {
        table.given_back <= self.first_seen(tokens)
    }

    /// Whether tokens after the first `tokens` of a sequence would be written into a block that
    /// others hold too.
    pub fn is_shared(&self, table: &Table, tokens: usize) -> bool {
        let is_inside = !self.is_slots() && !tokens.is_multiple_of(self.block_tokens);
        let block = table.entries.get(tokens / self.block_tokens).filter(|_| is_inside);
        block.is_some_and(|&block| self.holders[block as usize] > 1)
    }

    /// Gives an empty table the first blocks of another.
    pub fn share(&mut self, from: &Table, to: &mut Table, blocks: usize) {
        to.entries.extend_from_slice(&from.entries[..blocks]);
        to.given_back = from.given_back.min(blocks);
        to.held().iter().for_each(|&block| self.holders[block as usize] += 1);
    }

    /// Blocks that a table, or a new one, may lack until the sequence has `len` tokens: those of
    /// all its new tokens, but no more than a sequence holds at once. Blocks that others hold too
    /// are not free when it gives them back.
    pub fn lacks(&self, table: Option<&Table>, len: usize) -> usize {
        let (have, held) = table.map_or((0, &[][..]), |table| (table.entries.len(), table.held()));
        let new = self.entries(len).saturating_sub(have);
        if self.window == 0 {
            return new;
        }
        let own = held.iter().filter(|&&block| self.holders[block as usize] == 1).count();
        new.min(self.most.saturating_sub(own))
    }

    /// Checks that `need` blocks are free; slots count those of snapshots, which can be made free.
    pub fn reserve(&self, need: usize, snapshots: usize) -> Result<(), KvError> {
        let free = self.free.len() + if self.is_slots() { snapshots } else { 0 };
        let (blocks, ring) = (self.holders.len(), self.ring());
        match need > free {
            true if self.is_slots() => {
                Err(KvError::OutOfSlots { need: need / ring, free: free / ring, slots: blocks / ring })
            }
            true => Err(KvError::OutOfBlocks { need, free, blocks, block_tokens: self.block_tokens }),
            false => Ok(()),
        }
    }

    /// Gives a table free blocks for a sequence of `len` tokens.
    pub fn extend(&mut self, table: &mut Table, len: usize) {
        for _ in table.entries.len()..self.entries(len) {
            let Some(block) = self.take() else { break };
            table.entries.push(block);
        }
    }

    /// The pages that a sequence of `len` tokens has: the first token of each, the end of its
    /// tokens, and its number.
    pub fn pages(&self, table: &Table, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (tokens, pages) = (self.block_tokens, len.div_ceil(self.block_tokens).min(table.entries.len()));
        let held = table.given_back.min(pages)..pages;
        let entries = table.entries[held.clone()].iter().zip(held);
        entries.map(move |(&page, index)| (index * tokens, ((index + 1) * tokens).min(len), page as usize))
    }

    /// Blocks that a table lacks so that the sequence resumes after `len` tokens.
    pub fn lacks_to_resume(&self, table: &Table, len: usize) -> usize {
        self.entries(len).saturating_sub(table.entries.len().max(self.first_seen(len)))
    }

    /// Gives a table the blocks that tokens after the first `len` of a sequence see.
    pub fn resume(&mut self, table: &mut Table, len: usize) {
        self.give_back(table, len);
        let seen = self.first_seen(len);
        if table.entries.len() < seen {
            table.entries.resize(seen, 0);
            table.given_back = seen;
        }
        self.extend(table, len);
    }

    /// Puts the slots of a table into the order of a step: that of the state which it goes on from,
    /// and those behind its tokens; the first of them behind the last token if that state alone is
    /// kept.
    pub fn turn(&self, table: &mut Table, step: Range<usize>) {
        let ring = self.ring();
        if ring == 1 {
            return;
        }
        let Table { entries, turned, .. } = table;
        turned.clear();
        turned.extend((0..=ring).map(|behind| entries[(step.start + behind) % ring]));
        if step.len() > ring {
            turned[1] = entries[step.end % ring];
        }
    }

    /// A free block, which is held once from now on.
    pub fn take(&mut self) -> Option<i32> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Takes back the blocks that the next tokens of a sequence of `len` tokens do not see.
    pub fn give_back(&mut self, table: &mut Table, len: usize) {
        let seen = self.first_seen(len).min(table.entries.len());
        for index in table.given_back..seen {
            let block = std::mem::take(&mut table.entries[index]);
            self.release(block);
        }
        table.given_back = table.given_back.max(seen);
    }

    /// Takes back the blocks that a table has for tokens after the first `len`.
    pub fn shrink(&mut self, table: &mut Table, len: usize) {
        table.turned.clear();
        let keep = self.entries(len).min(table.entries.len());
        let held = keep.max(table.given_back);
        table.entries[held..].iter().rev().for_each(|&block| self.release(block));
        table.entries.truncate(keep);
        table.given_back = table.given_back.min(keep);
    }

    /// Takes back all blocks of a table.
    pub fn take_back(&mut self, table: Table) {
        table.held().iter().rev().for_each(|&block| self.release(block));
    }

    /// One sequence, or a snapshot, holds a block no longer.
    pub fn release(&mut self, block: i32) {
        let holders = &mut self.holders[block as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(block);
        }
    }
}
