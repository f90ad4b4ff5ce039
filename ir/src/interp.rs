//! The reference interpreter: plain loops, in f32 or f64, without rounding to the types of the
//! graph in between; only what goes into a cache of [`DType::F8E4M3`] is rounded.
mod pooled;
mod step;
mod streams;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::elementwise::{Elementwise, Scalar, softplus};
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Class, Norm, Op, Values};
use crate::quantise;
use crate::rope::Freqs;
use crate::trial::round;
use crate::types::{Best, Block, DType, Layout, Router, Rule, Score, Shape, SlotsType, Turn, Type, Whole, nth_name};

pub use pooled::complete;
pub(crate) use pooled::{attend_part, join, pool};
pub(crate) use step::step;
pub(crate) use streams::{collapse, mix, mix_rows, sinkhorn};

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

    /// As an element of a tensor or a cache. The interpreter does not round to the types that
    /// tensors have; kernels may.
    fn stored(self, dtype: DType) -> Self {
        if dtype == DType::F8E4M3 { Self::of(round(self.get(), dtype)) } else { self }
    }

    /// As the nearest code of a type, which every kernel rounds to: integers away from zero where
    /// two are as near, others to the even one of these.
    fn coded(self, dtype: DType) -> Self {
        Self::of(quantise::code(self.get(), dtype))
    }

    /// As the sum of `_products` products on a machine that may keep fewer bits than f32 has.
    /// `_largest` is the largest of the products and of their sum.
    fn coarse(self, _largest: f64, _products: usize) -> Self {
        self
    }

    /// As a sum of numbers up to this one times what of them is kept, of which a kernel may lose
    /// what is subnormal: products of what tokens keep may be formed before they meet the numbers.
    fn less_decayed(self, _largest: f64) -> Self {
        self
    }

    /// As a factor that a kernel may round to the type of the numbers it was made of.
    fn narrowed(self) -> Self {
        self
    }

    /// As a factor that a kernel may round to the type of the other one.
    fn narrowed_to(self, _: Self) -> Self {
        self
    }

    /// The least and the largest number that a kernel may have in its place.
    fn range(self) -> [f64; 2] {
        [self.get(); 2]
    }

    /// As a number that a kernel may replace by the other.
    fn or(self, _: Self) -> Self {
        self
    }

    /// `self + a * b`
    fn add_product(self, a: Self, b: Self) -> Self {
        self.add(a.mul(b))
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

/// A key and its value.
pub type Entry<S> = (Vec<S>, Vec<S>);

/// Keys and values of one layer, by sequence and position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheState<S> {
    /// The key and the value of each sequence and position; a state shares those that it has of
    /// another one.
    pub entries: BTreeMap<(i32, i32), Arc<Entry<S>>>,
}

/// What one layer keeps of sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotState<S> {
    /// The numbers of a sequence behind some of its tokens: by the sequence and the number of
    /// tokens.
    pub entries: BTreeMap<(i32, i32), Vec<S>>,
    /// Tokens of a sequence behind which there are numbers at most, the last ones.
    pub each: usize,
}

impl<S: Real> SlotState<S> {
    /// A state of no sequence.
    pub fn new(ty: &SlotsType) -> SlotState<S> {
        SlotState { entries: BTreeMap::new(), each: ty.each }
    }

    /// What a token of a sequence goes on from: nothing but zeros at its beginning.
    fn before(&self, sequence: i32, position: i32, numbers: usize) -> Result<Vec<S>, String> {
        match self.entries.get(&(sequence, position)) {
            _ if position == 0 => Ok(vec![S::of(0.0); numbers]),
            Some(slot) => Ok(slot.clone()),
            None => Err(format!("sequence {sequence} has no state before position {position}")),
        }
    }

    /// Keeps the numbers of a sequence behind a token.
    fn keep(&mut self, sequence: i32, position: i32, numbers: Vec<S>) {
        let (tokens, each) = (position + 1, self.each as i32);
        let old = self.entries.range((sequence, i32::MIN)..=(sequence, i32::MAX)).map(|(&at, _)| at);
        let old: Vec<_> = old.filter(|&(_, behind)| behind <= tokens - each || behind > tokens).collect();
        old.iter().for_each(|at| _ = self.entries.remove(at));
        self.entries.insert((sequence, tokens), numbers);
    }
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
    /// A state of slots.
    Slots(SlotState<S>),
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

