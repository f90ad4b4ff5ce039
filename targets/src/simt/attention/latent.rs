//! Attention over a latent cache. The values are the first numbers of its keys, and all query heads
//! share its one head: many queries meet each key, so a work-group is a tile of a product.
//!
//! Its queries are the heads of a token, or of several tokens of one sequence. All waves step
//! through the keys together, 32 a turn. The keys come into local memory once and serve both
//! products: the loads of a later turn are in flight while one is computed. Each wave has the
//! scores of a tile of queries and a panel of keys, or of some columns of them. Scores are
//! exchanged through local memory, where neighbouring threads make a query's weights. Each wave
//! then has some dimensions of the values for all queries, so registers hold their sums.
//!
//! The second product takes numbers of 8 consecutive keys in a lane, and keys lie vector by vector
//! of 8 numbers. So a lane reads the vectors of 8 keys at the same columns and transposes 8 by 8
//! numbers in registers, two in an instruction. Each result then serves all tiles of queries.
//!
//! In decode steps work-groups share a sequence. Two neighbours exchange sums through the
//! workspace: the one that ends later adds the sums that the earlier one has left, and continues
//! with the next pair.
mod keys;
mod queries;
mod shape;
mod softmax;
mod tree;
mod values;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::{Diagnostic, Family};

use self::keys::Ahead;
use self::shape::{SIDE, Shape};
use self::softmax::Running;
use crate::code::{Any, Int, Ptr, Vector};
use crate::kernel::List;
use crate::schedule::{Schedule, WhyNot};
use crate::simt::attention::flash::Attention;
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Kernel, Setup};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Fragment;
use crate::{KernelSpec, Tasks};

/// Fewest blocks of the cache that are a work-group's own.
const LEAST: usize = 2;

pub const SCHEDULE: Schedule = Schedule {
    name: "latent_decode",
    family: Family::AttendOne,
    invariant: false,
    suits: |spec, arch, _| Shape::new(spec, launch::gpu(arch)?, 1).map(drop),
    open: None,
    emit: |setup, spec| launch::finish(emit_one(setup, spec)),
};

pub const MANY: Schedule = Schedule {
    name: "latent_prefill",
    family: Family::AttendMany,
    invariant: true,
    suits: |spec, arch, _| Shape::new(spec, launch::gpu(arch)?, TILE_TOKENS).map(drop),
    open: None,
    emit: |setup, spec| launch::finish(emit_many(setup, spec)),
};

/// Attention over listed positions: a work-group gathers the keys of its own token's list.
pub const LISTED: Schedule = Schedule {
    name: "latent_listed",
    family: Family::AttendListed,
    invariant: false,
    suits: |spec, arch, _| Shape::new(spec, launch::gpu(arch)?, 1).map(drop),
    open: None,
    emit: |setup, spec| launch::finish(emit_one(setup, spec)),
};

fn emit_one<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, 1).map_err(WhyNot::diagnostic)?;
    let code = setup.open(spec, shape.threads)?;
    code.want_waves(shape.simd_waves(setup.gpu()?.simt.unit.simds));
    let times = shape.parts * shape.splits;
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let attention = Attention::new(&kernel)?;
        let workspace = c.argument(launch::arguments(spec.body) + 1);
        // Work-groups that share keys are as many apart as others are there, so that most often
        // they share a cache too.
        let each = launch::step_size(c, spec, kernel.by_rows) * shape.splits;
        let [part, rest] = c.divide(c.group(), each);
        c.when(c.less(part, shape.parts), || {
            let place = Place { part, token: rest / shape.splits, split: rest % shape.splits };
            Group::of_token(&attention, shape, &place, workspace).run()
        })?;
    }
    let partials = spec.tokens * times * shape.partial();
    let workspace = if shape.splits > 1 { COUNTERS + partials } else { 0 };
    let info = manifest::Kernel::simt(Tasks::Tokens { per: 1, times }, shape.threads);
    Ok((code, manifest::Kernel { workspace, ..info }))
}

fn emit_many<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?, TILE_TOKENS).map_err(WhyNot::diagnostic)?;
    let code = setup.open(spec, shape.threads)?;
    code.want_waves(shape.simd_waves(setup.gpu()?.simt.unit.simds));
    {
        let c = &code;
        let kernel: Kernel = launch::kernel(c, spec)?;
        let attention = Attention::new(&kernel)?;
        let batch = &attention.cache.batch;
        let (number, part) = (c.group() / shape.parts, c.group() % shape.parts);
        c.when(c.less(number, batch.tile_count), || {
            // Tiles with the most keys begin first.
            let tile = batch.tile_count - 1 - number;
            let count = c.load_index(batch.tiles, tile * 2 + 1);
            let part = shape.parts - 1 - part;
            c.when(c.less(part * shape.queries(), count * attention.heads), || {
                Group::of_tile(&attention, shape, (tile, count), part).run()
            })
        })?;
    }
    Ok((code, manifest::Kernel::simt(Tasks::Tiles { times: shape.parts }, shape.threads)))
}

