//! Limits the requests that are read at once: one of those that take long, so that others never
//! wait for two of them. Gives memory back once they are over.
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::ApiError;

/// Bytes from which on a request takes long to read.
const LARGE: usize = 64 << 10;
/// Bytes of such requests that may wait.
const MOST_WAITING: usize = 64 << 20;
/// How often memory is given back, while there is some.
const TICK: Duration = Duration::from_secs(1);
/// Bytes of requests that are worth it.
const WORTH: usize = 256 << 10;

/// The lane of large requests.
pub struct Lanes {
    large: Semaphore,
    waiting: AtomicUsize,
    /// Bytes of requests that were read, a half of them for each time that memory was given back.
    debt: AtomicUsize,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { large: Semaphore::new(1), waiting: AtomicUsize::new(0), debt: AtomicUsize::new(0) }
    }
}

impl Lanes {
    /// Waits for the turn of a request of `bytes` bytes.
    pub async fn enter(&self, bytes: usize, is_slow: bool) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        self.owe(bytes);
        if bytes <= LARGE && !is_slow {
            return Ok(None);
        }
        let waiting = Waiting { waiting: &self.waiting, bytes };
        if self.waiting.fetch_add(bytes, Relaxed) + bytes > MOST_WAITING.max(bytes) {
            return Err(ApiError::unavailable("large requests of others are being read; try again later"));
        }
        let permit = self.large.acquire().await;
        drop(waiting);
        permit.map(Some).map_err(|_| ApiError::unavailable("the server is ending"))
    }

    /// Counts memory that a request took in addition to its bytes, such as that of a form.
    pub fn owe(&self, bytes: usize) {
        self.debt.fetch_add(bytes, Relaxed);
    }

    /// Gives memory back to the system until it is dropped: the allocator keeps the memory of large
    /// requests.
    pub async fn give_back(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            let debt = self.debt.load(Relaxed);
            if debt >= WORTH {
                self.debt.fetch_sub(debt / 2, Relaxed);
                // If there is no thread for it now, there is one the next time.
                _ = tokio::task::spawn_blocking(crate::memory::trim).await;
            }
        }
    }
}

/// Bytes that are counted as waiting.
struct Waiting<'a> {
    waiting: &'a AtomicUsize,
    bytes: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_take_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lanes = Lanes::default();
            let first = lanes.enter(LARGE + 1, false).await.unwrap();
            assert!(first.is_some() && lanes.enter(LARGE, false).await.unwrap().is_none());
            // Another waits for it, and one that is too large is refused at once.
            let short = Duration::from_millis(20);
            assert!(tokio::time::timeout(short, lanes.enter(10, true)).await.is_err());
            let wait = async {
                let second = lanes.enter(MOST_WAITING - 10, false).await;
                assert!(second.unwrap().is_some());
            };
            let refuse = async {
                tokio::task::yield_now().await;
                assert!(lanes.enter(LARGE + 1, false).await.is_err());
                drop(first);
            };
            tokio::join!(wait, refuse);
            assert_eq!(lanes.waiting.load(Relaxed), 0);
        });
    }
}
