use super::*;
use crate::checkpoint::{Checkpoint, Float, Random, mix};
use crate::device::apart;
use atomc_artifact::manifest::{DType, Fact, Order, Term, WeightExpr, Whole};
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

fn shard(axis: usize, parts: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Shard { axis, parts, of: Box::new(of) }
}

fn weight(dtype: DType, shape: &[usize], layout: Layout, expr: WeightExpr) -> Weight {
    let mut weight = Weight { name: "w".into(), dtype, shape: shape.to_vec(), layout, bytes: 0, expr };
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
        load(Sink { weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool }, source, &|_, _| ())?;
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
        Stream { weights, buffers, pool: Pool::new(2).unwrap(), loading: Loading::new(weights, Rank::ONLY) }
    }

    fn feed(&mut self, name: &str, source: &dyn Source) -> Result<(), Error> {
        let shapes: BTreeMap<_, _> = self.weights.iter().flat_map(|weight| weight.expr.tensors()).collect();
        // What no weight uses is taken or refused by its name, but for a head that the embedding
        // stands for.
        let found = shapes.get(name).or_else(|| shapes.get(EMBEDDING).filter(|_| name == HEAD));
        let Some(shape) = found else {
            return self.give(name, Given { float: Float::F32, shape: &[0], numbers: vec![].into() });
        };
        let Ok(Tensor::Bytes { float, bytes }) = source.tensor(name, shape) else { panic!("no bytes for {name}") };
        let given = Given { float, shape, numbers: bytes.into() };
        self.give(name, given)
    }

    fn give(&mut self, name: &str, given: Given) -> Result<(), Error> {
        let Stream { weights, buffers, pool, loading } = self;
        loading.feed(name, given, Sink { weights, rank: Rank::ONLY, buffers, pool })
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Stream { weights, buffers, pool, loading } = self;
        let loading = std::mem::replace(loading, Loading::new(weights, Rank::ONLY));
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
    let value = expr.fold(&mut |term| match term {
        Term::Const { values } => Value::stored(&[values.len()], values.iter().map(|&v| v.into()).collect()),
        Term::Tensor { name, shape } => Value::stored(shape, decoded(source.tensor(name, shape).unwrap())),
        Term::Stack { name, count, shape, whole } => match whole.filter(|whole| source.names().contains(&&*whole.name))
        {
            Some(Whole { name, start, rows }) => {
                let stored = [&[count, *rows], &shape[1..]].concat();
                Value::stored(&stored, decoded(source.tensor(name, &stored).unwrap())).cut(1, *start, shape[0])
            }
            None => {
                let one =
                    |number: usize| decoded(source.tensor(&name.replace('*', &number.to_string()), shape).unwrap());
                Value::stored(&[&[count], shape].concat(), (0..count).flat_map(one).collect())
            }
        },
        Term::Every { axis, step, start, of: Value { mut shape, element } } => {
            shape[axis] = (shape[axis] - start).div_ceil(step);
            let place = move |at: &[usize]| {
                let mut at = at.to_vec();
                at[axis] = start + at[axis] * step;
                element(&at)
            };
            Value { shape, element: Box::new(place) }
        }
        Term::Pad { axis, len, of: Value { mut shape, element } } => {
            let size = std::mem::replace(&mut shape[axis], len);
            Value { shape, element: Box::new(move |at| if at[axis] < size { element(at) } else { 0.0 }) }
        }
        Term::Concat { axis, parts } => Value::join(axis, parts),
        Term::Slice { axis, start, len, of } => of.cut(axis, start, len),
        Term::Shard { axis, parts, of } => {
            let len = of.shape[axis] / parts;
            of.cut(axis, rank.number * parts / rank.of * len, len)
        }
        Term::Offset { by, of: Value { shape, element } } => {
            Value { shape, element: Box::new(move |at| (element(at) as f32 + by).into()) }
        }
        Term::Transpose { of: Value { mut shape, element } } => {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
            let turned = move |at: &[usize]| {
                let mut at = at.to_vec();
                at.swap(last - 1, last);
                element(&at)
            };
            Value { shape, element: Box::new(turned) }
        }
        Term::View { shape, of } => Value::stored(shape, of.elements()),
        Term::Unpack { from, to, axis, len, order, of: Value { mut shape, element } } => {
            shape[axis] = len;
            let places = from.bits() / to.bits();
            let code = move |at: &[usize]| {
                let mut word = at.to_vec();
                word[axis] /= places;
                let nth = match order {
                    Order::Plain => at[axis] % places,
                    Order::Awq => [0, 4, 1, 5, 2, 6, 3, 7][at[axis] % places],
                };
                let code = element(&word) as i64 as u32 >> (nth * to.bits()) & ((1 << to.bits()) - 1);
                let signed = matches!(to, DType::I8 | DType::I4) && code >> (to.bits() - 1) == 1;
                f64::from(code) - if signed { f64::from(1 << to.bits()) } else { 0.0 }
            };
            Value { shape, element: Box::new(code) }
        }
        Term::Shift { by, of: Value { shape, element }, .. } => {
            Value { shape, element: Box::new(move |at| element(at) + f64::from(by)) }
        }
        Term::Expect { of, .. } | Term::Scaled { of, .. } => of,
    });
    value.elements()
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

#[test]
fn layouts_and_types() {
    let shapes: [[usize; 2]; 5] = [[1, 1], [16, 64], [37, 51], [5, 700], [130, 18]];
    for shape in shapes {
        for from in [Float::BF16, Float::F16, Float::F32, Float::F64] {
            let source = Map::default().with("t", from, &shape, -3.0);
            for to in [DType::BF16, DType::F16, DType::F32] {
                let mut layouts = vec![Layout::Rows { stride: shape[1] }, Layout::Rows { stride: shape[1] + 13 }];
                layouts.extend(
                    [(16, 2), (8, 1), (1, 4), (3, 5), (32, 8), (16, 64)]
                        .map(|(width, group)| panels(width, group, &shape)),
                );
                for layout in layouts {
                    agrees(&weight(to, &shape, layout, tensor("t", &shape)), &source);
                }
            }
        }
    }
}

/// What checkpoints store weights as is copied bit by bit, and made of nothing else.
#[test]
fn codes_stay_as_they_are() {
    let shape = [37, 51];
    let codes = [DType::F8E4M3, DType::E8M0, DType::I8, DType::U8, DType::I32];
    for from in codes {
        let values: Vec<i64> = (0..37 * 51).map(|i| i % 120).collect();
        let source = Map::default().integers("t", Float::Code(from), &shape, &values);
        for to in codes {
            for layout in [Layout::Rows { stride: 64 }, panels(16, 4, &shape), panels(8, 16, &shape)] {
                let weight = weight(to, &shape, layout, tensor("t", &shape));
                if from == to || (from, to) == (DType::U8, DType::E8M0) {
                    agrees(&weight, &source);
                    continue;
                }
                let says = format!(
                    "tensor `t` is of type {}, of which no weight of type {} can be made",
                    from.name(),
                    to.name()
                );
                assert_eq!(load_one(&weight, &source).unwrap_err().to_string(), says);
            }
        }
        let float = weight(DType::BF16, &shape, panels(16, 2, &shape), tensor("t", &shape));
        assert!(load_one(&float, &source).is_err());
        let code = weight(from, &shape, panels(16, 2, &shape), tensor("t", &shape));
        assert!(load_one(&code, &Map::default().with("t", Float::F32, &shape, 1.0)).is_err());
        // What is made up are numbers.
        let made_up = load_part(&code, Rank::ONLY, &Random { seed: 1 });
        assert!(
            made_up.iter().any(|&byte| byte != 0)
                && made_up.iter().all(|byte| byte & 0x7f != 0x7f || from != DType::F8E4M3)
        );
    }
}

#[test]
fn expressions() {
    let source = Map::default()
        .with("q", Float::BF16, &[40, 24], 0.0)
        .with("k", Float::F32, &[9, 24], 1000.0)
        .with("wide", Float::BF16, &[49, 301], -7.0)
        .with("bias", Float::F16, &[30], 5.0);
    let rows =
        || concat(0, vec![tensor("q", &[40, 24]), slice(0, 2, 6, tensor("k", &[9, 24])), tensor("q", &[40, 24])]);
    let both =
        || concat(1, vec![concat(0, vec![tensor("q", &[40, 24]), tensor("k", &[9, 24])]), tensor("wide", &[49, 301])]);
    let cut = || slice(1, 3, 299, slice(0, 7, 40, both()));
    let cases = [
        (vec![86, 24], rows()),
        (vec![49, 325], both()),
        (vec![40, 299], cut()),
        (vec![35, 24], slice(0, 20, 35, rows())),
        (vec![13, 5], slice(0, 37, 13, slice(1, 1, 5, rows()))),
        (vec![19, 24], concat(0, vec![shard(0, 4, tensor("q", &[40, 24])), tensor("k", &[9, 24])])),
        (
            vec![13, 12],
            concat(0, vec![shard(1, 2, tensor("k", &[9, 24])), shard(0, 10, shard(1, 2, tensor("q", &[40, 24])))]),
        ),
        (vec![7, 43], shard(1, 7, shard(0, 7, tensor("wide", &[49, 301])))),
    ];
    let cases = cases.iter().flat_map(|case| [(0, 1), (0, 4), (1, 4), (3, 4), (6, 7)].map(|rank| (case.clone(), rank)));
    for ((shape, expr), (number, of)) in cases {
        let rank = Rank { number, of };
        let shape: [usize; 2] = shape.try_into().unwrap();
        for layout in [Layout::Rows { stride: shape[1] }, panels(16, 2, &shape), panels(8, 4, &shape)] {
            for to in [DType::BF16, DType::F32] {
                let weight = weight(to, &shape, layout, expr.clone());
                assert_eq!(load_part(&weight, rank, &source), reference(&weight, rank, &source), "{weight:?}");
            }
        }
    }
    let vector = concat(
        0,
        vec![
            slice(0, 3, 20, tensor("bias", &[30])),
            WeightExpr::Const { values: vec![1.5, -2.25] },
            tensor("bias", &[30]),
        ],
    );
    let raised = WeightExpr::Offset { by: 1.0, of: Box::new(vector.clone()) };
    for (to, expr) in [(DType::F32, vector), (DType::F32, raised.clone()), (DType::BF16, raised)] {
        let weight = weight(to, &[52], Layout::Rows { stride: 52 }, expr);
        assert_eq!(load_part(&weight, Rank::ONLY, &source), reference(&weight, Rank::ONLY, &source));
    }
}

/// Experts are a stack of matrices, stacked from a tensor each or in the checkpoint already.
#[test]
fn stacks_of_matrices() {
    let source = Map::default()
        .with("a", Float::BF16, &[1, 20, 36], 0.0)
        .with("b", Float::BF16, &[1, 20, 36], -100.0)
        .with("all", Float::F32, &[5, 40, 36], 7.0)
        .with("deep", Float::F16, &[2, 3, 10, 7], 1.0);
    let all = || tensor("all", &[5, 40, 36]);
    let stack = || concat(0, vec![tensor("a", &[1, 20, 36]), tensor("b", &[1, 20, 36])]);
    let cases = [
        (vec![5, 40, 36], all()),
        (vec![2, 20, 36], stack()),
        (vec![7, 20, 36], concat(0, vec![stack(), slice(1, 10, 20, all())])),
        (vec![2, 60, 36], concat(1, vec![stack(), slice(0, 3, 2, all())])),
        (vec![2, 20, 72], concat(2, vec![stack(), slice(1, 20, 20, slice(0, 1, 2, all()))])),
        (vec![5, 10, 18], shard(2, 2, shard(1, 4, all()))),
        (vec![1, 20, 36], slice(1, 3, 20, shard(0, 5, all()))),
        (vec![2, 2, 10, 5], slice(3, 1, 5, slice(1, 1, 2, tensor("deep", &[2, 3, 10, 7])))),
        (vec![1, 3, 20, 7], concat(2, vec![shard(0, 2, tensor("deep", &[2, 3, 10, 7])); 2])),
    ];
    for (shape, expr) in &cases {
        for (number, of) in [(0, 1), (0, 4), (3, 4)] {
            let rank = Rank { number, of };
            let cols = shape[shape.len() - 1];
            for layout in [Layout::Rows { stride: cols + 3 }, panels(16, 2, shape), panels(8, 4, shape)] {
                let weight = weight(DType::BF16, shape, layout, expr.clone());
                assert_eq!(load_part(&weight, rank, &source), reference(&weight, rank, &source), "{weight:?}");
            }
        }
    }
    let large = [3, 600, 1500];
    let source = Map::default().with("t", Float::BF16, &large, 0.0);
    for layout in [Layout::Rows { stride: 1504 }, panels(16, 8, &large)] {
        let weight = weight(DType::BF16, &large, layout, tensor("t", &large));
        assert!(tasks(0, &weight).len() > 4);
        agrees(&weight, &source);
    }
}

/// Experts as checkpoints have them: a tensor each, in one tensor, as columns with gate and up in
/// turn, as codes of 4 bits; for ranks that share out experts, or the width of each.
#[test]
fn experts_as_checkpoints_store_them() {
    use DType::{F4E2M1, I8, U8};
    let (count, wide, hidden) = (5, 14, 36);
    let mut map = Map::default()
        .with("gate_up", Float::F16, &[count, 2 * wide, hidden], 0.0)
        .with("turned", Float::BF16, &[count, hidden, 2 * wide], -9.0)
        .noise("blocks", Float::Code(U8), &[count, 2 * wide, 3, 6])
        .noise("scales", Float::Code(U8), &[count, 2 * wide, 3])
        .with("bias", Float::BF16, &[count, 2 * wide], 3.0);
    for number in 0..count {
        let name = |part: &str| format!("e.{number}.{part}");
        map = map
            .with(&name("gate"), Float::BF16, &[wide, hidden], 100.0 * number as f64)
            .with(&name("up"), Float::F32, &[wide, hidden], -100.0 * number as f64)
            .with(&name("scale"), Float::F32, &[wide], number as f64)
            .noise(&name("words"), Float::Code(DType::I32), &[hidden.div_ceil(8), wide])
            .noise(&name("codes"), Float::Code(I8), &[wide, hidden]);
    }
    let each = |part: &str, shape: &[usize]| stack(&format!("e.*.{part}"), count, shape, None);
    let gate = || each("gate", &[wide, hidden]);
    let both = || concat(1, vec![gate(), each("up", &[wide, hidden])]);
    let turned = || transpose(tensor("turned", &[count, hidden, 2 * wide]));
    let blocks = || {
        let bytes = view(&[count, 2 * wide, 18], tensor("blocks", &[count, 2 * wide, 3, 6]));
        unpack(U8, F4E2M1, 2, hidden, bytes)
    };
    let apart = |of: &dyn Fn() -> WeightExpr| concat(1, vec![every(1, 2, 0, of()), every(1, 2, 1, of())]);
    let half = wide / 2;
    let cases = [
        (DType::BF16, vec![count, 2 * wide, hidden], both()),
        (DType::BF16, vec![count, wide, hidden], stack("e.*.gate", count, &[wide, hidden], Some(("none", 0, 99)))),
        (
            DType::BF16,
            vec![count, wide, hidden],
            stack("x.*.up", count, &[wide, hidden], Some(("gate_up", wide, 2 * wide))),
        ),
        (DType::BF16, vec![count, 2 * wide, hidden], apart(&turned)),
        (DType::BF16, vec![count, 2 * wide, hidden], concat(1, vec![turned()])),
        (DType::BF16, vec![count, hidden, wide], every(2, 2, 1, tensor("turned", &[count, hidden, 2 * wide]))),
        (DType::BF16, vec![count, 5, 12], every(2, 3, 2, every(1, 3, 1, gate()))),
        (DType::BF16, vec![2, hidden, 7], transpose(every(1, 2, 1, every(0, 4, 0, gate())))),
        (F4E2M1, vec![count, 2 * wide, hidden], apart(&blocks)),
        (DType::E8M0, vec![count, wide, 3], every(1, 2, 1, tensor("scales", &[count, 2 * wide, 3]))),
        (DType::F32, vec![count, wide], every(1, 2, 0, tensor("bias", &[count, 2 * wide]))),
        (DType::F32, vec![count, wide, 1], view(&[count, wide, 1], each("scale", &[wide]))),
        (DType::I4, vec![count, wide, hidden], {
            let words = each("words", &[hidden.div_ceil(8), wide]);
            shift(-8, DType::I4, transpose(unpack(DType::I32, DType::U4, 1, hidden, words)))
        }),
        (I8, vec![count, wide, hidden], each("codes", &[wide, hidden])),
        // Ranks: experts, an odd one short; the width of each; groups that do not divide.
        (DType::BF16, vec![3, 2 * wide, hidden], shard(0, 2, pad(0, 6, both()))),
        (DType::BF16, vec![count, 2 * half, hidden], {
            concat(1, vec![shard(1, 2, gate()), shard(1, 2, each("up", &[wide, hidden]))])
        }),
        (DType::BF16, vec![count, hidden, half], transpose(shard(1, 2, gate()))),
        (F4E2M1, vec![count, 8, hidden], shard(1, 2, pad(1, 16, every(1, 2, 1, blocks())))),
        (F4E2M1, vec![count, 2 * wide, 20], shard(2, 2, pad(2, 40, blocks()))),
        (DType::F32, vec![count, 8], shard(1, 2, pad(1, 16, every(1, 2, 1, tensor("bias", &[count, 2 * wide]))))),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, shape, expr) in &cases {
        for (number, of) in [(0, 1), (0, 2), (1, 2)] {
            let (rank, cols) = (Rank { number, of }, shape[shape.len() - 1]);
            let group = (64 / dtype.bits()).min(8);
            for layout in [Layout::Rows { stride: (cols + 3).next_multiple_of(8) }, panels(16, group, shape)] {
                let weight = weight(*dtype, shape, layout, expr.clone());
                let want = reference(&weight, rank, &map);
                assert!(want.iter().any(|&byte| byte != 0));
                assert_eq!(load_part(&weight, rank, &map), want, "{weight:?} {rank:?}");
                assert_eq!(load_part(&weight, rank, &file), want, "{weight:?} {rank:?} of a file");
            }
        }
    }
}

/// Tensors of experts in any order, and those of a checkpoint that has them in one.
#[test]
fn experts_come_one_by_one_or_together() {
    let (count, shape) = (12, [6, 10]);
    let gate = || stack("e.*.gate", count, &shape, Some(("gate_up", 0, 12)));
    let up = || stack("e.*.up", count, &shape, Some(("gate_up", 6, 12)));
    let down = || stack("e.*.down", count, &[10, 6], Some(("down", 0, 10)));
    let weights = [
        weight(DType::BF16, &[count, 12, 10], panels(8, 2, &[12, 10]), concat(1, vec![gate(), up()])),
        weight(DType::BF16, &[count, 10, 6], panels(8, 2, &[10, 6]), down()),
    ];
    let buffers = || weights.iter().map(|weight| apart::memory(weight.bytes)).collect::<Vec<_>>();
    let mut each = Map::default();
    for (at, number) in (0..count).flat_map(|number| [number; 3].into_iter().enumerate()) {
        let (part, shape) = [("gate", shape), ("up", shape), ("down", [10, 6])][at];
        each = each.with(&format!("e.{number}.{part}"), Float::BF16, &shape, (number * 3 + at) as f64);
    }
    let together = Map::default().with("gate_up", Float::F32, &[count, 12, 10], 4.0);
    let together = together.with("down", Float::F16, &[count, 10, 6], -4.0);
    let at_once = |source: &Map| {
        let (mut buffers, pool) = (buffers(), &mut Pool::new(2).unwrap());
        let sink = Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool };
        load(sink, source, &|_, _| ())
    };
    for source in [&each, &together] {
        at_once(source).unwrap();
        let mut names = source.names();
        for _ in 0..2 {
            names.reverse();
            let mut stream = Stream::new(&weights, buffers());
            for name in &names {
                stream.feed(name, source).unwrap();
            }
            assert_eq!(stream.loading.kept_bytes(), 0);
            stream.finish().unwrap();
            for (index, weight) in weights.iter().enumerate() {
                assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, source));
            }
        }
    }
    // What is missing or there twice is named.
    let mut without = Map(each.0.clone());
    without.0.remove("e.7.up");
    without.0.remove("e.11.gate");
    let lacks = "the checkpoint lacks 2 tensors that the model needs: e.11.gate, e.7.up";
    assert_eq!(at_once(&without).unwrap_err().to_string(), lacks);
    let mut stream = Stream::new(&weights, buffers());
    without.names().into_iter().for_each(|name| stream.feed(name, &without).unwrap());
    assert_eq!(stream.finish().unwrap_err().to_string(), lacks);
    let mut both = Map(each.0.clone());
    both.0.extend(together.0.clone());
    let twice = "the checkpoint has both `gate_up` and `e.0.gate`, which are the same weights: \
                 one or the other may be there";
    assert_eq!(at_once(&both).unwrap_err().to_string(), twice);
    let twice = twice.replace("gate_up", "down").replace("e.0.gate", "e.0.down");
    for order in [["e.0.down", "down"], ["down", "e.0.down"]] {
        let mut stream = Stream::new(&weights, buffers());
        stream.feed(order[0], &both).unwrap();
        assert_eq!(stream.feed(order[1], &both).unwrap_err().to_string(), twice);
    }
    let mut stream = Stream::new(&weights, buffers());
    stream.feed("down", &together).unwrap();
    assert_eq!(stream.loading.missing().len(), 2 * count);
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

