//! A fingerprint of each kernel's machine code, so that a change that is to leave code alone can
//! show that it does: `cargo run -p atomc-tests --example codes -- FILE [MODEL|CHIP ...]` before
//! and after, then `diff`.
//!
//! Models are those of the tests, the examples and the benchmarks; chips are arch rows. A list of
//! names keeps the run to these. Symbols do not count: every kernel is emitted under the same one.
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use atomc::driver::{self, Options};
use atomc::frontend::Config;
use atomc_ir::{Arch, Diagnostic};
use atomc_passes::BucketOptions;
use atomc_targets::{KernelSpec, compile, rows};

/// Kernels that were emitted already: equal ones of other models are not emitted again.
type Known = BTreeMap<u64, u64>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let out = args.next().ok_or("codes FILE [MODEL|CHIP ...]")?;
    let named: Vec<String> = args.collect();
    let models = models()?;
    let is_named = |name: &str| named.iter().any(|n| n == name);
    let (any_model, any_chip) =
        (!models.iter().any(|(name, _)| is_named(name)), !rows().iter().any(|arch| is_named(arch.name)));
    let mut known = Known::default();
    let mut text = String::new();
    for (name, path) in models.iter().filter(|(name, _)| any_model || is_named(name)) {
        let config = Config::parse(&fs::read_to_string(path)?, None)?;
        for arch in rows().iter().filter(|arch| any_chip || is_named(arch.name)) {
            let lines = codes(&config, arch, &mut known)?;
            eprintln!("{name}, {}: {} kernels", arch.name, lines.len());
            for (number, line) in lines.iter().enumerate() {
                writeln!(text, "{name} {} {number} {line}", arch.name)?;
            }
        }
    }
    Ok(fs::write(out, text)?)
}

/// Each model's name and configuration.
fn models() -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![];
    for folder in [here.join("golden"), here.join("../examples/models")] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.join("config.json").exists() {
                found.push((name.to_owned(), path.join("config.json")));
            }
        }
    }
    for entry in fs::read_dir(here.join("bench"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") {
            found.push((path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned(), path));
        }
    }
    found.sort();
    Ok(found)
}

/// Family, tokens and fingerprint of each kernel of a model.
fn codes(config: &Config, arch: &Arch, known: &mut Known) -> Result<Vec<String>, Box<dyn Error>> {
    let buckets = BucketOptions { decode: vec![1, 2, 4, 8, 16, 32], ..BucketOptions::default() };
    let options = Options { buckets, ..Options::default() };
    let kernels = driver::kernels(config, &options, arch)?;
    let specs: Vec<KernelSpec> =
        kernels.specs().into_iter().map(|spec| KernelSpec { symbol: "kernel".into(), ..spec }).collect();
    let key = |spec: &KernelSpec| hash(&(arch.name, spec.family.name(), spec.tokens, spec.body.print()));
    let new: Vec<&KernelSpec> = specs.iter().filter(|spec| !known.contains_key(&key(spec))).collect();
    let (next, made) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || -> Result<(), Diagnostic> {
        while let Some(spec) = new.get(next.fetch_add(1, Ordering::Relaxed)) {
            let object = compile(std::slice::from_ref(*spec), arch)?;
            made.lock().expect("no panic").push((key(spec), hash(&object.code)));
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism()?.get();
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        all.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    known.extend(made.into_inner()?);
    let line = |spec: &KernelSpec| format!("{} {} {:016x}", spec.family.name(), spec.tokens, known[&key(spec)]);
    Ok(specs.iter().map(line).collect())
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
