//! Samples beside the whole, and faults that samples find.
use super::source::place_scaled;
use super::*;
use crate::interp::Real;
use crate::parse;

const MEMORY: Memory =
    Memory { row: 32, alias: 1024, rows: 32, panel: 16, group_bytes: 4, block_tokens: 32, align: 256 };

fn run(position: usize, tokens: usize, rows: usize) -> Run {
    Run { position, tokens, rows }
}

/// Results as a kernel leaves them that rounds once.
fn made(trial: &Trial) -> Vec<Vec<u8>> {
    let want = trial.want().unwrap();
    let one = |(&v, want): (&Value, &Val<Bound>)| match (trial.graph.ty(v), want) {
        (Type::Tensor(ty), Val::Float(want)) => {
            let (width, stride) = (ty.width(), trial.memory.result_stride(ty));
            let mut bytes = vec![u8::MAX; ty.dtype.bytes(want.data.len() / width * stride)];
            for (row, values) in bytes.chunks_mut(ty.dtype.bytes(stride)).zip(want.data.chunks(width)) {
                let values: Vec<f64> = values.iter().map(|v| v.get()).collect();
                match trial.memory.row_scales(ty) {
                    Some(scales) => place_scaled(&values, ty.dtype, scales, row),
                    None => {
                        row[..ty.dtype.bytes(trial.memory.padded(width))].fill(0);
                        values.iter().enumerate().for_each(|(col, &v)| store(row, col, v, ty.dtype));
                    }
                }
            }
            bytes
        }
        (_, Val::Int(list)) => list.iter().flat_map(|i| i.to_le_bytes()).collect(),
        (Type::Cache(c), Val::Cache(state)) => {
            let values = |v: &[Bound]| v.iter().map(|b| b.get()).collect::<Vec<f64>>();
            let entries = state.entries.iter().map(|(at, e)| (*at, Arc::new((values(&e.0), values(&e.1)))));
            let Operand::Cache(pages) = trial.place_cache(*c, &CacheState { entries: entries.collect() }) else {
                unreachable!()
            };
            pages
        }
        _ => unreachable!(),
    };
    trial.graph.outputs().iter().zip(&want).map(one).collect()
}

fn sampled(seed: u64, every_column: bool) -> Reference {
    Reference { sampling: Some(Sampling { seed, every_column }), threads: 2, memory: 1 << 28 }
}

fn indices(graph: &Graph, step: &Step) -> impl Fn(usize) -> Option<Vec<i32>> {
    let names: Vec<String> = graph.inputs().iter().map(|&v| name(graph, v).to_owned()).collect();
    let step = step.clone();
    move |number| match names[number].as_str() {
        "ids" => Some((0..step.tokens() as i32).map(|token| token * 5 % 24).collect()),
        "rows" => Some(step.wanted()),
        "positions" => Some(step.batch().positions),
        "lengths" => Some(step.lengths()),
        "sources" => Some((0..step.tokens() as i32).rev().collect()),
        _ => None,
    }
}

