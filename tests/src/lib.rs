//! What the tests share: the golden cases, which `golden/README.md` describes.
pub mod images;
pub mod kernels;
pub mod pieces;
pub mod random;
pub mod reference;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use atomc::frontend::{self, Config, Delta, ShortConv, Ssm};
use atomc_artifact::manifest::TEXT;
use atomc_ir::trial::fetch;
use atomc_ir::{DType, Graph, Op, nth_name};
use safetensors::{Dtype, SafeTensors};

/// Sequences in each case.
pub const SEQUENCES: usize = 3;
/// Tokens that the mode `chunked` feeds at once.
pub const CHUNK: usize = 8;

/// What a case is compiled for at least: sequences of 37 tokens go beyond the positions of some.
pub const CONTEXT: usize = 64;

/// A tensor of a file, widened.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its type in the file.
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

/// A tiny model and what transformers computes with it in float64.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub dir: PathBuf,
    pub config: Config,
    golden: HashMap<String, Tensor>,
    facts: serde_json::Value,
}

/// How a sequence is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once.
    Prefill,
    /// A third at once, then token by token.
    Decode,
    /// [`CHUNK`] tokens at a time.
    Chunked,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Prefill, Mode::Decode, Mode::Chunked];

    fn name(self) -> &'static str {
        match self {
            Mode::Prefill => "prefill",
            Mode::Decode => "decode",
            Mode::Chunked => "chunked",
        }
    }

    /// The sizes of the pieces of `n` tokens.
    pub fn pieces(self, n: usize) -> Vec<usize> {
        match self {
            Mode::Prefill => vec![n],
            Mode::Decode => std::iter::once(n.div_ceil(3)).chain(std::iter::repeat_n(1, n - n.div_ceil(3))).collect(),
            Mode::Chunked => (0..n).step_by(CHUNK).map(|from| CHUNK.min(n - from)).collect(),
        }
    }
}

/// Every case without experts, by name.
pub fn cases() -> Vec<Case> {
    let all = every_case();
    assert!(all.len() >= 24, "only {} golden cases", all.len());
    all.into_iter().filter(|case| !case.has_experts() && !case.has_states()).collect()
}

/// Every case with experts, by name.
pub fn cases_of_experts() -> Vec<Case> {
    let all: Vec<Case> = every_case().into_iter().filter(|case| case.has_experts() && !case.has_states()).collect();
    assert!(all.len() >= 8, "only {} golden cases with experts", all.len());
    all
}

/// Every case of a model with a recurrent state, by name.
pub fn cases_with_states() -> Vec<Case> {
    let all: Vec<Case> = every_case().into_iter().filter(Case::has_states).collect();
    assert!(all.len() >= 2, "only {} golden cases with a recurrent state", all.len());
    all
}

/// A small model of each published checkpoint, with all that its maker's files have.
pub fn published_cases() -> Vec<Case> {
    let all = cases_in("published/small");
    assert!(all.len() >= 24, "only {} small models of published checkpoints", all.len());
    all
}

fn every_case() -> Vec<Case> {
    cases_in("golden")
}

fn cases_in(folder: &str) -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(dir).expect("a folder of cases").map(|e| e.expect("an entry").path());
    let mut dirs: Vec<_> = entries.filter(|p| p.join("golden.safetensors").exists()).collect();
    dirs.sort();
    dirs.into_iter().map(Case::open).collect()
}

