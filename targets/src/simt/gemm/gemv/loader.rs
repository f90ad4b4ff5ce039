//! The loaders: fragments of the weight are loaded into registers as stored, or as codes. Fragments
//! of rows come from memory, or from local memory if the prologue has staged them.
use atomc_ir::{Diagnostic, Op};
use inkwell::IntPredicate;

use super::Group;
use crate::code::{Any, Int, Ptr, Vector};
use crate::row::{At, Col, GroupScale};
use crate::simt::gemm::codes::{StepMarks, StepWeight, Way};
use crate::simt::gemm::tile::Tile;
use crate::simt::machine::fragment::{Fragment, Matrix, VEC16};

/// Vectors of a row that a thread has in flight to local memory.
const TOGETHER: usize = 2;

/// The addresses of vectors in the row of a tile's column.
pub trait Source<'c> {
    fn vec16(&self, m: &Matrix<'_, 'c>, column: Int<'c>, vec16: Int<'c>) -> Ptr<'c>;
    /// Bytes from one vector to the next.
    fn apart(&self) -> usize;
    /// Whether they are in global memory, and so must be loaded as early as weights.
    fn is_far(&self) -> bool;
    /// The address of the scale of a group in a column's row, if rows have several.
    fn scale(&self, m: &Matrix<'_, 'c>, column: Int<'c>, group: Int<'c>) -> Ptr<'c>;
}

/// Rows as other kernels wrote them.
pub struct InMemory<'c> {
    pub tile: Tile<'c>,
    pub ptr: Ptr<'c>,
    /// Bytes from one row to the next, and from where one begins to its scales.
    pub stride: usize,
    pub scales: usize,
}

impl<'c> Source<'c> for InMemory<'c> {
    fn vec16(&self, m: &Matrix<'_, 'c>, column: Int<'c>, vec16: Int<'c>) -> Ptr<'c> {
        let c = m.c;
        c.at(self.ptr, self.tile.source(c, column) * self.stride + vec16 * VEC16)
    }

    fn apart(&self) -> usize {
        VEC16
    }

    fn is_far(&self) -> bool {
        true
    }

    fn scale(&self, m: &Matrix<'_, 'c>, column: Int<'c>, group: Int<'c>) -> Ptr<'c> {
        let c = m.c;
        c.at(self.ptr, self.tile.source(c, column) * self.stride + (group * 4 + self.scales))
    }
}

/// Rows in local memory: the vectors of all columns are adjacent.
pub struct Staged<'c> {
    pub ptr: Ptr<'c>,
    pub columns: usize,
    /// Vectors from those of all columns to the next.
    pub apart: usize,
    /// The first vector that is staged.
    pub first: usize,
    /// Scales of all columns, or of all columns of each group.
    pub scales: Option<Ptr<'c>>,
}

impl<'c> Source<'c> for Staged<'c> {
    fn vec16(&self, m: &Matrix<'_, 'c>, column: Int<'c>, vec16: Int<'c>) -> Ptr<'c> {
        let c = m.c;
        let vec16 = vec16 - self.first;
        c.at(self.ptr, (vec16 * self.apart + column) * VEC16)
    }

    fn apart(&self) -> usize {
        self.apart * VEC16
    }

    fn is_far(&self) -> bool {
        false
    }

    fn scale(&self, m: &Matrix<'_, 'c>, column: Int<'c>, group: Int<'c>) -> Ptr<'c> {
        let scales = self.scales.expect("rows with scales");
        m.c.at(scales, (group * self.columns + column) * 4)
    }
}

/// A row on its way into local memory: the columns from `first` up to `end` of the row of a tile's
/// column. The row has `width` columns; zeros follow them.
struct StagedRow<'t, 'c> {
    to: &'t Staged<'c>,
    column: Int<'c>,
    first: usize,
    end: usize,
    width: usize,
}