fn unpack(from: DType, to: DType, axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from, to, axis, len, order: Order::Plain, of: Box::new(of) }
}

fn awq(axis: usize, len: usize, of: WeightExpr) -> WeightExpr {
    WeightExpr::Unpack { from: DType::I32, to: DType::U4, axis, len, order: Order::Awq, of: Box::new(of) }
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

/// A weight of codes, as checkpoints of each kind store it, its scales and its zero points, whose
/// sizes are no multiples of anything.
fn stored_codes([rows, cols]: [usize; 2]) -> (Map, Vec<(DType, [usize; 2], WeightExpr)>) {
    use DType::{F4E2M1, I4, I8, I32, U4, U8};
    let (r8, c8, c4, c2, groups) = (rows.div_ceil(8), cols.div_ceil(8), cols.div_ceil(4), cols.div_ceil(2), 3);
    let word = Float::Code(I32);
    let map = Map::default()
        .noise("weight_packed", word, &[rows, c8])
        .noise("weight_packed_8", word, &[rows, c4])
        .noise("weight_zero_point", word, &[r8, groups])
        .noise("gptq.qweight", word, &[c8, rows])
        .noise("gptq8.qweight", word, &[c4, rows])
        .noise("awq.qweight", word, &[cols, r8])
        .noise("qzeros", word, &[groups, r8])
        .with("scales", Float::F16, &[groups, rows], 0.0)
        .with("channel", Float::BF16, &[rows], 0.0)
        .with("one", Float::F32, &[], 0.5)
        .noise("blocks", Float::Code(U8), &[rows, 1, c2])
        .noise("scale_bytes", Float::Code(U8), &[rows, groups]);
    let (packed, zeros) = (tensor("weight_packed", &[rows, c8]), tensor("qzeros", &[groups, r8]));
    let exprs = vec![
        (U4, [rows, cols], unpack(I32, U4, 1, cols, packed.clone())),
        (I4, [rows, cols], shift(-8, I4, unpack(I32, U4, 1, cols, packed))),
        (I8, [rows, cols], shift(-128, I8, unpack(I32, U8, 1, cols, tensor("weight_packed_8", &[rows, c4])))),
        (U8, [rows, groups], shift(0, U8, unpack(I32, U4, 0, rows, tensor("weight_zero_point", &[r8, groups])))),
        (U4, [rows, cols], transpose(unpack(I32, U4, 0, cols, tensor("gptq.qweight", &[c8, rows])))),
        (I4, [rows, cols], shift(-8, I4, transpose(unpack(I32, U4, 0, cols, tensor("gptq.qweight", &[c8, rows]))))),
        (I8, [rows, cols], transpose(shift(-128, I8, unpack(I32, U8, 0, cols, tensor("gptq8.qweight", &[c4, rows]))))),
        (U8, [rows, groups], transpose(shift(1, U8, unpack(I32, U4, 1, rows, zeros.clone())))),
        (U8, [rows, groups], transpose(shift(0, U8, awq(1, rows, zeros)))),
        (U4, [rows, cols], transpose(awq(1, rows, tensor("awq.qweight", &[cols, r8])))),
        (DType::BF16, [rows, groups], transpose(tensor("scales", &[groups, rows]))),
        (DType::F32, [rows, 1], view(&[rows, 1], tensor("channel", &[rows]))),
        (DType::F32, [1, 1], view(&[1, 1], tensor("one", &[]))),
        (F4E2M1, [rows, cols], unpack(U8, F4E2M1, 1, cols, view(&[rows, c2], tensor("blocks", &[rows, 1, c2])))),
        (DType::E8M0, [rows, groups], tensor("scale_bytes", &[rows, groups])),
    ];
    (map, exprs)
}

#[test]
fn codes_as_checkpoints_store_them() {
    for shape in [[16, 64], [1, 1], [37, 51], [130, 310]] {
        let (map, exprs) = stored_codes(shape);
        let dir = tempfile::tempdir().unwrap();
        let file = map.write(dir.path());
        for (dtype, shape, expr) in exprs {
            let group = 32 / dtype.bits();
            for layout in [
                Layout::Rows { stride: shape[1].next_multiple_of(16) },
                panels(16, group, &shape),
                panels(8, 4 * group, &shape),
            ] {
                let weight = weight(dtype, &shape, layout, expr.clone());
                let want = reference(&weight, Rank::ONLY, &map);
                assert_eq!(load_part(&weight, Rank::ONLY, &map), want, "{weight:?}");
                assert_eq!(load_part(&weight, Rank::ONLY, &file), want, "{weight:?} of a file");
            }
        }
    }
}

/// Merged weights are joined, those of ranks are cut, inside words too.
#[test]
fn codes_are_joined_and_cut() {
    let (rows, cols) = (24, 48);
    let (map, exprs) = stored_codes([rows, cols]);
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, [rows, cols], expr) in exprs.into_iter().filter(|(_, [_, cols], _)| *cols >= 3) {
        let all = || expr.clone();
        let part = slice(0, 5, 14, all());
        let cases = [
            ([rows + 14, cols], concat(0, vec![all(), part])),
            ([rows, 2 * cols - 1], concat(1, vec![slice(1, 1, cols - 1, all()), all()])),
            ([rows / 2, cols], shard(0, 2, all())),
            ([rows, cols / 3], shard(1, 3, all())),
            ([rows + rows / 4, cols / 3], concat(0, vec![shard(1, 3, all()), shard(0, 4, shard(1, 3, all()))])),
            ([cols, 2 * rows], transpose(concat(0, vec![all(), all()]))),
            ([7, 2], slice(0, 3, 7, slice(1, 1, 2, all()))),
        ];
        for (shape, expr) in cases {
            for (number, of) in [(0, 1), (1, 12), (11, 12)] {
                let rank = Rank { number, of };
                let group = 32 / dtype.bits();
                for layout in [Layout::Rows { stride: shape[1].next_multiple_of(8) }, panels(16, group, &shape)] {
                    let weight = weight(dtype, &shape, layout, expr.clone());
                    let want = reference(&weight, rank, &map);
                    assert_eq!(load_part(&weight, rank, &map), want, "{weight:?} {rank:?}");
                    assert_eq!(load_part(&weight, rank, &file), want, "{weight:?} {rank:?} of a file");
                    // Neighbours that are there already are replaced, and nothing else is.
                    let mut out = want.clone();
                    out.iter_mut().for_each(|byte| *byte = !*byte);
                    load_over(&weight, rank, &map, &mut out);
                    let padding = reference_mask(&weight);
                    for (at, (byte, &mask)) in out.iter().zip(&padding).enumerate() {
                        assert_eq!((byte ^ want[at]) & mask, 0, "{weight:?} byte {at}");
                        assert_eq!((byte ^ !want[at]) & !mask, 0, "{weight:?} padding of byte {at}");
                    }
                }
            }
        }
    }
}

