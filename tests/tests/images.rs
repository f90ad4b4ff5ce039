//! Models that see images, against transformers in float64 (`golden/images.py`): the tower in the
//! reference interpreter, and the language part with its rows.
use std::collections::BTreeMap;
use std::sync::Arc;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend::{self, Asked, Part, tower};
use atomc_config::Vision;
use atomc_ir::DType;
use atomc_ir::interp::{self, BatchState, CacheState, Cx, Tensor, Val};
use atomc_passes::{Bucket, BucketOptions, Cx as PassCx};
use atomc_runtime::device::Stream;
use atomc_runtime::manifest::Attention;
use atomc_runtime::sight::{Grid, Images, Patch, Rows, Tiling};
use atomc_runtime::tower::{Image, Tower};
use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, Engine, EngineOptions, Hosted, HostedOptions, Request, Want};
use atomc_tests::images::{Seen, cases};
use atomc_tests::pieces;
use atomc_tests::reference::{Piece, Reference, States};

/// Relative, as in `golden_interp.rs`.
const TOLERANCE: f64 = 2e-6;

fn close(what: &str, made: &[f64], reference: &[f64]) {
    assert_eq!(made.len(), reference.len(), "{what}");
    let square = |all: &mut dyn Iterator<Item = f64>| all.map(|v| v * v).sum::<f64>().sqrt();
    let error = square(&mut made.iter().zip(reference).map(|(a, b)| a - b)) / square(&mut reference.iter().copied());
    assert!(error < TOLERANCE, "{what}: relative error {error:e}");
}

fn weights(case: &Seen, graph: &atomc_ir::Graph) -> std::collections::HashMap<String, Tensor<f64>> {
    case.case.weights_of(graph).into_iter().map(|(name, t)| (name, Tensor::new(t.shape, t.data))).collect()
}

fn tiling(vision: &Vision) -> Tiling {
    let &Vision { channels, frames, patch, merge, only, side, .. } = vision;
    Tiling { channels, frames, patch, merge, only, side }
}

/// What a tower's step is given for some images.
fn given(vision: &Vision, pixels: &[f64], grids: &[Grid]) -> BTreeMap<String, Val<f64>> {
    let tiling = tiling(vision);
    let patches: Vec<Patch> = grids.iter().flat_map(|grid| grid.in_order(tiling)).collect();
    let of_patches = |f: &dyn Fn(&Patch) -> i32| Val::Int(patches.iter().map(f).collect());
    let (mut batch, mut lengths) = (BatchState::default(), vec![]);
    for (number, grid) in grids.iter().enumerate() {
        let count = grid.patches() as i32;
        batch.sequences.extend((0..count).map(|_| number as i32));
        batch.positions.extend(0..count);
        lengths.extend((0..count).map(|_| count));
    }
    let shares = patches.iter().flat_map(|patch| patch.shares.map(f64::from)).collect();
    let rows = (0..patches.len()).step_by(vision.merged()).map(|row| row as i32).collect();
    let states = (0..vision.depth).map(|block| (format!("kv{block}"), Val::Cache(CacheState::default())));
    let mut all = BTreeMap::from([
        (tower::GIVEN.into(), Val::Float(Tensor::new(vec![patches.len(), vision.numbers()], pixels.to_vec()))),
        (tower::HEIGHTS.into(), of_patches(&|patch| patch.row as i32)),
        (tower::WIDTHS.into(), of_patches(&|patch| patch.column as i32)),
        ("lengths".into(), Val::Int(lengths)),
        ("rows".into(), Val::Int(rows)),
        ("batch".into(), Val::Batch(batch)),
    ]);
    all.extend(states);
    if vision.side.is_some() {
        all.insert(tower::TAPS.into(), Val::Int(patches.iter().flat_map(|patch| patch.taps).collect()));
        all.insert(tower::SHARES.into(), Val::Float(Tensor::new(vec![patches.len(), 4], shares)));
    }
    all
}

