//! Family `attend_many`: a work-group attends with a tile of tokens and the query heads that share a head of the cache.
//!
//! A wave has one query head and one or two tiles of as many tokens as a product has columns. All waves go along the keys together: the keys and values of a
//! turn come into local memory once, and the loads of a later turn are under way while one is computed. Only turns that hold
//! keys which some query does not see look at positions.
use atomc_ir::{Arch, Diagnostic};

use super::Setup;
use super::attend::{Attention, Fragments, Running, Sizes};
use super::fragment::{Fragment, RUN};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::{KernelInfo, KernelSpec, Tasks};

/// Tokens in a tile of the batch at most: `atomc_artifact::abi::TILE_TOKENS`.
const TILE: usize = 32;
/// Most waves of a work-group.
const WAVES: usize = 8;
/// Registers for all but queries, keys or values, results, scores and what is brought, and more where products convert.
const OTHERS: usize = 28;
const CONVERTED: usize = 96;

/// How a tile's queries are shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Query heads of a work-group, and work-groups that share a head of the cache.
    heads: usize,
    parts: usize,
    /// Tiles of a wave, and their tokens.
    columns: usize,
    width: usize,
    threads: usize,
    /// Steps of a turn.
    steps: usize,
    /// Bytes of a turn's keys, and as much of values.
    bytes: usize,
    /// Turns that local memory holds.
    halves: usize,
    /// Whether queries stay in registers.
    keeps: bool,
    /// Whether the keys of one step are used before those of the next are loaded.
    in_turn: bool,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let sizes = Sizes::of(spec.body)?;
        let shapes = [(2, 2), (2, 1), (1, 2), (1, 1)].map(|(columns, steps)| Shape::of(&sizes, arch, columns, steps));
        let possible = |s: &&Shape| s.bytes <= arch.simt().unit.lds_group / 2;
        let most = sizes.registers(arch).most;
        let best = shapes.iter().filter(possible).find(|s| s.fits(&sizes, arch));
        let best = best.map(|&s| Shape { in_turn: s.registers(&sizes, arch, s.steps) > most, ..s });
        let r = sizes.registers(arch);
        let keeps = !r.converts && r.query + r.results + r.scores + OTHERS <= r.most;
        let least = shapes.iter().rfind(possible).map(|&s| Shape { keeps, ..s });
        best.or(least)
            .ok_or_else(|| crate::row::unsupported(format!("attention with heads of {} numbers", sizes.cache.head_dim)))
    }

    fn of(sizes: &Sizes, arch: &Arch, columns: usize, steps: usize) -> Shape {
        let simt = arch.simt();
        // Two waves at least.
        let columns = if sizes.group() > 2 { columns } else { 1 };
        let width = simt.matrix.columns;
        let waves = TILE / width / columns;
        let parts = (sizes.group() * waves).div_ceil(WAVES);
        let heads = sizes.group().div_ceil(parts);
        let dim = arch.memory.padded(sizes.cache.head_dim);
        let bytes = steps * simt.matrix.span(simt.wave) * dim * sizes.cache.dtype.size();
        let shape = Shape {
            heads,
            parts,
            columns,
            width,
            threads: heads * waves * simt.wave,
            steps,
            bytes,
            halves: 2,
            keeps: true,
            in_turn: true,
        };
        // Two waves on a SIMD hide more of each other than a work-group's own two turns.
        Shape { halves: if shape.waves(arch) >= 2 { 2 } else { 1 }, ..shape }
    }

    /// Waves on a SIMD, as far as local memory has room.
    fn waves(&self, arch: &Arch) -> usize {
        let simt = arch.simt();
        simt.unit.lds / self.local() * self.threads / simt.wave / simt.unit.simds
    }

    fn fits(&self, sizes: &Sizes, arch: &Arch) -> bool {
        self.registers(sizes, arch, 1) <= sizes.registers(arch).most
    }

    /// Registers that a wave takes with the keys of so many steps at once.
    fn registers(&self, sizes: &Sizes, arch: &Arch, steps: usize) -> usize {
        let r = sizes.registers(arch);
        let brought = 2 * (self.bytes / RUN).div_ceil(self.threads) * RUN / 4;
        let own = self.columns * (r.query + r.results + self.steps * r.scores);
        let others = if r.converts { OTHERS + CONVERTED } else { OTHERS };
        own + brought + steps * r.keys.max(r.values) + others
    }

    /// Bytes of local memory.
    fn local(&self) -> usize {
        2 * self.halves * self.bytes
    }
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open(spec, shape.threads);
    if shape.waves(setup.arch) >= 2 {
        code.want_waves(2);
    }
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
    /// Which token of the tile each column of the lane is.
    columns: Vec<Int<'c>>,
    local: Ptr<'c>,
    /// Where this thread's runs of keys and values are in memory, from a turn on, and where they go.
    from: [Vec<Offset<'c>>; 2],
    to: [Vec<Offset<'c>>; 2],
}

/// Bytes to one of a thread's runs, and what all threads add.
struct Offset<'c> {
    lane: Int<'c>,
    more: Int<'c>,
}