/// Large weights, in several tasks.
#[test]
fn large_weights_of_codes() {
    let shape = [2100, 1010];
    let (map, exprs) = stored_codes(shape);
    let dir = tempfile::tempdir().unwrap();
    let file = map.write(dir.path());
    for (dtype, shape, expr) in exprs.into_iter().filter(|(dtype, ..)| dtype.bits() == 4) {
        let layout = panels(16, 32 / dtype.bits(), &shape);
        let weight = weight(dtype, &shape, layout, expr);
        assert!(tasks(0, &weight).len() > 1);
        let made = load_part(&weight, Rank::ONLY, &file);
        assert!(made == load_part(&weight, Rank::ONLY, &map));
        assert!(made == reference(&weight, Rank::ONLY, &map), "{weight:?}");
    }
}

/// Codes of a weight that waits for what tells how it is stored.
#[test]
fn what_is_told_must_be_so() {
    let word = Float::Code(DType::I32);
    let expect = |is, told, of| WeightExpr::Expect { is, told: Box::new(told), of: Box::new(of) };
    let codes = || shift(-8, DType::I4, transpose(unpack(DType::I32, DType::U4, 0, 32, tensor("q", &[4, 8]))));
    let zeros = || shift(1, DType::U8, unpack(DType::I32, DType::U4, 1, 8, tensor("z", &[2, 1])));
    let expr = expect(
        Fact::Groups(16),
        tensor("g", &[32]),
        expect(Fact::All(8), zeros(), expect(Fact::Are(vec![8, 32]), tensor("s", &[2]), codes())),
    );
    let weight = weight(DType::I4, &[8, 32], panels(16, 8, &[8, 32]), expr);
    let groups: Vec<i64> = (0..32).map(|at| at / 16).collect();
    let source = || {
        let map = Map::default().noise("q", word, &[4, 8]).integers("g", word, &[32], &groups);
        map.integers("z", word, &[2, 1], &[0x7777_7777; 2]).integers("s", Float::I64, &[2], &[8, 32])
    };
    agrees(&weight, &source());
    let says = |source: &Map| {
        let at_once = load_one(&weight, source).unwrap_err().to_string();
        for order in [["q", "g", "z", "s"], ["s", "z", "g", "q"]] {
            let mut stream = Stream::new(std::slice::from_ref(&weight), vec![apart::memory(weight.bytes)]);
            let fed = order.iter().try_for_each(|name| stream.feed(name, source));
            assert_eq!(fed.unwrap_err().to_string(), at_once);
            assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        }
        at_once.replace("is not as the model needs it: ", "")
    };
    let mut turned = groups.clone();
    turned.swap(3, 20);
    assert_eq!(
        says(&source().integers("g", word, &[32], &turned)),
        "tensor `g` column 3 is in group 1, not 0: columns in another order (act-order) are not supported"
    );
    assert_eq!(
        says(&source().integers("z", word, &[2, 1], &[0x7777_7777, 0x7777_6777])),
        "tensor `z` number 11 is 7, not 8"
    );
    assert_eq!(says(&source().integers("s", Float::I64, &[2], &[32, 8])), "tensor `s` it is [32, 8], not [8, 32]");
    assert_eq!(
        says(&source().integers("s", Float::I64, &[2], &[8, 32 + (1 << 32)])),
        "tensor `s` it is [8, -2147483648], not [8, 32]"
    );
    assert_eq!(says(&source().with("g", Float::F32, &[32], 0.0)), "tensor `g` is of type f32, but must be integers");
    assert_eq!(
        says(&source().with("q", Float::F32, &[4, 8], 0.0)),
        "tensor `q` is of type f32, of which no weight of type i32 can be made"
    );
    let mut without = source();
    without.0.remove("g");
    assert_eq!(
        load_one(&weight, &without).unwrap_err().to_string(),
        "the checkpoint lacks a tensor that the model needs: g"
    );
}

