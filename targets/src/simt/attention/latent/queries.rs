//! A wave's queries, from memory or through local memory, and the key of the token itself.
use atomc_ir::Diagnostic;

use super::Group;
use super::shape::{EIGHT, SIDE, STEP};
use crate::cache::Entry;
use crate::code::{Int, Vector};
use crate::row::Col;
use crate::simt::machine::fragment::{Fragment, VEC16};
use crate::simt::rowwise::{each_head, teams};

/// Fragments of keys in flight from local memory.
const AHEAD: usize = 3;

impl<'c> Group<'_, '_, '_, 'c> {
    /// Makes the key of the token itself, if the work-group has its turn: one team makes it, all
    /// threads keep it in local memory, and the first of those that share it stores it in the
    /// cache. No work-group reads the store of another one there.
    pub fn write(&self) -> Result<(), Diagnostic> {
        if self.a.cache.written().is_none() {
            return Ok(());
        }
        let c = self.code();
        c.set_lanes(self.a.lanes);
        c.when(self.has_own_key(), || {
            self.make_own_key()?;
            c.barrier();
            self.keep_own_key();
            c.barrier();
            Ok(())
        })
    }

    /// Whether the last turn is that of the token itself.
    pub fn has_own_key(&self) -> Int<'c> {
        let c = self.code();
        c.equal(self.position / self.shape.keys() - self.last, 0)
    }

    /// The key as the first of a panel, at the begin of local memory.
    fn make_own_key(&self) -> Result<(), Diagnostic> {
        let (a, c, rows) = (self.a, self.code(), &self.a.kernel.rows);
        let (team, number, _) = teams(c, a.cache.ty.head_dim, self.shape.threads);
        rows.set_team(team);
        let (head, entry) = (c.int(0), Entry { k: self.local, v: self.local, tokens: SIDE, offset: c.int(0) });
        c.when(c.equal(number, 0), || {
            a.cache.prepare(rows, self.token, head)?;
            let width = a.cache.width();
            rows.each_column(width, |col| a.cache.write_part_to(rows, self.token, head, entry, Col::Var(col)))
        })?;
        rows.forget();
        Ok(())
    }

    /// The key vector by vector, and one work-group's copy of it in the cache.
    fn keep_own_key(&self) {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let (bytes, cache) = (a.stored.bytes(VEC16), a.cache);
        let entry = cache.entry(c, cache.slot(c, self.token), c.int(0));
        let panel = entry.offset / SIDE * a.stored.bytes(a.key_panel());
        let to = c.at(entry.k, panel + entry.offset % SIDE * bytes);
        c.repeat(c.thread(), s.groups, s.threads, |group| {
            let key = a.stored.load_vec16(c, c.at(self.local, group * (SIDE * bytes)));
            c.store(c.at(self.local, group * bytes + s.own_key()), key, bytes as u32);
            c.when(self.is_first_part, || c.store(c.at(to, group * (SIDE * bytes)), key, bytes as u32));
        });
    }

    /// The wave's tiles of queries, each as fragments of the columns that the wave has scores of.
    pub fn queries(&self) -> Result<Vec<Vec<Fragment<'c>>>, Diagnostic> {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let wave = self.wave_place();
        let columns = a.place.part * EIGHT + wave.cut * (s.chunks() * 4 * EIGHT);
        let stored = |tile: usize| -> Result<Option<Vec<Fragment<'c>>>, Diagnostic> {
            let flat = self.flat((wave.tile + tile) * SIDE + a.place.column);
            let (token, head) = (self.token + flat / a.heads, flat % a.heads);
            (0..s.chunks()).map(|chunk| a.stored_query(token, head, columns + chunk * (4 * EIGHT))).collect()
        };
        let all: Option<Vec<_>> = (0..s.own_tiles).map(stored).collect::<Result<_, _>>()?;
        if let Some(all) = all {
            return Ok(all);
        }
        let none: Fragment<'c> = vec![c.ints(c.cx.i32_type(), 4).const_zero()];
        let none = vec![vec![none; s.chunks()]; s.own_tiles];
        (0..s.tiles).step_by(s.staged()).try_fold(none, |held, first| {
            if first > 0 {
                c.barrier();
            }
            self.stage(first)?;
            c.barrier();
            let staged = |(i, held): (usize, &Vec<_>)| self.staged(held, (first, wave.tile + i), columns);
            Ok(held.iter().enumerate().map(staged).collect())
        })
    }

    /// Fragments of a staged tile of queries, or those that the wave has already.
    fn staged(&self, held: &[Fragment<'c>], (first, tile): (usize, Int<'c>), columns: Int<'c>) -> Vec<Fragment<'c>> {
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

    /// Stages some tiles of queries in local memory, where keys are stored later.
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

    /// Zeros after a staged query's dimensions, by its team.
    fn stage_padding(&self, query: Int<'c>, size: usize) {
        let (c, s, dim) = (self.code(), &self.shape, self.a.cache.ty.head_dim);
        let to = c.at(self.local, query * s.query_row());
        if dim < s.groups * EIGHT {
            c.repeat(c.thread() % size + dim, s.groups * EIGHT, size, |col| {
                c.store(c.at(to, col * 2), c.bytes_type(2).const_zero(), 2);
            });
        }
    }

    /// Scores of the wave's queries, into local memory. Keys are loaded some products ahead. Once
    /// the last keys are requested, the argument `behind` issues loads of its own.
    pub fn score<R>(&self, queries: &[Vec<Fragment<'c>>], behind: impl FnOnce() -> R) -> R {
        let (a, c, s) = (self.a, self.code(), &self.shape);
        let wave = self.wave_place();
        let lane = self.key_lane(wave.panel, wave.cut * s.chunks());
        let (of_panels, count) = (s.panels / s.own_panels, s.chunks() * s.own_panels);
        let key = |i: usize| self.key(lane, i % s.own_panels * of_panels, i / s.own_panels);
        let mut keys: Vec<Fragment<'c>> = (0..AHEAD.min(count)).map(key).collect();
        let mut sums: Vec<Vec<Vector<'c>>> = vec![vec![a.matrix.zero(); s.own_tiles]; s.own_panels];
        let (mut behind, mut asked) = (Some(behind), None);
        for i in 0..count {
            if i + AHEAD < count {
                keys.push(key(i + AHEAD));
            } else if let Some(behind) = behind.take() {
                asked = Some(behind());
            }
            c.keep_order();
            for (sum, query) in sums[i % s.own_panels].iter_mut().zip(queries) {
                *sum = a.matrix.product(&keys[i], &query[i / s.own_panels], *sum);
            }
        }
        let cut = wave.cut * (s.keys() / STEP * s.score_bytes());
        for (i, sums) in sums.into_iter().enumerate() {
            let key = (wave.panel + i * of_panels) * SIDE + a.place.results;
            for (tile, sum) in sums.into_iter().enumerate() {
                let query = (wave.tile + tile) * SIDE + a.place.column;
                c.store(c.at(self.score_place(0, query, key), cut), sum, VEC16 as u32);
            }
        }
        asked.expect("a product at least")
    }
}
