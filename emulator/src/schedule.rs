//! Runs the work-groups of a launch, and the waves of a group in turns.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::counts::{Counts, Traffic};
use crate::decode::Kernel;
use crate::exec::publication::{Others, Stores};
use crate::exec::{self, Group, Runner, Stop};
use crate::fault::{Fault, FaultKind, Site, Trap};
use crate::launch::{Dispatch, Options};
use crate::mem::lds::Lds;
use crate::memory::Memory;
use crate::random::Random;
use crate::timing::trace::{Recorder, Trace};
use crate::wave::Wave;

/// Runs all groups; of several faults the one of the first group in order is told.
pub fn run(dispatch: &Dispatch, kernel: &Kernel, memory: &Memory, options: &Options) -> Result<Counts, Fault> {
    let order = order(dispatch, options);
    let next = AtomicUsize::new(0);
    let faults: Mutex<Vec<(u64, Fault)>> = Mutex::new(Vec::new());
    let total = Mutex::new(Counts::default());
    let stores = Mutex::new(Stores::default());
    let work = || {
        let others = (options.checks.publication && kernel.publishes).then(|| Others::new(&stores));
        let mut worker = Worker::new(dispatch, kernel, memory, options, others);
        while let Some(group) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(fault) = worker.group(*group) {
                next.store(order.len(), Ordering::Relaxed);
                faults.lock().expect("no panic while held").push((*group, fault));
            }
        }
        let mut total = total.lock().expect("no panic while held");
        total.waves += worker.waves;
        total.add(&kernel.steps, &worker.group.hits, &worker.group.traffic);
    };
    match options.threads.min(order.len()) {
        0 | 1 => work(),
        threads => std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work)))),
    }
    let faults = faults.into_inner().expect("no panic while held");
    match faults.into_iter().min_by_key(|(group, _)| *group) {
        Some((_, fault)) => Err(fault),
        None => Ok(total.into_inner().expect("no panic while held")),
    }
}

/// Runs one group and records it. Its waves take random turns, so that L1 sees their loads mixed.
pub fn record(dispatch: &Dispatch, kernel: &Kernel, memory: &Memory, group: u64) -> Result<Trace, Fault> {
    let options = Options { seed: 1, ..Options::fast() };
    let mut worker = Worker::new(dispatch, kernel, memory, &options, None);
    worker.group.recorder = Some(Box::new(Recorder::new(kernel, dispatch.isa, dispatch.waves())));
    worker.group(group)?;
    Ok(worker.group.recorder.take().expect("it was put there").finish())
}

/// Numbers of the groups in the order in which they begin.
fn order(dispatch: &Dispatch, options: &Options) -> Vec<u64> {
    let count = dispatch.grid.groups.iter().map(|n| u64::from(*n)).product();
    let mut order: Vec<u64> = (0..count).collect();
    if options.seed != 0 {
        let mut random = Random::in_state(options.seed);
        for k in (1..order.len()).rev() {
            order.swap(k, below(&mut random, k as u64 + 1) as usize);
        }
    }
    order
}

/// A random number below one.
fn below(random: &mut Random, n: u64) -> u64 {
    (random.bits() >> 11) % n
}

/// One thread's groups, one after the other.
struct Worker<'a> {
    dispatch: &'a Dispatch<'a>,
    kernel: &'a Kernel,
    options: &'a Options,
    group: Group<'a>,
    runners: Vec<Runner>,
    waves: u64,
    /// Barriers that the running group has completed.
    generation: u32,
    id: [u32; 3],
}

/// Instructions a wave runs at most before another one has its turn, if turns are random.
const TURN: u64 = 64;

