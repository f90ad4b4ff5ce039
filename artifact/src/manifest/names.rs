//! Tensors of a checkpoint in addition to those of the weight plan, and other spellings of names.
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Names of tensors in the checkpoints that fit an artifact, in addition to those of the weight
/// plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorNames {
    /// Beginnings of names that some writers use in the place of the plan's. The first that fits
    /// counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub renamed: Vec<Renamed>,
    /// Tensors that the artifact does not read, by the plan's spelling.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<Ignored>,
    /// Of a model with a tied head: the head's tensor, which a checkpoint may have as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tied: Option<Tied>,
}

/// Another spelling: what follows the beginning is the same in both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renamed {
    /// The beginning in the checkpoint.
    pub from: String,
    /// The beginning in the plan.
    pub to: String,
}

/// Tensors of a part of the model that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    /// The part in a few words, for people.
    pub part: String,
    /// Which tensors are its.
    pub names: Pattern,
}

/// Names of tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// All that begin like this.
    Begin(String),
    /// All that end like this.
    End(String),
}

/// A head that is the embedding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tied {
    /// The tensor of the embedding, which the plan has.
    pub embedding: String,
    /// The tensor of the head, which must be the same matrix where a checkpoint has it.
    pub head: String,
}

impl Pattern {
    /// Whether a name is one of these.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Pattern::Begin(text) => name.starts_with(text.as_str()),
            Pattern::End(text) => name.ends_with(text.as_str()),
        }
    }

    /// The pattern as text, with a star for what differs.
    pub fn text(&self) -> String {
        match self {
            Pattern::Begin(text) => format!("{text}*"),
            Pattern::End(text) => format!("*{text}"),
        }
    }
}

impl TensorNames {
    /// The plan's name of a tensor that the checkpoint has by this one.
    pub fn name<'a>(&self, stored: &'a str) -> Cow<'a, str> {
        let rest = |renamed: &Renamed| Some(format!("{}{}", renamed.to, stored.strip_prefix(renamed.from.as_str())?));
        self.renamed.iter().find_map(rest).map_or(Cow::Borrowed(stored), Cow::Owned)
    }

    /// What a tensor of this name, as the plan spells it, belongs to, if the artifact does not read
    /// it.
    pub fn ignored(&self, name: &str) -> Option<&Ignored> {
        self.ignored.iter().find(|ignored| ignored.names.has(name))
    }

    /// Whether the tensor is the head of a model that takes its embedding for it.
    pub fn is_tied_head(&self, name: &str) -> bool {
        self.tied.as_ref().is_some_and(|tied| tied.head == name)
    }

    /// Whether the tensor is the embedding of a model that takes it for its head.
    pub fn is_tied_embedding(&self, name: &str) -> bool {
        self.tied.as_ref().is_some_and(|tied| tied.embedding == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_writers_and_of_other_parts() {
        let renamed = |from: &str, to: &str| Renamed { from: from.into(), to: to.into() };
        let names = TensorNames {
            renamed: vec![renamed("language_model.model.", "model.language_model."), renamed("head.", "lm_head.")],
            ignored: vec![
                Ignored { part: "vision tower".into(), names: Pattern::Begin("visual.".into()) },
                Ignored { part: "table".into(), names: Pattern::End("inv_freq".into()) },
            ],
            tied: Some(Tied { embedding: "e".into(), head: "lm_head.weight".into() }),
        };
        assert_eq!(names.name("language_model.model.layers.0.x"), "model.language_model.layers.0.x");
        assert_eq!(names.name("language_model.modelx"), "language_model.modelx");
        assert!(names.is_tied_head(&names.name("head.weight")) && names.is_tied_embedding("e"));
        let part = |name| names.ignored(name).map(|ignored| ignored.part.as_str());
        assert_eq!(part("visual.a"), Some("vision tower"));
        assert_eq!(part("layers.0.inv_freq"), Some("table"));
        assert_eq!(part("a.visual.b"), None);
    }
}
