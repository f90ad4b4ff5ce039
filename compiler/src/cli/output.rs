//! Files that a verb writes.
use std::path::Path;

use atomc_artifact::files;

use super::failure::Failure;

/// Whether a file can be written here, before hours are spent on its contents.
pub fn check(path: &Path) -> Result<(), Failure> {
    files::check(path).map_err(|e| Failure::file("output", path, e))
}

/// Writes a file with a name that the user did not choose: a link is refused.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    files::write_beside(path, bytes).map_err(|e| Failure::file("output", path, e))
}

/// The file appears whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    files::write(path, bytes).map_err(|e| Failure::file("output", path, e))
}
