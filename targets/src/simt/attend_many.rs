//! Family `attend_many`: a work-group attends with a tile of tokens and the query heads that share a head of the cache.
//!
//! A wave has one query head and one or two tiles of 16 tokens. All waves go along the keys in step: a step's keys and values
//! come into local memory once, while the step before is computed, and the loads of the one after are under way.
use atomc_ir::{Arch, Diagnostic};
use inkwell::values::PhiValue;

use super::Setup;
use super::attend::{Attention, Running, Sizes};
use super::fragment::{Fragment, RUN};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::{KernelInfo, KernelSpec, Tasks};

/// Tokens in a tile of the batch at most: `atomc_artifact::abi::TILE_TOKENS`.
const TILE: usize = 32;
/// Most query heads of a work-group.
const HEADS: usize = 8;
/// Most registers that queries and results of a wave take.
const REGISTERS: usize = 192;

/// How a tile's queries are shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Query heads of a work-group, and work-groups that share a head of the cache.
    heads: usize,
    parts: usize,
    /// Tiles of 16 tokens of a wave.
    columns: usize,
    threads: usize,
    /// Bytes of a step's keys, and as much of values.
    bytes: usize,
    /// Steps that local memory holds.
    halves: usize,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt());
        let parts = sizes.group().div_ceil(HEADS);
        let heads = sizes.group().div_ceil(parts);
        let (dim, size) = (arch.memory.padded(sizes.cache.head_dim), sizes.cache.dtype.size());
        let span = simt.matrix.span(simt.wave);
        let column = dim / span * simt.matrix.depth * size / 4 + dim / 16 * simt.matrix.results;
        let columns = if heads > 2 && 2 * column <= REGISTERS { 2 } else { 1 };
        let bytes = span * dim * size;
        let halves = simt.unit.lds_group / (2 * bytes);
        if halves == 0 {
            return Err(crate::row::unsupported(format!("attention with heads of {dim} numbers")));
        }
        let threads = heads * TILE / 16 / columns * simt.wave;
        Ok(Shape { heads, parts, columns, threads, bytes, halves: halves.min(2) })
    }
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open(spec, shape.threads);
    let times = {
        let c = &code;
        let kernel = super::kernel(c, spec)?;
        let attention = Attention::new(&kernel)?;
        let times = attention.cache.ty.heads * shape.parts;
        let (tile, rest) = (c.div(c.group(), times), c.rem(c.group(), times));
        let mut result = Ok(());
        c.when(c.less(tile, attention.cache.batch.tile_count), || {
            result = Tile::new(&attention, shape, tile, rest).run();
        });
        result?;
        times
    };
    Ok((code, KernelInfo::simt(Tasks::Tiles { times }, shape.threads)))
}

