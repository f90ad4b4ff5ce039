//! One launch alone, on memory that the caller fills: how kernels are checked and recorded.
use crate::batch::{Inputs, Room, TableRoom};
use crate::device::{Device, DeviceBuffer, DeviceError, Memory, StepSize};
use crate::states::Unit;
use atomc_artifact::manifest::{Arg, Plan, Target};
use std::collections::BTreeMap;

/// A device that runs launches of an artifact one at a time.
pub struct Probe {
    device: Box<dyn Device>,
    target: Target,
    /// Zero at first, then as the last launch left it, as in an engine.
    workspace: Option<DeviceBuffer>,
    /// Memory of the launch before, which the next one may take.
    arena: Option<DeviceBuffer>,
    /// Weights that stay, by their numbers.
    kept: BTreeMap<usize, Kept>,
    /// Bytes of the host's memory that these may take.
    room: usize,
    /// Launches so far.
    launches: u64,
}

/// A weight that stays on the device.
struct Kept {
    /// What it holds.
    tag: String,
    buffer: DeviceBuffer,
    /// The last launch that took it.
    used: u64,
}

/// Consecutive new tokens of one sequence, of which the last `rows` want logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Their ids.
    pub tokens: Vec<u32>,
    /// Position of the first one in its sequence.
    pub position: usize,
    /// How many of the last tokens want logits.
    pub rows: usize,
    /// The row that each takes, in a step of a draft.
    pub sources: Vec<usize>,
    /// The slot of the adapter that all have.
    pub adapter: Option<usize>,
    /// The sequence's cache blocks.
    pub table: Vec<i32>,
}

/// The step that a launch belongs to. Its states have `blocks` pages each, at the distance
/// `block_stride`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeStep {
    /// One for each sequence.
    pub pieces: Vec<Piece>,
    /// Pages of each state.
    pub blocks: usize,
    /// Bytes from one page to the next.
    pub block_stride: usize,
}

impl ProbeStep {
    /// Bytes of a state.
    fn pages(&self) -> usize {
        self.blocks * self.block_stride
    }
}

/// Memory after a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// All of it: [`POISON`] where neither the caller nor the launch wrote.
    pub arena: Vec<u8>,
    /// Of the plan's tokens and what kernels may write beyond them.
    pub hidden: Vec<u8>,
    /// Pages of the states that the launch names.
    pub states: BTreeMap<usize, Vec<u8>>,
}

/// Every byte of the arena and of the hidden rows that was never filled has this value: no number
/// in any type of floats.
pub const POISON: u8 = u8::MAX;

/// Why a launch has no outcome.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum ProbeError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel did what it must not do.
    #[error("{0}")]
    Launch(DeviceError),
    #[error("{bytes} bytes for argument {arg:?}, which has room for {room}")]
    Room { arg: Arg, bytes: usize, room: usize },
    #[error("a step of {tokens} tokens and {rows} rows, but the plan takes {most_tokens} and {most_rows}")]
    Step { tokens: usize, rows: usize, most_tokens: usize, most_rows: usize },
}

impl Probe {
    /// On a device that was opened with the artifact's code for a target.
    pub fn new(device: Box<dyn Device>, target: &Target) -> Probe {
        let (kept, room) = (BTreeMap::new(), usize::MAX);
        Probe { device, target: target.clone(), workspace: None, arena: None, kept, room, launches: 0 }
    }

    /// How many bytes of the host's memory weights that stay may take; those that were not used for
    /// the longest time go first. Of the memory of a GPU they take three quarters.
    pub fn keep_at_most(&mut self, bytes: usize) {
        self.room = bytes;
    }

    /// Whether the device's memory is the host's.
    pub fn is_in_host_memory(&mut self) -> Result<bool, ProbeError> {
        Ok(self.device.allocate(1)?.host_view().is_some())
    }

    /// The threads of the host.
    pub fn threads(&mut self) -> usize {
        self.device.pool().threads()
    }

