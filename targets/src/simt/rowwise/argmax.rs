//! The column of a row's largest element: each thread of the work-group looks at every n-th vector,
//! then lanes and waves agree on the first of what they found.
use atomc_ir::{Diagnostic, Op, Value};
use inkwell::values::FloatValue;

use crate::argmax::{Argmax, larger};
use crate::code::{Int, Vector};
use crate::row::{At, Col, Operand, Rows, Team};
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;

/// Vectors of a thread that are loaded before it looks at the first of them.
const AHEAD: usize = 4;

/// Bytes of the vectors in which a row is read.
const LOAD: usize = 16;

/// An element with its column.
type Found<'c> = (FloatValue<'c>, Int<'c>);

/// Stores the column of the largest element of a row of `x`.
pub fn store<'a, 'c>(
    kernel: &Kernel<'a, 'c>,
    x: Value,
    out: &Operand<'c>,
    row: Int<'c>,
    team: Team<'a, 'c>,
) -> Result<(), Diagnostic> {
    let (c, rows) = (kernel.code, &kernel.rows);
    let Team { index, size, .. } = team;
    let lanes = c.lanes();
    if let Op::Input { .. } = rows.graph.op(x.node) {
        // Rows in memory are padded to whole vectors.
        c.set_lanes(LOAD / rows.shape(x)?.dtype.size());
    }
    rows.set_team(team);
    rows.prepare(x, row, None)?;
    let found = Share { rows, x, row, n: rows.shape(x)?.shape.row().unwrap_or(0), threads: size }.largest(index)?;
    let found = of_wave(c, found.of_lanes(c));
    let place = c.at(out.ptr, row * (out.stride * out.ty.dtype.size()));
    of_group(c, found, index, size, |col| c.store(place, col, 4));
    rows.forget();
    c.set_lanes(lanes);
    Ok(())
}

/// A row that several threads share.
struct Share<'a, 'g, 'c> {
    rows: &'a Rows<'g, 'c>,
    x: Value,
    row: Int<'c>,
    /// Elements of the row.
    n: usize,
    threads: usize,
}

impl<'c> Share<'_, '_, 'c> {
    /// The largest elements of one thread's lanes.
    fn largest(&self, thread: Int<'c>) -> Result<Argmax<'c>, Diagnostic> {
        let c = self.rows.code;
        let (first, turn) = (thread * c.lanes(), self.threads * c.lanes());
        let stride = AHEAD * turn;
        let whole = self.n / stride * stride;
        let none = Argmax::none(c, first);
        let seen = c.try_carry((0, whole, stride), none, |base, before| {
            let columns: [_; AHEAD] = std::array::from_fn(|i| base + first + i * turn);
            let vectors = columns.iter().map(|&col| self.vector(col)).collect::<Result<Vec<_>, Diagnostic>>()?;
            Ok::<_, Diagnostic>(columns.iter().zip(vectors).fold(before, |best, (&col, v)| best.or_vector(c, v, col)))
        })?;
        (whole..self.n).step_by(turn).try_fold(seen, |best, from| {
            let col = first + from;
            let v = if from + turn <= self.n { self.vector(col)? } else { self.last_vector(col)? };
            Ok(best.or_vector(c, v, col))
        })
    }

    fn vector(&self, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        self.rows.eval(self.x, At { row: self.row, head: None, col: Col::Var(col) })
    }

    /// A vector that may end, or begin, beyond the row: no element there is the largest.
    fn last_vector(&self, col: Int<'c>) -> Result<Vector<'c>, Diagnostic> {
        let (c, n) = (self.rows.code, self.rows.code.int(self.n));
        let v = self.vector(c.pick_int(c.less(col, n), col, 0))?;
        Ok(c.choose(c.lanes_below(n - col), v, c.lit(f64::NEG_INFINITY)))
    }
}

/// The largest element of a wave's lanes: all of them get the result.
fn of_wave<'c>(c: &Gpu<'c>, found: Found<'c>) -> Found<'c> {
    let distances = std::iter::successors(Some(1), |d| Some(d * 2)).take_while(|&d| d < c.simt.wave);
    distances.fold(found, |(v, col), distance| {
        let float = |bits: Int<'c>| c.bitcast(bits, c.cx.f32_type()).into_float_value();
        let wave = c.simt.wave;
        let (a, b) = c.pair(c.as_int(c.bitcast(v, c.cx.i32_type())), distance, wave);
        let (a_col, b_col) = c.pair(col, distance, wave);
        larger(c, (float(a), a_col), (float(b), b_col))
    })
}

/// Runs `body` with the column that the waves of a work-group found, in its first thread.
fn of_group<'c>(c: &Gpu<'c>, (v, col): Found<'c>, thread: Int<'c>, threads: usize, body: impl FnOnce(Int<'c>)) {
    let waves = threads / c.simt.wave;
    // An element and a column for each wave.
    let exchange = c.local(waves * 8);
    let place = |wave: Int<'c>| {
        let value = c.at(exchange, wave * 8);
        (value, c.at(value, 4))
    };
    let (value, column) = place(c.wave_index());
    c.when(c.equal(c.lane_index(), 0), || {
        c.store(value, v, 4);
        c.store(column, col, 4);
    });
    c.barrier();
    c.when(c.equal(thread, 0), || {
        let of = |wave: usize| {
            let (value, column) = place(c.int(wave));
            (c.load(c.cx.f32_type(), value, 4).into_float_value(), c.as_int(c.load(c.cx.i32_type(), column, 4)))
        };
        body((1..waves).map(of).fold(of(0), |a, b| larger(c, a, b)).1);
    });
}
