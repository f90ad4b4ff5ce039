//! Small changes of sound files, by chance: whatever they make is refused, or read without a panic.
use std::path::Path;

use atomc_config::Config;
use atomc_gguf::{Gguf, config, origins, tokenizer, tokenizer_config};

/// Changed copies of each file.
const CHANGES: u64 = 200;
/// Bytes at the beginning of a file, where its header is.
const HEADER: usize = 2048;

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }

    /// A few bytes or a number changed, a piece taken out or doubled, or the end cut off. Most
    /// changes are in the header.
    fn change(&mut self, mut data: Vec<u8>) -> Vec<u8> {
        const NUMBERS: [u64; 8] = [0, 1, 7, 255, 1 << 31, 1 << 62, u64::MAX - 31, u64::MAX];
        let len = if self.below(4) == 0 { data.len() } else { data.len().min(HEADER) };
        match self.below(5) {
            0 => data.truncate(self.below(len)),
            1 => {
                let (from, piece) = (self.below(len), self.below(16));
                data.drain(from..(from + piece).min(len));
            }
            2 => {
                let (from, piece) = (self.below(len), self.below(16));
                let piece = data[from..(from + piece).min(len)].to_vec();
                data.splice(from..from, piece);
            }
            3 => {
                let (from, number) = (self.below(len - 8), NUMBERS[self.below(NUMBERS.len())]);
                data[from..from + 8].copy_from_slice(&number.to_le_bytes());
            }
            _ => (0..1 + self.below(4)).for_each(|_| data[self.below(len)] = self.below(256) as u8),
        }
        data
    }
}

/// Reads all that there is in a file, as `fuzz/src/lib.rs` does, and says whether it was opened.
fn read(path: &Path) -> bool {
    let Ok(gguf) = Gguf::open(path) else { return false };
    for name in gguf.names() {
        gguf.tensor(name).expect("it has a name").floats().expect("all of it is in the file");
    }
    for origin in origins(&gguf).unwrap_or_default() {
        let floats = origin.floats(&gguf).expect("all of it is in the file");
        assert_eq!(floats.len(), origin.shape.iter().product::<usize>(), "{}", origin.name);
    }
    if let Ok(config) = config(&gguf) {
        _ = Config::parse(&config.to_string(), None);
    }
    _ = tokenizer(&gguf);
    _ = tokenizer_config(&gguf);
    true
}

#[test]
fn changed_files_are_refused_or_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let dir = tempfile::tempdir().unwrap();
    let (mut files, mut opened) = (0, 0);
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "gguf") {
            continue;
        }
        let data = std::fs::read(&path).unwrap();
        let mut numbers = Numbers(data.len() as u64);
        for _ in 0..CHANGES {
            let changed = dir.path().join("m.gguf");
            std::fs::write(&changed, numbers.change(data.clone())).unwrap();
            opened += u32::from(read(&changed));
            files += 1;
        }
    }
    assert!(opened > 100 && opened < files, "{opened} of {files} files were opened");
}
