//! A stand-in for HIP's library, `libamdhip64.so`, that runs kernels in the emulator: programs for
//! AMD GPUs run here as on a machine with a GPU, only slowly.
//!
//! It has the functions that load code objects and launch their kernels, with streams, graphs and
//! events, and no more. There is one chip, device 0, which the variable `HIP_EMULATED_CHIP` names.
//! Every call does its work at once. A captured stream does its work when the graph is launched,
//! with the parameters of that time. A fault of a kernel is written to standard error.
mod faults;
mod memory;
mod work;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use atomc_emulator::CodeObject;
use atomc_emulator::isa::Isa;
use hip_sys::*;

use memory::Blocks;
use work::{Function, Queue, Work};

const OK: hipError_t = hipError_t_hipSuccess;
const INVALID: hipError_t = hipError_t_hipErrorInvalidValue;

/// The variable that names the chip, and the chip if it is not set.
const CHIP: (&str, &str) = ("HIP_EMULATED_CHIP", "gfx942");

/// Bytes that the device says it has.
const MEMORY: usize = 64 << 30;

static BLOCKS: LazyLock<Mutex<Blocks>> = LazyLock::new(Mutex::default);

fn blocks() -> MutexGuard<'static, Blocks> {
    // The locked value is whole between any two statements.
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chip, if the emulator knows it.
fn chip() -> Option<&'static Isa> {
    let name = std::env::var(CHIP.0).unwrap_or_else(|_| CHIP.1.into());
    Isa::find(&name)
}

/// Makes a handle to a value, which [`taken`] ends.
///
/// # Safety
/// `to` may be written.
unsafe fn made<T, H>(to: *mut *mut H, value: T) -> hipError_t {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: by the contract of this function.
    unsafe { *to = Box::into_raw(Box::new(value)).cast() };
    OK
}

/// Frees the value of a handle.
///
/// # Safety
/// The handle is one that [`made`] gave for this type, and it is not used any more.
unsafe fn taken<T, H>(handle: *mut H) -> hipError_t {
    if handle.is_null() {
        return INVALID;
    }
    // SAFETY: by the contract of this function.
    drop(unsafe { Box::from_raw(handle.cast::<T>()) });
    OK
}

/// The value of a handle.
///
/// # Safety
/// The handle is null, or one that [`made`] gave for this type and that was not taken.
unsafe fn behind<'h, T, H>(handle: *mut H) -> Option<&'h T> {
    // SAFETY: by the contract of this function.
    unsafe { handle.cast::<T>().as_ref() }
}

/// Functions with HIP's names and contracts: handles are those that this library gave, pointers
/// those that their parameters describe.
macro_rules! hip {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// As HIP has it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> hipError_t {
            if let Some(code) = faults::of(stringify!($name)) {
                return code;
            }
            $body
        }
    )*};
}

