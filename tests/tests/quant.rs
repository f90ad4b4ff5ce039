//! Schemes of `--quant` by one word, for every family: golden models of floats compile for the host
//! with each of them, their logits stay near those of floats, and what is left as it is is told.
use atomc::driver::{self, Options};
use atomc::frontend;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Request, Want};
use atomc_tests::{CONTEXT, Case, Mode, cases, cases_of_experts, cases_with_states};

/// Schemes, and the most that logits may be off as a part of their root mean square.
const SCHEMES: [(&str, f64); 10] = [
    ("fp8", 0.35),
    ("fp8-block", 0.35),
    ("fp8-weights", 0.3),
    ("int8", 0.3),
    ("int8-weights", 0.2),
    ("int4-g32", 0.7),
    ("int4-g64", 0.7),
    ("int4-g128", 0.7),
    ("mxfp4", 0.7),
    ("mxfp4-rows", 0.85),
];

/// What logits are off at least that have nothing to do with those of floats. Where codes change
/// the choice of an expert or of positions, what follows is another number.
const UNRELATED: f64 = 1.1;

/// The variable of the long form: every scheme for every case.
const LONG: &str = "ATOMC_TEST_LONG";

/// The variable that names cases, with commas between; all unless it is set.
const CASES: &str = "ATOMC_TEST_CASES";

fn floats() -> Vec<Case> {
    let named = std::env::var(CASES).ok();
    let all = [cases(), cases_of_experts(), cases_with_states()].concat().into_iter();
    let wanted = |case: &Case| match &named {
        Some(named) => named.split(',').any(|name| name == case.name),
        None => true,
    };
    all.filter(|case| case.config.quantised.is_none() && wanted(case)).collect()
}

/// Of the first sequence, how far logits are off those of floats.
fn off(case: &Case) -> Result<f64, String> {
    let buckets = BucketOptions { decode: vec![], each: 1, tokens: 64, rows: 64 };
    let options = Options { buckets, targets: vec!["host".into()], ..Options::default() };
    let compiled = driver::compile(&case.config, &options, &mut |_, _, _| ()).map_err(|e| e.to_string())?;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let artifact = Artifact::open(&path).expect("a whole artifact");
    let options = EngineOptions { threads: 2, cache_tokens: 6 * CONTEXT, ..EngineOptions::default() };
    let mut engine = Engine::new(artifact, &options).map_err(|e| e.to_string())?;
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    engine.load_weights(&checkpoint, &|_, _| ()).map_err(|e| e.to_string())?;
    let (sequence, tokens) = (engine.add_sequence(), case.tokens(0));
    let request = Request { sequence, tokens: &tokens, logits: Want::All };
    let made = engine.step(&[request]).map_err(|e| e.to_string())?;
    let logits: Vec<f64> = made.of(0).flatten().map(|&v| f64::from(v)).collect();
    let reference = case.reference(Mode::Prefill, 0);
    let size = (reference.iter().map(|v| v * v).sum::<f64>() / reference.len() as f64).sqrt();
    Ok(case.error(Mode::Prefill, 0, logits.into_iter()) / size)
}

/// The case with rules, in a type.
fn quantised(case: &Case, dtype: DType, rules: &[&str]) -> Result<Case, String> {
    let mut case = case.clone();
    case.config.dtype = dtype;
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    case.config.quantise(&rules).map_err(|e| e.to_string())?;
    Ok(case)
}

/// Schemes that a case is computed with: one, in turn, or with ATOMC_TEST_LONG all.
fn tried(number: usize) -> impl Iterator<Item = (&'static str, f64)> {
    let all = std::env::var_os(LONG).is_some();
    let is_tried = move |place: usize| all || number % SCHEMES.len() == place;
    SCHEMES.into_iter().enumerate().filter(move |(place, _)| is_tried(*place)).map(|(_, scheme)| scheme)
}

/// Whether the files have the experts of a layer in one tensor, where plans may have each in its
/// own.
fn is_whole(case: &Case) -> bool {
    case.weights().keys().any(|name| name.ends_with(".experts.gate_up_proj"))
}

