//! Resuming: where sequences continue that have the beginning of another, or that are taken back.
use super::blocks::Blocks;
use super::{BlockCopy, Fork, Kv, KvError, Mark, SeqId, Sequence, Slot};

/// The point at which a sequence resumes.
#[derive(Clone, Copy)]
struct Resume {
    tokens: usize,
    /// The slot that it begins with, if there are slots and it has any tokens.
    slot: Option<From>,
}

/// The owner of a slot.
#[derive(Clone, Copy)]
enum From {
    /// The other sequence.
    Sequence,
    Snapshot(Mark),
}

impl Kv {
    /// A new sequence that begins with the first `tokens` of another, or with fewer, as [`Fork`]
    /// says. The copies that it needs are on [`Kv::take_copies`].
    pub fn fork(&mut self, from: SeqId, tokens: usize) -> Result<Fork, KvError> {
        let parent = self.get(from)?;
        if parent.broken.is_some() {
            return Err(KvError::Broken { sequence: from });
        }
        if tokens > parent.len {
            return Err(KvError::ForkTooLong { sequence: from, tokens, len: parent.len });
        }
        let resume = self.resume(parent, tokens);
        let sequence = self.add();
        if let Some(slot) = resume.slot {
            self.copy_slot(from, sequence, (slot, resume.tokens))?;
        }
        self.share(from, sequence, resume.tokens)?;
        Ok(Fork { sequence, tokens: resume.tokens })
    }

    /// Takes a sequence back to `tokens` tokens, or to the most before them that it can resume
    /// from; going back to none is always possible. Returns the number that it has then. A broken
    /// sequence, which has kept the tokens before the step that failed, is whole again.
    pub fn rewind(&mut self, id: SeqId, tokens: usize) -> Result<usize, KvError> {
        let sequence = self.get(id)?;
        let &Sequence { len, broken, .. } = sequence;
        if tokens > len {
            return Err(KvError::NotBack { sequence: id, tokens, len });
        }
        if tokens == len && broken.is_none() {
            return Ok(len);
        }
        let wanted = tokens.min(broken.unwrap_or(len));
        let served = self.served(sequence, wanted);
        let tokens = match self.has_slots() {
            true if broken.is_none() && served == wanted && self.has_state(sequence, wanted) => wanted,
            true => match self.mark_before(sequence, wanted) {
                Some(mark) => self.restore(id, mark)?,
                None => 0,
            },
            false => served,
        };
        self.shorten(id, tokens)?;
        self.get_mut(id)?.0.broken = None;
        Ok(tokens)
    }

    /// Takes a sequence back to `len` tokens, after a step that failed. If it has given back blocks
    /// that its next token sees, or its slot has advanced, it cannot go on from there: it is broken
    /// from then on.
    pub fn undo(&mut self, id: SeqId, len: usize) -> Result<(), KvError> {
        let sequence = self.get(id)?;
        if sequence.len <= len {
            return Ok(());
        }
        let stays = len == 0 || !self.has_slots() && self.serves(sequence, len);
        if stays {
            return self.shorten(id, len);
        }
        self.let_marks_go(id, len)?;
        self.spoil(id, len)
    }

    /// Marks a sequence as broken: everything after its first `len` tokens is wrong.
    pub fn spoil(&mut self, id: SeqId, len: usize) -> Result<(), KvError> {
        let (sequence, _) = self.get_mut(id)?;
        sequence.broken = Some(sequence.broken.unwrap_or(len).min(len));
        Ok(())
    }

    /// Tokens by which a sequence may grow until a snapshot of its state is wanted.
    pub fn until_snapshot(&self, id: SeqId) -> usize {
        self.get(id).map_or(usize::MAX, |sequence| self.snapshots.until(sequence.len))
    }

    /// Keeps a snapshot of a sequence's state, if one is wanted after its present tokens and a slot
    /// is free or has an older snapshot. The copy is in [`Kv::take_copies`].
    pub fn keep_snapshot(&mut self, id: SeqId) -> Result<(), KvError> {
        let sequence = self.get(id)?;
        let len = sequence.len;
        let has_one = || sequence.marks.iter().any(|&mark| mark.tokens == len && self.snapshots.is_there(mark));
        if !self.snapshots.wants(len) || has_one() {
            return Ok(());
        }
        self.snapshot(id)
    }

