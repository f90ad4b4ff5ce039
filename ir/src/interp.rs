//! The reference interpreter: plain loops, in f32 or f64, without rounding to the types of the graph in between; only what goes
//! into a cache of [`DType::F8E4M3`] is rounded.
use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::elementwise::{Elementwise, Scalar};
use crate::graph::{Graph, Value};
use crate::ops::{Class, Norm, Op};
use crate::rope::Freqs;
use crate::trial::round;
use crate::types::{Block, DType, Shape, Type};

/// A number that the interpreter computes with.
pub trait Real: Scalar + Default + std::fmt::Debug + PartialOrd + 'static {
    /// The number nearest to `v`.
    fn of(v: f64) -> Self;
    /// Its value.
    fn get(self) -> f64;
    /// The square root.
    fn sqrt(self) -> Self;

    /// What a function of the hardware or of a library makes where `v` is the truth.
    fn near(v: f64) -> Self {
        Self::of(v)
    }

    /// As an element of a tensor or a cache. The interpreter does not round to the types that tensors have; kernels may.
    fn stored(self, dtype: DType) -> Self {
        if dtype == DType::F8E4M3 { Self::of(round(self.get(), dtype)) } else { self }
    }

    /// As a factor that a kernel may round to the type of the numbers it was made of.
    fn narrowed(self) -> Self {
        self
    }
}

impl Real for f32 {
    fn of(v: f64) -> f32 {
        v as f32
    }
    fn get(self) -> f64 {
        self as f64
    }
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
}

impl Real for f64 {
    fn of(v: f64) -> f64 {
        v
    }
    fn get(self) -> f64 {
        self
    }
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
}

/// Elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<S> {
    /// The size of each axis.
    pub shape: Vec<usize>,
    /// As many elements as the shape says.
    pub data: Vec<S>,
}

impl<S: Real> Tensor<S> {
    /// A tensor of these elements, of which there must be as many as the shape says.
    pub fn new(shape: Vec<usize>, data: Vec<S>) -> Tensor<S> {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Tensor { shape, data }
    }

    fn width(&self) -> usize {
        *self.shape.last().unwrap_or(&1)
    }

    fn rows(&self) -> impl Iterator<Item = &[S]> {
        self.data.chunks_exact(self.width())
    }
}

/// Keys and values of one layer, by sequence and position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheState<S> {
    /// The key and the value of each sequence and position.
    pub entries: BTreeMap<(i32, i32), (Vec<S>, Vec<S>)>,
}

/// The sequence and the position of each token in the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchState {
    /// The sequence of each token.
    pub sequences: Vec<i32>,
    /// The position of each token in its sequence.
    pub positions: Vec<i32>,
}

/// A value at run time.
#[derive(Clone, Debug, PartialEq)]
pub enum Val<S> {
    /// A tensor of floats.
    Float(Tensor<S>),
    /// A list of indices.
    Int(Vec<i32>),
    /// The state of a cache.
    Cache(CacheState<S>),
    /// The batch.
    Batch(BatchState),
}

impl<S: Real> Val<S> {
    /// The tensor, or an error.
    pub fn float(&self) -> Result<&Tensor<S>, String> {
        match self {
            Val::Float(t) => Ok(t),
            _ => Err("expected a float tensor".into()),
        }
    }

    /// The indices, or an error.
    pub fn int(&self) -> Result<&[i32], String> {
        match self {
            Val::Int(v) => Ok(v),
            _ => Err("expected indices".into()),
        }
    }

    /// The state of a cache, or an error.
    pub fn cache(&self) -> Result<&CacheState<S>, String> {
        match self {
            Val::Cache(c) => Ok(c),
            _ => Err("expected a cache state".into()),
        }
    }

    fn batch(&self) -> Result<&BatchState, String> {
        match self {
            Val::Batch(b) => Ok(b),
            _ => Err("expected a batch".into()),
        }
    }
}

/// Sizes of the step.
#[derive(Clone, Copy, Debug)]
pub struct Cx {
    /// `T`
    pub tokens: usize,
    /// `R`
    pub rows: usize,
}

