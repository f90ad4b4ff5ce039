//! The options of every verb that runs an artifact, and the engine that they make.
use std::env::var_os;
use std::path::{Path, PathBuf};

use atomc::model::{self, Model};
use atomc_artifact::{Expected, files, is_key};
use atomc_runtime::device::Device;
use atomc_runtime::kv::Kept;
use atomc_runtime::manifest::Target;
use atomc_runtime::signature;
use atomc_runtime::states;
use atomc_runtime::weights::packed::Packed;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Error, Random};

use super::device::Devices;
use super::failure::Failure;
use super::guesses::GuessArgs;
use super::progress::{Progress, Unit};
use super::{hub, opened};

/// An artifact whose user has named it.
#[derive(clap::Args)]
pub struct ArtifactArgs {
    /// The file that `atomc compile` made
    #[arg(value_name = "ARTIFACT")]
    artifact: PathBuf,
    /// Refuse it without a signature by this public key, in FILE.sig (`atomc help sign`) [default:
    /// what ATOMC_REQUIRE_SIGNED_BY names]
    #[arg(long, value_name = "PEM")]
    require_signed_by: Option<PathBuf>,
    /// Refuse it, with the name of what differs, unless it was made of the same: a file of
    /// `atomc inspect --json` of the artifact that is expected, or its key alone
    #[arg(long, value_name = "FILE|KEY")]
    expect: Option<String>,
}

impl ArtifactArgs {
    /// Opens it, and refuses it here if a required signature is missing: its code has not been
    /// looked at yet.
    pub fn open(&self) -> Result<Artifact, Failure> {
        let artifact = opened::open("artifact", &self.artifact)?;
        let key = self.require_signed_by.clone().or_else(|| var_os(signature::VARIABLE).map(PathBuf::from));
        signature::require(key, &self.artifact, artifact.fingerprint())?;
        if let Some(expected) = &self.expect {
            artifact.manifest().expect(&expectation(expected)?)?;
        }
        Ok(artifact)
    }
}

/// What `--expect` names.
fn expectation(named: &str) -> Result<Expected, Failure> {
    if is_key(named) {
        return Ok(Expected::parse(named)?);
    }
    let text =
        files::read_to_string(Path::new(named)).map_err(|error| Failure::file("expect", Path::new(named), error))?;
    Ok(Expected::parse(&text)?)
}

#[derive(clap::Args)]
pub struct EngineArgs {
    #[command(flatten)]
    artifact: ArtifactArgs,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Folder with the weights of the artifact's draft, where the model's checkpoint has none
    #[arg(long, value_name = "FOLDER", requires = "weights")]
    pub draft_weights: Option<PathBuf>,
    /// Load packed weights without comparing their checksums
    #[arg(long, requires = "weights")]
    pub no_verify: bool,
    /// What to run on: `host`, `host:VARIANT` for one of the variants that `atomc inspect` lists,
    /// `hip:N` for an AMD GPU, `cuda:N` for one of NVIDIA, or `emu:CHIP` for one that is emulated
    /// (`emu:CHIP:fast` with fewer checks). Of an artifact for several ranks one for each, with
    /// commas between them: `cuda:0,cuda:1`, or `hip:0-7` for eight
    #[arg(long, value_name = "DEVICE,…", default_value = "host")]
    pub device: Devices,
    /// Threads to compute with; 0 takes all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct WeightArgs {
    /// Hugging Face folder with model.safetensors, or shards and their index; or a GGUF file; or
    /// one that `atomc pack` made. Nothing may write to them while they are loaded: that is
    /// noticed, and an error
    #[arg(long, value_name = "PATH", value_parser = hub::argument())]
    weights: Option<PathBuf>,
    /// Random weights from a seed instead of a checkpoint, to measure speed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    random_weights: Option<u64>,
}

