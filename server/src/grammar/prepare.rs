//! Preparing forms: apart from all else, and each only as long as it may. One is quick at a time.
//! What turns out to take long stands back, for a few others of its kind and for the next quick
//! one.
//!
//! llguidance cannot be told to stop while it makes a grammar. What a form may ask for is bounded
//! before ([`schema`](super::schema), [`lark`](super::lark)); one that takes too long all the same
//! is refused while its thread goes on. Once there is a grammar its thread is told to stop.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::CancellationHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::limits::{FormError, FormLimits};
use crate::threads::{self, Clock, Worker};

/// Forms that are prepared at once.
const AT_ONCE: usize = 1;
/// Threads that may continue in addition to those once they have taken long.
const MOST_SLOW: usize = 3;
/// The limit of the wall clock, as a multiple of a thread's own limit: others may have the
/// processor.
const PATIENCE: u32 = 15;

/// Where forms are prepared.
pub struct Workshop {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    slow: Arc<AtomicUsize>,
    limits: FormLimits,
}

/// A place in the workshop, until the work has ended or turns out to take long.
type Held = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

/// Gives a place to the next form.
fn leave(held: &Held) {
    drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Ends work that takes too long, from when it can be ended.
#[derive(Default)]
pub struct Stop {
    is_late: AtomicBool,
    handle: OnceLock<CancellationHandle>,
    worker: Worker,
}

impl Stop {
    /// From now on this ends the work.
    pub fn by(&self, handle: CancellationHandle) {
        let handle = self.handle.get_or_init(|| handle);
        if self.is_late() {
            handle.cancel();
        }
    }

    /// Whether the work takes too long.
    pub fn is_late(&self) -> bool {
        self.is_late.load(SeqCst)
    }

    /// The work takes too long.
    fn late(&self) {
        self.is_late.store(true, SeqCst);
        self.handle.get().into_iter().for_each(CancellationHandle::cancel);
    }
}

impl Workshop {
    /// A workshop that is empty.
    pub fn new(limits: FormLimits) -> Workshop {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Workshop { places, waiting: AtomicUsize::new(0), slow: Arc::default(), limits }
    }

    /// Does work on a thread of its own, in its turn. Work of which the caller has gone before is
    /// not begun.
    pub async fn make<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Stop) -> Result<T, FormError> + Send + 'static,
    ) -> Result<T, FormError> {
        let held: Held = Arc::new(Mutex::new(Some(self.place().await?)));
        let (tell, clock) = oneshot::channel();
        let (give, made) = oneshot::channel();
        let stop = Arc::new(Stop::default());
        let (place, told) = (held.clone(), stop.clone());
        let thread = move || {
            _ = tell.send(Clock::own());
            let done = told.worker.work(|| work(&told));
            // Who waits for this form may ask for the next one at once.
            leave(&place);
            // The waiting request may be gone.
            _ = give.send(done);
        };
        let started = threads::start("atomc-form", threads::GRAMMARS, thread);
        started.map_err(|error| FormError::Fault(format!("no thread for a grammar: {error}")))?;
        let watch = Watch { within: self.limits.prepare, slow: self.slow.clone(), held, stop };
        let watch = watch.wait(clock, made);
        // The watch goes on where the caller does not.
        let ended = tokio::spawn(watch).await;
        ended.unwrap_or_else(|error| Err(FormError::Fault(format!("preparing the form failed: {error}"))))
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, FormError> {
        let waiting = Waiting::count(&self.waiting, self.limits.waiting)?;
        let place = timeout(self.limits.wait, self.places.clone().acquire_owned()).await;
        drop(waiting);
        place.map_err(|_| FormError::Busy)?.map_err(|_| FormError::Busy)
    }
}

/// One that waits for a place, and is counted as long.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn count(waiting: &'a AtomicUsize, most: usize) -> Result<Waiting<'a>, FormError> {
        let counted = waiting.fetch_update(Relaxed, Relaxed, |now| (now < most).then_some(now + 1));
        counted.map(|_| Waiting(waiting)).map_err(|_| FormError::Busy)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a thread is watched with.
struct Watch {
    within: Duration,
    slow: Arc<AtomicUsize>,
    held: Held,
    stop: Arc<Stop>,
}

impl Watch {
    /// Waits for what a thread makes, no longer than it may take.
    async fn wait<T: Send + 'static>(
        self,
        clock: oneshot::Receiver<Clock>,
        mut made: oneshot::Receiver<Result<T, FormError>>,
    ) -> Result<T, FormError> {
        let gone = || FormError::Wrong("the grammar is too much for its parser".into());
        let clock = clock.await.map_err(|_| gone())?;
        let until = Instant::now() + self.within.saturating_mul(PATIENCE);
        let mut is_slow = None;
        let mut wait = self.within.min(threads::QUICK);
        loop {
            // A result that is there is taken, however late this looks for it.
            if let Ok(done) = timeout(wait, &mut made).await {
                return done.map_err(|_| gone())?;
            }
            // The clock of a thread that has ended shows nothing: the result has come meanwhile.
            let taken = clock.read().unwrap_or_default();
            let left = self.within.saturating_sub(taken);
            if left.is_zero() || Instant::now() >= until {
                break;
            }
            let quick = threads::QUICK.saturating_sub(taken);
            if quick.is_zero() && is_slow.is_none() {
                is_slow = Some(self.stand_back());
            }
            let more = if quick.is_zero() { left } else { left.min(quick) };
            // Time that others have the processor is none that the form takes.
            wait = more.max(Duration::from_millis(10));
        }
        self.stop.late();
        let slow = is_slow.unwrap_or_else(|| self.stand_back());
        // It is one less when its thread has ended.
        tokio::spawn(async move {
            _ = made.await;
            drop(slow);
        });
        Err(FormError::Slow(self.within))
    }

    /// Lets other threads go first, and gives the place to the next form, if there are not too many
    /// such threads.
    fn stand_back(&self) -> Option<Slow> {
        self.stop.worker.stand_back(threads::SLOW);
        let slow = Slow::count(&self.slow)?;
        leave(&self.held);
        Some(slow)
    }
}

/// A thread that takes long, and is counted for as long as it does.
struct Slow(Arc<AtomicUsize>);

impl Slow {
    fn count(slow: &Arc<AtomicUsize>) -> Option<Slow> {
        let counted = slow.fetch_update(Relaxed, Relaxed, |now| (now < MOST_SLOW).then_some(now + 1));
        counted.is_ok().then(|| Slow(slow.clone()))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread may end before anything looks at its clock: then the clock shows nothing.
    #[test]
    fn what_a_thread_has_made_is_taken_after_its_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for within in [Duration::ZERO, Duration::from_secs(2)] {
            let (tell, clock) = oneshot::channel();
            let (give, made) = oneshot::channel();
            let thread = std::thread::spawn(move || {
                tell.send(Clock::own()).unwrap();
                give.send(Ok(7)).unwrap();
            });
            thread.join().unwrap();
            let watch = Watch { within, slow: Arc::default(), held: Arc::default(), stop: Arc::default() };
            assert_eq!(runtime.block_on(watch.wait(clock, made)), Ok(7));
        }
    }
}
