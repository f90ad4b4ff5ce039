//! What a step makes of its operands: the rule for shapes and types, of graphs and of plans.
use super::Step;
use crate::{DType, Encode, Encoded, Fact, Order};
use std::fmt::Display;

/// Most numbers and most bytes of a value: sums of a few of them cannot overflow.
pub const MAX_BYTES: usize = 1 << 48;
/// Most axes of a weight: a matrix, stacked twice.
pub const MAX_AXES: usize = 4;

/// The size of an axis. Those of graphs may depend on the step that is run.
pub trait Size: Copy + PartialEq + Display {
    /// The number, if it is one.
    fn fixed(self) -> Option<usize>;
    /// A number as a size.
    fn of(size: usize) -> Self;
}

impl Size for usize {
    fn fixed(self) -> Option<usize> {
        Some(self)
    }
    fn of(size: usize) -> usize {
        size
    }
}

/// What is known of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// They are those of a checkpoint, of whichever type.
    Stored,
    /// Codes of this type that were unpacked.
    Codes(DType),
    /// What was made of floats, and is no codes in words any more.
    Made(DType),
    /// Their type: graphs have one for each value.
    Of(DType),
}

impl Elements {
    /// The type, where it is known.
    pub fn dtype(self) -> Option<DType> {
        match self {
            Elements::Stored => None,
            Elements::Codes(dtype) | Elements::Made(dtype) | Elements::Of(dtype) => Some(dtype),
        }
    }

    /// The type of codes that were unpacked.
    pub fn codes(self) -> Option<DType> {
        if let Elements::Codes(dtype) | Elements::Of(dtype) = self { Some(dtype) } else { None }
    }

    /// The type of what was made of floats.
    pub fn made(self) -> Option<DType> {
        if let Elements::Made(dtype) = self { Some(dtype) } else { None }
    }

    /// Whether they may be numbers of a checkpoint for which this holds.
    fn may_be(self, holds: impl Fn(DType) -> bool) -> bool {
        match self {
            Elements::Stored => true,
            Elements::Of(dtype) => holds(dtype),
            Elements::Codes(_) | Elements::Made(_) => false,
        }
    }

    /// The type of codes for messages.
    fn name(self) -> &'static str {
        self.codes().map_or("what was not unpacked", DType::name)
    }
}

/// How a value lies in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    /// As it is, in one tensor.
    Tensor,
    /// As it is, in so many tensors of a stack.
    Stack(usize),
    /// As it is, in as many tensors or as a part of one that has all.
    Whole,
    /// It was made of what lies there.
    No,
    /// Nobody knows: the steps of a graph are checked one at a time.
    Unknown,
}

/// Some axes of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Axes(u8);

impl Axes {
    fn has(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    fn with(self, axis: usize) -> Axes {
        Axes(self.0 | 1 << axis)
    }

    fn and(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    /// The same with this axis and the one before it in each other's place.
    fn swapped(self, last: usize) -> Axes {
        let bit = |from: usize, to: usize| (self.0 >> from & 1) << to;
        Axes(self.0 & !(3 << (last - 1)) | bit(last, last - 1) | bit(last - 1, last))
    }
}

/// What a step makes, or is made of.
#[derive(Clone, Debug)]
pub struct Value<D = usize> {
    /// The size of each axis.
    pub shape: Vec<D>,
    /// What its elements are.
    pub elements: Elements,
    stored: Stored,
    /// Axes of which several places are in a word.
    packed: Axes,
    /// Axes of which places were left out.
    parted: Axes,
}

/// What is wrong with a step, and where inside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The place as a path, e.g. `.slice.axis`.
    pub at: String,
    /// What is wrong.
    pub detail: String,
}

impl Fault {
    /// The same fault, seen from further out.
    pub fn inside(self, place: &str) -> Fault {
        Fault { at: format!("{place}{}", self.at), ..self }
    }
}

type Made<D> = Result<Value<D>, Fault>;

impl<D: Size> Value<D> {
    /// A value that no step has made.
    pub fn new(shape: Vec<D>, elements: Elements, stored: Stored) -> Value<D> {
        Value { shape, elements, stored, packed: Axes::default(), parted: Axes::default() }
    }

