//! The steps that make a weight of the tensors of a checkpoint. The table has each step once: its
//! name, its attributes, its operands and its columns in the op table of graphs. Beside it stand
//! the rule for the shape and the type that a step makes, and its part of a weight's name.
//!
//! Graphs have a step as an op, plans as an expression. Both are made of the table by
//! [`weight_steps`](crate::weight_steps). What a step does to numbers stands where numbers are: in
//! the interpreter of graphs and in the loader.
#[cfg(test)]
mod tests;
mod value;

pub use value::{Elements, Fault, MAX_AXES, MAX_BYTES, Size, Stored, Value, is_shape, no_shape};
use value::{fault, product, shown, sizes, sound};

use crate::{DType, Encode, Encoded, Fact, Order, TEXT, WORD};

/// Gives the table of steps to a macro: `weight_steps!(steps! { more })` is
/// `steps! { graph [rows] plan [rows] more }`. Graphs have the first rows as ops; the others are
/// steps of plans alone.
///
/// A row has, in this order:
/// - the step's variant, its name in graphs and manifests, and its attributes; behind `;` an
///   attribute that graphs alone write, with its value in plans;
/// - `of`: the operands as plans name them, that of the step's numbers first, and how many tensors
///   each of them is;
/// - `packs`: whether a device's kernel that packs weights does the step as well;
/// - `op`, in rows of graphs: the operands as graphs name them, and the columns `Reads`, `Maker`,
///   `Values` and `Within` of the op table, in its words.
#[macro_export]
macro_rules! weight_steps {
    ($table:ident! { $($more:tt)* }) => {
        $table! {
            graph [
                /// The operands one after the other along an axis.
                Concat = "concat" { axis: usize } of (parts: Many) packs true
                    op (many: Reads::along(*axis)) [Rows, Kept, Within::along(*axis)];
                /// `len` places of an axis from `start` on.
                Slice = "slice" { axis: usize, start: usize, len: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Inline, Values::along(*axis, *start, *len), Within::along(*axis)];
                /// Each `step`-th place of an axis, from `start` on, which is below it.
                Every = "every" { axis: usize, step: usize, start: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Outside, Kept, Within::along(*axis)];
                /// The value with zeros behind it along an axis, which then has `len` places.
                Pad = "pad" { axis: usize, len: usize } of (of: One) packs false
                    op (x: Reads::along(*axis)) [Outside, Kept, Within::along(*axis)];
                /// Each place of an axis `times` times.
                Repeat = "repeat" { axis: usize, times: usize } of (of: One) packs false
                    op (x: Reads::along(*axis)) [Outside, Kept, Within::along(*axis)];
                /// Of `parts` equal parts along an axis the one of this rank: number
                /// `rank * parts / ranks`.
                Shard = "shard" { axis: usize, parts: usize } of (of: One) packs true
                    op (x: Reads::along(*axis)) [Outside, Kept, Whole];
                /// The values and a constant, added in f32, for a weight that is kept as what it
                /// differs by from the constant.
                Offset = "offset" { by: f32 } of (of: One) packs true
                    op (w: Row) [Outside, Other, Same];
                /// Columns of each matrix as rows.
                Transpose = "transpose" {} of (of: One) packs true
                    op (x: All) [Outside, Other, Whole];
                /// The numbers of a stored tensor row by row under another shape.
                View = "view" { shape: Vec<usize> } of (of: One) packs false
                    op (x: All) [Outside, Kept, Whole];
                /// The first `len` codes of type `to` along one of the last two axes, of words of
                /// type `from`, whose last may have bits to spare. `order` says where in a word
                /// each code lies.
                Unpack = "unpack" { from: DType, to: DType, axis: usize, len: usize, order: Order }
                    of (of: One) packs false
                    op (words: Reads::along(*axis)) [Outside, Other, Whole];
                /// Stored words of codes of so many bits along one of the last two axes, with the
                /// codes in the order of stored integers: `by`, of which there is one for each.
                Sort = "sort" { bits: usize, axis: usize } of (of: One, by: One) packs false
                    op (words: All, by: All) [Outside, Other, Whole];
                /// The places of stored integers in the order of these, as floats; equal ones keep
                /// theirs.
                Places = "places" {} of (of: One) packs false
                    op (of: All) [Outside, Other, Whole];
                /// Unpacked integers plus a number, as integers of type `to`, which has all of
                /// these.
                Shift = "shift" { by: i32, to: DType } of (of: One) packs false
                    op (codes: Row) [Outside, Other, Same];
                /// The codes or the scales that a stored matrix of floats becomes, block by block;
                /// codes of 4 bits as bytes of two.
                Encode = "encode" { by: Encode, made: Encoded } of (of: One) packs false
                    op (w: All) [Outside, Other, Whole];
                /// Stored scales of e4m3 times a number of their tensor, in f32; or, where it is
                /// `over` them, divided by it.
                Times = "times" { over: bool } of (of: One, by: One) packs false
                    op (scales: Shared, by: Shared) [Outside, Other, Whole];
                /// The floats that codes of 4 bits stand for, two in a stored byte, the first in
                /// its upper half: of a book of sixteen, times the scale of each 64. A text says
                /// how they lie.
                Codebook = "codebook" { shape: Vec<usize>; to: DType = DType::F32 }
                    of (of: One, scale: One, book: One, told: One) packs false
                    op (codes: All, scale: All, book: All, told: All) [Outside, Other, Whole];
                /// The same, where scales are bytes, each with a float of a book of 256, times the
                /// scale of each 256 of them, plus a number of the text.
                NestedCodebook = "nested_codebook" { shape: Vec<usize>; to: DType = DType::F32 }
                    of (of: One, scale: One, book: One, told: One, outer: One, outer_book: One) packs false
                    op (codes: All, scale: All, book: All, told: All, outer: All, outer_book: All)
                    [Outside, Other, Whole];
                /// Stored floats times a constant, in f32.
                Factor = "factor" { by: f32 } of (of: One) packs false
                    op (x: Row) [Outside, Other, Same];
                /// The same, if something else in the checkpoint is as expected: `told`, which
                /// nothing is computed with. What is not unpacked there is of integers, unless the
                /// fact is one of floats.
                Expect = "expect" { is: Fact } of (of: One, told: One) packs false
                    op (x: Row, told: All) [Outside, Kept, Whole];
                /// Unpacked codes times the power of two of their block of rows and columns, as
                /// floats: the last step but for packing. Scales are as those of `Scaled`.
                Dequantise = "dequantise" { block: [usize; 2]; to: DType = DType::F32 }
                    of (of: One, scale: One) packs false
                    op (codes: Shared, scale: Shared) [Outside, Other, Whole];
            ]
            plan [
                /// Codes of a weight, if their scales are finite and not negative, and zero only
                /// where a whole block of rows and columns is.
                Scaled = "scaled" { block: [usize; 2] } of (of: One, scale: One, zero: Perhaps) packs false;
            ]
            $($more)*
        }
    };
}

