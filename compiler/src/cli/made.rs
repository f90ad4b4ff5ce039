//! The artifact of a model that is named: found in its folder or beside its file, or made there.
use std::path::Path;

use atomc_artifact::Fingerprint;
use atomc_runtime::{Artifact, TrustList};

use super::device::Devices;
use super::failure::Failure;
#[cfg(feature = "compiler")]
use super::failure::tell;
use super::place::Place;
use super::trust;

/// How an artifact is made, where there is none.
#[derive(clap::Args)]
pub struct MadeArgs {
    /// What to compile for, where there is no artifact [default: the device]
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Ranks that share the model out, where there is no artifact [default: the devices]
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    tp: Option<usize>,
    /// Ranks with whole experts, where there is no artifact
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    ep: Option<usize>,
    /// Stages of layers, each with these ranks, where there is no artifact
    #[cfg(feature = "compiler")]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pp: Option<usize>,
}

/// A number that is not zero.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| "must be a whole number from 1 on".into())
}

impl MadeArgs {
    /// The fingerprint of the artifact at this path, if there was none and it has been made.
    pub fn make(&self, place: &Place, file: &Path, devices: &Devices) -> Result<Option<Fingerprint>, Failure> {
        let is_missing = place.is_model() && !file.exists();
        let made = is_missing.then(|| self.compiled(place.path()?, file, devices)).transpose()?;
        self.check_target(made.is_some())?;
        Ok(made)
    }

    /// Checks that no target is named where nothing is compiled.
    #[cfg(feature = "compiler")]
    fn check_target(&self, is_made: bool) -> Result<(), Failure> {
        match &self.target {
            Some(target) if !is_made => {
                let message = format!("--target {target}: there is an artifact, and nothing is compiled");
                Err(Failure::new("target", message).help("`atomc inspect` shows what an artifact's targets are."))
            }
            _ => Ok(()),
        }
    }

    /// There is no such option.
    #[cfg(not(feature = "compiler"))]
    fn check_target(&self, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    /// Makes the artifact of a model.
    #[cfg(feature = "compiler")]
    fn compiled(&self, model: &Path, file: &Path, devices: &Devices) -> Result<Fingerprint, Failure> {
        let target = match &self.target {
            Some(target) => target.clone(),
            None => devices.first().known_target()?,
        };
        let place = if model.is_dir() { "in" } else { "beside" };
        tell(format_args!("no artifact {place} {}: compiling for {target}", model.display()));
        let mut words: Vec<std::ffi::OsString> =
            vec![model.into(), "--target".into(), target.into(), "-o".into(), file.into()];
        // Whole experts alone are ranks too.
        let of_stage = devices.len() / self.pp.unwrap_or(1);
        let tp = self.tp.or((self.ep.is_none() && of_stage > 1).then_some(of_stage));
        for (option, ranks) in [("--tp", tp), ("--ep", self.ep), ("--pp", self.pp)] {
            words.extend(ranks.into_iter().flat_map(|ranks| [option.into(), ranks.to_string().into()]));
        }
        let compile = super::compile::Args::parsed(&words).map_err(|fault| Failure::new("compile", fault))?;
        let made = super::compile::made(&compile, &super::trace::Spans::new())?;
        tell(format_args!("{made}"));
        Ok(made.fingerprint)
    }

    /// Says that this build makes none.
    #[cfg(not(feature = "compiler"))]
    fn compiled(&self, model: &Path, file: &Path, _: &Devices) -> Result<Fingerprint, Failure> {
        let message = format!("no artifact: there is no {}", file.display());
        let model = model.display();
        let help = format!(
            "This build cannot compile. On a machine with the whole atomc: `atomc compile {model} -o model.atomc`; \
             then `model.atomc --weights {model}` here."
        );
        Err(Failure::new("artifact", message).help(help))
    }
}

/// Refuses the artifact that lies beside a model unless the user trusts it: nobody has named it.
pub fn trusted(file: &Path, artifact: &Artifact) -> Result<(), Failure> {
    if TrustList::read(&trust::place()?)?.has(artifact.fingerprint()) {
        return Ok(());
    }
    let help =
        format!("`atomc trust {0}` if you would run it as a program, or name it: `{0} --weights …`.", file.display());
    Err(Failure::file("trust", file, "lies beside the model, and is not on your list").help(help))
}
