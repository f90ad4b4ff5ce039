//! A model that a framework drives: [`Hosted`] for Python.
use crate::artifact::Artifact;
use crate::dlpack::{Device, Foreign, View};
use crate::error::{StepError, raised};
use crate::vllm::{object, rules};
use atomc_artifact::escaped;
use atomc_artifact::manifest::{Attention, Paged, Place, Plan, PlanKind, State, StateGroup, Target, Work};
use atomc_config::Config;
use atomc_config::framework::{Guesses, Held};
use atomc_runtime::device::Stream;
use atomc_runtime::hosted::{Batch, HostedError, Images, Pages, Rows, Table};
use atomc_runtime::sight::Grid;
use atomc_runtime::states::Unit;
use atomc_runtime::tower::Image;
use atomc_runtime::weights::Given;
use atomc_runtime::weights::packed::{self, Packed};
use atomc_runtime::{Checkpoint, DeviceChoice, Error, Hosted, HostedOptions, Random};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::iter::repeat_n;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An artifact on a device of the framework's. One thread uses it at a time; others wait.
#[pyclass(frozen, module = "atomc")]
pub struct Model {
    hosted: Mutex<Hosted>,
    /// The path of the artifact.
    path: PathBuf,
    target: String,
    device: String,
    attention: Attention,
    vocab: usize,
    max_positions: usize,
    max_tokens: usize,
    max_rows: usize,
    decode: Vec<usize>,
    hidden: Rows,
    head_input: Rows,
    embed_input: Rows,
    cache_dtype: &'static str,
    block_tokens: usize,
    cache: Vec<Cache>,
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, Hosted> {
        // A panic leaves no half-made step: a step is set when it is whole.
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(slf: &Bound<'_, Model>, rows: Rows) -> View {
        View::new(rows, Device::named(&slf.get().device), slf.clone().into_any().unbind())
    }
}

#[pymethods]
impl Model {
    /// Opens an artifact. `allocate(bytes)` gives the address of zeroed memory of the device, which
    /// the caller keeps while the model lives; without it the model has memory of its own.
    #[new]
    #[pyo3(signature = (
        artifact, device = "host", *, rank = 0, threads = 0, attention = "own", draft = false, images = "unknown",
        stream = 0, allocate = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        py: Python<'_>,
        artifact: &Bound<'_, Artifact>,
        device: &str,
        rank: usize,
        threads: usize,
        attention: &str,
        draft: bool,
        images: &str,
        stream: usize,
        allocate: Option<Py<PyAny>>,
    ) -> PyResult<Model> {
        let attention = match attention {
            "own" => Attention::Own,
            "caller" => Attention::Caller,
            other => return Err(PyValueError::new_err(format!("attention: `{other}` is neither `own` nor `caller`"))),
        };
        let images = match images {
            "unknown" => Images::Unknown,
            "absent" => Images::Absent,
            "seen" => Images::Seen,
            other => {
                return Err(PyValueError::new_err(format!("images: `{other}` is none of `unknown`, `absent`, `seen`")));
            }
        };
        let device: DeviceChoice = device.parse().map_err(|error| raised(Error::Device(error)))?;
        let options = HostedOptions { device, threads, rank, attention, draft, images, stream: Stream(stream) };
        let file = artifact.get().file().clone();
        Artifact::check_signature(artifact.get().path(), &file)?;
        let mut failed = None;
        let opened = py.detach(|| {
            let mut give = |bytes: usize| {
                let address = allocate.as_ref().map(|allocate| address(allocate, bytes));
                address.unwrap_or(Ok(0)).map_err(|error| failed.insert(error).to_string()).and_then(|address: usize| {
                    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).ok_or("a null pointer".to_owned())
                })
            };
            Hosted::open(file, &options, allocate.as_ref().map(|_| &mut give as _))
        });
        match (opened, failed) {
            // What `allocate` raised says more than that it did.
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(raised(error)),
            (Ok(hosted), _) => Ok(Model::of(hosted, artifact.get().path().clone(), attention)),
        }
    }

    #[getter]
    fn target(&self) -> &str {
        &self.target
    }

    /// The variant of the target that the device runs.
    #[getter]
    fn variant(&self) -> &str {
        self.device.rsplit(':').next().unwrap_or_default()
    }

    #[getter]
    fn device(&self) -> &str {
        &self.device
    }

    /// Most tokens in one step.
    #[getter]
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Most rows of logits at once.
    #[getter]
    fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Sizes of the steps of one token for each sequence that have kernels of their own, ascending.
    #[getter]
    fn decode(&self) -> Vec<usize> {
        self.decode.clone()
    }

    #[getter]
    fn vocab(&self) -> usize {
        self.vocab
    }

    #[getter]
    fn hidden_size(&self) -> usize {
        self.hidden.width
    }

    /// The type of hidden rows.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.hidden.dtype.torch_name()
    }

    #[getter]
    fn max_positions(&self) -> usize {
        self.max_positions
    }

    #[getter]
    fn attention(&self) -> &'static str {
        match self.attention {
            Attention::Own => "own",
            Attention::Caller => "caller",
        }
    }

    /// The state of each layer, by the number that `bind_cache` takes: pages of a layer that
    /// attends, and slots, maybe several, of one with a recurrent state.
    #[getter]
    fn cache(&self) -> Vec<Cache> {
        self.cache.clone()
    }

    /// Everything about which a `config.json` and a framework's options do not fit: an object by
    /// the names of `EngineArgs` of vLLM's, or of `ServerArgs` of SGLang's.
    #[pyo3(signature = (config, options, framework = "vllm"))]
    fn refusals(&self, config: &str, options: &str, framework: &str) -> PyResult<Vec<String>> {
        let refusals = rules(framework)?.refusals;
        let options = object(options).map_err(PyValueError::new_err)?;
        let config = match Config::parse(config, None) {
            Ok(config) => config,
            Err(fault) => return Ok(vec![escaped(&fault.to_string())]),
        };
        let (artifact, invariant, slots, guesses) = {
            let hosted = self.lock();
            let target = hosted.target();
            let guesses = Guesses::of(target.most_guesses(), target.draft.as_ref().map(|draft| draft.is_apart()));
            (hosted.artifact().clone(), target.invariant, target.has_slots(), guesses)
        };
        let held = Held {
            model: &artifact.manifest().config["model"],
            dtype: self.dtype(),
            cache_dtype: self.cache_dtype,
            ranks: artifact.manifest().ranks(),
            experts: artifact.manifest().expert_parallel,
            positions: self.max_positions,
            step: self.max_tokens,
            page: self.block_tokens,
            own: self.attention == Attention::Own,
            invariant,
            slots,
            guesses,
            pixels: artifact.manifest().tower.as_ref().map(|tower| tower.pixels()),
        };
        Ok(refusals(&config, &options, &held).iter().map(|text| escaped(text)).collect())
    }

    /// A context in which the checkpoint's tensors are given one by one. At its end all have to be
    /// there, but for an update of weights that are loaded, or were until `unload`: what is packed
    /// together changes when all of it has come, in this update or later ones, and unloaded weights
    /// are there again when all have. Names are of a checkpoint of the draft's own, if it is
    /// `draft`.
    #[pyo3(signature = (*, update = false, draft = false))]
    fn loading(slf: Bound<'_, Model>, update: bool, draft: bool) -> Loading {
        Loading { model: slf.unbind(), update, draft }
    }

    /// Forgets the weights. Memory of the host that is not the caller's goes back to the system
    /// until others are loaded.
    fn unload(&self) {
        self.lock().unload();
    }

    /// Loads a checkpoint's directory, or a file of packed weights. The file's checksums are
    /// compared if `verify` is set.
    #[pyo3(signature = (path, *, verify = true))]
    fn load(&self, py: Python<'_>, path: PathBuf, verify: bool) -> PyResult<()> {
        let packed = || Packed::open(&path).map(|packed| if verify { packed } else { packed.unverified() });
        let load = || match path.is_file() {
            true => self.lock().load_packed(&packed()?, &|_, _| ()),
            false => self.lock().load(&Checkpoint::open(&path)?, &|_, _| ()),
        };
        py.detach(load).map_err(raised)
    }

    /// The name of the file of this rank's packed weights, in the folder of a model's config.json.
    #[getter]
    fn packed_name(&self) -> String {
        let hosted = self.lock();
        packed::file_name(&hosted.target().name, hosted.rank())
    }

    /// Loads made-up weights.
    #[pyo3(signature = (seed = 0))]
    fn load_random(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        py.detach(|| self.lock().load(&Random { seed }, &|_, _| ())).map_err(raised)
    }

    /// Takes the pages of the cache, of each entry of `cache`: the address of its first page, or
    /// slot, the bytes from one to the next, how many there are, and any number that names its
    /// table: entries with the same have one, if their pages hold the same and lie equally far
    /// apart.
    fn bind_cache(&self, py: Python<'_>, pages: Vec<(usize, usize, usize, usize)>) -> PyResult<()> {
        let hosted = self.lock();
        let (mut tables, mut names): (Vec<Pages>, Vec<usize>) = (vec![], vec![]);
        for (state, (start, block_stride, blocks, name)) in pages.into_iter().enumerate() {
            let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start));
            let start = start.ok_or_else(|| StepError::new_err(format!("cache {state}: a null pointer")))?;
            let shared = names.iter().zip(&mut tables).find(|(other, table)| {
                **other == name
                    && (table.block_stride, table.blocks) == (block_stride, blocks)
                    && hosted.are_alike(table.states[0].0, state)
            });
            match shared {
                Some((_, table)) => table.states.push((state, start)),
                None => {
                    tables.push(Pages { states: vec![(state, start)], block_stride, blocks });
                    names.push(name);
                }
            }
        }
        drop(hosted);
        // SAFETY: the caller's to see to, as the documentation of the package says.
        py.detach(|| unsafe { self.lock().bind_cache(&tables) }).map_err(raised)
    }

    /// The rows that the body of a step leaves, one for each token.
    #[getter]
    fn hidden(slf: &Bound<'_, Model>) -> View {
        Model::view(slf, slf.get().hidden)
    }

    /// What the further rows are called that steps leave, as `atomc compile --hidden` asked for:
    /// `hidden.2` is what enters layer 2.
    #[getter]
    fn hidden_names(&self) -> Vec<String> {
        self.lock().hidden_names().map(str::to_owned).collect()
    }

    /// Further rows of the step that has just run its body to the end, one for each token. They
    /// stay until the next step, embedding or head. Their place depends on the size of the step.
    fn hidden_of(slf: &Bound<'_, Model>, name: &str) -> PyResult<View> {
        let rows = slf.get().lock().hidden_of(name).map_err(raised)?;
        Ok(Model::view(slf, rows))
    }

    /// Whether the artifact's draft is driven too: steps of `begin(draft=True)`, and `draft_head`.
    #[getter]
    fn draft(&self) -> bool {
        self.lock().has_draft()
    }

    /// Whether there are weights.
    #[getter]
    fn loaded(&self) -> bool {
        self.lock().is_loaded()
    }

    /// Whether there were weights once, so that new tensors are an update.
    #[getter]
    fn had_weights(&self) -> bool {
        self.lock().had_weights()
    }

    /// Most tokens of a sequence in steps that have kernels for a few of each; 1 without such.
    #[getter]
    fn each(&self) -> usize {
        self.lock().plans().iter().filter_map(|plan| plan.kind.each()).max().unwrap_or(1)
    }

    /// The tensor with the difference from each of the draft's tokens to the model's number of it,
    /// if they differ.
    #[getter]
    fn draft_map(&self) -> Option<String> {
        self.lock().target().draft.as_ref().and_then(|draft| draft.map.clone())
    }

    /// What weights are made of calls a tensor of a checkpoint that has the draft alone.
    fn draft_name(&self, name: &str) -> String {
        self.lock().draft_name(name)
    }

    /// Tokens that the draft guesses among; 0 without one.
    #[getter]
    fn draft_vocab(&self) -> usize {
        self.lock().target().draft.as_ref().map_or(0, |draft| draft.vocab)
    }

    /// Whether the draft's weights lie in a checkpoint of their own.
    #[getter]
    fn draft_apart(&self) -> bool {
        self.lock().target().draft.as_ref().is_some_and(|draft| draft.is_apart())
    }

    /// The rows that each step of the model leaves for its draft, and that steps of the draft take.
    #[getter]
    fn drafted(slf: &Bound<'_, Model>) -> Option<View> {
        let rows = slf.get().lock().drafted()?;
        Some(Model::view(slf, rows))
    }

    /// Of an artifact with a tower: the three positions of a step's tokens, a row each of those of
    /// time, of rows and of columns, which the caller writes between `begin` and `run`.
    #[getter]
    fn axes(slf: &Bound<'_, Model>) -> Option<View> {
        let rows = slf.get().lock().axes()?;
        Some(Model::view(slf, rows))
    }

    /// Of an artifact with a tower: the row of `given` that each token of a step takes, or -1,
    /// which the caller writes between `begin` and `run`.
    #[getter]
    fn sources(slf: &Bound<'_, Model>) -> Option<View> {
        let rows = slf.get().lock().sources()?;
        Some(Model::view(slf, rows))
    }

    /// Of an artifact with a tower: the rows of images that tokens of a step may take. They stay
    /// until the caller writes others.
    #[getter]
    fn given(slf: &Bound<'_, Model>) -> Option<View> {
        let rows = slf.get().lock().given()?;
        Some(Model::view(slf, rows))
    }

    /// Has the tower make the rows of images and of frames of videos. All is in the memory of the
    /// host, by address: `pixels` float32, patch after patch, as the model's processor has them,
    /// and `rows` float32, as wide as those of `given`, for what is made. `grids` has for each
    /// image its frames, and its rows and columns of patches.
    fn look(&self, py: Python<'_>, pixels: usize, grids: Vec<(usize, usize, usize)>, rows: usize) -> PyResult<()> {
        if let Some((field, _)) = [("pixels", pixels), ("rows", rows)].into_iter().find(|(_, address)| *address == 0) {
            return Err(StepError::new_err(format!("{field}: a null pointer")));
        }
        py.detach(|| {
            let mut hosted = self.lock();
            let numbers = hosted.tiling().ok_or(HostedError::NoTower)?.numbers();
            let frames = grids.into_iter().flat_map(|(frames, rows, columns)| repeat_n(Grid { rows, columns }, frames));
            let (mut images, mut next) = (vec![], std::ptr::with_exposed_provenance::<f32>(pixels));
            for grid in frames {
                let count = grid.patches() * numbers;
                // SAFETY: the caller's to see to, as the documentation of the package says.
                images.push(Image { grid, numbers: unsafe { std::slice::from_raw_parts(next, count) }.to_vec() });
                next = next.wrapping_add(count);
            }
            let mut to = std::ptr::with_exposed_provenance_mut::<f32>(rows);
            for made in hosted.look(&images.iter().collect::<Vec<_>>())? {
                // SAFETY: as above.
                unsafe { to.copy_from_nonoverlapping(made.numbers.as_ptr(), made.numbers.len()) };
                to = to.wrapping_add(made.numbers.len());
            }
            Ok::<_, HostedError>(())
        })
        .map_err(raised)
    }

    /// The rows that heads read.
    #[getter]
    fn head_input(slf: &Bound<'_, Model>) -> View {
        Model::view(slf, slf.get().head_input)
    }

    /// The tokens that `embed` looks up, one in a row.
    #[getter]
    fn embed_input(slf: &Bound<'_, Model>) -> View {
        Model::view(slf, slf.get().embed_input)
    }

    /// Embeddings of the first tokens of `embed_input`, which stay until the next step, embedding
    /// or head.
    #[pyo3(signature = (tokens, stream = 0))]
    fn embed(slf: &Bound<'_, Model>, tokens: usize, stream: usize) -> PyResult<View> {
        let model = slf.get();
        // SAFETY: the caller's to see to, as the documentation of the package says.
        let rows = slf.py().detach(|| unsafe { model.lock().embed(tokens, Stream(stream)) });
        Ok(Model::view(slf, rows.map_err(raised)?))
    }

    /// Begins a step, of tensors by their addresses: `ids` int32 [tokens], `positions` int64
    /// [tokens], `starts` int32 [sequences + 1], `lengths` int32 [sequences]. `tables` has one of
    /// int32 [sequences, stride] for each entry of `cache`, with its stride: pages, or a slot and
    /// any entries after it. A step of the model takes the tables of its entries, and one of the
    /// `draft` those of the draft's. `each` is the most tokens of a sequence, if they are known to
    /// be few: 1 in a decode step. If it is `embedded`, a call asks for rows in the place of the
    /// tokens' embeddings.
    #[pyo3(signature = (
        *, ids, positions, starts, lengths, tables, sequences, tokens, each = 0, draft = false, embedded = false,
        stream = 0
    ))]
    #[allow(clippy::too_many_arguments, reason = "named in Python")]
    fn begin(
        &self,
        py: Python<'_>,
        ids: usize,
        positions: usize,
        starts: usize,
        lengths: usize,
        tables: Vec<(usize, usize)>,
        sequences: usize,
        tokens: usize,
        each: usize,
        draft: bool,
        embedded: bool,
        stream: usize,
    ) -> PyResult<()> {
        let needed = [("ids", ids), ("positions", positions), ("starts", starts), ("lengths", lengths)];
        let tables_needed = tables.iter().map(|&(address, _)| ("tables", address));
        if let Some((field, _)) = needed.into_iter().chain(tables_needed).find(|(_, address)| *address == 0) {
            return Err(StepError::new_err(format!("{field}: a null pointer")));
        }
        let address = |&(pages, stride): &(usize, usize)| (std::ptr::with_exposed_provenance(pages), stride);
        py.detach(|| {
            let mut hosted = self.lock();
            let tables: Vec<Table> = match self.attention {
                // The first of the entries with a table gives its place.
                Attention::Own => {
                    let first = if draft { hosted.model_states() } else { 0 };
                    let table = |bound: &Pages| tables.get(bound.states[0].0.checked_sub(first)?).map(address);
                    hosted.tables().iter().filter_map(table).map(|(pages, stride)| Table { pages, stride }).collect()
                }
                Attention::Caller => vec![],
            };
            let batch = Batch {
                ids: std::ptr::with_exposed_provenance(ids),
                positions: std::ptr::with_exposed_provenance(positions),
                starts: std::ptr::with_exposed_provenance(starts),
                lengths: std::ptr::with_exposed_provenance(lengths),
                tables: &tables,
                sequences,
                tokens,
                each,
                draft,
                embedded,
            };
            // SAFETY: the caller's to see to, as the documentation of the package says.
            unsafe { hosted.begin(&batch, Stream(stream)) }
        })
        .map_err(raised)
    }

    /// Runs the body of the step up to the next call, which is the caller's to do, or to its end.
    fn run(slf: &Bound<'_, Model>) -> PyResult<Option<Call>> {
        let model = slf.get();
        let done = slf.py().detach(|| {
            let mut hosted = model.lock();
            // SAFETY: the caller's to see to, as the documentation of the package says.
            let call = unsafe { hosted.run() }?;
            Ok::<_, HostedError>(call.map(|call| {
                let rows = |place: Place| hosted.rows(place);
                match call.work {
                    Work::Embedding { value } => (call.work, [rows(value), None, None, None]),
                    Work::AllReduce { value, added } => (call.work, [rows(value), added.and_then(rows), None, None]),
                    // An engine's alone.
                    Work::AllGather { .. } | Work::HandOn { .. } => (call.work, [None; 4]),
                    Work::Attention { q, k, v, out, .. } => (call.work, [rows(q), rows(k), rows(v), rows(out)]),
                }
            }))
        });
        let Some((work, places)) = done.map_err(raised)? else { return Ok(None) };
        let mut views = places.map(|rows| rows.map(|rows| Model::view(slf, rows))).into_iter();
        let mut next = || views.next().flatten().map(|view| Py::new(slf.py(), view)).transpose();
        let mut call = Call::default();
        match work {
            Work::Embedding { .. } => (call.kind, call.value) = ("embedding", next()?),
            Work::AllReduce { .. } => (call.kind, call.value, call.added) = ("all_reduce", next()?, next()?),
            Work::AllGather { .. } | Work::HandOn { .. } => {}
            Work::Attention { layer, scale, window, .. } => {
                (call.kind, call.layer, call.scale, call.window) = ("attention", layer, scale, window);
                (call.q, call.k, call.v, call.out) = (next()?, next()?, next()?, next()?);
            }
        }
        Ok(Some(call))
    }

    /// Logits of the first rows of `head_input`, which stay until the next step or head: of the
    /// vocabulary, or of the part of it that the rank has.
    #[pyo3(signature = (rows, stream = 0))]
    fn head(slf: &Bound<'_, Model>, rows: usize, stream: usize) -> PyResult<View> {
        let model = slf.get();
        // SAFETY: the caller's to see to, as the documentation of the package says.
        let logits = slf.py().detach(|| unsafe { model.lock().head(rows, Stream(stream)) });
        Ok(Model::view(slf, logits.map_err(raised)?))
    }

    /// Makes logits of rows that steps of the draft have left, over the draft's vocabulary.
    #[pyo3(signature = (rows, stream = 0))]
    fn draft_head(slf: &Bound<'_, Model>, rows: usize, stream: usize) -> PyResult<View> {
        let model = slf.get();
        // SAFETY: the caller's to see to, as the documentation of the package says.
        let logits = slf.py().detach(|| unsafe { model.lock().draft_head(rows, Stream(stream)) });
        Ok(Model::view(slf, logits.map_err(raised)?))
    }

    fn __repr__(&self) -> String {
        format!("atomc.Model({}, {})", self.device, self.attention())
    }

    /// What runs where.
    fn __str__(&self) -> String {
        let Model { path, target, device, .. } = self;
        let (artifact, path, attention) = (self.lock().artifact().clone(), path.display(), self.attention());
        let architecture = escaped(&artifact.manifest().model.architecture);
        format!("{architecture} of {path} runs on {device} with target {target}, attention: {attention}")
    }
}

