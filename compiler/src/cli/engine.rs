//! The options of every verb that runs an artifact, and the engine that they make.
use std::path::{Path, PathBuf};

use atomc_runtime::{Artifact, Checkpoint, DeviceChoice, Engine, EngineOptions, Random};

use super::failure::Failure;
use super::progress::{Progress, Unit};

#[derive(clap::Args)]
pub struct EngineArgs {
    /// The file that `atomc compile` made
    pub artifact: PathBuf,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// What to run on: `host`, `host:VARIANT` for one of the variants that `atomc inspect` lists, or `hip:N` for an AMD GPU
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    pub device: DeviceChoice,
    /// Threads to compute with; 0 takes all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct WeightArgs {
    /// Hugging Face folder with model.safetensors, or shards and their index
    #[arg(long, value_name = "DIR")]
    weights: Option<PathBuf>,
    /// Random weights from a seed instead of a checkpoint, to measure speed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    random_weights: Option<u64>,
}

impl WeightArgs {
    /// The folder of the checkpoint, if there is one.
    pub fn dir(&self) -> Option<&Path> {
        self.weights.as_deref()
    }
}

impl EngineArgs {
    /// Opens the artifact, to see what it needs before memory is taken.
    pub fn artifact(&self) -> Result<Artifact, Failure> {
        Ok(Artifact::open(&self.artifact)?)
    }

    /// The engine with its weights, and with room for sequences of these lengths at once.
    pub fn engine(&self, artifact: Artifact, sequences: impl IntoIterator<Item = usize>) -> Result<Engine, Failure> {
        let manifest = artifact.manifest();
        let target = self.device.target(manifest).map_err(atomc_runtime::Error::from)?;
        let (model, block) = (&manifest.model, manifest.targets[target].cache.block_tokens);
        let room = |length: usize| length.clamp(1, model.max_positions).next_multiple_of(block);
        let cache_tokens = sequences.into_iter().map(room).sum();
        let options = EngineOptions { device: self.device.clone(), threads: self.threads, cache_tokens };
        let mut engine = Engine::new(artifact, &options)?;
        let progress = Progress::new("loading weights", Unit::Bytes);
        let progress = |done, total| progress.at(done, total);
        match &self.weights {
            WeightArgs { weights: Some(dir), .. } => {
                let checkpoint = Checkpoint::open(dir).map_err(atomc_runtime::Error::from)?;
                engine.load_weights(&checkpoint, &progress)?;
            }
            WeightArgs { random_weights, .. } => {
                engine.load_weights(&Random { seed: random_weights.unwrap_or(0) }, &progress)?;
            }
        }
        Ok(engine)
    }
}
