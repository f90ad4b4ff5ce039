//! Families `attend_one` and `attend_many`: attention over the paged cache, block by block, with a
//! running softmax.
//!
//! `attend_one`: a task is a token and a cache head. It writes the token's key and value, then
//! attends with every query head that shares them. Where values are a part of the keys, all query
//! heads share one key; they are split into several tasks, and each writes the same key.
//! `attend_many`: a task is a tile of tokens and a query head; keys and values are in the cache
//! already.
//! `attend_listed`: as `attend_one`, but keys and values are in the cache already; those of listed
//! positions are gathered into blocks first. So does a part of attention, which stores the largest
//! score and the sum of each head as well.
mod gather;
mod tiles;
mod transpose;
mod widen;

use atomc_artifact::abi::TILE_TOKENS;
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Value};
use inkwell::FloatPredicate;
use inkwell::values::FloatValue;

use super::dot::{Dot, Walk};
use super::rows::pad;
use super::signature;
use super::tile::{self, Tiles};
use super::{Host, LANES};
use crate::cache::Cache;
use crate::code::{Code, Int, Ptr, Vector};
use crate::kernel::{Attending, Kernel, Lists, Results, Seen};
use crate::math;
use crate::row::{At, Col, Operand, unsupported};
use crate::{KernelSpec, Tasks};

/// Query heads of a task of `attend_one`, where very many share a key, or a list.
const TOGETHER: usize = 16;
/// The score of a masked key: below every real one, and far from overflow.
const MASKED: f64 = -1e30;

pub fn emit_one<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let a = Attention::new(c, &kernel)?;
    let (group, heads) = (a.heads / a.cache.ty.heads, a.cache.ty.heads);
    if a.lists.is_some() && a.widens() {
        return Err(unsupported("attention over listed positions of a cache of bytes"));
    }
    if a.seen.ends.is_some() {
        return Err(unsupported("attention over what comes after a token, a token at a time"));
    }
    let are_many = a.cache.ty.is_prefix || a.lists.is_some();
    let together = if are_many { group.min(TOGETHER) } else { group };
    let parts = group.div_ceil(together);
    let times = heads * parts;
    let block = a.block(together, 1);
    let (first, end) = signature::tasks(c);
    kernel.each(first, end, |task| {
        let (token, rest) = (task / times, task % times);
        let (head, part) = if parts == 1 { (rest, c.int(0)) } else { (rest / parts, rest % parts) };
        if a.lists.is_none() {
            a.cache.write(&kernel.rows, token, head, a.cache.slot(c, token))?;
        }
        let query_head = head * group + part * together;
        let place = |r: Int<'c>| (token, query_head + r);
        let count = match group.is_multiple_of(together) {
            true => c.int(together),
            false => c.smaller(c.int(group) - part * together, together),
        };
        a.run(&block, &Span { token, head, count, per_row: 0 }, &place, None)
    })?;
    Ok(manifest::Kernel::host(Tasks::Tokens { per: 1, times }, block.bytes))
}

pub fn emit_many<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let a = Attention::new(c, &kernel)?;
    let by_tiles = a.dot.has_tiles();
    let block = a.block(TILE_TOKENS, if by_tiles { tiles::BLOCKS } else { 1 });
    let (first, end) = signature::tasks(c);
    let tiles = by_tiles.then(|| Tiles::open(c, tile::ROWS));
    kernel.each(first, end, |task| {
        let (tile, query_head) = (task / a.heads, task % a.heads);
        let entry = |i: usize| c.load_index(a.cache.batch.tiles, tile * 2 + i);
        let (token, count) = (entry(0), entry(1));
        let head = query_head / (a.heads / a.cache.ty.heads);
        let place = |r: Int<'c>| (token + r, query_head);
        c.when(c.less(0, count), || a.run(&block, &Span { token, head, count, per_row: 1 }, &place, tiles.as_ref()))
    })?;
    if let Some(tiles) = tiles {
        tiles.close();
    }
    Ok(manifest::Kernel::host(Tasks::Tiles { times: a.heads }, block.bytes))
}

