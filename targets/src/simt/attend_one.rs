//! Family `attend_one`: a work-group attends with one token and the query heads that share a head of the cache, over a part
//! of the keys.
//!
//! Its waves take the steps of its keys in turn, each with a running softmax of its own; these meet in local memory. Where a
//! sequence is long, work-groups share its blocks: each leaves what it has in the workspace, and the last of them to finish
//! puts all of it together. The key and the value of the token itself are written by the work-group that has the last block.
use atomc_ir::{Arch, Diagnostic};
use inkwell::values::FloatValue;

use super::Setup;
use super::attend::{Attention, Fragments, Running, Sizes};
use super::fragment::Fragment;
use super::rows::{each_head, teams};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::row::Col;
use crate::{KernelInfo, KernelSpec, Tasks};

const WAVES: usize = 4;
/// Most parts of a sequence.
const SPLITS: usize = 64;
/// Work-groups for each compute unit, where there is enough to do.
const GROUPS: usize = 2;
/// Registers for all but queries, keys, values and results, and more where products convert.
const OTHERS: usize = 48;
const CONVERTED: usize = 48;
/// Parts that are put together at a time.
const MERGED: usize = 8;

/// How a token's queries and keys are shared out.
#[derive(Clone, Copy, Debug)]
struct Shape {
    tokens: usize,
    /// Query heads of a work-group, at most 16.
    columns: usize,
    /// Work-groups of a token that share no keys or no queries, and work-groups that share its blocks.
    parts: usize,
    splits: usize,
    threads: usize,
    /// Whether queries stay in registers, and whether the next keys and values are under way while others are computed.
    keeps: bool,
    ahead: bool,
}

impl Shape {
    fn new(spec: &KernelSpec, arch: &Arch) -> Result<Shape, Diagnostic> {
        let (sizes, simt) = (Sizes::of(spec.body)?, arch.simt());
        let tiles = sizes.group().div_ceil(16);
        let parts = sizes.cache.heads * tiles;
        let splits = (GROUPS * simt.chip.units / (spec.tokens * parts)).clamp(1, SPLITS);
        let r = sizes.registers(arch);
        let others = if r.converts { OTHERS + CONVERTED } else { OTHERS };
        let flying = r.keys + r.values + r.results + others;
        Ok(Shape {
            tokens: spec.tokens,
            columns: sizes.group().div_ceil(tiles),
            parts,
            splits,
            threads: WAVES * simt.wave,
            keeps: !r.converts && flying + r.query <= r.most,
            ahead: flying <= r.most,
        })
    }
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> Result<(Code<'c>, KernelInfo), Diagnostic> {
    let shape = Shape::new(spec, setup.arch)?;
    let code = setup.open(spec, shape.threads);
    let times = shape.parts * shape.splits;
    let workspace = {
        let c = &code;
        let kernel = super::kernel(c, spec)?;
        let attention = Attention::new(&kernel)?;
        let token = c.div(c.group(), times);
        let workspace = c.argument(super::arguments(spec.body) + 1);
        super::when_in_step(c, spec, &kernel, token, || {
            Part::new(&attention, shape, token, c.rem(c.group(), times), workspace).run()
        })?;
        let partials = shape.tokens * times * Partial::bytes(&attention, shape.columns);
        if shape.splits > 1 { counters(shape) + partials } else { 0 }
    };
    let info = KernelInfo::simt(Tasks::Tokens { per: 1, times }, shape.threads);
    Ok((code, KernelInfo { workspace, ..info }))
}

/// Bytes of the counters of finished splits, with which the workspace begins.
fn counters(shape: Shape) -> usize {
    (4 * shape.tokens * shape.parts).next_multiple_of(256)
}

/// Running values of some queries in memory: sums of values query by query, then tops, then sums of weights.
#[derive(Clone, Copy)]
struct Partial<'c> {
    ptr: Ptr<'c>,
    columns: usize,
    /// Bytes from one query to the next.
    stride: usize,
}

/// A top, a sum of weights, and a vector of sums of values.
type Item<'c> = (FloatValue<'c>, FloatValue<'c>, Vector<'c>);

impl<'c> Partial<'c> {
    /// Four banks of local memory behind each query, so that queries do not lie in the same.
    fn stride(a: &Attention) -> usize {
        (a.cache.layout.dim + 4) * 4
    }

