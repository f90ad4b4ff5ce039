//! A framework that drives a model and its draft, against the engine that drives both itself: the
//! same guesses after the same tokens, on the host, and on an emulated chip that makes a step's
//! inputs of a framework's tensors.
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc_config::draft;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{Beside, Source, whole_numbers};
use atomc_runtime::device::{Device, DeviceBuffer, Stream};
use atomc_runtime::hosted::{Batch, Pages, Rows, Table};
use atomc_runtime::manifest::{Attention, StateGroup, Target};
use atomc_runtime::memory::Buffer;
use atomc_runtime::sample::greedy;
use atomc_runtime::states::Unit;
use atomc_runtime::{
    Artifact, Checkpoint, Chosen, DeviceChoice, Engine, EngineOptions, Hosted, HostedOptions, Request, SeqId, Want,
};

const GUESSES: usize = 3;
const TOKENS: usize = 32;
const SEQUENCES: usize = 3;
/// Pages of a sequence.
const PAGES: usize = 8;
const ROUNDS: usize = 4;

/// An artifact with its checkpoints.
struct Case {
    path: PathBuf,
    dir: PathBuf,
    head: Option<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Case {
    fn new(name: &str, target: &str) -> Case {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
        let head = Some(dir.join("head")).filter(|head| head.is_dir());
        let mut config = atomc_config::read(&dir).expect("a configuration");
        config.dtype = DType::F32;
        let draft = match &head {
            Some(head) => draft::read(head, &config).expect("a head"),
            None => config.draft().expect("a sound configuration").expect("an MTP layer"),
        };
        let buckets = BucketOptions { decode: vec![1, 4], each: GUESSES + 1, tokens: TOKENS, rows: TOKENS };
        let targets = vec![target.to_owned()];
        let options = Options { buckets, targets, draft: Some(draft), invariant: true, ..Options::default() };
        let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("it compiles");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.atomc");
        compiled.write(&path).expect("an artifact");
        Case { path, dir, head, _folder: folder }
    }

    fn artifact(&self) -> Artifact {
        Artifact::open(&self.path).expect("a whole artifact")
    }

    /// Calls something with all weights, by the names of the plan.
    fn with_weights<T>(&self, target: &Target, call: impl FnOnce(&dyn Source) -> T) -> T {
        let model = Checkpoint::open(&self.dir).expect("a checkpoint");
        let Some(head) = &self.head else { return call(&model) };
        let head = Checkpoint::open(head).expect("a head");
        call(&Beside::new(target, &model, &head).expect("names that differ"))
    }
}

/// A step's tokens of one sequence, and where the first stands.
#[derive(Clone)]
struct Run {
    sequence: usize,
    tokens: Vec<u32>,
    position: usize,
}

impl Run {
    /// The slots of a step: that of the state which it goes on from, and those behind each token,
    /// or one behind the last if they are many.
    fn slots(&self) -> impl Iterator<Item = i32> {
        let ring = GUESSES + 1;
        let slot = move |behind: usize| (self.sequence * PAGES + (self.position + behind) % ring) as i32;
        let behind = move |entry: usize| if entry == 1 && self.tokens.len() > ring { self.tokens.len() } else { entry };
        (0..=ring).map(move |entry| slot(behind(entry))).chain(std::iter::repeat(-1)).take(PAGES)
    }
}

/// Schedules, and keeps pages.
struct Framework {
    hosted: Hosted,
    _pages: Vec<Buffer>,
    /// Memory of the device for a step's tensors, where it has one of its own.
    tensors: Vec<DeviceBuffer>,
    /// The model's number of each token of the draft.
    map: Vec<u32>,
}

impl Framework {
    fn new(case: &Case, chip: Option<&str>) -> Framework {
        let artifact = Arc::new(case.artifact());
        let stream = Stream::default();
        let (device, attention) = (DeviceChoice::default(), Attention::Own);
        let options =
            HostedOptions { device, threads: 2, rank: 0, attention, draft: true, images: Default::default(), stream };
        let mut tensors = vec![];
        let mut hosted = match chip {
            None => Hosted::open(artifact, &options, None).expect("it opens"),
            Some(chip) => {
                let mut device = Emulated::open(&artifact, chip, 2, Default::default()).expect("a device");
                let table = SEQUENCES * PAGES * 4;
                let sizes = [TOKENS * 4, TOKENS * 8, TOKENS * 4, TOKENS * 4, table, table];
                tensors = sizes.map(|bytes| device.allocate(bytes).expect("memory")).into();
                Hosted::with_device(artifact, chip, Box::new(device), &options, None).expect("it opens")
            }
        };
        let target = hosted.target().clone();
        let draft = target.draft.clone().expect("a draft");
        let map = case.with_weights(&target, |source| {
            hosted.load(source, &|_, _| ()).expect("weights");
            let all = 0..draft.vocab as u32;
            let behind = |name: &String| whole_numbers(source, name, draft.vocab).expect("a map");
            match draft.map.as_ref().map(behind) {
                Some(behind) => all.zip(behind).map(|(own, more)| (i64::from(own) + more) as u32).collect(),
                None => all.collect(),
            }
        });
        let (pages, tables) = bound(&hosted, &target);
        // SAFETY: the pages live as long as the model.
        unsafe { hosted.bind_cache(&tables) }.expect("pages that fit");
        Framework { hosted, _pages: pages, tensors, map }
    }

