//! Family `choose`: a task is a token. It scores the keys of its sequence block by block and keeps
//! the best positions in a list with room for twice as many; a full list is cut to the best.
//!
//! A score is kept as a whole number in the order of the scores. The least number of the best is
//! found byte by byte, from the highest one on. Positions stay in ascending order.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Op, Value};

use super::dot::{Dot, Walk};
use super::{Host, LANES, signature};
use crate::cache::Cache;
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::kernel::Kernel;
use crate::row::{At, Col, Operand, unsupported};
use crate::{KernelSpec, Tasks};

const BUILT: &str = "whole numbers";
/// Query heads that are multiplied together.
const HEIGHT: usize = 4;
/// Values of a byte.
const DIGITS: usize = 256;

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
        let none: Any = c.int(0).into();
        let filled = c.for_each((0, position / tokens + 1, 1), &[none], |block, filled| {
            let [keys, _] = self.cache.head(c, c.load_index(table, block), c.int(0));
            self.score(c.at(self.cache.k, keys));
            let count = c.smaller(position + 1 - block * tokens, tokens);
            let filled = c.as_int(filled[0]);
            c.repeat(0, count, 1, |i| self.append(filled + i, i, block * tokens + i));
            vec![self.cut_if(filled + count, self.capacity() - tokens).into()]
        });
        let filled = self.cut_if(c.as_int(filled[0]), self.k);
        self.store(token, filled);
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
        let none: Vec<Any> = vec![c.zero().into(); panels.len()];
        let scores = c.for_each((0, self.heads, HEIGHT), &none, |head, scores| {
            // The last heads of a turn may be one: it is counted once.
            let own = |i: usize| c.smaller(head + i, self.heads - 1);
            let queries: Vec<_> = (0..HEIGHT).map(|i| c.at(self.room.query, own(i) * (l.dim * size))).collect();
            let walk = Walk { count: l.dim / self.dot.group, step: self.dot.step(c), unroll: 1, ahead: None };
            let sums = self.dot.sums(c, &queries, &panels, walk);
            let mut scores: Vec<Vector> = scores.iter().map(|score| score.into_vector_value()).collect();
            for (i, sums) in sums.iter().enumerate() {
                let weight = c.load_number(c.at(self.room.weight, (head + i) * 4), DType::F32);
                for (score, &sum) in scores.iter_mut().zip(sums) {
                    *score = c.fma(c.splat(weight), c.fmax(sum, c.zero()), *score);
                }
            }
            scores.into_iter().map(Any::from).collect()
        });
        for (i, score) in scores.iter().enumerate() {
            c.store(c.at(self.room.score, 4 * i * LANES), *score, 4);
        }
    }

    /// Puts a key of the block into the list. Numbers are in the order of the scores; both zeros
    /// are one.
    fn append(&self, to: Int<'c>, key: Int<'c>, position: Int<'c>) {
        let c = self.code();
        let word = c.cx.i32_type();
        let score = c.load(c.cx.f32_type(), c.at(self.room.score, key * 4), 4).into_float_value();
        let bits = c.as_int(c.bitcast(c.b.build_float_add(score, c.number(0.0), "").expect(BUILT), word));
        let number = bits ^ (bits.shift_right(31, true) | c.as_int(word.const_int(1 << 31, false)));
        c.store(c.at(self.room.number, to * 4), number, 4);
        c.store(c.at(self.room.position, to * 4), self.narrow(position), 4);
    }

    fn narrow(&self, v: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.as_int(c.b.build_int_truncate(v.v, c.cx.i32_type(), "").expect(BUILT))
    }

    /// A number of a list of whole numbers, as an index.
    fn load(&self, list: Ptr<'c>, at: Int<'c>) -> Int<'c> {
        let c = self.code();
        let v = c.as_int(c.load(c.cx.i32_type(), c.at(list, at * 4), 4));
        c.as_int(c.b.build_int_z_extend(v.v, c.index, "").expect(BUILT))
    }

    /// Cuts a list that has more entries than `most`. Returns how many it has then.
    fn cut_if(&self, filled: Int<'c>, most: usize) -> Int<'c> {
        let c = self.code();
        let left = c.change_if(c.less(most, filled), &[filled.into()], |_| vec![self.cut(filled).into()]);
        c.as_int(left[0])
    }

    /// Keeps the best entries of a list that has more, in their order.
    fn cut(&self, filled: Int<'c>) -> Int<'c> {
        let c = self.code();
        // The bytes of the least number that are known, and how many of its equals are kept.
        let (mut known, mut wanted) = (c.int(0), c.int(self.k));
        for byte in (0..4).rev() {
            let above = |number: Int<'c>| match byte {
                3 => c.int(0),
                _ => number.shift_right(8 * (byte + 1), false),
            };
            c.repeat(0, DIGITS, 1, |digit| c.store(c.at(self.room.count, digit * 4), c.cx.i32_type().const_zero(), 4));
            c.repeat(0, filled, 1, |i| {
                let number = self.load(self.room.number, i);
                c.when(c.compare(inkwell::IntPredicate::EQ, above(number), known), || {
                    let digit = number.shift_right(8 * byte, false) & 0xff;
                    let count = self.load(self.room.count, digit) + 1;
                    c.store(c.at(self.room.count, digit * 4), self.narrow(count), 4);
                });
            });
            // From the largest digit down: the first one that reaches what is wanted.
            let start: [Any; 3] = [c.int(0).into(), c.int(0).into(), c.int(0).into()];
            let found = c.for_each((0, DIGITS, 1), &start, |i, now| {
                let [sum, digit, before] = [0, 1, 2].map(|n| c.as_int(now[n]));
                let candidate = (DIGITS - 1) - i;
                let total = sum + self.load(self.room.count, candidate);
                let is_first = c.less(sum, wanted) & !c.less(total, wanted);
                let (digit, before) = (c.pick(is_first, candidate, digit), c.pick(is_first, sum, before));
                vec![total.into(), digit, before]
            });
            known = known * DIGITS + c.as_int(found[1]);
            wanted = wanted - c.as_int(found[2]);
        }
        let start: [Any; 2] = [c.int(0).into(), c.int(0).into()];
        let kept = c.for_each((0, filled, 1), &start, |i, now| {
            let [to, equals] = [0, 1].map(|n| c.as_int(now[n]));
            let number = self.load(self.room.number, i);
            let is_equal = c.compare(inkwell::IntPredicate::EQ, number, known);
            let is_kept = c.less(known, number) | (is_equal & c.less(equals, wanted));
            let next = c.change_if(is_kept, &[to.into()], |_| {
                for list in [self.room.number, self.room.position] {
                    c.store(c.at(list, to * 4), c.load(c.cx.i32_type(), c.at(list, i * 4), 4), 4);
                }
                vec![(to + 1).into()]
            });
            vec![next[0], c.pick(is_equal, equals + 1, equals)]
        });
        c.as_int(kept[0])
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
