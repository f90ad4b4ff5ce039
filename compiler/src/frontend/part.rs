//! What of a step an artifact is to compute: one rank's share of the model, with its own attention
//! or the caller's.
use atomc_artifact::check::MAX_RANKS;
use atomc_artifact::manifest::Attention;
use atomc_config::{FeedForward, Layer, Mixer};
use atomc_ir::Diagnostic;

use super::{Config, attention, experts, mlp};

/// One rank's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ranks that share the model out.
    pub ranks: usize,
    pub attention: Attention,
}

impl Default for Part {
    /// All of it.
    fn default() -> Part {
        Part { ranks: 1, attention: Attention::Own }
    }
}

impl Part {
    /// The sizes of one rank.
    pub fn of(self, config: &Config) -> Result<Config, Diagnostic> {
        let Part { ranks, .. } = self;
        if ranks > MAX_RANKS {
            let message = format!("{ranks} ranks, but {MAX_RANKS} are the most that share a model out");
            return Err(Diagnostic::new("config::ranks", message).at("--tp"));
        }
        let fault = |what: String| {
            Diagnostic::new("config::ranks", format!("{what} cannot be shared out among {ranks} ranks")).at("--tp")
        };
        let layers = config.layers.iter().map(|layer| share(layer, ranks)).collect::<Result<_, _>>().map_err(fault)?;
        Ok(Config { layers, ..config.clone() })
    }

    /// Parts of a head's weight: all ranks have all of it where it is not a multiple, or is the
    /// embedding as well.
    pub fn parts_of_vocab(self, config: &Config) -> usize {
        if !config.tied && config.vocab.is_multiple_of(self.ranks) { self.ranks } else { 1 }
    }
}

/// One rank's share of a layer, or what of it cannot be shared out.
fn share(layer: &Layer, ranks: usize) -> Result<Layer, String> {
    let Layer { mixer: Mixer::Attention(attention), feed_forward, norms } = layer;
    let mixer = Mixer::Attention(attention::share(attention, ranks)?);
    let feed_forward = match feed_forward {
        FeedForward::Gated(mlp) => FeedForward::Gated(mlp::share(mlp, ranks)?),
        FeedForward::Experts(all) => FeedForward::Experts(experts::share(all, ranks)?),
    };
    Ok(Layer { mixer, feed_forward, norms: *norms })
}
