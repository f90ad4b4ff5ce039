//! Which blocks of the KV cache belong to which sequence.
//!
//! The cache is cut into blocks of a fixed number of tokens. A sequence holds a table of blocks, in order of position; a
//! block may be held by several sequences that begin alike. Only full blocks are shared, and kernels write only behind the
//! end of a sequence, so a shared block is never written and never copied.
use std::ops::Range;

/// A sequence. A stale one, whose sequence was dropped, is recognised as such.
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
    pub sequence: SeqId,
    /// Tokens that it has already: whole blocks. Those behind them are to be computed again.
    pub tokens: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KvError {
    #[error("there is no sequence {sequence}: it was dropped, or belongs to another engine")]
    UnknownSequence { sequence: SeqId },
    #[error(
        "the KV cache is full: {need} more blocks of {block_tokens} tokens are needed, {free} of {blocks} are free"
    )]
    OutOfBlocks { need: usize, free: usize, blocks: usize, block_tokens: usize },
    #[error("cannot share {tokens} tokens of sequence {sequence}, which has {len}")]
    ForkTooLong { sequence: SeqId, tokens: usize, len: usize },
}

/// All sequences and blocks of one cache.
#[derive(Debug)]
pub struct Kv {
    block_tokens: usize,
    /// Most blocks of one sequence.
    table_blocks: usize,
    /// Sequences that hold each block.
    holders: Vec<u32>,
    free: Vec<i32>,
    slots: Vec<Slot>,
    empty: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

#[derive(Debug, Default)]
struct Sequence {
    len: usize,
    blocks: Vec<i32>,
}

impl Kv {
    /// Bytes of the tables here for each block: its holders, and its place among the free.
    pub const BLOCK_BYTES: usize = size_of::<u32>() + size_of::<i32>();

    /// A cache of `blocks` blocks for sequences of at most `max_len` tokens.
    pub fn new(blocks: usize, block_tokens: usize, max_len: usize) -> Kv {
        let free = (0..blocks as i32).rev().collect();
        let table_blocks = max_len.div_ceil(block_tokens).min(blocks);
        Kv { block_tokens, table_blocks, holders: vec![0; blocks], free, slots: Vec::new(), empty: Vec::new() }
    }

    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    pub fn blocks(&self) -> usize {
        self.holders.len()
    }

    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Most blocks that one sequence can have.
    pub fn table_blocks(&self) -> usize {
        self.table_blocks
    }

    /// From the first block that a sequence holds to the last.
    pub fn held(&self) -> Range<usize> {
        let is_held = |holders: &u32| *holders > 0;
        let end = self.holders.iter().rposition(is_held).map_or(0, |last| last + 1);
        self.holders.iter().position(is_held).unwrap_or(end)..end
    }

    /// A new, empty sequence. Its table is allocated here, so that steps need not.
    pub fn add(&mut self) -> SeqId {
        let slot = self.empty.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.sequence = Some(Sequence { len: 0, blocks: Vec::with_capacity(self.table_blocks) });
        SeqId { slot, generation: entry.generation }
    }

    /// A new sequence that begins with the first `tokens` of another, rounded down to whole blocks.
    pub fn fork(&mut self, from: SeqId, tokens: usize) -> Result<Fork, KvError> {
        let parent = self.get(from)?;
        if tokens > parent.len {
            return Err(KvError::ForkTooLong { sequence: from, tokens, len: parent.len });
        }
        let whole = tokens / self.block_tokens;
        let sequence = self.add();
        for index in 0..whole {
            let block = self.get(from)?.blocks[index];
            self.holders[block as usize] += 1;
            self.get_mut(sequence)?.blocks.push(block);
        }
        let tokens = whole * self.block_tokens;
        self.get_mut(sequence)?.len = tokens;
        Ok(Fork { sequence, tokens })
    }

    /// Forgets a sequence and frees the blocks that nobody else holds.
    pub fn drop_sequence(&mut self, id: SeqId) -> Result<(), KvError> {
        self.get(id)?;
        let slot = &mut self.slots[id.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let blocks = slot.sequence.take().map(|sequence| sequence.blocks).unwrap_or_default();
        self.empty.push(id.slot);
        for block in blocks.into_iter().rev() {
            let holders = &mut self.holders[block as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free.push(block);
            }
        }
        Ok(())
    }

    /// Tokens that a sequence has.
    pub fn len(&self, id: SeqId) -> Result<usize, KvError> {
        Ok(self.get(id)?.len)
    }

    /// The blocks of a sequence in order.
    pub fn table(&self, id: SeqId) -> Result<&[i32], KvError> {
        Ok(&self.get(id)?.blocks)
    }

    /// Blocks that a sequence lacks to grow by so many tokens.
    pub fn need(&self, id: SeqId, tokens: usize) -> Result<usize, KvError> {
        let sequence = self.get(id)?;
        Ok((sequence.len + tokens).div_ceil(self.block_tokens) - sequence.blocks.len())
    }

    /// Whether so many blocks are free.
    pub fn reserve(&self, need: usize) -> Result<(), KvError> {
        let (free, blocks) = (self.free.len(), self.holders.len());
        if need > free {
            Err(KvError::OutOfBlocks { need, free, blocks, block_tokens: self.block_tokens })
        } else {
            Ok(())
        }
    }

    /// Lengthens a sequence and gives it the blocks for that, or changes nothing. Returns the positions of the new tokens.
    pub fn grow(&mut self, id: SeqId, tokens: usize) -> Result<Range<usize>, KvError> {
        let need = self.need(id, tokens)?;
        self.reserve(need)?;
        for _ in 0..need {
            let Some(block) = self.free.pop() else { break };
            self.holders[block as usize] = 1;
            self.get_mut(id)?.blocks.push(block);
        }
        let sequence = self.get_mut(id)?;
        let start = sequence.len;
        sequence.len += tokens;
        Ok(start..sequence.len)
    }

    fn get(&self, id: SeqId) -> Result<&Sequence, KvError> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or(KvError::UnknownSequence { sequence: id })
    }

