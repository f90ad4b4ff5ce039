//! Family `attend_one`: a work-group attends with one token and the query heads that share a head
//! of the cache, over a part of the keys. [`VERIFY`] does so with the few tokens that a sequence
//! has in a step which verifies a draft: their keys are in the cache, and each sees those up to its
//! own.
//!
//! Its waves take the steps of its keys in turn, each with a running softmax of its own; these are
//! combined in local memory. Where a sequence is long, work-groups share its blocks: each leaves
//! its sums in the workspace, and the last of them to finish combines all. The key and the value of
//! the token itself are written by the work-group that has the last block.
mod combine;
mod kv_loop;
mod kv_pipeline;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Simt;
use atomc_ir::{Diagnostic, Family};

use self::combine::Partial;
use self::kv_loop::KvLoop;
use self::kv_pipeline::KvPipeline;
use crate::cache::Written;
use crate::code::{Int, Ptr};
use crate::row::unsupported;
use crate::schedule::{Open, Schedule, WhyNot};
use crate::simt::attention::flash::Attention;
use crate::simt::attention::online_softmax::OnlineSoftmax;
use crate::simt::attention::sizes::{Sizes, sees_what_was, tuned_by};
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Setup};
use crate::simt::machine::Gpu;
use crate::simt::rowwise::{each_head, teams};
use crate::tuning::{Choice, Number};
use crate::{KernelSpec, Tasks};

const WAVES: usize = 4;
/// Most parts of a sequence.
const SPLITS: usize = 64;
/// Work-groups for each compute unit, if there is enough work.
const GROUPS: usize = 2;
/// Steps that a wave has in flight if they are copied, without a measurement.
const STAGES: usize = 1;
/// The numbers that may be chosen by measuring instead of these two.
const OPEN_GROUPS: Number = Number { name: "groups", values: &[GROUPS, 1, 4] };
const OPEN_STAGES: Number = Number { name: "stages", values: &[1, 2] };
/// Registers for all but keys, values and results, and more where products convert.
const OTHERS: usize = 48;
const CONVERTED: usize = 48;

/// How a token's queries and keys are shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Runs of tokens of one sequence in a step, and the most tokens of a run.
    runs: usize,
    each: usize,
    /// Queries of a work-group, at most as many as a product has columns: of each token of a run
    /// those heads that share a head of the cache.
    columns: usize,
    /// Work-groups of a run that share no keys or no queries, and work-groups that share its
    /// blocks.
    parts: usize,
    splits: usize,
    threads: usize,
    /// Whether the next keys and values are in flight while others are computed.
    ahead: bool,
    /// Steps that a wave has in flight through local memory; 0 if the machine does not copy by
    /// itself, or stored values are converted.
    stages: usize,
    /// Panels of values of a work-group, as many as registers hold sums for, and all panels.
    values: usize,
    of_values: usize,
    /// Whether a query's fragments are held for all keys of a step.
    keeps: bool,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: GpuArch, choice: &Choice) -> Result<Shape, Diagnostic> {
        let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt);
        let groups = choice.get(&OPEN_GROUPS).unwrap_or(GROUPS);
        let (runs, each) = match spec.each {
            // Each full tile of tokens may shift the runs by one more tile.
            Some(each) => (spec.tokens / each + spec.tokens / TILE_TOKENS, each),
            None => (spec.tokens, 1),
        };
        let queries = each * sizes.group();
        let tiles = queries.div_ceil(simt.matrix.columns);
        let r = sizes.registers(arch);
        let of_values = arch.memory.padded(sizes.cache.value_dim) / 16;
        let holds = |&values: &usize| of_values.is_multiple_of(values) && 2 * values * simt.matrix.results <= r.most;
        let values = if sizes.are_even() { of_values } else { (1..=of_values).rev().find(holds).unwrap_or(1) };
        let parts = sizes.cache.heads * tiles * (of_values / values);
        let splits = match spec.family == Family::AttendOne || spec.each.is_some() {
            true => (groups * simt.chip.units / (spec.tokens / each * parts)).clamp(1, SPLITS),
            false => 1,
        };
        let others = if r.converts { OTHERS + CONVERTED } else { OTHERS };
        let results = r.results / of_values * values;
        Ok(Shape {
            runs,
            each,
            columns: queries.div_ceil(tiles),
            parts,
            splits,
            threads: WAVES * simt.wave,
            ahead: r.keys + r.values + r.results + others <= r.most,
            values,
            of_values,
            keeps: sizes.are_even() || r.query + results + others <= r.most,
            stages: if simt.bulk_copies && !r.converts && !sizes.stored.is_widened() && sizes.are_even() {
                choice.get(&OPEN_STAGES).unwrap_or(STAGES)
            } else {
                0
            },
        })
    }
}

