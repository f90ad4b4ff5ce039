//! Files for tests, written by hand: sound ones, and those with a fault.
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A file as its bytes come.
#[derive(Clone)]
pub struct Made {
    pub version: u32,
    pub tensors: Option<u64>,
    pub keys: Vec<Vec<u8>>,
    pub infos: Vec<Vec<u8>>,
    pub data: usize,
}

/// A text with its length before it.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A key with a value of a type.
pub fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name)[..], &kind.to_le_bytes(), value].concat()
}

/// A key with a text.
pub fn key_text(name: &str, value: &str) -> Vec<u8> {
    key(name, 8, &text(value))
}

/// A key with a list of a type, whose bytes follow.
pub fn key_list(name: &str, kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    key(name, 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat())
}

/// A tensor: its dimensions, its type and its offset.
pub fn info(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

impl Made {
    /// A file without keys and tensors.
    pub fn new() -> Made {
        Made { version: 3, tensors: None, keys: Vec::new(), infos: Vec::new(), data: 0 }
    }

    /// A small sound file: two keys, a tensor of floats and one of blocks.
    pub fn sound() -> Made {
        let keys = vec![key_text("general.architecture", "llama"), key("llama.block_count", 4, &1u32.to_le_bytes())];
        let infos = vec![info("a", &[3, 2], 0, 0), info("b", &[32], 8, 32)];
        Made { keys, infos, data: 32 + 34, ..Made::new() }
    }

    pub fn key(mut self, key: Vec<u8>) -> Made {
        self.keys.push(key);
        self
    }

    pub fn info(mut self, info: Vec<u8>) -> Made {
        self.infos.push(info);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensors.unwrap_or(self.infos.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        self.keys.iter().chain(&self.infos).for_each(|part| bytes.extend(part));
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.resize(bytes.len() + self.data, 1);
        bytes
    }

    /// Writes the file under a name.
    pub fn write(&self, dir: &TempDir, name: &str) -> PathBuf {
        write(dir.path(), name, &self.bytes())
    }
}

pub fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A file of the tests' folder.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
