//! Whose code runs where nobody named the file.
//!
//! An artifact is native code. One that a user names is taken; one that merely lies beside a model,
//! which may have come from anywhere, is code that the user has not asked for. The list here says
//! which of those a user trusts, by fingerprint: it holds wherever the file lies, and for no other
//! content.
//!
//! Whoever reads the environment, which the runtime does not, asks [`place`] where the list is.
use atomc_artifact::{Fingerprint, escaped, files};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Why it cannot be said whether an artifact is trusted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum TrustError {
    #[error("the list of trusted artifacts has no place: neither XDG_CONFIG_HOME nor HOME is set")]
    NoHome,
    #[error("the list of trusted artifacts has no place: {variable} is `{}`, which is no absolute path", .value.display())]
    Relative { variable: &'static str, value: PathBuf },
    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: line {line} does not begin with a fingerprint, 64 digits of 0-9 and a-f", .path.display())]
    Line { path: PathBuf, line: usize },
}

/// Where a user's list is, by the values of XDG_CONFIG_HOME and HOME.
pub fn place(config_home: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, TrustError> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    let (variable, folder, below) = match (set(config_home), set(home)) {
        (Some(folder), _) => ("XDG_CONFIG_HOME", folder, "atomc/trusted"),
        (None, Some(folder)) => ("HOME", folder, ".config/atomc/trusted"),
        (None, None) => return Err(TrustError::NoHome),
    };
    match folder.is_absolute() {
        true => Ok(folder.join(below)),
        false => Err(TrustError::Relative { variable, value: folder }),
    }
}

/// The artifacts that a user trusts, as a file says: a line for each, its fingerprint and then what
/// it was, for the reader.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TrustList {
    entries: BTreeMap<Fingerprint, String>,
}

impl TrustList {
    /// Reads the list; one that is not there is empty.
    pub fn read(path: &Path) -> Result<TrustList, TrustError> {
        let text = match files::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(io_error("read", path))?,
        };
        let entry = |(index, line): (usize, &str)| {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            let wrong = |_| TrustError::Line { path: path.to_owned(), line: index + 1 };
            Ok((first.parse().map_err(wrong)?, rest.trim().to_owned()))
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        Ok(TrustList { entries: lines.map(entry).collect::<Result<_, TrustError>>()? })
    }

    /// Whether its code may run wherever it lies.
    pub fn has(&self, fingerprint: Fingerprint) -> bool {
        self.entries.contains_key(&fingerprint)
    }

    /// Fingerprints, and what each is of.
    pub fn entries(&self) -> impl Iterator<Item = (Fingerprint, &str)> {
        self.entries.iter().map(|(fingerprint, about)| (*fingerprint, about.as_str()))
    }

    /// Adds an artifact to the list in a file. `about` is escaped, so no text of an artifact can be
    /// a line of its own.
    pub fn add(path: &Path, fingerprint: Fingerprint, about: &str) -> Result<(), TrustError> {
        change(path, |list| {
            list.entries.insert(fingerprint, escaped(about));
        })
    }

    /// Takes an artifact off the list in a file; whether it was on it.
    pub fn remove(path: &Path, fingerprint: Fingerprint) -> Result<bool, TrustError> {
        change(path, |list| list.entries.remove(&fingerprint).is_some())
    }

    fn text(&self) -> String {
        self.entries.iter().map(|(fingerprint, about)| format!("{fingerprint} {about}\n")).collect()
    }
}

/// Changes the list in a file while nobody else does. The file appears whole or not at all, and
/// only its user can read it.
fn change<T>(path: &Path, change: impl FnOnce(&mut TrustList) -> T) -> Result<T, TrustError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let io = |action| io_error(action, path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error("create", folder))?;
    let lock = path.with_extension("lock");
    let held = File::options().create(true).append(true).open(&lock).map_err(io_error("write", &lock))?;
    held.lock().map_err(io_error("lock", &lock))?;
    let mut list = TrustList::read(path)?;
    let result = change(&mut list);
    let mut file = tempfile::Builder::new().prefix(".trusted-").tempfile_in(folder).map_err(io("write"))?;
    file.write_all(list.text().as_bytes()).map_err(io("write"))?;
    file.as_file().sync_all().map_err(io("write"))?;
    file.persist(path).map_err(|error| io("write")(error.error))?;
    Ok(result)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TrustError {
    let path = path.to_owned();
    move |source| TrustError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
