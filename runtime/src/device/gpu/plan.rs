//! The launches of a plan on a stream: one by one, or captured once and replayed.
use super::super::launch::count_experts;
use super::super::{DeviceError, Launches, Memory, Part, StepSize};
use super::code::Code;
use super::context::Context;
use super::driver::{Handle, Start};
use super::exchange::{self, Joined};
use super::slots::Slots;
use atomc_artifact::manifest::{Chosen, Kernel, Plan, Tasks};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// Sizes of steps that a plan for any size remembers.
const SIZES: usize = 8;

/// A plan with every parameter in place.
#[derive(Debug)]
pub struct Bound {
    launches: Vec<Launch>,
    /// What ranks do together between launches, in order.
    exchanges: Vec<exchange::Bound>,
    /// The largest step. Kernels read everything that varies from the step's inputs, so a capture
    /// at this size fits any step.
    largest: StepSize,
    /// Whether all steps take the largest grid: those of plans for few tokens, which is not much
    /// more than any of them needs.
    is_few: bool,
    /// The latest sizes, the last one at the end. A capture costs more than one replay saves, so a
    /// size of prompts is captured at its second step.
    sizes: Vec<(StepSize, Option<Graph>)>,
}

#[derive(Debug)]
struct Launch {
    /// The number of the kernel in the target.
    number: usize,
    kernel: Handle,
    tasks: Tasks,
    threads: c_uint,
    shared: c_uint,
    overlaps: bool,
    /// Whether its inputs depend on the routing of its layer.
    routed: bool,
    /// Which experts it reads, by the argument that says it.
    chosen: Option<Chosen>,
    /// Pointers to the parameters, which are pointers themselves and do not move.
    pointers: Vec<*mut c_void>,
    parameters: Box<[u64]>,
}

// SAFETY: the pointers are into the launch's own box, the handle is one that drivers' functions
// take on any thread.
unsafe impl Send for Launch {}

impl Bound {
    pub fn new(
        plan: &Plan,
        code: &Code,
        (kernels, routed): (&[Kernel], &[bool]),
        (memory, joined): (&Memory, Option<&Joined>),
    ) -> Bound {
        let launch = |(index, launch): (usize, &atomc_artifact::manifest::Launch)| {
            let mut parameters = memory.parameters(launch, index >= plan.body).into_boxed_slice();
            let kernel = &kernels[launch.kernel];
            Launch {
                number: launch.kernel,
                kernel: code.kernels[launch.kernel],
                tasks: kernel.tasks,
                threads: kernel.threads as c_uint,
                shared: kernel.shared as c_uint,
                overlaps: kernel.overlaps,
                routed: routed[launch.kernel],
                chosen: launch.chosen,
                pointers: parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast()).collect(),
                parameters,
            }
        };
        Bound {
            launches: plan.launches.iter().enumerate().map(launch).collect(),
            exchanges: joined.iter().flat_map(|j| plan.calls.iter().filter_map(|call| j.bind(call, memory))).collect(),
            largest: StepSize::largest(plan),
            is_few: plan.kind.is_few(),
            sizes: Vec::new(),
        }
    }

    /// Puts the plan on the stream.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`].
    pub unsafe fn run(&mut self, context: &Arc<Context>, size: StepSize) -> Result<(), DeviceError> {
        let size = self.grid_of(size);
        let known = self.sizes.iter().position(|(known, _)| *known == size);
        let (_, graph) = match known {
            Some(known) => self.sizes.remove(known),
            None => (size, None),
        };
        if self.sizes.len() == SIZES {
            self.sizes.remove(0);
        }
        // SAFETY: passed on to the caller, here and below.
        let launch = || unsafe { self.enqueue_all(context, size) };
        let graph = match graph {
            None if self.is_few || known.is_some() => Some(Graph::capture(context, launch)?),
            graph => graph,
        };
        let done = graph.as_ref().map_or_else(launch, Graph::replay);
        self.sizes.push((size, graph));
        done
    }

    /// Puts all launches, with what ranks do between them, on the context's stream.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`].
    unsafe fn enqueue_all(&self, context: &Context, size: StepSize) -> Result<(), DeviceError> {
        let (stream, mut next) = (context.stream(), 0);
        for exchange in &self.exchanges {
            // SAFETY: passed on to the caller, here and below.
            unsafe {
                launch(&self.launches[next..exchange.before], context, size, stream)?;
                exchange.run(context, size, stream)?;
            }
            next = exchange.before;
        }
        // SAFETY: passed on to the caller.
        unsafe { launch(&self.launches[next..], context, size, stream) }
    }

    /// The size of the step that the grids are made for.
    fn grid_of(&self, size: StepSize) -> StepSize {
        if self.is_few { self.largest } else { size }
    }

    /// Puts some of the launches on a stream, and does nothing else.
    ///
    /// # Safety
    /// As for [`super::super::Device::launch`].
    pub unsafe fn enqueue(&mut self, context: &Context, part: Part) -> Result<(), DeviceError> {
        let launches = &mut self.launches[part.launches];
        launches.iter_mut().for_each(|launch| launch.read_step(part.step));
        // SAFETY: passed on to the caller.
        unsafe { launch(launches.iter(), context, part.size, part.stream.handle()) }
    }

    /// Times each kernel, then does the step. All launches of a kernel are replayed one after the
    /// other, as in a graph and without the gaps that a clock between two launches would make; the
    /// step overwrites their results. Launches that depend on the routing of their layer are timed
    /// one by one, in a step of their own, as the routing exists only there. Slots, which launches
    /// advance, are restored after each of these.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`]; the slots are those of the memory that was bound.
    pub unsafe fn time(
        &mut self,
        context: &Arc<Context>,
        size: StepSize,
        (slots, times): (&Slots, &mut Launches),
    ) -> Result<(), DeviceError> {
        let at = self.grid_of(size);
        // SAFETY: passed on to the caller.
        let kept = unsafe { slots.keep(context) }?;
        let mut kernels: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, launch) in self.launches.iter().enumerate() {
            if at.tasks(launch.tasks) > 0 {
                kernels.entry(launch.number).or_default().push(index);
            }
        }
        times.steps += 1;
        times.nanoseconds.resize(self.launches.len(), 0);
        times.experts.resize(self.launches.len(), 0);
        let (before, after) = (context.event(true)?, context.event(true)?);
        for indices in kernels.values() {
            if self.launches[indices[0]].routed {
                let mut done = 0;
                for &index in indices {
                    // SAFETY: passed on to the caller.
                    unsafe { launch(&self.launches[done..index], context, at, context.stream()) }?;
                    context.synchronise()?;
                    before.record()?;
                    // SAFETY: passed on to the caller.
                    unsafe { launch(&self.launches[index..=index], context, at, context.stream()) }?;
                    after.record()?;
                    context.synchronise()?;
                    times.nanoseconds[index] += after.nanoseconds_since(&before)?;
                    // SAFETY: passed on to the caller.
                    times.experts[index] += unsafe { self.launches[index].experts(context, at) }?;
                    done = index + 1;
                }
                // SAFETY: passed on to the caller.
                unsafe { kept.put_back(context) }?;
                continue;
            }
            let all = || indices.iter().map(|&index| &self.launches[index]);
            // SAFETY: passed on to the caller.
            let graph = Graph::capture(context, || unsafe { launch(all(), context, at, context.stream()) })?;
            before.record()?;
            graph.replay()?;
            after.record()?;
            context.synchronise()?;
            let each = after.nanoseconds_since(&before)? / indices.len() as u64;
            indices.iter().for_each(|&index| times.nanoseconds[index] += each);
            // SAFETY: passed on to the caller.
            unsafe { kept.put_back(context) }?;
        }
        // SAFETY: passed on to the caller.
        unsafe { self.run(context, size) }
    }
}

