//! Family `rows`: a work-group makes one row of the step. A flat result is made by all threads
//! together; heads are shared out to teams of lanes, and a team makes one head at a time. A body of
//! nothing but heads has several tokens in a work-group.
mod argmax;
mod heads;
mod pool;
mod route;
mod streams;

use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::{DType, Diagnostic, Family, Graph, Layout, NodeId, Op, Turn, Type, Value, Values};
use inkwell::IntPredicate;
use inkwell::types::VectorType;
use inkwell::values::FloatValue;

use crate::KernelSpec;
use crate::code::{Int, Vector};
use crate::kernel::{heads, through_reshape};
use crate::math;
use crate::row::rope::{of_axes, positions};
use crate::row::{At, Col, Operand, Team, is_norm, unsupported};
use crate::schedule::Schedule;
use crate::simt::launch;
use crate::simt::launch::Kernel;
use crate::simt::launch::Setup;
use crate::simt::machine;
use crate::simt::machine::Gpu;

/// Most waves that make one row, and one that a norm must have seen: there waves also wait for each
/// other.
const WAVES: usize = 8;
const NORM_WAVES: usize = 4;

/// Most threads that quantise a row. They read it two or three times. On an H100 a step of 32
/// tokens of Qwen3-8B in fp8 blocks takes 6.06 ms with 512 and 7.17 ms with 128 or 256.
const QUANTISERS: usize = 512;

/// Most threads that search the largest element of a row. A step of one token has one work-group
/// for 150,000 logits. On an H100 256 threads take 24 us.
const SEEKERS: usize = 1024;

/// Vectors of a row that a thread has on the way, and elements of them that it computes at a time.
const TOGETHER: usize = 2;
const PIECE: usize = 4;

/// Elements of a vector: as many as fit every axis, at most 16 bytes of the short types.
pub fn vector(graph: &Graph) -> usize {
    let fits = |n: usize| graph.ids().all(|id| axes(graph, id.into()).iter().all(|axis| axis.is_multiple_of(n)));
    [8, 4, 2].into_iter().find(|&n| fits(n)).unwrap_or(1)
}

/// Whether a value is scales: of a weight, of a value that is quantised, of choices that are added
/// up, of heads, or of a part of a row that is normed. No row is read with it.
fn is_scales(graph: &Graph, v: Value) -> bool {
    let as_scales = |&(user, slot): &(NodeId, usize)| match graph.op(user) {
        Op::Linear { block, .. } | Op::PerHead { block, .. } => block.is_some() && slot >= 2,
        Op::Grouped { block, .. } => block.is_some() && slot >= 3,
        Op::Quantise { .. } | Op::Combine {} | Op::Weigh {} | Op::Collapse {} | Op::MixRows {} => slot == 1,
        Op::Join { .. } => slot % 2 == 1 || slot == 4,
        Op::Mix {} => slot == 2,
        Op::Sinkhorn { .. } => slot != 1,
        Op::PartNorm { .. } => slot == 2,
        _ => false,
    };
    let users = graph.users(v);
    !users.is_empty() && users.iter().all(as_scales)
}

/// The sizes that vectors of a value must divide.
fn axes(graph: &Graph, v: Value) -> Vec<usize> {
    if is_scales(graph, v) || is_squares(graph, v) || is_weights(graph, v) {
        return vec![];
    }
    let last = |v: Value| graph.ty(v).as_tensor().filter(|t| t.dtype.is_float()).and_then(|t| t.shape.last());
    let mut axes: Vec<usize> = last(v).into_iter().collect();
    match graph.op(v.node) {
        Op::Slice { start, .. } => axes.push(*start),
        Op::Parts { start, step, .. } => axes.extend([*start, *step]),
        Op::Rope {} | Op::RopePairs {} => axes.extend(last(graph.operands(v.node)[1]).map(|rot| rot / 2)),
        _ => (),
    }
    axes
}

fn is_argmax(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(v.node), Op::Argmax {})
}

