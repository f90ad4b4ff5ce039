//! NVIDIA's driver: CUDA's driver interface, of version 12 or later.
use super::driver::{Driver, Fault, Handle, Library, REACHED, Start, Trouble, call, functions, library, made, text};
use super::{GpuDevice, Vendor};
use cudarc::driver::sys::*;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

/// The driver's own library; the name without a version is of the development files.
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];

const NEEDS: &str = "a driver for CUDA 12 or later";

const SUCCESS: c_uint = CUresult::CUDA_SUCCESS as c_uint;
const NO_DEVICE: c_uint = CUresult::CUDA_ERROR_NO_DEVICE as c_uint;

// The bindings' results are an enum, which a driver newer than they are may leave: so they are
// taken as numbers.
macro_rules! bound {
    ($($ty:ty),*) => { unsafe fn($($ty),*) -> CUresult };
}

functions! {
    bound, NEEDS;
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuCtxEnablePeerAccess(CUcontext, c_uint);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    cuGraphDestroy(CUgraph);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphExecDestroy(CUgraphExec);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuEventDestroy_v2(CUevent);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemAllocAsync(*mut CUdeviceptr, usize, CUstream);
    cuMemFreeAsync(CUdeviceptr, CUstream);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
}

/// A function that gives a text for an error: it takes a number here, as above.
type Text = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;
const _: unsafe fn(CUresult, *mut *const c_char) -> CUresult = cuGetErrorName;
const _: unsafe fn(CUresult, *mut *const c_char) -> CUresult = cuGetErrorString;

pub struct Cuda {
    api: Api,
    name: Text,
    meaning: Text,
}

impl Cuda {
    /// The library of this machine, or the one at a path.
    pub fn load(path: Option<&str>) -> Result<Cuda, Fault> {
        let library = library(path.as_ref().map_or(LIBRARIES, std::slice::from_ref))?;
        // SAFETY: the symbol is a function of CUDA's interface with this signature.
        let text = |name: &str| match unsafe { library.get::<Text>(name) } {
            Ok(found) => Ok(*found),
            Err(_) => Err(format!("it has no {name}: {NEEDS} is needed")),
        };
        let (name, meaning) = (text("cuGetErrorName")?, text("cuGetErrorString")?);
        let driver = Cuda { api: Api::find(library)?, name, meaning };
        call!(driver, cuInit(0))?;
        Ok(driver)
    }

    fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
        if code == SUCCESS {
            return Ok(());
        }
        let (mut name, mut meaning) = (std::ptr::null(), std::ptr::null());
        // SAFETY: any code is allowed, the pointers are to locals. An unknown code makes them null.
        unsafe {
            (self.name)(code, &mut name);
            (self.meaning)(code, &mut meaning);
        }
        let text = format!("{call}: {} ({})", text(name), text(meaning));
        Err(Fault { trouble: Trouble::of(code), text })
    }

    fn device(&self, ordinal: usize) -> Result<CUdevice, Fault> {
        let mut device = 0;
        call!(self, cuDeviceGet(&mut device, ordinal as c_int)).map(|()| device)
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cuda")
    }
}

/// An address of the device as CUDA has it.
fn at(address: *mut c_void) -> CUdeviceptr {
    address.expose_provenance() as CUdeviceptr
}

impl Driver for Cuda {
    fn vendor(&self) -> Vendor {
        Vendor::Cuda
    }

