//! vLLM's options as they stand on a command line: values by the names of `EngineArgs`.
use serde_json::{Map, Value, json};

use super::options::{BLOCK_SIZE_GIVEN, SHORT, SPELLINGS, flag, names};

/// What the endings of a number multiply it with: in thousands, or in powers of two.
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

/// Reads options: `--name value`, `--name=value`, `--name` and `--no-name` alone,
/// `--name.key value` for a part of an object.
pub fn read(arguments: &[String]) -> Result<Map<String, Value>, String> {
    let mut options = Map::new();
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
        let (name, on) = known(name).ok_or_else(|| unknown(argument, name))?;
        let given = given.or_else(|| rest.next_if(|next| on && is_value(next)).cloned());
        let value = given.map_or(Value::Bool(on), |text| parse(&text));
        set(&mut options, name, keys, value);
    }
    judge(&mut options);
    Ok(options)
}

/// The option's name in the table, and whether it is meant to be on.
fn known(spelled: &str) -> Option<(&'static str, bool)> {
    let name = spelled.replace('-', "_");
    let find = |wanted: &str| {
        let short = SHORT.iter().find(|(short, _)| *short == wanted).map(|(_, name)| *name);
        short.or_else(|| names().find(|name| *name == wanted))
    };
    find(&name).map(|name| (name, true)).or_else(|| find(name.strip_prefix("no_")?).map(|name| (name, false)))
}

/// So many letters may be wrong in an option that is taken for another.
const NEAR: usize = 2;

/// Those that are spelled nearly so, and where all are.
fn unknown(argument: &str, name: &str) -> String {
    let name = name.replace('-', "_");
    let near: Vec<String> = names().filter(|other| distance(&name, other) <= NEAR).map(flag).collect();
    let meant = if near.is_empty() { String::new() } else { format!(" {},", near.join(", ")) };
    format!("{argument}: there is no such option of vLLM's; known are{meant} those in docs/vllm.md")
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

/// Puts what is judged under another name there, as vLLM does.
fn judge(options: &mut Map<String, Value>) {
    for (spelling, name) in SPELLINGS {
        let Some(value) = options.get(*spelling) else { continue };
        let value =
            if *spelling == "attention_config" { value["backend"].clone() } else { json!({ *spelling: value }) };
        if !value.is_null() {
            options.insert((*name).to_owned(), value);
        }
    }
    if options.contains_key("block_size") {
        options.insert(BLOCK_SIZE_GIVEN.0.to_owned(), json!(true));
    }
    // vLLM takes the largest that fits its memory, which is known when it runs.
    if options.get("max_model_len").is_some_and(|n| *n == json!("auto") || *n == json!(-1)) {
        options.remove("max_model_len");
    }
}