impl Model {
    fn of(hosted: Hosted, path: PathBuf, attention: Attention) -> Model {
        let (target, model) = (hosted.target(), &hosted.artifact().manifest().model);
        let decode = hosted.plans().iter().filter(|plan| plan.kind == PlanKind::Decode);
        let mut decode: Vec<usize> = decode.map(|plan| plan.tokens).collect();
        decode.sort();
        Model {
            path,
            target: target.name.clone(),
            device: hosted.device_name().to_owned(),
            attention,
            vocab: model.vocab,
            max_positions: model.max_positions,
            max_tokens: hosted.max_tokens(),
            max_rows: hosted.max_rows(),
            decode,
            hidden: hosted.hidden(),
            head_input: hosted.head_input(),
            embed_input: hosted.embed_input(),
            cache_dtype: target.cache_dtype().torch_name(),
            block_tokens: target.layout.block_tokens,
            cache: match attention {
                Attention::Own => Cache::kept(target, hosted.states(), hosted.model_states()),
                Attention::Caller => Cache::left(target, &hosted.plans()[0]),
            },
            hosted: Mutex::new(hosted),
        }
    }
}

/// Asks Python for memory.
fn address(allocate: &Py<PyAny>, bytes: usize) -> PyResult<usize> {
    Python::attach(|py| allocate.call1(py, (bytes,))?.extract(py))
}

