//! An open artifact with its weights, its cache and its sequences: the owner of everything that a
//! step touches.
mod draft;
mod origin;
mod pieces;
mod select;

pub use draft::Chosen;
pub use origin::{NotFinite, Odd, Origin};

use self::draft::{Drafting, Ran};
use crate::adapters::{self, Adapter, WithAdapters};
use crate::batch::{Inputs, Look, TableRoom};
use crate::checkpoint::{Beside, CheckpointError, Source, whole_numbers};
use crate::device::{self, Device, DeviceChoice, DeviceError, Launches, Memory, StateMemory};
use crate::error::Error;
use crate::kv::{BlockCopy, Fork, Kept, Kv, KvError, SeqId, Sizes};
use crate::pool::{Pool, threads};
use crate::ranks::{self, Ranks};
use crate::sample::{SamplingError, greedy};
use crate::schedule::JobError;
use crate::session::{Outline, Session};
use crate::sight::Images;
use crate::states::{SLOTS, Unit};
use crate::weights::packed::Packed;
use crate::weights::{self, Rank};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::{
    Attention, Given, Logits as LogitsPlace, Manifest, Model, Picks, Plan, PlanKind, Target,
};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How to open an artifact.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Where to run; the host unless it is set.
    pub device: DeviceChoice,
    /// Threads of the host, the caller's among them; 0 takes as many as the system offers this
    /// process.
    pub threads: usize,
    /// Tokens that the KV cache holds, over all sequences; 0 makes it as large as the longest
    /// sequence of the model. In layers that see a window alone, tokens before it take no room.
    /// Memory that no token has reached yet is only reserved, but more than the device has is
    /// refused.
    pub cache_tokens: usize,
    /// Sequences that layers with a recurrent state have a slot for at once; 0 for 64, or as many
    /// as the cache has blocks if these are fewer. Other models have none.
    pub slots: usize,
    /// Most snapshots of recurrent states. Sequences that begin like others, or are taken back,
    /// resume from them. They are in slots that no sequence has, and are dropped when a sequence
    /// needs the slot. 0 for as many as there are slots.
    pub snapshots: usize,
    /// Tokens from one snapshot of a sequence to the next, rounded up to whole blocks; 0 for as
    /// many as the largest plan takes, so that prompts are cut there anyway, or
    /// [`EngineOptions::NO_SNAPSHOTS`].
    pub snapshot_tokens: usize,
    /// Whether the artifact's draft, if it has one, sees every step, so that [`Engine::draft`] can
    /// guess the next tokens.
    pub draft: bool,
}

impl EngineOptions {
    /// For [`EngineOptions::snapshot_tokens`]: more than any sequence has.
    pub const NO_SNAPSHOTS: usize = usize::MAX;
}

/// New tokens of one sequence, and which of them need logits.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A sequence of this engine, which no other request of the step is for.
    pub sequence: SeqId,
    /// At least one, of the vocabulary. They follow those that the sequence has.
    pub tokens: &'a [u32],
    /// Which of these tokens need logits.
    pub logits: Want,
}

/// Rows of logits that a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// No logits: more tokens of the prompt follow.
    Nothing,
    /// One, for the last token.
    Last,
    /// One for each token.
    All,
}

impl Request<'_> {
    fn rows(&self) -> usize {
        match self.logits {
            Want::Nothing => 0,
            Want::Last => 1,
            Want::All => self.tokens.len(),
        }
    }
}