    /// A state of slots, or an error.
    pub fn slots(&self) -> Result<&SlotState<S>, String> {
        match self {
            Val::Slots(s) => Ok(s),
            _ => Err("expected a state of slots".into()),
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
    /// Whether sums of the op's products may have [fewer bits](Real::coarse) than f32.
    pub coarse: bool,
    /// Whether the numbers behind an op's scales are added to elements: floats, no zero points.
    pub adds: bool,
}

impl Cx {
    /// A step of so many tokens and rows with logits. What else an op is told follows from its
    /// operands.
    pub const fn of(tokens: usize, rows: usize) -> Cx {
        Cx { tokens, rows, coarse: false, adds: false }
    }
}

/// The values of a graph's outputs, for these parameters by name and these checkpoint tensors.
pub fn run<S: Real>(
    graph: &Graph,
    cx: Cx,
    params: &BTreeMap<String, Val<S>>,
    weight: &dyn Fn(&str) -> Option<Tensor<S>>,
) -> Result<Vec<Val<S>>, String> {
    run_with(graph, cx, &|name| params.get(name).cloned(), weight, &|_, _, _| None)
}

/// Gives the results of a node for its operands, or none for those of its op.
pub(crate) type Own<'a, S> = &'a dyn Fn(NodeId, &[&Val<S>], Cx) -> Option<Results<S>>;

/// The same with parameters that are made when they are asked for, and nodes that somebody else
/// computes.
pub(crate) fn run_with<S: Real>(
    graph: &Graph,
    cx: Cx,
    params: &dyn Fn(&str) -> Option<Val<S>>,
    weight: &dyn Fn(&str) -> Option<Tensor<S>>,
    own: Own<'_, S>,
) -> Result<Vec<Val<S>>, String> {
    let mut values: BTreeMap<Value, Val<S>> = BTreeMap::new();
    for id in graph.order() {
        let results = match graph.op(id) {
            Op::Input { name } => vec![params(name).ok_or(format!("no value for %{name}"))?],
            Op::Weight { name } => vec![Val::Float(weight(name).ok_or(format!("no weight {name}"))?)],
            Op::Weights { name, count, whole } => {
                vec![Val::Float(stacked(name, *count, whole.as_ref(), graph.ty(id.into()), weight)?)]
            }
            op => {
                let operands = graph.operands(id);
                let args: Vec<&Val<S>> = operands.iter().map(|v| &values[v]).collect();
                let coarse = sums_may_be_coarse(graph, op, &operands);
                let cx = Cx { coarse, adds: has_least(graph, op, &operands), ..cx };
                own(id, &args, cx).unwrap_or_else(|| op.eval(&args, cx)).map_err(|e| format!("{}: {e}", op.name()))?
            }
        };
        for (out, (mut val, ty)) in results.into_iter().zip(graph.types(id)).enumerate() {
            check_shape(&val, ty, cx).map_err(|e| format!("{} {}: {e}", graph.op(id).name(), graph.location(id)))?;
            match (&mut val, ty) {
                _ if graph.op(id).class() == Class::Source => {}
                // Codes are rounded by the op that makes them, and these are no codes.
                (Val::Float(_), Type::Tensor(ty)) if ty.layout.is_coded() => {}
                _ if becomes_codes(graph, Value { node: id, out }) => {}
                (Val::Float(tensor), Type::Tensor(ty)) => {
                    tensor.data.iter_mut().for_each(|v| *v = v.stored(ty.dtype));
                }
                (Val::Cache(cache), Type::Cache(ty)) if ty.dtype == DType::F8E4M3 => {
                    // What the state before has too is rounded already.
                    let entries = cache.entries.values_mut().filter_map(Arc::get_mut);
                    let numbers = entries.flat_map(|(keys, values)| keys.iter_mut().chain(values));
                    numbers.for_each(|v| *v = v.stored(ty.dtype));
                }
                (Val::Slots(slots), Type::Slots(ty)) => {
                    slots.entries.values_mut().flatten().for_each(|v| *v = v.stored(ty.dtype));
                }
                _ => {}
            }
            values.insert(Value { node: id, out }, val);
        }
    }
    Ok(graph.outputs().iter().map(|v| values[v].clone()).collect())
}

/// The tensors of a stack, or the rows of the one that has them all.
fn stacked<S: Real>(
    name: &str,
    count: usize,
    whole: Option<&Whole>,
    ty: &Type,
    weight: &dyn Fn(&str) -> Option<Tensor<S>>,
) -> Result<Tensor<S>, String> {
    let shape = ty.as_tensor().and_then(|t| t.shape.sizes()).ok_or("a stack of unknown sizes")?;
    if let Some((whole, tensor)) = whole.and_then(|whole| Some((whole, weight(&whole.name)?))) {
        let rows = shape.get(1).ok_or("a stack without rows")?;
        return match &step::slice(&[&Val::Float(tensor)], 1, whole.start, *rows)?[0] {
            Val::Float(tensor) => Ok(tensor.clone()),
            _ => Err("a slice is a tensor".into()),
        };
    }
    let mut data = Vec::with_capacity(shape.iter().product());
    for name in (0..count).map(|number| nth_name(name, number)) {
        data.extend(weight(&name).ok_or(format!("no weight {name}"))?.data);
    }
    match data.len() == shape.iter().product::<usize>() {
        true => Ok(Tensor::new(shape, data)),
        false => Err(format!("the tensors {name} have {} elements, which are not {shape:?}", data.len())),
    }
}

/// Whether a value is only a step on the way to codes, which no kernel rounds.
fn becomes_codes(graph: &Graph, v: Value) -> bool {
    let users = graph.users(v);
    let coded = |&(user, _): &(NodeId, usize)| graph.op(user).values() == Values::Coded;
    !users.is_empty() && users.iter().all(coded) && !graph.is_output(v)
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

pub(crate) fn weights<S: Real>(_: &[&Val<S>], _: Cx, name: &str, _: &usize, _: &Option<Whole>) -> Results<S> {
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

pub(crate) fn numbers<S: Real>(_: &[&Val<S>], _: Cx, values: &[usize]) -> Results<S> {
    one(vec![values.len()], values.iter().map(|&value| S::of(value as f64)).collect())
}

pub(crate) fn pack<S: Real>(args: &[&Val<S>], _: Cx, _: &Layout) -> Results<S> {
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
        let r = r.max(0) as usize;
        if r >= table.shape[0] {
            return Err(format!("row {r} of {}", table.shape[0]));
        }
        data.extend_from_slice(&table.data[r * n..][..n]);
    }
    one(vec![rows.len(), n], data)
}

pub(crate) fn reorder<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (x, order) = (args[0].float()?, args[1].float()?);
    let last = order.data.len() - 1;
    let columns: Vec<usize> = order.data.iter().map(|column| (column.get() as usize).min(last)).collect();
    one(x.shape.clone(), x.rows().flat_map(|row| columns.iter().map(|&column| row[column])).collect())
}

pub(crate) fn gather_run<S: Real>(args: &[&Val<S>], _: Cx, &count: &usize) -> Results<S> {
    let (table, rows) = (args[0].float()?, args[1].int()?);
    let n = table.width();
    let mut data = Vec::with_capacity(rows.len() * n * count);
    for &r in rows {
        let r = r.max(0) as usize;
        let run = table.data.get(r * n..(r + count) * n);
        data.extend_from_slice(run.ok_or_else(|| format!("rows {r} to {} of {}", r + count, table.shape[0]))?);
    }
    one(vec![rows.len(), n * count], data)
}

pub(crate) fn placed<S: Real>(args: &[&Val<S>], _: Cx, &start: &usize, &adds: &bool) -> Results<S> {
    let (x, table, rows) = (args[0].float()?, args[1].float()?, args[2].int()?);
    let (n, wide) = (x.width(), table.width());
    let mut data = x.data.clone();
    for (to, &r) in data.chunks_mut(n).zip(rows) {
        let Ok(r) = usize::try_from(r) else { continue };
        let from = table.data.get(r * wide + start..r * wide + start + n);
        let from = from.ok_or_else(|| format!("row {r} of {}", table.shape[0]))?;
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = if adds { to.add(from) } else { from });
    }
    one(x.shape.clone(), data)
}

pub(crate) fn linear<S: Real>(args: &[&Val<S>], cx: Cx, _: &DType, block: &Option<Block>) -> Results<S> {
    let (x, mut w) = (args[0].float()?, Cow::Borrowed(args[1].float()?));
    if let Some(block) = block {
        let zero = args.get(3).map(|zero| zero.float()).transpose()?;
        w = Cow::Owned(dequantised(&w, *block, args[2].float()?, zero.map(|zero| (zero, cx.adds))));
    }
    let data = x.rows().flat_map(|a| products(a, &w.data, block.is_some(), cx.coarse)).collect();
    one(vec![x.shape[0], w.shape[0]], data)
}

/// Whether both operands of a product are codes of e4m3, which NVIDIA's machines of the ninth
/// generation add up with fewer bits.
fn sums_may_be_coarse(graph: &Graph, op: &Op, operands: &[Value]) -> bool {
    let is = |v: Value, scaled: bool| {
        let t = graph.ty(v).as_tensor();
        t.is_some_and(|t| t.dtype == DType::F8E4M3 && scaled == matches!(t.layout, Layout::Scaled(_)))
    };
    matches!(op, Op::Linear { .. } | Op::Grouped { .. }) && is(operands[0], true) && is(operands[1], false)
}

/// Whether a weight of codes has least numbers, which are added to its elements.
fn has_least(graph: &Graph, op: &Op, operands: &[Value]) -> bool {
    let behind = op.marks().and_then(|first| operands.get(first + 1));
    behind.and_then(|&v| graph.ty(v).as_tensor()).is_some_and(|t| t.dtype.is_float())
}

/// The largest of the products and of their sums, one after the other.
fn largest_of<S: Real>(a: &[S], b: &[S]) -> f64 {
    let (mut sum, mut largest) = (0.0, 0f64);
    for product in a.iter().zip(b).map(|(a, b)| a.get() * b.get()) {
        sum += product;
        largest = largest.max(product.abs()).max(f64::abs(sum));
    }
    largest
}

/// A row times a row of a weight. What codes mean may be rounded to the type of the row, which
/// elements of floats have already.
pub(crate) fn product<S: Real>(row: &[S], w: &[S], codes: bool, coarse: bool) -> S {
    let element = |a: S, b: S| if codes { b.narrowed_to(a) } else { b };
    let sum = row.iter().zip(w).fold(S::of(0.0), |sum, (&a, &b)| sum.add_product(a, element(a, b)));
    if coarse { sum.coarse(largest_of(row, w), row.len()) } else { sum }
}

/// A row times each row of a weight.
fn products<S: Real>(row: &[S], w: &[S], codes: bool, coarse: bool) -> Vec<S> {
    w.chunks_exact(row.len()).map(|w| product(row, w, codes, coarse)).collect()
}

pub(crate) fn grouped<S: Real>(args: &[&Val<S>], cx: Cx, _: &DType, block: &Option<Block>) -> Results<S> {
    let (x, w, experts) = (args[0].float()?, args[1].float()?, args[2].int()?);
    let more: Vec<&Tensor<S>> = args[3..].iter().map(|v| v.float()).collect::<Result<_, _>>()?;
    let &[count, height, cols] = &w.shape[..] else { return Err("w has no three axes".into()) };
    // The matrix of an expert, of what has one for each.
    let of = |all: &Tensor<S>, expert: usize| {
        let size = all.data.len() / count;
        Tensor::new(all.shape[1..].to_vec(), all.data[expert * size..][..size].to_vec())
    };
    let mut meant: BTreeMap<usize, Tensor<S>> = BTreeMap::new();
    let (mut data, each) = (Vec::with_capacity(experts.len() * height), experts.len() / x.shape[0].max(1));
    for (pair, &expert) in experts.iter().enumerate() {
        let Ok(expert) = usize::try_from(expert) else {
            data.extend(vec![S::of(0.0); height]);
            continue;
        };
        if expert >= count {
            return Err(format!("expert {expert} of {count}"));
        }
        let own = meant.entry(expert).or_insert_with(|| match block {
            None => of(w, expert),
            Some(block) => {
                let zero = more.get(1).map(|zero| of(zero, expert));
                let zero = zero.as_ref().map(|zero| (zero, cx.adds));
                dequantised(&of(w, expert), *block, &of(more[0], expert), zero)
            }
        });
        data.extend(products(&x.data[pair / each * cols..][..cols], &own.data, block.is_some(), cx.coarse));
    }
    one(vec![experts.len(), height], data)
}

/// The head of a row is its expert.
pub(crate) fn per_head<S: Real>(args: &[&Val<S>], cx: Cx, out: &DType, block: &Option<Block>) -> Results<S> {
    let x = args[0].float()?;
    let &[rows, heads, cols] = &x.shape[..] else { return Err("x has no heads".into()) };
    let each = Val::Float(Tensor::new(vec![rows * heads, cols], x.data.clone()));
    let own = Val::Int((0..rows * heads).map(|row| (row % heads) as i32).collect());
    let args: Vec<&Val<S>> = [&each, args[1], &own].into_iter().chain(args[2..].iter().copied()).collect();
    let made = grouped(&args, cx, out, block)?;
    let made = made[0].float()?;
    one(vec![rows, heads, made.shape[1]], made.data.clone())
}

pub(crate) fn group<S: Real>(args: &[&Val<S>], _: Cx, _: &usize, _: &usize) -> Results<S> {
    Ok(vec![Val::Int(args[0].int()?.to_vec())])
}

pub(crate) fn combine<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (y, weights) = (args[0].float()?, args[1].float()?);
    let (width, k) = (y.width(), weights.width());
    let mut data = vec![S::of(0.0); weights.shape[0] * width];
    for (pair, row) in y.rows().enumerate() {
        let sums = data[pair / k * width..][..width].iter_mut();
        sums.zip(row).for_each(|(sum, &v)| *sum = sum.add(v.mul(weights.data[pair])));
    }
    one(vec![weights.shape[0], width], data)
}

