//! Code of an artifact as files.
use std::path::Path;

use atomc_artifact::Artifact;
use atomc_artifact::hsaco::CodeObject;
use atomc_artifact::manifest::{EXCHANGE, Extent, Kernel, PACK, PREPARE, Target, Variant};

use super::failure::Failure;
use super::output;

/// Writes the code of each variant of a target; returns for each the files that its kernels are in.
pub fn target(dir: &Path, artifact: &Artifact, target: &Target) -> Result<Vec<Vec<String>>, Failure> {
    let write = |variant: &Variant| {
        let section = artifact.section(variant.section)?;
        let mut kernels = Vec::with_capacity(variant.kernels.len());
        for files in files(target, variant, section) {
            for (name, extent) in &files {
                // One for all is written once.
                if !kernels.contains(name) {
                    output::write_beside(&dir.join(name), extent.of(section))?;
                }
            }
            kernels.extend(files.into_iter().map(|(name, _)| name).next_back());
        }
        Ok(kernels)
    };
    target.variants.iter().map(write).collect()
}

/// For each kernel its files, the most finished last, and where in the section each is: one for
/// all, or its own modules.
fn files(target: &Target, variant: &Variant, section: &[u8]) -> Vec<Vec<(String, Extent)>> {
    let name = match variant.name == target.name {
        true => target.name.clone(),
        false => format!("{}-{}", target.name, variant.name),
    };
    let kind = if CodeObject::read(section).is_ok() { "hsaco" } else { "so" };
    let whole = (format!("{name}.{kind}"), Extent { start: 0, bytes: section.len() });
    let kernels = target.kernels.iter().map(|def| &def.symbol[..]).zip(&variant.kernels);
    let prepare = variant.prepare.iter().map(|kernel| (PREPARE, kernel));
    let pack = variant.pack.iter().map(|kernel| (PACK, kernel));
    let exchange = variant.exchange.iter().map(|kernel| (EXCHANGE, kernel));
    let of = |(symbol, kernel): (&str, &Kernel)| {
        let Some(module) = &kernel.module else { return vec![whole.clone()] };
        // The zero after the text is no part of it.
        let text = Extent { bytes: module.ptx.bytes - 1, ..module.ptx };
        let cubin = module.cubin.map(|cubin| (format!("{name}-{symbol}.cubin"), cubin));
        std::iter::once((format!("{name}-{symbol}.ptx"), text)).chain(cubin).collect()
    };
    kernels.chain(prepare).chain(pack).chain(exchange).map(of).collect()
}

/// Writes all code, into a folder that need not exist.
pub fn all(dir: &Path, artifact: &Artifact) -> Result<Vec<String>, Failure> {
    std::fs::create_dir_all(dir).map_err(|e| Failure::file("output", dir, e))?;
    let mut names = Vec::new();
    for item in &artifact.manifest().targets {
        target(dir, artifact, item)?;
        for variant in &item.variants {
            let files = files(item, variant, artifact.section(variant.section)?);
            names.extend(files.into_iter().flatten().map(|(name, _)| name));
        }
    }
    names.dedup();
    Ok(names)
}
