//! `atomc check`: whether a framework would run an artifact with these options, by the rules of the
//! plugin.
#[cfg(feature = "compiler")]
mod planned;

use std::env::var_os;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc::model;
use atomc_artifact::{Fingerprint, escaped};
use atomc_config::Config;
use atomc_config::framework::{Guesses, Held, Rules};
use atomc_config::vllm::settings;
use atomc_runtime::manifest::{Attention, Manifest, Target};
use atomc_runtime::{Artifact, DeviceChoice, Error, TrustList, signature, trust};
use clap::ValueEnum;
use serde_json::{Map, Value};

use super::failure::Failure;
use super::place::Place;
use super::{opened, shown};

/// Check whether a framework would run a model through its artifact
#[derive(clap::Args)]
#[command(after_help = "\
Says in a line what `vllm serve MODEL …` or `sglang.launch_server --model-path MODEL …` would refuse, and leaves with 1. Neither the
framework nor the model's weights are needed. The environment's ATOMC_ variables count as they do in the framework. Where there is
no artifact, it says whether one would run that is compiled for these options, and how: ATOMC_AUTOCOMPILE=1 compiles that.

Examples:
  atomc check models/qwen3 --max-model-len 4096 --kv-cache-dtype fp8
  atomc check models/qwen3 --for sglang --tp-size 2
  atomc check --device cuda:0 models/qwen3 --tensor-parallel-size 2")]
pub struct Args {
    /// What it is to run on: `host`, `hip:N` or `cuda:N` [default: any target of the artifact's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// The framework, before its options or behind them [default: vllm]
    #[arg(long = "for", value_enum, value_name = "FRAMEWORK")]
    framework: Option<Framework>,
    /// The model's folder, as the framework takes it, or a name of the hub that is in its cache
    #[arg(value_parser = Place::parser())]
    model: Place,
    /// The framework's options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ITS OPTIONS")]
    options: Vec<String>,
}

/// A framework that artifacts run in.
#[derive(Clone, Copy, ValueEnum)]
enum Framework {
    Vllm,
    Sglang,
}

impl Framework {
    fn rules(self) -> &'static Rules {
        match self {
            Framework::Vllm => &atomc_config::vllm::RULES,
            Framework::Sglang => &atomc_config::sglang::RULES,
        }
    }
}

impl Args {
    /// The framework, and its options: everything after the first option is the framework's, except
    /// for `--for`, which no framework has.
    fn split(&self) -> Result<(Framework, Vec<String>), String> {
        let (mut framework, mut options) = (self.framework, Vec::new());
        let mut rest = self.options.iter();
        while let Some(option) = rest.next() {
            let name = match option.strip_prefix("--for") {
                Some("") => Some(rest.next().ok_or("--for: names no framework")?.as_str()),
                Some(name) => name.strip_prefix('='),
                None => None,
            };
            match name {
                Some(name) => {
                    let unknown = |_| format!("--for: `{name}` is neither vllm nor sglang");
                    framework = Some(Framework::from_str(name, true).map_err(unknown)?);
                }
                None => options.push(option.clone()),
            }
        }
        Ok((framework.unwrap_or(Framework::Vllm), options))
    }
}

/// The configuration and options of a framework.
struct Asked {
    rules: &'static Rules,
    config: Config,
    options: Map<String, Value>,
    attention: Attention,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let wrong = |text: String| Failure::new("check", text);
    let settings = settings::read(std::env::vars_os()).map_err(wrong)?;
    let set = |name: &str| settings.get(name).and_then(Value::as_str).unwrap_or_default();
    let (framework, given) = args.split().map_err(wrong)?;
    let rules = framework.rules();
    if set("ATOMC_DISABLE") == "1" {
        return Err(wrong(format!("ATOMC_DISABLE is set: {}'s own model would run", rules.name)));
    }
    let options = (rules.read)(&given).map_err(wrong)?;
    let named = (rules.artifact)(&options).map_err(wrong)?;
    let model = folder(&args.model, rules.name)?;
    let path = named.as_ref().map_or_else(|| model.join("model.atomc"), PathBuf::from);
    let asked = |mut options| {
        let config = (rules.resolve)(model, &mut options)?;
        let vllm = rules.name == atomc_config::vllm::RULES.name && set("ATOMC_ATTENTION") == "vllm";
        let attention = if vllm { Attention::Caller } else { Attention::Own };
        Ok::<_, Failure>(Asked { rules, config, options, attention })
    };
    // A link that leads nowhere is a fault, not a model without an artifact.
    if named.is_none() && path.symlink_metadata().is_err() {
        let missing = format!("there is no {}: {}'s own model would run", path.display(), rules.name);
        if !model.join("config.json").exists() {
            return Err(wrong(missing));
        }
        let target = Some(set("ATOMC_TARGET")).filter(|target| !target.is_empty()).unwrap_or(HOST);
        return without(&asked(on(&[target], options))?, model, target, &set, &missing);
    }
    let fault = |error| opened::fault("check", &path, error);
    let trusts = named.is_some() || options.get("trust_remote_code") == Some(&Value::Bool(true));
    trusted(rules.name, &path, atomc_artifact::fingerprint(&path).map_err(fault)?, trusts)?;
    let file = Artifact::open(&path).map_err(fault)?;
    let manifest = file.manifest();
    if let Some(option) = rules.lacks(&manifest.model.architecture, manifest.tower.is_some(), &options) {
        let why = format!("is of a part of its models: {}'s own model would run without {option}", rules.name);
        return Err(Failure::file("check", &path, format!("{} {why}", escaped(&manifest.model.architecture))));
    }
    let targets: Vec<&Target> = match &args.device {
        Some(device) => vec![&manifest.targets[device.target(manifest).map_err(Error::from)?]],
        None => manifest.targets.iter().collect(),
    };
    let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    let asked = asked(on(&names, options))?;
    asked.fits(manifest, &targets).map_err(|fault| Failure::file("check", &path, fault))?;
    let (architecture, names) = (escaped(&manifest.model.architecture), names.join(", "));
    writeln!(
        std::io::stdout(),
        "{} would run {architecture} of {} with target {names}",
        rules.name,
        shown::path(&path)
    )?;
    Ok(())
}

