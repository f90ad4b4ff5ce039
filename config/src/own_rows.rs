//! Embeddings of layers: in addition to the row that goes through all layers, each layer has a
//! short row of its own for a token.
use crate::Diagnostic;
use crate::fields::{Fields, MAX_SIZE};
use crate::kind::Weights;
use crate::mlp::Activation;

/// The embeddings of all layers, as parts of the rows of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRows {
    pub vocab: usize,
    /// Layers whose rows are parts of those of the table.
    pub layers: usize,
    /// Elements of each layer's row.
    pub width: usize,
}

/// What a layer adds for its own row: a projection of the rows that go through, through an
/// activation, times that row, and projected back.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnRow {
    pub width: usize,
    pub activation: Activation,
}

impl Weights for OwnRow {
    fn rows(&self) -> (&'static str, usize) {
        ("hidden_size_per_layer_input", self.width)
    }
}

/// The embeddings of a family that may have some.
pub(crate) fn read(f: &Fields, layers: usize, vocab: usize) -> Result<Option<OwnRows>, Diagnostic> {
    let (name, of_vocab) = ("hidden_size_per_layer_input", "vocab_size_per_layer_input");
    let width = if f.has(name) { f.number_or_none(name)?.unwrap_or(0) } else { 256 };
    f.note(name, width);
    if width == 0 {
        return Ok(None);
    }
    f.at_most(name, width.saturating_mul(layers), MAX_SIZE)?;
    let own = f.or(of_vocab, Fields::size, 262_144)?;
    if own < vocab {
        let message = format!("{own} is less than vocab_size, {vocab}: tokens without a row are not supported");
        return Err(f.fault("config::unsupported", of_vocab, message));
    }
    Ok(Some(OwnRows { vocab: own, layers, width }))
}
