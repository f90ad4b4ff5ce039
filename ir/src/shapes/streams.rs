//! Results of ops that mix the streams of a token.
use super::{Types, float, one};
use crate::types::{DType, Dim, Shape, TensorType, Type};

pub fn sinkhorn(inputs: &[&Type], &streams: &usize, &rounds: &usize, &norm: &f64, &eps: &f64) -> Types {
    let names = ["m", "x", "base", "scale"];
    let all = inputs.iter().zip(names).map(|(ty, name)| float(ty, name)).collect::<Result<Vec<_>, _>>()?;
    let (m, x, base, scale) = (all[0], all[1], all[2], all[3]);
    if streams == 0 || rounds == 0 || !(norm >= 0.0 && eps >= 0.0) {
        return Err(format!("{streams} streams, {rounds} rounds, {norm} and {eps}: too few, or below zero"));
    }
    let whole = streams.saturating_mul(streams.saturating_add(2));
    let (rows, logits) = match (&m.shape.0[..], &x.shape.0[..]) {
        (&[rows, Dim::Fixed(logits)] | &[rows, Dim::Fixed(_), Dim::Fixed(logits)], &[other, Dim::Fixed(width)])
            if rows == other && (logits == streams || logits == whole) && width.is_multiple_of(streams) =>
        {
            (rows, logits)
        }
        _ => return Err(format!("m {m} and x {x} do not fit {streams} streams")),
    };
    let scales = if logits == streams { 1 } else { 3 };
    if base.shape != Shape::fixed(&[logits]) || scale.shape != Shape::fixed(&[scales]) {
        return Err(format!("base {base} and scale {scale} do not fit m {m}, which has {scales} parts"));
    }
    let of = |width| Type::tensor(DType::F32, Shape(vec![rows, Dim::Fixed(width)]));
    let mixed = (scales == 3).then(|| of(streams * (streams + 1)));
    Ok([of(streams)].into_iter().chain(mixed).collect())
}

/// Rows, streams, and the width of each.
fn streams_of(x: &TensorType) -> Result<(Dim, usize, Dim), String> {
    match x.shape.0[..] {
        [rows, Dim::Fixed(streams), width] => Ok((rows, streams, width)),
        _ => Err(format!("x {x} has no streams")),
    }
}

pub fn collapse(inputs: &[&Type]) -> Types {
    let (x, weights) = (float(inputs[0], "x")?, float(inputs[1], "weights")?);
    let (rows, streams, width) = streams_of(x)?;
    if weights.dtype != DType::F32 || weights.shape.0 != [rows, Dim::Fixed(streams)] {
        return Err(format!("weights must be f32, one for each of {streams} streams, not {weights}"));
    }
    one(x.dtype, Shape(vec![rows, width]))
}

pub fn mix_rows(inputs: &[&Type]) -> Types {
    let (x, logits) = (float(inputs[0], "x")?, float(inputs[1], "logits")?);
    let (rows, count, width) = streams_of(x)?;
    match logits.shape.0[..] {
        [of, Dim::Fixed(n), Dim::Fixed(each)] if (of, n) == (rows, count) && each > 0 && logits.dtype == DType::F32 => {
            one(x.dtype, Shape(vec![rows, width]))
        }
        _ => Err(format!("logits must be f32, some for each of {count} rows, not {logits}")),
    }
}

pub fn mix(inputs: &[&Type]) -> Types {
    let (x, y, weights) = (float(inputs[0], "x")?, float(inputs[1], "y")?, float(inputs[2], "weights")?);
    let (rows, streams, width) = streams_of(x)?;
    if y.dtype != x.dtype || y.shape.0 != [rows, width] {
        return Err(format!("y {y} is no stream of x {x}"));
    }
    let count = streams.saturating_mul(streams + 1);
    if weights.dtype != DType::F32 || weights.shape.0 != [rows, Dim::Fixed(count)] {
        return Err(format!("weights must be f32, {count} for each token, not {weights}"));
    }
    one(x.dtype, x.shape.clone())
}
