//! The paged KV cache as kernels address it.
mod run;

use std::mem::offset_of;

use atomc_artifact::abi;
use atomc_ir::layout::CacheLayout;
use atomc_ir::{CacheType, Diagnostic, Graph, Op, Value};

use crate::code::{Code, Int, Ptr, Vector};
use crate::row::{At, Col, Rows, unsupported};

/// The fields of the step's [`abi::Batch`].
#[derive(Clone, Copy)]
pub struct Batch<'c> {
    pub positions: Ptr<'c>,
    pub sequences: Ptr<'c>,
    pub tables: Ptr<'c>,
    pub table_stride: Int<'c>,
    pub tiles: Ptr<'c>,
    pub tile_count: Int<'c>,
    /// Bytes from one page to the next.
    pub block_stride: Int<'c>,
}

impl<'c> Batch<'c> {
    pub fn load(c: &Code<'c>, p: Ptr<'c>) -> Batch<'c> {
        let number = |offset: usize| c.as_int(c.load_fixed(c.index, c.at(p, offset), 8));
        let list = |offset: usize| c.load_ptr(c.at(p, offset));
        Batch {
            positions: list(offset_of!(abi::Batch, positions)),
            sequences: list(offset_of!(abi::Batch, sequences)),
            tables: list(offset_of!(abi::Batch, tables)),
            table_stride: number(offset_of!(abi::Batch, table_stride)),
            tiles: list(offset_of!(abi::Batch, tiles)),
            tile_count: number(offset_of!(abi::Batch, tile_count)),
            block_stride: number(offset_of!(abi::Batch, block_stride)),
        }
    }

    /// The block table of a token's sequence.
    pub fn table(&self, c: &Code<'c>, token: Int<'c>) -> Ptr<'c> {
        let sequence = c.load_index(self.sequences, token);
        c.at(self.tables, sequence * self.table_stride * 4)
    }
}

/// One layer's cache, and the key and value that the kernel writes into it.
pub struct Cache<'c> {
    pub ty: CacheType,
    pub layout: CacheLayout,
    pub k: Ptr<'c>,
    pub v: Ptr<'c>,
    pub batch: Batch<'c>,
    /// The key and value that the kernel writes, if it does.
    written: Option<Written>,
    /// Tokens of a row that the kernel writes.
    pub every: usize,
}

/// The operands of a write: a key, and a value if it is no part of the key.
#[derive(Clone, Copy)]
pub struct Written {
    pub key: Value,
    pub value: Option<Value>,
}

/// Where one token's entry is.
#[derive(Clone, Copy)]
pub struct Slot<'c> {
    block: Int<'c>,
    offset: Int<'c>,
}

/// Keys and values of one head that follow each other as in a block, and which token of them is
/// meant.
#[derive(Clone, Copy)]
pub struct Entry<'c> {
    pub k: Ptr<'c>,
    pub v: Ptr<'c>,
    /// The number of tokens.
    pub tokens: usize,
    pub offset: Int<'c>,
}

