//! `--invariant`: the bits of a row do not depend on the other rows in its steps, nor on their
//! number, nor on how a prompt is cut. Each sequence is fed once alone and at once, and then in
//! pieces of any size together with any others, in steps that take every plan.
//!
//! `ATOMC_TEST_DEVICE` and `ATOMC_TEST_TARGET` name a real GPU to ask too.
use atomc::driver::{self, Options};
use atomc::emulated::Emulated;
use atomc_artifact::manifest::{Attention, Launch, Plan, PlanKind};
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, DeviceError, Engine, EngineOptions, Error, Request, Want};
use atomc_tests::random::Random;
use atomc_tests::{Case, SEQUENCES, cases, cases_of_experts, cases_with_states};

/// Tokens of the longest sequence: more than two blocks of any cache, and more than a step takes.
const LONG: usize = 150;
/// Tokens of the cache: those of each sequence twice over, in whole blocks.
const CACHE: usize = 2048;

fn case(name: &str) -> Case {
    let all = [cases(), cases_of_experts(), cases_with_states()];
    let found = all.into_iter().flatten().find(|case| case.name == name);
    let mut case = found.unwrap_or_else(|| panic!("no case {name}"));
    case.config.context = 2 * LONG;
    case
}

fn options(target: &str, invariant: bool) -> Options {
    let buckets = BucketOptions { decode: vec![1, 2, 4], each: 1, tokens: 32, rows: 16 };
    Options { buckets, targets: vec![target.into()], invariant, ..Options::default() }
}

