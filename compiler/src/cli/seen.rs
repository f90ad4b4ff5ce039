//! Images of a command line: what the model sees of them, and the prompt that asks about them.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atomc::model::Model;
use atomc_artifact::files;
use atomc_runtime::Artifact;
use atomc_runtime::sight::{Grid, Images, Rows};
use atomc_server::images::{ImageError, MOST_BYTES, Preparing, Prompting};
use atomc_server::template::Conversation;
use serde_json::{Value, json};

use super::engine::EngineArgs;
use super::failure::Failure;
use super::run::Placed;

/// Images as rows of the model.
pub struct Seen {
    rows: Vec<Arc<Rows>>,
    prompting: Prompting,
    /// Where the model's other files are.
    model: PathBuf,
}

impl Seen {
    /// Reads the files, and has the artifact's tower make rows of them.
    pub fn new(engine: &EngineArgs, artifact: &Artifact, images: &[PathBuf]) -> Result<Seen, Failure> {
        let facts = artifact.manifest().tower.as_ref().ok_or(atomc_runtime::Error::NoTower)?;
        let help = "Give the model's folder: it has what says how images are made ready.";
        let model = engine.tokenizer(None, help)?.to_owned();
        let model = Model::at(&model)?;
        let prompting = Prompting::of(facts, &model.text()?).map_err(|error| Failure::new("image", error))?;
        let model = model.folder().to_owned();
        let mut tower = engine.tower(artifact)?;
        let preparing = Preparing::open(&model, tower.tiling(), tower.most()).map_err(|e| Failure::new("image", e))?;
        let image = |path: &PathBuf| preparing.image(&read(path)?).map_err(|error| failed(path, error));
        let images: Vec<_> = images.iter().map(image).collect::<Result<_, _>>()?;
        let rows = tower.rows(&images.iter().collect::<Vec<_>>()).map_err(|error| Failure::new("image", error))?;
        Ok(Seen { rows, prompting, model })
    }

    /// The prompt as a message with the images before it, by the model's chat template; as it is,
    /// if it has the text of an image's token itself.
    pub fn asked(&self, prompt: &str) -> Result<String, Failure> {
        let model = Model::at(&self.model)?;
        if prompt.contains(self.prompting.mark()) {
            return Ok(self.prompting.written(prompt.to_owned()));
        }
        let image = json!({ "type": "image" });
        let parts = std::iter::repeat_n(image, self.rows.len()).chain([json!({ "type": "text", "text": prompt })]);
        let message = json!({ "role": "user", "content": parts.collect::<Vec<Value>>() });
        let talk = Conversation { messages: vec![message], generate: true, ..Conversation::default() };
        let help = "Without a chat template a prompt says itself where images are, with the text of their token.";
        let templates = model.templates().map_err(|error| Failure::new("template", error))?;
        let text = templates.render(&talk).map_err(|error| Failure::new("template", error).help(help))?;
        Ok(self.prompting.written(text))
    }

    /// The tokens of a prompt with those of the images, and these with their places.
    pub fn placed(self, prompt: &[u32]) -> Result<Placed, Failure> {
        let grids: Vec<Grid> = self.rows.iter().map(|rows| rows.grid).collect();
        let placed = self.prompting.marks().spread(prompt, &grids).map_err(|error| Failure::new("image", error));
        let (tokens, places) = placed?;
        Ok((tokens, Some(Arc::new(Images::of(places.into_iter().zip(self.rows))))))
    }
}

fn failed(path: &Path, error: ImageError) -> Failure {
    Failure::file("image", path, error)
}

/// The bytes of a file, unless there are too many.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fault = |error: std::io::Error| Failure::file("image", path, error);
    let length = std::fs::metadata(path).map_err(fault)?.len();
    if length > MOST_BYTES as u64 {
        return Err(failed(path, ImageError::Bytes { bytes: usize::try_from(length).unwrap_or(usize::MAX) }));
    }
    files::read(path).map_err(fault)
}
