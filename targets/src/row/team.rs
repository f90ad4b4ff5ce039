//! Threads that compute a row together, and rows that are computed vector by vector.
use atomc_ir::{Diagnostic, Value};
use inkwell::values::FloatValue;

use super::{At, Col, Made, Rows, unsupported};
use crate::code::{Int, Ptr, Vector};

/// Turns of a loop along a row up to which it is unrolled.
pub(super) const UNROLL: usize = 8;

/// The operations that a machine offers to threads that compute a row together.
pub trait Threads<'c> {
    /// The sum over a team. All of its threads call it.
    fn team_sum(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c>;

    /// The largest of a team's numbers.
    fn team_top(&self, v: FloatValue<'c>, team: Team<'_, 'c>) -> FloatValue<'c>;

    /// No instruction is moved across.
    fn keep_order(&self);
}

/// The threads that compute one row together; without a team, one thread computes the whole row.
#[derive(Clone, Copy)]
pub struct Team<'a, 'c> {
    /// The number of this thread in the team.
    pub index: Int<'c>,
    pub size: usize,
    /// Local memory in which the waves of a work-group exchange a float each; none if the team is a
    /// part of one wave.
    pub exchange: Option<Ptr<'c>>,
    pub threads: &'a dyn Threads<'c>,
}

impl<'a, 'c> Rows<'a, 'c> {
    /// From here on vectors are computed a piece at a time, of as many lanes as the code has, so
    /// that few registers hold values between loads and results. Loads are of whole vectors.
    pub fn set_pieces(&self, pieces: usize) {
        self.pieces.set(pieces);
        self.loaded.borrow_mut().clear();
    }

    /// Elements of a whole vector.
    pub(super) fn whole(&self) -> usize {
        self.pieces.get() * self.code.lanes()
    }

    /// `f` of each piece of a vector, one after the other.
    pub fn each_piece(&self, mut f: impl FnMut() -> Made<'c>) -> Result<Vec<Vector<'c>>, Diagnostic> {
        let one = |piece| {
            self.piece.set(Some(piece));
            let made = f();
            if self.pieces.get() > 1 {
                self.keep_order();
            }
            made
        };
        let made = (0..self.pieces.get()).map(one).collect();
        self.piece.set(Some(0));
        made
    }

    /// Loads the operands of the vectors at `at`, before any piece of them is computed.
    pub fn load_ahead(&self, v: Value, at: &[At<'c>]) -> Result<(), Diagnostic> {
        if self.pieces.get() == 1 {
            return Ok(());
        }
        self.loaded.borrow_mut().clear();
        self.piece.set(None);
        let loaded = at.iter().try_for_each(|&at| self.eval(v, at).map(|_| ()));
        self.piece.set(Some(0));
        self.keep_order();
        loaded
    }

    /// Earlier loads are in flight while later code computes.
    pub(super) fn keep_order(&self) {
        if let Some(team) = self.team.get() {
            team.threads.keep_order();
        }
    }

    /// From here on rows are computed by such teams.
    pub fn set_team(&self, team: Team<'a, 'c>) {
        self.team.set(Some(team));
        let first = team.index * self.whole();
        *self.columns.borrow_mut() = (0..UNROLL).map(|turn| first + turn * team.size * self.whole()).collect();
    }

    /// Runs `body` for each vector that this member of the team has in a row of `n` elements, with
    /// its first column.
    pub fn each_column(
        &self,
        n: usize,
        mut body: impl FnMut(Int<'c>) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        self.each_columns(n, 1, |cols| body(cols[0]))
    }

    /// As [`Rows::each_column`], with `together` vectors at a time where there are that many.
    pub fn each_columns(
        &self,
        n: usize,
        together: usize,
        mut body: impl FnMut(&[Int<'c>]) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let c = self.code;
        let Some(Team { index, size, .. }) = self.team.get() else {
            return Err(unsupported("columns of a team without members"));
        };
        let (turn, mut result) = (size * self.whole(), Ok(()));
        if n.div_ceil(turn) > UNROLL {
            let first = index * self.whole();
            c.repeat(first, n, turn, |col| result = body(&[col]));
            return result;
        }
        let columns = self.columns.borrow().clone();
        columns[..n / turn].chunks(together).try_for_each(&mut body)?;
        if !n.is_multiple_of(turn) {
            let col = columns[n / turn];
            c.when(c.less(col, n), || result = body(&[col]));
        }
        result
    }

    /// Runs `body` with vectors of some values at the same columns, for the share of this member of
    /// the team in a row of `n` elements. A norm's scale is computed last if possible, so that
    /// other operands are loaded while squares are added up.
    pub fn each_made<const N: usize>(
        &self,
        values: [Value; N],
        (row, head): (Int<'c>, Option<Int<'c>>),
        n: usize,
        mut body: impl FnMut(Int<'c>, [Vector<'c>; N]) -> Result<(), Diagnostic>,
    ) -> Result<(), Diagnostic> {
        let c = self.code;
        let made = |col: Int<'c>| {
            let made: Result<Vec<_>, _> =
                values.iter().map(|&v| self.eval(v, At { row, head, col: Col::Var(col) })).collect();
            made.map(|made| std::array::from_fn::<_, N, _>(|i| made[i]))
        };
        let prepare = || values.iter().try_for_each(|&v| self.prepare(v, row, head));
        let late = |&v: &Value| self.last_norm(v).is_some() || !self.needs_norm(v);
        let Some(columns) = self.own_columns(n).filter(|_| values.iter().all(late)) else {
            prepare()?;
            return self.each_column(n, |col| body(col, made(col)?));
        };
        let norms = values.map(|v| self.last_norm(v));
        norms.iter().flatten().for_each(|&norm| self.set_scale(norm, c.number(1.0)));
        let all = columns.iter().map(|&col| made(col)).collect::<Result<Vec<_>, _>>()?;
        prepare()?;
        let scales = norms.map(|norm| norm.map(|norm| c.splat(self.statistics.borrow()[&norm].scale)));
        columns.into_iter().zip(all).try_for_each(|(col, made)| {
            body(col, std::array::from_fn(|i| scales[i].map_or(made[i], |scale| c.fmul(made[i], scale))))
        })
    }

    /// The columns of this member's vectors of a row, where every member has as many.
    pub(super) fn own_columns(&self, n: usize) -> Option<Vec<Int<'c>>> {
        let turn = self.team.get()?.size * self.whole();
        let fits = self.pieces.get() == 1 && n.is_multiple_of(turn) && n / turn <= UNROLL;
        fits.then(|| self.columns.borrow()[..n / turn].to_vec())
    }
}
