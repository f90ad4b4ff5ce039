//! A stream of one GPU, and the objects that need it: memory, events, modules, graphs. Each keeps
//! the context alive, so they may be dropped in any order.
//!
//! Drivers have a current device for each thread of the host; every call here names its own first.
use super::super::{DeviceBuffer, DeviceError, DeviceMemory};
use super::PeerGpu;
use super::driver::{Driver, Fault, Handle};
use crate::forks::Process;
use crate::memory::{Buffer, SLACK};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Copies that a rate is the best of: the first finds pages and clocks cold.
const COPIES: usize = 8;

#[derive(Debug)]
pub struct Context {
    pub driver: Box<dyn Driver>,
    ordinal: usize,
    device: Handle,
    stream: Handle,
    /// Whether the stream was made here.
    owned: bool,
    /// The one that the driver works for: in its children nothing may be asked of it, not even to
    /// free something.
    process: Process,
}

// SAFETY: a driver's functions may be called from any thread, and device and stream are only
// handles.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// A stream of the caller's, which outlives everything on it, or a new one.
    pub fn open(driver: Box<dyn Driver>, ordinal: usize, stream: Option<Handle>) -> Result<Arc<Context>, DeviceError> {
        let device = driver.open(ordinal).map_err(|fault| driver.vendor().fault(ordinal, fault))?;
        let owned = stream.is_none();
        let process = Process::here().map_err(|error| driver.vendor().failed(ordinal, error.to_string()))?;
        let mut context = Context { driver, ordinal, device, stream: stream.unwrap_or(null_mut()), owned, process };
        context.enter()?;
        if owned {
            context.stream = context.check(context.driver.stream())?;
        }
        Ok(Arc::new(context))
    }

    /// Makes the device this thread's current one.
    pub fn enter(&self) -> Result<(), DeviceError> {
        self.process.check()?;
        // SAFETY: the device is open.
        self.check(unsafe { self.driver.enter(self.device) })
    }

    /// This device for others, without memory for them.
    pub fn peer(&self) -> PeerGpu {
        PeerGpu { vendor: self.driver.vendor(), ordinal: self.ordinal, device: self.device }
    }

    /// Whether this device's kernels reach another one's memory, from now on.
    pub fn reach(&self, peer: &PeerGpu) -> Result<bool, DeviceError> {
        if peer.vendor != self.driver.vendor() {
            return Ok(false);
        }
        if peer.ordinal == self.ordinal {
            return Ok(true);
        }
        self.enter()?;
        // SAFETY: the peer's device is open as long as its memory is there.
        self.check(unsafe { self.driver.reach(self.ordinal, (peer.ordinal, peer.device)) })
    }

    pub fn stream(&self) -> Handle {
        self.stream
    }

    pub fn check<T>(&self, result: Result<T, Fault>) -> Result<T, DeviceError> {
        result.map_err(|fault| self.driver.vendor().fault(self.ordinal, fault))
    }

    /// The result of a call that allocates `bytes` bytes.
    fn sized<T>(&self, bytes: usize, result: Result<T, Fault>) -> Result<T, DeviceError> {
        self.check(result.map_err(|fault| Fault { text: format!("{bytes} bytes: {fault}"), ..fault }))
    }

    pub fn fault(&self, detail: String) -> DeviceError {
        self.driver.vendor().failed(self.ordinal, detail)
    }

    /// Waits for everything on the stream.
    pub fn synchronise(&self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the stream is alive.
        self.check(unsafe { self.driver.synchronise(self.stream) })
    }

    /// Reads the bytes at an address after all earlier calls on the stream.
    ///
    /// # Safety
    /// Memory of the device begins there with as many bytes.
    pub unsafe fn read(&self, address: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: passed on to the caller; the bytes are borrowed until the copy is done.
        self.check(unsafe { self.driver.copy_out(to, address as *mut c_void, self.stream) })?;
        self.synchronise()
    }

    /// Zeroed memory of the device.
    pub fn allocate(self: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.zeroed(bytes, |whole| self.driver.allocate(whole))
    }

    /// Zeroed memory of the device that kernels of other devices write while its own read it.
    pub fn open_to_others(self: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.zeroed(bytes, |whole| self.driver.allocate_uncached(whole))
    }

    fn zeroed(
        self: &Arc<Context>,
        bytes: usize,
        allocate: impl FnOnce(usize) -> Result<*mut c_void, Fault>,
    ) -> Result<DeviceBuffer, DeviceError> {
        self.enter()?;
        let whole = bytes.saturating_add(SLACK);
        let start = self.sized(bytes, allocate(whole))?;
        let memory = GpuMemory { context: self.clone(), start, len: bytes, stream: self.stream, owner: Owner::Runtime };
        // SAFETY: the memory has at least this many bytes.
        self.check(unsafe { self.driver.fill(start, 0, whole, self.stream) })?;
        Ok(DeviceBuffer::Device(Box::new(memory)))
    }

    /// Memory of the caller's.
    pub fn adopt(self: &Arc<Context>, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        let (start, stream) = (start.as_ptr().cast(), self.stream);
        let memory = GpuMemory { context: self.clone(), start, len: bytes, stream, owner: Owner::Caller };
        DeviceBuffer::Device(Box::new(memory))
    }

    /// Uninitialised memory for the work that is put on a stream from now on until it is dropped.
    /// Neither call waits.
    ///
    /// # Safety
    /// The stream is one of the device's, and stays until the memory has been dropped.
    pub unsafe fn scratch(self: &Arc<Context>, bytes: usize, stream: Handle) -> Result<DeviceBuffer, DeviceError> {
        self.enter()?;
        // SAFETY: passed on to the caller.
        let made = unsafe { self.driver.allocate_on(bytes + SLACK, stream) };
        let start = self.sized(bytes, made)?;
        let memory = GpuMemory { context: self.clone(), start, len: bytes, stream, owner: Owner::Stream };
        Ok(DeviceBuffer::Device(Box::new(memory)))
    }

    /// Zeroed memory of the host that the device copies from by itself.
    pub fn pinned(self: &Arc<Context>, bytes: usize) -> Result<Buffer, DeviceError> {
        self.enter()?;
        let start = self.sized(bytes, self.driver.allocate_host(bytes + SLACK))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| self.fault("no memory of the host".into()))?;
        let context = self.clone();
        let release = move |start: NonNull<u8>| {
            if context.enter().is_ok() {
                // SAFETY: memory that was allocated above, freed once. An error cannot be reported
                // from here.
                let _ = unsafe { context.driver.free_host(start.as_ptr().cast()) };
            }
        };
        // SAFETY: the memory was just made, that long, and has no other user.
        unsafe {
            start.write_bytes(0, bytes + SLACK);
            Ok(Buffer::foreign(start, bytes, Box::new(release)))
        }
    }

    pub fn event(self: &Arc<Context>, timing: bool) -> Result<Event, DeviceError> {
        self.enter()?;
        Ok(Event { context: self.clone(), event: self.check(self.driver.event(timing))? })
    }

    /// Bytes that move in a second while the device copies `bytes` bytes in its memory.
    pub fn copy_rate(self: &Arc<Context>, bytes: usize) -> Result<f64, DeviceError> {
        let (from, to) = (self.allocate(bytes)?, self.allocate(bytes)?);
        let (start, end) = (self.event(true)?, self.event(true)?);
        let mut best = u64::MAX;
        for _ in 0..COPIES {
            start.record()?;
            // SAFETY: both are of this device and that long, and stay until the copy has been
            // waited for.
            unsafe { self.copy_within(to.address(), from.address(), bytes) }?;
            end.record()?;
            end.wait()?;
            best = best.min(end.nanoseconds_since(&start)?);
        }
        Ok(2.0 * bytes as f64 / (best.max(1) as f64 * 1e-9))
    }

    /// Puts a copy in the device's memory on the stream.
    ///
    /// # Safety
    /// Both places are memory of the device that holds the bytes until the copy is done, and do not
    /// overlap.
    pub unsafe fn copy_within(&self, to: *mut u8, from: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: passed on to the caller.
        self.check(unsafe { self.driver.copy_within(to.cast(), from.cast(), bytes, self.stream) })
    }

    /// Puts a copy to the device on the stream.
    ///
    /// # Safety
    /// `to` is memory of the device that holds the bytes, and they stay as they are until the copy
    /// is done.
    pub unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: passed on to the caller.
        self.check(unsafe { self.driver.copy_in(to.cast(), from, self.stream) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        if self.owned && !self.stream.is_null() {
            // SAFETY: the stream was made by `open`, and nothing that used it is left.
            let _ = unsafe { self.driver.destroy_stream(self.stream) };
        }
        let _ = self.driver.close(self.ordinal);
    }
}