/// Reasons why a step was refused, or failed. No sequence has changed then: the same step may be
/// tried again. If it failed half way, sequences that cannot go back are broken: those with a
/// recurrent state, and those that gave back blocks that their next token sees. [`Engine::rewind`]
/// takes them back further. Sequences with logits that are not finite have their new tokens, and
/// are best dropped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum StepError {
    #[error("the weights are not loaded")]
    NoWeights,
    #[error("request {request} has no tokens")]
    NoTokens { request: usize },
    #[error("requests {first} and {second} are for the same sequence")]
    SameSequence { first: usize, second: usize },
    #[error("the prompt is longer than the model: request {request} needs {length} positions, the model has {max}")]
    TooLong { request: usize, length: usize, max: usize },
    #[error("token {index} of request {request} is {id}, but the vocabulary ends at {}", vocab - 1)]
    TokenId { request: usize, index: usize, id: u32, vocab: usize },
    #[error("no memory for {rows} rows of logits; ask for fewer at once")]
    LogitsMemory { rows: usize },
    #[error("images: {0}")]
    Images(&'static str),
    #[error("{0}")]
    NotFinite(Box<NotFinite>),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error(transparent)]
    Answer(#[from] JobError),
    #[error(transparent)]
    Kv(#[from] KvError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An artifact on a device.
pub struct Engine {
    /// Of the last stage's first rank, whose results count: all ranks make the same.
    session: Session,
    /// Of the other ranks.
    others: Vec<Session>,
    /// The ranks' threads, if there are several.
    ranks: Option<Ranks>,
    draft: Option<Drafting>,
    /// The images of sequences that have some.
    images: HashMap<SeqId, Arc<Images>>,
    /// The model's number of each token of the draft's, if they differ.
    draft_map: Vec<u32>,
    kv: Kv,
    /// By group: blocks from this one on were never used.
    untouched: Vec<usize>,
    output: Output,
    /// The plan that ran last.
    last: usize,
    /// Tokens of the sequences of a step before it.
    before: Vec<usize>,
    tokens_run: u64,
    /// By plan, while launches are being timed.
    times: Option<Vec<Launches>>,
    /// The adapters, by their slots.
    adapters: Vec<Adapter>,
    /// The slots of sequences that have one.
    adapted: HashMap<SeqId, usize>,
    /// Whether each plan takes tokens with adapters; empty where the artifact has no room for them.
    adapting: Vec<bool>,
    /// The slot that new sequences take.
    of_new: Option<usize>,
}

/// The place of the last step's logits.
#[derive(Debug, Default)]
struct Output {
    /// First row of each request, and the end.
    starts: Vec<usize>,
    /// The plan with the part of the arena that has them; none if the step took several plans and
    /// they were gathered.
    place: Option<LogitsPlace>,
    gathered: Vec<f32>,
}

impl Engine {
    /// Opens an artifact for one device: maps it, loads its code, reserves memory, starts threads.
    /// Weights are loaded later.
    pub fn open(path: impl AsRef<Path>, options: &EngineOptions) -> Result<Engine, Error> {
        Engine::new(Artifact::open(path)?, options)
    }

    /// Opens an artifact that is in memory.
    pub fn new(artifact: Artifact, options: &EngineOptions) -> Result<Engine, Error> {
        let target = options.device.target(artifact.manifest())?;
        check_whole(artifact.manifest(), target, 1)?;
        let device = options.device.open(&artifact, threads(options.threads, 1))?;
        Engine::assemble(artifact, target, vec![device], options)
    }

    /// An engine on devices that the caller opened with the artifact's code for a target, one for
    /// each rank of each stage, instead of the options' device.
    pub fn with_devices(
        artifact: Artifact,
        target: &str,
        devices: Vec<Box<dyn Device>>,
        options: &EngineOptions,
    ) -> Result<Engine, Error> {
        let target = device::target(artifact.manifest(), target)?;
        check_whole(artifact.manifest(), target, devices.len())?;
        Engine::assemble(artifact, target, devices, options)
    }

    /// An engine on one device, as [`Engine::with_devices`] makes it.
    pub fn with_device(
        artifact: Artifact,
        target: &str,
        device: Box<dyn Device>,
        options: &EngineOptions,
    ) -> Result<Engine, Error> {
        Engine::with_devices(artifact, target, vec![device], options)
    }

    fn assemble(
        artifact: Artifact,
        target: usize,
        devices: Vec<Box<dyn Device>>,
        options: &EngineOptions,
    ) -> Result<Engine, Error> {
        let _span = tracing::debug_span!("open").entered();
        let artifact = Arc::new(artifact);
        let has_draft = options.draft && artifact.manifest().targets[target].draft.is_some();
        let (all, of) = (devices.len(), artifact.manifest().ranks());
        let outline = |(number, device)| Outline::new((artifact.clone(), target, number / of), device, has_draft, runs);
        let mut outlines: Vec<Outline> = devices.into_iter().enumerate().map(outline).collect();
        let joined: Vec<bool> = outlines.chunks_mut(of).map(ranks::join).collect::<Result<_, _>>()?;
        // The last stage makes the logits.
        let last = &outlines[all - of];
        let draft = last.target().draft.as_ref().filter(|_| has_draft);
        let draft = draft.map(|draft| Drafting::new(draft, last.drafts()));
        let sizes = cache_sizes(&outlines, options)?;
        let kept: Vec<Kept> = last.units.iter().map(|unit| unit.kept).collect();
        let (blocks, slots) = (sizes.blocks, sizes.slots);
        let kv = Kv::new(&kept, sizes);
        let start = std::time::Instant::now();
        let mut sessions = Vec::with_capacity(all);
        for (number, mut outline) in outlines.drain(..).enumerate() {
            let tables = outline.units.iter().zip(kv.table_blocks());
            let tables = tables.map(|(unit, blocks)| TableRoom { blocks, block_stride: unit.bytes }).collect();
            let inputs = outline.inputs(tables)?;
            let memory = allocate(&mut outline, (blocks, slots), &inputs)?;
            let mut session = outline.bind(memory, inputs, Rank { number: number % of, of })?;
            (session.stage, session.joined) = (number / of, joined[number / of]);
            sessions.push(session);
        }
        tracing::debug!(seconds = start.elapsed().as_secs_f64(), "memory");
        let session = sessions.remove(all - of);
        let roomy = session.manifest().adapters.is_some();
        let adapting = session.plans.iter().filter(|_| roomy).map(Plan::adapts).collect();
        Ok(Engine {
            draft,
            images: HashMap::new(),
            draft_map: Vec::new(),
            untouched: vec![0; session.units.len()],
            session,
            others: sessions,
            ranks: if all > 1 { Some(Ranks::new(all / of, of)?) } else { None },
            kv,
            output: Output::default(),
            last: 0,
            before: Vec::new(),
            tokens_run: 0,
            times: None,
            adapters: Vec::new(),
            adapted: HashMap::new(),
            adapting,
            of_new: None,
        })
    }

    /// Fills the weights from a source. Weights that are loaded may be replaced so: they keep their
    /// addresses. If the source does not fit the model, the weights are as they were. If it fails
    /// or changes meanwhile, or the device fails, they have to be loaded again. Tokens that
    /// sequences already have stay computed with the old ones.
    pub fn load_weights(&mut self, source: &dyn Source, progress: weights::Progress) -> Result<(), Error> {
        let roomy = WithAdapters::new(self.session.manifest(), self.target(), source, &self.adapters)?;
        let source: &dyn Source = roomy.as_ref().map_or(source, |roomy| roomy);
        self.load_map(|_, name, count| whole_numbers(source, name, count))?;
        self.load_ranks(progress, |session, progress| session.load(source, progress))
    }

    /// Takes adapters, one for each slot from the first one on. They are loaded with the weights
    /// that are loaded next.
    pub fn set_adapters(&mut self, adapters: Vec<Adapter>) -> Result<(), Error> {
        adapters::check(self.session.manifest(), self.target(), &adapters)?;
        self.adapters = adapters;
        Ok(())
    }

    /// Computes a sequence's next tokens with the adapter of a slot. Whatever continues the
    /// sequence has it too.
    pub fn adapt(&mut self, sequence: SeqId, slot: usize) {
        self.adapted.insert(sequence, slot);
    }

    /// Has every new sequence take the adapter of a slot.
    pub fn adapt_new(&mut self, slot: usize) {
        self.of_new = Some(slot);
    }

    /// Loads the weights of every rank, all at once.
    fn load_ranks(
        &mut self,
        progress: weights::Progress,
        load: impl Fn(&mut Session, weights::Progress) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        match &mut self.ranks {
            None => load(&mut self.session, progress),
            Some(ranks) => ranks.load((&mut self.session, &mut self.others), progress, load),
        }
    }

    /// Loads weights, with those of the draft from a checkpoint of their own.
    pub fn load_weights_with(
        &mut self,
        source: &dyn Source,
        draft: &dyn Source,
        progress: weights::Progress,
    ) -> Result<(), Error> {
        let beside = Beside::new(self.target(), source, draft)?;
        self.load_weights(&beside, progress)
    }

    /// Loads weights from a file of packed weights, which only has to be copied. It is of one rank,
    /// and refused where there are others.
    pub fn load_packed(&mut self, packed: &Packed, progress: weights::Progress) -> Result<(), Error> {
        self.load_map(|target, name, count| packed.map(target, name, count))?;
        self.load_ranks(progress, |session, progress| {
            session.fill_weights(|target, _, sink| packed.load(target, sink, progress))
        })
    }

    /// Reads which token of the model each of the draft's is, from the tensor of this name.
    fn load_map(
        &mut self,
        read: impl FnOnce(&Target, &str, usize) -> Result<Vec<i64>, CheckpointError>,
    ) -> Result<(), Error> {
        let Some(draft) = self.target().draft.as_ref().filter(|_| self.draft.is_some()) else { return Ok(()) };
        let Some(name) = &draft.map else { return Ok(()) };
        let (vocab, most) = (draft.vocab, self.model().vocab as i64);
        let map = read(self.target(), name, vocab)?.into_iter().zip(0..).map(|(more, own)| own + more);
        let map: Vec<i64> = map.collect();
        if let Some((own, to)) = map.iter().enumerate().find(|(_, to)| !(0..most).contains(*to)) {
            let detail = format!("token {own} of the draft is {to}, but the vocabulary ends at {}", most - 1);
            return Err(CheckpointError::Told { name: name.clone(), detail }.into());
        }
        self.draft_map = map.into_iter().map(|to| to as u32).collect();
        Ok(())
    }

    /// The artifact, as it was opened. Later changes to its file do not change it.
    pub fn artifact(&self) -> &Artifact {
        &self.session.artifact
    }

    /// The artifact's manifest, with all its targets.
    pub fn manifest(&self) -> &Manifest {
        self.session.manifest()
    }

    /// The artifact's description of the model.
    pub fn model(&self) -> &Model {
        self.session.model()
    }

    /// The artifact's target for the device.
    pub fn target(&self) -> &Target {
        self.session.target()
    }

    /// The plans that an engine runs.
    pub fn plans(&self) -> &[Plan] {
        self.session.models()
    }

    /// Kind and variant of the device, e.g. `host:x86-64-v4`.
    pub fn device_name(&self) -> &str {
        self.session.device.name()
    }

    /// The product that the device is, as its driver names it.
    pub fn product(&self) -> Option<&str> {
        self.session.device.product()
    }

    /// Bytes a second that the device moves in its own memory while it copies `bytes` bytes.
    pub fn copy_rate(&mut self, bytes: usize) -> Result<Option<f64>, DeviceError> {
        self.session.device.copy_rate(bytes)
    }

    /// Whether the device computes in the host's memory.
    pub fn is_host(&self) -> bool {
        self.session.memory.arena.host_view().is_some()
    }

    /// The engine's threads, for other work between steps.
    pub fn pool(&mut self) -> &mut Pool {
        self.session.device.pool()
    }

    /// The cache: the number of blocks, and of free ones.
    pub fn cache(&self) -> &Kv {
        &self.kv
    }

    /// A new, empty sequence.
    pub fn add_sequence(&mut self) -> SeqId {
        let sequence = self.kv.add();
        if let Some(slot) = self.of_new {
            self.adapt(sequence, slot);
        }
        sequence
    }

    /// Says which images a sequence has. The tokens of an image that it gets from now on take its
    /// rows in the place of their embeddings, and tokens have the positions that follow.
    pub fn see(&mut self, sequence: SeqId, images: Arc<Images>) -> Result<(), StepError> {
        let Some(Given { width, .. }) = self.target().given else {
            return Err(StepError::Images("the artifact was compiled without --tower, and takes none"));
        };
        if !images.are_of(width) {
            return Err(StepError::Images("their rows are not those of the artifact's tower"));
        }
        self.kv.len(sequence)?;
        self.images.insert(sequence, images);
        Ok(())
    }

    /// A new sequence that shares the first tokens of another, rounded down to whole blocks.
    /// Nothing is copied. In a model with recurrent states it begins after the last snapshot of
    /// these tokens, or after all tokens of the other sequence if all of them are asked for: then
    /// its slot and the end of its last block are copied. It has a slot from now on.
    pub fn fork(&mut self, sequence: SeqId, tokens: usize) -> Result<Fork, StepError> {
        let fork = self.kv.fork(sequence, tokens)?;
        if let Err(error) = self.copy_blocks() {
            self.kv.drop_sequence(fork.sequence)?;
            return Err(error);
        }
        if let Some(&slot) = self.adapted.get(&sequence) {
            self.adapted.insert(fork.sequence, slot);
        }
        if let Some(images) = self.images.get(&sequence) {
            self.images.insert(fork.sequence, images.clone());
        }
        Ok(fork)
    }

    /// Takes a sequence back to its first `tokens`, or to the most before them that it can resume
    /// from, and returns the number that it has then: give it the later ones again. Blocks that
    /// others hold too stay as they are, so it goes back to the beginning of one; a recurrent state
    /// goes back to its last snapshot; blocks that a window has given back are gone, and then no
    /// token is left. A sequence that a failed step has broken is whole again.
    pub fn rewind(&mut self, sequence: SeqId, tokens: usize) -> Result<usize, StepError> {
        let tokens = self.kv.rewind(sequence, tokens)?;
        if let Some(draft) = &mut self.draft {
            draft.rewind(sequence, tokens);
        }
        if let Err(error) = self.copy_blocks() {
            self.kv.spoil(sequence, 0)?;
            return Err(error);
        }
        Ok(tokens)
    }

    /// Takes sequences back to the given number of tokens each. A sequence that can only resume
    /// further back gets the missing tokens again, which `tokens` returns for its index and their
    /// positions.
    pub fn take_back(
        &mut self,
        sequences: &[(SeqId, usize)],
        tokens: impl Fn(usize, Range<usize>) -> Vec<u32>,
    ) -> Result<(), StepError> {
        let mut missing = Vec::new();
        for (index, &(sequence, valid)) in sequences.iter().enumerate() {
            let back = self.rewind(sequence, valid)?;
            missing.extend((back < valid).then(|| (sequence, tokens(index, back..valid))));
        }
        let requests: Vec<Request> = missing
            .iter()
            .map(|(sequence, tokens)| Request { sequence: *sequence, tokens, logits: Want::Nothing })
            .collect();
        if requests.is_empty() { Ok(()) } else { self.step(&requests).map(drop) }
    }

    /// Forgets a sequence and frees its part of the cache.
    pub fn drop_sequence(&mut self, sequence: SeqId) -> Result<(), StepError> {
        self.kv.drop_sequence(sequence)?;
        self.adapted.remove(&sequence);
        self.images.remove(&sequence);
        if let Some(draft) = &mut self.draft {
            draft.take(sequence);
        }
        Ok(())
    }

    /// Tokens that a sequence has.
    pub fn sequence_len(&self, sequence: SeqId) -> Result<usize, StepError> {
        Ok(self.kv.len(sequence)?)
    }

    /// Tokens that steps have computed since the engine was opened.
    pub fn tokens_run(&self) -> u64 {
        self.tokens_run
    }

    /// Gives each sequence its new tokens and computes the logits of the chosen ones. A step that
    /// does not fit one plan runs in several. Allocates nothing once steps of the same size have
    /// run.
    pub fn step(&mut self, requests: &[Request]) -> Result<Logits<'_>, StepError> {
        self.check(requests)?;
        self.output.begin(requests);
        self.advance(requests, |engine, plan, whole| {
            let place = engine.plans()[plan].whole_logits();
            let (rows, vocab) = (engine.session.inputs.counts().rows, engine.model().vocab);
            // The draft's steps have the same arena.
            let stays = whole && engine.is_host() && engine.draft.is_none();
            let is_well = match stays {
                true => {
                    engine.output.place = Some(place);
                    begin_well(engine.rows(place), place.stride, rows)
                }
                false => {
                    engine.gather(place)?;
                    let gathered = &engine.output.gathered;
                    begin_well(&gathered[gathered.len() - rows * vocab..], vocab, rows)
                }
            };
            engine.check_rows(is_well)
        })?;
        Ok(self.logits())
    }

    /// A step that returns only the likeliest token after the last row of each request that has a
    /// row, chosen as by [`crate::sample::greedy`]. If the kernels choose, no logits leave the
    /// device. There are no logits to read afterwards.
    pub fn step_greedy(&mut self, requests: &[Request]) -> Result<Vec<Option<u32>>, StepError> {
        let picks = self.step_picks(requests)?;
        Ok(picks.into_iter().map(|picks| picks.last().copied()).collect())
    }

    /// The likeliest token after every row that a request wants.
    pub fn step_picks(&mut self, requests: &[Request]) -> Result<Vec<Vec<u32>>, StepError> {
        if self.plans().iter().any(|plan| plan.picks.is_none()) {
            let logits = self.step(requests)?;
            let pick = |row: &[f32]| Some(greedy(row)).filter(|&id| row[id as usize].is_finite());
            let picks = (0..requests.len()).map(|request| logits.of(request).map(pick).collect());
            let picks: Option<Vec<Vec<u32>>> = picks.collect();
            self.output.begin(&[]);
            return picks.ok_or_else(|| self.not_finite());
        }
        self.check(requests)?;
        self.output.begin(&[]);
        let mut picks = Vec::new();
        self.advance(requests, |engine, plan, _| {
            let Some(place) = engine.session.plans[plan].picks else { return Ok(()) };
            let logits = engine.session.plans[plan].whole_logits();
            let first = picks.len();
            engine.gather_picks(place, &mut picks)?;
            engine.check_picks(logits, &picks[first..])
        })?;
        let mut picks = picks.into_iter();
        Ok(requests.iter().map(|request| picks.by_ref().take(request.rows()).collect()).collect())
    }

    /// Runs plan after plan until all tokens are through; `keep` sees to the results of each, which
    /// the next overwrites, and is told the plan and if it was the only one.
    fn advance(
        &mut self,
        requests: &[Request],
        keep: impl FnMut(&mut Engine, usize, bool) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        self.before.clear();
        for request in requests {
            self.before.push(self.kv.len(request.sequence)?);
        }
        let done = self.advance_all(requests, keep);
        if matches!(done, Err(ref error) if !matches!(error, StepError::NotFinite(_))) {
            self.output.begin(&[]);
            for (request, &len) in requests.iter().zip(&self.before) {
                self.kv.undo(request.sequence, len)?;
            }
        }
        done
    }

    fn advance_all(
        &mut self,
        requests: &[Request],
        mut keep: impl FnMut(&mut Engine, usize, bool) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        self.copy_blocks()?;
        let adapted = requests.iter().any(|request| self.adapted.contains_key(&request.sequence));
        let mut at = Cursor::default();
        while at.request < requests.len() {
            let until = |id| self.kv.until_snapshot(id);
            let plan = select::pick(self.plans(), requests, at, (until, |plan| self.takes(plan, adapted)));
            self.keep_rows()?;
            let end = self.fill(plan, requests, at)?;
            self.run(plan)?;
            keep(self, plan, at == Cursor::default() && end.request == requests.len())?;
            self.follow(plan, &self.ran(requests, at, end)?)?;
            for request in requests[at.request..].iter().take(end.request - at.request + 1) {
                self.kv.keep_snapshot(request.sequence)?;
            }
            self.copy_blocks()?;
            at = end;
        }
        Ok(())
    }

    /// Whether a plan is one for steps with adapters, or for those without. Where all plans take
    /// them, steps without have the same ones.
    fn takes(&self, plan: usize, adapted: bool) -> bool {
        let own = adapted || self.adapting.iter().all(|&takes| takes);
        self.adapting.get(plan).is_none_or(|&takes| takes == own)
    }

    /// The parts of the requests between two cursors, which a plan has run.
    fn ran<'r>(&self, requests: &[Request<'r>], at: Cursor, end: Cursor) -> Result<Vec<Ran<'r>>, StepError> {
        let mut parts = Vec::new();
        if self.draft.is_none() {
            return Ok(parts);
        }
        let mut first = 0;
        for (number, request) in requests.iter().enumerate().take(end.request + 1).skip(at.request) {
            let start = if number == at.request { at.token } else { 0 };
            let stop = if number == end.request { end.token } else { request.tokens.len() };
            if start < stop {
                let tokens = &request.tokens[start..stop];
                let position = self.kv.len(request.sequence)? - tokens.len();
                let sure = request.logits != Want::All;
                parts.push(Ran { sequence: request.sequence, tokens, position, first, sure });
                first += tokens.len();
            }
        }
        Ok(parts)
    }

    /// Does the copies of blocks and slots that the cache has noted.
    fn copy_blocks(&mut self) -> Result<(), StepError> {
        for BlockCopy { group, from, to } in self.kv.take_copies() {
            let bytes = self.session.units[group].bytes;
            // The values in this block have to be cleared for its next owner.
            self.untouched[group] = self.untouched[group].max(to + 1);
            for state in states_of((&mut self.session, &mut self.others), group) {
                state.pages.copy_within(from * bytes..(from + 1) * bytes, to * bytes)?;
            }
        }
        Ok(())
    }

    /// The logits of the last step.
    pub fn logits(&self) -> Logits<'_> {
        let (values, stride) = match self.output.place {
            Some(place) => (self.rows(place), place.stride),
            None => (&self.output.gathered[..], self.model().vocab),
        };
        Logits { values, stride, vocab: self.model().vocab, starts: &self.output.starts }
    }

    /// Whether launches can be timed: not those of ranks that meet in the host's memory, nor those
    /// of stages.
    pub fn times_launches(&self) -> bool {
        self.others.is_empty() || self.session.joined && self.session.stage == 0
    }

    /// Starts to time every launch, which costs a little of the speed of a step, or starts anew.
    pub fn time_launches(&mut self) {
        self.times = Some(vec![Launches::default(); self.session.plans.len()]);
    }

    /// The times since [`Engine::time_launches`], by plan. Ends the timing.
    pub fn take_launch_times(&mut self) -> Vec<Launches> {
        self.times.take().unwrap_or_default()
    }

    /// Everything that can be wrong with a step, before anything of it runs.
    fn check(&mut self, requests: &[Request]) -> Result<(), StepError> {
        if !self.session.loaded {
            return Err(StepError::NoWeights);
        }
        let Model { vocab, max_positions: max, .. } = *self.model();
        for (request, item) in requests.iter().enumerate() {
            if item.tokens.is_empty() {
                return Err(StepError::NoTokens { request });
            }
            if let Some(first) = requests[..request].iter().position(|other| other.sequence == item.sequence) {
                return Err(StepError::SameSequence { first, second: request });
            }
            let before = self.kv.len(item.sequence)?;
            let length = before + item.tokens.len();
            if length > max {
                return Err(StepError::TooLong { request, length, max });
            }
            let images = self.images.get(&item.sequence);
            if images.is_some_and(|images| images.before(before, item.tokens.len()) < item.tokens.len()) {
                return Err(StepError::Images("a step ends within one whose tokens see each other"));
            }
            if let Some(index) = item.tokens.iter().position(|&id| id as usize >= vocab) {
                return Err(StepError::TokenId { request, index, id: item.tokens[index], vocab });
            }
        }
        Ok(self.kv.reserve(requests.iter().map(|item| (item.sequence, item.tokens.len())))?)
    }

    /// Puts as many of the tokens as the plan takes into the inputs.
    fn fill(&mut self, plan: usize, requests: &[Request], mut at: Cursor) -> Result<Cursor, StepError> {
        let Plan { tokens, rows, .. } = self.session.plans[plan];
        self.session.inputs.clear();
        let mut given = vec![];
        while let Some(request) = requests.get(at.request) {
            let used = self.session.inputs.counts();
            // A part ends at the position of a snapshot.
            let room = (tokens - used.tokens).min(self.kv.until_snapshot(request.sequence));
            let rows = rows - used.rows;
            let mut part = select::part(request, at.token, room, rows);
            // Tokens of an image that see each other are in one plan.
            if let Some(images) = self.images.get(&request.sequence) {
                let most = images.before(self.kv.len(request.sequence)?, part.tokens);
                if most == 0 && part.tokens > 0 && used.tokens == 0 {
                    return Err(StepError::Images("one has more tokens than a step of the artifact takes"));
                }
                part = select::part(request, at.token, most, rows);
            }
            if part.tokens > 0 {
                let grown = self.kv.grow(request.sequence, part.tokens)?;
                let position = grown.start;
                self.clear_new_blocks(request.sequence, grown)?;
                self.session.inputs.push(
                    &request.tokens[at.token..][..part.tokens],
                    position,
                    // After the whole step, not after this plan: the base of a dynamic embedding
                    // depends on it.
                    position + request.tokens.len() - at.token,
                    self.kv.tables(request.sequence)?,
                );
                if let Some(&slot) = self.adapted.get(&request.sequence) {
                    self.session.inputs.adapt(part.tokens, slot);
                }
                self.place(request.sequence, position..position + part.tokens, &mut given);
                self.session.inputs.want(part.rows);
            }
            at.token += part.tokens;
            if at.token < request.tokens.len() {
                break;
            }
            at = Cursor { request: at.request + 1, token: 0 };
        }
        if !given.is_empty() {
            self.session.inputs.give(&given)?;
        }
        Ok(at)
    }

    /// Places the tokens that were pushed last among the images of their sequence, whose rows for
    /// them follow those that are given so far.
    fn place(&mut self, sequence: SeqId, tokens: Range<usize>, given: &mut Vec<f32>) {
        let Some(Given { width, .. }) = self.session.target().given else { return };
        let images = self.images.get(&sequence);
        let seen = tokens.map(|token| {
            let Some(images) = images else { return Look { positions: [token as i32; 3], row: None, end: token + 1 } };
            let row = images.row(token).map(|row| {
                given.extend_from_slice(row);
                given.len() / width - 1
            });
            Look { positions: images.position(token), row, end: images.end(token) }
        });
        self.session.inputs.see(seen);
    }

    /// Clears the values in blocks that a sequence got for these positions and that had another
    /// owner, unless the step fills them. Kernels give tokens that do not exist yet the weight
    /// zero, but zero times the values of an earlier sequence may be NaN.
    fn clear_new_blocks(&mut self, sequence: SeqId, grown: Range<usize>) -> Result<(), StepError> {
        let block = self.kv.block_tokens();
        for (group, table) in self.kv.tables(sequence)?.enumerate() {
            let Unit { bytes, ref cleared, kept, .. } = self.session.units[group];
            let tokens = block * kept.every();
            if cleared.is_empty() {
                continue;
            }
            let cleared = cleared.clone();
            let untouched = &mut self.untouched[group];
            for (index, &block) in table.iter().enumerate().skip(grown.start.div_ceil(tokens)) {
                let block = block as usize;
                let is_new = block >= *untouched;
                *untouched = (block + 1).max(*untouched);
                if is_new || (index + 1) * tokens <= grown.end {
                    continue;
                }
                let first = block * bytes;
                for state in states_of((&mut self.session, &mut self.others), group) {
                    state.pages.fill(first + cleared.start..first + cleared.end, 0)?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: usize) -> Result<(), StepError> {
        let counts = self.session.inputs.counts();
        self.tokens_run += counts.tokens as u64;
        let _span = tracing::trace_span!("step", plan, tokens = counts.tokens, rows = counts.rows).entered();
        self.last = plan;
        let observe = self.times.as_mut().map(|times| &mut times[plan]);
        if let Some(ranks) = &mut self.ranks {
            return Ok(ranks.run((&mut self.session, &mut self.others), plan, observe)?);
        }
        // SAFETY: bound when the engine was made; `fill` keeps to the plan's size; the borrow of
        // the engine is unique.
        Ok(unsafe { self.session.device.run(plan, self.session.inputs.step(), observe) }?)
    }

    /// Keeps the logits of one plan: of several, since the next one overwrites them, or of a device
    /// with its own memory.
    fn gather(&mut self, place: LogitsPlace) -> Result<(), StepError> {
        let (rows, vocab) = (self.session.inputs.counts().rows, self.model().vocab);
        if rows == 0 {
            return Ok(());
        }
        let gathered = &mut self.output.gathered;
        let (first, values) = (gathered.len(), rows * place.stride);
        gathered.try_reserve(values).map_err(|_| StepError::LogitsMemory { rows })?;
        gathered.resize(first + values, 0.0);
        self.session.memory.arena.download(place.offset, bytes_of(&mut gathered[first..]))?;
        for row in 1..rows {
            let start = first + row * place.stride;
            gathered.copy_within(start..start + vocab, first + row * vocab);
        }
        gathered.truncate(first + rows * vocab);
        Ok(())
    }

    /// Appends the likeliest tokens of one plan.
    fn gather_picks(&self, place: Picks, picks: &mut Vec<u32>) -> Result<(), StepError> {
        let rows = self.session.inputs.counts().rows;
        if rows == 0 {
            return Ok(());
        }
        let mut bytes = vec![0; ((rows - 1) * place.stride + 1) * size_of::<u32>()];
        self.session.memory.arena.download(place.offset, &mut bytes)?;
        let (words, _) = bytes.as_chunks();
        picks.extend(words.iter().step_by(place.stride).map(|&word| u32::from_le_bytes(word)));
        Ok(())
    }

    /// Logits in an arena of the host.
    fn rows(&self, place: LogitsPlace) -> &[f32] {
        let bytes = &self.session.memory.arena.host_view().unwrap_or_default()[place.offset..];
        // SAFETY: a buffer is aligned for any number, so is the offset, as the artifact was checked
        // for, and every pattern of bits is an `f32`.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<f32>()) }
    }
}

/// The memory of a group's states on every rank.
fn states_of<'s>(
    (first, others): (&'s mut Session, &'s mut [Session]),
    group: usize,
) -> impl Iterator<Item = &'s mut StateMemory> {
    let all = std::iter::once(first).chain(others).flat_map(|session| &mut session.memory.states);
    all.filter(move |state| state.table == group)
}

