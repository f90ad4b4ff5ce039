//! From a configuration to the graph of one step.
mod attention;
mod layer;
mod mlp;
mod model;
mod part;

use atomc_ir::{Diagnostic, Graph};

pub use atomc_config::{Activation, Config, DTYPES, FAMILIES, MAX_SIZE, QkNorm, read};
pub use part::Part;

/// The graph of a model of this configuration.
pub fn graph(config: &Config) -> Result<Graph, Diagnostic> {
    graph_of(config, Part::default())
}

/// The graph of a part of it.
pub fn graph_of(config: &Config, part: Part) -> Result<Graph, Diagnostic> {
    model::graph(config, part)
}

#[cfg(test)]
mod tests;