hip! {
    /// There is nothing to do if the chip is known.
    fn hipInit(_flags: c_uint) {
        if chip().is_some() { OK } else { hipError_t_hipErrorNoDevice }
    }

    /// One.
    fn hipGetDeviceCount(count: *mut c_int) {
        // SAFETY: by HIP's contract.
        unsafe { *count = 1 };
        OK
    }

    /// The chip's name and its memory; everything else is zero.
    fn hipGetDevicePropertiesR0600(properties: *mut hipDeviceProp_tR0600, device: c_int) {
        let Some(chip) = chip().filter(|_| device == 0) else { return hipError_t_hipErrorInvalidDevice };
        // SAFETY: by HIP's contract, and all zeros are a value of this structure of numbers.
        let properties = unsafe {
            properties.write_bytes(0, 1);
            &mut *properties
        };
        write_text(&mut properties.name, &format!("{} (emulated)", chip.name));
        write_text(&mut properties.gcnArchName, chip.name);
        properties.totalGlobalMem = MEMORY;
        OK
    }

    /// There is one device.
    fn hipDeviceCanAccessPeer(can: *mut c_int, _device: c_int, _peer: c_int) {
        // SAFETY: by HIP's contract.
        unsafe { *can = 0 };
        OK
    }

    /// There is one device.
    fn hipDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) {
        hipError_t_hipErrorInvalidDevice
    }

    /// There is one device.
    fn hipSetDevice(device: c_int) {
        if device == 0 { OK } else { hipError_t_hipErrorInvalidDevice }
    }

    /// A name for each code that this library gives.
    fn hipDrvGetErrorName(code: hipError_t, name: *mut *const c_char) {
        // SAFETY: by HIP's contract.
        unsafe { *name = meaning(code).0.as_ptr() };
        OK
    }

    /// The meaning of the code.
    fn hipDrvGetErrorString(code: hipError_t, text: *mut *const c_char) {
        // SAFETY: by HIP's contract.
        unsafe { *text = meaning(code).1.as_ptr() };
        OK
    }

    /// A queue that is not captured.
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, _flags: c_uint) {
        // SAFETY: by HIP's contract.
        unsafe { made(stream, Queue::default()) }
    }

    /// Ends the queue.
    fn hipStreamDestroy(stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { taken::<Queue, _>(stream) }
    }

    /// Every call has done its work already.
    fn hipStreamSynchronize(_stream: hipStream_t) {
        OK
    }

    /// From now on work is kept.
    fn hipStreamBeginCapture(stream: hipStream_t, _mode: hipStreamCaptureMode) {
        // SAFETY: by HIP's contract.
        unsafe { behind::<Queue, _>(stream) }.map_or(INVALID, |queue| queue.begin())
    }

    /// The kept work, as a graph.
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t) {
        // SAFETY: by HIP's contract.
        match unsafe { behind::<Queue, _>(stream) }.and_then(Queue::end) {
            // SAFETY: by HIP's contract.
            Some(work) => unsafe { made(graph, work) },
            None => INVALID,
        }
    }

    /// Makes an executable graph, which has the same work.
    fn hipGraphInstantiate(
        instance: *mut hipGraphExec_t,
        graph: hipGraph_t,
        _error: *mut hipGraphNode_t,
        _log: *mut c_char,
        _bytes: usize
    ) {
        // SAFETY: by HIP's contract.
        match unsafe { behind::<Vec<Work>, _>(graph) } {
            // SAFETY: by HIP's contract.
            Some(work) => unsafe { made(instance, work.clone()) },
            None => INVALID,
        }
    }

    /// Ends the graph.
    fn hipGraphDestroy(graph: hipGraph_t) {
        // SAFETY: by HIP's contract.
        unsafe { taken::<Vec<Work>, _>(graph) }
    }

    /// Ends the instance.
    fn hipGraphExecDestroy(instance: hipGraphExec_t) {
        // SAFETY: by HIP's contract.
        unsafe { taken::<Vec<Work>, _>(instance) }
    }

    /// Does all that was kept.
    fn hipGraphLaunch(instance: hipGraphExec_t, stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        match unsafe { behind::<Vec<Work>, _>(instance) } {
            // SAFETY: by HIP's contract.
            Some(all) => all.iter().map(|work| unsafe { ask(stream, work.clone()) }).find(|&code| code != OK).unwrap_or(OK),
            None => INVALID,
        }
    }

    /// A point in time.
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, _flags: c_uint) {
        // SAFETY: by HIP's contract.
        unsafe { made(event, Mutex::new(None::<Instant>)) }
    }

    /// Now.
    fn hipEventRecord(event: hipEvent_t, _stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        let Some(event) = (unsafe { behind::<Mutex<Option<Instant>>, _>(event) }) else { return INVALID };
        *event.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        OK
    }

    /// It is over.
    fn hipEventSynchronize(_event: hipEvent_t) {
        OK
    }

    /// Time between two events.
    fn hipEventElapsedTime(milliseconds: *mut f32, from: hipEvent_t, to: hipEvent_t) {
        // SAFETY: by HIP's contract.
        let at = |event| unsafe { behind::<Mutex<Option<Instant>>, _>(event) }
            .and_then(|event| *event.lock().unwrap_or_else(PoisonError::into_inner));
        let (Some(from), Some(to)) = (at(from), at(to)) else { return INVALID };
        // SAFETY: by HIP's contract.
        unsafe { *milliseconds = to.saturating_duration_since(from).as_secs_f32() * 1e3 };
        OK
    }

    /// Ends the event.
    fn hipEventDestroy(event: hipEvent_t) {
        // SAFETY: by HIP's contract.
        unsafe { taken::<Mutex<Option<Instant>>, _>(event) }
    }

    /// Memory that kernels may use.
    fn hipMalloc(start: *mut *mut c_void, bytes: usize) {
        let Some(block) = blocks().allocate(bytes) else { return hipError_t_hipErrorOutOfMemory };
        // SAFETY: by HIP's contract.
        unsafe { *start = block.cast() };
        OK
    }

    /// As [`hipMalloc`].
    fn hipMallocAsync(start: *mut *mut c_void, bytes: usize, _stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { hipMalloc(start, bytes) }
    }

    /// As [`hipMalloc`]: the emulated chips have no caches.
    fn hipExtMallocWithFlags(start: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        // SAFETY: by HIP's contract.
        unsafe { hipMalloc(start, bytes) }
    }

    /// As [`hipMalloc`]: kernels may use it too.
    fn hipHostMalloc(start: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        // SAFETY: by HIP's contract.
        unsafe { hipMalloc(start, bytes) }
    }

    /// Gives memory back.
    fn hipFree(start: *mut c_void) {
        if start.is_null() || blocks().free(start.cast()) { OK } else { INVALID }
    }

    /// As [`hipFree`].
    fn hipFreeAsync(start: *mut c_void, _stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { hipFree(start) }
    }

    /// As [`hipFree`].
    fn hipHostFree(start: *mut c_void) {
        // SAFETY: by HIP's contract.
        unsafe { hipFree(start) }
    }

    /// Bytes of one value.
    fn hipMemsetAsync(to: *mut c_void, value: c_int, bytes: usize, stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { ask(stream, Work::Fill { to: to.addr(), value: value as u8, bytes }) }
    }

    /// Bytes of the host's.
    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *const c_void, bytes: usize, stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { ask(stream, Work::Copy { to: to.addr(), from: from.addr(), bytes }) }
    }

    /// Bytes of the device's.
    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { ask(stream, Work::Copy { to: to.addr(), from: from.addr(), bytes }) }
    }

    /// Bytes for the host.
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t) {
        // SAFETY: by HIP's contract.
        unsafe { ask(stream, Work::Copy { to: to.addr(), from: from.addr(), bytes }) }
    }

    /// A code object for the chip that is here.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) {
        // SAFETY: by HIP's contract the image is whole, and says how long it is.
        let bytes = unsafe { work::image(image.cast()) };
        match CodeObject::load(bytes) {
            // SAFETY: by HIP's contract.
            Ok(code) if chip().is_some_and(|chip| runs(chip, code.isa)) => unsafe { made(module, Arc::new(code)) },
            Ok(_) => hipError_t_hipErrorNoBinaryForGpu,
            Err(fault) => {
                eprintln!("HIP on the emulator: {fault}");
                hipError_t_hipErrorInvalidImage
            }
        }
    }

    /// Ends the module; its functions keep the parts that they need.
    fn hipModuleUnload(module: hipModule_t) {
        // SAFETY: by HIP's contract.
        unsafe { taken::<Arc<CodeObject>, _>(module) }
    }

    /// A kernel by its name. It lives as long as the process.
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) {
        // SAFETY: by HIP's contract.
        let (module, name) = unsafe { (behind::<Arc<CodeObject>, _>(module), CStr::from_ptr(name)) };
        match module.and_then(|code| Function::find(code, name)) {
            // SAFETY: by HIP's contract.
            Some(found) => unsafe { made(function, Arc::new(found)) },
            None => hipError_t_hipErrorNotFound,
        }
    }

    /// Runs a kernel, with its parameters as they are now.
    fn hipModuleLaunchKernel(
        function: hipFunction_t,
        groups_x: c_uint,
        groups_y: c_uint,
        groups_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared: c_uint,
        stream: hipStream_t,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) {
        // SAFETY: by HIP's contract.
        let Some(function) = (unsafe { behind::<Arc<Function>, _>(function) }) else { return INVALID };
        let (groups, threads) = ([groups_x, groups_y, groups_z], [threads_x, threads_y, threads_z]);
        // SAFETY: by HIP's contract.
        unsafe { ask(stream, Function::launch(function, (groups, threads, shared), parameters)) }
    }
}

