//! Family `recur`: a task is a token and a part of the channels, or a head. It goes through the
//! tokens of a sequence if the token is the sequence's first, and does nothing otherwise.
use atomc_artifact::manifest;
use atomc_ir::{DType, Diagnostic, Op};
use inkwell::values::FloatValue;

use super::{Host, LANES, signature};
use crate::code::{Any, Code, Int, Ptr, Vector};
use crate::math;
use crate::recurrent::{Conv, Delta, Rule, Run, State, node};
use crate::row::Operand;
use crate::{KernelSpec, Tasks};

/// Channels of a convolution that a task makes: enough to be worth the look at its token.
const CHANNELS: usize = 256;

pub fn emit<'c>(c: &Host<'c>, spec: &KernelSpec) -> Result<manifest::Kernel, Diagnostic> {
    let kernel = signature::kernel(c, spec)?;
    let node = node(&kernel)?;
    let state = State::of(&kernel)?;
    let (first, end) = signature::tasks(c);
    let tokens = signature::step(c).0;
    if let Op::Conv {} = kernel.rows.graph.op(node.node) {
        let conv = Conv::of(&kernel, node)?;
        let parts = conv.channels.div_ceil(CHANNELS);
        c.repeat(first, end, 1, |task| {
            let [token, part] = c.divide(task, c.int(parts));
            state.when_first(c, token, tokens, |run| conv_channels(c, &conv, run, part));
        });
        conv.finish()?;
        return Ok(manifest::Kernel::host(Tasks::Tokens { per: 1, times: parts }, 0));
    }
    let delta = Delta::of(&kernel, node)?;
    let heads = delta.sizes.heads;
    c.repeat(first, end, 1, |task| {
        let [token, head] = c.divide(task, c.int(heads));
        state.when_first(c, token, tokens, |run| Head::new(c, &delta, head).run(run));
    });
    let scratch = Head::scratch(&delta);
    delta.finish()?;
    Ok(manifest::Kernel::host(Tasks::Tokens { per: 1, times: heads }, scratch))
}

/// Runs `body` for each whole vector of columns from `first` to `end`, and for the columns after
/// the last whole vector of `width` if the part reaches there.
fn columns<'c>(c: &Code<'c>, first: Int<'c>, end: Int<'c>, width: usize, body: impl Fn(Int<'c>)) {
    let (whole, rest) = (width / LANES * LANES, width % LANES);
    c.repeat(first, c.smaller(end, whole), LANES, &body);
    if rest > 0 {
        c.when(c.less(whole, end), || {
            c.set_lanes(rest);
            body(c.int(whole));
            c.set_lanes(LANES);
        });
    }
}

/// The address of an element of a row.
fn element<'c>(c: &Code<'c>, x: &Operand<'c>, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
    c.at(x.ptr, (row * x.stride + column) * x.ty.dtype.size())
}

/// Zeros after the columns of a row.
fn pad<'c>(c: &Code<'c>, out: &Operand<'c>, row: Int<'c>) {
    let width = out.ty.shape.row().unwrap_or(0);
    let padded = c.arch.memory.padded(width);
    for column in width..padded {
        c.set_lanes(1);
        c.store_floats(element(c, out, row, c.int(column)), c.zero(), out.ty.dtype);
        c.set_lanes(LANES);
    }
}

