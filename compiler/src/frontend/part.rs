//! What of a step an artifact is to compute: one rank's share of the model, with its own attention or the caller's.
use atomc_artifact::check::MAX_RANKS;
use atomc_artifact::manifest::Attention;
use atomc_ir::Diagnostic;

use super::Config;

/// One rank's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ranks that share the model out: heads, and the rows between the MLP's two ends.
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
        let fault = |what: &str| {
            Err(Diagnostic::new("config::ranks", format!("{what} cannot be shared out among {ranks} ranks")).at("--tp"))
        };
        if ranks > MAX_RANKS {
            let message = format!("{ranks} ranks, but {MAX_RANKS} are the most that share a model out");
            return Err(Diagnostic::new("config::ranks", message).at("--tp"));
        }
        let whole = |size: usize| ranks >= 1 && size.is_multiple_of(ranks);
        let Config { heads, kv_heads, intermediate, .. } = *config;
        if !whole(heads) {
            return fault(&format!("{heads} attention heads"));
        }
        if !whole(kv_heads) && !ranks.is_multiple_of(kv_heads) {
            return fault(&format!("{kv_heads} heads of keys and values"));
        }
        if !whole(intermediate) {
            return fault(&format!("an intermediate size of {intermediate}"));
        }
        Ok(Config {
            heads: heads / ranks,
            kv_heads: kv_heads / self.parts_of_kv(config),
            intermediate: intermediate / ranks,
            ..config.clone()
        })
    }

    /// Parts of a head's weight: all ranks have all of it where it is not a multiple, or is the embedding as well.
    pub fn parts_of_vocab(self, config: &Config) -> usize {
        if !config.tied && config.vocab.is_multiple_of(self.ranks) { self.ranks } else { 1 }
    }

    /// Parts of keys and values: where there are fewer heads of them than ranks, several ranks have the same one.
    pub fn parts_of_kv(self, config: &Config) -> usize {
        self.ranks.min(config.kv_heads)
    }
}
