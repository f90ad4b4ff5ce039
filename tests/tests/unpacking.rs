//! Codes as checkpoints store them: what the weight plan makes of them is what the tools make that
//! wrote them, bit for bit.
//!
//! `tests/unpacking/check.py` made the fixtures with those tools, and compares whole checkpoints
//! with them by way of `dump`.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atomc::driver;
use atomc_artifact::manifest::{DType, Layout, TEXT, TensorNames, Weight};
use atomc_ir::interp::{self, Cx, Tensor};
use atomc_ir::{Graph, Op, Type, Value, trial};
use atomc_runtime::checkpoint::{self, CheckpointError, Source};
use atomc_runtime::device::DeviceBuffer;
use atomc_runtime::memory::Buffer;
use atomc_runtime::weights::{self, Given, Loading, Rank, Sink};
use atomc_runtime::{Checkpoint, Pool};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// The results of a graph of constants by name.
type Results = BTreeMap<String, Tensor<f64>>;

/// The part of a checkpoint that a plan uses.
struct Part<'a>(&'a Checkpoint);

impl Source for Part<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<checkpoint::Tensor<'_>, CheckpointError> {
        self.0.tensor(name, shape)
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// A tensor of a file, as the interpreter has it.
fn stored(files: &SafeTensors, name: &str) -> Option<Tensor<f64>> {
    let view = files.tensor(name).ok()?;
    let dtype = match view.dtype() {
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        Dtype::F32 => DType::F32,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E8M0 => DType::E8M0,
        Dtype::I32 => DType::I32,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::I64 => {
            let wide = view.data().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes) as f64);
            return Some(Tensor::new(view.shape().to_vec(), wide.collect()));
        }
        other => panic!("{name} is of {other:?}"),
    };
    // A number without an axis is one with it.
    let shape = if view.shape().is_empty() { vec![1] } else { view.shape().to_vec() };
    let all = shape.iter().product();
    Some(Tensor::new(shape, (0..all).map(|i| trial::fetch(view.data(), i, dtype)).collect()))
}

/// A stored tensor: bytes of powers of two, which some files have as integers, are these, and those
/// of several codes have no sign.
fn as_graph_has_it(graph: &Graph, files: &SafeTensors, name: &str) -> Option<Tensor<f64>> {
    let mut tensor = stored(files, name)?;
    let is_it = |&id: &atomc_ir::NodeId| matches!(graph.op(id), Op::Weight { name: other } if other == name);
    let wanted = graph.order().into_iter().find(is_it).and_then(|id| graph.types(id)[0].as_tensor().cloned());
    if wanted.as_ref().is_some_and(|t| t.shape.sizes().is_some_and(|sizes| sizes == [TEXT])) {
        // A text, and spaces.
        tensor.data.resize(TEXT, 32.0);
        return Some(Tensor::new(vec![TEXT], tensor.data));
    }
    let wanted = wanted.map(|t| t.dtype);
    let of_byte: Option<fn(f64) -> f64> = match (files.tensor(name).ok()?.dtype(), wanted) {
        (Dtype::U8, Some(DType::E8M0)) => Some(|bits| trial::fetch(&[bits as u8], 0, DType::E8M0)),
        (Dtype::I8, Some(DType::U8)) => Some(|bits| bits.rem_euclid(256.0)),
        _ => None,
    };
    if let Some(of_byte) = of_byte {
        tensor.data.iter_mut().for_each(|bits| *bits = of_byte(*bits));
    }
    Some(tensor)
}

/// What the loader of a target makes of a value.
fn loaded(graph: &Graph, v: Value, checkpoint: &Checkpoint) -> Tensor<f64> {
    let arch = atomc_targets::rows().iter().find(|arch| arch.name == "x86-64-v3").expect("a row");
    let weight = driver::weight(graph, v, arch).expect("a constant");
    let (mut pool, mut buffers) =
        (Pool::new(2).expect("a pool"), [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))]);
    let weights = std::slice::from_ref(&weight);
    let sink = Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool };
    weights::load(sink, &TensorNames::default(), &Part(checkpoint), &|_, _| ())
        .unwrap_or_else(|e| panic!("{}: {e}", weight.name));
    given_one_by_one(&weight, checkpoint, buffers[0].host_view().expect("memory of the host"));
    let bytes = buffers[0].host_view().expect("memory of the host");
    let at = |row, col| trial::fetch(bytes, place(&weight, row, col), weight.dtype);
    let [stack, rows, cols] = weight.matrices();
    let all = (0..stack * rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
    Tensor::new(weight.shape.clone(), all.map(|(row, col)| at(row, col)).collect())
}

