//! Keys of listed positions on their way into local memory. All value teams copy: a thread has one
//! key of the 64, and some of its vectors. Where a key lies is looked up before the block ahead is
//! computed, so no copy waits for its address.
use super::{GROUP, Group, QUERIES, STAGES, TEAM, Tile, VALUE_TEAMS};
use crate::code::Int;
use crate::kernel::List;
use crate::simt::machine::fragment::VEC16;

/// Threads that copy, and those of them that share a key.
const COPIERS: usize = VALUE_TEAMS * TEAM;
const SHARERS: usize = COPIERS / QUERIES;

impl<'c> Group<'_, '_, '_, 'c> {
    /// The place of the thread's key in a turn of 64 entries. After the last entry it is repeated:
    /// its copies have no weight.
    pub(super) fn place_of_key(&self, tile: &Tile<'c>, list: List<'c>, block: Int<'c>) -> Int<'c> {
        let (c, cache) = (self.code(), self.attention.cache);
        let entry = c.smaller(block * QUERIES + (c.thread() - TEAM) % QUERIES, tile.position);
        let position = c.larger(list.position(c, c.larger(entry, 0)), 0);
        let slot = cache.slot_at(c, tile.table, position);
        cache.key_at(c, slot, c.int(0))
    }

    /// Issues the copies of the keys of 64 entries from the thread's place, if there are such
    /// entries. It waits until the turn's place is empty.
    pub(super) fn gather(&self, tile: &Tile<'c>, block: Int<'c>, place: Int<'c>) {
        let (c, cache) = (self.code(), self.attention.cache);
        c.when(c.less(block, tile.end), || {
            let turn = tile.turn + (block - tile.first);
            self.keys.wait_empty(c, turn);
            let thread = c.thread() - TEAM;
            let (key, first) = (thread % QUERIES, thread / QUERIES);
            let from = c.at(c.at(cache.k, place), first * GROUP);
            let to = self.keys.at(turn) + (first * QUERIES + key) * VEC16;
            for vector in (0..self.shape.bytes() / (QUERIES * VEC16)).step_by(SHARERS) {
                c.copy_vec16(to + vector * (QUERIES * VEC16), c.at(from, vector * GROUP));
            }
            c.arrive_behind_copies(self.keys.full(turn));
        });
    }

    /// The keys of a tile's first entries.
    pub(super) fn gather_first(&self, tile: &Tile<'c>) {
        let Some(list) = tile.list else { return };
        let blocks: Vec<Int<'c>> = (0..STAGES).map(|i| tile.first + i).collect();
        let places: Vec<Int<'c>> = blocks.iter().map(|&block| self.place_of_key(tile, list, block)).collect();
        blocks.into_iter().zip(places).for_each(|(block, place)| self.gather(tile, block, place));
    }
}
