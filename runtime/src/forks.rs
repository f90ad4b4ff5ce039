//! Whether this is still the process that made something, or a child that was forked from it. A
//! child has none of its parent's threads, and none of the driver's state for the parent.
//!
//! A fork duplicates the whole process, so its counter is the only global state here. The system
//! calls the handler in each child: asking for the process id in every step would be a system call.
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Forks between the first process that ran this code and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// The process that made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(usize);

/// The error of a call in another process than the one that made the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine was opened before a fork, by the process that this one comes from, and works there alone: open one in this \
     process; in Python's multiprocessing, use the start method `spawn`"
)]
pub struct Forked;

impl Process {
    /// This one.
    pub fn here() -> io::Result<Process> {
        static COUNTING: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler only adds to a number.
        let fault = *COUNTING.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        match fault {
            0 => Ok(Process(FORKS.load(Relaxed))),
            fault => Err(io::Error::from_raw_os_error(fault)),
        }
    }

    /// Checks that this is the process.
    pub fn check(self) -> Result<(), Forked> {
        if self.0 == FORKS.load(Relaxed) { Ok(()) } else { Err(Forked) }
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// The result of `act` in a child of this process. A child that does not end in ten seconds is
/// killed, and counts as false.
#[cfg(test)]
pub(crate) fn in_child(act: impl FnOnce() -> bool) -> bool {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    // SAFETY: the child runs `act` alone and ends at once, without the handlers of the tests.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let said = catch_unwind(AssertUnwindSafe(act)).unwrap_or(false);
        // SAFETY: nothing of this process is used afterwards.
        unsafe { libc::_exit(i32::from(!said)) };
    }
    let mut status = -1;
    for _ in 0..1000 {
        // SAFETY: the child is ours and was not waited for.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SAFETY: as above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
    }
    false
}
