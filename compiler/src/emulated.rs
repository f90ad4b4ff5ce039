//! The emulator as a device: the artifact's code objects for a chip that is not here, run on the
//! host.
//!
//! For the engine it is a device with memory of its own, so that the path is that of hardware: the
//! same uploads, the same grids, the same parameters. Every buffer is a range of its own in the
//! emulator, and an access outside all ranges is a fault. Kernels may not write weights or the
//! inputs of a step, except for those that make these. There are no streams: a launch is done when
//! it returns.
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use atomc_artifact::Artifact;
use atomc_artifact::abi::{Pack, Prepare};
use atomc_artifact::manifest::{EXCHANGE, Kernel, KernelDef, PACK, PREPARE, Plan, Tasks};
use atomc_emulator::timing::trace::Trace;
use atomc_emulator::{Access, CodeObject, Counts, Emulator, Grid, LoadError, Memory as Ranges, Options};
use atomc_ir::Family;
use atomc_runtime::device::exchange::{self, Exchanges, OfRows};
use atomc_runtime::device::{
    self, Device, DeviceBuffer, DeviceError, DeviceMemory, Launches, Memory, Part, Peer, StepInputs, StepSize, Stream,
};
use atomc_runtime::memory::Buffer;
use atomc_runtime::pool::{self, Pool};
use atomc_runtime::weights::Rank;

/// Bytes that kernels may read past a buffer.
const SLACK: u64 = 256;

/// A chip that is emulated.
pub struct Emulated {
    name: String,
    pool: Pool,
    code: CodeObject,
    kernels: Vec<(KernelDef, Kernel)>,
    prepare: Option<Kernel>,
    pack: Option<Kernel>,
    exchange: Option<Kernel>,
    /// The rank that this device is, if it exchanges rows with others by itself.
    joined: Option<Exchanges>,
    space: Arc<Mutex<Space>>,
    plans: Vec<Bound>,
    /// The device's block of inputs.
    block: *mut u8,
    options: Options,
    tally: Tally,
    recorder: Option<Recorder>,
}

// SAFETY: the block is memory that `run` alone writes, under its contract; all else is `Send`.
unsafe impl Send for Emulated {}

/// Counts of the kernels' work so far. Clones share them, so that the opener of a device can read
/// them while an engine owns the device.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Vec<Vec<Counts>>>>);

impl Tally {
    /// By plan, by launch.
    pub fn counts(&self) -> Vec<Vec<Counts>> {
        lock(&self.0).clone()
    }

    /// Begins anew.
    pub fn reset(&self) {
        lock(&self.0).iter_mut().flatten().for_each(|counts| *counts = Counts::default());
    }
}

/// Records some work-groups of launches instead of running them. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<Recorded>>>);

/// A launch that was not run.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Work-groups of its grid.
    pub groups: usize,
    /// Work-groups that make a part of the result together.
    pub shared: usize,
    /// The traces of some work-groups, evenly out of the grid or out of a part. If a work-group
    /// adds up the sums of others, its trace is last.
    pub traces: Vec<Trace>,
}