/// Whether each row of logits begins with a finite number.
fn begin_well(logits: &[f32], stride: usize, rows: usize) -> bool {
    (0..rows).all(|row| logits[row * stride].is_finite())
}

fn bytes_of(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: the same memory, and every pattern of bits is an `f32`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} on {})", self.model().architecture, self.device_name())
    }
}

/// The progress of a step: all requests before `request`, and the first tokens of that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    request: usize,
    token: usize,
}

impl Output {
    fn begin(&mut self, requests: &[Request]) {
        self.starts.clear();
        self.gathered.clear();
        self.place = None;
        let mut rows = 0;
        self.starts.push(rows);
        for request in requests {
            rows += request.rows();
            self.starts.push(rows);
        }
    }
}

/// The logits of a step: for each request its rows, in the order of its tokens.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    values: &'a [f32],
    stride: usize,
    vocab: usize,
    starts: &'a [usize],
}

impl<'a> Logits<'a> {
    /// Rows in all.
    pub fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether no request wanted logits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of one request, or none if the step had no such request.
    pub fn get(
        &self,
        request: usize,
    ) -> Option<impl DoubleEndedIterator<Item = &'a [f32]> + ExactSizeIterator + use<'a>> {
        let (values, stride, vocab) = (self.values, self.stride, self.vocab);
        let &[start, end] = self.starts.get(request..)?.first_chunk()?;
        Some((start..end).map(move |row| &values[row * stride..][..vocab]))
    }