    fn bytes(a: &Attention, columns: usize) -> usize {
        (columns * (Self::stride(a) + 8)).next_multiple_of(64)
    }

    fn at(a: &Attention<'_, '_, 'c>, base: Ptr<'c>, columns: usize, number: Int<'c>) -> Partial<'c> {
        let c = a.code();
        let bytes = c.mul(number, c.int(Self::bytes(a, columns)));
        Partial { ptr: c.at(base, bytes), columns, stride: Self::stride(a) }
    }

    fn values(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>) -> Ptr<'c> {
        c.at(self.ptr, c.add(c.mul(column, c.int(self.stride)), c.mul(dim, c.int(4))))
    }

    /// The address of a top, or of a sum of weights.
    fn number(&self, c: &Code<'c>, column: Int<'c>, is_sum: bool) -> Ptr<'c> {
        let first = self.columns * self.stride + if is_sum { 4 * self.columns } else { 0 };
        c.at(self.ptr, c.add(c.mul(column, c.int(4)), c.int(first)))
    }

    fn load(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let number = |is_sum| c.load(c.cx.f32_type(), self.number(c, column, is_sum), 4).into_float_value();
        let values = c.load(c.f32s(), self.values(c, column, dim), 4 * c.lanes() as u32).into_vector_value();
        (number(false), number(true), values)
    }

    fn store(&self, c: &Code<'c>, column: Int<'c>, dim: Int<'c>, (top, sum, values): Item<'c>) {
        c.store(self.values(c, column, dim), values, 4 * c.lanes() as u32);
        c.when(c.equal(dim, 0), || {
            c.store(self.number(c, column, false), top, 4);
            c.store(self.number(c, column, true), sum, 4);
        });
    }
}

/// What one work-group does.
struct Part<'p, 'k, 'a, 'c> {
    attention: &'p Attention<'k, 'a, 'c>,
    shape: Shape,
    token: Int<'c>,
    position: Int<'c>,
    table: Ptr<'c>,
    /// The head of the cache, and the first query head.
    cache_head: Int<'c>,
    head: Int<'c>,
    is_last_head: Int<'c>,
    /// Which split this is, and how many have blocks.
    split: Int<'c>,
    used: Int<'c>,
    /// The first step, and the last of this split and of the sequence.
    first: Int<'c>,
    last: Int<'c>,
    counter: Ptr<'c>,
    /// Where the splits' values lie.
    partials: Ptr<'c>,
}

impl<'p, 'k, 'a, 'c> Part<'p, 'k, 'a, 'c> {
    fn new(
        a: &'p Attention<'k, 'a, 'c>,
        shape: Shape,
        token: Int<'c>,
        rest: Int<'c>,
        workspace: Ptr<'c>,
    ) -> Part<'p, 'k, 'a, 'c> {
        let c = a.code();
        let (part, split) = (c.div(rest, shape.splits), c.rem(rest, shape.splits));
        let group = a.heads / a.cache.ty.heads;
        let tiles = shape.parts / a.cache.ty.heads;
        let (cache_head, tile) = (c.div(part, tiles), c.rem(part, tiles));
        // The last tile of heads may reach back into the one before.
        let inside = c.smaller(c.mul(tile, c.int(shape.columns)), c.int(group - shape.columns));
        let position = c.load_index(a.cache.batch.positions, token);
        let tokens = a.cache.layout.block_tokens;
        let (begin, last) = (c.div(a.first_key(position), tokens), c.div(position, tokens));
        let blocks = c.add(c.sub(last, begin), c.int(1));
        // So many blocks that all waves have a step.
        let least = (WAVES * a.span()).div_ceil(tokens);
        let each = c.larger(c.div(c.add(blocks, c.int(shape.splits - 1)), shape.splits), c.int(least));
        let used = c.b.build_int_unsigned_div(c.sub(c.add(blocks, each), c.int(1)), each, "").expect("integers");
        let own = c.add(begin, c.mul(split, each));
        let end = c.sub(c.mul(c.add(own, each), c.int(a.steps())), c.int(1));
        let row = c.add(c.mul(token, c.int(shape.parts)), part);
        let partials = c.mul(c.mul(row, c.int(shape.splits)), c.int(Partial::bytes(a, shape.columns)));
        Part {
            attention: a,
            shape,
            token,
            position,
            table: a.cache.batch.table(c, token),
            cache_head,
            head: c.add(c.mul(cache_head, c.int(group)), inside),
            is_last_head: c.equal(part, shape.parts - 1),
            split,
            used: c.uniform(used),
            first: c.mul(own, c.int(a.steps())),
            last: c.smaller(end, c.div(position, a.span())),
            counter: c.at(workspace, c.mul(row, c.int(4))),
            partials: c.at(c.at(workspace, c.int(counters(shape))), partials),
        }
    }

