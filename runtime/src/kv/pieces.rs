//! The pieces of a sequence that may leave the cache and come back: its pages, and states behind
//! its tokens.
use super::{Kv, KvError, SeqId};

/// A page of a sequence, or a state behind some of its first tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The group.
    pub group: usize,
    /// The first token of the page. Of a state the end of the last whole block before it.
    pub start: usize,
    /// The end of the tokens in the page, or of those that the state is behind.
    pub end: usize,
    /// The page, or the slot, in the memory of the group.
    pub unit: usize,
}

impl Kv {
    /// All pieces that a sequence has. Of states there are those behind its last token and in
    /// snapshots. A broken sequence has none.
    pub fn pieces(&self, id: SeqId) -> Result<Vec<Piece>, KvError> {
        let sequence = self.get(id)?;
        let mut pieces = vec![];
        if sequence.broken.is_some() || sequence.len == 0 {
            return Ok(pieces);
        }
        let len = sequence.len;
        for (number, (group, table)) in self.groups.iter().zip(&sequence.tables).enumerate() {
            if !group.is_slots() {
                pieces.extend(group.pages(table, len).map(|(start, end, unit)| Piece {
                    group: number,
                    start,
                    end,
                    unit,
                }));
                continue;
            }
            let own = group.slot(table, len).filter(|_| self.has_state(sequence, len)).map(|unit| (len, unit));
            let marks = sequence.marks.iter().filter(|mark| mark.tokens != len && self.snapshots.is_there(**mark));
            let kept = marks.filter_map(|&mark| Some((mark.tokens, self.snapshots.units(mark)[number]?)));
            pieces.extend(own.into_iter().chain(kept).map(|(end, unit)| self.state(number, end, unit)));
        }
        Ok(pieces)
    }

    /// Lengthens a sequence, which is new or a fork, to `tokens` tokens that were computed before.
    /// Returns the pieces that it lacks of them, which are to be filled before the next step.
    /// Changes nothing if there is no room.
    pub fn bring(&mut self, id: SeqId, tokens: usize) -> Result<Vec<Piece>, KvError> {
        let sequence = self.get(id)?;
        let before = sequence.len;
        for (group, table) in self.groups.iter().zip(&sequence.tables) {
            debug_assert!(!group.is_shared(table, before), "a fork has its last page for itself");
            group.reserve(group.lacks_to_resume(table, tokens), self.snapshots.count())?;
        }
        if before == 0 {
            self.free_slots_of_a_sequence();
        }
        let (sequence, groups) = self.get_mut(id)?;
        for (group, table) in groups.iter_mut().zip(&mut sequence.tables) {
            group.resume(table, tokens);
        }
        (sequence.len, sequence.first_state) = (tokens, tokens);
        let sequence = self.get(id)?;
        let mut pieces = vec![];
        for (number, (group, table)) in self.groups.iter().zip(&sequence.tables).enumerate() {
            let state = group.slot(table, tokens).map(|unit| self.state(number, tokens, unit));
            let pages = group.pages(table, tokens).filter(|&(_, end, _)| end > before && state.is_none());
            let pages = pages.map(|(start, end, unit)| Piece { group: number, start, end, unit });
            pieces.extend(state.into_iter().chain(pages));
        }
        Ok(pieces)
    }

    /// The state behind `end` tokens, in a slot of a group.
    fn state(&self, group: usize, end: usize, unit: i32) -> Piece {
        Piece { group, start: end / self.block_tokens * self.block_tokens, end, unit: unit as usize }
    }
}
