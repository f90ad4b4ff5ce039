//! Caches that travel: retained beginnings of sequences that leave the engine go to the host's
//! memory, and from there to files. A prompt that begins with them gets them back in place of
//! computing them.
//!
//! The prefix cache ([`crate::schedule::Prefixes`]) calls this at two places: before it drops a
//! sequence (`Offload::save`), and when a prompt goes on behind what the engine itself has of it
//! (`Offload::bring`). What moves are pieces ([`Piece`]): a page of a group of states, or a state
//! behind some tokens. Their bytes are never looked at, so all kinds of caches are alike here.
//!
//! A piece is found by where it begins and by its tokens. Where it begins is a hash over the
//! layout's key, who asks (an adapter's slot, a salt) and all tokens before it, block by block; so
//! nothing is found of another artifact, other weights or another salt. Its tokens are compared
//! themselves. Of a page that has tokens behind those of a prompt, the first are used: kernels read
//! no entry behind a sequence's last token. A state is used behind exactly its tokens.
//!
//! `index.rs` knows what there is and how old it is, `files.rs` has the files.
mod files;
mod index;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use crate::StepError;
use crate::kv::{Kept, Piece, SeqId};
use crate::schedule::{Backend, Owned};

pub use files::OffloadError;
use files::{Files, Record};
use index::{Index, Spot};

/// Tokens that are fewer than this part of a block are computed: copying a page takes longer.
const WORTH: usize = 4;

/// A hash of all that is before a place.
type Chain = [u8; 32];

/// What the pieces of an engine's cache are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Pieces with another key are those of another cache.
    pub key: [u8; 32],
    /// Tokens of a block.
    pub block_tokens: usize,
    /// By their numbers.
    pub groups: Vec<Group>,
}

/// The pieces of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whether they are pages or slots.
    pub kept: Kept,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Bytes of a piece: those of all states of the group, on all ranks.
    pub bytes: usize,
}

impl Layout {
    /// Whether a sequence has all of its pages, and no state: then it can be cut anywhere.
    fn is_plain(&self) -> bool {
        self.groups.iter().all(|group| !group.kept.is_slots() && group.kept.window() == 0)
    }
}

/// How much is kept, and where.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// Most bytes in the host's memory.
    pub host_bytes: u64,
    /// A folder, and the most bytes of files in it.
    pub files: Option<(PathBuf, u64)>,
}

/// Counts since the start, and what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of prompts that were not computed because their pieces were copied back.
    pub tokens: u64,
    /// Pieces that were copied back from the host's memory.
    pub host_hits: u64,
    /// Bytes of these.
    pub host_read: u64,
    /// Pieces that were copied back from files.
    pub file_hits: u64,
    /// Bytes of these.
    pub file_read: u64,
    /// Bytes of pieces that left the engine.
    pub saved: u64,
    /// Files that were damaged, or not there any more.
    pub damaged: u64,
    /// Bytes in the host's memory.
    pub host_bytes: u64,
    /// Bytes of files.
    pub file_bytes: u64,
}

/// What has left an engine's cache.
#[derive(Debug)]
pub struct Offload {
    layout: Layout,
    index: Index,
    files: Option<Files>,
    counts: Counts,
}

/// Tokens of a party, and the hash before each of their blocks.
struct Path<'a> {
    tokens: &'a [u32],
    block: usize,
    chains: Vec<Chain>,
}

impl Path<'_> {
    /// Where a piece of a group begins that begins with this token, which is the first of a block.
    fn spot(&self, group: usize, start: usize) -> Spot {
        Spot { group, chain: self.chains[start / self.block] }
    }
}

impl Offload {
    /// Opens the folder for files, if there is one, and finds what fits the layout in it. Files of
    /// a cache that do not are removed.
    pub fn new(layout: Layout, room: &Room) -> Result<Offload, OffloadError> {
        let most_files = room.files.as_ref().map_or(0, |(_, most)| *most);
        let mut index = Index::new(room.host_bytes, most_files);
        let mut files = None;
        if let Some((folder, _)) = &room.files {
            let (opened, found) = Files::open(folder, &layout)?;
            found.into_iter().for_each(|name| index.add_file(name));
            files = Some(opened);
        }
        let mut offload = Offload { layout, index, files, counts: Counts::default() };
        offload.trim();
        Ok(offload)
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        let (host_bytes, file_bytes) = self.index.bytes();
        Counts { host_bytes, file_bytes, ..self.counts }
    }

