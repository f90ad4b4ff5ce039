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
//!
//! Where an artifact has a tower, the steps of its model read three positions of each token and the
//! number of a row ([`Hosted::axes`], [`Hosted::sources`], [`Hosted::given`]): the framework writes
//! them between `begin` and the first `run` of each step. [`Hosted::look`] has the tower make rows.
mod allocate;
mod ends;
mod error;
mod images;
mod pages;
mod step;
mod weights;

pub use allocate::Allocate;
pub use error::HostedError;
pub use pages::Pages;
use step::Limits;
pub use step::{Batch, Table};

use crate::batch::{Inputs, TableRoom};
use crate::device::{self, Device, DeviceBuffer, DeviceChoice, DeviceError, Memory, StepSize, Stream};
use crate::error::Error;
use crate::pool::threads;
use crate::session::{Outline, Progress, Session};
use crate::tower::Tower;
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
    /// What the framework knows of images.
    pub images: Images,
    /// On which weights are uploaded; steps name their own.
    pub stream: Stream,
}

/// What a framework gives an artifact that has a tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// One position of each token: such artifacts are refused.
    #[default]
    Unknown,
    /// Three positions of each token, and no images: the tower stays closed.
    Absent,
    /// Three positions of each token, and the rows that the tower makes of images.
    Seen,
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
    session: Session,
    /// How many of the states are the model's.
    model_states: usize,
    /// The rows for the draft, if it is driven, and whether its weights are in a checkpoint of
    /// their own.
    draft: Option<DraftRows>,
    waits_for_draft: bool,
    /// The one that the device was opened with.
    stream: Stream,
    /// The steps of embeddings and heads, by their rows, where kernels read them from the device's
    /// memory.
    steps: Option<DeviceBuffer>,
    /// The address of each state's pages, table by table, for a device that makes the inputs.
    starts: Option<DeviceBuffer>,
    /// The part of a page of each state that is cleared.
    values: Vec<Range<usize>>,
    /// The pages, once they are bound.
    tables: Vec<Pages>,
    /// The artifact's tower, if it is driven.
    tower: Option<Tower>,
    /// The load under way of the model, and of its tower.
    loading: Option<Vec<Loading>>,
    /// Whether the weights were forgotten since they were last loaded as a whole.
    unloaded: bool,
    /// Whether that was because an update failed.
    mixed: bool,
    step: Option<Running>,
}

