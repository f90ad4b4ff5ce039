//! Attention over a cache of one head with values that are a part of its keys (latent attention),
//! on machines where four waves multiply together.
//!
//! All query heads see the same keys, so a tile is 64 queries by the 64 keys of a block: query
//! heads of one token, or of several tokens of one sequence. A block is copied into local memory
//! once and is the right operand of both products, the second time transposed.
//!
//! Teams of four waves share a tile. One team makes scores and their softmax. It leaves the weights
//! in place of the last columns of the block's keys, which are no values. Two teams add up weighted
//! values, each half of the columns. Where all columns are values, weights have a place of their
//! own. While these add the values of one block, scores of the next one are made. No wave only
//! copies: sums of 256 columns take so many registers that there is room for three teams alone. The
//! first team loads a tile's first blocks; the second one loads another block when it has finished
//! one.
//!
//! In decode, work-groups share the blocks of a sequence ([`splits`]).
//!
//! A token that attends to a list has 64 entries of it in place of a block ([`listed`]).
mod listed;
mod queries;
mod scores;
mod splits;
mod values;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Diagnostic, Family};

use crate::code::{Int, Ptr};
use crate::kernel::List;
use crate::row::unsupported;
use crate::schedule::{Schedule, WhyNot};
use crate::simt::attention::flash::Attention;
use crate::simt::attention::rounds::each_in_rounds;
use crate::simt::attention::sizes::{Sizes, sees_all};
use crate::simt::launch;
use crate::simt::launch::{COUNTERS, Setup, arguments, kernel};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::Matrix;
use crate::simt::machine::pipeline::Pipeline;
use crate::simt::machine::warpgroup::{MAP, TensorMap, TileForm};
use crate::{KernelSpec, Tasks};

/// Queries of a tile: rows of the left operand.
const QUERIES: usize = 64;
/// Threads that multiply together.
const TEAM: usize = 128;
/// Teams that add up values, each some of their columns.
const VALUE_TEAMS: usize = 2;
const THREADS: usize = TEAM * (1 + VALUE_TEAMS);
/// Registers of a thread that makes scores, and of one that adds up values: together as many as the
/// three teams have at the launch, 168 a thread.
const REGISTERS: [usize; 2] = [120, 192];
/// Threads that stage the queries of a token: the value teams have no other work before the first
/// block.
const STAGERS: usize = 2 * TEAM;
/// Blocks in local memory: as many as fit next to the queries.
const STAGES: usize = 2;
/// Bytes of 8 rows by 16 bytes of a panel, and of 16.
const HALF: usize = 128;
const GROUP: usize = 2 * HALF;
/// Bytes of a row of a swizzled tile, and of 64 such rows.
const ROW: usize = 128;
const CHUNK: usize = QUERIES * ROW;
/// Most parts of a sequence.
const SPLITS: usize = 64;
/// The barrier of the two value teams, and the one after the queries are staged.
const VALUES_MEET: usize = 1;
const QUERIES_MEET: usize = 2;

