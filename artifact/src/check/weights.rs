//! Weights: their expressions make their shapes, and their layouts are the target's and fill their buffers.
use super::layout::{padded, stride};
use super::{Checked, MAX_AXES, MAX_BYTES, ensure, product};
use crate::error::Error;
use crate::manifest::*;

pub(super) fn weight(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    // Checkpoints have no such tensors: several of these numbers are one of theirs.
    ensure(weight.dtype.bits() >= 8, &format!("{at}.dtype"), || {
        format!("{} is not a type for weights: an element has less than a byte", weight.dtype.name())
    })?;
    let shape = &weight.shape;
    ensure(is_shape(shape), &format!("{at}.shape"), || no_shape(shape))?;
    layout(weight, target, at)?;
    let found = expr_shape(&weight.expr, &format!("{at}.expr"))?;
    ensure(found == *shape, &format!("{at}.expr"), || format!("makes shape {found:?}, but the weight has {shape:?}"))
}

/// That the layout is the one that the target has for such a shape, and that the buffer holds it and its padding.
fn layout(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    let [stack, rows, cols] = weight.matrices();
    let size = weight.dtype.size();
    let (want, elements) = match weight.layout {
        Layout::Rows { .. } => {
            let stride = stride(cols, target);
            (stride.map(|stride| Layout::Rows { stride }), stride.and_then(|stride| rows.checked_mul(stride)))
        }
        Layout::Panels { .. } => panels(rows, cols, size, target),
    };
    ensure(want == Some(weight.layout), &format!("{at}.layout"), || {
        let want = want.map_or("that no buffer holds".to_owned(), |want| format!("{want:?}"));
        format!("{:?}, but the target's layout of {rows} by {cols} is {want}", weight.layout)
    })?;
    let need = elements.and_then(|elements| product(&[stack, elements, size])).filter(|&need| need <= MAX_BYTES);
    let fits = need.is_some_and(|need| (need..=need.next_multiple_of(target.align)).contains(&weight.bytes));
    ensure(fits, &format!("{at}.bytes"), || {
        let need = need.map_or(format!("more than {MAX_BYTES}"), |need| need.to_string());
        format!("{} bytes, but the layout {:?} takes {need}", weight.bytes, weight.layout)
    })
}

/// Panels of rows that are padded like columns, and their elements.
fn panels(rows: usize, cols: usize, size: usize, target: &DataLayout) -> (Option<Layout>, Option<usize>) {
    let (width, group) = (target.panel, target.group_bytes / size);
    let sizes = padded(rows, target).zip(padded(cols, target));
    let whole = |&(rows, cols): &(usize, usize)| rows.is_multiple_of(width) && cols.is_multiple_of(group);
    let sizes = sizes.filter(whole);
    let layout = sizes.map(|(rows, cols)| Layout::Panels { width, group, rows, cols });
    (layout, sizes.and_then(|(rows, cols)| rows.checked_mul(cols)))
}

/// Whether these are the sizes of a value with elements, as many as a buffer may hold.
fn is_shape(shape: &[usize]) -> bool {
    (1..=MAX_AXES).contains(&shape.len()) && product(shape).is_some_and(|n| (1..=MAX_BYTES).contains(&n))
}

fn no_shape(shape: &[usize]) -> String {
    format!("{shape:?} is not one to {MAX_AXES} sizes of at least 1")
}

/// That weights are cut for as many ranks as there are: each rank has a part, and the smallest parts are one rank's.
pub(super) fn shards(weights: &[Weight], ranks: usize, at: &str) -> Checked {
    let mut most = 1;
    for (index, weight) in weights.iter().enumerate() {
        for parts in shard_parts(&weight.expr) {
            ensure(parts >= 1 && ranks.is_multiple_of(parts), &format!("{at}[{index}].expr"), || {
                format!("a shard of {parts} parts for {ranks} ranks (tensor_parallel)")
            })?;
            most = most.max(parts);
        }
    }
    ensure(most == ranks, at, || format!("cut for {most} ranks, but tensor_parallel is {ranks}"))
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

type Shaped = Result<Vec<usize>, Fault>;

impl Fault {
    /// The same fault, seen from one step further out.
    fn inside(self, step: &str) -> Fault {
        Fault { at: format!("{step}{}", self.at), ..self }
    }
}

fn sound(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault { at: at.to_owned(), detail: detail() }) }
}