/// A step that runs, or has run and has its values in the arena still.
#[derive(Clone, Copy, Debug)]
struct Running {
    at: Progress,
    size: StepSize,
    /// Tokens as the caller counts them, padding included.
    tokens: usize,
    /// Whether the caller has other embeddings than those of the tokens.
    embedded: bool,
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
        let has_tower = options.images == Images::Seen && manifest.tower.is_some();
        let tower = || {
            // SAFETY: as above.
            unsafe { Tower::open_on(&artifact, &options.device, threads(options.threads, 1), options.stream) }
        };
        let tower = has_tower.then(tower).transpose()?;
        let mut hosted = Hosted::assemble(artifact, target, device, options, allocate)?;
        hosted.tower = tower;
        Ok(hosted)
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
        device: Box<dyn Device>,
        options: &HostedOptions,
        mut allocate: Option<Allocate>,
    ) -> Result<Hosted, Error> {
        let _span = tracing::debug_span!("open").entered();
        let draft =
            artifact.manifest().targets[target].draft.as_ref().filter(|_| options.draft).map(|draft| draft.rows);
        let mut outline = Outline::new((artifact, target, 0), device, draft.is_some(), |plan| runs(plan, options));
        let tables = table_rooms(&outline);
        let inputs = outline.inputs(tables)?;
        check_padding(&outline, &inputs)?;
        let most = outline.largest(|plan| plan.tokens.max(plan.rows));
        let steps = match inputs.in_place() {
            true => None,
            false if outline.device.prepares() => Some(ends::steps(&mut *outline.device, most)?),
            false => return Err(HostedError::Prepare { device: outline.device.name().to_owned() }.into()),
        };
        let states = outline.target().states.len();
        let starts = match inputs.in_place() || options.attention == Attention::Caller {
            true => None,
            false => Some(outline.device.allocate(states * size_of::<u64>())?),
        };
        let memory = memory(&mut outline, draft, &mut allocate, &inputs)?;
        let code = outline.target();
        let values = code.states.iter().map(|state| outline.units[state.group].cleared.clone()).collect();
        let (model_states, is_apart) = (model_states(code), code.draft.as_ref().is_some_and(Draft::is_apart));
        let rank = Rank { number: options.rank, of: outline.artifact.manifest().ranks() };
        let mut hosted = Hosted {
            session: outline.bind(memory, inputs, rank)?,
            model_states,
            waits_for_draft: draft.is_some() && is_apart,
            draft,
            stream: options.stream,
            steps,
            starts,
            values,
            tables: vec![],
            tower: None,
            loading: None,
            unloaded: false,
            mixed: false,
            step: None,
        };
        hosted.set_inputs()?;
        Ok(hosted)
    }

    /// Gives a device that makes the inputs everything that is the same in all steps.
    fn set_inputs(&mut self) -> Result<(), DeviceError> {
        self.session.inputs.clear();
        self.session.inputs.want_first(self.session.plans.iter().map(|plan| plan.rows).max().unwrap_or(0));
        if let Some(rows) = self.draft {
            self.session.inputs.take_rows_from(rows.model, self.max_tokens());
        }
        self.session.inputs.upload()
    }

    /// The opened artifact, for sharing.
    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.session.artifact
    }

    /// The artifact's target for the device.
    pub fn target(&self) -> &Target {
        self.session.target()
    }

    /// The plans of the model that this process may run.
    pub fn plans(&self) -> &[Plan] {
        self.session.models()
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
        self.session.rank
    }

    /// Kind and variant of the device, e.g. `host:x86-64-v4`.
    pub fn device_name(&self) -> &str {
        self.session.device.name()
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
        self.hidden_rows(&self.session.memory.hidden, self.max_tokens())
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
        let plan = &self.session.plans[self.step.map_or(0, |step| step.at.plan)];
        let place = plan.hidden.iter().find(|rows| rows.name == name).ok_or_else(unknown)?.place;
        let step = self.step.filter(|step| step.at.done).ok_or(HostedError::NotDone)?;
        Ok(self.rows_at(place, step.tokens))
    }

    /// The rows that each step of the model leaves for its draft, one for each token, and that a
    /// step of the draft takes: there the framework puts those of its tokens, if they are others.
    pub fn drafted(&self) -> Option<Rows> {
        let rows = self.draft?;
        let hidden = self.hidden_rows(&self.session.memory.hidden, self.max_tokens());
        Some(Rows { address: hidden.address.wrapping_add(rows.offset + rows.model * rows.stride), ..hidden })
    }

    /// The rows that heads read.
    pub fn head_input(&self) -> Rows {
        self.hidden_rows(
            self.session.memory.head_input.as_ref().unwrap_or(&self.session.memory.hidden),
            self.max_rows(),
        )
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
        let own = self.session.plans[0].attention == Attention::Own;
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
            ends::embedding(&self.session.plans[plan])?;
        }
        let size = match self.session.inputs.in_place() {
            // SAFETY: passed on to the caller.
            true => unsafe { self.fill(batch) }?,
            // SAFETY: as above.
            false => unsafe { self.prepare(batch, stream) }?,
        };
        let Batch { tokens, embedded, .. } = *batch;
        self.step = Some(Running { at: Progress::of(plan), size, tokens, embedded, stream });
        Ok(())
    }

    /// Takes the inputs of a step here.
    ///
    /// # Safety
    /// As for [`Hosted::begin`].
    unsafe fn fill(&mut self, batch: &Batch) -> Result<StepSize, HostedError> {
        let range = self.tables_of(batch.draft);
        let Hosted { session, tables, values, .. } = self;
        let Session { artifact, code: target, inputs, memory, units, .. } = session;
        let Model { vocab, max_positions, .. } = artifact.manifest().model;
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
        if batch.sequences == 0 || tiles > self.session.inputs.tile_room() {
            let detail = format!("{} in a step of {tokens} tokens", batch.sequences);
            return Err(HostedError::Field { field: "sequences", detail });
        }
        let first = self.tables_of(batch.draft).start;
        for table in 0..batch.tables.len().max(1) {
            let parameters = batch.prepare(table, self.clears(first + table));
            // SAFETY: the inputs have room for the tokens, as the plan was picked, and for the
            // tiles; the rest is passed on.
            unsafe { self.session.device.prepare(&parameters, stream) }?;
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
            let mut plans = self.session.plans_of(batch.draft);
            plans.find(|&number| fits(&self.session.plans[number]) && takes(&self.session.plans[number]))
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
        let step = self.step.as_mut().filter(|step| !step.at.done).ok_or(HostedError::NoStep)?;
        let Running { size, tokens, embedded, stream, .. } = *step;
        images::check(&self.session, size)?;
        let is_due = |call: &Call| match call.work {
            Work::Embedding { .. } => embedded,
            Work::AllGather { .. } | Work::HandOn { .. } => false,
            Work::AllReduce { .. } | Work::Attention { .. } => true,
        };
        // SAFETY: passed on to the caller; the inputs hold the step since it has begun.
        let call = unsafe { self.session.advance(&mut step.at, (size, stream), is_due) }?;
        let row = self.session.target().layout.row;
        let arena = self.session.memory.arena.host_view_mut();
        if let (Some(out), Some(arena)) = (call.and_then(|call| padded(call, row)), arena) {
            arena[out.offset..][..tokens * out.stride * out.dtype.size()].fill(0);
        }
        Ok(call)
    }

    /// A value of the current step: a row for each token.
    pub fn rows(&self, place: Place) -> Option<Rows> {
        self.step.map(|step| self.rows_at(place, step.tokens))
    }

    fn rows_at(&self, place: Place, rows: usize) -> Rows {
        let Place { offset, width, stride, dtype } = place;
        Rows { address: self.session.memory.arena.address().wrapping_add(offset), rows, width, stride, dtype }
    }
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hosted({} on {})", self.session.artifact.manifest().model.architecture, self.device_name())
    }
}