/// Which part of a token's heads, and of its keys.
struct Place<'c> {
    part: Int<'c>,
    token: Int<'c>,
    split: Int<'c>,
}

/// Carried from turn to turn: the sums of values so far, and the turn's own values, as stored.
struct Now<'c> {
    running: Running<'c>,
    sums: Vec<Vector<'c>>,
    values: Vec<Vector<'c>>,
    ahead: Ahead<'c>,
}

impl<'c> Now<'c> {
    fn carried(&self) -> Vec<Any<'c>> {
        let vectors = self.sums.iter().chain(&self.values).map(|&v| v.into());
        self.running.carried().into_iter().chain(vectors).chain(self.ahead.carried()).collect()
    }

    /// The carried values, split into sums, values, and places of keys, by their numbers.
    fn of(c: &Gpu<'c>, carried: &[Any<'c>], [sums, values, places]: [usize; 3]) -> Now<'c> {
        let (running, rest) = carried.split_at(Running::COUNT);
        let (vectors, ahead) = rest.split_at(sums + values);
        let vectors: Vec<Vector<'c>> = vectors.iter().map(|v| v.into_vector_value()).collect();
        let (sums, values) = vectors.split_at(sums);
        let ahead = Ahead::of(c, ahead, places);
        Now { running: Running::of(running), sums: sums.to_vec(), values: values.to_vec(), ahead }
    }
}

/// The first tile of queries and the first panel of keys that a wave has scores of, and the part of
/// the columns.
struct WavePlace<'c> {
    tile: Int<'c>,
    panel: Int<'c>,
    cut: Int<'c>,
}

/// The work of one work-group. Queries are counted head by head, token by token.
struct Group<'t, 'k, 'a, 'c> {
    a: &'t Attention<'k, 'a, 'c>,
    shape: Shape,
    /// The token and the position that queries are counted from, the work-group's first query, and
    /// the end of all.
    token: Int<'c>,
    position: Int<'c>,
    first: Int<'c>,
    limit: Int<'c>,
    table: Ptr<'c>,
    /// The positions whose keys these are, if not all: entries are counted as positions are.
    list: Option<List<'c>>,
    /// The first turn, and the last.
    begin: Int<'c>,
    last: Int<'c>,
    local: Ptr<'c>,
    split: Option<Split<'c>>,
    is_first_part: Int<'c>,
    tokens: Int<'c>,
}

/// The split of a sequence that a work-group has, if there are several.
struct Split<'c> {
    number: Int<'c>,
    used: Int<'c>,
    counters: Ptr<'c>,
    partials: Ptr<'c>,
}

impl<'t, 'k, 'a, 'c> Group<'t, 'k, 'a, 'c> {
    fn of_token(
        a: &'t Attention<'k, 'a, 'c>,
        shape: Shape,
        place: &Place<'c>,
        workspace: Ptr<'c>,
    ) -> Group<'t, 'k, 'a, 'c> {
        let (c, batch) = (a.code(), &a.cache.batch);
        let list = a.list(place.token);
        let position = match &list {
            // Without a key there is a turn of keys that no query sees.
            Some(list) => list.count - 1,
            None => c.load_index(batch.positions, place.token),
        };
        let turns = a.cache.layout.block_tokens / shape.keys();
        let end_key = c.larger(position, 0);
        let blocks = end_key / a.cache.layout.block_tokens + 1;
        let each = c.larger((blocks + (shape.splits - 1)) / shape.splits, LEAST);
        let used = c.uniform((blocks + each - 1) / each);
        let own = place.split * each;
        let end = (own + each) * turns - 1;
        let row = place.token * shape.parts + place.part;
        let split = (shape.splits > 1).then(|| Split {
            number: place.split,
            used,
            counters: c.at(workspace, row * (4 * shape.splits)),
            partials: c.at(c.at(workspace, COUNTERS), row * (shape.splits * shape.partial())),
        });
        Group {
            a,
            shape,
            token: place.token,
            position,
            first: place.part * shape.queries(),
            limit: c.int(a.heads),
            table: batch.table(c, place.token),
            list,
            begin: own * turns,
            last: c.smaller(end, end_key / shape.keys()),
            local: c.local(shape.local()),
            split,
            is_first_part: c.equal(place.part, 0),
            tokens: c.int(1),
        }
    }