    /// The rows of one request of the step. Panics if the step had no such request.
    pub fn of(&self, request: usize) -> impl DoubleEndedIterator<Item = &'a [f32]> + ExactSizeIterator + use<'a> {
        self.get(request).unwrap_or_else(|| panic!("the step had no request {request}"))
    }

    /// The last row of one request, if it wanted any.
    pub fn last(&self, request: usize) -> Option<&'a [f32]> {
        self.get(request)?.next_back()
    }

    /// Numbers from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

/// Whether an engine runs a plan: one that leaves no work to a caller but what ranks do together.
fn runs(plan: &Plan) -> bool {
    plan.attention == Attention::Own && plan.kind != PlanKind::Any
}

/// Checks that an engine runs plans of the target, on as many devices as there are ranks.
fn check_whole(manifest: &Manifest, target: usize, devices: usize) -> Result<(), Error> {
    let (target, ranks) = (&manifest.targets[target], manifest.devices());
    match target.plans.iter().any(|plan| plan.kind == PlanKind::Whole) {
        true if devices == ranks => Ok(()),
        true => Err(Error::Ranks { ranks, devices }),
        false => Err(Error::CallerAttends { target: target.name.clone() }),
    }
}

/// Checks that the device has memory for `tokens` tokens of cache.
fn check_cache(tokens: usize, outline: &Outline) -> Result<(), DeviceError> {
    let (target, units, device) = (outline.target(), &outline.units, &outline.device);
    // Slots do not grow with the tokens.
    let pages = target.states.iter().map(|state| &units[state.group]).filter(|unit| !unit.kept.is_slots());
    // A target without pages, or with empty ones, has no cache.
    let of_block = |unit: &Unit| unit.bytes.div_ceil(unit.kept.every());
    let block = pages.fold(units.len() * Kv::BLOCK_BYTES, |sum, unit| sum.saturating_add(of_block(unit))).max(1);
    let block_tokens = target.layout.block_tokens;
    let bytes = tokens.div_ceil(block_tokens) as u128 * block as u128;
    let memory = device.memory();
    if bytes <= memory as u128 {
        return Ok(());
    }
    let most = (memory / block).saturating_mul(block_tokens);
    Err(DeviceError::Cache { tokens, bytes, device: device.name().to_owned(), memory, most })
}

