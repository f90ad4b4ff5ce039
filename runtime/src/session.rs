//! Plans of an artifact on a device, and the memory that they share: what an engine with sequences
//! of its own and a model inside a framework have in common. Their owner decides what is in a step.
//! The session runs its plan, up to the next call and on from there.
use crate::batch::{Inputs, Room, TableRoom};
use crate::checkpoint::Source;
use crate::device::{Device, DeviceError, InputAddresses, Memory, Part, StateMemory, StepSize, Stream};
use crate::error::Error;
use crate::states::Unit;
use crate::weights::{self, DeviceSink, Rank, Sink};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::{Call, Manifest, Model, Plan, Target, TensorNames};
use std::ops::Range;
use std::sync::Arc;

/// A session that has no memory yet.
pub(crate) struct Outline {
    pub artifact: Arc<Artifact>,
    /// Index of the device's target in the manifest.
    pub target: usize,
    /// What of the target the rank runs.
    pub code: Target,
    pub device: Box<dyn Device>,
    /// Those of the model, then those of its draft.
    pub plans: Vec<Plan>,
    models: usize,
    /// By group.
    pub units: Vec<Unit>,
}

/// A session: an artifact on a device, with memory for weights and steps.
pub(crate) struct Session {
    pub artifact: Arc<Artifact>,
    pub target: usize,
    pub code: Target,
    pub device: Box<dyn Device>,
    pub plans: Vec<Plan>,
    models: usize,
    pub units: Vec<Unit>,
    pub memory: Memory,
    pub inputs: Inputs,
    /// The stage of layers that it has.
    pub stage: usize,
    /// The rank of this stage, with the shards that it has.
    pub rank: Rank,
    /// Whether the device exchanges rows with the stage's other ranks by itself, if there are any.
    pub joined: bool,
    /// Whether the weights are there.
    pub loaded: bool,
}

/// How far a plan has run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub plan: usize,
    /// The launch that is next.
    launch: usize,
    /// The call that is next.
    call: usize,
    /// Whether the body has run to its end.
    pub done: bool,
}

impl Progress {
    /// Before the first launch of a plan.
    pub fn of(plan: usize) -> Progress {
        Progress { plan, launch: 0, call: 0, done: false }
    }
}

impl Outline {
    /// Of the plans of a stage that the owner runs, with those of the draft if that is driven.
    pub fn new(
        (artifact, target, stage): (Arc<Artifact>, usize, usize),
        device: Box<dyn Device>,
        draft: bool,
        runs: impl Fn(&Plan) -> bool,
    ) -> Outline {
        let whole = &artifact.manifest().targets[target];
        let code = if artifact.manifest().pipeline_parallel > 1 { whole.stage(stage) } else { whole.clone() };
        let of = |draft| code.plans.iter().filter(move |plan| plan.draft == draft).filter(|plan| runs(plan)).cloned();
        let mut plans: Vec<Plan> = of(false).collect();
        let models = plans.len();
        if draft {
            plans.extend(of(true));
        }
        let units = Unit::all(&code);
        Outline { artifact, target, code, device, plans, models, units }
    }

    /// What the artifact has for the device.
    pub fn target(&self) -> &Target {
        &self.code
    }

    /// The plans of the draft.
    pub fn drafts(&self) -> Range<usize> {
        self.models..self.plans.len()
    }

    /// The largest of a number of all plans.
    pub fn largest(&self, size: fn(&Plan) -> usize) -> usize {
        self.plans.iter().map(size).max().unwrap_or(0)
    }

    /// Inputs with room for a step of any plan.
    pub fn inputs(&mut self, tables: Vec<TableRoom>) -> Result<Inputs, DeviceError> {
        let room = Room {
            tokens: self.largest(|plan| plan.tokens),
            rows: self.largest(|plan| plan.rows),
            tables,
            given: self.code.given,
        };
        Inputs::new(&mut *self.device, room)
    }

    /// Memory that the session alone owns, with these states.
    pub fn memory(&mut self, states: Vec<StateMemory>, inputs: InputAddresses) -> Result<Memory, DeviceError> {
        let arena = self.largest(|plan| plan.arena_bytes);
        let Outline { code: target, device, .. } = self;
        Ok(Memory {
            states,
            weights: target.weights.iter().map(|weight| device.allocate(weight.bytes)).collect::<Result<_, _>>()?,
            arena: device.allocate(arena)?,
            hidden: device.allocate(target.hidden.bytes)?,
            head_input: None,
            workspace: device.allocate(target.workspace())?,
            inputs,
        })
    }