struct Attention<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    query: Value,
    out: &'k Operand<'c>,
    /// Where the largest scores and the sums are stored, of a part of attention.
    stats: Option<&'k Operand<'c>>,
    heads: usize,
    scale: f64,
    window: usize,
    /// Tokens of a row of the cache.
    every: usize,
    sinks: Option<&'k Operand<'c>>,
    /// The positions that each token attends to, if not all up to its own.
    lists: Option<Lists<'c>>,
    seen: Seen<'c>,
    dot: Dot,
}

/// Rows that share keys and values: the token that gives their sequence, the cache head, the number
/// of rows, and the distance in positions from each row to the next.
struct Span<'c> {
    token: Int<'c>,
    head: Int<'c>,
    count: Int<'c>,
    per_row: usize,
}

/// Scratch for a number of rows: queries and weights in the type of products, scores, results,
/// maxima and sums in f32; and widened keys and values of a turn, if they are widened.
struct Block<'c> {
    height: usize,
    /// Keys of one turn: those of one or more blocks of the cache.
    keys: usize,
    query: Ptr<'c>,
    score: Ptr<'c>,
    weight: Ptr<'c>,
    result: Ptr<'c>,
    top: Ptr<'c>,
    sum: Ptr<'c>,
    widened: [Ptr<'c>; 2],
    /// Values of a turn, where these are a part of keys.
    turned: Ptr<'c>,
    bytes: usize,
}

type Place<'p, 'c> = &'p dyn Fn(Int<'c>) -> (Int<'c>, Int<'c>);

