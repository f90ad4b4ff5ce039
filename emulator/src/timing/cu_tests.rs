//! Made-up streams with clocks that are counted by hand.
use super::*;

const LATENCY: u64 = 500;

fn op(unit: Unit, clocks: u16) -> Op {
    Op { unit, clocks, ..Op::default() }
}

/// A matrix instruction of four passes: row of the factors, row of the sum.
fn matrix(factor: u16, sum: u16) -> Op {
    Op { reads: [factor].into(), adds: [sum].into(), writes: [sum].into(), ..op(Unit::Matrix, 16) }
}

fn wait(wait: Wait) -> Op {
    Op { wait, ..op(Unit::Wait, 4) }
}

/// All waves run the same instructions.
fn same(waves: usize, stream: &[(Op, Event)]) -> Trace {
    let events = stream.iter().enumerate().map(|(at, (_, event))| Event { op: at as u32, ..*event }).collect();
    Trace { ops: stream.iter().map(|(op, _)| op.clone()).collect(), waves: vec![events; waves] }
}

fn plain(ops: &[Op]) -> Vec<(Op, Event)> {
    ops.iter().map(|op| (op.clone(), Event::default())).collect()
}

fn run(trace: &Trace) -> u64 {
    clocks(trace, 1, LATENCY, &CORE)
}

#[test]
fn matrix_instructions_follow_each_other() {
    let ops: Vec<Op> = (0..10).map(|k| matrix(100, k)).collect();
    assert_eq!(run(&same(1, &plain(&ops))), 10 * 16);
    // Each wave has a SIMD of its own; the fifth shares one.
    assert_eq!(run(&same(4, &plain(&ops))), 10 * 16);
    assert_eq!(run(&same(5, &plain(&ops))), 2 * 10 * 16);
    assert_eq!(clocks(&same(4, &plain(&ops)), 2, LATENCY, &CORE), 2 * 10 * 16);
}

#[test]
fn sums_are_passed_on_but_factors_wait() {
    let sums = plain(&[matrix(100, 0), matrix(100, 0), matrix(100, 0)]);
    assert_eq!(run(&same(1, &sums)), 3 * 16);
    let factors = plain(&[matrix(100, 0), matrix(0, 1), matrix(1, 2)]);
    assert_eq!(run(&same(1, &factors)), 3 * 16 + 2 * CORE.matrix_result);
}

#[test]
fn other_instructions_hide_behind_passes() {
    let hidden = [matrix(100, 0), op(Unit::Scalar, 4), op(Unit::Vector, 4), op(Unit::Scalar, 4)];
    let two: Vec<Op> = hidden.iter().chain(&hidden).cloned().collect();
    assert_eq!(run(&same(1, &plain(&two))), 2 * 16);
    // One more does not.
    let more: Vec<Op> = hidden.iter().chain(&[op(Unit::Scalar, 4)]).chain(&hidden).cloned().collect();
    assert_eq!(run(&same(1, &plain(&more))), 2 * 16 + 4);
}

#[test]
fn lds_is_one_queue() {
    let read = (op(Unit::Lds, 4), Event { lds: 8, ..Event::default() });
    let mut stream = vec![read; 10];
    stream.push((wait(Wait { lds: Some(0), ..Wait::default() }), Event::default()));
    assert_eq!(run(&same(4, &stream)), 4 * 10 * 8 + CORE.lds + CORE.issue);
}

#[test]
fn loads_come_back_in_order() {
    let load = |bytes| (op(Unit::Load, 4), Event { bytes, lines: bytes / 128, ..Event::default() });
    let until = |most| (wait(Wait { vector: Some(most), ..Wait::default() }), Event::default());
    let one = [load(1024), until(0)];
    assert_eq!(run(&same(1, &one)), LATENCY + 1024 / CORE.l1_bytes + CORE.issue);
    // The second load arrives 16 clocks later, and no wait counts it.
    let two = [load(1024), load(1024), until(1)];
    assert_eq!(run(&same(1, &two)), LATENCY + 16 + CORE.issue);
    let all = [load(1024), load(1024), until(0)];
    assert_eq!(run(&same(1, &all)), LATENCY + 32 + CORE.issue);
}

#[test]
fn a_barrier_waits_for_the_last_wave() {
    let ops = vec![op(Unit::Scalar, 400), op(Unit::Barrier, 4), op(Unit::Scalar, 4), op(Unit::End, 4)];
    let event = |op| Event { op, ..Event::default() };
    let trace = Trace { ops, waves: vec![vec![event(0), event(1), event(2)], vec![event(1), event(2)]] };
    // 400 clocks, the barrier, and the instruction after it.
    assert_eq!(run(&trace), 400 + 4 + 4);
    // A wave that has ended is not waited for.
    let trace = Trace { waves: vec![vec![event(3)], vec![event(1), event(2)]], ..trace };
    assert_eq!(run(&trace), 8);
}

#[test]
fn taken_branches_cost_more() {
    let ops = vec![op(Unit::Branch, 4), op(Unit::Scalar, 4), op(Unit::Scalar, 4)];
    let event = |op| Event { op, ..Event::default() };
    let straight = Trace { ops: ops.clone(), waves: vec![vec![event(0), event(1)]] };
    let taken = Trace { ops, waves: vec![vec![event(0), event(2)]] };
    assert_eq!([run(&straight), run(&taken)], [8, CORE.branch + 4]);
}
