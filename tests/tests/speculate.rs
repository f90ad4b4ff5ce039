//! Answers with a draft's guesses are those without, token for token: guesses change how many steps
//! an answer takes, and nothing else.
mod engines;

use std::ops::ControlFlow;
use std::path::Path;

use atomc::driver::Options;
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::Beside;
use atomc_runtime::manifest::{Target, TensorNames};
use atomc_runtime::weights::Rank;
use atomc_runtime::weights::packed::{self, Packed};
use atomc_runtime::{
    Answer, Checkpoint, Chosen, Engine, EngineOptions, Guesses, Params, Pool, Random, Request, Sampling, Want, generate,
};
use atomc_tests::CONTEXT;
use safetensors::SafeTensors;

/// Cases with a draft: in the model's own checkpoint, or in a folder of it.
const CASES: [&str; 8] = [
    "draft-next",
    "draft-3.5",
    "draft-3.5-moe",
    "draft-v3",
    "draft-glm",
    "draft-eagle3",
    "draft-eagle3-options",
    "draft-eagle3-shared",
];
/// Where the head of such a case lies.
const HEAD: &str = "head";
const GUESSES: usize = 3;

struct Model {
    engine: Engine,
    vocab: u32,
}

fn open(name: &str, invariant: bool, dtype: Option<DType>) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let head = dir.join(HEAD);
    of_folders(&dir, head.is_dir().then_some(head.as_path()), (invariant, dtype))
}

/// A model with its draft, with weights in a folder of their own or with the model's.
fn of_folders(dir: &Path, head: Option<&Path>, (invariant, dtype): (bool, Option<DType>)) -> Model {
    let mut config = atomc_config::read(dir).expect("a configuration");
    config.context = config.context.max(CONTEXT);
    config.dtype = dtype.unwrap_or(config.dtype);
    let buckets = BucketOptions { decode: vec![1, 4], each: GUESSES + 1, tokens: 16, rows: 16 };
    let compiling = Options { buckets, invariant, ..Options::default() };
    let options = EngineOptions { cache_tokens: 1024, threads: 2, draft: true, ..EngineOptions::default() };
    let model = engines::Model { config: &config, dir, drafts: true, head };
    let [engine] = engines::engines(&model, compiling, [options]);
    Model { vocab: config.vocab as u32, engine }
}

/// Prompts of several lengths, one longer than the largest plan.
fn prompts(vocab: u32) -> Vec<Vec<u32>> {
    (0..4).map(|i| (0..3 + 9 * i).map(|k| (k * 7 + i * 13 + 1) % vocab).collect()).collect()
}

fn answers(engine: &mut Engine, prompts: &[Vec<u32>], params: &Params, width: usize) -> Vec<Answer> {
    let mut all = vec![None; prompts.len()];
    let keep = |index: usize, answer: Answer| {
        all[index] = Some(answer);
        ControlFlow::Continue(())
    };
    generate::generate_all(engine, prompts, params, width, keep).expect("answers");
    all.into_iter().map(|answer| answer.expect("an answer")).collect()
}

/// Checks that answers are the same with guesses, and returns the counts of these.
fn check(model: &mut Model, sampling: Sampling, width: usize) -> Guesses {
    let prompts = prompts(model.vocab);
    let plain = Params { max_new: 20, sampling, ..Params::default() };
    let guessing = Params { speculate: GUESSES, ..plain.clone() };
    let want = answers(&mut model.engine, &prompts, &plain, width);
    let got = answers(&mut model.engine, &prompts, &guessing, width);
    let mut guesses = Guesses::default();
    for (number, (want, got)) in want.iter().zip(&got).enumerate() {
        assert_eq!((&got.tokens, got.finish), (&want.tokens, want.finish), "prompt {number}");
        assert_eq!(want.guesses.made, 0);
        guesses += got.guesses;
    }
    assert!(guesses.made > 0, "nothing was guessed");
    guesses
}

/// Without rounding that depends on the step, all is the same to the last bit.
#[test]
fn answers_are_those_without_guesses() {
    for name in CASES {
        let mut model = open(name, true, None);
        for width in [1, 3] {
            for temperature in [0.0, 0.8] {
                let sampling = Sampling { temperature, seed: 11, ..Sampling::default() };
                let guesses = check(&mut model, sampling, width);
                println!("{name} {width} {temperature}: {guesses:?}");
            }
        }
    }
}