fn is_squares(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(v.node), Op::Squares {})
}

/// Whether these are the weights of streams.
fn is_weights(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(v.node), Op::Sinkhorn { .. })
}

fn is_mix(graph: &Graph, v: Value) -> bool {
    matches!(graph.op(v.node), Op::Mix {})
}

/// Whether a norm is over the whole row, or its squares are.
fn is_row_norm(graph: &Graph, v: Value) -> bool {
    (is_norm(graph.op(v.node)) || is_squares(graph, v)) && graph.ty(v).as_tensor().is_some_and(|t| t.shape.rank() == 2)
}

/// Threads of a work-group: one for each vector of the widest result, or of the row that it is the
/// largest element of, or has the squares of, in whole waves.
pub fn threads(graph: &Graph, arch: GpuArch) -> usize {
    let row = |v: Value| graph.ty(v).as_tensor().and_then(|t| t.shape.row()).unwrap_or(0);
    let width = |&v: &Value| match graph.ty(v) {
        Type::Tensor(_) if is_argmax(graph, v) || is_squares(graph, v) => row(graph.operands(v.node)[0]),
        Type::Tensor(_) if is_weights(graph, v) => row(graph.operands(v.node)[1]),
        Type::Tensor(_) => row(v),
        Type::Cache(c) => c.heads * c.head_dim.max(c.value_dim),
        Type::Slots(_) | Type::Batch => 0,
    };
    if graph.outputs().iter().any(|&v| route::is_route(graph, v)) {
        return arch.simt.wave;
    }
    let widest = graph.outputs().iter().map(width).max().unwrap_or(0);
    let is_quantised = graph.ids().any(|id| graph.op(id).values() == Values::Coded);
    let seeks = graph.outputs().iter().any(|&v| is_argmax(graph, v));
    let mixes = graph.ids().any(|id| is_mix(graph, id.into()));
    let waves = match graph.ids().any(|id| is_row_norm(graph, id.into())) {
        _ if is_quantised => QUANTISERS / arch.simt.wave,
        _ if seeks || mixes => SEEKERS / arch.simt.wave,
        true => NORM_WAVES,
        false => WAVES,
    };
    widest.div_ceil(vector(graph)).next_power_of_two().clamp(arch.simt.wave, waves * arch.simt.wave)
}

pub const SCHEDULE: Schedule = Schedule {
    name: "rowwise",
    family: Family::Rows,
    invariant: true,
    suits: |_, _, _| Ok(()),
    open: None,
    emit: |setup, spec| launch::finish(emit(setup, spec)),
};

fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec) -> launch::Made<'c> {
    if let Some(run) = heads::run(spec.body, setup.gpu()?) {
        return heads::emit(setup, spec, run);
    }
    let threads = threads(spec.body, setup.gpu()?);
    let code = setup.open(spec, threads)?;
    let tasks = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let row = c.group();
        let exchange = machine::exchange(c, threads);
        launch::when_in_step(c, spec, &kernel, row, || {
            c.set_lanes(vector(spec.body));
            for (v, out) in &kernel.outputs {
                store(&kernel, *v, out, row, c.group_team(threads, exchange))?;
            }
            write_caches(&kernel, row, threads)
        })?;
        kernel.row_tasks(1, 1)
    };
    Ok((code, manifest::Kernel::simt(tasks, threads)))
}

