//! Memory of the host for weights, caches and arenas.
use std::io;
use std::ptr::NonNull;

/// Kernels may read this far past the end of a buffer.
pub(crate) const SLACK: usize = 256;
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory at a fixed address: aligned to at least 64 bytes, on huge pages if it is large
/// enough to gain from them, followed by readable slack. Pages that are never touched cost nothing.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// The allocator that the memory goes back to.
enum Origin {
    /// Memory that the system mapped: its address, and its bytes.
    Map(NonNull<u8>, usize),
    /// Another allocator.
    Foreign(Release),
}

/// Frees memory, given its start.
pub type Release = Box<dyn FnMut(NonNull<u8>) + Send>;

// SAFETY: a buffer owns its mapping as a `Box<[u8]>` owns its memory; shared references only read.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory of the system, of this many bytes. It is only reserved: memory that runs out shows
    /// when it is touched.
    pub fn new(len: usize) -> io::Result<Buffer> {
        let huge = len >= HUGE_PAGE;
        let extra = if huge { SLACK + HUGE_PAGE } else { SLACK };
        let mapped = len.checked_add(extra).ok_or(io::ErrorKind::OutOfMemory)?;
        let base = map_zeroed(mapped)?;
        let skip = if huge { base.align_offset(HUGE_PAGE) } else { 0 };
        // SAFETY: `skip` is less than a huge page, which the mapping is larger than `len` by.
        let start = unsafe { base.add(skip) };
        if huge {
            // SAFETY: the range lies in the mapping. The call is advice: if it fails, small pages
            // serve.
            unsafe { libc::madvise(start.as_ptr().cast(), len + SLACK, libc::MADV_HUGEPAGE) };
        }
        Ok(Buffer { start, len, origin: Origin::Map(base, mapped) })
    }

    /// Memory of another allocator.
    ///
    /// # Safety
    /// It is zeroed, aligned to 64 bytes, has the slack after its `len` bytes, and nothing else
    /// uses it until it is released.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize, release: Release) -> Buffer {
        Buffer { start, len, origin: Origin::Foreign(release) }
    }

    /// Bytes that it holds, without the slack that kernels may read.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address for kernels. They write through it while there is no reference into the buffer.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The contents. No kernel may write them while the reference lives.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised (zeroed) and lives as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The contents to write, under the same condition for kernels that read.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives memory of the system's back until it is touched again; it is zero then. Another
    /// allocator's stays as it is.
    pub fn give_back(&mut self) {
        if let Origin::Map(base, bytes) = self.origin {
            // SAFETY: the buffer's own private mapping, with no reference to it. It fails only for
            // locked memory, which the system may not take.
            unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.len, self.start)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.origin {
            // SAFETY: exactly the range that `map_zeroed` gave, unmapped once.
            Origin::Map(base, bytes) => _ = unsafe { libc::munmap(base.as_ptr().cast(), *bytes) },
            Origin::Foreign(release) => release(self.start),
        }
    }
}

/// Bytes of memory of this machine; the number of addresses if the system does not say.
pub fn installed() -> usize {
    // SAFETY: both only ask.
    let (pages, bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGE_SIZE)) };
    let number = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    number(pages).saturating_mul(number(bytes))
}

fn map_zeroed(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh private mapping touches no memory that exists.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_zero_again() {
        for len in [5000, 3 * HUGE_PAGE] {
            let mut buffer = Buffer::new(len).unwrap();
            let address = buffer.address();
            buffer.as_mut_slice().fill(7);
            buffer.give_back();
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(8);
            assert_eq!((buffer.address(), buffer.as_slice()[len - 1]), (address, 8));
        }
    }

    #[test]
    fn is_aligned_zeroed_and_has_slack() {
        for len in [0, 1, 63, 4096, HUGE_PAGE - 1, HUGE_PAGE, 5 * HUGE_PAGE + 3] {
            let mut buffer = Buffer::new(len).unwrap();
            assert_eq!(buffer.address() as usize % if len < HUGE_PAGE { 4096 } else { HUGE_PAGE }, 0);
            assert_eq!(buffer.as_slice().len(), len);
            // SAFETY: the slack is readable, which this test checks.
            let with_slack = unsafe { std::slice::from_raw_parts(buffer.address(), len + SLACK) };
            assert!(with_slack.iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(1);
        }
    }

    #[test]
    fn refuses_more_than_there_is() {
        assert!(Buffer::new(usize::MAX).is_err());
        assert!(Buffer::new(1 << 60).is_err());
    }
}
