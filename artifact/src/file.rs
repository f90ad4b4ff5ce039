//! Layout of the file, all numbers little-endian:
//!
//! ```text
//! 0     8 bytes   signature
//! 8     u32       format version
//! 12    u32       number of sections
//! 16    48 bytes  per section: u64 offset, u64 length, blake3 of its bytes
//! …     32 bytes  blake3 of everything above
//! …               the sections, each at the next multiple of 64 bytes, zeros between them
//! ```
//!
//! Section 0 is the manifest as JSON, the others are code objects. There is one way to lay out
//! given sections, and the reader insists on it, so that no byte of a file can change unnoticed.
use crate::check;
use crate::error::{Error, Part};
use crate::files;
use crate::fingerprint::Fingerprint;
use crate::manifest::Manifest;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The format that this crate writes and reads. [`crate::abi`] and [`crate::manifest`] are part of
/// it.
pub const FORMAT_VERSION: u32 = 9;

/// Not text, and changed by a transfer that rewrites line ends.
const SIGNATURE: [u8; 8] = *b"\x89ATOMC\r\n";
const TABLE_START: usize = 16;
const ENTRY: usize = 48;
const HASH: usize = 32;
const ALIGN: usize = 64;
/// A file that asks for more is damaged: a bound on the table before its checksum is known to be
/// right.
const MAX_SECTIONS: usize = 4096;

/// An artifact in memory, known to be whole.
#[derive(Debug)]
pub struct Artifact {
    bytes: Aligned,
    fingerprint: Fingerprint,
    manifest: Manifest,
    sections: Vec<Section>,
}

/// The bytes of a file, aligned in memory as sections are in the file: drivers are given pointers
/// into them.
#[derive(Debug)]
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn read(file: File) -> std::io::Result<Aligned> {
        let len = file.metadata()?.len();
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX).saturating_add(ALIGN))?;
        let start = bytes.as_ptr().align_offset(ALIGN);
        bytes.resize(start, 0);
        // There is room for one byte more, so that nothing moves.
        file.take(len).read_to_end(&mut bytes)?;
        Ok(Aligned { bytes, start })
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Where a section lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Where in the file, from its first byte on.
    pub bytes: Range<usize>,
    /// The blake3 checksum of these bytes, which was compared when the file was opened.
    pub hash: [u8; 32],
}

impl Artifact {
    /// Reads the file, checks every checksum and the manifest. What happens to the file later does
    /// not matter.
    pub fn open(path: impl AsRef<Path>) -> Result<Artifact, Error> {
        let path = path.as_ref();
        let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        let file = files::open(path).map_err(io("open"))?;
        let mut signature = [0; SIGNATURE.len()];
        // A short file is for the decoder to explain.
        if file.read_exact_at(&mut signature, 0).is_ok() && signature != SIGNATURE {
            return Err(Error::NotAnArtifact);
        }
        let bytes = Aligned::read(file).map_err(io("read"))?;
        let (manifest, sections) = decode(&bytes)?;
        Ok(Artifact { fingerprint: fingerprint(&bytes), bytes, manifest, sections })
    }

    /// What the artifact says about itself: indices and places in it may be followed without
    /// looking.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What identifies the content that is open here, whatever lies at its path meanwhile.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The sections in order; the first is the manifest.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The bytes of a section, e.g. of the one that a variant names.
    pub fn section(&self, index: usize) -> &[u8] {
        &self.bytes[self.sections[index].bytes.clone()]
    }

