//! A tower, which makes rows of embeddings of images, and what steps are given that take such rows.
use serde::{Deserialize, Serialize};

use super::{DType, Model, Target, TensorNames};

/// A model of its own within an artifact: patches of images in, rows of embeddings out. Its steps
/// are those of an engine of its own, with patches for tokens and an image for a sequence; the rows
/// that become one are its logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tower {
    /// How an image becomes patches.
    pub tiling: Tiling,
    /// The token that stands for a row of an image.
    pub image_token: u32,
    /// What stands behind the tokens of each row of an image, and of its last row, in the words of
    /// the model's tokenizer, if something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<[String; 2]>,
    /// What a prompt has for an image, and what is put in its place, if that is more than its
    /// token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
    /// Whether the tokens of an image see each other, also those that come after them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
    /// Blocks as layers, numbers of a row as the vocabulary, and as positions the patches of the
    /// largest image.
    pub model: Model,
    /// Tensors of checkpoints that are not the tower's.
    pub tensors: TensorNames,
    /// As many as the artifact has, in the same order.
    pub targets: Vec<Target>,
}

/// Texts around an image in a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// What templates write for an image.
    pub mark: String,
    /// What is written before and behind the image's token in the place of that.
    pub around: [String; 2],
}

impl Tower {
    /// Pixels of the largest image.
    pub fn pixels(&self) -> usize {
        self.model.max_positions * self.tiling.patch * self.tiling.patch
    }
}

/// How an image becomes patches, and these become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Numbers of a pixel.
    pub channels: usize,
    /// How often an image is repeated in a patch.
    pub frames: usize,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Patches of the side of what becomes one row.
    pub merge: usize,
    /// The patches of a side of every image, if all images have as many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<usize>,
    /// Rows, and columns, of the table of positions, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<usize>,
}

impl Tiling {
    /// Numbers of a patch.
    pub fn numbers(&self) -> usize {
        self.channels * self.frames * self.patch * self.patch
    }
}

/// Rows of numbers that a step is given beside its tokens, in a buffer of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// Type of the numbers.
    pub dtype: DType,
    /// Numbers of a row, without padding.
    pub width: usize,
    /// Numbers from one row to the next; those behind the width are zero.
    pub stride: usize,
    /// Rows that there is room for: those of the largest plan, and what kernels read beyond them.
    pub rows: usize,
    /// The rows of a table that a token has shares of, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taps: Option<Taps>,
}

/// Rows of a table that each token has a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taps {
    /// How many.
    pub count: usize,
    /// Shares from one token to the next; those behind the count are zero.
    pub stride: usize,
}