/// A guess is right where the draft is the model itself would be; here what matters is that wrong
/// ones are taken back: the sequence has the tokens of the answer and no others, and none of them
/// is computed again.
#[test]
fn wrong_guesses_leave_nothing() {
    for name in ["draft-eagle3", "draft-next", "draft-3.5"] {
        wrong_guesses(&mut open(name, true, None).engine);
    }
}

fn wrong_guesses(engine: &mut Engine) {
    let prompt: Vec<u32> = (1..9).collect();
    let alone = engine.add_sequence();
    let want: Vec<Vec<f32>> = [&prompt[..], &[5], &[6], &[7]]
        .iter()
        .map(|tokens| {
            let logits = engine.step(&[Request { sequence: alone, tokens, logits: Want::Last }]).expect("a step");
            logits.last(0).expect("a row").to_vec()
        })
        .collect();
    let sequence = engine.add_sequence();
    engine.step(&[Request { sequence, tokens: &prompt, logits: Want::Last }]).expect("a step");
    // Two of these are wrong.
    let verified = engine.step(&[Request { sequence, tokens: &[5, 6, 9, 9], logits: Want::All }]).expect("a step");
    let rows: Vec<Vec<f32>> = verified.of(0).map(<[f32]>::to_vec).collect();
    assert_eq!(rows[..2], want[1..3]);
    assert_eq!(engine.rewind(sequence, prompt.len() + 2).expect("it goes back"), prompt.len() + 2);
    let guesses = engine.draft(&[Chosen { sequence, tokens: &[6, 7] }], GUESSES).expect("guesses");
    assert_eq!(guesses[0].len(), GUESSES);
    let logits = engine.step(&[Request { sequence, tokens: &[7], logits: Want::Last }]).expect("a step");
    assert_eq!(logits.last(0).expect("a row"), want[3]);
}

/// As many sequences as the largest plan for guesses has, even if the largest for others has more.
#[test]
fn what_one_plan_verifies() {
    let engine = open("draft-eagle3", false, None).engine;
    assert_eq!([0, 1, GUESSES, GUESSES + 1].map(|guesses| engine.verifies_at_once(guesses)), [4, 4, 4, 0]);
}

/// Sequences of a golden draft.
const SEQUENCES: usize = 2;

fn integers(file: &SafeTensors, name: &str) -> (Vec<usize>, Vec<u32>) {
    let tensor = file.tensor(name).expect("a tensor");
    let numbers = tensor.data().as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    (tensor.shape().to_vec(), numbers.collect())
}

/// After every beginning of a sequence the guesses are those that PyTorch makes in float64: in one
/// step, token by token, and where the model's steps verified tokens that were then taken back.
#[test]
fn guesses_are_those_of_torch() {
    for name in CASES {
        let mut model = open(name, false, Some(DType::F32));
        let engine = &mut model.engine;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name).join("draft.safetensors");
        let bytes = std::fs::read(file).expect("a golden draft");
        let golden = SafeTensors::deserialize(&bytes).expect("tensors");
        for number in 0..SEQUENCES {
            let (_, tokens) = integers(&golden, &format!("tokens.{number}"));
            let (shape, picks) = integers(&golden, &format!("picks.{number}"));
            assert_eq!(shape, [tokens.len() - 1, GUESSES]);
            let along = engine.add_sequence();
            for (last, want) in picks.chunks(GUESSES).enumerate() {
                let (known, next) = (&tokens[..=last], &tokens[last + 1..last + 2]);
                let at_once = engine.add_sequence();
                engine.step(&[Request { sequence: at_once, tokens: known, logits: Want::Last }]).expect("a step");
                let guesses = engine.draft(&[Chosen { sequence: at_once, tokens: next }], GUESSES).expect("guesses");
                assert_eq!(guesses[0], want, "{name}, sequence {number}, {last} at once");
                engine.drop_sequence(at_once).expect("a sequence");

                // The last token and two wrong guesses, which are taken back.
                let wrong = [known[last], known[last] ^ 1, known[last] ^ 2];
                engine.step(&[Request { sequence: along, tokens: &wrong, logits: Want::All }]).expect("a step");
                assert_eq!(engine.rewind(along, known.len()).expect("it goes back"), known.len(), "{name}");
                let guesses = engine.draft(&[Chosen { sequence: along, tokens: next }], GUESSES).expect("guesses");
                assert_eq!(guesses[0], want, "{name}, sequence {number}, {last} along");
            }
        }
    }
}

