//! A compute unit: the waves of its work-groups against its units, clock by clock where something
//! happens.
//!
//! Waves issue in order, one instruction every four clocks. Waves of one SIMD share its vector,
//! matrix and scalar units; all waves share LDS and the path to L1, which are queues in order.
//! Memory answers after a given latency. The wave with the next instruction that can start first
//! goes first.
use std::collections::VecDeque;

#[cfg(test)]
#[path = "cu_tests.rs"]
mod tests;

use super::trace::{Event, Op, Trace, Unit};
use crate::exec::wait::Wait;

/// The properties of a compute unit that are the same in all chips of CDNA3 and CDNA4, in clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Core {
    pub simds: usize,
    /// From one instruction of a wave to the next. Source: GCN and CDNA issue for each SIMD every
    /// fourth clock.
    pub issue: u64,
    /// From a branch that is taken to the instruction it jumps to. Source: CDNA3 guide, wait
    /// states.
    pub branch: u64,
    /// From the last pass of a matrix instruction to a reader of its result, other than an addition
    /// to it. Source: LLVM, `GCNHazardRecognizer` (5 wait states after 4 passes).
    pub matrix_result: u64,
    /// From LDS being done to the wait that it satisfies. Source: 64 clocks for `ds_read_b32` that
    /// finds LDS idle (GCN micro-benchmarks).
    pub lds: u64,
    /// The latency of a scalar load that hits the scalar cache.
    pub scalar_load: u64,
    /// Bytes a clock between L1 and registers. Source: CDNA3 white paper.
    pub l1_bytes: u64,
    /// Clocks of a line of L1.
    pub l1_line: u64,
    /// Most outstanding operations that the counters hold.
    pub vector_counter: usize,
    pub lds_counter: usize,
}

/// The core of CDNA3; CDNA4 differs in the clocks of LDS and of matrix instructions, which are in
/// the trace.
pub const CORE: Core = Core {
    simds: 4,
    issue: 4,
    branch: 16,
    matrix_result: 12,
    lds: 64,
    scalar_load: 200,
    l1_bytes: 64,
    l1_line: 1,
    vector_counter: 63,
    lds_counter: 15,
};

/// Clocks of the work-groups that a compute unit runs at once.
pub fn clocks(trace: &Trace, groups: usize, latency: u64, core: &Core) -> u64 {
    Cu::new(trace, groups, latency, core).run()
}

#[derive(Clone, Default)]
struct Simd {
    vector: u64,
    matrix: u64,
    scalar: u64,
}

struct WaveState<'a> {
    events: &'a [Event],
    simd: usize,
    group: usize,
    at: usize,
    /// When the next instruction can issue, if nothing else holds it.
    ready: u64,
    /// When the operations that a counter counts are done, in order.
    vector: VecDeque<u64>,
    lds: VecDeque<u64>,
    /// When the matrix unit is done with a row.
    rows: Box<[u64; 512]>,
    at_barrier: bool,
}

struct Cu<'a> {
    trace: &'a Trace,
    core: &'a Core,
    latency: u64,
    simds: Vec<Simd>,
    waves: Vec<WaveState<'a>>,
    /// The times at which the queues of LDS and of L1 are free, and of the last data's return.
    lds: u64,
    memory: u64,
    data: u64,
    end: u64,
}

