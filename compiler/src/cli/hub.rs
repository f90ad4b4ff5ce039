//! Models by their names on the hub, in the cache that the hub's own tools fill. Nothing is loaded
//! over a network.
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use atomc::model;

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

/// Endings of files: a path that is wrong is no name of the hub.
const FILES: [&str; 4] = ["atomc", "gguf", "json", "safetensors"];

/// A name of the hub, which is no path here.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its owner and its name.
    pub name: String,
    cache: PathBuf,
}

impl Named {
    pub fn of(given: &Path) -> Option<Named> {
        let is_file = given.extension().is_some_and(|ending| FILES.iter().any(|&known| ending == known));
        let name = given.to_str().filter(|name| is_name(name) && !is_file && !given.exists())?.to_owned();
        Some(Named { name, cache: cache(|variable| std::env::var_os(variable))? })
    }

    /// The folder with its files, or the one GGUF file where there is no other model; or a line
    /// that says where it was looked for and what fetches it.
    pub fn files(&self) -> Result<PathBuf, String> {
        let model = self.cache.join(format!("models--{}", self.name.replace('/', "--")));
        let absent = |what: &str| {
            let (name, place) = (&self.name, model.display());
            format!("{name} is no path here, and the hub's cache has {what} ({place}): `hf download {name}` fetches it")
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
        match &ggufs(&folder)[..] {
            _ if folder.join("config.json").exists() => Ok(folder),
            [] => Err(absent("no config.json of it")),
            [file] => Ok(folder.join(file)),
            several => Err(format!(
                "{} has several GGUF files in {}: name one of {}",
                self.name,
                folder.display(),
                several.join(", ")
            )),
        }
    }
}

/// The models in GGUF of a folder: of one in several files the first.
fn ggufs(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with(".gguf") && model::is_gguf(&folder.join(name)))
        .filter(|name| !name.contains("-of-") || name.contains("-00001-of-"))
        .collect();
    names.sort();
    names
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
        let model = Named { name: "Qwen/Qwen3-8B".into(), cache: cache.path().into() };
        let here = cache.path().display().to_string();
        model.files().map_or_else(|why| why, |path| path.display().to_string()).replace(&here, "CACHE")
    }

    #[test]
    fn models_in_the_cache() {
        let commit = "snapshots/b968826d9c46dd6066d109eabc6255188de91218";
        let (head, here) =
            (("refs/main", "b968826d9c46dd6066d109eabc6255188de91218\n"), "CACHE/models--Qwen--Qwen3-8B");
        let of = |name: &str| format!("{commit}/{name}");
        let (config, first, second) = (of("config.json"), of("a-Q4_K_M.gguf"), of("b-00001-of-00002.gguf"));
        let (config, first, second) = ((&*config, "{}"), (&*first, "GGUF"), (&*second, "GGUF"));
        let rest = of("b-00002-of-00002.gguf");
        assert_eq!(said(&[head, config]), format!("{here}/{commit}"));
        assert_eq!(said(&[head, config, first]), format!("{here}/{commit}"));
        assert_eq!(said(&[head, first]), format!("{here}/{}", first.0));
        assert_eq!(said(&[head, second, (&rest, "GGUF")]), format!("{here}/{}", second.0));
        assert_eq!(
            said(&[head, first, second]),
            format!(
                "Qwen/Qwen3-8B has several GGUF files in {here}/{commit}: name one of a-Q4_K_M.gguf, b-00001-of-00002.gguf"
            )
        );
        for (files, what) in [
            (&[][..], "no such model"),
            (&[config], "no revision `main` of it"),
            (&[head], "no config.json of it"),
            (&[("refs/main", "../../.."), config], "no commit in refs/main of it"),
        ] {
            let begin = "Qwen/Qwen3-8B is no path here, and the hub's cache has";
            assert_eq!(said(files), format!("{begin} {what} ({here}): `hf download Qwen/Qwen3-8B` fetches it"));
        }
    }
}
