//! Signatures by an artifact's maker: an ed25519 signature of its fingerprint, in a file of 64
//! bytes next to it.
//!
//! The fingerprint depends on every byte, so a signature of it is one of the whole artifact. The
//! check needs only the artifact's header: it runs before any of its code is mapped.
use atomc_artifact::{Fingerprint, files};
use ed25519_dalek::pkcs8::DecodePublicKey;
use ed25519_dalek::{SIGNATURE_LENGTH, Signature, VerifyingKey};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The variable by which the command line, the Python package and the C interface are told of a
/// key: with it, they run nothing that has no signature by that key.
pub const VARIABLE: &str = "ATOMC_REQUIRE_SIGNED_BY";

/// The first words of a signed message. A key that also signs other texts makes no such message for
/// them. The number is the version of this scheme.
const DOMAIN: &str = "atomc artifact signature 1\n";

/// Why an artifact does not count as signed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum SignatureError {
    #[error("cannot read {}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} holds no public key of ed25519 in PEM, as `openssl pkey -pubout` makes it: {detail}", .path.display())]
    Key { path: PathBuf, detail: String },
    #[error("{} is not signed: there is no {}, and {} must have signed it", .artifact.display(), .signature.display(), .key.display())]
    Missing { artifact: PathBuf, signature: PathBuf, key: PathBuf },
    #[error("{} is no signature, which has {SIGNATURE_LENGTH} bytes", .path.display())]
    NoSignature { path: PathBuf },
    #[error("{} is no signature of {} by {}: another key made it, or one of the files has changed", .signature.display(), .artifact.display(), .key.display())]
    Wrong { artifact: PathBuf, signature: PathBuf, key: PathBuf },
}

/// Refuses an artifact that has no valid signature by the key in a PEM file; without a key, nothing
/// is checked. `file` is the path by which the artifact was opened, and names the signature.
pub fn require(key: Option<impl AsRef<Path>>, file: &Path, fingerprint: Fingerprint) -> Result<(), SignatureError> {
    match key {
        Some(key) => check(key.as_ref(), file, fingerprint),
        None => Ok(()),
    }
}

/// The text that is signed. Any tool that signs with ed25519 can make a signature of it.
pub fn message(fingerprint: Fingerprint) -> String {
    format!("{DOMAIN}{fingerprint}\n")
}

/// The path of the signature of an artifact's file.
pub fn path(artifact: &Path) -> PathBuf {
    let mut path = artifact.as_os_str().to_owned();
    path.push(".sig");
    path.into()
}

fn check(key: &Path, file: &Path, fingerprint: Fingerprint) -> Result<(), SignatureError> {
    let public = public_key(key)?;
    let signature = path(file);
    let (signature_path, key, artifact) = (signature.clone(), key.to_owned(), file.to_owned());
    let Some(signed) = read_signature(&signature)? else {
        return Err(SignatureError::Missing { artifact, signature, key });
    };
    // Strict: no key or signature of small order, with which one signature would fit many messages.
    let valid = public.verify_strict(message(fingerprint).as_bytes(), &signed);
    valid.map_err(|_| SignatureError::Wrong { artifact, signature: signature_path, key })
}

fn public_key(path: &Path) -> Result<VerifyingKey, SignatureError> {
    let text = files::read_to_string(path).map_err(|source| SignatureError::Io { path: path.to_owned(), source })?;
    VerifyingKey::from_public_key_pem(&text)
        .map_err(|error| SignatureError::Key { path: path.to_owned(), detail: error.to_string() })
}

/// The signature, if there is a file. One byte more than a signature is read at most, as the file
/// may be hostile.
fn read_signature(path: &Path) -> Result<Option<Signature>, SignatureError> {
    let fault = |source| SignatureError::Io { path: path.to_owned(), source };
    let file = match files::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(fault)?,
    };
    let mut bytes = Vec::new();
    file.take(SIGNATURE_LENGTH as u64 + 1).read_to_end(&mut bytes).map_err(fault)?;
    Signature::from_slice(&bytes).map(Some).map_err(|_| SignatureError::NoSignature { path: path.to_owned() })
}

#[cfg(test)]
mod tests;