/// What a server is told of artifact and weights, where a folder may have both.
#[derive(clap::Args)]
pub struct Named {
    /// Hugging Face folder with weights, or a GGUF file, or one that `atomc pack` made [default:
    /// the model's]
    #[arg(long, value_name = "PATH", value_parser = hub::argument(), group = "weights_of")]
    weights: Option<PathBuf>,
    /// Random weights from a seed instead of a checkpoint, to measure speed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0", group = "weights_of")]
    random_weights: Option<u64>,
    /// Folder with the weights of the artifact's draft, where the model's checkpoint has none
    #[arg(long, value_name = "FOLDER", conflicts_with = "random_weights")]
    draft_weights: Option<PathBuf>,
    /// Load packed weights without comparing their checksums
    #[arg(long)]
    no_verify: bool,
    /// Refuse the artifact without a signature by this public key, as with `atomc run`
    #[arg(long, value_name = "PEM")]
    require_signed_by: Option<PathBuf>,
}

impl Named {
    /// Whether the artifact must be signed.
    pub fn is_signed(&self) -> bool {
        self.require_signed_by.is_some() || var_os(signature::VARIABLE).is_some()
    }
}

/// The sequences that a server needs room for.
#[derive(Clone, Copy, Debug)]
pub struct Sequences {
    /// Sequences that are computed at once.
    pub at_once: usize,
    /// Tokens of all together, if that was said.
    pub cache_tokens: Option<usize>,
}

/// Fifths of the memory without weights and arena that a server's cache takes.
const CACHE_FIFTHS: usize = 4;

impl WeightArgs {
    /// Where the model of the weights is, if there are some: packed ones have its other files
    /// beside them.
    pub fn model(&self) -> Option<&Path> {
        let path = self.weights.as_deref()?;
        if is_packed(path) { path.parent() } else { Some(path) }
    }
}

/// Whether weights are a file that `atomc pack` made.
fn is_packed(path: &Path) -> bool {
    path.exists() && !path.is_dir() && !model::is_gguf(path)
}

/// Tokens of cache that fit into a server's `memory` bytes.
fn fitting(target: &Target, memory: usize) -> usize {
    let weights: usize = target.weights.iter().map(|weight| weight.bytes).sum();
    let arena = target.plans.iter().map(|plan| plan.arena_bytes).max().unwrap_or(0);
    let units = states::Unit::all(target);
    let paged = |unit: &&states::Unit| matches!(unit.kept, Kept::Pages { .. });
    let block: usize = target.states.iter().map(|state| &units[state.group]).filter(paged).map(|unit| unit.bytes).sum();
    let left = memory.saturating_sub(weights + arena) / (CACHE_FIFTHS + 1) * CACHE_FIFTHS;
    // At least a block: if memory is too small, its allocation reports the fault.
    (left / block.max(1)).max(1).saturating_mul(target.layout.block_tokens)
}

impl EngineArgs {
    /// An artifact, with the weights that are named, or else those of the model.
    pub fn named(
        artifact: PathBuf,
        named: &Named,
        model: Option<&Path>,
        (device, threads): (Devices, usize),
    ) -> Result<EngineArgs, Failure> {
        let &Named { ref weights, random_weights, ref draft_weights, no_verify, ref require_signed_by } = named;
        let weights = weights.clone().or(model.filter(|_| random_weights.is_none()).map(Path::to_owned));
        if weights.is_none() && random_weights.is_none() {
            let help = "Name them with --weights, or give a model instead of an artifact: its folder, or a GGUF file.";
            return Err(Failure::new("weights", "an artifact has no weights").help(help));
        }
        let artifact = ArtifactArgs { artifact, require_signed_by: require_signed_by.clone(), expect: None };
        let weights = WeightArgs { weights, random_weights };
        Ok(EngineArgs { artifact, weights, draft_weights: draft_weights.clone(), no_verify, device, threads })
    }