/// Stores a result of a row, by all threads.
fn store<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let rows = &kernel.rows;
    match rows.graph.op(v.node) {
        Op::RopeTable { .. } => store_table(kernel, v, out, row, team.size),
        Op::Growth { .. } => store_growth(kernel, v, out, row),
        Op::Route { .. } | Op::RouteGiven { .. } | Op::Sinkhorn { .. } if !is_first(kernel, v) => Ok(()),
        Op::Route { .. } => route::store(kernel, v, row),
        Op::RouteGiven { .. } => route::store_given(kernel, v, row),
        Op::Sinkhorn { .. } => streams::store(kernel, v, row, team),
        Op::Pool { .. } => pool::store(kernel, v, out, row, team.size),
        Op::Argmax {} => argmax::store(kernel, rows.graph.operands(v.node)[0], out, row, team),
        Op::Squares {} => store_squares(kernel, v, out, row, team),
        _ if rows.scaled_group(v).is_some() => store_codes(kernel, v, out, row, team),
        _ => {
            let inner = through_reshape(rows, v)?;
            match heads(&rows.shape(inner)?.shape) {
                Some(of) if is_mix(rows.graph, inner) => {
                    store_streams(kernel, inner, out, row, (of.0, of.1, team.size))
                }
                Some(of) => store_heads(kernel, inner, out, row, (of.0, of.1, team.size)),
                None => store_flat(kernel, v, out, row, team),
            }
        }
    }
}

/// Whether a result is the first one of its node that the kernel stores: all are made with it.
fn is_first(kernel: &Kernel, v: Value) -> bool {
    kernel.outputs.iter().find(|(other, _)| other.node == v.node).is_some_and(|(other, _)| *other == v)
}

/// The whole row as codes: padding of zeros, then the scales.
fn store_codes<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (width, padded) = (out.ty.shape.row().unwrap_or(0), rows.padded(out));
    let group = rows.scaled_group(v).unwrap_or(width);
    let store_scale = |number: Int<'c>, scale: FloatValue<'c>| store_scale(c, out, (row, number), scale);
    rows.set_team(team);
    rows.prepare(v, row, None)?;
    if group < width && shares_groups(c, group) {
        quantise_groups(kernel, (v, group), out, row, team)?;
        rows.forget();
        return Ok(());
    }
    if matches!(out.ty.layout, Layout::Mx(_)) {
        return Err(unsupported(format!("scales of MX for every {group} columns in vectors of {}", c.lanes())));
    }
    rows.each_column(padded, |col| {
        let at = At { row, head: None, col: Col::Var(col) };
        let bits = match group >= width {
            true => rows.code_bits(v, at, None)?,
            false => {
                // Every thread finds the scale of its vector's group.
                let number = c.smaller(col / group, width.div_ceil(group) - 1);
                let found = rows.group_of(v, row, number)?;
                let is_first = c.compare(IntPredicate::EQ, col, number * group);
                c.when(is_first, || store_scale(number, found.scale()));
                rows.code_bits(v, at, Some(&found))?
            }
        };
        let zeros = bits.get_type().const_zero();
        let bits = if width == padded { bits.into() } else { c.pick(c.less(col, width), bits, zeros) };
        c.store(rows.address(out, at), bits, c.lanes() as u32);
        Ok(())
    })?;
    if group >= width {
        let scale = rows.scale(v, row)?;
        c.when(c.equal(team.index, 0), || store_scale(c.int(0), scale));
    }
    rows.forget();
    Ok(())
}

/// The scale of a group of a row's columns, after the row's codes.
fn store_scale<'c>(c: &Gpu<'c>, out: &Operand<'c>, (row, number): (Int<'c>, Int<'c>), scale: FloatValue<'c>) {
    let Some(scales) = c.arch.memory.row_scales(&out.ty) else { unreachable!("rows of codes have scales") };
    let first = row * out.ty.dtype.bytes(out.stride) + scales.first;
    match scales.dtype {
        DType::F32 => c.store(c.at(out.ptr, first + number * 4), scale, 4),
        _ => {
            // A power of two is stored as its exponent. The exponent bits of NaN are NaN in e8m0.
            let bits = c.as_int(c.bitcast(scale, c.cx.i32_type())).shift_right(23, false);
            let byte = c.b.build_int_truncate(bits.v, c.cx.i8_type(), "").expect("a byte of a word");
            c.store(c.at(out.ptr, first + number), byte, 1);
        }
    }
}