pub(crate) fn weigh<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (x, weights) = (args[0].float()?, args[1].float()?);
    let each = x.width();
    let data = x.data.iter().enumerate().map(|(i, &v)| v.mul(weights.data[i / each])).collect();
    one(x.shape.clone(), data)
}

/// The softmax of some numbers.
fn softmax<S: Real>(row: &[S]) -> Vec<S> {
    let top = row.iter().fold(row[0], |m, &s| Scalar::max(m, s));
    let weights: Vec<S> = row.iter().map(|&s| s.sub(top).exp()).collect();
    let sum = weights.iter().fold(S::of(0.0), |a, &b| a.add(b));
    weights.into_iter().map(|w| w.div(sum)).collect()
}

/// The places of the `count` largest numbers, largest first, of equals those that come first.
fn largest<S: Real>(of: &[S], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..of.len()).collect();
    places.sort_by(|&a, &b| of[b].partial_cmp(&of[a]).unwrap_or(std::cmp::Ordering::Equal));
    places.truncate(count);
    places
}

/// What a router makes of a row of logits.
fn scores<S: Real>(row: &[S], score: Score) -> Vec<S> {
    match score {
        Score::Softmax => softmax(row),
        Score::Sigmoid => row.iter().map(|&l| S::of(1.0).div(S::of(1.0).add(S::of(0.0).sub(l).exp()))).collect(),
        Score::Chosen => row.to_vec(),
        Score::RootSoftplus => row.iter().map(|&l| softplus(l).sqrt()).collect(),
    }
}

pub(crate) fn route_given<S: Real>(args: &[&Val<S>], _: Cx, by: &Router) -> Results<S> {
    let (logits, chosen) = (args[0].float()?, args[1].float()?);
    let (mut weights, mut experts) = (Vec::new(), Vec::new());
    for (row, chosen) in logits.rows().zip(chosen.rows()) {
        let scores = scores(row, by.score);
        let own: Vec<usize> = chosen.iter().map(|expert| expert.get() as usize).collect();
        if let Some(other) = own.iter().find(|&&expert| expert >= scores.len()) {
            return Err(format!("expert {other} of {}", scores.len()));
        }
        let sum = own.iter().fold(S::of(by.added().unwrap_or(0.0)), |sum, &expert| sum.add(scores[expert]));
        let sum = if by.renormalise { sum } else { S::of(1.0) };
        weights.extend(own.iter().map(|&expert| scores[expert].div(sum).mul(S::of(by.scale))));
        experts.extend(own.into_iter().map(|expert| expert as i32));
    }
    let weights = Tensor::new(vec![logits.shape[0], by.k], weights);
    Ok(vec![Val::Float(weights), Val::Int(experts)])
}

pub(crate) fn route<S: Real>(args: &[&Val<S>], _: Cx, by: &Router, &held: &Option<usize>) -> Results<S> {
    let logits = args[0].float()?;
    let (bias, first) = Router::behind_logits(&args[1..], held);
    let bias = bias.map(|bias| bias.float()).transpose()?;
    let first = first.map(|first| first.float()).transpose()?.map_or(0.0, |first| first.data[0].get() as f32);
    // Counted from the first of those that are held, in f32 as kernels count; -1 for any other.
    let counted = |place: usize| match place as f32 - first {
        own if held.is_none_or(|held| own < held as f32) && own >= 0.0 => own as i32,
        _ => -1,
    };
    let (mut weights, mut experts) = (Vec::new(), Vec::new());
    let each = logits.width() / by.groups;
    for row in logits.rows() {
        let scores = scores(row, by.score);
        let mut choice = if by.by_logits(bias.is_some()) { row.to_vec() } else { scores.clone() };
        if let Some(bias) = bias {
            choice.iter_mut().zip(&bias.data).for_each(|(score, &bias)| *score = score.add(bias));
        }
        // What is equal in f32, as kernels compare it, is equal.
        choice.iter_mut().for_each(|v| *v = S::of(v.get() as f32 as f64));
        let group = |scores: &[S]| {
            let count = if by.best == Best::Max { 1 } else { 2 };
            largest(scores, count).into_iter().fold(S::of(0.0), |sum, place| sum.add(scores[place]))
        };
        let groups: Vec<S> = choice.chunks(each).map(group).collect();
        let kept = largest(&groups, by.kept);
        // Experts of other groups are not there.
        let open: Vec<usize> = (0..choice.len()).filter(|place| kept.contains(&(place / each))).collect();
        let own: Vec<S> = open.iter().map(|&place| choice[place]).collect();
        let chosen: Vec<usize> = largest(&own, by.k).into_iter().map(|place| open[place]).collect();
        let mut of: Vec<S> = chosen.iter().map(|&place| scores[place]).collect();
        if by.score == Score::Chosen {
            of = softmax(&of);
        }
        if by.renormalise {
            let sum = of.iter().fold(S::of(by.added().unwrap_or(0.0)), |sum, &w| sum.add(w));
            of.iter_mut().for_each(|w| *w = w.div(sum));
        }
        let own: Vec<i32> = chosen.into_iter().map(counted).collect();
        let scale = |(&own, w): (&i32, S)| if own < 0 { S::of(0.0) } else { w.mul(S::of(by.scale)) };
        weights.extend(own.iter().zip(of).map(scale));
        experts.extend(own);
    }
    let weights = Tensor::new(vec![logits.shape[0], by.k], weights);
    Ok(vec![Val::Float(weights), Val::Int(experts)])
}

/// What the codes of a weight mean. Zero points are taken off them, least numbers are added to the
/// products with scales: `true` stands beside those.
fn dequantised<S: Real>(
    codes: &Tensor<S>,
    block: Block,
    scale: &Tensor<S>,
    zero: Option<(&Tensor<S>, bool)>,
) -> Tensor<S> {
    let (cols, across) = (codes.width(), scale.width());
    let element = |(i, &code): (usize, &S)| {
        let at = i / cols / block.rows * across + i % cols / block.cols;
        match zero {
            None => code.mul(scale.data[at]),
            Some((zero, false)) => code.sub(zero.data[at]).mul(scale.data[at]),
            Some((least, true)) => code.mul(scale.data[at]).add(least.data[at]),
        }
    };
    Tensor::new(codes.shape.clone(), codes.data.iter().enumerate().map(element).collect())
}

pub(crate) fn quantise<S: Real>(args: &[&Val<S>], _: Cx, &to: &DType, &rule: &Rule) -> Results<S> {
    let x = args[0].float()?;
    let given = args.get(1).map(|scale| scale.float()).transpose()?.map(|scale| scale.data[0]);
    let columns = match rule {
        Rule::Static | Rule::Row => x.width(),
        Rule::Group(columns) | Rule::Power(columns) | Rule::Mx(columns) | Rule::MxCodes(columns) => columns,
    };
    let groups = x.rows().flat_map(|row| row.chunks(columns));
    one(x.shape.clone(), groups.flat_map(|group| quantise::coded(group, to, rule, given)).collect())
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

pub(crate) fn squares<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (a, b) = (args[0].float()?, args[1].float()?);
    let sum = |row: &[S]| row.iter().fold(S::of(0.0), |sum, &v| sum.add(v.mul(v)));
    let data = a.rows().zip(b.rows()).flat_map(|(a, b)| [sum(a), sum(b)]).collect();
    one(vec![a.shape[0], 2], data)
}