/// The rows that a tower's graph makes.
fn rows(case: &Seen, vision: &Vision, graph: &atomc_ir::Graph, prompt: usize) -> Vec<f64> {
    let grids = case.grids(prompt);
    let params = given(vision, &case.numbers("pixels", prompt), &grids);
    let weights = weights(case, graph);
    let patches = grids.iter().map(|grid| grid.patches()).sum();
    let cx = Cx::of(patches, patches / vision.merged());
    let out = interp::run(graph, cx, &params, &|name: &str| weights.get(name).cloned()).expect("a step");
    let place = graph.results().position(|(name, _)| name == "logits").expect("rows");
    out[place].float().expect("numbers").data.clone()
}

#[test]
fn towers_make_the_rows_of_transformers() {
    for case in cases() {
        let vision = case.vision();
        let graph = tower::graph(&case.case.config, &vision).expect("a graph");
        for prompt in 0..case.prompts() {
            close(&case.case.name, &rows(&case, &vision, &graph, prompt), &case.numbers("rows", prompt));
        }
    }
}

/// Images see themselves alone: rows do not depend on what else is in the step.
#[test]
fn images_in_one_step_are_apart() {
    let case = &cases()[0];
    let vision = case.vision();
    let graph = tower::graph(&case.case.config, &vision).expect("a graph");
    let (both, grids) = (rows(case, &vision, &graph, 1), case.grids(1));
    let weights = weights(case, &graph);
    let first = grids[0].patches();
    let params = given(&vision, &case.numbers("pixels", 1)[..first * vision.numbers()], &grids[..1]);
    let cx = Cx::of(first, first / vision.merged());
    let out = interp::run(&graph, cx, &params, &|name: &str| weights.get(name).cloned()).expect("a step");
    let place = graph.results().position(|(name, _)| name == "logits").expect("rows");
    let alone = &out[place].float().expect("numbers").data;
    assert_eq!(&both[..alone.len()], &alone[..]);
}

#[test]
fn positions_are_those_of_transformers() {
    for case in cases().iter().filter(|case| !case.vision().axes.is_empty()) {
        for prompt in 0..case.prompts() {
            let (tokens, sight) = (case.case.tokens(prompt).len(), case.sight(prompt));
            let all: Vec<[i32; 3]> = (0..tokens).map(|token| sight.position(token)).collect();
            let made: Vec<f64> = (0..3).flat_map(|axis| all.iter().map(move |p| f64::from(p[axis]))).collect();
            assert_eq!(made, case.numbers("positions", prompt), "{} {prompt}", case.case.name);
        }
    }
}

/// What the language part is given for tokens of a prompt.
fn seen(case: &Seen, (prompt, from, count): (usize, usize, usize), images: &Images) -> States {
    let positions: Vec<[i32; 3]> = (from..from + count).map(|token| images.position(token)).collect();
    let axis = |axis: usize| Val::Int(positions.iter().map(|p| p[axis]).collect());
    // Rows of these tokens alone, of which there are at most as many as tokens.
    let (all, width) = (case.numbers("rows", prompt), case.width(prompt));
    let (mut rows, mut sources) = (vec![], vec![]);
    for &source in &case.sources(prompt)[from..from + count] {
        let row = usize::try_from(source).ok();
        sources.push(row.map_or(-1, |_| (rows.len() / width) as i32));
        rows.extend(row.into_iter().flat_map(|row| &all[row * width..][..width]));
    }
    rows.resize(count * width, f64::NAN);
    let mut all = BTreeMap::from([
        (tower::SOURCES.into(), Val::Int(sources)),
        (tower::GIVEN.into(), Val::Float(Tensor::new(vec![count, width], rows))),
    ]);
    if !case.vision().axes.is_empty() {
        let axes = [tower::TIMES, tower::HEIGHTS, tower::WIDTHS];
        all.extend(axes.into_iter().zip(0..).map(|(name, number)| (name.into(), axis(number))));
    }
    if case.vision().prompt.together {
        let ends = (from..from + count).map(|token| images.end(token) as i32);
        all.insert(tower::ENDS.into(), Val::Int(ends.collect()));
    }
    all
}