impl<'c> Group<'_, '_, '_, 'c> {
    /// The weight's fragments of step `step + i`, piece by piece.
    pub(super) fn weights_of(&self, (step, i): (Int<'c>, usize)) -> Vec<StepWeight<'c>> {
        let m = self.matrix();
        let c = m.c;
        let bytes = self.way.as_ref().map_or(m.panel_step(), Way::step_bytes);
        let first = |p: Ptr<'c>| c.at(c.at(p, step * bytes), i * bytes);
        let load = |(piece, &p): (usize, &Ptr<'c>)| match &self.way {
            Some(way) => way.load(piece, first(p), step + i),
            None => {
                let scale = self.scaled_products.as_ref().map(|products| products.load(m, piece, step + i));
                let marks = scale.map(|scale| StepMarks { scales: vec![scale], zeros: vec![] });
                StepWeight { rows: m.load_panel(first(p)), marks }
            }
        };
        self.weights.iter().enumerate().map(load).collect()
    }

    /// The rows' fragments of step `step + i`, tile by tile.
    pub(super) fn columns_of(&self, x: &dyn Source<'c>, (step, i): (Int<'c>, usize)) -> Vec<Fragment<'c>> {
        let m = self.matrix();
        let c = m.c;
        let (own, apart) = m.vec16s_of(self.part, self.vec16s());
        let vec16s = step * (self.span() / m.vec16()) + own;
        let further = c.int(i * self.span() / m.vec16() * x.apart());
        let load = |p: Ptr<'c>| (0..self.vec16s()).map(|i| m.load_vec16(c.at(p, i * apart * x.apart()))).collect();
        self.columns.iter().map(|&column| load(c.at(x.vec16(m, column, vec16s), further))).collect()
    }

    /// The scales of the rows in step `step + i`, tile by tile, where rows have several scales.
    pub(super) fn scales_of(&self, x: &dyn Source<'c>, (step, i): (Int<'c>, usize)) -> Vec<Any<'c>> {
        let m = self.matrix();
        if self.scaled_products.is_some() {
            // Those of a step form a word.
            let word = |&column: &Int<'c>| m.c.load(m.c.cx.i32_type(), x.scale(m, column, step + i), 4);
            return self.columns.iter().map(word).collect();
        }
        let Some(group) = self.shape.quantised.and_then(|quantised| quantised.row_group) else { return vec![] };
        let group = (step + i) * self.span() / group;
        self.columns.iter().map(|&column| m.c.load(m.c.cx.f32_type(), x.scale(m, column, group), 4)).collect()
    }

    /// Computes elements `first` to `end` of every column's row: one row by all threads, several by
    /// a wave each.
    pub(super) fn stage(&self, to: &Staged<'c>, exchange: Ptr<'c>, first: usize, end: usize) -> Result<(), Diagnostic> {
        let c = self.matrix().c;
        let rows = &self.contraction.parts.kernel.rows;
        let (tokens, waves, wave) = (self.shape.tokens, self.shape.waves, c.simt.wave);
        let width = rows.shape(self.contraction.parts.x)?.shape.last().unwrap_or(0);
        let row = |column| StagedRow { to, column, first, end, width };
        if tokens == 1 {
            rows.set_team(c.group_team(waves * wave, exchange));
            self.stage_row(row(c.int(0)))?;
            return self.stage_scale(to, c.int(0), c.thread());
        }
        rows.set_team(c.lanes_team(c.lane_index(), wave));
        c.repeat(self.wave, tokens, waves, |column| {
            self.stage_row(row(column))?;
            self.stage_scale(to, column, c.lane_index())
        })
    }

    /// The scale of a row of codes that was just computed, by the first thread of those that did.
    fn stage_scale(&self, to: &Staged<'c>, column: Int<'c>, thread: Int<'c>) -> Result<(), Diagnostic> {
        let (c, parts) = (self.matrix().c, &self.contraction.parts);
        let Some(to) = to.scales.filter(|_| parts.kernel.rows.has_row_scale(parts.x)) else { return Ok(()) };
        let scale = parts.kernel.rows.scale(parts.x, self.tile.source(c, column))?;
        c.when(c.equal(thread, 0), || c.store(c.at(to, column * 4), scale, 4));
        Ok(())
    }

    fn stage_row(&self, staged: StagedRow<'_, 'c>) -> Result<(), Diagnostic> {
        let m = self.matrix();
        let (c, parts) = (m.c, &self.contraction.parts);
        let StagedRow { to, column, first, end, width } = staged;
        let row = self.tile.source(c, column);
        let (rows, x) = (&parts.kernel.rows, parts.x);
        rows.forget();
        let head = self.tile.head();
        rows.prepare(x, row, head)?;
        let near = self.group_of_neighbours([first, end, width]);
        let mut vectors = 0;
        rows.each_column(end - first, |col| {
            vectors += 1;
            if vectors % TOGETHER == 0 {
                c.keep_order();
            }
            let col = if first == 0 { col } else { col + first };
            // Columns after the end of a head are not computed, as the row may end there.
            let inside = if head.is_none() || width >= end { col } else { c.smaller(col, width - c.lanes()) };
            let at = At { row, head, col: Col::Var(inside) };
            let scale = self.stage_group_scale(&staged, near, col, at)?;
            let place = c.at(to.vec16(m, column, col / m.vec16()), col % m.vec16() * m.dtype.size());
            let bits = self.vector(at, scale.as_ref())?;
            let zeros = bits.get_type().const_zero();
            let bits = if width < end { c.pick(c.less(col, width), bits, zeros).into_vector_value() } else { bits };
            match self.is_as_stored() {
                true => c.store(place, bits, c.alignment(m.dtype)),
                false => c.store_floats(place, bits, m.dtype),
            }
            Ok(())
        })?;
        rows.forget();
        Ok(())
    }

    /// Whether operands are multiplied as stored.
    fn is_as_stored(&self) -> bool {
        self.shape.quantised.is_some_and(|quantised| quantised.as_stored)
    }

    /// A vector of a row: codes as bits if they are multiplied as stored, or else numbers. Its
    /// group may have a scale.
    fn vector(&self, at: At<'c>, scale: Option<&GroupScale<'c>>) -> Result<Vector<'c>, Diagnostic> {
        let (rows, x) = (&self.contraction.parts.kernel.rows, self.contraction.parts.x);
        match scale {
            _ if self.is_as_stored() => rows.code_bits(x, at, scale),
            Some(scale) => rows.codes_by(x, at, scale),
            None if rows.has_row_scale(x) => rows.codes(x, at),
            None => rows.eval(x, at),
        }
    }

    /// Columns of a group of a row that is quantised here, if neighbouring lanes compute all of
    /// each group between two columns.
    fn group_of_neighbours(&self, columns: [usize; 3]) -> Option<usize> {
        let (c, parts) = (self.matrix().c, &self.contraction.parts);
        let group = self.shape.quantised.and_then(|quantised| quantised.row_group)?;
        let lanes = c.lanes();
        let fits = columns.iter().all(|column| column.is_multiple_of(group)) && group.is_multiple_of(lanes);
        let few = (group / lanes).is_power_of_two() && group / lanes <= c.simt.wave;
        let is_made = matches!(parts.kernel.rows.graph.op(parts.x.node), Op::Quantise { .. });
        (fits && few && is_made).then_some(group)
    }

    /// The scale of a column's group, if rows have several that are applied to sums. It is stored
    /// where the group begins. Neighbouring lanes find it together if they have all of a group.
    fn stage_group_scale(
        &self,
        &StagedRow { to, column, first, width, .. }: &StagedRow<'_, 'c>,
        near: Option<usize>,
        col: Int<'c>,
        at: At<'c>,
    ) -> Result<Option<GroupScale<'c>>, Diagnostic> {
        let Some(group) = self.shape.quantised.and_then(|quantised| quantised.row_group) else { return Ok(None) };
        let (m, rows, x) = (self.matrix(), &self.contraction.parts.kernel.rows, self.contraction.parts.x);
        let c = m.c;
        let last = width.div_ceil(group) - 1;
        let found = match near {
            Some(group) => {
                let v = rows.eval(rows.graph.operands(x.node)[0], at)?;
                rows.scale_of_size(x, c.largest_of(rows.size_of(v), group / c.lanes()))?
            }
            None => rows.group_of(x, at.row, c.smaller(col / group, last))?,
        };
        let number = c.smaller(col / group, last);
        let begins = c.compare(IntPredicate::EQ, col, c.larger(number * group, first));
        c.when(begins, || c.store(to.scale(m, column, number), found.scale(), 4));
        Ok(Some(found))
    }

    /// Vectors of a row's part of a step.
    pub(super) fn vec16s(&self) -> usize {
        self.matrix().vec16s() * self.shape.times()
    }

    /// Columns of a step.
    pub(super) fn span(&self) -> usize {
        self.matrix().span() * self.shape.times()
    }
}
