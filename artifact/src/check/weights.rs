//! Weights: their expressions make their shapes, and their layouts are the target's and fill their
//! buffers.
use super::layout::{padded, stride};
use super::{Checked, MAX_AXES, MAX_BYTES, ensure, product};
use crate::error::Error;
use crate::manifest::*;

pub(super) fn weight(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    let shape = &weight.shape;
    ensure(is_shape(shape), &format!("{at}.shape"), || no_shape(shape))?;
    layout(weight, target, at)?;
    let Value { shape: found, codes, encoded, .. } = made(&weight.expr, &format!("{at}.expr"))?;
    let mut steps = 0;
    weight.expr.fold(&mut |term| steps += usize::from(matches!(term, Term::Dequantise { .. })));
    let is_last = steps == usize::from(matches!(weight.expr, WeightExpr::Dequantise { .. }));
    ensure(is_last, &format!("{at}.expr"), || "`dequantise` is not the last step".to_owned())?;
    ensure(found == *shape, &format!("{at}.expr"), || format!("makes shape {found:?}, but the weight has {shape:?}"))?;
    // Of less than a byte a file has no numbers.
    let fits = codes.map_or(weight.dtype.bits() >= 8, |codes| codes == weight.dtype);
    // Scales that are floats may become others.
    let becomes = |made: DType| made == weight.dtype || made.is_float() && weight.dtype.is_float();
    ensure(encoded.is_none_or(becomes), &format!("{at}.expr"), || {
        format!("makes {}, but the weight is of {}", encoded.map_or("none", DType::name), weight.dtype.name())
    })?;
    ensure(fits, &format!("{at}.expr"), || {
        let codes = codes.map_or("what was not unpacked", DType::name);
        format!("makes {codes}, but the weight is of {}", weight.dtype.name())
    })
}

/// That the layout is the one that the target has for such a shape, and that the buffer holds it
/// and its padding.
fn layout(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    let [stack, rows, cols] = weight.matrices();
    let bits = weight.dtype.bits();
    let (want, elements) = match weight.layout {
        Layout::Rows { .. } => {
            let stride = stride(cols, target).filter(|stride| (stride % 8 * bits).is_multiple_of(8));
            (stride.map(|stride| Layout::Rows { stride }), stride.and_then(|stride| rows.checked_mul(stride)))
        }
        // Scales and zero points, of which nobody reads columns that there are not.
        Layout::Panels { group: 1, cols: have, .. } if have == cols && bits >= 8 => panels(rows, cols, 1, target),
        Layout::Panels { .. } => match padded(cols, target) {
            Some(padded) => panels(rows, padded, target.group_bytes * 8 / bits, target),
            None => (None, None),
        },
    };
    ensure(want == Some(weight.layout), &format!("{at}.layout"), || {
        let want = want.map_or("one that no buffer holds".to_owned(), shown);
        format!("{}, but the target's layout of {rows} by {cols} is {want}", shown(weight.layout))
    })?;
    let elements = elements.and_then(|elements| product(&[stack, elements])).filter(|&all| all <= MAX_BYTES);
    let need = elements.map(|elements| weight.dtype.bytes(elements)).filter(|&need| need <= MAX_BYTES);
    let fits = need.is_some_and(|need| (need..=need.next_multiple_of(target.align)).contains(&weight.bytes));
    ensure(fits, &format!("{at}.bytes"), || {
        let need = need.map_or(format!("more than {MAX_BYTES}"), |need| need.to_string());
        format!("{} bytes, but the layout {} takes {need}", weight.bytes, shown(weight.layout))
    })
}

/// A layout as manifests have it.
fn shown(layout: Layout) -> String {
    serde_json::to_string(&layout).unwrap_or_default()
}

/// Panels of rows, which are padded like columns of activations, with groups of so many of `cols`;
/// and their elements.
fn panels(rows: usize, cols: usize, group: usize, target: &DataLayout) -> (Option<Layout>, Option<usize>) {
    let width = target.panel;
    let whole = |&rows: &usize| rows.is_multiple_of(width) && cols.is_multiple_of(group);
    let rows = padded(rows, target).filter(whole);
    let layout = rows.map(|rows| Layout::Panels { width, group, rows, cols });
    (layout, rows.and_then(|rows| rows.checked_mul(cols)))
}

/// Most tensors of a stack: some sixteen times what a layer of today's largest models has.
const MAX_STACK: usize = 1 << 13;

