//! The artifact that would be compiled for a framework's options, without writing it.
use std::ffi::{OsStr, OsString};
use std::path::Path;

use atomc::driver;
use atomc_config::differences;
use atomc_runtime::manifest::{Attention, Target};

use super::super::compile;
use super::super::failure::Failure;
use super::Asked;

/// Sequences of the decode steps that are compiled: others have plans of the same kind.
const DECODE: usize = 1;

/// The command that makes an artifact which fits, found by compiling it.
pub fn command(asked: &Asked, folder: &Path, target: &str) -> Result<String, Failure> {
    let (name, architecture) = (asked.rules.name, asked.config.architecture);
    let options = (asked.rules.compile_options)(&asked.config, &asked.options, asked.attention == Attention::Own);
    let tower = options.iter().any(|option| option == "--tower");
    if let Some(option) = asked.rules.lacks(architecture, tower, &asked.options) {
        let why = format!("an artifact is of a part of {architecture}: {name}'s own model would run without {option}");
        return Err(Failure::new("check", why));
    }
    let options = options.into_iter().map(OsString::from);
    let more: [OsString; 4] = ["--target".into(), target.into(), "-o".into(), folder.join("model.atomc").into()];
    let words: Vec<OsString> = std::iter::once(folder.into()).chain(options).chain(more).collect();
    let args = compile::Args::parsed(&words).map_err(|fault| Failure::new("check", fault.to_string()))?;
    let config = args.applied(asked.config.clone())?;
    let mut options = args.options(&config)?;
    options.buckets.decode = vec![DECODE];
    let compiled = driver::compile(&config, &options, &mut |_, _, _| ())?;
    let targets: Vec<&Target> = compiled.manifest.targets.iter().collect();
    let command = format!("`atomc compile {}`", words.join(OsStr::new(" ")).display());
    // Options may change the configuration, which the folder's file does not show.
    let changed = !differences(&asked.config, &atomc_config::read(folder)?.echo()).is_empty();
    let command = if changed { format!("{command}, of a config.json with these overrides,") } else { command };
    let fault = |fault| Failure::new("check", format!("what {command} makes: {fault}"));
    asked.fits(&compiled.manifest, &targets).map_err(fault)?;
    Ok(command)
}