/// The values of a graph's outputs, for these parameters by name and these checkpoint tensors.
pub fn run<S: Real>(
    graph: &Graph,
    cx: Cx,
    params: &BTreeMap<String, Val<S>>,
    weight: &dyn Fn(&str) -> Option<Tensor<S>>,
) -> Result<Vec<Val<S>>, String> {
    let mut values: BTreeMap<Value, Val<S>> = BTreeMap::new();
    for id in graph.order() {
        let results = match graph.op(id) {
            Op::Input { name } => vec![params.get(name).ok_or(format!("no value for %{name}"))?.clone()],
            Op::Weight { name } => vec![Val::Float(weight(name).ok_or(format!("no weight {name}"))?)],
            op => {
                let operands = graph.operands(id);
                let args: Vec<&Val<S>> = operands.iter().map(|v| &values[v]).collect();
                op.eval(&args, cx).map_err(|e| format!("{}: {e}", op.name()))?
            }
        };
        for (out, (mut val, ty)) in results.into_iter().zip(graph.types(id)).enumerate() {
            check_shape(&val, ty, cx).map_err(|e| format!("{} {}: {e}", graph.op(id).name(), graph.location(id)))?;
            match (&mut val, ty) {
                _ if graph.op(id).class() == Class::Source => {}
                (Val::Float(tensor), Type::Tensor(ty)) => {
                    tensor.data.iter_mut().for_each(|v| *v = v.stored(ty.dtype));
                }
                (Val::Cache(cache), Type::Cache(ty)) if ty.dtype == DType::F8E4M3 => {
                    let entries = cache.entries.values_mut().flat_map(|(keys, values)| keys.iter_mut().chain(values));
                    entries.for_each(|v| *v = v.stored(ty.dtype));
                }
                _ => {}
            }
            values.insert(Value { node: id, out }, val);
        }
    }
    Ok(graph.outputs().iter().map(|v| values[v].clone()).collect())
}

fn check_shape<S: Real>(val: &Val<S>, ty: &Type, cx: Cx) -> Result<(), String> {
    let Type::Tensor(t) = ty else { return Ok(()) };
    let want: Vec<usize> = t.shape.0.iter().map(|d| d.at(cx.tokens, cx.rows)).collect();
    let have = match val {
        Val::Float(t) => t.shape.clone(),
        Val::Int(v) => vec![v.len()],
        _ => return Err("is no tensor".into()),
    };
    if have == want { Ok(()) } else { Err(format!("has shape {have:?}, should have {want:?}")) }
}

type Results<S> = Result<Vec<Val<S>>, String>;

fn one<S>(shape: Vec<usize>, data: Vec<S>) -> Results<S>
where
    S: Real,
{
    Ok(vec![Val::Float(Tensor::new(shape, data))])
}

pub(crate) fn source<S: Real>(_: &[&Val<S>], _: Cx, name: &str) -> Results<S> {
    Err(format!("{name} has no value of its own"))
}

pub(crate) fn map<S: Real>(args: &[&Val<S>], _: Cx, op: Elementwise) -> Results<S> {
    let args: Vec<&Tensor<S>> = args.iter().map(|a| a.float()).collect::<Result<_, _>>()?;
    let at = |i: usize| args.iter().map(|t| t.data[i % t.data.len()]).collect::<Vec<S>>();
    one(args[0].shape.clone(), (0..args[0].data.len()).map(|i| op.eval(&at(i))).collect())
}

pub(crate) fn kernel<S: Real>(args: &[&Val<S>], cx: Cx, body: &Graph) -> Results<S> {
    let names = body.inputs().into_iter().map(|v| match body.op(v.node) {
        Op::Input { name } => name.clone(),
        _ => unreachable!("parameters are inputs"),
    });
    let params = names.zip(args.iter().map(|&a| a.clone())).collect();
    run(body, cx, &params, &|_| None)
}

pub(crate) fn rope_freqs<S: Real>(_: &[&Val<S>], _: Cx, freqs: &Freqs) -> Results<S> {
    let inverse: Vec<S> = freqs.inverse().into_iter().map(|v| S::of(v as f32 as f64)).collect();
    one(vec![inverse.len()], inverse)
}

pub(crate) fn offset<S: Real>(args: &[&Val<S>], _: Cx, &by: &f64) -> Results<S> {
    let w = args[0].float()?;
    one(w.shape.clone(), w.data.iter().map(|&w| w.add(w.lit(by))).collect())
}

/// Elements before, along and after an axis.
fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