pub const SCHEDULE: Schedule = Schedule {
    name: "decode",
    family: Family::AttendOne,
    invariant: false,
    suits: |spec, arch, choice| {
        sees_what_was(spec.body)?;
        Ok(Shape::new(spec, launch::gpu(arch)?, choice).map(drop)?)
    },
    open: Some(Open { numbers: &[OPEN_GROUPS, OPEN_STAGES], sizes: tuned_by }),
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for each of many tokens that have their keys in the cache: for caches that no
/// schedule for runs of tokens takes.
pub const TOKENS: Schedule = Schedule {
    name: "decode_tokens",
    family: Family::AttendMany,
    invariant: true,
    suits: |spec, arch, choice| {
        let sizes = Sizes::of(spec.body)?;
        WhyNot::unless(!sizes.are_even(), || format!("{}: for values that are not beside equal keys", sizes.cache))?;
        Ok(Shape::new(spec, launch::gpu(arch)?, choice).map(drop)?)
    },
    open: None,
    ..SCHEDULE
};

/// The schedule for the tokens of a sequence that a step verifies. Their keys are in the cache.
pub const VERIFY: Schedule = Schedule {
    name: "decode_verify",
    family: Family::AttendMany,
    suits: |spec, arch, choice| {
        WhyNot::unless(spec.each.is_some(), || "for steps of a few tokens of each sequence".into())?;
        Ok(Shape::new(spec, launch::gpu(arch)?, choice).map(drop)?)
    },
    open: None,
    ..SCHEDULE
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, &setup.choice)?;
    // If the previous kernel makes keys, nothing is copied before it has ended.
    let is_early = shape.stages > 0 && spec.family == Family::AttendOne;
    let code = match is_early {
        false => setup.open(spec, shape.threads),
        true => setup.open_early(spec, shape.threads),
    }?;
    let times = shape.parts * shape.splits;
    let workspace = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let (number, rest) = (c.group() / times, c.group() % times);
        let attention = match shape.of_values / shape.values {
            1 => Attention::with_codes(&kernel)?,
            // Parts with the same queries and keys are consecutive.
            parts => Attention::new(&kernel)?.of_values(rest / shape.splits % parts * shape.values, shape.values),
        };
        if shape.splits > 1 && 4 * shape.runs * shape.parts > COUNTERS {
            let count = shape.runs * shape.parts;
            return Err(unsupported(format!("{count} tokens and heads whose keys are shared out")));
        }
        let workspace = c.argument(launch::arguments(spec.body) + 1);
        let part = |run: Run<'c>| Part::new(&attention, shape, run, rest, workspace).run();
        match spec.each {
            None => launch::when_in_step(c, spec, &kernel, number, || part(Run::one(&attention, number)))?,
            Some(_) => c.when(c.less(number, attention.cache.batch.tile_count), || {
                let run = Run::tile(&attention, number);
                c.when(c.less(0, run.count), || part(run))
            })?,
        }
        let partials = shape.runs * times * Partial::bytes(&attention, shape.columns);
        if shape.splits > 1 { COUNTERS + partials } else { 0 }
    };
    if shape.splits == 1 && setup.gpu()?.simt.dependent_launch {
        let simt = setup.gpu()?.simt;
        code.shared.set(even_bytes(code.shared.get(), spec.tokens / shape.each * times, simt));
    }
    let tasks = if spec.each.is_some() { Tasks::Tiles { times } } else { Tasks::Tokens { per: 1, times } };
    let info = manifest::Kernel::simt(tasks, shape.threads);
    Ok((code, manifest::Kernel { workspace, ..info }))
}

