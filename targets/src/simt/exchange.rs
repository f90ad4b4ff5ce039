//! The kernel by which ranks sum rows, or put them side by side, through each other's memory:
//! [`Exchange`](atomc_artifact::abi::Exchange) has its parameters.
//!
//! A thread pushes 16 bytes of its rank's rows into a slot of every other rank. Each 8 bytes of a
//! slot are 4 bytes of the rows and the number of the exchange, so data and signal arrive together,
//! in one store, and no rank waits for a way back. The thread waits for the same 16 bytes of the
//! others in its own rank's slots. Sums are in the order of the ranks: all ranks have equal bits.
//!
//! Sums of many rows are made in two steps instead (`shares.rs`).
//!
//! A work-group has slots of its own and counts its exchanges itself; even and odd ones have a half
//! of the slots each. So a rank that is ahead never overwrites what another still reads: to be two
//! exchanges ahead it would need an answer that the other gives only later.
mod shares;

use atomc_artifact::abi::{EXCHANGE_BYTES, EXCHANGE_GROUPS, EXCHANGED};
use atomc_artifact::manifest;
use atomc_artifact::manifest::EXCHANGE;
use atomc_ir::DType;
use atomc_ir::arch::GpuArch;
use inkwell::IntPredicate;
use inkwell::module::Module;

use crate::Tasks;
use crate::code::{Int, Ptr, Vector};
use crate::llvm::Llvm;
use crate::simt::machine;
use crate::simt::machine::Gpu;

/// Bytes of rows of a thread.
const UNIT: usize = 16;
const THREADS: usize = EXCHANGE_BYTES / UNIT;
/// How often a thread looks for what it waits for before it gives up: some seconds.
const PATIENCE: usize = 1 << 22;

/// Bytes of rows, times the other ranks, from which on sums are made in two steps. Two H200 take as
/// long for 256 rows of 8 KiB either way.
const MANY: usize = 2 << 20;

/// The kernel as a module. It begins when all earlier kernels have ended.
pub fn emit<'c>(llvm: Llvm<'c>, arch: GpuArch<'c>) -> (Module<'c>, manifest::Kernel) {
    let code = machine::open_with_numbers(llvm, EXCHANGE, arch, 6, 7, THREADS);
    code.await_previous();
    Rows::new(&code).run();
    let info = manifest::Kernel::simt(Tasks::Fixed(EXCHANGE_GROUPS), THREADS);
    let info = manifest::Kernel { schedule: "exchange".into(), overlaps: code.awaited.get(), ..info };
    (code.finish(), info)
}

/// The kernel's parameters.
struct Rows<'k, 'c> {
    c: &'k Gpu<'c>,
    value: Ptr<'c>,
    added: Ptr<'c>,
    whole: Ptr<'c>,
    peers: Ptr<'c>,
    state: Ptr<'c>,
    rank: Int<'c>,
    ranks: Int<'c>,
    /// Bytes from one row to the next, of a row without padding, and from one whole row to the
    /// next.
    row: Int<'c>,
    width: Int<'c>,
    stride: Int<'c>,
    dtype: Int<'c>,
    /// Bytes of all rows.
    end: Int<'c>,
}

/// A piece of the rows that a thread exchanges.
#[derive(Clone, Copy)]
struct Piece<'c> {
    /// Where it is among the bytes of the rows.
    at: Int<'c>,
    /// Its words.
    words: [Int<'c>; 4],
    /// The number of the exchange.
    turn: Int<'c>,
}

impl<'k, 'c> Rows<'k, 'c> {
    fn new(c: &'k Gpu<'c>) -> Rows<'k, 'c> {
        let [value, added, whole, peers, state, step] = std::array::from_fn(|i| c.argument(i));
        let [rank, ranks, row, width, stride, dtype, count] =
            std::array::from_fn(|i| c.to_index(c.number_argument(6 + i)));
        let rows = c.to_index(c.load_i64(c.at(step, count)));
        Rows { c, value, added, whole, peers, state, rank, ranks, row, width, stride, dtype, end: rows * row }
    }

