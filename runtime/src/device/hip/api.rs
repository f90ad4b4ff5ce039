//! HIP's functions, found at run time: the signatures are those of the bindings, the library is the machine's.
#![allow(non_snake_case, reason = "these are HIP's names")]
use super::super::DeviceError;
use hip_sys::*;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Where the library may be: as the loader finds it, with the version in its name where only the runtime is installed, and
/// where ROCm puts it.
const LIBRARIES: [&str; 4] = ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"];

pub const SUCCESS: hipError_t = hipError_t_hipSuccess;
pub const NO_DEVICE: hipError_t = hipError_t_hipErrorNoDevice;

macro_rules! functions {
    ($($name:ident($($ty:ty),* $(,)?) -> $result:ty;)*) => {
        /// What this runtime uses of HIP.
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($ty),*) -> $result,)*
            _library: Library,
        }

        impl Api {
            fn find(library: Library) -> Result<Api, String> {
                $(
                    // SAFETY: the symbol is a function of HIP's interface, which the bindings describe.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| format!("it has no {}: ROCm 6 or later is needed", stringify!($name)))?;
                )*
                Ok(Api { $($name,)* _library: library })
            }
        }

        /// The signatures above are the bindings'.
        const _: () = { $(let _: unsafe extern "C" fn($($ty),*) -> $result = hip_sys::$name;)* };
    };
}

functions! {
    hipInit(c_uint) -> hipError_t;
    hipGetDeviceCount(*mut c_int) -> hipError_t;
    hipGetDevicePropertiesR0600(*mut hipDeviceProp_tR0600, c_int) -> hipError_t;
    hipSetDevice(c_int) -> hipError_t;
    hipGetErrorName(hipError_t) -> *const c_char;
    hipGetErrorString(hipError_t) -> *const c_char;
    hipStreamCreateWithFlags(*mut hipStream_t, c_uint) -> hipError_t;
    hipStreamDestroy(hipStream_t) -> hipError_t;
    hipStreamSynchronize(hipStream_t) -> hipError_t;
    hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode) -> hipError_t;
    hipStreamEndCapture(hipStream_t, *mut hipGraph_t) -> hipError_t;
    hipGraphInstantiate(*mut hipGraphExec_t, hipGraph_t, *mut hipGraphNode_t, *mut c_char, usize) -> hipError_t;
    hipGraphDestroy(hipGraph_t) -> hipError_t;
    hipGraphLaunch(hipGraphExec_t, hipStream_t) -> hipError_t;
    hipGraphExecDestroy(hipGraphExec_t) -> hipError_t;
    hipEventCreateWithFlags(*mut hipEvent_t, c_uint) -> hipError_t;
    hipEventRecord(hipEvent_t, hipStream_t) -> hipError_t;
    hipEventSynchronize(hipEvent_t) -> hipError_t;
    hipEventElapsedTime(*mut f32, hipEvent_t, hipEvent_t) -> hipError_t;
    hipEventDestroy(hipEvent_t) -> hipError_t;
    hipMalloc(*mut *mut c_void, usize) -> hipError_t;
    hipFree(*mut c_void) -> hipError_t;
    hipHostMalloc(*mut *mut c_void, usize, c_uint) -> hipError_t;
    hipHostFree(*mut c_void) -> hipError_t;
    hipMemsetAsync(*mut c_void, c_int, usize, hipStream_t) -> hipError_t;
    hipMemcpyHtoDAsync(hipDeviceptr_t, *const c_void, usize, hipStream_t) -> hipError_t;
    hipMemcpyDtoHAsync(*mut c_void, hipDeviceptr_t, usize, hipStream_t) -> hipError_t;
    hipModuleLoadData(*mut hipModule_t, *const c_void) -> hipError_t;
    hipModuleUnload(hipModule_t) -> hipError_t;
    hipModuleGetFunction(*mut hipFunction_t, hipModule_t, *const c_char) -> hipError_t;
    hipModuleLaunchKernel(
        hipFunction_t, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, hipStream_t, *mut *mut c_void, *mut *mut c_void,
    ) -> hipError_t;
}

impl Api {
    /// The library of this machine, or the one at a path.
    pub fn load(path: Option<&str>) -> Result<Api, DeviceError> {
        let names = path.as_ref().map_or(&LIBRARIES[..], std::slice::from_ref);
        // SAFETY: loading HIP runs its initialisers, as it does in every program that uses it.
        let library = names.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let absent = || format!("none of {} can be loaded", names.join(", "));
        let api = library.ok_or_else(absent).and_then(Api::find).map_err(|detail| DeviceError::NoHip { detail })?;
        // SAFETY: it takes no pointers.
        match unsafe { (api.hipInit)(0) } {
            SUCCESS => Ok(api),
            code => Err(DeviceError::NoHip { detail: format!("hipInit: {}", api.describe(code)) }),
        }
    }

    /// The name and the meaning of an error.
    pub fn describe(&self, code: hipError_t) -> String {
        let text = |pointer: *const c_char| match pointer.is_null() {
            true => String::new(),
            // SAFETY: HIP's texts are static C strings.
            false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
        };
        // SAFETY: any number may be asked for.
        let (name, meaning) = unsafe { ((self.hipGetErrorName)(code), (self.hipGetErrorString)(code)) };
        format!("{} ({})", text(name), text(meaning))
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Api")
    }
}