/// Tables that steps have: one for each state, which may have pages of its own.
fn table_rooms(outline: &Outline) -> Vec<TableRoom> {
    let code = outline.target();
    let most = outline.artifact.manifest().model.max_positions.div_ceil(code.layout.block_tokens);
    // Tables are not copied if the device makes the inputs.
    let blocks = if outline.device.prepares() { 0 } else { most };
    code.states.iter().map(|state| TableRoom { blocks, block_stride: outline.units[state.group].bytes }).collect()
}

/// Checks that rows with a caller's attention have no padding that is never cleared.
fn check_padding(outline: &Outline, inputs: &Inputs) -> Result<(), HostedError> {
    let row = outline.target().layout.row;
    let unfilled = outline.plans.iter().flat_map(|plan| &plan.calls).find_map(|call| padded(*call, row));
    match unfilled.filter(|_| !inputs.in_place()) {
        None => Ok(()),
        Some(Place { width, .. }) => {
            let detail = format!("rows of {width} numbers have padding up to a multiple of {row}, which nobody clears");
            Err(HostedError::Field { field: "attention", detail })
        }
    }
}

/// Memory of weights and steps. There are no pages yet: frameworks try heads before they give any.
fn memory(
    outline: &mut Outline,
    draft: Option<DraftRows>,
    allocate: &mut Option<Allocate>,
    inputs: &Inputs,
) -> Result<Memory, Error> {
    let arena = outline.largest(|plan| plan.arena_bytes);
    let Outline { code, device, units, .. } = outline;
    let empty = |(number, state): (usize, &State)| Ok(units[state.group].memory(device.allocate(0)?, number));
    let states = code.states.iter().enumerate().map(empty).collect::<Result<_, DeviceError>>()?;
    let workspace = device.allocate(code.workspace())?;
    let mut buffer = |bytes| allocate::buffer(&mut **device, allocate, bytes);
    Ok(Memory {
        weights: code.weights.iter().map(|weight| buffer(weight.bytes)).collect::<Result<_, _>>()?,
        arena: buffer(arena)?,
        hidden: buffer(code.hidden.bytes)?,
        head_input: Some(buffer(draft.map_or(code.hidden.bytes, |rows| rows.offset))?),
        workspace,
        states,
        inputs: inputs.addresses(),
    })
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
    if target.given.is_some() && (options.images == Images::Unknown || !images::are_counted(target)) {
        return Err(HostedError::Tower { target: target.name.clone() });
    }
    if rank >= ranks {
        return Err(HostedError::Rank { rank, ranks });
    }
    if manifest.pipeline_parallel > 1 {
        let detail = format!("{} stages of layers, which an engine runs alone", manifest.pipeline_parallel);
        return Err(HostedError::Field { field: "pipeline_parallel", detail });
    }
    if let Some(adapters) = manifest.adapters {
        let detail = format!("room for {} adapters, which an engine runs alone", adapters.slots);
        return Err(HostedError::Field { field: "adapters", detail });
    }
    if target.invariant && ranks > 1 {
        let detail = "sums over ranks are the framework's, so bits may depend on what else is in a step".to_owned();
        return Err(HostedError::Field { field: "invariant", detail });
    }
    if let Some(pages) = crate::states::paged(target).find(|pages| pages.every > 1) {
        return Err(HostedError::Blocks { target: target.name.clone(), every: pages.every });
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
        true => Ok(()),
    }
}

#[cfg(test)]
mod tests;
