//! Files that a user names: how they are opened, and how they come to be.
//!
//! A [`Draft`] has no name until it is whole (`O_TMPFILE`), so a killed process leaves nothing. If
//! the file system knows no such files its name is `.atomc-PID-NUMBER`, and it is locked while its
//! writer lives; the next writer in the folder removes those that are not locked.
use std::ffi::{CString, OsStr};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Links that are followed from one name, as many as Linux follows.
const MAX_LINKS: usize = 40;
/// What names of unfinished files begin with.
const PREFIX: &str = ".atomc-";

/// Opens a regular file to read it. Whatever else has the name is refused: a pipe would wait for a
/// writer that may never come.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a device can do something, so it is looked at first; what is opened may be another
    // file than that.
    check_regular(&std::fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// What a regular file holds.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(file.metadata()?.len().try_into().unwrap_or(usize::MAX))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text that a regular file holds.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// Whether a file can be put here, before hours go into what it is to hold.
pub fn check(path: &Path) -> io::Result<()> {
    Draft::new(path).map(drop)
}

/// Puts a file here, whole or not at all.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut draft = Draft::new(path)?;
    draft.file.write_all(bytes)?;
    draft.publish()
}

/// The same for a derived name (see [`Draft::beside`]).
pub fn write_beside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut draft = Draft::beside(path)?;
    draft.file.write_all(bytes)?;
    draft.publish()
}

/// A file that is being written, and appears in its place when it is whole.
#[derive(Debug)]
pub struct Draft {
    /// The file for the content. No other program sees it before [`Draft::publish`].
    pub file: File,
    place: PathBuf,
    /// What it is called until then, if it has to have a name.
    name: Option<PathBuf>,
}

impl Draft {
    /// Begins a file for this place, which is nothing yet, a regular file, or a link to either. A
    /// link stays.
    pub fn new(path: &Path) -> io::Result<Draft> {
        Draft::begin(path, |folder| unnamed(folder).or_else(|_| named(folder)))
    }

    /// The same for a name that follows from another and that no user chose. A file of that name
    /// may be from a stranger, and a link may lead to any file of the user's.
    pub fn beside(path: &Path) -> io::Result<Draft> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => {
                let message = "a link, which is not followed where the name was not chosen: remove it";
                Err(io::Error::new(ErrorKind::InvalidInput, message))
            }
            _ => Draft::new(path),
        }
    }

    fn begin(path: &Path, make: impl FnOnce(&Path) -> io::Result<(File, Option<PathBuf>)>) -> io::Result<Draft> {
        check_name(path)?;
        check_place(path)?;
        let place = follow(path)?;
        if !folder(&place).is_dir() {
            return Err(io::Error::new(ErrorKind::NotFound, "the folder does not exist"));
        }
        remove_abandoned(folder(&place));
        let (file, name) = make(folder(&place))?;
        Ok(Draft { file, place, name })
    }

    /// Puts the file in its place. It is on the disk when this returns.
    pub fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        check_place(&self.place)?;
        let name = match self.name.take() {
            Some(name) => name,
            None => link(&self.file, folder(&self.place))?,
        };
        // From here on the name is removed as that of an unfinished file is.
        let name = self.name.insert(name);
        std::fs::rename(name, &self.place)?;
        self.name = None;
        sync(folder(&self.place))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // The next writer tries again.
            let _ = std::fs::remove_file(name);
        }
    }
}

fn check_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("{what}, not a regular file")))
}

/// A name that only a folder can have is none of a file.
fn check_name(path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let is_folder = |end: &[u8]| bytes == &end[1..] || bytes.ends_with(end);
    match bytes.ends_with(b"/") || is_folder(b"/.") || is_folder(b"/..") {
        true => Err(io::Error::new(ErrorKind::InvalidInput, "the name of a folder, not of a file")),
        false => Ok(()),
    }
}

/// What a file would replace has to be a regular file.
fn check_place(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) => check_regular(&found),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Where a name leads, whether or not there is something.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..=MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(to) => path = folder(&path).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name, which is gone with the last process that has it open.
fn unnamed(folder: &Path) -> io::Result<(File, Option<PathBuf>)> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder)?;
    // It gets its name by way of /proc.
    std::fs::metadata(descriptor(&file))?;
    lock(&file)?;
    Ok((file, None))
}

/// A file with a name by which it is known as unfinished.
fn named(folder: &Path) -> io::Result<(File, Option<PathBuf>)> {
    for name in names(folder) {
        let file = match OpenOptions::new().read(true).write(true).create_new(true).open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        // A program that removes abandoned files may have removed it meanwhile: then another name
        // is taken.
        if lock(&file)? && file.metadata()?.nlink() > 0 {
            return Ok((file, Some(name)));
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Gives an unnamed file a name in the folder.
fn link(file: &File, folder: &Path) -> io::Result<PathBuf> {
    let from = c_string(Path::new(&descriptor(file)))?;
    for name in names(folder) {
        let to = c_string(&name)?;
        // SAFETY: both are C strings that live until the call returns.
        let done = unsafe {
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        };
        match io::Error::last_os_error() {
            _ if done == 0 => return Ok(name),
            error if error.kind() == ErrorKind::AlreadyExists => (),
            error => return Err(error),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Names for unfinished files of this process.
fn names(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let pid = std::process::id();
    (0..u32::MAX).map(move |number| folder.join(format!("{PREFIX}{pid}-{number}")))
}

fn is_unfinished(name: &OsStr) -> bool {
    let number = |text: &str| text.parse::<u32>().is_ok();
    let parts = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
    parts.is_some_and(|(pid, count)| number(pid) && number(count))
}

/// Whether the file is locked now. If a file system has no locks, no program removes the file
/// either.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes what writers left that were killed. What fails leaves a file for the next writer, and no
/// harm done.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_unfinished(&entry.file_name())) {
        let path = entry.path();
        let options = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let Ok(file) = OpenOptions::new().read(true).write(true).custom_flags(options).open(&path) else { continue };
        // A writer may have published it, and another one taken the name, since it was opened.
        let is_still_there = |file: &File| {
            let (held, named) = (file.metadata().ok()?, std::fs::symlink_metadata(&path).ok()?);
            (held.is_file() && (held.dev(), held.ino()) == (named.dev(), named.ino())).then_some(())
        };
        if file.try_lock().is_ok() && is_still_there(&file).is_some() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Brings the names in a folder to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that may be written and not read, and file systems that do not sync folders.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;
