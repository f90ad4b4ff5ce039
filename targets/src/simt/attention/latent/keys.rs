//! Keys on their way into local memory, and out of it as both products take them.
use super::Group;
use super::shape::{EIGHT, GROUP_PITCH, SIDE};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, VEC16};

/// What is under way while a turn begins: its keys as they are stored, and the blocks of the next
/// turn and of the one behind it.
pub struct Ahead<'c> {
    keys: Vec<Vector<'c>>,
    blocks: [Int<'c>; 2],
}

impl<'c> Ahead<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        self.blocks.iter().map(|&v| v.into()).chain(self.keys.iter().map(|&v| v.into())).collect()
    }

    pub fn of(c: &Gpu<'c>, carried: &[Any<'c>]) -> Ahead<'c> {
        let keys = carried[2..].iter().map(|v| v.into_vector_value()).collect();
        Ahead { keys, blocks: [c.as_int(carried[0]), c.as_int(carried[1])] }
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Asks for the first keys.
    pub fn ahead(&self) -> Ahead<'c> {
        let [block, next, behind] = [0, 1, 2].map(|i| self.block(self.begin + i));
        Ahead { keys: self.bring(self.begin, block), blocks: [next, behind] }
    }

    /// Puts a turn's keys where all waves read them, when none reads the last ones any more, and
    /// asks for the next.
    pub fn next_keys(&self, turn: Int<'c>, ahead: Ahead<'c>) -> Ahead<'c> {
        let c = self.code();
        let [next, behind] = ahead.blocks;
        c.barrier();
        self.put(&ahead.keys);
        let keys = self.bring(c.smaller(turn + 1, self.last), next);
        let blocks = [behind, self.block(turn + 3)];
        c.barrier();
        c.keep_order();
        Ahead { keys, blocks }
    }

    /// The block that a turn lies in; behind the last turn, that one's.
    fn block(&self, turn: Int<'c>) -> Int<'c> {
        let (c, turns) = (self.code(), self.a.cache.layout.block_tokens / self.shape.keys());
        c.load_index(self.table, c.smaller(turn, self.last) / turns)
    }

    /// Vectors of a turn's keys, and those that each thread brings.
    fn vec16s(&self) -> usize {
        self.shape.panels * self.shape.groups * SIDE
    }

    /// Loads this thread's vectors of a turn's keys in a block, as they are stored.
    fn bring(&self, turn: Int<'c>, block: Int<'c>) -> Vec<Vector<'c>> {
        let (a, c, threads) = (self.a, self.code(), self.shape.threads);
        let [start, _] = a.turn_in(block, c.int(0), turn, self.shape.keys() / a.span());
        let load = |first: usize| {
            let left = self.vec16s() - first;
            let own = if left < threads { c.smaller(c.thread(), left - 1) } else { c.thread() };
            let lane = c.lane_offset(a.stored.offset(own * VEC16), turn);
            a.stored.load_vec16(c, c.at(c.at(start, a.stored.bytes(first * VEC16)), lane))
        };
        (0..self.vec16s()).step_by(threads).map(load).collect()
    }

    fn put(&self, keys: &[Vector<'c>]) {
        let (c, threads) = (self.code(), self.shape.threads);
        let own = c.thread() / SIDE * GROUP_PITCH + c.thread() % SIDE * VEC16;
        let to = c.at(self.local, own);
        for (i, &key) in keys.iter().enumerate() {
            let store = || {
                let key = self.a.widened(&[key])[0];
                c.store(c.at(to, i * (threads / SIDE * GROUP_PITCH)), key, VEC16 as u32);
            };
            let left = self.vec16s() - i * threads;
            if left < threads { c.when(c.less(c.thread(), left), store) } else { store() }
        }
    }

    /// Where the lane's keys begin in a panel, from a product of columns on.
    pub fn key_lane(&self, panel: Int<'c>, chunk: Int<'c>) -> Ptr<'c> {
        let (c, place) = (self.code(), self.a.place);
        let in_panel = (chunk * 4 + place.part) * GROUP_PITCH + place.row * VEC16;
        c.at(self.local, panel * self.shape.panel_bytes() + in_panel)
    }

    /// The fragment of a panel's keys so many products on.
    pub fn key(&self, lane: Ptr<'c>, panels: usize, chunks: usize) -> Fragment<'c> {
        let at = panels * self.shape.panel_bytes() + chunks * (4 * GROUP_PITCH);
        vec![self.a.matrix.load_vec16(self.code().at(lane, at))]
    }

    /// The lane's dimensions of the values of 32 keys from `keys` on: for each dimension those of
    /// the lane's 8 keys.
    pub fn values(&self, keys: usize) -> Vec<Fragment<'c>> {
        let (c, s, place) = (self.code(), &self.shape, self.a.place);
        let (first, words) = (self.first_dim() + place.row * s.dims, s.dims / 2);
        let key = place.part * EIGHT + keys;
        let panel = key / SIDE * s.panel_bytes() + key % SIDE * VEC16;
        let column = first / EIGHT * GROUP_PITCH + first % EIGHT * 2;
        let lane = c.at(self.local, panel + column);
        let load = |i: usize| c.load_vector(c.cx.i32_type(), words, c.at(lane, i * VEC16), 4 * words);
        let rows: Vec<Vector<'c>> = (0..EIGHT).map(load).collect();
        let word = |row: usize, i: usize| c.as_int(c.lane(rows[row], i));
        let pair = |dim: usize, i: usize| c.pair_halves([word(2 * i, dim / 2), word(2 * i + 1, dim / 2)], dim % 2 == 1);
        let turned = |dim: usize| vec![c.words(&(0..EIGHT / 2).map(|i| pair(dim, i)).collect::<Vec<_>>())];
        (0..s.dims).map(turned).collect()
    }

    /// The first dimension of the wave's.
    pub fn first_dim(&self) -> Int<'c> {
        self.code().wave_index() * (SIDE * self.shape.dims)
    }
}
