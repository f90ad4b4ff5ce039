//! A framework that drives a model, against the engine that drives itself: the same kernels, so the
//! same logits to the last bit where both take the same plans; and what ranks and a framework's
//! attention make of them.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend;
use atomc_artifact::manifest::{Attention, DType, StateGroup, Target, Work};
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{Source, Tensor};
use atomc_runtime::device::{Device, DeviceBuffer, Stream};
use atomc_runtime::hosted::{Batch, Pages, Rows, Table};
use atomc_runtime::memory::Buffer;
use atomc_runtime::states::{Unit, paged};
use atomc_runtime::weights::Given;
use atomc_runtime::{
    Artifact, Checkpoint, DeviceChoice, Engine, EngineOptions, Hosted, HostedOptions, Random, Request, SeqId,
    StepError, Want,
};
use half::{bf16, f16};

/// Most tokens of a step, padding included.
const TOKENS: usize = 48;
const PAGES: usize = 40;
const GAP: usize = 1280;
/// A page that is not there.
const NOWHERE: i32 = 1 << 20;

/// The folder of an example model, or of a golden one.
fn model(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = tests.join("../examples/models").join(name);
    if example.exists() { example } else { tests.join("golden").join(name) }
}

/// An artifact's file, in a folder that is removed with it.
fn compiled(name: &str, options: Options) -> (tempfile::TempDir, PathBuf) {
    compiled_layers(name, usize::MAX, options)
}

/// Compiles the first layers of a model.
fn compiled_layers(name: &str, layers: usize, options: Options) -> (tempfile::TempDir, PathBuf) {
    // Only steps of one token and one row have a plan of their own.
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: TOKENS, rows: TOKENS };
    let mut config = frontend::read(&model(name)).unwrap_or_else(|e| panic!("{e}"));
    config.layers.truncate(layers);
    let compiled = driver::compile(&config, &Options { buckets, ..options }, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    (dir, path)
}

fn open(path: &Path) -> Artifact {
    Artifact::open(path).expect("a whole artifact")
}

/// Schedules, keeps pages and slots with gaps between them, adds up what ranks have, and attends
/// where plans leave that to it.
struct Framework {
    ranks: Vec<Rank>,
    /// Memory of the device for a step's tensors, where it has one of its own.
    tensors: Vec<DeviceBuffer>,
    stride: usize,
    /// By table: whether a sequence has one slot.
    slots: Vec<bool>,
    /// By table: keys that a token sees, if the framework takes back earlier pages.
    windows: Vec<usize>,
    /// By table.
    free: Vec<Vec<i32>>,
    sequences: Vec<Sequence>,
    /// What the body of the last step left on the first rank, and the further rows by their names.
    left: BTreeMap<String, Vec<f32>>,
}

struct Rank {
    hosted: Hosted,
    _pages: Vec<Buffer>,
    /// Keys and values by layer, by sequence, by position, where the framework attends.
    cache: Vec<Vec<Vec<[Vec<f32>; 2]>>>,
}

#[derive(Clone, Default)]
struct Sequence {
    tokens: usize,
    tables: Vec<Vec<i32>>,
}

fn options(rank: usize, attention: Attention) -> HostedOptions {
    HostedOptions {
        device: DeviceChoice::default(),
        threads: 2,
        rank,
        attention,
        draft: false,
        images: Default::default(),
        stream: Stream::default(),
    }
}

impl Rank {
    fn new(mut hosted: Hosted, name: &str, sequences: usize) -> Rank {
        let checkpoint = Checkpoint::open(model(name)).expect("a checkpoint");
        hosted.begin_loading();
        for tensor in checkpoint.names().into_iter().rev() {
            let shape = checkpoint.shape(tensor).expect("a tensor").to_vec();
            let Ok(Tensor::Stored { float, numbers }) = checkpoint.tensor(tensor, &shape) else {
                panic!("no {tensor}")
            };
            let bytes = numbers.to_vec().expect("a whole file");
            hosted.feed(tensor, Given { float, shape: &shape, numbers: bytes.into() }).expect("a tensor of the model");
        }
        hosted.finish_loading().expect("all tensors");
        Rank::loaded(hosted, sequences)
    }

