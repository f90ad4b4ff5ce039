//! Whatever reads input that others wrote, one function each. It may refuse its input or take it;
//! it may not panic, touch memory that is not its own, or take more than its input asks for. What
//! is taken is worked with, as far as that runs no code.
#[cfg(feature = "emulator")]
mod amd;
mod plan;
mod requests;

use std::io::Write;
use std::path::Path;
use std::sync::LazyLock;

use atomc_artifact::manifest::{Manifest, Tiling};
use atomc_artifact::{Artifact, encode};
use atomc_gguf::Gguf;
use atomc_ir::arch::Memory;
use atomc_ir::trial::{Fill, Run, Step, Trial, need};
use atomc_runtime::checkpoint::Source;
use atomc_runtime::offload::Room;
use atomc_runtime::schedule::toy::Toy;
use atomc_runtime::weights::packed::Packed;
use atomc_runtime::{Checkpoint, Offload};
use atomc_server::images::Preparing;
use tempfile::TempDir;

#[cfg(feature = "emulator")]
pub use amd::{code_object, instructions};
pub use plan::weights;
pub use requests::requests;

/// A function for libFuzzer, by the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("file", file),
    ("manifest", manifest),
    ("weights", weights),
    ("ir_text", ir_text),
    ("bodies", bodies),
    ("config", config),
    ("checkpoint", checkpoint),
    ("gguf", gguf),
    ("packed", packed),
    ("pieces", pieces),
    ("requests", requests),
    ("image", image),
    #[cfg(feature = "emulator")]
    ("code_object", code_object),
    #[cfg(feature = "emulator")]
    ("instructions", instructions),
];

/// Most code sections that a manifest may name: more than the variants of any target.
const SECTIONS: usize = 4;
/// Bytes of each: more than the code of the small models that corpora are made of.
const SECTION_BYTES: usize = 64 << 10;
/// Most bytes that a body is tried with.
const TRIAL_BYTES: usize = 1 << 20;

/// An artifact, as it lies on a disk.
pub fn file(data: &[u8]) {
    let dir = folder();
    _ = Artifact::open(written(&dir, "m.atomc", data));
}

/// The file of an image that somebody asks about. What is decoded is made ready for a tower.
pub fn image(data: &[u8]) {
    const READY: &str = r#"{ "size": { "shortest_edge": 1024, "longest_edge": 16384 }, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5] }"#;
    static PREPARING: LazyLock<Preparing> = LazyLock::new(|| {
        let (dir, tiling) =
            (folder(), Tiling { channels: 3, frames: 2, patch: 4, merge: 2, only: None, side: Some(4) });
        written(&dir, "preprocessor_config.json", READY.as_bytes());
        Preparing::open(dir.path(), tiling, 1024).expect("it is a configuration")
    });
    if let Ok(image) = PREPARING.image(data) {
        assert_eq!(image.numbers.len(), image.grid.patches() * 96);
        assert!(image.numbers.iter().all(|v| v.is_finite()));
    }
}

/// The JSON of a manifest, in a file with correct checksums. A manifest that can be written can be
/// read, and is the same.
pub fn manifest(data: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(data) else { return };
    let named = manifest.targets.iter().flat_map(|target| &target.variants).map(|variant| variant.section).max();
    let code = vec![vec![0; SECTION_BYTES]; named.unwrap_or(0).min(SECTIONS)];
    let Ok(bytes) = encode(&manifest, &code) else { return };
    let dir = folder();
    let artifact = Artifact::open(written(&dir, "m.atomc", &bytes)).expect("what was written can be read");
    assert_eq!(*artifact.manifest(), manifest);
    _ = manifest.key();
    manifest.targets.iter().for_each(|target| _ = target.weights_key());
}

/// A graph. What is read is printed, and reads the same again.
pub fn ir_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(graph) = atomc_ir::parse(text) else { return };
    let printed = graph.print();
    let again = atomc_ir::parse(&printed).unwrap_or_else(|e| panic!("what was printed is not read: {e}\n{printed}"));
    assert_eq!(again.print(), printed);
    _ = graph.verify();
}