    /// The same under another shape.
    fn of_shape(self, shape: Vec<D>) -> Value<D> {
        Value { shape, ..self.made() }
    }

    /// The same in another way.
    fn made(self) -> Value<D> {
        Value { stored: Stored::No, ..self }
    }

    /// The same with another size along an axis.
    fn sized(mut self, axis: usize, size: usize) -> Value<D> {
        self.shape[axis] = D::of(size);
        self.made()
    }

    /// The size along an axis that there must be.
    fn size(&self, axis: usize) -> Result<usize, Fault> {
        let none = || fault(".axis", format!("index {axis}, but there are {}", self.shape.len()));
        let size = self.shape.get(axis).ok_or_else(none)?;
        size.fixed().ok_or_else(|| fault(".axis", format!("{axis} of {} is no number", shown(&self.shape))))
    }

    /// Rows and columns of each matrix, and the sizes before these.
    fn matrix(&self, at: &str) -> Result<(Vec<usize>, [usize; 2]), Fault> {
        match sizes(&self.shape).as_deref() {
            Some(&[ref stack @ .., rows, cols]) => Ok((stack.to_vec(), [rows, cols])),
            _ => Err(fault(at, format!("{} is no matrix", shown(&self.shape)))),
        }
    }
}

impl Step {
    /// What the step makes of its operands, in the order of the table; one that may be left out
    /// may be missing at the end.
    pub fn value<D: Size>(&self, of: Vec<Value<D>>) -> Made<D> {
        if let Some(large) = of.iter().find(|value| value.shape.len() > MAX_AXES) {
            return Err(fault("", no_shape(&large.shape)));
        }
        if let (Step::Concat { .. }, []) = (self, &of[..]) {
            return Err(fault("", "concat of nothing".to_owned()));
        }
        self.apply(of).map_err(|fault| fault.inside(&format!(".{}", self.name())))
    }

    fn apply<D: Size>(&self, operands: Vec<Value<D>>) -> Made<D> {
        if let &Step::Concat { axis } = self {
            return concat(axis, operands);
        }
        let mut operands = operands.into_iter();
        let mut next = || operands.next().ok_or_else(|| fault("", "too few operands".to_owned()));
        let of = next()?;
        match *self {
            Step::Concat { axis } => concat(axis, vec![of]),
            Step::Slice { axis, start, len } => slice(axis, start, len, of),
            Step::Every { axis, step, start } => every(axis, step, start, of),
            Step::Pad { axis, len } => pad(axis, len, of),
            Step::Shard { axis, parts } => shard(axis, parts, of),
            Step::Offset { by } => offset(by, of),
            Step::Transpose {} => transpose(of),
            Step::View { ref shape } => view(shape, of),
            Step::Unpack { from, to, axis, len, order } => unpack(Words { from, to, order }, axis, len, of),
            Step::Shift { by, to } => shift(by, to, of),
            Step::Encode { by, made } => encode(by, made, of),
            Step::Expect { ref is } => expect(is, next()?, of),
            Step::Dequantise { block, to } => dequantise(block, to, next()?, of),
            Step::Scaled { block } => {
                let scale = next()?;
                scaled(block, &scale, operands.next().as_ref(), of)
            }
        }
    }
}

/// What words are made of.
struct Words {
    from: DType,
    to: DType,
    order: Order,
}

fn fault(at: &str, detail: String) -> Fault {
    Fault { at: at.to_owned(), detail }
}

fn sound(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault(at, detail())) }
}

/// Sizes as messages have them.
fn shown<D: Size>(shape: &[D]) -> String {
    format!("[{}]", shape.iter().map(D::to_string).collect::<Vec<_>>().join(", "))
}

