//! The processor of this machine: code through the system's loader, launches over the thread pool.
use super::code::Code;
use super::cpu::Cpu;
use super::launch::count_experts;
use super::{Device, DeviceBuffer, DeviceError, Launches, Memory, Part, StepInputs, StepSize, Stream, packed};
use crate::memory::Buffer;
use crate::pool::{Pool, Worker};
use atomc_artifact::Artifact;
use atomc_artifact::abi::HostKernel;
use atomc_artifact::manifest::{Chosen, Kernel, Plan, Target, Tasks, Variant};
use std::ptr::{NonNull, null};
use std::time::Instant;

/// The host as a device.
#[derive(Debug)]
pub struct Host {
    name: String,
    pool: Pool,
    code: Code,
    /// The manifest's descriptions of the kernels, in the order of `code.kernels`.
    kernels: Vec<Kernel>,
    /// One for each thread, as large as the most demanding kernel wants.
    scratch: Vec<Buffer>,
    plans: Vec<Bound>,
}

/// A plan with every pointer in place.
#[derive(Debug, Default)]
struct Bound {
    launches: Vec<Launch>,
    /// The arguments of all launches, one after the other.
    args: Vec<*mut u8>,
}

#[derive(Debug)]
struct Launch {
    kernel: HostKernel,
    tasks: Tasks,
    /// Index of its first argument.
    args: usize,
    chosen: Option<Chosen>,
}

// SAFETY: the pointers are addresses for kernels, which only `run` follows, under a contract that
// no thread is part of.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

impl Host {
    /// Loads the named variant, or the first that this processor can run, and starts the threads.
    pub fn open(
        artifact: &Artifact,
        target: &Target,
        variant: Option<&str>,
        threads: usize,
    ) -> Result<Host, DeviceError> {
        let tiles = target.variants.iter().any(|variant| variant.features.iter().any(|name| name.starts_with("amx")));
        let variant = choose(target, variant, &Cpu::detect(tiles))?;
        let section = artifact.section(variant.section).map_err(|fault| packed(variant, &fault))?;
        // SAFETY: the compiler wrote the code next to the manifest that describes it; the checksums
        // say so.
        let code = unsafe { Code::load(section, variant, &target.kernels) }?;
        let pool = Pool::new(threads).map_err(|source| DeviceError::Threads { threads, source })?;
        let largest = variant.kernels.iter().map(|kernel| kernel.scratch).max().unwrap_or(0);
        let scratch = (0..pool.threads()).map(|_| allocate(largest)).collect::<Result<_, _>>()?;
        Ok(Host {
            name: format!("host:{}", variant.name),
            pool,
            code,
            kernels: variant.kernels.clone(),
            scratch,
            plans: Vec::new(),
        })
    }
}

impl Device for Host {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        allocate(bytes).map(DeviceBuffer::Host)
    }

    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        // SAFETY: passed on to the caller.
        DeviceBuffer::Host(unsafe { Buffer::foreign(start, bytes, Box::new(|_| ())) })
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        self.plans = plans.iter().map(|plan| self.resolve(plan, memory)).collect();
        Ok(())
    }

    unsafe fn run(
        &mut self,
        plan: usize,
        inputs: StepInputs<'_>,
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        self.pool.check()?;
        let size = inputs.size;
        let Some(times) = observe else {
            let launches = 0..self.plans[plan].launches.len();
            // SAFETY: passed on to the caller.
            return unsafe { self.launch(Part { plan, launches, size, step: null(), stream: Stream::default() }) };
        };
        let (plan, scratch) = (&self.plans[plan], &self.scratch);
        times.steps += 1;
        times.nanoseconds.resize(plan.launches.len(), 0);
        times.experts.resize(plan.launches.len(), 0);
        for (index, launch) in plan.launches.iter().enumerate() {
            let start = Instant::now();
            // SAFETY: passed on to the caller.
            self.pool.run(&|worker| unsafe { plan.launch(launch, size, worker, scratch) });
            times.nanoseconds[index] += start.elapsed().as_nanos() as u64;
            // SAFETY: passed on to the caller.
            times.experts[index] += unsafe { plan.experts(launch, size) };
        }
        Ok(())
    }

    unsafe fn launch(&mut self, part: Part) -> Result<(), DeviceError> {
        self.pool.check()?;
        let (plan, scratch) = (&self.plans[part.plan], &self.scratch);
        let launches = &plan.launches[part.launches];
        self.pool.run(&|worker| {
            // SAFETY: passed on to the caller.
            launches.iter().for_each(|launch| unsafe { plan.launch(launch, part.size, worker, scratch) })
        });
        Ok(())
    }
}