impl<'a> Cu<'a> {
    fn new(trace: &'a Trace, groups: usize, latency: u64, core: &'a Core) -> Cu<'a> {
        let all = (0..groups).flat_map(|group| trace.waves.iter().map(move |events| (group, events)));
        let waves = all.enumerate().map(|(number, (group, events))| WaveState {
            events,
            simd: number % core.simds,
            group,
            at: 0,
            ready: 0,
            vector: VecDeque::new(),
            lds: VecDeque::new(),
            rows: Box::new([0; 512]),
            at_barrier: false,
        });
        let simds = vec![Simd::default(); core.simds];
        Cu { trace, core, latency, simds, waves: waves.collect(), lds: 0, memory: 0, data: 0, end: 0 }
    }

    fn run(mut self) -> u64 {
        while let Some(at) = self.next() {
            self.step(at);
        }
        let units = self.simds.iter().map(|s| s.matrix.max(s.vector));
        units.fold(self.end, u64::max)
    }

    /// The wave that can issue first.
    fn next(&self) -> Option<usize> {
        let able = |at: &usize| self.waves[*at].at < self.waves[*at].events.len() && !self.waves[*at].at_barrier;
        (0..self.waves.len()).filter(able).min_by_key(|at| self.waves[*at].ready)
    }

    fn step(&mut self, at: usize) {
        let wave = &mut self.waves[at];
        let event = wave.events[wave.at];
        let op = &self.trace.ops[event.op as usize];
        wave.at += 1;
        let start = wave.ready;
        let issued = match op.unit {
            Unit::Scalar => self.scalar(at, op, start),
            Unit::Vector => self.vector(at, op, start),
            Unit::Matrix => self.matrix(at, op, start),
            Unit::Lds => self.local(at, op, event, start),
            Unit::Load | Unit::Store | Unit::Atomic => self.global(at, op, event, start),
            Unit::ScalarLoad => {
                wave.lds.push_back(start + self.core.scalar_load);
                start
            }
            Unit::Branch => {
                let next = wave.events.get(wave.at).map_or(event.op + 1, |e| e.op);
                if next == event.op + 1 { start } else { start + self.core.branch - self.core.issue }
            }
            Unit::Wait => wave.wait(op.wait, start),
            Unit::Barrier => return self.barrier(at, start),
            Unit::End => start,
        };
        let wave = &mut self.waves[at];
        wave.ready = wave.ready.max(issued + self.core.issue);
        self.end = self.end.max(wave.ready);
        if op.unit == Unit::End {
            wave.at = wave.events.len();
            self.open(wave_group(&self.waves, at));
        }
    }

    fn scalar(&mut self, at: usize, op: &Op, start: u64) -> u64 {
        let wave = &mut self.waves[at];
        let simd = &mut self.simds[wave.simd];
        let start = start.max(simd.scalar);
        simd.scalar = start + self.core.issue;
        start + u64::from(op.clocks) - self.core.issue
    }

    fn vector(&mut self, at: usize, op: &Op, start: u64) -> u64 {
        let wave = &mut self.waves[at];
        let simd = &mut self.simds[wave.simd];
        let start = start.max(simd.vector).max(wave.result(&op.reads, self.core));
        simd.vector = start + u64::from(op.clocks);
        start
    }

    fn matrix(&mut self, at: usize, op: &Op, start: u64) -> u64 {
        let wave = &mut self.waves[at];
        let simd = &mut self.simds[wave.simd];
        let sum = op.adds.iter().map(|r| wave.rows[usize::from(*r)]).max().unwrap_or(0);
        let start = start.max(simd.vector).max(simd.matrix).max(sum).max(wave.result(&op.reads, self.core));
        simd.vector = start + self.core.issue;
        simd.matrix = start + u64::from(op.clocks);
        op.writes.iter().for_each(|r| wave.rows[usize::from(*r)] = simd.matrix);
        start
    }

    fn local(&mut self, at: usize, op: &Op, event: Event, start: u64) -> u64 {
        let wave = &mut self.waves[at];
        let room = full(&wave.lds, self.core.lds_counter);
        let start = start.max(room).max(wave.result(&op.reads, self.core));
        let begins = start.max(self.lds);
        self.lds = begins + u64::from(event.lds.max(4));
        wave.lds.push_back(self.lds + self.core.lds);
        start
    }

    fn global(&mut self, at: usize, op: &Op, event: Event, start: u64) -> u64 {
        let wave = &mut self.waves[at];
        let room = full(&wave.vector, self.core.vector_counter);
        let start = start.max(room).max(wave.result(&op.reads, self.core));
        let begins = start.max(self.memory);
        let moves = u64::from(event.bytes) / self.core.l1_bytes;
        let takes = moves.max(u64::from(event.lines) * self.core.l1_line).max(self.core.issue);
        self.memory = begins + takes;
        let done = match op.unit {
            Unit::Load => {
                self.data = (begins + self.latency).max(self.data) + moves;
                self.data
            }
            _ => self.memory + self.latency,
        };
        let last = wave.vector.back().copied().unwrap_or(0);
        wave.vector.push_back(done.max(last));
        start
    }

    fn barrier(&mut self, at: usize, start: u64) {
        let wave = &mut self.waves[at];
        (wave.at_barrier, wave.ready) = (true, start);
        self.open(wave_group(&self.waves, at));
    }

    /// Lets the waves of a group continue if all that still run have arrived.
    fn open(&mut self, group: usize) {
        let running = || self.waves.iter().filter(|w| w.group == group && w.at < w.events.len());
        if running().any(|w| !w.at_barrier) {
            return;
        }
        let last = running().map(|w| w.ready).max().unwrap_or(0);
        for wave in self.waves.iter_mut().filter(|w| w.group == group && w.at_barrier) {
            (wave.at_barrier, wave.ready) = (false, last + self.core.issue);
        }
    }
}

fn wave_group(waves: &[WaveState], at: usize) -> usize {
    waves[at].group
}

/// When a counter that can hold `most` has room for one more.
fn full(queue: &VecDeque<u64>, most: usize) -> u64 {
    queue.len().checked_sub(most).map_or(0, |over| queue[over])
}

impl WaveState<'_> {
    /// When matrix results in these rows can be read.
    fn result(&self, rows: &[u16], core: &Core) -> u64 {
        let last = rows.iter().map(|r| self.rows[usize::from(*r)]).max().unwrap_or(0);
        if last == 0 { 0 } else { last + core.matrix_result }
    }

    fn wait(&mut self, wait: Wait, start: u64) -> u64 {
        let mut end = start;
        for (queue, most) in [(&mut self.vector, wait.vector), (&mut self.lds, wait.lds)] {
            let Some(most) = most else { continue };
            while queue.len() > usize::from(most) {
                end = end.max(queue.pop_front().unwrap_or(0));
            }
        }
        end
    }
}
