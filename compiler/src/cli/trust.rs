//! `atomc trust`: the artifacts that may run in any place, as their user trusts them.
use std::env::var_os;
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc_artifact::{Artifact, Fingerprint, escaped};
use atomc_runtime::trust;
use atomc_runtime::{TrustError, TrustList};
use serde_json::json;

use super::failure::Failure;
use super::{opened, shown};

/// Say which artifacts may run where nobody names them
#[derive(clap::Args)]
#[command(after_help = "\
An artifact is native code. Commands run the one that they are given; a framework that finds one beside a model, where anyone may
have put it, runs it only if it is on your list: $XDG_CONFIG_HOME/atomc/trusted, or ~/.config/atomc/trusted. `atomc compile`
puts there what it makes. A line of it is a fingerprint, which no other content has, and what it was when it was added. Trust what you
would run as a program; nothing here can tell you whether its code is harmless.

Examples:
  atomc trust models/qwen3/model.atomc            shows what it is, and adds it
  atomc trust --list
  atomc trust --remove models/qwen3/model.atomc   or its fingerprint")]
#[command(group(clap::ArgGroup::new("what").required(true)))]
pub struct Args {
    /// Artifacts to add
    #[arg(group = "what", value_name = "FILE")]
    artifacts: Vec<PathBuf>,
    /// Show what is on the list
    #[arg(long, group = "what")]
    list: bool,
    /// Take artifacts off the list
    #[arg(long, group = "what", value_name = "FINGERPRINT|FILE", num_args = 1..)]
    remove: Vec<String>,
    /// What is shown as a JSON list
    #[arg(long, conflicts_with = "remove")]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let path = place()?;
    let mut out = std::io::stdout().lock();
    if args.list {
        return list(&mut out, &path, args.json);
    }
    for name in &args.remove {
        remove(&path, name)?;
    }
    if args.json {
        args.artifacts.iter().try_for_each(|file| shown::json_path(file).map(drop))?;
    }
    let mut about = Vec::new();
    for file in &args.artifacts {
        let artifact = opened::open("artifact", file)?;
        add(file, &artifact.manifest().model.architecture, artifact.fingerprint())?;
        if args.json {
            about.push(describe(shown::json_path(file)?, &artifact));
        } else {
            show(&mut out, file, &artifact)?;
        }
    }
    if args.json {
        shown::json(&mut out, &about)?;
    }
    Ok(())
}

/// Puts an artifact on the user's list.
pub fn add(file: &Path, architecture: &str, fingerprint: Fingerprint) -> Result<(), TrustError> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    TrustList::add(&place()?, fingerprint, &format!("{architecture} {}", file.display()))
}

/// The place of the list of the user that runs the command.
pub fn place() -> Result<PathBuf, TrustError> {
    trust::place(var_os("XDG_CONFIG_HOME"), var_os("HOME"))
}

fn list(out: &mut impl Write, path: &Path, as_json: bool) -> Result<(), Failure> {
    let list = TrustList::read(path)?;
    if as_json {
        let entry = |(fingerprint, about): (Fingerprint, &str)| json!({ "fingerprint": fingerprint.to_string(), "about": about });
        return shown::json(out, &list.entries().map(entry).collect::<Vec<_>>());
    }
    for (fingerprint, about) in list.entries() {
        writeln!(out, "{fingerprint} {}", escaped(about))?;
    }
    Ok(())
}

fn remove(path: &Path, name: &str) -> Result<(), Failure> {
    let fingerprint = match name.parse() {
        Ok(fingerprint) => fingerprint,
        Err(_) => opened::open("artifact", Path::new(name))?.fingerprint(),
    };
    match TrustList::remove(path, fingerprint)? {
        true => Ok(()),
        false => Err(Failure::file("trust", path, format!("{name} is not on the list"))),
    }
}

fn show(out: &mut impl Write, file: &Path, artifact: &Artifact) -> Result<(), Failure> {
    let m = artifact.manifest();
    let targets: Vec<&str> = m.targets.iter().map(|target| target.name.as_str()).collect();
    writeln!(out, "{}", shown::path(file))?;
    writeln!(out, "model        {}", escaped(&m.model.architecture))?;
    writeln!(out, "targets      {}", escaped(&targets.join(", ")))?;
    writeln!(out, "producer     atomc {}", escaped(&m.producer))?;
    writeln!(out, "fingerprint  {}", artifact.fingerprint())?;
    Ok(())
}

fn describe(file: &str, artifact: &Artifact) -> serde_json::Value {
    let m = artifact.manifest();
    json!({
        "path": file,
        "architecture": m.model.architecture,
        "targets": m.targets.iter().map(|target| &target.name).collect::<Vec<_>>(),
        "producer": m.producer,
        "fingerprint": artifact.fingerprint().to_string(),
    })
}
