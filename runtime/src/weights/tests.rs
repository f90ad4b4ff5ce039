mod codes;
mod experts;
mod files;
mod stream;
mod values;

use super::*;
use crate::checkpoint::{Checkpoint, Float, Random, mix};
use crate::device::apart;
use atomc_artifact::manifest::{DType, Fact, Ignored, Order, Pattern, Renamed, TensorNames, Tied, WeightExpr, Whole};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Tensors by name, each of one type.
#[derive(Default)]
struct Map(BTreeMap<String, (Float, Vec<usize>, Vec<u8>)>);

impl Map {
    /// Element `i` is `i` plus `base`, in steps of an eighth.
    fn with(mut self, name: &str, float: Float, shape: &[usize], base: f64) -> Map {
        let value = |i: usize| base + i as f64 / 8.0;
        let bytes = (0..shape.iter().product()).flat_map(|i| encode(value(i), float)).collect();
        self.0.insert(name.to_owned(), (float, shape.to_vec(), bytes));
        self
    }

    /// Any bits.
    fn noise(mut self, name: &str, float: Float, shape: &[usize]) -> Map {
        let seed = name.bytes().map(u64::from).sum::<u64>();
        let bytes = (0..shape.iter().product::<usize>() * float.size()).map(|i| mix(seed << 32 | i as u64) as u8);
        self.0.insert(name.to_owned(), (float, shape.to_vec(), bytes.collect()));
        self
    }

    /// Other values in place of a tensor's.
    fn set(mut self, name: &str, float: Float, values: &[f64]) -> Map {
        let bytes = values.iter().flat_map(|&value| encode(value, float)).collect();
        self.0.get_mut(name).expect("a tensor").2 = bytes;
        self
    }

    /// These integers.
    fn integers(mut self, name: &str, float: Float, shape: &[usize], values: &[i64]) -> Map {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()[..float.size()].to_vec()).collect();
        self.0.insert(name.to_owned(), (float, shape.to_vec(), bytes));
        self
    }

    /// The same as a file.
    fn write(&self, dir: &std::path::Path) -> Checkpoint {
        let view = |(float, shape, bytes): &'_ (Float, Vec<usize>, Vec<u8>)| {
            let dtype = match float {
                Float::BF16 => safetensors::Dtype::BF16,
                Float::F16 => safetensors::Dtype::F16,
                Float::F32 => safetensors::Dtype::F32,
                Float::F64 => safetensors::Dtype::F64,
                Float::I64 => safetensors::Dtype::I64,
                Float::Code(DType::I32) => safetensors::Dtype::I32,
                Float::Code(DType::F8E4M3) => safetensors::Dtype::F8_E4M3,
                Float::Code(DType::I8) => safetensors::Dtype::I8,
                Float::Code(_) => safetensors::Dtype::U8,
            };
            (dtype, shape.clone(), bytes.clone())
        };
        let owned: Vec<_> = self.0.iter().map(|(name, tensor)| (name.clone(), view(tensor))).collect();
        let views = owned.iter().map(|(name, (dtype, shape, bytes))| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
        Checkpoint::open(dir).unwrap()
    }
}

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Another spelling, parts that do not run, and a tied head.
fn names() -> TensorNames {
    let part = |names| Ignored { part: "other".into(), names };
    TensorNames {
        renamed: vec![Renamed { from: "language_model.".into(), to: "model.".into() }],
        ignored: vec![part(Pattern::Begin("model.layers.9.".into())), part(Pattern::End("rotary_emb.inv_freq".into()))],
        tied: Some(Tied { embedding: EMBEDDING.into(), head: HEAD.into() }),
    }
}

fn encode(value: f64, float: Float) -> Vec<u8> {
    match float {
        Float::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        Float::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        Float::F32 => (value as f32).to_le_bytes().to_vec(),
        Float::F64 => value.to_le_bytes().to_vec(),
        // Whatever the bits mean.
        Float::Code(dtype) => (value as i32).to_le_bytes()[..dtype.size()].to_vec(),
        Float::I64 => (value as i64).to_le_bytes().to_vec(),
    }
}