pub(crate) fn part_norm<S: Real>(args: &[&Val<S>], _: Cx, &eps: &f64, &of: &usize, &at: &usize) -> Results<S> {
    let (x, w, squares) = (args[0].float()?, args[1].float()?, args[2].float()?);
    let mut data = Vec::with_capacity(x.data.len());
    for (row, sums) in x.rows().zip(squares.rows()) {
        let scale = S::of(1.0).div(sums[at].div(S::of(of as f64)).add(S::of(eps)).sqrt());
        data.extend(row.iter().zip(&w.data).map(|(&v, &w)| v.mul(scale).mul(w)));
    }
    one(x.shape.clone(), data)
}

/// How much the frequencies of dynamic NTK change for a sequence of this length: frequency i is
/// multiplied by `stretch^(-2 i / (dim - 2))`.
pub fn stretch(length: i32, growth: f64, original: usize) -> f64 {
    if growth == 0.0 { 1.0 } else { (growth * length as f64 / original as f64 - (growth - 1.0)).max(1.0) }
}

pub(crate) fn rope_table<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &scale: &f64,
    &growth: &f64,
    &original: &usize,
    &turn: &Turn,
) -> Results<S> {
    let (positions, lengths, freqs) = (args[0].int()?, args[1].int()?, args[2].float()?);
    let half = freqs.data.len();
    // The positions of each axis, and the axis of each frequency.
    let (mut all, mut axes) = (vec![positions], vec![0; half]);
    if let [heights, widths, of] = args[3..] {
        all.extend([heights.int()?, widths.int()?]);
        axes = of.float()?.data.iter().map(|axis| axis.get() as usize).collect();
    }
    if let Some(axis) = axes.iter().find(|&&axis| axis >= all.len()) {
        return Err(format!("axis {axis} of {}", all.len()));
    }
    let mut data = Vec::with_capacity(positions.len() * 2 * half);
    let sign = if turn == Turn::Back { -scale } else { scale };
    for (token, &n) in lengths.iter().enumerate() {
        let s = stretch(n, growth, original);
        let angle = |i: usize| {
            let p = turn.position(all[axes[i]][token]) as f64;
            freqs.data[i].get() * s.powf(-(2.0 * i as f64) / (2.0 * half as f64 - 2.0).max(1.0)) * p
        };
        data.extend((0..half).map(|i| S::near(angle(i).cos() * scale)));
        data.extend((0..half).map(|i| S::near(angle(i).sin() * sign)));
    }
    one(vec![positions.len(), 2 * half], data)
}

pub(crate) fn growth<S: Real>(args: &[&Val<S>], _: Cx, &beta: &f64, &length: &usize, &shift: &usize) -> Results<S> {
    let lengths = |&p: &i32| ((p.max(0) as usize + shift) / length) as f64;
    let of = |p| S::near(1.0 + beta * f64::ln_1p(lengths(p)));
    let positions = args[0].int()?;
    one(vec![positions.len(), 1], positions.iter().map(of).collect())
}

pub(crate) fn rope<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    rotated(args, |i, half| [i, i + half])
}

pub(crate) fn rope_pairs<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    rotated(args, |i, _| [2 * i, 2 * i + 1])
}

/// Rotates the two elements of each head that belong to a frequency; `pair` gives them for the
/// frequency and the number of frequencies.
fn rotated<S: Real>(args: &[&Val<S>], pair: impl Fn(usize, usize) -> [usize; 2]) -> Results<S> {
    let (x, table) = (args[0].float()?, args[1].float()?);
    let (heads, dim, rot) = (x.shape[1], x.shape[2], table.width());
    let mut data = x.data.clone();
    for (i, head) in data.chunks_exact_mut(dim).enumerate() {
        let (cos, sin) = table.data[i / heads * rot..][..rot].split_at(rot / 2);
        for j in 0..rot / 2 {
            let [first, second] = pair(j, rot / 2);
            let (a, b) = (head[first], head[second]);
            head[first] = a.mul(cos[j]).sub(b.mul(sin[j]));
            head[second] = b.mul(cos[j]).add(a.mul(sin[j]));
        }
    }
    one(x.shape.clone(), data)
}

pub(crate) fn parts<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &count: &usize,
    &start: &usize,
    &len: &usize,
    &step: &usize,
) -> Results<S> {
    let x = args[0].float()?;
    let part = |row: &[S], i: usize| row[start + i * step..][..len].to_vec();
    let data = x.data.chunks(x.shape[1]).flat_map(|row| (0..count).flat_map(move |i| part(row, i))).collect();
    Ok(vec![Val::Float(Tensor::new(vec![x.shape[0], count, len], data))])
}

pub(crate) fn beside<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let last = args[0].float()?.shape.len() - 1;
    step::concat(args, last)
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
    let row = |x: &Tensor<S>, t: usize| x.data[t * x.shape[1] * x.shape[2]..][..x.shape[1] * x.shape[2]].to_vec();
    for (t, (&seq, &pos)) in batch.sequences.iter().zip(&batch.positions).enumerate() {
        cache.entries.insert((seq, pos), Arc::new((row(k, t), row(v, t))));
    }
    Ok(vec![Val::Cache(cache)])
}

/// The values are the first elements of each head's key.
pub(crate) fn key_write<S: Real>(args: &[&Val<S>], cx: Cx, &values: &usize, every: &Option<usize>) -> Results<S> {
    let &[cache, k, batch] = args else { unreachable!("checked by the verifier") };
    let v = step::slice(&[k], 2, 0, values)?;
    let Some(every) = every.map(|every| every as i32) else { return kv_write(&[cache, k, &v[0], batch], cx) };
    let (mut cache, k, v, batch) = (cache.cache()?.clone(), k.float()?, v[0].float()?, batch.batch()?);
    let row = |x: &Tensor<S>, t: usize| x.data[t * x.shape[1] * x.shape[2]..][..x.shape[1] * x.shape[2]].to_vec();
    for (t, (&seq, &pos)) in batch.sequences.iter().zip(&batch.positions).enumerate() {
        if (pos + 1) % every == 0 {
            cache.entries.insert((seq, pos / every), Arc::new((row(k, t), row(v, t))));
        }
    }
    Ok(vec![Val::Cache(cache)])
}

pub(crate) fn attention<S: Real>(args: &[&Val<S>], _: Cx, &scale: &f64, &window: &usize) -> Results<S> {
    attention_of(args, (scale, window), |_, _| true)
}

/// The same of some tokens' heads; all others have no numbers.
pub(crate) fn attention_of<S: Real>(
    args: &[&Val<S>],
    (scale, window): (f64, usize),
    wanted: impl Fn(usize, usize) -> bool,
) -> Results<S> {
    let batch = args[2].batch()?;
    let positions = |t: usize| (first_seen(batch.positions[t], window)..=batch.positions[t]).collect();
    attend_over(args, (scale, |t, _| positions(t)), wanted)
}

/// The first position that a token sees.
fn first_seen(position: i32, window: usize) -> i32 {
    let before = i32::try_from(window).ok().filter(|&keys| keys > 0 && keys <= position);
    before.map_or(0, |keys| position + 1 - keys)
}

pub(crate) fn attend_up_to<S: Real>(args: &[&Val<S>], _: Cx, &scale: &f64, &window: &usize) -> Results<S> {
    attend_up_to_of(args, (scale, window), |_, _| true)
}

/// The same of some tokens' heads; all others have no numbers.
pub(crate) fn attend_up_to_of<S: Real>(
    args: &[&Val<S>],
    (scale, window): (f64, usize),
    wanted: impl Fn(usize, usize) -> bool,
) -> Results<S> {
    let (batch, ends) = (args[2].batch()?, args[3].int()?);
    let positions = |t: usize| (first_seen(batch.positions[t], window)..ends[t]).collect();
    attend_over(&args[..3], (scale, |t, _| positions(t)), wanted)
}

