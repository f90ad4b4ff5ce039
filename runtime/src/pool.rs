//! The threads that run steps: a fixed set, sized by the caller, that enters parallel regions
//! together.
//!
//! A region is one closure that every worker executes; the calling thread is worker 0. Inside it,
//! [`Worker::tasks`] is the only thing that workers do together: it hands out a range of tasks and
//! ends in a barrier. A step of a model is one region with one `tasks` per launch, so that threads
//! are woken once a step, not once a kernel.
//!
//! A wait spins, since launches are microseconds apart, but never for long: then it yields (more
//! threads than cores must not block each other) or, between regions, parks.
use crate::forks::{Forked, Process};
use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Rounds of spinning before a wait inside a region yields: some tens of microseconds.
const SPINS_IN_REGION: usize = 1 << 9;
/// Rounds of spinning before a worker parks: about the time that sampling takes between two steps.
const SPINS_BETWEEN_REGIONS: usize = 1 << 11;

type Region<'a> = dyn Fn(Worker<'_>) + Sync + 'a;

/// Most threads of a pool: as many as the largest servers of two sockets have, rounded up. Every
/// barrier of a step waits for all.
pub const MAX_THREADS: usize = 1024;

/// The number of threads: `wanted`, or this process's part of the system's, shared out among
/// `processes`.
pub fn threads(wanted: usize, processes: usize) -> usize {
    let available = || std::thread::available_parallelism().map_or(1, |threads| threads.get());
    if wanted == 0 { (available() / processes).clamp(1, MAX_THREADS) } else { wanted }
}

/// The thread pool. Dropping it ends its threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The one that has the workers.
    process: Process,
}

/// The state that the workers share. A value on a cache line of its own is written by all of them
/// in turn.
struct Shared {
    threads: usize,
    /// Counts regions. A new value tells the workers that `region` is to be run.
    epoch: Line<AtomicUsize>,
    region: UnsafeCell<Option<*const Region<'static>>>,
    /// Workers other than the caller that are still inside the region.
    busy: Line<AtomicUsize>,
    next_task: Line<AtomicUsize>,
    arrived: Line<AtomicUsize>,
    /// Counts barriers.
    passed: Line<AtomicUsize>,
    /// A worker panicked: the others leave the region at their next barrier.
    broken: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    closing: AtomicBool,
}

// SAFETY: `region` is written by the caller alone, while no worker is inside a region, and read by
// workers after they have acquired the epoch that the caller released after the write. Everything
// else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `region` is used only while the call that wrote it is on the caller's
// stack.
unsafe impl Send for Shared {}

#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

/// A thread inside a region.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    shared: &'a Shared,
    index: usize,
}

/// The payload that unwinds a worker out of a region in which another one panicked.
struct Abandoned;

