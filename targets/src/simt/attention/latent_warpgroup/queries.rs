//! A tile's queries in local memory, and the token's own key in the cache.
use atomc_ir::{Diagnostic, Op, Value};

use super::{CHUNK, Group, QUERIES, QUERIES_MEET, ROW, TEAM, Tile};
use crate::code::Int;
use crate::row::{At, Col, Operand};
use crate::simt::machine::fragment::VEC16;

/// Vectors of queries that a thread makes together.
const TOGETHER: usize = 8;

/// Vectors that a thread copies in a turn of a loop.
const COPIED: usize = 4;

/// A run of columns of the queries: the value that they come from, the first column in it, and
/// their number.
#[derive(Clone, Copy)]
struct Part {
    value: Value,
    first: usize,
    width: usize,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// Copies a tile's queries into local memory, by the first `threads` threads.
    pub(super) fn stage(&self, tile: &Tile<'c>, threads: usize) -> Result<(), Diagnostic> {
        let (c, a) = (self.code(), self.attention);
        let mut first = 0;
        for (value, width) in self.parts_of(a.query_value())? {
            let part = Part { value, first, width };
            match self.stored(value)? {
                Some(stored) => self.copy_part(tile, threads, part, stored),
                None => self.stage_part(tile, threads, part)?,
            }
            first += width;
        }
        c.await_copies();
        c.show_to_products();
        c.meet_some(c.int(QUERIES_MEET), threads);
        Ok(())
    }

    /// The values that are concatenated in a value's rows, with their widths.
    fn parts_of(&self, v: Value) -> Result<Vec<(Value, usize)>, Diagnostic> {
        let rows = &self.attention.kernel.rows;
        let graph = rows.graph;
        let all = match graph.op(v.node) {
            Op::Beside {} => graph.operands(v.node).to_vec(),
            _ => vec![v],
        };
        all.into_iter().map(|v| Ok((v, rows.shape(v)?.shape.last().unwrap_or(0)))).collect()
    }