/// Whether neighbouring lanes of one wave have the vectors of a group of columns.
fn shares_groups(c: &Gpu, group: usize) -> bool {
    let vectors = group / c.lanes();
    group.is_multiple_of(c.lanes()) && vectors.is_power_of_two() && vectors <= c.simt.wave
}

/// A row as quantised groups: each thread has one vector, and the lanes of a group agree on its
/// scale. All lanes of a wave call this the same number of times.
fn quantise_groups<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    of: (Value, usize),
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let c = kernel.code;
    c.repeat(0, kernel.rows.padded(out), team.size * c.lanes(), |first| {
        quantise_vector(kernel, of, out, row, first + team.index * c.lanes())
    })
}

/// The vector of a row from a column on, if the row reaches there.
fn quantise_vector<'c>(
    kernel: &Kernel<'_, 'c>,
    (v, group): (Value, usize),
    out: &Operand<'c>,
    row: Int<'c>,
    col: Int<'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (width, padded) = (out.ty.shape.row().unwrap_or(0), rows.padded(out));
    let at = |col: Int<'c>| At { row, head: None, col: Col::Var(col) };
    let numbers = rows.eval(rows.graph.operands(v.node)[0], at(c.smaller(col, padded - c.lanes())))?;
    let numbers = c.choose(c.lanes_below(c.int(width) - col), numbers, c.zero());
    store_coded(kernel, (v, group), out, (row, col), numbers)
}

/// Stores a vector of a quantised row, if the row reaches there, and the scale of its group of
/// columns if it is the first vector of the group. All lanes of the group call this together.
pub fn store_coded<'c>(
    kernel: &Kernel<'_, 'c>,
    (v, group): (Value, usize),
    out: &Operand<'c>,
    (row, col): (Int<'c>, Int<'c>),
    numbers: Vector<'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (width, padded) = (out.ty.shape.row().unwrap_or(0), rows.padded(out));
    let at = |col: Int<'c>| At { row, head: None, col: Col::Var(col) };
    let found = rows.scale_of_size(v, c.largest_of(rows.size_of(numbers), group / c.lanes()))?;
    let bits = rows.bits_by(numbers, &found);
    let bytes = out.ty.dtype.bytes(c.lanes()) as u32;
    c.when(c.less(col, padded), || c.store(rows.address(out, at(col)), bits, bytes));
    // Matrix instructions read the scales of the padding too.
    let end = if matches!(out.ty.layout, Layout::Mx(_)) { padded } else { width };
    let begins = c.equal(col % group, 0) & c.less(col, end);
    c.when(begins, || store_scale(c, out, (row, col / group), found.scale()));
    Ok(())
}

/// The sums of squares of two rows.
fn store_squares<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    rows.set_team(team);
    let operands = rows.graph.operands(v.node);
    let [a, b] = [rows.squares(operands[0], row)?, rows.squares(operands[1], row)?];
    let lanes = c.lanes();
    c.set_lanes(1);
    c.repeat(team.index, rows.padded(out), team.size, |col| {
        let behind = c.pick(c.equal(col, 1), b, c.number(0.0));
        let sum = c.pick(c.equal(col, 0), a, behind).into_float_value();
        c.store_floats(rows.address(out, At { row, head: None, col: Col::Var(col) }), c.splat(sum), out.ty.dtype);
    });
    c.set_lanes(lanes);
    Ok(())
}