/// Bytes of local memory with which no unit is given more than its even share of the work-groups.
/// Where kernels overlap, units become free one by one, and the first would be given as many as
/// fit.
fn even_bytes(bytes: usize, groups: usize, simt: &Simt) -> usize {
    let (units, lds) = (simt.chip.units, simt.unit.lds);
    let fit = (lds / (bytes + simt.unit.lds_granule)).max(1);
    let rounds = groups.div_ceil(units * fit);
    let even = groups.div_ceil(units * rounds);
    if even == fit { bytes } else { bytes.max((lds / (even + 1)).next_multiple_of(simt.unit.lds_granule)) }
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy)]
struct Run<'c> {
    /// The number of the run in the step.
    number: Int<'c>,
    /// The first token, the number of tokens, and the position of the first.
    token: Int<'c>,
    count: Int<'c>,
    position: Int<'c>,
}

impl<'c> Run<'c> {
    /// A token alone.
    fn one(a: &Attention<'_, '_, 'c>, token: Int<'c>) -> Run<'c> {
        let c = a.code();
        Run { number: token, token, count: c.int(1), position: c.load_index(a.cache.batch.positions, token) }
    }

    /// A tile of tokens.
    fn tile(a: &Attention<'_, '_, 'c>, number: Int<'c>) -> Run<'c> {
        let (c, batch) = (a.code(), &a.cache.batch);
        let [token, count] = [0, 1].map(|i| c.load_index(batch.tiles, number * 2 + i));
        Run { number, token, count, position: c.load_index(batch.positions, token) }
    }
}

/// The work of one work-group.
struct Part<'p, 'k, 'a, 'c> {
    attention: &'p Attention<'k, 'a, 'c>,
    shape: Shape,
    run: Run<'c>,
    /// The position of the last token.
    position: Int<'c>,
    table: Ptr<'c>,
    /// The head of the cache, and the first query: a head, or of several tokens a number that
    /// counts heads of a token first.
    cache_head: Int<'c>,
    head: Int<'c>,
    is_last_head: Int<'c>,
    /// The number of this split, and of splits with blocks.
    split: Int<'c>,
    used: Int<'c>,
    /// The first step, and the last of this split and of the sequence.
    first: Int<'c>,
    last: Int<'c>,
    counter: Ptr<'c>,
    /// The address of the splits' values.
    partials: Ptr<'c>,
}