/// Logits of a prompt in pieces of some tokens, or of more where tokens of an image see each other.
fn logits(case: &Seen, reference: &Reference, prompt: usize, pieces: &[usize]) -> Vec<f64> {
    let (tokens, images, mut states) = (case.case.tokens(prompt), case.images(prompt), reference.fresh());
    let (mut from, mut logits) = (0, vec![]);
    for &size in pieces {
        let size = images.whole(from, size.min(tokens.len() - from));
        if size == 0 {
            break;
        }
        let piece = Piece { sequence: 0, from, tokens: &tokens[from..][..size] };
        let results = reference.results_with(&mut states, &[piece], seen(case, (prompt, from, size), &images));
        logits.extend(results["logits"].float().expect("numbers").data.iter().copied());
        from += size;
    }
    logits
}

#[test]
fn language_parts_take_rows_of_images() {
    for case in cases() {
        let vision = case.vision();
        let asked = Asked { tower: Some(&vision), ..Asked::default() };
        let graph = frontend::graph_with(&case.case.config, Part::default(), asked).expect("a graph");
        let arch = &atomc_targets::variants("host").expect("a target")[0];
        let cx = PassCx { arch, bucket: Bucket::Any { tokens: 64, rows: 64 }, invariant: false };
        let lowered = atomc::driver::lower(&graph, &cx, None).expect("kernels");
        for graph in [graph, lowered] {
            let reference = Reference { weights: weights(&case, &graph), graph };
            for prompt in 0..case.prompts() {
                let (n, what) = (case.case.tokens(prompt).len(), format!("{} {prompt}", case.case.name));
                close(&what, &logits(&case, &reference, prompt, &[n]), &case.numbers("prefill", prompt));
                // Pieces that end within images.
                let pieces: Vec<usize> = (0..n).step_by(3).map(|from| 3.min(n - from)).collect();
                close(&what, &logits(&case, &reference, prompt, &pieces), &case.numbers("decode", prompt));
            }
        }
    }
}

/// The passes keep what a tower means.
#[test]
fn towers_mean_the_same_as_kernels() {
    let arch = &atomc_targets::variants("host").expect("a target")[0];
    for case in cases() {
        let vision = case.vision();
        let graph = tower::graph(&case.case.config, &vision).expect("a graph");
        let cx = PassCx { arch, bucket: Bucket::Whole { tokens: 64, rows: 16 }, invariant: false };
        let lowered = atomc::driver::lower(&graph, &cx, None).expect("kernels");
        close(&case.case.name, &rows(&case, &vision, &lowered, 1), &case.numbers("rows", 1));
    }
}

/// An artifact with a tower, in f32.
fn artifact(case: &Seen, target: &str) -> Artifact {
    let mut config = case.case.config.clone();
    config.dtype = DType::F32;
    let vision = Vision::of(&config).expect("a tower");
    let buckets = BucketOptions { decode: vec![1, 2], each: 1, tokens: 32, rows: 32 };
    let options =
        Options { targets: vec![target.into()], buckets, tower: Some(vision), patches: 64, ..Options::default() };
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    Artifact::open(&path).expect("a whole artifact")
}

/// Largest error of rows and of logits in f32, as absolute numbers.
const F32: f64 = 1e-4;

fn near(what: &str, made: &[f32], reference: &[f64]) {
    assert_eq!(made.len(), reference.len(), "{what}");
    let error = made.iter().zip(reference).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(error < F32, "{what}: off by {error:e}");
}

