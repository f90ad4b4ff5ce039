//! What the steps of weight plans do to numbers.
use super::{Cx, Real, Results, Tensor, Val, dequantised, one};
use crate::trial::of_bits;
use crate::types::{Block, DType, Encode, Encoded, Fact, Order};
use atomc_dtype::WORD;
use atomc_dtype::step::{BOOK_BLOCKS, Step};

pub(crate) fn step<S: Real>(args: &[&Val<S>], _: Cx, step: &Step) -> Results<S> {
    match *step {
        Step::Concat { axis } => concat(args, axis),
        Step::Slice { axis, start, len } => slice(args, axis, start, len),
        Step::Every { axis, step, start } => every(args, axis, step, start),
        Step::Pad { axis, len } => pad(args, axis, len),
        Step::Repeat { axis, times } => repeat(args, axis, times),
        Step::Shard { .. } => Err("is of a rank, and the reference is none".into()),
        Step::Offset { by } => offset(args, by.into()),
        Step::Transpose {} => transpose(args),
        Step::View { ref shape } => one(shape.clone(), args[0].float()?.data.clone()),
        Step::Unpack { from, to, axis, len, order } => unpack(args, [from, to], axis, len, order),
        Step::Sort { bits, axis } => sort(args, bits, axis),
        Step::Places {} => {
            let of = args[0].float()?;
            let all = atomc_dtype::places(&whole(of)).into_iter();
            one(of.shape.clone(), all.map(|place| S::of(place as f64)).collect())
        }
        Step::Shift { by, .. } => offset(args, by.into()),
        Step::Encode { by, made } => encode(args, by, made),
        Step::Times { over } => times(args, over),
        Step::Factor { by } => {
            let x = args[0].float()?;
            one(x.shape.clone(), x.data.iter().map(|v| S::of((v.get() as f32 * by).into())).collect())
        }
        Step::Codebook { ref shape, .. } | Step::NestedCodebook { ref shape, .. } => codebook(args, shape),
        Step::Expect { ref is } => expect(args, is),
        Step::Dequantise { block: [rows, cols], .. } => dequantise(args, Block { rows, cols }),
        Step::Scaled { .. } => Err("is no op of graphs".into()),
    }
}

fn offset<S: Real>(args: &[&Val<S>], by: f64) -> Results<S> {
    let w = args[0].float()?;
    one(w.shape.clone(), w.data.iter().map(|&w| w.add(w.lit(by))).collect())
}

pub(super) fn concat<S: Real>(args: &[&Val<S>], axis: usize) -> Results<S> {
    let parts: Vec<&Tensor<S>> = args.iter().map(|a| a.float()).collect::<Result<_, _>>()?;
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
    let (outer, _, inner) = around(&shape, axis);
    let mut data = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for p in &parts {
            let n = p.shape[axis] * inner;
            data.extend_from_slice(&p.data[o * n..][..n]);
        }
    }
    one(shape, data)
}

pub(super) fn slice<S: Real>(args: &[&Val<S>], axis: usize, start: usize, len: usize) -> Results<S> {
    let x = args[0].float()?;
    let (outer, size, inner) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] = len;
    let pick = |o: usize| x.data[(o * size + start) * inner..][..len * inner].iter().copied();
    one(shape, (0..outer).flat_map(pick).collect())
}

fn every<S: Real>(args: &[&Val<S>], axis: usize, step: usize, start: usize) -> Results<S> {
    let x = args[0].float()?;
    let (outer, size, inner) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] = (size - start).div_ceil(step);
    let places = |o: usize| (start..size).step_by(step).map(move |place| (o * size + place) * inner);
    one(shape, (0..outer).flat_map(places).flat_map(|at| x.data[at..at + inner].iter().copied()).collect())
}

fn pad<S: Real>(args: &[&Val<S>], axis: usize, len: usize) -> Results<S> {
    let x = args[0].float()?;
    let (outer, size, inner) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] = len;
    let mut data = Vec::with_capacity(outer * len * inner);
    for o in 0..outer {
        data.extend_from_slice(&x.data[o * size * inner..][..size * inner]);
        data.resize((o + 1) * len * inner, S::of(0.0));
    }
    one(shape, data)
}

fn repeat<S: Real>(args: &[&Val<S>], axis: usize, times: usize) -> Results<S> {
    let x = args[0].float()?;
    let (_, _, inner) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] *= times;
    one(shape, x.data.chunks(inner).flat_map(|place| place.repeat(times)).collect())
}