    /// Size of the file.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Writes an artifact with these code objects as sections 1, 2, …. The file appears whole or not at
/// all, and the same input makes the same bytes. The result identifies them.
pub fn write(path: impl AsRef<Path>, manifest: &Manifest, code: &[Vec<u8>]) -> Result<Fingerprint, Error> {
    let path = path.as_ref();
    let bytes = encode(manifest, code)?;
    files::write(path, &bytes).map_err(|source| Error::Io { action: "write", path: path.to_owned(), source })?;
    Ok(fingerprint(&bytes))
}

/// The bytes of the file that [`write()`] makes.
pub fn encode(manifest: &Manifest, code: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
    // The manifest's own size is not known yet, and nothing depends on it.
    let sizes: Vec<usize> = std::iter::once(0).chain(code.iter().map(Vec::len)).collect();
    check::manifest(manifest, &sizes)?;
    let json = serde_json::to_vec(manifest).map_err(|error| fault("", error))?;
    if parse(&json)? != *manifest {
        return Err(fault("", "a number does not survive being written and read back"));
    }
    let sections: Vec<&[u8]> = std::iter::once(&json[..]).chain(code.iter().map(Vec::as_slice)).collect();
    let ends = header_bytes(sections.len());
    let mut table = Vec::with_capacity(ends);
    table.extend_from_slice(&SIGNATURE);
    table.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    table.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    let mut offset = ends;
    for section in &sections {
        offset = offset.next_multiple_of(ALIGN);
        table.extend_from_slice(&(offset as u64).to_le_bytes());
        table.extend_from_slice(&(section.len() as u64).to_le_bytes());
        table.extend_from_slice(blake3::hash(section).as_bytes());
        offset += section.len();
    }
    let hash = blake3::hash(&table);
    let mut file = table;
    file.extend_from_slice(hash.as_bytes());
    for section in &sections {
        file.resize(file.len().next_multiple_of(ALIGN), 0);
        file.extend_from_slice(section);
    }
    Ok(file)
}

fn decode(file: &[u8]) -> Result<(Manifest, Vec<Section>), Error> {
    let sections = read_table(file)?;
    check_sections(file, &sections)?;
    let manifest = parse(&file[sections[0].bytes.clone()])?;
    let sizes: Vec<usize> = sections.iter().map(|section| section.bytes.len()).collect();
    check::manifest(&manifest, &sizes)?;
    Ok((manifest, sections))
}

/// The section table, once the header proves to be what was written. Offsets are not looked at yet.
fn read_table(file: &[u8]) -> Result<Vec<Section>, Error> {
    let shared = file.len().min(SIGNATURE.len());
    if shared == 0 || file[..shared] != SIGNATURE[..shared] {
        return Err(Error::NotAnArtifact);
    }
    let short = |need| Error::Truncated { part: Part::Header, need: need as u64, have: file.len() as u64 };
    let start = file.get(..TABLE_START).ok_or_else(|| short(TABLE_START))?;
    let found = u32_at(start, 8);
    if found != FORMAT_VERSION {
        return Err(Error::Version { found, supported: FORMAT_VERSION });
    }
    let count = u32_at(start, 12) as usize;
    if !(1..=MAX_SECTIONS).contains(&count) {
        return Err(Error::Checksum { part: Part::Header });
    }
    let end = header_bytes(count);
    let header = file.get(..end).ok_or_else(|| short(end))?;
    let (table, hash) = header.split_at(end - HASH);
    if blake3::hash(table) != hash_at(hash, 0) {
        return Err(Error::Checksum { part: Part::Header });
    }
    (0..count).map(|index| entry(table, index)).collect()
}

fn entry(table: &[u8], index: usize) -> Result<Section, Error> {
    let at = TABLE_START + index * ENTRY;
    let (offset, length) = (u64_at(table, at), u64_at(table, at + 8));
    let overflow = || Error::Truncated { part: Part::section(index), need: u64::MAX, have: 0 };
    let end = offset.checked_add(length).ok_or_else(overflow)?;
    let (Ok(start), Ok(end)) = (offset.try_into(), end.try_into()) else { return Err(overflow()) };
    Ok(Section { bytes: start..end, hash: *hash_at(table, at + 16).as_bytes() })
}

/// Place, extent and checksum of every section, and of the gaps between them.
fn check_sections(file: &[u8], sections: &[Section]) -> Result<(), Error> {
    let mut end = header_bytes(sections.len());
    for (index, section) in sections.iter().enumerate() {
        let part = Part::section(index);
        let want = end.next_multiple_of(ALIGN);
        if section.bytes.start != want {
            return Err(Error::Misplaced { part, found: section.bytes.start as u64, want: want as u64 });
        }
        let need = section.bytes.end as u64;
        let bytes = file.get(section.bytes.clone()).ok_or(Error::Truncated { part, need, have: file.len() as u64 })?;
        if file[end..want].iter().any(|&byte| byte != 0) {
            return Err(Error::Padding { part });
        }
        if blake3::hash(bytes) != blake3::Hash::from_bytes(section.hash) {
            return Err(Error::Checksum { part });
        }
        end = section.bytes.end;
    }
    if end != file.len() {
        return Err(Error::TrailingBytes { need: end as u64, have: file.len() as u64 });
    }
    Ok(())
}

/// Parses strictly. The path to a wrong field costs a second parse, so only a failure pays for it.
fn parse(json: &[u8]) -> Result<Manifest, Error> {
    serde_json::from_slice(json).map_err(|plain| {
        let mut reader = serde_json::Deserializer::from_slice(json);
        match serde_path_to_error::deserialize::<_, Manifest>(&mut reader) {
            Err(error) => fault(&error.path().to_string(), error.inner()),
            Ok(_) => fault("", plain),
        }
    })
}

/// Of a file whose header is sound.
fn fingerprint(file: &[u8]) -> Fingerprint {
    let end = header_bytes(u32_at(file, 12) as usize);
    Fingerprint::new(hash_at(file, end - HASH))
}

fn fault(at: &str, detail: impl ToString) -> Error {
    let at = if at.is_empty() || at == "." { "manifest" } else { at };
    Error::Manifest { at: at.to_owned(), detail: detail.to_string() }
}

fn header_bytes(sections: usize) -> usize {
    TABLE_START + sections * ENTRY + HASH
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn hash_at(bytes: &[u8], at: usize) -> blake3::Hash {
    blake3::Hash::from_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
pub(crate) mod tests;
