//! Models that ranks share out, run by an engine with a device for each.
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc::frontend::Part;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::device::{Device, DeviceBuffer, Launches, Memory, Part as Launched, StepInputs};
use atomc_runtime::manifest::Plan;
use atomc_runtime::pool::Pool;
use atomc_runtime::weights::Rank;
use atomc_runtime::weights::packed::{self, Packed};
use atomc_runtime::{
    Artifact, Checkpoint, DeviceChoice, DeviceError, Engine, EngineOptions, Random, Request, SeqId, StepError, Want,
    greedy,
};
use atomc_tests::{CONTEXT, Case, Mode, cases, cases_of_experts, cases_with_states};

/// An engine of all ranks, on the host or on chips that are emulated.
fn open(case: &Case, part: Part, chip: &str) -> Engine {
    open_on(case, options(part, chip), |device| device)
}

fn options(part: Part, chip: &str) -> Options {
    let buckets = BucketOptions { decode: vec![1, 2], each: 1, tokens: CONTEXT, rows: CONTEXT };
    let Part { ranks, expert_ranks, stages, .. } = part;
    Options { targets: vec![chip.into()], buckets, ranks, expert_ranks, stages, ..Options::default() }
}

/// An engine of all ranks, with devices that are changed in their order.
fn open_on(case: &Case, options: Options, change: impl FnMut(Box<dyn Device>) -> Box<dyn Device>) -> Engine {
    let (chip, devices) = (options.targets[0].as_str(), options.ranks.max(options.expert_ranks) * options.stages);
    let compiled =
        driver::compile(&case.config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let artifact = Artifact::open(&path).expect("a whole artifact");
    let device = |_| -> Box<dyn Device> {
        match chip {
            "host" => DeviceChoice::default().open(&artifact, 1).expect("a device"),
            chip => Box::new(Emulated::open(&artifact, chip, 1, Default::default()).expect("a device")),
        }
    };
    let devices = (0..devices).map(device).map(change).collect();
    let engine_options = EngineOptions { cache_tokens: 8 * CONTEXT, threads: 1, slots: 8, ..EngineOptions::default() };
    let artifact = Artifact::open(&path).expect("a whole artifact");
    let mut engine = Engine::with_devices(artifact, chip, devices, &engine_options).expect("an engine");
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    engine.load_weights(&checkpoint, &|_, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    engine
}

/// The logits of tokens that a sequence gets in pieces.
fn logits(engine: &mut Engine, sequence: SeqId, pieces: &[&[u32]]) -> Vec<f32> {
    let mut all = vec![];
    for &tokens in pieces {
        let request = Request { sequence, tokens, logits: Want::All };
        all.extend(engine.step(&[request]).expect("a step").of(0).flatten());
    }
    all
}

fn pieces(mode: Mode, tokens: &[u32]) -> Vec<&[u32]> {
    let mut rest = tokens;
    let mut piece = |size| {
        let (piece, left) = rest.split_at(size);
        rest = left;
        piece
    };
    mode.pieces(tokens.len()).into_iter().map(&mut piece).collect()
}

fn checked(case: &Case, part: Part, chip: &str, most: f64) {
    let mut engine = open(case, part, chip);
    for mode in [Mode::Prefill, Mode::Decode] {
        let (tokens, sequence) = (case.tokens(1), engine.add_sequence());
        let got = logits(&mut engine, sequence, &pieces(mode, &tokens));
        let share = case.error(mode, 1, got.iter().map(|&v| f64::from(v))) / case.torch_error(mode, 1);
        println!("{} {part:?} on {chip}, {mode:?}: {share:.4}", case.name);
        assert!(share <= most, "{} {part:?} on {chip}, {mode:?}: {share:.2}", case.name);
        engine.drop_sequence(sequence).expect("it is there");
    }
    chooses(&mut engine, case);
}

/// The kernels choose the likeliest token of the whole vocabulary; a sequence that forks goes on as
/// one that was computed alone.
fn chooses(engine: &mut Engine, case: &Case) {
    let tokens = case.tokens(1);
    let (first, last) = tokens.split_at(tokens.len() - 1);
    let whole = engine.add_sequence();
    logits(engine, whole, &[first]);
    let request = |sequence| Request { sequence, tokens: last, logits: Want::Last };
    let forked = engine.fork(whole, first.len()).expect("a fork");
    let missing = &first[forked.tokens..];
    if !missing.is_empty() {
        logits(engine, forked.sequence, &[missing]);
    }
    let row = logits(engine, whole, &[last]);
    let picks = engine.step_greedy(&[request(forked.sequence)]).expect("a step");
    assert_eq!(picks, [Some(greedy(&row))], "{}", case.name);
}

/// Heads that divide or do not, a tied head, a vocabulary that no number divides, biases, a type of
/// its own.
#[test]
fn dense_models_on_the_host() {
    let chosen = ["llama-bias", "llama-gqa-tied", "llama-odd", "llama-f16", "olmo2", "qwen3-bias"];
    let mut run = 0;
    for case in cases().into_iter().filter(|case| chosen.contains(&case.name.as_str())) {
        for ranks in [2, 4] {
            let part = Part { ranks, ..Part::default() };
            if part.of(&case.config).is_ok() {
                checked(&case, part, "host", Case::SHARE);
                run += 1;
            }
        }
    }
    assert!(run >= 5, "{run}");
}

/// In f32, where no rounding chooses another expert.
fn in_f32(chip: &str, chosen: &[(&str, [usize; 3])]) {
    for mut case in cases_of_experts().into_iter().chain(cases_with_states()) {
        case.config.dtype = DType::F32;
        for &(_, [ranks, expert_ranks, stages]) in chosen.iter().filter(|(name, _)| *name == case.name) {
            checked(&case, Part { ranks, expert_ranks, stages, ..Part::default() }, chip, 0.02);
        }
    }
}

#[test]
fn experts_latent_rows_and_recurrent_states_on_the_host() {
    in_f32(
        "host",
        &[
            ("moe-qwen3", [1, 2, 1]),
            ("moe-gpt-oss-mxfp4", [2, 2, 1]),
            ("moe-gpt-oss", [1, 3, 1]),
            ("mla-v3", [1, 2, 1]),
            ("mla-kimi", [2, 1, 1]),
            ("family-minimaxm2", [4, 4, 1]),
            ("hybrid-next", [1, 2, 1]),
            ("hybrid-3.5-moe", [2, 2, 1]),
        ],
    );
}

#[test]
fn ranks_on_emulated_chips() {
    in_f32("gfx942", &[("moe-gpt-oss-mxfp4", [2, 2, 1]), ("hybrid-3.5-moe", [2, 2, 1]), ("moe-qwen3", [1, 1, 2])]);
}

/// Windows and tables of several rotary embeddings, choices that layers share, recurrent states,
/// experts and heads that the ranks of a stage share out.
#[test]
fn stages_on_the_host() {
    in_f32(
        "host",
        &[
            ("moe-qwen3", [1, 1, 2]),
            ("moe-gpt-oss", [2, 2, 2]),
            ("mla-v3", [1, 1, 2]),
            ("hybrid-next", [1, 1, 3]),
            ("hybrid-3.5-moe", [2, 2, 2]),
        ],
    );
    for case in cases().into_iter().filter(|case| ["gemma3", "llama-gqa-tied"].contains(&case.name.as_str())) {
        checked(&case, Part { stages: 2, ..Part::default() }, "host", Case::SHARE);
    }
}

/// The bits of a row do not depend on what else is in a step, also where ranks sum.
#[test]
fn sums_are_invariant() {
    for (name, stages) in [("llama3", 1), ("llama3", 2), ("hybrid-next-dense", 1)] {
        let part = Part { ranks: 2, stages, ..Part::default() };
        let case = cases().into_iter().chain(cases_with_states()).find(|case| case.name == name).expect("a case");
        let mut engine = open_on(&case, Options { invariant: true, ..options(part, "host") }, |device| device);
        let tokens = case.tokens(1);
        let [alone, beside, other] = [0; 3].map(|_| engine.add_sequence());
        let want = logits(&mut engine, alone, &[&tokens]);
        let request = |sequence, tokens| Request { sequence, tokens, logits: Want::All };
        let requests = [request(other, &tokens[1..]), request(beside, &tokens[..])];
        let got: Vec<f32> = engine.step(&requests).expect("a step").of(1).flatten().copied().collect();
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&want));
    }
}