/// Checks that a trainer that gives the tensors one after the other gets the same bytes.
fn given_one_by_one(weight: &Weight, checkpoint: &Checkpoint, want: &[u8]) {
    let (mut pool, mut buffers) =
        (Pool::new(1).expect("a pool"), [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))]);
    let weights = std::slice::from_ref(weight);
    let mut loading = Loading::new(weights, &TensorNames::default(), Rank::ONLY);
    // A plan may name a tensor twice, which comes once.
    let all: BTreeMap<_, _> = weight.expr.tensors().into_iter().collect();
    for (name, shape) in all {
        let checkpoint::Tensor::Stored { float, numbers } = checkpoint.tensor(&name, &shape).expect("a tensor") else {
            panic!("{name} is in no file")
        };
        let bytes = numbers.to_vec().expect("numbers");
        let shape = if *shape == [TEXT] { vec![bytes.len()] } else { shape.into_owned() };
        let sink = Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool };
        loading.feed(&name, Given { float, shape: &shape, numbers: bytes.into() }, sink).expect("a sound tensor");
    }
    loading.finish(Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool }).expect("all tensors");
    assert!(buffers[0].host_view() == Some(want), "{}: other bytes, one by one", weight.name);
}

/// The number of an element, by the manifest's own words.
fn place(weight: &Weight, row: usize, col: usize) -> usize {
    let [_, height, _] = weight.matrices();
    match weight.layout {
        Layout::Rows { stride } => row * stride + col,
        Layout::Panels { width, group, rows, cols } => {
            let (matrix, r) = (row / height, row % height);
            let inside = ((r / width) * (cols / group) + col / group) * width * group + (r % width) * group;
            matrix * rows * cols + inside + col % group
        }
    }
}

/// What a graph makes of a checkpoint, which the interpreter and the loader agree in.
fn results(graph: &Graph, dir: &Path) -> Results {
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("a file");
    let files = SafeTensors::deserialize(&bytes).expect("tensors");
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    let weight = |name: &str| as_graph_has_it(graph, &files, name);
    let values = interp::run(graph, Cx::of(1, 1), &BTreeMap::new(), &weight).expect("values");
    let mut all = Results::new();
    for ((name, v), value) in graph.results().zip(values) {
        let (value, loaded) = (value.float().expect("a tensor").clone(), loaded(graph, v, &checkpoint));
        assert_eq!(value.shape, loaded.shape, "{name}");
        let differ = value.data.iter().zip(&loaded.data).position(|(a, b)| a.to_bits() != b.to_bits() && a != b);
        assert_eq!(differ, None, "{name}: the interpreter and the loader differ");
        all.insert(name.to_string(), value);
    }
    all
}

fn read(path: &Path) -> Graph {
    let graph = atomc_ir::parse(&std::fs::read_to_string(path).expect("a graph")).expect("a graph");
    graph.verify().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    graph
}

/// `(code - zero) * scale` in f32, with a scale for each block of rows and columns.
fn dequantised(results: &Results, name: &str, [height, width]: [usize; 2]) -> Tensor<f64> {
    let of = |part: &str| results.get(&format!("{name}.{part}"));
    if let Some(floats) = of("floats") {
        return floats.clone();
    }
    let (codes, scale) = (of("codes").expect("codes"), of("scale").expect("scales"));
    let [cols, across] = [codes, scale].map(|tensor| *tensor.shape.last().expect("an axis"));
    let element = |i: usize| {
        let at = i / cols / height * across + i % cols / width;
        let zero = of("zero").map_or(0.0, |zero| zero.data[at]);
        f64::from((codes.data[i] - zero) as f32 * scale.data[at] as f32)
    };
    Tensor::new(codes.shape.clone(), (0..codes.data.len()).map(element).collect())
}

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("unpacking");
    let entries = std::fs::read_dir(dir).expect("fixtures").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.join("graph.txt").exists()).collect();
    found.sort();
    found
}

#[test]
fn weights_are_what_their_tools_read() {
    let all = fixtures();
    assert!(all.len() >= 23, "{all:?}");
    for dir in all {
        let results = results(&read(&dir.join("graph.txt")), &dir);
        let bytes = std::fs::read(dir.join("want.safetensors")).expect("a file");
        let want = SafeTensors::deserialize(&bytes).expect("tensors");
        assert!(!want.names().is_empty());
        for name in want.names().into_iter().filter(|name| !name.ends_with(".block")) {
            let block = stored(&want, &format!("{name}.block")).expect("the sides of a block").data;
            let have = dequantised(&results, name, [block[0] as usize, block[1] as usize]);
            let want = stored(&want, name).expect("a tensor");
            assert_eq!(have.shape, want.shape, "{} {name}", dir.display());
            let differ = have.data.iter().zip(&want.data).position(|(a, b)| a != b);
            assert_eq!(differ, None, "{} {name}", dir.display());
        }
    }
}

/// Writes what a graph makes of a checkpoint:
/// `UNPACK="GRAPH DIR OUT" cargo test --test unpacking dump -- --ignored`.
#[test]
#[ignore = "is told what to write by check.py"]
fn dump() {
    let told = std::env::var("UNPACK").expect("UNPACK=\"GRAPH DIR OUT\"");
    let [graph, dir, out] = told.split(' ').map(Path::new).collect::<Vec<_>>()[..] else { panic!("{told}") };
    let graph = read(graph);
    assert!(graph.results().all(|(_, v)| matches!(graph.ty(v), Type::Tensor(_))));
    let results = results(&graph, dir);
    let bytes = |tensor: &Tensor<f64>| tensor.data.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect::<Vec<u8>>();
    let all: Vec<(String, Vec<usize>, Vec<u8>)> =
        results.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone(), bytes(tensor))).collect();
    let views =
        all.iter().map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, out).expect("a file");
}
