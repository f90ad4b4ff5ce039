use std::fmt;
use std::str::FromStr;

/// What identifies an artifact's whole content: the checksum of its header.
///
/// The header holds the place, the length and the checksum of every section, and a file opens only
/// if all of them are right and zeros lie between the sections. So every change of a byte, with or
/// without its checksums, changes the fingerprint. Nothing in it is secret: it identifies the
/// contents of a file, not their maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

/// Text that is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 digits of 0-9 and a-f")]
pub struct NoFingerprint;

impl Fingerprint {
    pub(crate) fn new(hash: blake3::Hash) -> Fingerprint {
        Fingerprint(*hash.as_bytes())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Fingerprint, NoFingerprint> {
        blake3::Hash::from_hex(text).map(Fingerprint::new).map_err(|_| NoFingerprint)
    }
}