    /// Keeps the pieces of a sequence that has these tokens, before the engine drops it: those that
    /// end behind the first `from` tokens, which stay in the engine. Where a sequence can go on
    /// from few places alone, all of them.
    pub(crate) fn save<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        sequence: SeqId,
        (owned, from): (Owned, usize),
    ) -> Result<(), StepError> {
        let from = if self.layout.is_plain() { from } else { 0 };
        let mut pieces = backend.pieces(sequence)?;
        pieces.retain(|piece| piece.end > from && piece.end <= owned.tokens.len());
        // What begins a sequence is of use as long as anything behind it: it is the youngest.
        pieces.sort_by_key(|piece| std::cmp::Reverse(piece.start));
        let path = self.path(owned);
        for piece in pieces {
            let (spot, tokens) = (path.spot(piece.group, piece.start), &owned.tokens[piece.start..piece.end]);
            let is_state = self.layout.groups[piece.group].kept.is_slots();
            if let Some(name) = self.index.covering(spot, tokens, is_state) {
                self.index.touch(name);
                continue;
            }
            let bytes = backend.read_piece(&piece)?;
            self.counts.saved += bytes.len() as u64;
            self.drop_names(if is_state { vec![] } else { self.index.within(spot, tokens) });
            let record = Record { spot, tokens: tokens.into(), bytes: bytes.into() };
            self.index.add_host(record.name(), record);
            self.trim();
        }
        Ok(())
    }

    /// Lengthens a sequence of the engine, which has the first `have` of a prompt's tokens, by what
    /// is kept of the next ones. Returns the number of tokens that it has then.
    pub(crate) fn bring<B: Backend + ?Sized>(
        &mut self,
        backend: &mut B,
        sequence: SeqId,
        (owned, mut have): (Owned, usize),
    ) -> Result<usize, StepError> {
        if self.index.is_empty() {
            return Ok(have);
        }
        let path = self.path(owned);
        loop {
            let tokens = self.find(&path, have);
            if tokens < have + (self.layout.block_tokens / WORTH).max(1) {
                return Ok(have);
            }
            let mut is_whole = true;
            let mut load = |piece: &Piece| {
                let bytes = self.load(&path, piece);
                is_whole = bytes.is_some();
                bytes
            };
            let brought = match backend.bring(sequence, tokens, &mut load) {
                // There is no room: it computes what it would have got.
                Err(StepError::Kv(_)) => return Ok(have),
                brought => brought?,
            };
            if is_whole {
                self.counts.tokens += (brought - have) as u64;
                return Ok(brought);
            }
            // A piece was not what it should be, and is gone now.
            have = brought;
        }
    }

    /// Writes what is in the host's memory to files, if there are files.
    pub fn flush(&mut self) {
        let Some(files) = &mut self.files else { return };
        self.index.all_to_files().into_iter().for_each(|(name, record)| files.write(name, record));
        self.trim();
        if let Some(files) = &mut self.files {
            files.wait();
        }
    }

    fn path<'a>(&self, Owned { party, tokens }: Owned<'a>) -> Path<'a> {
        let block = self.layout.block_tokens;
        let mut chains = Vec::with_capacity(tokens.len() / block + 1);
        let mut hash = blake3::Hasher::new();
        hash.update(&self.layout.key);
        let adapter = party.adapter.map_or(0, |slot| slot as u64 + 1);
        let salt = party.salt.as_deref();
        hash.update(&adapter.to_le_bytes());
        hash.update(&salt.map_or(0, |salt| salt.len() as u64 + 1).to_le_bytes());
        hash.update(salt.unwrap_or_default().as_bytes());
        chains.push(*hash.finalize().as_bytes());
        for block in tokens.chunks_exact(block) {
            let mut hash = blake3::Hasher::new();
            hash.update(chains.last().expect("one was pushed"));
            block.iter().for_each(|token| _ = hash.update(&token.to_le_bytes()));
            chains.push(*hash.finalize().as_bytes());
        }
        Path { tokens, block, chains }
    }

    /// The most of a prompt's tokens, more than `have`, with which a sequence can go on that has
    /// those; or `have`.
    fn find(&self, path: &Path, have: usize) -> usize {
        let groups = || self.layout.groups.iter().enumerate();
        let mut limit = path.tokens.len();
        let mut reaches = vec![];
        for (number, group) in groups().filter(|(_, group)| !group.kept.is_slots()) {
            let reach = Reach::of(&self.index, path, (number, group, have.min(limit), limit));
            limit = reach.limit(limit);
            reaches.push(reach);
        }
        let serves = |&tokens: &usize| reaches.iter().all(|reach| reach.serves(tokens));
        let states: Vec<usize> =
            groups().filter(|(_, group)| group.kept.is_slots()).map(|(number, _)| number).collect();
        let Some((&first, others)) = states.split_first() else {
            return (have + 1..=limit).rev().find(serves).unwrap_or(have);
        };
        let has = |group: usize, end: usize| {
            let start = end / path.block * path.block;
            self.index.covering(path.spot(group, start), &path.tokens[start..end], true).is_some()
        };
        let blocks = (have / path.block..=limit / path.block).rev();
        let ends = blocks.flat_map(|block| {
            let start = block * path.block;
            let mut ends = self.index.states(path.spot(first, start), &path.tokens[start..limit]);
            ends.sort_unstable_by(|a, b| b.cmp(a));
            ends.into_iter().map(move |tokens| start + tokens)
        });
        let mut ends = ends.filter(|&end| end > have);
        ends.find(|end| others.iter().all(|&group| has(group, *end)) && serves(end)).unwrap_or(have)
    }

    /// The bytes of a piece of a prompt.
    fn load(&mut self, path: &Path, piece: &Piece) -> Option<Arc<[u8]>> {
        let tokens = &path.tokens[piece.start..piece.end];
        let is_state = self.layout.groups[piece.group].kept.is_slots();
        let name = self.index.covering(path.spot(piece.group, piece.start), tokens, is_state)?;
        self.index.touch(name);
        if let Some(bytes) = self.index.in_host(name) {
            self.counts.host_hits += 1;
            self.counts.host_read += bytes.len() as u64;
            return Some(bytes);
        }
        let (spot, tokens) = self.index.at(name)?;
        match self.files.as_mut()?.read(name, (spot, tokens), &self.layout) {
            Some(bytes) => {
                self.counts.file_hits += 1;
                self.counts.file_read += bytes.len() as u64;
                self.index.put_in_host(name, bytes.clone());
                self.trim();
                Some(bytes)
            }
            None => {
                self.counts.damaged += 1;
                self.drop_names(vec![name]);
                None
            }
        }
    }

    /// Forgets pieces, in memory and in files.
    fn drop_names(&mut self, names: Vec<index::Name>) {
        for name in names {
            if self.index.remove(name)
                && let Some(files) = &mut self.files
            {
                files.remove(name);
            }
        }
    }

    /// Brings both places to what they may hold: from memory the oldest go to files, and of files
    /// the oldest are removed.
    fn trim(&mut self) {
        while let Some((name, record)) = self.index.leaves_host(self.files.is_some()) {
            if let (Some(record), Some(files)) = (record, &mut self.files) {
                files.write(name, record);
            }
        }
        while let Some(name) = self.index.leaves_files() {
            if let Some(files) = &mut self.files {
                files.remove(name);
            }
        }
    }
}