/// A part of the channels of a convolution, a vector at a time along the tokens of a sequence.
fn conv_channels<'c>(c: &Code<'c>, conv: &Conv<'_, 'c>, run: Run<'c>, part: Int<'c>) {
    let &Conv { ref x, weight, out, channels, len, .. } = conv;
    let (first, dtype) = (part * CHANNELS, x.ty.dtype);
    columns(c, first, c.smaller(first + CHANNELS, channels), channels, |column| {
        let kept = |slot: Ptr<'c>, i: usize| c.at(slot, (column + i * channels) * dtype.size());
        let before = |i: usize| Any::from(c.pick(run.goes_on, c.load_floats(kept(run.slot, i), dtype), c.zero()));
        let keep = |slot: Ptr<'c>, seen: &[Any<'c>]| {
            for (i, v) in seen.iter().enumerate() {
                c.store_floats(kept(slot, i), v.into_vector_value(), dtype);
            }
        };
        let weights: Vec<Vector> =
            (0..len).map(|i| c.load_floats(element(c, weight, c.int(i), column), weight.ty.dtype)).collect();
        let before: Vec<Any> = (0..len - 1).map(before).collect();
        let seen = c.for_each((run.first, run.end, 1), &before, |token, before| {
            let mut seen = before.to_vec();
            seen.push(c.load_floats(element(c, x, token, column), dtype).into());
            let taps = seen.iter().zip(&weights);
            let sum = taps.fold(c.zero(), |sum, (x, &w)| c.fma(x.into_vector_value(), w, sum));
            let stored = conv.stored(c, sum, token, column);
            c.store_floats(element(c, out, token, column), stored, out.ty.dtype);
            let seen = seen.split_off(1);
            run.keep_behind(c, token, |slot| keep(slot, &seen));
            seen
        });
        run.keep_last(c, |slot| keep(slot, &seen));
    });
    c.when(c.equal(part, channels.div_ceil(CHANNELS) - 1), || {
        c.repeat(run.first, run.end, 1, |token| pad(c, out, token));
    });
}

/// One head of values. Its state is in scratch, in rows of whole vectors. The query and the key of
/// a token come before the state.
struct Head<'a, 'k, 'c> {
    c: &'a Code<'c>,
    delta: &'a Delta<'k, 'c>,
    head: Int<'c>,
    q: Ptr<'c>,
    k: Ptr<'c>,
    /// By how much each row of the state is kept, if these differ.
    kept: Ptr<'c>,
    state: Ptr<'c>,
}

impl<'a, 'k, 'c> Head<'a, 'k, 'c> {
    /// Bytes of scratch.
    fn scratch(delta: &Delta) -> usize {
        let keys = delta.sizes.key_dim.next_multiple_of(LANES);
        4 * (3 * keys + delta.sizes.key_dim * delta.sizes.value_dim.next_multiple_of(LANES))
    }