/// The sizes, if all are numbers.
fn sizes<D: Size>(shape: &[D]) -> Option<Vec<usize>> {
    shape.iter().map(|size| size.fixed()).collect()
}

fn product(factors: &[usize]) -> Option<usize> {
    factors.iter().try_fold(1usize, |product, &factor| product.checked_mul(factor))
}

/// Whether these are the sizes of a value with elements, as many as a buffer may hold.
pub fn is_shape<D: Size>(shape: &[D]) -> bool {
    let fits = |sizes: Vec<usize>| product(&sizes).is_some_and(|n| (1..=MAX_BYTES).contains(&n));
    (1..=MAX_AXES).contains(&shape.len()) && sizes(shape).is_none_or(fits)
}

/// What is said of sizes that are none.
pub fn no_shape<D: Size>(shape: &[D]) -> String {
    format!("{} is not one to {MAX_AXES} sizes of at least 1", shown(shape))
}

fn concat<D: Size>(axis: usize, parts: Vec<Value<D>>) -> Made<D> {
    let mut whole: Option<Value<D>> = None;
    for (index, part) in parts.into_iter().enumerate() {
        let joined = join(whole.take(), part, axis);
        whole = Some(joined.map_err(|fault| fault.inside(&format!(".parts[{index}]")))?);
    }
    whole.ok_or_else(|| fault("", "nothing to join".to_owned()))
}

/// What there is and one part more.
fn join<D: Size>(whole: Option<Value<D>>, part: Value<D>, axis: usize) -> Made<D> {
    let size = part.size(axis)?;
    let Some(whole) = whole else { return Ok(part.made()) };
    let (all, shape) = (&whole.shape, &part.shape);
    let alike = shape.len() == all.len() && (0..shape.len()).all(|i| i == axis || shape[i] == all[i]);
    sound(alike, "", || format!("shape {} does not join {} along axis {axis}", shown(shape), shown(all)))?;
    sound(whole.elements.made() == part.elements.made(), "", || "codes do not join others".to_owned())?;
    sound(whole.elements == part.elements, "", || {
        format!("{} does not join {}", part.elements.name(), whole.elements.name())
    })?;
    let (packed, parted) = (whole.packed.and(part.packed), whole.parted.and(part.parted));
    let joined = whole.size(axis)?.saturating_add(size);
    let whole = whole.sized(axis, joined);
    let fits = sizes(&whole.shape).is_none_or(|sizes| product(&sizes).is_some_and(|n| n <= MAX_BYTES));
    sound(fits, "", || format!("{} is too large", shown(&whole.shape)))?;
    Ok(Value { packed, parted, ..whole })
}

fn slice<D: Size>(axis: usize, start: usize, len: usize, of: Value<D>) -> Made<D> {
    let size = of.size(axis)?;
    let fits = len >= 1 && start.checked_add(len).is_some_and(|end| end <= size);
    sound(fits, "", || format!("{len} from {start} on do not lie in axis {axis} of {}", shown(&of.shape)))?;
    Ok(of.sized(axis, len))
}

fn every<D: Size>(axis: usize, step: usize, start: usize, of: Value<D>) -> Made<D> {
    let size = of.size(axis)?;
    sound(start < step && start < size, "", || {
        format!("each place that is {start} more than a multiple of {step} is not to be had of {size}")
    })?;
    sound(!of.packed.has(axis), ".axis", || "several of its places are in a word".to_owned())?;
    Ok(Value { parted: of.parted.with(axis), ..of.sized(axis, (size - start).div_ceil(step)) })
}

fn pad<D: Size>(axis: usize, len: usize, of: Value<D>) -> Made<D> {
    let size = of.size(axis)?;
    sound(size <= len, ".len", || format!("{len}, but there are {size} already"))?;
    let of = of.sized(axis, len);
    sound(is_shape(&of.shape), "", || no_shape(&of.shape))?;
    Ok(of)
}

