//! Family `attend_listed`: a work-group is a token and some query heads that share a head of the
//! cache. It goes through the token's list turn by turn: each thread scores a position with all of
//! these heads, then each has some dimensions of the values of every few positions. Sums of the
//! same dimensions meet in local memory at the end. A part of attention goes through the positions
//! of its window, or through all rows, and leaves the highest score and the sum of each head.
use atomc_artifact::manifest;
use atomc_ir::{CacheType, DType, Diagnostic, Family, Value};
use inkwell::values::FloatValue;

use super::{THREADS, takes};
use crate::cache::Cache;
use crate::code::{Int, Ptr, Vector, carried};
use crate::kernel::{Attending, List, Results, Seen};
use crate::row::Threads as _;
use crate::row::{At, Col, Team, unsupported};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::keys::Keys;
use crate::simt::launch::{self, Kernel, Setup};
use crate::simt::machine::{self, Gpu};
use crate::{KernelSpec, Tasks};

/// Most query heads of a work-group.
const HEADS: usize = 8;
/// The highest score of no positions: below every real one, and far from overflow.
const LOWEST: f64 = -1e30;

pub const SCHEDULE: Schedule = Schedule {
    name: "attend_listed",
    family: Family::AttendListed,
    invariant: true,
    suits: |spec, arch, _| {
        let (gpu, sizes) = (launch::gpu(arch)?, Sizes::of(spec)?);
        let group = gpu.memory.group_bytes / sizes.cache.dtype.size();
        takes(sizes.cache, group)?;
        let [dim, value_dim] = [sizes.cache.head_dim, sizes.cache.value_dim].map(|width| gpu.memory.padded(width));
        let few = || format!("{}: values of more than {} groups", sizes.cache, THREADS);
        WhyNot::unless(value_dim / group <= THREADS, few)?;
        let bytes = sizes.bytes(dim, value_dim, group);
        let why = || format!("{bytes} bytes of local memory, {} are there", gpu.simt.unit.lds_group);
        WhyNot::unless(bytes <= gpu.simt.unit.lds_group, why)
    },
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// Sizes before there is a kernel.
struct Sizes {
    cache: CacheType,
    heads: usize,
}

impl Sizes {
    fn of(spec: &KernelSpec) -> Result<Sizes, Diagnostic> {
        let body = spec.body;
        let made = || {
            let node = body.ids().find(|&id| body.op(id).attends())?;
            let operands = body.operands(node);
            let heads = body.ty(operands[0]).as_tensor()?.shape.0.get(1)?.fixed()?;
            Some(Sizes { cache: body.ty(operands[1]).as_cache()?, heads })
        };
        made().ok_or_else(|| unsupported("a family of listed attention without it"))
    }

    /// Query heads that share a head of the cache, and those of a work-group.
    fn group(&self) -> usize {
        self.heads / self.cache.heads
    }

    fn own(&self) -> usize {
        self.group().min(HEADS)
    }

    /// Work-groups that share the heads of a head of the cache.
    fn parts(&self) -> usize {
        self.group().div_ceil(self.own())
    }

    /// Bytes of local memory, which 128 more align.
    fn bytes(&self, dim: usize, value_dim: usize, group: usize) -> usize {
        let subsets = THREADS / (value_dim / group);
        4 * (self.own() * (dim + THREADS) + 2 * THREADS + subsets * value_dim) + 128
    }
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let code = setup.open(spec, THREADS)?;
    let sizes = Sizes::of(spec)?;
    let times = sizes.cache.heads * sizes.parts();
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let listed = Listed::new(&kernel, sizes)?;
        let [token, rest] = c.divide(c.group(), c.int(times));
        let [head, part] = c.divide(rest, c.int(listed.sizes.parts()));
        c.when(c.less(token, launch::step_size(c, spec, false)), || listed.run(token, head, part))?;
    }
    Ok((code, manifest::Kernel::simt(Tasks::Tokens { per: 1, times }, THREADS)))
}

struct Listed<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    query: Value,
    seen: Seen<'c>,
    results: Results<'k, 'c>,
    sizes: Sizes,
    /// What scores are multiplied with: they are powers of two.
    factor: f64,
    local: Local<'c>,
}

/// Local memory: queries in f32, weights of a turn, where its values lie, numbers that waves
/// exchange, and sums.
struct Local<'c> {
    query: Ptr<'c>,
    weight: Ptr<'c>,
    place: Ptr<'c>,
    waves: Ptr<'c>,
    sums: Ptr<'c>,
}

/// For each head the highest score, the sum of weights, and the thread's sums of values.
struct Running<'c> {
    top: Vec<FloatValue<'c>>,
    sum: Vec<FloatValue<'c>>,
    values: Vec<Vector<'c>>,
}

carried!(Running { top, sum, values });

