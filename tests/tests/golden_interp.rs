//! What a configuration means is decided by transformers: the reference interpreter on each frontend's graph, in f64,
//! against the logits that transformers computes in float64.
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use atomc::frontend::{self, Config};
use atomc_ir::Graph;
use atomc_ir::interp::{self, BatchState, CacheState, Cx, Tensor, Val};
use safetensors::{Dtype, SafeTensors};

/// The references differ from ours in the last bits of the f32 inverse frequencies alone, which powers are taken of in f32
/// there and in f64 here.
const TOLERANCE: f64 = 2e-6;
const CHUNK: usize = 8;

fn cases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let entries = std::fs::read_dir(dir).expect("tests/golden exists").map(|e| e.expect("an entry").path());
    let mut cases: Vec<_> = entries.filter(|p| p.join("golden.safetensors").exists()).collect();
    cases.sort();
    assert!(cases.len() >= 24, "only {} golden cases", cases.len());
    cases
}

/// Every tensor of a safetensors file, widened.
fn tensors(file: &Path, into: &mut HashMap<String, Tensor<f64>>) {
    let bytes = std::fs::read(file).expect("a readable file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    for (name, t) in file.tensors() {
        let half = |f: fn(u16) -> f64| t.data().chunks_exact(2).map(|b| f(u16::from_le_bytes([b[0], b[1]]))).collect();
        let word = |f: fn([u8; 4]) -> f64| t.data().chunks_exact(4).map(|b| f([b[0], b[1], b[2], b[3]])).collect();
        let data = match t.dtype() {
            Dtype::BF16 => half(|b| half::bf16::from_bits(b).to_f64()),
            Dtype::F16 => half(|b| half::f16::from_bits(b).to_f64()),
            Dtype::F32 => word(|b| f32::from_le_bytes(b) as f64),
            Dtype::I32 => word(|b| i32::from_le_bytes(b) as f64),
            other => panic!("{name} is {other:?}"),
        };
        into.insert(name, Tensor::new(t.shape().to_vec(), data));
    }
}

struct Case {
    name: String,
    graph: Graph,
    layers: usize,
    weights: HashMap<String, Tensor<f64>>,
    golden: HashMap<String, Tensor<f64>>,
}

/// Consecutive tokens of one sequence.
struct Piece<'a> {
    sequence: usize,
    from: usize,
    tokens: &'a [i32],
}

impl Case {
    fn open(dir: &Path) -> Case {
        let config = frontend::read(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let (mut weights, mut golden) = (HashMap::new(), HashMap::new());
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
            if name.starts_with("model") && name.ends_with(".safetensors") {
                tensors(&path, &mut weights);
            }
        }
        tensors(&dir.join("golden.safetensors"), &mut golden);
        let graph = frontend::graph(&config).expect("a graph");
        let name = dir.file_name().expect("a name").to_string_lossy().into_owned();
        Case { name, graph, layers: config.layers, weights, golden }
    }

    fn tokens(&self, sequence: usize) -> Vec<i32> {
        self.golden[&format!("tokens.{sequence}")].data.iter().map(|&t| t as i32).collect()
    }

    fn fresh(&self) -> Vec<CacheState<f64>> {
        vec![CacheState::default(); self.layers]
    }

    /// Logits of every token of a step, piece after piece.
    fn step(&self, caches: &mut Vec<CacheState<f64>>, pieces: &[Piece]) -> Vec<f64> {
        let (mut ids, mut lengths, mut batch) = (vec![], vec![], BatchState::default());
        for p in pieces {
            ids.extend(p.tokens);
            for i in 0..p.tokens.len() {
                lengths.push((p.from + p.tokens.len()) as i32);
                batch.positions.push((p.from + i) as i32);
                batch.sequences.push(p.sequence as i32);
            }
        }
        let n = ids.len();
        let mut params: HashMap<String, Val<f64>> = HashMap::from([
            ("ids".into(), Val::Int(ids)),
            ("positions".into(), Val::Int(batch.positions.clone())),
            ("lengths".into(), Val::Int(lengths)),
            ("rows".into(), Val::Int((0..n as i32).collect())),
            ("batch".into(), Val::Batch(batch)),
        ]);
        params.extend(caches.drain(..).enumerate().map(|(i, c)| (format!("kv{i}"), Val::Cache(c))));
        let weight = |name: &str| self.weights.get(name).cloned();
        let out = interp::run(&self.graph, Cx { tokens: n, rows: n }, &params, &weight)
            .unwrap_or_else(|e| panic!("{}: {e}", self.name));
        caches.extend(out[1..].iter().map(|c| c.cache().expect("a cache state").clone()));
        out[0].float().expect("logits").data.clone()
    }