/// Rows of three codes with a scale each, and a zero point.
#[test]
fn scales_are_finite_and_zero_only_where_codes_are() {
    let expr = |zero: bool| WeightExpr::Scaled {
        block: [2, 3],
        scale: Box::new(transpose(tensor("s", &[2, 3]))),
        zero: zero.then(|| Box::new(tensor("z", &[3, 2]))),
        of: Box::new(tensor("w", &[5, 6])),
    };
    let of = |zero| weight(DType::I8, &[5, 6], panels(16, 4, &[5, 6]), expr(zero));
    let codes: Vec<i64> = (0..30).map(|at| if at / 6 == 4 && at % 6 >= 3 { 3 } else { at - 7 }).collect();
    let source = |scales: [f32; 6]| {
        let mut map = Map::default().integers("w", Float::Code(DType::I8), &[5, 6], &codes);
        map = map.integers("z", Float::Code(DType::I8), &[3, 2], &[1, 2, 0, 0, 0, 3]);
        map.0.insert("s".into(), (Float::F32, vec![2, 3], scales.iter().flat_map(|s| s.to_le_bytes()).collect()));
        map
    };
    let without_zero = |scales| {
        let mut map = source(scales);
        map.0.remove("z");
        map
    };
    agrees(&of(true), &source([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    // The last block has its zero point everywhere.
    agrees(&of(true), &source([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]));
    let says = |weight: &Weight, source: Map| {
        let at_once = load_one(weight, &source).unwrap_err().to_string();
        let mut stream = Stream::new(std::slice::from_ref(weight), vec![apart::memory(weight.bytes)]);
        let fed = source.names().into_iter().try_for_each(|name| stream.feed(name, &source));
        assert_eq!(fed.unwrap_err().to_string(), at_once);
        assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        at_once
    };
    let zero = "tensor `s` has a scale of zero at [1, 2], where the weight is not zero";
    assert_eq!(says(&of(false), without_zero([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])), zero);
    let zero = "tensor `s` has a scale of zero at [0, 1], where the weight is not zero";
    assert_eq!(says(&of(true), source([1.0, -0.0, 3.0, 4.0, 5.0, 6.0])), zero);
    for (wrong, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1.5, "-1.5"), (f32::NEG_INFINITY, "-inf")] {
        let message = format!("tensor `s` has the scale {shown} at [1, 0]; scales must be finite and not negative");
        assert_eq!(says(&of(true), source([1.0, 2.0, 3.0, wrong, 5.0, 6.0])), message);
    }
    // Of powers of two only NaN is wrong.
    let expr = WeightExpr::Scaled {
        block: [1, 32],
        scale: Box::new(tensor("e", &[3, 2])),
        zero: None,
        of: Box::new(unpack(DType::U8, DType::F4E2M1, 1, 64, tensor("b", &[3, 32]))),
    };
    let mx = weight(DType::F4E2M1, &[3, 64], panels(16, 8, &[3, 64]), expr);
    let source = |exponent| {
        let map = Map::default().noise("b", Float::Code(DType::U8), &[3, 32]);
        map.integers("e", Float::Code(DType::U8), &[3, 2], &[0, 1, 127, exponent, 254, 3])
    };
    agrees(&mx, &source(200));
    assert_eq!(
        says(&mx, source(255)),
        "tensor `e` has the scale NaN at [1, 1]; scales must be finite and not negative"
    );
}

/// Codes that are no numbers are seen before a tensor changes anything; in a whole checkpoint, when
/// they are packed.
#[test]
fn codes_are_numbers() {
    let weight = weight(DType::F8E4M3, &[3, 8], panels(16, 4, &[3, 8]), tensor("w", &[3, 8]));
    for bad in [0x7f, 0xff] {
        let mut codes = vec![0x7e; 24];
        codes[17] = bad;
        let source = Map::default().integers("w", Float::Code(DType::F8E4M3), &[3, 8], &codes);
        let says = "tensor `w` has codes that are no numbers";
        let at_once = load_one(&weight, &source).map(drop);
        assert_eq!(at_once.as_ref().unwrap_err().to_string(), says);
        assert!(!are_loaded(true, &at_once), "some weights may be new");
        let mut stream = Stream::new(std::slice::from_ref(&weight), vec![apart::memory(weight.bytes)]);
        assert_eq!(stream.feed("w", &source).unwrap_err().to_string(), says);
        assert_eq!(stream.bytes(0), vec![0; weight.bytes]);
        assert_eq!(stream.loading.missing(), ["w"]);
    }
}

#[test]
fn tasks_cover_large_weights_once() {
    for layout in [Layout::Rows { stride: 2048 }, panels(16, 2, &[5000, 2048])] {
        let shape = [5000, 2048];
        let weight = weight(DType::BF16, &shape, layout, tensor("t", &shape));
        let tasks = tasks(0, &weight);
        assert!(tasks.len() > 10);
        assert!(
            tasks
                .windows(2)
                .all(|pair| pair[0].rows.end == pair[1].rows.start && pair[0].bytes.end == pair[1].bytes.start)
        );
        assert_eq!(
            (tasks[0].bytes.start, tasks.last().unwrap().bytes.end, tasks.last().unwrap().rows.end),
            (0, weight.bytes, 5000)
        );
        agrees(&weight, &Map::default().with("t", Float::BF16, &shape, 0.0));
    }
}

#[test]
fn rounds_to_nearest_even() {
    let values: Vec<f32> = vec![1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1e-40, 3.4e38, f32::INFINITY, 70000.0];
    for (dtype, expect) in [
        (DType::BF16, [0x3f80, 0x3f82, 0x8001, 0x7f80, 0x7f80, 0x4789]),
        (DType::F16, [0x3c04, 0x3c0c, 0x8000, 0x7c00, 0x7c00, 0x7c00]),
    ] {
        let bytes = load_one(
            &weight(dtype, &[6], Layout::Rows { stride: 6 }, WeightExpr::Const { values: values.clone() }),
            &Map::default(),
        )
        .unwrap();
        let found: Vec<u16> = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(found, expect);
    }
}

#[test]
fn random_weights_do_not_depend_on_layout() {
    let shape = [100, 301];
    let rows =
        load_one(&weight(DType::F32, &shape, Layout::Rows { stride: 301 }, tensor("t", &shape)), &Random { seed: 5 })
            .unwrap();
    let packed =
        load_one(&weight(DType::F32, &shape, panels(16, 1, &shape), tensor("t", &shape)), &Random { seed: 5 }).unwrap();
    let value = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap());
    for (r, c) in [(0, 0), (17, 300), (99, 1), (50, 150)] {
        assert_eq!(value(&rows, r * 301 + c), value(&packed, (r / 16 * 301 + c) * 16 + r % 16));
    }
}

#[test]
fn missing_and_unused_tensors_change_nothing() {
    let source = Map::default().with("a", Float::BF16, &[4], 1.0).with("left", Float::BF16, &[1], 0.0).with(
        "over",
        Float::BF16,
        &[1],
        0.0,
    );
    let vector = |name: &str| weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(name, &[4]));
    let mut buffers: Vec<DeviceBuffer> = (0..3).map(|_| DeviceBuffer::Host(Buffer::new(8).unwrap())).collect();
    let mut message = |names: [&str; 3]| {
        let (weights, pool) = (names.map(vector), &mut Pool::new(1).unwrap());
        let error =
            load(Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool }, &source, &|_, _| ())
                .unwrap_err();
        assert!(buffers.iter().all(|buffer| buffer.host_view().unwrap() == [0; 8]));
        error.to_string()
    };
    assert_eq!(message(["a", "y", "x"]), "the checkpoint lacks 2 tensors that the model needs: x, y");
    assert_eq!(message(["a", "a", "a"]), "the checkpoint has 2 tensors that the model does not use: left, over");
}

