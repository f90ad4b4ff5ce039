//! Family `rows`: one task is one row of the step. Outputs are stored chunk by chunk; a write into
//! the cache goes to the place of the row's token.
use atomc_artifact::manifest;
use atomc_ir::{Diagnostic, Op, Turn, Value};

use inkwell::values::FloatValue;

use super::signature;
use super::{Host, LANES};
use super::{pool, route, streams};
use crate::KernelSpec;
use crate::argmax::Argmax;
use crate::cache::Cache;
use crate::code::{Int, Vector};
use crate::kernel::{Kernel, heads, through_reshape};
use crate::math;
use crate::row::rope::{of_axes, positions};
use crate::row::{At, Col, Operand, Rows, to_bits};

pub fn emit<'c>(code: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(code, spec)?;
    let (first, end) = signature::tasks(code);
    let routers = route::routers(&kernel);
    let wholes = wholes(&kernel);
    kernel.each(first, end, |row| {
        let is_apart = |v: Value| routers.iter().chain(&wholes).any(|apart| apart.node == v.node);
        for (v, out) in kernel.outputs.iter().filter(|(v, _)| !is_apart(*v)) {
            store_output(&kernel.rows, *v, out, row)?;
        }
        routers.iter().try_for_each(|&router| route::store(&kernel, router, row))?;
        wholes.iter().try_for_each(|&v| store_whole(&kernel, v, row))?;
        kernel.caches.iter().try_for_each(|cache| write_heads(&kernel.rows, cache, row))
    })?;
    let scratch = routers.iter().map(|&router| route::scratch(&kernel, router)).max().unwrap_or(0);
    Ok(manifest::Kernel::host(kernel.row_tasks(1, 1), scratch))
}

/// The nodes of a body that make all their results of a row at once, each once.
fn wholes(kernel: &Kernel) -> Vec<Value> {
    let mut all: Vec<Value> = vec![];
    for (v, _) in &kernel.outputs {
        let op = kernel.rows.graph.op(v.node);
        let is_whole = matches!(op, Op::Sinkhorn { .. } | Op::RouteGiven { .. } | Op::Pool { .. });
        if is_whole && all.iter().all(|other| other.node != v.node) {
            all.push(*v);
        }
    }
    all
}

fn store_whole<'c>(kernel: &Kernel<'_, 'c>, v: Value, row: Int<'c>) -> Result<(), Diagnostic> {
    match kernel.rows.graph.op(v.node) {
        Op::Sinkhorn { .. } => streams::store(kernel, v, row),
        Op::Pool { .. } => pool::store(kernel, v, row),
        _ => route::store_given(kernel, v, row),
    }
}

fn store_output<'c>(rows: &Rows<'_, 'c>, v: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    if let Op::RopeTable { .. } = rows.graph.op(v.node) {
        return store_table(rows, v, out, row);
    }
    if let Op::Growth { beta, length, shift } = *rows.graph.op(v.node) {
        let c = rows.code;
        let position = c.load_index(rows.index(rows.graph.operands(v.node)[0])?, row);
        let p = rows.address(out, At { row, head: None, col: Col::Const(0) });
        c.store_some(p, math::growth(c, position, beta, length, shift), out.ty.dtype, 1);
        pad(rows, out, row, 1);
        return Ok(());
    }
    if let Op::Argmax {} = rows.graph.op(v.node) {
        return store_largest(rows, rows.graph.operands(v.node)[0], out, row);
    }
    if let Op::Squares {} = rows.graph.op(v.node) {
        return store_squares(rows, v, out, row);
    }
    if let Some(group) = rows.scaled_group(v) {
        return store_codes(rows, v, out, row, group);
    }
    let inner = through_reshape(rows, v)?;
    match heads(&rows.shape(inner)?.shape) {
        Some((count, dim)) => store_heads(rows, inner, out, row, count, dim),
        None => store_flat(rows, v, out, row),
    }
}

