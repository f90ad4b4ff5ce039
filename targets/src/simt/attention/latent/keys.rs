//! Keys on their way into local memory, and from there as both products take them.
use super::Group;
use super::shape::{EIGHT, GROUP, SIDE, STEP};
use crate::code::{Any, Int, Ptr, Vector};
use crate::simt::gemm::global_to_lds::load_from;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, VEC16};

/// In flight while a turn is computed: the next turn's keys as they are stored, and the places of
/// the keys of that turn and of the one after it.
pub struct Ahead<'c> {
    keys: Vec<Vector<'c>>,
    places: [Places<'c>; 2],
}

/// Where the keys of a turn are: their block, or for each panel the byte at which the key of the
/// thread's row begins.
pub type Places<'c> = Vec<Int<'c>>;

impl<'c> Ahead<'c> {
    pub fn carried(&self) -> Vec<Any<'c>> {
        self.places.iter().flatten().map(|&v| v.into()).chain(self.keys.iter().map(|&v| v.into())).collect()
    }

    /// With `count` places for each of the two turns.
    pub fn of(c: &Gpu<'c>, carried: &[Any<'c>], count: usize) -> Ahead<'c> {
        let keys = carried[2 * count..].iter().map(|v| v.into_vector_value()).collect();
        let places = |turn: usize| carried[turn * count..][..count].iter().map(|&v| c.as_int(v)).collect();
        Ahead { keys, places: [places(0), places(1)] }
    }
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Stores the first keys where all waves read them, and loads the next ones.
    pub fn first_keys(&self) -> Ahead<'c> {
        let [first, next, behind] = [0, 1, 2].map(|i| self.places_of(self.begin + i));
        self.put(self.begin, &self.bring(self.begin, &first));
        Ahead { keys: self.bring(self.after(self.begin, 1), &next), places: [next, behind] }
    }

    /// Stores the keys of the next turn where all waves read them, once none reads this turn's any
    /// more, and loads those of the turn after it.
    pub fn next_keys(&self, turn: Int<'c>, ahead: &Ahead<'c>) -> Ahead<'c> {
        let behind = ahead.places[1].clone();
        let further = self.places_of(turn + 3);
        self.put(turn + 1, &ahead.keys);
        let keys = self.bring(self.after(turn, 2), &behind);
        Ahead { keys, places: [behind, further] }
    }

    /// The turn `turns` turns later, or the last.
    fn after(&self, turn: Int<'c>, turns: usize) -> Int<'c> {
        self.code().smaller(turn + turns, self.last)
    }

    /// How many places the keys of a turn have.
    pub fn places(&self) -> usize {
        if self.list.is_some() { self.shape.panels } else { 1 }
    }

    /// The places of a turn's keys; a turn after the last one has the last one's.
    fn places_of(&self, turn: Int<'c>) -> Places<'c> {
        let (a, c, tokens) = (self.a, self.code(), self.a.cache.layout.block_tokens);
        let turn = c.smaller(turn, self.last);
        let Some(list) = &self.list else {
            return vec![c.load_index(self.table, turn / (tokens / self.shape.keys()))];
        };
        // After the last entry it is repeated: its copies have no weight.
        let place = |panel: usize| {
            let entry = turn * self.shape.keys() + c.thread() % SIDE + panel * SIDE;
            let position = list.position(c, c.larger(c.smaller(entry, self.position), 0));
            a.cache.key_at(c, a.cache.slot_at(c, self.table, c.larger(position, 0)), c.int(0))
        };
        (0..self.shape.panels).map(place).collect()
    }

    /// This thread's vectors of keys that lie where the places say.
    fn gather(&self, places: &[Int<'c>]) -> Vec<Vector<'c>> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (all, words) = (self.vec16s(), a.stored.bytes(VEC16) / 4);
        let load = |first: usize| {
            let vec16 = c.smaller(c.thread() + first, all - 1);
            let (panel, group) = (vec16 / SIDE / s.groups, vec16 / SIDE % s.groups);
            let place = (1..s.panels).fold(places[0], |place, i| c.pick_int(c.equal(panel, i), places[i], place));
            let from = c.at(c.at(a.cache.k, place), group * a.stored.bytes(GROUP));
            c.load_vector(c.cx.i32_type(), words, from, 4 * words)
        };
        (0..all).step_by(s.threads).map(load).collect()
    }

    /// Vectors of a turn's keys, and those of each thread.
    fn vec16s(&self) -> usize {
        self.shape.panels * self.shape.groups * SIDE
    }

    /// Loads this thread's vectors of a turn's keys, as they are stored.
    fn bring(&self, turn: Int<'c>, places: &[Int<'c>]) -> Vec<Vector<'c>> {
        if self.list.is_some() {
            return self.gather(places);
        }
        let (a, c, threads) = (self.a, self.code(), self.shape.threads);
        let [start, _] = a.turn_in(places[0], c.int(0), turn, self.shape.keys() / a.span());
        let (all, words) = (self.vec16s(), a.stored.bytes(VEC16) / 4);
        let lane = |own: Int<'c>| a.stored.offset(own * VEC16);
        let firsts: Vec<usize> = (0..all).step_by(threads).collect();
        let bytes = |first: usize| a.stored.bytes(first * VEC16);
        let load = || {
            let whole: Vec<usize> = (0..all / threads).map(|i| bytes(firsts[i])).collect();
            let mut keys = load_from(c, start, lane(c.thread()), &whole, words);
            for &first in &firsts[whole.len()..] {
                let own = c.smaller(c.thread(), all - first - 1);
                keys.extend(load_from(c, start, lane(own), &[bytes(first)], words));
            }
            keys
        };
        if a.cache.written().is_none() {
            return load();
        }
        // The token's own key is stored by another work-group, perhaps now: its neighbour is loaded
        // in its place.
        let beside = |&first: &usize| {
            let vec16 = c.smaller(c.thread() + first, all - 1);
            let is_own = c.equal(self.key_of(vec16) - self.position % self.shape.keys(), 0);
            let at = lane(c.pick_int(is_own, vec16 ^ 1, vec16));
            load_from(c, start, at, &[0], words).remove(0)
        };
        let is_here = self.is_own_turn(turn);
        let none: Vec<Any<'c>> = vec![c.ints(c.cx.i32_type(), words).const_zero().into(); firsts.len()];
        let any = |keys: Vec<Vector<'c>>| keys.into_iter().map(Any::from).collect::<Vec<_>>();
        let keys = c.change_if(!is_here, &none, |_| any(load()));
        let keys = c.change_if(is_here, &keys, |_| any(firsts.iter().map(beside).collect()));
        keys.into_iter().map(|v| v.into_vector_value()).collect()
    }

    /// Whether a turn is that of the token's own key.
    fn is_own_turn(&self, turn: Int<'c>) -> Int<'c> {
        self.has_own_key() & self.code().equal(turn - self.last, 0)
    }

    /// The key of a turn that a vector is of.
    fn key_of(&self, vec16: Int<'c>) -> Int<'c> {
        vec16 / SIDE / self.shape.groups * SIDE + vec16 % SIDE
    }

    fn put(&self, turn: Int<'c>, keys: &[Vector<'c>]) {
        let (c, threads) = (self.code(), self.shape.threads);
        let keys = if self.a.cache.written().is_some() { self.with_own_key(turn, keys) } else { keys.to_vec() };
        for (i, &key) in keys.iter().enumerate() {
            let store = || {
                let key = self.a.widened(&[key])[0];
                c.store(self.key_place(i * threads), key, VEC16 as u32);
            };
            let left = self.vec16s() - i * threads;
            if left < threads { c.when(c.less(c.thread(), left), store) } else { store() }
        }
    }

    /// A turn's keys, with the token's own taken from local memory.
    fn with_own_key(&self, turn: Int<'c>, keys: &[Vector<'c>]) -> Vec<Vector<'c>> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let is_here = self.is_own_turn(turn);
        let keys: Vec<Any<'c>> = keys.iter().map(|&v| v.into()).collect();
        let own = self.position % s.keys();
        let put = |(i, key): (usize, &Any<'c>)| {
            let vec16 = c.smaller(c.thread() + i * s.threads, self.vec16s() - 1);
            let at = vec16 / SIDE % s.groups * a.stored.bytes(VEC16) + s.own_key();
            let kept = a.stored.load_vec16(c, c.at(self.local, at));
            c.pick(c.equal(self.key_of(vec16) - own, 0), kept, *key)
        };
        let keys = c.change_if(is_here, &keys, |keys| keys.iter().enumerate().map(put).collect());
        keys.into_iter().map(|v| v.into_vector_value()).collect()
    }

    /// The place of this thread's vector, of those from a number on.
    fn key_place(&self, first: usize) -> Ptr<'c> {
        let (c, s) = (self.code(), &self.shape);
        // Where panels have whole lines of groups, all of these are in the same order.
        if s.groups.is_multiple_of(EIGHT) {
            let own = c.at(self.local, place(c.thread() / SIDE, c.thread() % SIDE));
            return c.at(own, first / SIDE * GROUP);
        }
        let vec16 = c.thread() + first;
        let group = vec16 / SIDE;
        let in_panel = place(group % s.groups, vec16 % SIDE);
        c.at(self.local, group / s.groups * s.panel_bytes() + in_panel)
    }

    /// The addresses of the lane's keys in a panel, from a product of columns on: for this product
    /// and for the next.
    pub fn key_lane(&self, panel: Int<'c>, chunk: Int<'c>) -> [Ptr<'c>; 2] {
        let (c, lane) = (self.code(), self.a.place);
        [0, 1].map(|odd| {
            let in_panel = place((chunk + odd) * 4 + lane.part, lane.row);
            c.at(self.local, panel * self.shape.panel_bytes() + in_panel)
        })
    }

    /// The fragment of a panel's keys, `chunks` products further on.
    pub fn key(&self, lane: [Ptr<'c>; 2], panels: usize, chunks: usize) -> Fragment<'c> {
        let at = panels * self.shape.panel_bytes() + chunks / 2 * (2 * 4 * GROUP);
        vec![self.a.matrix.load_vec16(self.code().at(lane[chunks % 2], at))]
    }

    /// The lane's dimensions of the values of a turn as stored, step by step those of 8 keys.
    pub fn values(&self) -> Vec<Vector<'c>> {
        let (c, s, lane) = (self.code(), &self.shape, self.a.place);
        let (first, words) = (self.first_dim() + lane.row * s.dims, s.dims / 2);
        let load = |i: usize| {
            let key = lane.part * EIGHT + i / EIGHT * STEP;
            let panel = key / SIDE * s.panel_bytes() + first % EIGHT * 2;
            // The lane's 8 keys are in one line, in an order that differs from group to group.
            let at = (panel + place(first / EIGHT, key % SIDE)) ^ (i % EIGHT * VEC16);
            c.load_vector(c.cx.i32_type(), words, c.at(self.local, at), 4 * words)
        };
        (0..s.keys() / STEP * EIGHT).map(load).collect()
    }

    /// Dimensions of 8 keys as numbers of 8 keys for each dimension.
    pub fn turned(&self, keys: &[Vector<'c>]) -> Vec<Fragment<'c>> {
        let c = self.code();
        let word = |key: usize, i: usize| c.as_int(c.lane(keys[key], i));
        let pair = |dim: usize, i: usize| c.pair_halves([word(2 * i, dim / 2), word(2 * i + 1, dim / 2)], dim % 2 == 1);
        let turned = |dim: usize| vec![c.words(&(0..EIGHT / 2).map(|i| pair(dim, i)).collect::<Vec<_>>())];
        (0..self.shape.dims).map(turned).collect()
    }

    /// The first dimension of the wave's.
    pub fn first_dim(&self) -> Int<'c> {
        self.code().wave_index() * (SIDE * self.shape.dims)
    }
}

/// The place of a key's vector of a group in a panel.
fn place<'c>(group: Int<'c>, key: Int<'c>) -> Int<'c> {
    group * GROUP + (key ^ (group % EIGHT)) * VEC16
}