#[test]
fn harmless_tensors_may_stay() {
    let embedding = weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor("model.embed_tokens.weight", &[4]));
    let source = || Map::default().with("model.embed_tokens.weight", Float::BF16, &[4], 1.0);
    let inv_freq = source().with("model.layers.0.self_attn.rotary_emb.inv_freq", Float::F32, &[8], 0.0);
    load_one(&embedding, &inv_freq).unwrap();
    load_one(&embedding, &source().with("lm_head.weight", Float::BF16, &[4], 1.0)).unwrap();
    let untied = load_one(&embedding, &source().with("lm_head.weight", Float::BF16, &[4], 2.0)).unwrap_err();
    assert!(untied.to_string().starts_with("`lm_head.weight` of the checkpoint is not `model.embed_tokens.weight`"));
    load_one(&embedding, &source().with("lm_head.bias", Float::BF16, &[4], 1.0)).unwrap_err();
}

#[test]
fn weights_larger_than_the_stage() {
    let shape = [9001, 2001];
    let weight = weight(DType::BF16, &shape, panels(16, 8, &shape), tensor("t", &shape));
    assert!(weight.bytes > STAGE_BYTES);
    load_one(&weight, &Random { seed: 3 }).unwrap();
}

#[test]
fn reports_progress() {
    let shape = [3000, 1024];
    let weight = weight(DType::BF16, &shape, Layout::Rows { stride: 1024 }, tensor("t", &shape));
    let last = std::sync::Mutex::new(Vec::new());
    let mut buffers = [DeviceBuffer::Host(Buffer::new(weight.bytes).unwrap())];
    let sink = Sink { weights: &[weight], rank: Rank::ONLY, buffers: &mut buffers, pool: &mut Pool::new(2).unwrap() };
    load(sink, &Random { seed: 1 }, &|done, total| last.lock().unwrap().push((done, total))).unwrap();
    let reports = last.into_inner().unwrap();
    let total = 3000 * 1024 * 2;
    assert_eq!((reports[0], *reports.iter().max().unwrap()), ((0, total), (total, total)));
    assert!(reports.len() > 4);
}