/// How queries and keys are shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Query heads of a tile, tokens of a tile, and tiles of a token's heads.
    heads: usize,
    tokens: usize,
    parts: usize,
    /// Work-groups that share a sequence's blocks.
    splits: usize,
    /// Columns of keys, and of them those of values.
    dim: usize,
    values: usize,
    /// Work-groups that stay, if they do.
    groups: usize,
    /// Whether a work-group is a token with some of its heads, and not one that stays.
    by_token: bool,
    /// Entries of a token's list, if it attends to one.
    listed: Option<usize>,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: GpuArch) -> Result<Shape, Diagnostic> {
        let (sizes, units) = (Sizes::of(spec.body)?, arch.simt.chip.units);
        let parts = sizes.heads.div_ceil(QUERIES);
        let heads = sizes.heads.div_ceil(parts);
        let by_token = spec.family != Family::AttendMany;
        let most = sizes.listed.map_or(SPLITS, |entries| SPLITS.min(entries.div_ceil(QUERIES)));
        let splits = if by_token { (units / (spec.tokens * parts)).clamp(1, most) } else { 1 };
        Ok(Shape {
            heads,
            tokens: if by_token { 1 } else { QUERIES / heads },
            parts,
            splits,
            dim: sizes.cache.head_dim,
            values: sizes.cache.value_dim,
            groups: units,
            by_token,
            listed: sizes.listed,
        })
    }

    /// Bytes of weights that have a place of their own, as all columns of keys are values.
    fn apart(&self) -> usize {
        if self.values + QUERIES <= self.dim { 0 } else { STAGES * CHUNK }
    }

    /// Bytes of a block's keys.
    fn bytes(&self) -> usize {
        QUERIES * self.dim * 2
    }

    /// Pieces of 64 columns of a key.
    fn chunks(&self) -> usize {
        self.dim / QUERIES
    }

    /// Tiles of a token, or of a tile of the batch.
    fn tiles(&self) -> usize {
        TILE_TOKENS.div_ceil(self.tokens) * self.parts
    }
}

fn suits(spec: &KernelSpec, arch: GpuArch) -> Result<(), WhyNot> {
    let sizes = Sizes::of(spec.body)?;
    let (cache, simt) = (sizes.cache, arch.simt);
    WhyNot::unless(cache.is_prefix && cache.heads == 1, || {
        format!("{cache}: for one head whose values are a part of its keys")
    })?;
    WhyNot::unless(simt.warpgroup_mma, || format!("{} has no warpgroup MMA", arch.name))?;
    let halves = cache.dtype.size() == 2 && sizes.stored.dtype == cache.dtype && Matrix::native(simt, cache.dtype);
    WhyNot::unless(halves, || format!("a cache of {}: warpgroup MMA takes 16-bit floats", cache.dtype.name()))?;
    WhyNot::unless(arch.memory.block_tokens == QUERIES, || format!("blocks of {}", arch.memory.block_tokens))?;
    // Each value team has up to 256 columns. Weights overwrite a key's last 64 columns.
    let (dim, values) = (cache.head_dim, cache.value_dim);
    let fits = dim.is_multiple_of(QUERIES) && values.is_multiple_of(32 * VALUE_TEAMS) && values <= 256 * VALUE_TEAMS;
    let apart = Shape::new(spec, arch)?.apart();
    let bytes = QUERIES * dim * 2 * (STAGES + 1) + apart + (4 << 10);
    let fits = fits && values <= dim && bytes <= simt.unit.lds_group;
    WhyNot::unless(fits, || format!("keys of {dim} with values of {values}"))?;
    let result = spec.body.outputs().iter().find_map(|&v| spec.body.ty(v).as_tensor());
    let result = result.map_or(cache.dtype, |t| t.dtype);
    let is_stored = [cache.dtype, DType::F32].contains(&result);
    WhyNot::unless(is_stored, || format!("results of {}, keys of {}", result.name(), cache.dtype.name()))?;
    sees_all(spec.body)
}

