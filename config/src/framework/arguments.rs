//! Options on the command line of a framework, or in the file that its `--config` names.
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{flag, yaml};

/// The factors of a number's suffixes: thousands, or powers of two.
const UNITS: [(char, u64); 8] = [
    ('k', 1_000),
    ('m', 1_000_000),
    ('g', 1_000_000_000),
    ('t', 1_000_000_000_000),
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

/// Most wrong letters in an option that is taken for a known one.
const NEAR: usize = 2;

/// The option that names a file with others.
const FILE: &str = "--config";

/// The command line of a framework.
pub(crate) struct Syntax {
    /// As the framework calls itself.
    pub framework: &'static str,
    /// Where all options are.
    pub document: &'static str,
    /// Every option.
    pub names: Vec<&'static str>,
    /// Other spellings, and the options that they are.
    pub short: &'static [(&'static str, &'static str)],
    /// Options that the framework takes as JSON objects alone.
    pub objects: &'static [&'static str],
}

impl Syntax {
    /// Reads options: `--name value`, `--name=value`, `--name` and `--no-name` alone,
    /// `--name.key value` for a part of an object, and those of a file, which are read first.
    pub fn read(&self, arguments: &[String]) -> Result<Map<String, Value>, String> {
        let mut options = Map::new();
        let arguments = self.with_file(arguments)?;
        let mut rest = arguments.iter().peekable();
        while let Some(argument) = rest.next() {
            let Some(spelled) = argument.strip_prefix('-').map(|name| name.trim_start_matches('-')) else {
                return Err(format!("{argument}: is no option"));
            };
            let (spelled, given) = match spelled.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (spelled, None),
            };
            let (name, keys) = spelled.split_once('.').map_or((spelled, None), |(name, keys)| (name, Some(keys)));
            let (name, on) = self.known(name).ok_or_else(|| self.unknown(argument, name))?;
            let mut values: Vec<Value> = given.iter().map(|text| parse(text)).collect();
            while given.is_none() && on {
                let Some(next) = rest.next_if(|next| is_value(next)) else { break };
                values.push(parse(next));
            }
            let value = match values.len() {
                0 => json!(on),
                1 => values.remove(0),
                _ => Value::Array(values),
            };
            self.check(name, keys, &value)?;
            set(&mut options, name, keys, value);
        }
        Ok(options)
    }

    /// Arguments with those of the file that one of them names in front of them.
    fn with_file(&self, arguments: &[String]) -> Result<Vec<String>, String> {
        let Some(at) = arguments.iter().position(|argument| argument == FILE) else { return Ok(arguments.to_vec()) };
        let path = arguments.get(at + 1).ok_or_else(|| format!("{FILE}: names no file"))?;
        if arguments[at + 2..].iter().any(|argument| argument == FILE) {
            return Err(format!("{FILE}: {} takes one file", self.framework));
        }
        if !Path::new(path).extension().is_some_and(|end| end == "yaml" || end == "yml") {
            return Err(format!(
                "{FILE}: {path}: {} reads YAML of a file that ends with .yaml or .yml",
                self.framework
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|fault| format!("{FILE}: {path}: {fault}"))?;
        let entries = yaml::read(&text).map_err(|fault| format!("{FILE}: {path}: {fault}"))?;
        let mut all: Vec<String> = entries.iter().flat_map(|(name, value)| words(name, value)).collect();
        all.extend([&arguments[..at], &arguments[at + 2..]].concat());
        Ok(all)
    }

    /// The option's name in the table, and whether it is meant to be on.
    fn known(&self, spelled: &str) -> Option<(&'static str, bool)> {
        let name = spelled.replace('-', "_");
        let find = |wanted: &str| {
            let short = self.short.iter().find(|(short, _)| *short == wanted).map(|(_, name)| *name);
            short.or_else(|| self.names.iter().copied().find(|name| *name == wanted))
        };
        find(&name).map(|name| (name, true)).or_else(|| find(name.strip_prefix("no_")?).map(|name| (name, false)))
    }

    /// Known options with a similar spelling, and the place where all are listed.
    fn unknown(&self, argument: &str, name: &str) -> String {
        let name = name.replace('-', "_");
        let near: Vec<String> =
            self.names.iter().filter(|other| distance(&name, other) <= NEAR).map(|n| flag(n)).collect();
        let meant = if near.is_empty() { String::new() } else { format!(" {},", near.join(", ")) };
        let Syntax { framework, document, .. } = self;
        format!("{argument}: there is no such option of {framework}'s; known are{meant} those in {document}")
    }

    /// Refuses a value that the framework does not take for an object.
    fn check(&self, name: &str, keys: Option<&str>, value: &Value) -> Result<(), String> {
        if !self.objects.contains(&name) || keys.is_some() || value.is_object() || value.is_null() {
            return Ok(());
        }
        Err(format!("{}: {} takes a JSON object, not {}", flag(name), self.framework, super::short(value)))
    }
}

/// An entry of a file as arguments.
fn words(name: &str, value: &Value) -> Vec<String> {
    let flag = format!("--{name}");
    match value {
        Value::Bool(true) => vec![flag],
        Value::Bool(false) => vec![format!("--no-{name}")],
        Value::Null => vec![format!("{flag}=None")],
        Value::String(text) => vec![format!("{flag}={text}")],
        Value::Array(items) if items.is_empty() => vec![],
        Value::Array(items) => std::iter::once(flag).chain(items.iter().map(crate::compare::plain)).collect(),
        Value::Number(_) | Value::Object(_) => vec![format!("{flag}={value}")],
    }
}

/// Letters to change, add or leave out between two words.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// Whether an argument is a value and not the next option: negative numbers are.
fn is_value(argument: &str) -> bool {
    !argument.starts_with('-') || argument[1..].starts_with(|first: char| first.is_ascii_digit())
}

/// JSON, a number with a unit, or a text.
fn parse(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    let scaled = UNITS.iter().find_map(|(unit, scale)| {
        let number: f64 = text.strip_suffix(*unit)?.parse().ok()?;
        Some(json!((number * *scale as f64) as u64))
    });
    match text {
        "None" => Value::Null,
        "True" => json!(true),
        "False" => json!(false),
        _ => scaled.unwrap_or_else(|| json!(text)),
    }
}

fn set(options: &mut Map<String, Value>, name: &str, keys: Option<&str>, value: Value) {
    let Some(keys) = keys else {
        options.insert(name.to_owned(), value);
        return;
    };
    let mut at = options.entry(name).or_insert_with(|| json!({}));
    for key in keys.split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[key];
    }
    *at = value;
}
