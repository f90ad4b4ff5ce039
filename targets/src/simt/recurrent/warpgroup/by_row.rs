//! States whose rows decay apart: all waves of a work-group make a chunk as
//! [`chunks::by_row`](super::super::chunks) does, and then carry the state. Keys and queries with
//! their decays are numbers of f32, of which local memory holds one chunk.
//!
//! One team has the keys that the state is seen by, and the rows up to the middle of the state; the
//! other one has the queries, and the other rows.
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, DeltaSizes};

use super::super::products::{Meeting, Products};
use super::super::{chunks, inverse};
use super::columns::{Columns, Right, Words, words};
use super::{CHUNK, Chunk, MAKERS, PARTS, Shape, TEAM, THREADS};
use crate::code::{Any, Int, Ptr};
use crate::recurrent::{Delta, Run};
use crate::simt::machine::Gpu;

/// Rows of the state: 64 for each team.
const ROWS: usize = THREADS / TEAM * CHUNK;

/// Local memory for a chunk.
pub struct Memory<'c> {
    chunk: Ptr<'c>,
    /// Right operands, as parts: the state, `beta (V - K S)`, and each token's contribution to the
    /// state.
    state: Ptr<'c>,
    wanted: Ptr<'c>,
    made: Ptr<'c>,
}

/// How chunks are made.
fn of_chunks(dim: usize) -> chunks::Shape {
    chunks::Shape { chunk: CHUNK, dim, padded: dim, by_row: true, waves: THREADS / 32, parts: 1 }
}

fn local(shape: &Shape) -> usize {
    of_chunks(shape.dim).local() + PARTS * (shape.part(shape.dim) + 2 * shape.part(CHUNK))
}

/// How a kernel is cut.
pub fn shape(sizes: DeltaSizes, arch: GpuArch) -> Option<Shape> {
    let fits = |shape: &Shape| local(shape) <= arch.simt.unit.lds_group;
    Shape::all(sizes).find(fits).filter(|_| sizes.key_dim == ROWS)
}

impl<'c> Memory<'c> {
    pub fn new(c: &Gpu<'c>, shape: Shape) -> Memory<'c> {
        let right = |rows: usize| c.shared(PARTS * shape.part(rows), 128);
        Memory {
            chunk: c.shared(of_chunks(shape.dim).local(), 128),
            state: right(shape.dim),
            wanted: right(CHUNK),
            made: right(CHUNK),
        }
    }
}

/// Some columns of a head's state.
pub struct ByRow<'a, 'k, 'c> {
    columns: Columns<'a, 'k, 'c>,
    memory: &'a Memory<'c>,
    makes: chunks::Chunks<'a, 'k, 'c>,
    /// The team's number.
    team: Int<'c>,
}

impl<'a, 'k, 'c> ByRow<'a, 'k, 'c> {
    pub fn new(columns: Columns<'a, 'k, 'c>, memory: &'a Memory<'c>) -> Self {
        let (c, delta): (&'a Gpu<'c>, &'a Delta<'k, 'c>) = (columns.c, columns.delta);
        let makes = chunks::Chunks::new(c, delta, of_chunks(columns.shape.dim), (columns.head, c.int(0)), memory.chunk);
        ByRow { columns, memory, makes, team: c.thread() / TEAM }
    }

    pub fn run(&self, run: Run<'c>) {
        let (c, columns) = (self.c(), &self.columns);
        let before = columns.load_state(run, self.team);
        let after = c.for_each((run.first, run.end, CHUNK), &before, |first, state| {
            let chunk = Chunk { stage: c.int(0), first, end: run.end };
            self.make(chunk);
            self.carry(chunk, state)
        });
        let (has_slot, slot) = run.last(c);
        c.when(has_slot, || columns.store_state(slot, self.team, &after));
    }

    fn c(&self) -> &'a Gpu<'c> {
        self.columns.c
    }

    /// Makes what does not depend on the state.
    fn make(&self, chunk: Chunk<'c>) {
        let c = self.c();
        // The old values have been read.
        c.barrier();
        self.makes.bring(chunk.first, chunk.end);
        c.barrier();
        self.makes.lengths();
        c.barrier();
        self.makes.pairs_by_row(self.by_row());
        let first = c.equal(self.team, 0);
        let products = Products::meeting(c, Meeting::Some { barrier: MAKERS, threads: TEAM });
        c.when(first, || inverse::invert(&products, self.makes.triangle, CHUNK));
        c.when(!first, || self.makes.raise_halves(self.by_row(), c.thread() - TEAM, TEAM));
    }

    fn by_row(&self) -> &chunks::ByRow<'c> {
        self.makes.by_row.as_ref().expect("rows that decay apart")
    }