pub const SCHEDULE: Schedule = Schedule {
    name: "latent_warpgroup",
    family: Family::AttendOne,
    invariant: false,
    suits: |spec, arch, _| suits(spec, launch::gpu(arch)?),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// The schedule for tiles of many tokens that have their keys in the cache.
pub const TOKENS: Schedule =
    Schedule { name: "latent_warpgroup_tokens", family: Family::AttendMany, invariant: true, ..SCHEDULE };

/// The schedule for tokens that attend to a list.
pub const LISTED: Schedule = Schedule { name: "latent_warpgroup_listed", family: Family::AttendListed, ..SCHEDULE };

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let shape = Shape::new(spec, setup.gpu()?)?;
    let early = spec.family == Family::AttendOne;
    let code = if early { setup.open_early(spec, THREADS) } else { setup.open(spec, THREADS) }?;
    code.want_waves(THREADS / TEAM);
    {
        let kernel = kernel(&code, spec)?;
        let attention = Attention::new(&kernel)?;
        if shape.listed.is_some() && attention.cache.written().is_some() {
            return Err(unsupported("attention over a list by a kernel that writes the key"));
        }
        Group::new(&attention, shape, spec).run(early)?;
    }
    let times = shape.parts * shape.splits;
    let tasks = if shape.by_token { Tasks::Tokens { per: 1, times } } else { Tasks::Fixed(shape.groups) };
    let groups = if shape.by_token { spec.tokens * times } else { shape.groups };
    let partials = if shape.splits > 1 { groups * shape.partial_bytes() } else { 0 };
    let workspace = COUNTERS + groups * MAP + partials;
    Ok((code, manifest::Kernel { workspace, together: shape.splits, ..manifest::Kernel::simt(tasks, THREADS) }))
}

/// The work of one work-group.
struct Group<'r, 'k, 'a, 'c> {
    attention: &'r Attention<'k, 'a, 'c>,
    shape: Shape,
    /// The queries of a tile, in pieces of 64 columns with swizzled rows.
    queries: Int<'c>,
    queries_at: Ptr<'c>,
    /// Pipelines of blocks of keys, of a block's weights with the factors of earlier sums, and of a
    /// tile's ends.
    keys: Pipeline<'c>,
    weights: Pipeline<'c>,
    ends: Pipeline<'c>,
    /// Where weights are, if they are not in place of the last columns of keys.
    apart: Option<Int<'c>>,
    /// The token's own key, and the barrier that says that it is there.
    own_key: Ptr<'c>,
    written: Int<'c>,
    /// Room for the map of keys, and this work-group's place for it.
    map: Ptr<'c>,
    placed: Ptr<'c>,
    workspace: Ptr<'c>,
    /// Tokens of the plan, and of the step.
    tokens: usize,
    in_step: Int<'c>,
}

/// 64 queries, and the blocks that they see.
struct Tile<'c> {
    /// The first token, the number of tokens, and the position of the first.
    token: Int<'c>,
    count: Int<'c>,
    position: Int<'c>,
    table: Ptr<'c>,
    /// The positions whose keys these are, if not all: entries are counted as positions are.
    list: Option<List<'c>>,
    /// The first query head.
    head: Int<'c>,
    /// The blocks of this work-group.
    first: Int<'c>,
    end: Int<'c>,
    /// The turn of the first block, and of the tile.
    turn: Int<'c>,
    number: Int<'c>,
    shared: Option<Shared<'c>>,
}

/// A sequence with its blocks shared out among work-groups.
#[derive(Clone, Copy)]
struct Shared<'c> {
    /// The number of its tile, of its part of the blocks, and of parts with blocks.
    tile: Int<'c>,
    split: Int<'c>,
    used: Int<'c>,
}

impl<'r, 'k, 'a, 'c> Group<'r, 'k, 'a, 'c> {
    fn new(attention: &'r Attention<'k, 'a, 'c>, shape: Shape, spec: &KernelSpec) -> Group<'r, 'k, 'a, 'c> {
        let c = attention.code();
        let queries_at = c.shared(shape.bytes(), 1024);
        let keys = Pipeline::new(c, STAGES, shape.bytes(), 1024);
        // A number for each query, and two of them.
        let weights = Pipeline::new(c, STAGES, 4 * QUERIES, 16);
        let ends = Pipeline::new(c, 2, 8 * QUERIES, 16);
        let apart = (shape.apart() > 0).then(|| c.local_address(c.shared(shape.apart(), 1024)));
        let own_key = c.shared(shape.dim * 2, 16);
        let written = c.local_address(c.shared(8, 8));
        let map = c.shared(MAP, MAP);
        let workspace = c.argument(arguments(spec.body) + 1);
        Group {
            attention,
            shape,
            queries: c.local_address(queries_at),
            queries_at,
            keys,
            weights,
            ends,
            apart,
            own_key,
            written,
            map,
            placed: c.at(workspace, c.group() * MAP + COUNTERS),
            workspace,
            tokens: spec.tokens,
            in_step: launch::step_size(c, spec, false),
        }
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.attention.code()
    }