#[derive(Debug)]
struct GpuMemory {
    context: Arc<Context>,
    start: *mut c_void,
    len: usize,
    /// On which it is copied and filled.
    stream: Handle,
    owner: Owner,
}

/// The owner of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Allocated here.
    Runtime,
    /// Allocated here, in the order of its stream.
    Stream,
    Caller,
}

// SAFETY: the pointer is an address of the device, which drivers' functions take on any thread.
unsafe impl Send for GpuMemory {}

impl GpuMemory {
    fn at(&self, range: Range<usize>) -> *mut c_void {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes of a device", self.len);
        self.start.wrapping_byte_add(range.start)
    }

    /// Waits for everything on the stream.
    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is alive.
        self.context.check(unsafe { self.context.driver.synchronise(self.stream) })
    }
}

impl DeviceMemory for GpuMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn address(&self) -> *mut u8 {
        self.start.cast()
    }

    fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        let to = self.at(offset..offset + from.len());
        self.context.enter()?;
        // SAFETY: in bounds, and the bytes are borrowed until the copy is done.
        self.context.check(unsafe { self.context.driver.copy_in(to, from, self.stream) })?;
        self.wait()
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let (context, from) = (&self.context, self.at(offset..offset + to.len()));
        context.enter()?;
        // SAFETY: in bounds, and the bytes are borrowed until the copy is done.
        context.check(unsafe { context.driver.copy_out(to, from, self.stream) })?;
        self.wait()
    }

    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        let (context, bytes, start) = (&self.context, range.len(), self.at(range));
        context.enter()?;
        // SAFETY: in bounds.
        context.check(unsafe { context.driver.fill(start, value, bytes, self.stream) })
    }

    fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError> {
        let (context, bytes) = (&self.context, range.len());
        let (from, to) = (self.at(range), self.at(to..to + bytes));
        context.enter()?;
        // SAFETY: both are in bounds, and do not overlap by the caller's word.
        context.check(unsafe { context.driver.copy_within(to, from, bytes, self.stream) })
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        if self.owner == Owner::Caller || self.context.enter().is_err() {
            return;
        }
        // SAFETY: memory that was made here, freed once. Drivers wait for work that still uses it,
        // or free it after that work.
        let _ = unsafe {
            match self.owner {
                Owner::Stream => self.context.driver.free_on(self.start, self.stream),
                _ => self.context.driver.free(self.start),
            }
        };
    }
}

/// A point on the stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    event: Handle,
}

// SAFETY: an event is a handle that drivers' functions take on any thread.
unsafe impl Send for Event {}

impl Event {
    pub fn record(&self) -> Result<(), DeviceError> {
        // SAFETY: event and stream are alive.
        self.context.check(unsafe { self.context.driver.record(self.event, self.context.stream) })
    }

    pub fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event is alive.
        self.context.check(unsafe { self.context.driver.wait(self.event) })
    }

    pub fn nanoseconds_since(&self, earlier: &Event) -> Result<u64, DeviceError> {
        // SAFETY: both events are alive.
        let milliseconds = unsafe { self.context.driver.milliseconds(earlier.event, self.event) };
        Ok((f64::from(self.context.check(milliseconds)?) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `Context::event`, destroyed once.
            let _ = unsafe { self.context.driver.destroy_event(self.event) };
        }
    }
}
