//! Pieces in files of one folder, a file each.
//!
//! A file is a header, the tokens of the piece, and its bytes. Its name is a hash of where the
//! piece begins and of its tokens, and a checksum covers every byte. It is written under another
//! name and renamed when it is whole, so a process that is killed leaves whole files and one
//! unfinished one. Nothing is flushed to the disk: what a machine without power leaves half is
//! found by the checksum. Sizes are those of the layout, never those of a header, so a file decides
//! about no allocation.
//!
//! A server has the folder for itself, by a lock. A thread of its own writes and removes; what is
//! not written yet is read from memory. Files whose names are not as these are stay untouched.
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use super::index::{Name, Spot};
use super::{Group, Layout};

/// What every file begins with: the format and its version.
const MAGIC: &[u8; 8] = b"atomcpc1";
/// Bytes before the checksum.
const SUMMED: usize = 88;
/// Bytes before the tokens.
const HEADER: usize = SUMMED + blake3::OUT_LEN;
/// What names of whole files end with, and of unfinished ones.
const WHOLE: &str = "piece";
const UNFINISHED: &str = "new";
/// Files of others than their owner have no rights.
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Bits of a folder's mode by which others than its owner may write to it.
const OTHERS_WRITE: u32 = 0o022;
/// Bytes that wait for the writer at most; more have the engine wait.
const WAITING_BYTES: usize = 256 << 20;
/// Most pieces that wait, however small they are.
const WAITING: usize = 4096;
/// What file systems give files in units of.
const UNIT: u64 = 4096;

/// Reasons why a folder is no place for a cache.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum OffloadError {
    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} {why}", .path.display())]
    Open { path: PathBuf, why: String },
    #[error("{} is the cache of another server that runs", .path.display())]
    Taken { path: PathBuf },
}

/// A piece with its bytes.
#[derive(Clone, Debug)]
pub struct Record {
    /// Where it begins.
    pub spot: Spot,
    /// Its tokens.
    pub tokens: Arc<[u32]>,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
}

/// What a file's header says: where its piece begins, its tokens, the length of its bytes.
pub type Named = (Name, Spot, Arc<[u32]>, usize);

/// A folder with pieces.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    /// Held while this is.
    _lock: File,
    waiting: Waiting,
    sender: Option<SyncSender<Work>>,
    writer: Option<JoinHandle<()>>,
}

/// Pieces that are not written yet.
type Waiting = Arc<Mutex<HashMap<Name, Arc<Record>>>>;

/// What the writer does, in this order.
enum Work {
    Write(Name, Arc<Record>),
    Remove(Name),
    /// Says when all before it is done.
    Tell(Sender<()>),
}

/// Bytes that a file of a piece takes.
pub fn file_bytes(tokens: usize, bytes: usize) -> u64 {
    ((HEADER + tokens * size_of::<u32>() + bytes) as u64).next_multiple_of(UNIT)
}

/// A hash of where a piece begins, and of its tokens.
fn name_of(spot: Spot, tokens: &[u32]) -> Name {
    let mut hash = blake3::Hasher::new();
    hash.update(&spot.chain);
    hash.update(&(spot.group as u64).to_le_bytes());
    tokens.iter().for_each(|token| _ = hash.update(&token.to_le_bytes()));
    *hash.finalize().as_bytes()
}

impl Record {
    /// Its name, which no other piece has.
    pub fn name(&self) -> Name {
        name_of(self.spot, &self.tokens)
    }

    /// The file's bytes before those of the piece.
    fn head(&self, key: &[u8; 32]) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEADER + self.tokens.len() * size_of::<u32>());
        head.extend(MAGIC);
        head.extend(key);
        head.extend(self.spot.chain);
        head.extend((self.spot.group as u32).to_le_bytes());
        head.extend((self.tokens.len() as u32).to_le_bytes());
        head.extend((self.bytes.len() as u64).to_le_bytes());
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let sum = checksum(&head, &tokens, &self.bytes);
        head.extend(sum);
        head.extend(tokens);
        head
    }
}

fn checksum(head: &[u8], tokens: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    [head, tokens, bytes].into_iter().for_each(|part| _ = hash.update(part));
    *hash.finalize().as_bytes()
}

