//! Plans: the launches of a step, their arguments, and what the caller does between them.
use serde::{Deserialize, Serialize};
use std::ops::Range;

use super::DType;

/// One way to run a step: launches in order over one arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Which steps it can run.
    pub kind: PlanKind,
    /// Most tokens in one step.
    pub tokens: usize,
    /// Most rows of logits in one step.
    pub rows: usize,
    /// Size of the buffer in which values live between launches. Nothing in it outlives the step.
    pub arena_bytes: usize,
    /// The program that does the attention. An engine runs those plans of kind `decode`, `verify`
    /// and `whole` that do it themselves.
    pub attention: Attention,
    /// Whether it is a step of the draft and not of the model: its logits are of
    /// [`Draft::vocab`](super::Draft::vocab) tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
    /// In the order in which they run; each may need all before it.
    pub launches: Vec<Launch>,
    /// Launches before this one make the hidden rows of all tokens; from it on they make logits of
    /// the hidden rows that [`Input::Rows`] names, and read nothing else of the step.
    pub body: usize,
    /// What is the caller's to do between launches, in order; in the head nothing but to gather
    /// logits.
    pub calls: Vec<Call>,
    /// Rows of all tokens that the body leaves in the arena, in addition to
    /// [`Target::hidden`](super::Target::hidden), as the options of the compilation asked for:
    /// `hidden.2` is the input of layer 2. They stay until the next run. The same in every plan of
    /// a target that has a head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<NamedRows>,
    /// Where the logits are when the last launch has run.
    pub logits: Logits,
    /// The place of the likeliest tokens; without them, the reader looks through the logits.
    pub picks: Option<Picks>,
}

impl Plan {
    /// The logits of all ranks, when an engine has run the plan.
    pub fn whole_logits(&self) -> Logits {
        let gathered = self.calls.iter().find_map(|call| match call.work {
            Work::AllGather { whole: Place { offset, width, stride, .. }, .. } => {
                Some(Logits { offset, width, stride })
            }
            _ => None,
        });
        gathered.unwrap_or(self.logits)
    }

    /// Whether steps may have tokens with adapters.
    pub fn adapts(&self) -> bool {
        let reads = |arg: &Arg| matches!(arg, Arg::Input { which: Input::Adapters });
        self.launches.iter().any(|launch| launch.args.iter().any(reads))
    }

    /// The launches that make this rank's logits of hidden rows.
    pub fn head(&self) -> Range<usize> {
        let gathers = |call: &&Call| matches!(call.work, Work::AllGather { .. });
        self.body..self.calls.iter().find(gathers).map_or(self.launches.len(), |call| call.before)
    }
}

/// What a step must be like for a plan to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanKind {
    /// Exactly one token of each sequence.
    Decode,
    /// At most `each` tokens of each sequence, all with logits: its next token, and those that a
    /// draft guesses after it. There are at most [`Plan::tokens`] over `each` sequences.
    Verify {
        /// Most tokens of a sequence.
        each: usize,
    },
    /// Every mixture.
    Any,
    /// Every mixture, of which nothing but logits is wanted: there are no hidden rows, and all is
    /// body.
    Whole,
}

impl PlanKind {
    /// Whether its steps have few tokens.
    pub fn is_few(self) -> bool {
        self.each().is_some()
    }

    /// Most tokens of a sequence, where they are few.
    pub fn each(self) -> Option<usize> {
        match self {
            PlanKind::Decode => Some(1),
            PlanKind::Verify { each } => Some(each),
            PlanKind::Any | PlanKind::Whole => None,
        }
    }
}

/// The program that computes attention, and so keeps keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// The plan's kernels, over [`Target::states`](super::Target::states).
    Own,
    /// The caller of the plan, with a cache of its own: [`Work::Attention`].
    Caller,
}

/// Work of the caller's, due when all launches before `before` have run; launches from there on
/// need it done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Number of the first launch that needs it done.
    pub before: usize,
    /// What is to be done.
    pub work: Work,
}

/// Kinds of work that an artifact leaves to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Puts other rows in the place of the embeddings of tokens, in a step that has some; else
    /// there is nothing to do. The launches before read the tokens and nothing else of a step, and
    /// no other launch reads tokens.
    Embedding {
        /// The embeddings, of [`Model::hidden`](super::Model::hidden) numbers each.
        value: Place,
    },
    /// Sums a value over all ranks, in place.
    AllReduce {
        /// This rank's part of the sum before, the sum after.
        value: Place,
        /// What is added to the rounded sum, the same on all ranks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        added: Option<Place>,
    },
    /// Puts the rows of all ranks side by side: they are rows of logits. Only an engine needs it
    /// done: what follows in the head chooses tokens.
    AllGather {
        /// This rank's rows.
        part: Place,
        /// The rows of all, in the order of the ranks.
        whole: Place,
    },
    /// Hands rows on: a rank of the stage before has them, and the rank of the same number in this
    /// stage needs them. A rank runs the launches from the calls of its own stage to those of the
    /// next one.
    HandOn {
        /// The stage that begins here; the first one, 0, has no such call.
        stage: usize,
        /// Where the stage before has made them.
        made: Place,
        /// Where this stage reads them.
        taken: Place,
    },
    /// Puts `k` and `v`, of `heads` heads each, into the caller's cache and computes attention. `q`
    /// and `k` are normed and rotated, and a head of `q` is as wide as one of `k`. `window` counts
    /// the keys that a token sees, 0 for all. If the width of `out` is no multiple of
    /// [`DataLayout::row`](super::DataLayout::row), its padding up to that must be zero at the next
    /// launch, so the runtime clears the rows before the caller fills them.
    Attention {
        /// Number of the layer, which names the caller's cache.
        layer: usize,
        /// Key/value heads of this rank.
        heads: usize,
        /// Queries, head by head.
        q: Place,
        /// Keys of the step's tokens, head by head.
        k: Place,
        /// Values of the step's tokens, head by head.
        v: Place,
        /// Where the result goes, head by head.
        out: Place,
        /// Factor of the products of queries and keys.
        scale: f64,
        /// Keys that a token sees at most, itself among them; 0 for all.
        window: usize,
    },
}

