//! A stream of one HIP device, and what lives on it: memory, events, modules, graphs. Each keeps the context, so that the order
//! in which they are dropped does not matter.
//!
//! HIP has a current device for each thread of the host; every call here names its own first.
use super::super::{DeviceBuffer, DeviceError, DeviceMemory};
use super::api::{Api, SUCCESS};
use crate::memory::{Buffer, SLACK};
use hip_sys::*;
use std::ffi::{CString, c_int, c_void};
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

#[derive(Debug)]
pub struct Context {
    pub api: Api,
    ordinal: c_int,
    stream: hipStream_t,
    /// Whether the stream was made here.
    owned: bool,
}

// SAFETY: HIP's functions may be called from any thread, and the stream is only a handle.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a call of HIP's gives: nothing, or an error that names it.
macro_rules! call {
    ($context:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $context.check(stringify!($name), ($context.api.$name)($($arg),*))
    };
}
pub(super) use call;

impl Context {
    /// A stream of the caller's, which outlives everything on it, or a new one.
    pub fn open(api: Api, ordinal: usize, stream: Option<hipStream_t>) -> Result<Arc<Context>, DeviceError> {
        let count = super::count(&api)?;
        if ordinal >= count {
            return Err(DeviceError::NoDevice { ordinal, count });
        }
        let owned = stream.is_none();
        let mut context = Context { api, ordinal: ordinal as c_int, stream: stream.unwrap_or(null_mut()), owned };
        context.enter()?;
        if owned {
            let mut made = null_mut();
            // SAFETY: the pointer is to a local.
            unsafe { call!(context, hipStreamCreateWithFlags(&mut made, hipStreamNonBlocking)) }?;
            context.stream = made;
        }
        Ok(Arc::new(context))
    }

    /// Makes the device this thread's current one.
    pub fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: it takes no pointers.
        unsafe { call!(self, hipSetDevice(self.ordinal)) }
    }

    pub fn stream(&self) -> hipStream_t {
        self.stream
    }

    pub fn check(&self, call: &str, code: hipError_t) -> Result<(), DeviceError> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.fault(format!("{call}: {}", self.api.describe(code)))),
        }
    }

    pub fn fault(&self, detail: String) -> DeviceError {
        DeviceError::Failed { device: format!("hip:{}", self.ordinal), detail }
    }

    /// Waits for everything on the stream.
    pub fn synchronise(&self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the stream is alive.
        unsafe { call!(self, hipStreamSynchronize(self.stream)) }
    }

    /// Zeroed memory of the device.
    pub fn allocate(self: &Arc<Context>, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.enter()?;
        let mut start = null_mut();
        let whole = bytes.saturating_add(SLACK);
        // SAFETY: the pointer is to a local; the memory is as long as what is cleared.
        unsafe {
            self.check(&format!("hipMalloc of {bytes} bytes"), (self.api.hipMalloc)(&mut start, whole))?;
            let memory = HipMemory { context: self.clone(), start, len: bytes };
            call!(self, hipMemsetAsync(start, 0, whole, self.stream))?;
            Ok(DeviceBuffer::Device(Box::new(memory)))
        }
    }

    /// Zeroed memory of the host that the device copies from by itself.
    pub fn pinned(self: &Arc<Context>, bytes: usize) -> Result<Buffer, DeviceError> {
        self.enter()?;
        let mut start = null_mut();
        // SAFETY: the pointer is to a local.
        unsafe { call!(self, hipHostMalloc(&mut start, bytes + SLACK, 0)) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| self.fault("hipHostMalloc gave nothing".into()))?;
        let context = self.clone();
        let release = move |start: NonNull<u8>| {
            // SAFETY: what was allocated above, freed once. Nobody can be told of an error.
            let _ = unsafe { call!(context, hipHostFree(start.as_ptr().cast())) };
        };
        // SAFETY: the memory was just made, that long, and belongs to nobody else.
        unsafe {
            start.write_bytes(0, bytes + SLACK);
            Ok(Buffer::foreign(start, bytes, Box::new(release)))
        }
    }

    pub fn event(self: &Arc<Context>, timing: bool) -> Result<Event, DeviceError> {
        self.enter()?;
        let mut event = null_mut();
        let flags = if timing { 0 } else { hipEventDisableTiming };
        // SAFETY: the pointer is to a local.
        unsafe { call!(self, hipEventCreateWithFlags(&mut event, flags)) }?;
        Ok(Event { context: self.clone(), event })
    }

    /// Puts a copy to the device on the stream.
    ///
    /// # Safety
    /// `to` is memory of the device that holds the bytes, and they stay as they are until the copy is done.
    pub unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: passed on to the caller.
        unsafe { call!(self, hipMemcpyHtoDAsync(to.cast(), from.as_ptr().cast(), from.len(), self.stream)) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.owned && !self.stream.is_null() {
            // SAFETY: the stream was made by `open`, and nothing that used it is left.
            let _ = unsafe { call!(self, hipStreamDestroy(self.stream)) };
        }
    }
}