/// Every tensor of a safetensors file.
pub fn tensors(file: &Path) -> HashMap<String, Tensor> {
    let bytes = std::fs::read(file).expect("a readable file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    file.tensors().into_iter().map(|(name, t)| (name, widened(t.dtype(), t.shape(), t.data()))).collect()
}

fn widened(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Tensor {
    let half = |f: fn(u16) -> f64| bytes.as_chunks().0.iter().map(|b| f(u16::from_le_bytes(*b))).collect();
    let word = |f: fn([u8; 4]) -> f64| bytes.as_chunks().0.iter().map(|b| f(*b)).collect();
    let data = match dtype {
        Dtype::BF16 => half(|b| half::bf16::from_bits(b).to_f64()),
        Dtype::F16 => half(|b| half::f16::from_bits(b).to_f64()),
        Dtype::F32 => word(|b| f32::from_le_bytes(b) as f64),
        Dtype::I32 => word(|b| i32::from_le_bytes(b) as f64),
        Dtype::I64 => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
        Dtype::U8 | Dtype::BOOL => bytes.iter().map(|&b| b.into()).collect(),
        Dtype::I8 => bytes.iter().map(|&b| (b as i8).into()).collect(),
        Dtype::F8_E4M3 => (0..bytes.len()).map(|i| fetch(bytes, i, DType::F8E4M3)).collect(),
        Dtype::F8_E8M0 => (0..bytes.len()).map(|i| fetch(bytes, i, DType::E8M0)).collect(),
        other => panic!("no case has a tensor of type {other:?}"),
    };
    // A number without an axis is one with it.
    let shape = if shape.is_empty() { vec![1] } else { shape.to_vec() };
    Tensor { dtype, shape, data }
}

impl Tensor {
    /// A text, and spaces.
    fn pad_text(&mut self) {
        self.data.resize(TEXT, f64::from(b' '));
        self.shape = vec![TEXT];
    }

    fn become_of(&mut self, dtype: Dtype, f: impl Fn(f64) -> f64) {
        self.dtype = dtype;
        self.data.iter_mut().for_each(|v| *v = f(*v));
    }
}

impl Case {
    fn open(dir: PathBuf) -> Case {
        let facts = std::fs::read(dir.join("golden.json")).expect("golden.json");
        let mut config = frontend::read(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        config.context = config.context.max(CONTEXT);
        Case {
            name: dir.file_name().expect("a name").to_string_lossy().into_owned(),
            config,
            golden: tensors(&dir.join("golden.safetensors")),
            facts: serde_json::from_slice(&facts).expect("golden.json is JSON"),
            dir,
        }
    }

    /// Whether a layer has experts.
    pub fn has_experts(&self) -> bool {
        self.config.has_experts()
    }

    /// Whether it is the one case of a family, which is made from transformers alone
    /// (`golden/families.py`).
    pub fn is_of_family(&self) -> bool {
        self.name.starts_with("family-")
    }

    /// Whether layers have several streams in place of one row.
    pub fn has_streams(&self) -> bool {
        self.config.streams.is_some()
    }

    fn has_states(&self) -> bool {
        self.config.layers.iter().any(|layer| {
            layer.half::<Delta>().is_some() || layer.half::<ShortConv>().is_some() || layer.half::<Ssm>().is_some()
        })
    }

    /// The checkpoint's tensors, of all shards, by the names that the graph has for them.
    pub fn weights(&self) -> HashMap<String, Tensor> {
        let files = std::fs::read_dir(&self.dir).expect("a folder").map(|e| e.expect("an entry").path());
        let shard = |p: &PathBuf| {
            let name = p.file_name().and_then(|n| n.to_str()).expect("a name");
            name.starts_with("model") && name.ends_with(".safetensors")
        };
        let named = |(name, tensor): (String, Tensor)| {
            let other =
                self.config.spellings.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
            (other.unwrap_or(name), tensor)
        };
        files.filter(shard).flat_map(|p| tensors(&p)).map(named).collect()
    }

    /// The weights as a graph takes them: texts are padded, bytes that it takes for exponents are
    /// powers of two, and those that it takes for several codes have no sign.
    pub fn weights_of(&self, graph: &Graph) -> HashMap<String, Tensor> {
        let mut all = self.weights();
        for id in graph.ids() {
            let names = match graph.op(id) {
                Op::Weight { name } => vec![name.clone()],
                Op::Weights { name, count, .. } => (0..*count).map(|i| nth_name(name, i)).collect(),
                _ => continue,
            };
            let dtype = graph.ty(id.into()).as_tensor().map(|t| t.dtype);
            let is_text =
                graph.ty(id.into()).as_tensor().is_some_and(|t| t.dtype == DType::U8 && t.shape.last() == Some(TEXT));
            for name in names {
                let Some(tensor) = all.get_mut(&name) else { continue };
                if is_text {
                    tensor.pad_text();
                }
                match (tensor.dtype, dtype) {
                    (Dtype::U8, Some(DType::E8M0)) => tensor.become_of(Dtype::F8_E8M0, |v| (v - 127.0).exp2()),
                    (Dtype::I8, Some(DType::U8)) => tensor.become_of(Dtype::U8, |v| v.rem_euclid(256.0)),
                    _ => {}
                }
            }
        }
        all
    }

    pub fn tokens(&self, sequence: usize) -> Vec<u32> {
        self.golden[&format!("tokens.{sequence}")].data.iter().map(|&t| t as u32).collect()
    }

    pub fn reference(&self, mode: Mode, sequence: usize) -> &[f64] {
        &self.golden[&format!("{}.{sequence}", mode.name())].data
    }

    /// What our error may be of [PyTorch's](Case::torch_error), on any device.
    pub const SHARE: f64 = 1.25;

    /// Root mean square of the errors of PyTorch in the checkpoint's own type, in this sequence or
    /// in all of them: the larger one. A sequence of a few tokens has a few roundings, and PyTorch
    /// is lucky with some.
    pub fn torch_error(&self, mode: Mode, sequence: usize) -> f64 {
        let by_mode = if mode == Mode::Decode { self.facts.get("torch_error_decode") } else { None };
        let rms = by_mode.unwrap_or(&self.facts["torch_error"])["rms"].as_array().expect("errors");
        let of = |i: usize| rms[i].as_f64().expect("an error for each sequence");
        let lengths: Vec<f64> = (0..rms.len()).map(|i| self.tokens(i).len() as f64).collect();
        let squares: f64 = lengths.iter().enumerate().map(|(i, n)| n * of(i) * of(i)).sum();
        (squares / lengths.iter().sum::<f64>()).sqrt().max(of(sequence))
    }

    /// Root mean square of the errors of these logits.
    pub fn error(&self, mode: Mode, sequence: usize, logits: impl ExactSizeIterator<Item = f64>) -> f64 {
        let reference = self.reference(mode, sequence);
        assert_eq!(reference.len(), logits.len(), "{} {mode:?} {sequence}", self.name);
        let n = reference.len() as f64;
        (reference.iter().zip(logits).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / n).sqrt()
    }
}
