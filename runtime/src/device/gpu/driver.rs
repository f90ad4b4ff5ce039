//! The calls of a vendor's driver that the runtime uses. HIP and CUDA offer the same under other
//! names, so everything above this is written once. Handles are the driver's own and go through
//! untouched; the caller that makes one keeps it alive as long as it is used.
use super::{GpuDevice, Vendor};
pub use libloading::os::unix::Library;
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_uint, c_void};
use std::fmt::Debug;

/// A stream, an event, a module, a kernel, a graph, or a device as [`Driver::enter`] takes it.
pub type Handle = *mut c_void;

/// The call that failed, the driver's text, and the meaning of the fault.
#[derive(Clone, Debug)]
pub struct Fault {
    pub trouble: Trouble,
    pub text: String,
}

/// The meaning of a driver's error for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The device has no memory for it.
    Memory,
    /// A kernel made an invalid access; its results are unknown.
    Kernel,
    /// The device does not answer any more, for this process at least.
    Lost,
    Other,
}

impl Trouble {
    /// By the driver's code: HIP has CUDA's numbers (`cuda.h`, `hip_runtime_api.h`).
    pub fn of(code: c_uint) -> Trouble {
        match code {
            // OUT_OF_MEMORY.
            2 => Trouble::Memory,
            // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT, HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION,
            // MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC, LAUNCH_FAILED.
            700 | 702 | 710 | 714..=719 => Trouble::Kernel,
            // DEINITIALIZED, DEVICE_UNAVAILABLE, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT,
            // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTEXT_IS_DESTROYED.
            4 | 46 | 100 | 101 | 201 | 214 | 220 | 709 => Trouble::Lost,
            _ => Trouble::Other,
        }
    }
}

/// The code of HIP and CUDA that a device reaches another one already.
pub const REACHED: c_uint = 704;

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault { trouble: Trouble::Other, text }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub kernel: Handle,
    pub groups: c_uint,
    pub threads: c_uint,
    /// Bytes of shared memory in addition to those that the code declares.
    pub shared: c_uint,
    /// Whether the kernel may begin before the one before it has ended.
    pub overlaps: bool,
}

/// A loaded driver.
///
/// # Safety
/// For all functions that take handles, addresses or pointers: they are the driver's, still alive,
/// of the current device. Memory is as long as the call uses it, and stays until the stream has
/// done the work.
pub trait Driver: Debug + Send + Sync {
    fn vendor(&self) -> Vendor;
    fn count(&self) -> Result<usize, Fault>;
    fn describe(&self, ordinal: usize) -> Result<GpuDevice, Fault>;

    /// A device to enter, until it is closed.
    fn open(&self, ordinal: usize) -> Result<Handle, Fault>;
    fn close(&self, ordinal: usize) -> Result<(), Fault>;
    /// Makes a device this thread's current one.
    unsafe fn enter(&self, device: Handle) -> Result<(), Fault>;

    /// Lets kernels of the current device, of this number, reach the memory of another one; false
    /// if they cannot.
    unsafe fn reach(&self, ordinal: usize, peer: (usize, Handle)) -> Result<bool, Fault>;

    fn stream(&self) -> Result<Handle, Fault>;
    unsafe fn destroy_stream(&self, stream: Handle) -> Result<(), Fault>;
    unsafe fn synchronise(&self, stream: Handle) -> Result<(), Fault>;

    fn event(&self, timing: bool) -> Result<Handle, Fault>;
    unsafe fn destroy_event(&self, event: Handle) -> Result<(), Fault>;
    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Fault>;
    unsafe fn wait(&self, event: Handle) -> Result<(), Fault>;
    unsafe fn milliseconds(&self, from: Handle, to: Handle) -> Result<f32, Fault>;

