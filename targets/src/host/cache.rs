//! The paged KV cache as kernels address it.
use atomc_ir::{CacheType, Diagnostic, Graph, Op, Value};

use super::code::{Code, Int, LANES, Ptr, Vector};
use super::row::{At, Col, Rows, unsupported};
use crate::layout::{CacheLayout, cache_layout};

/// The fields of the step's batch structure, in the order of `atomc_artifact::abi::Batch`.
#[derive(Clone, Copy)]
pub struct Batch<'c> {
    pub positions: Ptr<'c>,
    pub sequences: Ptr<'c>,
    pub tables: Ptr<'c>,
    pub table_stride: Int<'c>,
    pub tiles: Ptr<'c>,
}

impl<'c> Batch<'c> {
    pub fn load(c: &Code<'c>, p: Ptr<'c>) -> Batch<'c> {
        let field = |i: usize| c.at(p, c.int(8 * i));
        Batch {
            positions: c.load_ptr(field(0)),
            sequences: c.load_ptr(field(1)),
            tables: c.load_ptr(field(2)),
            table_stride: c.load_i64(field(3)),
            tiles: c.load_ptr(field(4)),
        }
    }

    /// The block table of a token's sequence.
    pub fn table(&self, c: &Code<'c>, token: Int<'c>) -> Ptr<'c> {
        let sequence = c.load_index(self.sequences, token);
        c.at(self.tables, c.mul(c.mul(sequence, self.table_stride), c.int(4)))
    }
}

/// One layer's cache, and what the kernel writes into it.
pub struct Cache<'c> {
    pub ty: CacheType,
    pub layout: CacheLayout,
    pub k: Ptr<'c>,
    pub v: Ptr<'c>,
    pub batch: Batch<'c>,
    /// The key and value operands of the write, if the kernel writes.
    written: Option<(Value, Value)>,
}

/// Where one token's entry is.
#[derive(Clone, Copy)]
pub struct Slot<'c> {
    block: Int<'c>,
    offset: Int<'c>,
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
        let write = graph.users(state).into_iter().find(|(id, _)| matches!(graph.op(*id), Op::KvWrite {}));
        let written = write.map(|(id, _)| {
            let operands = graph.operands(id);
            (operands[1], operands[2])
        });
        Ok(Cache { ty, layout: cache_layout(ty, c.arch), k, v, batch, written })
    }

    /// The block and the offset inside it of a token.
    pub fn slot(&self, c: &Code<'c>, token: Int<'c>) -> Slot<'c> {
        let position = c.load_index(self.batch.positions, token);
        let block = c.load_index(self.batch.table(c, token), c.div(position, self.layout.block_tokens));
        Slot { block, offset: c.rem(position, self.layout.block_tokens) }
    }

    /// Where a head of a block begins, in bytes; the same in K and V.
    pub fn head(&self, c: &Code<'c>, block: Int<'c>, head: Int<'c>) -> Int<'c> {
        let l = &self.layout;
        c.add(c.mul(block, c.int(l.k_block_bytes)), c.mul(head, c.int(l.head_bytes)))
    }

    /// Writes one head of a token's key and value.
    pub fn write(&self, rows: &Rows<'_, 'c>, row: Int<'c>, head: Int<'c>, slot: Slot<'c>) -> Result<(), Diagnostic> {
        let Some((key, value)) = self.written else { return Ok(()) };
        let c = rows.code;
        let first = self.head(c, slot.block, head);
        for (v, is_key) in [(key, true), (value, false)] {
            rows.prepare(v, row, Some(head))?;
            for col in (0..self.ty.head_dim).step_by(LANES) {
                let lanes = rows.eval(v, At { row, head: Some(head), col: Col::Const(col) })?;
                let count = self.ty.head_dim - col;
                let lanes = if count < LANES { c.choose(c.lanes_below(c.int(count)), lanes, c.zero()) } else { lanes };
                let narrow = c.narrow(lanes, self.ty.dtype);
                if is_key {
                    self.write_key(c, narrow, first, col, slot)
                } else {
                    self.write_value(c, narrow, first, col, slot)
                }
            }
        }
        Ok(())
    }

    /// Groups of columns, a panel's width apart.
    fn write_key(&self, c: &Code<'c>, lanes: Vector<'c>, first: Int<'c>, col: usize, slot: Slot<'c>) {
        let (m, size) = (c.arch.memory, self.ty.dtype.size());
        let panel = c.mul(c.div(slot.offset, m.panel), c.int(m.panel * self.layout.dim * size));
        let lane = c.mul(c.rem(slot.offset, m.panel), c.int(m.group_bytes));
        let p = c.at(self.k, c.add(c.add(first, panel), lane));
        let groups = c.bitcast(lanes, c.ints(c.cx.i32_type(), LANES * size / m.group_bytes)).into_vector_value();
        for g in 0..LANES * size / m.group_bytes {
            let at = (col * size / m.group_bytes + g) * m.panel * m.group_bytes;
            c.store(c.at(p, c.int(at)), c.lane(groups, g), 4);
        }
    }

    /// Single elements, a group apart: one panel's rows.
    fn write_value(&self, c: &Code<'c>, lanes: Vector<'c>, first: Int<'c>, col: usize, slot: Slot<'c>) {
        let (l, size) = (&self.layout, self.ty.dtype.size());
        let group = c.mul(c.div(slot.offset, l.group), c.int(LANES * l.group * size));
        let inside = c.mul(c.rem(slot.offset, l.group), c.int(size));
        let p = c.at(self.v, c.add(c.add(first, group), inside));
        for i in 0..LANES {
            let at = (col * l.block_tokens + i * l.group) * size;
            c.store(c.at(p, c.int(at)), c.lane(lanes, i), size as u32);
        }
    }
}