/// Whether these are the sizes of a value with elements, as many as a buffer may hold.
fn is_shape(shape: &[usize]) -> bool {
    (1..=MAX_AXES).contains(&shape.len()) && product(shape).is_some_and(|n| (1..=MAX_BYTES).contains(&n))
}

fn no_shape(shape: &[usize]) -> String {
    format!("{shape:?} is not one to {MAX_AXES} sizes of at least 1")
}

/// That weights are cut for as many ranks as there are: each rank has a part, and the smallest
/// parts are one rank's.
pub(super) fn shards(weights: &[Weight], ranks: usize, at: &str) -> Checked {
    let mut most = 1;
    for (index, weight) in weights.iter().enumerate() {
        for parts in shard_parts(&weight.expr) {
            ensure(parts >= 1 && ranks.is_multiple_of(parts), &format!("{at}[{index}].expr"), || {
                format!("a shard of {parts} parts for {ranks} ranks")
            })?;
            most = most.max(parts);
        }
    }
    ensure(most == ranks, at, || format!("cut for {most} ranks, but there are {ranks}"))
}

fn shard_parts(expr: &WeightExpr) -> Vec<usize> {
    let mut all = Vec::new();
    expr.fold(&mut |term| {
        if let Term::Shard { parts, .. } = term {
            all.push(parts);
        }
    });
    all
}

/// What is wrong with an expression, and where inside it.
struct Fault {
    at: String,
    detail: String,
}

/// What an expression makes.
struct Value {
    shape: Vec<usize>,
    /// The type, where it was unpacked.
    codes: Option<DType>,
    /// The type of what was made of floats and is no codes in words any more.
    encoded: Option<DType>,
    /// Whether it is as it lies in the checkpoint.
    stored: Stored,
    /// Whether it is a stack that may be in one tensor, as it lies there.
    whole: bool,
    /// Axes of which several places are in a word, and axes of which places were left out.
    packed: Axes,
    parted: Axes,
}

/// Whether a value is a tensor as it lies in a checkpoint, or so many of them.
#[derive(Clone, Copy, PartialEq)]
enum Stored {
    Tensor,
    Stack(usize),
    No,
}

/// A set of axes, a bit each.
#[derive(Clone, Copy, Default)]
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

type Made = Result<Value, Fault>;

impl Fault {
    /// The same fault, seen from one step further out.
    fn inside(self, step: &str) -> Fault {
        Fault { at: format!("{step}{}", self.at), ..self }
    }
}

impl Value {
    fn new(shape: Vec<usize>, stored: Stored) -> Value {
        Value {
            shape,
            codes: None,
            encoded: None,
            whole: false,
            stored,
            packed: Axes::default(),
            parted: Axes::default(),
        }
    }

    fn of_shape(self, shape: Vec<usize>) -> Value {
        Value { shape, stored: Stored::No, whole: false, ..self }
    }

    /// The same in another way.
    fn made(self) -> Value {
        Value { stored: Stored::No, whole: false, ..self }
    }
}

fn sound(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault { at: at.to_owned(), detail: detail() }) }
}

/// What an expression makes, once its parts fit each other.
fn made(expr: &WeightExpr, at: &str) -> Result<Value, Error> {
    let value = expr.fold(&mut value);
    value.map_err(|Fault { at: inside, detail }| Error::Manifest { at: format!("{at}{inside}"), detail })
}