/// One work-group's queries, and one thread's way to bring keys and values.
struct Tile<'t, 'k, 'a, 'c> {
    attention: &'t Attention<'k, 'a, 'c>,
    shape: Shape,
    /// The first token, how many there are, and the position of the first.
    token: Int<'c>,
    count: Int<'c>,
    position: Int<'c>,
    table: Ptr<'c>,
    /// The head of the cache, the wave's query head, and whether it is one of this work-group's.
    cache_head: Int<'c>,
    head: Int<'c>,
    is_real: Int<'c>,
    /// Whether the work-group has the last query head of all.
    is_last: Int<'c>,
    /// Which token of the tile each column of the lane is.
    columns: Vec<Int<'c>>,
    local: Ptr<'c>,
    /// Where this thread's runs of keys and values are in memory, from a step on, and where they go.
    from: [Vec<Int<'c>>; 2],
    to: [Vec<Int<'c>>; 2],
}

/// Runs of a step, in flight, and the block of the step after it.
struct Brought<'c> {
    runs: Vec<Vector<'c>>,
    block: Int<'c>,
}

impl<'t, 'k, 'a, 'c> Tile<'t, 'k, 'a, 'c> {
    fn new(attention: &'t Attention<'k, 'a, 'c>, shape: Shape, tile: Int<'c>, rest: Int<'c>) -> Tile<'t, 'k, 'a, 'c> {
        let (c, batch) = (attention.code(), &attention.cache.batch);
        let entry = |i: usize| c.load_index(batch.tiles, c.add(c.mul(tile, c.int(2)), c.int(i)));
        let (token, count) = (entry(0), entry(1));
        let (cache_head, part) = (c.div(rest, shape.parts), c.rem(rest, shape.parts));
        let waves = TILE / 16 / shape.columns;
        let wave = c.wave_index();
        let inside = c.add(c.mul(part, c.int(shape.heads)), c.div(wave, waves));
        let group = attention.heads / attention.cache.ty.heads;
        let head = c.add(c.mul(cache_head, c.int(group)), c.smaller(inside, c.int(group - 1)));
        let first = c.add(c.mul(c.rem(wave, waves), c.int(16)), attention.place.column);
        let mut made = Tile {
            attention,
            shape,
            token,
            count,
            position: c.load_index(batch.positions, token),
            table: batch.table(c, token),
            cache_head,
            head,
            is_real: c.less(inside, c.int(group)),
            is_last: c.equal(rest, attention.cache.ty.heads * shape.parts - 1),
            columns: (0..shape.columns).map(|i| c.add(first, c.int(16 * i))).collect(),
            local: c.local(2 * shape.halves * shape.bytes),
            from: [vec![], vec![]],
            to: [vec![], vec![]],
        };
        made.place();
        made
    }

    /// Which runs this thread brings. Rows of keys are put where the tile that has them wants them.
    fn place(&mut self) {
        let (a, shape) = (self.attention, self.shape);
        let c = a.code();
        let runs = shape.bytes / RUN;
        for first in (0..runs).step_by(shape.threads) {
            let run = c.smaller(c.add(c.thread(), c.int(first)), c.int(runs - 1));
            let run = if first + shape.threads <= runs { c.add(c.thread(), c.int(first)) } else { run };
            self.from[0].push(c.mul(run, c.int(RUN)));
            self.to[0].push(self.key_place(run));
            let fragment = a.matrix.panel_step() / RUN;
            let (panel, inside) = (c.div(run, fragment), c.rem(run, fragment));
            self.from[1].push(c.add(c.mul(panel, c.int(a.value_panel())), c.mul(inside, c.int(RUN))));
            self.to[1].push(c.add(c.mul(run, c.int(RUN)), c.int(shape.bytes)));
        }
    }

    /// Where a run of keys lies in local memory.
    fn key_place(&self, run: Int<'c>) -> Int<'c> {
        let a = self.attention;
        let (c, held, results) = (a.code(), a.held(), a.matrix.layout.results);
        let in_panel = a.key_panel() / RUN;
        let (panel, inside) = (c.div(run, in_panel), c.rem(run, in_panel));
        let key = c.add(c.mul(panel, c.int(16)), c.rem(inside, 16));
        let tile = c.div(c.rem(key, held), results);
        let row = c.add(c.mul(c.div(key, held), c.int(results)), c.rem(key, results));
        let group = c.add(c.mul(tile, c.int(in_panel)), c.mul(c.div(inside, 16), c.int(16)));
        c.mul(c.add(group, row), c.int(RUN))
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.attention.code());
        let queries = self.queries()?;
        let last_position = c.add(self.position, c.sub(self.count, c.int(1)));
        let first = c.div(a.first_key(self.position), a.span());
        let last = c.div(last_position, a.span());
        let brought = self.bring(first, self.block(first, last), last);
        let brought = if self.shape.halves == 2 {
            self.put(c.int(0), &brought.runs);
            self.bring(c.smaller(c.add(first, c.int(1)), last), brought.block, last)
        } else {
            brought
        };
        let begun: Vec<Any> = self.columns.iter().flat_map(|_| a.begin().carried()).collect();
        let count = begun.len();
        let carried = begun.into_iter().chain([brought.block.into()]);
        let carried: Vec<Any> = carried.chain(brought.runs.iter().map(|&v| v.into())).collect();
        let carried = c.for_each((first, c.add(last, c.int(1)), 1), &carried, |step, carried| {
            let runs = carried[count + 1..].iter().map(|v| v.into_vector_value()).collect();
            let brought = Brought { runs, block: carried[count].into_int_value() };
            let half = c.mul(c.rem(c.sub(step, first), self.shape.halves), c.int(2 * self.shape.bytes));
            let brought = self.advance(step, half, last, &brought);
            c.keep_order();
            let running = self.compute(step, half, last_position, &queries, &carried[..count]);
            let running = running.iter().flat_map(|r| r.carried()).chain([brought.block.into()]);
            running.chain(brought.runs.iter().map(|&v| v.into())).collect()
        });
        let running: Vec<Running<'c>> = carried[..count].chunks(count / self.columns.len()).map(Running::of).collect();
        self.finish(&running);
        c.when(self.is_last, || a.pad(self.token, self.count, self.shape.threads));
        Ok(())
    }

