//! Which blocks of the KV cache belong to which sequence.
//!
//! The cache is cut into blocks of a fixed number of tokens. States of layers that see the same
//! keys are a group, and in each group a sequence holds a table of blocks, in order of position; a
//! block may be held by several sequences that begin alike. Only full blocks are shared, and
//! kernels write only after the end of a sequence, so a shared block is never written and never
//! copied. Where tokens see a window alone, a sequence gives back the blocks that none of its next
//! tokens sees.
//!
//! Only kernels know the inside of a page. The owner of the memory gives the distance between pages
//! (`abi::Batch.block_stride`), so pages of several layers may alternate. The first contents of a
//! page do no harm: the padding of a key is written with it, and the values of a block that is not
//! full are cleared. `abi::Batch` is the same for all kernels. There is one for each table, and a
//! launch is bound to that of its states, so no kernel knows the number of groups.
//!
//! A slot holds the state behind the first tokens of a sequence. A sequence has as many slots as a
//! step verifies tokens of it, so it can be taken back behind each of these. So that others can
//! begin like it, snapshots of its last state are kept after some of its blocks, in slots that no
//! sequence has.
mod blocks;
mod pieces;
mod resume;
mod snapshots;

use crate::states::SLOTS;
use blocks::{Blocks, Table};
pub use pieces::Piece;
use snapshots::{Mark, Snapshots};
use std::ops::Range;

/// A sequence. The id of a sequence that was dropped is recognised as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    slot: u32,
    generation: u32,
}

impl SeqId {
    /// As one number, for interfaces that have no better type.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The reverse of [`SeqId::to_bits`]. Any number is a sequence; one that there is not is
    /// refused when it is used.
    pub fn from_bits(bits: u64) -> SeqId {
        SeqId { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl std::fmt::Display for SeqId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{}.{}", self.slot, self.generation)
    }
}

/// A sequence that shares the beginning of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The new one.
    pub sequence: SeqId,
    /// Tokens that it has already: whole blocks, or none if the next token would see blocks that
    /// were given back. With slots, the tokens that have a known state: all of the other
    /// sequence's, or those before a snapshot. The later ones are to be computed again.
    pub tokens: usize,
}

/// A copy of one block, or slot, of a group to another, to be made before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The group.
    pub group: usize,
    /// The block that stays as it is.
    pub from: usize,
    /// The block that becomes equal.
    pub to: usize,
}

/// Reasons why a call of the cache fails. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum KvError {
    #[error("there is no sequence {sequence}: it was dropped, or belongs to another engine")]
    UnknownSequence { sequence: SeqId },
    #[error(
        "the KV cache is full: {need} more blocks of {block_tokens} tokens are needed, {free} of {blocks} are free"
    )]
    OutOfBlocks { need: usize, free: usize, blocks: usize, block_tokens: usize },
    #[error("no slot is free: {need} more sequences want one, {free} of {slots} are free")]
    OutOfSlots { need: usize, free: usize, slots: usize },
    #[error("sequence {sequence} is of no more use: a step of it failed half way; take it back, or drop it")]
    Broken { sequence: SeqId },
    #[error("cannot share {tokens} tokens of sequence {sequence}, which has {len}")]
    ForkTooLong { sequence: SeqId, tokens: usize, len: usize },
    #[error("cannot take sequence {sequence} back to {tokens} tokens: it has {len}")]
    NotBack { sequence: SeqId, tokens: usize, len: usize },
}

/// The memory of a group for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A page for a number of tokens. A token sees all keys up to its own, or a window of them.
    Pages {
        /// Keys that a token sees; 0 for all.
        window: usize,
        /// Tokens that have an entry together.
        every: usize,
    },
    /// Slots, however long it is.
    Slots {
        /// Their number: tokens of a step up to which the state behind each is kept. The state
        /// behind the first `n` tokens is in slot `n % ring`.
        ring: usize,
    },
}

impl Kept {
    /// Pages of a token each.
    pub const ALL: Kept = Kept::Pages { window: 0, every: 1 };

    /// Tokens that have an entry together.
    pub fn every(self) -> usize {
        if let Kept::Pages { every, .. } = self { every } else { 1 }
    }

    /// Whether it has slots.
    pub fn is_slots(self) -> bool {
        matches!(self, Kept::Slots { .. })
    }

    /// Slots of a sequence; 1 where it has pages.
    pub fn ring(self) -> usize {
        if let Kept::Slots { ring } = self { ring } else { 1 }
    }

    /// Entries of the table of its slots that kernels get: that of the state a step goes on from,
    /// if it is not the only slot, and those behind its tokens.
    pub fn entries(self) -> usize {
        if self.ring() > 1 { self.ring() + 1 } else { 1 }
    }