    /// The session with its memory, which has the sizes that the manifest states and is of this
    /// device.
    pub fn bind(self, memory: Memory, inputs: Inputs, rank: Rank) -> Result<Session, DeviceError> {
        let Outline { artifact, target, code, device, plans, models, units } = self;
        let mut session = Session {
            artifact,
            target,
            code,
            device,
            plans,
            models,
            units,
            memory,
            inputs,
            stage: 0,
            rank,
            joined: true,
            loaded: false,
        };
        session.bind()?;
        Ok(session)
    }
}

impl Session {
    /// Resolves the plans' launches, once more where memory is another.
    pub fn bind(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the device was opened with this artifact; the memory was made for its manifest
        // and like the inputs lives in the session as long as the device does.
        unsafe { self.device.bind(&self.plans, &self.memory) }
    }

    pub fn manifest(&self) -> &Manifest {
        self.artifact.manifest()
    }

    pub fn model(&self) -> &Model {
        &self.manifest().model
    }

    /// What the artifact has for the device.
    pub fn target(&self) -> &Target {
        &self.code
    }

    /// The number of the rank among those of all stages.
    pub fn number(&self) -> usize {
        self.stage * self.rank.of + self.rank.number
    }

    /// The plans of the model.
    pub fn models(&self) -> &[Plan] {
        &self.plans[..self.models]
    }

    /// The numbers of the model's plans, or of those of its draft.
    pub fn plans_of(&self, draft: bool) -> Range<usize> {
        if draft { self.models..self.plans.len() } else { 0..self.models }
    }

    /// Fills the weights. If the source is not of the model they are as they were. `load` is given
    /// the target with the weights of all stages.
    pub fn fill_weights(
        &mut self,
        load: impl FnOnce(&Target, &TensorNames, Sink) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _span = tracing::debug_span!("load_weights").entered();
        self.device.pool().check().map_err(DeviceError::from)?;
        let artifact = self.artifact.clone();
        let names = &artifact.manifest().tensors;
        let done = load(&artifact.manifest().targets[self.target], names, self.sink());
        self.loaded = weights::are_loaded(self.loaded, &done);
        done
    }

    /// Fills the weights from a source that has those of the whole model.
    pub fn load(&mut self, source: &dyn Source, progress: weights::Progress) -> Result<(), Error> {
        self.fill_weights(|whole, names, sink| weights::load_some(sink, (&whole.weights, names), source, progress))
    }

    /// Where the host packs weights.
    pub fn sink(&mut self) -> Sink<'_> {
        let weights = &self.code.weights;
        Sink { weights, rank: self.rank, buffers: &mut self.memory.weights, pool: self.device.pool() }
    }

    /// Where the device packs weights.
    pub fn device_sink(&mut self, stream: Stream) -> DeviceSink<'_> {
        let weights = &self.code.weights;
        DeviceSink { weights, rank: self.rank, buffers: &mut self.memory.weights, device: &mut *self.device, stream }
    }

    /// Runs the body of a plan up to the next call that is due, which it gives, or to its end. A
    /// step of no tokens launches nothing: there is nothing to compute, but other ranks wait for
    /// its calls.
    ///
    /// # Safety
    /// The inputs hold the step, the memory that the plan reads is as it expects, the work of the
    /// last call is done, and the stream is one of the device's.
    pub unsafe fn advance(
        &mut self,
        at: &mut Progress,
        (size, stream): (StepSize, Stream),
        is_due: impl Fn(&Call) -> bool,
    ) -> Result<Option<Call>, DeviceError> {
        let plan = &self.plans[at.plan];
        let number = (at.call..plan.calls.len()).find(|&number| is_due(&plan.calls[number]));
        let call = number.map(|number| plan.calls[number]);
        let end = call.map_or(plan.body, |call| call.before);
        let part = Part { plan: at.plan, launches: at.launch..end, size, step: self.inputs.addresses().step, stream };
        if size.step.tokens > 0 {
            // SAFETY: what was bound is still there; the rest is passed on to the caller.
            unsafe { self.device.launch(part) }?;
        }
        (at.launch, at.call) = (end, number.map_or(plan.calls.len(), |number| number + 1));
        at.done = call.is_none();
        Ok(call)
    }
}
