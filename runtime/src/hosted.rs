//! An artifact inside a framework that schedules, keeps the cache and samples: the framework gives
//! memory, pages and slots of its cache and the tensors of each step, and gets hidden rows and
//! logits.
//!
//! A step is [`Hosted::begin`], then [`Hosted::run`] until no call is left, then [`Hosted::head`]
//! on the hidden rows that the framework has put into [`Hosted::head_input`]. Between two runs the
//! framework does the work that the call names. Embeddings alone are [`Hosted::embed`] of the
//! tokens in [`Hosted::embed_input`].
//!
//! An artifact's draft is driven alike: steps with [`Batch::draft`], and [`Hosted::draft_head`].
//! Each step of the model leaves a row of each token in [`Hosted::drafted`]. The framework puts the
//! rows that a step of the draft takes there.
//!
//! A function of the framework's allocates the memory, so the framework can account for it:
//! weights, the arena, the hidden rows and the heads' input. The block of inputs and the workspace
//! are the runtime's own. Pages are bound table by table, by address and distance, and may be bound
//! again. Heads run before they are bound, too.
//!
//! If the device's memory is the host's, `begin` reads the tensors and refuses impossible values
//! with the name of the field. On a GPU the host does not read them: grids follow from the padded
//! sizes, and heads find their step in a table of steps. Nothing there allocates, copies from the
//! host or waits. Either way the values of a page that gets its first token are cleared, as the
//! page's last owner may have left NaN.
mod allocate;
mod ends;
mod error;
mod pages;
mod step;
mod weights;

pub use allocate::Allocate;
pub use error::HostedError;
pub use pages::Pages;
use step::Limits;
pub use step::{Batch, Table};

use crate::batch::{Inputs, Room, TableRoom};
use crate::device::{self, Device, DeviceBuffer, DeviceChoice, DeviceError, Memory, Part, StepSize, Stream};
use crate::error::Error;
use crate::pool::threads;
use crate::states::Unit;
use crate::weights::{Loading, Rank};
use atomc_artifact::Artifact;
use atomc_artifact::abi::{Prepare, Step};
use atomc_artifact::manifest::{
    Arg, Attention, Call, DType, Draft, DraftRows, Manifest, Model, Place, Plan, PlanKind, State, Target, Work,
};
use std::ops::Range;
use std::sync::Arc;

/// How to open an artifact inside a framework.
#[derive(Clone, Debug)]
pub struct HostedOptions {
    /// Where to run.
    pub device: DeviceChoice,
    /// Threads of the host, the caller's among them; 0 takes as many as the system offers, shared
    /// out among the ranks.
    pub threads: usize,
    /// This process's number among the ranks that share the model out.
    pub rank: usize,
    /// Which side attends: plans of the other kind are not used.
    pub attention: Attention,
    /// Whether the artifact's draft is driven too. Its states follow the model's then.
    pub draft: bool,
    /// On which weights are uploaded; steps name their own.
    pub stream: Stream,
}

/// Rows of numbers in the memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first number, on the device. It may be followed until the next step or load.
    pub address: *mut u8,
    /// The number of rows: those of a step, or those that there is room for.
    pub rows: usize,
    /// Numbers of a row, without padding.
    pub width: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Type of the numbers.
    pub dtype: DType,
}

// SAFETY: an address, which only its owner's callers follow.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