    /// The first page of `page_tokens` tokens that the next token of a sequence of `len` sees.
    pub fn first_seen(self, page_tokens: usize, len: usize) -> usize {
        match self {
            Kept::Pages { window: window @ 1.., .. } => (len + 1).saturating_sub(window) / page_tokens,
            _ => 0,
        }
    }

    /// Keys that a token sees; 0 for all.
    pub fn window(self) -> usize {
        if let Kept::Pages { window, .. } = self { window } else { 0 }
    }

    /// The number of units, with `blocks` blocks of tokens in the cache and slots for `slots`
    /// sequences. Where entries are of several tokens, [`SLOTS`] sequences at least may end inside
    /// a page.
    pub fn units(self, blocks: usize, slots: usize) -> usize {
        match self {
            Kept::Slots { ring } => slots.saturating_mul(ring),
            Kept::Pages { every: 1, .. } => blocks,
            Kept::Pages { every, .. } => blocks.min(blocks.div_ceil(every) + SLOTS),
        }
    }
}

/// The room of tables.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks of each group that has pages.
    pub blocks: usize,
    /// Sequences that have slots at once, in each group that has such.
    pub slots: usize,
    /// Most tokens of a sequence.
    pub max_len: usize,
    /// Most tokens by which a sequence grows at once.
    pub step: usize,
    /// Tokens from one snapshot of a sequence's slot to the next, in whole blocks.
    pub snapshot_tokens: usize,
    /// Most snapshots at once.
    pub snapshots: usize,
}

/// All sequences and blocks of one cache.
#[derive(Debug)]
pub struct Kv {
    block_tokens: usize,
    /// Tokens of whole blocks of all groups.
    unit: usize,
    blocks: usize,
    groups: Vec<Blocks>,
    slots: Vec<Slot>,
    empty: Vec<u32>,
    snapshots: Snapshots,
    copies: Vec<BlockCopy>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

#[derive(Debug, Default)]
struct Sequence {
    len: usize,
    /// Its slots have the states behind this many tokens, and behind each that it has more.
    first_state: usize,
    /// Tokens before a step that failed half way and cannot be done again.
    broken: Option<usize>,
    /// By group.
    tables: Vec<Table>,
    /// Snapshots of its beginnings, the shortest first.
    marks: Vec<Mark>,
}

impl Kv {
    /// Bytes of the tables here for each block: its holders, and its place among the free.
    pub const BLOCK_BYTES: usize = size_of::<u32>() + size_of::<i32>();