#[test]
fn every_family_by_one_word() {
    let mut faults = vec![];
    for (number, case) in floats().into_iter().enumerate() {
        let choices = if case.has_experts() { 4.0 } else { 1.0 };
        for (scheme, most) in tried(number) {
            let most = f64::min(most * choices, UNRELATED);
            // In turn in f32 and in the model's own type.
            let dtype = if number % 2 == 0 { DType::F32 } else { case.config.dtype };
            match quantised(&case, dtype, &[scheme]).and_then(|case| off(&case)) {
                // A limit: squares may not begin where an expert does in a tensor of all.
                Err(e) if scheme == "fp8-block" && is_whole(&case) => {
                    assert!(e.contains("lacks") && e.contains(".experts.0."), "{}: {e}", case.name);
                }
                Err(e) => faults.push(format!("{} {scheme}: {e}", case.name)),
                Ok(off) if off.is_nan() || off > most => {
                    faults.push(format!("{} {scheme}: off by {off:.3}", case.name))
                }
                Ok(off) => println!("{} {scheme}: off by {off:.4}", case.name),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is left, in the words of the message.
fn left(name: &str, rules: &[&str]) -> Result<Vec<String>, String> {
    let case = floats().into_iter().find(|case| case.name == name).expect("a case");
    let left = frontend::left(&quantised(&case, case.config.dtype, rules)?.config).map_err(|e| e.to_string())?;
    Ok(left.into_iter().map(|(module, why)| format!("{module}: {why}")).collect())
}

#[test]
fn what_is_left_is_told() {
    let told = |name: &str, rules: &[&str]| left(name, rules).unwrap_or_else(|e| panic!("{name}: {e}"));
    let heads = "multiplied head by head, for which no codes are made";
    let gate = "no scheme is for routers, gates and weights of streams";
    let v3 = told("mla-v3", &["fp8"]);
    let kv_b = format!("model.layers.*.self_attn.kv_b_proj: {heads}");
    assert_eq!(v3, [format!("model.layers.*.mlp.gate: {gate}"), kv_b]);
    assert_eq!(told("mla-v3", &["*.kv_b_proj=none", "fp8"]).len(), 1);
    let columns = "stored as columns, of which no codes are made";
    assert_eq!(told("moe-gpt-oss", &["mxfp4"])[0], format!("model.layers.*.mlp.experts: {columns}"));
    let v4 = told("family-deepseekv4", &["fp8"]);
    assert!(v4.contains(&format!("model.layers.*.attn.wo_a: {heads}")), "{v4:?}");
    assert!(v4.iter().any(|line| line.ends_with("floats in releases of the family; a rule may name it")), "{v4:?}");
    let odd = told("llama-odd", &["int4-g32"]);
    assert!(
        odd.contains(&"model.layers.*.mlp.down_proj: groups of 32 columns do not divide rows of 90".into()),
        "{odd:?}"
    );
    assert_eq!(told("llama2", &["fp8"]), [""; 0]);
    assert_eq!(told("llama-odd", &["*.q_proj=fp8"]), [""; 0], "only a scheme for all products leaves some");
}

#[test]
fn a_rule_that_names_a_module_is_followed_or_refused() {
    let refused = [
        (
            "mla-v3",
            "*.kv_b_proj=fp8",
            "model.layers.0.self_attn.kv_b_proj: multiplied head by head, for which no codes are made",
        ),
        ("moe-gpt-oss", "*.experts=mxfp4", "model.layers.0.mlp.experts: stored as columns, of which no codes are made"),
        (
            "llama-odd",
            "*.down_proj=int4-g32",
            "model.layers.0.mlp.down_proj: groups of 32 columns do not divide rows of 90",
        ),
    ];
    for (name, rule, says) in refused {
        assert_eq!(left(name, &[rule, "fp8"]), Err(says.into()), "{name} {rule}");
    }
}