    fn run(&self) {
        let c = self.c;
        let turns = c.at(self.state, c.group() * 4);
        let before = c.load_made_index(turns, 0);
        let is_sum = c.as_int(c.b.build_is_null(self.whole, "").expect("a pointer"));
        let most = c.int(MANY) / (self.ranks - 1);
        let is_many = is_sum & c.less(most, self.end);
        let last = c.carry_if(is_many, before, |&before| {
            let mut last = before;
            for (number, dtype) in EXCHANGED.into_iter().enumerate() {
                last = c.carry_if(c.equal(self.dtype, number), last, |_| self.sum_in_shares(before, dtype));
            }
            last
        });
        let last = c.carry_if(!is_many, last, |_| self.exchange(before, is_sum));
        // Every thread has read the number of exchanges before.
        c.barrier();
        c.when(c.equal(c.thread(), 0), || c.store(turns, last, 4));
    }

    /// All parts of a work-group in one step; returns how many exchanges it has made then.
    fn exchange(&self, before: Int<'c>, is_sum: Int<'c>) -> Int<'c> {
        let c = self.c;
        let step = EXCHANGE_GROUPS * EXCHANGE_BYTES;
        let first = c.group() * EXCHANGE_BYTES;
        c.carry((first, self.end, step), before, |start, turn| {
            let turn = turn + 1;
            let at = start + c.thread() * UNIT;
            c.when(c.less(at, self.end), || {
                let piece = Piece { at, words: self.words(c.at(self.value, at)), turn };
                self.push(piece);
                for (number, dtype) in EXCHANGED.into_iter().enumerate() {
                    c.when(is_sum & c.equal(self.dtype, number), || self.sum(piece, dtype));
                }
                c.when(!is_sum, || self.gather(piece));
            });
            turn
        })
    }

    fn words(&self, from: Ptr<'c>) -> [Int<'c>; 4] {
        let c = self.c;
        let words = c.load(c.ints(c.cx.i32_type(), 4), from, UNIT as u32).into_vector_value();
        std::array::from_fn(|i| c.as_int(c.lane(words, i)))
    }

    /// The thread's slot in a rank's memory, for what another rank sends. The first halves of all
    /// threads' slots lie side by side, then the second ones: so a wave writes whole lines.
    fn slot(&self, of: Int<'c>, sender: Int<'c>, turn: Int<'c>) -> Ptr<'c> {
        let c = self.c;
        let half = turn % 2;
        let group = ((half * self.ranks) + sender) * EXCHANGE_GROUPS + c.group();
        c.at(self.memory(of), group * (2 * EXCHANGE_BYTES) + c.thread() * UNIT)
    }

    /// A rank's slots.
    fn memory(&self, of: Int<'c>) -> Ptr<'c> {
        self.c.load_ptr(self.c.at(self.peers, of * 8))
    }

    /// Notes that a rank was waited for in vain.
    fn miss(&self, rank: Int<'c>) {
        self.c.store(self.c.at(self.state, EXCHANGE_GROUPS * 4), rank + 1, 4);
    }

    /// Whether no rank was waited for in vain, as far as this work-group knows after a barrier.
    fn missed_none(&self) -> Int<'c> {
        self.c.equal(self.c.load_made_index(self.state, EXCHANGE_GROUPS), 0)
    }

    /// The words, or all ones, which are NaN, if a rank did not come.
    fn if_came(&self, came: Int<'c>, words: [Int<'c>; 4]) -> [Int<'c>; 4] {
        words.map(|word| self.c.pick_int(came, word, word.constant(u32::MAX as usize)))
    }

    /// Sends a piece to all other ranks, the next one first.
    fn push(&self, Piece { words, turn, .. }: Piece<'c>) {
        let c = self.c;
        c.repeat(1, self.ranks, 1, |distance| {
            let next = self.rank + distance;
            let to = c.pick_int(c.less(next, self.ranks), next, next - self.ranks);
            let slot = self.slot(to, self.rank, turn);
            for (half, pair) in words.chunks(2).enumerate() {
                c.store_shared(c.at(slot, half * EXCHANGE_BYTES), &[pair[0], turn, pair[1], turn]);
            }
        });
    }

    /// The same piece of a rank: this one's own, or what another has sent. All ones where it does
    /// not come, which are NaN.
    fn of_rank(&self, rank: Int<'c>, piece: Piece<'c>) -> [Int<'c>; 4] {
        let c = self.c;
        let other = c.compare(IntPredicate::NE, rank, self.rank);
        c.carry_if(other, piece.words, |_| {
            let slot = self.slot(self.rank, rank, piece.turn);
            let (came, words) = c.until(PATIENCE, || {
                let [low, high] = [0, EXCHANGE_BYTES].map(|offset| c.load_shared(c.at(slot, offset)));
                let flags = [low[1], low[3], high[1], high[3]];
                let is_there = |flag: Int<'c>| c.compare(IntPredicate::EQ, flag, piece.turn);
                let came = flags.map(is_there).into_iter().reduce(|a, b| a & b).expect("four flags");
                (came, [low[0], low[2], high[0], high[2]])
            });
            c.when(!came, || self.miss(rank));
            self.if_came(came, words)
        })
    }

    /// Sums a piece over all ranks, and adds what is added.
    fn sum(&self, piece: Piece<'c>, dtype: DType) {
        let c = self.c;
        c.set_lanes(UNIT / dtype.size());
        let zero = c.zero();
        let sum =
            c.carry((0, self.ranks, 1), zero, |rank, sum| c.fadd(sum, self.floats(self.of_rank(rank, piece), dtype)));
        self.finish(Piece { words: self.rounded(sum, dtype), ..piece }, dtype);
        c.set_lanes(1);
    }

    /// A sum in the type of the rows.
    fn rounded(&self, sum: Vector<'c>, dtype: DType) -> [Int<'c>; 4] {
        let c = self.c;
        let bits = c.bitcast(c.narrow(sum, dtype), c.ints(c.cx.i32_type(), 4)).into_vector_value();
        std::array::from_fn(|i| c.as_int(c.lane(bits, i)))
    }

    /// Stores a piece of the sums, with what is added to it.
    fn finish(&self, piece: Piece<'c>, dtype: DType) {
        let c = self.c;
        let to = c.at(self.value, piece.at);
        c.store(to, c.words(&piece.words), UNIT as u32);
        let has_more = !c.as_int(c.b.build_is_null(self.added, "").expect("a pointer"));
        c.when(has_more, || {
            let more = self.floats(self.words(c.at(self.added, piece.at)), dtype);
            let sum = c.narrow(c.fadd(self.floats(piece.words, dtype), more), dtype);
            c.store(to, sum, UNIT as u32);
        });
    }

    fn floats(&self, words: [Int<'c>; 4], dtype: DType) -> Vector<'c> {
        let c = self.c;
        let words = c.words(&words);
        let bits = c.bitcast(words, c.ints(c.bytes_type(dtype.size()), UNIT / dtype.size()));
        c.widen(bits.into_vector_value(), dtype)
    }

    /// Puts a piece of every rank beside those of the others.
    fn gather(&self, piece: Piece<'c>) {
        let c = self.c;
        let [row, column] = c.divide(piece.at, self.row);
        c.repeat(0, self.ranks, 1, |rank| {
            let to = c.at(self.whole, c.to_i64(row) * c.to_i64(self.stride));
            let to = c.at(to, rank * self.width + column);
            for (i, word) in self.of_rank(rank, piece).into_iter().enumerate() {
                c.when(c.less(column + i * 4, self.width), || c.store(c.at(to, i * 4), word, 4));
            }
        });
    }
}
