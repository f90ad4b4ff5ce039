//! Keys and values of listed positions, gathered into blocks as a cache has them.
use super::{Attention, Block};
use crate::code::{Int, Ptr};
use crate::host::LANES;
use crate::kernel::List;

impl<'c> Attention<'_, '_, 'c> {
    /// A block of keys, and one of values, from a position of a list on. After the last one it is
    /// repeated.
    pub fn gather(
        &self,
        block: &Block<'c>,
        list: &List<'c>,
        (table, head): (Ptr<'c>, Int<'c>),
        first: Int<'c>,
    ) -> (Vec<Ptr<'c>>, Vec<Ptr<'c>>) {
        let (c, l, is_prefix) = (self.code(), &self.cache.layout, self.cache.ty.is_prefix);
        let [keys, values] = block.widened;
        c.repeat(0, l.block_tokens, 1, |to| {
            let position = list.position(c, c.smaller(first + to, list.count - 1));
            let slot = self.cache.slot_at(c, table, position);
            self.copy_key(c.at(self.cache.k, self.cache.key_at(c, slot, head)), (keys, to));
            if !is_prefix {
                self.copy_value(c.at(self.cache.v, self.cache.value_at(c, slot, head)), (values, to));
            }
        });
        let keys = vec![keys];
        let values = if is_prefix { self.turned(block, &keys) } else { vec![values] };
        (keys, values)
    }

    /// Copies a key to a place of a block.
    fn copy_key(&self, from: Ptr<'c>, (block, place): (Ptr<'c>, Int<'c>)) {
        let (c, l, size) = (self.code(), &self.cache.layout, self.cache.ty.dtype.size());
        let (group, to) = (l.group * size, c.at(block, self.cache.key_row(c, place)));
        c.repeat(0, l.dim / l.group, 1, |i| {
            let at = i * (LANES * group);
            let word = c.load(c.bytes_type(group), c.at(from, at), group as u32);
            c.store(c.at(to, at), word, group as u32);
        });
    }

    /// Copies a value to a place of a block.
    fn copy_value(&self, from: Ptr<'c>, (block, place): (Ptr<'c>, Int<'c>)) {
        let (c, l, size) = (self.code(), &self.cache.layout, self.cache.ty.dtype.size());
        let to = c.at(block, self.cache.value_row(c, place));
        c.repeat(0, l.value_dim, 1, |col| {
            let at = col / LANES * (LANES * l.block_tokens * size) + col % LANES * (l.group * size);
            c.store(c.at(to, at), c.load(c.bytes_type(size), c.at(from, at), size as u32), size as u32);
        });
    }
}
