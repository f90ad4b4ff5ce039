//! GPUs through their vendors' drivers, which are looked for when a device is opened: nothing of
//! ROCm or CUDA is needed to build.
//!
//! A step is one copy of its inputs, then the launches of its plan, all on one stream. Decode plans
//! are captured at their first run, plans for prompts at the second step of a size, and replayed
//! afterwards: whatever else varies between steps is in the inputs.
//!
//! Kernels get only pointers: the arguments of the launch, then the step's sizes and the workspace.
//! Everything that varies between steps is in the block of inputs, so a captured plan can be
//! replayed for any step that fits it. `plan.rs` captures decode plans at their largest grid, and
//! plans for prompts at the grid of their size. The workspace is zero at first, and a kernel that
//! counts in it leaves its counters zero. On NVIDIA a kernel may begin while the previous one ends,
//! if it waits by itself where it has to (`Kernel::overlaps`); graphs keep that. Work-groups that
//! wait for each other need a unit each (`Kernel::together`): a device with fewer is refused when
//! the artifact is opened.
//!
//! `Device::launch` puts a part of a plan on a stream of the caller's and does nothing else, so the
//! stream may be one that is being captured. A framework's tensors are on the device already: each
//! variant has a kernel that makes the block of inputs of them there (`Variant.prepare`). Then the
//! host does not know the contents of a step. The kernel gives every tile of a step a place that
//! follows from the tile alone, which leaves places empty: attention does nothing there.
//!
//! `driver.rs` is the trait of a vendor's driver, some thirty calls; HIP and CUDA are its two
//! implementations. Their functions are looked up in the machine's library when a device is opened.
//! The signatures are checked against the bindings when atomc is built. Tests run the whole path
//! with a stand-in library in C for either driver (`fake.c`): it executes host code as kernels,
//! records the calls, and protects device memory between them.
//!
//! Code for AMD is one code object. For NVIDIA each kernel is a module of its own: PTX always, and
//! a cubin if `ptxas` is at hand when the artifact is made (`ATOMC_PTXAS`, the path, `CUDA_HOME`,
//! `/usr/local/cuda`); its release is part of the compile key. A device takes the target that suits
//! it best: `sm_90a` for compute capability 9.0 alone, `sm_80` for all from 8.0 on. Cubins load on
//! chips of their generation. On others, and without cubins, the driver translates the PTX when the
//! device is opened, which takes seconds.
mod code;
mod context;
mod cuda;
mod driver;
mod exchange;
mod hip;
mod plan;
mod slots;

use super::{Device, DeviceBuffer, DeviceError, Launches, Memory, Part, Peer, StepInputs, Stream, packed};
use crate::memory::Buffer;
use crate::pool::Pool;
use crate::weights::Rank;
use atomc_artifact::Artifact;
use atomc_artifact::abi::{Pack, Prepare};
use atomc_artifact::manifest::{Kernel, Manifest, Plan, Target, Tasks};
use code::Code;
use context::{Context, Event};
use driver::{Driver, Fault, Handle, Start, Trouble};
use exchange::Joined;
use plan::Bound;
use slots::Slots;
use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A vendor of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// AMD's, through HIP.
    Hip,
    /// NVIDIA's, through CUDA.
    Cuda,
}

/// A GPU of this machine, by its driver's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    /// The vendor of the driver that knows it.
    pub vendor: Vendor,
    /// The driver's number, which environment variables of the driver may change.
    pub ordinal: usize,
    /// E.g. `AMD Instinct MI300X`.
    pub name: String,
    /// The architecture: `gfx942`, or for NVIDIA the compute capability, `sm_90`.
    pub arch: String,
    /// The modes after the name of an AMD architecture, e.g. `sramecc+`, `xnack-`.
    pub modes: Vec<String>,
    /// Bytes of memory.
    pub memory: usize,
    /// Compute units, or NVIDIA's multiprocessors.
    pub units: usize,
}

/// The GPU of another rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerGpu {
    vendor: Vendor,
    ordinal: usize,
    device: Handle,
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Vendor::Hip => "HIP",
            Vendor::Cuda => "CUDA",
        })
    }
}

