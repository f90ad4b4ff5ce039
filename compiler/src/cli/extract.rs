//! Code objects of an artifact as files.
use std::path::Path;

use atomc_artifact::Artifact;
use atomc_artifact::hsaco::CodeObject;
use atomc_artifact::manifest::Target;

use super::failure::Failure;
use super::output;

/// Writes the code of each variant of a target; returns the variants' names and their files' names.
pub fn target(dir: &Path, artifact: &Artifact, target: &Target) -> Result<Vec<(String, String)>, Failure> {
    let write = |variant: &atomc_artifact::manifest::Variant| {
        let code = artifact.section(variant.section);
        let kind = if CodeObject::read(code).is_ok() { "hsaco" } else { "so" };
        let file = match variant.name == target.name {
            true => format!("{}.{kind}", target.name),
            false => format!("{}-{}.{kind}", target.name, variant.name),
        };
        output::write(&dir.join(&file), code)?;
        Ok((variant.name.clone(), file))
    };
    target.variants.iter().map(write).collect()
}

/// Writes all code, into a folder that need not exist.
pub fn all(dir: &Path, artifact: &Artifact) -> Result<Vec<String>, Failure> {
    std::fs::create_dir_all(dir).map_err(|e| Failure::file("output", dir, e))?;
    let mut files = Vec::new();
    for item in &artifact.manifest().targets {
        files.extend(target(dir, artifact, item)?.into_iter().map(|(_, file)| file));
    }
    Ok(files)
}