    fn code(&self) -> &'a Code<'c> {
        self.attention.code()
    }

    fn run(&self) -> Result<(), Diagnostic> {
        let c = self.code();
        let mut result = Ok(());
        c.when(c.less(self.split, self.used), || result = self.attend());
        result
    }

    fn attend(&self) -> Result<(), Diagnostic> {
        let (a, c) = (self.attention, self.code());
        let row = a.cache.layout.dim * a.matrix.dtype.size() + 16;
        let staged = c.local(self.shape.columns * row);
        self.stage(staged, row)?;
        c.barrier();
        let column = c.smaller(a.place.column, c.int(self.shape.columns - 1));
        let part = c.mul(a.place.part, c.int(a.matrix.layout.depth * a.matrix.dtype.size()));
        let own = c.at(staged, c.add(c.mul(column, c.int(row)), part));
        let running = self.walk(own);
        let meeting = c.local(WAVES * Partial::bytes(a, self.shape.columns));
        self.leave(meeting, running);
        c.barrier();
        self.meet(meeting);
        c.when(c.b.build_and(self.is_last_head, c.equal(self.split, 0), "").expect("conditions"), || {
            a.pad(self.token, c.int(1), self.shape.threads);
        });
        Ok(())
    }

    /// The queries in local memory, and the token's key and value in the cache.
    fn stage(&self, local: Ptr<'c>, row: usize) -> Result<(), Diagnostic> {
        let (a, c, rows) = (self.attention, self.code(), &self.attention.kernel.rows);
        let (dim, padded, size) = (a.cache.ty.head_dim, a.cache.layout.dim, a.matrix.dtype.size());
        c.set_lanes(a.lanes);
        let (team, first, teams) = teams(c, dim, self.shape.threads);
        rows.set_team(team);
        let columns = self.shape.columns;
        each_head(c, columns, (first, teams), |column| {
            rows.forget();
            let head = c.add(self.head, column);
            a.prepare_query(self.token, head)?;
            let to = c.at(local, c.mul(column, c.int(row)));
            rows.each_column(dim, |col| {
                let v = a.query(self.token, head, col)?;
                c.store_floats(c.at(to, c.mul(col, c.int(size))), v, a.matrix.dtype);
                Ok(())
            })
        })?;
        rows.forget();
        if dim < padded {
            c.repeat(c.thread(), c.int(columns * (padded - dim)), self.shape.threads, |i| {
                let col = c.add(c.rem(i, padded - dim), c.int(dim));
                let at = c.add(c.mul(c.div(i, padded - dim), c.int(row)), c.mul(col, c.int(size)));
                c.store(c.at(local, at), c.bytes_type(size).const_zero(), size as u32);
            });
        }
        let mut result = Ok(());
        let is_writer = c.equal(first, columns.min(teams - 1));
        let has_token = c.equal(c.sub(c.div(self.position, a.span()), self.last), 0);
        c.when(has_token, || {
            let slot = a.cache.slot(c, self.token);
            c.when(is_writer, || {
                result = a.cache.prepare(rows, self.token, self.cache_head).and_then(|()| {
                    let write = |col| a.cache.write_part(rows, self.token, self.cache_head, slot, Col::Var(col));
                    rows.each_column(dim, write)
                });
            });
        });
        rows.forget();
        result
    }

    /// The queries' fragments.
    fn queries(&self, own: Ptr<'c>) -> Fragments<'p, 'c> {
        let (a, c) = (self.attention, self.code());
        let chunk = a.span() * a.matrix.dtype.size();
        a.fragments(a.chunks(), move |i| a.matrix.load_row(c.at(own, c.int(i * chunk))))
    }

    fn block(&self, step: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.load_index(self.table, c.div(c.smaller(step, self.last), self.attention.steps()))
    }

