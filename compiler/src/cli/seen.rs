//! Images of a command line: what the model sees of them, and the prompt that asks about them.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atomc::model::Model;
use atomc_artifact::files;
use atomc_runtime::Artifact;
use atomc_runtime::sight::{Grid, Images, Rows};
use atomc_server::eyes::Eyes;
use atomc_server::images::{ImageError, MOST_BYTES, Preparing, Prompting};
use atomc_server::template::Conversation;
use atomc_server::text::Text;
use serde_json::{Value, json};

use super::engine::EngineArgs;
use super::failure::Failure;
use super::run::Placed;

/// What sees images, by the tower of an artifact and what is beside a model. Files may be named
/// below a folder.
pub fn eyes(
    engine: &EngineArgs,
    artifact: &Artifact,
    (files, text): (&Model, &Text),
    folder: Option<PathBuf>,
) -> Result<Eyes, Failure> {
    let facts = artifact.manifest().tower.as_ref().ok_or(atomc_runtime::Error::NoTower)?;
    let prompting = Prompting::of(facts, text).map_err(|error| Failure::new("image", error))?;
    let tower = engine.tower(artifact)?;
    let preparing = Preparing::open(files.folder(), tower.tiling(), tower.most());
    let preparing = preparing.map_err(|error| Failure::new("image", error))?;
    Ok(Eyes::new(tower, preparing, prompting, folder))
}

/// The model whose images a command line has.
pub fn model(engine: &EngineArgs) -> Result<Model, Failure> {
    let help = "Give the model's folder: it has what says how images are made ready.";
    Ok(Model::at(engine.tokenizer(None, help)?)?)
}

/// The tokens of a prompt with those of images, and these with their places.
pub fn placed(prompting: &Prompting, prompt: &[u32], rows: Vec<Arc<Rows>>) -> Result<Placed, Failure> {
    let grids: Vec<Grid> = rows.iter().map(|rows| rows.grid).collect();
    let placed = prompting.marks().spread(prompt, &grids).map_err(|error| Failure::new("image", error));
    let (tokens, places) = placed?;
    Ok((tokens, Some(Arc::new(Images::of(places.into_iter().zip(rows))))))
}

/// Images as rows of the model.
pub struct Seen {
    rows: Vec<Arc<Rows>>,
    eyes: Eyes,
    /// The model's other files.
    model: Model,
}

impl Seen {
    /// Reads the files, and has the artifact's tower make rows of them.
    pub fn new(engine: &EngineArgs, artifact: &Artifact, images: &[PathBuf]) -> Result<Seen, Failure> {
        let model = model(engine)?;
        let eyes = eyes(engine, artifact, (&model, &model.text()?), None)?;
        let rows = |path: &PathBuf| eyes.look(&read(path)?).map_err(|error| Failure::file("image", path, error));
        let rows = images.iter().map(rows).collect::<Result<_, _>>()?;
        Ok(Seen { rows, eyes, model })
    }

    /// The prompt as a message with the images before it, by the model's chat template; as it is,
    /// if it has the text of an image's token itself.
    pub fn asked(&self, prompt: &str) -> Result<String, Failure> {
        let prompting = self.eyes.prompting();
        if prompt.contains(prompting.mark()) {
            return Ok(prompting.written(prompt.to_owned()));
        }
        let image = json!({ "type": "image" });
        let parts = std::iter::repeat_n(image, self.rows.len()).chain([json!({ "type": "text", "text": prompt })]);
        let message = json!({ "role": "user", "content": parts.collect::<Vec<Value>>() });
        let talk = Conversation { messages: vec![message], generate: true, ..Conversation::default() };
        let help = "Without a chat template a prompt says itself where images are, with the text of their token.";
        let templates = self.model.templates().map_err(|error| Failure::new("template", error))?;
        let text = templates.render(&talk).map_err(|error| Failure::new("template", error).help(help))?;
        Ok(prompting.written(text))
    }

    /// The tokens of a prompt with those of the images, and these with their places.
    pub fn placed(self, prompt: &[u32]) -> Result<Placed, Failure> {
        placed(self.eyes.prompting(), prompt, self.rows)
    }
}

/// The bytes of a file, unless there are too many.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let fault = |error: std::io::Error| Failure::file("image", path, error);
    let length = std::fs::metadata(path).map_err(fault)?.len();
    if length > MOST_BYTES as u64 {
        let error = ImageError::Bytes { bytes: usize::try_from(length).unwrap_or(usize::MAX) };
        return Err(Failure::file("image", path, error));
    }
    files::read(path).map_err(fault)
}