    fn count(&self) -> Result<usize, Fault> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a local.
        match unsafe { (self.api.cuDeviceGetCount)(&mut count) } {
            NO_DEVICE => Ok(0),
            code => self.check("cuDeviceGetCount", code).map(|()| count.max(0) as usize),
        }
    }

    fn describe(&self, ordinal: usize) -> Result<GpuDevice, Fault> {
        use CUdevice_attribute::*;
        let device = self.device(ordinal)?;
        let (mut name, mut memory): ([c_char; 256], _) = ([0; 256], 0);
        call!(self, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        call!(self, cuDeviceTotalMem_v2(&mut memory, device))?;
        let fact = |which| {
            let mut value: c_int = 0;
            call!(self, cuDeviceGetAttribute(&mut value, which, device)).map(|()| value)
        };
        let major = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(GpuDevice {
            vendor: Vendor::Cuda,
            ordinal,
            name: text(name.as_ptr()),
            arch: format!("sm_{major}{minor}"),
            modes: Vec::new(),
            memory,
            units: fact(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(0) as usize,
        })
    }

    /// The context that everyone in this process shares, so that streams and memory of others can
    /// be used.
    fn open(&self, ordinal: usize) -> Result<Handle, Fault> {
        made!(self, cuDevicePrimaryCtxRetain(self.device(ordinal)?))
    }

    fn close(&self, ordinal: usize) -> Result<(), Fault> {
        call!(self, cuDevicePrimaryCtxRelease_v2(self.device(ordinal)?))
    }

    unsafe fn enter(&self, device: Handle) -> Result<(), Fault> {
        call!(self, cuCtxSetCurrent(device.cast()))
    }

    unsafe fn reach(&self, ordinal: usize, (peer, device): (usize, Handle)) -> Result<bool, Fault> {
        let mut can = 0;
        call!(self, cuDeviceCanAccessPeer(&mut can, self.device(ordinal)?, self.device(peer)?))?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the peer's context is open, by the caller's word.
        match unsafe { (self.api.cuCtxEnablePeerAccess)(device.cast(), 0) } {
            REACHED => Ok(true),
            code => self.check("cuCtxEnablePeerAccess", code).map(|()| true),
        }
    }

    fn stream(&self) -> Result<Handle, Fault> {
        made!(self, cuStreamCreate(CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint))
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Result<(), Fault> {
        call!(self, cuStreamDestroy_v2(stream.cast()))
    }

    unsafe fn synchronise(&self, stream: Handle) -> Result<(), Fault> {
        call!(self, cuStreamSynchronize(stream.cast()))
    }

    fn event(&self, timing: bool) -> Result<Handle, Fault> {
        use CUevent_flags_enum::*;
        made!(self, cuEventCreate(if timing { CU_EVENT_DEFAULT } else { CU_EVENT_DISABLE_TIMING } as c_uint))
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), Fault> {
        call!(self, cuEventDestroy_v2(event.cast()))
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Fault> {
        call!(self, cuEventRecord(event.cast(), stream.cast()))
    }

    unsafe fn wait(&self, event: Handle) -> Result<(), Fault> {
        call!(self, cuEventSynchronize(event.cast()))
    }

    unsafe fn milliseconds(&self, from: Handle, to: Handle) -> Result<f32, Fault> {
        let mut milliseconds = 0.0;
        call!(self, cuEventElapsedTime(&mut milliseconds, from.cast(), to.cast())).map(|()| milliseconds)
    }

    fn allocate(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        let mut start: CUdeviceptr = 0;
        call!(self, cuMemAlloc_v2(&mut start, bytes))?;
        Ok(std::ptr::with_exposed_provenance_mut(start as usize))
    }

    unsafe fn free(&self, start: *mut c_void) -> Result<(), Fault> {
        call!(self, cuMemFree_v2(at(start)))
    }

    unsafe fn allocate_on(&self, bytes: usize, stream: Handle) -> Result<*mut c_void, Fault> {
        let mut start: CUdeviceptr = 0;
        call!(self, cuMemAllocAsync(&mut start, bytes, stream.cast()))?;
        Ok(std::ptr::with_exposed_provenance_mut(start as usize))
    }

    unsafe fn free_on(&self, start: *mut c_void, stream: Handle) -> Result<(), Fault> {
        call!(self, cuMemFreeAsync(at(start), stream.cast()))
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        made!(self, cuMemHostAlloc(bytes, 0))
    }

    unsafe fn free_host(&self, start: *mut c_void) -> Result<(), Fault> {
        call!(self, cuMemFreeHost(start))
    }

    unsafe fn fill(&self, start: *mut c_void, value: u8, bytes: usize, stream: Handle) -> Result<(), Fault> {
        call!(self, cuMemsetD8Async(at(start), value, bytes, stream.cast()))
    }

    unsafe fn copy_in(&self, to: *mut c_void, from: &[u8], stream: Handle) -> Result<(), Fault> {
        call!(self, cuMemcpyHtoDAsync_v2(at(to), from.as_ptr().cast(), from.len(), stream.cast()))
    }

    unsafe fn copy_within(
        &self,
        to: *mut c_void,
        from: *mut c_void,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Fault> {
        call!(self, cuMemcpyDtoDAsync_v2(at(to), at(from), bytes, stream.cast()))
    }

    unsafe fn copy_out(&self, to: &mut [u8], from: *mut c_void, stream: Handle) -> Result<(), Fault> {
        call!(self, cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), at(from), to.len(), stream.cast()))
    }

    unsafe fn load(&self, code: &[u8]) -> Result<Handle, Fault> {
        made!(self, cuModuleLoadData(code.as_ptr().cast()))
    }

    unsafe fn unload(&self, module: Handle) -> Result<(), Fault> {
        call!(self, cuModuleUnload(module.cast()))
    }

    unsafe fn kernel(&self, module: Handle, symbol: &CStr) -> Result<Handle, Fault> {
        made!(self, cuModuleGetFunction(module.cast(), symbol.as_ptr()))
    }

    unsafe fn allow_shared(&self, kernel: Handle, bytes: usize) -> Result<(), Fault> {
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        call!(self, cuFuncSetAttribute(kernel.cast(), most, bytes as c_int))
    }

    unsafe fn launch(&self, start: Start, parameters: &[*mut c_void], stream: Handle) -> Result<(), Fault> {
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: start.groups,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: start.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: start.shared,
            hStream: stream.cast(),
            attrs: &mut overlap,
            numAttrs: start.overlaps.into(),
        };
        call!(self, cuLaunchKernelEx(&config, start.kernel.cast(), parameters.as_ptr().cast_mut(), null_mut()))
    }

    unsafe fn begin_capture(&self, stream: Handle) -> Result<(), Fault> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(self, cuStreamBeginCapture_v2(stream.cast(), mode))
    }

    unsafe fn end_capture(&self, stream: Handle, graph: &mut Handle) -> Result<(), Fault> {
        call!(self, cuStreamEndCapture(stream.cast(), (&raw mut *graph).cast()))
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), Fault> {
        call!(self, cuGraphDestroy(graph.cast()))
    }

    unsafe fn instantiate(&self, graph: Handle) -> Result<Handle, Fault> {
        made!(self, cuGraphInstantiateWithFlags(graph.cast(), 0))
    }

    unsafe fn replay(&self, graph: Handle, stream: Handle) -> Result<(), Fault> {
        call!(self, cuGraphLaunch(graph.cast(), stream.cast()))
    }

    unsafe fn destroy_instance(&self, graph: Handle) -> Result<(), Fault> {
        call!(self, cuGraphExecDestroy(graph.cast()))
    }
}
