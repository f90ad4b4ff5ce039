//! The options of every verb that runs an artifact, and the engine that they make.
use std::env::var_os;
use std::path::{Path, PathBuf};

use atomc_artifact::{Expected, files, is_key};
use atomc_runtime::adapters::{Adapter, Merged};
use atomc_runtime::device::Device;
use atomc_runtime::kv::Kept;
use atomc_runtime::manifest::Target;
use atomc_runtime::signature;
use atomc_runtime::states;
use atomc_runtime::weights::packed::Packed;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions, Error, Random, Source, Tower};

use super::device::Devices;
use super::failure::Failure;
use super::guesses::GuessArgs;
use super::made::{self, MadeArgs};
use super::opened;
use super::place::Place;
use super::progress::{Progress, Unit};

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
    pub fn open(&self) -> Result<Artifact, Failure> {
        open(&self.artifact, self.require_signed_by.clone(), self.expect.as_deref())
    }
}

/// Opens an artifact, and refuses it here if a required signature is missing: its code has not been
/// looked at yet.
fn open(path: &Path, signed_by: Option<PathBuf>, expect: Option<&str>) -> Result<Artifact, Failure> {
    let artifact = opened::open("artifact", path)?;
    signature::require(signed_by.or_else(named_key), path, artifact.fingerprint())?;
    if let Some(expected) = expect {
        artifact.manifest().expect(&expectation(expected)?)?;
    }
    Ok(artifact)
}

/// The key that every artifact must be signed by.
fn named_key() -> Option<PathBuf> {
    var_os(signature::VARIABLE).map(PathBuf::from)
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
    /// An artifact; or a model, whose artifact is made if there is none: its folder, a GGUF file,
    /// or a name of the hub that is in its cache
    #[arg(value_name = "ARTIFACT|MODEL", value_parser = Place::parser())]
    pub place: Place,
    /// Refuse the artifact without a signature by this public key, in FILE.sig (`atomc help sign`)
    /// [default: what ATOMC_REQUIRE_SIGNED_BY names]
    #[arg(long, value_name = "PEM")]
    require_signed_by: Option<PathBuf>,
    /// Refuse the artifact, with the name of what differs, unless it was made of the same: a file
    /// of `atomc inspect --json` of the artifact that is expected, or its key alone
    #[arg(long, value_name = "FILE|KEY")]
    expect: Option<String>,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Folder with the weights of the artifact's draft, where the model's checkpoint has none
    #[arg(long, value_name = "FOLDER", conflicts_with = "random_weights")]
    pub draft_weights: Option<PathBuf>,
    /// Folder of a LoRA adapter, as peft writes it, that is added to the weights while they are
    /// loaded
    #[arg(long, value_name = "FOLDER", conflicts_with = "random_weights")]
    merge_adapter: Option<PathBuf>,
    /// LoRA adapter for the artifact's room (`atomc compile --adapters N`): answers are made with
    /// it, or in `serve` for requests whose model is its NAME [default: the folder's]
    #[arg(long, value_name = "NAME=FOLDER", conflicts_with_all = ["random_weights", "merge_adapter"])]
    adapter: Vec<String>,
    /// Load packed weights without comparing their checksums
    #[arg(long, conflicts_with = "random_weights")]
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
    #[command(flatten)]
    made: MadeArgs,
}