/// Attention of some tokens' heads over the positions of each token and head of the cache, of
/// which there are so many.
fn attend_over<S: Real>(
    args: &[&Val<S>],
    (scale, positions): (f64, impl Fn(usize, [usize; 2]) -> Vec<i32>),
    wanted: impl Fn(usize, usize) -> bool,
) -> Results<S> {
    let (q, cache, batch) = (args[0].float()?, args[1].cache()?, args[2].batch()?);
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let sinks = args.get(3).and_then(|sinks| sinks.float().ok());
    let first = cache.entries.values().next();
    let width = first.map_or(dim, |entry| entry.1.len() * dim / entry.0.len());
    let kv_heads = first.map_or(1, |entry| entry.0.len() / dim);
    let mut data = Vec::with_capacity(q.data.len());
    for (i, query) in q.data.chunks_exact(dim).enumerate() {
        let (t, head) = (i / heads, i % heads);
        if !wanted(t, head) {
            data.resize(data.len() + width, S::of(f64::NAN));
            continue;
        }
        let (seq, of) = (batch.sequences[t], head * kv_heads / heads);
        let seen: Vec<&Entry<S>> = positions(t, [of, kv_heads])
            .into_iter()
            .map(|p| {
                cache.entries.get(&(seq, p)).map(|entry| &**entry).ok_or(format!("sequence {seq} has no position {p}"))
            })
            .collect::<Result<_, _>>()?;
        let parts = seen.iter().map(|(k, v)| (&k[of * dim..][..dim], &v[of * width..][..width])).collect::<Vec<_>>();
        data.extend(attend(query, &parts, (scale, sinks.map(|sinks| sinks.data[head]))));
    }
    one(vec![q.shape[0], heads, width], data)
}

/// Sums are compared in f32, as kernels compare them.
pub(crate) fn choose<S: Real>(args: &[&Val<S>], _: Cx, &k: &usize, &every: &Option<usize>) -> Results<S> {
    let (q, w, cache, batch) = (args[0].float()?, args[1].float()?, args[2].cache()?, args[3].batch()?);
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let mut list = Vec::with_capacity(k * batch.positions.len());
    for (t, (&seq, &pos)) in batch.sequences.iter().zip(&batch.positions).enumerate() {
        let queries = q.data[t * heads * dim..][..heads * dim].chunks_exact(dim);
        let weighted: Vec<(&[S], S)> = queries.zip(w.data[t * heads..][..heads].iter().copied()).collect();
        let score = |p: i32| {
            let entry = cache.entries.get(&(seq, p)).ok_or(format!("sequence {seq} has no position {p}"))?;
            let zero = S::of(0.0);
            let of_head = |(query, w): &(&[S], S)| {
                let dot = query.iter().zip(&entry.0).fold(zero, |sum, (&q, &k)| sum.add(q.mul(k)));
                w.mul(if dot.get() > 0.0 { dot } else { zero })
            };
            Ok(weighted.iter().fold(zero, |sum, pair| sum.add(of_head(pair))).get() as f32)
        };
        let scores: Vec<f32> = (0..complete(pos, every)).map(score).collect::<Result<_, String>>()?;
        list.extend(best(&scores, k));
    }
    Ok(vec![Val::Int(list)])
}

/// The places of the `k` largest scores in ascending order, then -1. Of equal ones the first is
/// taken.
fn best(scores: &[f32], k: usize) -> impl Iterator<Item = i32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable: of equal ones the first stays the first.
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
    order.truncate(k);
    order.sort_unstable();
    let none = std::iter::repeat_n(-1, k - order.len());
    order.into_iter().map(|place| place as i32).chain(none)
}

/// Products are compared in f32, as kernels compare them.
pub(crate) fn choose_blocks<S: Real>(
    args: &[&Val<S>],
    _: Cx,
    &k: &usize,
    &block: &usize,
    &local: &usize,
) -> Results<S> {
    let (q, cache, batch) = (args[0].float()?, args[1].cache()?, args[2].batch()?);
    let (heads, dim) = (q.shape[1], q.shape[2]);
    let mut list = Vec::with_capacity(heads * k * batch.positions.len());
    for (i, query) in q.data.chunks_exact(dim).enumerate() {
        let (seq, pos) = (batch.sequences[i / heads], batch.positions[i / heads]);
        let score = |p: i32| {
            let entry = cache.entries.get(&(seq, p)).ok_or(format!("sequence {seq} has no position {p}"))?;
            Ok(query.iter().zip(&entry.0).fold(S::of(0.0), |sum, (&q, &k)| sum.add(q.mul(k))).get() as f32)
        };
        let scores: Vec<f32> = (0..=pos).map(score).collect::<Result<_, String>>()?;
        let largest = |keys: &[f32]| keys.iter().fold(f32::NEG_INFINITY, |most, &score| most.max(score));
        let mut blocks: Vec<f32> = scores.chunks(block).map(largest).collect();
        blocks.iter_mut().rev().take(local).for_each(|score| *score = f32::INFINITY);
        list.extend(best(&blocks, k));
    }
    Ok(vec![Val::Int(list)])
}

pub(crate) fn attend_listed<S: Real>(args: &[&Val<S>], _: Cx, &scale: &f64, &block: &Option<usize>) -> Results<S> {
    attend_listed_of(args, (scale, block), |_, _| true)
}

/// The same of some tokens' heads; all others have no numbers.
pub(crate) fn attend_listed_of<S: Real>(
    args: &[&Val<S>],
    (scale, block): (f64, Option<usize>),
    wanted: impl Fn(usize, usize) -> bool,
) -> Results<S> {
    let (batch, list) = (args[2].batch()?, args[3].int()?);
    let each = list.len() / batch.positions.len().max(1);
    let positions = |t: usize, [head, heads]: [usize; 2]| {
        let of_token = &list[t * each..][..each];
        let (own, size) = match block {
            Some(size) => (&of_token[each / heads * head..][..each / heads], size as i32),
            None => (of_token, 1),
        };
        let entries = own.iter().take_while(|&&entry| entry >= 0);
        entries.flat_map(|&entry| entry * size..(entry + 1) * size).filter(|&p| p <= batch.positions[t]).collect()
    };
    attend_over(args, (scale, positions), wanted)
}

pub(crate) fn conv<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let (mut state, x, w, batch) = (args[0].slots()?.clone(), args[1].float()?, args[2].float()?, args[3].batch()?);
    let channels = x.width();
    let mut data = Vec::with_capacity(x.data.len());
    for (row, (&seq, &pos)) in x.rows().zip(batch.sequences.iter().zip(&batch.positions)) {
        let mut seen = state.before(seq, pos, (w.shape[0] - 1) * channels)?;
        seen.extend(row);
        let sum = |c: usize| {
            let taps = seen.iter().zip(&w.data).skip(c).step_by(channels);
            taps.fold(S::of(0.0), |sum, (&x, &w)| sum.add(x.mul(w)))
        };
        data.extend((0..channels).map(sum));
        state.keep(seq, pos, seen.split_off(channels));
    }
    Ok(vec![Val::Float(Tensor::new(x.shape.clone(), data)), Val::Slots(state)])
}

pub(crate) fn delta_rule<S: Real>(args: &[&Val<S>], _: Cx, &eps: &f64) -> Results<S> {
    let unit = |row: &[S], by: f64| {
        let square = row.iter().fold(S::of(0.0), |sum, &v| sum.add(v.mul(v)));
        let scale = S::of(by).div(square.add(S::of(eps)).sqrt());
        row.iter().map(|v| v.mul(scale)).collect()
    };
    let ends = |q: &[S], k: &[S]| [unit(q, (q.len() as f64).powf(-0.5)), unit(k, 1.0)];
    recurrence(args, args[6], ends, |_, v, seen| (v.sub(seen), None))
}

pub(crate) fn scan<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let skip = &args[6].float()?.data;
    recurrence(args, args[7], |q, k| [q.to_vec(), k.to_vec()], |head, v, _| (v, Some(v.mul(skip[head]))))
}

