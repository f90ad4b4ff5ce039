//! The weights by which streams of a token are mixed. Of two or four streams lane `i` has row `i`
//! of the matrix, and so have the lanes that are a multiple of the streams away. Of other numbers
//! of streams each lane has all rows.
use atomc_ir::{Diagnostic, Op, Value};
use inkwell::values::FloatValue;

use crate::code::{Int, Vector};
use crate::math;
use crate::row::{At, Col, Team, unsupported};
use crate::simt::launch::Kernel;

/// Most rows that lanes share: neighbours exchange different numbers over distances of 1 and 2
/// alone.
const SHARED: usize = 4;
/// Most rows that a lane has by itself.
const MOST: usize = 8;

/// Stores both results of a node for a row. Vectors have one element behind the sum of squares.
pub fn store<'a, 'c>(kernel: &Kernel<'a, 'c>, v: Value, row: Int<'c>, team: Team<'a, 'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let &Op::Sinkhorn { streams: n, rounds, eps, norm } = rows.graph.op(v.node) else {
        return Err(unsupported("weights of streams of another op"));
    };
    if n > MOST {
        return Err(unsupported(format!("{n} streams: up to {MOST} on GPUs")));
    }
    let operands = rows.graph.operands(v.node);
    let width = rows.shape(operands[1])?.shape.last().unwrap_or(0);
    rows.set_team(team);
    let factor = c.inverse_root(rows.squares(operands[1], row)?, width, norm);
    let lanes = c.lanes();
    c.set_lanes(1);
    let sharing = if n.is_power_of_two() && n <= SHARED { n } else { 1 };
    let own = Own { kernel, operands, row, factor: c.splat(factor), n, sharing };
    rows.prepare(own.operands[0], row, None)?;
    let has_more = rows.shape(own.operands[0])?.shape.last().unwrap_or(0) > n;
    let streams = own.streams();
    let halves = |first: usize, scale: usize| {
        let half = |stream: &Int<'c>| Ok(own.half(own.logit(*stream + first, scale)?));
        streams.iter().map(half).collect::<Result<Vec<Vector>, Diagnostic>>()
    };
    let seen: Vec<Vector> = halves(0, 0)?.into_iter().map(|half| c.fadd(half, c.lit(eps))).collect();
    let mixed = match has_more {
        true => {
            let added = halves(n, 1)?.into_iter().map(|half| c.fmul(half, c.lit(2.0)));
            own.balanced(rounds, eps)?.into_iter().zip(added).collect()
        }
        false => vec![],
    };
    let is_own = c.less(c.thread(), sharing);
    for (made, out) in kernel.outputs.iter().filter(|(made, _)| made.node == v.node) {
        let put = |col: Int<'c>, v: Vector<'c>| {
            c.store_floats(rows.address(out, At { row, head: None, col: Col::Var(col) }), v, out.ty.dtype);
        };
        c.when(is_own, || match made.out {
            0 => streams.iter().zip(&seen).for_each(|(&stream, &v)| put(stream, v)),
            _ => streams.iter().zip(&mixed).for_each(|(&stream, (to_others, added))| {
                to_others.iter().enumerate().for_each(|(to, &v)| put(stream + to * (n + 1), v));
                put(stream * (n + 1) + n, *added);
            }),
        });
        super::pad(kernel, out, row, if made.out == 0 { n } else { n * (n + 1) });
    }
    c.set_lanes(lanes);
    rows.forget();
    Ok(())
}

/// The streams that a lane has.
struct Own<'k, 'a, 'c> {
    kernel: &'k Kernel<'a, 'c>,
    operands: Vec<Value>,
    row: Int<'c>,
    /// What logits are multiplied with.
    factor: Vector<'c>,
    n: usize,
    /// Lanes that share the streams.
    sharing: usize,
}

impl<'c> Own<'_, '_, 'c> {
    /// Their numbers.
    fn streams(&self) -> Vec<Int<'c>> {
        let c = self.kernel.code;
        let first = if self.sharing == 1 { c.int(0) } else { c.thread() % self.sharing };
        (0..self.n / self.sharing).map(|i| first + i).collect()
    }

    fn logit(&self, at: Int<'c>, scale: usize) -> Result<Vector<'c>, Diagnostic> {
        let (c, rows) = (self.kernel.code, &self.kernel.rows);
        let &[m, _, base, scales] = &self.operands[..] else {
            return Err(unsupported("weights of streams of other operands"));
        };
        let number = |v: Value, row: Int<'c>, col: Col<'c>| rows.eval(v, At { row, head: None, col });
        let made = c.fmul(rows.logits(m, self.row, Col::Var(at))?, self.factor);
        let scale = number(scales, c.int(0), Col::Const(scale))?;
        Ok(c.fma(made, scale, number(base, c.int(0), Col::Var(at))?))
    }

    fn half(&self, logit: Vector<'c>) -> Vector<'c> {
        let c = self.kernel.code;
        c.fdiv(c.lit(1.0), c.fadd(c.lit(1.0), math::exp(c, c.fsub(c.zero(), logit))))
    }

    /// The lane's rows of a matrix with sums of rows and of columns that are about one.
    fn balanced(&self, rounds: usize, eps: f64) -> Result<Vec<Vec<Vector<'c>>>, Diagnostic> {
        let (c, n) = (self.kernel.code, self.n);
        let sum = |all: &[Vector<'c>]| all[1..].iter().fold(all[0], |sum, &v| c.fadd(sum, v));
        let softmax = |stream: Int<'c>| {
            let logits = (0..n).map(|to| self.logit(stream * n + (2 * n + to), 2)).collect::<Result<Vec<_>, _>>()?;
            let top = logits[1..].iter().fold(logits[0], |top, &v| c.fmax(top, v));
            let parts: Vec<Vector> = logits.iter().map(|&v| math::exp(c, c.fsub(v, top))).collect();
            let all = sum(&parts);
            Ok(parts.into_iter().map(|part| c.fadd(c.fdiv(part, all), c.lit(eps))).collect())
        };
        let matrix = self.streams().into_iter().map(softmax).collect::<Result<Vec<Vec<Vector>>, Diagnostic>>()?;
        let divided = |row: Vec<Vector<'c>>, sums: &[Vector<'c>]| {
            let divided = |(v, &sum): (Vector<'c>, &Vector<'c>)| c.fdiv(v, c.fadd(sum, c.lit(eps)));
            row.into_iter().zip(sums).map(divided).collect::<Vec<_>>()
        };
        let by_columns = |matrix: Vec<Vec<Vector<'c>>>| {
            let sums: Vec<Vector> = (0..n).map(|to| self.column(&matrix, to)).collect();
            matrix.into_iter().map(|row| divided(row, &sums)).collect::<Vec<_>>()
        };
        Ok(c.carry((1, rounds, 1), by_columns(matrix), |_, matrix| {
            by_columns(matrix.into_iter().map(|row| divided(row.clone(), &vec![sum(&row); n])).collect())
        }))
    }

    /// The sum of a column over all rows.
    fn column(&self, matrix: &[Vec<Vector<'c>>], column: usize) -> Vector<'c> {
        let c = self.kernel.code;
        let add = |a: FloatValue<'c>, b: FloatValue<'c>| (c.float(a) + b).v;
        let own = matrix[1..].iter().fold(matrix[0][column], |sum, row| c.fadd(sum, row[column]));
        c.splat(c.over_lanes(c.lane(own, 0).into_float_value(), self.sharing, &add))
    }
}
