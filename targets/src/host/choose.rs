//! Family `choose`: a task is a token. It scores the keys of its sequence block by block and keeps
//! the best positions in a list with room for twice as many; a full list is cut to the best.
//! Positions stay in ascending order.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Op, Value};

use inkwell::IntPredicate;

use super::dot::{Dot, Walk};
use super::{Host, LANES, signature};
use crate::cache::Cache;
use crate::choice::{self, DIGITS};
use crate::code::{Code, Int, Ptr};
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, unsupported};
use crate::{KernelSpec, Tasks};

const BUILT: &str = "whole numbers";
/// Query heads that are multiplied together.
const HEIGHT: usize = 4;

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let chooser = Chooser::new(c, &kernel)?;
    let (first, end) = signature::tasks(c);
    kernel.each(first, end, |token| chooser.run(token))?;
    Ok(manifest::Kernel::host(Tasks::Tokens { per: 1, times: 1 }, chooser.room.bytes))
}

/// Scratch: queries in the type of products, weights of heads, scores of a block's keys, numbers
/// and positions of the list, and a count for each value of a byte.
struct Room<'c> {
    query: Ptr<'c>,
    weight: Ptr<'c>,
    score: Ptr<'c>,
    number: Ptr<'c>,
    position: Ptr<'c>,
    count: Ptr<'c>,
    bytes: usize,
}

struct Chooser<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    cache: &'k Cache<'c>,
    query: Value,
    weight: Value,
    out: &'k Operand<'c>,
    heads: usize,
    k: usize,
    dot: Dot,
    room: Room<'c>,
}