/// As `--device` has it.
impl fmt::Display for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.vendor.prefix(), self.ordinal))
    }
}

impl Vendor {
    /// In the order in which devices are listed.
    pub const ALL: [Vendor; 2] = [Vendor::Hip, Vendor::Cuda];

    /// As `--device` has it.
    pub fn prefix(self) -> &'static str {
        match self {
            Vendor::Hip => "hip",
            Vendor::Cuda => "cuda",
        }
    }

    /// The GPUs of this machine.
    pub fn devices(self) -> Result<Vec<GpuDevice>, DeviceError> {
        list(&*self.load(None)?)
    }

    /// One GPU of this machine, by its number.
    pub fn device(self, ordinal: usize) -> Result<GpuDevice, DeviceError> {
        one(&*self.load(None)?, ordinal)
    }

    /// Starts the driver for one GPU.
    pub fn start(self, ordinal: usize) -> Result<Started, DeviceError> {
        let driver = self.load(None)?;
        one(&*driver, ordinal)?;
        Ok(Started { _context: Context::open(driver, ordinal, None)? })
    }

    /// The driver of this machine, or the one at a path.
    fn load(self, path: Option<&str>) -> Result<Box<dyn Driver>, DeviceError> {
        let start = std::time::Instant::now();
        let loaded = match self {
            Vendor::Hip => hip::Hip::load(path).map(|driver| Box::new(driver) as Box<dyn Driver>),
            Vendor::Cuda => cuda::Cuda::load(path).map(|driver| Box::new(driver) as Box<dyn Driver>),
        };
        tracing::debug!(seconds = start.elapsed().as_secs_f64(), "driver");
        loaded.map_err(|fault| DeviceError::NoDriver { vendor: self, detail: fault.text })
    }

    fn failed(self, ordinal: usize, detail: String) -> DeviceError {
        self.fault(ordinal, detail.into())
    }

    /// The error that a fault of the driver's is.
    fn fault(self, ordinal: usize, fault: Fault) -> DeviceError {
        let (device, detail) = (format!("{}:{ordinal}", self.prefix()), fault.text);
        match fault.trouble {
            Trouble::Memory => DeviceError::Full { device, detail },
            Trouble::Kernel => DeviceError::Kernel { device, detail },
            Trouble::Lost => DeviceError::Lost { device, detail },
            Trouble::Other => DeviceError::Failed { device, detail },
        }
    }
}

/// A driver at work on a GPU. Whatever else of this process uses that GPU meanwhile, this runtime
/// or a framework, need not start it again, which takes longer than to open an artifact.
#[derive(Debug)]
pub struct Started {
    _context: Arc<Context>,
}

fn list(driver: &dyn Driver) -> Result<Vec<GpuDevice>, DeviceError> {
    (0..count(driver)?).map(|ordinal| one(driver, ordinal)).collect()
}

fn count(driver: &dyn Driver) -> Result<usize, DeviceError> {
    driver.count().map_err(|fault| DeviceError::NoDriver { vendor: driver.vendor(), detail: fault.text })
}

fn one(driver: &dyn Driver, ordinal: usize) -> Result<GpuDevice, DeviceError> {
    let vendor = driver.vendor();
    match count(driver)? {
        count if ordinal < count => driver.describe(ordinal).map_err(|fault| vendor.fault(ordinal, fault)),
        count => Err(DeviceError::NoDevice { vendor, ordinal, count }),
    }
}

impl GpuDevice {
    /// The target of an artifact that has the best code for this device.
    pub fn target(&self, manifest: &Manifest) -> Result<usize, DeviceError> {
        let fits = |(index, target): (usize, &Target)| Some((self.fit(&target.name)?, index));
        let best = manifest.targets.iter().enumerate().filter_map(fits).max();
        best.map(|(_, index)| index).ok_or_else(|| DeviceError::NoTarget {
            wanted: self.full(),
            have: manifest.targets.iter().map(|target| target.name.clone()).collect(),
        })
    }