/// How many expressions an operand of a plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    One,
    Perhaps,
    Many,
}

macro_rules! steps {
    (graph [$($graph:tt)*] plan [$($plan:tt)*]) => { steps! { $($graph)* $($plan)* } };
    ($(
        $(#[doc = $doc:literal])*
        $name:ident = $text:literal { $($attr:ident: $ty:ty),* $(; $own:ident: $own_ty:ty = $plans:expr)? }
            of ($($of:ident: $count:ident),*) packs $packs:literal $(op $args:tt $columns:tt)?;
    )*) => {
        /// A step with its attributes and without its operands.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the documentation of a variant says what its fields are")]
        pub enum Step {
            $($(#[doc = $doc])* $name { $($attr: $ty,)* $($own: $own_ty)? },)*
        }

        impl Step {
            /// The name in graphs and manifests.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Step::$name { .. } => $text,)*
                }
            }

            /// Whether a device's kernel that packs weights does the step as well.
            pub fn is_packed_by_devices(&self) -> bool {
                match self {
                    $(Step::$name { .. } => $packs,)*
                }
            }

            /// The operands as plans name them.
            fn operands(&self) -> &'static [(&'static str, Count)] {
                match self {
                    $(Step::$name { .. } => &[$((stringify!($of), Count::$count)),*],)*
                }
            }
        }
    };
}

weight_steps!(steps! {});