/// Two weights that share a tensor, and a constant.
fn shared() -> [Weight; 3] {
    let rows = |stride| Layout::Rows { stride };
    let qkv = concat(0, vec![tensor("q", &[4, 6]), tensor("k", &[2, 6]), tensor("v", &[2, 6])]);
    let values = WeightExpr::Const { values: vec![0.5, 2.0] };
    [
        weight(DType::F32, &[8, 6], panels(4, 2, &[8, 6]), qkv),
        weight(DType::BF16, &[4, 6], rows(8), tensor("q", &[4, 6])),
        weight(DType::F32, &[2], rows(2), values),
    ]
}

fn shared_source(base: f64) -> Map {
    let source = Map::default().with("q", Float::BF16, &[4, 6], base);
    source.with("k", Float::F32, &[2, 6], base + 7.0).with("v", Float::F16, &[2, 6], base - 3.0)
}

#[test]
fn tensors_come_in_any_order_and_again() {
    let weights = shared();
    let buffers = || weights.iter().map(|weight| apart::memory(weight.bytes)).collect();
    for order in [["q", "k", "v"], ["v", "k", "q"], ["k", "q", "v"]] {
        let mut stream = Stream::new(&weights, buffers());
        // The second round is a reload in place.
        for base in [0.0, 40.0] {
            let source = shared_source(base);
            for name in order {
                stream.feed(name, &source).unwrap();
            }
            assert_eq!(stream.loading.kept_bytes(), 0, "nothing waits any more");
            stream.finish().unwrap();
            for (index, weight) in weights.iter().enumerate() {
                assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, &source), "{order:?} {index}");
            }
        }
    }
    // The last of equal names counts.
    let (old, new) = (shared_source(0.0), shared_source(9.0));
    let mut stream = Stream::new(&weights, buffers());
    for (name, source) in [("q", &old), ("k", &new), ("q", &new), ("v", &new)] {
        stream.feed(name, source).unwrap();
    }
    stream.finish().unwrap();
    assert_eq!(stream.bytes(0), reference(&weights[0], Rank::ONLY, &new));
}

