//! Which parts of which tensors a weight is made of: the expression of its plan, worked out for a
//! rank.
use super::book::Book;
use super::decode::{Codes, Form};
use super::encode::Encoding;
use super::making::{Making, Times};
use super::pack::Piece;
use super::words::Words;
use super::{Rank, present};
use crate::checkpoint::{CheckpointError, Source, Tensor};
use atomc_artifact::manifest::{DType, Encode, Encoded, Fact, Order, STAR, WeightExpr, Whole, nth_name};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Where numbers come from.
#[derive(Clone, Debug)]
pub(super) enum Origin<'a> {
    Tensor { name: Name<'a>, shape: Cow<'a, [usize]> },
    Values(&'a [f32]),
}

/// The name of a tensor, which may be one of a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Name<'a> {
    Of(&'a str),
    Nth(&'a str, usize),
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Name::Of(name) => f.write_str(name),
            Name::Nth(stack, number) => f.write_str(&nth_name(stack, number)),
        }
    }
}

impl<'a> Name<'a> {
    /// Whether it is this one.
    pub fn is(self, other: &str) -> bool {
        match self {
            Name::Of(name) => name == other,
            // Most names are told apart without making one.
            Name::Nth(stack, _) => {
                let (before, behind) = stack.split_once(STAR).unwrap_or((stack, ""));
                other.starts_with(before) && other.ends_with(behind) && self.text() == other
            }
        }
    }

    /// The name itself.
    pub fn text(self) -> Cow<'a, str> {
        match self {
            Name::Of(name) => name.into(),
            Name::Nth(stack, number) => nth_name(stack, number).into(),
        }
    }
}

/// A box of what has numbers, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    pub origin: Origin<'a>,
    /// What is added to each number.
    offset: f32,
    /// In the order of the value.
    axes: Vec<Axis>,
    /// Whether that is not the order of the origin, a matrix.
    turned: bool,
    codes: Option<Unpacked>,
    /// What is made of the origin's floats before all else.
    encode: Option<(Encode, Encoded)>,
    /// What the origin's scales are multiplied with, or divided by, before all else.
    times: Option<Number<'a>>,
    /// What becomes of the origin's words before all else.
    words: Option<Stored<'a>>,
    /// The tensors with which the origin's codes become floats.
    book: Option<BookOf<'a>>,
    /// What the origin's floats are multiplied with before all else.
    scale: Option<f32>,
    /// Whether the origin is integers that become the places which they have in order.
    places: bool,
}

/// The name of a tensor, and its shape.
type Named<'a> = (Name<'a>, Cow<'a, [usize]>);

/// Codes of a book, and the other tensors, in the order of the step.
#[derive(Clone, Debug)]
struct BookOf<'a> {
    shape: [usize; 2],
    beside: Vec<Named<'a>>,
}

/// Words of codes, as they are stored.
#[derive(Clone, Debug)]
struct Stored<'a> {
    /// Of a code.
    bits: usize,
    /// The integers that the codes are sorted by.
    by: Option<Named<'a>>,
}

/// A tensor of one number, and whether it divides others.
#[derive(Clone, Debug)]
struct Number<'a> {
    name: Name<'a>,
    shape: Cow<'a, [usize]>,
    over: bool,
}

/// The types of the origin's words and of their codes, and the change of each code.
#[derive(Clone, Copy, Debug)]
struct Unpacked {
    from: DType,
    to: DType,
    order: Order,
    by: i32,
    becomes: DType,
}

/// What must be so in a checkpoint, and what says it.
#[derive(Clone, Debug)]
pub(super) struct Told<'a> {
    pub is: &'a Fact,
    pub shape: Vec<usize>,
    pub parts: Vec<Part<'a>>,
}

/// One axis of a part.
#[derive(Clone, Debug)]
struct Axis {
    /// Size of the origin, with the spare codes of last words.
    size: usize,
    /// Whether several places are a word.
    packed: bool,
    /// The first place of the origin, the step from each place to the next, and the number of
    /// places.
    start: usize,
    step: usize,
    len: usize,
    /// The place of the value that gets the first of them.
    at: usize,
}

/// Codes with their scales, which must be fit to be such.
#[derive(Clone, Debug)]
pub(super) struct Scaled<'a> {
    pub block: [usize; 2],
    pub codes: Box<Value<'a>>,
    pub scale: Box<Value<'a>>,
    pub zero: Option<Box<Value<'a>>>,
}