fn transpose<S: Real>(args: &[&Val<S>]) -> Results<S> {
    let x = args[0].float()?;
    let &[ref stack @ .., rows, cols] = &x.shape[..] else { return Err("x is no matrix".into()) };
    let turned = |m: &[S]| (0..rows * cols).map(|i| m[i % rows * cols + i / rows]).collect::<Vec<S>>();
    one([stack, &[cols, rows]].concat(), x.data.chunks((rows * cols).max(1)).flat_map(turned).collect())
}

fn unpack<S: Real>(args: &[&Val<S>], [from, to]: [DType; 2], axis: usize, len: usize, order: Order) -> Results<S> {
    let words = args[0].float()?;
    let [_, largest] = from.integers().ok_or("words are integers")?;
    if S::of(largest as f64).get() != largest as f64 {
        return Err(format!("a word of {} is no number of the precision that is computed in", from.name()));
    }
    let codes = from.bits() / to.bits();
    let (outer, size, inner) = around(&words.shape, axis);
    let mut shape = words.shape.clone();
    shape[axis] = len;
    if let Some(bits) = order.bits() {
        let all = whole(words).into_iter().map(|word| word as u32).collect::<Vec<_>>();
        let code = |i: usize| {
            atomc_dtype::code(&all[i / inner / len * size * inner + i % inner..], inner, bits, i / inner % len)
        };
        return one(shape, (0..outer * len * inner).map(|i| S::of(code(i).into())).collect());
    }
    let code = |i: usize| {
        let (o, place, i) = (i / inner / len, i / inner % len, i % inner);
        let word = words.data[(o * size + place / codes) * inner + i].get() as i64 as u32;
        let bits = word >> (order.nth(place % codes) * to.bits()) & ((1 << to.bits()) - 1);
        S::of(of_bits(bits, to))
    };
    one(shape, (0..outer * len * inner).map(code).collect())
}

/// Words of each matrix, whose codes come in the order of the integers of that matrix.
fn sort<S: Real>(args: &[&Val<S>], bits: usize, axis: usize) -> Results<S> {
    let (words, by) = (args[0].float()?, args[1].float()?);
    let len = by.width();
    let (outer, size, inner) = around(&words.shape, axis);
    let all: Vec<u32> = whole(words).into_iter().map(|word| word as u32).collect();
    let keys = whole(by);
    let each = outer / (keys.len() / len).max(1);
    let mut data = vec![0u32; all.len()];
    for i in 0..outer * inner {
        let (o, first) = (i / inner, i / inner * size * inner + i % inner);
        for (to, from) in atomc_dtype::places(&keys[o / each * len..][..len]).into_iter().enumerate() {
            let code = u64::from(atomc_dtype::code(&all[first..], inner, bits, from)) << (to * bits % WORD);
            data[first + to * bits / WORD * inner] |= code as u32;
            if code >> WORD != 0 {
                data[first + (to * bits / WORD + 1) * inner] |= (code >> WORD) as u32;
            }
        }
    }
    one(words.shape.clone(), data.into_iter().map(|word| S::of((word as i32).into())).collect())
}

/// Integers, of words the bits.
fn whole<S: Real>(of: &Tensor<S>) -> Vec<i64> {
    of.data.iter().map(|v| v.get() as i64).collect()
}

fn encode<S: Real>(args: &[&Val<S>], by: Encode, made: Encoded) -> Results<S> {
    let w = args[0].float()?;
    let [stack @ .., rows, cols] = &w.shape[..] else { return Err("a weight is a matrix".into()) };
    let shape = [stack, &by.sizes(made, [*rows, *cols])].concat();
    let matrices = w.data.chunks((rows * cols).max(1));
    one(shape, matrices.flat_map(|matrix| encoded(matrix, by, made, [*rows, *cols])).collect())
}

/// In f32, as tools have it.
fn times<S: Real>(args: &[&Val<S>], over: bool) -> Results<S> {
    let (scales, by) = (args[0].float()?, args[1].float()?);
    let each = (scales.data.len() / by.data.len().max(1)).max(1);
    let of = |(scale, by): (&S, f32)| {
        let scale = scale.get() as f32;
        S::of(if over { scale / by } else { scale * by }.into())
    };
    let tensors = scales.data.chunks(each).zip(&by.data);
    one(
        scales.shape.clone(),
        tensors.flat_map(|(all, by)| all.iter().map(|s| of((s, by.get() as f32))).collect::<Vec<_>>()).collect(),
    )
}