    /// The one of these targets that has the best code for this device, if any runs here.
    pub fn best<'n>(&self, targets: impl Iterator<Item = &'n str>) -> Option<&'n str> {
        targets.filter_map(|name| Some((self.fit(name)?, name))).max().map(|(_, name)| name)
    }

    /// The fit of code for an architecture, or for a mode, to this device; none if it cannot run
    /// there. NVIDIA's code runs on later chips as well, unless its architecture ends in a letter.
    fn fit(&self, wanted: &str) -> Option<Fit> {
        match self.vendor {
            Vendor::Hip if self.arch == wanted || self.modes.iter().any(|mode| mode == wanted) => Some(Fit::Exact),
            Vendor::Hip => {
                let family = FAMILIES.iter().find(|(name, _)| *name == wanted);
                family.filter(|(_, chips)| chips.contains(&self.arch.as_str())).map(|_| Fit::Family(0))
            }
            Vendor::Cuda if wanted.strip_suffix('a') == Some(&self.arch) => Some(Fit::Exact),
            Vendor::Cuda => {
                let (wanted, own) = (capability(wanted)?, capability(&self.arch)?);
                (wanted <= own).then_some(if wanted / 10 == own / 10 {
                    Fit::Family(wanted)
                } else {
                    Fit::Older(wanted)
                })
            }
        }
    }

    /// Whether all work-groups that wait for each other run here at once.
    fn holds(&self, kernels: &[Kernel]) -> Result<(), DeviceError> {
        let waiting = kernels.iter().filter(|kernel| kernel.together > 1);
        let widest = waiting.max_by_key(|kernel| kernel.together);
        widest.filter(|kernel| kernel.together > self.units).map_or(Ok(()), |kernel| {
            Err(DeviceError::Units {
                device: self.to_string(),
                schedule: kernel.schedule.clone(),
                together: kernel.together,
                units: self.units,
            })
        })
    }

    /// As HIP writes it, e.g. `gfx942:sramecc+:xnack-`.
    fn full(&self) -> String {
        std::iter::once(&self.arch).chain(&self.modes).cloned().collect::<Vec<_>>().join(":")
    }
}

/// AMD's families of chips that run the same code, by LLVM's names (AMDGPUUsage, "Generic
/// Processors"), as far as `atomc` compiles for them.
const FAMILIES: [(&str, &[&str]); 3] = [
    ("gfx9-4-generic", &["gfx942", "gfx950"]),
    ("gfx11-generic", &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"]),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];

/// The family of a chip of AMD's.
pub fn family(chip: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|(_, chips)| chips.contains(&chip)).map(|(name, _)| *name)
}

/// How well code suits a device, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// For an older generation: the driver has to translate it.
    Older(u32),
    /// For an older chip of the same generation.
    Family(u32),
    Exact,
}

/// Ten times the compute capability, as in `sm_90`.
fn capability(name: &str) -> Option<u32> {
    name.strip_prefix("sm_")?.parse().ok()
}

/// A GPU as a device.
#[derive(Debug)]
pub struct Gpu {
    name: String,
    product: String,
    plans: Vec<Bound>,
    slots: Slots,
    code: Code,
    kernels: Vec<Kernel>,
    /// The kernels that multiply by the weights of experts.
    routed: Vec<bool>,
    /// How the kernel that makes inputs is started.
    prepare: Option<Start>,
    /// How the kernel that makes weights is started.
    pack: Option<Start>,
    /// How the kernel by which ranks exchange rows is started.
    exchange: Option<Start>,
    /// The rank that this device is, if it exchanges rows with others by itself.
    joined: Option<Joined>,
    /// The device's block of inputs.
    block: *mut u8,
    /// The end of the copy of the inputs.
    copied: Event,
    context: Arc<Context>,
    /// Bytes of the GPU's memory.
    memory: usize,
    pool: Pool,
}