impl Source for Map {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let (float, found, bytes) =
            self.0.get(name).ok_or_else(|| CheckpointError::Missing { names: vec![name.to_owned()] })?;
        assert_eq!(found, shape);
        Ok(Tensor::Bytes { float: *float, bytes })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

fn tensor(name: &str, shape: &[usize]) -> WeightExpr {
    WeightExpr::Tensor { name: name.into(), shape: shape.to_vec() }
}

fn concat(axis: usize, parts: Vec<WeightExpr>) -> WeightExpr {
    WeightExpr::Concat { axis, parts }
}

fn slice(axis: usize, start: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Slice { axis, start, len, of: Box::new(of) }
}

fn stack(name: &str, count: usize, shape: &[usize], whole: Option<(&str, usize, usize)>) -> WeightExpr {
    let whole = whole.map(|(name, start, rows)| Whole { name: name.into(), start, rows });
    WeightExpr::Stack { name: name.into(), count, shape: shape.to_vec(), whole }
}

fn every(axis: usize, step: usize, start: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Every { axis, step, start, of: Box::new(of) }
}

fn pad(axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Pad { axis, len, of: Box::new(of) }
}

fn repeat(axis: usize, times: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Repeat { axis, times, of: Box::new(of) }
}

fn shard(axis: usize, parts: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Shard { axis, parts, of: Box::new(of) }
}

fn weight(dtype: DType, shape: &[usize], layout: Layout, expr: WeightExpr) -> Weight {
    let mut weight =
        Weight { name: "w".into(), dtype, shape: shape.to_vec(), layout, bytes: 0, expr, unsigned_zeros: false };
    let [matrices, rows, cols] = weight.matrices();
    let elements = match layout {
        Layout::Rows { stride } => (matrices * rows - 1) * stride + cols,
        Layout::Panels { rows, cols, .. } => matrices * rows * cols,
    };
    weight.bytes = dtype.bytes(elements);
    weight
}

fn panels(width: usize, group: usize, shape: &[usize]) -> Layout {
    let [.., rows, cols] = *shape else { panic!("no matrix") };
    Layout::Panels { width, group, rows: rows.next_multiple_of(width), cols: cols.next_multiple_of(group) }
}

/// Loads a weight into memory of the host and into a device's own, at once and tensor by tensor,
/// which must come out alike.
fn load_one(weight: &Weight, source: &dyn Source) -> Result<Vec<u8>, Error> {
    let mut pool = Pool::new(3).unwrap();
    let mut loaded = |buffer: DeviceBuffer| {
        let mut buffers = [buffer];
        let weights = std::slice::from_ref(weight);
        load(Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool }, &names(), source, &|_, _| ())?;
        let mut bytes = vec![0; weight.bytes];
        buffers[0].download(0, &mut bytes)?;
        Ok::<_, Error>(bytes)
    };
    let bytes = loaded(DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap()))?;
    assert!(loaded(apart::memory(weight.bytes)).unwrap() == bytes, "staged weights differ");
    for buffer in [DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap()), apart::memory(weight.bytes)] {
        let mut stream = Stream::new(std::slice::from_ref(weight), vec![buffer]);
        for name in source.names() {
            stream.feed(name, source).unwrap();
        }
        if !source.names().is_empty() || matches!(weight.expr, WeightExpr::Const { .. }) {
            stream.finish().unwrap();
            assert!(stream.bytes(0) == bytes, "weights of a stream differ");
        }
    }
    Ok(bytes)
}

/// A load of tensors that come one by one.
struct Stream<'a> {
    weights: &'a [Weight],
    buffers: Vec<DeviceBuffer>,
    pool: Pool,
    loading: Loading,
}

impl Stream<'_> {
    fn new(weights: &[Weight], buffers: Vec<DeviceBuffer>) -> Stream<'_> {
        Stream { weights, buffers, pool: Pool::new(2).unwrap(), loading: Loading::new(weights, &names(), Rank::ONLY) }
    }

    fn feed(&mut self, name: &str, source: &dyn Source) -> Result<(), Error> {
        let shapes: BTreeMap<_, _> = self.weights.iter().flat_map(|weight| weight.expr.tensors()).collect();
        // What no weight uses is taken or refused by its name, but for a head that the embedding
        // stands for.
        let found = shapes.get(&names().name(name)).or_else(|| shapes.get(EMBEDDING).filter(|_| name == HEAD));
        let Some(shape) = found else {
            return self.give(name, Given { float: Float::F32, shape: &[0], numbers: vec![].into() });
        };
        let (float, bytes) = match source.tensor(name, shape).expect("a tensor") {
            Tensor::Bytes { float, bytes } => (float, bytes.to_vec()),
            Tensor::Stored { float, numbers } => (float, numbers.to_vec().expect("a file")),
            other => panic!("no bytes for {name}: {other:?}"),
        };
        let given = Given { float, shape, numbers: (&bytes[..]).into() };
        self.give(name, given)
    }

    fn give(&mut self, name: &str, given: Given) -> Result<(), Error> {
        let Stream { weights, buffers, pool, loading } = self;
        loading.feed(name, given, Sink { weights, rank: Rank::ONLY, buffers, pool })
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Stream { weights, buffers, pool, loading } = self;
        let loading = std::mem::replace(loading, Loading::new(weights, &names(), Rank::ONLY));
        loading.finish(Sink { weights, rank: Rank::ONLY, buffers, pool })
    }

    fn bytes(&self, index: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.weights[index].bytes];
        self.buffers[index].download(0, &mut bytes).unwrap();
        bytes
    }
}