pub(crate) fn concat<S: Real>(args: &[&Val<S>], _: Cx, &axis: &usize) -> Results<S> {
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

pub(crate) fn slice<S: Real>(args: &[&Val<S>], _: Cx, &axis: &usize, &start: &usize, &len: &usize) -> Results<S> {
    let x = args[0].float()?;
    let (outer, size, inner) = around(&x.shape, axis);
    let mut shape = x.shape.clone();
    shape[axis] = len;
    let pick = |o: usize| x.data[(o * size + start) * inner..][..len * inner].iter().copied();
    one(shape, (0..outer).flat_map(pick).collect())
}

pub(crate) fn pack<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    Ok(vec![args[0].clone()])
}

pub(crate) fn cast<S: Real>(args: &[&Val<S>], _: Cx, _: &DType) -> Results<S> {
    Ok(vec![args[0].clone()])
}

pub(crate) fn reshape<S: Real>(args: &[&Val<S>], cx: Cx, shape: &Shape) -> Results<S> {
    let x = args[0].float()?;
    one(shape.0.iter().map(|d| d.at(cx.tokens, cx.rows)).collect(), x.data.clone())
}

pub(crate) fn gather<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (table, rows) = (args[0].float()?, args[1].int()?);
    let n = table.width();
    let mut data = Vec::with_capacity(rows.len() * n);
    for &r in rows {
        let r =
            usize::try_from(r).ok().filter(|&r| r < table.shape[0]).ok_or(format!("row {r} of {}", table.shape[0]))?;
        data.extend_from_slice(&table.data[r * n..][..n]);
    }
    one(vec![rows.len(), n], data)
}

pub(crate) fn linear<S: Real>(args: &[&Val<S>], _: Cx, _: &DType, block: &Option<Block>) -> Results<S> {
    let (x, mut w) = (args[0].float()?, Cow::Borrowed(args[1].float()?));
    if let Some(block) = block {
        w = Cow::Owned(dequantised(&w, *block, args[2].float()?, args.get(3).map(|zero| zero.float()).transpose()?));
    }
    let dot = |a: &[S], b: &[S]| a.iter().zip(b).fold(S::of(0.0), |s, (&a, &b)| s.add(a.mul(b)));
    let data = x.rows().flat_map(|a| w.rows().map(move |b| dot(a, b))).collect();
    one(vec![x.shape[0], w.shape[0]], data)
}

/// What the codes of a weight mean.
fn dequantised<S: Real>(codes: &Tensor<S>, block: Block, scale: &Tensor<S>, zero: Option<&Tensor<S>>) -> Tensor<S> {
    let (cols, across) = (codes.width(), scale.width());
    let element = |(i, &code): (usize, &S)| {
        let at = i / cols / block.rows * across + i % cols / block.cols;
        zero.map_or(code, |zero| code.sub(zero.data[at])).mul(scale.data[at])
    };
    Tensor::new(codes.shape.clone(), codes.data.iter().enumerate().map(element).collect())
}

pub(crate) fn rms_norm<S: Real>(args: &[&Val<S>], _: Cx, &eps: &f64) -> Results<S> {
    normed(args, Norm { eps, centred: false })
}

pub(crate) fn layer_norm<S: Real>(args: &[&Val<S>], _: Cx, &eps: &f64) -> Results<S> {
    normed(args, Norm { eps, centred: true })
}

fn normed<S: Real>(args: &[&Val<S>], norm: Norm) -> Results<S> {
    let (x, w) = (args[0].float()?, args[1].float()?);
    let bias = args.get(2).map(|bias| bias.float()).transpose()?;
    let count = S::of(x.width() as f64);
    let mean = |row: &[S], f: fn(S) -> S| row.iter().fold(S::of(0.0), |sum, &v| sum.add(f(v))).div(count);
    let mut data = Vec::with_capacity(x.data.len());
    for row in x.rows() {
        let centre = norm.centred.then(|| mean(row, |v| v));
        let left: Vec<S> = row.iter().map(|&v| centre.map_or(v, |centre| v.sub(centre))).collect();
        let scale = S::of(1.0).div(mean(&left, |v| v.mul(v)).add(S::of(norm.eps)).sqrt());
        let weighted = left.iter().zip(&w.data).map(|(&v, &w)| v.mul(scale).mul(w));
        data.extend(weighted.enumerate().map(|(i, v)| bias.map_or(v, |bias| v.add(bias.data[i]))));
    }
    one(x.shape.clone(), data)
}

