//! Memory that requests have taken, and that the allocator would keep.

/// Arenas of the allocator. Each thread would have one of its own, which keeps what its forms and
/// requests took: the memory of one is of no use to another.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS: i32 = 2;

/// Has all threads share few arenas. To be called before there are others.
pub fn share() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes two numbers, and may be called at any time from any thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives the system the memory that large requests have taken.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