impl<'a> Worker<'a> {
    fn new(
        dispatch: &'a Dispatch<'a>,
        kernel: &'a Kernel,
        memory: &'a Memory,
        options: &'a Options,
        others: Option<Others<'a>>,
    ) -> Worker<'a> {
        let group = Group {
            memory,
            lds: Lds::new(dispatch.lds),
            checks: options.checks,
            conflicts: options.conflicts,
            traffic: Traffic::default(),
            hits: vec![0; kernel.steps.len()],
            image: dispatch.image,
            spare: Vec::new(),
            recorder: None,
            others,
        };
        Worker { dispatch, kernel, options, group, runners: Vec::new(), waves: 0, generation: 0, id: [0; 3] }
    }

    fn group(&mut self, number: u64) -> Result<(), Fault> {
        let [x, y, _] = self.dispatch.grid.groups.map(u64::from);
        self.id = [number % x, number / x % y, number / (x * y)].map(|n| n as u32);
        self.start();
        let seed = self.options.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        let mut random = Random::in_state(seed);
        let mut left = self.options.limit;
        let mut last = self.runners.len() - 1;
        loop {
            let waves = self.runners.len();
            let shuffled = self.options.seed != 0 && waves > 1;
            let (from, budget) = match (self.options.quantum, shuffled) {
                (0, true) => (below(&mut random, waves as u64) as usize, 1 + below(&mut random, TURN)),
                (0, false) => (0, 1 << 20),
                (quantum, _) => ((last + 1) % waves, quantum.into()),
            };
            let mut all = (from..waves).chain(0..from);
            let Some(at) = all.find(|k| self.ready(*k)) else { break };
            last = at;
            self.turn(at, budget.min(left) as u32)?;
            left -= budget.min(left);
            if left == 0 {
                return Err(self.fault(at, FaultKind::Endless(self.options.limit), None));
            }
        }
        match self.runners.iter().position(|r| !r.ended) {
            Some(at) => Err(self.fault(at, FaultKind::Deadlock, None)),
            None => Ok(()),
        }
    }

    /// All waves at the kernel's entry.
    fn start(&mut self) {
        let count = self.dispatch.waves();
        self.waves += u64::from(count);
        self.generation = 0;
        self.group.lds.reset();
        if let Some(others) = &mut self.group.others {
            others.reset(self.id);
        }
        for number in 0..count {
            let side = self.dispatch.side(number);
            match self.runners.get_mut(number as usize) {
                Some(runner) => {
                    runner.wave.reset(&self.kernel.touched);
                    (runner.side, runner.ended, runner.awaits, runner.arrived) = (side, false, 0, None);
                }
                None => {
                    let mode = exec::control::mode_of(side.mode, side.family);
                    let wave = Wave::new(self.dispatch.isa, mode, number);
                    self.runners.push(Runner { wave, side, ended: false, awaits: 0, arrived: None, waits: false });
                }
            }
            let runner = &mut self.runners[number as usize];
            runner.waits = false;
            self.dispatch.start(&mut runner.wave, self.id, self.kernel);
        }
    }

    fn ready(&self, at: usize) -> bool {
        let runner = &self.runners[at];
        !(runner.ended || runner.waits && runner.awaits > self.generation)
    }

    fn turn(&mut self, at: usize, budget: u32) -> Result<(), Fault> {
        let runner = &mut self.runners[at];
        runner.waits = false;
        match exec::run(runner, &mut self.group, self.kernel, budget) {
            Ok(Stop::Budget) => Ok(()),
            Ok(Stop::Wait) => {
                runner.waits = true;
                Ok(())
            }
            Ok(Stop::Signal(waits)) => {
                runner.waits = waits;
                runner.awaits = self.generation + 1;
                // The signal is the instruction before.
                runner.arrived = Some(runner.wave.pc - 1);
                self.group.arrive(&runner.side);
                self.complete(at)
            }
            Ok(Stop::Ended) => {
                runner.ended = true;
                self.complete(at)
            }
            Err(trap) => {
                let Trap { kind, lane } = *trap;
                Err(self.fault(at, kind, lane))
            }
        }
    }

    /// Opens the barrier if all waves that still run have arrived.
    fn complete(&mut self, at: usize) -> Result<(), Fault> {
        let running = self.runners.iter().filter(|r| !r.ended);
        let arrived: Vec<usize> = self.runners.iter().filter_map(|r| r.arrived).collect();
        if arrived.is_empty() || arrived.len() != running.count() {
            return Ok(());
        }
        if self.options.checks.barriers {
            self.same_barrier(&arrived)
                .map_err(|detail| self.fault(at, FaultKind::DivergentBarrier { detail }, None))?;
        }
        self.generation += 1;
        self.group.release();
        self.runners.iter_mut().for_each(|r| r.arrived = None);
        Ok(())
    }

    fn same_barrier(&self, arrived: &[usize]) -> Result<(), String> {
        let place = |at: usize| format!("{:#x}", self.kernel.steps[at].inst.address);
        if let Some(other) = arrived.iter().find(|a| **a != arrived[0]) {
            return Err(format!("one is at {}, another at {}", place(arrived[0]), place(*other)));
        }
        match self.runners.iter().position(|r| r.ended) {
            Some(wave) => Err(format!("wave {wave} ended before the barrier at {}", place(arrived[0]))),
            None => Ok(()),
        }
    }

    fn fault(&self, at: usize, kind: FaultKind, lane: Option<u8>) -> Fault {
        let wave = &self.runners[at].wave;
        let last = self.kernel.steps.len() - 1;
        let pc = wave.pc.min(last);
        let site = Site {
            text: self.kernel.texts[pc].to_string(),
            address: self.kernel.steps[pc].inst.address,
            group: self.id,
            wave: wave.number,
            lane,
        };
        Fault { kernel: self.dispatch.kernel.name.clone(), site: Some(Box::new(site)), kind }
    }
}