impl<'c> Cache<'c> {
    pub fn new(
        c: &Code<'c>,
        graph: &Graph,
        state: Value,
        ty: CacheType,
        (k, v): (Ptr<'c>, Ptr<'c>),
        batch: Option<Batch<'c>>,
    ) -> Result<Cache<'c>, Diagnostic> {
        let batch = batch.ok_or_else(|| unsupported("a cache without a batch"))?;
        let written = graph.users(state).into_iter().find_map(|(id, _)| {
            let operands = graph.operands(id);
            match graph.op(id) {
                Op::KvWrite {} => Some(Written { key: operands[1], value: Some(operands[2]) }),
                Op::KeyWrite { .. } => Some(Written { key: operands[1], value: None }),
                _ => None,
            }
        });
        let of_row = |(id, _)| if let Op::KeyWrite { every, .. } = graph.op(id) { *every } else { None };
        let every = graph.users(state).into_iter().find_map(of_row).unwrap_or(1);
        Ok(Cache { ty, layout: CacheLayout::of(ty, &c.arch.memory), k, v, batch, written, every })
    }

    /// The block and the offset inside it of a token.
    pub fn slot(&self, c: &Code<'c>, token: Int<'c>) -> Slot<'c> {
        let position = c.load_index(self.batch.positions, token);
        self.slot_at(c, self.batch.table(c, token), position)
    }

    /// Runs `body` with the place of a token's entry. The last token of an entry writes it.
    pub fn when_written<R>(&self, c: &Code<'c>, token: Int<'c>, body: impl FnOnce(Slot<'c>) -> R) -> R {
        if self.every == 1 {
            return body(self.slot(c, token));
        }
        let position = c.load_index(self.batch.positions, token);
        c.when(c.equal((position + 1) % self.every, 0), || {
            body(self.slot_at(c, self.batch.table(c, token), position / self.every))
        })
    }

    /// The block and the offset inside it of a position, by its sequence's table.
    pub fn slot_at(&self, c: &Code<'c>, table: Ptr<'c>, position: Int<'c>) -> Slot<'c> {
        let block = c.load_index(table, position / self.layout.block_tokens);
        Slot { block, offset: position % self.layout.block_tokens }
    }

    /// The bytes of a head's block at which the first group of a token's key begins.
    pub fn key_row(&self, c: &Code<'c>, offset: Int<'c>) -> Int<'c> {
        let (panel, size) = (c.arch.memory.panel, self.ty.dtype.size());
        offset / panel * (panel * self.layout.dim * size) + offset % panel * (self.layout.group * size)
    }

    /// The bytes of a head's block at which the first number of a token's value is.
    pub fn value_row(&self, c: &Code<'c>, offset: Int<'c>) -> Int<'c> {
        let (panel, size, group) = (c.arch.memory.panel, self.ty.dtype.size(), self.layout.group);
        offset / group * (panel * group * size) + offset % group * size
    }

    /// The bytes of K at which a head's key of a slot begins.
    pub fn key_at(&self, c: &Code<'c>, slot: Slot<'c>, head: Int<'c>) -> Int<'c> {
        let [key, _] = self.head(c, slot.block, head);
        key + c.to_i64(self.key_row(c, slot.offset))
    }

    /// The bytes of V at which the first number of a head's value of a slot is.
    pub fn value_at(&self, c: &Code<'c>, slot: Slot<'c>, head: Int<'c>) -> Int<'c> {
        let [_, value] = self.head(c, slot.block, head);
        value + c.to_i64(self.value_row(c, slot.offset))
    }

    /// The bytes of a block at which a head begins in K and in V. Caches may be larger than 32 bits
    /// can address, a page is not.
    pub fn head(&self, c: &Code<'c>, block: Int<'c>, head: Int<'c>) -> [Int<'c>; 2] {
        let page = c.to_i64(block) * c.to_i64(self.batch.block_stride);
        let CacheLayout { head_bytes, value_bytes, .. } = self.layout;
        let keys = page + c.to_i64(head * head_bytes);
        [keys, if value_bytes == head_bytes { keys } else { page + c.to_i64(head * value_bytes) }]
    }

    /// Writes one head of a token's key and value, by one thread.
    pub fn write(&self, rows: &Rows<'_, 'c>, row: Int<'c>, head: Int<'c>, slot: Slot<'c>) -> Result<(), Diagnostic> {
        self.prepare(rows, row, head)?;
        let cols = (0..self.width()).step_by(rows.code.lanes());
        cols.into_iter().try_for_each(|col| self.write_part(rows, row, head, slot, Col::Const(col)))
    }

    /// Computes the statistics of a row that are needed before parts of it can be written.
    pub fn prepare(&self, rows: &Rows<'_, 'c>, row: Int<'c>, head: Int<'c>) -> Result<(), Diagnostic> {
        let Some(Written { key, value }) = self.written else { return Ok(()) };
        rows.prepare(key, row, Some(head))?;
        value.map_or(Ok(()), |value| rows.prepare(value, row, Some(head)))
    }

    /// Columns of a key or a value, whichever has more.
    pub fn width(&self) -> usize {
        self.ty.head_dim.max(self.ty.value_dim)
    }

    /// A token's entry for a head in its block.
    pub fn entry(&self, c: &Code<'c>, slot: Slot<'c>, head: Int<'c>) -> Entry<'c> {
        let [keys, values] = self.head(c, slot.block, head);
        let (k, v) = (c.at(self.k, keys), c.at(self.v, values));
        Entry { k, v, tokens: self.layout.block_tokens, offset: slot.offset }
    }

    /// Writes a vector of a head of a token's key and value.
    pub fn write_part(
        &self,
        rows: &Rows<'_, 'c>,
        row: Int<'c>,
        head: Int<'c>,
        slot: Slot<'c>,
        col: Col<'c>,
    ) -> Result<(), Diagnostic> {
        self.write_part_to(rows, row, head, self.entry(rows.code, slot, head), col)
    }

    /// Writes a part of a key and value to another entry.
    pub fn write_part_to(
        &self,
        rows: &Rows<'_, 'c>,
        row: Int<'c>,
        head: Int<'c>,
        entry: Entry<'c>,
        col: Col<'c>,
    ) -> Result<(), Diagnostic> {
        let Some(Written { key, value }) = self.written else { return Ok(()) };
        let (c, CacheType { head_dim, value_dim, .. }) = (rows.code, self.ty);
        let eval = |v: Value, width: usize| {
            let lanes = rows.eval(v, At { row, head: Some(head), col })?;
            Ok::<_, Diagnostic>(match col {
                Col::Const(col) if width.saturating_sub(col) < c.lanes() => {
                    c.choose(c.lanes_below(width.saturating_sub(col)), lanes, c.zero())
                }
                _ => lanes,
            })
        };
        let at = rows.column(col);
        let Some(value) = value.filter(|_| head_dim == value_dim) else {
            let parts = [(Some(key), head_dim), (value, value_dim)];
            for (is_key, (v, width)) in [true, false].into_iter().zip(parts) {
                let Some(v) = v else { continue };
                let mut made = Ok(());
                let mut write = || {
                    made = eval(v, width).map(|lanes| match is_key {
                        true => self.write_key(c, c.narrow(lanes, self.ty.dtype), entry, at),
                        false => self.write_value(c, c.narrow(lanes, self.ty.dtype), entry, at),
                    });
                };
                match col {
                    Col::Const(col) if col >= width => {}
                    Col::Var(_) if width < self.width() => c.when(c.less(at, width), write),
                    _ => write(),
                }
                made?;
            }
            return Ok(());
        };
        // A store may overwrite what a later load reads, so all loads come first.
        let made = [eval(key, head_dim)?, eval(value, value_dim)?];
        self.put(c, made, entry, at);
        Ok(())
    }

    /// Stores a vector of a key and a value.
    pub fn put(&self, c: &Code<'c>, made: [Vector<'c>; 2], entry: Entry<'c>, col: Int<'c>) {
        let [key, value] = made.map(|lanes| c.narrow(lanes, self.ty.dtype));
        self.write_key(c, key, entry, col);
        self.write_value(c, value, entry, col);
    }

    /// A vector of a key, followed by the padding after the last one. A query has zeros there, and
    /// zeros must meet numbers.
    fn write_key(&self, c: &Code<'c>, lanes: Vector<'c>, entry: Entry<'c>, col: Int<'c>) {
        self.put_key(c, lanes, entry, col);
        let end = self.ty.head_dim.next_multiple_of(c.lanes());
        if end < self.layout.dim {
            c.when(c.equal(col, end - c.lanes()), || {
                let zeros = |col| self.put_key(c, c.narrow(c.zero(), self.ty.dtype), entry, c.int(col));
                (end..self.layout.dim).step_by(c.lanes()).for_each(zeros);
            });
        }
    }

    /// Groups of columns, a panel's width apart, or a part of one group.
    fn put_key(&self, c: &Code<'c>, lanes: Vector<'c>, entry: Entry<'c>, col: Int<'c>) {
        let (m, size) = (c.arch.memory, self.ty.dtype.size());
        let (group, bytes) = (self.layout.group, c.lanes() * size);
        let group_bytes = group * size;
        let row = self.key_row(c, entry.offset);
        let groups = col / group * (m.panel * group_bytes);
        let inside = if bytes < group_bytes { col % group * size } else { c.int(0) };
        let p = c.at(entry.k, row + (groups + inside));
        let part_bytes = bytes.min(group_bytes);
        let part = c.bytes_type(part_bytes);
        let parts = c.bitcast(lanes, c.ints(part, bytes / part_bytes)).into_vector_value();
        for g in 0..bytes / part_bytes {
            c.store(c.at(p, g * m.panel * group_bytes), c.lane(parts, g), part_bytes.min(16) as u32);
        }
    }

    /// Stores the vector's elements one by one, a group apart: they are in different rows of one
    /// panel.
    fn write_value(&self, c: &Code<'c>, lanes: Vector<'c>, entry: Entry<'c>, col: Int<'c>) {
        let (l, size, panel) = (&self.layout, self.ty.dtype.size(), c.arch.memory.panel);
        let row = self.value_row(c, entry.offset);
        let panels = col / panel * (panel * entry.tokens * size);
        let rows = col % panel * (l.group * size);
        let p = c.at(entry.v, row + (panels + rows));
        for i in 0..c.lanes() {
            c.store(c.at(p, i * l.group * size), c.lane(lanes, i), size as u32);
        }
    }
}
