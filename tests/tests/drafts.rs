//! Drafts: the rows that a target leaves for one, its steps, and the tokens that it guesses step
//! after step, by the reference interpreter in f64, against what `golden/draft.py` computes in
//! float64.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use atomc::driver;
use atomc::frontend::{self, Asked, Config, Part};
use atomc_config::{Draft, draft};
use atomc_ir::interp::{self, Val};
use atomc_ir::{Op, parse};
use atomc_passes::Bucket;
use atomc_tests::reference::{Piece, Reference, States};
use atomc_tests::{Tensor, tensors};

/// Relative, as for [`golden_interp`](../golden_interp.rs).
const TOLERANCE: f64 = 2e-6;
/// Sequences in each case, and drafts after each token of them.
const SEQUENCES: usize = 2;
const STEPS: usize = 3;

/// A target, its draft, and what they compute.
struct Case {
    name: String,
    config: Config,
    draft: Draft,
    target: Reference,
    step: Reference,
    golden: HashMap<String, Tensor>,
}

fn cases() -> Vec<Case> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let entries = std::fs::read_dir(golden).expect("a folder of cases").map(|e| e.expect("an entry").path());
    let mut dirs: Vec<PathBuf> = entries.filter(|dir| dir.join("draft.safetensors").exists()).collect();
    dirs.sort();
    assert!(dirs.len() >= 8, "only {} cases of drafts", dirs.len());
    dirs.iter().map(|dir| Case::open(dir)).collect()
}

/// The name that a tensor of a draft's own checkpoint has in graphs.
fn renamed(draft: &Draft, stored: &str) -> String {
    let mut all = draft.model.spellings.iter();
    all.find_map(|(from, to)| Some(format!("{to}{}", stored.strip_prefix(from)?))).unwrap_or_else(|| stored.into())
}

