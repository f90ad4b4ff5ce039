//! Expectations of an artifact's loader.
use serde::Deserialize;
use serde_json::Value;

use crate::{Error, Fingerprint, Manifest};

/// What has to have shaped an artifact.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// The compile key, which says that something differs, and not what.
    Key(String),
    /// All that the key is made of, so that what differs has a name.
    Made(Made),
}

/// All that shapes an artifact, as `atomc inspect --json` says it among other things.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Made {
    /// The atomc version.
    pub producer: String,
    /// Every option and model fact.
    pub config: Value,
}

impl Expected {
    /// Reads a key, or JSON that has `producer` and `config`, as that of `atomc inspect --json`.
    pub fn parse(text: &str) -> Result<Expected, Error> {
        let text = text.trim();
        if is_key(text) {
            return Ok(Expected::Key(text.into()));
        }
        serde_json::from_str(text)
            .map(Expected::Made)
            .map_err(|error| Error::NoExpectation { detail: error.to_string() })
    }
}

/// Whether this is written as keys are: a hash, as fingerprints are.
pub fn is_key(text: &str) -> bool {
    text.parse::<Fingerprint>().is_ok()
}

impl Manifest {
    /// Refuses an artifact that something else has shaped, with the name of what differs.
    pub fn expect(&self, expected: &Expected) -> Result<(), Error> {
        let mut found = vec![];
        match expected {
            Expected::Key(key) => {
                differences("key", Some(&self.key().into()), Some(&key.as_str().into()), &mut found);
            }
            Expected::Made(Made { producer, config }) => {
                let held = self.producer.as_str().into();
                differences("producer", Some(&held), Some(&producer.as_str().into()), &mut found);
                differences("config", Some(&self.config), Some(config), &mut found);
            }
        }
        let more = found.len().saturating_sub(1);
        match found.into_iter().next() {
            Some((field, held, expected)) => Err(Error::Unexpected { field, held, expected, more }),
            None => Ok(()),
        }
    }
}

/// Where two values differ: the path of each part, and what the one and the other have there.
fn differences(at: &str, held: Option<&Value>, expected: Option<&Value>, found: &mut Vec<(String, String, String)>) {
    match (held, expected) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let added = other.keys().filter(|name| !one.contains_key(*name));
            for name in one.keys().chain(added) {
                differences(&format!("{at}.{name}"), one.get(name), other.get(name), found);
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) if one.len() == other.len() => {
            for (i, (held, expected)) in one.iter().zip(other).enumerate() {
                differences(&format!("{at}[{i}]"), Some(held), Some(expected), found);
            }
        }
        _ if held != expected => found.push((at.into(), told(held), told(expected))),
        _ => {}
    }
}

/// A value in a message: nothing for a field that is not there, and of a long one its beginning.
fn told(value: Option<&Value>) -> String {
    /// Characters of a value: a key has 64.
    const LONGEST: usize = 80;
    let text = match value {
        None => return "nothing".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest() -> Manifest {
        let config = json!({
            "model": { "layers": [{ "heads": 4, "rope": { "theta": 1e4 } }, { "heads": 8 }], "tied": false, "window": null },
            "targets": ["host", "gfx942"], "tensor_parallel": 1,
        });
        let model = json!({
            "architecture": "A", "layers": 2, "hidden": 8, "vocab": 9, "max_positions": 16, "stop": [], "bos": null,
        });
        let all = json!({ "producer": "atomc 1", "config": config, "model": model, "tensors": {}, "tensor_parallel": 1, "targets": [] });
        serde_json::from_value(all).expect("a manifest")
    }

    /// The paths of everything in a value that is not made of parts.
    fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(all) => all.iter().for_each(|(name, value)| leaves(value, &format!("{at}/{name}"), found)),
            Value::Array(all) => {
                all.iter().enumerate().for_each(|(i, value)| leaves(value, &format!("{at}/{i}"), found))
            }
            _ => found.push(at.into()),
        }
    }

    fn refusal(expected: &Made) -> String {
        manifest().expect(&Expected::Made(expected.clone())).expect_err("another").to_string()
    }

    #[test]
    fn whichever_field_differs_is_named() {
        let Manifest { producer, config, .. } = manifest();
        let made = Made { producer, config };
        manifest().expect(&Expected::Made(made.clone())).expect("the same");
        let mut paths = vec![];
        leaves(&made.config, "", &mut paths);
        assert_eq!(paths.len(), 8, "{paths:?}");
        for path in &paths {
            let mut other = made.clone();
            *other.config.pointer_mut(path).expect("a part") = "other".into();
            let last = path.rsplit('/').next().expect("a name");
            let text = refusal(&other);
            let field = text.strip_prefix("the artifact is not the one expected: ").expect("a field");
            let field = field.split(" is ").next().expect("a field");
            assert!(field.starts_with("config.") && field.trim_end_matches(']').ends_with(last), "{path}: {text}");
            assert!(text.ends_with("and other was expected"), "{text}");
        }
        let other = Made { producer: "atomc 2".into(), ..made.clone() };
        assert!(refusal(&other).contains("producer is atomc 1, and atomc 2 was expected"));
        let mut other = made;
        other.config = json!({ "targets": ["host"], "more": 1 });
        assert_eq!(
            refusal(&other),
            "the artifact is not the one expected: config.model is {\"layers\":[{\"heads\":4,\"rope\":{\"theta\":10000.0}},\
             {\"heads\":8}],\"tied\":false,\"windo…, and nothing was expected (3 more fields differ)"
        );
    }

    #[test]
    fn a_key_alone_is_enough_to_refuse() {
        let key = manifest().key();
        manifest().expect(&Expected::parse(&format!("{key}\n")).expect("a key")).expect("its own");
        let other = Expected::parse(&key.chars().rev().collect::<String>()).expect("a key");
        let text = manifest().expect(&other).expect_err("another").to_string();
        assert!(text.contains(&format!("key is {key}")), "{text}");
        assert!(Expected::parse("{\"producer\": \"x\"}").expect_err("no config").to_string().contains("config"));
    }
}
