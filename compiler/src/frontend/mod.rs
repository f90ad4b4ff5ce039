//! From a configuration to the graph of one step.
mod asked;
mod attention;
mod delta;
mod experts;
mod latent;
mod layer;
mod mlp;
mod model;
mod part;
mod product;

use atomc_ir::{Diagnostic, Graph};

pub use atomc_config::{Activation, Config, DTYPES, FAMILIES, FeedForward, InputScales, MAX_SIZE, Mixer, QkNorm, read};
pub(crate) use model::{HEAD, embedding};
pub use part::Part;

/// The graph of a model of this configuration.
pub fn graph(config: &Config) -> Result<Graph, Diagnostic> {
    graph_of(config, Part::default())
}

/// The graph of a part of it.
pub fn graph_of(config: &Config, part: Part) -> Result<Graph, Diagnostic> {
    graph_with(config, part, &[])
}

/// The same with further results: `hidden.2` are the rows of all tokens that enter layer 2.
pub fn graph_with(config: &Config, part: Part, hidden: &[usize]) -> Result<Graph, Diagnostic> {
    let graph = model::graph(config, part, hidden)?;
    asked::check(config, &graph)?;
    Ok(graph)
}

#[cfg(test)]
mod tests;