/// The whole row, padding as zeros.
fn store_flat<'c>(rows: &Rows<'_, 'c>, v: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let c = rows.code;
    rows.prepare(v, row, None)?;
    c.repeat(0, rows.padded(out), LANES, |col| {
        let at = At { row, head: None, col: Col::Var(col) };
        rows.store_padded(rows.eval(v, at)?, out, at);
        Ok(())
    })
}

/// A row of codes: padding of zeros, then the scales.
fn store_codes<'c>(
    rows: &Rows<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    group: usize,
) -> Result<(), Diagnostic> {
    let (c, padded) = (rows.code, rows.padded(out));
    let width = out.ty.shape.row().unwrap_or(0);
    rows.prepare(v, row, None)?;
    if group >= width {
        c.repeat(0, padded, LANES, |col| {
            let at = At { row, head: None, col: Col::Var(col) };
            rows.codes(v, at).map(|codes| store_code(rows, out, at, codes))
        })?;
        store_scale(rows, out, row, c.int(0), rows.scale(v, row)?);
        return Ok(());
    }
    c.repeat(0, width.div_ceil(group), 1, |number| store_group(rows, v, out, row, number, group))?;
    for col in (width.next_multiple_of(LANES)..padded).step_by(LANES) {
        store_code(rows, out, At { row, head: None, col: Col::Const(col) }, c.zero());
    }
    Ok(())
}

/// The codes of columns that share a scale, and the scale.
fn store_group<'c>(
    rows: &Rows<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    number: Int<'c>,
    group: usize,
) -> Result<(), Diagnostic> {
    let (c, width) = (rows.code, out.ty.shape.row().unwrap_or(0));
    let scale = rows.group_of(v, row, number)?;
    let (first, mut result) = (number * group, Ok(()));
    c.repeat(first, c.smaller(first + group, width), LANES, |col| {
        let at = At { row, head: None, col: Col::Var(col) };
        result = rows.codes_by(v, at, &scale).map(|codes| store_code(rows, out, at, codes));
    });
    store_scale(rows, out, row, number, scale.scale());
    result
}

/// A vector of codes, with zeros beyond the row.
fn store_code<'c>(rows: &Rows<'_, 'c>, out: &Operand<'c>, at: At<'c>, codes: Vector<'c>) {
    let (c, width) = (rows.code, out.ty.shape.row().unwrap_or(0));
    let codes = c.choose(c.lanes_below(width - rows.column(at.col)), codes, c.zero());
    c.store(rows.address(out, at), to_bits(c, codes, out.ty.dtype), 1);
}

/// One of the scales after a row of codes.
fn store_scale<'c>(rows: &Rows<'_, 'c>, out: &Operand<'c>, row: Int<'c>, number: Int<'c>, scale: FloatValue<'c>) {
    let at = row * out.stride + number * 4 + rows.padded(out);
    rows.code.store(rows.code.at(out.ptr, at), scale, 4);
}

fn store_heads<'c>(
    rows: &Rows<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    count: usize,
    dim: usize,
) -> Result<(), Diagnostic> {
    let c = rows.code;
    c.repeat(0, count, 1, |head| {
        rows.prepare(v, row, Some(head))?;
        (0..dim).step_by(LANES).try_for_each(|col| {
            let lanes = rows.eval(v, At { row, head: Some(head), col: Col::Const(col) })?;
            let flat = head * dim + col;
            let p = rows.address(out, At { row, head: None, col: Col::Var(flat) });
            c.store_some(p, lanes, out.ty.dtype, dim - col);
            Ok(())
        })
    })?;
    pad(rows, out, row, count * dim);
    Ok(())
}

/// Zeros from column `from` to the end of the row's padding.
pub fn pad<'c>(rows: &Rows<'_, 'c>, out: &Operand<'c>, row: Int<'c>, from: usize) {
    for col in (from..rows.padded(out)).step_by(LANES) {
        let p = rows.address(out, At { row, head: None, col: Col::Const(col) });
        rows.code.store_some(p, rows.code.zero(), out.ty.dtype, rows.padded(out) - col);
    }
}