/// A framework that sleeps takes away the memory of a device: an update of all tensors makes all of
/// it again, padding and constants too.
#[test]
fn updates_make_anew_what_was_lost() {
    let (weights, source) = (shared(), shared_source(3.0));
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    for _ in 0..2 {
        for (buffer, weight) in stream.buffers.iter_mut().zip(&weights) {
            buffer.upload(0, &vec![255; weight.bytes]).unwrap();
        }
        for name in ["k", "q", "v"] {
            stream.feed(name, &source).unwrap();
            let Stream { weights, buffers, pool, loading } = &mut stream;
            loading.constants(Sink { weights, rank: Rank::ONLY, buffers, pool }).unwrap();
        }
        for (index, weight) in weights.iter().enumerate() {
            assert_eq!(stream.bytes(index), reference(weight, Rank::ONLY, &source), "{index}");
        }
    }
}

/// A head that the embedding stands for may come before it, behind it, and again, if it is the
/// same.
#[test]
fn a_tied_head_is_the_embedding() {
    let (head, embedding) = ("lm_head.weight", "model.embed_tokens.weight");
    let weights = [weight(DType::BF16, &[4], Layout::Rows { stride: 4 }, tensor(embedding, &[4]))];
    let source = |base| Map::default().with(head, Float::BF16, &[4], base).with(embedding, Float::BF16, &[4], base);
    let (one, two) = (source(1.0), source(2.0));
    let fed = |tensors: &[(&str, &Map)]| {
        let mut stream = Stream::new(&weights, vec![apart::memory(weights[0].bytes)]);
        tensors.iter().try_for_each(|(name, source)| stream.feed(name, *source)).map(|()| stream.bytes(0))
    };
    let same = reference(&weights[0], Rank::ONLY, &one);
    assert_eq!(fed(&[(head, &one), (embedding, &one)]).unwrap(), same);
    assert_eq!(fed(&[(embedding, &one), (head, &one)]).unwrap(), same);
    assert_eq!(fed(&[(head, &two), (embedding, &two), (embedding, &one), (head, &one)]).unwrap(), same);
    for tensors in [[(head, &two), (embedding, &one)], [(embedding, &one), (head, &two)]] {
        assert!(matches!(fed(&tensors), Err(Error::Checkpoint(CheckpointError::Untied))));
    }
}

#[test]
fn keeps_only_what_a_weight_waits_for() {
    let weights = shared();
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    let source = shared_source(1.0);
    stream.feed("q", &source).unwrap();
    assert_eq!(stream.loading.kept_bytes(), 4 * 6 * 2);
    stream.feed("v", &source).unwrap();
    assert_eq!(stream.loading.kept_bytes(), 4 * 6 * 2 + 2 * 6 * 2);
    assert_eq!(stream.bytes(1), reference(&weights[1], Rank::ONLY, &source), "what has all its tensors is there");
    assert_eq!(stream.bytes(0), vec![0; weights[0].bytes]);
    assert_eq!(stream.loading.missing(), ["k"]);
    stream.feed("k", &source).unwrap();
    // One of three again: the other two are wanted again.
    stream.feed("q", &source).unwrap();
    assert_eq!(stream.finish().unwrap_err().to_string(), "the checkpoint lacks 2 tensors that the model needs: k, v");
}

