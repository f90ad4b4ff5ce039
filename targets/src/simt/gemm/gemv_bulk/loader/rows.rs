//! The rows of a contraction, copied into local memory a K tile at a time, in vectors as matrix
//! instructions take them: the vectors of all tokens are adjacent.
//!
//! Several K tiles are in flight at once, in registers and as stored in memory; they are processed
//! when they have arrived. A norm commutes with the contraction, so rows are staged times the
//! norm's weights only, and the sums are scaled by the sum of the row's squares at the end. Only if
//! elements have so few exponents that a row might not fit, the squares are added up first.
use atomc_ir::Diagnostic;
use inkwell::values::FloatValue;

use super::copies::Copies;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col};
use crate::schedule::WhyNot;
use crate::simt::gemm::contract::Contraction;
use crate::simt::gemm::gemv_bulk::{Ground, Shape};
use crate::simt::gemm::prologue::{Norm, Prologue};
use crate::simt::machine::Gpu;
use crate::simt::machine::fragment::VEC16;
use crate::simt::rowwise;

/// Loads of rows that a thread has in flight while it only adds up squares.
const TOGETHER: usize = 4;

pub struct Staging<'s, 'k, 'a, 'c> {
    contraction: &'s Contraction<'k, 'a, 'c>,
    shape: Shape,
    /// Elements of a vector.
    lanes: usize,
    /// The token that this thread loads, and which of its vectors.
    token: Int<'c>,
    member: Int<'c>,
    prologue: Prologue,
    /// The first column of the work-group's share.
    first: Int<'c>,
    /// Whether sums are scaled, and not rows.
    late: bool,
    local: Ptr<'c>,
    /// The norm's weights: those of the thread's vectors if there is one K tile, or all of them in
    /// local memory.
    held: Vec<Vector<'c>>,
    weights: Ptr<'c>,
    /// Sums of squares of each token, from each row of waves that share the tokens.
    squares: Ptr<'c>,
    /// Used instead of all this if the machine copies rows.
    pub copies: Option<Copies<'s, 'k, 'a, 'c>>,
}

impl<'s, 'k, 'a, 'c> Staging<'s, 'k, 'a, 'c> {
    /// The work that does not depend on other kernels: the norm's weights.
    pub fn begin(ground: Ground<'s, 'k, 'a, 'c>) -> Result<Staging<'s, 'k, 'a, 'c>, Diagnostic> {
        let Ground { contraction, shape, spec, run, .. } = ground;
        let c = contraction.matrix.c;
        let prologue = Prologue::of(spec.body).map_err(WhyNot::diagnostic)?;
        let (lane, wave) = (c.lane_index(), c.wave_index());
        let (near, blocks) = (shape.near(), shape.blocks());
        let token = lane % near + wave % blocks * near;
        let member = lane / near + wave / blocks * (32 / near);
        let local_weights = if prologue.norm.is_some() && shape.k_tiles > 1 { shape.columns() * 4 } else { 0 };
        let first = run.member * shape.columns();
        let copies = shape.copied.then(|| Copies::begin(contraction, shape, prologue.from, first));
        let own = if shape.copied { 0 } else { shape.buffers() * shape.k_tile_bytes() };
        let mut staging = Staging {
            contraction,
            shape,
            lanes: rowwise::vector(spec.body).min(contraction.matrix.vec16()),
            token: c.smaller(token, shape.tokens - 1),
            member,
            prologue,
            first,
            late: prologue.scales_sums(contraction.matrix.dtype),
            local: c.shared(own, 128),
            held: vec![],
            weights: c.shared(local_weights, 16),
            squares: c.shared(shape.waves() * near * 4, 16),
            copies,
        };
        staging.bring_weights()?;
        Ok(staging)
    }

    fn code(&self) -> &'a Gpu<'c> {
        self.contraction.matrix.c
    }