/// A recurrence over a state for each head. `ends` makes the query and the key of those that are
/// given; `change` what is added to a column of the state of a head's value and what the key finds
/// there, and what is added to the result.
fn recurrence<S: Real>(
    args: &[&Val<S>],
    batch: &Val<S>,
    ends: impl Fn(&[S], &[S]) -> [Vec<S>; 2],
    change: impl Fn(usize, S, S) -> (S, Option<S>),
) -> Results<S> {
    let (mut state, batch) = (args[0].slots()?.clone(), batch.batch()?);
    let rows = args[1..6].iter().map(|v| v.float()).collect::<Result<Vec<_>, _>>()?;
    let &[q, k, v, g, beta] = &rows[..] else { return Err("five operands have rows".into()) };
    let (&[tokens, key_heads, dk], &[_, heads, dv]) = (&q.shape[..], &v.shape[..]) else {
        return Err("queries and values have heads".into());
    };
    let mut data = Vec::with_capacity(v.data.len());
    let mut largest = BTreeMap::new();
    for t in 0..tokens {
        let (seq, pos) = (batch.sequences[t], batch.positions[t]);
        let mut slot = state.before(seq, pos, heads * dk * dv)?;
        for (head, s) in slot.chunks_exact_mut(dk * dv).enumerate() {
            let size = |all: &[S]| all.iter().fold(0.0, |top: f64, v| top.max(v.get().abs()));
            let own = size(s).max(size(&v.data[(t * heads + head) * dv..][..dv]));
            let largest = largest.entry((seq, head)).or_insert(0.0);
            *largest = largest.max(own);
            let (at, shared) = (t * heads + head, t * key_heads + head * key_heads / heads);
            let [q, k] = ends(&q.data[shared * dk..][..dk], &k.data[shared * dk..][..dk]);
            let decays = g.data.len() / (tokens * heads);
            for (row, s) in s.chunks_exact_mut(dv).enumerate() {
                let kept = g.data[at * decays + row % decays].exp();
                s.iter_mut().for_each(|s| *s = s.mul(kept));
            }
            let column = |s: &[S], by: &[S], j: usize| {
                by.iter().enumerate().fold(S::of(0.0), |sum, (i, &b)| sum.add(s[i * dv + j].mul(b)))
            };
            for j in 0..dv {
                let (new, more) = change(head, v.data[at * dv + j], column(s, &k, j));
                let d = new.mul(beta.data[at]);
                k.iter().enumerate().for_each(|(i, &k)| s[i * dv + j] = s[i * dv + j].add(k.mul(d)));
                let seen = column(s, &q, j).less_decayed(*largest);
                data.push(more.map_or(seen, |more| seen.add(more)));
            }
            s.iter_mut().for_each(|s| *s = s.less_decayed(*largest));
        }
        state.keep(seq, pos, slot);
    }
    Ok(vec![Val::Float(Tensor::new(v.shape.clone(), data)), Val::Slots(state)])
}

pub(crate) fn all_reduce<S: Real>(args: &[&Val<S>], _: Cx) -> Results<S> {
    let mut sum = args[0].clone();
    if let (Val::Float(sum), Some(Val::Float(added))) = (&mut sum, args.get(1)) {
        sum.data.iter_mut().zip(&added.data).for_each(|(sum, added)| *sum = sum.add(*added));
    }
    Ok(vec![sum])
}

pub(crate) fn all_gather<S: Real>(args: &[&Val<S>], _: Cx, ranks: &usize) -> Results<S> {
    let x = args[0].float()?;
    let [rows, width] = x.shape[..] else { unreachable!("checked by the verifier") };
    let data = x.data.chunks_exact(width.max(1)).flat_map(|row| row.repeat(*ranks)).collect();
    Ok(vec![Val::Float(Tensor::new(vec![rows, width * ranks], data))])
}

