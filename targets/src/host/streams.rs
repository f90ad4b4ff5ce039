//! The weights by which streams of a token are mixed. Each number is a vector of equal lanes.
use atomc_ir::{DType, Diagnostic, Op, Value};

use super::LANES;
use super::rows::pad;
use crate::code::{Int, Vector};
use crate::kernel::Kernel;
use crate::math;
use crate::row::{At, Col, Operand, unsupported};

/// Stores both results of a node for a row.
pub fn store<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let &Op::Sinkhorn { streams: n, rounds, eps, .. } = rows.graph.op(v.node) else {
        return Err(unsupported("weights of streams of another op"));
    };
    let logits = logits(kernel, v, row)?;
    let half = |at: usize| {
        let one = c.lit(1.0);
        c.fdiv(one, c.fadd(one, math::exp(c, c.fsub(c.zero(), logits[at]))))
    };
    let seen: Vec<Vector> = (0..n).map(|at| c.fadd(half(at), c.lit(eps))).collect();
    let mut mixed = vec![];
    if logits.len() > n {
        let matrix = balanced(kernel, &logits[2 * n..], (n, rounds, eps));
        for to in 0..n {
            mixed.extend((0..n).map(|from| matrix[from * n + to]));
            mixed.push(c.fmul(half(n + to), c.lit(2.0)));
        }
    }
    for (made, out) in kernel.outputs.iter().filter(|(made, _)| made.node == v.node) {
        put(kernel, out, row, if made.out == 0 { &seen } else { &mixed });
    }
    Ok(())
}

/// Each logit in all lanes.
fn logits<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<Vec<Vector<'c>>, Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let operands = rows.graph.operands(v.node);
    let &[m, x, base, scale] = &operands[..] else { return Err(unsupported("weights of streams of other operands")) };
    let &Op::Sinkhorn { streams, norm, .. } = rows.graph.op(v.node) else {
        return Err(unsupported("weights of streams of another op"));
    };
    let (count, width) = (rows.shape(m)?.shape.last().unwrap_or(0), rows.shape(x)?.shape.last().unwrap_or(0));
    let factor = c.splat(c.inverse_root(rows.squares(x, row)?, width, norm));
    rows.prepare(m, row, None)?;
    let scales = rows.eval(scale, At { row: c.int(0), head: None, col: Col::Const(0) })?;
    let scales = [0, 1, 2].map(|at| c.splat(c.lane(scales, if count == streams { 0 } else { at }).into_float_value()));
    let mut all = Vec::with_capacity(count);
    for first in (0..count).step_by(LANES) {
        let col = Col::Const(first);
        let made = c.fmul(rows.logits(m, row, col)?, factor);
        let base = rows.eval(base, At { row: c.int(0), head: None, col })?;
        for at in first..count.min(first + LANES) {
            let [made, base] = [made, base].map(|v| c.splat(c.lane(v, at - first).into_float_value()));
            all.push(c.fma(made, scales[(at / streams).min(2)], base));
        }
    }
    Ok(all)
}

/// A matrix with sums of rows and of columns that are about one.
fn balanced<'c>(
    kernel: &Kernel<'_, 'c>,
    logits: &[Vector<'c>],
    (n, rounds, eps): (usize, usize, f64),
) -> Vec<Vector<'c>> {
    let c = kernel.code;
    let sum = |all: &[Vector<'c>]| all[1..].iter().fold(all[0], |sum, &v| c.fadd(sum, v));
    let mut matrix = Vec::with_capacity(n * n);
    for row in logits.chunks(n) {
        let top = row[1..].iter().fold(row[0], |top, &v| c.fmax(top, v));
        let parts: Vec<Vector> = row.iter().map(|&v| math::exp(c, c.fsub(v, top))).collect();
        let all = sum(&parts);
        matrix.extend(parts.into_iter().map(|part| c.fadd(c.fdiv(part, all), c.lit(eps))));
    }
    let divide = |matrix: Vec<Vector<'c>>, step: usize, line: usize| {
        let mut made = matrix.clone();
        for i in 0..n {
            let places: Vec<usize> = (0..n).map(|at| i * line + at * step).collect();
            let own: Vec<Vector> = places.iter().map(|&place| matrix[place]).collect();
            let all = c.fadd(sum(&own), c.lit(eps));
            places.iter().for_each(|&place| made[place] = c.fdiv(matrix[place], all));
        }
        made
    };
    let matrix = divide(matrix, n, 1);
    c.carry((1, rounds, 1), matrix, |_, matrix| divide(divide(matrix, 1, n), n, 1))
}

/// Stores the first lane of each number, and zeros after the last one.
fn put<'c>(kernel: &Kernel<'_, 'c>, out: &Operand<'c>, row: Int<'c>, all: &[Vector<'c>]) {
    let (c, rows) = (kernel.code, &kernel.rows);
    pad(rows, out, row, all.len());
    for (at, &v) in all.iter().enumerate() {
        let p = rows.address(out, At { row, head: None, col: Col::Const(at) });
        c.store_some(p, v, DType::F32, 1);
    }
}
