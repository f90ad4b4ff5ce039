use super::source::place_scaled;
use super::*;
use crate::interp::Real;
use crate::{Rule, Scalar, parse, quantise};

const MEMORY: Memory =
    Memory { row: 32, alias: 1024, rows: 32, panel: 16, group_bytes: 4, block_tokens: 32, align: 256 };

const RUNS: [Run; 2] = [Run { position: 31, tokens: 3, rows: 1 }, Run { position: 0, tokens: 1, rows: 1 }];

const LINEAR: &str = "graph @k(%x: bf16[T, 96], %n: bf16[96], %w: bf16[40, 96]@panels) {
  %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 96]
  %1 = linear %0, %w {out = bf16} : bf16[T, 40]
  return %1
}";

fn trial<'g>(graph: &'g Graph, fill: Fill) -> Trial<'g> {
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    Trial::new(graph, MEMORY, Step::of(RUNS.to_vec()), (fill, 3), &|_| None).unwrap()
}

/// The result of a kernel that computes in 64 bits and rounds its result, after a change of each
/// element.
fn kernel(trial: &Trial, change: impl Fn(usize, f64) -> f64) -> Vec<u8> {
    placed(trial, &trial.want().unwrap().remove(0), change)
}

/// A result as a kernel leaves it that rounds each element once.
fn placed(trial: &Trial, want: &Val<Bound>, change: impl Fn(usize, f64) -> f64) -> Vec<u8> {
    let Val::Float(want) = want else { unreachable!() };
    let Type::Tensor(ty) = trial.graph.ty(trial.graph.outputs()[0]) else { unreachable!() };
    let data: Vec<f64> = want.data.iter().enumerate().map(|(i, v)| change(i, v.get())).collect();
    let (width, stride) = (ty.width(), trial.memory.result_stride(ty));
    let mut bytes = vec![u8::MAX; ty.dtype.bytes(data.len() / width * stride)];
    for (row, values) in bytes.chunks_mut(ty.dtype.bytes(stride)).zip(data.chunks(width)) {
        match trial.memory.row_scales(ty) {
            Some(scales) => place_scaled(values, ty.dtype, scales, row),
            None => {
                row[..ty.dtype.bytes(trial.memory.padded(width))].fill(0);
                values.iter().enumerate().for_each(|(col, &v)| store(row, col, v, ty.dtype));
            }
        }
    }
    bytes
}

fn judge(trial: &Trial, got: Vec<u8>) -> Verdict {
    trial.judge(&trial.operands(), &trial.want().unwrap(), &[got])
}

#[test]
fn what_is_rounded_once_is_right() {
    let graph = parse(LINEAR).unwrap();
    for fill in Fill::ALL {
        let trial = trial(&graph, fill);
        let verdict = judge(&trial, kernel(&trial, |_, v| v));
        assert!(verdict.worst <= 0.5 && verdict.fault.is_none(), "{verdict:?}");
        assert_eq!((verdict.elements, verdict.unbounded), (4 * 64, 0));
    }
}

#[test]
fn one_term_of_a_sum_too_few_is_wrong() {
    let graph = parse(LINEAR).unwrap();
    let full = trial(&graph, Fill::Random);
    let wide = full.want().unwrap();
    // The same operands, of which the last column of the weight is ignored.
    let names = ["x", "n", "w"].into_iter().zip(&full.params);
    let params = names.map(|(name, param)| {
        let Param::Numbers(source) = param else { unreachable!() };
        let numbers = source.tensor();
        let kept = |i: usize| name != "w" || i % 96 != 95;
        let data = numbers.data.iter().enumerate().map(|(i, &v)| Bound::of(if kept(i) { v } else { 0.0 })).collect();
        (name.to_owned(), Val::Float(Tensor::new(numbers.shape, data)))
    });
    let cut = interp::run(&graph, full.step.cx(), &params.collect(), &|_| None).unwrap();
    let verdict = full.judge(&full.operands(), &wide, &[placed(&full, &cut[0], |_, v| v)]);
    assert!(verdict.worst > 2.0, "{verdict:?}");
}

#[test]
fn wrong_elements_are_named() {
    let graph = parse(LINEAR).unwrap();
    let trial = trial(&graph, Fill::Random);
    let off = judge(&trial, kernel(&trial, |i, v| if i == 43 { v + 1.0 } else { v }));
    assert!(off.fault.unwrap().to_string().starts_with("row 1, column 3: "));
    let none = judge(&trial, kernel(&trial, |i, v| if i == 0 { f64::NAN } else { v }));
    assert!(none.worst.is_infinite() && none.fault.unwrap().to_string().starts_with("row 0, column 0: NaN"));
    let mut padding = kernel(&trial, |_, v| v);
    store(&mut padding, 40, 1e-30, DType::BF16);
    assert!(judge(&trial, padding).fault.unwrap().to_string().starts_with("row 0, column 40: "));
}