    fn of_tile(
        a: &'t Attention<'k, 'a, 'c>,
        shape: Shape,
        (tile, count): (Int<'c>, Int<'c>),
        part: Int<'c>,
    ) -> Group<'t, 'k, 'a, 'c> {
        let (c, batch) = (a.code(), &a.cache.batch);
        let token = c.load_index(batch.tiles, tile * 2);
        let position = c.load_index(batch.positions, token);
        let (first, limit) = (part * shape.queries(), count * a.heads);
        let end = c.smaller(first + shape.queries(), limit) - 1;
        Group {
            a,
            shape,
            token,
            position,
            first,
            limit,
            table: batch.table(c, token),
            list: None,
            begin: c.int(0),
            last: c.uniform((position + end / a.heads) / shape.keys()),
            local: c.local(shape.local()),
            split: None,
            is_first_part: c.equal(part, 0),
            tokens: count,
        }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.a.code()
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let c = self.code();
        match &self.split {
            Some(split) => c.when(c.less(split.number, split.used), || self.attend()),
            None => self.attend(),
        }
    }

    fn attend(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.a, self.code());
        self.write()?;
        let queries = self.queries()?;
        let (running, sums) = self.turns(&queries);
        match &self.split {
            None => self.finish([running.row_max, self.total(running.sum)], &sums),
            Some(split) => self.meet(split, &running, &sums),
        }
        let is_first_split = self.split.as_ref().map_or(c.always(), |split| c.equal(split.number, 0));
        c.when(self.is_first_part & is_first_split, || a.pad(self.token, self.tokens, self.shape.threads));
        Ok(())
    }

    /// All turns. All waves read keys at one time: the scores of the next turn are made together
    /// with the sums of this turn's values. Between barriers weights are made of scores, and the
    /// next keys replace those that all waves have taken the values from.
    fn turns(&self, queries: &[Vec<Fragment<'c>>]) -> (Running<'c>, Vec<Vector<'c>>) {
        let c = self.code();
        // All waves see the new entries of the cache, and have read the queries where keys are
        // stored next.
        c.barrier();
        let ahead = self.first_keys();
        c.barrier();
        let values = self.score(queries, || self.values());
        let now = Now { running: Running::begin(self), sums: self.no_sums(), values, ahead };
        let counts = [now.sums.len(), now.values.len(), self.places()];
        let carried = c.for_each((self.begin, self.last, 1), &now.carried(), |turn, carried| {
            let now = Now::of(c, carried, counts);
            c.barrier();
            let (running, ahead) = self.weigh(turn, &now.running, || self.next_keys(turn, &now.ahead));
            c.barrier();
            let weights = self.score(queries, || self.weights());
            let (sums, values) = self.add_values(&now.values, &weights, &now.sums, || self.values());
            Now { running, sums, values, ahead }.carried()
        });
        let now = Now::of(c, &carried, counts);
        c.barrier();
        let (running, ()) = self.weigh(self.last, &now.running, || ());
        c.barrier();
        let (sums, ()) = self.add_values(&now.values, &self.weights(), &now.sums, || ());
        (running, sums)
    }

    /// The queries and keys that the wave has scores of.
    fn wave_place(&self) -> WavePlace<'c> {
        let (s, wave) = (&self.shape, self.code().wave_index());
        let (tiles, panels) = (s.tiles / s.own_tiles, s.panels / s.own_panels);
        let share = wave / tiles;
        WavePlace { tile: wave % tiles * s.own_tiles, panel: share % panels, cut: share / panels }
    }

    /// The number of a query of the work-group among all; a query after the last one takes the last
    /// one's.
    fn flat(&self, query: Int<'c>) -> Int<'c> {
        self.code().smaller(self.first + query, self.limit - 1)
    }

    /// Two numbers of each query, in local memory.
    fn number(&self, which: usize, query: Int<'c>) -> Ptr<'c> {
        let at = self.shape.numbers() + which * 4 * self.shape.queries();
        self.code().at(self.local, query * 4 + at)
    }

    /// The first of these numbers for the lane's query of each tile.
    fn numbers(&self, which: usize) -> Vec<Any<'c>> {
        let (c, column) = (self.code(), self.a.place.column);
        let load = |tile: usize| c.load(c.cx.f32_type(), self.number(which, column + tile * SIDE), 4);
        (0..self.shape.tiles).map(load).collect()
    }
}
