//! Rows with columns that change places: rotations of halves and of neighbours, and concatenated
//! operands.
use atomc_ir::{Diagnostic, Value};
use inkwell::FloatPredicate;

use super::{At, Col, Made, Rows, unsupported};
use crate::code::{Int, Ptr, Vector};

/// The positions of a token that a table of rotations is made of: one, or one for each axis. `load`
/// gives that of a list.
pub fn positions<'c>(
    rows: &Rows<'_, 'c>,
    operands: &[Value],
    load: impl Fn(Ptr<'c>) -> Vector<'c>,
) -> Result<Vec<Vector<'c>>, Diagnostic> {
    let lists = [0, 3, 4].into_iter().filter(|&slot| slot < operands.len());
    lists.map(|slot| Ok(load(rows.index(operands[slot])?))).collect()
}

/// Of these positions that which each of some frequencies takes.
pub fn of_axes<'c>(rows: &Rows<'_, 'c>, operands: &[Value], positions: &[Vector<'c>], col: Col<'c>) -> Made<'c> {
    let (c, &[time, row, column]) = (rows.code, positions) else { return Ok(positions[0]) };
    let axes = rows.eval(operands[5], At { row: c.int(0), head: None, col })?;
    let is = |axis: f64| {
        let equal = c.b.build_float_compare(FloatPredicate::OEQ, axes, c.lit(axis), "");
        equal.expect("floats")
    };
    Ok(c.choose(is(1.0), row, c.choose(is(2.0), column, time)))
}