/// Bodies of all families, small and larger than what is compared whole.
const BODIES: &[(&str, bool)] = &[
    (
        "graph @k(%x: bf16[T, 64], %n: bf16[64], %w: bf16[1184, 64]@panels, %r: bf16[T, 592]) {
  %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 64]
  %1 = linear %0, %w {out = bf16} : bf16[T, 1184]
  %2 = slice %1 {axis = 1, start = 0, len = 592} : bf16[T, 592]
  %3 = slice %1 {axis = 1, start = 592, len = 592} : bf16[T, 592]
  %4 = silu_mul %2, %3 : bf16[T, 592]
  %5 = add %r, %4 : bf16[T, 592]
  return %5
}",
        true,
    ),
    (
        "graph @k(%x: bf16[T, 256], %w: u4[640, 256]@panels, %s: bf16[640, 2]@columns, %z: u8[640, 2]@columns) {
  %0 = linear %x, %w, %s, %z {out = bf16, block = [1, 128]} : bf16[T, 640]
  %1 = quantise %0 {to = f8e4m3, rule = group(128)} : f8e4m3[T, 640]@scaled(128)
  return %1
}",
        true,
    ),
    (
        "graph @k(%x: f8e4m3[T, 256]@scaled(128), %w: f8e4m3[6, 512, 256]@panels, %e: i32[T*2], %s: f32[6, 4, 2]) {
  %0 = grouped %x, %w, %e, %s {out = bf16, block = [128, 128]} : bf16[T*2, 512]
  return %0
}",
        true,
    ),
    (
        "graph @k(%x: bf16[T*2, 64], %w: bf16[6, 96, 64]@panels, %e: i32[T*2], %c: f32[T, 2]) {
  %0 = grouped %x, %w, %e {out = bf16} : bf16[T*2, 96]
  %1 = combine %0, %c : bf16[T, 96]
  return %1
}",
        false,
    ),
    (
        "graph @k(%x: bf16[T, 768], %w: bf16[4, 512, 128]@panels) {
  %0 = parts %x {count = 4, start = 0, len = 128, step = 192} : bf16[T, 4, 128]
  %1 = per_head %0, %w {out = bf16} : bf16[T, 4, 512]
  return %1
}",
        true,
    ),
    (
        "graph @k(%x: bf16[T, 64], %rows: i32[R], %n: bf16[64], %w: bf16[2048, 64]@panels) {
  %0 = gather %x, %rows : bf16[R, 64]
  %1 = rms_norm %0, %n {eps = 1e-6} : bf16[R, 64]
  %2 = linear %1, %w {out = f32} : f32[R, 2048]
  return %2
}",
        false,
    ),
    (
        "graph @k(%w: bf16[24, 64]@panels, %ids: i32[T], %sources: i32[T], %h: bf16[T, 64]) {
  %0 = gather %w, %ids : bf16[T, 64]
  %1 = gather %h, %sources : bf16[T, 64]
  %2 = beside %0, %1 : bf16[T, 128]
  return %2
}",
        false,
    ),
    (
        "graph @k(%x: bf16[T, 128], %n: bf16[16], %t: f32[T, 16], %m: bf16[16], %c: cache<bf16, 2, 16>, %b: batch) {
  %0 = slice %x {axis = 1, start = 0, len = 64} : bf16[T, 64]
  %1 = reshape %0 {shape = [T, 4, 16]} : bf16[T, 4, 16]
  %2 = rms_norm %1, %n {eps = 1e-6} : bf16[T, 4, 16]
  %3 = rope %2, %t : bf16[T, 4, 16]
  %4 = slice %x {axis = 1, start = 64, len = 32} : bf16[T, 32]
  %5 = reshape %4 {shape = [T, 2, 16]} : bf16[T, 2, 16]
  %6 = rms_norm %5, %m {eps = 1e-6} : bf16[T, 2, 16]
  %7 = rope %6, %t : bf16[T, 2, 16]
  %8 = slice %x {axis = 1, start = 96, len = 32} : bf16[T, 32]
  %9 = reshape %8 {shape = [T, 2, 16]} : bf16[T, 2, 16]
  %10 = kv_write %c, %7, %9, %b : cache<bf16, 2, 16>
  %11 = attention %3, %10, %b {scale = 0.25, window = 0} : bf16[T, 4, 16]
  %12 = reshape %11 {shape = [T, 64]} : bf16[T, 64]
  return %12, %10
}",
        false,
    ),
    (
        "graph @k(%q: bf16[T, 96], %t: f32[T, 8], %k: bf16[T, 1, 24], %c: cache<bf16, 1, 24, prefix 16>, %b: batch) {
  %0 = parts %q {count = 4, start = 16, len = 8, step = 24} : bf16[T, 4, 8]
  %1 = rope_pairs %0, %t : bf16[T, 4, 8]
  %2 = parts %q {count = 4, start = 0, len = 16, step = 24} : bf16[T, 4, 16]
  %3 = beside %2, %1 : bf16[T, 4, 24]
  %4 = key_write %c, %k, %b {values = 16} : cache<bf16, 1, 24, prefix 16>
  %5 = attention %3, %4, %b {scale = 0.2, window = 5} : bf16[T, 4, 16]
  %6 = reshape %5 {shape = [T, 64]} : bf16[T, 64]
  return %6, %4
}",
        false,
    ),
    (
        "graph @k(%x: f32[T, 8], %l: f32[T, 40]) {
  %0, %1 = route %x {by = (2, softmax, 1, 1, max, true, 1.0)} : f32[T, 2], i32[T*2]
  %2 = argmax %l : i32[T]
  return %0, %1, %2
}",
        false,
    ),
];

fn steps() -> [Step; 2] {
    let many = vec![run(17, 70, 3), run(0, 40, 2), run(3, 1, 1), run(31, 33, 0)];
    [Step { runs: vec![run(4, 1, 1)] }, Step { runs: many }]
}

/// What is right is right by any sample, which has fewer elements than there are only where there
/// is much to do, and every element that it compares is as the whole computation has it.
#[test]
fn samples_of_what_is_right() {
    for &(text, is_large) in BODIES {
        let graph = parse(text).unwrap();
        graph.verify().unwrap_or_else(|e| panic!("{e}"));
        for step in steps() {
            let trial = Trial::new(&graph, MEMORY, step.clone(), (Fill::Random, 3), &indices(&graph, &step)).unwrap();
            let (operands, got) = (trial.operands(), made(&trial));
            let whole = trial.judge(&operands, &trial.want().unwrap(), &got);
            assert!(whole.fault.is_none(), "{text}: {whole:?}");
            for (seed, every_column) in [(1, true), (2, false)] {
                let one = trial.compare(sampled(seed, every_column), &operands, &got).unwrap();
                assert!(one.fault.is_none() && one.worst <= whole.worst * 1.0001, "{text}: {one:?}");
                assert!(one.elements <= one.all && one.unbounded <= whole.unbounded);
                assert_eq!(one.elements < one.all, is_large && step.tokens() > 1, "{text}: {one:?}");
            }
        }
    }
}