    /// With pages for a model that has its weights.
    fn loaded(mut hosted: Hosted, sequences: usize) -> Rank {
        let target = hosted.target().clone();
        let (mut kept, mut tables) = (vec![], vec![]);
        let mut memory = |block_stride: usize| {
            let mut pages = Buffer::new(PAGES * block_stride).expect("memory");
            // What an earlier owner left is not a number.
            pages.as_mut_slice().fill(0xff);
            kept.push(pages);
            NonNull::new(kept[kept.len() - 1].address()).expect("an address")
        };
        for (group, unit) in Unit::all(&target).iter().enumerate().filter(|(group, _)| !is_slots(&target, *group)) {
            let block_stride = unit.bytes + GAP;
            let states = (0..target.states.len()).filter(|&state| target.states[state].group == group);
            let states = states.map(|state| (state, memory(block_stride))).collect();
            tables.push(Pages { states, block_stride, blocks: PAGES });
        }
        tables.extend(slots(&target, memory));
        // SAFETY: the pages live as long as the model.
        unsafe { hosted.bind_cache(&tables) }.expect("pages that fit");
        let layers = hosted.artifact().manifest().model.layers;
        Rank { hosted, _pages: kept, cache: vec![vec![vec![]; sequences]; layers] }
    }
}

/// Whether a group is of slots.
fn is_slots(target: &Target, group: usize) -> bool {
    matches!(target.groups[group], StateGroup::Slots(_))
}

/// The slots of all states that have such: those of a layer lie in one page, side by side.
fn slots(target: &Target, mut memory: impl FnMut(usize) -> NonNull<u8>) -> Option<Pages> {
    let units = Unit::all(target);
    let mut places: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut most = 0;
    for (number, state) in target.states.iter().enumerate().filter(|(_, state)| is_slots(target, state.group)) {
        let places = places.entry(state.layer).or_default();
        let ends = |&(number, at): &(usize, usize)| at + units[target.states[number].group].bytes;
        places.push((number, places.last().map_or(0, ends).next_multiple_of(64)));
        most = most.max(ends(&places[places.len() - 1]));
    }
    let block_stride = most.next_multiple_of(256) + GAP;
    let of_layer = |places: Vec<(usize, usize)>| {
        let start = memory(block_stride);
        // SAFETY: inside the first page.
        places.into_iter().map(move |(number, at)| (number, unsafe { start.add(at) })).collect::<Vec<_>>()
    };
    let states: Vec<_> = places.into_values().flat_map(of_layer).collect();
    (!states.is_empty()).then_some(Pages { states, block_stride, blocks: PAGES })
}

impl Framework {
    fn new(path: &Path, name: &str, attention: Attention, sequences: usize) -> Framework {
        let artifact = &Arc::new(open(path));
        let ranks = 0..artifact.manifest().ranks();
        let hosted = |rank| Hosted::open(artifact.clone(), &options(rank, attention), None).expect("it opens");
        Framework::of(ranks.map(|rank| Rank::new(hosted(rank), name, sequences)).collect(), vec![])
    }

    /// On a chip that is emulated, which reads nothing but memory of its own.
    fn emulated(path: &Path, name: &str, chip: &str, sequences: usize) -> Framework {
        let artifact = Arc::new(open(path));
        let mut device = Emulated::open(&artifact, chip, 2, Default::default()).expect("a device");
        let sizes = [TOKENS * 4, TOKENS * 8, TOKENS * 4 + 4, TOKENS * 4];
        let tables = artifact.manifest().targets[0].groups.iter().map(|_| TOKENS * PAGES * 4);
        let tensors = sizes.into_iter().chain(tables).map(|bytes| device.allocate(bytes).expect("memory")).collect();
        let options = options(0, Attention::Own);
        let hosted = Hosted::with_device(artifact, chip, Box::new(device), &options, None).expect("it opens");
        Framework::of(vec![Rank::new(hosted, name, sequences)], tensors)
    }

