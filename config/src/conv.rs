//! Layers with a gated short convolution (LFM2), and what a configuration says of them.
use crate::Diagnostic;
use crate::fields::Fields;
use crate::kind::Weights;

/// Longest convolution: published models have three tokens.
const MAX_TOKENS: usize = 64;

/// A convolution of each channel over a few tokens, between two gates.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    pub channels: usize,
    /// Tokens that the convolution sees.
    pub tokens: usize,
}

impl Weights for ShortConv {
    fn rows(&self) -> (&'static str, usize) {
        ("hidden_size", self.channels.saturating_mul(3))
    }
}

/// The layers that have such a mixer, by number: those that `layer_types` lists, or else all that
/// `full_attn_idxs` does not name; without both there are none.
pub(crate) fn read(f: &Fields, hidden: usize, layers: usize) -> Result<Vec<Option<ShortConv>>, Diagnostic> {
    let name = "layer_types";
    let convolved: Vec<bool> = match (f.layers_of_type("conv", layers)?, f.numbers("full_attn_idxs")?) {
        (Some(convolved), _) => convolved,
        (None, Some(attending)) => (0..layers).map(|layer| !attending.contains(&layer)).collect(),
        (None, None) => vec![false; layers],
    };
    f.note(name, &convolved[..]);
    if !convolved.contains(&true) {
        return Ok(vec![None; layers]);
    }
    let name = "conv_L_cache";
    let tokens = f.at_most(name, f.or(name, Fields::size, 3)?, MAX_TOKENS)?;
    if tokens < 2 {
        return Err(f.fault("config::value", name, "must be at least 2: a convolution of one token has no state"));
    }
    Ok(convolved.into_iter().map(|is| is.then_some(ShortConv { channels: hidden, tokens })).collect())
}