fn value(term: Term<Made>) -> Made {
    match term {
        Term::Tensor { name, shape } => {
            sound(!name.is_empty(), "", || "a tensor without a name".to_owned())?;
            sound(shape.is_empty() || is_shape(shape), "", || no_shape(shape))?;
            Ok(Value::new(shape.to_vec(), Stored::Tensor))
        }
        Term::Stack { name, count, shape, whole } => stack(name, count, shape, whole),
        Term::Concat { axis, parts } => concat(axis, parts),
        Term::Slice { axis, start, len, of } => slice(axis, start, len, of),
        Term::Every { axis, step, start, of } => every(axis, step, start, of),
        Term::Pad { axis, len, of } => pad(axis, len, of),
        Term::Shard { axis, parts, of } => shard(axis, parts, of),
        Term::Offset { by, of } => {
            let of = of.map_err(|fault| fault.inside(".offset.of"))?;
            sound(by.is_finite(), ".offset", || format!("{by} is no number to add"))?;
            sound(of.codes.is_none() && of.encoded.is_none(), ".offset", || "codes have no offset".to_owned())?;
            Ok(of.made())
        }
        Term::Transpose { of } => transpose(of),
        Term::View { shape, of } => view(shape, of),
        Term::Unpack { from, to, axis, len, order, of } => unpack((from, to, order), axis, len, of),
        Term::Shift { by, to, of } => {
            let of = of.map_err(|fault| fault.inside(".shift.of"))?;
            sound(of.codes.is_some_and(|codes| codes.shifts(by, to)), ".shift", || {
                let codes = of.codes.map_or("what was not unpacked", DType::name);
                format!("{codes} plus {by} does not become {}", to.name())
            })?;
            Ok(Value { codes: Some(to), ..of.made() })
        }
        Term::Encode { by, made, of } => encode(by, made, of),
        Term::Expect { is, told, of } => {
            let of = of.map_err(|fault| fault.inside(".expect.of"))?;
            let told = told.map_err(|fault| fault.inside(".expect.told"))?;
            let integers = told.encoded.is_none() && told.codes.is_none_or(|codes| codes.integers().is_some());
            let floats = is.is_of_floats() && told.encoded.is_none() && told.codes.is_none();
            let wanted = if is.is_of_floats() { "floats" } else { "integers" };
            sound(if is.is_of_floats() { floats } else { integers }, ".expect.told", || {
                format!("these are no {wanted}")
            })?;
            sound(!told.shape.is_empty(), ".expect.told", || "a number without an axis".to_owned())?;
            sound(*is != Fact::Groups(0), ".expect.is", || "groups of nothing".to_owned())?;
            Ok(of.made())
        }
        Term::Scaled { block, scale, zero, of } => scaled(block, scale, zero, of),
        Term::Dequantise { block, scale, of } => dequantise(block, scale, of),
        Term::Const { values } => {
            sound(!values.is_empty(), "", || "a constant without values".to_owned())?;
            Ok(Value::new(vec![values.len()], Stored::No))
        }
    }
}

/// Columns of each matrix as rows.
fn transpose(of: Made) -> Made {
    let of = of.map_err(|fault| fault.inside(".transpose.of"))?;
    let [.., rows, cols] = &of.shape[..] else {
        return Err(Fault { at: ".transpose".to_owned(), detail: format!("{:?} is no matrix", of.shape) });
    };
    let (rows, cols, last) = (*rows, *cols, of.shape.len() - 1);
    let shape = [&of.shape[..last - 1], &[cols, rows]].concat();
    let (packed, parted) = (of.packed.swapped(last), of.parted.swapped(last));
    Ok(Value { packed, parted, ..of.of_shape(shape) })
}

/// Floats of unpacked codes, with a scale for each block.
fn dequantise(block: [usize; 2], scale: Made, of: Made) -> Made {
    let of = scaled(block, scale, None, of)
        .map_err(|fault| Fault { at: fault.at.replacen(".scaled", ".dequantise", 1), ..fault })?;
    sound(of.codes.is_some(), ".dequantise.of", || "these are no unpacked codes".to_owned())?;
    Ok(Value { codes: None, encoded: Some(DType::F32), ..of })
}

/// That there is a scale for each block of each matrix, and a zero point if there are some.
fn scaled(block: [usize; 2], scale: Made, zero: Option<Made>, of: Made) -> Made {
    let of = of.map_err(|fault| fault.inside(".scaled.of"))?;
    let scale = scale.map_err(|fault| fault.inside(".scaled.scale"))?;
    let zero = zero.transpose().map_err(|fault| fault.inside(".scaled.zero"))?;
    let &[ref stack @ .., rows, cols] = &of.shape[..] else {
        return Err(Fault { at: ".scaled.of".to_owned(), detail: format!("{:?} is no matrix", of.shape) });
    };
    sound(!block.contains(&0), ".scaled.block", || format!("blocks of {block:?}"))?;
    let grid = [stack, &[rows.div_ceil(block[0]), cols.div_ceil(block[1])]].concat();
    let wrong = |shape: &[usize]| format!("{shape:?}, but blocks of {block:?} in {:?} are {grid:?}", of.shape);
    sound(scale.shape == grid, ".scaled.scale", || wrong(&scale.shape))?;
    sound(scale.codes.is_none(), ".scaled.scale", || "codes are no scales".to_owned())?;
    if let Some(zero) = zero {
        sound(zero.shape == grid, ".scaled.zero", || wrong(&zero.shape))?;
        let integers = zero.codes.is_none_or(|codes| codes.integers().is_some());
        sound(integers, ".scaled.zero", || "these are no integers".to_owned())?;
    }
    Ok(of.made())
}

