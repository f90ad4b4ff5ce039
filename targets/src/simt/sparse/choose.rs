//! Family `choose`: a work-group is a list of a token, or a part of its keys in steps of few
//! tokens. Its waves multiply panels of keys with the queries of all heads, which are in registers.
//! Local memory has the scores of a turn of keys, and a list of the best positions so far, in
//! ascending order. A full list is cut to the `k` best; from then on only better keys enter it.
//! Then the work-groups of a list choose together from what they have ([`together`]), where a chip
//! lets them wait for each other; elsewhere the last one chooses from what all have.
//!
//! A list has positions, by scores that are sums over heads; or each head of queries has a list, of
//! blocks of keys, by the largest score of a block.
//!
//! A token with no more than `k` positions or blocks takes all of them without a look at any key.
mod together;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{Diagnostic, Family, Op};
use inkwell::IntPredicate;
use inkwell::values::FloatValue;

use super::{THREADS, takes};
use crate::cache::Cache;
use crate::choice::{self, ABOVE_ALL, Choice, DIGITS};
use crate::code::{Any, Int, Ptr, carried};
use crate::row::{At, Col, Operand, unsupported};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::keys::Keys;
use crate::simt::launch::{self, COUNTERS, Kernel, Setup};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::{Fragment, Matrix, VEC16};
use crate::{KernelSpec, Tasks};

/// Turns of keys that a list has room for, beyond the best.
const TURNS: usize = 2;
/// Keys of a panel.
const PANEL: usize = 16;
/// Most work-groups of a list, and the fewest turns of each.
const SPLITS: usize = 32;
const LEAST: usize = 2;
/// Digits that a thread counts together.
const COUNTED: usize = 16;
/// Most registers of a lane for queries.
const HELD: usize = 64;

pub const SCHEDULE: Schedule = Schedule {
    name: "choose",
    family: Family::Choose,
    invariant: true,
    suits: |spec, arch, _| {
        let gpu = launch::gpu(arch)?;
        let sizes = Sizes::of(spec)?;
        let Choice { cache, size, .. } = sizes.choice;
        takes(cache, gpu.memory.group_bytes / cache.dtype.size())?;
        WhyNot::unless(THREADS.is_multiple_of(size), || format!("blocks of {size} keys: {THREADS} are no whole ones"))?;
        let bytes = sizes.bytes(gpu);
        let why = || format!("{bytes} bytes of local memory, {} are there", gpu.simt.unit.lds_group);
        WhyNot::unless(bytes <= gpu.simt.unit.lds_group, why)
    },
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// Sizes of a choice before there is a kernel.
struct Sizes {
    choice: Choice,
}

impl Sizes {
    fn of(spec: &KernelSpec) -> Result<Sizes, Diagnostic> {
        Ok(Sizes { choice: Choice::of(spec.body)? })
    }

    /// Entries that a list has room for.
    fn room(&self) -> usize {
        self.choice.k + TURNS * THREADS
    }

    /// Heads in whole tiles of products.
    fn padded_heads(&self, gpu: GpuArch) -> usize {
        self.choice.heads().next_multiple_of(gpu.simt.matrix.columns)
    }

    /// Bytes of a query in local memory.
    fn query_row(&self, gpu: GpuArch) -> usize {
        gpu.memory.padded(self.choice.cache.head_dim) * self.choice.cache.dtype.size() + VEC16
    }

    /// Bytes of local memory.
    fn bytes(&self, gpu: GpuArch) -> usize {
        let heads = self.padded_heads(gpu);
        heads * (self.query_row(gpu) + 4) + 4 * (2 * self.room() + THREADS + DIGITS + THREADS / gpu.simt.wave + 1)
    }

    /// Work-groups that share the keys of a list, in steps of this many tokens.
    fn splits(&self, gpu: GpuArch, tokens: usize) -> usize {
        let lists = tokens * self.choice.lists();
        let most = SPLITS.min(COUNTERS / 4 / lists);
        (2 * gpu.simt.chip.units / lists).clamp(1, most.max(1))
    }

    /// Whether the work-groups of a list wait for each other. On AMD's chips that was not tried.
    fn wait(gpu: GpuArch) -> bool {
        gpu.simt.warpgroup_mma
    }

    /// Bytes that a work-group leaves for the others: a list of numbers and positions, or counts.
    fn left(&self, gpu: GpuArch) -> usize {
        if Sizes::wait(gpu) { together::LEFT } else { 2 * 4 * self.choice.k }
    }
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let code = setup.open(spec, THREADS)?;
    let (sizes, gpu) = (Sizes::of(spec)?, setup.gpu()?);
    let (splits, left, lists) = (sizes.splits(gpu, spec.tokens), sizes.left(gpu), sizes.choice.lists());
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let chooser = Chooser::new(&kernel, sizes, splits)?;
        let workspace = c.argument(launch::arguments(spec.body) + 1);
        let [list, split] = c.divide(c.group(), c.int(splits));
        let [token, head] = c.divide(list, c.int(lists));
        let run = || chooser.run((token, head), (list, split), workspace);
        c.when(c.less(token, launch::step_size(c, spec, false)), run)?;
    }
    let workspace = if splits > 1 { COUNTERS + spec.tokens * lists * splits * left } else { 0 };
    let info = manifest::Kernel::simt(Tasks::Tokens { per: 1, times: lists * splits }, THREADS);
    let together = if Sizes::wait(gpu) { splits } else { 1 };
    Ok((code, manifest::Kernel { workspace, together, ..info }))
}

