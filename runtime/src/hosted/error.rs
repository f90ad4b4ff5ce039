use crate::checkpoint::{list, tensors};
use crate::device::DeviceError;
use crate::tower::TowerError;

/// Why a framework's request was refused. Nothing has run then, unless the device failed. Fields
/// are named as in the request.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum HostedError {
    #[error("rank: {rank}, but the artifact is for {ranks}, which count from 0")]
    Rank { rank: usize, ranks: usize },
    #[error("attention: target `{target}` has no plans that leave it to `{wanted}`; compile with --attention {wanted}")]
    Attention { target: String, wanted: &'static str },
    #[error(
        "target `{target}` keeps rows of blocks of {every} tokens, for which frameworks have no pages: `atomc run` and `atomc serve` run it"
    )]
    Blocks { target: String, every: usize },
    #[error(
        "target `{target}` was compiled with --tower, for prompts with images, which the framework does not give for it: `atomc run` and `atomc serve` run it"
    )]
    Tower { target: String },
    #[error("draft: {0}")]
    Draft(&'static str),
    #[error("device: {device} has no kernel that makes a step's inputs of a framework's tensors")]
    Prepare { device: String },
    #[error("allocate: {detail}")]
    Allocate { detail: String },
    #[error("loading: {0}")]
    Loading(&'static str),
    #[error("the weights are not loaded")]
    NoWeights,
    #[error("the weights are not loaded yet: {} to come: {}", tensors(names.len()), list(names))]
    Waiting { names: Vec<String> },
    #[error(
        "an update of the weights failed when some were new: all have to come again; {} to come: {}",
        tensors(names.len()),
        list(names)
    )]
    Mixed { names: Vec<String> },
    #[error("the pages of the cache are not bound")]
    NoCache,
    #[error("states: pages of {found:?}, but the model keeps {want}, which want pages once each")]
    States { found: Vec<usize>, want: usize },
    #[error("{field}: {detail}")]
    Field { field: &'static str, detail: String },
    #[error("tokens: {tokens} in a step, but no plan takes more than {max}")]
    Tokens { tokens: usize, max: usize },
    #[error("rows: {rows} at once, but no plan takes more than {max}")]
    Rows { rows: usize, max: usize },
    #[error("sequence {sequence}: {field}: {detail}")]
    Sequence { sequence: usize, field: &'static str, detail: String },
    #[error("the artifact has no place for embeddings")]
    NoEmbedding,
    #[error("images: the tower was not opened")]
    NoTower,
    #[error(transparent)]
    Image(#[from] TowerError),
    #[error(
        "hidden: no rows are called `{name}`; the artifact has {}: `atomc compile --hidden` names layers",
        quoted(known)
    )]
    Hidden { name: String, known: Vec<String> },
    #[error("hidden: the rows of no step are there: run its body to the end, and read them before anything else runs")]
    NotDone,
    #[error("run: no step is under way; begin one, and again after weights were loaded or unloaded")]
    NoStep,
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn quoted(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}