/// An artifact on a device that a framework drives.
pub struct Hosted {
    artifact: Arc<Artifact>,
    /// Index of the device's target in the manifest.
    target: usize,
    /// The plans that this process may run: the model's, then its draft's.
    plans: Vec<Plan>,
    /// The number of the model's plans, and of its states.
    models: usize,
    model_states: usize,
    /// The rows for the draft, if it is driven, and whether its weights are in a checkpoint of
    /// their own.
    draft: Option<DraftRows>,
    waits_for_draft: bool,
    rank: Rank,
    /// The one that the device was opened with.
    stream: Stream,
    device: Box<dyn Device>,
    memory: Memory,
    inputs: Inputs,
    /// The steps of embeddings and heads, by their rows, where kernels read them from the device's
    /// memory.
    steps: Option<DeviceBuffer>,
    /// The page, or the slot, of each group of states.
    units: Vec<Unit>,
    /// Where the pages of each state begin, table by table, for a device that makes the inputs.
    starts: Option<DeviceBuffer>,
    /// The part of a page of each state that is cleared.
    values: Vec<Range<usize>>,
    /// The pages, once they are bound.
    tables: Vec<Pages>,
    loading: Option<Loading>,
    loaded: bool,
    /// Whether the weights were forgotten since they were last loaded as a whole.
    unloaded: bool,
    /// Whether that was because an update failed.
    mixed: bool,
    step: Option<Running>,
}

/// A step that runs, or has run and has its values in the arena still.
#[derive(Clone, Copy, Debug)]
struct Running {
    plan: usize,
    size: StepSize,
    /// Tokens as the caller counts them, padding included.
    tokens: usize,
    /// Whether the caller has other embeddings than those of the tokens.
    embedded: bool,
    /// The launch that is next, and the call.
    launch: usize,
    call: usize,
    /// Whether the body has run to its end.
    done: bool,
    stream: Stream,
}

impl Hosted {
    /// Opens an artifact on a device, in memory of the caller's if `allocate` is given. Weights and
    /// pages are given later.
    pub fn open(artifact: Arc<Artifact>, options: &HostedOptions, allocate: Option<Allocate>) -> Result<Hosted, Error> {
        let manifest = artifact.manifest();
        let target = options.device.target(manifest)?;
        check(manifest, target, options)?;
        // SAFETY: passed on to the caller, which names a stream of this device.
        let device =
            unsafe { options.device.open_on(&artifact, threads(options.threads, manifest.ranks()), options.stream) }?;
        Hosted::assemble(artifact, target, device, options, allocate)
    }

    /// On a device that the caller opened with the artifact's code for a target, instead of the
    /// options' device.
    pub fn with_device(
        artifact: Arc<Artifact>,
        target: &str,
        device: Box<dyn Device>,
        options: &HostedOptions,
        allocate: Option<Allocate>,
    ) -> Result<Hosted, Error> {
        let target = device::target(artifact.manifest(), target)?;
        check(artifact.manifest(), target, options)?;
        Hosted::assemble(artifact, target, device, options, allocate)
    }
}