    fn of(ranks: Vec<Rank>, tensors: Vec<DeviceBuffer>) -> Framework {
        let target = ranks[0].hosted.target();
        let has_slots = |table: &Pages| is_slots(target, target.states[table.states[0].0].group);
        let slots: Vec<bool> = ranks[0].hosted.tables().iter().map(has_slots).collect();
        let (stride, tables) = (target.layout.block_tokens, slots.len());
        let free = (0..PAGES as i32).map(|page| page * 7 % PAGES as i32).collect();
        let sequences = vec![Sequence { tokens: 0, tables: vec![vec![]; tables] }; ranks[0].cache[0].len()];
        let (windows, free, left) = (vec![0; tables], vec![free; tables], BTreeMap::new());
        Framework { ranks, tensors, stride, slots, windows, free, sequences, left }
    }

    /// Where the device finds a step's tensor.
    fn tensor<T: Copy>(&mut self, number: usize, values: &[T]) -> *const T {
        let Some(memory) = self.tensors.get_mut(number) else { return values.as_ptr() };
        // SAFETY: numbers have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        memory.upload(0, bytes).expect("room");
        memory.address().cast_const().cast()
    }

    /// Gives sequences new tokens, and returns the logits after each of them.
    fn step(&mut self, new: &[(usize, Vec<u32>)], padding: usize, decode: bool) -> Vec<Vec<f32>> {
        let (mut ids, mut positions, mut starts, mut lengths) = (vec![], vec![], vec![0], vec![]);
        let (mut tables, mut owners) = (vec![vec![]; self.windows.len()], vec![]);
        for (sequence, tokens) in new {
            let Sequence { tokens: len, tables: held } = &mut self.sequences[*sequence];
            for (number, table) in held.iter_mut().enumerate() {
                let (window, free) = (self.windows[number], &mut self.free[number]);
                if window > 0 {
                    // Such pages do not exist, and the emulator refuses reads of them.
                    let behind = (*len + 1).saturating_sub(window) / self.stride;
                    free.extend(table[..behind].iter().filter(|&&page| page != NOWHERE));
                    table[..behind].fill(NOWHERE);
                }
                let pages = if self.slots[number] { 1 } else { (*len + tokens.len()).div_ceil(self.stride) };
                table.extend((table.len()..pages).map(|_| free.pop().expect("a free page")));
                tables[number].extend(table.iter().copied().chain(std::iter::repeat(0)).take(PAGES));
            }
            owners.extend((*len..).take(tokens.len()).map(|position| (*sequence, position)));
            positions.extend((*len..).take(tokens.len()).map(|position| position as i64));
            ids.extend(tokens.iter().map(|&id| id as i32));
            *len += tokens.len();
            starts.push(ids.len() as i32);
            lengths.push(*len as i32);
        }
        let count = ids.len();
        ids.extend(vec![-1; padding]);
        positions.extend(vec![-1; padding]);
        starts.extend(vec![count as i32; padding]);
        lengths.extend(vec![-1; padding]);
        tables.iter_mut().for_each(|table| table.extend(vec![-1; padding * PAGES]));
        // Every other step has its embeddings looked up before, and other tokens in it.
        let embedded = count.is_multiple_of(2);
        // SAFETY: there is room for `count` tokens, and nothing else uses it.
        let embeddings = embedded.then(|| unsafe { self.ranks[0].embed(&ids[..count]) });
        if embedded {
            ids.fill(0);
        }
        let table =
            |(number, table): (usize, &Vec<i32>)| Table { pages: self.tensor(4 + number, table), stride: PAGES };
        let tables: Vec<Table> = tables.iter().enumerate().map(table).collect();
        let batch = Batch {
            ids: self.tensor(0, &ids),
            positions: self.tensor(1, &positions),
            starts: self.tensor(2, &starts),
            lengths: self.tensor(3, &lengths),
            tables: &tables,
            sequences: lengths.len(),
            tokens: ids.len(),
            each: usize::from(decode),
            draft: false,
            embedded,
        };
        // SAFETY: the tensors have those sizes and outlive the step.
        unsafe {
            for rank in &mut self.ranks {
                rank.hosted.begin(&batch, Stream::default()).expect("a step");
            }
            self.body(&owners, embeddings.as_deref());
            self.left = self.ranks[0].left(count);
            self.head(count)
        }
    }

