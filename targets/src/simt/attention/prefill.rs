//! Family `attend_many`: a work-group attends with a tile of tokens and the query heads that share
//! a head of the cache.
//!
//! A wave has one query head and one or two tiles of tokens, each as many tokens as a product has
//! columns. All waves step through the keys together: the keys and values of a turn come into local
//! memory once, and the loads of a later turn are in flight while one is computed. Positions are
//! compared only in turns with keys that some query does not see.
mod shape;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::arch::Isa;
use atomc_ir::{Diagnostic, Family};

use crate::code::{Any, Int, Ptr, Vector};
use crate::schedule::Schedule;
use crate::simt::attention::flash::{Attention, Fragments};
use crate::simt::attention::online_softmax::OnlineSoftmax;
use crate::simt::attention::sizes::Sizes;
use crate::simt::launch;
use crate::simt::launch::Setup;
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, VEC16};
use crate::{KernelSpec, Tasks};
use shape::Shape;

pub const SCHEDULE: Schedule = Schedule {
    name: "prefill",
    family: Family::AttendMany,
    invariant: true,
    suits: |spec, arch, _| {
        Sizes::of(spec.body)?.even()?;
        Ok(Shape::new(spec, launch::gpu(arch)?).map(drop)?)
    },
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?)?;
    let code = setup.open(spec, shape.threads)?;
    if shape.waves(setup.gpu()?) >= 2 {
        code.want_waves(2);
    }
    let times = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let attention = Attention::new(&kernel)?;
        let attention = if shape.large { attention.by_mfma_32x32() } else { attention };
        let times = attention.cache.ty.heads * shape.parts;
        let (number, rest) = (c.group() / times, c.group() % times);
        let batch = &attention.cache.batch;
        c.when(c.less(number, batch.tile_count), || {
            // The last tiles of a sequence see the most keys, and begin first: those that begin
            // last are short. This order is not timed on NVIDIA's chips.
            let tile = if c.simt.isa == Isa::Amdgcn { batch.tile_count - 1 - number } else { number };
            let count = c.load_index(batch.tiles, tile * 2 + 1);
            c.when(c.less(0, count), || Tile::new(&attention, shape, tile, rest).run())
        })?;
        times
    };
    Ok((code, manifest::Kernel::simt(Tasks::Tiles { times }, shape.threads)))
}

/// One work-group's queries, and one thread's places of keys and values.
struct Tile<'t, 'k, 'a, 'c> {
    attention: &'t Attention<'k, 'a, 'c>,
    shape: Shape,
    /// The first token, the number of tokens, and the position of the first.
    token: Int<'c>,
    count: Int<'c>,
    position: Int<'c>,
    /// The first and the last turn of keys that some query sees.
    first: Int<'c>,
    last: Int<'c>,
    table: Ptr<'c>,
    /// The head of the cache, the wave's query head, and whether it is one of this work-group's.
    cache_head: Int<'c>,
    head: Int<'c>,
    is_real: Int<'c>,
    /// Whether the work-group has the last query head of all.
    is_last: Int<'c>,
    /// Which token of the tile each column of the lane is, and the position that it sees up to, if
    /// that is not its own.
    columns: Vec<Int<'c>>,
    reaches: Option<Vec<Int<'c>>>,
    local: Ptr<'c>,
    /// The addresses of this thread's vectors of keys and values in memory, from a turn on, and
    /// their places in local memory.
    from: [Vec<Offset<'c>>; 2],
    to: [Vec<Offset<'c>>; 2],
}

/// Bytes to one of a thread's vectors, and the offset of all threads.
struct Offset<'c> {
    lane: Int<'c>,
    more: Int<'c>,
}

/// In flight when a turn begins: its values, the keys of the next turn, and the blocks of the next
/// turn and of the one after it.
struct Ahead<'c> {
    values: Vec<Vector<'c>>,
    keys: Vec<Vector<'c>>,
    blocks: [Int<'c>; 2],
}

/// Keys and values, as they follow each other in local memory.
const KEYS: usize = 0;
const VALUES: usize = 1;

impl<'c> Ahead<'c> {
    fn carried(&self) -> Vec<Any<'c>> {
        let vec16s = self.values.iter().chain(&self.keys).map(|&v| v.into());
        self.blocks.iter().map(|&v| v.into()).chain(vec16s).collect()
    }