/// In f32, as tools have it.
fn codebook<S: Real>(args: &[&Val<S>], shape: &[usize]) -> Results<S> {
    let floats = |at: usize| Ok::<Vec<f32>, String>(args[at].float()?.data.iter().map(|v| v.get() as f32).collect());
    let (codes, mut scales, book) = (args[0].float()?, floats(1)?, floats(2)?);
    let count: usize = codes.shape.iter().rev().skip(2).product();
    if args.len() > 4 {
        let (outer, outer_book) = (floats(4)?, floats(5)?);
        let offset = nested_offset(&whole(args[3].float()?))? as f32;
        let (each, own) = (scales.len() / count, outer.len() / count);
        for (at, scale) in scales.iter_mut().enumerate() {
            let outer = outer[at / each * own + at % each / BOOK_BLOCKS[1]];
            *scale = outer_book[at / each * 256 + *scale as usize] * outer + offset;
        }
    }
    let all: usize = shape.iter().product();
    let (bytes, blocks) = (codes.data.len() / count, scales.len() / count);
    let float = |at: usize| {
        let (matrix, at) = (at / all, at % all);
        let byte = codes.data[matrix * bytes + at / 2].get() as usize;
        let code = if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        S::of((book[matrix * 16 + code] * scales[matrix * blocks + at / BOOK_BLOCKS[0]]).into())
    };
    let stack = &codes.shape[..codes.shape.len() - 2];
    one([stack, shape].concat(), (0..count * all).map(float).collect())
}

/// The number of a text that is added to scales.
fn nested_offset(text: &[i64]) -> Result<f64, String> {
    let text: String = text.iter().map(|&byte| char::from(byte as u8)).collect();
    let (_, behind) = text.split_once("\"nested_offset\":").ok_or("the text has no nested_offset")?;
    let number = behind.trim_start().split(['}', ',', ' ']).next().unwrap_or("");
    number.parse().map_err(|_| format!("{number:?} is no number"))
}

fn expect<S: Real>(args: &[&Val<S>], is: &Fact) -> Results<S> {
    if is.is_of_floats() {
        let bad = args[1].float()?.data.iter().find(|v| !is.suits(v.get() as f32));
        return match bad {
            Some(bad) => Err(format!("{} is no such number: {}", bad.get(), is.wants())),
            None => Ok(vec![args[0].clone()]),
        };
    }
    let told: Vec<i32> = args[1].float()?.data.iter().map(|v| v.get() as i32).collect();
    match is.fault(&told, args[1].float()?.width()) {
        Some(fault) => Err(fault),
        None => Ok(vec![args[0].clone()]),
    }
}

fn dequantise<S: Real>(args: &[&Val<S>], block: Block) -> Results<S> {
    let (codes, scale) = (args[0].float()?, args[1].float()?);
    let [.., rows, cols] = codes.shape[..] else { return Err("codes are a matrix".into()) };
    let [.., down, along] = scale.shape[..] else { return Err("scales are a matrix".into()) };
    let matrices = codes.data.chunks(rows * cols).zip(scale.data.chunks(down * along));
    let one_matrix = |(codes, scale): (&[S], &[S])| {
        let codes = Tensor::new(vec![rows, cols], codes.to_vec());
        dequantised(&codes, block, &Tensor::new(vec![down, along], scale.to_vec()), None).data
    };
    one(codes.shape.clone(), matrices.flat_map(one_matrix).collect())
}

/// Elements before, along and after an axis.
fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The codes, or the scales, of a matrix as numbers; codes of 4 bits as bytes of two.
fn encoded<S: Real>(matrix: &[S], by: Encode, made: Encoded, [rows, cols]: [usize; 2]) -> Vec<S> {
    let numbers: Vec<f32> = matrix.iter().map(|v| v.get() as f32).collect();
    let [down, along] = by.sizes(Encoded::Scales, [rows, cols]);
    let mut sizes = vec![0.0f32; down * along];
    for (at, number) in numbers.iter().enumerate() {
        let size = &mut sizes[at / cols / by.block[0] * along + at % cols / by.block[1]];
        *size = size.max(number.abs());
    }
    let scales: Vec<f32> = sizes.into_iter().map(|size| by.scale(size)).collect();
    if made == Encoded::Scales {
        return scales.into_iter().map(|scale| S::of(scale.into())).collect();
    }
    let mut codes = vec![0; cols];
    let mut all = Vec::new();
    for (row, numbers) in numbers.chunks(cols.max(1)).enumerate() {
        let own = numbers.chunks(by.block[1]).zip(codes.chunks_mut(by.block[1]));
        for (block, (numbers, codes)) in own.enumerate() {
            by.codes(numbers, scales[row / by.block[0] * along + block], codes);
        }
        let number = |code: u8| S::of(of_bits(code.into(), by.codes));
        let pair = |two: &[u8]| S::of((two[0] | two.get(1).map_or(0, |high| high << 4)).into());
        match by.codes.bits() {
            4 => all.extend(codes.chunks(2).map(pair)),
            _ => all.extend(codes.iter().map(|&code| number(code))),
        }
    }
    all
}
