//! Family `group`: which rows each expert has. One task: a few instructions for each row.
use atomc_artifact::manifest;
use atomc_ir::layout::Groups;
use atomc_ir::{Diagnostic, Op};

use super::{Host, signature};
use crate::code::{Code, Int, Ptr};
use crate::{KernelSpec, Tasks};

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let node = kernel.the("group", |op| matches!(op, Op::Group { .. }))?;
    let Op::Group { experts, tile } = *kernel.rows.graph.op(node.node) else { unreachable!("just matched") };
    let (_, out) = kernel.output()?;
    let from = kernel.rows.index(kernel.rows.graph.operands(node.node)[0])?;
    let pairs = signature::step(c).0 * out.ty.choices();
    let (first, end) = signature::tasks(c);
    kernel.each(first, end, |_| {
        group(c, from, out.ptr, pairs, (experts, tile));
        Ok(())
    })?;
    Ok(manifest::Kernel::host(Tasks::Fixed(1), Sorted::bytes(experts)))
}

/// Numbers of rows of each expert, and of none, in scratch.
pub struct Sorted<'a, 'c> {
    c: &'a Code<'c>,
    experts: usize,
    counts: Ptr<'c>,
}

impl<'a, 'c> Sorted<'a, 'c> {
    /// Bytes that they take.
    pub fn bytes(experts: usize) -> usize {
        (4 * (experts + 1)).next_multiple_of(64)
    }

    /// Counts the rows of each expert, of `pairs` in all.
    pub fn count(c: &'a Code<'c>, counts: Ptr<'c>, from: Ptr<'c>, pairs: Int<'c>, experts: usize) -> Sorted<'a, 'c> {
        let sorted = Sorted { c, experts, counts };
        c.repeat(0, experts + 1, 1, |place| sorted.set(place, c.int(0)));
        c.repeat(0, pairs, 1, |pair| {
            let place = sorted.place(from, pair);
            sorted.set(place, sorted.get(place) + 1);
        });
        sorted
    }

    /// The place of a row's expert; those that have none come last.
    pub fn place(&self, from: Ptr<'c>, pair: Int<'c>) -> Int<'c> {
        let c = self.c;
        let expert = c.load_made_index(from, pair);
        // As an unsigned number, a negative one is above all experts.
        let known = c.compare(inkwell::IntPredicate::ULT, expert, self.experts);
        c.pick_int(known, expert, self.experts)
    }

    pub fn get(&self, place: Int<'c>) -> Int<'c> {
        self.c.load_made_index(self.counts, place)
    }

    pub fn set(&self, place: Int<'c>, v: Int<'c>) {
        store_word(self.c, self.counts, place, v);
    }
}

/// An index as an i32 of a list.
pub fn store_word<'c>(c: &Code<'c>, list: Ptr<'c>, at: Int<'c>, v: Int<'c>) {
    let word = c.b.build_int_truncate_or_bit_cast(v.v, c.cx.i32_type(), "").expect("an index");
    c.store(c.at(list, at * 4), word, 4);
}

/// Writes [`Groups`] for `pairs` rows.
fn group<'c>(c: &Code<'c>, from: Ptr<'c>, to: Ptr<'c>, pairs: Int<'c>, (experts, tile): (usize, usize)) {
    let even = |n: Int<'c>| (n + (Groups::ALIGN - 1)) / Groups::ALIGN * Groups::ALIGN;
    let most = (pairs + c.smaller(pairs, experts + 1) * (tile - 1)) / tile;
    let blocks_at = even(pairs);
    let (blocks, rows) = (c.at(to, blocks_at * 4), c.at(to, (blocks_at + even(most)) * 4));
    c.repeat(0, pairs, 1, |pair| store_word(c, to, pair, c.load_made_index(from, pair)));
    let sorted = Sorted::count(c, signature::scratch(c), from, pairs, experts);
    let empty = 0 - c.int(1);
    c.repeat(0, most * tile, 1, |row| store_word(c, rows, row, empty));
    let used = c.carry((0, experts + 1, 1), c.int(0), |place, first| {
        let count = sorted.get(place);
        let end = first + (count + (tile - 1)) / tile;
        let expert = c.pick_int(c.less(place, experts), place, 0 - c.int(2));
        c.repeat(first, end, 1, |block| store_word(c, blocks, block, expert));
        sorted.set(place, first * tile);
        end
    });
    c.repeat(used, most, 1, |block| store_word(c, blocks, block, empty));
    c.repeat(0, pairs, 1, |pair| {
        let place = sorted.place(from, pair);
        let row = sorted.get(place);
        store_word(c, rows, row, pair);
        sorted.set(place, row + 1);
    });
}
