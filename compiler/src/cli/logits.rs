//! `atomc logits`: the raw output of the model, to compare with anything.
use std::path::{Path, PathBuf};

use atomc_artifact::files;
use atomc_runtime::{Engine, Request, Want};
use safetensors::tensor::{Dtype, TensorView};

use super::engine::EngineArgs;
use super::failure::Failure;
use super::output;
use super::progress::{Progress, Unit};

/// Write the logits of every position of token sequences
#[derive(clap::Args)]
#[command(after_help = "\
The output holds one f32 tensor for each sequence, \"0\", \"1\", …, of shape [tokens, vocabulary].

Example:
  echo '[[1, 2, 3], [4, 5]]' > ids.json
  atomc logits m.atomc --weights models/qwen3 --tokens ids.json -o logits.safetensors")]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// JSON file with a list of lists of token ids
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Feed each sequence in pieces of N tokens; 0 feeds it whole
    #[arg(long, value_name = "N", default_value_t = 0)]
    chunk: usize,
    /// The safetensors file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    output::check(&args.output)?;
    let artifact = args.engine.artifact()?;
    let rows = read(&args.tokens)?;
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let most = artifact.manifest().model.max_positions;
    if let Some(index) = rows.iter().position(|row| row.len() > most) {
        let message = format!("sequence {index} has {} tokens, more than the artifact's {most}", rows[index].len());
        return Err(Failure::file("tokens", &args.tokens, message));
    }
    let mut engine = args.engine.engine(artifact, [longest], false)?;
    let progress = Progress::new("computing logits", Unit::Pieces);
    let mut all = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        all.push(logits(&mut engine, row, args.chunk)?);
        progress.at(index as u64 + 1, rows.len() as u64);
    }
    drop(progress);
    write(&args.output, &rows, engine.model().vocab, &all)
}

fn read(path: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let text = files::read(path).map_err(|e| Failure::file("tokens", path, e))?;
    let rows: Vec<Vec<u32>> = serde_json::from_slice(&text).map_err(|e| {
        Failure::file("tokens", path, e).help("It must hold a list of lists of token ids: [[1, 2, 3], [4, 5]].")
    })?;
    match rows.iter().position(Vec::is_empty) {
        Some(empty) => Err(Failure::file("tokens", path, format!("sequence {empty} has no tokens"))),
        None => Ok(rows),
    }
}

/// Bytes of the logits of one sequence.
fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Result<Vec<u8>, Failure> {
    let sequence = engine.add_sequence();
    let mut bytes = Vec::with_capacity(tokens.len() * engine.model().vocab * size_of::<f32>());
    for tokens in tokens.chunks(if chunk == 0 { tokens.len() } else { chunk }) {
        let logits = engine.step(&[Request { sequence, tokens, logits: Want::All }])?;
        bytes.extend(logits.of(0).flatten().flat_map(|value| value.to_le_bytes()));
    }
    engine.drop_sequence(sequence)?;
    Ok(bytes)
}

fn write(path: &Path, rows: &[Vec<u32>], vocab: usize, all: &[Vec<u8>]) -> Result<(), Failure> {
    let fault = |error| Failure::file("output", path, error);
    let mut views = Vec::with_capacity(all.len());
    for (index, (row, bytes)) in rows.iter().zip(all).enumerate() {
        let view = TensorView::new(Dtype::F32, vec![row.len(), vocab], bytes).map_err(fault)?;
        views.push((index.to_string(), view));
    }
    output::write(path, &safetensors::serialize(views, None).map_err(fault)?)
}