/// How much the frequencies of dynamic NTK change for a sequence of this length: frequency i is multiplied by
/// `stretch^(-2 i / (dim - 2))`.
pub fn stretch(length: i32, growth: f64, original: usize) -> f64 {
    if growth == 0.0 { 1.0 } else { (growth * length as f64 / original as f64 - (growth - 1.0)).max(1.0) }
}

pub(crate) fn rope_table<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &scale: &f64,
    &growth: &f64,
    &original: &usize,
) -> Results<S> {
    let (positions, lengths, freqs) = (args[0].int()?, args[1].int()?, args[2].float()?);
    let half = freqs.data.len();
    let mut data = Vec::with_capacity(positions.len() * 2 * half);
    for (&p, &n) in positions.iter().zip(lengths) {
        let s = stretch(n, growth, original);
        let angle =
            |i: usize| freqs.data[i].get() * s.powf(-(2.0 * i as f64) / (2.0 * half as f64 - 2.0).max(1.0)) * p as f64;
        data.extend((0..half).map(|i| S::near(angle(i).cos() * scale)));
        data.extend((0..half).map(|i| S::near(angle(i).sin() * scale)));
    }
    one(vec![positions.len(), 2 * half], data)
}

pub(crate) fn rope<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (x, table) = (args[0].float()?, args[1].float()?);
    let (heads, dim, rot) = (x.shape[1], x.shape[2], table.width());
    let mut data = x.data.clone();
    for (i, head) in data.chunks_exact_mut(dim).enumerate() {
        let (cos, sin) = table.data[i / heads * rot..][..rot].split_at(rot / 2);
        for j in 0..rot / 2 {
            let (a, b) = (head[j], head[j + rot / 2]);
            head[j] = a.mul(cos[j]).sub(b.mul(sin[j]));
            head[j + rot / 2] = b.mul(cos[j]).add(a.mul(sin[j]));
        }
    }
    one(x.shape.clone(), data)
}

pub(crate) fn argmax<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let largest = |row: &[S]| {
        let least = (S::of(f64::NEG_INFINITY), 0);
        let greater = |best: (S, i32), (col, &v): (i32, &S)| if v > best.0 { (v, col) } else { best };
        (0..).zip(row).fold(least, greater).1
    };
    Ok(vec![Val::Int(args[0].float()?.rows().map(largest).collect())])
}

pub(crate) fn kv_write<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (mut cache, k, v, batch) = (args[0].cache()?.clone(), args[1].float()?, args[2].float()?, args[3].batch()?);
    let n = k.shape[1] * k.shape[2];
    for (t, (&seq, &pos)) in batch.sequences.iter().zip(&batch.positions).enumerate() {
        cache.entries.insert((seq, pos), (k.data[t * n..][..n].to_vec(), v.data[t * n..][..n].to_vec()));
    }
    Ok(vec![Val::Cache(cache)])
}

pub(crate) fn attention<S: Real>(args: &[&Val<S>], _: Cx, &scale: &f64, &window: &usize) -> Results<S> {
    let (q, cache, batch) = (args[0].float()?, args[1].cache()?, args[2].batch()?);
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let mut data = Vec::with_capacity(q.data.len());
    for (i, query) in q.data.chunks_exact(dim).enumerate() {
        let (t, head) = (i / heads, i % heads);
        let (seq, pos) = (batch.sequences[t], batch.positions[t]);
        let before = i32::try_from(window).ok().filter(|&keys| keys > 0 && keys <= pos);
        let first = before.map_or(0, |keys| pos + 1 - keys);
        let seen: Vec<&(Vec<S>, Vec<S>)> = (first..=pos)
            .map(|p| cache.entries.get(&(seq, p)).ok_or(format!("sequence {seq} has no position {p}")))
            .collect::<Result<_, _>>()?;
        let at = head * (seen[0].0.len() / dim) / heads * dim;
        data.extend(attend(query, &seen, at, scale));
    }
    one(q.shape.clone(), data)
}

