//! Engines on this machine's processor for a model in a folder.
use std::path::Path;

use atomc::driver::{self, Options};
use atomc_config::{Config, draft};
use atomc_runtime::{Artifact, Checkpoint, Engine, EngineOptions};

/// A model in a folder.
pub struct Model<'a> {
    pub config: &'a Config,
    pub dir: &'a Path,
    /// Whether its artifact has a draft: that in the folder `head`, or that of the model's own
    /// checkpoint.
    pub drafts: bool,
    pub head: Option<&'a Path>,
}

/// Engines with the same code and weights, one for each of the options.
pub fn engines<const N: usize>(model: &Model, compiling: Options, options: [EngineOptions; N]) -> [Engine; N] {
    let &Model { config, dir, drafts, head } = model;
    let draft = drafts.then(|| match head {
        Some(head) => draft::read(head, config).expect("an EAGLE-3 head"),
        None => config.draft().expect("a sound configuration").expect("an MTP layer"),
    });
    let compiled = driver::compile(config, &Options { draft, ..compiling }, &mut |_, _, _| ()).expect("it compiles");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.atomc");
    compiled.write(&path).expect("an artifact");
    let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
    let head = head.map(|head| Checkpoint::open(head).expect("a head"));
    options.map(|options| {
        let mut engine = Engine::new(Artifact::open(&path).expect("a whole artifact"), &options).expect("it opens");
        match &head {
            Some(head) => engine.load_weights_with(&checkpoint, head, &|_, _| ()).expect("weights"),
            None => engine.load_weights(&checkpoint, &|_, _| ()).expect("weights"),
        }
        engine
    })
}