impl Files {
    /// Takes a folder, which is made if it is not there. Finds its pieces of this layout, the
    /// oldest first. Removes unfinished files and those of any other cache.
    pub fn open(folder: &Path, layout: &Layout) -> Result<(Files, Vec<Named>), OffloadError> {
        let io = |action| fault(action, folder);
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(io("make"))?;
        check_owner(folder)?;
        let lock = take(folder)?;
        let mut found: Vec<(SystemTime, Named)> = vec![];
        let mut removed = 0;
        for entry in std::fs::read_dir(folder).map_err(io("read"))? {
            let path = entry.map_err(io("read"))?.path();
            let Some((name, is_whole)) = parse(&path) else { continue };
            match is_whole.then(|| look(&path, name, layout)).flatten() {
                Some(piece) => found.push(piece),
                None => {
                    std::fs::remove_file(&path).map_err(fault("remove", &path))?;
                    removed += 1;
                }
            }
        }
        found.sort_by_key(|(made, (name, ..))| (*made, *name));
        tracing::info!(found = found.len(), removed, folder = %folder.display(), "files of the cache");
        let waiting = Waiting::default();
        let largest = layout.groups.iter().map(|group| group.bytes).max().unwrap_or(1).max(1);
        let (sender, receiver) = sync_channel((WAITING_BYTES / largest).clamp(1, WAITING));
        let place = Place { folder: folder.to_owned(), key: layout.key };
        let thread = std::thread::Builder::new().name("atomc-cache".into());
        let shared = waiting.clone();
        let writer = thread.spawn(move || write_all(&receiver, &place, &shared)).map_err(io("write to"))?;
        let files =
            Files { folder: folder.to_owned(), _lock: lock, waiting, sender: Some(sender), writer: Some(writer) };
        Ok((files, found.into_iter().map(|(_, piece)| piece).collect()))
    }

    /// Has a piece written. Waits while too much is to be written before.
    pub fn write(&mut self, name: Name, record: Record) {
        let record = Arc::new(record);
        locked(&self.waiting).insert(name, record.clone());
        self.tell(Work::Write(name, record));
    }

    /// Has a file removed.
    pub fn remove(&mut self, name: Name) {
        locked(&self.waiting).remove(&name);
        self.tell(Work::Remove(name));
    }

    /// Waits until all is written.
    pub fn wait(&mut self) {
        let (done, told) = channel();
        self.tell(Work::Tell(done));
        // An error is the end of the writer, which nothing is left to wait for.
        _ = told.recv();
    }

    /// The bytes of a piece that is as it was written; none of one that is not.
    pub fn read(&mut self, name: Name, (spot, tokens): (Spot, Arc<[u32]>), layout: &Layout) -> Option<Arc<[u8]>> {
        if let Some(record) = locked(&self.waiting).get(&name) {
            return Some(record.bytes.clone());
        }
        let path = path(&self.folder, name, WHOLE);
        let mut file = open(&path).ok()?;
        let group = layout.groups[spot.group];
        let bytes = vec![0; group.bytes];
        let mut record = Record { spot, tokens, bytes: bytes.into() };
        let tokens = record.tokens.len() * size_of::<u32>();
        let mut head = vec![0; HEADER + tokens];
        if file.metadata().ok()?.len() != (head.len() + group.bytes) as u64 {
            return None;
        }
        file.read_exact(&mut head).ok()?;
        file.read_exact(Arc::get_mut(&mut record.bytes)?).ok()?;
        (head == record.head(&layout.key)).then_some(record.bytes)
    }

    fn tell(&self, work: Work) {
        // A writer that has ended has told why; what it does not write is not found later.
        _ = self.sender.as_ref().map(|sender| sender.send(work));
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.sender = None;
        // Its panic was reported in its thread.
        _ = self.writer.take().map(JoinHandle::join);
    }
}

/// Where the writer writes, and the layout's key.
struct Place {
    folder: PathBuf,
    key: [u8; 32],
}

fn write_all(receiver: &Receiver<Work>, place: &Place, waiting: &Waiting) {
    let mut is_told = false;
    for work in receiver {
        match work {
            Work::Write(name, record) => {
                if let Err(error) = place.write(name, &record)
                    && !std::mem::replace(&mut is_told, true)
                {
                    tracing::warn!(%error, folder = %place.folder.display(), "a piece of the cache was not written");
                }
                let mut waiting = locked(waiting);
                if waiting.get(&name).is_some_and(|other| Arc::ptr_eq(other, &record)) {
                    waiting.remove(&name);
                }
            }
            // It may never have been written.
            Work::Remove(name) => _ = std::fs::remove_file(path(&place.folder, name, WHOLE)),
            Work::Tell(done) => _ = done.send(()),
        }
    }
}