/// Checks that the device has memory for `slots` slots, which kernels count in 32 bits.
fn check_slots(slots: usize, outline: &Outline) -> Result<(), DeviceError> {
    let (target, units, device) = (outline.target(), &outline.units, &outline.device);
    let kept = target.states.iter().map(|state| &units[state.group]).filter(|unit| unit.kept.is_slots());
    let bytes = |unit: &Unit| unit.bytes.saturating_mul(unit.kept.ring());
    let slot = kept.fold(0_usize, |sum, unit| sum.saturating_add(bytes(unit))).max(1);
    let (bytes, memory) = (slots as u128 * slot as u128, device.memory());
    let most = (memory / slot).min(i32::MAX as usize);
    if slots <= most {
        return Ok(());
    }
    Err(DeviceError::Slots { slots, bytes, device: device.name().to_owned(), memory, most })
}

/// How large the cache is: as the options say, or by the model.
fn cache_sizes(outlines: &[Outline], options: &EngineOptions) -> Result<Sizes, DeviceError> {
    let outline = &outlines[0];
    let (code, units) = (outline.target(), &outline.units[..]);
    let max_len = outline.artifact.manifest().model.max_positions;
    let block_tokens = code.layout.block_tokens;
    let cache_tokens = match options.cache_tokens {
        0 => max_len,
        tokens => outlines.iter().try_for_each(|outline| check_cache(tokens, outline)).map(|()| tokens)?,
    };
    // Kernels count blocks in 32 bits.
    let blocks = cache_tokens.div_ceil(block_tokens).min(i32::MAX as usize);
    let has_slots = units.iter().any(|unit| unit.kept.is_slots());
    let slots = match options.slots {
        _ if !has_slots => 0,
        0 => blocks.min(SLOTS),
        slots => outlines.iter().try_for_each(|outline| check_slots(slots, outline)).map(|()| slots)?,
    };
    let or = |size: usize, default| if size == 0 { default } else { size };
    let step = outline.largest(|plan| plan.tokens);
    let snapshot_tokens = or(options.snapshot_tokens, step).clamp(1, max_len.saturating_add(1));
    let snapshots = or(options.snapshots, slots);
    Ok(Sizes { block_tokens, blocks, slots, max_len, step, snapshot_tokens, snapshots })
}

fn allocate(outline: &mut Outline, (blocks, slots): (usize, usize), inputs: &Inputs) -> Result<Memory, DeviceError> {
    let Outline { code: target, device, units, .. } = &mut *outline;
    let mut states = Vec::with_capacity(target.states.len());
    for state in &target.states {
        let unit = &units[state.group];
        let memory = device.allocate(unit.count(blocks, slots).saturating_mul(unit.bytes))?;
        states.push(unit.memory(memory, state.group));
    }
    outline.memory(states, inputs.addresses())
}

#[cfg(test)]
mod tests;
