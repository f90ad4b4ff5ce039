//! The blocks of one group of states: the holders of each, and the free ones.
use super::{Kept, KvError, Sizes};
use std::ops::Range;

/// A sequence's blocks in order of position. Of the first the sequence has given some back: those
/// entries are zero.
#[derive(Debug, Default)]
pub struct Table {
    entries: Vec<i32>,
    given_back: usize,
}

impl Table {
    pub fn entries(&self) -> &[i32] {
        &self.entries
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
            Kept::Slot => (0, max_len.max(1), slots),
        };
        let whole = max_len.div_ceil(block_tokens);
        // The keys that all new tokens see together begin and end anywhere in their blocks.
        let seen = (window + step).saturating_sub(1).div_ceil(block_tokens) + 1;
        let most = if window == 0 { whole } else { seen.min(whole) };
        let free = (0..blocks as i32).rev().collect();
        Blocks { block_tokens, kept, window, most, table_blocks: whole, holders: vec![0; blocks], free }
    }

    pub fn is_slots(&self) -> bool {
        self.kept == Kept::Slot
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
        Table { entries: Vec::with_capacity(self.table_blocks), given_back: 0 }
    }

    /// The first block that the next token of a sequence of `len` tokens sees.
    fn first_seen(&self, len: usize) -> usize {
        if self.window == 0 { 0 } else { (len + 1).saturating_sub(self.window) / self.block_tokens }
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
        let new = len.div_ceil(self.block_tokens).saturating_sub(have);
        if self.window == 0 {
            return new;
        }
        let own = held.iter().filter(|&&block| self.holders[block as usize] == 1).count();
        new.min(self.most.saturating_sub(own))
    }

    /// Checks that `need` blocks are free; slots count those of snapshots, which can be made free.
    pub fn reserve(&self, need: usize, snapshots: usize) -> Result<(), KvError> {
        let free = self.free.len() + if self.is_slots() { snapshots } else { 0 };
        let blocks = self.holders.len();
        match need > free {
            true if self.is_slots() => Err(KvError::OutOfSlots { need, free, slots: blocks }),
            true => Err(KvError::OutOfBlocks { need, free, blocks, block_tokens: self.block_tokens }),
            false => Ok(()),
        }
    }

    /// Gives a table free blocks for a sequence of `len` tokens.
    pub fn extend(&mut self, table: &mut Table, len: usize) {
        for _ in table.entries.len()..len.div_ceil(self.block_tokens) {
            let Some(block) = self.take() else { break };
            table.entries.push(block);
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
        let keep = len.div_ceil(self.block_tokens).min(table.entries.len());
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
