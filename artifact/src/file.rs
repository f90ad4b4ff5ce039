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
mod header;

use crate::check;
use crate::error::{Error, Part};
use crate::files;
use crate::fingerprint::Fingerprint;
use crate::manifest::{Manifest, Tower};
use header::{Entry, Header, MAX_HEADER, SIGNATURE};
use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{decompress, inflate_flags};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use header::FORMAT_VERSION;

/// Where sections begin in memory: drivers are given pointers to them.
const ALIGN: usize = 64;
/// How hard deflate tries. Of an artifact for sm_90a with seven decode buckets (4.3 MB) level 6
/// leaves 0.73 MB, level 9 0.71 MB in twice the time, level 1 0.92 MB.
const LEVEL: u8 = 6;
/// The most bytes that a byte of deflate unpacks to, rounded up: 258 with two bits.
const MOST_TIMES: usize = 1032;
/// The largest manifest. That of a model of 61 layers takes some 3 MB for each target.
const MAX_MANIFEST: usize = 64 << 20;
/// Most code of a file, unpacked. That of a target takes a few MB.
const MAX_CODE: usize = 256 << 20;

/// An artifact in memory, known to be whole.
#[derive(Debug)]
pub struct Artifact {
    file: Arc<[u8]>,
    fingerprint: Fingerprint,
    manifest: Manifest,
    sections: Vec<Section>,
}

/// A part of the file.
#[derive(Debug)]
pub struct Section {
    /// Where it begins in the file.
    start: usize,
    /// Its bytes in the file.
    pub packed: usize,
    /// Its bytes when it is unpacked.
    pub length: usize,
    /// The packed bytes' blake3 checksum, which was compared when the file was opened.
    pub hash: [u8; 32],
    /// What it holds, once that was asked for.
    bytes: OnceLock<Aligned>,
}

/// Bytes that begin at a multiple of [`ALIGN`].
#[derive(Debug)]
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Zeros, unless memory does not suffice.
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

impl Artifact {
    /// Reads the file, checks every checksum and the manifest. What happens to the file later does
    /// not matter. Code is unpacked when [`Artifact::section`] asks for it.
    pub fn open(path: impl AsRef<Path>) -> Result<Artifact, Error> {
        let path = path.as_ref();
        let (file, header) = open(path)?;
        let bytes =
            read(&file, header.len).map_err(|source| Error::Io { action: "read", path: path.to_owned(), source })?;
        Artifact::decode(header, bytes)
    }

    fn decode(header: Header, file: Vec<u8>) -> Result<Artifact, Error> {
        let sections: Vec<Section> = header.entries.iter().map(Section::new).collect();
        for (index, section) in sections.iter().enumerate() {
            let part = Part::section(index);
            let (need, have) = ((section.start + section.packed) as u64, file.len() as u64);
            let packed = section.of(&file).ok_or(Error::Truncated { part, need, have })?;
            if blake3::hash(packed) != blake3::Hash::from_bytes(section.hash) {
                return Err(Error::Checksum { part });
            }
        }
        let manifest = parse(&unpacked(&file, &sections, 0)?)?;
        let sizes: Vec<usize> = sections.iter().map(|section| section.length).collect();
        check::manifest(&manifest, &sizes)?;
        Ok(Artifact { file: file.into(), fingerprint: header.fingerprint, manifest, sections })
    }

    /// The tower as an artifact of its own, in the same file, if there is one.
    pub fn tower(&self) -> Option<Artifact> {
        let Tower { model, tensors, targets, .. } = self.manifest.tower.clone()?;
        let manifest = Manifest { model, tensors, targets, tower: None, ..self.manifest.clone() };
        let section = |section: &Section| Section { bytes: OnceLock::new(), ..*section };
        let sections = self.sections.iter().map(section).collect();
        Some(Artifact { file: self.file.clone(), fingerprint: self.fingerprint, manifest, sections })
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
    pub fn section(&self, index: usize) -> Result<&[u8], Error> {
        let held = &self.sections[index].bytes;
        if held.get().is_none() {
            let bytes = unpacked(&self.file, &self.sections, index)?;
            return Ok(held.get_or_init(|| bytes));
        }
        Ok(held.get().map_or(&[], |bytes| bytes))
    }

    /// Size of the file.
    pub fn bytes(&self) -> usize {
        self.file.len()
    }
}

impl Section {
    fn new(&Entry { start, packed, length, hash }: &Entry) -> Section {
        Section { start, packed, length, hash, bytes: OnceLock::new() }
    }