impl<'c> Rows<'_, 'c> {
    /// Element j of the first half is rotated with element j of the second; elements beyond the
    /// table stay as they are.
    pub(super) fn rope(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let c = self.code;
        let Col::Const(col) = at.col else { return self.rope_anywhere(operands, at) };
        let (x, table) = (operands[0], operands[1]);
        let rot = self.shape(table)?.shape.last().unwrap_or(0);
        let half = rot / 2;
        let own = self.eval(x, at)?;
        let angle = |col: usize| self.eval(table, At { head: None, col: Col::Const(col), ..at });
        let mut result = own;
        if col < half {
            let partner = self.eval(x, At { col: Col::Const(col + half), ..at })?;
            let turned = c.fsub(c.fmul(own, angle(col)?), c.fmul(partner, angle(half + col)?));
            result = self.blend(turned, result, 0, half - col);
        }
        if col < rot && col + self.code.lanes() > half {
            // Lane i holds element col + i. Its partner is `half` elements before it.
            let skip = half.saturating_sub(col);
            let from = (col + skip) - half;
            let late = |v: Vector<'c>| self.delayed(v, skip);
            let partner = late(self.eval(x, At { col: Col::Const(from), ..at })?);
            let (cos, sin) = (late(angle(from)?), late(angle(half + from)?));
            let turned = c.fma(own, cos, c.fmul(partner, sin));
            result = self.blend(turned, result, skip, rot - col);
        }
        Ok(result)
    }

    /// As [`Rows::rope`], for a column that is known at run time: whole vectors lie in one half.
    fn rope_anywhere(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, x, table) = (self.code, operands[0], operands[1]);
        let (rot, dim) = (self.shape(table)?.shape.last(), self.shape(x)?.shape.last());
        let (rot, half) = (rot.unwrap_or(0), rot.unwrap_or(0) / 2);
        if !half.is_multiple_of(self.whole()) {
            return Err(unsupported(format!("a rotation of {rot} columns in vectors of {}", c.lanes())));
        }
        let col = self.column(at.col);
        let (early, turns) = (c.less(col, half), c.less(col, rot));
        let place = |early_col: Int<'c>, late_col: Int<'c>| {
            let col = c.pick_int(early, early_col, late_col);
            c.pick_int(turns, col, 0)
        };
        let own = self.eval(x, at)?;
        let partner = place(col + half, col - half);
        let partner = self.eval(x, At { col: Col::Var(partner), ..at })?;
        let angle = |first: Int<'c>| self.eval(table, At { head: None, col: Col::Var(first), ..at });
        let cos_at = place(col, col - half);
        let (cos, sin) = (angle(cos_at)?, angle(cos_at + half)?);
        let signed = c.pick(early, c.fsub(c.zero(), sin), sin).into_vector_value();
        let turned = c.fma(own, cos, c.fmul(partner, signed));
        let all = dim == Some(rot);
        Ok(if all { turned } else { c.pick(turns, turned, own).into_vector_value() })
    }

    /// Neighbours are rotated with each other. A vector has whole pairs.
    pub(super) fn rope_pairs(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, x, table) = (self.code, operands[0], operands[1]);
        let [rot, dim] = [table, x].map(|v| self.shape(v).map(|t| t.shape.last().unwrap_or(0)));
        let (rot, dim, lanes) = (rot?, dim?, c.lanes());
        let splits = matches!(at.col, Col::Var(_)) && !rot.is_multiple_of(self.whole());
        if lanes < 2 || splits {
            return Err(unsupported(format!("a rotation of neighbours of {rot} columns in vectors of {lanes}")));
        }
        let own = self.eval(x, at)?;
        let (half, turns) = match at.col {
            Col::Const(col) if col >= rot => return Ok(own),
            Col::Const(col) => (Col::Const(col / 2), None),
            Col::Var(col) if rot == dim => (Col::Var(col / 2), None),
            Col::Var(col) => {
                let turns = c.less(col, rot);
                (Col::Var(c.pick_int(turns, col / 2, 0)), Some(turns))
            }
        };
        let twice: Vec<usize> = (0..lanes).map(|i| i / 2).collect();
        let angle = |first: usize| {
            let v = self.eval(table, At { head: None, col: self.shifted(half, first), ..at })?;
            Ok::<_, Diagnostic>(c.shuffle(v, v, &twice))
        };
        let (cos, sin) = (angle(0)?, angle(rot / 2)?);
        let others: Vec<usize> = (0..lanes).map(|i| i ^ 1).collect();
        let other = c.fmul(c.shuffle(own, own, &others), sin);
        let mixed: Vec<usize> = (0..lanes).map(|i| if i % 2 == 0 { i } else { lanes + i }).collect();
        let signed = c.shuffle(c.fsub(c.zero(), other), other, &mixed);
        let turned = c.fma(own, cos, signed);
        Ok(match (turns, at.col) {
            (Some(turns), _) => c.pick(turns, turned, own).into_vector_value(),
            (None, Col::Const(col)) if col + lanes > rot => self.blend(turned, own, 0, rot - col),
            _ => turned,
        })
    }

    /// The columns of one operand, then those of the other.
    pub(super) fn beside(&self, operands: &[Value], at: At<'c>) -> Made<'c> {
        let (c, [a, b]) = (self.code, [operands[0], operands[1]]);
        let width = self.shape(a)?.shape.last().unwrap_or(0);
        match at.col {
            Col::Const(col) if col >= width => self.eval(b, At { col: Col::Const(col - width), ..at }),
            Col::Const(col) if col + c.lanes() <= width => self.eval(a, at),
            Col::Const(col) => {
                let (early, late) = (self.eval(a, at)?, self.eval(b, At { col: Col::Const(0), ..at })?);
                Ok(self.blend(early, self.delayed(late, width - col), 0, width - col))
            }
            Col::Var(col) if !width.is_multiple_of(self.whole()) => {
                // A vector may have columns of both.
                let (early, left) = (c.pick_int(c.less(col, width), col, 0), width - col);
                let early = self.eval(a, At { col: Col::Var(early), ..at })?;
                let late = self.eval(b, At { col: Col::Var(c.larger(col - width, 0)), ..at })?;
                Ok(c.choose(c.lanes_below(left), early, c.moved_up(late, c.larger(left, 0))))
            }
            Col::Var(col) => {
                let is_early = c.less(col, width);
                let [early, late] = [c.pick_int(is_early, col, 0), c.pick_int(is_early, 0, col - width)];
                let early = self.eval(a, At { col: Col::Var(early), ..at })?;
                let late = self.eval(b, At { col: Col::Var(late), ..at })?;
                Ok(c.pick(is_early, early, late).into_vector_value())
            }
        }
    }

    /// Lanes `from..to` of `a`, the others of `b`.
    fn blend(&self, a: Vector<'c>, b: Vector<'c>, from: usize, to: usize) -> Vector<'c> {
        let lanes: Vec<usize> =
            (0..self.code.lanes()).map(|i| if i >= from && i < to { i } else { self.code.lanes() + i }).collect();
        self.code.shuffle(a, b, &lanes)
    }

    /// Lane i gets lane `i - by`.
    fn delayed(&self, v: Vector<'c>, by: usize) -> Vector<'c> {
        let lanes: Vec<usize> = (0..self.code.lanes()).map(|i| i.saturating_sub(by)).collect();
        if by == 0 { v } else { self.code.shuffle(v, v, &lanes) }
    }
}
