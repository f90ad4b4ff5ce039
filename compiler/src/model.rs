//! Where a model comes from: a folder as Hugging Face lays it out, or a GGUF file. Both have a
//! configuration, a tokenizer, a chat template and weights; no verb asks which of the two it is.
mod tensors;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atomc_artifact::files;
use atomc_config::{Config, Diagnostic};
use atomc_gguf::{Gguf, GgufError};
use atomc_runtime::{Checkpoint, CheckpointError, Source};
#[cfg(feature = "server")]
use atomc_server::template::{TemplateError, Templates};
use atomc_server::text::{Text, TextError};

use tensors::Tensors;

/// The files of a model.
#[derive(Debug)]
pub enum Model {
    /// A folder, or one of its files.
    Folder(PathBuf),
    /// A GGUF file, or several that it is one of.
    File(PathBuf, Arc<Gguf>),
}

/// Why something of a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A GGUF file is at fault.
    #[error("{}", told(path, why))]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: GgufError,
    },
    /// Its configuration is.
    #[error(transparent)]
    Config(#[from] Diagnostic),
    /// Its tokenizer is.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Its weights are.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A fault with its file, which some faults name themselves.
fn told(path: &Path, why: &GgufError) -> String {
    match why {
        GgufError::Io { .. }
        | GgufError::Changed { .. }
        | GgufError::Malformed { .. }
        | GgufError::Part { .. }
        | GgufError::Twice { .. } => why.to_string(),
        _ => format!("{}: {why}", path.display()),
    }
}

/// The name of a folder's artifact, and how that of a file ends.
const ARTIFACT: &str = "model.atomc";
const ENDING: &str = "atomc";

/// Whether a path is a GGUF file, by its name or how it begins: links into caches have other names.
pub fn is_gguf(path: &Path) -> bool {
    if path.is_dir() {
        return false;
    }
    let begins = || {
        let mut first = [0; 4];
        files::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && &first == b"GGUF"
    };
    path.extension().is_some_and(|ending| ending == "gguf") || begins()
}

/// Where the artifact of a model is looked for, if a path is a model: in a folder, beside a file.
pub fn artifact(path: &Path) -> Option<PathBuf> {
    match path.is_dir() {
        true => Some(path.join(ARTIFACT)),
        false => is_gguf(path).then(|| path.with_extension(ENDING)),
    }
}

impl Model {
    /// The model at a path. Of a folder nothing is read before it is wanted.
    pub fn at(path: &Path) -> Result<Model, ModelError> {
        if !is_gguf(path) {
            return Ok(Model::Folder(path.to_owned()));
        }
        let gguf = Gguf::open(path).map_err(|why| ModelError::Gguf { path: path.to_owned(), why })?;
        Ok(Model::File(path.to_owned(), Arc::new(gguf)))
    }

    /// Its configuration.
    pub fn config(&self) -> Result<Config, ModelError> {
        match self {
            Model::Folder(path) => Ok(atomc_config::read(path)?),
            Model::File(path, gguf) => Ok(Config::parse(&of(path, atomc_gguf::config(gguf))?.to_string(), None)?),
        }
    }

    /// Its tokenizer.
    pub fn text(&self) -> Result<Text, ModelError> {
        match self {
            Model::Folder(path) => Ok(Text::open(path)?),
            Model::File(path, gguf) => {
                let json = of(path, atomc_gguf::tokenizer(gguf))?;
                Ok(Text::parse(path, json.to_string().as_bytes())?)
            }
        }
    }

    /// Its chat templates.
    #[cfg(feature = "server")]
    pub fn templates(&self) -> Result<Templates, TemplateError> {
        match self {
            Model::Folder(_) => Templates::open(self.folder()),
            Model::File(path, gguf) => {
                let fault =
                    |why: GgufError| TemplateError::File { file: path.display().to_string(), why: why.to_string() };
                Templates::new(None, &atomc_gguf::tokenizer_config(gguf).map_err(fault)?)
            }
        }
    }

    /// Its weights.
    pub fn weights(&self) -> Result<Box<dyn Source>, ModelError> {
        match self {
            Model::Folder(path) => Ok(Box::new(Checkpoint::open(path)?)),
            Model::File(path, gguf) => Ok(Box::new(of(path, Tensors::new(path, gguf))?)),
        }
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        let (Model::Folder(path) | Model::File(path, _)) = self;
        if path.is_dir() { path } else { path.parent().unwrap_or(path) }
    }

    /// What it is called: as its folder, or as its file without the ending.
    pub fn name(&self) -> String {
        let name = match self {
            Model::Folder(_) => {
                let folder = std::fs::canonicalize(self.folder()).unwrap_or_else(|_| self.folder().to_owned());
                folder.file_name().map(|name| name.to_string_lossy().into_owned())
            }
            Model::File(path, _) => path.file_stem().map(|name| name.to_string_lossy().into_owned()),
        };
        name.unwrap_or_else(|| "model".to_owned())
    }
}

/// A result with the name of the file that it is of.
fn of<T>(path: &Path, done: Result<T, GgufError>) -> Result<T, ModelError> {
    done.map_err(|why| ModelError::Gguf { path: path.to_owned(), why })
}