/// Runs of a turn, in flight, and the block of the turn after it.
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
        let waves = TILE / shape.width / shape.columns;
        let wave = c.wave_index();
        let inside = c.add(c.mul(part, c.int(shape.heads)), c.div(wave, waves));
        let group = attention.heads / attention.cache.ty.heads;
        let head = c.add(c.mul(cache_head, c.int(group)), c.smaller(inside, c.int(group - 1)));
        let first = c.add(c.mul(c.rem(wave, waves), c.int(shape.width * shape.columns)), attention.place.column);
        let keys = shape.steps * attention.span();
        let position = c.load_index(batch.positions, token);
        let mut made = Tile {
            attention,
            shape,
            token,
            count,
            position,
            first: c.div(attention.first_key(position), keys),
            last: c.div(c.add(position, c.sub(count, c.int(1))), keys),
            table: batch.table(c, token),
            cache_head,
            head,
            is_real: c.less(inside, c.int(group)),
            is_last: c.equal(rest, attention.cache.ty.heads * shape.parts - 1),
            columns: (0..shape.columns).map(|i| c.add(first, c.int(shape.width * i))).collect(),
            local: c.local(shape.local()),
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
        let along = |run: Int<'c>| c.mul(run, c.int(RUN));
        let fragment = shape.steps * a.matrix.panel_step() / RUN;
        let value = |run: Int<'c>| {
            let inside = c.mul(c.rem(run, fragment), c.int(RUN));
            c.add(c.mul(c.div(run, fragment), c.int(a.value_panel())), inside)
        };
        let panel = a.key_panel() / RUN;
        self.from = [self.offsets(1, along), self.offsets(fragment, value)];
        self.to = [self.offsets(panel, |run| self.key_place(run)), self.offsets(1, along)];
    }

    /// Where this thread's runs are, by a rule that adds up over whole groups of so many runs, and inside each.
    fn offsets(&self, group: usize, rule: impl Fn(Int<'c>) -> Int<'c>) -> Vec<Offset<'c>> {
        let (c, threads) = (self.attention.code(), self.shape.threads);
        let runs = self.shape.bytes / RUN;
        let adds_up = group.is_multiple_of(threads) || threads.is_multiple_of(group);
        let offset = |first: usize| {
            if adds_up && first + threads <= runs {
                return Offset { lane: rule(c.thread()), more: rule(c.int(first)) };
            }
            let run = c.smaller(c.add(c.thread(), c.int(first)), c.int(runs - 1));
            Offset { lane: rule(run), more: c.int(0) }
        };
        (0..runs).step_by(threads).map(offset).collect()
    }

    /// Where a run of keys lies in local memory.
    fn key_place(&self, run: Int<'c>) -> Int<'c> {
        let a = self.attention;
        let (c, span, held, results) = (a.code(), a.span(), a.held(), a.matrix.layout.results);
        let in_panel = a.key_panel() / RUN;
        let (panel, inside) = (c.div(run, in_panel), c.rem(run, in_panel));
        let key = c.add(c.mul(panel, c.int(16)), c.rem(inside, 16));
        let (step, key) = (c.div(key, span), c.rem(key, span));
        let tile = c.add(c.mul(step, c.int(span / 16)), c.div(c.rem(key, held), results));
        let row = c.add(c.mul(c.div(key, held), c.int(results)), c.rem(key, results));
        let group = c.add(c.mul(tile, c.int(in_panel)), c.mul(c.div(inside, 16), c.int(16)));
        c.mul(c.add(group, row), c.int(RUN))
    }

    /// Keys of a turn.
    fn keys(&self) -> usize {
        self.shape.steps * self.attention.span()
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.attention.code());
        let queries = self.queries()?;
        let brought = self.bring(self.first, self.block(self.first));
        let brought = if self.shape.halves == 2 {
            self.put(c.int(0), &brought.runs);
            self.bring(c.smaller(c.add(self.first, c.int(1)), self.last), brought.block)
        } else {
            brought
        };
        let begun: Vec<Any> = self.columns.iter().flat_map(|_| a.begin().carried()).collect();
        let count = begun.len();
        let carried = begun.into_iter().chain([brought.block.into()]);
        let mut carried: Vec<Any> = carried.chain(brought.runs.iter().map(|&v| v.into())).collect();
        for (begin, end, hides) in self.ranges() {
            carried = c.for_each((begin, end, 1), &carried, |turn, carried| {
                let runs = carried[count + 1..].iter().map(|v| v.into_vector_value()).collect();
                let brought = Brought { runs, block: carried[count].into_int_value() };
                let half = c.mul(c.rem(c.sub(turn, self.first), self.shape.halves), c.int(2 * self.shape.bytes));
                let brought = self.advance(turn, half, &brought);
                c.keep_order();
                let running = self.compute((turn, hides), half, &queries, &carried[..count]);
                let running = running.iter().flat_map(|r| r.carried()).chain([brought.block.into()]);
                running.chain(brought.runs.iter().map(|&v| v.into())).collect()
            });
        }
        let running: Vec<Running<'c>> = carried[..count].chunks(count / self.columns.len()).map(Running::of).collect();
        self.finish(&running);
        c.when(self.is_last, || a.pad(self.token, self.count, self.shape.threads));
        Ok(())
    }

    /// Turns from one to another, and whether some of their keys are hidden from some query.
    fn ranges(&self) -> Vec<(Int<'c>, Int<'c>, bool)> {
        let (a, c, keys) = (self.attention, self.attention.code(), self.keys());
        let end = c.add(self.last, c.int(1));
        let late = c.div(c.add(self.position, c.int(1)), keys);
        if a.window == 0 {
            return vec![(self.first, late, false), (late, end, true)];
        }
        let last_position = c.add(self.position, c.sub(self.count, c.int(1)));
        let early = c.div(c.add(a.first_key(last_position), c.int(keys - 1)), keys);
        let early = c.smaller(early, end);
        let late = c.larger(early, late);
        vec![(self.first, early, true), (early, late, false), (late, end, true)]
    }

    /// Puts what was brought where it belongs, asks for more, and sees that the turn's keys and values are there.
    fn advance(&self, turn: Int<'c>, half: Int<'c>, brought: &Brought<'c>) -> Brought<'c> {
        let c = self.attention.code();
        let after = |turns: usize| c.smaller(c.add(turn, c.int(turns)), self.last);
        c.barrier();
        if self.shape.halves == 2 {
            self.put(c.sub(c.int(2 * self.shape.bytes), half), &brought.runs);
            return self.bring(after(2), brought.block);
        }
        self.put(half, &brought.runs);
        c.barrier();
        self.bring(after(1), brought.block)
    }

    fn block(&self, turn: Int<'c>) -> Int<'c> {
        let (a, c) = (self.attention, self.attention.code());
        c.load_index(self.table, c.div(c.smaller(turn, self.last), a.steps() / self.shape.steps))
    }

    /// Loads this thread's runs of a turn in a block.
    fn bring(&self, turn: Int<'c>, block: Int<'c>) -> Brought<'c> {
        let (a, c) = (self.attention, self.attention.code());
        let starts = a.turn_in(block, self.cache_head, (turn, self.shape.steps));
        let load = |(&start, from): (&Ptr<'c>, &Vec<Offset<'c>>)| {
            let run = |o: &Offset<'c>| a.matrix.load_run(c.at(c.at(start, o.more), c.lane_offset(o.lane, turn)));
            from.iter().map(run).collect::<Vec<_>>()
        };
        let runs = starts.iter().zip(&self.from).flat_map(load).collect();
        Brought { runs, block: self.block(c.add(turn, c.int(1))) }
    }

    fn put(&self, half: Int<'c>, runs: &[Vector<'c>]) {
        let c = self.attention.code();
        let starts = [0, self.shape.bytes].map(|first| c.add(half, c.int(first)));
        let to = starts.iter().zip(&self.to).flat_map(|(&start, to)| to.iter().map(move |o| (start, o)));
        for ((start, o), &run) in to.zip(runs) {
            c.store(c.at(c.at(self.local, c.add(start, o.lane)), o.more), run, RUN as u32);
        }
    }

    /// The wave's queries as fragments, column by column.
    fn queries(&self) -> Result<Vec<Fragments<'_, 'c>>, Diagnostic> {
        let a = self.attention;
        let last = a.code().sub(self.count, a.code().int(1));
        let column = |&column: &Int<'c>| {
            let token = a.code().add(self.token, a.code().smaller(column, last));
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
        let first = c.add(c.mul(a.place.part, c.int(depth)), c.int(chunk * a.span()));
        if let Some(query) = a.stored_query(token, self.head, first)? {
            return Ok(query);
        }
        let part = |i: usize| a.query(token, self.head, c.add(first, c.int(i)));
        let parts = (0..depth).step_by(lanes).map(part).collect::<Result<Vec<_>, _>>()?;
        Ok(a.matrix.fragment_of(&parts))
    }

    /// One turn for all columns, some of whose keys may be hidden from them.
    fn compute(
        &self,
        (turn, hides): (Int<'c>, bool),
        half: Int<'c>,
        queries: &[Fragments<'_, 'c>],
        running: &[Any<'c>],
    ) -> Vec<Running<'c>> {
        let (a, c, m, steps) = (self.attention, self.attention.code(), &self.attention.matrix, self.shape.steps);
        let local = c.at(c.at(self.local, half), m.in_panel(a.place, a.place.row));
        let fragment = move |i: usize| m.load_panel(c.at(local, c.int(i)));
        let tiles = a.span() / 16;
        let mut scores = vec![vec![]; queries.len()];
        for step in 0..steps {
            if self.shape.in_turn {
                c.keep_order();
            }
            let key = |i: usize| {
                let tile = step * tiles + i / a.chunks();
                fragment(tile * a.key_panel() + i % a.chunks() * m.panel_step())
            };
            let keys = a.fragments(a.keys(), key);
            let key = c.add(c.mul(turn, c.int(self.keys())), c.int(step * a.span()));
            let made = a.scores(&keys, queries);
            for ((made, &column), scores) in made.into_iter().zip(&self.columns).zip(&mut scores) {
                scores.push(if hides { a.hide(made, self.seen(key, column)) } else { made });
            }
        }
        // Values are asked for when most registers of keys are free again.
        c.keep_order();
        let values: Fragments<'_, 'c> = Box::new(|i| fragment(self.shape.bytes + i * m.panel_step()));
        let running: Vec<Running<'c>> = running.chunks(running.len() / queries.len()).map(Running::of).collect();
        a.add(&scores, &values, &running)
    }

    /// The last of the lane's keys that a column sees, of those from `key` on.
    fn seen(&self, key: Int<'c>, column: Int<'c>) -> Int<'c> {
        let (a, c) = (self.attention, self.attention.code());
        let own = c.add(key, c.mul(a.half, c.int(a.held())));
        c.sub(c.add(self.position, column), own)
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