/// The state of a layer that attends, in pages with a layout that kernels alone know, or of a layer
/// with a recurrent state, in a slot for each sequence. If the caller attends, the state that it
/// has to keep.
#[pyclass(frozen, get_all, module = "atomc")]
#[derive(Clone, Default)]
pub struct Cache {
    layer: usize,
    /// Whether it is a slot. Only its bytes are given then, and the entries of a table.
    slot: bool,
    /// Entries of the table of a sequence's slots: one, or that of the state which a step goes on
    /// from and those for the states behind its tokens.
    entries: usize,
    /// Whether it belongs to the draft. Its layers are numbered after the model's.
    draft: bool,
    /// Tokens in a page.
    block_tokens: usize,
    /// Bytes of a page or a slot; 0 if the caller attends and has pages of its own.
    block_bytes: usize,
    dtype: &'static str,
    heads: usize,
    head_dim: usize,
    /// Keys that a token sees at most; 0 for all. Pages further back are not read.
    window: usize,
}

impl Cache {
    /// What the target keeps, in the order of its states.
    fn kept(target: &Target, states: &[State], of_model: usize) -> Vec<Cache> {
        let of = |layer: usize, group: &StateGroup| match group {
            StateGroup::Paged(pages) => Cache::paged(layer, target, pages),
            StateGroup::Slots(slots) => {
                let entries = Unit::of(group).kept.entries();
                Some(Cache { layer, slot: true, entries, block_bytes: slots.bytes, ..Cache::default() })
            }
        };
        let kept = |(number, state): (usize, &State)| {
            Some(Cache { draft: number >= of_model, ..of(state.layer, target.groups.get(state.group)?)? })
        };
        states.iter().enumerate().filter_map(kept).collect()
    }