    /// # Safety
    /// A step is under way on every rank.
    unsafe fn body(&mut self, owners: &[(usize, usize)], embeddings: Option<&[f32]>) {
        loop {
            // SAFETY: passed on to the caller.
            let run = |rank: &mut Rank| unsafe { rank.hosted.run() }.expect("a part of a step").map(|call| call.work);
            let calls: Vec<Option<Work>> = self.ranks.iter_mut().map(run).collect();
            assert!(calls.iter().all(|call| call.is_none() == calls[0].is_none()));
            match calls[0] {
                None => return,
                Some(Work::Embedding { value }) => {
                    let embeddings = embeddings.expect("a step with embeddings of its own");
                    for rank in &mut self.ranks {
                        let rows = rank.hosted.rows(value).expect("rows of the step");
                        let places = (0..owners.len()).flat_map(|row| (0..value.width).map(move |c| (row, c)));
                        embeddings.iter().zip(places).for_each(|(&x, (row, column))| set(&rows, row, column, x));
                    }
                }
                Some(Work::AllGather { .. } | Work::HandOn { .. }) => unreachable!("an engine's alone"),
                Some(Work::AllReduce { value, added }) => {
                    let rows: Vec<Rows> =
                        self.ranks.iter().map(|rank| rank.hosted.rows(value).expect("rows of the step")).collect();
                    for (row, column) in (0..owners.len()).flat_map(|row| (0..value.width).map(move |c| (row, c))) {
                        let sum = rows.iter().map(|rows| get(rows, row, column)).sum();
                        rows.iter().for_each(|rows| set(rows, row, column, sum));
                        for (rows, rank) in rows.iter().zip(&self.ranks).filter(|_| added.is_some()) {
                            let more = added.and_then(|added| rank.hosted.rows(added)).expect("rows of the step");
                            set(rows, row, column, get(rows, row, column) + get(&more, row, column));
                        }
                    }
                }
                Some(Work::Attention { .. }) => {
                    self.ranks.iter_mut().zip(calls).for_each(|(rank, call)| rank.attend(call, owners));
                }
            }
        }
    }

    /// Logits of the first hidden rows, of all ranks together.
    fn head(&mut self, count: usize) -> Vec<Vec<f32>> {
        let parts: Vec<Rows> = self.ranks.iter_mut().map(|rank| rank.logits(count)).collect();
        let vocab = self.ranks[0].hosted.artifact().manifest().model.vocab;
        let parts = &parts[..vocab / parts[0].width];
        let part = |rows: &Rows, row| (0..rows.width).map(|column| get(rows, row, column)).collect::<Vec<f32>>();
        (0..count).map(|row| parts.iter().flat_map(|rows| part(rows, row)).collect()).collect()
    }

    fn drop_sequence(&mut self, sequence: usize) {
        let Sequence { tokens, tables } = &mut self.sequences[sequence];
        *tokens = 0;
        for (free, table) in self.free.iter_mut().zip(tables) {
            free.extend(std::mem::take(table).iter().filter(|&&page| page != NOWHERE));
        }
        for layer in self.ranks.iter_mut().flat_map(|rank| &mut rank.cache) {
            layer[sequence].clear();
        }
    }
}

impl Rank {
    /// All rows that the body of a step has left, by name.
    fn left(&self, count: usize) -> BTreeMap<String, Vec<f32>> {
        let mut all = BTreeMap::from([("hidden".to_owned(), numbers(&self.hosted.hidden(), count))]);
        for name in self.hosted.hidden_names() {
            all.insert(name.to_owned(), numbers(&self.hosted.hidden_of(name).expect("rows of the step"), count));
        }
        all
    }

    /// The rank's part of them.
    fn logits(&mut self, count: usize) -> Rows {
        let (from, to) = (self.hosted.hidden(), self.hosted.head_input());
        let bytes = from.stride * from.dtype.size();
        // SAFETY: both have rows for every token of a step.
        unsafe {
            std::ptr::copy_nonoverlapping(from.address, to.address, count * bytes);
            self.hosted.head(count, Stream::default()).expect("a head")
        }
    }