/// What PyTorch says of a trained draft: prompts, greedy answers, and how many drafts each round of
/// them accepts.
#[derive(serde::Deserialize)]
struct Acceptance {
    first: Vec<Problem>,
}

#[derive(serde::Deserialize)]
struct Problem {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    accepted: Vec<usize>,
}

/// Guesses of a round that are right, round after round of an answer.
fn accepted(engine: &mut Engine, problem: &Problem) -> Vec<usize> {
    let Problem { prompt, answer, .. } = problem;
    let sequence = engine.add_sequence();
    let picks = engine.step_picks(&[Request { sequence, tokens: prompt, logits: Want::Last }]).expect("a step");
    assert_eq!(picks[0], answer[..1]);
    let (mut at, mut chosen, mut rounds) = (0, 0..1, vec![]);
    while at + 1 < answer.len() {
        let known = Chosen { sequence, tokens: &answer[chosen] };
        let guesses = engine.draft(&[known], GUESSES).expect("guesses").remove(0);
        let tokens = [&answer[at..=at], &guesses].concat();
        let picks = engine.step_picks(&[Request { sequence, tokens: &tokens, logits: Want::All }]).expect("a step");
        let right = guesses.iter().zip(&answer[at + 1..]).take_while(|(guess, token)| guess == token).count();
        let known = (at + 1 + right + 1).min(answer.len());
        assert_eq!(picks[0][..known - at - 1], answer[at + 1..known]);
        let valid = prompt.len() + at + right + 1;
        let back = engine.rewind(sequence, valid).expect("it goes back");
        assert_eq!(back, valid);
        rounds.push(right);
        (chosen, at) = (at + 1..known, at + right + 1);
    }
    engine.drop_sequence(sequence).expect("a sequence");
    rounds
}

/// Trained drafts guess as well as PyTorch says, round after round.
#[test]
fn acceptance_of_trained_drafts() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let qwen3 = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/qwen3");
    for (target, name) in [(None, "deepseek-v3-mtp"), (Some(&qwen3), "qwen3-eagle3")] {
        let dir = models.join(name);
        let text = std::fs::read_to_string(dir.join("acceptance.json")).expect("what PyTorch says");
        let want: Acceptance = serde_json::from_str(&text).expect("problems");
        let head = target.map(|_| dir.as_path());
        let mut engine = of_folders(target.map_or(&dir, |dir| dir), head, (false, Some(DType::F32))).engine;
        let (mut guessed, mut right) = (0, 0);
        for problem in &want.first {
            let found = accepted(&mut engine, problem);
            assert_eq!(found, problem.accepted, "{name}");
            (guessed, right) = (guessed + GUESSES * found.len(), right + found.iter().sum::<usize>());
        }
        println!("{name}: {right} of {guessed} guesses right");
    }
}

/// Packed weights have the map of a draft's tokens: it guesses as with the weights of its folder.
#[test]
fn packed_weights_have_the_map() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (dir, head) = (here.join("../examples/models/qwen3"), here.join("models/qwen3-eagle3"));
    let mut engine = of_folders(&dir, Some(&head), (true, None)).engine;
    let [model, draft] = [&dir, &head].map(|dir| Checkpoint::open(dir).expect("a checkpoint"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("weights.safetensors");
    let target = engine.target().clone();
    let write = |target: &Target, names: &TensorNames| {
        let source = Beside::new(target, &model, &draft).expect("a draft");
        let mut pool = Pool::new(2).expect("threads");
        packed::write(&file, (target, names), Rank::ONLY, &source, &mut pool).expect("packed weights");
        Packed::open(&file).expect("packed weights")
    };
    let params = Params { max_new: 40, speculate: GUESSES, ..Params::default() };
    let prompts = prompts(512);
    let want = answers(&mut engine, &prompts, &params, 1);
    assert!(want.iter().any(|answer| answer.guesses.right > 0));
    let random = engine.load_weights(&Random { seed: 1 }, &|_, _| ());
    random.expect("random weights, with a map that is none");
    let names = engine.manifest().tensors.clone();
    engine.load_packed(&write(&target, &names), &|_, _| ()).expect("packed weights");
    assert_eq!(answers(&mut engine, &prompts, &params, 1), want);

    let mut mapless = target.clone();
    mapless.draft.as_mut().expect("a draft").map = None;
    let refused = engine.load_packed(&write(&mapless, &names), &|_, _| ()).expect_err("there is no map");
    let number = target.weights.len();
    assert!(refused.to_string().ends_with(&format!("it has no weight {number}, `draft.d2t`")), "{refused}");
}