    fn of(c: &Gpu<'c>, carried: &[Any<'c>], values: usize) -> Ahead<'c> {
        let vec16s: Vec<Vector<'c>> = carried[2..].iter().map(|v| v.into_vector_value()).collect();
        let (values, keys) = vec16s.split_at(values);
        let blocks = [c.as_int(carried[0]), c.as_int(carried[1])];
        Ahead { values: values.to_vec(), keys: keys.to_vec(), blocks }
    }
}

impl<'t, 'k, 'a, 'c> Tile<'t, 'k, 'a, 'c> {
    fn new(attention: &'t Attention<'k, 'a, 'c>, shape: Shape, tile: Int<'c>, rest: Int<'c>) -> Tile<'t, 'k, 'a, 'c> {
        let (c, batch) = (attention.code(), &attention.cache.batch);
        let entry = |i: usize| c.load_index(batch.tiles, tile * 2 + i);
        let (token, count) = (entry(0), entry(1));
        let (cache_head, part) = (rest / shape.parts, rest % shape.parts);
        let waves = TILE_TOKENS / shape.width / shape.columns;
        let wave = c.wave_index();
        let inside = part * shape.heads + wave / waves;
        let group = attention.heads / attention.cache.ty.heads;
        let head = cache_head * group + c.smaller(inside, group - 1);
        let first = wave % waves * (shape.width * shape.columns) + attention.accumulator.column();
        let keys = shape.steps * attention.span();
        let position = c.load_index(batch.positions, token);
        let reach = |behind| attention.seen.reach(c, (token, position), behind);
        let mut made = Tile {
            attention,
            shape,
            token,
            count,
            position,
            first: attention.first_key(position) / keys,
            last: reach(count - 1) / keys,
            table: batch.table(c, token),
            cache_head,
            head,
            is_real: c.less(inside, group),
            is_last: c.equal(rest, attention.cache.ty.heads * shape.parts - 1),
            columns: (0..shape.columns).map(|i| first + shape.width * i).collect(),
            reaches: None,
            local: c.local(shape.local()),
            from: [vec![], vec![]],
            to: [vec![], vec![]],
        };
        if attention.seen.ends.is_some() {
            // Columns behind the last token are not stored.
            made.reaches = Some(made.columns.iter().map(|&i| reach(c.smaller(i, count - 1))).collect());
        }
        made.place();
        made
    }