    fn tensor<T: Copy>(&mut self, number: usize, values: &[T]) -> *const T {
        let Some(memory) = self.tensors.get_mut(number) else { return values.as_ptr() };
        // SAFETY: numbers have no padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        memory.upload(0, bytes).expect("room");
        memory.address().cast_const().cast()
    }

    /// Runs a step of the model, or of its draft, which takes the rows that lie there.
    fn step(&mut self, runs: &[Run], each: usize, draft: bool) {
        let ids: Vec<i32> = runs.iter().flat_map(|run| run.tokens.iter().map(|&id| id as i32)).collect();
        let at = |run: &Run| (run.position as i64..).take(run.tokens.len()).collect::<Vec<_>>();
        let positions: Vec<i64> = runs.iter().flat_map(at).collect();
        let mut starts = vec![0];
        starts.extend(runs.iter().scan(0, |end, run| {
            *end += run.tokens.len() as i32;
            Some(*end)
        }));
        let lengths: Vec<i32> = runs.iter().map(|run| (run.position + run.tokens.len()) as i32).collect();
        let pages = runs.iter().flat_map(|run| (run.sequence * PAGES..).take(PAGES).map(|page| page as i32)).collect();
        let slots: Vec<i32> = runs.iter().flat_map(Run::slots).collect();
        let (target, models) = (self.hosted.target(), self.hosted.model_states());
        let firsts = self.hosted.tables().iter().map(|table| table.states[0].0);
        let kinds = firsts.filter(|&first| (first >= models) == draft).map(|first| {
            let group = &target.groups[target.states[first].group];
            matches!(group, StateGroup::Slots(_))
        });
        let kinds: Vec<bool> = kinds.collect();
        let tables: [Vec<i32>; 2] = [pages, slots];
        let tables = [0, 1].map(|kind| Table { pages: self.tensor(4 + kind, &tables[kind]), stride: PAGES });
        let tables: Vec<Table> = kinds.into_iter().map(|is_slots| tables[usize::from(is_slots)]).collect();
        let batch = Batch {
            ids: self.tensor(0, &ids),
            positions: self.tensor(1, &positions),
            starts: self.tensor(2, &starts),
            lengths: self.tensor(3, &lengths),
            tables: &tables,
            sequences: runs.len(),
            tokens: ids.len(),
            each,
            draft,
            embedded: false,
        };
        // SAFETY: the tensors have those sizes and outlive the step.
        unsafe {
            self.hosted.begin(&batch, Stream::default()).expect("a step");
            assert!(self.hosted.run().expect("a body").is_none(), "nobody else takes part");
        }
    }

    /// The likeliest token of some hidden rows of the last step.
    fn picks(&mut self, rows: &[usize], draft: bool) -> Vec<u32> {
        copy(&self.hosted.hidden(), rows, &self.hosted.head_input());
        // SAFETY: the rows are there.
        let logits = unsafe {
            match draft {
                true => self.hosted.draft_head(rows.len(), Stream::default()),
                false => self.hosted.head(rows.len(), Stream::default()),
            }
        };
        let logits = logits.expect("a head");
        (0..rows.len()).map(|row| likeliest(&logits, row)).collect()
    }

