//! Every file of the corpora, and small changes of it, go through their functions, without
//! libFuzzer.
use std::path::{Path, PathBuf};

use atomc_fuzz::TARGETS;

/// Changed copies of each file.
const CHANGES: u64 = 256;

fn files(name: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }

    /// A few bytes changed, a piece taken out or doubled, or the end cut off.
    fn change(&mut self, mut data: Vec<u8>) -> Vec<u8> {
        let len = data.len();
        match self.below(4) {
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
            _ => (0..1 + self.below(4)).filter(|_| len > 0).for_each(|_| data[self.below(len)] = self.below(256) as u8),
        }
        data
    }
}

#[test]
fn corpora() {
    for (name, run) in TARGETS {
        for file in files(name) {
            let data = std::fs::read(&file).expect("a file of the corpus");
            println!("{}", file.display());
            run(&data);
            let mut numbers = Numbers(data.len() as u64);
            (0..CHANGES).for_each(|_| run(&numbers.change(data.clone())));
        }
    }
}