/// A value of the arena that callers know by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRows {
    /// Differs from the names of the plan's other rows.
    pub name: String,
    /// Where it lies when the body has run.
    pub place: Place,
}

/// Where in the arena a value lies that has a row for each token of the step: `stride` elements
/// from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Where it begins in the arena, in bytes.
    pub offset: usize,
    /// Numbers of a row, without padding.
    pub width: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Type of the numbers.
    pub dtype: DType,
}

/// f32 logits in the arena: `rows` rows, `stride` elements apart, of all tokens of the vocabulary,
/// or of the part of it that the rank has: in order of the ranks the parts are all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logits {
    /// Where they begin in the arena, in bytes.
    pub offset: usize,
    /// Logits of a row that this rank has.
    pub width: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// i32 token ids in the arena: the likeliest of each of `rows` rows of logits, the lowest of
/// equals, `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picks {
    /// Where they begin in the arena, in bytes.
    pub offset: usize,
    /// Elements from one row's token to the next one's.
    pub stride: usize,
}

/// One kernel with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Index into the target's `kernels` and into each variant's.
    pub kernel: usize,
    /// Of the body's inputs in order, where a cache is two, K and V, and then of its results. New
    /// states have none: they are where the old ones are.
    pub args: Vec<Arg>,
    /// Which segment between attention boundaries this launch belongs to; boundaries have their own
    /// number.
    pub segment: usize,
    /// Module path of the model part, for reports, e.g. `model.layers.0.mlp`.
    pub location: String,
    /// Bytes that must move at the plan's full size, cache reads aside.
    pub bytes: u64,
    /// Operations at the plan's full size; the same holds for them as for `bytes`.
    pub flops: u64,
    /// Of a product with the weights of experts: what says which of them are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

/// The experts with weights that a launch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// Index of the argument that begins with the `i32` number of an expert, or -1, for each of
    /// `choices` rows of each token.
    pub argument: usize,
    /// Rows of each token.
    pub choices: usize,
    /// Bytes of the weights of one expert.
    pub bytes: u64,
    /// What the launch's `bytes` have of such weights: those of as many experts as a step chooses
    /// on average if all are chosen as often.
    pub counted: u64,
}

/// What one pointer of a kernel's argument array points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Arg {
    /// A value that lives between launches.
    Arena {
        /// Bytes from the arena's beginning.
        offset: usize,
    },
    /// The beginning of a weight's buffer.
    Weight {
        /// Index into [`Target::weights`](super::Target::weights).
        index: usize,
    },
    /// A stream of a paged state in its first page, or a state's first slot.
    State {
        /// Index into [`Target::states`](super::Target::states).
        state: usize,
        /// Index into [`Paged::streams`](super::Paged::streams); 0 for a slot.
        stream: usize,
    },
    /// One [`crate::abi::Batch`], with the table of the group that this state is of. All states of
    /// a launch are of that group.
    Batch {
        /// Index into [`Target::states`](super::Target::states).
        state: usize,
    },
    /// The rows of [`Target::hidden`](super::Target::hidden).
    Hidden,
    /// Rows for a draft, in the same buffer.
    Drafted {
        /// Bytes from the buffer's beginning.
        offset: usize,
    },
    /// What the caller gives for the step.
    Input {
        /// Which of them.
        which: Input,
    },
}

impl Arg {
    /// Where in the buffer of hidden rows it begins, if it lies there.
    pub fn in_hidden(self) -> Option<usize> {
        match self {
            Arg::Hidden => Some(0),
            Arg::Drafted { offset } => Some(offset),
            _ => None,
        }
    }
}

/// What the caller gives for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// `i32 [tokens]`: token ids.
    Ids,
    /// `i32 [tokens]`: position of each token in its sequence.
    Positions,
    /// `i32 [tokens]`: length of the token's sequence after this step.
    Lengths,
    /// `i32 [rows]`: which tokens want logits.
    Rows,
    /// `i32 [tokens]`: which row of [`Draft::rows`](super::Draft::rows) each token of a draft's
    /// step takes, or which of [`Input::Given`] one of the model's does, -1 for none.
    Sources,
    /// `i32 [tokens]`: the adapter of each token, below zero for none.
    Adapters,
    /// `i32 [tokens]`: the first of a token's three positions, where it has three: of its time.
    Times,
    /// `i32 [tokens]`: the second one: of its row in an image.
    Heights,
    /// `i32 [tokens]`: the third one: of its column in an image.
    Widths,
    /// `i32 [tokens]`: how many positions of its sequence each token sees: those up to its own, or
    /// up to the end of its image.
    Ends,
    /// `i32 [tokens, taps]`: rows of a table that a token has a share of.
    Taps,
    /// `f32 [tokens, taps]`: the share of each, in rows that are padded.
    Shares,
    /// The rows of [`Target::given`](super::Target::given).
    Given,
}