fn shard<D: Size>(axis: usize, parts: usize, of: Value<D>) -> Made<D> {
    let size = of.size(axis)?;
    sound(parts >= 1 && size.is_multiple_of(parts), ".parts", || {
        format!("{parts} equal parts are not to be had of axis {axis} of {}", shown(&of.shape))
    })?;
    Ok(of.sized(axis, size / parts))
}

fn offset<D: Size>(by: f32, of: Value<D>) -> Made<D> {
    sound(by.is_finite(), "", || format!("{by} is no number to add"))?;
    sound(of.elements.may_be(DType::is_float), "", || "codes have no offset".to_owned())?;
    Ok(of.made())
}

/// Columns of each matrix as rows.
fn transpose<D: Size>(of: Value<D>) -> Made<D> {
    let (stack, [rows, cols]) = of.matrix("")?;
    let shape = [&stack[..], &[cols, rows]].concat().into_iter().map(D::of).collect();
    let last = of.shape.len() - 1;
    let (packed, parted) = (of.packed.swapped(last), of.parted.swapped(last));
    Ok(Value { packed, parted, ..of.of_shape(shape) })
}

fn view<D: Size>(shape: &[usize], of: Value<D>) -> Made<D> {
    let stored = match of.stored {
        Stored::Tensor | Stored::Unknown => true,
        Stored::Stack(count) => shape.first() == Some(&count) && shape.len() > 1,
        Stored::Whole | Stored::No => false,
    };
    // What is made of a row stays in it.
    let row = of.shape.last().and_then(|size| size.fixed());
    let stored = stored && (of.elements.made().is_none() || shape.last().copied() == row);
    sound(stored, ".of", || "only a tensor as it is stored has another shape".to_owned())?;
    let same = is_shape(shape) && sizes(&of.shape).is_some_and(|sizes| product(shape) == product(&sizes));
    sound(same, ".shape", || format!("{shape:?} has not the numbers of {}", shown(&of.shape)))?;
    Ok(of.of_shape(shape.iter().map(|&size| D::of(size)).collect()))
}

fn unpack<D: Size>(Words { from, to, order }: Words, axis: usize, len: usize, of: Value<D>) -> Made<D> {
    let codes = from.bits() / to.bits();
    let unpacked = matches!(of.elements, Elements::Codes(_));
    sound(!unpacked, ".of", || "codes are made of no others".to_owned())?;
    sound(of.elements.dtype().is_none_or(|dtype| dtype == from), ".of", || "these are other words".to_owned())?;
    sound(from.is_word() && to.is_code() && order.suits(codes), "", || {
        format!("{} is not made of {} in the order {}", from.name(), to.name(), order.name())
    })?;
    let size = of.size(axis)?;
    sound(axis + 2 >= of.shape.len(), ".axis", || format!("{axis} is not one of the last two"))?;
    sound(len >= 1 && len.div_ceil(codes) == size, ".len", || {
        format!("{len} codes do not lie in axis {axis} of {}, {codes} to a word", shown(&of.shape))
    })?;
    sound(!of.parted.has(axis), ".axis", || "places of it were left out".to_owned())?;
    let of = of.sized(axis, len);
    sound(is_shape(&of.shape), "", || format!("{} is too large", shown(&of.shape)))?;
    Ok(Value { elements: Elements::Codes(to), packed: of.packed.with(axis), ..of })
}

fn shift<D: Size>(by: i32, to: DType, of: Value<D>) -> Made<D> {
    sound(of.elements.codes().is_some_and(|codes| codes.shifts(by, to)), "", || {
        format!("{} plus {by} does not become {}", of.elements.name(), to.name())
    })?;
    Ok(Value { elements: Elements::Codes(to), ..of.made() })
}