/// The value of an expression: its shape, the parts that fill it, and on what conditions.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    pub shape: Vec<usize>,
    pub parts: Vec<Part<'a>>,
    pub told: Vec<Told<'a>>,
    pub scaled: Vec<Scaled<'a>>,
    /// Whether the parts are codes that become floats by the last of `scaled`.
    pub dequantised: bool,
}

/// The parts of an expression's value. Its shapes are sound, as the artifact was checked.
/// `is_whole` says whether there is a tensor with all of a stack.
pub(super) fn parts<'a>(expr: &'a WeightExpr, rank: Rank, is_whole: &dyn Fn(&Whole, &[usize]) -> bool) -> Value<'a> {
    expr.fold(&mut |expr, of| {
        let mut of = of.into_iter();
        match *expr {
            WeightExpr::Tensor { ref name, ref shape } => {
                let origin = Origin::Tensor { name: Name::Of(name), shape: shape.into() };
                Value::all(origin, shape.to_vec())
            }
            WeightExpr::Stack { ref name, count, ref shape, ref whole } => {
                let stored = |whole: &Whole| [&[count, whole.rows], &shape[1..]].concat();
                match whole.as_ref().filter(|whole| is_whole(whole, &stored(whole))) {
                    None => Value::stack(name, count, shape),
                    Some(whole) => {
                        let origin = Origin::Tensor { name: Name::Of(&whole.name), shape: stored(whole).into() };
                        Value::all(origin, stored(whole)).cut(1, whole.start, shape[0])
                    }
                }
            }
            WeightExpr::Const { ref values } => Value::all(Origin::Values(values), vec![values.len()]),
            WeightExpr::Concat { axis, .. } => Value::join(axis, of),
            WeightExpr::Slice { axis, start, len, .. } => next(&mut of).cut(axis, start, len),
            WeightExpr::Every { axis, step, start, .. } => next(&mut of).thinned(axis, step, start),
            WeightExpr::Pad { axis, len, .. } => next(&mut of).padded(axis, len),
            WeightExpr::Repeat { axis, times, .. } => next(&mut of).repeated(axis, times),
            WeightExpr::Shard { axis, parts, .. } => next(&mut of).part(axis, rank.part(parts), parts),
            WeightExpr::Offset { by, .. } => next(&mut of).raised(by),
            WeightExpr::Transpose { .. } => next(&mut of).turned(),
            WeightExpr::View { ref shape, .. } => next(&mut of).viewed(shape),
            WeightExpr::Unpack { from, to, axis, len, order, .. } => {
                next(&mut of).unpacked(Unpacked { from, to, order, by: 0, becomes: to }, axis, len)
            }
            WeightExpr::Sort { bits, .. } => next(&mut of).sorted(bits, next(&mut of)),
            WeightExpr::Places { .. } => next(&mut of).placed(),
            WeightExpr::Codebook { ref shape, .. } | WeightExpr::NestedCodebook { ref shape, .. } => {
                next(&mut of).of_book(shape, of)
            }
            WeightExpr::Factor { by, .. } => next(&mut of).scaled_by(by),
            WeightExpr::Shift { by, to, .. } => next(&mut of).shifted(by, to),
            WeightExpr::Encode { by, made, .. } => next(&mut of).encoded(by, made),
            WeightExpr::Times { over, .. } => next(&mut of).times(over, next(&mut of)),
            WeightExpr::Expect { ref is, .. } => next(&mut of).told(is, next(&mut of)),
            WeightExpr::Scaled { block, .. } => next(&mut of).scaled(block, next(&mut of), of.next()),
            WeightExpr::Dequantise { block, .. } => {
                Value { dequantised: true, ..next(&mut of).scaled(block, next(&mut of), None) }
            }
        }
    })
}

/// The next operand of a step.
fn next<'a>(of: &mut std::vec::IntoIter<Value<'a>>) -> Value<'a> {
    of.next().expect("a checked step has its operands")
}

/// The tensors that a rank has a part of, in whichever form they come.
pub(super) fn names(expr: &WeightExpr, rank: Rank) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for whole in [false, true] {
        parts(expr, rank, &|_, _| whole).add_names(&mut all);
    }
    all
}

impl<'a> Value<'a> {
    fn add_names(&self, all: &mut BTreeSet<String>) {
        for part in self.parts.iter().chain(self.told.iter().flat_map(|told| &told.parts)) {
            if let Origin::Tensor { name, .. } = part.origin {
                all.insert(name.text().into_owned());
            }
            all.extend(part.beside().into_iter().map(|(name, _)| name.text().into_owned()));
        }
        for Scaled { codes, scale, zero, .. } in &self.scaled {
            [codes, scale].into_iter().chain(zero).for_each(|value| value.add_names(all));
        }
    }

