//! The meaning of a `config.json`: its facts with every default. The compiler makes a graph of
//! them. Users of an artifact compare them with the configuration that it was made of.
//!
//! `model.rs` has the model as a list of layers, each of halves, whose kinds are the rows of
//! `kind.rs`. Their facts are in `attention.rs` (with `blocks.rs`), `latent.rs`, `pooled.rs`,
//! `delta.rs`, `conv.rs`, `mlp.rs`, `experts.rs` and `own_rows.rs`, factors in `scales.rs`, and
//! streams in `streams.rs`. `rope.rs` and `freqs.rs` are rotary embeddings. `family.rs` is the
//! table of architectures. `draft.rs` has the models that guess tokens.
//!
//! `fields.rs` reads: every fault names its field, and each fact is noted when it is read.
//! `quantised.rs`, with a file for each method, gives the encoding of a module's weight. `diag.rs`
//! is a user's fault as one value. `compare.rs` lists the facts in which two models differ.
//!
//! `framework.rs` has the parts that are the same for the options of all frameworks, and their form
//! on a command line. `vllm/` and `sglang/` have the table of each framework and its rules.
//! `vllm/settings.rs` is the environment.
mod attention;
mod blocks;
mod compare;
mod conv;
mod delta;
mod diag;
pub mod draft;
mod experts;
mod family;
mod fields;
mod growth;
mod halves;
mod kind;
mod latent;
mod mlp;
mod model;
mod others;
mod own_rows;
mod pooled;
mod quantised;
mod rope;
mod scales;
mod streams;

pub mod framework;
pub mod freqs;
pub mod sglang;
mod ssm;
mod vision;
pub mod vllm;

use std::path::{Path, PathBuf};

pub use atomc_dtype::{DType, Order};
pub use attention::{Attention, GatedBy, QkNorm};
pub use blocks::BlockChoice;
pub use compare::{Difference, differences};
pub use conv::ShortConv;
pub use delta::{ByChannel, Delta, Product, StoredDelta, StoredLog};
pub use diag::Diagnostic;
pub use draft::{Draft, Fusion, Head, Mtp};
pub use experts::{Apart, Correction, Experts, Router, Score, ShortRow, StoredExperts, WholeExperts};
pub use family::{FAMILIES, Family};
pub use fields::{Facts, MAX_SIZE};
pub use growth::Growth;
pub use kind::{Half, Kind, Norms};
pub use latent::{Indexer, Latent, Positions};
pub use mlp::{Activation, Gate, Gated};
pub use model::{Adapters, Bound, Config, DTYPES, Layer};
pub use others::OtherPart;
pub use own_rows::{OwnRow, OwnRows};
pub use pooled::{Pooled, PooledBlocks};
pub use quantised::{
    Axes, Blocks, CacheScales, InputScales, Inputs, Levels, Modules, Named, Quantisation, Scheme, Stored, Told, starred,
};
pub use rope::{Rope, Short};
pub use scales::Scales;
pub use ssm::{GroupNorm, Ssm};
pub use streams::Streams;
pub use vision::{Merger, Module, Prompt, Queries, Seeing, Style, Turned, Vision};

/// The configuration in a model folder, or in a `config.json` itself.
pub fn read(path: &Path) -> Result<Config, Diagnostic> {
    let file = file(path);
    let text = text(&file)?;
    let beside = file.with_file_name("generation_config.json");
    let generation = if beside.exists() { Some(self::text(&beside)?) } else { None };
    let beside = file.with_file_name(MODELOPT);
    let text = if beside.exists() { with_quantisation(text, &self::text(&beside)?)? } else { text };
    Config::parse(&text, generation.as_deref())
}

/// The file that ModelOpt writes beside a `config.json`, which may say nothing of it.
const MODELOPT: &str = "hf_quant_config.json";

/// A configuration with what that file says of its quantisation, if it says nothing itself.
fn with_quantisation(config: String, beside: &str) -> Result<String, Diagnostic> {
    let mut all = fields::parse("config.json", &config)?;
    if all.contains_key("quantization_config") {
        return Ok(config);
    }
    let mut own = fields::parse(MODELOPT, beside)?;
    own.insert("quant_method".into(), "modelopt".into());
    all.insert("quantization_config".into(), own.into());
    Ok(serde_json::Value::Object(all).to_string())
}

/// The `config.json` of a folder, or the file itself.
fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("config.json") } else { path.to_path_buf() }
}

fn text(file: &PathBuf) -> Result<String, Diagnostic> {
    // A pipe would wait for a writer that may never come.
    let check = |found: std::fs::Metadata| match found.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("not a regular file")),
    };
    std::fs::metadata(file).and_then(check).and_then(|()| std::fs::read_to_string(file)).map_err(|e| {
        Diagnostic::new("config::read", format!("cannot be read: {e}"))
            .at(file.display().to_string())
            .help("Give a model folder with a config.json, or the config.json itself.")
    })
}

#[cfg(test)]
mod tests;