    /// Guesses for sequences that have just run a step. `kept` is the number of a step's tokens
    /// that stay, and `next` the token after them.
    fn guess(&mut self, runs: &[Run], kept: &[usize], next: &[u32], each: usize) -> Vec<Vec<u32>> {
        let mut shifted = runs.to_vec();
        for ((run, kept), next) in shifted.iter_mut().zip(kept).zip(next) {
            run.tokens.rotate_left(1);
            run.tokens[kept - 1] = *next;
        }
        self.step(&shifted, each, true);
        let mut first = 0;
        let mut rows = vec![];
        for (run, kept) in runs.iter().zip(kept) {
            rows.push(first + kept - 1);
            first += run.tokens.len();
        }
        let mut guesses = vec![vec![]; runs.len()];
        let mut ahead: Vec<Run> = runs.to_vec();
        ahead.iter_mut().zip(kept).for_each(|(run, kept)| run.position += kept - 1);
        for _ in 0..GUESSES {
            // The rows that the step has left are those that the next one takes.
            let drafted = self.hosted.drafted().expect("a draft");
            copy(&self.hosted.hidden(), &rows, &drafted);
            let picks = self.picks(&rows, true);
            for ((guesses, run), pick) in guesses.iter_mut().zip(&mut ahead).zip(picks) {
                let token = self.map[pick as usize];
                guesses.push(token);
                (run.tokens, run.position) = (vec![token], run.position + 1);
            }
            rows = (0..runs.len()).collect();
            self.step(&ahead, 1, true);
        }
        guesses
    }
}

/// Pages of all states: a table for the model's, and one for the draft's.
fn bound(hosted: &Hosted, target: &Target) -> (Vec<Buffer>, Vec<Pages>) {
    let (units, models) = (Unit::all(target), hosted.model_states());
    let stride = units.iter().map(|unit| unit.bytes).max().expect("states").next_multiple_of(256) + 256;
    let blocks = SEQUENCES * PAGES;
    let mut kept = vec![];
    let mut place = |state: usize| {
        let mut pages = Buffer::new(blocks * stride).expect("memory");
        pages.as_mut_slice().fill(0xff);
        kept.push(pages);
        (state, NonNull::new(kept[kept.len() - 1].address()).expect("an address"))
    };
    let mut tables: Vec<Pages> = vec![];
    for state in 0..hosted.states().len() {
        let group = target.states[state].group;
        let same = |table: &&mut Pages| {
            let first = table.states[0].0;
            target.states[first].group == group && (first >= models) == (state >= models)
        };
        match tables.iter_mut().find(same) {
            Some(table) => table.states.push(place(state)),
            None => tables.push(Pages { states: vec![place(state)], block_stride: stride, blocks }),
        }
    }
    (kept, tables)
}

/// Copies some rows to the beginning of others.
fn copy(from: &Rows, rows: &[usize], to: &Rows) {
    let bytes = from.stride * from.dtype.size();
    assert_eq!(bytes, to.stride * to.dtype.size());
    // SAFETY: both have room for the rows of a step, and are of a live model.
    let read = |row: &usize| unsafe { std::slice::from_raw_parts(from.address.add(row * bytes), bytes).to_vec() };
    for (number, bytes_of) in rows.iter().map(read).enumerate() {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes_of.as_ptr(), to.address.add(number * bytes), bytes) };
    }
}

fn likeliest(logits: &Rows, row: usize) -> u32 {
    // SAFETY: rows of a live model.
    let at = |column: usize| unsafe { logits.address.cast::<f32>().add(row * logits.stride + column).read() };
    let best = (0..logits.width).fold(0, |best, column| if at(column) > at(best) { column } else { best });
    best as u32
}