    /// The engine with its weights for a server: with a cache for as many tokens as its sequences
    /// may have, or as there is memory for.
    pub fn serving(&self, artifact: Artifact, wanted: &Sequences, guesses: &GuessArgs) -> Result<Engine, Failure> {
        let draft = guesses.speculate > 0;
        let (manifest, devices) = (artifact.manifest(), self.device.open(&artifact, self.threads)?);
        let target = &manifest.targets[self.device.first().target(manifest).map_err(Error::from)?];
        let name = target.name.clone();
        let longest = manifest.model.max_positions.next_multiple_of(target.layout.block_tokens);
        let most = longest.saturating_mul(wanted.at_once);
        let cache_tokens = wanted.cache_tokens.unwrap_or_else(|| most.min(fitting(target, devices[0].memory())));
        let options = EngineOptions {
            threads: self.threads,
            cache_tokens,
            // Sequences that are retained for their beginnings have slots too.
            slots: 2 * wanted.at_once,
            draft,
            ..EngineOptions::default()
        };
        let mut engine = Engine::with_devices(artifact, &name, devices, &options)?;
        guesses.check(&engine)?;
        self.load(&mut engine)?;
        Ok(engine)
    }

    /// Opens the artifact, to read its needs before memory is allocated.
    pub fn artifact(&self) -> Result<Artifact, Failure> {
        self.artifact.open()
    }

    /// The engine with its weights, and with room for sequences of these lengths at once.
    pub fn engine(
        &self,
        artifact: Artifact,
        sequences: impl IntoIterator<Item = usize>,
        draft: bool,
    ) -> Result<Engine, Failure> {
        let devices = self.device.open(&artifact, self.threads)?;
        self.engine_on(devices, artifact, sequences, draft)
    }

    /// The engine on devices that were opened already.
    pub fn engine_on(
        &self,
        devices: Vec<Box<dyn Device>>,
        artifact: Artifact,
        sequences: impl IntoIterator<Item = usize>,
        draft: bool,
    ) -> Result<Engine, Failure> {
        let mut engine = self.unloaded(devices, artifact, sequences, draft)?;
        self.load(&mut engine)?;
        Ok(engine)
    }

    /// The engine without weights.
    pub fn unloaded(
        &self,
        devices: Vec<Box<dyn Device>>,
        artifact: Artifact,
        sequences: impl IntoIterator<Item = usize>,
        draft: bool,
    ) -> Result<Engine, Failure> {
        let manifest = artifact.manifest();
        let target = &manifest.targets[self.device.first().target(manifest).map_err(Error::from)?];
        let (name, block, longest) = (target.name.clone(), target.layout.block_tokens, manifest.model.max_positions);
        let room = |length: usize| length.clamp(1, longest).next_multiple_of(block);
        let rooms: Vec<usize> = sequences.into_iter().map(room).collect();
        let (slots, cache_tokens) = (rooms.len(), rooms.iter().sum());
        let options = EngineOptions {
            cache_tokens,
            slots,
            // No verb shares beginnings.
            snapshots: 0,
            snapshot_tokens: EngineOptions::NO_SNAPSHOTS,
            draft,
            ..EngineOptions::default()
        };
        Ok(Engine::with_devices(artifact, &name, devices, &options)?)
    }

    pub fn load(&self, engine: &mut Engine) -> Result<(), Failure> {
        let progress = Progress::new("loading weights", Unit::Bytes);
        let progress = |done, total| progress.at(done, total);
        match &self.weights {
            WeightArgs { weights: Some(file), .. } if is_packed(file) => {
                if let Some(draft) = &self.draft_weights {
                    let help = "`atomc pack --draft-weights` packs them with the model's.";
                    return Err(Failure::file("draft_weights", draft, "packed weights have the draft's").help(help));
                }
                let packed = Packed::open(file).map_err(Error::from)?;
                let packed = if self.no_verify { packed.unverified() } else { packed };
                engine.load_packed(&packed, &progress)?;
            }
            WeightArgs { weights: Some(dir), .. } => {
                hub::check(dir)?;
                let weights = Model::at(dir)?.weights()?;
                match &self.draft_weights {
                    None => engine.load_weights(&*weights, &progress)?,
                    Some(draft) => {
                        let draft = Checkpoint::open(draft).map_err(Error::from)?;
                        engine.load_weights_with(&*weights, &draft, &progress)?;
                    }
                }
            }
            WeightArgs { random_weights, .. } => {
                engine.load_weights(&Random { seed: random_weights.unwrap_or(0) }, &progress)?;
            }
        }
        Ok(())
    }
}
