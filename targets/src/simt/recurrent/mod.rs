//! Family `recur`: layers that go through the tokens of each sequence with a state. A work-group
//! has a part of a sequence's state and all of its tokens that need it, so none waits for another,
//! and none sees a state half written. A task is a part and a token, or some of them, and does
//! nothing unless a sequence begins there ([`each_part`], [`conv`]); or it is a part, and goes
//! through the sequences of the step ([`each_sequence`]).
mod chunks;
mod conv;
mod delta;
mod inverse;
mod products;
mod warpgroup;

use atomc_artifact::manifest;
use atomc_ir::{Diagnostic, Family, MOST_KEPT, Op};
use inkwell::IntPredicate;

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
    suits: |spec, _, _| is_about(spec, |op| matches!(op, Op::DeltaRule { .. } | Op::Scan {})),
    open: None,
    emit: |setup, spec| launch::finish(delta::emit(setup, spec)),
};

pub const CHUNKS: Schedule = Schedule {
    name: "delta_chunks",
    family: Family::Recur,
    // Chunks begin where a step does.
    invariant: false,
    suits: |spec, arch, _| {
        is_about(spec, |op| matches!(op, Op::DeltaRule { .. } | Op::Scan {}))?;
        chunks::suits(spec, launch::gpu(arch)?)
    },
    open: None,
    emit: |setup, spec| launch::finish(chunks::emit(setup, spec)),
};

pub const WARPGROUP: Schedule = Schedule {
    name: "delta_warpgroup",
    suits: |spec, arch, _| {
        is_about(spec, |op| matches!(op, Op::DeltaRule { .. }))?;
        warpgroup::suits(spec, launch::gpu(arch)?)
    },
    emit: |setup, spec| launch::finish(warpgroup::emit(setup, spec)),
    ..CHUNKS
};

fn is_about(spec: &KernelSpec, is: impl Fn(&Op) -> bool) -> Result<(), WhyNot> {
    WhyNot::unless(spec.body.ids().any(|id| is(spec.body.op(id))), || "for another op".into())
}

/// Tokens of a step from which some sequence may have many: steps of fewer decode, or are short.
const MANY_TOKENS: usize = 128;
/// Refuses steps in which no sequence may have many tokens.
fn has_long_sequences(spec: &KernelSpec) -> Result<(), WhyNot> {
    WhyNot::unless(spec.each.is_none(), || "for steps of a few tokens of each sequence".into())?;
    WhyNot::unless(spec.tokens >= MANY_TOKENS, || format!("steps of {} tokens", spec.tokens))
}

/// Tokens of a sequence in the step from which a chunk costs less than going token by token: a
/// product has 16 rows.
const FEW_TOKENS: usize = 16;
/// Chunks keep the state behind their last token alone.
const _: () = assert!(MOST_KEPT < FEW_TOKENS);
/// Most work-groups of a part, which share out the sequences of a step.
const SHARING: usize = 8;

/// Runs `body` in work-groups with a token that begins a sequence, with the number of the part.
/// Returns the facts that a launch needs.
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

/// A sequence that falls to a work-group: the number of the part, and the number of earlier
/// sequences that fell to it.
struct Share<'c> {
    part: Int<'c>,
    number: Int<'c>,
}

/// `body` in work-groups that go through the sequences of a step, where sequences have many tokens:
/// with a work-group for each token, those without anything to do would take most of the time, as
/// few of them fit a unit.
fn each_sequence<'c>(
    c: &Gpu<'c>,
    spec: &KernelSpec,
    kernel: &Kernel<'_, 'c>,
    parts: usize,
    threads: usize,
    body: impl FnOnce(Run<'c>, Share<'c>),
) -> Result<manifest::Kernel, Diagnostic> {
    let state = State::of(kernel)?;
    let sharing = (c.simt.chip.units / parts).clamp(1, SHARING);
    let [own, part] = c.divide(c.group(), c.int(parts));
    let tokens = launch::step_size(c, spec, false);
    let last = c.larger(tokens, 1) - 1;
    let sequence = |token| state.sequence(c, token);
    // Numbers of sequences without tokens are left out.
    let most = sequence(last) - sequence(c.int(0)) + 1;
    c.for_each((0, most, 1), &[c.int(0).into()], |number, token| {
        let token = c.as_int(token[0]);
        let next = sequence(c.smaller(token + 1, last));
        let is_own = c.compare(IntPredicate::EQ, next, sequence(c.smaller(token, last)));
        let goes_on = is_own & c.less(token + 1, tokens);
        let end = state.end(c, token, tokens, c.pick_int(goes_on, c.bits(tokens), 0));
        let is_own = c.compare(IntPredicate::EQ, number % sharing, own) & c.less(token, tokens);
        c.when(is_own, || body(state.run(c, token, end), Share { part, number: number / sharing }));
        vec![end.into()]
    });
    Ok(manifest::Kernel::simt(Tasks::Fixed(parts * sharing), threads))
}

/// Elements of a vector that divides rows of `width` elements, or that begins there: 16 bytes of
/// the short types at most.
fn vector(width: usize, most: usize) -> usize {
    1 << width.trailing_zeros().min(most.trailing_zeros())
}

/// The address of an element of a row.
fn element<'c>(c: &Gpu<'c>, x: &Operand<'c>, row: Int<'c>, column: Int<'c>) -> Ptr<'c> {
    c.at(x.ptr, (row * x.stride + column) * x.ty.dtype.size())
}

/// Zeros after the columns of some tokens' rows, by `threads` threads; this one is number `first`.
fn pad<'c>(c: &Gpu<'c>, out: &Operand<'c>, tokens: [Int<'c>; 2], first: Int<'c>, threads: usize) {
    let width = out.ty.shape.row().unwrap_or(0);
    let padded = c.arch.memory.padded(width);
    if width == padded {
        return;
    }
    let lanes = c.lanes();
    c.set_lanes(1);
    c.repeat(tokens[0], tokens[1], 1, |token| {
        c.repeat(first + width, padded, threads, |column| {
            c.store_floats(element(c, out, token, column), c.zero(), out.ty.dtype);
        });
    });
    c.set_lanes(lanes);
}
