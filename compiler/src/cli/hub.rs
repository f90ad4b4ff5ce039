//! Models by their names on the hub, in the cache that the hub's own tools fill. Nothing is loaded
//! over a network.
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

use super::failure::Failure;

/// Variables that say where the cache is, and the folder of the cache below them. The first one
/// that is set counts.
const PLACES: [(&str, &str); 5] = [
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
    ("HOME", ".cache/huggingface/hub"),
];

/// The branch whose files a name without a revision means.
const BRANCH: &str = "refs/main";

/// An argument that is a path, or a name of the hub. A name that is in the cache becomes the folder
/// of its files; what is neither stays as it is, and [`check`] says so.
pub fn argument() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|given| Model::of(&given).and_then(|model| model.folder().ok()).unwrap_or(given))
}

/// An error if this is a name of the hub that is not in the cache.
pub fn check(given: &Path) -> Result<(), Failure> {
    match Model::of(given) {
        Some(model) => model.folder().map(drop),
        None => Ok(()),
    }
}

/// A name of the hub, which is no path here.
struct Model {
    name: String,
    cache: PathBuf,
}

impl Model {
    fn of(given: &Path) -> Option<Model> {
        let name = given.to_str().filter(|name| is_name(name) && !given.exists())?.to_owned();
        Some(Model { name, cache: cache(|variable| std::env::var_os(variable))? })
    }

    /// The folder with its files.
    fn folder(&self) -> Result<PathBuf, Failure> {
        let model = self.cache.join(format!("models--{}", self.name.replace('/', "--")));
        let absent = |what: &str| {
            let message = format!("{} is no path here, and the hub's cache has {what}", self.name);
            Failure::file("hub", &model, message).help(format!(
                "`hf download {}` fills the cache; HF_HUB_CACHE or HF_HOME says where it is. A folder is as good.",
                self.name
            ))
        };
        if !model.is_dir() {
            return Err(absent("no such model"));
        }
        let commit = std::fs::read_to_string(model.join(BRANCH)).map_err(|_| absent("no revision `main` of it"))?;
        let commit = commit.trim();
        // A commit is one folder's name.
        if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(absent("no commit in refs/main of it"));
        }
        let folder = model.join("snapshots").join(commit);
        if folder.join("config.json").exists() { Ok(folder) } else { Err(absent("no config.json of it")) }
    }
}

/// Whether this is an owner and a model, as the hub names them.
fn is_name(text: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(plain) && !part.contains("--")
    };
    text.split_once('/').is_some_and(|(owner, model)| part(owner) && part(model))
}

/// The cache's folder.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    PLACES.iter().find_map(|(name, below)| Some(PathBuf::from(set(name)?).join(below)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        for name in ["Qwen/Qwen3-8B", "zai-org/GLM-4.7-FP8", "meta-llama/Llama-3.1-8B-Instruct"] {
            assert!(is_name(name), "{name}");
        }
        for path in ["Qwen3-8B", "./a/b", "/models/qwen3", "a/b/c", "../b", "a/..", "a/", "/b", "a--b/c", "a b/c"] {
            assert!(!is_name(path), "{path}");
        }
    }

    #[test]
    fn places_of_the_cache() {
        let of = |all: &[(&str, &str)]| {
            let value = |name: &str| all.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
            cache(value).map(|path| path.display().to_string()).unwrap_or_default()
        };
        assert_eq!(of(&[("HOME", "/home/a")]), "/home/a/.cache/huggingface/hub");
        assert_eq!(of(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")]), "/c/huggingface/hub");
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")]), "/h/hub");
        assert_eq!(of(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/h/cache")]), "/h/cache/");
        assert_eq!(of(&[("HF_HUB_CACHE", ""), ("HOME", "/home/a")]), "/home/a/.cache/huggingface/hub");
        assert_eq!(of(&[]), "");
    }

    /// What is said of a model in a cache that has these files.
    fn said(files: &[(&str, &str)]) -> String {
        let cache = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            let file = cache.path().join("models--Qwen--Qwen3-8B").join(name);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(file, text).expect("a file");
        }
        let model = Model { name: "Qwen/Qwen3-8B".into(), cache: cache.path().into() };
        let here = cache.path().display().to_string();
        match model.folder() {
            Ok(folder) => folder.display().to_string().replace(&here, "CACHE"),
            Err(Failure::Report(report)) => report.to_string().replace(&here, "CACHE"),
            Err(Failure::Closed) => "closed".into(),
        }
    }

    #[test]
    fn models_in_the_cache() {
        let head = ("refs/main", "b968826d9c46dd6066d109eabc6255188de91218\n");
        let file = ("snapshots/b968826d9c46dd6066d109eabc6255188de91218/config.json", "{}");
        let begin = "CACHE/models--Qwen--Qwen3-8B: Qwen/Qwen3-8B is no path here, and the hub's cache has";
        assert_eq!(
            said(&[head, file]),
            "CACHE/models--Qwen--Qwen3-8B/snapshots/b968826d9c46dd6066d109eabc6255188de91218"
        );
        assert_eq!(said(&[]), format!("{begin} no such model"));
        assert_eq!(said(&[file]), format!("{begin} no revision `main` of it"));
        assert_eq!(said(&[head]), format!("{begin} no config.json of it"));
        assert_eq!(said(&[("refs/main", "../../.."), file]), format!("{begin} no commit in refs/main of it"));
    }
}