/// An element by its indices.
type Element<'a> = Box<dyn Fn(&[usize]) -> f64 + 'a>;

/// The value of an expression, the slow and obvious way: its shape, and every element by its
/// indices.
struct Value<'a> {
    shape: Vec<usize>,
    element: Element<'a>,
}

impl<'a> Value<'a> {
    fn stored(shape: &[usize], elements: Vec<f64>) -> Value<'a> {
        let shape = shape.to_vec();
        let sizes = shape.clone();
        let number = move |at: &[usize]| at.iter().zip(&sizes).fold(0, |number, (at, size)| number * size + at);
        Value { shape, element: Box::new(move |at| elements[number(at)]) }
    }

    /// The part of an axis that begins at `start`.
    fn cut(self, axis: usize, start: usize, len: usize) -> Value<'a> {
        let Value { mut shape, element } = self;
        shape[axis] = len;
        Value { shape, element: Box::new(move |at| element(&moved(at, axis, start as isize))) }
    }

    fn join(axis: usize, parts: Vec<Value<'a>>) -> Value<'a> {
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let element = move |at: &[usize]| {
            let mut start = 0;
            let mut holds = |part: &&Value| {
                start += part.shape[axis];
                at[axis] < start
            };
            let part = parts.iter().find(&mut holds).unwrap();
            (part.element)(&moved(at, axis, part.shape[axis] as isize - start as isize))
        };
        Value { shape, element: Box::new(element) }
    }

    /// The elements in order.
    fn elements(&self) -> Vec<f64> {
        let all = self.shape.iter().product();
        let indices = |mut number: usize| {
            let mut at: Vec<usize> = self.shape.iter().rev().map(|size| (number % size, number /= size).0).collect();
            at.reverse();
            at
        };
        (0..all).map(|number| (self.element)(&indices(number))).collect()
    }
}

fn moved(at: &[usize], axis: usize, by: isize) -> Vec<usize> {
    let mut at = at.to_vec();
    at[axis] = at[axis].strict_add_signed(by);
    at
}

fn decoded(data: Tensor) -> Vec<f64> {
    let Tensor::Bytes { float, bytes } = data else { panic!("bytes") };
    let decode = |b: &[u8]| match float {
        Float::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        Float::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        Float::F32 => f32::from_le_bytes(b.try_into().unwrap()).into(),
        Float::F64 => f64::from_le_bytes(b.try_into().unwrap()) as f32 as f64,
        Float::Code(DType::I32) => i32::from_le_bytes(b.try_into().unwrap()).into(),
        Float::Code(_) => b[0].into(),
        Float::I64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
    };
    bytes.chunks_exact(float.size()).map(decode).collect()
}

