//! Files that a verb writes.
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::failure::Failure;

/// Whether a file can be put here, before hours go into what it is to hold.
pub fn check(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::file("output", path, "is a folder"));
    }
    match folder(path).is_dir() {
        true => Ok(()),
        false => Err(Failure::file("output", path, "the folder does not exist")),
    }
}

/// The file appears whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    make(path, |file| std::fs::write(file, bytes).map_err(|e| Failure::file("output", path, e)))
}

/// A file that is written elsewhere, and appears at this path when it is whole.
pub fn make(path: &Path, write: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
    let fault = |error: std::io::Error| Failure::file("output", path, error);
    let permissions = std::fs::Permissions::from_mode(0o666);
    let file =
        tempfile::Builder::new().prefix(".atomc-").permissions(permissions).tempfile_in(folder(path)).map_err(fault)?;
    write(file.path())?;
    file.persist(path).map_err(|e| fault(e.error))?;
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
