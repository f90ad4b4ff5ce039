//! From a configuration to the graph of one step.
//!
//! `model.rs` is the graph of a step. `attention.rs`, `latent.rs`, `pooled.rs`, `delta.rs`,
//! `conv.rs`, `mlp.rs`, `experts.rs` and `own_row.rs` are the graphs of a layer's halves, with the
//! rule by which ranks share each out. `layer.rs` has the parts that all halves are made of.
//! `product.rs` is a product with a weight, quantised or not, and `fitting.rs` says which a scheme
//! does not fit. `part.rs` is the part of a model that an artifact computes. `draft.rs` is the
//! graph of a draft's step, `tower.rs` that of a tower's, which makes rows of images, `streams.rs`
//! what goes through layers in place of one row.
mod asked;
mod attention;
mod conv;
mod delta;
mod draft;
mod experts;
mod fitting;
mod latent;
mod layer;
mod mlp;
mod model;
mod own_row;
mod part;
mod pooled;
mod product;
mod ssm;
mod streams;
pub mod tower;

use std::collections::BTreeMap;

use atomc_config::Draft;
use atomc_ir::{Diagnostic, Graph};

pub use atomc_config::{
    Activation, Config, DTYPES, Delta, FAMILIES, InputScales, MAX_SIZE, QkNorm, ShortConv, Ssm, Vision, read,
};
pub use draft::graph as draft_graph;
pub use fitting::Unfit;
pub(crate) use layer::Unit;
pub(crate) use model::{HEAD, embedding, units};
pub use part::Part;
pub(crate) use product::ADAPTERS;

/// The results that a step is to have in addition to its logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Rows of all tokens that enter these layers.
    pub hidden: &'a [usize],
    /// Rows of all tokens that this draft continues with.
    pub draft: Option<&'a Draft>,
    /// Most tokens of a sequence in steps that verify guesses; none if there are no such steps.
    pub verified: Option<usize>,
    /// The tower whose rows tokens may take.
    pub tower: Option<&'a Vision>,
}

/// The graph of a model of this configuration.
pub fn graph(config: &Config) -> Result<Graph, Diagnostic> {
    graph_of(config, Part::default())
}

/// The graph of a part of it.
pub fn graph_of(config: &Config, part: Part) -> Result<Graph, Diagnostic> {
    graph_with(config, part, Asked::default())
}

/// The graph with further results: `hidden.2` are the input rows of layer 2 for all tokens,
/// `drafted` those that a draft continues with.
pub fn graph_with(config: &Config, part: Part, asked: Asked) -> Result<Graph, Diagnostic> {
    config.check_context()?;
    let graph = model::graph(config, part, asked)?;
    asked::check(config, &graph)?;
    Ok(graph)
}

/// What a scheme for all products leaves of the model as it is, by modules with stars in place of
/// numbers.
pub fn left(config: &Config) -> Result<BTreeMap<String, Unfit>, Diagnostic> {
    match config.made.is_some() {
        true => Ok(fitting::left(config, &graph(config)?)),
        false => Ok(BTreeMap::new()),
    }
}

#[cfg(test)]
mod tests;
