//! Threads for work on the input of clients: with stacks that are deep enough for it, and with a
//! lower priority than the engine's.
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// What a thread is given.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Bytes of its stack, of which only those that are used are memory.
    pub stack: usize,
    /// How far it stands back, from 0 to 19.
    pub nice: i32,
}

/// Making a grammar: a schema with 20,000 references in a row takes 62 MB.
pub const GRAMMARS: Place = Place { stack: 256 << 20, nice: 5 };
/// Following one.
pub const MASKS: Place = Place { stack: 64 << 20, nice: 5 };
/// Following one that takes long.
pub const SLOW_MASKS: Place = Place { nice: SLOW, ..MASKS };

/// The priority, below the engine's, of work that takes long. The engine's threads wait for each
/// other some hundred times a step. With 5 and two threads of such work on two cores an answer took
/// 390 to 490 ms, with 10 250 to 480, with 15 or 19 160 to 240; without such work 60 to 250, as the
/// machine had other work too. With 15 a schema of 2,000 numbers took 11 to 18 s, and one of four
/// was refused; with 10 it took 4 to 9.
pub const SLOW: i32 = 10;
/// Time from which on work takes long.
pub const QUICK: Duration = Duration::from_millis(50);

/// Starts a thread.
pub fn start<T: Send + 'static>(
    name: &str,
    place: Place,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(place.stack).spawn(move || {
        stand_back(own(), place.nice);
        work()
    })
}

/// Does work on another thread, and waits for it. A panic of it is an error.
pub fn within<T: Send>(name: &str, place: Place, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let builder = Builder::new().name(name.to_owned()).stack_size(place.stack);
        let thread = builder.spawn_scoped(scope, move || {
            stand_back(own(), place.nice);
            work()
        })?;
        thread.join().map_err(|_| io::Error::other("the work ended with a panic"))
    })
}

/// A thread, for as long as it does work that may turn out to take long.
#[derive(Debug, Default)]
pub struct Worker(Mutex<Option<libc::pid_t>>);

impl Worker {
    /// Does work on the thread that calls.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Says that the work has ended, with a panic too.
        struct End<'a>(&'a Worker);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                *self.0.thread() = None;
            }
        }
        *self.thread() = Some(own());
        let _end = End(self);
        work()
    }

    /// Lowers the priority of the thread from now on; only a privileged process may raise it again.
    /// Returns whether the thread still works.
    pub fn stand_back(&self, by: i32) -> bool {
        // The thread does not end while this is held.
        let thread = self.thread();
        thread.iter().for_each(|&thread| stand_back(thread, by));
        thread.is_some()
    }

    fn thread(&self) -> MutexGuard<'_, Option<libc::pid_t>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that calls, as the system names it.
#[cfg(target_os = "linux")]
fn own() -> libc::pid_t {
    // SAFETY: it takes nothing.
    unsafe { libc::gettid() }
}

/// Sets a thread's priority to this many steps below the process's.
#[cfg(target_os = "linux")]
fn stand_back(thread: libc::pid_t, by: i32) {
    // SAFETY: they take numbers. On Linux a thread has a priority of its own, and the process that
    // of its first one. Where it is refused nothing changes, and the thread works as others do.
    unsafe {
        let process = libc::getpriority(libc::PRIO_PROCESS, libc::getpid().unsigned_abs());
        libc::setpriority(libc::PRIO_PROCESS, thread.unsigned_abs(), process + by)
    };
}

#[cfg(not(target_os = "linux"))]
fn own() -> libc::pid_t {
    0
}

#[cfg(not(target_os = "linux"))]
fn stand_back(_thread: libc::pid_t, _by: i32) {}

/// The time that the processor has worked for a thread since this was made.
#[derive(Clone, Copy, Debug)]
#[cfg(target_os = "linux")]
pub struct Clock {
    clock: libc::clockid_t,
    began: Duration,
}

#[cfg(target_os = "linux")]
impl Clock {
    /// Of the thread that calls.
    pub fn own() -> Clock {
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: the thread is the one that calls, and the clock is written to a place of its
        // type. Where it is refused the clock is that of the wall.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        Clock { clock, began: shown(clock).unwrap_or_default() }
    }

    /// What it shows; nothing once the thread has ended.
    pub fn read(self) -> Option<Duration> {
        Some(shown(self.clock)?.saturating_sub(self.began))
    }
}

/// What a clock of the system shows.
#[cfg(target_os = "linux")]
fn shown(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a place of its type. The clock of a thread that has ended is
    // refused.
    let code = unsafe { libc::clock_gettime(clock, &mut time) };
    (code == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
}

/// The time since this was made: other systems tell no more.
#[derive(Clone, Copy, Debug)]
#[cfg(not(target_os = "linux"))]
pub struct Clock(std::time::Instant);

#[cfg(not(target_os = "linux"))]
impl Clock {
    /// Of the thread that calls.
    pub fn own() -> Clock {
        Clock(std::time::Instant::now())
    }

    /// What it shows.
    pub fn read(self) -> Option<Duration> {
        Some(self.0.elapsed())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stands_back_while_it_works() {
        // SAFETY: it takes two numbers.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let place = Place { stack: 1 << 20, nice: 1 };
        let found = within("atomc-test", place, || {
            let worker = Worker::default();
            let first = nice();
            let then = worker.work(|| {
                assert!(worker.stand_back(2));
                nice()
            });
            assert!(!worker.stand_back(3));
            [first, then, nice()]
        });
        // SAFETY: as above.
        let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, libc::getpid().unsigned_abs()) };
        assert_eq!(found.unwrap(), [own + 1, own + 2, own + 2].map(|nice| nice.min(19)));
    }
}