    /// Puts what was brought where it belongs, asks for more, and sees that the step's keys and values are there.
    fn advance(&self, step: Int<'c>, half: Int<'c>, last: Int<'c>, brought: &Brought<'c>) -> Brought<'c> {
        let c = self.attention.code();
        c.barrier();
        if self.shape.halves == 2 {
            let other = c.sub(c.int(2 * self.shape.bytes), half);
            self.put(other, &brought.runs);
            return self.bring(c.smaller(c.add(step, c.int(2)), last), brought.block, last);
        }
        self.put(half, &brought.runs);
        let next = self.bring(c.smaller(c.add(step, c.int(1)), last), brought.block, last);
        c.barrier();
        next
    }

    fn block(&self, step: Int<'c>, last: Int<'c>) -> Int<'c> {
        let (a, c) = (self.attention, self.attention.code());
        c.load_index(self.table, c.div(c.smaller(step, last), a.steps()))
    }

    /// Loads this thread's runs of a step in a block.
    fn bring(&self, step: Int<'c>, block: Int<'c>, last: Int<'c>) -> Brought<'c> {
        let (a, c) = (self.attention, self.attention.code());
        let starts = a.step_in(block, self.cache_head, step);
        let load = |(start, from): (&Ptr<'c>, &Vec<Int<'c>>)| {
            from.iter().map(|&from| a.matrix.load_run(c.at(*start, from))).collect::<Vec<_>>()
        };
        let runs = starts.iter().zip(&self.from).flat_map(load).collect();
        Brought { runs, block: self.block(c.add(step, c.int(1)), last) }
    }

    fn put(&self, half: Int<'c>, runs: &[Vector<'c>]) {
        let c = self.attention.code();
        let base = c.at(self.local, half);
        for (&to, &run) in self.to.iter().flatten().zip(runs) {
            c.store(c.at(base, to), run, RUN as u32);
        }
    }

    /// The wave's queries as fragments, column by column.
    fn queries(&self) -> Result<Vec<Vec<Fragment<'c>>>, Diagnostic> {
        let (a, c) = (self.attention, self.attention.code());
        let (depth, last) = (a.matrix.layout.depth, c.sub(self.count, c.int(1)));
        let lanes = a.lanes.min(depth);
        c.set_lanes(lanes);
        let column = |&column: &Int<'c>| {
            let token = c.add(self.token, c.smaller(column, last));
            let fragment = |chunk: usize| {
                let first = c.add(c.mul(a.place.part, c.int(depth)), c.int(chunk * a.span()));
                let part = |i: usize| a.query(token, self.head, c.add(first, c.int(i)));
                let parts = (0..depth).step_by(lanes).map(part).collect::<Result<Vec<_>, _>>()?;
                Ok(a.matrix.fragment_of(&parts))
            };
            (0..a.chunks()).map(fragment).collect()
        };
        self.columns.iter().map(column).collect()
    }

    /// One step for all columns.
    fn compute(
        &self,
        step: Int<'c>,
        half: Int<'c>,
        last_position: Int<'c>,
        queries: &[Vec<Fragment<'c>>],
        running: &[Any<'c>],
    ) -> Vec<Running<'c>> {
        let (a, c, m) = (self.attention, self.attention.code(), &self.attention.matrix);
        let local = c.at(c.at(self.local, half), m.in_panel(a.place, a.place.row));
        let fragment = |i: usize| m.load_panel(c.at(local, c.int(i)));
        let keys =
            (0..a.span() / 16).flat_map(|t| (0..a.chunks()).map(move |i| t * a.key_panel() + i * m.panel_step()));
        let keys: Vec<Fragment<'c>> = keys.map(fragment).collect();
        let scores: Vec<Vector<'c>> = queries.iter().map(|q| a.scores(&keys, q)).collect();
        let scores = self.hide(step, last_position, scores);
        let dims = a.cache.layout.dim / 16;
        let values: Vec<Fragment<'c>> = (0..dims).map(|j| fragment(self.shape.bytes + j * m.panel_step())).collect();
        let running = running.chunks(running.len() / queries.len()).map(Running::of);
        scores.iter().zip(running).map(|(&scores, running)| a.add(scores, &values, &running)).collect()
    }

    /// Hides keys in the steps where some query does not see all.
    fn hide(&self, step: Int<'c>, last_position: Int<'c>, scores: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let (a, c) = (self.attention, self.attention.code());
        let key = c.mul(step, c.int(a.span()));
        let mut some = c.less(self.position, c.add(key, c.int(a.span() - 1)));
        if a.window > 0 {
            let early = c.less(key, c.sub(last_position, c.int(a.window - 1)));
            some = c.b.build_or(some, early, "").expect("conditions");
        }
        let before = c.b.get_insert_block().expect("open");
        let [inside, behind] = [0; 2].map(|_| c.cx.append_basic_block(c.function, ""));
        c.b.build_conditional_branch(some, inside, behind).expect("a condition");
        c.b.position_at_end(inside);
        let own = c.add(c.sub(self.position, key), c.sub(c.int(0), c.mul(a.half, c.int(a.held()))));
        let hidden: Vec<Vector<'c>> =
            self.columns.iter().zip(&scores).map(|(&column, &s)| a.hide(s, c.add(own, column))).collect();
        c.b.build_unconditional_branch(behind).expect("a block");
        c.b.position_at_end(behind);
        let merge = |(all, hidden): (&Vector<'c>, &Vector<'c>)| {
            let phi: PhiValue<'c> = c.b.build_phi(all.get_type(), "").expect("a block's begin");
            phi.add_incoming(&[(all, before), (hidden, inside)]);
            phi.as_basic_value().into_vector_value()
        };
        scores.iter().zip(&hidden).map(merge).collect()
    }

    /// Divides by the sums and stores.
    fn finish(&self, running: &[Running<'c>]) {
        let (a, c) = (self.attention, self.attention.code());
        let (results, dim) = (a.matrix.layout.results, a.cache.ty.head_dim);
        let width = a.lanes.min(results);
        for (&column, running) in self.columns.iter().zip(running) {
            let sum = a.total(running.sum);
            let store = c.b.build_and(self.is_real, c.less(column, self.count), "").expect("conditions");
            c.set_lanes(1);
            let inverse = c.reciprocal(c.splat(sum));
            c.set_lanes(width);
            let inverse = c.splat(c.lane(inverse, 0));
            let token = c.add(self.token, column);
            c.when(store, || {
                for (j, &values) in running.values.iter().enumerate().filter(|(j, _)| 16 * j < dim) {
                    for i in (0..results).step_by(width) {
                        let col = c.add(a.place.results, c.int(16 * j + i));
                        let to = || {
                            let v = c.fmul(c.part(values, i, width), inverse);
                            c.store_floats(a.result(token, self.head, col), v, a.out_type());
                        };
                        if 16 * (j + 1) <= dim { to() } else { c.when(c.less(col, c.int(dim)), to) }
                    }
                }
            });
        }
    }
}
