//! Layout of the file, all numbers little-endian:
//!
//! ```text
//! 0     8 bytes   signature
//! 8     u32       format version
//! 12    u32       number of sections
//! 16    48 bytes  per section: u64 bytes in the file, u64 bytes unpacked, blake3 of the former
//! …     32 bytes  blake3 of everything above
//! …               the sections, one behind the other, each a stream of deflate
//! ```
//!
//! Section 0 is the manifest as JSON, the others are code objects. Checksums cover every byte of a
//! file, so that none can change unnoticed.
use crate::check;
use crate::error::{Error, Part};
use crate::files;
use crate::fingerprint::Fingerprint;
use crate::manifest::Manifest;
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{decompress, inflate_flags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The format that this crate writes and reads. [`crate::abi`] and [`crate::manifest`] are part of
/// it.
pub const FORMAT_VERSION: u32 = 11;

/// Not text, and changed by a transfer that rewrites line ends.
const SIGNATURE: [u8; 8] = *b"\x89ATOMC\r\n";
const TABLE_START: usize = 16;
const ENTRY: usize = 48;
const HASH: usize = 32;
/// Where sections begin in memory: drivers are given pointers to them.
const ALIGN: usize = 64;
/// How hard deflate tries. Of an artifact for sm_90a with seven decode buckets (4.3 MB) level 6
/// leaves 0.73 MB, level 9 0.71 MB in twice the time, level 1 0.92 MB.
const LEVEL: u8 = 6;
/// The most bytes that a byte of deflate unpacks to, rounded up: 258 with two bits.
const MOST_TIMES: usize = 1032;
/// A file that asks for more is damaged: a bound on the table before its checksum is known to be
/// right.
const MAX_SECTIONS: usize = 4096;

/// An artifact in memory, known to be whole.
#[derive(Debug)]
pub struct Artifact {
    /// Bytes of the file.
    size: usize,
    fingerprint: Fingerprint,
    manifest: Manifest,
    sections: Vec<Section>,
}

/// A part of the file, unpacked.
#[derive(Debug)]
pub struct Section {
    /// Its bytes in the file.
    pub packed: usize,
    /// Those bytes' blake3 checksum, which was compared when the file was opened.
    pub hash: [u8; 32],
    bytes: Aligned,
}

/// Bytes that begin at a multiple of [`ALIGN`].
#[derive(Debug)]
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Zeros, unless there is no memory for so many.
    fn zeros(len: usize) -> Option<Aligned> {
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(len.checked_add(ALIGN)?).ok()?;
        let start = bytes.as_ptr().align_offset(ALIGN);
        // There is room for this, so that nothing moves.
        bytes.resize(start + len, 0);
        Some(Aligned { bytes, start })
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// A section as the table has it.
struct Entry {
    packed: usize,
    length: usize,
    hash: [u8; 32],
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
        let bytes = read(file).map_err(io("read"))?;
        let (manifest, sections) = decode(&bytes)?;
        Ok(Artifact { size: bytes.len(), fingerprint: fingerprint(&bytes), manifest, sections })
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
        &self.sections[index].bytes
    }

    /// Size of the file.
    pub fn bytes(&self) -> usize {
        self.size
    }
}

/// As much as the file has now.
fn read(file: File) -> std::io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
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
    Ok(lay_out(&sections))
}

/// The bytes of a file with these sections, whatever they hold.
pub fn lay_out(sections: &[&[u8]]) -> Vec<u8> {
    let packed: Vec<Vec<u8>> = sections.iter().map(|section| compress_to_vec(section, LEVEL)).collect();
    let mut file = Vec::with_capacity(header_bytes(sections.len()) + packed.iter().map(Vec::len).sum::<usize>());
    file.extend_from_slice(&SIGNATURE);
    file.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    file.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    for (section, packed) in sections.iter().zip(&packed) {
        file.extend_from_slice(&(packed.len() as u64).to_le_bytes());
        file.extend_from_slice(&(section.len() as u64).to_le_bytes());
        file.extend_from_slice(blake3::hash(packed).as_bytes());
    }
    let hash = blake3::hash(&file);
    file.extend_from_slice(hash.as_bytes());
    packed.iter().for_each(|packed| file.extend_from_slice(packed));
    file
}

fn decode(file: &[u8]) -> Result<(Manifest, Vec<Section>), Error> {
    let entries = read_table(file)?;
    let packed = check_sections(file, &entries)?;
    let unpack = |(index, (entry, packed)): (usize, (&Entry, &[u8]))| {
        let bytes = unpacked(packed, entry.length).ok_or(Error::Packed { part: Part::section(index) })?;
        Ok(Section { packed: entry.packed, hash: entry.hash, bytes })
    };
    let sections: Vec<Section> = entries.iter().zip(packed).enumerate().map(unpack).collect::<Result<_, Error>>()?;
    let manifest = parse(&sections[0].bytes)?;
    let sizes: Vec<usize> = sections.iter().map(|section| section.bytes.len()).collect();
    check::manifest(&manifest, &sizes)?;
    Ok((manifest, sections))
}

/// What a stream of deflate holds, if it is whole, ends with its last byte, and holds so many
/// bytes.
fn unpacked(packed: &[u8], length: usize) -> Option<Aligned> {
    if length > packed.len().saturating_mul(MOST_TIMES) {
        return None;
    }
    let mut bytes = Aligned::zeros(length)?;
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let out = &mut bytes.bytes[bytes.start..];
    let (status, read, written) = decompress(&mut Box::default(), packed, out, 0, flags);
    (status == TINFLStatus::Done && read == packed.len() && written == length).then_some(bytes)
}

/// The section table, once the header proves to be what was written. Sizes are not looked at yet.
fn read_table(file: &[u8]) -> Result<Vec<Entry>, Error> {
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

fn entry(table: &[u8], index: usize) -> Result<Entry, Error> {
    let at = TABLE_START + index * ENTRY;
    let [packed, length] = [at, at + 8].map(|at| usize::try_from(u64_at(table, at)));
    let (Ok(packed), Ok(length)) = (packed, length) else {
        return Err(Error::Truncated { part: Part::section(index), need: u64::MAX, have: 0 });
    };
    Ok(Entry { packed, length, hash: *hash_at(table, at + 16).as_bytes() })
}

/// The sections as they are in the file, whose extent and checksums are right.
fn check_sections<'f>(file: &'f [u8], entries: &[Entry]) -> Result<Vec<&'f [u8]>, Error> {
    let mut end = header_bytes(entries.len());
    let mut all = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let part = Part::section(index);
        let start = end;
        end = end.saturating_add(entry.packed);
        let short = Error::Truncated { part, need: end as u64, have: file.len() as u64 };
        let bytes = file.get(start..end).ok_or(short)?;
        if blake3::hash(bytes) != blake3::Hash::from_bytes(entry.hash) {
            return Err(Error::Checksum { part });
        }
        all.push(bytes);
    }
    if end != file.len() {
        return Err(Error::TrailingBytes { need: end as u64, have: file.len() as u64 });
    }
    Ok(all)
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
