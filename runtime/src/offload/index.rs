//! What is kept, where, and how long ago it was used.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Chain;
use super::files::{Record, file_bytes};

/// Bytes of memory for a piece, beside its own and its tokens.
const ENTRY_BYTES: usize = 512;

/// A hash of where a piece begins and of its tokens.
pub type Name = [u8; 32];

/// Where a piece begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    /// Its group.
    pub group: usize,
    /// The hash of all that is before it.
    pub chain: Chain,
}

/// A piece that is kept.
#[derive(Debug)]
struct Entry {
    spot: Spot,
    tokens: Arc<[u32]>,
    /// Bytes of the piece.
    len: usize,
    /// Its bytes, and its place in the order of use, if it is in memory.
    host: Option<(u64, Arc<[u8]>)>,
    /// Its place in the order of use, if it is in a file.
    file: Option<u64>,
}

/// One of the two places.
#[derive(Debug)]
struct Tier {
    /// Those used longest ago first.
    order: BTreeMap<u64, Name>,
    bytes: u64,
    most: u64,
}

impl Tier {
    fn new(most: u64) -> Tier {
        Tier { order: BTreeMap::new(), bytes: 0, most }
    }

    fn add(&mut self, (at, name): (u64, Name), bytes: u64) {
        self.order.insert(at, name);
        self.bytes += bytes;
    }

    fn remove(&mut self, at: u64, bytes: u64) {
        self.order.remove(&at);
        self.bytes -= bytes;
    }

    /// The oldest, if there is too much.
    fn oldest(&self) -> Option<Name> {
        self.order.values().next().filter(|_| self.bytes > self.most).copied()
    }
}

/// All pieces that are kept.
#[derive(Debug)]
pub struct Index {
    entries: HashMap<Name, Entry>,
    spots: HashMap<Spot, Vec<Name>>,
    host: Tier,
    files: Tier,
    clock: u64,
}

impl Entry {
    fn host_bytes(&self) -> u64 {
        (self.len + self.tokens.len() * size_of::<u32>() + ENTRY_BYTES) as u64
    }

    fn file_bytes(&self) -> u64 {
        file_bytes(self.tokens.len(), self.len)
    }
}

/// The length of the common beginning of two lists.
fn common(a: &[u32], b: &[u32]) -> usize {
    crate::schedule::common(a, b)
}

