//! The thread that owns the scheduler, and the handle by which others give it requests.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atomc_runtime::offload;

use crate::schedule::{Backend, Counts, Gauges, Job, JobError, Limits, Options, Scheduler};

/// How often a scheduler without requests looks whether it should end.
const IDLE: Duration = Duration::from_millis(200);

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum Refused {
    #[error("{waiting} requests wait already, and at most {most} may; try again later")]
    Full { waiting: usize, most: usize },
    #[error("the server is ending")]
    Ending,
    #[error("the server cannot go on: {0}")]
    Down(String),
}

/// The scheduler's last report.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Counts since the start.
    pub counts: Counts,
    /// Counts of what leaves the engine's cache, if it has a place to go.
    pub offloaded: Option<offload::Counts>,
    /// Where it stands.
    pub gauges: Gauges,
    /// Why no request can be served any more, if that is so.
    pub down: Option<String>,
}

/// Gives requests to the scheduler. Clones give them to the same.
#[derive(Clone)]
pub struct Handle {
    sender: Sender<Vec<Job>>,
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    /// Requests that were sent and do not run yet.
    waiting: AtomicUsize,
    /// Most of them.
    queue: usize,
    said: Mutex<Snapshot>,
    /// Until when requests may still be answered, once no more are taken.
    ending: Mutex<Option<Instant>>,
}

impl Shared {
    fn said(&self) -> Snapshot {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ending(&self) -> Option<Instant> {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread. At most `queue` requests wait in addition to those that run.
pub fn start<B: Backend + 'static>(
    backend: B,
    options: Options,
    queue: usize,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    start_with(Scheduler::new(backend, options), queue)
}

/// The same with a scheduler.
pub fn start_with<B: Backend + 'static>(
    scheduler: Scheduler<B>,
    queue: usize,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared {
        limits: scheduler.limits(),
        waiting: AtomicUsize::new(0),
        queue,
        said: Mutex::new(Snapshot { gauges: scheduler.gauges(), ..Snapshot::default() }),
        ending: Mutex::new(None),
    });
    let handle = Handle { sender, shared: shared.clone() };
    let thread = std::thread::Builder::new().name("atomc-schedule".into());
    Ok((handle, thread.spawn(move || run(scheduler, &receiver, &shared))?))
}

impl Handle {
    /// Sizes that do not change.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// The scheduler's last report.
    pub fn said(&self) -> Snapshot {
        self.shared.said()
    }

    /// Whether no more requests are taken.
    pub fn is_ending(&self) -> bool {
        self.shared.ending().is_some()
    }

    /// Gives the answers to a request to the scheduler: all of them or none.
    pub fn submit(&self, jobs: Vec<Job>) -> Result<(), Refused> {
        if self.is_ending() {
            return Err(Refused::Ending);
        }
        if let Some(why) = self.said().down {
            return Err(Refused::Down(why));
        }
        let (waiting, queue, new) = (&self.shared.waiting, self.shared.queue, jobs.len());
        // A request alone may always try, however many answers it wants.
        let fits = |waiting: usize| (waiting == 0 || waiting + new <= queue).then_some(waiting + new);
        waiting.fetch_update(Relaxed, Relaxed, fits).map_err(|waiting| Refused::Full { waiting, most: queue })?;
        self.sender.send(jobs).map_err(|_| Refused::Ending)
    }

    /// Takes no more requests. Those that there are have so long to end.
    pub fn end(&self, within: Duration) {
        let mut ending = self.shared.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.get_or_insert(Instant::now() + within);
    }
}

fn run<B: Backend>(mut scheduler: Scheduler<B>, receiver: &Receiver<Vec<Job>>, shared: &Shared) {
    let mut counted = 0;
    loop {
        let (open, new) = receive(&mut scheduler, receiver);
        counted += new;
        if scheduler.is_idle() && (!open || shared.ending().is_some()) {
            scheduler.save();
            return;
        }
        if shared.ending().is_some_and(|end| Instant::now() >= end) {
            scheduler.fail_all(&JobError::Ending);
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scheduler.step())) {
            let what = panicked(&*panic);
            tracing::error!(what, "a step panicked");
            if catch_unwind(AssertUnwindSafe(|| scheduler.recover(&what))).is_err() {
                tell(&scheduler, shared, Some(what));
                return;
            }
        }
        count(&mut counted, scheduler.gauges().waiting, &shared.waiting);
        tell(&scheduler, shared, None);
    }
}

/// Takes the jobs that were sent; waits for some if there is nothing else to do. Returns whether
/// there may be more, and the number that were taken.
fn receive<B: Backend>(scheduler: &mut Scheduler<B>, receiver: &Receiver<Vec<Job>>) -> (bool, usize) {
    let (mut new, is_idle) = (0, scheduler.is_idle());
    let mut add = |jobs: Vec<Job>| {
        new += jobs.len();
        scheduler.add(jobs);
    };
    if is_idle {
        match receiver.recv_timeout(IDLE) {
            Ok(jobs) => add(jobs),
            Err(RecvTimeoutError::Timeout) => return (true, 0),
            Err(RecvTimeoutError::Disconnected) => return (false, 0),
        }
    }
    receiver.try_iter().for_each(add);
    (true, new)
}

/// Of the requests that were sent, those that were counted here as waiting do so no longer, or do
/// again.
fn count(counted: &mut usize, now: usize, waiting: &AtomicUsize) {
    match *counted > now {
        true => waiting.fetch_sub(*counted - now, Relaxed),
        false => waiting.fetch_add(now - *counted, Relaxed),
    };
    *counted = now;
}

fn tell<B: Backend>(scheduler: &Scheduler<B>, shared: &Shared, down: Option<String>) {
    let gauges = scheduler.gauges();
    let down = down.or_else(|| scheduler.down().map(str::to_owned));
    let said = Snapshot { counts: scheduler.counts(), offloaded: scheduler.offloaded(), gauges, down };
    *shared.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
}

/// The message of a panic.
fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a step panicked: {}", text.unwrap_or("it did not say why"))
}
