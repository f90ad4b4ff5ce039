//! The rotary embedding of a file, as `rope_theta` and `rope_scaling`.
use serde_json::{Value as Json, json};

use super::{Fields, Keys};
use crate::error::{GgufError, KeyFault};
use crate::value::shortest;

/// What Llama 3 stretches its embedding with: the length that it was made for, and the factors of
/// wavelengths between which frequencies stay and are divided.
const LLAMA3: (f64, f64, f64) = (8192.0, 1.0, 4.0);
/// The field with the length that a model was made for, before it was stretched.
const ORIGINAL: &str = "original_max_position_embeddings";
/// How far a factor of 32 bits may be from one that is computed.
const CLOSE: f64 = 1e-5;

pub(crate) fn add(keys: &Keys, fields: &mut Fields) -> Result<(), GgufError> {
    let theta = keys.real("rope.freq_base")?.unwrap_or(10_000.0);
    fields.insert("rope_theta".to_owned(), json!(theta));
    let scaling = match keys.text("rope.scaling.type")? {
        Some("longrope") => Some(long(keys)?),
        None | Some("none") if keys.gguf.has("rope_factors_long.weight") => Some(long(keys)?),
        None | Some("none") => divided(keys, theta)?,
        Some("linear") => linear(keys)?,
        Some("yarn") => Some(yarn(keys)?),
        Some(found) => {
            let known = "none, linear, yarn, longrope".to_owned();
            return Err(GgufError::Unknown { key: keys.full("rope.scaling.type"), found: found.to_owned(), known });
        }
    };
    // Phi-3 has it even where nothing is scaled, and not in what describes the scaling.
    let has_own = scaling.as_ref().is_some_and(|scaling| scaling.get(ORIGINAL).is_some());
    if let Some(original) = keys.size("rope.scaling.original_context_length")?.filter(|_| !has_own) {
        fields.insert(ORIGINAL.to_owned(), json!(original));
    }
    fields.extend(scaling.map(|scaling| ("rope_scaling".to_owned(), scaling)));
    Ok(())
}

fn linear(keys: &Keys) -> Result<Option<Json>, GgufError> {
    let factor = keys.real("rope.scaling.factor")?.filter(|factor| *factor != 1.0);
    Ok(factor.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
}

fn yarn(keys: &Keys) -> Result<Json, GgufError> {
    let needed = |key: &str| keys.real(key)?.ok_or_else(|| GgufError::NoKey { key: keys.full(key) });
    let mut scaling = json!({
        "rope_type": "yarn",
        "factor": needed("rope.scaling.factor")?,
        "original_max_position_embeddings": keys.needed("rope.scaling.original_context_length")?,
    });
    let optional = [
        ("rope.scaling.yarn_attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ];
    for (key, name) in optional {
        if let Some(value) = keys.real(key)? {
            scaling[name] = json!(value);
        }
    }
    Ok(scaling)
}

/// A factor for each frequency, for long and for short sequences.
fn long(keys: &Keys) -> Result<Json, GgufError> {
    let factors = |name: &str| of_tensor(keys, &format!("rope_factors_{name}.weight"));
    let mut scaling =
        json!({ "rope_type": "longrope", "long_factor": factors("long")?, "short_factor": factors("short")? });
    let original = keys.needed("rope.scaling.original_context_length")? as f64;
    let grown = keys.needed("context_length")? as f64 / original;
    let usual = if grown > 1.0 { (1.0 + grown.ln() / original.ln()).sqrt() } else { 1.0 };
    let given = keys.real("rope.scaling.attn_factor")?;
    // The usual one is what a configuration means that has none.
    if let Some(factor) = given.filter(|factor| (factor / usual - 1.0).abs() >= CLOSE) {
        scaling["attention_factor"] = json!(factor);
    }
    Ok(scaling)
}

/// The numbers that a tensor divides frequencies by.
fn of_tensor(keys: &Keys, name: &str) -> Result<Vec<f64>, GgufError> {
    let stored = keys.gguf.tensor(name)?;
    let head = keys.size("rope.dimension_count")?.unwrap_or(keys.head_dim()?);
    if stored.shape() != [head as usize / 2] {
        let found = stored.shape().to_vec();
        return Err(GgufError::Shape { name: name.to_owned(), found, want: format!("[{}]", head / 2) });
    }
    let factors = stored.floats()?;
    if let Some(factor) = factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
        let fault = KeyFault::Value { want: "above 0 and finite".to_owned(), found: factor.to_string() };
        return Err(GgufError::Key { key: name.to_owned(), fault });
    }
    Ok(factors.into_iter().map(shortest).collect())
}

/// The scaling of a file that has factors of frequencies and no type. Llama 3's are told from
/// others by their values.
fn divided(keys: &Keys, theta: f64) -> Result<Option<Json>, GgufError> {
    if !keys.gguf.has("rope_freqs.weight") {
        return Ok(None);
    }
    let factors = of_tensor(keys, "rope_freqs.weight")?;
    let (original, low, high) = LLAMA3;
    let factor = factors.iter().copied().fold(1.0, f64::max);
    let computed = llama3(theta, factors.len(), factor);
    if factors.iter().zip(computed).all(|(found, want)| (found / want - 1.0).abs() < CLOSE) {
        return Ok(Some(json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original as u64,
        })));
    }
    let positions = keys.needed("context_length")?;
    Ok(Some(json!({
        "rope_type": "longrope", "long_factor": factors, "short_factor": factors, "attention_factor": 1.0,
        "original_max_position_embeddings": positions,
    })))
}

/// The numbers that Llama 3 divides its frequencies by.
fn llama3(theta: f64, count: usize, factor: f64) -> impl Iterator<Item = f64> {
    let (original, low, high) = LLAMA3;
    (0..count).map(move |at| {
        let length = std::f64::consts::TAU * theta.powf(at as f64 / count as f64);
        let smooth = ((original / length - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / ((1.0 - smooth) / factor + smooth)
    })
}
