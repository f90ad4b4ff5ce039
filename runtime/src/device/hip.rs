//! AMD GPUs through HIP, which is looked for when a device is opened: nothing of ROCm is needed to build.
//!
//! A step is one copy of its inputs, then the launches of its plan, all on one stream. Decode plans are captured when they first
//! run and replayed from then on: whatever varies between steps lies in the inputs.
mod api;
mod context;
mod plan;

use super::{Device, DeviceBuffer, DeviceError, Launches, Memory, StepInputs};
use crate::memory::Buffer;
use crate::pool::Pool;
use api::{Api, NO_DEVICE, SUCCESS};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::{Kernel, Plan, Target};
use context::{Context, Event, Module};
use hip_sys::hipDeviceProp_tR0600;
use plan::Bound;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A GPU of this machine, by HIP's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HipDevice {
    pub ordinal: usize,
    /// E.g. `AMD Instinct MI300X`.
    pub name: String,
    /// The architecture, which is the name of its target, e.g. `gfx942`.
    pub arch: String,
    /// What the architecture's name is followed by, e.g. `sramecc+`, `xnack-`.
    pub modes: Vec<String>,
    /// Bytes of memory.
    pub memory: usize,
}

/// The GPUs of this machine.
pub fn devices() -> Result<Vec<HipDevice>, DeviceError> {
    list(&Api::load(None)?)
}

fn list(api: &Api) -> Result<Vec<HipDevice>, DeviceError> {
    (0..count(api)?).map(|ordinal| describe(api, ordinal)).collect()
}

fn count(api: &Api) -> Result<usize, DeviceError> {
    let mut count: c_int = 0;
    // SAFETY: the pointer is to a local.
    match unsafe { (api.hipGetDeviceCount)(&mut count) } {
        SUCCESS => Ok(count.max(0) as usize),
        NO_DEVICE => Ok(0),
        code => Err(DeviceError::NoHip { detail: format!("hipGetDeviceCount: {}", api.describe(code)) }),
    }
}

fn describe(api: &Api, ordinal: usize) -> Result<HipDevice, DeviceError> {
    let mut properties = MaybeUninit::<hipDeviceProp_tR0600>::zeroed();
    // SAFETY: the pointer is to a local of the structure that this function fills.
    let code = unsafe { (api.hipGetDevicePropertiesR0600)(properties.as_mut_ptr(), ordinal as c_int) };
    if code != SUCCESS {
        let detail = format!("hipGetDeviceProperties: {}", api.describe(code));
        return Err(DeviceError::Failed { device: format!("hip:{ordinal}"), detail });
    }
    // SAFETY: all zeros are a value of this structure of numbers, and HIP has filled it.
    let properties = unsafe { properties.assume_init_ref() };
    let text = |chars: &[std::ffi::c_char]| {
        let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).collect();
        CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |text| text.to_string_lossy().into_owned())
    };
    let arch = text(&properties.gcnArchName);
    let mut parts = arch.split(':').map(str::to_owned);
    Ok(HipDevice {
        ordinal,
        name: text(&properties.name),
        arch: parts.next().unwrap_or_default(),
        modes: parts.collect(),
        memory: properties.totalGlobalMem,
    })
}

/// One GPU of this machine, by its number.
pub fn device(ordinal: usize) -> Result<HipDevice, DeviceError> {
    one(&Api::load(None)?, ordinal)
}

fn one(api: &Api, ordinal: usize) -> Result<HipDevice, DeviceError> {
    match count(api)? {
        count if ordinal < count => describe(api, ordinal),
        count => Err(DeviceError::NoDevice { ordinal, count }),
    }
}

/// A GPU as a device.
#[derive(Debug)]
pub struct Hip {
    name: String,
    plans: Vec<Bound>,
    module: Module,
    kernels: Vec<Kernel>,
    /// The device's block of inputs.
    block: *mut u8,
    /// Where the copy of the inputs ends.
    copied: Event,
    context: Arc<Context>,
    pool: Pool,
}

// SAFETY: the block is an address of the device; all else is `Send`.
unsafe impl Send for Hip {}

impl Hip {
    /// Loads the artifact's code for a device of this architecture onto a stream of its own.
    pub fn open(artifact: &Artifact, target: &Target, ordinal: usize, threads: usize) -> Result<Hip, DeviceError> {
        Hip::with_api(Api::load(None)?, artifact, target, ordinal, None, threads)
    }

    /// The same on a stream of the caller's.
    ///
    /// # Safety
    /// The stream is one of this device, and stays alive as long as the result and the memory that it gave.
    pub unsafe fn on_stream(
        artifact: &Artifact,
        target: &Target,
        ordinal: usize,
        stream: *mut c_void,
        threads: usize,
    ) -> Result<Hip, DeviceError> {
        Hip::with_api(Api::load(None)?, artifact, target, ordinal, Some(stream), threads)
    }

    fn with_api(
        api: Api,
        artifact: &Artifact,
        target: &Target,
        ordinal: usize,
        stream: Option<*mut c_void>,
        threads: usize,
    ) -> Result<Hip, DeviceError> {
        let found = one(&api, ordinal)?;
        let variant = target.variants.iter().find(|variant| variant.features.iter().all(|name| found.has(name)));
        let variant = match variant {
            Some(variant) if target.name == found.arch => variant,
            _ => return Err(DeviceError::NoTarget { wanted: found.full(), have: vec![target.name.clone()] }),
        };
        let context = Context::open(api, ordinal, stream.map(|stream| stream.cast()))?;
        let symbols = target.kernels.iter().map(|kernel| kernel.symbol.as_str());
        let module = Module::load(&context, artifact.section(variant.section), symbols)?;
        let pool = Pool::new(threads).map_err(|source| DeviceError::Threads { threads, source })?;
        Ok(Hip {
            name: format!("hip:{ordinal}:{}", variant.name),
            plans: Vec::new(),
            module,
            kernels: variant.kernels.clone(),
            block: std::ptr::null_mut(),
            copied: context.event(false)?,
            context,
            pool,
        })
    }
}

impl HipDevice {
    fn has(&self, feature: &str) -> bool {
        self.arch == feature || self.modes.iter().any(|mode| mode == feature)
    }

    /// As HIP writes it, e.g. `gfx942:sramecc+:xnack-`.
    fn full(&self) -> String {
        std::iter::once(&self.arch).chain(&self.modes).cloned().collect::<Vec<_>>().join(":")
    }
}

impl Device for Hip {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.context.allocate(bytes)
    }

    fn stage(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.context.pinned(bytes)
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        self.block = memory.inputs.block;
        self.plans = plans.iter().map(|plan| Bound::new(plan, &self.module, &self.kernels, memory)).collect();
        Ok(())
    }

    unsafe fn run(
        &mut self,
        plan: usize,
        inputs: StepInputs<'_>,
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        self.context.enter()?;
        let plan = &mut self.plans[plan];
        // SAFETY: the block holds any step; the bytes are borrowed until the copy is done, which is waited for; the rest is
        // passed on to the caller.
        unsafe {
            self.context.copy_in(self.block, inputs.bytes)?;
            self.copied.record()?;
            let launched = match observe {
                Some(times) => plan.time(&self.context, inputs.size, times),
                None => plan.run(&self.context, inputs.size),
            };
            self.copied.wait().and(launched)
        }
    }
}

#[cfg(test)]
mod tests;