/// Codes or scales of a matrix as it is stored, or of one for each tensor of a stack; where a
/// tensor has the matrices of all, blocks lie in single rows.
fn encode(by: Encode, made: Encoded, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".encode.of"))?;
    let at = ".encode";
    sound(by.is_sound(), ".encode.by", || format!("{} with scales of {}", by.codes.name(), by.scales.name()))?;
    sound(of.codes.is_none() && of.encoded.is_none(), ".encode.of", || "codes are made of no others".to_owned())?;
    let plain = match of.stored {
        Stored::Tensor => of.shape.len() == 2 || by.block[0] == 1,
        Stored::Stack(_) => of.shape.len() == 3,
        Stored::No => of.whole && by.block[0] == 1,
    };
    sound(plain && of.shape.len() > 1, ".encode.of", || "only of a matrix as it is stored codes are made".to_owned())?;
    let last = of.shape.len() - 2;
    let sizes = by.sizes(made, [of.shape[last], of.shape[last + 1]]);
    of.shape[last..].copy_from_slice(&sizes);
    sound(is_shape(&of.shape), at, || no_shape(&of.shape))?;
    Ok(Value { encoded: Some(by.dtype(made)), whole: false, ..of })
}

/// So many tensors, or one that has them all.
fn stack(name: &str, count: usize, shape: &[usize], whole: Option<&Whole>) -> Made {
    sound(name.matches(STAR).count() == 1, ".stack.name", || {
        format!("{name:?} has not one star in the place of a number")
    })?;
    sound((1..=MAX_STACK).contains(&count), ".stack.count", || format!("{count} is not one to {MAX_STACK}"))?;
    let all = [&[count], shape].concat();
    sound(!shape.is_empty() && is_shape(&all), ".stack", || no_shape(&all))?;
    if let Some(Whole { name, start, rows }) = whole {
        sound(!name.is_empty(), ".stack.whole", || "a tensor without a name".to_owned())?;
        let fits = start.checked_add(shape[0]).is_some_and(|end| end <= *rows);
        sound(fits && is_shape(&[&[count, *rows], &shape[1..]].concat()), ".stack.whole", || {
            format!("{} rows from {start} on are not to be had of {rows}", shape[0])
        })?;
        // Another shape than that of each tensor.
        return Ok(Value { whole: true, ..Value::new(all, Stored::No) });
    }
    Ok(Value::new(all, Stored::Stack(count)))
}

fn view(shape: &[usize], of: Made) -> Made {
    let of = of.map_err(|fault| fault.inside(".view.of"))?;
    let stored = match of.stored {
        Stored::Tensor => true,
        Stored::Stack(count) => shape.first() == Some(&count) && shape.len() > 1,
        Stored::No => false,
    };
    // What is made of a row stays in it.
    let stored = stored && (of.encoded.is_none() || shape.last() == of.shape.last());
    sound(stored, ".view.of", || "only a tensor as it is stored has another shape".to_owned())?;
    let same = is_shape(shape) && product(shape) == product(&of.shape);
    sound(same, ".view.shape", || format!("{shape:?} has not the numbers of {:?}", of.shape))?;
    Ok(of.of_shape(shape.to_vec()))
}

fn unpack((from, to, order): (DType, DType, Order), axis: usize, len: usize, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".unpack.of"))?;
    let at = ".unpack";
    let codes = from.bits() / to.bits();
    sound(of.codes.is_none(), ".unpack.of", || "codes are made of no others".to_owned())?;
    sound(of.encoded.is_none_or(|made| made == from), ".unpack.of", || "these are other words".to_owned())?;
    sound(from.is_word() && to.is_code() && order.suits(codes), at, || {
        format!("{} is not made of {} in the order {}", from.name(), to.name(), order.name())
    })?;
    axis_of(axis, &of.shape).map_err(|fault| fault.inside(at))?;
    sound(axis + 2 >= of.shape.len(), ".unpack.axis", || format!("{axis} is not one of the last two"))?;
    sound(len >= 1 && len.div_ceil(codes) == of.shape[axis], ".unpack.len", || {
        format!("{len} codes do not lie in axis {axis} of {:?}, {codes} to a word", of.shape)
    })?;
    sound(!of.parted.has(axis), ".unpack.axis", || "places of it were left out".to_owned())?;
    of.shape[axis] = len;
    sound(is_shape(&of.shape), at, || format!("{:?} is too large", of.shape))?;
    Ok(Value { codes: Some(to), encoded: None, packed: of.packed.with(axis), ..of.made() })
}