impl<'k, 'a, 'c> Attention<'k, 'a, 'c> {
    fn new(c: &Host<'c>, kernel: &'k Kernel<'a, 'c>) -> Result<Attention<'k, 'a, 'c>, Diagnostic> {
        let attending = Attending::of(kernel)?;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("attention over other than one cache")) };
        let Results { out, stats } = attending.results(kernel)?;
        let Attending { query, scale, sinks, seen, .. } = attending;
        let Seen { window, every, lists, .. } = seen;
        let heads = kernel.rows.shape(query)?.shape.0[1].fixed().unwrap_or(0);
        let stored = cache.ty.dtype;
        let dot = Dot::new(c, if stored == DType::F8E4M3 { kernel.rows.shape(query)?.dtype } else { stored });
        Ok(Attention { kernel, cache, query, out, stats, heads, scale, window, every, sinks, lists, seen, dot })
    }

    fn code(&self) -> &'a Code<'c> {
        self.kernel.code
    }

    /// Rows that are computed together in registers.
    fn height(&self, rows: usize) -> usize {
        let wide = self.dot.core.vector.holds(LANES);
        let most = if wide >= 32 { 4 } else { 2 };
        if rows >= most { most } else { rows.next_power_of_two().min(most) }
    }

    fn block(&self, rows: usize, blocks: usize) -> Block<'c> {
        let (c, l) = (self.code(), &self.cache.layout);
        let height = self.height(rows);
        let rows = rows.next_multiple_of(height);
        let size = self.dot.dtype.size();
        let mut bytes = 0;
        let mut take = |n: usize| {
            let p = c.at(signature::scratch(c), bytes);
            bytes += n.next_multiple_of(64);
            p
        };
        let query = take(rows * l.dim * size);
        let keys = blocks * l.block_tokens;
        let score = take(rows * keys * 4);
        let weight = take(rows * keys * size);
        let result = take(rows * l.value_dim * 4);
        let (top, sum) = (take(rows * 4), take(rows * 4));
        let is_prefix = self.cache.ty.is_prefix;
        let own = |dim: usize, is_wanted: bool| if is_wanted { keys * dim * size } else { 0 };
        let widened = [(l.dim, true), (l.value_dim, !is_prefix)];
        let widened =
            widened.map(|(dim, is_wanted)| take(own(dim, is_wanted && (self.widens() || self.lists.is_some()))));
        let turned = take(own(l.value_dim, is_prefix));
        Block { height, keys, query, score, weight, result, top, sum, widened, turned, bytes }
    }

    fn run(
        &self,
        block: &Block<'c>,
        span: &Span<'c>,
        place: Place<'_, 'c>,
        tiles: Option<&Tiles<'_, 'c>>,
    ) -> Result<(), Diagnostic> {
        let c = self.code();
        self.begin(block, span, place)?;
        let position = c.load_index(self.cache.batch.positions, span.token);
        match self.every {
            1 => self.turns(block, span, position, tiles),
            // Of rows of several tokens there may be none that is complete.
            every => {
                let rows = (position + 1) / every;
                c.when(c.less(0, rows), || self.turns(block, span, rows - 1, tiles));
            }
        }
        self.end(block, span, place);
        Ok(())
    }

    /// Scores, softmax and sums over the keys up to a position.
    fn turns(&self, block: &Block<'c>, span: &Span<'c>, position: Int<'c>, tiles: Option<&Tiles<'_, 'c>>) {
        let c = self.code();
        let table = self.cache.batch.table(c, span.token);
        let list = self.lists.map(|lists| lists.of(c, position, (span.token, span.head)));
        // The positions of a list are counted as those of a sequence are.
        let position = list.as_ref().map_or(position, |list| list.count - 1);
        let last = self.seen.reach(c, (span.token, position), (span.count - 1) * span.per_row);
        let tokens = self.cache.layout.block_tokens;
        let first = match self.window {
            0 => c.int(0),
            w => c.larger(position + 1 - w, 0) / tokens,
        };
        let (last, blocks) = (last / tokens, block.keys / tokens);
        // Turns begin at fixed places of the sequence, not where this tile's window does: a row's
        // sums are then the same in every tile.
        c.repeat(first / blocks * blocks, last + 1, blocks, |number| {
            // A number past the last block stands for the last one, and a number before the first
            // for the first. Their keys are masked.
            if let Some(list) = &list {
                let (keys, values) = self.gather(block, list, (table, span.head), number * tokens);
                let turn =
                    Turn { keys, values, next: None, left: last - number, first: number * tokens, position, span };
                return c.repeat(0, span.count, block.height, |row| self.turn_by_vectors(block, row, &turn));
            }
            let place = |number| {
                let number = c.larger(c.smaller(number, last), first);
                self.cache.head(c, c.load_index(table, number), span.head)
            };
            let at: Vec<[Int; 2]> = (0..blocks).map(|i| place(number + i)).collect();
            let next = place(number + blocks)[0] - at[0][0];
            let [k, v] = [(self.cache.k, 0), (self.cache.v, 1)]
                .map(|(p, which)| at.iter().map(|at| c.at(p, at[which])).collect::<Vec<_>>());
            let (keys, values, next) = match (self.widens(), self.cache.ty.is_prefix) {
                (true, true) => (self.widen(block, 0, &k, next), vec![], None),
                (true, false) => (self.widen(block, 0, &k, next), self.widen(block, 1, &v, next), None),
                (false, _) => (k, v, Some(next)),
            };
            let values = if self.cache.ty.is_prefix { self.turned(block, &keys) } else { values };
            let turn = Turn { keys, values, next, left: last - number, first: number * tokens, position, span };
            match tiles {
                Some(tiles) => self.turn_by_tiles(block, span, &turn, tiles),
                None => c.repeat(0, span.count, block.height, |row| self.turn_by_vectors(block, row, &turn)),
            }
        });
    }

    /// Stages the queries and clears the running values.
    fn begin(&self, block: &Block<'c>, span: &Span<'c>, place: Place<'_, 'c>) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let (size, dim) = (self.dot.dtype.size(), self.cache.ty.head_dim);
        c.repeat(0, span.count, 1, |r| {
            let (token, head) = place(r);
            rows.prepare(self.query, token, Some(head))?;
            for col in (0..l.dim).step_by(LANES) {
                let v = match col < dim {
                    true => rows.eval(self.query, At { row: token, head: Some(head), col: Col::Const(col) })?,
                    false => c.zero(),
                };
                let v = match dim < col + LANES {
                    true => c.choose(c.lanes_below(dim.saturating_sub(col)), v, c.zero()),
                    false => v,
                };
                let at = (r * l.dim + col) * size;
                c.store_floats(c.at(block.query, at), v, self.dot.dtype);
            }
            for col in (0..l.value_dim).step_by(LANES) {
                let at = (r * l.value_dim + col) * 4;
                c.store(c.at(block.result, at), c.zero(), 4);
            }
            let at = r * 4;
            let (top, sum) = self.before_keys(head);
            c.store(c.at(block.top, at), top, 4);
            c.store(c.at(block.sum, at), sum, 4);
            Ok(())
        })
    }

    /// The highest score and the sum of weights before any key: none, or those of a head's sink.
    fn before_keys(&self, head: Int<'c>) -> (FloatValue<'c>, FloatValue<'c>) {
        let c = self.code();
        let Some(sinks) = self.sinks else { return (c.number(MASKED), c.number(0.0)) };
        let sink = c.load_number(c.at(sinks.ptr, head * sinks.ty.dtype.size()), sinks.ty.dtype);
        let top = c.fmax(c.splat(sink), c.lit(MASKED));
        (c.lane(top, 0).into_float_value(), c.number(1.0))
    }

    fn row(&self, base: Ptr<'c>, row: Int<'c>, bytes: usize) -> Ptr<'c> {
        let c = self.code();
        c.at(base, row * bytes)
    }

    /// Scores, softmax and sum over values for `height` rows and one block of keys.
    fn turn_by_vectors(&self, block: &Block<'c>, row: Int<'c>, turn: &Turn<'_, 'c>) {
        let (c, l) = (self.code(), &self.cache.layout);
        let (size, group) = (self.dot.dtype.size(), self.dot.group);
        let rows: Vec<Int> = (0..block.height).map(|r| row + r).collect();
        let queries: Vec<_> = rows.iter().map(|&r| self.row(block.query, r, l.dim * size)).collect();
        let panels: Vec<_> =
            (0..l.block_tokens / LANES).map(|p| c.at(turn.keys[0], p * LANES * l.dim * size)).collect();
        let scores = self.dot.sums(
            c,
            &queries,
            &panels,
            Walk { count: l.dim / group, step: self.dot.step(c), unroll: 1, ahead: turn.next },
        );
        let shrink: Vec<_> = rows.iter().zip(&scores).map(|(&r, s)| self.soften(block, r, s, turn)).collect();
        let weights: Vec<_> = rows.iter().map(|&r| self.row(block.weight, r, block.keys * size)).collect();
        c.repeat(0, l.value_dim, LANES, |col| {
            let values = c.at(turn.values[0], col * (l.block_tokens * size));
            let step = self.dot.step(c);
            let walk = Walk { count: l.block_tokens / group, step, unroll: 2, ahead: turn.next };
            let sums = self.dot.sums(c, &weights, &[values], walk);
            for ((&r, sum), &shrink) in rows.iter().zip(&sums).zip(&shrink) {
                let p = c.at(self.row(block.result, r, l.value_dim * 4), col * 4);
                let old = c.load_floats(p, DType::F32);
                c.store(p, c.fma(old, shrink, sum[0]), 4);
            }
        });
    }

    /// Turns one row's scores into weights and stores them. Returns the factor of earlier results.
    fn soften(&self, block: &Block<'c>, row: Int<'c>, scores: &[Vector<'c>], turn: &Turn<'_, 'c>) -> Vector<'c> {
        let (c, size) = (self.code(), self.dot.dtype.size());
        let own = turn.position + row * turn.span.per_row;
        let further = self.seen.ends.map(|_| {
            // Rows behind the last one are as it.
            let behind = c.smaller(row, turn.span.count - 1);
            self.seen.reach(c, (turn.span.token, turn.position), behind) - own
        });
        let limit = further.map_or(own, |further| own + further);
        let seen: Vec<_> = (0..scores.len()).map(|i| self.seen(turn.first + i * LANES, (limit, further))).collect();
        let masked = |(&s, &m): (&Vector<'c>, &Vector<'c>)| c.choose(m, c.fmul(s, c.lit(self.scale)), c.lit(MASKED));
        let scores: Vec<_> = scores.iter().zip(&seen).map(masked).collect();
        let most = scores[1..].iter().fold(scores[0], |a, &b| c.fmax(a, b));
        let (top_at, sum_at) = (self.row(block.top, row, 4), self.row(block.sum, row, 4));
        let old = c.splat(c.load(c.cx.f32_type(), top_at, 4));
        let top = c.fmax(old, c.splat(c.top(most)));
        let shrink = math::exp(c, c.fsub(old, top));
        let weights: Vec<_> =
            scores.iter().zip(&seen).map(|(&s, &m)| c.choose(m, math::exp(c, c.fsub(s, top)), c.zero())).collect();
        let fresh = weights[1..].iter().fold(weights[0], |a, &b| c.fadd(a, b));
        let sum = c.splat(c.load(c.cx.f32_type(), sum_at, 4));
        let sum = c.fma(sum, shrink, c.splat(c.sum(fresh)));
        c.store(top_at, c.lane(top, 0), 4);
        c.store(sum_at, c.lane(sum, 0), 4);
        let line = self.row(block.weight, row, block.keys * size);
        for (i, pair) in weights.as_chunks::<2>().0.iter().enumerate() {
            self.dot.store_two(c, c.at(line, 2 * i * LANES * size), *pair);
        }
        shrink
    }

    /// The mask of 16 keys from `first` on that a query sees up to a position, which may be some
    /// further than its own.
    fn seen(&self, first: Int<'c>, (limit, further): (Int<'c>, Option<Int<'c>>)) -> Vector<'c> {
        let c = self.code();
        let after = limit + 1 - first;
        let upto = c.lanes_below(after);
        match self.window {
            0 => upto,
            w => {
                let gone = c.lanes_below(further.map_or(after, |further| after - further) - w);
                c.b.build_and(upto, c.b.build_not(gone, "").expect("a mask"), "").expect("masks")
            }
        }
    }

    /// Divides by the sums and stores, row padding as zeros after the last head.
    fn end(&self, block: &Block<'c>, span: &Span<'c>, place: Place<'_, 'c>) {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let dim = self.cache.ty.value_dim;
        let dtype = self.out.ty.dtype;
        c.repeat(0, span.count, 1, |r| {
            let (token, head) = place(r);
            let sum = c.splat(c.load(c.cx.f32_type(), self.row(block.sum, r, 4), 4));
            let mut inverse = c.fdiv(c.lit(1.0), sum);
            if let Some(stats) = self.stats {
                self.store_stats(block, (stats, token, head), r);
                // Without a key the result is zeros.
                let has_keys = c.b.build_float_compare(FloatPredicate::OGT, sum, c.zero(), "").expect("floats");
                inverse = c.choose(has_keys, inverse, c.zero());
            }
            let first = head * dim;
            let to = |col: usize| {
                let col = Col::Var(first + col);
                rows.address(self.out, At { row: token, head: None, col })
            };
            for col in (0..dim).step_by(LANES) {
                let p = c.at(self.row(block.result, r, l.value_dim * 4), 4 * col);
                let lanes = c.fmul(c.load_floats(p, DType::F32), inverse);
                c.store_some(to(col), lanes, dtype, dim - col);
            }
            let width = self.heads * dim;
            let padded = rows.padded(self.out);
            if width < padded {
                c.when(c.equal(head, self.heads - 1), || {
                    for col in (width..padded).step_by(LANES) {
                        c.store_some(to(col - width + dim), c.zero(), dtype, padded - col);
                    }
                });
            }
        });
    }
}

impl<'c> Attention<'_, '_, 'c> {
    /// Stores a head's largest score and sum, row padding as zeros with the last head's.
    fn store_stats(&self, block: &Block<'c>, (stats, token, head): (&Operand<'c>, Int<'c>, Int<'c>), row: Int<'c>) {
        let (c, rows) = (self.code(), &self.kernel.rows);
        let to = |col: Int<'c>| rows.address(stats, At { row: token, head: None, col: Col::Var(col) });
        for (from, col) in [(block.top, head), (block.sum, head + self.heads)] {
            c.store(to(col), c.load(c.cx.f32_type(), self.row(from, row, 4), 4), 4);
        }
        c.when(c.equal(head, self.heads - 1), || pad(rows, stats, token, 2 * self.heads));
    }
}

/// Some blocks of keys and values: their addresses and, unless they were widened, the distance to
/// the first one of the next turn, the number of blocks left, the position of the first key, the
/// position of the first query row, and the rows.
struct Turn<'s, 'c> {
    keys: Vec<Ptr<'c>>,
    values: Vec<Ptr<'c>>,
    next: Option<Int<'c>>,
    left: Int<'c>,
    first: Int<'c>,
    position: Int<'c>,
    span: &'s Span<'c>,
}