fn evaluate(expr: &WeightExpr, rank: Rank, source: &dyn Source) -> Vec<f64> {
    let value = expr.fold(&mut |expr, of: Vec<Value>| {
        let mut all = of.into_iter();
        let mut next = || all.next().unwrap();
        match *expr {
            WeightExpr::Const { ref values } => {
                Value::stored(&[values.len()], values.iter().map(|&v| v.into()).collect())
            }
            WeightExpr::Tensor { ref name, ref shape } => {
                Value::stored(shape, decoded(source.tensor(name, shape).unwrap()))
            }
            WeightExpr::Stack { ref name, count, ref shape, ref whole } => {
                match whole.as_ref().filter(|whole| source.names().contains(&&*whole.name)) {
                    Some(Whole { name, start, rows }) => {
                        let stored = [&[count, *rows], &shape[1..]].concat();
                        Value::stored(&stored, decoded(source.tensor(name, &stored).unwrap())).cut(1, *start, shape[0])
                    }
                    None => {
                        let one = |number: usize| {
                            decoded(source.tensor(&name.replace('*', &number.to_string()), shape).unwrap())
                        };
                        Value::stored(&[&[count], &shape[..]].concat(), (0..count).flat_map(one).collect())
                    }
                }
            }
            WeightExpr::Every { axis, step, start, .. } => {
                let Value { mut shape, element } = next();
                shape[axis] = (shape[axis] - start).div_ceil(step);
                let place = move |at: &[usize]| {
                    let mut at = at.to_vec();
                    at[axis] = start + at[axis] * step;
                    element(&at)
                };
                Value { shape, element: Box::new(place) }
            }
            WeightExpr::Pad { axis, len, .. } => {
                let Value { mut shape, element } = next();
                let size = std::mem::replace(&mut shape[axis], len);
                Value { shape, element: Box::new(move |at| if at[axis] < size { element(at) } else { 0.0 }) }
            }
            WeightExpr::Repeat { axis, times, .. } => {
                let Value { mut shape, element } = next();
                shape[axis] *= times;
                let place = move |at: &[usize]| {
                    let mut at = at.to_vec();
                    at[axis] /= times;
                    element(&at)
                };
                Value { shape, element: Box::new(place) }
            }
            WeightExpr::Concat { axis, .. } => Value::join(axis, all.collect()),
            WeightExpr::Slice { axis, start, len, .. } => next().cut(axis, start, len),
            WeightExpr::Shard { axis, parts, .. } => {
                let of = next();
                let len = of.shape[axis] / parts;
                of.cut(axis, rank.number * parts / rank.of * len, len)
            }
            WeightExpr::Offset { by, .. } => {
                let Value { shape, element } = next();
                Value { shape, element: Box::new(move |at| (element(at) as f32 + by).into()) }
            }
            WeightExpr::Transpose { .. } => {
                let Value { mut shape, element } = next();
                let last = shape.len() - 1;
                shape.swap(last - 1, last);
                let turned = move |at: &[usize]| {
                    let mut at = at.to_vec();
                    at.swap(last - 1, last);
                    element(&at)
                };
                Value { shape, element: Box::new(turned) }
            }
            WeightExpr::View { ref shape, .. } => Value::stored(shape, next().elements()),
            WeightExpr::Unpack { from, to, axis, len, order, .. } => {
                let Value { mut shape, element } = next();
                shape[axis] = len;
                let places = from.bits() / to.bits();
                if let Some(bits) = order.bits() {
                    let code = move |at: &[usize]| dense(&|word| element(&with(at, axis, word)), bits, at[axis]);
                    return Value { shape, element: Box::new(code) };
                }
                let code = move |at: &[usize]| {
                    let mut word = at.to_vec();
                    word[axis] /= places;
                    let nth = match order {
                        Order::Plain => at[axis] % places,
                        Order::Awq => [0, 4, 1, 5, 2, 6, 3, 7][at[axis] % places],
                        Order::Twos | Order::Threes => unreachable!("codes of as many bits as they are stored in"),
                    };
                    let code = element(&word) as i64 as u32 >> (nth * to.bits()) & ((1 << to.bits()) - 1);
                    let signed = matches!(to, DType::I8 | DType::I4) && code >> (to.bits() - 1) == 1;
                    f64::from(code) - if signed { f64::from(1 << to.bits()) } else { 0.0 }
                };
                Value { shape, element: Box::new(code) }
            }
            WeightExpr::Sort { bits, axis, .. } => {
                let Value { shape, element } = next();
                let mut by: Vec<(i64, usize)> = next().elements().iter().map(|&v| v as i64).zip(0..).collect();
                by.sort();
                // The stream of bits, one by one.
                let word = move |at: &[usize]| {
                    let bit = |bit: usize| {
                        let (code, nth) = ((at[axis] * 32 + bit) / bits, (at[axis] * 32 + bit) % bits);
                        let code = by.get(code).map(|(_, from)| dense(&|w| element(&with(at, axis, w)), bits, *from));
                        (code.unwrap_or(0.0) as u32 >> nth & 1) << bit
                    };
                    f64::from((0..32).map(bit).fold(0, |all, bit| all | bit) as i32)
                };
                Value { shape, element: Box::new(word) }
            }
            WeightExpr::Shift { by, .. } => {
                let Value { shape, element } = next();
                Value { shape, element: Box::new(move |at| element(at) + f64::from(by)) }
            }
            WeightExpr::Expect { .. } | WeightExpr::Scaled { .. } => next(),
            _ => unreachable!("no plan here makes codes"),
        }
    });
    value.elements()
}

