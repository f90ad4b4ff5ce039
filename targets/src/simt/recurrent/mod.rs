//! Family `recur`: layers that go through the tokens of each sequence with a state. A work-group
//! has a part of one sequence's state and all of its tokens, so none waits for another, and nobody
//! sees a state half written. A task is a token and a part; it does nothing unless the token is its
//! sequence's first.
mod chunks;
mod conv;
mod delta;

use atomc_artifact::manifest;
use atomc_ir::{Diagnostic, Family, Op};

use crate::code::{Int, Ptr};
use crate::recurrent::{Run, State};
use crate::row::Operand;
use crate::schedule::{Schedule, WhyNot};
use crate::simt::launch;
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

pub const CONV: Schedule = Schedule {
    name: "short_conv",
    family: Family::Recur,
    invariant: true,
    suits: |spec, _, _| is_about(spec, |op| matches!(op, Op::Conv {})),
    open: None,
    emit: |setup, spec| launch::finish(conv::emit(setup, spec)),
};

pub const DELTA: Schedule = Schedule {
    name: "delta_rule",
    family: Family::Recur,
    invariant: true,
    suits: |spec, _, _| is_about(spec, |op| matches!(op, Op::DeltaRule { .. })),
    open: None,
    emit: |setup, spec| launch::finish(delta::emit(setup, spec)),
};

pub const CHUNKS: Schedule = Schedule {
    name: "delta_chunks",
    family: Family::Recur,
    // Chunks begin where a step does.
    invariant: false,
    suits: |spec, arch, _| {
        is_about(spec, |op| matches!(op, Op::DeltaRule { .. }))?;
        chunks::suits(spec, launch::gpu(arch)?)
    },
    open: None,
    emit: |setup, spec| launch::finish(chunks::emit(setup, spec)),
};

fn is_about(spec: &KernelSpec, is: impl Fn(&Op) -> bool) -> Result<(), WhyNot> {
    WhyNot::unless(spec.body.ids().any(|id| is(spec.body.op(id))), || "for another op".into())
}

/// `body` in work-groups whose token begins a sequence, with the number of the part; and what a
/// launch needs to know.
fn each_part<'c>(
    c: &Gpu<'c>,
    spec: &KernelSpec,
    kernel: &Kernel<'_, 'c>,
    parts: usize,
    threads: usize,
    body: impl FnOnce(Run<'c>, Int<'c>),
) -> Result<manifest::Kernel, Diagnostic> {
    let state = State::of(kernel)?;
    let [token, part] = c.divide(c.group(), c.int(parts));
    let tokens = launch::step_size(c, spec, false);
    c.when(c.less(token, tokens), || state.when_first(c, token, tokens, |run| body(run, part)));
    Ok(manifest::Kernel::simt(Tasks::Tokens { per: 1, times: parts }, threads))
}

/// Elements of a vector that fit rows of so many, or that begin there: 16 bytes of the short types
/// at most.
fn vector(width: usize, most: usize) -> usize {
    1 << width.trailing_zeros().min(most.trailing_zeros())
}

/// Where an element of a row begins.
fn element<'c>(c: &Gpu<'c>, x: &Operand<'c>, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
    c.at(x.ptr, (row * x.stride + column) * x.ty.dtype.size())
}

/// Zeros behind the columns of a sequence's rows, by a part of the threads: of which this is the
/// `first`, and so many there are.
fn pad<'c>(c: &Gpu<'c>, out: &Operand<'c>, run: Run<'c>, first: Int<'c>, threads: usize) {
    let width = out.ty.shape.row().unwrap_or(0);
    let padded = c.arch.memory.padded(width);
    if width == padded {
        return;
    }
    let lanes = c.lanes();
    c.set_lanes(1);
    c.repeat(run.first, run.end, 1, |token| {
        c.repeat(first + width, padded, threads, |column| {
            c.store_floats(element(c, out, token, column), c.zero(), out.ty.dtype);
        });
    });
    c.set_lanes(lanes);
}