fn slice(axis: usize, start: usize, len: usize, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".slice.of"))?;
    let shape = &mut of.shape;
    axis_of(axis, shape).map_err(|fault| fault.inside(".slice"))?;
    let fits = len >= 1 && start.checked_add(len).is_some_and(|end| end <= shape[axis]);
    sound(fits, ".slice", || format!("{len} from {start} on do not lie in axis {axis} of {shape:?}"))?;
    shape[axis] = len;
    Ok(of.made())
}

fn every(axis: usize, step: usize, start: usize, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".every.of"))?;
    let at = ".every";
    axis_of(axis, &of.shape).map_err(|fault| fault.inside(at))?;
    let size = of.shape[axis];
    sound(start < step && start < size, at, || {
        format!("each place that is {start} more than a multiple of {step} is not to be had of {size}")
    })?;
    sound(!of.packed.has(axis), ".every.axis", || "several of its places are in a word".to_owned())?;
    of.shape[axis] = (size - start).div_ceil(step);
    Ok(Value { parted: of.parted.with(axis), ..of.made() })
}

fn pad(axis: usize, len: usize, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".pad.of"))?;
    let at = ".pad";
    axis_of(axis, &of.shape).map_err(|fault| fault.inside(at))?;
    sound(of.shape[axis] <= len, ".pad.len", || format!("{len}, but there are {} already", of.shape[axis]))?;
    of.shape[axis] = len;
    sound(is_shape(&of.shape), at, || no_shape(&of.shape))?;
    Ok(of.made())
}

fn shard(axis: usize, parts: usize, of: Made) -> Made {
    let mut of = of.map_err(|fault| fault.inside(".shard.of"))?;
    let shape = &mut of.shape;
    axis_of(axis, shape).map_err(|fault| fault.inside(".shard"))?;
    sound(parts >= 1 && shape[axis].is_multiple_of(parts), ".shard.parts", || {
        format!("{parts} equal parts are not to be had of axis {axis} of {shape:?}")
    })?;
    shape[axis] /= parts;
    Ok(of.made())
}

fn concat(axis: usize, parts: Vec<Made>) -> Made {
    let mut whole: Option<Value> = None;
    for (index, part) in parts.into_iter().enumerate() {
        let joined = part.and_then(|part| join(whole.take(), part, axis));
        whole = Some(joined.map_err(|fault| fault.inside(&format!(".concat.parts[{index}]")))?);
    }
    whole.ok_or_else(|| Fault { at: String::new(), detail: "concat of nothing".to_owned() })
}

/// What there is and one part more.
fn join(whole: Option<Value>, part: Value, axis: usize) -> Made {
    axis_of(axis, &part.shape)?;
    let Some(Value { shape: mut all, codes, encoded, packed, parted, .. }) = whole else { return Ok(part.made()) };
    let shape = part.shape;
    let (packed, parted) = (packed.and(part.packed), parted.and(part.parted));
    let alike = shape.len() == all.len() && (0..shape.len()).all(|i| i == axis || shape[i] == all[i]);
    sound(alike, "", || format!("shape {shape:?} does not join {all:?} along axis {axis}"))?;
    sound(encoded == part.encoded, "", || "codes do not join others".to_owned())?;
    sound(codes == part.codes, "", || {
        let name = |codes: Option<DType>| codes.map_or("what was not unpacked", DType::name);
        format!("{} does not join {}", name(part.codes), name(codes))
    })?;
    all[axis] = all[axis].saturating_add(shape[axis]);
    sound(product(&all).is_some_and(|n| n <= MAX_BYTES), "", || format!("{all:?} is too large"))?;
    Ok(Value { shape: all, codes, encoded, stored: Stored::No, whole: false, packed, parted })
}

fn axis_of(axis: usize, shape: &[usize]) -> Result<(), Fault> {
    sound(axis < shape.len(), ".axis", || format!("index {axis}, but there are {}", shape.len()))
}