/// The model's folder: the plugins take no file in its place.
fn folder<'a>(model: &'a Place, framework: &str) -> Result<&'a Path, Failure> {
    let path = model.path()?;
    if !model::is_gguf(path) {
        return Ok(path);
    }
    let message = format!("is a GGUF file, and {framework} with artifacts takes folders");
    Err(Failure::file("check", path, message).help("`atomc run` and `atomc serve` take it."))
}

impl Asked {
    /// The first reason for which an artifact would not run.
    fn fits(&self, manifest: &Manifest, targets: &[&Target]) -> Result<(), String> {
        for target in targets {
            let held = held(manifest, target, self.attention)?;
            if let Some(refusal) = (self.rules.refusals)(&self.config, &self.options, &held).into_iter().next() {
                return Err(refusal);
            }
        }
        Ok(())
    }
}

/// The target of machines without a GPU.
const HOST: &str = "host";

/// Options of a framework on a machine for these targets: it knows its device.
fn on(targets: &[&str], mut options: Map<String, Value>) -> Map<String, Value> {
    if targets == [HOST] {
        options.entry(DEVICE).or_insert(Value::from("cpu"));
    }
    options
}

/// The name of the device option of frameworks that have one.
const DEVICE: &str = "device";

/// The result for a model without an artifact.
#[cfg(feature = "compiler")]
fn without<'a>(
    asked: &Asked,
    model: &Path,
    target: &str,
    set: &impl Fn(&str) -> &'a str,
    missing: &str,
) -> Result<(), Failure> {
    let made = set("ATOMC_AUTOCOMPILE") == "1";
    if !made && set("ATOMC_STRICT") == "1" {
        return Err(Failure::new("check", format!("{missing}, but ATOMC_STRICT is set")));
    }
    let command = planned::command(asked, model, target)?;
    let (name, architecture) = (asked.rules.name, asked.config.architecture);
    let until = if made { "" } else { ", and its own model until then" };
    writeln!(std::io::stdout(), "{name} would run {architecture} as {command} makes it{until}")?;
    Ok(())
}

/// The result for a model without an artifact.
#[cfg(not(feature = "compiler"))]
fn without<'a>(_: &Asked, _: &Path, _: &str, _: &impl Fn(&str) -> &'a str, missing: &str) -> Result<(), Failure> {
    Err(Failure::new("check", missing.to_owned()))
}

/// Refuses an artifact if its code would not run: one that the user did not name has to be on the
/// user's list, or signed where signatures are required.
fn trusted(framework: &str, path: &Path, fingerprint: Fingerprint, asked: bool) -> Result<(), Failure> {
    if let Some(key) = var_os(signature::VARIABLE) {
        return Ok(signature::require(Some(key), path, fingerprint)?);
    }
    if asked || TrustList::read(&trust::place(var_os("XDG_CONFIG_HOME"), var_os("HOME"))?)?.has(fingerprint) {
        return Ok(());
    }
    let why = format!("is code that nobody trusts: {framework}'s own model would run");
    let help = format!("`atomc trust {}` says that you do", path.display());
    Err(Failure::new("check", format!("{} {why}", path.display())).help(help))
}

/// The properties of a target, as the plugin reads them from the open artifact.
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
        slots: target.has_slots(),
        guesses: Guesses::of(target.most_guesses(), target.draft.as_ref().map(|draft| draft.is_apart())),
        pixels: manifest.tower.as_ref().map(|tower| tower.pixels()),
    })
}
