//! From a Hugging Face model folder to the graph of one step.
mod config;
mod dense;
mod fields;
mod part;
mod rope;

use std::path::{Path, PathBuf};

use atomc_ir::{Diagnostic, Graph};

pub use config::{Config, DTYPES, FAMILIES};
pub use fields::MAX_SIZE;
pub use part::Part;
pub use rope::Rope;

/// The configuration in a model folder, or in a `config.json` itself.
pub fn read(path: &Path) -> Result<Config, Diagnostic> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let text = text(&file)?;
    let beside = file.with_file_name("generation_config.json");
    let generation = if beside.exists() { Some(self::text(&beside)?) } else { None };
    Config::parse(&text, generation.as_deref())
}

/// The graph of a model of this configuration.
pub fn graph(config: &Config) -> Result<Graph, Diagnostic> {
    graph_of(config, Part::default())
}

/// The graph of a part of it.
pub fn graph_of(config: &Config, part: Part) -> Result<Graph, Diagnostic> {
    dense::graph(config, part)
}

fn text(file: &PathBuf) -> Result<String, Diagnostic> {
    std::fs::read_to_string(file).map_err(|e| {
        Diagnostic::new("config::read", format!("cannot be read: {e}"))
            .at(file.display().to_string())
            .help("Give a model folder with a config.json, or the config.json itself.")
    })
}

#[cfg(test)]
mod tests;