/// Does work, or keeps it if the stream is captured.
///
/// # Safety
/// As HIP has it for the call that asks.
unsafe fn ask(stream: hipStream_t, work: Work) -> hipError_t {
    // SAFETY: by the contract of this function.
    match unsafe { behind::<Queue, _>(stream) }.map_or(Some(work.clone()), |queue| queue.keep(work)) {
        // SAFETY: by the contract of this function.
        Some(work) => unsafe { work.run(&blocks()) },
        None => OK,
    }
}

/// Whether a chip runs code for a processor: its own, or that of its family.
fn runs(chip: &Isa, code: &Isa) -> bool {
    code.name == chip.name || (code.name.ends_with("-generic") && code.family == chip.family)
}

fn write_text(to: &mut [c_char], text: &str) {
    for (to, byte) in to.iter_mut().zip(text.bytes().chain([0])) {
        *to = byte as c_char;
    }
}

/// The name of a code, and its meaning.
#[allow(non_upper_case_globals, reason = "the names of the codes are HIP's")]
fn meaning(code: hipError_t) -> (&'static CStr, &'static CStr) {
    match code {
        hipError_t_hipSuccess => (c"hipSuccess", c"no error"),
        hipError_t_hipErrorOutOfMemory => (c"hipErrorOutOfMemory", c"out of memory"),
        hipError_t_hipErrorNoDevice => (c"hipErrorNoDevice", c"HIP_EMULATED_CHIP names no chip that is emulated"),
        hipError_t_hipErrorInvalidDevice => (c"hipErrorInvalidDevice", c"there is one device"),
        hipError_t_hipErrorInvalidImage => (c"hipErrorInvalidImage", c"this is no code object"),
        hipError_t_hipErrorNoBinaryForGpu => (c"hipErrorNoBinaryForGpu", c"the code is for another chip"),
        hipError_t_hipErrorNotFound => (c"hipErrorNotFound", c"there is no such kernel"),
        hipError_t_hipErrorContextIsDestroyed => (c"hipErrorContextIsDestroyed", c"the device is gone"),
        hipError_t_hipErrorLaunchFailure => (c"hipErrorLaunchFailure", c"the kernel had a fault"),
        _ => (c"hipErrorInvalidValue", c"a parameter cannot be"),
    }
}
