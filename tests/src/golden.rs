//! Golden cases on engines: sequences alone and in a batch, and what their logits are off.
use std::path::PathBuf;

use atomc::driver::{self, Compiled, Options};
use atomc::frontend::Config;
use atomc_passes::BucketOptions;
use atomc_runtime::{Checkpoint, Engine, Request, SeqId, Want};
use tempfile::TempDir;

use crate::{CHUNK, Case, Mode, SEQUENCES};

/// What our error may be of PyTorch's own kernels' in the checkpoint's type.
pub const SHARE: f64 = 1.5;
/// Sequences of 37 tokens go beyond the positions of one case.
pub const CONTEXT: usize = 64;

/// A case compiled for some targets, in a folder that goes with it.
pub struct Built {
    pub compiled: Compiled,
    pub path: PathBuf,
    _dir: TempDir,
}

/// Compiles with a bucket smaller than the longest sequence, and fewer rows than its tokens, so that steps take several plans too.
pub fn build(case: &Case, targets: &[&str]) -> Built {
    let config = Config { context: case.config.context.max(CONTEXT), ..case.config.clone() };
    let buckets = BucketOptions { decode: vec![1, 4], tokens: 32, rows: 16 };
    let options = Options { targets: targets.iter().map(|t| t.to_string()).collect(), buckets };
    let compiled =
        driver::compile(&config, &options, &mut |_, _, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    Built { compiled, path, _dir: dir }
}

/// Loads the case's weights.
pub fn load(case: &Case, engine: &mut Engine) {
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    engine.load_weights(&checkpoint, &|_, _| ()).unwrap_or_else(|e| panic!("{}: {e}", case.name));
}

/// What is off by more than this share of PyTorch's error, of the first sequences alone and of all in a batch.
pub fn faults(case: &Case, engine: &mut Engine, sequences: usize, share: f64) -> Vec<String> {
    let tokens: Vec<Vec<u32>> = (0..SEQUENCES).map(|i| case.tokens(i)).collect();
    let mut faults = vec![];
    for (i, mode) in (0..sequences).flat_map(|i| Mode::ALL.map(|mode| (i, mode))) {
        let logits = alone(engine, &tokens[i], mode);
        faults.extend(check(case, engine, share, mode, i, &logits, "alone"));
    }
    let chunked = together(engine, &tokens, CHUNK);
    let single = together(engine, &tokens, 1);
    for i in 0..SEQUENCES {
        faults.extend(check(case, engine, share, Mode::Chunked, i, &chunked[i], "in a batch by chunks"));
        // Token by token from the first on is the mode `decode`, but where the base of the embedding depends on how a sequence
        // is cut.
        if !case.name.contains("dynamic") {
            faults.extend(check(case, engine, share, Mode::Decode, i, &single[i], "in a batch by tokens"));
        }
    }
    faults
}

fn check(
    case: &Case,
    engine: &Engine,
    most: f64,
    mode: Mode,
    sequence: usize,
    logits: &[f32],
    how: &str,
) -> Option<String> {
    let error = case.error(mode, sequence, logits.iter().map(|&v| f64::from(v)));
    let share = error / case.torch_error(mode, sequence);
    let name = (&case.name, engine.device_name());
    (share.is_nan() || share > most)
        .then(|| format!("{} on {}, {how}, {mode:?} {sequence}: {share:.2} of PyTorch's error", name.0, name.1))
}

/// A sequence alone, fed as the mode says.
fn alone(engine: &mut Engine, tokens: &[u32], mode: Mode) -> Vec<f32> {
    let (sequence, mut logits, mut from) = (engine.add_sequence(), vec![], 0);
    for size in mode.pieces(tokens.len()) {
        let request = Request { sequence, tokens: &tokens[from..][..size], logits: Want::All };
        logits.extend(engine.step(&[request]).expect("a step").of(0).flatten());
        from += size;
    }
    engine.drop_sequence(sequence).expect("a live sequence");
    logits
}

/// All sequences at once, `size` tokens of each in a step for as long as they last.
fn together(engine: &mut Engine, tokens: &[Vec<u32>], size: usize) -> Vec<Vec<f32>> {
    let sequences: Vec<SeqId> = tokens.iter().map(|_| engine.add_sequence()).collect();
    let mut logits = vec![vec![]; tokens.len()];
    let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
    for from in (0..longest).step_by(size) {
        let live: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i].len() > from).collect();
        let request = |&i: &usize| {
            let rest = &tokens[i][from..];
            Request { sequence: sequences[i], tokens: &rest[..rest.len().min(size)], logits: Want::All }
        };
        let requests: Vec<Request> = live.iter().map(request).collect();
        let out = engine.step(&requests).expect("a step");
        for (place, &i) in live.iter().enumerate() {
            logits[i].extend(out.of(place).flatten());
        }
    }
    for sequence in sequences {
        engine.drop_sequence(sequence).expect("a live sequence");
    }
    logits
}
