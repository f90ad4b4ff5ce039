//! One file, which stays open and is read when numbers are wanted.
//!
//! It is not mapped: a read of a map past the end of a file that has shrunk ends the process. The
//! file's state at opening is compared with its state when all has been read.
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use atomc_artifact::files;

use crate::error::GgufError;
use crate::header::{Header, Stop};

#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    opened: State,
}

/// Facts of a file that a write changes.
#[derive(Debug, PartialEq, Eq)]
struct State {
    bytes: u64,
    modified: (i64, i64),
}

impl State {
    fn of(file: &File) -> std::io::Result<State> {
        let found = file.metadata()?;
        Ok(State { bytes: found.len(), modified: (found.mtime(), found.mtime_nsec()) })
    }
}

impl Part {
    /// Opens a file and reads its header.
    pub fn open(path: PathBuf) -> Result<(Part, Header), GgufError> {
        let io = |source| GgufError::Io { path: path.clone(), source };
        let file = files::open(&path).map_err(io)?;
        let opened = State::of(&file).map_err(io)?;
        let header = Header::read(BufReader::new(&file), opened.bytes).map_err(|stop| match stop {
            Stop::Io(source) => io(source),
            Stop::Fault(fault) => GgufError::Malformed { path: path.clone(), fault },
        })?;
        Ok((Part { path, file, opened }, header))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads bytes from a place on.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), GgufError> {
        self.file.read_exact_at(out, at).map_err(|source| match self.check() {
            Err(changed) => changed,
            Ok(()) => GgufError::Io { path: self.path.clone(), source },
        })
    }

    /// Fails if the file was written to since it was opened.
    pub fn check(&self) -> Result<(), GgufError> {
        let path = || self.path.clone();
        let now = State::of(&self.file).map_err(|source| GgufError::Io { path: path(), source })?;
        if now.bytes != self.opened.bytes {
            let detail = format!("it has {} bytes, and had {}", now.bytes, self.opened.bytes);
            return Err(GgufError::Changed { path: path(), detail });
        }
        match now == self.opened {
            true => Ok(()),
            false => Err(GgufError::Changed { path: path(), detail: "it was written to".to_owned() }),
        }
    }
}
