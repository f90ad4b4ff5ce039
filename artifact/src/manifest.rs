//! What an artifact says about itself: a plain serde value, written as JSON in the first section.
//!
//! The compiler writes every stride, offset and count that a loader needs, so that the runtime
//! obeys and never derives.
mod expr;
mod kernels;
mod names;
mod plans;
mod signature;
mod stages;
mod states;
mod tower;
mod weights;

pub use atomc_dtype::step::BOOK_BLOCKS;
pub use atomc_dtype::{DType, Encode, Encoded, Fact, Order, STAR, TEXT, WORD, Whole, code, nth_name, places};
pub use expr::{Sources, WeightExpr};
pub use kernels::{
    Chip, EXCHANGE, Extent, Kernel, KernelDef, LoopReport, Module, PACK, PREPARE, Parts, Resources, Tasks, Variant,
};
pub use names::{Ignored, Pattern, Renamed, TensorNames, Tied};
pub use plans::{Arg, Attention, Call, Chosen, Input, Launch, Logits, NamedRows, Picks, Place, Plan, PlanKind, Work};
use serde::{Deserialize, Serialize};
pub use signature::{Signature, is_state};
pub use states::{PageStream, Paged, Slots, State, StateGroup, StreamLayout};
pub use tower::{Given, Taps, Tiling, Tower, Written};
pub use weights::{Layout, Weight};

/// Everything but the code: what shaped the artifact, and for each target the weights it wants and
/// the steps it can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The atomc version that wrote the file.
    pub producer: String,
    /// Every option and model fact that shaped the artifact, echoed. Its hash is the compile key.
    pub config: serde_json::Value,
    /// What runs of the model: sizes, and tokens that end an answer.
    pub model: Model,
    /// Names of tensors in checkpoints, in addition to those in the targets' weight plans.
    pub tensors: TensorNames,
    /// Ranks that share the model out, each of which runs this artifact with its shards of the
    /// weights; 1 for none.
    pub tensor_parallel: usize,
    /// Ranks that hold some of the experts each, whole, and run this artifact as those of
    /// `tensor_parallel` do, which are as many or 1; 1 for none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert_parallel: usize,
    /// Stages of layers, each of which that many ranks share out; 1 for none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pipeline_parallel: usize,
    /// Room for LoRA adapters; none if there is no such room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Adapters>,
    /// At least one; their names differ.
    pub targets: Vec<Target>,
    /// What makes rows of images, if the artifact has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tower: Option<Tower>,
}

/// Room for LoRA adapters: weights of their own, which are read by the numbers of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapters {
    /// How many there may be at once.
    pub slots: usize,
    /// The largest rank of one.
    pub rank: usize,
}

impl Adapters {
    /// What names of the wide matrices of modules end with, of all slots.
    pub const WIDE: &str = ".lora_A.weight";
    /// What names of the tall matrices end with.
    pub const TALL: &str = ".lora_B.weight";
    /// The weight of each slot.
    pub const WEIGHTS: &str = "adapters.weights";
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Manifest {
    /// How many ranks share a stage of the model out, in whichever way.
    pub fn ranks(&self) -> usize {
        self.tensor_parallel.max(self.expert_parallel)
    }

    /// How many devices the model takes: one for each rank of each stage.
    pub fn devices(&self) -> usize {
        self.ranks() * self.pipeline_parallel
    }

    /// The compile key: the hash of the producer and of everything that shaped the artifact.
    pub fn key(&self) -> String {
        // Programs differ in whether they keep the order of fields.
        let mut config = self.config.clone();
        config.sort_all_objects();
        let text = format!("{}\n{config}", self.producer);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// Facts of the model that every program that runs it needs, the same for all targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// As `config.json` names it, e.g. `Qwen3ForCausalLM`.
    pub architecture: String,
    /// Layers of the decoder, of all ranks alike.
    pub layers: usize,
    /// Numbers of a token between layers.
    pub hidden: usize,
    /// Token ids are below this. It is also the width of a row of logits, over all ranks.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub max_positions: usize,
    /// Token ids that end an answer, from `config.json` and, if it is in the same folder,
    /// `generation_config.json`.
    pub stop: Vec<u32>,
    /// The token that a prompt begins with, if the model's files name one.
    pub bos: Option<u32>,
}

/// One target: code variants, and what is common to them. Targets differ in how they lay out
/// weights and states, so each has its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// `host`, `gfx942`, …
    pub name: String,
    /// Whether the bits of a row do not depend on what else is in its step, nor on the plan.
    #[serde(default, skip_serializing_if = "is_false")]
    pub invariant: bool,
    /// Paddings and sizes that hold for all its kernels.
    pub layout: DataLayout,
    /// By the number that arguments use.
    pub weights: Vec<Weight>,
    /// By the number that arguments use.
    pub states: Vec<State>,
    /// The kinds of state, each with a table of its own in a step.
    pub groups: Vec<StateGroup>,
    /// The buffer between the body and the head of a plan.
    pub hidden: Hidden,
    /// What guesses tokens for the model to verify, if the artifact has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<Draft>,
    /// Rows of numbers that its steps are given, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
    /// By the kernel number that launches use.
    pub kernels: Vec<KernelDef>,
    /// Best first: the loader takes the first one with features that the device has.
    pub variants: Vec<Variant>,
    /// In the order in which a runtime should consider them.
    pub plans: Vec<Plan>,
}

/// The properties that all plans of a draft share. A draft is a small model that guesses tokens
/// after a sequence. A step of it takes, for each token, a row that the model or an earlier step of
/// the draft has left, and the token after that; it has positions, states and tables as the model's
/// steps do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// Rows for the draft, in the buffer of the hidden rows: those that its own plans leave, one
    /// for each row of logits.
    pub rows: DraftRows,
    /// Tokens that it guesses among.
    pub vocab: usize,
    /// The tensor that says how far the model's number of each of its tokens is from its own, if
    /// they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// For a draft with weights in a checkpoint of their own: prefixes of names there, and their
    /// replacements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<Vec<Renamed>>,
}

