//! Comparisons of samples with the whole, and faults that samples find.
use super::sample::REPEATS_OF_SCALES;
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
    placed(trial, &trial.want().unwrap())
}

/// These results in memory.
fn placed<S: Real>(trial: &Trial, want: &[Val<S>]) -> Vec<Vec<u8>> {
    let one = |(&v, want): (&Value, &Val<S>)| match (trial.graph.ty(v), want) {
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
            let values = |v: &[S]| v.iter().map(|b| b.get()).collect::<Vec<f64>>();
            let entries = state.entries.iter().map(|(at, e)| (*at, Arc::new((values(&e.0), values(&e.1)))));
            let Operand::Cache(pages) = trial.place_cache(*c, &CacheState { entries: entries.collect() }) else {
                unreachable!()
            };
            pages
        }
        _ => unreachable!(),
    };
    trial.graph.outputs().iter().zip(want).map(one).collect()
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
  %1 = quantise %0 {to = f8e4m3, rule = power(128)} : f8e4m3[T, 640]@scaled(128)
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
        true,
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
        true,
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
    [Step::of(vec![run(4, 1, 1)]), Step::of(many)]
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

/// A fault of a kernel, in what it leaves.
#[derive(Clone, Debug)]
enum Planted {
    /// A lane of each 64 columns is wrong in every row.
    Lane(usize),
    /// A tile of `side` rows and columns is wrong; rows are in the order of tiles.
    Tile { rows: Vec<usize>, col: usize, side: usize },
}

impl Planted {
    /// A lane, and a tile of rows that a kernel computes together.
    fn of(seed: u64, trial: &Trial) -> [Planted; 2] {
        let v = trial.graph.outputs()[0];
        let (dim, width) = (demand::lead(trial.graph.ty(v)).unwrap(), demand::row_width(trial.graph.ty(v)));
        let cx = trial.step.cx();
        let side = [16, 32, 64][seed as usize % 3];
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut below = |count: usize| ((random.next() + 1.0) * 128.0) as usize * 131 % count.max(1);
        let tiles = trial.tiles(dim, dim.at(cx.tokens, cx.rows), side);
        let (rows, col) = (tiles[below(tiles.len())].clone(), below(width / side) * side);
        [Planted::Lane(below(64)), Planted::Tile { rows, col, side }]
    }

    fn hits(&self, row: usize, col: usize) -> bool {
        match self {
            Planted::Lane(lane) => col % 64 == *lane,
            Planted::Tile { rows, col: first, side } => rows.contains(&row) && (*first..first + side).contains(&col),
        }
    }
}

/// The first result of a trial, right, with what faults are made of.
struct Right<'t> {
    ty: &'t TensorType,
    stride: usize,
    bytes: Vec<u8>,
    /// Its elements as they are stored, and how large those of a row are.
    rows: Vec<(Vec<f64>, f64)>,
}