    fn add(&self, a: FloatValue<'c>, b: FloatValue<'c>) -> FloatValue<'c> {
        (self.code().float(a) + b).v
    }

    /// The norm's weights at a column of the work-group's share. Columns after the end read the
    /// last ones.
    fn weights_at(&self, norm: Norm, near: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let c = self.code();
        let col = c.smaller(self.first + near, self.prologue.width - self.lanes);
        self.contraction.parts.kernel.rows.eval(norm.weights, At { row: c.int(0), head: None, col: Col::Var(col) })
    }

    fn bring_weights(&mut self) -> Result<(), Diagnostic> {
        let c = self.code();
        let Some(norm) = self.prologue.norm else { return Ok(()) };
        c.set_lanes(self.lanes);
        if self.shape.k_tiles == 1 {
            let held = (0..self.vectors()).map(|i| self.weights_at(norm, self.column(i)));
            self.held = held.collect::<Result<_, _>>()?;
            return Ok(());
        }
        let (columns, apart) = (self.shape.columns(), self.shape.threads() * self.lanes);
        c.repeat(c.thread() * self.lanes, columns, apart, |near| {
            let v = self.weights_at(norm, near)?;
            c.store(c.at(self.weights, near * 4), v, self.weights_align());
            Ok(())
        })
    }

    fn weights_align(&self) -> u32 {
        (4 * self.lanes).min(16) as u32
    }

    /// Sets the norm's scale of rows: none yet, or the scale.
    pub fn set_scale(&self) -> Result<(), Diagnostic> {
        let (c, rows) = (self.code(), &self.contraction.parts.kernel.rows);
        let Some(norm) = self.prologue.norm else { return Ok(()) };
        if self.held.is_empty() {
            c.barrier();
        }
        if self.late {
            rows.set_scale(norm.value, c.number(1.0));
            return Ok(());
        }
        c.set_lanes(self.lanes);
        let apart = self.shape.members() * self.lanes;
        let sum = c.try_carry((0, self.prologue.width, apart * TOGETHER), c.number(0.0), |first, sum| {
            (0..TOGETHER).try_fold(sum, |sum, i| {
                let col = first + (self.member * self.lanes + i * apart);
                let inside = c.less(col, self.prologue.width);
                let v = c.widen(self.bits(c.pick_int(inside, col, 0))?, self.prologue.dtype);
                Ok::<_, Diagnostic>(Prologue::add_squares(c, sum, c.pick(inside, v, c.zero()).into_vector_value()))
            })
        })?;
        self.add_up(sum);
        c.barrier();
        rows.set_scale(norm.value, self.scale_of(self.token, norm));
        Ok(())
    }

    /// Whether all columns of all K tiles belong to the row.
    fn is_whole(&self) -> bool {
        let columns = self.shape.columns();
        columns == self.shape.k_tiles * self.shape.k_tile_columns()
            && self.prologue.width == self.shape.cluster * columns
    }

    /// The bits of a vector of the thread's row; beyond its width, of another row.
    fn bits(&self, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let c = self.code();
        let safe = match self.is_whole() {
            true => col,
            false => c.pick_int(c.less(col, self.prologue.width), col, 0),
        };
        self.contraction
            .parts
            .kernel
            .rows
            .bits(self.prologue.from, At { row: self.token, head: None, col: Col::Var(safe) })
    }

    /// A vector of the thread's row, with zeros beyond its width.
    fn inside(&self, col: Int<'c>, v: Vector<'c>) -> Vector<'c> {
        let c = self.code();
        match self.is_whole() {
            true => v,
            false => c.pick(c.less(col, self.prologue.width), v, v.get_type().const_zero()).into_vector_value(),
        }
    }

    /// The thread's vectors in a K tile.
    pub fn vectors(&self) -> usize {
        self.shape.k_tile_columns().div_ceil(self.lanes * self.shape.members())
    }

    /// Where the thread's vector lies in a K tile.
    fn column(&self, i: usize) -> Int<'c> {
        (self.member + i * self.shape.members()) * self.lanes
    }

    /// Loads the thread's part of a K tile. After the last K tile it loads next to nothing.
    pub fn load(&self, k_tile: Int<'c>) -> Result<Vec<Any<'c>>, Diagnostic> {
        let c = self.code();
        c.set_lanes(self.lanes);
        let is_there = c.less(k_tile, self.shape.k_tiles);
        let first = self.first + k_tile * self.shape.k_tile_columns();
        let vector = |i| {
            let col = c.pick(is_there, first + self.column(i), self.first);
            Ok(self.bits(c.as_int(col))?.into())
        };
        (0..self.vectors()).map(vector).collect()
    }

    /// Stores a K tile's rows into a buffer, as the contraction takes them, and returns the sum of
    /// squares so far.
    pub fn store(
        &self,
        k_tile: Int<'c>,
        buffer: Int<'c>,
        words: &[Any<'c>],
        squares: FloatValue<'c>,
    ) -> Result<FloatValue<'c>, Diagnostic> {
        let (c, dtype) = (self.code(), self.contraction.matrix.dtype);
        let vec16 = self.contraction.matrix.vec16();
        c.set_lanes(self.lanes);
        let to = buffer * self.shape.k_tile_bytes() + self.token * VEC16;
        let to = c.at(self.local, to);
        let (columns, mut sum) = (self.shape.k_tile_columns(), squares);
        let whole = columns.is_multiple_of(self.lanes * self.shape.members());
        for (i, word) in words.iter().enumerate() {
            let (near, bits) = (self.column(i), word.into_vector_value());
            let share = k_tile * columns + near;
            let made = self.made(i, near, share, bits, &mut sum)?;
            let store = || {
                let inside = near % vec16 * dtype.size();
                let p = c.at(to, near / vec16 * self.shape.vec16_bytes() + inside);
                c.store(p, made, (self.lanes * dtype.size()) as u32);
            };
            match whole {
                true => store(),
                false => c.when(c.less(near, columns), store),
            }
        }
        Ok(sum)
    }

    /// A vector of a row as bits, after the prologue, by its column in the K tile and in the
    /// work-group's share.
    fn made(
        &self,
        i: usize,
        near: Int<'c>,
        share: Int<'c>,
        bits: Vector<'c>,
        squares: &mut FloatValue<'c>,
    ) -> Result<Vector<'c>, Diagnostic> {
        let (c, rows, dtype) = (self.code(), &self.contraction.parts.kernel.rows, self.contraction.matrix.dtype);
        let col = self.first + share;
        let Some(norm) = self.prologue.norm else {
            return Ok(match dtype == self.prologue.dtype {
                true => self.inside(col, bits),
                false => c.narrow(self.inside(col, c.widen(bits, self.prologue.dtype)), dtype),
            });
        };
        let v = self.inside(col, c.widen(bits, self.prologue.dtype));
        if self.late {
            // After the K tile comes the next one, and after the share another work-group's.
            let (k_tile, all) = (c.int(self.shape.k_tile_columns()), c.int(self.shape.columns()));
            let is_own = c.less(near, k_tile) & c.less(share, all);
            *squares = Prologue::add_squares(c, *squares, c.pick(is_own, v, c.zero()).into_vector_value());
        }
        let last = c.smaller(share, self.shape.columns() - self.lanes);
        let in_local = || c.load(c.f32s(), c.at(self.weights, last * 4), self.weights_align());
        let w = self.held.get(i).copied().unwrap_or_else(|| in_local().into_vector_value());
        let made = self.prologue.normed(rows, norm, [v, w], At { row: self.token, head: None, col: Col::Var(col) })?;
        Ok(c.narrow(made, dtype))
    }

    /// The address of a buffer.
    pub fn buffer(&self, number: Int<'c>) -> Int<'c> {
        let c = self.code();
        c.local_address(self.local) + number * self.shape.k_tile_bytes()
    }

    /// Stores the thread's sum of squares, where sums are scaled by it. Others see it after the
    /// next barrier.
    pub fn store_squares(&self, squares: FloatValue<'c>) {
        if self.late {
            self.add_up(squares);
        }
    }

    fn add_up(&self, squares: FloatValue<'c>) {
        let (c, near) = (self.code(), self.shape.near());
        let distances: Vec<usize> =
            std::iter::successors(Some(near), |d| Some(d * 2)).take_while(|&d| d < 32).collect();
        let sum = c.across(squares, &distances, |a, b| self.add(a, b));
        c.when(c.less(c.lane_index(), near), || {
            let place = c.wave_index() * near + c.lane_index();
            c.store(c.at(self.squares, place * 4), sum, 4);
        });
    }

    /// The factor of a token's sums, if they are scaled.
    pub fn scale(&self, token: Int<'c>) -> Option<FloatValue<'c>> {
        self.prologue.norm.filter(|_| self.late).map(|norm| self.scale_of(token, norm))
    }

    fn scale_of(&self, token: Int<'c>, norm: Norm) -> FloatValue<'c> {
        let (c, near, blocks) = (self.code(), self.shape.near(), self.shape.blocks());
        let place = token / near * near + token % near;
        let part = |i: usize| {
            let at = place + i * blocks * near;
            let part = c.at(self.squares, at * 4);
            // Sums that are scaled at the end include all members' columns.
            let members = if self.late { self.shape.cluster } else { 1 };
            let of = |member: usize| {
                let p = if members == 1 { part } else { c.of_member(part, c.int(member)) };
                c.load(c.cx.f32_type(), p, 4).into_float_value()
            };
            (1..members).fold(of(0), |sum, member| self.add(sum, of(member)))
        };
        let sum = (1..self.shape.waves() / blocks).fold(part(0), |sum, i| self.add(sum, part(i)));
        self.prologue.scale_of(c, norm, sum)
    }
}
