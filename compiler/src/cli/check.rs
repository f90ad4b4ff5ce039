//! `atomc check`: whether vLLM would run an artifact with these options, by the rules of the
//! plugin.
use std::env::var_os;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc_artifact::{Fingerprint, escaped};
use atomc_config::vllm::{self, Held, arguments, settings};
use atomc_runtime::manifest::{Attention, Manifest, Target};
use atomc_runtime::{Artifact, DeviceChoice, Error, TrustList, signature, trust};
use serde_json::{Map, Value};

use super::failure::Failure;
use super::{opened, shown};

/// Check whether vLLM would run a model through its artifact
#[derive(clap::Args)]
#[command(after_help = "\
Says in a line what `vllm serve MODEL …` would refuse, and leaves with 1. Neither vLLM nor the model's weights are needed. The
environment's ATOMC_ variables count as they do under vLLM.

Examples:
  atomc check models/qwen3 --max-model-len 4096 --kv-cache-dtype fp8
  atomc check --device cuda:0 models/qwen3 --tensor-parallel-size 2")]
pub struct Args {
    /// What it is to run on: `host`, `hip:N` or `cuda:N` [default: any target of the artifact's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// The model's folder, as `vllm serve` takes it
    model: PathBuf,
    /// vLLM's options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "VLLM OPTIONS")]
    options: Vec<String>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let wrong = |text: String| Failure::new("check", text);
    let settings = settings::read(std::env::vars_os()).map_err(wrong)?;
    let set = |name: &str| settings.get(name).and_then(Value::as_str).unwrap_or_default();
    if set("ATOMC_DISABLE") == "1" {
        return Err(wrong("ATOMC_DISABLE is set: vLLM's own model would run".into()));
    }
    let mut options = arguments::read(&args.options).map_err(wrong)?;
    let (path, named) = artifact(args, &options).map_err(wrong)?;
    let fault = |error| opened::fault("check", &path, error);
    let asked = named || options.get("trust_remote_code") == Some(&Value::Bool(true));
    trusted(&path, atomc_artifact::fingerprint(&path).map_err(fault)?, asked)?;
    let file = Artifact::open(&path).map_err(fault)?;
    let manifest = file.manifest();
    let config = vllm::resolve(&args.model, &mut options)?;
    let targets: Vec<&Target> = match &args.device {
        Some(device) => vec![&manifest.targets[device.target(manifest).map_err(Error::from)?]],
        None => manifest.targets.iter().collect(),
    };
    let attention = if set("ATOMC_ATTENTION") == "vllm" { Attention::Caller } else { Attention::Own };
    for target in &targets {
        let held = held(manifest, target, attention).map_err(|fault| Failure::file("check", &path, fault))?;
        if let Some(refusal) = vllm::refusals(&config, &options, &held).first() {
            return Err(Failure::file("check", &path, refusal));
        }
    }
    let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    let (architecture, names) = (escaped(&manifest.model.architecture), names.join(", "));
    writeln!(std::io::stdout(), "vLLM would run {architecture} of {} with target {names}", shown::path(&path))?;
    Ok(())
}

/// Refuses an artifact whose code would not run: one that nobody named has to be on the user's
/// list, or signed where signatures are asked for.
fn trusted(path: &Path, fingerprint: Fingerprint, asked: bool) -> Result<(), Failure> {
    if let Some(key) = var_os(signature::VARIABLE) {
        return Ok(signature::require(Some(key), path, fingerprint)?);
    }
    if asked || TrustList::read(&trust::place(var_os("XDG_CONFIG_HOME"), var_os("HOME"))?)?.has(fingerprint) {
        return Ok(());
    }
    let why = "is code that nobody trusts: vLLM's own model would run";
    let help = format!("`atomc trust {}` says that you do", path.display());
    Err(Failure::new("check", format!("{} {why}", path.display())).help(help))
}

/// Where the artifact is, and whether an option names it, or it lies beside the model.
fn artifact(args: &Args, options: &Map<String, Value>) -> Result<(PathBuf, bool), String> {
    let additional = settings::shared("--additional-config", options.get("additional_config").unwrap_or(&Value::Null))?;
    let loader = options.get("model_loader_extra_config").and_then(Value::as_object).cloned().unwrap_or_default();
    let named = settings::artifact("--model-loader-extra-config", &loader)?;
    if let Some(named) = named.or(settings::artifact("--additional-config", &additional)?) {
        return Ok((named.into(), true));
    }
    let beside = args.model.join("model.atomc");
    match beside.symlink_metadata() {
        Ok(_) => Ok((beside, false)),
        Err(_) => Err(format!("there is no {}: vLLM's own model would run", beside.display())),
    }
}

/// What a target holds, as the plugin finds it when it has opened the artifact.
fn held<'a>(manifest: &'a Manifest, target: &'a Target, attention: Attention) -> Result<Held<'a>, String> {
    let plans = target.plans.iter().filter(|plan| plan.attention == attention);
    let step = plans.map(|plan| plan.tokens).max();
    let who = if attention == Attention::Own { "own" } else { "caller" };
    Ok(Held {
        model: &manifest.config["model"],
        dtype: target.hidden.dtype.torch_name(),
        cache_dtype: target.cache_dtype().torch_name(),
        ranks: manifest.ranks(),
        experts: manifest.expert_parallel,
        positions: manifest.model.max_positions,
        step: step.ok_or_else(|| format!("target `{}` has no plans with --attention {who}", target.name))?,
        page: target.layout.block_tokens,
        own: attention == Attention::Own,
        invariant: target.invariant,
    })
}