    /// A weight that stays for the launches that come. If it is not there, or is not what the tag
    /// names, it is made.
    pub fn keep(
        &mut self,
        weight: usize,
        tag: &str,
        make: impl FnOnce(&mut DeviceBuffer) -> Result<(), DeviceError>,
    ) -> Result<(), ProbeError> {
        if let Some(kept) = self.kept.get_mut(&weight).filter(|kept| kept.tag == tag) {
            kept.used = self.launches;
            return Ok(());
        }
        self.kept.remove(&weight);
        let bytes = self.target.weights[weight].bytes;
        self.make_room(bytes);
        let mut buffer = self.device.allocate(bytes)?;
        make(&mut buffer)?;
        self.kept.insert(weight, Kept { tag: tag.to_owned(), buffer, used: self.launches });
        Ok(())
    }

    /// Gives back what the next launch does not take, until so many bytes more have room.
    fn make_room(&mut self, bytes: usize) {
        let on_host = self.kept.values().any(|kept| kept.buffer.host_view().is_some());
        let room = if on_host { self.room } else { self.device.memory() / 4 * 3 };
        while self.kept.values().map(|kept| kept.buffer.len()).sum::<usize>().saturating_add(bytes) > room {
            let idle = self.kept.iter().filter(|(_, kept)| kept.used < self.launches);
            let Some(oldest) = idle.min_by_key(|(_, kept)| kept.used).map(|(&weight, _)| weight) else { return };
            self.kept.remove(&oldest);
        }
    }

    /// Kind and variant of the device, e.g. `host:x86-64-v4`.
    pub fn device_name(&self) -> &str {
        self.device.name()
    }

    /// What the artifact has for the device.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Runs one launch of a plan, as a plan of its own. Weights that are neither kept nor filled,
    /// and states that are not filled, are zero; a state is filled as its first stream.
    pub fn run(
        &mut self,
        plan: usize,
        launch: usize,
        step: &ProbeStep,
        contents: &[(Arg, &[u8])],
    ) -> Result<Outcome, ProbeError> {
        let started = self.start(plan, launch, step, contents, true)?;
        // Where launches go on after `run`, what they did wrong shows now.
        let outcome = self.outcome(&started, step.pages()).map_err(ProbeError::Launch);
        let Launched { numbers, memory, .. } = started;
        (self.workspace, self.arena) = (Some(memory.workspace), Some(memory.arena));
        let kept = numbers.weights.into_iter().zip(memory.weights).zip(numbers.tags);
        let kept =
            kept.filter_map(|((weight, buffer), tag)| Some((weight, Kept { tag: tag?, buffer, used: self.launches })));
        self.kept.extend(kept);
        self.launches += 1;
        outcome
    }

    /// The same for a device that only looks at launches: all memory that is not filled is zero,
    /// and costs nothing until something touches it.
    pub fn show(
        &mut self,
        plan: usize,
        launch: usize,
        step: &ProbeStep,
        contents: &[(Arg, &[u8])],
    ) -> Result<(), ProbeError> {
        self.arena = None;
        let started = self.start(plan, launch, step, contents, false)?;
        self.workspace = Some(started.memory.workspace);
        Ok(())
    }

    fn start(
        &mut self,
        plan: usize,
        launch: usize,
        step: &ProbeStep,
        contents: &[(Arg, &[u8])],
        poison: bool,
    ) -> Result<Launched, ProbeError> {
        let plan = self.single(plan, launch);
        let mut inputs = self.inputs(&plan, step)?;
        let mut numbers = Numbers::of(&plan.launches[0].args);
        let mut memory = self.memory(&plan, step.pages(), &inputs, &mut numbers)?;
        if poison {
            memory.arena.fill(0..plan.arena_bytes, POISON)?;
            memory.hidden.fill(0..self.target.hidden.bytes, POISON)?;
        }
        for (arg, bytes) in contents {
            if let (Arg::Input { which }, true) = (*arg, self.target.given.is_some()) {
                inputs.fill(which, bytes)?;
            }
            self.fill(&mut memory, &plan, step.pages(), numbers.renamed(*arg), bytes)?;
        }
        let bound = Plan { launches: vec![numbers.launch(&plan)], ..plan.clone() };
        // SAFETY: the launch is one of the artifact's, with other numbers for the same things; the
        // memory came from this device with the sizes of the manifest and lives until the outcome
        // is downloaded; the inputs fit the plan as just checked.
        unsafe {
            self.device.bind(std::slice::from_ref(&bound), &memory)?;
            self.device.run(0, inputs.step(), None).map_err(ProbeError::Launch)?;
        }
        Ok(Launched { plan, numbers, memory, _inputs: inputs })
    }

