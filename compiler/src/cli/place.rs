//! Where a model is, as every verb is told: a folder, a GGUF file, a name of the hub; or another
//! file, which may be an artifact.
use std::path::{Path, PathBuf};

use atomc::model::{self, Model};
use clap::builder::{PathBufValueParser, TypedValueParser};

use super::failure::Failure;
use super::hub::Named;

/// Where a model is, or what a verb takes in its place.
#[derive(Clone, Debug)]
pub enum Place {
    /// A model's folder.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A name of the hub, and its folder or GGUF file in the hub's cache.
    Hub(Named, PathBuf),
    /// A name of the hub, and why the hub's cache has nothing for it.
    Absent(Named, String),
    /// Any other path: an artifact, packed weights, a `config.json`, a `tokenizer.json`.
    File(PathBuf),
}

impl Place {
    /// The parser of an argument.
    pub fn parser() -> impl TypedValueParser<Value = Place> {
        PathBufValueParser::new().map(Place::of)
    }

    fn of(given: PathBuf) -> Place {
        if let Some(named) = Named::of(&given) {
            return match named.files() {
                Ok(path) => Place::Hub(named, path),
                Err(why) => Place::Absent(named, why),
            };
        }
        match () {
            () if given.is_dir() => Place::Folder(given),
            () if model::is_gguf(&given) => Place::Gguf(given),
            () => Place::File(given),
        }
    }

    /// The folder or the file.
    pub fn path(&self) -> Result<&Path, Failure> {
        match self {
            Place::Folder(path) | Place::Gguf(path) | Place::Hub(_, path) | Place::File(path) => Ok(path),
            Place::Absent(_, why) => Err(Failure::new("hub", why)),
        }
    }

    /// The files of the model.
    pub fn model(&self) -> Result<Model, Failure> {
        Ok(Model::at(self.path()?)?)
    }

    /// Whether it is a model's. Any other file is what the verb takes it for.
    pub fn is_model(&self) -> bool {
        !matches!(self, Place::File(_))
    }

    /// The place of the artifact: of a model beside it, or in its folder.
    pub fn artifact(&self) -> Result<PathBuf, Failure> {
        let path = self.path()?;
        Ok(if self.is_model() { model::artifact(path) } else { None }.unwrap_or_else(|| path.to_owned()))
    }

    /// The model's name for others, where the path does not have it.
    pub fn name(&self) -> Option<&str> {
        match self {
            Place::Hub(named, _) | Place::Absent(named, _) => Some(&named.name),
            _ => None,
        }
    }
}