/// The images of all prompts, with rows of the tower.
fn images_of(case: &Seen, what: &str, tower: &mut Tower) -> Vec<Arc<Images>> {
    let numbers = tower.tiling().numbers();
    let mut all = vec![];
    for prompt in 0..case.prompts() {
        let (grids, pixels) = (case.grids(prompt), case.numbers("pixels", prompt));
        let mut rest = &pixels[..];
        let images: Vec<Image> = grids
            .iter()
            .map(|&grid| {
                let (own, others) = rest.split_at(grid.patches() * numbers);
                rest = others;
                Image { grid, numbers: own.iter().map(|&v| v as f32).collect() }
            })
            .collect();
        let rows = tower.rows(&images.iter().collect::<Vec<_>>()).expect("rows");
        let made: Vec<f32> = rows.iter().flat_map(|rows| rows.numbers.iter().copied()).collect();
        // Rows are larger than logits.
        let size = case.numbers("rows", prompt).iter().fold(1.0f64, |size, v| size.max(v.abs()));
        let scaled: Vec<f32> = made.iter().map(|v| v / size as f32).collect();
        let reference: Vec<f64> = case.numbers("rows", prompt).iter().map(|v| v / size).collect();
        near(&format!("{what}, rows of {prompt}"), &scaled, &reference);
        all.push(Arc::new(Images::of(case.places(prompt).into_iter().map(|(at, _)| at).zip(rows))));
    }
    all
}

/// All prompts: rows of the tower, and logits with them, in pieces that end within images and then
/// token by token, all prompts side by side.
fn check(case: &Seen, what: &str, tower: &mut Tower, engine: &mut Engine) {
    let all = images_of(case, what, tower);
    for pieces in [&[64, 64][..], &[5, 3]] {
        let sequences: Vec<_> = all.iter().map(|_| engine.add_sequence()).collect();
        for (&sequence, images) in sequences.iter().zip(&all) {
            engine.see(sequence, images.clone()).expect("images");
        }
        let tokens: Vec<Vec<u32>> = (0..all.len()).map(|prompt| case.case.tokens(prompt)).collect();
        let (mut logits, mut fed) = (vec![vec![]; all.len()], vec![0; all.len()]);
        for step in 0.. {
            let live: Vec<usize> = (0..all.len()).filter(|&i| fed[i] < tokens[i].len()).collect();
            if live.is_empty() {
                break;
            }
            let size = pieces.get(step).copied().unwrap_or(1);
            let request = |&i: &usize| {
                let rest = &tokens[i][fed[i]..];
                let size = all[i].whole(fed[i], size.min(rest.len()));
                Request { sequence: sequences[i], tokens: &rest[..size], logits: Want::All }
            };
            let requests: Vec<Request> = live.iter().map(request).collect();
            let out = engine.step(&requests).expect("a step");
            for (place, &i) in live.iter().enumerate() {
                logits[i].extend(out.of(place).flatten().copied());
                fed[i] += requests[place].tokens.len();
            }
        }
        for (prompt, logits) in logits.iter().enumerate() {
            near(&format!("{what}, logits of {prompt}"), logits, &case.numbers("prefill", prompt));
        }
        for sequence in sequences {
            engine.drop_sequence(sequence).expect("a live sequence");
        }
    }
}

fn options() -> EngineOptions {
    EngineOptions { threads: 2, cache_tokens: 512, ..EngineOptions::default() }
}

#[test]
fn images_on_the_host() {
    for case in cases() {
        let artifact = artifact(&case, "host");
        let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
        let mut tower = Tower::open(&artifact, &options()).expect("a tower");
        tower.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        let mut engine = Engine::new(artifact, &options()).expect("an engine");
        engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        check(&case, &format!("{} on the host", case.case.name), &mut tower, &mut engine);
    }
}

/// A sequence with images that left the cache and came back goes on as before, to the last bit.
#[test]
fn pieces_of_prompts_with_images_come_back() {
    let case = &cases()[0];
    let artifact = artifact(case, "host");
    let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
    let mut tower = Tower::open(&artifact, &options()).expect("a tower");
    tower.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    let mut engine = Engine::new(artifact, &options()).expect("an engine");
    engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    for (prompt, images) in images_of(case, &case.case.name, &mut tower).into_iter().enumerate() {
        pieces::check(&case.case.name, &mut engine, &case.case.tokens(prompt), Some(&images));
    }
}