/// # Safety
/// As for [`super::super::Device::run`].
unsafe fn launch<'a>(
    launches: impl IntoIterator<Item = &'a Launch>,
    context: &Context,
    size: StepSize,
    stream: Handle,
) -> Result<(), DeviceError> {
    // SAFETY: passed on to the caller.
    launches.into_iter().try_for_each(|launch| unsafe { launch.run(context, size, stream) })
}

impl Launch {
    /// Lets the kernel find the step elsewhere.
    fn read_step(&mut self, step: *const u8) {
        // The workspace is the last parameter, and the step the one before it.
        let parameter = self.pointers[self.pointers.len() - 2].cast::<u64>();
        // SAFETY: it points into this launch's box.
        unsafe { parameter.write(step as u64) };
    }

    /// The number of experts with weights that it has read, if it reads some.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`].
    unsafe fn experts(&self, context: &Context, size: StepSize) -> Result<u64, DeviceError> {
        let Some(chosen) = self.chosen else { return Ok(0) };
        let mut rows = vec![0; size.step.tokens as usize * chosen.choices * 4];
        // SAFETY: the argument begins with a number for each row.
        unsafe { context.read(self.parameters[chosen.argument], &mut rows) }?;
        Ok(count_experts(&rows))
    }

    /// # Safety
    /// As for [`super::super::Device::run`].
    unsafe fn run(&self, context: &Context, size: StepSize, stream: Handle) -> Result<(), DeviceError> {
        let groups = size.tasks(self.tasks);
        if groups == 0 {
            return Ok(());
        }
        let groups = c_uint::try_from(groups).map_err(|_| context.fault(format!("a grid of {groups} work-groups")))?;
        let Launch { kernel, threads, shared, overlaps, .. } = *self;
        let start = Start { kernel, groups, threads, shared, overlaps };
        // SAFETY: the parameters are those that the manifest lists for this kernel, all pointers.
        context.check(unsafe { context.driver.launch(start, &self.pointers, stream) })
    }
}

/// Captured launches, ready to be replayed.
#[derive(Debug)]
struct Graph {
    context: Arc<Context>,
    graph: Handle,
}

// SAFETY: a handle that drivers' functions take on any thread.
unsafe impl Send for Graph {}

impl Graph {
    fn capture(context: &Arc<Context>, launch: impl FnOnce() -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        let (driver, stream) = (&context.driver, context.stream());
        let mut graph = null_mut();
        // SAFETY: the stream is alive, and the captured graph is destroyed once it is instantiated.
        unsafe {
            context.check(driver.begin_capture(stream))?;
            // The capture has to end whether the launches could be captured or not.
            let launched = launch();
            let ended = context.check(driver.end_capture(stream, &mut graph));
            let made = launched.and(ended).and_then(|()| context.check(driver.instantiate(graph)));
            if !graph.is_null() {
                context.check(driver.destroy_graph(graph))?;
            }
            Ok(Graph { context: context.clone(), graph: made? })
        }
    }

    fn replay(&self) -> Result<(), DeviceError> {
        // SAFETY: graph and stream are alive.
        self.context.check(unsafe { self.context.driver.replay(self.graph, self.context.stream()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `capture`, destroyed once.
            let _ = unsafe { self.context.driver.destroy_instance(self.graph) };
        }
    }
}