    fn new(c: &'a Code<'c>, delta: &'a Delta<'k, 'c>, head: Int<'c>) -> Head<'a, 'k, 'c> {
        let (keys, q) = (4 * delta.sizes.key_dim.next_multiple_of(LANES), signature::scratch(c));
        Head { c, delta, head, q, k: c.at(q, keys), kept: c.at(q, 2 * keys), state: c.at(q, 3 * keys) }
    }

    fn run(&self, run: Run<'c>) {
        let c = self.c;
        self.each_row(|row, column| {
            let kept = c.load_floats(self.in_slot(run.slot, row, column), DType::F32);
            self.set_state(row, column, c.pick(run.goes_on, kept, c.zero()).into_vector_value());
        });
        let keep = |slot: Ptr<'c>| {
            self.each_row(|row, column| {
                c.store_floats(self.in_slot(slot, row, column), self.state(row, column), DType::F32);
            });
        };
        c.repeat(run.first, run.end, 1, |token| {
            self.token(token);
            run.keep_behind(c, token, keep);
        });
        run.keep_last(c, keep);
    }

    fn token(&self, token: Int<'c>) {
        let (c, sizes, delta) = (self.c, self.delta.sizes, self.delta);
        let shared = self.head / (sizes.heads / sizes.key_heads);
        self.bring(&delta.q, token, shared, self.q, (sizes.key_dim as f64).powf(-0.5));
        self.bring(&delta.k, token, shared, self.k, 1.0);
        let skip = match delta.rule {
            Rule::Delta { .. } => None,
            Rule::Sum { skip } => Some(delta.weight_of(c, skip, self.head)),
        };
        let beta = delta.rate(c, token, self.head);
        c.set_lanes(1);
        let kept_of = |row: Int<'c>| math::exp(c, c.splat(delta.decay(c, token, self.head, row)));
        let kept = (!delta.by_row()).then(|| c.lane(kept_of(c.int(0)), 0));
        if delta.by_row() {
            c.repeat(0, sizes.key_dim, 1, |row| c.store(c.at(self.kept, row * 4), kept_of(row), 4));
        }
        c.set_lanes(LANES);
        self.each_column(|column| {
            let beta = c.splat(beta);
            let kept = |row: Int<'c>| kept.map_or_else(|| self.splat(self.kept, row), |kept| c.splat(kept));
            let at = self.head * sizes.value_dim + column;
            let v = c.load_floats(element(c, &delta.v, token, at), delta.v.ty.dtype);
            let found = || {
                let sum = c.carry((0, sizes.key_dim, 1), c.zero(), |row, sum| {
                    let state = self.state(row, column);
                    let state = if delta.by_row() { c.fmul(kept(row), state) } else { state };
                    c.fma(state, self.splat(self.k, row), sum)
                });
                if delta.by_row() { sum } else { c.fmul(kept(c.int(0)), sum) }
            };
            let d = c.fmul(beta, if skip.is_some() { v } else { c.fsub(v, found()) });
            let sum = c.carry((0, sizes.key_dim, 1), c.zero(), |row, sum| {
                let state = c.fma(self.splat(self.k, row), d, c.fmul(kept(row), self.state(row, column)));
                self.set_state(row, column, state);
                c.fma(state, self.splat(self.q, row), sum)
            });
            let (out, sum) = (delta.out, skip.map_or(sum, |skip| c.fma(c.splat(skip), v, sum)));
            c.store_floats(element(c, out, token, at), sum, out.ty.dtype);
        });
        c.when(c.equal(self.head, sizes.heads - 1), || pad(c, delta.out, token));
    }

    /// A query or a key as f32 into scratch; of length `by`, if they have one.
    fn bring(&self, x: &Operand<'c>, token: Int<'c>, head: Int<'c>, to: Ptr<'c>, by: f64) {
        let (c, dim) = (self.c, self.delta.sizes.key_dim);
        c.set_lanes(1);
        let at = |i: Int<'c>| c.load_floats(element(c, x, token, head * dim + i), x.ty.dtype);
        let scale = match self.delta.rule {
            Rule::Sum { .. } => c.lit(1.0),
            Rule::Delta { eps } => {
                let square = c.carry((0, dim, 1), c.zero(), |i, sum| {
                    let v = at(i);
                    c.fma(v, v, sum)
                });
                let square: FloatValue = c.lane(square, 0).into_float_value();
                c.fmul(c.splat(c.inverse_root(square, 1, eps)), c.lit(by))
            }
        };
        c.repeat(0, dim, 1, |i| c.store(c.at(to, i * 4), c.fmul(at(i), scale), 4));
        c.set_lanes(LANES);
    }

    /// A number of a query or key in all lanes.
    fn splat(&self, of: Ptr<'c>, row: Int<'c>) -> Vector<'c> {
        let c = self.c;
        c.splat(c.load(c.cx.f32_type(), c.at(of, row * 4), 4))
    }

    fn each_column(&self, body: impl Fn(Int<'c>)) {
        let (c, width) = (self.c, self.delta.sizes.value_dim);
        columns(c, c.int(0), c.int(width), width, body);
    }

    fn each_row(&self, body: impl Fn(Int<'c>, Int<'c>)) {
        let dim = self.delta.sizes.key_dim;
        self.each_column(|column| self.c.repeat(0, dim, 1, |row| body(row, column)));
    }

    fn in_slot(&self, slot: Ptr<'c>, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
        let (c, sizes) = (self.c, self.delta.sizes);
        let head = c.at(slot, self.head * (4 * sizes.key_dim * sizes.value_dim));
        c.at(head, (row * sizes.value_dim + column) * 4)
    }

    fn place(&self, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
        let stride = self.delta.sizes.value_dim.next_multiple_of(LANES);
        self.c.at(self.state, (row * stride + column) * 4)
    }

    fn state(&self, row: Int<'c>, column: Int<'c>) -> Vector<'c> {
        self.c.load_floats(self.place(row, column), DType::F32)
    }

    fn set_state(&self, row: Int<'c>, column: Int<'c>, v: Vector<'c>) {
        self.c.store_floats(self.place(row, column), v, DType::F32);
    }
}