/// The body of a kernel, tried as `atomc verify` tries it, where the trial is small.
pub fn bodies(data: &[u8]) {
    let memory = Memory { row: 16, alias: 1024, rows: 1, panel: 16, group_bytes: 4, block_tokens: 16, align: 64 };
    let step = Step::of(vec![Run { position: 3, tokens: 2, rows: 1 }]);
    let Ok(graph) = std::str::from_utf8(data).map_err(|_| ()).and_then(|text| atomc_ir::parse(text).map_err(|_| ()))
    else {
        return;
    };
    if graph.verify().is_err() || need(&graph, &memory, &step, 0).is_none_or(|bytes| bytes > TRIAL_BYTES) {
        return;
    }
    let indices = |_| Some(vec![0; step.tokens()]);
    let Ok(trial) = Trial::new(&graph, memory, step.clone(), (Fill::Random, 1), &indices) else { return };
    if trial.want().is_ok() {
        _ = trial.operands();
    }
}

/// A `config.json`, and after a zero byte, if there is one, a `generation_config.json`.
pub fn config(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0).map(|part| std::str::from_utf8(part).ok());
    let (Some(Some(text)), generation) = (parts.next(), parts.next().flatten()) else { return };
    if let Ok(config) = atomc_config::Config::parse(text, generation) {
        _ = config.echo();
    }
}

/// A checkpoint: of a first byte that is even the index of shards, else a file of safetensors.
pub fn checkpoint(data: &[u8]) {
    const SHARD: &[u8] =
        b"\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}          \0\0\0\0";
    let Some((first, data)) = data.split_first() else { return };
    let dir = folder();
    if first % 2 == 0 {
        written(&dir, "one.safetensors", SHARD);
        written(&dir, "model.safetensors.index.json", data);
    } else {
        written(&dir, "model.safetensors", data);
    }
    let Ok(checkpoint) = Checkpoint::open(dir.path()) else { return };
    for name in checkpoint.names() {
        let shape = checkpoint.shape(name).expect("it has a name");
        _ = checkpoint.tensor(name, shape);
    }
}

/// A model in GGUF: all its tensors, by its own names and by those of Hugging Face, its
/// configuration and its tokenizer.
pub fn gguf(data: &[u8]) {
    let dir = folder();
    let Ok(gguf) = Gguf::open(written(&dir, "m.gguf", data)) else { return };
    for name in gguf.names() {
        let tensor = gguf.tensor(name).expect("it has a name");
        tensor.floats().expect("all of it is in the file");
    }
    for origin in atomc_gguf::origins(&gguf).unwrap_or_default() {
        let floats = origin.floats(&gguf).expect("all of it is in the file");
        assert_eq!(floats.len(), origin.shape.iter().product::<usize>(), "{}", origin.name);
    }
    if let Ok(config) = atomc_gguf::config(&gguf) {
        _ = atomc_config::Config::parse(&config.to_string(), None);
    }
    _ = atomc_gguf::tokenizer(&gguf);
    _ = atomc_gguf::tokenizer_config(&gguf);
}

/// A file of packed weights.
pub fn packed(data: &[u8]) {
    let dir = folder();
    _ = Packed::open(written(&dir, "weights.host.safetensors", data));
}

/// In memory where there is such a file system: a fuzzer writes thousands of files a second.
/// A file of a cache that travels, under the name of another piece: it is looked at and removed.
pub fn pieces(data: &[u8]) {
    let dir = folder();
    let file = written(&dir, &format!("{}.piece", "0".repeat(64)), data);
    let room = Room { host_bytes: 0, files: Some((dir.path().to_owned(), 1 << 20)) };
    let offload = Offload::new(Toy::new(8, 4).cache_layout(), &room).expect("a folder");
    assert_eq!((offload.counts().file_bytes, file.exists()), (0, false));
}

fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary folder")
}

fn written(dir: &TempDir, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = dir.path().join(name);
    let mut file = std::fs::File::create(&path).expect("a temporary file");
    file.write_all(bytes).expect("room for a temporary file");
    path
}
