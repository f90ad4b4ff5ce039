//! Keys and values of consecutive tokens. In a cache, a run of memory holds several of them for
//! each dimension of a value.
use super::{Cache, Slot, Written};
use crate::code::{Code, Int, Vector};

impl<'c> Cache<'c> {
    /// The key and value that the kernel writes.
    pub fn written(&self) -> Option<Written> {
        self.written
    }

    /// Writes a vector of a token's key, from a column on.
    pub fn write_key_part(&self, c: &Code<'c>, lanes: Vector<'c>, (head, slot): (Int<'c>, Slot<'c>), col: Int<'c>) {
        self.write_key(c, c.narrow(lanes, self.ty.dtype), self.entry(c, slot, head), col);
    }

    /// Writes a vector of a token's value, from a column on.
    pub fn write_value_part(&self, c: &Code<'c>, lanes: Vector<'c>, head: Int<'c>, slot: Slot<'c>, col: Int<'c>) {
        self.write_value(c, c.narrow(lanes, self.ty.dtype), self.entry(c, slot, head), col);
    }

    /// Whether the values of the tokens from `first` on, as many as are in a run, are all of one
    /// run: they follow each other in one sequence, and the first begins one.
    pub fn is_run(&self, c: &Code<'c>, first: Int<'c>) -> Int<'c> {
        let (batch, run) = (&self.batch, self.layout.group);
        let last = first + (run - 1);
        let [begin, end] = [first, last].map(|token| c.load_index(batch.positions, token));
        let [one, other] = [first, last].map(|token| c.load_index(batch.sequences, token));
        let follow = c.equal(end - begin, run - 1) & c.equal(one - other, 0);
        follow & c.equal(begin % run, 0)
    }

    /// Writes the same columns of a run of tokens' values. `slot` is the first token's.
    pub fn write_value_run(&self, c: &Code<'c>, tokens: &[Vector<'c>], head: Int<'c>, slot: Slot<'c>, col: Int<'c>) {
        let (l, size, panel) = (&self.layout, self.ty.dtype.size(), c.arch.memory.panel);
        let group = slot.offset / l.group * (panel * l.group * size);
        let panels = col / panel * (panel * l.block_tokens * size);
        let rows = col % panel * (l.group * size);
        let p = c.at(c.at(self.v, self.head(c, slot.block, head)[1]), group + (panels + rows));
        let bits: Vec<_> = tokens.iter().map(|&lanes| c.narrow(lanes, self.ty.dtype)).collect();
        for i in 0..c.lanes() {
            let put = |run: Vector<'c>, (token, &bits): (usize, &Vector<'c>)| {
                let at = c.cx.i32_type().const_int(token as u64, false);
                c.b.build_insert_element(run, c.lane(bits, i), at, "").expect("an element into a run")
            };
            let run = bits.iter().enumerate().fold(c.ints(c.bytes_type(size), bits.len()).get_undef(), put);
            c.store(c.at(p, i * l.group * size), run, (l.group * size).min(16) as u32);
        }
    }
}