/// The shape of an expression, once its parts fit each other.
fn expr_shape(expr: &WeightExpr, at: &str) -> Result<Vec<usize>, Error> {
    expr.fold(&mut shape).map_err(|fault| Error::Manifest { at: format!("{at}{}", fault.at), detail: fault.detail })
}

fn shape(term: Term<Shaped>) -> Shaped {
    match term {
        Term::Tensor { name, shape } => {
            sound(!name.is_empty(), "", || "a tensor without a name".to_owned())?;
            sound(is_shape(shape), "", || no_shape(shape))?;
            Ok(shape.to_vec())
        }
        Term::Concat { axis, parts } => concat_shape(axis, parts),
        Term::Slice { axis, start, len, of } => slice_shape(axis, start, len, of),
        Term::Shard { axis, parts, of } => shard_shape(axis, parts, of),
        Term::Offset { by, of } => {
            let shape = of.map_err(|fault| fault.inside(".offset.of"))?;
            sound(by.is_finite(), ".offset", || format!("{by} is no number to add"))?;
            Ok(shape)
        }
        Term::Const { values } => {
            sound(!values.is_empty(), "", || "a constant without values".to_owned())?;
            Ok(vec![values.len()])
        }
    }
}

fn slice_shape(axis: usize, start: usize, len: usize, of: Shaped) -> Shaped {
    let mut shape = of.map_err(|fault| fault.inside(".slice.of"))?;
    axis_of(axis, &shape).map_err(|fault| fault.inside(".slice"))?;
    let fits = len >= 1 && start.checked_add(len).is_some_and(|end| end <= shape[axis]);
    sound(fits, ".slice", || format!("{len} from {start} on do not lie in axis {axis} of {shape:?}"))?;
    shape[axis] = len;
    Ok(shape)
}

fn shard_shape(axis: usize, parts: usize, of: Shaped) -> Shaped {
    let mut shape = of.map_err(|fault| fault.inside(".shard.of"))?;
    axis_of(axis, &shape).map_err(|fault| fault.inside(".shard"))?;
    sound(parts >= 1 && shape[axis].is_multiple_of(parts), ".shard.parts", || {
        format!("{parts} equal parts are not to be had of axis {axis} of {shape:?}")
    })?;
    shape[axis] /= parts;
    Ok(shape)
}

fn concat_shape(axis: usize, parts: Vec<Shaped>) -> Shaped {
    let mut whole: Option<Vec<usize>> = None;
    for (index, part) in parts.into_iter().enumerate() {
        let joined = part.and_then(|shape| join(whole.take(), shape, axis));
        whole = Some(joined.map_err(|fault| fault.inside(&format!(".concat.parts[{index}]")))?);
    }
    whole.ok_or_else(|| Fault { at: String::new(), detail: "concat of nothing".to_owned() })
}

/// The shape of what there is and one part more.
fn join(whole: Option<Vec<usize>>, shape: Vec<usize>, axis: usize) -> Shaped {
    axis_of(axis, &shape)?;
    let Some(mut whole) = whole else { return Ok(shape) };
    let alike = shape.len() == whole.len() && (0..shape.len()).all(|i| i == axis || shape[i] == whole[i]);
    sound(alike, "", || format!("shape {shape:?} does not join {whole:?} along axis {axis}"))?;
    whole[axis] = whole[axis].saturating_add(shape[axis]);
    sound(product(&whole).is_some_and(|n| n <= MAX_BYTES), "", || format!("{whole:?} is too large"))?;
    Ok(whole)
}

fn axis_of(axis: usize, shape: &[usize]) -> Result<(), Fault> {
    sound(axis < shape.len(), ".axis", || format!("index {axis}, but there are {}", shape.len()))
}
