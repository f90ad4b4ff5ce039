//! How queries grow with their position, as a configuration describes it.
use serde_json::json;

use crate::fields::Fields;
use crate::{Diagnostic, Rope};

/// Queries are multiplied with `1 + beta ln(1 + n)`, where `n` is the number of whole lengths in
/// `position + shift`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub beta: f64,
    pub length: usize,
    pub shift: usize,
    /// Whether only those of layers without a rotary embedding grow.
    pub unturned: bool,
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    None,
    /// By `llama_4_scaling_beta` of the rotary embedding and the first length of the embedding.
    /// These are their values where the configuration describes no embedding.
    Rope {
        beta: f64,
        length: usize,
    },
    /// Of layers without a rotary embedding, by `attn_scale` and `floor_scale`, unless
    /// `attn_temperature_tuning` is false.
    Tuned {
        beta: f64,
        length: usize,
    },
}

pub(crate) fn read(f: &Fields, rule: Rule, positions: usize) -> Result<Option<Growth>, Diagnostic> {
    let (beta, length) = match rule {
        Rule::None => return Ok(None),
        Rule::Tuned { beta, length } => return tuned(f, beta, length),
        Rule::Rope { beta, length } => (beta, length),
    };
    let name = "llama_4_scaling_beta";
    let growth = match Rope::described(f)?.1 {
        None => Some(Growth { beta, length, shift: 0, unturned: false }),
        Some(rope) => {
            let length = rope.size("original_max_position_embeddings")?.unwrap_or(positions);
            rope.positive_or_none(name)?.map(|beta| Growth { beta, length, shift: 0, unturned: false })
        }
    };
    f.note(name, growth.map(|growth| json!([growth.beta, growth.length])));
    Ok(growth)
}

fn tuned(f: &Fields, beta: f64, length: usize) -> Result<Option<Growth>, Diagnostic> {
    let name = "attn_temperature_tuning";
    let growth = match f.given(name, Fields::flag, true)? {
        true => {
            let beta = f.given("attn_scale", Fields::positive, beta)?;
            let length = f.given("floor_scale", Fields::size, length)?;
            Some(Growth { beta, length, shift: 1, unturned: true })
        }
        false => None,
    };
    f.note(name, growth.map(|growth| json!([growth.beta, growth.length])));
    Ok(growth)
}