    fn get_mut(&mut self, id: SeqId) -> Result<&mut Sequence, KvError> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_mut()).ok_or(KvError::UnknownSequence { sequence: id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_blocks_and_frees_them() {
        let mut kv = Kv::new(4, 16, 64);
        let a = kv.add();
        assert_eq!(kv.grow(a, 1), Ok(0..1));
        assert_eq!(kv.grow(a, 15), Ok(1..16));
        assert_eq!((kv.table(a).unwrap(), kv.free_blocks()), (&[0][..], 3));
        assert_eq!(kv.grow(a, 17), Ok(16..33));
        assert_eq!((kv.table(a).unwrap(), kv.free_blocks(), kv.held()), (&[0, 1, 2][..], 1, 0..3));
        kv.drop_sequence(a).unwrap();
        assert_eq!(kv.held(), 0..0);
        assert_eq!(kv.free_blocks(), 4);
        assert_eq!(kv.len(a), Err(KvError::UnknownSequence { sequence: a }));
        let b = kv.add();
        assert_ne!(a, b);
        assert_eq!(kv.drop_sequence(a), Err(KvError::UnknownSequence { sequence: a }));
        assert_eq!(SeqId::from_bits(b.to_bits()), b);
    }

    #[test]
    fn is_full_without_change() {
        let mut kv = Kv::new(2, 4, 100);
        let (a, b) = (kv.add(), kv.add());
        kv.grow(a, 3).unwrap();
        let error = kv.grow(b, 5).unwrap_err();
        assert_eq!(error, KvError::OutOfBlocks { need: 2, free: 1, blocks: 2, block_tokens: 4 });
        assert_eq!((kv.len(b), kv.free_blocks()), (Ok(0), 1));
        kv.grow(b, 4).unwrap();
        assert_eq!(kv.table_blocks(), 2);
    }

    #[test]
    fn forks_share_whole_blocks() {
        let mut kv = Kv::new(8, 4, 32);
        let a = kv.add();
        kv.grow(a, 10).unwrap();
        let fork = kv.fork(a, 9).unwrap();
        assert_eq!(fork.tokens, 8);
        assert_eq!(kv.table(fork.sequence).unwrap(), &kv.table(a).unwrap()[..2]);
        kv.grow(fork.sequence, 1).unwrap();
        assert_ne!(kv.table(fork.sequence).unwrap()[2], kv.table(a).unwrap()[2]);
        kv.drop_sequence(a).unwrap();
        assert_eq!(kv.free_blocks(), 5, "the shared blocks stay");
        kv.drop_sequence(fork.sequence).unwrap();
        assert_eq!(kv.free_blocks(), 8);
        let empty = kv.add();
        assert_eq!(kv.fork(empty, 1), Err(KvError::ForkTooLong { sequence: empty, tokens: 1, len: 0 }));
        assert_eq!(kv.fork(empty, 0).unwrap().tokens, 0);
    }

    /// Random adds, forks, growth and drops: every block is either free or in as many tables as its count says.
    #[test]
    fn never_loses_a_block() {
        let mut kv = Kv::new(32, 4, 64);
        let mut alive: Vec<SeqId> = Vec::new();
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = crate::checkpoint::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            state as usize % below
        };
        for _ in 0..5000 {
            match random(4) {
                0 => alive.push(kv.add()),
                1 if !alive.is_empty() => {
                    let from = alive[random(alive.len())];
                    alive.push(kv.fork(from, random(kv.len(from).unwrap() + 1)).unwrap().sequence);
                }
                2 if !alive.is_empty() => _ = kv.grow(alive[random(alive.len())], 1 + random(9)),
                3 if !alive.is_empty() => kv.drop_sequence(alive.swap_remove(random(alive.len()))).unwrap(),
                _ => {}
            }
            let mut holders = vec![0; kv.blocks()];
            alive.iter().flat_map(|&id| kv.table(id).unwrap()).for_each(|&block| holders[block as usize] += 1);
            assert_eq!(holders, kv.holders);
            assert_eq!(holders.iter().filter(|&&n| n == 0).count(), kv.free_blocks());
            assert!(alive.iter().all(|&id| kv.table(id).unwrap().len() == kv.len(id).unwrap().div_ceil(4)));
        }
    }
}