#[derive(clap::Args)]
#[group(multiple = false)]
pub struct WeightArgs {
    /// Hugging Face folder with model.safetensors, or shards and their index, or a name of the hub;
    /// or a GGUF file; or one that `atomc pack` made. Nothing may write to them while they are
    /// loaded: that is noticed, and an error [default: the model's]
    #[arg(long, value_name = "PATH", value_parser = Place::parser())]
    weights: Option<Place>,
    /// Random weights from a seed instead of a checkpoint, to measure speed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    random_weights: Option<u64>,
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

/// Whether weights are a file that `atomc pack` made.
fn is_packed(weights: &Place) -> bool {
    matches!(weights, Place::File(path) if path.exists())
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

/// Loads weights, with the adapter of a folder merged into them if one is named.
pub fn merged<T>(
    weights: &dyn Source,
    adapter: Option<&Path>,
    load: impl FnOnce(&dyn Source) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(folder) = adapter else { return load(weights) };
    let adapter = Adapter::open(folder).map_err(Error::from)?;
    load(&Merged::new(weights, &adapter).map_err(Error::from)?)
}

impl EngineArgs {
    /// Where the weights are, unless they are random: they are named, or the model's.
    fn weights(&self) -> Option<&Place> {
        let model = (self.weights.random_weights.is_none() && self.place.is_model()).then_some(&self.place);
        self.weights.weights.as_ref().or(model)
    }

    /// Where the tokenizer is: where it is named, or with the model's other files.
    pub fn tokenizer<'a>(&'a self, named: Option<&'a Place>, help: &str) -> Result<&'a Path, Failure> {
        match named {
            Some(place) => place.path(),
            None => self.model()?.ok_or_else(|| Failure::new("tokenizer", "no tokenizer").help(help)),
        }
    }

    /// Where the model's other files are, if that was said: packed weights have them beside them.
    fn model(&self) -> Result<Option<&Path>, Failure> {
        let Some(place) = self.weights().or(self.place.is_model().then_some(&self.place)) else { return Ok(None) };
        let path = place.path()?;
        Ok(if is_packed(place) { path.parent() } else { Some(path) })
    }

    /// The model's name of the hub, if it was named so.
    pub fn name(&self) -> Option<&str> {
        self.weights().or(Some(&self.place)).and_then(Place::name)
    }

    fn check_weights(&self) -> Result<(), Failure> {
        if self.weights().is_some() || self.weights.random_weights.is_some() {
            return Ok(());
        }
        let help =
            "Name them with --weights, or give a model instead of an artifact; --random-weights measures without.";
        Err(Failure::new("weights", "an artifact has no weights").help(help))
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

    /// Opens the artifact, to read its needs before memory is allocated. One that the user did not
    /// name runs only if the user trusts it, asked for a signature, or has just had it compiled.
    pub fn artifact(&self) -> Result<Artifact, Failure> {
        self.check_weights()?;
        self.without_weights()
    }

    /// The artifact for verbs that compute nothing with it.
    pub fn without_weights(&self) -> Result<Artifact, Failure> {
        let file = self.place.artifact()?;
        let made = self.made.make(&self.place, &file, &self.device)?;
        let artifact = open(&file, self.require_signed_by.clone(), self.expect.as_deref())?;
        let is_signed = self.require_signed_by.is_some() || named_key().is_some();
        if self.place.is_model() && !is_signed && made != Some(artifact.fingerprint()) {
            made::trusted(&file, &artifact)?;
        }
        Ok(artifact)
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
        match self.adapter.len() {
            0 => {}
            1 => engine.adapt_new(0),
            _ => {
                return Err(Failure::new(
                    "adapter",
                    "answers are made with one adapter: name one; `serve` takes several",
                ));
            }
        }
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

    /// The names and folders of adapters, by their slots.
    pub fn adapters(&self) -> Vec<(String, PathBuf)> {
        let of_folder = |folder: &str| {
            Path::new(folder).file_name().map_or(folder.to_owned(), |name| name.to_string_lossy().into_owned())
        };
        let named = |text: &String| match text.split_once('=') {
            Some((name, folder)) => (name.to_owned(), PathBuf::from(folder)),
            None => (of_folder(text), PathBuf::from(text)),
        };
        self.adapter.iter().map(named).collect()
    }

    fn opened(&self) -> Result<Vec<Adapter>, Failure> {
        let open = |(_, folder): &(String, PathBuf)| Ok(Adapter::open(folder).map_err(Error::from)?);
        self.adapters().iter().map(open).collect()
    }

    /// The artifact's tower with its weights.
    pub fn tower(&self, artifact: &Artifact) -> Result<Tower, Failure> {
        let own = artifact.tower().ok_or(Error::NoTower)?;
        let target = self.device.first().target(own.manifest()).map_err(Error::from)?;
        let name = own.manifest().targets[target].name.clone();
        let device = self.device.open(&own, self.threads)?.remove(0);
        let mut tower = Tower::with_device(artifact, &name, device)?;
        let progress = Progress::new("loading the tower's weights", Unit::Bytes);
        let progress = |done, total| progress.at(done, total);
        match self.weights() {
            Some(place) if is_packed(place) => {
                let help = "Give the folder with the model's weights.";
                return Err(Failure::new("weights", "packed weights have none of a tower").help(help));
            }
            Some(place) => {
                let weights = place.model()?.weights()?;
                merged(
                    &*weights,
                    self.merge_adapter.as_deref(),
                    |weights| Ok(tower.load_weights(weights, &progress)?),
                )?;
            }
            None => tower.load_weights(&Random { seed: self.weights.random_weights.unwrap_or(0) }, &progress)?,
        }
        Ok(tower)
    }

    pub fn load(&self, engine: &mut Engine) -> Result<(), Failure> {
        let progress = Progress::new("loading weights", Unit::Bytes);
        let progress = |done, total| progress.at(done, total);
        match self.weights() {
            Some(place) if is_packed(place) => {
                if let Some(draft) = &self.draft_weights {
                    let help = "`atomc pack --draft-weights` packs them with the model's.";
                    return Err(Failure::file("draft_weights", draft, "packed weights have the draft's").help(help));
                }
                if let Some(adapter) = &self.merge_adapter {
                    let help = "`atomc pack --merge-adapter` packs weights with it.";
                    return Err(Failure::file("merge_adapter", adapter, "packed weights take no adapter").help(help));
                }
                if let Some((_, adapter)) = self.adapters().first() {
                    let help = "Give the checkpoint's folder with --weights.";
                    return Err(Failure::file("adapter", adapter, "packed weights take no adapter").help(help));
                }
                let packed = Packed::open(place.path()?).map_err(Error::from)?;
                let packed = if self.no_verify { packed.unverified() } else { packed };
                engine.load_packed(&packed, &progress)?;
            }
            Some(place) => {
                engine.set_adapters(self.opened()?)?;
                let weights = place.model()?.weights()?;
                merged(&*weights, self.merge_adapter.as_deref(), |weights| match &self.draft_weights {
                    None => Ok(engine.load_weights(weights, &progress)?),
                    Some(draft) => {
                        let draft = Checkpoint::open(draft).map_err(Error::from)?;
                        Ok(engine.load_weights_with(weights, &draft, &progress)?)
                    }
                })?;
            }
            None => {
                let seed = self.weights.random_weights.unwrap_or(0);
                engine.load_weights(&Random { seed }, &progress)?;
            }
        }
        Ok(())
    }
}