impl Hosted {
    fn assemble(
        artifact: Arc<Artifact>,
        target: usize,
        mut device: Box<dyn Device>,
        options: &HostedOptions,
        mut allocate: Option<Allocate>,
    ) -> Result<Hosted, Error> {
        let _span = tracing::debug_span!("open").entered();
        let (manifest, code) = (artifact.manifest(), &artifact.manifest().targets[target]);
        let of = |draft| code.plans.iter().filter(move |plan| plan.draft == draft && runs(plan, options)).cloned();
        let mut plans: Vec<Plan> = of(false).collect();
        let models = plans.len();
        let draft = code.draft.as_ref().filter(|_| options.draft).map(|draft| draft.rows);
        if draft.is_some() {
            plans.extend(of(true));
        }
        let largest = |size: fn(&Plan) -> usize| plans.iter().map(size).max().unwrap_or(0);
        let units = Unit::all(code);
        // Tables stay where they are if the device makes the inputs.
        let blocks =
            if device.prepares() { 0 } else { manifest.model.max_positions.div_ceil(code.layout.block_tokens) };
        // Each state may have a table of its own.
        let table = |state: &State| TableRoom { blocks, block_stride: units[state.group].bytes };
        let tables = code.states.iter().map(table).collect();
        let room = Room { tokens: largest(|plan| plan.tokens), rows: largest(|plan| plan.rows), tables };
        let most = room.tokens.max(room.rows);
        let inputs = Inputs::new(&mut *device, room)?;
        let row = code.layout.row;
        let unfilled = plans.iter().flat_map(|plan| &plan.calls).find_map(|call| padded(*call, row));
        if let Some(Place { width, .. }) = unfilled.filter(|_| !inputs.in_place()) {
            let detail = format!("rows of {width} numbers have padding up to a multiple of {row}, which nobody clears");
            return Err(HostedError::Field { field: "attention", detail }.into());
        }
        let steps = match inputs.in_place() {
            true => None,
            false if device.prepares() => Some(ends::steps(&mut *device, most)?),
            false => return Err(HostedError::Prepare { device: device.name().to_owned() }.into()),
        };
        let starts = match inputs.in_place() || options.attention == Attention::Caller {
            true => None,
            false => Some(device.allocate(code.states.len() * size_of::<u64>())?),
        };
        // Heads run without pages: frameworks try them before they give any.
        let empty = |(number, state): (usize, &State)| Ok(units[state.group].memory(device.allocate(0)?, number));
        let states = code.states.iter().enumerate().map(empty).collect::<Result<_, DeviceError>>()?;
        let values = code.states.iter().map(|state| units[state.group].cleared.clone()).collect();
        let workspace = device.allocate(code.workspace())?;
        let mut buffer = |bytes| allocate::buffer(&mut *device, &mut allocate, bytes);
        let memory = Memory {
            weights: code.weights.iter().map(|weight| buffer(weight.bytes)).collect::<Result<_, _>>()?,
            arena: buffer(largest(|plan| plan.arena_bytes))?,
            hidden: buffer(code.hidden.bytes)?,
            head_input: Some(buffer(draft.map_or(code.hidden.bytes, |rows| rows.offset))?),
            workspace,
            states,
            inputs: inputs.addresses(),
        };
        let rank = Rank { number: options.rank, of: manifest.ranks() };
        let (model_states, is_apart) = (model_states(code), code.draft.as_ref().is_some_and(Draft::is_apart));
        let mut hosted = Hosted {
            artifact,
            target,
            plans,
            models,
            model_states,
            waits_for_draft: draft.is_some() && is_apart,
            draft,
            rank,
            stream: options.stream,
            device,
            memory,
            inputs,
            steps,
            units,
            starts,
            values,
            tables: vec![],
            loading: None,
            loaded: false,
            unloaded: false,
            mixed: false,
            step: None,
        };
        hosted.set_inputs()?;
        hosted.bind()?;
        Ok(hosted)
    }

    /// Gives a device that makes the inputs everything that is the same in all steps.
    fn set_inputs(&mut self) -> Result<(), DeviceError> {
        self.inputs.clear();
        self.inputs.want_first(self.plans.iter().map(|plan| plan.rows).max().unwrap_or(0));
        if let Some(rows) = self.draft {
            self.inputs.take_rows_from(rows.model, self.max_tokens());
        }
        self.inputs.upload()
    }

    fn bind(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the device was opened with this artifact; the memory has its sizes and lives as
        // long as the device.
        unsafe { self.device.bind(&self.plans, &self.memory) }
    }