/// A device that fails while it is told to.
struct Failing(Box<dyn Device>, Arc<AtomicBool>);

impl Device for Failing {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn pool(&mut self) -> &mut Pool {
        self.0.pool()
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        self.0.allocate(bytes)
    }

    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.0.adopt(start, bytes) }
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.0.bind(plans, memory) }
    }

    unsafe fn run(&mut self, plan: usize, inputs: StepInputs, times: Option<&mut Launches>) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.0.run(plan, inputs, times) }
    }

    unsafe fn launch(&mut self, part: Launched) -> Result<(), DeviceError> {
        if self.1.load(Relaxed) && part.launches.start > 3 {
            return Err(DeviceError::Lost { device: "rank 1".into(), detail: "unplugged".into() });
        }
        // SAFETY: as above.
        unsafe { self.0.launch(part) }
    }
}

/// The step of a rank that fails ends for all, with its error; the next one is as if there had been
/// none.
#[test]
fn a_rank_that_fails_ends_the_step_of_all() {
    let part = Part { ranks: 2, ..Part::default() };
    let case = cases().into_iter().find(|case| part.of(&case.config).is_ok()).expect("two ranks share some out");
    let (fails, mut number) = (Arc::new(AtomicBool::new(false)), 0);
    let mut engine = open_on(&case, options(part, "host"), |device| {
        number += 1;
        if number == 2 { Box::new(Failing(device, fails.clone())) } else { device }
    });
    let tokens = case.tokens(1);
    let whole = engine.add_sequence();
    let want = logits(&mut engine, whole, &[&tokens]);
    let sequence = engine.add_sequence();
    fails.store(true, Relaxed);
    let request = Request { sequence, tokens: &tokens, logits: Want::All };
    for _ in 0..2 {
        let error = engine.step(&[request]).expect_err("a rank fails");
        assert!(matches!(&error, StepError::Device(DeviceError::Lost { device, .. }) if device == "rank 1"), "{error}");
    }
    fails.store(false, Relaxed);
    assert_eq!(logits(&mut engine, sequence, &[&tokens]), want);
}

/// Packed weights are a target's, as those of the artifact without stages; a stage has some.
#[test]
fn stages_refuse_packed_weights() {
    let case = cases().into_iter().find(|case| case.name == "llama-gqa-tied").expect("a case of two layers");
    let mut engine = open(&case, Part { stages: 2, ..Part::default() }, "host");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weights.safetensors");
    let packed = (&engine.manifest().targets[0], &engine.manifest().tensors);
    let mut pool = Pool::new(1).expect("a thread");
    packed::write(&file, packed, Rank::ONLY, &Random { seed: 1 }, &mut pool).expect("packed weights");
    let (tokens, [before, after]) = (case.tokens(1), [0; 2].map(|_| engine.add_sequence()));
    let want = logits(&mut engine, before, &[&tokens]);
    let refused = engine.load_packed(&Packed::open(&file).expect("packed weights"), &|_, _| ());
    let refused = refused.expect_err("a stage has not all weights").to_string();
    assert!(refused.contains("packed for number of weights"), "{refused}");
    assert_eq!(logits(&mut engine, after, &[&tokens]), want, "the weights are as they were");
}