pub(crate) fn hand_on<S: Real>(args: &[&Val<S>], _: Cx, _: &usize) -> Results<S> {
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

/// One query over the keys and values that it sees, and perhaps over a sink.
fn attend<S: Real>(query: &[S], seen: &[(&[S], &[S])], (scale, sink): (f64, Option<S>)) -> Vec<S> {
    let dot = |k: &[S]| product(query, k, false, false).mul(S::of(scale));
    let scores: Vec<S> = seen.iter().map(|(k, _)| dot(k)).collect();
    let top = scores.iter().chain(&sink).fold(scores[0], |m, &s| Scalar::max(m, s));
    let weight = |&s: &S| s.sub(top).exp();
    let weights: Vec<S> = scores.iter().map(weight).collect();
    let sum = weights.iter().copied().chain(sink.iter().map(weight)).fold(S::of(0.0), S::add);
    let mut out = vec![S::of(0.0); seen[0].1.len()];
    for (w, (_, v)) in weights.iter().zip(seen) {
        let weight = w.div(sum).narrowed();
        out.iter_mut().zip(*v).for_each(|(o, &x)| *o = o.add_product(weight, x));
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
        let out = run(&graph, Cx::of(tokens, 0), &params, &|_| None).unwrap();
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
        near(&eval(&text(", %z: u8[2, 2]"), 1, &params), &[10.0, 643.0, 3597.0]);
    }

    #[test]
    fn experts_as_checkpoints_have_them() {
        let text = |whole: &str| {
            format!(
                "graph @g() {{
  %0 = weights {{name = \"e.*.w\", count = 2{whole}}} : f32[2, 3, 2]
  %1 = every %0 {{axis = 1, step = 2, start = 0}} : f32[2, 2, 2]
  %2 = transpose %1 : f32[2, 2, 2]
  %3 = pad %2 {{axis = 2, len = 3}} : f32[2, 2, 3]
  return %3
}}"
            )
        };
        let run = |whole: &str| {
            let graph = parse(&text(whole)).unwrap();
            graph.verify().unwrap();
            assert_eq!(graph.print(), text(whole) + "\n");
            let each = |first: f64| Tensor::new(vec![3, 2], (0..6).map(|i| first + f64::from(i)).collect());
            let weights = |name: &str| match name {
                "e.0.w" => Some(each(0.0)),
                "e.1.w" => Some(each(10.0)),
                "all" => Some(Tensor::new(vec![2, 4, 2], (0..16).map(f64::from).collect())),
                _ => None,
            };
            let out = super::run(&graph, Cx::of(0, 0), &BTreeMap::new(), &weights)?;
            Ok::<_, String>(out[0].float().unwrap().data.clone())
        };
        assert_eq!(run("").unwrap(), [0.0, 4.0, 0.0, 1.0, 5.0, 0.0, 10.0, 14.0, 0.0, 11.0, 15.0, 0.0]);
        let whole = run(", whole = (\"all\", 1, 4)").unwrap();
        assert_eq!(whole, [2.0, 6.0, 0.0, 3.0, 7.0, 0.0, 10.0, 14.0, 0.0, 11.0, 15.0, 0.0]);
        assert_eq!(run(", whole = (\"none\", 1, 4)"), run(""));
        let wrong = |from: &str, to: &str| parse(&text("").replace(from, to)).unwrap().verify().unwrap_err().messages;
        assert_eq!(
            wrong("step = 2, start = 0", "step = 2, start = 2"),
            ["every: each place that is 2 more than a multiple of 2 is not to be had of 3"]
        );
        assert_eq!(wrong("len = 3", "len = 1"), ["pad: len: 1, but there are 2 already"]);
    }

    #[test]
    fn routers_by_hand() {
        let run = |by: &str, bias: Option<[f64; 4]>, logits: [f64; 4]| {
            let (param, operand) = bias.map_or(("", ""), |_| (", %b: f32[4]", ", %b"));
            let text = format!(
                "graph @g(%l: f32[T, 4]{param}) {{
  %0, %1 = route %l{operand} {{by = ({by})}} : f32[T, 2], i32[T*2]
  return %0, %1
}}"
            );
            let graph = parse(&text).unwrap();
            graph.verify().unwrap();
            let mut params = BTreeMap::from([("l".to_string(), float(&[1, 4], &logits))]);
            params.extend(bias.map(|bias| ("b".to_string(), float(&[4], &bias))));
            let out = super::run(&graph, Cx::of(1, 0), &params, &|_| None).unwrap();
            (out[0].float().unwrap().data.clone(), out[1].int().unwrap().to_vec())
        };
        let near = |(got, experts): (Vec<f64>, Vec<i32>), want: [f64; 2], of: [i32; 2]| {
            near(&got, &want);
            assert_eq!(experts, of);
        };
        let ln = f64::ln;
        // Parts 1, 4, 2, 1 of 8; the first of equals comes first.
        let logits = [0.0, ln(4.0), ln(2.0), 0.0];
        near(run("2, softmax, 1, 1, max, false, 1.0", None, logits), [0.5, 0.25], [1, 2]);
        near(run("2, softmax, 1, 1, max, true, 3.0", None, logits), [2.0, 1.0], [1, 2]);
        near(run("2, chosen, 1, 1, max, false, 1.0", None, logits), [2.0 / 3.0, 1.0 / 3.0], [1, 2]);
        near(run("2, chosen, 1, 1, max, false, 1.0", None, [0.0; 4]), [0.5, 0.5], [0, 1]);
        // The logistic function gives 1/2, 4/5, 2/3, 1/2. The bias moves the choice alone.
        near(run("2, sigmoid, 1, 1, max, false, 1.0", Some([1.0, 0.0, 0.0, 0.5]), logits), [0.5, 0.5], [0, 3]);
        // Scores of 1e-20 and two of them, and as much as is added to their sum.
        let small = [-20.0 * ln(10.0); 4];
        near(run("2, sigmoid, 1, 1, max, true, 1.0", None, small), [1.0 / 3.0; 2], [0, 1]);
        near(run("2, sigmoid, 1, 1, max, true, 1.0", None, [-800.0; 4]), [0.0; 2], [0, 1]);
        // Of groups 0 and 1 the second one has the larger sum, the first one the largest score.
        let logits = [0.0, ln(4.0), ln(2.0), ln(2.0)];
        near(run("2, sigmoid, 2, 1, sum2, false, 1.0", None, logits), [2.0 / 3.0, 2.0 / 3.0], [2, 3]);
        near(run("2, sigmoid, 2, 1, max, false, 1.0", None, logits), [0.8, 0.5], [1, 0]);
    }

    /// Choices of experts that the rank does not hold have no rows and count nothing.
    #[test]
    fn routers_of_ranks_by_hand() {
        let text = |values: &str, held: &str, operand: &str| {
            format!(
                "graph @g(%l: f32[T, 5]) {{
  %0 = numbers {{values = {values}}} : f32[2]
  %1 = shard %0 {{axis = 0, parts = 2}} : f32[1]
  %2, %3 = route %l{operand} {{by = (2, softmax, 1, 1, max, true, 4.0){held}}} : f32[T, 2], i32[T*2]
  return %2, %3
}}"
            )
        };
        let graph = parse(&text("[0, 3]", ", held = 3", ", %1")).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify().unwrap();
        let route = |first: f64, logits: [f64; 5]| {
            let graph = parse(
                "graph @g(%l: f32[T, 5], %f: f32[1]) {
  %0, %1 = route %l, %f {by = (2, softmax, 1, 1, max, true, 4.0), held = 3} : f32[T, 2], i32[T*2]
  return %0, %1
}",
            )
            .unwrap();
            let params =
                BTreeMap::from([("l".into(), float(&[1, 5], &logits)), ("f".to_string(), float(&[1], &[first]))]);
            let out = super::run(&graph, Cx::of(1, 0), &params, &|_| None).unwrap();
            (out[0].float().unwrap().data.clone(), out[1].int().unwrap().to_vec())
        };
        let logits = [0.0, f64::ln(3.0), 0.0, 0.0, f64::ln(9.0)];
        assert_eq!((route(0.0, logits).1, route(3.0, logits).1), (vec![-1, 1], vec![1, -1]));
        near(&route(0.0, logits).0, &[0.0, 1.0]);
        near(&route(3.0, logits).0, &[3.0, 0.0]);
        let wrong = |values: &str, held: &str, operand: &str| {
            parse(&text(values, held, operand)).unwrap().verify().unwrap_err().messages
        };
        assert_eq!(wrong("[0, 3]", "", ", %1, %1"), ["route: where all experts are held none of them is the first"]);
        assert_eq!(wrong("[0, 3]", ", held = 3", ""), ["route: where some experts are held one of them is the first"]);
        assert_eq!(wrong("[0, 3]", ", held = 3", ", %0"), ["route: first must be f32[1], not f32[2]"]);
        assert_eq!(wrong("[0, 3]", ", held = 0", ", %1"), ["route: no experts are held"]);
        assert_eq!(
            wrong("[0, 16777217]", ", held = 3", ", %1"),
            ["numbers: 16777217 is more than 16777216, to which f32 has all whole numbers"]
        );
    }

    /// Weights of two experts, 2 and 3 times the identity with the columns exchanged.
    #[test]
    fn rows_are_multiplied_with_the_weights_of_their_experts() {
        let text = "graph @g(%x: f32[T, 2], %w: f32[2, 2, 2], %e: i32[T*2], %c: f32[T, 2]) {
  %0 = group %e {experts = 2, tile = 16} : i32[T*2]@grouped(2, 16)
  %1 = grouped %x, %w, %0 {out = f32} : f32[T*2, 2]
  %2 = grouped %1, %w, %0 {out = f32} : f32[T*2, 2]
  %3 = combine %2, %c : f32[T, 2]
  return %1, %3
}";
        let graph = parse(text).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify().unwrap();
        let params = BTreeMap::from([
            ("x".to_string(), float(&[2, 2], &[1.0, 10.0, 5.0, 7.0])),
            ("w".to_string(), float(&[2, 2, 2], &[2.0, 0.0, 0.0, 2.0, 0.0, 3.0, 3.0, 0.0])),
            ("e".to_string(), Val::Int(vec![1, 0, -1, 1])),
            ("c".to_string(), float(&[2, 2], &[1.0, 0.5, 4.0, 2.0])),
        ]);
        let out = run(&graph, Cx::of(2, 0), &params, &|_| None).unwrap();
        near(&out[0].float().unwrap().data, &[30.0, 3.0, 2.0, 20.0, 0.0, 0.0, 21.0, 15.0]);
        near(&out[1].float().unwrap().data, &[9.0 + 2.0, 90.0 + 20.0, 90.0, 126.0]);
    }

    fn weights(text: &str, tensors: &[(&str, &[usize], &[f64])]) -> Result<Tensor<f64>, String> {
        let graph = parse(text).unwrap();
        assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
        graph.verify().unwrap();
        let weight = |name: &str| {
            let (_, shape, data) = tensors.iter().find(|(other, ..)| *other == name)?;
            Some(Tensor::new(shape.to_vec(), data.to_vec()))
        };
        let out = run(&graph, Cx::of(1, 0), &BTreeMap::new(), &weight)?;
        out[0].float().cloned()
    }

    /// A weight of 3 rows and 9 columns, as compressed-tensors, GPTQ and AWQ store it: two's
    /// complement or with an offset, packed along its columns or its rows. The bits after the last
    /// code of a word are unused.
    #[test]
    fn words_are_unpacked() {
        let value = |row: usize, col: usize| ((row * 9 + col) * 5 % 16) as i64;
        let word = |codes: &dyn Fn(usize) -> i64| {
            let bits = (0..8).fold(0u32, |word, at| word | (codes(at) as u32) << (4 * at));
            f64::from(bits as i32)
        };
        let want: Vec<f64> = (0..27).map(|i| value(i / 9, i % 9) as f64).collect();
        let along = |row: usize, first: usize| word(&|at| if first + at < 9 { value(row, first + at) } else { 11 });
        let rows: Vec<f64> = (0..6).map(|i| along(i / 2, i % 2 * 8)).collect();
        let plain = "graph @g() {
  %0 = weight {name = \"t\"} : i32[3, 2]
  %1 = unpack %0 {from = i32, to = u4, axis = 1, len = 9, order = plain} : u4[3, 9]
  return %1
}";
        let got = weights(plain, &[("t", &[3, 2], &rows)]).unwrap();
        assert_eq!((got.shape, &got.data), (vec![3, 9], &want));
        let signed = plain.replace("return %1", "%2 = shift %1 {by = -8, to = i4} : i4[3, 9]\n  return %2");
        let got = weights(&signed, &[("t", &[3, 2], &rows)]).unwrap();
        assert_eq!(got.data, want.iter().map(|v| v - 8.0).collect::<Vec<_>>());
        let cols: Vec<f64> = (0..6).map(|i| along(i % 3, i / 3 * 8)).collect();
        let gptq = "graph @g() {
  %0 = weight {name = \"t\"} : i32[2, 3]
  %1 = unpack %0 {from = i32, to = u4, axis = 0, len = 9, order = plain} : u4[9, 3]
  %2 = transpose %1 : u4[3, 9]
  return %2
}";
        assert_eq!(weights(gptq, &[("t", &[2, 3], &cols)]).unwrap().data, want);
        // One word for each column has its three rows at nibbles 0, 4 and 1.
        let awq: Vec<f64> = (0..9)
            .map(|col| word(&|at| [0, 2, 4, 6, 1, 3, 5, 7].map(|row| if row < 3 { value(row, col) } else { 11 })[at]))
            .collect();
        let text = "graph @g() {
  %0 = weight {name = \"t\"} : i32[9, 1]
  %1 = unpack %0 {from = i32, to = u4, axis = 1, len = 3, order = awq} : u4[9, 3]
  %2 = transpose %1 : u4[3, 9]
  return %2
}";
        assert_eq!(weights(text, &[("t", &[9, 1], &awq)]).unwrap().data, want);
    }

    #[test]
    fn bytes_are_pairs_of_floats_of_four_bits() {
        let text = "graph @g() {
  %0 = weight {name = \"t\"} : u8[1, 2, 2]
  %1 = view %0 {shape = [1, 4]} : u8[1, 4]
  %2 = unpack %1 {from = u8, to = f4e2m1, axis = 1, len = 7, order = plain} : f4e2m1[1, 7]
  return %2
}";
        let got = weights(text, &[("t", &[1, 2, 2], &[0x10 as f64, 0x9a as f64, 0xf7 as f64, 0x52 as f64])]).unwrap();
        assert_eq!(got.data, [0.0, 0.5, -1.0, -0.5, 6.0, -6.0, 1.0]);
    }

    #[test]
    fn what_a_checkpoint_tells_must_be_as_expected() {
        let text = "graph @g() {
  %0 = weight {name = \"t\"} : f32[4]
  %1 = weight {name = \"g_idx\"} : i32[4]
  %2 = expect %0, %1 {is = groups(2)} : f32[4]
  return %2
}";
        let told = |told: &[f64]| weights(text, &[("t", &[4], &[1.0, 2.0, 3.0, 4.0]), ("g_idx", &[4], told)]);
        assert_eq!(told(&[0.0, 0.0, 1.0, 1.0]).unwrap().data, [1.0, 2.0, 3.0, 4.0]);
        let fault = told(&[0.0, 1.0, 0.0, 1.0]).unwrap_err();
        assert_eq!(
            fault,
            "expect: column 1 is in group 1, not 0: columns in another order (act-order) without `desc_act`"
        );
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

    /// The parts of two ranks, of which both have the second row: it is summed up twice, and its
    /// elements count twice.
    #[test]
    fn norms_of_parts_are_the_norm_of_the_row() {
        let text = "graph @g(%a: f32[T, 2], %b: f32[T, 2], %c: f32[T, 3], %w: f32[2], %n: f32[3]) {
  %0 = squares %a, %c : f32[T, 2]
  %1 = squares %b, %c : f32[T, 2]
  %2 = add %0, %1 : f32[T, 2]
  %3 = part_norm %b, %w, %2 {eps = 1e-5, of = 4, at = 0} : f32[T, 2]
  %4 = part_norm %c, %n, %2 {eps = 1e-5, of = 6, at = 1} : f32[T, 3]
  %5 = beside %3, %4 : f32[T, 5]
  return %5
}";
        let whole = "graph @g(%all: f32[T, 4], %c: f32[T, 3], %w: f32[4], %n: f32[3]) {
  %0 = rms_norm %all, %w {eps = 1e-5} : f32[T, 4]
  %1 = slice %0 {axis = 1, start = 2, len = 2} : f32[T, 2]
  %2 = rms_norm %c, %n {eps = 1e-5} : f32[T, 3]
  %3 = beside %1, %2 : f32[T, 5]
  return %3
}";
        let (a, b, c) = ([1.0, -2.0, 0.0, 0.5], [3.0, 0.25, -4.0, 1.5], [0.5, 2.0, -1.0, 8.0, 0.0, 0.125]);
        let (w, n) = ([1.0, 2.0, -3.0, 0.5], [0.5, -1.0, 4.0]);
        let all = [&a[..2], &b[..2], &a[2..], &b[2..]].concat();
        let params = [
            ("a", float(&[2, 2], &a)),
            ("b", float(&[2, 2], &b)),
            ("c", float(&[2, 3], &c)),
            ("w", float(&[2], &w[2..])),
            ("n", float(&[3], &n)),
        ];
        let of_parts = eval(text, 2, &params);
        let params =
            [("all", float(&[2, 4], &all)), ("c", float(&[2, 3], &c)), ("w", float(&[4], &w)), ("n", float(&[3], &n))];
        near(&of_parts, &eval(whole, 2, &params));
    }

    #[test]
    fn the_largest_is_the_first_of_equals_and_a_number() {
        let graph = parse("graph @g(%x: f32[T, 3]) {\n  %0 = argmax %x : i32[T]\n  return %0\n}").unwrap();
        graph.verify().unwrap();
        let (least, nan) = (f64::NEG_INFINITY, f64::NAN);
        let rows = [[1.0, 2.0, 2.0], [-0.0, 0.0, -1.0], [nan, -3.0, nan], [least, nan, least], [nan, least, least]];
        let params = BTreeMap::from([("x".to_string(), float(&[5, 3], rows.as_flattened()))]);
        let out = run(&graph, Cx::of(5, 0), &params, &|_| None).unwrap();
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
        // Sequence 0 has positions 0 to 2, sequence 1 only 0; keys are zero, so all that is seen
        // weighs the same.
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

    /// Keys of three numbers, of which the first two are the value.
    #[test]
    fn values_may_be_a_part_of_keys() {
        let text = "graph @g(%q: f32[T, 2, 3], %c: cache<f32, 1, 3, prefix 2>, %k: f32[T, 1, 3], %b: batch) {
  %0 = key_write %c, %k, %b {values = 2} : cache<f32, 1, 3, prefix 2>
  %1 = attention %q, %0, %b {scale = 1.0, window = 0} : f32[T, 2, 2]
  return %1, %0
}";
        let three = 3f64.ln();
        let params = [
            ("q", float(&[2, 2, 3], &[0.0, 0.0, 1.0, 5.0, 5.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])),
            ("c", Val::Cache(CacheState::default())),
            ("k", float(&[2, 1, 3], &[4.0, 8.0, three, 12.0, 0.0, 0.0])),
            ("b", Val::Batch(BatchState { sequences: vec![0, 0], positions: vec![0, 1] })),
        ];
        // The second token's first head weighs its keys 3 to 1, its second head evenly.
        near(&eval(text, 2, &params), &[4.0, 8.0, 4.0, 8.0, 6.0, 6.0, 8.0, 4.0]);
        let wrong = |from: &str, to: &str| {
            let graph = parse(&text.replace(from, to)).unwrap();
            assert_eq!(parse(&graph.print()).unwrap().print(), graph.print());
            graph.verify().unwrap_err().messages.remove(0)
        };
        assert_eq!(
            wrong("values = 2", "values = 3"),
            "key_write: k f32[T, 1, 3], of which 3 are a value, does not fit cache<f32, 1, 3, prefix 2>"
        );
        assert_eq!(
            wrong("key_write %c, %k, %b {values = 2}", "kv_write %c, %k, %k, %b"),
            "kv_write: values of cache<f32, 1, 3, prefix 2> are a part of its keys: `key_write` writes both"
        );
    }

    /// Keys of two numbers and values of one, of two heads that two queries share each.
    #[test]
    fn keys_and_values_need_not_be_equally_wide() {
        let text =
            "graph @g(%q: f32[T, 2, 2], %c: cache<f32, 2, 2, 1>, %k: f32[T, 2, 2], %v: f32[T, 2, 1], %b: batch) {
  %0 = kv_write %c, %k, %v, %b : cache<f32, 2, 2, 1>
  %1 = attention %q, %0, %b {scale = 1.0, window = 0} : f32[T, 2, 1]
  return %1, %0
}";
        let three = 3f64.ln();
        let params = [
            ("q", float(&[2, 2, 2], &[1.0; 8])),
            ("c", Val::Cache(CacheState::default())),
            ("k", float(&[2, 2, 2], &[0.0, 0.0, 0.0, three, 0.0, 0.0, 0.0, 0.0])),
            ("v", float(&[2, 2, 1], &[2.0, 4.0, 6.0, 8.0])),
            ("b", Val::Batch(BatchState { sequences: vec![0, 0], positions: vec![0, 1] })),
        ];
        near(&eval(text, 2, &params), &[2.0, 4.0, 4.0, 5.0]);
    }

    /// Keys are zero, so every score is zero: with sinks of ln 3 and of ln 1/2 the values of two
    /// tokens weigh 1 of 5, and 2 of 5.
    #[test]
    fn a_sink_takes_its_weight_and_gives_nothing() {
        let text = "graph @g(%q: f32[T, 2, 1], %c: cache<f32, 1, 1>, %k: f32[T, 1, 1], %v: f32[T, 1, 1], %b: batch, %s: f32[2]) {
  %0 = kv_write %c, %k, %v, %b : cache<f32, 1, 1>
  %1 = attention %q, %0, %b, %s {scale = 0.5, window = 2} : f32[T, 2, 1]
  return %1, %0
}";
        let batch = BatchState { sequences: vec![0, 0, 0], positions: vec![0, 1, 2] };
        let params = [
            ("q", float(&[3, 2, 1], &[1.0; 6])),
            ("c", Val::Cache(CacheState::default())),
            ("k", float(&[3, 1, 1], &[0.0; 3])),
            ("v", float(&[3, 1, 1], &[12.0, 8.0, 2.0])),
            ("b", Val::Batch(batch)),
            ("s", float(&[2], &[3f64.ln(), 0.5f64.ln()])),
        ];
        near(&eval(text, 3, &params), &[3.0, 8.0, 4.0, 8.0, 2.0, 4.0]);
    }

    #[test]
    fn dynamic_tables_stretch_beyond_the_original_length() {
        assert_eq!(stretch(16, 4.0, 16), 1.0);
        assert_eq!(stretch(32, 4.0, 16), 5.0);
        assert_eq!(stretch(1 << 20, 0.0, 0), 1.0);
    }
}