    /// With `early` it begins before the kernel ahead of it ends.
    fn run(&self, early: bool) -> Result<(), Diagnostic> {
        let c = self.code();
        c.when(c.equal(c.thread(), 0), || {
            let copiers = if self.shape.listed.is_some() { VALUE_TEAMS * TEAM } else { 1 };
            self.keys.make_barriers(c, [copiers, VALUE_TEAMS * TEAM / 32]);
            self.weights.make_barriers(c, [TEAM, 1]);
            self.ends.make_barriers(c, [TEAM, VALUE_TEAMS * TEAM]);
            c.make_barrier_of(32, self.written);
            c.show_barriers();
        });
        self.share_map(early);
        let (team, mut result) = (c.thread() / TEAM, Ok(()));
        c.when(c.equal(team, 0), || {
            c.set_registers(REGISTERS[0], false);
            result = self.each_tile(|tile| self.make_scores(tile));
        });
        result?;
        let mut result = Ok(());
        c.when(c.less(0, team), || {
            c.set_registers(REGISTERS[1], true);
            result = self.each_tile(|tile| self.add_values(tile, team - 1));
        });
        result
    }

    /// Makes the map of keys, if blocks are copied by one. All threads meet here.
    fn share_map(&self, early: bool) {
        let c = self.code();
        if self.shape.listed.is_some() {
            return c.barrier();
        }
        let makes_map = c.equal(c.wave_index(), 0);
        c.when(makes_map, || self.make_map());
        // The previous kernel may have its own maps in the place of this one's.
        if early {
            c.await_previous();
        }
        c.when(makes_map, || c.place_map(self.placed, c.local_address(self.map)));
        c.barrier();
        c.see_map(self.placed);
    }