    /// Sets the vectors that this thread loads. Rows of keys are stored at the places that match
    /// their tile.
    fn place(&mut self) {
        let (a, shape) = (self.attention, self.shape);
        let along = |vec16: Int<'c>| vec16 * VEC16;
        let fragment = shape.steps * a.accumulator.step() / VEC16;
        let value = |vec16: Int<'c>| {
            let inside = vec16 % fragment * VEC16;
            vec16 / fragment * a.value_panel() + inside
        };
        let panel = a.key_panel() / VEC16;
        self.from = [self.offsets(1, along), self.offsets(fragment, value)];
        self.to = [self.offsets(panel, |vec16| self.key_place(vec16)), self.offsets(1, along)];
    }

    /// The places of this thread's vectors. `rule` is additive over whole groups of `group`
    /// vectors, and inside each group.
    fn offsets(&self, group: usize, rule: impl Fn(Int<'c>) -> Int<'c>) -> Vec<Offset<'c>> {
        let (c, threads) = (self.attention.code(), self.shape.threads);
        let vec16s = self.shape.bytes / VEC16;
        let adds_up = group.is_multiple_of(threads) || threads.is_multiple_of(group);
        let offset = |first: usize| {
            if adds_up && first + threads <= vec16s {
                return Offset { lane: rule(c.thread()), more: rule(c.int(first)) };
            }
            let vec16 = c.smaller(c.thread() + first, vec16s - 1);
            Offset { lane: rule(vec16), more: c.int(0) }
        };
        (0..vec16s).step_by(threads).map(offset).collect()
    }

    /// The place of a vector of keys in local memory.
    fn key_place(&self, vec16: Int<'c>) -> Int<'c> {
        let a = self.attention;
        let in_panel = a.key_panel() / VEC16;
        let (panel, inside) = (vec16 / in_panel, vec16 % in_panel);
        let row = self.key_row(panel * 16 + inside % 16);
        let group = row / 16 * in_panel + inside / 16 * 16;
        (group + row % 16) * VEC16
    }

    /// The row of the tiles that has a key of a turn: a lane gets the scores that it must give as
    /// weights.
    fn key_row(&self, key: Int<'c>) -> Int<'c> {
        let a = self.attention;
        let (span, held, results) = (a.span(), a.held(), a.matrix.layout.results);
        let (step, inside) = (key / span, key % span);
        let (share, own) = (inside / held, inside % held);
        let (group, in_group) = (own / results, share * results + own % results);
        // The groups of all shares follow each other, so that every share has its rows of a tile.
        let rows = span / held * results;
        let first = step * (held / results) + group;
        first * rows + in_group
    }

    /// Keys of a turn.
    fn keys(&self) -> usize {
        self.shape.steps * self.attention.span()
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.attention.code());
        let queries = self.queries()?;
        let begin = a.begin(|| (self.head, c.equal(a.half, 0)));
        let mut carried: Vec<Any> = self.columns.iter().flat_map(|_| begin.carried()).collect();
        let count = carried.len();
        carried.extend(self.begin().carried());
        for (begin, end, hides) in self.ranges() {
            carried = c.for_each((begin, end, 1), &carried, |turn, carried| {
                let (running, ahead) = carried.split_at(count);
                let ahead = Ahead::of(c, ahead, self.from[VALUES].len());
                let running: Vec<OnlineSoftmax<'c>> =
                    running.chunks(count / queries.len()).map(OnlineSoftmax::of).collect();
                let (running, ahead) = self.turn(turn, hides, &queries, &running, ahead);
                running.iter().flat_map(|r| r.carried()).chain(ahead.carried()).collect()
            });
        }
        let running: Vec<OnlineSoftmax<'c>> =
            carried[..count].chunks(count / self.columns.len()).map(OnlineSoftmax::of).collect();
        self.finish(&running);
        c.when(self.is_last, || a.pad(self.token, self.count, self.shape.threads));
        Ok(())
    }

    /// Turns from one to another, and whether some of their keys are hidden from some query.
    fn ranges(&self) -> Vec<(Int<'c>, Int<'c>, bool)> {
        let (a, c, keys) = (self.attention, self.attention.code(), self.keys());
        let end = self.last + 1;
        let late = (a.seen.first(c, (self.token, self.position)) + 1) / keys;
        if a.seen.window == 0 {
            return vec![(self.first, late, false), (late, end, true)];
        }
        let last_position = self.position + (self.count - 1);
        let early = (a.first_key(last_position) + (keys - 1)) / keys;
        let early = c.smaller(early, end);
        let late = c.larger(early, late);
        vec![(self.first, early, true), (early, late, false), (late, end, true)]
    }

    /// Stores the first keys and loads the next data.
    fn begin(&self) -> Ahead<'c> {
        let first = self.first;
        let [block, next, behind] = [0, 1, 2].map(|i| self.block(first + i));
        self.put(KEYS, &self.bring(KEYS, first, block));
        Ahead {
            values: self.bring(VALUES, first, block),
            keys: self.bring(KEYS, self.after(first, 1), next),
            blocks: [next, behind],
        }
    }

    /// A turn, or the last.
    fn after(&self, turn: Int<'c>, turns: usize) -> Int<'c> {
        let c = self.attention.code();
        c.smaller(turn + turns, self.last)
    }

    /// A turn for all columns, where some keys may be masked. The turn's values are stored to local
    /// memory before the products of keys, and the next turn's keys before the products of values.
    /// A barrier before each store ensures that all waves have read what it overwrites.
    fn turn(
        &self,
        turn: Int<'c>,
        hides: bool,
        queries: &[Fragments<'_, 'c>],
        running: &[OnlineSoftmax<'c>],
        ahead: Ahead<'c>,
    ) -> (Vec<OnlineSoftmax<'c>>, Ahead<'c>) {
        let (a, c, [next, behind]) = (self.attention, self.attention.code(), ahead.blocks);
        c.barrier();
        self.put(VALUES, &ahead.values);
        let values = self.bring(VALUES, self.after(turn, 1), next);
        c.keep_order();
        let scores = self.scores((turn, hides), queries);
        c.barrier();
        self.put(KEYS, &ahead.keys);
        let keys = self.bring(KEYS, self.after(turn, 2), behind);
        let blocks = [behind, self.block(turn + 3)];
        c.keep_order();
        let panel = self.shape.steps * a.accumulator.step();
        let local = self.local(VALUES, panel);
        let value = move |i: usize| {
            let (tile, step) = (i / self.shape.steps, i % self.shape.steps);
            a.accumulator.load_rows(c.at(local, tile * a.accumulator.side() * panel + step * a.accumulator.step()))
        };
        let fragments: Fragments<'_, 'c> = Box::new(value);
        (a.accumulate(&scores, &fragments, running), Ahead { values, keys, blocks })
    }

    /// The place of the lane's fragments in local memory, for panels of `panel` bytes.
    fn local(&self, what: usize, panel: usize) -> Ptr<'c> {
        let (a, c) = (self.attention, self.attention.code());
        c.at(c.at(self.local, a.accumulator.row_offset(panel)), what * self.shape.bytes)
    }

    fn block(&self, turn: Int<'c>) -> Int<'c> {
        let (a, c) = (self.attention, self.attention.code());
        c.load_index(self.table, c.smaller(turn, self.last) / (a.steps() / self.shape.steps))
    }

    /// Loads this thread's vectors of a turn's keys or values in a block, as they are stored.
    fn bring(&self, what: usize, turn: Int<'c>, block: Int<'c>) -> Vec<Vector<'c>> {
        let (a, c) = (self.attention, self.attention.code());
        let start = a.turn_in(block, self.cache_head, turn, self.shape.steps)[what];
        let stored = |offset| a.stored.offset(offset);
        let load = |o: &Offset<'c>| {
            a.stored.load_vec16(c, c.at(c.at(start, stored(o.more)), c.lane_offset(stored(o.lane), turn)))
        };
        self.from[what].iter().map(load).collect()
    }

    /// The last vector first: when it is there, all are, and there is nothing to wait for any more.
    fn put(&self, what: usize, vec16s: &[Vector<'c>]) {
        let c = self.attention.code();
        let start = c.at(self.local, what * self.shape.bytes);
        for (o, &vec16) in self.to[what].iter().zip(vec16s).rev() {
            let vec16 = self.attention.widened(&[vec16])[0];
            c.store(c.at(c.at(start, o.lane), o.more), vec16, VEC16 as u32);
        }
    }

    /// The wave's queries as fragments, column by column.
    fn queries(&self) -> Result<Vec<Fragments<'_, 'c>>, Diagnostic> {
        let a = self.attention;
        let last = self.count - 1;
        let column = |&column: &Int<'c>| {
            let token = self.token + a.code().smaller(column, last);
            self.query(token, 0)?;
            let keeps = self.shape.keeps && !a.matrix.converts();
            Ok(a.fragments_if(keeps, a.chunks(), move |chunk| self.query(token, chunk).expect("as the first")))
        };
        self.columns.iter().map(column).collect()
    }

    /// A fragment of the wave's query of a token.
    fn query(&self, token: Int<'c>, chunk: usize) -> Result<Fragment<'c>, Diagnostic> {
        let (a, c) = (self.attention, self.attention.code());
        let depth = a.matrix.layout.depth;
        let lanes = a.lanes.min(depth);
        c.set_lanes(lanes);
        let part = if self.shape.large { a.half } else { a.place.part };
        let first = part * depth + chunk * a.span();
        if let Some(query) = a.stored_query(token, self.head, first)? {
            return Ok(query);
        }
        let part = |i: usize| a.query(token, self.head, first + i);
        let parts = (0..depth).step_by(lanes).map(part).collect::<Result<Vec<_>, _>>()?;
        Ok(a.matrix.fragment_of(&parts))
    }

    /// Scores of a turn's keys for all columns, step by step.
    fn scores(&self, (turn, hides): (Int<'c>, bool), queries: &[Fragments<'_, 'c>]) -> Vec<Vec<Vector<'c>>> {
        let (a, c, accumulator) = (self.attention, self.attention.code(), &self.attention.accumulator);
        let local = self.local(KEYS, a.key_panel());
        let mut scores = vec![vec![]; queries.len()];
        for unit in 0..self.keys() / a.unit() {
            if self.shape.in_turn {
                c.keep_order();
            }
            let key = |i: usize| {
                let tile = unit * a.tiles() + i / a.chunks();
                let at = tile * accumulator.side() * a.key_panel() + i % a.chunks() * accumulator.step();
                accumulator.load_rows(c.at(local, at))
            };
            let keys = a.fragments(a.keys(), key);
            let first = turn * self.keys() + unit * a.unit();
            let made = a.scores(&keys, queries);
            for ((made, column), scores) in made.into_iter().zip(0..).zip(&mut scores) {
                for step in 0..a.unit() / a.span() {
                    let made = c.part(made, step * a.held(), a.held());
                    let key = first + step * a.span();
                    scores.push(if hides { a.hide_some(made, self.seen(key, column), |i| i) } else { made });
                }
            }
        }
        scores
    }

    /// The last of the lane's keys that a column sees, of those from `key` on, and how many
    /// positions further than its own that is, if it may be.
    fn seen(&self, key: Int<'c>, column: usize) -> (Int<'c>, Option<Int<'c>>) {
        let a = self.attention;
        let own = key + a.half * a.held();
        let position = self.position + self.columns[column];
        match &self.reaches {
            Some(reaches) => (reaches[column] - own, Some(reaches[column] - position)),
            None => (position - own, None),
        }
    }

    /// Divides by the sums and stores.
    fn finish(&self, running: &[OnlineSoftmax<'c>]) {
        let (a, c) = (self.attention, self.attention.code());
        let (results, dim) = (a.matrix.layout.results, a.cache.ty.head_dim);
        let width = a.lanes.min(results);
        for (&column, running) in self.columns.iter().zip(running) {
            let sum = a.total(running.sum);
            let store = self.is_real & c.less(column, self.count);
            c.set_lanes(1);
            let inverse = c.reciprocal(c.simt.isa, c.splat(sum));
            c.set_lanes(width);
            let inverse = c.splat(c.lane(inverse, 0));
            let token = self.token + column;
            c.when(store, || {
                let panels = running
                    .values
                    .iter()
                    .flat_map(|&v| (0..a.accumulator.side()).map(move |i| a.accumulator.results(v, i)));
                for (panel, groups) in panels.enumerate().filter(|(panel, _)| 16 * panel < dim) {
                    for (row, values) in groups {
                        for i in (0..results).step_by(width) {
                            let col = row + (16 * panel + i);
                            let to = || {
                                let v = c.fmul(c.part(values, i, width), inverse);
                                c.store_floats(a.result(token, self.head, col), v, a.out_type());
                            };
                            if 16 * (panel + 1) <= dim { to() } else { c.when(c.less(col, dim), to) }
                        }
                    }
                }
            });
        }
    }
}
