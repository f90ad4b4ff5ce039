//! Compiled kernels against float64: every golden case, on every variant that this CPU runs, on
//! emulated GPUs, and where there is one on a real GPU (`tests/gpu.sh`), alone and in a batch, is
//! off by no more than a quarter more than PyTorch's own kernels in the checkpoint's type. On
//! emulated GPUs one sequence of each case is alone, all of it at once, and in a batch the last
//! tokens come one by one. With ATOMC_TEST_LONG it goes through all modes, token by token.
use std::collections::BTreeSet;

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend;
use atomc_ir::DType;
use atomc_passes::{Bucket, BucketOptions, Cx};
use atomc_runtime::{
    Artifact, Checkpoint, DeviceChoice, DeviceError, Engine, EngineOptions, Error, Request, SeqId, Want,
};
use atomc_targets::rows;
use atomc_tests::{CHUNK, CONTEXT, Case, Mode, SEQUENCES, cases, cases_of_experts, cases_with_states, published_cases};

/// The variable that names a real GPU.
const DEVICE: &str = "ATOMC_TEST_DEVICE";

/// The variable that names golden models for it, with commas between; all unless it is set.
const CASES: &str = "ATOMC_TEST_CASES";

/// The variable of the long form.
const LONG: &str = "ATOMC_TEST_LONG";

/// Tokens that come one by one on an emulated chip in the short form. Each runs the same kernels,
/// at another position.
const SINGLE: usize = 4;

/// Tokens of all sequences of a case, in whole blocks.
const CACHE: usize = 6 * CONTEXT;

/// One engine for each variant of the host that the CPU runs, or for the emulated chip.
fn engines(case: &Case, target: &str) -> Vec<Engine> {
    // A bucket smaller than the longest sequence, and fewer rows than its tokens, so that steps
    // take several plans too.
    engines_of(case, target, BucketOptions { decode: vec![1, 4], each: 1, tokens: 32, rows: 16 })
}

fn engines_of(case: &Case, target: &str, buckets: BucketOptions) -> Vec<Engine> {
    let options = Options { buckets, targets: vec![target.into()], ..Options::default() };
    let compiled =
        driver::compile(&case.config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    let open = || Artifact::open(&path).expect("a whole artifact");
    let device = std::env::var(DEVICE).ok();
    let variants = compiled.manifest.targets[0].variants.iter().map(|v| v.name.clone());
    let engines: Vec<Engine> = variants
        .filter_map(|variant| {
            let engine = match target {
                "host" => {
                    let device = DeviceChoice::Host { variant: Some(variant) };
                    Engine::new(
                        open(),
                        &EngineOptions { device, threads: 2, cache_tokens: CACHE, ..EngineOptions::default() },
                    )
                }
                _ if device.is_some() => {
                    let device = device.as_ref().expect("it is").parse().expect("a device");
                    Engine::new(
                        open(),
                        &EngineOptions { device, threads: 2, cache_tokens: CACHE, ..EngineOptions::default() },
                    )
                }
                chip => emulated(open(), chip),
            };
            match engine {
                Err(Error::Device(DeviceError::Lacks { .. })) => None,
                engine => Some(engine.unwrap_or_else(|e| panic!("{}: {e}", case.name))),
            }
        })
        .map(|mut engine| {
            engine.load_weights(&checkpoint, &|_, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            engine
        })
        .collect();
    assert!(!engines.is_empty(), "this CPU runs no variant");
    engines
}

/// Tests run side by side, so each emulates on one thread.
fn emulated(artifact: Artifact, chip: &str) -> Result<Engine, Error> {
    let device = Emulated::open(&artifact, chip, 1, Default::default())?;
    let options = EngineOptions { threads: 1, cache_tokens: CACHE, ..EngineOptions::default() };
    Engine::with_device(artifact, chip, Box::new(device), &options)
}

fn check(
    (case, most): (&Case, f64),
    engine: &Engine,
    mode: Mode,
    sequence: usize,
    logits: &[f32],
    how: &str,
) -> Option<String> {
    let error = case.error(mode, sequence, logits.iter().map(|&v| f64::from(v)));
    let share = error / case.torch_error(mode, sequence);
    let name = (&case.name, engine.device_name());
    (share.is_nan() || share > most)
        .then(|| format!("{} on {}, {how}, {mode:?} {sequence}: {share:.2} of PyTorch's error", name.0, name.1))
}

/// The sizes of the pieces in which a sequence of `n` tokens is fed.
fn pieces(mode: Mode, n: usize, single: usize) -> Vec<usize> {
    match mode {
        Mode::Decode if single < n => std::iter::once(n - single).chain(std::iter::repeat_n(1, single)).collect(),
        _ => mode.pieces(n),
    }
}

/// A sequence alone, fed as the mode says.
fn alone(engine: &mut Engine, tokens: &[u32], mode: Mode, single: usize) -> Vec<f32> {
    let (sequence, mut logits, mut from) = (engine.add_sequence(), vec![], 0);
    for size in pieces(mode, tokens.len(), single) {
        let request = Request { sequence, tokens: &tokens[from..][..size], logits: Want::All };
        logits.extend(engine.step(&[request]).expect("a step").of(0).flatten());
        from += size;
    }
    engine.drop_sequence(sequence).expect("a live sequence");
    logits
}

/// All sequences at once, [`CHUNK`] tokens of each in a step until `single` are left, and then one.
fn together(engine: &mut Engine, tokens: &[Vec<u32>], single: usize) -> Vec<Vec<f32>> {
    let sequences: Vec<SeqId> = tokens.iter().map(|_| engine.add_sequence()).collect();
    let mut logits = vec![vec![]; tokens.len()];
    let mut fed = vec![0; tokens.len()];
    loop {
        let live: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i].len() > fed[i]).collect();
        if live.is_empty() {
            break;
        }
        let size = |left: usize| if left > single { CHUNK.min(left - single) } else { 1 };
        let request = |&i: &usize| {
            let rest = &tokens[i][fed[i]..];
            Request { sequence: sequences[i], tokens: &rest[..size(rest.len())], logits: Want::All }
        };
        let requests: Vec<Request> = live.iter().map(request).collect();
        let out = engine.step(&requests).expect("a step");
        for (place, &i) in live.iter().enumerate() {
            logits[i].extend(out.of(place).flatten());
            fed[i] += requests[place].tokens.len();
        }
    }
    for sequence in sequences {
        engine.drop_sequence(sequence).expect("a live sequence");
    }
    logits
}

