//! Names of modules, as the tools of the field list them.
use std::fmt;

use regex_lite::Regex;

/// Modules by their names.
#[derive(Clone, Debug)]
pub struct Names {
    all: Vec<Name>,
    /// As they are listed.
    text: String,
}

#[derive(Clone, Debug)]
enum Name {
    /// Every product.
    All,
    /// Those of layers, without the head and without products whose names end like these.
    Layers(&'static [&'static str]),
    /// This one.
    Exact(String),
    /// This one, and all below it; also with a path before it.
    Part(String),
    /// Whatever has this in its name.
    Within(String),
    /// Names that begin like this.
    Pattern(Regex),
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Names {
    fn new(all: Vec<Name>, text: String) -> Names {
        Names { all, text }
    }

    /// Every product.
    pub fn all() -> Names {
        Names::new(vec![Name::All], "all".into())
    }

    /// Every product of a layer but those whose names end like these.
    pub fn layers(without: &'static [&'static str]) -> Names {
        Names::new(vec![Name::Layers(without)], "layers".into())
    }

    /// Whether these are the products of layers, which no user has named.
    pub fn are_layers(&self) -> bool {
        matches!(self.all[..], [Name::Layers(_)])
    }

    /// Modules as transformers excludes them: whole, as the end of a path, as its beginning, or as
    /// a pattern of it.
    pub fn parts(list: &[&str]) -> Result<Names, String> {
        let name = |text: &&str| match is_plain(text) {
            true => Ok(Name::Part((*text).to_owned())),
            false => pattern(text),
        };
        Ok(Names::new(list.iter().map(name).collect::<Result<_, _>>()?, list.join(" ")))
    }

    /// Whether a text is no name.
    pub fn is_pattern(text: &str) -> bool {
        !is_plain(text)
    }

    /// Modules that have one of these texts in their names.
    pub fn within(list: &[&str]) -> Names {
        Names::new(list.iter().map(|text| Name::Within((*text).to_owned())).collect(), list.join(" "))
    }

    /// Modules by name, by class, which is `Linear` for all products, or by a pattern after `re:`.
    pub fn targets(list: &[&str]) -> Result<Names, String> {
        let name = |text: &&str| match text.strip_prefix("re:") {
            Some(text) => pattern(text),
            None if *text == "Linear" => Ok(Name::All),
            None => Ok(Name::Exact((*text).to_owned())),
        };
        Ok(Names::new(list.iter().map(name).collect::<Result<_, _>>()?, list.join(" ")))
    }

    /// Modules by name, by a pattern after `re:`, or by a pattern of file names (`*`, `?`).
    pub fn globs(list: &[&str]) -> Result<Names, String> {
        let name = |text: &&str| match text.strip_prefix("re:") {
            Some(text) => pattern(text),
            None if text.contains(['*', '?', '[']) => glob(text),
            None => Ok(Name::Exact((*text).to_owned())),
        };
        Ok(Names::new(list.iter().map(name).collect::<Result<_, _>>()?, list.join(" ")))
    }

    /// Modules with all below them, or patterns of file names, as ModelOpt excludes them.
    pub fn parts_or_globs(list: &[&str]) -> Result<Names, String> {
        let name = |text: &&str| match is_plain(text) {
            true => Ok(Name::Part((*text).to_owned())),
            false => glob(text),
        };
        Ok(Names::new(list.iter().map(name).collect::<Result<_, _>>()?, list.join(" ")))
    }

    /// A pattern as GPTQ's overrides have it, of any part of a name.
    pub fn pattern(text: &str) -> Result<Names, String> {
        Ok(Names::new(vec![pattern(text)?], text.to_owned()))
    }

    pub fn has(&self, module: &str) -> bool {
        self.all.iter().any(|name| match name {
            Name::All => true,
            Name::Layers(without) => !without.iter().chain([&super::HEAD]).any(|end| ends_with(module, end)),
            Name::Exact(text) => module == text,
            Name::Part(text) => {
                let rest = module.strip_prefix(text.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) || ends_with(module, text)
            }
            Name::Within(text) => module.contains(text.as_str()),
            Name::Pattern(pattern) => pattern.is_match(module),
        })
    }
}

/// Whether a path ends with another one.
fn ends_with(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || "._-".contains(c))
}

/// A pattern that a name begins with.
fn pattern(text: &str) -> Result<Name, String> {
    Regex::new(&format!("^(?:{text})")).map(Name::Pattern).map_err(|e| format!("{text:?} is no pattern: {e}"))
}

/// A pattern of file names as a pattern of the whole name.
fn glob(text: &str) -> Result<Name, String> {
    let part = |c: char| match c {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        '[' | ']' => c.to_string(),
        c => regex_lite::escape(&c.to_string()),
    };
    let inner: String = text.chars().map(part).collect();
    pattern(&format!("{inner}$"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: &str = "model.layers.1.self_attn.q_proj";

    #[test]
    fn exclusions_as_each_tool_writes_them() {
        let parts = |list: &[&str]| Names::parts(list).unwrap();
        assert!(parts(&[Q]).has(Q) && parts(&["model.layers.1"]).has(Q) && parts(&["q_proj"]).has(Q));
        assert!(parts(&["self_attn.q_proj"]).has(Q) && parts(&["model.layers.*.self_attn"]).has(Q));
        assert!(!parts(&["model.layers.11"]).has(Q) && !parts(&["model.layers.1"]).has("model.layers.11.mlp.up_proj"));
        assert!(!parts(&["lm_head", "proj"]).has(Q) && !parts(&[]).has(Q));
        let targets = |list: &[&str]| Names::targets(list).unwrap();
        assert!(targets(&["Linear"]).has(Q) && targets(&["Linear"]).has("lm_head"));
        assert!(targets(&["re:.*q_proj"]).has(Q) && targets(&["re:model.*q_proj$"]).has(Q) && targets(&[Q]).has(Q));
        assert!(!targets(&["re:q_proj", "q_proj", "Embedding"]).has(Q));
        let globs = |list: &[&str]| Names::globs(list).unwrap();
        assert!(globs(&["*q_proj"]).has(Q) && globs(&["model.layers.[01].*"]).has(Q) && globs(&[Q]).has(Q));
        assert!(!globs(&["*q_pro", "q_proj", "model.layers.?"]).has(Q));
        let excluded = |list: &[&str]| Names::parts_or_globs(list).unwrap();
        assert!(excluded(&["model.layers.1"]).has(Q) && excluded(&["model.layers.1.self_attn*"]).has(Q));
        assert!(excluded(&["*.self_attn.q_proj"]).has(Q) && !excluded(&["model.layers.1.mlp*", "self_attn"]).has(Q));
        assert!(Names::within(&["q_proj"]).has(Q) && Names::within(&["layers.1."]).has(Q));
        let layers = Names::layers(&["self_attn.k_proj"]);
        assert!(layers.has(Q) && !layers.has("lm_head") && Names::all().has("lm_head"));
        assert!(!layers.has("model.layers.1.self_attn.k_proj") && layers.has("model.layers.1.cross_attn.k_proj"));
    }

    #[test]
    fn what_is_no_pattern_is_said() {
        assert!(Names::targets(&["re:("]).unwrap_err().starts_with(r#""(" is no pattern: "#));
    }
}