    /// Its bytes in the file.
    fn of<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        file.get(self.start..self.start + self.packed)
    }
}

/// What identifies the artifact in a file, by its header alone. Nothing else is read, so neither
/// the sections' checksums nor the manifest are known to be right: [`Artifact::open`] says that,
/// and has the same fingerprint if the file is still the same.
pub fn fingerprint(path: impl AsRef<Path>) -> Result<Fingerprint, Error> {
    Ok(open(path.as_ref())?.1.fingerprint)
}

/// A file and its header.
fn open(path: &Path) -> Result<(File, Header), Error> {
    let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
    let file = files::open(path).map_err(io("open"))?;
    let len = file.metadata().map_err(io("read"))?.len();
    let mut start = [0; SIGNATURE.len()];
    // A short file is for the header to explain.
    if file.read_exact_at(&mut start, 0).is_ok() && start != SIGNATURE {
        return Err(Error::NotAnArtifact);
    }
    let start = read(&file, len.min(MAX_HEADER as u64)).map_err(io("read"))?;
    let header = Header::parse(&start, len)?;
    Ok((file, header))
}

/// The first bytes of a file: as many as these, or as it has.
fn read(mut file: &File, len: u64) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes an artifact with these code objects as sections 1, 2, …. The file appears whole or not at
/// all, and the same input makes the same bytes. The result identifies them.
pub fn write(path: impl AsRef<Path>, manifest: &Manifest, code: &[Vec<u8>]) -> Result<Fingerprint, Error> {
    let path = path.as_ref();
    let (bytes, header) = whole(manifest, code)?;
    files::write(path, &bytes).map_err(|source| Error::Io { action: "write", path: path.to_owned(), source })?;
    Ok(header.fingerprint)
}

/// The bytes of the file that [`write()`] makes.
pub fn encode(manifest: &Manifest, code: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
    Ok(whole(manifest, code)?.0)
}

/// The bytes of a file, and its header, which is within all bounds.
fn whole(manifest: &Manifest, code: &[Vec<u8>]) -> Result<(Vec<u8>, Header), Error> {
    // The manifest's own size is not known yet, and nothing depends on it.
    let sizes: Vec<usize> = std::iter::once(0).chain(code.iter().map(Vec::len)).collect();
    check::manifest(manifest, &sizes)?;
    let json = serde_json::to_vec(manifest).map_err(|error| fault("", error))?;
    if parse(&json)? != *manifest {
        return Err(fault("", "a number does not survive being written and read back"));
    }
    let sections: Vec<&[u8]> = std::iter::once(&json[..]).chain(code.iter().map(Vec::as_slice)).collect();
    let file = lay_out(&sections);
    let header = Header::parse(&file, file.len() as u64)?;
    Ok((file, header))
}

/// The bytes of a file with these sections, whatever they hold.
pub fn lay_out(sections: &[&[u8]]) -> Vec<u8> {
    let packed: Vec<Vec<u8>> = sections.iter().map(|section| compress_to_vec(section, LEVEL)).collect();
    let mut file = Vec::with_capacity(header::size(sections.len()) + packed.iter().map(Vec::len).sum::<usize>());
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

/// What a section holds, if it is a whole stream of deflate that ends with its last byte and has as
/// many bytes as the header says.
fn unpacked(file: &[u8], sections: &[Section], index: usize) -> Result<Aligned, Error> {
    let (part, length) = (Part::section(index), sections[index].length);
    let packed = sections[index].of(file).unwrap_or_default();
    if length > packed.len().saturating_mul(MOST_TIMES) {
        return Err(Error::Packed { part });
    }
    let mut bytes = Aligned::zeros(length).ok_or(Error::Memory { part, bytes: length as u64 })?;
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let out = &mut bytes.bytes[bytes.start..];
    let (status, read, written) = decompress(&mut Box::default(), packed, out, 0, flags);
    let whole = status == TINFLStatus::Done && read == packed.len() && written == length;
    if whole { Ok(bytes) } else { Err(Error::Packed { part }) }
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

fn fault(at: &str, detail: impl ToString) -> Error {
    let at = if at.is_empty() || at == "." { "manifest" } else { at };
    Error::Manifest { at: at.to_owned(), detail: detail.to_string() }
}

#[cfg(test)]
pub(crate) mod tests;
