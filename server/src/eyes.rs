//! What a server sees images with: the tower of its artifact, and the rules by which requests name
//! images. One image at a time is decoded and seen, whatever many clients send.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atomc_artifact::files;
use atomc_runtime::sight::Rows;
use atomc_runtime::tower::{Tower, TowerError};
use base64ct::{Base64, Encoding};

use crate::images::{ImageError, MOST_BYTES, Preparing, Prompting};

/// Most images of a request.
pub const MOST_IMAGES: usize = 16;
/// The types that an address may say its data have.
const TYPES: [&str; 3] = ["image/png", "image/jpeg", "image/webp"];

/// Why an image of a request is not seen.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum LookError {
    #[error("images are given as `data:` addresses: this server fetches none")]
    Address,
    #[error("files are read below a folder that the server's owner names (`--image-folder`) alone")]
    File,
    #[error("the data of an image are of type {}, and in base64", TYPES.join(", "))]
    Type,
    #[error("the data are no base64")]
    Base64,
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Tower(#[from] TowerError),
}

impl LookError {
    /// Whether the server is at fault.
    pub fn is_fault(&self) -> bool {
        matches!(self, LookError::Tower(TowerError::Device(_) | TowerError::NoWeights))
    }
}

/// A tower and what belongs to it.
pub struct Eyes {
    tower: Mutex<Tower>,
    preparing: Preparing,
    prompting: Prompting,
    /// Below which files may be named.
    folder: Option<PathBuf>,
}

impl Eyes {
    /// Of a tower with its weights.
    pub fn new(tower: Tower, preparing: Preparing, prompting: Prompting, folder: Option<PathBuf>) -> Eyes {
        Eyes { tower: Mutex::new(tower), preparing, prompting, folder }
    }

    /// What prompts have for images.
    pub fn prompting(&self) -> &Prompting {
        &self.prompting
    }

    /// The bytes of an image that a request names.
    pub fn bytes(&self, address: &str) -> Result<Vec<u8>, LookError> {
        bytes(address, self.folder.as_deref())
    }

    /// The rows of an image of a file's bytes.
    pub fn look(&self, bytes: &[u8]) -> Result<Arc<Rows>, LookError> {
        let mut tower = self.tower.lock().unwrap_or_else(PoisonError::into_inner);
        let image = self.preparing.image(bytes)?;
        Ok(tower.rows(&[&image])?.remove(0))
    }
}

/// The bytes of an image that somebody names, perhaps as a file below a folder.
pub fn bytes(address: &str, folder: Option<&Path>) -> Result<Vec<u8>, LookError> {
    if let Some(data) = address.strip_prefix("data:") {
        let (kind, text) = data.split_once(";base64,").ok_or(LookError::Type)?;
        if !TYPES.contains(&kind) {
            return Err(LookError::Type);
        }
        return Base64::decode_vec(text).map_err(|_| LookError::Base64);
    }
    match address.strip_prefix("file://") {
        Some(path) => file(Path::new(path), folder.ok_or(LookError::File)?),
        None => Err(LookError::Address),
    }
}

/// The bytes of a file below a folder, wherever links lead.
fn file(path: &Path, folder: &Path) -> Result<Vec<u8>, LookError> {
    let whole = |path: &Path| path.canonicalize().map_err(|_| LookError::File);
    let (folder, path) = (whole(folder)?, whole(path)?);
    let length = path.metadata().ok().filter(|found| found.is_file()).ok_or(LookError::File)?.len();
    if !path.starts_with(&folder) {
        return Err(LookError::File);
    }
    if length > MOST_BYTES as u64 {
        return Err(ImageError::Bytes { bytes: usize::try_from(length).unwrap_or(usize::MAX) }.into());
    }
    files::read(&path).map_err(|_| LookError::File)
}
