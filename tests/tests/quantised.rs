//! Quantised checkpoints, as tools of the field write them, against logits that PyTorch computes of
//! them in float32: the folders that `ATOMC_QUANTISED` has, each with `ref/logits.safetensors`
//! (`tokens.N`, and of the last positions `logits.N`) and `score.json`.
//!
//! `ATOMC_QUANTISED=FOLDER cargo test -p atomc-tests --test quantised -- --ignored`
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use atomc::frontend;
use atomc_ir::interp::{self, BatchState, CacheState, Cx, Tensor, Val};
use atomc_ir::trial::fetch;
use atomc_ir::{DType, Graph, Op, nth_name};
use safetensors::{Dtype, SafeTensors};

/// What logits may be off, as a part of their root mean square, where all codes are the same:
/// PyTorch computes in float32.
const SAME: f64 = 1e-5;
/// The tolerance where the last bits have changed the codes of a number or two, as codes have large
/// steps.
const TOLERANCE: f64 = 1e-2;

fn folders() -> Vec<PathBuf> {
    let root = std::env::var("ATOMC_QUANTISED").expect("ATOMC_QUANTISED names the folder with the models");
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(root).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    all.retain(|dir| dir.join("ref/logits.safetensors").exists());
    all.sort();
    all
}

/// The tensors that a graph's weights name, read as the types that these have there.
fn weights(dir: &Path, graph: &Graph) -> HashMap<String, Tensor<f64>> {
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("a checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let named = graph.ids().flat_map(|id| {
        let names = match graph.op(id) {
            Op::Weight { name } => vec![name.clone()],
            Op::Weights { name, count, .. } => (0..*count).map(|i| nth_name(name, i)).collect(),
            _ => vec![],
        };
        let dtype = graph.ty(id.into()).as_tensor().map(|t| t.dtype);
        names.into_iter().map(move |name| (name, dtype.expect("a tensor")))
    });
    let read = |(name, dtype): (String, DType)| {
        let tensor = file.tensor(&name).unwrap_or_else(|e| panic!("{}: {name}: {e}", dir.display()));
        let stored = match (tensor.dtype(), dtype) {
            (Dtype::BF16, _) => DType::BF16,
            (Dtype::F16, _) => DType::F16,
            (Dtype::F32, _) => DType::F32,
            (Dtype::F8_E4M3, _) => DType::F8E4M3,
            (Dtype::U8, DType::E8M0) => DType::E8M0,
            (Dtype::U8, _) => DType::U8,
            (Dtype::I8, _) => DType::I8,
            (Dtype::I32 | Dtype::I64, _) => DType::I32,
            (other, _) => panic!("{name}: {other:?}"),
        };
        let count = tensor.shape().iter().product::<usize>();
        // Of 64-bit integers the lower half is read, which holds all sizes.
        let step = tensor.data().len() / count.max(1);
        let element = |i: usize| match tensor.dtype() {
            Dtype::I64 => fetch(&tensor.data()[i * step..], 0, DType::I32),
            _ => fetch(tensor.data(), i, stored),
        };
        (name, Tensor::new(tensor.shape().to_vec(), (0..count).map(element).collect()))
    };
    named.map(read).collect()
}

/// Logits of the last positions of a prompt.
fn logits(
    graph: &Graph,
    weights: &HashMap<String, Tensor<f64>>,
    layers: usize,
    tokens: &[i32],
    last: usize,
) -> Vec<f64> {
    let n = tokens.len();
    let positions: Vec<i32> = (0..n as i32).collect();
    let batch = BatchState { sequences: vec![0; n], positions: positions.clone() };
    let mut params: BTreeMap<String, Val<f64>> = BTreeMap::from([
        ("ids".into(), Val::Int(tokens.to_vec())),
        ("positions".into(), Val::Int(positions)),
        ("lengths".into(), Val::Int(vec![n as i32; n])),
        ("rows".into(), Val::Int((n - last..n).map(|i| i as i32).collect())),
        ("batch".into(), Val::Batch(batch)),
    ]);
    params.extend((0..layers).map(|i| (format!("kv{i}"), Val::Cache(CacheState::default()))));
    let out = interp::run(graph, Cx::of(n, last), &params, &|name| weights.get(name).cloned());
    out.expect("it runs")[0].float().expect("logits").data.clone()
}

#[test]
#[ignore = "needs ATOMC_QUANTISED"]
fn the_reference_is_pytorchs() {
    let mut seen = 0;
    for dir in folders() {
        let config = match frontend::read(&dir) {
            Ok(config) => config,
            Err(e) => {
                println!("{}: {e}", dir.display());
                continue;
            }
        };
        let graph = frontend::graph(&config).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let weights = weights(&dir, &graph);
        let reference = atomc_tests::tensors(&dir.join("ref/logits.safetensors"));
        let (mut best, mut worst) = (f64::INFINITY, 0.0f64);
        for n in [8, 33, 64, 100] {
            let tokens: Vec<i32> = reference[&format!("tokens.{n}")].data.iter().map(|&t| t as i32).collect();
            let want = &reference[&format!("logits.{n}")];
            let got = logits(&graph, &weights, config.layers.len(), &tokens, want.shape[0]);
            let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
            let off = squares(&mut want.data.iter().zip(&got).map(|(want, &got)| want - got));
            let part = off / squares(&mut want.data.iter().copied());
            (best, worst) = (best.min(part), worst.max(part));
        }
        println!("{}: off by {best:.1e} to {worst:.1e}", dir.display());
        assert!(best < SAME && worst < TOLERANCE, "{}: {best:e} to {worst:e}", dir.display());
        seen += 1;
    }
    assert!(seen > 0, "no folder could be read");
}