// SAFETY: the block is an address of the device; all else is `Send`.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Loads the artifact's code for a device of this architecture onto a stream of its own.
    pub fn open(
        vendor: Vendor,
        artifact: &Artifact,
        target: &Target,
        ordinal: usize,
        threads: usize,
    ) -> Result<Gpu, DeviceError> {
        Gpu::with_driver(vendor.load(None)?, artifact, target, ordinal, None, threads)
    }

    /// Opens a device on a stream of the caller's.
    ///
    /// # Safety
    /// The stream is one of this device, in CUDA of its primary context, and stays alive as long as
    /// the result and the memory that it gave.
    pub unsafe fn on_stream(
        vendor: Vendor,
        artifact: &Artifact,
        target: &Target,
        ordinal: usize,
        stream: Stream,
        threads: usize,
    ) -> Result<Gpu, DeviceError> {
        Gpu::with_driver(vendor.load(None)?, artifact, target, ordinal, Some(stream.handle()), threads)
    }

    fn with_driver(
        driver: Box<dyn Driver>,
        artifact: &Artifact,
        target: &Target,
        ordinal: usize,
        stream: Option<*mut c_void>,
        threads: usize,
    ) -> Result<Gpu, DeviceError> {
        let found = one(&*driver, ordinal)?;
        let fits = |name: &String| found.fit(name).is_some();
        let variant = target.variants.iter().find(|variant| variant.features.iter().all(fits));
        let Some((variant, fit)) = variant.zip(found.fit(&target.name)) else {
            return Err(DeviceError::NoTarget { wanted: found.full(), have: vec![target.name.clone()] });
        };
        found.holds(&variant.kernels)?;
        let start = std::time::Instant::now();
        let context = Context::open(driver, ordinal, stream)?;
        tracing::debug!(seconds = start.elapsed().as_secs_f64(), "context");
        let mut pool = Pool::new(threads).map_err(|source| DeviceError::Threads { threads, source })?;
        let section = artifact.section(variant.section).map_err(|fault| packed(variant, &fault))?;
        let code = Code::load(&context, section, &target.kernels, variant, fit, &mut pool)?;
        let prepare = code.prepare.zip(variant.prepare.as_ref()).map(|(kernel, facts)| starts(kernel, facts));
        let pack = code.pack.zip(variant.pack.as_ref()).map(|(kernel, facts)| starts(kernel, facts));
        let exchange = code.exchange.zip(variant.exchange.as_ref()).map(|(kernel, facts)| starts(kernel, facts));
        tracing::debug!(seconds = start.elapsed().as_secs_f64(), kernels = target.kernels.len(), "code");
        Ok(Gpu {
            name: format!("{}:{ordinal}:{}", found.vendor.prefix(), variant.name),
            product: found.name,
            plans: Vec::new(),
            slots: Slots::default(),
            code,
            kernels: variant.kernels.clone(),
            routed: target.kernels.iter().map(|kernel| kernel.family.starts_with("grouped")).collect(),
            prepare,
            pack,
            exchange,
            joined: None,
            block: std::ptr::null_mut(),
            copied: context.event(false)?,
            context,
            memory: found.memory,
            pool,
        })
    }
}

/// The start of a kernel with the same tasks for every step.
fn starts(kernel: Handle, facts: &Kernel) -> Start {
    let groups = match facts.tasks {
        Tasks::Fixed(count) => count,
        _ => 1,
    };
    Start {
        kernel,
        groups: groups as c_uint,
        threads: facts.threads as c_uint,
        shared: facts.shared as c_uint,
        overlaps: facts.overlaps,
    }
}

impl Gpu {
    /// Starts a kernel that no plan has.
    ///
    /// # Safety
    /// The parameters are the kernel's, and the memory that it reads and writes is valid. The
    /// stream is one of the device's.
    unsafe fn start<const N: usize>(
        &self,
        kernel: Start,
        groups: usize,
        mut parameters: [u64; N],
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let groups = c_uint::try_from(groups).map_err(|_| self.context.fault(format!("{groups} work-groups")))?;
        self.context.enter()?;
        let pointers = parameters.each_mut().map(|parameter| (&raw mut *parameter).cast::<c_void>());
        // SAFETY: passed on to the caller; the parameters are copied.
        let launched = unsafe { self.context.driver.launch(Start { groups, ..kernel }, &pointers, stream.handle()) };
        self.context.check(launched)
    }
}