fn on_chip(chip: &str, wanted: &[&str]) {
    for case in cases().into_iter().filter(|case| wanted.contains(&&case.case.name[..])) {
        let artifact = artifact(&case, chip);
        let own = artifact.tower().expect("a tower");
        let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
        let device =
            |artifact: &Artifact| Box::new(Emulated::open(artifact, chip, 1, Default::default()).expect("a chip"));
        let mut tower = Tower::with_device(&artifact, chip, device(&own)).expect("a tower");
        tower.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        let device = device(&artifact);
        let mut engine = Engine::with_device(artifact, chip, device, &options()).expect("an engine");
        engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        check(&case, &format!("{} on {chip}", case.case.name), &mut tower, &mut engine);
    }
}

#[test]
fn images_on_emulated_gfx942() {
    on_chip("gfx942", &["qwen3vl", "3.5-moe", "mistral3", "gemma3"]);
}

#[test]
fn images_on_emulated_gfx1201() {
    on_chip("gfx1201", &["qwen3vlmoe", "3.5", "gemma3"]);
}

/// A prompt of text alone is answered as without a tower.
#[test]
fn text_alone_is_what_it_was() {
    let case = &cases()[0];
    let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
    let mut config = case.case.config.clone();
    config.dtype = DType::F32;
    let buckets = BucketOptions { decode: vec![1], each: 1, tokens: 32, rows: 32 };
    let logits = [None, Some(Vision::of(&config).expect("a tower"))].map(|tower| {
        let options = Options { buckets: buckets.clone(), tower, patches: 64, ..Options::default() };
        let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("an artifact");
        let dir = tempfile::tempdir().expect("a temporary folder");
        compiled.write(&dir.path().join("m.atomc")).expect("a file");
        let artifact = Artifact::open(dir.path().join("m.atomc")).expect("a whole artifact");
        let mut engine = Engine::new(artifact, &self::options()).expect("an engine");
        engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        let sequence = engine.add_sequence();
        let request = Request { sequence, tokens: &case.case.tokens(0), logits: Want::All };
        engine.step(&[request]).expect("a step").of(0).flatten().copied().collect::<Vec<f32>>()
    });
    assert_eq!(logits[0], logits[1]);
}

/// An image whose tokens see each other is in one step, and in one plan.
#[test]
fn images_that_see_themselves_are_not_cut() {
    let case = cases().into_iter().find(|case| case.vision().prompt.together).expect("one");
    let checkpoint = Checkpoint::open(&case.case.dir).expect("a checkpoint");
    let mut engine = Engine::new(artifact(&case, "host"), &options()).expect("an engine");
    engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
    let (tokens, images) = (case.case.tokens(0), case.images(0));
    let sequence = engine.add_sequence();
    engine.see(sequence, Arc::new(images)).expect("images");
    let refused = engine.step(&[Request { sequence, tokens: &tokens[..9], logits: Want::Last }]).err();
    let told = refused.expect("a part of an image").to_string();
    assert_eq!(told, "images: a step ends within one whose tokens see each other");
    // Longer than any plan.
    let grid = Grid { rows: 6, columns: 6 };
    let width = case.width(0);
    let rows = Rows { grid, lines: false, together: true, width, numbers: vec![0.0; grid.patches() * width] };
    engine.see(sequence, Arc::new(Images::of([(1, Arc::new(rows))]))).expect("images");
    let long = vec![1; 40];
    let refused = engine.step(&[Request { sequence, tokens: &long, logits: Want::Last }]).err();
    let told = refused.expect("a long image").to_string();
    assert_eq!(told, "images: one has more tokens than a step of the artifact takes");
    engine.step(&[Request { sequence, tokens: &[1], logits: Want::Last }]).expect("text before it");
}

#[test]
fn frameworks_are_refused_by_name() {
    let artifact = Arc::new(artifact(&cases()[0], "host"));
    let options = HostedOptions {
        device: DeviceChoice::default(),
        threads: 1,
        rank: 0,
        attention: Attention::Own,
        draft: false,
        images: Default::default(),
        stream: Stream::default(),
    };
    let refused = Hosted::open(artifact, &options, None).expect_err("frameworks give no images");
    assert!(refused.to_string().starts_with("target `host` was compiled with --tower"), "{refused}");
}