    fn snapshot(&mut self, id: SeqId) -> Result<(), KvError> {
        let len = self.get(id)?.len;
        if self.snapshots.is_full() || self.free_slots() == 0 {
            self.evict();
        }
        if self.free_slots() == 0 {
            return Ok(());
        }
        let units = self.groups.iter_mut().map(|group| if group.is_slots() { group.take() } else { None });
        let mark = self.snapshots.add(len, units);
        let Slot { sequence: Some(sequence), .. } = &mut self.slots[id.slot as usize] else { return Ok(()) };
        for (group, (table, &unit)) in sequence.tables.iter().zip(self.snapshots.units(mark)).enumerate() {
            self.copies.extend(copy(group, self.groups[group].slot(table, len), unit));
        }
        sequence.marks.retain(|&mark| self.snapshots.is_there(mark));
        sequence.marks.push(mark);
        Ok(())
    }

    /// The copies to make before the next step, in this order.
    pub fn take_copies(&mut self) -> std::vec::Drain<'_, BlockCopy> {
        self.copies.drain(..)
    }

    fn has_slots(&self) -> bool {
        self.groups.iter().any(Blocks::is_slots)
    }

    /// Whether a sequence has all pages that a token after the first `tokens` sees.
    fn serves(&self, sequence: &Sequence, tokens: usize) -> bool {
        self.groups.iter().zip(&sequence.tables).all(|(group, table)| group.serves(table, tokens))
    }

    /// The most tokens, up to `tokens`, that a sequence without slots can resume from: it must not
    /// write into a block that others hold.
    fn served(&self, sequence: &Sequence, tokens: usize) -> usize {
        let mut tables = self.groups.iter().zip(&sequence.tables);
        let is_shared = tables.any(|(group, table)| group.is_shared(table, tokens));
        let tokens = if is_shared { self.whole(tokens) } else { tokens };
        if self.serves(sequence, tokens) { tokens } else { 0 }
    }

    /// The most tokens, up to `tokens`, that another sequence can begin with: whole blocks. A page
    /// that these do not fill, because its entries are of several tokens, is copied if one is free.
    fn shareable(&self, tokens: usize) -> usize {
        let blocks = tokens / self.block_tokens * self.block_tokens;
        let has_page = |group: &Blocks| blocks.is_multiple_of(group.block_tokens) || group.free() > 0;
        if self.groups.iter().all(has_page) { blocks } else { self.whole(tokens) }
    }

    /// Tokens of whole blocks of all groups.
    fn whole(&self, tokens: usize) -> usize {
        tokens / self.unit * self.unit
    }

    /// Whether a slot of a sequence has the state behind its first `tokens` tokens.
    pub(super) fn has_state(&self, sequence: &Sequence, tokens: usize) -> bool {
        (sequence.first_state..=sequence.len).contains(&tokens)
    }

    /// The last snapshot of a sequence, up to `tokens` tokens, that it can resume from.
    fn mark_before(&self, sequence: &Sequence, tokens: usize) -> Option<Mark> {
        let fits = |mark: &&Mark| {
            mark.tokens <= tokens && self.snapshots.is_there(**mark) && self.serves(sequence, mark.tokens)
        };
        sequence.marks.iter().rev().find(fits).copied()
    }

    /// The point at which a sequence with the first tokens of another resumes.
    fn resume(&self, parent: &Sequence, tokens: usize) -> Resume {
        const NOTHING: Resume = Resume { tokens: 0, slot: None };
        if !self.has_slots() {
            let tokens = self.shareable(tokens);
            return if self.serves(parent, tokens) { Resume { tokens, slot: None } } else { NOTHING };
        }
        if tokens == 0 || self.free_slots() + self.snapshots.count() < self.ring() {
            return NOTHING;
        }
        // The last block is copied unless it is full.
        let has_page = self.whole(tokens) == tokens || self.free_blocks() > 0;
        if self.has_state(parent, tokens) && self.serves(parent, tokens) && has_page {
            return Resume { tokens, slot: Some(From::Sequence) };
        }
        let mark = self.mark_before(parent, tokens);
        mark.map_or(NOTHING, |mark| Resume { tokens: mark.tokens, slot: Some(From::Snapshot(mark)) })
    }

    /// Gives a new sequence slots of its own in each group; that for the state behind `tokens`
    /// tokens is to become equal to another.
    fn copy_slot(&mut self, from: SeqId, to: SeqId, (slot, tokens): (From, usize)) -> Result<(), KvError> {
        let units: Vec<Option<i32>> = match slot {
            From::Sequence => {
                let tables = self.groups.iter().zip(&self.get(from)?.tables);
                tables.map(|(group, table)| group.slot(table, tokens)).collect()
            }
            From::Snapshot(mark) => {
                self.snapshots.touch(mark);
                self.snapshots.units(mark).to_vec()
            }
        };
        // If no slot is free the snapshot itself is dropped, and its unit becomes the sequence's.
        self.free_slots_of_a_sequence();
        for (number, from) in units.into_iter().enumerate().filter(|(_, from)| from.is_some()) {
            let (sequence, groups) = self.get_mut(to)?;
            let (group, table) = (&mut groups[number], &mut sequence.tables[number]);
            group.extend(table, tokens);
            let to = group.slot(table, tokens);
            self.copies.extend(copy(number, from, to));
        }
        self.get_mut(to)?.0.first_state = tokens;
        Ok(())
    }

    /// Gives a new sequence the pages of the first tokens of another, and its snapshots of them. A
    /// block that these do not fill is copied.
    fn share(&mut self, from: SeqId, to: SeqId, tokens: usize) -> Result<(), KvError> {
        let [from_slot, to_slot] = [from, to].map(|id| id.slot as usize);
        let [Slot { sequence: Some(parent), .. }, Slot { sequence: Some(child), .. }] =
            self.slots.get_disjoint_mut([from_slot, to_slot]).expect("a new sequence has a slot of its own")
        else {
            return Err(KvError::UnknownSequence { sequence: from });
        };
        let pages = self.groups.iter_mut().zip(parent.tables.iter().zip(&mut child.tables)).enumerate();
        for (number, (group, (from, to))) in pages.filter(|(_, (group, _))| !group.is_slots()) {
            let (full, rest) = (tokens / group.block_tokens, tokens % group.block_tokens);
            group.share(from, to, full);
            if let Some(block) = (rest > 0).then(|| group.take()).flatten() {
                self.copies.extend(copy(number, from.entries().get(full).copied(), Some(block)));
                to.push(block);
            }
        }
        child.len = tokens;
        let shared = parent.marks.iter().filter(|mark| mark.tokens <= tokens && self.snapshots.is_there(**mark));
        child.marks.extend(shared);
        child.marks.iter().for_each(|&mark| self.snapshots.hold(mark));
        Ok(())
    }

    /// Has a sequence's slot become equal to a snapshot. Returns the tokens that it is behind.
    fn restore(&mut self, id: SeqId, mark: Mark) -> Result<usize, KvError> {
        self.snapshots.touch(mark);
        for (group, &unit) in self.snapshots.units(mark).iter().enumerate() {
            let to = self.groups[group].slot(&self.get(id)?.tables[group], mark.tokens);
            self.copies.extend(copy(group, unit, to));
        }
        self.get_mut(id)?.0.first_state = mark.tokens;
        Ok(mark.tokens)
    }

    /// Takes back everything that a sequence has after its first `len` tokens.
    fn shorten(&mut self, id: SeqId, len: usize) -> Result<(), KvError> {
        self.let_marks_go(id, len)?;
        let (sequence, groups) = self.get_mut(id)?;
        sequence.len = len;
        sequence.first_state = sequence.first_state.min(len);
        groups.iter_mut().zip(&mut sequence.tables).for_each(|(group, table)| group.shrink(table, len));
        Ok(())
    }

    /// Releases the snapshots of a sequence after its first `len` tokens.
    fn let_marks_go(&mut self, id: SeqId, len: usize) -> Result<(), KvError> {
        while let Some(&mark) = self.get(id)?.marks.last().filter(|mark| mark.tokens > len) {
            self.get_mut(id)?.0.marks.pop();
            self.let_go(mark);
        }
        Ok(())
    }

    /// A sequence holds a snapshot no longer.
    pub(super) fn let_go(&mut self, mark: Mark) {
        let units = self.snapshots.let_go(mark).iter().zip(&mut self.groups);
        units.for_each(|(unit, group)| unit.iter().for_each(|&unit| group.release(unit)));
    }

    /// If no slots are free for a new sequence, the oldest snapshots make place.
    pub(super) fn free_slots_of_a_sequence(&mut self) {
        while self.free_slots() < self.ring() && self.snapshots.count() > 0 {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let units = self.snapshots.evict().iter().zip(&mut self.groups);
        units.for_each(|(unit, group)| unit.iter().for_each(|&unit| group.release(unit)));
    }
}

/// A copy, unless there is nothing to copy or both are the same.
fn copy(group: usize, from: Option<i32>, to: Option<i32>) -> Option<BlockCopy> {
    let (from, to) = (from? as usize, to? as usize);
    (from != to).then_some(BlockCopy { group, from, to })
}