/// How far the pages of a group go along a prompt.
struct Reach {
    kept: Kept,
    page_tokens: usize,
    /// The page of the first token that is not there already.
    first: usize,
    /// Of each page from that one on, the first tokens that are kept.
    tokens: Vec<usize>,
    /// The number of whole pages that end with each.
    run: Vec<usize>,
}

impl Reach {
    fn of(index: &Index, path: &Path, (number, group, have, limit): (usize, &Group, usize, usize)) -> Reach {
        let &Group { kept, page_tokens, .. } = group;
        let first = have / page_tokens;
        let (mut tokens, mut run) = (vec![], vec![]);
        for page in first..limit.div_ceil(page_tokens) {
            let start = page * page_tokens;
            let of_page = &path.tokens[start..limit.min(start + page_tokens)];
            let agree = index.agreement(path.spot(number, start), of_page);
            let is_whole = agree == page_tokens;
            run.push(if is_whole { run.last().map_or(1, |before| before + 1) } else { 0 });
            tokens.push(agree);
            if !is_whole && kept.window() == 0 {
                break;
            }
        }
        Reach { kept, page_tokens, first, tokens, run }
    }

    /// The most tokens that a sequence may have by this group, up to `limit`.
    fn limit(&self, limit: usize) -> usize {
        let last = self.tokens.iter().rposition(|&tokens| tokens > 0);
        limit.min(
            last.map_or(self.first * self.page_tokens, |last| {
                (self.first + last) * self.page_tokens + self.tokens[last]
            }),
        )
    }

    /// Whether all pages are there that a sequence of so many tokens needs.
    fn serves(&self, tokens: usize) -> bool {
        let (whole, rest) = (tokens / self.page_tokens, tokens % self.page_tokens);
        let seen = self.kept.first_seen(self.page_tokens, tokens).max(self.first);
        let needed = whole.saturating_sub(seen);
        let has_whole = needed == 0 || self.run.get(whole - 1 - self.first).is_some_and(|&run| run >= needed);
        let is_needed = rest > 0 && whole >= seen;
        let has_rest = !is_needed || self.tokens.get(whole - self.first).is_some_and(|&have| have >= rest);
        has_whole && has_rest
    }
}
