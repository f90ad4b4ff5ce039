//! Artifacts that a user names.
use std::path::Path;

use atomc_artifact::{Artifact, Error};

use super::failure::Failure;

/// Opens the artifact in a file. Errors have the file's name.
pub fn open(code: &'static str, path: &Path) -> Result<Artifact, Failure> {
    Artifact::open(path).map_err(|error| fault(code, path, error))
}

/// The fault of the artifact in a file.
pub fn fault(code: &'static str, path: &Path, error: Error) -> Failure {
    match error {
        // Which names the file itself.
        Error::Io { .. } => Failure::new(code, error),
        _ => Failure::file(code, path, error),
    }
}