    fn all(origin: Origin<'a>, shape: Vec<usize>) -> Value<'a> {
        let axes = shape.iter().map(|&size| Axis::all(size)).collect();
        Value { shape, parts: vec![Part::new(origin, axes)], told: Vec::new(), scaled: Vec::new(), dequantised: false }
    }

    /// Stacked tensors, each a part.
    fn stack(name: &'a str, count: usize, shape: &'a [usize]) -> Value<'a> {
        let one = |number| {
            let origin = Origin::Tensor { name: Name::Nth(name, number), shape: shape.into() };
            Part::new(origin, Axis::of_stack(number, shape))
        };
        let parts = (0..count).map(one).collect();
        let shape = [&[count], shape].concat();
        Value { shape, parts, told: Vec::new(), scaled: Vec::new(), dequantised: false }
    }

    /// Codes, and what they are multiplied with.
    fn scaled(mut self, block: [usize; 2], scale: Value<'a>, zero: Option<Value<'a>>) -> Value<'a> {
        let bare = Value { told: Vec::new(), scaled: Vec::new(), ..self.clone() };
        let [codes, scale] = [bare, scale].map(Box::new);
        self.scaled.push(Scaled { block, codes, scale, zero: zero.map(Box::new) });
        self
    }

    /// A tensor, or a stack of them, under another shape.
    fn viewed(mut self, shape: &[usize]) -> Value<'a> {
        if let [part] = &mut self.parts[..] {
            part.axes = shape.iter().map(|&size| Axis::all(size)).collect();
        } else {
            self.parts.iter_mut().for_each(|part| part.axes = Axis::of_stack(part.axes[0].at, &shape[1..]));
        }
        Value { shape: shape.to_vec(), ..self }
    }

    /// The values one after the other along an axis.
    fn join(axis: usize, mut values: std::vec::IntoIter<Value<'a>>) -> Value<'a> {
        let mut whole = next(&mut values);
        for mut value in values {
            value.parts.iter_mut().for_each(|part| part.axes[axis].at += whole.shape[axis]);
            whole.parts.append(&mut value.parts);
            whole.told.append(&mut value.told);
            whole.scaled.append(&mut value.scaled);
            whole.shape[axis] += value.shape[axis];
        }
        whole
    }

    /// The values and a constant.
    fn raised(mut self, by: f32) -> Value<'a> {
        self.parts.iter_mut().for_each(|part| part.offset += by);
        self
    }

    /// Columns of each matrix as rows.
    fn turned(mut self) -> Value<'a> {
        let last = self.shape.len() - 1;
        self.shape.swap(last - 1, last);
        for part in &mut self.parts {
            part.axes.swap(last - 1, last);
            part.turned = !part.turned;
        }
        self
    }

    /// Each `step`-th place of an axis, from `start` on.
    fn thinned(mut self, axis: usize, step: usize, start: usize) -> Value<'a> {
        self.shape[axis] = (self.shape[axis] - start).div_ceil(step);
        self.parts.retain_mut(|part| part.axes[axis].thin(step, start));
        self
    }

    /// The first `len` codes along an axis, of which there are several to a word.
    fn unpacked(mut self, codes: Unpacked, axis: usize, len: usize) -> Value<'a> {
        let places = codes.from.bits() / codes.to.bits();
        for part in &mut self.parts {
            let Axis { size, packed, start, len: own, at, .. } = &mut part.axes[axis];
            if let Some(bits) = codes.order.bits() {
                // Wide codes are made of all words of a tensor.
                (*size, *own) = (len.div_ceil(places), len.div_ceil(places));
                part.words.get_or_insert(Stored { bits, by: None });
            }
            for places_or_words in [size, start, own, at] {
                *places_or_words *= places;
            }
            *packed = true;
            part.codes = Some(codes);
        }
        self.cut(axis, 0, len)
    }

    /// Codes or scales of matrices as they lie in their tensors.
    fn encoded(mut self, by: Encode, made: Encoded) -> Value<'a> {
        let last = self.shape.len() - 2;
        let sizes = by.sizes(made, [self.shape[last], self.shape[last + 1]]);
        self.shape[last..].copy_from_slice(&sizes);
        for part in &mut self.parts {
            let sizes = by.sizes(made, [part.axes[last].size, part.axes[last + 1].size]);
            // Where rows were left out, each has scales of its own, and as many are made of them.
            let whole = part.axes[last..].iter_mut().zip(sizes).filter(|(axis, _)| axis.len == axis.size);
            whole.for_each(|(axis, size)| (axis.size, axis.len) = (size, size));
            part.encode = Some((by, made));
        }
        self
    }

    /// Scales of tensors, and the number of each.
    fn times(mut self, over: bool, by: Value<'a>) -> Value<'a> {
        for (part, by) in self.parts.iter_mut().zip(by.parts) {
            if let Origin::Tensor { name, shape } = by.origin {
                part.times = Some(Number { name, shape, over });
            }
        }
        self
    }

    /// Words of tensors, with their codes in the order of integers.
    fn sorted(mut self, bits: usize, by: Value<'a>) -> Value<'a> {
        for (part, by) in self.parts.iter_mut().zip(by.parts) {
            if let Origin::Tensor { name, shape } = by.origin {
                part.words = Some(Stored { bits, by: Some((name, shape)) });
            }
        }
        self
    }

    /// Floats of codes of a book.
    fn of_book(mut self, shape: &[usize], beside: std::vec::IntoIter<Value<'a>>) -> Value<'a> {
        let &[rows, cols] = shape else { return self };
        let stack = self.shape[..self.shape.len() - 2].to_vec();
        let is_stack = !stack.is_empty();
        for part in &mut self.parts {
            let number = part.axes[0].at;
            part.book = Some(BookOf { shape: [rows, cols], beside: vec![] });
            part.axes =
                if is_stack { Axis::of_stack(number, shape) } else { shape.iter().map(|&n| Axis::all(n)).collect() };
        }
        for value in beside {
            for (part, other) in self.parts.iter_mut().zip(value.parts) {
                if let (Some(book), Origin::Tensor { name, shape }) = (&mut part.book, other.origin) {
                    book.beside.push((name, shape));
                }
            }
        }
        Value { shape: [&stack[..], shape].concat(), ..self }
    }

    /// Floats of a tensor times a constant.
    fn scaled_by(mut self, by: f32) -> Value<'a> {
        self.parts.iter_mut().for_each(|part| part.scale = Some(by));
        self
    }

    /// The places of a tensor's integers.
    fn placed(mut self) -> Value<'a> {
        self.parts.iter_mut().for_each(|part| part.places = true);
        self
    }

    /// Codes and a number.
    fn shifted(mut self, by: i32, to: DType) -> Value<'a> {
        for codes in self.parts.iter_mut().filter_map(|part| part.codes.as_mut()) {
            (codes.by, codes.becomes) = (codes.by + by, to);
        }
        self
    }

    /// The value, and what must be so of another one.
    fn told(mut self, is: &'a Fact, told: Value<'a>) -> Value<'a> {
        self.told.push(Told { is, shape: told.shape, parts: told.parts });
        self.told.extend(told.told);
        self
    }

    /// The value with zeros behind it along an axis.
    fn padded(mut self, axis: usize, len: usize) -> Value<'a> {
        self.shape[axis] = len;
        self
    }

    /// Each place of an axis `times` times.
    fn repeated(mut self, axis: usize, times: usize) -> Value<'a> {
        self.shape[axis] *= times;
        let place = |part: &Part<'a>, number: usize, time: usize| {
            let mut part = part.clone();
            let Axis { start, step, len, at, .. } = &mut part.axes[axis];
            (*start, *len, *at) = (*start + number * *step, 1, (*at + number) * times + time);
            part
        };
        let all =
            |part: &Part<'a>| (0..part.axes[axis].len * times).map(|i| (i / times, i % times)).collect::<Vec<_>>();
        let places = |part: &Part<'a>| all(part).into_iter().map(|(i, time)| place(part, i, time)).collect::<Vec<_>>();
        self.parts = self.parts.iter().flat_map(places).collect();
        self
    }

    /// One of so many equal parts along an axis.
    fn part(self, axis: usize, number: usize, parts: usize) -> Value<'a> {
        let len = self.shape[axis] / parts;
        self.cut(axis, number * len, len)
    }

    /// `len` places of an axis from `start` on.
    fn cut(mut self, axis: usize, start: usize, len: usize) -> Value<'a> {
        self.shape[axis] = len;
        self.parts.retain_mut(|part| part.axes[axis].cut(start..start + len));
        self
    }
}

