//! The recordings, kept in a file.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atomc_emulator::timing::profile::Sample;

/// Samples by what they are of.
pub struct Cache {
    path: PathBuf,
    entries: BTreeMap<String, Vec<Sample>>,
}

impl Cache {
    pub fn open(path: &Path) -> Cache {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let width = Sample::default().numbers().len();
        let entry = |line: &str| {
            let (key, numbers) = line.split_once(": ")?;
            let numbers: Vec<f64> = numbers.split_whitespace().map_while(|n| n.parse().ok()).collect();
            let samples: Option<Vec<Sample>> = numbers.chunks(width).map(Sample::from_numbers).collect();
            Some((key.to_string(), samples?))
        };
        Cache { path: path.into(), entries: text.lines().filter_map(entry).collect() }
    }

    /// A cache for one run of the program, without a file.
    pub fn none() -> Cache {
        Cache { path: PathBuf::new(), entries: BTreeMap::new() }
    }

    pub fn save(&self) {
        let mut text = String::new();
        for (key, samples) in &self.entries {
            let numbers: Vec<String> = samples.iter().flat_map(Sample::numbers).map(|n| n.to_string()).collect();
            text.push_str(&format!("{key}: {}\n", numbers.join(" ")));
        }
        if let Err(e) = std::fs::write(&self.path, text) {
            eprintln!("{}: {e}", self.path.display());
        }
    }

    pub fn get(&self, key: &str) -> Option<&[Sample]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    pub fn insert(&mut self, key: String, samples: Vec<Sample>) {
        self.entries.insert(key, samples);
    }

    /// The kept value, or the result of `make`.
    pub fn or_make(
        &mut self,
        key: &str,
        make: impl FnOnce() -> Result<Vec<Sample>, String>,
    ) -> Result<Vec<Sample>, String> {
        if let Some(samples) = self.get(key) {
            return Ok(samples.to_vec());
        }
        let samples = make()?;
        self.insert(key.into(), samples.clone());
        Ok(samples)
    }
}