impl Draft {
    /// Whether its weights lie in a checkpoint of their own.
    pub fn is_apart(&self) -> bool {
        self.renamed.is_some()
    }
}

/// Where rows for a draft lie in the buffer of the hidden rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftRows {
    /// Bytes from the buffer's beginning to row 0, which the draft's own plans leave first.
    pub offset: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The row that the model's plans leave first, one for each of their tokens.
    pub model: usize,
    /// The first of those that the engine keeps, one for each of some sequences, and how many.
    pub kept: usize,
    /// How many there are of these.
    pub keeps: usize,
}

impl Target {
    /// Bytes of workspace that serve all kernels, whatever the variant.
    pub fn workspace(&self) -> usize {
        self.variants.iter().flat_map(|variant| &variant.kernels).map(|kernel| kernel.workspace).max().unwrap_or(0)
    }
}

impl Target {
    /// Whether a plan has kernels for the few rows of decode steps. Their results have no spare
    /// rows.
    pub fn is_for_few(&self, plan: &Plan) -> bool {
        plan.kind.is_few() && !self.invariant
    }

    /// The group of a state.
    pub fn group(&self, state: usize) -> &StateGroup {
        &self.groups[self.states[state].group]
    }

    /// Most guesses after a token that a step verifies.
    pub fn most_guesses(&self) -> usize {
        self.plans.iter().filter_map(|plan| plan.kind.each()).max().unwrap_or(1) - 1
    }

    /// The type of what pages hold: where there are none a caller keeps keys, of the hidden rows'
    /// type.
    pub fn cache_dtype(&self) -> DType {
        let paged = self.groups.iter().find_map(|group| match group {
            StateGroup::Paged(pages) => pages.streams.first(),
            StateGroup::Slots(_) => None,
        });
        paged.map_or(self.hidden.dtype, |stream| stream.dtype)
    }

    /// Whether it keeps slots of sequences, in addition to pages.
    pub fn has_slots(&self) -> bool {
        self.groups.iter().any(|group| matches!(group, StateGroup::Slots(_)))
    }

    /// The hash of the plan of weights: packed weights fit every target of the same name and key.
    pub fn weights_key(&self) -> String {
        let text = serde_json::to_string(&self.weights).expect("a plan of weights is JSON");
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// The layout of kernels' operands and results. Loaders need only weights and states, which have
/// their own; this is for readers of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataLayout {
    /// Rows of activations are padded with zeros to a multiple of this many elements.
    pub row: usize,
    /// Rows that would be a multiple of this many elements apart are `row` elements further apart.
    pub alias: usize,
    /// Results have room for a multiple of this many rows, but for those of plans of kind `decode`.
    pub rows: usize,
    /// Rows in a panel of a page.
    pub panel: usize,
    /// Bytes of a row's group of columns in a panel.
    pub group_bytes: usize,
    /// Tokens in a page.
    pub block_tokens: usize,
    /// Bytes that kernels may read beyond a buffer.
    pub align: usize,
}

/// Rows between the body of a step and its head, one for each token, in a buffer of their own:
/// `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hidden {
    /// Type of the numbers.
    pub dtype: DType,
    /// Numbers of a token, without padding: [`Model::hidden`].
    pub width: usize,
    /// Elements from one token to the next.
    pub stride: usize,
    /// Size of the buffer: room for the tokens of every plan, and for what kernels write beyond
    /// them.
    pub bytes: usize,
}