/// One engine for each variant of the host that the CPU runs, or for a GPU.
fn engines(case: &Case, target: &str, device: Option<&str>, invariant: bool) -> Vec<Engine> {
    let options = options(target, invariant);
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    let variants = compiled.manifest.targets[0].variants.iter();
    let open = |variant: &str| {
        let artifact = Artifact::open(&path).expect("a whole artifact");
        let on = |device| EngineOptions { device, threads: 2, cache_tokens: CACHE, ..EngineOptions::default() };
        match (target, device) {
            ("host", _) => Engine::new(artifact, &on(DeviceChoice::Host { variant: Some(variant.into()) })),
            (_, Some(device)) => Engine::new(artifact, &on(device.parse().expect("a device"))),
            (chip, None) => {
                let emulated = Emulated::open(&artifact, chip, 1, Default::default())?;
                Engine::with_device(artifact, chip, Box::new(emulated), &on(DeviceChoice::default()))
            }
        }
    };
    let engines = variants.filter_map(|variant| match open(&variant.name) {
        Err(Error::Device(DeviceError::Lacks { .. })) => None,
        engine => {
            let mut engine = engine.unwrap_or_else(|e| panic!("{}: {e}", case.name));
            engine.load_weights(&checkpoint, &|_, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            Some(engine)
        }
    });
    let engines: Vec<Engine> = engines.collect();
    assert!(!engines.is_empty(), "this CPU runs no variant");
    engines
}

/// The bits of the logits of each token, of a sequence that is alone.
fn alone(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<u32>> {
    let sequence = engine.add_sequence();
    let out = engine.step(&[Request { sequence, tokens, logits: Want::All }]).expect("a step");
    let rows = out.of(0).map(|row| row.iter().map(|v| v.to_bits()).collect()).collect();
    engine.drop_sequence(sequence).expect("a live sequence");
    rows
}

/// The answers of several sequences at once, each in pieces of any size, or all in pieces of one
/// token.
fn among_others(engine: &mut Engine, all: &[Vec<u32>], seed: u64) -> Vec<Vec<Vec<u32>>> {
    let mut random = Random(seed);
    let sequences: Vec<_> = all.iter().map(|_| engine.add_sequence()).collect();
    let (mut from, mut rows) = (vec![0; all.len()], vec![vec![]; all.len()]);
    loop {
        let singles = random.below(2) == 0;
        let mut parts: Vec<(usize, usize)> = vec![];
        for (i, tokens) in all.iter().enumerate().filter(|(i, tokens)| tokens.len() > from[*i]) {
            let size = if singles { 1 } else { 1 + random.below(12) };
            if random.below(4) > 0 {
                parts.push((i, size.min(tokens.len() - from[i])));
            }
        }
        if from.iter().zip(all).all(|(&from, tokens)| from == tokens.len()) {
            break;
        }
        if parts.is_empty() {
            continue;
        }
        let request = |&(i, size): &(usize, usize)| {
            let tokens = &all[i][from[i]..][..size];
            Request { sequence: sequences[i], tokens, logits: Want::All }
        };
        let requests: Vec<Request> = parts.iter().map(request).collect();
        let out = engine.step(&requests).expect("a step");
        for (place, &(i, _)) in parts.iter().enumerate() {
            rows[i].extend(out.of(place).map(|row| row.iter().map(|v| v.to_bits()).collect()));
        }
        for (i, size) in parts {
            from[i] += size;
        }
    }
    for sequence in sequences {
        engine.drop_sequence(sequence).expect("a live sequence");
    }
    rows
}

/// Rows of logits that are other ones among others than alone, of how many.
fn differing(engine: &mut Engine, case: &Case, seeds: std::ops::Range<u64>) -> (usize, usize) {
    // Sequences of the case, a long one, and the beginnings of all as further neighbours.
    let mut random = Random(1);
    let long = (0..LONG).map(|_| random.below(case.config.vocab) as u32).collect();
    let whole: Vec<Vec<u32>> = (0..SEQUENCES).map(|i| case.tokens(i)).chain([long]).collect();
    let parts = whole.iter().map(|tokens| tokens[..tokens.len().div_ceil(2)].to_vec());
    let all: Vec<Vec<u32>> = whole.iter().cloned().chain(parts).collect();
    let lone: Vec<_> = all.iter().map(|tokens| alone(engine, tokens)).collect();
    let mut count = (0, 0);
    for seed in seeds {
        let found = among_others(engine, &all, seed);
        for (found, lone) in found.iter().flatten().zip(lone.iter().flatten()) {
            count.0 += usize::from(found != lone);
            count.1 += 1;
        }
    }
    count
}

fn is_invariant(name: &str, target: &str, seeds: u64) {
    let case = case(name);
    for mut engine in engines(&case, target, None, true) {
        let (differ, all) = differing(&mut engine, &case, 0..seeds);
        assert_eq!(differ, 0, "{name} on {}: of {all} rows of logits", engine.device_name());
    }
}

#[test]
fn on_the_host() {
    let names = ["qwen3", "llama-f32", "llama-odd", "mistral", "qwen2-sliding", "q-fp8-block", "q-int8", "q-cache"];
    let of_experts = ["moe-gpt-oss", "moe-qwen3", "mla-v3", "mla-kimi", "family-minimaxm3", "family-deepseekv4"];
    names.into_iter().chain(of_experts).chain(["hybrid-next"]).for_each(|name| is_invariant(name, "host", 2));
}

/// Without the option bits do depend on neighbours, so the tests above can fail.
#[test]
fn without_the_option_bits_differ() {
    let case = case("qwen3");
    for mut engine in engines(&case, "host", None, false) {
        let (differ, _) = differing(&mut engine, &case, 0..2);
        assert!(differ > 0, "on {}", engine.device_name());
    }
}

#[test]
fn on_gfx942() {
    is_invariant("qwen3", "gfx942", 1);
    is_invariant("qwen2-sliding", "gfx942", 1);
}

#[test]
fn on_gfx1201() {
    is_invariant("qwen3", "gfx1201", 1);
}

#[test]
fn without_the_option_bits_differ_on_gfx942() {
    let case = case("qwen3");
    let mut engines = engines(&case, "gfx942", None, false);
    assert!(differing(&mut engines[0], &case, 0..1).0 > 0);
}

/// Experts, latent attention and recurrent states on GPUs.
#[test]
fn other_mixers_on_gfx942() {
    let names = ["moe-gpt-oss", "mla-v3", "hybrid-next", "family-minimaxm3"];
    names.into_iter().for_each(|name| is_invariant(name, "gfx942", 1));
}

#[test]
fn on_a_real_gpu() {
    let (Ok(device), Ok(target)) = (std::env::var("ATOMC_TEST_DEVICE"), std::env::var("ATOMC_TEST_TARGET")) else {
        return;
    };
    let names = ["qwen3", "qwen2-sliding", "moe-gpt-oss", "mla-v3", "hybrid-next", "q-fp8-block", "llama-f16"];
    for case in names.map(case) {
        for mut engine in engines(&case, &target, Some(&device), true) {
            let (differ, all) = differing(&mut engine, &case, 0..8);
            assert_eq!(differ, 0, "{} on {}: of {all} rows of logits", case.name, engine.device_name());
        }
    }
}

#[test]
fn what_cannot_be_invariant_is_refused() {
    let case = case("qwen3");
    let refused = |options: Options| {
        let error = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect_err("it is refused");
        (error.code, error.message)
    };
    let so = "so no artifact can say that a row's bits are always the same";
    let caller = Options { attention: vec![Attention::Own, Attention::Caller], ..options("host", true) };
    assert_eq!(refused(caller), ("driver::invariant", format!("the caller's attention is not atomc's, {so}")));
}

/// A step of a prompt hands out no hidden rows, and rounds them all the same.
#[test]
fn hidden_rows_are_stored_in_every_step() {
    let case = case("llama3");
    let options = Options { hidden: vec![1], ..options("host", true) };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).expect("it compiles");
    let plans = &compiled.manifest.targets[0].plans;
    assert!(plans.iter().any(|plan| plan.kind == PlanKind::Whole && plan.hidden.is_empty()));
    assert!(plans.iter().any(|plan| plan.kind == PlanKind::Any && !plan.hidden.is_empty()));
}

/// All plans of an invariant artifact do the same by the same schedules, and no schedule is for few
/// rows. The artifact says so, and is another one than without.
#[test]
fn plans_share_their_kernels() {
    let case = case("qwen3");
    let [plain, invariant] = [false, true].map(|invariant| {
        let compiled = driver::compile(&case.config, &options("gfx942", invariant), &mut |_, _, _| ());
        compiled.expect("it compiles").manifest
    });
    assert_ne!(plain.key(), invariant.key());
    let target = &invariant.targets[0];
    assert!(target.invariant && !plain.targets[0].invariant);
    let few = |family: &str| ["matvec", "attend_one", "grouped_matvec"].contains(&family);
    assert!(target.kernels.iter().all(|def| !few(&def.family)));
    assert!(plain.targets[0].kernels.iter().any(|def| few(&def.family)));
    let schedule = |kernel: usize| &target.variants[0].kernels[kernel].schedule;
    let does = |plan: &Plan| -> Vec<_> {
        let kernel = |launch: &Launch| (&target.kernels[launch.kernel].body, schedule(launch.kernel));
        plan.launches.iter().map(kernel).collect()
    };
    assert!(target.plans.iter().all(|plan| does(plan) == does(&target.plans[0])));
}