    fn paged(layer: usize, target: &Target, Paged { block_bytes, streams, window, every }: &Paged) -> Option<Cache> {
        let keys = streams.first()?;
        Some(Cache {
            layer,
            slot: false,
            entries: 0,
            draft: false,
            block_tokens: target.layout.block_tokens * every,
            block_bytes: *block_bytes,
            dtype: keys.dtype.torch_name(),
            heads: keys.heads,
            head_dim: keys.width,
            window: *window,
        })
    }

    /// What a plan leaves to the caller.
    fn left(target: &Target, plan: &Plan) -> Vec<Cache> {
        let of = |work: Work| match work {
            Work::Attention { layer, heads, k, window, .. } => Some(Cache {
                layer,
                slot: false,
                entries: 0,
                draft: false,
                block_tokens: target.layout.block_tokens,
                block_bytes: 0,
                dtype: k.dtype.torch_name(),
                heads,
                head_dim: k.width / heads,
                window,
            }),
            _ => None,
        };
        plan.calls.iter().filter_map(|call| of(call.work)).collect()
    }
}

/// Work of the caller's in the middle of a step.
#[pyclass(frozen, get_all, module = "atomc")]
#[derive(Default)]
pub struct Call {
    /// `embedding`: put rows into `value`. `all_reduce`: sum `value` over all ranks, in place, and
    /// add `added`, if there is some. `attention`: put `k` and `v` into the cache of `layer` and
    /// attend.
    kind: &'static str,
    value: Option<Py<View>>,
    added: Option<Py<View>>,
    layer: usize,
    q: Option<Py<View>>,
    k: Option<Py<View>>,
    v: Option<Py<View>>,
    out: Option<Py<View>>,
    scale: f64,
    /// Keys that a token sees, 0 for all.
    window: usize,
}

