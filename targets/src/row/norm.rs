//! Norms: their statistics of a whole row, and their results for its elements. Of a row that ranks
//! share, the statistics are of a sum that lies in memory.
use atomc_ir::{DType, Diagnostic, Norm, Op, Reads, Type, Value, Values};
use inkwell::values::FloatValue;

use super::team::UNROLL;
use super::{At, Col, Made, Place, Rows, is_norm, unsupported};
use crate::code::{Int, Vector};

/// The statistics of a whole row that a norm needs: the mean, if it is subtracted, and the scale of
/// the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics<'c> {
    centre: Option<FloatValue<'c>>,
    pub(super) scale: FloatValue<'c>,
}

/// The terms that are summed along a row: the elements, or their squares, without the mean.
#[derive(Clone, Copy)]
enum Term<'c> {
    Value,
    Square(Option<FloatValue<'c>>),
}

impl<'c> Rows<'_, 'c> {
    /// The only norm that a value needs, if the value is a multiple of its scale.
    pub(super) fn last_norm(&self, v: Value) -> Option<Value> {
        let from = |v: Value| self.graph.operands(v.node)[0];
        let op = self.graph.op(v.node);
        match op.values() {
            _ if self.is_bound(v) => None,
            Values::Kept | Values::Part { .. } | Values::Scaled if op.reads(0) == Reads::Row => self.last_norm(from(v)),
            Values::Normed(norm) if !norm.centred && !self.has_norm(from(v)) => Some(v),
            _ => None,
        }
    }

    fn has_norm(&self, v: Value) -> bool {
        is_norm(self.graph.op(v.node)) || self.graph.operands(v.node).into_iter().any(|v| self.has_norm(v))
    }

    /// Whether a norm must be prepared before the value can be computed.
    pub(super) fn needs_norm(&self, v: Value) -> bool {
        let needs = || self.graph.operands(v.node).into_iter().any(|v| self.needs_norm(v));
        let op = self.graph.op(v.node);
        !self.is_bound(v) && (is_norm(op) || matches!(op, Op::PartNorm { .. }) || needs())
    }

    pub(super) fn norm(&self, v: Value, operands: &[Value], at: At<'c>) -> Made<'c> {
        let known = self.statistics.borrow().get(&v).copied();
        let Statistics { centre, scale } = known.ok_or_else(|| unsupported("a norm of what is computed later"))?;
        let x = self.left(self.eval(operands[0], at)?, centre);
        let w = self.eval_like(operands[1], v, at)?;
        let scaled = self.code.fmul(self.code.fmul(x, self.code.splat(scale)), w);
        match operands.get(2) {
            Some(&bias) => Ok(self.code.fadd(scaled, self.eval_like(bias, v, at)?)),
            None => Ok(scaled),
        }
    }

    /// A vector less the mean of its row.
    fn left(&self, v: Vector<'c>, centre: Option<FloatValue<'c>>) -> Vector<'c> {
        centre.map_or(v, |centre| self.code.fsub(v, self.code.splat(centre)))
    }

    /// Emits the statistics of every norm that `v` needs, for this row and head.
    pub fn prepare(&self, v: Value, row: Int<'c>, head: Option<Int<'c>>) -> Result<(), Diagnostic> {
        if self.bound.borrow().contains_key(&v) || !matches!(self.graph.ty(v), Type::Tensor(_)) {
            return Ok(());
        }
        let operands = self.graph.operands(v.node);
        let op = self.graph.op(v.node);
        match op.values() {
            Values::Normed(norm) => {
                self.prepare(operands[0], row, head)?;
                let statistics = self.statistics_of(operands[0], norm, row, head)?;
                self.statistics.borrow_mut().insert(v, statistics);
                Ok(())
            }
            Values::Coded => {
                self.prepare(operands[0], row, head)?;
                let Op::Quantise { to, rule } = *op else { return Ok(()) };
                self.prepare_scale(v, to, rule, (row, head))
            }
            _ if let Op::PartNorm { eps, of, at } = *op => {
                self.prepare(operands[0], row, head)?;
                let sum = self.operand(operands[2])?;
                let sum = self.address(sum, At { row, head: None, col: Col::Const(at) });
                let scale = self.code.inverse_root(self.code.load_number(sum, DType::F32), of, eps);
                self.set_scale(v, scale);
                Ok(())
            }
            _ if op.reads(0) == Reads::Chosen => {
                let row = self.code.load_index(self.index(operands[1])?, row);
                self.prepare(operands[0], row, head)
            }
            _ if op.is_contraction() => Ok(()),
            _ => operands.iter().try_for_each(|&o| self.prepare(o, row, head)),
        }
    }

    /// From here on a norm scales by this, which the family has made itself.
    pub fn set_scale(&self, norm: Value, scale: FloatValue<'c>) {
        self.statistics.borrow_mut().insert(norm, Statistics { centre: None, scale });
    }

    /// The statistics of a row or head: the mean, if the norm subtracts it, and
    /// `1 / sqrt(mean(x^2) + eps)` of the rest.
    fn statistics_of(
        &self,
        x: Value,
        norm: Norm,
        row: Int<'c>,
        head: Option<Int<'c>>,
    ) -> Result<Statistics<'c>, Diagnostic> {
        let c = self.code;
        let n = self.shape(x)?.shape.last().unwrap_or(0);
        let mut centre = None;
        if norm.centred {
            let sum = self.sum(x, n, (row, head), Term::Value)?;
            centre = Some((c.float(sum) * c.number(1.0 / n as f64)).v);
        }
        let squares = self.sum(x, n, (row, head), Term::Square(centre))?;
        Ok(Statistics { centre, scale: c.inverse_root(squares, n, norm.eps) })
    }

    /// The sum of the squares of a row, by the whole team.
    pub fn squares(&self, x: Value, row: Int<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        self.prepare(x, row, None)?;
        let n = self.shape(x)?.shape.row().unwrap_or(0);
        let sum = self.sum(x, n, (row, None), Term::Square(None));
        self.forget();
        sum
    }

    /// The sum of a term of each element of a row, by the whole team.
    fn sum(&self, x: Value, n: usize, place: Place<'c>, term: Term<'c>) -> Result<FloatValue<'c>, Diagnostic> {
        let c = self.code;
        Ok(match self.team.get() {
            None => c.sum(self.terms(x, n, place, term)?),
            Some(team) => {
                let share = self.share(x, n, place, (team.index, team.size), term)?;
                team.threads.team_sum(c.sum(share), team)
            }
        })
    }

    /// The operand of a term.
    fn base(&self, v: Vector<'c>, term: Term<'c>) -> Vector<'c> {
        match term {
            Term::Value => v,
            Term::Square(centre) => self.left(v, centre),
        }
    }

    fn added(&self, base: Vector<'c>, sum: Vector<'c>, term: Term<'c>) -> Vector<'c> {
        match term {
            Term::Value => self.code.fadd(base, sum),
            Term::Square(_) => self.code.fma(base, base, sum),
        }
    }

    /// Terms of a whole row, summed up lane by lane.
    fn terms(&self, x: Value, n: usize, (row, head): Place<'c>, term: Term<'c>) -> Made<'c> {
        let (c, lanes) = (self.code, self.code.lanes());
        let square = |sum: Vector<'c>, col: Col<'c>, count: usize| -> Made<'c> {
            let mut v = self.base(self.eval(x, At { row, head, col })?, term);
            if count < lanes {
                v = c.choose(c.lanes_below(count), v, c.zero());
            }
            Ok(self.added(v, sum, term))
        };
        let mut sum = c.zero();
        if head.is_some() {
            for col in (0..n).step_by(lanes) {
                sum = square(sum, Col::Const(col), n - col)?;
            }
            return Ok(sum);
        }
        let whole = n / lanes * lanes;
        sum = c.try_carry((0, whole, lanes), sum, |col, sum| square(sum, Col::Var(col), lanes))?;
        if whole < n { square(sum, Col::Const(whole), n - whole) } else { Ok(sum) }
    }

    /// Terms of one member's share of a row: every `size`-th vector.
    fn share(
        &self,
        x: Value,
        n: usize,
        (row, head): Place<'c>,
        (index, size): (Int<'c>, usize),
        term: Term<'c>,
    ) -> Made<'c> {
        let (c, lanes) = (self.code, self.whole());
        let (turns, first) = (n.div_ceil(size * lanes), index * lanes);
        let whole = n.is_multiple_of(size * lanes);
        let value = |col: Int<'c>| -> Made<'c> {
            let inside = c.less(col, n);
            let safe = if whole { col } else { c.pick_int(inside, col, 0) };
            let v = self.base(self.eval(x, At { row, head, col: Col::Var(safe) })?, term);
            Ok(if whole { v } else { c.pick(inside, v, c.zero()).into_vector_value() })
        };
        if turns <= UNROLL {
            let mut sum = c.zero();
            for turn in 0..turns {
                let col = self.columns.borrow()[turn];
                self.each_piece(|| {
                    let v = value(col)?;
                    if !matches!(term, Term::Square(Some(_))) {
                        self.kept.borrow_mut().push((x, col, self.piece.get(), v));
                    }
                    sum = self.added(v, sum, term);
                    Ok(sum)
                })?;
            }
            return Ok(sum);
        }
        c.try_carry((0, turns, 1), c.zero(), |turn, mut sum| {
            let col = turn * (size * lanes) + first;
            self.each_piece(|| {
                sum = self.added(value(col)?, sum, term);
                Ok(sum)
            })?;
            Ok(sum)
        })
    }
}