    /// The opened artifact, for sharing.
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }

    /// The artifact's target for the device.
    pub fn target(&self) -> &Target {
        &self.artifact.manifest().targets[self.target]
    }

    /// The plans of the model that this process may run.
    pub fn plans(&self) -> &[Plan] {
        &self.plans[..self.models]
    }

    /// The plans of the model, or of the draft.
    fn plans_of(&self, draft: bool) -> Range<usize> {
        if draft { self.models..self.plans.len() } else { 0..self.models }
    }

    /// The states that pages are wanted for, by their numbers: the model's, then those of the
    /// draft, if it is driven.
    pub fn states(&self) -> &[State] {
        let states = &self.target().states;
        if self.draft.is_some() { states } else { &states[..self.model_states] }
    }

    /// The number of states that are the model's.
    pub fn model_states(&self) -> usize {
        self.model_states
    }

    /// Whether a draft is driven.
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// This rank, of those that share the model out.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Kind and variant of the device, e.g. `host:x86-64-v4`.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// Most tokens in one step.
    pub fn max_tokens(&self) -> usize {
        self.plans().iter().map(|plan| plan.tokens).max().unwrap_or(0)
    }

    /// Most rows of logits at once.
    pub fn max_rows(&self) -> usize {
        self.plans().iter().map(|plan| plan.rows).max().unwrap_or(0)
    }

    /// The rows that the body of a step leaves, one for each token.
    pub fn hidden(&self) -> Rows {
        self.hidden_rows(&self.memory.hidden, self.max_tokens())
    }

    /// The names of the further rows that steps leave: `hidden.2` is the input of layer 2.
    pub fn hidden_names(&self) -> impl Iterator<Item = &str> {
        let plans = self.plans().first().into_iter();
        plans.flat_map(|plan| &plan.hidden).map(|rows| rows.name.as_str())
    }

    /// Further rows of the step that has just run its body to the end, one for each token. They
    /// stay until the next step, embedding or head. Their place depends on the size of the step.
    pub fn hidden_of(&self, name: &str) -> Result<Rows, HostedError> {
        let known = || self.hidden_names().map(str::to_owned).collect();
        let unknown = || HostedError::Hidden { name: name.to_owned(), known: known() };
        let plan = &self.plans[self.step.map_or(0, |step| step.plan)];
        let place = plan.hidden.iter().find(|rows| rows.name == name).ok_or_else(unknown)?.place;
        let step = self.step.filter(|step| step.done).ok_or(HostedError::NotDone)?;
        Ok(self.rows_at(place, step.tokens))
    }

    /// The rows that each step of the model leaves for its draft, one for each token, and that a
    /// step of the draft takes: there the framework puts those of its tokens, if they are others.
    pub fn drafted(&self) -> Option<Rows> {
        let rows = self.draft?;
        let hidden = self.hidden_rows(&self.memory.hidden, self.max_tokens());
        Some(Rows { address: hidden.address.wrapping_add(rows.offset + rows.model * rows.stride), ..hidden })
    }

    /// The rows that heads read.
    pub fn head_input(&self) -> Rows {
        self.hidden_rows(self.memory.head_input.as_ref().unwrap_or(&self.memory.hidden), self.max_rows())
    }

    fn hidden_rows(&self, buffer: &DeviceBuffer, rows: usize) -> Rows {
        let spec = self.target().hidden;
        Rows { address: buffer.address(), rows, width: spec.width, stride: spec.stride, dtype: spec.dtype }
    }

    /// Begins a step: picks its plan and takes its inputs.
    ///
    /// # Safety
    /// The tensors are of the sizes that [`Batch`] states, in memory of the device, and stay as
    /// they are until the step's body is done.
    pub unsafe fn begin(&mut self, batch: &Batch, stream: Stream) -> Result<(), HostedError> {
        self.step = None;
        self.check_loaded()?;
        let own = self.plans[0].attention == Attention::Own;
        if own && self.tables.is_empty() {
            return Err(HostedError::NoCache);
        }
        if batch.draft && self.draft.is_none() {
            return Err(HostedError::Draft("none is driven; open the artifact with it"));
        }
        // Tables are not used if the caller does the attention.
        let batch = &Batch { tables: if own { batch.tables } else { &[] }, ..*batch };
        let (found, want) = (batch.tables.len(), self.tables_of(batch.draft).len());
        if own && found != want {
            return Err(HostedError::Field {
                field: "tables",
                detail: format!("{found}, but pages are bound for {want}"),
            });
        }
        let plan = self.pick(batch)?;
        if batch.embedded {
            ends::embedding(&self.plans[plan])?;
        }
        let size = match self.inputs.in_place() {
            // SAFETY: passed on to the caller.
            true => unsafe { self.fill(batch) }?,
            // SAFETY: as above.
            false => unsafe { self.prepare(batch, stream) }?,
        };
        let Batch { tokens, embedded, .. } = *batch;
        self.step = Some(Running { plan, size, tokens, embedded, launch: 0, call: 0, done: false, stream });
        Ok(())
    }

    /// Takes the inputs of a step here.
    ///
    /// # Safety
    /// As for [`Hosted::begin`].
    unsafe fn fill(&mut self, batch: &Batch) -> Result<StepSize, HostedError> {
        let range = self.tables_of(batch.draft);
        let Hosted { artifact, inputs, memory, tables, values, units, .. } = self;
        let Model { vocab, max_positions, .. } = artifact.manifest().model;
        let target = &artifact.manifest().targets[self.target];
        let block_tokens = target.layout.block_tokens;
        // There are no tables if the caller does the attention.
        let bound = &tables[range.start..range.start + batch.tables.len()];
        let kept = bound.iter().map(|table| units[target.states[table.states[0].0].group].kept).collect();
        let limits = Limits { vocab, max_positions, block_tokens, before: range.start, tables: bound, kept };
        let clear =
            |table: usize, block| pages::clear(&mut memory.states, values, table, block * tables[table].block_stride);
        // SAFETY: passed on to the caller.
        unsafe { batch.fill(inputs, &limits, clear) }?;
        if let Some(rows) = self.draft.filter(|_| batch.draft) {
            inputs.take_rows_from(rows.model, batch.tokens);
        }
        Ok(inputs.step().size)
    }

    /// Lets the device make the inputs of a step. The host knows only an upper limit of their
    /// number.
    ///
    /// # Safety
    /// As for [`Hosted::begin`].
    unsafe fn prepare(&mut self, batch: &Batch, stream: Stream) -> Result<StepSize, HostedError> {
        let (tokens, tiles) = (batch.tokens, Prepare::tiles(batch.tokens, batch.sequences));
        if batch.sequences == 0 || tiles > self.inputs.tile_room() {
            let detail = format!("{} in a step of {tokens} tokens", batch.sequences);
            return Err(HostedError::Field { field: "sequences", detail });
        }
        let first = self.tables_of(batch.draft).start;
        for table in 0..batch.tables.len().max(1) {
            let parameters = batch.prepare(table, self.clears(first + table));
            // SAFETY: the inputs have room for the tokens, as the plan was picked, and for the
            // tiles; the rest is passed on.
            unsafe { self.device.prepare(&parameters, stream) }?;
        }
        Ok(StepSize { step: Step { tokens: tokens as i64, rows: 0 }, tiles })
    }

    /// The first plan that takes a step: one for few tokens of each sequence, else one for all.
    fn pick(&self, batch: &Batch) -> Result<usize, HostedError> {
        let fits = |plan: &Plan| plan.tokens >= batch.tokens;
        let few = |plan: &Plan| {
            let takes = |each| batch.each <= each && batch.sequences * each <= plan.tokens;
            batch.each > 0 && plan.kind.each().is_some_and(takes)
        };
        let first = |takes: &dyn Fn(&Plan) -> bool| {
            let mut plans = self.plans_of(batch.draft);
            plans.find(|&number| fits(&self.plans[number]) && takes(&self.plans[number]))
        };
        let found = first(&few).or_else(|| first(&|plan| plan.kind == PlanKind::Any));
        found.ok_or_else(|| HostedError::Tokens { tokens: batch.tokens, max: self.max_tokens() })
    }

    /// Runs the body up to the next call, which it gives, or to its end.
    ///
    /// # Safety
    /// The step's tensors and pages are unchanged, and the caller has done the work of the call
    /// before.
    pub unsafe fn run(&mut self) -> Result<Option<Call>, HostedError> {
        let step = self.step.as_mut().filter(|step| !step.done).ok_or(HostedError::NoStep)?;
        let plan = &self.plans[step.plan];
        let is_due = |call: &Call| step.embedded || !matches!(call.work, Work::Embedding { .. });
        let number = (step.call..plan.calls.len()).find(|&number| is_due(&plan.calls[number]));
        let call = number.map(|number| plan.calls[number]);
        let end = call.map_or(plan.body, |call| call.before);
        let (launches, address) = (step.launch..end, self.inputs.addresses().step);
        let part = Part { plan: step.plan, launches, size: step.size, step: address, stream: step.stream };
        // A step of padding alone has nothing to compute, but other ranks wait for its calls.
        if part.size.step.tokens > 0 {
            // SAFETY: bound when opened or by `bind_cache`; the inputs hold the step; the rest is
            // passed on to the caller.
            unsafe { self.device.launch(part) }?;
        }
        (step.launch, step.call) = (end, number.map_or(plan.calls.len(), |number| number + 1));
        let row = self.artifact.manifest().targets[self.target].layout.row;
        if let (Some(out), Some(arena)) = (call.and_then(|call| padded(call, row)), self.memory.arena.host_view_mut()) {
            arena[out.offset..][..step.tokens * out.stride * out.dtype.size()].fill(0);
        }
        step.done = call.is_none();
        Ok(call)
    }

    /// A value of the current step: a row for each token.
    pub fn rows(&self, place: Place) -> Option<Rows> {
        self.step.map(|step| self.rows_at(place, step.tokens))
    }

    fn rows_at(&self, place: Place, rows: usize) -> Rows {
        let Place { offset, width, stride, dtype } = place;
        Rows { address: self.memory.arena.address().wrapping_add(offset), rows, width, stride, dtype }
    }
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hosted({} on {})", self.artifact.manifest().model.architecture, self.device_name())
    }
}