impl Axis {
    /// All of an axis.
    fn all(size: usize) -> Axis {
        Axis { size, packed: false, start: 0, step: 1, len: size, at: 0 }
    }

    /// Those of one tensor of a stack.
    fn of_stack(number: usize, shape: &[usize]) -> Vec<Axis> {
        let first = Axis { at: number, ..Axis::all(1) };
        [first].into_iter().chain(shape.iter().map(|&size| Axis::all(size))).collect()
    }

    /// Keeps what goes into a window of the value, and counts from there: false if that is nothing.
    fn cut(&mut self, window: Range<usize>) -> bool {
        let first = window.start.max(self.at);
        let last = window.end.min(self.at + self.len);
        if first >= last {
            return false;
        }
        self.start += (first - self.at) * self.step;
        (self.len, self.at) = (last - first, first - window.start);
        true
    }

    /// Keeps what goes into each `step`-th place of the value, and counts these: false if that is
    /// nothing.
    fn thin(&mut self, step: usize, start: usize) -> bool {
        let skip = (start + step - self.at % step) % step;
        if skip >= self.len {
            return false;
        }
        self.start += skip * self.step;
        (self.len, self.at) = ((self.len - skip).div_ceil(step), (self.at + skip) / step);
        self.step *= step;
        true
    }