impl<'k, 'a, 'c> Listed<'k, 'a, 'c> {
    fn new(kernel: &'k Kernel<'a, 'c>, sizes: Sizes) -> Result<Listed<'k, 'a, 'c>, Diagnostic> {
        let c = kernel.code;
        let attending = Attending::of(kernel)?;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("attention over other than one cache")) };
        let results = attending.results(kernel)?;
        let Attending { query, scale, .. } = attending;
        let l = &cache.layout;
        let local = Local {
            query: c.local(4 * sizes.own() * l.dim),
            weight: c.local(4 * sizes.own() * THREADS),
            place: c.local(8 * THREADS),
            waves: machine::exchange(c, THREADS),
            sums: c.local(4 * THREADS / (l.value_dim / l.group) * l.value_dim),
        };
        let factor = scale * std::f64::consts::LOG2_E;
        Ok(Listed { kernel, cache, query, seen: attending.seen, results, sizes, factor, local })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.kernel.code
    }

    fn team(&self) -> Team<'a, 'c> {
        self.code().group_team(THREADS, self.local.waves)
    }

    fn run(&self, token: Int<'c>, head: Int<'c>, part: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        let (lanes, l) = (c.lanes(), &self.cache.layout);
        let first = head * self.sizes.group() + part * self.sizes.own();
        let end = (head + 1) * self.sizes.group();
        c.set_lanes(l.group);
        self.stage(token, (first, end))?;
        let position = c.load_index(self.cache.batch.positions, token);
        let list = self.seen.of(c, position, (token, head));
        let length = c.uniform(list.count);
        c.barrier();
        let keys = Keys::of(c, self.cache, token);
        let own = self.sizes.own();
        let none =
            Running { top: vec![c.number(LOWEST); own], sum: vec![c.number(0.0); own], values: vec![c.zero(); own] };
        let running = c.carry((0, length, THREADS), none, |turn, running| {
            let count = c.smaller(length - turn, THREADS);
            self.turn(&keys, (&list, turn, count), head, running)
        });
        self.finish(token, (first, end), &running);
        self.store_stats(token, (first, end), &running);
        self.pad(token, first);
        c.set_lanes(lanes);
        Ok(())
    }

    /// The queries times the factor. A head after the last one is the last one again.
    fn stage(&self, token: Int<'c>, (first, end): (Int<'c>, Int<'c>)) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let query = rows.operand(self.query)?;
        let (groups, dim) = (l.dim / l.group, self.cache.ty.head_dim);
        c.repeat(c.thread(), self.sizes.own() * groups, THREADS, |i| {
            let (head, col) = (i / groups, i % groups * l.group);
            let inside = c.less(col, dim);
            let (of, from) = (c.smaller(first + head, end - 1), c.pick_int(inside, col, 0));
            let at = At { row: token, head: Some(of), col: Col::Var(from) };
            let v = c.fmul(c.load_floats(rows.address(query, at), query.ty.dtype), c.lit(self.factor));
            c.store(c.at(self.local.query, (head * l.dim + col) * 4), c.pick(inside, v, c.zero()), 4);
        });
        Ok(())
    }

    /// Scores, softmax and sums of values of some positions of a list, one for each thread.
    fn turn(
        &self,
        keys: &Keys<'_, 'c>,
        (list, first, count): (&List<'c>, Int<'c>, Int<'c>),
        head: Int<'c>,
        before: Running<'c>,
    ) -> Running<'c> {
        let c = self.code();
        let is_there = c.less(c.thread(), count);
        let slot = keys.slot(list.position(c, first + c.smaller(c.thread(), count - 1)));
        let key = keys.key(slot, head);
        let scores = self.scores(keys, key);
        let place = if self.cache.ty.is_prefix { key } else { keys.value(slot, head) };
        c.store(c.at(self.local.place, c.thread() * 8), place, 8);
        let (mut tops, mut sums, mut values) = (vec![], vec![], vec![]);
        for (h, score) in scores.into_iter().enumerate() {
            let score = c.pick(is_there, score, c.number(LOWEST)).into_float_value();
            let (top, old) = (c.team_top(score, self.team()), before.top[h]);
            let top = c.pick(c.float(top).greater(old), top, old).into_float_value();
            let power = |v: FloatValue<'c>| c.power_of_two(c.simt.isa, (c.float(v) - top).v);
            let (shrink, weight) = (power(old), power(score));
            let weight = c.pick(is_there, weight, c.number(0.0)).into_float_value();
            c.store(c.at(self.local.weight, (c.thread() + h * THREADS) * 4), weight, 4);
            sums.push((c.float(before.sum[h]) * shrink + c.team_sum(weight, self.team())).v);
            values.push(c.fmul(before.values[h], c.splat(shrink)));
            tops.push(top);
        }
        c.barrier();
        let values = self.add_values(keys, count, values);
        c.barrier();
        Running { top: tops, sum: sums, values }
    }

    /// A score of the thread's key with each head.
    fn scores(&self, keys: &Keys<'_, 'c>, key: Int<'c>) -> Vec<FloatValue<'c>> {
        let (c, l) = (self.code(), &self.cache.layout);
        let (group, groups) = keys.groups();
        let sums = c.carry((0, groups, 1), vec![c.zero(); self.sizes.own()], |i, sums| {
            let key = keys.key_group(key, i);
            let query = c.at(self.local.query, i * (4 * group));
            let query = |h: usize| c.load_floats(c.at(query, 4 * h * l.dim), DType::F32);
            sums.into_iter().enumerate().map(|(h, sum)| c.fma(key, query(h), sum)).collect()
        });
        sums.into_iter().map(|sum| c.sum(sum)).collect()
    }

    /// The group of dimensions that the thread has, and the first of the entries that it takes.
    fn dims(&self) -> [Int<'c>; 2] {
        let (c, l) = (self.code(), &self.cache.layout);
        let groups = l.value_dim / l.group;
        [c.thread() % groups, c.thread() / groups]
    }

    /// Threads that share the dimensions of a value.
    fn subsets(&self) -> usize {
        THREADS / (self.cache.layout.value_dim / self.cache.layout.group)
    }

    /// The thread's sums, with those of a turn added.
    fn add_values(&self, keys: &Keys<'_, 'c>, count: Int<'c>, sums: Vec<Vector<'c>>) -> Vec<Vector<'c>> {
        let (c, subsets) = (self.code(), self.subsets());
        let [group, own] = self.dims();
        let first = c.pick_int(c.less(own, subsets), own, count);
        c.carry((first, count, subsets), sums, |i, sums| {
            let place = c.load_i64(c.at(self.local.place, i * 8));
            let value = match self.cache.ty.is_prefix {
                true => keys.key_group(place, group),
                false => keys.value_group(place, group),
            };
            let weight = |h: usize| c.load(c.cx.f32_type(), c.at(self.local.weight, (i + h * THREADS) * 4), 4);
            sums.into_iter().enumerate().map(|(h, sum)| c.fma(c.splat(weight(h)), value, sum)).collect()
        })
    }

    /// Adds up the sums of threads with the same dimensions, and stores each head's result.
    fn finish(&self, token: Int<'c>, (first, end): (Int<'c>, Int<'c>), running: &Running<'c>) {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let (subsets, groups) = (self.subsets(), self.cache.ty.value_dim / l.group);
        let [group, own] = self.dims();
        let place = |own: Int<'c>, group: Int<'c>| c.at(self.local.sums, (own * l.value_dim + group * l.group) * 4);
        for h in 0..self.sizes.own() {
            c.barrier();
            c.when(c.less(own, subsets), || c.store(place(own, group), running.values[h], 4));
            c.barrier();
            let head = first + h;
            c.when(c.less(c.thread(), groups) & c.less(head, end), || {
                let part = |own: usize| c.load_floats(place(c.int(own), c.thread()), DType::F32);
                let sum: Vector = (1..subsets).fold(part(0), |sum, own| c.fadd(sum, part(own)));
                let all = running.sum[h];
                // Without a key the result is zeros.
                let has_keys = c.float(c.number(0.0)).less(all);
                let inverse = c.lane(c.fdiv(c.lit(1.0), c.splat(all)), 0);
                let inverse = c.pick(has_keys, inverse, c.number(0.0)).into_float_value();
                let result = c.fmul(sum, c.splat(inverse));
                let col = Col::Var(head * self.cache.ty.value_dim + c.thread() * l.group);
                let to = rows.address(self.results.out, At { row: token, head: None, col });
                c.store_floats(to, result, self.results.out.ty.dtype);
            });
        }
    }

    /// Stores the highest score and the sum of each head, if the result is of a part of attention.
    fn store_stats(&self, token: Int<'c>, (first, end): (Int<'c>, Int<'c>), running: &Running<'c>) {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let Some(stats) = self.results.stats else { return };
        c.when(c.equal(c.thread(), 0), || {
            for (h, (&top, &sum)) in running.top.iter().zip(&running.sum).enumerate() {
                let score = (c.float(top) * c.number(std::f64::consts::LN_2)).v;
                c.when(c.less(first + h, end), || self.results.store_stats(rows, (token, first + h), [score, sum]));
            }
        });
        c.when(c.equal(first, 0), || {
            c.repeat(c.thread() + 2 * self.sizes.heads, rows.padded(stats), THREADS, |col| {
                c.store(rows.address(stats, At { row: token, head: None, col: Col::Var(col) }), c.number(0.0), 4);
            });
        });
    }

    /// Zeros after the row's last head.
    fn pad(&self, token: Int<'c>, first: Int<'c>) {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let (width, padded) = (self.sizes.heads * self.cache.ty.value_dim, rows.padded(self.results.out));
        c.when(c.equal(first, 0), || {
            c.repeat(c.thread(), (padded - width) / self.cache.layout.group, THREADS, |i| {
                let col = Col::Var(i * self.cache.layout.group + width);
                let to = rows.address(self.results.out, At { row: token, head: None, col });
                c.store_floats(to, c.zero(), self.results.out.ty.dtype);
            });
        });
    }
}