/// The whole row, padding as zeros.
fn store_flat<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    // The scale of a group is found in whole vectors.
    let whole = rows.graph.ids().any(|id| rows.graph.op(id).values() == Values::Coded);
    let (lanes, pieces) = (c.lanes(), if whole { 1 } else { c.lanes().div_ceil(PIECE) });
    c.set_lanes(lanes / pieces);
    rows.set_pieces(pieces);
    rows.set_team(team);
    rows.prepare(v, row, None)?;
    let width = out.ty.shape.row().unwrap_or(0);
    rows.each_columns(rows.padded(out), TOGETHER, |cols| {
        let at = |&col: &Int<'c>| At { row, head: None, col: Col::Var(col) };
        rows.load_ahead(v, &cols.iter().map(at).collect::<Vec<_>>())?;
        for col in cols {
            let bits = rows.each_piece(|| Ok(c.narrow(rows.eval(v, at(col))?, out.ty.dtype)))?;
            let bits = c.join(&bits);
            let inside = c.less(*col, width);
            let bits = if width == rows.padded(out) {
                bits.into()
            } else {
                c.pick(inside, bits, bits.get_type().const_zero())
            };
            c.store(rows.address(out, at(col)), bits, 16.min((lanes * out.ty.dtype.size()) as u32));
        }
        Ok(())
    })?;
    rows.set_pieces(1);
    c.set_lanes(lanes);
    Ok(())
}

/// Teams that are as wide as a head of `dim` elements, and the number of teams among the threads.
pub fn teams<'a, 'c>(c: &'a Gpu<'c>, dim: usize, threads: usize) -> (Team<'a, 'c>, Int<'c>, usize) {
    let size = dim.div_ceil(c.lanes()).next_power_of_two().min(c.simt.wave);
    let thread = c.thread();
    (c.lanes_team(thread % size, size), thread / size, threads / size)
}

/// Runs `body` for each head, by the team that it falls to.
pub fn each_head<'c>(
    c: &Gpu<'c>,
    count: usize,
    (first, teams): (Int<'c>, usize),
    body: impl FnOnce(Int<'c>) -> Result<(), Diagnostic>,
) -> Result<(), Diagnostic> {
    c.repeat(first, count, teams, body)
}

fn store_heads<'c>(
    kernel: &Kernel<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    (count, dim, threads): (usize, usize, usize),
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (team, first, teams) = teams(c, dim, threads);
    rows.set_team(team);
    each_head(c, count, (first, teams), |head| {
        rows.forget();
        rows.prepare(v, row, Some(head))?;
        rows.each_column(dim, |col| {
            let lanes = rows.eval(v, At { row, head: Some(head), col: Col::Var(col) })?;
            let flat = head * dim + col;
            c.store_floats(rows.address(out, At { row, head: None, col: Col::Var(flat) }), lanes, out.ty.dtype);
            Ok(())
        })
    })?;
    rows.forget();
    pad(kernel, out, row, count * dim);
    Ok(())
}

/// Streams, which are far wider than a wave: all threads make the vectors of all streams, some of
/// them together so that their loads are.
fn store_streams<'c>(
    kernel: &Kernel<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    (count, dim, threads): (usize, usize, usize),
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (vectors, all) = (dim / c.lanes(), count * (dim / c.lanes()));
    let some = |first: Int<'c>, together: usize| {
        let place = |i: usize| {
            let vector = first + i * threads;
            At { row, head: Some(vector / vectors), col: Col::Var(vector % vectors * c.lanes()) }
        };
        let made = (0..together).map(|i| rows.eval(v, place(i))).collect::<Result<Vec<_>, _>>()?;
        for (i, lanes) in made.into_iter().enumerate() {
            let col = Col::Var((first + i * threads) * c.lanes());
            c.store_floats(rows.address(out, At { row, head: None, col }), lanes, out.ty.dtype);
        }
        Ok(())
    };
    let whole = all / (threads * TOGETHER) * (threads * TOGETHER);
    c.repeat(c.thread(), whole, threads * TOGETHER, |first| some(first, TOGETHER))?;
    c.repeat(c.thread() + whole, all, threads, |first| some(first, 1))?;
    pad(kernel, out, row, count * dim);
    Ok(())
}

/// Zeros from column `from` to the end of the row's padding, which is less than a wave away.
pub fn pad<'c>(kernel: &Kernel<'_, 'c>, out: &Operand<'c>, row: Int<'c>, from: usize) {
    let (c, rows) = (kernel.code, &kernel.rows);
    let (lanes, padded) = (c.lanes(), rows.padded(out));
    if from < padded {
        let col = c.thread() * lanes + from;
        c.when(c.less(col, padded), || {
            let at = At { row, head: None, col: Col::Var(col) };
            c.store_floats(rows.address(out, at), c.zero(), out.ty.dtype);
        });
    }
}