    fn allocate(&self, bytes: usize) -> Result<*mut c_void, Fault>;
    /// Memory that other devices' kernels write while this one's read it: no cache keeps it.
    fn allocate_uncached(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        self.allocate(bytes)
    }
    unsafe fn free(&self, start: *mut c_void) -> Result<(), Fault>;
    /// Memory for later work on a stream.
    unsafe fn allocate_on(&self, bytes: usize, stream: Handle) -> Result<*mut c_void, Fault>;
    /// Frees such memory after the work that is on the stream.
    unsafe fn free_on(&self, start: *mut c_void, stream: Handle) -> Result<(), Fault>;
    /// Memory of the host that the device copies from by itself.
    fn allocate_host(&self, bytes: usize) -> Result<*mut c_void, Fault>;
    unsafe fn free_host(&self, start: *mut c_void) -> Result<(), Fault>;
    unsafe fn fill(&self, start: *mut c_void, value: u8, bytes: usize, stream: Handle) -> Result<(), Fault>;
    unsafe fn copy_in(&self, to: *mut c_void, from: &[u8], stream: Handle) -> Result<(), Fault>;
    /// Copies in the device's memory; the places do not overlap.
    unsafe fn copy_within(&self, to: *mut c_void, from: *mut c_void, bytes: usize, stream: Handle)
    -> Result<(), Fault>;
    unsafe fn copy_out(&self, to: &mut [u8], from: *mut c_void, stream: Handle) -> Result<(), Fault>;

    /// Loads code that marks its own end.
    unsafe fn load(&self, code: &[u8]) -> Result<Handle, Fault>;
    unsafe fn unload(&self, module: Handle) -> Result<(), Fault>;
    unsafe fn kernel(&self, module: Handle, symbol: &CStr) -> Result<Handle, Fault>;
    /// Lets a kernel be started with `bytes` bytes of shared memory.
    unsafe fn allow_shared(&self, kernel: Handle, bytes: usize) -> Result<(), Fault>;
    /// Puts a kernel on the stream. The parameters are copied.
    unsafe fn launch(&self, start: Start, parameters: &[*mut c_void], stream: Handle) -> Result<(), Fault>;

    unsafe fn begin_capture(&self, stream: Handle) -> Result<(), Fault>;
    /// The captured graph. It may be there although the capture failed.
    unsafe fn end_capture(&self, stream: Handle, graph: &mut Handle) -> Result<(), Fault>;
    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), Fault>;
    unsafe fn instantiate(&self, graph: Handle) -> Result<Handle, Fault>;
    unsafe fn replay(&self, graph: Handle, stream: Handle) -> Result<(), Fault>;
    unsafe fn destroy_instance(&self, graph: Handle) -> Result<(), Fault>;
}

/// A table of a driver's functions, found at run time; each gives an error code. The signatures are
/// compared with those of the bindings; `bound` gives their form.
macro_rules! functions {
    ($bound:ident, $needs:ident; $($name:ident($($ty:ty),* $(,)?);)*) => {
        /// The functions of the driver that this runtime uses.
        #[allow(non_snake_case, reason = "these are the driver's names")]
        struct Api {
            $($name: unsafe extern "C" fn($($ty),*) -> c_uint,)*
            _library: Library,
        }

        impl Api {
            fn find(library: Library) -> Result<Api, String> {
                Ok(Api {
                    $(
                        // SAFETY: the symbol is a function of the driver's interface, which the
                        // bindings describe.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| format!("it has no {}: {} is needed", stringify!($name), $needs))?,
                    )*
                    _library: library,
                })
            }
        }

        const _: () = { $(let _: $bound!($($ty),*) = $name;)* };
    };
}

/// The result of a call of the driver: nothing, or an error that names the call.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the caller's, as the trait says; pointers to results are to locals.
        $driver.check(stringify!($name), unsafe { ($driver.api.$name)($($arg),*) })
    };
}

/// A call that returns a handle through its first argument.
macro_rules! made {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let mut made = std::ptr::null_mut();
        call!($driver, $name(&mut made $(, $arg)*)).map(|()| made.cast())
    }};
}
pub(super) use {call, functions, made};

/// A driver's library: the first that can be loaded. It stays in the process, so that it need not
/// begin anew when it is opened again.
pub fn library(names: &[&str]) -> Result<Library, String> {
    // SAFETY: loading a driver runs its initialisers, as it does in every program that uses it.
    let open = |name: &&str| unsafe { Library::open(Some(*name), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
    let found = names.iter().find_map(|name| open(name).ok());
    found.ok_or_else(|| format!("none of {} can be loaded", names.join(", ")))
}

/// A static text of a driver, which may be none.
pub fn text(pointer: *const std::ffi::c_char) -> String {
    match pointer.is_null() {
        true => String::new(),
        // SAFETY: a driver's texts are static C strings.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
    }
}