impl<'t> Right<'t> {
    fn of(trial: &Trial<'t>, bytes: &[u8]) -> Right<'t> {
        let ty = trial.graph.ty(trial.graph.outputs()[0]).as_tensor().unwrap();
        let (width, stride) = (ty.width(), trial.memory.result_stride(ty));
        let row = |bytes: &[u8]| {
            let row: Vec<f64> = (0..width).map(|col| fetch(bytes, col, ty.dtype)).collect();
            let size = (row.iter().map(|v| v * v).sum::<f64>() / width as f64).sqrt();
            // Rows without an expert are zeros.
            (row, if size > 0.0 { size } else { 1.0 })
        };
        let rows = bytes.chunks(ty.dtype.bytes(stride)).map(row).collect();
        Right { ty, stride, bytes: bytes.to_vec(), rows }
    }

    /// Its bytes with a fault.
    fn with(&self, planted: &Planted) -> Vec<u8> {
        let (mut wrong, dtype) = (self.bytes.clone(), self.ty.dtype);
        for (row, (old, size)) in self.rows.iter().enumerate() {
            let here = &mut wrong[dtype.bytes(row * self.stride)..];
            for (col, old) in old.iter().enumerate().filter(|(col, _)| planted.hits(row, *col)) {
                store(here, col, if *old > 0.0 { old - size } else { old + size }, dtype);
            }
        }
        wrong
    }
}

/// Rows of a step: enough for tiles of 64.
fn wide() -> Step {
    Step::of(vec![run(5, 80, 40), run(0, 50, 30)])
}

/// The variable of the long form, in which the reference of every seed is computed by itself.
const LONG: &str = "ATOMC_TEST_LONG";

/// For how many seeds, of so many, the reference computes a sample and no more.
fn computed(short: u64) -> u64 {
    if std::env::var_os(LONG).is_some() { 100 } else { short }
}

/// Lanes and tiles of all sizes are found by every seed, in every family: among the elements of its
/// sample there is one that is wrong.
#[test]
fn samples_find_lanes_and_tiles() {
    for &(text, _) in &BODIES[..9] {
        let (graph, step) = (parse(text).unwrap(), wide());
        let trial = Trial::new(&graph, MEMORY, step.clone(), (Fill::Random, 3), &indices(&graph, &step)).unwrap();
        let (operands, want) = (trial.operands(), trial.want().unwrap());
        let got = placed(&trial, &want);
        let right = Right::of(&trial, &got[0]);
        let all: Vec<usize> = (0..right.rows.len()).collect();
        for seed in 0..100 {
            let (v, mask) = &trial.sample(Sampling { seed, every_column: true })[0];
            for planted in Planted::of(seed, &trial) {
                let mut wrong = got.clone();
                wrong[0] = right.with(&planted);
                let found = trial.judge_part(*v, &want[0], (&all, mask), &wrong[0]);
                assert!(found.fault.is_some(), "{text}: seed {seed}, {planted:?}");
                if seed < computed(1) {
                    let found = trial.compare(sampled(seed, true), &operands, &wrong).unwrap();
                    assert!(found.fault.is_some(), "{text}: seed {seed}, {planted:?}, computed");
                }
            }
            let clean = trial.judge_part(*v, &want[0], (&all, mask), &got[0]);
            assert!(clean.fault.is_none() && clean.elements == mask.count(), "{text}: seed {seed}, {clean:?}");
        }
    }
}

/// One scale of one block that is twice as large is found by every seed: of squares, and of groups
/// of a single row, of all rows of the weight and of an expert's. In the short form by five seeds.
#[test]
fn samples_find_a_scale() {
    for &(text, _) in &BODIES[1..3] {
        // Codes of e4m3 are too far apart to tell every sum from its half.
        let text =
            text.split_once("  %1 = quantise").map_or(text.to_owned(), |(text, _)| format!("{text}  return %0\n}}"));
        // Zero points have eight bits here, which codes of four are nothing beside: what a group
        // makes would follow from its zero point and hardly from its scale.
        let text = text.replace(", %z: u8[640, 2]@columns", "").replace(", %z {", " {").replace("u4", "i4");
        let (graph, step) = (parse(&text).unwrap(), wide());
        let trial = Trial::new(&graph, MEMORY, step.clone(), (Fill::Random, 3), &indices(&graph, &step)).unwrap();
        let operands = trial.operands();
        let scale = trial.number("s").unwrap();
        let Param::Numbers(source) = &trial.params[scale] else { unreachable!() };
        let count = source.tensor().data.len();
        for seed in 0..computed(5) {
            let at = (seed as usize * 7919 + 13) % count;
            let param = |wanted: &str| {
                let number = trial.number(wanted)?;
                Some(match &trial.params[number] {
                    Param::Numbers(source) => {
                        let mut numbers = source.tensor();
                        if number == scale {
                            // Twice a small scale would be little.
                            let old = numbers.data[at];
                            numbers.data[at] = if old.abs() < 0.25 { old + 0.5 } else { 2.0 * old };
                        }
                        Val::Float(numbers)
                    }
                    Param::Indices(list) => Val::Int(list.clone()),
                    _ => return None,
                })
            };
            let want = interp::run_with::<f64>(&graph, step.cx(), &param, &|_| None, &|_, _, _| None).unwrap();
            let found = trial.compare(sampled(seed, true), &operands, &placed(&trial, &want)).unwrap();
            assert!(found.fault.is_some(), "{text}: seed {seed}, scale {at}");
        }
    }
}

/// What a sample compares of a long product with scales of rows: each column four times, each row,
/// and an element of each cell.
#[test]
fn samples_cover_columns_rows_and_cells() {
    let text = BODIES[1].0;
    let graph = parse(text).unwrap();
    for tokens in [300, 40] {
        let step = Step::of(vec![run(0, tokens, 0)]);
        let trial = Trial::new(&graph, MEMORY, step, (Fill::Random, 3), &|_| None).unwrap();
        let (_, mask) = &trial.sample(Sampling { seed: 5, every_column: true })[0];
        let times = |col: usize| (0..mask.rows).filter(|&row| mask.get(row, col)).count();
        assert!((0..mask.width).all(|col| times(col) >= REPEATS_OF_SCALES), "{tokens}");
        assert!((0..mask.rows).all(|row| mask.any(row)), "{tokens}");
        for (row, col) in (0..mask.rows - 15).step_by(16).flat_map(|r| (0..mask.width).step_by(16).map(move |c| (r, c)))
        {
            let cell = (row..row + 16).flat_map(|r| (col..col + 16).map(move |c| (r, c)));
            assert!(cell.into_iter().any(|(r, c)| mask.get(r, c)), "{tokens}: {row}, {col}");
        }
        assert!(mask.count() < mask.rows * mask.width);
    }
}