impl Case {
    fn open(dir: &Path) -> Case {
        let config = frontend::read(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let (golden, head) = (dir.join("draft.safetensors"), dir.join("head"));
        let mut weights = tensors(&dir.join("model.safetensors"));
        let draft = match std::fs::read_to_string(head.join("config.json")) {
            Ok(text) => draft::eagle3(&text, &config).unwrap_or_else(|e| panic!("{}: {e}", head.display())),
            Err(_) => config.draft().expect("a good configuration").expect("a draft"),
        };
        if head.exists() {
            let own = tensors(&head.join("model.safetensors"));
            weights.extend(own.into_iter().map(|(name, t)| (renamed(&draft, &name), t)));
        }
        let weights: HashMap<_, _> =
            weights.into_iter().map(|(name, t)| (name, interp::Tensor::new(t.shape, t.data))).collect();
        let asked = Asked { draft: Some(&draft), ..Asked::default() };
        let target = frontend::graph_with(&config, Part::default(), asked).expect("a graph");
        let step = frontend::draft_graph(&config, &draft, Part::default()).expect("a graph");
        Case {
            name: dir.file_name().expect("a name").to_string_lossy().into_owned(),
            target: Reference { graph: target, weights: weights.clone() },
            step: Reference { graph: step, weights },
            golden: if golden.exists() { tensors(&golden) } else { HashMap::new() },
            config,
            draft,
        }
    }

    fn tokens(&self, sequence: usize) -> Vec<u32> {
        self.golden[&format!("tokens.{sequence}")].data.iter().map(|&t| t as u32).collect()
    }

    /// Checks that numbers are those of the golden tensor, or of its rows from `first` on.
    fn check(&self, name: &str, first: usize, found: &[f64]) {
        let golden = &self.golden[name];
        let golden = &golden.data[first * golden.shape[1]..][..found.len()];
        let size = golden.iter().map(|v| v * v).sum::<f64>();
        let off = golden.iter().zip(found).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        let error = (off / size).sqrt();
        assert!(error < TOLERANCE, "{} {name} {first}: relative error {error:e}", self.name);
    }

    /// The rows that the target makes of tokens, and its pick after each.
    fn rows(&self, tokens: &[u32]) -> (interp::Tensor<f64>, Vec<i32>) {
        let piece = Piece { sequence: 0, from: 0, tokens };
        let mut results = self.target.results(&mut self.target.fresh(), &[piece]);
        let rows = results.remove("drafted").expect("rows").float().expect("numbers").clone();
        let Some(Val::Int(picks)) = results.remove("picks") else { panic!("no picks") };
        (rows, picks)
    }

    /// The guesses of a draft after the first `behind` tokens, step by step. Each step goes on from
    /// the row of the step before, over a cache that begins with the target's rows.
    fn chain(&self, tokens: &[u32], rows: &interp::Tensor<f64>, behind: usize) -> Vec<Guess> {
        let (vocab, width, mut states) = (self.draft.model.vocab, self.config.hidden, self.step.fresh());
        let before = interp::Tensor::new(vec![behind, width], rows.data[..behind * width].to_vec());
        let piece = Piece { sequence: 0, from: 0, tokens: &tokens[1..=behind] };
        let mut made = step(&self.step, &mut states, piece, &before, (0..behind as i32).collect());
        let mut all = vec![];
        for number in 0..STEPS {
            let last = made.picks.len() - 1;
            let (logits, left) = (made.logits[last * vocab..].to_vec(), made.left.data[last * width..].to_vec());
            let token = self.token(made.picks[last]);
            let piece = Piece { sequence: 0, from: behind + number, tokens: &[token] };
            made = step(&self.step, &mut states, piece, &interp::Tensor::new(vec![1, width], left.clone()), vec![0]);
            all.push(Guess { logits, left, token });
        }
        all
    }

    /// The token of the target that a draft's pick is.
    fn token(&self, pick: i32) -> u32 {
        let own = self.draft.map.as_ref().map_or(0.0, |map| self.step.weights[map].data[pick as usize]);
        (pick + own as i32) as u32
    }
}

/// A draft's guess of a token, the logits that it was picked from, and the row that its step made.
struct Guess {
    logits: Vec<f64>,
    left: Vec<f64>,
    token: u32,
}

/// Logits, rows and picks of a step.
struct Made {
    logits: Vec<f64>,
    left: interp::Tensor<f64>,
    picks: Vec<i32>,
}

fn step(
    reference: &Reference,
    states: &mut States,
    piece: Piece,
    rows: &interp::Tensor<f64>,
    sources: Vec<i32>,
) -> Made {
    let further = States::from([("drafted".into(), Val::Float(rows.clone())), ("sources".into(), Val::Int(sources))]);
    let mut results = reference.results_with(states, &[piece], further);
    let mut number = |name| results.remove(name).expect(name).float().expect("numbers").clone();
    let (logits, left) = (number("logits").data.clone(), number("drafted"));
    let Some(Val::Int(picks)) = results.remove("picks") else { panic!("no picks") };
    Made { logits, left, picks }
}

/// A step over all of a sequence but its first token, with its rows in the opposite order.
fn whole(case: &Case, reference: &Reference, sequence: usize) -> Made {
    let tokens = case.tokens(sequence);
    let (rows, _) = case.rows(&tokens);
    let (n, width) = (tokens.len() - 1, case.config.hidden);
    let backwards = rows.data[..n * width].chunks(width).rev().flatten().copied().collect();
    let backwards = interp::Tensor::new(vec![n, width], backwards);
    let sources = (0..n as i32).rev().collect();
    step(reference, &mut reference.fresh(), Piece { sequence, from: 0, tokens: &tokens[1..] }, &backwards, sources)
}

#[test]
fn rows_and_the_first_draft() {
    for (case, sequence) in cases().iter().flat_map(|case| (0..SEQUENCES).map(move |i| (case, i))) {
        case.check(&format!("drafted.{sequence}"), 0, &case.rows(&case.tokens(sequence)).0.data);
        let made = whole(case, &case.step, sequence);
        case.check(&format!("logits.{sequence}.0"), 0, &made.logits);
        case.check(&format!("left.{sequence}.0"), 0, &made.left.data);
    }
}

#[test]
fn drafts_that_follow_each_other() {
    for case in cases() {
        let tokens = case.tokens(0);
        let (rows, _) = case.rows(&tokens);
        for behind in [1, 8, tokens.len() - 1] {
            for (number, draft) in case.chain(&tokens, &rows, behind).iter().enumerate() {
                case.check(&format!("logits.0.{number}"), behind - 1, &draft.logits);
                case.check(&format!("left.0.{number}"), behind - 1, &draft.left);
                let golden = case.golden["picks.0"].data[(behind - 1) * STEPS + number];
                assert_eq!(draft.token, golden as u32, "{} {behind} {number}", case.name);
            }
        }
    }
}

/// A trained layer drafts what torch says that a greedy answer accepts, round after round.
#[test]
fn acceptance_of_a_trained_layer() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/deepseek-v3-mtp");
    let case = Case::open(&dir);
    let said = std::fs::read_to_string(dir.join("acceptance.json")).expect("a file");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let list = |value: &serde_json::Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("numbers") };
    for problem in said["first"].as_array().expect("problems").iter().take(2) {
        let (prompt, answer) = (list(&problem["prompt"]), list(&problem["answer"]));
        let tokens = [&prompt[..], &answer].concat();
        let (rows, picks) = case.rows(&tokens);
        let (mut at, mut accepted) = (0, vec![]);
        while at < answer.len() - 1 {
            let drafts = case.chain(&tokens, &rows, prompt.len() + at);
            let right = drafts.iter().zip(&answer[at + 1..]).take_while(|(draft, token)| draft.token == **token);
            accepted.push(right.count() as u32);
            at += *accepted.last().expect("a round") as usize + 1;
        }
        let greedy: Vec<u32> = picks[prompt.len() - 1..][..answer.len()].iter().map(|&pick| pick as u32).collect();
        assert_eq!((greedy, accepted), (answer, list(&problem["accepted"])));
    }
}