impl Place {
    fn write(&self, name: Name, record: &Record) -> io::Result<()> {
        let unfinished = path(&self.folder, name, UNFINISHED);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(MODE).custom_flags(libc::O_NOFOLLOW);
        let done = file.open(&unfinished).and_then(|mut file| {
            file.write_all(&record.head(&self.key))?;
            file.write_all(&record.bytes)
        });
        let done = done.and_then(|()| std::fs::rename(&unfinished, path(&self.folder, name, WHOLE)));
        if done.is_err() {
            // The next start tries again.
            _ = std::fs::remove_file(&unfinished);
        }
        done
    }
}

fn locked(waiting: &Waiting) -> MutexGuard<'_, HashMap<Name, Arc<Record>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OffloadError {
    let path = path.to_owned();
    move |source| OffloadError::Io { action, path, source }
}

fn path(folder: &Path, name: Name, ending: &str) -> PathBuf {
    folder.join(format!("{}.{ending}", blake3::Hash::from_bytes(name).to_hex()))
}

/// The name of a piece's file, and whether it is whole; none of other files.
fn parse(path: &Path) -> Option<(Name, bool)> {
    let (stem, ending) = path.file_name()?.to_str()?.split_once('.')?;
    let name = *blake3::Hash::from_hex(stem).ok()?.as_bytes();
    (ending == WHOLE || ending == UNFINISHED).then_some((name, ending == WHOLE))
}

/// Checks that a folder is its user's, and that nobody else may write to it.
fn check_owner(folder: &Path) -> Result<(), OffloadError> {
    let facts = std::fs::metadata(folder).map_err(fault("read", folder))?;
    // SAFETY: it has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
    let refused = |why| Err(OffloadError::Open { path: folder.to_owned(), why });
    if owner != user {
        return refused(format!("belongs to user {owner}, and this is user {user}"));
    }
    if mode & OTHERS_WRITE != 0 {
        return refused(format!("may be written to by others (mode {mode:o}); `chmod go-w` takes that back"));
    }
    Ok(())
}

/// The lock of a folder.
fn take(folder: &Path) -> Result<File, OffloadError> {
    let path = folder.join("lock");
    let mut options = OpenOptions::new();
    let lock = options.create(true).append(true).mode(MODE).custom_flags(libc::O_NOFOLLOW).open(&path);
    let lock = lock.map_err(fault("write", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OffloadError::Taken { path: folder.to_owned() }),
        Err(TryLockError::Error(source)) => Err(fault("lock", &path)(source)),
    }
}

/// Opens a file that is no link, pipe or device.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// What a file says that it has, if it may be a piece of this layout; its bytes are looked at when
/// they are read.
fn look(path: &Path, name: Name, layout: &Layout) -> Option<(SystemTime, Named)> {
    let mut file = open(path).ok()?;
    let mut head = [0; HEADER];
    file.read_exact(&mut head).ok()?;
    let (magic, rest) = head.split_first_chunk::<8>()?;
    let (key, rest) = rest.split_first_chunk::<32>()?;
    let (chain, rest) = rest.split_first_chunk::<32>()?;
    let (group, rest) = rest.split_first_chunk::<4>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (len, _) = rest.split_first_chunk::<8>()?;
    let [number, count] = [group, count].map(|bytes| u32::from_le_bytes(*bytes) as usize);
    let group = layout.groups.get(number)?;
    let is_own = magic == MAGIC && *key == layout.key && u64::from_le_bytes(*len) == group.bytes as u64;
    let facts = file.metadata().ok()?;
    let whole = (HEADER + count * size_of::<u32>() + group.bytes) as u64;
    if !is_own || !fits(group, count, layout) || facts.len() != whole {
        return None;
    }
    let mut tokens = vec![0; count * size_of::<u32>()];
    file.read_exact(&mut tokens).ok()?;
    let tokens: Arc<[u32]> = tokens.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let spot = Spot { group: number, chain: *chain };
    (name_of(spot, &tokens) == name).then_some((facts.modified().ok()?, (name, spot, tokens, group.bytes)))
}

/// Whether a piece of a group may have so many tokens.
fn fits(group: &Group, tokens: usize, layout: &Layout) -> bool {
    match group.kept.is_slots() {
        true => tokens < layout.block_tokens,
        false => (1..=group.page_tokens).contains(&tokens),
    }
}
