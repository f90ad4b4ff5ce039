//! The factors of a model, as a configuration describes them.
use crate::fields::Fields;
use crate::{Diagnostic, Kind};

/// Factors of values between the parts of a model; 1 by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// The factor of embeddings, before the first layer.
    pub embedding: f64,
    /// Whether that one is part of the embedding: it is rounded to the model's type, and rows that
    /// somebody has in the place of embeddings have it already.
    pub embedded: bool,
    /// The factor of each result of a half of a layer.
    pub residual: f64,
    pub logits: f64,
    /// What logits are bent to stay within, by the hyperbolic tangent.
    pub cap: Option<f64>,
}

/// The differences between families.
#[derive(Clone, Copy)]
pub(crate) enum Traits {
    None,
    /// A field for each; logits are divided by theirs.
    Fields,
    /// Embeddings have the root of the hidden size.
    Root,
    /// Embeddings have the root of the hidden size, and logits stay within this field, if it has a
    /// number.
    RootCapped(&'static str),
    /// Logits have this field, with its default.
    Logits(&'static str, f64),
    /// A field for embeddings, for logits, and for what goes into halves and comes out of them.
    Halves,
}

/// What the rows that halves of a kind see, and their results, are multiplied with.
#[derive(Clone, Copy)]
pub(crate) struct OfHalves {
    state_space: [f64; 2],
    attention: [f64; 2],
    mlp: [f64; 2],
}

impl OfHalves {
    pub fn of(&self, kind: &Kind) -> [f64; 2] {
        match kind {
            Kind::Ssm(_) => self.state_space,
            Kind::Attention(_) => self.attention,
            Kind::Gated(_) => self.mlp,
            _ => [1.0; 2],
        }
    }
}

pub(crate) fn of_halves(f: &Fields, traits: Traits) -> Result<OfHalves, Diagnostic> {
    let Traits::Halves = traits else {
        return Ok(OfHalves { state_space: [1.0; 2], attention: [1.0; 2], mlp: [1.0; 2] });
    };
    let factor = |name| f.or(name, Fields::positive, 1.0);
    let [_, down] = several(f, "mlp_multipliers")?;
    Ok(OfHalves {
        state_space: [factor("ssm_in_multiplier")?, factor("ssm_out_multiplier")?],
        attention: [factor("attention_in_multiplier")?, factor("attention_out_multiplier")?],
        mlp: [1.0, down],
    })
}

/// A field with so many factors, which are 1 without it.
pub(crate) fn several<const N: usize>(f: &Fields, name: &'static str) -> Result<[f64; N], Diagnostic> {
    let factors = f.positives(name)?.unwrap_or(vec![1.0; N]);
    f.note(name, &factors[..]);
    let message = || f.fault("config::value", name, format!("lists {} factors and not {N}", factors.len()));
    factors[..].try_into().map_err(|_| message())
}

pub(crate) fn read(f: &Fields, traits: Traits, hidden: usize) -> Result<Scales, Diagnostic> {
    let none = Scales { embedding: 1.0, embedded: false, residual: 1.0, logits: 1.0, cap: None };
    match traits {
        Traits::None => Ok(none),
        Traits::Root => Ok(Scales { embedding: (hidden as f64).sqrt(), embedded: true, ..none }),
        Traits::RootCapped(name) => {
            let cap = f.positive_or_none(name)?;
            f.note(name, cap);
            Ok(Scales { cap, ..read(f, Traits::Root, hidden)? })
        }
        Traits::Logits(name, default) => Ok(Scales { logits: f.or(name, Fields::positive, default)?, ..none }),
        Traits::Halves => Ok(Scales {
            embedding: f.or("embedding_multiplier", Fields::positive, 1.0)?,
            logits: f.or("lm_head_multiplier", Fields::positive, 1.0)?,
            ..none
        }),
        Traits::Fields => Ok(Scales {
            embedding: f.or("embedding_multiplier", Fields::positive, 1.0)?,
            residual: f.or("residual_multiplier", Fields::positive, 1.0)?,
            logits: 1.0 / f.or("logits_scaling", Fields::positive, 1.0)?,
            ..none
        }),
    }
}
