//! The factors of a model, as a configuration describes them.
use crate::Diagnostic;
use crate::fields::Fields;

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
        Traits::Fields => Ok(Scales {
            embedding: f.or("embedding_multiplier", Fields::positive, 1.0)?,
            residual: f.or("residual_multiplier", Fields::positive, 1.0)?,
            logits: 1.0 / f.or("logits_scaling", Fields::positive, 1.0)?,
            ..none
        }),
    }
}