    /// One sequence, alone, fed in pieces of these sizes.
    fn alone(&self, sequence: usize, sizes: impl Iterator<Item = usize>) -> Vec<f64> {
        let (tokens, mut caches, mut from, mut logits) = (self.tokens(sequence), self.fresh(), 0, vec![]);
        for size in sizes {
            let end = (from + size).min(tokens.len());
            logits.extend(self.step(&mut caches, &[Piece { sequence, from, tokens: &tokens[from..end] }]));
            from = end;
        }
        logits
    }

    fn check(&self, mode: &str, sequence: usize, logits: &[f64]) {
        let golden = &self.golden[&format!("{mode}.{sequence}")].data;
        assert_eq!(golden.len(), logits.len(), "{} {mode}.{sequence}", self.name);
        let square = |v: f64| v * v;
        let off: f64 = golden.iter().zip(logits).map(|(a, b)| square(a - b)).sum();
        let size: f64 = golden.iter().map(|&a| square(a)).sum();
        let error = (off / size).sqrt();
        assert!(error < TOLERANCE, "{} {mode}.{sequence}: relative error {error:e}", self.name);
    }
}

#[test]
fn prefill_decode_and_chunks() {
    for case in cases().iter().map(|dir| Case::open(dir)) {
        for sequence in 0..3 {
            let n = case.tokens(sequence).len();
            let prompt = n.div_ceil(3);
            case.check("prefill", sequence, &case.alone(sequence, [n].into_iter()));
            let one_by_one = std::iter::once(prompt).chain(std::iter::repeat_n(1, n - prompt));
            case.check("decode", sequence, &case.alone(sequence, one_by_one));
            case.check("chunked", sequence, &case.alone(sequence, std::iter::repeat_n(CHUNK, n.div_ceil(CHUNK))));
        }
    }
}

/// Three sequences of unequal lengths, a chunk of each that has one left in every step, against each alone.
#[test]
fn sequences_in_one_batch() {
    for case in cases().iter().map(|dir| Case::open(dir)) {
        let tokens: Vec<Vec<i32>> = (0..3).map(|i| case.tokens(i)).collect();
        let vocab = case.golden["chunked.0"].shape[1];
        let (mut caches, mut logits) = (case.fresh(), vec![vec![]; 3]);
        for from in (0..tokens[0].len()).step_by(CHUNK) {
            let left = |i: usize| tokens[i].get(from..).filter(|t| !t.is_empty());
            let pieces: Vec<Piece> = (0..3)
                .filter_map(|i| left(i).map(|t| Piece { sequence: i, from, tokens: &t[..t.len().min(CHUNK)] }))
                .collect();
            let out = case.step(&mut caches, &pieces);
            let mut rest = &out[..];
            for p in &pieces {
                let (own, others) = rest.split_at(p.tokens.len() * vocab);
                logits[p.sequence].extend(own);
                rest = others;
            }
        }
        (0..3).for_each(|i| case.check("chunked", i, &logits[i]));
    }
}

#[test]
fn older_spellings_mean_the_same() {
    let mut seen = 0;
    for dir in cases().into_iter().filter(|d| d.join("config.v4.json").exists()) {
        let read = |name| Config::parse(&std::fs::read_to_string(dir.join(name)).expect("a file"), None);
        assert_eq!(read("config.v4.json"), read("config.json"), "{}", dir.display());
        seen += 1;
    }
    assert!(seen >= 5);
}