    /// # Safety
    /// There is room for all of `ids`.
    unsafe fn embed(&mut self, ids: &[i32]) -> Vec<f32> {
        let input = self.hosted.embed_input();
        // SAFETY: passed on to the caller.
        let rows = unsafe {
            std::ptr::copy_nonoverlapping(ids.as_ptr(), input.address.cast(), ids.len());
            self.hosted.embed(ids.len(), Stream::default()).expect("embeddings")
        };
        numbers(&rows, rows.rows)
    }

    fn attend(&mut self, call: Option<Work>, owners: &[(usize, usize)]) {
        let Some(Work::Attention { layer, heads, q, k, v, out, scale, window }) = call else { panic!("another call") };
        let rows = |place| self.hosted.rows(place).expect("rows of the step");
        let [q, k, v, out] = [q, k, v, out].map(rows);
        let dim = k.width / heads;
        let (heads, shared) = (q.width / dim, q.width / k.width);
        for (token, &(sequence, position)) in owners.iter().enumerate() {
            let row = |rows: &Rows| (0..rows.width).map(|column| get(rows, token, column)).collect::<Vec<f32>>();
            let cache = &mut self.cache[layer][sequence];
            assert_eq!(cache.len(), position);
            cache.push([row(&k), row(&v)]);
            let seen = &cache[if window == 0 { 0 } else { cache.len().saturating_sub(window) }..];
            let query = row(&q);
            for head in 0..heads {
                let at = |values: &[f32], d: usize| values[head / shared * dim + d];
                let score = |[key, _]: &[Vec<f32>; 2]| {
                    (0..dim).map(|d| query[head * dim + d] * at(key, d)).sum::<f32>() * scale as f32
                };
                let scores: Vec<f32> = seen.iter().map(score).collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
                let all: f32 = weights.iter().sum();
                for d in 0..dim {
                    let sum: f32 = weights.iter().zip(seen).map(|(weight, [_, value])| weight * at(value, d)).sum();
                    set(&out, token, head * dim + d, sum / all);
                }
            }
        }
    }
}

/// The first rows, one after the other.
fn numbers(rows: &Rows, count: usize) -> Vec<f32> {
    (0..count).flat_map(|row| (0..rows.width).map(move |column| get(rows, row, column))).collect()
}

fn get(rows: &Rows, row: usize, column: usize) -> f32 {
    let at = row * rows.stride + column;
    // SAFETY: rows of a live model.
    unsafe {
        match rows.dtype {
            DType::F32 => rows.address.cast::<f32>().add(at).read(),
            DType::BF16 => rows.address.cast::<bf16>().add(at).read().to_f32(),
            DType::F16 => rows.address.cast::<f16>().add(at).read().to_f32(),
            other => panic!("{other:?}"),
        }
    }
}

fn set(rows: &Rows, row: usize, column: usize, value: f32) {
    let at = row * rows.stride + column;
    // SAFETY: rows of a live model.
    unsafe {
        match rows.dtype {
            DType::F32 => rows.address.cast::<f32>().add(at).write(value),
            DType::BF16 => rows.address.cast::<bf16>().add(at).write(bf16::from_f32(value)),
            DType::F16 => rows.address.cast::<f16>().add(at).write(f16::from_f32(value)),
            other => panic!("{other:?}"),
        }
    }
}

fn engine_options() -> EngineOptions {
    EngineOptions { threads: 2, cache_tokens: 2048, ..EngineOptions::default() }
}

/// Steps of several sequences, prompts in pieces among them: `judge` gets each row of the
/// framework's logits and of an engine's.
fn compare(name: &str, framework: Framework, whole: &Path, judge: impl FnMut(&[f32], &[f32])) {
    let engine = Engine::new(open(whole), &engine_options()).expect("it opens");
    compare_with(engine, name, framework, 60, judge);
}

