//! What of a step an artifact is to compute: one rank's share of the model, with its own attention
//! or the caller's.
//!
//! Ranks share out heads and the rows between two projections. Experts are shared out by their
//! width too, or else as they are: each rank holds some of them whole.
use atomc_artifact::check::MAX_RANKS;
use atomc_artifact::manifest;
use atomc_config::{Attention, Experts, Half, Layer, of_kind};
use atomc_ir::Diagnostic;

use super::Config;
use super::layer::Kind;

/// One rank's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ranks that have a part of each projection.
    pub ranks: usize,
    /// Ranks that hold some of the experts each, whole; 1 if none do.
    pub expert_ranks: usize,
    /// Stages of layers, each with as many ranks.
    pub stages: usize,
    pub attention: manifest::Attention,
}

impl Default for Part {
    /// All of it.
    fn default() -> Part {
        Part { ranks: 1, expert_ranks: 1, stages: 1, attention: manifest::Attention::Own }
    }
}

impl Part {
    /// The stage that begins with a layer, if one does: not the first. Layers are shared out as
    /// they are, and the first stages have one more where they do not divide, as the last one also
    /// has the head.
    pub fn begun(self, layer: usize, layers: usize) -> Option<usize> {
        let (each, more) = (layers / self.stages, layers % self.stages);
        (1..self.stages).find(|&stage| stage * each + stage.min(more) == layer)
    }

    /// All ranks of a stage.
    pub fn all(self) -> usize {
        self.ranks.max(self.expert_ranks)
    }

    /// The sizes of one rank.
    pub fn of(self, config: &Config) -> Result<Config, Diagnostic> {
        let Part { ranks, expert_ranks, stages, .. } = self;
        let devices = self.all().saturating_mul(stages);
        for (ranks, option) in [(ranks, "--tp"), (expert_ranks, "--ep"), (devices, "--pp")] {
            if ranks > MAX_RANKS {
                let message = format!("{ranks} ranks, but {MAX_RANKS} are the most that share a model out");
                return Err(Diagnostic::new("config::ranks", message).at(option));
            }
        }
        if stages > config.layers.len() {
            let message = format!("{stages} stages, but the model has {} layers", config.layers.len());
            return Err(Diagnostic::new("config::stages", message).at("--pp"));
        }
        for (several, option) in [(expert_ranks > 1, "--ep"), (stages > 1, "--pp")] {
            if config.streams.is_some() && several {
                let message = "experts by token and several streams in place of one row are shared out by --tp alone";
                return Err(Diagnostic::new("config::ranks", message).at(option));
            }
        }
        let is_shared = |layer: &Layer| layer.half::<Attention>().is_some_and(|attention| attention.shared.is_some());
        if stages > 1 && config.layers.iter().any(is_shared) {
            let message = "layers that see the keys of others are shared out by --tp alone";
            return Err(Diagnostic::new("config::ranks", message).at("--pp"));
        }
        if expert_ranks > 1 {
            self.check_experts(config)?;
        }
        let fault = |what: String| {
            Diagnostic::new("config::ranks", format!("{what} cannot be shared out among {ranks} ranks")).at("--tp")
        };
        let layers = config.layers.iter().map(|layer| share(layer, ranks)).collect::<Result<_, _>>().map_err(fault)?;
        Ok(Config { layers, ..config.clone() })
    }

    /// Checks that there are experts to hold for each rank, and ranks of one kind.
    fn check_experts(self, config: &Config) -> Result<(), Diagnostic> {
        let Part { ranks, expert_ranks, .. } = self;
        let fault = |message: String| Err(Diagnostic::new("config::ranks", message).at("--ep"));
        if ranks > 1 && ranks != expert_ranks {
            return fault(format!("{expert_ranks} ranks hold experts, but --tp has {ranks}: as many, or 1"));
        }
        let counts = config.layers.iter().filter_map(|layer| layer.half::<Experts>()).map(|experts| experts.count);
        match counts.min() {
            None => fault("the model has no experts".to_string()),
            Some(count) if count < expert_ranks => {
                fault(format!("{count} experts cannot be shared out among {expert_ranks} ranks"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Parts of a head's weight: all ranks have all of it where it is not a multiple, or is the
    /// embedding as well.
    pub fn parts_of_vocab(self, config: &Config) -> usize {
        if !config.tied && config.vocab.is_multiple_of(self.ranks) { self.ranks } else { 1 }
    }
}

/// One rank's share of a layer, or what of it cannot be shared out.
fn share(layer: &Layer, ranks: usize) -> Result<Layer, String> {
    let half = |half: &Half| {
        let kind = of_kind!(&half.kind, of => of.share(ranks)?.into());
        Ok(Half { kind, ..half.clone() })
    };
    Ok(Layer { halves: layer.halves.iter().map(half).collect::<Result<_, String>>()?, scalar: layer.scalar })
}