impl Step {
    /// Where an operand stands in a manifest, seen from the expression of the step.
    pub fn place(&self, operand: usize) -> String {
        match self.operands() {
            &[(name, Count::Many)] => format!(".{}.{name}[{operand}]", self.name()),
            all => format!(".{}.{}", self.name(), all.get(operand).map_or("", |(name, _)| name)),
        }
    }

    /// The step in the one line that names a weight, with its operands' lines.
    pub fn text(&self, of: &[String]) -> String {
        let said = match self {
            Step::Concat { axis: 0 } | Step::Transpose {} | Step::Places {} => String::new(),
            Step::Concat { axis } => format!(", axis {axis}"),
            Step::Slice { axis, start, len } => format!(", axis {axis}, {start}..{}", start + len),
            Step::Every { axis, step, start } => format!(", axis {axis}, {step} from {start}"),
            Step::Pad { axis, len } => format!(", axis {axis}, {len}"),
            Step::Repeat { axis, times } => format!(", axis {axis}, {times} times"),
            Step::Shard { axis, parts } => format!(", axis {axis}, 1 of {parts}"),
            Step::Offset { by } | Step::Factor { by } => format!(", {by:?}"),
            Step::View { shape } | Step::Codebook { shape, .. } | Step::NestedCodebook { shape, .. } => {
                format!(", {shape:?}")
            }
            Step::Unpack { to, axis, len, order, .. } => {
                format!(", {len} {} along axis {axis}, {}", to.name(), order.name())
            }
            Step::Sort { bits, axis } => format!(", {bits} bits along axis {axis}"),
            Step::Shift { by, to } => format!(", {by}, {}", to.name()),
            Step::Encode { by: Encode { codes, block: [rows, cols], .. }, made } => {
                let block = format!("Block {{ rows: {rows}, cols: {cols} }}");
                format!(", {} of {} by {block}", made.name(), codes.name())
            }
            Step::Times { over } => if *over { ", over" } else { "" }.to_owned(),
            Step::Expect { is } => format!(" {}", is.text()),
            Step::Dequantise { block: [rows, cols], .. } | Step::Scaled { block: [rows, cols] } => {
                format!(", blocks of {rows} by {cols}")
            }
        };
        format!("{}({}{said})", self.name(), of.join(", "))
    }
}

type Made<D> = Result<Value<D>, Fault>;

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
            Step::Repeat { axis, times } => repeat(axis, times, of),
            Step::Shard { axis, parts } => shard(axis, parts, of),
            Step::Offset { by } => offset(by, of),
            Step::Transpose {} => transpose(of),
            Step::View { ref shape } => view(shape, of),
            Step::Unpack { from, to, axis, len, order } => unpack(Words { from, to, order }, axis, len, of),
            Step::Sort { bits, axis } => sort([bits, axis], &next()?, of),
            Step::Places {} => places(of),
            Step::Shift { by, to } => shift(by, to, of),
            Step::Encode { by, made } => encode(by, made, of),
            Step::Times { .. } => times(&next()?, of),
            Step::Codebook { ref shape, to } => {
                let [scale, book, told] = [next()?, next()?, next()?];
                codebook((shape, to), [&scale, &book, &told], None, of)
            }
            Step::NestedCodebook { ref shape, to } => {
                let [scale, book, told, outer, outer_book] = [next()?, next()?, next()?, next()?, next()?];
                codebook((shape, to), [&scale, &book, &told], Some([&outer, &outer_book]), of)
            }
            Step::Factor { by } => scale(by, of),
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

fn repeat<D: Size>(axis: usize, times: usize, of: Value<D>) -> Made<D> {
    let size = of.size(axis)?;
    sound(!of.packed.has(axis), ".axis", || "several of its places are in a word".to_owned())?;
    sound(times >= 1, ".times", || "none are left".to_owned())?;
    let of = Value { parted: of.parted.with(axis), ..of.sized(axis, size.saturating_mul(times)) };
    let fits = sizes(&of.shape).is_none_or(|sizes| product(&sizes).is_some_and(|n| n <= MAX_BYTES));
    sound(fits, "", || format!("{} is too large", shown(&of.shape)))?;
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
    sound(of.elements.made() != Some(DType::I32), ".of", || "words that were sorted keep their shape".to_owned())?;
    let same = is_shape(shape) && sizes(&of.shape).is_some_and(|sizes| product(shape) == product(&sizes));
    sound(same, ".shape", || format!("{shape:?} has not the numbers of {}", shown(&of.shape)))?;
    Ok(of.of_shape(shape.iter().map(|&size| D::of(size)).collect()))
}