impl Recorder {
    /// Launches since this was last asked.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Work-groups of a launch that are recorded: more if they differ in their tokens, experts or part
/// of a sequence.
const ALIKE: usize = 2;
const DIFFERENT: usize = 12;

/// Which work-groups of a launch are recorded: some, evenly out of all, or all of a part that
/// several share.
fn recorded(tasks: Tasks, groups: usize, shared: usize) -> Vec<usize> {
    if shared > 1 {
        let part = groups / shared / 2;
        return (part * shared..(part + 1) * shared).collect();
    }
    let most = match tasks {
        Tasks::Fixed(_) | Tasks::Rows { .. } => ALIKE,
        Tasks::Tokens { .. } | Tasks::Choices { .. } => DIFFERENT,
        Tasks::Blocks { .. } | Tasks::Tiles { .. } | Tasks::Shared { .. } => DIFFERENT,
    };
    let most = most.min(groups);
    (0..most).map(|number| (2 * number + 1) * groups / (2 * most)).collect()
}

/// Work-groups that share a part of the result of a launch: of attention with one token of each
/// sequence, all of the token's heads and keys.
fn shared(family: &str, tasks: Tasks, size: StepSize) -> usize {
    let tokens = size.step.tokens as usize;
    match tasks {
        Tasks::Tokens { per: 1, times } if family == Family::AttendOne.name() => times,
        _ => tasks.parts(tokens).map_or(1, |parts| parts.of_step(tokens)[1]),
    }
}

/// Some of the traces of a part, evenly out of all, followed by the longest of all.
fn longest_last(mut traces: Vec<Trace>) -> Vec<Trace> {
    let events = |(_, trace): &(usize, &Trace)| trace.waves.iter().map(Vec::len).sum::<usize>();
    let Some((longest, _)) = traces.iter().enumerate().max_by_key(events) else { return traces };
    let longest = traces.remove(longest);
    let (all, some) = (traces.len(), traces.len().min(DIFFERENT));
    let mut number = 0..;
    traces.retain(|_| number.next().is_some_and(|n| n * some / all.max(1) != (n + 1) * some / all.max(1)));
    traces.push(longest);
    traces
}

struct Bound {
    launches: Vec<Launch>,
    /// What ranks exchange between launches, each ahead of the launch that needs it.
    exchanges: Vec<(usize, OfRows)>,
    /// Decode plans run at their largest grid, as when they are captured on hardware.
    largest: Option<StepSize>,
}

struct Launch {
    kernel: usize,
    parameters: Vec<u8>,
}

impl Emulated {
    /// Opens the artifact's code for a chip. `threads` of the host, 0 for all, share the
    /// work-groups of a launch.
    pub fn open(artifact: &Artifact, chip: &str, threads: usize, options: Options) -> Result<Emulated, DeviceError> {
        let target = &artifact.manifest().targets[device::target(artifact.manifest(), chip)?];
        let variant = &target.variants[0];
        let name = format!("emu:{chip}");
        let fault = |e: LoadError| DeviceError::Code { variant: chip.to_owned(), detail: e.to_string() };
        let section = artifact.section(variant.section).map_err(|fault| device::packed(variant, &fault))?;
        let code = CodeObject::load(section).map_err(fault)?;
        let threads = pool::threads(threads, 1);
        let pool = Pool::new(threads).map_err(|source| DeviceError::Threads { threads, source })?;
        Ok(Emulated {
            name,
            pool,
            code,
            kernels: target.kernels.iter().cloned().zip(variant.kernels.iter().cloned()).collect(),
            prepare: variant.prepare.clone(),
            pack: variant.pack.clone(),
            exchange: variant.exchange.clone(),
            joined: None,
            space: Arc::default(),
            plans: Vec::new(),
            block: std::ptr::null_mut(),
            options: Options { threads, ..options },
            tally: Tally::default(),
            recorder: None,
        })
    }

    /// Records some work-groups of each launch from now on, and runs none.
    pub fn record(&mut self) -> Recorder {
        self.recorder.get_or_insert_default().clone()
    }

    /// The counts of kernels so far.
    pub fn tally(&self) -> Tally {
        self.tally.clone()
    }

    fn emulate(&self, buffer: Buffer) -> DeviceBuffer {
        // SAFETY: a buffer has that slack, and is removed before it is freed.
        unsafe { lock(&self.space).add(buffer.address() as u64, buffer.len() as u64, Access::ReadWrite) };
        DeviceBuffer::Device(Box::new(Emulation { buffer, space: self.space.clone() }))
    }

    fn emulated(&self, launch: &Launch, size: StepSize) -> Result<Counts, DeviceError> {
        let (def, kernel) = &self.kernels[launch.kernel];
        match size.tasks(kernel.tasks) {
            0 => Ok(Counts::default()),
            groups => {
                let shared = shared(&def.family, kernel.tasks, size);
                self.start(&def.symbol, kernel, [groups, shared], &launch.parameters)
            }
        }
    }

    fn exchanged(&self, rows: &OfRows, size: StepSize) -> Result<(), DeviceError> {
        match (rows.groups(size.step), &self.exchange) {
            (0, _) | (_, None) => Ok(()),
            (groups, Some(kernel)) => {
                let parameters: Vec<u8> = rows.exchange.parameters().into_iter().flat_map(u64::to_le_bytes).collect();
                self.start(EXCHANGE, kernel, [groups, 1], &parameters).map(drop)
            }
        }
    }

