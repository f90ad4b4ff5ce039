//! Preparing forms: apart from all else, one or two at a time, and each only as long as it may.
//!
//! llguidance cannot be told to stop while it makes a grammar. What a form may ask for is bounded
//! before ([`schema`](super::schema), [`lark`](super::lark)); one that takes too long all the same
//! is refused while its thread goes on, last in the queue for the processor, and a few such threads
//! do not keep the forms of others waiting.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::limits::{FormError, FormLimits};
use crate::threads::{self, Clock};

/// Forms that are prepared at once.
const AT_ONCE: usize = 1;
/// Threads that may go on beside them when their time is over.
const MOST_LATE: usize = 3;
/// The wall clock may show so many times what a thread may take, where others have the processor.
const PATIENCE: u32 = 10;

/// Where forms are prepared.
pub struct Workshop {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    late: Arc<AtomicUsize>,
    limits: FormLimits,
}

/// A place in the workshop, until the work has ended or its time is over.
type Held = Arc<Mutex<Option<OwnedSemaphorePermit>>>;

impl Workshop {
    /// One that nobody works in.
    pub fn new(limits: FormLimits) -> Workshop {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Workshop { places, waiting: AtomicUsize::new(0), late: Arc::default(), limits }
    }

    /// Does work on a thread of its own, in its turn. Work of which the caller has gone before is
    /// not begun.
    pub async fn make<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, FormError> + Send + 'static,
    ) -> Result<T, FormError> {
        let held: Held = Arc::new(Mutex::new(Some(self.place().await?)));
        let (tell, clock) = oneshot::channel();
        let (give, made) = oneshot::channel();
        let place = held.clone();
        let thread = move || {
            _ = tell.send(Clock::own());
            let done = work();
            // Whoever waits may have gone.
            _ = give.send(done);
            drop(place);
        };
        let started = threads::start("atomc-form", threads::GRAMMARS, thread);
        started.map_err(|error| FormError::Fault(format!("no thread for a grammar: {error}")))?;
        let watch = watch(self.limits.prepare, self.late.clone(), held, clock, made);
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

/// Waits for what a thread makes, no longer than it may take.
async fn watch<T: Send + 'static>(
    within: Duration,
    late: Arc<AtomicUsize>,
    held: Held,
    clock: oneshot::Receiver<Clock>,
    mut made: oneshot::Receiver<Result<T, FormError>>,
) -> Result<T, FormError> {
    let gone = || FormError::Wrong("the grammar is too much for its parser".into());
    let clock = clock.await.map_err(|_| gone())?;
    let until = tokio::time::Instant::now() + within.saturating_mul(PATIENCE);
    let mut left = within;
    loop {
        match timeout(left, &mut made).await {
            Ok(done) => return done.map_err(|_| gone())?,
            Err(_) if tokio::time::Instant::now() >= until => break,
            Err(_) => left = within.saturating_sub(clock.read().unwrap_or(within)),
        }
        if left.is_zero() {
            break;
        }
        // Time that others have the processor is none that the form takes.
        left = left.max(Duration::from_millis(10));
    }
    if late.fetch_update(Relaxed, Relaxed, |now| (now < MOST_LATE).then_some(now + 1)).is_ok() {
        drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
        // It is one less when its thread has ended.
        tokio::spawn(async move {
            _ = made.await;
            late.fetch_sub(1, Relaxed);
        });
    }
    Err(FormError::Slow(within))
}
