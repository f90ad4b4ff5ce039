//! Trust in code that no user has named.
//!
//! An artifact is native code. One that a user names is run. One that only lies next to a model may
//! be from anywhere, and the user has not asked for its code. The list here says which of those a
//! user trusts, by fingerprint: it holds for that content in any place, and for no other content.
//!
//! The runtime does not read the environment. Programs that do ask [`place`] for the list's place.
use atomc_artifact::files::{self, Draft};
use atomc_artifact::{Fingerprint, escaped};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
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
    #[error("{} is not obeyed: {why}", .path.display())]
    Open { path: PathBuf, why: String },
    #[error("{}: line {line} does not begin with a fingerprint, 64 digits of 0-9 and a-f", .path.display())]
    Line { path: PathBuf, line: usize },
}

/// The path of a user's list, by the values of XDG_CONFIG_HOME and HOME.
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

/// The artifacts that a user trusts, as read from a file: each line is a fingerprint and a
/// description for the reader.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TrustList {
    entries: BTreeMap<Fingerprint, String>,
}

impl TrustList {
    /// Reads the list; one that is not there is empty. A list that others may have written is
    /// refused.
    pub fn read(path: &Path) -> Result<TrustList, TrustError> {
        let io = || io_error("read", path);
        let mut file = match files::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(TrustList::default()),
            file => file.map_err(io())?,
        };
        check_owner(path, &file)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io())?;
        let entry = |(index, line): (usize, &str)| {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            let wrong = |_| TrustError::Line { path: path.to_owned(), line: index + 1 };
            Ok((first.parse().map_err(wrong)?, rest.trim().to_owned()))
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        Ok(TrustList { entries: lines.map(entry).collect::<Result<_, TrustError>>()? })
    }

    /// Whether an artifact's code may run in any place.
    pub fn has(&self, fingerprint: Fingerprint) -> bool {
        self.entries.contains_key(&fingerprint)
    }

    /// Fingerprints with their descriptions.
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

/// Checks that only its user, and root, may write to a list and to its folder.
fn check_owner(path: &Path, file: &File) -> Result<(), TrustError> {
    let io = || io_error("read", path);
    let real = std::fs::canonicalize(path).map_err(io())?;
    let folder = real.parent().unwrap_or(Path::new("/"));
    let held = [(real.as_path(), file.metadata()), (folder, std::fs::metadata(folder))];
    // SAFETY: it has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    for (name, facts) in held {
        let facts = facts.map_err(io())?;
        let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
        let refused = |why| Err(TrustError::Open { path: path.to_owned(), why });
        if owner != user && owner != 0 {
            return refused(format!("{} belongs to user {owner}, and this is user {user}", name.display()));
        }
        if mode & 0o022 != 0 {
            let who = format!("others may write to {} (mode {mode:o})", name.display());
            return refused(format!("{who}; `chmod go-w` takes that back, once you have looked at the list"));
        }
    }
    Ok(())
}

/// Changes the list in a file under a lock. The file appears whole or not at all, and only its user
/// can read it. A link to it stays.
fn change<T>(path: &Path, change: impl FnOnce(&mut TrustList) -> T) -> Result<T, TrustError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let io = |action| io_error(action, path);
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error("create", folder))?;
    let lock = path.with_extension("lock");
    let held = File::options().create(true).append(true).open(&lock).map_err(io_error("write", &lock))?;
    held.lock().map_err(io_error("lock", &lock))?;
    let mut list = TrustList::read(path)?;
    let result = change(&mut list);
    let mut draft = Draft::new(path).map_err(io("write"))?;
    draft.file.set_permissions(Permissions::from_mode(0o600)).map_err(io("write"))?;
    draft.file.write_all(list.text().as_bytes()).map_err(io("write"))?;
    draft.publish().map_err(io("write"))?;
    Ok(result)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TrustError {
    let path = path.to_owned();
    move |source| TrustError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
