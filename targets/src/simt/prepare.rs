//! The kernel that makes a step's inputs of a framework's tensors, which are on the device and stay there: [`Prepare`] has its
//! parameters. A thread makes the entries of a token, or a tile, after the other; its sequence it finds by halving.
//!
//! Tile j of sequence s has the place `starts[s] / 32 + s + j`, which no other has, and which says whose it is. Places in between are
//! empty: tiles of no tokens.
use atomc_artifact::abi::{SPARE_TOKENS, TILE_TOKENS};
use atomc_artifact::manifest::PREPARE;
use atomc_ir::Arch;
use inkwell::context::Context;
use inkwell::module::Module;

use super::machine;
use crate::code::{Code, Int, Ptr};
use crate::{KernelInfo, Tasks};

const THREADS: usize = 256;
/// Work-groups, which share a step of any size out.
const GROUPS: usize = 8;

/// The kernel as a module. It begins when all before it has ended, and nothing behind it begins earlier than it ends: what it
/// writes, kernels read before they wait.
pub fn emit<'c>(cx: &'c Context, arch: &'c Arch) -> (Module<'c>, KernelInfo) {
    let code = machine::open_with_numbers(cx, PREPARE, arch, (9, 3), THREADS);
    Step::new(&code).run();
    (code.finish(), KernelInfo::simt(Tasks::Fixed(GROUPS), THREADS))
}

/// The kernel's parameters.
struct Step<'k, 'c> {
    c: &'k Code<'c>,
    ids: Ptr<'c>,
    positions: Ptr<'c>,
    starts: Ptr<'c>,
    lengths: Ptr<'c>,
    tables: Ptr<'c>,
    step: Ptr<'c>,
    batch: Ptr<'c>,
    to_ids: Ptr<'c>,
    to_lengths: Ptr<'c>,
    table_stride: Int<'c>,
    sequences: Int<'c>,
    tokens: Int<'c>,
}

impl<'k, 'c> Step<'k, 'c> {
    fn new(c: &'k Code<'c>) -> Step<'k, 'c> {
        let [ids, positions, starts, lengths, tables, step, batch, to_ids, to_lengths] =
            std::array::from_fn(|i| c.argument(i));
        let [table_stride, sequences, tokens] = std::array::from_fn(|i| c.number_argument(9 + i));
        let (sequences, tokens) = (c.to_index(sequences), c.to_index(tokens));
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
            table_stride,
            sequences,
            tokens,
        }
    }

    fn run(&self) {
        let c = self.c;
        let first = c.add(c.mul(c.group(), c.int(THREADS)), c.thread());
        let (end, tiles) = (c.load_index(self.starts, self.sequences), self.tiles());
        let [positions, sequences, tile_list] = [0, 1, 4].map(|i| c.load_ptr(self.field(i)));
        c.repeat(first, c.add(self.tokens, c.int(SPARE_TOKENS)), GROUPS * THREADS, |token| {
            let to = [self.to_ids, positions, sequences, self.to_lengths];
            let exists = c.less(token, end);
            c.when(exists, || {
                let sequence = self.last(|s| c.load_index(self.starts, s), token);
                let position = c.load_index(self.positions, c.mul(token, c.int(2)));
                let made = [c.load_index(self.ids, token), position, sequence, c.load_index(self.lengths, sequence)];
                to.into_iter().zip(made).for_each(|(to, value)| self.put(to, token, value));
            });
            c.when(c.negate(exists), || to.into_iter().for_each(|to| self.put(to, token, c.int(0))));
        });
        c.repeat(first, tiles, GROUPS * THREADS, |tile| {
            let place = |s| c.add(c.div(c.load_index(self.starts, s), TILE_TOKENS), s);
            let sequence = self.last(place, tile);
            let inside = c.mul(c.sub(tile, place(sequence)), c.int(TILE_TOKENS));
            let from = c.add(c.load_index(self.starts, sequence), inside);
            let left = c.sub(c.load_index(self.starts, c.add(sequence, c.int(1))), from);
            let count = c.smaller(c.larger(left, c.int(0)), c.int(TILE_TOKENS));
            let from = c.pick(c.less(c.int(0), count), from, c.int(0)).into_int_value();
            self.put(tile_list, c.mul(tile, c.int(2)), from);
            self.put(tile_list, c.add(c.mul(tile, c.int(2)), c.int(1)), count);
        });
        c.when(c.equal(first, 0), || {
            c.store(self.step, c.to_i64(end), 8);
            c.store(self.field(2), self.tables, 8);
            c.store(self.field(3), self.table_stride, 8);
            c.store(self.field(5), c.to_i64(tiles), 8);
        });
    }

    /// Places for tiles, empty ones among them.
    fn tiles(&self) -> Int<'c> {
        self.c.add(self.c.div(self.tokens, TILE_TOKENS), self.sequences)
    }

    /// A field of the batch.
    fn field(&self, i: usize) -> Ptr<'c> {
        self.c.at(self.batch, self.c.int(8 * i))
    }

    fn put(&self, list: Ptr<'c>, i: Int<'c>, value: Int<'c>) {
        self.c.store(self.c.at(list, self.c.mul(i, self.c.int(4))), value, 4);
    }

    /// The last sequence whose `key` is not beyond a number. Keys never fall, and the first is zero.
    fn last(&self, key: impl Fn(Int<'c>) -> Int<'c>, number: Int<'c>) -> Int<'c> {
        let c = self.c;
        let (none, all) = (c.int(0), self.sequences);
        let found = c.for_each((none, c.bits(all), 1), &[none.into(), all.into()], |_, range| {
            let [low, high] = [0, 1].map(|i| range[i].into_int_value());
            let middle = c.div(c.add(low, high), 2);
            let beyond = c.less(number, key(middle));
            vec![c.pick(beyond, low, middle), c.pick(beyond, middle, high)]
        });
        found[0].into_int_value()
    }
}
