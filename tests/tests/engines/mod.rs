//! Engines on this machine's processor that answer as the golden cases do.
use atomc::driver::{self, Options};
use atomc_passes::BucketOptions;
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions};
use atomc_tests::Case;

/// Engines with the same code and weights, one for each of the options. What a sequence's answers
/// are does not depend on what else a step has.
pub fn engines<const N: usize>(case: &Case, buckets: BucketOptions, options: [EngineOptions; N]) -> [Engine; N] {
    let compiling = Options { buckets, invariant: true, ..Options::default() };
    let compiled = driver::compile(&case.config, &compiling, &mut |_, _, _| ()).expect("it compiles");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let checkpoint = Checkpoint::open(&case.dir).expect("a checkpoint");
    options.map(|options| {
        let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens");
        engine.load_weights(&checkpoint, &|_, _| ()).expect("weights");
        engine
    })
}