impl<'p, 'k, 'a, 'c> Part<'p, 'k, 'a, 'c> {
    fn new(
        a: &'p Attention<'k, 'a, 'c>,
        shape: Shape,
        run: Run<'c>,
        rest: Int<'c>,
        workspace: Ptr<'c>,
    ) -> Part<'p, 'k, 'a, 'c> {
        let c = a.code();
        let (part, split) = (rest / shape.splits, rest % shape.splits);
        let group = a.heads / a.cache.ty.heads;
        let of_values = shape.of_values / shape.values;
        let tiles = shape.parts / of_values / a.cache.ty.heads;
        let place = if of_values == 1 { part } else { part / of_values };
        let (cache_head, tile) = (place / tiles, place % tiles);
        // The last tile of heads may reach back into the one before.
        let inside = c.smaller(tile * shape.columns, shape.each * group - shape.columns);
        let position = if shape.each == 1 { run.position } else { run.position + run.count - 1 };
        let tokens = a.cache.layout.block_tokens;
        let (begin, last) = (a.first_key(run.position) / tokens, position / tokens);
        let blocks = last - begin + 1;
        // Enough blocks that every wave has a step.
        let least = (WAVES * a.span()).div_ceil(tokens);
        let each = c.larger((blocks + (shape.splits - 1)) / shape.splits, least);
        let used = (blocks + each - 1) / each;
        let own = begin + split * each;
        let end = (own + each) * a.steps() - 1;
        let row = run.number * shape.parts + part;
        let partials = row * shape.splits * Partial::bytes(a, shape.columns);
        Part {
            attention: a,
            shape,
            run,
            position,
            table: a.cache.batch.table(c, run.token),
            cache_head,
            head: if shape.each == 1 { cache_head * group + inside } else { inside },
            is_last_head: c.equal(part, shape.parts - 1),
            split,
            used: c.uniform(used),
            first: own * a.steps(),
            last: c.smaller(end, position / a.span()),
            counter: c.at(workspace, row * 4),
            partials: c.at(c.at(workspace, COUNTERS), partials),
        }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.attention.code()
    }

    /// The block of a step; a step after the last one has the last one's block.
    fn block(&self, step: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.load_index(self.table, c.smaller(step, self.last) / self.attention.steps())
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let c = self.code();
        c.when(c.less(self.split, self.used), || self.attend())
    }