    /// A part of queries in memory that products take without conversion.
    fn stored(&self, value: Value) -> Result<Option<&Operand<'c>>, Diagnostic> {
        let (a, rows) = (self.attention, &self.attention.kernel.rows);
        let is_input = matches!(rows.graph.op(value.node), Op::Input { .. });
        if !is_input || !a.keeps_sign() || rows.shape(value)?.dtype != a.matrix.dtype {
            return Ok(None);
        }
        rows.operand(value).map(Some)
    }

    /// Columns that only have to be copied, without a way through registers.
    fn copy_part(&self, tile: &Tile<'c>, threads: usize, part: Part, stored: &Operand<'c>) {
        let (c, a) = (self.code(), self.attention);
        let lanes = VEC16 / a.matrix.dtype.size();
        let vectors = part.width / lanes;
        let all = self.shape.tokens * self.shape.heads * vectors;
        let copy = |number: Int<'c>| {
            let (row, vector) = (number / vectors, number % vectors);
            let (token, head) = self.place_of(tile, row);
            let at = At { row: token, head: Some(head), col: Col::Var(vector * lanes) };
            let to = self.queries + self.in_tile(row, vector + part.first / lanes);
            c.copy_vec16(to, a.kernel.rows.address(stored, at));
        };
        // A loop, as code takes time to fetch, too.
        let whole = all / (threads * COPIED) * (threads * COPIED);
        c.repeat(c.thread(), whole, threads * COPIED, |first| (0..COPIED).for_each(|i| copy(first + i * threads)));
        c.repeat(c.thread() + whole, all, threads, copy);
    }

    /// The columns of one part: neighbouring threads have neighbouring vectors of a query.
    fn stage_part(&self, tile: &Tile<'c>, threads: usize, part: Part) -> Result<(), Diagnostic> {
        let (c, a, rows) = (self.code(), self.attention, &self.attention.kernel.rows);
        let lanes = VEC16 / a.matrix.dtype.size();
        c.set_lanes(lanes);
        let vectors = part.width / lanes;
        let real = self.shape.tokens * self.shape.heads;
        let all = real * vectors;
        let each = threads * TOGETHER;
        let mut result = Ok(());
        let stage = |first: Int<'c>, count: usize, result: &mut Result<(), Diagnostic>| {
            let place = |i: usize| {
                let number = c.smaller(first + i * threads, all - 1);
                (number / vectors, number % vectors)
            };
            let made: Result<Vec<_>, _> = (0..count)
                .map(|i| {
                    let (row, vector) = place(i);
                    let (token, head) = self.place_of(tile, row);
                    rows.eval(part.value, At { row: token, head: Some(head), col: Col::Var(vector * lanes) })
                })
                .collect();
            match made {
                Ok(made) => {
                    for (i, v) in made.into_iter().enumerate() {
                        let (row, vector) = place(i);
                        let to = c.at(self.queries_at, self.in_tile(row, vector + part.first / lanes));
                        c.store_floats(to, a.signed(v), a.matrix.dtype);
                    }
                }
                Err(e) => *result = Err(e),
            }
        };
        let whole = all / each * each;
        c.repeat(c.thread(), whole, each, |first| stage(first, TOGETHER, &mut result));
        if all > whole {
            stage(c.thread() + whole, (all - whole).div_ceil(threads), &mut result);
        }
        result
    }

    /// The token and the head of a query, by its row.
    pub(super) fn place_of(&self, tile: &Tile<'c>, row: Int<'c>) -> (Int<'c>, Int<'c>) {
        let c = self.code();
        let head = tile.head + row % self.shape.heads;
        if self.shape.tokens == 1 {
            return (tile.token, head);
        }
        (tile.token + c.smaller(row / self.shape.heads, tile.count - 1), head)
    }

    /// The place of 16 bytes of a query.
    fn in_tile(&self, row: Int<'c>, vector: Int<'c>) -> Int<'c> {
        let pieces = ROW / VEC16;
        let piece = (vector % pieces) ^ (row % pieces);
        vector / pieces * CHUNK + row * ROW + piece * VEC16
    }

    /// One wave makes the token's own key: for the cache, and for the team of scores.
    pub(super) fn write_key(&self, tile: &Tile<'c>, key: Value) -> Result<(), Diagnostic> {
        let (c, a, rows) = (self.code(), self.attention, &self.attention.kernel.rows);
        c.set_lanes(a.lanes);
        rows.set_team(c.lanes_team(c.lane_index(), c.simt.wave));
        rows.forget();
        let (cache, head) = (a.cache, c.int(0));
        let slot = cache.slot(c, tile.token);
        cache.prepare(rows, tile.token, head)?;
        rows.each_column(cache.width(), |col| {
            let made = rows.eval(key, At { row: tile.token, head: Some(head), col: Col::Var(col) })?;
            c.store_floats(c.at(self.own_key, col * 2), made, cache.ty.dtype);
            cache.write_part(rows, tile.token, head, slot, Col::Var(col))
        })?;
        rows.forget();
        c.arrive(c.always(), self.written);
        Ok(())
    }

    /// Stores the token's own key over the copy that was made from the cache before it was written.
    pub(super) fn put_key(&self, tile: &Tile<'c>, turn: Int<'c>) {
        let c = self.code();
        c.await_turn(self.written, c.int(0));
        let vectors = self.shape.dim / 8;
        c.when(c.less(c.thread(), vectors), || {
            let key = c.load_vector(c.cx.i32_type(), 4, c.at(self.own_key, c.thread() * VEC16), VEC16);
            let at = self.keys.at(turn) + c.thread() * (QUERIES * VEC16) + tile.position % QUERIES * VEC16;
            c.store(c.at_address(at), key, VEC16 as u32);
        });
        c.show_to_products();
        c.meet_some(c.int(QUERIES_MEET), TEAM);
    }

    /// Whether a row is a query. Rows after the last query hold numbers of other tiles.
    pub(super) fn is_query(&self, tile: &Tile<'c>, row: Int<'c>) -> Int<'c> {
        let c = self.code();
        let heads = self.shape.heads;
        match self.shape.tokens {
            1 if heads == QUERIES => c.always(),
            1 => c.less(row, heads),
            _ => c.less(row / heads, tile.count),
        }
    }
}
