//! Family `choose`: a task is a list of a token. It scores the keys of its sequence page by page
//! and keeps the best positions, or blocks of them, in a list with room for twice as many; a full
//! list is cut to the best. Entries stay in ascending order.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Op};

use inkwell::IntPredicate;

use super::dot::{Dot, Walk};
use super::{Host, LANES, signature};
use crate::cache::Cache;
use crate::choice::{self, ABOVE_ALL, Choice, DIGITS};
use crate::code::{Code, Int, Ptr, Vector};
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
    let times = chooser.choice.lists();
    kernel.each(first, end, |list| chooser.run(list, list / times, list % times))?;
    Ok(manifest::Kernel::host(Tasks::Tokens { per: 1, times }, chooser.room.bytes))
}

/// Scratch: queries in the type of products, weights of heads, scores of a page's keys, numbers and
/// positions of the list, and a count for each value of a byte.
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
    choice: Choice,
    out: &'k Operand<'c>,
    dot: Dot,
    room: Room<'c>,
}

impl<'k, 'a, 'c> Chooser<'k, 'a, 'c> {
    fn new(c: &Host<'c>, kernel: &'k Kernel<'a, 'c>) -> Result<Chooser<'k, 'a, 'c>, Diagnostic> {
        let choice = Choice::of(kernel.rows.graph)?;
        let [cache] = &kernel.caches[..] else { return Err(unsupported("a choice by other than one cache")) };
        if cache.ty.dtype == DType::F8E4M3 {
            return Err(unsupported("a choice by keys of bytes"));
        }
        let (out, to) = kernel.output()?;
        if !matches!(kernel.rows.graph.op(out.node), Op::Choose { .. } | Op::ChooseBlocks { .. }) {
            return Err(unsupported("a choice that is computed on"));
        }
        let dot = Dot::new(c, cache.ty.dtype);
        let room = Room::new(c, cache, (choice.heads(), choice.k), dot.dtype);
        Ok(Chooser { kernel, cache, choice, out: to, dot, room })
    }

    fn code(&self) -> &'a Code<'c> {
        self.kernel.code
    }

    fn run(&self, list: Int<'c>, token: Int<'c>, head: Int<'c>) -> Result<(), Diagnostic> {
        let c = self.code();
        self.stage(token, head)?;
        let position = c.load_index(self.cache.batch.positions, token);
        let table = self.cache.batch.table(c, token);
        let tokens = self.cache.layout.block_tokens;
        // Of rows of several tokens the last that is complete stands for the position.
        let (position, pages) = match self.choice.every {
            1 => (position, position / tokens + 1),
            every => {
                let rows = (position + 1) / every;
                (rows - 1, (rows + (tokens - 1)) / tokens)
            }
        };
        let [filled, _] = c.carry((0, pages, 1), [c.int(0); 2], |page, [filled, top]| {
            let [keys, _] = self.cache.head(c, c.load_index(table, page), c.int(0));
            self.score(c.at(self.cache.k, keys));
            let count = c.smaller(position + 1 - page * tokens, tokens);
            let [filled, top] = c.carry((0, count, 1), [filled, top], |i, [filled, top]| {
                self.append((filled, top), i, (page * tokens + i, position))
            });
            [self.cut_if(filled, self.capacity() - tokens), top]
        });
        self.store(list, self.cut_if(filled, self.choice.k));
        Ok(())
    }

    /// Entries that the list has room for.
    fn capacity(&self) -> usize {
        capacity(self.choice.k, self.cache.layout.block_tokens)
    }

    /// The token's queries from a head on, and the weight of each head.
    fn stage(&self, token: Int<'c>, first: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows, l) = (self.code(), &self.kernel.rows, &self.cache.layout);
        let (dim, query, heads) = (self.cache.ty.head_dim, self.choice.query, self.choice.heads());
        c.repeat(0, heads, 1, |own| {
            let head = first + own;
            rows.prepare(query, token, Some(head))?;
            for col in (0..l.dim).step_by(LANES) {
                let v = match col < dim {
                    true => rows.eval(query, At { row: token, head: Some(head), col: Col::Const(col) })?,
                    false => c.zero(),
                };
                let v = c.choose(c.lanes_below(dim.saturating_sub(col)), v, c.zero());
                let at = (own * l.dim + col) * self.dot.dtype.size();
                c.store_floats(c.at(self.room.query, at), v, self.dot.dtype);
            }
            Ok::<_, Diagnostic>(())
        })?;
        let Some(weight) = self.choice.weight else { return Ok(()) };
        rows.prepare(weight, token, None)?;
        for col in (0..heads).step_by(LANES) {
            let v = rows.eval(weight, At { row: token, head: None, col: Col::Const(col) })?;
            // Heads after the last one have no queries of their own and count nothing.
            let v = c.choose(c.lanes_below(heads - col), v, c.zero());
            c.store(c.at(self.room.weight, 4 * col), v, 4);
        }
        Ok(())
    }

    /// The scores of a page's keys.
    fn score(&self, keys: Ptr<'c>) {
        let (c, l) = (self.code(), &self.cache.layout);
        let size = self.dot.dtype.size();
        let panels: Vec<_> = (0..l.block_tokens / LANES).map(|p| c.at(keys, p * LANES * l.dim * size)).collect();
        let sums = |queries: &[Ptr<'c>]| {
            let walk = Walk { count: l.dim / self.dot.group, step: self.dot.step(c), unroll: 1, ahead: None };
            self.dot.sums(c, queries, &panels, walk)
        };
        let put = |scores: Vec<Vector<'c>>| {
            let at = |i: usize| c.at(self.room.score, 4 * i * LANES);
            scores.into_iter().enumerate().for_each(|(i, score)| c.store(at(i), score, 4));
        };
        if self.choice.weight.is_none() {
            return sums(&[self.room.query]).into_iter().for_each(put);
        }
        let heads = self.choice.heads();
        put(c.carry((0, heads, HEIGHT), vec![c.zero(); panels.len()], |head, mut scores| {
            // The last heads of a turn may be one: it is counted once.
            let own = |i: usize| c.smaller(head + i, heads - 1);
            let queries: Vec<_> = (0..HEIGHT).map(|i| c.at(self.room.query, own(i) * (l.dim * size))).collect();
            let sums = sums(&queries);
            for (i, sums) in sums.iter().enumerate() {
                let weight = c.load_number(c.at(self.room.weight, (head + i) * 4), DType::F32);
                for (score, &sum) in scores.iter_mut().zip(sums) {
                    *score = c.fma(c.splat(weight), c.fmax(sum, c.zero()), *score);
                }
            }
            scores
        }));
    }

    /// Takes a key of the page: the last one of an entry puts the entry into the list. Returns how
    /// many entries there are, and the largest number of the entry so far.
    fn append(
        &self,
        (filled, top): (Int<'c>, Int<'c>),
        key: Int<'c>,
        (position, last): (Int<'c>, Int<'c>),
    ) -> [Int<'c>; 2] {
        let (c, size) = (self.code(), self.choice.size);
        let score = c.load(c.cx.f32_type(), c.at(self.room.score, key * 4), 4);
        let top = c.larger(top, choice::wide(c, choice::number(c, score.into_float_value())));
        let is_end = c.equal((position + 1) % size, 0) | !c.less(position, last);
        let filled = c.carry_if(is_end, filled, |_| {
            let entry = position / size;
            let above_all = c.as_int(c.index.const_int(ABOVE_ALL, false));
            let number = c.pick_int(self.choice.is_local(c, entry, last / size), above_all, top);
            c.store(c.at(self.room.number, filled * 4), self.narrow(number), 4);
            c.store(c.at(self.room.position, filled * 4), self.narrow(entry), 4);
            filled + 1
        });
        [filled, c.pick_int(is_end, 0, top)]
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
        let (mut known, mut wanted) = (c.int(0), c.int(self.choice.k));
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
    fn store(&self, list: Int<'c>, filled: Int<'c>) {
        let (c, k) = (self.code(), self.choice.k);
        let to = |i: Int<'c>| c.at(self.out.ptr, (list * k + i) * 4);
        c.repeat(0, filled, 1, |i| {
            c.store(to(i), c.load(c.cx.i32_type(), c.at(self.room.position, i * 4), 4), 4);
        });
        c.repeat(filled, k, 1, |i| c.store(to(i), c.cx.i32_type().const_all_ones(), 4));
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