struct Chooser<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    out: &'k Operand<'c>,
    sizes: Sizes,
    /// Heads in whole tiles of products, and bytes of a query in local memory.
    heads: usize,
    query_row: usize,
    splits: usize,
    gpu: GpuArch<'a>,
    matrix: Matrix<'a, 'c>,
    local: Local<'c>,
}

/// Local memory: queries in the type of keys, weights of heads and scores of a turn in f32, numbers
/// and positions of the list, a count for each value of a byte and for each wave, and a turn.
struct Local<'c> {
    query: Ptr<'c>,
    weight: Ptr<'c>,
    score: Ptr<'c>,
    number: Ptr<'c>,
    position: Ptr<'c>,
    count: Ptr<'c>,
    waves: Ptr<'c>,
    turn: Ptr<'c>,
}

/// A lane's part of a tile of queries, and the weight of its head.
struct Tile<'c> {
    queries: Vec<Fragment<'c>>,
    weight: FloatValue<'c>,
}

/// The list as far as it is filled, and the number that an entry must be above.
#[derive(Clone, Copy)]
struct Filled<'c> {
    count: Int<'c>,
    above: Int<'c>,
}

carried!(Filled { count, above });

impl<'k, 'a, 'c> Chooser<'k, 'a, 'c> {
    fn new(kernel: &'k Kernel<'a, 'c>, sizes: Sizes, splits: usize) -> Result<Chooser<'k, 'a, 'c>, Diagnostic> {
        let c = kernel.code;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("a choice by other than one cache")) };
        let (out, to) = kernel.output()?;
        if !matches!(kernel.rows.graph.op(out.node), Op::Choose { .. } | Op::ChooseBlocks { .. }) {
            return Err(unsupported("a choice that is computed on"));
        }
        let gpu = launch::gpu(c.arch)?;
        let (heads, query_row) = (sizes.padded_heads(gpu), sizes.query_row(gpu));
        let local = Local {
            query: c.local(heads * query_row),
            weight: c.local(4 * heads),
            score: c.local(4 * THREADS),
            number: c.local(4 * sizes.room()),
            position: c.local(4 * sizes.room()),
            count: c.local(4 * DIGITS),
            waves: c.local(4 * (THREADS / c.simt.wave)),
            turn: c.local(4),
        };
        let matrix = Matrix::new(c, cache.ty.dtype);
        Ok(Chooser { kernel, cache, out: to, sizes, heads, query_row, splits, gpu, matrix, local })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.kernel.code
    }

    fn run(
        &self,
        query: (Int<'c>, Int<'c>),
        (list, split): (Int<'c>, Int<'c>),
        workspace: Ptr<'c>,
    ) -> Result<(), Diagnostic> {
        let (c, choice) = (self.code(), &self.sizes.choice);
        let lanes = c.lanes();
        let position = c.load_index(self.cache.batch.positions, query.0);
        // Of rows of several tokens the last that is complete stands for the position, or -1.
        let last = if choice.every == 1 { position } else { (position + 1) / choice.every - 1 };
        let has_few = c.less(last / choice.size, choice.k);
        c.when(has_few & c.equal(split, 0), || self.take_all(list, last / choice.size));
        let chosen = c.when(!has_few, || self.choose(query, (list, split), last, workspace));
        c.set_lanes(lanes);
        chosen
    }

    /// All entries up to the last one, which are no more than are wanted.
    fn take_all(&self, list: Int<'c>, last: Int<'c>) {
        let c = self.code();
        c.repeat(c.thread(), self.sizes.choice.k, THREADS, |i| {
            let none = c.as_int(c.cx.i32_type().const_all_ones());
            c.store(self.place(list, i), c.pick_int(c.less(last, i), none, i), 4);
        });
    }

    /// The best of a part of the keys, and of all parts if it is the last one.
    fn choose(
        &self,
        (token, head): (Int<'c>, Int<'c>),
        (list, split): (Int<'c>, Int<'c>),
        last: Int<'c>,
        workspace: Ptr<'c>,
    ) -> Result<(), Diagnostic> {
        let c = self.code();
        let turns = last / THREADS + 1;
        let each = c.larger((turns + (self.splits - 1)) / self.splits, LEAST);
        let used = c.uniform((turns + each - 1) / each);
        let begin = split * each;
        c.when(c.less(begin, turns), || {
            self.stage(token, head)?;
            let end = c.smaller((begin + each) * THREADS, last + 1);
            let filled = self.best((begin * THREADS, end), token, last);
            if self.splits == 1 {
                self.store(list, filled.count);
                return Ok(());
            }
            c.when(c.equal(used, 1), || self.store(list, filled.count));
            c.when(c.less(1, used), || match Sizes::wait(self.gpu) {
                true => self.choose_together((list, split), used, filled.count, workspace),
                false => self.meet((list, split), used, filled.count, workspace),
            });
            Ok(())
        })
    }

    /// The best of the keys from one position to another.
    fn best(&self, (begin, end): (Int<'c>, Int<'c>), token: Int<'c>, last: Int<'c>) -> Filled<'c> {
        let c = self.code();
        let keys = Keys::of(c, self.cache, token);
        // Where registers have no room for all queries, a tile is loaded for each panel of keys.
        let (tiles, chunks) = self.tiles();
        let registers = tiles * chunks * self.matrix.vec16s() * (VEC16 / 4);
        let held = (registers <= HELD).then(|| (0..tiles).map(|tile| self.tile(c.int(tile))).collect::<Vec<_>>());
        let none = Filled { count: c.int(0), above: c.int(0) };
        let filled = c.carry((begin, end, THREADS), none, |first, filled| {
            self.score(&keys, (first, last), held.as_deref());
            c.barrier();
            let filled = match self.sizes.choice.weight {
                Some(_) => self.append(filled, (first + c.thread(), end - 1), self.number()),
                None => self.append_blocks(filled, (first, end - 1), last),
            };
            self.cut_if(filled, self.sizes.room() - THREADS)
        });
        self.cut_if(filled, self.sizes.choice.k)
    }

    /// The token's queries from a head on, and the weights of heads; zeros for heads after the last
    /// one.
    fn stage(&self, token: Int<'c>, own: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let choice = &self.sizes.choice;
        let query = rows.operand(choice.query)?;
        let weight = choice.weight.map(|weight| rows.operand(weight)).transpose()?;
        let (groups, dim) = (l.dim / l.group, self.cache.ty.head_dim);
        c.set_lanes(l.group);
        c.repeat(c.thread(), self.heads * groups, THREADS, |i| {
            let (head, col) = (i / groups, i % groups * l.group);
            let inside = c.less(col, dim) & c.less(head, choice.heads());
            let (head_there, col_there) = (c.pick_int(inside, head, 0), c.pick_int(inside, col, 0));
            let at = At { row: token, head: Some(own + head_there), col: Col::Var(col_there) };
            let v = c.pick(inside, c.load_floats(rows.address(query, at), query.ty.dtype), c.zero());
            let to = head * self.query_row + col * self.cache.ty.dtype.size();
            c.store_floats(c.at(self.local.query, to), v.into_vector_value(), self.cache.ty.dtype);
        });
        c.repeat(c.thread(), self.heads, THREADS, |head| {
            let inside = c.less(head, choice.heads());
            let at = At { row: token, head: None, col: Col::Var(c.pick_int(inside, head, 0)) };
            let load = |weight| c.load(c.cx.f32_type(), rows.address(weight, at), 4).into_float_value();
            let v = weight.map_or(c.number(1.0), load);
            c.store(c.at(self.local.weight, head * 4), c.pick(inside, v, c.number(0.0)), 4);
        });
        c.barrier();
        Ok(())
    }

    /// Tiles of heads, and products along a key.
    fn tiles(&self) -> (usize, usize) {
        let columns = self.matrix.layout.columns;
        (self.heads / columns, self.cache.layout.dim / self.matrix.span())
    }

    /// The wave's fragments of a tile of queries, and the weight of the lane's head.
    fn tile(&self, tile: Int<'c>) -> Tile<'c> {
        let (c, size, place) = (self.code(), self.cache.ty.dtype.size(), self.matrix.place());
        let head = place.column + tile * self.matrix.layout.columns;
        let first = c.at(self.local.query, head * self.query_row + place.part * (self.matrix.vec16s() * VEC16));
        let load = |chunk: usize| self.matrix.load_row(c.at(first, chunk * self.matrix.span() * size));
        let weight = c.load(c.cx.f32_type(), c.at(self.local.weight, head * 4), 4).into_float_value();
        Tile { queries: (0..self.tiles().1).map(load).collect(), weight }
    }

    /// The sums of a lane's keys, with the scores of a tile of heads.
    fn add_tile(&self, key: &[Fragment<'c>], tile: &Tile<'c>, sums: &[Any<'c>]) -> Vec<Any<'c>> {
        let (c, m) = (self.code(), &self.matrix);
        let dots = key.iter().zip(&tile.queries).fold(m.zero(), |dots, (key, query)| m.product(key, query, dots));
        let add = |(i, sum): (usize, &Any<'c>)| {
            let dot = c.lane(dots, i).into_float_value();
            let positive = |dot| c.pick(c.float(dot).greater(c.number(0.0)), dot, c.number(0.0)).into_float_value();
            let counts = if self.sizes.choice.weight.is_some() { positive(dot) } else { dot };
            (c.float(counts) * tile.weight + sum.into_float_value()).v.into()
        };
        sums.iter().enumerate().map(add).collect()
    }

    /// Scores of a turn's keys, into local memory. Waves share the panels out.
    fn score(&self, keys: &Keys<'_, 'c>, (first, last): (Int<'c>, Int<'c>), held: Option<&[Tile<'c>]>) {
        let (c, waves) = (self.code(), THREADS / self.code().simt.wave);
        // Unrolled: in a loop LLVM leaves out the wait for the last store, ahead of the barrier.
        for own in 0..THREADS / PANEL / waves {
            let panel = c.wave_index() + own * waves;
            let key = self.key(keys, first + panel * PANEL, last);
            self.store_scores(panel, &self.sums(&key, held));
        }
    }

    /// The lane's part of the keys of a panel. Keys after the last position are not counted: any
    /// panel stands for theirs.
    fn key(&self, keys: &Keys<'_, 'c>, first: Int<'c>, last: Int<'c>) -> Vec<Fragment<'c>> {
        let (c, m, place) = (self.code(), &self.matrix, self.matrix.place());
        let at = c.smaller(first, last / PANEL * PANEL);
        let start = c.at(self.cache.k, keys.key(keys.slot(at), c.int(0)));
        let lane = c.at(start, m.in_panel(place, place.row));
        (0..self.tiles().1).map(|i| m.load_panel(c.at(lane, i * m.panel_step()))).collect()
    }

    /// The sums of a lane's keys over its heads.
    fn sums(&self, key: &[Fragment<'c>], held: Option<&[Tile<'c>]>) -> Vec<Any<'c>> {
        let c = self.code();
        let none: Vec<Any> = vec![c.number(0.0).into(); self.matrix.layout.results];
        match held {
            Some(tiles) => tiles.iter().fold(none, |sums, tile| self.add_tile(key, tile, &sums)),
            None => c.for_each((0, self.tiles().0, 1), &none, |tile, sums| self.add_tile(key, &self.tile(tile), sums)),
        }
    }

    /// The scores of a panel: sums over the lanes that share a key.
    fn store_scores(&self, panel: Int<'c>, sums: &[Any<'c>]) {
        let (c, m, place) = (self.code(), &self.matrix, self.matrix.place());
        let columns = match m.layout.columns {
            16 => &[1, 2, 4, 8][..],
            _ => &[4, 8, 16],
        };
        for (i, sum) in sums.iter().enumerate() {
            let score = c.across(sum.into_float_value(), columns, |a, b| (c.float(a) + b).v);
            let to = c.at(self.local.score, (panel * PANEL + place.results + i) * 4);
            c.when(c.equal(place.column, 0), || c.store(to, score, 4));
        }
    }

    /// The number of the thread's key.
    fn number(&self) -> Int<'c> {
        let c = self.code();
        let score = c.load(c.cx.f32_type(), c.at(self.local.score, c.thread() * 4), 4);
        choice::number(c, score.into_float_value())
    }

    /// Leaves its list in the workspace. The last work-group of a list chooses from what all left.
    fn meet(&self, (list, split): (Int<'c>, Int<'c>), used: Int<'c>, count: Int<'c>, workspace: Ptr<'c>) {
        let (c, k) = (self.code(), self.sizes.choice.k);
        let lists = c.at(c.at(workspace, COUNTERS), list * (self.splits * self.sizes.left(self.gpu)));
        let (numbers, positions) = (lists, c.at(lists, self.splits * (4 * k)));
        c.barrier();
        c.repeat(c.thread(), k, THREADS, |i| {
            let (is_there, from) = (c.less(i, count), c.smaller(i, count - 1));
            let to = (split * k + i) * 4;
            c.store(c.at(numbers, to), c.pick_int(is_there, choice::load(c, self.local.number, from), 0), 4);
            c.store(c.at(positions, to), choice::load(c, self.local.position, from), 4);
        });
        let counter = c.at(workspace, list * 4);
        c.barrier_to_publish();
        c.when(c.equal(c.thread(), 0), || {
            c.release();
            c.store(self.local.turn, c.take_turn(counter), 4);
        });
        c.barrier();
        let turn = c.uniform(choice::load(c, self.local.turn, c.int(0)));
        c.when(c.equal(used - turn, 1), || {
            c.acquire();
            c.when(c.equal(c.thread(), 0), || c.store(counter, c.cx.i32_type().const_zero(), 4));
            // There are more entries than are wanted, so a number of zero is never kept.
            let filled = self.cut((numbers, positions), used * k);
            self.store(list, filled.count);
        });
    }

    /// Puts the keys of a turn into the list that are above its least number.
    fn append(&self, filled: Filled<'c>, (position, last): (Int<'c>, Int<'c>), number: Int<'c>) -> Filled<'c> {
        let c = self.code();
        let is_seen = !c.less(last, position);
        let enters = is_seen & c.compare(IntPredicate::UGT, number, filled.above);
        let [before, all] = self.among(enters);
        c.when(enters, || self.put(filled.count + before, number, position));
        Filled { count: filled.count + all, ..filled }
    }

    /// Puts the blocks of a turn into the list that are above its least number. A block's number is
    /// the largest of its keys up to `end`.
    fn append_blocks(&self, filled: Filled<'c>, (first, end): (Int<'c>, Int<'c>), last: Int<'c>) -> Filled<'c> {
        let (c, choice) = (self.code(), &self.sizes.choice);
        let at = |i: Int<'c>| c.at(self.local.score, i * 4);
        let number = c.pick_int(c.less(end, first + c.thread()), 0, self.number());
        c.store(at(c.thread()), number, 4);
        for half in (0..choice.size.ilog2()).map(|bit| 1 << bit) {
            c.barrier();
            c.when(c.equal(c.thread() % (2 * half), 0), || {
                let [own, other] = [0, half].map(|i| choice::load(c, self.local.score, c.thread() + i));
                c.store(at(c.thread()), c.pick_int(c.compare(IntPredicate::UGT, other, own), other, own), 4);
            });
        }
        c.barrier();
        let is_there = c.less(c.thread(), THREADS / choice.size);
        let block = first / choice.size + c.thread();
        let number = choice::load(c, self.local.score, c.pick_int(is_there, c.thread() * choice.size, 0));
        let above_all = c.as_int(c.cx.i32_type().const_int(ABOVE_ALL, false));
        let number = c.pick_int(choice.is_local(c, block, last / choice.size), above_all, number);
        let end = end / choice.size;
        self.append(filled, (c.pick_int(is_there, block, end + 1), end), number)
    }

    fn put(&self, to: Int<'c>, number: Int<'c>, position: Int<'c>) {
        let c = self.code();
        c.store(c.at(self.local.number, to * 4), number, 4);
        c.store(c.at(self.local.position, to * 4), position, 4);
    }

    /// The threads before this one in which a condition holds, and all of them.
    fn among(&self, condition: Int<'c>) -> [Int<'c>; 2] {
        let (c, wave) = (self.code(), self.code().simt.wave);
        let own = c.count_lanes(condition, c.lane_index());
        let of_wave = c.count_lanes(condition, c.int(wave));
        c.when(c.equal(c.lane_index(), 0), || c.store(c.at(self.local.waves, c.wave_index() * 4), of_wave, 4));
        c.barrier();
        let start = [own, c.int(0)];
        let sums = (0..THREADS / wave).fold(start, |[before, all], i| {
            let count = choice::load(c, self.local.waves, c.int(i));
            let is_before = c.less(c.int(i), c.wave_index());
            [before + c.pick_int(is_before, count, 0), all + count]
        });
        c.barrier();
        sums
    }

    /// Cuts a list that has more entries than `most`.
    fn cut_if(&self, filled: Filled<'c>, most: usize) -> Filled<'c> {
        let c = self.code();
        let is_full = c.less(c.int(most), filled.count);
        let own = (self.local.number, self.local.position);
        c.carry_if(is_full, filled, |filled| {
            c.barrier();
            self.cut(own, filled.count)
        })
    }

    /// Keeps the `k` best of `count` entries of a list, in their order, as the work-group's own.
    fn cut(&self, (numbers, positions): (Ptr<'c>, Ptr<'c>), count: Int<'c>) -> Filled<'c> {
        let c = self.code();
        // The bytes of the least number that are known, and how many of its equals are kept.
        let (mut known, mut wanted) = (c.int(0), c.int(self.sizes.choice.k));
        for byte in (0..4).rev() {
            self.count_digits((numbers, count), byte, known);
            let [digit, before] = self.last_digit(wanted);
            known = known * DIGITS + digit;
            wanted = wanted - before;
            c.barrier();
        }
        let [count, _] = c.carry((0, count, THREADS), [c.int(0); 2], |first, [to, equals]| {
            let i = first + c.thread();
            let (is_there, at) = (c.less(i, count), c.smaller(i, count - 1));
            let (number, position) = (choice::load(c, numbers, at), choice::load(c, positions, at));
            let is_equal = is_there & c.compare(IntPredicate::EQ, number, known);
            let [before, all_equals] = self.among(is_equal);
            let is_larger = is_there & c.compare(IntPredicate::UGT, number, known);
            let is_kept = is_larger | (is_equal & c.less(equals + before, wanted));
            let [before, all] = self.among(is_kept);
            c.when(is_kept, || self.put(to + before, number, position));
            [to + all, equals + all_equals]
        });
        c.barrier();
        Filled { count, above: known }
    }

    /// Counts the values of a byte in those of `count` numbers that have the known bytes above it.
    fn count_digits(&self, (numbers, count): (Ptr<'c>, Int<'c>), byte: usize, known: Int<'c>) {
        let c = self.code();
        c.repeat(c.thread(), DIGITS, THREADS, |digit| c.store(c.at(self.local.count, digit * 4), c.int(0), 4));
        c.barrier();
        c.repeat(c.thread(), count, THREADS, |i| {
            let number = choice::load(c, numbers, i);
            c.when(c.compare(IntPredicate::EQ, choice::above(number, byte), known), || {
                c.add_local(c.at(self.local.count, choice::digit(number, byte) * 4), c.int(1));
            });
        });
        c.barrier();
    }

    /// The largest digit with at least as many numbers from it on as are wanted, and the count of
    /// those above it: first among groups of digits, then in one.
    fn last_digit(&self, wanted: Int<'c>) -> [Int<'c>; 2] {
        let (c, counts, groups) = (self.code(), self.local.count, DIGITS / COUNTED);
        c.when(c.less(c.thread(), groups), || {
            let one = |i: usize| choice::load(c, counts, c.thread() * COUNTED + i);
            let sum = (1..COUNTED).fold(one(0), |sum, i| sum + one(i));
            c.store(c.at(self.local.score, c.thread() * 4), sum, 4);
        });
        c.barrier();
        let [group, before] = choice::last_of(c, (self.local.score, c.int(0), groups), wanted);
        let [digit, more] = choice::last_of(c, (counts, group * COUNTED, COUNTED), wanted - before);
        [group * COUNTED + digit, before + more]
    }

    /// The list, and -1 after its last entry.
    fn store(&self, list: Int<'c>, count: Int<'c>) {
        let c = self.code();
        c.barrier();
        c.repeat(c.thread(), count, THREADS, |i| {
            c.store(self.place(list, i), choice::load(c, self.local.position, i), 4);
        });
        c.repeat(count + c.thread(), self.sizes.choice.k, THREADS, |i| {
            c.store(self.place(list, i), c.cx.i32_type().const_all_ones(), 4);
        });
    }

    /// The place of an entry of a list.
    fn place(&self, list: Int<'c>, entry: Int<'c>) -> Ptr<'c> {
        self.code().at(self.out.ptr, (list * self.sizes.choice.k + entry) * 4)
    }
}
