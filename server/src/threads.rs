//! Threads for work on what others have written: with stacks that are deep enough for it, and
//! behind the engine's in the queue for the processor.
use std::io;
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

/// Starts a thread.
pub fn start<T: Send + 'static>(
    name: &str,
    place: Place,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(place.stack).spawn(move || {
        stand_back(place.nice);
        work()
    })
}

/// Does work on another thread, and waits for it. A panic of it is an error.
pub fn within<T: Send>(name: &str, place: Place, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let builder = Builder::new().name(name.to_owned()).stack_size(place.stack);
        let thread = builder.spawn_scoped(scope, move || {
            stand_back(place.nice);
            work()
        })?;
        thread.join().map_err(|_| io::Error::other("the work ended with a panic"))
    })
}

/// Lets other threads go first.
#[cfg(target_os = "linux")]
fn stand_back(nice: i32) {
    // SAFETY: it takes numbers. On Linux 0 is the thread that calls. Where it is refused nothing
    // changes, and the thread works as others do.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

#[cfg(not(target_os = "linux"))]
fn stand_back(_nice: i32) {}

/// The time that the processor has worked for a thread.
#[derive(Clone, Copy, Debug)]
#[cfg(target_os = "linux")]
pub struct Clock(libc::clockid_t);

#[cfg(target_os = "linux")]
impl Clock {
    /// Of the thread that calls.
    pub fn own() -> Clock {
        let mut clock = libc::CLOCK_MONOTONIC;
        // SAFETY: the thread is the one that calls, and the clock is written to a place of its
        // type. Where it is refused the clock is that of the wall.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
        Clock(clock)
    }

    /// What it shows; nothing once the thread has ended.
    pub fn read(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is written to a place of its type. The clock of a thread that has ended
        // is refused.
        let code = unsafe { libc::clock_gettime(self.0, &mut time) };
        (code == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
    }
}

/// The time since a thread began: other systems tell no more.
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