/// States of a draft are numbered after the target's, and shared parts have one name.
#[test]
fn states_and_shared_weights() {
    for case in cases() {
        let text = case.step.graph.print();
        assert_eq!(parse(&text).expect("what was printed can be read").print(), text, "{}", case.name);
        let states: Vec<String> = case.step.fresh().into_keys().collect();
        assert_eq!(states, [format!("kv{}", case.config.layers.len())], "{}", case.name);
        let names = |reference: &Reference| {
            let ids = reference.graph.ids().filter_map(|id| match reference.graph.op(id) {
                Op::Weight { name } => Some(name.clone()),
                _ => None,
            });
            ids.collect::<std::collections::BTreeSet<String>>()
        };
        let (target, draft) = (names(&case.target), names(&case.step));
        let shared: Vec<&String> = draft.intersection(&target).collect();
        assert!(shared.contains(&&case.config.embedding()), "{}: {shared:?}", case.name);
        let has_head = case.draft.head != atomc_config::Head::Own("draft.lm_head");
        assert_eq!(shared.len(), 1 + usize::from(has_head && !case.config.tied), "{}: {shared:?}", case.name);
    }
}

/// Passes may not change a bit that shows.
#[test]
fn passes_keep_the_meaning() {
    let arch = &atomc_targets::variants("host").expect("a target")[0];
    for case in cases() {
        for bucket in [Bucket::Decode { tokens: 1 }, Bucket::Any { tokens: 64, rows: 64 }] {
            let cx = atomc_passes::Cx { arch, bucket, invariant: false };
            let graph = driver::lower(&case.step.graph, &cx, None).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let reference = Reference { graph, weights: case.step.weights.clone() };
            let made = whole(&case, &reference, 0);
            case.check("logits.0.0", 0, &made.logits);
            case.check("left.0.0", 0, &made.left.data);
        }
    }
}
