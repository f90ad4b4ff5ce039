//! Whether a configuration means the model that an artifact was made of.
use std::fmt;

use serde_json::Value;

use crate::Config;

/// Names for parts of facts that no `config.json` has in this form.
const PARTS: [(&str, &str); 1] = [("rope_parameters.rotary_dim", "partial_rotary_factor: elements that rotate")];

/// Facts that are not compared, and why.
pub const ELSEWHERE: [(&str, &str); 6] = [
    ("quant", "weights are quantised while they are loaded, whatever a framework knows of it"),
    ("dtype", "a framework has an option for it"),
    ("cache_dtype", "a framework has an option for it"),
    ("context", "the longest sequence has a rule of its own"),
    ("eos_token_id", "a framework ends answers itself"),
    ("bos_token_id", "a framework begins prompts itself"),
];

/// A fact in which two models differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name in a `config.json`.
    pub field: String,
    /// `null` if it is absent.
    pub asked: Value,
    pub held: Value,
}

impl Difference {
    /// The difference in words. `asker` names the program that asked for the model.
    pub fn between(&self, asker: &str) -> String {
        let Difference { field, asked, held } = self;
        format!("config.json: {field}: {asker} has {}, the artifact {}", told(asked), told(held))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.between("vLLM"))
    }
}

/// A value in the words of a message: `none` for nothing.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A value in words. A whole configuration is only said to exist, as other facts give its contents.
pub fn told(value: &Value) -> String {
    match value {
        Value::Object(parts) if !parts.is_empty() => "one".into(),
        other => plain(other),
    }
}

/// What differs between a configuration and the facts of a model that an artifact has echoed
/// ([`Config::echo`]), by what fields mean: every fact of the one or the other, of those in the
/// same list or object the first. What explains others is read first, and goes first.
pub fn differences(asked: &Config, held: &Value) -> Vec<Difference> {
    let echo = asked.echo();
    let others = held.as_object().into_iter().flat_map(|facts| facts.keys().map(String::as_str));
    let others = others.filter(|name| asked.facts.get(name).is_none());
    let names = asked.facts.iter().map(|(name, _)| name).chain(others);
    let compared = names.filter(|name| !ELSEWHERE.iter().any(|(other, _)| other == name));
    compared.filter_map(|name| first(name, &echo[name], &held[name])).collect()
}

/// The first difference of two values, part by part.
fn first(field: &str, asked: &Value, held: &Value) -> Option<Difference> {
    match (asked, held) {
        // The type of an embedding says which other fields it has.
        (Value::Object(a), Value::Object(h)) => {
            let mut names: Vec<&String> = a.keys().chain(h.keys()).collect();
            names.sort_by_key(|name| (!name.ends_with("_type"), *name));
            names.into_iter().find_map(|name| first(&format!("{field}.{name}"), &asked[name], &held[name]))
        }
        (Value::Array(a), Value::Array(h)) if a.len() == h.len() => {
            a.iter().zip(h).find_map(|(a, h)| first(field, a, h))
        }
        _ => (asked != held).then(|| {
            let field = PARTS.iter().find(|(part, _)| *part == field).map_or(field, |(_, name)| name).to_owned();
            Difference { field, asked: asked.clone(), held: held.clone() }
        }),
    }
}