/// Keys and values of one row, all heads.
fn write_caches<'c>(kernel: &Kernel<'_, 'c>, row: Int<'c>, threads: usize) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    for cache in kernel.caches.iter().filter(|cache| cache.written().is_some()) {
        let (team, first, teams) = teams(c, cache.width(), threads);
        rows.set_team(team);
        cache.when_written(c, row, |slot| {
            each_head(c, cache.ty.heads, (first, teams), |head| {
                rows.forget();
                cache.prepare(rows, row, head)?;
                rows.each_column(cache.width(), |col| cache.write_part(rows, row, head, slot, Col::Var(col)))
            })
        })?;
        rows.forget();
    }
    Ok(())
}

/// What queries at the row's position are multiplied with, by the first thread.
fn store_growth<'c>(kernel: &Kernel<'_, 'c>, v: Value, out: &Operand<'c>, row: Int<'c>) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Op::Growth { beta, length, shift } = *rows.graph.op(v.node) else { unreachable!("a factor was asked for") };
    let lanes = c.lanes();
    c.set_lanes(1);
    let position = c.load_index(rows.index(rows.graph.operands(v.node)[0])?, row);
    let factor = math::growth(c, position, beta, length, shift);
    c.when(c.less(c.thread(), 1), || {
        c.store_floats(rows.address(out, At { row, head: None, col: Col::Const(0) }), factor, out.ty.dtype);
    });
    pad(kernel, out, row, 1);
    c.set_lanes(lanes);
    Ok(())
}

/// Cosines, then sines, an angle a thread.
fn store_table<'c>(
    kernel: &Kernel<'_, 'c>,
    v: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    threads: usize,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Op::RopeTable { scale, growth, original, turn } = *rows.graph.op(v.node) else {
        unreachable!("a table was asked for")
    };
    let operands = rows.graph.operands(v.node);
    let lanes = c.lanes();
    c.set_lanes(1);
    let f64 = c.cx.f64_type();
    let wide = |i: Int<'c>| c.splat(c.b.build_signed_int_to_float(i.v, f64, "").expect("an integer"));
    let splat_wide = |v: f64| VectorType::const_vector(&[f64.const_float(v)]);
    let positions = positions(rows, &operands, |index| wide(math::turned(c.load_index(index, row), turn)))?;
    let half = rows.shape(operands[2])?.shape.last().unwrap_or(0);
    let length = wide(c.load_index(rows.index(operands[1])?, row));
    let log = (growth != 0.0).then(|| math::log_stretch(c, length, growth, original));
    c.repeat(c.thread(), half, threads, |col| {
        let freq = rows.eval(operands[2], At { row: c.int(0), head: None, col: Col::Var(col) })?;
        let position = of_axes(rows, &operands, &positions, Col::Var(col))?;
        let mut angle = c.fmul(math::to_wide(c, freq), position);
        if let Some(log) = log {
            let exponent = c.fmul(wide(col), splat_wide(-2.0 / (2.0 * half as f64 - 2.0).max(1.0)));
            angle = c.fmul(angle, math::exp_wide(c, c.fmul(exponent, log)));
        }
        let (cos, sin) = math::cos_sin(c, angle);
        let sign = if turn == Turn::Back { -scale } else { scale };
        for (values, col, scale) in [(cos, col, scale), (sin, col + half, sign)] {
            let lanes = c.fmul(math::to_narrow(c, values), c.lit(scale));
            c.store_floats(rows.address(out, At { row, head: None, col: Col::Var(col) }), lanes, out.ty.dtype);
        }
        Ok::<_, Diagnostic>(())
    })?;
    pad(kernel, out, row, 2 * half);
    c.set_lanes(lanes);
    Ok(())
}