fn error_is_that_of_the_type(target: &str, wanted: impl Fn(&Case) -> bool) {
    error_is_at_most(target, cases().into_iter().filter(wanted).collect(), Case::SHARE);
}

/// Models with experts in f32: where two experts are almost equally good, rounding to 16 bits
/// chooses between them, and the rest is as far off as if all were wrong. Trained models, which
/// have decided routers, and trials of kernels test the types of 16 bits.
fn experts_are_right(target: &str, wanted: impl Fn(&Case) -> bool) {
    // Those of several streams have a test of their own on chips.
    let is_here = |case: &Case| target == "host" || !case.has_streams();
    let mut cases: Vec<Case> = cases_of_experts().into_iter().filter(is_here).filter(wanted).collect();
    cases.iter_mut().for_each(|case| case.config.dtype = DType::F32);
    error_is_at_most(target, cases, 0.02);
}

/// Sequences that are also computed alone. An emulated chip takes most of its time for steps of one
/// token, and computes all sequences in a batch, by chunks and by tokens.
fn sequences_alone(target: &str) -> usize {
    if target == "host" || std::env::var_os(DEVICE).is_some() { SEQUENCES } else { 1 }
}

/// The number of a sequence's last tokens that come one by one: all, or in the short form on an
/// emulated chip [`SINGLE`].
fn tokens_alone(target: &str) -> usize {
    let is_emulated = target != "host" && std::env::var_os(DEVICE).is_none();
    if is_emulated && std::env::var_os(LONG).is_none() { SINGLE } else { usize::MAX }
}