#[test]
fn caches_change_only_where_they_are_written() {
    let graph = parse(
        "graph @k(%c: cache<bf16, 2, 20>, %k: bf16[T, 2, 20], %v: bf16[T, 2, 20], %b: batch) {
  %0 = kv_write %c, %k, %v, %b : cache<bf16, 2, 20>
  return %0
}",
    )
    .unwrap();
    let mut trial = trial(&graph, Fill::Random);
    trial.gap = 64;
    let (operands, want) = (trial.operands(), trial.want().unwrap());
    let Val::Cache(state) = &want[0] else { unreachable!() };
    let values = |v: &[Bound]| v.iter().map(|b| b.get()).collect::<Vec<f64>>();
    let entries =
        state.entries.iter().map(|(at, entry)| (*at, Arc::new((values(&entry.0), values(&entry.1))))).collect();
    let cache = CacheType::even(DType::BF16, 2, 20);
    let Operand::Cache(pages) = trial.place_cache(cache, &CacheState { entries }) else { unreachable!() };
    let right = trial.judge(&operands, &want, std::slice::from_ref(&pages));
    assert_eq!((right.worst, right.elements), (0.0, 2 * 40 * (34 + 1)));
    let Operand::Cache(old) = &operands[0] else { unreachable!() };
    let stale = trial.judge(&operands, &want, std::slice::from_ref(old));
    assert!(stale.fault.unwrap().to_string().starts_with("key of sequence 0, position 31, element 0: "));
    // No sequence has page 0 or the bytes between pages.
    let page = trial.block_stride(cache) - 64;
    for byte in [6, page + 6] {
        let mut stray = pages.clone();
        stray[byte] = 1;
        let stray = trial.judge(&operands, &want, &[stray]);
        let fault = format!("byte {byte} of the cache, which belongs to nobody");
        assert_eq!(stray.fault.unwrap().to_string(), fault);
    }
}

#[test]
fn indices_are_right_or_wrong() {
    let graph = parse("graph @k(%x: f32[T, 40]) {\n  %0 = argmax %x : i32[T]\n  return %0\n}").unwrap();
    let trial = trial(&graph, Fill::Random);
    let Val::Int(want) = trial.want().unwrap().remove(0) else { unreachable!() };
    let bytes = |picks: &[i32]| picks.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
    let right = judge(&trial, bytes(&want));
    assert_eq!((right.worst, right.elements, right.fault), (0.0, 4, None));
    let off = judge(&trial, bytes(&[&want[..2], &[want[2] + 1, want[3]]].concat()));
    assert!(off.worst.is_infinite() && off.fault.unwrap().to_string().starts_with("row 2: "));
}

/// Codes of rows with their scales come back as they were placed, and one that is off by a step is
/// seen.
#[test]
fn rows_of_codes() {
    let text = "graph @k(%x: f8e4m3[T, 40]@scaled(16), %w: i8[8, 40]@panels, %s: f32[8, 1]) {
  %0 = linear %x, %w, %s {out = f32, block = [1, 40]} : f32[T, 8]
  return %0
}";
    let graph = parse(text).unwrap();
    graph.verify().unwrap();
    assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
    let trial = trial(&graph, Fill::Random);
    let Operand::Tensor(placed) = &trial.operands()[0] else { unreachable!() };
    let (ty, Param::Numbers(x)) = (graph.ty(graph.inputs()[0]).as_tensor().unwrap(), &trial.params[0]) else {
        unreachable!()
    };
    let x = x.tensor();
    let exact = Tensor::new(x.shape.clone(), x.data.iter().map(|&v| Bound::of(v)).collect());
    assert_eq!(trial.judge_tensor(ty, &exact, placed).worst, 0.0);
    let mut wrong = placed.clone();
    wrong[0] ^= 1;
    assert!(trial.judge_tensor(ty, &exact, &wrong).worst > 1.0);
    // 64 bytes of codes, three scales.
    let mut wrong = placed.clone();
    wrong[64 + 11] ^= 1;
    assert!(trial.judge_tensor(ty, &exact, &wrong).worst > 1.0);
}

/// What becomes codes in the kernel that makes it is not rounded before, so that nearly all codes
/// are known.
#[test]
fn codes_of_what_a_kernel_makes_are_known() {
    let text = "graph @k(%x: bf16[T, 256], %n: bf16[256]) {
  %0 = rms_norm %x, %n {eps = 1e-6} : bf16[T, 256]
  %1 = quantise %0 {to = f8e4m3, rule = group(128)} : f8e4m3[T, 256]@scaled(128)
  return %1
}";
    let graph = parse(text).unwrap();
    graph.verify().unwrap();
    let trial = trial(&graph, Fill::Random);
    let Val::Float(want) = trial.want().unwrap().remove(0) else { unreachable!() };
    let unsure = want.data.iter().filter(|v| v.budget() > 1e-3 * v.get().abs()).count();
    assert!(unsure < want.data.len() / 50, "{unsure}");
}