    fn start(
        &self,
        symbol: &str,
        kernel: &Kernel,
        [groups, shared]: [usize; 2],
        parameters: &[u8],
    ) -> Result<Counts, DeviceError> {
        let failed = |detail: String| DeviceError::Failed { device: self.name.clone(), detail };
        let x = u32::try_from(groups).map_err(|_| failed(format!("a grid of {groups} work-groups")))?;
        let grid = Grid::linear(x, kernel.threads as u32);
        let space = lock(&self.space);
        if let Some(recorder) = &self.recorder {
            let record = |number: usize| {
                Emulator.record(&self.code, symbol, grid, parameters, &space.ranges, [number as u32, 0, 0])
            };
            let numbers = recorded(kernel.tasks, groups, shared).into_iter();
            let traces = numbers.map(record).collect::<Result<_, _>>().map_err(|fault| failed(fault.to_string()))?;
            let traces = if shared > 1 { longest_last(traces) } else { traces };
            lock(&recorder.0).push(Recorded { groups, shared, traces });
            return Ok(Counts::default());
        }
        Emulator
            .launch(&self.code, symbol, grid, parameters, &space.ranges, &self.options)
            .map_err(|fault| failed(fault.to_string()))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // The locked value is whole between any two statements.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What ranks exchange in a plan, with the launches that need it.
fn exchanges(joined: &Exchanges, plan: &Plan, memory: &Memory) -> Vec<(usize, OfRows)> {
    plan.calls.iter().filter_map(|call| Some((call.before, joined.of(call, memory)?))).collect()
}

/// The memory of the chip.
#[derive(Debug, Default)]
struct Space {
    ranges: Ranges,
    /// Bytes by address, and the access that kernels have.
    sizes: BTreeMap<u64, (u64, Access)>,
}

impl Space {
    /// # Safety
    /// As for [`Ranges::map_with_slack`], until the range is removed.
    unsafe fn add(&mut self, address: u64, bytes: u64, access: Access) {
        // SAFETY: passed on to the caller.
        unsafe { self.ranges.map_with_slack(address, bytes, SLACK, access) };
        self.sizes.insert(address, (bytes, access));
    }

    fn remove(&mut self, address: u64) {
        self.ranges.unmap(address);
        self.sizes.remove(&address);
    }

    /// Sets whether kernels may only read the buffer at this address, or also write it. Returns the
    /// access that they had before.
    fn allow(&mut self, address: u64, access: Access) -> Option<Access> {
        let (&address, &(bytes, before)) = self.sizes.range(..=address).next_back()?;
        self.remove(address);
        // SAFETY: the range was added to be read and written, and still is there.
        unsafe { self.add(address, bytes, access) };
        Some(before)
    }
}

/// Memory that only the emulator's kernels reach.
#[derive(Debug)]
struct Emulation {
    buffer: Buffer,
    space: Arc<Mutex<Space>>,
}

impl DeviceMemory for Emulation {
    fn len(&self) -> usize {
        self.buffer.len()
    }

    fn address(&self) -> *mut u8 {
        self.buffer.address()
    }

    fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        self.buffer.as_mut_slice()[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&self.buffer.as_slice()[offset..][..to.len()]);
        Ok(())
    }

    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        self.buffer.as_mut_slice()[range].fill(value);
        Ok(())
    }

    fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError> {
        self.buffer.as_mut_slice().copy_within(range, to);
        Ok(())
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        lock(&self.space).remove(self.buffer.address() as u64);
    }
}

impl Device for Emulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        let buffer = Buffer::new(bytes).map_err(|source| DeviceError::OutOfMemory { bytes, source })?;
        Ok(self.emulate(buffer))
    }

    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        // SAFETY: passed on to the caller.
        let buffer = unsafe { Buffer::foreign(start, bytes, Box::new(|_| ())) };
        self.emulate(buffer)
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        self.block = memory.inputs.block;
        let weights = memory.weights.iter().map(|weight| weight.address() as u64);
        weights.chain([self.block as u64]).for_each(|address| _ = lock(&self.space).allow(address, Access::Read));
        let bytes = |parameters: Vec<u64>| parameters.into_iter().flat_map(u64::to_le_bytes).collect();
        self.plans = plans
            .iter()
            .map(|plan| Bound {
                launches: plan
                    .launches
                    .iter()
                    .enumerate()
                    .map(|(index, l)| Launch {
                        kernel: l.kernel,
                        parameters: bytes(memory.parameters(l, index >= plan.body)),
                    })
                    .collect(),
                exchanges: self.joined.iter().flat_map(|joined| exchanges(joined, plan, memory)).collect(),
                largest: plan.kind.is_few().then(|| StepSize::largest(plan)),
            })
            .collect();
        *lock(&self.tally.0) = plans.iter().map(|plan| vec![Counts::default(); plan.launches.len()]).collect();
        Ok(())
    }

    unsafe fn run(
        &mut self,
        plan: usize,
        inputs: StepInputs<'_>,
        mut observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the block holds any step, and nothing else uses it meanwhile, by the contract of
        // this function.
        unsafe { std::ptr::copy_nonoverlapping(inputs.bytes.as_ptr(), self.block, inputs.bytes.len()) };
        let bound = &self.plans[plan];
        if let Some(times) = &mut observe {
            times.steps += 1;
            times.nanoseconds.resize(bound.launches.len(), 0);
        }
        let (size, mut exchanges) = (bound.largest.unwrap_or(inputs.size), bound.exchanges.iter().peekable());
        for (index, launch) in bound.launches.iter().enumerate() {
            while let Some((_, rows)) = exchanges.next_if(|(before, _)| *before == index) {
                self.exchanged(rows, size)?;
            }
            let start = Instant::now();
            let counts = self.emulated(launch, size)?;
            lock(&self.tally.0)[plan][index] += counts;
            if let Some(times) = &mut observe {
                times.nanoseconds[index] += start.elapsed().as_nanos() as u64;
            }
        }
        exchanges.try_for_each(|(_, rows)| self.exchanged(rows, size))
    }

    fn offer(&mut self, ranks: usize, plans: &[Plan]) -> Result<Option<Peer>, DeviceError> {
        if self.exchange.is_none() || !plans.iter().flat_map(|plan| &plan.calls).all(exchange::fits) {
            return Ok(None);
        }
        let [slots, peers, state] = Exchanges::sizes(ranks);
        let rows = Exchanges::new([self.allocate(slots)?, self.allocate(peers)?, self.allocate(state)?]);
        let (slots, bytes) = rows.slots();
        lock(&self.space).allow(slots as u64, Access::Shared);
        self.joined = Some(rows);
        Ok(Some(Peer::emulated(slots, bytes)))
    }

    /// Both devices' kernels may use the slots at once, as long as the peer's device is open.
    fn reach(&mut self, peer: &Peer) -> Result<bool, DeviceError> {
        let own = self.joined.as_ref().is_some_and(|joined| joined.slots().0 == peer.slots);
        if !own {
            // SAFETY: an engine drops all its devices together, and runs none of them then.
            unsafe { lock(&self.space).add(peer.slots as u64, peer.bytes as u64, Access::Shared) };
        }
        Ok(true)
    }

    fn join(&mut self, rank: Rank, peers: Option<&[Peer]>) -> Result<(), DeviceError> {
        match (peers, &mut self.joined) {
            (Some(peers), Some(joined)) => joined.join(rank, peers),
            _ => {
                self.joined = None;
                Ok(())
            }
        }
    }

    fn missed(&mut self) -> Result<Option<usize>, DeviceError> {
        self.joined.as_mut().map_or(Ok(None), Exchanges::missed)
    }

    fn prepares(&self) -> bool {
        self.prepare.is_some()
    }

    unsafe fn prepare(&mut self, prepare: &Prepare, _: Stream) -> Result<(), DeviceError> {
        let none = || DeviceError::Failed { device: self.name.clone(), detail: "no kernel makes inputs".into() };
        let kernel = self.prepare.as_ref().ok_or_else(none)?;
        let parameters: Vec<u8> = prepare.parameters().into_iter().flat_map(u64::to_le_bytes).collect();
        let block = self.block as u64;
        lock(&self.space).allow(block, Access::ReadWrite);
        let done = self.start(PREPARE, kernel, [prepare.groups(), 1], &parameters);
        lock(&self.space).allow(block, Access::Read);
        done.map(|_| ())
    }

    fn packs(&self) -> bool {
        self.pack.is_some()
    }

    unsafe fn pack(&mut self, pack: &Pack, _: Stream) -> Result<(), DeviceError> {
        let none = || DeviceError::Failed { device: self.name.clone(), detail: "no kernel makes weights".into() };
        let kernel = self.pack.as_ref().ok_or_else(none)?;
        let parameters: Vec<u8> = pack.parameters().into_iter().flat_map(u64::to_le_bytes).collect();
        let before = lock(&self.space).allow(pack.to as u64, Access::ReadWrite);
        let done = self.start(PACK, kernel, [pack.groups(), 1], &parameters);
        before.into_iter().for_each(|access| _ = lock(&self.space).allow(pack.to as u64, access));
        done.map(|_| ())
    }

    unsafe fn launch(&mut self, part: Part) -> Result<(), DeviceError> {
        for index in part.launches {
            // The workspace is the last parameter, and the step the one before it.
            let parameters = &mut self.plans[part.plan].launches[index].parameters;
            let at = parameters.len() - 2 * size_of::<u64>();
            parameters[at..][..size_of::<u64>()].copy_from_slice(&(part.step as u64).to_le_bytes());
            let counts = self.emulated(&self.plans[part.plan].launches[index], part.size)?;
            lock(&self.tally.0)[part.plan][index] += counts;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