    /// `body` for each tile of this work-group.
    fn each_tile(&self, body: impl FnOnce(&Tile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        if self.shape.by_token { self.own_tile(body) } else { self.each_of_batch(body) }
    }

    /// The tile of a token and some of its heads, if there is one, with this work-group's blocks.
    fn own_tile(&self, body: impl FnOnce(&Tile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let (c, a, shape) = (self.code(), self.attention, self.shape);
        let (place, split) = (c.group() / shape.splits, c.group() % shape.splits);
        let (token, part) = (place / shape.parts, place % shape.parts);
        c.when(c.less(token, self.in_step), || {
            let list = a.list(token);
            let position = match &list {
                // Without a key there is a block of keys that no query sees.
                Some(list) => list.count - 1,
                None => c.load_index(a.cache.batch.positions, token),
            };
            let blocks = c.larger(position, 0) / a.cache.layout.block_tokens + 1;
            let each = (blocks + (shape.splits - 1)) / shape.splits;
            let used = (blocks + each - 1) / each;
            let first = split * each;
            let tile = Tile {
                token,
                count: c.int(1),
                position,
                table: a.cache.batch.table(c, token),
                list,
                head: self.first_head(part),
                first,
                end: c.smaller(first + each, blocks),
                turn: c.int(0),
                number: c.int(0),
                shared: (shape.splits > 1).then_some(Shared { tile: place, split, used }),
            };
            c.when(c.less(split, used), || body(&tile))
        })
    }

    /// The last tile of heads may reach back into the one before.
    fn first_head(&self, part: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.smaller(part * self.shape.heads, self.attention.heads - self.shape.heads)
    }

    /// The tiles of the batch, those with many keys first.
    fn each_of_batch(&self, body: impl FnOnce(&Tile<'c>) -> Result<(), Diagnostic>) -> Result<(), Diagnostic> {
        let (c, a, shape) = (self.code(), self.attention, self.shape);
        let batch = &a.cache.batch;
        let tiles = shape.tiles();
        let begin = [c.int(0).into(), c.int(0).into()];
        let mut result = Ok(());
        each_in_rounds(c, batch.tile_count * tiles, shape.groups, &begin, |number, is_one, carried| {
            let (turn, done) = (c.as_int(carried[0]), c.as_int(carried[1]));
            let (index, rest) = (batch.tile_count - 1 - number / tiles, number % tiles);
            let entry = |i: usize| c.load_index(batch.tiles, index * 2 + i);
            let skipped = rest / shape.parts * shape.tokens;
            let is_one = is_one & c.less(skipped, entry(1));
            let token = c.pick_int(is_one, entry(0) + skipped, entry(0));
            let count = c.smaller(entry(1) - skipped, shape.tokens);
            let position = c.load_index(batch.positions, token);
            let keys = a.cache.layout.block_tokens;
            let end = (position + count + (keys - 1)) / keys;
            let tile = Tile {
                token,
                count,
                position,
                table: batch.table(c, token),
                list: None,
                head: self.first_head(rest % shape.parts),
                first: c.int(0),
                end,
                turn,
                number: done,
                shared: None,
            };
            c.when(is_one, || result = body(&tile));
            vec![c.pick(is_one, turn + end, turn), c.pick(is_one, done + 1, done)]
        });
        result
    }

    /// The form of a block's keys in local memory: its rows are keys.
    fn keys_form(&self) -> TileForm {
        TileForm::of_columns(QUERIES)
    }

    /// The form of a block as values: its rows are columns of keys.
    fn values_form(&self) -> TileForm {
        TileForm::of_columns_turned(QUERIES)
    }

    /// The place of the weights of a turn's block: the last columns of its keys, if these are no
    /// values.
    fn weights_at(&self, turn: Int<'c>) -> Int<'c> {
        match self.apart {
            Some(apart) => apart + turn % STAGES * CHUNK,
            None => self.keys.at(turn) + (self.shape.bytes() - CHUNK),
        }
    }

    /// How blocks are copied: of each 16 bytes of columns all rows, then the next 16 bytes.
    fn make_map(&self) {
        let (c, cache) = (self.code(), self.attention.cache);
        let (local, panel) = (c.local_address(self.map), self.attention.key_panel());
        c.clear_maps(self.map, 1);
        c.when(c.equal(c.lane_index(), 0), || {
            let (panels, groups, inner) = (self.shape.bytes() / panel, panel / GROUP, GROUP / 2);
            let dims = [(inner, 0, inner), (panels, panel, panels), (groups, GROUP, groups)];
            let outer = Some(cache.batch.block_stride);
            c.make_map(local, cache.k, &TensorMap { dtype: cache.ty.dtype, dims: &dims, outer, swizzled: false });
        });
        c.meet_in_wave();
    }

    /// Issues the copy of a block of a tile, if the condition holds and the block exists. It waits
    /// until the turn's place is empty.
    fn ask(&self, tile: &Tile<'c>, condition: Int<'c>, block: Int<'c>) {
        let c = self.code();
        c.when(condition & c.less(block, tile.end), || {
            let turn = tile.turn + (block - tile.first);
            self.keys.wait_empty(c, turn);
            let number = c.load_index(tile.table, block);
            let full = self.keys.full(turn);
            c.expect_bytes(c.always(), full, self.shape.bytes());
            c.copy_box(self.keys.at(turn), self.placed, &[c.int(0), c.int(0), c.int(0), number], full);
        });
    }

    /// The block that a token's own key is in.
    fn own_block(&self, tile: &Tile<'c>) -> Int<'c> {
        tile.position / self.attention.cache.layout.block_tokens
    }
}
