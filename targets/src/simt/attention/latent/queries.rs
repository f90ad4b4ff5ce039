//! A wave's queries, from memory or through local memory, and the key of the token itself.
use atomc_ir::Diagnostic;

use super::Group;
use super::shape::{EIGHT, SIDE};
use crate::code::{Int, Vector};
use crate::simt::machine::fragment::{Fragment, VEC16};
use crate::simt::rowwise::{each_head, teams};

impl<'c> Group<'_, '_, '_, 'c> {
    /// The token's own key, into the cache, by one team of the work-group that has its turn.
    pub fn write(&self) -> Result<(), Diagnostic> {
        let (a, c, rows) = (self.a, self.code(), &self.a.kernel.rows);
        if self.split.is_none() && a.cache.written().is_none() {
            return Ok(());
        }
        c.set_lanes(a.lanes);
        let (team, number, _) = teams(c, a.cache.ty.head_dim, self.shape.threads);
        rows.set_team(team);
        let is_last = c.equal(self.position / self.shape.keys() - self.last, 0);
        c.when(is_last, || a.write(self.token, c.int(0), c.equal(number, 0)))?;
        rows.forget();
        Ok(())
    }

    /// The wave's tile of queries, as fragments of the columns of which it has scores.
    pub fn queries(&self) -> Result<Vec<Fragment<'c>>, Diagnostic> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (tile, share) = self.wave_place();
        let cut = share / (s.panels / s.own_panels);
        let columns = a.place.part * EIGHT + cut * (s.chunks() * 4 * EIGHT);
        let flat = self.flat(tile * SIDE + a.place.column);
        let (token, head) = (self.token + flat / a.heads, flat % a.heads);
        let stored = |chunk: usize| a.stored_query(token, head, columns + chunk * (4 * EIGHT));
        if let Some(first) = stored(0)? {
            let rest = (1..s.chunks()).map(|chunk| Ok(stored(chunk)?.expect("as the first")));
            let all = std::iter::once(Ok(first)).chain(rest).collect();
            // What the cache has got, all waves see.
            c.barrier();
            return all;
        }
        let none: Fragment<'c> = vec![c.ints(c.cx.i32_type(), 4).const_zero()];
        (0..s.tiles).step_by(s.staged()).try_fold(vec![none; s.chunks()], |held, first| {
            if first > 0 {
                c.barrier();
            }
            self.stage(first)?;
            c.barrier();
            Ok(self.staged(&held, (first, tile), columns))
        })
    }

    /// Fragments of the wave's queries where its tile is staged, or those that it has already.
    fn staged(
        &self,
        held: &[Fragment<'c>],
        (first, tile): (usize, Int<'c>),
        columns: Int<'c>,
    ) -> Vec<Fragment<'c>> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let load = |tile: Int<'c>| -> Vec<Fragment<'c>> {
            let row = (tile * SIDE + a.place.column) * s.query_row();
            let from = c.at(self.local, row + columns * 2);
            (0..s.chunks()).map(|chunk| a.matrix.load_row(c.at(from, chunk * (4 * VEC16)))).collect()
        };
        if s.staged() == s.tiles {
            return load(tile);
        }
        let is_here = !c.less(tile, first) & c.less(tile, first + s.staged());
        let held: Vec<_> = held.iter().map(|fragment| fragment[0].into()).collect();
        let here = c.change_if(is_here, &held, |_| load(tile - first).iter().map(|f| f[0].into()).collect());
        here.into_iter().map(|v| vec![v.into_vector_value()]).collect()
    }

    /// Some tiles of queries in local memory, where keys lie later.
    fn stage(&self, first: usize) -> Result<(), Diagnostic> {
        let (a, c, s, rows) = (self.a, self.code(), &self.shape, &self.a.kernel.rows);
        let (dim, count) = (a.cache.ty.head_dim, s.staged() * SIDE);
        c.set_lanes(a.lanes);
        let size = (s.threads / count).min(c.simt.wave);
        rows.set_team(c.lanes_team(c.thread() % size, size));
        each_head(c, count, (c.thread() / size, s.threads / size), |query| {
            rows.forget();
            let flat = self.flat(query + first * SIDE);
            let to = c.at(self.local, query * s.query_row());
            let place = (self.token + flat / a.heads, Some(flat % a.heads));
            rows.each_made([a.query_value()], place, dim, |col, [v]| {
                c.store_floats(c.at(to, col * 2), a.signed(v), a.matrix.dtype);
                Ok(())
            })?;
            self.stage_padding(query, size);
            Ok(())
        })?;
        rows.forget();
        Ok(())
    }

    /// Zeros behind a staged query's dimensions, by its team.
    fn stage_padding(&self, query: Int<'c>, size: usize) {
        let (c, s, dim) = (self.code(), &self.shape, self.a.cache.ty.head_dim);
        let to = c.at(self.local, query * s.query_row());
        if dim < s.groups * EIGHT {
            c.repeat(c.thread() % size + dim, s.groups * EIGHT, size, |col| {
                c.store(c.at(to, col * 2), c.bytes_type(2).const_zero(), 2);
            });
        }
    }

    /// Scores of the wave's queries, into local memory.
    pub fn score(&self, queries: &[Fragment<'c>]) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (tile, share) = self.wave_place();
        let of_panels = s.panels / s.own_panels;
        let (panel, cut) = (share % of_panels, share / of_panels);
        let lane = self.key_lane(panel, cut * s.chunks());
        let mut sums: Vec<Vector<'c>> = vec![a.matrix.zero(); s.own_panels];
        for (chunk, query) in queries.iter().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = a.matrix.product(&self.key(lane, i * of_panels, chunk), query, *sum);
            }
        }
        let row = (cut * s.queries() + tile * SIDE + a.place.column) * s.score_row();
        let own = (panel * SIDE + a.place.results) * 4;
        let to = c.at(self.local, row + own + s.scores());
        for (i, sum) in sums.into_iter().enumerate() {
            c.store(c.at(to, i * of_panels * SIDE * 4), sum, VEC16 as u32);
        }
    }
}