    /// A cache with these groups.
    pub fn new(kept: &[Kept], sizes: Sizes) -> Kv {
        let Sizes { block_tokens, blocks, max_len, slots, .. } = sizes;
        // No sequence is longer than a group without a window can hold.
        let is_whole = kept.iter().any(|kept| matches!(kept, Kept::Pages { window: 0, .. }));
        let held = if is_whole { blocks.saturating_mul(block_tokens) } else { max_len };
        let sizes = Sizes { max_len: max_len.min(held), ..sizes };
        let groups = kept.iter().map(|&kept| Blocks::new(kept, sizes)).collect();
        let units = kept.iter().filter(|kept| kept.is_slots()).map(|kept| kept.units(blocks, slots)).min();
        let most = sizes.snapshots.min(units.unwrap_or(0));
        let snapshots = Snapshots::new(sizes.snapshot_tokens.next_multiple_of(block_tokens), most);
        // Blocks of tokens with an entry have a power of two of them.
        let unit = block_tokens * kept.iter().map(|kept| kept.every()).max().unwrap_or(1);
        Kv { block_tokens, unit, blocks, groups, slots: Vec::new(), empty: Vec::new(), snapshots, copies: Vec::new() }
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Blocks of each group that has pages.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Free blocks of the group that has the fewest.
    pub fn free_blocks(&self) -> usize {
        let pages = self.groups.iter().filter(|group| !group.is_slots());
        pages.map(Blocks::free).min().unwrap_or(self.blocks)
    }

    /// Free slots of the group that has the fewest; none where no group has slots.
    pub fn free_slots(&self) -> usize {
        let slots = self.groups.iter().filter(|group| group.is_slots());
        slots.map(Blocks::free).min().unwrap_or(0)
    }

    /// Slots of a sequence in a group; 1 where no group has slots.
    pub fn ring(&self) -> usize {
        self.groups.iter().map(Blocks::ring).max().unwrap_or(1)
    }

    /// Snapshots that there are, in slots that are not free but become so for a sequence.
    pub fn snapshots(&self) -> usize {
        self.snapshots.count()
    }

    /// Most blocks in a sequence's table of each group.
    pub fn table_blocks(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().map(|group| group.table_blocks)
    }

    /// From the first block of a group that a sequence holds to the last.
    pub fn held(&self, group: usize) -> Range<usize> {
        self.groups[group].held()
    }

    /// A new, empty sequence. Its tables are allocated here, so that steps need not.
    pub fn add(&mut self) -> SeqId {
        let slot = self.empty.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let tables = self.groups.iter().map(Blocks::table).collect();
        let entry = &mut self.slots[slot as usize];
        entry.sequence = Some(Sequence { tables, ..Sequence::default() });
        SeqId { slot, generation: entry.generation }
    }

    /// Forgets a sequence and frees the blocks that have no other holder.
    pub fn drop_sequence(&mut self, id: SeqId) -> Result<(), KvError> {
        self.get(id)?;
        let slot = &mut self.slots[id.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let sequence = slot.sequence.take().unwrap_or_default();
        self.empty.push(id.slot);
        sequence.marks.iter().for_each(|&mark| self.let_go(mark));
        self.groups.iter_mut().zip(sequence.tables).for_each(|(group, table)| group.take_back(table));
        Ok(())
    }

    /// Tokens that a sequence has.
    pub fn len(&self, id: SeqId) -> Result<usize, KvError> {
        Ok(self.get(id)?.len)
    }

    /// The blocks of a sequence in each group, in order of position; zero for those that were given
    /// back. Of slots those of the last step, as [`crate::manifest::Slots::each`] says.
    pub fn tables(&self, id: SeqId) -> Result<impl Iterator<Item = &[i32]>, KvError> {
        Ok(self.get(id)?.tables.iter().map(Table::of_step))
    }

    /// Whether sequences, or new ones, have room to grow to the given number of tokens each, all of
    /// them together.
    pub fn has_room(&self, growing: impl Iterator<Item = (Option<SeqId>, usize)> + Clone) -> Result<(), KvError> {
        for (number, group) in self.groups.iter().enumerate() {
            let need = growing.clone().try_fold(0, |need, (id, len)| {
                let table = id.map(|id| Ok(&self.get(id)?.tables[number])).transpose()?;
                Ok(need + group.lacks(table, len))
            })?;
            group.reserve(need, self.snapshots.count())?;
        }
        Ok(())
    }

    /// Checks that sequences can grow by the given numbers of tokens. They give back the blocks
    /// that their next tokens do not see, even if they cannot grow.
    pub fn reserve(&mut self, growing: impl Iterator<Item = (SeqId, usize)> + Clone) -> Result<(), KvError> {
        for (id, _) in growing.clone() {
            let (sequence, groups) = self.get_mut(id)?;
            if sequence.broken.is_some() {
                return Err(KvError::Broken { sequence: id });
            }
            groups.iter_mut().zip(&mut sequence.tables).for_each(|(group, table)| group.give_back(table, sequence.len));
        }
        let len = |id| self.len(id).unwrap_or(0);
        self.has_room(growing.map(|(id, tokens)| (Some(id), len(id) + tokens)))
    }

    /// Lengthens a sequence and gives it the blocks for that, or changes no length. Returns the
    /// positions of the new tokens.
    pub fn grow(&mut self, id: SeqId, tokens: usize) -> Result<Range<usize>, KvError> {
        self.reserve(std::iter::once((id, tokens)))?;
        if self.get(id)?.len == 0 && tokens > 0 {
            self.free_slots_of_a_sequence();
        }
        let ring = self.ring();
        let (sequence, groups) = self.get_mut(id)?;
        let start = sequence.len;
        sequence.len += tokens;
        sequence.first_state = match tokens <= ring {
            true => sequence.first_state.max((sequence.len + 1).saturating_sub(ring)),
            false => sequence.len,
        };
        for (group, table) in groups.iter_mut().zip(&mut sequence.tables) {
            group.extend(table, sequence.len);
            group.turn(table, start..sequence.len);
        }
        Ok(start..sequence.len)
    }

    /// Gives a sequence blocks for `tokens` more tokens, which it does not have yet.
    pub fn make_room(&mut self, id: SeqId, tokens: usize) -> Result<(), KvError> {
        self.reserve(std::iter::once((id, tokens)))?;
        let (sequence, groups) = self.get_mut(id)?;
        let len = sequence.len + tokens;
        groups.iter_mut().zip(&mut sequence.tables).for_each(|(group, table)| group.extend(table, len));
        Ok(())
    }

    fn get(&self, id: SeqId) -> Result<&Sequence, KvError> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or(KvError::UnknownSequence { sequence: id })
    }

    /// A sequence and the groups that its tables are of.
    fn get_mut(&mut self, id: SeqId) -> Result<(&mut Sequence, &mut [Blocks]), KvError> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation);
        let sequence = slot.and_then(|slot| slot.sequence.as_mut()).ok_or(KvError::UnknownSequence { sequence: id })?;
        Ok((sequence, &mut self.groups))
    }
}

#[cfg(test)]
mod tests;
