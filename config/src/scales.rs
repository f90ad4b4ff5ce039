//! What a model multiplies with on its way, and what a configuration says of it.
use crate::Diagnostic;
use crate::fields::Fields;

/// Factors of what goes from part to part; 1 where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales {
    /// Of embeddings, before the first layer.
    pub embedding: f64,
    /// Of what each half of a layer adds.
    pub residual: f64,
    pub logits: f64,
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) enum Traits {
    None,
    /// A field for each; logits are divided by theirs.
    Fields,
}

pub(crate) fn read(f: &Fields, traits: Traits) -> Result<Scales, Diagnostic> {
    match traits {
        Traits::None => Ok(Scales { embedding: 1.0, residual: 1.0, logits: 1.0 }),
        Traits::Fields => Ok(Scales {
            embedding: f.or("embedding_multiplier", Fields::positive, 1.0)?,
            residual: f.or("residual_multiplier", Fields::positive, 1.0)?,
            logits: 1.0 / f.or("logits_scaling", Fields::positive, 1.0)?,
        }),
    }
}
