//! `atomc pack`: a checkpoint as the weights that a target's kernels read.
use std::io::Write;
use std::path::PathBuf;

use atomc_runtime::adapters::WithAdapters;
use atomc_runtime::checkpoint::Beside;
use atomc_runtime::manifest::{Manifest, Target};
use atomc_runtime::weights::{Rank, packed};
use atomc_runtime::{Checkpoint, Error, Pool, Source, device, pool};

use super::engine::{ArtifactArgs, merged};
use super::failure::Failure;
use super::place::Place;
use super::shown;

/// Pack a checkpoint for a target, so that loading it is only copying
#[derive(clap::Args)]
#[command(after_help = "\
Writes one safetensors file for each rank of the artifact: weights.TARGET.safetensors, or weights.TARGET.1-of-2.safetensors and
so on. It serves every artifact of the same model, target and ranks, whatever its buckets. A folder of config.json, an artifact and
this file is all that `vllm serve --load-format atomc` needs.

Examples:
  atomc pack m.atomc --weights models/qwen3 -o packed
  atomc run m.atomc --weights packed/weights.host.safetensors --tokenizer models/qwen3 --prompt 'Q: …'")]
pub struct Args {
    #[command(flatten)]
    artifact: ArtifactArgs,
    /// Hugging Face folder with model.safetensors, or shards and their index; or a GGUF file.
    /// Nothing may write to them meanwhile: that is noticed, and an error
    #[arg(long, value_name = "PATH", value_parser = Place::parser())]
    weights: Place,
    /// Folder with the weights of the artifact's draft, where the model's checkpoint has none
    #[arg(long, value_name = "FOLDER")]
    draft_weights: Option<PathBuf>,
    /// Folder of a LoRA adapter, as peft writes it, that is added to the weights
    #[arg(long, value_name = "FOLDER")]
    merge_adapter: Option<PathBuf>,
    /// Which of the artifact's targets [default: the only one]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Threads to pack with; 0 takes all
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// The folder to write into
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let artifact = args.artifact.open()?;
    let manifest = artifact.manifest();
    if manifest.pipeline_parallel > 1 {
        let message = format!("files of packed weights are not for {} stages", manifest.pipeline_parallel);
        return Err(Failure::new("pipeline_parallel", message).help("Give the checkpoint's folder with --weights."));
    }
    let target = match (&args.target, &manifest.targets[..]) {
        (None, [only]) => only,
        (Some(name), _) => &manifest.targets[device::target(manifest, name).map_err(Error::from)?],
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|target| target.name.as_str()).collect();
            return Err(Failure::new("target", format!("the artifact has {}: name one", names.join(", "))));
        }
    };
    let weights = args.weights.model()?.weights()?;
    merged(&*weights, args.merge_adapter.as_deref(), |weights| pack(args, (manifest, target), weights))
}

/// Writes a file for each rank.
fn pack(args: &Args, (manifest, target): (&Manifest, &Target), weights: &dyn Source) -> Result<(), Failure> {
    let draft = args.draft_weights.as_ref().map(Checkpoint::open).transpose().map_err(Error::from)?;
    let roomy = WithAdapters::new(manifest, target, weights, &[]).map_err(Error::from)?;
    let weights: &dyn Source = roomy.as_ref().map_or(weights, |roomy| roomy);
    let beside = draft.as_ref().map(|draft| Beside::new(target, weights, draft)).transpose()?;
    let source: &dyn Source = beside.as_ref().map_or(weights, |beside| beside);
    let threads = pool::threads(args.threads, 1);
    let mut pool = Pool::new(threads).map_err(|e| Failure::new("threads", format!("cannot start {threads}: {e}")))?;
    std::fs::create_dir_all(&args.output).map_err(|e| Failure::file("output", &args.output, e))?;
    for number in 0..manifest.ranks() {
        let rank = Rank { number, of: manifest.ranks() };
        let path = args.output.join(packed::file_name(&target.name, rank));
        packed::write(&path, (target, &manifest.tensors), rank, source, &mut pool)?;
        let bytes = std::fs::metadata(&path).map_err(|e| Failure::file("output", &path, e))?.len();
        writeln!(std::io::stdout(), "{}: {:.2} MB", shown::path(&path), bytes as f64 / 1e6)?;
    }
    Ok(())
}
