//! Keys and values in pages, by their positions, in f32.
use crate::cache::{Cache, Slot};
use crate::code::{Int, Ptr, Vector};
use crate::simt::machine::Gpu;

/// The place of keys in pages.
pub struct Keys<'k, 'c> {
    c: &'k Gpu<'c>,
    cache: &'k Cache<'c>,
    table: Ptr<'c>,
}

impl<'k, 'c> Keys<'k, 'c> {
    /// Those of a token's sequence.
    pub fn of(c: &'k Gpu<'c>, cache: &'k Cache<'c>, token: Int<'c>) -> Keys<'k, 'c> {
        Keys { c, cache, table: cache.batch.table(c, token) }
    }

    /// The place of a position.
    pub fn slot(&self, position: Int<'c>) -> Slot<'c> {
        self.cache.slot_at(self.c, self.table, position)
    }

    /// Bytes from the begin of the cache to the first group of a head's key.
    pub fn key(&self, slot: Slot<'c>, head: Int<'c>) -> Int<'c> {
        self.cache.key_at(self.c, slot, head)
    }

    /// Bytes from the begin of the values to the first number of a head's value.
    pub fn value(&self, slot: Slot<'c>, head: Int<'c>) -> Int<'c> {
        self.cache.value_at(self.c, slot, head)
    }

    /// Columns of a group, and groups of a key.
    pub fn groups(&self) -> (usize, usize) {
        (self.cache.layout.group, self.cache.layout.dim / self.cache.layout.group)
    }

    /// A group of columns of a key, in f32.
    pub fn key_group(&self, key: Int<'c>, group: Int<'c>) -> Vector<'c> {
        let step = self.c.arch.memory.panel * self.cache.layout.group * self.size();
        let from = self.c.at(self.c.at(self.cache.k, key), group * step);
        self.c.load_floats(from, self.cache.ty.dtype)
    }

    /// As many dimensions of a value as a group has columns, in f32.
    pub fn value_group(&self, value: Int<'c>, group: Int<'c>) -> Vector<'c> {
        let (c, l, panel) = (self.c, &self.cache.layout, self.c.arch.memory.panel);
        let first = group * l.group;
        let panels = first / panel * (panel * l.block_tokens * self.size());
        let at = c.at(c.at(self.cache.v, value), panels + first % panel * (l.group * self.size()));
        let number = |i: usize| c.load_number(c.at(at, i * l.group * self.size()), self.cache.ty.dtype).into();
        c.floats(&(0..l.group).map(number).collect::<Vec<_>>())
    }

    fn size(&self) -> usize {
        self.cache.ty.dtype.size()
    }
}