    /// Runs of what the axes before this one count as runs of what this one counts, which has this
    /// size in the weight. A run is its first index in the origin, its first one in the weight, and
    /// its length.
    fn unroll(&self, runs: Vec<(usize, usize, usize)>, size: usize) -> Vec<(usize, usize, usize)> {
        let run = |here, there, times| (here * self.size + self.start, there * size + self.at, times);
        if self.len == self.size && self.len == size {
            return runs.into_iter().map(|(here, there, times)| run(here, there, times * self.len)).collect();
        }
        let each = |(here, there, times)| (0..times).map(move |index| run(here + index, there + index, self.len));
        let runs = runs.into_iter().flat_map(each);
        if self.step == 1 {
            return runs.collect();
        }
        let apart = |(here, there, len)| (0..len).map(move |i| (here + i * self.step, there + i, 1));
        runs.flat_map(apart).collect()
    }
}

impl<'a> Part<'a> {
    fn new(origin: Origin<'a>, axes: Vec<Axis>) -> Part<'a> {
        let (codes, encode, times, words) = (None, None, None, None);
        let (offset, turned, book, scale, places) = (0.0, false, None, None, false);
        Part { origin, offset, axes, turned, codes, encode, times, words, book, scale, places }
    }

    /// The tensors beside its own that it is made of, and types that they have to become.
    pub fn beside(&self) -> Vec<(Name<'a>, DType)> {
        let number = self.times.iter().map(|number| (number.name, DType::F32));
        let by = self.words.iter().filter_map(|words| words.by.as_ref()).map(|(name, _)| (*name, DType::F32));
        let book = self.book.iter().flat_map(|book| {
            let types = Book::types(book.beside.len());
            book.beside.iter().zip(types).map(|((name, _), dtype)| (*name, dtype))
        });
        number.chain(by).chain(book).collect()
    }

    /// What is made of the origin's numbers before all else, as far as the source has what it is
    /// made with.
    pub fn making<'t>(
        &self,
        source: &'t dyn Source,
        missing: &mut BTreeSet<String>,
    ) -> Result<Option<Making<'t>>, CheckpointError> {
        if let Some(Number { name, shape, over }) = &self.times {
            let Some(by) = present(source.tensor(&name.text(), shape), missing)? else { return Ok(None) };
            by.check_becomes(DType::F32, name)?;
            return Ok(Some(Making::Times(Times { by, over: *over })));
        }
        if let Some(BookOf { shape, beside }) = &self.book {
            let mut all = Vec::new();
            for ((name, shape), dtype) in beside.iter().zip(Book::types(beside.len())) {
                let Some(tensor) = present(source.tensor(&name.text(), shape), missing)? else { return Ok(None) };
                tensor.check_becomes(dtype, name)?;
                all.push(tensor);
            }
            let text = &beside[Book::TEXT].0;
            return Ok(Some(Making::Book(Arc::new(Book::new(&all, *shape, &text.text())?))));
        }
        if let (Some(Stored { bits, by }), Some(codes)) = (&self.words, self.codes) {
            let by = match by {
                Some((name, shape)) => {
                    let Some(by) = present(source.tensor(&name.text(), shape), missing)? else { return Ok(None) };
                    by.check_becomes(DType::F32, name)?;
                    Some(by)
                }
                None => None,
            };
            let Origin::Tensor { shape, .. } = &self.origin else { return Ok(None) };
            let (cols, down) = (shape.last().copied().unwrap_or(1), self.is_down());
            let rows = shape.iter().rev().nth(1).copied().unwrap_or(1);
            return Ok(Some(Making::Words(Words { rows, cols, down, bits: [*bits, codes.to.bits()], by })));
        }
        let floats = self.scale.map(Making::Scale).or(self.places.then_some(Making::Places));
        Ok(self.encoding().map(Making::Encode).or(floats))
    }

    /// Whether the codes of a word of the origin are below each other.
    fn is_down(&self) -> bool {
        let [along, across] = self.lines();
        across.packed && !along.packed
    }

    /// The axes along a row of the origin, and from one row to the next.
    fn lines(&self) -> [&Axis; 2] {
        match &self.axes[..] {
            [.., rows, cols] if self.turned => [rows, cols],
            [.., rows, cols] => [cols, rows],
            axes => [&axes[0]; 2],
        }
    }

    /// The type that the origin's numbers must be of for those of this type.
    pub fn stored(&self, dtype: DType) -> DType {
        // Of any floats, or scales of e4m3.
        let made = self.encode.map(|_| DType::F32).or(self.times.as_ref().map(|_| DType::F8E4M3));
        let made = made.or(self.book.as_ref().map(|_| DType::U8));
        made.unwrap_or_else(|| self.codes.map_or(dtype, |codes| codes.from))
    }

    /// Whether the origin's numbers are words of several.
    pub fn is_packed(&self) -> bool {
        self.codes.is_some()
    }

    /// The part as rectangles of its origin, which has these numbers, in a weight of this shape.
    pub fn pieces<'t>(
        &self,
        name: Name<'t>,
        (data, made): (Tensor<'t>, Option<Making<'t>>),
        shape: &[usize],
    ) -> Vec<Piece<'t>> {
        // A vector is a row.
        let (outer, rows, cols) = match &self.axes[..] {
            [outer @ .., rows, cols] => (outer, rows, cols),
            [cols] => (&[][..], &Axis::all(1), cols),
            [] => return Vec::new(),
        };
        let all_rows = shape.iter().rev().nth(1).copied().unwrap_or(1);
        let runs = outer.iter().zip(shape).fold(vec![(0, 0, 1)], |runs, (axis, &size)| axis.unroll(runs, size));
        // The value's axis that goes from one row of the origin to the next, and the one along
        // them.
        let (lines, along) = if self.turned { (cols, rows) } else { (rows, cols) };
        let (width, cols_at) = (along.size, cols.at);
        let single = |(here, there, times): (usize, usize, usize)| (0..times).map(move |i| (here + i, there + i));
        let blocks: Vec<(usize, usize, usize)> = match self.turned || lines.step > 1 {
            false => rows.unroll(runs, all_rows),
            true => {
                let block = |(here, there)| (here * lines.size + lines.start, there * all_rows + rows.at, lines.len);
                runs.into_iter().flat_map(single).map(block).collect()
            }
        };
        let piece = |(first, there, count): (usize, usize, usize)| {
            // One of each `step` rows of the origin: `step` rows together are one longer row.
            let skip = first % lines.step * width + along.start;
            let (first, stride) = (first / lines.step, width * lines.step);
            let (lines, along) = (first..first + count, skip..skip + along.len);
            let (rows, cols) = if self.turned { (along, lines) } else { (lines, along) };
            Piece {
                name,
                data,
                offset: self.offset,
                form: self.form(),
                made: made.clone(),
                scales: None,
                width,
                stride,
                rows,
                cols,
                at: (there, cols_at),
            }
        };
        blocks.into_iter().map(piece).collect()
    }

    /// The quantising before, in matrices of these rows and columns.
    fn encoding(&self) -> Option<Encoding> {
        let ((by, made), Origin::Tensor { shape, .. }) = (self.encode?, &self.origin) else { return None };
        let (cols, rows) = shape.split_last()?;
        Some(Encoding { by, made, rows: rows.iter().product(), cols: *cols })
    }

    /// How the origin has its numbers, if not as the weight has them.
    fn form(&self) -> Option<Form> {
        let [along, _] = self.lines();
        let codes = self.codes.map(|Unpacked { from, to, order, by, becomes }| Codes {
            from,
            to,
            order,
            by,
            becomes,
            down: self.is_down(),
        });
        let form = Form { turned: self.turned, step: along.step, codes };
        (form.turned || form.step > 1 || codes.is_some()).then_some(form)
    }
}