#[derive(Debug)]
struct HipMemory {
    context: Arc<Context>,
    start: *mut c_void,
    len: usize,
}

// SAFETY: the pointer is an address of the device, which HIP's functions take on any thread.
unsafe impl Send for HipMemory {}

impl HipMemory {
    fn at(&self, range: Range<usize>) -> *mut c_void {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes of a device", self.len);
        self.start.wrapping_byte_add(range.start)
    }
}

impl DeviceMemory for HipMemory {
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
        unsafe { self.context.copy_in(to.cast(), from) }?;
        self.context.synchronise()
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        let (context, from) = (&self.context, self.at(offset..offset + to.len()));
        context.enter()?;
        // SAFETY: in bounds, and the bytes are borrowed until the copy is done.
        unsafe { call!(context, hipMemcpyDtoHAsync(to.as_mut_ptr().cast(), from, to.len(), context.stream)) }?;
        context.synchronise()
    }

    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        let (context, bytes, start) = (&self.context, range.len(), self.at(range));
        context.enter()?;
        // SAFETY: in bounds.
        unsafe { call!(context, hipMemsetAsync(start, value.into(), bytes, context.stream)) }
    }
}

impl Drop for HipMemory {
    fn drop(&mut self) {
        // SAFETY: what `allocate` made, freed once; HIP waits for work that still uses it.
        let _ = unsafe { call!(self.context, hipFree(self.start)) };
    }
}

/// A point on the stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    event: hipEvent_t,
}

// SAFETY: an event is a handle that HIP's functions take on any thread.
unsafe impl Send for Event {}

impl Event {
    pub fn record(&self) -> Result<(), DeviceError> {
        // SAFETY: event and stream are alive.
        unsafe { call!(self.context, hipEventRecord(self.event, self.context.stream)) }
    }

    pub fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the event is alive.
        unsafe { call!(self.context, hipEventSynchronize(self.event)) }
    }

    pub fn nanoseconds_since(&self, earlier: &Event) -> Result<u64, DeviceError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive, the pointer is to a local.
        unsafe { call!(self.context, hipEventElapsedTime(&mut milliseconds, earlier.event, self.event)) }?;
        Ok((f64::from(milliseconds) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `Context::event`, destroyed once.
        let _ = unsafe { call!(self.context, hipEventDestroy(self.event)) };
    }
}

/// A loaded code object and its kernels, in the order of their names.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    module: hipModule_t,
    pub kernels: Vec<hipFunction_t>,
}

// SAFETY: handles that HIP's functions take on any thread.
unsafe impl Send for Module {}

impl Module {
    pub fn load<'a>(
        context: &Arc<Context>,
        code: &[u8],
        symbols: impl Iterator<Item = &'a str>,
    ) -> Result<Module, DeviceError> {
        context.enter()?;
        let mut module = null_mut();
        // SAFETY: the code is a whole object, whose headers say how long it is; the checksums of the artifact say so.
        unsafe { call!(context, hipModuleLoadData(&mut module, code.as_ptr().cast())) }?;
        let mut loaded = Module { context: context.clone(), module, kernels: Vec::new() };
        for symbol in symbols {
            let mut kernel = null_mut();
            let name = CString::new(symbol).map_err(|_| context.fault(format!("{symbol:?} is not a symbol")))?;
            // SAFETY: the module is loaded, the name a C string, the pointer to a local.
            let code = unsafe { (context.api.hipModuleGetFunction)(&mut kernel, module, name.as_ptr()) };
            context.check(&format!("hipModuleGetFunction of `{symbol}`"), code)?;
            loaded.kernels.push(kernel);
        }
        Ok(loaded)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once.
        let _ = unsafe { call!(self.context, hipModuleUnload(self.module)) };
    }
}
