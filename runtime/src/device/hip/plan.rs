//! The launches of a plan on a HIP stream: one by one, or captured once and replayed.
use super::super::{DeviceError, Launches, Memory, StepSize};
use super::context::{Context, Event, Module, call};
use atomc_artifact::manifest::{Kernel, Plan, PlanKind, Tasks};
use hip_sys::*;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

/// A plan with every parameter in place.
#[derive(Debug)]
pub struct Bound {
    launches: Vec<Launch>,
    /// The size to capture the plan at. Kernels read what varies from the step's inputs, so any step may replay it; only
    /// decode plans are captured, whose largest grid is not much more than any step needs.
    captured_at: Option<StepSize>,
    graph: Option<Graph>,
}

#[derive(Debug)]
struct Launch {
    kernel: hipFunction_t,
    tasks: Tasks,
    threads: c_uint,
    /// Pointers to the parameters, which are pointers themselves and do not move.
    pointers: Vec<*mut c_void>,
    _parameters: Box<[u64]>,
}

// SAFETY: the pointers are into the launch's own box, the handle is one that HIP's functions take on any thread.
unsafe impl Send for Launch {}

impl Bound {
    pub fn new(plan: &Plan, module: &Module, kernels: &[Kernel], memory: &Memory) -> Bound {
        let launch = |launch: &atomc_artifact::manifest::Launch| {
            let mut parameters = memory.parameters(launch).into_boxed_slice();
            let kernel = &kernels[launch.kernel];
            Launch {
                kernel: module.kernels[launch.kernel],
                tasks: kernel.tasks,
                threads: kernel.threads as c_uint,
                pointers: parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast()).collect(),
                _parameters: parameters,
            }
        };
        let captured_at = (plan.kind == PlanKind::Decode).then(|| StepSize::largest(plan));
        Bound { launches: plan.launches.iter().map(launch).collect(), captured_at, graph: None }
    }

    /// Puts the plan on the stream.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`].
    pub unsafe fn run(&mut self, context: &Arc<Context>, size: StepSize) -> Result<(), DeviceError> {
        let Some(largest) = self.captured_at else {
            // SAFETY: passed on to the caller.
            return unsafe { self.launch(context, size) };
        };
        let graph = match &self.graph {
            Some(graph) => graph,
            // SAFETY: passed on to the caller.
            None => self.graph.insert(Graph::capture(context, || unsafe { launch(&self.launches, context, largest) })?),
        };
        graph.replay()
    }

    /// # Safety
    /// As for [`super::super::Device::run`].
    unsafe fn launch(&self, context: &Context, size: StepSize) -> Result<(), DeviceError> {
        // SAFETY: passed on to the caller.
        unsafe { launch(&self.launches, context, size) }
    }

    /// Runs launch by launch and adds up their times.
    ///
    /// # Safety
    /// As for [`super::super::Device::run`].
    pub unsafe fn time(&self, context: &Arc<Context>, size: StepSize, times: &mut Launches) -> Result<(), DeviceError> {
        let points = (0..=self.launches.len()).map(|_| context.event(true)).collect::<Result<Vec<Event>, _>>()?;
        points[0].record()?;
        for (launch, point) in self.launches.iter().zip(&points[1..]) {
            // SAFETY: passed on to the caller.
            unsafe { launch.run(context, size) }?;
            point.record()?;
        }
        context.synchronise()?;
        times.steps += 1;
        times.nanoseconds.resize(self.launches.len(), 0);
        for (time, points) in times.nanoseconds.iter_mut().zip(points.windows(2)) {
            *time += points[1].nanoseconds_since(&points[0])?;
        }
        Ok(())
    }
}

/// # Safety
/// As for [`super::super::Device::run`].
unsafe fn launch(launches: &[Launch], context: &Context, size: StepSize) -> Result<(), DeviceError> {
    // SAFETY: passed on to the caller.
    launches.iter().try_for_each(|launch| unsafe { launch.run(context, size) })
}

impl Launch {
    /// # Safety
    /// As for [`super::super::Device::run`].
    unsafe fn run(&self, context: &Context, size: StepSize) -> Result<(), DeviceError> {
        let groups = size.tasks(self.tasks);
        if groups == 0 {
            return Ok(());
        }
        let grid = c_uint::try_from(groups).map_err(|_| context.fault(format!("a grid of {groups} work-groups")))?;
        let (block, shared, stream) = (self.threads, 0, context.stream());
        let parameters = self.pointers.as_ptr().cast_mut();
        // SAFETY: the parameters are what the manifest lists for this kernel, all pointers; HIP copies them.
        unsafe {
            call!(
                context,
                hipModuleLaunchKernel(self.kernel, grid, 1, 1, block, 1, 1, shared, stream, parameters, null_mut())
            )
        }
    }
}

/// Captured launches, ready to be replayed.
#[derive(Debug)]
struct Graph {
    context: Arc<Context>,
    graph: hipGraphExec_t,
}

// SAFETY: a handle that HIP's functions take on any thread.
unsafe impl Send for Graph {}

impl Graph {
    fn capture(context: &Arc<Context>, launch: impl FnOnce() -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        let (stream, mode) = (context.stream(), hipStreamCaptureMode_hipStreamCaptureModeThreadLocal);
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: the stream is alive, the pointers are to locals, and what was captured is destroyed once it is instantiated.
        unsafe {
            call!(context, hipStreamBeginCapture(stream, mode))?;
            // The capture has to end whether the launches could be captured or not.
            let launched = launch();
            let ended = call!(context, hipStreamEndCapture(stream, &mut graph));
            let made = launched
                .and(ended)
                .and_then(|()| call!(context, hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0)));
            if !graph.is_null() {
                call!(context, hipGraphDestroy(graph))?;
            }
            made?;
        }
        Ok(Graph { context: context.clone(), graph: exec })
    }

    fn replay(&self) -> Result<(), DeviceError> {
        // SAFETY: graph and stream are alive.
        unsafe { call!(self.context, hipGraphLaunch(self.graph, self.context.stream())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, destroyed once.
        let _ = unsafe { call!(self.context, hipGraphExecDestroy(self.graph)) };
    }
}