/// A place with another one along an axis.
fn with(at: &[usize], axis: usize, place: usize) -> Vec<usize> {
    let mut at = at.to_vec();
    at[axis] = place;
    at
}

/// A code of a stream of bits, bit by bit.
fn dense(word: &dyn Fn(usize) -> f64, bits: usize, number: usize) -> f64 {
    let bit = |nth: usize| (word((number * bits + nth) / 32) as i64 as u32 >> ((number * bits + nth) % 32) & 1) << nth;
    (0..bits).map(bit).sum::<u32>().into()
}

/// The buffer as the manifest's formula describes it.
fn reference(weight: &Weight, rank: Rank, source: &dyn Source) -> Vec<u8> {
    let mut out = vec![0; weight.bytes];
    let [_, rows, cols] = weight.matrices();
    for (index, value) in evaluate(&weight.expr, rank, source).into_iter().enumerate() {
        let (matrix, r, c) = (index / cols / rows, index / cols % rows, index % cols);
        let at = match weight.layout {
            Layout::Rows { stride } => (matrix * rows + r) * stride + c,
            Layout::Panels { width, group, rows, cols } => {
                let inside = ((r / width) * (cols / group) + c / group) * width * group + (r % width) * group;
                matrix * rows * cols + inside + c % group
            }
        };
        let float = match weight.dtype {
            DType::BF16 => Float::BF16,
            DType::F16 => Float::F16,
            DType::F32 => Float::F32,
            code => Float::Code(code),
        };
        if weight.dtype.bits() == 4 {
            out[at / 2] |= (value as i32 as u8 & 15) << (at % 2 * 4);
            continue;
        }
        let size = weight.dtype.size();
        out[at * size..][..size].copy_from_slice(&encode(value, float));
    }
    out
}

#[track_caller]
fn agrees(weight: &Weight, source: &dyn Source) {
    assert_eq!(load_one(weight, source).unwrap(), reference(weight, Rank::ONLY, source), "{weight:?}");
}

fn unpack(from: DType, to: DType, axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from, to, axis, len, order: Order::Plain, of: Box::new(of) }
}

fn transpose(of: WeightExpr) -> WeightExpr {
    WeightExpr::Transpose { of: Box::new(of) }
}

fn shift(by: i32, to: DType, of: WeightExpr) -> WeightExpr {
    WeightExpr::Shift { by, to, of: Box::new(of) }
}

fn view(shape: &[usize], of: WeightExpr) -> WeightExpr {
    WeightExpr::View { shape: shape.to_vec(), of: Box::new(of) }
}

/// Fills a weight that uses only some of a source.
fn load_part(weight: &Weight, rank: Rank, source: &dyn Source) -> Vec<u8> {
    let mut out = vec![0; weight.bytes];
    load_over(weight, rank, source, &mut out);
    out
}

fn load_over(weight: &Weight, rank: Rank, source: &dyn Source, out: &mut [u8]) {
    let pieces = resolve(std::slice::from_ref(weight), rank, source).unwrap();
    for task in tasks(0, weight) {
        fill(weight, &pieces[0], &task.rows, &mut out[task.bytes], &mut vec![0xee; 3]).unwrap();
    }
}

/// The bits of a weight's buffer that are not padding.
fn reference_mask(weight: &Weight) -> Vec<u8> {
    let shape = weight.shape.clone();
    let ones = Map::default().integers("ones", Float::I64, &shape, &vec![-1; shape.iter().product()]);
    let all = Weight { expr: tensor("ones", &shape), ..weight.clone() };
    match weight.dtype.is_float() {
        true => {
            let places = Weight { dtype: if weight.dtype.size() == 4 { DType::I32 } else { weight.dtype }, ..all };
            let bytes = reference(&places, Rank::ONLY, &ones);
            bytes
                .chunks(weight.dtype.size())
                .flat_map(|n| vec![if n.iter().any(|&b| b != 0) { 255 } else { 0 }; n.len()])
                .collect()
        }
        false => reference(&all, Rank::ONLY, &ones),
    }
}
