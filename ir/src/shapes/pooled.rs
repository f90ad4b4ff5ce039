//! Results of ops over rows of blocks of tokens, and of parts of attention.
use super::{Types, batch, cache, float, one};
use crate::types::{DType, Dim, Layout, Shape, Type};

/// Checks that a block has a token, if rows are of blocks.
pub(super) fn some_tokens(every: &Option<usize>) -> Result<(), String> {
    if *every == Some(0) { Err("a row must be of a token at least".into()) } else { Ok(()) }
}

pub fn attend_part(inputs: &[&Type], scale: &f64, window: &usize, every: &Option<usize>) -> Types {
    some_tokens(every)?;
    let list = inputs.get(3).map(|list| {
        let of_tokens = |t: &crate::types::TensorType| matches!(t.shape.0[..], [Dim::Choices(_)]);
        match list.as_tensor().is_some_and(|t| t.is_indices() && t.layout == Layout::Rows && of_tokens(t)) {
            true => Ok(()),
            false => Err(format!("list must be i32[T*k], not {list}")),
        }
    });
    list.transpose()?;
    if *window > 0 && (every.is_some() || inputs.len() > 3) {
        return Err("a window is of tokens, and without a list".into());
    }
    let seen = super::attention(&inputs[..3], scale, window)?;
    let Some(&[rows, Dim::Fixed(heads), width]) = seen[0].as_tensor().map(|t| &t.shape.0[..]) else {
        return Err("attention has heads".into());
    };
    let seen = Type::tensor(DType::F32, Shape(vec![rows, Dim::Fixed(heads), width]));
    Ok(vec![seen, Type::tensor(DType::F32, Shape(vec![rows, Dim::Fixed(2 * heads)]))])
}

pub fn join(inputs: &[&Type], &to: &DType) -> Types {
    let (a, b) = (float(inputs[0], "a")?, float(inputs[2], "b")?);
    let &[rows, Dim::Fixed(heads), _] = &a.shape.0[..] else { return Err(format!("a {a} has no heads")) };
    let of = Type::tensor(DType::F32, Shape(vec![rows, Dim::Fixed(2 * heads)]));
    if a.dtype != DType::F32 || a != b || [inputs[1], inputs[3]].iter().any(|of_part| **of_part != of) {
        return Err(format!("a {a} and b {b} must be f32 and alike, with {of} each"));
    }
    if let Some(sinks) = inputs.get(4)
        && float(sinks, "sinks")?.shape != Shape::fixed(&[heads])
    {
        return Err(format!("sinks must have one number for each of {heads} heads, not {sinks}"));
    }
    one(to, a.shape.clone())
}

pub fn pool(inputs: &[&Type], &every: &usize, &overlap: &bool) -> Types {
    some_tokens(&Some(every))?;
    let (c, bias) = (cache(inputs[0])?, float(inputs[1], "bias")?);
    batch(inputs[2])?;
    let is_even = c.heads == 1 && c.head_dim == c.value_dim && !c.is_prefix;
    if !is_even || overlap && !c.head_dim.is_multiple_of(2) || bias.shape != Shape::fixed(&[every, c.head_dim]) {
        return Err(format!("bias {bias} for blocks of {every} tokens does not fit {}", inputs[0]));
    }
    let width = if overlap { c.head_dim / 2 } else { c.head_dim };
    one(DType::F32, Shape::led_by(Dim::Tokens, &[width]))
}