fn unpack<D: Size>(Words { from, to, order }: Words, axis: usize, len: usize, of: Value<D>) -> Made<D> {
    let codes = from.bits() / to.bits();
    let unpacked = matches!(of.elements, Elements::Codes(_) | Elements::Text);
    sound(!unpacked, ".of", || "codes are made of no others".to_owned())?;
    sound(of.elements.dtype().is_none_or(|dtype| dtype == from), ".of", || "these are other words".to_owned())?;
    sound(from.is_word() && to.is_code() && order.suits(codes), "", || {
        format!("{} is not made of {} in the order {}", from.name(), to.name(), order.name())
    })?;
    let size = of.size(axis)?;
    sound(axis + 2 >= of.shape.len(), ".axis", || format!("{axis} is not one of the last two"))?;
    sound(len >= 1 && order.words(len, codes) == size, ".len", || {
        let bits = order.bits().unwrap_or(to.bits());
        format!("{len} codes of {bits} bits do not lie in axis {axis} of {}", shown(&of.shape))
    })?;
    // Such codes come out of whole tensors.
    let is_whole = order.bits().is_none() && of.elements.made() != Some(DType::I32);
    sound(is_whole || of.stored.is_plain(), ".of", || "only of words as they are stored".to_owned())?;
    sound(!of.parted.has(axis), ".axis", || "places of it were left out".to_owned())?;
    let of = of.sized(axis, len);
    sound(is_shape(&of.shape), "", || format!("{} is too large", shown(&of.shape)))?;
    Ok(Value { elements: Elements::Codes(to), packed: of.packed.with(axis), ..of })
}

/// Of one tensor or of each of a stack, which has as many integers as codes.
fn sort<D: Size>([bits, axis]: [usize; 2], by: &Value<D>, of: Value<D>) -> Made<D> {
    sound([2, 3, 4, 8].contains(&bits), ".bits", || format!("no codes have {bits} bits"))?;
    let (stack, [rows, cols]) = of.matrix(".of")?;
    sound(of.stored.is_plain() && of.elements.may_be(|dtype| dtype == DType::I32), ".of", || {
        "only words of i32 as they are stored are sorted".to_owned()
    })?;
    let along = axis.checked_sub(stack.len()).and_then(|axis| [rows, cols].get(axis).copied());
    let along = along.ok_or_else(|| fault(".axis", format!("{axis} is not one of the last two")))?;
    let len = by.shape.last().and_then(|len| len.fixed()).unwrap_or(0);
    let alike = by.stored == of.stored && sizes(&by.shape).is_some_and(|sizes| sizes[..sizes.len() - 1] == stack);
    sound(alike && by.elements.may_be(|dtype| dtype.integers().is_some()), ".by", || {
        format!("{} are no integers of {}", shown(&by.shape), shown(&of.shape))
    })?;
    sound(len.saturating_mul(bits).div_ceil(WORD) == along && len > 0, ".by", || {
        format!("{len} codes of {bits} bits do not lie in axis {axis} of {}", shown(&of.shape))
    })?;
    Ok(Value { elements: Elements::Made(DType::I32), ..of })
}

