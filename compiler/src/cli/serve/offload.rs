//! Where beginnings of prompts go that leave the KV cache.
use std::path::PathBuf;

use atomc_runtime::offload::Room;
use atomc_runtime::{Engine, Error, Offload};

use super::super::failure::Failure;

#[derive(clap::Args)]
pub struct OffloadArgs {
    /// Bytes of the host's memory for beginnings of prompts that leave the KV cache; prompts that
    /// begin like them get them back [default: none]
    #[arg(long, value_name = "BYTES", conflicts_with = "no_prefix_cache", value_parser = bytes)]
    cache_host_bytes: Option<u64>,
    /// Folder for those that leave the host's memory, or the KV cache where there is no
    /// `--cache-host-bytes`; the next start finds them. It is this server's alone [default: none]
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_prefix_cache")]
    cache_dir: Option<PathBuf>,
    /// Most bytes of files in `--cache-dir`
    #[arg(long, value_name = "BYTES", requires = "cache_dir", default_value_t = 16 << 30, value_parser = bytes)]
    cache_dir_bytes: u64,
}

fn bytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("takes a number of bytes from 1 on".into()),
        Ok(bytes) => Ok(bytes),
    }
}

impl OffloadArgs {
    /// The place for what leaves an engine's cache, if there is one.
    pub fn open(&self, engine: &mut Engine) -> Result<Option<Offload>, Failure> {
        let files = self.cache_dir.clone().map(|folder| (folder, self.cache_dir_bytes));
        let room = Room { host_bytes: self.cache_host_bytes.unwrap_or(0), files };
        if room.host_bytes == 0 && room.files.is_none() {
            return Ok(None);
        }
        // What is in memory is of this engine. Files may be of another one.
        let weights = match &room.files {
            Some(_) => engine.weights_hash().map_err(Error::from)?.to_vec(),
            None => vec![],
        };
        let offload = Offload::new(engine.cache_layout(&weights), &room);
        offload.map(Some).map_err(|error| Failure::new("cache_dir", error))
    }
}