pub(crate) fn shard<S: Real>(_: &[&Val<S>], _: Cx, _: &usize, _: &usize) -> Results<S> {
    Err("is of a rank, and the reference is none".into())
}

pub(crate) fn all_reduce<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    Ok(vec![args[0].clone()])
}

pub(crate) fn caller_attention<S: Real>(
    args: &[&Val<S>],
    cx: Cx,
    _: &usize,
    scale: &f64,
    window: &usize,
) -> Results<S> {
    let &[q, k, v, batch] = args else { unreachable!("checked by the verifier") };
    let cache = kv_write(&[&Val::Cache(CacheState::default()), k, v, batch], cx)?;
    let mut seen = attention(&[q, &cache[0], batch], cx, scale, window)?;
    if let Val::Float(rows) = &mut seen[0] {
        rows.shape = vec![rows.shape[0], rows.shape[1..].iter().product()];
    }
    Ok(seen)
}

/// One query over the keys and values that it sees, which begin at element `at` of each entry.
fn attend<S: Real>(query: &[S], seen: &[&(Vec<S>, Vec<S>)], at: usize, scale: f64) -> Vec<S> {
    let dot = |k: &[S]| query.iter().zip(&k[at..]).fold(S::of(0.0), |s, (&a, &b)| s.add(a.mul(b))).mul(S::of(scale));
    let scores: Vec<S> = seen.iter().map(|(k, _)| dot(k)).collect();
    let top = scores.iter().fold(scores[0], |m, &s| Scalar::max(m, s));
    let weights: Vec<S> = scores.iter().map(|&s| s.sub(top).exp()).collect();
    let sum = weights.iter().fold(S::of(0.0), |a, &b| a.add(b));
    let mut out = vec![S::of(0.0); query.len()];
    for (w, (_, v)) in weights.iter().zip(seen) {
        for (o, &x) in out.iter_mut().zip(&v[at..]) {
            *o = o.add(w.div(sum).narrowed().mul(x));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    fn float(shape: &[usize], data: &[f64]) -> Val<f64> {
        Val::Float(Tensor::new(shape.to_vec(), data.to_vec()))
    }

    fn eval(text: &str, tokens: usize, params: &[(&str, Val<f64>)]) -> Vec<f64> {
        let graph = parse(text).unwrap();
        graph.verify().unwrap();
        let params = params.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        let out = run(&graph, Cx { tokens, rows: 0 }, &params, &|_| None).unwrap();
        out[0].float().unwrap().data.clone()
    }

    fn near(got: &[f64], want: &[f64]) {
        assert!(
            got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12),
            "{got:?}, {want:?}"
        );
    }

    #[test]
    fn norm_and_linear_by_hand() {
        let text = "graph @g(%x: f32[T, 2], %n: f32[2], %w: f32[1, 2]) {
  %0 = rms_norm %x, %n {eps = 0.0} : f32[T, 2]
  %1 = linear %0, %w {out = f32} : f32[T, 1]
  return %1
}";
        let params =
            [("x", float(&[1, 2], &[1.0, 7.0])), ("n", float(&[2], &[1.0, 2.0])), ("w", float(&[1, 2], &[3.0, 1.0]))];
        // The mean of squares is 25, so the row becomes 0.2, 1.4, then 0.2, 2.8.
        near(&eval(text, 1, &params), &[3.4]);
    }

    /// Blocks of 2 rows and 2 columns on a weight of 3 by 3: those at the ends are smaller.
    #[test]
    fn codes_with_scales_and_zero_points_by_hand() {
        let text = |zero: &str| {
            let operand = if zero.is_empty() { "" } else { ", %z" };
            format!(
                "graph @g(%x: f32[T, 3], %w: u4[3, 3], %s: f32[2, 2]{zero}) {{
  %0 = linear %x, %w, %s{operand} {{out = f32, block = [2, 2]}} : f32[T, 3]
  return %0
}}"
            )
        };
        let params = [
            ("x", float(&[1, 3], &[1.0, 10.0, 100.0])),
            ("w", float(&[3, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])),
            ("s", float(&[2, 2], &[1.0, 2.0, 3.0, 4.0])),
            ("z", float(&[2, 2], &[1.0, 3.0, 8.0, 0.0])),
        ];
        // Rows of numbers: 1 2 6, 4 5 12, 21 24 36.
        near(&eval(&text(""), 1, &params[..3]), &[621.0, 1254.0, 3861.0]);
        // 0 1 0, 3 4 6, -3 0 36.
        near(&eval(&text(", %z: u4[2, 2]"), 1, &params), &[10.0, 643.0, 3597.0]);
    }

    /// See `tests/layer_norm.py`.
    #[test]
    fn layer_norm_is_what_torch_makes() {
        let golden = include_str!("../tests/layer_norm.txt");
        let numbers = |name: &str| -> Vec<f64> {
            let line = golden.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
            line.split(' ').map(|number| number.parse().unwrap()).collect()
        };
        let text = "graph @g(%x: f32[T, 20], %weight: f32[20], %bias: f32[20]) {
  %0 = layer_norm %x, %weight, %bias {eps = 1e-5} : f32[T, 20]
  return %0
}";
        let params = [("x", [3, 20].as_slice()), ("weight", &[20]), ("bias", &[20])];
        let params = params.map(|(name, shape)| (name, float(shape, &numbers(name))));
        near(&eval(text, 3, &params), &numbers("y"));
    }

    #[test]
    fn the_largest_is_the_first_of_equals_and_a_number() {
        let graph = parse("graph @g(%x: f32[T, 3]) {\n  %0 = argmax %x : i32[T]\n  return %0\n}").unwrap();
        graph.verify().unwrap();
        let (least, nan) = (f64::NEG_INFINITY, f64::NAN);
        let rows = [[1.0, 2.0, 2.0], [-0.0, 0.0, -1.0], [nan, -3.0, nan], [least, nan, least], [nan, least, least]];
        let params = BTreeMap::from([("x".to_string(), float(&[5, 3], rows.as_flattened()))]);
        let out = run(&graph, Cx { tokens: 5, rows: 0 }, &params, &|_| None).unwrap();
        assert_eq!(out, [Val::Int(vec![1, 0, 1, 0, 0])]);
    }

    #[test]
    fn rotation_by_a_quarter_turn_swaps_the_halves() {
        let text = "graph @g(%x: f32[T, 1, 3], %t: f32[T, 2]) {
  %0 = rope %x, %t : f32[T, 1, 3]
  return %0
}";
        // Cosine 0, sine 1; the third element is beyond the table and stays.
        near(
            &eval(text, 1, &[("x", float(&[1, 1, 3], &[5.0, 7.0, 9.0])), ("t", float(&[1, 2], &[0.0, 1.0]))]),
            &[-7.0, 5.0, 9.0],
        );
    }

    #[test]
    fn attention_sees_its_own_past_through_the_window() {
        let text = |window: usize| {
            format!(
                "graph @g(%q: f32[T, 2, 1], %c: cache<f32, 1, 1>, %k: f32[T, 1, 1], %v: f32[T, 1, 1], %b: batch) {{
  %0 = kv_write %c, %k, %v, %b : cache<f32, 1, 1>
  %1 = attention %q, %0, %b {{scale = 1.0, window = {window}}} : f32[T, 2, 1]
  return %1, %0
}}"
            )
        };
        // Sequence 0 has positions 0 to 2, sequence 1 only 0; keys are zero, so all that is seen weighs the same.
        let batch = BatchState { sequences: vec![0, 1, 0, 0], positions: vec![0, 0, 1, 2] };
        let params = [
            ("q", float(&[4, 2, 1], &[1.0; 8])),
            ("c", Val::Cache(CacheState::default())),
            ("k", float(&[4, 1, 1], &[0.0; 4])),
            ("v", float(&[4, 1, 1], &[3.0, 100.0, 6.0, 9.0])),
            ("b", Val::Batch(batch)),
        ];
        near(&eval(&text(0), 4, &params), &[3.0, 3.0, 100.0, 100.0, 4.5, 4.5, 6.0, 6.0]);
        near(&eval(&text(2), 4, &params), &[3.0, 3.0, 100.0, 100.0, 4.5, 4.5, 7.5, 7.5]);
    }

    #[test]
    fn dynamic_tables_stretch_beyond_the_original_length() {
        assert_eq!(stretch(16, 4.0, 16), 1.0);
        assert_eq!(stretch(32, 4.0, 16), 5.0);
        assert_eq!(stretch(1 << 20, 0.0, 0), 1.0);
    }
}