impl Device for Gpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn product(&self) -> Option<&str> {
        Some(&self.product)
    }

    fn copy_rate(&mut self, bytes: usize) -> Result<Option<f64>, DeviceError> {
        self.context.copy_rate(bytes).map(Some)
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn memory(&self) -> usize {
        self.memory
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.context.allocate(bytes)
    }

    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        self.context.adopt(start, bytes)
    }

    fn stage(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.context.pinned(bytes)
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        self.block = memory.inputs.block;
        self.slots = Slots::of(memory);
        self.plans = plans
            .iter()
            .map(|plan| Bound::new(plan, &self.code, (&self.kernels, &self.routed), (memory, self.joined.as_ref())))
            .collect();
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
        // SAFETY: the block holds any step; the bytes are borrowed until the copy is done, which is
        // waited for; the rest is passed on to the caller.
        unsafe {
            self.context.copy_in(self.block, inputs.bytes)?;
            self.copied.record()?;
            let launched = match observe {
                Some(times) => plan.time(&self.context, inputs.size, (&self.slots, times)),
                None => plan.run(&self.context, inputs.size),
            };
            self.copied.wait().and(launched)
        }
    }

    fn prepares(&self) -> bool {
        self.prepare.is_some()
    }

    unsafe fn prepare(&mut self, prepare: &Prepare, stream: Stream) -> Result<(), DeviceError> {
        let kernel = self.prepare.ok_or_else(|| self.context.fault("no kernel makes inputs".into()))?;
        // SAFETY: passed on to the caller.
        unsafe { self.start(kernel, prepare.groups(), prepare.parameters(), stream) }
    }

    fn packs(&self) -> bool {
        self.pack.is_some()
    }

    unsafe fn pack(&mut self, pack: &Pack, stream: Stream) -> Result<(), DeviceError> {
        let kernel = self.pack.ok_or_else(|| self.context.fault("no kernel makes weights".into()))?;
        // SAFETY: passed on to the caller.
        unsafe { self.start(kernel, pack.groups(), pack.parameters(), stream) }
    }

    fn offer(&mut self, ranks: usize, plans: &[Plan]) -> Result<Option<Peer>, DeviceError> {
        let Some(start) =
            self.exchange.filter(|_| plans.iter().flat_map(|plan| &plan.calls).all(super::exchange::fits))
        else {
            return Ok(None);
        };
        let joined = self.joined.insert(Joined::new(&self.context, start, ranks)?);
        let (slots, bytes) = joined.rows.slots();
        Ok(Some(Peer { slots, bytes, gpu: Some(self.context.peer()) }))
    }

    fn reach(&mut self, peer: &Peer) -> Result<bool, DeviceError> {
        peer.gpu.map_or(Ok(false), |peer| self.context.reach(&peer))
    }

    fn join(&mut self, rank: Rank, peers: Option<&[Peer]>) -> Result<(), DeviceError> {
        match (peers, &mut self.joined) {
            (Some(peers), Some(joined)) => joined.rows.join(rank, peers),
            _ => {
                self.joined = None;
                Ok(())
            }
        }
    }

    fn missed(&mut self) -> Result<Option<usize>, DeviceError> {
        self.joined.as_mut().map_or(Ok(None), |joined| joined.rows.missed())
    }

    fn stream(&self) -> Stream {
        Stream(self.context.stream().expose_provenance())
    }

    unsafe fn scratch(&mut self, bytes: usize, stream: Stream) -> Result<DeviceBuffer, DeviceError> {
        // SAFETY: passed on to the caller.
        unsafe { self.context.scratch(bytes, stream.handle()) }
    }

    unsafe fn wait(&mut self, stream: Stream) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: passed on to the caller.
        self.context.check(unsafe { self.context.driver.synchronise(stream.handle()) })
    }

    /// The stream may be one that the caller captures. The capture fits every step of no more
    /// tokens, rows and tiles.
    unsafe fn launch(&mut self, part: Part) -> Result<(), DeviceError> {
        self.context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { self.plans[part.plan].enqueue(&self.context, part) }
    }
}

#[cfg(test)]
mod tests;
