//! The header: what sections a file has, how large they are, and what identifies it all. It is
//! looked at before anything else of a file is read.
use super::{MAX_CODE, MAX_MANIFEST};
use crate::error::{Error, Part};
use crate::fingerprint::Fingerprint;

/// The format that this crate writes and reads. [`crate::abi`] and [`crate::manifest`] are part of
/// it.
pub const FORMAT_VERSION: u32 = 14;

/// Not text, and changed by a transfer that rewrites line ends.
pub(super) const SIGNATURE: [u8; 8] = *b"\x89ATOMC\r\n";
pub(super) const TABLE_START: usize = 16;
pub(super) const ENTRY: usize = 48;
pub(super) const HASH: usize = 32;
/// A file that asks for more is damaged: a bound on the table before its checksum is known to be
/// right.
const MAX_SECTIONS: usize = 4096;
/// The bytes of the largest header.
pub(super) const MAX_HEADER: usize = size(MAX_SECTIONS);

/// What a file says of its sections.
#[derive(Debug)]
pub(super) struct Header {
    pub entries: Vec<Entry>,
    /// Bytes of the file.
    pub len: u64,
    pub fingerprint: Fingerprint,
}

/// A section as the table has it.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where it begins in the file.
    pub start: usize,
    /// Its bytes there.
    pub packed: usize,
    /// Its bytes when it is unpacked.
    pub length: usize,
    /// The checksum of the packed bytes.
    pub hash: [u8; 32],
}

impl Header {
    /// Reads the header of a file of `len` bytes, of which `start` is the first [`MAX_HEADER`], or
    /// all. The sections it speaks of fill the file, and no bound is exceeded when they are
    /// unpacked.
    pub fn parse(start: &[u8], len: u64) -> Result<Header, Error> {
        let shared = start.len().min(SIGNATURE.len());
        if shared == 0 || start[..shared] != SIGNATURE[..shared] {
            return Err(Error::NotAnArtifact);
        }
        let short = |need| Error::Truncated { part: Part::Header, need: need as u64, have: len };
        let fixed = start.get(..TABLE_START).ok_or_else(|| short(TABLE_START))?;
        let found = u32_at(fixed, 8);
        if found != FORMAT_VERSION {
            return Err(Error::Version { found, supported: FORMAT_VERSION });
        }
        let count = u32_at(fixed, 12) as usize;
        if !(1..=MAX_SECTIONS).contains(&count) {
            return Err(Error::Checksum { part: Part::Header });
        }
        let end = size(count);
        let header = start.get(..end).ok_or_else(|| short(end))?;
        let (table, hash) = header.split_at(end - HASH);
        let hash = hash_at(hash, 0);
        if blake3::hash(table) != hash {
            return Err(Error::Checksum { part: Part::Header });
        }
        let entries = entries(table, count, len)?;
        bounded(&entries)?;
        Ok(Header { entries, len, fingerprint: Fingerprint::new(hash) })
    }
}

/// The entries of a table. Their sections follow one another and fill the file.
fn entries(table: &[u8], count: usize, len: u64) -> Result<Vec<Entry>, Error> {
    let mut end = size(count);
    let mut entries = Vec::with_capacity(count);
    for index in 0..count {
        let part = Part::section(index);
        let at = TABLE_START + index * ENTRY;
        let [packed, length] = [at, at + 8].map(|at| usize::try_from(u64_at(table, at)));
        let (Ok(packed), Ok(length)) = (packed, length) else {
            return Err(Error::Truncated { part, need: u64::MAX, have: len });
        };
        let start = end;
        end = end.saturating_add(packed);
        if end as u64 > len {
            return Err(Error::Truncated { part, need: end as u64, have: len });
        }
        entries.push(Entry { start, packed, length, hash: *hash_at(table, at + 16).as_bytes() });
    }
    match end as u64 == len {
        true => Ok(entries),
        false => Err(Error::TrailingBytes { need: end as u64, have: len }),
    }
}

/// That neither the file nor what is unpacked of it takes more memory than artifacts may need.
fn bounded(entries: &[Entry]) -> Result<(), Error> {
    let mut code = 0usize;
    for (index, entry) in entries.iter().enumerate() {
        let part = Part::section(index);
        let (bytes, most) = match part {
            Part::Manifest => (entry.length, MAX_MANIFEST),
            _ => {
                code = code.saturating_add(entry.length);
                (code, MAX_CODE)
            }
        };
        if bytes > most {
            return Err(Error::Unpacked { part, bytes: bytes as u64, most: most as u64 });
        }
        // Deflate stores what it cannot make smaller, with 5 bytes for every 32 KiB or more.
        if entry.packed > entry.length + entry.length / 1024 + 64 {
            return Err(Error::Packed { part });
        }
    }
    Ok(())
}

/// The bytes of a header.
pub(super) const fn size(sections: usize) -> usize {
    TABLE_START + sections * ENTRY + HASH
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn hash_at(bytes: &[u8], at: usize) -> blake3::Hash {
    blake3::Hash::from_bytes(std::array::from_fn(|i| bytes[at + i]))
}
