//! Family `choose`: a work-group is a token, and goes through the keys of its sequence, a key in
//! each thread. Local memory has the queries, and a list of the best positions so far, in ascending
//! order. A full list is cut to the `k` best; from then on only better keys enter it.
//!
//! A score is kept as a whole number in the order of the scores. The least number of the best is
//! found byte by byte, from the highest one on.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Family, Op, Value};
use inkwell::IntPredicate;

use super::{Keys, THREADS, takes};
use crate::cache::Cache;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col, Operand, unsupported};
use crate::schedule::{Schedule, WhyNot};
use crate::simt::launch::{self, Kernel, Setup};
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

const BUILT: &str = "numbers";
/// Values of a byte.
const DIGITS: usize = 256;
/// Turns of keys that a list has room for, beyond the best.
const TURNS: usize = 2;

pub const SCHEDULE: Schedule = Schedule {
    name: "choose",
    family: Family::Choose,
    invariant: true,
    suits: |spec, arch, _| {
        let gpu = launch::gpu(arch)?;
        let sizes = Sizes::of(spec)?;
        takes(sizes.cache, gpu.memory.group_bytes / sizes.cache.dtype.size())?;
        let bytes = sizes.bytes(gpu.memory.padded(sizes.cache.head_dim), gpu.simt.wave);
        let why = || format!("{bytes} bytes of local memory, {} are there", gpu.simt.unit.lds_group);
        WhyNot::unless(bytes <= gpu.simt.unit.lds_group, why)
    },
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

/// Sizes of a choice before there is a kernel.
struct Sizes {
    cache: atomc_ir::CacheType,
    heads: usize,
    k: usize,
}

impl Sizes {
    fn of(spec: &KernelSpec) -> Result<Sizes, Diagnostic> {
        let body = spec.body;
        let made = || {
            let node = body.ids().find(|&id| matches!(body.op(id), Op::Choose { .. }))?;
            let Op::Choose { k } = *body.op(node) else { return None };
            let operands = body.operands(node);
            let heads = body.ty(operands[0]).as_tensor()?.shape.0.get(1)?.fixed()?;
            Some(Sizes { cache: body.ty(operands[2]).as_cache()?, heads, k })
        };
        made().ok_or_else(|| unsupported("a family of choices without a choice"))
    }

    /// Entries that a list has room for.
    fn room(&self) -> usize {
        self.k + TURNS * THREADS
    }

    /// Bytes of local memory.
    fn bytes(&self, dim: usize, wave: usize) -> usize {
        4 * (self.heads * (dim + 1) + 2 * self.room() + DIGITS + THREADS / wave)
    }
}

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    let code = setup.open(spec, THREADS)?;
    {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let chooser = Chooser::new(&kernel, Sizes::of(spec)?)?;
        let token = c.group();
        c.when(c.less(token, launch::step_size(c, spec, false)), || chooser.run(token))?;
    }
    Ok((code, manifest::Kernel::simt(Tasks::Tokens { per: 1, times: 1 }, THREADS)))
}

struct Chooser<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    query: Value,
    weight: Value,
    out: &'k Operand<'c>,
    sizes: Sizes,
    local: Local<'c>,
}

/// Local memory: queries and weights of heads in f32, numbers and positions of the list, a count
/// for each value of a byte, and one for each wave.
struct Local<'c> {
    query: Ptr<'c>,
    weight: Ptr<'c>,
    number: Ptr<'c>,
    position: Ptr<'c>,
    count: Ptr<'c>,
    waves: Ptr<'c>,
}

/// The list as far as it is filled, and the number that an entry must be above.
#[derive(Clone, Copy)]
struct Filled<'c> {
    count: Int<'c>,
    above: Int<'c>,
}

impl<'c> Filled<'c> {
    fn carried(self) -> Vec<Any<'c>> {
        vec![self.count.into(), self.above.into()]
    }

    fn of(c: &Gpu<'c>, carried: &[Any<'c>]) -> Filled<'c> {
        Filled { count: c.as_int(carried[0]), above: c.as_int(carried[1]) }
    }
}