    /// Every `WAVES`-th step. Keys of the next step and values of this are under way while this is computed.
    fn walk(&self, own: Ptr<'c>) -> Running<'c> {
        let (a, c) = (self.attention, self.code());
        let kept = self.shape.keeps.then(|| self.queries(own));
        let [key_lane, value_lane] = [a.key_lane(), a.matrix.in_panel(a.place, a.place.row)];
        let turn = |block: Int<'c>, step: Int<'c>| a.turn_in(block, self.cache_head, (step, 1));
        let key = |block: Int<'c>, step: Int<'c>| {
            let p = c.at(turn(block, step)[0], c.lane_offset(key_lane, step));
            move |i: usize| a.key(p, i)
        };
        let keys_of = |block: Int<'c>, step: Int<'c>| (0..a.keys()).map(key(block, step)).collect::<Vec<_>>();
        let first = c.add(self.first, c.wave_index());
        let block = self.block(first);
        let next = self.block(c.add(first, c.int(WAVES)));
        let keys = if self.shape.ahead { keys_of(block, c.smaller(first, self.last)) } else { vec![] };
        let mut carried = a.begin().carried();
        let count = carried.len();
        let after = |blocks: [Int<'c>; 2], keys: &[Fragment<'c>]| {
            let blocks = blocks.into_iter().map(Any::from);
            blocks.chain(keys.iter().flatten().map(|&v| Any::from(v))).collect::<Vec<_>>()
        };
        carried.extend(after([block, next], &keys));
        let range = (first, c.add(self.last, c.int(1)), WAVES);
        let carried = c.for_each(range, &carried, |step, carried| {
            let [block, next] = [0, 1].map(|i| carried[count + i].into_int_value());
            let keys: Vec<Vector<'c>> = carried[count + 2..].iter().map(|v| v.into_vector_value()).collect();
            let keys: Vec<Fragment<'c>> = keys.chunks(a.matrix.runs()).map(|runs| runs.to_vec()).collect();
            let value = c.at(turn(block, step)[1], c.lane_offset(value_lane, step));
            let value = move |i: usize| a.value(value, i);
            let further = self.block(c.add(step, c.int(2 * WAVES)));
            let scores = |keys: &Fragments<'_, 'c>| match &kept {
                Some(queries) => a.scores(keys, queries),
                None => a.scores(keys, &self.queries(own)),
            };
            let (scores, values, keys): (_, Fragments<'_, 'c>, _) = if self.shape.ahead {
                let values: Vec<Fragment<'c>> = (0..a.panels()).map(value).collect();
                c.keep_order();
                let asked: Fragments<'_, 'c> = Box::new(|i| keys[i].clone());
                let scores = scores(&asked);
                let keys = keys_of(next, c.smaller(c.add(step, c.int(WAVES)), self.last));
                c.keep_order();
                (scores, Box::new(move |i| values[i].clone()), keys)
            } else {
                let scores = scores(&a.fragments(a.keys(), key(block, step)));
                c.keep_order();
                (scores, a.fragments(a.panels(), value), vec![])
            };
            let first = c.add(c.mul(step, c.int(a.span())), c.mul(a.half, c.int(a.held())));
            let scores = a.hide(scores, c.sub(self.position, first));
            let running = a.add(&[vec![scores]], &values, &[Running::of(&carried[..count])]);
            let mut carried = running[0].carried();
            carried.extend(after([next, further], &keys));
            carried
        });
        Running::of(&carried[..count])
    }

    /// The wave's values, for the others to see.
    fn leave(&self, meeting: Ptr<'c>, running: Running<'c>) {
        let (a, c) = (self.attention, self.code());
        let to = Partial::at(a, meeting, self.shape.columns, c.wave_index());
        let sum = a.total(running.sum);
        let column = a.place.column;
        c.when(c.less(column, c.int(self.shape.columns)), || {
            c.set_lanes(a.matrix.layout.results);
            for (j, &values) in running.values.iter().enumerate() {
                let dim = c.add(a.place.results, c.int(16 * j));
                c.store(to.values(c, column, dim), values, 16);
            }
            c.when(c.equal(a.half, 0), || {
                c.store(to.number(c, column, false), running.top, 4);
                c.store(to.number(c, column, true), sum, 4);
            });
        });
    }

    /// Puts the waves' values together: into the result, or with those of other splits.
    fn meet(&self, meeting: Ptr<'c>) {
        let (a, c) = (self.attention, self.code());
        let columns = self.shape.columns;
        let waves = |column: Int<'c>, dim: Int<'c>| {
            let load = |wave| Partial::at(a, meeting, columns, c.int(wave)).load(c, column, dim);
            self.merge(&(0..WAVES).map(load).collect::<Vec<_>>())
        };
        if self.shape.splits == 1 {
            return self.each(|column, dim| self.store(column, dim, waves(column, dim)));
        }
        let turn = c.local(16);
        let alone = c.less(self.used, c.int(2));
        c.when(alone, || self.each(|column, dim| self.store(column, dim, waves(column, dim))));
        c.when(c.b.build_not(alone, "").expect("a condition"), || {
            let own = Partial::at(a, self.partials, columns, self.split);
            self.each(|column, dim| own.store(c, column, dim, waves(column, dim)));
            c.barrier();
            c.when(c.equal(c.thread(), 0), || {
                c.release();
                c.store(turn, c.take_turn(self.counter), 4);
            });
            c.barrier();
            let turn = c.uniform(c.load(c.cx.i32_type(), turn, 4).into_int_value());
            c.when(c.equal(c.sub(self.used, turn), 1), || {
                c.acquire();
                self.each(|column, dim| self.store(column, dim, self.splits(column, dim)));
                c.when(c.equal(c.thread(), 0), || c.store(self.counter, c.cx.i32_type().const_zero(), 4));
            });
        });
    }

    /// `body` for each vector of each query, by all threads.
    fn each(&self, body: impl FnOnce(Int<'c>, Int<'c>)) {
        let (a, c) = (self.attention, self.code());
        c.set_lanes(a.lanes.min(4));
        let vectors = a.cache.layout.dim / c.lanes();
        c.repeat(c.thread(), c.int(self.shape.columns * vectors), self.shape.threads, |i| {
            body(c.div(i, vectors), c.mul(c.rem(i, vectors), c.int(c.lanes())));
        });
    }

    /// The values of all splits, some at a time so that their loads are under way together.
    fn splits(&self, column: Int<'c>, dim: Int<'c>) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let last = c.sub(self.used, c.int(1));
        let begin = [a.lowest().into(), c.number(0.0).into(), c.zero().into()];
        let step = MERGED.min(self.shape.splits);
        let of = |v: &[Any<'c>]| (v[0].into_float_value(), v[1].into_float_value(), v[2].into_vector_value());
        let all = c.for_each((c.int(0), self.used, step), &begin, |first, carried| {
            let load = |i: usize| {
                let number = c.add(first, c.int(i));
                let real = c.less(number, self.used);
                let (top, sum, values) =
                    Partial::at(a, self.partials, self.shape.columns, c.smaller(number, last)).load(c, column, dim);
                (c.pick(real, top, c.number(f64::NEG_INFINITY)).into_float_value(), sum, values)
            };
            let items: Vec<Item<'c>> = std::iter::once(of(carried)).chain((0..step).map(load)).collect();
            let (top, sum, values) = self.merge(&items);
            vec![top.into(), sum.into(), values.into()]
        });
        of(&all)
    }

    /// Several as one, each shrunk by how far it is below the highest top.
    fn merge(&self, items: &[Item<'c>]) -> Item<'c> {
        let (a, c) = (self.attention, self.code());
        let top = items[1..].iter().fold(items[0].0, |top, item| a.max(top, item.0));
        let begin = (c.number(0.0), c.zero());
        let (sum, values) = items.iter().fold(begin, |(sums, all), &(own, sum, values)| {
            let shrink = a.power(own, top);
            (a.fma(sum, shrink, sums), c.fma(values, c.splat(shrink), all))
        });
        (top, sum, values)
    }

    /// Divides by the sum and stores.
    fn store(&self, column: Int<'c>, dim: Int<'c>, (_, sum, values): Item<'c>) {
        let (a, c) = (self.attention, self.code());
        c.when(c.less(dim, c.int(a.cache.ty.head_dim)), || {
            let v = c.fdiv(values, c.splat(sum));
            c.store_floats(a.result(self.token, c.add(self.head, column), dim), v, a.out_type());
        });
    }
}
