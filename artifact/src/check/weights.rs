//! Weights: their expressions make their shapes, and their layouts are the target's and fill their buffers.
use super::layout::{padded, stride};
use super::{Checked, MAX_BYTES, below, ensure, product};
use crate::error::Error;
use crate::manifest::*;

pub(super) fn weight(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    ensure(matches!(weight.dtype, DType::F32 | DType::F16 | DType::BF16), &format!("{at}.dtype"), || {
        format!("{:?} is not a type for weights: f32, f16, bf16", weight.dtype)
    })?;
    let shape = &weight.shape;
    ensure(matches!(shape.len(), 1 | 2) && !shape.contains(&0), &format!("{at}.shape"), || {
        format!("{shape:?} is not one or two sizes of at least 1")
    })?;
    layout(weight, target, at)?;
    let found = expr_shape(&weight.expr, &format!("{at}.expr"))?;
    ensure(found == *shape, &format!("{at}.expr"), || format!("makes shape {found:?}, but the weight has {shape:?}"))
}

/// That the layout is the one that the target has for such a shape, and that the buffer holds it and its padding.
fn layout(weight: &Weight, target: &DataLayout, at: &str) -> Checked {
    let (rows, cols) = weight.rows_cols();
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
    let need = elements.and_then(|elements| elements.checked_mul(size)).filter(|&need| need <= MAX_BYTES);
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

/// That weights are cut for as many ranks as there are: each rank has a part, and the smallest parts are one rank's.
pub(super) fn shards(weights: &[Weight], ranks: usize, at: &str) -> Checked {
    let mut most = 1;
    for (index, weight) in weights.iter().enumerate() {
        let mut parts = Vec::new();
        collect_parts(&weight.expr, &mut parts);
        for parts in parts {
            ensure(parts >= 1 && ranks.is_multiple_of(parts), &format!("{at}[{index}].expr"), || {
                format!("a shard of {parts} parts for {ranks} ranks (tensor_parallel)")
            })?;
            most = most.max(parts);
        }
    }
    ensure(most == ranks, at, || format!("cut for {most} ranks, but tensor_parallel is {ranks}"))
}

fn collect_parts(expr: &WeightExpr, all: &mut Vec<usize>) {
    match expr {
        WeightExpr::Tensor { .. } | WeightExpr::Const { .. } => {}
        WeightExpr::Concat { parts, .. } => parts.iter().for_each(|part| collect_parts(part, all)),
        WeightExpr::Slice { of, .. } => collect_parts(of, all),
        WeightExpr::Shard { parts, of, .. } => {
            all.push(*parts);
            collect_parts(of, all);
        }
    }
}

/// The shape of an expression, once its parts fit each other.
fn expr_shape(expr: &WeightExpr, at: &str) -> Result<Vec<usize>, Error> {
    match expr {
        WeightExpr::Tensor { name, shape } => {
            ensure(!name.is_empty(), at, || "a tensor without a name".to_owned())?;
            let sound = matches!(shape.len(), 1 | 2) && product(shape).is_some_and(|n| (1..=MAX_BYTES).contains(&n));
            ensure(sound, at, || format!("{shape:?} is not one or two sizes of at least 1"))?;
            Ok(shape.clone())
        }
        WeightExpr::Concat { axis, parts } => concat_shape(*axis, parts, at),
        WeightExpr::Slice { axis, start, len, of } => {
            let mut shape = expr_shape(of, &format!("{at}.slice.of"))?;
            below(*axis, shape.len(), at, "slice.axis")?;
            let fits = *len >= 1 && start.checked_add(*len).is_some_and(|end| end <= shape[*axis]);
            ensure(fits, &format!("{at}.slice"), || {
                format!("{len} from {start} on do not lie in axis {axis} of {shape:?}")
            })?;
            shape[*axis] = *len;
            Ok(shape)
        }
        WeightExpr::Shard { axis, parts, of } => {
            let mut shape = expr_shape(of, &format!("{at}.shard.of"))?;
            below(*axis, shape.len(), at, "shard.axis")?;
            ensure(*parts >= 1 && shape[*axis].is_multiple_of(*parts), &format!("{at}.shard.parts"), || {
                format!("{parts} equal parts are not to be had of axis {axis} of {shape:?}")
            })?;
            shape[*axis] /= parts;
            Ok(shape)
        }
        WeightExpr::Const { values } => {
            ensure(!values.is_empty(), at, || "a constant without values".to_owned())?;
            Ok(vec![values.len()])
        }
    }
}

fn concat_shape(axis: usize, parts: &[WeightExpr], at: &str) -> Result<Vec<usize>, Error> {
    let mut whole: Option<Vec<usize>> = None;
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}.concat.parts[{index}]");
        let shape = expr_shape(part, &at)?;
        below(axis, shape.len(), &at, "axis")?;
        let Some(whole) = &mut whole else {
            whole = Some(shape);
            continue;
        };
        let alike = shape.len() == whole.len() && (0..shape.len()).all(|i| i == axis || shape[i] == whole[i]);
        ensure(alike, &at, || format!("shape {shape:?} does not join {whole:?} along axis {axis}"))?;
        whole[axis] = whole[axis].saturating_add(shape[axis]);
        ensure(product(whole).is_some_and(|n| n <= MAX_BYTES), &at, || format!("{whole:?} is too large"))?;
    }
    whole.ok_or_else(|| Error::Manifest { at: at.to_owned(), detail: "concat of nothing".to_owned() })
}