/// As a part of the error of PyTorch's kernels in the checkpoint's type.
fn error_is_at_most(target: &str, cases: Vec<Case>, most: f64) {
    let mut faults = vec![];
    for case in cases {
        // Where the base of the embedding depends on how a sequence is cut, it is cut as the mode
        // says.
        let is_dynamic = case.name.contains("dynamic");
        let single = if is_dynamic { usize::MAX } else { tokens_alone(target) };
        let tokens: Vec<Vec<u32>> = (0..SEQUENCES).map(|i| case.tokens(i)).collect();
        for mut engine in engines(&case, target) {
            // The batch has the kernels of the other modes, too.
            let modes: &[Mode] = if single == usize::MAX { &Mode::ALL } else { &[Mode::Prefill] };
            let modes = |i| modes.iter().map(move |&mode| (i, mode));
            for (i, mode) in (0..sequences_alone(target)).flat_map(modes) {
                let logits = alone(&mut engine, &tokens[i], mode, single);
                faults.extend(check((&case, most), &engine, mode, i, &logits, "alone"));
            }
            let chunked = together(&mut engine, &tokens, 0);
            let singles = together(&mut engine, &tokens, single);
            for i in 0..SEQUENCES {
                faults.extend(check((&case, most), &engine, Mode::Chunked, i, &chunked[i], "in a batch by chunks"));
                // Token by token from the first on is the mode `decode`.
                if !is_dynamic {
                    faults.extend(check((&case, most), &engine, Mode::Decode, i, &singles[i], "in a batch by tokens"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn host() {
    error_is_that_of_the_type("host", |_| true);
}

/// Checkpoints as they are published, in f32, as codes of rows in 16 bits are far from float64.
#[test]
fn published_host() {
    let (plain, mut others): (Vec<Case>, Vec<Case>) =
        published_cases().into_iter().partition(|case| case.config.dtype == DType::F32);
    others.iter_mut().for_each(|case| case.config.dtype = DType::F32);
    error_is_at_most("host", plain, Case::SHARE);
    error_is_at_most("host", others, 0.02);
}

/// Models with a recurrent state, in f32 as those with experts, which two of them have. Rows that
/// become codes do so in the checkpoint's type.
fn states_are_right(target: &str, wanted: impl Fn(&Case) -> bool) {
    let plain = cases_with_states().into_iter().filter(|case| case.config.quantised.is_none());
    let mut cases: Vec<Case> = plain.filter(wanted).collect();
    cases.iter_mut().for_each(|case| case.config.dtype = DType::F32);
    error_is_at_most(target, cases, 0.02);
}

#[test]
fn states_on_host() {
    states_are_right("host", |_| true);
    let dense = cases_with_states().into_iter().filter(|case| !case.has_experts());
    error_is_at_most("host", dense.collect(), Case::SHARE);
}

#[test]
fn states_on_gfx942() {
    states_are_right("gfx942", Case::has_experts);
}

#[test]
fn states_on_gfx1201() {
    let dense = cases_with_states().into_iter().filter(|case| !case.has_experts());
    error_is_at_most("gfx1201", dense.collect(), Case::SHARE);
}

/// Prompts of a model whose states have rows that decay apart, in chunks, which plans of 128 tokens
/// have for keys of bf16.
fn prompts_in_chunks(target: &str) {
    let case = cases_with_states().into_iter().find(|case| case.name == "family-kimilinear");
    let case = case.expect("the case is there");
    for mut engine in engines_of(&case, target, BucketOptions { decode: vec![1], each: 1, tokens: 128, rows: 128 }) {
        for i in 0..SEQUENCES {
            let logits = alone(&mut engine, &case.tokens(i), Mode::Prefill, SINGLE);
            let fault = check((&case, Case::SHARE), &engine, Mode::Prefill, i, &logits, "in chunks");
            assert_eq!(fault, None);
        }
    }
}

#[test]
fn prompts_in_chunks_on_gfx942() {
    prompts_in_chunks("gfx942");
}

#[test]
fn prompts_in_chunks_on_gfx1201() {
    prompts_in_chunks("gfx1201");
}

#[test]
fn experts_on_host() {
    experts_are_right("host", |_| true);
}

/// Logits of the tokens of a sequence, from one on, fed in pieces of this size.
fn fed(engine: &mut Engine, sequence: SeqId, tokens: &[u32], size: usize) -> Vec<f32> {
    let step = |tokens| {
        let out = engine.step(&[Request { sequence, tokens, logits: Want::All }]).expect("a step");
        out.of(0).flatten().copied().collect::<Vec<f32>>()
    };
    tokens.chunks(size).flat_map(step).collect()
}

/// Checks the logits of a sequence's tokens from one on against float64.
fn is_near(case: &Case, sequence: usize, (from, logits): (usize, &[f32]), how: &str) {
    let want = &case.reference(Mode::Prefill, sequence)[from * case.config.vocab..];
    assert_eq!(want.len(), logits.len(), "{} {how}", case.name);
    let size = want.iter().map(|v| v * v).sum::<f64>();
    let error = want.iter().zip(logits).map(|(v, &own)| (v - f64::from(own)).powi(2)).sum::<f64>();
    let error = (error / size).sqrt();
    assert!(error < 1e-5, "{} {sequence} {how}: relative error {error:e}", case.name);
}

/// Rows of blocks of tokens in f32: in pieces that end inside blocks, behind guesses that are taken
/// back after each token, and in a sequence that begins like another.
fn rows_of_blocks_are_right(target: &str) {
    let mut cases: Vec<Case> = cases_of_experts().into_iter().filter(Case::has_streams).collect();
    assert!(cases.len() >= 2, "golden models of several streams");
    cases.iter_mut().for_each(|case| case.config.dtype = DType::F32);
    for case in &cases {
        let tokens = case.tokens(0);
        for mut engine in engines(case, target) {
            // An emulated chip takes most of its time for steps of few tokens.
            let alone = tokens_alone(target).min(tokens.len());
            let sizes = if alone == tokens.len() { &[tokens.len(), 5, 1][..] } else { &[tokens.len(), 5] };
            for &size in sizes {
                let sequence = engine.add_sequence();
                let logits = fed(&mut engine, sequence, &tokens, size);
                is_near(case, 0, (0, &logits), &format!("in pieces of {size}"));
                engine.drop_sequence(sequence).expect("a live sequence");
            }
            let guessing = engine.add_sequence();
            let begin = tokens.len() - alone;
            let mut logits = fed(&mut engine, guessing, &tokens[..begin], tokens.len());
            for (from, token) in tokens.iter().enumerate().skip(begin) {
                let wrong: Vec<u32> = (1..5).map(|i| (token + i) % case.config.vocab as u32).collect();
                fed(&mut engine, guessing, &wrong, wrong.len());
                assert_eq!(engine.rewind(guessing, from).expect("a sequence"), from, "{}", case.name);
                logits.extend(fed(&mut engine, guessing, &[*token], 1));
            }
            is_near(case, 0, (0, &logits), "behind guesses");
            engine.drop_sequence(guessing).expect("a live sequence");
            let first = engine.add_sequence();
            fed(&mut engine, first, &tokens[..tokens.len() - 3], tokens.len());
            let fork = engine.fork(first, tokens.len() - 5).expect("a sequence");
            // Whole pages are shared, which have 64 tokens on GPUs.
            let least = (tokens.len() - 5) / 64 * 64;
            assert!(fork.tokens >= least, "{}: {} tokens are shared", case.name, fork.tokens);
            let logits = fed(&mut engine, fork.sequence, &tokens[fork.tokens..], 7);
            is_near(case, 0, (fork.tokens, &logits), "behind the beginning of another");
            // The first one goes on as if nobody had begun like it.
            let logits = fed(&mut engine, first, &tokens[tokens.len() - 3..], 1);
            is_near(case, 0, (tokens.len() - 3, &logits), "beside one that began like it");
        }
    }
}

#[test]
fn rows_of_blocks_on_host() {
    rows_of_blocks_are_right("host");
}

#[test]
fn rows_of_blocks_on_gfx942() {
    rows_of_blocks_are_right("gfx942");
}

#[test]
fn rows_of_blocks_on_gfx1201() {
    rows_of_blocks_are_right("gfx1201");
}

/// Models in f32 whose logits are near those of float64 in each number.
fn each_logit_is_near(target: &str, name: &str) {
    let all = [cases(), cases_of_experts()].concat();
    let mut cases: Vec<Case> = all.into_iter().filter(|case| case.name.starts_with(name)).collect();
    assert!(cases.len() >= 3, "golden models of {name}");
    cases.iter_mut().for_each(|case| case.config.dtype = DType::F32);
    let mut far = vec![];
    for case in cases {
        for mut engine in engines(&case, target) {
            let modes: &[Mode] = if target == "host" { &Mode::ALL } else { &[Mode::Chunked, Mode::Prefill] };
            for (sequence, &mode) in (0..SEQUENCES).flat_map(|i| modes.iter().map(move |mode| (i, mode))) {
                let single = tokens_alone(target);
                let logits = alone(&mut engine, &case.tokens(sequence), mode, single);
                let want = case.reference(mode, sequence);
                let error = want.iter().zip(&logits).map(|(v, &own)| (v - f64::from(own)).abs()).fold(0.0, f64::max);
                let device = engine.device_name();
                println!("{} on {device}, {mode:?} {sequence}: off by {error:.1e}", case.name);
                if want.len() != logits.len() || error.is_nan() || error > 1e-5 {
                    far.push(format!("{} on {device}, {mode:?} {sequence}: off by {error:e}", case.name));
                }
            }
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

#[test]
fn gemma4_on_host() {
    each_logit_is_near("host", "family-gemma4");
}

#[test]
fn gemma4_on_gfx942() {
    each_logit_is_near("gfx942", "family-gemma4");
}

#[test]
fn gemma4_on_gfx1151() {
    each_logit_is_near("gfx1151", "family-gemma4");
}

#[test]
fn gemma4_on_gfx1201() {
    each_logit_is_near("gfx1201", "family-gemma4");
}

#[test]
fn experts_on_gfx942() {
    let families = bringing_kernels("gfx942", &cases_of_experts(), |_| true);
    experts_are_right("gfx942", |case| !case.is_of_family() || families.contains(&case.name));
}

#[test]
fn experts_on_gfx1201() {
    let families = bringing_kernels("gfx1201", &cases_of_experts(), |_| true);
    experts_are_right("gfx1201", |case| !case.is_of_family() || families.contains(&case.name));
}

#[test]
fn gfx942() {
    let is_long = std::env::var_os(LONG).is_some();
    dense_on("gfx942", |case| is_long && runs_on_gpus(case) || with_kernels_of_its_own(case));
}

/// Models without experts on a chip: those that are wanted, and families that bring a kernel.
fn dense_on(chip: &str, wanted: impl Fn(&Case) -> bool) {
    let families = bringing_kernels(chip, &cases(), &wanted);
    error_is_that_of_the_type(chip, |case| match case.is_of_family() {
        true => families.contains(&case.name),
        false => wanted(case),
    });
}

/// The cases of families that bring a kernel to a chip: none that runs there has it, and no family
/// before.
fn bringing_kernels(chip: &str, all: &[Case], runs: impl Fn(&Case) -> bool) -> BTreeSet<String> {
    let (families, others): (Vec<&Case>, Vec<&Case>) = all.iter().partition(|case| case.is_of_family());
    let mut seen: BTreeSet<String> =
        others.into_iter().filter(|case| runs(case)).flat_map(|c| kernels(c, chip)).collect();
    let brings = |case: &&Case| {
        let own = kernels(case, chip);
        let new = !own.is_subset(&seen);
        seen.extend(own);
        new
    };
    families.into_iter().filter(brings).map(|case| case.name.clone()).collect()
}

/// The kernels of a case on a chip, whatever their sizes: of a number only counts whether it is
/// zero.
fn kernels(case: &Case, chip: &str) -> BTreeSet<String> {
    let arch = &atomc_targets::variants(chip).expect("a target")[0];
    let graph = frontend::graph(&case.config).expect("a graph");
    let buckets = [Bucket::Decode { tokens: 1 }, Bucket::Decode { tokens: 4 }, Bucket::Any { tokens: 32, rows: 16 }];
    let of = |bucket| {
        let cx = Cx { arch, bucket, invariant: false };
        let text = driver::lower(&graph, &cx, None).unwrap_or_else(|e| panic!("{}: {e}", case.name)).print();
        let mut all = vec![];
        let mut family = "";
        for line in text.lines() {
            match line.trim_start() {
                own if own.contains("{family = ") => family = family_of(own),
                own if own.starts_with("graph @k") => all.push(format!("{family} {}", without_sizes(own))),
                own if line.starts_with("      ") => all.last_mut().expect("a body").push_str(&without_sizes(own)),
                _ => {}
            }
        }
        all
    };
    buckets.into_iter().flat_map(of).collect()
}

/// The family that a kernel's line names.
fn family_of(line: &str) -> &str {
    line.split("{family = ").nth(1).and_then(|rest| rest.split('}').next()).unwrap_or_default()
}

/// A line of a graph with each number as 0 or N. Digits of names stay.
fn without_sizes(line: &str) -> String {
    let (mut made, mut number) = (String::new(), String::new());
    for c in line.chars().chain(['\n']) {
        let begins = number.is_empty() && !made.ends_with(|c: char| c.is_ascii_alphanumeric() || "%_@".contains(c));
        if c.is_ascii_digit() && (begins || !number.is_empty()) || !number.is_empty() && ".e-".contains(c) {
            number.push(c);
            continue;
        }
        if !number.is_empty() {
            made.push(if number.contains(|c: char| ('1'..='9').contains(&c)) { 'N' } else { '0' });
            number.clear();
        }
        made.push(c);
    }
    made
}

/// Leaves out cases that differ from others only in numbers of their rotary embedding or in names:
/// the host tests those, and gfx942 has their kernels in other cases.
fn with_kernels_of_its_own(case: &Case) -> bool {
    let numbers = ["linear", "dynamic", "yarn", "-short", "tied", "sharded", "nowindow", "scalar", "headdim"];
    runs_on_gpus(case) && !numbers.iter().any(|part| case.name.contains(part))
}

#[test]
fn gfx1201() {
    dense_on("gfx1201", with_kernels_of_its_own);
}

/// One model in each type, on chips that only differ from the others in their instructions.
fn in_each_type(case: &Case) -> bool {
    ["qwen3", "llama-f16", "llama-f32"].contains(&case.name.as_str())
}

#[test]
fn gfx950() {
    let codes = ["q-mxfp4", "q-mxfp4-wide", "q-mxfp8-wide", "q-fp8-block", "q-int4-32"];
    error_is_that_of_the_type("gfx950", |case| in_each_type(case) || codes.contains(&case.name.as_str()));
}

/// What GPUs have no kernels for is refused by the field of the configuration.
#[test]
fn gpus_refuse_by_the_field() {
    let refused = [("q-cache-latent", "kernels of gfx942 write no latent rows with a scale of the cache")];
    for (name, says) in refused {
        let case = cases().into_iter().find(|case| case.name == name).expect("a case");
        let options = Options { targets: vec!["gfx942".into()], ..Options::default() };
        let fault = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect_err("a fault").to_string();
        assert_eq!(fault, format!("quantization_config: {says}"));
        assert!(!runs_on_gpus(&case), "{name}");
    }
}

/// Whether GPUs have kernels for a case: they write no latent rows with a scale.
fn runs_on_gpus(case: &Case) -> bool {
    !case.name.contains("cache-latent")
}

/// Scales of 16 columns of codes of four bits, on a chip of which each lane has 16 columns.
#[test]
fn gfx1151() {
    let wanted = |case: &Case| case.name.contains("nvfp4");
    error_is_that_of_the_type("gfx1151", wanted);
}

#[test]
fn gfx90a() {
    error_is_that_of_the_type("gfx90a", in_each_type);
}

#[test]
fn gfx1100() {
    error_is_that_of_the_type("gfx1100", in_each_type);
}

/// Chips that have another chip's kernels with other numbers run one model.
#[test]
fn siblings() {
    let siblings: Vec<&str> = rows().iter().filter(|row| row.sibling.is_some()).map(|row| row.name).collect();
    assert!(siblings.len() >= 6, "{siblings:?}");
    for chip in siblings {
        error_is_that_of_the_type(chip, |case| case.name == "qwen3");
    }
}

#[test]
#[ignore = "needs a GPU, which ATOMC_TEST_DEVICE names, and its target, ATOMC_TEST_TARGET: tests/gpu.sh"]
fn a_gpu() {
    let target = std::env::var("ATOMC_TEST_TARGET").expect("the name of a target");
    assert!(std::env::var_os(DEVICE).is_some(), "{DEVICE} names no device");
    let named = std::env::var(CASES).unwrap_or_default();
    let wanted = |case: &Case| named.is_empty() || named.split(',').any(|name| name == case.name);
    for name in named.split(',').filter(|name| !name.is_empty()) {
        let all = [cases(), cases_of_experts(), cases_with_states()];
        assert!(all.iter().flatten().any(|case| case.name == name), "{CASES}: there is no golden model `{name}`");
    }
    error_is_that_of_the_type(&target, wanted);
    experts_are_right(&target, wanted);
    states_are_right(&target, wanted);
}