    fn attend(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.code());
        let row = a.cache.layout.dim * a.matrix.dtype.size() + 16;
        let (places, staged) = (KvPipeline::bytes(self, self.shape.stages), self.shape.columns * row);
        let local = c.local(combine::local_bytes(a, self.shape.columns, places + staged));
        let queries = c.at(local, places);
        let ring = (self.shape.stages > 0).then(|| KvPipeline::new(self, self.shape.stages, local));
        if ring.is_some() && self.shape.each == 1 {
            c.await_previous();
        }
        self.stage(queries, row, ring.as_ref())?;
        c.barrier();
        let column = c.smaller(a.place.column, self.shape.columns - 1);
        let own = c.at(queries, column * row);
        let running = match ring {
            Some(ring) => ring.all(own),
            None => {
                let part = a.place.part * (a.matrix.layout.depth * a.matrix.dtype.size());
                KvLoop::new(self, c.at(own, part)).all()
            }
        };
        self.combine(local, places + staged, &running)?;
        c.when(self.is_last_head & c.equal(self.split, 0), || {
            a.pad(self.run.token, self.run.count, self.shape.threads);
        });
        Ok(())
    }

    /// The running softmax of the lane's query before any key. Only the first wave of the first
    /// split counts a sink.
    fn begin(&self) -> OnlineSoftmax<'c> {
        let (a, c) = (self.attention, self.code());
        a.begin(|| {
            let column = c.smaller(a.place.column, self.shape.columns - 1);
            let is_first = c.equal(self.split, 0) & c.equal(c.wave_index(), 0) & c.equal(a.half, 0);
            (self.query(column).1, is_first)
        })
    }

    /// The token and the head of a query.
    fn query(&self, column: Int<'c>) -> (Int<'c>, Int<'c>) {
        let a = self.attention;
        if self.shape.each == 1 {
            return (self.run.token, self.head + column);
        }
        let group = a.heads / a.cache.ty.heads;
        let number = self.head + column;
        (self.run.token + self.number_in_run(number / group), self.cache_head * group + number % group)
    }

    /// The number of a token in its run. A token that the run does not have takes the last one's
    /// number; its results are not stored.
    fn number_in_run(&self, token: Int<'c>) -> Int<'c> {
        self.code().smaller(token, self.run.count - 1)
    }

    /// The position of the lane's query.
    fn seen(&self) -> Int<'c> {
        let (a, c) = (self.attention, self.code());
        if self.shape.each == 1 {
            return self.position;
        }
        let column = c.smaller(a.place.column, self.shape.columns - 1);
        let token = (self.head + column) / (a.heads / a.cache.ty.heads);
        self.run.position + self.number_in_run(token)
    }

    /// Whether a query has a token.
    fn is_real(&self, column: Int<'c>) -> Int<'c> {
        let a = self.attention;
        self.code().less((self.head + column) / (a.heads / a.cache.ty.heads), self.run.count)
    }

    /// The queries in local memory, and the token's key and value in the cache.
    fn stage(
        &self,
        local: Ptr<'c>,
        row: usize,
        ring: Option<&KvPipeline<'_, 'p, 'k, 'a, 'c>>,
    ) -> Result<(), Diagnostic> {
        let (a, c, rows) = (self.attention, self.code(), &self.attention.kernel.rows);
        let (dim, size, columns) = (a.cache.ty.head_dim, a.matrix.dtype.size(), self.shape.columns);
        c.set_lanes(a.lanes);
        let (team, first, teams) = teams(c, dim, self.shape.threads);
        let (first, writer) = match self.shape.stages {
            0 => (first, columns.min(teams - 1)),
            _ => (self.turned(first, teams), teams - 1),
        };
        rows.set_team(team);
        each_head(c, columns, (first, teams), |column| {
            rows.forget();
            let (token, head) = self.query(column);
            let to = c.at(local, column * row);
            rows.each_made([a.query_value()], (token, Some(head)), dim, |col, [v]| {
                c.store_floats(c.at(to, col * size), a.signed(v), a.matrix.dtype);
                Ok(())
            })
        })?;
        rows.forget();
        self.stage_padding(local, row);
        let has_token = c.equal(self.position / a.span() - self.last, 0);
        let written = c.when(has_token, || self.write(c.equal(first, writer), ring));
        rows.forget();
        written
    }

    /// A team's number, rotated so that the last teams belong to the wave that has the token's
    /// step. That wave writes the key that it needs.
    fn turned(&self, team: Int<'c>, teams: usize) -> Int<'c> {
        let a = self.attention;
        let own = self.position / a.span() - self.first;
        let later = WAVES - 1 - own % WAVES;
        (team + later * (teams / WAVES)) % teams
    }

    /// Zeros after the dimensions of the staged queries.
    fn stage_padding(&self, local: Ptr<'c>, row: usize) {
        let (a, c) = (self.attention, self.code());
        let (dim, size) = (a.cache.ty.head_dim, a.matrix.dtype.size());
        let padding = a.cache.layout.dim - dim;
        if padding == 0 {
            return;
        }
        c.repeat(c.thread(), self.shape.columns * padding, self.shape.threads, |i| {
            let col = i % padding + dim;
            let at = i / padding * row + col * size;
            c.store(c.at(local, at), c.bytes_type(size).const_zero(), size as u32);
        });
    }

    /// Writes the token's key and value, by one team, which has no query if there are enough teams:
    /// into the cache, and over the earlier copies of them.
    fn write(&self, is_writer: Int<'c>, ring: Option<&KvPipeline<'_, 'p, 'k, 'a, 'c>>) -> Result<(), Diagnostic> {
        let (a, c, rows) = (self.attention, self.code(), &self.attention.kernel.rows);
        let (cache, head) = (a.cache, self.cache_head);
        let Some(Written { key, value }) = cache.written() else { return Ok(()) };
        let Some(value) = value.filter(|_| cache.ty.head_dim == cache.ty.value_dim) else {
            return a.write(self.run.token, head, is_writer);
        };
        let entry = cache.entry(c, cache.slot(c, self.run.token), head);
        c.when(is_writer, || {
            let put = |col: Int<'c>, made| {
                cache.put(c, made, entry, col);
                if let Some((is_near, near)) = ring.map(KvPipeline::own_entry) {
                    c.when(is_near, || cache.put(c, made, near, col));
                }
                Ok(())
            };
            rows.each_made([key, value], (self.run.token, Some(head)), cache.ty.head_dim, put)
        })
    }
}