    /// How much a launch of a step has to do.
    pub fn size(&mut self, plan: usize, step: &ProbeStep) -> Result<StepSize, ProbeError> {
        let plan = self.target.plans[plan].clone();
        Ok(self.inputs(&plan, step)?.step().size)
    }

    fn single(&self, plan: usize, launch: usize) -> Plan {
        let plan = &self.target.plans[plan];
        let launches = vec![plan.launches[launch].clone()];
        Plan {
            launches,
            kind: plan.kind,
            draft: plan.draft,
            tokens: plan.tokens,
            rows: plan.rows,
            arena_bytes: plan.arena_bytes,
            attention: plan.attention,
            body: 0,
            calls: vec![],
            hidden: vec![],
            logits: plan.logits,
            picks: plan.picks,
        }
    }

    fn inputs(&mut self, plan: &Plan, step: &ProbeStep) -> Result<Inputs, ProbeError> {
        let tokens = step.pieces.iter().map(|p| p.tokens.len()).sum();
        let rows = step.pieces.iter().map(|p| p.rows).sum();
        if tokens > plan.tokens || rows > plan.rows {
            return Err(ProbeError::Step { tokens, rows, most_tokens: plan.tokens, most_rows: plan.rows });
        }
        let longest = step.pieces.iter().map(|p| p.table.len()).max().unwrap_or(0);
        let tables = vec![TableRoom { blocks: longest + 1, block_stride: step.block_stride }];
        let room = Room { tokens: plan.tokens, rows: plan.rows, tables, given: self.target.given };
        let mut inputs = Inputs::new(&mut *self.device, room)?;
        for piece in &step.pieces {
            let length = piece.position + piece.tokens.len();
            inputs.push(&piece.tokens, piece.position, length, [&piece.table[..]]);
            if let Some(slot) = piece.adapter {
                inputs.adapt(piece.tokens.len(), slot);
            }
            inputs.want(piece.rows);
            inputs.take_rows(&piece.sources);
        }
        Ok(inputs)
    }

    fn memory(
        &mut self,
        plan: &Plan,
        pages: usize,
        inputs: &Inputs,
        numbers: &mut Numbers,
    ) -> Result<Memory, ProbeError> {
        let units = Unit::all(&self.target);
        let arena = match self.arena.take().filter(|arena| arena.len() == plan.arena_bytes) {
            Some(arena) => arena,
            None => self.device.allocate(plan.arena_bytes)?,
        };
        let (mut weights, mut tags) = (Vec::new(), Vec::new());
        for weight in &numbers.weights {
            let (buffer, tag) = match self.kept.remove(weight) {
                Some(kept) => (kept.buffer, Some(kept.tag)),
                None => (self.device.allocate(self.target.weights[*weight].bytes)?, None),
            };
            weights.push(buffer);
            tags.push(tag);
        }
        numbers.tags = tags;
        let workspace = match self.workspace.take() {
            Some(workspace) => workspace,
            None => self.device.allocate(self.target.workspace())?,
        };
        let (device, states) = (&mut self.device, &self.target.states);
        // All states of a launch have one table.
        let mut state = |&number: &usize| Ok(units[states[number].group].memory(device.allocate(pages)?, 0));
        Ok(Memory {
            states: numbers.states.iter().map(&mut state).collect::<Result<_, DeviceError>>()?,
            weights,
            arena,
            hidden: device.allocate(self.target.hidden.bytes)?,
            head_input: None,
            workspace,
            inputs: inputs.addresses(),
        })
    }