impl Pool {
    /// A pool of this many threads, the caller's among them; at least one, and at most
    /// [`MAX_THREADS`].
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        if threads > MAX_THREADS {
            return Err(std::io::Error::other(format!("there may be 1 to {MAX_THREADS}")));
        }
        let shared = Arc::new(Shared::new(threads.max(1)));
        let mut pool = Pool { shared, workers: Vec::new(), process: Process::here()? };
        for index in 1..threads {
            let shared = pool.shared.clone();
            let worker = thread::Builder::new().name(format!("atomc-{index}")).spawn(move || serve(&shared, index))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that take part, the caller's among them.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Checks that all threads are in this process. A pool of the caller's thread alone works in
    /// children too.
    pub fn check(&self) -> Result<(), Forked> {
        if self.workers.is_empty() { Ok(()) } else { self.process.check() }
    }

    /// Calls `each` once for every number below `count`, on all threads. If it panics, so does this
    /// call.
    pub fn for_each(&mut self, count: usize, each: impl Fn(usize) + Sync) {
        self.run(&|worker| worker.tasks(count, |tasks| tasks.for_each(&each)));
    }

    /// As [`Pool::for_each`] for calls that can fail, each with memory that its thread keeps from
    /// one to the next. After a failure no others are made, and the first noticed failure is
    /// returned.
    pub fn try_each<E: Send>(
        &mut self,
        count: usize,
        each: impl Fn(usize, &mut Vec<u8>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let (failed, first) = (AtomicBool::new(false), Mutex::new(None));
        self.run(&|worker| {
            let mut memory = Vec::new();
            let mut one = |index| {
                if failed.load(Relaxed) {
                    return;
                }
                if let Err(error) = each(index, &mut memory) {
                    failed.store(true, Relaxed);
                    first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            };
            worker.tasks(count, |tasks| tasks.for_each(&mut one));
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Runs one region: `region` is called on every thread and must make the same calls of
    /// [`Worker::tasks`] on each. Panics where [`Pool::check`] finds no threads.
    pub fn run(&mut self, region: &Region<'_>) {
        if let Err(forked) = self.check() {
            panic!("{forked}");
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes, and this call outlives every use of the pointer: it
        // waits for `busy`.
        let erased = unsafe { std::mem::transmute::<*const Region<'_>, *const Region<'static>>(region) };
        // SAFETY: `&mut self` and the wait below leave no worker inside a region.
        unsafe { *shared.region.get() = Some(erased) };
        shared.next_task.0.store(0, Relaxed);
        shared.arrived.0.store(0, Relaxed);
        shared.broken.store(false, Relaxed);
        shared.busy.0.store(self.workers.len(), Relaxed);
        shared.epoch.0.fetch_add(1, Release);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        shared.enter(region, 0);
        wait(|| shared.busy.0.load(Acquire) == 0);
        if let Some(panic) = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.check().is_err() {
            // There is no thread to wait for, and its handle points to nothing.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.closing.store(true, Relaxed);
        self.shared.epoch.0.fetch_add(1, Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic, so it has none to report.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Worker<'_> {
    /// 0 for the calling thread, and less than the number of threads.
    pub fn index(self) -> usize {
        self.index
    }

    /// Workers of the region.
    pub fn threads(self) -> usize {
        self.shared.threads
    }

    /// Hands out `0..count` in ranges, large ones first, and returns on every worker when all are
    /// done: each worker sees all that the others wrote before.
    pub fn tasks(self, count: usize, mut work: impl FnMut(Range<usize>)) {
        while let Some(range) = self.shared.take(count) {
            work(range);
        }
        self.shared.barrier();
    }
}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            threads,
            epoch: Line::default(),
            region: UnsafeCell::new(None),
            busy: Line::default(),
            next_task: Line::default(),
            arrived: Line::default(),
            passed: Line::default(),
            broken: AtomicBool::new(false),
            panic: Mutex::new(None),
            closing: AtomicBool::new(false),
        }
    }

    /// The next range: half of an even share of the rest, so that few calls are made and all
    /// threads end together. A single thread takes all at once.
    fn take(&self, count: usize) -> Option<Range<usize>> {
        let mut first = self.next_task.0.load(Relaxed);
        while first < count {
            let left = count - first;
            let len = if self.threads == 1 { left } else { (left / (2 * self.threads)).max(1) };
            match self.next_task.0.compare_exchange_weak(first, first + len, Relaxed, Relaxed) {
                Ok(_) => return Some(first..first + len),
                Err(now) => first = now,
            }
        }
        None
    }

    /// The last worker to arrive resets the task counter. No other thread reads it meanwhile.
    fn barrier(&self) {
        let passed = self.passed.0.load(Relaxed);
        if self.arrived.0.fetch_add(1, AcqRel) + 1 == self.threads {
            self.arrived.0.store(0, Relaxed);
            self.next_task.0.store(0, Relaxed);
            self.passed.0.store(passed.wrapping_add(1), Release);
            return;
        }
        wait(|| self.passed.0.load(Acquire) != passed || self.broken.load(Relaxed));
        if self.passed.0.load(Acquire) == passed {
            resume_unwind(Box::new(Abandoned));
        }
    }

    /// Runs the region on one worker and keeps the payload of a panic for the caller.
    fn enter(&self, region: &Region<'_>, index: usize) {
        let worker = Worker { shared: self, index };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| region(worker))) {
            if !panic.is::<Abandoned>() {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.broken.store(true, Relaxed);
        }
    }
}

/// The life of a worker.
fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        for _ in 0..SPINS_BETWEEN_REGIONS {
            if shared.epoch.0.load(Relaxed) != seen {
                break;
            }
            spin_loop();
        }
        while shared.epoch.0.load(Acquire) == seen {
            thread::park();
        }
        seen = seen.wrapping_add(1);
        if shared.closing.load(Relaxed) {
            return;
        }
        // SAFETY: the caller wrote the region before the epoch and waits for `busy` before it
        // writes again or returns.
        if let Some(region) = unsafe { *shared.region.get() } {
            // SAFETY: as above, the closure is alive until `busy` is zero.
            shared.enter(unsafe { &*region }, index);
        }
        shared.busy.0.fetch_sub(1, Release);
    }
}

fn wait(done: impl Fn() -> bool) {
    for _ in 0..SPINS_IN_REGION {
        if done() {
            return;
        }
        spin_loop();
    }
    while !done() {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forks::in_child;
    use std::time::{Duration, Instant};

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for count in [0, 1, 2, 7, 64, 1000] {
                let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(count, |i| _ = seen[i].fetch_add(1, Relaxed));
                assert!(seen.iter().all(|seen| seen.load(Relaxed) == 1), "{threads} threads, {count} tasks");
            }
        }
    }

    #[test]
    fn threads_are_bounded() {
        for threads in [MAX_THREADS + 1, usize::MAX] {
            assert_eq!(Pool::new(threads).unwrap_err().to_string(), "there may be 1 to 1024");
        }
        assert_eq!((threads(0, usize::MAX), threads(7, 2)), (1, 7));
    }

    #[test]
    fn launches_see_what_earlier_ones_wrote() {
        const TASKS: usize = 37;
        let mut pool = Pool::new(4).unwrap();
        for _ in 0..20 {
            let values: Vec<AtomicUsize> = (0..TASKS).map(AtomicUsize::new).collect();
            pool.run(&|worker| {
                for _ in 0..50 {
                    // A launch adds a number that depends on all before; the empty launch keeps
                    // reading and adding apart.
                    let sum: usize = values.iter().map(|value| value.load(Relaxed)).sum();
                    worker.tasks(0, |_| ());
                    worker.tasks(TASKS, |range| range.for_each(|i| _ = values[i].fetch_add(sum % 5, Relaxed)));
                }
            });
            let mut expect: Vec<usize> = (0..TASKS).collect();
            for _ in 0..50 {
                let sum: usize = expect.iter().sum();
                expect.iter_mut().for_each(|value| *value += sum % 5);
            }
            assert_eq!(values.into_iter().map(AtomicUsize::into_inner).collect::<Vec<_>>(), expect);
        }
    }

    #[test]
    fn more_threads_than_cores_still_get_on() {
        let mut pool = Pool::new(16).unwrap();
        let start = Instant::now();
        pool.run(&|worker| (0..100).for_each(|_| worker.tasks(3, |_| ())));
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[test]
    fn a_panic_comes_out_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for victim in 0..30 {
            let region = AssertUnwindSafe(|| pool.for_each(30, |i| assert_ne!(i, victim, "the victim")));
            let text = *catch_unwind(region).unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("the victim"));
        }
        let sum = AtomicUsize::new(0);
        pool.for_each(10, |i| _ = sum.fetch_add(i, Relaxed));
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn children_have_no_threads() {
        let sum = |pool: &mut Pool| {
            let sum = AtomicUsize::new(0);
            pool.for_each(10, |i| _ = sum.fetch_add(i, Relaxed));
            sum.into_inner()
        };
        let (mut one, mut two) = (Pool::new(1).unwrap(), Pool::new(2).unwrap());
        assert_eq!(sum(&mut two), 45);
        let said = in_child(|| {
            let refused = two.check() == Err(Forked);
            drop(std::mem::replace(&mut two, Pool::new(2).unwrap()));
            refused && sum(&mut one) == 45 && two.check().is_ok() && sum(&mut two) == 45
        });
        assert!(said);
        assert_eq!((two.check(), sum(&mut two)), (Ok(()), 45));
    }

    #[test]
    fn wakes_parked_workers() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(5));
            pool.for_each(4, |_| ());
        }
    }
}