fn compare_with(
    mut engine: Engine,
    name: &str,
    mut framework: Framework,
    steps: usize,
    mut judge: impl FnMut(&[f32], &[f32]),
) {
    engine.load_weights(&Checkpoint::open(model(name)).expect("a checkpoint"), &|_, _| ()).expect("weights");
    let (vocab, max) = (engine.model().vocab, engine.model().max_positions);
    let mut owned: Vec<SeqId> = framework.sequences.iter().map(|_| engine.add_sequence()).collect();
    let mut state = 11u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..steps {
        let (decode, mut left) = (random(2) == 0, TOKENS - 3);
        let mut new: Vec<(usize, Vec<u32>)> = vec![];
        for (sequence, id) in owned.iter_mut().enumerate() {
            if framework.sequences[sequence].tokens + TOKENS > max.min(300) {
                framework.drop_sequence(sequence);
                engine.drop_sequence(*id).expect("a live sequence");
                *id = engine.add_sequence();
            }
            if random(4) > 0 && left > 0 {
                let count = if decode { 1 } else { 1 + random(left.min(30)) };
                left -= count;
                new.push((sequence, (0..count).map(|_| random(vocab) as u32).collect()));
            }
        }
        let tokens: usize = new.iter().map(|(_, tokens)| tokens.len()).sum();
        if tokens == 0 {
            continue;
        }
        // A padded token would need a larger plan than the engine's.
        let padding = if tokens == 1 { 0 } else { random(4) };
        let found = framework.step(&new, padding, decode || tokens == 1);
        let requests: Vec<Request> = new.iter().map(|(sequence, tokens)| of(owned[*sequence], tokens)).collect();
        let wanted = engine.step(&requests).expect("a step");
        let wanted = (0..new.len()).flat_map(|request| wanted.of(request));
        found.iter().zip(wanted).for_each(|(found, wanted)| judge(found, wanted));
    }
}

fn of(sequence: SeqId, tokens: &[u32]) -> Request<'_> {
    Request { sequence, tokens, logits: Want::All }
}

#[test]
fn hosted_steps_have_the_engines_bits() {
    // Two have heads with padding in pages, and two have slots as well.
    for name in ["qwen3", "llama", "llama-gqa-tied", "mistral", "hybrid-next-dense", "hybrid-3.5"] {
        let (_dir, path) = compiled(name, Options::default());
        let framework = Framework::new(&path, name, Attention::Own, 4);
        compare(name, framework, &path, |found, wanted| assert!(found == wanted, "{name}"));
    }
}

#[test]
fn hosted_steps_have_the_engines_bits_on_emulated_chips() {
    let chips = [("gfx942", "qwen3"), ("gfx1201", "llama"), ("gfx942", "llama-odd"), ("gfx942", "hybrid-next-dense")];
    for (chip, name) in chips {
        let (_dir, path) = compiled(name, Options { targets: vec![chip.to_owned()], ..Options::default() });
        let framework = Framework::emulated(&path, name, chip, 3);
        let device = Emulated::open(&open(&path), chip, 2, Default::default()).expect("a device");
        let engine = Engine::with_device(open(&path), chip, Box::new(device), &engine_options()).expect("it opens");
        compare_with(engine, name, framework, 8, |found, wanted| assert!(found == wanted, "{name} on {chip}"));
    }
}

#[test]
fn pages_behind_the_window_are_not_read() {
    let cases = [("mistral", "gfx942", &[8][..]), ("mistral", "gfx1201", &[8]), ("qwen2-sliding", "gfx942", &[0, 6])];
    for (name, chip, windows) in cases {
        let (_dir, path) = compiled(name, Options { targets: vec![chip.to_owned()], ..Options::default() });
        let mut framework = Framework::emulated(&path, name, chip, 2);
        framework.windows = paged(framework.ranks[0].hosted.target()).map(|pages| pages.window).collect();
        assert_eq!(framework.windows, windows);
        let device = Emulated::open(&open(&path), chip, 2, Default::default()).expect("a device");
        let engine = Engine::with_device(open(&path), chip, Box::new(device), &engine_options()).expect("it opens");
        compare_with(engine, name, framework, 24, |found, wanted| assert!(found == wanted, "{name} on {chip}"));
    }
}

