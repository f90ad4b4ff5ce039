//! AMD's driver: HIP, of ROCm 6 or later.
use super::driver::{Driver, Fault, Handle, Library, REACHED, Start, Trouble, call, functions, library, made, text};
use super::{GpuDevice, Vendor};
use hip_sys::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Names of the library: the loader's, those with the version if only the runtime is installed, and
/// ROCm's own path.
const LIBRARIES: &[&str] = &["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"];

const NEEDS: &str = "ROCm 6 or later";

const NO_DEVICE: c_uint = hipError_t_hipErrorNoDevice;

macro_rules! bound {
    ($($ty:ty),*) => { unsafe extern "C" fn($($ty),*) -> hipError_t };
}

functions! {
    bound, NEEDS;
    hipInit(c_uint);
    hipGetDeviceCount(*mut c_int);
    hipGetDevicePropertiesR0600(*mut hipDeviceProp_tR0600, c_int);
    hipSetDevice(c_int);
    hipDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    hipDeviceEnablePeerAccess(c_int, c_uint);
    hipDrvGetErrorName(hipError_t, *mut *const c_char);
    hipDrvGetErrorString(hipError_t, *mut *const c_char);
    hipStreamCreateWithFlags(*mut hipStream_t, c_uint);
    hipStreamDestroy(hipStream_t);
    hipStreamSynchronize(hipStream_t);
    hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode);
    hipStreamEndCapture(hipStream_t, *mut hipGraph_t);
    hipGraphInstantiate(*mut hipGraphExec_t, hipGraph_t, *mut hipGraphNode_t, *mut c_char, usize);
    hipGraphDestroy(hipGraph_t);
    hipGraphLaunch(hipGraphExec_t, hipStream_t);
    hipGraphExecDestroy(hipGraphExec_t);
    hipEventCreateWithFlags(*mut hipEvent_t, c_uint);
    hipEventRecord(hipEvent_t, hipStream_t);
    hipEventSynchronize(hipEvent_t);
    hipEventElapsedTime(*mut f32, hipEvent_t, hipEvent_t);
    hipEventDestroy(hipEvent_t);
    hipMalloc(*mut *mut c_void, usize);
    hipExtMallocWithFlags(*mut *mut c_void, usize, c_uint);
    hipMallocAsync(*mut *mut c_void, usize, hipStream_t);
    hipFreeAsync(*mut c_void, hipStream_t);
    hipFree(*mut c_void);
    hipHostMalloc(*mut *mut c_void, usize, c_uint);
    hipHostFree(*mut c_void);
    hipMemsetAsync(*mut c_void, c_int, usize, hipStream_t);
    hipMemcpyHtoDAsync(hipDeviceptr_t, *const c_void, usize, hipStream_t);
    hipMemcpyDtoDAsync(hipDeviceptr_t, hipDeviceptr_t, usize, hipStream_t);
    hipMemcpyDtoHAsync(*mut c_void, hipDeviceptr_t, usize, hipStream_t);
    hipModuleLoadData(*mut hipModule_t, *const c_void);
    hipModuleUnload(hipModule_t);
    hipModuleGetFunction(*mut hipFunction_t, hipModule_t, *const c_char);
    hipModuleLaunchKernel(
        hipFunction_t, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, hipStream_t, *mut *mut c_void, *mut *mut c_void,
    );
}

pub struct Hip {
    api: Api,
}

impl Hip {
    /// The library of this machine, or the one at a path.
    pub fn load(path: Option<&str>) -> Result<Hip, Fault> {
        let api = Api::find(library(path.as_ref().map_or(LIBRARIES, std::slice::from_ref))?)?;
        let driver = Hip { api };
        call!(driver, hipInit(0))?;
        Ok(driver)
    }

    fn check(&self, call: &str, code: c_uint) -> Result<(), Fault> {
        if code == hipError_t_hipSuccess {
            return Ok(());
        }
        let (mut name, mut meaning) = (std::ptr::null(), std::ptr::null());
        // SAFETY: any code is allowed, the pointers are to locals. An unknown code leaves them as
        // they are.
        unsafe {
            (self.api.hipDrvGetErrorName)(code, &mut name);
            (self.api.hipDrvGetErrorString)(code, &mut meaning);
        }
        let text = format!("{call}: {} ({})", text(name), text(meaning));
        Err(Fault { trouble: Trouble::of(code), text })
    }
}