impl Host {
    fn resolve(&self, plan: &Plan, memory: &Memory) -> Bound {
        let mut bound = Bound::default();
        for (index, launch) in plan.launches.iter().enumerate() {
            let (kernel, tasks) = (self.code.kernels[launch.kernel], self.kernels[launch.kernel].tasks);
            bound.launches.push(Launch { kernel, tasks, args: bound.args.len(), chosen: launch.chosen });
            bound.args.extend(launch.args.iter().map(|&arg| memory.address(arg, index >= plan.body)));
        }
        bound
    }
}

impl Bound {
    /// The number of experts with weights that a launch has read, if it reads some.
    ///
    /// # Safety
    /// As for [`Device::run`].
    unsafe fn experts(&self, launch: &Launch, size: StepSize) -> u64 {
        let Some(chosen) = launch.chosen else { return 0 };
        let bytes = size.step.tokens as usize * chosen.choices * 4;
        // SAFETY: the argument begins with a number for each row.
        count_experts(unsafe { std::slice::from_raw_parts(self.args[launch.args + chosen.argument], bytes) })
    }

    /// One worker's share of a launch. Cannot panic: a kernel is C code, and the count of tasks
    /// does not overflow.
    ///
    /// # Safety
    /// As for [`Device::run`].
    unsafe fn launch(&self, launch: &Launch, size: StepSize, worker: Worker<'_>, scratch: &[Buffer]) {
        let count = size.tasks(launch.tasks);
        if count == 0 {
            return;
        }
        let args = self.args[launch.args..].as_ptr();
        let scratch = scratch[worker.index()].address();
        worker.tasks(count, |tasks| {
            // SAFETY: the arguments are those that the manifest lists for this kernel, the tasks
            // are below its count, and each worker has scratch memory of its own.
            unsafe { (launch.kernel)(args, &size.step, scratch, tasks.start as i64, tasks.end as i64) }
        });
    }
}

/// The features of a variant that this processor lacks.
pub fn lacking<'f>(features: &[&'f str]) -> Vec<&'f str> {
    let cpu = Cpu::detect(features.iter().any(|name| name.starts_with("amx")));
    features.iter().copied().filter(|name| !cpu.has(name)).collect()
}

fn allocate(bytes: usize) -> Result<Buffer, DeviceError> {
    Buffer::new(bytes).map_err(|source| DeviceError::OutOfMemory { bytes, source })
}

fn choose<'a>(target: &'a Target, wanted: Option<&str>, cpu: &Cpu) -> Result<&'a Variant, DeviceError> {
    let lacks = |variant: &Variant| cpu.lacks(&variant.features);
    let Some(wanted) = wanted else {
        let best = target.variants.iter().find(|variant| lacks(variant).is_empty());
        let all = || target.variants.iter().map(|variant| (variant.name.clone(), lacks(variant))).collect();
        return best.ok_or_else(|| DeviceError::Unsupported { variants: all() });
    };
    let have = || target.variants.iter().map(|variant| variant.name.clone()).collect();
    let named = target.variants.iter().find(|variant| variant.name == wanted);
    let variant = named.ok_or_else(|| DeviceError::UnknownVariant { wanted: wanted.to_owned(), have: have() })?;
    let missing = lacks(variant);
    if missing.is_empty() {
        Ok(variant)
    } else {
        Err(DeviceError::Lacks { variant: wanted.to_owned(), missing, have: have() })
    }
}

#[cfg(test)]
mod tests;