fn places<D: Size>(of: Value<D>) -> Made<D> {
    let is_plain = matches!(of.stored, Stored::Tensor | Stored::Unknown) && of.shape.len() == 1;
    let integers = of.elements.may_be(|dtype| dtype.integers().is_some());
    sound(is_plain && integers, ".of", || "only a vector of integers as it is stored has places".to_owned())?;
    Ok(Value { elements: Elements::Made(DType::F32), ..of.made() })
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

/// Scales as they are stored, of one tensor or of each of a stack, and as many numbers.
fn times<D: Size>(by: &Value<D>, of: Value<D>) -> Made<D> {
    let (stack, _) = of.matrix(".of")?;
    let plain = match of.stored {
        Stored::Tensor => stack.is_empty(),
        Stored::Stack(_) | Stored::Unknown => true,
        Stored::Whole | Stored::No => false,
    };
    let codes = of.elements.may_be(|dtype| dtype == DType::F8E4M3);
    sound(plain && codes, ".of", || "only stored scales of e4m3 have a number".to_owned())?;
    let one = [&stack[..], &[1]].concat();
    let alike = by.stored == of.stored && sizes(&by.shape).is_some_and(|sizes| sizes == one);
    sound(alike && by.elements.may_be(DType::is_float), ".by", || {
        format!("{}, but the numbers of {} are floats of {one:?}", shown(&by.shape), shown(&of.shape))
    })?;
    Ok(Value { elements: Elements::Made(DType::F32), ..of.made() })
}

/// Codes that share a scale, and scales that do.
pub const BOOK_BLOCKS: [usize; 2] = [64, 256];

/// Of tensors as they are stored, or of each of a stack; codes of a matrix, row by row.
fn codebook<D: Size>(
    (shape, to): (&[usize], DType),
    [scale, book, told]: [&Value<D>; 3],
    outer: Option<[&Value<D>; 2]>,
    of: Value<D>,
) -> Made<D> {
    let (stack, _) = of.matrix(".of")?;
    let stored = of.stored.is_plain() && of.elements.may_be(|dtype| dtype == DType::U8);
    sound(stored && shape.len() == 2 && to.is_float(), ".of", || "only stored bytes become a matrix".to_owned())?;
    let all = product(shape).filter(|&all| all > 0 && all <= MAX_BYTES);
    let all = all.ok_or_else(|| fault(".shape", no_shape(shape)))?;
    let blocks = all.div_ceil(BOOK_BLOCKS[0]);
    let is = |value: &Value<D>, sizes_of: &[usize], fits: &dyn Fn(DType) -> bool, at: &str| {
        let want = [&stack[..], sizes_of].concat();
        let alike = value.stored == of.stored && sizes(&value.shape).is_some_and(|sizes| sizes == want);
        sound(alike && value.elements.may_be(fits), at, || format!("{}, but there are {want:?}", shown(&value.shape)))
    };
    is(&of, &[all.div_ceil(2), 1], &|dtype| dtype == DType::U8, ".of")?;
    is(scale, &[blocks], &|dtype| if outer.is_some() { dtype == DType::U8 } else { dtype.is_float() }, ".scale")?;
    is(book, &[16], &DType::is_float, ".book")?;
    if let Some([outer, outer_book]) = outer {
        is(outer, &[blocks.div_ceil(BOOK_BLOCKS[1])], &DType::is_float, ".outer")?;
        is(outer_book, &[256], &DType::is_float, ".outer_book")?;
    }
    let is_text = matches!(told.elements, Elements::Text | Elements::Of(DType::U8)) && told.stored == of.stored;
    sound(is_text && sizes(&told.shape).is_some_and(|sizes| sizes == [&stack[..], &[TEXT]].concat()), ".told", || {
        "this is no text".to_owned()
    })?;
    let shape = [&stack[..], shape].concat().into_iter().map(D::of).collect();
    Ok(Value { elements: Elements::Made(to), ..of.of_shape(shape) })
}

fn scale<D: Size>(by: f32, of: Value<D>) -> Made<D> {
    sound(by.is_finite() && by > 0.0, ".by", || format!("{by} is no factor"))?;
    sound(of.elements.may_be(DType::is_float), ".of", || "only of floats".to_owned())?;
    Ok(Value { elements: Elements::Made(DType::F32), ..of.made() })
}

fn expect<D: Size>(is: &Fact, told: Value<D>, of: Value<D>) -> Made<D> {
    let integers = |dtype: DType| dtype.integers().is_some();
    let (wanted, fits) = match is.is_of_floats() {
        true => ("floats", told.elements.may_be(DType::is_float)),
        false => (
            "integers",
            told.elements != Elements::Text
                && told.elements.made().is_none()
                && told.elements.codes().is_none_or(integers),
        ),
    };
    sound(fits, ".told", || format!("these are no {wanted}"))?;
    sound(!told.shape.is_empty(), ".told", || "a number without an axis".to_owned())?;
    sound(sizes(&told.shape).is_some(), ".told", || format!("{} has no fixed shape", shown(&told.shape)))?;
    sound(![Fact::Groups(0), Fact::Members(0)].contains(is), ".is", || "groups of nothing".to_owned())?;
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
        sound(integers, ".zero", || "these are neither integers nor floats".to_owned())?;
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