    fn fill(&self, memory: &mut Memory, plan: &Plan, pages: usize, arg: Arg, bytes: &[u8]) -> Result<(), ProbeError> {
        let (buffer, offset, room) = match arg {
            Arg::Arena { offset } => (&mut memory.arena, offset, plan.arena_bytes.saturating_sub(offset)),
            Arg::Weight { index } => {
                let numbers = Numbers::of(&plan.launches[0].args);
                let room = self.target.weights[numbers.weights[index]].bytes;
                (&mut memory.weights[index], 0, room)
            }
            Arg::State { state, stream: 0 } => (&mut memory.states[state].pages, 0, pages),
            Arg::Hidden => (&mut memory.hidden, 0, self.target.hidden.bytes),
            Arg::Drafted { offset } => (&mut memory.hidden, offset, self.target.hidden.bytes.saturating_sub(offset)),
            // Inputs are what the step says.
            Arg::State { .. } | Arg::Batch { .. } | Arg::Input { .. } => return Ok(()),
        };
        if bytes.len() > room {
            return Err(ProbeError::Room { arg, bytes: bytes.len(), room });
        }
        Ok(buffer.upload(offset, bytes)?)
    }

    fn outcome(&self, launched: &Launched, pages: usize) -> Result<Outcome, DeviceError> {
        let Launched { plan, numbers, memory, .. } = launched;
        let get = |buffer: &DeviceBuffer, bytes: usize| -> Result<Vec<u8>, DeviceError> {
            let mut to = vec![0; bytes];
            buffer.download(0, &mut to)?;
            Ok(to)
        };
        let states = numbers.states.iter().zip(&memory.states);
        let states = states.map(|(&state, memory)| Ok((state, get(&memory.pages, pages)?)));
        let states = states.collect::<Result<_, DeviceError>>()?;
        let arena = get(&memory.arena, plan.arena_bytes)?;
        Ok(Outcome { arena, hidden: get(&memory.hidden, self.target.hidden.bytes)?, states })
    }
}

/// A launch that a device was given.
struct Launched {
    plan: Plan,
    numbers: Numbers,
    memory: Memory,
    /// Kernels may read them until the outcome is downloaded.
    _inputs: Inputs,
}

/// The weights and states that a launch names, which get new numbers from zero on: only they are
/// allocated.
struct Numbers {
    weights: Vec<usize>,
    states: Vec<usize>,
    /// What weights hold that stay, once the launch has them.
    tags: Vec<Option<String>>,
}

impl Numbers {
    fn of(args: &[Arg]) -> Numbers {
        let mut numbers = Numbers { weights: Vec::new(), states: Vec::new(), tags: Vec::new() };
        for arg in args {
            let (list, number) = match *arg {
                Arg::Weight { index } => (&mut numbers.weights, index),
                Arg::State { state, .. } | Arg::Batch { state } => (&mut numbers.states, state),
                Arg::Arena { .. } | Arg::Hidden | Arg::Drafted { .. } | Arg::Input { .. } => continue,
            };
            if !list.contains(&number) {
                list.push(number);
            }
        }
        numbers
    }

    fn renamed(&self, arg: Arg) -> Arg {
        let at = |list: &[usize], number| list.iter().position(|&n| n == number).unwrap_or_default();
        match arg {
            Arg::Weight { index } => Arg::Weight { index: at(&self.weights, index) },
            Arg::State { state, stream } => Arg::State { state: at(&self.states, state), stream },
            Arg::Batch { state } => Arg::Batch { state: at(&self.states, state) },
            other => other,
        }
    }

    fn launch(&self, plan: &Plan) -> atomc_artifact::manifest::Launch {
        let mut launch = plan.launches[0].clone();
        launch.args.iter_mut().for_each(|arg| *arg = self.renamed(*arg));
        launch
    }
}