/// Rounds of guesses and of steps that verify them. Guesses are the engine's, and so are the tokens
/// that stay.
fn compare(name: &str, target: &str, chip: Option<&str>) {
    let case = Case::new(name, target);
    let mut framework = Framework::new(&case, chip);
    let options = EngineOptions { threads: 2, cache_tokens: 1024, draft: true, ..EngineOptions::default() };
    let mut engine = match chip {
        None => Engine::new(case.artifact(), &options),
        Some(chip) => {
            let artifact = case.artifact();
            let device = Emulated::open(&artifact, chip, 2, Default::default()).expect("a device");
            Engine::with_device(artifact, chip, Box::new(device), &options)
        }
    }
    .expect("it opens");
    let own = engine.target().clone();
    match &case.head {
        None => case.with_weights(&own, |source| engine.load_weights(source, &|_, _| ())).expect("weights"),
        Some(head) => {
            let [model, head] = [&case.dir, head].map(|dir| Checkpoint::open(dir).expect("a checkpoint"));
            engine.load_weights_with(&model, &head, &|_, _| ()).expect("weights");
        }
    }
    let vocab = engine.model().vocab as u32;
    let ids: Vec<SeqId> = (0..SEQUENCES).map(|_| engine.add_sequence()).collect();
    let prompt = |n: usize| (0..4 + 5 * n as u32).map(|k| (k * 7 + n as u32 * 13 + 1) % vocab).collect();
    let prompts: Vec<Vec<u32>> = (0..SEQUENCES).map(prompt).collect();
    let mut runs: Vec<Run> =
        prompts.into_iter().enumerate().map(|(sequence, tokens)| Run { sequence, tokens, position: 0 }).collect();
    let mut each = 0;
    for round in 0..ROUNDS {
        let place = format!("{name}, round {round}");
        let logits = if round == 0 { Want::Last } else { Want::All };
        let requests: Vec<Request> =
            runs.iter().map(|run| Request { sequence: ids[run.sequence], tokens: &run.tokens, logits }).collect();
        let output = engine.step(&requests).expect("a step");
        let picked: Vec<Vec<u32>> = (0..SEQUENCES).map(|n| output.of(n).map(greedy).collect()).collect();
        framework.step(&runs, each, false);
        let count: usize = runs.iter().map(|run| run.tokens.len()).sum();
        let all: Vec<u32> = framework.picks(&(0..count).collect::<Vec<_>>(), false);
        let (mut kept, mut next, mut first) = (vec![], vec![], 0);
        for (run, picked) in runs.iter().zip(&picked) {
            let of = &all[first..first + run.tokens.len()];
            first += run.tokens.len();
            assert_eq!(&of[of.len() - picked.len()..], picked, "{place}: tokens");
            // Guesses stay up to the first that is wrong.
            let right = match round {
                0 => run.tokens.len() - 1,
                _ => run.tokens[1..].iter().zip(of).take_while(|(guess, pick)| guess == pick).count(),
            };
            kept.push(right + 1);
            next.push(of[right]);
        }
        let chosen: Vec<Vec<u32>> = runs
            .iter()
            .zip(&kept)
            .zip(&next)
            .map(|((run, &kept), &next)| run.tokens[1..kept].iter().copied().chain([next]).collect())
            .collect();
        for ((run, kept), chosen) in runs.iter().zip(&kept).zip(&chosen) {
            engine.rewind(ids[run.sequence], run.position + kept).expect("a sequence");
            assert!(!chosen.is_empty());
        }
        let asked: Vec<Chosen> =
            ids.iter().zip(&chosen).map(|(&sequence, tokens)| Chosen { sequence, tokens }).collect();
        let want = engine.draft(&asked, GUESSES).expect("guesses");
        let got = framework.guess(&runs, &kept, &next, each);
        assert_eq!(got, want, "{place}: guesses");
        for (((run, kept), next), guesses) in runs.iter_mut().zip(&kept).zip(&next).zip(got) {
            run.position += kept;
            run.tokens = [*next].into_iter().chain(guesses).collect();
        }
        each = GUESSES + 1;
    }
}

#[test]
fn guesses_are_the_engines() {
    let recurrent = ["draft-next", "draft-3.5", "draft-3.5-moe"];
    let others = ["draft-v3", "draft-glm", "draft-eagle3", "draft-eagle3-options", "draft-eagle3-shared"];
    for name in others.into_iter().chain(recurrent) {
        compare(name, "host", None);
    }
}

#[test]
fn guesses_on_an_emulated_chip() {
    for name in ["draft-v3", "draft-eagle3", "draft-next"] {
        compare(name, "gfx942", Some("gfx942"));
    }
}

/// Pages that a model and its draft share are refused, and so is a draft that was not asked for.
#[test]
fn what_does_not_fit_is_refused() {
    let case = Case::new("draft-v3", "host");
    let framework = Framework::new(&case, None);
    let (target, mut hosted) = (framework.hosted.target().clone(), framework.hosted);
    let (_pages, mut tables) = bound(&hosted, &target);
    let shared = tables.pop().expect("a table of the draft's");
    tables[0].states.extend(shared.states);
    // SAFETY: the pages live as long as the model.
    let error = unsafe { hosted.bind_cache(&tables) }.expect_err("one table for both").to_string();
    assert!(error.contains("of the model and of its draft, want a table each"), "{error}");
}