/// Rows that a caller attends into, if kernels read more of them than it fills.
fn padded(call: Call, row: usize) -> Option<Place> {
    match call.work {
        Work::Attention { out, .. } if !out.width.is_multiple_of(row) => Some(out),
        _ => None,
    }
}

/// Whether a plan is one for the steps of a caller, which wants their hidden rows.
fn runs(plan: &Plan, options: &HostedOptions) -> bool {
    plan.attention == options.attention && plan.kind != PlanKind::Whole
}

/// States of the model alone: those of a draft have later numbers.
fn model_states(target: &Target) -> usize {
    let args = target.plans.iter().filter(|plan| plan.draft).flat_map(|plan| &plan.launches).flat_map(|l| &l.args);
    let first = args.filter_map(|arg| match arg {
        Arg::State { state, .. } => Some(*state),
        _ => None,
    });
    first.min().unwrap_or(target.states.len())
}

fn check(manifest: &Manifest, target: usize, options: &HostedOptions) -> Result<(), HostedError> {
    let (rank, ranks, target) = (options.rank, manifest.ranks(), &manifest.targets[target]);
    if options.draft {
        check_draft(target, options)?;
    }
    if rank >= ranks {
        return Err(HostedError::Rank { rank, ranks });
    }
    match target.plans.iter().any(|plan| runs(plan, options)) {
        true => Ok(()),
        false => {
            let wanted = match options.attention {
                Attention::Own => "own",
                Attention::Caller => "caller",
            };
            Err(HostedError::Attention { target: target.name.clone(), wanted })
        }
    }
}

fn check_draft(target: &Target, options: &HostedOptions) -> Result<(), HostedError> {
    let has = |kind| target.plans.iter().any(|plan| plan.draft && plan.kind == kind);
    match target.draft.is_some() {
        false => Err(HostedError::Draft("the artifact has none; compile with --draft")),
        true if options.attention == Attention::Caller => Err(HostedError::Draft("a caller does not attend for it")),
        true if !has(PlanKind::Any) => Err(HostedError::Draft("it has no plan of kind `any`; compile anew")),
        true if target.has_slots() => Err(HostedError::Draft(
            "recurrent states cannot go back to the token behind which a guess was wrong, in a framework",
        )),
        true => Ok(()),
    }
}

#[cfg(test)]
mod tests;