/// Keys and values of one row, all heads.
fn write_heads<'c>(rows: &Rows<'_, 'c>, cache: &Cache<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let c = rows.code;
    cache.when_written(c, row, |slot| c.repeat(0, cache.ty.heads, 1, |head| cache.write(rows, row, head, slot)))
}

/// The column of the largest element: each lane keeps the first of its own, then the lanes agree.
fn store_largest<'c>(rows: &Rows<'_, 'c>, x: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let c = rows.code;
    let n = rows.shape(x)?.shape.row().unwrap_or(0);
    rows.prepare(x, row, None)?;
    let best = |best: Argmax<'c>, col: Col<'c>| {
        let v = rows.eval(x, At { row, head: None, col })?;
        let first = rows.column(col);
        let v = match col {
            Col::Const(col) => c.choose(c.lanes_below(n - col), v, c.lit(f64::NEG_INFINITY)),
            Col::Var(_) => v,
        };
        Ok(best.or_vector(c, v, first))
    };
    let whole = n / LANES * LANES;
    let none = Argmax::none(c, c.int(0));
    let mut found = c.try_carry((0, whole, LANES), none, |col, before| best(before, Col::Var(col)))?;
    if whole < n {
        found = best(found, Col::Const(whole))?;
    }
    let (_, col) = found.of_lanes(c);
    c.store(c.at(out.ptr, row * (out.stride * out.ty.dtype.size())), col, 4);
    Ok(())
}

/// The sums of squares of two rows.
fn store_squares<'c>(rows: &Rows<'_, 'c>, v: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, operands) = (rows.code, rows.graph.operands(v.node));
    let [a, b] = [rows.squares(operands[0], row)?, rows.squares(operands[1], row)?].map(|sum| c.splat(sum));
    let both = c.choose(c.lanes_below(1), a, b);
    rows.store_padded(both, out, At { row, head: None, col: Col::Const(0) });
    pad(rows, out, row, LANES);
    Ok(())
}

/// Cosines, then sines.
fn store_table<'c>(rows: &Rows<'_, 'c>, v: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let c = rows.code;
    let Op::RopeTable { scale, growth, original, turn } = *rows.graph.op(v.node) else {
        unreachable!("a table was asked for")
    };
    let operands = rows.graph.operands(v.node);
    let as_wide = |i: Int<'c>| c.b.build_signed_int_to_float(i.v, c.cx.f64_type(), "").expect("an integer");
    let positions = positions(rows, &operands, |index| c.splat(as_wide(math::turned(c.load_index(index, row), turn))))?;
    let half = rows.shape(operands[2])?.shape.last().unwrap_or(0);
    let log_stretch = (growth != 0.0).then(|| {
        let length = as_wide(c.load_index(rows.index(operands[1]).expect("checked by the op's type"), row));
        math::log_stretch(c, c.splat(length), growth, original)
    });
    for col in (0..half).step_by(LANES) {
        let freqs = rows.eval(operands[2], At { row: c.int(0), head: None, col: Col::Const(col) })?;
        let position = of_axes(rows, &operands, &positions, Col::Const(col))?;
        let mut angle = c.fmul(math::to_wide(c, freqs), position);
        if let Some(log) = log_stretch {
            let exponents: Vec<_> = (col..col + LANES)
                .map(|i| c.cx.f64_type().const_float(-(2.0 * i as f64) / (2.0 * half as f64 - 2.0).max(1.0)))
                .collect();
            let exponents = inkwell::types::VectorType::const_vector(&exponents);
            angle = c.fmul(angle, math::exp_wide(c, c.fmul(exponents, log)));
        }
        let (cos, sin) = math::cos_sin(c, angle);
        let sign = if turn == Turn::Back { -scale } else { scale };
        for (values, first, scale) in [(cos, col, scale), (sin, half + col, sign)] {
            let lanes = c.fmul(math::to_narrow(c, values), c.lit(scale));
            let p = rows.address(out, At { row, head: None, col: Col::Const(first) });
            c.store_some(p, lanes, out.ty.dtype, half - col);
        }
    }
    pad(rows, out, row, 2 * half);
    Ok(())
}