/// Codes or scales of a matrix as it is stored, or of one for each tensor of a stack; where a
/// tensor has the matrices of all, blocks lie in single rows.
fn encode<D: Size>(by: Encode, made: Encoded, of: Value<D>) -> Made<D> {
    sound(by.is_sound(), ".by", || format!("{} with scales of {}", by.codes.name(), by.scales.name()))?;
    sound(of.elements.may_be(DType::is_float), ".of", || "codes are made of no others".to_owned())?;
    let plain = match of.stored {
        Stored::Tensor => of.shape.len() == 2 || by.block[0] == 1,
        Stored::Stack(_) => of.shape.len() == 3,
        Stored::Whole => by.block[0] == 1,
        Stored::No => false,
        Stored::Unknown => true,
    };
    sound(plain && of.shape.len() > 1, ".of", || "only of a matrix as it is stored codes are made".to_owned())?;
    let (stack, matrix) = of.matrix(".of")?;
    let shape = [&stack[..], &by.sizes(made, matrix)].concat();
    sound(is_shape(&shape), "", || no_shape(&shape))?;
    let stored = if of.stored == Stored::Whole { Stored::No } else { of.stored };
    let shape = shape.into_iter().map(D::of).collect();
    Ok(Value { shape, elements: Elements::Made(by.dtype(made)), stored, ..of })
}

fn expect<D: Size>(is: &Fact, told: Value<D>, of: Value<D>) -> Made<D> {
    let integers = |dtype: DType| dtype.integers().is_some();
    let (wanted, fits) = match is.is_of_floats() {
        true => ("floats", told.elements.may_be(DType::is_float)),
        false => ("integers", told.elements.made().is_none() && told.elements.codes().is_none_or(integers)),
    };
    sound(fits, ".told", || format!("these are no {wanted}"))?;
    sound(!told.shape.is_empty(), ".told", || "a number without an axis".to_owned())?;
    sound(sizes(&told.shape).is_some(), ".told", || format!("{} has no fixed shape", shown(&told.shape)))?;
    sound(*is != Fact::Groups(0), ".is", || "groups of nothing".to_owned())?;
    Ok(of.made())
}

/// That there is a scale for each block of each matrix, and a zero point if there are some.
fn scaled<D: Size>(block: [usize; 2], scale: &Value<D>, zero: Option<&Value<D>>, of: Value<D>) -> Made<D> {
    let (stack, [rows, cols]) = of.matrix(".of")?;
    sound(!block.contains(&0), ".block", || format!("blocks of {block:?}"))?;
    let grid = [&stack[..], &[rows.div_ceil(block[0]), cols.div_ceil(block[1])]].concat();
    let is_grid = |value: &Value<D>| sizes(&value.shape).is_some_and(|sizes| sizes == grid);
    let wrong = |value: &Value<D>| {
        format!("{}, but blocks of {block:?} in {} are {grid:?}", shown(&value.shape), shown(&of.shape))
    };
    sound(is_grid(scale), ".scale", || wrong(scale))?;
    // Those of graphs are powers of two: others no step takes.
    let is_scale =
        scale.elements.codes().is_none_or(|dtype| scale.elements == Elements::Of(dtype) && dtype == DType::E8M0);
    sound(is_scale, ".scale", || "codes are no scales".to_owned())?;
    if let Some(zero) = zero {
        sound(is_grid(zero), ".zero", || wrong(zero))?;
        let integers = zero.elements.codes().is_none_or(|codes| codes.integers().is_some());
        sound(integers, ".zero", || "these are no integers".to_owned())?;
    }
    Ok(of.made())
}

/// Floats of unpacked codes, with a scale for each block.
fn dequantise<D: Size>(block: [usize; 2], to: DType, scale: Value<D>, of: Value<D>) -> Made<D> {
    let of = scaled(block, &scale, None, of)?;
    sound(of.elements.codes().is_some_and(DType::is_code), ".of", || "these are no unpacked codes".to_owned())?;
    sound(to.is_float(), ".to", || format!("{} is no float", to.name()))?;
    Ok(Value { elements: Elements::Made(to), ..of })
}