/// An engine gives back the pages before a window: where all layers have one, a sequence may be
/// longer than the cache, and its answers do not change; where one layer sees all keys, it may not.
#[test]
fn windows_let_sequences_be_longer_than_the_cache() {
    let prompt: Vec<u32> = (0..150).map(|token| token * 7 % 96).collect();
    let answer = |name: &str, cache_tokens| {
        let (_dir, path) = compiled(name, Options::default());
        let options = EngineOptions { threads: 2, cache_tokens, ..EngineOptions::default() };
        let mut engine = Engine::open(&path, &options).expect("it opens");
        engine.load_weights(&Checkpoint::open(model(name)).expect("a checkpoint"), &|_, _| ()).expect("weights");
        let sequence = engine.add_sequence();
        let (mut tokens, mut next) = (Vec::<u32>::new(), prompt.clone());
        for _ in 0..150 {
            let request = Request { sequence, tokens: &next, logits: Want::Last };
            next = vec![engine.step_greedy(&[request])?[0].expect("a row was wanted")];
            tokens.extend(&next);
        }
        Ok::<_, StepError>(tokens)
    };
    assert_eq!(answer("mistral", 128).expect("room"), answer("mistral", 512).expect("room"));
    assert_eq!(answer("qwen2-sliding", 320).expect("room"), answer("qwen2-sliding", 512).expect("room"));
    let error = answer("qwen2-sliding", 128).expect_err("no room").to_string();
    assert_eq!(error, "the KV cache is full: 5 more blocks of 32 tokens are needed, 4 of 4 are free");
}

/// Root mean square of the errors of logits, and that of the logits.
#[derive(Default)]
struct Off(f64, f64);

impl Off {
    fn add(&mut self, found: &[f32], wanted: &[f32]) {
        let squares = |off: &mut f64, value: f32| *off += f64::from(value) * f64::from(value);
        found.iter().zip(wanted).for_each(|(found, wanted)| squares(&mut self.0, found - wanted));
        wanted.iter().for_each(|wanted| squares(&mut self.1, *wanted));
    }

    fn share(&self) -> f64 {
        (self.0 / self.1).sqrt()
    }
}

#[test]
fn a_framework_adds_up_what_ranks_have() {
    for name in ["qwen3", "llama"] {
        let (_whole, whole) = compiled(name, Options::default());
        let (_shared, shared) = compiled(name, Options { ranks: 2, ..Options::default() });
        let mut off = Off::default();
        compare(name, Framework::new(&shared, name, Attention::Own, 3), &whole, |found, wanted| off.add(found, wanted));
        println!("{name}: {:e}", off.share());
        assert!(off.share() < 0.01, "{name}: {:e}", off.share());
    }
}

#[test]
fn a_framework_attends() {
    // The last one's rows have padding.
    for name in ["qwen3", "llama", "llama-f16"] {
        let attention = vec![Attention::Own, Attention::Caller];
        let (_dir, path) = compiled(name, Options { attention, ..Options::default() });
        let mut off = Off::default();
        compare(name, Framework::new(&path, name, Attention::Caller, 3), &path, |found, wanted| off.add(found, wanted));
        println!("{name}: {:e}", off.share());
        assert!(off.share() < 0.01, "{name}: {:e}", off.share());
    }
}

/// A model with made-up weights, as many ranks as it is for.
fn made_up(path: &Path, attention: Attention) -> Framework {
    let artifact = &Arc::new(open(path));
    let rank = |rank| {
        let mut hosted = Hosted::open(artifact.clone(), &options(rank, attention), None).expect("it opens");
        hosted.load(&Random { seed: 3 }, &|_, _| ()).expect("weights");
        Rank::loaded(hosted, 2)
    };
    Framework::of((0..artifact.manifest().ranks()).map(rank).collect(), vec![])
}

