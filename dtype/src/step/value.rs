//! What is known of the values of a graph or of a plan, and how messages speak of it.
use crate::DType;
use std::fmt::Display;

/// Most numbers and most bytes of a value: sums of a few of them cannot overflow.
pub const MAX_BYTES: usize = 1 << 48;
/// Most axes of a weight: those of a convolution over images in time.
pub const MAX_AXES: usize = 5;

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
    /// They are a text.
    Text,
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
            Elements::Text => Some(DType::U8),
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
    pub(super) fn may_be(self, holds: impl Fn(DType) -> bool) -> bool {
        match self {
            Elements::Stored => true,
            Elements::Of(dtype) => holds(dtype),
            Elements::Codes(_) | Elements::Made(_) | Elements::Text => false,
        }
    }

    /// The type of codes for messages.
    pub(super) fn name(self) -> &'static str {
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

impl Stored {
    /// Whether each tensor has one matrix and nothing was made of it.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Stored::Tensor | Stored::Stack(_) | Stored::Unknown)
    }
}

/// Some axes of a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Axes(u8);

impl Axes {
    pub(super) fn has(self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    pub(super) fn with(self, axis: usize) -> Axes {
        Axes(self.0 | 1 << axis)
    }

    pub(super) fn and(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }

    /// The same with this axis and the one before it in each other's place.
    pub(super) fn swapped(self, last: usize) -> Axes {
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
    pub(super) stored: Stored,
    /// Axes of which several places are in a word.
    pub(super) packed: Axes,
    /// Axes of which places were left out.
    pub(super) parted: Axes,
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

impl<D: Size> Value<D> {
    /// A value that no step has made.
    pub fn new(shape: Vec<D>, elements: Elements, stored: Stored) -> Value<D> {
        Value { shape, elements, stored, packed: Axes::default(), parted: Axes::default() }
    }

    /// The same under another shape.
    pub(super) fn of_shape(self, shape: Vec<D>) -> Value<D> {
        Value { shape, ..self.made() }
    }

    /// The same in another way.
    pub(super) fn made(self) -> Value<D> {
        Value { stored: Stored::No, ..self }
    }

    /// The same with another size along an axis.
    pub(super) fn sized(mut self, axis: usize, size: usize) -> Value<D> {
        self.shape[axis] = D::of(size);
        self.made()
    }

    /// The size along an axis that there must be.
    pub(super) fn size(&self, axis: usize) -> Result<usize, Fault> {
        let none = || fault(".axis", format!("index {axis}, but there are {}", self.shape.len()));
        let size = self.shape.get(axis).ok_or_else(none)?;
        size.fixed().ok_or_else(|| fault(".axis", format!("{axis} of {} is no number", shown(&self.shape))))
    }

    /// Rows and columns of each matrix, and the sizes before these.
    pub(super) fn matrix(&self, at: &str) -> Result<(Vec<usize>, [usize; 2]), Fault> {
        match sizes(&self.shape).as_deref() {
            Some(&[ref stack @ .., rows, cols]) => Ok((stack.to_vec(), [rows, cols])),
            _ => Err(fault(at, format!("{} is no matrix", shown(&self.shape)))),
        }
    }
}

pub(super) fn fault(at: &str, detail: String) -> Fault {
    Fault { at: at.to_owned(), detail }
}

pub(super) fn sound(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault(at, detail())) }
}

/// Sizes as messages have them.
pub(super) fn shown<D: Size>(shape: &[D]) -> String {
    format!("[{}]", shape.iter().map(D::to_string).collect::<Vec<_>>().join(", "))
}

/// The sizes, if all are numbers.
pub(super) fn sizes<D: Size>(shape: &[D]) -> Option<Vec<usize>> {
    shape.iter().map(|size| size.fixed()).collect()
}

pub(super) fn product(factors: &[usize]) -> Option<usize> {
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