    /// Stores a chunk's results and returns the team's rows of the new state.
    fn carry(&self, chunk: Chunk<'c>, state: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, columns, memory) = (self.c(), &self.columns, self.memory);
        let values = columns.values(chunk);
        columns.put(memory.state, ROWS, self.team * CHUNK, state);
        self.meet();
        let seen = self.seen();
        let first = c.equal(self.team, 0);
        c.when(first, || {
            let of = |of, i| self.makes.of_token(of, columns.token(i));
            let factors = [0, 1].map(|i| [chunks::OfToken::Key, chunks::OfToken::Beta].map(|name| of(name, i)));
            columns.put(memory.wanted, CHUNK, c.int(0), &columns.wanted(&seen, &values, factors));
            columns.meet();
            let right = Right { all: memory.wanted, rows: CHUNK, first: 0 };
            let made = columns.multiply_words(vec![], &columns.left(self.makes.triangle, 0), right);
            columns.put(memory.made, CHUNK, c.int(0), &c.mma_wait(&made, 0));
        });
        let (keys, state) = (self.keys(), self.kept(state));
        self.meet();
        let made = Right { all: memory.made, rows: CHUNK, first: 0 };
        let state = c.mma_wait(&columns.multiply_words(state, &keys, made), 0);
        c.when(!first, || {
            let seen = columns.by_rows(&seen, |i| self.makes.of_token(chunks::OfToken::Query, columns.token(i)));
            let seen = columns.multiply_words(seen, &columns.left(self.by_row().scores, 0), made);
            columns.store(chunk, &c.mma_wait(&seen, 0));
        });
        state
    }

    /// A barrier after which all writes may be multiplied.
    fn meet(&self) {
        self.c().show_to_products();
        self.c().barrier();
    }

    /// What the team's keys or queries find in the state.
    fn seen(&self) -> Vec<Any<'c>> {
        let (c, columns) = (self.c(), &self.columns);
        let (keys, queries) = (self.by_row().keys, self.makes.queries);
        let ptr = c.pick(c.equal(self.team, 0), keys.ptr, queries.ptr).into_pointer_value();
        let rows = chunks::Rows { ptr, ..keys };
        let sums = (0..ROWS / CHUNK).fold(vec![], |sums, half| {
            let right = Right { all: self.memory.state, rows: ROWS, first: half * CHUNK };
            columns.multiply_words(sums, &columns.left(rows, half * CHUNK), right)
        });
        c.mma_wait(&sums, 0)
    }

    /// The keys of all tokens, of length one, with the decay up to the chunk's end, as rows for the
    /// team's rows of the state.
    fn keys(&self) -> Words<'c> {
        let (c, columns) = (self.c(), &self.columns);
        let two = |i: usize| {
            let token = columns.side() + i / 2 * 8;
            let row = self.team * CHUNK + columns.token(i % 2);
            columns.thirds([0, 1].map(|j| {
                let number = c.load_number(self.makes.keys.at(c, token + j, row), DType::F32);
                (c.float(number) * self.makes.of_token(chunks::OfToken::Key, token + j)).v
            }))
        };
        words((0..CHUNK / 4).map(two).collect())
    }

    /// The team's rows of the state times their decays over the chunk.
    fn kept(&self, state: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, columns) = (self.c(), &self.columns);
        columns.by_rows(state, |i| {
            let row = self.team * CHUNK + columns.token(i);
            let over = self.by_row().over(c, (c.int(0), CHUNK / inverse::BLOCK), row, 1);
            c.lane(over, 0).into_float_value()
        })
    }
}
