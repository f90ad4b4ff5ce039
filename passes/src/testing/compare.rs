//! Whether two graphs mean the same, by the reference interpreter on one small step.
use std::collections::BTreeMap;
use std::sync::Arc;

use atomc_ir::interp::{self, BatchState, CacheState, SlotState, Tensor, Val};
use atomc_ir::{CacheType, DType, Graph, Op, SlotsType, Type, trial};

/// Three tokens of two sequences that have a past. Two of the tokens want logits.
const STEP: interp::Cx = interp::Cx::of(3, 2);
const SEQUENCES: [i32; 3] = [0, 0, 1];
const POSITIONS: [i32; 3] = [3, 4, 1];
const LENGTHS: [i32; 3] = [5, 5, 2];
const ROWS: [i32; 2] = [1, 2];
const IDS: [i32; 3] = [2, 0, 1];

/// Runs both in f64. Parameters and weights are random by name.
pub fn same_meaning(before: &Graph, after: &Graph) -> Result<(), String> {
    let (want, have) = (outputs(before)?, outputs(after)?);
    if want.len() != have.len() {
        return Err(format!("{} outputs became {}", want.len(), have.len()));
    }
    want.iter().zip(&have).enumerate().try_for_each(|(i, (a, b))| same(a, b).map_err(|e| format!("output {i}: {e}")))
}

fn outputs(graph: &Graph) -> Result<Vec<Val<f64>>, String> {
    let mut params = BTreeMap::new();
    let mut shapes = BTreeMap::new();
    for id in graph.ids() {
        match graph.op(id) {
            Op::Input { name } => drop(params.insert(name.clone(), param(name, graph.ty(id.into())))),
            Op::Weight { name } => {
                drop(shapes.insert(name.clone(), (size(graph.ty(id.into())), dtype(graph.ty(id.into())))))
            }
            Op::Weights { name, count, .. } => {
                let (shape, dtype) = (size(graph.ty(id.into())), dtype(graph.ty(id.into())));
                shapes.extend((0..*count).map(|i| (atomc_ir::nth_name(name, i), (shape[1..].to_vec(), dtype))));
            }
            _ => {}
        }
    }
    interp::run(graph, STEP, &params, &|name| shapes.get(name).map(|(shape, dtype)| weight(name, shape, *dtype)))
}

fn dtype(ty: &Type) -> DType {
    ty.as_tensor().expect("a tensor").dtype
}

/// Codes are numbers that their type has.
fn weight(name: &str, shape: &[usize], dtype: DType) -> Tensor<f64> {
    let Tensor { shape, mut data } = random(name, shape.to_vec());
    if dtype.is_code() {
        data.iter_mut().for_each(|v| *v = trial::round(*v * 8.0, dtype));
    }
    Tensor::new(shape, data)
}

fn size(ty: &Type) -> Vec<usize> {
    let t = ty.as_tensor().expect("a tensor");
    t.shape.0.iter().map(|d| d.at(STEP.tokens, STEP.rows)).collect()
}

fn param(name: &str, ty: &Type) -> Val<f64> {
    match (name, ty) {
        ("ids", _) => Val::Int(IDS.to_vec()),
        ("rows", _) => Val::Int(ROWS.to_vec()),
        ("positions", _) => Val::Int(POSITIONS.to_vec()),
        ("lengths", _) => Val::Int(LENGTHS.to_vec()),
        // One of them has no expert.
        ("experts", ty) => Val::Int((0..size(ty)[0] as i32).map(|i| i * 3 % 5 - 1).collect()),
        (_, Type::Tensor(t)) if t.dtype == DType::I32 => panic!("nobody knows what %{name} is"),
        (_, Type::Tensor(_)) => Val::Float(random(name, size(ty))),
        (_, Type::Cache(c)) => Val::Cache(past(name, *c)),
        (_, Type::Slots(s)) => Val::Slots(kept(name, s)),
        (_, Type::Batch) => Val::Batch(BatchState { sequences: SEQUENCES.to_vec(), positions: POSITIONS.to_vec() }),
    }
}

/// Keys and values of all tokens before the step.
fn past(name: &str, c: CacheType) -> CacheState<f64> {
    let numbers = |what: &str, (seq, pos): (i32, i32), width: usize| -> Vec<f64> {
        random(&format!("{name}.{what}.{seq}.{pos}"), vec![c.heads * width]).data
    };
    let entry = |at| {
        let keys = numbers("k", at, c.head_dim);
        let part = |key: &[f64]| key[..c.value_dim].to_vec();
        let values = if c.is_prefix { None } else { Some(numbers("v", at, c.value_dim)) };
        let values = values.unwrap_or_else(|| keys.chunks(c.head_dim).flat_map(part).collect());
        (keys, values)
    };
    let entries = [(0, 0), (0, 1), (0, 2), (1, 0)].map(|at| (at, Arc::new(entry(at))));
    CacheState { entries: entries.into() }
}

/// The states of sequences before the step.
fn kept(name: &str, ty: &SlotsType) -> SlotState<f64> {
    let slot = |(seq, tokens)| ((seq, tokens), random(&format!("{name}.{seq}"), vec![ty.numbers()]).data);
    SlotState { entries: [(0, 3), (1, 1)].map(slot).into(), each: ty.each }
}

/// Numbers between -1 and 1 that follow from the name.
fn random(name: &str, shape: Vec<usize>) -> Tensor<f64> {
    // FNV-1a, then one step of SplitMix64 an element.
    let seed = name.bytes().fold(0xcbf29ce484222325u64, |h, b| (h ^ b as u64).wrapping_mul(0x100000001b3));
    let number = |i: usize| {
        let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e3779b97f4a7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let n = shape.iter().product();
    Tensor::new(shape, (0..n).map(number).collect())
}

fn same(a: &Val<f64>, b: &Val<f64>) -> Result<(), String> {
    match (a, b) {
        (Val::Float(a), Val::Float(b)) if a.shape == b.shape => close(&a.data, &b.data),
        (Val::Int(a), Val::Int(b)) if a == b => Ok(()),
        (Val::Cache(a), Val::Cache(b)) if a.entries.keys().eq(b.entries.keys()) => {
            let both = a.entries.values().zip(b.entries.values());
            both.into_iter().try_for_each(|(a, b)| close(&a.0, &b.0).and(close(&a.1, &b.1)))
        }
        (Val::Slots(a), Val::Slots(b)) if a.entries.keys().eq(b.entries.keys()) => {
            a.entries.values().zip(b.entries.values()).try_for_each(|(a, b)| close(a, b))
        }
        _ => Err(format!("{a:?} became {b:?}")),
    }
}

fn close(a: &[f64], b: &[f64]) -> Result<(), String> {
    let near = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-9 * x.abs().max(y.abs());
    match a.iter().zip(b).position(|(&x, &y)| !near(x, y)) {
        None => Ok(()),
        Some(i) => Err(format!("element {i} was {} and is {}", a[i], b[i])),
    }
}