impl std::fmt::Debug for Hip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hip")
    }
}

impl Driver for Hip {
    fn vendor(&self) -> Vendor {
        Vendor::Hip
    }

    fn count(&self) -> Result<usize, Fault> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a local.
        match unsafe { (self.api.hipGetDeviceCount)(&mut count) } {
            NO_DEVICE => Ok(0),
            code => self.check("hipGetDeviceCount", code).map(|()| count.max(0) as usize),
        }
    }

    fn describe(&self, ordinal: usize) -> Result<GpuDevice, Fault> {
        let mut properties = MaybeUninit::<hipDeviceProp_tR0600>::zeroed();
        call!(self, hipGetDevicePropertiesR0600(properties.as_mut_ptr(), ordinal as c_int))?;
        // SAFETY: all zeros are a value of this structure of numbers, and HIP has filled it.
        let properties = unsafe { properties.assume_init_ref() };
        let text = |chars: &[c_char]| {
            let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).collect();
            CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |text| text.to_string_lossy().into_owned())
        };
        let arch = text(&properties.gcnArchName);
        let mut parts = arch.split(':').map(str::to_owned);
        Ok(GpuDevice {
            vendor: Vendor::Hip,
            ordinal,
            name: text(&properties.name),
            arch: parts.next().unwrap_or_default(),
            modes: parts.collect(),
            memory: properties.totalGlobalMem,
            units: properties.multiProcessorCount.max(0) as usize,
        })
    }

    /// HIP's devices are numbers, and open always.
    fn open(&self, ordinal: usize) -> Result<Handle, Fault> {
        Ok(std::ptr::without_provenance_mut(ordinal))
    }

    fn close(&self, _: usize) -> Result<(), Fault> {
        Ok(())
    }

    unsafe fn enter(&self, device: Handle) -> Result<(), Fault> {
        call!(self, hipSetDevice(device.addr() as c_int))
    }

    unsafe fn reach(&self, ordinal: usize, (peer, _): (usize, Handle)) -> Result<bool, Fault> {
        let mut can = 0;
        call!(self, hipDeviceCanAccessPeer(&mut can, ordinal as c_int, peer as c_int))?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the peer is one of the driver's devices.
        match unsafe { (self.api.hipDeviceEnablePeerAccess)(peer as c_int, 0) } {
            REACHED => Ok(true),
            code => self.check("hipDeviceEnablePeerAccess", code).map(|()| true),
        }
    }

    fn stream(&self) -> Result<Handle, Fault> {
        made!(self, hipStreamCreateWithFlags(hipStreamNonBlocking))
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> Result<(), Fault> {
        call!(self, hipStreamDestroy(stream.cast()))
    }

    unsafe fn synchronise(&self, stream: Handle) -> Result<(), Fault> {
        call!(self, hipStreamSynchronize(stream.cast()))
    }

    fn event(&self, timing: bool) -> Result<Handle, Fault> {
        made!(self, hipEventCreateWithFlags(if timing { 0 } else { hipEventDisableTiming }))
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), Fault> {
        call!(self, hipEventDestroy(event.cast()))
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<(), Fault> {
        call!(self, hipEventRecord(event.cast(), stream.cast()))
    }

    unsafe fn wait(&self, event: Handle) -> Result<(), Fault> {
        call!(self, hipEventSynchronize(event.cast()))
    }

    unsafe fn milliseconds(&self, from: Handle, to: Handle) -> Result<f32, Fault> {
        let mut milliseconds = 0.0;
        call!(self, hipEventElapsedTime(&mut milliseconds, from.cast(), to.cast())).map(|()| milliseconds)
    }

    fn allocate(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        made!(self, hipMalloc(bytes))
    }

    fn allocate_uncached(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        made!(self, hipExtMallocWithFlags(bytes, hipDeviceMallocUncached))
    }

    unsafe fn free(&self, start: *mut c_void) -> Result<(), Fault> {
        call!(self, hipFree(start))
    }

    unsafe fn allocate_on(&self, bytes: usize, stream: Handle) -> Result<*mut c_void, Fault> {
        made!(self, hipMallocAsync(bytes, stream.cast()))
    }

    unsafe fn free_on(&self, start: *mut c_void, stream: Handle) -> Result<(), Fault> {
        call!(self, hipFreeAsync(start, stream.cast()))
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut c_void, Fault> {
        made!(self, hipHostMalloc(bytes, 0))
    }

    unsafe fn free_host(&self, start: *mut c_void) -> Result<(), Fault> {
        call!(self, hipHostFree(start))
    }

    unsafe fn fill(&self, start: *mut c_void, value: u8, bytes: usize, stream: Handle) -> Result<(), Fault> {
        call!(self, hipMemsetAsync(start, value.into(), bytes, stream.cast()))
    }

    unsafe fn copy_in(&self, to: *mut c_void, from: &[u8], stream: Handle) -> Result<(), Fault> {
        call!(self, hipMemcpyHtoDAsync(to, from.as_ptr().cast(), from.len(), stream.cast()))
    }

    unsafe fn copy_within(
        &self,
        to: *mut c_void,
        from: *mut c_void,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Fault> {
        call!(self, hipMemcpyDtoDAsync(to, from, bytes, stream.cast()))
    }

    unsafe fn copy_out(&self, to: &mut [u8], from: *mut c_void, stream: Handle) -> Result<(), Fault> {
        call!(self, hipMemcpyDtoHAsync(to.as_mut_ptr().cast(), from, to.len(), stream.cast()))
    }

    unsafe fn load(&self, code: &[u8]) -> Result<Handle, Fault> {
        made!(self, hipModuleLoadData(code.as_ptr().cast()))
    }

    unsafe fn unload(&self, module: Handle) -> Result<(), Fault> {
        call!(self, hipModuleUnload(module.cast()))
    }

    unsafe fn kernel(&self, module: Handle, symbol: &CStr) -> Result<Handle, Fault> {
        made!(self, hipModuleGetFunction(module.cast(), symbol.as_ptr()))
    }

    unsafe fn allow_shared(&self, _: Handle, bytes: usize) -> Result<(), Fault> {
        Err(format!("a kernel wants {bytes} bytes of LDS beside its own, which no kernel for AMD does").into())
    }

    unsafe fn launch(&self, start: Start, parameters: &[*mut c_void], stream: Handle) -> Result<(), Fault> {
        let Start { kernel, groups, threads, .. } = start;
        let (stream, parameters) = (stream.cast(), parameters.as_ptr().cast_mut());
        call!(
            self,
            hipModuleLaunchKernel(kernel.cast(), groups, 1, 1, threads, 1, 1, 0, stream, parameters, null_mut())
        )
    }

    unsafe fn begin_capture(&self, stream: Handle) -> Result<(), Fault> {
        call!(self, hipStreamBeginCapture(stream.cast(), hipStreamCaptureMode_hipStreamCaptureModeThreadLocal))
    }

    unsafe fn end_capture(&self, stream: Handle, graph: &mut Handle) -> Result<(), Fault> {
        call!(self, hipStreamEndCapture(stream.cast(), (&raw mut *graph).cast()))
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), Fault> {
        call!(self, hipGraphDestroy(graph.cast()))
    }

    unsafe fn instantiate(&self, graph: Handle) -> Result<Handle, Fault> {
        made!(self, hipGraphInstantiate(graph.cast(), null_mut(), null_mut(), 0))
    }

    unsafe fn replay(&self, graph: Handle, stream: Handle) -> Result<(), Fault> {
        call!(self, hipGraphLaunch(graph.cast(), stream.cast()))
    }

    unsafe fn destroy_instance(&self, graph: Handle) -> Result<(), Fault> {
        call!(self, hipGraphExecDestroy(graph.cast()))
    }
}