#[test]
fn budgets_follow_types_lengths_and_data() {
    let of = |v: f64| Bound::operand(v, DType::BF16);
    assert_eq!(of(1.5).stored(DType::BF16).budget(), 0.0);
    let third = of(1.0).div(of(3.0));
    assert!(third.budget() < 1e-6 && third.stored(DType::BF16).budget() > 1e-3 / 3.0);
    // Sums of rounded numbers grow with the root of their number.
    let rounded = third.stored(DType::BF16);
    let sum = |n: usize| (0..n).fold(Bound::of(0.0), |s, i| if i % 2 == 0 { s.add(rounded) } else { s.sub(rounded) });
    let growth = sum(4096).budget() / sum(256).budget();
    assert!((3.5..4.5).contains(&growth), "{growth}");
    assert_eq!(of(60000.0).mul(of(2.0)).stored(DType::F16).budget(), f64::INFINITY);
    assert_eq!(of(1.0).div(third.sub(third)).budget(), f64::INFINITY);
    // A sigmoid far from zero knows nothing of the errors of its operand.
    let far = third.stored(DType::BF16).mul(of(-3000.0));
    let gate = Bound::of(1.0).div(Bound::of(1.0).add(Bound::of(0.0).sub(far).exp()));
    assert!(gate.get() == 0.0 && gate.budget() < 1e-30, "{gate:?}");
    // But one that may as well be on the other side of zero does.
    let unsure = third.stored(DType::BF16).mul(of(-3e6)).add(of(999_000.0));
    let gate = Bound::of(1.0).div(Bound::of(1.0).add(Bound::of(0.0).sub(unsure).exp()));
    assert_eq!(gate.budget(), f64::INFINITY, "{unsure:?} {gate:?}");
}

/// The largest of a group is near 7, from which on the scale is the next power of two: a number
/// that is known well may be a code by either.
#[test]
fn numbers_are_codes_by_either_scale() {
    let near = |v: f64| Bound::of(v).stored(DType::BF16);
    let coded = |largest: Bound, rule| quantise::coded(&[largest, Bound::of(0.6)], DType::F4E2M1, rule, None)[1];
    for rule in [Rule::Mx(2), Rule::MxCodes(2)] {
        for (largest, value, other) in [(7.001, 1.0, 0.5), (6.999, 0.5, 1.0)] {
            let unsure = coded(near(largest), rule);
            assert_eq!(unsure.get(), value);
            assert!((unsure.get() - other).abs() <= unsure.budget() && unsure.budget() < 0.51, "{unsure:?}");
            assert!(coded(Bound::of(largest), rule).budget() < 1e-6);
        }
    }
    // Of e4m3 the next power of two is taken beyond 448 times the one before, by which the smallest
    // numbers are nothing.
    let coded =
        |largest: f64| quantise::coded(&[near(largest), Bound::of(0.0018)], DType::F8E4M3, Rule::Power(2), None)[1];
    let [unsure, sure] = [447.9, 400.0].map(coded);
    assert!(unsure.get() == sure.get() && sure.budget() < 1e-6 && unsure.budget() >= unsure.get(), "{unsure:?}");
}

#[test]
fn steps_count_and_place() {
    let step = Step::of(RUNS.to_vec());
    assert_eq!((step.tokens(), step.rows(), step.wanted()), (4, 2, vec![2, 3]));
    assert_eq!(step.lengths(), [34, 34, 34, 1]);
    assert_eq!(step.batch().positions, [31, 32, 33, 0]);
    assert_eq!((step.blocks(32), step.table(0, 32), step.table(1, 32)), (5, vec![4, 2], vec![3]));
}

#[test]
fn what_a_trial_needs_is_known_before() {
    let step = Step::of(RUNS.to_vec());
    let needs = |text: &str| need(&parse(text).unwrap(), &MEMORY, &step, 256);
    // x, its norm, n, w, and the result; rows are padded to 32 elements and at most 32 further
    // apart.
    let numbers = 4 * 96 + 4 * 96 + 96 + 40 * 96 + 4 * 40;
    let placed = 2 * (4 * 128 + 4 * 128 + 128 + 64 * 96 + 4 * 96);
    assert_eq!(needs(LINEAR), Some(numbers * 76 + placed));
    let most = 1usize << 40;
    for text in [
        format!("graph @k(%x: f32[{most}, {most}]) {{\n return %x\n}}"),
        format!("graph @k(%x: f32[T, {most}, {most}]) {{\n return %x\n}}"),
        format!("graph @k(%x: f32[{most}, {most}]@panels) {{\n return %x\n}}"),
        format!("graph @k(%x: cache<f32, {most}, {most}>) {{\n return %x\n}}"),
    ] {
        assert_eq!(needs(&text), None, "{text}");
    }
    let large = format!("graph @k(%x: f32[T, {most}]) {{\n return %x\n}}");
    assert!(needs(&large) > Some(most));
}