/// A load under way.
#[pyclass(frozen, module = "atomc")]
pub struct Loading {
    model: Py<Model>,
    update: bool,
    draft: bool,
}

#[pymethods]
impl Loading {
    fn __enter__(slf: Bound<'_, Loading>) -> Bound<'_, Loading> {
        let Loading { model, update, .. } = slf.get();
        match update {
            true => model.get().lock().begin_update(),
            false => model.get().lock().begin_loading(),
        }
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (model, done) = (self.model.get(), kind.is_none());
        py.detach(|| match (self.update, done) {
            (true, true) => model.lock().end_update(),
            (true, false) => {
                model.lock().abandon_update();
                Ok(())
            }
            (false, true) => model.lock().finish_loading(),
            (false, false) => {
                model.lock().abandon_loading();
                Ok(())
            }
        })
        .map_err(raised)?;
        Ok(false)
    }

    /// For a matrix of codes in `float8_e4m3fn`: the name and the shape of its scales in the
    /// checkpoint, and the rows and columns that share one.
    fn scales(&self, py: Python<'_>, name: &str) -> Option<(String, Vec<usize>, [usize; 2])> {
        let model = self.model.get();
        let scales = py.detach(|| model.lock().scales(name))?;
        Some((scales.name, scales.shape, scales.block))
    }

    /// Takes a tensor of the checkpoint: anything with `__dlpack__`, in the memory of the host or
    /// of the model's device. There its weights are made in the order of the stream, which stays as
    /// long as the model, and this call does not wait. Returns whether weights are made of it;
    /// other parts of a model are passed over.
    #[pyo3(signature = (name, tensor, stream = 0))]
    fn feed(&self, name: &str, tensor: &Bound<'_, PyAny>, stream: usize) -> PyResult<bool> {
        let (py, model) = (tensor.py(), self.model.get());
        let name = &if self.draft { model.lock().draft_name(name) } else { name.to_owned() };
        let foreign = Foreign::take(name, tensor, Device::named(&model.device), stream)?;
        let shape = foreign.shape();
        // Name and shape come before the numbers, which a wrong shape has no end of.
        if !py.detach(|| model.lock().wants(name, shape)).map_err(raised)? {
            return Ok(false);
        }
        let given = Given { float: foreign.float(name)?, shape, numbers: foreign.numbers(name)? };
        // SAFETY: the tensor's library says what it is and where; that it and the stream stay is
        // the caller's to see to, as the documentation of the package says.
        py.detach(|| unsafe { model.lock().feed_on(name, given, Stream(stream)) }).map_err(raised)?;
        Ok(true)
    }
}
