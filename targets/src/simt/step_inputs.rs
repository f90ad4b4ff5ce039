//! The kernel that makes a step's inputs of a framework's tensors, which stay on the device:
//! [`Prepare`] has its parameters. In its first work-groups a thread makes the entries of one
//! token, or tile, after the other, and finds its sequence by halving. The other work-groups, one
//! for each sequence in each layer, clear the part of a new page that the sequence will read.
//!
//! Tile j of sequence s has the place `starts[s] / 32 + s + j`. No two tiles have the same place,
//! so it also tells the sequence. Places in between are empty: tiles of no tokens.
use std::mem::offset_of;

use atomc_artifact::abi::{self, PREPARE_GROUPS, SPARE_TOKENS, TILE_TOKENS};
use atomc_artifact::manifest;
use atomc_artifact::manifest::PREPARE;
use atomc_ir::arch::GpuArch;
use inkwell::module::Module;

use crate::Tasks;
use crate::code::{Int, Ptr};
use crate::llvm::Llvm;
use crate::simt::machine;
use crate::simt::machine::Gpu;

const THREADS: usize = 256;
/// Bytes that a thread clears at once.
const CLEARED: usize = 16;

/// The kernel as a module. It begins when all earlier kernels have ended, and no later kernel
/// begins before it ends: they read its results before they wait.
pub fn emit<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    let code = machine::open_with_numbers(llvm, PREPARE, arch, 10, 5, THREADS);
    Step::new(&code).run();
    let info = manifest::Kernel::simt(Tasks::Fixed(PREPARE_GROUPS), THREADS);
    (code.finish(), manifest::Kernel { schedule: "step_inputs".into(), ..info })
}

/// The kernel's parameters.
struct Step<'k, 'c> {
    c: &'k Gpu<'c>,
    ids: Ptr<'c>,
    positions: Ptr<'c>,
    starts: Ptr<'c>,
    lengths: Ptr<'c>,
    tables: Ptr<'c>,
    step: Ptr<'c>,
    batch: Ptr<'c>,
    to_ids: Ptr<'c>,
    to_lengths: Ptr<'c>,
    pages: Ptr<'c>,
    table_stride: Int<'c>,
    sequences: Int<'c>,
    tokens: Int<'c>,
    values: Int<'c>,
    value_bytes: Int<'c>,
}

impl<'k, 'c> Step<'k, 'c> {
    fn new(c: &'k Gpu<'c>) -> Step<'k, 'c> {
        let [ids, positions, starts, lengths, tables, step, batch, to_ids, to_lengths, pages] =
            std::array::from_fn(|i| c.argument(i));
        let [table_stride, sequences, tokens, values, value_bytes] = std::array::from_fn(|i| c.number_argument(10 + i));
        let [sequences, tokens, value_bytes] = [sequences, tokens, value_bytes].map(|number| c.to_index(number));
        Step {
            c,
            ids,
            positions,
            starts,
            lengths,
            tables,
            step,
            batch,
            to_ids,
            to_lengths,
            pages,
            table_stride,
            sequences,
            tokens,
            values,
            value_bytes,
        }
    }

    fn run(&self) {
        let c = self.c;
        let clears = c.less(PREPARE_GROUPS - 1, c.group());
        c.when(clears, || self.clear(c.group() - PREPARE_GROUPS));
        c.when(!clears, || self.make());
    }

    /// Clears the values in the page of a sequence's last token, if the page gets its first token
    /// in this step and will not be full. Kernels give tokens that do not exist yet the weight
    /// zero, but zero times the data of an earlier sequence may be NaN.
    fn clear(&self, work: Int<'c>) {
        let (c, block) = (self.c, self.c.arch.memory.block_tokens);
        let [layer, sequence] = c.divide(work, self.sequences);
        let length = c.load_index(self.lengths, sequence);
        let end = c.load_index(self.starts, sequence + 1);
        let before = length - (end - c.load_index(self.starts, sequence));
        let filled = length % block;
        let first = length - filled;
        let fresh = c.less(0, filled) & !c.less(first, before);
        c.when(fresh, || {
            let table = c.at(self.tables, c.to_i64(sequence) * self.table_stride * 4);
            let page = c.load_index(table, first / block);
            let stride = c.load_i64(self.field(offset_of!(abi::Batch, block_stride)));
            let layer = c.load_ptr(c.at(self.pages, layer * 8));
            let values = c.at(c.at(layer, c.to_i64(page) * stride), self.values);
            let none = c.bytes_type(CLEARED).const_zero();
            c.repeat(c.thread() * CLEARED, self.value_bytes, THREADS * CLEARED, |at| {
                c.store(c.at(values, at), none, CLEARED as u32);
            });
        });
    }