#[test]
fn what_enters_a_layer_is_what_the_layers_before_it_leave() {
    let name = "qwen3";
    let layers = frontend::read(&model(name)).expect("a model").layers.len();
    let wanted = [layers - 1, 0, 1];
    for (ranks, attention) in [(1, Attention::Own), (2, Attention::Own), (1, Attention::Caller)] {
        let options = || Options { ranks, attention: vec![attention], ..Options::default() };
        let steps = |framework: &mut Framework| {
            let left = |framework: &mut Framework, new: &[(usize, Vec<u32>)], decode| {
                framework.step(new, 0, decode);
                framework.left.clone()
            };
            let prompts = [(0, vec![5, 6, 7, 8, 9]), (1, vec![10, 11])];
            [left(framework, &prompts, false), left(framework, &[(0, vec![12])], true)]
        };
        let (_dir, path) = compiled_layers(name, layers, Options { hidden: wanted.to_vec(), ..options() });
        let mut whole = made_up(&path, attention);
        let found = steps(&mut whole);
        for layer in wanted.into_iter().filter(|layer| *layer > 0) {
            let (_dir, path) = compiled_layers(name, layer, options());
            for (found, want) in found.iter().zip(steps(&mut made_up(&path, attention))) {
                assert_eq!(found[&format!("hidden.{layer}")], want["hidden"], "layer {layer} of {ranks} ranks");
                assert_ne!(found["hidden"], want["hidden"]);
            }
        }
        // SAFETY: there is room for one token.
        let embeddings = unsafe { whole.ranks[0].embed(&[12]) };
        assert_eq!(found[1]["hidden.0"], embeddings);
        assert_eq!(
            found[0].keys().collect::<Vec<_>>(),
            ["hidden", "hidden.0", "hidden.1", &format!("hidden.{}", layers - 1)]
        );
        let message = |name: &str| whole.ranks[0].hosted.hidden_of(name).expect_err("no rows").to_string();
        assert!(message("hidden.1").starts_with("hidden: the rows of no step are there"), "{}", message("hidden.1"));
        assert!(
            message("hidden.99").starts_with("hidden: no rows are called `hidden.99`; the artifact has `hidden.0`")
        );
    }
}

/// A sequence without a slot begins anew in every step, and leaves the slots of others alone.
#[test]
fn a_sequence_without_a_slot_keeps_nothing() {
    let name = "hybrid-next";
    let (_dir, path) = compiled(name, Options::default());
    let slots_of =
        |framework: &mut Framework| framework.slots.iter().position(|&slots| slots).expect("a table of slots");
    let prompts = [(0, vec![5, 6, 7, 8, 9]), (1, vec![10, 11])];
    let (mut whole, mut part) =
        (Framework::new(&path, name, Attention::Own, 2), Framework::new(&path, name, Attention::Own, 2));
    let table = slots_of(&mut part);
    part.sequences[1].tables[table] = vec![-1];
    assert_eq!(whole.step(&prompts, 0, false), part.step(&prompts, 0, false));
    let next = [(0, vec![12]), (1, vec![13])];
    let (whole, part) = (whole.step(&next, 0, true), part.step(&next, 0, true));
    assert_eq!(whole[0], part[0]);
    assert_ne!(whole[1], part[1]);
}

/// Impossible slots, and the messages that refuse them.
#[test]
fn slots_that_do_not_fit_are_refused() {
    let (_dir, path) = compiled("hybrid-next", Options::default());
    let mut framework = Framework::new(&path, "hybrid-next", Attention::Own, 1);
    let number = framework.slots.iter().position(|&slots| slots).expect("a table of slots");
    let hosted = &mut framework.ranks[0].hosted;
    let bound = hosted.tables().to_vec();
    let bytes = Unit::all(hosted.target()).iter().map(|unit| unit.bytes).max().expect("a group");
    let mut refused = |change: &dyn Fn(&mut Vec<Pages>)| {
        let mut tables = bound.clone();
        change(&mut tables);
        // SAFETY: none of them is used.
        unsafe { hosted.bind_cache(&tables) }.expect_err("a fault").to_string()
    };
    let small = refused(&|tables| tables[number].block_stride = bytes.next_multiple_of(256) - 256);
    assert!(small.contains(&format!("at least a page, {bytes}")), "{small}");
    let mixed = refused(&|tables| {
        let pages = tables.remove(1 - number).states;
        tables[0].states.extend(pages);
    });
    assert!(mixed.ends_with("hold other streams, and want a table each"), "{mixed}");
    framework.sequences[0].tables[number] = vec![PAGES as i32];
    let batch = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| framework.step(&[(0, vec![1])], 0, true)));
    let fault = batch.expect_err("a slot that is not there");
    let fault = fault.downcast_ref::<String>().expect("a message");
    assert!(fault.contains("page 40 of 40"), "{fault}");
}