impl<'k, 'a, 'c> Chooser<'k, 'a, 'c> {
    fn new(kernel: &'k Kernel<'a, 'c>, sizes: Sizes) -> Result<Chooser<'k, 'a, 'c>, Diagnostic> {
        let (c, graph) = (kernel.code, kernel.rows.graph);
        let node = kernel.the("choose", |op| matches!(op, Op::Choose { .. }))?;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("a choice by other than one cache")) };
        let (out, to) = kernel.output()?;
        if out != node {
            return Err(unsupported("a choice that is computed on"));
        }
        let (query, weight) = (graph.operands(node.node)[0], graph.operands(node.node)[1]);
        let dim = cache.layout.dim;
        let local = Local {
            query: c.local(4 * sizes.heads * dim),
            weight: c.local(4 * sizes.heads),
            number: c.local(4 * sizes.room()),
            position: c.local(4 * sizes.room()),
            count: c.local(4 * DIGITS),
            waves: c.local(4 * (THREADS / c.simt.wave)),
        };
        Ok(Chooser { kernel, cache, query, weight, out: to, sizes, local })
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.kernel.code
    }

    fn run(&self, token: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        let lanes = c.lanes();
        self.stage(token)?;
        let last = c.load_index(self.cache.batch.positions, token);
        let keys = Keys::of(c, self.cache, token);
        let none = Filled { count: c.int(0), above: c.int(0) };
        let filled = c.for_each((0, last + 1, THREADS), &none.carried(), |first, filled| {
            let position = first + c.thread();
            let number = self.number(&keys, c.smaller(position, last));
            let filled = self.append(Filled::of(c, filled), (position, last), number);
            self.cut_if(filled, self.sizes.room() - THREADS).carried()
        });
        let filled = self.cut_if(Filled::of(c, &filled), self.sizes.k);
        self.store(token, filled.count);
        c.set_lanes(lanes);
        Ok(())
    }

    /// The token's queries and the weights of its heads.
    fn stage(&self, token: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let (query, weight) = (rows.operand(self.query)?, rows.operand(self.weight)?);
        let (groups, dim) = (l.dim / l.group, self.cache.ty.head_dim);
        c.set_lanes(l.group);
        c.repeat(c.thread(), self.sizes.heads * groups, THREADS, |i| {
            let (head, col) = (i / groups, i % groups * l.group);
            let inside = c.less(col, dim);
            let at = At { row: token, head: Some(head), col: Col::Var(c.pick_int(inside, col, 0)) };
            let v = c.load_floats(rows.address(query, at), query.ty.dtype);
            let v = c.pick(inside, v, c.zero());
            c.store(c.at(self.local.query, (head * l.dim + col) * 4), v, 4);
        });
        c.repeat(c.thread(), self.sizes.heads, THREADS, |head| {
            let at = At { row: token, head: None, col: Col::Var(head) };
            let v = c.load(c.cx.f32_type(), rows.address(weight, at), 4);
            c.store(c.at(self.local.weight, head * 4), v, 4);
        });
        c.barrier();
        Ok(())
    }

    /// The score of a key as a number in the order of the scores; both zeros are one.
    fn number(&self, keys: &Keys<'_, 'c>, position: Int<'c>) -> Int<'c> {
        let (c, word) = (self.code(), self.code().cx.i32_type());
        let key = keys.key(keys.page(position), c.int(0));
        let (group, groups) = keys.groups();
        c.set_lanes(group);
        let key: Vec<Vector> = (0..groups).map(|i| keys.key_group(key, i)).collect();
        let none: [Any; 1] = [c.number(0.0).into()];
        let score = c.for_each((0, self.sizes.heads, 1), &none, |head, score| {
            let query = c.at(self.local.query, head * (4 * group * groups));
            let dot = key.iter().enumerate().fold(c.zero(), |sum, (i, &key)| {
                c.fma(key, c.load_floats(c.at(query, 4 * i * group), DType::F32), sum)
            });
            let dot = c.sum(dot);
            let counts = c.pick(c.float(dot).greater(c.number(0.0)), dot, c.number(0.0)).into_float_value();
            let weight = c.load(c.cx.f32_type(), c.at(self.local.weight, head * 4), 4).into_float_value();
            vec![(c.float(counts) * weight + score[0].into_float_value()).v.into()]
        });
        let score = c.b.build_float_add(score[0].into_float_value(), c.number(0.0), "").expect(BUILT);
        let bits = c.as_int(c.bitcast(score, word));
        bits ^ (bits.shift_right(31, true) | c.as_int(word.const_int(1 << 31, false)))
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

    fn put(&self, to: Int<'c>, number: Int<'c>, position: Int<'c>) {
        let c = self.code();
        c.store(c.at(self.local.number, to * 4), number, 4);
        c.store(c.at(self.local.position, to * 4), position, 4);
    }

    fn load(&self, list: Ptr<'c>, at: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.as_int(c.load(c.cx.i32_type(), c.at(list, at * 4), 4))
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
            let count = self.load(self.local.waves, c.int(i));
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
        let left = c.change_if(is_full, &filled.carried(), |filled| self.cut(Filled::of(c, filled)).carried());
        Filled::of(c, &left)
    }

    /// Keeps the `k` best entries of a list that has more, in their order.
    fn cut(&self, filled: Filled<'c>) -> Filled<'c> {
        let (c, count) = (self.code(), filled.count);
        // The bytes of the least number that are known, and how many of its equals are kept.
        let (mut known, mut wanted) = (c.int(0), c.int(self.sizes.k));
        for byte in (0..4).rev() {
            let above = |number: Int<'c>| match byte {
                3 => c.int(0),
                _ => number.shift_right(8 * (byte + 1), false),
            };
            c.repeat(c.thread(), DIGITS, THREADS, |digit| c.store(c.at(self.local.count, digit * 4), c.int(0), 4));
            c.barrier();
            c.repeat(c.thread(), count, THREADS, |i| {
                let number = self.load(self.local.number, i);
                c.when(c.compare(IntPredicate::EQ, above(number), known), || {
                    let digit = number.shift_right(8 * byte, false) & 0xff;
                    c.add_local(c.at(self.local.count, digit * 4), c.int(1));
                });
            });
            c.barrier();
            let [digit, before] = self.digit(wanted);
            known = known * DIGITS + digit;
            wanted = wanted - before;
            c.barrier();
        }
        let start: [Any; 2] = [c.int(0).into(), c.int(0).into()];
        let kept = c.for_each((0, count, THREADS), &start, |first, now| {
            let [to, equals] = [0, 1].map(|n| c.as_int(now[n]));
            let i = first + c.thread();
            let (is_there, at) = (c.less(i, count), c.smaller(i, count - 1));
            let (number, position) = (self.load(self.local.number, at), self.load(self.local.position, at));
            let is_equal = is_there & c.compare(IntPredicate::EQ, number, known);
            let [before, all_equals] = self.among(is_equal);
            let is_larger = is_there & c.compare(IntPredicate::UGT, number, known);
            let is_kept = is_larger | (is_equal & c.less(equals + before, wanted));
            let [before, all] = self.among(is_kept);
            c.when(is_kept, || self.put(to + before, number, position));
            vec![(to + all).into(), (equals + all_equals).into()]
        });
        c.barrier();
        Filled { count: c.as_int(kept[0]), above: known }
    }

    /// The largest value of a byte with at least as many numbers from it on as are wanted, and the
    /// count of those above it.
    fn digit(&self, wanted: Int<'c>) -> [Int<'c>; 2] {
        let c = self.code();
        let start: [Any; 3] = [c.int(0).into(), c.int(0).into(), c.int(0).into()];
        let found = c.for_each((0, DIGITS, 1), &start, |i, now| {
            let [sum, digit, before] = [0, 1, 2].map(|n| c.as_int(now[n]));
            let candidate = (DIGITS - 1) - i;
            let total = sum + self.load(self.local.count, candidate);
            let is_first = c.less(sum, wanted) & !c.less(total, wanted);
            let (digit, before) = (c.pick(is_first, candidate, digit), c.pick(is_first, sum, before));
            vec![total.into(), digit, before]
        });
        [c.as_int(found[1]), c.as_int(found[2])]
    }

    /// The list, and -1 after its last entry.
    fn store(&self, token: Int<'c>, count: Int<'c>) {
        let c = self.code();
        c.barrier();
        let to = |i: Int<'c>| c.at(self.out.ptr, (token * self.sizes.k + i) * 4);
        c.repeat(c.thread(), count, THREADS, |i| c.store(to(i), self.load(self.local.position, i), 4));
        c.repeat(count + c.thread(), self.sizes.k, THREADS, |i| c.store(to(i), c.cx.i32_type().const_all_ones(), 4));
    }
}