    /// Makes the entries.
    fn make(&self) {
        let c = self.c;
        let first = c.group() * THREADS + c.thread();
        let (end, tiles) = (c.load_index(self.starts, self.sequences), self.tiles());
        let lists =
            [offset_of!(abi::Batch, positions), offset_of!(abi::Batch, sequences), offset_of!(abi::Batch, tiles)];
        let [positions, sequences, tile_list] = lists.map(|offset| c.load_ptr(self.field(offset)));
        c.repeat(first, self.tokens + SPARE_TOKENS, PREPARE_GROUPS * THREADS, |token| {
            let to = [self.to_ids, positions, sequences, self.to_lengths];
            let exists = c.less(token, end);
            c.when(exists, || {
                let sequence = self.last(|s| c.load_index(self.starts, s), token);
                let position = c.load_index(self.positions, token * 2);
                let made = [c.load_index(self.ids, token), position, sequence, c.load_index(self.lengths, sequence)];
                to.into_iter().zip(made).for_each(|(to, value)| self.put(to, token, value));
            });
            c.when(!exists, || to.into_iter().for_each(|to| self.put(to, token, c.int(0))));
        });
        c.repeat(first, tiles, PREPARE_GROUPS * THREADS, |tile| {
            let place = |s| c.load_index(self.starts, s) / TILE_TOKENS + s;
            let sequence = self.last(place, tile);
            let inside = (tile - place(sequence)) * TILE_TOKENS;
            let from = c.load_index(self.starts, sequence) + inside;
            let left = c.load_index(self.starts, sequence + 1) - from;
            let count = c.smaller(c.larger(left, 0), TILE_TOKENS);
            let from = c.pick_int(c.less(0, count), from, 0);
            self.put(tile_list, tile * 2, from);
            self.put(tile_list, tile * 2 + 1, count);
        });
        c.when(c.equal(first, 0), || {
            c.store(self.step, c.to_i64(end), 8);
            c.store(self.field(offset_of!(abi::Batch, tables)), self.tables, 8);
            c.store(self.field(offset_of!(abi::Batch, table_stride)), self.table_stride, 8);
            c.store(self.field(offset_of!(abi::Batch, tile_count)), c.to_i64(tiles), 8);
        });
    }

    /// Places for tiles, empty ones among them.
    fn tiles(&self) -> Int<'c> {
        self.tokens / TILE_TOKENS + self.sequences
    }

    /// A field of the batch.
    fn field(&self, offset: usize) -> Ptr<'c> {
        self.c.at(self.batch, offset)
    }

    fn put(&self, list: Ptr<'c>, i: Int<'c>, value: Int<'c>) {
        self.c.store(self.c.at(list, i * 4), value, 4);
    }

    /// The last sequence with a `key` that is not beyond a number. Keys never fall, and the first
    /// is zero.
    fn last(&self, key: impl Fn(Int<'c>) -> Int<'c>, number: Int<'c>) -> Int<'c> {
        let c = self.c;
        let (none, all) = (c.int(0), self.sequences);
        let found = c.for_each((none, c.bits(all), 1), &[none.into(), all.into()], |_, range| {
            let [low, high] = [0, 1].map(|i| c.as_int(range[i]));
            let middle = (low + high) / 2;
            let beyond = c.less(number, key(middle));
            vec![c.pick(beyond, low, middle), c.pick(beyond, middle, high)]
        });
        c.as_int(found[0])
    }
}
