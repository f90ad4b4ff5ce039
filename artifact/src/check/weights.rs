//! Weights: their expressions make their shapes, and their layouts are the target's and fill their
//! buffers.
use super::layout::{padded, stride};
use super::{Checked, ensure, product};
use crate::error::Error;
use crate::manifest::*;
use atomc_dtype::step::{Elements, Fault, MAX_BYTES, Stored, Value, is_shape, no_shape};

pub(super) fn weight(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    let shape = &weight.shape;
    ensure(is_shape(shape), &format!("{at}.shape"), || no_shape(shape))?;
    layout(weight, target, at)?;
    let Value { shape: found, elements, .. } = made(&weight.expr, &format!("{at}.expr"))?;
    let (codes, encoded) = (elements.codes(), elements.made());
    let mut steps = 0;
    weight.expr.fold(&mut |expr, _: Vec<()>| steps += usize::from(matches!(expr, WeightExpr::Dequantise { .. })));
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
    ensure(elements != Elements::Text, &format!("{at}.expr"), || "a text is no weight".to_owned())?;
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
        // Kernels read no columns of scales and zero points that do not exist.
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

/// Panels of rows, which are padded like columns of activations, with groups of `group` of the
/// `cols` columns; and their elements.
fn panels(rows: usize, cols: usize, group: usize, target: &DataLayout) -> (Option<Layout>, Option<usize>) {
    let width = target.panel;
    let whole = |&rows: &usize| rows.is_multiple_of(width) && cols.is_multiple_of(group);
    let rows = padded(rows, target).filter(whole);
    let layout = rows.map(|rows| Layout::Panels { width, group, rows, cols });
    (layout, rows.and_then(|rows| rows.checked_mul(cols)))
}

/// Most tensors of a stack: some sixteen times what a layer of today's largest models has.
const MAX_STACK: usize = 1 << 13;

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
    expr.fold(&mut |expr, _: Vec<()>| {
        if let WeightExpr::Shard { parts, .. } = expr {
            all.push(*parts);
        }
    });
    all
}

type Made = Result<Value, Fault>;

fn sound(holds: bool, at: &str, detail: impl FnOnce() -> String) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault { at: at.to_owned(), detail: detail() }) }
}

/// What an expression makes, once its parts fit each other.
fn made(expr: &WeightExpr, at: &str) -> Result<Value, Error> {
    let value = expr.fold(&mut value);
    value.map_err(|Fault { at: inside, detail }| Error::Manifest { at: format!("{at}{inside}"), detail })
}

fn value(expr: &WeightExpr, operands: Vec<Made>) -> Made {
    match expr {
        WeightExpr::Tensor { name, shape } => {
            sound(!name.is_empty(), "", || "a tensor without a name".to_owned())?;
            sound(shape.is_empty() || is_shape(shape), "", || no_shape(shape))?;
            Ok(Value::new(shape.clone(), elements(shape), Stored::Tensor))
        }
        WeightExpr::Stack { name, count, shape, whole } => stack(name, *count, shape, whole.as_ref()),
        WeightExpr::Const { values } => {
            sound(!values.is_empty(), "", || "a constant without values".to_owned())?;
            Ok(Value::new(vec![values.len()], Elements::Stored, Stored::No))
        }
        expr => {
            let step = expr.step().expect("all else has an arm of its own");
            let inside = |(index, of): (usize, Made)| of.map_err(|fault| fault.inside(&step.place(index)));
            step.value(operands.into_iter().enumerate().map(inside).collect::<Result<_, _>>()?)
        }
    }
}

/// A stack of `count` tensors, or one tensor with all of them.
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
        return Ok(Value::new(all, Elements::Stored, Stored::Whole));
    }
    Ok(Value::new(all, elements(shape), Stored::Stack(count)))
}

/// What a tensor has. A text is no part of a weight.
fn elements(shape: &[usize]) -> Elements {
    if shape == [TEXT] { Elements::Text } else { Elements::Stored }
}