#[test]
fn says_what_is_wrong_with_a_tensor() {
    let weights = shared();
    let mut stream = Stream::new(&weights, weights.iter().map(|weight| apart::memory(weight.bytes)).collect());
    let mut refused = |name: &str, shape: &[usize], bytes: usize| {
        let given = Given { float: Float::BF16, shape, numbers: vec![0; bytes].into() };
        stream.give(name, given).err().map(|error| error.to_string())
    };
    assert_eq!(refused("q", &[6, 4], 48).unwrap(), "tensor `q` has shape [6, 4], but the model needs [4, 6]");
    assert_eq!(refused("q", &[4, 6], 47).unwrap(), "tensor `q` has 47 bytes, but its shape and type take 48");
    assert_eq!(refused("w", &[1], 2).unwrap(), "the checkpoint has a tensor that the model does not use: w");
    assert_eq!(refused("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], 0), None);
    assert_eq!(stream.loading.missing(), ["k", "q", "v"]);
}

/// A checkpoint of one tensor, `t`, which was written long ago.
fn stored(dir: &std::path::Path, dtype: safetensors::Dtype, shape: &[usize]) -> (std::path::PathBuf, Checkpoint) {
    let path = dir.join("model.safetensors");
    crate::checkpoint::tests::file(&path, &[("t", dtype, shape)]);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    (path, Checkpoint::open(dir).unwrap())
}

#[test]
fn reads_of_files_what_a_rank_needs() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [48, 36];
    let path = dir.path().join("model.safetensors");
    for float in [Float::BF16, Float::F32, Float::F64] {
        let map = Map::default().with("t", float, &shape, -7.0);
        let dtype = match float {
            Float::BF16 => safetensors::Dtype::BF16,
            Float::F32 => safetensors::Dtype::F32,
            _ => safetensors::Dtype::F64,
        };
        let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &map.0["t"].2).unwrap();
        safetensors::serialize_to_file([("t", view)], None, &path).unwrap();
        let file = Checkpoint::open(dir.path()).unwrap();
        let whole = tensor("t", &shape);
        let parts = concat(0, vec![slice(0, 30, 18, whole.clone()), slice(0, 0, 30, whole.clone())]);
        let turned = concat(1, vec![slice(1, 20, 16, whole.clone()), slice(1, 0, 20, whole.clone())]);
        for expr in [whole.clone(), parts, turned] {
            for layout in [Layout::Rows { stride: 40 }, panels(16, 2, &shape)] {
                let weight = weight(DType::BF16, &shape, layout, expr.clone());
                assert!(load_part(&weight, Rank::ONLY, &file) == load_part(&weight, Rank::ONLY, &map));
            }
        }
        for (axis, part) in [(0, [24, 36]), (1, [48, 18])] {
            let weight = weight(DType::F32, &part, panels(16, 1, &part), shard(axis, 2, whole.clone()));
            for number in 0..2 {
                let rank = Rank { number, of: 2 };
                assert!(load_part(&weight, rank, &file) == load_part(&weight, rank, &map));
            }
        }
    }
}

#[test]
fn a_file_that_changes_under_way_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let shape = [1000, 1024];
    let weights = [weight(DType::BF16, &shape, Layout::Rows { stride: 1024 }, tensor("t", &shape))];
    let load_while = |change: &(dyn Fn(&std::path::Path) + Sync), buffer: DeviceBuffer| {
        let (path, file) = stored(dir.path(), safetensors::Dtype::F32, &shape);
        let (mut pool, mut buffers) = (Pool::new(2).unwrap(), [buffer]);
        let sink = Sink { weights: &weights, rank: Rank::ONLY, buffers: &mut buffers, pool: &mut pool };
        // The first report comes before the first number is read.
        let done = load(sink, &file, &|done, _| {
            if done == 0 {
                change(&path)
            }
        });
        let said = done.as_ref().map_err(|error| error.to_string().replace(path.to_str().unwrap(), "<file>"));
        (said.map(drop), are_loaded(true, &done))
    };
    let host = || DeviceBuffer::Host(Buffer::new(1000 * 1024 * 2).unwrap());
    let shrink = |path: &std::path::Path| {
        std::fs::File::options().write(true).open(path).unwrap().set_len(2_000_000).unwrap();
    };
    let bytes = std::fs::metadata(stored(dir.path(), safetensors::Dtype::F32, &shape).0).unwrap().len();
    let shrunk = format!("<file> changed while it was read: it has 2000000 bytes, and had {bytes}");
    let overwrite = |path: &std::path::Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 100], 500_000).unwrap();
    };
    let overwritten = "<file> changed while it was read: it was written to".to_owned();
    for buffer in [host, || apart::memory(1000 * 1024 * 2)] as [fn() -> DeviceBuffer; 2] {
        assert_eq!(load_while(&shrink, buffer()), (Err(shrunk.clone()), false));
        assert_eq!(load_while(&overwrite, buffer()), (Err(overwritten.clone()), false));
        // Another file of the same name is another file.
        let replace = |path: &std::path::Path| {
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, "short").unwrap();
        };
        assert_eq!(load_while(&replace, buffer()), (Ok(()), true));
    }
}

/// Of experts that ranks hold some of, a rank waits for its own and keeps no others.
#[test]
fn a_rank_waits_for_what_it_has_a_part_of() {
    let of = WeightExpr::Stack { name: "e.*".into(), count: 4, shape: vec![2, 8], whole: None };
    let layout = Layout::Rows { stride: 8 };
    let weights = [weight(DType::F32, &[2, 2, 8], layout, shard(0, 2, of))];
    let bytes = |number: u8| vec![number; 2 * 8 * 4];
    let rank = Rank { number: 1, of: 2 };
    let mut loading = Loading::new(&weights, rank);
    assert_eq!(loading.missing(), ["e.2", "e.3"]);
    let (mut buffers, mut pool) = ([DeviceBuffer::Host(Buffer::new(weights[0].bytes).unwrap())], Pool::new(1).unwrap());
    for number in [3, 0, 2, 1] {
        let given = Given { float: Float::F32, shape: &[2, 8], numbers: bytes(number).into() };
        let sink = Sink { weights: &weights, rank, buffers: &mut buffers, pool: &mut pool };
        loading.feed(&format!("e.{number}"), given, sink).unwrap();
        assert_eq!(loading.kept_bytes(), if number == 3 || number == 0 { 64 } else { 0 }, "{number}");
    }
    loading.finish(Sink { weights: &weights, rank, buffers: &mut buffers, pool: &mut pool }).unwrap();
    let mut found = vec![0; weights[0].bytes];
    buffers[0].download(0, &mut found).unwrap();
    assert!(found == [bytes(2), bytes(3)].concat());
}
