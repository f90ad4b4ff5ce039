//! What layers keep between steps, in groups with a table each.
use serde::{Deserialize, Serialize};

use super::{DType, Extent};

/// What a layer keeps between steps. Arguments name states by their place in
/// [`Target::states`](super::Target::states).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Number of the state's layer, from 0 on.
    pub layer: usize,
    /// Index into [`Target::groups`](super::Target::groups).
    pub group: usize,
}

/// States of one kind. Sequences have one table for all states of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateGroup {
    /// A sequence has a page for every
    /// [`DataLayout::block_tokens`](super::DataLayout::block_tokens) of its tokens, or of its
    /// blocks of [`Paged::every`] tokens.
    Paged(Paged),
    /// A sequence has some slots, whatever its length. They count as zeros when it begins, and
    /// every step replaces some.
    Slots(Slots),
}

/// How far pages lie apart is [`crate::abi::Batch::block_stride`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paged {
    /// Bytes of a page.
    pub block_bytes: usize,
    /// The streams of a page, one after the other, with an entry for each token: K and V of
    /// attention.
    pub streams: Vec<PageStream>,
    /// Keys that a token sees at most, itself among them; 0 for all. Pages that lie further back
    /// are not read.
    pub window: usize,
    /// Tokens that have an entry together: a page has entries of this many times as many tokens.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub every: usize,
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

impl Paged {
    /// The bytes of a page that the weights of tokens are multiplied with. Kernels give tokens that
    /// do not exist yet the weight zero, but zero times what an earlier owner left may be NaN, so a
    /// page that is not full is cleared here first.
    pub fn values(&self) -> std::ops::Range<usize> {
        let values = self.streams.iter().filter_map(|stream| match stream.layout {
            StreamLayout::Tokens => None,
            StreamLayout::Numbers => Some(stream.at),
            StreamLayout::Prefix { of } => Some(self.streams[of].at),
        });
        values.fold(self.block_bytes..0, |all, at| all.start.min(at.start)..all.end.max(at.start + at.bytes))
    }
}

/// Slots of this size for each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// Bytes of a slot.
    pub bytes: usize,
    /// Tokens of a sequence in a step up to which the state behind each is kept, and behind the
    /// last one if they are more. If it is more than one, a sequence's table begins with the slot
    /// that the step goes on from, and has a slot for the state behind each token after it; the
    /// first of those is for the state behind the last token if it alone is kept. Otherwise one
    /// slot is for both. A state is not kept where the slot's number is -1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub each: usize,
}

/// A part of a page: `width` numbers of each of `heads` heads, for each token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageStream {
    /// `k` or `v`.
    pub name: String,
    /// Where it lies in a page.
    pub at: Extent,
    /// Type of the numbers, to which they are rounded when a token is written.
    pub dtype: DType,
    /// Key/value heads of this rank.
    pub heads: usize,
    /// Numbers of a head, without padding.
    pub width: usize,
    /// How tokens and numbers lie in the part.
    pub layout: StreamLayout,
}

/// How a stream lies in its part of a page: head after head, each a matrix in panels of
/// [`DataLayout::panel`](super::DataLayout::panel) rows and groups of
/// [`DataLayout::group_bytes`](super::DataLayout::group_bytes), widths padded to
/// [`DataLayout::row`](super::DataLayout::row).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StreamLayout {
    /// A row for each token: what queries are multiplied with.
    Tokens,
    /// A row for each number: what the weights of tokens are multiplied with.
    Numbers,
    /// The first numbers of each row of another stream, which has the layout `tokens`, and nothing
    /// else.
    Prefix {
        /// Index of the other stream, which comes earlier.
        of: usize,
    },
}