impl<'k, 'a, 'c> Chooser<'k, 'a, 'c> {
    fn new(c: &Host<'c>, kernel: &'k Kernel<'a, 'c>) -> Result<Chooser<'k, 'a, 'c>, Diagnostic> {
        let graph = kernel.rows.graph;
        let node = kernel.the("choose", |op| matches!(op, Op::Choose { .. }))?;
        let Op::Choose { k } = *graph.op(node.node) else { unreachable!("just matched") };
        let (query, weight) = (graph.operands(node.node)[0], graph.operands(node.node)[1]);
        let [cache] = &kernel.caches[..] else { return Err(unsupported("a choice by other than one cache")) };
        if cache.ty.dtype == DType::F8E4M3 {
            return Err(unsupported("a choice by keys of bytes"));
        }
        let (out, to) = kernel.output()?;
        if out != node {
            return Err(unsupported("a choice that is computed on"));
        }
        let heads = kernel.rows.shape(query)?.shape.0[1].fixed().unwrap_or(0);
        let dot = Dot::new(c, cache.ty.dtype);
        let room = Room::new(c, cache, (heads, k), dot.dtype);
        Ok(Chooser { kernel, cache, query, weight, out: to, heads, k, dot, room })
    }

    fn code(&self) -> &'a Code<'c> {
        self.kernel.code
    }

    fn run(&self, token: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        self.stage(token)?;
        let position = c.load_index(self.cache.batch.positions, token);
        let table = self.cache.batch.table(c, token);
        let tokens = self.cache.layout.block_tokens;
        let filled = c.carry((0, position / tokens + 1, 1), c.int(0), |block, filled| {
            let [keys, _] = self.cache.head(c, c.load_index(table, block), c.int(0));
            self.score(c.at(self.cache.k, keys));
            let count = c.smaller(position + 1 - block * tokens, tokens);
            c.repeat(0, count, 1, |i| self.append(filled + i, i, block * tokens + i));
            self.cut_if(filled + count, self.capacity() - tokens)
        });
        self.store(token, self.cut_if(filled, self.k));
        Ok(())
    }

    /// Entries that the list has room for.
    fn capacity(&self) -> usize {
        capacity(self.k, self.cache.layout.block_tokens)
    }

    /// The token's queries, and the weight of each head.
    fn stage(&self, token: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let dim = self.cache.ty.head_dim;
        c.repeat(0, self.heads, 1, |head| {
            rows.prepare(self.query, token, Some(head))?;
            for col in (0..l.dim).step_by(LANES) {
                let v = match col < dim {
                    true => rows.eval(self.query, At { row: token, head: Some(head), col: Col::Const(col) })?,
                    false => c.zero(),
                };
                let v = c.choose(c.lanes_below(dim.saturating_sub(col)), v, c.zero());
                let at = (head * l.dim + col) * self.dot.dtype.size();
                c.store_floats(c.at(self.room.query, at), v, self.dot.dtype);
            }
            Ok::<_, Diagnostic>(())
        })?;
        rows.prepare(self.weight, token, None)?;
        for col in (0..self.heads).step_by(LANES) {
            let v = rows.eval(self.weight, At { row: token, head: None, col: Col::Const(col) })?;
            // Heads after the last one have no queries of their own and count nothing.
            let v = c.choose(c.lanes_below(self.heads - col), v, c.zero());
            c.store(c.at(self.room.weight, 4 * col), v, 4);
        }
        Ok(())
    }

    /// The scores of a block's keys.
    fn score(&self, keys: Ptr<'c>) {
        let (c, l) = (self.code(), &self.cache.layout);
        let size = self.dot.dtype.size();
        let panels: Vec<_> = (0..l.block_tokens / LANES).map(|p| c.at(keys, p * LANES * l.dim * size)).collect();
        let scores = c.carry((0, self.heads, HEIGHT), vec![c.zero(); panels.len()], |head, mut scores| {
            // The last heads of a turn may be one: it is counted once.
            let own = |i: usize| c.smaller(head + i, self.heads - 1);
            let queries: Vec<_> = (0..HEIGHT).map(|i| c.at(self.room.query, own(i) * (l.dim * size))).collect();
            let walk = Walk { count: l.dim / self.dot.group, step: self.dot.step(c), unroll: 1, ahead: None };
            let sums = self.dot.sums(c, &queries, &panels, walk);
            for (i, sums) in sums.iter().enumerate() {
                let weight = c.load_number(c.at(self.room.weight, (head + i) * 4), DType::F32);
                for (score, &sum) in scores.iter_mut().zip(sums) {
                    *score = c.fma(c.splat(weight), c.fmax(sum, c.zero()), *score);
                }
            }
            scores
        });
        for (i, score) in scores.into_iter().enumerate() {
            c.store(c.at(self.room.score, 4 * i * LANES), score, 4);
        }
    }

    /// Puts a key of the block into the list.
    fn append(&self, to: Int<'c>, key: Int<'c>, position: Int<'c>) {
        let c = self.code();
        let score = c.load(c.cx.f32_type(), c.at(self.room.score, key * 4), 4);
        c.store(c.at(self.room.number, to * 4), choice::number(c, score.into_float_value()), 4);
        c.store(c.at(self.room.position, to * 4), self.narrow(position), 4);
    }

    fn narrow(&self, v: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.as_int(c.b.build_int_truncate(v.v, c.cx.i32_type(), "").expect(BUILT))
    }

    /// Cuts a list that has more entries than `most`. Returns how many it has then.
    fn cut_if(&self, filled: Int<'c>, most: usize) -> Int<'c> {
        let c = self.code();
        c.carry_if(c.less(most, filled), filled, |_| self.cut(filled))
    }

    /// Keeps the best entries of a list that has more, in their order.
    fn cut(&self, filled: Int<'c>) -> Int<'c> {
        let c = self.code();
        // The bytes of the least number that are known, and how many of its equals are kept.
        let (mut known, mut wanted) = (c.int(0), c.int(self.k));
        for byte in (0..4).rev() {
            c.repeat(0, DIGITS, 1, |digit| c.store(c.at(self.room.count, digit * 4), c.cx.i32_type().const_zero(), 4));
            c.repeat(0, filled, 1, |i| {
                let number = choice::load(c, self.room.number, i);
                c.when(c.compare(IntPredicate::EQ, choice::above(number, byte), known), || {
                    let digit = choice::digit(number, byte);
                    let count = choice::load(c, self.room.count, digit) + 1;
                    c.store(c.at(self.room.count, digit * 4), self.narrow(count), 4);
                });
            });
            let [digit, before] = choice::last_digit(c, self.room.count, wanted);
            known = known * DIGITS + digit;
            wanted = wanted - before;
        }
        let [kept, _] = c.carry((0, filled, 1), [c.int(0); 2], |i, [to, equals]| {
            let number = choice::load(c, self.room.number, i);
            let is_equal = c.compare(IntPredicate::EQ, number, known);
            let is_kept = c.less(known, number) | (is_equal & c.less(equals, wanted));
            let next = c.carry_if(is_kept, to, |_| {
                for list in [self.room.number, self.room.position] {
                    c.store(c.at(list, to * 4), c.load(c.cx.i32_type(), c.at(list, i * 4), 4), 4);
                }
                to + 1
            });
            [next, c.pick_int(is_equal, equals + 1, equals)]
        });
        kept
    }

    /// The list, and -1 after its last entry.
    fn store(&self, token: Int<'c>, filled: Int<'c>) {
        let c = self.code();
        let to = |i: Int<'c>| c.at(self.out.ptr, (token * self.k + i) * 4);
        c.repeat(0, filled, 1, |i| {
            c.store(to(i), c.load(c.cx.i32_type(), c.at(self.room.position, i * 4), 4), 4);
        });
        c.repeat(filled, self.k, 1, |i| c.store(to(i), c.cx.i32_type().const_all_ones(), 4));
    }
}

/// A list that is cut holds `k` entries, and takes those of several blocks before the next cut.
fn capacity(k: usize, block_tokens: usize) -> usize {
    2 * k.next_multiple_of(block_tokens) + block_tokens
}

impl<'c> Room<'c> {
    fn new(c: &Code<'c>, cache: &Cache<'c>, (heads, k): (usize, usize), dtype: DType) -> Room<'c> {
        let (l, mut bytes) = (&cache.layout, 0);
        let mut take = |n: usize| {
            let p = c.at(signature::scratch(c), bytes);
            bytes += n.next_multiple_of(64);
            p
        };
        let query = take(heads * l.dim * dtype.size());
        let weight = take(4 * (heads.next_multiple_of(LANES) + HEIGHT));
        let score = take(4 * l.block_tokens);
        let [number, position] = [0, 1].map(|_| take(4 * capacity(k, l.block_tokens)));
        let count = take(4 * DIGITS);
        Room { query, weight, score, number, position, count, bytes }
    }
}