impl Index {
    /// With room for so many bytes in memory and in files.
    pub fn new(host: u64, files: u64) -> Index {
        let (host, files) = (Tier::new(host), Tier::new(files));
        Index { entries: HashMap::new(), spots: HashMap::new(), host, files, clock: 0 }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes in memory, and of files.
    pub fn bytes(&self) -> (u64, u64) {
        (self.host.bytes, self.files.bytes)
    }

    /// Adds a piece in memory, which was not kept before.
    pub fn add_host(&mut self, name: Name, record: Record) {
        let Record { spot, tokens, bytes } = record;
        self.insert(name, Entry { spot, tokens, len: bytes.len(), host: None, file: None });
        self.put_in_host(name, bytes);
    }

    /// Adds a piece in a file, which is younger than those before.
    pub fn add_file(&mut self, (name, spot, tokens, len): (Name, Spot, Arc<[u32]>, usize)) {
        self.insert(name, Entry { spot, tokens, len, host: None, file: None });
        self.put_in_file(name);
    }

    fn insert(&mut self, name: Name, entry: Entry) {
        self.spots.entry(entry.spot).or_default().push(name);
        self.entries.insert(name, entry);
    }

    /// Puts a piece into memory as well.
    pub fn put_in_host(&mut self, name: Name, bytes: Arc<[u8]>) {
        let at = self.now();
        let Some(entry) = self.entries.get_mut(&name).filter(|entry| entry.host.is_none()) else { return };
        entry.host = Some((at, bytes));
        self.host.add((at, name), entry.host_bytes());
    }

    fn put_in_file(&mut self, name: Name) {
        let at = self.now();
        let Some(entry) = self.entries.get_mut(&name).filter(|entry| entry.file.is_none()) else { return };
        entry.file = Some(at);
        self.files.add((at, name), entry.file_bytes());
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes a use of a piece.
    pub fn touch(&mut self, name: Name) {
        let Some(entry) = self.entries.get_mut(&name) else { return };
        let (host, file) = (entry.host_bytes(), entry.file_bytes());
        if let Some((at, _)) = &mut entry.host {
            self.clock += 1;
            self.host.remove(std::mem::replace(at, self.clock), host);
            self.host.add((self.clock, name), host);
        }
        if let Some(at) = &mut entry.file {
            self.clock += 1;
            self.files.remove(std::mem::replace(at, self.clock), file);
            self.files.add((self.clock, name), file);
        }
    }

    /// Where a piece begins, and its tokens.
    pub fn at(&self, name: Name) -> Option<(Spot, Arc<[u32]>)> {
        self.entries.get(&name).map(|entry| (entry.spot, entry.tokens.clone()))
    }

    /// The bytes of a piece, if it is in memory.
    pub fn in_host(&self, name: Name) -> Option<Arc<[u8]>> {
        self.entries.get(&name)?.host.as_ref().map(|(_, bytes)| bytes.clone())
    }

    /// The names and tokens of all pieces that begin at a place.
    fn of(&self, spot: Spot) -> impl Iterator<Item = (Name, &[u32])> {
        let names = self.spots.get(&spot).into_iter().flatten();
        names.filter_map(|name| Some((*name, &*self.entries.get(name)?.tokens)))
    }

    /// A piece that has these tokens: exactly, or also more behind them.
    pub fn covering(&self, spot: Spot, tokens: &[u32], exactly: bool) -> Option<Name> {
        let fits = |has: &[u32]| if exactly { has == tokens } else { has.starts_with(tokens) };
        self.of(spot).find(|(_, has)| fits(has)).map(|(name, _)| name)
    }

    /// The pieces that have the first of these tokens alone.
    pub fn within(&self, spot: Spot, tokens: &[u32]) -> Vec<Name> {
        self.of(spot).filter(|(_, has)| tokens.starts_with(has)).map(|(name, _)| name).collect()
    }

    /// The most of these tokens that a piece begins with.
    pub fn agreement(&self, spot: Spot, tokens: &[u32]) -> usize {
        self.of(spot).map(|(_, has)| common(has, tokens)).max().unwrap_or(0)
    }

    /// The numbers of tokens behind which there is a state, of those that begin like these.
    pub fn states(&self, spot: Spot, tokens: &[u32]) -> Vec<usize> {
        self.of(spot).filter(|(_, has)| tokens.starts_with(has)).map(|(_, has)| has.len()).collect()
    }

    /// Forgets a piece. Returns whether it had a file.
    pub fn remove(&mut self, name: Name) -> bool {
        let Some(entry) = self.entries.remove(&name) else { return false };
        if let Some((at, _)) = entry.host {
            self.host.remove(at, entry.host_bytes());
        }
        if let Some(at) = entry.file {
            self.files.remove(at, entry.file_bytes());
        }
        if let Some(names) = self.spots.get_mut(&entry.spot) {
            names.retain(|other| *other != name);
            if names.is_empty() {
                self.spots.remove(&entry.spot);
            }
        }
        entry.file.is_some()
    }

    /// Takes the piece out of memory that was used longest ago, if there is too much. With files it
    /// is in one from now on; gives what is to be written, unless it was in one already.
    pub fn leaves_host(&mut self, has_files: bool) -> Option<(Name, Option<Record>)> {
        let name = self.host.oldest()?;
        if !has_files {
            self.remove(name);
            return Some((name, None));
        }
        let record = self.put_in_files(name);
        let entry = self.entries.get_mut(&name)?;
        if let Some((at, _)) = entry.host.take() {
            self.host.remove(at, entry.host_bytes());
        }
        Some((name, record))
    }

    /// Notes that a piece in memory is in a file from now on. Gives what is to be written, unless
    /// it was in one already.
    fn put_in_files(&mut self, name: Name) -> Option<Record> {
        let entry = self.entries.get(&name).filter(|entry| entry.file.is_none())?;
        let (_, bytes) = entry.host.as_ref()?;
        let record = Record { spot: entry.spot, tokens: entry.tokens.clone(), bytes: bytes.clone() };
        self.put_in_file(name);
        Some(record)
    }

    /// Has all that is in memory be in files too, those used longest ago first. Gives what is to be
    /// written.
    pub fn all_to_files(&mut self) -> Vec<(Name, Record)> {
        let names: Vec<Name> = self.host.order.values().copied().collect();
        names.into_iter().filter_map(|name| Some((name, self.put_in_files(name)?))).collect()
    }

    /// Takes the file out that was used longest ago, if there is too much.
    pub fn leaves_files(&mut self) -> Option<Name> {
        let name = self.files.oldest()?;
        let entry = self.entries.get_mut(&name)?;
        if entry.host.is_none() {
            self.remove(name);
            return Some(name);
        }
        if let Some(at) = entry.file.take() {
            self.files.remove(at, entry.file_bytes());
        }
        Some(name)
    }
}
